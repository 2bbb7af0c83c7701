"""Space on the disk that is kept for the day on which there is none: a file that can be given back.

    <storage.dir>/reserve       QUEUE_RESERVE_BYTES of nothing; not there while the disk is full
"""
from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

__all__ = ["Reserve"]

_NAME = "reserve"
_WRITE_BYTES = 1 << 20
_UNKNOWN = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # a file system that cannot say so takes bytes


class Reserve:
    """directory: of the store; size: bytes. Both methods block for a moment."""

    def __init__(self, directory: Path, size: int) -> None:
        self.path = directory / _NAME
        self.size = size

    def take(self) -> bool:
        """The space is ours; False: there is not as much. Raises OSError for what is not want of space."""
        try:
            with self.path.open("a+b") as file:
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
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                return False
            raise

    def _fill(self, fd: int) -> None:
        try:
            os.posix_fallocate(fd, 0, self.size)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
            os.ftruncate(fd, 0)
            for at in range(0, self.size, _WRITE_BYTES):
                os.write(fd, bytes(min(_WRITE_BYTES, self.size - at)))

    def give(self) -> None:
        """The space is anybody's."""
        with contextlib.suppress(OSError):
            self.path.unlink()
