"""What becomes due in queues: leases, backoffs, delayed messages, retention, queues that nobody uses."""
from __future__ import annotations

from fluxmq._core.queue import QUEUE_EPHEMERAL, QUEUE_STREAM
from fluxmq.engine.queues import QueueManager, QueueState

__all__ = ["tick"]

RETENTION_EVERY_MS = 5000


def tick(manager: QueueManager) -> None:
    """What is due by now: leases, backoffs, delays, retention, queues that nobody uses."""
    now = manager.hub.now_ms
    for state in list(manager.queues.values()):
        for group in state.groups.values():
            group.tick()
        if state.queue.delays is not None:
            due = state.queue.delays.first_due()
            if due is not None and due <= now:
                state.queue.notify()
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
            first = max(first, log.first + int((log.next - log.first) * excess))
        if keep.max_age:
            first = max(first, manager.offset_at_time(log, now - int(keep.max_age * 1000)))
        manager.trim(state, log, min(first, log.next))
