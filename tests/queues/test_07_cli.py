"""`fluxmq queue …` against a broker that runs: every subcommand, what it prints, what it changes, what it says when it
cannot; and that all of it is there after a restart."""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker
from kit.client import Client
from kit.python import environment
from kit.three_nodes import ThreeNodes
from kit.watch import wait_until
from oracle.mqtt import Publish
from queues.conftest import ack, consume, lag, order, put, take, users

from fluxmq.app import cli

Start = Callable[..., Broker]
Connect = Callable[..., Client]


class Shell:
    """`fluxmq queue …` for one broker. Each call: exit status, standard output, standard error."""

    def __init__(self, broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker, self.capsys = broker, capsys
        self.socket = str(broker.directory / "data" / "admin.sock")

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        if isinstance(self.broker, ThreeNodes):
            self.broker.arrive()
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["queue", *arguments, "--socket", self.socket])
        said = self.capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    def good(self, *arguments: str) -> str:
        status, out, err = self(*arguments)
        assert (status, err) == (0, ""), (arguments, status, out, err)
        return out

    def read(self, *arguments: str) -> Any:
        return json.loads(self.good(*arguments, "--json"))

    def lines(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.good(*arguments, "--json").splitlines()]

    def bad(self, *arguments: str, status: int = 1) -> str:
        """What it says: one line, and nothing on standard output."""
        code, out, err = self(*arguments)
        assert (code, out) == (status, ""), (arguments, code, out, err)
        assert err.count("\n") == 1 or status == 2, err
        assert "Traceback" not in err
        return err


