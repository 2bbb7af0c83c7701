"""Which node serves a queue: the key `queue-owners`, which hangs on the lease of the node that `queue-data` names.

    start: what this node has from its disk ── known, its own ──► claimed
                                            ├─ never in this cluster ──► defined, unless another has the name
                                            ├─ deleted meanwhile, or moved ──► deleted here
                                            ├─ of a group of nodes ──► left as it is
                                            └─ another one, an old copy, or newer than etcd knows ──► set aside
           what it should have and has not ──► begins anew, empty, as another incarnation
    then: a new queue that is placed here ──► claimed;   an owner's lease has ended ──► away, until it is back
                                                                    └─ not durable ──► placed elsewhere by the leader

A claim compares that there is no owner, and that the messages are still this node's.
"""
from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from fluxmq.cluster import keys
from fluxmq.cluster.defining import Defining
from fluxmq.cluster.definition_values import QueueData, QueueOwner, encode_data, encode_owner
from fluxmq.cluster.definitions import Definitions
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import QUEUE_DATA, QUEUE_OWNER, queue_key
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.placing import Verdict, judge, why_aside
from fluxmq.cluster.ports import Change, Compare, Log, StoreError
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    Placement,
    QueueDefinition,
    Stored,
)
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.parts import is_part
from fluxmq.engine.queues.records import is_moving

__all__ = ["QueueOwners"]

Address = tuple[bytes, bytes]
DISKS = keys.ROOT + b"queue-disks/"  # data directories whose queues are in this store, by their identities
RETRY_S = 0.5
LOOK_S = 1.0


