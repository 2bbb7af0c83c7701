"""Which storage directory this is, and how far it has come: the file `node-identity` of a node of a cluster.

    <directory>/node-identity       identity, generation, the identity that it has replaced; a line each

What the cluster has on record of a node's last directory is compared with this file (cluster/claim.py), which tells an
old copy of a directory from the directory. So the file goes ahead: it is on the medium with a new generation before the
cluster hears of that, and whatever a loss of power takes, the directory itself is never behind the record.
"""
from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from pathlib import Path

from fluxmq._core.errors import CorruptError, StorageError
from fluxmq.storage.files import SYSTEM, FileOps
from fluxmq.storage.reading import close_quietly, read_whole

__all__ = ["NodeIdentity"]

NAME = "node-identity"


class NodeIdentity:
    """cluster.ports.OwnStorage. To be made and used while the lock of the directory is held. directory: exists.
    new_identity: of a directory that has none; 32 hexadecimal digits. Raises StorageError, CorruptError."""

    def __init__(self, directory: Path, ops: FileOps = SYSTEM,
                 new_identity: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self.path = directory / NAME
        self.generation = 0
        self.replaces = ""
        self._ops = ops
        self.identity = self._read() or new_identity()

    def _read(self) -> str:
        """The identity; "": there is none yet."""
        if not self._ops.exists(self.path):
            return ""
        try:
            lines = bytes(read_whole(self.path, self._ops)).decode("ascii").split("\n")
            if len(lines) > 1:
                self.generation, self.replaces = int(lines[1]), lines[2]
        except OSError as error:
            raise StorageError(f"cannot read {self.path}: {error}") from error
        except (ValueError, IndexError) as error:
            raise CorruptError(f"{self.path} does not hold what was written to it ({error}): its disk is damaged. Put "
                               f"the file back, or give this node an empty storage.dir") from None
        return lines[0]     # earlier versions wrote this line alone, and a loss of power may have left none of it

    def advance(self, generation: int, replaces: str | None = None) -> None:
        """The directory is of this generation from now on, on the medium when this returns. replaces: the identity of
        the directory whose place it takes; None: as before. May wait for the disk. Raises StorageError."""
        replaces = self.replaces if replaces is None else replaces
        ops, draft = self._ops, self.path.with_suffix(".new")
        try:
            with contextlib.suppress(FileNotFoundError):
                ops.unlink(draft)
            fd = ops.open(draft, True)
            try:
                ops.pwrite(fd, f"{self.identity}\n{generation}\n{replaces}\n".encode("ascii"), 0)
                ops.fsync(fd)
            finally:
                close_quietly(fd, ops)
            ops.rename(draft, self.path)
            ops.sync_directory(self.path.parent)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error}") from error
        self.generation, self.replaces = generation, replaces
