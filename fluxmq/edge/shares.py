"""Splits a large request into shares, so that other clients are served in between: ten thousand filters of a SUBSCRIBE,
a hundred thousand consumers of a channel that closes."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["STEPS_MAX", "Shares"]

STEPS_MAX = 500  # in one turn of the loop: some milliseconds


class Shares:
    """Machine. later: schedules a call after some seconds."""

    def __init__(self, later: Callable[[float, Callable[[], None]], Any]) -> None:
        self._later = later
        self._going: deque[Iterator[None]] = deque()
        self._left = STEPS_MAX  # in this turn
        self._waits = False  # a call for the next turn is scheduled
        self._runs = False

    def begin(self, steps: Iterator[None]) -> bool:
        """Runs the steps, after those that began earlier, as far as this turn's share allows. Returns whether all of
        them have been run."""
        self._going.append(steps)
        self._go_on()
        return steps not in self._going

    def finish(self) -> None:
        """Runs all remaining steps at once, because the node stops."""
        while self._going:
            self._left = STEPS_MAX
            self._go_on()

    def _go_on(self) -> None:
        if self._runs:  # a step may end something that begins steps itself
            return
        self._runs = True
        try:
            while self._going and self._left:
                self._left -= 1
                if next(self._going[0], self) is self:
                    self._going.popleft()
        finally:
            self._runs = False
            if not self._waits:
                self._waits = True
                self._later(0, self._turn)

    def _turn(self) -> None:
        self._waits = False
        self._left = STEPS_MAX
        if self._going:
            self._go_on()
