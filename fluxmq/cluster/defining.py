"""What this node's engine asks for: a Definer (engine/ports/definitions.py) over the definitions of the cluster.

It draws identities, and says on which node a new queue is to be: where there are the fewest.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec

from fluxmq.cluster.definition_values import QueueData
from fluxmq.cluster.definitions import Definitions, Placed, Unsure
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.raft.table import GroupTable
from fluxmq.cluster.writer import CHANGES_MAX
from fluxmq.engine.ports.definitions import FIRST, ExchangeDefinition, Placement, QueueDefinition
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.parts import parts_of
from fluxmq.model.queue_arguments import Declared
from fluxmq.model.queues import QueueSpec

__all__ = ["Defining"]

Address = tuple[bytes, bytes]
LOOK_S = 0.01  # at whether the owner of a new queue has claimed it
RETRY_S = 0.5  # of what nobody waits for
PARTS_MAX = (CHANGES_MAX - 1) // 2  # partitions with keys of their own that one transaction has room for


def is_divided(spec: QueueSpec) -> bool:
    """Whether the partitions of a new queue are queues of their own, at several nodes."""
    return spec.type in ("classic", "stream") and 1 < spec.partitions <= PARTS_MAX


class Defining:
    """A Definer. serving: the nodes that serve clients, this one too. next_identity: a number that no node has given
    out. limit_s: how long the owner of a new queue may take. table: of the replication groups; None: there are none.
    end: ends a queue of a group, with its address, identity and the group's number (raft/ending.py)."""

    def __init__(self, definitions: Definitions, membership: Membership, driver: Driver, *,
                 serving: Callable[[], list[str]], next_identity: Callable[[], int], limit_s: float,
                 table: GroupTable | None = None,
                 end: Callable[[Address, int, int], Awaitable[None]] | None = None) -> None:
        self._definitions = definitions
        self._membership = membership
        self._driver = driver
        self._serving = serving
        self._next_identity = next_identity
        self._table = table
        self._end = end
        self._limit_s = limit_s
        self._ending: dict[int, bool] = {}  # by identity of a queue: whether a transaction may delete it now
        self._closed = False

    def close(self) -> None:
        """Nothing is tried again."""
        self._closed = True

    def check(self) -> None:
        """See the port. Administrators are heard before the node has joined."""
        if not self._definitions.begun:
            raise QueueRefused("unavailable", "this node is joining its cluster, or leaves it",
                               "repeat it when the node serves clients")

    # ------------------------------------------------------------------ queues

    async def define_queue(self, spec: QueueSpec, declared: Declared | None, *, here: bool = False,
                           near: Address | None = None) -> None:
        """See the port."""
        self.check()
        exclusive = declared is not None and declared.exclusive
        if self._table is not None and (group := self._table.name_of(spec, declared)):
            await self._replicate_queue(spec, declared, await self._table.ensure(group))
            return
        if declared is None and not here and is_divided(spec):
            await self._divide_queue(spec)
            return
        node = self._membership.name if here or exclusive else self.place(near)
        queue = QueueDefinition(self._next_identity(), spec, declared, self._membership.name if exclusive else "")
        await self._definitions.define_queue(queue, self.placed(node, queue.id))
        if node != self._membership.name:
            await self._claimed(queue, node)

    async def _replicate_queue(self, spec: QueueSpec, declared: Declared | None, group: int) -> None:
        """A new queue of a replication group. When all nodes know of it, its leader has made it."""
        queue = QueueDefinition(self._next_identity(), spec, declared)
        await self._definitions.define_queue(queue, Placed(QueueData("", "", queue.id, FIRST, group), 0))

    async def _divide_queue(self, spec: QueueSpec) -> None:
        """A new queue whose partitions are queues of their own."""
        identities = [self._next_identity() for _ in range(spec.partitions + 1)]
        queue = QueueDefinition(identities[0], spec, divided=True)
        parts = parts_of(queue)
        placed = [self.placed(node, part.id) for node, part in zip(self.places(len(parts)), parts, strict=True)]
        await self._definitions.divide_queue(queue, placed)
        for part, at in zip(parts, placed, strict=True):
            if at.data.node != self._membership.name:
                await self._claimed(part, at.data.node)

    def places(self, count: int) -> list[str]:
        """The nodes for so many partitions of a new queue: each its own as far as there are nodes, and those with the
        fewest queues first."""
        me, known = self._membership.name, self._definitions.placed
        serving = self._serving() or [me]
        found: list[str] = []
        for _ in range(count):
            here = Counter(found)
            found.append(min(serving, key=lambda node: (here[node], known[node] + here[node], node != me, node)))
        return found

    def place(self, near: Address | None = None) -> str:
        """The node for a new queue; near: where this queue is, if that node serves."""
        home = self._definitions.home_of(near) if near is not None else None
        serving = self._serving()
        if home is not None and home.node in serving:
            return home.node
        me, count = self._membership.name, self._definitions.placed
        return min(serving, key=lambda node: (count[node], node != me, node), default=me)

    def placed(self, node: str, identity: int, placement: Placement = FIRST) -> Placed:
        """A new queue at this node, or other data of one."""
        me = self._membership
        known = me.nodes.get(node)
        disk = me.registration.identity if node == me.name or known is None else known.registration.identity
        return Placed(QueueData(node, disk, identity, placement), me.lease if node == me.name else 0)

    async def _claimed(self, queue: QueueDefinition, node: str) -> None:
        """Until its owner has claimed it and all know, or that node has lost its lease."""
        definitions, until = self._definitions, self._driver.now() + self._limit_s
        while not self._closed and self._driver.now() < until:
            known = definitions.queues.get(queue.address)
            if known is None or known.value.id != queue.id or node not in self._membership.nodes:
                return
            if definitions.owner_of(queue.address) is not None:
                await definitions.known_everywhere(f"queue {queue.spec.shown}",
                                                   definitions.owners[queue.address].revision)
                return
            await self._driver.sleep(LOOK_S)

    def home_of(self, address: Address) -> str:
        """See the port."""
        home = self._definitions.home_of(address)
        return "" if home is None else home.node

    def epoch_of(self, address: Address) -> int:
        """See the port: the revision of the owner's key."""
        return self._definitions.epoch_of(address)

    def is_coming(self, address: Address) -> bool:
        """See the port."""
        home = self._definitions.home_of(address)
        if home is None or self._definitions.owner_of(address) is not None:
            return False
        node = self._membership.nodes.get(home.node)
        return node is not None and node.registration.identity == home.disk

    async def await_owner(self, address: Address) -> None:
        """See the port."""
        until = self._driver.now() + self._limit_s
        while not self._closed and self.is_coming(address):
            if self._driver.now() >= until:
                raise QueueRefused("unavailable", f"node {self.home_of(address)} does not serve the queue yet")
            await self._driver.sleep(LOOK_S)

    async def redefine_queue(self, spec: QueueSpec, identity: int) -> None:
        """See the port."""
        self.check()
        known = self._definitions.queues.get(spec.address)
        if known is not None and known.value.id == identity:
            await self._definitions.redefine_queue(msgspec.structs.replace(known.value, spec=spec))

    async def undefine_queue(self, address: Address, identity: int) -> None:
        """See the port."""
        self.check()
        await self._undefine_queue(address, identity)

    async def _undefine_queue(self, address: Address, identity: int) -> None:
        group = self._definitions.group_of(address)
        if group and self._end is not None and self._is(address, identity):
            await self._end(address, identity, group)
        await self._definitions.undefine_queue(address, identity)

    def end_queue(self, address: Address, identity: int, ending: Callable[[bool], bool]) -> None:
        """See the port."""
        if identity not in self._ending and self._is(address, identity) and ending(True):
            self._ending[identity] = True
            self._driver.start(self._end_queue(address, identity, ending))

    async def _end_queue(self, address: Address, identity: int, ending: Callable[[bool], bool]) -> None:
        unsure = False  # a transaction may have been done, or be done later
        pause = LOOK_S  # doubled, for what came first may be heard of late
        try:
            while not self._closed and self._is(address, identity):
                if not unsure and not ending(True):
                    return
                self._ending[identity] = True
                try:
                    await self._undefine_queue(address, identity)
                    unsure = False
                    if self._is(address, identity):     # a change of it came first, also before what was unsure
                        await self._driver.sleep(pause)
                        pause = min(2 * pause, RETRY_S)
                        continue
                except Unsure:
                    unsure = True
                except QueueRefused:
                    pass                # nothing was sent
                if not self._is(address, identity):
                    return
                if not unsure:
                    self._ending[identity] = False
                    ending(False)
                await self._driver.sleep(RETRY_S)
        finally:
            self._ending.pop(identity, None)

    def _is(self, address: Address, identity: int) -> bool:
        known = self._definitions.queues.get(address)
        return known is not None and known.value.id == identity

    async def await_end(self, identity: int) -> None:
        """See the port."""
        until = self._driver.now() + self._limit_s
        while not self._closed and self._ending.get(identity, False):
            if self._driver.now() >= until:
                raise QueueRefused("unavailable", "the queue is being deleted, because nobody used it: etcd does not "
                                                  "answer")
            await self._driver.sleep(LOOK_S)

    async def await_gone(self, address: Address, identity: int) -> None:
        """See the port."""
        until, here = self._driver.now() + self._limit_s, identity in self._ending
        while not self._closed and (self._ending.get(identity, False) if here else self._is(address, identity)):
            if self._driver.now() >= until:
                return
            await self._driver.sleep(LOOK_S)
        if not self._closed and not self._is(address, identity):
            await self._definitions.all_catch_up()

    def make_known(self, spec: QueueSpec, then: Callable[[], None]) -> None:
        """See the port."""
        self._driver.start(self._make_known(spec, then))

    async def _make_known(self, spec: QueueSpec, then: Callable[[], None]) -> None:
        while not self._closed and spec.address not in self._definitions.queues:
            try:
                await self.define_queue(spec, None, here=True)
            except QueueRefused:
                await self._driver.sleep(RETRY_S)
        if not self._closed:
            then()

    # ------------------------------------------------------------------ exchanges

    async def define_exchange(self, exchange: ExchangeDefinition) -> None:
        """See the port."""
        self.check()
        await self._definitions.define_exchange(msgspec.structs.replace(exchange, id=self._next_identity()))

    async def undefine_exchange(self, address: Address, identity: int) -> None:
        """See the port."""
        self.check()
        await self._definitions.undefine_exchange(address, identity)

    # ------------------------------------------------------------------ bindings

    async def define_binding(self, vhost: bytes, source: bytes, destination: bytes, key: bytes, arguments: bytes, *,
                             to_exchange: bool) -> None:
        """See the port."""
        self.check()
        await self._definitions.define_binding(vhost, source, destination, key, arguments, to_exchange=to_exchange)

    async def undefine_binding(self, vhost: bytes, source: bytes, destination: bytes, key: bytes, arguments: bytes, *,
                               to_exchange: bool) -> None:
        """See the port."""
        self.check()
        await self._definitions.undefine_binding(vhost, source, destination, key, arguments, to_exchange=to_exchange)