@pytest.fixture
def shell(start_broker: Start, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(start_broker({"name": "orders"}), capsys)


LIMITS = {
    "limits.max_depth": "1000", "limits.max_bytes": "1MiB", "limits.max_message_size": "10KiB",
    "limits.message_ttl": "1h", "overflow": "drop-head", "expires_after": "10m", "capture": "confirmed",
    "max_priority": "9", "retry.max_retries": "3", "retry.initial_backoff": "2s", "retry.max_backoff": "1m",
    "retry.multiplier": "3", "retry.visibility_timeout": "45s", "dlq.enabled": "true", "dlq.topic": "lost",
}


def test_create_with_every_limit_and_describe(shell: Shell) -> None:
    sets = [f"--set={key}={value}" for key, value in LIMITS.items()]
    create = ["create", "jobs", "--partitions", "3", "--topic", "shop/+/orders", "--topic", "shop/all", *sets]
    assert "jobs is created" in shell.good(*create)
    assert "jobs already exists, exactly as asked for" in shell.good(*create)
    assert shell.read("create", "log", "--type", "stream", "--set", "retention.max_age=720h", "--set",
                      "retention.max_length_bytes=10GiB", "--set", "retention.max_length_messages=7") == {
        "name": "log", "result": "created"}
    shell.broker.kill()
    shell.broker.start()
    found = shell.read("describe", "jobs")
    assert found["spec"] == {
        "name": "jobs", "topics": ["shop/+/orders", "shop/all"], "partitions": 3, "max_priority": 9,
        "capture": "confirmed", "overflow": "drop-head", "expires_after": "10m",
        "limits": {"max_depth": 1000, "max_bytes": "1MiB", "max_message_size": "10KiB", "message_ttl": "1h"},
        "retry": {"max_retries": 3, "initial_backoff": "2s", "max_backoff": "1m", "multiplier": 3.0,
                  "visibility_timeout": "45s"}, "dlq": {"topic": "lost"}}
    assert len(found["partition_list"]) == 3
    assert shell.read("describe", "log")["spec"]["retention"] == {
        "max_age": "30d", "max_length_bytes": "10GiB", "max_length_messages": 7}
    text = shell.good("describe", "jobs")
    for key, value in LIMITS.items():
        if key != "dlq.enabled":
            assert f"{key}: {value}" in text
    assert "jobs already exists, exactly as asked for" in shell.good(*create)


def test_what_is_changed_is_in_force_at_once_and_after_a_crash(shell: Shell, connect: Connect) -> None:
    shell.good("create", "orders", "--set", "limits.max_depth=2", "--topic", "shop/#")
    client = connect(shell.broker)
    put(client, "orders", b"1", b"2")
    put(client, "orders", b"3", expect=0x97)
    shell.broker.kill()
    shell.broker.start()
    # What stands in the configuration is as the configuration says after each start.
    assert "limits.max_depth" not in shell.good("describe", "orders")
    shell.good("create", "jobs", "--set", "limits.max_depth=5")
    assert "is changed" in shell.good("create", "jobs", "--set", "limits.max_depth=2", "--topic", "shop/#",
                                      "--set", "retry.max_retries=1")
    shell.broker.kill()
    shell.broker.start()
    client = connect(shell.broker)
    put(client, "jobs", b"1")
    client.publish("shop/x", b"2", 1)
    put(client, "jobs", b"3", expect=0x97)
    assert [message["topic"] for message in shell.lines("tail", "jobs")] == ["$queue/jobs", "shop/x"]


def test_changed_retries_hold_for_groups_that_are_there(shell: Shell, connect: Connect) -> None:
    shell.good("create", "jobs")
    put(connect(shell.broker), "jobs", b"x")
    consumer = connect(shell.broker)
    consume(consumer, "jobs", ack="manual")
    packet = consumer.receive()
    shell.good("create", "jobs", "--set", "retry.max_retries=1")
    order(consumer, "nack", packet, delay=0)
    packet = consumer.receive()
    order(consumer, "nack", packet, delay=0)
    wait_until(lambda: [entry["messages"] for entry in shell.read("dlq", "list")["dead_letters"]
                        if entry["queue"] == "jobs"] == [1])


@pytest.mark.parametrize(("arguments", "says"), [
    (["create", "jobs", "--set", "limits.max_dept=1"], "did you mean max_depth"),
    (["create", "jobs", "--set", "limits.max_depth=-1"], "limits.max_depth"),
    (["create", "jobs", "--set", "limits.message_ttl=soon"], "limits.message_ttl"),
    (["create", "jobs", "--set", "overflow=perhaps"], "overflow"),
    (["create", "jobs", "--set", "partitions=0"], "partitions"),
    (["create", "jobs", "--set", "retention.max_age=1h"], "is for streams"),
    (["create", "log", "--type", "stream", "--set", "max_priority=3"], "has no priorities"),
    (["create", "a/b"], "may not contain"),
    (["create", "$x"], "may not begin"),
    (["create", "orders", "--partitions", "2"], "partitions"),
    (["create", "orders", "--type", "stream"], "fluxmq queue delete orders"),
    (["describe", "nowhere"], "fluxmq queue list"),
    (["delete", "nowhere", "--yes"], "there is no queue nowhere"),
    (["delete", "orders", "--yes"], "is in the configuration"),
    (["purge", "nowhere", "--yes"], "there is no queue nowhere"),
    (["tail", "nowhere"], "there is no queue nowhere"),
    (["tail", "nowhere", "-f"], "there is no queue nowhere"),
    (["tail", "orders", "--from", "yesterday"], "a position is first, last"),
    (["tail", "orders", "--from", "timestamp:never"], "a position is first, last"),
    (["tail", "orders", "--partition", "1"], "partitions, from 0 on"),
    (["publish", "nowhere", "x"], "there is no queue nowhere"),
    (["publish", "orders", "x", "--property", "priority=high"], "makes no sense"),
    (["groups", "nowhere"], "there is no queue nowhere"),
    (["groups", "orders", "--yes", "--delete", "nobody"], "has no group nobody"),
    (["seek", "--yes", "orders", "nobody", "first"], "has no group nobody"),
    (["seek", "--yes", "nowhere", "nobody", "first"], "there is no queue nowhere"),
    (["dlq", "show", "nowhere"], "there is no queue nowhere"),
    (["dlq", "replay", "nowhere", "--all"], "there is no queue nowhere"),
    (["dlq", "purge", "nowhere", "--yes"], "there is no queue nowhere"),
])
def test_errors_of_the_broker(arguments: list[str], says: str, one_shell: Shell) -> None:
    assert says in one_shell.bad(*arguments)


@pytest.mark.parametrize("arguments", [
    ["create"], ["create", "jobs", "--type", "heap"], ["create", "jobs", "--partitions", "0"],
    ["create", "jobs", "--set", "limits"], ["create", "jobs", "--set", "dlq=1", "--set", "dlq.topic=x"],
    ["publish"], ["publish", "orders", "x", "--priority", "10"], ["publish", "orders", "x", "--property", "novalue"],
    ["publish", "orders", "x", "--expiry", "-1"], ["tail", "orders", "-n", "-1"], ["tail"], ["seek", "orders", "g"],
    ["dlq", "replay", "orders"], ["dlq", "replay", "orders", "0:1", "--all"], ["dlq", "replay", "orders", "one"],
    ["dance"], ["list", "--nothing"],
])
def test_errors_of_the_command_line(arguments: list[str], one_shell: Shell) -> None:
    code, out, err = one_shell(*arguments)
    assert (code, out) == (2, "") and err


@pytest.fixture(scope="module")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """For what changes nothing."""
    with Broker(tmp_path_factory.mktemp("cli"), {"queues": json.dumps([{"name": "orders"}])}) as broker:
        yield broker


@pytest.fixture
def one_shell(one_broker: Broker, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(one_broker, capsys)


def test_no_broker_and_what_is_no_broker(tmp_path: Path, start_broker: Start,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    broker = start_broker({"name": "orders"})
    shell = Shell(broker, capsys)
    shell.good("list")
    broker.terminate()
    assert "start one with `fluxmq run`" in shell.bad("list")
    shell.socket = str(tmp_path / "nowhere" / "admin.sock")
    assert "no broker answers" in shell.bad("describe", "orders")
    (tmp_path / "file").write_text("x")
    shell.socket = str(tmp_path / "file")
    assert "no broker answers" in shell.bad("list")
    shell.socket = str(tmp_path / ("x" * 200))
    assert shell.bad("list")


def test_the_socket_is_found_by_the_configuration(shell: Shell, tmp_path: Path) -> None:
    """By --config, by the environment, by --socket: as a program of its own, with its exit status."""
    file = tmp_path / "fluxmq.yaml"
    file.write_text(f"storage:\n  dir: {shell.broker.directory / 'data'}\n")

    def run(*arguments: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, "-P", "-m", "fluxmq", "queue", *arguments], capture_output=True,
                              input=stdin, env=environment(**env), timeout=30, cwd=tmp_path)

    done = run("publish", "orders", "--config", str(file), stdin=b"one\ntwo\nthr\xffee")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"3 messages are in orders\n", b"")
    done = run("tail", "orders", "--json", FLUXMQ__STORAGE__DIR=str(shell.broker.directory / "data"))
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(message["payload"], message["encoding"]) for message in found] == [
        ("one", "utf-8"), ("two", "utf-8"), ("dGhy/2Vl", "base64")]
    file.write_text("storage: {type: memory}\n")
    done = run("list", "--config", str(file))
    assert done.returncode == 1 and b"--socket" in done.stderr, done.stderr
    file.write_text("storage: {dri: x}\n")
    done = run("list", "--config", str(file))
    assert done.returncode == 2 and b"storage" in done.stderr
    done = run("purge", "orders", "--config", str(file), "--socket", shell.socket, stdin=b"n\n")
    assert done.returncode == 1 and b"Throw away all messages in orders that no consumer holds?" in done.stderr
    assert b"nothing was done" in done.stderr
    done = run("purge", "orders", "--config", str(file), "--socket", shell.socket, stdin=b"")
    assert done.returncode == 2 and b"--yes" in done.stderr
    assert shell.read("describe", "orders")["messages"] == 3


