"""Several commit lines that commit, stand still, refuse and give up in any order, and links whose answers wait for
them, also those that are made in several turns: nothing leaves before its tickets, nothing overtakes an elder of its
link, a line that stands still stops nobody who has no ticket of it, and nothing is left in the end. The judge is
oracle/commits.py."""
from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.journals import wait_durable, writing
from kit.watch import grown
from oracle.commits import CommitOracle

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.commits import Line
from fluxmq._core.memory.tickets import Tickets
from fluxmq._core.testing.commits_probe import WaitingLink, end_turn, release
from fluxmq._core.testing.probes import live_objects

LINES = 4
LINKS = 5

lines = st.integers(1, LINES)
links = st.integers(0, LINKS - 1)
events = st.lists(st.one_of(
    st.tuples(st.just("answer"), links, st.lists(lines, max_size=3), st.booleans()),
    st.tuples(st.just("step"), links, st.lists(lines, max_size=2), st.booleans()),
    st.tuples(st.just("finish"), links, st.just(None), st.booleans()),
    st.tuples(st.just("old"), st.just(None), st.integers(1, 6), st.just(None)),
    st.tuples(st.just("tell"), links, lines, st.just(None)),
    st.tuples(st.just("call"), st.just(None), st.lists(lines, max_size=3), st.booleans()),
    st.tuples(st.just("turn"), st.just(None), st.just(None), st.just(None)),
    st.tuples(st.just("commit"), lines, st.integers(0, 3), st.just(None)),
    st.tuples(st.just("give up"), lines, st.integers(0, 3), st.just(None)),
    st.tuples(st.just("refuse"), lines, st.integers(0, 3), st.just(None)),
    st.tuples(st.just("journal"), st.just(None), st.just(None), st.just(None)),
    st.tuples(st.just("close"), links, st.just(None), st.just(None)),
), min_size=10, max_size=80)
# Work over turns, each of which has one event, while others use the same two lines.
few = st.integers(1, 2)
work_over_turns = st.lists(st.one_of(
    st.tuples(st.just("step"), st.integers(0, 1), st.lists(few, min_size=1, max_size=2), st.booleans()),
    st.tuples(st.just("answer"), st.integers(0, 2), st.lists(few, min_size=1, max_size=1), st.just(False)),
    st.tuples(st.just("commit"), few, st.integers(0, 3), st.just(None)),
    st.tuples(st.just("refuse"), few, st.integers(0, 3), st.just(None)),
    st.tuples(st.just("finish"), st.integers(0, 1), st.just(None), st.booleans()),
), min_size=10, max_size=40).map(lambda happens: [
    each for event in happens for each in (event, ("turn", None, None, None))])


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    gc.collect()
    before = live_objects()
    yield
    gc.collect()
    assert not grown(before, live_objects())


