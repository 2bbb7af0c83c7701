"""A small HTTP/1.1 server for the admin ring: probes and metrics over TCP, the admin socket over a unix socket.

h11 knows HTTP; this file reads whole requests and writes answers, and bounds all that a stranger could make grow:
connections, the bytes of a head and of a body, the time of a request, the time until the next, the time an answer
takes to be read. Who serves says in `Bounds` how much of each, and answers in `handle`.

    Answer   one body, in one write
    Stream   a body that comes bit by bit; b"" says that there is nothing now, and has the peer looked after
"""
import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import Protocol

import h11
import msgspec

from fluxmq._core.errors import UsageError
from fluxmq.model import limits

__all__ = ["READ_BYTES", "Answer", "Bounds", "HttpServer", "Request", "Stream", "text_answer"]

_LOG = logging.getLogger("fluxmq.admin")
READ_BYTES = 16 * 1024


class Request(msgspec.Struct, frozen=True):
    """A whole request. target: path and query as they came, percent signs and all."""

    method: str
    target: str
    body: bytes
    raw: h11.Request


class Answer(msgspec.Struct, frozen=True):
    """An answer with a complete body."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Stream(msgspec.Struct, frozen=True):
    """An answer without a known end. Its generator is closed when the peer has disconnected or the server stops."""

    status: int
    content_type: str
    pieces: AsyncGenerator[bytes, None]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """takes_bodies: a body that a client asks leave to send (100-continue) is wanted. handle_seconds_max: until
    handle() must have an answer. streams_max: connections that may be busy with a Stream at once."""

    connections_max: int = limits.HTTP_CONNECTIONS_MAX
    streams_max: int = 0
    body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX
    takes_bodies: bool = False
    request_seconds_max: float = limits.HTTP_REQUEST_SECONDS_MAX
    handle_seconds_max: float = limits.HTTP_REQUEST_SECONDS_MAX
    idle_seconds_max: float = limits.HTTP_IDLE_SECONDS_MAX


class Handler(Protocol):
    """Answers requests."""

    async def handle(self, request: Request) -> Answer | Stream:
        """Its answer; raises nothing but what is a bug. May be cancelled: the time is over, or the server stops."""

    def refuse(self, status: int, text: str) -> Answer:
        """The answer for requests that handle() does not get or finish: malformed, too large, too late, too many
        streams."""


def text_answer(status: int, text: str, *headers: tuple[str, str]) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", text.encode() + b"\n", headers)


def _date() -> str:
    """The time as RFC 9110 section 5.6.7 has it; the process's locale stays C's, so that names are English."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())


class _Disconnect(Exception):
    """The connection is to be closed without an answer: end of stream, time-out, too much data."""


