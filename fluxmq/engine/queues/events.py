"""Callbacks of compiled queues and groups to the engine (Queue.events in _core/queue/queue.pxd)."""
from __future__ import annotations

from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.queues import delays
from fluxmq.engine.queues.dead_letters import bury, make_room
from fluxmq.engine.queues.deduplication import is_repeated, with_sequence
from fluxmq.engine.queues.table import QueueTable

__all__ = ["QueueEvents"]


class QueueEvents:
    """One for all queues of a table: there may be a hundred thousand of them."""

    def __init__(self, table: QueueTable) -> None:
        self.table = table

    def is_repeated(self, queue: Queue, producer: bytes, sequence: int) -> bool:
        """Whether the producer has appended this sequence already."""
        state = self.table.states.get(queue)
        return state is not None and is_repeated(state.producers.get(producer), sequence)

    def produced(self, queue: Queue, producer: bytes, sequence: int) -> None:
        """Records that the producer has appended this sequence."""
        state = self.table.states.get(queue)
        if state is not None:  # otherwise a cached route led to a deleted queue
            state.note_produced(producer, with_sequence(state.producers.get(producer), sequence))
            self.table.note_changed(state)

    def make_room(self, queue: Queue) -> bool:
        """Drops the oldest message of a full queue, now or when it has been read. False: nothing is dropped."""
        return make_room(self.table, self.table.states[queue])

    def refused(self, queue: Queue, topic: bytes, properties: bytes, payload: bytes, format_: int) -> None:
        """Dead-letters a message that a full queue refused (queue_limits_t.dead_letter_refused)."""
        state = self.table.states.get(queue)        # None: a stale route led to a queue that is no more
        if state is not None and self.table.amqp_dead_letters is not None:
            self.table.amqp_dead_letters.refused(state, topic, properties, payload, format_)

    def due_soon(self, queue: Queue, at_ms: int) -> None:
        """A message expires, or is no longer delayed, at this time of the steady clock: sooner than the next tick."""
        self.table.due_soon(queue, at_ms)

    def first_delayed(self, queue: Queue) -> None:
        """Gives the queue `delays`."""
        delays.first_delayed(self.table, queue)

    def more_is_due(self, queue: Queue) -> None:
        """Continues with due messages when the disk is done, and calls notify() then."""
        delays.more_is_due(self.table, queue)

    def stalled(self, queue: Queue) -> None:
        """Reads for logs of the queue that wait for the disk (Log.wanted)."""
        self.table.read_on(queue)

    def dead(self, group: Group, log: Log, offset: int, deliveries: int, reason: str) -> None:
        """Handles a message that died in a group (Group.on_dead)."""
        state = self.table.states.get(group.owner) if isinstance(group.owner, Queue) else None
        if state is not None:
            bury(self.table, state, log, offset, deliveries, reason, group.name)
