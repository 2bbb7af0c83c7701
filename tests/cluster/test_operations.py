"""`fluxmq queue` and `fluxmq dlq` on three real nodes: each command at a node that does not have the queue."""
from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from kit.amqp_wire import wire
from kit.cluster import Cluster, fluxmq, fluxmq_json
from kit.python import environment

from fluxmq.app.admin_client import AdminClient, AdminError

HERE, OWNER, THIRD = 0, 1, 2
Command = tuple[str, ...]


class Desk:
    """An operator at a node."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.socket = cluster[number].directory / "data" / "admin.sock"

    def say(self, *words: str, given: str = "") -> str:
        """`fluxmq queue …`; what it prints."""
        return fluxmq("queue", *words, "--socket", str(self.socket), given=given)

    def json(self, *words: str) -> Any:
        return fluxmq_json("queue", *words, "--socket", str(self.socket))

    def asked(self, method: str, *segments: str, query: dict[str, Any] | None = None, body: Any = None) -> Any:
        """What the admin socket answers. Raises AdminError."""
        client = AdminClient(self.socket)
        try:
            return client.ask(method, *segments, query=query, body=body)
        finally:
            client.close()

    def rows(self) -> dict[str, dict[str, Any]]:
        """`fluxmq queue list`, by name."""
        return {row["name"]: row for row in self.json("list")["queues"]}

    def dead(self) -> dict[str, dict[str, Any]]:
        """`fluxmq queue dlq list`, by queue."""
        return {row["queue"]: row for row in self.json("dlq", "list")["dead_letters"]}


def queue_of(cluster: Cluster, name: str, type_: str = "classic", *, at: int = OWNER) -> str:
    """A queue that this node has: the first of as many as it takes. Each goes to where there are fewest."""
    desk = Desk(cluster, HERE)
    desk.say("create", f"{name}0", "--type", type_)
    for number in range(12):
        if number:      # a program takes its third of a second, and more of them show nothing more
            desk.asked("PUT", "queues", f"{name}{number}", body={"type": type_})
        if desk.asked("GET", "queues", f"{name}{number}")["node"] == cluster.names[at]:
            return f"{name}{number}"
    raise AssertionError(f"node {at} gets no queue")


def drop(cluster: Cluster, name: str) -> None:
    """All queues that begin with this name without its number, and their dead letters."""
    desk = Desk(cluster, HERE)
    for row in desk.asked("GET", "queues")["queues"]:
        if row["name"].startswith(name.rstrip("0123456789")):
            desk.asked("DELETE", "queues", row["name"])


@pytest.fixture
def desk(cluster: Cluster) -> Desk:
    return Desk(cluster, HERE)


def read(cluster: Cluster, number: int, queue: str, count: int, *, reject: bool) -> None:
    """Consumes messages, and acknowledges or rejects them."""
    consumer = wire(cluster, number)
    consumer.call(1, "basic.qos", prefetch_count=count)
    consumer.call(1, "basic.consume", queue=queue)
    for _ in range(count):
        tag = consumer.expect_content(1).delivery_tag
        if reject:
            consumer.send(1, "basic.reject", delivery_tag=tag, requeue=False)
        else:
            consumer.send(1, "basic.ack", delivery_tag=tag)
    consumer.close()


def test_publish_list_describe_tail_and_purge(cluster: Cluster, desk: Desk) -> None:
    name = queue_of(cluster, "many")
    assert desk.say("publish", name, given="one\ntwo\nthree\n") == f"3 messages are in {name}\n"
    for number in range(3):
        row = Desk(cluster, number).rows()[name]
        assert (row["node"], row["state"], row["messages"]) == (cluster.names[OWNER], "running", 3)
    seen = desk.json("describe", name)
    assert (seen["node"], seen["state"], seen["messages"]) == (cluster.names[OWNER], "running", 3)
    assert seen["partition_list"][0]["next"] == 3
    assert "missing" not in seen
    lines = [json.loads(line) for line in desk.say("tail", name, "--from", "first", "--json").splitlines()]
    assert [line["payload"] for line in lines] == ["one", "two", "three"]
    assert json.loads(desk.say("tail", name, "-n", "1", "--json"))["payload"] == "three"
    assert desk.say("purge", name, "--yes") == f"3 messages are gone from {name}\n"
    assert desk.rows()[name]["messages"] == 0
    drop(cluster, name)


def test_a_tail_follows(cluster: Cluster, desk: Desk) -> None:
    name = queue_of(cluster, "tailed")
    command = [sys.executable, "-m", "fluxmq", "queue", "tail", name, "-f", "--from", "first", "--json", "--socket",
               str(desk.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment()) as process:
        assert process.stdout is not None
        try:
            for number in range(3):
                desk.say("publish", name, f"{number}")
                assert json.loads(process.stdout.readline())["payload"] == f"{number}"
        finally:
            process.kill()
    drop(cluster, name)


def test_groups_and_seek(cluster: Cluster, desk: Desk) -> None:
    name = queue_of(cluster, "grouped")
    desk.say("publish", name, given="one\ntwo\n")
    read(cluster, THIRD, name, 2, reject=False)

    def group() -> dict[str, Any]:
        (found,) = desk.json("groups", name)["groups"]
        return dict(found)

    cluster.wait(lambda: group()["lag"] == 0 and not group()["members"])
    assert group() == Desk(cluster, OWNER).json("groups", name)["groups"][0]
    assert desk.json("describe", name)["group_list"] == [group()]
    desk.say("publish", name, "three")
    assert desk.json("seek", "--yes", name, group()["name"], "next")["positions"] == [
        {"partition": 0, "priority": 0, "next": 3, "settled": 3}]
    assert group()["lag"] == 0
    assert "no group" in desk.say("seek", "--yes", name, "unknown", "first")
    gone = group()["name"]
    assert desk.say("groups", name, "--yes", "--delete", gone) == f"{gone} is deleted\n"
    assert desk.json("groups", name) == {"groups": []}
    drop(cluster, name)


def test_dead_letters(cluster: Cluster, desk: Desk) -> None:
    name = queue_of(cluster, "dying")
    desk.say("publish", name, given="one\ntwo\nthree\n")
    read(cluster, THIRD, name, 3, reject=True)
    cluster.wait(lambda: desk.dead().get(name, {}).get("messages") == 3)
    assert desk.dead()[name]["node"] == cluster.names[OWNER]
    assert desk.rows()[name]["dead_letters"] == 3
    shown = [json.loads(line) for line in desk.say("dlq", "show", name, "--json").splitlines()]
    assert [line["payload"] for line in shown] == ["one", "two", "three"]
    assert desk.say("dlq", "replay", name, f"0:{shown[1]['offset']}") == f"1 dead letter is back in {name}\n"
    assert desk.say("dlq", "replay", name, "--all") == f"2 dead letters are back in {name}\n"
    assert desk.dead()[name]["messages"] == 0
    read(cluster, HERE, name, 3, reject=True)
    cluster.wait(lambda: desk.dead()[name]["messages"] == 3)
    assert desk.say("dlq", "purge", name, "--yes") == f"3 dead letters are gone from {name}\n"
    assert desk.dead()[name]["messages"] == 0
    drop(cluster, name)


def test_deletion_with_conditions(cluster: Cluster, desk: Desk) -> None:
    name = queue_of(cluster, "ending")
    desk.say("publish", name, "one")
    assert "has 1 messages" in desk.say("delete", name, "--if-empty", "--yes")
    consumer = wire(cluster, THIRD)
    consumer.call(1, "basic.consume", queue=name)
    assert "has 1 consumers" in desk.say("delete", name, "--if-unused", "--yes")
    consumer.close()
    cluster.wait(lambda: desk.rows()[name]["consumers"] == 0)
    assert desk.say("delete", name, "--if-unused", "--yes") == f"{name} is deleted, and 1 messages with it\n"
    for number in range(3):
        assert name not in Desk(cluster, number).rows()
    name = queue_of(cluster, "ending")
    desk.say("publish", name, "one")
    assert desk.say("delete", name, "--yes") == f"{name} is deleted, and 1 messages with it\n"
    drop(cluster, name)


@contextlib.contextmanager
def paused(cluster: Cluster, number: int) -> Iterator[None]:
    cluster.pause(number)
    try:
        yield
    finally:
        cluster.resume(number)


def test_a_list_does_not_wait_for_a_node_that_stands_still(cluster: Cluster, desk: Desk) -> None:
    """Its numbers are left out, and the answer says so; when its lease has ended its queues are away."""
    name = queue_of(cluster, "still")
    with paused(cluster, OWNER):
        said = desk.asked("GET", "queues")
        row = {one["name"]: one for one in said["queues"]}[name]
        assert row["messages"] is None and row["state"] in ("elsewhere", "away")
        assert row["state"] == "away" or [one["node"] for one in said["missing"]] == [cluster.names[OWNER]]
    cluster.wait(cluster.everybody_serves)
    cluster.wait(lambda: desk.rows()[name]["messages"] == 0)
    drop(cluster, name)


def test_an_owner_that_was_killed_is_named(cluster: Cluster, desk: Desk) -> None:
    """At once, and when its lease has ended; what needs nothing of it works."""
    name = queue_of(cluster, "killed")
    desk.say("publish", name, "kept")
    commands: list[Command] = [
        ("publish", name, "x"), ("tail", name), ("tail", name, "-f"), ("purge", name, "--yes"), ("groups", name),
        ("groups", name, "--yes", "--delete", "default"), ("seek", "--yes", name, "default", "first"),
        ("dlq", "show", name),
        ("dlq", "replay", name, "0:1"), ("dlq", "purge", name, "--yes"), ("delete", name, "--if-empty", "--yes"),
        ("delete", name, "--if-unused", "--yes")]
    cluster[OWNER].kill()
    node = cluster.names[OWNER]
    away = False
    while not away:
        away = node not in cluster.nodes(HERE)
        for command in commands if away else commands[:2]:
            said = desk.say(*command)
            assert f"node {node}" in said and ("away" in said or "has not answered" in said), (command, said)
        with pytest.raises(AdminError) as refused:
            desk.asked("POST", "queues", name, "purge")
        assert (refused.value.status, refused.value.word) == (503, "unavailable")
        assert refused.value.answer["node"] == node
    row = desk.rows()[name]
    assert (row["node"], row["state"], row["messages"]) == (node, "away", None)
    seen = desk.json("describe", name)
    assert (seen["node"], seen["state"], seen["messages"], seen["group_list"]) == (node, "away", None, [])
    assert "state: away" in desk.say("describe", name)
    other = queue_of(cluster, "other", at=THIRD)
    assert "is in" in desk.say("publish", other, "x")
    cluster[OWNER].start()
    cluster.wait(cluster.everybody_serves)
    cluster.wait(lambda: desk.rows()[name]["messages"] == 1)
    assert desk.say("purge", name, "--yes") == f"1 message is gone from {name}\n"
    drop(cluster, name)
    drop(cluster, other)
