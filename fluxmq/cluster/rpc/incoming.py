"""The serving end: streams that other nodes have opened, and their calls.

A stream goes through

    OPENING ──accepted──► OPEN ──ended by the other node, broke, malformed──► OVER (on_end)
       │                    └───closed here────────────────────────────────► OVER
       └── refused, no hello in time ──► OVER

A call is answered by a task. When the call breaks, that is cancelled; what the handler does for the next part goes on:
others may wait for what it waits for, and a cancelled await ends that for all of them. Then no further part is asked
for.
"""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import h2.errors

from fluxmq.cluster.ports import CallFailed, CallHandler, StreamHandler
from fluxmq.cluster.rpc.connection import Http2Connection, RpcStream
from fluxmq.cluster.rpc.envelope import EnvelopeError, call_of, field_of
from fluxmq.cluster.rpc.statuses import Status, sentence, trailers_of

__all__ = ["SERVICE", "Answering", "Incoming", "Served", "Service"]

SERVICE = "fluxmq.cluster.v1.Peer"
END_S = 10.0  # how long the last bytes of an answer may wait for the other end
MESSAGE_S = 30.0  # how long the message of a call may take
ANSWER_S = 300.0  # how long a call may take whose caller has not said how long he waits
_BEGIN = [(b":status", b"200"), (b"content-type", b"application/grpc")]


class Served(RpcStream):
    """A base class: a call that this node serves."""

    def __init__(self) -> None:
        self._begun = False
        self._late: asyncio.TimerHandle | None = None
        self._end: tuple[Status, str] | None = None  # what ends the call when all that was sent has left

    def send(self, data: bytes) -> None:
        """A message of the answer."""
        if self.connection is None or self._end is not None:
            return
        if not self._begun:
            self._begun = True
            self.connection.send_headers(self, _BEGIN)
        self.connection.send(self, data)

    def finish(self, status: Status, text: str = "") -> None:
        """Ends the call, behind what was sent. Does nothing if it is over."""
        if self.connection is not None and self._end is None:
            self._end = status, text
            self._in_time()
            self._late = asyncio.get_running_loop().call_later(END_S, self._break_off)
            self._finish()

    def _break_off(self) -> None:
        """What was sent last does not leave: the other end reads nothing."""
        if self.connection is not None:
            self.connection.drop(self, h2.errors.ErrorCodes.CANCEL)

    def _finish(self) -> None:
        if self.connection is None or self._end is None or not self.written:
            return
        self.connection.finish(self, [*([] if self._begun else _BEGIN), *trailers_of(*self._end)])

    def on_left(self) -> None:
        """See RpcStream."""
        self._in_time()

    def _in_time(self) -> None:
        """What the other end had to do in time is done, or does not matter any more."""
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def on_written(self) -> None:
        """See RpcStream."""
        self._finish()


class Incoming(Served):
    """A stream that another node has opened (StreamIn)."""

    def __init__(self, service: Service, identity: str | None) -> None:
        super().__init__()
        self.identity = identity
        self.over = False
        self._service = service
        self._accepted = False
        self._late = asyncio.get_running_loop().call_later(
            service.hello_s, self.close, f"no hello within {service.hello_s:g} s")

    def close(self, why: str) -> None:
        """See StreamIn. After the acceptance the sentence is sent as a message too: other libraries may have a status
        of their own in the place of ours, when a write fails."""
        if not self.over:
            self.over = True
            self._refuse(why)

    def _refuse(self, why: str) -> None:
        self._in_time()
        if self._accepted:
            self.send(sentence(why).encode())
        self.finish(Status.FAILED_PRECONDITION, why)

    def on_message(self, data: bytes) -> None:
        """See RpcStream: the hello, then frames."""
        if self.over or self._service.stopped:
            return
        if self._accepted:
            self._service.streams.on_frame(self, data)
            return
        self._in_time()
        answer = self._service.streams.on_stream(self, data)
        if answer is None:
            self.close("refused")
        elif not self.over:
            self._accepted = True
            self.frames.message_bytes_max = self._service.message_bytes_max
            self.send(answer)

    def on_other(self, message: bytes) -> None:
        """See RpcStream."""
        try:
            data = field_of(message)
        except EnvelopeError as error:
            self.on_bad(str(error))
        else:
            self.on_message(data)

    def on_bad(self, why: str) -> None:
        """See RpcStream."""
        if not self.over:
            self._ended()
            self._refuse(why)

    def on_end(self) -> None:
        """See RpcStream."""
        self._ended()
        self.finish(Status.OK)

    def on_reset(self, why: str) -> None:
        """See RpcStream."""
        self._ended()

    def on_lost(self, why: str) -> None:
        """See RpcStream."""
        self._ended()

    def _ended(self) -> None:
        if not self.over:
            self._in_time()         # not the time in which a refusal has to leave
            self.over = True
            if self._accepted and not self._service.stopped:
                self._service.streams.on_end(self)


