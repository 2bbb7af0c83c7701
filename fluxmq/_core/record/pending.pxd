# cython: language_level=3
"""What waits for its acknowledgement on one connection: row and time of each, by number.

pending_t is for numbers in any order (packet identifiers), window_t for numbers that rise (delivery tags).
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    LEFT_OUT = -2           # sent_t.seq: the row was not written, nor will be what acknowledges it
    NOTHING = -1            # sent_t.seq: nothing waits here

cdef struct sent_t:
    int64_t seq
    int64_t time            # ns

cdef struct slot_t:
    uint64_t number         # 0: free
    sent_t sent

cdef struct pending_t:      # all zero: empty
    slot_t* slots
    uint32_t size           # a power of two, or 0
    uint32_t count          # invariant: count * 2 <= size

cdef struct window_t:       # all zero: empty
    sent_t* sent            # of number n: sent[n & (size - 1)], for base <= n < base + count
    uint32_t size
    uint32_t count
    uint64_t base

# number is not 0; what waited under it before waits no longer.
cdef int pending_put(pending_t* pending, uint64_t number, int64_t seq, int64_t time) except -1
# What waits under the number, seq NOTHING when nothing does; with `last` it waits no longer.
cdef sent_t pending_get(pending_t* pending, uint64_t number, bint last) noexcept
cdef void pending_free(pending_t* pending) noexcept         # empty again

# Numbers that rise; one that does not is passed over. The oldest goes when there are too many.
cdef int window_put(window_t* window, uint64_t number, int64_t seq, int64_t time) except -1
# As pending_get with `last`; `through`: nor does what has a lower number. Number 0 with `through`: the highest.
cdef sent_t window_take(window_t* window, uint64_t number, bint through) noexcept
cdef void window_free(window_t* window) noexcept
