"""What outlives a journal file: backlogs go to segments and come back, whatever ends the broker and when."""
from __future__ import annotations

import http.client
import json
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kit.broker import Broker
from kit.client import Client
from kit.python import environment
from kit.slowdisk import SlowDisk
from kit.watch import wait_until
from oracle.mqtt import Puback, Publish
from queues.conftest import consume, users

Start = Callable[..., Broker]
Connect = Callable[..., Client]

SMALL_FILES = {"storage.journal_file_size": "1MiB", "queue_manager.cache_size": "1MiB",
               "queue_manager.segment_size": "1MiB"}
SIZE = 20_000
MANY = 400      # 8 MB: several journal files, several segments


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the admin socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def payload(number: int) -> bytes:
    return b"%06d" % number + random.Random(number).randbytes(SIZE - 6)      # nothing to compress


def fill(client: Client, queue: str, first: int, end: int, **asked: object) -> None:
    properties = [("user_property", (name.replace("_", "-"), str(value))) for name, value in asked.items()]
    for number in range(first, end):
        client.publish(f"$queue/{queue}", payload(number), 1, expect=0, properties=properties)
        client.transcript.clear()


def numbers(client: Client, count: int) -> list[int]:
    found = []
    for _ in range(count):
        packet = client.receive()
        client.transcript.clear()
        assert len(packet.payload) == SIZE
        found.append(int(packet.payload[:6]))
    return found


def segments(broker: Broker) -> int:
    return len(list((broker.directory / "data" / "queues").rglob("*.seg")))


def journal(broker: Broker) -> set[str]:
    return {path.name for path in (broker.directory / "data").rglob("journal-*.log")}


@pytest.mark.parametrize("how", ["kill", "restart"])
@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_a_backlog_on_disk(how: str, kind: str, start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "q", "type": kind}, **SMALL_FILES)
    publisher = connect(broker)
    fill(publisher, "q", 0, MANY)
    wait_until(lambda: segments(broker) >= 2)
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    fill(connect(broker), "q", MANY, MANY + 50)
    consumer = connect(broker)
    consume(consumer, "q", offset="first")
    assert numbers(consumer, MANY + 50) == list(range(MANY + 50))
    consumer.expect_quiet()


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_killed_again_after_the_checkpoint_of_what_was_replayed(kind: str, start_broker: Start,
                                                                connect: Connect) -> None:
    """Messages that only the journal had are in segments before its files go, though nothing new was ever written."""
    settings = {**SMALL_FILES, "storage.journal_file_size": "4MiB"}
    broker = start_broker({"name": "q", "type": kind}, **settings)
    fill(connect(broker), "q", 0, 150)
    broker.kill()
    before = journal(broker)
    assert segments(broker) == 0 and before
    broker.settings["storage.journal_file_size"] = "1MiB"
    broker.start()
    wait_until(lambda: segments(broker) >= 2 and before.isdisjoint(journal(broker)))
    broker.kill()
    broker.start()
    consumer = connect(broker)
    consume(consumer, "q", offset="first")
    assert numbers(consumer, 150) == list(range(150))
    consumer.expect_quiet()


def test_settled_messages_leave_the_disk(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "q"}, **SMALL_FILES)
    publisher, consumer = connect(broker), connect(broker)
    fill(publisher, "q", 0, MANY)
    wait_until(lambda: segments(broker) >= 3)
    consume(consumer, "q")
    assert numbers(consumer, MANY) == list(range(MANY))
    number = MANY
    while segments(broker) > 2:         # journal files that make checkpoints, which give files back
        assert number < MANY + 1500
        fill(publisher, "q", number, number + 1)
        assert numbers(consumer, 1) == [number]
        number += 1
    broker.restart()
    later = connect(broker)
    consume(later, "q")
    later.expect_quiet()


def test_unsettled_ones_among_settled_ones(start_broker: Start, connect: Connect) -> None:
    """Every tenth message is kept back by a consumer that never acknowledges it; all others go."""
    broker = start_broker({"name": "q"}, **SMALL_FILES)
    publisher, consumer = connect(broker), connect(broker)
    consume(consumer, "q", ack="manual", prefetch=100, visibility_timeout=0)
    held = []
    for number in range(MANY):
        fill(publisher, "q", number, number + 1)
        packet = consumer.receive()
        consumer.transcript.clear()
        if number % 10 == 0:
            held.append(number)
        else:
            told = users(packet)
            consumer.publish("$queue/q/$ack", b"", 1, expect=0, properties=[
                ("user_property", ("message-id", told["message-id"])), ("user_property", ("group-id", "default"))])
    broker.kill()
    broker.start()
    later = connect(broker)
    consume(later, "q")
    found = []
    for _ in held:
        packet = later.receive()
        assert users(packet)["delivery-count"] == "2"
        found.append(int(packet.payload[:6]))
    assert found == held
    later.expect_quiet()


