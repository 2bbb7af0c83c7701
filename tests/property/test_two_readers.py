"""A link with a recording and a view, which come and go: each has what was written while it was there, once and in
order, and what its own ring had no room for is counted, whatever the other does. The rest is shown with brokers
(tests/record/test_view_tap.py); this needs none, and runs with sanitizers."""
from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.entries import LOST, OUT, parse_entries

from fluxmq._core.memory.tap import Tap
from fluxmq._core.testing.tap_probe import TappedLink
from fluxmq.record.ring import make_ring, open_ring

SMALL, LARGE = 4096, 1 << 18
RECORDING, VIEW = 0, 1


class Reader:
    """One ring, and what must be in it. written: where the output was when it began."""

    def __init__(self, link: TappedLink, number: int, capacity: int, written: int) -> None:
        self.number = number
        self.descriptor = make_ring(capacity)
        self.tap = Tap(self.descriptor, capacity)
        self.ring = open_ring(self.descriptor)
        self.begun = self.upto = written
        self.pieces: list[bytes | int] = []     # bytes that came, or how many were lost
        link.begin(number, self.tap)

    def take(self) -> None:
        while some := parse_entries(self.ring.take()):
            for entry in some:
                assert entry.kind in (OUT, LOST)
                self.pieces.append(entry.data if entry.kind == OUT else entry.lost[1])

    def check(self, output: bytes) -> None:
        """It has ended: every byte is there or counted."""
        written = self.tap.entries
        self.tap.end()
        self.take()
        at = self.begun
        for piece in self.pieces:
            if isinstance(piece, bytes):
                assert output[at:at + len(piece)] == piece
                at += len(piece)
            else:
                at += piece
        assert at == self.upto
        assert self.tap.lost_bytes == sum(piece for piece in self.pieces if isinstance(piece, int))
        assert sum(isinstance(piece, bytes) for piece in self.pieces) == written
        self.ring.release()
        os.close(self.descriptor)


def framed(data: bytes) -> list[tuple[bool, int]]:
    """A packet in its frame: lengths, and whether they are the packet's. RFC 6455 section 5.2."""
    return [(False, 2 if len(data) < 126 else 4 if len(data) < 65536 else 10), (True, len(data))]


def of_packets(parts: list[tuple[bool, int]], sent: int) -> int:
    """How many of the first bytes are of packets."""
    found = 0
    for of_packet, length in parts:
        found += min(length, sent) if of_packet else 0
        sent -= min(length, sent)
    return found


STEPS = st.one_of(
    st.tuples(st.just("write"), st.one_of(st.integers(1, 3000), st.just(70_000))),
    st.tuples(st.just("flush"), st.integers(0, 5000)),
    st.tuples(st.just("switch"), st.sampled_from([RECORDING, VIEW])),
    st.tuples(st.just("take"), st.sampled_from([RECORDING, VIEW])), st.tuples(st.just("ping"), st.just(0)))


@pytest.mark.parametrize("websocket", [False, True])
@given(st.lists(STEPS, max_size=60), st.tuples(*[st.sampled_from([SMALL, LARGE])] * 2))
@settings(max_examples=60, deadline=None)
def test_each_has_its_own(websocket: bool, steps: list[tuple[str, int]], capacities: tuple[int, int]) -> None:
    link = TappedLink(websocket)
    output = b""
    parts: list[tuple[bool, int]] = []      # what the socket gets
    sent = 0
    readers: dict[int, Reader] = {}

    def recorded() -> None:
        for reader in readers.values():
            reader.upto = len(output)

    for verb, value in [("switch", RECORDING), *steps, ("flush", 1 << 20)]:
        if verb == "write":
            packet = (len(output).to_bytes(4, "big") * (value // 4 + 1))[:value]
            link.write(packet)
            output += packet
            parts += framed(packet) if websocket else [(True, value)]
        elif verb == "flush":
            recorded()
            sent += link.flush(value)
        elif verb == "ping" and websocket:
            recorded()
            link.ping()
            parts.append((False, 6))
        elif verb == "take" and value in readers:
            readers[value].take()
        elif verb == "switch" and value in readers:
            link.end(value)
            gone = readers.pop(value)
            entries = gone.tap.entries + gone.tap.lost_entries
            link.write(b"later")
            output += b"later"
            parts += framed(b"later") if websocket else [(True, 5)]
            recorded()
            sent += link.flush(0)
            assert gone.tap.entries + gone.tap.lost_entries == entries
            gone.check(output)
        elif verb == "switch":
            readers[value] = Reader(link, value, capacities[value], len(output))
        for number, reader in readers.items():
            assert link.unsent(number) == max(reader.upto - of_packets(parts, sent), 0)
    for number, reader in readers.items():
        link.end(number)
        reader.check(output)
