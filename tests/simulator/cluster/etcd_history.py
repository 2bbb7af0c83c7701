"""Histories of the simulated etcd alone: clients at three nodes, faults, and a judge. Each is from one seed.

    play(seed)          # raises Wrong, with the faults that there were
"""
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from simulator.cluster.faults import Faults
from simulator.cluster.kv import Kv
from simulator.cluster.member import EtcdOptions
from simulator.cluster.store import SimStore, SimWatch
from simulator.cluster.world import SimCluster

from fluxmq.cluster.ports import Change, Compare, Event, Item, Range, StoreError, TransactionResult

__all__ = ["History", "Operation", "Wrong", "play"]

KEYS = [b"/a", b"/b", b"/c"]
STEPS = 40
VARIANTS = [EtcdOptions(), EtcdOptions().with_raft(pre_vote=True), EtcdOptions().with_raft(check_quorum=False),
            EtcdOptions(sync_ms=(0, 80)), EtcdOptions(keep_tombstone=True).with_raft(postpone_reads=False)]


class Operation(NamedTuple):
    """What a client asked for, when, and what came of it (None: no answer)."""

    began_ms: int
    ended_ms: int
    what: tuple[Any, ...]
    result: TransactionResult | Range | None


class Wrong(AssertionError):
    """The judge has found something."""


class History:
    """Clients at three nodes write values that occur once, and read; a watch at each node reports everything."""

    def __init__(self, seed: int, options: EtcdOptions | None = None) -> None:
        self.chance = random.Random(seed)
        self.cluster = SimCluster(self.chance.getrandbits(48), options=options or self.chance.choice(VARIANTS))
        self.faults = Faults(self.cluster, random.Random(self.chance.getrandbits(48)))
        self.operations: list[Operation] = []
        self.watched: dict[str, list[Event]] = {name: [] for name in self.cluster.nodes}
        self.reported: dict[str, int] = {}
        self.compacted: dict[str, int] = {}
        self.stores = {name: self.cluster.store(name) for name in self.cluster.nodes}
        self.under_way = 0
        self._values = 0

    def play(self) -> None:
        """Plays it. Raises AssertionError."""
        cluster = self.cluster
        for name, node in cluster.nodes.items():
            node.driver.start(self._watch(self.stores[name].watch(b"/", 0), name))
        for _ in range(STEPS):
            self.faults.step()
            for _ in range(self.chance.choice((0, 1, 3))):
                name = self.chance.choice(list(cluster.nodes))
                self.under_way += 1
                cluster.nodes[name].driver.start(self._client(self.stores[name]))
            cluster.run_for(self.chance.choice((0.003, 0.05, 0.4, 2.5)))
        self.faults.end()
        cluster.run_until(lambda: cluster.etcd.has_quorum and not self.under_way, 30.0)
        last = self._operation(self.stores["n1"], KEYS[0], lambda: ("write", KEYS[0], 0, b"last"))
        cluster.nodes["n1"].driver.start(last)
        cluster.run_until(lambda: all(self.reported.get(name, 0) >= self.revision for name in cluster.nodes), 200.0)
        assert not any(node.driver.crashed for node in cluster.nodes.values())

    @property
    def revision(self) -> int:
        """The newest of any member."""
        return max(member.kv.revision for member in self.cluster.etcd.members.values())

    async def _watch(self, watch: SimWatch, name: str) -> None:
        while True:
            batch = await watch.next()
            assert batch.revision > self.reported.get(name, 0)
            self.watched[name] += batch.events
            self.reported[name] = batch.revision

    async def _client(self, store: SimStore) -> None:
        key, chance = self.chance.choice(KEYS), self.chance
        for _ in range(chance.choice((1, 4))):
            found = await self._operation(store, key, lambda: ("read", key))
            if isinstance(found, Range):
                revision = found.items[0].revision if found.items else 0
                self._values += 1
                value = None if chance.random() < 0.2 else b"%d" % self._values
                await self._operation(store, key, lambda: ("write", key, revision, value))   # noqa: B023
        self.under_way -= 1

    async def _operation(self, store: SimStore, key: bytes, make: Callable[[], tuple[Any, ...]]) -> Any:
        what, began_ms = make(), self.cluster.now_ms
        result: TransactionResult | Range | None = None
        try:
            if what[0] == "read":
                result = await store.read(key)
            else:
                result = await store.transact([Compare(key, what[2])], [Change(key, what[3])])
        except StoreError:
            pass
        self.operations.append(Operation(began_ms, self.cluster.now_ms, what, result))
        return result

    # ── the judge ────────────────────────────────────────────────────────────────────────────────────────

    def judge(self) -> None:
        """Raises Wrong. The witness of linearizability is the order of revisions."""
        states, events = self._replay()
        done: dict[int, Operation] = {}
        for one in self.operations:
            if one.result is not None:
                self._judge_answer(one, states, done)
        newest = 0
        marks = sorted([(one.ended_ms, 1, one) for one in self.operations if one.result is not None]
                       + [(one.began_ms, 0, one) for one in self.operations if one.result is not None],
                       key=lambda mark: mark[:2])
        seen_before: dict[int, int] = {}
        for _, ends, one in marks:
            assert one.result is not None
            if not ends:
                seen_before[id(one)] = newest
            elif one.result.revision < seen_before[id(one)]:
                raise Wrong(f"{one} does not see revision {seen_before[id(one)]}, which was seen before it began")
            else:
                newest = max(newest, one.result.revision)
        for name, watched in self.watched.items():
            if watched != events:
                raise Wrong(f"the watch at {name} has other events than the store")

    def _replay(self) -> tuple[dict[int, dict[bytes, Item]], list[Event]]:
        kv, written = Kv(), set[Any]()
        states: dict[int, dict[bytes, Item]] = {1: {}}
        for entry in self.cluster.etcd.log:
            if entry.data is not None:
                kv.apply(entry.data[2])
                states[kv.revision] = dict(kv.items)
                if entry.data[1] in written:
                    raise Wrong("an entry is in the log twice")
                written.add(entry.data[1])
        for member in self.cluster.etcd.members.values():
            if member.kv.items != states[member.kv.revision]:
                raise Wrong(f"the state of {member.name} is not what the log says")
        return states, kv.events(b"/", 0)

    @staticmethod
    def _judge_answer(one: Operation, states: dict[int, dict[bytes, Item]], done: dict[int, Operation]) -> None:
        key, result = one.what[1], one.result
        assert result is not None
        state = states[result.revision]
        if isinstance(result, Range):
            if list(result.items) != [item for item in [state.get(key)] if item is not None]:
                raise Wrong(f"{one}: a read of something else")
        elif not result.done:
            if result.found[0] != state.get(key) or (state[key].revision if key in state else 0) == one.what[2]:
                raise Wrong(f"{one}: refused without reason")
        elif one.what[2] or one.what[3] is not None:
            if done.setdefault(result.revision, one) is not one:
                raise Wrong(f"{one} and {done[result.revision]} have the same revision")
            value = state[key].value if key in state else None
            before = max((number for number in states if number < result.revision), default=1)
            was = states[before].get(key)
            if value != one.what[3] or (was.revision if was is not None else 0) != one.what[2]:
                raise Wrong(f"{one}: not what was written")


def play(seed: int, options: EtcdOptions | None = None) -> History:
    """One history. Raises Wrong."""
    history = History(seed, options)
    try:
        history.play()
        history.judge()
    except AssertionError as error:
        trace = "\n".join(history.faults.trace)
        raise Wrong(f"seed {seed}: {error}\n{trace}") from error
    return history
