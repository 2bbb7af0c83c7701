"""Any journal, cut or changed anywhere, gives back a prefix of what was written to it, or CorruptError."""
from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from kit.journals import commit, contents, wait_rotated, writing
from oracle.stored import journal_batch, journal_header, records_of_journal

from fluxmq._core.disk.journal_format import (
    FILE_HEADER_SIZE,
    batch_at,
    crc32c,
    file_name,
    iter_records,
    proof_of_sync,
)
from fluxmq._core.errors import CorruptError
from fluxmq.storage.journal_files import recover

RECORD = st.tuples(st.integers(0, 255), st.binary(max_size=60))
BATCHES = st.lists(st.lists(RECORD, min_size=1, max_size=4), min_size=1, max_size=8)
FILE_ID = st.integers(0, 2**64 - 1)

Batches = list[list[tuple[int, bytes]]]


def naive_crc32c(data: bytes, crc: int = 0) -> int:
    """The oracle: one bit at a time."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def file_of(batches: Batches, file_id: int, synced: bool = True) -> tuple[bytes, list[int]]:
    """The bytes of file 1, and the offset where each batch ends."""
    raw, ends = journal_header(1, 1, file_id), []
    for number, records in enumerate(batches, 1):
        raw += journal_batch(number, number - 1 if synced else 0, records, file_id)
        ends.append(len(raw))
    return raw, ends


def read(raw: bytes) -> tuple[Batches, int]:
    """What recover() and read_batches() make of one file, and how many bytes were cut off."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / file_name(1)).write_bytes(raw)
        found = recover(name)
        after = [records for _, records in contents(Path(name))]
        assert found.batches == len(after)
        assert recover(name).truncated_bytes == 0
        return after, found.truncated_bytes


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 2**32 - 1))
def test_crc32c_both_ways_and_the_oracle(data: bytes, split: int, start: int) -> None:
    expected = naive_crc32c(data, start)
    assert crc32c(data, start) == crc32c(data, start, True) == expected
    assert crc32c(data[split:], crc32c(data[:split], start)) == expected
    assert crc32c(data[split:], crc32c(data[:split], start, True), True) == expected


@given(st.lists(RECORD, max_size=30), FILE_ID)
def test_records_round_trip(records: list[tuple[int, bytes]], file_id: int) -> None:
    raw = journal_batch(5, 4, records, file_id)
    found = batch_at(raw, 0, file_id, 5)
    assert found is not None
    assert iter_records(raw[found[0]:found[1]]) == records
    assert batch_at(raw, 0, file_id, 6) is None
    assert batch_at(raw, 0, file_id ^ 1, 5) is None


@given(st.binary(max_size=200))
def test_garbage_is_records_or_corrupt(data: bytes) -> None:
    try:
        records = iter_records(data)
    except CorruptError:
        return
    assert b"".join(bytes([kind]) + len(body).to_bytes(4, "little") + body for kind, body in records) == data


@settings(deadline=None)
@given(BATCHES, FILE_ID, st.data())
def test_cut_anywhere_leaves_the_whole_batches_before(batches: Batches, file_id: int, data: st.DataObject) -> None:
    raw, ends = file_of(batches, file_id)
    cut = data.draw(st.integers(FILE_HEADER_SIZE, len(raw)))
    whole = sum(end <= cut for end in ends)
    start = ends[whole - 1] if whole else FILE_HEADER_SIZE
    assert read(raw[:cut]) == (batches[:whole], cut - start if any(raw[start:cut]) else 0)


@settings(deadline=None)
@given(BATCHES, FILE_ID, st.binary(max_size=200))
def test_garbage_behind_the_end_is_cut_off(batches: Batches, file_id: int, garbage: bytes) -> None:
    raw, _ = file_of(batches, file_id)
    assert read(raw + garbage)[0] == batches


