"""A group's state for one log: the next offset to claim, the settled and the claimed messages.

    settled: all below `floor`, and at or above it what the pages say    claimed: the table    the rest: never claimed
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.queue.claim cimport Member, claim_t, heap_t
from fluxmq._core.queue.log cimport Log

cdef enum:
    PAGE_BITS = 16              # of an offset: its index in a page

cdef class Cursor:
    cdef readonly Log log
    cdef readonly uint32_t partition
    cdef readonly uint64_t next             # next offset never claimed
    cdef readonly uint64_t floor            # all below is settled
    cdef readonly uint64_t settled          # how many at or above `floor` are settled
    cdef readonly uint32_t held             # claims that members hold
    cdef Member owner                       # exclusive groups: the member that gets its messages
    cdef Member holder                      # exclusive groups: the member that holds claims
    cdef uint8_t** pages                    # bitmaps of 64 Ki offsets, from `floor` on; NULL: none is settled
    cdef uint32_t pages_count
    cdef uint64_t pages_base                # offset >> 16 of pages[0]
    cdef claim_t** table
    cdef uint32_t table_mask
    cdef uint32_t count
    cdef uint64_t head_at                   # the head that amqp_head checked last, and when it expires, 0: never
    cdef int64_t head_expires
    cdef heap_t ready

    # Whether the message is settled: below floor, or out of order.
    cdef bint is_settled(self, uint64_t offset) noexcept
    cdef claim_t* find(self, uint64_t offset) noexcept
    cdef int mark(self, uint64_t offset) except -1
    # Skips from `next` to `upto`: these messages are not stored any more, because every group had settled them.
    cdef int pass_over(self, uint64_t upto) except -1
    # Begins at `next`, with nothing settled above it. Claims stay.
    cdef void start_at(self, uint64_t next) noexcept
    cdef void advance(self) noexcept
    cdef uint64_t reach(self) noexcept
    cdef bint is_settled_bit(self, uint64_t offset) noexcept
    cdef void set_floor(self, uint64_t offset) noexcept
    cdef claim_t* add(self, uint64_t offset) except NULL
    cdef void drop(self, claim_t* claim) noexcept
    cdef int grow(self) except -1
