"""Frames of the stream between replicas, read naively, as _core/raft/wire.pyx and messages.pyx say what they are."""
from __future__ import annotations

import struct

from oracle.stored import crc32c

__all__ = ["Malformed", "Read", "frame", "read", "record"]

HEAD = struct.Struct(">BBIIQQQQQQII")       # of a message; the last one is its CRC
ENTRY = struct.Struct(">QBII")
ROW = struct.Struct(">BQIIQQ")
MESSAGE, HEARTBEATS, REPLICAS = 1, 2, 3
# kind, refused, forced, to, sender, term, index, log term, commit, hint, hint term, entries of (term, kind, data)
Read = tuple[object, ...]


class Malformed(Exception):
    """It is no frame."""


def need(holds: bool) -> None:
    if not holds:
        raise Malformed


def record(kind: int, body: bytes, summed: int | None = None) -> bytes:
    """summed: how much of the body the CRC is of; None: all."""
    head = struct.pack(">BI", kind, len(body))
    return head + struct.pack(">I", crc32c(head + body[:summed])) + body


def frame(*records: bytes) -> bytes:
    return struct.pack(">BI", 1, len(records)) + b"".join(records)


def read(data: bytes, *, sums: bool = True) -> tuple[list[tuple[int, Read]], bytes | None]:
    """(group, fields) of each message, and what it says of replicas. Raises Malformed. sums: CRCs are looked at, which
    takes a second for some megabytes."""
    need(len(data) >= 5 and data[0] == 1)
    count, at = int.from_bytes(data[1:5], "big"), 5
    messages: list[tuple[int, Read]] = []
    replicas = None
    for _ in range(count):
        need(len(data) - at >= 9)
        kind, size, crc = struct.unpack_from(">BII", data, at)
        body = data[at + 9:at + 9 + size]
        need(len(body) == size)
        need(not sums or crc == crc32c(data[at:at + 5] + (body[:8 + HEAD.size] if kind == MESSAGE else body)))
        if kind == MESSAGE:
            need(size >= 8 + HEAD.size)
            messages.append((int.from_bytes(body[:8], "big"), message(body[8:], sums)))
        elif kind == HEARTBEATS:
            need(size > 0 and size % ROW.size == 0)
            for what, group, to, sender, term, commit in ROW.iter_unpack(body):
                need(what in (3, 4))
                messages.append((group, (what, False, False, to, sender, term, 0, 0, commit, 0, 0, [])))
        else:
            need(kind == REPLICAS and replicas is None)
            replicas = body
        at += 9 + size
    need(at == len(data))
    return messages, replicas


def message(data: bytes, sums: bool) -> Read:
    kind, flags, *numbers, count, crc = HEAD.unpack_from(data)
    need(1 <= kind <= 10 and flags <= 3 and (count == 0 or kind == 1))
    need(not sums or crc == crc32c(data[:HEAD.size - 4]))
    at, entries = HEAD.size, []
    for _ in range(count):
        need(len(data) - at >= ENTRY.size)
        term, what, size, crc = ENTRY.unpack_from(data, at)
        content = data[at + ENTRY.size:at + ENTRY.size + size]
        need(len(content) == size and (not sums or crc == crc32c(data[at:at + 13] + content)))
        entries.append((term, what, content))
        at += ENTRY.size + size
    need(at == len(data))
    return (kind, bool(flags & 1), bool(flags & 2), *numbers, entries)
