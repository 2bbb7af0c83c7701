"""The state view: RocksDB in `<storage.dir>/state`, read so that nothing that is missing is taken for nothing there.

RocksDB checks every block that it reads, but says so only to those who ask: an iterator just ends at a bad block, and
its status has the reason. So everything is read with an iterator whose status is asked. What RocksDB does not find out,
or finds out too late, is seen to here, before it opens anything:

  - A manifest whose last record claims more bytes than there are counts as torn by RocksDB, which then opens an older
    view in silence; a record of a kind that no manifest has makes it run for ever. `check_manifest` reads the records.
  - Without CURRENT it makes a new, empty database beside the tables of the old one, and removes them.
  - The binding reads the last OPTIONS file, which has no checksum, and may crash over it. All options are set here, so
    those files go before the view is opened.

Opening for writing removes tables that the manifest does not name. So a start opens the view for reading, and for
writing only when everything has been read and fits the journal: a start that refuses has changed nothing.
"""
from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from fluxmq._core.errors import CorruptError, ShortageError, StorageError, UsageError
from fluxmq._core.journal_format import crc32c
from fluxmq.model.limits import VIEW_OPEN_FILES_MAX
from fluxmq.storage.reading import close_quietly, read_whole

__all__ = ["APPLIED_KEY", "REPAIRED", "View", "ViewDamage", "applied_of", "check_manifest", "cut_torn", "is_new",
           "open_view", "read_all", "told", "view_options"]

APPLIED_KEY = b"\x00applied"
# A repaired view that has not taken its place yet (view_repair.py).
REPAIRED = "state.repaired"

# An idle broker carries what these sum up to, and no more. A checkpoint larger than the buffer still goes through
# in one piece: the memtable grows for it and is given back by the flush.
_WRITE_BUFFER_BYTES = 4 * 1024 * 1024
_BLOCK_CACHE_BYTES = 4 * 1024 * 1024

# A manifest is a log of RocksDB: blocks of 32 KiB; a record is CRC u32, length u16, kind u8, bytes. Only a record that
# does not fit into its block is in pieces. Kinds: 0 padding, 1 whole, 2 first, 3 middle, 4 last piece.
_BLOCK_BYTES = 32 * 1024
_RECORD_HEADER_BYTES = 7
_PIECES = range(1, 5)
_CRC_MASK = 0xA282EAD8
_SECTOR_BYTES = 512         # a disk writes all of it or nothing


class ViewDamage(Exception):
    """The view is not what was written. text: what is wrong, with the file."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def view_options() -> Options:
    """How the view is opened, for whatever purpose."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_background_jobs(2)
    options.set_max_open_files(VIEW_OPEN_FILES_MAX)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    # Statistics are not shown anywhere, and their thread wakes an idle broker.
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(64 * 1024)
    options.set_paranoid_checks(True)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    table.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(table)
    return options


def is_new(state: Path) -> bool:
    """Whether no view was ever made here: at most what a crash leaves of the making of one. Raises OSError."""
    return not state.is_dir() or not any(name == "CURRENT" or name.endswith(".sst") for name in os.listdir(state))


def check_manifest(state: Path) -> Path:
    """The manifest that CURRENT names, if both hold. A record at its end that a crash cut short counts for nothing, as
    with RocksDB. Raises ViewDamage, OSError."""
    current = state / "CURRENT"
    try:
        named = read_whole(current)
    except FileNotFoundError:
        raise ViewDamage(f"{current} is missing") from None
    if not re.fullmatch(rb"MANIFEST-\d{6,20}\n", bytes(named)):
        raise ViewDamage(f"{current} does not name a manifest" + ("; it is empty" if not named else ""))
    path = state / bytes(named).decode().strip()
    try:
        data = read_whole(path)
    except FileNotFoundError:
        raise ViewDamage(f"{path} is missing, which {current.name} names") from None
    end = _records_end(data)
    if end < len(data) and not _torn(data, end):
        raise ViewDamage(f"{path} is damaged at offset {end}: the record there does not hold")
    return path


def cut_torn(manifest: Path) -> None:
    """Cuts off what a crash left of the last write, if check_manifest() finds the manifest good: RocksDB passes over a
    record that the file ends in, and refuses one whose first bytes arrived without the others. Raises OSError."""
    data = read_whole(manifest)
    end = _records_end(data)
    if end == len(data):
        return
    fd = os.open(manifest, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, end)
        os.fsync(fd)
    finally:
        close_quietly(fd)


