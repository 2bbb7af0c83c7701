"""One HTTP/2 connection to or from another node, and the streams of gRPC on it (RFC 9113).

    uvloop ──bytes──► Http2Frames (_core/peer/http2) ──messages──────────────► RpcStream
                             │      ▲                                            │
                        the rest   DATA ◄──────────────── send ──────────────────┘
                             ▼      │
                           h2: settings, headers, resets, pings: what they are, and what a peer may not do

It is checked from either end: when nothing has come for a period, a PING is sent, and when nothing has come in the next
one either, it is broken. With each period the peer may cost as much again (Http2Frames.renew).

It is one file because what comes, what is sent and the end of a connection share the state of both machines.
"""
from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterable
from typing import Any, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from fluxmq._core.peer.http2 import (
    BAD_MESSAGE,
    BROKEN,
    CONTROL,
    FRAME_BYTES_MAX,
    MESSAGE,
    WINDOW_BYTES,
    Http2Frames,
    Http2Stream,
)

__all__ = ["CLOSE_S", "Headers", "Http2Connection", "RpcStream"]

Headers = dict[bytes, bytes]

HEADER_BYTES_MAX = 16 << 10  # of all headers of a call, as they are counted in RFC 9113 section 6.5.2
CLOSE_S = 1.0  # how long what was sent last may take to leave
LAST_LOOK_S = 0.01  # before a connection counts as broken: what came while the loop was busy is read in it
TABLE_BYTES_MAX = 4096  # of headers that this end has sent and may refer to; the library searches them one by one
ANSWERS_BYTES_MAX = 65536  # acknowledgements of settings and pings that wait because the other end reads nothing
_PING = b"fluxmq\0\0"


class RpcStream:
    """Base class: one call on a connection. connection: None before and after."""

    connection: Http2Connection | None = None
    frames: Http2Stream
    ended = False  # the other end sends nothing more

    @property
    def number(self) -> int:
        """Of the stream of HTTP/2."""
        return self.frames.number

    @property
    def written(self) -> bool:
        """Whether everything that was sent is with the system."""
        return self.connection is not None and not self.frames.queued and not self.connection.full

    def on_left(self) -> None:
        """It has left its connection, in whatever way; before on_reset and on_lost."""

    def on_headers(self, headers: Headers) -> None:
        """An answer begins, or ends."""

    def on_message(self, data: bytes) -> None:
        """A message that has this as its field 1, and nothing else."""

    def on_other(self, message: bytes) -> None:
        """Any other message."""

    def on_bad(self, why: str) -> None:
        """A message that cannot be read; nothing follows."""

    def on_end(self) -> None:
        """The other end sends nothing more."""

    def on_reset(self, why: str) -> None:
        """The other end has broken it off."""

    def on_lost(self, why: str) -> None:
        """The connection has ended."""

    def on_written(self) -> None:
        """What was sent may have left."""


