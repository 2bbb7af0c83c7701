"""SimStore: fluxmq.cluster.ports.MetadataStore of one process over the simulated etcd. What it does when a member does
not answer is what fluxmq/cluster/etcd does.

    store = SimStore(process, etcd, ["etcd-n1", "etcd-n2", "etcd-n3"])      # one per life of the process
    result = await store.transact([Compare(b"k", 0)], [Change(b"k", b"v")])
    status = await store.status("etcd-n1")

Endpoints are members, in the order of preference: a node names its own first. A request and its answer are messages, so
either may be lost; then it takes until its time limit.
"""
from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from simulator.cluster.api import (
    CompactRequest,
    Fault,
    GrantRequest,
    MemberRequest,
    RangeRequest,
    RenewRequest,
    Request,
    RevokeRequest,
    Status,
    StatusRequest,
    TxnRequest,
    VotersRequest,
    Why,
)
from simulator.cluster.etcd import SimEtcd
from simulator.cluster.machines import Process
from simulator.cluster.network import Connection, Side

from fluxmq._core.errors import UsageError
from fluxmq.cluster.ports import (
    Change,
    Compacted,
    Compare,
    LeaseGone,
    Range,
    Renewal,
    StoreError,
    StoreFull,
    TransactionResult,
    WatchBatch,
)
from fluxmq.engine.ports.driver import Promise

__all__ = ["SimStore", "SimWatch"]

LIMIT_S = 2.0
PROBE_S = 0.5               # between two probes of an endpoint that fails
PROBE_LIMIT_S = 1.0
PAUSE_S = (0.02, 0.25)      # before all endpoints are tried once more: at first, at most
SHARE_S_MIN = 0.25
ASK_S = 1.0                 # silence of a watch, before its progress is asked for
SILENCE_S = (3.0, 60.0)     # before its endpoint is left: at first, at most
OPERATIONS_MAX = 128


class _Failed(StoreError):
    def __init__(self, why: Why, member: str) -> None:
        super().__init__(f"{member}: {why.text}", retry=why.retry)
        self.why = why


class _FailedCompacted(_Failed, Compacted):
    pass


class _FailedFull(_Failed, StoreFull):
    pass


class _FailedLease(_Failed, LeaseGone):
    pass


_CLASSES = {Why.COMPACTED: _FailedCompacted, Why.NOSPACE: _FailedFull, Why.LEASE: _FailedLease}


