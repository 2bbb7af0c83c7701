"""Queues while the disk is full, or the journal lacks another resource: they refuse new messages, so that the stored
ones can be consumed and settled.

When the journal finds no space, the reserve is freed for claims, settlements, dead letters and sessions, and durable
queues refuse publishes (0x97) until the reserve can be allocated again. A settlement needs a few bytes of the journal
and frees those of its message. The reserve is allocated with the first durable queue; a node without queues has none.
While the disk is full, retired journal files are not kept for reuse, and the journal writes no zeros ahead.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fluxmq._core.disk.journal import JOURNAL_FULL
from fluxmq.engine.ports.driver import Driver, Work
from fluxmq.engine.queues.manager import QueueManager

__all__ = ["QueueSpace", "SpaceReserve"]


class SpaceReserve(Protocol):
    """`fluxmq.storage.reserve.Reserve` is one."""

    def take(self) -> bool:
        """Allocates the reserve; False: there is not enough space. Blocks; raises OSError."""

    def give(self) -> None:
        """Frees the reserve. Blocks."""


class QueueSpace:
    """Machine. driver: runs the blocking steps. retry_ms: between two attempts to take the reserve again."""

    def __init__(self, manager: QueueManager, reserve: SpaceReserve, driver: Driver,
                 on_log: Callable[[str, str, str, dict[str, Any]], None], retry_ms: int = 1000) -> None:
        self._manager = manager
        self._ledger = manager.hub.ledger
        self._reserve = reserve
        self._log = on_log
        self._retry_ms = retry_ms
        self._held = False
        self._due_ms = 0
        self._reported = ""
        self._driver = driver
        self._task: Work[bool] | None = None

    @property
    def full(self) -> bool:
        """Whether publishes to durable queues are refused."""
        return self._ledger.full

    @property
    def why(self) -> str:
        """The resource that is short, while `full`."""
        return self._ledger.full_why or ""

    def tick(self) -> None:
        """Called on each tick of the clock."""
        journal, now = self._ledger.journal, self._manager.hub.mono_ms
        if journal is None or not self._manager.durables:
            return
        if self._task is not None:
            if not self._task.done():
                return
            self._taken(self._task)
            self._task = None
        if journal.status == JOURNAL_FULL:
            if self._held:
                self._held = False
                self._reserve.give()
            self._refuse(journal.shortage)
            self._due_ms = now + self._retry_ms
        elif not self._held and now >= self._due_ms:
            self._due_ms = now + self._retry_ms
            self._task = self._driver.blocking(self._reserve.take)

    async def stop(self) -> None:
        """Waits for a running reservation; its failure does not matter any more."""
        task, self._task = self._task, None
        if task is not None:
            await self._driver.end_of(task)
            task.exception()

    def _taken(self, task: Work[bool]) -> None:
        error = task.exception()
        if error is not None:
            # The error is not a lack of space, so it is no reason to refuse anything: the reserve matters only once the
            # disk is full.
            if str(error) != self._reported:
                self._reported = str(error)
                self._log("warning", "", "no space can be reserved for a full disk", {
                    "why": str(error)})
            self._take()
        elif task.result():
            self._held, self._reported = True, ""
            self._take()
        else:
            self._refuse("the disk is full: no space for the reserve")

    def _take(self) -> None:
        if self._ledger.full:
            self._ledger.full = False
            assert self._ledger.journal is not None
            self._ledger.journal.recycling = True
            self._log("warning", "", "there is space again: queues take messages", {})

    def _refuse(self, why: str) -> None:
        self._ledger.full_why = why
        if not self._ledger.full:
            self._ledger.full = True
            assert self._ledger.journal is not None
            self._ledger.journal.recycling = False
            self._log("error", "", f"publishes to queues are refused: {why}", {})
