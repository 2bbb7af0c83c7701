"""Writing segment files: append blocks, seal files, begin new ones, sync. `segments.py` has the rules.

What was written since the last sync() is marked, by log. When the disk says no, it is given back as a whole: what could
not be completed must not take the space that the journal needs to go on, and what is written next may be less, since
messages are settled meanwhile. So it is when little is left: the view comes after the segments, and the space that a
checkpoint makes comes after both.
"""
from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import zstandard

from fluxmq._core.disk.segment_format import (
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
    walk,
)
from fluxmq._core.errors import CorruptError, ShortageError, StorageError, UsageError
from fluxmq.model.limits import VIEW_SPACE_BYTES
from fluxmq.storage.reading import read_whole
from fluxmq.storage.segment_files import Block, Damage, FileOps, SegmentFile, no_space, unpacked
from fluxmq.storage.segment_handles import Handles
from fluxmq.storage.segment_reader import SegmentReader
from fluxmq.storage.segment_recovery import Log, refusal

__all__ = ["SegmentWriter"]

# One write: large enough that the call costs nothing, small enough that the copy stays in a cache.
_WRITE_BYTES = 1024 * 1024
# From here on one call for the whole file system is cheaper than one per file.
_SYNC_EACH_MAX = 64
# Fast enough not to slow a checkpoint; levels above gain little on 64 KiB.
_ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class _SyncedLog:
    """A log as it was before the first write since the last sync(). end, size: of its last file."""

    files: list[SegmentFile]
    end: int
    size: int
    next: int


