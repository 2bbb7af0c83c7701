"""Keeps the steady clock across restarts, and handles a wall clock that is set while the broker runs.

Deadlines use the steady clock (_core/memory/node.pxd). While the broker runs it advances with elapsed time; across a
restart only the wall clock knows how much time has passed. So every batch of the journal records both clocks (CLOCK
records, Ledger.submit), each checkpoint writes the latest pair to the view, and a start continues from it:

    steady clock now = steady clock then + (wall clock now - wall clock then), and never less than it was then

The age of a message in a stream is derived from its timestamp, which is wall time. So changes of the wall clock are
remembered (`stamp_of_age`): setting it forward makes no message older.

So setting the wall clock while the broker runs moves no deadline. A directory without recorded clocks is of a version
whose deadlines used the wall clock: there the steady clock starts as the wall clock.
"""
from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub

__all__ = ["CLOCK_KEY", "SteadyClock"]

CLOCK_KEY = b"c"
SET_MS = 20  # two clocks read one after the other agree within this time, unless one of them was set in between
STEPS_MAX = 64  # changes of the wall clock that are kept one by one; older ones are merged into one
LOGGED_MS = 5000  # smaller changes are corrections that are not worth a log line


class SteadyClock:
    """Machine. hub: the hub whose clock this is. on_log: called with (level, cause, text, fields)."""

    def __init__(self, hub: Hub, on_log: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        self._hub = hub
        self._log = on_log
        self._last: tuple[int, int] | None = None  # steady and wall clock of the latest batch on disk
        self._lead: int | None = None  # steady clock minus wall clock, as recorded on disk
        self._steps: list[tuple[int, int]] = []  # (end by the steady clock, lead until then), oldest first

    # ------------------------------------------------------------------ recovery

    def load(self, value: bytes) -> None:
        """Reads the clocks of the view. Raises CorruptError."""
        try:
            last, *steps = struct.iter_unpack(">qq", value)
        except (struct.error, ValueError):
            raise CorruptError(f"the store's clock has {len(value)} bytes: it was written by a newer version") from None
        self._last, self._steps = (last[0], last[1]), [(until, lead) for until, lead in steps]

    def replay(self, steady_ms: int, body: bytes) -> None:
        """Applies one CLOCK record of the journal. Raises CorruptError."""
        try:
            self._seen(steady_ms, *struct.unpack(">q", body))
        except struct.error:
            raise CorruptError(f"the journal has a CLOCK record of {8 + len(body)} bytes") from None

    def _seen(self, steady_ms: int, wall_ms: int) -> None:
        """Keeps the latest pair: the view may be newer than a batch that is replayed on top of it."""
        if self._last is None or steady_ms >= self._last[0]:
            if self._last is not None:
                self._moved(self._last[0] - self._last[1], steady_ms - wall_ms, steady_ms)
            self._last = steady_ms, wall_ms

    def _moved(self, before: int, now: int, steady_ms: int) -> None:
        """Remembers that the lead changed."""
        if abs(now - before) <= SET_MS:
            return
        self._steps.append((steady_ms, before))
        if len(self._steps) > STEPS_MAX:
            (_, first), (until, second) = self._steps[:2]
            self._steps[:2] = [(until, max(first, second))]

    def resume(self) -> None:
        """Continues the clock when everything has been read and before anything is due."""
        if self._last is None:
            return
        steady_ms, wall_ms = self._last
        if self._hub.now_ms + LOGGED_MS < wall_ms:
            self._log("warning", "", "the clock was set back while the broker was down; deadlines continue as if no "
                      "time had passed", {"seconds": (self._hub.now_ms - wall_ms) / 1000})
        self._hub.resume_clock(steady_ms, wall_ms)
        self._lead = steady_ms - wall_ms

    # ------------------------------------------------------------------ running

    def export(self) -> tuple[bytes, bytes]:
        """The row for the view, written with the rest of a checkpoint."""
        now = self._hub.steady_ms
        return CLOCK_KEY, b"".join(struct.pack(">qq", *pair) for pair in
                                   [(now, now + self._hub.wall_lead_ms), *self._steps])

    def stamp_of_age(self, age_ms: int) -> int:
        """The wall-clock time before which every time stamp is older than `age_ms`, whatever the wall clock was set to
        since. Until a change of the clock is itself that old, some messages that are older have later time stamps."""
        since = self._hub.steady_ms - age_ms
        leads = [lead for until, lead in self._steps if until > since]
        return since - max([*leads, self._hub.steady_ms - self._hub.now_ms])

    def tick(self) -> None:
        """Detects that the wall clock was set, and records it at once, because no other batch may follow before the
        next start. Raises StorageError."""
        hub = self._hub
        lead = hub.steady_ms - hub.now_ms
        if self._lead is not None and abs(lead - self._lead) <= SET_MS:
            return
        first, moved = self._lead is None, (self._lead or 0) - lead
        if self._lead is not None:
            self._moved(self._lead, lead, hub.steady_ms)
        self._lead = lead
        if not first and abs(moved) >= LOGGED_MS:
            self._log("warning", "", "the wall clock was set; deadlines are not affected",
                      {"seconds": moved / 1000})
        if hub.durable and (lead or not first):
            hub.ledger.write_clock()
