"""Any messages, in any blocks, come back from segment files in order, whole and once; and damage is never silent."""
from __future__ import annotations

import tempfile
from array import array
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from kit.exact import exact
from kit.segments import Message, blocks_of, raw_of, read_all
from oracle import stored

from fluxmq._core.disk.segment_format import block_of, due_pairs, find_time, messages_of
from fluxmq._core.errors import CorruptError
from fluxmq.storage.segments import SegmentStore

PAYLOAD = st.one_of(st.binary(max_size=80), st.integers(0, 3000).map(lambda n: b"z" * n))
STEP = st.tuples(st.integers(1, 5), st.integers(-50, 500), st.one_of(st.just(0), st.integers(1, 10**6)), PAYLOAD)
SIZES = st.sampled_from([200, 700, 4000, 1 << 26])


def messages(steps: list[tuple[int, int, int, bytes]], delayed: bool, first: int = 0) -> list[Message]:
    """Ascending offsets with holes, times that are now and then set back."""
    found, offset, time = [], first - 1, 10_000
    for gap, later, due, payload in steps:
        offset, time = offset + gap, time + later
        found.append((offset, time, due if delayed else 0, payload))
    return found


def chunked(raw: list[Message], sizes: list[int]) -> list[tuple[int, int, int, int, int, int, int, bytes]]:
    found, at, turn = [], 0, 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        found += blocks_of(raw[at:at + size], size)
        at, turn = at + size, turn + 1
    return found


@settings(deadline=None, max_examples=60)
@given(st.lists(STEP, max_size=40), st.lists(st.integers(1, 6), min_size=1, max_size=5), SIZES, st.booleans(),
       st.sampled_from(["zstd", "none"]), st.sampled_from([0, 7, 3 << 56]), st.integers(1, 3000), st.data())
def test_what_is_written_is_read(steps: list[tuple[int, int, int, bytes]], sizes: list[int], segment_bytes: int,
                                 delayed: bool, compression: str, first: int, max_bytes: int,
                                 data: st.DataObject) -> None:
    """Restarts and repeated exports anywhere between: the same."""
    all_of_it = messages(steps, delayed, first)
    blocks = chunked(all_of_it, sizes)
    with tempfile.TemporaryDirectory() as name:
        store = SegmentStore(name, segment_bytes=segment_bytes, compression=compression)
        assert store.open() == {}
        done = 0
        while done < len(blocks):
            more = data.draw(st.integers(1, len(blocks) - done))
            again = data.draw(st.integers(0, done))
            assert store.write(9, blocks[again:done + more]) == blocks[done + more - 1][1] + 1
            done += more
            if data.draw(st.booleans()):
                store.sync([9])
            if data.draw(st.booleans()):
                store.close()
                store = SegmentStore(name, segment_bytes=segment_bytes, compression=compression, open_files_max=2)
                found = store.open()[9]
                assert (found.next, store.recovery.truncated) == (blocks[done - 1][1] + 1, [])
                assert found.messages == sum(block[2] for block in blocks[:done])
        whole = raw_of(all_of_it)
        assert read_all(store, 9, 0, max_bytes) == whole
        start = data.draw(st.integers(first, first + 250))
        tail = block_of(whole, start)
        inside = block_of(read_all(store, 9, start, max_bytes), start)
        assert inside == tail
        time = data.draw(st.integers(9_000, 30_000))
        assert store.offset_at_time(9, time) == next((m[0] for m in all_of_it if m[1] >= time), None)
        pairs = array("Q", b"".join(store.due_pairs(9)))
        assert list(zip(pairs[::2], pairs[1::2], strict=True)) == [(m[2], m[0]) for m in all_of_it if m[2]]
        offsets = data.draw(st.lists(st.integers(first, first + 250), unique=True, min_size=1))
        picked = store.pick(9, offsets, max_bytes)
        assert offsets[0] in picked and set(picked) <= set(offsets)
        everything = store.pick(9, offsets, 1 << 30)
        assert picked.items() <= everything.items() and set(everything) == set(offsets)
        for offset, message in everything.items():
            alone = block_of(whole, offset)
            assert message == (alone[7][:len(message)] if alone is not None and alone[0] == offset else b"")
            assert not message or int.from_bytes(message[:4], "little") == len(message)
        end = data.draw(st.sampled_from([block[1] + 1 for block in blocks])) if blocks else first
        spans = store.spans(9, start, end)
        assert [behind for behind, _ in spans] == sorted({behind for behind, _ in spans})
        assert sum(size for _, size in spans) == len(raw_of([m for m in all_of_it if start <= m[0] < end]))
        at = start
        for behind, size in spans:
            assert size == len(raw_of([m for m in all_of_it if at <= m[0] < behind]))
            at = behind
        cut = data.draw(st.integers(first, first + 250))
        store.trim(9, cut)
        assert block_of(read_all(store, 9, cut), cut) == block_of(whole, cut)
        store.close()


@settings(deadline=None, max_examples=60)
@given(st.lists(STEP, min_size=1, max_size=30), st.lists(st.integers(1, 6), min_size=1, max_size=5), SIZES,
       st.booleans(), st.sampled_from(["zstd", "none"]))