def test_list_purge_and_delete(shell: Shell, connect: Connect) -> None:
    shell.good("create", "jobs", "--partitions", "2")
    for queue in ("jobs", "orders"):
        put(connect(shell.broker), queue, *(b"%d" % number for number in range(10)))
    found = {entry["name"]: entry for entry in shell.read("list")["queues"]}
    assert {name: (entry["type"], entry["partitions"], entry["messages"]) for name, entry in found.items()} == {
        "jobs": ("classic", 2, 10), "orders": ("classic", 1, 10)}
    assert shell.good("list").splitlines()[1].split()[:2] == ["jobs", "classic"]
    consumer = connect(shell.broker)
    consume(consumer, "jobs", prefetch=3, ack="manual")
    held = [consumer.receive() for _ in range(3)]
    assert "has 1 consumers" in shell.bad("delete", "jobs", "--if-unused", "--yes")
    assert "messages" in shell.bad("delete", "jobs", "--if-empty")
    assert "7 messages are gone from jobs; 3 that consumers hold stay" in shell.good("purge", "jobs", "--yes")
    assert "3 messages are gone from jobs\n" in shell.good("purge", "jobs", "--yes", "--unsettled")
    consumer.expect_quiet()
    for packet in held:                         # too late, and no harm
        order(consumer, "ack", packet)
    put(connect(shell.broker), "jobs", b"after")
    assert consumer.receive().payload == b"after"
    assert shell.read("purge", "orders", "--yes") == {"purged": 10, "unsettled": 0}
    shell.broker.restart()
    assert {entry["name"]: entry["messages"] for entry in shell.read("list")["queues"]} == {"jobs": 1, "orders": 0}
    later = connect(shell.broker)
    consume(later, "jobs")
    assert users(later.receive(payload=b"after"))["delivery-count"] == "2"
    wait_until(lambda: lag(shell.broker, "jobs") == 0)
    assert "jobs is deleted" in shell.good("delete", "jobs", "--if-empty", "--yes")
    put(later, "jobs", b"x", expect=0x90)
    shell.broker.kill()
    shell.broker.start()
    assert [entry["name"] for entry in shell.read("list")["queues"]] == ["orders"]


