"""Queues, exchanges and bindings as the nodes of a cluster define them, and what a node's engine is told of them.

    a client declares ─► the engine looks at its tables ── nothing to change ─► answers as on one node
                                     └── Deferred: a transaction, which every node hears of ─► Learner ─► again

A queue and an exchange have an identity, which no other one ever has: a binding names both of its ends by theirs, so
one that is made anew inherits nothing.
"""
from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

import msgspec

from fluxmq.model.queue_arguments import Declared
from fluxmq.model.queues import QueueSpec

__all__ = ["FIRST", "BindingDefinition", "Deferred", "Definer", "ExchangeDefinition", "Learner", "Placement",
           "QueueDefinition", "Stored"]

Address = tuple[bytes, bytes]


class Placement(NamedTuple):
    """Which data of a queue somebody has; a later one is greater. What a node has on its disk says it, and etcd says it
    of what is the queue.

    incarnation: 1 at first, and another one when the data began anew, without what was there before. moved: how often
    it was moved in that incarnation, as a whole, to another node: what has been moved once more has all of it."""

    incarnation: int = 1
    moved: int = 0

    @property
    def after_move(self) -> Placement:
        """The same data at another node."""
        return Placement(self.incarnation, self.moved + 1)

    @property
    def anew(self) -> Placement:
        """Data that begins empty."""
        return Placement(self.incarnation + 1)


FIRST = Placement()


class QueueDefinition(msgspec.Struct, frozen=True):
    """spec: as under `queues:`; of a queue that an AMQP client has declared, as its declaration says. node: the node
    with which the queue ends, because it is exclusive to a connection there; "": it is not exclusive. divided: each
    partition is a queue of its own, wherever it is (engine/queues/parts.py); else all are at one node. placement: of
    what a node has on its disk (Stored.stored_queues); a definition in etcd does not say it."""

    id: int
    spec: QueueSpec
    declared: Declared | None = None
    node: str = ""
    divided: bool = False
    placement: Placement = FIRST

    @property
    def address(self) -> Address:
        """Namespace and name."""
        return self.spec.address

    @property
    def durable(self) -> bool:
        """Whether it outlives a stop of its node."""
        return self.spec.type != "ephemeral"


class ExchangeDefinition(msgspec.Struct, frozen=True):
    """arguments: a field table as received, without its length."""

    id: int
    vhost: bytes
    name: bytes
    type: bytes
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = b""

    @property
    def address(self) -> Address:
        """Virtual host and name."""
        return self.vhost, self.name


class BindingDefinition(msgspec.Struct, frozen=True):
    """source_id, destination_id: 0 for an exchange that is predeclared. arguments: as Binding's, sorted."""

    vhost: bytes
    source: bytes
    source_id: int
    to_exchange: bool
    destination: bytes
    destination_id: int
    key: bytes
    arguments: bytes = b""


class Deferred(Exception):
    """All nodes must know of this change of a definition. Nothing was changed: await change(), then repeat. change
    raises QueueRefused (unavailable) if it cannot be made now, or if not all nodes may know of it. result: what the
    operation would return if it made the change; repeated, it finds that nothing is to change."""

    def __init__(self, change: Callable[[], Coroutine[Any, Any, None]], result: Any = None) -> None:
        super().__init__()
        self.change = change
        self.result = result


