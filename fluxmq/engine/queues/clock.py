"""Timers of queues: leases, backoffs, delayed messages, retention, unused queues.

A tick checks the queues changed since the last one (Ledger.take_clock_dirty) and those that are due; a check returns
when the next one is needed. So idle queues cost nothing, however many there are. All timers use the steady clock
(_core/memory/node.pxd), except leases, which use the monotonic one, and the age of a stream's messages, which uses
their timestamps.
"""
from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from fluxmq._core.queue.queue import QUEUE_EPHEMERAL, QUEUE_STREAM, Queue
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.manager import QueueManager, QueueState

__all__ = ["LOOKS_MAX", "QueueClock"]

LOOKS_MAX = 2000  # in one turn of the loop: some 15 ms
RETENTION_EVERY_MS = 5000
# A stream that only grows older is looked at when a hundredth of its age has passed, within these bounds.
AGEING_PART = 100
AGEING_EVERY_MAX_MS = 60_000
UNFINISHED = -1  # what a stream has is not what its caps were applied to


class QueueClock:
    """Machine. auto_commit_ms: at least so long between two commits of one stream; 0 = with each look. stamp_of_age:
    SteadyClock's; None: the wall clock is never set. looked: at how many queues so far, for tests. behind: the last
    tick left some."""

    def __init__(self, manager: QueueManager, auto_commit_ms: int = 0,
                 stamp_of_age: Callable[[int], int] | None = None) -> None:
        self.manager = manager
        self._stamp_of_age = stamp_of_age or (lambda age_ms: manager.hub.now_ms - age_ms)
        self._auto_commit_ms = auto_commit_ms
        self.looked = 0
        self.behind = False
        self._began = False
        self._dirty: deque[Queue] = deque()
        self._heap: list[tuple[int, int, QueueState]] = []  # steady clock, queue's number; stale unless state.due_at

    def tick(self) -> bool:
        """What is due by now is done or, where the queue does it, told to it; at LOOKS_MAX queues and as many whose
        time has come. Returns whether that leaves some: they are for a further call soon."""
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
            for state in self.manager.queues.values():
                # What a start found was made while the clock was not yet where it goes on.
                # Of most nothing becomes due; what else a start has to do marks them dirty.
                if state.queue.kind == QUEUE_STREAM or idle_max_ms(state) is not None:
                    state.retention_due_ms = min(state.retention_due_ms, now + RETENTION_EVERY_MS)
                    state.idle_since_ms = now
                    states[state] = None
        most = len(states) + LOOKS_MAX
        while self._heap and self._heap[0][0] <= now and len(states) < most:
            at, _, state = heapq.heappop(self._heap)
            if at == state.due_at:
                state.due_at = None
                states[state] = None
        for state in states:
            if self.manager.states.get(state.queue) is state:
                self._plan(state, now, self._look(state, now))
        self.behind = bool(self._dirty) or bool(self._heap and self._heap[0][0] <= now)
        return self.behind

    def _plan(self, state: QueueState, now: int, wait: int | None) -> None:
        if wait is None:
            return
        at = now + max(wait, 1)
        if state.due_at is None or at < state.due_at:
            state.due_at = at
            heapq.heappush(self._heap, (at, state.queue.number, state))

    def _look(self, state: QueueState, now: int) -> int | None:
        """Does what is due; in how many ms there may be more. None: not before something happens to it."""
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
            if queue.damage is None:  # of what is damaged nothing goes, but what was settled
                waits.append(self._retention(state, now))
        elif (idle_ms := idle_max_ms(state)) is not None and unused(state):
            wait = state.idle_since_ms + idle_ms - now
            if wait <= 0:
                kind = "queue" if state.declared is not None else "ephemeral queue"
                self.manager.log("info", "", f"{kind} deleted: it was unused", {"queue": state.spec.shown})
                self.manager.delete(queue.address)
                return None
            waits.append(wait)
        if queue.expiry_ms:
            if queue.expiry_ms <= now:
                queue.notify()
            waits.append(queue.expiry_ms - now)
        for log in queue.logs:
            if log.uncertain:
                self.manager.disk.measure(queue, log)
        return min((wait for wait in waits if wait is not None), default=None)

    def _commit(self, state: QueueState) -> int | None:
        """What readers have acknowledged becomes their groups' position, unless that happened a short while ago."""
        wait = state.commit_due_ms - self.manager.hub.mono_ms
        if wait > 0:
            return wait
        # all of them: a commit of the first is no reason to leave out the others
        if any([reader.auto_commit() for reader in state.queue.readers]):
            state.commit_due_ms = self.manager.hub.mono_ms + self._auto_commit_ms
        return None  # whoever acknowledges more marks the queue

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
            return None  # nothing came since the last time, and nothing grows older
        if all(log.next == log.first for log in state.queue.logs):
            return None
        return state.retention_due_ms - now


def ends(state: QueueState) -> int:
    """Changes whenever something is appended."""
    return sum(log.next for log in state.queue.logs)


def idle_max_ms(state: QueueState) -> int | None:
    """How long nobody need use a queue before it is deleted; None: for ever."""
    if state.arguments is not None:
        return state.arguments.expires_ms if state.arguments.expires_ms > 0 else None
    if state.queue.kind != QUEUE_EPHEMERAL or state.configured:
        return None
    return int(state.spec.expires_after * 1000)


def unused(state: QueueState) -> bool:
    return not any(group.members for group in state.groups.values())


def retain(manager: QueueManager, state: QueueState, stamp_of_age: Callable[[int], int]) -> bool:
    """The caps of a stream. False: to go on, the disk must be asked how large messages are; it has been."""
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
