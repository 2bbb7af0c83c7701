"""The cold operations of exchanges: declare, delete, bind, unbind; virtual hosts. Without I/O, without time.

Routing is compiled (_core/exchange/exchange.pyx): one Exchanges for each virtual host, shared by all connections. This
object decides which changes are allowed and records them; the records are defined in records.py and restored in
store.py. It is one file because what clients ask for and what other nodes of a cluster say change the same objects.

Refusals and their texts are those of RabbitMQ, because clients look for parts of its texts. Names are bytes, unchanged;
arguments are field tables in their wire encoding, without their length.
"""
from __future__ import annotations

from functools import partial
from typing import Protocol

import msgspec

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import UsageError
from fluxmq._core.exchange.exchange import TYPES, Binding, Destination, Exchange, Exchanges, QueueEnd
from fluxmq._core.exchange.headers import KIND_NAMES, read_headers, sorted_table
from fluxmq._core.hub.amqp091_bridge import AmqTopicHop
from fluxmq._core.hub.hub import Hub
from fluxmq.engine.exchanges.records import BindingRecord, ExchangeRecord, StoredExchange, view_key
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.engine.ports.definitions import BindingDefinition, Deferred, ExchangeDefinition
from fluxmq.engine.queues.records import record
from fluxmq.model.amqp import AmqpRefused, ReplyCode, shown

__all__ = ["DEFAULT_VHOST", "PREDECLARED", "BoundQueue", "ExchangeManager", "no_exchange", "no_queue"]

DEFAULT_VHOST = b"/"
# In every virtual host. They are durable and cannot be deleted.
PREDECLARED = {b"": b"direct", b"amq.direct": b"direct", b"amq.fanout": b"fanout", b"amq.topic": b"topic",
               b"amq.headers": b"headers", b"amq.match": b"headers"}
MQTT_EXCHANGE = b"amq.topic"  # it also routes to and from the namespace's MQTT topics
RESERVED = b"amq."
ALTERNATE = b"alternate-exchange"
X_MATCH = ("all", "any", "all-with-x", "any-with-x")


class BoundQueue(Protocol):
    """What the exchanges need from a queue: fluxmq._core.queue.queue.Queue is one."""

    @property
    def number(self) -> int:
        """Unique, never reused."""

    @property
    def durable(self) -> bool:
        """Whether it survives a restart."""


def where(vhost: bytes, name: bytes) -> str:
    return f"exchange '{shown(name)}' in vhost '{shown(vhost)}'"


def no_exchange(vhost: bytes, name: bytes) -> AmqpRefused:
    """The refusal 404, also for a publish."""
    return AmqpRefused(ReplyCode.NOT_FOUND, f"no {where(vhost, name)}")


def no_queue(vhost: bytes, name: bytes) -> AmqpRefused:
    """404."""
    return AmqpRefused(ReplyCode.NOT_FOUND, f"no queue '{shown(name)}' in vhost '{shown(vhost)}'")


def _cleaned(name: bytes) -> bytes:
    return name.replace(b"\n", b"").replace(b"\r", b"") if b"\n" in name or b"\r" in name else name


