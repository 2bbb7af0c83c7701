"""Memory of the process and of the machine, and the alarm: on from the mark on, off below nine tenths of it.

The gap keeps publishers from being blocked and unblocked several times a second.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["MemoryAlarm", "high_mark", "machine_bytes", "resident_bytes"]

# Fraction of the available memory: the rest is for the page cache, without which queues larger than memory are slow.
SHARE = 0.6
RELEASE = 0.9
STATM = Path("/proc/self/statm")
# Files with a container's limit: control groups of version 2, then of version 1.
GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def resident_bytes() -> int:
    """Memory of this process in use."""
    return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def machine_bytes(groups: tuple[Path, ...] = GROUPS) -> int:
    """Memory of the machine or the limit of the control group, whichever is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in groups:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and 0 < int(text) < total:
            return int(text)
    return total


def high_mark(configured: int) -> int:
    """amqp091.memory_high, in bytes."""
    return configured or int(SHARE * machine_bytes())


class MemoryAlarm:
    """Machine. mark: bytes. resident: returns the memory in use."""

    def __init__(self, mark: int, resident: Callable[[], int] = resident_bytes) -> None:
        self.mark = mark
        self.on = False
        self._resident = resident

    def look(self) -> bool:
        """Updates whether memory is short; returns whether that has changed."""
        was = self.on
        try:
            self.on = self._resident() >= (RELEASE * self.mark if was else self.mark)
        except OSError:  # no descriptor is free for reading it: the state is unchanged
            return False
        return self.on != was
