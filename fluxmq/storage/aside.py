"""A storage directory begins anew: what is in it is kept beside, for whoever wants to look through it.

    <directory>/former-1/{journal,state,queues,node-identity}      `fluxmq log` reads it like a storage directory

The identity goes last: a process that dies in the middle leaves a directory that is still recognised as the old one.
The journal goes first: a view without a journal is a whole state, a journal without the view is not.
"""
from __future__ import annotations

import contextlib
from pathlib import Path

from fluxmq._core.errors import StorageError
from fluxmq.storage.files import SYSTEM, FileOps
from fluxmq.storage.node_identity import NAME as IDENTITY

__all__ = ["set_storage_aside"]

ORDER = ("journal", "state", "queues", IDENTITY)


def set_storage_aside(directory: Path, ops: FileOps = SYSTEM) -> Path:
    """To be called while its lock is held and no store is open. Returns where it is now: a former attempt that was
    broken off is gone on with. Raises StorageError."""
    number = 1
    try:
        while ops.exists(directory / f"former-{number}" / IDENTITY):
            number += 1
        aside = directory / f"former-{number}"
        if not ops.exists(aside):
            ops.mkdir(aside)
        for name in ORDER:
            if name == IDENTITY:        # all else is there for good before
                ops.sync_directory(aside)
                ops.sync_directory(directory)
            if ops.exists(directory / name):
                with contextlib.suppress(FileNotFoundError):
                    ops.rename(directory / name, aside / name)
        ops.sync_directory(aside)
        ops.sync_directory(directory)
    except OSError as error:
        raise StorageError(f"cannot set aside what is in {directory}: {error}") from error
    return aside
