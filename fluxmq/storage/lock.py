"""One broker per storage directory: flock on its file `lock`, held from before anything else is done there.

    <directory>/lock          held for as long as the process may write below the directory

A node of a cluster takes it before it starts its member of etcd, whose directory is below this one or belongs to it,
and holds it over all lives of its server; a broker by itself takes it when its store is opened.
"""
from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fluxmq._core.errors import StorageError, UsageError
from fluxmq.storage.reading import close_quietly

__all__ = ["StorageLock"]


class StorageLock:
    """directory: made if missing, with the two that the store has in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fd = -1

    @property
    def held(self) -> bool:
        """By this object."""
        return self._fd >= 0

    def acquire(self) -> None:
        """Raises StorageError if another process has it, or the directory cannot be used."""
        if self.held:
            raise UsageError("the lock is held already")
        path = self.directory
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            self.make_directories()
        except OSError as error:
            self.release()
            raise StorageError(f"cannot use {path} as the storage directory: {error}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise StorageError(f"{path} is in use by another broker (its file `lock` is held). Stop that one, or "
                               f"give this one its own `storage.dir`") from None

    def make_directories(self) -> None:
        """Those of the journal and of the view, where they are missing. Raises OSError."""
        for name in ("journal", "state"):   # here, because RocksDB would not sync the name of its directory
            (self.directory / name).mkdir(exist_ok=True)
        _sync_new_directory(self.directory)

    def release(self) -> None:
        """Does nothing if it is not held."""
        if self.held:
            close_quietly(self._fd)
            self._fd = -1


def _sync_new_directory(path: Path) -> None:
    """The directory, what was just made in it, and its name in the one above."""
    for each in (path, path.parent):
        fd = os.open(each, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            close_quietly(fd)
