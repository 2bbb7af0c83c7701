"""What consumers have and do not settle keeps no memory but its claims: it is read again when it is needed."""
from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from kit.amqp_wire import Wire
from kit.broker import Broker, free_port
from kit.client import Client
from kit.watch import Memory, metric, wait_until
from oracle.mqtt import Puback, Publish, Pubrec, Pubrel

Start = Callable[..., Broker]

# Journal files of 2 MiB, of which four may wait for a checkpoint; a cache of 4 MiB; 8 MiB before a socket; and as much
# again for what the allocator has not given back, and for a start, which replays them.
SETTINGS: dict[str, object] = {
    "storage.type": "rocksdb", "storage.journal_file_size": "2MiB", "queue_manager.cache_size": "4MiB",
    "broker.max_message_size": "2MiB", "session.max_inflight_messages": 65535,
}
GROWN_MAX = 64 << 20
CLAIM_MAX = 512             # of the queue, and what AMQP knows of its delivery tag
BURST = 4 << 20             # published at once, before the greedy one reads any of it


def login(port: int) -> Wire:
    wire = Wire(("127.0.0.1", port))
    wire.login()
    wire.open_channel()
    return wire


def publish(wire: Wire, first: int, count: int, size: int) -> None:
    """Numbered; they are in the queue when this returns."""
    noise = random.Random(first).randbytes(size - 8)
    for number in range(first, first + count):
        wire.publish(1, "", "q", number.to_bytes(8, "big") + noise, {"delivery_mode": 2})
    wire.call(1, "queue.declare", queue="q", passive=True)


def take(wire: Wire, count: int, redelivered: bool, deliveries: int) -> list[int]:
    """The next so many, in order, each with its delivery count."""
    found = []
    for _ in range(count):
        message = wire.expect_content(1)
        found.append(int.from_bytes(message.body[:8], "big"))
        assert message.redelivered is redelivered
        if deliveries > 1:
            assert message.properties["headers"]["x-delivery-count"] == deliveries - 1
    return found


def of_amqp(start_broker: Start, count: int, size: int) -> None:
    port = free_port()
    broker = start_broker(SETTINGS | {"server.amqp091.plain.addr": f"127.0.0.1:{port}"})
    publisher, greedy = login(port), login(port)
    publisher.call(1, "queue.declare", queue="q", durable=True, arguments={
        "x-queue-type": "quorum", "x-delivery-limit": 100})
    greedy.call(1, "basic.consume", queue="q")
    memory = Memory(broker)
    step = max(1, BURST // size)
    for first in range(0, count, step):
        behind = min(first + step, count)
        publish(publisher, first, behind - first, size)
        assert take(greedy, behind - first, False, 1) == list(range(first, behind))
    assert memory.grown_at_most < GROWN_MAX + count * CLAIM_MAX
    assert metric(broker, "fluxmq_queues_claims") == count

    # Its connection dies, and everything goes to another, in order, with its count; which settles nothing either.
    greedy.drop()
    other = login(port)
    other.call(1, "basic.consume", queue="q")
    assert take(other, count, True, 2) == list(range(count))
    assert memory.grown_at_most < GROWN_MAX + count * CLAIM_MAX

    broker.kill()
    broker.start()
    memory = Memory(broker)
    last = login(port)
    last.call(1, "basic.consume", queue="q")
    assert take(last, count, True, 3) == list(range(count))
    assert memory.grown_at_most < GROWN_MAX + count * CLAIM_MAX
    last.send(1, "basic.ack", delivery_tag=0, multiple=True)
    wait_until(lambda: metric(broker, "fluxmq_queues_claims") == 0)
    for wire in (publisher, other, last):
        wire.drop()


def of_mqtt(start_broker: Start, connect: Callable[..., Client], count: int, size: int) -> None:
    broker = start_broker(SETTINGS | {"queues": "[{name: q}]"})
    publisher, greedy = connect(broker, "pub"), connect(broker, "greedy", keep_alive=0)
    greedy.subscribe("$queue/q", qos=1, properties=[("user_property", ("visibility-timeout", "86400"))])
    memory = Memory(broker)
    noise = random.Random(1).randbytes(size - 8)
    for number in range(count):
        publisher.publish("$queue/q", number.to_bytes(8, "big") + noise, 1, expect=0)
        publisher.transcript.clear()
        assert greedy.expect(Publish).payload[:8] == number.to_bytes(8, "big")
        greedy.transcript.clear()
    assert memory.grown_at_most < GROWN_MAX + count * CLAIM_MAX
    greedy.close()
    other = connect(broker, "other")
    other.subscribe("$queue/q", qos=1)
    for number in range(count):
        packet = other.receive()
        assert packet.payload[:8] == number.to_bytes(8, "big")
        assert ("user_property", ("delivery-count", "2")) in packet.properties
        other.transcript.clear()
    assert memory.grown_at_most < GROWN_MAX + count * CLAIM_MAX
    wait_until(lambda: metric(broker, "fluxmq_queues_claims") == 0)


@pytest.mark.parametrize("size", [12_000, 1 << 20])
def test_of_an_amqp_consumer(start_broker: Start, size: int) -> None:
    of_amqp(start_broker, (96 << 20) // size // 100 * 100 or 96, size)


def test_of_an_mqtt_consumer(start_broker: Start, connect: Callable[..., Client]) -> None:
    of_mqtt(start_broker, connect, 96, 1 << 20)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_plain_window_is_bounded_in_bytes(start_broker: Start, connect: Callable[..., Client], qos: int) -> None:
    """What is in flight is kept until it is acknowledged, whatever the Receive Maximum; the rest waits its turn."""
    broker = start_broker({"session.max_inflight_messages": 65535, "session.max_offline_queue_bytes": "64KiB"})
    publisher, subscriber = connect(broker, "pub"), connect(broker, "sub")
    subscriber.subscribe("t", qos=qos)
    for number in range(10):
        publisher.publish("t", bytes([number]) * 10_000, qos, expect=0)
    flying = [subscriber.expect(Publish) for _ in range(6)]
    subscriber.expect_quiet()
    for number, packet in enumerate(flying):
        assert packet.payload[0] == number and packet.packet_id is not None
        subscriber.send(Puback(packet_id=packet.packet_id) if qos == 1 else Pubrec(packet_id=packet.packet_id))
    more = []
    while len(more) < 4:
        packet = subscriber.recv()
        if isinstance(packet, Publish):
            more.append(packet.payload[0])
        else:
            assert isinstance(packet, Pubrel)
    assert more == [6, 7, 8, 9]
    # One that is larger than the whole bound leaves alone.
    reader = connect(broker, "reader")
    reader.subscribe("large", qos=1)
    for _ in range(2):
        publisher.publish("large", bytes(100_000), 1, expect=0)
    first = reader.expect(Publish)
    reader.expect_quiet()
    reader.send(Puback(packet_id=first.packet_id))
    reader.receive("large")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [12_000, 1 << 20])      # fewer than a consumer may have in hand
def test_a_gigabyte_of_an_amqp_consumer(start_broker: Start, size: int) -> None:
    of_amqp(start_broker, (1 << 30) // size // 100 * 100, size)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_gigabyte_of_an_mqtt_consumer(start_broker: Start, connect: Callable[..., Client]) -> None:
    of_mqtt(start_broker, connect, 1000, 1 << 20)
