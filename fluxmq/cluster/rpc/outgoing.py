"""The dialling end: streams to other nodes, and calls of them.

A stream has a connection of its own, so a node that does not read delays neither calls nor other streams. Two tasks
serve it: `serve` waits for the answer and then for the end, `_write` sends the hello and the frames. To end it, the
call of gRPC is cancelled, and both notice.

    OPENING ──answer──► OPEN ──refused, broke──► CLOSED (on_closed)
       │                  └────close()─────────► CLOSED
       └── refused, unreachable, no answer in time ──► CLOSED (on_closed)
"""
from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc
import grpc.aio

from fluxmq._core.errors import UsageError
from fluxmq.cluster.ports import CallFailed, StreamHandler
from fluxmq.cluster.rpc.channels import Settings
from fluxmq.cluster.rpc.envelope import EnvelopeError, field_of, wrap_call, wrap_field
from fluxmq.cluster.rpc.incoming import SERVICE

__all__ = ["Outgoing", "ask"]

_STREAM, _CALL = f"/{SERVICE}/Stream", f"/{SERVICE}/Call"
# There is none, or it broke. grpc.aio has INTERNAL when a write failed before the true status was known.
_NO_CONNECTION = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED)
# What grpc.aio raises from an operation on a call that has ended, or that ends meanwhile.
_ENDED = (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError)


# What gRPC says when there is no connection, and what that means.
_MEANINGS = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not of the authority in cluster.transport.tls.ca_file, or out of "
                                  "date"),
    ("WRONG_VERSION_NUMBER", "it speaks without TLS"),
    ("Hostname Verification Check failed", "its certificate is not made for the address that is dialled"),
    ("Socket closed", "it closed the connection at once: perhaps it refuses this node's certificate, or expects TLS"),
)


def _plain(details: str) -> str:
    """gRPC tells a chain, the last of which is what the system or TLS said."""
    last = details.rsplit("last error: ", 1)[-1]
    meaning = next((f"{said} ({last})" for text, said in _MEANINGS if text in last), "")
    return meaning or last


def _in_words(address: str, code: Any, details: str | None, connected: bool) -> str:
    """Why a call ended, for a log. The sentence of the other node stands for itself."""
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED):
        return details or "refused"
    if code is grpc.StatusCode.OK:
        return f"{address} has ended the stream"
    text = f": {details}" if details and code is not grpc.StatusCode.INTERNAL else ""
    if not connected and code in _NO_CONNECTION:
        return f"{address} cannot be reached{': ' if details else ''}{_plain(details or '')}"
    if code in _NO_CONNECTION:
        return f"the connection to {address} broke{text}"
    return f"{address} answered {code.name}{text}"


