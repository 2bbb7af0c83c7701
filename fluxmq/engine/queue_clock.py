"""What becomes due in queues: leases, backoffs, delayed messages, retention, queues that nobody uses."""
from __future__ import annotations

import heapq
import math

from fluxmq._core.queue import QUEUE_EPHEMERAL, QUEUE_STREAM
from fluxmq.engine.queue_properties import partition_key_of, priority_of
from fluxmq.engine.queues import NOTHING, QueueManager, QueueState

__all__ = ["tick"]

RETENTION_EVERY_MS = 5000


def tick(manager: QueueManager) -> None:
    """What is due by now: leases, backoffs, delays, retention, queues that nobody uses."""
    now = manager.hub.now_ms
    for state in list(manager.queues.values()):
        for group in state.groups.values():
            group.tick()
        if state.delayed and state.delayed[0][0] <= now:
            move_due(manager, state, now)
        if state.queue.kind == QUEUE_STREAM:
            for reader in state.queue.readers:
                reader.auto_commit()
            if now >= state.retention_due_ms:
                state.retention_due_ms = now + RETENTION_EVERY_MS
                retain(manager, state, now)
        elif state.queue.kind == QUEUE_EPHEMERAL and not state.configured and unused(state) and (
                now - state.idle_since_ms >= state.spec.expires_after * 1000):
            manager.log("info", "", "ephemeral queue deleted: nobody used it", {"queue": state.spec.name})
            manager.delete(state.queue.name)


def unused(state: QueueState) -> bool:
    return not any(group.members for group in state.groups.values())


def retain(manager: QueueManager, state: QueueState, now: int) -> None:
    """The caps of a stream."""
    keep = state.spec.retention
    for log in state.queue.logs:
        first = log.first
        if keep.max_length_messages:
            first = max(first, log.next - keep.max_length_messages)
        if keep.max_length_bytes and log.kept_bytes > keep.max_length_bytes:
            excess = (log.kept_bytes - keep.max_length_bytes) / log.kept_bytes
            first = max(first, log.first + math.ceil((log.next - log.first) * excess))  # it is a cap
        if keep.max_age:
            first = max(first, manager.offset_at_time(log, now - int(keep.max_age * 1000)))
        manager.trim(state, log, min(first, log.next))


def move_due(manager: QueueManager, state: QueueState, now: int) -> None:
    """Delayed messages whose time has come move to the queue, each in one batch with its end here."""
    delay, group = state.delay, state.delay_group
    assert delay is not None and group is not None
    while state.delayed and state.delayed[0][0] <= now:
        offset = state.delayed[0][1]
        message = delay.get(offset)
        if message is None and delay.wanted != NOTHING and delay.first <= offset:
            manager.read_on(state.queue)
            break
        if message is not None:
            refused = state.queue.append_message(
                message.topic, message.payload, properties=message.properties, qos=message.qos,
                priority=priority_of(message.properties), expires_at=message.expires_at,
                partition_key=partition_key_of(message.properties))
            if refused:
                break  # full: it stays, and is tried again
        heapq.heappop(state.delayed)
        group.settle_any(delay.number, offset)
    group.flush_records()  # of those that did move, whatever ended this: they must not move twice
    delay.trim(group.cursors[0].floor)
    manager.changed.add(state)
