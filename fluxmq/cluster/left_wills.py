"""The wills of lives that have ended: who publishes them, and when; what a CONNECT waits for.

    its life ends ─► LEFT ──due: claimed by the leader, or by the node at which its client connects──► published
                      │                                                                                   │
                      │                                                            when all nodes have it: deleted
                      ├─ its node is back with the session ─► that node's again (wills.py)
                      └─ not due, and its client connects ──► replaced or deleted before CONNACK (wills.py)

It is due when its delay, or its session's expiry, has passed since the end of the life was seen. A client that connects
where its former will is due, or is being published, waits until the will is gone from the store: all nodes have it
then, so nobody sees anything of the new connection before it [MQTT-3.1.2-8]. With Clean Start the former session ends,
and so does every delay.

Whoever claims it publishes it. The next leader goes on with what a node had claimed that has died. So a will may be
published again; it has an identity (`Will.identity`), by which each node knows a will that it has had
(`_core/hub/origins.pxd`).
"""
from __future__ import annotations

from collections.abc import Callable

import msgspec

from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import WILL_DATA, client_key
from fluxmq.cluster.membership import TAKEOVER_DELAY_S, Membership
from fluxmq.cluster.owners import Owners, Session
from fluxmq.cluster.ports import Change, Compare, StoreError
from fluxmq.cluster.will_table import KeptWill, Life, WillTable, encode
from fluxmq.cluster.writer import Writer
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.driver import Driver, Promise, fulfil

__all__ = ["LeftWills"]

RETRY_S = 0.25
PUBLISHES_MAX = 256  # of the leader, under way at once; what a client waits for comes beside them


