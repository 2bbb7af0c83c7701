"""`fluxmq queue move` on three real nodes, with publishers and consumers of AMQP, and messages in segments."""
from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster.test_operations import HERE, OWNER, THIRD, Desk, drop, queue_of
from kit.amqp_wire import Content, Wire, wire
from kit.cluster import Cluster

from fluxmq.app.admin_client import AdminError

COUNT = 2000


def test_a_queue_moves_with_all_that_is_in_it(cluster: Cluster) -> None:
    """The command is given at a node that has the queue neither before nor afterwards."""
    name, desk = queue_of(cluster, "moving"), Desk(cluster, HERE)
    publisher = wire(cluster, HERE)
    publisher.call(1, "confirm.select")
    holders = [wire(cluster, number) for number in range(3)]
    for number, holder in enumerate(holders):
        holder.call(1, "basic.qos", prefetch_count=10)
        holder.call(1, "basic.consume", queue=name, consumer_tag=f"c{number}")
    sent = 0

    def publish(count: int) -> None:
        nonlocal sent
        confirmed = sent
        for _ in range(count):
            publisher.publish(1, "", name, b"%05d" % sent)
            sent += 1
        while confirmed < sent:
            confirmed = publisher.expect(1, "basic.ack")["delivery_tag"]

    publish(COUNT)
    held: list[list[Content]] = [[holder.expect_content(1) for _ in range(10)] for holder in holders]
    for to in (THIRD, HERE, OWNER):
        assert desk.say("move", name, cluster.names[to]) == f"{name} is at node {cluster.names[to]}\n"
        row = desk.rows()[name]
        assert (row["node"], row["state"]) == (cluster.names[to], "running")
        publish(50)
    got = Counter(bytes(content.body) for of_one in held for content in of_one)
    assert set(got.values()) == {1}
    publisher.close()
    for holder, of_one in zip(holders, held, strict=True):
        holder.send(1, "basic.ack", delivery_tag=of_one[-1].arguments["delivery_tag"], multiple=True)
    last = holders[0]
    for holder in holders[1:]:
        holder.close()
    while len(got) < sent:
        content = last.expect_content(1)
        got[bytes(content.body)] += not content.arguments["redelivered"]
        last.send(1, "basic.ack", delivery_tag=content.arguments["delivery_tag"], multiple=False)
    assert set(got) == {b"%05d" % number for number in range(sent)}
    assert max(got.values()) == 1
    last.close()


def test_a_stream_moves_under_its_readers(cluster: Cluster) -> None:
    """On each node one at the tail, and one that begins with the first message after each move."""
    name, desk = queue_of(cluster, "flowing", "stream"), Desk(cluster, HERE)
    publisher = wire(cluster, THIRD)
    publisher.call(1, "confirm.select")
    sent = confirmed = 0

    def publish(count: int) -> None:
        nonlocal sent, confirmed
        for _ in range(count):
            publisher.publish(1, "", name, b"%05d" % sent)
            sent += 1
        while confirmed < sent:
            confirmed = publisher.expect(1, "basic.ack")["delivery_tag"]

    def reader(number: int, offset: str) -> Wire:
        found = wire(cluster, number)
        found.call(1, "basic.qos", prefetch_count=100)
        found.call(1, "basic.consume", queue=name, consumer_tag="c", arguments={"x-stream-offset": offset})
        return found

    def read(one: Wire, first: int, behind: int) -> None:
        for number in range(first, behind):
            content = one.expect_content(1, "basic.deliver")
            assert content.body == b"%05d" % number
            one.send(1, "basic.ack", delivery_tag=content.arguments["delivery_tag"], multiple=False)

    publish(COUNT)
    tail = [reader(number, "next") for number in range(3)]
    for to in (THIRD, HERE, OWNER):
        past = [reader(number, "first") for number in range(3)]
        for one in past:
            read(one, 0, 50)
        assert desk.say("move", name, cluster.names[to]) == f"{name} is at node {cluster.names[to]}\n"
        assert desk.rows()[name]["node"] == cluster.names[to]
        before = sent
        publish(50)
        for one in past:
            read(one, 50, sent)
            one.close()
        for one in tail:
            read(one, before, sent)
    for one in (*tail, publisher):
        one.close()


def test_a_queue_in_memory_moves(cluster: Cluster) -> None:
    name, desk = queue_of(cluster, "airy", "ephemeral"), Desk(cluster, HERE)
    client = wire(cluster, OWNER)
    client.call(1, "confirm.select")
    for number in range(100):
        client.publish(1, "", name, b"%d" % number)
    client.expect(1, "basic.ack")
    assert desk.say("move", name, cluster.names[THIRD]) == f"{name} is at node {cluster.names[THIRD]}\n"
    client.call(1, "basic.consume", queue=name, consumer_tag="c", no_ack=True)
    assert [client.expect_content(1).body for _ in range(100)] == [b"%d" % number for number in range(100)]
    client.close()


def test_what_cannot_move_says_why(cluster: Cluster) -> None:
    desk, client = Desk(cluster, HERE), wire(cluster, HERE)
    client.call(1, "queue.declare", queue="staying", exclusive=True)
    for name, target, why in (("staying", cluster.names[THIRD], "it is exclusive to a connection of its node"),
                              ("staying", "nobody", "does not serve")):
        with pytest.raises(AdminError, match=why):
            desk.asked("POST", "queues", name, "move", body={"node": target})
    client.close()


@pytest.mark.soak       # simulator/cluster/test_queue_moves.py plays it
def test_an_operator_is_told_which_queue_stays_where_when_a_node_dies(cluster: Cluster) -> None:
    """The new owner stands still, so that the move is under way when the old one is killed, and then the new one."""
    name, desk = queue_of(cluster, "unlucky"), Desk(cluster, HERE)
    desk.say("publish", name, "kept")
    owner, third = cluster.names[OWNER], cluster.names[THIRD]

    def told(victim: int, number: int) -> str:
        """What `move` says, given at node `number`, when a node dies meanwhile."""
        cluster.pause(THIRD)
        with ThreadPoolExecutor(1) as pool:
            said = pool.submit(Desk(cluster, number).say, "move", name, third)
            cluster.wait(lambda: "a queue begins to move" in cluster[OWNER].stderr(begun))
            cluster[victim].kill()
            if victim != THIRD:
                cluster.resume(THIRD)
            return said.result()

    begun = cluster[OWNER].stderr_size()
    said = told(OWNER, HERE)
    assert f"queue {name} has not moved to node {third}: node {owner}, which has it, has failed" in said
    assert f"start node {owner}, and repeat the command" in said
    cluster[OWNER].start()
    cluster.wait(cluster.everybody_serves)
    begun = cluster[OWNER].stderr_size()
    said = told(OWNER, OWNER)
    assert f"{name} was to move to node {third}, and may be there or where it was" in said
    assert f"fluxmq queue describe {name}" in said
    cluster[OWNER].start()
    cluster.wait(cluster.everybody_serves)
    begun = cluster[OWNER].stderr_size()
    assert f"queue {name} stays at node {owner}: node {third} has not taken it" in told(THIRD, HERE)
    cluster._paused.discard(THIRD)
    cluster[THIRD].start()
    cluster.wait(cluster.everybody_serves)
    assert desk.say("move", name, third) == f"{name} is at node {third}\n"
    cluster.wait(lambda: desk.asked("GET", "queues", name)["messages"] == 1)
    drop(cluster, name)
