"""The configuration: units and addresses by property, then what each source gives, then what is refused and how."""
import contextlib
import random
import re
from datetime import date
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fluxmq._core.errors import ConfigError
from fluxmq.app.config import InvalidConfig, load
from fluxmq.app.config_text import keys_as_markdown, show
from fluxmq.app.config_words import is_word, word
from fluxmq.app.config_yaml import read_value
from fluxmq.model.address import Address, parse_address
from fluxmq.model.config import Config
from fluxmq.model.config_keys import KEYS, SECTIONS, build, values
from fluxmq.model.config_refused import ALIASES, REFUSED, REFUSED_VALUES, refusal
from fluxmq.model.namespaces import read_namespaces
from fluxmq.model.queues import read_specs
from fluxmq.model.raft import read_groups, read_patterns
from fluxmq.model.units import format_duration, format_size, parse_duration, parse_size

ROOT = Path(__file__).parents[2]


def problems(*, text: str | None = None, tmp_path: Path | None = None, environment=None, sets=()) -> dict[str, str]:
    """Path to text of everything that is wrong; of several at one path the texts joined."""
    file = None
    if text is not None:
        assert tmp_path is not None
        file = tmp_path / "fluxmq.yaml"
        file.write_text(text)
    with pytest.raises(InvalidConfig) as caught:
        load(file, environment, sets)
    found: dict[str, str] = {}
    for problem in caught.value.problems:
        assert isinstance(problem, ConfigError)
        found[problem.path] = f"{found.get(problem.path, '')}{problem.text}\n"
    return found


# --- units ---------------------------------------------------------------------------------------------------------

@given(st.floats(min_value=0, max_value=4294967294, allow_nan=False))
def test_a_duration_is_read_back_as_it_was_written(seconds: float) -> None:
    assert parse_duration(seconds) == seconds
    if seconds == 0 or seconds >= 1e-6:
        assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=4294967294))
