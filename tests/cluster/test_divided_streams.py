"""A stream whose partitions are at three real nodes: readers over AMQP, operators, moves, a node that is killed."""
from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cluster.test_operations import Desk
from kit.amqp_wire import Wire, wire
from kit.cluster import Cluster
from kit.watch import wait_until

NAME = "river"


@pytest.fixture
def desk(cluster: Cluster) -> Iterator[Desk]:
    cluster.wait(cluster.everybody_serves)
    found = Desk(cluster, 0)
    found.say("create", NAME, "--type", "stream", "--partitions", "3")
    yield found
    found.say("delete", NAME, "--yes")


def places(desk: Desk) -> list[str]:
    """The node of each partition."""
    return [entry["node"] for entry in desk.json("describe", NAME)["partition_list"]]


def put(desk: Desk, first: int, behind: int) -> None:
    desk.say("publish", NAME, given="".join(f"{number}\n" for number in range(first, behind)))


def reader(cluster: Cluster, number: int, **arguments: object) -> Wire:
    found = wire(cluster, number)
    found.call(1, "basic.qos", prefetch_count=100)
    found.call(1, "basic.consume", queue=NAME, consumer_tag="c",
               arguments={name.replace("_", "-"): value for name, value in arguments.items()})
    return found


def bodies(wire: Wire, count: int) -> list[int]:
    found = []
    for _ in range(count):
        delivery = wire.expect_content(1, "basic.deliver")
        found.append(int(delivery.body))
        wire.send(1, "basic.ack", delivery_tag=delivery.arguments["delivery_tag"])
    return found


def test_operators_see_one_stream(cluster: Cluster, desk: Desk) -> None:
    assert sorted(places(desk)) == sorted(cluster.names)
    put(desk, 0, 12)
    for number in range(3):
        row = Desk(cluster, number).rows()[NAME]
        assert (row["type"], row["state"], row["messages"], row["partitions"]) == ("stream", "divided", 12, 3)
    found = [json.loads(line) for line in desk.say("tail", NAME, "--from", "first", "-n", "100", "--json").splitlines()]
    assert sorted(int(line["payload"]) for line in found) == list(range(12))
    assert sorted((line["partition"], line["offset"]) for line in found) == [
        (partition, offset) for partition in range(3) for offset in range(4)]
    one = [json.loads(line) for line in desk.say(
        "tail", NAME, "--from", "2", "--partition", "1", "--json").splitlines()]
    assert [(line["partition"], line["offset"]) for line in one] == [(1, 2), (1, 3)]
    client = reader(cluster, 1, x_stream_offset="first", x_consumer_group="g")
    assert sorted(bodies(client, 12)) == list(range(12))
    [group] = desk.asked("GET", "queues", NAME, "groups")["groups"]
    assert (group["name"], [member["client"] for member in group["members"]], len(group["positions"])) == (
        "g", [member["client"] for member in group["members"][:1]], 3)
    assert desk.rows()[NAME]["consumers"] == 1
    client.close()
    wait_until(lambda: [place["next"] for place in desk.asked("GET", "queues", NAME, "groups")["groups"][0][
        "positions"]] == [4, 4, 4])
    wait_until(lambda: not desk.asked("GET", "queues", NAME, "groups")["groups"][0]["members"])
    assert desk.json("seek", "--yes", NAME, "g", "first", "--partition", "1")["positions"] == [
        {"partition": at, "priority": 0, "next": place, "settled": place} for at, place in enumerate((4, 0, 4))]
    again = reader(cluster, 2, x_consumer_group="g")
    assert sorted(bodies(again, 4)) == sorted(int(line["payload"]) for line in found if line["partition"] == 1)
    again.close()
    wait_until(lambda: not desk.asked("GET", "queues", NAME, "groups")["groups"][0]["members"])
    desk.asked("DELETE", "queues", NAME, "groups", "g")
    assert not desk.asked("GET", "queues", NAME, "groups")["groups"]
    logs = desk.asked("GET", "queues", NAME, "logs", query={"position": "last"})
    assert (logs["type"], [(log["partition"], log["first"], log["next"], log["offset"]) for log in logs["logs"]]) == (
        "stream", [(at, 0, 4, 3) for at in range(3)])
    assert desk.say("purge", NAME, "--yes").endswith(f"are gone from {NAME}\n")
    assert desk.rows()[NAME]["messages"] == 0


@pytest.mark.soak       # simulator/cluster/test_divided_histories.py plays it
def test_partitions_move_and_a_node_that_is_killed_has_one(cluster: Cluster, desk: Desk) -> None:
    names = cluster.names
    put(desk, 0, 30)
    tail = [reader(cluster, number) for number in range(2)]
    past = [reader(cluster, number, x_stream_offset="first") for number in range(2)]
    assert [sorted(bodies(each, 30)) for each in past] == [list(range(30))] * 2
    first = places(desk)
    to = next(name for name in names if name != first[0])
    assert desk.say("move", NAME, to, "--partition", "0") == f"{NAME} partition 0 is at node {to}\n"
    put(desk, 30, 60)
    desk.say("move", NAME, names[1])
    assert places(desk) == [names[1]] * 3
    put(desk, 60, 90)
    for partition, name in enumerate(names):
        desk.say("move", NAME, name, "--partition", str(partition))
    assert places(desk) == list(names)
    assert [sorted(bodies(each, 60)) for each in (*tail, *past)] == [list(range(30, 90))] * 4
    cluster[2].kill()
    wait_until(lambda: next(entry for entry in desk.asked("GET", "queues")["queues"] if entry["name"] == NAME)[
        "state"] == "partly away", 30.0)
    put(desk, 90, 100)
    late = reader(cluster, 0, x_stream_offset="first")
    assert len(bodies(late, 70)) == 70
    assert [sorted(bodies(each, 10)) for each in (*tail, *past)] == [list(range(90, 100))] * 4
    cluster[2].start()
    assert len(bodies(late, 30)) == 30
    wait_until(lambda: desk.rows()[NAME]["state"] == "divided", 30.0)
    put(desk, 100, 130)
    assert [sorted(bodies(each, 30)) for each in (*tail, *past, late)] == [list(range(100, 130))] * 5
    for each in (*tail, *past, late):
        each.close()
