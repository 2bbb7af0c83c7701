"""A disk that is full: publishers are told so, consumers go on, nothing is lost, and it heals when there is space."""
from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash.process import CrashBroker
from kit import smalldisk
from kit.client import Client
from kit.watch import wait_until
from oracle.mqtt import Puback, Publish
from queues.conftest import admin, consume, lag, order, put, users

from fluxmq.app.admin_client import AdminError

Connect = Callable[..., Client]

QUOTA_EXCEEDED = 0x97
WAIT_SECONDS = 40.0             # generous: only a broker that does not heal needs them


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with smalldisk.small_disk(tmp_path / "small", "24m") as where:
        yield where


@pytest.fixture(params=["journal", "checkpoints"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, small_disk: Path) -> Iterator[CrashBroker]:
    queues = [{"name": "q"}, {"name": "s", "type": "stream", "topics": ["plain/#"]}]
    # its data is where admin() looks for the socket
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "data").symlink_to(small_disk / "data")
    (small_disk / "data").mkdir()
    broker = CrashBroker(tmp_path / "broker", {"queues": json.dumps(queues)}, {
        "FLUXMQ_TEST_FILE_BYTES": "200000" if request.param == "checkpoints" else str(1 << 30)})
    with broker:
        yield broker


def publish_until_refused(client: Client, queue: str) -> int:
    """One after the other; returns how many were taken. What was under way when the disk became full is answered, too:
    taken or refused."""
    for number in range(2000):
        packet_id = client.next_packet_id()
        payload = b"%06d" % number + random.Random(number).randbytes(20_000)  # nothing makes it smaller
        client.send(Publish(topic=f"$queue/{queue}", payload=payload, qos=1, packet_id=packet_id))
        reason = client.answer(Puback, packet_id=packet_id).reason
        client.transcript.clear()
        if reason:
            assert reason == QUOTA_EXCEEDED
            return number
    raise AssertionError("the disk does not get full")


def test_publishes_are_refused_and_consumers_go_on(broker: CrashBroker, small_disk: Path, connect: Connect) -> None:
    publisher, consumer = connect(broker), connect(broker)
    publisher.timeout = consumer.timeout = WAIT_SECONDS
    wait_until(lambda: smalldisk.has_reserve(small_disk / "data"))
    ballast = smalldisk.fill(small_disk, 1_500_000)
    taken = publish_until_refused(publisher, "q")
    assert taken > 10
    wait_until(lambda: broker.ready() == 503)
    put(publisher, "s", b"x", expect=QUOTA_EXCEEDED)
    with pytest.raises(AdminError, match="disk is full") as refused:
        admin(broker, "POST", "queues", "q", "messages", body={"payload": "x"})
    assert refused.value.status == 507
    # Whoever does not publish to queues goes on, and so do they that consume: all of it, each by its own answer.
    watcher = connect(broker)
    watcher.subscribe("plain/#", qos=1)
    publisher.publish("plain/1", b"x", 1)
    watcher.receive("plain/1", b"x")
    consume(consumer, "q", ack="manual", prefetch=5)
    settled = set()
    for number in range(taken):
        packet = consumer.receive()
        consumer.transcript.clear()
        assert packet.payload[:6] == b"%06d" % number and users(packet)["delivery-count"] == "1"
        if number % 4 == 1:
            order(consumer, "nack", packet, delay=600_000)
            continue
        if number % 4 == 2:
            order(consumer, "reject", packet)
        else:
            order(consumer, "ack", packet)
        settled.add(number)
    consumer.close()
    # A crash in this state, too.
    broker.kill()
    broker.start()
    left = taken - len(settled)
    assert lag(broker, "q") == left
    assert lag(broker, "q.dlq") == len([number for number in settled if number % 4 == 2])
    ballast.unlink()
    # Not before the reserve is held again: an attempt to take it that found no space may still be under way.
    wait_until(lambda: smalldisk.has_reserve(small_disk / "data"), WAIT_SECONDS)
    wait_until(lambda: broker.ready() == 200, WAIT_SECONDS)
    publisher = connect(broker)
    put(publisher, "q", b"healed")
    publisher.publish("plain/2", b"captured", 1)
    assert [message["payload"] for message in admin(broker, "GET", "queues", "s", "messages")["messages"]] == [
        "captured"]
    assert lag(broker, "q") == left + 1