def _records_end(data: memoryview) -> int:
    """Where the records that hold end, from the first on."""
    at = 0
    while at < len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _RECORD_HEADER_BYTES:
            at += left
            continue
        end = _record_end(data, at)
        if end is None:
            break
        at = end
    return at


def _record_end(data: memoryview, at: int, length: int | None = None) -> int | None:
    """Where the record at `at` ends, if it holds; length: instead of what it says itself."""
    if at + _RECORD_HEADER_BYTES > len(data):
        return None
    if length is None:
        length = int.from_bytes(data[at + 4:at + 6], "little")
    end = at + _RECORD_HEADER_BYTES + length
    if data[at + 6] not in _PIECES or end > len(data):
        return None
    crc = crc32c(data[at + 6:end])
    masked = ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF
    return end if masked == int.from_bytes(data[at:at + 4], "little") else None


def _torn(data: memoryview, at: int) -> bool:
    """Whether what stands from `at` on can be the rest of a write that a crash cut short: nothing behind it holds, and
    it is longer than the file, or one of its sectors never arrived and is zeros. (A record with another length than was
    written would hold with what is left.)"""
    if not any(data[at:]):
        return True
    left = len(data) - at - _RECORD_HEADER_BYTES
    if left >= 0 and not _sector_missing(data, at):
        if int.from_bytes(data[at + 4:at + 6], "little") <= left or _record_end(data, at, left) is not None:
            return False
        if data[at + 6] not in _PIECES:
            return False
    return all(_record_end(data, behind) is None for behind in range(at + 1, len(data) - _RECORD_HEADER_BYTES))


def _sector_missing(data: memoryview, at: int) -> bool:
    ends = [*range(at - at % _SECTOR_BYTES + _SECTOR_BYTES, len(data), _SECTOR_BYTES), len(data)]
    return any(not any(data[begin:end]) for begin, end in pairwise([at, *ends]))


def open_view(state: Path, how: AccessType | None = None) -> Rdict:
    """RocksDB in `state`; how: for reading only, without it for writing too. Raises ViewDamage, StorageError."""
    try:
        return Rdict(str(state), view_options(), access_type=how or AccessType.read_write())
    except Exception as error:
        raise told(state, error) from error


def told(state: Path, error: Exception) -> ViewDamage | StorageError:
    """An error of RocksDB in the terms of this house."""
    text = " ".join(str(error).split())
    if "Corruption" in text:
        return ViewDamage(text.rstrip("."))
    return StorageError(f"cannot read or write the state in {state}: {text}. If the disk fails (the kernel's log "
                        f"tells), copy {state.parent} to another one and run `fluxmq log verify` and `fluxmq log "
                        f"repair` on the copy")


def read_all(view: Rdict, state: Path, begin: bytes = b"\x01") -> Iterator[tuple[bytes, bytes]]:
    """Every key and value from `begin` on, in order, as of the call; ends only where they end. Raises ViewDamage,
    StorageError."""
    how = ReadOptions()
    how.set_verify_checksums(True)
    how.fill_cache(False)  # type: ignore[call-arg]  # takes a value, whatever its stub says
    at = view.snapshot().iter(how)
    valid, key, value, step = at.valid, at.key, at.value, at.next
    try:
        at.seek(begin)
        while valid():
            yield key(), value()
            step()
        at.status()
    except (GeneratorExit, ViewDamage, StorageError):
        raise
    except Exception as error:
        raise told(state, error) from error


