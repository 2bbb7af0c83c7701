"""`fluxmq run` as a user meets it: a process, what it prints, how it ends, what it answers over HTTP."""
from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from interop.tls import wait_until
from kit.broker import WHICH, free_pairs
from kit.client import Client
from kit.python import environment as ours
from kit.websocket import WebSocket
from oracle.mqtt import Connect, Will

from fluxmq import __version__

pytestmark = pytest.mark.skipif(bool(WHICH), reason="it is our own command that is tried")

TIMEOUT = 30.0                  # for a process to start or end: generous, only a failing test waits for it
OPEN_PORTS = ("server.mqtt.tcp.plain.addr=127.0.0.1:0", "server.mqtt.websocket.plain.addr=127.0.0.1:0",
              "server.amqp091.plain.addr=127.0.0.1:0", "server.health_addr=127.0.0.1:0")

Address = tuple[str, int]


class Run:
    """One process of `fluxmq`. lines: what it printed up to "ready", if it came so far."""

    def __init__(self, directory: Path, *arguments: str, environment: Mapping[str, str] = {}) -> None:
        plain = {name: value for name, value in ours().items() if not name.startswith("FLUXMQ__")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fluxmq", *arguments], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=plain | dict(environment))
        self.lines: list[str] = []

    def wait_ready(self) -> Run:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if self.lines[-1] == "ready":
                return self
        raise AssertionError(f"it did not become ready: {self.lines} {self.end()}")

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Send a signal, if one is given, and wait: (exit status, standard error)."""
        if number is not None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, errors

    def address(self, what: str) -> Address:
        """Of what the start message says: "mqtt/tcp/plain", "health"."""
        for line in self.lines:
            found = re.fullmatch(rf"listening  {what}  (.*):([0-9]+)", line)
            if found:
                return found[1].strip("[]"), int(found[2])
        raise AssertionError(f"{what} is not in {self.lines}")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start `fluxmq` in an empty directory: run("version")."""
    started: list[Run] = []

    def start(*arguments: str, environment: Mapping[str, str] = {}) -> Run:
        started.append(Run(tmp_path, *arguments, environment=environment))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.fixture
def run_broker(run: Callable[..., Run]) -> Callable[..., Run]:
    """`fluxmq run` on free ports, with further settings `key=value`, until it is ready."""
    def start(*sets: str, environment: Mapping[str, str] = {}) -> Run:
        return run("run", *(f"--set={one}" for one in (*OPEN_PORTS, *sets)), environment=environment).wait_ready()

    return start


def get(address: Address, path: str, method: str = "GET") -> tuple[int, str, str]:
    """(status, content type, body)"""
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers.get("Content-Type", ""), body


def metrics(address: Address) -> dict[str, float]:
    """/metrics as {name with labels: value}."""
    status, kind, body = get(address, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=0.0.4")
    found = {}
    for line in body.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in found, f"{name} is there twice"
            found[name] = float(value)
    return found


# ── start ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_version(run: Callable[..., Run]) -> None:
    one = run("version")
    out, _ = one.process.communicate(timeout=TIMEOUT)
    assert one.process.returncode == 0
    assert out.startswith(f"fluxmq {__version__} (")


def test_start_message(run_broker: Callable[..., Run], tmp_path: Path) -> None:
    """What listens where, with the ports that the system chose; where data lives; who may connect."""
    one = run_broker()
    assert one.lines[0] == f"FluxMQ {__version__}"
    assert [line.split("  ")[1] for line in one.lines if line.startswith("listening")] == [
        "mqtt/tcp/plain", "mqtt/websocket/plain", "amqp091/plain", "health", "admin"]
    for what in ("mqtt/tcp/plain", "mqtt/websocket/plain", "amqp091/plain", "health"):
        assert one.address(what)[1] != 0
    data = next(line for line in one.lines if line.startswith("data "))
    assert str(tmp_path / "fluxmq-data") in data                    # the default, beside where it was started
    assert (tmp_path / "fluxmq-data").is_dir()
    access = next(line for line in one.lines if line.startswith("access "))
    assert "loopback only" in access
    assert one.lines[-1] == "ready"
    assert len(one.lines) <= 11
    Client(one.address("mqtt/tcp/plain")).connect("c")
    Client(WebSocket.open(one.address("mqtt/websocket/plain"))).connect("w")
    assert get(one.address("health"), "/health")[0] == 200


def test_default_addresses_are_loopback(run: Callable[..., Run]) -> None:
    one = run("config", "show")
    out, _ = one.process.communicate(timeout=TIMEOUT)
    assert one.process.returncode == 0
    for address in ("127.0.0.1:1883", "127.0.0.1:8083", "127.0.0.1:5672", "127.0.0.1:8081"):
        assert address in out


def test_memory_only(run_broker: Callable[..., Run], tmp_path: Path) -> None:
    one = run_broker("storage.type=memory")
    assert "nothing survives a restart" in "\n".join(one.lines)
    client = Client(one.address("mqtt/tcp/plain"))
    client.connect("c", clean_start=False, properties={"session_expiry_interval": 100})
    client.subscribe("t", qos=2)
    client.publish("t", b"x", 2)
    client.receive("t", b"x", qos=2)
    assert metrics(one.address("health"))["fluxmq_journal_batches_total"] == 0
    assert one.end(signal.SIGTERM)[0] == 0
    assert not (tmp_path / "fluxmq-data").exists()


def test_where_values_come_from(run_broker: Callable[..., Run], run: Callable[..., Run], tmp_path: Path) -> None:
    """File, then environment, then --set: the last one wins."""
    (tmp_path / "fluxmq.yaml").write_text(
        "storage: {dir: from-file}\nbroker: {max_qos: 0, receive_maximum: 11, topic_alias_max: 3}\n"
        "server: {health_addr: '127.0.0.1:0', amqp091: {plain: {addr: ''}}, mqtt: {tcp: {plain: {addr: '127.0.0.1:0'}},"
        " websocket: {plain: {addr: ''}}}}\n")
    one = run("run", "--config", "fluxmq.yaml", "--set=broker.receive_maximum=33", environment={
        "FLUXMQ__BROKER__RECEIVE_MAXIMUM": "22", "FLUXMQ__BROKER__MAX_QOS": "1"}).wait_ready()
    client = Client(one.address("mqtt/tcp/plain"))
    answer = client.connect("c")
    assert [answer.prop(name) for name in ("topic_alias_maximum", "maximum_qos", "receive_maximum")] == [3, 1, 33]
    assert (tmp_path / "from-file").is_dir()
    assert not [line for line in one.lines if "websocket" in line or "amqp" in line]


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────


def assert_one_sentence(errors: str, *words: str) -> None:
    """An error that a person can act on: no traceback, no pile of lines, and these words."""
    assert "Traceback" not in errors
    assert errors.startswith("fluxmq: ")
    assert len(errors.strip().splitlines()) == 1, errors
    for word in words:
        assert word in errors


@pytest.mark.parametrize(("settings", "words"), [
    (["broker.max_qso=1"], ["broker.max_qso", "max_qos"]),
    (["broker.max_qos=3"], ["broker.max_qos", "2"]),
    (["broker.max_qos=high"], ["broker.max_qos"]),
    (["server.mqtt.tcp.plain.addr=nowhere"], ["server.mqtt.tcp.plain.addr"]),
    (["server.mqtt.tcp.tls.addr=127.0.0.1:0"], ["server.mqtt.tcp.tls.cert_file"]),
    (["server.mqtt.tcp.plain.addr=127.0.0.1:19999", "server.mqtt.tcp.v5.addr=127.0.0.1:19999"], ["clashes"]),
    (["auth.users_file=missing"], ["auth.users_file", "fluxmq user add"]),
    (["auth.acl_file=missing"], ["auth.acl_file"]),
    (["session.retry_interval=20s"], ["retry_interval"]),
    (["server.mqtt.tcp.plain.addr=0.0.0.0:0"], ["auth.allow_anonymous", "auth.users_file"]),
    (["server.mqtt.tcp.plain.addr=:0"], ["auth.allow_anonymous"]),
    (["server.mqtt.websocket.plain.addr=[::]:0"], ["auth.allow_anonymous"]),
    (["auth.allow_anonymous=false"], ["nobody could connect"]),
], ids=lambda value: value[0] if isinstance(value, list) and "=" in value[0] else "")
def test_bad_configuration(settings: list[str], words: list[str], run: Callable[..., Run], tmp_path: Path) -> None:
    """Status 2, before anything is touched."""
    one = run("run", *(f"--set={each}" for each in (*OPEN_PORTS, *settings)))
    status, errors = one.end()
    assert status == 2
    assert "Traceback" not in errors
    assert errors.startswith("fluxmq: ")
    for word in words:
        assert word in errors
    assert not (tmp_path / "fluxmq-data").exists()


def test_bad_file(run: Callable[..., Run], tmp_path: Path) -> None:
    for text in ("server: [", "a: 1", "- 1", "\x00"):
        (tmp_path / "bad.yaml").write_text(text)
        status, errors = run("run", "--config", "bad.yaml").end()
        assert status == 2
        assert "bad.yaml" in errors or "a" in errors
        assert "Traceback" not in errors
    status, errors = run("run", "--config", "missing.yaml").end()
    assert status == 2
    assert "missing.yaml" in errors


def test_bad_environment(run: Callable[..., Run]) -> None:
    status, errors = run("run", environment={"FLUXMQ__BROKER__MAX_QSO": "1"}).end()
    assert status == 2
    assert "FLUXMQ__BROKER__MAX_QSO" in errors or "broker.max_qso" in errors


def test_other_machines_if_one_says_so(run: Callable[..., Run], run_broker: Callable[..., Run]) -> None:
    """With `auth.allow_anonymous: true` every interface is listened on, and the start message says who may connect."""
    one = run_broker("server.mqtt.tcp.plain.addr=0.0.0.0:0", "auth.allow_anonymous=true")
    host, port = one.address("mqtt/tcp/plain")
    assert host == "0.0.0.0"
    assert "anybody who can reach" in "\n".join(one.lines)
    Client(("127.0.0.1", port)).connect("c")


@pytest.mark.parametrize("key", [
    "server.mqtt.tcp.plain.addr", "server.mqtt.websocket.plain.addr", "server.amqp091.plain.addr",
    "server.health_addr"])
def test_port_is_taken(key: str, run: Callable[..., Run]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, errors = run("run", *(f"--set={one}" for one in (*OPEN_PORTS, f"{key}=127.0.0.1:{port}"))).end()
    assert status == 3
    assert_one_sentence(errors, key, f"127.0.0.1:{port}", "ddress already in use", "Another program listens there: set")
    assert f'{key} to another address, or to ""' in errors


def test_a_second_broker_hears_of_everything_that_is_taken_and_moves_by_one_option(run: Callable[..., Run]) -> None:
    keys = [one.partition("=")[0] for one in OPEN_PORTS]
    ports, offset = free_pairs(4)
    sets = [f"--set={key}=127.0.0.1:{port}" for key, port in zip(keys, ports, strict=True)]
    one = run("run", *sets).wait_ready()
    status, errors = run("run", *sets).end()
    assert status == 3
    head, *lines, remedy = errors.strip().splitlines()
    assert "5 things are in use by other programs" in head and "--port-offset N" in remedy
    assert lines == [*(f"{key}: 127.0.0.1:{port}" for key, port in zip(keys, ports, strict=True)),
                     "storage.dir: ./fluxmq-data"]
    other = run("run", *sets, f"--port-offset={offset}", "--set=storage.dir=other").wait_ready()
    listeners = "mqtt/tcp/plain", "mqtt/websocket/plain", "amqp091/plain", "health"
    assert [other.address(what)[1] for what in listeners] == [port + offset for port in ports]
    assert (one.end(signal.SIGTERM)[0], other.end(signal.SIGTERM)[0]) == (0, 0)


def test_sighup_names_each_key_that_it_does_not_read(run: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "fluxmq.yaml"
    file.write_text("broker: {max_qos: 1}\nlog: {level: info}\n")
    one = run("run", "--config", str(file), *(f"--set={each}" for each in (*OPEN_PORTS, "broker.receive_maximum=7")))
    one.wait_ready()

    def said(text: str, until: str) -> list[str]:
        """The lines about it when this is the configuration."""
        file.write_text(text)
        one.process.send_signal(signal.SIGHUP)
        assert one.process.stderr is not None
        found = []
        for line in one.process.stderr:
            if "reload" in line:
                found.append(line)
            if until in line:
                break
        return found

    first, *changes = said("broker: {max_qos: 2, receive_maximum: 9}\nqueues: [{name: q}]\n", "queues")
    assert "reloaded certificates, users and ACL" in first
    assert [line.partition("reload: ")[2].split(" ")[0] for line in changes] == ["broker.max_qos", "queues"]
    assert f"it is 2, and 1 counts until the next one ({file}:1)" in changes[0]
    _, *wrong = said("broker: {max_qos: 7}\nlog: {level: loud}\n", "log.level")
    assert len(wrong) == 2 and all("will not start with this configuration" in line for line in wrong)
    assert one.end(signal.SIGTERM)[0] == 0


def test_address_of_another_machine(run: Callable[..., Run]) -> None:
    status, errors = run("run", *(f"--set={one}" for one in (
        *OPEN_PORTS, "server.mqtt.tcp.plain.addr=192.0.2.1:0", "auth.allow_anonymous=true"))).end()
    assert status == 3
    assert_one_sentence(errors, "server.mqtt.tcp.plain.addr", "192.0.2.1")


def test_directory_of_another_broker(run: Callable[..., Run], run_broker: Callable[..., Run]) -> None:
    """Two brokers on one directory would ruin it; the second leaves, the first does not notice."""
    first = run_broker()
    status, errors = run("run", *(f"--set={one}" for one in OPEN_PORTS)).end()
    assert status == 4
    assert_one_sentence(errors, "fluxmq-data")
    Client(first.address("mqtt/tcp/plain")).connect("c")
    assert first.end(signal.SIGTERM)[0] == 0
    run_broker()                                                    # and then it is free again


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_in_order(number: signal.Signals, run_broker: Callable[..., Run]) -> None:
    """Clients of 5.0 are told 0x8B, those of 3.1.1 closed; no will is published; the status is 0."""
    one = run_broker()
    where = one.address("mqtt/tcp/plain")
    five, three, silent = Client(where), Client(where, 4), socket.create_connection(where)
    web = Client(WebSocket.open(one.address("mqtt/websocket/plain")))
    for client, client_id in ((five, "five"), (three, "three"), (web, "web")):
        client.connect(client_id)
        client.subscribe("wills")
    half = Client(where)
    half.send(Connect(client_id="half").encode(5)[:7])
    mortal = Client(where)
    mortal.connect("mortal", will=Will(topic="wills", payload=b"dead"))
    one.process.send_signal(number)
    for client in (five, web, mortal):
        client.expect_closed(0x8B)
    assert three.expect_closed() is None
    half.expect_closed()
    assert silent.recv(1) == b""
    silent.close()
    status, errors = one.end()
    assert status == 0
    assert "Traceback" not in errors
    with pytest.raises(OSError):
        socket.create_connection(where)


def test_shutdown_does_not_wait_for_ever(run_broker: Callable[..., Run]) -> None:
    """Who does not read its last bytes gets server.shutdown_timeout, and no more."""
    one = run_broker("server.shutdown_timeout=500ms")
    where = one.address("mqtt/tcp/plain")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(where)
    deaf = Client(raw)
    deaf.connect("deaf")
    deaf.subscribe("t")
    loud = Client(where)
    loud.connect("loud")
    for _ in range(100):
        loud.publish("t", b"x" * 100_000, 1)
    assert one.end(signal.SIGTERM)[0] == 0


def test_second_signal_while_it_ends(run_broker: Callable[..., Run]) -> None:
    one = run_broker()
    one.process.send_signal(signal.SIGTERM)
    one.process.send_signal(signal.SIGTERM)
    status, errors = one.end()
    assert status == 0
    assert "Traceback" not in errors


def test_signal_at_any_moment_of_the_start(run: Callable[..., Run]) -> None:
    """A supervisor that changes its mind meets no traceback, and the directory stays good."""
    settings = [f"--set={each}" for each in (*OPEN_PORTS, "log.level=warn")]   # that it stops is a line of info
    for wait_ms in (0, 60, 120, 180, 240, 300, 360):
        one = run("run", *settings)
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(wait_ms / 1000)
        status, errors = one.end(signal.SIGTERM)
        assert status in (0, -signal.SIGTERM)
        assert not errors
    assert run("run", *settings).wait_ready().end(signal.SIGTERM) == (0, "")


def test_end_with_everything_in_hand(run_broker: Callable[..., Run]) -> None:
    """Sessions that are here and away, queues, messages in flight, shared and plain subscriptions,
    half a packet: the end frees it all without an accident."""
    one = run_broker()
    where = one.address("mqtt/tcp/plain")
    clients = []
    for number in range(6):
        client = Client(where, 4 + number % 2)
        kept = {"properties": {"session_expiry_interval": 100}} if number % 2 else {}
        client.connect(f"c{number}", clean_start=False, **kept)
        client.subscribe("t/#", "$share/g/t/+", qos=2)
        clients.append(client)
    for client in clients[:3]:
        client.drop()
    for number in range(30):
        clients[5].publish(f"t/{number % 3}", b"x" * 1000, number % 3, retain=number % 2 == 0)
    clients[4].send(b"\x32\xff\xff\x03half of a large packet")
    status, errors = one.end(signal.SIGTERM)
    assert (status, "Traceback" in errors) == (0, False)
    again = run_broker()
    assert metrics(again.address("health"))["fluxmq_sessions"] == 6
    assert again.end(signal.SIGTERM)[0] == 0


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_health_and_ready(run_broker: Callable[..., Run]) -> None:
    where = run_broker().address("health")
    status, kind, body = get(where, "/health")
    assert (status, kind, json.loads(body)) == (200, "application/json", {"status": "healthy"})
    status, _, body = get(where, "/ready")
    assert status == 200
    assert json.loads(body)["status"] == "ready"
    assert json.loads(body)["checks"] == {"broker": {"status": "up"}, "storage": {"status": "up"}}
    assert get(where, "/nothing")[0] == 404
    assert get(where, "/health", "POST")[0] == 405
    assert get(where, "/health", "HEAD")[::2] == (200, "")


def test_health_may_be_off(run: Callable[..., Run]) -> None:
    one = run("run", *(f"--set={each}" for each in (*OPEN_PORTS[:3], "server.health_enabled=false"))).wait_ready()
    assert [line.split()[1] for line in one.lines if line.startswith("listening")] == [
        "mqtt/tcp/plain", "mqtt/websocket/plain", "amqp091/plain", "admin"]


def known_traffic(where: Address) -> tuple[Client, Client]:
    """Some of everything; returns the two clients that stay."""
    kept = Client(where)
    kept.connect("kept", clean_start=False, properties={"session_expiry_interval": 100})
    kept.subscribe("a/#", "$share/g/b", qos=1)
    kept.subscribe("no/x", expect=[0x87])
    kept.disconnect()
    live = Client(where, 4)
    live.connect("live")
    live.subscribe("a/1", qos=2)
    publisher = Client(where)
    publisher.connect("publisher")
    publisher.publish("a/1", b"x" * 100, 2)
    live.receive("a/1", qos=2)
    publisher.publish("a/2", b"y", 1, retain=True)
    publisher.publish("c", b"unrouted", 0)
    publisher.publish("no/x", b"denied", 1, expect=0x87)
    publisher.publish("a/3", b"nobody takes QoS 0", 0)
    publisher.send(b"\xc0\x00")
    publisher.recv()
    lost = Client(where)
    lost.connect("lost")
    lost.drop()
    bad = Client(where)
    bad.connect("bad")
    bad.send(b"\xf1\x00")
    bad.expect_closed()
    stranger = Client(where)
    stranger.send(b"GET / HTTP/1.1\r\n\r\n")
    stranger.expect_closed()
    return live, publisher


def test_metrics_are_right(run_broker: Callable[..., Run], tmp_path: Path) -> None:
    """A known piece of traffic, and every number that it must have moved, to the one."""
    acl = tmp_path / "acl.yaml"
    acl.write_text("version: 1\nrules:\n  - {deny: all, topics: ['no/#']}\n  - {allow: all, topics: ['#']}\n")
    one = run_broker(f"auth.acl_file={acl}", "broker.sys_interval=0s")
    health, where = one.address("health"), one.address("mqtt/tcp/plain")
    before = metrics(health)
    staying = known_traffic(where)
    after: dict[str, float] = {}

    def settled() -> bool:
        after.update(metrics(health))
        return after["fluxmq_connections"] == len(staying)

    wait_until(settled, "the ends of connections are not counted")
    moved = {name: after[name] - before[name] for name in after if after[name] != before.get(name)
             and not name.startswith(("process_", "fluxmq_uptime"))}
    sync_seconds = moved.pop("fluxmq_journal_sync_seconds_sum")
    syncs = moved.pop("fluxmq_journal_sync_seconds_count")
    assert 0 < sync_seconds < TIMEOUT
    assert 0 < syncs <= moved.pop("fluxmq_journal_batches_total") <= moved.pop("fluxmq_journal_records_total")
    assert moved.pop("fluxmq_journal_bytes_total") > 100
    assert moved.pop("fluxmq_bytes_received_total") > 200
    assert moved.pop("fluxmq_bytes_sent_total") > 200
    assert moved.pop("fluxmq_queued_bytes") > 101                   # payloads, and topics
    assert moved.pop("fluxmq_retained_bytes") >= 4
    # all of it is in one namespace
    for part in ("connections", "sessions", "retained", "retained_bytes"):
        total = {"retained": "retained_messages"}.get(part, part)
        assert moved.pop(f'fluxmq_namespace_{part}{{namespace="/"}}') == after[f"fluxmq_{total}"] - before[
            f"fluxmq_{total}"]
    assert moved.pop('fluxmq_namespace_kept_bytes{namespace="/"}') == sum(
        after[name] - before[name] for name in ("fluxmq_queued_bytes", "fluxmq_retained_bytes"))
    for cached in ("hits", "misses"):
        moved.pop(f"fluxmq_route_cache_{cached}_total", None)
    assert moved == {
        "fluxmq_connections": 2, "fluxmq_connections_total": 5,
        'fluxmq_disconnections_total{reason="client"}': 1, 'fluxmq_disconnections_total{reason="lost"}': 1,
        'fluxmq_disconnections_total{reason="protocol_error"}': 1,
        'fluxmq_connect_refused_total{reason="malformed"}': 1, "fluxmq_protocol_errors_total": 2,
        'fluxmq_packets_received_total{type="connect"}': 5, 'fluxmq_packets_sent_total{type="connack"}': 5,
        'fluxmq_packets_received_total{type="subscribe"}': 3, 'fluxmq_packets_sent_total{type="suback"}': 3,
        'fluxmq_packets_received_total{type="publish"}': 5, 'fluxmq_packets_sent_total{type="publish"}': 1,
        'fluxmq_packets_received_total{type="pubrec"}': 1, 'fluxmq_packets_sent_total{type="pubrec"}': 1,
        'fluxmq_packets_received_total{type="pubrel"}': 1, 'fluxmq_packets_sent_total{type="pubrel"}': 1,
        'fluxmq_packets_received_total{type="pubcomp"}': 1, 'fluxmq_packets_sent_total{type="pubcomp"}': 1,
        'fluxmq_packets_sent_total{type="puback"}': 2, 'fluxmq_packets_received_total{type="auth"}': 1,
        'fluxmq_packets_received_total{type="pingreq"}': 1, 'fluxmq_packets_sent_total{type="pingresp"}': 1,
        'fluxmq_packets_received_total{type="disconnect"}': 1, 'fluxmq_packets_sent_total{type="disconnect"}': 1,
        # the denied one is no message
        'fluxmq_messages_received_total{qos="0"}': 2, 'fluxmq_messages_received_total{qos="1"}': 1,
        'fluxmq_messages_received_total{qos="2"}': 1, 'fluxmq_messages_sent_total{qos="2"}': 1,
        'fluxmq_messages_dropped_total{reason="no_connection"}': 1, "fluxmq_messages_unrouted_total": 1,
        "fluxmq_sessions": 3, "fluxmq_subscriptions": 3, "fluxmq_retained_messages": 1,
        "fluxmq_queued_messages": 2,
        'fluxmq_acl_denied_total{action="publish"}': 1, 'fluxmq_acl_denied_total{action="subscribe"}': 1,
    }


def test_metrics_of_a_restarted_broker(run_broker: Callable[..., Run]) -> None:
    """Gauges show what was recovered; counters begin again."""
    one = run_broker()
    client = Client(one.address("mqtt/tcp/plain"))
    client.connect("kept", clean_start=False, properties={"session_expiry_interval": 100})
    client.subscribe("a", qos=1)
    client.disconnect()
    other = Client(one.address("mqtt/tcp/plain"))
    other.connect("other")
    for _ in range(3):
        other.publish("a", b"x", 1)
    assert one.end(signal.SIGTERM)[0] == 0
    found = metrics(run_broker().address("health"))
    assert (found["fluxmq_sessions"], found["fluxmq_subscriptions"], found["fluxmq_queued_messages"]) == (1, 1, 3)
    assert found["fluxmq_connections_total"] == 0
    assert found["fluxmq_journal_batches_total"] <= found["fluxmq_journal_records_total"] < 5
