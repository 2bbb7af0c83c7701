"""A queue as records: what its owner sends when it moves to another node, and what a follower of a line begins with.

    opening()    CLOCK, NAMESPACE, QUEUE, TRIM of each log              numbers and deadlines in all of them are those
    messages     APPEND                                                 of the queue's line, as in its own records
    closing()    TRIM to each log's end, GROUP, CURSOR, SETTLE, RETURN, CLAIM, OWNER, PRODUCED, QUEUE_ORIGIN, CLOCK

The records are those of the journal, so what applies them at a start, at a follower and at a new owner is the same
(_core/queue/line). The first CLOCK is the line's clock; the last one says that the queue is whole.

_core/disk/record_kinds.pxd has the bodies. docs/decisions/0011-a-queue-changes-hands.md
"""
from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import msgspec

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.memory.commits import Line
from fluxmq._core.memory.namespace import ENDED
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.handover import messages_from
from fluxmq._core.queue.line import append_records
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.state import records_of
from fluxmq.engine.queues.records import HAD, RELEASED, GroupRecord, Origin, origin_body, produced_body
from fluxmq.engine.queues.state import QueueState
from fluxmq.engine.queues.table import QueueTable

__all__ = ["closing", "described", "gathered", "mark_of", "messages_of", "namespaces_of", "opening"]

NO_END = (1 << 64) - 1
_HEAD = struct.Struct("<BI")
_CLOCK = struct.Struct(">qq")


def _framed(kind: RecordKind, *body: bytes) -> bytes:
    return b"".join((_HEAD.pack(kind, sum(map(len, body))), *body))


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _clock(table: QueueTable, state: QueueState) -> bytes:
    return _framed(RecordKind.CLOCK, _CLOCK.pack(table.hub.steady_ms + state.queue.line.shift_ms, table.hub.now_ms))


def namespaces_of(line: Line) -> bytes:
    """What the line's numbers of namespaces mean, also of those that have ended."""
    return b"".join(_framed(RecordKind.NAMESPACE, _number(number), namespace.record if namespace is not None else ENDED)
                    for number, namespace in sorted(line.namespaces.items()) if number)


def opening(table: QueueTable, state: QueueState) -> bytes:
    """What is to be known of the queue before its messages."""
    return b"".join((_clock(table, state), described(table, state), *(_trim(log, log.first) for log in state.logs)))


def described(table: QueueTable, state: QueueState) -> bytes:
    """The queue itself, with its logs; again when its first message is delayed."""
    found, namespace = table.queue_record(state), state.queue.namespace
    queue = _framed(RecordKind.QUEUE, _number(state.queue.number), found.encoded())
    if namespace is table.hub.root:
        return queue
    return _framed(RecordKind.NAMESPACE, _number(found.namespace), namespace.record) + queue


def messages_of(log: Log, offset: int, bytes_max: int, end: int = NO_END) -> tuple[bytes, int, bool]:
    """Records of messages that are in memory, from an offset on: as messages_from."""
    data, behind, missing = messages_from(log, offset, bytes_max, end)
    return append_records(log.number, data), behind, missing


def _trim(log: Log, next_: int) -> bytes:
    return _framed(RecordKind.TRIM, _number(log.number), _number(log.first), _number(next_))


def closing(table: QueueTable, state: QueueState, groups: Iterable[tuple[Group, GroupRecord]],
            had: Iterable[Origin] = (), released: Iterable[Origin] = (), *, export: bool = False) -> Iterator[bytes]:
    """What the queue's messages are to its groups at this instant, and where its logs end, in parts. had, released: of
    messages of QoS 2, as Origins.of_queue and released_of. Writes open runs of claims as records first. export: as of
    records_of."""
    number, delays = _number(state.queue.number), state.queue.delays
    yield b"".join(_trim(log, log.next) for log in state.logs)
    for group, found in groups:
        yield _framed(RecordKind.GROUP, _number(group.number), msgspec.msgpack.encode(found))
        yield from records_of(group, export)
    if delays is not None:
        yield from records_of(delays.group, export)
    for name, known in state.producers.items():
        yield _framed(RecordKind.PRODUCED, number, produced_body(name, known))
    for what, origins in ((HAD, had), (RELEASED, released)):
        for origin in origins:
            yield _framed(RecordKind.QUEUE_ORIGIN, number, origin_body(origin, what))
    yield _clock(table, state)


def gathered(records: Iterable[bytes], size: int) -> list[bytes]:
    """Joins parts until they have about that many bytes."""
    found, part, length = [], [], 0
    for one in records:
        part.append(one)
        length += len(one)
        if length >= size:
            found.append(b"".join(part))
            part, length = [], 0
    return [*found, b"".join(part)] if part else found


def mark_of(identity: int) -> int:
    """Stands for a queue among the groups that have had a message with an origin: queue_mark of _core/queue/queue."""
    mixed = (identity ^ identity >> 32) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return max(mixed >> 32, 1)
