"""A wall clock that jumps: what was to wait for a while waits that long, whatever the clock says meanwhile.

Durations that are kept as points in time (backoffs, because they outlive a restart; idle times, retention's next look)
move with the clock. What is a point in time by its nature (message expiry, `not-before`, a stream's age) goes by the
clock as it is. Leases are on the monotonic clock, which does not jump.
"""
from __future__ import annotations

from fluxmq.engine.queues import QueueManager

__all__ = ["JUMP_MS", "ClockFollower"]

JUMP_MS = 5000  # more between two ticks than any correction of a clock that is kept by NTP


class ClockFollower:
    """Machine. See above."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._lead: int | None = None  # wall clock minus monotonic, ms

    def tick(self) -> None:
        """Before anything that is due is looked for."""
        hub = self._manager.hub
        lead = hub.now_ms - hub.mono_ms
        jumped = lead - self._lead if self._lead is not None else 0
        if self._lead is not None and abs(jumped) < JUMP_MS:
            return  # small ones add up until they are one
        self._lead = lead
        if not jumped:
            return
        self._manager.log("warning", "", "the clock jumped", {"seconds": jumped / 1000})
        for state in self._manager.queues.values():
            state.idle_since_ms += jumped
            state.retention_due_ms += jumped
            for group in state.groups.values():
                group.shift_waiting(jumped)
