"""Received messages and the queues in which they wait for their readers."""
from __future__ import annotations

import asyncio
from collections import deque

from fluxmq._core.client.message import Message
from fluxmq._core.client.properties import Properties
from fluxmq.client.base import ClientBase
from fluxmq.client.connection import Connection
from fluxmq.client.errors import UsageError

__all__ = ["Delivery", "Inbox"]


class Delivery:
    """A received message. MQTT 5.0 section 3.3.

    topic: text. payload: bytes. qos, retain, dup. properties: with names, empty before MQTT 5.
    """

    __slots__ = ("_connection", "_message")

    def __init__(self, message: Message, connection: Connection) -> None:
        self._message = message
        self._connection = connection

    @property
    def topic(self) -> str:
        return self._message.topic.decode()

    @property
    def payload(self) -> bytes:
        return self._message.payload

    @property
    def qos(self) -> int:
        return self._message.qos

    @property
    def retain(self) -> bool:
        return self._message.retain

    @property
    def dup(self) -> bool:
        return self._message.dup

    @property
    def packet_id(self) -> int:
        """Of QoS 1 and 2: with `dup` it says, after a reconnect, which message it is that comes again."""
        return self._message.packet_id

    @property
    def properties(self) -> Properties:
        return self._message.parsed()

    @property
    def text(self) -> str:
        """The payload as UTF-8. Raises UnicodeDecodeError."""
        return self._message.payload.decode()

    async def ack(self) -> bool:
        """Acknowledge it now (QoS 1 and 2). Required with manual_ack.

        Returns False if it was acknowledged before, or its connection has ended and the server will resend it.
        """
        return self.settle()

    def settle(self, reason: int = 0) -> bool:
        """As ack, without await. reason: 0x80 or above refuses the message (MQTT 5)."""
        return self._connection.acknowledge(self._message, reason)

    def __repr__(self) -> str:
        return f"Delivery(topic={self.topic!r}, payload={self.payload[:64]!r}, qos={self.qos})"


class Inbox:
    """Messages that wait for one reader: `async for delivery in inbox`.

    Unless `manual`, a message is acknowledged when the reader asks for the next one. The iteration ends when the client
    is closed and no messages wait; it raises the error that ended the client, if any.
    """

    def __init__(self, client: ClientBase, *, manual: bool) -> None:
        self._client = client
        self._manual = manual
        self._waiting: deque[Delivery] = deque()
        self._last: Delivery | None = None
        self._reader: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.drop_reason = 0        # reason code with which discarded messages are acknowledged

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self.wake()

    def wake(self) -> None:
        """Wakes the reader."""
        if self._reader is not None:
            if not self._reader.done():
                self._reader.set_result(None)
            self._reader = None

    def clear(self) -> int:
        """Discards waiting messages after the connection has ended, because the server resends unacknowledged ones.

        Keeps QoS 0, which is not resent. Returns how many were discarded.
        """
        kept = [delivery for delivery in self._waiting if delivery.qos == 0]
        gone = len(self._waiting) - len(kept)
        self._waiting = deque(kept)
        return gone

    def skip(self) -> None:
        """The last taken message must not be acknowledged."""
        self._last = None

    def drop(self) -> int:
        """There is no reader any more: acknowledges all messages, which would otherwise count against the Receive
        Maximum until the connection ends. Returns how many waited."""
        last, self._last = self._last, None
        if last is not None and not self._manual:
            last.settle(self.drop_reason)
        return sum(1 for delivery in self.drain() if delivery.settle(self.drop_reason) or True)

    def drain(self) -> list[Delivery]:
        """Removes and returns the waiting messages."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def fail(self, error: Exception) -> None:
        """There will be no more messages: the reader gets the error once."""
        self._error = error
        self.wake()

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> Delivery:
        last, self._last = self._last, None
        if last is not None and not self._manual:
            last.settle()
        while not self._waiting:
            self._client.check_ended()
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._reader is not None and not self._reader.done():
                raise UsageError("these messages have a reader already; there is one at a time")
            self._reader = self._client.new_future()
            await self._reader
        delivery = self._waiting.popleft()
        self._client.taken(1)
        self._last = delivery
        return delivery
