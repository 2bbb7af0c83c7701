"""What a broker process shows from outside: its metrics, its memory, and waiting for either to come true."""
from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from kit.broker import Broker

__all__ = ["WAIT_SECONDS", "Memory", "a_handful", "grown", "metric", "metrics", "peak_bytes", "resident_bytes",
           "wait_until"]

WAIT_SECONDS = 20.0         # generous: only a failing test waits for it
_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def metrics(broker: Broker) -> dict[str, float]:
    """Every series of /metrics: name, or name{label="value"}, → value."""
    host, port = broker.health
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=WAIT_SECONDS) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            name, labels, value = match.groups()
            found[f"{name}{{{labels}}}" if labels else name] = float(value)
    return found


def metric(broker: Broker, name: str, **labels: str) -> float:
    """One series: metric(broker, "fluxmq_messages_dropped_total", reason="queue_full")."""
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return metrics(broker)[f"{name}{{{inside}}}" if inside else name]


def wait_until(what: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Wait until `what()` is true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def grown(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Of which live objects there are more than before. Fewer is no leak: a test that failed earlier in this process
    keeps its objects until its traceback is forgotten."""
    return {name: count - before[name] for name, count in now.items() if count > before[name]}


def a_handful(found: list[str]) -> int:
    """How many lines of one cause a log may have: one a second, by the clock of the lines themselves, however long the
    test takes."""
    first, last = (datetime.fromisoformat(line.split()[0]) for line in (found[0], found[-1]))
    return 2 + int((last - first).total_seconds())


def resident_bytes(broker: Broker) -> int:
    """Memory of the process that is in use now."""
    assert broker.process is not None
    pages = int(Path(f"/proc/{broker.process.pid}/statm").read_text().split()[1])
    return pages * 4096


def peak_bytes(broker: Broker) -> int:
    """The most memory that the process ever had in use."""
    assert broker.process is not None
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024


class Memory:
    """How much a broker's memory has grown since this object was made: now, and at most at any time since."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.before = resident_bytes(broker)

    @property
    def grown(self) -> int:
        return resident_bytes(self.broker) - self.before

    @property
    def grown_at_most(self) -> int:
        return peak_bytes(self.broker) - self.before
