"""Queues as AMQP declares them, with every library."""
from __future__ import annotations

import re
from collections.abc import Callable
from time import sleep
from typing import Any

import pytest
from amqp091.clients.base import AmqpError, Channel, Connection, refused
from kit.watch import wait_until

Name = Callable[[str], str]
Connect = Callable[..., Connection]


def exists(connection: Connection, queue: str) -> bool:
    try:
        connection.channel().queue_declare(queue, passive=True)
    except AmqpError as error:
        assert error.code == 404, error
        return False
    return True


# ── declaring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_counts_are_true(connect: Connect, name: Name) -> None:
    """queue.declare says how many messages are ready and how many consumers there are."""
    channel, other = connect().channel(confirms=True), connect().channel()
    assert channel.queue_declare(name("q"), auto_delete=True)[1:] == (0, 0)
    for _ in range(5):
        channel.publish("", name("q"), b"x")
    assert channel.queue_declare(name("q"), auto_delete=True)[1:] == (5, 0)
    other.qos(2)
    other.consume(name("q"))
    held = other.receive_all(2)
    assert channel.queue_declare(name("q"), passive=True)[1:] == (3, 1)
    other.ack(held[-1].tag, multiple=True)
    other.receive_all(2)
    wait_until(lambda: channel.queue_declare(name("q"), passive=True)[1:] == (1, 1))


