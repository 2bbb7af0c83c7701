"""A subscriber that does not read costs its bound and no more, and takes nothing from the others.

The clients here stop reading; what the kernel's own buffers take is not known, so the tests send until the broker's
counters say that a bound was reached.
"""
from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from kit.broker import Broker
from kit.client import KEPT, Client
from kit.python import TESTS, environment
from kit.standstill import stand_still
from kit.watch import Memory, metric, metrics, wait_until
from oracle.mqtt import Pingreq, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel

MIB = 1 << 20
HIGH, LOW = 1 * MIB, 256 * 1024
BOUNDS = {"session.send_buffer_high": HIGH, "session.send_buffer_low": LOW, "session.max_inflight_messages": 16,
          "session.max_offline_queue_size": 50, "broker.sys_interval": 0}
SLACK = 28 * MIB        # recycled chunks (16 MiB at most), the kernel's view of our sockets, the allocator
BATCH_BYTES = MIB // 2     # within the high water mark, whatever the kernel's own buffers take
SENT_BYTES_MAX = 256 * MIB

Connect = Callable[..., Client]
Start = Callable[..., Broker]


def numbered(number: int, size: int) -> bytes:
    return b"%08d" % number + b"." * (size - 8)


def number_of(packet: Publish) -> int:
    return int(packet.payload[:8])


