"""Delayed messages in numbers: scattered due times, many at once, from disk, and whatever ends the broker."""
from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client
from kit.watch import wait_until
from oracle.mqtt import Pingresp, Puback, Publish
from queues.conftest import consume, put, users
from queues.test_03_disk import SMALL_FILES, fill, numbers, payload, segments

Start = Callable[..., Broker]
Connect = Callable[..., Client]

WINDOW = 100        # below what the broker takes from one client without an acknowledgement


def put_many(client: Client, queue: str, payloads: list[bytes], **asked: object) -> None:
    """A window of acknowledgements is waited for at a time."""
    properties = [("user_property", (name.replace("_", "-"), str(value))) for name, value in asked.items()]
    for first in range(0, len(payloads), WINDOW):
        part = payloads[first:first + WINDOW]
        for at, text in enumerate(part):
            client.send(Publish(topic=f"$queue/{queue}", payload=text, qos=1, packet_id=at + 1, properties=properties))
        for at in range(len(part)):
            client.expect(Puback, packet_id=at + 1, reason=0)
    client.transcript.clear()


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_scattered_due_times_on_disk(how: str, start_broker: Start, connect: Connect) -> None:
    """What is due next lies anywhere in the segments; nothing is lost, and nothing comes twice without saying so."""
    count = 250
    broker = start_broker({"name": "q"}, **SMALL_FILES)
    delays = [1500 + 10 * number for number in range(count)]
    random.Random(4).shuffle(delays)
    publisher = connect(broker)
    for number in range(count):
        fill(publisher, "q", number, number + 1, x_delay=delays[number])
    wait_until(lambda: segments(broker) >= 2)
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    consumer = connect(broker)
    consume(consumer, "q")
    first = numbers(consumer, 60)
    broker.kill()
    broker.start()
    consumer = connect(broker)
    consume(consumer, "q")
    seen = list(first)
    while set(seen) != set(range(count)):
        packet = consumer.receive()
        consumer.transcript.clear()
        number = int(packet.payload[:6])
        assert packet.payload == payload(number)
        # What was in the consumer's hands may not have been settled on the disk; nothing else comes twice.
        assert number not in seen or users(packet)["redelivered"] == "true"
        seen.append(number)
    consumer.expect_quiet()


def test_many_are_due_at_once(start_broker: Start, connect: Connect) -> None:
    """More than one turn moves: they come in order, and others are served meanwhile."""
    count = 6000
    broker = start_broker({"name": "q"}, {"name": "other"})
    publisher = connect(broker)
    put_many(publisher, "q", [b"%d" % number for number in range(count)], x_delay=1500)
    consumer = connect(broker)
    consume(consumer, "q")
    assert consumer.receive().payload == b"0"
    put(publisher, "other", b"x")
    publisher.send(b"\xc0\x00")
    publisher.expect(Pingresp)
    assert [int(consumer.receive().payload) for _ in range(count - 1)] == list(range(1, count))
    consumer.expect_quiet()


def test_a_full_queue_takes_what_is_due_later(start_broker: Start, connect: Connect) -> None:
    """As long as none is due: the twelve are published in one go, since the fourth that is due would fill it."""
    broker = start_broker({"name": "q", "limits": {"max_depth": 3}})
    publisher, consumer = connect(broker), connect(broker)
    put_many(publisher, "q", [b"%d" % number for number in range(12)], x_delay=1000)
    consume(consumer, "q", prefetch=1)
    assert [int(consumer.receive().payload) for _ in range(12)] == list(range(12))
    consumer.expect_quiet()


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_producer_that_repeats_itself_delays_once(how: str, start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "q"})
    publisher = connect(broker)
    for sequence in (1, 1, 2):
        put(publisher, "q", b"%d" % sequence, x_delay=1200, producer_id="p", producer_sequence=sequence)
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    publisher = connect(broker)
    for sequence in (1, 2, 3):
        put(publisher, "q", b"%d" % sequence, producer_id="p", producer_sequence=sequence)
    consumer = connect(broker)
    consume(consumer, "q")
    # Each once; in which order depends on how long the restart took.
    assert sorted(consumer.receive().payload for _ in range(3)) == [b"1", b"2", b"3"]
    consumer.expect_quiet()


def test_an_ephemeral_queue_delays_too(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "q", "type": "ephemeral"})
    publisher, consumer = connect(broker), connect(broker)
    consume(consumer, "q")
    put_many(publisher, "q", [b"%d" % number for number in range(3000)], x_delay=300)
    assert [int(consumer.receive().payload) for _ in range(3000)] == list(range(3000))
    consumer.expect_quiet()
