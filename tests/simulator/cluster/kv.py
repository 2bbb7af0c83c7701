"""The state of one member of the simulated etcd, made of the entries that it has applied: keys with revisions, their
history, and the leases with their keys. When a lease ends is not decided here: lessor.py.

A command is a tuple: ("txn", compares, changes), ("grant", lease, ttl_s), ("revoke", lease), ("compact", revision).
"""
from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from simulator.cluster.api import Fault, Why

from fluxmq.cluster.ports import Change, Compare, Event, Item, TransactionResult

__all__ = ["Kv"]

OPERATIONS_MAX = 128


class Kv:
    """revision: of the last change; an empty store has 1. compacted: revisions before it are gone. leases: their times
    to live. keep_tombstone: a watch from the compacted revision itself sees what was deleted at it (etcd 3.4.36 and
    3.5.18; issue 19179).
    """

    def __init__(self, *, ttl_min_s: int = 2, keep_tombstone: bool = False) -> None:
        self.revision = 1
        self.compacted = 0
        self.items: dict[bytes, Item] = {}
        self.leases: dict[int, int] = {}
        self._keys_of: dict[int, set[bytes]] = {}
        self._history: list[Event] = []
        self._revisions: list[int] = []         # of the history
        self._ttl_min_s = ttl_min_s
        self._keep_tombstone = keep_tombstone

    def apply(self, command: tuple[Any, ...]) -> Any:
        """The answer, without a term; or a Fault."""
        return getattr(self, f"_{command[0]}")(*command[1:])

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────

    def _txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TransactionResult | Fault:
        found = tuple(self.items.get(compare.key) for compare in compares)
        for item, compare in zip(found, compares, strict=True):
            if (item.revision if item is not None else 0) != compare.revision:
                return TransactionResult(False, self.revision, 0, found)
        for change in changes:
            if change.value is not None and change.lease and change.lease not in self.leases:
                return Fault(Why.LEASE)
        revision = self.revision + 1
        for key, value, lease in changes:
            before = self.items.get(key)
            if value is None:
                self._delete(key, revision)
            else:
                self._detach(before)
                item = Item(key, value, revision, before.created if before is not None else revision, lease)
                self.items[key] = item
                self._record(Event(*item))
                if lease:
                    self._keys_of[lease].add(key)
        return TransactionResult(True, self.revision, 0)

    def _grant(self, lease: int, ttl_s: int) -> int | Fault:
        if lease in self.leases:
            return Fault(Why.LEASE_EXISTS)
        self.leases[lease] = max(ttl_s, self._ttl_min_s)
        self._keys_of[lease] = set()
        return lease

    def _revoke(self, lease: int) -> int | Fault:
        if self.leases.pop(lease, None) is None:
            return Fault(Why.LEASE)
        revision = self.revision + 1
        for key in sorted(self._keys_of[lease]):
            self._delete(key, revision)
        del self._keys_of[lease]
        return self.revision

    def _compact(self, revision: int) -> int | Fault:
        if revision <= self.compacted:
            return Fault(Why.COMPACTED)
        if revision > self.revision:
            return Fault(Why.FUTURE)
        self.compacted = revision
        at, end = bisect_left(self._revisions, revision), bisect_right(self._revisions, revision)
        kept = [event for event in self._history[at:end] if event.value is not None or self._keep_tombstone]
        self._history[:end] = kept
        self._revisions[:end] = [revision] * len(kept)
        return self.revision

    def _delete(self, key: bytes, revision: int) -> None:
        before = self.items.pop(key, None)
        if before is not None:
            self._detach(before)
            self._record(Event(key, None, revision, 0, 0))

    def _detach(self, item: Item | None) -> None:
        if item is not None and item.lease:
            self._keys_of[item.lease].discard(item.key)

    def _record(self, event: Event) -> None:
        self.revision = event.revision
        self._history.append(event)
        self._revisions.append(event.revision)

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────

    def range(self, key: bytes, *, prefix: bool) -> list[Item]:
        """The items as they are now."""
        if not prefix:
            item = self.items.get(key)
            return [] if item is None else [item]
        return [self.items[one] for one in sorted(self.items) if one.startswith(key)]

    def events(self, prefix: bytes, first: int) -> list[Event]:
        """Changes from a revision on."""
        at = bisect_left(self._revisions, first)
        return [event for event in self._history[at:] if event.key.startswith(prefix)]
