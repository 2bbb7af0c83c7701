"""Queues of AMQP clients whose publisher, owner and consumer are on three real nodes."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit.amqp_wire import Content, Refused, Wire, wire
from kit.cluster import Cluster

OWNER, PUBLISHER, CONSUMER = 0, 1, 2
KEPT = {"delivery_mode": 2}


class Parts:
    """Connections to the nodes of the owner, the publisher and the consumer, and a queue of the first."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.owner, self.publisher, self.consumer = (wire(cluster, number) for number in (OWNER, PUBLISHER, CONSUMER))
        # An exclusive queue is of its connection's node, others go to where there are fewest: a queue for each node.
        self.queues = [f"{name}-{number}" for number in range(3)]
        for queue in self.queues:
            self.owner.call(1, "queue.declare", queue=queue, durable=True)
        self.queue = self.queues[0]

    def confirm(self) -> None:
        self.publisher.call(1, "confirm.select")

    def publish(self, count: int, queue: str = "") -> None:
        """Publishes, and waits for the confirms."""
        for number in range(count):
            self.publisher.publish(1, "", queue or self.queue, b"%d" % number, KEPT)
        done = 0
        while done < count:
            done = self.publisher.expect(1, "basic.ack")["delivery_tag"]

    def close(self) -> None:
        for queue in self.queues:
            self.owner.call(1, "queue.delete", queue=queue)
        for each in (self.owner, self.publisher, self.consumer):
            each.close()


@pytest.fixture
def parts(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Parts]:
    made = Parts(cluster, request.node.name)
    yield made
    made.close()


def bodies(wire: Wire, count: int) -> list[Content]:
    return [wire.expect_content(1) for _ in range(count)]


@pytest.mark.parametrize("at", range(3))
def test_a_message_comes_from_one_node_over_a_second_to_a_third(parts: Parts, at: int) -> None:
    queue = parts.queues[at]            # of each node one
    parts.confirm()
    parts.consumer.call(1, "basic.qos", prefetch_count=10)
    parts.consumer.call(1, "basic.consume", queue=queue)
    parts.publish(50, queue)
    for number in range(50):
        got = parts.consumer.expect_content(1)
        assert got.body == b"%d" % number and not got.arguments["redelivered"]
        parts.consumer.send(1, "basic.ack", delivery_tag=got.arguments["delivery_tag"])
    assert parts.owner.call(1, "queue.declare", queue=queue, durable=True)["message_count"] == 0
    parts.consumer.call(1, "basic.cancel", consumer_tag=got.arguments["consumer_tag"])


@pytest.mark.parametrize("at", range(3))
def test_get_purge_and_counts_come_behind_what_was_published(parts: Parts, at: int) -> None:
    queue = parts.queues[at]
    one = parts.publisher
    one.publish(1, "", queue, b"first", KEPT)
    got = one.get(1, queue, no_ack=False)
    assert got is not None and got.body == b"first" and got.arguments["message_count"] == 0
    one.send(1, "basic.nack", delivery_tag=got.arguments["delivery_tag"], requeue=True)
    got = one.get(1, queue, no_ack=False)
    assert got is not None and got.arguments["redelivered"]
    one.send(1, "basic.ack", delivery_tag=got.arguments["delivery_tag"])
    assert one.get(1, queue) is None
    for _ in range(5):
        one.publish(1, "", queue, b"", KEPT)
    assert one.call(1, "queue.declare", queue=queue, passive=True)["message_count"] == 5
    with pytest.raises(Refused) as refused:
        one.call(1, "queue.delete", queue=queue, if_empty=True)
    assert refused.value.code == 406
    one.open_channel(1)
    assert one.call(1, "queue.purge", queue=queue)["message_count"] == 5


def test_an_exclusive_consumer_is_alone_in_the_whole_cluster(parts: Parts) -> None:
    parts.publisher.call(1, "basic.consume", queue=parts.queue, exclusive=True)
    with pytest.raises(Refused) as refused:
        parts.consumer.call(1, "basic.consume", queue=parts.queue)
    assert refused.value.code == 403
    parts.consumer.open_channel(1)


def test_a_full_queue_refuses_publishers_of_all_nodes(parts: Parts, cluster: Cluster) -> None:
    name = f"{parts.queue}-full"
    parts.owner.call(1, "queue.declare", queue=name, durable=True, arguments={
        "x-max-length": 3, "x-overflow": "reject-publish"})
    parts.queues.append(name)
    for each in (parts.owner, parts.publisher, parts.consumer):
        each.call(1, "confirm.select")
        outcomes = []
        for _ in range(2):
            each.publish(1, "", name, b"", KEPT)
            method, _ = each.next(1)
            outcomes.append(method)
        assert outcomes == (["basic.ack", "basic.ack"] if each is parts.owner else
                            ["basic.ack", "basic.nack"] if each is parts.publisher else ["basic.nack"] * 2)


def test_a_direct_reply_comes_from_another_node(parts: Parts) -> None:
    reply_to = "amq.rabbitmq.reply-to"
    parts.consumer.call(1, "basic.consume", queue=reply_to, no_ack=True)
    parts.consumer.publish(1, "", parts.queue, b"question", {"reply_to": reply_to})
    asked = None
    while asked is None:
        asked = parts.publisher.get(1, parts.queue)
    name = asked.properties["reply_to"]
    assert name != reply_to
    parts.publisher.call(1, "confirm.select")
    parts.publisher.publish(1, "", name, b"answer", mandatory=True)
    assert parts.publisher.next(1)[0] == "basic.ack"
    assert parts.consumer.expect_content(1).body == b"answer"


def test_a_transaction_with_one_owner_is_done_and_one_with_two_is_refused(parts: Parts) -> None:
    one = parts.publisher
    one.call(1, "tx.select")
    for number in range(3):
        one.publish(1, "", parts.queue, b"%d" % number, KEPT)
    assert parts.owner.call(1, "queue.declare", queue=parts.queue, passive=True)["message_count"] == 0
    one.call(1, "tx.commit")
    assert parts.owner.call(1, "queue.declare", queue=parts.queue, passive=True)["message_count"] == 3
    got = one.get(1, parts.queue, no_ack=False)
    assert got is not None
    one.send(1, "basic.ack", delivery_tag=got.arguments["delivery_tag"])
    one.publish(1, "", parts.queue, b"more", KEPT)
    one.call(1, "tx.commit")
    assert parts.owner.call(1, "queue.declare", queue=parts.queue, passive=True)["message_count"] == 3
    for queue in parts.queues:
        one.publish(1, "", queue, b"", KEPT)
    one.send(1, "tx.commit")
    assert "several nodes" in one.expect_close(540)
    for queue in parts.queues[1:]:
        assert parts.owner.call(1, "queue.declare", queue=queue, passive=True)["message_count"] == 0
    parts.publisher = wire(parts.cluster, PUBLISHER)
