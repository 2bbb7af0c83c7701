"""Frames of a stream between two nodes, naively: as docs/internals/cluster.md draws them, field by field.

A frame is (header, records); a record is a tuple that begins with its kind:

    (1, number, name)  (2, namespace, flags, left_ms, topic, properties, payload)  (3, …as 2, group, filter)
    (4, namespace, count, group, filter, flags)  (5,)  (6, data)  (7, …as 2, life)  (8, name, packet id, use)

    (9, queue, QoS and quiet, format and forced and repeated, position, left_ms, topic, properties, payload)
    (10, member, flags, deliveries, log, first offset, count, ms, reason)  (11, member, limit)
    (12, number, queue, channel, data)  (13, member, flags)  (14, …as 12)  (15, position, flags)
    (16, member, deliveries, log, left_ms, message, offset, format, topic, properties)
    (17, member, log, offset)  (18, number, data)  (19, position)  (20, position, reason, text, flags)

    (21, …as 2, origin or None, version, size of the payload)

One of kind 2, 3, 7 or 9 may end with its origin: (name, use, packet id). One of kind 2 may end with an origin or None,
and a version: (number, life). flags of 21: also absent and state.

flags: QoS and retain; left_ms -1: it does not expire; in 16 that is 0. The message of 16 is as log_message() builds it:
its expiry is zero, and what stands behind it is what it says. MQTT's properties are not looked into. A position has the
channel in its upper 16 bits.
"""
from __future__ import annotations

import struct
from typing import Any

from oracle import amqp091

__all__ = ["HEADER", "Malformed", "Record", "build", "build_record", "log_message", "mqtt_properties", "read",
           "record_ends"]

Record = tuple[Any, ...]
HEADER = ("version", "flags", "age_s", "records", "epoch", "to_epoch", "sequence", "acknowledged")
_HEADER = struct.Struct("<BBHIQQQQ")
_HEAD = struct.Struct("<BBHI")
_CONTENT = struct.Struct("<III")
RETAIN, EXPIRES, ORIGIN, VERSION, ABSENT, STATE = 4, 8, 16, 32, 64, 128
VERSION_MAX = 1 << 62
LEFT_MAX = 1 << 52
# Of kinds 10 to 20 what always stands in front of their bytes, and whether bytes follow.
FIXED = {10: ("<IIQIq", True), 11: ("<II", False), 12: ("<IQ", True), 13: ("<I", False), 14: ("<IQ", True),
         15: ("<Q", False), 17: ("<IIQ", False), 18: ("<I", True), 19: ("<Q", False), 20: ("<Q", True)}
# Size, payload's length, offset, time, expiry, not before, properties' and topic's length, QoS and format, priority.
_LOG = struct.Struct("<IIQqqqIHBB")
COUNT_MAX = 1 << 20                     # of messages in one settlement


class Malformed(Exception):
    """A receiver must refuse it."""


def log_message(offset: int, format_: int, qos: int, topic: bytes, properties: bytes, payload: bytes, time_ms: int = 0,
                not_before: int = 0, priority: int = 0) -> bytes:
    """A message as a log has it (queue/log.pxd), its expiry left out."""
    body = topic + properties + payload
    size = (_LOG.size + len(body) + 7) // 8 * 8
    head = _LOG.pack(size, len(payload), offset, time_ms, 0, not_before, len(properties), len(topic),
                     format_ << 4 | qos, priority)
    return (head + body).ljust(size, b"\0")


def mqtt_properties(records: list[Record]) -> list[bytes]:
    """The properties of all messages in MQTT's format, which read() does not look into."""
    return ([record[5] for record in records if record[0] in (2, 3, 7, 21)]
            + [record[7] for record in records if record[0] == 9 and record[3] & 1 == 0]
            + [record[9] for record in records if record[0] == 16 and record[7] == 0])


