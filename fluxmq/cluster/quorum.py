"""Whether this node may serve on although its lease is not renewed: because no lease can end.

    renewed ──late──► ASKING ──a majority of the voters is leaderless──► serves on, VALID_S from what is certain
       ▲                 │                                                    │             ▲
       ├── renewed ──────┴── otherwise: the node stops at its deadline   answers are late   │ they say that no
       │                                                                      ▼             │ lease has ended
       └── renewed ─────────────────────────────────────────────────────── IN DOUBT ────────┘
                                                                              └── DOUBT_S have passed: it stops

To end a lease, a leader of etcd needs the consent of a majority of the voters, and each of them knows it then. So if a
majority says that it has known no leader since before this node's deadline, until a moment, no lease has ended between
the two. The node serves on until VALID_S after that moment. Whoever takes over what an ended lease has left waits
for longer (membership.TAKEOVER_DELAY_S): a leader may come back that was paused or cut off, and end leases at once.

Answers that come too late, of a busy machine or a process that stood still, prove just as much: what a voter says
covers all of the time since its leader was gone. So without an answer in time a node only pauses (Membership.in_doubt).

Who has a vote may change, one member at a time. The node knows the voters as of its last renewal, and each answer names
them as that node knows them. The majority must be one of each of these lists: the majorities of two lists that follow
each other have a member in common.
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

from fluxmq.cluster.leaderless import LeaderWatch
from fluxmq.cluster.membership import CLOCK_RATE_ERROR, DOUBT_S, TAKEOVER_DELAY_S, Membership, State, dial_address
from fluxmq.cluster.messages import VoterAnswer, encode, voter_answer_of
from fluxmq.cluster.ports import CallFailed, Log, Transport
from fluxmq.engine.ports.driver import Driver
from fluxmq.model.malformed import MALFORMED

__all__ = ["VOTER", "Quorum"]

VOTER = "voter"  # method of Transport.call
ASK_S = 0.1  # between two questions to a voter
ASK_LIMIT_S = 1.0  # longer than VALID_S: a late answer still lets the node wait
VALID_S = 0.5  # how long the node serves on after what is certain
assert VALID_S < TAKEOVER_DELAY_S
LOOK_S = 0.25  # between two looks whether a renewal is late


class _Word(NamedTuple):
    """What is certain of a voter, by this node's clock. period: of VoterAnswer. upto_s: it is leaderless until then.
    voters: numbers, as its node knows them."""

    period: int
    upto_s: float
    voters: frozenset[int]


class Quorum:
    """One per life of a node. watch: of its own member of etcd; None: it has none. configured: see dial_address.
    clock_s: CLOCK_BOOTTIME in seconds, read at the call."""

    def __init__(self, membership: Membership, watch: LeaderWatch | None, transport: Transport, driver: Driver, *,
                 clock_s: Callable[[], float], configured: dict[str, str],
                 log: Log) -> None:
        self.serves_on = False  # without a lease that is renewed
        self.lost = 0  # how often the quorum was lost
        self._told = ""  # how it stands, as the log says, since the renewal is late
        self._found = False  # since then: that there is no quorum
        self._membership = membership
        self._watch = watch
        self._transport = transport
        self._driver = driver
        self._clock_s = clock_s
        self._configured = configured
        self._log = log
        self._words: dict[int, _Word] = {}  # of the voters that are leaderless since before the deadline
        self._names: dict[int, str] = {}
        self._silent: dict[int, str] = {}  # voters that give no word: why
        self._asking: set[int] = set()

        if watch is not None:
            watch.on_look = self._on_look
            watch.doubtful = lambda: membership.late

    def _on_look(self) -> None:
        if self._watch is not None and self._watch.leader:
            self._membership.hurry()

    def _address_of(self, name: str) -> str:
        """Of the transport of a node; "": this one does not know it."""
        node = self._membership.nodes.get(name)
        return self._configured.get(name, "") if node is None else dial_address(node, self._configured)

    # ------------------------------------------------------------------ what this node says to others

    async def answer(self) -> AsyncIterator[bytes]:
        """Answers the call "voter". Raises CallFailed."""
        if self._watch is None:
            raise CallFailed(f"node {self._membership.name} has no member of etcd", reached=False)
        yield encode(self._watch.answer(self._membership.voters))

    # ------------------------------------------------------------------ what this node asks

    async def keep(self) -> None:
        """Asks the voters whenever a renewal is late, until the node leaves or is fenced."""
        while self._membership.state is State.MEMBER:
            if self._membership.late:
                await self._ask_all()
            else:
                await self._driver.pace(LOOK_S)

    async def _ask_all(self) -> None:
        """Until the lease is renewed, or the node stops."""
        member = self._membership
        self._words, self._names, self._silent = {}, dict(member.voters), {}
        since_s, self._told, self._found = self._clock_s(), "", False
        while member.state is State.MEMBER and member.late:
            for number, name in self._names.items():
                if number not in self._asking and not (self._watch is not None and number == self._watch.number):
                    self._asking.add(number)
                    self._driver.start(self._ask(number, name))
            self._look()
            self._tell()
            await self._driver.sleep(ASK_S)
        self.serves_on = False
        if self._told and member.state is State.MEMBER and not member.late:
            self._log("info", "", "etcd has a quorum again", {"after_s": round(self._clock_s() - since_s, 1)})

    def _tell(self) -> None:
        """Logs how it stands when that has changed. A word that is old for a moment, while the lease lasts, changes
        nothing."""
        member = self._membership
        if self.serves_on and not self._found:
            self._found = True
            self.lost += 1
            self._told = "serves on"
            self._log("warning", "serves on", (
                "etcd has no quorum: this node serves on, but takes no new sessions, and no session moves. Start the "
                "nodes that are down, or mend the network between them"), {"why": self.reason})
        elif self.serves_on and self._told == "in doubt":
            self._told = "serves on"
            self._log("info", "serves on again", "no lease has ended meanwhile: this node serves on", {})
        elif member.in_doubt and self._told != "in doubt":
            self._told = "in doubt"
            self._log("warning", "in doubt", (
                "too few members of etcd have confirmed in time that they know no leader: this node serves nobody "
                "until they do, or its lease is renewed. If this comes again, this machine or the network to the other "
                "nodes is too slow"), {"limit_s": DOUBT_S, "members": self.reason})
        elif not self.serves_on and not self._found and self._told != "stops" and member.silent_s > member.ttl_s / 2:
            self._told = "stops"
            self._log("warning", "stops", (
                "etcd does not renew the lease of this node, and may have a leader all the same: this node stops "
                "serving when its lease ends. Look at the network to the other nodes, and at etcd"),
                {"left_s": round(member.lease_left_s(), 1), "why": member.why_late, "members": self.reason})

    async def _ask(self, number: int, name: str) -> None:
        sent = self._clock_s()
        try:
            address = self._address_of(name)
            if not address:
                raise CallFailed("it is not known where it is", reached=False)
            parts = [part async for part in self._transport.call(address, VOTER, b"", ASK_LIMIT_S)]
            answer = voter_answer_of(b"".join(parts))
        except (CallFailed, *MALFORMED) as error:
            self._silent[number] = str(error)
            return                          # what was certain stays so, and grows old
        finally:
            self._asking.discard(number)
        self._take(number, answer, sent)
        self._look()

    def _take(self, number: int, answer: VoterAnswer, sent_s: float) -> None:
        """An answer to a question of that time."""
        self._silent.pop(number, None)
        former = self._words.get(number)
        if answer.member != number or answer.leaderless_s is None:
            self._words.pop(number, None)
            self._silent[number] = ("it knows a leader" if answer.member == number
                                    else "it has not said anything to its node yet")
            if answer.member == number:
                self._membership.hurry()
            return
        error = 2 * CLOCK_RATE_ERROR        # of the two clocks
        since_s = self._clock_s() - answer.leaderless_s * (1 - error)
        upto_s = sent_s - answer.age_s * (1 + error)
        goes_on = former is not None and former.period == answer.period
        if goes_on or since_s <= self._membership.lease_ends_s:
            if former is not None and goes_on:
                upto_s = max(upto_s, former.upto_s)
            self._words[number] = _Word(answer.period, upto_s, frozenset(answer.voters))
            for other, name in answer.voters.items():
                self._names.setdefault(other, name)
        else:
            self._words.pop(number, None)
            self._silent[number] = "it has known a leader since the lease of this node has ended"

    def _look(self) -> None:
        """Extends the deadline as far as it is certain."""
        member, watch = self._membership, self._watch
        if not member.late or member.state is not State.MEMBER:
            return
        now = self._clock_s()
        if watch is not None and watch.number in self._names:
            self._take(watch.number, watch.answer(member.voters), now)
        until = min((self._certain(voters) for voters in self._lists()), default=0.0) + VALID_S
        self.serves_on = until > now
        if until > 0.0:
            member.serve_on(until)

    def _lists(self) -> Iterable[frozenset[int]]:
        own = frozenset(self._membership.voters)
        return {own, *(word.voters for word in self._words.values())} if own else ()

    def _certain(self, voters: frozenset[int]) -> float:
        """Until when a majority of these is leaderless; 0: it is not."""
        times = sorted((word.upto_s for number, word in self._words.items() if number in voters), reverse=True)
        needed = len(voters) // 2 + 1
        return times[needed - 1] if len(times) >= needed else -VALID_S

    @property
    def reason(self) -> str:
        """A sentence on the voters, for operators."""
        def named(numbers: Iterable[int]) -> str:
            return ", ".join(sorted(self._names.get(number) or f"{number:x}" for number in numbers))

        if not self._membership.voters:
            return "the members of etcd are not known"
        silent = "; ".join(f"{named([number])}: {why}" for number, why in sorted(self._silent.items()))
        return f"{named(self._words) or 'no member of etcd'} without a leader" + (f"; {silent}" if silent else "")
