"""What outlives a journal file: backlogs go to segments and come back, whatever ends the broker and when."""
from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client
from kit.python import environment
from kit.watch import wait_until
from queues.conftest import consume, users

Start = Callable[..., Broker]
Connect = Callable[..., Client]

SMALL_FILES = {"storage.journal_file_size": "1MiB", "queue_manager.cache_size": "1MiB",
               "queue_manager.segment_size": "1MiB"}
SIZE = 20_000
MANY = 400      # 8 MB: several journal files, several segments


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