def build_record(record: Record) -> bytes:
    kind, flags, a = record[0], 0, 0
    if kind == 1:
        body = struct.pack("<I", record[1]) + record[2]
    elif kind in (2, 3, 7, 21):
        _, namespace, flags, left_ms, topic, properties, payload = record[:7]
        body, a = _CONTENT.pack(namespace, len(properties), len(payload)), len(topic)
        if left_ms >= 0:
            flags |= EXPIRES
            body += struct.pack("<q", left_ms)
        more = list(record[7 + {2: 0, 3: 2, 7: 1, 21: 0}[kind]:])
        if more and more[0]:
            flags |= ORIGIN
            body += struct.pack("<QQH", *more[0])
        if len(more) > 1:
            flags |= VERSION
            body += struct.pack("<QQ", *more[1])
        body += topic + properties + payload
        if kind == 3:
            group, filter_ = record[7:9]
            body = struct.pack("<HH", len(group), len(filter_)) + group + filter_ + body
        if kind == 7:
            body = struct.pack("<Q", record[7]) + body
        if kind == 21:
            body = struct.pack("<I", more[2]) + body
    elif kind == 4:
        _, namespace, count, group, filter_, flags = record
        body, a = struct.pack("<II", namespace, count) + group + filter_, len(group)
    elif kind == 8:
        _, name, a, use = record
        body = struct.pack("<QQ", name, use)
    elif kind == 9:
        _, queue, qos, format_, position, left_ms, topic, properties, payload = record[:9]
        flags, a = qos | format_ << 5, len(topic)
        body = struct.pack("<QQII", queue, position, len(properties), len(payload))
        if left_ms >= 0:
            flags |= EXPIRES
            body += struct.pack("<q", left_ms)
        if len(record) > 9:
            flags |= ORIGIN
            body += struct.pack("<QQH", *record[9])
        body += topic + properties + payload
    elif kind == 10:
        _, member, flags, a, *numbers, reason = record
        body = struct.pack(FIXED[kind][0], member, *numbers) + reason
    elif kind in (12, 14):
        _, number, queue, a, data = record
        body = struct.pack("<IQ", number, queue) + data
    elif kind in (13, 15):
        _, number, flags = record
        body = struct.pack(FIXED[kind][0], number)
    elif kind == 16:
        _, member, a, log, left_ms, message = record[:6]
        body = struct.pack("<II", member, log) + message[:24] + struct.pack("<q", left_ms) + message[32:]
    elif kind == 20:
        _, position, a, text_, flags = record
        body = struct.pack("<Q", position) + text_
    elif kind in FIXED:
        layout, more = FIXED[kind]
        numbers, data = (record[1:-1], record[-1]) if more else (record[1:], b"")
        body = struct.pack(layout, *numbers) + data
    else:
        body = record[1] if len(record) > 1 else b""
    return _HEAD.pack(kind, flags, a, len(body)) + body


def build(header: dict[str, int], records: list[Record], raw: bytes = b"") -> bytes:
    """A frame, right or wrong. header: fields that are missing are 0. raw: bytes behind the records."""
    return _HEADER.pack(*(header.get(name, 0) for name in HEADER)) + b"".join(map(build_record, records)) + raw


def record_ends(data: bytes) -> list[int]:
    """Where each record of a valid frame ends, and first the header."""
    ends = [_HEADER.size]
    while ends[-1] < len(data):
        ends.append(ends[-1] + _HEAD.size + _HEAD.unpack_from(data, ends[-1])[3])
    return ends


def need(condition: object) -> None:
    if not condition:
        raise Malformed


def text(data: bytes) -> None:
    try:
        need("\0" not in data.decode())
    except UnicodeDecodeError:
        raise Malformed from None


def topic_name(data: bytes) -> None:
    text(data)
    need(data and b"+" not in data and b"#" not in data)


