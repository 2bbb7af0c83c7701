"""connection.blocked and unblocked: who publishes is told when memory or disk is short, and when it is not any more."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash.process import CrashBroker
from kit import smalldisk
from kit.amqp import AmqpClient, capabilities
from kit.broker import Broker
from kit.client import Client
from kit.watch import metric, resident_bytes, wait_until
from oracle.amqp091 import HEARTBEAT, encode_frame

Start = Callable[..., Broker]
Open = Callable[..., AmqpClient]
KNOWS = capabilities("connection.blocked")
HEADROOM = 40 << 20
WAIT_SECONDS = 40.0             # generous: only a broker that does not heal needs them


def publishing(broker: Broker, client: Open, **how: object) -> AmqpClient:
    """A connection that has published, to nobody."""
    one = client(broker).connect(**how)
    one.channel()
    one.publish(1, b"nowhere")
    return one


def ballast(broker: Broker, size: int, *alive: AmqpClient) -> None:
    """Retained messages of MQTT, which nobody blocks: 64 of this size, or none. alive: who says so meanwhile."""
    publisher = Client(broker.address)
    publisher.connect()
    for number in range(64):
        publisher.publish(f"ballast/{number}", bytes([1]) * size, 1, retain=True)
        publisher.transcript.clear()
        for one in alive:
            one.send_bytes(encode_frame(HEARTBEAT, 0, b""))
    publisher.disconnect()


@pytest.fixture
def tight(start_broker: Start) -> Broker:
    """A broker with room for 40 MiB more than it has at its start."""
    free = start_broker({"amqp091.heartbeat": "1s"})
    mark = (resident_bytes(free) + HEADROOM) >> 20
    free.stop()
    return start_broker({"amqp091.memory_high": f"{max(mark, 64)}MiB", "amqp091.heartbeat": "1s"})


def test_memory(tight: Broker, client: Open) -> None:
    """Told once each, and not read meanwhile; who does not publish, or does not know the method, hears nothing."""
    publisher = publishing(tight, client, properties=KNOWS, heartbeat=1)
    unknowing, consumer = publishing(tight, client), client(tight).connect(properties=KNOWS)
    ballast(tight, 1_000_000, publisher)
    assert publisher.expect("connection.blocked") == [b"low on memory"]
    assert metric(tight, "fluxmq_amqp_blocked_connections") == 1
    consumer.channel(7)
    publisher.send("channel.open", b"", channel=2)
    unknowing.send("channel.open", b"", channel=2)
    for _ in range(6):                          # three seconds, more than two of its heartbeats
        publisher.expect("heartbeat")
        publisher.send_bytes(encode_frame(HEARTBEAT, 0, b""))
    ballast(tight, 0, publisher)
    assert publisher.expect("connection.unblocked") == []
    publisher.expect("channel.open-ok", 2)
    assert unknowing.recv().name == "channel.open-ok"
    for one in (publisher, unknowing, consumer):
        one.disconnect()
    assert "memory is short" in tight.stderr() and "memory is no longer short" in tight.stderr()


def test_who_begins_to_publish_later_is_blocked_too(tight: Broker, client: Open) -> None:
    ballast(tight, 1_000_000)
    one = client(tight).connect(properties=KNOWS)
    one.channel()
    one.publish(1, b"nowhere")
    one.expect("connection.blocked")


@pytest.mark.parametrize("begun", ["half", "transaction"])
def test_who_has_only_begun_is_blocked_too(tight: Broker, client: Open, begun: str) -> None:
    """Half a message, or one that waits for its commit, takes memory as any other does."""
    ballast(tight, 1_000_000)
    one = client(tight).connect(properties=KNOWS)
    one.channel()
    if begun == "transaction":
        one.send("tx.select", channel=1)
        one.expect("tx.select-ok", 1)
        one.publish(1, b"nowhere")
    else:
        one.send("basic.publish", 0, b"", b"nowhere", False, False, channel=1)
    one.expect("connection.blocked")


def test_a_blocked_client_hears_goodbye(tight: Broker, client: Open) -> None:
    one = publishing(tight, client, properties=KNOWS)
    ballast(tight, 1_000_000)
    one.expect("connection.blocked")
    tight.terminate()
    assert one.expect("connection.close")[0] == 320


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
    one = publishing(broker, client, properties=KNOWS)
    one.raw.settimeout(WAIT_SECONDS)
    filled = smalldisk.fill(where, 300_000)
    while True:
        one.publish(1, b"q", bytes(50_000))
        one.send("channel.open", b"", channel=2)
        found = one.recv()
        if found.name == "connection.blocked":
            assert found.arguments == [b"low on disk"]
            one.expect("channel.open-ok", 2)
            break
        assert found.name == "channel.open-ok"
        one.send("channel.close", 200, b"", 0, 0, channel=2)
        if one.recv().name == "connection.blocked":
            break
    filled.unlink()
    while one.recv().name != "connection.unblocked":
        pass
    one.disconnect()
