"""Entries of a recording's ring, parsed by hand: what the broker's tap wrote, for tests to compare with what they know.

Layout: docs/internals/recording.md, "Ring". This parser is strict: what is not as written there fails the test.
"""
import json
import struct
from dataclasses import dataclass
from typing import Any

__all__ = ["ACCEPTED", "CLOSED", "IN", "LOST", "OPENED", "OUT", "Entry", "parse_entries"]

OPENED, ACCEPTED, IN, OUT, CLOSED, LOST = range(1, 7)
_HEAD = struct.Struct("<IBBHQqII")


@dataclass(frozen=True)
class Entry:
    kind: int
    protocol: int
    flags: int
    connection: int
    time: int
    data: bytes
    raw: bytes = b""  # all of it, as in the ring

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.data)

    @property
    def lost(self) -> tuple[int, int]:
        """Entries and bytes of a LOST entry."""
        entries, size = struct.unpack("<QQ", self.data)
        return entries, size


def parse_entries(data: bytes | memoryview) -> list[Entry]:
    """All of them; `data` is as RingReader.take gives it."""
    found = []
    at = 0
    while at < len(data):
        size, kind, protocol, flags, connection, time, length, zero = _HEAD.unpack_from(data, at)
        assert kind in (OPENED, ACCEPTED, IN, OUT, CLOSED, LOST), kind
        assert size % 8 == 0 and size == (32 + length + 7) // 8 * 8, (size, length)
        assert zero == 0 and at + size <= len(data)
        found.append(Entry(kind, protocol, flags, connection, time, bytes(data[at + 32:at + 32 + length]),
                           bytes(data[at:at + size])))
        at += size
    return found
