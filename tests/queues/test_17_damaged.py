"""A file of one queue is damaged: that queue stops and says so, the others go on."""
from __future__ import annotations

import random
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from crash.process import CrashBroker
from kit.client import Client, Nothing
from kit.watch import wait_until
from oracle.mqtt import Puback, Publish
from queues.conftest import admin, consume, order, put

from fluxmq.app.admin_client import AdminError

Connect = Callable[..., Client]

UNSPECIFIED = 0x80
MESSAGES = 160
DAMAGED = 80        # behind what one read brings in; not in the last file, which a start reads as a whole


def metric(broker: CrashBroker, name: str) -> float:
    host, port = broker.health
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name + " ")).split()[1])


def payload(queue: str, number: int) -> bytes:
    return random.Random(f"{queue} {number}").randbytes(20_000)


@pytest.fixture
def broker(tmp_path: Path, connect: Connect) -> CrashBroker:
    """Queues whose messages only segments have; a byte of one of `bad` is another now."""
    broker = CrashBroker(tmp_path / "broker", {
        "queues": '[{"name": "good"}]', "queue_manager.segment_size": "1MiB", "queue_manager.compression": "none"},
        {"FLUXMQ_TEST_FILE_BYTES": "100000"})
    broker.start()
    admin(broker, "PUT", "queues", "bad", body={"type": "classic"})
    for name in ("bad", "good"):
        put(connect(broker), name, *(payload(name, number) for number in range(MESSAGES)))
    broker.restart()        # with a last checkpoint: nothing of it is in the journal
    broker.kill()
    wanted = payload("bad", DAMAGED)
    file = next(path for path in (tmp_path / "broker" / "data" / "queues").glob("*/*.seg")
                if wanted in path.read_bytes())
    data = bytearray(file.read_bytes())
    data[data.index(wanted) + 500] ^= 1
    file.write_bytes(data)
    broker.start()
    return broker


def test_it_alone_stops(broker: CrashBroker, connect: Connect) -> None:
    try:
        consumer = connect(broker)
        consume(consumer, "bad", ack="manual", prefetch=2)
        consumer.timeout = 30.0
        held = consumer.receive()
        consumer.timeout = 0.3
        while admin(broker, "GET", "queues", "bad")["state"] == "running":
            try:
                packet = consumer.receive()
            except Nothing:
                continue
            consumer.timeout = 30.0
            order(consumer, "ack", packet)
            consumer.transcript.clear()
            consumer.timeout = 0.3
        consumer.timeout = 30.0
        described = admin(broker, "GET", "queues", "bad")
        assert ".seg is damaged at offset" in described["damage"] and "fluxmq log repair" in described["damage"]
        assert "a queue is stopped, the others go on" in broker.stderr()
        assert metric(broker, "fluxmq_queues_damaged") == 1
        order(consumer, "ack", held)        # what was in hand
        publisher = connect(broker)
        packet_id = publisher.next_packet_id()
        publisher.send(Publish(topic="$queue/bad", payload=b"x", qos=1, packet_id=packet_id))
        answer = publisher.answer(Puback, packet_id=packet_id)
        assert answer.reason == UNSPECIFIED and "damaged" in str(answer.prop("reason_string"))
        publisher.subscribe("$queue/bad", qos=1, expect=[UNSPECIFIED])
        with pytest.raises(AdminError, match="is stopped"):
            admin(broker, "POST", "queues", "bad", "messages", body={"payload": "x"})
        before = broker.checkpoints()
        other = connect(broker)
        other.timeout = 30.0
        consume(other, "good", ack="manual", prefetch=5)
        for _ in range(MESSAGES):
            order(other, "ack", other.receive())
            other.transcript.clear()
        put(connect(broker), "good", *(payload("good", number) for number in range(20)))
        wait_until(lambda: broker.checkpoints() > before)
        assert broker.terminate() == 0
        broker.start()
        assert admin(broker, "GET", "queues", "bad")["state"] == "running", "until somebody reads it"
        admin(broker, "DELETE", "queues", "bad")
        with pytest.raises(AdminError, match="no queue"):
            admin(broker, "GET", "queues", "bad")
        broker.check()
    finally:
        broker.stop()
