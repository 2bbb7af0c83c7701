"""The bytes of a segment file: golden ones, every byte flipped, and every place cut."""
from __future__ import annotations

import shutil
from array import array
from pathlib import Path

import pytest
from kit.segments import blocks_of, plain, raw_of, read_all

from fluxmq._core.disk.journal_format import crc32c
from fluxmq._core.disk.segment_format import (
    BATCH_HEADER_SIZE,
    HEADER_SIZE,
    SegmentIndex,
    batch_at,
    batch_holds,
    decode_header,
    decode_index,
    decode_trailer,
    encode_batch_header,
    encode_header,
    file_first,
    file_name,
    find_batch,
    log_name,
    log_number,
    messages_of,
    walk,
)
from fluxmq._core.errors import CorruptError, StorageError, UsageError
from fluxmq.storage.segment_repair import verify
from fluxmq.storage.segments import SegmentStore


def u(value: int, width: int) -> bytes:
    return value.to_bytes(width, "little")


def test_a_message_is_as_drawn() -> None:
    """As a log exports it (test_export.py)."""
    raw = (u(64, 4) + u(5, 4) + u(7, 8) + u(1000, 8) + u(5, 8) + u(6, 8) + u(2, 4) + u(3, 2) + b"\x01\x09"
           + b"a/bpphello" + bytes(6))
    assert messages_of(raw) == [(7, 1000, 5, 6, 1, 9, b"a/b", b"pp", b"hello")]


def test_a_file_is_as_drawn() -> None:
    """Version 1, byte for byte: what stands on somebody's disk must be read for ever."""
    seed = crc32c(u(0x1122, 8))
    block = blocks_of([(3, 50, 900, b"x"), (5, 40, 800, b"y")])[0]
    head = b"FMQS" + u(1, 4) + u(2, 8) + u(3, 8) + u(1, 8) + u(0x1122, 8) + u(0, 4)
    header = encode_header(2, 3, 1, 0x1122)
    assert header == head + u(crc32c(head), 4)
    assert decode_header(header) == (2, 3, 1, 0x1122)
    stored = block[7]
    batch = (u(3, 8) + u(5, 8) + u(40, 8) + u(50, 8) + u(800, 8) + u(900, 8) + u(48, 8) + u(2, 4) + u(len(stored), 4)
             + u(len(stored), 4) + u(0, 4) + u(crc32c(stored, seed), 4))
    batch += u(crc32c(batch, seed), 4)
    assert encode_batch_header(block, stored, 0, 48, 0x1122) == batch
    index = SegmentIndex()
    end = HEADER_SIZE + len(batch) + len(stored)
    index.add(block, end)
    entry = u(3, 8) + u(5, 8) + u(48, 8) + u(50, 8) + u(800, 8) + u(900, 8) + u(len(stored), 4) + u(2, 4)
    pairs = u(900, 8) + u(3, 8) + u(800, 8) + u(5, 8)
    start = b"FMQI" + u(1, 4) + u(2, 8) + u(crc32c(entry, seed), 4) + u(crc32c(pairs, seed), 4) + u(0, 4)
    trailer = u(end, 8) + u(6, 8) + u(5, 8) + u(2, 8) + u(len(stored), 8) + u(50, 8) + u(900, 8) + b"FMQT"
    footer = index.footer(pairs, 6, 0x1122)
    assert footer == (start + u(crc32c(start, seed), 4) + entry + pairs + trailer + u(crc32c(trailer, seed), 4))
    data = header + batch + stored + footer
    found, synced = walk(data, 0x1122)
    assert (found.same(index), synced, found.end) == (True, 48, end)
    assert decode_trailer(data[-64:], len(data), 0x1122) == (end, 6, 5, 2, len(stored), 50, 900)
    inside = decode_index(data[end:-64], end, 0x1122)
    assert inside is not None and inside[0].same(index) and inside[1] == pairs


def test_nothing_of_another_file_passes() -> None:
    block = blocks_of(plain([1]))[0]
    data = encode_header(1, 1, 0, 5) + encode_batch_header(block, block[7], 0, 0, 5) + block[7]
    assert batch_holds(data, HEADER_SIZE, 5)
    assert batch_at(data, HEADER_SIZE, 6) is None and not batch_holds(data, HEADER_SIZE, 6)
    assert (find_batch(data, 0, 5, 0, 0), find_batch(data, 0, 6, 0, 0)) == (HEADER_SIZE, None)
    assert (find_batch(data, 0, 5, 2, 0), find_batch(data, 0, 5, 0, 1)) == (None, None)


@pytest.mark.parametrize(("at", "text"), [(0, "FMQS"), (4, "CRC"), (44, "CRC")])
def test_a_header_that_is_none(at: int, text: str) -> None:
    raw = bytearray(encode_header(1, 2, 3, 4))
    raw[at] ^= 1
    with pytest.raises(CorruptError, match=text):
        decode_header(bytes(raw))
    with pytest.raises(CorruptError, match="shorter"):
        decode_header(bytes(raw[:47]))


def test_a_later_version_is_named() -> None:
    head = b"FMQS" + u(2, 4) + encode_header(1, 2, 3, 4)[8:44]
    with pytest.raises(CorruptError, match="version 2, this program reads version 1"):
        decode_header(head + u(crc32c(head), 4))


