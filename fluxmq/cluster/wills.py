"""Wills that outlive their node: a key for each, which the leader publishes when the node has died.

    CONNECT with a will ─► kept in the store, then CONNACK ─► the owner publishes or discards it ─► deleted
                                │
                                └─ its node's lease ends ─► due after its delay ─► the leader claims it, publishes
                                                                │                  it, and when all have it: deleted
                                                                └─ the client is back: deleted

The owner deletes a will when everybody has what it published, and so does the leader. A new leader goes on with what a
former one had claimed. So a will may be published again, if whoever published it dies before the deletion; but it has
an identity (`Will.identity`), by which each node knows a will that it has had (`_core/hub/origins.pxd`).

The wills of a session are written one after the other; only the newest that waits is.
"""
from __future__ import annotations

from typing import Any

import msgspec

from fluxmq._core.hub.hub import Hub
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.kept import KeptSessions
from fluxmq.cluster.keys import DATA, OWNER, WILL_DATA, Name, client_key
from fluxmq.cluster.membership import TAKEOVER_DELAY_S, Membership
from fluxmq.cluster.owners import Owners, Session
from fluxmq.cluster.ports import Change, Compare, Event, Item, Log, StoreError, StoreFull
from fluxmq.cluster.tickets import Tickets
from fluxmq.cluster.writer import FULL_RETRY_S, Writer
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.driver import Driver, Promise
from fluxmq.engine.sessions.state import Will

__all__ = ["StoredWill", "Wills"]

BYTES_MAX = 1 << 20  # of a will with its properties: etcd's limit for a request is 1.5 MiB
PERIOD_S = 0.25  # how exactly delays are kept
RETRY_S = 0.25
PUBLISHES_MAX = 256  # under way at once


class StoredWill(msgspec.Struct, array_like=True, frozen=True):
    """A will in the store. node, life: of whose client, and that node's epoch. owner: the epoch of the session's owner.
    expiry_s: of the session. publisher, publisher_life: the leader that publishes it; "": nobody does."""

    node: str
    life: int
    owner: int
    will: Will
    expiry_s: int
    publisher: str = ""
    publisher_life: int = 0


class _Kept(msgspec.Struct, frozen=True):
    """What the store has."""

    revision: int
    stored: StoredWill


class _Wanted(msgspec.Struct):
    """What the store should have of a session of this node. ticket: the position for which a CONNACK waits; 0: none
    does. adopted: it is from a former life of this node. committed: what was published in its place is."""

    will: Will | None
    expiry_s: int
    ticket: int = 0
    adopted: bool = False
    committed: Promise[Any] | None = None


_decode = msgspec.msgpack.Decoder(StoredWill).decode
_encode = msgspec.msgpack.encode


