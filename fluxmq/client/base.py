"""Machine. What all halves of a client ask: its connection of this moment, whether it ended, whether more is read."""
from __future__ import annotations

import asyncio

from fluxmq.client.connection import Connection
from fluxmq.client.errors import NotConnected, UsageError

__all__ = ["ClientBase"]


class ClientBase:
    """Machine. Root of Client; `_connection` is the one of this moment, None while there is none.

    max_queued: messages that wait to be read; when as many do, nothing more is read from the socket, except while
    somebody waits for an answer. manual_ack: as of Client.
    """

    _loop: asyncio.AbstractEventLoop
    _came: asyncio.Event

    def __init__(self, max_queued: int, *, manual_ack: bool) -> None:
        if max_queued < 1:
            raise UsageError("max_queued must be at least 1")
        self.manual_ack = manual_ack
        self.dropped = 0            # messages of QoS 0 that found no room
        self._connection: Connection | None = None
        self._ended = False
        self._error: BaseException | None = None
        self._max_queued = max_queued
        self._queued = 0
        self._waiters = 0
        self._paused = False

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None and self._connection.is_open

    @property
    def ended(self) -> bool:
        """Whether it was closed, or cannot connect again."""
        return self._ended

    @property
    def connection(self) -> Connection | None:
        """The connection of this moment, None while there is none. For what Client does not do."""
        return self._connection

    async def wait_connected(self) -> None:
        """Wait for a connection. Raises what ended the client."""
        while not self.connected:
            self.check_ended(closed=NotConnected)
            self._came.clear()          # it may still say so of a connection that is ending
            await self._came.wait()

    def check_ended(self, closed: type[Exception] = StopAsyncIteration) -> None:
        """Raises what ended the client; `closed` when nobody wanted it otherwise. Nothing while it goes on."""
        if self._ended:
            if self._error is not None:
                raise self._error.with_traceback(None)      # the same one each time: its traceback would grow
            raise closed("the client was closed")
        if not hasattr(self, "_loop"):
            raise NotConnected("the client was not started; `async with client:` or `await client.start()` does it")

    def new_future(self) -> asyncio.Future[None]:
        return self._loop.create_future()

    def taken(self, count: int) -> None:
        """A reader took messages out of an inbox."""
        self._queued -= count
        if self._paused and self._queued <= self._max_queued // 2:
            self._check_reading()

    def waiting(self, by: int) -> None:
        """Somebody begins or ends to wait for an answer: until it came, everything is read."""
        self._waiters += by
        self._check_reading()

    def _check_reading(self) -> None:
        connection = self._connection
        if connection is None:
            return
        if self._paused:
            if self._waiters or self._queued <= self._max_queued // 2:
                self._paused = False
                connection.resume_reading()
        elif self._queued >= self._max_queued and not self._waiters:
            self._paused = True
            connection.pause()
