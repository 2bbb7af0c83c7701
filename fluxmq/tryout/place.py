"""The directory of a try-out: whose it is, what it says to others, and its end.

    tryout.lock     locked for as long as the try-out lives, however it ends
    tryout.json     who runs it, its nodes with their processes and addresses
    control.sock    takes orders (control.py)
    node-1/         fluxmq.yaml, data, log
"""
from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from fluxmq.tryout.asking import TryoutError

__all__ = ["PREFIX", "Place", "running"]

PREFIX = "fluxmq-tryout-"
LOCK, ABOUT, CONTROL = "tryout.lock", "tryout.json", "control.sock"
SOCKET_PATH_MAX = 107       # of a Unix socket, by the kernel
LONGEST = "node-9/data/admin.sock"      # of the paths of sockets
NODE_BYTES = 160 << 20      # what a node takes from the disk at its start: etcd's and the broker's files are reserved


class Place:
    """directory: a new or empty one; None: one is made where temporary files go. nodes: for how many there must be
    room. Raises TryoutError."""

    def __init__(self, directory: Path | None, nodes: int) -> None:
        self._lock = -1
        self._ours = False      # its content is that of this try-out, or it has none
        try:
            if directory is None:
                _sweep()
                self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            else:
                self.path = directory.absolute()
                self.path.mkdir(mode=0o700, exist_ok=True)
                if any(self.path.iterdir()):
                    raise TryoutError(f"{directory} has something in it: a try-out takes a new or an empty directory, "
                                      "and removes it at its end")
                self.path.chmod(0o700)
            self._ours = True
            # It gets its name when it is locked: another try-out may look for those that nobody has locked.
            self._lock = _locked(self.path / f"{LOCK}.new", create=True)
            (self.path / f"{LOCK}.new").rename(self.path / LOCK)
            self._check(nodes)
        except OSError as error:
            self.remove()
            raise TryoutError(f"{error.filename or directory}: {error.strerror}: --dir names another place") from error
        except TryoutError:
            self.remove()
            raise

    @property
    def control(self) -> Path:
        return self.path / CONTROL

    def say(self, about: dict[str, Any]) -> None:
        """What others may know: tryout.json, replaced whole. Raises OSError."""
        draft = self.path / f"{ABOUT}.new"
        draft.write_text(json.dumps({"pid": os.getpid()} | about, indent=2) + "\n")
        draft.replace(self.path / ABOUT)

    def remove(self) -> None:
        """With all that is in it."""
        if self._ours:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _check(self, nodes: int) -> None:
        if len(str(self.path / LONGEST)) > SOCKET_PATH_MAX:
            raise TryoutError(f"{self.path} is too long a name for sockets in it: --dir names another place")
        free = shutil.disk_usage(self.path).free
        if free < nodes * NODE_BYTES:
            raise TryoutError(f"{self.path.parent} has {free >> 20} MiB free, and {nodes} nodes need about "
                              f"{nodes * NODE_BYTES >> 20} MiB: --dir names another place")


def running() -> list[Path]:
    """Directories of try-outs of this user that are alive, of those that were made where temporary files go."""
    return [path for path in _ours() if _alive(path)]


def _alive(path: Path) -> bool:
    lock = _locked(path / LOCK)
    if lock >= 0:
        os.close(lock)
    return lock < 0


def _ours() -> list[Path]:
    found = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        try:
            about = path.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and (path / LOCK).is_file():
                found.append(path)
        except OSError:
            continue
    return found


def _sweep() -> None:
    """Removes what try-outs have left that were killed: their locks are free."""
    for path in _ours():
        lock = _locked(path / LOCK)
        if lock >= 0:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: Path, *, create: bool = False) -> int:
    """A descriptor that has the lock; -1: another process has it."""
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor
