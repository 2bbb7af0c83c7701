"""Bytes behind whose end AddressSanitizer sees a read.

CPython keeps a zero behind the last byte of a `bytes`, so a parser that reads one byte too many stays inside of what
was allocated. Under AddressSanitizer (`tox -e sanitize`, `tox -e debug`) that zero is poisoned; in any other build
`exact` does nothing.
"""
from __future__ import annotations

import ctypes

__all__ = ["SANITIZED", "exact"]

HEADER_BYTES = bytes.__basicsize__ - 1          # of a bytes object, in front of what it holds

try:
    POISON = ctypes.CDLL(None).__asan_poison_memory_region
    POISON.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    POISON.restype = None
except AttributeError:
    POISON = None
SANITIZED = POISON is not None


def exact(data: bytes) -> bytes:
    """The same bytes in a new object; one byte or none is shared by all of CPython and comes back as it is."""
    if POISON is None or len(data) < 2:
        return data
    copy = bytes(memoryview(data))
    POISON(id(copy) + HEADER_BYTES + len(copy), 1)
    return copy
