"""The segment files of a node: what outlives a journal file, one directory per log.

    <directory>/queues/<log, 16 hex digits>/<first offset, 16 hex digits>.seg       format: _core/segment_format.pyx

All methods block and belong into an executor's threads; any may run beside any other. Writing and syncing are for one
checkpoint at a time (engine/durability.py). What was written counts from sync() on, not before. The rules:

  - A block goes to the last file of its log; a full file gets its footer and is synced, and so is the directory, before
    the next one is begun. So only the last file of a log can be torn.
  - A crash between sync() and the view's checkpoint makes the engine export the same blocks again: what a log has
    already is skipped.
  - A disk that is full: the file is cut back to its last whole batch, StorageError says "No space left on device", and
    the same write may be tried again.
  - A sync that failed is the end, as in the journal: nothing is written or synced any more. Reading goes on.
"""
from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import zstandard

from fluxmq._core.errors import StorageError, UsageError
from fluxmq._core.segment_format import (
    BATCH_HEADER_SIZE,
    STORED_PLAIN,
    STORED_ZSTD,
    SegmentIndex,
    block_of,
    due_pairs,
    encode_batch_header,
    encode_header,
    file_name,
    log_name,
)
from fluxmq.storage.segment_files import (
    Block,
    Damage,
    FileOps,
    SegmentFile,
    mapped,
    no_space,
    unpacked,
)
from fluxmq.storage.segment_handles import Handles
from fluxmq.storage.segment_reader import SegmentReader
from fluxmq.storage.segment_recovery import Log, LogFiles, SegmentRecovery, open_logs, refusal

__all__ = ["LogFiles", "SegmentRecovery", "SegmentStore"]

SEGMENT_BYTES = 64 * 1024 * 1024
OPEN_FILES_MAX = 256
# One write: large enough that the call costs nothing, small enough that the copy stays in a cache.
_WRITE_BYTES = 1024 * 1024
# From here on one call for the whole file system is cheaper than one per file.
_SYNC_EACH_MAX = 64
# Fast enough not to slow a checkpoint; levels above gain little on 64 KiB.
_ZSTD_LEVEL = 1


