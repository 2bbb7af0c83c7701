"""The model of etcd against the real one: the same requests, one after the other, have the same results. Chance draws
them. Revisions are compared by their distance from the first one, leases by the order of their grants."""
from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from kit.etcd import EtcdServers
from simulator.cluster.test_store import Client, ready
from simulator.cluster.world import SimCluster

from fluxmq.cluster.etcd.client import EtcdStore
from fluxmq.cluster.ports import Change, Compacted, Compare, Event, Item, Range, Renewal, StoreError, TransactionResult

KEYS = [b"/a", b"/a/b", b"/b", b"/c"]
REQUESTS = 120
WATCH_S = 10.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    servers = EtcdServers(tmp_path_factory.mktemp("etcd"))
    yield servers
    servers.end()


class Names:
    """What revisions and leases of one of the two are called in both."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.leases: list[int] = [0]

    def revision(self, revision: int) -> int:
        return revision - self.first if revision else -1

    def lease(self, lease: int) -> int:
        return self.leases.index(lease)

    def translate(self, what: Any) -> Any:
        """The result with names instead of numbers."""
        if isinstance(what, TransactionResult):
            return what.done, self.revision(what.revision), [self.translate(item) for item in what.found]
        if isinstance(what, Range):
            return self.revision(what.revision), [self.translate(item) for item in what.items]
        if isinstance(what, Item | Event):
            key, value, revision, created, lease = what
            return key, value, self.revision(revision), self.revision(created), self.lease(lease)
        return what


class Both:
    """The real store and the model's."""

    def __init__(self, seed: int, real: EtcdStore) -> None:
        self.chance = random.Random(seed)
        self.real = real
        self.cluster = ready(SimCluster(seed))
        self.client = Client(self.cluster)
        self.compacted = 0      # by its name
        self.granted = 0
        self.seen: Counter[str] = Counter()     # kinds of results

    async def begin(self) -> None:
        for item in (await self.real.read(b"/", prefix=True)).items:
            await self.real.transact([], [Change(item.key, None)])
        revision = (await self.real.read(b"/")).revision
        self.names = Names(revision), Names(self.client.do(self.client.store.read(b"/")).revision)

    async def both(self, method: str, *which: Sequence[Any]) -> Any:
        """Calls it with the arguments for each; the results, which are the same."""
        results: list[Any] = []
        for at in range(2):
            try:
                store: Any = self.real if at == 0 else self.client.store
                request = getattr(store, method)(*which[at])
                results.append(await request if at == 0 else self.client.do(request))
            except StoreError as error:
                results.append((isinstance(error, Compacted), error.retry))
        if method == "grant":
            for at in range(2):
                self.names[at].leases.append(results[at])
            self.granted += 1
        else:
            real, model = (self.names[at].translate(results[at]) for at in range(2))
            if method == "renew":
                real, model = real.ttl_s, model.ttl_s
            assert model == real, (method, which[0])
        failed = isinstance(results[0], tuple) and not isinstance(results[0], TransactionResult | Renewal)
        refused = isinstance(results[0], TransactionResult) and not results[0].done
        self.seen[f"{method} {'failed' if failed else 'refused' if refused else 'done'}"] += 1
        return results[0]

    async def step(self) -> None:
        kind = self.chance.choice(("transact",) * 6 + ("read", "read", "grant", "renew", "revoke", "watch", "compact"))
        if kind == "transact":
            await self._transact()
        elif kind == "read":
            key, prefix = self.chance.choice([*KEYS, b"/"]), self.chance.random() < 0.5
            await self._read(key, prefix)
        elif kind == "grant":
            ttl_s = self.chance.choice((60, 1000))
            await self.both(kind, (ttl_s,), (ttl_s,))
        elif kind in ("renew", "revoke") and self.granted:
            number = self.chance.randint(1, self.granted)
            await self.both(kind, *((names.leases[number],) for names in self.names))
        elif kind == "watch":
            await self._watch()
        elif kind == "compact" and self.chance.random() < 0.8:
            newest = (await self.real.read(b"/")).revision - self.names[0].first
            revision = self.chance.randint(max(newest - 10, 1), newest + 1) if newest else 1
            result = await self.both(kind, *((names.first + revision,) for names in self.names))
            if result is None:
                self.compacted = revision

    async def _transact(self) -> None:
        chance = self.chance
        compared = chance.sample(KEYS, chance.choice((0, 1, 1, 2)))
        changed = chance.sample(KEYS, chance.choice((0, 1, 2, 3)))
        found = (await self.real.read(b"/", prefix=True)).items
        present = {item.key: self.names[0].revision(item.revision) for item in found}
        expected = [present.get(key, -1) if chance.random() < 0.8 else chance.randint(-1, 20) for key in compared]
        values = [chance.choice((None, b"", b"v%d" % chance.randrange(100))) for _ in changed]
        leases = [chance.randint(0, self.granted) if chance.random() < 0.5 else 0 for _ in changed]
        arguments = []
        for names in self.names:
            arguments.append((
                [Compare(key, 0 if number < 0 else names.first + number)
                 for key, number in zip(compared, expected, strict=True)],
                [Change(key, value, names.leases[lease] if value is not None else 0)
                 for key, value, lease in zip(changed, values, leases, strict=True)]))
        await self.both("transact", *arguments)

    async def _read(self, key: bytes, prefix: bool) -> None:
        real = await self.real.read(key, prefix=prefix)
        model = self.client.do(self.client.store.read(key, prefix=prefix))
        assert self.names[1].translate(model) == self.names[0].translate(real)

    async def _watch(self) -> None:
        newest = self.names[0].revision((await self.real.read(b"/")).revision)
        after = self.chance.randint(0, newest)
        if after + 1 == self.compacted:     # what is seen there depends on the version
            return
        key = self.chance.choice([*KEYS, b"/"])
        outcomes = []
        # A last event, so that both know when they have seen everything.
        last = [names.first + newest + 1 for names in self.names]
        await self.both("transact", *(([], [Change(key, b"last")]) for _ in range(2)))
        for at, names in enumerate(self.names):
            store: Any = self.real if at == 0 else self.client.store
            watch = store.watch(key, names.first + after)
            events: list[Event] = []
            try:
                while not events or events[-1].revision < last[at]:
                    batch = (await asyncio.wait_for(watch.next(), WATCH_S) if at == 0
                             else self.client.do(watch.next(), WATCH_S))
                    events += batch.events
                outcomes.append([names.translate(event) for event in events])
            except Compacted:
                outcomes.append(["compacted"])
            finally:
                watch.close()
        assert outcomes[1] == outcomes[0], (key, after)
        self.seen["watch compacted" if outcomes[0] == ["compacted"] else "watch done"] += 1


@pytest.mark.parametrize("number", range(2))
def test_the_same_requests_have_the_same_results(server: EtcdServers, number: int, seed: int) -> None:
    async def run() -> None:
        store = EtcdStore(server.addresses)
        try:
            both = Both(seed * 1000 + number, store)
            await both.begin()
            for _ in range(REQUESTS):
                await both.step()
            assert both.seen.keys() >= {"transact done", "transact refused", "transact failed", "grant done",
                                        "renew done", "revoke done", "compact done", "watch done"}, both.seen
        finally:
            await store.close()

    asyncio.run(run())
