"""Queues, exchanges and bindings of three real nodes, as AMQP clients see them on each."""
from __future__ import annotations

from typing import Any

import pytest
from kit.amqp_wire import Refused, wire
from kit.cluster import Cluster, fluxmq_json


def listed(cluster: Cluster, number: int) -> dict[str, dict[str, Any]]:
    """What a node says of queues, by name."""
    socket = str(cluster[number].directory / "data" / "admin.sock")
    said = fluxmq_json("queue", "list", "--socket", socket)
    return {queue["name"]: queue for queue in said["queues"]}


def at(cluster: Cluster, number: int, names: list[str]) -> list[str]:
    """Which of these queues a node has."""
    rows = listed(cluster, number)
    return [name for name in names if rows[name]["node"] == cluster.names[number]]


def test_what_one_declares_all_have(cluster: Cluster) -> None:
    one, two, three = (wire(cluster, number) for number in range(3))
    one.call(1, "queue.declare", queue="q", durable=True, arguments={"x-max-length": 1000})
    two.call(1, "queue.declare", queue="q", durable=True, arguments={"x-max-length": 1000})
    two.call(1, "exchange.declare", exchange="x", type="topic", durable=True)
    three.call(1, "queue.bind", queue="q", exchange="x", routing_key="a.#")
    one.call(1, "exchange.declare", exchange="x", type="topic", passive=True)
    with pytest.raises(Refused) as refused:
        three.call(1, "queue.declare", queue="q", durable=False)
    assert refused.value.code == 406
    one.call(1, "queue.delete", queue="q")
    with pytest.raises(Refused) as refused:
        two.call(1, "queue.declare", queue="q", passive=True)
    assert refused.value.code == 404
    for each in (one, two, three):
        each.close()


def test_two_declare_at_once(cluster: Cluster) -> None:
    wires = [wire(cluster, number) for number in range(3)]
    for round_ in range(20):
        for each in wires:
            each.send(1, "queue.declare", queue=f"q{round_}")
        for each in wires:
            each.expect(1, "queue.declare-ok")
    for each in wires:
        each.close()


def test_a_node_that_was_killed_has_its_queue_again(cluster: Cluster) -> None:
    """But not those that were deleted meanwhile, which needs no answer of it, unless there are conditions."""
    one = wire(cluster, 0)
    names = [f"kept{number}" for number in range(6)]        # each node gets as many
    for name in names:
        one.call(1, "queue.declare", queue=name, durable=True)
        one.call(1, "queue.bind", queue=name, exchange="amq.fanout")
    one.close()
    there = at(cluster, 1, names)
    gone, kept = there[0], there[1]
    cluster[1].kill()
    cluster.wait(lambda: "n1" not in cluster.nodes(0))
    one = wire(cluster, 0)
    with pytest.raises(Refused, match="which is away"):
        one.call(1, "queue.delete", queue=gone, if_empty=True)
    one.open_channel(1)
    one.call(1, "queue.delete", queue=gone)
    cluster[1].start()
    cluster.wait(cluster.everybody_serves)
    two = wire(cluster, 1)
    for name in names:
        if name != gone:
            two.call(1, "queue.declare", queue=name, durable=True)
    assert at(cluster, 1, [kept]) == [kept]
    with pytest.raises(Refused) as refused:
        two.call(1, "queue.declare", queue=gone, passive=True)
    assert refused.value.code == 404
    one.close()
    two.close()


def test_consumers_stay_while_their_owner_restarts(cluster: Cluster) -> None:
    """With what they hold, and what they have acknowledged meanwhile."""
    one = wire(cluster, 0)
    names = [f"stay{number}" for number in range(6)]        # each node gets as many
    one.call(1, "confirm.select")
    for name in names:
        one.call(1, "queue.declare", queue=name, durable=True)
        for number in range(4):
            one.publish(1, "", name, b"%d" % number, {"delivery_mode": 2})
            one.expect(1, "basic.ack")
    name, told, *_ = at(cluster, 1, names)
    two = wire(cluster, 2)
    two.call(1, "basic.qos", prefetch_count=3)
    two.call(1, "basic.consume", queue=name)
    got = [two.expect_content(1) for _ in range(3)]
    two.open_channel(2)
    two.call(2, "basic.consume", queue=told, consumer_tag="told", arguments={"x-cancel-on-ha-failover": True})
    cluster[1].kill()
    cluster.wait(lambda: "n1" not in cluster.nodes(0))
    assert two.expect(2, "basic.cancel")["consumer_tag"] == "told"
    two.send(1, "basic.ack", delivery_tag=got[0].arguments["delivery_tag"])
    cluster[1].start()
    cluster.wait(cluster.everybody_serves)
    last = two.expect_content(1)
    assert last.body == b"3" and not last.arguments["redelivered"]
    two.send(1, "basic.ack", delivery_tag=0, multiple=True)
    assert two.nothing_waits(1)
    cluster.wait(lambda: one.call(1, "queue.declare", queue=name, passive=True) == {
        "queue": name, "message_count": 0, "consumer_count": 1})
    two.close()
    for name in names:
        one.call(1, "queue.delete", queue=name)
    one.close()


def test_an_exclusive_queue_is_locked_elsewhere_and_ends_with_its_connection(cluster: Cluster) -> None:
    one, two = wire(cluster, 0), wire(cluster, 1)
    name = one.call(1, "queue.declare", exclusive=True)["queue"]
    with pytest.raises(Refused) as refused:
        two.call(1, "queue.declare", queue=name, passive=True)
    assert refused.value.code == 405
    one.close()

    def gone() -> bool:
        two.open_channel(2)
        try:
            two.call(2, "queue.declare", queue=name, passive=True)
        except Refused as refused:
            return refused.code == 404
        raise AssertionError("the queue of another connection was found")

    cluster.wait(gone)
    two.close()


def test_the_list_of_queues_says_where_they_are(cluster: Cluster) -> None:
    one = wire(cluster, 0)
    names = [f"listed{number}" for number in range(3)]
    one.call(1, "confirm.select")
    for name in names:
        one.call(1, "queue.declare", queue=name, durable=True)
        one.publish(1, "", name, b"x")
        one.expect(1, "basic.ack")
    rows = {}
    for number, node in enumerate(cluster.names):
        for name, queue in listed(cluster, number).items():
            rows[name, node] = queue["node"], queue["state"], queue["messages"]
    for name in names:
        where = {rows[name, node][0] for node in cluster.names}
        assert len(where) == 1
        for node in cluster.names:
            assert rows[name, node][1:] == ("running", 1)
    for name in names:
        one.call(1, "queue.delete", queue=name)
    one.close()
