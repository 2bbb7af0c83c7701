"""The state view: RocksDB in `<storage.dir>/state`, read so that nothing that is missing is taken for nothing there.

RocksDB checks every block that it reads, but says so only to those who ask: an iterator just ends at a bad block, and
its status has the reason. So everything is read with an iterator whose status is asked. What RocksDB does not find out,
or finds out too late, is seen to here, before it opens anything:

  - A manifest whose last record claims more bytes than there are counts as torn by RocksDB, which then opens an older
    view in silence; a record of a kind that no manifest has makes it run for ever. `manifest.py` reads the records.
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
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    Snapshot,
    WriteBatch,
)

from fluxmq._core.errors import CorruptError, ShortageError, StorageError, UsageError
from fluxmq.model.limits import VIEW_OPEN_FILES_MAX, VIEW_WRITE_ROWS_MAX
from fluxmq.storage import staged
from fluxmq.storage.manifest import ViewDamage, check_manifest, cut_torn
from fluxmq.storage.staged import APPLIED_KEY, Part

__all__ = ["REPAIRED", "View", "applied_of", "is_new", "open_view", "read_all", "rows_of", "settle_staged", "staged_in",
           "view_error", "view_options"]

# A repaired view that has not taken its place yet (view_repair.py).
REPAIRED = "state.repaired"

# An idle broker carries what these sum up to, and no more. A batch larger than the buffer still goes through in one
# piece: the memtable grows for it and is given back by the flush.
_WRITE_BUFFER_BYTES = 4 * 1024 * 1024
_BLOCK_CACHE_BYTES = 4 * 1024 * 1024


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
    # RocksDB makes sixteen threads at each opening, for the few tables of a view: up to half of the time that it takes.
    options.set_max_file_opening_threads(1)
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


def open_view(state: Path, how: AccessType | None = None) -> Rdict:
    """RocksDB in `state`; how: for reading only, without it for writing too. Raises ViewDamage, StorageError."""
    try:
        return Rdict(str(state), view_options(), access_type=how or AccessType.read_write())
    except Exception as error:
        raise view_error(state, error) from error


def view_error(state: Path, error: Exception) -> ViewDamage | StorageError:
    """An error of RocksDB in the terms of this house."""
    text = " ".join(str(error).split())
    if "Corruption" in text:
        return ViewDamage(text.rstrip("."))
    if os.strerror(errno.ENOSPC) in text:
        return ShortageError(f"cannot write the state in {state}: {text}")
    return StorageError(f"cannot read or write the state in {state}: {text}. If the disk fails (the kernel's log "
                        f"tells), copy {state.parent} to another one and run `fluxmq log verify` and `fluxmq log "
                        f"repair` on the copy")


def read_all(view: Rdict, state: Path, begin: bytes = b"\x01") -> Iterator[tuple[bytes, bytes]]:
    """Every key and value from `begin` on, in order, as of the call; ends only where they end. Raises ViewDamage,
    StorageError."""
    yield from _walk(view.snapshot(), state, begin)


def rows_of(view: Rdict, state: Path) -> Iterator[tuple[bytes, bytes]]:
    """As read_all(), and as it is when a checkpoint that was laid down in parts is in its places (staged.py). Raises
    ViewDamage, StorageError."""
    snapshot = view.snapshot()
    rows = _walk(snapshot, state, b"\x01")
    ready = _ready(snapshot, state)
    yield from staged.merged(rows, _parts(snapshot, state, ready[0])) if ready is not None else rows


def staged_in(view: Rdict, state: Path) -> Iterator[Part]:
    """The parts of a checkpoint that count and are not in their places yet. Raises ViewDamage, StorageError."""
    snapshot = view.snapshot()
    ready = _ready(snapshot, state)
    return _parts(snapshot, state, ready[0]) if ready is not None else iter(())


def settle_staged(view: Rdict, state: Path, missing: list[int] | None = None) -> bool:
    """Ends a checkpoint that was laid down in parts and cut short. view: open for writing. missing: gets the numbers of
    parts that are not there, for a repair; without it they are damage. Returns whether there was such a checkpoint.
    Raises ViewDamage, StorageError; ShortageError for want of space."""
    snapshot = view.snapshot()
    ready = _ready(snapshot, state)
    try:
        if ready is not None:
            staged.settle(view, _parts(snapshot, state, ready[0], missing), ready[1])
        elif next(_walk(snapshot, state, staged.PART), (b"",))[0].startswith(staged.PART):
            staged.drop_unready(view)
    except (ViewDamage, StorageError):
        raise
    except Exception as error:
        raise view_error(state, error) from error
    return ready is not None


def _ready(snapshot: Snapshot, state: Path) -> tuple[int, int] | None:
    """How many parts count, and the batch they reach."""
    key, value = next(_walk(snapshot, state, staged.READY), (b"", b""))
    if key != staged.READY:
        return None
    ready = staged.ready_of(value)
    if ready is None:
        raise ViewDamage(f"{state}: what it says of a checkpoint in parts is not a number")
    return ready


def _parts(snapshot: Snapshot, state: Path, count: int, missing: list[int] | None = None) -> Iterator[Part]:
    walk = _walk(snapshot, state, staged.PART)
    key, value = next(walk, (b"", b""))
    for number in range(count):
        part = None
        if key == staged.PART + number.to_bytes(4, "big"):
            part = staged.unpacked(value)
            key, value = next(walk, (b"", b""))
        if part is not None:
            yield part
        elif missing is not None:
            missing.append(number)
        else:
            raise ViewDamage(f"{state}: part {number} of {count} of a checkpoint is missing, or does not hold")


def _walk(snapshot: Snapshot, state: Path, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
    how = ReadOptions()
    how.set_verify_checksums(True)
    how.fill_cache(False)  # type: ignore[call-arg]  # takes a value, whatever its stub says
    at = snapshot.iter(how)
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
        raise view_error(state, error) from error


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
        self._staging = False       # parts of a checkpoint may lie there
        self._short = False         # the last write() found no space

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
                yield from rows_of(view, self.path)
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
        self._reading = None        # current readers keep their own reference

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> None:
        """A checkpoint, all of it or nothing; waits for the disk; in an executor's thread. Raises CorruptError,
        StorageError, UsageError; ShortageError: may be called again, with the same changes or more."""
        shortage: str | None = None
        try:
            if self._short:
                self._reopen()
            self._write(puts, deletes, upto)
        except ShortageError as error:
            shortage = str(error)
        except (UsageError, CorruptError, StorageError):
            raise
        except ViewDamage as damage:
            raise self.refusal(damage) from None
        except Exception as error:
            found = view_error(self.path, error)
            if not isinstance(found, ShortageError):
                raise (self.refusal(found) if isinstance(found, ViewDamage) else found) from error
            shortage = str(found)
        if shortage is not None:    # without the traceback, which may have a snapshot and so keeps RocksDB's lock
            self._short = True
            raise ShortageError(shortage)

    def _write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> None:
        assert self._writing is not None
        if self._staging:           # the last one failed, and may have failed behind READY
            settle_staged(self._writing, self.path)
            self._staging = False
        parts = staged.parts_of(puts, deletes)
        first = []
        rows = 0
        for part in parts:
            first.append(part)
            rows += len(part[0]) // 2 + len(part[1])
            if rows > VIEW_WRITE_ROWS_MAX:
                self._write_in_parts(chain(first, parts), upto)
                return
        self._write_at_once(first, upto)

    def _reopen(self) -> None:
        """After a flush that found no space RocksDB refuses writes until as much is free as its write buffer may hold
        (4 MiB), although a checkpoint may need less, and may be what makes space: it allows to delete files of the
        journal. An opening needs a few kilobytes, and loses only what the failed checkpoint has, which is written
        again."""
        view, self._writing = self._writing, None
        if view is not None:
            with contextlib.suppress(Exception):    # it flushes once more
                view.close()
        cut_torn(check_manifest(self.path))
        self._write_access()
        self._short = self._staging = False

    def _write_at_once(self, parts: Iterable[Part], upto: int) -> None:
        assert self._writing is not None
        batch = WriteBatch(raw_mode=True)
        for part in parts:
            staged.add_rows(batch, part)
        batch.put(APPLIED_KEY, upto.to_bytes(8, "little"))
        self._writing.write(batch, staged.unsynced())
        self._writing.flush(wait=True)

    def _write_in_parts(self, parts: Iterable[Part], upto: int) -> None:
        assert self._writing is not None
        self._staging = True
        count = 0
        for part in parts:
            staged.write_part(self._writing, count, part)
            count += 1
        staged.write_ready(self._writing, count, upto)
        settle_staged(self._writing, self.path)
        self._staging = False

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
        writing, failed = open_view(self.path), None
        try:
            settle_staged(writing, self.path)
        except (ViewDamage, StorageError) as error:
            failed = type(error)(str(error))
        if failed is not None:      # a new one: RocksDB's lock is held as long as a traceback has what read from it
            writing.close()
            raise failed
        self._writing = writing

    def _forget_options(self) -> None:
        for name in os.listdir(self.path):
            if name.startswith("OPTIONS-"):
                (self.path / name).unlink()


def applied_of(view: Rdict, state: Path) -> int:
    """The batch of the journal that a view reaches; 0 for one that was never written to. Raises ViewDamage,
    StorageError."""
    snapshot = view.snapshot()
    ready = _ready(snapshot, state)
    if ready is not None:
        return ready[1]
    row = next(_walk(snapshot, state, APPLIED_KEY), None)
    if row is None or row[0].startswith(staged.PART):       # parts of a first checkpoint that do not count
        return 0
    if row[0] != APPLIED_KEY:
        raise ViewDamage(f"{state}: it does not say which batch of the journal it reaches")
    if len(row[1]) != 8:
        raise ViewDamage(f"{state}: what it says of the batch that it reaches is not a number")
    return int.from_bytes(row[1], "little")
