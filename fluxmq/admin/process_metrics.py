"""What Linux reports of this process, under the names of Prometheus' own clients: processor time, memory, open
files, and since when it runs. Read from three files of /proc, for which psutil would be one more dependency.
"""
from __future__ import annotations

import functools
import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from fluxmq.model.metrics import Metric

__all__ = ["process_metrics"]

_PROC = Path("/proc")
# /proc/self/stat behind the name, which ends in a parenthesis and may hold anything: proc_pid_stat(5), counted from
# the state as 0.
_UTIME, _STIME, _STARTTIME, _VSIZE, _RSS = 11, 12, 19, 20, 21

_VIRTUAL = Metric("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.")
_RESIDENT = Metric("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.")
_START = Metric("process_start_time_seconds", "gauge", "Start time of the process since the Unix epoch in seconds.")
_CPU = Metric("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.")
_OPEN = Metric("process_open_fds", "gauge", "Number of open file descriptors.")
_OPEN_MAX = Metric("process_max_fds", "gauge", "Maximum number of open file descriptors.")


@functools.cache
def _booted_s() -> float:
    """When the system was started, in seconds since the epoch."""
    lines = (_PROC / "stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))


def process_metrics() -> Iterator[tuple[Metric, float]]:
    """Each metric with its value now, except those that cannot be read (no /proc, no descriptor left)."""
    try:
        fields = (_PROC / "self" / "stat").read_text().rpartition(")")[2].split()
        booted = _booted_s()
    except (OSError, StopIteration):
        pass
    else:
        ticks = os.sysconf("SC_CLK_TCK")
        yield _VIRTUAL, float(fields[_VSIZE])
        yield _RESIDENT, float(fields[_RSS]) * resource.getpagesize()
        yield _START, booted + float(fields[_STARTTIME]) / ticks
        yield _CPU, (float(fields[_UTIME]) + float(fields[_STIME])) / ticks
    open_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield _OPEN_MAX, math.inf if open_max == resource.RLIM_INFINITY else float(open_max)
    try:
        # One of them is the listing's own.
        yield _OPEN, float(len(os.listdir(_PROC / "self" / "fd")) - 1)
    except OSError:
        return