def test_server_named(connection: Connection) -> None:
    """A queue declared without a name gets one from the broker, new each time, which begins with amq.gen-."""
    channel = connection.channel()
    names = {channel.queue_declare(exclusive=True).name for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", name) for name in names)


@pytest.mark.needs("amq_names")
def test_names_that_begin_with_amq_are_the_brokers(connection: Connection) -> None:
    """403 for who wants one for a queue or an exchange."""
    assert "amq." in refused(403, connection.channel().queue_declare, "amq.mine")
    assert "amq." in refused(403, connection.channel().exchange_declare, "amq.mine")


def test_passive_declare(connection: Connection, name: Name) -> None:
    """404 when it is not there, the counts when it is; flags and arguments are not looked at."""
    assert f"no queue '{name('q')}' in vhost '/'" in refused(404, connection.channel().queue_declare, name("q"),
                                                             passive=True)
    channel = connection.channel()
    channel.queue_declare(name("q"), exclusive=True, arguments={"x-max-length": 7})
    assert channel.queue_declare(name("q"), passive=True, durable=True) == (name("q"), 0, 0)


@pytest.mark.parametrize(("first", "second", "word"), [
    ({"durable": True}, {"durable": False}, "durable"),
    ({"auto_delete": True}, {"auto_delete": False}, "auto_delete"),
    ({"arguments": {"x-message-ttl": 1000}}, {"arguments": {"x-message-ttl": 2000}}, "x-message-ttl"),
    ({"arguments": {"x-message-ttl": 1000}}, {}, "x-message-ttl"),
    ({}, {"arguments": {"x-max-length": 10}}, "x-max-length"),
    ({"arguments": {"x-dead-letter-exchange": "a"}}, {"arguments": {"x-dead-letter-exchange": "b"}},
     "x-dead-letter-exchange"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_declaring_again_otherwise(connection: Connection, name: Name, first: dict[str, Any], second: dict[str, Any],
                                   word: str) -> None:
    """Two programs that disagree about a queue hear of it: 406, with the argument at fault in the text."""
    channel = connection.channel()
    channel.queue_declare(name("q"), **first)
    channel.queue_declare(name("q"), **first)
    text = refused(406, channel.queue_declare, name("q"), **second)
    assert f"inequivalent arg '{word}' for queue '{name('q')}' in vhost '/'" in text
    connection.channel().queue_delete(name("q"))


@pytest.mark.parametrize("arguments", [
    {"x-message-ttl": -1}, {"x-message-ttl": "1000"}, {"x-expires": 0}, {"x-max-length": -1}, {"x-max-priority": 256},
    {"x-overflow": "overboard"}, {"x-dead-letter-routing-key": "k"}, {"x-dead-letter-exchange": 7},
    {"x-single-active-consumer": "yes"}, {"x-queue-type": "swimming-pool"},
], ids=str)
def test_arguments_that_make_no_sense(connection: Connection, name: Name, arguments: dict[str, Any]) -> None:
    """406 at the declaration, not a queue that does something else."""
    refused(406, connection.channel().queue_declare, name("q"), durable=True, arguments=arguments)
    assert not exists(connection, name("q"))


@pytest.mark.parametrize("arguments", [{"x-queue-mode": "lazy"}, {"x-unheard-of": "x"}, {"x-queue-type": "classic"},
                                       {"x-max-priority": 255}, {"x-queue-version": 2}], ids=str)
def test_arguments_that_are_taken(connection: Connection, name: Name, arguments: dict[str, Any]) -> None:
    """Arguments that RabbitMQ knows and FluxMQ needs not, and those that nobody knows, are no reason to refuse."""
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True, arguments=arguments).name
    channel.publish("", queue, b"x")
    assert channel.get_all(queue) == [b"x"]


# ── exclusive, auto-delete, expiry ───────────────────────────────────────────────────────────────────────────────────


def test_an_exclusive_queue_is_its_connections(connect: Connect, name: Name) -> None:
    """Nobody else may declare, consume, get, purge, bind, unbind or delete it: 405. Other channels of the connection
    may. A binding that is not there may be removed by anybody."""
    mine, theirs = connect(), connect()
    mine.channel().queue_declare(name("q"), exclusive=True)
    assert mine.channel().queue_declare(name("q"), exclusive=True).name == name("q")
    mine.channel().queue_bind(name("q"), "amq.direct", "bound")
    theirs.channel().queue_unbind(name("q"), "amq.direct", "not bound")
    for verb, arguments in (("queue_declare", (name("q"),)), ("consume", (name("q"),)), ("get", (name("q"),)),
                            ("queue_purge", (name("q"),)), ("queue_delete", (name("q"),)),
                            ("queue_bind", (name("q"), "amq.direct", "k")),
                            ("queue_unbind", (name("q"), "amq.direct", "bound"))):
        text = refused(405, getattr(theirs.channel(), verb), *arguments)
        assert f"cannot obtain exclusive access to locked queue '{name('q')}' in vhost '/'" in text
    refused(405, theirs.channel().queue_declare, name("q"), passive=True)
    channel = mine.channel(confirms=True)
    assert channel.publish("amq.direct", "bound", b"still bound")
    assert channel.get_all(name("q")) == [b"still bound"]
    channel.queue_unbind(name("q"), "amq.direct", "bound")


@pytest.mark.parametrize("how", ["close", "drop"])
def test_an_exclusive_queue_goes_with_its_connection(connect: Connect, name: Name, how: str) -> None:
    """Its name is free when the connection has ended, in order or not."""
    mine, other = connect(), connect()
    mine.channel().queue_declare(name("q"), exclusive=True)
    mine.dropped = True
    getattr(mine, how)()

    def gone() -> bool:
        try:
            return not exists(other, name("q"))
        except AssertionError:      # 405: still there
            return False

    wait_until(gone)


def test_anybody_may_publish_to_an_exclusive_queue(connect: Connect, name: Name) -> None:
    """That is how the answers of RPC come."""
    mine, other = connect().channel(), connect().channel(confirms=True)
    mine.queue_declare(name("q"), exclusive=True)
    assert other.publish("", name("q"), b"answer")
    assert mine.get_all(name("q")) == [b"answer"]


def test_auto_delete_after_the_last_consumer(connect: Connect, name: Name) -> None:
    """An auto-delete queue lives until it had consumers and the last of them left; messages do not keep it."""
    first, second = connect(), connect()
    one, two = first.channel(), second.channel()
    one.queue_declare(name("q"), auto_delete=True)
    two.publish("", name("q"), b"x")
    tag = one.consume(name("q"), tag="one")
    assert one.receive().body == b"x"
    two.consume(name("q"))
    one.cancel(tag)
    assert exists(first, name("q"))
    second.dropped = True
    second.drop()
    wait_until(lambda: not exists(first, name("q")))


def test_auto_delete_without_a_consumer_stays(connect: Connect, name: Name) -> None:
    """One that nobody ever consumed from stays, also when who declared it has left."""
    first, second = connect(), connect()
    first.channel().queue_declare(name("q"), auto_delete=True)
    first.close()
    first.dropped = True
    assert exists(second, name("q"))
    assert second.channel().queue_delete(name("q")) == 0


def test_expires_when_unused(connect: Connect, name: Name) -> None:
    """`x-expires`: a queue goes that nobody used for so long, with what is in it; a consumer is use."""
    keeper, publisher, other = connect().channel(), connect().channel(confirms=True), connect()
    keeper.queue_declare(name("kept"), arguments={"x-expires": 6000})
    keeper.consume(name("kept"), no_ack=True)
    keeper.queue_declare(name("left"), arguments={"x-expires": 1000})
    while publisher.publish("", name("left"), b"x", mandatory=True):
        # declaring it, even passively, would be use; publishing is not
        if publisher.was_returned():
            break
    assert not exists(other, name("left"))
    assert exists(other, name("kept"))
    keeper.queue_delete(name("kept"))


# ── time to live ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_message_ttl_of_the_queue(connection: Connection, name: Name) -> None:
    """`x-message-ttl`: what nobody took in time is gone."""
    channel = connection.channel(confirms=True)
    queue = channel.queue_declare(exclusive=True, arguments={"x-message-ttl": 60}).name
    for _ in range(3):
        channel.publish("", queue, b"x")
    wait_until(lambda: channel.queue_declare(queue, passive=True).messages == 0)
    assert channel.get(queue) is None


def test_what_has_expired_while_it_was_held_does_not_come_back(channel: Channel, name: Name) -> None:
    """Its time goes on in the hands of a consumer: put back, it is gone at once, at the head of the queue."""
    queue = channel.queue_declare(exclusive=True, arguments={"x-message-ttl": 3000}).name
    for number in range(3):
        channel.publish("", queue, b"%d" % number)
    got = [channel.get(queue, no_ack=False) for _ in range(3)]
    sleep(3.2)
    for message in got:
        assert message is not None
        channel.reject(message.tag, requeue=True)
    assert channel.queue_declare(queue, passive=True).messages == 0
    assert channel.get(queue) is None


def test_message_ttl_zero_is_now_or_never(channel: Channel, name: Name) -> None:
    """With `x-message-ttl` 0 a message reaches a consumer that waits for it, or nobody."""
    queue = channel.queue_declare(exclusive=True, arguments={"x-message-ttl": 0}).name
    channel.publish("", queue, b"nobody waits")
    assert channel.get(queue) is None
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"somebody does")
    assert channel.receive().body == b"somebody does"


def test_expiration_of_one_message(connection: Connection, name: Name) -> None:
    """`expiration` on a message: it goes and its neighbours stay. (RabbitMQ looks only at the head of a queue, so the
    mortal one is first here.)"""
    channel = connection.channel(confirms=True)
    queue = channel.queue_declare(exclusive=True).name
    channel.publish("", queue, b"mortal", {"expiration": "60"})
    channel.publish("", queue, b"immortal")
    wait_until(lambda: channel.queue_declare(queue, passive=True).messages == 1)
    message = channel.get(queue)
    assert message is not None and message.body == b"immortal"


def test_the_expiration_stays_on_the_message(channel: Channel, name: Name) -> None:
    """Who receives it in time sees the expiration that it was sent with."""
    queue = channel.queue_declare(exclusive=True).name
    channel.publish("", queue, b"x", {"expiration": "60000"})
    message = channel.get(queue)
    assert message is not None and message.properties["expiration"] == "60000"


# ── purge and delete ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_purge_says_how_many(channel: Channel, name: Name) -> None:
    """Purging takes what is ready and says how many that were; what a consumer holds stays with it."""
    queue = channel.queue_declare(exclusive=True).name
    for number in range(5):
        channel.publish("", queue, b"%d" % number)
    held = channel.get(queue, no_ack=False)
    assert held is not None
    assert channel.queue_purge(queue) == 4
    assert channel.queue_purge(queue) == 0
    channel.reject(held.tag, requeue=True)
    assert channel.get_all(queue) == [b"0"]


def test_delete_says_how_many(connection: Connection, name: Name) -> None:
    """Deleting says how many messages went; deleting what is not there is no error."""
    channel = connection.channel()
    channel.queue_declare(name("q"))
    for _ in range(3):
        channel.publish("", name("q"), b"x")
    assert channel.queue_delete(name("q")) == 3
    assert channel.queue_delete(name("q")) == 0
    assert not exists(connection, name("q"))


def test_delete_if_unused_and_if_empty(connection: Connection, name: Name) -> None:
    """if-unused refuses while there are consumers, if-empty while there are messages: 406."""
    channel = connection.channel()
    channel.queue_declare(name("q"))
    channel.publish("", name("q"), b"x")
    assert "not empty" in refused(406, channel.queue_delete, name("q"), if_empty=True)
    channel = connection.channel()
    assert channel.get_all(name("q")) == [b"x"]
    channel.consume(name("q"), no_ack=True)
    assert "in use" in refused(406, connection.channel().queue_delete, name("q"), if_unused=True)
    assert channel.queue_delete(name("q"), if_empty=True) == 0


# ── priorities ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_priorities(channel: Channel, name: Name) -> None:
    """`x-max-priority`: higher first, equal in order, none is 0, more than the maximum is the maximum."""
    queue = channel.queue_declare(exclusive=True, arguments={"x-max-priority": 10}).name
    for body, priority in ((b"none", None), (b"5a", 5), (b"0", 0), (b"10", 10), (b"5b", 5), (b"99", 99), (b"1", 1)):
        channel.publish("", queue, body, {} if priority is None else {"priority": priority})
    assert channel.get_all(queue) == [b"10", b"99", b"5a", b"5b", b"1", b"none", b"0"]


def test_without_max_priority_the_order_is_that_of_arrival(channel: Channel, name: Name) -> None:
    """The property alone does nothing, and arrives."""
    queue = channel.queue_declare(exclusive=True).name
    for number in (1, 9, 5):
        channel.publish("", queue, b"%d" % number, {"priority": number})
    assert [channel.get(queue).properties["priority"] for _ in range(3)] == [1, 9, 5]       # type: ignore[union-attr]


# ── consumers of a queue ─────────────────────────────────────────────────────────────────────────────────────────────


def test_cancel_notification(connect: Connect, name: Name) -> None:
    """A consumer whose queue is deleted is told so; its channel lives."""
    consumer, deleter = connect().channel(), connect().channel()
    consumer.queue_declare(name("q"))
    tag = consumer.consume(name("q"), tag="mine")
    deleter.queue_delete(name("q"))
    assert consumer.cancelled() == tag
    assert consumer.queue_declare(exclusive=True).messages == 0


def test_an_exclusive_consumer_is_alone(connect: Connect, name: Name) -> None:
    """Nobody else may consume while an exclusive consumer does, nor may one begin where others consume: 403."""
    first, second = connect(), connect()
    channel = first.channel()
    channel.queue_declare(name("q"))
    tag = channel.consume(name("q"), tag="alone", exclusive=True)
    assert "exclusive" in refused(403, second.channel().consume, name("q"))
    channel.cancel(tag)
    channel.consume(name("q"))
    refused(403, second.channel().consume, name("q"), exclusive=True)
    channel.queue_delete(name("q"))


def test_single_active_consumer(connect: Connect, name: Name) -> None:
    """`x-single-active-consumer`: the first consumer gets everything; when it leaves, the next does."""
    publisher, first, second = connect().channel(), connect().channel(), connect().channel()
    publisher.queue_declare(name("q"), arguments={"x-single-active-consumer": True})
    tag = first.consume(name("q"), tag="first", no_ack=True)
    second.consume(name("q"), no_ack=True)
    for number in range(4):
        publisher.publish("", name("q"), b"%d" % number)
    assert [message.body for message in first.receive_all(4)] == [b"0", b"1", b"2", b"3"]
    first.cancel(tag)
    publisher.publish("", name("q"), b"for the second")
    assert second.receive().body == b"for the second"
    publisher.queue_delete(name("q"))


def test_consumer_priorities(connect: Connect, name: Name) -> None:
    """`x-priority`: the consumer of higher priority gets all that its prefetch allows, the other the rest."""
    publisher, low, high = connect().channel(), connect().channel(), connect().channel()
    publisher.queue_declare(name("q"))
    low.consume(name("q"), no_ack=True)
    high.qos(2)
    high.consume(name("q"), arguments={"x-priority": 10})
    for number in range(4):
        publisher.publish("", name("q"), b"%d" % number)
    held = high.receive_all(2)
    assert [message.body for message in held + low.receive_all(2)] == [b"0", b"1", b"2", b"3"]
    high.ack(held[-1].tag, multiple=True)
    assert publisher.queue_declare(name("q"), passive=True).consumers == 2
    publisher.queue_delete(name("q"))


def test_consumer_tags(connection: Connection, name: Name) -> None:
    """A tag that the consumer chose is its own; each delivery says which consumer it is for."""
    channel = connection.channel()
    queues = [channel.queue_declare(exclusive=True).name for _ in range(2)]
    assert channel.consume(queues[0], tag="given", no_ack=True) == "given"
    other = channel.consume(queues[1], tag="another", no_ack=True)
    channel.publish("", queues[1], b"1")
    assert channel.receive().consumer == other
    channel.publish("", queues[0], b"0")
    assert channel.receive().consumer == "given"
    # on another channel the same tag is another consumer
    assert connection.channel().consume(queues[0], tag="given", no_ack=True) == "given"


@pytest.mark.needs("no_local")
def test_no_local_is_taken_and_ignored(channel: Channel, name: Name) -> None:
    """no-local: RabbitMQ delivers to a consumer what its own connection published, and so do we."""
    queue = channel.queue_declare(exclusive=True).name
    channel.consume(queue, no_ack=True, no_local=True)
    channel.publish("", queue, b"my own")
    assert channel.receive().body == b"my own"
