"""The command: what it prints, and the status it ends with. In process where that is enough, as a process where not."""
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from kit import python
from kit.certs import issue, make_ca

from fluxmq import __version__
from fluxmq._core.errors import CorruptError, FluxError
from fluxmq.app import cli, exit_codes
from fluxmq.app.broker_notes import Note
from fluxmq.model.config import Config
from fluxmq.model.config_keys import KEYS
from fluxmq.model.entry_keys import GROUP_KEYS, NAMESPACE_KEYS, PATTERN_KEYS, QUEUE_KEYS

ELSEWHERE = Path(__file__).parent     # not the root: there the sources would be taken for the installed package


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in python.environment().items() if not name.startswith("FLUXMQ__")}
    return subprocess.run([sys.executable, "-m", "fluxmq", *arguments], cwd=ELSEWHERE, text=True,
                          timeout=60, check=False, stdin=subprocess.DEVNULL, capture_output=True,
                          env={**base, **(environment or {})})


def status_of(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    assert isinstance(ended.value.code, int)
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.fixture()
def server(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """In place of the broker: keeps what it is started with, and ends with `outcome`."""
    module = ModuleType("fluxmq.app.server")
    module.outcome = 0
    module.calls = []

    def run_server(config: Config, provenance: dict[str, str], note: Note) -> int:
        module.calls.append((config, provenance))
        if isinstance(module.outcome, BaseException):
            raise module.outcome
        return module.outcome

    module.run = run_server
    monkeypatch.setitem(sys.modules, "fluxmq.app.server", module)
    monkeypatch.setattr("fluxmq.app.server", module, raising=False)
    for name in [name for name in os.environ if name.startswith("FLUXMQ__")]:
        monkeypatch.delenv(name)
    return module


@pytest.fixture()
def users(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """In place of the users file: file to name to password."""
    files: dict[str, dict[str, str]] = {}
    module = ModuleType("fluxmq.access.users")
    module.add_user = lambda path, name, password, namespace: files.setdefault(path, {}).update({name: password})
    module.remove_user = lambda path, name: files.get(path, {}).pop(name, None) is not None
    module.list_users = lambda path: sorted(files[path])
    monkeypatch.setitem(sys.modules, "fluxmq.access.users", module)
    monkeypatch.setattr("fluxmq.access.users", module, raising=False)
    return files


def test_run_gives_the_broker_what_file_environment_and_flags_say(
        server: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("log: {level: debug, format: json}\n")
    monkeypatch.setenv("FLUXMQ__BROKER__MAX_QOS", "1")
    status, _, err = status_of("run", "--config", str(file), "--set", "log.level=warn", capsys=capsys)
    assert (status, err) == (exit_codes.OK, "")
    (config, read_again), = server.calls
    again, provenance = read_again()
    assert again == config
    assert (config.log.level, config.log.format, config.broker.max_qos) == ("warn", "json", 1)
    assert provenance["log.format"] == f"{file}:1"


@pytest.mark.parametrize(("outcome", "status", "part"), [
    (0, 0, ""), (1, 1, ""), (CorruptError("journal 3 is damaged"), 4, "journal 3 is damaged"),
    (FluxError("the loop is gone"), 1, "the loop is gone"), (KeyboardInterrupt(), 130, "interrupted"),
    (exit_codes.BindError("server.mqtt.tcp.plain.addr", "127.0.0.1:1883", OSError(98, "Address already in use")), 3,
     "server.mqtt.tcp.plain.addr: cannot listen on 127.0.0.1:1883: Address already in use")])
def test_the_status_says_how_it_ended(server: ModuleType, capsys: pytest.CaptureFixture[str], outcome: object,
                                      status: int, part: str) -> None:
    server.outcome = outcome
    ended, out, err = status_of("run", capsys=capsys)
    assert (ended, out) == (status, "")
    assert part in err and len(err.split("\n")) - err.startswith("\n") == (2 if part else 1)


def test_a_bug_is_not_hidden(server: ModuleType) -> None:
    server.outcome = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cli.main(["run"])


def test_a_wrong_configuration_never_reaches_the_broker(server: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = status_of("run", "--set", "log.levl=info", capsys=capsys)
    assert status == exit_codes.CONFIG and not server.calls
    assert "log.levl: unknown key; the nearest is log.level" in err


@pytest.mark.parametrize("command", [("run",), ("config", "show"), ("cluster", "status"), ("record",)])
def test_a_second_file_is_refused(server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                  command: tuple[str, ...]) -> None:
    """It would be used, and the first one not."""
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    for file in (one, two):
        file.write_text("log: {level: debug}\n")
    status, _, err = status_of(*command, "--config", str(one), "--config", str(two), capsys=capsys)
    assert status == exit_codes.CONFIG and not server.calls
    assert f"{one} and {two} are given, and a broker reads one file" in err


def test_check_reads_the_file_alone(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("log: {level: debug}\n")
    bad.write_text("log: {level: loud}\nbroker: {max_qos: 7}\n")
    result = run("config", "check", str(good), environment={"FLUXMQ__NONSENSE": "1"})
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{good}: valid\n", "")
    result = run("config", "check", str(bad))
    assert result.returncode == 2 and result.stdout == ""
    assert "log.level" in result.stderr and "broker.max_qos" in result.stderr and "Traceback" not in result.stderr


def test_check_names_every_entry_that_is_wrong_and_reads_the_files(tmp_path: Path) -> None:
    """Each with its own line, and what is in a users file of mosquitto's or in a rule with a wrong key."""
    users, acl, file = tmp_path / "users", tmp_path / "acl", tmp_path / "fluxmq.yaml"
    users.write_text("somebody:$7$101$abc==$def==\n")
    acl.write_text("version: 1\nrules:\n  - {allow: all, topcs: ['#']}\n  - {allow: all, topics: ['#']}\n"
                   "  - {allow: read, topics: ['#']}\n")
    file.write_text(f"auth:\n  users_file: {users}\n  acl_file: {acl}\nqueues:\n  - {{name: good}}\n  - name: a\n"
                    "    typ: stream\n  - name: b\n    limits:\n      max_depth: 1\n      max_bytes: lots\n"
                    "  - &again {name: c}\n  - *again\n  - {partitions: 0}\nnamespaces:\n  - good\n  - {nam: x}\n")
    result = run("config", "check", str(file))
    assert result.returncode == 2 and result.stdout == ""
    head, *lines = result.stderr.strip().splitlines()
    assert "10 problems" in head
    for line, (key, where) in zip(lines, [
            ("queues[1].typ", f"{file}:7"), ("queues[2].limits.max_bytes", f"{file}:11"),
            ("queues[4].name", f"{file}:12"), ("queues[5].partitions", f"{file}:14"),
            ("queues[5].name", f"{file}:14"), ("namespaces[1].nam", f"{file}:17"),
            ("namespaces[1].name", f"{file}:17"), (str(users), "line 1"), (str(acl), "line 3: rule 1"),
            (str(acl), "line 5: rule 3")], strict=True):
        assert line.startswith(f"{key}: ") and where in line, line


def test_a_check_of_one_entry_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "fluxmq.yaml"
    file.write_text("queues:\n  - {name: good}\n  - name: a\n    namespace: nowhere\n")
    result = run("config", "check", str(file))
    assert result.returncode == 2 and "queues[1].namespace: " in result.stderr and f"({file}:4)" in result.stderr


def test_check_names_every_fault_of_a_listener(tmp_path: Path) -> None:
    """An operator mends all in one go: a certificate that has expired, a key that is none, no authority."""
    ca = make_ca(tmp_path)
    issue(ca, "broker", name="old", expired=True)
    issue(ca, "broker", name="good")
    (tmp_path / "garbage").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    (tmp_path / "empty").touch()
    file = tmp_path / "fluxmq.yaml"

    def said(cert: str, key: str, authority: str) -> list[str]:
        files = {"cert_file": cert, "key_file": key, "ca_file": authority}
        listener = "".join(f", {key}: {tmp_path / name}" for key, name in files.items())
        file.write_text(f"server: {{mqtt: {{tcp: {{tls: {{addr: '127.0.0.1:8883'{listener}}}}}}}}}\n")
        result = run("config", "check", str(file))
        assert result.returncode == 2
        return [line.strip().removeprefix("server.mqtt.tcp.tls.") for line in result.stderr.splitlines()]

    head, *lines = said("old.crt", "garbage", "empty")
    assert "3 problems" in head
    assert [line.partition(":")[0] for line in lines] == ["cert_file", "key_file", "ca_file"]
    assert "garbage cannot be used: " in lines[1] and "empty contains no PEM block" in lines[2]
    head, *lines = said("old.crt", "good.key", ca.cert_file.name)
    assert "is not the key of the certificate" in lines[0] and "has expired" in lines[1]


@pytest.mark.parametrize(("cert", "key", "complaint"), [
    ("good.crt", "other.key", "is not the key of the certificate"), ("garbage", "good.key", "cannot be used"),
    ("good.crt", "garbage", "cannot be used"), ("old.crt", "old.key", "has expired"), ("good.crt", "good.key", "")])
def test_check_reads_certificates(tmp_path: Path, cert: str, key: str, complaint: str) -> None:
    ca = make_ca(tmp_path)
    for name in ("good", "other", "old"):
        issue(ca, "broker", name=name, expired=name == "old")
    (tmp_path / "garbage").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
                                      "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    file = tmp_path / "fluxmq.yaml"
    file.write_text(f"server: {{mqtt: {{tcp: {{tls: {{addr: '127.0.0.1:8883', cert_file: {tmp_path / cert}, "
                    f"key_file: {tmp_path / key}}}}}}}}}\n")
    result = run("config", "check", str(file))
    assert result.returncode == (2 if complaint else 0), result.stderr
    assert complaint in result.stderr and "Traceback" not in result.stderr
    assert ("server.mqtt.tcp.tls." in result.stderr) == bool(complaint)


def test_show_is_a_configuration_again(tmp_path: Path) -> None:
    result = run("config", "show", "--set", "log.format=json", environment={"FLUXMQ__BROKER__MAX_QOS": "1"})
    assert result.returncode == 0, result.stderr
    assert "# --set log.format" in result.stdout and "# environment FLUXMQ__BROKER__MAX_QOS" in result.stdout
    shown = tmp_path / "shown.yaml"
    shown.write_text(result.stdout)
    again = run("config", "show", "--config", str(shown))
    assert again.returncode == 0, again.stderr
    strip = [line.partition("  #")[0].rstrip() for line in result.stdout.splitlines()]
    assert strip == [line.partition("  #")[0].rstrip() for line in again.stdout.splitlines()]


@pytest.mark.parametrize(("key", "said"), [
    ("log.level", "environment: FLUXMQ__LOG__LEVEL"), ("broker", "broker.max_qos\n"), ("queues[].name", "allowed: ")])
def test_explain_tells_of_a_key_or_a_section(key: str, said: str) -> None:
    result = run("config", "explain", key)
    assert result.returncode == 0 and result.stdout.startswith(f"{key}\n") and said in result.stdout


def test_explain_says_the_nearest_of_what_there_is_not() -> None:
    result = run("config", "explain", "log.levl")
    assert result.returncode == 2 and "the nearest is log.level" in result.stderr and not result.stdout


@pytest.mark.parametrize(("name", "reported"), [
    ("FLUXMQ_LOG_LEVEL", True), ("FLUXMQ_LOG__LEVL", True), ("fluxmq_log_level", True), ("FLUXMQ_TEST_TIMEOUT", False),
    ("FLUXMQ_HOME", False), ("FLUXMQLOGLEVEL", False)])
def test_a_variable_that_means_a_key_and_is_not_read_is_reported(name: str, reported: bool) -> None:
    result = run("config", "show", environment={name: "debug"})
    assert result.returncode == (2 if reported else 0)
    assert (f"the variable {name} is not read: write FLUXMQ__LOG__LEVEL" in result.stderr) == reported


@pytest.mark.parametrize(("command", "option"), [
    (("user", "add", "ada", "--file", "users"), "--password-stdin")])
def test_a_question_that_nobody_answers_names_the_option(command: tuple[str, ...], option: str) -> None:
    result = run(*command)
    assert result.returncode == 2 and option in result.stderr and "Traceback" not in result.stderr


def test_keys_names_every_key() -> None:
    result = CliRunner().invoke(cli.cli, ["config", "keys"])
    assert result.exit_code == 0
    assert [line for line in result.output.splitlines() if line and not line.startswith(" ")] == [
        *KEYS, *GROUP_KEYS, *PATTERN_KEYS, *NAMESPACE_KEYS, *QUEUE_KEYS]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str) -> None:
    """With the line that docs/guide/configuration.md gives; what the shell asks then, and is told."""
    found = run(environment={"COMP_WORDS": "fluxmq qu", "COMP_CWORD": "qu" if shell == "fish" else "1",
                             "_FLUXMQ_COMPLETE": f"{shell}_complete"})
    assert "queue" in found.stdout, found.stderr


@pytest.mark.parametrize("how", ["version", "--version"])
def test_version(how: str) -> None:
    result = run(how)
    assert result.returncode == 0 and result.stdout.startswith(f"fluxmq {__version__} (Python ")


@pytest.mark.parametrize("arguments", [
    ["nonsense"], ["run", "--nonsense"], ["run", "extra"], ["config", "check"], ["user", "add"], ["--nonsense"]])
def test_a_wrong_command_line_is_status_2_and_no_traceback(arguments: list[str],
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = status_of(*arguments, capsys=capsys)
    assert status == 2 and out == "" and err


def test_help_is_there_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["run"], ["config"], ["config", "check"], ["config", "show"], ["config", "keys"],
                      ["user"], ["user", "add"], ["user", "remove"], ["user", "list"], ["version"]):
        status, out, _ = status_of(*arguments, "--help", capsys=capsys)
        assert status == 0 and "Usage: fluxmq" in out, arguments


def test_a_reader_that_leaves_is_no_error() -> None:
    code = "import sys; sys.stdin.buffer.read(10)"
    writer = subprocess.Popen([sys.executable, "-m", "fluxmq", "config", "keys"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, cwd=ELSEWHERE, env=python.environment())
    assert writer.stdout is not None
    reader = subprocess.Popen([sys.executable, "-c", code], stdin=writer.stdout)
    writer.stdout.close()
    reader.wait(60)
    _, err = writer.communicate(timeout=60)
    assert err == b"" and writer.returncode == 0


def test_a_user_is_added_by_prompt_and_by_pipe(users: dict[str, dict[str, str]]) -> None:
    runner = CliRunner()
    result = runner.invoke(cli.cli, ["user", "add", "--file", "f", "ada"], input="secret\nsecret\n")
    assert result.exit_code == 0 and users["f"] == {"ada": "secret"}
    assert "secret" not in result.output
    result = runner.invoke(cli.cli, ["user", "add", "--file", "f", "bob", "--password-stdin"], input="pass word \n")
    assert result.exit_code == 0 and users["f"]["bob"] == "pass word "
    result = runner.invoke(cli.cli, ["user", "add", "--file", "f", "eve", "--password-stdin"], input="")
    assert result.exit_code == 2 and "eve" not in users["f"]
    result = runner.invoke(cli.cli, ["user", "list", "--file", "f"])
    assert result.output == "ada\nbob\n"


def test_two_different_passwords_are_asked_for_again(users: dict[str, dict[str, str]]) -> None:
    result = CliRunner().invoke(cli.cli, ["user", "add", "--file", "f", "ada"], input="a\nb\nc\nc\n")
    assert result.exit_code == 0 and users["f"] == {"ada": "c"}


def test_removing_a_user(users: dict[str, dict[str, str]]) -> None:
    users["f"] = {"ada": "x"}
    assert CliRunner().invoke(cli.cli, ["user", "remove", "--yes", "--file", "f", "ada"]).exit_code == 0
    result = CliRunner().invoke(cli.cli, ["user", "remove", "--yes", "--file", "f", "ada"])
    assert result.exit_code == 1 and "has no user ada" in result.output


def test_a_users_file_that_cannot_be_written_is_one_sentence(monkeypatch: pytest.MonkeyPatch,
                                                             users: dict[str, dict[str, str]]) -> None:
    def denied(*_: str, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "f")

    for name in ("add_user", "remove_user", "list_users"):
        monkeypatch.setattr(sys.modules["fluxmq.access.users"], name, denied)
    for arguments in (["add", "ada", "--password-stdin"], ["remove", "ada", "--yes"], ["list"]):
        result = CliRunner().invoke(cli.cli, ["user", *arguments, "--file", "f"], input="secret\n")
        assert result.exit_code == 1 and "f: Permission denied" in result.output


def test_a_ban_that_is_lifted_is_not_shown_as_if_it_went_on(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"address": "10.0.0.1", "user": None, "failures": 5, "until_ms": 1769860800123, "seconds": 60}
    answers = {"GET": {"bans": [row], "standing": 1}, "DELETE": {"lifted": [row]}}
    monkeypatch.setattr("fluxmq.app.admin_client.AdminClient.ask", lambda _, method, *what, **how: answers[method])
    listed = CliRunner().invoke(cli.cli, ["ban", "list", "--socket", "s"]).output
    assert "BANNED UNTIL" in listed and "2026-01-31T12:00:00.123Z" in listed
    lifted = CliRunner().invoke(cli.cli, ["ban", "lift", "10.0.0.1", "--socket", "s"]).output
    assert [line.split() for line in lifted.splitlines()] == [
        ["lifted", "at", "10.0.0.1:"], ["ADDRESS", "USER", "FAILED", "LOGINS"], ["10.0.0.1", "(everybody)", "5"]]


def test_bench_gets_its_arguments_as_they_are(monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    import click
    seen: list[tuple[str, ...]] = []

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def load_bench(rest: tuple[str, ...]) -> int:
        seen.append(rest)
        return 5

    for name in ("fluxmq.bench", "fluxmq.bench.load", "fluxmq.bench.load.cli"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["fluxmq.bench.load.cli"].bench = load_bench
    assert status_of("bench", "run", "--pubs", "5", "-q", "1", capsys=capsys)[0] == 5
    assert seen == [("run", "--pubs", "5", "-q", "1")]
    assert "Usage: fluxmq bench" in status_of("bench", "--help", capsys=capsys)[1]


def test_bench_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    class Missing:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.startswith("fluxmq.bench"):
                raise ModuleNotFoundError(name, name="fluxmq.bench")

    for name in [name for name in sys.modules if name.startswith("fluxmq.bench")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    status, _, err = status_of("bench", "run", capsys=capsys)
    assert status == 1 and "load generator is not installed" in err
