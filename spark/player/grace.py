"""How long a leaving client waits for deliveries that it settled in the recording: as long as they follow closely."""
from __future__ import annotations

from collections.abc import Callable

__all__ = ["GRACE_S", "Grace"]

GRACE_S = 1.0               # between two deliveries, and from the request to leave to the first


class Grace:
    """clock: ns."""

    __slots__ = ("_came", "_clock", "_leave_at")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._came = 0          # time of the last delivery
        self._leave_at = 0         # time of the request to leave; 0: none

    def came(self) -> None:
        """Called for each delivery."""
        self._came = self._clock()

    def left_s(self, waits: bool) -> float:
        """Seconds that leaving must still wait; 0: none. waits: whether a delivery is expected."""
        if waits:
            self._leave_at = self._leave_at or self._clock()
            left = GRACE_S - (self._clock() - max(self._came, self._leave_at)) / 1e9
            if left > 0:
                return left
        self._leave_at = 0
        return 0.0
