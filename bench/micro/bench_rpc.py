"""Frames from one node to another over gRPC, beside a plain TCP connection of asyncio.

    pytest bench/micro/bench_rpc.py --benchmark-columns=min,median,rounds

The receiver is a process of its own, both loops are uvloop's. A round sends FRAMES frames, as the owner of a stream
does: the next one when the stream is idle; it ends when the receiver has them all. Over TCP the frames have a length in
front, StreamWriter.drain() takes the place of idleness, and StreamReader reads them. extra_info has frames and
megabytes a second of the fastest round, processor time of the sender for a frame, and how many times as long as over
TCP it takes.
FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import uvloop

from fluxmq.cluster.ports import StreamIn, StreamOut
from fluxmq.cluster.rpc.transport import GrpcTransport

FRAMES = 20 if os.environ.get("FLUXMQ_BENCH_SMOKE") == "1" else 2000
ROUNDS = 5
# Of the StreamReader: by default it pauses at 64 KiB, so at each of these frames.
READ_AHEAD = 4 << 20
LENGTH = struct.Struct("<I")


class Sender:
    """Keeps one frame ahead on a stream, until all were sent."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.left = 0
        self.opened: asyncio.Future[StreamOut] = asyncio.get_running_loop().create_future()
        self.sent = asyncio.Event()

    def on_open(self, stream: StreamOut, answer: bytes) -> None:
        stream.on_idle = partial(self._on_idle, stream)
        self.opened.set_result(stream)

    def begin(self, stream: StreamOut) -> None:
        """Sends FRAMES frames; sets `sent` when they have left."""
        self.left = FRAMES
        self.sent.clear()
        self._on_idle(stream)

    def _on_idle(self, stream: StreamOut) -> None:
        while self.left:
            self.left -= 1
            if not stream.send(self.frame):
                return                  # called again when it has left
        self.sent.set()

    def on_closed(self, stream: StreamOut, why: str) -> None:
        raise RuntimeError(why)


class Receiver:
    """Counts frames. The call `received` is answered when there are so many in all."""

    def __init__(self) -> None:
        self.count = 0
        self.more = asyncio.Event()

    def on_stream(self, stream: StreamIn, hello: bytes) -> bytes | None:
        return b"welcome"

    def on_frame(self, stream: StreamIn, frame: bytes) -> None:
        self.count += 1
        self.more.set()

    def on_end(self, stream: StreamIn) -> None:
        pass

    async def on_call(self, method: str, body: bytes, identity: str | None) -> AsyncIterator[bytes]:
        while self.count < int(body):
            self.more.clear()
            await self.more.wait()
        yield b""


async def serve(kind: str) -> None:
    """The other process: prints its port, and ends when its input does."""
    loop = asyncio.get_running_loop()
    if kind == "rpc":
        transport = GrpcTransport("127.0.0.1:0")
        receiver = Receiver()
        await transport.start(receiver, receiver)  # type: ignore[arg-type]
        port = transport.address.rpartition(":")[2]
    else:
        server = await asyncio.start_server(_read_all, "127.0.0.1", 0, limit=READ_AHEAD)
        port = str(server.sockets[0].getsockname()[1])
    print(port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    if kind == "rpc":
        await transport.stop()


async def _read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Rounds: the number of frames, the frames, and a byte back."""
    try:
        while True:
            count, = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            for _ in range(count):
                size, = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                await reader.readexactly(size)
            writer.write(b"!")
    except asyncio.IncompleteReadError:
        writer.close()


Round = Callable[[], Awaitable[None]]


async def over_rpc(port: int, frame: bytes) -> tuple[Round, Round]:
    """A round, and the end."""
    transport, sender, sent = GrpcTransport("127.0.0.1:0"), Sender(frame), 0
    await transport.start(sender, sender)  # type: ignore[arg-type]
    transport.dial(f"127.0.0.1:{port}", b"hello")
    stream = await sender.opened

    async def round_() -> None:
        nonlocal sent
        sender.begin(stream)
        await sender.sent.wait()
        sent += FRAMES
        async for _ in transport.call(f"127.0.0.1:{port}", "received", b"%d" % sent, 60):
            pass

    async def end() -> None:
        stream.close()
        await transport.stop()

    return round_, end


async def over_tcp(port: int, frame: bytes) -> tuple[Round, Round]:
    """A round, and the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    length = LENGTH.pack(len(frame))

    async def round_() -> None:
        writer.write(LENGTH.pack(FRAMES))
        for _ in range(FRAMES):
            writer.write(length + frame)
            await writer.drain()
        await reader.readexactly(1)

    async def end() -> None:
        writer.close()

    return round_, end


@contextmanager
def receiver(kind: str) -> Iterator[int]:
    """Its port."""
    with subprocess.Popen([sys.executable, "-P", "-m", "fluxmq.bench.micro.bench_rpc", kind], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        except BaseException:
            process.kill()              # a connection that nobody ends keeps it
            raise


@pytest.mark.parametrize("size", [64 * 1024, 256 * 1024])
def test_frames(benchmark: Any, size: int) -> None:
    frame = os.urandom(size)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, receiver("rpc") as rpc, receiver("tcp") as tcp:
        plain, end_plain = runner.run(over_tcp(tcp, frame))
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            runner.run(plain())  # type: ignore[arg-type]
            times.append(time.perf_counter() - begin)
        runner.run(end_plain())  # type: ignore[arg-type]

        round_, end = runner.run(over_rpc(rpc, frame))
        spent = time.process_time()
        benchmark.pedantic(lambda: runner.run(round_()), rounds=ROUNDS, warmup_rounds=1)  # type: ignore[arg-type]
        spent = time.process_time() - spent
        runner.run(end())  # type: ignore[arg-type]
    if benchmark.stats is None:         # --benchmark-disable takes no times
        return
    fastest = benchmark.stats.stats.min
    benchmark.extra_info.update({
        "frames_per_s": round(FRAMES / fastest), "mb_per_s": round(FRAMES * size / fastest / 1e6),
        "sender_us_per_frame": round(spent / (FRAMES * (ROUNDS + 1)) * 1e6, 1),
        "times_as_long_as_tcp": round(fastest / min(times), 2)})
    print(f"{size // 1024} KiB: {benchmark.extra_info}")


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