class HttpServer:
    """Serves what is accepted from a listener that a subclass opens, from `serve` to `stop`, on the running loop."""

    def __init__(self, handler: Handler, bounds: Bounds) -> None:
        self._handler = handler
        self._bounds = bounds
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams = 0

    async def _listen(self) -> asyncio.Server:
        """Opens the listener, with self._accepted as callback. OSError when it cannot."""
        raise NotImplementedError

    async def start(self) -> None:
        """Binds and serves. OSError when the address cannot be listened on."""
        if self._server is not None:
            raise UsageError("this server is already running")
        self._server = await self._listen()

    async def stop(self) -> None:
        """Closes listener and connections; answers in progress are cut off."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None or len(self._tasks) >= self._bounds.connections_max:
            writer.transport.abort()
            return
        self._tasks.add(task)
        # at most one answer, or one piece of it, may wait for a slow reader
        writer.transport.set_write_buffer_limits(0)
        try:
            await self._serve(_Peer(reader, writer, self._bounds))
        except (_Disconnect, OSError, TimeoutError, asyncio.CancelledError):
            # CancelledError only comes from stop(), which waits for this task and for nothing it returns
            writer.transport.abort()
        except Exception:
            _LOG.exception("a request could not be served")
            writer.transport.abort()
        else:
            writer.close()
        finally:
            self._tasks.discard(task)

    async def _serve(self, peer: "_Peer") -> None:
        """Handles the requests of one connection in order."""
        while True:
            request: Request | None = None
            answer: Answer | Stream
            try:
                await peer.wait_for_first_byte(self._bounds.idle_seconds_max)
                async with asyncio.timeout(self._bounds.request_seconds_max):
                    request = await peer.next_request()
            except h11.RemoteProtocolError as error:
                status = error.error_status_hint or 400
                answer = self._handler.refuse(status, "the body is too large" if status == 413 else
                                              "not a request that can be served")
            if request is None:
                if peer.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                    return
            else:
                answer = await self._answer(request)
            if isinstance(answer, Stream):
                await self._stream(peer, answer, request)
            else:
                async with asyncio.timeout(self._bounds.request_seconds_max):
                    await peer.send(answer, request)
            if peer.http.our_state is not h11.DONE or peer.http.their_state is not h11.DONE:
                return
            peer.http.start_next_cycle()
            # With pipelined requests and a client that reads, nothing above has to wait: one read may bring a thousand
            # requests, and the whole broker would wait for them.
            await asyncio.sleep(0)

    async def _answer(self, request: Request) -> Answer | Stream:
        try:
            async with asyncio.timeout(self._bounds.handle_seconds_max):
                answer = await self._handler.handle(request)
        except TimeoutError:
            return self._handler.refuse(504, "it took too long; it may have been done nevertheless")
        except Exception:
            _LOG.exception("a page could not be made", extra={"page": request.target[:200]})
            return self._handler.refuse(500, "an internal error prevented the answer; the log says why")
        if isinstance(answer, Stream) and (self._streams >= self._bounds.streams_max):
            await answer.pieces.aclose()
            return self._handler.refuse(503, f"{self._streams} streams are open, and there may be no more")
        return answer

    async def _stream(self, peer: "_Peer", answer: Stream, request: Request | None) -> None:
        assert request is not None
        self._streams += 1
        try:
            async with asyncio.timeout(self._bounds.request_seconds_max):
                await peer.begin(answer)
            async for piece in answer.pieces:
                if peer.left:
                    raise _Disconnect
                if piece:
                    async with asyncio.timeout(self._bounds.request_seconds_max):
                        await peer.go_on(piece)
            async with asyncio.timeout(self._bounds.request_seconds_max):
                await peer.go_on(None)
        finally:
            self._streams -= 1
            await answer.pieces.aclose()


class _Peer:
    """One connection: its streams and h11's view of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bounds: Bounds) -> None:
        self._reader = reader
        self._writer = writer
        self._bounds = bounds
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.HTTP_HEAD_BYTES_MAX)

    @property
    def left(self) -> bool:
        """Whether the peer has closed. Detected without reading, because it sends nothing while it is answered."""
        return self._reader.at_eof() or self._writer.transport.is_closing()

    async def wait_for_first_byte(self, seconds_max: float) -> None:
        """Waits for the first bytes of the next request. Raises TimeoutError."""
        if self.http.trailing_data[0]:
            return
        async with asyncio.timeout(seconds_max):
            await self._receive()

    async def _receive(self) -> None:
        data = await self._reader.read(READ_BYTES)
        self.http.receive_data(data)
        if not data and self.http.their_state is h11.IDLE and not self.http.trailing_data[0]:
            raise _Disconnect

    async def next_request(self) -> Request:
        """The next request with its body. Raises RemoteProtocolError for an invalid one."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                if head is not None and self.http.they_are_waiting_for_100_continue:
                    if not self._bounds.takes_bodies:
                        # not wanted: answer without the body, and close because the body may still come
                        return _request(head, body)
                    self._writer.write(self.http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
                await self._receive()
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._bounds.body_bytes_max:
                    raise h11.RemoteProtocolError("body too large", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return _request(head, body)
            else:
                raise _Disconnect

    async def send(self, answer: Answer, request: Request | None) -> None:
        """Sends the whole answer in one write. request: the answered one, None if it could not be read."""
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body))),
                   ("Cache-Control", "no-store"), ("Date", _date()), *answer.headers]
        if request is None or self.http.their_state is h11.SEND_BODY:
            headers.append(("Connection", "close"))
        head = self.http.send(h11.Response(status_code=answer.status, headers=headers))
        end = b""
        if request is None or request.method != "HEAD":
            end = self.http.send(h11.Data(data=answer.body)) or b""
        end += self.http.send(h11.EndOfMessage()) or b""
        self._writer.write((head or b"") + end)
        await self._writer.drain()

    async def begin(self, answer: Stream) -> None:
        """Sends the head of a stream: h11 chunks the body, or for HTTP/1.0 the connection's end terminates it."""
        headers = [("Content-Type", answer.content_type), ("Cache-Control", "no-store"),
                   ("Date", _date())]
        self._writer.write(self.http.send(h11.Response(status_code=answer.status, headers=headers)) or b"")
        await self._writer.drain()

    async def go_on(self, piece: bytes | None) -> None:
        """Sends a piece of a stream; None ends it."""
        data = self.http.send(h11.EndOfMessage() if piece is None else h11.Data(data=piece))
        self._writer.write(data or b"")
        await self._writer.drain()


def _request(head: h11.Request, body: bytearray) -> Request:
    return Request(head.method.decode("ascii"), head.target.decode("ascii", "replace"), bytes(body), head)
