"""Frames of a stream between two nodes, naively: as docs/internals/cluster.md draws them, field by field.

A frame is (header, records); a record is a tuple that begins with its kind:

    (1, number, name)  (2, namespace, flags, left_ms, topic, properties, payload)  (3, …as 2, group, filter)
    (4, namespace, count, group, filter, flags)  (5,)  (6, data)  (7, …as 2, life)  (8, name, packet id, use)

One of kind 2, 3 or 7 may end with its origin: (name, use, packet id).

flags: QoS and retain; left_ms -1: it does not expire. The properties of a message are not looked into.
"""
from __future__ import annotations

import struct
from typing import Any

__all__ = ["HEADER", "Malformed", "Record", "build", "build_record", "read", "record_ends"]

Record = tuple[Any, ...]
HEADER = ("version", "flags", "age_s", "records", "epoch", "to_epoch", "sequence", "acknowledged")
_HEADER = struct.Struct("<BBHIQQQQ")
_HEAD = struct.Struct("<BBHI")
_CONTENT = struct.Struct("<III")
EXPIRES, ORIGIN = 8, 16
LEFT_MAX = 1 << 52


class Malformed(Exception):
    """A receiver must refuse it."""


def build_record(record: Record) -> bytes:
    kind, flags, a = record[0], 0, 0
    if kind == 1:
        body = struct.pack("<I", record[1]) + record[2]
    elif kind in (2, 3, 7):
        _, namespace, flags, left_ms, topic, properties, payload = record[:7]
        body, a = _CONTENT.pack(namespace, len(properties), len(payload)), len(topic)
        if left_ms >= 0:
            flags |= EXPIRES
            body += struct.pack("<q", left_ms)
        if len(record) > 7 + {2: 0, 3: 2, 7: 1}[kind]:
            flags |= ORIGIN
            body += struct.pack("<QQH", *record[-1])
        body += topic + properties + payload
        if kind == 3:
            group, filter_ = record[7:9]
            body = struct.pack("<HH", len(group), len(filter_)) + group + filter_ + body
        if kind == 7:
            body = struct.pack("<Q", record[7]) + body
    elif kind == 4:
        _, namespace, count, group, filter_, flags = record
        body, a = struct.pack("<II", namespace, count) + group + filter_, len(group)
    elif kind == 8:
        _, name, a, use = record
        body = struct.pack("<QQ", name, use)
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
    need(header["version"] == 1 and header["flags"] <= 3)
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
    need(1 <= kind <= 8)
    if kind == 2:
        return kind, *_read_message(flags, a, body)
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
        need(len(body) >= 8)
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


def _read_message(flags: int, a: int, body: bytes) -> Record:
    need(flags <= 31 and flags & 3 != 3)
    head = _CONTENT.size + (8 if flags & EXPIRES else 0)
    origin: Record = ()
    if flags & ORIGIN:
        need(len(body) >= head + 18)
        origin = (struct.unpack_from("<QQH", body, head),)
        need(origin[0][0])
        head += 18
    need(len(body) >= head)
    namespace, properties, payload = _CONTENT.unpack_from(body)
    need(len(body) == head + a + properties + payload)
    left_ms = -1
    if flags & EXPIRES:
        [left_ms] = struct.unpack_from("<q", body, _CONTENT.size)
        need(0 <= left_ms < LEFT_MAX)
    body = body[head:]
    topic_name(body[:a])
    return namespace, flags & 7, left_ms, body[:a], body[a:a + properties], body[a + properties:], *origin
