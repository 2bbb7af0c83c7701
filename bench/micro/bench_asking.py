"""Publishes of which some are asked about elsewhere (decision 0008), and a bystander's round trip beside them.

    python -P -m fluxmq.bench.micro.bench_asking --publishes 400000

A broker in a process of its own, an authority behind a Unix socket in another, ten connections that publish QoS 0 as
fast as they are read. In turns: every publish goes to a topic that the connection's memory knows, and one of a hundred
goes to a new one, which is asked about. Printed are both rates, their ratio (median of pairs, and its range), and the
round trip of a client that only pings. FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import uvloop

from fluxmq.access.authority import Authority
from fluxmq.app.config import load
from fluxmq.app.server import Server

SMOKE = os.environ.get("FLUXMQ_BENCH_SMOKE") == "1"
CONNECTIONS = 10
PAYLOAD = bytes(64)
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


class SocketAuthority(Authority):
    """Allows what the socket allows: one byte for each topic of 16 bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._answers: asyncio.Queue[asyncio.Future[bool]] = asyncio.Queue()
        self._connecting = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None

    @property
    def name(self) -> str:
        return "the benchmark's decider"

    @property
    def asks(self) -> bool:
        return True

    @property
    def open_publish(self) -> bool:
        return False

    def may_publish(self, identity: str | None, client_id: str, topic: str, namespace: str = "/") -> bool | None:
        return None

    async def decide_publish(self, identity: str | None, client_id: str, topic: str, namespace: str = "/") -> bool:
        async with self._connecting:
            if self._writer is None:
                reader, self._writer = await asyncio.open_unix_connection(self._path)
                self._task = asyncio.ensure_future(self._receive(reader))
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers.put_nowait(answer)
        self._writer.write(topic.encode().ljust(16))
        return await answer

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(4096):
            for _ in data:
                answer = self._answers.get_nowait()
                if not answer.done():
                    answer.set_result(True)


def decide(path: Path, port: Any) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        port.send(None)
        conn, _ = listening.accept()
        left = 0
        while data := conn.recv(65536):
            count, left = divmod(left + len(data), 16)
            conn.sendall(bytes(count))


def serve(folder: Path, port: Any) -> None:
    async def run() -> None:
        config, _ = load(sets=[f"storage.dir={folder / 'data'}", "storage.type=memory", "server.health_enabled=false",
                               "server.mqtt.tcp.plain.addr=127.0.0.1:0", "server.mqtt.websocket.plain.addr=",
                               "server.amqp091.plain.addr=", "broker.sys_interval=0", "server.admin_socket="])
        server = Server(config, SocketAuthority(folder / "decider"))
        server.initialize()
        await server.start()
        port.send(server.listeners.opened[0][2][0])
        await server.stopped.wait()

    uvloop.run(run())


def text(raw: bytes) -> bytes:
    return struct.pack(">H", len(raw)) + raw


def packet(first: int, body: bytes) -> bytes:
    size, length = b"", len(body)
    while True:
        length, digit = divmod(length, 128)
        size += bytes([digit | 0x80 if length else digit])
        if not length:
            return bytes([first]) + size + body


def connected(address: tuple[str, int], name: str) -> socket.socket:
    conn = socket.create_connection(address)
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    conn.sendall(packet(0x10, text(b"MQTT") + b"\x04\x02\x00\x00" + text(name.encode())))
    assert conn.recv(4) == b"\x20\x02\x00\x00"
    return conn


class Load:
    """ask_every: 0 asks about nothing but the first publish of a connection."""

    def __init__(self, address: tuple[str, int], publishes: int) -> None:
        self.address = address
        self.each = publishes // CONNECTIONS
        self.names = itertools.count()

    def run(self, ask_every: int) -> tuple[float, list[float]]:
        """Publishes a second, and round trips of the bystander in seconds."""
        conns = [connected(self.address, f"p{next(self.names)}") for _ in range(CONNECTIONS)]
        data = []
        for at in range(CONNECTIONS):
            known = packet(0x30, text(b"k%013d" % at) + PAYLOAD)
            new = iter(range(self.each))
            data.append(b"".join(packet(0x30, text(b"n%02d%010d" % (at, next(new))) + PAYLOAD)
                                 if ask_every and n % ask_every == ask_every - 1 else known
                                 for n in range(self.each)) + PINGREQ)
        bystander, trips, done = connected(self.address, f"b{next(self.names)}"), [], threading.Event()

        def ping() -> None:
            while not done.wait(0.002):
                begun = time.perf_counter()
                bystander.sendall(PINGREQ)
                assert bystander.recv(2) == PINGRESP
                trips.append(time.perf_counter() - begun)

        threads = [threading.Thread(target=conn.sendall, args=(one,)) for conn, one in zip(conns, data, strict=True)]
        pinging = threading.Thread(target=ping)
        begun = time.perf_counter()
        for thread in [*threads, pinging]:
            thread.start()
        for conn in conns:
            assert conn.recv(2) == PINGRESP
        seconds = time.perf_counter() - begun
        done.set()
        for thread in [*threads, pinging]:
            thread.join()
        for conn in [*conns, bystander]:
            conn.close()
        return CONNECTIONS * self.each / seconds, trips


@contextlib.contextmanager
def broker() -> Iterator[tuple[str, int]]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        here, there = context.Pipe()
        decider = context.Process(target=decide, args=(Path(folder) / "decider", there), daemon=True)
        serving = context.Process(target=serve, args=(Path(folder), there), daemon=True)
        try:
            decider.start()
            here.recv()
            serving.start()
            yield here.recv()
        finally:
            for process in (serving, decider):
                if process.pid is not None:
                    process.terminate()
                    process.join()


def described(trips: list[float]) -> str:
    if not trips:
        return "not seen: too short"
    ranked = sorted(trips)
    return f"{statistics.median(ranked) * 1e6:.0f} µs, p99 {ranked[len(ranked) * 99 // 100] * 1e6:.0f} µs"


@click.command()
@click.option("--publishes", default=20_000 if SMOKE else 400_000, show_default=True, help="Of each run.")
@click.option("--pairs", default=1 if SMOKE else 7, show_default=True)
def main(publishes: int, pairs: int) -> None:
    """Publishes with 1 % of questions beside publishes with none."""
    with broker() as address:
        load_ = Load(address, publishes)
        load_.run(100)
        ratios: list[float] = []
        rates: tuple[list[float], list[float]] = ([], [])
        trips: tuple[list[float], list[float]] = ([], [])
        for _ in range(pairs):
            pair = [load_.run(every) for every in (0, 100)]
            for at, (rate, seen) in enumerate(pair):
                rates[at].append(rate)
                trips[at].extend(seen)
            ratios.append(pair[1][0] / pair[0][0])
    for name, of_rate, of_trips in zip(("nothing asked", "1 % asked"), rates, trips, strict=True):
        click.echo(f"{name:14} {statistics.median(of_rate):>10,.0f} publishes/s   bystander {described(of_trips)}")
    click.echo(f"{'ratio':14} {statistics.median(ratios):>10.3f}   ({min(ratios):.3f}..{max(ratios):.3f})")


if __name__ == "__main__":
    main()
