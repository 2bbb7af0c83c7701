"""What the live view costs: itself for a frame, and the broker that it looks at.

    python -P -m fluxmq.bench.micro.bench_view --seconds 10 --rounds 5

First frames alone: of two sizes of a terminal, with every lane busy, and the decoding of a ring that is full at
each frame. Then a broker in a process of its own under a load of a fixed rate (`fluxmq bench run`), by turns without
and with `fluxmq viz` on a pseudo-terminal: processor time of both, as a share of a core, and the broker's ratio of two
turns that are neighbours. FLUXMQ_BENCH_SMOKE=1, or --smoke, makes it short.
"""
from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import click

from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import PubAck, Publish
from fluxmq._core.record.counts import KINDS, LaneCounts
from fluxmq.model.record import VIEW_RING_BYTES
from fluxmq.view.belts import UNICODE
from fluxmq.view.lanes import Lanes
from fluxmq.view.picture import Picture
from fluxmq.view.screen import STYLES, Painter

SMOKE = os.environ.get("FLUXMQ_BENCH_SMOKE") == "1"
SIZES = ((80, 24), (200, 50))
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 60.0
SETTLE_S = 1.0
CLIENTS = 8
FLUXMQ = [sys.executable, "-P", "-m", "fluxmq"]
CODES = {name: f"\x1b[{30 + at % 8}m" if text else "" for at, (name, text) in enumerate(STYLES.items())}


class Frames(NamedTuple):
    """Of a size: processor time and bytes of a frame."""

    columns: int
    rows: int
    milliseconds: float
    bytes: float


def some(random: Random) -> list[int]:
    """What may happen on a lane in a frame."""
    rare = (0,) * 49 + (1,)
    return [random.choice(rare if kind in ("nack", "ping", "error") else (0, 0, 1, 3, 12)) for kind in KINDS]


def frames(columns: int, rows: int, count: int) -> Frames:
    """All lanes on the screen have traffic of all kinds."""
    lanes = Lanes()
    lanes.learn_queues([(f"queue-{at}", [(f"n{at % 3}", at, False)]) for at in range(rows)], 0.0)
    picture = Picture(lanes, columns, rows, UNICODE)
    painter = Painter(CODES)
    random = Random(1)
    numbers = [lane.number for lane in lanes.shown()]
    written = 0
    for _ in range(30):     # until the belts are full
        picture.step(0.1, {number: some(random) for number in numbers})
    painter.paint(picture.frame())
    counts = [{number: some(random) for number in numbers} for _ in range(20)]
    begun = time.process_time()
    for at in range(count):
        picture.step(1 / 30, counts[at % len(counts)])
        written += len(painter.paint(picture.frame()).encode())
    return Frames(columns, rows, (time.process_time() - begun) / count * 1e3, written / count)