def test_names() -> None:
    assert (file_name(255), log_name(1 << 63)) == ("00000000000000ff.seg", "8000000000000000")
    assert (file_first("00000000000000ff.seg"), log_number("8000000000000000")) == (255, 1 << 63)
    for name in ("", "ff.seg", "00000000000000FF.seg", "00000000000000ff.seg.damaged", "00000000000000f/.seg"):
        assert file_first(name) is None and log_number(name) is None


def test_a_block_that_no_batch_holds() -> None:
    with pytest.raises(UsageError):
        encode_batch_header((0, 0, 0, 0, 0, 0, 0, b""), b"", 0, 0, 1)


def test_an_index_is_cut_and_searched() -> None:
    index = SegmentIndex()
    blocks = blocks_of([(10 * n, time, 0, b"x") for n, time in enumerate([5, 9, 7, 30])], 1)
    for block in blocks:
        index.add(block, index.end + 100)
    assert [index.find(offset) for offset in (0, 1, 10, 29, 30, 31)] == [0, 1, 1, 3, 3, 4]
    assert [index.find_time(time) for time in (0, 6, 8, 10, 31)] == [0, 1, 1, 3, 4]
    assert index.span(1, 0) == (2, 148, 248) and index.span(1, 1 << 20) == (4, 148, 448)
    index.cut(2)
    assert (len(index), index.end, index.messages, index.time_max) == (2, 248, 2, 9)
    for ask in (index.first, index.last, index.due):
        with pytest.raises(IndexError):
            ask(2)
    with pytest.raises(IndexError):
        index.span(2, 0)


# ------------------------------------------------------------------------------------------- every byte of a small file


def made(directory: Path, *, sealed: bool, delayed: bool = False) -> tuple[Path, bytes]:
    """A log of 12 messages in one file, each batch synced before the next; and a second file behind it if sealed."""
    directory.mkdir()
    store = SegmentStore(directory, segment_bytes=1500 if sealed else 1 << 20)
    store.open()
    for block in blocks_of(plain(range(12), due=delayed)):
        store.write(1, [block])
        store.sync([1])
    store.write(1, blocks_of(plain(range(12, 48 if sealed else 12))))
    store.sync([1])
    store.close()
    return sorted(directory.glob("queues/*/*.seg"))[0], raw_of(plain(range(48 if sealed else 12), due=False)) \
        if not delayed else b""


def outcome(directory: Path, expected: int) -> tuple[bool, bytes]:
    """(whether something was said, what was read)."""
    store = SegmentStore(directory)
    try:
        store.open({1: range(expected)})
        raw = read_all(store, 1)
        list(store.due_pairs(1))
        store.offset_at_time(1, 1003)
        return bool(store.recovery.truncated or store.recovery.rebuilt), raw
    except StorageError as error:
        assert "fluxmq log repair" in str(error) and str(directory) in str(error)
        return True, b""
    finally:
        store.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_every_flipped_byte_is_found_out_or_harmless(tmp_path: Path, sealed: bool) -> None:
    path, expected = made(tmp_path / "good", sealed=sealed)
    content = path.read_bytes()
    for at in range(len(content)):
        where = tmp_path / "copy"
        shutil.copytree(tmp_path / "good", where)
        damaged = bytearray(content)
        damaged[at] ^= 0x41
        (where / path.relative_to(tmp_path / "good")).write_bytes(damaged)
        reports = [report for report in verify(where) if report.problems or report.notes]
        said, raw = outcome(where, 48 if sealed else 12)
        assert raw == expected or said, at
        assert reports, f"verify does not see byte {at}"
        shutil.rmtree(where)


@pytest.mark.parametrize("sealed", [False, True])
def test_every_cut_is_found_out_or_harmless(tmp_path: Path, sealed: bool) -> None:
    path, expected = made(tmp_path / "good", sealed=sealed)
    content = path.read_bytes()
    for size in range(len(content)):
        where = tmp_path / "copy"
        shutil.copytree(tmp_path / "good", where)
        (where / path.relative_to(tmp_path / "good")).write_bytes(content[:size])
        store = SegmentStore(where)
        try:
            store.open()
            raw = read_all(store, 1)
        except CorruptError as error:
            assert sealed and "fluxmq log repair" in str(error)
        else:
            assert raw == expected if sealed else expected.startswith(raw)
            assert store.recovery.truncated or store.recovery.rebuilt or size == len(raw) or not sealed
        finally:
            store.close()
        shutil.rmtree(where)


def test_pairs_that_do_not_hold_are_made_again(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, segment_bytes=1000)
    store.open()
    store.write(1, blocks_of(plain(range(60), due=True)))
    expected = b"".join(store.due_pairs(1))
    assert array("Q", expected).tolist() == [each for m in plain(range(60), due=True) for each in (m[2], m[0])]
    store.close()
    path = min(tmp_path.glob("queues/*/*.seg"))
    data = bytearray(path.read_bytes())
    data[-70] ^= 1
    path.write_bytes(data)
    store.open()
    assert b"".join(store.due_pairs(1)) == expected
    store.close()


def test_sizes_that_the_drawing_says() -> None:
    assert (HEADER_SIZE, BATCH_HEADER_SIZE) == (48, 80)
