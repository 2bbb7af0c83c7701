"""Measures the cost of recording: the same open loop with and without it, in turns, against one broker.

What is measured is the CPU time of the broker's process alone, of its threads, from /proc; the writer is a process of
its own (`fluxmq record --attach`, or a reader that throws away what it takes). Sides take turns within a round, and
rounds in which goes first, so that a machine that becomes slower is slower for both.
"""
from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fluxmq._core.memory.tap import Tap
from fluxmq.bench.load.brokers import Broker, BrokerError, Needs, free_port, start_broker
from fluxmq.bench.load.machine import describe_machine
from fluxmq.bench.load.options import LoadOptions
from fluxmq.bench.load.runner import run_load
from fluxmq.record.ring import make_ring, open_ring

__all__ = ["DISCARD", "RecordBenchOptions", "render_recording", "run_recording"]

ADMIN_SOCKET = "admin.sock"
ATTACH_SECONDS = 20.0
LOOK_SECONDS = 0.02
FSYNC_SECONDS = 0.2
TAP_TURNS = 31
TAP_IN = 3
# Takes what comes and forgets it: what the broker pays does not depend on what becomes of it.
DISCARD = """
import sys, time
from pathlib import Path
from fluxmq.app.admin_client import AdminClient
from fluxmq.record.ring import open_ring
client = AdminClient(Path(sys.argv[1]))
found, lines = client.record(0)
reader = open_ring(found["ring"])
print("attached", flush=True)
while not reader.ended:
    if not reader.discard()[0]:
        time.sleep(0.003)
"""


@dataclass(slots=True, kw_only=True)
class RecordBenchOptions:
    """rate: messages per second, each sent once and delivered once. pairs: publishers, and as many subscribers.
    writer: parquet, the whole writer; none, a reader that throws away. payload: what the writer keeps of payloads.
    folder: for recordings. pin: the broker on the first processor, all else on the second."""

    rate: float = 200_000.0
    pairs: int = 1
    qos: int = 0
    size: int = 64
    rounds: int = 7
    duration: float = 5.0
    warmup: float = 1.0
    writer: Literal["parquet", "none"] = "parquet"
    payload: Literal["full", "hash", "size"] = "hash"
    folder: Path = Path()
    pin: bool = True


def own_cpu(pid: int) -> float:
    """CPU seconds of the process's threads, without its children."""
    found = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        found += int(task.read_text().split()[0])
    return found / 1e9


@contextmanager
def attached(broker: Broker, options: RecordBenchOptions, folder: Path, cores: frozenset[int]) -> Iterator[None]:
    """A recording that lasts as long as the context."""
    path = str(folder / ADMIN_SOCKET)
    if options.writer == "none":
        command = [sys.executable, "-P", "-c", DISCARD, path]
    else:
        command = [sys.executable, "-P", "-m", "fluxmq", "record", "--attach", path, "--payload", options.payload,
                   "--dir", str(options.folder / f"recording-{time.monotonic_ns()}")]
    writer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        if cores:
            os.sched_setaffinity(writer.pid, cores)
        end = time.monotonic() + ATTACH_SECONDS
        while not rings(broker.pid):
            if writer.poll() is not None or time.monotonic() > end:
                raise BrokerError("the writer did not attach")
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        writer.send_signal(signal.SIGINT if options.writer == "parquet" else signal.SIGTERM)
        writer.wait()
        while rings(broker.pid):
            time.sleep(LOOK_SECONDS)


def rings(pid: int) -> int:
    """Number of rings that the broker has open."""
    found = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += os.readlink(link).startswith("/memfd:fluxmq-record")
        except OSError:
            continue
    return found


def one_side(broker: Broker, options: RecordBenchOptions) -> dict[str, Any]:
    load = LoadOptions(addr=broker.addresses["tcp"], pubs=options.pairs, subs=options.pairs, topics="pairs",
                       qos=options.qos, size=options.size, rate=options.rate, duration=options.duration,
                       warmup=options.warmup)
    cpu, since = own_cpu(broker.pid), time.monotonic()
    figures = run_load(load)
    used, passed = own_cpu(broker.pid) - cpu, time.monotonic() - since
    total = figures["total"]
    return {"cpu_seconds": used, "seconds": passed, "delivered": total["delivered"],
            "cpu_us_per_message": used * 1e6 / max(1, total["delivered"]),
            "per_second": figures["delivered_per_second"]}


