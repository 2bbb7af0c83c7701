"""A queue without sockets and without a disk: append, hand out, settle; the same with many groups; due times.

    pytest bench/micro/bench_queue.py --benchmark-columns=min,median,rounds

extra_info has the nanoseconds per message. Members are in Python (PyMember), so handing out costs a call that an MQTT
consumer does not; what is compared is one release with another. FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
import os
from typing import Any

import pytest

from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.due import DueHeap
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import pump_queues
from fluxmq.bench.micro.timing import note_nanoseconds
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.queues import QueueSpec

SMOKE = os.environ.get("FLUXMQ_BENCH_SMOKE") == "1"
MESSAGES = 200 if SMOKE else 20_000
PAYLOAD = b"x" * 256


def made(groups: int = 0) -> tuple[Hub, QueueManager, Queue, list[PyMember]]:
    """A queue, and of each group a member that takes everything."""
    hub = Hub(None)
    hub.set_clock(1_000_000, 1)
    manager = QueueManager(hub, cluster=solo())
    queue = manager.declare(QueueSpec(name="q"))[0]
    members = []
    for number in range(groups):
        member = PyMember(lambda log, offset, deliveries: True, None, 1 << 30)
        manager.group(queue, b"g%d" % number).join(member)
        members.append(member)
    return hub, manager, queue, members


def test_append(benchmark: Any) -> None:
    _, manager, queue, _ = made()

    def append() -> None:
        for _ in range(MESSAGES):
            queue.publish(b"$queue/q", PAYLOAD)

    def emptied() -> None:
        manager.purge(manager.queues[b"/", b"q"])

    benchmark.pedantic(append, setup=emptied, rounds=5, warmup_rounds=1)
    assert queue.depth == MESSAGES
    note_nanoseconds(benchmark, "ns_per_message", MESSAGES)


@pytest.mark.parametrize("groups", [1, 100])
def test_hand_out_and_settle(benchmark: Any, groups: int) -> None:
    """What a message costs after its append: a claim, a member that takes it, a settle, until it is removed."""
    hub, _, queue, members = made(groups)
    number = queue.logs[0].number
    count = max(10, MESSAGES // groups)

    def filled() -> None:
        for _ in range(count):
            queue.publish(b"$queue/q", PAYLOAD)

    def consume() -> None:
        pump_queues(hub)
        for member in members:
            for at in by_offset.held_upto(member.group, number, queue.logs[0].next):
                by_offset.settle_at(member.group, number, at)
        queue.notify()
        pump_queues(hub)

    benchmark.pedantic(consume, setup=filled, rounds=5, warmup_rounds=1)
    assert queue.depth == 0
    note_nanoseconds(benchmark, "ns_per_message", count * groups)


def test_due_times(benchmark: Any) -> None:
    """Of delayed messages: in at random, out in order."""
    due = [at * 7919 % 1_000_003 for at in range(MESSAGES)]

    def through() -> list[tuple[int, int]]:
        heap = DueHeap()
        for offset, at in enumerate(due):
            heap.push(at, offset)
        return [heap.pop() for _ in range(len(due))]

    found = benchmark.pedantic(through, rounds=5, warmup_rounds=1)
    assert [at for at, _ in found] == sorted(due)
    note_nanoseconds(benchmark, "ns_per_message", MESSAGES)