class LeftWills:
    """One per life of a node. limit_s: how long a client waits for what its former node does, if that lives.
    committed: returns a promise: whether everything that this node has recorded and sent since a mark, in this turn, is
    committed at every node. settles: whether a session of this node is about to write or to delete the will in the
    store, or has published it."""

    def __init__(self, table: WillTable, membership: Membership, owners: Owners, feed: Feed, writer: Writer,
                 driver: Driver, *, limit_s: float, committed: Callable[[int], Promise[bool]],
                 settles: Callable[[Session], bool]) -> None:
        self._table = table
        self._membership = membership
        self._owners = owners
        self._feed = feed
        self._writer = writer
        self._driver = driver
        self._limit_s = limit_s
        self._committed = committed
        self._settles = settles
        self._broker: Broker
        self._ends: dict[Life, float] = {}  # when its end was seen
        self._publishing: set[Session] = set()
        self._published: dict[Session, int] = {}  # by this node, and not deleted yet: revision
        self._waiting: dict[Session, Promise[None]] = {}  # CONNECTs
        self._since: dict[Session, float] = {}  # when the first one came that waits for a node that lives
        self._closed = False
        table.on_change = self._changed

    def attach(self, broker: Broker) -> None:
        """Before anything is loaded from the disk."""
        self._broker = broker

    def close(self) -> None:
        """Nothing is published any more."""
        self._closed = True

    # ------------------------------------------------------------------ what a CONNECT waits for

    def wait(self, session: Session, clean_start: bool) -> Promise[None] | None:
        """For Owners: what a CONNECT for a session must wait for, before it looks again; None: nothing. A will that is
        due is published now."""
        kept = self._table.get(session)
        member = self._membership
        if kept is None or kept.life == (member.name, member.epoch):
            return None
        if not self._table.is_left(kept):
            # Its node, which lives, has handed the session over. It has published the will, and deletes it when all
            # have it; or the will has come with the session.
            if self._owners.owned_epoch(session) <= kept.stored.owner or self._settles(session) or (
                    self._since.setdefault(session, now := self._driver.now()) + self._limit_s <= now):
                return None
        elif not self.holds_up(session, kept, clean_start):
            return None
        if session not in self._waiting:
            self._waiting[session] = self._driver.promise()
        return self._waiting[session]

    def holds_up(self, session: Session, kept: KeptWill, clean_start: bool = False) -> bool:
        """Whether a left will comes before the next connection of its client. If nobody publishes it yet, this node
        does."""
        if not self._is_taken(kept) and session not in self._publishing:
            if not clean_start and self._driver.now() < self._due(kept):
                return False
            self._begin(session, kept)
        return True

    def _changed(self, session: Session) -> None:
        self._since.pop(session, None)
        self._wake(session)

    def _wake(self, session: Session) -> None:
        promise = self._waiting.pop(session, None)
        if promise is not None:
            fulfil(promise, None)

    # ------------------------------------------------------------------ when it is due

    def look(self, now: float) -> None:
        """To be called several times a second."""
        self._ends = {life: self._ends.get(life, now) for life in self._table.lives() if not self._table.lives_on(life)}
        for session in list(self._waiting):
            self._wake(session)             # a life may have ended, a delay have passed
        member = self._membership
        if member.is_leader and not self._closed and member.takeover_delay_s <= 0:
            for life in list(self._ends):
                self._publish_due(life, now)

    def _publish_due(self, life: Life, now: float) -> None:
        for session in self._table.of_life(life):
            kept = self._table.get(session)
            if len(self._publishing) >= PUBLISHES_MAX:
                return
            if kept is not None and session not in self._publishing and not self._is_taken(kept) and (
                    self._due(kept) <= now):
                self._begin(session, kept)

    def _due(self, kept: KeptWill) -> float:
        since = self._ends.setdefault(kept.life, self._driver.now())
        delay_s = min(kept.stored.will.delay_s, kept.stored.expiry_s)
        return since + TAKEOVER_DELAY_S + delay_s if delay_s else since

    def _is_taken(self, kept: KeptWill) -> bool:
        """Whether another node, which lives, publishes it."""
        stored = kept.stored
        return (stored.publisher not in ("", self._membership.name)
                and self._table.lives_on((stored.publisher, stored.publisher_life)))

    # ------------------------------------------------------------------ publishing one

    def _begin(self, session: Session, kept: KeptWill) -> None:
        self._publishing.add(session)
        self._driver.start(self._publish(session, kept))

    async def _publish(self, session: Session, kept: KeptWill) -> None:
        try:
            await self._membership.wait_takeover_delay()        # its node may serve on for a moment
            if self._published.get(session) != kept.revision:
                claimed = await self._claim(session, kept)
                if claimed is None:
                    return
                kept = claimed
                while not await self._publish_now(session, kept):
                    await self._driver.sleep(RETRY_S)
                self._published[session] = kept.revision
            await self._remove(session, kept)
        except StoreError:
            pass                            # the node ends
        finally:
            self._publishing.discard(session)
            self._wake(session)

    async def _claim(self, session: Session, kept: KeptWill) -> KeptWill | None:
        """Whoever claims it publishes it. None: it is not left any more, or another node's."""
        member, key = self._membership, client_key(WILL_DATA, *session)
        stored = msgspec.structs.replace(kept.stored, publisher=member.name, publisher_life=member.epoch)
        result = await self._writer.change([Compare(key, kept.revision)], [Change(key, encode(stored))])
        if not result.done:
            self._table.found(session, result.found[0])
            return None
        claimed = KeptWill(result.revision, stored)
        self._table.set(session, claimed)
        self._feed.note(key, result.revision)
        return claimed

    async def _publish_now(self, session: Session, kept: KeptWill) -> bool:
        """Whether every node that must have it has it."""
        if self._closed:
            raise StoreError("the node ends", retry=False)
        mark = self._broker.hub.commits.mark
        self._broker.publish_will_of(session[0], session[1], kept.stored.will)
        return bool(await self._committed(mark))

    async def _remove(self, session: Session, kept: KeptWill) -> None:
        key = client_key(WILL_DATA, *session)
        result = await self._writer.change([Compare(key, kept.revision)], [Change(key, None)])
        self._published.pop(session, None)
        if result.done:
            self._table.set(session, None)
            self._feed.note(key, result.revision)
        else:
            self._table.found(session, result.found[0])