def test_what_a_consumer_holds_when_its_queue_is_purged_comes_back(shell: Shell, connect: Connect) -> None:
    put(connect(shell.broker), "orders", *(b"%d" % number for number in range(20)))
    consumer, other = connect(shell.broker), connect(shell.broker)
    consume(consumer, "orders", prefetch=10, ack="manual")
    held = [consumer.receive() for _ in range(10)]
    assert shell.read("purge", "orders", "--yes") == {"purged": 10, "unsettled": 10}
    order(consumer, "ack", held[0])
    consumer.close()
    consume(other, "orders", prefetch=20, ack="manual")
    assert [other.receive().payload for _ in range(9)] == [b"%d" % number for number in range(1, 10)]
    other.expect_quiet()


def test_each_group_keeps_what_its_own_consumers_hold(shell: Shell, connect: Connect) -> None:
    first, second = connect(shell.broker), connect(shell.broker)
    consume(first, "orders", consumer_group="a", prefetch=2, ack="manual")
    consume(second, "orders", consumer_group="b", prefetch=1, ack="manual")
    put(connect(shell.broker), "orders", *(b"%d" % number for number in range(5)))
    held = [first.receive() for _ in range(2)]
    second.receive(payload=b"0")
    assert shell.read("purge", "orders", "--yes") == {"purged": 3, "unsettled": 2}
    order(first, "ack", held[0])
    order(first, "ack", held[1])
    first.expect_quiet()
    second.close()
    third = connect(shell.broker)
    consume(third, "orders", consumer_group="b", ack="manual")
    third.receive(payload=b"0")
    third.expect_quiet()


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_what_was_delayed_when_it_was_purged_does_not_come(how: str, shell: Shell, connect: Connect) -> None:
    for number in range(20):
        shell.good("publish", "orders", str(number), "--delay", "0.8")
    assert shell.read("purge", "orders", "--yes") == {"purged": 20, "unsettled": 0}
    shell.good("publish", "orders", "new", "--delay", "0.1")
    if how == "kill":
        shell.broker.kill()
        shell.broker.start()
    else:
        shell.broker.restart()
    consumer = connect(shell.broker)
    consume(consumer, "orders")
    consumer.receive(payload=b"new")
    consumer.expect_nothing(0.8)
    assert shell.read("list")["queues"][0]["delayed"] == 0


