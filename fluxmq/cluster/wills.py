"""Wills that outlive their node: a key for each in the store.

    CONNECT with a will ─► kept in the store, then CONNACK ─► the owner publishes or discards it ─► deleted
                                │
                                └─ its node's life ends ─► published by another (left_wills.py)

The owner deletes a will when everybody has what it published. If it dies before that, the will is left, and published
again; each node knows a will that it has had by its identity.

The wills of a session are written one after the other; only the newest that waits is.
"""
from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import OWNER, WILL_DATA, client_key
from fluxmq.cluster.left_wills import LeftWills
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.owners import Owners, Session
from fluxmq.cluster.ports import Change, Compare, Item, Log, StoreError, StoreFull
from fluxmq.cluster.store_tickets import StoreTickets
from fluxmq.cluster.will_table import KeptWill, StoredWill, WillTable, encode
from fluxmq.cluster.writer import FULL_RETRY_S, Writer
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.driver import Driver, Promise, fulfil
from fluxmq.engine.sessions.state import Will

__all__ = ["Wills"]

BYTES_MAX = 1 << 20  # of a will with its properties: etcd's limit for a request is 1.5 MiB
PERIOD_S = 0.25  # how exactly delays are kept
RETRY_S = 0.25


class _Wanted(msgspec.Struct):
    """What the store should have of a session of this node. ticket: the position for which a CONNACK waits; 0: none
    does. adopted: it is from a former life of this node. committed: what was published in its place is."""

    will: Will | None
    expiry_s: int
    ticket: int = 0
    adopted: bool = False
    committed: Promise[bool] | None = None