def _not_default(*names: bytes) -> None:
    if b"" in names:
        raise AmqpRefused(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")


class ExchangeManager:
    """Machine. The exchanges of one node.

    A virtual host is a namespace of the hub. entries: size of each virtual host's cache of routes. seed: secret, for
    hashes.
    """

    def __init__(self, hub: Hub, *, entries: int = 4096, seed: int = 0, cluster: Cluster) -> None:
        self.hub = hub
        self.directory = cluster.directory
        self.definer = cluster.directory.definer
        self.vhosts: dict[bytes, Exchanges] = {}  # by name: those that have been used
        self._hops: dict[bytes, AmqTopicHop] = {}  # by virtual host
        self.number_last = 0
        # Changes for the view, by key. A key is in one of the two.
        self.puts: dict[bytes, bytes] = {}
        self.deletes: set[bytes] = set()
        self._entries, self._seed = entries, seed
        self.add_vhost(DEFAULT_VHOST)

    # ------------------------------------------------------------------ virtual hosts and queues

    def add_vhost(self, name: bytes) -> Exchanges:
        """Returns a virtual host; makes it, with its predefined exchanges, if it does not exist. Its namespace
        exists."""
        known, namespace = self.vhosts.get(name), self.hub.namespaces[name]
        if known is not None and self._hops[name].namespace is namespace:
            return known  # otherwise it belongs to an ended namespace of the same name
        made = self.vhosts[name] = Exchanges(self._entries, self._seed)
        for exchange, type_ in PREDECLARED.items():
            it = made.declare(exchange, type_, durable=True, mqtt=exchange == MQTT_EXCHANGE)
            it.data = ExchangeRecord(name, exchange, type_)
        hop = self._hops[name] = AmqTopicHop(self.hub, made, namespace)
        made.on_mqtt = lambda binding, there: self._topics(hop, binding, there)
        return made

    def _topics(self, hop: AmqTopicHop, binding: Binding, there: bool) -> None:
        """Called when a binding of an amq.topic was added or removed, because it also routes what MQTT clients
        publish."""
        end = binding.destination
        if not isinstance(end, QueueEnd):
            (self.hub.targets.bind_exchange if there else self.hub.targets.unbind_exchange)(hop, binding.key)
        elif end.queue in self.hub.targets.queues:  # a queue that has ended has removed its filters itself
            (self.hub.targets.bind_queue if there else self.hub.targets.unbind_queue)(end.queue, binding.key)

    def defined_in(self, vhost: bytes) -> int:
        """The number of its exchanges that are not predefined."""
        return sum(name not in PREDECLARED for name in self._exchanges_of(vhost))

    def end_vhost(self, name: bytes) -> None:
        """Removes the virtual host and its exchanges; its queues have been deleted before."""
        exchanges = self.vhosts.pop(name, None)
        if exchanges is None:
            return
        for exchange in exchanges.exchanges.values():
            if exchange.number:
                self._record(RecordKind.EXCHANGE_END, exchange.number, None)
            for binding in exchange.outbound:
                if binding.number:
                    self.note(view_key(RecordKind.BIND, binding.number), None)
        self._hops.pop(name, None)
        for known in list(exchanges.exchanges):
            exchanges.delete(known)  # withdraws the topics of its bindings
        exchanges.let_go()  # cached routes would keep the queues alive until the next garbage collection

    def queue_added(self, vhost: bytes, name: bytes, queue: BoundQueue) -> None:
        """Lets the default exchange route to a new queue."""
        exchanges = self.add_vhost(vhost)
        known = exchanges.queues.get(name)
        if known is not None:
            if known.queue is queue:
                return
            self.queue_removed(vhost, name)
        exchanges.add_queue(name, queue, queue.durable)

    def queue_removed(self, vhost: bytes, name: bytes) -> None:
        """Removes the bindings of a deleted queue."""
        exchanges = self.vhosts.get(vhost)
        if exchanges is not None and name in exchanges.queues:
            self._after_unbind(vhost, exchanges.remove_queue(name))

    # ------------------------------------------------------------------ exchanges

    def declare(self, vhost: bytes, name: bytes, type_: bytes = b"direct", *, passive: bool = False,
                durable: bool = False, auto_delete: bool = False, internal: bool = False,
                arguments: bytes = b"") -> Exchange:
        """Declares an exchange: returns the one of this name, or makes it. Raises AmqpRefused: 403, 404, 406, 503.
        Raises Deferred."""
        exchanges, name = self.vhosts[vhost], _cleaned(name)
        if not passive and type_ not in TYPES:
            raise AmqpRefused(ReplyCode.COMMAND_INVALID, f"unknown exchange type '{shown(type_)}'")
        _not_default(name)
        known = exchanges.exchanges.get(name)
        if passive:
            if known is None:
                raise no_exchange(vhost, name)
            return known
        declared = ExchangeRecord(vhost, name, type_, auto_delete, internal, arguments)
        alternate = _alternate(declared)
        if known is not None:
            _assert_equivalent(known, declared, durable, alternate)
            return known
        if name.startswith(RESERVED):
            raise AmqpRefused(ReplyCode.ACCESS_REFUSED,
                              f"exchange name '{shown(name)}' contains reserved prefix 'amq.*'")
        if self.definer is not None:
            raise Deferred(partial(self.definer.define_exchange, ExchangeDefinition(
                0, vhost, name, type_, durable, auto_delete, internal, arguments)))
        number = self._number() if durable else 0
        made = self.adopt(declared, durable, number)
        if durable:
            self._record(RecordKind.EXCHANGE, number, self._stored(declared))
        return made

    def adopt(self, declared: ExchangeRecord, durable: bool, number: int) -> Exchange:
        """Activates an exchange that is new or was loaded from disk."""
        made = self.vhosts[declared.vhost].declare(
            declared.name, declared.type, durable=durable, auto_delete=declared.auto_delete, internal=declared.internal,
            alternate=_alternate(declared), number=number)
        made.data = declared
        return made

    def delete(self, vhost: bytes, name: bytes, if_unused: bool = False) -> None:
        """Deletes an exchange and its bindings; it need not exist. Raises AmqpRefused: 403, 406. Raises Deferred."""
        exchanges, name = self.vhosts[vhost], _cleaned(name)
        _not_default(name)
        if name.startswith(RESERVED):
            raise AmqpRefused(ReplyCode.ACCESS_REFUSED, f"deletion of system {where(vhost, name)} not allowed")
        known = exchanges.exchanges.get(name)
        if known is None:
            return
        if if_unused and known.outbound:  # an exchange that is only a destination counts as unused
            raise AmqpRefused(ReplyCode.PRECONDITION_FAILED, f"{where(vhost, name)} in use")
        if self.definer is not None:
            raise Deferred(partial(self.definer.undefine_exchange, (vhost, name), known.data.id))
        self._after_unbind(vhost, self._delete(known))

    def _delete(self, exchange: Exchange) -> list[Binding]:
        if exchange.number:
            self._record(RecordKind.EXCHANGE_END, exchange.number, None)
        return self.vhosts[exchange.data.vhost].delete(exchange.name)

    # ------------------------------------------------------------------ bindings

    def bind(self, vhost: bytes, source: bytes, destination: bytes, routing_key: bytes = b"", arguments: bytes = b"",
             *, to_exchange: bool = False) -> bool:
        """Binds a queue or an exchange to an exchange. Returns whether the binding is new. Raises AmqpRefused: 403,
        404, 406. Raises Deferred."""
        begin, end = self._ends(vhost, source, destination, to_exchange)
        if begin is None:
            raise no_exchange(vhost, _cleaned(source))
        if end is None:
            raise (no_exchange if to_exchange else no_queue)(vhost, _cleaned(destination))
        if begin.data.type == b"headers":
            _check_match(arguments)
        if self.definer is not None:
            bound = Binding(begin, end, routing_key, sorted_table(arguments), 0)
            if bound in begin.outbound:
                return False
            raise Deferred(partial(self.definer.define_binding, vhost, begin.name, end.name, routing_key,
                                   bound.arguments, to_exchange=to_exchange), True)
        durable = begin.durable and end.durable
        made = self.adopt_binding(begin, end, routing_key, sorted_table(arguments), self._number() if durable else 0)
        if made is not None and made.number:
            self._record_binding(made)
        return made is not None

    def _record_binding(self, made: Binding) -> None:
        begin, end = made.source, made.destination
        self._record(RecordKind.BIND, made.number, msgspec.msgpack.encode(BindingRecord(
            self._number_of(begin), self._number_of(end), isinstance(end, Exchange), made.key, made.arguments)))

    def adopt_binding(self, source: Exchange, destination: Destination, key: bytes, arguments: bytes,
                      number: int) -> Binding | None:
        """Activates a binding that is new or was loaded from disk; None if an equal one exists. arguments: sorted."""
        return self.vhosts[source.data.vhost].bind(source, destination, key, arguments, number)

    def unbind(self, vhost: bytes, source: bytes, destination: bytes, routing_key: bytes = b"",
               arguments: bytes = b"", *, to_exchange: bool = False) -> bool:
        """Removes a binding. Returns whether it existed. Raises AmqpRefused: 403. Raises Deferred."""
        begin, end = self._ends(vhost, source, destination, to_exchange)
        if begin is None or end is None:
            return False
        if self.definer is not None:
            bound = Binding(begin, end, routing_key, sorted_table(arguments), 0)
            if bound not in begin.outbound:
                return False
            raise Deferred(partial(self.definer.undefine_binding, vhost, begin.name, end.name, routing_key,
                                   bound.arguments, to_exchange=to_exchange), True)
        gone = self.vhosts[vhost].unbind(begin, end, routing_key, sorted_table(arguments))
        if gone is None:
            return False
        if gone.number:
            self._record(RecordKind.UNBIND, gone.number, None)
        self._after_unbind(vhost, [gone])
        return True

    def binds(self, vhost: bytes, source: bytes, destination: bytes, routing_key: bytes, arguments: bytes) -> bool:
        """Whether there is such a binding of a queue. Raises AmqpRefused: 403."""
        begin, end = self._ends(vhost, source, destination, False)
        return begin is not None and end is not None and (
            Binding(begin, end, routing_key, sorted_table(arguments), 0) in begin.outbound)

    def _ends(self, vhost: bytes, source: bytes, destination: bytes,
              to_exchange: bool) -> tuple[Exchange | None, Destination | None]:
        exchanges, source, destination = self.vhosts[vhost], _cleaned(source), _cleaned(destination)
        _not_default(source, *([destination] if to_exchange else []))
        ends = exchanges.exchanges if to_exchange else exchanges.queues
        return exchanges.exchanges.get(source), ends.get(destination)

    def _after_unbind(self, vhost: bytes, bindings: list[Binding]) -> None:
        """Removes these bindings from the view, and deletes auto-delete exchanges that have lost their last binding."""
        exchanges = self.vhosts[vhost]
        while bindings:
            binding = bindings.pop()
            if binding.number:
                self.note(view_key(RecordKind.BIND, binding.number), None)
            source = binding.source
            if (source.auto_delete and not source.outbound and exchanges.exchanges.get(source.name) is source
                    and self.definer is None):
                bindings += self._delete(source)

    # ------------------------------------------------------------------ what all nodes of a cluster have

    def learn_exchange(self, definition: ExchangeDefinition) -> None:
        """An exchange is defined. One that this node has from its disk becomes it, if it is equal; else it is
        replaced. Raises UsageError for a type that this version does not know."""
        if definition.type not in TYPES:
            raise UsageError(f"exchange {shown(definition.name)} has a type that is unknown: {shown(definition.type)}")
        self.hub.namespaces.add(definition.vhost)
        exchanges = self.add_vhost(definition.vhost)
        record_ = ExchangeRecord(definition.vhost, definition.name, definition.type, definition.auto_delete,
                                 definition.internal, definition.arguments, definition.id)
        known = exchanges.exchanges.get(definition.name)
        if known is not None:
            was = known.data
            if known.durable == definition.durable and record_ == msgspec.structs.replace(was, id=definition.id):
                known.data = record_
                if known.number and was != record_:
                    self._record(RecordKind.EXCHANGE, known.number, self._stored(record_))
                return
            self._after_unbind(definition.vhost, self._delete(known))
        number = self._number() if definition.durable else 0
        self.adopt(record_, definition.durable, number)
        if number:
            self._record(RecordKind.EXCHANGE, number, self._stored(record_))

    def forget_exchange(self, definition: ExchangeDefinition) -> None:
        """It is not defined any more."""
        known = self._exchanges_of(definition.vhost).get(definition.name)
        if known is not None and known.data.id == definition.id:
            self._after_unbind(definition.vhost, self._delete(known))

    def learn_binding(self, definition: BindingDefinition) -> None:
        """A binding is defined; this node may have it from its disk. It is on the disk of the node that has its queue,
        because the others have no number for that."""
        begin, end = self._ends_of(definition)
        if begin is None or end is None:
            raise UsageError(f"an end of a binding of exchange {shown(definition.source)} is not there")
        durable = begin.durable and end.durable
        made = self.adopt_binding(begin, end, definition.key, definition.arguments, self._number() if durable else 0)
        if made is not None and made.number:
            self._record_binding(made)

    def forget_binding(self, definition: BindingDefinition) -> None:
        """It is not defined any more."""
        begin, end = self._ends_of(definition)
        gone = None if begin is None or end is None else self.vhosts[definition.vhost].unbind(
            begin, end, definition.key, definition.arguments)
        if gone is not None:
            if gone.number:
                self._record(RecordKind.UNBIND, gone.number, None)
            self._after_unbind(definition.vhost, [gone])

    def _exchanges_of(self, vhost: bytes) -> dict[bytes, Exchange]:
        known = self.vhosts.get(vhost)
        return known.exchanges if known is not None else {}

    def _ends_of(self, definition: BindingDefinition) -> tuple[Exchange | None, Destination | None]:
        exchanges = self.vhosts.get(definition.vhost)
        if exchanges is None:
            return None, None
        ends = exchanges.exchanges if definition.to_exchange else exchanges.queues
        return exchanges.exchanges.get(definition.source), ends.get(definition.destination)

    # ------------------------------------------------------------------ what is on disk

    def _number(self) -> int:
        self.number_last += 1
        return self.number_last

    def _number_of(self, end: Destination) -> int:
        """The number for records. A predefined exchange gets its number with its first binding."""
        if isinstance(end, QueueEnd):
            return int(end.queue.number)
        assert isinstance(end, Exchange)
        if not end.number:
            end.number = self._number()
            self._record(RecordKind.EXCHANGE, end.number, self._stored(end.data))
        return end.number

    def _stored(self, declared: ExchangeRecord) -> bytes:
        namespace = self.hub.namespaces[declared.vhost].number
        return StoredExchange(namespace, declared.name, declared.type, declared.auto_delete, declared.internal,
                              declared.arguments, declared.id).encoded()

    def _record(self, kind: RecordKind, number: int, value: bytes | None) -> None:
        if self.hub.ledger.journal is not None:
            record(self.hub.ledger, kind, number, value)
            self.note(view_key(kind, number), value)

    def note(self, key: bytes, value: bytes | None) -> None:
        """Registers a change for the next checkpoint. value: None deletes the key."""
        if self.hub.ledger.journal is None:
            return
        if value is None:
            self.puts.pop(key, None)
            self.deletes.add(key)
        else:
            self.puts[key] = value

    def take_changes(self) -> tuple[dict[bytes, bytes], set[bytes]]:
        """The changes for the view since the last call."""
        taken, self.puts, self.deletes = (self.puts, self.deletes), {}, set()
        return taken


def _alternate(declared: ExchangeRecord) -> bytes | None:
    for name, kind, value in read_headers(declared.arguments) if declared.arguments else ():
        if name == ALTERNATE:
            if kind != "S":
                raise AmqpRefused(ReplyCode.PRECONDITION_FAILED,
                                  f"invalid type '{KIND_NAMES[kind]}' for arg '{shown(ALTERNATE)}' in "
                                  f"{where(declared.vhost, declared.name)}")
            return value[4:]
    return None


def _assert_equivalent(known: Exchange, declared: ExchangeRecord, durable: bool, alternate: bytes | None) -> None:
    """Refuses a declaration that differs from the existing exchange."""
    was: ExchangeRecord = known.data

    def refused(what: str, received: str, current: str) -> AmqpRefused:
        return AmqpRefused(ReplyCode.PRECONDITION_FAILED,
                           f"inequivalent arg '{what}' for {where(was.vhost, was.name)}: "
                           f"received {received} but current is {current}")

    for what, now, then in (("type", shown(declared.type), shown(was.type)), ("durable", durable, known.durable),
                            ("auto_delete", declared.auto_delete, was.auto_delete),
                            ("internal", declared.internal, was.internal)):
        if now != then:
            raise refused(what, f"'{str(now).lower()}'", f"'{str(then).lower()}'")
    if alternate != known.alternate:
        both = alternate is not None and known.alternate is not None
        raise refused(shown(ALTERNATE), *(
            "none" if one is None else f"'{shown(one)}'" if both else f"the value '{shown(one)}' of type 'longstr'"
            for one in (alternate, known.alternate)))


def _check_match(arguments: bytes) -> None:
    for name, kind, value in read_headers(arguments) if arguments else ():
        if name == b"x-match":
            if kind != "S":
                raise AmqpRefused(ReplyCode.PRECONDITION_FAILED,
                                  f"Invalid x-match field type {KIND_NAMES[kind]}; expected longstr")
            if shown(value[4:]) not in X_MATCH:
                raise AmqpRefused(ReplyCode.PRECONDITION_FAILED,
                                  f"Invalid x-match field value '{shown(value[4:])}'; "
                                  f"expected {', '.join(X_MATCH[:-1])}, or {X_MATCH[-1]}")
            return
