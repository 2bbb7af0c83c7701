"""How long who leaves waits for deliveries that the recording had it settle: as long as they come close together."""
from __future__ import annotations

from collections.abc import Callable

__all__ = ["GRACE_S", "Grace"]

GRACE_S = 1.0               # between two deliveries, and from the wish to leave to the first


class Grace:
    """clock: ns."""

    __slots__ = ("_asked", "_came", "_clock")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._came = 0          # when the last delivery came
        self._asked = 0         # when it wanted to leave; 0: it does not

    def came(self) -> None:
        """A delivery did."""
        self._came = self._clock()

    def left_s(self, waits: bool) -> float:
        """Seconds for which leaving has to wait still; 0: it may leave. waits: whether there is something to come."""
        if waits:
            self._asked = self._asked or self._clock()
            left = GRACE_S - (self._clock() - max(self._came, self._asked)) / 1e9
            if left > 0:
                return left
        self._asked = 0
        return 0.0