def counters(address: str) -> dict[str, float]:
    """The broker's counters of recorded and lost entries."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if line.startswith("fluxmq_record_")]
    return {name: float(value) for name, value in lines}


def tap_seconds(size: int) -> float:
    """Time to record one entry with this much data, including the call from Python; median of many."""
    capacity = 64 << 20
    descriptor = make_ring(capacity)
    try:
        tap, reader = Tap(descriptor, capacity), open_ring(descriptor)
        data, times = bytes(size), []
        many = max(10, min(10_000, capacity // 2 // (size + 64)))
        for _ in range(TAP_TURNS):
            reader.discard()
            since = time.perf_counter()
            for _ in range(many):
                tap.write(TAP_IN, 1, 0, 1, data)
            times.append((time.perf_counter() - since) / many)
        return statistics.median(times)
    finally:
        os.close(descriptor)


def tapped(rounds: list[dict[str, Any]], counted: dict[str, float]) -> dict[str, float]:
    """Entries of a second of the load, and their cost measured separately. The number of messages per read differs
    between rounds and depends on the machine; this figure does not."""
    seconds = sum(sides["on"]["seconds"] for sides in rounds)
    entries, size = counted["fluxmq_record_entries_total"], counted["fluxmq_record_bytes_total"]
    each = tap_seconds(int(size / max(1.0, entries)))
    return {"entries_per_second": entries / seconds, "bytes_per_second": size / seconds, "ns_per_entry": each * 1e9,
            "percent": 100 * each * entries / seconds}


def run_recording(options: RecordBenchOptions, say: Any) -> dict[str, Any]:
    """All rounds. percent: CPU of the broker's process while it records, beyond the same load without, in per cent of a
    processor at the rate that was asked for. Raises BrokerError, LoadError, OSError."""
    cores = sorted(os.sched_getaffinity(0))
    first, second = (frozenset({cores[0]}), frozenset({cores[1]})) if options.pin and len(cores) > 1 else (
        frozenset[int](), frozenset[int]())
    health = f"127.0.0.1:{free_port()}"
    needs = Needs(folder=options.folder, cores=first, settings={
        "storage.type": "memory", "server.admin_socket": str(options.folder / ADMIN_SOCKET),
        "server.health_enabled": "true", "server.health_addr": health})
    rounds: list[dict[str, Any]] = []
    own = os.sched_getaffinity(0)
    if second:
        os.sched_setaffinity(0, second)
    try:
        with start_broker("fluxmq", needs) as broker:
            for number in range(options.rounds):
                sides: dict[str, Any] = {}
                for side in ("off", "on") if number % 2 == 0 else ("on", "off"):
                    if side == "off":
                        sides[side] = one_side(broker, options)
                    else:
                        with attached(broker, options, options.folder, second):
                            sides[side] = one_side(broker, options)
                rounds.append(sides)
                say(f"  round {number + 1} of {options.rounds}: {figures_of(sides, options.rate)}")
            counted = counters(health)
    finally:
        os.sched_setaffinity(0, own)
    return {"machine": describe_machine(options.folder, FSYNC_SECONDS), "rounds": rounds, "counted": counted,
            "tap": tapped(rounds, counted),
            "off": middle([side["off"]["cpu_us_per_message"] for side in rounds]),
            "on": middle([side["on"]["cpu_us_per_message"] for side in rounds]),
            "ratio": middle([ratio(side) for side in rounds]),
            "percent": middle([points(side, options.rate) for side in rounds]),
            "percent_off": middle([100 * side["off"]["cpu_us_per_message"] * options.rate / 1e6 for side in rounds])}


def ratio(sides: dict[str, Any]) -> float:
    return float(sides["on"]["cpu_us_per_message"] / sides["off"]["cpu_us_per_message"])


def points(sides: dict[str, Any], rate: float) -> float:
    more = sides["on"]["cpu_us_per_message"] - sides["off"]["cpu_us_per_message"]
    return float(100 * more * rate / 1e6)


def middle(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def figures_of(sides: dict[str, Any], rate: float) -> str:
    off, on = sides["off"], sides["on"]
    return (f"{off['cpu_us_per_message']:.4f} µs a message without, {on['cpu_us_per_message']:.4f} with "
            f"({points(sides, rate):+.2f} points of a processor at {rate:.0f}/s); {off['per_second']:.0f} and "
            f"{on['per_second']:.0f} delivered a second")


def render_recording(found: dict[str, Any]) -> str:
    """As people read it."""
    lost = found["counted"]["fluxmq_record_lost_entries_total"]
    every = found["counted"]["fluxmq_record_entries_total"] + lost
    tap = found["tap"]

    def shown(name: str, form: str) -> str:
        return (f"{found[name]['median']:{form}} ({found[name]['min']:{form}}..{found[name]['max']:{form}})")

    percent, points = shown("percent_off", ".1f"), shown("percent", "+.2f")
    return "\n".join([
        "CPU of the broker's process",
        f"  µs a message  {shown('off', '.4f')} without recording, {shown('on', '.4f')} with",
        f"  ratio         {shown('ratio', '.3f')} within a round",
        f"  at that rate  {percent} % of a processor, and {points} for recording",
        f"  the tap       {tap['entries_per_second']:.0f} entries a second, {tap['bytes_per_second'] / 1e6:.1f} MB/s; "
        f"by itself {tap['ns_per_entry']:.0f} ns an entry, {tap['percent']:.2f} % of a processor",
        f"entries that found no room: {lost:.0f} of {every:.0f}"])
