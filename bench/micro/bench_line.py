"""Records of a commit line, applied to the queues of another instance: what a follower does for each message, and a
start for each that the journal has.

    pytest bench/micro/bench_line.py --benchmark-columns=min,median,rounds

extra_info has the nanoseconds per record. FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
import os
import struct
from typing import Any

import pytest

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.commits import Line
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import pump_queues
from fluxmq.bench.micro.timing import note_nanoseconds
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.model.queues import QueueSpec

SMOKE = os.environ.get("FLUXMQ_BENCH_SMOKE") == "1"
BATCHES = 2 if SMOKE else 200
MESSAGES = 100      # of a batch
QUEUES = 4
ONE_SETTLED = struct.pack(">I", 1)
# By one of two consumers of another node.
ONE_CLAIMED = [struct.pack(">IHQQ", 1, 1, 9, member) for member in (1, 2)]


class Leader:
    """Queues with a group each, and the batches in which they are declared."""

    def __init__(self) -> None:
        hub = self.hub = Hub(None)
        hub.set_clock(1_000_000, 1)
        self.line: Line = hub.commits.open_line("group 7")
        manager = QueueManager(hub, cluster=solo())
        self.queues: list[Queue] = [manager.declare(QueueSpec(name=f"q{number}"), self.line)[0]
                                    for number in range(QUEUES)]
        self.groups: list[Group] = [manager.group(queue, b"g") for queue in self.queues]
        self.declared = self.committed()

    def committed(self) -> bytes:
        pump_queues(self.hub)
        position, records = self.line.submit()
        self.line.commit(position)
        return records

    def appends(self, payload: bytes) -> list[bytes]:
        """A record for each message."""
        batches = []
        for _ in range(BATCHES):
            for at in range(MESSAGES):
                self.queues[at % QUEUES].publish(b"t", payload)
            batches.append(self.committed())
        return batches

    def settlements(self) -> list[bytes]:
        """For each message a CLAIM and a SETTLE of its own, as from consumers that take turns."""
        batches, offset = [], 0
        for _ in range(BATCHES):
            records = []
            for at in range(MESSAGES):
                number = at % QUEUES
                names = struct.pack(">QQQ", self.groups[number].number, self.queues[number].logs[0].number, offset)
                for kind, rest in ((RecordKind.CLAIM, ONE_CLAIMED[offset % 2]), (RecordKind.SETTLE, ONE_SETTLED)):
                    records.append(struct.pack("<BI", kind, len(names + rest)) + names + rest)
                offset += number == QUEUES - 1
            batches.append(b"".join(records))
        return batches


def measure(benchmark: Any, before: list[bytes], batches: list[bytes], records: int) -> QueueLine:
    follower: list[QueueLine] = []

    def begun() -> None:
        hub = Hub(None)
        hub.set_clock(1_000_000, 1)
        follower[:] = [QueueLine(QueueManager(hub, cluster=solo()), hub.commits.open_line("group 7"))]
        for batch in before:
            follower[0].apply(batch)

    def applied() -> None:
        for batch in batches:
            follower[0].apply(batch)

    benchmark.pedantic(applied, setup=begun, rounds=5, warmup_rounds=1)
    note_nanoseconds(benchmark, "ns_per_record", records)
    return follower[0]


@pytest.mark.parametrize("size", [16, 1024])
def test_append(benchmark: Any, size: int) -> None:
    leader = Leader()
    follower = measure(benchmark, [leader.declared], leader.appends(b"x" * size), BATCHES * MESSAGES)
    assert sum(log.next for _, log in follower.logs.values()) == BATCHES * MESSAGES


def test_claim_and_settle(benchmark: Any) -> None:
    leader = Leader()
    appended = leader.appends(b"x" * 16)
    follower = measure(benchmark, [leader.declared, *appended], leader.settlements(), 2 * BATCHES * MESSAGES)
    assert all(log.first == log.next for _, log in follower.logs.values())
