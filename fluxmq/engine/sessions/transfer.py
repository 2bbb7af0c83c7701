"""A session moves from one broker to another. This file knows no network: it makes bytes of a session and a session of
bytes; who asks for it, and whose it is then, is decided by the cluster (docs/internals/cluster.md).

    old owner                                          new owner
    freeze ──► Departure
               parts()      ────────────────────────►  Arrival.feed … finish: durable
                                                       the owner changes
               tail()       ────────────────────────►  append, activate
               end()        or, if it came to nothing: unfreeze; the Arrival is abandoned

- The parts are of the instant of parts(). What is published to the session later is queued behind that, and goes with
  the tail.
- The last part may leave the old owner only when `when_safe` has called: what the client was told or will conclude from
  the state, such as a QoS 2 identifier that was received, must not be lost by a crash of the old owner.
- An arrival is recorded part by part. After a crash it is there if the end had come, else not at all; it is not active
  until `activate`, because only the cluster knows whether the other node has given the session up.
- What a tail has goes ahead of what the new owner has itself received for the session since `activate`, behind what had
  come before. So the order is the old owner's as long as the client is attached when the tail is complete; if it is
  attached earlier, what was sent to it by then has overtaken the tail.
- Parts of a tail may come twice: each says which sequences it covers (Moved.origins).
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

import msgspec

from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.hub.transfer import Snapshot, received_of, resume, sequence_of
from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.pubsub.session import Session
from fluxmq.engine.broker import Broker
from fluxmq.engine.sessions import parts
from fluxmq.engine.sessions.parts import MovedHead, MovedSubscriptions, Part, Step
from fluxmq.engine.sessions.state import ACTIVE, ARRIVING, WHOLE, Moved, SessionState, Subscription
from fluxmq.model.mqtt import ReasonCode

__all__ = ["PART_BYTES", "Arrival", "Departure", "covered_by", "freeze"]

PART_BYTES = 256 << 10  # a part is larger only if a single message or subscription is


def freeze(broker: Broker, session: Session) -> Departure | None:
    """Begins to move a session away; its client is disconnected (0x8E). None: there is nothing to move, because its
    expiry interval is 0: the session has ended as in a local takeover, and release_session was not called. Raises
    UsageError if the session is frozen already."""
    return Departure(broker, session) if broker.freeze(session) else None


class Departure:
    """Machine. The old owner's side. Made by freeze(). After the end of the session, whoever ended it, parts already
    begun go on, and everything else does nothing.

    upto: sequence of the last message that had entered the session when its parts were made."""

    def __init__(self, broker: Broker, session: Session) -> None:
        self.broker = broker
        self.session = session
        self.upto = sequence_of(session)

    @property
    def source(self) -> bytes:
        """The session's name here, which no other session gets from this node; b"" if it is not on disk."""
        number = self.session.number
        return f"{self.broker.directory.node}/{number}".encode() if number else b""

    @property
    def frozen(self) -> bool:
        """Whether the session is still on its way."""
        return self.session.data is not None and self.session.data.frozen

    def when_safe(self, call: Callable[[], object]) -> None:
        """Calls call() when everything that has happened on this node so far is on disk, and confirmed or given up
        elsewhere what answers to the session's client wait for: another node that stands still, and concerns others
        only, holds up no move. Perhaps at once."""
        self.broker.hub.when_answered(call, self.session)

    def parts(self, size: int = PART_BYTES) -> Iterator[bytes]:
        """The session at this instant, in parts of about `size` bytes, in order. Messages are not copied before their
        part is. Raises UsageError if the session is not frozen."""
        if not self.frozen:
            raise UsageError("a session that is not frozen cannot be moved")
        state: SessionState = self.session.data
        snapshot = Snapshot(self.session)
        self.upto = snapshot.upto
        consumes = state.consumes or {}
        subscriptions = [Subscription(filter_, options, identifier, consumes.get(filter_))
                         for filter_, (options, identifier) in self.session.subscriptions.items()]
        return self._parts(size, snapshot, msgspec.msgpack.encode(self._head(state)), subscriptions, state.resting,
                           received_of(self.session), self.session.dropped)

    def _head(self, state: SessionState) -> MovedHead:
        session, origins = self.session, self.broker.hub.origins
        return MovedHead(self.source, session.name, session.namespace.name, state.version, state.expiry_s,
                         state.keep_alive_s, max(self.broker.hub.steady_ms - state.since_ms, 0), state.restored,
                         state.will, state.username, list(state.moved.origins) if state.moved else [],
                         state.identity, state.counted,
                         origins.own(state.incarnation) if state.identity else [],
                         self.had_for_certain())

    @staticmethod
    def _parts(size: int, snapshot: Snapshot, head: bytes, subscriptions: list[Subscription], resting: frozenset[bytes],
               received: bytes, dropped: int) -> Iterator[bytes]:
        number = 0

        def begin(kind: int, contents: bytes = b"") -> bytes:
            nonlocal number
            number += 1
            return parts.begin_of(kind, number - 1, contents)

        yield begin(parts.HEAD, head)
        some: list[Subscription] = []
        some_bytes = 0
        for each in subscriptions:
            some.append(each)
            some_bytes += len(each.filter) + SUBSCRIPTION_BYTES
            if some_bytes >= size or each is subscriptions[-1]:
                suspended = [one.filter for one in some if one.filter in resting]
                yield begin(parts.SUBSCRIPTIONS, msgspec.msgpack.encode(MovedSubscriptions(some, suspended)))
                some, some_bytes = [], 0
        if received:
            yield begin(parts.RECEIVED, received)
        while snapshot.left:
            yield snapshot.take(begin(parts.ENTRIES), size)
        number += 1
        yield parts.end_of(number - 1, snapshot.upto, snapshot.packet_id_last, dropped)

    def tail(self, after: int | None = None, size: int = PART_BYTES) -> Iterator[bytes]:
        """What has entered the session since parts(), in order, as of now; the new owner skips what it has already.
        after: instead, what has entered behind this sequence (Arrival.upto). Nothing if there is none."""
        if not self.frozen:
            return iter(())
        begin = self.upto if after is None else after
        return self._tail(size, Snapshot(self.session, begin), begin)

    @staticmethod
    def _tail(size: int, snapshot: Snapshot, after: int) -> Iterator[bytes]:
        while after < snapshot.upto:
            entries = snapshot.take(b"", size)
            last = snapshot.last if snapshot.left else snapshot.upto
            yield parts.tail_of(after, last, entries)
            after = last

    def had(self) -> list[tuple[int, int, int]]:
        """The origins of messages that the session has had here and that may come again, as of now: [(name, packet
        identifier, use)]."""
        return self._had_here() if self.frozen else []

    def had_for_certain(self) -> list[tuple[int, int, int]]:
        """Of had() those whose use is known. They may be brought before it is certain that they were not released: an
        unknown use would stand for the next message under its packet identifier, too."""
        return [one for one in self._had_here() if one[2]] if self.frozen else []

    def _had_here(self) -> list[tuple[int, int, int]]:
        return self.broker.hub.origins.had_by(self.session.number) if self.session.number else []

    def unfreeze(self) -> None:
        """The move has come to nothing: the session stays, as an ordinary one without a connection. Its timers count
        from when its client left, at the latest from the freeze."""
        if self.frozen:
            self.broker.unfreeze(self.session)

    def end(self) -> None:
        """The other node has everything: the session ends here. Its will is the other node's, and release_session is
        not called."""
        if self.frozen:
            self.broker.end_moved(self.session)