class Http2Connection(asyncio.Protocol):
    """A base class: of the end that dials, and of the one that serves.

    keepalive_s: the period. streams_max: that the other end may open at a time. full: what was written last is not with
    the system yet. over: nothing is read or sent any more.
    """

    def __init__(self, *, client: bool, keepalive_s: float, streams_max: int = 0) -> None:
        self.full = False
        self.over = False
        self.streams: dict[int, RpcStream] = {}
        self._transport: asyncio.Transport | None = None
        self._socket = -1  # its file descriptor, if what is written goes there as it is
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()  # the socket is closed, and nothing refers to this
        self._keepalive_s = keepalive_s
        self._frames = Http2Frames(not client)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=client, header_encoding=None))
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(client=client, initial_values={
            codes.ENABLE_PUSH: 0, codes.INITIAL_WINDOW_SIZE: WINDOW_BYTES, codes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
            codes.MAX_CONCURRENT_STREAMS: streams_max, codes.MAX_HEADER_LIST_SIZE: HEADER_BYTES_MAX})
        self._h2.decoder.max_header_list_size = HEADER_BYTES_MAX    # it looks at changes of settings only
        self._look_due = False
        self._check: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._seen = 0  # bytes that had come at the last check
        self._pinged = False
        self._answers = 0  # bytes of the library's answers since everything was with the system
        self._goodbye = False  # it was said
        self._why = ""

    @property
    def heard(self) -> bool:
        """Whether the other end has sent anything."""
        return self._frames.bytes_in > 0

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1, low=0)
        # asyncio does it only for sockets that say that they are of TCP, which those do not that were accepted.
        plain = transport.get_extra_info("socket")
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if transport.get_extra_info("ssl_object") is None:
            self._socket = plain.fileno()
        self._h2.initiate_connection()
        self._frames.put(self._h2.data_to_send())
        self._frames.begin()
        self._wait()
        self.flush()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.over:       # with TLS some may come behind close()
            return
        self._take(self._frames.feed(data if isinstance(data, bytes) else bytes(data)))
        while self._frames.more and not self.over:
            self._take(self._frames.feed(b""))
        if not self.over:
            self.flush()

    def _take(self, events: list[tuple[Any, ...]]) -> None:
        for event in events:
            kind = event[0]
            if kind == CONTROL:
                self._control(event[2])
            elif kind == BROKEN:
                self.fail(event[2], event[1])
            elif (stream := self.streams.get(event[1])) is not None:
                if kind == MESSAGE:
                    stream.on_message(event[2])
                elif kind == BAD_MESSAGE:
                    stream.on_bad(event[2])
                else:
                    stream.on_other(event[2])
            if self.over:
                return

    def eof_received(self) -> bool:
        """See asyncio.Protocol."""
        return False

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.full = True

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.full = False
        self._answers = 0
        self.look_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        for timer in (self._check, self._ending):
            if timer is not None:
                timer.cancel()
        self._check = self._ending = None
        self._lose(self._why or (str(exc) if exc is not None else ""))
        self._transport, self._socket = None, -1
        if not self.gone.done():
            self.gone.set_result(None)

    # ------------------------------------------------------------------ what is sent

    def flush(self) -> None:
        """Writes what was sent."""
        data = self._frames.take()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            self.look_soon()

    def look_soon(self) -> None:
        """on_written() of every stream is called, unless something is not with the system yet."""
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._look_due = False
        if not self.full:
            for stream in list(self.streams.values()):
                if not self.over:
                    stream.on_written()

    def open(self, stream: RpcStream, headers: Iterable[tuple[bytes, bytes]], message_bytes_max: int) -> None:
        """Begins a call. message_bytes_max: of each message of its answer."""
        number = self._h2.get_next_available_stream_id()
        self._h2.send_headers(number, headers)
        self._frames.put(self._h2.data_to_send())
        self.enter(stream, number, message_bytes_max)

    def enter(self, stream: RpcStream, number: int, message_bytes_max: int) -> None:
        """A call has begun, at whichever end."""
        stream.frames = self._frames.open(number, message_bytes_max)
        stream.connection = self
        self.streams[number] = stream

    def send_headers(self, stream: RpcStream, headers: Iterable[tuple[bytes, bytes]], *, end: bool = False) -> None:
        """Those of an answer, or with `end` its trailers: behind all messages, none of which waits any more."""
        self._h2.send_headers(stream.number, headers, end_stream=end)
        self._frames.put(self._h2.data_to_send())

    def send(self, stream: RpcStream, data: bytes) -> bool:
        """A message with this as its field 1. Returns whether it has left already: then on_written() is not called."""
        self._frames.send(stream.frames, data)
        transport = self._transport
        if self._socket < 0 or transport is None or transport.get_write_buffer_size() or transport.is_closing():
            self.flush()
            return False
        # The event loop would write it in its next turn, and need one for that.
        whole = self._frames.take()
        try:
            left = whole[os.write(self._socket, whole):]
        except OSError:         # it takes nothing now, or is broken: then the transport finds out, too
            left = whole
        if left:
            transport.write(left)
            self.look_soon()
        return not left and stream.written

    def served(self) -> None:
        """A call has begun or was answered, so what it has cost does not count (Http2Frames.served)."""
        self._frames.served()

    def unserved(self) -> None:
        """The other end has broken off a call that had begun."""
        self._frames.unserved()

    def finish(self, stream: RpcStream, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Ends a call that this end serves, with these headers."""
        self.send_headers(stream, headers, end=True)
        self.drop(stream, None if stream.ended else h2.errors.ErrorCodes.NO_ERROR)
        self.flush()

    def drop(self, stream: RpcStream, code: h2.errors.ErrorCodes | None) -> None:
        """The call is over here. code: the other end is told, because it does not know; None: it does."""
        if stream.connection is not self or self.streams.pop(stream.number, None) is None:
            return
        self._leave(stream)
        if code is not None and not self.over:
            with contextlib.suppress(h2.exceptions.ProtocolError):      # the library knows that it is over
                self._h2.reset_stream(stream.number, code)
            self._frames.put(self._h2.data_to_send())
            self.flush()

    # ------------------------------------------------------------------ what comes

    def on_request(self, number: int, headers: Headers, ended: bool) -> None:
        """The other end begins a call."""

    def on_left(self, stream: RpcStream) -> None:
        """A call is over here."""

    def on_over(self) -> None:
        """The connection has ended, and its streams have heard it."""

    def _control(self, frame: bytes) -> None:
        try:
            events = self._h2.receive_data(frame)
        except h2.exceptions.ProtocolError as error:
            self._h2.clear_outbound_data_buffer()       # a GOAWAY without a text
            self.fail(str(error) or type(error).__name__, error.error_code)
            return
        # Its acknowledgement of settings leaves ahead of what these allow.
        answer = self._h2.data_to_send()
        self._frames.put(answer)
        if self.full:
            self._answers += len(answer)
            if self._answers > ANSWERS_BYTES_MAX:
                self.fail("it does not read what it asks for", h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
                return
        for event in events:
            if self.over:
                return
            self._event(event)

    def _event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self.on_request(event.stream_id, dict(event.headers), event.stream_ended is not None)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            settings = self._h2.remote_settings
            if self._h2.encoder.header_table_size > TABLE_BYTES_MAX:
                self._h2.encoder.header_table_size = TABLE_BYTES_MAX
            why = self._frames.settings(settings.initial_window_size, settings.max_frame_size)
            if why:
                self.fail(why)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._terminated(event)
        elif (stream := self.streams.get(getattr(event, "stream_id", 0) or 0)) is not None:
            self._stream_event(stream, event)

    def _stream_event(self, stream: RpcStream, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            stream.on_headers(dict(event.headers))
        elif isinstance(event, h2.events.StreamEnded):
            stream.ended = True
            stream.on_end()
        elif isinstance(event, h2.events.StreamReset):
            self.drop(stream, None)
            stream.on_reset(_in_words(event.error_code))

    def _terminated(self, event: h2.events.ConnectionTerminated) -> None:
        """GOAWAY. Calls that are under way might go on; but nodes send it when they have nothing to say any more."""
        said = (event.additional_data or b"").decode(errors="replace")
        self.close(f"it closed the connection: {said or _in_words(event.error_code)}")

    # ------------------------------------------------------------------ its end

    def fail(self, why: str, code: int = h2.errors.ErrorCodes.PROTOCOL_ERROR) -> None:
        """The other end has done what it may not."""
        if not self.over:
            self._say_goodbye(code, why)
            self.close(why)

    def _say_goodbye(self, code: int, why: str) -> None:
        if self._goodbye:
            return
        self._goodbye = True
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self._h2.close_connection(h2.errors.ErrorCodes(code), why.encode()[:200])
        self._frames.put(self._h2.data_to_send())

    def close(self, why: str) -> None:
        """Ends it, with all calls; what was sent may still leave, for a second. why: what they are told."""
        if self.over:
            return
        if self._transport is not None:
            self._say_goodbye(h2.errors.ErrorCodes.NO_ERROR, "")
            self.flush()
            transport = self._transport
            self._lose(why)         # before, since TLS may read once more
            self._ending = self._loop.call_later(CLOSE_S, transport.abort)
            transport.close()
        self._lose(why)

    def abort(self, why: str) -> None:
        """As close(), but nothing leaves any more."""
        self._why = why
        if self._transport is not None:
            self._transport.abort()
        self._lose(why)

    def _lose(self, why: str) -> None:
        if self.over:
            return
        self.over = True
        if self._check is not None:
            self._check.cancel()
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            self._leave(stream)
            stream.on_lost(why)
        self._frames.take()
        self.on_over()

    def _leave(self, stream: RpcStream) -> None:
        self._frames.close(stream.frames)
        stream.connection = None
        stream.on_left()
        self.on_left(stream)

    # ------------------------------------------------------------------ whether it is there

    def _wait(self) -> None:
        self._check = self._loop.call_later(self._keepalive_s, self._look_whether_it_lives,
                                            self._loop.time() + 1.5 * self._keepalive_s)

    def _look_whether_it_lives(self, latest: float) -> None:
        self._check = None
        if self.over:
            return
        self._frames.renew()
        came, self._seen = self._frames.bytes_in != self._seen, self._frames.bytes_in
        if came or self._loop.time() > latest:      # this process stood still, and has not read what has come
            self._pinged = False
        elif self._pinged:
            # uvloop runs timers before it reads.
            self._check = self._loop.call_later(LAST_LOOK_S, self._look_at_last)
            return
        else:
            self._pinged = True
            self._h2.ping(_PING)
            self._frames.put(self._h2.data_to_send())
            self.flush()
        self._wait()

    def _look_at_last(self) -> None:
        self._check = None
        if self.over:
            return
        if self._frames.bytes_in == self._seen:
            self.abort(f"nothing has come for {2 * self._keepalive_s:g} s")
        else:
            self._pinged = False
            self._wait()


def _in_words(code: Any) -> str:
    """An error code of RFC 9113 section 7."""
    return getattr(code, "name", str(code))


