"""Entries of a recording's ring, written by hand: docs/internals/recording.md, "Ring"."""
from __future__ import annotations

import json
import struct
from typing import Any

OPENED, ACCEPTED, IN, OUT, CLOSED, LOST = range(1, 7)
MQTT, AMQP091 = 1, 2
START = 1_700_000_000_000_000_000      # ns since 1970


def entry(kind: int, connection: int, data: bytes = b"", *, protocol: int = MQTT, time: int = START,
          flags: int = 0) -> bytes:
    """One entry with its padding."""
    size = 32 + (len(data) + 7 & ~7)
    head = struct.pack("<IBBHQqII", size, kind, protocol, flags, connection, time, len(data), 0)
    return (head + data).ljust(size, b"\0")


def filler(size: int) -> bytes:
    """What stands where an entry would not fit before the end of the ring."""
    return struct.pack("<IB", size, 0).ljust(size, b"\xAA")


def event(kind: int, connection: int, told: dict[str, Any], **words: Any) -> bytes:
    """OPENED, ACCEPTED or CLOSED."""
    return entry(kind, connection, json.dumps(told, separators=(",", ":")).encode(), **words)


def lost(entries: int, size: int, *, connection: int = 0, time: int = START) -> bytes:
    return entry(LOST, connection, struct.pack("<QQ", entries, size), protocol=0, time=time)
