"""Delays between attempts. Not tenacity, which calls what it retries: the client needs only the delays."""
from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from fluxmq._core.errors import UsageError

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between attempts to connect: initial_s, then multiplier times as long each time, up to max_s.

    jitter: the random part of each delay, 0 to 1, so that clients that lost their connections together do not reconnect
    together. attempts: failed attempts in a row after which the client gives up, of several addresses the
    rounds of all of them; None: unlimited. Raises UsageError for invalid values.
    """

    initial_s: float = 0.1
    max_s: float = 30.0
    multiplier: float = 2.0
    jitter: float = 0.5
    attempts: int | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.initial_s <= self.max_s and self.multiplier >= 1 and 0 <= self.jitter <= 1):
            raise UsageError(f"a Backoff has 0 <= initial_s <= max_s, multiplier >= 1, jitter from 0 to 1: {self}")
        if self.attempts is not None and self.attempts < 1:
            raise UsageError(f"attempts must be at least 1, or None for any number, not {self.attempts}")

    def delays(self, chance: random.Random | None = None) -> Iterator[float]:
        """The delays before the second attempt, the third, …; ends after the last attempt."""
        draw = (chance or random).random
        delay = self.initial_s
        made = 1
        while self.attempts is None or made < self.attempts:
            yield delay * (1 - self.jitter * draw())
            delay = min(delay * self.multiplier, self.max_s)
            made += 1
