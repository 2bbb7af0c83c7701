"""The serving end: streams that other nodes have opened, and their calls.

A stream goes through

    OPENING ──accepted──► OPEN ──ended by the other node, broke, malformed──► OVER (on_end)
       │                    └───closed here────────────────────────────────► OVER
       └── refused, no hello in time ──► OVER

The task of gRPC that serves the stream reads one frame after the other, so what has not been read stays in the windows
of HTTP/2 and in the other node. A stream that is closed while this task waits for a frame is answered by a second task;
the read then ends by itself. It is not cancelled, because the memory of a message that comes then would never be freed.
When the first task has left, gRPC frees the call, so the second does not touch it any more.

gRPC cancels the task that serves a call when the call breaks. What the handler does for the next part goes on: others
may wait for what it waits for, and a cancelled await ends that for all of them. Then no further part is asked for.
"""
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import grpc.aio

from fluxmq.cluster.ports import CallFailed, CallHandler, StreamHandler
from fluxmq.cluster.rpc.envelope import EnvelopeError, call_of, field_of, wrap_field

__all__ = ["SENTENCE_BYTES_MAX", "SERVICE", "Incoming", "Service"]

SERVICE = "fluxmq.cluster.v1.Peer"
# gRPC limits all headers of an answer to 8 KiB, and the text of a status is in a header, where bytes take up to three.
SENTENCE_BYTES_MAX = 2000


def _sentence(text: str) -> str:
    return text.encode(errors="replace")[:SENTENCE_BYTES_MAX].decode(errors="ignore")


def _identity(context: Any) -> str | None:
    found = context.auth_context()
    if "x509_pem_cert" not in found:
        return None
    names = [*found.get("x509_common_name", ()), *found.get("x509_subject_alternative_name", ())]
    return next((name.decode(errors="replace") for name in names if name), "")      # without a name there is ""


def _quiet(method: Callable[[Any, Any], Coroutine[Any, Any, None]]) -> Callable[[Any, Any], Coroutine[Any, Any, None]]:
    """A write that fails because the other node has gone is no error; grpc.aio would log it with a traceback."""
    async def quiet(request: Any, context: Any) -> None:
        try:
            await method(request, context)
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None
    return quiet


class Incoming:
    """A stream that another node has opened (StreamIn)."""

    def __init__(self, context: Any, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self.identity = _identity(context)
        self.why = ""
        self.over = False
        self.accepted = False
        self.left = False       # the task of gRPC has left
        self._context = context
        self._start = start
        self._reading = False
        self._refusal: asyncio.Task[None] | None = None

    def close(self, why: str) -> None:
        """See StreamIn."""
        if self.over:
            return
        self.over, self.why = True, _sentence(why)
        if self._reading:
            self._refusal = self._start(self._refuse_beside())

    async def read(self) -> Any:
        """The next message, or EOF. Raises what gRPC raises at the end of a call, also when the stream was closed
        meanwhile."""
        self._reading = True
        try:
            message = await self._context.read()
        finally:
            self._reading = False
        if self._refusal is not None:
            await asyncio.wait([self._refusal])
        return message

    async def refuse(self) -> None:
        """Ends the call with a status, unless that was done. Raises AbortError, or what gRPC raises if the connection
        is gone.

        After the acceptance the sentence is sent as a message too: the other node may be writing, and when its write
        fails, its grpc.aio may put a status of its own in the place of ours.
        """
        if self._refusal is None:
            await self._refuse()

    async def _refuse(self) -> None:
        if self.accepted:
            await self._context.write(wrap_field(self.why.encode()))
        if not self.left:
            await self._context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.why)

    async def _refuse_beside(self) -> None:
        # Without an error abort() raises, too; others say that the call is over.
        with contextlib.suppress(grpc.aio.BaseError, Exception):
            if not self.left:
                await self._refuse()


