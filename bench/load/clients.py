"""`fluxmq bench client`: fluxmq.client, paho-mqtt and aiomqtt in turns against one broker, and the table of it."""
from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluxmq.bench.load.brokers import Needs, start_broker
from fluxmq.bench.load.client_sides import SIDES, Figure, Task, missing
from fluxmq.bench.load.compare import pinned
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.machine import describe_machine
from fluxmq.bench.load.options import OptionsError

__all__ = ["ClientOptions", "render_clients", "run_clients"]

OURS = "fluxmq.client"
DISK_SECONDS = 0.1      # the disk does not matter here


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """addr: HOST:PORT of a broker, "" to start FluxMQ. rounds: turns of each side; duration: seconds of each."""

    addr: str = ""
    rounds: int = 5
    duration: float = 2.0
    size: int = 64
    window: int = 500
    pin: bool = True


@contextmanager
def broker_at(options: ClientOptions, cores: frozenset[int]) -> Iterator[tuple[str, int]]:
    """Yields a broker's host and port."""
    if options.addr:
        host, _, port = options.addr.rpartition(":")
        if not host or not port.isdigit():
            raise OptionsError(f"--addr is HOST:PORT, not {options.addr!r}")
        yield host, int(port)
        return
    with tempfile.TemporaryDirectory(prefix="fluxmq-bench-") as folder:
        broker = start_broker("fluxmq", Needs(folder=Path(folder), cores=cores))
        try:
            host, _, port = broker.addresses["tcp"].rpartition(":")
            yield host, int(port)
        finally:
            broker.stop()


def run_clients(options: ClientOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs every side once in each round, separately for each QoS. Raises LoadError if a side does not finish."""
    sides = [side for side in SIDES if not missing(side)]
    figures: dict[tuple[int, str], list[Figure]] = {(qos, side): [] for qos in (0, 1) for side in sides}
    with pinned(options.pin) as cores, broker_at(options, cores) as (host, port):
        for number in range(options.rounds):
            for qos in (0, 1):
                for side in sides:
                    task = Task(host, port, qos, options.duration, bytes(options.size), options.window,
                                f"bench/{os.getpid()}/{number}/{qos}/{side}")
                    figure = SIDES[side](task)
                    if not figure.messages:
                        raise LoadError(f"{side} with QoS {qos} did not come to its end")
                    say(f"round {number + 1}  QoS {qos}  {side:<14} {figure.rate:>10,.0f}/s")
                    figures[qos, side].append(figure)
    rows = [row(qos, side, figures) for qos in (0, 1) for side in sides]
    with tempfile.TemporaryDirectory() as folder:
        machine = describe_machine(Path(folder), DISK_SECONDS)
    return {"machine": machine, "options": {"rounds": options.rounds, "duration": options.duration,
                                               "size": options.size, "window": options.window},
            "pinned": bool(cores), "missing": [side for side in SIDES if missing(side)], "rows": rows}


def row(qos: int, side: str, figures: dict[tuple[int, str], list[Figure]]) -> dict[str, Any]:
    """Medians of a side; `times` is the median of the ratios of the rounds: ours by theirs."""
    own, ours = figures[qos, side], figures[qos, OURS]
    return {"qos": qos, "client": side, "rate": statistics.median(figure.rate for figure in own),
            "cpu_us": statistics.median(figure.cpu_us for figure in own),
            "times": statistics.median(mine.rate / its.rate for mine, its in zip(ours, own, strict=True))}


def render_clients(results: dict[str, Any]) -> str:
    """The table."""
    lines = [f"{'QoS':<4} {'client':<14} {'messages/s':>12} {'CPU µs each':>12} {'ours faster by':>15}"]
    for found in results["rows"]:
        times = "" if found["client"] == OURS else f"{found['times']:.1f}"
        lines.append(f"{found['qos']:<4} {found['client']:<14} {found['rate']:>12,.0f} {found['cpu_us']:>12.2f} "
                     f"{times:>15}")
    lines += [f"{side} is not installed" for side in results["missing"]]
    return "\n".join(lines)
