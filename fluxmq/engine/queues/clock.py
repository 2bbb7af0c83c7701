"""Timers of queues: leases, backoffs, delayed messages, retention, unused queues.

A tick checks the queues changed since the last one (Ledger.take_clock_dirty) and those that are due; a check returns
when the next one is needed. Between two ticks an alarm checks those that are due then: what a tick has planned, and
messages that are to expire, or whose delay ends, before the next one (Queue.due_soon). So idle queues cost nothing,
however many there are, and what is due is not late by a tick. All timers use the steady clock
(_core/memory/node.pxd), except leases, which use the monotonic one, and the age of a stream's messages, which uses
their timestamps.
"""
from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from fluxmq._core.queue.queue import QUEUE_EPHEMERAL, QUEUE_STREAM, Queue
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.forwarding import is_under_way
from fluxmq.engine.queues.manager import QueueManager, QueueState

__all__ = ["LOOKS_MAX", "QueueClock", "unused"]

LOOKS_MAX = 2000  # checks in one turn of the loop: some 15 ms
RETENTION_EVERY_MS = 5000
# A stream in which only ages change is checked when a hundredth of its maximum age has passed, within these bounds.
AGEING_PART = 100
AGEING_EVERY_MAX_MS = 60_000
TICK_MS = 250  # at most, between two ticks
ALARM_GAP_MS = 5  # between two alarms: messages that expire one after the other are checked together
UNFINISHED = -1  # the retention has not been applied to all that the stream has


