"""Streams between two transports: every promise of the port (cluster/ports.py), on both event loops."""
from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from cluster.rpc.conftest import Run
from cluster.rpc.nodes import FAST, Node, parts_of, send
from kit.proxy import FROM_TARGET, TO_TARGET, Proxy

from fluxmq._core.errors import UsageError
from fluxmq.cluster.ports import BindFailed, StreamOut
from fluxmq.cluster.rpc import outgoing, server
from fluxmq.cluster.rpc.channels import Settings
from fluxmq.cluster.rpc.envelope import wrap_field
from fluxmq.cluster.rpc.transport import GrpcTransport

pytestmark = pytest.mark.usefixtures("no_socket_is_left")
STREAM = "/fluxmq.cluster.v1.Peer/Stream"


def numbered(count: int, seed: int, size_max: int = 100_000) -> list[bytes]:
    chance = random.Random(seed)
    return [b"%06d" % number + chance.randbytes(chance.choice((0, 1, 30, chance.randrange(size_max))))
            for number in range(count)]


@asynccontextmanager
async def two(settings: Settings = FAST) -> AsyncIterator[tuple[Node, Node]]:
    async with Node(settings=settings) as one, Node(settings=settings) as other:
        yield one, other


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_frames_arrive_in_order_whole_and_once(run: Run, seed: int) -> None:
    async def test() -> None:
        async with two() as (one, other):
            stream = await one.dialled(other.address)
            assert one.opened[stream] == b"welcome hello" and stream.idle
            frames = [*numbered(300, seed), b"", bytes(3 << 20), b"last"]
            for frame in frames:
                stream.send(frame)
            assert not stream.idle
            await other.until(lambda: len(other.frames[b"hello"]) == len(frames))
            assert other.frames[b"hello"] == frames
    run(test())


def test_frames_of_both_directions_do_not_wait_for_each_other(run: Run, seed: int) -> None:
    async def test() -> None:
        async with two() as (one, other):
            frames = numbered(200, seed)
            there, back = await one.dialled(other.address, b"there"), await other.dialled(one.address, b"back")
            for frame in frames:
                there.send(frame)
                back.send(frame)
            await other.until(lambda: len(other.frames[b"there"]) == len(frames))
            await one.until(lambda: len(one.frames[b"back"]) == len(frames))
            assert other.frames[b"there"] == one.frames[b"back"] == frames
    run(test())


def test_a_stream_is_not_idle_until_it_is_open_and_its_frames_are_written(run: Run) -> None:
    async def test() -> None:
        async with two() as (one, other):
            stream = one.transport.dial(other.address, b"hello")
            assert not stream.idle
            stream.send(b"early")
            stream.send(b"bird")
            await one.until(lambda: one.idles)
            assert stream.idle and one.idles == [stream]
            await other.until(lambda: len(other.frames[b"hello"]) == 2)
            assert other.frames[b"hello"] == [b"early", b"bird"]
            assert stream.send(b"small") and stream.idle and one.idles == [stream]
            assert not stream.send(bytes(8 << 20)) and not stream.idle      # more than the system takes at once
            await one.until(lambda: len(one.idles) == 2)
    run(test())


def test_what_is_sent_when_told_of_idleness_goes_on(run: Run) -> None:
    """As the owner of a stream does: it seals a frame when the stream is idle."""
    async def test() -> None:
        async with two() as (one, other):
            todo = [b"%d" % number for number in range(200)]
            left = list(todo)

            def event(name: str, *what: Any) -> None:
                if name in ("open", "idle") and left:
                    send(what[0], left.pop(0))

            one.on_event = event
            one.transport.dial(other.address, b"hello")
            await other.until(lambda: other.frames.get(b"hello") == todo)
    run(test())


def test_a_frame_over_the_limit_is_an_error_of_the_sender(run: Run) -> None:
    async def test() -> None:
        async with two(FAST._replace(frame_bytes_max=1000)) as (one, other):
            stream = await one.dialled(other.address)
            with pytest.raises(UsageError, match="1001 bytes"):
                stream.send(bytes(1001))
            stream.send(bytes(1000))
            await other.until(lambda: other.frames[b"hello"])
            assert other.frames[b"hello"] == [bytes(1000)]
    run(test())


