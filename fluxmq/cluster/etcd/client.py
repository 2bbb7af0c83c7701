"""EtcdStore: the MetadataStore of a cluster, over etcd.

    transact        may not be done twice: another endpoint is tried only while it surely had no effect
    read, renew,    may be repeated: each endpoint is tried until the limit
    revoke
    grant           the lease's number is chosen here, so a repetition finds the lease of the first try
    watch           goes on at another endpoint, behind the last revision that it reported (watch.py)

Which errors there are: errors.py. Which endpoint is asked: endpoints.py. What is beyond the port, for members and
maintenance: admin.py.
"""
from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

from fluxmq._core.errors import ConfigError, UsageError
from fluxmq.cluster.etcd.admin import EtcdAdmin, Member
from fluxmq.cluster.etcd.endpoints import WITH_LEADER, Endpoint, Endpoints, Tls
from fluxmq.cluster.etcd.errors import Cause, EtcdCompacted, EtcdError
from fluxmq.cluster.etcd.stubs import rpc
from fluxmq.cluster.etcd.watch import EtcdWatch
from fluxmq.cluster.ports import Change, Compare, Item, Log, Range, Renewal, TransactionResult

__all__ = ["EtcdStore"]

LIMIT_S = 2.0
OPERATIONS_MAX = 128        # of a transaction; etcd's own limit
PAGE_KEYS = 1000            # of a read
RESTARTS_MAX = 5            # of a read whose revision was compacted between two pages
LEASE_MAX = (1 << 63) - 1


