"""Handle. One network connection of a client: the protocol machine with a socket and callbacks, without reconnect.

Output of one turn of the loop is sent in one piece at its end, or earlier if it is large. Works on asyncio and uvloop,
over TCP, TLS and unix sockets.
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
CLOSE_TIMEOUT_S = 5.0           # for the peer to read the remaining output
HIGH_WATER_BYTES = 1 << 20      # unsent bytes from which `writable` is false


class _Wire(asyncio.Protocol):
    """Passes the transport's callbacks on."""

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
    """Handle. ClientMachine has `publish`, `subscribe`, `unsubscribe`, `ping`, `acknowledge` and `window`.

    Belongs to one event loop and one thread. The loop calls `on_message`, `on_closed` and every `done`, which must not
    block; if they raise, the connection ends, and on_closed gets the error. A `done` whose answer never arrives is not
    called: on_closed reports that.
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
        self._room: asyncio.Future[None] | None = None       # while the transport is full
        self._error: BaseException | None = None
        self._reason = 0
        self._opened = False
        self._timer: asyncio.TimerHandle | None = None
        self._got_data = self._sent = True                  # since the last tick of the timer
        self._ping_sent = False                                  # the timer's PINGREQ has no answer yet
        self._paused = False                                 # the socket is not read, so silence proves nothing

    @classmethod
    async def open(cls, address: str, options: ConnectOptions | None = None, *, on_message: OnMessage | None = None,
                   on_closed: OnClosed | None = None, manual_ack: bool = False,
                   tls: ssl.SSLContext | bool | None = None, server_name: str | None = None,
                   session: Session | None = None, republish: bool = True,
                   on_room: Callable[[], object] | None = None,
                   on_accepted: Callable[[Connection, bool], object] | None = None,
                   timeout_s: float = CONNECT_TIMEOUT_S) -> Self:
        """Connect, and wait for CONNACK.

        address: "host:port", "mqtts://host", "unix:/path". on_closed(error or None, reason): called once, after open
        has returned. manual_ack, session, republish: as ClientMachine. tls: a context, or True for the default
        one; server_name: expected in the certificate. on_room(): there may be room for output, because something was
        read or the transport accepts bytes again. on_accepted(connection, session_present): packets written in it
        precede those that the session resends. Raises ConnectRefused, ProtocolError, ConnectionLost (the server closed
        the connection), OSError (also ssl.SSLError), TimeoutError, UsageError.
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
                    self._loop.call_soon(self._call_on_closed)        # it ended before open() returned
        except BaseException as error:
            self._on_closed = None
            if self.state == STATE_OPEN:
                self.disconnect()       # cancelled after CONNACK: the server must not publish the will
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
        """False: there is so much unsent output that callers should wait in drain()."""
        return self._room is None and self.state == STATE_OPEN

    @property
    def client_id(self) -> str:
        """The requested client identifier, or the one that the server assigned."""
        return self.connack.properties.text("assigned_client_identifier") or self.options.client_id

    async def drain(self) -> None:
        """Send the output and wait until there is room for more. Raises ConnectionLost if the connection ends."""
        self._flush()
        if self._room is not None:
            await asyncio.shield(self._room)
        if self.state == STATE_CLOSED:
            raise ConnectionLost(self._reason, "the connection is closed")

    def pause(self) -> None:
        """Stop reading the socket; bytes already read still reach on_message."""
        if self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read the socket again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._paused, self._got_data = False, True

    # The end

    def disconnect(self, reason: int = 0, properties: Properties | None = None) -> None:
        """Send the output and DISCONNECT, then close. on_closed(None, reason) follows. MQTT 5.0 section 3.14."""
        if self.state == STATE_OPEN:
            self.leave(reason, properties)
            self._reason = reason
        self._close(None)

    def abort(self) -> None:
        """Close now without DISCONNECT; on_closed(None, 0) follows."""
        self.leave_silently()
        if self._transport is not None:
            self._transport.abort()
        else:
            self._on_disconnect(None)

    def leave_silently(self) -> None:
        """Neither send nor process any further byte."""
        self.end()
        self.take_output()

    async def closed(self) -> None:
        """Wait until the socket is closed and on_closed was called."""
        await asyncio.shield(self._disconnected)

    def _close(self, error: BaseException | None) -> None:
        """Send the output and close."""
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
            self._error = ConnectRefused(connack.reason_code, f"the server refused the connection: {why}",
                                         properties.text("server_reference"))
            self._answer.set_exception(self._error)
            return
        self._answer.set_result(ConnAck(connack.session_present, connack.reason_code, properties))
        if self.keep_alive:
            self._timer = self._loop.call_later(self.keep_alive / 2, self._tick)

    def dismissed(self, disconnect: Disconnect) -> None:
        properties = Properties(disconnect.properties)
        why = properties.text("reason_string") or reason_text(disconnect.reason_code, self.version)
        self._reason = disconnect.reason_code
        self._close(ConnectionLost(disconnect.reason_code, f"the server closed the connection: {why}",
                                   properties.text("server_reference")))

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
        """Twice per keep alive: send PINGREQ if the connection was idle, and check that the server has answered."""
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