class SegmentStore(SegmentReader):
    """See the top of the file.

    directory: `storage.dir`; the caller holds its lock. segment_bytes: a file is sealed before it grows above this.
    compression: "zstd" (where it saves an eighth) or "none". recover: read everything and give up what is damaged, as
    `fluxmq log repair` does, instead of refusing to open. ops: for tests.
    """

    def __init__(self, directory: str | os.PathLike[str], *, segment_bytes: int = SEGMENT_BYTES,
                 compression: str = "zstd", recover: bool = False, open_files_max: int = OPEN_FILES_MAX,
                 ops: FileOps | None = None) -> None:
        if compression not in ("zstd", "none"):
            raise UsageError(f"compression is zstd or none, not {compression!r}")
        self._ops = ops or FileOps()
        self._base = Path(directory)
        super().__init__(self._base, Handles(self._ops, open_files_max, self._before_close))
        self._path = self._base / "queues"
        self._segment_bytes = segment_bytes
        self._compress = compression == "zstd"
        self._recover = recover
        self._mutex = threading.Lock()
        self._local = threading.local()
        self._root_fd = -1
        self._root_dirty = False
        self._unsure: set[int] = set()          # logs whose files were read at open and may not be on the medium
        self._closed_dirty = False
        self._failed = ""
        self.recovery = SegmentRecovery()

    # ------------------------------------------------------------------------------------------------- life

    def open(self, expect: Mapping[int, int] | None = None) -> dict[int, LogFiles]:
        """What there is, by log. expect: offsets that the view says are safe: a log whose torn tail would leave it with
        less is damaged, not torn. `recovery` tells what was cut off, made again or given up.

        Raises CorruptError (file, offset, command that repairs it), StorageError.
        """
        if self._root_fd >= 0:
            raise UsageError("the segments are open already")
        self.recovery = SegmentRecovery()
        try:
            if not self._path.exists():
                self._ops.mkdir(self._path)
                self._ops.sync_directory(self._base)
            self._root_fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._logs = open_logs(self._base, self._ops, expect or {}, self._recover, self.recovery)
        except OSError as error:
            self.close()
            raise StorageError(f"cannot read the segments in {self._path}: {error}") from error
        except BaseException:
            self.close()
            raise
        self._root_dirty = bool(self._logs)
        self._unsure = {number for number, log in self._logs.items() if log.directory_dirty}
        return {number: log.summary() for number, log in self._logs.items()}

    def close(self) -> None:
        """Nothing is synced by it."""
        self._handles.close()
        self._logs = {}
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1

    @property
    def bytes_total(self) -> int:
        """On disk, of all logs."""
        return sum(file.size for log in list(self._logs.values()) for file in log.files)

    @property
    def files_total(self) -> int:
        """Of all logs."""
        return sum(len(log.files) for log in list(self._logs.values()))

    # ---------------------------------------------------------------------------------------------- writing

    def write(self, number: int, blocks: Iterable[Block]) -> int:
        """Append blocks as an Export gives them, in order; what the log has already is skipped. Returns the offset
        behind the last message that the log's files hold now. It counts from sync() on.

        Raises StorageError; with "No space left on device" in it the files are whole and it may be tried again."""
        self._check()
        log = self._log(number)
        with log.lock:
            try:
                self._append(log, blocks)
            except OSError as error:
                if no_space(error):
                    raise StorageError(f"No space left on device for the segments of log {log_name(number)}: "
                                       f"{error.strerror}") from error
                raise StorageError(f"cannot write the segments of log {log_name(number)}: {error}") from error
            except Damage as damage:
                raise refusal(self._base, log.path, damage) from None
            return log.next

    def _append(self, log: Log, blocks: Iterable[Block]) -> None:
        file = log.files[-1] if log.files and not log.files[-1].sealed else None
        pending: list[Block] = []
        parts: list[bytes] = []
        waiting = 0
        for block in blocks:
            if block[1] < log.next:
                continue
            if block[0] < log.next:
                part = block_of(block[7], log.next)
                if part is None:
                    continue
                block = part
            stored, how = self._pack(block[7])
            size = BATCH_HEADER_SIZE + len(stored)
            full = file is not None and file.end + waiting + size > self._segment_bytes and (waiting or file.messages)
            if file is not None and (full or waiting + size > _WRITE_BYTES):
                self._flush(log, file, pending, parts)
                pending, parts, waiting = [], [], 0
            if file is not None and full:
                self._seal(log, file)
                file = None
            if file is None:
                file = self._begin(log, block[0])
            parts += (encode_batch_header(block, stored, how, file.synced, file.file_id), stored)
            pending.append(block)
            waiting += size
        if file is not None and pending:
            self._flush(log, file, pending, parts)

    def _pack(self, raw: bytes) -> tuple[bytes, int]:
        if self._compress:
            packer = getattr(self._local, "packer", None)
            if packer is None:
                packer = self._local.packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
            packed: bytes = packer.compress(raw)
            if len(packed) <= len(raw) - len(raw) // 8:
                return packed, STORED_ZSTD
        return raw, STORED_PLAIN

    def _flush(self, log: Log, file: SegmentFile, blocks: Sequence[Block], parts: Sequence[bytes]) -> None:
        """parts: header and stored bytes of each block."""
        if not blocks:
            return
        self._put(file, b"".join(parts), file.end)
        assert file.index is not None
        for number, block in enumerate(blocks):
            if block[6] and file.pairs is not None:
                file.pairs += due_pairs(block[7])
            file.index.add(block, file.index.end + len(parts[2 * number]) + len(parts[2 * number + 1]))
        file.take(file.index)
        file.size = file.end
        log.next = file.reach

    def _put(self, file: SegmentFile, data: bytes, at: int) -> None:
        """All or nothing."""
        with self._handles.use(file) as fd:
            try:
                self._ops.pwrite(fd, data, at)
            except OSError as error:
                try:
                    self._ops.truncate(fd, at)
                except OSError as second:
                    self._fail(f"{file.path} cannot be cut back after a failed write: {second}", error)
                raise

    def _begin(self, log: Log, first: int) -> SegmentFile:
        if not log.made:
            if not log.path.exists():
                self._ops.mkdir(log.path)
            self._root_dirty = log.made = True
        file = SegmentFile(log.path / file_name(first), log.number, first, log.next,
                           int.from_bytes(os.urandom(8), "little"), index=SegmentIndex(), pairs=bytearray())
        file.reach = first
        try:
            with self._handles.use(file, create=True) as fd:
                self._ops.pwrite(fd, encode_header(log.number, first, log.next, file.file_id), 0)
        except OSError:
            if file.path.exists():
                self._handles.forget(file)
                self._ops.unlink(file.path)
            raise
        log.directory_dirty = True
        log.files = [*log.files, file]
        return file

    def _seal(self, log: Log, file: SegmentFile) -> None:
        """Give the file its footer. Afterwards it is on the medium, name and all: the next may be begun.

        Synced before too: else a loss of power could leave the footer, which vouches for the batches, without them."""
        if file.pairs is None:
            assert file.index is not None
            with mapped(file.path) as data:
                file.pairs = bytearray(unpacked(file, file.index, data))
        self._sync_file(file)
        assert file.index is not None
        footer = file.index.footer(file.pairs, file.reach, file.file_id)
        self._put(file, footer, file.end)
        file.size = file.end + len(footer)
        self._sync_file(file)
        self._sync_directory(log)
        file.pairs, file.sealed = None, True

    # ---------------------------------------------------------------------------------------------- syncing

    def sync(self, numbers: Iterable[int]) -> None:
        """Everything written to these logs is on the medium, names and all, when it returns; also what open() found and
        could not know to be there. Raises StorageError, which is final."""
        self._check()
        asked = set(numbers) | self._unsure
        logs = [log for log in map(self._logs.get, asked) if log is not None]
        dirty = [log for log in logs
                 if log.directory_dirty or (log.files and log.files[-1].synced < log.files[-1].size)]
        if dirty and self._ops.syncfs_reports and (self._closed_dirty or len(dirty) > _SYNC_EACH_MAX):
            self._sync_all(dirty)
        else:
            for log in dirty:
                with log.lock:
                    if log.files:
                        self._sync_file(log.files[-1])
                    self._sync_directory(log)
            if self._root_dirty:
                self._root_dirty = False
                try:
                    self._ops.sync_directory(self._path)
                except OSError as error:
                    self._fail(f"{self._path} cannot be synced: {error}", error)
        self._unsure -= asked

    def _sync_all(self, dirty: Sequence[Log]) -> None:
        marks = [(log, log.files[-1], log.files[-1].size) for log in dirty if log.files]
        for log in dirty:
            log.directory_dirty = False
        self._root_dirty = self._closed_dirty = False
        try:
            self._ops.syncfs(self._root_fd)
        except OSError as error:
            self._fail(f"the file system of {self._path} cannot be synced: {error}", error)
        for _, file, size in marks:
            file.synced = max(file.synced, size)

    def _sync_file(self, file: SegmentFile) -> None:
        size = file.size
        if file.synced >= size:
            return
        try:
            with self._handles.use(file) as fd:
                self._ops.fdatasync(fd)
        except OSError as error:
            self._fail(f"{file.path} cannot be synced: {error}", error)
        file.synced = max(file.synced, size)

    def _sync_directory(self, log: Log) -> None:
        if not log.directory_dirty:
            return
        try:
            self._ops.sync_directory(log.path)
        except OSError as error:
            self._fail(f"{log.path} cannot be synced: {error}", error)
        log.directory_dirty = False

    def _before_close(self, fd: int, file: SegmentFile) -> None:
        """A descriptor goes that has seen writes. syncfs still reports their errors; where it does not, now is the last
        time to ask."""
        if file.synced >= file.size:
            return
        if self._ops.syncfs_reports:
            self._closed_dirty = True
            return
        size = file.size
        try:
            self._ops.fdatasync(fd)
        except OSError as error:
            self._fail(f"{file.path} cannot be synced: {error}", error)
        file.synced = max(file.synced, size)

    def _fail(self, text: str, error: OSError) -> NoReturn:
        self._failed = self._failed or text
        raise StorageError(f"{text}. What was written since the last sync may be lost; nothing more is written until a "
                           f"restart") from error

    # --------------------------------------------------------------------------------------------- removing

    def trim(self, number: int, first: int) -> None:
        """Files that hold nothing at or above offset `first` go. The last one too: the log's next offset is the view's
        to know. Raises StorageError."""
        log = self._logs.get(number)
        if log is None:
            return
        with log.lock:
            gone = 0
            while gone < len(log.files) and log.files[gone].reach <= first:
                gone += 1
            self._drop(log, gone)

    def _drop(self, log: Log, count: int) -> None:
        """The oldest first, and each name gone for good before the next: a gap in the middle would look like damage."""
        try:
            for left in range(count, 0, -1):
                file, log.files = log.files[0], log.files[1:]
                self._handles.forget(file)
                self._ops.unlink(file.path)
                log.directory_dirty = True
                if left > 1:
                    self._sync_directory(log)
        except OSError as error:
            raise StorageError(f"cannot remove segments of log {log_name(log.number)}: {error}") from error

    def remove(self, number: int) -> None:
        """The log is no more. Its number is never used again. Raises StorageError."""
        with self._mutex:
            log = self._logs.pop(number, None)
        path = self._path / log_name(number)
        if log is None and not path.exists():
            return
        log = log or Log(number, path)
        with log.lock:
            self._drop(log, len(log.files))
            try:
                if path.exists():
                    for left in sorted(path.iterdir()):
                        self._ops.unlink(left)
                    self._ops.rmdir(path)
            except OSError as error:
                raise StorageError(f"cannot remove {path}: {error}") from error

    # ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._root_fd < 0:
            raise UsageError("the segments are not open: call open() first")
        if self._failed:
            raise StorageError(f"the segments cannot be written any more: {self._failed}")

    def _log(self, number: int) -> Log:
        with self._mutex:
            log = self._logs.get(number)
            if log is None:
                log = self._logs[number] = Log(number, self._path / log_name(number))
            return log
