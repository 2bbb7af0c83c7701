"""What it costs to move a session with 1 000 queued messages to another broker.

    pytest bench/micro/bench_transfer.py --benchmark-columns=min,median,rounds

`export` is what a checkpoint does with such a session; `parts` makes the bytes for the other node; `feed` checks them,
records them and makes a session of them. Messages of 64 bytes and 4 KiB, in a session of a client that is away, with a
subscription identifier. The journals are written in the background and not waited for. extra_info has the bytes of all
parts and microseconds per message. FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxmq._core.disk.journal import Journal
from fluxmq._core.hub.hub import Hub
from fluxmq._core.hub.persist import export_session
from fluxmq._core.pubsub.session import Session
from fluxmq.bench.micro.timing import note_nanoseconds
from fluxmq.cluster.solo import solo
from fluxmq.engine.broker import Broker, Limits
from fluxmq.engine.sessions.state import EXPIRY_NEVER
from fluxmq.engine.sessions.transfer import Arrival, Departure, freeze

SMOKE = os.environ.get("FLUXMQ_BENCH_SMOKE") == "1"
ROUNDS = 2 if SMOKE else 30
MESSAGES = 100 if SMOKE else 1000
SIZES = [64, 4096]
NAME = b"client"


class Node:
    """A broker with a journal."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.journal = Journal(str(directory), identity=1, mode="buffered", interval=3600)
        self.writer = threading.Thread(target=self.journal.run)
        self.writer.start()
        self.broker = Broker(Hub(self.journal, 64, 1), Limits(queue_bytes_max=1 << 30), cluster=solo())

    def displaced(self, reason: int) -> None:
        pass

    def session(self, size: int) -> Session:
        """Its client is away and has 1 000 messages of this size waiting."""
        broker = self.broker
        if (former := broker.session(NAME)) is not None:
            broker.end_session(former)
        session, _ = broker.connect(NAME, version=5, clean_start=True, expiry_s=EXPIRY_NEVER, keep_alive_s=0, will=None,
                                    username=None, connection=self)
        broker.subscribe(session, b"a/#", 2, 1)
        broker.disconnect(session, self, publish_will=False)
        for n in range(MESSAGES):
            broker.hub.publish_message(b"a/%d" % n, bytes(size), 1)
        self.turn()
        return session

    def departure(self, size: int) -> Departure:
        departure = freeze(self.broker, self.session(size))
        assert departure is not None
        return departure

    def turn(self) -> None:
        self.journal.submit()
        self.journal.poll()

    def close(self) -> None:
        self.journal.close()
        self.writer.join()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "old")
    yield node
    node.close()


def measure(benchmark: Any, step: Any, setup: Any) -> None:
    benchmark.pedantic(step, setup=lambda: ((setup(),), {}), rounds=ROUNDS, warmup_rounds=1)
    note_nanoseconds(benchmark, "ns_per_message", MESSAGES)


@pytest.mark.parametrize("size", SIZES)
def test_export(benchmark: Any, node: Node, size: int) -> None:
    measure(benchmark, lambda session: export_session(session, b""), lambda: node.session(size))


@pytest.mark.parametrize("size", SIZES)
def test_parts(benchmark: Any, node: Node, size: int) -> None:
    measure(benchmark, lambda departure: list(departure.parts()), lambda: node.departure(size))
    benchmark.extra_info["bytes"] = sum(map(len, node.departure(size).parts()))


@pytest.mark.parametrize("size", SIZES)
def test_feed(benchmark: Any, node: Node, tmp_path: Path, size: int) -> None:
    parts = list(node.departure(size).parts())
    new = Node(tmp_path / "new")

    def feed(arrival: Arrival) -> None:
        for part in parts:
            arrival.feed(part)
        arrival.finish()

    def another() -> Arrival:
        new.turn()
        return Arrival(new.broker, new.broker.hub.root, NAME)

    measure(benchmark, feed, another)
    new.close()
