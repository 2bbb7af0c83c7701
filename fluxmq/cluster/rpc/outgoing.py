"""The dialling end of streams to other nodes.

A stream has a connection of its own, so a node that does not read delays neither calls nor other streams.

    OPENING ──answer──► OPEN ──refused, broke──► CLOSED (on_closed)
       │                  └────close()─────────► CLOSED
       └── refused, unreachable, no answer in time ──► CLOSED (on_closed)
"""
from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import h2.errors
import h2.exceptions

from fluxmq._core.errors import UsageError
from fluxmq.cluster.ports import StreamHandler
from fluxmq.cluster.rpc.channels import Settings
from fluxmq.cluster.rpc.connection import CLOSE_S, Headers, Http2Connection, RpcStream
from fluxmq.cluster.rpc.envelope import EnvelopeError, field_of
from fluxmq.cluster.rpc.incoming import SERVICE
from fluxmq.cluster.rpc.statuses import Status, status_of
from fluxmq.cluster.rpc.tls import AT_ONCE, meaning_of
from fluxmq.model.address import parse_address

__all__ = ["Outgoing"]

ANSWER_BYTES_MAX = 65536  # of the answer to a hello, and of a sentence


def nothing() -> None:
    """Nobody wants to know."""


class Outgoing(RpcStream):
    """A stream that this node has dialled (StreamOut). `serve` is its task."""

    def __init__(self, address: str, hello: bytes, settings: Settings, handler: StreamHandler) -> None:
        self.on_idle: Callable[[], object] = nothing
        self._address = address
        self._hello = hello
        self._settings = settings
        self._handler = handler
        self._early: list[bytes] = []  # frames that were sent before it was open
        self._open = False
        self._writing = False
        self._closed = False
        self._own: Http2Connection | None = None  # also when the stream has left it
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._why = ""
        self._sentence = ""  # the other node's, which comes as a message in front of the status

    @property
    def idle(self) -> bool:
        """See StreamOut."""
        return self._open and not self._closed and not self._writing

    def send(self, frame: bytes) -> bool:
        """See StreamOut. Raises UsageError for a frame over the limit."""
        if len(frame) > self._settings.frame_bytes_max:
            raise UsageError(f"a frame of {len(frame)} bytes, over {self._settings.frame_bytes_max}")
        if self._closed or self._over.done():
            return False
        if not self._open:
            self._early.append(frame)
        elif self.connection is not None:
            writing, self._writing = self._writing, True
            if self.connection.send(self, frame) and not writing:
                self._writing = False
                return True
        return False

    def close(self) -> None:
        """See StreamOut."""
        self._closed = True
        self._finish("")

    async def serve(self, context: ssl.SSLContext | None) -> None:
        """From the attempt to the end."""
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(self._settings.hello_s, self._finish,
                                     f"no answer from {self._address} within {self._settings.hello_s:g} s")
        connecting = loop.create_task(self._connect(context))
        self._over.add_done_callback(lambda _: self._late.cancel())
        self._over.add_done_callback(lambda _: connecting.cancel())
        try:
            await asyncio.wait([connecting])
            if not connecting.cancelled():
                connecting.result()
            await self._over
        except Exception as error:      # a defect: it is dialled again even so
            self._finish(f"{self._address} cannot be reached: {error!r}")
            loop.call_exception_handler({"message": "a stream could not be dialled", "exception": error})
        finally:
            self._late.cancel()
            connecting.cancel()
            if self._own is not None:
                self._own.drop(self, None if self.ended else h2.errors.ErrorCodes.CANCEL)
                self._own.close("")
            self._early.clear()
        if not self._closed:
            self._closed = True
            self._handler.on_closed(self, self._why)
        if self._own is not None:
            await asyncio.wait([self._own.gone], timeout=2 * CLOSE_S)

    async def _connect(self, context: ssl.SSLContext | None) -> None:
        """Makes the connection, and begins the stream on it; _finish() says why it could not."""
        loop = asyncio.get_running_loop()
        made: list[_Connection] = []

        def make() -> _Connection:
            made.append(_Connection(client=True, keepalive_s=self._settings.keepalive_s))
            return made[-1]

        try:
            host, port = parse_address(self._address)
            tls: dict[str, Any] = {} if context is None else {
                "ssl": context, "server_hostname": host, "ssl_handshake_timeout": self._settings.hello_s}
            _, connection = await loop.create_connection(make, host, port, **tls)
        except (OSError, ValueError) as error:      # ValueError: a name that can be none, for TLS or the resolver
            self._finish(f"{self._address} cannot be reached: {meaning_of(error)}")
            return
        except asyncio.CancelledError:
            # A connection that was made just now uvloop closes then, without a word to it: it would look later whether
            # the other end lives.
            for each in made:
                each.abort("")
            raise
        if self._over.done() or connection.over:
            connection.close("")
            self._finish(f"{self._address} cannot be reached: {AT_ONCE}")
            return
        self._own = connection
        try:
            self._begin(connection, context is not None)
        except h2.exceptions.ProtocolError as error:    # it takes no streams
            self._finish(f"{self._address} cannot be reached: {error}")

    def _begin(self, connection: Http2Connection, tls: bool) -> None:
        connection.open(self, [
            (b":method", b"POST"), (b":scheme", b"https" if tls else b"http"),
            (b":path", f"/{SERVICE}/Stream".encode()), (b":authority", self._address.encode()),
            (b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"user-agent", b"fluxmq")], ANSWER_BYTES_MAX)
        connection.send(self, self._hello)

    def _finish(self, why: str) -> None:
        if not self._over.done():
            self._why = why
            self._over.set_result(None)

    # ------------------------------------------------------------------ RpcStream

    def on_headers(self, headers: Headers) -> None:
        """See RpcStream."""
        if headers.get(b":status", b"200") != b"200":
            self._finish(f"{self._address} answered with status {headers[b':status'].decode(errors='replace')} of HTTP")
        elif b"grpc-status" in headers and not self._over.done():
            code, text = status_of(headers)
            self._finish(self._sentence or self._in_words(code, text))

    def on_message(self, data: bytes) -> None:
        """See RpcStream: the answer to the hello, and at the end a sentence that says why."""
        if self._over.done():
            return
        if self._open:
            self._sentence = data.decode(errors="replace")
            return
        self._open = True
        self._late.cancel()
        early, self._early = self._early, []
        if early and self.connection is not None:       # ahead of what is sent from on_open
            self._writing = True
            for frame in early:
                self.connection.send(self, frame)
            self.connection.look_soon()
        self._handler.on_open(self, data)

    def on_other(self, message: bytes) -> None:
        """See RpcStream."""
        try:
            data = field_of(message)
        except EnvelopeError as error:
            self._finish(str(error))
        else:
            self.on_message(data)

    def on_bad(self, why: str) -> None:
        """See RpcStream."""
        self._finish(f"{self._address}: {why}")

    def on_end(self) -> None:
        """See RpcStream."""
        self._finish(self._sentence or f"{self._address} has ended the stream")

    def on_reset(self, why: str) -> None:
        """See RpcStream."""
        self.on_lost(f"the stream was reset: {why}")

    def on_lost(self, why: str) -> None:
        """See RpcStream."""
        self._finish(self._sentence or f"the connection to {self._address} broke{': ' if why else ''}{why}")

    def unheard(self, error: BaseException | None) -> None:
        """The connection has ended before the other end has said anything."""
        self._finish(f"{self._address} cannot be reached: {meaning_of(error)}")

    def on_written(self) -> None:
        """See RpcStream."""
        if self._writing and self.written:
            self._writing = False
            if self.idle:
                self.on_idle()

    def _in_words(self, code: int, text: str) -> str:
        """Why a call ended, for a log. The sentence of the other node stands for itself."""
        if code in (Status.FAILED_PRECONDITION, Status.ABORTED):
            return text or "refused"
        if code == Status.OK:
            return f"{self._address} has ended the stream"
        name = Status(code).name if code in Status.__members__.values() else f"status {code}"
        return f"{self._address} answered {name}{': ' if text else ''}{text}"


class _Connection(Http2Connection):
    """That of a stream which this node has dialled."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol. A server that does not like our certificate says so behind the handshake of TLS 1.3."""
        for stream in self.streams.values():
            if isinstance(stream, Outgoing) and not self.heard:
                stream.unheard(exc)
        super().connection_lost(exc)