def test_files_are_as_the_page_of_the_format_says(steps: list[tuple[int, int, int, bytes]], sizes: list[int],
                                                  segment_bytes: int, delayed: bool, compression: str) -> None:
    """Read by hand: names, headers, what one file follows, every batch, and footers byte for byte."""
    all_of_it = messages(steps, delayed)
    with tempfile.TemporaryDirectory() as name:
        store = SegmentStore(name, segment_bytes=segment_bytes, compression=compression)
        store.open()
        for block in chunked(all_of_it, sizes):
            store.write(9, [block])
        store.close()
        paths = sorted(Path(name).glob("queues/*/*"))
        whole, reached = b"", 0
        for path in paths:
            data = path.read_bytes()
            batches, footer = stored.batches_of_segment(data)
            first, file_id = batches[0].block[0], stored.file_id_of(data)
            assert (path.parent.name, path.name) == (f"{9:016x}", f"{first:016x}.seg")
            assert data[:48] == stored.segment_header(9, first, reached, file_id)
            reached = batches[-1].block[1] + 1
            assert footer == (stored.footer_of_segment(batches, len(data) - len(footer), reached, file_id, delayed)
                              if path != paths[-1] else b"")
            assert compression == "zstd" or not any(batch.packed for batch in batches)
            whole += b"".join(batch.block[7] for batch in batches)
        assert whole == raw_of(all_of_it)


@settings(deadline=None, max_examples=60)
@given(st.lists(STEP, min_size=2, max_size=30), st.lists(st.integers(1, 6), min_size=1, max_size=4),
       st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_another_export_of_the_same_messages_adds_only_what_is_new(
        steps: list[tuple[int, int, int, bytes]], sizes: list[int], others: list[int], data: st.DataObject) -> None:
    """After a crash the blocks are cut elsewhere."""
    all_of_it = messages(steps, False)
    known = data.draw(st.integers(1, len(all_of_it)))
    with tempfile.TemporaryDirectory() as name:
        store = SegmentStore(name, segment_bytes=600)
        store.open()
        store.write(1, chunked(all_of_it[:known], sizes))
        start = data.draw(st.integers(0, known - 1))
        store.write(1, chunked(all_of_it[start:], others))
        assert read_all(store, 1) == raw_of(all_of_it)
        store.close()


@given(st.lists(STEP, max_size=20), st.integers(0, 60), st.integers(9_000, 20_000))
def test_blocks_against_the_naive(steps: list[tuple[int, int, int, bytes]], first: int, time: int) -> None:
    all_of_it = messages(steps, True)
    raw = raw_of(all_of_it)
    kept = [m for m in all_of_it if m[0] >= first]
    block = block_of(raw, first)
    if not kept:
        assert block is None
    else:
        due = [m[2] for m in kept if m[2]]
        assert block == (kept[0][0], kept[-1][0], len(kept), min(m[1] for m in kept), max(m[1] for m in kept),
                         min(due, default=0), max(due, default=0), raw_of(kept))
    pairs = [number for m in all_of_it if m[2] for number in (m[2], m[0])]
    assert due_pairs(raw) == b"".join(number.to_bytes(8, "little") for number in pairs)
    assert find_time(raw, time) == next((m[0] for m in all_of_it if m[1] >= time), None)
    assert [(m[0], m[1], m[3], m[8]) for m in messages_of(raw)] == all_of_it


@given(st.binary(max_size=200), st.integers(0, 100))
def test_garbage_is_messages_or_corrupt(data: bytes, first: int) -> None:
    data = exact(data)
    try:
        block_of(data, first)
        assert not data or messages_of(data)
    except CorruptError:
        pass
    due_pairs(data)
    find_time(data, 5)


@settings(deadline=None, max_examples=40)
@given(st.lists(STEP, min_size=1, max_size=20), st.data())
def test_cut_anywhere_leaves_the_whole_batches_before(steps: list[tuple[int, int, int, bytes]],
                                                      data: st.DataObject) -> None:
    blocks = chunked(messages(steps, True), [2])
    with tempfile.TemporaryDirectory() as name:
        store = SegmentStore(name)
        store.open()
        ends = [48]
        for block in blocks:
            store.write(1, [block])
            ends.append(store.bytes_total)
        store.close()
        path = next(Path(name).glob("queues/*/*.seg"))
        size = data.draw(st.integers(0, ends[-1]))
        with path.open("r+b") as file:
            file.truncate(size)
        kept = max(sum(end <= size for end in ends) - 1, 0)
        for turn in range(2):
            store.open()
            assert read_all(store, 1) == b"".join(block[7] for block in blocks[:kept])
            assert bool(store.recovery.truncated) == (size not in ends)
            if turn == 0:
                store.write(1, blocks[kept:kept + 1])
                store.write(1, blocks)
                assert read_all(store, 1) == b"".join(block[7] for block in blocks)
                with path.open("r+b") as file:
                    file.truncate(size)
            store.close()
