"""Valid conversations, mutated: whatever comes, a connection goes on or is closed. Nothing is raised, reported, counted
twice or left behind, at either end."""
from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from cluster.rpc.conftest import Run
from cluster.rpc.nodes import send
from kit.http2 import (
    CALL,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    STREAM,
    begin,
    data,
    field,
    field_1,
    frame,
    headers,
    message,
    request,
    settings,
    window_update,
)
from kit.sizes import some

from fluxmq.cluster.ports import CallFailed
from fluxmq.cluster.rpc.channels import Settings
from fluxmq.cluster.rpc.envelope import wrap_call
from fluxmq.cluster.rpc.incoming import Service
from fluxmq.cluster.rpc.outgoing import ANSWER_BYTES_MAX, Outgoing, _Connection
from fluxmq.cluster.rpc.server import Server, ServerConnection
from fluxmq.model.address import Address

ROUND = 60      # conversations of a test


class Pipe(asyncio.Transport):
    """What a connection writes to; it may be full for a time."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.written = bytearray()
        self.closing = False
        self.protocol: Any = None
        self._chance = chance

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, *_: int) -> None:
        """Of its socket."""

    def fileno(self) -> int:
        """Of its socket: it has none, so everything is written here."""
        return -1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (1, 0)

    def write(self, data: Any) -> None:
        assert not self.closing, "it is closed"
        self.written += data
        if self._chance.random() < 0.1 and not self.protocol.full:
            self.protocol.pause_writing()
            asyncio.get_running_loop().call_soon(self.protocol.resume_writing)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


class Handler:
    """Of everything; what it is told must be allowed. It closes streams at any moment, and sends."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._open: set[Any] = set()
        self.ended: list[Any] = []
        self.closed: list[Any] = []

    def _close(self, stream: Any, *why: str) -> bool:
        if self._chance.random() < 0.1:
            stream.close(*why)
            self._open.discard(stream)
            return True
        return False

    def on_stream(self, stream: Any, hello: bytes) -> bytes | None:
        assert stream not in self._open and stream not in self.ended
        if self._chance.random() < 0.1:
            return None
        self._open.add(stream)
        self._close(stream, "why")
        return b"welcome"

    def on_frame(self, stream: Any, frame: bytes) -> None:
        assert stream in self._open
        self._close(stream, "enough")

    def on_end(self, stream: Any) -> None:
        self._open.remove(stream)
        self.ended.append(stream)

    def on_open(self, stream: Any, answer: bytes) -> None:
        self._open.add(stream)
        stream.on_idle = lambda: self._idle(stream)
        if not self._close(stream):
            send(stream, bytes(self._chance.choice((0, 10, 100_000))))

    def _idle(self, stream: Any) -> None:
        assert stream.idle and stream in self._open
        if not self._close(stream) and self._chance.random() < 0.7:
            send(stream, bytes(self._chance.choice((0, 10, 100_000))))

    def on_closed(self, stream: Any, why: str) -> None:
        assert why and stream not in self.closed
        self.closed.append(stream)
        self._open.discard(stream)

    async def on_call(self, method: str, body: bytes, identity: str | None) -> AsyncIterator[bytes]:
        if self._chance.random() < 0.2:
            raise CallFailed("refused", reached=self._chance.random() < 0.5)
        for _ in range(self._chance.randrange(4)):
            yield bytes(self._chance.choice((0, 10, 100_000)))


OK = field(b":status", b"200") + field(b"content-type", b"application/grpc")
GOODBYE = frame(7, 0, 0, bytes(8) + b"bye")


def to_server(chance: random.Random) -> list[bytes]:
    """Frames of a client: streams, calls, and what else may come."""
    found = [settings(), frame(SETTINGS, 0, 0, b"\0\x04" + chance.choice((bytes(4), b"\0\1\0\0", b"\x7f\xff\xff\xff")))]
    number = 1
    for _ in range(chance.randrange(1, 8)):
        kind = chance.randrange(8)
        if kind < 2:
            found += [request(headers(path=STREAM), None, number), data(number, message(field_1(b"hello")))]
            found += [data(number, message(field_1(chance.randbytes(chance.choice((0, 5, 2000))))))
                      for _ in range(chance.randrange(4))]
            found += [data(number, flags=END_STREAM)] * chance.randrange(2)
        elif kind < 4:
            body = wrap_call("echo", bytes(chance.choice((0, 5, 20_000))))
            found.append(request(headers((b"grpc-timeout", b"%dm" % chance.randrange(100)), path=CALL), body, number))
        elif kind == 4:
            block = headers(path=CALL)
            found += [frame(HEADERS, 0, number, block[:20]), frame(CONTINUATION, END_HEADERS, number, block[20:]),
                      data(number, message(wrap_call("x", b"")), pad=9), frame(3, 0, number, b"\0\0\0\x08")]
        elif kind == 5:
            found += [frame(HEADERS, END_HEADERS | END_STREAM, number, headers(path=b"/none")),
                      window_update(0, 100_000), window_update(number, 100_000)]
        elif kind == 6:
            found += [frame(6, 0, 0, b"12345678"), frame(SETTINGS, 1, 0), frame(2, 0, number, bytes(5)),
                      frame(SETTINGS, 0, 0, b"\0\x01\0\0\0\x10\0\x03\0\0\0\x01\0\x06\0\0\x10\0")]
        else:
            found += [request(headers(path=CALL), None, number), data(number, message(wrap_call("x", b""))),
                      frame(HEADERS, END_HEADERS | END_STREAM, number, field(b"x", b"y"))]
        number += 2
    return [*found, GOODBYE] if chance.random() < 0.1 else found


