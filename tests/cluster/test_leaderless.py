"""Since when a member of etcd is certainly without a leader, and what that is good for."""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kit.metadata import MetadataInMemory
from kit.own_storage import claim_of
from simulator.driver import SimDriver

from fluxmq.cluster.leaderless import LeaderWatch
from fluxmq.cluster.membership import DOUBT_S, Membership, Node, Registration, State
from fluxmq.cluster.messages import VoterAnswer, encode
from fluxmq.cluster.ports import CallFailed, MemberLook, StoreError
from fluxmq.cluster.quorum import VALID_S, Quorum

TTL_S = 6
VOTERS = {1: "one", 2: "two", 3: "three"}


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000
        self.driver = SimDriver(lambda: self.ms)

    def now(self) -> float:
        return self.ms / 1000

    def run(self, ms: int) -> None:
        for _ in range(ms // 10):
            for _ in range(8):
                self.driver.run_ready()
                while self.driver.threads:
                    self.driver.run_thread()
            self.ms += 10


class Member:
    """A LocalMember. seen: leaders in this life. silent: it does not answer."""

    def __init__(self) -> None:
        self.life = 1
        self.running = True
        self.leader = True
        self.seen = 1
        self.silent = False
        self.log_tells = True
        self.looks = 0

    @property
    def ended_with(self) -> int | None:
        return self.seen if self.log_tells else None

    async def look(self) -> MemberLook:
        self.looks += 1
        if self.silent:
            raise StoreError("it stands still")
        return MemberLook(1, self.leader, self.seen)

    def lose_leader(self) -> None:
        self.leader = False

    def end(self) -> None:
        self.running = False

    def start(self) -> None:
        self.life += 1
        self.running, self.leader, self.seen = True, False, 0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def member() -> Member:
    return Member()


@pytest.fixture
def watch(clock: Clock, member: Member) -> LeaderWatch:
    watch = LeaderWatch(member, clock.driver, clock.now)
    clock.driver.start(watch.keep())
    clock.run(1000)
    assert watch.leader and watch.answer({}).leaderless_s is None
    return watch


def leaderless_ms(watch: LeaderWatch) -> int:
    said = watch.answer({}).leaderless_s
    assert said is not None
    return round(said * 1000)


def test_the_time_without_a_leader_grows_and_is_certain_up_to_the_last_look(
        clock: Clock, member: Member, watch: LeaderWatch) -> None:
    member.lose_leader()
    clock.run(2000)
    assert 1850 <= leaderless_ms(watch) <= 2000
    assert watch.answer({}).age_s <= 0.12
    member.silent = True
    clock.run(1000)
    assert 0.99 <= watch.answer({}).age_s <= 1.12 and leaderless_ms(watch) >= 2850


@pytest.mark.parametrize("case", ["no doubt", "a renewal is late", "another node asks", "its process ends",
                                  "a new life"])
def test_a_member_that_knows_a_leader_is_asked_rarely_until_something_says_that_it_may_not(
        clock: Clock, member: Member, watch: LeaderWatch, case: str) -> None:
    member.looks = 0
    clock.run(10_000)
    assert 8 <= member.looks <= 10
    asked = member.looks
    while member.looks == asked:
        clock.run(10)
    member.lose_leader()
    member.looks = 0
    if case == "a renewal is late":
        watch.doubtful = lambda: True
    elif case == "another node asks":
        assert watch.answer({}).leaderless_s is None
    elif case == "its process ends":
        member.end()
    elif case == "a new life":
        member.end()
        member.start()
    clock.run(10)       # so that the step before the first look does not count
    clock.run(300)
    answer = watch.answer({})
    if case == "no doubt":
        assert member.looks <= 1
        clock.run(1000)
        answer = watch.answer({})
    assert answer.leaderless_s is not None and answer.age_s <= 0.12


def test_a_leader_between_two_looks_shows(clock: Clock, member: Member, watch: LeaderWatch) -> None:
    member.lose_leader()
    clock.run(2000)
    before = watch.answer({}).period
    member.seen += 1
    clock.run(500)
    assert leaderless_ms(watch) <= 500 and watch.answer({}).period != before


def test_a_member_that_is_down_and_back_without_a_leader_goes_on_counting(
        clock: Clock, member: Member, watch: LeaderWatch) -> None:
    member.lose_leader()
    clock.run(1000)
    before = watch.answer({}).period
    for _ in range(3):          # it cannot start
        member.end()
        clock.run(500)
        assert watch.answer({}).age_s == 0.0
        member.start()
        clock.run(500)
    assert leaderless_ms(watch) >= 3800 and watch.answer({}).period == before
    member.leader, member.seen = True, 1
    clock.run(200)
    assert watch.answer({}).leaderless_s is None


@pytest.mark.parametrize("why", ["a leader in its last moment", "nobody knows", "ended and started unseen"])
def test_a_life_that_may_have_seen_a_leader_begins_the_time_anew(
        clock: Clock, member: Member, watch: LeaderWatch, why: str) -> None:
    member.lose_leader()
    clock.run(1000)
    before = watch.answer({}).period
    if why == "a leader in its last moment":
        member.seen += 1
    member.log_tells = why != "nobody knows"
    member.end()
    if why == "ended and started unseen":
        member.start()
    clock.run(300)
    assert leaderless_ms(watch) <= 300 and watch.answer({}).period != before


# ── who serves on ────────────────────────────────────────────────────────────────────────────────────────────


class Nodes:
    """A Transport to nodes that answer what a test says: seconds without a leader, and their age; or an error."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.answers: dict[str, Callable[[], VoterAnswer]] = {}
        self.asked = 0

    async def call(self, address: str, method: str, body: bytes, limit_s: float) -> AsyncIterator[bytes]:
        assert method == "voter"
        self.asked += 1
        await self._clock.driver.sleep(0.01)
        if address not in self.answers:
            raise CallFailed("it does not answer")
        yield encode(self.answers[address]())


class Asking:
    """Node one, whose lease is renewed until `lose`."""

    def __init__(self, clock: Clock, watch: LeaderWatch | None) -> None:
        self.clock = clock
        self.store = MetadataInMemory(clock.driver)
        self.nodes = Nodes(clock)
        self.log: list[str] = []
        self.fenced: list[str] = []
        self.resumed = 0
        self.answers: dict[str, Callable[[], VoterAnswer]] = {}
        self.member = Membership("one", self.store, clock.driver, TTL_S,
                                 claim=claim_of("one", clock.driver, TTL_S), clock_s=clock.now,
                                 on_deadline=lambda at_s: None, on_fenced=self.fenced.append,
                                 on_node=lambda node, there: None, on_resumed=self._resumed)
        transport: Any = self.nodes
        self.quorum = Quorum(self.member, watch, transport, clock.driver, clock_s=clock.now, configured={},
                             log=lambda level, cause, text, fields: self.log.append(text))

        async def voters() -> dict[int, str]:
            return dict(VOTERS)

        self.store.voters = voters  # type: ignore[method-assign]
        clock.driver.start(self.member.join(Registration(address="one")))
        clock.run(100)
        for name in VOTERS.values():
            self.member.nodes[name] = Node(name, 1, 1, Registration(address=name, identity=name))
        clock.driver.start(self.member.keep())
        clock.driver.start(self.quorum.keep())
        clock.run(2000)

    def _resumed(self) -> None:
        self.resumed += 1

    def lose(self) -> None:
        self.store.counts.fail = 1 << 30

    def says(self, node: int, since_s: float | None = 0.0, *, age_s: float = 0.0, period: int = 7,
             voters: dict[int, str] | None = None) -> None:
        """Without a leader since that time by the clock; None: it knows one."""
        def answer() -> VoterAnswer:
            return VoterAnswer(member=node, leaderless_s=None if since_s is None else self.clock.now() - since_s,
                               age_s=age_s, period=period, voters=VOTERS if voters is None else voters)

        self.nodes.answers[VOTERS[node]] = answer


@pytest.fixture
def asking(clock: Clock, member: Member, watch: LeaderWatch) -> Asking:
    return Asking(clock, watch)


def test_nobody_is_asked_while_the_lease_is_renewed(asking: Asking) -> None:
    assert not asking.nodes.asked and not asking.member.why_late


def test_a_majority_without_a_leader_lets_a_node_serve_on(asking: Asking, member: Member) -> None:
    asking.lose()
    member.lose_leader()
    asking.says(2, asking.clock.now())
    asking.clock.run(60_000)
    assert asking.member.may_serve() and asking.quorum.serves_on and asking.quorum.lost == 1
    assert asking.member.deadline_s - asking.clock.now() <= VALID_S
    assert len(asking.log) == 1 and asking.log[0].startswith("etcd has no quorum: this node serves on, but takes no")
    assert asking.quorum.reason.startswith("one, two without a leader; three: it does not answer")
    asking.store.counts.fail = 0
    asking.clock.run(1500)
    assert not asking.member.why_late and asking.log[-1] == "etcd has a quorum again" and not asking.fenced


@pytest.mark.parametrize("case", ["nobody answers", "one sees a leader", "since too late", "another list"])
def test_otherwise_it_stops_at_the_end_of_its_lease(asking: Asking, member: Member, case: str) -> None:
    asking.lose()
    if case != "one sees a leader":
        member.lose_leader()
    ends_s = asking.member.lease_ends_s
    if case == "one sees a leader":
        asking.says(2, asking.clock.now())
    elif case == "since too late":
        asking.says(2, ends_s + 0.2)
    elif case == "another list":        # three of five are not enough there
        asking.says(2, asking.clock.now(), voters={**VOTERS, 4: "four", 5: "five"})
    while asking.member.state is State.MEMBER:
        asking.clock.run(10)
        assert asking.clock.now() < ends_s + 1.0
    assert asking.clock.now() <= ends_s + 0.05
    assert asking.fenced == [f"the lease of {TTL_S} s was not renewed in time (the store does not answer)"]


def test_a_node_stops_when_a_leader_returns_and_does_not_renew(asking: Asking, member: Member) -> None:
    asking.lose()
    member.lose_leader()
    asking.says(2, asking.clock.now())
    asking.clock.run(3 * TTL_S * 1000)
    assert asking.member.may_serve()
    asking.says(2, None)
    asking.clock.run(int(VALID_S * 1000) + 50)
    assert not asking.member.may_serve() and not asking.resumed
    asking.clock.run(int(DOUBT_S * 1000))
    assert asking.member.state is State.FENCED and not asking.resumed


def doubting(asking: Asking, member: Member) -> None:
    """It has served on, and node two does not answer any more."""
    asking.lose()
    member.lose_leader()
    asking.says(2, asking.clock.now())
    asking.clock.run(3 * TTL_S * 1000)
    assert asking.member.may_serve() and not asking.member.in_doubt
    asking.answers = asking.nodes.answers.copy()
    asking.nodes.answers.clear()
    asking.clock.run(int(VALID_S * 1000) + 1500)
    assert asking.member.in_doubt and not asking.member.may_serve() and not asking.resumed
    assert asking.log[-1].startswith("too few members of etcd have confirmed in time")


def test_a_node_whose_answers_are_late_pauses_and_goes_on(asking: Asking, member: Member) -> None:
    doubting(asking, member)
    asking.nodes.answers = asking.answers
    asking.clock.run(500)
    assert asking.member.may_serve() and asking.resumed == 1 and asking.quorum.lost == 1
    assert len(asking.log) == 3 and asking.log[-1] == "no lease has ended meanwhile: this node serves on"
    asking.clock.run(60_000)
    assert asking.member.may_serve() and asking.resumed == 1 and len(asking.log) == 3


def test_answers_that_are_always_late_let_it_wait(asking: Asking, member: Member) -> None:
    doubting(asking, member)
    asking.says(2, 0.0, age_s=VALID_S + 0.1)
    asking.clock.run(60_000)
    assert asking.member.in_doubt and not asking.resumed and not asking.fenced
    asking.says(2, 0.0)
    asking.clock.run(500)
    assert asking.member.may_serve() and asking.resumed == 1


def test_a_node_that_stood_still_without_quorum_asks_before_it_gives_up(asking: Asking, member: Member) -> None:
    asking.lose()
    member.lose_leader()
    asking.says(2, asking.clock.now())
    asking.clock.run(3 * TTL_S * 1000)
    asking.clock.ms += 2000
    assert not asking.member.may_serve()
    asking.clock.run(500)
    assert asking.member.may_serve() and not asking.fenced
    asking.clock.ms += int(VALID_S * 1000 + DOUBT_S * 1000) + 1
    asking.clock.run(500)
    assert asking.fenced and not asking.member.may_serve()


@pytest.mark.parametrize("late_s", [0.5, 3.0])
def test_a_renewal_ends_a_doubt(asking: Asking, member: Member, late_s: float) -> None:
    """The key is still there with the lease: so that has not ended meanwhile."""
    doubting(asking, member)
    asking.clock.run(int(late_s * 1000))
    asking.store.counts.fail = 0
    asking.clock.run(1000)
    assert asking.member.may_serve() and asking.resumed == 1 and not asking.member.why_late and not asking.fenced


@pytest.mark.parametrize("case", ["a leader since", "not in time", "no lease any more"])
def test_a_doubt_that_is_confirmed_ends_in_a_fence(asking: Asking, member: Member, case: str) -> None:
    doubting(asking, member)
    if case == "a leader since":        # for a moment: a lease may have ended
        asking.says(2, asking.clock.now() - 0.5, period=8)
    elif case == "no lease any more":
        asking.store.end_lease(asking.member.lease)
        asking.store.counts.fail = 0
        asking.clock.run(1000)
        assert asking.member.state is State.FENCED
    asking.clock.run(int(DOUBT_S * 1000))
    assert asking.member.state is State.FENCED and not asking.resumed
    asking.nodes.answers = asking.answers
    asking.clock.run(1000)
    assert not asking.member.may_serve() and not asking.resumed


def test_a_node_without_a_member_asks_the_others(clock: Clock) -> None:
    asking = Asking(clock, None)
    asking.lose()
    for node in (1, 3):
        asking.says(node, clock.now())
    clock.run(3 * TTL_S * 1000)
    assert asking.member.may_serve()


def test_an_etcd_whose_members_are_not_of_nodes_cannot_be_asked(clock: Clock) -> None:
    asking = Asking(clock, None)
    asking.member.voters = {9: "etcd-1", 10: "etcd-2", 11: "etcd-3"}
    asking.lose()
    clock.run(TTL_S * 1000 - 500)
    assert asking.quorum.reason.startswith("no member of etcd without a leader; etcd-1: it is not known where it is")
    clock.run(1000)
    assert asking.member.state is State.FENCED and not asking.nodes.asked
