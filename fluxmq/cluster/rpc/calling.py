"""Calls of other nodes, over grpc.aio: they are few, and each is a question and an answer."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc
import grpc.aio

from fluxmq.cluster.ports import CallFailed
from fluxmq.cluster.rpc.envelope import EnvelopeError, field_of, wrap_call
from fluxmq.cluster.rpc.incoming import SERVICE
from fluxmq.cluster.rpc.tls import meaning_in

__all__ = ["ask"]

_CALL = f"/{SERVICE}/Call"
# There is none, or it broke. grpc.aio has INTERNAL when a write failed before the true status was known.
_NO_CONNECTION = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED)
# What grpc.aio raises from an operation on a call that has ended, or that ends meanwhile.
_ENDED = (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError)


def _plain(details: str) -> str:
    """gRPC tells a chain, the last of which is what the system or TLS said."""
    last = details.rsplit("last error: ", 1)[-1]
    meaning = meaning_in(last)
    return f"{meaning} ({last})" if meaning else last


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
