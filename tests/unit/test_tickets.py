"""Answers that are made in several turns: they wait for what their own steps gave to commit lines."""
from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from kit.watch import grown

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.commits import Commits, Line
from fluxmq._core.memory.tickets import Tickets
from fluxmq._core.pubsub.session import Session
from fluxmq._core.testing.commits_probe import WaitingLink, end_turn, release
from fluxmq._core.testing.probes import live_objects


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    gc.collect()
    before = live_objects()
    yield
    gc.collect()
    assert not grown(before, live_objects())


class World:
    """Two lines, of which `stuck` stands still unless a test says otherwise, and a connection that works over turns."""

    def __init__(self) -> None:
        self.hub = Hub(None)
        self.stuck = self.hub.commits.open_line("stuck")
        self.quick = self.hub.commits.open_line("quick")
        self.link = WaitingLink(self.hub)
        self.tickets = Tickets(self.hub.commits)

    def step(self, *lines: Line) -> None:
        with self.tickets:
            for line in lines:
                line.give()

    def turn(self, *committed: Line) -> None:
        """Everything is submitted, and these lines commit it."""
        for line in (self.stuck, self.quick):
            position = line.submit()[0]
            if line in committed and position:
                line.commit(position)
        release(self.hub)
        end_turn(self.hub)

    def left(self) -> list[tuple[int, str | None]]:
        self.link.look()
        return self.link.left


def test_it_waits_for_no_line_that_others_use() -> None:
    """Neither for one that stood still before it began, nor for what others give meanwhile."""
    world = World()
    world.stuck.give()
    for _ in range(3):
        world.step(world.quick)
        world.stuck.give()
        world.turn(world.quick)
    assert world.link.answer_all(1, world.tickets) is False
    assert world.left() == [(1, None)]


def test_it_waits_for_every_step() -> None:
    world = World()
    world.step(world.stuck)
    world.turn()
    world.step(world.quick)
    world.turn(world.quick)
    world.step(world.stuck)
    world.turn()
    assert world.link.answer_all(1, world.tickets)
    world.stuck.commit(1)
    release(world.hub)
    assert world.left() == []
    world.stuck.commit(2)
    release(world.hub)
    assert world.left() == [(1, None)] and world.hub.commits.waiting == 0


def test_steps_of_one_turn_have_one_wait() -> None:
    world = World()
    for _ in range(5):
        world.step(world.quick, world.stuck)
    assert world.hub.commits.waiting == 2
    world.turn(world.quick, world.stuck)
    assert world.hub.commits.waiting == 0
    assert world.link.answer_all(1, world.tickets) is False


def test_what_was_given_up_while_it_worked_refuses_it() -> None:
    """Also when the line has given up so much since that it does not know any more."""
    world = World()
    world.step(world.quick)
    world.turn()
    for _ in range(3000):
        world.quick.give_up("it has no leader")
        release(world.hub)
        world.quick.give()
    world.step(world.stuck)
    assert world.tickets.why == "it has no leader"
    assert world.link.answer_all(1, world.tickets) is None
    called: list[str | None] = []
    world.hub.when_decided(lambda: called.append(None), world.tickets, called.append)
    world.hub.when_decided(lambda: called.append(None), world.tickets)
    assert called == ["it has no leader"]


def test_what_others_gave_in_between_refuses_it_not() -> None:
    world = World()
    world.step(world.stuck)
    world.turn()
    world.stuck.give()              # position 2 is not its own
    world.turn()
    world.step(world.stuck)
    world.turn()
    assert world.link.answer_all(1, world.tickets)
    world.stuck.refuse(2, 0x97, "the queue is full")
    world.stuck.commit(3)
    release(world.hub)
    assert world.left() == [(1, None)]


def test_an_older_answer_that_is_refused_refuses_it_not() -> None:
    """Which waits for a later position of the same line than the work does."""
    world = World()
    world.step(world.stuck)
    world.turn()
    since = world.hub.commits.mark
    world.stuck.give()
    assert world.link.answer(1, since)
    world.turn()
    assert world.link.answer_all(2, world.tickets)
    world.stuck.commit(1)
    release(world.hub)
    assert world.left() == []       # it may not overtake the other one
    world.stuck.give_up("it has no leader")
    release(world.hub)
    assert sorted(world.left()) == [(1, "it has no leader"), (2, None)]


