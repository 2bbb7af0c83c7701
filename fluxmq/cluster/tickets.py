"""Tickets for answers that wait until the metadata store has something: positions of a commit line, which commits in
order, although the store answers in any.
"""
from __future__ import annotations

from collections import deque

from fluxmq._core.memory.commits import Line

__all__ = ["Tickets"]


class Tickets:
    """line: whose positions they are; nobody else gives to it. limit_s: how long an answer waits at most."""

    def __init__(self, line: Line, limit_s: float) -> None:
        self._line = line
        self._limit_s = limit_s
        self._waiting: deque[tuple[int, float]] = deque()  # (ticket, when it was given), those that are not decided
        self._decided: set[int] = set()

    def give(self, now: float) -> int:
        """A ticket for what is being answered. now: by the clock of `expire`."""
        ticket = self._line.give()
        self._line.submit()             # each is decided by itself
        self._waiting.append((ticket, now))
        return ticket

    def decide(self, ticket: int) -> None:
        """An answer waits for this no longer. 0: for nothing."""
        if ticket and self._waiting and ticket >= self._waiting[0][0]:
            self._decided.add(ticket)
        upto = 0
        while self._waiting and self._waiting[0][0] in self._decided:
            upto, _ = self._waiting.popleft()
            self._decided.discard(upto)
        if upto:
            self._line.commit(upto)

    def release(self) -> None:
        """No answer waits any longer. What was waited for is decided later, and nobody hears of it."""
        upto = self._waiting[-1][0] if self._waiting else 0
        self._waiting.clear()
        self._decided.clear()
        if upto:
            self._line.commit(upto)

    def expire(self, now: float) -> None:
        """Gives up those that have waited for too long: their clients get an error."""
        while self._waiting and self._waiting[0][1] + self._limit_s <= now:
            ticket = self._waiting.popleft()[0]
            if ticket not in self._decided:
                self._line.give_up("etcd did not answer in time", ticket)
            self._decided.discard(ticket)