class SimStore:
    """A MetadataStore. limit_s: for each request, in seconds."""

    def __init__(self, process: Process, etcd: SimEtcd, endpoints: Sequence[str], *, limit_s: float = LIMIT_S) -> None:
        self.process = process
        self.etcd = etcd
        self.endpoints = list(endpoints)
        self.limit_s = limit_s
        self._life = process.life
        self._driver = process.driver
        self._failing: dict[str, float] = {}    # since when, by the driver's clock
        self._probing = False
        self._chance = random.Random(etcd.network.chance.getrandbits(64))

    # ── MetadataStore ────────────────────────────────────────────────────────────────────────────────────

    async def transact(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TransactionResult:
        if len(compares) > OPERATIONS_MAX or len(changes) > OPERATIONS_MAX:
            raise UsageError(f"a transaction of {len(compares)} compares and {len(changes)} changes")
        if len({change.key for change in changes}) != len(changes):
            raise UsageError("a transaction changes a key twice")
        result: TransactionResult = await self._ask(TxnRequest(compares, changes), repeat=False)
        return result

    async def read(self, key: bytes, *, prefix: bool = False, local: bool = False) -> Range:
        result: Range = await self._ask(RangeRequest(key, prefix, local), repeat=True)
        return result

    def watch(self, prefix: bytes, after: int) -> SimWatch:
        return SimWatch(self, prefix, after)

    async def grant(self, ttl_s: int) -> int:
        while True:
            lease, tried = self._chance.randrange(1, 1 << 62), [0]
            try:
                return int(await self._ask(GrantRequest(lease, ttl_s), repeat=True, tried=tried))
            except _Failed as failed:
                if failed.why is not Why.LEASE_EXISTS:
                    raise
                if tried[0] > 1:        # by an earlier try, whose answer was lost
                    return lease

    async def renew(self, lease: int) -> Renewal:
        result: Renewal = await self._ask(RenewRequest(lease), repeat=True)
        return result

    async def revoke(self, lease: int) -> None:
        try:
            await self._ask(RevokeRequest(lease), repeat=True)
        except _Failed as failed:
            if failed.why is not Why.LEASE:
                raise

    async def voters(self) -> dict[int, str]:
        result: dict[int, str] = await self._ask(VotersRequest(), repeat=True)
        return result

    # ── beyond it ────────────────────────────────────────────────────────────────────────────────────────

    async def status(self, member: str, limit_s: float = 0.5) -> Status:
        """What a member says of itself, also without a leader. Raises StoreError."""
        result: Status = await self._one(member, StatusRequest(), limit_s)
        return result

    async def compact(self, revision: int) -> None:
        """Forgets the history before a revision. Raises Compacted if that was done already."""
        await self._ask(CompactRequest(revision), repeat=False)

    async def change_members(self, change: str, name: str) -> None:
        """voter: adds a voter, or promotes a learner; learner: adds one; remove. A new member must have been started
        with SimEtcd.add. No check keeps the quorum."""
        await self._ask(MemberRequest(change, name), repeat=False)

    # ── endpoints ────────────────────────────────────────────────────────────────────────────────────────

    def in_order(self) -> list[str]:
        """Those that work, in the order of preference; then those that fail, the one that failed longest ago first."""
        return ([name for name in self.endpoints if name not in self._failing]
                + sorted((name for name in self.endpoints if name in self._failing), key=self._failing.__getitem__))

    async def _ask(self, request: Request, *, repeat: bool, tried: list[int] | None = None) -> Any:
        """One endpoint after the other, until one answers. repeat: whether the request may be done twice."""
        ends = self._driver.now() + self.limit_s
        pause = PAUSE_S[0]
        while True:
            for name in self.in_order():
                left = ends - self._driver.now()
                if left <= 0:
                    raise _Failed(Why.LATE, "etcd")
                share = min(left, max(left / 2, SHARE_S_MIN)) if repeat and len(self.endpoints) > 1 else left
                if tried is not None:
                    tried[0] += 1
                try:
                    answer = await self._one(name, request, share)
                except _Failed as failed:
                    if failed.why.leave:
                        self.fails(name)
                    if not failed.why.again or (failed.why.sent and not repeat):
                        raise
                else:
                    self._failing.pop(name, None)
                    return answer
            if ends - self._driver.now() <= pause:
                raise _Failed(Why.LATE, "etcd")
            await self._driver.sleep(pause)
            pause = min(pause * 2, PAUSE_S[1])

    async def _one(self, name: str, request: Request, limit_s: float) -> Any:
        promise = self._driver.promise()
        self._send(name, request, limit_s, partial(_deliver, promise))
        self._driver.later(limit_s, partial(_deliver, promise, Fault(Why.LATE)))
        answer = await promise
        if isinstance(answer, Fault):
            raise _CLASSES.get(answer.why, _Failed)(answer.why, name)
        return answer

    def _send(self, name: str, request: Request, limit_s: float, done: Any) -> None:
        """done(answer), if one comes."""
        member, network, mine = self.etcd.members[name], self.etcd.network, self.process
        token = object()

        def reply(answer: Any) -> None:
            member.process.at_death.pop(token, None)
            network.send(member.process, mine, partial(done, answer))

        def died(told: bool) -> None:
            if told:
                network.send(member.process, mine, partial(done, Fault(Why.BROKEN)))

        def arrived() -> None:
            member.process.at_death[token] = died
            member.service.handle(request, reply, limit_s)

        def refused() -> None:
            if not member.process.dark:
                network.send(member.process, mine, partial(done, Fault(Why.UNREACHABLE)))

        network.send(mine, member.process, arrived, refused=refused)

    def fails(self, name: str) -> None:
        """Others are asked until a probe succeeds."""
        self._failing[name] = self._driver.now()
        if not self._probing:
            self._probing = True
            self._driver.later(PROBE_S, self._probe)

    def _probe(self) -> None:
        self._probing = bool(self._failing)
        if self._probing:
            for name in self._failing:
                self._send(name, RangeRequest(b"\0", False, False), PROBE_LIMIT_S, partial(self._probed, name))
            self._driver.later(PROBE_S, self._probe)

    def _probed(self, name: str, answer: Any) -> None:
        if not isinstance(answer, Fault):
            self._failing.pop(name, None)


def _deliver(promise: Promise[Any], answer: Any) -> None:
    if not promise.done():
        promise.set_result(answer)


class SimWatch:
    """A Watch."""

    def __init__(self, store: SimStore, prefix: bytes, after: int) -> None:
        self._store = store
        self._driver = store.process.driver
        self._prefix = prefix
        self._last = after
        self._batches: deque[WatchBatch] = deque()
        self._end: StoreError | None = None
        self._waiting: Promise[None] | None = None
        self._silence_s = SILENCE_S[0]
        self._pause_s = PAUSE_S[0]
        self._side: Side | None = None
        self.endpoint = ""
        self._driver.soon(self._open)

    async def next(self) -> WatchBatch:
        while not self._batches:
            if self._end is not None:
                raise self._end
            self._waiting = self._driver.promise()
            await self._waiting
        return self._batches.popleft()

    def close(self) -> None:
        if self._end is None:
            self._finish(_Failed(Why.CLOSED, "the watch"))
        self._batches.clear()

    def _finish(self, error: StoreError) -> None:
        self._end = error
        if self._side is not None and self._side.connected:
            self._side.close("the watch was closed")
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _open(self) -> None:
        if self._end is not None:
            return
        self.endpoint = self._store.in_order()[0]
        member = self._store.etcd.members[self.endpoint]
        side = self._side = Side(self._store.process, self._on_item, self._left)
        Connection(self._store.etcd.network, side, member.service.accept_watch())
        side.out.write(("watch", self._prefix, max(self._last, 1)))
        self._silent_s = 0.0
        self._driver.later(ASK_S, partial(self._listen, side))

    def _listen(self, side: Side) -> None:
        if side.closed or self._end is not None:
            return
        self._silent_s += ASK_S
        if self._silent_s >= self._silence_s:
            self._silence_s = min(self._silence_s * 2, SILENCE_S[1])
            side.close("the watch was given up")
            self._left("silent")
        else:
            side.put(("progress",))
            self._driver.later(ASK_S, partial(self._listen, side))

    def _left(self, _why: str) -> None:
        """The stream is over: another one, at the endpoint that is next."""
        if self._end is None:
            self._store.fails(self.endpoint)
            self._driver.later(self._pause_s, self._open)
            self._pause_s = min(self._pause_s * 2, PAUSE_S[1])

    def _on_item(self, item: object) -> None:
        assert isinstance(item, tuple)
        self._silent_s = 0.0
        if item[0] == "events":
            events = [event for event in item[1] if event.revision > self._last]
            if events:
                self._report(WatchBatch(events[-1].revision, events))
        elif item[0] == "revision" and item[1] > self._last:
            self._report(WatchBatch(item[1], ()))
        elif item[0] == "progress":
            self._silence_s = SILENCE_S[0]
        elif item[0] == "compacted":
            self._finish(_FailedCompacted(Why.COMPACTED, self.endpoint))

    def _report(self, batch: WatchBatch) -> None:
        self._last = batch.revision
        self._silence_s, self._pause_s = SILENCE_S[0], PAUSE_S[0]
        self._batches.append(batch)
        self._wake()