class Definer(Protocol):
    """Changes the definitions of a cluster. What is awaited is for Deferred."""

    async def define_queue(self, spec: QueueSpec, declared: Declared | None, *, here: bool = False,
                           near: Address | None = None) -> None:
        """A new queue, unless there is one of this name. here: on this node, else where it is best; an exclusive one
        is here in any case. near: on the node of this queue."""

    def check(self) -> None:
        """Raises QueueRefused (unavailable) while the node is joining its cluster, or leaves it: what it has on its
        disk may have been changed or deleted meanwhile."""

    def home_of(self, address: Address) -> str:
        """The node that has the messages of a queue, whether it is there or not; "": there is no such queue."""

    def epoch_of(self, address: Address) -> int:
        """Of the node that serves a queue: it grows with each claim; 0: nobody serves it."""

    def is_coming(self, address: Address) -> bool:
        """Whether the node that is to have a queue's messages is there, and has not begun to serve it."""

    async def await_owner(self, address: Address) -> None:
        """Until that node serves the queue, or is away."""

    async def redefine_queue(self, spec: QueueSpec, identity: int) -> None:
        """Other settings for a queue."""

    async def undefine_queue(self, address: Address, identity: int) -> None:
        """The queue is deleted, unless it is another one."""

    def end_queue(self, address: Address, identity: int, ending: Callable[[bool], bool]) -> None:
        """The same, but nobody waits for it: it is tried until it is done. ending: called with True before it may be
        done; False as the answer: the queue is to stay. Called with False when it is certain that it was not done."""

    async def await_end(self, identity: int) -> None:
        """Until it is certain whether a queue that is ending was deleted."""

    async def await_gone(self, address: Address, identity: int) -> None:
        """Until every node knows that a queue is gone which its node, this one or another, is about to delete because
        nobody uses it; or until it is certain that it stays. Not for long: etcd may be silent."""

    def make_known(self, spec: QueueSpec, then: Callable[[], None]) -> None:
        """A queue is defined at this node, unless there is one of this name. Nobody waits for it, so it is tried until
        it is done; then `then` is called."""

    async def define_exchange(self, exchange: ExchangeDefinition) -> None:
        """A new exchange, unless there is one of this name. Its identity does not count."""

    async def undefine_exchange(self, address: Address, identity: int) -> None:
        """The exchange is deleted, with its bindings, unless it is another one."""

    async def define_binding(self, vhost: bytes, source: bytes, destination: bytes, key: bytes, arguments: bytes, *,
                             to_exchange: bool) -> None:
        """A binding, unless there is an equal one. arguments: sorted."""

    async def undefine_binding(self, vhost: bytes, source: bytes, destination: bytes, key: bytes, arguments: bytes, *,
                               to_exchange: bool) -> None:
        """The binding is deleted, if it is there. arguments: sorted."""


class Learner(Protocol):
    """The engine, which has what is defined. Called on the loop's thread; each end of a binding is learned before it,
    and forgotten after it. What it cannot use it refuses with a FluxError, and is not told to forget."""

    def learn_queue(self, definition: QueueDefinition, owner: str | None) -> None:
        """It is defined, or has another owner or other settings than before. owner: the node that serves it; None: that
        one is away."""

    def forget_queue(self, definition: QueueDefinition, *, ended: bool = False) -> None:
        """It is not defined any more (ended), or it is about to be learned anew because another node has its
        messages."""

    def turn_queue(self, definition: QueueDefinition, owner: str | None) -> bool:
        """Its messages are at another node than before: here and were not, or not and were. Returns whether the queue
        has been turned into what it is now, because it was being moved, or is not durable and made anew here; otherwise
        it is to be forgotten, or set aside, and learned anew. Its bindings are forgotten before, and learned behind
        it."""

    def set_aside_queue(self, definition: QueueDefinition, why: str) -> None:
        """This node has it from its disk, and it is not the one that is defined by its name, or not the one with its
        messages any more: it is kept under another name, which counts from the next start on."""

    def leave_queue(self, definition: QueueDefinition, why: str) -> None:
        """This node has it from its disk, and a group of nodes decides about its data, which this node cannot tell from
        what it has: that stays on the disk as it is, and is not served."""

    def node_appeared(self, node: str) -> None:
        """There is a way to a node (Peers.hop), which may serve queues that were learned before."""

    def learn_exchange(self, definition: ExchangeDefinition) -> None:
        """It is defined."""

    def forget_exchange(self, definition: ExchangeDefinition) -> None:
        """It is not defined any more."""

    def learn_binding(self, definition: BindingDefinition) -> None:
        """It is defined, and so are both of its ends."""

    def forget_binding(self, definition: BindingDefinition) -> None:
        """It is not defined any more, or one of its ends is not."""


class Stored(Learner, Protocol):
    """The engine with what it has from its disk. Identities are 0 of what was never defined in a cluster."""

    queues: Any  # the engine's QueueManager, for claims that are kept at a start (cluster/kept_claims)
    defined: Any  # its DefinedQueues, for moves of queues (cluster/queue_moves)

    def stored_queues(self) -> list[QueueDefinition]:
        """Those that survive a restart."""

    def has_queue(self, address: Address, identity: int, placement: Placement) -> bool:
        """Whether this data of a queue is among them."""

    def stored_exchanges(self) -> list[ExchangeDefinition]:
        """As stored_queues; without those that are predeclared."""

    def stored_bindings(self) -> list[BindingDefinition]:
        """As stored_queues."""

    def settle_copy(self, identity: int, definition: QueueDefinition | None) -> None:
        """A queue of the disk whose name says that it is a copy (is_copy): it is this queue now; None: it is not, and
        is deleted."""

    def identify_queue(self, address: Address, identity: int, placement: Placement) -> None:
        """It is defined with this identity, and what is here is this data of it."""
