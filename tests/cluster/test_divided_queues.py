"""A queue whose partitions are at three real nodes: clients, operators, moves, a node that is killed."""
from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.test_operations import Desk
from kit.amqp_wire import Wire, wire
from kit.cluster import Cluster
from kit.watch import wait_until

NAME = "split"


@pytest.fixture
def desk(cluster: Cluster) -> Iterator[Desk]:
    found = Desk(cluster, 0)
    found.say("create", NAME, "--partitions", "3")
    yield found
    found.say("delete", NAME, "--yes")


def places(desk: Desk) -> list[str]:
    """The node of each partition."""
    return [entry["node"] for entry in desk.json("describe", NAME)["partition_list"]]


def test_operators_see_one_queue(cluster: Cluster, desk: Desk) -> None:
    assert sorted(places(desk)) == sorted(cluster.names)
    lines = "".join(f"{number}\n" for number in range(12))
    assert desk.say("publish", NAME, given=lines) == f"12 messages are in {NAME}\n"
    for number in range(3):
        rows = Desk(cluster, number).rows()
        assert (rows[NAME]["state"], rows[NAME]["messages"], rows[NAME]["partitions"]) == ("divided", 12, 3)
        assert not any(name.startswith("$part") for name in rows)
    seen = desk.json("describe", NAME)
    assert [entry["messages"] for entry in seen["partition_list"]] == [4, 4, 4]
    found = [json.loads(line) for line in desk.say("tail", NAME, "--from", "first", "-n", "100", "--json").splitlines()]
    assert sorted(int(line["payload"]) for line in found) == list(range(12))
    assert {line["partition"] for line in found} == {0, 1, 2}
    one = [json.loads(line) for line in desk.say(
        "tail", NAME, "--from", "first", "--partition", "1", "--json").splitlines()]
    assert [line["payload"] for line in one] == [line["payload"] for line in found if line["partition"] == 1]
    page = desk.asked("GET", "queues", NAME, "messages", query={"from": "first", "count": 5})
    again = desk.asked("GET", "queues", NAME, "messages", query={"from": page["next"], "count": 100})
    assert sorted(int(line["payload"]) for line in page["messages"] + again["messages"]) == list(range(12))
    consumer = wire(cluster, 1)
    consumer.call(1, "basic.qos", prefetch_count=6)
    consumer.call(1, "basic.consume", queue=NAME)
    tags = [consumer.expect_content(1).delivery_tag for _ in range(6)]
    [group] = desk.asked("GET", "queues", NAME, "groups")["groups"]
    assert (len(group["members"]), group["lag"], len(group["positions"])) == (1, 12, 3)
    consumer.send(1, "basic.ack", delivery_tag=tags[-1], multiple=True)
    consumer.close()
    wait_until(lambda: desk.rows()[NAME]["messages"] <= 6)
    desk.say("groups", NAME)
    desk.say("seek", "--yes", NAME, group["name"], "first")
    assert desk.say("purge", NAME, "--yes").endswith(f"are gone from {NAME}\n")
    assert desk.rows()[NAME]["messages"] == 0
    desk.asked("DELETE", "queues", NAME, "groups", group["name"])
    assert not desk.asked("GET", "queues", NAME, "groups")["groups"]


def row(desk: Desk) -> dict[str, Any]:
    """Of the list; while a node is away the command says that, too."""
    return next(entry for entry in desk.asked("GET", "queues")["queues"] if entry["name"] == NAME)


def published(client: Wire, count: int) -> None:
    """So many messages, each of them confirmed."""
    for number in range(count):
        client.publish(1, "", NAME, b"%d" % number)
        client.expect(1, "basic.ack")


def test_amqp_counts_gets_purges_and_deletes(cluster: Cluster, desk: Desk) -> None:
    client = wire(cluster, 2)
    client.call(1, "confirm.select")
    published(client, 9)
    assert client.call(1, "queue.declare", queue=NAME, passive=True)["message_count"] == 9
    got = []
    for left in range(8, -1, -1):
        message = client.get(1, NAME, no_ack=False)
        assert message is not None and message.arguments["message_count"] == left
        got.append(int(message.body))
        client.send(1, "basic.ack", delivery_tag=message.delivery_tag)
    assert sorted(got) == list(range(9))
    assert client.get(1, NAME) is None
    published(client, 3)
    assert client.call(1, "queue.purge", queue=NAME)["message_count"] == 3
    client.close()


def test_partitions_move_and_a_node_that_is_killed_has_one(cluster: Cluster, desk: Desk) -> None:
    names = cluster.names
    desk.say("publish", NAME, given="".join(f"{number}\n" for number in range(30)))
    first = places(desk)
    to = next(name for name in names if name != first[0])
    assert desk.say("move", NAME, to, "--partition", "0") == f"{NAME} partition 0 is at node {to}\n"
    assert places(desk)[0] == to
    desk.say("move", NAME, names[1])
    assert places(desk) == [names[1]] * 3
    assert desk.rows()[NAME]["messages"] == 30
    for number in range(3):     # at one node it is as any queue there
        assert Desk(cluster, number).rows()[NAME]["state"] == "running"
        assert Desk(cluster, number).json("describe", NAME)["state"] == "running"
    for partition, name in enumerate(names):
        desk.say("move", NAME, name, "--partition", str(partition))
    assert places(desk) == list(names)
    cluster[2].kill()
    wait_until(lambda: row(desk)["state"] == "partly away", 30.0)
    assert row(desk)["messages"] == 20
    seen = desk.asked("GET", "queues", NAME)
    assert [entry["messages"] for entry in seen["partition_list"]] == [10, 10, None]
    assert [entry["node"] for entry in seen["missing"]] == [names[2]]
    desk.say("publish", NAME, given="".join(f"{number}\n" for number in range(10)))
    consumer = wire(cluster, 1)
    consumer.call(1, "basic.consume", queue=NAME, no_ack=True)
    for _ in range(30):
        consumer.expect_content(1)
    cluster[2].start()
    for _ in range(10):
        consumer.expect_content(1)
    consumer.close()
    wait_until(lambda: row(desk)["state"] == "divided", 30.0)
    assert desk.rows()[NAME]["messages"] == 0
