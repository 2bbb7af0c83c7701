"""Dead letters for operators: list them by the queue they come from, and replay them to it.

A dead-letter queue is an ordinary queue: its consumers settle the messages. Several queues may share one; each dead
letter has a header with its origin.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq._core.queue import by_offset
from fluxmq._core.queue.lanes import LANE_SHIFT
from fluxmq._core.queue.log import Log, Record
from fluxmq._core.queue.queue import QUEUE_STREAM
from fluxmq._core.wire.queue_address import QUEUE_PREFIX
from fluxmq.engine.ports.queues import Moved, QueueRefused
from fluxmq.engine.queues.dead_letters import in_one_batch
from fluxmq.engine.queues.properties import DEATH
from fluxmq.model.mqtt import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fluxmq.engine.queues.manager import QueueManager, QueueState

__all__ = ["REPLAY_STEP", "Replay", "comes_from", "is_kept"]

REPLAY_STEP = 500  # messages moved in one call
NOTHING = 0xFFFFFFFFFFFFFFFF


def is_kept(state: QueueState, log: Log, offset: int) -> bool:
    """Whether some group has not settled a message; always true for a stream and for a queue without groups."""
    return state.queue.kind == QUEUE_STREAM or not state.groups or any(
        not by_offset.is_settled(group, log.number, offset) for group in state.groups.values())


def comes_from(record: Record, name: str) -> bool:
    """Whether a dead letter is from this queue; one that does not name its queue counts as from any."""
    origin = record.envelope.get(b"x-death-queue")
    return origin is None or origin == name.encode()


class Replay:
    """Machine. Moves dead letters back in steps."""

    def __init__(self, manager: QueueManager) -> None:
        self.manager = manager
        # by queue and log: the offset up to which a sweep has come, until the sweep ends
        self._passed: dict[tuple[str, int], int] = {}

    def step(self, state: QueueState, dead: QueueState, selected: Sequence[tuple[int, int]] | None,
             count: int) -> Moved:
        """As QueuesPort.dead_replay."""
        if dead.queue.kind == QUEUE_STREAM:
            raise QueueRefused("conflict", f"the dead letters of {state.spec.shown} are in {dead.spec.shown}, a "
                                           "stream, from which nothing is taken", "name a classic queue in dlq.topic")
        if self.manager.hub.ledger.full:
            raise QueueRefused("full", self.manager.hub.ledger.full_why or "the disk is full",
                               "make room, and replay them then")
        most = min(count, REPLAY_STEP)
        moved = 0
        for log, wanted in self._wanted(dead, selected):
            while moved < most:
                record, loading = self._next(state, dead, log, wanted)
                if loading:
                    self.manager.read_on(dead.queue)
                    return Moved(moved, True)
                if record is None:
                    break
                if not self._back(state, dead, log, record, moved):
                    self._passed.clear()
                    return Moved(moved, False)
                moved += 1
        more = moved == REPLAY_STEP and moved < count
        if not more:
            self._passed.clear()
        return Moved(moved, more)

    @staticmethod
    def _wanted(dead: QueueState, selected: Sequence[tuple[int, int]] | None) -> list[tuple[Log, list[int] | None]]:
        queue = dead.queue
        if selected is None:
            return [(log, None) for log in queue.logs]
        found: dict[Log, list[int]] = {}
        for partition, offset in sorted(set(selected)):
            log = queue.log_at(partition, offset >> LANE_SHIFT)
            if log is not None:
                found.setdefault(log, []).append(offset)
        return list(found.items())

    def _next(self, state: QueueState, dead: QueueState, log: Log,
              wanted: list[int] | None) -> tuple[Record | None, bool]:
        """The next dead letter to move, and whether it must be read from disk first."""
        key = (state.spec.name, log.number)
        at = max(log.first, self._passed.get(key, 0)) if wanted is None else 0
        while True:
            if wanted is not None:
                if not wanted:
                    return None, False
                at = max(wanted[0], log.first)
            record = log.at_or_above(at) if at < log.next else None
            if record is None and at < log.next and log.wanted != NOTHING:
                return None, True
            if wanted is not None:
                named = wanted.pop(0)
                if record is None or record.offset != named:
                    continue  # it does not exist any more
            elif record is None:
                return None, False
            else:
                self._passed[key] = record.offset  # exclusive of this one, which may be refused
                at = record.offset + 1
            if is_kept(dead, log, record.offset) and comes_from(record, state.spec.name):
                return record, False

    def _back(self, state: QueueState, dead: QueueState, log: Log, record: Record, moved: int) -> bool:
        """Moves one dead letter back, without its death's user properties. False: the queue takes no more; raises
        QueueRefused if it has not taken any. To a queue of another node or line it goes as dead letters do, whatever
        the limits of that queue: it is there once."""
        envelope = record.envelope
        topic = envelope.moved_to(envelope.get(b"x-death-topic", QUEUE_PREFIX + state.queue.name))
        properties = envelope.with_headers([], DEATH)
        if in_one_batch(dead.queue, state.queue):
            reason = state.queue.append_message(
                topic, record.payload, qos=record.qos, properties=properties, priority=envelope.priority(),
                partition_key=envelope.partition_key(), format=record.format)
        elif self.manager.forwarders.of(dead.queue.line).forward(state.queue, topic, record.payload, properties,
                                                                 record.qos, record.format):
            reason = 0
        else:
            reason = ReasonCode.QUOTA_EXCEEDED
        if reason:
            if moved:
                return False
            if reason == ReasonCode.QUOTA_EXCEEDED:
                raise QueueRefused("full", f"queue {state.spec.name} is full", "they stay where they are")
            raise QueueRefused("invalid", f"message {record.offset} is larger than limits.max_message_size of queue "
                                          f"{state.spec.name}", "it stays where it is")
        groups = list(dead.groups.values()) or [self.manager.group(dead.queue, b"default")]
        for group in groups:
            by_offset.settle_any(group, log.number, record.offset)
            group.flush_records()  # so that both are in the same batch as the append
        dead.queue.notify()
        return True
