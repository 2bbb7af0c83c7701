"""Both ends of a recording's ring: what goes in comes out, in order and whole; what does not fit is counted."""
import mmap
import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.entries import IN, LOST, OUT, Entry, parse_entries

from fluxmq._core.errors import CorruptError, FluxError, UsageError
from fluxmq._core.memory.tap import Tap
from fluxmq._core.record.ring import RingReader
from fluxmq.record.ring import RING_PAGE, make_ring, open_ring, ring_capacity

CAPACITY = 4096


class Ring:
    """A small ring with both ends in this process."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.descriptor = make_ring(capacity)
        self.tap = Tap(self.descriptor, capacity)
        self.reader = open_ring(self.descriptor)

    def take(self, limit: int = 1 << 20) -> list[Entry]:
        return parse_entries(self.reader.take(limit))

    def drain(self) -> list[Entry]:
        found = []
        while some := self.take():
            found += some
        return found

    def close(self) -> None:
        self.reader.release()
        os.close(self.descriptor)


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring()
    yield made
    made.close()


def test_an_entry_comes_out_as_it_went_in(ring: Ring) -> None:
    ring.tap.write(OUT, 2, 1, 7, b"\x00\xffabc")
    [entry] = ring.take()
    assert (entry.kind, entry.protocol, entry.flags, entry.connection, entry.data) == (OUT, 2, 1, 7, b"\x00\xffabc")
    assert entry.time > 1_600_000_000_000_000_000
    assert ring.take() == []
    assert not ring.reader.ended
    ring.tap.end()
    assert ring.reader.ended


def test_a_full_ring_loses_what_comes_and_says_so_as_soon_as_there_is_room(ring: Ring) -> None:
    sizes = [900] * 6        # 936 bytes each with head and padding: four fit
    for number, size in enumerate(sizes):
        ring.tap.write(IN, 1, 0, number, bytes(size))
    assert (ring.tap.lost_entries, ring.tap.lost_bytes) == (2, 1800)
    assert [entry.connection for entry in ring.drain()] == [0, 1, 2, 3]
    ring.tap.write(IN, 1, 0, 9, b"after")
    lost, entry = ring.drain()
    assert (lost.kind, lost.connection, lost.lost) == (LOST, 0, (2, 1800))
    assert entry.data == b"after"
    assert (ring.tap.entries, ring.tap.bytes) == (5, 3605)


def test_an_entry_may_reach_the_end_of_the_ring_to_the_byte(ring: Ring) -> None:
    """Then no filler stands between it and the next lap, and what is taken must not reach beyond it."""
    size = CAPACITY // 8 - 32
    for n in range(6):
        ring.tap.write(IN, 1, 0, n, content(n, size))
    found = ring.take()
    ring.reader.release()
    for n in range(6, 10):
        ring.tap.write(IN, 1, 0, n, content(n, size))
    found += ring.drain()
    assert [(entry.connection, entry.data) for entry in found] == [(n, content(n, size)) for n in range(10)]


@pytest.mark.parametrize("rest", range(8, 80, 8))
def test_an_entry_that_does_not_fit_before_the_end_begins_the_next_lap(rest: int) -> None:
    """rest: bytes that are left there. One of these entries fits to the byte, the others are up to 24 bytes longer."""
    for size in range(max(rest, 32), rest + 32, 8):
        ring = Ring()
        before = [1000, 1000, 1000, 500, CAPACITY - 3500 - rest]        # with heads
        found = []
        for number, length in enumerate(before):
            ring.tap.write(IN, 1, 0, number, content(number, length - 32))
            found += ring.drain()
        ring.reader.release()
        sizes = [*before, size, 40]
        for number in (5, 6):
            ring.tap.write(OUT, 1, 0, number, content(number, sizes[number] - 32))
        found += ring.drain()
        assert [(entry.connection, entry.data) for entry in found] == [
            (number, content(number, length - 32)) for number, length in enumerate(sizes)]
        ring.close()


def test_an_entry_larger_than_a_quarter_is_lost(ring: Ring) -> None:
    ring.tap.write(IN, 1, 0, 1, bytes(CAPACITY // 4 - 31))
    ring.tap.write(IN, 1, 0, 1, bytes(CAPACITY // 4 - 32))
    lost, entry = ring.drain()
    assert lost.lost == (1, CAPACITY // 4 - 31)
    assert len(entry.data) == CAPACITY // 4 - 32


def test_what_was_lost_at_the_very_end_is_told_once(ring: Ring) -> None:
    for _ in range(5):
        ring.tap.write(IN, 1, 0, 1, bytes(990))
    ring.tap.end()
    assert not ring.reader.ended
    found = ring.drain()
    assert [entry.kind for entry in found] == [IN] * 4 + [LOST]
    assert found[-1].lost == (1, 990)
    assert ring.reader.ended
    assert ring.take() == []


def test_take_gives_at_most_what_was_asked_for_but_one_entry_at_least(ring: Ring) -> None:
    for number in range(4):
        ring.tap.write(IN, 1, 0, number, bytes(100))    # 136 bytes each
    assert [entry.connection for entry in ring.take(280)] == [0, 1]
    assert [entry.connection for entry in ring.take(10)] == [2]
    assert ring.reader.waiting == 136
    assert ring.tap.waiting == 272                      # what was taken last is not given back yet
    ring.reader.release()
    assert ring.tap.waiting == 136


def test_what_is_discarded_is_counted_and_told_by_the_next_tap(ring: Ring) -> None:
    for number in range(20):
        ring.tap.write(IN, 1, 0, number, bytes(300))
        if number == 9:
            ring.take()
    found = ring.reader.discard()
    held, lost = ring.tap.entries - 10, ring.tap.lost_entries
    assert held and lost
    assert found == (held, held * 300, lost, lost * 300)
    assert ring.tap.waiting == 0
    other = Ring()
    other.tap.lose(*found)
    other.tap.write(IN, 1, 0, 1, b"")
    told, after = other.drain()
    assert (told.kind, told.lost, after.kind) == (LOST, (10, 3000), IN)
    assert (other.tap.lost_entries, other.tap.lost_bytes) == (held, held * 300)     # the other tap counted the others
    other.close()


def test_the_reader_says_that_it_takes_no_more(ring: Ring) -> None:
    assert not ring.tap.left
    ring.reader.stop()
    assert ring.tap.left


def test_nobody_can_take_pages_from_under_the_other_end(ring: Ring) -> None:
    for size in (0, RING_PAGE, RING_PAGE + 2 * CAPACITY):
        with pytest.raises(PermissionError):
            os.ftruncate(ring.descriptor, size)


def test_a_ring_is_for_its_owner_alone(ring: Ring) -> None:
    assert os.fstat(ring.descriptor).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(ring.descriptor)
    other = open_ring(f"/proc/{os.getpid()}/fd/{ring.descriptor}")
    ring.tap.write(IN, 1, 0, 5, b"x")
    assert parse_entries(other.take())[0].connection == 5


def test_a_new_tap_begins_a_ring_anew(ring: Ring) -> None:
    ring.tap.write(IN, 1, 0, 1, b"before")
    tap = Tap(ring.descriptor, CAPACITY)
    reader = open_ring(ring.descriptor)
    tap.write(IN, 1, 0, 2, b"after")
    assert [entry.data for entry in parse_entries(reader.take())] == [b"after"]


def test_what_is_no_ring_is_refused() -> None:
    with pytest.raises(CorruptError, match="no ring"):
        RingReader(bytearray(RING_PAGE + CAPACITY))
    with pytest.raises(UsageError, match="power of two"):
        Tap(0, 5000)
    with pytest.raises(FluxError, match="cannot be opened"):
        open_ring("/proc/self/fd/99999")


@pytest.mark.parametrize(("at", "value", "why"), [
    (0, 12, "an entry of 12 bytes"), (0, 8192, "an entry of 8192 bytes"), (24, 4000, "for 4000 of data")])
def test_damage_is_found(ring: Ring, at: int, value: int, why: str) -> None:
    ring.tap.write(IN, 1, 0, 1, b"x" * 40)
    with mmap.mmap(ring.descriptor, 0) as raw:
        raw[RING_PAGE + at:RING_PAGE + at + 4] = struct.pack("<I", value)
        with pytest.raises(CorruptError, match=why):
            ring.reader.take()


def test_capacity_is_a_power_of_two() -> None:
    assert [ring_capacity(size) for size in (4096, 5000, 8191, 64 << 20)] == [4096, 4096, 4096, 64 << 20]


def content(number: int, size: int) -> bytes:
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


@given(st.lists(st.one_of(
    st.integers(0, 1100),                                           # an entry of so many bytes
    st.tuples(st.just("take"), st.integers(1, 6000)))))
def test_whatever_is_written_and_taken(steps: list[int | tuple[str, int]]) -> None:
    """The entries that come out are those that went in, but for runs of lost ones, each told in its place."""
    ring = Ring()
    try:
        written: list[int] = []
        found: list[Entry] = []
        for step in steps:
            if isinstance(step, tuple):
                found += ring.take(step[1])
            else:
                ring.tap.write(IN, 1, 0, len(written), content(len(written), step))
                written.append(step)
        ring.tap.end()
        found += ring.drain()
        assert ring.reader.ended
        expected = 0
        for entry in found:
            if entry.kind == LOST:
                count, size = entry.lost
                assert size == sum(written[expected:expected + count])
                expected += count
            else:
                assert entry.connection == expected
                assert entry.data == content(expected, written[expected])
                expected += 1
        assert expected == len(written)
        assert sum(entry.kind != LOST for entry in found) == ring.tap.entries
        assert sum(entry.lost[0] for entry in found if entry.kind == LOST) == ring.tap.lost_entries
    finally:
        ring.close()


def test_who_stops_while_the_broker_goes_on_learns_what_was_lost_by_then(ring: Ring) -> None:
    for number in range(6):
        ring.tap.write(IN, 1, 0, number, bytes(900))
    assert [entry.connection for entry in ring.drain()] == [0, 1, 2, 3]
    [lost] = parse_entries(ring.reader.take_lost())
    assert (lost.kind, lost.connection, lost.lost) == (LOST, 0, (2, 1800))
    assert ring.reader.take_lost() == b""


def test_a_loss_that_an_entry_tells_of_is_not_told_twice(ring: Ring) -> None:
    for number in range(6):
        ring.tap.write(IN, 1, 0, number, bytes(900))
    ring.drain()
    ring.tap.write(IN, 1, 0, 9, b"after")
    assert ring.reader.take_lost() == b""
    assert [entry.kind for entry in ring.drain()] == [LOST, IN]


def test_what_a_dead_reader_left_counts_with_what_was_lost_before_and_after(ring: Ring) -> None:
    """The first gap is told of in the ring, the second one nowhere."""
    for number in range(6):
        ring.tap.write(IN, 1, 0, number, bytes(900))
    ring.drain()
    for number in range(6):
        ring.tap.write(IN, 1, 0, number, bytes(900))
    ring.tap.end()
    taken = ring.tap.entries - 4
    assert ring.tap.lost_entries > 2
    assert ring.reader.discard() == (taken, ring.tap.bytes - 3600, ring.tap.lost_entries, ring.tap.lost_bytes)
    assert ring.reader.ended
