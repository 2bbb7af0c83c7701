"""An AMQP 0-9-1 client with one channel: what the demo traffic and the checks need, with futures for answers."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.amqp091.properties import encode_properties
from fluxmq._core.client.amqp091_machine import AmqpLogin, AmqpMessage, AmqpRefused
from fluxmq.client.amqp_connection import AmqpConnection

__all__ = ["AmqpClient", "AmqpRefused"]

CHANNEL = 1
CONNECT_S = 10.0
PERSISTENT = 2


class AmqpClient:
    """`await open()`, then everything else; it ends with the connection, and does not come back. name: of the
    connection. on_message: takes deliveries."""

    def __init__(self, address: str, name: str, on_message: Callable[[AmqpMessage], None] | None = None) -> None:
        self._address, self._on_message = address, on_message
        self._connection = AmqpConnection(AmqpLogin("demo", "demo", "/", "fluxmq tryout", name), self, self._on_lost,
                                          lambda: None)
        self._confirms: dict[int, asyncio.Future[bool]] | None = None     # by number of the publish; None: no confirms
        self._published = 0
        self.ended = asyncio.Event()
        self.why: AmqpRefused | None = None

    async def open(self, *, confirms: bool = False) -> None:
        """Raises OSError, AmqpRefused."""
        await self._connection.open(self._address, CONNECT_S)
        await self.call(m.ChannelOpen())
        if confirms:
            await self.call(m.ConfirmSelect())
            self._confirms = {}

    async def call(self, method: m.Method) -> Any:
        """Its answer. Raises AmqpRefused, also when the connection ends."""
        if self.why is not None:
            raise self.why
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(found: Any, why: AmqpRefused | None) -> None:
            if not answer.done():
                if why is None:
                    answer.set_result(found)
                else:
                    answer.set_exception(why)

        self._connection.call(CHANNEL, method, done)
        return await answer

    async def consume(self, queue: str, prefetch: int) -> None:
        """Raises AmqpRefused."""
        await self.call(m.BasicQos(prefetch_count=prefetch))
        await self.call(m.BasicConsume(queue=queue))

    def publish(self, key: str, body: bytes, headers: dict[str, str] | None = None,
                exchange: str = "") -> asyncio.Future[bool]:
        """Whether the broker has it; without confirms that it was sent. key: the name of a queue, or a routing key. The
        result of a publish whose connection ends before its confirm is AmqpRefused. Raises AmqpRefused."""
        if self.why is not None:
            raise self.why
        properties: dict[str, Any] = {"delivery_mode": PERSISTENT}
        if headers:
            properties["headers"] = headers
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._confirms is None:
            answer.set_result(True)
        else:
            self._published += 1
            self._confirms[self._published] = answer
        self._connection.publish(CHANNEL, m.BasicPublish(exchange=exchange, routing_key=key),
                                 encode_properties(properties), body)
        return answer

    def ack(self, tag: int) -> None:
        self._settle(m.BasicAck(delivery_tag=tag))

    def nack(self, tag: int, *, requeue: bool) -> None:
        self._settle(m.BasicNack(delivery_tag=tag, requeue=requeue))

    def _settle(self, method: m.Method) -> None:
        if self.why is None:
            self._connection.cast(CHANNEL, method)

    def abort(self) -> None:
        """Ends like a client that lost power."""
        self._connection.abort()

    async def close(self) -> None:
        """Ends properly, if it is connected."""
        if self.why is None:
            self._connection.close()
            await self.ended.wait()

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────

    def on_delivery(self, message: AmqpMessage) -> None:
        if self._on_message is not None:
            self._on_message(message)

    def on_returned(self, message: AmqpMessage) -> None:
        """Not expected: nothing is published as mandatory."""

    def on_confirm(self, channel: int, number: int, multiple: bool, good: bool) -> None:
        waiting = self._confirms or {}
        for one in [one for one in waiting if one <= number] if multiple else [number]:
            answer = waiting.pop(one, None)
            if answer is not None and not answer.done():
                answer.set_result(good)

    def on_cancelled(self, channel: int, tag: str) -> None:
        self._end(AmqpRefused(0, "the consumer was cancelled"))
        self.abort()

    def on_channel_closed(self, channel: int, why: AmqpRefused) -> None:
        self._end(why)
        self.abort()

    def on_blocked(self, blocked: bool) -> None:
        """The socket shows it."""

    def on_closed(self, why: AmqpRefused) -> None:
        self._end(why)

    def _on_lost(self, why: AmqpRefused) -> None:
        self._end(why)

    def _end(self, why: AmqpRefused) -> None:
        if self.why is None:
            self.why = why
            self.ended.set()
            for answer in (self._confirms or {}).values():
                if not answer.done():
                    answer.set_exception(why)
                    answer.exception()      # seen, though nobody may wait any more
