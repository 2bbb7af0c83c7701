"""This node's place in the cluster: its lease, its epoch, how long it may serve; the other nodes; the leader.

    NEW ──join()──► MEMBER ──leave()──► GONE
                      │
                      └── no renewal in time, or its key is gone or not its own ──► FENCED

Without quorum nothing is renewed, and no lease can end: quorum.py decides whether the node serves on (serve_on). When
it is not certain of that it serves nobody (in_doubt), until it knows that no lease has ended, or has renewed its own.

The lease lives only while the journal does: a node whose disk hangs can confirm nothing, so it gives its lease up, and
others take over.

A renewal counts from when it was sent, and only if a linearizable read that was sent after its answer succeeds in the
same raft term and still shows this node's key with this lease: a leader of etcd that stood still may confirm renewals
that its successor does not know (etcd issues 12528 and 15247).
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from fluxmq.cluster.claim import Claim, JoinRefused, Taken
from fluxmq.cluster.keys import LEADER, node_key, node_of
from fluxmq.cluster.ports import Change, Compare, Event, LeaseGone, MetadataStore, StoreError
from fluxmq.engine.ports.driver import Driver
from fluxmq.model.malformed import MALFORMED

__all__ = ["JoinRefused", "Membership", "Node", "Registration", "State", "dial_address"]

# So that an election of etcd, which takes one or two seconds, fits between the last renewal and the deadline.
RENEWALS_PER_TTL = 6
RETRY_S = 0.1  # while a renewal is late; the ones before it may be held up in etcd, and are not waited for
WAIT_S = 0.5  # while another process has the name
RETRY_ALONE_S = 0.5  # while it is known that there is no leader
LATE_S = 0.25  # behind the time at which a renewal was due
PATIENCE_S = 5.0  # for a quorum that is lost, from the last renewal on
DOUBT_S = 5.0  # without quorum: how old what is certain may be, before a node that waits gives its place up
LOOK_S = 1.0  # between two looks whether the disk is alive
# Clocks of two machines may differ in rate by this part; a lease is given up so much earlier.
CLOCK_RATE_ERROR = 0.01
# After a node's lease has ended, nobody takes over what it owned before this has passed: docs/internals/cluster.md,
# "Without quorum".
TAKEOVER_DELAY_S = 0.6


class State(Enum):
    """See the drawing above."""

    NEW = "new"
    MEMBER = "member"
    FENCED = "fenced"
    GONE = "gone"


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a node tells the others of itself: the value of its key.

    address: of its transport. clients: addresses for clients by listener, for a server reference. versions: lowest and
    highest version of streams. identity: of its data directory, which join() knows.
    """

    address: str
    identity: str = ""
    clients: dict[str, str] = {}
    pid: int = 0
    version: str = ""
    versions: tuple[int, int] = (1, 1)


class Node(NamedTuple):
    """A node with a lease. epoch: the revision at which its key was created."""

    name: str
    epoch: int
    lease: int
    registration: Registration


def dial_address(node: Node, configured: dict[str, str]) -> str:
    """Where others dial a node. configured: addresses by name; they count before those that nodes have registered."""
    return configured.get(node.name) or node.registration.address


