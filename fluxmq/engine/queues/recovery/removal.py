"""Removal of log files: only after a deletion that is recorded on disk, never because a file is unknown.

    log ended ──view: `l` deleted, `x` written──► files and directory deleted ──synced, next view: `x` deleted──► done
    `first` advanced ──view: `l` updated──► files below `first` deleted

A start that finds an `x` finishes the removal before it reads any file. If neither view nor journal names a log with
files, one of them has lost data and the files are the only copy: they are moved aside and kept.
"""
from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from fluxmq._core.errors import CorruptError
from fluxmq.engine.ports.store import SegmentFiles

__all__ = ["LogRemoval", "view_key"]


def view_key(kind: str, number: int) -> bytes:
    """The key of something numbered in the view; kind: a letter, see store.py. Of a copy (f) the group is in front of
    the number, as bits 64 to 95."""
    return kind.encode() + number.to_bytes(12 if kind == "f" else 8, "big")


class LogRemoval:
    """Machine. segments: None has no files. Methods named "remove…" run in an executor's thread."""

    def __init__(self, segments: SegmentFiles | None) -> None:
        self.named: set[int] = set()  # logs in view or journal, also ended ones; until settled
        self._segments = segments
        self._unwanted: dict[int, int] = {}  # by log: below this offset its files are deleted, once the view has it
        self._unremoved: set[int] = set()  # ended logs whose files are deleted once the view has their `x`
        self._going: set[int] = set()  # those of them whose `x` is in the view, or in the next checkpoint
        self._removed: set[int] = set()  # those whose files were deleted: the next checkpoint deletes the `x`
        self._aside: Mapping[int, Any] = {}
        self.damaged: dict[int, CorruptError] = {}  # logs whose files could not be opened, and why

    # ------------------------------------------------------------------ at start

    def load(self, number: int) -> None:
        """Reads an `x` of the view."""
        self._going.add(number)
        self._removed.add(number)

    def open(self, expect: Mapping[int, range]) -> dict[int, Any]:
        """Opens the segments, as SegmentFiles.open() does; the view is read. `damaged` has what could not be opened."""
        if self._segments is None:
            return {}
        files = dict(self._segments.open(expect, self._removed, self.damaged.__setitem__))
        self._aside = self._segments.aside()
        return files

    @property
    def number_last(self) -> int:
        """The highest number of logs that were set aside; numbers up to it are not used again."""
        return max([*self._aside, *self.damaged], default=0)

    def settle(self, files: Mapping[int, Any], known: Container[int],
               on_log: Callable[[str, str, str, dict[str, Any]], None]) -> list[int]:
        """Finishes recovery when everything is replayed. files: result of open(). known: logs of queues. Returns the
        logs that have ended since the view was written; unknown ones are set aside and reported."""
        for number, path in self._aside.items():
            on_log("warning", "", f"messages that no queue has are still kept in {path}; remove it when they are not "
                                  f"needed any more", {"log": f"{number:016x}"})
        unowned = [number for number in [*files, *self.damaged] if number not in known]
        ended = [number for number in unowned if number in self.named]
        for number in [number for number in unowned if number not in self.named]:
            assert self._segments is not None
            path = self._segments.set_aside(number)
            if path is None:
                on_log("error", "", f"the state has a log that no queue has, and its files are gone: "
                                    f"{self.damaged[number]}", {"log": f"{number:016x}"})
                continue
            on_log("error", "", (
                f"there are messages of a log that neither the stored state nor the journal knows: they are kept in "
                f"{path}, and the state has probably lost a queue. Restore the storage directory from a copy; or, to "
                f"see them, stop the broker, rename that directory to {path.stem} and run `fluxmq log dump "
                f"{path.parent.parent} --log {path.stem}`"),
                {"log": f"{number:016x}"} | ({"messages": files[number].messages} if number in files else
                                             {"damage": str(self.damaged[number])}))
        self.named.clear()
        return ended

    # ------------------------------------------------------------------ in a checkpoint

    def end(self, number: int) -> None:
        """Marks a log as ended for the next export."""
        self._unremoved.add(number)

    def export(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Changes for the view: (puts, deletes)."""
        if self._segments is not None:
            self._going.update(number for number in self._unremoved if self._segments.holds(number))
        return ([(view_key("x", number), b"") for number in self._going - self._removed],
                [view_key("x", number) for number in self._removed])

    def moved(self, number: int, first: int) -> None:
        """Notes for the view that this log begins here now."""
        self._unwanted[number] = first

    def written(self) -> None:
        """Called when the view has what was exported, after the segments were synced."""
        self._going -= self._removed
        self._removed.clear()

    def remove(self) -> None:
        """Deletes files after written(). Raises StorageError; it may be called again for the rest."""
        if self._segments is None:
            return
        for number in sorted(self._unremoved):
            self._segments.remove(number)
            if number in self._going:
                self._removed.add(number)
            self._unremoved.discard(number)
        while self._unwanted:
            number, first = next(iter(self._unwanted.items()))
            self._segments.trim(number, first)
            del self._unwanted[number]