@settings(deadline=None)
@given(BATCHES, BATCHES, FILE_ID, FILE_ID)
def test_stale_batches_of_another_file_are_never_live(batches: Batches, stale: Batches, file_id: int,
                                                      other: int) -> None:
    raw, _ = file_of(batches, file_id)
    if other == file_id:
        other ^= 1
    # Worse than real: numbers that would continue, and claims of having been synced.
    for number, records in enumerate(stale, len(batches) + 1):
        raw += journal_batch(number, number - 1, records, other)
    assert read(raw)[0] == batches


@settings(deadline=None)
@given(BATCHES, FILE_ID, st.booleans(), st.data())
def test_flipped_bit_gives_a_prefix_or_an_error(batches: Batches, file_id: int, synced: bool,
                                                data: st.DataObject) -> None:
    raw, ends = file_of(batches, file_id, synced)
    at = data.draw(st.integers(0, len(raw) - 1))
    flipped = bytearray(raw)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    before = sum(end <= at for end in ends)
    try:
        found = read(bytes(flipped))[0]
    except CorruptError:
        # Refused when the header is hit, or when later batches say that it had been safe.
        assert at < FILE_HEADER_SIZE or (synced and before < len(batches) - 1)
    else:
        assert found == batches[:before]
        assert at >= FILE_HEADER_SIZE
        assert before == len(batches) - 1 or not synced


@given(BATCHES, FILE_ID, st.integers(0, 12), st.integers(0, 2000))
def test_proof_of_sync_against_the_naive_search(batches: Batches, file_id: int, number: int, at: int) -> None:
    raw, ends = file_of(batches, file_id)
    starts = [FILE_HEADER_SIZE, *ends[:-1]]
    expected = [start for index, start in enumerate(starts, 1) if start >= at and index - 1 >= number]
    assert proof_of_sync(raw, at, file_id, number) == (expected[0] if expected else None)


@settings(deadline=None, max_examples=30)
@given(BATCHES, FILE_ID, st.sets(st.integers(1, 8)))
def test_files_are_as_drawn(batches: Batches, file_id: int, rotations: set[int]) -> None:
    """Read by hand: each file's header, name and id, and every batch of it; no file is used twice here."""
    with tempfile.TemporaryDirectory() as name:
        with writing(Path(name), identity=file_id, recycle_bytes_max=0) as journal:
            for number, records in enumerate(batches, 1):
                assert commit(journal, *records) == number
                if number in rotations:
                    journal.rotate()
                    wait_rotated(journal)
        found, ids = [], set()
        for number, path in enumerate(sorted(Path(name).iterdir()), 1):
            data = path.read_bytes()
            ids.add(data[24:32])
            assert path.name == f"journal-{number:016x}.log"
            assert data[:40] == journal_header(number, len(found) + 1, int.from_bytes(data[24:32], "little"))
            found += records_of_journal(data)
        assert found == list(enumerate(batches, 1))
        assert len(ids) == number, "each file has an id of its own"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.one_of(st.lists(RECORD, min_size=1, max_size=3), st.just("rotate"), st.just("retire"),
                          st.just("restart")), max_size=25), st.sampled_from(["fsync", "buffered"]))
def test_any_life_of_a_journal(steps: list[list[tuple[int, bytes]] | str], mode: str) -> None:
    """Appends, rotations, retirements and restarts in any order: what is above the retired number is all there."""
    with tempfile.TemporaryDirectory() as name:
        directory, model, number, retired, life = Path(name), {}, 0, 0, 0
        pending = list(steps)
        while True:
            found = recover(directory, after=retired)
            assert {n: records for n, records in contents(directory, retired)} == model
            assert found.last in (0, number)
            found.last = number
            life += 1
            with writing(directory, found=found, identity=life, mode=mode) as journal:
                while pending and (step := pending.pop(0)) != "restart":
                    if step == "rotate":
                        if journal.rotate() == number and journal.file_bytes > FILE_HEADER_SIZE:
                            wait_rotated(journal)
                    elif step == "retire":
                        retired = number
                        journal.retire(number)
                        model.clear()
                    else:
                        number = commit(journal, *step)  # type: ignore[arg-type]
                        model[number] = step
            if not pending:
                break
        assert {n: records for n, records in contents(directory, retired)} == model
