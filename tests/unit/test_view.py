"""The state view: whatever a disk makes of its files, a start has everything or refuses; it never takes damage for an
end, and a start that refuses has removed nothing."""
from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import shutil
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from kit import smalldisk
from kit.journals import commit
from kit.watch import wait_until

from fluxmq._core.disk.journal_format import file_name
from fluxmq._core.errors import CorruptError, ShortageError, StorageError
from fluxmq.app import exit_codes, recovered
from fluxmq.model.limits import VIEW_WRITE_ROWS_MAX
from fluxmq.storage.manifest import ViewDamage, check_manifest, cut_torn
from fluxmq.storage.store import RocksStore
from fluxmq.storage.view import View, view_error

CHECKPOINTS = 3
KEYS = 400  # several blocks of a table
JOURNAL_HEADER = 100  # bytes: a file that has no batch yet is no larger

Content = list[tuple[bytes, bytes]]


def opened(directory: Path, identity: int = 1, **more: object) -> RocksStore:
    store = RocksStore(directory, identity=identity, **more)  # type: ignore[arg-type]
    store.start()
    return store


def begun(store: RocksStore) -> bool:
    assert store.journal is not None
    store.journal.poll()
    return store.journal.file_bytes < JOURNAL_HEADER


def made(directory: Path, rotate: bool = False) -> list[Content]:
    """A view after some checkpoints, and what it held after each. rotate: the journal lets go of what the view has."""
    chance = random.Random(1)
    state: dict[bytes, bytes] = {}
    contents: list[Content] = [[]]
    store = opened(directory)
    assert store.journal is not None
    for turn in range(CHECKPOINTS):
        puts = {b"m%07d" % n: chance.randbytes(20) for n in range(KEYS) if turn == 0 or n % CHECKPOINTS == turn}
        deletes = [b"m%07d" % n for n in range(turn, KEYS, 50)]
        upto = commit(store.journal, (1, b"batch"))
        if rotate:
            upto = store.journal.rotate()
            wait_until(partial(begun, store))
        asyncio.run(store.checkpoint(puts.items(), deletes, upto))
        state |= puts
        for key in deletes:
            state.pop(key, None)
        contents.append(sorted(state.items()))
    store.close()
    return contents


def names(directory: Path) -> set[str]:
    """Of what a start must not remove. (OPTIONS and LOG are told to nobody.)"""
    return {path.name for path in (directory / "state").glob("*")
            if path.suffix == ".sst" or path.name.startswith(("MANIFEST", "CURRENT"))}


def read(directory: Path) -> tuple[int, Content]:
    store = opened(directory, 2)
    try:
        return store.applied, list(store.load())
    finally:
        store.close()


def read_or_refuse(directory: Path) -> tuple[int, Content] | None:
    """None: refused, with the file and the way out, and nothing was removed."""
    before = names(directory)
    try:
        return read(directory)
    except CorruptError as error:
        text = str(error)
        assert "state" in text and f"fluxmq log repair {directory}" in text, text
        assert exit_codes.exit_code(error) == exit_codes.STORAGE
        assert names(directory) >= before
        return None


def state_file(directory: Path, pattern: str) -> Path:
    return sorted((directory / "state").glob(pattern))[0]


