"""Bans for failed logins, of all nodes: each is a key of the store, and every node has those that are there.

    a node bans ─► its own table, at once; pending ─► the store has it ─► the feed of every node ─► their tables
    an operator lifts ─► the keys are deleted ─► the feed of every node

A ban ends everywhere by its own time, which its value says. Its key ends with a lease that is not the node's, so the
ban outlives the node, and nobody has to clean up; bans that begin within a minute share a lease. Without quorum a ban
holds where it began, and is written later, if it is not over by then.

The leases end while transactions are under way, and that fails everything in a transaction: so the bans have a writer
of their own.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import BAN_ADDRESS, Name, ban_key, parse
from fluxmq.cluster.ports import Change, Compare, Event, Item, Log, MetadataStore, StoreError
from fluxmq.cluster.writer import CHANGES_MAX, Writer
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.ports.guard import BanTable, SharedBan, SharedBans
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.malformed import MALFORMED
from fluxmq.model.origins import read_origin, show_origin

__all__ = ["Bans", "Value"]

LEASE_SHARED_S = 60.0  # bans that begin within so long share a lease
LIMIT_S = 5.0  # of a transaction
RETRY_S = 1.0
AT_ONCE = 256  # that are being written
PENDING_MAX = 65_536


class Value(msgspec.Struct, frozen=True):
    """A ban in the store, JSON. node: that made it. until_ms: wall clock. length_ms: of all of it."""

    node: str
    failures: int
    until_ms: int
    length_ms: int


_value = msgspec.json.Decoder(Value).decode


class Bans:
    """A SharedBans, of one life of a node. node: its name."""

    def __init__(self, node: str, store: MetadataStore, feed: Feed, driver: Driver, *, log: Log) -> None:
        self._node = node
        self._store = store
        self._feed = feed
        self._driver = driver
        self._log = log
        self._writer = Writer(store, driver, transactions_max=1)
        self._table: BanTable | None = None
        self._pending: dict[bytes, tuple[SharedBan, float]] = {}  # key -> the ban, and its end by the driver's clock
        self._lease = 0
        self._lease_ms = 0  # of a ban, for which the lease lasts
        self._lease_until = 0.0  # it is for bans that begin until then
        self._writing = self._closed = False

    def attach(self, table: BanTable) -> None:
        """Before the feed is loaded. table: this node's bans."""
        self._table = table

    def close(self, why: str) -> None:
        """Nothing is written any more."""
        self._closed = True
        self._writer.close(why)

    # ------------------------------------------------------------------ from the store

    def on_event(self, name: Name, event: Event) -> None:
        """A change of a key of bans that this node has not made, or does not know of yet."""
        if self._table is None:
            return
        if event.value is None:
            place = _place(name)
            if place is not None and event.key not in self._pending:
                self._table.unlearn(*place)
        elif (ban := self._read(name, event.value)) is not None:
            self._table.learn(ban)

    def _read(self, name: Name, text: bytes) -> SharedBan | None:
        place = _place(name)
        try:
            value = _value(text)
        except MALFORMED:
            place = None
        if place is None:
            self._log("warning", str(name), "a ban in etcd cannot be read; it does not hold", {"key": str(name)})
            return None
        return SharedBan(origin=place[0], account=place[1], failures=value.failures, until_ms=value.until_ms,
                         length_ms=value.length_ms)

    # ------------------------------------------------------------------ to the store

    def begun(self, ban: SharedBan) -> None:
        """See the port."""
        if self._closed or len(self._pending) >= PENDING_MAX:
            return
        self._pending[_key(ban.origin, ban.account)] = ban, self._driver.now() + ban.length_ms / 1000
        if not self._writing:
            self._writing = True
            self._driver.start(self._write())

    async def _write(self) -> None:
        """Rounds, until nothing is pending."""
        try:
            while self._pending and not self._closed:
                now = self._driver.now()
                for key in [key for key, (_, until) in self._pending.items() if until <= now]:
                    del self._pending[key]
                try:
                    await self._write_some()
                except StoreError as error:
                    if not error.retry:
                        self._lease = 0     # it may be gone
                    if not self._closed:
                        self._log("warning", str(error), "bans cannot be written to etcd: they hold on this node alone "
                                  "so far; trying again", {"why": str(error)})
                        await self._driver.sleep(RETRY_S)
        finally:
            self._writing = False

    async def _write_some(self) -> None:
        """Raises StoreError, when all that has begun has ended."""
        work = []
        for key, (ban, _) in list(self._pending.items())[:AT_ONCE]:
            work.append(self._driver.start(self._write_one(key, await self._lease_for(ban), ban)))
        for one in work:
            await self._driver.end_of(one)
        for one in work:
            one.result()

    async def _lease_for(self, ban: SharedBan) -> int:
        """Raises StoreError."""
        now = self._driver.now()
        if not self._lease or now >= self._lease_until or self._lease_ms < ban.length_ms:
            self._lease = await self._store.grant(-(-ban.length_ms // 1000) + int(LEASE_SHARED_S))
            self._lease_ms, self._lease_until = ban.length_ms, now + LEASE_SHARED_S
        return self._lease

    async def _write_one(self, key: bytes, lease: int, ban: SharedBan) -> None:
        """Raises StoreError."""
        text = msgspec.json.encode(Value(self._node, ban.failures, ban.until_ms, ban.length_ms))
        revision = 0
        while self._is_pending(key, ban):
            result = await self._writer.change([Compare(key, revision)], [Change(key, text, lease)], LIMIT_S,
                                               wait_for_space=False)
            if result.done or self._lasts_longer(result.found[0], ban):
                break
            revision = result.found[0].revision if result.found[0] is not None else 0
        else:
            return
        if self._is_pending(key, ban):
            del self._pending[key]
        elif result.done and key not in self._pending:      # lifted, while the store did not have it yet
            undone = await self._writer.change([Compare(key, result.revision)], [Change(key, None)])
            self._feed.note(key, undone.revision)

    def _is_pending(self, key: bytes, ban: SharedBan) -> bool:
        """Neither lifted meanwhile, nor followed by another one."""
        return key in self._pending and self._pending[key][0] is ban

    @staticmethod
    def _lasts_longer(item: Item | None, ban: SharedBan) -> bool:
        try:
            return item is not None and _value(item.value).until_ms >= ban.until_ms
        except MALFORMED:
            return False

    async def lift(self, origin: bytes, account: str | None) -> Sequence[SharedBan]:
        """See the port."""
        lifted: dict[bytes, SharedBan] = {}
        try:
            while items := await self._standing(origin, account):
                for at in range(0, len(items), CHANGES_MAX):
                    some = items[at:at + CHANGES_MAX]
                    result = await self._writer.change([Compare(item.key, item.revision) for item in some],
                                                       [Change(item.key, None) for item in some], LIMIT_S)
                    if not result.done:
                        break               # somebody has changed one of them: all that are left are read again
                    for item in some:
                        self._feed.note(item.key, result.revision)
                        self._pending.pop(item.key, None)
                        name = parse(item.key)
                        ban = self._read(name, item.value) if name is not None else None
                        if ban is not None:
                            lifted[item.key] = ban
        except StoreError as error:
            raise QueueRefused("unavailable", f"the cluster cannot lift bans now: {error}",
                               "repeat it when etcd answers; a ban ends by itself, too") from None
        for key, (ban, _) in list(self._pending.items()):
            if ban.origin == origin and account in (None, ban.account):
                del self._pending[key]      # the store does not have it yet
        return list(lifted.values())

    async def _standing(self, origin: bytes, account: str | None) -> list[Item]:
        """The keys of an origin, or of one account there. Raises StoreError."""
        if account is not None:
            return list((await self._store.read(_key(origin, account))).items)
        whole = await self._store.read(_key(origin, None))
        users = await self._store.read(_key(origin, ""), prefix=True)
        return [*whole.items, *users.items]


def _key(origin: bytes, account: str | None) -> bytes:
    return ban_key(show_origin(origin), None if account is None else account.encode("utf-8", "surrogatepass"))


def _place(name: Name) -> tuple[bytes, str | None] | None:
    """Origin and account; None: the key cannot be understood."""
    try:
        origin = read_origin(name.name.decode())
        return origin, None if name.kind == BAN_ADDRESS else name.filter.decode("utf-8", "surrogatepass")
    except ValueError:
        return None


if TYPE_CHECKING:
    _port: type[SharedBans] = Bans
