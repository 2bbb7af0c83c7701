"""Handle. One network connection of a client: the protocol machine with a socket, callbacks, no reconnect.

What is written during a turn of the loop goes out in one piece at its end, earlier when it is much. Works on asyncio
and on uvloop, over TCP, TLS and unix sockets.
"""
from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Self

from fluxmq._core.client.machine import STATE_CLOSED, STATE_OPEN, ClientMachine
from fluxmq._core.client.message import Message
from fluxmq._core.client.properties import Properties
from fluxmq._core.client.session import Session
from fluxmq._core.mqtt.packets import ConnAck as ConnAckPacket
from fluxmq._core.mqtt.packets import Disconnect
from fluxmq.client.errors import ConnectionLost, ConnectRefused
from fluxmq.client.options import Address, ConnAck, ConnectOptions
from fluxmq.client.reasons import reason_text

__all__ = ["Connection", "OnClosed", "OnMessage"]

OnMessage = Callable[[Message], object]
OnClosed = Callable[[BaseException | None, int], object]

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0           # for the peer to read what is left
HIGH_WATER_BYTES = 1 << 20      # unsent bytes from which `writable` is false


class _Wire(asyncio.Protocol):
    """The transport's callbacks, passed on."""

    __slots__ = ("owner",)

    def __init__(self, owner: Connection) -> None:
        self.owner = owner

    def data_received(self, data: bytes) -> None:
        self.owner._received(data)

    def pause_writing(self) -> None:
        self.owner._pause_writing()

    def resume_writing(self) -> None:
        self.owner._resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self.owner._on_disconnect(error)


