"""Queues as AMQP 0-9-1 clients have them: declared with arguments, exclusive to a connection, deleted when unused.

Refusals have RabbitMQ's texts; `reason` of the AmqpRefused is the reply code. All names are bytes. Dead letters of such
queues are handled in dead_letters.py, their timers in queues/clock.py. It is one file because all of it asks the same
tables.
"""
from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from fluxmq._core.amqp091.topics import DIRECT_REPLY_TO
from fluxmq._core.envelope.envelope import FORMAT_AMQP091
from fluxmq._core.errors import UsageError
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.parts import PartMember
from fluxmq._core.peer.queue_member import PeerMember
from fluxmq._core.queue.amqp_head import PULL_STALLED, pull, purge_ready, ready_of
from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq.engine.exchanges.manager import no_queue
from fluxmq.engine.ports.definitions import Deferred
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.amqp.dead_letters import DeadLetterer, Route
from fluxmq.engine.queues.clock import unused
from fluxmq.engine.queues.forwarding import is_under_way
from fluxmq.engine.queues.manager import QueueManager, QueueState
from fluxmq.engine.queues.parts import PART, is_part
from fluxmq.engine.queues.relays import Attach, Hosts
from fluxmq.engine.queues.table import QueueListener
from fluxmq.model.amqp import AmqpRefused, ReplyCode, shown
from fluxmq.model.queue_arguments import (
    NAME_BYTES_MAX,
    Declared,
    difference,
    kept_arguments,
    read_arguments,
    spec_of,
    where,
)
from fluxmq.model.queues import QueueSpec

__all__ = ["AmqpQueues", "QueueDeclared"]

GROUP = b"default"
RESERVED = b"amq."
GENERATED = b"amq.gen-"
REPLY_PREFIX = DIRECT_REPLY_TO + b"."
RANDOM_BYTES = 16
# Cost of each discarded message, in units of about 20 ns (_core/memory/node.pxd): one method may discard a million, and
# a connection that repeats it must not get more than its share of each round.
PURGE_WORK, DELETE_WORK = 6, 3


class QueueDeclared(msgspec.Struct, frozen=True):
    """Content of Declare-Ok. messages: number of ready messages."""

    queue: Queue
    name: bytes
    messages: int
    consumers: int


