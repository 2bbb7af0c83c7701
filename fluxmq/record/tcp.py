"""One direction of a TCP connection put together from its segments, as a capture has them: repeated, out of order,
overlapping, and sometimes not at all. Our own: dpkt and libpcap read segments and put nothing together.
"""
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Piece", "Stream"]

# Bytes behind a gap from which on the gap counts as permanent.
_WAITING_BYTES = 1 << 18
_WAITING_SEGMENTS = 256


class Piece(NamedTuple):
    """Bytes that come next, of one segment; or, data empty, how many are not in the capture."""

    data: bytes
    gap: int = 0


class Stream:
    """Machine. `segment` with each of them, then `rest`."""

    def __init__(self) -> None:
        self.next: int | None = None        # sequence number of the byte that comes next, modulo 2^32
        self._waiting: dict[int, bytes] = {}        # by distance from the first byte of all
        self._at = 0                        # distance of `next`

    def begin(self, seq: int) -> None:
        """The byte that comes first has this number. A connection that begins anew forgets what it was."""
        self.next = seq & 0xFFFFFFFF
        self._waiting.clear()

    def segment(self, seq: int, data: bytes, missing: int = 0) -> Iterator[Piece]:
        """The data that is in order now. missing: bytes at the segment's end that the capture does not have."""
        if not data:
            return
        if self.next is None:
            self.begin(seq)
        assert self.next is not None
        ahead = (seq - self.next + (1 << 31)) % (1 << 32) - (1 << 31)
        start = self._at + ahead
        if start + len(data) > self._at:
            if start < self._at:            # the front is known already
                data, start = data[self._at - start:], self._at
            held = self._waiting.get(start)
            if held is None or len(held) < len(data):
                self._waiting[start] = data
        yield from self._ready()
        if missing and self._at == start + len(data):
            yield Piece(b"", missing)
            self._forward(missing)
            yield from self._ready()
        while sum(map(len, self._waiting.values())) > _WAITING_BYTES or len(self._waiting) > _WAITING_SEGMENTS:
            yield from self._past_hole()

    def _ready(self) -> Iterator[Piece]:
        while self._waiting:
            start = min(self._waiting)
            if start > self._at:
                return
            data = self._waiting.pop(start)[self._at - start:]
            if data:
                yield Piece(data)
                self._forward(len(data))

    def _forward(self, count: int) -> None:
        assert self.next is not None
        self._at += count
        self.next = (self.next + count) & 0xFFFFFFFF

    def _past_hole(self) -> Iterator[Piece]:
        hole = min(self._waiting) - self._at
        yield Piece(b"", hole)
        self._forward(hole)
        yield from self._ready()

    def rest(self) -> Iterator[Piece]:
        """The data behind gaps, and the gaps, which nothing can fill any more."""
        while self._waiting:
            yield from self._past_hole()