def full_ring(count: int) -> tuple[float, int]:
    """Milliseconds to count what a ring of the usual size holds, and how many packets that is."""
    def entry(kind: int, data: bytes) -> bytes:
        size = 32 + (len(data) + 7 & ~7)
        return (struct.pack("<IBBHQqII", size, kind, 1, 0, 1, 0, len(data), 0) + data).ljust(size, b"\0")

    opened = entry(1, b"{}") + entry(2, b'{"client_id":"c","version":5}')
    turn = (entry(3, b"".join(encode_packet(Publish(f"plant/{at}", qos=1, packet_id=at + 1, payload=bytes(64)), 5)
                              for at in range(20)))
            + entry(4, b"".join(encode_packet(PubAck(at + 1), 5) for at in range(20))))
    ring = turn * (VIEW_RING_BYTES // len(turn))
    machine = LaneCounts(lambda topic, exchange: (2, 1))
    machine.feed(opened)
    begun = time.process_time()
    for _ in range(count):
        machine.feed(ring)
        machine.take()
    return (time.process_time() - begun) / count * 1e3, 40 * (len(ring) // len(turn))


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def broker(folder: Path) -> Iterator[tuple[int, str, Path]]:
    """Its process, its address, its admin socket."""
    admin = folder / "admin.sock"
    settings = {"server.mqtt.tcp.plain.addr": "127.0.0.1:0", "server.mqtt.websocket.plain.addr": "",
                "server.amqp091.plain.addr": "", "server.health_enabled": "false", "storage.type": "memory",
                "server.admin_socket": str(admin)}
    process = subprocess.Popen([*FLUXMQ, "run", *(word for name, value in settings.items()
                                                  for word in ("--set", f"{name}={value}"))],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        address = ""
        for line in process.stdout:
            if "mqtt/tcp/plain" in line:
                address = line.split()[-1]
            if line.startswith("ready"):
                break
        yield process.pid, address, admin
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        process.stdout.close()


def connected(socket_path: Path) -> int:
    """How many clients the broker has."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(socket_path))
        line.sendall(b"GET /api/v1/clients?count=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
    return int(json.loads(answer.partition(b"\r\n\r\n")[2])["connected"])


class Viewed:
    """`fluxmq viz` on a pseudo-terminal whose other end takes everything."""

    def __init__(self, admin: Path, columns: int, rows: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen([*FLUXMQ, "viz", "--attach", str(admin)], stdin=slave, stdout=slave,
                                        stderr=slave, env=os.environ | {"TERM": "xterm-256color"})
        os.close(slave)
        self.bytes = 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        try:
            while data := os.read(self._master, 1 << 16):
                self.bytes += len(data)
        except OSError:
            return      # the other end is closed

    def __enter__(self) -> Viewed:
        deadline = time.monotonic() + PATIENCE_S
        while not self.bytes and time.monotonic() < deadline:
            select.select([], [], [], 0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        os.close(self._master)


class Turn(NamedTuple):
    """Shares of a core."""

    without: float
    with_view: float
    view: float


def turns(seconds: float, rounds: int, rate: float, columns: int, rows: int) -> list[Turn]:
    found = []
    with tempfile.TemporaryDirectory() as name, broker(Path(name)) as (pid, address, admin):
        half = str(CLIENTS // 2)
        lasts = (seconds * 2 + 10) * rounds + PATIENCE_S
        load = subprocess.Popen(
            [*FLUXMQ, "bench", "run", "--addr", address, "--pubs", half, "--subs", half, "--topics", "pairs", "--qos",
             "1", "--rate", str(rate), "--duration", str(lasts)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while connected(admin) < CLIENTS and time.monotonic() < deadline:
                time.sleep(0.1)
            time.sleep(SETTLE_S)
            for _ in range(rounds):
                begun, before = time.monotonic(), cpu_s(pid)
                time.sleep(seconds)
                without = (cpu_s(pid) - before) / (time.monotonic() - begun)
                with Viewed(admin, columns, rows) as viewed:
                    time.sleep(SETTLE_S)
                    begun, before, own = time.monotonic(), cpu_s(pid), cpu_s(viewed.process.pid)
                    time.sleep(seconds)
                    passed = time.monotonic() - begun
                    found.append(Turn(without, (cpu_s(pid) - before) / passed,
                                      (cpu_s(viewed.process.pid) - own) / passed))
        finally:
            load.terminate()
            load.wait(PATIENCE_S)
    return found


@click.command()
@click.option("--seconds", type=float, default=10.0, show_default=True, help="Of each turn.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Turns with a view, and without.")
@click.option("--rate", "rates", type=float, multiple=True, default=(1000.0, 20_000.0), show_default=True,
              help="Messages a second. Repeatable.")
@click.option("--smoke", is_flag=True, help="Short, to see that it works.")
def main(seconds: float, rounds: int, rates: tuple[float, ...], smoke: bool) -> None:
    """What fluxmq viz costs."""
    global SMOKE
    SMOKE = SMOKE or smoke
    if SMOKE:
        seconds, rounds, rates = 0.5, 1, (500.0,)
    result: dict[str, object] = {}
    for columns, rows in SIZES:
        one = frames(columns, rows, 20 if SMOKE else 600)
        click.echo(f"{columns} x {rows}: {one.milliseconds:.2f} ms and {one.bytes / 1024:.1f} KiB for a frame")
        result[f"frame_{columns}x{rows}_ms"] = round(one.milliseconds, 3)
    took, packets = full_ring(5 if SMOKE else 200)
    click.echo(f"a full ring of {VIEW_RING_BYTES >> 10} KiB, {packets} packets: {took:.2f} ms")
    result["ring_ms"] = round(took, 3)
    for rate in rates:
        for columns, rows in SIZES:
            found = turns(seconds, rounds, rate, columns, rows)
            ratio = statistics.median(turn.with_view / max(turn.without, 1e-3) for turn in found)
            more = statistics.median(turn.with_view - turn.without for turn in found)
            view = statistics.median(turn.view for turn in found)
            click.echo(f"{rate:.0f}/s, {columns} x {rows}: the view {view:.1%} of a core; the broker {ratio:.2f} times "
                       f"as much, {more:+.1%} of a core")
            result[f"{rate:.0f}_{columns}x{rows}"] = {"view": round(view, 4), "broker_ratio": round(ratio, 3),
                                                      "broker_more": round(more, 4)}
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
