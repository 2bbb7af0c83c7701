"""`fluxmq queue` against an admin socket with a naive fake behind it, and against none."""
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from kit import python
from kit.admin_node import AdminNode

from fluxmq.app import cli, exit_codes
from fluxmq.app.admin_client import AdminClient, AdminError
from fluxmq.app.queue_place import read_position
from fluxmq.app.queue_text import as_message, as_table, as_time, plain


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AdminNode]:
    node = AdminNode(tmp_path / "admin.sock")
    node.start()
    yield node
    node.stop()


def run(node: AdminNode, *arguments: str, stdin: bytes | str | None = None) -> Result:
    return CliRunner().invoke(cli.cli, ["queue", *arguments, "--socket", str(node.path)], input=stdin)


def good(node: AdminNode, *arguments: str, stdin: bytes | str | None = None) -> str:
    result = run(node, *arguments, stdin=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def bad(node: AdminNode, *arguments: str) -> str:
    result = run(node, *arguments)
    assert isinstance(result.exception, AdminError), result.output
    return str(result.exception)


def status_of(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_name_that_is_empty_is_told(node: AdminNode) -> None:
    for words in (("create", ""), ("groups", "q", "--yes", "--delete", "")):
        assert bad(node, *words) == "a name is empty (a shell's variable that is not set may be the reason)"


def test_the_life_of_a_queue(node: AdminNode) -> None:
    assert good(node, "list") == "there are no queues\n"
    assert good(node, "create", "orders", "--topic", "shop/+/new", "--partitions", "2") == "orders is created\n"
    assert "already exists" in good(node, "create", "orders", "--topic", "shop/+/new", "--partitions", "2")
    assert good(node, "create", "orders", "--set", "limits.max_depth=5", "--set", "limits.message_ttl=1h") == (
        "orders is changed\n")
    assert node.queues.queues["orders"].spec["limits"] == {"max_depth": 5, "message_ttl": "1h"}
    assert "is of type classic (delete it first)" in bad(node, "create", "orders", "--type", "stream")
    assert good(node, "publish", "orders", "one") == "1 message is in orders\n"
    row = good(node, "list").splitlines()[1].split()
    assert row == ["orders", "classic", "2", "1", "1", "0", "0", "3", "0", "0", "0"]
    text = good(node, "describe", "orders")
    assert "limits.message_ttl: 1h" in text and "PARTITION" in text
    assert good(node, "move", "orders", "n2") == "orders is at node n2\n"
    assert node.queues.moved == ["n2", "n2"]  # it was asked again while the queue was on its way
    assert good(node, "purge", "orders", "--yes") == "1 message is gone from orders\n"
    assert good(node, "delete", "orders", "--if-empty", "--if-unused") == (
        "orders is deleted, and 0 messages with it\n")
    assert "there is no queue orders" in bad(node, "describe", "orders")


def test_names_may_be_anything_that_is_text(node: AdminNode) -> None:
    for name in ("a/b", "..", "ä ö", "x?y#z", "%2F", "$dlq/q", "a\nb"):
        good(node, "create", name)
        good(node, "publish", name, "x")
        assert node.queues.queues[name].next == [1]
        assert json.loads(good(node, "describe", name, "--json"))["name"] == name
    assert "names are UTF-8" in bad(node, "describe", "\udcff")


def test_what_destroys_asks_first(node: AdminNode) -> None:
    good(node, "create", "q")
    good(node, "publish", "q", "x")
    for command in (["delete", "q"], ["purge", "q"], ["dlq", "purge", "q"]):
        assert run(node, *command, stdin="n\n").exit_code == 1
        unanswered = run(node, *command, stdin="")
        assert unanswered.exit_code == 2 and "--yes" in unanswered.output
    assert node.queues.list_queues()[0]["messages"] == 1
    assert run(node, "purge", "q", stdin="y\n").exit_code == 0
    assert node.queues.list_queues()[0]["messages"] == 0


def test_publish_from_argument_and_from_lines(node: AdminNode) -> None:
    good(node, "create", "q")
    good(node, "publish", "q", "hello", "--key", "a/b", "--property", "x=1=2", "--partition-key", "p",
         "--priority", "9", "--delay", "1.5", "--expiry", "60", "--content-type", "text/plain")
    message = node.queues.published[0]
    assert (message.payload, message.key, message.expiry_s, message.content_type) == (b"hello", "a/b", 60, "text/plain")
    assert message.user_properties == [("x", "1=2"), ("partition-key", "p"), ("priority", "9"), ("x-delay", "1500")]
    lines = [b"line %d" % n for n in range(1200)] + [b"", b"\xff\xfe", "ä".encode()]
    assert good(node, "publish", "q", stdin=b"\n".join(lines)) == f"{len(lines)} messages are in q\n"
    assert [message.payload for message in node.queues.published[1:]] == lines
    answer = json.loads(good(node, "publish", "q", "--json", stdin=b"a\nb\n"))
    assert answer["accepted"] == 2 and len(answer["messages"]) == 2
    assert json.loads(good(node, "publish", "q", "--json", stdin=b"")) == {"accepted": 0, "messages": []}


@pytest.mark.parametrize("arguments", [["--property", "x"], ["--property", "=x"], ["--priority", "10"],
                                       ["--delay", "-1"]])
def test_publish_refuses_nonsense(node: AdminNode, arguments: list[str]) -> None:
    assert run(node, "publish", "q", "x", *arguments).exit_code == 2


def test_publish_that_is_refused_half_way_says_how_many_are_in(node: AdminNode) -> None:
    good(node, "create", "q")
    node.queues.capacity = 700
    result = run(node, "publish", "q", stdin=b"x\n" * 1000)
    assert "700 messages were published, then: q is full" in str(result.exception)
    assert node.queues.list_queues()[0]["messages"] == 700


def test_tail_without_following(node: AdminNode) -> None:
    good(node, "create", "q")
    assert good(node, "tail", "q") == ""
    good(node, "publish", "q", stdin="".join(f"{n}\n" for n in range(1100)))
    shown = [line.split()[-1] for line in good(node, "tail", "q").splitlines()]
    assert shown == [str(n) for n in range(1090, 1100)]
    assert len(good(node, "tail", "q", "--from", "first").splitlines()) == 1100
    found = [json.loads(line) for line in good(node, "tail", "q", "--from", "5", "-n", "2", "--json").splitlines()]
    assert [message["payload"] for message in found] == ["5", "6"]
    assert "no position" in bad(node, "tail", "q", "--from", "nowhere")
    node.queues.unloaded = 2
    assert good(node, "tail", "q", "-n", "1").split()[-1] == "1099"


def test_tail_follows_until_interrupted(node: AdminNode) -> None:
    good(node, "create", "q")
    good(node, "publish", "q", stdin=b"old\nlast\n")
    tail = subprocess.Popen([sys.executable, "-P", "-m", "fluxmq", "queue", "tail", "q", "-f", "-n", "1", "--json",
                             "--socket", str(node.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            cwd=node.path.parent, env=python.environment())
    assert tail.stdout is not None
    try:
        assert json.loads(tail.stdout.readline())["payload"] == "last"
        for n in range(3):
            good(node, "publish", "q", f"new {n}")
            assert json.loads(tail.stdout.readline())["payload"] == f"new {n}"
    finally:
        tail.send_signal(2)
        _, err = tail.communicate(timeout=30)
    assert tail.returncode == exit_codes.INTERRUPTED and "Traceback" not in err


def test_tail_ends_with_the_broker(node: AdminNode, tmp_path: Path) -> None:
    other = AdminNode(tmp_path / "other.sock")
    other.start()
    other.queues.declare({"name": "q"})
    tail = subprocess.Popen([sys.executable, "-P", "-m", "fluxmq", "queue", "tail", "q", "-f",
                             "--socket", str(other.path)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                            env=python.environment())
    while not other.do(lambda: other.server._streams):
        pass
    other.stop()
    _, err = tail.communicate(timeout=30)
    assert tail.returncode == exit_codes.FAILURE and "ended" in err and "Traceback" not in err


def test_empty_queues_of_the_broker_are_listed_if_they_are_asked_for(node: AdminNode) -> None:
    rows = node.queues.list_queues
    node.queues.list_queues = lambda: [  # type: ignore[method-assign]
        row | ({"internal": True} if row["name"].startswith("$under-way") else {}) for row in rows()]
    for name in ("q", "$under-way-1"):
        good(node, "create", name)

    def listed(*options: str) -> set[str]:
        return {row["name"] for row in json.loads(good(node, "list", "--json", *options))["queues"]}

    assert listed() == {"q"} and "$under-way" not in good(node, "list")
    assert listed("--all") == {"q", "$under-way-1"} and "$under-way-1" in good(node, "list", "--all")
    good(node, "publish", "$under-way-1", "a letter whose target is away")
    assert listed() == {"q", "$under-way-1"}


def test_a_move_whose_broker_ends_says_that_it_may_be_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also when it has answered before that it takes longer. One that was never asked has done nothing."""
    answers: list[Any] = []

    def ask(client: AdminClient, *what: str, **how: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise client._unreachable(answer)
        return answer

    monkeypatch.setattr(AdminClient, "ask", ask)

    def said() -> str:
        words = ["queue", "move", "q", "n2", "--socket", str(tmp_path / "s")]
        return str(CliRunner().invoke(cli.cli, words).exception)

    for each in ([ConnectionResetError()], [{"moving": True}, ConnectionRefusedError()]):
        answers[:] = each
        text = said()
        assert text.startswith("q was to move to node n2, and may be there or where it was: ")
        assert "fluxmq queue describe q, at another node, says where it is; repeat the command there" in text
    answers[:] = [ConnectionRefusedError()]
    assert said().startswith("no broker answers at ")


def test_groups_and_seek(node: AdminNode) -> None:
    good(node, "create", "q", "--partitions", "2")
    assert good(node, "groups", "q") == "there are no groups\n"
    node.queues.queues["q"].groups["g"] = [0, 0]
    good(node, "publish", "q", stdin=b"x\n" * 9)
    assert good(node, "groups", "q").splitlines()[1].split() == ["g", "0", "0", "0", "9", "0:0", "1:0"]
    end = node.queues.queues["q"].next
    good(node, "seek", "--yes", "q", "g", "next")
    assert node.queues.queues["q"].groups["g"] == end
    good(node, "seek", "--yes", "q", "g", "-1")
    assert node.queues.queues["q"].groups["g"] == [max(0, n - 1) for n in end]
    first = json.loads(good(node, "seek", "--yes", "q", "g", "first", "--partition", "0", "--json"))
    assert first["positions"][0]["next"] == 0
    assert "has no group h" in bad(node, "seek", "--yes", "q", "h", "first")
    assert good(node, "groups", "q", "--yes", "--delete", "g") == "g is deleted\n"


def test_dead_letters(node: AdminNode) -> None:
    assert good(node, "dlq", "list") == "there are no dead letters\n"
    good(node, "create", "q")
    for n in range(12):
        node.queues.die("q", b"dead %d" % n)
    assert good(node, "dlq", "list").splitlines()[1].split()[:3] == ["q", "q.dead", "12"]
    shown = good(node, "dlq", "show", "q", "-n", "2")
    assert "0:0  " in shown and "dead 1" in shown and "x-death-reason: rejected" in shown and "dead 2" not in shown
    assert good(node, "dlq", "replay", "q", "0:3", "5") == "2 dead letters are back in q\n"
    assert [m.payload for m in node.queues.queues["q"].partitions[0]] == [b"dead 3", b"dead 5"]
    assert good(node, "dlq", "replay", "q", "--all") == "10 dead letters are back in q\n"
    assert good(node, "dlq", "replay", "q", "--all") == "0 dead letters are back in q\n"
    node.queues.die("q", b"")
    assert good(node, "dlq", "purge", "q", "--yes") == "1 dead letter is gone from q\n"
    for arguments in (["q"], ["q", "0:1", "--all"], ["q", "x"], ["q", "0:"], ["q", "-1:0"]):
        assert run(node, "dlq", "replay", *arguments).exit_code == 2
    assert "there is no queue" in bad(node, "dlq", "replay", "missing", "--all")


def test_what_dies_again_does_not_go_round_for_ever(node: AdminNode) -> None:
    good(node, "create", "q")
    for n in range(3):
        node.queues.die("q", b"%d" % n)
    publish = node.queues.publish
    node.queues.publish = lambda name, message: node.queues.die(name, message.payload)  # type: ignore
    assert good(node, "dlq", "replay", "q", "--all") == "3 dead letters are back in q\n"
    node.queues.publish = publish  # type: ignore[method-assign]


# ── finding the broker ───────────────────────────────────────────────────────────────────────────────────────


def test_no_broker_is_one_sentence_that_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "admin.sock"
    for _ in range(2):
        status, out, err = status_of("queue", "list", "--socket", str(path), capsys=capsys)
        assert (status, out, err.count("\n")) == (exit_codes.FAILURE, "", 1)
        assert f"no broker answers at {path}" in err and "fluxmq run" in err
        with socket.socket(socket.AF_UNIX) as dead:
            if not path.exists():
                dead.bind(str(path))


def test_the_configuration_says_where_the_socket_is(node: AdminNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    good(node, "create", "q")
    file = tmp_path / "fluxmq.yaml"
    for text in (f"storage: {{dir: {tmp_path}}}\n",
                 f"storage: {{type: memory}}\nserver: {{admin_socket: {node.path}}}\n"):
        file.write_text(text)
        status, out, err = status_of("queue", "list", "--config", str(file), capsys=capsys)
        assert status == 0 and "q" in out, err
    monkeypatch.setenv("FLUXMQ__STORAGE__DIR", str(tmp_path))
    assert status_of("queue", "list", capsys=capsys)[0] == 0
    for text in ("storage: {type: memory}\n", "server: {admin_socket: off}\n"):
        file.write_text(text)
        status, _, err = status_of("queue", "list", "--config", str(file), capsys=capsys)
        assert status == exit_codes.FAILURE and "no admin socket (set server.admin_socket" in err
    file.write_text("server: {admin_sockt: off}\n")
    assert status_of("queue", "list", "--config", str(file), capsys=capsys)[0] == exit_codes.CONFIG


def test_something_else_behind_the_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"SSH-2.0-x\r\n", b""):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()

            def serve(listener: socket.socket = listener, answer: bytes = answer) -> None:
                peer, _ = listener.accept()
                peer.recv(65536)
                peer.sendall(answer)
                peer.close()

            thread = threading.Thread(target=serve)
            thread.start()
            status, _, err = status_of("queue", "list", "--socket", str(path), capsys=capsys)
            thread.join()
            assert status == exit_codes.FAILURE and "Traceback" not in err and err.count("\n") == 1
        path.unlink()


def test_who_waits_for_a_broker_that_hangs_is_told(node: AdminNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    """And gets its answer if there is one at last."""
    told, echo = threading.Event(), click.echo

    def say(text: object = None, **how: Any) -> None:
        echo(text, **how)
        if "no answer yet" in str(text):
            told.set()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            peer.recv(65536)
            assert told.wait(60)
            peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"queues": []}')
            peer.close()

        monkeypatch.setattr(click, "echo", say)
        monkeypatch.setattr("fluxmq.app.admin_client.SLOW_S", 0.05)
        thread = threading.Thread(target=serve)
        thread.start()
        status, _, err = status_of("queue", "list", "--socket", str(tmp_path / "s"), capsys=capsys)
        thread.join()
    assert (status, err) == (0, f"no answer yet from the broker at {tmp_path / 's'}; waiting (Ctrl-C ends this)\n")
    monkeypatch.setattr("fluxmq.app.admin_client.SLOW_S", 600)
    assert "no answer yet" not in good(node, "list")


def test_a_socket_that_may_not_be_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    def denied(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("fluxmq.app.admin_client._Connection.connect", denied)
    status, _, err = status_of("queue", "list", "--socket", str(tmp_path / "s"), capsys=capsys)
    assert status == exit_codes.FAILURE and "may not be opened (run this as the user of the broker" in err


def test_help_is_there_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["list"], ["describe"], ["create"], ["delete"], ["move"], ["purge"], ["tail"], ["publish"],
                      ["groups"], ["seek"], ["dlq"], ["dlq", "list"], ["dlq", "show"], ["dlq", "replay"],
                      ["dlq", "purge"]):
        status, out, _ = status_of("queue", *arguments, "--help", capsys=capsys)
        assert status == 0 and "Usage: fluxmq queue" in out, arguments


def test_version_does_not_wait_for_http() -> None:
    code = "import sys, fluxmq.app.cli; sys.exit('http.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=python.environment(), cwd=os.sep, check=False,
                          timeout=60).returncode == 0


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.text())
def test_nothing_from_a_client_moves_the_cursor(text: str) -> None:
    assert plain(text).isprintable()
    message = {"payload": text, "topic": text, "partition": 0, "offset": 1, "user_properties": [[text, text]]}
    assert all(line.isprintable() for line in as_message(message, properties=True).split("\n"))
    assert as_message(message, properties=True).count("\n") == 1


@given(st.lists(st.fixed_dictionaries({"name": st.text(max_size=8), "n": st.integers(0, 10**9)}), max_size=8))
def test_columns_stand_under_each_other(rows: list[dict[str, Any]]) -> None:
    lines = as_table(rows, {"n": "NUMBER", "name": "NAME"}).split("\n")
    assert len(lines) == len(rows) + 2
    start = lines[0].index("NAME")
    for row, line in zip(rows, lines[1:], strict=False):
        assert line[:start].strip() == str(row["n"]) and line[start:] == plain(row["name"]).rstrip()


def test_times_and_positions() -> None:
    assert as_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert as_time(0) == as_time(None) == "-" and "ms" in as_time(1 << 62)
    assert read_position("timestamp:2026-01-01T00:00:00Z") == "timestamp=2026-01-01T00:00:00Z"
    assert read_position("-5") == "-5"


def test_what_another_node_has_not_answered_is_said(node: AdminNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error: what programs read from standard output is the same."""
    row = {"name": "q", "type": "classic", "partitions": 1, "messages": None, "node": "n1", "state": "elsewhere"}
    missing = [{"node": "n1", "why": "node n1 has not answered:\x1b gone"}]
    answers: dict[tuple[str, ...], dict[str, Any]] = {
        ("queues",): {"queues": [row], "missing": missing}, ("queues", "q"): row | {"missing": missing},
        ("dlq",): {"dead_letters": [{"queue": "q", "namespace": "/", "messages": None, "node": "n1"}],
                   "missing": missing}}

    def ask(client: object, method: str, *segments: str, **more: Any) -> Any:
        if method == "POST":
            raise AdminError("node n1 has not answered", status=503)
        return {"deleted": True, "messages": None} if method == "DELETE" else answers[segments]

    monkeypatch.setattr("fluxmq.app.admin_client.AdminClient.ask", ask)
    for arguments in (["list"], ["describe", "q"], ["dlq", "list"]):
        result = run(node, *arguments)
        assert result.stderr == "numbers of node n1 are left out: node n1 has not answered:\\x1b gone\n"
        assert "left out" not in result.stdout and "n1" in result.stdout
        assert json.loads(run(node, *arguments, "--json").stdout)["missing"] == missing
    assert "n1" in bad(node, "dlq", "replay", "q", "--all")     # how many there are, nobody knows
    assert good(node, "delete", "q", "--yes") == "q is deleted\n"