def test_a_node_that_does_not_read_stops_its_own_stream_only(run: Run) -> None:
    """It accepts and reads no further. The sender's frames wait in the sender, but for the windows of HTTP/2."""
    async def test() -> None:
        async with two() as (one, other), foreign_server(reads=1) as stuck:
            slow, quick = await one.dialled(stuck, b"slow"), await one.dialled(other.address, b"quick")
            sent = 0

            def event(name: str, *what: Any) -> None:
                nonlocal sent
                if name == "idle" and what[0] is slow:
                    send(slow, bytes(256 * 1024))
                    sent += 1

            one.on_event = event
            send(slow, b"first")
            for number in range(500):
                quick.send(b"%d" % number)
                assert await parts_of(one, other.address, "echo", b"x") == [b"x"]
            await other.until(lambda: len(other.frames[b"quick"]) == 500)
            assert not slow.idle and 0 < sent < 64
            await one.until(lambda: quick.idle)
    run(test())


# ── the end of a stream ──────────────────────────────────────────────────────────────────────────────────────


def test_a_refused_stream_says_why(run: Run) -> None:
    async def test() -> None:
        async with two() as (one, other):
            def refuse(stream: Any, hello: bytes) -> None:
                stream.close("node zürich is of another cluster")
            other.answer = refuse
            for _ in range(20):
                assert await one.refused(other.address) == "node zürich is of another cluster"
            assert other.ended == [] and one.opened == {}
    run(test())


def test_refusing_without_a_sentence(run: Run) -> None:
    async def test() -> None:
        async with two() as (one, other):
            other.answer = lambda stream, hello: None
            assert await one.refused(other.address) == "refused"
    run(test())


@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy"])
def test_a_stream_that_is_closed_later_says_why(run: Run, busy: bool) -> None:
    """Also while the sender writes, when its write fails before the answer is read."""
    async def test() -> None:
        async with two() as (one, other):
            def event(name: str, *what: Any) -> None:
                if name in ("open", "idle") and busy:
                    send(what[0], bytes(200_000))
            one.on_event = event
            for number in range(30):
                hello = b"%d" % number
                stream = await one.dialled(other.address, hello)
                if not busy:
                    stream.send(b"x")
                await other.until(lambda hello=hello: other.frames[hello])
                other.streams[hello].close("a gap: 5 after 3")
                seen = len(other.frames[hello])
                await one.until(lambda stream=stream: one.whys(stream))
                assert one.whys(stream) == ["a gap: 5 after 3"]
                assert len(other.frames[hello]) == seen and other.ended == []
    run(test())


def test_closing_from_within_on_frame(run: Run) -> None:
    async def test() -> None:
        async with two() as (one, other):
            other.on_event = lambda name, *what: what[0].close("enough") if name == "frame" else None
            stream = await one.dialled(other.address)
            for _ in range(5):
                stream.send(b"x")
            await one.until(lambda: one.whys(stream))
            assert one.whys(stream) == ["enough"] and other.frames[b"hello"] == [b"x"] and other.ended == []
    run(test())


def test_a_long_sentence_is_cut(run: Run) -> None:
    async def test() -> None:
        async with two() as (one, other):
            def refuse(stream: Any, hello: bytes) -> None:
                stream.close("ö" * 100_000)
            other.answer = refuse
            why = await one.refused(other.address)
            assert len(why) >= 1000 and set(why) == {"ö"}
            other.answer = lambda stream, hello: b""
            stream = await one.dialled(other.address, b"2")
            other.streams[b"2"].close("ö" * 100_000)
            await one.until(lambda: one.whys(stream))
            assert one.whys(stream) == [why]
    run(test())


def test_close_is_silent_here_and_an_end_there(run: Run) -> None:
    async def test() -> None:
        async with two() as (one, other):
            stream = await one.dialled(other.address)
            for _ in range(100):
                stream.send(bytes(100_000))
            stream.close()
            stream.close()
            assert not stream.idle
            stream.send(b"nothing happens")
            await other.until(lambda: other.ended)
            assert len(other.frames[b"hello"]) < 100
            assert (await one.dialled(other.address, b"another")) and one.closed == []
    run(test())


