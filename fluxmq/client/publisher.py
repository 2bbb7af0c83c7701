"""Machine. The publishing part of a client: publishes that wait for a connection, a window or an acknowledgement."""
from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from fluxmq._core.client.machine import SESSION_LOST
from fluxmq._core.client.properties import Properties
from fluxmq._core.client.publishing import Publishing
from fluxmq._core.client.session import Session
from fluxmq._core.mqtt.packets import Properties as PropertyList
from fluxmq.client.base import ClientBase
from fluxmq.client.errors import NotConnected, PublishRefused, QueueFull, SessionLost, UsageError, WindowFull
from fluxmq.client.reasons import reason_text
from fluxmq.client.results import PublishResult

__all__ = ["Payload", "Publisher"]

NOT_FOUND = 0x92    # Packet Identifier not found
Payload = bytes | str | bytearray | memoryview | None


def wake(future: asyncio.Future[None] | None) -> None:
    """Completes a future that operations wait for."""
    if future is not None and not future.done():
        future.set_result(None)


class Publisher(ClientBase):
    """Machine. max_pending: maximum number of waiting publishes."""

    def __init__(self, max_pending: int, max_queued: int, *, manual_ack: bool) -> None:
        if max_pending < 1:
            raise UsageError("max_pending must be at least 1")
        super().__init__(max_queued, manual_ack=manual_ack)
        self._max_pending = max_pending
        self._session = Session()
        self._pending: deque[tuple[Any, ...]] = deque()
        self._abandoned = False                             # some of `_pending` may be abandoned
        self._room: asyncio.Future[None] | None = None      # for publishers that wait for room in `_pending`
        self._idle: asyncio.Future[None] | None = None      # for callers that wait until nothing is in flight
        self._sent = Publishing(self)                       # result of a publish with QoS 0
        self._sent(0, 0)

    async def publish(self, topic: str | bytes, payload: Payload = b"", qos: int = 0, retain: bool = False,
                      properties: bytes | PropertyList | None = None) -> PublishResult:
        """Publish, and wait until the server has acknowledged it (QoS 1, 2) or the transport has room (QoS 0).

        Also waits for a connection and for the server's window. Raises PublishRefused, SessionLost (with lost="fail"),
        UsageError (it cannot be sent), NotConnected and the error that ended the client. A cancelled call may have
        published. MQTT 5.0 section 3.3.
        """
        while self._full():
            self.check_ended(closed=NotConnected)
            if self._room is None:
                self._room = self.new_future()
            await asyncio.shield(self._room)
        publishing = self.publish_nowait(topic, payload, qos, retain, properties)
        try:
            result: PublishResult = await publishing
        except asyncio.CancelledError:
            publishing.abandon()
            if self._pending:
                self._abandoned = True
                wake(self._room)
                self._room = None
            raise
        return result

    def _full(self) -> bool:
        """Whether max_pending publishes wait. Removes abandoned ones first."""
        if len(self._pending) >= self._max_pending and self._abandoned:
            self._pending = deque(entry for entry in self._pending if not entry[-1].abandoned)
            self._abandoned = False
        return len(self._pending) >= self._max_pending

    def publish_nowait(self, topic: str | bytes, payload: Payload = b"", qos: int = 0, retain: bool = False,
                       properties: bytes | PropertyList | None = None) -> Publishing:
        """Publish without waiting. The result may be awaited, with the outcome of publish().

        Messages are sent in the order of the calls. Raises QueueFull if max_pending wait already, NotConnected after
        the end, UsageError.
        """
        connection = self._connection
        if connection is not None and not self._pending and connection.writable:
            if qos == 0:
                connection.publish(topic, payload, 0, retain, properties)
                return self._sent
            publishing = Publishing(self)
            try:
                connection.publish(topic, payload, qos, retain, properties, publishing)
                return publishing
            except WindowFull:
                pass
        else:
            self.check_ended(closed=NotConnected)
            publishing = Publishing(self)
        if self._full():
            raise QueueFull(f"{self._max_pending} publishes wait already (max_pending)")
        # Copied, because it is sent later and the caller may change buffers and lists meanwhile.
        if isinstance(payload, (bytearray, memoryview)):
            payload = bytes(payload)
        if properties is not None and not isinstance(properties, bytes):
            properties = list(properties)
        self._pending.append((topic, payload, qos, retain, properties, publishing))
        return publishing

    def _pump(self) -> None:
        """Sends waiting publishes, as far as there is room."""
        connection = self._connection
        while self._pending and connection is not None and connection.writable:
            topic, payload, qos, retain, properties, publishing = self._pending[0]
            if not publishing.abandoned:
                try:
                    connection.publish(topic, payload, qos, retain, properties, publishing)
                except WindowFull:
                    break
                except Exception as error:
                    publishing.fail(error)
                if qos == 0:
                    publishing(0, 0)
            self._pending.popleft()
        if len(self._pending) < self._max_pending:
            wake(self._room)
            self._room = None
        if not self._pending and not self._session.outstanding:
            wake(self._idle)
            self._idle = None

    # Called by Publishing

    @property
    def answer_properties(self) -> PropertyList:
        """Properties of the acknowledgement that is being handled."""
        return self._connection.answer_properties if self._connection is not None else []

    def outcome(self, publishing: Publishing) -> PublishResult:
        """Returns or raises the result of awaiting a Publishing."""
        if publishing.error is not None:
            raise publishing.error.with_traceback(None)
        reason = publishing.reason
        if reason == 0:
            return PublishResult.SUCCESS
        if reason == SESSION_LOST:
            raise SessionLost("the server has no session any more; it is not known whether it took the message")
        if reason == NOT_FOUND:
            # PUBCOMP for a PUBREL that was sent again: the server had completed the message, and its answer was lost.
            # "This is not an error during recovery": MQTT 5.0 section 3.7.2.1.
            return PublishResult.SUCCESS
        properties = Properties(publishing.answer_properties or ())
        if reason >= 0x80:
            why = properties.text("reason_string") or reason_text(reason)
            raise PublishRefused(reason, f"the server did not take the message: {why}")
        return PublishResult(reason, properties)

    async def flush(self) -> None:
        """Wait until the server has acknowledged all publishes with QoS 1 and 2. Raises the error that ended
        the client."""
        while self._pending or self._session.outstanding or self._session.waiting_count:
            self.check_ended(closed=NotConnected)
            if self._idle is None:
                self._idle = self.new_future()
            self.waiting(1)
            try:
                await asyncio.shield(self._idle)
            finally:
                self.waiting(-1)
        if self._connection is not None:
            await self._connection.drain()

    def _fail_all(self, error: BaseException) -> None:
        """The client ended: fails everything that waits for an acknowledgement."""
        for done in self._session.abandon():
            if isinstance(done, Publishing):
                done.fail(error)
        for entry in self._pending:
            entry[-1].fail(error)
        self._pending.clear()
        for future in (self._room, self._idle):
            wake(future)
        self._room = self._idle = None
