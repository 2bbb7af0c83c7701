"""A queue whose partitions are queues of their own, at nodes of a cluster: their names, settings and identities.

    orders, identity i, 2 partitions    ─►  $part-0-2-orders, identity i + 1;  $part-1-2-orders, identity i + 2

No client can name a partition's queue. All follows from the definition of the whole queue, so a node that knows one
knows the others.
"""
from __future__ import annotations

from typing import NamedTuple

import msgspec

from fluxmq._core.queue.queue import Queue
from fluxmq.engine.ports.definitions import QueueDefinition
from fluxmq.model.queues import QueueLimits, QueueSpec

__all__ = ["PART", "Part", "is_part", "part_identity", "part_name", "part_of", "partition_in_whole", "parts_of",
           "shown_queue", "whole_of"]

PART = "$part-"
_PREFIX = PART.encode()
DIGITS_MAX = 4
IDENTITY_MASK = (1 << 64) - 1


def is_part(name: bytes) -> bool:
    """Whether a queue of this name is a partition of another one."""
    return name.startswith(_PREFIX) and whole_of(name) is not None


def shown_queue(spec: QueueSpec) -> str:
    """The name of a queue as people read it; of a partition's queue `orders, partition 0`."""
    part = whole_of(spec.raw)
    if part is None:
        return spec.shown
    whole = msgspec.structs.replace(spec, name=part.whole.decode("utf-8", "surrogateescape")).shown
    return f"{whole}, partition {part.partition}"


def part_name(name: bytes, partition: int, partitions: int) -> bytes:
    """The name of a partition's queue. name: of the whole queue."""
    return _PREFIX + b"%d-%d-" % (partition, partitions) + name


class Part(NamedTuple):
    """What the name of a partition's queue says. whole: the name of the whole queue, which has so many partitions."""

    partition: int
    partitions: int
    whole: bytes


def whole_of(name: bytes) -> Part | None:
    """What the name of a queue says, if it is that of a partition."""
    if not name.startswith(_PREFIX):
        return None
    at, _, rest = name[len(PART):].partition(b"-")
    count, _, whole = rest.partition(b"-")
    if not (whole and at.isdigit() and count.isdigit() and len(at) <= DIGITS_MAX and len(count) <= DIGITS_MAX):
        return None
    return Part(int(at), int(count), whole)


def partition_in_whole(queue: Queue, log: int) -> int:
    """The number of a partition, as clients know it. log: index of a log in a queue, or in the partition's queue."""
    part = whole_of(queue.name)
    return part.partition if part is not None else queue.partition_at(log)


def _each(limit: int, partitions: int) -> int:
    return -(-limit // partitions)


def part_spec(spec: QueueSpec, partition: int) -> QueueSpec:
    """Of a partition: limits of the whole are divided, and its dead letters go where those of the whole do. It captures
    no topics: the whole does."""
    limits, count = spec.limits, spec.partitions
    return msgspec.structs.replace(
        spec, name=part_name(spec.raw, partition, count).decode("utf-8", "surrogateescape"), partitions=1, topics=(),
        limits=QueueLimits(max_message_size=limits.max_message_size, max_depth=_each(limits.max_depth, count),
                           max_bytes=_each(limits.max_bytes, count), message_ttl=limits.message_ttl),
        dlq=msgspec.structs.replace(spec.dlq, topic=spec.dead_letter_queue))


def part_identity(identity: int, partition: int) -> int:
    """identity: of the whole queue."""
    return (identity + 1 + partition) & IDENTITY_MASK


def part_of(definition: QueueDefinition, partition: int) -> QueueDefinition:
    """The definition of a partition."""
    return QueueDefinition(part_identity(definition.id, partition), part_spec(definition.spec, partition))


def parts_of(definition: QueueDefinition) -> list[QueueDefinition]:
    """Of all partitions; none if all of the queue is at one node."""
    return [part_of(definition, at) for at in range(definition.spec.partitions)] if definition.divided else []
