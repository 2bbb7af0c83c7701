"""The ring between broker and writer as a file in memory: made by the one, opened by the other.

It holds the clients' data, so it has no name in any file system, and a user that opens it by way of /proc must be
the broker's user (or root).
"""
import fcntl
import mmap
import os

from fluxmq._core.errors import FluxError
from fluxmq._core.record.ring import RingReader

__all__ = ["RING_PAGE", "make_ring", "open_ring", "ring_capacity"]

RING_PAGE = 4096  # before the data, with the positions of both ends


def ring_capacity(size: int) -> int:
    """The largest power of two that is at most `size` bytes, which is 4 096 at least."""
    return 1 << (size.bit_length() - 1)


def make_ring(capacity: int) -> int:
    """A descriptor (not inherited) of an empty ring of `capacity` bytes. Raises OSError."""
    descriptor = os.memfd_create("fluxmq-record", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, RING_PAGE + capacity)
        # Sealed against shrinking: access to a page that is gone would kill both processes.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_ring(source: int | str) -> RingReader:
    """The reader's end. source: a descriptor, which stays the caller's, or a path such as /proc/PID/fd/N.

    Raises FluxError when it cannot be opened, CorruptError when it is no ring.
    """
    try:
        descriptor = os.open(source, os.O_RDWR | os.O_CLOEXEC) if isinstance(source, str) else source
        try:
            mapping = mmap.mmap(descriptor, 0)
        finally:
            if isinstance(source, str):
                os.close(descriptor)
    except (OSError, ValueError) as error:
        why = "may not be opened: run this as the user of the broker, or as root" if isinstance(
            error, PermissionError) else f"cannot be opened: {getattr(error, 'strerror', None) or error}"
        raise FluxError(f"the ring of the recording {why}") from error
    return RingReader(mapping)
