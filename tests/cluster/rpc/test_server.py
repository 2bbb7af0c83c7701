"""What this node serves, to clients of gRPC that are not ours and to sockets: calls beside a stream on one connection,
limits, time limits, certificates, and the end of connections."""
from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
import hpack
import psutil
import pytest
from cluster.rpc.conftest import Run
from cluster.rpc.nodes import FAST, Node, parts_of
from kit.certs import CertificateAuthority, issue, make_ca
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

from fluxmq.cluster.rpc import connection, incoming, server
from fluxmq.cluster.rpc.channels import Settings
from fluxmq.cluster.rpc.envelope import field_of, wrap_call, wrap_field
from fluxmq.cluster.rpc.tls import Tls
from fluxmq.cluster.rpc.transport import GrpcTransport

pytestmark = pytest.mark.usefixtures("no_socket_is_left")

RST_STREAM, PING, GOAWAY = 3, 6, 7
ACK = 1
NO_ERROR, PROTOCOL_ERROR, CANCEL, CALM = 0, 1, 8, 11
PATIENT = Settings(keepalive_s=60.0, hello_s=60.0)
STREAM_PATH, CALL_PATH = STREAM.decode(), CALL.decode()


class Answers(Node):
    """step: lets do_steps go on. asked: parts that it was asked for. made: bytes of do_flood."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.step = asyncio.Event()
        self.asked = 0
        self.made = 0

    async def do_steps(self, body: bytes) -> AsyncIterator[bytes]:
        while True:
            self.asked += 1
            self._event("asked")
            await self.step.wait()
            self.step.clear()
            yield body

    async def do_flood(self, body: bytes) -> AsyncIterator[bytes]:
        while self.made < 100_000_000:
            yield bytes(100_000)
            self.made += 100_000

    async def do_many(self, body: bytes) -> AsyncIterator[bytes]:
        for number in range(int(body)):
            yield b"%d" % number * 20_000

    def nothing_is_open(self) -> None:
        """Neither a call, nor a time limit of one."""
        service = self.transport._service
        assert service is not None and service.open == 0 and not service._steps
        assert not any(each.streams for each in self.transport._server.connections)


class Raw:
    """A client with frames by hand. All that the server sends is kept; `headers`: those of each block, by stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.seen: list[tuple[int, int, int, bytes]] = []
        self.headers: dict[int, dict[bytes, bytes]] = {}
        self._decoder = hpack.Decoder()

    @classmethod
    async def to(cls, node: Node, *sent: bytes, context: ssl.SSLContext | None = None) -> Self:
        raw = cls(*await asyncio.open_connection(*node.target, ssl=context))
        raw.send(*sent)
        return raw

    def send(self, *sent: bytes) -> None:
        self.writer.write(b"".join(sent))

    async def frame(self) -> tuple[int, int, int, bytes] | None:
        """The next one; None at the end."""
        try:
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        found = head[3], head[4], int.from_bytes(head[5:]), payload
        self.seen.append(found)
        if found[0] == HEADERS:
            block = self._decoder.decode(payload, raw=True)
            self.headers.setdefault(found[2], {}).update((bytes(name), bytes(value)) for name, value in block)
        return found

    async def until(self, ready: Callable[[], Any]) -> None:
        """Reads until it is so."""
        while not ready():
            assert await self.frame() is not None, self.seen

    async def end(self) -> list[tuple[int, bytes]]:
        """Reads to the end of the connection: code and text of each GOAWAY."""
        while await self.frame() is not None:
            pass
        return [(int.from_bytes(payload[4:8]), payload[8:]) for kind, _, _, payload in self.seen if kind == GOAWAY]

    async def status(self, stream: int = 1) -> tuple[int, bytes]:
        await self.until(lambda: b"grpc-status" in self.headers.get(stream, {}))
        return int(self.headers[stream][b"grpc-status"]), self.headers[stream].get(b"grpc-message", b"")

    async def pong(self) -> None:
        """Everything that was sent has been read by the server."""
        before = len(self.seen)
        self.send(frame(PING, 0, 0, b"question"))
        await self.until(lambda: (PING, ACK, 0, b"question") in self.seen[before:])

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as found:
        yield found


