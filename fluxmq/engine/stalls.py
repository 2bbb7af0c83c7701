"""A disk that stands still: for how long the journal has waited for it.

An error of the disk ends the node, and a lack of space is waited for (_core/disk/journal.pyx). A system call that does
not return is neither: what was to be confirmed waits, and nothing says so. This looks, and says so.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxmq._core.disk.journal import JOURNAL_OK, Journal

__all__ = ["SLOW_S", "Stalls"]

SLOW_S = 5.0  # from then on an operator is told
# What counts between two looks at most. If this process itself has stood still, that says nothing of the disk.
LOOK_S_MAX = 1.0


class Stalls:
    """Machine. journal: None if nothing is stored on disk. now: seconds of a steady clock. on_log: as Broker's.

    seconds: for how long the disk has not completed what the journal has given it, as of the last look(). Time in which
    there is no space does not count.
    """

    def __init__(self, journal: Journal | None, now: Callable[[], float],
                 on_log: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        self.seconds = 0.0
        self._journal = journal
        self._now = now
        self._log = on_log
        self._looked = now()
        self._durable = 0
        self._told = False

    @property
    def problem(self) -> str:
        """In a sentence; "": the disk completes what it is given."""
        if self.seconds < SLOW_S:
            return ""
        return (f"the disk has not completed a write of the journal for {self.seconds:.0f} s: nothing that needs the "
                f"disk is confirmed meanwhile")

    def look(self) -> None:
        """To be called several times a second."""
        journal = self._journal
        if journal is None:
            return
        now = self._now()
        passed, self._looked = min(now - self._looked, LOOK_S_MAX), now
        if journal.durable != self._durable or journal.status != JOURNAL_OK or not journal.backlog():
            self._durable = journal.durable
            if self._told:
                self._told = False
                self._log("info", "", "the disk completes writes again", {"seconds": round(self.seconds, 1)})
            self.seconds = 0.0
            return
        self.seconds += passed
        if self.problem and not self._told:
            self._told = True
            self._log("warning", "", self.problem, {})
