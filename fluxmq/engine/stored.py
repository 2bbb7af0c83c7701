"""Rows of the view and records of the journal, each decoded and checked by itself.

A valid CRC proves that the bytes are those that were written, not that they are meaningful: a defective program, or a
user, may have written a row or record of the wrong shape. A start refuses it, with its name and a remedy; a repair
drops it. Both use the functions of this file, so that they agree.

Each decoder raises one of WRONG_SHAPE, or CorruptError, for invalid input. It is one file because both walk all kinds.
"""
from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fluxmq._core.disk.journal_format import iter_records
from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.disk.segment_format import messages_of
from fluxmq._core.errors import CorruptError, ProtocolError, UsageError
from fluxmq._core.exchange.exchange import TYPES
from fluxmq._core.exchange.headers import read_headers
from fluxmq._core.hub.origins import read_origin
from fluxmq._core.hub.persist import Loader
from fluxmq._core.memory.namespace import read_namespace
from fluxmq._core.queue.log import envelope_of
from fluxmq._core.queue.state import RECORD_OFFSETS_MAX, cursors_of
from fluxmq.engine.clock import CLOCK_KEY
from fluxmq.engine.exchanges.records import BindingRecord, StoredExchange
from fluxmq.engine.positions import read_position
from fluxmq.engine.queues.records import GroupRecord, LogMeta, QueueRecord, origin_in, produced_in
from fluxmq.engine.retained_revisions import read_revision
from fluxmq.engine.sessions.parts import check_part, read_step
from fluxmq.engine.sessions.state import Head, Link, Subscription
from fluxmq.model.queues import QueueSpec

__all__ = ["KINDS_OF_ROWS", "WRONG_SHAPE", "SessionCopy", "binding_of", "copied_of", "copy_of", "exchange_of",
           "group_of", "head_of", "link_of", "meta_of", "names_in", "position_of", "producers_of", "queue_of",
           "record_problem", "refused", "refused_batch", "row_problem", "session_of", "session_that_holds", "shown",
           "subscription_of", "unsubscribed_of", "way_out"]

# What decoding and applying raise for content of the wrong shape, besides CorruptError.
WRONG_SHAPE = (msgspec.MsgspecError, ProtocolError, UsageError, LookupError, ValueError, TypeError, ArithmeticError,
               struct.error)
KINDS_OF_ROWS = {b"n": "namespace", b"m": "message", b"s": "session", b"q": "queue", b"g": "group", b"l": "log",
                 b"d": "producers of queue", b"e": "exchange", b"b": "binding", b"k": "messages of log",
                 b"x": "removal of log", b"f": "copy of queue", b"a": "position of group"}

# Minimum sizes.
_SHORT: dict[int, int] = {RecordKind.SENT: 18, RecordKind.SETTLED: 16, RecordKind.RELEASED: 16, RecordKind.RECEIVED: 10,
                          RecordKind.COMPLETED: 10}
_GROUPS = {RecordKind.CLAIM: (30, 46), RecordKind.SETTLE: (28,), RecordKind.RETURN: (34,), RecordKind.CURSOR: (24,),
           RecordKind.OWNER: (28,)}
_MESSAGE_HEAD = struct.Struct(">QBHII")     # expires_at, qos, lengths of topic, properties, payload
_ENTRY = struct.Struct(">QQHBB")             # of a session, and a target of a MESSAGE; the last counts 4-byte fields
_VERSION = 1
_MODES = ("shared", "exclusive", "single")


class SessionCopy(msgspec.Struct, array_like=True):
    """The first part of a session's row in the view."""

    head: Head
    subscriptions: list[Subscription]


