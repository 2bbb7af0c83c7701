"""A connection of a replayed client that settles queue messages by commands, which name the messages of this run.

A command is for the n-th delivery of its queue (queue_commands.py). It is sent after that delivery has arrived. A
leaving client waits for deliveries that it has commands for, as long as they follow closely (grace.py). The number of
deliveries to each consumer of a group differs between runs: one gets fewer than recorded, another more than it has
commands for. So at the end a client acknowledges its unsettled messages of queues that it settles, and one without
further commands unsubscribes from them, which leaves the remaining messages to clients with commands.
"""
from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from fluxmq._core.client.message import Message
from fluxmq._core.client.properties import Properties
from fluxmq._core.client.replay_rows import NO_VALUE
from fluxmq.spark.player.grace import Grace
from fluxmq.spark.player.links import CLOSED, OPEN, Link, Operation
from fluxmq.spark.player.operations import read_properties
from fluxmq.spark.player.queue_commands import FROM_QUEUE, queue_of
from fluxmq.spark.result import EVENTS

__all__ = ["QueueLink"]

SETTLEMENT = EVENTS.index("settlement")
PREFIX = FROM_QUEUE.encode()
DONE = (b"$ack", b"$nack", b"$reject")          # after these the client does not have the message any more
NAMING = ("message-id", "partition", "offset", "group-id")
CLASSIC = "delivery-count"                      # property that deliveries of a stream do not have


class Delivered(NamedTuple):
    """What a command needs from a delivery. classic: from a queue that settles messages, not from a stream."""

    message_id: str
    group: str
    classic: bool


class QueueLink(Link):
    """got: of each queue, its deliveries by rank; None when settled."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.got: dict[str, list[Delivered | None]] = {}
        self.filters: dict[str, set[str]] = {}                      # subscriptions to each queue, and to "" none
        self.ordered: set[str] = set()                              # queues that this client settles
        self.expected: dict[tuple[str, int], list[Operation]] = {}  # commands whose delivery has not come
        self.overdue: deque[tuple[Operation, Delivered]] = deque()  # the window was used up
        self.ending_queues = False                                  # released: others get messages without commands
        self.grace = Grace(self.clock)

    def taken(self, message: Message) -> None:
        """Called for each delivery."""
        if not message.topic.startswith(PREFIX):
            return
        told = message.parsed().user_dict
        self.grace.came()
        queue = queue_of(message.topic.decode())
        got = self.got.setdefault(queue, [])
        rank = len(got)
        got.append(Delivered(told.get("message-id", ""), told.get("group-id", ""), CLASSIC in told))
        for operation in self.expected.pop((queue, rank), ()):
            self._order(operation, queue, rank)
        # A message that arrives after UNSUBSCRIBE is delivered to others again, and not settled by this client.
        if self.ending_queues and queue in self.ordered and queue in self.filters and not self._expects(queue):
            self._finish(queue)
        if not self.expected and self.client.waiting:
            self.changed(self)                  # it waits to leave

    def perform(self, operation: Operation) -> bool:
        """A command: True when it was sent, or will be when its delivery arrives; False when it cannot be sent now."""
        queue, rank = queue_of((operation.topic or b"").decode()), operation.rank or 0
        self.ordered.add(queue)
        if rank >= len(self.got.get(queue, ())):
            self.expected.setdefault((queue, rank), []).append(operation)
            return True
        if not self._room():
            self.lane.stalled = True
            return False
        self._order(operation, queue, rank)
        return True

    def _room(self) -> bool:
        return self.state == OPEN and self.connection.window > 0 and self.connection.writable and not self.overdue

    def _order(self, operation: Operation, queue: str, rank: int) -> None:
        delivered = self.got[queue][rank]
        if delivered is None:
            return                              # settled already: the broker would refuse it, as recorded
        if (operation.topic or b"").endswith(DONE):
            self.got[queue][rank] = None
            self._credit(queue.encode(), by_order=True)
        if self._room():
            self._send(operation, delivered)
        else:
            self.overdue.append((operation, delivered))

    def _send(self, operation: Operation, delivered: Delivered) -> None:
        asked = read_properties(operation.properties, operation.copy)
        pairs = [("message-id", delivered.message_id)]
        if "group-id" in asked.user_dict:
            pairs.append(("group-id", delivered.group))
        pairs += [pair for pair in asked.user if pair[0] not in NAMING]
        others = [entry for entry in asked if not isinstance(entry[1], tuple)]
        self._publish(operation.topic or b"", operation.payload or b"", operation.qos, Properties(others, user=pairs),
                      operation.due)

    def _publish(self, topic: bytes, payload: bytes, qos: int, properties: Properties, due: int) -> None:
        sent, op = self.clock(), self._next_op()
        row = self.rows.record(SETTLEMENT, self.lane, op, topic, sent, due=due, qos=qos, size=len(payload),
                               unfinished=qos > 0)

        def answered(_packet_id: int, reason: int) -> None:
            self.rows.acknowledge(row, self.clock(), max(reason, 0))
            self._answered()
            while self.overdue and self.connection.window > 0 and self.state == OPEN:
                self._send(*self.overdue.popleft())

        if qos:
            self.connection.publish(topic, payload, qos, False, properties, answered)
            self.unanswered += 1
        else:
            self.connection.publish(topic, payload, 0, False, properties)

    def _take_held(self, message: Message) -> None:
        super()._take_held(message)
        self.taken(message)

    def _take(self, message: Message) -> None:
        self.lane.take(message)
        self.taken(message)

    def _taker(self) -> Callable[[Message], object]:
        return self._take

    def may_end(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Also waits until deliveries with commands have arrived, or none arrives any more."""
        left = self.grace.left_s(bool(self.expected or self.overdue))
        if left:
            loop.call_later(left + 0.01, self.changed, self)
            return False
        return super().may_end(loop)

    def release(self) -> None:
        """Acknowledges held deliveries and the client's unsettled messages of queues that it settles, and unsubscribes
        from those without further commands. So a replay does not drain what the recording left in a queue."""
        if self.manual:
            super().release()
        self.ending_queues = True
        for queue in sorted(self.ordered):
            self._finish(queue)

    def _expects(self, queue: str) -> bool:
        return any(waiting == queue for waiting, _ in self.expected)

    def _finish(self, queue: str) -> None:
        for rank, delivered in enumerate(self.got.get(queue, ())):
            if delivered is not None and delivered.classic and self._room():
                self.got[queue][rank] = None
                pairs = [("message-id", delivered.message_id), ("group-id", delivered.group)]
                self._publish(f"{FROM_QUEUE}{queue}/$ack".encode(), b"", 1, Properties(user=pairs), NO_VALUE)
        if self.state == OPEN and not self._expects(queue):
            filters = self.filters.pop(queue, None)
            if filters:
                self.unsubscribe(sorted(filters))

    def subscribe(self, filters: list[tuple[str, int]], properties: Any = None, due: int = NO_VALUE) -> None:
        super().subscribe(filters, properties, due)
        for name, _ in filters:
            self.filters.setdefault(queue_of(name[max(name.find(FROM_QUEUE), 0):]), set()).add(name)

    def _closed(self, error: BaseException | None, reason: int) -> None:
        super()._closed(error, reason)
        assert self.state == CLOSED
        self.expected.clear()
        self.overdue.clear()
