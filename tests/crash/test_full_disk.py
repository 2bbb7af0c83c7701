"""A disk that is full: what is to be durable waits without an answer, everything else goes on, /ready says so, nothing
is lost, and it heals by itself when somebody makes room. Checkpoints included."""
from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.process import CrashBroker
from kit import smalldisk
from kit.client import Client, Nothing
from kit.watch import wait_until
from oracle.mqtt import Connack, Connect, Puback, Publish, Pubrec

KEPT = {"clean_start": False, "properties": {"session_expiry_interval": 1000}}
PAYLOAD = random.Random(1).randbytes(20_000)        # what RocksDB cannot make smaller
WAIT_SECONDS = 40.0             # generous: only a broker that does not heal needs them


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with smalldisk.small_disk(tmp_path / "small") as where:
        yield where


def ready(broker: CrashBroker) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(*broker.health, timeout=10)
    try:
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def until_ready(broker: CrashBroker, status: int) -> dict[str, object]:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found, body = ready(broker)
        if found == status:
            return body
        assert time.monotonic() < deadline, (found, body)
        time.sleep(0.05)


def until_checkpoint(broker: CrashBroker, before: int) -> None:
    """More than there were before."""
    deadline = time.monotonic() + WAIT_SECONDS
    while broker.checkpoints() == before:
        assert time.monotonic() < deadline, "no checkpoint although there is space"
        time.sleep(0.05)


@pytest.mark.parametrize(("small_files", "leave"), [(False, 0), (True, 400_000)], ids=["journal", "checkpoint"])
def test_a_full_disk_delays_and_heals(tmp_path: Path, small_disk: Path, small_files: bool, leave: int) -> None:
    broker = CrashBroker(tmp_path / "broker", {"storage.dir": small_disk / "data"},
                         {"FLUXMQ_TEST_FILE_BYTES": "50000" if small_files else str(1 << 30)})
    with broker:
        kept = Client(broker.address)
        kept.connect("kept", **KEPT)
        kept.subscribe("kept/#", qos=2)
        kept.drop()
        publisher, watcher = Client(broker.address), Client(broker.address)
        publisher.connect("publisher")
        watcher.connect("watcher")
        watcher.subscribe("plain/#", qos=1)
        assert ready(broker)[0] == 200
        publisher.publish("kept/1", PAYLOAD, 1)
        ballast = smalldisk.fill(small_disk, leave)
        acknowledged = publish_until_full(publisher, broker)
        # The disk says no now, and whoever asks is told.
        body = until_ready(broker, 503)
        assert body["checks"]["storage"]["status"] == "down"                    # type: ignore[index]
        assert "No space left" in body["checks"]["storage"]["details"]          # type: ignore[index]
        # A session that is to be kept is not promised …
        late = Client(broker.address)
        late.send(Connect(client_id="late", **KEPT))
        with pytest.raises(Nothing):
            late.recv(0.3)
        # … and everybody else goes on: QoS 0, sessions that end with their connection, their acknowledgements.
        other = Client(broker.address)
        other.connect("other")
        other.publish("plain/0", b"zero", 0)
        watcher.receive("plain/0", b"zero")
        other.publish("plain/1", b"one", 1)
        watcher.receive("plain/1", b"one")
        other.send(Publish(topic="kept/late", payload=b"late", qos=2, packet_id=77))
        with pytest.raises(Nothing):
            other.recv(0.3)
        assert ready(broker)[0] == 503
        broker.check()
        if small_files:
            wait_until(lambda: "checkpoint waits for space" in broker.stderr(), WAIT_SECONDS)
        before = broker.checkpoints()
        ballast.unlink()
        late.timeout = publisher.timeout = other.timeout = WAIT_SECONDS
        late.expect(Connack, reason=0)
        publisher.expect(Puback, packet_id=5000 + acknowledged)
        other.expect(Pubrec, packet_id=77)
        until_ready(broker, 200)
        if small_files:
            until_checkpoint(broker, before)
        broker.kill()
        broker.start()
        kept = Client(broker.address)
        assert kept.connect("kept", **KEPT).session_present
        kept.receive("kept/1", PAYLOAD)
        for number in range(acknowledged + 1):
            kept.receive(f"kept/n/{number}", PAYLOAD)
        kept.receive("kept/late", b"late")
        late = Client(broker.address)
        assert late.connect("late", **KEPT).session_present


def publish_until_full(publisher: Client, broker: CrashBroker) -> int:
    """One message after the other until one is not acknowledged because the disk is full, and not because it, or the
    machine, is busy; returns how many were."""
    for number in range(1000):
        publisher.send(Publish(topic=f"kept/n/{number}", payload=PAYLOAD, qos=1, packet_id=5000 + number))
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                publisher.expect(Puback, timeout=0.5, packet_id=5000 + number)
                break
            except Nothing:
                if ready(broker)[0] == 503:
                    return number
            assert time.monotonic() < deadline, "neither acknowledged nor full"
        publisher.expect_nothing(0.03)          # the clock ticks: a checkpoint may begin
    raise AssertionError("the disk does not get full")


def test_a_full_disk_does_not_hold_up_the_end(tmp_path: Path, small_disk: Path) -> None:
    """SIGTERM while an acknowledgement, and perhaps a checkpoint, waits for space: the broker ends, and says by its
    exit code that not everything it was given is on the disk. What it had acknowledged is."""
    broker = CrashBroker(tmp_path / "broker", {"storage.dir": small_disk / "data", "server.shutdown_timeout": "1s"},
                         {"FLUXMQ_TEST_FILE_BYTES": "50000"})
    broker.start()
    try:
        kept = Client(broker.address)
        kept.connect("kept", **KEPT)
        kept.subscribe("kept/#", qos=2)
        kept.drop()
        publisher = Client(broker.address)
        publisher.connect("publisher")
        ballast = smalldisk.fill(small_disk, 200_000)
        acknowledged = publish_until_full(publisher, broker)
        assert broker.terminate() == 4
        assert "Traceback" not in broker.stderr() and "none of it had been acknowledged" in broker.stderr()
        ballast.unlink()
        broker.start()
        kept = Client(broker.address)
        assert kept.connect("kept", **KEPT).session_present
        for number in range(acknowledged):
            kept.receive(f"kept/n/{number}", PAYLOAD)
        kept.expect_quiet()
    finally:
        broker.stop()
