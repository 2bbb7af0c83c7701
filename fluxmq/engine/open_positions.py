"""Positions of a commit line whose changes are decided in any order: by an answer from another node, or from etcd. The
line itself commits in order."""
from __future__ import annotations

from collections import deque

from fluxmq._core.memory.commits import Line
from fluxmq.model.mqtt import ReasonCode

__all__ = ["OpenPositions"]


class OpenPositions:
    """Machine. line: nobody else gives to it. What waits for a position leaves when that one and all before it are
    decided."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._open: deque[int] = deque()
        self._decided = set[int]()  # those of them that are, behind others that are not

    def __len__(self) -> int:
        """How many are not decided, or wait for one before them."""
        return len(self._open)

    def give(self) -> int:
        """A position for one more change."""
        position = self.line.give()
        self.line.submit()
        self._open.append(position)
        return position

    def decide(self, position: int, why: str | None = None, code: int = ReasonCode.UNSPECIFIED_ERROR) -> None:
        """why: the change has no effect, and whoever waits for it is refused with this reason. Does nothing if it is
        decided already."""
        if not self._open or position < self._open[0] or position in self._decided:
            return
        if why is not None:
            self.line.refuse(position, code, why)
        self._decided.add(position)
        upto = 0
        while self._open and self._open[0] in self._decided:
            upto = self._open.popleft()
            self._decided.discard(upto)
        if upto:
            self.line.commit(upto)

    def decide_all(self) -> None:
        """Nobody waits any longer."""
        upto = self._open[-1] if self._open else 0
        self._open.clear()
        self._decided.clear()
        if upto:
            self.line.commit(upto)
