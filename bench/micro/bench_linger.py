"""What a turn that lingers costs others on the event loop, and what it saves (decision 0009).

    python -P -m fluxmq.bench.micro.bench_linger --seconds 2

A broker in a process of its own whose event loop also serves something else, as it will serve other nodes: a socket
that echoes, over asyncio. Meanwhile ten connections publish QoS 0: as fast as they are read, and then one message each,
in turns. The broker's turns linger and see the loop (as they are), linger and do not see it (as they were), or do not
linger. Of each: publishes a second and the broker's processor time for one, while the echo is idle; then the round
trip of who asks it every 2 ms. The three take turns; printed are medians over the runs, and of the ratios to the first.
FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import select
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import uvloop

import fluxmq.app.server
from fluxmq.app.config import load
from fluxmq.app.server import Server
from fluxmq.bench.micro.bench_asking import PAYLOAD, connected, packet, text

SMOKE = os.environ.get("FLUXMQ_BENCH_SMOKE") == "1"
CONNECTIONS = 10
BATCH = 500  # publishes in one write of who floods
PAUSE_S = 0.002  # between two times that who is not in a hurry asks
MODES = ("sees the loop", "blind", "never lingers")
TICKS = os.sysconf("SC_CLK_TCK")


class Run(NamedTuple):
    """publishes: a second. cpu_ns: of the broker, for one. trips: of the echo, seconds."""

    publishes: float
    cpu_ns: float
    trips: list[float]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(4096):
            writer.write(data)
    writer.close()


def serve(folder: Path, mode: str, port: Any) -> None:
    if mode == "blind":  # an epoll that nothing is in: the loop never seems to have anything to do
        empty = select.epoll()
        vars(fluxmq.app.server)["watch_loop"] = lambda poller, loop, linger: poller.watch_loop(
            empty.fileno(), (), lambda: loop.call_soon(linger))
    elif mode == "never lingers":
        vars(fluxmq.app.server)["watch_loop"] = lambda poller, loop, linger: None

    async def run() -> None:
        config, _ = load(sets=[f"storage.dir={folder / 'data'}", "storage.type=memory", "server.health_enabled=false",
                               "server.mqtt.tcp.plain.addr=127.0.0.1:0", "server.mqtt.websocket.plain.addr=",
                               "server.amqp091.plain.addr=", "broker.sys_interval=0", "server.admin_socket="])
        server = Server(config)
        server.initialize()
        await server.start()
        other = await asyncio.start_server(echo, "127.0.0.1", 0)
        port.send((server.listeners.opened[0][2][0], other.sockets[0].getsockname()))
        await server.stopped.wait()

    uvloop.run(run())


class Broker:
    """One that runs. mode: of MODES."""

    def __init__(self, mode: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        here, there = context.Pipe()
        self._process = context.Process(target=serve, args=(Path(self._folder.name), mode, there), daemon=True)
        self._process.start()
        self.mqtt, self.echo = here.recv()
        self._count = 0

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()
        self._folder.cleanup()

    def run(self, seconds: float, batch: int, pause_s: float) -> Run:
        """First without the asking client, then with it."""
        alone = self._run(seconds, batch, pause_s, asked=False)
        return alone._replace(trips=self._run(seconds, batch, pause_s, asked=True).trips)

    def _run(self, seconds: float, batch: int, pause_s: float, *, asked: bool) -> Run:
        """Ten connections that each write `batch` publishes and wait for all to be read, and so on."""
        self._count += 1
        conns = [connected(self.mqtt, f"p{self._count}-{at}") for at in range(CONNECTIONS)]
        data = [packet(0x30, text(b"topic/%03d" % at) + PAYLOAD) * batch + b"\xc0\x00" for at in range(CONNECTIONS)]
        asking = socket.create_connection(self.echo)
        asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        published, trips, done = [0], [], threading.Event()

        def publish() -> None:
            while not done.is_set():
                for conn, one in zip(conns, data, strict=True):
                    conn.sendall(one)
                    if pause_s:
                        time.sleep(pause_s)
                for conn in conns:
                    conn.recv(2)
                published[0] += CONNECTIONS * batch

        def ask() -> None:
            while not done.wait(PAUSE_S):
                begun = time.perf_counter()
                asking.sendall(b"x")
                asking.recv(1)
                trips.append(time.perf_counter() - begun)

        threads = [threading.Thread(target=call) for call in ((publish, ask) if asked else (publish,))]
        before, begun = self.cpu_s(), time.perf_counter()
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        done.set()
        for thread in threads:
            thread.join()
        took, used = time.perf_counter() - begun, self.cpu_s() - before
        for conn in [*conns, asking]:
            conn.close()
        return Run(published[0] / took, used / max(published[0], 1) * 1e9, trips)


@contextlib.contextmanager
def brokers() -> Iterator[dict[str, Broker]]:
    running = {}
    try:
        for mode in MODES:
            running[mode] = Broker(mode)
        yield running
    finally:
        for one in running.values():
            one.stop()


def percentile(trips: list[float], share: float) -> float:
    return sorted(trips)[int(len(trips) * share)] * 1e6 if trips else float("nan")


@click.command()
@click.option("--seconds", default=0.2 if SMOKE else 1.0, show_default=True, help="Of each run.")
@click.option("--rounds", default=1 if SMOKE else 9, show_default=True)
def main(seconds: float, rounds: int) -> None:
    """The event loop's other work beside a flood, and beside single messages."""
    with brokers() as running:
        for name, batch, pause_s in (("flood", BATCH, 0.0), ("single messages, 5 000/s at most", 1, 0.0002)):
            found: dict[str, list[Run]] = {mode: [] for mode in MODES}
            for number in range(rounds):
                for at in range(len(MODES)):
                    mode = MODES[(at + number) % len(MODES)]
                    found[mode].append(running[mode].run(seconds, batch, pause_s))
            click.echo(name)
            for mode, runs in found.items():
                trips = [trip for run in runs for trip in run.trips]
                ratios = [run.cpu_ns / first.cpu_ns for run, first in zip(runs, found[MODES[0]], strict=True)
                          if first.cpu_ns]
                rate, cpu_ns = (statistics.median(each) for each in zip(*(run[:2] for run in runs), strict=True))
                shown = f"{statistics.median(ratios):.2f}" if ratios else "?"
                click.echo(f"  {mode:14} {rate:>10,.0f}/s   CPU {cpu_ns:>8,.0f} ns (x {shown})   echo "
                           f"{percentile(trips, 0.5):>7,.0f} µs, p99 {percentile(trips, 0.99):>7,.0f} µs")


if __name__ == "__main__":
    main()