@pytest.mark.parametrize("moment", ["open", "idle"])
def test_close_from_within_a_call_of_the_handler(run: Run, moment: str) -> None:
    async def test() -> None:
        async with two() as (one, other):
            one.on_event = lambda name, *what: what[0].close() if name == moment else None
            stream = one.transport.dial(other.address, b"hello")
            stream.send(b"x")
            await other.until(lambda: other.ended)
            await parts_of(one, other.address)
            assert one.closed == []
    run(test())


def test_close_before_it_is_open(run: Run) -> None:
    async def test() -> None:
        async with two() as (one, other):
            at_once = one.transport.dial(other.address, b"1")
            at_once.close()
            soon = one.transport.dial("127.0.0.1:1", b"2")
            await asyncio.sleep(0)
            soon.close()
            with silent_port() as port:
                later = one.transport.dial(port, b"3")
                await parts_of(one, other.address)
                later.close()
                await one.dialled(other.address, b"4")
            assert set(other.streams) == {b"4"} and one.closed == []
    run(test())


def test_close_at_the_moment_it_is_connected(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left that looks whether the other end lives, on a connection that is closed."""
    made = []
    connect = outgoing._Connection.connection_made

    def connected(connection: outgoing._Connection, transport: asyncio.BaseTransport) -> None:
        connect(connection, transport)
        made.append(connection)
        streams[-1].close()

    streams: list[StreamOut] = []
    monkeypatch.setattr(outgoing._Connection, "connection_made", connected)

    async def test() -> None:
        async with two() as (one, other):
            streams.append(one.transport.dial(other.address, b"hello"))
            while not made:
                await asyncio.sleep(0)
            for _ in range(20):
                await asyncio.sleep(0.01)
            [connection] = made
            assert connection.over and not one.opened and not one.closed
            assert connection._check is None or connection._check.cancelled()

    run(test())


def test_an_address_without_a_node(run: Run) -> None:
    async def test() -> None:
        async with Node() as one:
            why = await one.refused("127.0.0.1:1")
            assert why.startswith("127.0.0.1:1 cannot be reached") and "Connection refused" in why
            assert "nowhere.invalid" in await one.refused("nowhere.invalid:1")
            assert "has no port" in await one.refused("nowhere")
            assert len(one.closed) == 3
    run(test())


def silent_port() -> Any:
    """A port that takes connections and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))

    class Silent:
        def __enter__(self) -> str:
            return f"127.0.0.1:{listener.getsockname()[1]}"

        def __exit__(self, *_: object) -> None:
            listener.close()

    return Silent()


def test_a_node_that_does_not_answer_in_time(run: Run) -> None:
    async def test() -> None:
        async with Node(settings=FAST._replace(hello_s=0.2)) as one, foreign_server(reads=0) as mute:
            with silent_port() as port:
                assert await one.refused(port) == f"no answer from {port} within 0.2 s"
            assert await one.refused(mute) == f"no answer from {mute} within 0.2 s"
    run(test())


def test_it_breaks_at_both_ends_exactly_once(run: Run) -> None:
    async def test() -> None:
        async with two() as (one, other):
            with Proxy(other.target) as proxy:
                stream = await one.dialled(proxy.address)
                stream.send(b"x")
                await other.until(lambda: other.frames[b"hello"])
                proxy.cut()
                await one.until(lambda: one.closed)
                await other.until(lambda: other.ended)
                assert one.whys(stream)[0].startswith(f"the connection to {proxy.address} broke")
                stream.send(b"nothing happens")
                await one.dialled(other.address, b"another")
                assert len(one.closed) == len(other.ended) == 1
    run(test())


@pytest.mark.parametrize("direction", [TO_TARGET, FROM_TARGET])
def test_a_connection_that_stands_still_is_noticed_at_both_ends(run: Run, direction: str) -> None:
    """In one direction only, while nothing is sent: by the pings of HTTP/2."""
    async def test() -> None:
        async with two() as (one, other):
            with Proxy(other.target) as proxy:
                stream = await one.dialled(proxy.address)
                proxy.stall(direction)
                await one.until(lambda: one.whys(stream))
                await other.until(lambda: other.ended)
                assert len(one.closed) == len(other.ended) == 1
                proxy.resume()
                await one.dialled(proxy.address, b"again")
    run(test())


