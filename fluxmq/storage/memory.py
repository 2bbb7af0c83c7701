"""The state store in memory: for brokers without persistence and for tests of the rings above.

It keeps what was checkpointed for as long as the object lives, so a broker that is stopped and started on the same
object finds its state, as it would on disk.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fluxmq._core.disk.journal import Journal
from fluxmq._core.errors import UsageError

__all__ = ["MemoryStore"]


class MemoryStore:
    """`engine.ports.store.StateStore` without a disk: no journal, a dict for the view."""

    def __init__(self) -> None:
        self._view: dict[bytes, bytes] = {}
        self._applied = 0
        self._open = False

    @property
    def path(self) -> Path | None:
        """Always None."""
        return None

    @property
    def journal(self) -> Journal | None:
        """Always None: acks leave at once."""
        return None

    @property
    def applied(self) -> int:
        """The number given to the last checkpoint."""
        return self._applied

    def start(self) -> None:
        """Nothing is locked or read. Raises UsageError if the store is open."""
        if self._open:
            raise UsageError("the store is open already")
        self._open = True

    def load(self) -> Iterator[tuple[bytes, bytes]]:
        """The view as of this moment, in key order."""
        self._check_open()
        return iter(sorted(self._view.items()))

    def replay(self, after: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Nothing: there is no journal."""
        self._check_open()
        return iter(())

    async def checkpoint(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> None:
        """As the port says; any `upto` counts as durable."""
        self._check_open()
        if upto < self._applied:
            raise UsageError(f"a checkpoint at batch {upto} would fall behind the view at {self._applied}")
        changes, gone = dict(puts), list(deletes)
        self._view.update(changes)
        for key in gone:
            self._view.pop(key, None)
        self._applied = upto

    def close(self) -> None:
        """Keeps the view. May be called twice."""
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise UsageError("the store is not open: call start() first")
