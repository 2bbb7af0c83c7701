"""Deliveries and what becomes of them, with every library: ack, nack, reject, recover, prefetch, redelivery."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from amqp091.clients.base import Channel, Connection
from kit.watch import wait_until

Name = Callable[[str], str]
Connect = Callable[..., Connection]


def fill(channel: Channel, count: int) -> str:
    """A queue with messages 0, 1, ….."""
    queue = channel.queue_declare(exclusive=True).name
    for number in range(count):
        channel.publish("", queue, b"%d" % number)
    return queue


def bodies(messages: list) -> list[int]:
    return [int(message.body) for message in messages]


# ── get ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_get(channel: Channel, name: Name) -> None:
    """basic.get takes one, says how many are left, and says when there is none."""
    queue = fill(channel, 3)
    messages = [channel.get(queue) for _ in range(4)]
    assert messages[3] is None
    found = [(message.body, message.waiting, message.redelivered, message.key) for message in messages if message]
    assert found == [(b"0", 2, False, queue), (b"1", 1, False, queue), (b"2", 0, False, queue)]


def test_get_with_ack(connection: Connection, name: Name) -> None:
    """What was got and not acknowledged is held by the channel, and comes back when that closes."""
    channel, other = connection.channel(), connection.channel()
    queue = fill(channel, 2)
    assert [channel.get(queue, no_ack=False).tag for _ in range(2)] == [1, 2]      # type: ignore[union-attr]
    assert channel.get(queue) is None
    channel.ack(1)
    channel.close()
    again = other.get(queue)
    assert again is not None and (again.body, again.redelivered) == (b"1", True)


# ── ack, nack, reject ────────────────────────────────────────────────────────────────────────────────────────────────


def test_delivery_tags_belong_to_the_channel(connection: Connection, name: Name) -> None:
    """Each channel counts its deliveries from 1, by itself."""
    one, two = connection.channel(), connection.channel()
    queue = fill(one, 4)
    first = [one.get(queue, no_ack=False), one.get(queue, no_ack=False)]
    second = [two.get(queue, no_ack=False), two.get(queue, no_ack=False)]
    assert [message.tag for message in first + second if message] == [1, 2, 1, 2]
    two.ack(1)
    one.ack(2)
    one.close()
    two.close()
    assert connection.channel().get_all(queue) == [b"0", b"3"]


@pytest.mark.parametrize("settle", ["ack", "reject", "nack"])
def test_an_unknown_delivery_tag(connection: Connection, client, name: Name, settle: str) -> None:
    """406, with the tag in the text; the connection lives."""
    if settle in client.lacks:
        pytest.skip("py-amqp has no nack")
    channel = connection.channel()
    getattr(channel, settle)(7)
    refused = channel.closed()
    assert refused.code == 406 and "unknown delivery tag 7" in refused.text
    assert connection.channel().queue_declare(exclusive=True).messages == 0


@pytest.mark.needs("double_ack")
def test_an_ack_twice(connection: Connection, name: Name) -> None:
    """The second ack of a delivery is one of an unknown tag; so is an ack of what was delivered without."""
    channel = connection.channel()
    queue = fill(channel, 1)
    message = channel.get(queue, no_ack=False)
    assert message is not None
    channel.ack(message.tag)
    channel.ack(message.tag)
    assert "unknown delivery tag 1" in channel.closed().text
    channel = connection.channel()
    channel.publish("", queue, b"x")
    assert channel.get(queue, no_ack=True) is not None
    channel.ack(1)
    assert channel.closed().code == 406


def test_ack_multiple(connection: Connection, name: Name) -> None:
    """`multiple` settles everything up to the tag that is not settled yet."""
    channel = connection.channel()
    queue = fill(channel, 5)
    channel.consume(queue)
    messages = channel.receive_all(5)
    channel.ack(messages[1].tag)
    channel.ack(messages[3].tag, multiple=True)
    channel.close()
    assert connection.channel().get_all(queue) == [b"4"]


@pytest.mark.needs("nack")
@pytest.mark.parametrize("requeue", [True, False])
def test_nack_multiple(connection: Connection, name: Name, requeue: bool) -> None:
    """The same for a nack: all of them again in their places, or gone."""
    channel = connection.channel()
    queue = fill(channel, 4)
    channel.qos(3)
    tag = channel.consume(queue, tag="c")
    messages = channel.receive_all(3)
    channel.cancel(tag)
    channel.nack(messages[1].tag, multiple=True, requeue=requeue)
    channel.ack(messages[2].tag)
    assert channel.get_all(queue) == ([b"0", b"1", b"3"] if requeue else [b"3"])


@pytest.mark.parametrize("settle", ["reject", "nack"])
def test_requeue_is_in_place_and_redelivered(channel: Channel, client, name: Name, settle: str) -> None:
    """What is given back is where it was, before what came later, and says redelivered."""
    if settle in client.lacks:
        pytest.skip("py-amqp has no nack")
    queue = fill(channel, 3)
    first = channel.get(queue, no_ack=False)
    assert first is not None
    getattr(channel, settle)(first.tag, requeue=True)
    found = [channel.get(queue) for _ in range(3)]
    assert [(message.body, message.redelivered) for message in found if message] == \
        [(b"0", True), (b"1", False), (b"2", False)]


def test_requeue_again_and_again(channel: Channel, name: Name) -> None:
    """No limit of deliveries unless the queue has one."""
    queue = fill(channel, 1)
    channel.consume(queue)
    for number in range(30):
        message = channel.receive()
        assert message.redelivered is (number > 0)
        channel.reject(message.tag, requeue=True)
    channel.ack(channel.receive().tag)
    assert channel.queue_declare(queue, passive=True).messages == 0


def test_reject_without_requeue_drops(channel: Channel, name: Name) -> None:
    """Rejected for good, without a dead-letter exchange: gone."""
    queue = fill(channel, 2)
    message = channel.get(queue, no_ack=False)
    assert message is not None
    channel.reject(message.tag, requeue=False)
    assert channel.get_all(queue) == [b"1"]


def test_what_a_closed_channel_held_comes_back_in_order(connection: Connection, name: Name) -> None:
    """All that was not settled is where it was, in its order, before what nobody had yet."""
    holder, reader = connection.channel(), connection.channel()
    queue = fill(reader, 10)
    holder.qos(6)
    holder.consume(queue)
    held = holder.receive_all(6)
    holder.ack(held[2].tag)
    holder.close()
    found = [reader.get(queue) for _ in range(9)]
    assert bodies(found) == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    # message 6 may have been delivered for the one that was acknowledged, or not yet
    redelivered = [message.redelivered for message in found if message]
    assert redelivered[:5] == [True] * 5 and redelivered[6:] == [False] * 3


def test_cancel_keeps_what_is_held(channel: Channel, name: Name) -> None:
    """A consumer that is cancelled gets no more; what it had can still be acknowledged."""
    queue = fill(channel, 3)
    channel.qos(2)
    tag = channel.consume(queue, tag="c")
    held = channel.receive_all(2)
    channel.cancel(tag)
    channel.ack(held[0].tag)
    channel.reject(held[1].tag, requeue=True)
    assert channel.get_all(queue) == [b"1", b"2"]


def test_recover(channel: Channel, name: Name) -> None:
    """basic.recover gives back all that the channel holds; its consumer gets it again, as redelivered."""
    queue = fill(channel, 3)
    channel.consume(queue)
    held = channel.receive_all(3)
    channel.ack(held[1].tag)
    channel.recover()
    again = channel.receive_all(2)
    assert bodies(again) == [0, 2] and all(message.redelivered for message in again)
    assert [message.tag for message in again] == [4, 5]


# ── prefetch ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_prefetch_of_each_consumer(connection: Connection, name: Name) -> None:
    """Without `global`, the count is for each consumer that begins after it."""
    channel, other = connection.channel(), connection.channel()
    queue = fill(channel, 10)
    channel.qos(2)
    channel.consume(queue, tag="two")
    channel.qos(3)
    channel.consume(queue, tag="three")
    messages = channel.receive_all(5)
    assert sorted(message.consumer for message in messages) == ["three"] * 3 + ["two"] * 2
    assert other.queue_declare(queue, passive=True).messages == 5
    mine = next(message for message in messages if message.consumer == "two")
    channel.ack(mine.tag)
    assert channel.receive().consumer == "two"


def test_prefetch_of_the_channel(connection: Connection, name: Name) -> None:
    """With `global`, the count is for all consumers of the channel together, also those that are there already."""
    channel, other = connection.channel(), connection.channel()
    queue = fill(channel, 10)
    channel.qos(3, everybody=True)
    channel.consume(queue, tag="one")
    channel.consume(queue, tag="another")
    messages = channel.receive_all(3)
    assert other.queue_declare(queue, passive=True).messages == 7
    channel.ack(messages[-1].tag, multiple=True)
    channel.receive_all(3)
    assert other.queue_declare(queue, passive=True).messages == 4


def test_prefetch_of_the_channel_is_for_all_of_its_queues(connection: Connection, name: Name) -> None:
    """They take turns: a queue with a backlog does not keep the others waiting."""
    channel = connection.channel()
    queues = [fill(channel, 100) for _ in range(3)]
    channel.qos(1, everybody=True)
    for queue in queues:
        channel.consume(queue)
    got = []
    for _ in range(100):
        [message] = channel.receive_all(1)
        got.append(message.key)
        channel.ack(message.tag)
    assert min(got.count(queue) for queue in queues) > 15      # RabbitMQ: by chance


def test_prefetch_of_the_channel_with_a_queue_that_is_empty(connection: Connection, name: Name) -> None:
    """Its turn goes to the others."""
    channel = connection.channel()
    queues = [fill(channel, count) for count in (0, 20, 3)]
    channel.qos(1, everybody=True)
    for queue in queues:
        channel.consume(queue)
    got = []
    for _ in range(23):
        [message] = channel.receive_all(1)
        got.append(message.key)
        channel.ack(message.tag)
    assert [got.count(queue) for queue in queues] == [0, 20, 3]


def test_prefetch_does_not_bind_who_needs_no_ack(connection: Connection, name: Name) -> None:
    """A consumer without acknowledgements gets everything at once."""
    channel = connection.channel()
    queue = fill(channel, 10)
    channel.qos(1)
    channel.consume(queue, no_ack=True)
    assert bodies(channel.receive_all(10)) == list(range(10))


def test_prefetch_zero_is_no_limit(connection: Connection, name: Name) -> None:
    """Everything is delivered, and acknowledged at once at the end."""
    channel, other = connection.channel(), connection.channel()
    queue = fill(channel, 200)
    channel.qos(0)
    channel.consume(queue)
    messages = channel.receive_all(200)
    assert bodies(messages) == list(range(200))
    channel.ack(messages[-1].tag, multiple=True)
    wait_until(lambda: other.queue_declare(queue, passive=True).messages == 0)
    channel.close()
    assert other.get(queue) is None


def test_a_broken_connection_gives_back_at_once(connect: Connect, name: Name) -> None:
    """Not after some timeout: the other consumer has it when the broker sees the end of the first."""
    victim, other = connect(), connect().channel()
    other.queue_declare(name("q"))
    other.publish("", name("q"), b"x")
    channel = victim.channel()
    channel.consume(name("q"))
    assert channel.receive().redelivered is False
    victim.dropped = True
    victim.drop()
    other.consume(name("q"))
    message = other.receive()
    assert message.redelivered is True
    other.ack(message.tag)
    assert other.queue_delete(name("q")) == 0
