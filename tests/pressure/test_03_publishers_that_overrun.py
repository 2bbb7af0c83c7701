"""Publishers that are faster than subscribers or disk are slowed by not being read; memory stays within bounds."""
from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.broker import Broker
from kit.client import KEPT, TIMEOUT, Client, Closed
from kit.slowdisk import SlowDisk
from kit.watch import Memory, metric, wait_until
from kit.websocket import BINARY, CLOSE, WebSocket
from oracle import mqtt
from oracle.mqtt import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel

from fluxmq.model import limits

MIB = 1 << 20
HIGH = 1 * MIB
SLACK = 28 * MIB

Connect = Callable[..., Client]
Start = Callable[..., Broker]


def raw_socket(client: Client) -> socket.socket:
    assert isinstance(client.transport, socket.socket)
    return client.transport


def test_an_open_loop_of_qos_0(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"session.send_buffer_high": HIGH, "session.send_buffer_low": HIGH // 4,
                           "broker.sys_interval": 0})
    slow = connect(broker, "slow", receive_buffer=4096)
    slow.subscribe("t")
    other = connect(broker, "other")
    other.subscribe("u", qos=1)
    publishers = [connect(broker, f"pub{number}") for number in range(5)]
    memory = Memory(broker)
    block = Publish(topic="t", payload=b"x" * 60).encode() * 1000
    left = {raw_socket(publisher): block * 60 for publisher in publishers}
    selector = selectors.DefaultSelector()
    for raw in left:
        raw.setblocking(False)
        selector.register(raw, selectors.EVENT_WRITE)
    turns = 0
    while left:
        writable = selector.select(TIMEOUT)
        assert writable, "the broker stopped reading although nothing of it is kept"
        for raw in [key.fileobj for key, _ in writable]:
            assert isinstance(raw, socket.socket)
            left[raw] = left[raw][raw.send(left[raw][:256 * 1024]):]
            if not left[raw]:
                del left[raw]
                selector.unregister(raw)
        turns += 1
        if turns % 50 == 0:
            other.publish("u", b"still here", 1)
            other.receive("u", b"still here")
    selector.close()
    wait_until(lambda: metric(broker, "fluxmq_messages_received_total", qos="0") == 5 * 60 * 1000)
    assert metric(broker, "fluxmq_messages_dropped_total", reason="buffer_full") > 0
    assert memory.grown < HIGH + SLACK
    assert other.expect_quiet() is None and turns > 0


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(tmp_path, monkeypatch)


def durable_subscriber(connect: Connect, broker: Broker) -> Client:
    subscriber = connect(broker, "durable", **KEPT)
    subscriber.subscribe("t/#", qos=1)
    subscriber.disconnect()
    return subscriber


def test_the_backlog_of_the_disk_is_bounded(start_broker: Start, connect: Connect, disk: SlowDisk) -> None:
    """Whoever publishes for the disk is not read any more from JOURNAL_BACKLOG_BYTES_MAX on; everybody else is."""
    broker = start_broker({"storage.type": "rocksdb", "broker.receive_maximum": 65535,
                           "session.max_offline_queue_size": 100, "broker.sys_interval": 0})
    durable_subscriber(connect, broker)
    publishers = [connect(broker, f"pub{number}", version=4) for number in range(2)]
    other = connect(broker, "other")
    other.subscribe("u", qos=0)
    size = 512 * 1024
    most = 2 * limits.JOURNAL_BACKLOG_BYTES_MAX // size
    memory = Memory(broker)
    sent: list[int] = []
    rest: list[bytes] = []
    with disk.held():
        for publisher in publishers:
            raw = raw_socket(publisher)
            raw.settimeout(0.5)
            packet, at = b"", 0
            sent.append(0)
            with contextlib.suppress(TimeoutError):
                while sent[-1] < most:
                    number = sent[-1] + 1
                    packet = packet or Publish(topic="t/1", payload=bytes(size), qos=1, packet_id=number).encode(4)
                    at += raw.send(packet[at:])
                    if at == len(packet):
                        sent[-1], packet, at = sent[-1] + 1, b"", 0
            raw.settimeout(TIMEOUT)
            rest.append(packet[at:])
        assert sum(sent) < most, "they are read although nothing reaches the disk"
        # The backlog once as records (the buffer doubles as it grows), once as messages of the session's queue.
        assert memory.grown < 3 * limits.JOURNAL_BACKLOG_BYTES_MAX + SLACK
        assert metric(broker, "fluxmq_packets_sent_total", type="puback") == 0
        other.publish("u", b"x")
        other.receive("u", b"x")
    for publisher, count, last in zip(publishers, sent, rest, strict=True):
        publisher.send(last)
        publisher.transcript.clear()
        for number in range(count + bool(last)):
            publisher.expect(Puback, packet_id=number + 1)


