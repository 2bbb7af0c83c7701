"""One AMQP 0-9-1 connection on asyncio: `AmqpMachine` with a socket.

For the programs of this package (replay, try-out). The public client speaks MQTT.
"""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.client.amqp091_machine import AmqpEvents, AmqpLogin, AmqpMachine, AmqpRefused
from fluxmq._core.errors import FluxError
from fluxmq.client.options import Address

__all__ = ["AmqpConnection"]

WRITE_HIGH = 1 << 20


class AmqpConnection(asyncio.Protocol):
    """events: as of the machine; `on_lost(why)` is called once, after `open` has returned, when either side has closed
    the socket. on_room: called when more may be written. Writes are gathered and sent once per turn of the loop."""

    def __init__(self, login: AmqpLogin, events: AmqpEvents, on_lost: Callable[[AmqpRefused], None],
                 on_room: Callable[[], None]) -> None:
        self.machine = AmqpMachine(login, events)
        self.on_lost, self.on_room = on_lost, on_room
        self.loop = asyncio.get_running_loop()
        self.transport: Any = None
        self.writable = True
        self.why: AmqpRefused | None = None
        self.opened: asyncio.Future[None] = self.loop.create_future()
        self.disconnected: asyncio.Future[None] = self.loop.create_future()
        self._flushing = False

    async def open(self, address: str, timeout_s: float) -> None:
        """Logs in. Raises OSError, TimeoutError, AmqpRefused; afterwards `opened` has its result."""
        place = Address.of(address)
        try:
            async with asyncio.timeout(timeout_s):
                if place.path:
                    await self.loop.create_unix_connection(lambda: self, place.path)
                else:
                    await self.loop.create_connection(lambda: self, place.host, place.port)
                self.flush()
                await self.opened
        except BaseException:
            self.opened.cancel()
            self.abort()
            raise

    # ── out ──────────────────────────────────────────────────────────────────────────────────────────────────

    def call(self, channel: int, method: m.Method, done: Callable[[Any, AmqpRefused | None], None]) -> None:
        self.machine.call(channel, method, done)
        self.flush()

    def cast(self, channel: int, method: m.Method) -> None:
        self.machine.cast(channel, method)
        self.flush()

    def publish(self, channel: int, method: m.BasicPublish, properties: bytes, body: bytes) -> None:
        self.machine.publish(channel, method, properties, body)
        self.flush()

    def close(self, text: str = "") -> None:
        """Sends connection.close with a reply text; the socket is closed after the answer."""
        self.machine.close(text)
        self.flush()

    def abort(self) -> None:
        """Ends the connection without closing it properly, like a client that lost power."""
        if self.transport is not None:
            self.transport.abort()

    async def closed(self) -> None:
        """Waits until the socket is closed."""
        await asyncio.shield(self.disconnected)

    def flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        machine = self.machine
        if machine.out and self.transport is not None and not self.transport.is_closing():
            data, machine.out = bytes(machine.out), bytearray()
            self.transport.write(data)
        if machine.closed and self.transport is not None:
            self.transport.close()

    # ── asyncio ──────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=WRITE_HIGH)

    def data_received(self, data: bytes) -> None:
        try:
            self.machine.feed(data)
        except FluxError as error:
            self.why = AmqpRefused(0, str(error))
            self.abort()
            return
        if self.machine.open and not self.opened.done():
            self.opened.set_result(None)
        self.flush()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.on_room()

    def connection_lost(self, error: Exception | None) -> None:
        why = self.why or AmqpRefused(0, str(error or "the server closed the connection"))
        self.machine.fail(why)
        if not self.opened.done():
            self.opened.set_exception(why)
        elif not self.opened.cancelled():
            self.on_lost(why)
        self.disconnected.set_result(None)