head_of = msgspec.msgpack.Decoder(Head).decode
link_of = msgspec.msgpack.Decoder(Link).decode
subscription_of = msgspec.msgpack.Decoder(Subscription).decode
unsubscribed_of = msgspec.msgpack.Decoder(bytes).decode
session_of = msgspec.msgpack.Decoder(SessionCopy).decode
meta_of = msgspec.msgpack.Decoder(LogMeta).decode
producers_of = msgspec.msgpack.Decoder(dict[bytes, tuple[int, bytes]]).decode
_queue = msgspec.msgpack.Decoder(QueueRecord).decode
_group = msgspec.msgpack.Decoder(GroupRecord).decode
_copy = msgspec.msgpack.Decoder(tuple[GroupRecord, bytes]).decode
_copied = msgspec.msgpack.Decoder(tuple[bytes, dict[int, int]]).decode
_exchange = msgspec.msgpack.Decoder(StoredExchange).decode
_binding = msgspec.msgpack.Decoder(BindingRecord).decode


def queue_of(value: bytes) -> tuple[QueueRecord, QueueSpec]:
    """A queue's record, and its specification as in `queues:`."""
    record = _queue(value)
    spec = record.declaration()
    lanes = spec.lanes
    if len(record.logs) != spec.partitions * lanes:
        raise CorruptError(f"it names {len(record.logs)} logs and has {spec.partitions} partitions of {lanes}")
    for at, one in enumerate(record.logs) if lanes > 1 or record.logs[0].lane else ():
        if one.lane != at % lanes:
            raise CorruptError(f"its log {at} is said to be number {one.number} in lane {one.lane}")
    return record, spec


def group_of(value: bytes) -> GroupRecord:
    """A group's record."""
    return _sound(_group(value))


def copy_of(value: bytes) -> tuple[GroupRecord, bytes]:
    """A group's row in the view: its record, and the state of its cursors (fluxmq/_core/queue/state.pyx)."""
    record, state = _copy(value)
    return _sound(record), state


def copied_of(value: bytes) -> tuple[bytes, dict[int, int]]:
    """The copy of a queue of another line than the journal: its records (engine/queues/encoding.py), and by the number
    that a log has in them the one that it has on this disk."""
    records, logs = _copied(value)
    found = iter_records(records)
    for kind, body in found:
        if problem := record_problem(kind, body):
            raise CorruptError(problem)
    kinds = [kind for kind, _ in found]
    if kinds.count(RecordKind.QUEUE) != 1 or kinds[0] != RecordKind.CLOCK or kinds[-1] != RecordKind.CLOCK:
        raise CorruptError("its records are not those of one queue")
    queue = queue_of(found[kinds.index(RecordKind.QUEUE)][1][8:])[0]
    numbers = {one.number for one in queue.logs} | ({queue.delay} if queue.delay else set())
    if not numbers <= logs.keys() or 0 in logs.values() or len(set(logs.values())) != len(logs):
        raise CorruptError("it does not say which numbers its logs have on this disk")
    return records, logs


def position_of(value: bytes) -> tuple[int, bytes]:
    """Up to where the batches of a group's line are in the view; and the records of its namespaces."""
    if len(value) < 8:
        raise CorruptError(f"the position of a group has {len(value)} bytes where 8 should be")
    for kind, body in iter_records(value[8:]):
        if kind != RecordKind.NAMESPACE or len(body) < 8:
            raise CorruptError(f"behind the position of a group is a record of kind {kind}")
        read_namespace(body[8:])
    return int.from_bytes(value[:8], "big"), value[8:]


def _sound(record: GroupRecord) -> GroupRecord:
    if record.mode not in _MODES:
        raise CorruptError(f"its mode is said to be {record.mode!r}")
    return record


def exchange_of(value: bytes) -> StoredExchange:
    """An exchange."""
    record = _exchange(value)
    if record.type not in TYPES:
        raise CorruptError(f"its type is said to be {record.type!r}")
    if record.arguments:
        list(read_headers(record.arguments))
    return record


def binding_of(value: bytes) -> BindingRecord:
    """A binding."""
    record = _binding(value)
    if record.arguments:
        list(read_headers(record.arguments))
    return record


# ------------------------------------------------------------------------------------------------- one row, one record


def row_problem(key: bytes, value: bytes) -> str:
    """What is wrong with one row of the view; "" if nothing is."""
    return _problem(_row, key, value)


