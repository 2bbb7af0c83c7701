"""The members of a group: they join and leave, and the partitions of the queue are balanced among them.

Every member of a shared group gets messages of all partitions. In an exclusive group each partition has one owner; a
rebalance moves as few of them as it can. In a single group the oldest member owns all.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.queue.claim cimport Member, claim_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.relay cimport Relay

cdef class Members:
    """Base class of Group."""
    cdef readonly str mode                  # shared, exclusive, single
    cdef readonly list cursors              # Cursor, one per log of the queue, in the queue's order
    cdef readonly list members              # Member, highest priority first
    cdef readonly list pullers              # Member: no push delivery, they may have claims (attach, rest)
    cdef Ledger ledger
    cdef uint32_t order_count
    cdef list order                         # lists of cursors, the highest lane first
    cdef bint ranked                        # its members differ in priority
    cdef dict lanes                         # partition -> its cursors; None: there is one cursor
    cdef public Relay relay                 # another node has the queue, and decides; None: this one
    # Of a queue whose partitions are queues of their own: which one this is, and of how many; 0 of 0: of no such queue.
    cdef public uint32_t part
    cdef public uint32_t parts

    # Exclusive and single groups: partition -> (life, member) of its owner; of a copy, as heard. None: there is none.
    # It is recorded in lines other than the journal.
    cdef readonly dict said
    # The same, of owners at other nodes before this one had the queue, which are still to come: until they do, or
    # expect_nobody(), nobody gets messages of these partitions. None: none are.
    cdef readonly dict expected

    # Records who owns what, if that has changed.
    cdef int say_owners(self) except -1
    cdef int write_owner(self, uint32_t partition, tuple owner) except -1
    # Whether the group's queue is about to move.
    cdef bint home_rests(self) noexcept
    cdef Cursor cursor_of(self, uint64_t log_number)
    cdef void admit(self, Member member) noexcept
    cdef int add_puller(self, Member member) except -1
    cdef void unlimit(self, Member member) noexcept
    cdef int left(self, Member member) except -1
    cdef int rank(self) except -1
    cdef int balance(self) except -1
    cdef int welcome(self, list members) except -1

    # what Group adds
    # Makes a message ready again: at once (delay_ms 0) or later. counts: the delivery counts (it reached a consumer).
    cdef int give_back(self, claim_t* claim, int64_t delay_ms, bint counts) except -1
    # Forgets a claim that a member holds.
    cdef int drop_held(self, claim_t* claim) except -1
    cdef int touch(self) except -1