@asynccontextmanager
async def bystander(node: Node) -> AsyncIterator[Callable[[], Any]]:
    """Another node with a stream; gives a check that it carries frames, that a call is answered and a stream opened."""
    async with Node(settings=PATIENT) as other:
        stream = await other.dialled(node.address, b"bystander")
        count = 0

        async def check() -> None:
            nonlocal count
            count += 1
            stream.send(b"%d" % count)
            await node.until(lambda: len(node.frames[b"bystander"]) == count)
            assert await parts_of(other, node.address, "echo", b"x") == [b"x"]
            (await other.dialled(node.address, b"another")).close()
            assert not other.closed and b"bystander" not in node.ended

        await check()
        yield check
        await check()


def call(stream: int, method: str = "echo", body: bytes = b"x", **fields: Any) -> bytes:
    return request(headers(path=CALL, **fields), wrap_call(method, body), stream)


def connections(node: Node) -> int:
    return len(node.transport._server.connections)


async def eventually(ready: Callable[[], Any]) -> None:
    """For what tells nobody. The test's own time limit ends it."""
    while not ready():
        await asyncio.sleep(0.005)


# ── calls and streams of other libraries ─────────────────────────────────────────────────────────────────────────


def test_a_stream_and_calls_on_one_connection(run: Run) -> None:
    async def test() -> None:
        async with Answers() as node, channel(node.address) as one:
            stream: Any = one.stream_stream(STREAM_PATH)()
            await stream.write(wrap_field(b"hello"))
            assert field_of(await stream.read()) == b"welcome hello"

            async def ask(number: int) -> None:
                parts: Any = one.unary_stream(CALL_PATH)(wrap_call("many", b"%d" % number))
                assert [field_of(part) async for part in parts] == [b"%d" % each * 20_000 for each in range(number)]

            asking = asyncio.gather(*map(ask, range(20)))
            for number in range(50):
                await stream.write(wrap_field(b"%d" % number * 10_000))
            await asking
            await node.until(lambda: len(node.frames[b"hello"]) == 50)
            assert node.frames[b"hello"] == [b"%d" % number * 10_000 for number in range(50)]
            assert connections(node) == 1
            await stream.done_writing()
            assert await stream.code() is grpc.StatusCode.OK
            assert node.ended == [b"hello"]
            await eventually(lambda: not node.transport._service.open)      # type: ignore[union-attr]
            node.nothing_is_open()
    run(test())


def test_large_bodies_and_a_caller_that_reads_nothing(run: Run) -> None:
    """Windows hold each back by itself."""
    async def test() -> None:
        async with Answers() as node, channel(node.address) as one, bystander(node) as check:
            slow: Any = one.unary_stream(CALL_PATH)(wrap_call("flood", b""))
            body = bytes(range(256)) * (12 << 10)
            echo: Any = one.unary_stream(CALL_PATH)(wrap_call("echo", body))
            await check()
            assert field_of(await slow.read())
            assert await parts_of(node, node.address, "echo", body) == [body]
            await check()
            assert node.made < 64 << 20
            assert field_of(await echo.read()) == body
            slow.cancel()
            service = node.transport._service
            assert service is not None
            await eventually(lambda: service.open == 1)     # the bystander's stream
    run(test())


def test_many_calls_on_one_connection_cost_nothing_that_stays(run: Run) -> None:
    """Nor do they count as a flood, in a period that does not end meanwhile."""
    async def test() -> None:
        async with Answers(settings=PATIENT) as node, Node(settings=PATIENT) as other:
            async def some(count: int) -> None:
                for number in range(count):
                    assert await parts_of(other, node.address, "echo", b"%d" % number) == [b"%d" % number]

            await some(700)
            before = psutil.Process().memory_info().rss
            await some(1300)
            assert psutil.Process().memory_info().rss - before < 16 << 20
            one, = node.transport._server.connections
            assert len(one._h2.streams) < 10
            await eventually(lambda: not one.streams)
            node.nothing_is_open()
    run(test())


def test_many_calls_that_wait_at_a_time(run: Run) -> None:
    """All calls of a node come on one connection: what waits neither holds up others, nor counts as a flood."""
    async def test() -> None:
        async with Answers(settings=PATIENT) as node, channel(node.address) as one:
            waiting: list[Any] = [one.unary_stream(CALL_PATH)(wrap_call("steps", b"")) for _ in range(600)]
            await eventually(lambda: node.asked == 600)
            asking: Any = one.unary_stream(CALL_PATH)(wrap_call("echo", b"x"))
            assert field_of(await asking.read()) == b"x"
            for call_ in waiting:
                call_.cancel()
            await eventually(lambda: not node.transport._service.open)      # type: ignore[union-attr]
            node.step.set()
    run(test())