def test_an_idle_connection_that_works_stays(run: Run) -> None:
    async def test() -> None:
        # It is also how long the answer to a PING may take, and a busy machine takes its time.
        async with two(FAST._replace(keepalive_s=1.0)) as (one, other):
            stream = await one.dialled(other.address)
            with Proxy(other.target) as proxy:
                slow = await one.dialled(proxy.address, b"through a proxy")
                before = proxy.carried[TO_TARGET]
                while proxy.carried[TO_TARGET] < before + 3 * 17:       # frames of PING
                    await asyncio.sleep(0.01)
                for each in (stream, slow):
                    each.send(b"x")
                await other.until(lambda: all(other.frames.values()))
            assert one.whys(stream) == []
    run(test())


# ── other programs ───────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def foreign_server(reads: int) -> AsyncIterator[str]:
    """Reads so many messages and then none; answers the first."""
    over = asyncio.Event()

    async def stream(_: object, context: Any) -> None:
        for number in range(reads):
            await context.read()
            if number == 0:
                await context.write(wrap_field(b"welcome"))
        await over.wait()

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
        "fluxmq.cluster.v1.Peer", {"Stream": grpc.stream_stream_rpc_method_handler(stream)}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    over.set()
    await server.stop(None)


@asynccontextmanager
async def foreign_client(address: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel.stream_stream(STREAM)()


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Comes behind the messages, so these are read first."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code(), await call.details()


def test_no_hello_in_time(run: Run) -> None:
    async def test() -> None:
        async with Node(settings=FAST._replace(hello_s=0.2)) as node, foreign_client(node.address) as call:
            assert await status_of(call) == (grpc.StatusCode.FAILED_PRECONDITION, "no hello within 0.2 s")
            assert node.streams == {}
    run(test())


def test_an_end_instead_of_a_hello(run: Run) -> None:
    async def test() -> None:
        async with Node() as node, foreign_client(node.address) as call:
            await call.done_writing()
            assert (await status_of(call))[0] is grpc.StatusCode.OK
            assert node.streams == {} and node.ended == []
    run(test())


def test_half_closing_is_an_end(run: Run) -> None:
    async def test() -> None:
        async with Node() as node, foreign_client(node.address) as call:
            await call.write(wrap_field(b"hello"))
            await call.write(wrap_field(b"x"))
            await call.done_writing()
            await node.until(lambda: node.ended)
            assert node.frames == {b"hello": [b"x"]} and (await status_of(call))[0] is grpc.StatusCode.OK
    run(test())


def test_bytes_that_are_no_message(run: Run) -> None:
    async def test() -> None:
        async with Node() as node:
            async with foreign_client(node.address) as call:
                await call.write(b"\x0a\x05abc")
                code, text = await status_of(call)
                assert code is grpc.StatusCode.FAILED_PRECONDITION and "ends behind its message" in text
            assert node.streams == {}
            async with foreign_client(node.address) as call:
                await call.write(wrap_field(b"hello"))
                await call.read()
                await call.write(b"\x0b")
                code, text = await status_of(call)
                assert code is grpc.StatusCode.FAILED_PRECONDITION and "wire type 3" in text
            assert node.ended == [b"hello"] and node.frames == {b"hello": []}
    run(test())


def test_a_frame_over_the_limit_of_the_receiver_ends_the_stream(run: Run) -> None:
    async def test() -> None:
        async with Node() as one, Node(settings=FAST._replace(frame_bytes_max=100_000)) as other:
            stream = await one.dialled(other.address)
            stream.send(b"x")
            stream.send(bytes(100_001 + 16))
            stream.send(b"y")
            await one.until(lambda: one.whys(stream))
            await other.until(lambda: other.ended)
            assert other.frames[b"hello"] == [b"x"] and len(one.closed) == 1
    run(test())


def test_streams_over_the_limit_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RPCS_MAX", 3)

    async def test() -> None:
        async with two() as (one, other), foreign_client(other.address) as silent:
            await silent.wait_for_connection()
            streams = [await one.dialled(other.address, b"%d" % number) for number in range(2)]
            while "RESOURCE_EXHAUSTED" not in (why := await one.refused(other.address, b"more")):
                assert "broke" in why       # the hello could not be written before the answer was read
            streams[0].close()
            await other.until(lambda: other.ended)
            await one.dialled(other.address, b"then")
    run(test())


# ── start and stop ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_address_that_is_taken(run: Run) -> None:
    async def test() -> None:
        async with Node() as one:
            with pytest.raises(BindFailed, match=f"cannot listen on {one.address}: Address already in use"):
                await GrpcTransport(one.address).start(one, one)
            with pytest.raises(BindFailed, match="Cannot assign requested address"):
                await GrpcTransport("192.0.2.1:0").start(one, one)
    run(test())


def test_an_address_is_free_after_stop(run: Run) -> None:
    async def test() -> None:
        async with Node() as one:
            address = one.address
        async with Node(address=address) as one, Node() as other:
            await other.dialled(one.address)
    run(test())


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_stop_while_streams_are_busy(run: Run, who: str) -> None:
    async def test() -> None:
        async with two() as (one, other):
            def event(name: str, *what: Any) -> None:
                if name in ("open", "idle"):
                    send(what[0], bytes(100_000))

            one.on_event = event
            streams = [one.transport.dial(other.address, b"%d" % number) for number in range(10)]
            await other.until(lambda: len(other.frames) == 10 and all(map(len, other.frames.values())))
            stopping, staying = (one, other) if who == "sender" else (other, one)
            late: list[str] = []
            done = asyncio.ensure_future(stopping.transport.stop())
            await asyncio.sleep(0)
            stopping.on_event = lambda name, *what: late.append(name)
            await done
            await stopping.transport.stop()
            if who == "sender":
                await other.until(lambda: len(other.ended) == 10)
                assert sorted(other.ended) == sorted(b"%d" % number for number in range(10)) and one.closed == []
            else:
                await one.until(lambda: len(one.closed) == 10)
                assert [len(one.whys(stream)) for stream in streams] == [1] * 10 and other.ended == []
            assert late == []
            stream = stopping.transport.dial(staying.address, b"after")
            stream.send(b"x")
            assert not stream.idle and b"after" not in staying.streams
    run(test())


def test_stop_while_streams_are_opened(run: Run) -> None:
    async def test() -> None:
        async with Node() as other:
            for turns in range(12):
                node = Node()
                await node.transport.start(node, node)
                with silent_port() as port:
                    for address in (other.address, port, "127.0.0.1:1"):
                        node.transport.dial(address, b"hello").send(b"x")
                    for _ in range(turns * turns):
                        await asyncio.sleep(0)
                    before = list(node.closed)
                    await node.transport.stop()
                assert node.closed == before
    run(test())


def test_a_hundred_nodes(run: Run) -> None:
    async def test() -> None:
        # Two hundred streams open at once in one process: beside other tests that takes longer than FAST allows.
        hub, *others = [Node(settings=Settings(keepalive_s=60, hello_s=60)) for _ in range(101)]
        await hub.transport.start(hub, hub)
        await asyncio.gather(*(node.transport.start(node, node) for node in others))
        out = [hub.transport.dial(node.address, b"hub") for node in others]
        back = [node.transport.dial(hub.address, b"%d" % number) for number, node in enumerate(others)]
        for number, stream in enumerate((*out, *back)):
            for turn in range(5):
                stream.send(b"%d %d" % (number, turn))
        for number, node in enumerate(others):
            await node.until(lambda node=node: len(node.frames.get(b"hub", ())) == 5)
            assert node.frames == {b"hub": [b"%d %d" % (number, turn) for turn in range(5)]}
        await hub.until(lambda: sum(map(len, hub.frames.values())) == 500)
        assert [await parts_of(hub, node.address, "echo", b"x") for node in others] == [[b"x"]] * 100
        await hub.transport.stop()
        await asyncio.gather(*(node.transport.stop() for node in others))
    run(test())


def test_what_a_handler_raises_is_reported_and_ends_the_stream(run: Run) -> None:
    async def test() -> None:
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(repr(context["exception"])))
        async with two() as (one, other):
            def event(name: str, *what: Any) -> None:
                if name == "open":
                    raise RuntimeError("a defect")
            one.on_event = event
            one.transport.dial(other.address, b"hello")
            await other.until(lambda: other.ended)
        assert reported == ["RuntimeError('a defect')"]
    run(test())
