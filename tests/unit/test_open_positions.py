"""Positions of a commit line that are decided in any order."""
from __future__ import annotations

import pytest

from fluxmq._core.hub.hub import Hub
from fluxmq._core.testing.commits_probe import WaitingLink, release
from fluxmq.engine.open_positions import OpenPositions


class World:
    """Each change has an answer that waits for it."""

    def __init__(self, count: int) -> None:
        self.hub = Hub(None)
        self.positions = OpenPositions(self.hub.commits.open_line("etcd"))
        self.links: list[WaitingLink] = []
        self.given: list[int] = []
        for number in range(count):
            since = self.hub.commits.mark
            self.given.append(self.positions.give())
            self.links.append(WaitingLink(self.hub))
            assert self.links[-1].answer(number + 1, since)

    def left(self) -> list[list[str | None]]:
        release(self.hub)
        for link in self.links:
            link.look()
        return [[why for _, why in link.left] for link in self.links]


def test_an_answer_leaves_when_all_before_it_are_decided() -> None:
    world = World(3)
    world.positions.decide(world.given[2])
    world.positions.decide(world.given[1])
    assert world.left() == [[], [], []] and len(world.positions) == 3
    world.positions.decide(world.given[0])
    assert world.left() == [[None], [None], [None]] and not world.positions


def test_what_is_refused_refuses_its_own_answer_only() -> None:
    world = World(3)
    world.positions.decide(world.given[1], "it is late")
    world.positions.decide(world.given[1])                  # it is decided already
    for position in (0, world.given[0], world.given[2]):    # 0: nothing
        world.positions.decide(position)
    assert world.left() == [[None], ["it is late"], [None]]


@pytest.mark.parametrize("decided", [[], [1], [0, 2]])
def test_all_are_decided_at_once(decided: list[int]) -> None:
    world = World(3)
    for at in decided:
        world.positions.decide(world.given[at])
    world.positions.decide_all()
    world.positions.decide_all()
    assert world.left() == [[None], [None], [None]] and not world.positions
    since = world.hub.commits.mark
    position = world.positions.give()
    assert world.links[0].answer(9, since)
    world.positions.decide(position)
    assert world.left()[0] == [None, None]