def test_whole_seconds_survive_exactly(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_size_is_read_back_as_it_was_written(size: int) -> None:
    assert parse_size(format_size(size)) == size == parse_size(size) == parse_size(str(size))


@given(st.one_of(st.text(), st.none(), st.booleans(), st.floats(), st.integers(), st.lists(st.integers())))
def test_anything_else_is_a_value_error(value: object) -> None:
    for parse in (parse_duration, parse_size):
        with contextlib.suppress(ValueError):
            assert parse(value) >= 0


@pytest.mark.parametrize(("text", "seconds"), [
    ("60s", 60), ("1m30s", 90), ("250ms", 0.25), ("1h", 3600), ("2d", 172800), ("1.5s", 1.5), ("15us", 15e-6),
    ("90", 90), (0.5, 0.5), (3, 3)])
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s", "1S", "1w", "1s1s", "1e3", "١s", "nan", "9" * 50, True, None])
def test_not_durations(text: object) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(("text", "size"), [
    ("64KiB", 65536), ("1MiB", 1 << 20), ("1.5KiB", 1536), ("2 GiB", 2 << 30), ("10B", 10), ("77", 77), (5, 5)])
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1.3B", "64KB", "1kib", "1K", 1.0, True, -1])
def test_not_sizes(text: object) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_a_decimal_unit_names_the_binary_one() -> None:
    with pytest.raises(ValueError, match="write 64KiB"):
        parse_size("64KB")


# --- addresses -----------------------------------------------------------------------------------------------------

@given(st.one_of(st.ip_addresses().map(str), st.from_regex(r"\A[a-z][a-z0-9]{0,8}(\.[a-z]{1,3})?\Z"), st.just("")),
       st.integers(0, 65535))
def test_an_address_is_read_back_as_it_was_written(host: str, port: int) -> None:
    address = Address(host, port)
    assert parse_address(str(address)) == address


@given(st.text(max_size=30))
def test_no_text_but_an_address_is_taken(text: str) -> None:
    try:
        assert 0 <= parse_address(text).port <= 65535
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize("text", ["*:1883", "::1:1883", "1883", "localhost", "host:", "host:65536", "host:x", "[::1]",
                                  "1.2.3:1", "1.2.3.4.5:1", "a b:1", "[1.2.3.4]:1", "http://a:1", ":-1", "host:٣"])
def test_not_addresses(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


@pytest.mark.parametrize(("one", "other", "clash"), [
    ("127.0.0.1:1", "127.0.0.1:1", True), ("127.0.0.1:1", "127.0.0.1:2", False), (":1", "127.0.0.1:1", True),
    (":1", "[::1]:1", True), ("0.0.0.0:1", "127.0.0.1:1", True), ("0.0.0.0:1", "[::1]:1", False),
    ("[::]:1", "127.0.0.1:1", True), ("[::]:1", "0.0.0.0:1", True), ("[::1]:1", "[0:0::1]:1", True),
    ("127.0.0.1:1", "127.0.0.2:1", False), ("localhost:1", "127.0.0.1:1", True), ("localhost:1", "[::1]:1", True),
    ("0.0.0.0:1", "localhost:1", True), (":1", "broker.example:1", True), ("a.example:1", "A.example:1", True),
    (":0", ":0", False), ("127.0.0.1:0", "127.0.0.1:0", False), ("[::ffff:127.0.0.1]:1", "127.0.0.1:1", True)])
def test_clashes(one: str, other: str, clash: bool) -> None:
    assert parse_address(one).overlaps(parse_address(other)) is clash
    assert parse_address(other).overlaps(parse_address(one)) is clash


@pytest.mark.parametrize(("text", "loopback"), [
    ("127.0.0.1:1", True), ("127.9.9.9:1", True), ("[::1]:1", True), ("localhost:1", True), (":1", False),
    ("0.0.0.0:1", False), ("[::]:1", False), ("192.168.0.1:1", False), ("localhost.example:1", False)])
def test_loopback(text: str, loopback: bool) -> None:
    assert parse_address(text).is_loopback is loopback


# --- schema --------------------------------------------------------------------------------------------------------

def test_every_key_has_a_description_and_a_usable_default() -> None:
    for key in KEYS.values():
        assert len(key.description) > 10 and key.description.endswith("."), key.path
        assert key.convert(key.default) == key.default, key.path
        assert key.convert(yaml.safe_load(key.format(key.default))) == key.default, key.path
    assert values(Config()) == {path: key.default for path, key in KEYS.items()}
    assert build({}) == Config()


def test_without_anything_only_loopback_listens() -> None:
    config, provenance = load()
    assert [path for path, _ in config.listeners()] == [
        "server.mqtt.tcp.plain", "server.mqtt.websocket.plain", "server.amqp091.plain"]
    assert all(slot.address is not None and slot.address.is_loopback for _, slot in config.listeners())
    assert parse_address(config.server.health_addr).is_loopback
    assert all(config.anonymous_allowed(slot) for _, slot in config.listeners())
    assert set(provenance) == set(KEYS) and set(provenance.values()) == {"default"}


def test_the_tables_of_refused_keys_and_the_schema_are_apart() -> None:
    assert [path for path in (*KEYS, *SECTIONS) if path and refusal(path) is not None] == []
    for pattern, value in REFUSED_VALUES:
        key = KEYS[pattern.replace("*.*", "tcp.tls").replace("*", "tls")]
        assert value not in key.choices
    for written, path in ALIASES.items():
        assert written not in KEYS and path in KEYS


@pytest.mark.parametrize("pattern", REFUSED)
def test_every_refused_key_says_why(pattern: str) -> None:
    path = pattern.replace("*.*", "tcp.tls").replace("*", "plain")
    found = problems(sets=[f"{path}=1"])
    assert REFUSED[pattern] in found[path] or "has no TLS" in found[path]


@pytest.mark.parametrize(("pattern", "value"), REFUSED_VALUES)
def test_every_refused_value_says_why(pattern: str, value: str | bool) -> None:
    path = pattern.replace("*.*", "tcp.tls").replace("*", "tls")
    assert REFUSED_VALUES[pattern, value] in problems(sets=[f"{path}={value}"])[path]


def test_the_guide_is_up_to_date() -> None:
    guide = ROOT / "docs" / "guide" / "configuration.md"
    assert guide.read_text() == keys_as_markdown(), "write it again: fluxmq config keys --markdown"


# --- sources -------------------------------------------------------------------------------------------------------

def _another(key, rng: random.Random) -> object:
    """A value for the key that is not its default and passes every check that is not about other keys."""
    if key.kind == "address":
        return f"127.0.0.{rng.randrange(1, 255)}:0"
    if key.kind == "boolean":
        return not key.default and not key.path.startswith("cluster.")  # a cluster's keys are in test_cluster_config.py
    if key.kind == "map":
        return {"one": "127.0.0.1:1", "other": "[::1]:2"}
    if key.kind == "integer":
        return key.default - 1 if key.default > 1 else key.default + 1
    if key.path == "cluster.node_id":
        return "other"
    if key.kind in ("duration", "size"):
        return key.default + 1 if key.kind == "duration" else (key.default or 1 << 30) + 4096
    if key.kind == "choice":
        return next((choice for choice in key.choices if choice and choice != key.default), key.default)
    if key.path.endswith("_networks"):
        return ("192.0.2.0/24",)
    if key.kind == "list":
        return ("other",) if key.default else ()
    if key.kind == "nodes":
        return "one", "other"
    if key.kind == "groups":
        return read_groups({"hot": {"replication_factor": 5, "sync_mode": False, "ack_timeout": "2s", "peers": ["a"]}})
    if key.kind == "patterns":
        return read_patterns(["order*", {"namespace": "/other", "group": "hot"}])
    if key.kind == "namespaces":
        return read_namespaces(["/other", {"name": "plant", "limits": {"bytes": "9MiB", "queues": 3}}])
    if key.kind == "queues":
        return read_specs([{"name": "q", "type": "stream", "retention": {"max_age": "90s", "max_length_bytes": "9KiB"}},
                           {"name": "w", "limits": {"max_depth": 7}, "topics": ["a/#"], "dlq": {"enabled": False}}])
    return "/other"


def test_dead_letters_go_to_a_queue_from_which_they_can_be_put_back(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("queues:\n  - {name: s, type: stream}\n  - name: a\n    dlq: {topic: s}\n"
                    "  - {name: b, dlq: {topic: a}}\n")
    with pytest.raises(InvalidConfig, match=r"queues\[1\].dlq.topic: the dead letters of a would go to s, .*:4\)"):
        load(file)


def test_whatever_is_set_is_what_is_there_and_show_is_read_back(tmp_path: Path) -> None:
    rng = random.Random(1)
    skipped = ("cert_file", "key_file", "ca_file", "users_file", "acl_file", "client_auth", "username_from",
               "cluster_users", "cluster_permissions")
    wanted = {path: _another(key, rng) for path, key in KEYS.items()
              if path.rpartition(".")[2] not in skipped and not (path.endswith("addr") and "tls" in path)}
    sets = [f"{path}={KEYS[path].format(value)}" for path, value in wanted.items()]
    config, provenance = load(sets=sets)
    current = values(config)
    for path, value in wanted.items():
        assert current[path] == value, path
        assert provenance[path] == f"--set {path}"
    file = tmp_path / "shown.yaml"
    file.write_text(show(config, provenance))
    assert load(file)[0] == config
    assert yaml.safe_load(file.read_text()).keys() == {
        "server", "broker", "session", "amqp091", "log", "storage", "auth", "queue_manager", "record", "cluster",
        "namespaces", "queues"}


def test_the_environment_says_the_same_as_flags() -> None:
    environment = {"FLUXMQ__SERVER__MQTT__TCP__PLAIN__ADDR": "127.0.0.1:0", "FLUXMQ__BROKER__MAX_QOS": "1",
                   "FLUXMQ__SESSION__MAX_EXPIRY_INTERVAL": "1h", "FLUXMQ__AUTH__ALLOW_ANONYMOUS": "null",
                   "FLUXMQ__SERVER__MQTT__WEBSOCKET__PLAIN__ALLOWED_ORIGINS": "['*']", "PATH": "/bin", "FLUXMQ_X": "y"}
    config, provenance = load(environment=environment)
    assert config.server.mqtt.tcp.plain.addr == "127.0.0.1:0"
    assert config.broker.max_qos == 1 and config.session.max_expiry_interval == 3600
    assert config.server.mqtt.websocket.plain.allowed_origins == ("*",)
    assert provenance["broker.max_qos"] == "environment FLUXMQ__BROKER__MAX_QOS"


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("log:\n  level: debug\nbroker:\n  max_qos: 0\nsession:\n  max_sessions: 7\n")
    environment = {"FLUXMQ__LOG__LEVEL": "warn", "FLUXMQ__BROKER__MAX_QOS": "1"}
    config, provenance = load(file, environment, ["log.level=info", "log.level=error"])
    assert (config.log.level, config.broker.max_qos, config.session.max_sessions) == ("error", 1, 7)
    assert provenance["log.level"] == "--set log.level"
    assert provenance["session.max_sessions"] == f"{file}:6"
    assert provenance["session.max_inflight_messages"] == "default"


def test_the_seeds_name_of_the_directory_is_an_alias(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("storage:\n  badger_dir: here\n")
    config, provenance = load(file)
    assert config.storage.dir == "here"
    assert provenance["storage.dir"] == f"{file}:2, written as storage.badger_dir"
    assert "keep one" in problems(text="storage: {dir: a, badger_dir: b}", tmp_path=tmp_path)["storage.badger_dir"]


def test_yaml_is_that_of_version_1_2(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("storage: {dir: 2026-01-01}\nbroker: {response_information: yes, max_qos: 0o2}\n"
                    "session: {max_sessions: 0755}\n")
    config, _ = load(file)
    assert config.storage.dir == str(date(2026, 1, 1)) and config.broker.response_information == "yes"
    assert config.broker.max_qos == 2 and config.session.max_sessions == 755
    assert "true or false" in problems(text="server: {health_enabled: on}", tmp_path=tmp_path)["server.health_enabled"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "server:\n", "---\n", "server: {mqtt: {tcp: }}"])
def test_an_empty_file_is_the_defaults(tmp_path: Path, text: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    assert load(file)[0] == Config()


# --- what is wrong -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "path", "part"), [
    ("log: {levl: info}", "log.levl", "the nearest is log.level"),
    ("log: {level: infos}", "log.level", "the nearest is info"),
    ("log: {level: 3}", "log.level", "one of debug, info, warn, error"),
    ("brokr: {}", "brokr", "the nearest is broker"),
    ("broker: {max_inflight_messages: 3}", "broker.max_inflight_messages", "there is session.max_inflight_messages"),
    ("broker: {max_qos: 3}", "broker.max_qos", "a whole number from 0 to 2"),
    ("broker: {max_qos: true}", "broker.max_qos", "a whole number"),
    ("broker: {max_qos: }", "broker.max_qos", "null cannot be used"),
    ("broker: {max_qos: 1, max_qos: 2}", "broker.max_qos", "is given twice"),
    ("broker: {}\nbroker: {}", "broker", "is given twice"),
    ("broker: 3", "broker", "must be a section"),
    ("log.level: info", "", "one word"),
    ("- a", "", "must be a section"),
    ("broker: {1: 2}", "broker.1", "unknown key"),
    ("broker: {<<: {max_qos: 1}}", "broker.<<", "unknown key"),
    ("session: {max_expiry_interval: -1s}", "session.max_expiry_interval", "a duration such as"),
    ("session: {max_expiry_interval: 200y}", "session.max_expiry_interval", "a duration such as"),
    ("session: {max_expiry_interval: 4294967295}", "session.max_expiry_interval", "too large"),
    ("session: {send_buffer_low: 8MiB}", "session.send_buffer_low", "smaller than session.send_buffer_high"),
    ("session: {max_offline_queue_bytes: 1e3}", "session.max_offline_queue_bytes", "a size such as"),
    ("broker: {server_keep_alive_max: 1.5}", "broker.server_keep_alive_max", "whole seconds"),
    ("broker: {response_information: \"a\\0b\"}", "broker.response_information", "cannot be printed"),
    ("storage: {dir: ''}", "storage.dir", "not empty"),
    ("storage: {type: rocks}", "storage.type", "the nearest is rocksdb"),
    ("server: {health_addr: '8081'}", "server.health_addr", "host:port"),
    ("server: {health_addr: '127.0.0.1:1883'}", "server.health_addr", "clashes with server.mqtt.tcp.plain.addr"),
    ("server: {mqtt: {tcp: {plain: {addr: '*:1883'}}}}", "server.mqtt.tcp.plain.addr", "write :1883"),
    ("server: {mqtt: {tcp: {plain: {protocol: v3}}}}", "server.mqtt.tcp.plain.protocol", "only auto"),
    ("server: {mqtt: {tcp: {plain: {path: /x}}}}", "server.mqtt.tcp.plain.path", "is for WebSocket"),
    ("server: {mqtt: {tcp: {v3: {addr: '[::]:1883'}}}}", "server.mqtt.tcp.v3.addr", "clashes"),
    ("server: {mqtt: {websocket: {plain: {path: mqtt}}}}", "server.mqtt.websocket.plain.path", "starts with /"),
    ("server: {mqtt: {websocket: {plain: {allowed_origins: [example.org]}}}}",
     "server.mqtt.websocket.plain.allowed_origins", "scheme://host"),
    ("auth: {users_file: /nowhere/users}", "auth.users_file", "No such file"),
    ("auth: {acl_file: /}", "auth.acl_file", "is a directory"),
    ("auth: {allow_anonymous: false}", "auth.allow_anonymous", "nobody could connect"),
    ("storage: {dir: &x [*x]}", "storage.dir", "cannot be read"),
    ("broker: !!python/object/apply:os.getcwd []", "broker", "must be a section"),
    ("storage: {dir: !!python/object/apply:os.getcwd []}", "storage.dir", "cannot be read"),
    ("queues: [{name: a, name: b}]", "queues", "'name' is given twice"),
    ("cluster: {transport: {peers: {a: 'h:1', a: 'h:2'}}}", "cluster.transport.peers", "'a' is given twice"),
    ("cluster: {transport: {peers: {1: 'h:1'}}}", "cluster.transport.peers", "such as {broker-2:"),
    ("cluster: {transport: {peers: {\"a\\0\": 'h:1'}}}", "cluster.transport.peers", "cannot be printed"),
    ("cluster: {transport: {peers: [a]}}", "cluster.transport.peers", "such as {broker-2:"),
    ("a: [", "", "not YAML"),
    ("a: 1\n---\nb: 2\n", "", "more than one YAML document"),
    ("a: \x01", "", "not text"),
])
def test_a_wrong_file_says_where_and_what_is_allowed(tmp_path: Path, text: str, path: str, part: str) -> None:
    found = problems(text=text, tmp_path=tmp_path)
    assert part in found.get(path, ""), found
    assert "fluxmq.yaml" in found[path]


def test_a_clash_of_defaults_has_no_place_in_a_file() -> None:
    assert "clashes" in problems(sets=["server.mqtt.tcp.v3.addr=:8083", "auth.allow_anonymous=true"])[
        "server.mqtt.websocket.plain.addr"]


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    contents = {"binary": b"\xff\xfe\xfa\x00", "deep": b"a: " + b"[" * 50_000, "large": b"#" * (1 << 21)}
    for name, content in contents.items():
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(InvalidConfig) as caught:
            load(file)
        assert str(file) in str(caught.value)
    for file in (tmp_path, tmp_path / "missing.yaml"):
        with pytest.raises(InvalidConfig, match="cannot read"):
            load(file)


def test_an_alias_bomb_costs_nothing(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    found = problems(text=f"{bomb}storage: {{dir: *a59}}\nlog: *a59\n", tmp_path=tmp_path)
    assert "text, not empty" in found["storage.dir"] and "section" in found["log"]
    assert all(len(text) < 1000 for text in found.values())


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    found = problems(text="log: {level: x, form: y}\nbroker: {max_qos: 9}\nwebhook: {}\n", tmp_path=tmp_path,
                     environment={"FLUXMQ__BROKER__MAX_QOS": "8", "FLUXMQ__NOPE": "1", "FLUXMQ__log__level": "info"},
                     sets=["x", "server.mqtt=1", "session.max_sessions=0"])
    assert set(found) == {"log.level", "log.form", "broker.max_qos", "webhook", "nope", "x", "server.mqtt",
                          "session.max_sessions"}
    assert found["broker.max_qos"].count("cannot be used") == 2
    assert "FLUXMQ__LOG__LEVEL" in found["log.level"]


def test_a_wrong_value_makes_no_second_problem_of_its_default() -> None:
    found = problems(sets=["session.send_buffer_high=x", "session.send_buffer_low=9MiB"])
    assert set(found) == {"session.send_buffer_high"}


@given(st.dictionaries(st.sampled_from([*KEYS, *SECTIONS, "webhook", "x.y"]),
                       st.one_of(st.text(max_size=8), st.integers(), st.none(), st.lists(st.integers(), max_size=2))))
def test_any_setting_is_taken_or_refused_by_name(given_values: dict[str, object]) -> None:
    sets = [f"{path}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
            for path, value in given_values.items() if path]
    try:
        load(sets=sets)
    except InvalidConfig as error:
        assert all(problem.path or problem.text for problem in error.problems)


# --- who may connect, TLS ------------------------------------------------------------------------------------------

@pytest.fixture()
def files(tmp_path: Path) -> dict[str, str]:
    for name in ("cert", "key", "ca", "users"):
        (tmp_path / name).write_text(name)
    return {name: str(tmp_path / name) for name in ("cert", "key", "ca", "users")}


def test_another_address_needs_a_decision(files: dict[str, str]) -> None:
    outside = "server.mqtt.tcp.plain.addr=:1883"
    found = problems(sets=[outside])["server.mqtt.tcp.plain.addr"]
    assert "auth.users_file" in found and "auth.allow_anonymous to true" in found and "127.0.0.1:1883" in found
    config, _ = load(sets=[outside, "auth.allow_anonymous=true"])
    assert config.anonymous_allowed(config.server.mqtt.tcp.plain)
    config, _ = load(sets=[outside, f"auth.users_file={files['users']}"])
    assert not config.anonymous_allowed(config.server.mqtt.tcp.plain)
    assert not config.anonymous_allowed(config.server.mqtt.websocket.plain)
    assert "nobody could connect" in problems(sets=[outside, "auth.allow_anonymous=false"])["auth.allow_anonymous"]


def test_a_listener_that_requires_certificates_may_be_outside(files: dict[str, str]) -> None:
    slot = "server.mqtt.tcp.mtls"
    sets = [f"{slot}.addr=:8883", f"{slot}.cert_file={files['cert']}", f"{slot}.key_file={files['key']}"]
    assert "client certificates" in problems(sets=sets)[f"{slot}.ca_file"]
    config, _ = load(sets=[*sets, f"{slot}.ca_file={files['ca']}"])
    assert config.anonymous_allowed(config.server.mqtt.tcp.mtls)
    only = [*sets, f"{slot}.ca_file={files['ca']}", "server.mqtt.tcp.plain.addr=", "server.mqtt.websocket.plain.addr=",
            "server.amqp091.plain.addr=", "auth.allow_anonymous=false"]
    assert "nobody" in problems(sets=only)["auth.allow_anonymous"]
    config, _ = load(sets=[*only, f"{slot}.username_from=cn"])
    assert not config.anonymous_allowed(config.server.mqtt.tcp.mtls)


def test_the_meaning_of_client_auth(files: dict[str, str]) -> None:
    slot = "server.mqtt.tcp.tls"
    sets = [f"{slot}.addr=127.0.0.1:8883", f"{slot}.cert_file={files['cert']}", f"{slot}.key_file={files['key']}"]
    config, _ = load(sets=sets)
    assert config.server.mqtt.tcp.tls.client_auth_effective == "none"
    config, _ = load(sets=[*sets, f"{slot}.ca_file={files['ca']}"])
    assert config.server.mqtt.tcp.tls.client_auth_effective == "require"
    config, _ = load(sets=[*sets, f"{slot}.ca_file={files['ca']}", f"{slot}.client_auth=request"])
    assert config.server.mqtt.tcp.tls.client_auth_effective == "request"
    assert f"{slot}.ca_file" in problems(sets=[*sets, f"{slot}.client_auth=require"])
    assert f"{slot}.ca_file" in problems(sets=[*sets, f"{slot}.ca_file={files['ca']}", f"{slot}.client_auth=none"])
    assert f"{slot}.username_from" in problems(sets=[*sets, f"{slot}.username_from=san"])


@pytest.mark.parametrize(("names", "part"), [
    ("[TLS_AES_128_GCM_SHA256]", "TLS 1.3"), ("[TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]", "IANA"),
    ("[nonsense]", "no cipher suite"), ("['HIGH:!aNULL']", "no cipher suite")])
def test_cipher_suites(files: dict[str, str], names: str, part: str) -> None:
    slot = "server.mqtt.tcp.tls"
    sets = [f"{slot}.addr=127.0.0.1:8883", f"{slot}.cert_file={files['cert']}", f"{slot}.key_file={files['key']}"]
    assert part in problems(sets=[*sets, f"{slot}.cipher_suites={names}"])[f"{slot}.cipher_suites"]
    good = [*sets, f"{slot}.cipher_suites=[ECDHE-RSA-AES128-GCM-SHA256]"]
    load(sets=good)
    assert "min_version" in problems(sets=[*good, f"{slot}.min_version=tls1.3"])[f"{slot}.cipher_suites"]


def test_something_must_listen() -> None:
    off = ["server.mqtt.tcp.plain.addr=", "server.mqtt.websocket.plain.addr="]
    assert [path for path, _ in load(sets=off)[0].listeners()] == ["server.amqp091.plain"]
    found = problems(sets=[*off, "server.amqp091.plain.addr="])
    assert "nothing listens" in found["server"]


def test_an_address_of_amqp_needs_a_decision_too(files: dict[str, str]) -> None:
    found = problems(sets=["server.amqp091.plain.addr=:5672"])["server.amqp091.plain.addr"]
    assert "auth.users_file" in found and "127.0.0.1:5672" in found
    slot = "server.amqp091.mtls"
    sets = [f"{slot}.addr=:5671", f"{slot}.cert_file={files['cert']}", f"{slot}.key_file={files['key']}"]
    assert "client certificates" in problems(sets=sets)[f"{slot}.ca_file"]
    config, _ = load(sets=[*sets, f"{slot}.ca_file={files['ca']}", f"{slot}.username_from=san"])
    assert [path for path, _ in config.listeners()][-1] == slot
    tls = [each.replace(slot, "server.amqp091.tls") for each in sets]
    assert "username_from" in " ".join(problems(sets=[*tls, "server.amqp091.tls.username_from=cn"]))


@pytest.mark.parametrize(("given_value", "part"), [
    ("virtual_hosts=[]", "at least one"), ("virtual_hosts=[/, prod, /]", "twice"), ("virtual_hosts=['']", "empty"),
    ("virtual_hosts=['" + "ü" * 128 + "']", "255 bytes"), ("heartbeat=1500ms", "whole seconds"),
    ("heartbeat=65536", "a duration"), ("frame_max=4095", "from 4KiB to 16MiB"), ("channel_max=0", "from 1 to 65535"),
    ("memory_high=1MiB", "at least 64MiB")])
def test_what_amqp_cannot_say_is_refused(given_value: str, part: str) -> None:
    path = f"amqp091.{given_value.partition('=')[0]}"
    assert part in problems(sets=[f"amqp091.{given_value}"])[path]


@given(st.from_regex(re.compile(r"[A-Za-z0-9.+-][A-Za-z0-9._/+-]{0,20}", re.ASCII), fullmatch=True)
       | st.from_regex(re.compile(r"[-+]?(0x|0o)?[0-9]{1,20}[.]?[0-9]{0,4}([eE][-+]?[0-9]{1,3})?", re.ASCII),
                       fullmatch=True)
       | st.sampled_from(["null", "True", "FALSE", "yes", "on", "0755", "1e5", ".5", "-", "+", "---", "...", "-.5"]))
def test_a_word_is_the_same_with_and_without_the_parser_of_yaml(text: str) -> None:
    if is_word(text):
        with_parser = read_value(text)
        assert (type(word(text)), repr(word(text))) == (type(with_parser), repr(with_parser))
