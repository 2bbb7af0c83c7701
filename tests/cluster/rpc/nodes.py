"""Nodes for the tests of the transport: each notes what its handler is told."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from fluxmq.cluster.ports import CallFailed, StreamIn, StreamOut
from fluxmq.cluster.rpc.channels import Settings
from fluxmq.cluster.rpc.tls import Tls
from fluxmq.cluster.rpc.transport import GrpcTransport

__all__ = ["FAST", "Node", "failure_of", "parts_of", "send"]

# What a failing test waits for is as long as ever; what has to fail in time does so soon.
FAST = Settings(keepalive_s=1.0, hello_s=2.0)


def send(stream: StreamOut, frame: bytes) -> None:
    """Sends a frame. on_idle is called in any case when it has left, also if that is at once."""
    if stream.send(frame):
        asyncio.get_running_loop().call_soon(lambda: stream.idle and stream.on_idle())


class Node:
    """A transport and its handler. Streams are told apart by their hello.

    frames, ended: of streams that others have opened. opened, closed, idles: of its own. answer: what on_stream does.
    """

    def __init__(self, *, tls: Tls | None = None, settings: Settings = FAST, address: str = "127.0.0.1:0") -> None:
        self.transport = GrpcTransport(address, tls=tls, settings=settings)
        self.streams: dict[bytes, StreamIn] = {}
        self.frames: dict[bytes, list[bytes]] = {}
        self.ended: list[bytes] = []
        self.opened: dict[StreamOut, bytes] = {}
        self.closed: list[tuple[StreamOut, str]] = []
        self.idles: list[StreamOut] = []
        self.calls: list[tuple[str, bytes, str | None]] = []
        self.answer: Callable[[StreamIn, bytes], bytes | None] = lambda stream, hello: b"welcome " + hello
        self.on_event: Callable[..., None] = lambda name, *what: None
        self._hellos: dict[StreamIn, bytes] = {}
        self._changed = asyncio.Event()

    @property
    def address(self) -> str:
        return self.transport.address

    @property
    def target(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    async def __aenter__(self) -> Self:
        await self.transport.start(self, self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.transport.stop()

    async def until(self, ready: Callable[[], Any]) -> None:
        """Waits for events until it is so. The test's own time limit ends it."""
        while not ready():
            self._changed.clear()
            await self._changed.wait()

    async def dialled(self, address: str, hello: bytes = b"hello") -> StreamOut:
        """A stream that was accepted."""
        stream = self.transport.dial(address, hello)
        await self.until(lambda: stream in self.opened or self.whys(stream))
        assert stream in self.opened, self.whys(stream)
        return stream

    async def refused(self, address: str, hello: bytes = b"hello") -> str:
        """Why a stream is not accepted."""
        stream = self.transport.dial(address, hello)
        await self.until(lambda: stream in self.opened or self.whys(stream))
        assert stream not in self.opened
        return self.whys(stream)[0]

    def whys(self, stream: StreamOut) -> list[str]:
        return [why for closed, why in self.closed if closed is stream]

    def _event(self, name: str, *what: Any) -> None:
        self._changed.set()
        self.on_event(name, *what)

    # ── StreamHandler, CallHandler ────────────────────────────────────────────────────────────────────────────────

    def on_stream(self, stream: StreamIn, hello: bytes) -> bytes | None:
        answer = self.answer(stream, hello)
        self._hellos[stream] = hello
        self.streams[hello] = stream
        self.frames.setdefault(hello, [])
        self._event("stream", stream)
        return answer

    def on_frame(self, stream: StreamIn, frame: bytes) -> None:
        self.frames[self._hellos[stream]].append(frame)
        self._event("frame", stream, frame)

    def on_end(self, stream: StreamIn) -> None:
        self.ended.append(self._hellos[stream])
        self._event("end", stream)

    def on_open(self, stream: StreamOut, answer: bytes) -> None:
        assert stream not in self.opened
        stream.on_idle = partial(self._on_idle, stream)
        self.opened[stream] = answer
        self._event("open", stream)

    def _on_idle(self, stream: StreamOut) -> None:
        assert stream.idle
        self.idles.append(stream)
        self._event("idle", stream)

    def on_closed(self, stream: StreamOut, why: str) -> None:
        assert why and not stream.idle
        self.closed.append((stream, why))
        self._event("closed", stream)

    async def on_call(self, method: str, body: bytes, identity: str | None) -> AsyncIterator[bytes]:
        self.calls.append((method, body, identity))
        self._event("call", method)
        async for part in getattr(self, f"do_{method}", self.do_nothing)(body):
            yield part

    async def do_nothing(self, body: bytes) -> AsyncIterator[bytes]:
        raise CallFailed("there is no such method", reached=False)
        yield b""

    async def do_echo(self, body: bytes) -> AsyncIterator[bytes]:
        yield body


async def parts_of(node: Node, address: str, method: str = "echo", body: bytes = b"",
                   limit_s: float = 10) -> list[bytes]:
    return [part async for part in node.transport.call(address, method, body, limit_s)]


async def failure_of(node: Node, address: str, method: str = "echo", body: bytes = b"",
                     limit_s: float = 10) -> CallFailed:
    """How a call fails, which must."""
    try:
        parts = await parts_of(node, address, method, body, limit_s)
    except CallFailed as error:
        return error
    raise AssertionError(f"{method} succeeded: {parts}")
