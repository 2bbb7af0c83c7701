"""Snapshots of a whole queue, and what compares two instances."""
from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

import msgspec

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.queue.export import unflushed
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log, Needed
from fluxmq._core.queue.state import cursors_in, state_of
from fluxmq.engine.queues.encoding import closing, mark_of, messages_of, opening
from fluxmq.engine.queues.manager import QueueManager, QueueState
from fluxmq.engine.queues.records import LogRecord, produced_body

__all__ = ["digest", "queue_in", "snapshot"]

_HEAD = struct.Struct("<BI")  # of a record


def snapshot(manager: QueueManager, state: QueueState) -> bytes:
    """The queue's present state as records of its line (encoding.py): a new instance begins with it and applies later
    ones. Changes nothing, but writes open runs of claims as records. Raises UsageError if a message is on disk only."""
    parts = [opening(manager, state)]
    for log in state.logs:
        # With those that every group has settled, as long as they are in memory: a later group begins there.
        messages, _, missing = messages_of(log, log.first, 1 << 62)
        if missing:
            raise UsageError(f"queue {state.spec.shown} has messages on disk only, which a snapshot has not")
        parts.append(messages)
    groups = ((group, manager.group_record(state, group, pattern)) for (_, pattern), group in state.groups.items())
    mark, origins = mark_of(state.id), manager.hub.origins
    had, released = (origins.of_queue(mark), origins.released_of(mark)) if state.id else ([], [])
    return b"".join((*parts, *closing(manager, state, groups, had, released)))


def queue_in(raw: bytes) -> int:
    """The number of the queue of a whole snapshot. Raises CorruptError."""
    clock, at = _HEAD.pack(RecordKind.CLOCK, 16), 0
    if raw.startswith(clock) and raw[-_HEAD.size - 16:].startswith(clock):
        while at + _HEAD.size + 8 <= len(raw):
            kind, length = _HEAD.unpack_from(raw, at)
            at += _HEAD.size
            if kind == RecordKind.QUEUE:
                return int.from_bytes(raw[at:at + 8], "big")
            if kind not in (RecordKind.CLOCK, RecordKind.NAMESPACE):
                break
            at += length
    raise CorruptError(f"{len(raw)} bytes are no snapshot of a queue")


def _known(group: Group, now_ms: int) -> list[object]:
    """A group's knowledge of messages that its logs still have: settled ones, and ones that were claimed. It is equal
    for a leader that has already processed a trim and a follower that has not. A message that was returned without
    having been delivered counts as new; one whose waiting time has passed does not wait any more, which only the leader
    has noted."""
    found: list[object] = []
    logs = {cursor.log.number: cursor.log for cursor in group.cursors}
    for number, _, floor, pages, claims in cursors_in(state_of(group)):
        low = max(floor, logs[number].first)
        origin = min([low] + [base for base, _ in pages])
        bits = sum(bits << (base - origin) for base, bits in pages) >> (low - origin)
        settled = (bits + 1 & ~bits).bit_length() - 1  # this many messages at the start are settled
        low, bits = low + settled, bits >> settled
        found.append((number, low, bits.to_bytes(-(-bits.bit_length() // 8), "big"),
                      [(offset, count, due) for offset, count, due in
                       ((offset, count, due if due > now_ms else 0) for offset, count, due in claims)
                       if offset >= low and (count, due) != (0, 0)]))
    return found


def digest(manager: QueueManager, state: QueueState, line_ms: int | None = None,
           messages: Callable[[Log, Needed | None], bytes] = unflushed) -> str:
    """Equal for two instances of a queue with equal state: its declaration, messages that some group may still need,
    and the state of each group; but not which consumer has which message. line_ms: the line's time, ms, at which they
    are compared; None: the present one, as this node knows it. messages: reads these; without it, those that no segment
    has."""
    queue, delays, now_ms = state.queue, state.queue.delays, line_ms
    if now_ms is None:
        now_ms = manager.hub.steady_ms + queue.line.shift_ms
    state_hash = hashlib.blake2b(digest_size=16)
    record = manager.queue_record(state)
    state_hash.update(msgspec.msgpack.encode((
        queue.number, record, sorted(produced_body(*one) for one in state.producers.items()))))
    for (name, pattern), group in sorted(state.groups.items()):
        group.flush_records()
        record_of_group = manager.group_record(state, group, pattern)
        state_hash.update(msgspec.msgpack.encode((name, pattern, record_of_group, _known(group, now_ms))))
    if delays is not None:
        delays.group.flush_records()
        state_hash.update(msgspec.msgpack.encode(_known(delays.group, now_ms)))
    for log in state.logs:
        state_hash.update(msgspec.msgpack.encode((LogRecord(log.number, log.lane), log.next,
                                                  messages(log, queue.needs(log)))))
    return state_hash.hexdigest()
