"""Queues of type quorum and stream, with every library.

Quorum is here what it is on one node: a classic queue whose messages are all durable, with counts of deliveries and
limits. (In FluxMQ it is an alias of `replicated` once that exists.)
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from amqp091.clients.base import AmqpError, Channel, Connection
from kit.amqp_wire import Wire
from kit.watch import wait_until

Name = Callable[[str], str]
Connect = Callable[..., Connection]


def text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


# ── quorum ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def quorum(connect: Connect, name: Name) -> Iterator[Callable[..., str]]:
    """Make quorum queues, which are durable by nature; deleted at the end."""
    channel = connect().channel()
    made: list[str] = []

    def declare(role: str = "q", **arguments: Any) -> str:
        made.append(name(role))
        channel.queue_declare(name(role), durable=True, arguments={"x-queue-type": "quorum"} | {
            key.replace("_", "-"): value for key, value in arguments.items()})
        return name(role)

    yield declare
    for queue in made:
        channel.queue_delete(queue)


def test_quorum_is_a_queue_like_another(connect: Connect, quorum: Callable[..., str]) -> None:
    """Publish with confirms, consume with prefetch, ack: work is shared and done once."""
    queue = quorum()
    publisher, workers = connect().channel(confirms=True), [connect().channel() for _ in range(2)]
    for worker in workers:
        worker.qos(1)
        worker.consume(queue)
    for number in range(6):
        assert publisher.publish("", queue, b"%d" % number)
    done = []
    held = [worker.receive() for worker in workers]
    for number in range(6):  # the other one has its message: the next is of who acknowledges
        worker, message = workers[number % 2], held.pop(0)
        done.append(message.body)
        worker.ack(message.tag)
        if number < 4:
            held.append(worker.receive())
    assert sorted(done) == [b"%d" % number for number in range(6)]


def test_delivery_count(connection: Connection, quorum: Callable[..., str]) -> None:
    """Each redelivery says in `x-delivery-count` how many there were before; the first delivery says nothing."""
    channel = connection.channel(confirms=True)
    queue = quorum()
    channel.publish("", queue, b"x", {"headers": {"mine": 1}})
    channel.consume(queue)
    for count in range(4):
        message = channel.receive()
        assert (message.headers.get("x-delivery-count"), message.redelivered) == (count or None, count > 0)
        assert message.headers["mine"] == 1
        channel.reject(message.tag, requeue=True)
    channel.ack(channel.receive().tag)


def test_delivery_limit(connection: Connection, quorum: Callable[..., str]) -> None:
    """`x-delivery-limit` ends a poison message: with 2 it is delivered three times, then it is a dead letter with the
    reason delivery_limit."""
    channel = connection.channel(confirms=True)
    dead = channel.queue_declare(exclusive=True).name
    queue = quorum(x_delivery_limit=2, x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    channel.publish("", queue, b"poison")
    channel.consume(queue, tag="worker")
    for _ in range(3):
        channel.reject(channel.receive().tag, requeue=True)
    channel.cancel("worker")
    channel.consume(dead, no_ack=True)
    message = channel.receive()
    death = message.headers["x-death"][0]
    assert (message.body, text(death["reason"]), text(death["queue"]), death["count"]) == \
        (b"poison", "delivery_limit", queue, 1)


def test_delivery_limit_without_a_dead_letter_exchange(connection: Connection, quorum: Callable[..., str]) -> None:
    """There it is dropped, and the queue goes on."""
    channel = connection.channel(confirms=True)
    queue = quorum(x_delivery_limit=1)
    for body in (b"poison", b"good"):
        channel.publish("", queue, body)
    channel.qos(1)
    channel.consume(queue)
    for _ in range(2):
        message = channel.receive()
        assert message.body == b"poison"
        channel.reject(message.tag, requeue=True)
    message = channel.receive()
    assert message.body == b"good"
    channel.ack(message.tag)


@pytest.mark.parametrize("given", [{"durable": False}, {"exclusive": True}, {"auto_delete": True},
                                   {"arguments": {"x-max-priority": 3}}], ids=str)
@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_what_they_cannot_be(connection: Connection, name: Name, kind: str, given: dict[str, Any]) -> None:
    """Neither transient nor exclusive nor auto-delete, and without priorities: 406."""
    arguments = {"x-queue-type": kind} | given.get("arguments", {})
    with pytest.raises(AmqpError) as refused:
        connection.channel().queue_declare(name("q"), **{"durable": True} | given | {"arguments": arguments})
    assert refused.value.code == 406


# ── stream ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def stream(connect: Connect, name: Name) -> Iterator[str]:
    """A stream with the messages 0 to 9, each in a chunk of its own."""
    channel = connect().channel(confirms=True)
    channel.queue_declare(name("s"), durable=True,
                          arguments={"x-queue-type": "stream", "x-max-length-bytes": 20_000_000})
    for number in range(10):
        channel.publish("", name("s"), b"%d" % number, {"headers": {"n": number}})
    yield name("s")
    channel.queue_delete(name("s"))


def read(channel: Channel, queue: str, count: int, offset: Any, **more: Any) -> list[tuple[int, int]]:
    """(body, offset) of the first messages from an offset."""
    channel.qos(100)
    tag = channel.consume(queue, tag="reader", arguments={} if offset is None else {"x-stream-offset": offset}, **more)
    messages = channel.receive_all(count)
    channel.ack(messages[-1].tag, multiple=True)
    channel.cancel(tag)
    assert [message.headers["n"] for message in messages] == [int(message.body) for message in messages]
    assert not any(message.redelivered for message in messages)
    return [(int(message.body), message.headers["x-stream-offset"]) for message in messages]


@pytest.mark.parametrize(("offset", "first"), [("first", 0), (0, 0), (7, 7)])
def test_stream_from_an_offset(channel: Channel, stream: str, offset: Any, first: int) -> None:
    """A reader begins where it says, and each message tells its offset."""
    assert read(channel, stream, 10 - first, offset) == [(number, number) for number in range(first, 10)]


def test_stream_from_the_last(channel: Channel, stream: str) -> None:
    """`last` begins at the last that was written (in RabbitMQ, at its last chunk)."""
    channel.qos(100)
    channel.consume(stream, arguments={"x-stream-offset": "last"})
    message = channel.receive()
    while message.body != b"9":
        message = channel.receive()


@pytest.mark.parametrize("offset", [None, "next"])
def test_stream_from_the_next(connect: Connect, stream: str, offset: Any) -> None:
    """`next`, which is also what holds without the argument: what is written from now on."""
    reader, writer = connect().channel(), connect().channel(confirms=True)
    reader.qos(10)
    reader.consume(stream, arguments={} if offset is None else {"x-stream-offset": offset})
    writer.publish("", stream, b"new")
    message = reader.receive()
    assert (message.body, message.headers["x-stream-offset"]) == (b"new", 10)


def test_stream_is_not_emptied(connect: Connect, stream: str) -> None:
    """Many read the same, each from where it likes, again and again."""
    for _ in range(3):
        assert len(read(connect().channel(), stream, 10, "first")) == 10


def test_stream_prefetch_is_credit(connect: Connect, stream: str) -> None:
    """A reader gets as many as its prefetch, and more when it acknowledges."""
    channel, other = connect().channel(), connect().channel()
    channel.qos(3)
    channel.consume(stream, arguments={"x-stream-offset": 0})
    first = channel.receive_all(3)
    assert [message.body for message in first] == [b"0", b"1", b"2"]
    assert len(read(other, stream, 10, "first")) == 10         # time for a fourth to come, if it did
    channel.ack(first[-1].tag, multiple=True)
    assert [message.body for message in channel.receive_all(3)] == [b"3", b"4", b"5"]


def test_stream_without_a_prefetch(connection: Connection, amqp_broker: Any, stream: str) -> None:
    """RabbitMQ refuses a reader that sets no prefetch (406); here it is one without a limit."""
    channel = connection.channel()
    if amqp_broker.kind == "rabbitmq":
        with pytest.raises(AmqpError) as refused:
            channel.consume(stream)
        assert refused.value.code == 406 and "prefetch" in refused.value.text
    else:
        channel.consume(stream, arguments={"x-stream-offset": "first"})
        assert [message.body for message in channel.receive_all(10)] == [b"%d" % number for number in range(10)]


def test_stream_by_an_exchange(connection: Connection, stream: str, name: Name) -> None:
    """A stream is bound like any queue."""
    channel = connection.channel(confirms=True)
    channel.exchange_declare(name("x"), "topic", auto_delete=True)
    channel.queue_bind(stream, name("x"), "a.#")
    channel.publish(name("x"), "a.b", b"10", {"headers": {"n": 10}})
    channel.publish(name("x"), "b.a", b"11", {"headers": {"n": 11}})
    assert read(channel, stream, 1, 10) == [(10, 10)]


def test_stream_keeps_what_max_length_bytes_says(connection: Connection, name: Name) -> None:
    """`x-max-length-bytes` takes whole segments from the front, in time; a reader from the first begins at what is
    left."""
    channel = connection.channel(confirms=True)
    channel.queue_declare(name("s"), durable=True, arguments={
        "x-queue-type": "stream", "x-max-length-bytes": 200_000, "x-stream-max-segment-size-bytes": 100_000})
    channel.qos(1)
    sent = 0

    def begins_later() -> bool:
        nonlocal sent
        for _ in range(20):
            channel.publish("", name("s"), b"x" * 10_000, {"headers": {"n": sent}})
            sent += 1
        tag = channel.consume(name("s"), tag=f"reader-{sent}", arguments={"x-stream-offset": "first"})
        first = channel.receive()
        channel.cancel(tag)
        return first.headers["x-stream-offset"] > 0

    wait_until(begins_later)
    channel.queue_delete(name("s"))


@pytest.mark.parametrize(("method", "arguments"), [
    ("basic.get", {"queue": "stream-540"}), ("queue.purge", {"queue": "stream-540"}),
    ("basic.consume", {"queue": "stream-540", "no_ack": True}), ("basic.nack", {"delivery_tag": 1, "requeue": True}),
    ("basic.reject", {"delivery_tag": 1}),
], ids=lambda value: value if isinstance(value, str) else "")
def test_a_stream_is_read_and_nothing_else(login: Callable[..., Wire], amqp_broker: Any, method: str,
                                           arguments: dict[str, Any]) -> None:
    """It is not got or purged: 540, which costs the connection. RabbitMQ refuses readers without acknowledgements and
    rejections in the same way; here they read on."""
    wire, other = login(), login()
    wire.call(1, "queue.declare", queue="stream-540", durable=True, arguments={"x-queue-type": "stream"})
    wire.call(1, "confirm.select")
    wire.publish(1, "", "stream-540", b"x")
    wire.expect(1, "basic.ack")
    wire.call(1, "basic.qos", prefetch_count=1)
    wire.call(1, "basic.consume", queue="stream-540", arguments={"x-stream-offset": "first"})
    assert wire.expect_content(1).body == b"x"
    wire.send(1, method, **arguments)
    if amqp_broker.kind == "rabbitmq" or method in ("basic.get", "queue.purge"):
        refused = wire.expect_refusal(1)
        assert (refused.scope, refused.code) == ("connection", 540)
    else:
        if method == "basic.consume":
            wire.expect(1, "basic.consume-ok")
        assert wire.call(1, "channel.flow", active=True)
    other.call(1, "queue.delete", queue="stream-540")
