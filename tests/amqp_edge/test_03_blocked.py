"""connection.blocked and unblocked: who publishes is told when memory or disk is short, and when it is not any more."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash.process import CrashBroker
from kit import smalldisk
from kit.amqp_wire import Wire
from kit.broker import Broker
from kit.client import Client
from kit.watch import metric, resident_bytes, wait_until
from oracle.amqp091 import HEARTBEAT, encode_frame

Start = Callable[..., Broker]
Open = Callable[..., Wire]
HEADROOM = 40 << 20
WAIT_SECONDS = 40.0             # generous: only a broker that does not heal needs them


def publishing(broker: Broker, client: Open, **how: object) -> Wire:
    """A connection that has published, to nobody."""
    one = client(broker).login(**how)
    one.open_channel()
    one.publish(1, "", "nowhere", b"x")
    return one


def ballast(broker: Broker, size: int, *alive: Wire) -> None:
    """Retained messages of MQTT, which nobody blocks: 64 of this size, or none. alive: who says so meanwhile."""
    publisher = Client(broker.address)
    publisher.connect()
    for number in range(64):
        publisher.publish(f"ballast/{number}", bytes([1]) * size, 1, retain=True)
        publisher.transcript.clear()
        for one in alive:
            one.send_raw(encode_frame(HEARTBEAT, 0, b""))
    publisher.disconnect()


@pytest.fixture
def tight(start_broker: Start) -> Broker:
    """A broker with room for 40 MiB more than it has at its start."""
    free = start_broker({"amqp091.heartbeat": "1s"})
    mark = (resident_bytes(free) + HEADROOM) >> 20
    free.stop()
    return start_broker({"amqp091.memory_high": f"{max(mark, 64)}MiB", "amqp091.heartbeat": "5s"})


def test_memory(tight: Broker, client: Open) -> None:
    """Told once each, and not read meanwhile; who does not publish, or does not know the method, hears nothing."""
    publisher = publishing(tight, client, heartbeat=5)
    unknowing, consumer = publishing(tight, client, capabilities={}), client(tight).login()
    ballast(tight, 1_000_000, publisher)
    assert publisher.read_method() == (0, "connection.blocked", {"reason": "low on memory"})
    assert metric(tight, "fluxmq_amqp_blocked_connections") == 1
    consumer.open_channel(7)
    publisher.send(2, "channel.open")
    unknowing.send(2, "channel.open")
    for _ in range(5):                          # twelve seconds, more than two of its heartbeats
        assert publisher.read_frame().kind == HEARTBEAT
        publisher.send_raw(encode_frame(HEARTBEAT, 0, b""))
    ballast(tight, 0, publisher)
    assert publisher.read_method() == (0, "connection.unblocked", {})
    publisher.expect(2, "channel.open-ok")
    assert unknowing.read_method()[1] == "channel.open-ok"
    for one in (publisher, unknowing, consumer):
        one.close()
    assert "memory is short" in tight.stderr() and "memory is no longer short" in tight.stderr()


def test_who_begins_to_publish_later_is_blocked_too(tight: Broker, client: Open) -> None:
    ballast(tight, 1_000_000)
    one = client(tight).login()
    one.open_channel()
    one.publish(1, "", "nowhere", b"x")
    one.expect(0, "connection.blocked")


@pytest.mark.parametrize("begun", ["half", "transaction"])
def test_who_has_only_begun_is_blocked_too(tight: Broker, client: Open, begun: str) -> None:
    """Half a message, or one that waits for its commit, takes memory as any other does."""
    ballast(tight, 1_000_000)
    one = client(tight).login()
    one.open_channel()
    if begun == "transaction":
        one.call(1, "tx.select")
        one.publish(1, "", "nowhere", b"x")
    else:
        one.send(1, "basic.publish", routing_key="nowhere")
    one.expect(0, "connection.blocked")


def test_a_blocked_client_hears_goodbye(tight: Broker, client: Open) -> None:
    one = publishing(tight, client)
    ballast(tight, 1_000_000)
    one.expect(0, "connection.blocked")
    tight.terminate()
    assert one.expect(0, "connection.close")["reply_code"] == 320


# ── disk ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[CrashBroker, Path]]:
    """A broker whose disk is small, and the disk."""
    with smalldisk.small_disk(tmp_path / "small", "24m") as where:
        (where / "data").mkdir()
        broker = CrashBroker(tmp_path / "broker", {
            "queues": json.dumps([{"name": "q"}]), "storage.dir": str(where / "data")}, {
            "FLUXMQ_TEST_FILE_BYTES": "200000"})
        with broker:
            yield broker, where


def test_disk(small: tuple[CrashBroker, Path], client: Open) -> None:
    """Told, and read all the same: its publishes are refused one by one, what it settles is taken."""
    broker, where = small
    wait_until(lambda: smalldisk.has_reserve(where / "data"))
    one = publishing(broker, client)
    one.socket.settimeout(WAIT_SECONDS)
    filled = smalldisk.fill(where, 300_000)
    while True:
        one.publish(1, "", "q", bytes(50_000))
        one.send(2, "channel.open")
        _, name, arguments = one.read_method()
        if name == "connection.blocked":
            assert arguments == {"reason": "low on disk"}
            one.expect(2, "channel.open-ok")
            break
        assert name == "channel.open-ok"
        one.send(2, "channel.close", reply_code=200)
        if one.read_method()[1] == "connection.blocked":
            break
    filled.unlink()
    while one.read_method()[1] != "connection.unblocked":
        pass
    one.close()
