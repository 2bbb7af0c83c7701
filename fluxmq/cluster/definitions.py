"""Queues, exchanges and bindings of the whole cluster: what the store has is known here, and the engine is told.

    the store ─► feed ─► tables ─► what the engine was told, and what it should be told: the difference ─► Learner
    define, undefine ─► one transaction ─► the feed has shown it, and every node with a lease knows ─► return

The tables change by the feed alone, also for this node's own transactions, so all nodes see the same. Each batch is
applied as a whole: in it the keys of one transaction come in any order.

A binding counts while both of its ends are there with the identities that it names. The leader deletes others, which
are left when a queue or exchange with many bindings ends. It is one file because every transaction is made of the same
tables.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from fluxmq._core.errors import FluxError
from fluxmq.cluster.definition_values import (
    QueueData,
    QueueOwner,
    Unreadable,
    binding_of,
    data_of,
    definition_key,
    encode_binding,
    encode_data,
    encode_exchange,
    encode_owner,
    encode_queue,
    exchange_of,
    key_of,
    owner_of,
    queue_of,
)
from fluxmq.cluster.keys import BINDING, EXCHANGE, QUEUE, QUEUE_DATA, QUEUE_OWNER, Name, exchange_key, queue_key
from fluxmq.cluster.ports import Change, Compare, Event, Log, StoreError, TransactionResult
from fluxmq.cluster.raft.groups import NOBODY, Leader
from fluxmq.cluster.reaching import Reaching
from fluxmq.cluster.writer import CHANGES_MAX, Writer
from fluxmq.engine.ports.definitions import (
    FIRST,
    BindingDefinition,
    ExchangeDefinition,
    Learner,
    Placement,
    QueueDefinition,
)
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.parts import parts_of

__all__ = ["KINDS", "Definitions", "Entry", "Placed", "Unsure"]

Address = tuple[bytes, bytes]
T = TypeVar("T")
At = TypeVar("At", Address, bytes)

KINDS = frozenset({QUEUE, QUEUE_DATA, QUEUE_OWNER, EXCHANGE, BINDING})  # of keys, that are for on_event
AGAIN_S = 0.05  # until the feed may have shown why a transaction was not done
SWEEP_S = 30.0
LOOK_S = 1.0
UNKNOWN_LIFE = -1  # no lease has this number
ENDING_MAX = CHANGES_MAX // 2  # exchanges that one transaction deletes because they have no binding any more


class Entry(NamedTuple, Generic[T]):
    """What a key has. revision: of its last change. lease: 0 for none."""

    value: T
    revision: int
    lease: int = 0


class Unsure(QueueRefused):
    """Nobody knows: it may have been done, or be done later."""


class Placed(NamedTuple):
    """Where a new queue is to be. lease: of this node if the queue is to be here, so that it is served at once; 0: its
    owner claims it when it hears of it."""

    data: QueueData
    lease: int


class Definitions:
    """One per life of a node. node: its name. predeclared: the exchanges that every virtual host has. without_quorum:
    whether nothing can be changed now. leader: of a replication group, by its number. limit_s: how long a change may
    take, and after it how long the other nodes may take. log: as Broker's on_log."""

    def __init__(self, node: str, writer: Writer, driver: Driver, reaching: Reaching, *,
                 predeclared: Iterable[bytes], without_quorum: Callable[[], bool],
                 limit_s: float, log: Log, leader: Callable[[int], Leader] = lambda group: NOBODY) -> None:
        # Called with each queue whose keys are gone; True: it stays, and is defined again.
        self.lost: Callable[[QueueDefinition], bool] = lambda definition: False
        self.queues: dict[Address, Entry[QueueDefinition]] = {}
        self.data: dict[Address, Entry[QueueData]] = {}
        self.owners: dict[Address, Entry[QueueOwner]] = {}
        self.exchanges: dict[Address, Entry[ExchangeDefinition]] = {}
        self.bindings: dict[bytes, Entry[BindingDefinition]] = {}
        self.placed: Counter[str] = Counter()  # queues by the node that has their messages
        # Called with each one that has changed, is placed here, and is not owned by this node.
        self.on_queue: Callable[[Address], object] = lambda address: None
        self._node = node
        self._writer = writer
        self._driver = driver
        self._reaching = reaching
        self._predeclared = frozenset(predeclared)
        self._without_quorum = without_quorum
        self._leader = leader
        self._limit_s = limit_s
        self._log = log
        self._learner: Learner | None = None
        self._disk = ""
        self._from: defaultdict[Address, set[bytes]] = defaultdict(set)  # source -> keys of its bindings
        self._to_queue: defaultdict[Address, set[bytes]] = defaultdict(set)
        self._to_exchange: defaultdict[Address, set[bytes]] = defaultdict(set)
        # What the engine was told, and what may differ from it now. Of a queue also in which life of its owner (_life).
        self._told_queues: dict[Address, tuple[QueueDefinition, str | None, int]] = {}
        self._told_exchanges: dict[Address, ExchangeDefinition] = {}
        self._told_bindings: dict[bytes, BindingDefinition] = {}
        self._changed_queues: dict[Address, None] = {}
        self._changed_exchanges: dict[Address, None] = {}
        self._changed_bindings: dict[bytes, None] = {}
        self._unusable: dict[bytes, str] = {}  # key -> why this version or this engine cannot use what it has
        # Exchanges that have lost a binding, and their identities: an auto-delete one without others is to end.
        self._emptied: set[tuple[Address, int]] = set()
        self.pending = False  # see AtEnd
        self._closed = False

    def begin(self, learner: Learner, disk: str) -> None:
        """Tells the engine everything, and all changes from now on. The feed was loaded. disk: identity of this node's
        data directory."""
        self._learner, self._disk = learner, disk
        self.on_batch()

    @property
    def begun(self) -> bool:
        """Whether the engine has what is defined."""
        return self._learner is not None

    def close(self) -> None:
        """The engine is told nothing any more."""
        self._closed = True
        self._learner = None

    def owner_of(self, address: Address) -> str | None:
        """The node that serves a queue of the tables; None: it is away."""
        queue, owner = self.queues.get(address), self.owners.get(address)
        return owner.value.node if queue is not None and owner is not None and owner.value.id == queue.value.id \
            else None

    def epoch_of(self, address: Address) -> int:
        """The revision with which that node has claimed it; 0: it is away."""
        return self.owners[address].revision if self.owner_of(address) is not None else 0

    def home_of(self, address: Address) -> QueueData | None:
        """Who has the messages of a queue of the tables."""
        queue, data = self.queues.get(address), self.data.get(address)
        return data.value if queue is not None and data is not None and data.value.id == queue.value.id else None

    def place_queue(self, address: Address) -> Placement:
        """See Directory. The engine makes a queue of which it was told that its data is here, or one that no other node
        knows."""
        home = self.home_of(address)
        if home is None:
            return FIRST
        if not self._is_here(home) and not (home.group and self._leader(home.group).node == self._node):
            raise QueueRefused("unavailable", f"{home.holder} has the messages of queue "
                                              f"{address[1].decode('utf-8', 'replace')}")
        return home.placement

    def group_of(self, address: Address) -> int:
        """The group of nodes that has the messages of a queue; 0: none has."""
        home = self.home_of(address)
        return home.group if home is not None else 0

    def _is_here(self, home: QueueData) -> bool:
        return (home.node, home.disk) == (self._node, self._disk)

    def is_unclaimed(self, address: Address, disk: str | None = None) -> bool:
        """Whether a queue of the tables is placed at this node, which does not own it yet. disk: and is on this one."""
        home = self.home_of(address)
        return (home is not None and home.node == self._node and disk in (None, home.disk)
                and self.owner_of(address) != self._node)

    def _told_owner(self, address: Address) -> str | None:
        """As owner_of; this node serves what it has, also before others know. What a group has its leader serves; who
        has served it before may still have the key."""
        home = self.home_of(address)
        if home is not None and self._is_here(home):
            return self._node
        if home is not None and home.group:
            return self._leader(home.group).node or None
        owner = self.owner_of(address)
        if owner != self._node:
            return owner
        # It has moved from here, and its new owner has not claimed it yet.
        return home.node if home is not None and home.node != self._node else None

    def _life(self, address: Address) -> int:
        """Of the other node that serves a queue: its lease. One batch may say that the node is gone and that it is
        back; then the way to it is another one, and what was attached there is not. 0: none does, or this node; below
        UNKNOWN_LIFE: a group has it, and in which term it is led."""
        if group := self.group_of(address):
            return UNKNOWN_LIFE - (self._leader(group).term << 32 | group)
        owner = self.owner_of(address)
        return self.owners[address].lease if owner is not None and owner != self._node else 0

    # ------------------------------------------------------------------ from the store

    def on_event(self, name: Name, event: Event) -> None:
        """A change of a key of KINDS. The engine is told at on_batch."""
        address = name.namespace, name.name
        self._unusable.pop(event.key, None)
        self.pending = True
        try:
            if name.kind == QUEUE:
                self._on_queue(address, event)
            elif name.kind == QUEUE_DATA:
                self._changed_queues[address] = None
                if (former := self.data.get(address)) is not None:
                    self.placed[former.value.node] -= 1
                _set(self.data, address, event, data_of)
                if (now := self.data.get(address)) is not None:     # what groups have counts for "", which is no node
                    self.placed[now.value.node] += 1
            elif name.kind == QUEUE_OWNER:
                self._changed_queues[address] = None
                _set(self.owners, address, event, owner_of)
            elif name.kind == EXCHANGE:
                self._changed_exchanges[address] = None
                _set(self.exchanges, address, event, lambda value: exchange_of(*address, value))
            else:
                self._on_binding(name, event)
        except Unreadable as error:
            self._refused(event.key, f"this version cannot read it ({error})")

    def _on_queue(self, address: Address, event: Event) -> None:
        """Also its partitions, if they are queues of their own: they have no keys of their own definition."""
        former = self.queues.get(address)
        self._changed_queues[address] = None
        for part in parts_of(former.value) if former is not None else ():
            self.queues.pop(part.address, None)
            self._changed_queues[part.address] = None
        _set(self.queues, address, event, lambda value: queue_of(*address, value))
        now = self.queues.get(address)
        for part in parts_of(now.value) if now is not None else ():
            self.queues[part.address] = Entry(part, event.revision, event.lease)
            self._changed_queues[part.address] = None

    def _on_binding(self, name: Name, event: Event) -> None:
        self._changed_bindings[event.key] = None
        if (former := self.bindings.get(event.key)) is not None:
            for index, end in self._ends(former.value):
                index[end].discard(event.key)
                if not index[end]:
                    del index[end]
            source = former.value.vhost, former.value.source
            if source not in self._from:
                self._emptied.add((source, former.value.source_id))
        _set(self.bindings, event.key, event, lambda value: binding_of(name.namespace, name.name, value))
        if (now := self.bindings.get(event.key)) is not None:
            for index, end in self._ends(now.value):
                index[end].add(event.key)

    def _ends(self, binding: BindingDefinition) -> tuple[tuple[defaultdict[Address, set[bytes]], Address], ...]:
        index = self._to_exchange if binding.to_exchange else self._to_queue
        return (self._from, (binding.vhost, binding.source)), (index, (binding.vhost, binding.destination))

    def on_leader(self, group: int) -> None:
        """Another node leads a replication group than before, or none."""
        for address, data in self.data.items():
            if data.value.group == group:
                self._changed_queues[address] = None
        if self._learner is not None:
            self.on_batch()

    def on_batch(self) -> None:
        """Tells the engine what has changed since the last call, as soon as there is one."""
        for address in list(self._changed_queues):
            if self.is_unclaimed(address):
                self.on_queue(address)
        learner = self._learner
        if learner is None:
            return
        self.pending = False
        queues, self._changed_queues = self._changed_queues, {}
        exchanges, self._changed_exchanges = self._changed_exchanges, {}
        bindings, self._changed_bindings = self._changed_bindings, {}
        for address in queues:
            bindings |= dict.fromkeys(self._to_queue.get(address, ()))
        for address in exchanges:
            bindings |= dict.fromkeys(self._from.get(address, ()))
            bindings |= dict.fromkeys(self._to_exchange.get(address, ()))
        self._forget(learner, [*queues], exchanges, bindings)
        self._learn(learner, queues, exchanges, bindings)

    def _forget(self, learner: Learner, queues: Sequence[Address], exchanges: Iterable[Address],
                bindings: Iterable[bytes]) -> None:
        """Also what comes back at once: a queue whose messages are here now, or are not here any more."""
        moved = {address for address in queues if self._has_moved(address)}
        for key in bindings:
            told = self._told_bindings.get(key)
            if told is not None and not (self._binds(key) and self.bindings[key].value == told and (
                    told.to_exchange or (told.vhost, told.destination) not in moved)):
                del self._told_bindings[key]
                learner.forget_binding(told)
        for address in queues:
            known, now = self._told_queues.get(address), self.queues.get(address)
            if known is not None and (now is None or now.value.id != known[0].id):
                if self.lost(known[0]):
                    continue
                del self._told_queues[address]
                # Of a group's queue etcd does not know whether it has ended: its log does.
                learner.forget_queue(known[0], ended=known[2] >= UNKNOWN_LIFE)
            elif known is not None and now is not None and address in moved:
                owner = self._told_owner(address)
                if self._turns(learner, now.value, owner):
                    # What is known of the way to its new owner is as old as the move. That node may have died since,
                    # and be back: so it is told again below, with who serves now.
                    self._told_queues[address] = known[0], owner, UNKNOWN_LIFE
                    continue
                if known[1] == self._node and known[0].durable and (group := self.group_of(address)):
                    del self._told_queues[address]
                    learner.leave_queue(known[0], f"replication group {group} has its data now")
                    continue
                del self._told_queues[address]
                if known[1] == self._node and known[0].durable:
                    learner.set_aside_queue(known[0], f"node {self._told_owner(address)} has its messages now")
                else:
                    learner.forget_queue(known[0])
        for address in exchanges:
            was, is_ = self._told_exchanges.get(address), self.exchanges.get(address)
            if was is not None and (is_ is None or is_.value != was):
                del self._told_exchanges[address]
                learner.forget_exchange(was)

    def _turns(self, learner: Learner, queue: QueueDefinition, owner: str | None) -> bool:
        """As turn_queue. Where it is refused the queue stays as it is, until something changes."""
        try:
            return learner.turn_queue(queue, owner)
        except FluxError as error:
            self._log("warning", str(error), "a queue is not served here, although it is to be", {
                "queue": queue.spec.shown, "why": str(error)})
            return True

    def _has_moved(self, address: Address) -> bool:
        """Whether this node has the messages of a queue now, and had not, or the reverse."""
        known = self._told_queues.get(address)
        return known is not None and (known[1] == self._node) != (self._told_owner(address) == self._node)

    def _learn(self, learner: Learner, queues: Iterable[Address], exchanges: Iterable[Address],
               bindings: Iterable[bytes]) -> None:
        """In the order of revisions, each kind."""
        for address in _in_order(exchanges, self.exchanges):
            exchange = self.exchanges[address].value
            if address not in self._told_exchanges and self._use(
                    exchange_key(*address), partial(learner.learn_exchange, exchange)):
                self._told_exchanges[address] = exchange
        for address in _in_order(queues, self.queues):
            now = self.queues[address].value, self._told_owner(address), self._life(address)
            told = self._told_queues.get(address)
            if told is not None and told[2] != now[2] < UNKNOWN_LIFE and now[1] not in (None, self._node):
                # Others may have led meanwhile: who leads now does not know this node's consumers.
                self._use(queue_key(QUEUE, *address), partial(learner.learn_queue, now[0], None))
            if told != now and self._use(
                    queue_key(QUEUE, *address), partial(learner.learn_queue, *now[:2])):
                self._told_queues[address] = now
        for key in _in_order(bindings, self.bindings):
            binding = self.bindings[key].value
            if key not in self._told_bindings and self._binds(key) and self._is_told(binding) and self._use(
                    key, partial(learner.learn_binding, binding)):
                self._told_bindings[key] = binding

    def _use(self, key: bytes, tell: Callable[[], None]) -> bool:
        try:
            tell()
        except FluxError as error:
            self._refused(key, f"this node cannot use it ({error})")
            return False
        self._unusable.pop(key, None)
        return True

    def _refused(self, key: bytes, why: str) -> None:
        self._unusable[key] = why
        self._log("error", why, "a definition in etcd is left out", {"key": key.decode("utf-8", "replace"), "why": why})

    def _exchange_id(self, address: Address) -> int | None:
        """0: it is predeclared. None: there is none."""
        known = self.exchanges.get(address)
        return known.value.id if known is not None else 0 if address[1] in self._predeclared else None

    def _binds(self, key: bytes) -> bool:
        """Whether both ends of a binding of the tables are there."""
        if (entry := self.bindings.get(key)) is None:
            return False
        binding = entry.value
        if self._exchange_id((binding.vhost, binding.source)) != binding.source_id:
            return False
        end = binding.vhost, binding.destination
        if binding.to_exchange:
            return self._exchange_id(end) == binding.destination_id
        return (queue := self.queues.get(end)) is not None and queue.value.id == binding.destination_id

    def _is_told(self, binding: BindingDefinition) -> bool:
        """Whether the engine could use both ends."""
        source, end = (binding.vhost, binding.source), (binding.vhost, binding.destination)
        return ((not binding.source_id or source in self._told_exchanges)
                and (end in self._told_queues if not binding.to_exchange
                     else not binding.destination_id or end in self._told_exchanges))

    # ------------------------------------------------------------------ to the store

    async def define_queue(self, queue: QueueDefinition, placed: Placed) -> None:
        """Unless there is one of this name. queue: with a new identity. Raises QueueRefused (unavailable), as all of
        these: when the store cannot be asked, or not all nodes have heard in time of what was done."""
        key, lease = queue_key(QUEUE, *queue.address), placed.lease
        of_queue = lease if queue.node else 0
        changes = [Change(key, encode_queue(queue), of_queue),
                   Change(queue_key(QUEUE_DATA, *queue.address), encode_data(placed.data), of_queue)]
        if lease:
            owner = QueueOwner(placed.data.node, queue.id)
            changes.append(Change(queue_key(QUEUE_OWNER, *queue.address), encode_owner(owner), lease))
        await self._change(f"queue {queue.spec.shown}", [Compare(key, 0)], changes)

    async def divide_queue(self, queue: QueueDefinition, placed: Sequence[Placed]) -> None:
        """As define_queue, of a queue whose partitions are queues of their own. placed: each of them."""
        key = queue_key(QUEUE, *queue.address)
        changes = [Change(key, encode_queue(queue))]
        for part, at in zip(parts_of(queue), placed, strict=True):
            changes.append(Change(queue_key(QUEUE_DATA, *part.address), encode_data(at.data)))
            if at.lease:
                changes.append(Change(queue_key(QUEUE_OWNER, *part.address),
                                      encode_owner(QueueOwner(at.data.node, part.id)), at.lease))
        await self._change(f"queue {queue.spec.shown}", [Compare(key, 0)], changes)

    async def redefine_queue(self, queue: QueueDefinition) -> None:
        """Other settings for the queue with this identity, if it is there."""
        known = self.queues.get(queue.address)
        if known is not None and known.value.id == queue.id:
            key = queue_key(QUEUE, *queue.address)
            await self._change(f"queue {queue.spec.shown}", [Compare(key, known.revision)],
                               [Change(key, encode_queue(queue), known.lease)])

    async def undefine_queue(self, address: Address, identity: int) -> None:
        """The queue with this identity, its bindings, and auto-delete exchanges that have no other."""
        known = self.queues.get(address)
        if known is None or known.value.id != identity:
            await self._driver.sleep(AGAIN_S)           # the engine is going to hear of it
            return
        key = queue_key(QUEUE, *address)
        changes = [Change(key, None)]
        # Of many partitions some may be left, which belong to nothing then: the leader deletes them.
        changes += [Change(queue_key(kind, *at), None) for at in (
            address, *(part.address for part in parts_of(known.value))) for kind, table in (
            (QUEUE_DATA, self.data), (QUEUE_OWNER, self.owners)) if at in table]
        compares, more = self._without(self._to_queue.get(address, ()))
        await self._change(f"queue {known.value.spec.shown}", [Compare(key, known.revision), *compares],
                           [*changes, *more])

    async def define_exchange(self, exchange: ExchangeDefinition) -> None:
        """Unless there is one of this name."""
        key = exchange_key(*exchange.address)
        await self._change(_shown(exchange), [Compare(key, 0)], [Change(key, encode_exchange(exchange))])

    async def undefine_exchange(self, address: Address, identity: int) -> None:
        """The exchange with this identity, its bindings, and auto-delete exchanges that have no other."""
        known = self.exchanges.get(address)
        if known is None or known.value.id != identity:
            await self._driver.sleep(AGAIN_S)
            return
        key = exchange_key(*address)
        compares, more = self._without(self._bindings_of(address), {address})
        await self._change(_shown(known.value), [Compare(key, known.revision), *compares], [Change(key, None), *more])

    async def define_binding(self, vhost: bytes, source: bytes, destination: bytes, key: bytes, arguments: bytes, *,
                             to_exchange: bool) -> None:
        """Unless there is an equal one, or one of its ends is not there."""
        found = self._binding(vhost, source, destination, key, arguments, to_exchange)
        if found is None:
            # It was deleted meanwhile; or no other node knows it, as with a queue for direct replies.
            raise QueueRefused("not_found", "one of the two ends of the binding is not defined in the cluster")
        at = key_of(found)
        if at in self.bindings:
            return
        queue = None if to_exchange else self.queues.get((vhost, destination))
        lease = queue.lease if queue is not None else 0
        compares, changes = [Compare(at, 0)], [Change(at, encode_binding(found), lease)]
        exchange = self.exchanges.get((vhost, source))
        if exchange is not None and exchange.value.auto_delete:
            # Who deletes it because it has no binding compares its revision.
            of_source = exchange_key(vhost, source)
            compares.append(Compare(of_source, exchange.revision))
            changes.append(Change(of_source, encode_exchange(exchange.value), exchange.lease))
        await self._change("a binding", compares, changes)

    async def undefine_binding(self, vhost: bytes, source: bytes, destination: bytes, key: bytes, arguments: bytes, *,
                               to_exchange: bool) -> None:
        """If it is there; and auto-delete exchanges that have no other."""
        found = self._binding(vhost, source, destination, key, arguments, to_exchange)
        at = key_of(found) if found is not None else b""
        if (known := self.bindings.get(at)) is None:
            await self._driver.sleep(AGAIN_S)
            return
        compares, more = self._without([at])
        await self._change("a binding", [Compare(at, known.revision), *compares], [Change(at, None), *(
            change for change in more if change.key != at)])

    def _binding(self, vhost: bytes, source: bytes, destination: bytes, key: bytes, arguments: bytes,
                 to_exchange: bool) -> BindingDefinition | None:
        source_id, end = self._exchange_id((vhost, source)), (vhost, destination)
        if to_exchange:
            identity = self._exchange_id(end)
        else:
            identity = self.queues[end].value.id if end in self.queues else None
        if source_id is None or identity is None:
            return None
        return BindingDefinition(vhost, source, source_id, to_exchange, destination, identity, key, arguments)

    def _bindings_of(self, exchange: Address) -> list[bytes]:
        """From it and to it."""
        return [*self._from.get(exchange, ()), *self._to_exchange.get(exchange, ())]

    def _without(self, bindings: Iterable[bytes],
                 ended: Iterable[Address] = ()) -> tuple[list[Compare], list[Change]]:
        """Deletes bindings, and the auto-delete exchanges that lose their last one by that, with their bindings. As
        many as one transaction has room for: a binding that is left does not count, and is deleted later. ended:
        exchanges that are deleted in any case."""
        gone, exchanges, left = set[bytes](), dict.fromkeys(ended), sorted(bindings)
        while left:
            key = left.pop()
            if key in gone:
                continue
            gone.add(key)
            binding = self.bindings[key].value
            source = binding.vhost, binding.source
            entry = self.exchanges.get(source)
            if (entry is not None and entry.value.auto_delete and entry.value.id == binding.source_id
                    and source not in exchanges and gone.issuperset(self._from[source])):
                exchanges[source] = None
                left += self._bindings_of(source)
        ending = [address for address in exchanges if address not in set(ended)][:ENDING_MAX]
        compares = [Compare(exchange_key(*address), self.exchanges[address].revision) for address in ending]
        changes = [Change(exchange_key(*address), None) for address in ending]
        changes += [Change(key, None) for key in sorted(gone)]
        return compares, changes

    async def _change(self, what: str, compares: Sequence[Compare], changes: Sequence[Change]) -> None:
        """The first compare is of the key that the change is about."""
        key = compares[0].key
        if key in self._unusable:
            raise QueueRefused("unavailable", f"{what} is defined in etcd, but {self._unusable[key]}")
        if self._without_quorum():
            raise QueueRefused("unavailable", f"{what} cannot be changed: etcd has no quorum",
                               "start the nodes that are down: everything else goes on")
        try:
            result = await self._writer.change(compares[:CHANGES_MAX], changes[:CHANGES_MAX], self._limit_s,
                                               wait_for_space=False)
        except StoreError as error:
            raise Unsure("unavailable", f"{what} cannot be changed: etcd says: {error}",
                         "try again: it may have been changed even so") from None
        await self._seen(what, result)

    async def _seen(self, what: str, result: TransactionResult) -> None:
        """Waits until the tables show what the transaction has done, or why it was not done."""
        revision = result.revision if result.done else max((item.revision for item in result.found if item), default=0)
        if revision:
            await self.known_everywhere(what, revision)
        else:
            await self._driver.sleep(AGAIN_S)

    async def known_everywhere(self, what: str, revision: int) -> None:
        """Until all nodes have heard of this revision. Raises QueueRefused (unavailable)."""
        try:
            await self._reaching.wait(revision, self._limit_s)
        except StoreError as error:
            raise Unsure("unavailable", f"{what} was changed, but {error}", "try again") from None

    async def all_catch_up(self) -> None:
        """Until all nodes know of the definitions what this one knows, or for as long as a change may take."""
        with suppress(StoreError):
            await self._reaching.catch_up(self._limit_s)

    # ------------------------------------------------------------------ what is left over

    async def keep(self, is_leader: Callable[[], bool]) -> None:
        """The leader deletes what belongs to nothing, and what ends without its last binding, until close()."""
        swept = self._driver.now()
        while not self._closed:
            await self._driver.pace(LOOK_S)
            empty = self._empty_exchanges()         # forgets the others, on every node
            if not is_leader() or self._closed:
                continue
            try:
                for address, identity in empty:
                    await self.undefine_exchange(address, identity)
                if self._driver.now() - swept < SWEEP_S:
                    continue
                swept = self._driver.now()
                for key, revision in self.orphans().items():
                    await self._writer.change([Compare(key, revision)], [Change(key, None)], self._limit_s)
            except (StoreError, QueueRefused) as error:
                self._log("warning", str(error), "what belongs to nothing is left in etcd for now", {"why": str(error)})

    def _empty_exchanges(self) -> list[tuple[Address, int]]:
        """Those whose last binding went with a node, or did not fit into the transaction that deleted it."""
        self._emptied = {(address, identity) for address, identity in self._emptied if address not in self._from and (
            (known := self.exchanges.get(address)) is not None and known.value.auto_delete
            and known.value.id == identity)}
        return sorted(self._emptied)

    def orphans(self) -> dict[bytes, int]:
        """Keys, and their revisions. An identity that is gone does not come back, and what names it was written when it
        was there."""
        found = {key: entry.revision for key, entry in self.bindings.items() if not self._binds(key)}
        for kind, table in ((QUEUE_DATA, self.data), (QUEUE_OWNER, self.owners)):
            of_queues: Mapping[Address, Entry[QueueData] | Entry[QueueOwner]] = table
            for address, entry in of_queues.items():
                queue = self.queues.get(address)
                key = queue_key(kind, *address)
                if (queue is None or queue.value.id != entry.value.id) and definition_key(address) \
                        not in self._unusable:
                    found[key] = entry.revision
        return found


def _set(table: dict[At, Entry[T]], at: At, event: Event, read: Callable[[bytes], T]) -> None:
    table.pop(at, None)
    if event.value is not None:
        table[at] = Entry(read(event.value), event.revision, event.lease)


def _in_order(changed: Iterable[At], table: Mapping[At, Entry[T]]) -> list[At]:
    return sorted((at for at in changed if at in table), key=lambda at: table[at].revision)


def _shown(exchange: ExchangeDefinition) -> str:
    return f"exchange {exchange.name.decode('utf-8', 'replace')}"