def test_receive_maximum_of_a_client_that_cannot_be_told(start_broker: Start, connect: Connect, disk: SlowDisk) -> None:
    """broker.receive_maximum: of a 3.1.1 client no more is read until something is acknowledged."""
    broker = start_broker({"storage.type": "rocksdb", "broker.receive_maximum": 10})
    durable_subscriber(connect, broker)
    old, new = connect(broker, "old", version=4), connect(broker, "new")
    other = connect(broker, "other")
    with disk.held():
        old.send(*(Publish(topic="t/1", qos=1, packet_id=number) for number in range(1, 101)))
        wait_until(lambda: metric(broker, "fluxmq_messages_received_total", qos="1") >= 10)
        other.expect_quiet()
        assert metric(broker, "fluxmq_messages_received_total", qos="1") == 10
        new.send(*(Publish(topic="t/1", qos=1, packet_id=number) for number in range(1, 12)))
        new.expect_closed(0x93)
    for number in range(1, 101):
        old.expect(Puback, packet_id=number)
    assert metric(broker, "fluxmq_messages_received_total", qos="1") == 100 + 10


def test_websocket_closes_behind_what_waits(start_broker: Start, connect: Connect, disk: SlowDisk) -> None:
    """A Close does not overtake packets that came before it and are not read yet."""
    broker = start_broker({"storage.type": "rocksdb", "broker.receive_maximum": 10,
                           "server.mqtt.websocket.plain.addr": "127.0.0.1:0"})
    durable_subscriber(connect, broker)
    web = WebSocket.open(broker.addresses["mqtt/websocket/plain"])
    client = Client(web, 4)
    client.connect("web")
    with disk.held():
        for number in range(1, 101):
            web.frame(BINARY, Publish(topic="t/1", qos=1, packet_id=number).encode(4))
        web.frame(CLOSE, b"\x03\xe8")
        wait_until(lambda: metric(broker, "fluxmq_messages_received_total", qos="1") >= 10)
    wait_until(lambda: metric(broker, "fluxmq_messages_received_total", qos="1") == 100)
    with pytest.raises(Closed):
        while True:
            assert isinstance(client.recv(), Puback)


def test_what_never_left_is_no_duplicate(start_broker: Start, connect: Connect, disk: SlowDisk) -> None:
    """QoS 2 to a kept session waits for the disk; if the client is gone before, the first sending has no DUP."""
    broker = start_broker({"storage.type": "rocksdb"})
    subscriber = connect(broker, "durable", **KEPT)
    subscriber.subscribe("t/#", qos=2)
    publisher = connect(broker, "pub")
    with disk.held():
        publisher.send(Publish(topic="t/1", payload=b"x", qos=2, packet_id=1))
        subscriber.expect_quiet()
        subscriber.close()
        wait_until(lambda: metric(broker, "fluxmq_connections") == 1)
        again = Client(broker.address)
        again.send(mqtt.Connect(client_id="durable", **KEPT))
    publisher.expect(Pubrec, packet_id=1)
    again.expect(Connack, session_present=True)
    assert not again.expect(Publish, payload=b"x").dup
    again.close()
    third = connect(broker, "durable", **KEPT)
    assert third.expect(Publish, payload=b"x").dup


def test_qos_2_does_not_lock_itself_out(start_broker: Start, connect: Connect) -> None:
    """A 3.1.1 client may send all its PUBLISH before the first PUBREL: what is answered with PUBREC does not count."""
    broker = start_broker({"broker.receive_maximum": 10})
    client = connect(broker, version=4)
    client.send(*(Publish(topic="t", qos=2, packet_id=number) for number in range(1, 101)),
                *(Pubrel(packet_id=number) for number in range(1, 101)))
    for kind in (Pubrec, Pubcomp):
        for number in range(1, 101):
            client.expect(kind, packet_id=number)


def test_a_disk_of_50_ms(start_broker: Start, connect: Connect, tmp_path: Path,
                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Five publishers share its syncs: everything is acknowledged, in order, and the offline session has it."""
    SlowDisk(tmp_path, monkeypatch, milliseconds=50)
    broker = start_broker({"storage.type": "rocksdb"})
    durable_subscriber(connect, broker)
    publishers = [connect(broker, f"pub{number}") for number in range(5)]
    for number, publisher in enumerate(publishers):
        publisher.send(*(Publish(topic=f"t/{number}", payload=b"%d" % at, qos=1, packet_id=at) for at in range(1, 201)))
    for publisher in publishers:
        for at in range(1, 201):
            publisher.expect(Puback, packet_id=at)
    assert metric(broker, "fluxmq_queued_messages") == 1000
    broker.kill()
    broker.start()
    subscriber = connect(broker, "durable", **KEPT)
    got: dict[str, list[int]] = {}
    for _ in range(1000):
        packet = subscriber.receive()
        got.setdefault(packet.topic, []).append(int(packet.payload))
        subscriber.transcript.clear()
    assert got == {f"t/{number}": list(range(1, 201)) for number in range(5)}
