"""Calls between two transports, on both event loops."""
from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from cluster.rpc.conftest import Run
from cluster.rpc.nodes import FAST, Node, failure_of, parts_of
from kit.broker import free_port
from kit.proxy import FROM_TARGET, TO_TARGET, Proxy

from fluxmq._core.errors import UsageError
from fluxmq.cluster.ports import CallFailed
from fluxmq.cluster.rpc import channels
from fluxmq.cluster.rpc.envelope import wrap_call

pytestmark = pytest.mark.usefixtures("no_socket_is_left")


class Answering(Node):
    """step: lets do_steps go on. begun: steps that have waited for that. left: methods whose generator has ended, in
    whatever way."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.step = asyncio.Event()
        self.begun = 0
        self.left: list[str] = []

    async def ends(self, count: int = 1) -> None:
        """Until so many calls of do_steps have ended. Their callers have gone; each is at a step."""
        while len(self.left) < count:
            self.step.set()
            await asyncio.sleep(0.01)

    async def do_many(self, body: bytes) -> AsyncIterator[bytes]:
        for turn in range(int(body)):
            yield b"%d" % turn * turn

    async def do_steps(self, body: bytes) -> AsyncIterator[bytes]:
        try:
            while True:
                yield body
                self.begun += 1
                self._event("begun")
                await self.step.wait()
                self.step.clear()
        finally:
            self.left.append("steps")
            self._event("left")

    async def do_refuse(self, body: bytes) -> AsyncIterator[bytes]:
        yield b"a part"
        raise CallFailed("the session is frozen — ask again", reached=body == b"reached")

    async def do_defect(self, body: bytes) -> AsyncIterator[bytes]:
        raise RuntimeError("a defect")
        yield b""


def test_the_answer_has_any_number_of_parts(run: Run) -> None:
    async def test() -> None:
        async with Node() as one, Answering() as other:
            for count in (0, 1, 2, 300):
                made = [b"%d" % turn * turn for turn in range(count)]
                assert await parts_of(one, other.address, "many", b"%d" % count) == made
            body = bytes(range(256)) * 8192
            assert await parts_of(one, other.address, "echo", body) == [body]
            assert await parts_of(one, other.address, "echo", b"") == [b""]
            assert other.calls[0] == ("many", b"0", None)
    run(test())


def test_parts_come_when_they_are_made(run: Run) -> None:
    async def test() -> None:
        async with Node() as one, Answering() as other:
            parts = one.transport.call(other.address, "steps", b"x", 10)
            for turn in range(3):
                if turn:
                    other.step.set()
                assert await anext(parts) == b"x"
                await other.until(lambda: other.begun > turn)       # noqa: B023
            await parts.aclose()
            # What the handler waits for, others may wait for, too: it is not cancelled, but asked for no further part.
            assert await parts_of(one, other.address) == [b""]
            assert not other.left
            await other.ends()
    run(test())


def test_what_a_handler_shares_with_others_outlives_a_broken_call(run: Run) -> None:
    async def test() -> None:
        shared: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def late(body: bytes) -> AsyncIterator[bytes]:
            yield b""
            yield await shared

        async with Node() as one, Answering() as other:
            other.do_late = late        # type: ignore[attr-defined]
            broken, patient = (one.transport.call(other.address, "late", b"", 10) for _ in range(2))
            for parts in (broken, patient):
                await anext(parts)
            await broken.aclose()
            assert await parts_of(one, other.address) == [b""]
            shared.set_result(b"at last")
            assert [part async for part in patient] == [b"at last"]
    run(test())


def test_a_call_that_fails_when_its_caller_has_gone(run: Run) -> None:
    """Nobody is told of a refusal; a defect is reported."""
    async def test() -> None:
        reported: list[str] = []
        complain = asyncio.get_running_loop().get_exception_handler()
        assert complain is not None
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(
            repr(context.get("exception"))) if "a defect" in str(context.get("exception")) else complain(loop, context))

        async with Node() as one, Answering() as other:
            for why in (CallFailed("it is frozen", reached=True), RuntimeError("a defect")):
                step: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

                async def late(body: bytes, step: asyncio.Future[bytes] = step) -> AsyncIterator[bytes]:
                    yield b""
                    yield await step

                other.do_late = late        # type: ignore[attr-defined]
                parts = one.transport.call(other.address, "late", b"", 10)
                await anext(parts)
                await parts.aclose()
                assert await parts_of(one, other.address) == [b""]
                step.set_exception(why)
                del step, late, other.do_late   # type: ignore[attr-defined]
                await asyncio.sleep(0)
                while other.transport._service._steps:
                    await asyncio.sleep(0.01)
                gc.collect()
        assert reported == ["RuntimeError('a defect')"]
    run(test())


def test_who_does_not_take_the_parts_stops_the_other_node(run: Run) -> None:
    """By flow control: it does not make them all."""
    async def test() -> None:
        made = 0

        async def flood(body: bytes) -> AsyncIterator[bytes]:
            nonlocal made
            while True:
                yield bytes(1_000_000)
                made += 1

        async with Node() as one, Answering() as other:
            other.do_flood = flood      # type: ignore[attr-defined]
            parts = one.transport.call(other.address, "flood", b"", 10)
            await anext(parts)
            for _ in range(200):
                assert await parts_of(one, other.address) == [b""]
            assert made < 64        # a window of HTTP/2, and what is in sockets
            await parts.aclose()
    run(test())


def test_many_at_a_time(run: Run) -> None:
    async def test() -> None:
        # Pings are answered by the loop, which 300 calls keep busy for longer than FAST allows on a busy machine.
        patient = FAST._replace(keepalive_s=5.0)
        async with Node(settings=patient) as one, Answering(settings=patient) as other:
            found = await asyncio.gather(*(parts_of(one, other.address, "echo", b"%d" % n) for n in range(300)))
            assert found == [[b"%d" % n] for n in range(300)]
    run(test())


@pytest.mark.parametrize("reached", [False, True])
def test_a_refusal(run: Run, reached: bool) -> None:
    async def test() -> None:
        async with Node() as one, Answering() as other:
            parts = one.transport.call(other.address, "refuse", b"reached" if reached else b"", 10)
            assert await anext(parts) == b"a part"
            with pytest.raises(CallFailed, match="the session is frozen — ask again") as error:
                await anext(parts)
            assert error.value.reached is reached
            error = await failure_of(one, other.address, "unknown")
            assert str(error) == "there is no such method" and not error.reached
    run(test())


def test_a_defect_of_the_other_node_is_no_hang(run: Run) -> None:
    async def test() -> None:
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(repr(context["exception"])))
        async with Node() as one, Answering() as other:
            error = await failure_of(one, other.address, "defect")
            assert error.reached and "RuntimeError" in str(error) and "a defect" not in str(error)
            assert reported == ["RuntimeError('a defect')"]
    run(test())


def test_the_limit_is_for_all_of_it(run: Run) -> None:
    async def test() -> None:
        async with Node() as one, Answering() as other:
            parts = one.transport.call(other.address, "steps", b"x", 1.0)
            with pytest.raises(CallFailed, match=r"has not answered within 1 s") as error:
                async for _ in parts:
                    pass
            assert error.value.reached
            await other.ends()
            with Proxy(other.target) as proxy:
                proxy.stall(FROM_TARGET)
                late = await failure_of(one, proxy.address, limit_s=0.2)
                assert str(late) == f"{proxy.address} was not reached within 0.2 s" and not late.reached
    run(test())


def test_what_is_unreachable_was_not_reached(run: Run) -> None:
    async def test() -> None:
        async with Node() as one:
            error = await failure_of(one, "127.0.0.1:1")
            assert not error.reached and "Connection refused" in str(error)
    run(test())


def test_a_connection_that_breaks_may_have_reached_it(run: Run) -> None:
    async def test() -> None:
        async with Node() as one, Answering() as other:
            with Proxy(other.target) as proxy:
                parts = one.transport.call(proxy.address, "steps", b"x", 10)
                await anext(parts)
                proxy.cut()
                with pytest.raises(CallFailed, match="broke") as error:
                    await anext(parts)
                assert error.value.reached
                await other.ends()
                # Another connection is made for a later call; one that came before gRPC saw the break did no harm.
                while True:
                    try:
                        assert await parts_of(one, proxy.address) == [b""]
                        break
                    except CallFailed as again:
                        assert not again.reached
                proxy.stall(TO_TARGET)
                silent = await failure_of(one, proxy.address)
                assert silent.reached and "broke" in str(silent)
    run(test())


def test_a_node_that_comes_back_is_called_at_once(run: Run) -> None:
    """Not after a time that gRPC waits: every call tries."""
    async def test() -> None:
        address = f"127.0.0.1:{free_port()}"
        async with Node() as one:
            for _ in range(5):
                errors = await asyncio.gather(*(failure_of(one, address) for _ in range(3)))
                assert not any(error.reached for error in errors)
            async with Node(address=address):
                assert await parts_of(one, address) == [b""]
            while (await failure_of(one, address)).reached:     # before gRPC has seen that the connection broke
                pass
            async with Node(address=address):
                assert await parts_of(one, address) == [b""]
    run(test())


def test_a_caller_that_is_cancelled(run: Run) -> None:
    async def test() -> None:
        async with Node() as one, Answering() as other:
            task = asyncio.ensure_future(parts_of(one, other.address, "steps", b"x"))
            await other.until(lambda: other.calls)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await other.ends()
            task = asyncio.ensure_future(parts_of(one, other.address, "steps", b"x"))
            await other.until(lambda: len(other.calls) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await other.ends(2)
    run(test())


@pytest.mark.parametrize("who", ["caller", "called"])
def test_stop_ends_calls(run: Run, who: str) -> None:
    async def test() -> None:
        async with Node() as one, Answering() as other:
            with socket.create_server(("127.0.0.1", 0)) as mute:
                silent = f"127.0.0.1:{mute.getsockname()[1]}"
                failures = [asyncio.ensure_future(failure_of(one, address, "steps", b"x"))
                            for address in (other.address, other.address, silent)]
                await other.until(lambda: len(other.calls) == 2)
                await (one if who == "caller" else other).transport.stop()
                errors = [await failure for failure in failures[:2]]
                assert [error.reached for error in errors] == [True, True]
                if who == "caller":
                    error = await failures[2]
                    assert str(error) == "this node is stopping" == str(errors[0]) and not error.reached
                    after = await failure_of(one, other.address)
                    assert str(after) == "this node is stopping" and not after.reached
                else:
                    failures[2].cancel()
                    await asyncio.wait(failures)
                await other.ends(2)
    run(test())


def test_a_body_over_the_limit(run: Run) -> None:
    async def test() -> None:
        settings = FAST._replace(frame_bytes_max=1000)
        async with Node(settings=settings) as one, Node(settings=settings) as other:
            assert await parts_of(one, other.address, body=bytes(1000)) == [bytes(1000)]
            with pytest.raises(UsageError, match="1001 bytes"):
                await parts_of(one, other.address, body=bytes(1001))
    run(test())


def test_bytes_that_are_no_call(run: Run) -> None:
    async def test() -> None:
        async with Node() as node, grpc.aio.insecure_channel(node.address) as channel:
            for message in (b"\x0a", wrap_call("x", b"").replace(b"x", b"\xff")):
                call: Any = channel.unary_stream("/fluxmq.cluster.v1.Peer/Call")(message)
                assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert node.calls == []
    run(test())


def test_connections_for_calls_are_kept_for_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with Node() as one, Answering() as other:
            with Proxy(other.target) as proxy:
                for _ in range(10):
                    await parts_of(one, proxy.address)
                assert proxy.accepted == 1
                monkeypatch.setattr(channels, "CHANNEL_IDLE_S", 0.05)
                await parts_of(one, proxy.address)
                while proxy.connections:
                    await asyncio.sleep(0.01)
                await parts_of(one, proxy.address)
                assert proxy.accepted == 2
    run(test())