class SegmentWriter(SegmentReader):
    """The writing half of `SegmentStore`. base: `storage.dir`."""

    def __init__(self, base: Path, ops: FileOps, segment_bytes: int, compress: bool, open_files_max: int) -> None:
        super().__init__(base, ops, Handles(ops, open_files_max, self._before_close))
        self._path = base / "queues"
        self._segment_bytes = segment_bytes
        self._compress = compress
        self._mutex = threading.Lock()
        self._local = threading.local()
        self._root_fd = -1
        self._root_dirty = False
        self._damaged: dict[int, CorruptError] = {}  # logs that open() could not open
        self._unsure: set[int] = set()  # logs whose files were read at open and may not be on the medium
        self._synced_logs: dict[int, _SyncedLog] = {}
        self._restore_due = False  # a restore has begun and not succeeded
        self._closed_dirty = False
        self._failed = ""

    # ---------------------------------------------------------------------------------------------- writing

    def write(self, number: int, blocks: Iterable[Block]) -> int:
        """Append blocks as an Export gives them, in order; what the log has already is skipped. Returns the offset
        behind the last message that the log's files hold now. It counts from sync() on.

        Raises ShortageError when there is no space (or no descriptors): all logs are then as they were after the last
        sync(), and the same or less may be written again. Raises StorageError for any other failure."""
        self._check()
        if number in self._damaged:
            raise self._damaged[number]
        log = self._log(number)
        with self._converting_errors(log):
            if self._restore_due:
                self._restore()
            last = log.files[-1] if log.files else None
            self._synced_logs.setdefault(number, _SyncedLog(log.files, last.end if last else 0,
                                                            last.size if last else 0, log.next))
            try:
                with log.lock:
                    self._append(log, blocks)
                if self._is_scarce():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                if no_space(error):
                    self._restore()
                raise
            return log.next

    def _is_scarce(self) -> bool:
        """Whether less is free than the view of a checkpoint may need. A system that does not say is no reason to
        refuse anything."""
        try:
            return self._ops.free(self._root_fd) < VIEW_SPACE_BYTES
        except OSError:
            return False

    @contextmanager
    def _converting_errors(self, log: Log) -> Iterator[None]:
        """Converts errors of the system into ours."""
        try:
            yield
        except OSError as error:
            if no_space(error):
                raise ShortageError(f"the segments in {log.path} cannot be written now: {error.strerror}") from error
            raise StorageError(f"cannot write the segments in {log.path}: {error}") from error
        except Damage as damage:
            raise refusal(self._base, log.path, damage) from None

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

    def _restore(self) -> None:
        """Restores every log to its last synced state. The newest files go first; each name is removed durably before
        the next one and before the preceding file is cut, because a file behind a gap would look like damage."""
        self._restore_due = True
        for number, synced in list(self._synced_logs.items()):
            log = self._log(number)
            with log.lock:
                grown = bool(synced.files) and synced.files[-1].size > synced.size
                while len(log.files) > len(synced.files):
                    self._handles.forget(log.files[-1])
                    self._ops.unlink(log.files[-1].path)
                    log.files = log.files[:-1]
                    log.directory_dirty = True
                    if grown or len(log.files) > len(synced.files):
                        self._sync_directory(log)
                if grown:
                    log.files = [*log.files[:-1], self._cut_back(log.files[-1], synced.end)]
                log.next = synced.next
            del self._synced_logs[number]
        self._restore_due = False

    def _cut_back(self, file: SegmentFile, end: int) -> SegmentFile:
        """The file with its first batches only, as a new object: who reads from the old one sees that, and looks again.

        Synced: old bytes must not come back behind what is written there next."""
        with self._handles.use(file) as fd:
            try:
                self._ops.truncate(fd, end)
                self._ops.fdatasync(fd)
            except OSError as error:
                self._fail(f"{file.path} cannot be cut back: {error}", error)
        self._handles.forget(file)
        kept = SegmentFile(file.path, file.log, file.first, file.follows, file.file_id, size=end, synced=end)
        data = read_whole(file.path, self._ops)
        kept.take(walk(data, file.file_id)[0])
        return kept

    def _begin(self, log: Log, first: int) -> SegmentFile:
        if not log.made:
            if not self._ops.exists(log.path):
                self._ops.mkdir(log.path)
            self._root_dirty = log.made = True
        file = SegmentFile(log.path / file_name(first), log.number, first, log.next,
                           self._ops.new_id(), index=SegmentIndex(), pairs=bytearray())
        file.reach = first
        try:
            with self._handles.use(file, create=True) as fd:
                self._ops.pwrite(fd, encode_header(log.number, first, log.next, file.file_id), 0)
        except FileExistsError:
            raise  # the file belongs to another writer: do not remove it
        except OSError as error:
            if self._ops.exists(file.path):
                self._handles.forget(file)
                try:
                    self._ops.unlink(file.path)
                except OSError as second:
                    self._fail(f"{file.path} cannot be removed after a failed write ({error}): {second}", second)
            raise
        log.directory_dirty = True
        log.files = [*log.files, file]
        return file

    def _seal(self, log: Log, file: SegmentFile) -> None:
        """Give the file its footer. Afterwards it is on the medium, name and all: the next may be begun.

        Synced before too: else a loss of power could leave the footer, which vouches for the batches, without them."""
        if file.pairs is None:
            assert file.index is not None
            data = read_whole(file.path, self._ops)
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
        could not know to be there. Raises ShortageError when there is no descriptor to do it with: it may then be
        called again; any other StorageError is final."""
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
                try:
                    self._ops.sync_directory(self._path)
                except OSError as error:
                    self._fail(f"{self._path} cannot be synced: {error}", error)
                self._root_dirty = False
        self._unsure -= asked
        for number in asked:
            self._synced_logs.pop(number, None)

    def _sync_all(self, dirty: Sequence[Log]) -> None:
        written = [(log, log.files[-1], log.files[-1].size) for log in dirty if log.files]
        for log in dirty:
            log.directory_dirty = False
        self._root_dirty = self._closed_dirty = False
        try:
            self._ops.syncfs(self._root_fd)
        except OSError as error:
            self._fail(f"the file system of {self._path} cannot be synced: {error}", error)
        for _, file, size in written:
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
        """A sync has failed; where there was no descriptor to sync with, it was not even tried."""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise ShortageError(f"{text}. It will be tried again") from error
        self._failed = self._failed or text
        raise StorageError(f"{text}. What was written since the last sync may be lost; nothing more is written until a "
                           f"restart") from error

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
