"""Snapshots of a whole queue: to bytes, restored in place, and compared between two instances."""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import msgspec

from fluxmq._core.errors import CorruptError
from fluxmq._core.queue.export import unflushed
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.state import cursors_in, restore_state, state_of
from fluxmq.engine.queues.manager import QueueManager, QueueState
from fluxmq.engine.queues.records import GroupRecord, LogRecord, QueueRecord

__all__ = ["Snapshot", "derive", "digest", "read_snapshot", "rebuild", "snapshot"]


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """A queue's state at one moment, without what its segments have: a new instance begins with it and applies later
    records.

    namespace: `Namespace.record`. groups: number, record, state. logs: number, first offset, end of its segments, its
    end, messages behind the segments.
    """

    number: int
    record: QueueRecord
    namespace: bytes
    producers: dict[bytes, tuple[int, int]]
    groups: list[tuple[int, GroupRecord, bytes]]
    delayed: bytes
    logs: list[tuple[int, int, int, int, bytes]]


def snapshot(manager: QueueManager, state: QueueState) -> bytes:
    """The queue's present state. Changes nothing, but writes open runs of claims as records."""
    queue, delays = state.queue, state.queue.delays
    for group in [*state.groups.values(), *([delays.group] if delays is not None else ())]:
        group.flush_records()
    return msgspec.msgpack.encode(Snapshot(
        queue.number, manager.queue_record(state), queue.namespace.record, dict(state.producers),
        [(group.number, manager.group_record(state, group, pattern), state_of(group))
         for (_, pattern), group in state.groups.items()],
        state_of(delays.group) if delays is not None else b"",
        # Includes messages that every group has settled, as long as they are in memory: a later group begins there.
        [(log.number, log.first, log.flushed, log.next, unflushed(log, None)) for log in state.logs]))


_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


def read_snapshot(raw: bytes) -> Snapshot:
    """Decodes a snapshot. Raises CorruptError."""
    try:
        return _snapshot(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptError(f"that is no snapshot of a queue: {error}") from error


def rebuild(manager: QueueManager, state: QueueState, found: Snapshot,
            due_pairs: Callable[[int], Iterable[bytes]] = lambda log: ()) -> None:
    """Replaces the queue's contents by those of a snapshot; bindings, consumers and settings stay. Claimed messages are
    ready again, as after a restart; the consumers stay members, and their later settlements of these messages have no
    effect. due_pairs: of a delay log's segments (SegmentFiles). Raises CorruptError for a snapshot of another queue,
    without changing anything."""
    queue, delays = state.queue, state.queue.delays
    logs = {log.number: log for log in state.logs}
    if found.number != queue.number or {one[0] for one in found.logs} != logs.keys():
        raise CorruptError(f"the snapshot is of queue {found.number:016x}, not of {queue.number:016x}, or of "
                           f"other logs")
    members = {group: (list(group.members), list(group.pullers)) for group in state.groups.values()}
    for group in state.groups.values():
        group.disband()
    for number, first, flushed, end, messages in found.logs:
        logs[number].restart(first, flushed)
        if end != flushed:
            logs[number].replay(messages, end)
    _same_groups(manager, state, found)
    if delays is not None:
        restore_state(delays.group, found.delayed)
    state.producers = found.producers
    manager.note_changed(state)
    if not queue.following:
        derive(manager, state, due_pairs)
    for group, (joined, pullers) in members.items():
        if group in state.groups.values():
            for member in joined:
                group.join(member)
            for member in pullers:
                group.attach(member)


def _same_groups(manager: QueueManager, state: QueueState, found: Snapshot) -> None:
    """Gives the queue the groups of the snapshot, each with its state."""
    known = {group.number: (name, group) for name, group in state.groups.items()}
    for number in known.keys() - {one[0] for one in found.groups}:
        manager.drop_quietly(state, known[number][0])
    for number, record, copied in found.groups:
        group = known[number][1] if number in known else manager.adopt_group(state, number, record)
        group.set_mode(record.mode)
        manager.set_retry_policy(state, group, record.retry_policy)
        restore_state(group, copied)


def derive(manager: QueueManager, state: QueueState,
           due_pairs: Callable[[int], Iterable[bytes]] = lambda log: ()) -> None:
    """Rebuilds derived state from messages and groups, because the queue is led here from now on."""
    queue, delays = state.queue, state.queue.delays
    if delays is not None:
        delays.restart()
        for pairs in due_pairs(delays.log.number):
            delays.restore_pairs(pairs)
        delays.restored()
    queue.derive()
    manager.sums.measure(queue, state.groups.values())
    queue.notify()


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


def digest(manager: QueueManager, state: QueueState) -> str:
    """Equal for two instances of a queue with equal state: its declaration, messages in memory that some group may
    still need, and the state of each group; but not which consumer has which message."""
    queue, delays, now_ms = state.queue, state.queue.delays, manager.hub.steady_ms + state.queue.line.shift_ms
    state_hash = hashlib.blake2b(digest_size=16)
    record = manager.queue_record(state)
    state_hash.update(msgspec.msgpack.encode((queue.number, record, sorted(state.producers.items()))))
    for (name, pattern), group in sorted(state.groups.items()):
        group.flush_records()
        record_of_group = manager.group_record(state, group, pattern)
        state_hash.update(msgspec.msgpack.encode((name, pattern, record_of_group, _known(group, now_ms))))
    if delays is not None:
        delays.group.flush_records()
        state_hash.update(msgspec.msgpack.encode(_known(delays.group, now_ms)))
    for log in state.logs:
        state_hash.update(msgspec.msgpack.encode((LogRecord(log.number, log.lane), log.next,
                                                  unflushed(log, queue.needs(log)))))
    return state_hash.hexdigest()