def _is_cancelled() -> bool:
    """Whether a CancelledError is for this task. grpc.aio raises it also when a call was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def nothing() -> None:
    """Nobody wants to know."""


class Outgoing:
    """A stream that this node has dialled (StreamOut). `serve` is its task."""

    def __init__(self, address: str, hello: bytes, settings: Settings, handler: StreamHandler) -> None:
        self.on_idle: Callable[[], object] = nothing
        self._address = address
        self._hello = hello
        self._settings = settings
        self._handler = handler
        self._call: Any = None
        self._frames: deque[bytes] = deque()
        self._work: asyncio.Future[None] | None = None      # what the writer waits for
        self._connected = False
        self._open = False
        self._writing = False
        self._closed = False
        self._why = ""

    @property
    def idle(self) -> bool:
        return self._open and not self._closed and not self._writing and not self._frames

    def send(self, frame: bytes) -> None:
        """See StreamOut. Raises UsageError for a frame over the limit."""
        if len(frame) > self._settings.frame_bytes_max:
            raise UsageError(f"a frame of {len(frame)} bytes, over {self._settings.frame_bytes_max}")
        if not self._closed:
            self._frames.append(frame)
            self._wake()

    def close(self) -> None:
        """See StreamOut."""
        self._closed = True
        self._frames.clear()
        if self._call is not None:
            self._call.cancel()

    async def serve(self, channel: grpc.aio.Channel) -> None:
        """From the attempt to the end. Closes the channel."""
        try:
            if not self._closed:
                await self._serve(channel)
        finally:
            self._frames.clear()
            self._call = None
            await channel.close()
        if not self._closed:
            self._closed = True
            self._handler.on_closed(self, self._why)

    async def _serve(self, channel: grpc.aio.Channel) -> None:
        loop = asyncio.get_running_loop()
        self._call = call = channel.stream_stream(_STREAM)()
        writer = loop.create_task(self._write(call))
        late = loop.call_later(self._settings.hello_s, self._give_up)
        try:
            answer = await call.read()
            late.cancel()
            if answer is not grpc.aio.EOF and not self._closed:
                self._open = True
                self._handler.on_open(self, field_of(answer))
                self._wake()
                last = await call.read()
                if last is not grpc.aio.EOF:
                    self._why = field_of(last).decode(errors="replace")
        except EnvelopeError as error:
            self._why = str(error)
        except _ENDED:
            pass        # the status says why
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
        finally:
            late.cancel()
            call.cancel()
            await self._end_of(writer)
        self._why = self._why or _in_words(self._address, await call.code(), await call.details(), self._connected)

    def _give_up(self) -> None:
        self._why = f"no answer from {self._address} within {self._settings.hello_s:g} s"
        self._call.cancel()

    async def _write(self, call: Any) -> None:
        """Sends the hello, then frames as they are queued. Ends with the call."""
        try:
            await call.wait_for_connection()
            self._connected = True
            await call.write(wrap_field(self._hello))
            while not call.done():
                if not self._frames or not self._open:
                    self._work = asyncio.get_running_loop().create_future()
                    await self._work
                    continue
                self._writing = True
                await call.write(wrap_field(self._frames.popleft()))
                self._writing = False
                if self.idle:
                    self.on_idle()
        except _ENDED:
            pass
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
        except BaseException:
            call.cancel()
            raise

    async def _end_of(self, writer: asyncio.Task[None]) -> None:
        """The call is over. Raises what the handler raised in the writer's task."""
        writer.cancel()
        await asyncio.wait([writer])
        if not writer.cancelled():
            writer.result()

    def _wake(self) -> None:
        if self._work is not None and not self._work.done():
            self._work.set_result(None)


async def ask(channel: grpc.aio.Channel, address: str, method: str, body: bytes, limit_s: float,
              ended: Callable[[bool], None]) -> AsyncGenerator[bytes, None]:
    """The parts of the answer to a call. ended: called at the end, with whether there was a connection. See
    Transport.call."""
    call: Any = channel.stream_stream(_CALL)(timeout=limit_s)
    connected = False
    try:
        connected = await _is_connected(call)
        if connected:
            await call.write(wrap_call(method, body))
            await call.done_writing()
            while (message := await call.read()) is not grpc.aio.EOF:
                yield field_of(message)
            return
    except EnvelopeError as error:
        raise CallFailed(f"{address}: {error}") from None
    except _ENDED:
        pass        # the status says why
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
    finally:
        call.cancel()
        ended(connected)
    code, details = await call.code(), await call.details()
    text = _in_words(address, code, details, connected)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        text = f"{address} {'has not answered' if connected else 'was not reached'} within {limit_s:g} s"
    raise CallFailed(text, reached=connected and code is not grpc.StatusCode.FAILED_PRECONDITION)


async def _is_connected(call: Any) -> bool:
    """Waits for a connection or the end of the call. wait_for_connection() alone goes on waiting when the call is
    cancelled."""
    waiting = asyncio.get_running_loop().create_task(call.wait_for_connection())
    call.add_done_callback(lambda _: waiting.cancel())
    # Also if whoever asks is cancelled in the moment in which it fails.
    waiting.add_done_callback(lambda waiting: waiting.cancelled() or waiting.exception())
    try:
        await asyncio.wait([waiting])
    finally:
        waiting.cancel()
    return not waiting.cancelled() and waiting.exception() is None
