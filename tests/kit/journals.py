"""A journal with its writer on a thread, and the programs that crash tests kill.

Run as a program: `journals.py journal|store|store-in-parts DIRECTORY MODE` appends for ever and prints a line as soon
as something is durable; everything printed must be found again after any crash.
"""
from __future__ import annotations

import asyncio
import ctypes
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from oracle import stored

from fluxmq._core.disk.journal import Journal
from fluxmq._core.disk.journal_format import FILE_HEADER_SIZE
from fluxmq.storage import staged, view
from fluxmq.storage.journal_files import Recovery, read_batches, recover
from fluxmq.storage.store import RocksStore

WAIT_SECONDS = 30.0


@contextmanager
def writing(directory: Path, *, found: Recovery | None = None, identity: int = 7, mode: str = "fsync",
            interval: float = 3600.0, ops: Ops | None = None, recycle_bytes_max: int = 1 << 26,
            file_bytes_max: int = 1 << 26) -> Iterator[Journal]:
    """A journal that continues `found`; its writer runs until the end of the block, close() is left to the caller."""
    found = found or Recovery()
    journal = Journal(directory, identity=identity, first_batch=found.last + 1, first_file=found.next_file,
                      files=[(file.number, file.first, file.last, file.size) for file in found.files], mode=mode,
                      interval=interval, file_bytes_max=file_bytes_max, recycle_bytes_max=recycle_bytes_max,
                      file_ops=ops.address if ops else 0)
    thread = threading.Thread(target=journal.run)
    thread.start()
    try:
        yield journal
    finally:
        try:
            journal.close()
        finally:
            thread.join()


def wait_event(journal: Journal) -> None:
    poll = select.poll()        # select() takes no descriptor above 1023
    poll.register(journal.event_fd, select.POLLIN)
    assert poll.poll(WAIT_SECONDS * 1000), "the journal's writer says nothing"


def wait_durable(journal: Journal, number: int) -> None:
    while journal.durable < number:
        wait_event(journal)
        journal.poll()


def wait_rotated(journal: Journal) -> None:
    """Until the writer has made the file that rotate() wished for; the one before held something."""
    while journal.file_bytes != FILE_HEADER_SIZE:
        wait_event(journal)
        journal.poll()


def commit(journal: Journal, *records: tuple[int, bytes]) -> int:
    number = 0
    for kind, body in records:
        number = journal.append(kind, body)
    journal.submit()
    wait_durable(journal, number)
    return number


def contents(directory: Path, after: int = 0) -> list[tuple[int, list[tuple[int, bytes]]]]:
    """(number, records) of each batch above `after`, read by hand; the product's reader has the same ones."""
    found = [(one.number, one.records) for one in stored.batches_of_journals(directory, after)]
    assert [(number, stored.records(batch)) for number, batch in read_batches(directory, after)] == found
    return found


class Ops:
    """System calls for a Journal, each through a Python function that may answer minus errno instead."""

    class _Struct(ctypes.Structure):
        _fields_ = [(name, ctypes.c_void_p) for name in (
            "pwrite", "fdatasync", "fsync", "ftruncate", "open", "rename", "unlink", "close", "size", "monotonic")]

    def __init__(self) -> None:
        on_fd = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int)
        on_write = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
        on_size = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int, ctypes.c_int64)
        self.pwrite: Callable[[int, bytes, int], int] = os.pwrite
        self.fdatasync: Callable[[int], int | None] = os.fdatasync
        self.fsync: Callable[[int], int | None] = os.fsync
        self.ftruncate: Callable[[int, int], int | None] = os.ftruncate
        self._kept = (
            on_write(lambda fd, data, size, at: self._call(self.pwrite, fd, ctypes.string_at(data, size), at)),
            on_fd(lambda fd: self._call(self.fdatasync, fd)),
            on_fd(lambda fd: self._call(self.fsync, fd)),
            on_size(lambda fd, size: self._call(self.ftruncate, fd, size)),
        )
        self._struct = self._Struct(*(ctypes.cast(each, ctypes.c_void_p).value for each in self._kept))
        self.address = ctypes.addressof(self._struct)

    @staticmethod
    def _call(function: Callable[..., int | None], *arguments: object) -> int:
        try:
            return function(*arguments) or 0
        except OSError as error:
            return -(error.errno or 5)


def body_of(number: int) -> bytes:
    """What the crash programs write into batch `number`: checkable, of very different lengths, some over pages."""
    return number.to_bytes(8, "big") * (1 + number * 37 % 700)


def _append_for_ever(directory: Path, mode: str) -> None:
    found = recover(directory)
    with writing(directory, found=found, identity=os.getpid() << 32 | found.next_file, mode=mode) as journal:
        while True:
            for _ in range(3):
                journal.append(9, body_of(journal.gathering))
            journal.submit()
            wait_event(journal)
            if journal.poll():
                print(journal.durable, flush=True)
            if journal.file_bytes > 60_000:
                journal.rotate()


async def _checkpoint_for_ever(directory: Path, mode: str) -> None:
    store = RocksStore(directory, identity=os.getpid() << 32 | int.from_bytes(os.urandom(4), "big"), durability=mode,
                       interval=3600.0)
    store.start()
    journal = store.journal
    assert journal is not None
    # What the view lacks belongs into the next checkpoint.
    changed = {body[:4]: body[4:] for _, records in store.replay() for _, body in stored.records(records)}
    while True:
        for _ in range(20):
            number = journal.gathering
            key = b"k%03d" % (number * 7 % 300)
            changed[key] = body_of(number)
            journal.append(1, key + changed[key])
            journal.submit()
            while journal.durable < number:
                wait_event(journal)
                journal.poll()
            print(number, flush=True)
        upto = journal.rotate()
        await store.checkpoint(changed.items(), (), upto)
        changed.clear()


if __name__ == "__main__":
    if sys.argv[1] == "journal":
        _append_for_ever(Path(sys.argv[2]), sys.argv[3])
    else:
        if sys.argv[1] == "store-in-parts":     # as a checkpoint of a hundred thousand rows does
            view.VIEW_WRITE_ROWS_MAX, staged.VIEW_PART_ROWS_MAX = 8, 5
        asyncio.run(_checkpoint_for_ever(Path(sys.argv[2]), sys.argv[3]))