def test_publish_with_everything_and_tail(shell: Shell, connect: Connect) -> None:
    shell.good("create", "jobs", "--partitions", "4", "--set", "max_priority=9")
    assert "1 message is in jobs" in shell.good(
        "publish", "jobs", "do this", "--key", "eu/west", "--property", "a=1", "--property", "a=2", "--priority", "7",
        "--partition-key", "k", "--expiry", "3600", "--content-type", "text/plain")
    placed = shell.read("publish", "jobs", "again", "--partition-key", "k", "--priority", "7")["messages"][0]
    delayed = shell.read("publish", "jobs", "in an hour", "--delay", "3600")
    assert delayed["accepted"] == 1 and delayed["messages"][0]["due_ms"] > 0
    found = shell.lines("tail", "jobs", "--from", "first")
    assert [(m["payload"], m["topic"], m["priority"]) for m in found] == [
        ("do this", "$queue/jobs/eu/west", 7), ("again", "$queue/jobs", 7)]
    assert (found[1]["partition"], found[1]["offset"]) == (placed["partition"], placed["offset"])
    assert found[0]["partition"] == found[1]["partition"] and found[0]["expires_at"] > found[0]["time_ms"]
    text = shell.good("tail", "jobs", "--from", "first", "--properties")
    assert "content-type: text/plain" in text and "a: 1" in text and "a: 2" in text
    consumer = connect(shell.broker)
    consume(consumer, "jobs")
    packet = consumer.receive(payload=b"do this")
    assert packet.props("user_property")[:2] == [("a", "1"), ("a", "2")]
    assert packet.prop("content_type") == "text/plain" and packet.prop("message_expiry_interval") <= 3600
    consumer.receive(payload=b"again")
    shell.good("publish", "jobs", "soon", "--delay", "0.2")
    consumer.receive(payload=b"soon")
    consumer.expect_quiet()


def test_tail_follows(shell: Shell, connect: Connect) -> None:
    put(connect(shell.broker), "orders", b"1", b"2", b"3")
    command = [sys.executable, "-P", "-m", "fluxmq", "queue", "tail", "orders", "-f", "-n", "2", "--json"]
    process = subprocess.Popen([*command, "--socket", shell.socket], stdout=subprocess.PIPE, env=environment())
    try:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["payload"] for _ in range(2)] == ["2", "3"]
        shell.good("publish", "orders", "4")
        assert json.loads(process.stdout.readline())["payload"] == "4"
        shell.broker.terminate()
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("start", "expected"), [
    ("first", "0123456789"), ("last", "9"), ("next", ""), ("7", "789"), ("-3", "789"), ("offset=8", "89"),
    ("timestamp:2000-01-01T00:00:00Z", "0123456789"), ("timestamp:2999-01-01T00:00:00Z", "")])
def test_tail_from(start: str, expected: str, shell: Shell, connect: Connect) -> None:
    put(connect(shell.broker), "orders", *(b"%d" % number for number in range(10)))
    found = shell.lines("tail", "orders", f"--from={start}")
    assert "".join(message["payload"] for message in found) == expected
    assert len(shell.lines("tail", "orders", f"--from={start}", "-n", "2")) == min(2, len(expected))


# ---------------------------------------------------------------- groups


def test_groups_show_what_was_agreed_on(shell: Shell, connect: Connect) -> None:
    shell.good("create", "jobs", "--set", "retry.max_retries=4")
    consume(connect(shell.broker), "jobs", consumer_group="own", max_retries=0, initial_backoff="1.5", max_backoff=90)
    consume(connect(shell.broker), "jobs", consumer_group="plain")
    for command in ("groups", "describe"):
        lines = [line.split() for line in shell.good(command, "jobs").splitlines()]
        assert any(line[-2:] == ["RETRIES", "BACKOFF"] for line in lines)
        assert any(line[:1] == ["own"] and line[-6:] == ["any", "number", "1500ms", "x2", "to", "1m30s"]
                   for line in lines)
        assert any(line[:1] == ["plain"] and line[-5:] == ["4", "1s", "x2", "to", "5m"] for line in lines)