class Answering(Served):
    """A call of another node. limit_s: how long the caller waits; None: he has not said."""

    def __init__(self, service: Service, identity: str | None, limit_s: float | None) -> None:
        super().__init__()
        self._service = service
        self._identity = identity
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._counted: Http2Connection | None = None  # where it counts as served
        self._room = asyncio.Event()
        self._limit_s = ANSWER_S if limit_s is None else limit_s
        self._late = asyncio.get_running_loop().call_later(min(self._limit_s, MESSAGE_S), self._give_up)

    def _give_up(self) -> None:
        self.finish(Status.DEADLINE_EXCEEDED, "no answer in the time that the caller has given")
        self._cancel()

    def _cancel(self) -> None:
        """What the handler does at its own end is not cancelled."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def answered(self, status: Status, text: str = "") -> None:
        """Ends it, as its handler has said."""
        if self.connection is not None:
            self.connection.served()
        self.finish(status, text)

    async def write(self, part: bytes) -> None:
        """A part of the answer. Returns when the next one may be made."""
        self.send(part)
        while self.connection is not None and not self.written:
            self._room.clear()
            await self._room.wait()

    def on_written(self) -> None:
        """See RpcStream."""
        super().on_written()
        if self.written:
            self._room.set()

    def on_message(self, data: bytes) -> None:
        """See RpcStream: a CallRequest without a body."""
        try:
            self._begin(data.decode(), b"")
        except UnicodeDecodeError:
            self.on_bad("the name of a method is not UTF-8")

    def on_other(self, message: bytes) -> None:
        """See RpcStream."""
        try:
            method, body = call_of(message)
        except EnvelopeError as error:
            self.on_bad(str(error))
        else:
            self._begin(method, body)

    def _begin(self, method: str, body: bytes) -> None:
        if self._task is not None:
            self.on_bad("a second message in a call")
        elif not self._service.stopped and self._end is None and self.connection is not None:
            self._counted = self.connection
            self._counted.served()
            self._in_time()
            self._late = asyncio.get_running_loop().call_later(self._limit_s, self._give_up)
            self._task = self._service.start(self._service.answer(self, method, body, self._identity))

    def on_bad(self, why: str) -> None:
        """See RpcStream."""
        self.finish(Status.FAILED_PRECONDITION, why)
        self._cancel()

    def on_end(self) -> None:
        """See RpcStream. A request that is no message ends with its headers."""
        if self._task is None:
            self.on_bad("a call without a message")

    def on_reset(self, why: str) -> None:
        """See RpcStream."""
        if self._counted is not None and self._end is None:
            self._counted.unserved()
        self.on_lost(why)

    def on_lost(self, why: str) -> None:
        """See RpcStream."""
        self._room.set()
        self._cancel()


class Service:
    """What the calls of a server share. stopped: the handlers are not called any more."""

    def __init__(self, calls: CallHandler, streams: StreamHandler, hello_s: float, message_bytes_max: int,
                 start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        """start: runs a coroutine until the transport stops."""
        self.streams = streams
        self.hello_s = hello_s
        self.message_bytes_max = message_bytes_max
        self.start = start
        self.stopped = False
        self.open = 0  # streams and calls that are served
        self._calls = calls
        self._steps: set[asyncio.Task[None]] = set()    # of handlers of calls

    def stop(self) -> None:
        """The handlers are not called any more."""
        self.stopped = True
        for step in self._steps:
            step.cancel()

    async def answer(self, call: Answering, method: str, body: bytes, identity: str | None) -> None:
        """Gives a call its parts and its end."""
        parts = self._calls.on_call(method, body, identity)
        step: asyncio.Task[None] | None = None
        try:
            while True:
                got: list[bytes] = []
                step = self._begin_step(_next_part(parts, got))
                await asyncio.shield(step)
                if not got:
                    break
                await call.write(got[0])
            call.answered(Status.OK)
        except CallFailed as error:
            call.answered(Status.ABORTED if error.reached else Status.FAILED_PRECONDITION, str(error))
        except asyncio.CancelledError:
            if step is not None and step.cancelled():       # what it waited for was, and not the call
                call.answered(Status.ABORTED, "the answer was cancelled in the other node")
            raise
        except Exception as error:
            _complain(method, error)
            call.finish(Status.ABORTED, f"an error in the other node: {type(error).__name__}")
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
