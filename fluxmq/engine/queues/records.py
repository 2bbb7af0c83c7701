"""Records of the cold operations of queues in journal and view (docs/internals/queues.md, Records)."""
from __future__ import annotations

import struct
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.memory.commits import Line
from fluxmq._core.memory.ledger import Ledger
from fluxmq.engine.ports.definitions import FIRST, Placement
from fluxmq.engine.queues.retry import UNSPECIFIED, RetryPolicy
from fluxmq.model.queue_arguments import Declared, read_arguments, spec_of
from fluxmq.model.queues import QueueSpec
from fluxmq.model.raft import QueueReplication

__all__ = ["HAD", "MOVING", "RELEASED", "GroupRecord", "LogMeta", "LogRecord", "Origin", "QueueRecord", "is_moving",
           "origin_body", "origin_in", "produced_body", "produced_in", "record", "stored_form"]

MOVING = "$moving-"  # and the identity of the queue, in hex: the name of a copy that is not the queue yet
_MOVING = MOVING.encode()


def is_moving(name: bytes) -> bool:
    """Whether a queue of this name is a copy that has come from another node, or a part of one (moves.py)."""
    return name.startswith(_MOVING)


# What a QUEUE_ORIGIN says of a message of QoS 2, by (name, packet identifier, use): _core/hub/origins.
HAD = 0
RELEASED = 1
Origin = tuple[int, int, int]
_ORIGIN = struct.Struct(">QHQB")

# Fields that cannot be negative are checked by their decoder, at no cost; msgpack has nothing above a u64.
Count = Annotated[int, Meta(ge=0)]


class LogRecord(msgspec.Struct, array_like=True, frozen=True):
    """One log of a queue."""

    number: Annotated[int, Meta(ge=1)]
    lane: Count


def stored_form(spec: QueueSpec) -> Any:
    """What a record of the queue, or its entry in etcd, has of it: the spec, or a map with its keys. A queue that says
    nothing of replication has no such key, so that an earlier version, which would refuse it, reads it."""
    if spec.replication != QueueReplication():
        return spec
    return {key: getattr(spec, key) for key in QueueSpec.__struct_fields__ if key != "replication"}


class QueueRecord(msgspec.Struct, array_like=True):
    """A queue. spec or declared: its declaration as under `queues:`, or by AMQP. logs: partition-major. delay: number
    of its delay log and of the group that settles there; 0 = none. namespace: its number in the line of the record;
    spec and declared are written as if it were "/". An earlier version wrote the name into `declared`. identity: in the
    cluster; 0, and not written: no other node knows it. incarnation, moved: of Placement; those of the first one are
    not written, nor were they by an earlier version."""

    spec: QueueSpec | None
    logs: list[LogRecord]
    delay: Count = 0
    delay_group: Count = 0
    declared: Declared | None = None
    namespace: Count = 0
    identity: Count = 0
    incarnation: Annotated[int, Meta(ge=1)] = 1
    moved: Count = 0

    @property
    def placement(self) -> Placement:
        """Which data of the queue this is."""
        return Placement(self.incarnation, self.moved)

    def encoded(self) -> bytes:
        """As MessagePack."""
        unsaid = 0 if self.placement != FIRST else 2 if self.identity else 3
        fields = list(msgspec.structs.astuple(self))
        if self.spec is not None:
            fields[0] = stored_form(self.spec)
        return msgspec.msgpack.encode(fields[:-unsaid] if unsaid else fields)

    def declaration(self) -> QueueSpec:
        """The queue's declaration as under `queues:`. Raises CorruptError."""
        if self.declared is not None:
            return spec_of(self.declared, read_arguments(self.declared))
        if self.spec is None:
            raise CorruptError("the record of a queue does not say what the queue is")
        return self.spec


class GroupRecord(msgspec.Struct, array_like=True, frozen=True):
    """A group of a queue. pattern: the filter below `$queue/<name>/` that its subscriptions have. retry_policy: what
    its consumers set."""

    queue: Count
    name: bytes
    mode: str = "shared"
    pattern: bytes = b""
    retry_policy: RetryPolicy = UNSPECIFIED


class LogMeta(msgspec.Struct, array_like=True):
    """A log in the view. first, next: offsets; segments have all kept messages below next. safe: the next that was
    synced."""

    first: Count
    next: Count
    safe: Count


def record(ledger: Ledger, kind: RecordKind, number: int, body: object = None, line: Line | None = None) -> None:
    """Writes a record that begins with a number, followed by msgpack, or by bytes unchanged. line: in which the number
    is unique; None: the journal."""
    more = b"" if body is None else body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    ledger.write(kind, number.to_bytes(8, "big") + more, line)


# Bodies of records, behind the number of their queue.

def produced_body(name: bytes, known: tuple[int, int]) -> bytes:
    """Of a PRODUCED; known: (highest, bitmap), as in deduplication.py."""
    highest, bits = known
    return (highest.to_bytes(8, "big") + len(name).to_bytes(4, "big") + name
            + bits.to_bytes(-(-bits.bit_length() // 8), "big"))


def produced_in(body: bytes) -> tuple[bytes, tuple[int, int]]:
    """Decodes produced_body(). Raises CorruptError."""
    end = 12 + int.from_bytes(body[8:12], "big")
    if len(body) < end:
        raise CorruptError(f"what a producer has sent has {len(body)} bytes, and is shorter than it says")
    return body[12:end], (int.from_bytes(body[:8], "big"), int.from_bytes(body[end:], "big"))


def origin_body(origin: Origin, what: int) -> bytes:
    """Of a QUEUE_ORIGIN; what: HAD or RELEASED."""
    return _ORIGIN.pack(*origin, what)


def origin_in(body: bytes) -> tuple[Origin, int]:
    """Decodes origin_body(). Raises CorruptError."""
    if len(body) != _ORIGIN.size or body[-1] > RELEASED:
        raise CorruptError(f"the origin of a queue's message has {len(body)} bytes, or says what nobody knows")
    name, packet_id, use, what = _ORIGIN.unpack(body)
    return (name, packet_id, use), what