def test_groups_and_seek_of_a_stream(shell: Shell, connect: Connect) -> None:
    shell.good("create", "events", "--type", "stream", "--partitions", "2")
    for number in range(10):
        put(connect(shell.broker), "events", b"%d" % number, partition_key="even" if number % 2 == 0 else "odd")
    reader = connect(shell.broker)
    consume(reader, "events", consumer_group="report", offset="first")
    for _ in range(10):
        reader.receive()
    assert "stop them first" in shell.bad("seek", "--yes", "events", "report", "first")
    assert "stop them first" in shell.bad("groups", "events", "--yes", "--delete", "report")
    reader.drop()
    at_end = {place["partition"]: place["next"] for place in shell.read("groups", "events")["groups"][0]["positions"]}
    assert sum(at_end.values()) == 10
    assert "partitions, from 0 on" in shell.bad("seek", "--yes", "events", "report", "first", "--partition", "2")
    assert "a position is" in shell.bad("seek", "--yes", "events", "report", "somewhere")
    moved = shell.read("seek", "--yes", "events", "report", "first", "--partition", "0")["positions"]
    assert {place["partition"]: place["next"] for place in moved} == {0: 0, 1: at_end[1]}
    shell.broker.kill()
    shell.broker.start()
    reader = connect(shell.broker)
    consume(reader, "events", consumer_group="report")
    again = [int(reader.receive().payload) for _ in range(at_end[0])]
    assert again == sorted(again) and len({number % 2 for number in again}) == 1
    reader.expect_quiet()
    reader.drop()
    for position, count in (("next", 0), ("-1", 2), ("timestamp:2000-01-01T00:00:00Z", 10), ("last", 2)):
        shell.good("seek", "--yes", "events", "report", position)
        reader = connect(shell.broker)
        consume(reader, "events", consumer_group="report")
        for _ in range(count):
            reader.receive()
        reader.expect_quiet()
        reader.drop()
    assert shell.good("groups", "events").splitlines()[1].split()[0] == "report"
    assert "report is deleted" in shell.good("groups", "events", "--yes", "--delete", "report")
    shell.broker.kill()
    shell.broker.start()
    assert shell.good("groups", "events") == "there are no groups\n"


def test_seek_of_a_work_group(shell: Shell, connect: Connect) -> None:
    """Another group keeps the messages; the one that is moved back gets them again, the one moved on is done."""
    broker = shell.broker
    done, behind = connect(broker), connect(broker)
    consume(behind, "orders", consumer_group="behind", prefetch=1)
    put(connect(broker), "orders", *(b"%d" % number for number in range(6)))
    consume(done, "orders", consumer_group="done")
    for number in range(6):
        done.receive(payload=b"%d" % number)
    held = take(behind, b"0")
    assert "have messages in hand" in shell.bad("seek", "--yes", "orders", "behind", "first")
    wait_until(lambda: lag(broker, "orders", "done") == 0)
    done.drop()
    shell.good("seek", "--yes", "orders", "done", "2")
    assert {group["name"]: group["lag"] for group in shell.read("groups", "orders")["groups"]} == {
        "behind": 6, "done": 4}
    broker.kill()
    broker.start()
    done = connect(broker)
    consume(done, "orders", consumer_group="done")
    for number in range(2, 6):
        packet = done.receive(payload=b"%d" % number)
        assert users(packet)["delivery-count"] == "1"
    done.expect_quiet()
    done.drop()
    shell.good("seek", "--yes", "orders", "behind", "next")
    wait_until(lambda: shell.read("describe", "orders")["messages"] == 0)
    ack(behind, *held) if behind.version == 4 else None
    later = connect(broker)
    consume(later, "orders", consumer_group="behind")
    later.expect_quiet()
    put(later, "orders", b"new")
    later.receive(payload=b"new")


