"""The segment files of a node: messages that outlive a journal file, one directory per log.

    <directory>/queues/<log, 16 hex digits>/<first offset, 16 hex digits>.seg     format: _core/disk/segment_format.pyx

All methods block and belong into an executor's threads; any may run beside any other. Writing and syncing are for one
checkpoint at a time (engine/durability.py). What was written counts from sync() on, not before. The rules:

  - A block goes to the last file of its log; a full file gets its footer and is synced, and so is the directory, before
    the next one is begun. So only the last file of a log can be torn.
  - A crash between sync() and the view's checkpoint makes the engine export the same blocks again: what a log has
    already is skipped.
  - A disk that is full, or no descriptors: what was written since the last sync() is given back, ShortageError says
    what is missing, and it may be tried again.
  - A log that is no more goes as a whole and at once; the view remembers that it is going until its directory's name is
    off the medium. An unknown log is never removed: it is renamed to <log>.unknown.
  - A sync that failed is the end, as in the journal: nothing is written or synced any more. Reading goes on.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fluxmq._core.disk.segment_format import log_name, log_number
from fluxmq._core.errors import CorruptError, StorageError, UsageError
from fluxmq.model.limits import SEGMENT_OPEN_FILES_MAX
from fluxmq.storage.reading import close_quietly
from fluxmq.storage.segment_files import FileOps
from fluxmq.storage.segment_recovery import UNKNOWN, Log, LogFiles, SegmentRecovery, open_logs
from fluxmq.storage.segment_repair import repair_log
from fluxmq.storage.segment_writer import SegmentWriter

__all__ = ["LogFiles", "SegmentRecovery", "SegmentStore"]

SEGMENT_BYTES = 64 * 1024 * 1024


class SegmentStore(SegmentWriter):
    """See the top of the file.

    directory: `storage.dir`; the caller holds its lock. segment_bytes: a file is sealed before it grows above this.
    compression: "zstd" (where it saves an eighth) or "none". recover: read everything and give up what is damaged, as
    `fluxmq log repair` does, instead of refusing to open. ops: for tests.
    """

    def __init__(self, directory: str | os.PathLike[str], *, segment_bytes: int = SEGMENT_BYTES,
                 compression: str = "zstd", recover: bool = False, open_files_max: int = SEGMENT_OPEN_FILES_MAX,
                 ops: FileOps | None = None) -> None:
        if compression not in ("zstd", "none"):
            raise UsageError(f"compression is zstd or none, not {compression!r}")
        super().__init__(Path(directory), ops or FileOps(), segment_bytes, compression == "zstd", open_files_max)
        self._recover = recover
        self.recovery = SegmentRecovery()

    # ------------------------------------------------------------------------------------------------- life

    def open(self, expect: Mapping[int, range] | None = None, ended: Iterable[int] = (),
             on_damage: Callable[[int, CorruptError], None] | None = None) -> dict[int, LogFiles]:
        """What there is, by log. expect: by log, the offsets that the view says files have: a log with less is damaged,
        not torn. ended: logs whose removal a crash may have interrupted; it is finished first.
        on_damage: is told of a log that is damaged, which is not opened then: nothing is read from it or written to it,
        it may be removed or set aside. None: that is raised. `recovery` tells what was cut off, made again or given up.

        Raises CorruptError (file, offset, command that repairs it), StorageError.
        """
        if self._root_fd >= 0:
            raise UsageError("the segments are open already")
        self.recovery = SegmentRecovery()
        try:
            if not self._ops.exists(self._path):
                self._ops.mkdir(self._path)
                self._ops.sync_directory(self._base)
            self._root_fd = self._ops.open_to_read(self._path)
            for number in ended:
                self.remove(number)
            self._logs = open_logs(self._base, self._ops, expect or {}, repair_log if self._recover else None,
                                   self.recovery,
                                   on_damage and (lambda number, error: self._on_damage(number, error, on_damage)))
        except OSError as error:
            self.close()
            raise StorageError(f"cannot read the segments in {self._path}: {error}") from error
        except BaseException:
            self.close()
            raise
        self._root_dirty = self._root_dirty or bool(self._logs)
        self._unsure = {number for number, log in self._logs.items() if log.directory_dirty}
        return {number: log.summary() for number, log in self._logs.items()}

    def _on_damage(self, number: int, error: CorruptError, then: Callable[[int, CorruptError], None]) -> None:
        self._damaged[number] = error
        then(number, error)

    def close(self) -> None:
        """Nothing is synced by it."""
        self._handles.close()
        self._logs = {}
        if self._root_fd >= 0:
            close_quietly(self._root_fd, self._ops)
            self._root_fd = -1

    @property
    def bytes_total(self) -> int:
        """On disk, of all logs."""
        return sum(file.size for log in list(self._logs.values()) for file in log.files)

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
                try:
                    self._ops.unlink(file.path)
                except FileNotFoundError:
                    pass
                except OSError:
                    log.files = [file, *log.files]  # or the next one would go before it
                    raise
                log.directory_dirty = True
                if left > 1:
                    self._sync_directory(log)
        except OSError as error:
            raise StorageError(f"cannot remove segments in {log.path}: {error}") from error

    def holds(self, number: int) -> bool:
        """There are files of this log."""
        log = self._logs.get(number)
        return number in self._damaged or (log is not None and bool(log.files))

    def remove(self, number: int) -> None:
        """Removes the log. Its number is never used again. The caller has a durable record of this, until the sync()
        that follows: files may go in any order, and after an interruption the caller calls this again. Raises
        StorageError."""
        with self._mutex:
            log = self._logs.pop(number, None)
            self._damaged.pop(number, None)
        path = self._path / log_name(number)
        try:
            if log is None and not self._ops.exists(path):
                return
            log = log or Log(number, path)
            with log.lock:
                for file in log.files:
                    self._handles.forget(file)
                log.files = []
                if self._ops.exists(path):
                    for left in sorted(self._ops.names(path)):
                        self._ops.unlink(path / left)
                    self._ops.rmdir(path)
                self._root_dirty = True
        except OSError as error:
            raise StorageError(f"cannot remove {path}: {error}") from error

    def set_aside(self, number: int) -> Path | None:
        """For an unknown log: renames its directory, ignores it from now on, and returns the new name.
        None: it has no directory. Raises StorageError."""
        with self._mutex:
            log = self._logs.pop(number, None) or Log(number, self._path / log_name(number))
            self._damaged.pop(number, None)
        if not self._ops.exists(log.path):
            return None
        target = log.path.with_name(log.path.name + UNKNOWN)
        try:
            for file in log.files:
                self._handles.forget(file)
            self._ops.rename(log.path, target)
            self._ops.sync_directory(self._path)
        except OSError as error:
            raise StorageError(f"cannot rename {log.path} to {target}: {error}") from error
        return target

    def aside(self) -> dict[int, Path]:
        """What set_aside() has put there, now or earlier, by log. Raises StorageError."""
        try:
            names = [name for name in self._ops.names(self._path) if name.endswith(UNKNOWN)]
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error}") from error
        logs = ((log_number(name.removesuffix(UNKNOWN)), self._path / name) for name in names)
        return {number: path for number, path in logs if number is not None}