def record_problem(kind: int, body: bytes) -> str:
    """What is wrong with one record of the journal; "" if nothing is. Also "" for a kind that this version does not
    know: the caller must refuse it."""
    return _problem(_record, kind, body)


def _problem(read: Callable[..., object], *what: object) -> str:
    try:
        read(*what)
    except (CorruptError, *WRONG_SHAPE) as error:
        return _why(error)
    return ""


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, CorruptError) else f"{type(error).__name__}: {error}"


def _row(key: bytes, value: bytes) -> None:
    kind = key[:1]
    if kind in b"msqgldebkna" and len(key) != 9:
        raise CorruptError(f"its key has {len(key)} bytes where 9 should be")
    if kind == b"m":
        _stored_message(value)
    elif kind == b"r":
        if len(key) < 3 or len(key) < 3 + int.from_bytes(key[1:3], "big"):
            raise CorruptError("its key is shorter than it says")
        _stored_message(value)
    elif kind == b"t":
        if len(key) < 10:
            raise CorruptError("its key names no topic")
        _stored_message(value)
    elif kind == b"n":
        read_namespace(value)
    elif kind == b"p":
        read_position(key[1:], value)
    elif kind == b"o":
        read_origin(key[1:], value)
    elif kind == b"h":
        read_revision(key[1:], value)
    elif kind == b"s":
        session_of(Loader.head_of(value))
        problem = session_that_holds(value)[1]
        if problem:
            raise CorruptError(problem)
    elif kind == b"g":
        cursors_of(copy_of(value)[1])
    elif kind == b"k":
        messages_of(value[8:])
    elif kind == b"f":
        if len(key) != 13:
            raise CorruptError(f"its key has {len(key)} bytes where 13 should be")
        copied_of(value)
    elif kind == b"a":
        position_of(value)
    elif key == CLOCK_KEY:
        if not value or len(value) % 16:
            raise CorruptError(f"the clock has {len(value)} bytes")
    elif kind in _CHECKS:
        _CHECKS[kind](value)
    elif kind != b"x" and kind != b"\0":
        raise CorruptError("it is of a kind that this version does not know")


def session_that_holds(value: bytes) -> tuple[bytes, str]:
    """For a session whose first part is valid: (the value with its valid entries only, what is wrong with it). If
    nothing is wrong, the value is returned unchanged."""
    at = 5 + len(Loader.head_of(value))
    begin = value[:at]
    if at + 10 > len(value):
        return begin + bytes(10 + 3 * 4), "it ends before its entries"
    begin, at = value[:at + 10], at + 10
    kept: tuple[list[bytes], list[bytes]] = ([], [])
    problem = ""
    for entries in kept:
        count, at = int.from_bytes(value[at:at + 4], "big"), at + 4
        while len(entries) < count and not problem:
            end = at + _ENTRY.size + (4 * value[at + _ENTRY.size - 1] if at + _ENTRY.size <= len(value) else 0)
            if at + _ENTRY.size > len(value) or end > len(value):
                problem = f"it ends in one of the {count} entries that it says it has"
                break
            number, _, packet_id, _, _ = _ENTRY.unpack_from(value, at)
            if not number and not packet_id:
                problem = f"its entry at byte {at} names no message"
                break
            entries.append(value[at:end])
            at = end
    received = value[at + 4:]
    if not problem and (at + 4 > len(value) or len(received) != 2 * int.from_bytes(value[at:at + 4], "big")):
        problem = "the identifiers that it has received are not as many as it says"
    if not problem:
        return value, ""
    parts = [part for entries in kept for part in (len(entries).to_bytes(4, "big"), *entries)]
    return b"".join([begin, *parts, bytes(4)]), problem


_CHECKS: dict[bytes, Any] = {b"q": queue_of, b"l": meta_of, b"d": producers_of, b"e": exchange_of, b"b": binding_of}


