# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See hub/disk_pressure.pxd."""
cimport cython

__all__ = ["DiskPressure"]


@cython.final
cdef class DiskPressure:
    """Machine. journal: the node's, or None."""

    def __cinit__(self, Journal journal):
        self.journal = journal
        self.backlog_max = 64 << 20
        self.ahead_max = <uint64_t>1 << 63
        self.throttled = []