def test_groups_of_one_name_with_filters(shell: Shell, connect: Connect) -> None:
    """A filter makes a group of its own; they are told apart by it."""
    broker = shell.broker
    for filter_ in ("eu/#", "us/#"):
        client = connect(broker)
        client.subscribe(f"$queue/orders/{filter_}", qos=1)
        client.drop()
    assert "say which: default/eu/#, default/us/#" in shell.bad("seek", "--yes", "orders", "default", "first")
    assert [line.split()[0] for line in shell.good("groups", "orders").splitlines()[1:]] == [
        "default/eu/#", "default/us/#"]
    connect(broker).publish("$queue/orders/eu/x", b"x", 1, expect=0)
    shell.good("groups", "orders", "--yes", "--delete", "default/eu/#")
    assert [group["filter"] for group in shell.read("groups", "orders")["groups"]] == ["us/#"]


# ---------------------------------------------------------------- dead letters


def reject(client: Client, queue: str, count: int) -> None:
    consume(client, queue, ack="manual")
    for _ in range(count):
        packet = client.receive()
        order(client, "reject", packet, reason=f"bad {packet.payload.decode()}")
    client.drop()


def test_dead_letters_are_browsed_and_replayed(shell: Shell, connect: Connect) -> None:
    shell.good("create", "jobs", "--partitions", "2", "--set", "max_priority=9")
    broker, publisher = shell.broker, connect(shell.broker)
    for number in range(6):
        publisher.publish(f"$queue/jobs/k{number}", b"%d" % number, 1, expect=0, properties=[
            ("content_type", "text/plain"), ("user_property", ("partition-key", f"k{number}")),
            ("user_property", ("priority", str(number))), ("user_property", ("mine", "1"))])
    reject(connect(broker), "jobs", 6)
    assert shell.good("dlq", "list").splitlines()[1].split()[:3] == ["jobs", "jobs.dlq", "6"]
    found = {message["payload"]: message for message in shell.lines("dlq", "show", "jobs")}
    assert sorted(found) == ["0", "1", "2", "3", "4", "5"]
    for payload, message in found.items():
        told = dict(message["user_properties"])
        assert told["x-death-reason"] == f"bad {payload}" and told["x-death-queue"] == "jobs"
        assert told["x-death-count"] == "1" and told["x-death-topic"] == f"$queue/jobs/k{payload}"
        assert int(told["x-death-time"]) >= int(told["x-death-published"]) > 0
    assert len(shell.lines("dlq", "show", "jobs", "-n", "2")) == 2
    places = {payload: f"{message['partition']}:{message['offset']}" for payload, message in found.items()}
    # Selected ones, one of them twice, one that is not there.
    assert shell.read("dlq", "replay", "jobs", places["4"], places["2"], places["4"], "0:99", "7:1") == {"replayed": 2}
    assert shell.read("dlq", "replay", "jobs", places["4"]) == {"replayed": 0}, "it is not there any more"
    assert sorted(message["payload"] for message in shell.lines("dlq", "show", "jobs")) == ["0", "1", "3", "5"]
    assert [entry["messages"] for entry in shell.read("dlq", "list")["dead_letters"] if entry["queue"] == "jobs"] == [4]
    broker.kill()
    broker.start()
    consumer = connect(broker)
    consume(consumer, "jobs", prefetch=1)
    for payload in (b"4", b"2"):            # by their priorities, and all that the publisher said
        packet = consumer.receive(payload=payload)
        assert packet.topic == f"$queue/jobs/k{payload.decode()}" and packet.prop("content_type") == "text/plain"
        told = users(packet)
        assert told["mine"] == "1" and told["delivery-count"] == "1"
        assert not any(name.startswith("x-death-") for name in told)
    consumer.expect_quiet()
    assert shell.read("dlq", "replay", "jobs", "--all") == {"replayed": 4}
    assert sorted(consumer.receive().payload for _ in range(4)) == [b"0", b"1", b"3", b"5"]
    consumer.expect_quiet()
    assert shell.good("dlq", "replay", "jobs", "--all") == "0 dead letters are back in jobs\n"