def topic_filter(data: bytes) -> None:
    text(data)
    need(data)
    levels = data.split(b"/")
    for at, level in enumerate(levels):
        need(level == b"+" or b"+" not in level)
        need((level == b"#" and at == len(levels) - 1) or b"#" not in level)


def read(data: bytes) -> tuple[dict[str, int], list[Record]]:
    """Reads a whole frame. Raises Malformed."""
    need(len(data) >= _HEADER.size)
    header = dict(zip(HEADER, _HEADER.unpack_from(data), strict=True))
    need(header["version"] == 1 and header["flags"] <= 7)
    need(header["sequence"] or not header["records"] or header["flags"] & 1)
    rest, found = data[_HEADER.size:], []
    while rest:
        need(len(rest) >= _HEAD.size)
        kind, flags, a, length = _HEAD.unpack_from(rest)
        body, rest = rest[_HEAD.size:_HEAD.size + length], rest[_HEAD.size + length:]
        need(len(body) == length)
        found.append(_read_record(kind, flags, a, body))
    return header, found


def _read_record(kind: int, flags: int, a: int, body: bytes) -> Record:
    need(1 <= kind <= 21)
    if kind == 9:
        return kind, *_read_publish(flags, a, body)
    if kind == 16:
        need(flags == 0)
        return kind, *_read_delivery(a, body)
    if kind == 21:
        need(len(body) >= 4)
        size = int.from_bytes(body[:4], "little")
        message = _read_message(flags, a, body[4:], RETAIN | VERSION | ABSENT | STATE)
        need(len(message) == 8 and len(message[5]) == (0 if flags & ABSENT else size))
        return kind, *message, size
    if kind > 8:
        return kind, *_read_of_queue(kind, flags, a, body)
    if kind == 2:
        return kind, *_read_message(flags, a, body, RETAIN | VERSION)
    if kind == 3:
        need(len(body) >= 4)
        group_length, filter_length = struct.unpack_from("<HH", body)
        need(group_length and len(body) >= 4 + group_length + filter_length)
        group, rest = body[4:4 + group_length], body[4 + group_length:]
        text(group)
        topic_filter(rest[:filter_length])
        message = _read_message(flags, a, rest[filter_length:])
        return kind, *message[:6], group, rest[:filter_length], *message[6:]
    if kind == 7:
        need(len(body) >= 8 and any(body[:8]))      # a life is no life without a number
        message = _read_message(flags, a, body[8:])
        return kind, *message[:6], int.from_bytes(body[:8], "little"), *message[6:]
    need(flags <= (kind == 4) and (a == 0 or kind in (4, 8)))
    if kind == 1:
        need(5 <= len(body) <= 4 + 255)
        text(body[4:])
        return kind, int.from_bytes(body[:4], "little"), body[4:]
    if kind == 4:
        need(len(body) >= 8 + a)
        namespace, count = struct.unpack_from("<II", body)
        text(body[8:8 + a])
        topic_filter(body[8 + a:])
        return kind, namespace, count, body[8:8 + a], body[8 + a:], flags
    if kind == 5:
        need(not body)
        return (kind,)
    if kind == 8:
        need(len(body) == 16 and any(body[:8]))
        return kind, int.from_bytes(body[:8], "little"), a, int.from_bytes(body[8:], "little")
    return kind, body


def _content(format_: int, topic: bytes, properties: bytes) -> None:
    """Of a message in a queue, where one in MQTT's format may have no topic."""
    need(format_ <= 1)
    if format_ == 0:
        if topic:
            topic_name(topic)
        return
    need(topic and 1 + topic[0] <= len(topic) <= 1 + topic[0] + 255)
    try:
        amqp091.parse_properties(properties)
    except amqp091.Malformed:
        raise Malformed from None


