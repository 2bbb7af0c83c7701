"""A group: who of its members gets which message of which log, and what becomes of it. Knows no protocol.

A message, seen by one group; TRANSITIONS in the .pyx is the table. Before it is claimed and when it is settled it is
NONE:

    NONE ──claim──► HELD ──settle──► NONE
    HELD ──give back──► READY ──claim──► HELD               the delivery count grows with each claim
    HELD ──give back, delayed──► WAITING ──its time──► READY
    HELD, READY ──dead, on disk only──► DYING ──read──► NONE

A member gives a claim back by a nack, at the end of its lease, and when it goes. A message that is rejected, that has
expired or was delivered once too often is dead: on_dead is told, then it is settled; one that is on the disk only is
DYING until it has been read. Not in the table: READY, WAITING and DYING end with a purge.

What is ready again goes before what was never claimed, lowest offset first: a requeue is in place. Of lanes the highest
priority that has anything goes first.

All records (CLAIM, SETTLE, RETURN, CURSOR; docs/internals/queues.md) are written here. Neighbours are joined into a
run, so write_records must be called before the journal's batch is handed over (Queue.pump does).
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.queue.claim cimport Filter, GroupOwner, Member, claim_t, heap_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.log cimport Log, chunk_t, record_t
from fluxmq._core.queue.policy cimport queue_policy_t

cdef enum:
    RUN_MAX = 1048576           # offsets of one CLAIM or SETTLE; a start, a repair and `log verify` refuse more


cdef class Group:
    cdef readonly uint64_t number           # its name in journal and view
    cdef readonly bytes name
    cdef readonly str mode                  # shared, exclusive, single
    cdef readonly bint volatile             # nothing is recorded
    cdef readonly Line line                   # where what it records is committed
    cdef readonly list cursors              # Cursor, one per log of the queue, in the queue's order
    cdef readonly list members              # Member, those with the highest priority first
    cdef readonly list pullers              # Member: no push delivery, they may have claims (attach, rest)
    cdef public uint32_t returned_max       # READY and WAITING together: above, nothing new is handed out
    cdef public uint32_t deliveries_max     # 0 = any number; one more and the message is dead
    cdef public object on_dead              # (group, log, offset, deliveries, reason): the engine deals with it
    cdef queue_policy_t policy              # its queue's
    cdef public Filter filter               # None: everything
    cdef public GroupOwner owner
    cdef public GroupOwner home             # the queue that it is kept with, also where it is not pumped; None: nowhere
    cdef readonly uint32_t claims           # HELD, READY and WAITING
    cdef readonly uint32_t held             # of these, those in members' hands
    cdef readonly bint limited              # nothing new is handed out, because of returned_max
    cdef bint held_back                     # a lane got nothing new in this pump because of that
    cdef readonly bint stalled              # something must be read from disk before it can go on
    cdef public int64_t ready_bytes         # of bodies of what is ready, where somebody asks (Queue.ready_bytes_max)
    cdef readonly bint dirty                # changed since the last export_state
    cdef Ledger ledger
    cdef uint32_t order_count
    cdef list order                         # lists of cursors, the highest lane first
    cdef bint ranked                        # its members differ in priority
    cdef dict lanes                         # partition -> its cursors; None: there is one cursor
    cdef uint32_t turn_cursor
    cdef uint32_t turn_member
    cdef uint32_t turn_next                 # whose turn it is when the member found last has got its message
    cdef uint64_t pumps
    cdef public bint buries                 # on_dead needs the message itself: it must be in memory
    cdef heap_t dying
    cdef dict dying_reasons                 # (log number, offset) -> why, where it is not "rejected"; or None
    cdef bint dying_first                   # whose turn it is to be read, where consumers need the disk as well
    cdef heap_t waiting
    cdef heap_t leases
    # the run of records that is still open
    cdef uint8_t run_kind
    cdef uint64_t run_log
    cdef uint64_t run_first
    cdef uint32_t run_count
    cdef uint16_t run_deliveries

    # Hands out what is ready while a member has credit. Returns how many. Fair: members take turns.
    cdef int pump(self) except -1
    cdef int settle(self, claim_t* claim) except -1
    # It is ready again: at once (delay_ms 0) or later. counts: the delivery counts (else it never reached anybody).
    cdef int give_back(self, claim_t* claim, int64_t delay_ms, bint counts) except -1
    cdef int reject(self, claim_t* claim, str reason) except -1
    cdef int write_records(self) except -1
    cdef int note(self, uint8_t kind, uint64_t log, uint64_t offset, uint16_t deliveries) except -1
    cdef int write_return(self, Cursor cursor, claim_t* claim) except -1
    cdef int pump_cursor(self, Cursor cursor, Member only, uint32_t* handed) except -1
    # From this place in `order` on, the first lane that may have anything; its length: none.
    cdef uint32_t busy_from(self, uint32_t at) noexcept
    cdef int pump_order(self, uint32_t* handed) except -1
    cdef int pump_one(self, Cursor cursor, uint32_t* handed) except -1
    cdef void admit(self, Member member) noexcept
    cdef int add_puller(self, Member member) except -1
    cdef void unlimit(self, Member member) noexcept
    cdef claim_t* add_claim(self, Cursor cursor, uint64_t offset) except NULL
    cdef void drop_claim(self, claim_t* claim) noexcept
    cdef void drop_claims(self, Cursor cursor) noexcept
    cdef int skip_to(self, Cursor cursor, uint64_t first) except -1
    cdef int keep_offsets(self) except -1
    cdef int move(self, Cursor cursor, uint64_t next) except -1
    cdef int hand(self, Cursor cursor, claim_t* claim, const record_t* record, chunk_t* chunk, Member member) except -1
    cdef claim_t* ready_claim(self, Cursor cursor, const record_t** record, chunk_t** chunk, bint* stop) except? NULL
    cdef claim_t* fresh_claim(self, Cursor cursor, const record_t** record, chunk_t** chunk, bint* stop) except? NULL
    cdef int settle_offset(self, Cursor cursor, uint64_t offset) except -1
    cdef int kill(self, Cursor cursor, uint64_t offset, uint16_t deliveries, str reason) except -1
    # As kill, for a claim whose message may be on the disk only.
    cdef int end_claim(self, claim_t* claim, str reason) except -1
    cdef int set_dying(self, Cursor cursor, claim_t* claim, str reason) except -1
    cdef int bury_dying(self) except -1
    cdef void take_from_member(self, claim_t* claim) noexcept
    cdef void unlink(self, claim_t* claim) noexcept
    cdef claim_t* ordered(self, Cursor cursor, uint64_t offset)
    # Whether a member is asked now. One that has credit and too many claims is put on Ledger.limited.
    cdef bint takes(self, Member member) except -1
    # Whether a message may be handed out that nobody has had yet. If not, the group is put there.
    cdef bint may_claim(self) except -1
    cdef Member member_with_credit(self)
    cdef Member ranked_with_credit(self)
    cdef int rank(self) except -1
    cdef int left(self, Member member) except -1
    cdef bint is_free(self, Cursor cursor)
    cdef Cursor cursor_of(self, uint64_t log_number)
    cdef int balance(self) except -1
    cdef int changed(self) except -1
    cdef int touch(self) except -1
