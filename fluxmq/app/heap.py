"""Returns freed memory of the C library to the system, so that a burst does not leave the process large."""
from __future__ import annotations

import asyncio
import ctypes

__all__ = ["HeapKeeper", "settle_heap", "trim"]

# From <malloc.h>. By default glibc raises both to the size of the largest block that was ever freed, up to 32 and 64
# MiB, and each thread's heap may then keep as much unused memory.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MMAP_BYTES = 1 << 20
TRIM_BYTES = 4 << 20
QUIET_TICKS = 8


def settle_heap() -> None:
    """Called once per process, before threads are started. Has no effect if the C library has no such settings."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
    mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)


class HeapKeeper:
    """Returns memory that bursts have freed to the system when it is quiet again. quiet: ticks without a change."""

    def __init__(self, quiet: int = QUIET_TICKS) -> None:
        self._quiet = quiet
        self._seen = 0
        self._left = 0

    def tick(self, bursts: int) -> None:
        """bursts: a number that increases with each burst (checkpoint)."""
        if bursts != self._seen:
            self._seen, self._left = bursts, self._quiet
        elif self._left:
            self._left -= 1
            if self._left == 0:
                asyncio.get_running_loop().run_in_executor(None, trim)


def trim() -> None:
    """Frees pages in the middle of heaps too. Takes some milliseconds; has no effect if the C library cannot do it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
