"""A stream of three real nodes, read by AMQP clients on each."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.test_shared_queues import at
from kit.amqp_wire import Refused, Wire, wire
from kit.cluster import Cluster

COUNT = 300


@pytest.fixture
def wires(cluster: Cluster) -> Iterator[list[Wire]]:
    """A connection to each node; the stream `s` is at one of them."""
    found = [wire(cluster, number) for number in range(3)]
    found[0].call(1, "queue.declare", queue="s", durable=True, arguments={"x-queue-type": "stream"})
    for each in found:
        each.call(1, "confirm.select")
    yield found
    last = wire(cluster, 0)
    last.call(1, "queue.delete", queue="s")
    for each in [*found, last]:
        each.close()


def fill(wires: list[Wire], first: int, behind: int) -> None:
    """Each message is confirmed before the next one is published, on another node."""
    for number in range(first, behind):
        wires[number % 3].publish(1, "", "s", b"%d" % number)
        wires[number % 3].expect(1, "basic.ack")


def reader(cluster: Cluster, number: int, **arguments: object) -> Wire:
    found = wire(cluster, number)
    found.call(1, "basic.qos", prefetch_count=100)
    found.call(1, "basic.consume", queue="s", consumer_tag="c", arguments=arguments)
    return found


def bodies(wire: Wire, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        delivery = wire.expect_content(1, "basic.deliver")
        found.append(delivery.body)
        wire.send(1, "basic.ack", delivery_tag=delivery.arguments["delivery_tag"])
    return found


def test_each_node_reads_all_of_it_in_order(cluster: Cluster, wires: list[Wire]) -> None:
    fill(wires, 0, COUNT)
    readers = [reader(cluster, number, **{"x-stream-offset": "first"}) for number in range(3)]
    fresh = [reader(cluster, number) for number in range(3)]
    fill(wires, COUNT, COUNT + 30)
    for each in readers:
        assert bodies(each, COUNT + 30) == [b"%d" % number for number in range(COUNT + 30)]
    for each in fresh:
        assert bodies(each, 30) == [b"%d" % number for number in range(COUNT, COUNT + 30)]
    assert wires[0].call(1, "queue.declare", queue="s", passive=True) == {
        "queue": "s", "message_count": COUNT + 30, "consumer_count": 6}
    for each in [*readers, *fresh]:
        each.call(1, "basic.cancel", consumer_tag="c")
        each.close()
    cluster.wait(lambda: wires[1].call(1, "queue.declare", queue="s", passive=True)["consumer_count"] == 0)


def test_a_group_goes_on_at_another_node(cluster: Cluster, wires: list[Wire]) -> None:
    fill(wires, 0, 30)
    at = 0
    for number in range(3):
        one = reader(cluster, number, **{"x-consumer-group": "g", **({} if at else {"x-stream-offset": "first"})})
        assert bodies(one, 10) == [b"%d" % each for each in range(at, at + 10)]
        at += 10
        one.close()
        # The owner is asked behind what the reader's node has told it: the next reader is on another one.
        wires[number].call(1, "queue.declare", queue="s", passive=True)
    last = reader(cluster, 1, **{"x-consumer-group": "g"})
    assert not last.ready(0.2)
    last.close()


def test_what_makes_no_sense_is_refused_on_each_node(cluster: Cluster, wires: list[Wire]) -> None:
    for number, each in enumerate(wires):
        with pytest.raises(Refused) as refused:
            each.call(1, "basic.consume", queue="s", arguments={"x-stream-offset": "sometime"})
        assert refused.value.code == 406
        other = wire(cluster, number)
        with pytest.raises(Refused) as refused:
            other.send(1, "basic.get", queue="s")
            other.expect(1, "basic.get-empty")
        assert refused.value.code == 540


def test_readers_of_a_killed_owner_read_on_when_it_is_back(cluster: Cluster) -> None:
    one = wire(cluster, 0)
    names = [f"s{number}" for number in range(6)]           # each node gets as many
    for name in names:
        one.call(1, "queue.declare", queue=name, durable=True, arguments={"x-queue-type": "stream"})
        one.publish(1, "", name, name.encode())
    away = at(cluster, 1, names)
    assert len(away) == 2
    readers = [wire(cluster, 0), wire(cluster, 2)]
    for each in readers:
        for channel, name in enumerate(names, 2):
            each.open_channel(channel)
            each.call(channel, "basic.qos", prefetch_count=10)
            each.call(channel, "basic.consume", queue=name, consumer_tag=name,
                      arguments={"x-stream-offset": "first"})
            assert each.expect_content(channel, "basic.deliver").body == name.encode()
    cluster[1].kill()
    cluster.wait(lambda: "n1" not in cluster.nodes(0))
    cluster[1].start()
    cluster.wait(cluster.everybody_serves)
    for name in away:
        one.publish(1, "", name, b"new")
    for each in readers:
        for name in away:
            assert each.expect_content(names.index(name) + 2, "basic.deliver").body == b"new"
            assert each.nothing_waits(names.index(name) + 2)        # no basic.cancel either
        each.close()
    for name in names:
        one.call(1, "queue.delete", queue=name)
    one.close()
