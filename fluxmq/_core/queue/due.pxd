"""A heap of due times, 12 bytes for each delayed message. See queue/due.pyx."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef struct due_t:              # a number of 96 bits, due time before offset, in three words: aligned to four bytes
    uint32_t high               # due time, ms, its upper 32 bits of 48
    uint32_t middle             # its lower 16, and the offset's upper 16 of 48
    uint32_t low                # the offset's lower 32

cdef class DueHeap:
    cdef due_t* items           # each is at most its four children: items[4 i + 1 … 4 i + 4]
    cdef readonly uint64_t count
    cdef uint64_t room

    cdef int add(self, int64_t due_ms, uint64_t offset) except -1       # unordered: call heapify afterwards
    cdef int push_due(self, int64_t due_ms, uint64_t offset) except -1
    cdef due_t take_first(self) noexcept                                # count must not be 0
    cdef int reserve(self, uint64_t count) except -1
    cdef void rise(self, uint64_t at) noexcept
    cdef void sink(self, uint64_t at) noexcept
    cpdef heapify(self)                                                 # orders what was added

cdef inline int64_t due_time(due_t due) noexcept nogil:
    return <int64_t>(<uint64_t>due.high << 16 | due.middle >> 16)

cdef inline uint64_t due_offset(due_t due) noexcept nogil:
    return <uint64_t>(due.middle & 0xFFFF) << 32 | due.low
