"""The state store on disk: the journal, and RocksDB as the view behind it.

    <directory>/lock          flock: one broker per directory
    <directory>/journal/      journal files (format: _core/disk/journal_format.pyx)
    <directory>/state/        RocksDB, its own log off

Why RocksDB with its log off: the journal is the log. A checkpoint is one WriteBatch with the new applied number in it,
then a flush. A WriteBatch goes into one memtable, a memtable becomes one file, and the file joins the database by one
entry of the manifest; so after a crash the view is as it was after some whole checkpoint, never in between. That holds
in one column family only, which is why there is one. A large checkpoint takes several batches, and counts from one of
them on (staged.py).

Keys that begin with a zero byte are the store's own.
"""
from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fluxmq._core.disk.journal import Journal
from fluxmq._core.errors import CorruptError, StorageError, UsageError
from fluxmq.storage.files import SYSTEM, FileOps
from fluxmq.storage.journal_files import Recovery, read_batches, recover
from fluxmq.storage.lock import StorageLock
from fluxmq.storage.view import View

if TYPE_CHECKING:
    from fluxmq.storage.repair import RepairReport

__all__ = ["RocksStore"]


class RocksStore:
    """`engine.ports.store.StateStore` in a directory.

    directory: made if missing. identity: 64 random bits, new at each start (they tell this run's journal files from
    stale bytes of earlier ones). durability: "fsync" or "buffered". interval: seconds between syncs when buffered.
    file_bytes: of a journal file when the next is begun.
    recover_on_startup: repair what is damaged (storage/repair.py) instead of refusing to start.
    lock: of the directory, which its owner holds over this store's life; None: the store takes it at its start.
    file_ops: for tests, see Journal. ops: for tests, see files.py.
    """

    def __init__(self, directory: str | os.PathLike[str], *, identity: int, durability: str = "fsync",
                 interval: float = 1.0, file_bytes: int = 64 << 20, recover_on_startup: bool = False,
                 lock: StorageLock | None = None, file_ops: int = 0, ops: FileOps = SYSTEM) -> None:
        self._path = Path(directory)
        self._identity = identity
        self._durability = durability
        self._interval = interval
        self._file_bytes = file_bytes
        self._recover_on_startup = recover_on_startup
        self._file_ops = file_ops
        self._ops = ops
        self._lock = StorageLock(self._path) if lock is None else lock
        self._lock_is_own = lock is None
        self._started = False
        self._view: View | None = None
        self._journal: Journal | None = None
        self._writer: threading.Thread | None = None
        self._applied = 0
        self.checkpointing = False
        self._replay_upto = 0
        self.recovery = Recovery()
        self.repaired: RepairReport | None = None

    @property
    def path(self) -> Path | None:
        """The directory given to the constructor."""
        return self._path

    @property
    def journal(self) -> Journal | None:
        """Open between start() and close(), else None."""
        return self._journal

    @property
    def applied(self) -> int:
        """Number of the last batch that the view holds."""
        return self._applied

    def start(self) -> None:
        """As the port says. Afterwards `recovery` tells what the journal held and what was cut off, `repaired` what a
        repair did."""
        if self._started:
            raise UsageError("the store is open already")
        if self._lock_is_own:
            self._lock.acquire()
        self._started = True
        try:
            if self._recover_on_startup:
                # Few starts repair, and this knows every format that is on the disk.
                from fluxmq.storage.repair import repair

                self.repaired = repair(self._path)
            self._view = self._open_view()
            self._applied = self._view.open()
            journal_path = self._path / "journal"
            self.recovery = found = recover(journal_path, after=self._applied, ops=self._ops)
            # In buffered mode a loss of power may leave the view ahead of the journal. No number is used twice.
            self._replay_upto = max(found.last, self._applied)
            self._journal = Journal(
                journal_path, identity=self._identity, first_batch=self._replay_upto + 1, first_file=found.next_file,
                files=[(file.number, file.first, file.last, file.size) for file in found.files],
                mode=self._durability, interval=self._interval, file_bytes_max=self._file_bytes,
                recycle_bytes_max=2 * self._file_bytes, file_ops=self._file_ops)
            self._writer = self._start_writer(self._journal)
        except BaseException:
            self.close()
            raise

    def load(self) -> Iterator[tuple[bytes, bytes]]:
        """As the port says. Walks over a consistent picture even if checkpoints are taken meanwhile."""
        yield from self._opened().items()

    def replay(self, after: int | None = None) -> Iterator[tuple[int, bytes]]:
        """As the port says."""
        self._opened()
        path, last = self._path / "journal", 0
        try:
            for last, records in read_batches(path, self._applied if after is None else after, self._ops):
                if last > self._replay_upto:
                    return
                yield last, records
        except OSError as error:
            raise StorageError(f"cannot read the journal in {path}: {error}") from error
        if last < self.recovery.last and (after or 0) < self.recovery.last > self._applied:
            raise CorruptError(f"the journal in {path} ends with batch {last} now, and ended with batch "
                               f"{self.recovery.last} a moment ago: the disk gives back something else each time. Copy "
                               f"{self._path} to another disk and run `fluxmq log verify` on the copy")

    async def checkpoint(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> None:
        """As the port says; writing, flushing and removing files run in the loop's default executor."""
        view = self._opened()
        assert self._journal is not None
        if self.checkpointing:
            raise UsageError("a checkpoint is under way: wait for it before the next")
        if upto > self._journal.durable:
            raise UsageError(f"a checkpoint at batch {upto} is ahead of the journal, whose batch "
                             f"{self._journal.durable} is the last durable one")
        if upto < self._applied:
            raise UsageError(f"a checkpoint at batch {upto} would fall behind the view at {self._applied}")
        view.make_writable()
        self.checkpointing = True
        # Gathered there, too: of a hundred thousand keys that takes longer than others should wait.
        await self._in_thread(lambda: self._write_view(puts, deletes, upto))

    async def _in_thread(self, step: Callable[[], None]) -> None:
        work = asyncio.get_running_loop().run_in_executor(None, step)
        # A cancelled caller must not let close() run beside the executor's thread.
        work.add_done_callback(self._checkpoint_ended)
        await asyncio.shield(work)

    def _checkpoint_ended(self, _work: object) -> None:
        self.checkpointing = False

    def _write_view(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> None:
        assert self._view is not None and self._journal is not None
        self._view.write(puts, deletes, upto)
        self._applied = upto
        self._journal.retire(upto)

    def close(self) -> None:
        """As the port says. Raises UsageError while a checkpoint is under way."""
        if self.checkpointing:
            raise UsageError("a checkpoint is under way: wait for it before close()")
        journal, self._journal = self._journal, None
        writer, self._writer = self._writer, None
        view, self._view = self._view, None
        try:
            if journal is not None:
                journal.close()
        finally:
            if writer is not None:
                writer.join()
            if view is not None:
                view.close()
            if self._lock_is_own:
                self._lock.release()
            self._started = False

    # ------------------------------------------------------------------------------------------------------------

    def _opened(self) -> View:
        if self._view is None:
            raise UsageError("the store is not open: call start() first")
        return self._view

    def _start_writer(self, journal: Journal) -> threading.Thread | None:
        writer = threading.Thread(target=journal.run, name="fluxmq-journal", daemon=True)
        writer.start()
        return writer

    def _open_view(self) -> View:
        return View(self._path)