class AmqpQueues(QueueListener):
    """Machine. random_bytes: (n) -> n random bytes. route: as in DeadLetterer. hosts: the broker's.

    An owner represents a connection: any object, compared by identity.
    """

    def __init__(self, manager: QueueManager, random_bytes: Callable[[int], bytes], route: Route | None = None,
                 hosts: Hosts | None = None) -> None:
        self.manager = manager
        if hosts is not None:
            hosts.protocols["amqp"] = self
            hosts.calls |= {"get": self._get_for, "counts": self._counts_for, "purge": self._purge_for,
                            "deletable": self._deletable, "is_there": self._is_there}
        self.dead = DeadLetterer(manager, route)
        self._random = random_bytes
        if manager.definer is not None:
            manager.hub.reply = self._reply
        self._owned: dict[int, set[Queue]] = {}  # by id of the owner: its exclusive queues
        self._owners: dict[Queue, object] = {}
        # In a cluster, while a declaration waits for it: the name that was drawn for a connection's queue, by id of the
        # connection; and the connection that an exclusive queue is to have, by the queue's address.
        self._drawn: dict[int, bytes] = {}
        self._awaited: dict[tuple[bytes, bytes], object] = {}
        self._leaders: dict[Queue, Member] = {}  # the active consumers of queues with a single active consumer
        manager.amqp_dead_letters = self.dead
        manager.listeners.append(self)

    # ------------------------------------------------------------------ find

    def find(self, vhost: bytes, name: bytes, owner: object = None) -> Queue:
        """The queue, for use by `owner`. Raises AmqpRefused: 404; 405, it is exclusive to another connection. Raises
        Deferred while it may be about to be deleted."""
        return self._state(vhost, name, owner).queue

    def get(self, vhost: bytes, name: bytes) -> Queue | None:
        """The queue, whether or not it is exclusive."""
        state = self.manager.queues.get((vhost, name))
        return state.queue if state is not None else None

    def name_of(self, queue: Queue) -> tuple[bytes, bytes]:
        """(virtual host, name)."""
        return queue.address

    def _state(self, vhost: bytes, name: bytes, owner: object) -> QueueState:
        state = self.manager.queues.get((vhost, name))
        if state is None or is_under_way(name) or is_part(name):
            raise no_queue(vhost, name)
        if state.declared is not None and state.declared.exclusive and state.owner is not owner:
            raise locked(vhost, name)
        self.manager.await_end(state)
        return state

    # ------------------------------------------------------------------ declare

    def declare(self, vhost: bytes, name: bytes, *, passive: bool = False, durable: bool = False,
                exclusive_owner: object = None, auto_delete: bool = False, arguments: Mapping[str, Any] | None = None,
                owner: object = None) -> QueueDeclared:
        """exclusive_owner: the connection, if the queue is to be exclusive. owner: the connection of a passive
        declaration.

        Raises AmqpRefused: 403, 404, 405, 406. Raises Deferred.
        """
        if passive:
            # Every connection may make a passive declaration, also for a reply queue.
            if name.startswith(REPLY_PREFIX) and (queue := self.get(vhost, name)) is not None:
                return QueueDeclared(queue, name, 0, 1)
            state = self._state(vhost, name, exclusive_owner if exclusive_owner is not None else owner)
            self.whole(state.queue)
            state.queue.pump_now()
            return self._declared(state, name)
        name = name.translate(None, b"\r\n")
        exclusive = exclusive_owner is not None
        declared = Declared(vhost, name, durable, exclusive, auto_delete, kept_arguments(arguments or {}))
        generated = not name
        if generated:
            name = self._drawn.pop(id(owner), b"") or self._generate(vhost)
            declared = msgspec.structs.replace(declared, name=name)
        if generated and (vhost, name) not in self.manager.queues:
            pass
        elif (known := self.manager.queues.get((vhost, name))) is not None:
            self._check_same(known, declared, exclusive_owner)
            self._await_owner(known)
            self.manager.await_end(known)
            self.whole(known.queue)
            return self._declared(known, name)
        elif name.startswith(RESERVED) or is_part(name):
            prefix = PART if is_part(name) else "amq."
            raise AmqpRefused(ReplyCode.ACCESS_REFUSED,
                              f"queue name '{shown(name)}' contains reserved prefix '{prefix}*'")
        elif len(name) > NAME_BYTES_MAX:
            raise AmqpRefused(ReplyCode.PRECONDITION_FAILED, "queue name is longer than 255 bytes")
        # The values are compared as received; what is stored of them is equivalent.
        parsed = read_arguments(msgspec.structs.replace(declared, arguments=dict(arguments or {})))
        spec = spec_of(declared, parsed)
        try:
            self.manager.check_room(spec)
        except QueueRefused as refused:  # translated to RabbitMQ's texts
            raise AmqpRefused(ReplyCode.PRECONDITION_FAILED,
                              f"cannot declare queue '{shown(name)}': {refused.text}") from None
        if self.manager.definer is not None:
            if generated:
                self._drawn[id(owner)] = name
            if exclusive:
                self._awaited[vhost, name] = exclusive_owner
            raise Deferred(partial(self.manager.definer.define_queue, spec, declared, here=generated or exclusive))
        queue = self._make(spec, declared)
        state = self.manager.states[queue]
        if exclusive:
            self._own(state, exclusive_owner)
        if queue.kind != QUEUE_STREAM:
            self._group(queue)
        return self._declared(state, name)

    def queue_added(self, queue: Queue) -> None:
        """In a cluster: a queue that a client has declared, somewhere, is there now."""
        state = self.manager.states[queue]
        if state.declared is None or not state.id or not state.here:
            return
        if state.declared.exclusive:
            owner = self._awaited.pop(queue.address, None)
            if owner is None:  # the connection has ended meanwhile
                self.manager.end(queue.address)
                return
            self._own(state, owner)

    def queue_made(self, queue: Queue) -> None:
        """In a cluster: its group, behind the queue in the journal. A start passes over a group of no queue, and over
        all that was settled in it."""
        state = self.manager.states.get(queue)
        if state is not None and state.declared is not None and state.id and queue.kind != QUEUE_STREAM:
            self._group(queue)

    def reply_queue(self, vhost: bytes, owner: object) -> QueueDeclared:
        """Makes a queue for direct replies: it has not been declared, and ends with its only consumer."""
        drawn = self._random(RANDOM_BYTES)
        name = REPLY_PREFIX + urlsafe_b64encode(drawn).rstrip(b"=")
        node = self.manager.directory.node
        if self.manager.definer is not None:
            name += b"." + node.encode()
        declared = Declared(vhost, name, False, True, True, {})
        queue = self._make(spec_of(declared, read_arguments(declared)), declared)
        state = self.manager.states[queue]
        if self.manager.definer is not None:  # no other node knows it but by its name
            queue.identity = _reply_identity(drawn)
            self.manager.hub.owned[queue.identity] = queue
        self._own(state, owner)
        self._group(queue)
        return self._declared(state, name)

    def _reply(self, vhost: bytes, name: bytes, topic: bytes, properties: bytes, payload: bytes,
               unrouted: Callable[[], object] | None) -> bool:
        """A direct reply to a client of another node. See Hub.reply."""
        home = self._reply_home(name)
        return home is not None and home[0].publish_to(home[1], topic, properties, payload, format=FORMAT_AMQP091,
                                                       unrouted=unrouted)

    def _reply_home(self, name: bytes) -> tuple[PeerOutbox, int] | None:
        """The way to another node that the name of a queue for replies names, and the queue's identity. None: there is
        no such node."""
        drawn, _, node = name[len(REPLY_PREFIX):].partition(b".")
        try:
            identity = _reply_identity(urlsafe_b64decode(drawn + b"=="))
            hop = self.manager.peers.hop(node.decode())
        except (ValueError, UsageError):
            return None
        assert isinstance(hop, PeerOutbox)
        return hop, identity

    def reply_elsewhere(self, vhost: bytes, name: bytes) -> tuple[PeerOutbox, int] | None:
        """Of the name of a queue for replies that another node may have: the way to it, and the identity of the queue.
        None for any other name."""
        if self.manager.definer is None or not name.startswith(REPLY_PREFIX) or self.get(vhost, name) is not None:
            return None
        return self._reply_home(name)

    def _is_there(self, queue: Queue, member: PeerMember | None, vhost: str, name: str) -> bool:
        """Whether another node's client has named this queue."""
        if queue.address != (vhost.encode(), name.encode()):
            raise no_queue(vhost.encode(), name.encode())
        return True

    def _make(self, spec: QueueSpec, declared: Declared) -> Queue:
        try:
            return self.manager.make(spec, declared)
        except QueueRefused as refused:  # as RabbitMQ answers if a queue's home node is down
            raise AmqpRefused(ReplyCode.NOT_FOUND, refused.text) from None

    def _own(self, state: QueueState, owner: object) -> None:
        state.owner = owner
        self._owned.setdefault(id(owner), set()).add(state.queue)
        self._owners[state.queue] = owner

    def _generate(self, vhost: bytes) -> bytes:
        while True:
            name = GENERATED + urlsafe_b64encode(self._random(RANDOM_BYTES)).rstrip(b"=")
            if (vhost, name) not in self.manager.queues:
                return name

    def _await_owner(self, state: QueueState) -> None:
        """Raises Deferred while the node for a new queue has not begun to serve it."""
        definer = self.manager.definer
        if definer is not None and not state.here and definer.is_coming(state.queue.address):
            raise Deferred(partial(definer.await_owner, state.queue.address))

    def _check_same(self, state: QueueState, declared: Declared, owner: object) -> None:
        known = state.declared
        if known is None:  # from the configuration or an operator: a declaration must agree with its present settings
            spec = state.spec
            arguments: dict[str, Any] = {"x-queue-type": b"stream"} if spec.type == "stream" else {}
            if spec.replication.enabled and spec.type == "classic":  # which is what quorum asks for
                arguments["x-queue-type"] = b"quorum"
            if spec.max_priority:
                arguments["x-max-priority"] = spec.max_priority
            known = Declared(declared.vhost, declared.name, spec.type != "ephemeral", arguments=arguments)
        if known.exclusive != declared.exclusive or (known.exclusive and state.owner is not owner):
            raise locked(declared.vhost, declared.name)
        if declared.exclusive:  # an exclusive queue is deleted with its connection in any case
            declared = msgspec.structs.replace(declared, durable=known.durable)
        differs = difference(known, declared, lenient=state.declared is None)
        if differs:
            raise AmqpRefused(ReplyCode.PRECONDITION_FAILED, differs)

    def _declared(self, state: QueueState, name: bytes) -> QueueDeclared:
        state.idle_since_ms = self.manager.hub.steady_ms
        ready, _, consumers = self.counts(state.queue)
        return QueueDeclared(state.queue, name, ready, consumers)

    def _group(self, queue: Queue, name: bytes = GROUP) -> Group:
        known = self.manager.states[queue].groups.get((name, b""))
        return known if known is not None else self.manager.group(queue, name)

    # ------------------------------------------------------------------ delete, purge, count

    def delete(self, vhost: bytes, name: bytes, owner: object = None, *, if_unused: bool = False,
               if_empty: bool = False) -> int:
        """Returns the number of ready messages. A queue that does not exist counts as deleted. Raises AmqpRefused: 405,
        406. Raises Deferred."""
        if (vhost, name) not in self.manager.queues:
            return 0
        state = self._state(vhost, name, owner)
        ready = self._check_deletable(state, if_unused, if_empty)
        self.manager.delete_for(state.queue.address, ready)
        self.manager.hub.spend(ready * DELETE_WORK)
        return ready

    def _deletable(self, queue: Queue, member: PeerMember | None, if_unused: bool, if_empty: bool) -> int:
        return self._check_deletable(self.manager.states[queue], if_unused, if_empty)

    def _check_deletable(self, state: QueueState, if_unused: bool, if_empty: bool) -> int:
        vhost, name = state.queue.address
        state.queue.pump_now()
        ready, _, consumers = self.counts(state.queue)
        # RabbitMQ checks if_empty first.
        if if_empty and ready:
            raise AmqpRefused(ReplyCode.PRECONDITION_FAILED, f"{where(vhost, name)} not empty")
        if if_unused and consumers:
            raise AmqpRefused(ReplyCode.PRECONDITION_FAILED, f"{where(vhost, name)} in use")
        if state.configured:
            raise AmqpRefused(ReplyCode.PRECONDITION_FAILED,
                              f"{where(vhost, name)} is in the configuration, and would be made again")
        return ready

    def purge(self, vhost: bytes, name: bytes, owner: object = None) -> int:
        """Removes the ready messages, but not claimed or delayed ones. Raises AmqpRefused: 404, 405, 540."""
        queue = self._state(vhost, name, owner).queue
        self.purgeable(queue)
        return self._purge_for(queue, None)

    @staticmethod
    def purgeable(queue: Queue) -> None:
        """Raises AmqpRefused 540 for a stream."""
        if queue.kind == QUEUE_STREAM:
            raise AmqpRefused(ReplyCode.NOT_IMPLEMENTED,
                              f"queue.purge not supported by stream queues {where(*queue.address)}")

    def counts(self, queue: Queue) -> tuple[int, int, int]:
        """(ready messages, claimed messages, consumers)."""
        state = self.manager.states[queue]
        consumers = len(queue.readers) + sum(len(group.members) for group in state.groups.values())
        if queue.kind == QUEUE_STREAM:
            return queue.depth, 0, consumers
        group = state.groups.get((GROUP, b""))
        if group is None:  # not declared by AMQP, and not read by AMQP yet
            return queue.depth, 0, consumers
        ready = ready_of(group)
        return ready, max(group.lag - ready, 0), consumers

    def counts_deliveries(self, queue: Queue) -> bool:
        """Whether redeliveries have the number of earlier ones (x-delivery-count), as those of quorum queues have."""
        arguments = self.manager.states[queue].arguments
        return arguments is not None and arguments.kind == "quorum"

    # ------------------------------------------------------------------ consumers

    def consume(self, queue: Queue, member: Member, *, exclusive: bool = False, owner: object = None,
                 priority: int = 0, group: bytes = b"") -> Group:
        """Adds a consumer to its group; it gets messages from now on. Not for streams. Raises AmqpRefused: 403; 404,
        the queue is damaged; 405."""
        state = self.manager.states[queue]
        vhost, name = queue.address
        if state.declared is not None and state.declared.exclusive and state.owner is not owner:
            raise locked(vhost, name)
        self.whole(queue)
        joined = self._group(queue, group or GROUP)
        member.lease_ms = 0
        member.priority = priority
        if queue.relay is not None:  # its owner decides (attach_member)
            joined.join(member)
            return joined
        single = state.arguments is not None and state.arguments.single
        if queue in self._leaders or (exclusive and (joined.members or single)):
            raise AmqpRefused(ReplyCode.ACCESS_REFUSED, f"{where(vhost, name)} in exclusive use")
        joined.join(member)
        if exclusive:
            self._leaders[queue] = member
        state.had_consumer = True
        queue.notify()
        return joined

    def cancel(self, queue: Queue, member: Member) -> None:
        """Stops deliveries to the member; it keeps its claims until it leaves its group (`Group.leave`)."""
        group = member.group
        if group is None or member not in group.members:
            return
        group.rest(member)
        self._unused(queue, member)

    def left(self, queue: Queue, member: Member) -> None:
        """Removes a member; its claimed messages are ready again. For consumers, cancelled ones, and pullers."""
        group = member.group
        if group is None:
            return
        consumed = member in group.members
        group.leave(member)
        if consumed:
            self._unused(queue, member)

    def _unused(self, queue: Queue, member: Member) -> None:
        if self._leaders.get(queue) is member:
            del self._leaders[queue]
        state = self.manager.states.get(queue)
        if state is None or queue.relay is not None:
            return
        self.manager.left(queue, None)
        if (state.declared is not None and state.declared.auto_delete and state.had_consumer and queue.damage is None
                and unused(state)):
            self.manager.end(queue.address, partial(unused, state))

    # ------------------------------------------------------------------ consumers of other nodes

    def attach_member(self, queue: Queue, member: PeerMember | PartMember, asked: Attach) -> None:
        """See Host."""
        if asked.pulls:
            self.add_puller(queue, member)
        else:
            self.consume(queue, member, exclusive=bool(asked.exclusive), priority=asked.priority, group=asked.group)

    def adopt_member(self, queue: Queue, member: Member, asked: Attach) -> None:
        """See Host."""
        member.lease_ms = 0
        if asked.exclusive:
            self._leaders[queue] = member
        if not asked.pulls:
            self.manager.states[queue].had_consumer = True

    def leads(self, queue: Queue, member: Member) -> bool:
        """See Host."""
        return self._leaders.get(queue) is member

    def leave(self, queue: Queue, member: PeerMember | PartMember) -> None:
        """See Host."""
        self._unused(queue, member)

    def rest(self, queue: Queue, member: PeerMember | PartMember) -> None:
        """See Host."""
        self.cancel(queue, member)

    def _get_for(self, queue: Queue, member: PeerMember | PartMember | None) -> tuple[int, int]:
        """Basic.Get: (PULL_*, ready messages behind the one that was given)."""
        if member is None:
            raise AmqpRefused(ReplyCode.NOT_FOUND, f"{where(*queue.address)} has changed its node: try again")
        queue.pump_now()
        remaining = max(self.counts(queue)[0] - 1, 0)
        return self.ask(queue, member), remaining

    def _counts_for(self, queue: Queue, member: PeerMember | None, used: bool) -> tuple[int, int, int]:
        """used: it was declared, also passively, which counts as use (x-expires)."""
        if used:
            self.manager.states[queue].idle_since_ms = self.manager.hub.steady_ms
        self.whole(queue)
        queue.pump_now()
        return self.counts(queue)

    def _purge_for(self, queue: Queue, member: PeerMember | None) -> int:
        queue.pump_now()
        purged = purge_ready(self._group(queue))
        self.manager.hub.spend(purged * PURGE_WORK)
        queue.notify()
        return purged

    def ask(self, queue: Queue, member: Member) -> int:
        """Pulls one message for basic.get; returns PULL_*. member: of the default group (`add_puller`). Raises
        AmqpRefused 404 if the queue is damaged."""
        self.whole(queue)
        self.manager.states[queue].idle_since_ms = self.manager.hub.steady_ms
        outcome = pull(member.group, member)
        if outcome == PULL_STALLED:
            self.manager.read_on(queue)  # pumping reads from disk for consumers only
        return outcome

    @staticmethod
    def whole(queue: Queue) -> None:
        """Raises AmqpRefused 404 for a damaged queue, as RabbitMQ does for one that is down; 541 would also end
        unrelated channels."""
        if queue.damage is not None:
            raise AmqpRefused(ReplyCode.NOT_FOUND, f"{where(*queue.address)} is stopped: a file of it is "
                                                   f"damaged, as the broker's log says. `fluxmq log repair` mends it")

    def add_puller(self, queue: Queue, member: Member) -> Group:
        """Lets the member pull (`ask`). Raises AmqpRefused 540 for a stream."""
        if queue.kind == QUEUE_STREAM:
            raise AmqpRefused(ReplyCode.NOT_IMPLEMENTED,
                              f"basic.get not supported by stream queues {where(*queue.address)}")
        group = self._group(queue)
        group.attach(member)
        return group

    # ------------------------------------------------------------------ queues of ended connections

    def owned(self, owner: object) -> list[Queue]:
        """The connection's exclusive queues."""
        return list(self._owned.get(id(owner), ()))

    def connection_closed(self, owner: object) -> Iterator[None]:
        """Deletes the connection's exclusive queues, one at each step."""
        self._drawn.pop(id(owner), None)
        for address in [address for address, awaiting in self._awaited.items() if awaiting is owner]:
            del self._awaited[address]
        for queue in self.owned(owner):
            if queue in self.manager.states:  # otherwise it was deleted meanwhile, and its name may be in use again
                self.manager.end(queue.address)
            yield

    def queue_deleted(self, queue: Queue, members: list[Member]) -> None:
        """Removes an exclusive queue from those of its owner."""
        self._leaders.pop(queue, None)
        owner = id(self._owners.pop(queue, None))
        if owner in self._owned:
            self._owned[owner].discard(queue)
            if not self._owned[owner]:
                del self._owned[owner]


def _reply_identity(drawn: bytes) -> int:
    """The identity in the cluster of the queue for replies whose name has these bytes. It cannot be guessed."""
    if len(drawn) != RANDOM_BYTES:
        raise ValueError("not the name of a queue for replies")
    return int.from_bytes(drawn[:8], "big") | 1 << 63


def locked(vhost: bytes, name: bytes) -> AmqpRefused:
    return AmqpRefused(ReplyCode.RESOURCE_LOCKED, (
        f"cannot obtain exclusive access to locked {where(vhost, name)}. It could be originally "
        f"declared on another connection or the exclusive property value does not match that of the original "
        f"declaration."))
