"""The system calls on all files below `storage.dir` except the view, in one small object that a test can replace with
its own disk. The journal's writer has a table of its own (_core/disk/journal.pxd), because it runs without the
interpreter.
"""
from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
from pathlib import Path

__all__ = ["SYSTEM", "FileOps"]

_libc = ctypes.CDLL(None, use_errno=True)


class FileOps:
    """System calls that write and that read. All raise OSError."""

    # Since Linux 5.8 syncfs reports errors of writing back, to processes that held a descriptor when they happened.
    syncfs_reports = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2]) >= (5, 8)

    def open(self, path: Path, create: bool) -> int:
        """Opens for reading and writing. create: the file must not exist."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return os.open(path, flags, 0o640)

    def open_to_read(self, path: Path) -> int:
        """A file or a directory."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        """Bytes of an open file."""
        return os.fstat(fd).st_size

    def read_into(self, fd: int, into: memoryview, at: int) -> int:
        """Bytes read from offset `at` on, fewer than there is room for where the system gives a part; 0: the end."""
        return os.preadv(fd, [into], at)

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """All of `data`."""
        view = memoryview(data)
        while view:
            done = os.pwrite(fd, view, at)
            if not done:  # no regular file does this; reported as "no space" to avoid an endless loop
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            view, at = view[done:], at + done

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def syncfs(self, fd: int) -> None:
        """Everything on the file system of this open file or directory."""
        if _libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def free(self, fd: int) -> int:
        """Bytes that files of this process may still take of the file system of this open file or directory."""
        space = os.fstatvfs(fd)
        return space.f_bavail * space.f_frsize

    def names(self, path: Path) -> list[str]:
        """Of a directory, in any order."""
        return os.listdir(path)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def rmdir(self, path: Path) -> None:
        path.rmdir()

    def unlink(self, path: Path) -> None:
        path.unlink()

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def sync_directory(self, path: Path) -> None:
        fd = self.open_to_read(path)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def new_id(self) -> int:
        """64 random bits, for the header of a new file."""
        return int.from_bytes(os.urandom(8), "little")


SYSTEM = FileOps()
