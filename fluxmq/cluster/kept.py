"""What of a persistent session outlives its node: the keys `…/sessions/<client>/data` and `…/subscriptions/<client>/…`.

    a session has changed ─► what differs from the store, with a compare on the session's owner ─► the client's answer
    it ends               ─► `data` is deleted first, the owner's key last

The keys hang on no lease. Their writer is the node that owns the session; each change compares the owner's key, so a
former owner changes nothing. What is written is read from the session when the transaction is made, so several changes
of a session need one.

Subscriptions without `data` are left when a node dies in the middle of a deletion. They mean nothing; the leader
deletes them (sweep.py). It is one file because what is written is what the tables of the store's present state lack.
"""
from __future__ import annotations

from collections import Counter
from typing import Protocol

import msgspec

from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import DATA, OWNER, Name, client_key, parse, subscription_key
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.owners import Owners, Session
from fluxmq.cluster.ports import Change, Compare, Event, MetadataStore, StoreError, StoreFull
from fluxmq.cluster.store_tickets import StoreTickets
from fluxmq.cluster.writer import CHANGES_MAX, FULL_RETRY_S, Writer
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.sessions.state import Consume, SessionState, incarnation_of
from fluxmq.model.malformed import MALFORMED

__all__ = ["KeptSessions", "SessionData", "SubscriptionData", "subscription_of"]

PERIOD_S = 0.25
RETRY_S = 0.1


class SessionData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of `data`. node, epoch: the life of a node that has the session. expiry: seconds after its connection.
    identity: of no other session of this client.
    lives: epochs of dead nodes from which it was adopted, and of which something may still come. away: it was adopted,
    and its client has not connected since."""

    node: str
    epoch: int
    expiry: int
    identity: str = ""
    username: str | None = None
    lives: tuple[int, ...] = ()
    away: bool = False


class SubscriptionData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of a subscription. consume: of one to a queue."""

    options: int
    identifier: int = 0
    consume: Consume | None = None


_data_of = msgspec.json.Decoder(SessionData).decode
_subscription_of = msgspec.json.Decoder(SubscriptionData).decode
_encode = msgspec.json.encode


def subscription_of(value: bytes) -> SubscriptionData | None:
    """None: it was written by somebody else."""
    try:
        return _subscription_of(value)
    except MALFORMED:
        return None


class _Known(msgspec.Struct, frozen=True):
    """What the store has."""

    revision: int
    data: SessionData


class _Own:
    """A session of this node that has keys in the store, or shall have. filters: the values that the store has, or was
    sent. sending: those under way. unread: the store may have other filters, too. dirty: those that may differ. head:
    `data` may differ. full: the store has refused values for lack of space."""

    def __init__(self, *, unread: bool) -> None:
        self.filters: dict[bytes, bytes] = {}
        self.sending: list[bytes] = []
        self.unread = unread
        self.dirty: dict[bytes, None] = {}
        self.head = False
        self.full = False
        self.tickets: list[int] = []
        self.working = False


class Lives(Protocol):
    """From which lives of nodes something may still come for a session (`cluster/adoption.py`)."""

    def lives_of(self, session: Session) -> tuple[int, ...]:
        """Lives of dead nodes of which a session of this node still waits for messages; its head in the store names
        them."""

    def on_data(self, session: Session, before: SessionData | None, after: SessionData | None) -> None:
        """The head of a session has changed in the store."""