def test_checkpoints_go_on(broker: CrashBroker, small_disk: Path, connect: Connect) -> None:
    """What others have filled stays full: the broker's files take no more than the reserve, and every message that is
    settled makes space."""
    publisher, consumer = connect(broker), connect(broker)
    publisher.timeout = consumer.timeout = WAIT_SECONDS
    wait_until(lambda: smalldisk.has_reserve(small_disk / "data"))
    smalldisk.fill(small_disk, 1_000_000)
    taken = publish_until_refused(publisher, "q")
    wait_until(lambda: broker.ready() == 503)
    consume(consumer, "q", ack="manual", prefetch=1)
    for number in range(taken):
        before = broker.checkpoints()
        packet = consumer.receive()
        consumer.transcript.clear()
        if number % (taken // 2) == 0:
            order(consumer, "reject", packet)
            wait_until(lambda before=before: broker.checkpoints() > before, WAIT_SECONDS)
        else:
            order(consumer, "ack", packet)
    consumer.close()
    broker.kill()
    broker.start()
    assert lag(broker, "q") == 0 and lag(broker, "q.dlq") == len(range(0, taken, taken // 2))


def test_it_starts_on_a_full_disk(broker: CrashBroker, small_disk: Path, connect: Connect) -> None:
    """What was there can be consumed after a start that finds no space at all, not even the reserve."""
    put(connect(broker), "q", *(b"%d" % number for number in range(20)))
    broker.kill()
    (small_disk / "data" / "reserve").unlink(missing_ok=True)
    ballast = smalldisk.fill(small_disk, 300_000)
    broker.start()
    wait_until(lambda: broker.ready() == 503)
    put(connect(broker), "q", b"x", expect=QUOTA_EXCEEDED)
    consumer = connect(broker)
    consume(consumer, "q", ack="manual")
    for number in range(20):
        order(consumer, "ack", consumer.receive(payload=b"%d" % number))
    ballast.unlink()
    wait_until(lambda: broker.ready() == 200, WAIT_SECONDS)
    put(connect(broker), "q", b"x")


# Each way to empty it with one of the brokers, each broker at least once; with `-m soak` the other pairs.
@pytest.mark.parametrize(("broker", "emptied"), [
    ("journal", "purged"), ("checkpoints", "consumed"), ("journal", "deleted"),
    *(pytest.param(*pair, marks=pytest.mark.soak) for pair in (
        ("checkpoints", "purged"), ("journal", "consumed"), ("checkpoints", "deleted")))], indirect=["broker"])
def test_a_disk_that_its_own_messages_have_filled_is_free_again_without_them(
        broker: CrashBroker, small_disk: Path, connect: Connect, emptied: str) -> None:
    """Nothing else is on this disk. The checkpoint that waits for space moves only what still counts, so with the
    messages gone it needs none, and the journal's files go while the broker runs."""
    publisher = connect(broker)
    publisher.timeout = WAIT_SECONDS
    wait_until(lambda: smalldisk.has_reserve(small_disk / "data"))
    admin(broker, "PUT", "queues", "big", body={"type": "classic"})
    taken = publish_until_refused(publisher, "big")
    assert taken > 100
    wait_until(lambda: broker.ready() == 503)
    if emptied == "purged":
        admin(broker, "POST", "queues", "big", "purge")
    elif emptied == "deleted":
        admin(broker, "DELETE", "queues", "big")
        admin(broker, "PUT", "queues", "big", body={"type": "classic"})
    else:
        consumer = connect(broker)
        consumer.timeout = WAIT_SECONDS
        consume(consumer, "big", ack="manual", prefetch=10)
        for _ in range(taken):
            order(consumer, "ack", consumer.receive())
            consumer.transcript.clear()
    wait_until(lambda: broker.ready() == 200, WAIT_SECONDS)
    publisher = connect(broker)
    publisher.timeout = WAIT_SECONDS
    again = publish_until_refused(publisher, "big")
    assert again > taken // 2, "what was there before is still in the way"