class Service:
    """The methods of the service, for a server of grpc.aio."""

    def __init__(self, calls: CallHandler, streams: StreamHandler, hello_s: float,
                 start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        """start: runs a coroutine until the transport stops."""
        self._calls = calls
        self._streams = streams
        self._hello_s = hello_s
        self._start = start
        self._stopped = False
        self._steps: set[asyncio.Task[None]] = set()    # of handlers of calls

    def handlers(self) -> grpc.GenericRpcHandler:
        """For Server.add_generic_rpc_handlers."""
        return grpc.method_handlers_generic_handler(SERVICE, {
            "Stream": grpc.stream_stream_rpc_method_handler(_quiet(self._stream)),
            "Call": grpc.unary_stream_rpc_method_handler(_quiet(self._call))})

    def stop(self) -> None:
        """The handler is not called any more."""
        self._stopped = True
        for step in self._steps:
            step.cancel()

    async def _stream(self, _requests: object, context: Any) -> None:
        stream = Incoming(context, self._start)
        try:
            answer = await self._opened(stream)
            if answer is not None:
                stream.accepted = True
                await context.write(wrap_field(answer))
                await self._frames(stream)
            if stream.over:
                await stream.refuse()
        finally:
            stream.left = True
            if stream.accepted:
                self._end(stream)

    async def _opened(self, stream: Incoming) -> bytes | None:
        """The answer to the hello; None: there is no hello, or it is refused."""
        late = asyncio.get_running_loop().call_later(
            self._hello_s, stream.close, f"no hello within {self._hello_s:g} s")
        try:
            hello = await stream.read()
        finally:
            late.cancel()
        if hello is grpc.aio.EOF or stream.over or self._stopped:
            return None
        try:
            answer = self._streams.on_stream(stream, field_of(hello))
        except EnvelopeError as error:
            stream.close(str(error))
            return None
        if answer is None:
            stream.close("refused")
        return None if stream.over else answer

    async def _frames(self, stream: Incoming) -> None:
        """All frames, until the stream is over or ends."""
        while not stream.over:
            message = await stream.read()
            if message is grpc.aio.EOF or stream.over or self._stopped:
                return
            try:
                frame = field_of(message)
            except EnvelopeError as error:
                self._end(stream)
                stream.why = str(error)
            else:
                self._streams.on_frame(stream, frame)

    def _end(self, stream: Incoming) -> None:
        if not stream.over:
            stream.over = True
            if not self._stopped:
                self._streams.on_end(stream)

    async def _call(self, message: bytes, context: Any) -> None:
        try:
            method, body = call_of(message)
        except EnvelopeError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            return
        if self._stopped:
            return
        parts = self._calls.on_call(method, body, _identity(context))
        step: asyncio.Task[None] | None = None
        try:
            while True:
                got: list[bytes] = []
                step = self._begin_step(_next_part(parts, got))
                await asyncio.shield(step)
                if not got:
                    break
                await context.write(wrap_field(got[0]))
        except CallFailed as error:
            code = grpc.StatusCode.ABORTED if error.reached else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(code, _sentence(str(error)))
        except (grpc.aio.BaseError, asyncio.CancelledError):
            raise
        except Exception as error:
            _complain(method, error)
            await context.abort(grpc.StatusCode.ABORTED, f"an error in the other node: {type(error).__name__}")
        finally:
            if step is None or step.done():
                await _close(parts)
            else:
                self._begin_step(_close_behind(method, parts, step))

    def _begin_step(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        return task


async def _next_part(parts: AsyncIterator[bytes], got: list[bytes]) -> None:
    async for part in parts:
        got.append(part)
        break


async def _close(parts: AsyncIterator[bytes]) -> None:
    if (aclose := getattr(parts, "aclose", None)) is not None:
        await aclose()


async def _close_behind(method: str, parts: AsyncIterator[bytes], step: asyncio.Task[None]) -> None:
    """The caller has gone while a step is done: nobody is told of a refusal, but a defect is one even so."""
    await asyncio.wait([step])
    error = None if step.cancelled() else step.exception()
    if isinstance(error, Exception) and not isinstance(error, CallFailed):
        _complain(method, error)
    await _close(parts)


def _complain(method: str, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"the answer to a call of {method!r} failed", "exception": error})