def _stored_message(value: bytes) -> None:
    if len(value) < 1 + _MESSAGE_HEAD.size or value[0] != _VERSION:
        raise CorruptError("it is shorter than its header, or of another version")
    _, _, *lengths = _MESSAGE_HEAD.unpack_from(value, 1)
    if len(value) < 1 + _MESSAGE_HEAD.size + sum(lengths):
        raise CorruptError("it is shorter than it says")


def _record(kind: int, body: bytes) -> None:
    if kind == RecordKind.MESSAGE:
        _message_record(body)
    elif kind == RecordKind.RETAINED:
        *_, topic, properties, payload = _MESSAGE_HEAD.unpack_from(body, 8)
        if len(body) < 8 + _MESSAGE_HEAD.size + topic + properties + payload:
            raise CorruptError("a RETAINED record is shorter than it says")
    elif kind == RecordKind.RETAINED_VERSION:
        *_, topic, properties, payload = _MESSAGE_HEAD.unpack_from(body, 8)
        if len(body) != 8 + _MESSAGE_HEAD.size + topic + properties + payload + 17 or body[-1] > 1:
            raise CorruptError("a RETAINED_VERSION record has the wrong length, or unknown flags")
    elif kind == RecordKind.RETAINED_NAMED:
        *_, topic, properties, payload = _MESSAGE_HEAD.unpack_from(body)
        [namespace] = struct.unpack_from(">H", body, _MESSAGE_HEAD.size)
        if len(body) < _MESSAGE_HEAD.size + 2 + namespace + topic + properties + payload:
            raise CorruptError("a RETAINED record is shorter than it says")
    elif len(body) < 8:
        raise CorruptError(f"a record of kind {kind} is shorter than its number")
    elif kind == RecordKind.NAMESPACE:
        read_namespace(body[8:])
    elif kind == RecordKind.PEER_POSITION:
        read_position(body[16:], body[:16])
    elif kind == RecordKind.ORIGIN:
        read_origin(body[:18], body[18:])
    elif kind == RecordKind.ORIGIN_END:
        read_origin(body)
    elif kind == RecordKind.RETAINED_REVISION:
        read_revision(body[9:], body[:9])
    elif kind == RecordKind.ARRIVAL:
        if (part := read_step(body[8:]).part) is not None:
            check_part(part)
    elif kind in _SHORT:
        if len(body) < _SHORT[kind]:
            raise CorruptError(f"a record of kind {kind} is too short")
    elif kind in _GROUPS:
        if len(body) not in _GROUPS[RecordKind(kind)]:
            raise CorruptError(f"a record of kind {kind} has the wrong length")
        if kind in (RecordKind.CLAIM, RecordKind.SETTLE) and int.from_bytes(body[24:28], "big") > RECORD_OFFSETS_MAX:
            raise CorruptError(f"a record of kind {kind} is about more than {RECORD_OFFSETS_MAX} messages")
    elif kind in (RecordKind.REPLICA, RecordKind.ENTRY):
        pass            # a damaged one is its replica's matter, and stays: without it nobody knew (engine/replicas.py)
    elif kind == RecordKind.APPEND:
        if len(messages_of(body[8:])) != 1:
            raise CorruptError("an APPEND record holds what is no message")
        if b"producer-id" in body:
            envelope_of(body[8:]).headers()
    elif kind == RecordKind.TRIM or kind == RecordKind.CLOCK:
        if len(body) != 16 and (kind == RecordKind.CLOCK or len(body) != 24):
            raise CorruptError(f"a record of kind {kind} has {len(body)} bytes")
    elif kind in _BODIES:
        _BODIES[kind](body[8:])


_BODIES: dict[int, Any] = {
    RecordKind.SESSION: head_of, RecordKind.SUBSCRIBE: subscription_of, RecordKind.UNSUBSCRIBE: unsubscribed_of,
    RecordKind.LINK: link_of, RecordKind.QUEUE: queue_of, RecordKind.GROUP: group_of,
    RecordKind.EXCHANGE: exchange_of, RecordKind.BIND: binding_of, RecordKind.PRODUCED: produced_in,
    RecordKind.QUEUE_ORIGIN: origin_in,
}