SUBSCRIPTION_BYTES = 64  # of a subscription in a part, apart from its filter: about


class Arrival:
    """Machine. The new owner's side: one session that comes from another node.

    namespace, client_id: whose session it must be. session: from the first part on. All that it knows is in the session
    and on disk; `of` continues after a restart with one that `Broker.arrivals` or `Broker.sessions` has.
    """

    def __init__(self, broker: Broker, namespace: Namespace, client_id: bytes) -> None:
        self.broker = broker
        self.namespace = namespace
        self.client_id = client_id
        self.session: Session | None = None
        self._number = 0  # of the next part
        self._uses: list[tuple[int, int]] = []  # MovedHead.uses
        self._had: list[tuple[int, int, int]] = []  # MovedHead.had

    @classmethod
    def of(cls, broker: Broker, session: Session) -> Arrival:
        """The arrival of a session that is whole or active. Raises UsageError for one that came from nowhere."""
        moved: Moved | None = session.data.moved
        if moved is None or moved.stage == ARRIVING:
            raise UsageError(f"session {session.number} is not one that has come from another node")
        arrival = cls(broker, session.namespace, session.name)
        arrival.session = session
        return arrival

    @property
    def ended(self) -> bool:
        """Whether its session has ended again: abandoned, replaced by another arrival, expired …"""
        return self.session is not None and self.session.data is None

    @property
    def source(self) -> bytes:
        """Departure.source of the old owner, from which it came last."""
        return self._moved().source

    @property
    def upto(self) -> int:
        """The old owner's sequence up to which everything has come; 0: the end has not come yet."""
        moved = self._moved()
        return moved.upto(moved.source)

    def _moved(self) -> Moved:
        if self.session is None or self.ended:
            raise UsageError("the arrival has ended, or has not begun")
        moved: Moved = self.session.data.moved
        return moved

    def feed(self, data: bytes) -> None:
        """The next of Departure.parts(). Raises ProtocolError if it is not that, or there is no room for the session;
        then, and after any other exception, the arrival has ended and nothing of it is left."""
        try:
            part = parts.part_of(data)
            if part.kind == parts.TAIL or part.number != self._number or (
                    (part.kind == parts.HEAD) != (part.number == 0)):
                raise _unexpected(f"part {part.number} of kind {part.kind} instead of part {self._number}")
            if part.kind == parts.HEAD:
                self._begin(parts.head_of(part))
            elif self.session is None or self.ended or self._moved().stage != ARRIVING:
                raise _unexpected("a part of a session behind its end")
            else:
                entries = parts.check_part(part, sequence_of(self.session), self.session)
                self._check_room(part)
                self._take(part, entries)
            self._number += 1
        except BaseException:
            self.abandon()
            raise

    def _begin(self, head: MovedHead) -> None:
        if (head.namespace, head.name) != (self.namespace.name, self.client_id):
            raise _unexpected(f"the session of {head.name!r} in namespace {head.namespace!r}")
        session = self.session = self.broker.arrive(head.name, self.namespace)
        state: SessionState = session.data
        state.version, state.expiry_s, state.keep_alive_s = head.version, head.expiry_s, head.keep_alive_s
        state.since_ms = self.broker.hub.steady_ms - head.away_ms
        state.restored, state.will, state.username = head.restored, head.will, head.username
        state.identity, state.counted = head.identity, head.counted
        self._uses, self._had = head.uses, head.had
        self.broker.hub.origins.forget_former(state.incarnation)
        state.moved = Moved(ARRIVING, source=head.origin, origins=head.origins)
        self.broker.record_head(session)

    def _check_room(self, part: Part) -> None:
        assert self.session is not None
        state: SessionState = self.session.data
        if part.kind == parts.SUBSCRIPTIONS:
            size = sum(map(len, self.session.subscriptions)) + len(part.data) + (state.will.size if state.will else 0)
            if self.broker.state_bytes + size > self.broker.limits.state_bytes_max:
                raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, "there is no room for the session's topic filters and "
                                                               "will (session.max_state_bytes)")

    def _take(self, part: Part, entries: int) -> None:
        """Records and applies a part that was checked."""
        assert self.session is not None
        hub = self.broker.hub
        first = 0
        if self.session.number:
            first = hub.ledger.message_last + 1
            hub.ledger.message_last += entries
        step = Step(self._moved().steps, parts.PART, first, hub.steady_ms, part)
        self.broker.record_step(self.session, parts.step_of(step))
        parts.take_step(self.session, step)

    def finish(self) -> None:
        """All parts have come: the session is whole, and not active yet. A crash cannot lose it any more when what was
        recorded so far is on disk (Hub.when_gathered with the line of the journal). Raises ProtocolError if parts are
        missing; then nothing of it is left."""
        if self.session is None or self.ended or self._moved().stage == ARRIVING:
            self.abandon()
            raise _unexpected(f"an end in front of part {self._number}")

    def append(self, data: bytes, without: AbstractSet[int] = frozenset()) -> None:
        """The next of Departure.tail(), before or after `activate`; one that has come before changes nothing. It goes
        behind what has come so far, ahead of what this node has itself received for the session and not sent yet. If
        the session has ended, nothing is kept. without: sequences of those of its messages that this node has itself.
        Raises ProtocolError if it is not the next one; the session is unchanged then."""
        if self.ended:
            return
        moved = self._moved()
        part = parts.part_of(data)
        if part.kind != parts.TAIL or moved.stage == ARRIVING:
            raise _unexpected(f"part {part.number} of kind {part.kind} instead of a tail")
        entries = parts.check_part(part)
        tail = parts.tail_range(part)
        if tail.after > self.upto:
            raise _unexpected(f"a tail behind {tail.after} instead of {self.upto}")
        if tail.upto > self.upto:
            if without:
                part = parts.without(part, without)
                entries = parts.check_part(part)
            self._take(part, entries)
            if moved.stage == ACTIVE:
                self._resume()

    def _resume(self) -> None:
        assert self.session is not None
        resume(self.session)
        self.broker.hub.wake_up()

    def bring(self, had: list[tuple[int, int, int]]) -> None:
        """The origins of messages that the session has had at the old owner: Departure.had at the end of the tail. What
        the head had brought and is not among them was released meanwhile, perhaps before this node remembered it."""
        if self.session is not None and not self.ended and self.session.number:
            for origin in set(self._had).difference(had):
                self.broker.hub.origins.take_back(*origin, self.session.number)
            for origin in had:
                self.broker.hub.origins.bring(*origin, self.session.number)

    def bring_early(self, had: list[tuple[int, int, int]]) -> None:
        """As bring(), with a tail behind which another one comes: Departure.had_for_certain."""
        if self.session is not None and not self.ended and self.session.number:
            self._had = list(dict.fromkeys((*self._had, *had)))
            for origin in had:
                self.broker.hub.origins.bring(*origin, self.session.number)

    def activate(self) -> None:
        """The session is this node's: it gets messages from now on and is announced, and its timers begin. Raises
        UsageError if parts are missing, or the client has another session here."""
        moved = self._moved()
        session = self.session
        assert session is not None
        if moved.stage != WHOLE or (session.namespace.name, session.name) in self.broker.sessions:
            raise UsageError(f"session {session.number} cannot become active: it is not whole, or there is another one "
                             f"of its client")
        step = Step(moved.steps, parts.ACTIVATE)
        self.broker.record_step(session, parts.step_of(step))
        parts.take_step(session, step)
        for packet_id, use in self._uses if session.data.incarnation else ():
            self.broker.hub.origins.bring(session.data.incarnation, packet_id, use)
        if session.number:
            self.broker.hub.origins.absent(session.number)      # it has had its number for some time
        for origin in self._had if session.number else ():
            self.broker.hub.origins.bring(*origin, session.number)
        self.broker.activate(session)
        self._resume()

    def merge(self, target: Session) -> None:
        """The client has a session here, made while the node that this one comes from was away, or moved here from that
        node before it went away. What that node had and this one does not have goes ahead of all that was not sent to
        the client yet; in a session that has come from there, behind what has come. If no client has connected to the
        target (its version is 0), it also gets what was in flight in both directions; else what was in flight is sent
        anew, and what the client had received and not completed is forgotten. Subscriptions, will and expiry stay those
        of the target. The arrival ends. Raises UsageError if parts are missing, or the target is not this client's
        session or is frozen."""
        moved = self._moved()
        session = self.session
        assert session is not None
        if moved.stage != WHOLE or target is not self.broker.sessions.get((self.namespace.name, self.client_id)) or (
                target.data.frozen):
            raise UsageError(f"session {session.number} cannot join session {target.number}")
        state: SessionState = target.data
        if state.moved is None:
            state.moved = Moved()
        step = Step(state.moved.steps, parts.JOIN, other=session.number,
                    flights=state.version == 0 and not target.connected)
        self.broker.record_step(target, parts.step_of(step))
        parts.take_step(target, step, session)
        self.broker.drop_arrival(session, joined=True)
        resume(target)
        self.broker.hub.wake_up()

    def abandon(self) -> None:
        """Nothing of it is kept. Does nothing if it has ended, or is active."""
        session = self.session
        if session is not None and session.data is not None and session.data.moved.stage != ACTIVE:
            self.broker.drop_arrival(session)


def covered_by(tail: bytes) -> tuple[int, int]:
    """(after, upto) of one of Departure.tail(): it has what entered the session behind the first of these sequences, up
    to the second."""
    return parts.tail_range(parts.part_of(tail))


def _unexpected(text: str) -> ProtocolError:
    return ProtocolError(ReasonCode.PROTOCOL_ERROR, f"a node that hands over a session has sent {text}")
