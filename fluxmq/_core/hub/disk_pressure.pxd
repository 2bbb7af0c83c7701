"""Back-pressure of the disk: while the journal is behind, connections that cause records are not read."""
from libc.stdint cimport uint64_t

from fluxmq._core.disk.journal cimport Journal

cdef class DiskPressure:
    cdef Journal journal                    # None: nothing is recorded
    cdef public uint64_t backlog_max        # bytes not yet on disk
    cdef public uint64_t ahead_max          # bytes written since the last checkpoint began
    cdef public uint64_t checkpoint_mark    # journal bytes written when the last checkpoint began
    cdef readonly list throttled            # connections paused because of it

    # Whether the backlog is so large that writers must wait.
    cdef inline bint is_behind(self) noexcept:
        return self.journal is not None and self.journal.backlog() > self.backlog_max

    # Whether the journal has grown too much since the last checkpoint began.
    cdef inline bint is_ahead(self) noexcept:
        return self.journal is not None and self.journal.count_bytes - self.checkpoint_mark > self.ahead_max

    # Whether those that were throttled may be read again: half of the backlog is gone.
    cdef inline bint has_eased(self) noexcept:
        return self.journal.backlog() < self.backlog_max // 2 and not self.is_ahead()
