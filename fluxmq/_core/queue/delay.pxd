"""The delayed messages of one queue: their log, their due times, and those being moved to the queue.

    append ──► log, heap ──due──► round (in order of due time) ──► head ──► the queue appends it ──► settle_head
                                    └─ on disk only: `missing` ──read──► `found` ─┘

Both steps of a move are in one batch of the journal. The heap is derived: a restart rebuilds it from the due times in
the segments' footers and from the journal, without settled messages.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport body_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.due cimport DueHeap, due_t
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport Log, record_t

cdef enum:
    ROUND_MAX = 2000            # messages taken out of the heap at a time

cdef class Delays:
    cdef readonly Log log
    cdef readonly Group group               # with one cursor and no members; moved messages are settled in it
    cdef readonly DueHeap heap
    cdef readonly int64_t newest_due        # of the message appended last: steady clock, ms
    cdef public bint busy                   # the disk is reading or writing: nothing moves until it is done
    cdef Cursor cursor
    cdef Ledger ledger
    cdef due_t* round                       # due messages in order; not in the heap, not settled. NULL between rounds
    cdef uint32_t round_at
    cdef uint32_t round_count
    cdef dict picked                        # offset -> bytes of a message of this round that was only on disk

    cdef int append(self, const body_t* body, uint8_t qos, uint8_t priority, int64_t not_before) except -1
    # Whether a message is due.
    cdef bint is_due(self) noexcept
    cdef bint is_due_in_heap(self) noexcept
    # The first due message, borrowed until settle_head or the next append to a log. NULL: none is due, or it is only on
    # disk (is_missing).
    cdef const record_t* head(self) except? NULL
    cdef int settle_head(self) except -1
    cdef int begin_round(self) except -1
    cdef const record_t* in_memory(self, uint64_t offset) noexcept
    # Records what was settled, and discards it.
    cdef int finish(self) except -1
    cdef int trim_settled(self) except -1