def test_a_call_waits_for_the_same() -> None:
    world = World()
    called: list[str | None] = []
    world.hub.when_decided(lambda: called.append("nothing to wait for"), world.tickets)
    world.step(world.stuck, world.quick)
    world.turn(world.quick)
    world.hub.when_decided(lambda: called.append("done"), world.tickets, called.append)
    world.turn(world.quick)
    assert called == ["nothing to wait for"]
    world.stuck.commit(1)
    release(world.hub)
    assert called == ["nothing to wait for", "done"]


def test_an_error_in_a_step_keeps_what_it_gave() -> None:
    world = World()
    with pytest.raises(ZeroDivisionError), world.tickets:
        world.stuck.give()
        raise ZeroDivisionError
    world.turn()
    assert world.link.answer_all(1, world.tickets)


def test_a_mark_of_another_turn_waits_for_lines_that_were_given_something_since() -> None:
    """Whoever gave it: that is not known any more."""
    world = World()
    called: list[str] = []
    world.stuck.give()
    since = world.hub.commits.mark
    world.quick.give()
    world.turn()
    world.hub.when_durable(lambda: called.append("without the stuck one"), since)
    world.hub.when_durable(lambda: called.append("with it"), since - 1)
    world.quick.commit(1)
    release(world.hub)
    assert called == ["without the stuck one"]
    world.stuck.commit(1)
    release(world.hub)
    assert called == ["without the stuck one", "with it"]


def test_they_end_with_their_node() -> None:
    commits = Commits(None)
    tickets = Tickets(commits)
    with tickets:
        commits.open_line("line").give()
    del commits
    with pytest.raises(UsageError, match="a node that has ended"), tickets:
        pass


def session_of(world: World) -> Session:
    ledger = world.hub.ledger
    return Session(b"c", world.hub.root, 0, ledger)


def calls_when_answered(world: World, session: Session) -> list[int]:
    called: list[int] = []
    world.hub.when_answered(lambda: called.append(1), session)
    return called


def test_what_a_session_leaves_unanswered_waits_for_no_line_that_others_use() -> None:
    world = World()
    session = session_of(world)
    world.link.attach(session)
    since = world.hub.commits.mark
    world.quick.give()
    assert world.link.answer(1, since)
    world.stuck.give()
    world.turn()
    session.detach()
    called = calls_when_answered(world, session)
    assert called == []
    world.stuck.give()
    world.quick.commit(1)
    release(world.hub)
    assert called == [1]
    session.clear()


def test_what_was_answered_keeps_nobody_waiting() -> None:
    world = World()
    session = session_of(world)
    world.link.attach(session)
    since = world.hub.commits.mark
    world.quick.give()
    assert world.link.answer(1, since)
    world.stuck.give()
    world.turn(world.quick)
    session.detach()
    assert calls_when_answered(world, session) == [1]
    session.clear()


@pytest.mark.parametrize("given_up", [False, True])
def test_a_session_waits_for_what_two_of_its_connections_left(given_up: bool) -> None:
    world = World()
    session = session_of(world)
    links = [world.link, WaitingLink(world.hub), WaitingLink(world.hub)]
    for link, line in zip(links, (world.stuck, world.quick, None), strict=True):
        link.attach(session)        # the former connection leaves
        if line is not None:
            since = world.hub.commits.mark
            line.give()
            assert link.answer(1, since)
        world.turn()
    session.detach()
    called = calls_when_answered(world, session)
    world.quick.commit(1)
    release(world.hub)
    assert called == []
    if given_up:
        world.stuck.give_up("it has no leader")
    else:
        world.stuck.commit(1)
    release(world.hub)
    assert called == [1]
    session.clear()


def test_what_a_session_left_is_forgotten_when_it_is_decided() -> None:
    """The next connection that ends leaves nothing behind."""
    world = World()
    session = session_of(world)
    world.link.attach(session)
    since = world.hub.commits.mark
    world.quick.give()
    world.link.answer(1, since)
    world.turn()
    session.detach()
    assert world.hub.commits.waiting == 2
    world.quick.commit(1)
    release(world.hub)
    assert world.hub.commits.waiting == 0
    assert calls_when_answered(world, session) == [1]
    session.clear()