class Connection(ClientMachine):
    """Handle. `publish`, `subscribe`, `unsubscribe`, `ping`, `acknowledge` and `window` are the machine's.

    Belongs to one event loop and one thread. `on_message`, `on_closed` and every `done` are called by the loop and must
    not block; what they raise ends the connection and is what on_closed hears. A `done` whose answer never comes is
    not called: on_closed says that.
    """

    connack: ConnAck

    def __init__(self, options: ConnectOptions, on_message: OnMessage | None, on_closed: OnClosed | None, *,
                 manual_ack: bool, session: Session | None, republish: bool,
                 on_room: Callable[[], object] | None,
                 on_accepted: Callable[[Connection, bool], object] | None) -> None:
        super().__init__(on_message, session=session, manual_ack=manual_ack, republish=republish,
                         topic_aliases=options.topic_aliases, max_inflight=options.max_inflight)
        self.options = options
        self._on_closed = on_closed
        self._on_room = on_room
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[ConnAck] = self._loop.create_future()
        self._disconnected: asyncio.Future[None] = self._loop.create_future()
        self._room: asyncio.Future[None] | None = None       # while the transport wants no more
        self._error: BaseException | None = None
        self._reason = 0
        self._opened = False
        self._timer: asyncio.TimerHandle | None = None
        self._got_data = self._sent = True                      # since the timer looked last
        self._ping_sent = False                                  # the timer's PINGREQ is not answered
        self._paused = False                                 # nothing is read: silence says nothing about the server

    @classmethod
    async def open(cls, address: str, options: ConnectOptions | None = None, *, on_message: OnMessage | None = None,
                   on_closed: OnClosed | None = None, manual_ack: bool = False,
                   tls: ssl.SSLContext | bool | None = None, server_name: str | None = None,
                   session: Session | None = None, republish: bool = True,
                   on_room: Callable[[], object] | None = None,
                   on_accepted: Callable[[Connection, bool], object] | None = None,
                   timeout_s: float = CONNECT_TIMEOUT_S) -> Self:
        """Connect, and wait for CONNACK.

        address: "host:port", "mqtts://host", "unix:/path". on_closed(error or None, reason): once, after open has
        returned. manual_ack, session, republish: as ClientMachine. tls: a context, True for the default one;
        server_name: what the certificate must say. on_room(): there may be room for more, because something was read or
        the transport takes bytes again. on_accepted(connection, session_present): what it writes goes before what the
        session sends again. Raises ConnectRefused, ProtocolError, ConnectionLost (the server
        hung up), OSError (ssl.SSLError among them), TimeoutError, UsageError.
        """
        options = options or ConnectOptions()
        place = Address.of(address)
        self = cls(options, on_message, on_closed, manual_ack=manual_ack, session=session, republish=republish,
                   on_room=on_room, on_accepted=on_accepted)
        connect = options.packet()
        try:
            async with asyncio.timeout(timeout_s):
                await self._dial(place, place.context(tls), server_name)
                self.start(connect)
                self.connack = await self._answer
                self._opened = True
                if self._disconnected.done():
                    self._loop.call_soon(self._call_on_closed)        # it ended before anybody knew that it was open
        except BaseException as error:
            self._on_closed = None
            if self.state == STATE_OPEN:
                self.disconnect()       # given up between CONNACK and here: the server should not publish the will
            else:
                self.abort()
            if isinstance(error, TimeoutError) and not error.args:
                raise TimeoutError(f"{place} did not answer within {timeout_s:g} s") from None
            if isinstance(error, ConnectionResetError) and self._transport is None and not str(error):
                raise ConnectionResetError(f"{place} hung up in the middle of the TLS handshake; does it speak TLS "
                                           "there?") from None
            raise
        return self

    async def _dial(self, place: Address, context: ssl.SSLContext | None, server_name: str | None) -> None:
        name = (server_name or place.host or "localhost") if context is not None else None
        if place.path:
            transport, _ = await self._loop.create_unix_connection(lambda: _Wire(self), place.path, ssl=context,
                                                                   server_hostname=name)
        else:
            transport, _ = await self._loop.create_connection(lambda: _Wire(self), place.host, place.port, ssl=context,
                                                              server_hostname=name)
        self._transport = transport
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    # State

    @property
    def is_open(self) -> bool:
        """Whether publishing can succeed."""
        return self.state == STATE_OPEN

    @property
    def writable(self) -> bool:
        """False while so much is unsent that one should wait in drain()."""
        return self._room is None and self.state == STATE_OPEN

    @property
    def client_id(self) -> str:
        """The one that was asked for, or that the server gave."""
        return self.connack.properties.text("assigned_client_identifier") or self.options.client_id

    async def drain(self) -> None:
        """Send what was written, and wait until there is room for more. Raises ConnectionLost when there is no more."""
        self._flush()
        if self._room is not None:
            await asyncio.shield(self._room)
        if self.state == STATE_CLOSED:
            raise ConnectionLost(self._reason, "the connection is closed")

    def pause(self) -> None:
        """Read nothing more for now; what is here already still comes to on_message."""
        if self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._paused, self._got_data = False, True

    # The end

    def disconnect(self, reason: int = 0, properties: Properties | None = None) -> None:
        """Send what was written and DISCONNECT, then close. on_closed(None, reason) follows. MQTT 5.0 section 3.14."""
        if self.state == STATE_OPEN:
            self.leave(reason, properties)
            self._reason = reason
        self._close(None)

    def abort(self) -> None:
        """Close now, without a word; on_closed(None, 0) follows."""
        self.leave_silently()
        if self._transport is not None:
            self._transport.abort()
        else:
            self._on_disconnect(None)

    def leave_silently(self) -> None:
        """No further byte in or out."""
        self.end()
        self.take_output()

    async def closed(self) -> None:
        """Wait until the socket is closed and on_closed was called."""
        await asyncio.shield(self._disconnected)

    def _close(self, error: BaseException | None) -> None:
        """Send what there is and close."""
        transport = self._transport
        if self._error is None:
            self._error = error
        if transport is None or transport.is_closing():
            return
        self._flush()
        transport.close()
        self._stop_timer()
        self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, transport.abort)

    def _on_disconnect(self, error: Exception | None) -> None:
        if self._disconnected.done():
            return
        asked = self.state == STATE_CLOSED
        self.end()
        self._stop_timer()
        if self._error is None and not asked:
            self._error = ConnectionLost(0, f"the connection broke: {error}" if error else "the server hung up")
        self._transport = None
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
        if not self._answer.done():
            self._answer.set_exception(self._error or ConnectionLost(0, "the connection was closed"))
            self._answer.exception()        # marks the exception as retrieved: the answer may not be awaited
        self._disconnected.set_result(None)
        if self._opened:
            self._call_on_closed()

    def _call_on_closed(self) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self._error, self._reason)

    # What the machine calls

    def output_ready(self) -> None:
        self._loop.call_soon(self._flush)

    def output_full(self) -> None:
        self._flush()

    def accepted(self, session_present: bool) -> None:
        if self._on_accepted is not None:
            self._on_accepted(self, session_present)

    def connected(self, connack: ConnAckPacket) -> None:
        properties = Properties(connack.properties)
        if self._answer.done():
            return
        if connack.reason_code:
            why = properties.text("reason_string") or reason_text(connack.reason_code, self.version)
            self._error = ConnectRefused(connack.reason_code, f"the server refused the connection: {why}")
            self._answer.set_exception(self._error)
            return
        self._answer.set_result(ConnAck(connack.session_present, connack.reason_code, properties))
        if self.keep_alive:
            self._timer = self._loop.call_later(self.keep_alive / 2, self._tick)

    def dismissed(self, disconnect: Disconnect) -> None:
        properties = Properties(disconnect.properties)
        why = properties.text("reason_string") or reason_text(disconnect.reason_code, self.version)
        self._reason = disconnect.reason_code
        self._close(ConnectionLost(disconnect.reason_code, f"the server closed the connection: {why}"))

    # What the transport calls

    def _received(self, data: bytes) -> None:
        self._got_data = True
        try:
            self.feed(data)
        except Exception as error:
            self._reason = getattr(error, "reason", 0)
            self._close(error)
            return
        if self._on_room is not None:
            self._on_room()
        if self.pending_bytes:
            self._flush()

    def _flush(self) -> None:
        if self.pending_bytes and self._transport is not None:
            self._sent = True
            self._transport.write(self.take_output())

    def _pause_writing(self) -> None:
        if self._room is None:
            self._room = self._loop.create_future()

    def _resume_writing(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
        if self._on_room is not None:
            self._on_room()

    def _tick(self) -> None:
        """Twice in a keep alive: say something if nothing was said, and see whether the server lives."""
        if self.state != STATE_OPEN:
            return
        if self._ping_sent and not self._got_data and not self._paused:
            self._error = ConnectionLost(0x8D, f"nothing was heard from the server for {self.keep_alive:g} s")
            self._reason = 0x8D
            self.leave_silently()
            if self._transport is not None:
                self._transport.abort()
            return
        self._ping_sent = not (self._got_data and self._sent) and not (self._paused and self._sent)
        if self._ping_sent:
            self.ping()
            self._flush()
        self._got_data = self._sent = False
        self._timer = self._loop.call_later(self.keep_alive / 2, self._tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