def publish_batches(publisher: Client, topic: str, size: int, qos: int) -> Iterator[int]:
    """Publishes batch after batch, each acknowledged before the next; yields how many messages a batch had."""
    numbers = count()
    many = max(2, min(500 if qos == 0 else 40, BATCH_BYTES // size))    # 40 fit into the queue of whoever keeps up
    while True:
        packets = [Publish(topic=topic, payload=numbered(next(numbers), size), qos=qos,
                           packet_id=number + 1 if qos else None) for number in range(many)]
        publisher.send(*packets)
        publisher.transcript.clear()
        if qos == 1:
            for packet in packets:
                publisher.expect(Puback, packet_id=packet.packet_id)
        elif qos == 2:
            for packet in packets:
                publisher.expect(Pubrec, packet_id=packet.packet_id)
            publisher.send(*(Pubrel(packet_id=packet.packet_id) for packet in packets))
            for packet in packets:
                publisher.expect(Pubcomp, packet_id=packet.packet_id)
        yield many


def read_everything(subscriber: Client, first: int, messages: int) -> None:
    """The next messages come whole and in order."""
    for number in range(first, first + messages):
        packet = subscriber.receive()
        assert number_of(packet) == number
        subscriber.transcript.clear()


def drain(subscriber: Client) -> list[int]:
    """The numbers of everything that comes until a PING is answered and nothing is in flight."""
    found: list[int] = []
    packets = 1
    while packets:
        packets = 0
        subscriber.send(Pingreq())
        while not isinstance(packet := subscriber.recv(), Pingresp):
            packets += 1
            if isinstance(packet, Publish):
                found.append(number_of(packet))
                if packet.qos == 1:
                    subscriber.send(Puback(packet_id=packet.packet_id))
                elif packet.qos == 2:
                    subscriber.send(Pubrec(packet_id=packet.packet_id))
            elif isinstance(packet, Pubrel):
                subscriber.send(Pubcomp(packet_id=packet.packet_id))
            subscriber.transcript.clear()
    return found


@pytest.mark.parametrize("size", [64, 256 * 1024])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_one_that_never_reads(start_broker: Start, connect: Connect, qos: int, size: int) -> None:
    broker = start_broker(BOUNDS)
    slow = connect(broker, "slow", receive_buffer=4096)
    fast, publisher = connect(broker, "fast"), connect(broker, "pub")
    slow.subscribe("t", qos=qos)
    fast.subscribe("t", qos=qos)
    reason = "queue_full" if qos else "buffer_full"
    memory = Memory(broker)
    sent = 0
    for messages in publish_batches(publisher, "t", size, qos):
        read_everything(fast, sent, messages)       # whatever becomes of the other one
        sent += messages
        if metric(broker, "fluxmq_messages_dropped_total", reason=reason) > messages:
            break
        assert sent * size < SENT_BYTES_MAX, "the broker keeps it all"
    assert memory.grown < HIGH + 64 * size + SLACK
    got = drain(slow)
    assert got == sorted(set(got))                  # in order, none twice
    seen = metrics(broker)
    assert len(got) + seen[f'fluxmq_messages_dropped_total{{reason="{reason}"}}'] == sent
    dropped = [value for name, value in seen.items() if name.startswith("fluxmq_messages_dropped_total")]
    assert sum(dropped) == sent - len(got)      # under this reason and no other
    # It reads again, so it is served again.
    publisher.publish("t", numbered(sent, size), qos)
    assert number_of(slow.receive()) == sent
    read_everything(fast, sent, 1)
    wait_until(lambda: metric(broker, "fluxmq_queued_messages") == metric(broker, "fluxmq_inflight_messages") == 0)


SUBSCRIBER = """
import sys
from kit.client import Client
from kit.watch import *
from oracle.mqtt import Publish
client = Client(("127.0.0.1", int(sys.argv[1])))
client.connect("stopped")
client.subscribe("t", qos=1)
print("subscribed", flush=True)
while True:
    packet = client.receive()
    print(int(packet.payload[:8]), flush=True)
    client.transcript.clear()
    if packet.payload.endswith(b"!"):
        break
"""


def test_a_large_payload_is_in_memory_once(start_broker: Start, connect: Connect) -> None:
    """40 of 256 KiB wait for each of 20 subscribers that do not read: 200 MiB if each had its own."""
    size, many, subscribers = 256 * 1024, 40, 20
    broker = start_broker({"session.send_buffer_high": 64 * MIB, "session.send_buffer_low": MIB,
                           "broker.sys_interval": 0})
    for number in range(subscribers):
        connect(broker, f"slow{number}", receive_buffer=4096).subscribe("t")
    publisher = connect(broker, "pub")
    memory = Memory(broker)
    for number in range(many):
        publisher.publish("t", numbered(number, size), 1, expect=0)
    assert metric(broker, "fluxmq_messages_sent_total", qos="0") == many * subscribers
    assert many * size // 4 < memory.grown < many * size + SLACK     # some of it is the kernel's by now


def test_a_process_that_is_stopped(start_broker: Start, connect: Connect) -> None:
    """SIGSTOP: the kernel keeps its connection alive, nobody reads."""
    broker = start_broker(BOUNDS)
    fast, publisher = connect(broker, "fast"), connect(broker, "pub")
    fast.subscribe("t", qos=1)
    stopped = subprocess.Popen([sys.executable, "-P", "-c", SUBSCRIBER, str(broker.address[1])], stdout=subprocess.PIPE,
                               env=environment(TESTS))
    assert stopped.stdout is not None
    try:
        assert stopped.stdout.readline() == b"subscribed\n"
        stand_still(stopped.pid)
        sent = 0
        memory = Memory(broker)
        for messages in publish_batches(publisher, "t", 16 * 1024, 1):
            read_everything(fast, sent, messages)
            sent += messages
            if metric(broker, "fluxmq_messages_dropped_total", reason="queue_full"):
                break
        assert memory.grown < HIGH + SLACK
        dropped = metric(broker, "fluxmq_messages_dropped_total", reason="queue_full")
        stopped.send_signal(signal.SIGCONT)
        wait_until(lambda: metric(broker, "fluxmq_queued_messages") == 0)
        publisher.publish("t", numbered(sent, 64) + b"!", 1)
        got = [int(line) for line in stopped.stdout]
        assert got == sorted(set(got))
        assert len(got) == sent - dropped + 1 and got[-1] == sent
        assert stopped.wait(20) == 0
    finally:
        stopped.kill()
        stopped.wait()
        stopped.stdout.close()


def test_disconnect_on_full(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(BOUNDS | {"session.disconnect_on_full": True})
    slow = connect(broker, "slow", receive_buffer=4096)
    publisher = connect(broker, "pub")
    slow.subscribe("t")
    for _ in publish_batches(publisher, "t", 64 * 1024, 0):
        publisher.expect_quiet()
        if metric(broker, "fluxmq_disconnections_total", reason="send_buffer_full"):
            break
    assert metric(broker, "fluxmq_connections") == 1
    assert metric(broker, "fluxmq_sessions") == 1
    assert "send buffer full" in broker.stderr() and "client_id=slow" in broker.stderr()


def test_write_timeout(start_broker: Start, connect: Connect) -> None:
    """Output that makes no progress ends the connection, though the client goes on sending."""
    broker = start_broker(BOUNDS | {"server.mqtt.tcp.plain.write_timeout": 0.3})
    slow = connect(broker, "slow", receive_buffer=4096)
    fine, publisher = connect(broker, "fine"), connect(broker, "pub")
    slow.subscribe("t")
    fine.subscribe("u")
    for _ in publish_batches(publisher, "t", 64 * 1024, 0):
        publisher.expect_quiet()
        if metric(broker, "fluxmq_disconnections_total", reason="write_timeout"):
            break
        slow.send_to_the_end(b"\xc0\x00")
    publisher.publish("u", b"x")
    fine.receive("u", b"x")
    assert metric(broker, "fluxmq_connections") == 2


@pytest.mark.parametrize("policy", ["evict", "reject"])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_offline_queue_by_count(start_broker: Start, connect: Connect, policy: str, qos: int) -> None:
    broker = start_broker(BOUNDS | {"session.offline_queue_policy": policy})
    away = connect(broker, "away", **KEPT)
    away.subscribe("t", qos=qos)
    away.disconnect()
    publisher = connect(broker, "pub")
    for number in range(80):
        publisher.publish("t", numbered(number, 16), qos)
    seen = metrics(broker)
    assert seen["fluxmq_queued_messages"] == 50
    assert seen["fluxmq_queued_bytes"] == 50 * (16 + len("t"))
    assert seen['fluxmq_messages_dropped_total{reason="queue_full"}'] == 30
    away = connect(broker, "away", **KEPT)
    assert drain(away) == (list(range(30, 80)) if policy == "evict" else list(range(50)))


@pytest.mark.parametrize("policy", ["evict", "reject"])
def test_the_offline_queue_by_bytes(start_broker: Start, connect: Connect, policy: str) -> None:
    size = 16 * 1024
    broker = start_broker(BOUNDS | {"session.offline_queue_policy": policy, "session.max_offline_queue_bytes": "64KiB"})
    away = connect(broker, "away", **KEPT)
    away.subscribe("t", qos=1)
    away.disconnect()
    publisher = connect(broker, "pub")
    for number in range(10):
        publisher.publish("t", numbered(number, size), 1)
    assert metric(broker, "fluxmq_queued_bytes") <= 64 * 1024
    kept = int(metric(broker, "fluxmq_queued_messages"))
    assert kept == 64 * 1024 // (size + 1)
    assert metric(broker, "fluxmq_messages_dropped_total", reason="queue_full") == 10 - kept
    away = connect(broker, "away", **KEPT)
    assert drain(away) == (list(range(10 - kept, 10)) if policy == "evict" else list(range(kept)))


def test_too_large_for_its_receiver(start_broker: Start, connect: Connect) -> None:
    """[MQTT-3.1.2-25]: as if it had been sent; what comes behind it is."""
    broker = start_broker()
    small = connect(broker, "small", properties={"maximum_packet_size": 100})
    small.subscribe("t", qos=1)
    publisher = connect(broker, "pub")
    for qos in (0, 1):
        publisher.publish("t", b"x" * 200, qos)
        publisher.publish("t", b"fits", qos)
        small.receive("t", b"fits")
    assert metric(broker, "fluxmq_messages_dropped_total", reason="too_large") == 2
    assert metric(broker, "fluxmq_inflight_messages") == 0