class View:
    """The view of one node. base: `storage.dir`; the caller holds its lock.

    Life: open(), read everything with items(), then write(). Methods but write() are for the loop's thread.
    """

    def __init__(self, base: Path) -> None:
        self.path = base / "state"
        self._base = base
        self._reading: Rdict | None = None
        self._writing: Rdict | None = None
        self._opened = False

    def open(self) -> int:
        """Opens for reading; returns the batch that it reaches. Raises CorruptError, StorageError."""
        try:
            self._opened = True
            if is_new(self.path):
                if (self._base / REPAIRED).is_dir():
                    raise ViewDamage(f"a repair was cut short that has it in {self._base / REPAIRED}. Run it again")
                return 0
            cut_torn(check_manifest(self.path))
            self._forget_options()
            self._reading = open_view(self.path, AccessType.read_only(False))
            return applied_of(self._reading, self.path)
        except ViewDamage as damage:
            raise self.refusal(damage) from None
        except OSError as error:
            raise StorageError(f"cannot read the state in {self.path}: {error}") from error

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key and value but the store's own, in order, as of the call. Read to the end, the view can be written.
        Raises CorruptError, StorageError."""
        if not self._opened:
            raise UsageError("the view is not open")
        view = self._reading or self._writing
        try:
            if view is not None:
                yield from read_all(view, self.path)
        except ViewDamage as damage:
            raise self.refusal(damage) from None
        self.make_writable()

    def make_writable(self) -> None:
        """Everything was read and is good. Raises CorruptError, StorageError."""
        if self._writing is None:
            try:
                self._write_access()
            except ViewDamage as damage:
                raise self.refusal(damage) from None
            except OSError as error:
                raise StorageError(f"cannot write the state in {self.path}: {error}") from error
        self._reading = None        # whoever still reads from it has it until the end

    @staticmethod
    def batch(puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> WriteBatch:
        """A checkpoint, for write()."""
        batch = WriteBatch(raw_mode=True)
        for key, value in puts:
            _check_key(key)
            batch.put(key, value)
        for key in deletes:
            _check_key(key)
            batch.delete(key)
        batch.put(APPLIED_KEY, upto.to_bytes(8, "little"))
        return batch

    def write(self, batch: WriteBatch) -> None:
        """Writes and waits for the disk; in an executor's thread. Raises CorruptError, StorageError."""
        assert self._writing is not None
        how = WriteOptions()
        how.disable_wal = True  # type: ignore[assignment, method-assign]  # a property, whatever its stub says
        try:
            self._writing.write(batch, how)
            self._writing.flush(wait=True)
        except Exception as error:
            found = told(self.path, error)
            if isinstance(found, ViewDamage):
                raise self.refusal(found) from error
            # RocksDB goes on by itself when there is space again; any other error it keeps until it is opened anew.
            kind = ShortageError if os.strerror(errno.ENOSPC) in str(error) else StorageError
            raise kind(f"cannot write the state in {self.path}: {error}") from error

    def close(self) -> None:
        """May be called twice."""
        view, self._writing, self._reading, self._opened = self._writing, None, None, False
        if view is not None:
            # It flushes once more, which a full disk refuses. Nothing is lost by that: what the view lacks is still
            # in the journal, whose own errors are the ones that matter.
            with contextlib.suppress(Exception):
                view.close()

    def refusal(self, damage: ViewDamage) -> CorruptError:
        """The error that tells an operator what is wrong and the ways out."""
        return CorruptError(
            f"the state in {self.path} is damaged: {damage.text}. Nothing was deleted. Restore {self._base} from a "
            f"copy; or run `fluxmq log verify {self._base}`, which shows all of the damage, and `fluxmq log repair "
            f"{self._base}`, which keeps everything that can still be read and says what is lost "
            f"(`storage.recover_on_startup: true` does it at a start)")

    # ------------------------------------------------------------------------------------------------------------

    def _write_access(self) -> None:
        self._forget_options()
        self._writing = open_view(self.path)

    def _forget_options(self) -> None:
        for name in os.listdir(self.path):
            if name.startswith("OPTIONS-"):
                (self.path / name).unlink()


def applied_of(view: Rdict, state: Path) -> int:
    """The batch of the journal that a view reaches; 0 for one that was never written to. Raises ViewDamage,
    StorageError."""
    found = next(read_all(view, state, APPLIED_KEY), None)
    if found is None:
        return 0
    if found[0] != APPLIED_KEY:
        raise ViewDamage(f"{state}: it does not say which batch of the journal it reaches")
    if len(found[1]) != 8:
        raise ViewDamage(f"{state}: what it says of the batch that it reaches is no number")
    return int.from_bytes(found[1], "little")


def _check_key(key: bytes) -> None:
    if not key or key[0] == 0:
        raise UsageError(f"{key!r} is no key of the view: keys are not empty and do not begin with a zero byte")