def put_back(good: Path, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(good, directory)


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT", "OPTIONS-*"])
def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(tmp_path: Path, pattern: str) -> None:
    contents = made(tmp_path / "good")
    whole = state_file(tmp_path / "good", pattern).read_bytes()
    step = max(1, len(whole) // 60)
    refused = 0
    for at in range(0, len(whole), step):
        put_back(tmp_path / "good", tmp_path / "bad")
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        state_file(tmp_path / "bad", pattern).write_bytes(damaged)
        found = read_or_refuse(tmp_path / "bad")
        assert found in (None, (CHECKPOINTS, contents[-1])), f"bit {at % 8} of byte {at}"
        refused += found is None
    assert refused or pattern == "OPTIONS-*"


def test_each_bit_of_a_manifest_record_header(tmp_path: Path) -> None:
    """Each of them: RocksDB takes a length that is too long for a torn end, and some kinds make it run for ever."""
    contents = made(tmp_path / "good")
    path = state_file(tmp_path / "good", "MANIFEST-*")
    whole = path.read_bytes()
    at, bits = 0, []
    while at < len(whole):
        bits += [(at + byte, bit) for byte in range(4, 7) for bit in range(8)]
        at += 7 + int.from_bytes(whole[at + 4:at + 6], "little")
    for byte, bit in bits:
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(ViewDamage, match=path.name):
            check_manifest(path.parent)
    path.write_bytes(whole)
    assert read(tmp_path / "good") == (CHECKPOINTS, contents[-1])


def test_a_manifest_whose_last_record_arrived_in_parts_only(tmp_path: Path) -> None:
    """Power goes in a checkpoint: of what was not synced any sector may be there or not. That is no damage: it is
    cut off, and the start has the checkpoint before."""
    store = opened(tmp_path / "good", 1)
    assert store.journal is not None
    for number in range(30):
        commit(store.journal, (1, b"%d" % number))
        asyncio.run(store.checkpoint([(b"k%d" % number, b"v" * 50)], (), store.journal.durable))
    store.close()
    good = state_file(tmp_path / "good", "MANIFEST-*").read_bytes()
    begins, at = [], 0
    while at < len(good):
        begins.append(at)
        at += 7 + int.from_bytes(good[at + 4:at + 6], "little")
    torn = 0
    for begin, end in pairwise([*begins, at]):
        sectors = sorted({begin, end, *range(begin - begin % 512 + 512, end, 512)})
        if len(sectors) < 3:
            continue
        for arrived in range(2 ** (len(sectors) - 1) - 1):          # not all of them
            put_back(tmp_path / "good", tmp_path / "bad")
            parts = [good[one:two] if arrived >> number & 1 else bytes(two - one)
                     for number, (one, two) in enumerate(pairwise(sectors))]
            path = state_file(tmp_path / "bad", "MANIFEST-*")
            path.write_bytes(good[:begin] + b"".join(parts))
            cut_torn(check_manifest(path.parent))
            assert path.read_bytes() == good[:begin]
            torn += 1
    assert torn >= 3


def test_a_manifest_cut_anywhere_is_an_older_checkpoint_or_refused(tmp_path: Path) -> None:
    """At the end of a record, and only there, that cannot be told from a crash. The journal decides: see below."""
    contents = made(tmp_path / "good")
    size = state_file(tmp_path / "good", "MANIFEST-*").stat().st_size
    seen = set()
    for cut in range(0, size, 7):
        put_back(tmp_path / "good", tmp_path / "bad")
        os.truncate(state_file(tmp_path / "bad", "MANIFEST-*"), cut)
        found = read_or_refuse(tmp_path / "bad")
        if found is not None:
            assert found[1] == contents[found[0]]
            seen.add(found[0])
    assert seen


def test_an_older_view_than_the_journal_needs_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "good", rotate=True)
    size = state_file(tmp_path / "good", "MANIFEST-*").stat().st_size
    refused = 0
    for cut in range(0, size, 7):
        put_back(tmp_path / "good", tmp_path / "bad")
        os.truncate(state_file(tmp_path / "bad", "MANIFEST-*"), cut)
        found = read_or_refuse(tmp_path / "bad")
        assert found is None or found[0] == CHECKPOINTS
        refused += found is None
    assert refused > size // 7 - 5


@pytest.mark.parametrize("how", ["table missing", "table cut", "tables missing", "no CURRENT", "empty CURRENT",
                                 "no manifest", "empty directory", "no directory", "nothing but tables"])
def test_what_is_missing_is_missed(tmp_path: Path, how: str) -> None:
    made(tmp_path, rotate=True)
    table = state_file(tmp_path, "*.sst")
    if how == "table missing":
        table.unlink()
    elif how == "table cut":
        os.truncate(table, table.stat().st_size - 1)
    elif how == "no CURRENT":
        (tmp_path / "state" / "CURRENT").unlink()
    elif how == "empty CURRENT":
        (tmp_path / "state" / "CURRENT").write_bytes(b"")
    elif how == "no manifest":
        state_file(tmp_path, "MANIFEST-*").unlink()
    elif how == "no directory":
        shutil.rmtree(tmp_path / "state")
    else:
        for path in list((tmp_path / "state").iterdir()):
            if how == "empty directory" or (path.suffix == ".sst") == (how == "tables missing"):
                path.unlink()
    assert read_or_refuse(tmp_path) is None


def test_an_empty_view_beside_a_journal_from_the_first_batch_on_starts(tmp_path: Path) -> None:
    """A node that was killed before its first checkpoint."""
    store = opened(tmp_path)
    assert store.journal is not None
    for body in (b"a", b"b"):
        commit(store.journal, (1, body))
    store.close()
    shutil.rmtree(tmp_path / "state")
    store = opened(tmp_path, 2)
    assert (store.applied, list(store.load()), len(list(store.replay()))) == (0, [], 2)
    store.close()


def test_a_view_that_goes_bad_between_two_reads_is_refused(tmp_path: Path) -> None:
    """Also of the few values that the store reads for itself."""
    made(tmp_path)
    store = opened(tmp_path, 2)
    for path in (tmp_path / "state").glob("*.sst"):
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        with path.open("r+b") as file:
            file.write(raw)
    with pytest.raises(CorruptError, match="fluxmq log repair"):
        list(store.load())
    store.close()


def test_errors_of_the_disk_are_not_taken_for_damage_nor_for_an_end(tmp_path: Path) -> None:
    error = view_error(tmp_path, Exception("IO error: While pread offset 0 len 4096: 000008.sst: Input/output error"))
    assert type(error) is StorageError and "000008.sst: Input/output error" in str(error)
    assert isinstance(view_error(tmp_path, Exception("Corruption: block checksum mismatch in 000008.sst")), ViewDamage)


@pytest.mark.parametrize("which", ["journal", "MANIFEST"])
def test_a_read_that_fails_is_an_error_with_the_file(tmp_path: Path, which: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that cannot be read is never cut off where the reading ended."""
    made(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "journal").iterdir()}
    real = os.preadv

    def failing(fd: int, buffers: list[memoryview], offset: int) -> int:
        if which in os.readlink(f"/proc/self/fd/{fd}").rpartition("data")[2]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(StorageError, match=f"Input/output error at offset 0.*{which}"):
        opened(tmp_path, 2)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in before} == before
    assert read(tmp_path)[0] == CHECKPOINTS


def test_a_file_that_ends_early_is_no_end_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, buffers, offset) if offset == 0 and
                        len(buffers[0]) <= 40 else 0)
    with pytest.raises(StorageError, match=r"ended at offset 0.*journal|ended at offset 0.*MANIFEST|CURRENT"):
        opened(tmp_path, 2)


def test_a_journal_that_changes_between_two_reads_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.journal is not None
    for _ in range(3):
        commit(store.journal, (1, b"x" * 50))
    store.close()
    store = opened(tmp_path, 2)
    path = tmp_path / "journal" / file_name(1)
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match=r"something else each time|does not hold"):
        list(store.replay())
    store.close()


def test_a_torn_tail_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    assert store.journal is not None
    for _ in range(3):
        commit(store.journal, (1, b"x" * 50))
    store.close()
    path = tmp_path / "journal" / file_name(1)
    size = len(path.read_bytes().rstrip(b"\0"))       # a growing file has zeros behind its batches
    os.truncate(path, size - 10)
    store = opened(tmp_path, 2)
    with caplog.at_level(logging.INFO):
        recovered.log_recovery(logging.getLogger("fluxmq.app"), store, None)
    [line] = caplog.records
    assert line.levelname == "WARNING" and "confirmed" in line.getMessage()
    told_of = vars(line)
    assert (told_of["file"], told_of["offset"] + told_of["bytes"]) == (str(path), size - 10)
    store.close()
    store = opened(tmp_path, 3)
    caplog.clear()
    recovered.log_recovery(logging.getLogger("fluxmq.app"), store, None)
    assert not caplog.records
    store.close()


@pytest.mark.parametrize("rows", [1000, VIEW_WRITE_ROWS_MAX + 1], ids=["at once", "in parts"])
def test_a_checkpoint_that_found_no_space_needs_no_more_than_its_own(tmp_path: Path, rows: int) -> None:
    """RocksDB by itself would wait for 4 MiB."""
    with smalldisk.small_disk(tmp_path / "small", "40m") as disk:
        view = View(disk)
        (disk / "state").mkdir()
        view.open()
        assert not list(view.items())
        view.write([(b"a", b"1")], [], 1)
        ballast = smalldisk.fill(disk, 0)
        puts = [(b"b%07d" % number, b"x") for number in range(rows)]
        for _ in range(2):
            with pytest.raises(ShortageError, match="No space left"):
                view.write(puts, [], 2)
        os.truncate(ballast, ballast.stat().st_size - (1 << 20))
        for upto in (2, 3):
            view.write(puts, [b"a"], upto)
            if upto == 2:       # as usual from here on
                puts = [(b"c", b"2"), *puts]
        view.close()
        view = View(disk)
        assert view.open() == 3
        assert list(view.items()) == [*puts[1:], puts[0]]
        view.close()
