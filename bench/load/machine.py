"""The machine on which the figures were measured."""
from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fluxmq import __version__
from fluxmq.bench.load.brokers import find_mosquitto
from fluxmq.bench.load.floors import FloorError, fsync_latency

__all__ = ["describe", "describe_machine"]


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def first_line(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = (done.stdout or done.stderr).strip().splitlines()
    return said[0] if said else None


def describe_machine(folder: Path, seconds: float) -> dict[str, Any]:
    """Processor, kernel, versions, and latency of fdatasync in that folder (measured for `seconds`)."""
    mosquitto = find_mosquitto()
    machine: dict[str, Any] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": processor(), "cpus": len(os.sched_getaffinity(0)),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(), "fluxmq": __version__,
        "mosquitto": first_line([mosquitto, "-h"]) if mosquitto else None,
        "compiler": first_line([os.environ.get("CC", "cc"), "--version"]),
    }
    try:
        machine["fdatasync_us"] = fsync_latency(folder, seconds).summary()
    except FloorError as error:
        machine["fdatasync_us"] = None
        machine["fdatasync_error"] = str(error)
    return machine


def describe(machine: dict[str, Any]) -> str:
    """The same in a few lines of text."""
    lines = [f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['kernel']}, Python {machine['python']}",
             f"FluxMQ {machine['fluxmq']}, {machine['mosquitto'] or 'no mosquitto'}"]
    sync = machine["fdatasync_us"]
    if sync:
        lines.append(f"write + fdatasync of 4 KiB: p50 {sync['p50']:.0f} µs, p99 {sync['p99']:.0f} µs, "
                     f"{sync['count']} times")
    return "\n".join(lines)
