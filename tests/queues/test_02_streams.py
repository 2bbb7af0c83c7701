"""Streams over MQTT: everybody reads everything, from anywhere, and goes on where it was."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client
from kit.watch import wait_until
from queues.conftest import ack, admin, consume, order, put, take, users

Start = Callable[..., Broker]
Connect = Callable[..., Client]

EVENTS = {"name": "events", "type": "stream"}


def names(first: int, end: int) -> list[bytes]:
    return [b"e%d" % number for number in range(first, end)]


def test_every_reader_gets_everything(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(EVENTS)
    readers = [connect(broker) for _ in range(3)]
    for qos, reader in enumerate(readers):
        consume(reader, "events", qos=qos)
    put(connect(broker), "events", *names(0, 20))
    for reader in readers:
        for payload in names(0, 20):
            reader.receive(payload=payload)
        reader.expect_quiet()


def test_a_reader_that_acknowledges_nothing_gets_everything(start_broker: Start, connect: Connect) -> None:
    """More than it gets in one turn, and nothing that it sends asks for more."""
    broker = start_broker({"name": "events", "type": "stream"})
    put(connect(broker), "events", *names(0, 1100))
    reader = connect(broker)
    consume(reader, "events", qos=0, offset="first")
    assert [reader.receive().payload for _ in range(1100)] == names(0, 1100)


@pytest.mark.parametrize(("offset", "first"), [
    ("first", 0), ("last", 9), ("next", 10), ("4", 4), ("offset=4", 4), ("-3", 7), ("timestamp=0", 0), ("99", 10),
    ("timestamp=2999-01-01", 10)])
def test_positions(offset: str, first: int, start_broker: Start, connect: Connect) -> None:
    broker = start_broker(EVENTS)
    publisher = connect(broker)
    put(publisher, "events", *names(0, 10))
    reader = connect(broker)
    consume(reader, "events", offset=offset)
    put(publisher, "events", b"end")
    for payload in [*names(first, 10), b"end"]:
        reader.receive(payload=payload)


@pytest.mark.parametrize("how", ["close", "restart", "kill"])
def test_a_group_goes_on_where_it_was(how: str, start_broker: Start, connect: Connect) -> None:
    """With ack: manual its position is what it committed."""
    broker = start_broker(EVENTS, **{"storage.type": "rocksdb"})
    put(connect(broker), "events", *names(0, 10))
    reader = connect(broker)
    consume(reader, "events", consumer_group="g", offset="first", ack="manual")
    packets = [reader.receive() for _ in range(10)]
    order(reader, "commit", packets[5])
    reader.close()
    if how == "restart":
        broker.restart()
    elif how == "kill":
        broker.kill()
        broker.start()
    again = connect(broker)
    consume(again, "events", consumer_group="g", ack="manual")
    take(again, *names(6, 10))


def test_what_is_acknowledged_is_committed_by_itself(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(EVENTS)
    put(connect(broker), "events", *names(0, 10))
    reader = connect(broker)
    consume(reader, "events", consumer_group="g", offset="first")
    packets = take(reader, *names(0, 10))
    ack(reader, packets[0], packets[1], packets[3])
    reader.expect_quiet()
    reader.close()
    again = connect(broker)
    consume(again, "events", consumer_group="g")
    take(again, *names(2, 10))


def test_retention_is_a_cap(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(EVENTS | {"retention": {"max_length_messages": 5}})
    publisher = connect(broker)
    put(publisher, "events", *names(0, 20))

    def first_kept() -> bytes:
        reader = connect(broker)
        consume(reader, "events", qos=0, offset="first")
        payload = reader.receive().payload
        reader.close()
        return payload

    wait_until(lambda: first_kept() == b"e15")


def test_filters_below_a_stream(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(EVENTS)
    reader, publisher = connect(broker), connect(broker)
    reader.subscribe("$queue/events/eu/+", qos=1)
    for topic in ("eu/a", "us/a", "eu/b", "eu", "eu/a/b"):
        publisher.publish(f"$queue/events/{topic}", topic.encode(), 1, expect=0)
    assert [reader.receive().payload for _ in range(2)] == [b"eu/a", b"eu/b"]
    reader.expect_quiet()


def test_a_slow_reader_delays_nobody(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(EVENTS)
    slow, quick, publisher = connect(broker), connect(broker), connect(broker)
    consume(slow, "events", qos=1)
    consume(quick, "events", qos=1)
    for number in range(600):  # more than the window of one who acknowledges nothing
        put(publisher, "events", b"%d" % number)
        assert quick.receive().payload == b"%d" % number
    assert users(slow.receive())["offset"] == "0"


def test_a_stream_has_no_orders_but_commit(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(EVENTS)
    put(connect(broker), "events", b"x")
    reader = connect(broker)
    consume(reader, "events", offset="first")
    order(reader, "nack", reader.receive(), expect=0x90)


def test_a_long_time_between_commits(start_broker: Start, connect: Connect) -> None:
    """What was not committed is read again; whoever leaves commits."""
    broker = start_broker({"name": "events", "type": "stream"}, **{"queue_manager.auto_commit_interval": "1h"})
    put(connect(broker), "events", b"0", b"1", b"2", b"3")

    def committed() -> int:
        return int(admin(broker, "GET", "queues", "events", "groups")["groups"][0]["positions"][0]["next"])

    reader = connect(broker)
    consume(reader, "events", consumer_group="g", offset="first")
    packets = take(reader, b"0", b"1", b"2", b"3")
    ack(reader, packets[0])
    wait_until(lambda: committed() == 1)
    ack(reader, *packets[1:])
    reader.expect_quiet()
    broker.kill()
    broker.start()
    reader = connect(broker)
    consume(reader, "events", consumer_group="g")
    packets = take(reader, b"1", b"2", b"3")
    ack(reader, packets[0])
    wait_until(lambda: committed() == 2)
    ack(reader, packets[1])
    reader.expect_quiet()
    reader.close()
    wait_until(lambda: committed() == 3)