class Membership:
    """One per node.

    name: of this node. claim: to that name. clock_s: seconds of a clock that no operator can set and that goes on while
    the machine sleeps (CLOCK_BOOTTIME), read at the call. on_deadline: called with the time by that clock until which
    this node may serve, whenever it moves. on_resumed: called when a doubt has ended well. on_fenced: called once, with
    the reason. on_node: called with a node that has appeared, or disappeared (False); a node with a new epoch
    disappears first. unfit: why this node can keep no promise although it has its lease; "": it can.
    """

    def __init__(self, name: str, store: MetadataStore, driver: Driver, ttl_s: int, *, claim: Claim,
                 clock_s: Callable[[], float], on_deadline: Callable[[float], None], on_fenced: Callable[[str], None],
                 on_node: Callable[[Node, bool], None], unfit: Callable[[], str] = str,
                 on_resumed: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.state = State.NEW
        self.registration = Registration(address="")  # until join()
        self.ttl_s = ttl_s
        self.lease = 0
        self.epoch = 0
        self.deadline_s = 0.0  # by clock_s: may serve until then
        self.lease_ends_s = 0.0  # by clock_s: until then the store surely has the lease
        self.voters: dict[int, str] = {}  # of the store, as of the last renewal: number and name
        self.waits = ""  # for whose lease it waits before it registers; "": for none
        self.nodes: dict[str, Node] = {}  # with a lease, this one too
        self.leader = ""
        self.newest = 0  # revision of the store when it last answered
        # By the driver's clock: when another node was seen to have lost its lease, or may have before this one looked.
        self.last_end_s = -TAKEOVER_DELAY_S
        self._renewed_s = 0.0  # by clock_s: when the last renewal that counts was sent
        self._claim = claim
        self._quorum_lost = False  # since the last renewal that counts, as quorum.py has found
        self._certain_s = 0.0  # by clock_s: the store has ended no lease before that, says quorum.py
        self._problem = ""  # of the newest attempt
        self._attempted_s = 0.0  # by clock_s
        self._store = store
        self._driver = driver
        self._clock_s = clock_s
        self._on_deadline = on_deadline
        self._on_resumed = on_resumed
        self._on_fenced = on_fenced
        self._on_node = on_node
        self._unfit = unfit
        self.key = node_key(name)
        self._campaigning = False

    # ------------------------------------------------------------------ join and leave

    async def join(self, registration: Registration) -> None:
        """Registers this node, when nobody else has its name. Raises JoinRefused if another process keeps it;
        OldStorage, StorageError; StoreError if the store does not answer."""
        self.registration = replace(registration, identity=self._claim.storage.identity)
        value = msgspec.json.encode(self.registration)
        while True:
            try:
                seen = await self._claim.look(self._store)
            except Taken as taken:
                self.waits = str(taken)
                await self._driver.sleep(WAIT_S)
                continue
            self.waits = ""
            if seen.former is not None:     # its data directory is locked by this process, so that one is gone
                await self._store.revoke(seen.former.lease)
            compare, change = await self._claim.stake(seen)
            sent = self._clock_s()
            lease = await self._store.grant(self.ttl_s)
            try:
                result = await self._store.transact([Compare(self.key, 0), compare],
                                                    [Change(self.key, value, lease), change])
            except LeaseGone:
                continue  # etcd took longer for the transaction than the lease lives: with another one
            if result.done:
                break
            await self._store.revoke(lease)
        self.lease, self.epoch = lease, result.revision
        self.state = State.MEMBER
        self.note_end()
        self._extend(sent, self.ttl_s)

    async def leave(self) -> None:
        """Gives up the lease and with it every key that hangs on it."""
        if self.state is State.MEMBER:
            self.state = State.GONE
            await self._store.revoke(self.lease)

    def may_serve(self) -> bool:
        """Whether this node has its lease, by the clock."""
        return self.state is State.MEMBER and self._clock_s() < self.deadline_s

    def lease_left_s(self) -> float:
        """Seconds until the deadline; 0 at least."""
        return max(0.0, self.deadline_s - self._clock_s())

    # ------------------------------------------------------------------ the lease

    async def keep(self) -> None:
        """Renews the lease until the node leaves or is fenced."""
        while self.state is State.MEMBER:
            now = self._clock_s()
            if now >= self.deadline_s and not self.may_return:
                self.fence(self._why_lost())
                return
            if why := self._unfit():
                self.fence(why)
                with contextlib.suppress(StoreError):       # then it ends by itself
                    await self._store.revoke(self.lease)    # nothing is confirmed here any more: why wait
                return
            if now >= self._next_attempt_s:
                self._attempt()
            ends_s = self._doubt_ends_s if self._quorum_lost else self.deadline_s
            left = min(self._next_attempt_s, ends_s) - self._clock_s()
            await self._driver.sleep(max(0.01, min(left, LOOK_S)))

    @property
    def _next_attempt_s(self) -> float:
        if not self.late:
            return self._attempted_s + self.ttl_s / RENEWALS_PER_TTL
        return self._attempted_s + (RETRY_S if self.deadline_s <= self.lease_ends_s else RETRY_ALONE_S)

    def hurry(self) -> None:
        """There is a leader: the lease may be renewed now."""
        if self.state is State.MEMBER and self.late and self._clock_s() >= self._attempted_s + RETRY_S / 2:
            self._attempt()

    def _attempt(self) -> None:
        self._attempted_s = self._clock_s()
        self._driver.start(self._renew_once())

    async def _renew_once(self) -> None:
        try:
            self._problem = await self._renew()
        except StoreError as error:
            self._problem = str(error)
        if not self._problem and self.state is State.MEMBER:
            with contextlib.suppress(StoreError):       # they stay those of the renewal before
                self.voters = await self._store.voters()

    @property
    def late(self) -> bool:
        """A renewal was due, and none has counted."""
        return self.state is State.MEMBER and self.silent_s > self.ttl_s / RENEWALS_PER_TTL + LATE_S

    @property
    def silent_s(self) -> float:
        """For how long no renewal has counted."""
        return self._clock_s() - self._renewed_s

    @property
    def without_quorum(self) -> bool:
        """The store has had no quorum for a while, this node serves on, and what the store should have must wait."""
        return self.late and self.silent_s > PATIENCE_S and self._quorum_lost

    @property
    def may_return(self) -> bool:
        """Whether this node, when its deadline passes, keeps its place and waits: there was no quorum."""
        return self.state is State.MEMBER and self._quorum_lost and self._clock_s() < self._doubt_ends_s

    @property
    def _doubt_ends_s(self) -> float:
        return max(self.deadline_s, self._certain_s) + DOUBT_S

    @property
    def in_doubt(self) -> bool:
        """Its deadline has passed, and it waits. Nothing may be handled or sent, and nothing given up."""
        return self.may_return and self._clock_s() >= self.deadline_s

    @property
    def why_late(self) -> str:
        """Why no renewal has counted in time; "": one has."""
        return (self._problem or "etcd does not answer") if self.late else ""

    def serve_on(self, until_s: float) -> None:
        """The store has not ended the lease and cannot before that, and nobody takes over then: the node may serve, if
        it still does, or waits in doubt. A time that is over lets it wait for longer. Decided by quorum.py."""
        if self.state is State.MEMBER and (self._clock_s() < self.deadline_s or self.may_return):
            self._quorum_lost = True
            self._certain_s = max(self._certain_s, until_s)
            if until_s > self._clock_s():
                self._serve_until(until_s)

    def _serve_until(self, at_s: float) -> None:
        if at_s > self.deadline_s:
            doubted = self.in_doubt
            self.deadline_s = at_s
            self._on_deadline(at_s)
            if doubted and self.may_serve():
                self._on_resumed()

    async def _renew(self) -> str:
        """One attempt. Returns why it does not count; "": it does."""
        sent = self._clock_s()
        renewal = await self._store.renew(self.lease)
        if self.state is State.MEMBER and renewal.ttl_s <= 0:
            self.fence("etcd has ended its lease")
        if self.state is not State.MEMBER:
            return "the node has no lease"
        read = await self._store.read(self.key)
        self.newest = max(self.newest, read.revision)
        if self.state is State.MEMBER and (not read.items or read.items[0].lease != self.lease):
            self.fence("its key in etcd is gone")
        if self.state is not State.MEMBER:
            return "the node has no lease"
        if read.term != renewal.term:
            return "etcd's leader changed during a renewal"
        self._extend(sent, renewal.ttl_s)
        return ""

    def _extend(self, sent_s: float, ttl_s: float) -> None:
        if self.deadline_s and self._clock_s() >= self.deadline_s and not self.may_return:
            # Too late, although the store has the lease: something may have been refused or left undone meanwhile.
            self.fence(self._why_lost())
            return
        self._renewed_s = max(self._renewed_s, sent_s)
        self.lease_ends_s = max(self.lease_ends_s, sent_s + ttl_s * (1 - CLOCK_RATE_ERROR))
        self._serve_until(self.lease_ends_s)
        if self.may_serve():
            self._quorum_lost = False

    def _why_lost(self) -> str:
        why = self._problem or ("etcd has not answered, or this process stood still; if this comes again, raise "
                                "cluster.lease_ttl")
        return f"the lease of {self.ttl_s} s was not renewed in time ({why})"

    def fence(self, why: str) -> None:
        """The node must not serve any more: it has lost its lease. Does nothing the second time."""
        if self.state is State.MEMBER:
            self.state = State.FENCED
            self.deadline_s = 0.0
            self._on_deadline(0.0)
            self._on_fenced(why)

    # ------------------------------------------------------------------ what the feed reports

    def has_ended(self, events: Sequence[Event]) -> bool:
        """Whether this node has lost its lease, also by one of these events; to be asked before any of them counts."""
        for event in events:
            if event.key == self.key:
                self._on_own_key(event)
        return self.state is State.FENCED

    def on_event(self, event: Event) -> None:
        """A change below `/mqtt/nodes/`, or of the leader's key."""
        if event.key == LEADER:
            self.leader = "" if event.value is None else event.value.decode(errors="replace")
            return
        name = node_of(event.key)
        if name is None:
            return
        if name == self.name:
            self._on_own_key(event)
        known = self.nodes.get(name)
        if known is not None and (event.value is None or event.created != known.epoch):
            del self.nodes[name]
            if name != self.name:
                self.note_end()
            self._on_node(known, False)
            known = None
        if event.value is not None:
            node = Node(name, event.created, event.lease, _registration(event.value))
            self.nodes[name] = node
            if known is None:
                self._on_node(node, True)

    def _on_own_key(self, event: Event) -> None:
        if self.state is State.MEMBER and event.revision >= self.epoch and (event.value is None
                                                                             or event.lease != self.lease):
            self.fence("its key in etcd was deleted")

    # ------------------------------------------------------------------ the leader

    async def campaign(self) -> None:
        """Becomes the leader when there is none; to be called after each batch of events."""
        if self.leader or self._campaigning or self.state is not State.MEMBER:
            return
        self._campaigning = True
        try:
            await self.wait_takeover_delay()        # the former leader may still act
            if self.leader or self.state is not State.MEMBER:
                return
            await self._store.transact([Compare(LEADER, 0), Compare(self.key, self.epoch)],
                                       [Change(LEADER, self.name.encode(), self.lease)])
        except StoreError:
            await self._driver.sleep(RETRY_S)
        finally:
            self._campaigning = False

    @property
    def is_leader(self) -> bool:
        """Whether this node is the leader, by its key and its lease."""
        return self.leader == self.name and self.may_serve()

    def note_end(self) -> None:
        """A lease of another node may just have ended."""
        self.last_end_s = self._driver.now()

    @property
    def takeover_delay_s(self) -> float:
        """How long nothing may be taken over yet; 0 or less: it may. The node whose lease has ended may serve on for a
        moment: quorum.py."""
        return self.last_end_s + TAKEOVER_DELAY_S - self._driver.now()

    async def wait_takeover_delay(self) -> None:
        """Until enough time has passed since a lease of another node ended."""
        while (left := self.takeover_delay_s) > 0:
            await self._driver.sleep(max(left, 0.001))      # a clock of ms may not move in less


def _registration(value: bytes) -> Registration:
    try:
        return msgspec.json.decode(value, type=Registration)
    except MALFORMED:
        return Registration(address="")