class EtcdStore(EtcdAdmin):
    """MetadataStore. To be used on one event loop; close() at the end.

    addresses: host:port of etcd's members, in the order of preference. tls: None for connections in the clear. limit_s:
    how long each request may take, in seconds. on_log: what happens to endpoints. seed: of the numbers of leases, for
    tests; None: of the system.
    """

    def __init__(self, addresses: Sequence[str], *, tls: Tls | None = None, limit_s: float = LIMIT_S,
                 on_log: Log | None = None, seed: int | None = None) -> None:
        super().__init__(Endpoints(addresses, tls, limit_s, on_log))
        self._numbers: random.Random = random.SystemRandom() if seed is None else random.Random(seed)
        self._watches: list[EtcdWatch] = []
        self._given: list[str] = self._endpoints.addresses

    @property
    def endpoints(self) -> list[str]:
        """host:port, in the order of preference."""
        return self._endpoints.addresses

    def set_endpoints(self, addresses: Sequence[str]) -> None:
        """Replaces the list; requests and watches at endpoints that are not in it go on at others."""
        self._endpoints.replace(addresses)
        self._given = self._endpoints.addresses

    async def transact(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TransactionResult:
        """As MetadataStore.transact. Raises UsageError for more compares or changes than that."""
        if max(len(compares), len(changes)) > OPERATIONS_MAX:
            raise UsageError(f"a transaction of {len(compares)} compares and {len(changes)} changes: "
                             f"{OPERATIONS_MAX} of each are allowed")
        request = rpc.TxnRequest(
            compare=[rpc.Compare(key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision)
                     for key, revision in compares],
            success=[_operation(change) for change in changes],
            failure=[rpc.RequestOp(request_range=rpc.RangeRequest(key=key)) for key, _ in compares])

        async def send(endpoint: Endpoint, limit_s: float) -> Any:
            return await endpoint.kv.Txn(request, timeout=limit_s, metadata=WITH_LEADER)

        _, answer = await self._endpoints.ask(send, repeat=False)
        header = answer.header
        if answer.succeeded:
            return TransactionResult(True, header.revision, header.raft_term)
        found = [_item(one.response_range.kvs[0]) if one.response_range.kvs else None for one in answer.responses]
        return TransactionResult(False, header.revision, header.raft_term, found)

    async def read(self, key: bytes, *, prefix: bool = False, local: bool = False) -> Range:
        """As MetadataStore.read. The limit of time is that of each page."""
        for restart in range(RESTARTS_MAX + 1):
            try:
                return await self._read(key, prefix, local)
            except EtcdCompacted:
                if restart == RESTARTS_MAX:
                    raise
        raise AssertionError

    async def _read(self, key: bytes, prefix: bool, local: bool) -> Range:
        end = _behind(key) if prefix else b""
        request = rpc.RangeRequest(key=key or b"\0", range_end=end, limit=PAGE_KEYS if prefix else 0,
                                   serializable=local)
        metadata = () if local else WITH_LEADER

        async def send(endpoint: Endpoint, limit_s: float) -> Any:
            return await endpoint.kv.Range(request, timeout=limit_s, metadata=metadata)

        endpoint, page = await self._endpoints.ask(send, repeat=True)
        revision, term, items = page.header.revision, page.header.raft_term, [_item(kv) for kv in page.kvs]
        while page.more:
            request.key, request.revision = items[-1].key + b"\0", revision
            endpoint, page = await self._endpoints.ask(send, repeat=True, first=endpoint)
            items.extend(map(_item, page.kvs))
        return Range(revision, term, items)

    def watch(self, prefix: bytes, after: int) -> EtcdWatch:
        """As MetadataStore.watch. next() also raises StoreError (retry False) when etcd refuses the watch for good,
        for lack of a permission."""
        watch = EtcdWatch(self._endpoints, prefix or b"\0", _behind(prefix), after)
        self._watches = [*(one for one in self._watches if not one.task.done()), watch]
        return watch

    async def grant(self, ttl_s: int) -> int:
        """As MetadataStore.grant. ttl_s: whole seconds; etcd raises it to 1.5 times its election timeout."""
        tried = lease = 0

        async def send(endpoint: Endpoint, limit_s: float) -> Any:
            nonlocal tried
            tried += 1
            return await endpoint.lease.LeaseGrant(rpc.LeaseGrantRequest(TTL=ttl_s, ID=lease), timeout=limit_s,
                                                   metadata=WITH_LEADER)

        while True:
            tried, lease = 0, self._numbers.randrange(1, LEASE_MAX)
            try:
                await self._endpoints.ask(send, repeat=True)
            except EtcdError as error:
                if error.cause is not Cause.LEASE_EXISTS:
                    raise
                if tried == 1:      # it is somebody else's
                    continue
            return lease

    async def renew(self, lease: int) -> Renewal:
        """As MetadataStore.renew. The term is that of the member that was asked, before it asked the leader."""
        async def send(endpoint: Endpoint, limit_s: float) -> Any:
            return await endpoint.keep_alive(rpc.LeaseKeepAliveRequest(ID=lease), timeout=limit_s,
                                             metadata=WITH_LEADER)

        _, answer = await self._endpoints.ask(send, repeat=True)
        return Renewal(float(answer.TTL), answer.header.raft_term)

    async def revoke(self, lease: int) -> None:
        """As MetadataStore.revoke."""
        async def send(endpoint: Endpoint, limit_s: float) -> Any:
            return await endpoint.lease.LeaseRevoke(rpc.LeaseRevokeRequest(ID=lease), timeout=limit_s,
                                                    metadata=WITH_LEADER)

        with _without(Cause.LEASE):
            await self._endpoints.ask(send, repeat=True)

    async def voters(self) -> dict[int, str]:
        """As MetadataStore.voters. The members' addresses for clients become endpoints, behind those that were given: a
        node whose own member is down goes on as a client of the others."""
        members = [member for member in await self.members() if not member.learner]
        others = [url for member in members for url in _dialled(member) if url.partition("://")[2] not in self._given]
        wanted = [*self._given, *dict.fromkeys(others)]
        if {url.rpartition("://")[2].rstrip("/") for url in wanted} != set(self._endpoints.addresses):
            try:
                self._endpoints.replace(wanted)
            except ConfigError:             # an etcd that was not started by a node: it may say anything
                self._endpoints.replace(self._given)
        return {member.id: member.name for member in members}

    async def close(self) -> None:
        """Ends watches and requests, and closes all connections. May be called twice."""
        for watch in self._watches:
            watch.close()
        if self._watches:
            await asyncio.wait([watch.task for watch in self._watches])
        self._watches = []
        await self._endpoints.close()


@contextlib.contextmanager
def _without(cause: Cause) -> Any:
    """An error of this cause is a success."""
    try:
        yield
    except EtcdError as error:
        if error.cause is not cause:
            raise


def _operation(change: Change) -> Any:
    key, value, lease = change
    if value is None:
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def _dialled(member: Member) -> list[str]:
    """Where a member serves clients, for other machines too unless all of the cluster is on one."""
    def here(url: str) -> bool:
        return url.rpartition("://")[2].startswith(("127.", "localhost:", "[::1]", "0.0.0.0", "[::]"))

    alone = all(map(here, member.peer_urls))
    return [url for url in member.client_urls if alone or not here(url)]


def _item(kv: Any) -> Item:
    return Item(kv.key, kv.value, kv.mod_revision, kv.create_revision, kv.lease)


def _behind(prefix: bytes) -> bytes:
    """The first key behind those that begin with the prefix; b"\\0", which for etcd is the end of all keys, if there is
    none."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes((short[-1] + 1,)) if short else b"\0"
