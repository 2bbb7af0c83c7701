"""Files read with pread, never mapped: when the disk cannot return a mapped page, the process dies without a
message (SIGBUS); a failed read is an error that can name the file.

It also writes data again after a failed sync. When a sync fails, Linux marks the pages clean, although they are not
on the medium: readers get them as long as they are in memory, a further sync succeeds and writes
none of them, and a loss of power loses them. Only pages that are written again reach the medium.
"""
from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

from fluxmq.storage.files import SYSTEM, FileOps

__all__ = ["close_quietly", "read_at", "read_head", "read_whole", "write_again"]

# One call: large enough to cost nothing, small enough that an error names the place.
_PIECE_BYTES = 1024 * 1024


def read_whole(path: Path, ops: FileOps = SYSTEM) -> memoryview:
    """All of a file, in memory that goes back to the system with the last reference. Raises OSError with the file's
    name, and the offset in its text."""
    fd = ops.open_to_read(path)
    try:
        return read_at(fd, path, 0, ops.size(fd), ops)
    finally:
        close_quietly(fd, ops)


def read_head(path: Path, size: int, ops: FileOps = SYSTEM) -> memoryview:
    """The first bytes of a file, so many if it has as many: one read may give a part of them, and what is missing must
    not look as if it had never been written. Raises OSError."""
    fd = ops.open_to_read(path)
    try:
        return read_at(fd, path, 0, min(size, ops.size(fd)), ops)
    finally:
        close_quietly(fd, ops)


def close_quietly(fd: int, ops: FileOps = SYSTEM) -> None:
    """Closes the descriptor, whatever close() returns: Linux frees it first. A sync reports every write error that a
    close may report, and data without a sync was never acknowledged."""
    with contextlib.suppress(OSError):
        ops.close(fd)


def read_at(fd: int, path: Path, at: int, size: int, ops: FileOps = SYSTEM) -> memoryview:
    """`size` bytes from offset `at`. Raises OSError; also where the file ends before: a short read is no end."""
    if not size:
        return memoryview(b"")
    data = memoryview(mmap.mmap(-1, size))
    done = 0
    while done < size:
        try:
            got = ops.read_into(fd, data[done:done + _PIECE_BYTES], at + done)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror} at offset {at + done}", str(path)) from error
        if not got:
            raise OSError(0, f"the file ended at offset {at + done} while it was read", str(path))
        done += got
    return data.toreadonly()


def write_again(fd: int, data: memoryview, start: int, end: int, ops: FileOps = SYSTEM) -> None:
    """The bytes [start, end) of the file, `data`, as they were read: the next sync brings them to the medium, whatever
    became of one that somebody else has made. fd is open for writing. Raises OSError."""
    ops.pwrite(fd, data[start:end], start)
