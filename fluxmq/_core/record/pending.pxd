# cython: language_level=3
"""Operations of one connection without acknowledgement: row and time of each, by number.

pending_t is for numbers in any order (packet identifiers), window_t for ascending ones (delivery tags).
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    LEFT_OUT = -2           # sent_t.seq: the row was left out; its acknowledgement will be too
    NOTHING = -1            # sent_t.seq: nothing is pending

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

# number is not 0; replaces an earlier entry.
cdef int pending_put(pending_t* pending, uint64_t number, int64_t seq, int64_t time) except -1
# The entry of the number; seq NOTHING: none. last: removes it.
cdef sent_t pending_get(pending_t* pending, uint64_t number, bint last) noexcept
cdef void pending_free(pending_t* pending) noexcept         # empty again

# Numbers must ascend; others are ignored. If there are too many, the oldest is dropped.
cdef int window_put(window_t* window, uint64_t number, int64_t seq, int64_t time) except -1
# As pending_get with `last`. through: also removes lower numbers; number 0 then means the highest.
cdef sent_t window_take(window_t* window, uint64_t number, bint through) noexcept
cdef void window_free(window_t* window) noexcept