@pytest.mark.parametrize("kind", ["no message", "no window"])
def test_a_call_that_does_not_go_on_ends(run: Run, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although its connection lives: it would hold one of the places of all nodes for ever."""
    for name in ("MESSAGE_S", "ANSWER_S", "END_S"):
        monkeypatch.setattr(incoming, name, 0.1)

    async def test() -> None:
        async with Answers(settings=PATIENT) as node:
            window = frame(SETTINGS, 0, 0, b"\0\4" + bytes(4)) if kind == "no window" else settings()
            raw = await Raw.to(node, begin(window, request(headers(path=CALL), None) if kind == "no message"
                                           else call(1, "echo")))
            await raw.pong()
            await eventually(lambda: not node.transport._service.open)      # type: ignore[union-attr]
            raw.close()
    run(test())


def test_a_stream_that_is_refused_without_a_window_ends_although_the_other_end_has_finished(
        run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "END_S", 0.1)

    async def test() -> None:
        async with Answers(settings=PATIENT) as node:
            raw = await Raw.to(node, begin(frame(SETTINGS, 0, 0, b"\0\4" + bytes(4)),
                                           request(headers(path=STREAM), None), data(1, message(field_1(b"hello")))))
            await node.until(lambda: node.streams)
            node.streams[b"hello"].close("enough")
            raw.send(data(1, b"", 1))           # END_STREAM
            await raw.pong()
            await eventually(lambda: not node.transport._service.open)      # type: ignore[union-attr]
            raw.close()
    run(test())


def test_who_reads_no_answers_is_not_answered(run: Run) -> None:
    """Calls that end without a message, one after the other: what they are told gathers up to the limit of calls."""
    async def test() -> None:
        async with Answers(settings=PATIENT) as node:
            raw = await Raw.to(node, begin(settings()))
            await raw.pong()
            one, = node.transport._server.connections
            one.full = True
            for number in range(1, 400, 2):
                raw.send(call(number, "x" * 1900))
            await eventually(lambda: len(one.streams) == 200)
            assert one._frames.outgoing_bytes == 0
            one.resume_writing()
            await eventually(lambda: not one.streams)
            raw.close()
    run(test())


def test_a_frame_that_comes_with_the_headers(run: Run) -> None:
    async def test() -> None:
        async with Answers() as node:
            raw = await Raw.to(node, begin(settings(), request(headers(path=STREAM), None),
                                           data(1, message(field_1(b"hello"))), data(1, message(field_1(b"first"))),
                                           call(3)))
            await node.until(lambda: node.frames.get(b"hello") == [b"first"])
            assert await raw.status(3) == (0, b"")
            raw.close()
            await node.until(lambda: node.ended == [b"hello"])
    run(test())


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────


def test_other_paths_and_compression_are_refused(run: Run) -> None:
    async def test() -> None:
        async with Answers() as node, channel(node.address) as one:
            unknown: Any = one.unary_unary("/fluxmq.cluster.v1.Peer/Nothing")(b"x")
            assert await unknown.code() is grpc.StatusCode.UNIMPLEMENTED
            assert await unknown.details() == "there is no /fluxmq.cluster.v1.Peer/Nothing"
            for path in (STREAM, CALL):
                raw = await Raw.to(node, begin(settings(), request(
                    headers((b"grpc-encoding", b"gzip"), path=path), wrap_call("echo", b""))))
                assert await raw.status() == (12, b"messages are not compressed here")
                raw.close()
            assert not node.calls and not node.streams
            raw = await Raw.to(node, begin(settings(), request(headers(path=CALL), None),
                                           data(1, message(wrap_call("echo", b""), flag=1))))
            code, text = await raw.status()
            assert code == 9 and b"compressed" in text
            raw.close()
            await eventually(lambda: not node.transport._service.open)      # type: ignore[union-attr]
            node.nothing_is_open()
    run(test())


@pytest.mark.parametrize("block, status", [
    (headers(path=CALL).replace(b"\x04POST", b"\x03GET"), b"405"),
    (headers(path=CALL).replace(b"application/grpc", b"application/json"), b"415"),
    (headers(path=CALL).replace(b"\x10application/grpc", b"\x14application/grpc-web"), b"415"),
    (headers(path=CALL).replace(field(b"content-type", b"application/grpc"), b""), b"415")])
@pytest.mark.parametrize("ends", [False, True])
def test_what_is_no_call_of_grpc(run: Run, block: bytes, status: bytes, ends: bool) -> None:
    async def test() -> None:
        async with Answers() as node:
            raw = await Raw.to(node, begin(settings(), frame(HEADERS, END_HEADERS | ends * END_STREAM, 1, block),
                                           call(3)))
            assert await raw.status(3) == (0, b"")
            assert raw.headers[1] == {b":status": status}
            raw.close()
            node.nothing_is_open()
    run(test())


@pytest.mark.parametrize("sent, why", [
    (data(1, message(wrap_call("steps", b""))) * 2, b"a second message in a call"),
    (data(1, flags=END_STREAM), b"a call without a message"),
    (frame(HEADERS, END_HEADERS | END_STREAM, 1, field(b"x", b"trailers")), b"a call without a message"),
    (data(1, message(wrap_call("echo", b""))[:-1], END_STREAM), b"it ends within a message"),
    (data(1, message(b"\x0a\x02\xff\xfe")), b"the name of a method is not UTF-8")])
def test_calls_that_are_none(run: Run, sent: bytes, why: bytes) -> None:
    async def test() -> None:
        async with Answers() as node:
            raw = await Raw.to(node, begin(settings(), request(headers(path=CALL), None), sent))
            assert await raw.status() == (9, why)
            node.step.set()     # a handler that has begun goes on to its next part
            await eventually(lambda: not node.transport._tasks - node.transport._server._tasks)
            raw.close()
            await eventually(lambda: not node.transport._service._steps)    # type: ignore[union-attr]
            node.nothing_is_open()
    run(test())


def test_a_call_whose_headers_alone_are_its_end(run: Run) -> None:
    async def test() -> None:
        async with Answers() as node:
            for path in (CALL, STREAM, b"/none"):
                raw = await Raw.to(node, begin(settings(), frame(
                    HEADERS, END_HEADERS | END_STREAM, 1, headers(path=path))))
                assert (await raw.status())[0] == {CALL: 9, STREAM: 0, b"/none": 12}[path]
                raw.close()
            node.nothing_is_open()
    run(test())


# ── time limits and cancellation ─────────────────────────────────────────────────────────────────────────────────


def test_a_time_limit_ends_a_call(run: Run) -> None:
    async def test() -> None:
        async with Answers() as node:
            raw = await Raw.to(node, begin(settings(), request(
                headers((b"grpc-timeout", b"50m"), path=CALL), wrap_call("steps", b""))))
            code, text = await raw.status()
            assert code == 4 and b"in the time that the caller has given" in text
            node.step.set()
            raw.close()
            await eventually(lambda: not node.transport._service._steps)    # type: ignore[union-attr]
            assert node.asked == 1
            node.nothing_is_open()
    run(test())


@pytest.mark.parametrize("given", [
    b"", b"1", b"S", b"-1S", b"1s", b"1.5S", b"123456789S", b"1S ", b"\xff", b"99999999H"])
def test_a_time_limit_that_is_none_does_not_matter(run: Run, given: bytes) -> None:
    async def test() -> None:
        async with Answers() as node:
            raw = await Raw.to(node, begin(settings(), request(
                headers((b"grpc-timeout", given), path=CALL), wrap_call("echo", b""))))
            if given == b"1S ":     # a value of a header ends with no space (RFC 9113 section 8.2.1)
                assert (await raw.end())[0][0] == PROTOCOL_ERROR
            else:
                assert await raw.status() == (0, b"")
            raw.close()
            node.nothing_is_open()
    run(test())


@pytest.mark.parametrize("how", ["answered", "refused", "no hello"])
def test_no_timer_stays_behind_a_call(run: Run, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        left: list[Any] = []
        real = server.ServerConnection.on_left

        def note(self: server.ServerConnection, stream: Any) -> None:
            left.append(stream)
            real(self, stream)

        monkeypatch.setattr(server.ServerConnection, "on_left", note)
        async with Answers() as node:
            more = [(b"grpc-timeout", b"99999999H")]
            if how == "refused":
                more.append((b"grpc-encoding", b"gzip"))
            path = STREAM if how == "no hello" else CALL
            raw = await Raw.to(node, begin(settings(), request(headers(*more, path=path), None)))
            if how != "no hello":
                raw.send(data(1, message(wrap_call("echo", b"")), END_STREAM))
                await raw.status()
            else:
                await raw.pong()
            raw.close()
            await eventually(lambda: left)
            assert left[0]._late is None
    run(test())


def test_a_caller_that_cancels_is_asked_for_no_further_part(run: Run) -> None:
    async def test() -> None:
        async with Answers() as node, channel(node.address) as one:
            asking: Any = one.unary_stream(CALL_PATH)(wrap_call("steps", b"x"))
            node.step.set()
            assert field_of(await asking.read()) == b"x"
            await node.until(lambda: node.asked == 2)
            asking.cancel()
            await eventually(lambda: not node.transport._service.open)      # type: ignore[union-attr]
            node.step.set()
            await eventually(lambda: not node.transport._service._steps)    # type: ignore[union-attr]
            assert node.asked == 2
            node.nothing_is_open()
    run(test())


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_more_streams_than_a_connection_may_have(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STREAMS_MAX", 100)

    async def test() -> None:
        async with Answers(settings=PATIENT) as node, bystander(node) as check:
            numbers = range(1, 2 * server.STREAMS_MAX, 2)
            raw = await Raw.to(node, begin(settings(), *(request(headers(path=CALL), None, each) for each in numbers)))
            await raw.pong()
            assert node.transport._service.open >= server.STREAMS_MAX       # type: ignore[union-attr]
            await check()
            raw.send(request(headers(path=CALL), None, numbers[-1] + 2))
            (code, text), = await raw.end()
            assert code == PROTOCOL_ERROR and text
            raw.close()
            # grpc waits for its turn.
            async with channel(node.address) as one:
                async def ask() -> None:
                    asking: Any = one.unary_stream(CALL_PATH)(wrap_call("echo", b"x"))
                    assert field_of(await asking.read()) == b"x" and await asking.code() is grpc.StatusCode.OK

                await asyncio.gather(*(ask() for _ in range(250)))
    run(test())


def test_more_connections_than_there_may_be(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent ones are bounded, and go after a time; then there is room again."""
    async def test() -> None:
        async with Node() as node, Node() as other:
            stream = await other.dialled(node.address)
            monkeypatch.setattr(server, "CONNECTIONS_MAX", 5)
            raws = [await Raw.to(node) for _ in range(30)]
            await asyncio.gather(*(raw.end() for raw in raws))
            assert sum(bool(raw.seen) for raw in raws) <= 5     # the others got nothing
            stream.send(b"x")
            await node.until(lambda: node.frames[b"hello"])
            for raw in raws:
                raw.close()
            await eventually(lambda: connections(node) == 1)
            await other.dialled(node.address, b"another")
            assert not other.closed
    run(test())


def test_accepting_fails_and_recovers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        logged: list[tuple[str, str, str]] = []
        loop = asyncio.get_running_loop()
        left = [4]

        class Loop:
            async def sock_accept(self, listener: socket.socket) -> Any:
                if left[0]:
                    left[0] -= 1
                    raise OSError(errno.EMFILE, "Too many open files")
                return await loop.sock_accept(listener)

            def __getattr__(self, name: str) -> Any:
                return getattr(loop, name)

        class Asyncio:
            def get_running_loop(self) -> Any:
                return Loop()

            def __getattr__(self, name: str) -> Any:
                return getattr(asyncio, name)

        monkeypatch.setattr(server, "asyncio", Asyncio())
        monkeypatch.setattr(server, "RETRY_S", 0.05)
        async with Node() as other:
            node = Node()
            node.transport = GrpcTransport("127.0.0.1:0", settings=FAST, log=lambda level, cause, text, fields:
                                           logged.append((level, cause, text)))
            async with node:
                await eventually(lambda: node.transport.problem)
                assert node.transport.problem == "no other node gets a connection to this one: Too many open files"
                await other.dialled(node.address)
                assert not node.transport.problem and not left[0]
        assert logged == [("error", "transport accept",
                           "no other node gets a connection to this one: Too many open files")]
    run(test())


def _floods() -> dict[str, tuple[bytes, bytes]]:
    resets = b"".join(request(headers(path=CALL), None, each) + frame(RST_STREAM, 0, each, b"\0\0\0\x08")
                      for each in range(1, 6000, 2))
    calls = b"".join(call(each, "steps") + frame(RST_STREAM, 0, each, b"\0\0\0\x08") for each in range(1, 6000, 2))
    return {
        "SETTINGS": settings() * 3000,
        "acknowledgements": frame(SETTINGS, ACK, 0) * 3000,
        "PING": frame(PING, 0, 0, b"12345678") * 3000,
        "resets": resets,
        "calls that are reset": calls,
        "windows": window_update(0, 1) * 3000,
        "empty DATA": request(headers(path=CALL), None) + data(1) * 3000,
        "unknown frames": frame(0x42, 0, 0) * 3000,
        "priorities": frame(2, 0, 1, bytes(4) + b"\x10") * 3000,
        "headers without end": frame(HEADERS, 0, 1, headers(path=CALL)) + frame(CONTINUATION, 0, 1) * 3000,
        "unknown paths": b"".join(request(headers(path=b"/%d" % each), b"", each) for each in range(1, 6000, 2)),
    }


@pytest.mark.parametrize("kind", _floods())
def test_who_floods_is_closed(run: Run, kind: str) -> None:
    async def test() -> None:
        async with Answers(settings=PATIENT) as node, bystander(node) as check:
            raw = await Raw.to(node, begin(settings()))
            with contextlib.suppress(ConnectionError):
                raw.send(_floods()[kind])
                reading = asyncio.ensure_future(raw.end())
                await check()
                said = await reading
                # The library has a limit of its own for frames of one block.
                codes = [PROTOCOL_ERROR] if kind == "headers without end" else [CALM]
                assert [code for code, _ in said] in (codes, []), said
            raw.close()
            node.step.set()
            while node.transport._service._steps:       # type: ignore[union-attr]
                node.step.set()
                await asyncio.sleep(0)
            await check()
            assert node.asked <= 1000
    run(test())


def test_headers_that_unpack_to_more_than_their_limit(run: Run) -> None:
    """A field of the dynamic table, referred to again and again."""
    async def test() -> None:
        async with Answers(settings=PATIENT) as node, bystander(node):
            bomb = b"\x40\x01a\x7f\x81\x0f" + b"x" * 2048 + b"\xbe" * 10
            raw = await Raw.to(node, begin(settings(), frame(HEADERS, END_HEADERS, 1, headers(path=CALL) + bomb)))
            (code, _), = await raw.end()
            assert code == CALM
            raw.close()
    run(test())


def test_who_allows_a_huge_table_of_headers_does_not_fill_it(run: Run) -> None:
    async def test() -> None:
        async with Answers() as node:
            raw = await Raw.to(node, begin(frame(SETTINGS, 0, 0, b"\0\x01\x7f\xff\xff\xff")))
            raw._decoder.max_allowed_table_size = 0x7FFFFFFF
            for number in range(1, 400, 2):
                raw.send(request(headers(path=b"/%d" % number * 20), b"", number))
                assert (await raw.status(number))[0] == 12
            one, = node.transport._server.connections
            assert one._h2.encoder.header_table_size <= connection.TABLE_BYTES_MAX
            raw.close()
    run(test())


def test_who_does_not_read_what_it_asks_for_is_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA pays for pings, but the answers would gather without end."""
    monkeypatch.setattr(connection, "ANSWERS_BYTES_MAX", 4096)

    async def test() -> None:
        async with Answers(settings=PATIENT) as node, bystander(node) as check:
            raw = await Raw.to(node, begin(settings(), call(1, "flood")))
            raw.writer.transport.pause_reading()        # type: ignore[attr-defined]
            raw.send(frame(SETTINGS, 0, 0, b"\0\x04\x7f\xff\xff\xff"), window_update(0, 0x7FFFFFFF - 65535))
            await eventually(lambda: any(each.full for each in node.transport._server.connections))
            body = data(3, bytes(16384))
            raw.send(request(headers(path=b"/nothing"), None, 3))
            raw.send(*[body + frame(PING, 0, 0, b"12345678") for _ in range(200)] * 5)
            await eventually(lambda: len(node.transport._server.connections) <= 2)
            await check()
            raw.writer.transport.abort()                # type: ignore[attr-defined]
    run(test())


# ── whether the other end is there ───────────────────────────────────────────────────────────────────────────────


def test_who_answers_pings_stays_and_who_does_not_goes(run: Run) -> None:
    async def test() -> None:
        async with Node() as node:
            good, bad = [await Raw.to(node, begin(settings(), request(headers(path=STREAM), None),
                                                  data(1, message(field_1(name))))) for name in (b"good", b"bad")]
            reading = asyncio.ensure_future(bad.end())
            answered = 0
            while answered < 4:
                found = await good.frame()
                assert found is not None
                if found[0] == PING and not found[1]:
                    answered += 1
                    good.send(frame(PING, ACK, 0, found[3]))
            assert await reading == [] and node.ended == [b"bad"]
            assert node.streams.keys() == {b"good", b"bad"} and connections(node) == 1
            good.close()
            bad.close()
            await node.until(lambda: len(node.ended) == 2)
    run(test())


@pytest.mark.parametrize("periods", [1.2, 3.0])
def test_a_process_that_stood_still_does_not_break_its_connections(run: Run, periods: float) -> None:
    """Whether it stood still for a little more than a period, or for long: what has come meanwhile is read first."""
    async def test() -> None:
        async with Node() as one, Node() as other:
            stream = await one.dialled(other.address)
            raw = await Raw.to(other, begin(settings()))

            def sent() -> int:
                return sum(each._pinged for each in other.transport._server.connections)

            # From the moment of a ping, whose answer lies in the socket when the loop goes on.
            for _ in range(3):
                await eventually(sent)
                time.sleep(periods * FAST.keepalive_s)      # noqa: ASYNC251
                await eventually(lambda: not stream_pinged(other))
            stream.send(b"x")
            await other.until(lambda: other.frames[b"hello"])
            assert not one.closed and not other.ended
            raw.close()

    def stream_pinged(node: Node) -> bool:
        return any(each._pinged for each in node.transport._server.connections if each.streams)

    run(test())


@asynccontextmanager
async def raw_server(*answer: bytes) -> AsyncIterator[str]:
    """Sends this once a stream was opened, and reads on."""
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(65536)
            writer.write(b"".join(answer))
            while await reader.read(65536):
                pass
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()


ACCEPTED = settings() + frame(HEADERS, END_HEADERS, 1, field(b":status", b"200") + field(
    b"content-type", b"application/grpc")) + data(1, message(field_1(b"welcome")))


@pytest.mark.parametrize("code, text, why", [(CALM, b"too_many_pings", "too_many_pings"), (NO_ERROR, b"", "NO_ERROR"),
                                             (0x77, b"\xff", "\N{REPLACEMENT CHARACTER}"), (0x77, b"", "119")])
@pytest.mark.parametrize("opened", [False, True])
def test_goaway_ends_a_stream_with_its_reason(run: Run, code: int, text: bytes, why: str, opened: bool) -> None:
    async def test() -> None:
        goaway = frame(GOAWAY, 0, 0, bytes(4) + code.to_bytes(4) + text)
        async with Node() as node, raw_server(ACCEPTED if opened else settings(), goaway) as address:
            stream = node.transport.dial(address, b"hello")
            await node.until(lambda: node.closed)
            assert node.whys(stream) == [f"the connection to {address} broke: it closed the connection: {why}"]
            assert (stream in node.opened) is opened
    run(test())


@pytest.mark.parametrize("sent", [
    frame(HEADERS, END_HEADERS, 2, headers()), frame(5, END_HEADERS, 1, b"\0\0\0\x02" + headers()),
    frame(HEADERS, END_HEADERS, 3, headers()), data(3, b"x"), b"HTTP/1.1 400 Bad Request\r\n\r\n",
    settings() * 3000, frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff")])
@pytest.mark.parametrize("opened", [False, True])
def test_a_server_that_is_none(run: Run, sent: bytes, opened: bool) -> None:
    async def test() -> None:
        async with Node() as node, raw_server(ACCEPTED if opened else b"", sent) as address:
            stream = node.transport.dial(address, b"hello")
            await node.until(lambda: node.closed)
            assert len(node.whys(stream)) == 1 and (stream in node.opened) is opened
    run(test())


# ── this node's own streams ──────────────────────────────────────────────────────────────────────────────────────


def test_what_was_sent_early_is_ahead_of_what_on_open_sends(run: Run) -> None:
    async def test() -> None:
        async with Node() as one, Node() as other:
            one.on_event = lambda name, *what: what[0].send(b"third") if name == "open" else None
            stream = one.transport.dial(other.address, b"hello")
            stream.send(b"first")
            stream.send(b"second")
            await other.until(lambda: len(other.frames.get(b"hello", ())) == 3)
            assert other.frames[b"hello"] == [b"first", b"second", b"third"]
    run(test())


def test_nothing_is_sent_behind_close(run: Run) -> None:
    async def test() -> None:
        async with Node() as one, Node() as other:
            stream = await one.dialled(other.address)
            stream.close()
            stream.send(b"nothing happens")
            await other.until(lambda: other.ended)
            assert other.frames[b"hello"] == [] and not one.idles
    run(test())


@pytest.mark.parametrize("address", [
    "nonsense", "", ":", "x" * 64 + ".example:1", "a..b:1", "*:1", "[::1:1", "h:70000"])
def test_an_address_that_is_none(run: Run, address: str) -> None:
    async def test() -> None:
        async with Node() as one:
            assert (await one.refused(address)).startswith(f"{address} cannot be reached: ")
    run(test())


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return make_ca(tmp_path_factory.mktemp("authority"))


def tls(authority: CertificateAuthority, name: str = "broker-1") -> Tls:
    certificate, key = issue(authority, name, ip=["127.0.0.1"])
    return Tls(authority.cert_file.read_bytes(), Path(certificate).read_bytes(), Path(key).read_bytes())


def test_handshakes_that_never_end_hold_up_nobody(run: Run, authority: CertificateAuthority) -> None:
    """Neither one without a byte, nor one that stops in the middle."""
    async def test() -> None:
        # Time for the handshakes of the others, which are on the same processor.
        async with Node(tls=tls(authority), settings=FAST._replace(hello_s=1.5)) as node, \
                Node(tls=tls(authority), settings=PATIENT) as other:
            raws = [await Raw.to(node, b"\x16\x03\x01\x02\x00" * (number % 2)) for number in range(40)]
            await other.dialled(node.address)
            assert await parts_of(other, node.address, "echo", b"x") == [b"x"]
            await asyncio.gather(*(raw.reader.read() for raw in raws))
            for raw in raws:
                raw.close()
            await eventually(lambda: len(node.transport._server._tasks) == 1)
            assert connections(node) == 2
    run(test())


def test_stop_while_handshakes_and_calls_are_under_way(run: Run, authority: CertificateAuthority) -> None:
    async def test() -> None:
        async with Answers(tls=tls(authority)) as node, Node(tls=tls(authority), settings=PATIENT) as other:
            silent = [await Raw.to(node) for _ in range(10)]
            stream = await other.dialled(node.address)
            asking = [asyncio.ensure_future(parts_of(other, node.address, "steps")) for _ in range(5)]
            await node.until(lambda: node.asked == 5)
            dialling = [other.transport.dial(node.address, b"%d" % number) for number in range(10)]
            await asyncio.sleep(0)
            service = node.transport._service
            assert service is not None
            await node.transport.stop()
            assert not node.transport._tasks and not node.transport._server._tasks and not connections(node)
            assert service.open == 0
            await other.until(lambda: all(map(other.whys, [stream, *dialling])))
            assert len(other.closed) == 11
            for task in asking:
                with pytest.raises(Exception, match="broke"):
                    await task
            for raw in silent:
                with contextlib.suppress(ConnectionError):
                    assert await raw.reader.read() == b""
                raw.close()
    run(test())


@pytest.mark.parametrize("secure", [False, True])
def test_stop_at_any_moment_of_an_acceptance(run: Run, authority: CertificateAuthority, secure: bool) -> None:
    async def test() -> None:
        mine = tls(authority) if secure else None
        for turns in range(20):
            node = Node(tls=mine)
            await node.transport.start(node, node)
            sockets = []
            for _ in range(3):
                each = socket.create_connection(node.target)
                each.setblocking(False)
                each.sendall(b"\x16\x03\x01\x00\x40" if secure else begin(settings()))
                sockets.append(each)
            for _ in range(turns):
                await asyncio.sleep(0)
            await node.transport.stop()
            assert not connections(node)
            for each in sockets:
                with contextlib.suppress(ConnectionError):
                    while await asyncio.get_running_loop().sock_recv(each, 65536):
                        pass
                each.close()
    run(test())


def test_certificates_that_are_none_change_nothing(run: Run, authority: CertificateAuthority) -> None:
    async def test() -> None:
        good = tls(authority)
        async with Node(tls=good) as node, Node(tls=tls(authority, "broker-2")) as other:
            before = await other.dialled(node.address, b"before")
            held = b"-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC," + b"0" * 32 + \
                b"\n\nAAAA\n-----END EC PRIVATE KEY-----\n"
            for bad in (good._replace(authority=b""), good._replace(authority=b"\xff\xfe"),
                        good._replace(certificate=b""), good._replace(certificate=b"none"), good._replace(key=b""),
                        good._replace(key=tls(authority).key), good._replace(key=held)):
                with pytest.raises(ssl.SSLError):
                    node.transport.renew(bad)
            await other.dialled(node.address, b"after")
            await node.dialled(other.address, b"back")
            assert other.streams[b"back"].identity == "broker-1"
            node.transport.renew(tls(authority, "größer")._replace(
                authority="Größe der Behörde\n".encode() + good.authority))
            await node.dialled(other.address, b"renewed")
            await other.dialled(node.address, b"once more")
            assert other.streams[b"renewed"].identity == "größer"
            before.send(b"x")
            await node.until(lambda: node.frames[b"before"])
    run(test())