class QueueOwners:
    """One per life of a node. next_identity: as Defining's."""

    def __init__(self, definitions: Definitions, defining: Defining, membership: Membership, feed: Feed,
                 writer: Writer, driver: Driver, *, next_identity: Callable[[], int], log: Log) -> None:
        self._definitions = definitions
        self._defining = defining
        self._membership = membership
        self._feed = feed
        self._writer = writer
        self._driver = driver
        self._next_identity = next_identity
        self._log = log
        self._claiming: set[Address] = set()
        self._kept: set[Address] = set()  # what this node has from its disk, of the queues that are here
        # Before that only what the disk surely has is claimed: other nodes would attach their consumers to what is not
        # the queue.
        self._judged = False
        self._stored: Stored | None = None
        # Nodes with a lease when it was looked last, and the identities of their data directories.
        self._live: frozenset[tuple[str, str]] = frozenset()
        self._closed = False
        definitions.on_queue = self._look

    def attach(self, stored: Stored) -> None:
        """What the node has from its disk. Before the feed is loaded: what it has is claimed from then on."""
        self._stored = stored

    def close(self) -> None:
        """Nothing is claimed any more."""
        self._closed = True

    # ------------------------------------------------------------------ the start

    async def begin(self, engine: Stored) -> None:
        """What the node has from its disk, and what the store has, become one; then the engine is told. The feed was
        loaded, and follows; the node does not serve yet."""
        if self._membership.nodes.keys() <= {self._membership.name}:
            await self._end_what_is_not_durable()
        disk_key = DISKS + self._membership.registration.identity.encode()
        known = self._feed.has(disk_key)
        await self._all(self._take_in_queue(engine, queue, known) for queue in engine.stored_queues())
        exchanges, bindings = engine.stored_exchanges(), engine.stored_bindings()
        if known:
            self._forget(engine, exchanges, bindings)
        else:
            await self._all(self._define(partial(
                self._definitions.define_exchange, msgspec.structs.replace(exchange, id=self._next_identity())))
                for exchange in exchanges if exchange.address not in self._definitions.exchanges)
            await self._all(self._define(partial(self._bind, binding)) for binding in bindings)
            await self._mark(disk_key)
        await self._all(self._begin_anew(address) for address in self._missing())
        self._judged = True
        await self._all(self._claim(address) for address in self._unclaimed())
        while gone := {address for address in self._kept if not self._is_mine(address)}:    # meanwhile
            self._kept -= gone
            await self._all(self._take_in_queue(engine, queue, True) for queue in engine.stored_queues()
                            if queue.address in gone)
        self._definitions.begin(engine, self._membership.registration.identity)

    async def _all(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        for work in [self._driver.start(each) for each in works]:
            await self._driver.result_of(work)

    async def _end_what_is_not_durable(self) -> None:
        """No other node is there, so none was: the nodes have all been stopped."""
        definitions = self._definitions
        await self._all(self._define(partial(definitions.undefine_queue, address, queue.value.id))
                        for address, queue in list(definitions.queues.items()) if not queue.value.durable)
        await self._all(self._define(partial(definitions.undefine_exchange, address, exchange.value.id))
                        for address, exchange in list(definitions.exchanges.items()) if not exchange.value.durable)

    async def _define(self, change: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Until it is done."""
        while not self._closed:
            try:
                await change()
                return
            except QueueRefused as refused:
                if refused.kind != "unavailable":
                    return
                self._log("warning", refused.text, "definitions wait; trying again", {"why": refused.text})
                await self._driver.sleep(RETRY_S)

    async def _take_in_queue(self, engine: Stored, queue: QueueDefinition, known: bool) -> None:
        definitions, address = self._definitions, queue.address
        if is_moving(queue.spec.raw):
            self._take_in_copy(engine, queue, known)
            return
        identity = queue.id if known else 0     # of another cluster, or of none
        if is_part(queue.spec.raw) and not identity:
            engine.set_aside_queue(queue, "it is a partition of a queue of another cluster")
            return
        defined = definitions.queues.get(address)
        if identity and (defined is None or defined.value.id != identity):  # another of its name may have been made
            engine.forget_queue(queue)
            self._log("info", "", "a queue was deleted while this node was away", {"queue": queue.spec.shown})
            return
        if defined is None:
            made = msgspec.structs.replace(queue, id=self._next_identity())
            placed = self._defining.placed(self._membership.name, made.id)
            await self._define(lambda: definitions.define_queue(made, placed))
            defined = definitions.queues.get(address)
        home = definitions.home_of(address)
        if identity:
            await self._take_in_known(engine, queue, home)
        elif defined is None or home is None or not self._is_mine(address):
            engine.set_aside_queue(queue, "in the cluster there is another one of this name, at "
                                          f"{home.holder if home is not None else 'node ?'}")
        else:
            self._kept.add(address)
            if queue.id != defined.value.id:
                engine.identify_queue(address, defined.value.id, home.placement)

    async def _take_in_known(self, engine: Stored, queue: QueueDefinition, home: QueueData | None) -> None:
        """It is the queue of this name; whether what is here is its data is decided by placing.judge."""
        address, stored, here = queue.address, queue.placement, self._is_mine(queue.address)
        verdict = judge(stored, home, here=here)
        if verdict is Verdict.KEPT:
            self._kept.add(address)
            await self._place(address, stored)
        elif verdict is Verdict.LEFT:
            engine.leave_queue(queue, f"{home.holder if home is not None else '?'} has its data")
        elif verdict is Verdict.DELETED:
            engine.forget_queue(queue)
            self._log("info", "", "a queue has moved while this node was away", {
                "queue": queue.spec.shown, "node": home.node if home is not None else "?"})
        else:
            engine.set_aside_queue(queue, why_aside(stored, home, here=here))

    def _take_in_copy(self, engine: Stored, queue: QueueDefinition, known: bool) -> None:
        """It came from another node. Whether it is the queue now is decided: the transaction that says so compares that
        this node has not been started since (queue_moves)."""
        found = next((entry.value for address, entry in self._definitions.queues.items()
                      if entry.value.id == queue.id and self._is_mine(address)), None)
        home = self._definitions.home_of(found.address) if found is not None else None
        if not known:
            engine.set_aside_queue(queue, "it came from a node of another cluster")
        elif found is not None and home is not None and home.placement != queue.placement:
            engine.set_aside_queue(queue, f"it is a copy of queue {found.spec.shown}, of a move that was not the last")
        else:
            if found is not None:
                self._kept.add(found.address)
            engine.settle_copy(queue.id, found)

    def _is_mine(self, address: Address) -> bool:
        home, me = self._definitions.home_of(address), self._membership
        return home is not None and (home.node, home.disk) == (me.name, me.registration.identity)

    def _forget(self, engine: Stored, exchanges: Sequence[ExchangeDefinition],
                bindings: Sequence[BindingDefinition]) -> None:
        """What was deleted while this node was away. What differs is replaced when the engine is told."""
        there = {entry.value for entry in self._definitions.bindings.values()}
        for binding in bindings:
            if binding not in there:
                engine.forget_binding(binding)
        for exchange in exchanges:
            if exchange.address not in self._definitions.exchanges:
                engine.forget_exchange(exchange)

    async def _bind(self, binding: BindingDefinition) -> None:
        await self._definitions.define_binding(binding.vhost, binding.source, binding.destination, binding.key,
                                               binding.arguments, to_exchange=binding.to_exchange)

    async def _mark(self, disk_key: bytes) -> None:
        while not self._closed:
            try:
                await self._writer.change([Compare(disk_key, 0)], [Change(disk_key, self._membership.name.encode())])
                return
            except StoreError:
                await self._driver.sleep(RETRY_S)

    # ------------------------------------------------------------------ what is here

    def _missing(self) -> list[Address]:
        """Queues whose data is here, as etcd says, and is not."""
        definitions = self._definitions
        return [address for address, queue in definitions.queues.items()
                if queue.value.durable and self._is_mine(address) and address not in self._kept]

    async def _begin_anew(self, address: Address) -> None:
        """Most often this node died before the queue was on its disk, and nothing was acknowledged for it. But if there
        has been more, and it is put back later, it is told from what begins now."""
        home, queue = self._definitions.home_of(address), self._definitions.queues[address].value
        if home is not None:
            self._log("warning", "", "a queue begins anew, empty: this node should have its messages, says etcd, and "
                                     "has not", {"queue": queue.spec.shown})
            await self._place(address, home.placement.anew)

    async def _place(self, address: Address, placement: Placement) -> None:
        """Until etcd says of a queue whose data is here that it is this data, or later one."""
        while not self._closed and self._is_mine(address):
            data = self._definitions.data[address]
            if data.value.placement >= placement:
                return
            key = queue_key(QUEUE_DATA, *address)
            try:
                await self._writer.change([Compare(key, data.revision)], [
                    Change(key, encode_data(data.value._replace(placement=placement)), data.lease)])
            except StoreError:
                await self._driver.sleep(RETRY_S)
                continue
            until = self._driver.now() + RETRY_S
            while self._definitions.data.get(address) is data and self._driver.now() < until:
                await self._driver.sleep(0.002)

    # ------------------------------------------------------------------ claims

    def _unclaimed(self) -> list[Address]:
        return [address for address in self._definitions.data if self._may_claim(address)]

    def _may_claim(self, address: Address) -> bool:
        definitions = self._definitions
        if self._closed or not definitions.is_unclaimed(address, self._membership.registration.identity):
            return False
        return self._judged or (self._stored is not None and self._stored.has_queue(
            address, definitions.queues[address].value.id, definitions.data[address].value.placement))

    def _look(self, address: Address) -> None:
        """The keys of a queue have changed that is placed here."""
        if self._may_claim(address) and address not in self._claiming:
            self._driver.start(self._claim(address))

    async def _claim(self, address: Address) -> None:
        if address in self._claiming:
            return
        self._claiming.add(address)
        try:
            while self._may_claim(address):
                queue, data = self._definitions.queues[address].value, self._definitions.data[address]
                owner, lease = queue_key(QUEUE_OWNER, *address), self._membership.lease
                former = self._definitions.owners.get(address)
                try:
                    await self._writer.change(
                        [Compare(owner, former.revision if former is not None else 0),
                         Compare(queue_key(QUEUE_DATA, *address), data.revision)],
                        [Change(owner, encode_owner(QueueOwner(self._membership.name, queue.id)), lease)])
                except StoreError:
                    await self._driver.sleep(RETRY_S)
                    continue
                await self._seen(address)
        finally:
            self._claiming.discard(address)

    async def _seen(self, address: Address) -> None:
        """Until the feed may have shown it."""
        until = self._driver.now() + RETRY_S
        while self._may_claim(address) and self._driver.now() < until:
            await self._driver.sleep(0.002)

    # ------------------------------------------------------------------ owners that are gone

    async def keep(self) -> None:
        """The leader places queues that are not durable anew, empty, when their node is gone, or is back with another
        disk; until close()."""
        while not self._closed:
            await self._driver.pace(LOOK_S)
            live = frozenset((name, node.registration.identity) for name, node in self._membership.nodes.items())
            if not self._membership.is_leader or live == self._live or self._closed:
                continue
            await self._membership.wait_takeover_delay()
            if await self._place_anew(live):
                self._live = live

    async def _place_anew(self, live: frozenset[tuple[str, str]]) -> bool:
        definitions, done = self._definitions, True
        for address, data in list(definitions.data.items()):
            queue = definitions.queues.get(address)
            if queue is None or data.value.id != queue.value.id or address in definitions.owners \
                    or not self._is_lost(address, data.value, live):
                continue
            placed = self._defining.placed(self._defining.place(), queue.value.id, data.value.placement.anew).data
            data_key = queue_key(QUEUE_DATA, *address)
            try:
                await self._writer.change([Compare(data_key, data.revision),
                                           Compare(queue_key(QUEUE_OWNER, *address), 0)],
                                          [Change(data_key, encode_data(placed))], RETRY_S)
            except StoreError:
                done = False
        return done and not any(self._is_lost(address, data.value, live) for address, data in definitions.data.items())

    def _is_lost(self, address: Address, data: QueueData, live: frozenset[tuple[str, str]]) -> bool:
        queue = self._definitions.queues.get(address)
        return (queue is not None and not queue.value.durable and not queue.value.node and not data.group
                and (data.node, data.disk) not in live)