class Wills:
    """One per life of a node. limit_s: how long a CONNACK waits for the store."""

    def __init__(self, membership: Membership, owners: Owners, feed: Feed, writer: Writer, driver: Driver, *,
                 broker: Broker, limit_s: float, log: Log) -> None:
        """broker: before anything is loaded from its disk. Delays do not end until this node knows what became of its
        wills."""
        self._membership = membership
        self._owners = owners
        self._feed = feed
        self._writer = writer
        self._driver = driver
        self._log = log
        self._broker, self._hub = broker, broker.hub
        self._tickets = StoreTickets(broker.hub.commits.open_line("wills"), limit_s)
        self._wanted: dict[Session, _Wanted] = {}
        self._working: set[Session] = set()
        self._closed = False
        self.table = WillTable(membership, log)
        self.left = LeftWills(self.table, membership, owners, feed, writer, driver, limit_s=limit_s,
                              committed=self._committed, settles=lambda session: session in self._wanted)
        self.left.attach(broker)
        broker.joining = True
        owners.former = self

    # ------------------------------------------------------------------ life

    def begin(self) -> None:
        """The feed has reported all wills, and this node has the sessions that it keeps: a will that another node has
        published, or is about to, is not this node's any more."""
        member, published = self._membership, set(self._hub.origins.known())
        for session, kept in self.table.items():
            stored = kept.stored
            if stored.node != member.name or stored.life == member.epoch or stored.publisher:
                continue
            state, owner = self._state(session), self._owners.owner(session)
            if state is not None and state.will is not None:
                self._want(session, _Wanted(state.will, state.expiry_s, adopted=True))
            elif (state is not None or (owner is None and session not in self._broker.stored)) and (
                    stored.will.identity not in published):
                self._want(session, _Wanted(None, 0))       # its client had withdrawn it
            # Else it is left: another node has the session, or the former life did not hear that all had the will.
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
        self.left.close()

    def has(self, identity: int) -> bool:
        """Whether the store has a will with this identity."""
        return self.table.has(identity)

    async def _keep_time(self) -> None:
        while not self._closed:
            await self._driver.pace(PERIOD_S)
            now = self._driver.now()
            self._tickets.expire(now)
            if self._membership.without_quorum:
                self._tickets.release()
            self.left.look(now)

    # ------------------------------------------------------------------ for Owners: see owners.Former

    def wait(self, session: Session, clean_start: bool) -> Promise[None] | None:
        """A will that comes before the connection."""
        return self.left.wait(session, clean_start)

    def compare(self, session: Session) -> Compare:
        """The will in the store, or none, is the one that this node knows."""
        kept = self.table.get(session)
        return Compare(client_key(WILL_DATA, *session), 0 if kept is None else kept.revision)

    def compared(self, session: Session, item: Item | None) -> None:
        """It is another one."""
        self.table.found(session, item)

    # ------------------------------------------------------------------ of clients of this node

    def changed(self, session: Session, will: Will | None, expiry_s: int, since: int) -> None:
        """See Directory.will_changed."""
        kept = self.table.get(session)
        if self._broker.joining or (will is None and kept is None and session not in self._working):
            return
        wanted = _Wanted(will, expiry_s)
        if will is None:
            wanted.committed = self._committed(since)
        elif (size := len(encode(will))) > BYTES_MAX:
            self._log("warning", "large will", (
                f"a will is larger than {BYTES_MAX >> 20} MiB: if this node dies, it is not published"),
                {"client_id": session[1].decode(), "bytes": size})
            wanted.will = None
        # Behind CONNACK nobody publishes what a former life of the client, at another node, had left.
        if wanted.will is not None or (kept is not None
                                       and kept.life != (self._membership.name, self._membership.epoch)):
            wanted.ticket = self._tickets.give(self._driver.now())
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
        member, kept = self._membership, self.table.get(session)
        owner = self._owners.owner(session)
        if owner is None or owner.node != member.name:
            return True                     # the session is lost: it ends here
        if wanted.adopted and (kept is None or kept.stored.publisher):
            self._broker.forget_will(*session)      # another node publishes it, or has
            return True
        if kept is not None and not wanted.adopted and self._comes_first(session, kept):
            await self._driver.sleep(RETRY_S)
            return False
        key = client_key(WILL_DATA, *session)
        stored = StoredWill(member.name, member.epoch, owner.epoch, will, wanted.expiry_s)
        try:
            result = await self._writer.change(
                [Compare(key, 0 if kept is None else kept.revision), Compare(client_key(OWNER, *session), owner.epoch)],
                [Change(key, encode(stored))], wait_for_space=False)
        except StoreFull:                   # meanwhile the session may end, and its will with it
            await self._driver.sleep(FULL_RETRY_S)
            return False
        if result.done:
            self.table.set(session, KeptWill(result.revision, stored))
            self._feed.note(key, result.revision)
            return True
        self.table.found(session, result.found[0])
        if result.found[1] is None or result.found[1].revision != owner.epoch:
            await self._driver.sleep(RETRY_S)       # the feed will say who owns the session
        return False

    async def _delete(self, session: Session, wanted: _Wanted) -> bool:
        kept = self.table.get(session)
        if kept is None or not (wanted.ticket or self._is_ours(session, kept)):
            return True
        if self._comes_first(session, kept):
            if wanted.ticket:
                await self._driver.sleep(RETRY_S)
            return not wanted.ticket
        if wanted.committed is not None:
            await wanted.committed          # if it was published, everybody has it
        key = client_key(WILL_DATA, *session)
        result = await self._writer.change([Compare(key, kept.revision)], [Change(key, None)])
        if result.done:
            self.table.set(session, None)
            self._feed.note(key, result.revision)
            return True
        self.table.found(session, result.found[0])
        return False

    def _comes_first(self, session: Session, kept: KeptWill) -> bool:
        """Whether the will of a life that has ended comes before the present connection of its client. It has become
        due since the CONNECT came (left_wills.py)."""
        return self.table.is_left(kept) and self.left.holds_up(session, kept)

    def _committed(self, since: int) -> Promise[bool]:
        """When everything that this node has recorded and sent since a mark, in this turn, is committed. False: a node
        has not answered in time."""
        promise = self._driver.promise()
        self._hub.when_durable(partial(fulfil, promise, True), since, lambda why: fulfil(promise, False))
        return promise

    def _is_ours(self, session: Session, kept: KeptWill) -> bool:
        """Whether it is the will of a session of this node: of its client, or of one that came with the session from a
        node that lives, and was due before this node had written it as its own."""
        name, owner = self._membership.name, self._owners.owner(session)
        return kept.stored.node == name or (owner is not None and owner.node == name
                                            and owner.epoch > kept.stored.owner and not self.table.is_left(kept))