class KeptSessions:
    """One per life of a node. limit_s: how long an answer waits for the store."""

    def __init__(self, membership: Membership, store: MetadataStore, feed: Feed, writer: Writer, driver: Driver, *,
                 broker: Broker, limit_s: float) -> None:
        """broker: before anything is loaded from its disk."""
        self.owners: Owners  # set when they are made with these keys: each needs the other
        self.lives: Lives  # set by the adoption, which is made with this
        self._membership = membership
        self._store = store
        self._feed = feed
        self._writer = writer
        self._driver = driver
        self._broker = broker
        self._tickets = StoreTickets(broker.hub.commits.open_line("kept sessions"), limit_s)
        self._known: dict[Session, _Known] = {}
        self._incarnations: set[int] = set()  # of those
        self._away: Counter[tuple[str, int]] = Counter()  # by node and its epoch: how many of those are `away`
        self._own: dict[Session, _Own] = {}
        self._closed = False

    # ------------------------------------------------------------------ life

    def begin(self) -> None:
        """The feed has reported all keys, and this node owns the sessions that it keeps."""
        for session, held in list(self._broker.sessions.items()):
            if held.data.durable or session in self._known:
                self._change(session, None)
        self._driver.start(self._keep_time())

    def close(self) -> None:
        """Nothing is written any more."""
        self._closed = True

    async def _keep_time(self) -> None:
        while not self._closed:
            await self._driver.pace(PERIOD_S)
            self._tickets.expire(self._driver.now())
            if self._membership.without_quorum:
                self._tickets.release()

    # ------------------------------------------------------------------ what the store has

    def data(self, session: Session) -> SessionData | None:
        """What the store has of a session; None: it is not persistent, or has ended."""
        known = self._known.get(session)
        return None if known is None else known.data

    def revision(self, session: Session) -> int:
        """Of its `data`; 0: there is none."""
        known = self._known.get(session)
        return 0 if known is None else known.revision

    def is_away(self, session: Session) -> bool:
        """Whether it was adopted and its client has not connected since."""
        known = self._known.get(session)
        return known is not None and known.data.away

    def away(self, node: str, epoch: int) -> int:
        """How many sessions a life of a node has adopted to which their clients have not connected since."""
        return self._away.get((node, epoch), 0)

    async def subscriptions(self, session: Session) -> dict[bytes, bytes]:
        """Values of a session's subscriptions, as the store has them now. Raises StoreError."""
        prefix = subscription_key(*session)
        found = await self._store.read(prefix, prefix=True)
        names = [(parse(item.key), item.value) for item in found.items]
        return {name.filter: value for name, value in names if name is not None}

    def on_event(self, name: Name, event: Event) -> None:
        """A change of a `data` key that this node has not made, or does not know of yet."""
        session = name.namespace, name.name
        self._note(session, event.value, event.revision)
        own = self._own.get(session)
        data = self.data(session)
        if own is None and data is not None and session in self.owners.owned and (
                data.node, data.epoch) != (self._membership.name, self._membership.epoch):
            # What the former owner had written was not known when this node took the session.
            self._change(session, None)

    def _note(self, session: Session, value: bytes | None, revision: int) -> None:
        known = self._known.get(session)
        if known is not None and revision < known.revision:
            return
        data = None
        if value is not None:
            try:
                data = _data_of(value)
            except MALFORMED:
                data = None                     # written by somebody else
        if data is None:
            self._known.pop(session, None)
        else:
            self._known[session] = _Known(revision, data)
            self._incarnations.add(incarnation_of(*session, data.identity))
        if known is not None and (data is None or data.identity != known.data.identity):
            self._incarnations.discard(incarnation_of(*session, known.data.identity))
        before = None if known is None else known.data
        for each, by in ((before, -1), (data, 1)):
            if each is not None and each.away:
                self._away[each.node, each.epoch] += by
                if not self._away[each.node, each.epoch]:
                    del self._away[each.node, each.epoch]
        self.lives.on_data(session, before, data)

    def has(self, incarnation: int) -> bool:
        """Whether the store has a session with this incarnation."""
        return incarnation in self._incarnations

    # ------------------------------------------------------------------ sessions of this node

    def changed(self, session: Session, filter_: bytes | None) -> None:
        """See Directory.kept_changed."""
        if self._broker.joining or session not in self.owners.owned:
            return                              # the session is lost, or is written when this node has it
        if session not in self._own and session not in self._known and not self._is_durable(session):
            return
        own = self._change(session, filter_)
        if own.unread or own.dirty or self._differs(session):
            own.tickets.append(self._tickets.give(self._driver.now()))

    def _change(self, session: Session, filter_: bytes | None) -> _Own:
        own = self._own.get(session)
        if own is None:
            own = self._own[session] = _Own(unread=session in self._known)
            filter_ = None
        own.head = True
        if filter_ is None:
            own.dirty |= dict.fromkeys(own.filters)
            held = self._broker.sessions.get(session)
            if held is not None:
                own.dirty |= dict.fromkeys(held.subscriptions)
        elif filter_:
            own.dirty[filter_] = None
        if not own.working:
            own.working = True
            self._driver.start(self._work(session, own))
        return own

    def taking(self, session: Session) -> list[Change]:
        """Changes that belong to the transaction in which this node takes a session that the store has."""
        data = self.data(session)
        if data is None:
            return []
        member = self._membership
        value = _encode(msgspec.structs.replace(data, node=member.name, epoch=member.epoch, lives=()))
        return [Change(client_key(DATA, *session), value)]

    def taken(self, session: Session, changes: list[Change], revision: int) -> None:
        """That transaction was done."""
        if session not in self._own and changes:
            self._own[session] = _Own(unread=True)
        for change in changes:
            self._feed.note(change.key, revision)
            self._note(session, change.value, revision)

    def lost(self, session: Session) -> None:
        """Another node has the session, or nobody."""
        own = self._own.pop(session, None)
        if own is not None:
            self._decide(own)

    def adopted(self, session: Session, filters: dict[bytes, bytes]) -> None:
        """The session of this node was made from these values, or has them."""
        own = self._own.get(session)
        if own is not None:
            own.filters, own.unread = dict(filters), False
            self._change(session, None)

    @staticmethod
    def encoded(data: SessionData) -> bytes:
        """The value of `data`."""
        return _encode(data)

    def settled(self, session: Session) -> None:
        """Nothing of a former life may come any more: `lives_of` has changed."""
        if session in self._own:
            self._change(session, b"")

    async def ending(self, session: Session) -> list[Change]:
        """A session of this node has ended: its keys are to be deleted, in this order. Raises StoreError."""
        own = self._own.pop(session, None)
        if own is None and session not in self._known:
            return []
        filters = (dict.fromkeys([*own.filters, *own.sending]) if own is not None and not own.unread else
                   await self.subscriptions(session))
        if own is not None:
            self._decide(own)
        return [Change(client_key(DATA, *session), None),
                *(Change(subscription_key(*session, filter_), None) for filter_ in filters)]

    def _decide(self, own: _Own) -> None:
        tickets, own.tickets = own.tickets, []
        for ticket in tickets:
            self._tickets.decide(ticket)

    # ------------------------------------------------------------------ writing

    def _state(self, session: Session) -> SessionState | None:
        """Of a session that outlives this node."""
        held = self._broker.sessions.get(session)
        return held.data if held is not None and held.data.durable else None

    def _is_durable(self, session: Session) -> bool:
        return self._state(session) is not None

    def _wanted(self, session: Session) -> SessionData | None:
        state = self._state(session)
        if state is None:
            return None
        member = self._membership
        return SessionData(node=member.name, epoch=member.epoch, expiry=state.expiry_s, identity=state.identity,
                           username=state.username, lives=self.lives.lives_of(session), away=state.version == 0)

    def _differs(self, session: Session) -> bool:
        return self._wanted(session) != self.data(session)

    def _value(self, session: Session, filter_: bytes) -> bytes | None:
        state = self._state(session)
        if state is None or filter_ not in state.session.subscriptions:
            return None
        options, identifier = state.session.subscriptions[filter_]
        consume = (state.consumes or {}).get(filter_)
        return _encode(SubscriptionData(options=options, identifier=identifier, consume=consume))

    async def _work(self, session: Session, own: _Own) -> None:
        """Until the store has what is wanted."""
        try:
            while not self._closed and self._own.get(session) is own and (own.dirty or own.head or own.unread):
                owner = self.owners.owned.get(session)
                if owner is None:
                    self.lost(session)
                    return
                if own.unread:
                    await self._read(session, own)
                elif not await self._write(session, own, owner.epoch):
                    # Later there is space, or the feed says who owns the session.
                    await self._driver.sleep(FULL_RETRY_S if own.full else RETRY_S)
        finally:
            own.working = False

    async def _read(self, session: Session, own: _Own) -> None:
        try:
            found = await self.subscriptions(session)
        except StoreError:
            await self._driver.sleep(RETRY_S)
            return
        own.filters, own.unread = found, False
        own.dirty |= dict.fromkeys(found)

    def _deletions(self, session: Session, own: _Own) -> dict[bytes, None]:
        """Of what may differ, what only is to be deleted."""
        return {filter_: None for filter_ in own.dirty
                if filter_ in own.filters and self._value(session, filter_) is None}

    async def _write(self, session: Session, own: _Own, epoch: int) -> bool:
        """Writes some of what differs. Returns whether it was done, or nothing differs."""
        wanted, changes = self._wanted(session), []
        if wanted != self.data(session):
            changes.append(Change(client_key(DATA, *session), None if wanted is None else _encode(wanted)))
        own.head = False
        taken: dict[bytes, bytes | None] = {}
        later: dict[bytes, None] = {}
        if own.full and (deletions := self._deletions(session, own)):
            # They must not share a transaction with a value.
            changes = [change for change in changes if change.value is None]
            own.dirty, later, own.head = deletions, own.dirty, True
        while own.dirty and len(changes) < CHANGES_MAX:
            filter_ = next(iter(own.dirty))
            del own.dirty[filter_]
            later.pop(filter_, None)
            value = taken[filter_] = self._value(session, filter_)
            if value != own.filters.get(filter_):
                changes.append(Change(subscription_key(*session, filter_), value))
        own.dirty |= later
        tickets: list[int] = []
        if not own.dirty and not own.head:
            tickets, own.tickets = own.tickets, []
        done = False
        own.sending = list(taken)
        try:
            result = await self._writer.change([Compare(client_key(OWNER, *session), epoch)], changes,
                                               wait_for_space=False) if changes else None
            done = result is None or result.done
            own.full = own.full and all(change.value is None for change in changes)
        except StoreFull as error:
            own.full = True
            own.unread = own.unread or error.sent       # it may have been done
        except StoreError:
            pass                                # only when the node ends
        if not done:
            own.head = True
            own.dirty |= dict.fromkeys(taken)
            own.tickets[:0] = tickets
            if self._own.get(session) is not own:
                self._decide(own)               # it was lost meanwhile
            return False
        for filter_, value in taken.items():
            if value is None:
                own.filters.pop(filter_, None)
            else:
                own.filters[filter_] = value
        if result is not None:
            for change in changes:
                self._feed.note(change.key, result.revision)
                if change.key.endswith(b"/data") and parse(change.key) == Name(DATA, *session):
                    self._note(session, change.value, result.revision)
        if wanted is None and not own.filters and not own.dirty and not own.head and self._own.get(session) is own:
            del self._own[session]
        for ticket in tickets:
            self._tickets.decide(ticket)
        return True
