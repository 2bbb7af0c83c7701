"""Transactions, with every library that has them: publishes and acknowledgements happen at the commit, or not at
all."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from amqp091.clients.base import AmqpError, Connection
from kit.amqp_wire import Wire

Name = Callable[[str], str]
Connect = Callable[..., Connection]

pytestmark = pytest.mark.needs("tx")


def test_commit(connection: Connection, name: Name) -> None:
    """Nobody sees what is published before the commit; then all of it, in order."""
    channel, other = connection.channel(), connection.channel()
    queue = other.queue_declare(exclusive=True).name
    channel.tx_select()
    for number in range(3):
        channel.publish("", queue, b"%d" % number)
    assert other.get(queue) is None
    channel.tx_commit()
    assert other.get_all(queue) == [b"0", b"1", b"2"]


def test_rollback(connection: Connection, name: Name) -> None:
    """What was published is forgotten; the next transaction begins at once."""
    channel, other = connection.channel(), connection.channel()
    queue = other.queue_declare(exclusive=True).name
    channel.tx_select()
    channel.publish("", queue, b"forgotten")
    channel.tx_rollback()
    channel.publish("", queue, b"kept")
    channel.tx_commit()
    assert other.get_all(queue) == [b"kept"]


@pytest.mark.parametrize("how", ["close", "drop"])
def test_the_end_of_a_channel_rolls_back(connect: Connect, name: Name, how: str) -> None:
    """Whether the channel is closed or the connection breaks."""
    doomed, other = connect(), connect().channel()
    other.queue_declare(name("q"))
    channel = doomed.channel()
    channel.tx_select()
    other.publish("", name("q"), b"acknowledged in vain")
    held = None
    while held is None:
        held = channel.get(name("q"), no_ack=False)
    channel.ack(held.tag)
    channel.publish("", name("q"), b"never committed")
    if how == "close":
        channel.close()
    else:
        doomed.dropped = True
        doomed.drop()
    other.consume(name("q"), no_ack=True)
    message = other.receive()
    assert (message.body, message.redelivered) == (b"acknowledged in vain", True)
    assert other.queue_delete(name("q")) == 0


def test_acknowledgements_are_part_of_it(connection: Connection, name: Name) -> None:
    """An ack counts from the commit on; after a rollback the message is still held, and can be settled again."""
    channel, other = connection.channel(), connection.channel()
    queue = other.queue_declare(exclusive=True).name
    for number in range(3):
        other.publish("", queue, b"%d" % number)
    other.queue_declare(queue, passive=True)
    channel.tx_select()
    channel.consume(queue)
    held = channel.receive_all(3)
    channel.ack(held[0].tag)
    channel.tx_commit()
    channel.ack(held[1].tag)
    channel.tx_rollback()
    channel.ack(held[2].tag)
    channel.ack(held[1].tag)
    channel.tx_rollback()
    channel.close()
    assert other.get_all(queue) == [b"1", b"2"]


def test_a_rejection_is_part_of_it_too(connection: Connection, name: Name) -> None:
    """Requeueing waits for the commit."""
    channel, other = connection.channel(), connection.channel()
    queue = other.queue_declare(exclusive=True).name
    other.publish("", queue, b"x")
    channel.tx_select()
    channel.consume(queue, tag="c")
    message = channel.receive()
    channel.cancel("c")
    channel.reject(message.tag, requeue=True)
    assert other.get(queue) is None
    channel.tx_commit()
    again = other.get(queue)
    assert again is not None and again.redelivered


def test_commit_needs_select(connection: Connection, name: Name) -> None:
    """406 for a commit on a channel that is not transactional."""
    with pytest.raises(AmqpError) as refused:
        connection.channel().tx_commit()
    assert refused.value.code == 406


def test_a_large_transaction(connection: Connection, name: Name) -> None:
    """Many messages, to several queues, at once."""
    channel = connection.channel()
    queues = [channel.queue_declare(exclusive=True).name for _ in range(3)]
    channel.tx_select()
    for number in range(600):
        channel.publish("", queues[number % 3], b"%d" % number, {"delivery_mode": 2})
    channel.tx_commit()
    assert [channel.get_all(queue) for queue in queues] == [[b"%d" % number for number in range(first, 600, 3)]
                                                            for first in range(3)]


def test_returns_come_at_the_commit(wire: Wire) -> None:
    """What is `mandatory` and goes nowhere comes back before commit-ok, not before the commit."""
    wire.call(1, "tx.select")
    wire.publish(1, "", "nowhere", b"x", mandatory=True)
    assert wire.nothing_waits()
    wire.call(1, "tx.commit")
    returned = wire.expect_content(1, "basic.return")
    assert (returned.reply_code, returned.reply_text, returned.body) == (312, "NO_ROUTE", b"x")


def test_an_unknown_exchange_is_noticed(wire: Wire) -> None:
    """404, at the commit at the latest (RabbitMQ: when it is published), and nothing of the transaction happens."""
    queue = wire.call(1, "queue.declare", exclusive=True)["queue"]
    wire.call(1, "tx.select")
    wire.publish(1, "", queue, b"not to be seen")
    wire.publish(1, "missing-in-tx", "k", b"x")
    wire.send(1, "tx.commit")
    assert wire.expect_refusal(1).code == 404
    wire.open_channel(1)
    assert wire.get(1, queue) is None


def test_select_twice_is_once(wire: Wire) -> None:
    """tx.select on a channel that is transactional already does nothing."""
    queue = wire.call(1, "queue.declare", exclusive=True)["queue"]
    wire.call(1, "tx.select")
    wire.publish(1, "", queue, b"x")
    wire.call(1, "tx.select")
    wire.call(1, "tx.commit")
    message = wire.get(1, queue)
    assert message is not None and message.body == b"x"
