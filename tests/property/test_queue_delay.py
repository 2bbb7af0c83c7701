"""What waits comes out when it is due, in order, whatever is in memory, in segments, picked from there, or settled."""
from __future__ import annotations

import heapq
import struct
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.delay import Delays
from fluxmq._core.queue.due import DueHeap
from fluxmq._core.queue.export import Export
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import QUEUE_CLASSIC, Queue
from fluxmq._core.testing.probes import pump_queues

large = st.integers(0, (1 << 48) - 1)
pairs = st.tuples(st.integers(0, 40) | large, st.integers(0, 99) | large)


@given(st.lists(pairs | st.none(), max_size=400))
def test_the_heap_does_what_heapq_does(steps: list[tuple[int, int] | None]) -> None:
    heap, expected = DueHeap(), list[tuple[int, int]]()
    for step in steps:
        if step is not None:
            heap.push(*step)
            heapq.heappush(expected, step)
        elif expected:
            assert heap.pop() == heapq.heappop(expected)
        assert heap.first() == (expected[0][0] if expected else None)
        assert len(heap) == heap.count == len(expected)
    assert [heap.pop() for _ in range(len(expected))] == sorted(expected)


def new_delays(hub: Hub, first: int = 0, end: int = 0) -> Delays:
    return Delays(Log(hub.ledger, 2, first=first, next=end), Group(hub.ledger, 3, b"$delay"))


@given(st.lists(st.integers(0, 1000) | st.integers(1 << 48, 1 << 62), max_size=300), st.data())
def test_a_restart_makes_the_heap_again(dues: list[int], data: st.DataObject) -> None:
    settled = data.draw(st.sets(st.integers(0, max(len(dues) - 1, 0))))
    delays = new_delays(Hub(None), 0, len(dues))
    for offset in settled:
        if offset < len(dues):
            by_offset.settle_any(delays.group, 2, offset)
    cut = data.draw(st.integers(0, len(dues)))
    for part in (range(cut), range(cut, len(dues) + 5)):     # what the journal has too is not counted twice
        delays.restore_pairs(b"".join(struct.pack("<qQ", dues[n] if n < len(dues) else 7, n) for n in part))
    delays.restored()
    expected = sorted((min(due, (1 << 48) - 1), n) for n, due in enumerate(dues) if n not in settled)
    assert len(delays) == len(expected)
    assert [delays.heap.pop() for _ in expected] == expected


class DelayMachine(RuleBasedStateMachine):
    """waiting: by offset in the delay log, when it is due and what it says. disk: what segments hold of the log."""

    @initialize()
    def make(self) -> None:
        self.hub = Hub(None)
        self.now = 1_000
        self.hub.set_clock(self.now, self.now)
        self.log = Log(self.hub.ledger, 1)
        self.queue = Queue(self.hub.ledger, 9, b"q", QUEUE_CLASSIC, [self.log])
        self.queue.delays = self.delays = new_delays(self.hub)
        self.queue.events = SimpleNamespace(first_delayed=lambda queue: None, more_is_due=self.go_on,
                                            stalled=lambda queue: None, due_soon=self.set_alarm)
        self.hub.targets.add_queue(self.queue, [])
        self.waiting: list[tuple[int, int, bytes]] = []
        self.arrived: list[bytes] = []
        self.disk: dict[int, bytes] = {}
        self.asked = 0
        self.number = 0

    def set_alarm(self, queue: Queue, at_ms: int) -> None:
        assert self.queue is queue
        assert self.now < at_ms <= self.now + 250       # what is due later, the queue's clock finds by itself

    def go_on(self, queue: Queue) -> None:
        missing = self.delays.missing()
        if missing:
            self.asked += 1
            assert len(set(missing)) == len(missing)
            self.delays.found({offset: self.disk.get(offset, b"") for offset in missing[:3]})
        self.queue.notify()

    @rule(wait=st.integers(1, 50), count=st.integers(1, 30))
    def delay(self, wait: int, count: int) -> None:
        for _ in range(count):
            payload = b"%d" % self.number
            due = self.now + 1 + self.number * 7919 % wait
            assert self.queue.append_message(b"$queue/q", payload, not_before=due) == 0
            heapq.heappush(self.waiting, (due, self.number, payload))
            self.number += 1

    @rule(evict=st.booleans())
    def checkpoint(self, evict: bool) -> None:
        for block in Export(self.delays.log, 10, self.queue.needs(self.delays.log)):
            raw, at = block[7], 0
            while at < len(raw):
                size = int.from_bytes(raw[at:at + 4], "little")
                self.disk[int.from_bytes(raw[at + 8:at + 16], "little")] = raw[at:at + size]
                at += size
        self.delays.log.exported()
        if evict:
            self.delays.log.evict(1 << 30)

    @rule()
    def restart(self) -> None:
        """Of the delay log: all is in segments, as after a clean stop."""
        self.checkpoint(True)
        log = self.delays.log
        assert self.delays.group.cursors[0].floor >= log.first
        again = new_delays(self.hub, log.first, log.next)
        for offset in range(log.first, log.next):
            if by_offset.is_settled(self.delays.group, 2, offset):
                by_offset.settle_any(again.group, 2, offset)
        for offset, message in sorted(self.disk.items()):
            again.restore_pairs(message[32:40] + offset.to_bytes(8, "little"))
        again.restored()
        self.queue.delays = self.delays = again

    @rule(ms=st.integers(0, 60))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.hub.set_clock(self.now, self.now)
        for _ in range(400):
            self.queue.notify()
            pump_queues(self.hub)
        while self.waiting and self.waiting[0][0] <= self.now:
            self.arrived.append(heapq.heappop(self.waiting)[2])
        assert self.log.next == len(self.arrived)

    @precondition(lambda self: self.arrived)
    @rule()
    def look(self) -> None:
        found = [self.log.get(offset) for offset in range(self.log.next)]
        assert [record.payload for record in found if record is not None] == self.arrived

    @invariant()
    def counts(self) -> None:
        assert len(self.delays) == len(self.waiting)
        assert self.delays.first_due() == (self.waiting[0][0] if self.waiting else None)


DelayMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestDelays = DelayMachine.TestCase
