"""A log does what a dictionary of messages would, whatever is in memory, in segments or gone."""
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracle.stored import batches_of_journals

from fluxmq._core.disk.journal import Journal
from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.export import Export
from fluxmq._core.queue.log import Log

HEAD = 48
APPEND = 20
PROPERTIES_SIZE = 7     # of the user property that every message here has


def messages(block: bytes) -> list[tuple[int, bytes]]:
    """(offset, bytes) of each message of a block, as a segment holds them."""
    found, at = [], 0
    while at < len(block):
        size = int.from_bytes(block[at:at + 4], "little")
        found.append((int.from_bytes(block[at + 8:at + 16], "little"), block[at:at + size]))
        at += size
    return found


class LogMachine(RuleBasedStateMachine):
    """kept: what somebody may still ask for. disk: what a segment would hold."""

    @initialize(lane=st.sampled_from([0, 0, 7]))
    def make(self, lane: int) -> None:
        self.hub = Hub(None)
        self.hub.set_clock(1000, 1000)
        self.log = Log(self.hub.ledger, 1, lane=lane)
        self.base = lane << 56
        self.kept: dict[int, tuple[bytes, bytes, int]] = {}
        self.disk: dict[int, bytes] = {}
        self.exporting: list[tuple[int, bytes]] | None = None

    @rule(count=st.integers(1, 60), size=st.sampled_from([0, 1, 100, 5000, 70_000]))
    def append(self, count: int, size: int) -> None:
        for _ in range(count if size < 5000 else 3):
            topic = b"t/%d" % len(self.kept)
            payload = bytes([len(self.kept) & 0xFF]) * size
            offset = self.log.append_message(topic, payload, properties=b"\x26\x00\x01a\x00\x01b", priority=3)
            assert offset == self.log.next - 1
            self.kept[offset] = (topic, payload, 3)

    @rule()
    def export(self) -> None:
        self.export_ = Export(self.log, 10)
        blocks = list(self.export_)
        assert list(self.export_) == blocks and self.export_.messages == sum(block[2] for block in blocks)
        found = [item for block in blocks for item in messages(block[7])]
        for first, last, count, *_, raw in blocks:
            inside = messages(raw)
            assert (inside[0][0], inside[-1][0], len(inside)) == (first, last, count)
            assert len(raw) <= 65536 or count == 1
        assert [offset for offset, _ in found] == sorted(
            offset for offset in self.kept if self.log.flushed <= offset < self.log.exporting)
        self.exporting = found

    @precondition(lambda self: self.exporting is not None)
    @rule()
    def exported(self) -> None:
        assert self.exporting is not None
        # Whatever became of the log since, what is written is what there was in that instant.
        assert [item for block in self.export_ for item in messages(block[7])] == self.exporting
        self.disk |= dict(self.exporting)
        self.exporting = None
        self.log.exported()

    @rule()
    def evict(self) -> None:
        before = self.log.memory
        assert self.log.evict(1 << 30) == before - self.log.memory
        assert self.log.cached == 0

    @rule(share=st.floats(0, 1.1))
    def trim(self, share: float) -> None:
        first = self.base + int((self.log.next - self.base) * share)
        first = max(min(first, self.log.next), self.log.first)
        self.log.trim(first)
        assert self.log.first == first
        self.kept = {offset: message for offset, message in self.kept.items() if offset >= first}

    @rule(where=st.floats(0, 1), length=st.integers(1, 40))
    def read(self, where: float, length: int) -> None:
        """From anywhere on, as a reader does: what is not in memory is asked for, and loaded."""
        offset = self.base + int((self.log.next - self.base) * where)
        wanted = sorted(o for o in self.kept if o >= offset)[:length]
        for expected in wanted:
            record = self.log.at_or_above(offset)
            if record is None:
                self.load(length)
                record = self.log.at_or_above(offset)
            assert record is not None and record.offset == expected
            assert (record.topic, record.payload, record.priority) == self.kept[expected]
            assert record.time_ms == 1000
            offset = expected + 1

    def load(self, length: int) -> None:
        first = self.log.wanted
        assert self.log.first <= first < self.log.flushed
        covers = first + length
        self.log.load(first, covers, [raw for o, raw in sorted(self.disk.items()) if first <= o < covers + 3])

    def size(self, offset: int) -> int:
        topic, payload, _ = self.kept[offset]
        return HEAD + len(topic) + PROPERTIES_SIZE + len(payload) + 7 & ~7

    @rule(stretch=st.integers(1, 60))
    def measure(self, stretch: int) -> None:
        """What somebody who asks the segments finds out, in stretches of so many offsets."""
        spans = []
        first, end = self.log.first, self.log.flushed
        for start in range(first, end, stretch):
            behind = min(start + stretch, end)
            spans.append((behind, sum(self.size(o) for o in range(start, behind) if o in self.disk)))
        assert not self.log.restore_sizes(first + 1, end, [])
        assert self.log.restore_sizes(first, end, spans)
        assert not self.log.uncertain

    @rule(share=st.floats(0, 1.1))
    def keep_within(self, share: float) -> None:
        most = int(self.log.kept_bytes * share)
        at = self.log.first_within(most)
        kept = sum(self.size(o) for o in self.kept if o >= at)
        assert self.log.first <= at <= self.log.next
        if self.log.uncertain or (kept > most and at < self.log.flushed):
            return      # the disk must be asked
        assert kept <= most
        if self.log.flushed <= self.log.first < at:      # all in memory: not one message too many
            assert kept + self.size(at - 1) > most

    @invariant()
    def sizes(self) -> None:
        if not self.log.uncertain:
            assert self.log.kept_bytes == sum(map(self.size, self.kept))

    @invariant()
    def bounds(self) -> None:
        assert self.log.first <= self.log.flushed <= self.log.next or self.log.flushed == self.log.first
        for offset in (self.log.first - 1, self.log.next):
            assert offset < 0 or self.log.get(offset) is None


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLog = LogMachine.TestCase