def _message_record(body: bytes) -> None:
    _, _, _, topic, properties, payload, targets = struct.unpack_from(">QQBHIII", body)
    at = 31 + topic + properties + payload
    for _ in range(targets):
        if at + _ENTRY.size > len(body):
            raise CorruptError("a MESSAGE record is shorter than its targets")
        at += _ENTRY.size + 4 * body[at + _ENTRY.size - 1]
    if at > len(body):
        raise CorruptError("a MESSAGE record is shorter than it says")


# ------------------------------------------------------------------------------------------------------ what is said


def names_in(value: bytes) -> list[str]:
    """Names that can still be read from an invalid row, for a report: texts at its top and one level below. Wrong names
    do no harm in a report."""
    found: list[str] = []

    def walk(item: Any, depth: int) -> None:
        if isinstance(item, bytes | str) and 0 < len(item) <= 200:
            text = item.decode("utf-8", "replace") if isinstance(item, bytes) else item
            if text.isprintable() and text not in _MODES:
                found.append(text)
        elif depth and isinstance(item, list | tuple):
            for each in item:
                walk(each, depth - 1)
        elif depth and isinstance(item, dict) and "name" in item:
            walk(item["name"], 0)

    try:
        walk(msgspec.msgpack.decode(value), 2)
    except WRONG_SHAPE:
        return []
    return found[:3]


def shown(key: bytes) -> str:
    """A key in readable form."""
    if key[:1] == b"t" and len(key) > 9:
        return f"retained message {key[9:].decode('utf-8', 'replace')!r}"
    if key[:1] == b"r" and len(key) > 2:
        return f"retained message {key[3 + int.from_bytes(key[1:3], 'big'):].decode('utf-8', 'replace')!r}"
    if key[:1] == b"h" and len(key) > 2:
        return f"revision of retained message {key[3 + int.from_bytes(key[1:3], 'big'):].decode('utf-8', 'replace')!r}"
    if key[:1] == b"p":
        return f"position of node {key[1:].decode('utf-8', 'replace')!r}"
    if key[:1] == b"o":
        return f"origin {key[1:].hex()} of a message"
    if key[:1] == b"f" and len(key) == 13:
        return f"copy of queue {key[5:].hex()} of group {int.from_bytes(key[1:5], 'big')}"
    if key[:1] in KINDS_OF_ROWS and len(key) >= 9:
        number = int.from_bytes(key[1:9], "big")
        name = KINDS_OF_ROWS[key[:1]]
        return f"{name} {number}" if key[:1] in b"msn" else f"{name} {number:016x}"
    return "clock" if key == CLOCK_KEY else f"key {key!r}"


def way_out(base: Path | None) -> str:
    """What an operator can do about a directory that a start refuses."""
    return (f"Restore {base} from a copy; or run `fluxmq log verify {base}`, which shows all of the damage, and "
            f"`fluxmq log repair {base}`, which keeps everything that can still be read and says what is lost "
            f"(`storage.recover_on_startup: true` does it at a start)")


def refused(base: Path | None, key: bytes, error: Exception) -> CorruptError:
    """The error with which a start refuses a row of the view."""
    why = _why(error)
    return CorruptError(f"{base}/state: what it has of {shown(key)} (key {key.hex()}) is not what a broker writes "
                        f"there: {why}. {way_out(base)}")


def refused_batch(base: Path | None, number: int, batch: bytes, error: Exception) -> CorruptError:
    """The error with which a start refuses a batch of the journal."""
    why = _why(error)
    try:
        records = iter_records(batch)
        at = next((f", record {at} of {len(records)}, of kind {kind}" for at, (kind, body) in enumerate(records, 1)
                   if record_problem(kind, body)), "")
    except CorruptError:
        at = ""
    return CorruptError(f"{base}/journal: batch {number}{at} is not what a broker writes there, though its CRC holds: "
                        f"{why}. {way_out(base)}")