def _read_publish(flags: int, a: int, body: bytes) -> Record:
    need(flags & 3 != 3 and (flags >> 5 < 4 or flags & ORIGIN))
    fixed = struct.Struct("<QQII")
    need(len(body) >= fixed.size)
    queue, position, properties_length, payload_length = fixed.unpack_from(body)
    rest = body[fixed.size:]
    left_ms, origin = -1, ()
    if flags & EXPIRES:
        need(len(rest) >= 8)
        [left_ms] = struct.unpack_from("<q", rest)
        need(0 <= left_ms < LEFT_MAX)
        rest = rest[8:]
    if flags & ORIGIN:
        need(len(rest) >= 18)
        origin = (struct.unpack_from("<QQH", rest),)
        need(origin[0][0])
        rest = rest[18:]
    need(len(rest) == a + properties_length + payload_length)
    topic, properties, payload = rest[:a], rest[a:a + properties_length], rest[a + properties_length:]
    _content(flags >> 5 & 1, topic, properties)
    return queue, flags & 7, flags >> 5, position, left_ms, topic, properties, payload, *origin


def _read_delivery(a: int, body: bytes) -> Record:
    need(len(body) >= 8 + _LOG.size)
    member, log = struct.unpack_from("<II", body)
    message = body[8:]
    size, payload, offset, _, left_ms, _, properties, topic, qos, _ = _LOG.unpack_from(message)
    need(len(message) == size == (_LOG.size + topic + properties + payload + 7) // 8 * 8)
    need(0 <= left_ms < LEFT_MAX and qos & 15 <= 2)
    rest = message[_LOG.size:]
    _content(qos >> 4, rest[:topic], rest[topic:topic + properties])
    return (member, a, log, left_ms, message[:24] + bytes(8) + message[32:], offset, qos >> 4, rest[:topic],
            rest[topic:topic + properties])


def _read_of_queue(kind: int, flags: int, a: int, body: bytes) -> Record:
    layout, more = FIXED[kind]
    size = struct.calcsize(layout)
    need(len(body) >= size and (more or len(body) == size))
    numbers, data = struct.unpack_from(layout, body), body[size:]
    if kind == 10:
        member, log, first, count, ms = numbers
        need(flags & 15 <= 3 and flags <= 31)
        need(1 <= count <= COUNT_MAX and first + count < 1 << 64 and -1 <= ms < LEFT_MAX)
        text(data)
        return member, flags, a, log, first, count, ms, data
    need(flags <= (kind in (13, 15, 20)))
    if kind == 20:
        need(a)
        text(data)
        return *numbers, a, data, flags
    if kind in (12, 14):
        return *numbers, a, data
    need(a == 0)
    if kind in (13, 15):
        return *numbers, flags
    return (*numbers, data) if more else numbers


def _read_message(flags: int, a: int, body: bytes, more: int = RETAIN) -> Record:
    """more: flags that it may have besides those of all messages."""
    need(not flags & ~(3 | RETAIN | EXPIRES | ORIGIN | more) and flags & 3 != 3)
    head = _CONTENT.size + (8 if flags & EXPIRES else 0)
    origin: Record = ()
    if flags & ORIGIN:
        need(len(body) >= head + 18)
        origin = (struct.unpack_from("<QQH", body, head),)
        need(origin[0][0])
        head += 18
    if flags & VERSION:
        need(len(body) >= head + 16 and flags & RETAIN)
        origin = origin[0] if origin else None, struct.unpack_from("<QQ", body, head)
        need(0 < origin[1][0] < VERSION_MAX)
        head += 16
    need(len(body) >= head)
    namespace, properties, payload = _CONTENT.unpack_from(body)
    need(len(body) == head + a + properties + payload)
    left_ms = -1
    if flags & EXPIRES:
        [left_ms] = struct.unpack_from("<q", body, _CONTENT.size)
        need(0 <= left_ms < LEFT_MAX)
    body = body[head:]
    topic_name(body[:a])
    return (namespace, flags & (7 | ABSENT | STATE), left_ms, body[:a], body[a:a + properties], body[a + properties:],
            *origin)