def test_the_journal_brings_it_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path, identity=1)
    hub = Hub(journal)
    hub.set_clock(5, 5)
    log = Log(hub.ledger, 9)
    for number in range(500):
        log.append_message(b"t", b"%d" % number, properties=b"\x03\x00\x01x", expires_at=7)
        if number % 50 == 0:
            journal.submit()
    journal.close()
    found = [body for batch in batches_of_journals(tmp_path) for kind, body in batch.records if kind == APPEND]
    assert len(found) == 500 and all(body[:8] == (9).to_bytes(8, "big") for body in found)
    again = Log(Hub(None).ledger, 9)
    for body in found + found[100:200]:  # what is known already is skipped
        again.replay(body[8:])
    assert again.next == 500
    for number in range(500):
        mine, theirs = log.get(number), again.get(number)
        assert mine is not None and theirs is not None
        assert (mine.payload, mine.properties, mine.time_ms, mine.expires_at) == (
            theirs.payload, theirs.properties, theirs.time_ms, theirs.expires_at) == (
            b"%d" % number, b"\x03\x00\x01x", 5, 7)


def test_damaged_bytes_are_refused() -> None:
    log = Log(Hub(None).ledger, 1)
    log.append_message(b"topic", b"payload")
    block = next(iter(Export(log, 0)))[7]
    for at in range(len(block)):
        for value in (0, 0xFF, block[at] ^ 1):
            damaged = block[:at] + bytes([value]) + block[at + 1:]
            for cut in (damaged, damaged[:-8], damaged[:20], damaged + b"\0" * 8):
                fresh = Log(Hub(None).ledger, 1, first=0, next=1)
                try:
                    fresh.load(0, 1, [cut])
                    fresh.get(0)
                    Log(Hub(None).ledger, 1).replay(cut)
                except CorruptError:
                    continue


def test_an_idle_log_owns_nothing() -> None:
    hub = Hub(None)
    log = Log(hub.ledger, 1)
    assert log.memory == 0
    log.append_message(b"t", b"x")
    assert 0 < log.memory <= 4096
    log.trim(1)
    assert (log.memory, log.unflushed_bytes, log.kept_bytes) == (0, 0, 0)


@pytest.mark.parametrize("holes", [False, True])
def test_a_part_that_is_kept_nowhere_is_not_asked_for_twice(holes: bool) -> None:
    log = Log(Hub(None).ledger, 1)
    for number in range(20):
        log.append_message(b"t", b"%d" % number)
    raw = b"".join(block[7] for block in Export(log, 0))
    log.exported()
    log.evict(1 << 30)
    assert log.at_or_above(3) is None and log.wanted == 3
    kept = [bytes_ for offset, bytes_ in messages(raw) if not holes or offset >= 10]
    log.load(0, 20, [b"".join(kept)])
    record = log.at_or_above(3)
    assert record is not None and record.offset == (10 if holes else 3)


def test_what_is_replayed_is_exported_by_a_checkpoint_before_the_first_batch(tmp_path: Path) -> None:
    """The files that hold it go with that checkpoint, so segments must have it."""
    source = Log(Hub(None).ledger, 9)
    source.append_message(b"t", b"old")
    raw = next(iter(Export(source, 0)))[7]
    journal = Journal(tmp_path, identity=1, first_batch=10)
    log = Log(Hub(journal).ledger, 9)
    log.replay(raw)
    upto = journal.rotate()
    assert upto == 9
    assert [payload for block in Export(log, upto) for _, payload in messages(block[7])] == [raw]
    log.exported()
    assert log.flushed == 1
    journal.close()


def test_a_gap_behind_what_is_here_is_filled() -> None:
    """Chunks in memory end elsewhere than batches of segments: a batch that begins before the gap fills it too."""
    log = Log(Hub(None).ledger, 1)
    log.append_message(b"t", b"0" * 100)
    small = b"".join(block[7] for block in Export(log, 0))
    log.exported()
    for _ in range(2):
        log.append_message(b"t", b"1" * 200_000)
    raw = small + b"".join(block[7] for block in Export(log, 0))
    log.exported()
    log.evict(1 << 30)
    log.load(0, 2, [small, raw[len(small):]])
    assert log.at_or_above(1) is not None
    assert log.at_or_above(2) is None and log.wanted == 2
    log.load(0, 3, [raw])
    record = log.at_or_above(2)
    assert record is not None and record.offset == 2
