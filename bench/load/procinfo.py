"""CPU time and memory of another process, from /proc, because psutil's CPU time has a resolution of only 10 ms."""
from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuReading", "Memory", "children", "cpu_between", "memory", "read_cpu"]


@dataclass(slots=True, frozen=True)
class CpuReading:
    """User and system time (seconds, in ticks of 10 ms) of a process, and the exact time on CPU of each thread, ns."""

    user: float
    system: float
    threads: dict[int, int]


@dataclass(slots=True, frozen=True)
class Memory:
    """Bytes: resident now, the maximum so far, and private (not shared with other processes)."""

    rss: int
    peak: int
    private: int


def children(pid: int) -> list[int]:
    """The process and its running children: a broker may have workers."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                found += children(int(child))
        except OSError:
            continue
    return found


def read_cpu(pid: int, *, alone: bool = False) -> CpuReading:
    """CPU time of the process and, unless alone, its children. Raises ProcessLookupError when it is gone."""
    user = system = 0.0
    threads: dict[int, int] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for one in [pid] if alone else children(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError as error:
            if one == pid:
                raise ProcessLookupError(f"there is no process {pid}") from error
            continue
        user += int(fields[11]) / tick
        system += int(fields[12]) / tick
        for task in Path(f"/proc/{one}/task").glob("*/schedstat"):
            try:
                threads[int(task.parent.name)] = int(task.read_text().split()[0])
            except (OSError, IndexError, ValueError):
                continue
    return CpuReading(user, system, threads)


def cpu_between(before: CpuReading, after: CpuReading) -> float:
    """CPU seconds between two readings: exact if no thread ended in between, otherwise to the tick."""
    if before.threads and set(before.threads) <= set(after.threads):
        return sum(ns - before.threads.get(thread, 0) for thread, ns in after.threads.items()) / 1e9
    return after.user + after.system - before.user - before.system


def memory(pid: int) -> Memory:
    """Memory of the process (peak and private of it alone, resident with its children)."""
    status = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        status[name] = value
    rss = 0
    for one in children(pid):
        try:
            rss += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    private = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                private += int(line.split()[1]) * 1024
    except OSError:
        private = 0
    return Memory(rss, int(status["VmHWM"].split()[0]) * 1024, private)
