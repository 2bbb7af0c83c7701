"""Space on the disk that is kept for the day on which there is none: a file that can be given back.

    <storage.dir>/reserve       QUEUE_RESERVE_BYTES of nothing; not there while the disk is full
"""
from __future__ import annotations

import contextlib
import errno
import io
import os
from pathlib import Path

__all__ = ["Reserve"]

_NAME = "reserve"
_WRITE_BYTES = 1 << 20
_SHORT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Reserve:
    """directory: of the store; size: bytes. Both methods block for a moment."""

    def __init__(self, directory: Path, size: int) -> None:
        self.path = directory / _NAME
        self.size = size

    def take(self) -> bool:
        """The space is ours; False: there is not as much. Raises OSError for what is not want of space."""
        try:
            # Not for appending: where the file system cannot allocate, the C library writes instead, and refuses such
            # a descriptor.
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            with io.FileIO(fd, "r+") as file:
                if os.fstat(file.fileno()).st_blocks * 512 >= self.size:
                    return True
                # Twice as much: others must not find the disk full because of us, nor we it full again at once.
                space = os.fstatvfs(file.fileno())
                enough = space.f_bavail * space.f_frsize >= 2 * self.size
                if enough:
                    self._fill(file.fileno())
            if not enough:
                self.give()
            return enough
        except OSError as error:
            self.give()
            if error.errno in _SHORT:
                return False
            raise

    def _fill(self, fd: int) -> None:
        try:
            os.posix_fallocate(fd, 0, self.size)
        except OSError as error:
            if error.errno in _SHORT:
                raise
        else:
            return
        # What cannot allocate takes bytes; random ones, for some file systems make zeros small.
        os.ftruncate(fd, 0)
        data = memoryview(os.urandom(min(_WRITE_BYTES, self.size)))
        at = 0
        while at < self.size:
            at += os.pwrite(fd, data[:self.size - at], at)
        os.fsync(fd)  # until then it may only be a promise

    def give(self) -> None:
        """The space is anybody's."""
        with contextlib.suppress(OSError):
            self.path.unlink()