class QueueClock:
    """Machine. auto_commit_ms: minimum time between two commits of one stream; 0 = at each check. stamp_of_age:
    SteadyClock's; None: the wall clock is never set. later: (seconds, call) -> calls it then, between two turns; None:
    there are ticks only. looked: number of checked queues so far, for tests. behind: the last tick left some."""

    def __init__(self, manager: QueueManager, auto_commit_ms: int = 0,
                 stamp_of_age: Callable[[int], int] | None = None,
                 later: Callable[[float, Callable[[], None]], object] | None = None) -> None:
        self.manager = manager
        self._stamp_of_age = stamp_of_age or (lambda age_ms: manager.hub.now_ms - age_ms)
        self._auto_commit_ms = auto_commit_ms
        self.looked = 0
        self.behind = False
        self._began = False
        self._dirty: deque[Queue] = deque()
        self._heap: list[tuple[int, int, QueueState]] = []  # steady clock, queue's number; stale unless state.due_at
        self._later = later
        self._alarm_ms: int | None = None  # steady clock: when the next alarm is
        self._rang_ms = 0  # the last one
        self._closed = False
        manager.due_soon = self.due_soon

    def close(self) -> None:
        """There is no alarm from now on."""
        self._closed = True

    def tick(self) -> bool:
        """Does what is due by now, or asks the queue to do it; for at most LOOKS_MAX changed queues and as many whose
        time has come. Returns whether some are left, for another call soon."""
        hub = self.manager.hub
        now = hub.steady_ms
        states: dict[QueueState, None] = {}
        self._dirty.extend(hub.ledger.take_clock_dirty())
        for _ in range(min(len(self._dirty), LOOKS_MAX)):
            queue = self._dirty.popleft()
            queue.clock_dirty = False
            found = self.manager.states.get(queue)
            if found is not None:
                states[found] = None
                self.manager.sums.measure(queue, found.groups.values())
        if not self._began:
            self._began = True
            for state in list(self.manager.queues.values()):
                if state.here and is_under_way(state.queue.name):
                    self.manager.forwarders.found(state.queue)
                # A start set these times before the clock was resumed. Most of these queues need no timer; those that
                # need other work after a start are marked dirty.
                # Those of other nodes have none here: their owner applies limits and ages.
                if state.here and (state.queue.kind == QUEUE_STREAM or idle_max_ms(state) is not None):
                    state.retention_due_ms = min(state.retention_due_ms, now + RETENTION_EVERY_MS)
                    state.idle_since_ms = now
                    states[state] = None
        self._look_at(states, now)
        self.behind = bool(self._dirty) or bool(self._heap and self._heap[0][0] <= now)
        self._set_alarm(now)
        return self.behind

    def _look_at(self, states: dict[QueueState, None], now: int) -> None:
        """Checks these queues, and those whose time has come."""
        most = len(states) + LOOKS_MAX
        while self._heap and self._heap[0][0] <= now and len(states) < most:
            at, _, state = heapq.heappop(self._heap)
            if at == state.due_at:
                state.due_at = None
                states[state] = None
        for state in states:
            if state.here and self.manager.states.get(state.queue) is state:  # it has not moved to another node
                self._plan(state, now, self._look(state, now))

    # ------------------------------------------------------------------ alarms, between two ticks

    def due_soon(self, queue: Queue, at_ms: int) -> None:
        """See QueueEvents."""
        state, now = self.manager.states.get(queue), self.manager.hub.steady_ms
        if state is not None and state.here:
            self._plan(state, now, at_ms - now)
            self._set_alarm(now)

    def _set_alarm(self, now: int) -> None:
        heap = self._heap
        while heap and heap[0][0] != heap[0][2].due_at:
            heapq.heappop(heap)
        if self._later is None or not heap:
            return
        at = max(heap[0][0], self._rang_ms + ALARM_GAP_MS)
        if at <= now + TICK_MS and (self._alarm_ms is None or at < self._alarm_ms):
            self._alarm_ms = at
            self._later(max(at - now, 1) / 1000, self._ring)

    def _ring(self) -> None:
        hub = self.manager.hub
        if self._closed:
            return
        hub.refresh_clock()
        now = hub.steady_ms
        if self._alarm_ms is None:
            return  # an earlier one has done it
        if now < self._alarm_ms:  # the timer of an event loop may be early by a part of a millisecond
            assert self._later is not None
            self._later((self._alarm_ms - now) / 1000, self._ring)
            return
        self._alarm_ms, self._rang_ms = None, now
        self._look_at({}, now)
        self._set_alarm(now)
        hub.wake_up()

    def _plan(self, state: QueueState, now: int, wait: int | None) -> None:
        if wait is None:
            return
        at = now + max(wait, 1)
        if state.due_at is None or at < state.due_at:
            state.due_at = at
            heapq.heappush(self._heap, (at, state.queue.number, state))

    def _look(self, state: QueueState, now: int) -> int | None:
        """Does what is due for a queue. Returns in how many ms to check again; None: not before the queue changes."""
        self.looked += 1
        queue = state.queue
        waits = [group.tick() for group in state.groups.values()]
        due = queue.delays.first_due() if queue.delays is not None else None
        if due is not None:
            if due <= now:
                queue.notify()
            waits.append(due - now)
        if queue.kind == QUEUE_STREAM:
            waits.append(self._commit(state))
            if queue.damage is None:  # a damaged queue loses no messages but settled ones
                waits.append(self._retention(state, now))
        elif (idle_ms := idle_max_ms(state)) is not None and state.here and unused(state):
            wait = state.idle_since_ms + idle_ms - now
            if wait <= 0:
                kind = "queue" if state.declared is not None else "ephemeral queue"
                self.manager.log("info", "", f"{kind} deleted: it was unused", {"queue": state.spec.shown})
                self.manager.end(queue.address, lambda: unused(state) and (
                    state.idle_since_ms + idle_ms <= self.manager.hub.steady_ms))
                return None
            waits.append(wait)
        if queue.expiry_ms:
            if queue.expiry_ms <= now:
                queue.notify()  # its pump says what is due next
            else:
                waits.append(queue.expiry_ms - now)
        for log in queue.logs:
            if log.uncertain:
                self.manager.disk.measure(queue, log)
        return min((wait for wait in waits if wait is not None), default=None)

    def _commit(self, state: QueueState) -> int | None:
        """Commits what readers have acknowledged as their groups' positions, unless that happened a short while ago."""
        wait = state.commit_due_ms - self.manager.hub.mono_ms
        if wait > 0:
            return wait
        # all of them: a commit of the first must not skip the others
        if any([self.manager.reads.auto_commit(state.queue, reader) for reader in state.queue.readers]):
            state.commit_due_ms = self.manager.hub.mono_ms + self._auto_commit_ms
        return None  # further acknowledgements mark the queue dirty

    def _retention(self, state: QueueState, now: int) -> int | None:
        age = state.spec.retention.max_age
        if now >= state.retention_due_ms:
            state.retained = ends(state) if retain(self.manager, state, self._stamp_of_age) else UNFINISHED
            every = RETENTION_EVERY_MS
            if age:
                every = min(max(every, int(age * 1000) // AGEING_PART), AGEING_EVERY_MAX_MS)
            state.retention_due_ms = now + every
        elif ends(state) != state.retained:
            state.retention_due_ms = min(state.retention_due_ms, now + RETENTION_EVERY_MS)
        if not age and ends(state) == state.retained:
            return None  # nothing was appended since the last time, and nothing expires by age
        if all(log.next == log.first for log in state.queue.logs):
            return None
        return state.retention_due_ms - now


def ends(state: QueueState) -> int:
    """A value that changes with every append."""
    return sum(log.next for log in state.queue.logs)


def idle_max_ms(state: QueueState) -> int | None:
    """Time without use after which a queue is deleted; None: never."""
    if state.arguments is not None:
        return state.arguments.expires_ms if state.arguments.expires_ms > 0 else None
    if state.queue.kind != QUEUE_EPHEMERAL or state.configured:
        return None
    return int(state.spec.expires_after * 1000)


def unused(state: QueueState) -> bool:
    return not any(group.members for group in state.groups.values())


def retain(manager: QueueManager, state: QueueState, stamp_of_age: Callable[[int], int]) -> bool:
    """Applies the retention of a stream. False: it must continue when the sizes of messages have been read from
    disk."""
    keep = state.spec.retention
    done = True
    for log in state.queue.logs:
        first = log.first
        if keep.max_length_messages:
            first = max(first, log.next - keep.max_length_messages)
        if keep.max_length_bytes and log.kept_bytes > keep.max_length_bytes:
            first = max(first, log.first_within(keep.max_length_bytes))
        if keep.max_age:
            try:
                first = max(first, manager.disk.offset_at_time(log, stamp_of_age(int(keep.max_age * 1000))))
            except QueueRefused:
                return True  # damaged
        manager.trim(state, log, min(first, log.next))
        if keep.max_length_bytes and log.kept_bytes > keep.max_length_bytes and manager.disk.measure(state.queue, log):
            done = False
    return done
