"""Tickets for answers that wait until the metadata store has something, which answers in any order."""
from __future__ import annotations

from collections import deque

from fluxmq._core.memory.commits import Line
from fluxmq.engine.open_positions import OpenPositions

__all__ = ["StoreTickets"]


class StoreTickets:
    """line: whose positions they are; nobody else gives to it. limit_s: how long an answer waits at most."""

    def __init__(self, line: Line, limit_s: float) -> None:
        self._positions = OpenPositions(line)
        self._limit_s = limit_s
        self._since: deque[tuple[int, float]] = deque()  # (ticket, when it was given); some are decided

    def give(self, now: float) -> int:
        """A ticket for what is being answered. now: by the clock of `expire`."""
        ticket = self._positions.give()
        self._since.append((ticket, now))
        return ticket

    def decide(self, ticket: int) -> None:
        """An answer waits for this no longer. 0: for nothing."""
        self._positions.decide(ticket)
        if not self._positions:
            self._since.clear()

    def release(self) -> None:
        """No answer waits any longer. What was waited for is decided later, and nobody hears of it."""
        self._positions.decide_all()
        self._since.clear()

    def expire(self, now: float) -> None:
        """Gives up those that have waited for too long: their clients get an error."""
        while self._since and self._since[0][1] + self._limit_s <= now:
            self._positions.decide(self._since.popleft()[0], "etcd did not answer in time")