def test_dead_letters_are_purged_and_do_not_come_back(shell: Shell, connect: Connect) -> None:
    put(connect(shell.broker), "orders", *(b"%d" % number for number in range(5)))
    reject(connect(shell.broker), "orders", 5)
    assert shell.read("dlq", "replay", "orders", "0:1") == {"replayed": 1}
    assert "4 dead letters are gone from orders" in shell.good("dlq", "purge", "orders", "--yes")
    shell.broker.kill()
    shell.broker.start()
    assert shell.lines("dlq", "show", "orders") == []
    assert shell.read("dlq", "replay", "orders", "--all") == {"replayed": 0}
    consumer = connect(shell.broker)
    consume(consumer, "orders")
    consumer.receive(payload=b"1")
    consumer.expect_quiet()


def test_dead_letters_of_two_queues_in_one_place(shell: Shell, connect: Connect) -> None:
    """Each gets back its own; neither may throw away the other's. A queue of dead letters with a limit keeps them all
    the same, and one with partitions is replayed from all of them."""
    broker = shell.broker
    shell.good("create", "lost", "--partitions", "3", "--set", "limits.max_depth=2", "--set", "dlq.enabled=false")
    for queue in ("a", "b"):
        shell.good("create", queue, "--set", "dlq.topic=lost")
        put(connect(broker), queue, *(f"{queue}{number}".encode() for number in range(5)))
        reject(connect(broker), queue, 5)
    assert sorted(message["payload"] for message in shell.lines("dlq", "show", "a")) == [f"a{n}" for n in range(5)]
    assert "the dead letters of b are in lost too" in shell.bad("dlq", "purge", "a", "--yes")
    other = next(message for message in shell.lines("dlq", "show", "b"))
    place = f"{other['partition']}:{other['offset']}"
    assert shell.read("dlq", "replay", "a", place) == {"replayed": 0}, "that one is b's"
    assert shell.read("dlq", "replay", "a", "--all") == {"replayed": 5}
    assert len(shell.lines("dlq", "show", "a")) == 0 and len(shell.lines("dlq", "show", "b")) == 5
    consumer = connect(broker)
    consume(consumer, "a")
    assert sorted(consumer.receive().payload for _ in range(5)) == [b"a%d" % n for n in range(5)]
    consumer.expect_quiet()


def test_a_full_queue_takes_no_dead_letters_back(shell: Shell, connect: Connect) -> None:
    shell.good("create", "jobs", "--set", "limits.max_depth=3")
    publisher = connect(shell.broker)
    put(publisher, "jobs", b"1", b"2", b"3")
    reject(connect(shell.broker), "jobs", 3)
    put(publisher, "jobs", b"4")
    said = shell.bad("dlq", "replay", "jobs", "--all")
    assert "2 dead letters are back, then: queue jobs is full" in said
    assert "is full" in shell.bad("dlq", "replay", "jobs", "--all")
    assert [message["payload"] for message in shell.lines("dlq", "show", "jobs")] == ["3"]


def test_a_thousand_dead_letters_and_a_backlog_on_disk(start_broker: Start, connect: Connect,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    """More than one step, and messages that are in segments only: shown, replayed, tailed."""
    broker = start_broker({"name": "orders"}, **{
        "storage.journal_file_size": "1MiB", "queue_manager.cache_size": "1MiB", "queue_manager.segment_size": "1MiB"})
    shell, publisher, consumer = Shell(broker, capsys), connect(broker), connect(broker)
    consume(consumer, "orders", ack="manual", prefetch=50)
    for number in range(1200):
        publisher.send(Publish(topic="$queue/orders", payload=b"%06d" % number + bytes(3000), qos=1,
                               packet_id=number + 1))
        packet = consumer.receive()
        order(consumer, "reject", packet)
        consumer.transcript.clear()
    wait_until(lambda: len(list((broker.directory / "data" / "queues").rglob("*.seg"))) >= 1)
    broker.kill()
    broker.start()
    assert [message["payload"][:6] for message in shell.lines("dlq", "show", "orders", "-n", "700")] == [
        f"{number:06}" for number in range(700)]
    assert shell.read("dlq", "replay", "orders", "--all") == {"replayed": 1200}
    assert shell.read("dlq", "list")["dead_letters"][0]["messages"] == 0
    assert [message["payload"][:6] for message in shell.lines("tail", "orders", "--from", "first")] == [
        f"{number:06}" for number in range(1200)]
