"""A session moves to the node where its client has connected.

    new owner                                        old owner
    call "takeover" ───────────────────────────────► FROZEN: the client is told 0x8E, what arrives is queued
      parts ◄───────────────────────────────────────   the session at that instant
    on disk here; the owner's key changes ─ the feed ► FORWARDING
    session active, but deaf to every other node
    Switch in the stream to each node ─────────────► this source is cut off; Cut to the new owner
         each other node: Cut to both, in the streams
      this source counts from now on ◄── Cut           the source is cut off
                                                      every source is cut off, or its node is gone:
      tail ◄── call "tail" ─────────────────────────── what was queued since; the session ends here
    every source counts and the tail is here: CONNACK

A client does not wait for nodes that do not answer (limit_s). The takeover is *late* then: the client is there, and the
session still takes nothing from a source before its Cut, since that counts at the old owner and comes with the tail.
If the session moves on meanwhile, that goes on at the node in between.

Messages of a source (a node, and the clients connected to it) reach the old owner before its Cut and count there;
behind it they reach the new owner and count there. Both streams carry the Cut, and streams keep their order. So
whatever the source knew of either node's interest, the session gets each message once, in the order of its publisher.

The old owner takes the session back (unfreeze) only after it has changed its owner key itself, so that the transaction
of the other node fails.

Of two CONNECTs the later one gets the session, wherever each is and whichever gets on faster. So an owner with a client
first answers how long ago the CONNECT of that one came (ClientHere). Who has asked calls again, unless its own CONNECT
came before that.

It is one file because the two sides are one protocol: each line of one answers a line of the other.
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.moving import MovingSession
from fluxmq._core.pubsub.session import Session as HeldSession
from fluxmq.cluster.adoption import Adoption
from fluxmq.cluster.left_sessions import LeftSessions
from fluxmq.cluster.messages import (
    ClientHere,
    Cut,
    Switch,
    TailCall,
    TakeoverCall,
    client_here_of,
    encode,
    tail_of,
    takeover_of,
)
from fluxmq.cluster.owners import NotHandedOver, Owners, Session
from fluxmq.cluster.peers import OWN_CLIENTS, SLOTS, Peer, Peers
from fluxmq.cluster.ports import CallFailed, Log, Transport
from fluxmq.cluster.recorded import recorded
from fluxmq.cluster.takes import NOBODY
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.cluster import Owner
from fluxmq.engine.ports.driver import Driver, Promise, fulfil
from fluxmq.engine.sessions.transfer import Arrival, Departure, covered_by, freeze
from fluxmq.model.malformed import MALFORMED
from fluxmq.model.mqtt import ReasonCode

__all__ = ["TAIL", "TAKEOVER", "Takeovers"]

TAKEOVER, TAIL = "takeover", "tail"  # methods of Transport.call
GONE = b"gone"  # answer to TAIL
CALL_S = 10.0  # of one call
KEY_S = 10.0  # how long the old owner waits for the change of the owner's key, after the last part
RETRY_S = 0.2
TURN_S = 0.001
EARLY_MAX = 1024  # Cuts that are kept for a Switch, which comes at once, or never
EARLY = 0.5  # of the limit: then the old owner sends what it has, although a source has not cut


class _Going:
    """A session that is being handed over; at the old owner. epoch: of the owner that this node is."""

    def __init__(self, departure: Departure, moving: MovingSession, epoch: int, to: str, life: int,
                 settled: Promise[bool]) -> None:
        self.departure = departure
        self.moving = moving
        self.epoch = epoch
        self.to = to
        self.to_epoch = 0  # of the owner that has taken it; 0: it has not said so yet
        self.life = life  # epoch of that node
        self.settled = settled  # True: the other node owns it; False: it stays
        self.waits: set[str] = set()  # nodes whose Cut has not come
        self.early: dict[str, int] = {}  # nodes that have cut for this epoch or a later one before the Switch came
        self.switched = False
        self.ready: Promise[None] | None = None
        self.given_up = False  # the other node has died with the session: it is left to its adopters

    def is_cut_by(self, cut: Cut) -> bool:
        """Whether it is of this takeover. One of the takeover by which the session came here is late when its sender
        was cut off meanwhile, and what that one sends behind it counts here still."""
        return cut.epoch == self.to_epoch if self.to_epoch else cut.epoch > self.epoch


class _Coming:
    """A session that is being taken over; at the new owner."""

    def __init__(self, arrival: Arrival, moving: MovingSession, former: str, epoch: int,
                 done: Promise[None]) -> None:
        self.arrival = arrival
        self.moving = moving
        self.former = former
        self.epoch = epoch
        self.waits: set[str] = set()  # nodes whose Cut has not come
        self.whole = False  # the tail is complete, or nobody can send it any more
        self.done = done  # the client waits no longer

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self.whole and not self.waits


class Takeovers:
    """Both sides, of one life of a node. limit_s: how long a client waits for nodes that do not answer. left: what is
    handed over to a node that dies."""

    def __init__(self, *, broker: Broker, owners: Owners, adoption: Adoption, peers: Peers,
                 left: LeftSessions, transport: Transport, driver: Driver, limit_s: float, log: Log) -> None:
        self._broker = broker
        self._owners = owners
        owners.handovers = self
        self._adoption = adoption
        adoption.tails = self
        self._peers = peers
        self._transport = transport
        self._driver = driver
        self._limit_s = limit_s
        self._left = left
        self._log = log
        self._going: dict[Session, _Going] = {}
        self._empty: set[Session] = set()  # those of which there was nothing to hand over; nobody connects to them here
        self._coming: dict[Session, _Coming] = {}
        self._late: dict[Session, _Coming] = {}  # those that are not complete, whose client waits no longer
        # Copies that a session's former owner may still send of what its client had published there: (session, owner),
        # with the epoch of the owner whose takeover ends them.
        self.late_copies: dict[tuple[Session, str], int] = {}
        self._cut_early: dict[tuple[Session, str], int] = {}  # Cuts ahead of their Switch: epoch of the new owner
        # What was fetched, until this node owns it or has abandoned it; and the life of its former owner.
        self.fetched: dict[Session, tuple[Arrival, int]] = {}

    @property
    def under_way(self) -> int:
        """Number of sessions that are being handed over, in either direction."""
        return len(self._going) + len(self._coming)

    # ------------------------------------------------------------------ the new owner

    async def fetch(self, session: Session, owner: Owner, clean_start: bool,
                    asked: Callable[[], int]) -> Arrival | None:
        """Asks the owner for the session. When it returns, the former owner serves it no more, and what it had is on
        this node's disk; None: there is nothing of it, or the client does not want it. asked: see Owners. Raises
        NotHandedOver; ProtocolError when this node cannot keep it, or the client has connected to the owner since, or
        nobody wants it any more."""
        peers = self._peers
        peer = peers.peers.get(owner.node)
        if peer is None or not peer.outbox.attached:
            raise NotHandedOver(f"node {owner.node} cannot be reached")
        namespace = self._broker.hub.namespaces[session[0]]
        arrival = Arrival(self._broker, namespace, session[1])
        displaces = NOBODY
        try:
            while True:
                call = TakeoverCall(**peers.call_to(peer, session), owner_epoch=owner.epoch, clean=clean_start,
                                    displaces=displaces)
                sent_ms = self._now_ms()
                client = await self._receive(self._transport.call(peer.address, TAKEOVER, encode(call),
                                                                  CALL_S), arrival)
                if client is None:
                    break
                if client.asked_ms <= displaces:
                    raise CallFailed("it names a client that was to be displaced")
                # The other node's clock is not known: its answer is taken for one of the middle of the call.
                came_ms = (sent_ms + self._now_ms()) // 2 - client.age_ms
                if (asked_ms := asked()) == NOBODY or came_ms > asked_ms:
                    raise ProtocolError(ReasonCode.SERVER_BUSY, f"the client has connected to node {owner.node} since")
                displaces = client.asked_ms
            if arrival.session is None:
                return None
            arrival.finish()
        except CallFailed as error:
            arrival.abandon()
            raise NotHandedOver(f"node {owner.node} did not hand the session over: {error}") from None
        except BaseException:
            arrival.abandon()
            raise
        await self.durable()
        self.fetched[session] = arrival, peer.node.epoch
        return arrival

    def wants_from(self, life: int) -> int | None:
        """For Adoption: how many sessions that this node has taken over from a node in this life still lack what other
        nodes had sent to that one. None: it is not certain yet which sessions these are."""
        if any(life == of and not arrival.ended for arrival, of in self.fetched.values()):
            return None
        return sum(life in coming.moving.lives for coming in (*self._coming.values(), *self._late.values()))

    @staticmethod
    async def _receive(answer: AsyncIterator[bytes], arrival: Arrival) -> ClientHere | None:
        """Feeds the session to its arrival. Returns the client because of which the owner keeps it. Raises CallFailed;
        ProtocolError."""
        client = None
        async for part in answer:
            if arrival.session is None and part[:1] > b"\x7f":
                try:
                    client = client_here_of(part)
                except MALFORMED as error:
                    raise CallFailed(f"not an answer: {error}") from None
            else:
                arrival.feed(part)
        return client

    async def durable(self) -> None:
        """Returns when everything that was recorded on this node so far is on its disk. It does not wait for other
        nodes: what they confirm or refuse is not of the session that comes here."""
        await recorded(self._driver, self._broker.hub)

    async def complete(self, session: Session, arrival: Arrival, former: Owner, epoch: int) -> None:
        """This node owns the session now. Returns when it has everything that was published to it, or when those who
        should send it are gone or late."""
        peers = self._peers
        _, life = self.fetched.pop(session, (arrival, 0))
        arrival.activate()
        held = self._broker.sessions[session]
        origins = self._broker.hub.origins
        origins.watch(True)         # before any node hears of the Switch
        moving = MovingSession(held, True, (life,), notes=True)
        coming = self._coming[session] = _Coming(arrival, moving, former.node, epoch, self._driver.promise())
        for peer in peers.peers.values():
            coming.waits.add(peer.name)
            moving.accept(peer.slot, False)
            peer.outbox.control(encode(self._switch(session, coming)))
        owner = peers.peers.get(former.node)
        if owner is None or owner.node.epoch != life:       # its lease has ended meanwhile
            self._driver.start(self._whole_later(session, coming, life))
        self._look_at(session, coming)
        self._driver.start(self._limit(coming))
        try:
            await self._driver.end_of(coming.done)
        finally:
            self._coming.pop(session, None)
            if coming.complete:
                moving.restore()
                origins.watch(False)
            else:
                self._late[session] = coming

    def ended(self, session: Session) -> None:
        """A session of this node has ended, or another node has it."""
        if self._late.pop(session, None) is not None:
            self._broker.hub.origins.watch(False)

    def _late_of(self, session: Session) -> _Coming | None:
        late = self._late.get(session)
        if late is not None and late.arrival.ended:     # its client has begun another session here
            self.ended(session)
            return None
        return late

    def _look_at(self, session: Session, coming: _Coming) -> None:
        """Ends the wait of the client when nothing is missing, or what a late takeover has left."""
        if coming.complete and not coming.done.done():
            coming.done.set_result(None)
        elif coming.complete and self._late.get(session) is coming:
            self.ended(session)
            if session not in self._going:
                coming.moving.restore()

    @staticmethod
    def _switch(session: Session, coming: _Coming) -> Switch:
        return Switch(namespace=session[0], client_id=session[1], epoch=coming.epoch, former=coming.former)

    async def _limit(self, coming: _Coming) -> None:
        await self._driver.sleep(self._limit_s)
        if not coming.done.done():
            self._log("warning", "", "a session was taken over, but a node has not answered in time: messages that it "
                      "still holds come later, perhaps out of order",
                      {"client_id": coming.arrival.client_id.decode(), "waited_for": ", ".join(sorted(coming.waits)),
                       "former": coming.former})
            coming.done.set_result(None)

    def greet(self, peer: Peer) -> None:
        """A node has appeared: it is told of the sessions that are being taken over, before all of our interest is
        known to it."""
        for session, coming in (*self._coming.items(), *self._late.items()):
            peer.outbox.control(encode(self._switch(session, coming)))

    # ------------------------------------------------------------------ the old owner

    async def hand_over(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "takeover": the parts of the session. Raises CallFailed."""
        owners = self._owners
        try:
            call = takeover_of(body)
        except MALFORMED as error:
            raise CallFailed(f"not a takeover: {error}", reached=False) from None
        session = call.namespace, call.client_id
        while (coming := self._coming.get(session)) is not None:
            # It is not whole yet: the client has moved on before that.
            await self._driver.end_of(coming.done)
            await self._driver.sleep(TURN_S)
        self._peers.caller_of(call)
        if self._peers.membership.late:
            raise CallFailed("etcd has no quorum, so the session cannot change hands", reached=False)
        while (waiting := self._adoption.wait(session)) is not None:
            await self._driver.end_of(waiting)
        owner = owners.owned_epoch(session)
        if owner != call.owner_epoch:
            raise CallFailed(f"this node does not own the session with epoch {call.owner_epoch}", reached=False)
        if session in self._going or session in self._empty:
            raise CallFailed("the session is being handed over already", reached=False)
        held = self._broker.sessions.get(session)
        latest_ms = self._latest(session, held)
        if call.displaces is not None and latest_ms > call.displaces:
            yield encode(ClientHere(asked_ms=latest_ms, age_ms=max(self._now_ms() - latest_ms, 0)))
            return
        departure = None
        if held is not None and call.clean:
            self._broker.end_for_takeover(held)
        elif held is not None:
            departure = freeze(self._broker, held)
        if departure is None:
            self.ended(session)
            owners.begin_handover(session)
            self._empty.add(session)
            self._driver.start(self._release_later(session, call.owner_epoch))
            return
        late = self._late_of(session)
        moving = MovingSession(departure.session, True, notes=True) if late is None else late.moving
        going = self._going[session] = _Going(departure, moving, owner, call.node, call.epoch, self._driver.promise())
        owners.begin_handover(session)
        sent = False
        try:
            last = None
            for part in departure.parts():
                if last is not None:
                    yield last
                last = part
            safe: Promise[None] = self._driver.promise()
            departure.when_safe(partial(fulfil, safe, None))
            self._broker.hub.wake_up()
            await safe
            if last is not None:
                yield last
            sent = True
        finally:
            self._driver.start(self._await_key(session, going, KEY_S if sent else 0.0))

    def _now_ms(self) -> int:
        """By the clock of Hub.mono_ms, which itself has the time of the latest turn."""
        return int(self._driver.now() * 1000)

    def _latest(self, session: Session, held: HeldSession | None) -> int:
        """When the latest CONNECT came of those that have the session here, or will have it at once; or NOBODY."""
        connected = held is not None and held.data.connection is not None
        return max(held.data.asked_ms if held is not None and connected else NOBODY, self._owners.awaited(session))

    async def _await_key(self, session: Session, going: _Going, patience_s: float) -> None:
        """Waits until it is certain who owns the session."""
        if patience_s and not going.settled.done():
            self._driver.start(self._lose_patience(session, going, patience_s))
        elif not going.settled.done():
            await self._keep(session, going)
        if await going.settled:
            await self._forward(session, going)
        else:
            if session not in self._late:
                going.moving.restore()
            going.departure.unfreeze()
            self._forget(session)

    async def _lose_patience(self, session: Session, going: _Going, patience_s: float) -> None:
        await self._driver.sleep(patience_s)
        if not going.settled.done():
            await self._keep(session, going)

    async def _keep(self, session: Session, going: _Going) -> None:
        """Changes the owner's key, so that the other node cannot."""
        kept = await self._owners.confirm(session)
        if kept:
            fulfil(going.settled, False)

    def on_lost(self, session: Session, to: str) -> None:
        """For Owners: the session has another owner, or none; it ends here, unless it is being handed over."""
        self._adoption.ended(session)
        if not self._hands_over(session, to):
            self._broker.surrender(*session)

    def _hands_over(self, session: Session, to: str) -> bool:
        """The feed shows another owner ("": none) of a session that this node owned. Returns whether it is being
        handed over, so that it must not be given up at once."""
        going = self._going.get(session)
        if going is None:
            self.ended(session)
            self._end_empty(session)
            return False
        if not going.settled.done():
            if to and to != going.to:
                peer = self._peers.peers.get(to)
                going.to, going.life = to, peer.node.epoch if peer is not None else 0
            going.settled.set_result(True)
        return True

    async def _forward(self, session: Session, going: _Going) -> None:
        """The other node owns the session: sends what was queued when no source sends here any more."""
        going.ready = self._driver.promise()
        self._look(going)
        self._driver.start(self._forward_early(session, going))
        await going.ready
        peers, late = self._peers, self._late_of(session)
        if late is not None and not late.whole:
            (life,), former = late.moving.lives, peers.peers.get(late.former)
            if former is None or former.node.epoch != life:
                await self._adoption.passed(life)        # what others keep for the owner before this one comes here
        # Every node knows by now that the new owner has a member of these groups; what still comes is given on.
        if going.departure.frozen and not going.given_up:
            self._broker.share_groups.leave_all(going.departure.session)
        # Given up, it may be a stored session, which may be frozen again: an adopter takes it over.
        while going.departure.frozen and not going.given_up:
            peer = peers.peers.get(going.to)
            if peer is None or peer.node.epoch != going.life:
                self._leave_to_adopters(session, going)
                return
            try:
                if not await self._send_tail(session, going, peer) and not going.given_up:
                    self._give_back(session, going)
                    return
                break
            except CallFailed as error:
                if not going.given_up:
                    self._log("warning", str(error), "the rest of a session could not be handed over; trying again",
                              {"client_id": session[1].decode(errors="replace"), "node": going.to, "why": str(error)})
                    await self._driver.sleep(RETRY_S)
        if not going.given_up:
            self.ended(session)
            going.moving.restore()
            going.departure.end()
            self._forget(session)

    async def _forward_early(self, session: Session, going: _Going) -> None:
        """A source has not cut yet, and perhaps will not in time: then the new owner lets the client in without it. By
        then it has what the others had sent here, so that only what comes from that source comes out of order."""
        await self._driver.sleep(self._limit_s * EARLY)
        peer = self._peers.peers.get(going.to)
        if (going.ready is None or going.ready.done() or peer is None or peer.node.epoch != going.life
                or going.given_up or not going.departure.frozen):
            return
        try:
            await self._send_tail(session, going, peer, early=True)
        except CallFailed as error:
            self._log("debug", str(error), "what was queued of a session could not be handed over yet",
                      {"client_id": session[1].decode(), "node": going.to})

    def _leave_to_adopters(self, session: Session, going: _Going) -> None:
        """The other node is gone, and the session with it, which is adopted now: by this node, with what it has, or by
        another one, to which that is handed over. Clients wait for it here until then, as while it was on its way."""
        going.given_up = True
        self.ended(session)
        del self._going[session]
        self._left.leave(session, going.moving, going.life)
        self._driver.start(self._store_later(session, going.life))

    def _give_back(self, session: Session, going: _Going) -> None:
        """The session has gone on from the other node, which let its client in without the rest, or has ended. Whoever
        has it now gets what is here as from a node that is back (returns.py)."""
        going.given_up = True
        self.ended(session)
        going.moving.restore()
        self._broker.store_away(going.departure.session)
        self._forget(session)

    async def _store_later(self, session: Session, life: int) -> None:
        await self._adoption.passed(life)
        self._left.store(session)

    async def _send_tail(self, session: Session, going: _Going, peer: Peer, *, early: bool = False) -> bool:
        """early: more follows, and what is sent now is sent again. Returns whether the session is still there."""
        for end, part in _with_last(going.departure.tail()):
            last = end and not early
            had = going.departure.had() if last else going.departure.had_for_certain() if end else []
            call = TailCall(**self._peers.call_to(peer, session), last=last, part=part, source=going.departure.source,
                            had=had, origins=going.moving.origins_behind(*covered_by(part)) if part else [])
            if [answer async for answer in self._transport.call(peer.address, TAIL, encode(call), CALL_S)]:
                return False
        return True

    def _forget(self, session: Session) -> None:
        self._going.pop(session, None)
        self._owners.end_handover(session)

    async def _release_later(self, session: Session, epoch: int) -> None:
        """There was nothing to hand over. If the other node does not take the session, its key must not stay."""
        await self._driver.sleep(KEY_S)
        owners = self._owners
        if session in self._empty and owners.owned_epoch(session) == epoch:
            owners.release(session)
            self._end_empty(session)

    def _end_empty(self, session: Session) -> None:
        if session in self._empty:
            self._empty.discard(session)
            self._owners.end_handover(session)

    # ------------------------------------------------------------------ what streams and calls bring

    async def take_tail(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "tail": nothing, when the part is on disk; GONE, when the session has ended, or has gone on
        to another node, also if it has come back from there: what one node has sent is counted by its own numbers.
        Raises CallFailed."""
        try:
            call = tail_of(body)
        except MALFORMED as error:
            raise CallFailed(f"not a tail: {error}", reached=False) from None
        self._peers.caller_of(call)
        session = call.namespace, call.client_id
        coming = self._coming.get(session)
        try:
            arrival = coming.arrival if coming is not None else self._arrival_of(session)
            if arrival is None or arrival.ended or arrival.source != call.source:
                yield GONE
                return
            known = coming or self._late_of(session)
            if call.part:
                # Of these a copy has come here: their publisher has sent them again through another node.
                arrival.append(call.part, {sequence for sequence, origin in call.origins
                                           if known is not None and known.moving.has_come(origin)})
            if known is not None and not known.whole:
                # As long as it is not, this node remembers what is released. Copies may come between two parts.
                if call.last:
                    known.arrival.bring(call.had)
                else:
                    known.arrival.bring_early([*call.had, *(origin for _, origin in call.origins)])
            # Of the last one the activation of the session, too: the other node forgets it now.
            await self.durable()
        except ProtocolError as error:
            raise CallFailed(str(error)) from None
        if call.last and (known := coming or self._late_of(session)) is not None:
            known.whole = True
            self._look_at(session, known)

    def _arrival_of(self, session: Session) -> Arrival | None:
        """The client did not wait for the tail any longer. Raises CallFailed while the session is on its way from here:
        what is added now might miss its own tail."""
        held = self._broker.sessions.get(session)
        if held is not None and held.data.frozen:
            raise CallFailed("the session is being handed over", reached=False)
        return None if held is None or held.data.moved is None else Arrival.of(self._broker, held)

    def on_switch(self, peer: Peer, switch: Switch) -> None:
        """A node has taken a session over: what this node and its clients publish is for that one from now on."""
        peers = self._peers
        session = switch.namespace, switch.client_id
        cut = encode(Cut(namespace=switch.namespace, client_id=switch.client_id, epoch=switch.epoch))
        peer.outbox.control(cut)
        if switch.former != peers.name:
            if (former := peers.peers.get(switch.former)) is not None:
                former.outbox.control(cut)
                self._expect_copies(session, former.name, switch.epoch)
            if (going := self._going.get(session)) is not None and switch.epoch > going.epoch:
                # It has gone on from its next owner, of which this node may not have heard yet.
                going.moving.accept(OWN_CLIENTS, False)
                going.moving.accept(peer.slot, False)
                going.early[peer.name] = switch.epoch
                going.waits.discard(peer.name)
                self._look(going)
            return
        for other in peers.peers.values():
            if other.name != peer.name:
                other.outbox.control(cut)       # behind all that this session's client has published here
        going = self._going.get(session)
        if going is None or going.switched or switch.epoch <= going.epoch:
            return
        # The stream may be faster than the feed.
        self._owners.handed_over(session, Owner(peer.name, switch.epoch), peer.node.lease)
        fulfil(going.settled, True)
        going.switched = True
        going.to_epoch = switch.epoch
        late = self._late_of(session)
        for source in range(SLOTS):
            going.moving.accept(source, False)
        for other in peers.peers.values():
            if other.name != peer.name and going.early.get(other.name, 0) < switch.epoch:
                going.waits.add(other.name)
                going.moving.accept(other.slot, late is None or other.name not in late.waits)
        self._look(going)

    def on_cut(self, peer: Peer, cut: Cut) -> None:
        """What a node has sent before this counts at the old owner, what it sends behind it at the new one. The old
        owner says by its own that it has sent everything that the session's client has published there."""
        session = cut.namespace, cut.client_id
        coming, going = self._coming.get(session) or self._late_of(session), self._going.get(session)
        if coming is not None and coming.epoch == cut.epoch:
            coming.moving.accept(peer.slot, going is None or not going.switched or peer.name in going.waits)
            coming.waits.discard(peer.name)
            self._look_at(session, coming)
        elif going is not None and going.is_cut_by(cut):
            going.moving.accept(peer.slot, False)
            if going.switched:
                going.waits.discard(peer.name)
                self._look(going)
            else:
                going.early[peer.name] = cut.epoch
        else:
            self._copies_end(session, peer.name, cut.epoch)

    def on_gone(self, peer: Peer) -> None:
        """A node has no lease any more: nothing comes from it."""
        for session, owner in [each for each in self.late_copies if each[1] == peer.name]:
            self._expect_no_copies(session, owner)
        for session, coming in (*self._coming.items(), *self._late.items()):
            coming.waits.discard(peer.name)
            if session not in self._going:
                coming.moving.accept(peer.slot, True)
            if peer.name == coming.former and not coming.whole:
                # What others had sent it and it had not acknowledged is on its way to the sessions that it had.
                self._driver.start(self._whole_later(session, coming, peer.node.epoch))
            self._look_at(session, coming)
        for session, going in list(self._going.items()):
            going.waits.discard(peer.name)
            if going.to == peer.name:
                going.switched = True
                going.waits.clear()
                if not going.settled.done():
                    self._driver.start(self._keep(session, going))
                elif going.settled.result() and going.departure.frozen:
                    # Not when the call has ended: the node may stand still, and this one may be the adopter.
                    self._leave_to_adopters(session, going)
            self._look(going)

    def _expect_copies(self, session: Session, former: str, epoch: int) -> None:
        """The session's client has moved, and releases at its new node what it publishes."""
        if (cut := self._cut_early.get((session, former), 0)) >= epoch:
            if cut == epoch:
                del self._cut_early[session, former]
            return
        if (session, former) not in self.late_copies:
            self._broker.hub.origins.expect(True)
        self.late_copies[session, former] = max(epoch, self.late_copies.get((session, former), 0))

    def _copies_end(self, session: Session, former: str, epoch: int) -> None:
        """By a Cut of a takeover between two other nodes, which may come before the Switch, or late."""
        expected = self.late_copies.get((session, former))
        if expected is not None and epoch >= expected:
            self._expect_no_copies(session, former)
        if epoch != expected:
            self._cut_early[session, former] = max(epoch, self._cut_early.get((session, former), 0))
            if len(self._cut_early) > EARLY_MAX:
                del self._cut_early[next(iter(self._cut_early))]

    def _expect_no_copies(self, session: Session, former: str) -> None:
        del self.late_copies[session, former]
        self._broker.hub.origins.expect(False)

    async def _whole_later(self, session: Session, coming: _Coming, life: int) -> None:
        await self._adoption.passed(life)
        coming.whole = True
        self._look_at(session, coming)

    @staticmethod
    def _look(going: _Going) -> None:
        if going.switched and not going.waits and going.ready is not None:
            fulfil(going.ready, None)


def _with_last(parts: Any) -> Any:
    """(whether it is the last, part) of each; (True, b"") if there is none."""
    former = None
    for part in parts:
        if former is not None:
            yield False, former
        former = part
    yield True, former or b""
