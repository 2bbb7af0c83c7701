"""Which messages `fluxmq sub` has printed, so that none is printed twice when the broker sends it again after a broken
connection, because the acknowledgement was lost with it.

| what | was printed if |
|---|---|
| of a topic, QoS 1 and 2 | it comes with DUP, and this packet identifier was last that of the same message |
| retained | the same message was the last one of its topic: it was subscribed anew, on a new session |
| of a classic queue | it comes again (delivery-count), and the message of this name (message-id) was the same |
| of a stream | the connection was lost since, and its offset is not above the highest of its partition |

A queue that is deleted and made anew gives out the same names again, for other messages. Each memory is limited: the
limit is above what a broker may have in flight (Receive Maximum), so only retained messages of very many topics may
come twice.
"""
from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from fluxmq.client import Delivery, QueueMessage

__all__ = ["Printed"]

LIMIT = 1 << 16
K = TypeVar("K")
_Place = tuple[str, str, str]   # queue, group, partition


class Printed:
    """limit: of each memory."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._lost = False
        self._packets: OrderedDict[int, int] = OrderedDict()
        self._topics: OrderedDict[str, int] = OrderedDict()
        self._names: OrderedDict[tuple[_Place, int], int] = OrderedDict()
        self._highest: dict[_Place, int] = {}

    def connection_lost(self) -> None:
        """The broker may send anything again that was sent since the beginning."""
        self._lost = True

    def add(self, message: Delivery) -> None:
        """It was printed."""
        digest = _digest(message)
        if message.qos:
            self._keep(self._packets, message.packet_id, digest)
        self._keep(self._topics, message.topic, digest)

    def has(self, message: Delivery) -> bool:
        """Whether it was."""
        digest = _digest(message)
        if message.qos and message.dup and self._packets.get(message.packet_id) == digest:
            return True
        return message.retain and self._topics.get(message.topic) == digest

    def add_queued(self, message: QueueMessage) -> None:
        """As add, of a queue or stream."""
        place, offset = _place(message)
        self._keep(self._names, (place, offset), _digest(message))
        self._highest[place] = max(self._highest.get(place, -1), offset)

    def has_queued(self, message: QueueMessage) -> bool:
        """As has, of a queue or stream."""
        place, offset = _place(message)
        known = self._names.get((place, offset))
        if "delivery-count" in message.properties.user_dict:
            return message.redelivered and known == _digest(message)
        if not self._lost or offset > self._highest.get(place, -1):
            return False
        if known is not None and known != _digest(message):     # of a stream that was made anew
            self._highest[place] = -1
            return False
        return True

    def _keep(self, memory: OrderedDict[K, int], key: K, value: int) -> None:
        memory[key] = value
        memory.move_to_end(key)
        if len(memory) > self._limit:
            memory.popitem(last=False)


def _digest(message: Delivery | QueueMessage) -> int:
    return hash((message.topic, message.payload))


def _place(message: QueueMessage) -> tuple[_Place, int]:
    """Where it is, and its offset there."""
    user = message.properties.user_dict
    partition, _, offset = user.get("message-id", "").partition(":")
    return (message.topic.split("/")[1], user.get("group-id", ""), partition), int(offset) if offset.isdigit() else -1