class World:
    """A hub whose journal is a real one, other lines that are driven by hand, and links."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.oracle = CommitOracle()
        self.lines: list[Line] = [hub.commits.local, *(hub.commits.open_line(f"line {n}") for n in range(1, LINES + 1))]
        self.submitted = [0] * (LINES + 1)
        self.links = [WaitingLink(hub) for _ in range(LINKS)]
        self.seen = [0] * LINKS
        self.closed: set[int] = set()
        self.called: list[tuple[int, str | None]] = []
        self.seen_calls = 0
        self.number = 0
        self.working: dict[int, tuple[Tickets, set[tuple[int, int]]]] = {}  # link -> work of several turns
        self.given: list[tuple[int, int, int]] = []     # (mark, line, position) of all tickets
        self.vague: set[int] = set()
        self.oracle.decided = dict.fromkeys(range(LINES + 1), 0)

    def gathering(self) -> dict[int, int]:
        """Of each line the newest position that anything can wait for."""
        journal = self.hub.ledger.journal
        assert journal is not None
        return {0: journal.gathering} | {n: self.submitted[n] + 1 for n in range(1, LINES + 1)}

    def record(self, given: list[int], journal: bool) -> set[tuple[int, int]]:
        """Gives something to lines; the tickets."""
        tickets = set()
        for line in [*given, *[0] * journal]:
            if line:
                position = self.lines[line].give()
            else:
                self.hub.ledger.write(RecordKind.CLOCK, bytes(16))
                position = self.gathering()[0]
            tickets.add((line, position))
            self.given.append((self.hub.commits.mark, line, position))
        return tickets

    def next(self) -> int:
        self.number += 1
        return self.number

    def answer(self, link: int, given: list[int], journal: bool) -> None:
        since = self.hub.commits.mark
        tickets = self.record(given, journal)
        self.wait(link, tickets, since)

    def wait(self, link: int, tickets: set[tuple[int, int]], since: int) -> None:
        if link in self.closed:
            return
        one = self.oracle.wait(self.next(), link, tickets, self.gathering(), ordered=True)
        if not self.links[link].answer(one.number, since):
            self.look()
        else:
            assert tickets or one.elders, "it waits for nothing"

    def step(self, link: int, given: list[int], journal: bool) -> None:
        """Of work that goes over turns, in which others give something, too."""
        tickets, expected = self.working.setdefault(link, (Tickets(self.hub.commits), set()))
        with tickets:
            expected |= self.record(given, journal)

    def finish(self, link: int, call: bool) -> None:
        """It waits for what its steps gave, and is refused if any of that is."""
        tickets, expected = self.working.pop(link, (Tickets(self.hub.commits), set()))
        if call:
            one = self.oracle.wait(self.next(), -1, expected, self.gathering(), ordered=False)
            number = one.number
            if tickets.why is not None:     # it is refused at once, whatever becomes of the others
                one.tickets &= self.oracle.given_up
                assert one.tickets
            self.hub.when_decided(lambda: self.called.append((number, None)), tickets,
                                  lambda why: self.called.append((number, why)))
            self.look()
        elif link not in self.closed:
            one = self.oracle.wait(self.next(), link, expected, self.gathering(), ordered=True)
            waits = self.links[link].answer_all(one.number, tickets)
            if waits is None:
                assert self.oracle.refused(one)
                self.close(link)        # as a connection, which ends without this answer and those ahead of it
            elif waits:
                assert expected or one.elders, "it waits for nothing"
            self.look()

    def call_since(self, back: int) -> None:
        """With a mark of another turn, by which the tickets are not known one by one: waits for the newest of each line
        that was given something since, and for no other. What is refused to others may be refused to it."""
        if len(self.given) < back or self.oracle.given_up:
            return
        since = self.given[-back][0] - 1
        tickets = [(line, position) for mark, line, position in self.given if mark > since]
        one = self.oracle.wait(self.next(), -1, tickets, self.gathering(), ordered=False)
        number = one.number
        one.bounds.setdefault(0, self.gathering()[0])       # always for the journal, which never stands still
        self.turn()
        self.vague.add(number)
        self.hub.when_durable(lambda: self.called.append((number, None)), since,
                              lambda why: self.called.append((number, why)))
        self.look()

    def tell(self, link: int, line: int) -> None:
        if link in self.closed:
            return
        position = self.lines[line].give()
        self.given.append((self.hub.commits.mark, line, position))
        one = self.oracle.wait(self.next(), link, [(line, position)], self.gathering(), ordered=False)
        self.links[link].notify_at(one.number, self.lines[line], position)

    def call(self, given: list[int], journal: bool) -> None:
        since = self.hub.commits.mark
        tickets = self.record(given, journal)
        one = self.oracle.wait(self.next(), -1, tickets, self.gathering(), ordered=False)
        number = one.number
        self.hub.when_durable(lambda: self.called.append((number, None)), since,
                              lambda why: self.called.append((number, why)))
        self.look()

    def turn(self) -> None:
        for number, line in enumerate(self.lines[1:], 1):
            self.submitted[number] = line.submit()[0] or self.submitted[number]
        self.release()
        end_turn(self.hub)

    def decide(self, number: int, back: int, why: str | None) -> None:
        upto = self.submitted[number] - back
        first = self.oracle.decided[number] + 1
        if upto < first:
            return
        if why is None:
            self.lines[number].commit(upto)
        else:
            self.lines[number].give_up(why, upto)
            self.oracle.given_up.update((number, position) for position in range(first, upto + 1))
        self.oracle.decided[number] = upto
        self.release()

    def refuse(self, number: int, back: int) -> None:
        """One position, whatever becomes of the others."""
        position = self.submitted[number] - back
        if position > self.oracle.decided[number]:
            self.lines[number].refuse(position, 0x80, "it is refused")
            self.oracle.given_up.add((number, position))

    def commit_journal(self) -> None:
        journal = self.hub.ledger.journal
        assert journal is not None
        upto = journal.gathering
        if self.hub.ledger.submit():
            wait_durable(journal, upto)
        self.oracle.decided[0] = journal.durable
        self.release()

    def close(self, link: int) -> None:
        if link not in self.closed:
            self.closed.add(link)
            self.links[link].close()

    def release(self) -> None:
        release(self.hub)
        self.look()
        for one in self.oracle.all.values():
            if not one.left and one.link not in self.closed:
                assert not self.oracle.must_leave(one), f"{one} has not left"

    def look(self) -> None:
        """What has left may leave, in this order, and with this outcome."""
        for index, link in enumerate(self.links):
            if index not in self.closed:
                link.look()
                for number, why in link.left[self.seen[index]:]:
                    self.leaves(number, index, why)
            self.seen[index] = len(link.left)
        for number, why in self.called[self.seen_calls:]:
            self.leaves(number, -1, why)
        self.seen_calls = len(self.called)

    def leaves(self, number: int, link: int, why: str | None) -> None:
        one = self.oracle.all[number]
        assert one.link == link and not one.left, f"{one} left twice, or by another link than its own"
        assert self.oracle.may_leave(one), f"{one} left too early"
        if number not in self.vague or why is None:
            assert (why is not None) == self.oracle.refused(one), f"{one} was answered with {why!r}"
        one.left = True


@given(events | work_over_turns)
@settings(max_examples=400, deadline=None)
def test_lines_and_links_in_any_order(tmp_path_factory: pytest.TempPathFactory, happens: list[tuple]) -> None:
    with writing(tmp_path_factory.mktemp("journal")) as journal:
        world = World(Hub(journal))
        for what, first, second, third in happens:
            if what == "answer":
                world.answer(first, second, third)
            elif what == "step":
                world.step(first, second, third)
            elif what == "finish":
                world.finish(first, third)
            elif what == "old":
                world.call_since(second)
            elif what == "tell":
                world.tell(first, second)
            elif what == "call":
                world.call(second, third)
            elif what == "turn":
                world.turn()
            elif what == "commit":
                world.decide(first, second, None)
            elif what == "give up":
                world.decide(first, second, f"line {first} has another leader")
            elif what == "refuse":
                world.refuse(first, second)
            elif what == "journal":
                world.commit_journal()
            else:
                world.close(first)
        world.turn()
        for number in range(1, LINES + 1):
            world.decide(number, 0, None)
        world.commit_journal()
        assert world.hub.commits.waiting == 0
        assert all(one.left for one in world.oracle.all.values() if one.link not in world.closed)
        assert [link.waiting for link in world.links] == [0] * LINKS


@given(st.lists(st.tuples(links, st.booleans()), min_size=1, max_size=60))
def test_a_line_that_stands_still_stops_nobody_else(given_to: list[tuple[int, bool]]) -> None:
    """Link 0 waits for it; the others use another line, which commits every turn."""
    hub = Hub(None)
    stuck, quick = hub.commits.open_line("stuck"), hub.commits.open_line("quick")
    waiting = [WaitingLink(hub) for _ in range(LINKS)]
    expected: list[list[int]] = [[] for _ in range(LINKS)]
    for number, (link, also_quick) in enumerate(given_to):
        since = hub.commits.mark
        if link == 0:
            stuck.give()
        if link or also_quick:
            quick.give()
        waiting[link].answer(number, since)
        expected[link].append(number)
        position = quick.submit()[0]
        stuck.submit()
        if position:
            quick.commit(position)
        release(hub)
        end_turn(hub)
        for index, one in enumerate(waiting):
            one.look()
            assert [found for found, _ in one.left] == (expected[index] if index else [])
    stuck.close("its peer is gone")
    release(hub)
    waiting[0].look()
    assert waiting[0].left == [(number, "its peer is gone") for number in expected[0]]
    with pytest.raises(UsageError, match="it is closed"):
        stuck.give()


def test_what_was_given_up_before_a_mark_refuses_nobody_behind_it() -> None:
    """In a later turn, when a wait is for the newest of every line: that of a node that is gone stays refused."""
    hub = Hub(None)
    gone, other = hub.commits.open_line("peer a"), hub.commits.open_line("peer b")
    called: list[str | None] = []

    def wait_since(since: int) -> None:
        end_turn(hub)
        hub.when_durable(lambda: called.append(None), since, called.append)

    before = hub.commits.mark
    gone.give()
    gone.close("its node is gone")
    since = hub.commits.mark
    other.give()
    position = other.submit()[0]
    wait_since(since)
    assert not called
    other.commit(position)
    release(hub)
    assert called == [None]
    wait_since(before)
    release(hub)
    assert called == [None, "its node is gone"]


def test_a_line_says_what_it_refuses() -> None:
    hub = Hub(None)
    line = hub.commits.open_line("peer b")
    with pytest.raises(UsageError, match="has not submitted position 1"):
        line.commit(1)
    assert (line.give(), line.give(), line.submit(), line.submit()) == (1, 1, (1, b""), (0, b""))
    line.commit(1)
    line.commit(1)
    assert (line.committed, line.give()) == (1, 2)
    with pytest.raises(UsageError, match="has not submitted position 2"):
        line.give_up("no leader", 2)
    line.give_up("no leader")
    assert line.committed == 2
    with pytest.raises(UsageError, match="the journal"):
        hub.commits.local.commit(1)
    with pytest.raises(UsageError, match="the journal takes records"):
        hub.commits.local.give()


def test_what_was_taken_back_is_not_waited_for() -> None:
    """An answer that waits for nothing leaves at once, also where others wait."""
    hub = Hub(None)
    line = hub.commits.open_line("line")
    first, second = WaitingLink(hub), WaitingLink(hub)
    since = hub.commits.mark
    line.give()
    assert first.answer(1, since)
    assert not second.answer(2, hub.commits.mark)
    assert (first.left, second.left, hub.commits.waiting) == ([], [(2, None)], 1)
    line.commit(line.submit()[0])
    release(hub)
    first.look()
    assert first.left == [(1, None)] and hub.commits.waiting == 0


def test_a_node_that_ends_lets_go_of_who_waited() -> None:
    """Whatever was held when the hub goes is given back: nothing_is_left looks."""
    hub = Hub(None)
    ones = [hub.commits.open_line("a"), hub.commits.open_line("b")]
    link = WaitingLink(hub)
    since = hub.commits.mark
    ones[0].give()
    link.answer(1, since)
    ones[1].give()
    link.answer(2, since)
    hub.when_durable(lambda: None, since)
    assert hub.commits.waiting == 3 and live_objects()["waits"] >= 2
