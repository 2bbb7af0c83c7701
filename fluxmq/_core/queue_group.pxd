"""A group: who of its members gets which message of which log, and what becomes of it. Knows no protocol.

A message, seen by one group:

    not claimed ──claim──► CLAIMED ──settle──► settled
         ▲                  │  ▲ │
         │ (never again)    │  │ └─ lease over, nack, member gone ─► READY again (at once, or WAITING for its time)
                            │  └──────────── claim, delivery count + 1 ────────┘
                            └─ reject, or one delivery too many ─► dead (the engine moves it), then settled

What is ready again goes before what was never claimed, lowest offset first: a requeue is in place. Of lanes the highest
priority that has anything goes first.

All records (CLAIM, SETTLE, RETURN; docs/internals/queues.md) are written here; neighbours are joined into runs until
the end of the turn, so `write_records` must be called before the journal's batch is submitted.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.ledger cimport Ledger
from fluxmq._core.queue_log cimport Log, chunk_t, record_t

cdef enum:
    CLAIM_READY = 1             # to be delivered again, in the heap of those
    CLAIM_WAITING = 2           # the same, but not before `due_ms`
    CLAIM_HELD = 3              # a member has it

cdef struct claim_t:
    uint64_t offset
    int64_t due_ms              # HELD: the lease ends (monotonic ms; 0 = never). WAITING: wall clock ms
    void* cursor                # Cursor, borrowed: a cursor outlives its claims
    void* member                # Member, borrowed; NULL unless HELD
    chunk_t* chunk              # counted while HELD, else NULL
    claim_t* before             # of the same member, in order of claiming
    claim_t* behind
    uint32_t heap_at            # place in the heap that its state says
    uint16_t deliveries         # how often it was handed to a member
    uint8_t state

cdef class Member:
    """What is handed to. A subclass decides how it is delivered and how much it takes."""
    cdef readonly object group              # Group, or None before join and after leave
    cdef public int64_t lease_ms            # visibility timeout; 0 = until it leaves
    cdef readonly uint32_t held             # claims in its hands
    cdef claim_t* oldest
    cdef claim_t* newest

    # How many more it takes now. Never called while the member is not in a group.
    cdef uint32_t credit(self) noexcept
    # Takes a message: `claim` is its handle until settle or give_back; `record` is good as long as claim.chunk is held.
    # 0: it cannot after all (then it is ready again, and this member gets nothing more in this pump).
    cdef int deliver(self, claim_t* claim, const record_t* record) except -1

cdef class Cursor:
    cdef readonly Log log
    cdef readonly uint64_t next             # next offset never claimed
    cdef readonly uint64_t floor            # all below is settled
    cdef readonly uint64_t settled          # how many at or above `floor` are settled
    cdef readonly bint dirty                # changed since the last export

    # Whether the group is done with the message: below floor or settled out of order.
    cdef bint is_settled(self, uint64_t offset) noexcept
    cdef claim_t* find(self, uint64_t offset) noexcept

cdef class Group:
    cdef readonly uint64_t number           # its name in journal and view
    cdef readonly bytes name
    cdef readonly list cursors              # one per log of the queue, in the queue's order of partitions and lanes
    cdef readonly list members
    cdef public uint32_t claims_max         # claims in all: no more is handed out above
    cdef public uint16_t deliveries_max     # 0 = any number; one more and the message is dead
    cdef public object on_dead              # (group, cursor, offset, deliveries, reason): the engine deals with it
    cdef readonly uint32_t claims           # HELD, READY and WAITING
    cdef readonly bint stalled              # something must be read from disk before it can go on
    cdef Ledger ledger

    # Hands out what is ready while a member has credit. Returns how many. Fair: members take turns.
    cdef int pump(self) except -1
    cdef int settle(self, claim_t* claim) except -1
    # It is ready again: at once (delay_ms 0) or later. counts: the delivery counts (else it never reached anybody).
    cdef int give_back(self, claim_t* claim, int64_t delay_ms, bint counts) except -1
    cdef int reject(self, claim_t* claim, str reason) except -1
    cdef int write_records(self) except -1