def to_client(chance: random.Random) -> list[bytes]:
    """Frames of a server, for the one stream that was opened."""
    trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, field(b"grpc-status", b"%d" % chance.randrange(20)) +
                     field(b"grpc-message", chance.choice((b"", b"why", b"%ff%zz%"))))
    found = [settings(), frame(SETTINGS, 1, 0), frame(HEADERS, END_HEADERS, 1, OK)]
    if chance.random() < 0.8:
        found += [data(1, message(field_1(b"welcome"))), window_update(0, 1 << 20), window_update(1, 1 << 20)]
    found += [chance.choice((frame(6, 0, 0, b"12345678"), window_update(1, 5), data(1, message(field_1(b"why"))),
                             frame(SETTINGS, 0, 0, b"\0\x04\0\1\0\0"), data(1, message(b"\x12\0"))))
              for _ in range(chance.randrange(6))]
    return found + chance.choice(([trailers], [], [frame(3, 0, 1, bytes(4))], [GOODBYE], [data(1, flags=END_STREAM)]))


def mutated(frames: list[bytes], chance: random.Random) -> bytes:
    """One or more things are wrong, or nothing."""
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        if not frames:
            break
        at, kind = chance.randrange(len(frames)), chance.randrange(8)
        one = bytearray(frames[at] or b"\0")
        if kind == 0:
            frames.pop(at)
        elif kind == 1:
            frames.insert(chance.randrange(len(frames)), bytes(one))
        elif kind == 2:
            frames.insert(at, frames.pop(chance.randrange(len(frames))))
        elif kind == 3:
            frames.insert(at, frame(chance.randrange(12), chance.choice((0, 1, 4, 5, 8, 0x20, 0xFF)),
                                    chance.choice((0, 1, 2, 3, 5, 99, 0x7FFFFFFF)),
                                    chance.randbytes(chance.choice((0, 4, 5, 8, 30)))))
        elif kind == 4:
            one[chance.randrange(min(9, len(one)))] ^= 1 << chance.randrange(8)
        elif kind == 5:
            one[chance.randrange(len(one))] = chance.randrange(256)
        elif kind == 6:
            del one[chance.randrange(len(one)):]
        else:
            place = chance.randrange(len(one))
            one[place:place] = chance.randbytes(chance.randrange(1, 4))
        if kind >= 4:
            frames[at] = bytes(one)
    return b"".join(frames)


async def say(connection: Any, said: bytes, chance: random.Random) -> None:
    """In pieces; nothing is said any more behind its end."""
    at = 0
    while at < len(said) and not connection._transport.closing:
        size = chance.choice((1, 9, 50, 1000, 1 << 20))
        connection.data_received(said[at:at + size])
        at += size
        if chance.random() < 0.3:
            await asyncio.sleep(0)


async def quiet(ready: Callable[[], Any]) -> None:
    while not ready():
        await asyncio.sleep(0)


async def serve(chance: random.Random) -> None:
    handler, tasks = Handler(chance), set[asyncio.Task[None]]()

    def start(coroutine: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    server = Server(Address("127.0.0.1", 0), keepalive_s=100, hello_s=100, context=None, start=start,
                    log=lambda *_: None)
    service = Service(handler, handler, 100, 30_000, start)
    connection = ServerConnection(server, service)
    pipe = Pipe(chance)
    pipe.protocol = connection
    connection.connection_made(pipe)
    seen: set[Any] = set()
    enter = connection.enter

    def enters(stream: Any, *more: int) -> None:
        seen.add(stream)
        enter(stream, *more)

    connection.enter = enters    # type: ignore[method-assign]
    await say(connection, mutated([begin(), *to_server(chance)], chance), chance)
    assert service.open == len(connection.streams)
    if chance.random() < 0.5:
        service.stop()
    connection.connection_lost(None if chance.random() < 0.5 else ConnectionResetError())
    await quiet(lambda: not tasks and not service._steps and not connection._look_due)
    assert service.open == 0 and not connection.streams and not server.connections
    assert len(set(handler.ended)) == len(handler.ended)
    assert all(getattr(stream, "_late", None) is None and stream.connection is None for stream in seen)
    assert connection._check is None and connection._ending is None


async def dial(chance: random.Random) -> None:
    handler = Handler(chance)
    stream = Outgoing("127.0.0.1:1", b"hello", Settings(keepalive_s=100, hello_s=100), handler)
    connection = _Connection(client=True, keepalive_s=100)
    pipe = Pipe(chance)
    pipe.protocol = connection

    async def connect(context: object) -> None:
        connection.connection_made(pipe)
        stream._own = connection
        connection.open(stream, [(b":method", b"POST"), (b":scheme", b"http"), (b":path", STREAM),
                                 (b":authority", b"x")], ANSWER_BYTES_MAX)
        connection.send(stream, b"hello")

    stream._connect = connect       # type: ignore[method-assign, assignment]
    serving = asyncio.ensure_future(stream.serve(None))
    if chance.random() < 0.3:
        stream.send(b"early")
    await quiet(lambda: stream.connection)
    await say(connection, mutated(to_client(chance), chance), chance)
    if chance.random() < 0.3:
        stream.close()
    connection.connection_lost(None)
    await serving
    assert not connection.streams and stream.connection is None and not stream.idle
    assert len(handler.closed) <= 1 and connection._check is None and connection._ending is None
    stream.send(b"nothing happens")
    await quiet(lambda: not connection._look_due)


@pytest.mark.parametrize("one", [serve, dial])
@pytest.mark.parametrize("turn", some(4, range(400)))
def test_mutated_conversations(run: Run, one: Callable[[random.Random], Any], turn: int, seed: int) -> None:
    async def test() -> None:
        for number in range(ROUND):
            name = f"{seed} {turn} {number}"
            try:
                await one(random.Random(name))
            except BaseException as error:
                error.add_note(f"conversation {name!r}")
                raise
    run(test())
