"""Machine. State that all parts of a client share: current connection, end, whether the socket is read."""
from __future__ import annotations

import asyncio

from fluxmq.client.connection import Connection
from fluxmq.client.errors import NotConnected, UsageError

__all__ = ["ClientBase"]


class ClientBase:
    """Machine. Base class of Client; `_connection` is the current connection or None.

    max_queued: number of unread messages at which the socket is not read any more, except while an operation waits for
    an answer. manual_ack: as of Client.
    """

    _loop: asyncio.AbstractEventLoop
    _came: asyncio.Event

    def __init__(self, max_queued: int, *, manual_ack: bool) -> None:
        if max_queued < 1:
            raise UsageError("max_queued must be at least 1")
        self.manual_ack = manual_ack
        self.dropped = 0            # QoS 0 messages discarded for lack of room
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
        """Whether it was closed or has given up connecting."""
        return self._ended

    @property
    def connection(self) -> Connection | None:
        """The current connection or None. For operations that Client lacks."""
        return self._connection

    async def wait_connected(self) -> None:
        """Wait for a connection. Raises what ended the client."""
        while not self.connected:
            self.check_ended(closed=NotConnected)
            self._came.clear()          # it may still be set for a connection that is ending
            await self._came.wait()

    def check_ended(self, closed: type[Exception] = StopAsyncIteration) -> None:
        """If the client has ended, raises the error, or `closed` if it was closed."""
        if self._ended:
            if self._error is not None:
                raise self._error.with_traceback(None)      # it is raised repeatedly: its traceback would grow
            raise closed("the client was closed")
        if not hasattr(self, "_loop"):
            raise NotConnected("the client was not started; `async with client:` or `await client.start()` does it")

    def new_future(self) -> asyncio.Future[None]:
        return self._loop.create_future()

    def taken(self, count: int) -> None:
        """A reader has taken messages from an inbox."""
        self._queued -= count
        if self._paused and self._queued <= self._max_queued // 2:
            self._check_reading()

    def waiting(self, by: int) -> None:
        """An operation begins (1) or ends (-1) to wait for an answer; meanwhile the socket is read in any case."""
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
