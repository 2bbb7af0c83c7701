"""Reserved space for a full disk: a file that the broker deletes when it needs the space.

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
        """Reserves the space; False: there is not enough. Raises OSError for any other failure."""
        try:
            # Not for appending: where the file system cannot allocate, the C library writes instead, and refuses such
            # a descriptor.
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            with io.FileIO(fd, "r+") as file:
                if os.fstat(file.fileno()).st_blocks * 512 >= self.size:
                    return True
                # Twice as much, so that neither other programs nor the broker find the disk full at once.
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
        # Without fallocate, write bytes; random ones, because some file systems compress zeros.
        os.ftruncate(fd, 0)
        data = memoryview(os.urandom(min(_WRITE_BYTES, self.size)))
        at = 0
        while at < self.size:
            at += os.pwrite(fd, data[:self.size - at], at)
        os.fsync(fd)  # until then the file system may not have allocated it

    def give(self) -> None:
        """Gives the space back."""
        with contextlib.suppress(OSError):
            self.path.unlink()
