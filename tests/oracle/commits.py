"""What waits for commit lines, as a list that is searched from the front for each event."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["CommitOracle", "Waiting"]


@dataclass
class Waiting:
    """One answer (ordered), or one that is told (behind nobody). tickets: (line, position). elders: those of its link
    that it must not overtake. bounds: line → position; when all of these are decided it must have left."""

    number: int
    link: int
    ordered: bool
    tickets: set[tuple[int, int]]
    elders: list[Waiting]
    bounds: dict[int, int] = field(default_factory=dict)
    left: bool = False


class CommitOracle:
    """decided: line → position up to which all is decided. given_up: of each line."""

    def __init__(self) -> None:
        self.decided: dict[int, int] = {}
        self.given_up: set[tuple[int, int]] = set()
        self.all: dict[int, Waiting] = {}

    def wait(self, number: int, link: int, tickets: Iterable[tuple[int, int]], gathering: dict[int, int], *,
             ordered: bool) -> Waiting:
        """gathering: line → the position that the newest wait in it may have."""
        elders = [one for one in self.all.values() if one.link == link and not one.left] if ordered else []
        one = Waiting(number, link, ordered, set(tickets), elders)
        lines = {line for line, _ in one.tickets}.union(*(elder.bounds for elder in elders))
        one.bounds = {line: max([gathering[line], *(elder.bounds[line] for elder in elders if line in elder.bounds)])
                      for line in lines}
        self.all[number] = one
        return one

    def may_leave(self, one: Waiting) -> bool:
        return all(self.decided[line] >= position for line, position in one.tickets) and all(
            elder.left for elder in one.elders)

    def must_leave(self, one: Waiting) -> bool:
        return all(self.decided[line] >= position for line, position in one.bounds.items())

    def refused(self, one: Waiting) -> bool:
        return not one.tickets.isdisjoint(self.given_up)
