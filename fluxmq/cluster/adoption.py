"""The persistent sessions of nodes that have died: who takes them, and when what was kept for them is sent.

A life is a node in one epoch. After the end of a life, on every node:

    orphans ──each takes those that fall to it──► none is left ──Adopting to all──► Adopted from all
                    ▲                                  │                                 │
                    └── an adopter has died ───────────┴─────────────────────────────────┤
                                                                                         ▼
                          what was parked, directed to the sessions of that life; LifeCut; the hop is removed: SETTLED

An adopted session:

    (orphan) ──owner's key, data──► TAKEN ──made from its keys, or the stored one──► MOVING ──LifeCut of all──► ordinary
                                                                                       │
                                     takes what is directed to its life, nothing else ─┘

Lives that have a session in common (it was adopted twice) are settled at one instant, in the order in which they ended,
so such a session waits for the newest one only.
docs/internals/cluster.md, "Persistent sessions outlive their node". It is one file because both drawings are about the
same sessions: a step of one is what the other waits for.
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal, Protocol

import msgspec

from fluxmq._core.hub.moving import MovingSession
from fluxmq._core.pubsub.session import Session as HeldSession
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.kept import KeptSessions, SessionData, subscription_of
from fluxmq.cluster.keys import DATA, client_key
from fluxmq.cluster.left_sessions import LeftSessions
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.messages import Adopted, Adopting, LifeCut, Serving, encode
from fluxmq.cluster.owners import Owners, Session
from fluxmq.cluster.peers import OWN_CLIENTS, Peer, Peers
from fluxmq.cluster.ports import Change, Compare, Log, StoreError
from fluxmq.cluster.rendezvous import ranked
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.driver import Driver, Promise, fulfil
from fluxmq.engine.sessions.state import Head, Subscription

__all__ = ["Adoption"]

PERIOD_S = 0.25
RETRY_S = 0.1
WORKERS_MAX = 128  # sessions that are being taken at once
RETURN_S = 30.0  # so long the sessions of a node are left to its new life
LIVES_MAX = 8  # that a session remembers
LIVES_KEPT = 1024  # of settled lives


class _Life:
    """A life that has ended and is not settled. node: whose it was; "": it ended before this node came."""

    def __init__(self, life: int, node: str, parked: Peer | None) -> None:
        self.life = life
        self.node = node
        self.parked = parked  # what is kept for it; None: nothing
        self.asked = 0  # the revision of the question that is open; 0: none is
        self.waits: set[str] = set()  # who has not answered
        self.counts: dict[str, int] = {}  # sessions that others have adopted


class _Coming:
    """A session that this node has taken, or is taking. moving: since it is made. life: whose LifeCut it waits for.
    wanted: its client is here, so it is taken although it falls to another node."""

    def __init__(self, life: int, lives: tuple[int, ...], done: Promise[None]) -> None:
        self.life = life
        self.lives = lives
        self.done = done
        self.wanted = False
        self.moving: MovingSession | None = None
        self.waits: set[str] = set()  # nodes whose LifeCut has not come, this one too


class Tails(Protocol):
    """Sessions that were taken over from nodes (`cluster/takeover.py`)."""

    def wants_from(self, life: int) -> int | None:
        """How many of those that this node has taken over are not whole, and wait for what that life of their former
        owner has; None: it is not certain yet."""


class Adoption:
    """One per life of a node. left: sessions that were on their way when they lost their owner. `tails` is set by the
    takeovers, which are made with this."""

    def __init__(self, *, broker: Broker, membership: Membership, feed: Feed, owners: Owners, kept: KeptSessions,
                 peers: Peers, driver: Driver, serves: Callable[[], bool],
                 left: LeftSessions, log: Log) -> None:
        self.tails: Tails
        self._broker = broker
        self._membership = membership
        self._feed = feed
        self._owners = owners
        owners.unowned = self
        self._kept = kept
        kept.lives = self
        self._peers = peers
        self._driver = driver
        self._serves = serves
        self._left = left
        self._log = log
        self._of_life: dict[int, set[Session]] = {}  # sessions of the store by the lives from which something may come
        self._unowned: dict[Session, None] = {}  # those of the store that have no owner; in the order of their loss
        self._lives: dict[int, _Life] = {}  # that are not settled, in the order of their ends
        self._settled: dict[int, None] = {}
        self._coming: dict[Session, _Coming] = {}
        self._fading: dict[Session, tuple[int, ...]] = {}  # lives of ordinary ones whose messages are not on disk yet
        self._working = 0
        self._retry: dict[Session, Promise[None]] = {}  # who waits for a session that is not being taken yet
        self._questions: dict[tuple[str, int], int] = {}  # (node, life) -> revision
        self._cut: dict[int, set[str]] = {}  # by life: who has sent its LifeCut
        self._passing: list[tuple[int, set[str], Promise[None]]] = []
        self._appeared: dict[str, float] = {}  # when a node was seen to appear
        self._serving: set[str] = set()
        self._leaving: set[str] = set()
        self._joined = 0.0
        self._ready: Promise[None] | None = None  # begin() waits for it
        self._begun = False
        self._closed = False
        self.pending = False  # see AtEnd
        self._scheduled = False
        self._others: set[Session] = set()  # orphans that fall to other nodes, as of the last period

    # ------------------------------------------------------------------ life of this node

    async def begin(self) -> None:
        """Every peer is known, and the feed is loaded. Returns when no session of a dead node is left of which this
        node knows too little to serve clients."""
        self._begun, self._joined = True, self._driver.now()
        self._driver.start(self._keep_time())
        ready = self._ready = self._driver.promise()
        self.look()
        await ready

    def serving(self, serves: bool = True) -> None:
        """This node serves clients from now on; False: it leaves, and takes nothing any more."""
        for peer in self._peers.peers.values():
            peer.outbox.control(encode(Serving(serves=serves)))

    def close(self) -> None:
        """Nothing is taken or sent any more."""
        self._closed = True

    async def _keep_time(self) -> None:
        while not self._closed:
            await self._driver.pace(PERIOD_S)
            self._others.clear()
            self.look()
            retry, self._retry = self._retry, {}
            for promise in retry.values():
                _end_if(True, promise)

    # ------------------------------------------------------------------ what the store has

    def on_data(self, session: Session, before: SessionData | None, after: SessionData | None) -> None:
        """For KeptSessions."""
        for life in _lives_of(before):
            if (members := self._of_life.get(life)) is not None:
                members.discard(session)
                if not members:
                    del self._of_life[life]
        for life in _lives_of(after):
            self._of_life.setdefault(life, set()).add(session)
        if self._begun and (self._lives or not self._lives_now().issuperset(_lives_of(after))):
            self.pending = True
        self.on_entry(session, session in self._owners.entries)

    def on_entry(self, session: Session, present: bool) -> None:
        """For Owners. Nothing is to be looked at when the owner of a session is another one than before."""
        if not present and self._kept.data(session) is not None:
            self._unowned.setdefault(session)
        elif session in self._unowned:
            del self._unowned[session]
        elif present and self._ready is None:
            return
        self.pending = True

    def on_batch(self) -> None:
        """See AtEnd."""
        self.look()

    # ------------------------------------------------------------------ nodes come and go

    def on_appeared(self, peer: Peer) -> None:
        """A node has appeared; its stream has our interest."""
        self._appeared[peer.name] = self._driver.now()
        if self._serves():
            peer.outbox.control(encode(Serving()))
        for life in self._lives.values():
            if life.asked:
                self._ask(life, peer)

    def on_gone(self, peer: Peer) -> None:
        """A node's lease has ended. What is kept for it is in its outbox, if that is parked."""
        self._serving.discard(peer.name)
        self._leaving.discard(peer.name)
        self._appeared.pop(peer.name, None)
        self._lives[peer.node.epoch] = _Life(peer.node.epoch, peer.name, peer if peer.outbox.parked else None)
        for life in self._lives.values():
            life.waits.discard(peer.name)
            life.counts.pop(peer.name, None)
        for key in [key for key in self._questions if key[0] == peer.name]:
            del self._questions[key]
        for session, coming in list(self._coming.items()):
            if coming.moving is not None:
                coming.moving.accept(peer.slot, True)
            self._passed(session, coming, peer.name)
        for _, waits, promise in self._passing:
            waits.discard(peer.name)
            _end_if(not waits, promise)
        self.pending = True              # its owners' keys are in the same batch

    def _lives_now(self) -> set[int]:
        return {node.epoch for node in self._membership.nodes.values()}

    # ------------------------------------------------------------------ whose is it

    def look(self) -> None:
        """Takes what falls to this node, and settles what can be."""
        self.pending = False
        if self._closed or not self._begun or not self._membership.may_serve():
            return
        alive = self._lives_now()
        for epoch in sorted(self._of_life):
            if epoch not in alive and epoch not in self._settled and epoch not in self._lives:
                self._lives[epoch] = _Life(epoch, "", None)     # it ended before this node came
        self._take_what_is_ours(alive)
        self._settle()
        self._answer()
        self.pending = bool(self._questions)    # they wait for a revision, or for sessions of others
        if self._ready is not None and not self._lives and not self._broker_waits():
            fulfil(self._ready, None)
            self._ready = None

    def _broker_waits(self) -> bool:
        """Whether a stored session may become this node's own."""
        return any(session not in self._owners.entries for session in self._broker.stored)

    def _take_what_is_ours(self, alive: set[int]) -> None:
        for session in list(self._unowned):
            if self._working >= WORKERS_MAX:
                return
            data = self._kept.data(session)
            if session in self._others or session in self._coming or data is None or data.epoch in alive:
                continue
            if self._falls_to(session, data) == self._membership.name:
                self._begin(session, data)
            else:
                self._others.add(session)
        for session, held in list(self._broker.stored.items()):
            if self._working >= WORKERS_MAX:
                return
            if not held.data.identity and self._kept.data(session) is None and session not in self._coming and (
                    session not in self._owners.entries):
                self._begin(session, None)      # it was here before this node was in a cluster

    def _falls_to(self, session: Session, data: SessionData) -> str:
        """The node that is to adopt an orphan; "": none yet."""
        nodes, now = self._membership.nodes, self._driver.now()
        if data.node in nodes and now < self._appeared.get(data.node, self._joined) + RETURN_S:
            return data.node
        serving = {name for name in self._serving if name in nodes}
        if self._serves():
            serving.add(self._membership.name)
        if not serving and now < self._joined + self._membership.ttl_s:
            return ""                   # all nodes have restarted: each has its own sessions on its disk
        return ranked(serving or nodes, session)[0]

    def wait(self, session: Session) -> Promise[None] | None:
        """For Owners: who claims a session waits for this, and looks again."""
        coming = self._coming.get(session)
        if coming is not None:
            return coming.done
        if session in self._broker.stored or self._is_orphan(session):
            data = self._kept.data(session)
            if session in self._unowned and data is not None and self._begun and self._serves():
                coming = self._begin(session, data)
                coming.wanted = True        # its client is here
                return coming.done
            if session not in self._retry:
                self._retry[session] = self._driver.promise()
            return self._retry[session]
        return None

    def _is_orphan(self, session: Session) -> bool:
        return session in self._unowned and (
            data := self._kept.data(session)) is not None and data.epoch not in self._lives_now()

    # ------------------------------------------------------------------ taking one

    def _begin(self, session: Session, data: SessionData | None) -> _Coming:
        lives = () if data is None else _lives_of(data)[:LIVES_MAX]
        coming = self._coming[session] = _Coming(0 if data is None else data.epoch, lives, self._driver.promise())
        self._working += 1
        self._driver.start(self._take(session, data, coming))
        return coming

    async def _take(self, session: Session, data: SessionData | None, coming: _Coming) -> None:
        try:
            await self._membership.wait_takeover_delay()
            # A node that restarts is gone for a moment: its new life has come meanwhile.
            made = ((data is None or coming.wanted or self._falls_to(session, data) == self._membership.name)
                    and await self._take_now(session, data, coming))
            if not made:
                await self._driver.sleep(RETRY_S)           # what has changed is reported
        except StoreError:
            made = False                        # only when the node ends
        except BaseException:
            self._forget(session, coming)
            raise
        finally:
            self._working -= 1
        if not made:
            self._forget(session, coming)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._driver.start(self._look_soon())

    async def _look_soon(self) -> None:
        await self._driver.sleep(0)
        self._scheduled = False
        self.look()

    async def _take_now(self, session: Session, data: SessionData | None, coming: _Coming) -> bool:
        member, held = self._membership, self._left.held(session) or self._broker.stored.get(session)
        if session in self._broker.sessions and self._left.held(session) is None:
            return False            # it is on its way to a node that has just died (takeover.py)
        now = data
        if now is None:
            assert held is not None
            now = SessionData(node="", epoch=0, expiry=held.data.expiry_s, username=held.data.username,
                              identity=f"{member.epoch}.{held.number}.stored")
        is_same = held is not None and held.data.identity in ("", now.identity)
        mine = msgspec.structs.replace(now, node=member.name, epoch=member.epoch, lives=coming.lives, away=not is_same)
        key = client_key(DATA, *session)
        if not await self._owners.obtain(session, [Compare(key, self._kept.revision(session) if data else 0)],
                                         [Change(key, self._kept.encoded(mine))]):
            return False
        filters = await self._subscriptions(session)
        if session not in self._owners.owned or self._closed:
            return False
        taken = self._left.store(session)
        if held is not None and is_same and self._broker.stored.get(session) is held:
            self._broker.take_stored(held, now.identity)
        else:
            if held is not None and self._broker.stored.get(session) is held:
                self._broker.drop_stored(held, ended=True)  # of another session of this client, which has ended
            found = [Subscription(filter_, each.options, each.identifier, each.consume)
                     for filter_, value in filters.items() if (each := subscription_of(value)) is not None]
            held = self._broker.adopt(*session, Head(session[1], 0, 0, now.expiry, False, 0, 0, True,
                                                     username=now.username, identity=now.identity), found,
                                       member.epoch)
        self._kept.adopted(session, filters)
        self._move(session, held, coming, taken)
        return True

    async def _subscriptions(self, session: Session) -> dict[bytes, bytes]:
        while True:
            try:
                return await self._kept.subscriptions(session)
            except StoreError as error:
                if not error.retry or self._closed:
                    raise
                await self._driver.sleep(RETRY_S)

    def _move(self, session: Session, held: HeldSession, coming: _Coming, taken: frozenset[int]) -> None:
        """It is made: from now on it takes what is directed to it, and goes on taking what comes from these sources."""
        if not coming.lives or coming.life in self._settled:
            self._complete(session, coming)
            return
        peers = self._peers
        moving = coming.moving = MovingSession(held, True, coming.lives)
        moving.accept(OWN_CLIENTS, False)
        coming.waits.add(peers.name)
        for peer in peers.peers.values():
            if peer.name not in self._cut.get(coming.life, ()):
                moving.accept(peer.slot, False)
                coming.waits.add(peer.name)
        for source in taken:
            moving.accept(source, True)

    def _passed(self, session: Session, coming: _Coming, node: str) -> None:
        """A node will send nothing more of the former life."""
        coming.waits.discard(node)
        if coming.moving is not None and not coming.waits:
            self._complete(session, coming)

    def _complete(self, session: Session, coming: _Coming) -> None:
        self._forget(session, coming)
        held = self._broker.sessions.get(session)
        if held is None or self._closed:
            return
        self._broker.begin_timers(held)
        self._fading[session] = coming.lives

        def durable() -> None:
            if self._fading.pop(session, None) is not None:
                self._kept.settled(session)

        # What was directed to it, and is not on disk yet, is directed again if this node dies now.
        self._broker.hub.when_all_durable(durable)
        self._broker.hub.wake_up()

    def _forget(self, session: Session, coming: _Coming) -> None:
        if self._coming.get(session) is coming:
            del self._coming[session]
        if coming.moving is not None:
            coming.moving.restore()
        fulfil(coming.done, None)

    def ended(self, session: Session) -> None:
        """A session of this node has ended, or another node has it."""
        coming = self._coming.get(session)
        if coming is not None and coming.moving is not None:
            self._forget(session, coming)

    def is_taking(self, session: Session) -> bool:
        """Whether this node is making it its own, or tries to."""
        coming = self._coming.get(session)
        return coming is not None and coming.moving is None

    def lives_of(self, session: Session) -> tuple[int, ...]:
        """The lives of which something may still come for a session of this node."""
        coming = self._coming.get(session)
        return self._fading.get(session, ()) if coming is None else coming.lives

    # ------------------------------------------------------------------ settling a life

    def _settle(self) -> None:
        """Goes on with all lives that are not settled."""
        answered = {life.life for life in self._lives.values() if self._is_answered(life)}
        for life in list(self._lives.values()):
            if life.life in answered & self._lives.keys():
                together = self._together(life)
                if answered.issuperset(each.life for each in together):
                    for each in together:
                        self._end(each)

    def _is_answered(self, life: _Life) -> bool:
        """Whether every node has told that it has its sessions of this life. Asks them when it is time."""
        if not self._is_made(life.life):
            life.asked = 0
            return False
        if not life.asked:
            life.asked, life.waits = self._feed.revision, set()
            for peer in self._peers.peers.values():
                self._ask(life, peer)
        return not life.waits

    def _together(self, life: _Life) -> list[_Life]:
        """The lives that are settled at one instant, because a session came from several of them: what was published to
        it behind the LifeCut of one and before that of another would be for nobody."""
        if len(self._lives) == 1:
            return [life]
        found, more = set[int](), {life.life}
        while more:
            of = more.pop()
            found.add(of)
            for session in self._of_life.get(of, ()):
                more.update(each for each in _lives_of(self._kept.data(session))
                            if each in self._lives and each not in found)
        return [each for each in self._lives.values() if each.life in found]

    def _is_made(self, life: int) -> bool:
        """Whether no orphan of a life is left, as far as this node sees, and those that it has taken are made."""
        members = self._of_life.get(life, set())
        return members.isdisjoint(self._unowned) and self.tails.wants_from(life) is not None and not any(
            coming.moving is None and life in coming.lives for coming in self._coming.values())

    def _count(self, life: int) -> int:
        """How many sessions of this node take what is directed to those of a life: adopted ones, and ones that were
        taken over when their owner died."""
        return sum(life in coming.lives for coming in self._coming.values()) + (self.tails.wants_from(life) or 0)

    def _ask(self, life: _Life, peer: Peer) -> None:
        life.waits.add(peer.name)
        peer.outbox.control(encode(Adopting(life=life.life, revision=life.asked)))

    def on_adopting(self, peer: Peer, message: Adopting) -> None:
        """A question."""
        self._questions[peer.name, message.life] = message.revision
        self.pending = True
        self._answer()

    def _answer(self) -> None:
        if self._closed or not self._begun:
            return
        for (name, life), revision in list(self._questions.items()):
            if self._feed.revision >= revision and self._is_made(life) and (
                    peer := self._peers.peers.get(name)) is not None:
                del self._questions[name, life]
                peer.outbox.control(encode(Adopted(life=life, revision=revision, count=self._count(life))))

    def on_adopted(self, peer: Peer, message: Adopted) -> None:
        """An answer."""
        life = self._lives.get(message.life)
        if life is not None and message.revision == life.asked:
            life.waits.discard(peer.name)
            life.counts[peer.name] = message.count
            # Not at once: the frame that has brought this would be acknowledged only when the others have what is
            # directed to them now, and two nodes that direct something to each other would wait for each other.
            self._schedule()

    def _end(self, life: _Life) -> None:
        """Everybody has adopted: what was kept goes to the adopters, and what is published from now on does, too."""
        peers = self._peers
        del self._lives[life.life]
        self._settled[life.life] = None
        while len(self._settled) > LIVES_KEPT:
            del self._settled[next(iter(self._settled))]
        self._broker.share_groups.settled(life.life)
        here = self._count(life.life)
        if life.parked is not None:
            peers.direct(life.parked, [peer for peer in peers.peers.values() if life.counts.get(peer.name, 0)],
                         here > 0)
        elsewhere = sum(life.counts.values())
        if here or elsewhere:
            self._log("info", "", "the sessions of a node whose lease has ended are adopted", {
                "node": life.node or "unknown", "epoch": life.life, "here": here, "elsewhere": elsewhere})
        for peer in peers.peers.values():
            peer.outbox.control(encode(LifeCut(life=life.life)))
        self._heard(life.life, peers.name, OWN_CLIENTS)

    def on_cut(self, peer: Peer, message: LifeCut) -> None:
        """A node has sent what it kept for a life."""
        self._heard(message.life, peer.name, peer.slot)

    def _heard(self, life: int, node: str, slot: int) -> None:
        self._cut.setdefault(life, set()).add(node)
        self._left.on_cut(life, slot)
        while len(self._cut) > LIVES_KEPT:
            del self._cut[next(iter(self._cut))]
        for session, coming in list(self._coming.items()):
            if coming.life == life and coming.moving is not None:
                coming.moving.accept(slot, True)
                self._passed(session, coming, node)
        for of, waits, promise in self._passing:
            if of == life:
                waits.discard(node)
                _end_if(not waits, promise)
        self._passing = [each for each in self._passing if not each[2].done()]

    def cut_by(self, life: int) -> Collection[str]:
        """The other nodes that have sent what they kept for a life that has ended."""
        return self._cut.get(life, ())

    async def passed(self, life: int) -> None:
        """Returns when every node has sent what it kept for a life that has just ended."""
        waits = {self._membership.name, *self._peers.peers} - self._cut.get(life, set())
        if waits:
            promise: Promise[None] = self._driver.promise()
            self._passing.append((life, waits, promise))
            await promise

    def on_serving(self, peer: Peer, message: Serving) -> None:
        """A node serves clients, or leaves."""
        if message.serves:
            self._serving.add(peer.name)
        else:
            self._serving.discard(peer.name)
            self._leaving.add(peer.name)
        self._others.clear()

    def state_of(self, node: str) -> Literal["joining", "serving", "leaving"]:
        """What another node with a lease has told of itself."""
        return "serving" if node in self._serving else "leaving" if node in self._leaving else "joining"

    @property
    def parked(self) -> int:
        """Number of lives that are not settled."""
        return len(self._lives)


def _lives_of(data: SessionData | None) -> tuple[int, ...]:
    return () if data is None else (data.epoch, *data.lives)


def _end_if(done: bool, promise: Promise[None]) -> None:
    if done:
        fulfil(promise, None)
