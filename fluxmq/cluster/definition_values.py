"""Values of the keys of queues, exchanges and bindings: JSON. docs/internals/cluster-queues.md, "Metadata".

Names are in the keys. Bytes of AMQP are there as Latin-1 in a declaration, where people may want to read them, and as
base64 elsewhere.
"""
from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from fluxmq.cluster.keys import QUEUE, binding_key, queue_key
from fluxmq.engine.ports.definitions import (
    FIRST,
    BindingDefinition,
    ExchangeDefinition,
    Placement,
    QueueDefinition,
)
from fluxmq.engine.queues.parts import whole_of
from fluxmq.engine.queues.records import stored_form
from fluxmq.model.amqp import AmqpRefused
from fluxmq.model.malformed import MALFORMED
from fluxmq.model.queue_arguments import Declared, read_arguments, spec_of
from fluxmq.model.queues import QueueSpec

__all__ = [
    "QueueData", "QueueOwner", "Unreadable", "binding_of", "data_of", "definition_key", "encode_binding",
    "encode_data", "encode_exchange", "encode_owner", "encode_queue", "exchange_of", "key_of", "owner_of", "queue_of",
]

MARK_BYTES = 12


class Unreadable(Exception):
    """A value that this version cannot use. The text says why."""


class QueueData(NamedTuple):
    """Who has a queue's data: one directory of a node, or a group of nodes that replicates it. node, disk: the node,
    and the identity of its data directory; "" of a group. id: of the queue. placement: which data that is. group: its
    number; 0: it is no group."""

    node: str
    disk: str
    id: int
    placement: Placement = FIRST
    group: int = 0

    @property
    def holder(self) -> str:
        """For a message."""
        return f"replication group {self.group}" if self.group else f"node {self.node}"


class QueueOwner(NamedTuple):
    """The node that serves a queue, while it has its lease. id: of the queue."""

    node: str
    id: int


class _Declared(msgspec.Struct, omit_defaults=True):
    """Of Declared what the key does not say. arguments: text as Latin-1."""

    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = {}


class _Queue(msgspec.Struct, omit_defaults=True):
    id: int
    spec: QueueSpec | None = None
    declared: _Declared | None = None
    node: str = ""
    divided: bool = False


class _Exchange(msgspec.Struct, omit_defaults=True):
    id: int
    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = b""


class _Binding(msgspec.Struct, omit_defaults=True):
    source_id: int
    to_exchange: bool
    destination: bytes
    destination_id: int
    key: bytes = b""
    arguments: bytes = b""


class _Data(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Either node and disk, or group. What is left out an earlier version did not know."""

    node: str = ""
    disk: str = ""
    group: Annotated[int, Meta(ge=0)] = 0
    id: int
    incarnation: Annotated[int, Meta(ge=1)] = 1
    moved: Annotated[int, Meta(ge=0)] = 0


class _Owner(msgspec.Struct):
    node: str
    id: int


_encode = msgspec.json.encode
_queue = msgspec.json.Decoder(_Queue).decode
_exchange = msgspec.json.Decoder(_Exchange).decode
_binding = msgspec.json.Decoder(_Binding).decode
_data = msgspec.json.Decoder(_Data).decode
_owner = msgspec.json.Decoder(_Owner).decode


def _text(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("latin-1")


def _name(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


def _encoded(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _decoded(value: Any) -> Any:
    return value.encode("latin-1") if isinstance(value, str) else value


def encode_queue(queue: QueueDefinition) -> bytes:
    """The declaration counts, if there is one: the settings follow from it."""
    declared = queue.declared
    if declared is None:
        return _encode(_Queue(queue.id, stored_form(queue.spec), node=queue.node, divided=queue.divided))
    arguments = {_text(name): _encoded(value) for name, value in declared.arguments.items()
                 if not isinstance(value, float) or math.isfinite(value)}
    return _encode(_Queue(queue.id, None, _Declared(declared.durable, declared.exclusive, declared.auto_delete,
                                                    arguments), queue.node))


def queue_of(namespace: bytes, name: bytes, value: bytes) -> QueueDefinition:
    """Raises Unreadable; so do the others."""
    try:
        read = _queue(value)
        if read.declared is None:
            if read.spec is None or read.spec.address != (namespace, name):
                raise Unreadable("it does not say what the queue is")
            return QueueDefinition(read.id, read.spec, None, read.node, read.divided)
        declared = Declared(namespace, name, read.declared.durable, read.declared.exclusive,
                            read.declared.auto_delete,
                            {_name(each): _decoded(item) for each, item in read.declared.arguments.items()})
        return QueueDefinition(read.id, spec_of(declared, read_arguments(declared)), declared, read.node)
    except (*MALFORMED, UnicodeError, AmqpRefused) as error:
        raise Unreadable(str(error)) from None


def encode_exchange(exchange: ExchangeDefinition) -> bytes:
    return _encode(_Exchange(exchange.id, exchange.type.decode("latin-1"), exchange.durable, exchange.auto_delete,
                             exchange.internal, exchange.arguments))


def exchange_of(namespace: bytes, name: bytes, value: bytes) -> ExchangeDefinition:
    try:
        read = _exchange(value)
        return ExchangeDefinition(read.id, namespace, name, read.type.encode("latin-1"), read.durable,
                                  read.auto_delete, read.internal, read.arguments)
    except (*MALFORMED, UnicodeError) as error:
        raise Unreadable(str(error)) from None


def encode_binding(binding: BindingDefinition) -> bytes:
    return _encode(_Binding(binding.source_id, binding.to_exchange, binding.destination, binding.destination_id,
                            binding.key, binding.arguments))


def binding_of(namespace: bytes, source: bytes, value: bytes) -> BindingDefinition:
    try:
        read = _binding(value)
    except MALFORMED as error:
        raise Unreadable(str(error)) from None
    return BindingDefinition(namespace, source, read.source_id, read.to_exchange, read.destination,
                             read.destination_id, read.key, read.arguments)


def key_of(binding: BindingDefinition) -> bytes:
    """Its key: another one for each source, destination, routing key and arguments."""
    mark = hashlib.sha256(b"%d %d " % (binding.source_id, len(binding.key)) + binding.key + binding.arguments)
    return binding_key(binding.vhost, binding.source, binding.destination, binding.destination_id,
                       mark.hexdigest()[:2 * MARK_BYTES].encode(), to_exchange=binding.to_exchange)


def definition_key(address: tuple[bytes, bytes]) -> bytes:
    """The key that defines a queue: of a partition that is a queue of its own, that of the whole queue."""
    part = whole_of(address[1])
    return queue_key(QUEUE, address[0], address[1] if part is None else part.whole)


def encode_data(data: QueueData) -> bytes:
    return _encode(_Data(node=data.node, disk=data.disk, group=data.group, id=data.id,
                         incarnation=data.placement.incarnation, moved=data.placement.moved))


def data_of(value: bytes) -> QueueData:
    try:
        read = _data(value)
    except MALFORMED as error:
        raise Unreadable(str(error)) from None
    if bool(read.group) == bool(read.node):
        raise Unreadable("it names a node and a group, or neither")
    return QueueData(read.node, read.disk, read.id, Placement(read.incarnation, read.moved), read.group)


def encode_owner(owner: QueueOwner) -> bytes:
    return _encode(_Owner(*owner))


def owner_of(value: bytes) -> QueueOwner:
    try:
        read = _owner(value)
    except MALFORMED as error:
        raise Unreadable(str(error)) from None
    return QueueOwner(read.node, read.id)