class Wills:
    """One per life of a node. limit_s: how long a CONNACK waits for the store."""

    def __init__(self, membership: Membership, owners: Owners, sessions: KeptSessions, feed: Feed, writer: Writer,
                 driver: Driver, *, limit_s: float, log: Log) -> None:
        self._membership = membership
        self._owners = owners
        self._sessions = sessions
        self._feed = feed
        self._writer = writer
        self._driver = driver
        self._limit_s = limit_s
        self._log = log
        self._broker: Broker
        self._hub: Hub
        self._tickets: Tickets
        self._kept: dict[Session, _Kept] = {}
        self._identities: set[int] = set()  # of those wills
        self._of_life: dict[tuple[str, int], set[Session]] = {}  # node and its epoch
        self._dead: dict[tuple[str, int], float] = {}  # when its end was seen
        self._wanted: dict[Session, _Wanted] = {}
        self._working: set[Session] = set()
        self._publishing: set[Session] = set()
        self._published: dict[Session, int] = {}  # by this node, and not deleted yet: revision
        self._closed = False

    # ------------------------------------------------------------------ life

    def attach(self, broker: Broker) -> None:
        """Before anything is loaded from the disk: delays do not end until this node knows what became of its wills."""
        self._broker, self._hub = broker, broker.hub
        self._tickets = Tickets(broker.hub.commits.open_line("wills"), self._limit_s)
        broker.joining = True

    def begin(self) -> None:
        """The feed has reported all wills, and this node has the sessions that it keeps: a will that the leader has
        published, or is about to, is not this node's any more."""
        member = self._membership
        for session, kept in list(self._kept.items()):
            if kept.stored.node == member.name and kept.stored.life != member.epoch and not kept.stored.publisher:
                state, owner = self._state(session), self._owners.owner(session)
                if state is None and (owner is not None or session in self._broker.stored):
                    continue            # another node has adopted the session: its will is the leader's
                self._want(session, _Wanted(None, 0) if state is None else
                           _Wanted(state.will, state.expiry_s, adopted=True))
        for session in list(self._broker.sessions):
            state = self._state(session)
            if state is not None and state.will is not None and session not in self._wanted:
                self._broker.forget_will(*session)
        self._broker.joining = False
        self._driver.start(self._keep_time())

    def _state(self, session: Session) -> Any:
        found = self._broker.sessions.get(session)
        return None if found is None else found.data

    def close(self) -> None:
        """Nothing is published or written any more."""
        self._closed = True

    def has(self, identity: int) -> bool:
        """Whether the store has a will with this identity."""
        return identity in self._identities

    # ------------------------------------------------------------------ of clients of this node

    def changed(self, session: Session, will: Will | None, expiry_s: int, since: int) -> None:
        """See Directory.will_changed."""
        if self._broker.joining:
            return
        wanted = _Wanted(will, expiry_s)
        if will is not None:
            size = len(_encode(will))
            if size > BYTES_MAX:
                self._log("warning", "large will", (
                    f"a will is larger than {BYTES_MAX >> 20} MiB: if this node dies, it is not published"),
                    {"client_id": session[1].decode(), "bytes": size})
                wanted.will = None
            else:
                wanted.ticket = self._tickets.give(self._driver.now())
        else:
            wanted.committed = self._committed(since)
        former = self._wanted.pop(session, None)
        if former is not None:
            self._tickets.decide(former.ticket)
        self._want(session, wanted)

    def _want(self, session: Session, wanted: _Wanted) -> None:
        self._wanted[session] = wanted
        if session not in self._working:
            self._working.add(session)
            self._driver.start(self._work(session))

    async def _work(self, session: Session) -> None:
        """Until the store has what is wanted."""
        try:
            while not self._closed and (wanted := self._wanted.get(session)) is not None:
                try:
                    done = await (self._delete(session, wanted) if wanted.will is None
                                  else self._put(session, wanted, wanted.will))
                except StoreError:
                    return                  # only when the node ends
                if done and self._wanted.get(session) is wanted:
                    del self._wanted[session]
                if done:
                    self._tickets.decide(wanted.ticket)
        finally:
            self._working.discard(session)

    async def _put(self, session: Session, wanted: _Wanted, will: Will) -> bool:
        member, kept = self._membership, self._kept.get(session)
        owner = self._owners.owner(session)
        if owner is None or owner.node != member.name:
            return True                     # the session is lost: it ends here
        if wanted.adopted and (kept is None or kept.stored.publisher):
            self._broker.forget_will(*session)      # the leader publishes it, or has
            return True
        if kept is not None and (kept.stored.publisher or (kept.stored.node != member.name and self._is_dead(kept)
                                 and kept.stored.will.delay_s == 0)):
            # The client's former will is published first. Its connection need not wait for that.
            self._tickets.decide(wanted.ticket)
            wanted.ticket = 0
            await self._driver.sleep(RETRY_S)
            return False
        key = client_key(WILL_DATA, *session)
        stored = StoredWill(member.name, member.epoch, owner.epoch, will, wanted.expiry_s)
        try:
            result = await self._writer.change(
                [Compare(key, 0 if kept is None else kept.revision), Compare(client_key(OWNER, *session), owner.epoch)],
                [Change(key, _encode(stored))], wait_for_space=False)
        except StoreFull:                   # meanwhile the session may end, and its will with it
            await self._driver.sleep(FULL_RETRY_S)
            return False
        if result.done:
            self._set(session, _Kept(result.revision, stored))
            self._feed.note(key, result.revision)
            return True
        self._found(session, result.found[0])
        if result.found[1] is None or result.found[1].revision != owner.epoch:
            await self._driver.sleep(RETRY_S)       # the feed will say who owns the session
        return False

    async def _delete(self, session: Session, wanted: _Wanted) -> bool:
        kept = self._kept.get(session)
        if kept is None or kept.stored.publisher or not self._is_ours(session, kept):
            return True
        if wanted.committed is not None:
            await wanted.committed          # if it was published, everybody has it
        key = client_key(WILL_DATA, *session)
        result = await self._writer.change([Compare(key, kept.revision)], [Change(key, None)])
        if result.done:
            self._set(session, None)
            self._feed.note(key, result.revision)
            return True
        self._found(session, result.found[0])
        return False

    def _committed(self, since: int) -> Promise[Any]:
        """When everything that this node has recorded and sent since a mark, in this turn, is committed. False: a node
        has not answered in time."""
        promise = self._driver.promise()
        self._hub.when_durable(lambda: promise.set_result(True), since, lambda why: promise.set_result(False))
        return promise

    def _is_ours(self, session: Session, kept: _Kept) -> bool:
        """Whether it is the will of a session of this node: of its client, or of one that came with the session from a
        node that lives, and was due before this node had written it as its own."""
        name, owner = self._membership.name, self._owners.owner(session)
        return kept.stored.node == name or (owner is not None and owner.node == name
                                            and owner.epoch > kept.stored.owner and not self._is_dead(kept))

    def _is_dead(self, kept: _Kept) -> bool:
        """Whether the node's life has ended whose will it is."""
        return not self._lives(kept.stored.node, kept.stored.life)

    def _lives(self, node: str, life: int) -> bool:
        known = self._membership.nodes.get(node)
        return known is not None and known.epoch == life

    # ------------------------------------------------------------------ what the store has

    def on_event(self, name: Name, event: Event) -> None:
        """A change of a will's key that this node has not made, or does not know of yet."""
        session = name.namespace, name.name
        known = self._kept.get(session)
        if known is None or event.revision > known.revision:
            self._read(session, event.key, event.value, event.revision)

    def _found(self, session: Session, item: Item | None) -> None:
        if item is None:
            self._set(session, None)
        else:
            self._read(session, item.key, item.value, item.revision)

    def _read(self, session: Session, key: bytes, value: bytes | None, revision: int) -> None:
        try:
            self._set(session, None if value is None else _Kept(revision, _decode(value)))
        except msgspec.MsgspecError as error:
            self._set(session, None)
            self._log("error", str(error), "etcd has a will that this version cannot read",
                      {"key": key.decode("utf-8", "replace")})

    def _set(self, session: Session, kept: _Kept | None) -> None:
        former = self._kept.pop(session, None)
        if former is not None:
            self._identities.discard(former.stored.will.identity)
            life = former.stored.node, former.stored.life
            self._of_life[life].discard(session)
            if not self._of_life[life]:
                del self._of_life[life]
                self._dead.pop(life, None)
        if kept is not None:
            self._kept[session] = kept
            self._identities.add(kept.stored.will.identity)
            self._of_life.setdefault((kept.stored.node, kept.stored.life), set()).add(session)

    # ------------------------------------------------------------------ of nodes that have died

    async def _keep_time(self) -> None:
        while not self._closed:
            await self._driver.sleep(PERIOD_S)
            now = self._driver.now()
            self._tickets.expire(now)
            if self._membership.without_quorum:
                self._tickets.release()
            for life in self._of_life:
                if not self._lives(*life):
                    self._dead.setdefault(life, now)
            if self._membership.is_leader and not self._closed and self._membership.takeover_delay_s <= 0:
                self._publish_due(now)

    def _publish_due(self, now: float) -> None:
        for life, since in list(self._dead.items()):
            if self._lives(*life):
                continue
            for session in list(self._of_life.get(life, ())):
                if len(self._publishing) >= PUBLISHES_MAX:
                    return
                stored = self._kept[session].stored
                due = since + TAKEOVER_DELAY_S + min(stored.will.delay_s, stored.expiry_s)
                taken = stored.publisher and self._lives(stored.publisher, stored.publisher_life) \
                    and stored.publisher != self._membership.name
                if session not in self._publishing and not taken and (due <= now or self._is_back(session, stored)):
                    self._publishing.add(session)
                    self._driver.start(self._publish(session, self._kept[session]))

    def _is_back(self, session: Session, stored: StoredWill) -> bool:
        """Whether its client has connected to another node before the delay has passed [MQTT-3.1.3-9]."""
        owner = self._owners.owner(session)
        return (owner is not None and owner.epoch > stored.owner and stored.will.delay_s > 0 and not stored.publisher
                and not self._sessions.is_away(session))

    async def _publish(self, session: Session, kept: _Kept) -> None:
        try:
            if self._published.get(session) != kept.revision:
                if self._is_back(session, kept.stored):
                    await self._remove(session, kept)
                    return
                claimed = await self._claim(session, kept)
                if claimed is None:
                    return
                kept = claimed
                while not await self._publish_now(session, kept.stored.will):
                    await self._driver.sleep(RETRY_S)
                self._published[session] = kept.revision
            await self._remove(session, kept)
        except StoreError:
            pass                            # the node ends
        finally:
            self._publishing.discard(session)

    async def _claim(self, session: Session, kept: _Kept) -> _Kept | None:
        """Whoever claims it publishes it. None: something has changed."""
        member, key = self._membership, client_key(WILL_DATA, *session)
        stored = msgspec.structs.replace(kept.stored, publisher=member.name, publisher_life=member.epoch)
        compares = [Compare(key, kept.revision)]
        if stored.will.delay_s and not kept.stored.publisher and self._owners.owner(session) is None:
            compares.append(Compare(client_key(OWNER, *session), 0))
        elif stored.will.delay_s and not kept.stored.publisher and self._sessions.is_away(session):
            compares.append(Compare(client_key(DATA, *session), self._sessions.revision(session)))
        result = await self._writer.change(compares, [Change(key, _encode(stored))])
        if not result.done:
            self._found(session, result.found[0])
            return None
        claimed = _Kept(result.revision, stored)
        self._set(session, claimed)
        self._feed.note(key, result.revision)
        return claimed

    async def _publish_now(self, session: Session, will: Will) -> bool:
        """Whether every node that must have it has it."""
        if self._closed:
            raise StoreError("the node ends", retry=False)
        mark = self._hub.commits.mark
        self._broker.publish_will_of(session[0], session[1], will)
        return bool(await self._committed(mark))

    async def _remove(self, session: Session, kept: _Kept) -> None:
        key = client_key(WILL_DATA, *session)
        result = await self._writer.change([Compare(key, kept.revision)], [Change(key, None)])
        self._published.pop(session, None)
        if result.done:
            self._set(session, None)
            self._feed.note(key, result.revision)
        else:
            self._found(session, result.found[0])
