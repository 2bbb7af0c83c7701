"""Whether this process may be the node of its name. That is asked before anything in etcd is changed under the name: by
a member of etcd that joins, and by the registration of the node.

    /mqtt/nodes/<node>       with a lease   of another directory: wait, it may end; then there is another process
                                            of this directory: a former life of this node; or, if its process answers
                                            at another address than this one's, a copy of this directory is in use
    /mqtt/storage/<node>     for good       the directory that the node had last, and its generation

    the directory             the record: none   of this directory         of another directory
    was in no cluster yet     ours               an old copy               ours: as after the loss of the other
    of generation g           ours               of > g: an old copy       ours if g was to replace it, else replaced
                                                 else: ours

A generation grows each time that the node registers, and once in a while as it serves: first on the disk, then in etcd.
So a crash, or a loss of power, at any instant leaves the directory ahead of the record or equal to it, and a record
that is ahead tells an old copy. (An etcd that was recovered from a minority may be behind, which is harmless.)
"""
from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import msgspec

from fluxmq._core.errors import FluxError, StorageError
from fluxmq.cluster.keys import node_key, storage_key
from fluxmq.cluster.ports import Change, Compare, Item, MetadataStore, OwnStorage
from fluxmq.engine.ports.driver import Driver
from fluxmq.model.malformed import MALFORMED

__all__ = ["PERIOD_S", "Claim", "JoinRefused", "OldStorage", "Seen", "Taken"]

T = TypeVar("T")
GRACE_S = 2.0  # beyond its time, until etcd has ended a lease
PERIOD_S = 60.0  # how old a copy of a directory is at most that counts as the directory


class JoinRefused(FluxError):
    """The node may not join. The text says what to do."""


class Taken(FluxError):
    """The name is not free yet. The text says what the node waits for."""


class OldStorage(StorageError):
    """The storage directory is not the one that the node had last, or an old copy of that. The text says what to do."""


class _Process(msgspec.Struct, frozen=True):
    """What is needed of a registration."""

    identity: str = ""
    address: str = ""


class _Record(msgspec.Struct, frozen=True):
    """Value of a storage key."""

    identity: str
    generation: int


class Seen(NamedTuple):
    """What the store has of the name. former: the registration of a former life of this node. record: of its last
    directory."""

    former: Item | None
    record: Item | None


class Claim:
    """Of one node. ttl_s: of its lease. runs: whether another process answers as this node, with a copy of this
    directory, at the address of a transport."""

    def __init__(self, name: str, storage: OwnStorage, ttl_s: int, driver: Driver,
                 runs: Callable[[str], Awaitable[bool]]) -> None:
        self.name = name
        self.storage = storage
        self._ttl_s = ttl_s
        self._driver = driver
        self._runs = runs
        self._taken = 0  # creation of the registration that this node waits for
        self._since_s = 0.0

    async def look(self, store: MetadataStore) -> Seen:
        """Raises Taken, JoinRefused, OldStorage, StoreError. Changes nothing."""
        name = self.name
        former = await _item(store, node_key(name))
        if former is not None:
            process = _decoded(former, _Process) or _Process()
            if process.identity != self.storage.identity:
                self._wait_for(former, process.address)
            if await self._runs(process.address):
                raise JoinRefused(
                    f"a process with a copy of this storage directory is in the cluster as node {name!r} (at "
                    f"{process.address}): stop that one, or give this one an empty storage.dir and another "
                    "cluster.node_id")
        self._taken = 0
        record = await _item(store, storage_key(name))
        self._compare(record)
        return Seen(former, record)

    def _wait_for(self, item: Item, address: str) -> None:
        now = self._driver.now()
        if item.created != self._taken:
            self._taken, self._since_s = item.created, now
        left = self._since_s + self._ttl_s + GRACE_S - now
        if left > 0:
            raise Taken(f"another process is, or was a moment ago, in the cluster as node {self.name!r} (at {address}):"
                        f" waits up to {self._ttl_s + GRACE_S:g} s for the end of its lease")
        raise JoinRefused(f"another process is in the cluster as node {self.name!r} (at {address}), and renews its "
                          "lease: give this one another cluster.node_id, or stop that one")

    def _compare(self, item: Item | None) -> None:
        record, own = None if item is None else _decoded(item, _Record), self.storage
        if record is None:
            return
        if record.identity != own.identity:
            if not own.generation or (own.replaces == record.identity and own.generation > record.generation):
                return
            what = (f"node {self.name!r} has run with another storage directory (identity {record.identity}) since it "
                    f"had this one (identity {own.identity})")
        elif own.generation >= record.generation:
            return
        else:
            what = (f"the storage directory is an old copy: it is of generation {own.generation}, and node "
                    f"{self.name!r} has had it up to generation {record.generation}")
        raise OldStorage(
            f"{what}. What was acknowledged since is not in it, and what was consumed since would come again. Put the "
            "last directory back; or, if that is lost, set cluster.old_storage to set_aside: the node keeps what is in "
            "this one aside, and comes in as after the loss of its disk")

    async def stake(self, seen: Seen) -> tuple[Compare, Change]:
        """The condition and the change by which a registration records this directory, whose file is ahead of the
        record when this returns. Raises StorageError."""
        own, record = self.storage, None if seen.record is None else _decoded(seen.record, _Record)
        known = 0 if record is None else record.generation
        another = record is not None and record.identity != own.identity
        if own.generation <= known or (another and own.replaces != record.identity):  # type: ignore[union-attr]
            await self._advance(known + 1, record.identity if record is not None and another else None)
        return (Compare(storage_key(self.name), 0 if seen.record is None else seen.record.revision),
                Change(storage_key(self.name), msgspec.json.encode(_Record(own.identity, own.generation))))

    async def _advance(self, generation: int, replaces: str | None) -> None:
        await self._driver.result_of(self._driver.blocking(self.storage.advance, generation, replaces))

    async def renew(self, store: MetadataStore, epoch: int) -> None:
        """The directory has come further; called once in PERIOD_S while the node has its lease. epoch: of the node.
        Raises StoreError, StorageError; then it is done the next time."""
        item = await _item(store, storage_key(self.name))
        record, own = None if item is None else _decoded(item, _Record), self.storage
        if record is None or record.identity != own.identity or record.generation > own.generation:
            return  # another process has taken the name: this directory must not get ahead of that one's
        compare, change = await self.stake(Seen(None, item))
        await store.transact([Compare(node_key(self.name), epoch), compare], [change])


async def _item(store: MetadataStore, key: bytes) -> Item | None:
    return next(iter((await store.read(key)).items), None)


def _decoded(item: Item, kind: type[T]) -> T | None:
    """None: it was written by somebody else."""
    try:
        return msgspec.json.decode(item.value, type=kind)
    except MALFORMED:
        return None
