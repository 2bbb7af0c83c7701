"""The bytes of a log's messages in segments, by spans of offsets. See queue/sizes.pyx."""
from libc.stdint cimport uint32_t, uint64_t

cdef struct span_t:
    uint64_t end                # offset behind it; it begins where the previous one ends, or at the log's first offset
    uint64_t bytes

cdef class Sizes:
    cdef span_t* spans
    cdef uint32_t head          # spans below have been removed
    cdef uint32_t count         # including those
    cdef uint32_t room

    cdef int add(self, uint64_t end, uint64_t bytes) except -1
    cdef span_t* front(self) noexcept               # NULL: there is none
    cdef void pop(self) noexcept