def test_delayed_messages_on_disk(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "q"}, **SMALL_FILES)
    publisher = connect(broker)
    fill(publisher, "q", 0, 150, x_delay=3000)
    broker.kill()
    broker.start()
    consumer = connect(broker)
    consume(consumer, "q")
    wait = [consumer.recv(30.0)]
    assert int(wait[0].payload[:6]) == 0  # type: ignore[attr-defined]
    consumer.close()
    again = connect(broker)
    consume(again, "q")
    assert sorted(numbers(again, 150)) == list(range(150))


def test_log_verify_reads_what_the_broker_wrote(start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "q"}, **SMALL_FILES)
    fill(connect(broker), "q", 0, MANY)
    wait_until(lambda: segments(broker) >= 2)
    broker.terminate()
    done = subprocess.run([sys.executable, "-P", "-m", "fluxmq", "log", "verify", str(broker.directory / "data")],
                          capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_publishers_wait_for_slow_checkpoints_and_go_on(start_broker: Start, connect: Connect, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal file that has grown to several times its size while a checkpoint is under way stops publishers; when
    the next checkpoint begins they go on, and nothing is lost on the way."""
    SlowDisk(tmp_path, monkeypatch, milliseconds=40)
    broker = start_broker({"name": "q"}, **SMALL_FILES)
    publisher = connect(broker)
    window = 300        # 6 MB: more than the file may grow to
    for first in range(0, 3 * window, window):
        for number in range(first, first + window):
            publisher.send(Publish(topic="$queue/q", payload=payload(number), qos=1, packet_id=number - first + 1))
        for at in range(window):
            publisher.expect(Puback, packet_id=at + 1, reason=0)
        publisher.transcript.clear()
    consumer = connect(broker)
    consume(consumer, "q")
    assert numbers(consumer, 3 * window) == list(range(3 * window))


def kept(broker: Broker) -> dict[str, int]:
    """What the broker says of its first queue: messages and bytes."""
    with closing(UnixConnection(next(broker.directory.rglob("admin.sock")))) as connection:
        connection.request("GET", "/api/v1/queues")
        found = json.loads(connection.getresponse().read())["queues"][0]
    return {key: found[key] for key in ("messages", "bytes")}


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_the_bytes_of_a_queue_are_exact(how: str, start_broker: Start, connect: Connect) -> None:
    """On disk, in memory, after a restart, and consumed up to the middle of a batch."""
    broker = start_broker({"name": "q", "limits": {"max_bytes": "3MiB"}}, **SMALL_FILES)
    publisher = connect(broker)
    fill(publisher, "q", 0, 1)
    each = kept(broker)["bytes"]
    assert SIZE < each < SIZE + 200
    fill(publisher, "q", 1, 150)
    assert kept(broker) == {"messages": 150, "bytes": 150 * each}

    def again() -> None:
        if how == "kill":
            broker.kill()
            broker.start()
        else:
            broker.restart()

    again()
    assert kept(broker) == {"messages": 150, "bytes": 150 * each}
    consumer = connect(broker)
    consume(consumer, "q", prefetch=1)
    assert numbers(consumer, 31) == list(range(31))
    consumer.close()
    wait_until(lambda: kept(broker) == {"messages": 119, "bytes": 119 * each})
    # Nothing answers a settlement: what is recorded after it is on the disk, and so is it.
    connect(broker).publish("later", b"kept", 1, retain=True)
    again()
    assert kept(broker) == {"messages": 119, "bytes": 119 * each}
    publisher = connect(broker)
    room = 3 * 1024 * 1024 // each - 119
    fill(publisher, "q", 150, 150 + room)
    publisher.publish("$queue/q", payload(0), 1, expect=0x97)


def test_a_stream_keeps_the_bytes_that_it_may(start_broker: Start, connect: Connect) -> None:
    """Also when it finds more than that on the disk."""
    stream = {"name": "q", "type": "stream"}
    broker = start_broker(stream, **SMALL_FILES)
    fill(connect(broker), "q", 0, MANY)
    wait_until(lambda: segments(broker) >= 5)
    each = kept(broker)["bytes"] // MANY
    broker.terminate()
    broker.settings["queues"] = json.dumps([stream | {"retention": {"max_length_bytes": "2500KiB"}}])
    broker.start()
    wait_until(lambda: kept(broker)["bytes"] <= 2500 * 1024, seconds=60)
    found = kept(broker)
    assert found["bytes"] == found["messages"] * each
    # Where messages are on disk only, whole batches go; here each is one of three messages.
    assert found["bytes"] + 4 * each > 2500 * 1024
    reader = connect(broker)
    consume(reader, "q", offset="first")
    assert numbers(reader, found["messages"]) == list(range(MANY - found["messages"], MANY))
