"""A metadata store in memory, always healthy but for what a test breaks: MetadataStore of `fluxmq.cluster.ports`.

    store = MetadataInMemory(driver)
    store.counts.lose_answers = 1   # the next transaction is done, its answer is lost
    store.counts.fail = 1           # the next request fails, and nothing was done
    store.counts.full = True        # no transaction with a value is taken
    store.counts.exceeds = 1        # the next one with a value is done, and refused; then the store is full
    store.end_lease(lease)          # as at the end of its time to live
    store.compact()                 # watches that are behind raise Compacted
"""
from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from fluxmq.cluster.ports import (
    Change,
    Compacted,
    Compare,
    Event,
    Item,
    Range,
    Renewal,
    StoreError,
    StoreFull,
    TransactionResult,
    Watch,
    WatchBatch,
)
from fluxmq.engine.ports.driver import Driver

__all__ = ["MetadataInMemory"]


class _Counts:
    """What all views of a store share, besides its tables."""

    revision = 1
    term = 1
    compacted = 0
    lose_answers = 0
    fail = 0
    full = False
    exceeds = 0
    last_lease = 100


class MetadataInMemory:
    """driver: of the node that uses it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.counts = _Counts()
        self.items: dict[bytes, Item] = {}
        self.history: list[Event] = []
        self.leases: dict[int, int] = {}  # lease -> time to live
        self.transactions: list[tuple[Sequence[Compare], Sequence[Change]]] = []
        self._watches: list[_Watch] = []
        self.late_s = 0.0  # of this view alone: how long it takes until a watch tells of a change

    def seen_by(self, driver: Driver) -> MetadataInMemory:
        """The same store for another node."""
        other = copy.copy(self)
        other.driver = driver
        return other

    async def _request(self) -> None:
        await self.driver.sleep(0)
        if self.counts.fail:
            self.counts.fail -= 1
            raise StoreError("the store does not answer")

    async def transact(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TransactionResult:
        await self._request()
        assert len({change.key for change in changes}) == len(changes), "a key twice"
        assert len(compares) <= 128 and len(changes) <= 128
        values = any(change.value is not None for change in changes)
        if values and self.counts.full:
            raise StoreFull("the store has no space")
        self.transactions.append((compares, changes))
        found = tuple(self.items.get(compare.key) for compare in compares)
        done = all((item.revision if item else 0) == compare.revision
                   for item, compare in zip(found, compares, strict=True))
        if done:
            self.apply(changes)
        revision = self.counts.revision
        await self.driver.sleep(0)
        if values and self.counts.exceeds:
            self.counts.exceeds -= 1
            self.counts.full = True
            raise StoreFull("the store has no space")
        if self.counts.lose_answers:
            self.counts.lose_answers -= 1
            raise StoreError("the answer was lost")
        return TransactionResult(done, revision, self.counts.term, () if done else found)

    def apply(self, changes: Sequence[Change]) -> None:
        """Makes them at one new revision."""
        self.counts.revision += 1
        for key, value, lease in changes:
            before = self.items.pop(key, None)
            if value is None:
                if before is not None:
                    self.history.append(Event(key, None, self.counts.revision, 0, 0))
                continue
            if lease and lease not in self.leases:
                raise StoreError("lease not found", retry=False)
            item = Item(key, value, self.counts.revision, before.created if before else self.counts.revision, lease)
            self.items[key] = item
            self.history.append(Event(*item))
        for watch in self._watches:
            watch.wake()

    async def read(self, key: bytes, *, prefix: bool = False, local: bool = False) -> Range:
        await self._request()
        items = [item for at, item in sorted(self.items.items()) if (at.startswith(key) if prefix else at == key)]
        return Range(self.counts.revision, self.counts.term, items)

    def watch(self, prefix: bytes, after: int) -> Watch:
        watch = _Watch(self, prefix, after)
        self._watches.append(watch)
        return watch

    async def grant(self, ttl_s: int) -> int:
        await self._request()
        self.counts.last_lease += 1
        self.leases[self.counts.last_lease] = ttl_s
        return self.counts.last_lease

    async def renew(self, lease: int) -> Renewal:
        await self._request()
        return Renewal(float(self.leases.get(lease, 0)), self.counts.term)

    async def revoke(self, lease: int) -> None:
        await self._request()
        self.end_lease(lease)

    async def voters(self) -> dict[int, str]:
        return {}

    def end_lease(self, lease: int) -> None:
        """Deletes its keys at one revision."""
        if self.leases.pop(lease, None) is not None:
            self.apply([Change(key, None) for key, item in self.items.items() if item.lease == lease])

    def compact(self) -> None:
        """Forgets the history so far."""
        self.history.clear()
        self.counts.compacted = self.counts.revision
        for watch in self._watches:
            watch.wake()


class _Watch:
    def __init__(self, store: MetadataInMemory, prefix: bytes, after: int) -> None:
        self._store, self._prefix, self._after = store, prefix, after
        self._waiting: Any = None
        self._closed = False

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> WatchBatch:
        store = self._store
        while not self._closed:
            if self._after < store.counts.compacted:
                raise Compacted("compacted", retry=False)
            if store.counts.revision > self._after:
                if store.late_s:
                    await store.driver.sleep(store.late_s)
                events = [event for event in store.history
                          if event.revision > self._after and event.key.startswith(self._prefix)]
                self._after = store.counts.revision
                return WatchBatch(self._after, events)
            self._waiting = store.driver.promise()
            await self._waiting
        raise StoreError("closed", retry=False)

    def close(self) -> None:
        self._closed = True
        self.wake()
