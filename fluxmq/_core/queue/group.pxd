"""A group: distributes the messages of a queue's logs among its members and tracks their states. Knows no protocol.

Messages that are ready again are delivered before those never claimed, lowest offset first: a requeued message keeps
its place. Of several lanes, the highest priority with messages is served first.

All records (CLAIM, SETTLE, RETURN, CURSOR; docs/internals/queues.md) are written here. Records of adjacent offsets are
merged into a run, so write_records must be called before the journal's batch is submitted (Queue.pump does).
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.queue.balance cimport Members
from fluxmq._core.queue.claim cimport Filter, GroupOwner, Member, claim_t, heap_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.log cimport Log, chunk_t, record_t
from fluxmq._core.queue.policy cimport queue_policy_t

cdef enum:
    RUN_MAX = 1048576           # offsets in one CLAIM or SETTLE; recovery, repair and `log verify` refuse more


cdef class Group(Members):
    cdef readonly uint64_t number           # its identifier in journal and view
    cdef readonly bytes name
    cdef readonly bint volatile             # nothing is recorded
    cdef readonly Line line                 # commit line of its records
    cdef public uint32_t returned_max       # limit of READY and WAITING together: above, no new message is claimed
    cdef public uint32_t deliveries_max     # limit of deliveries, after which a message is dead; 0 = none
    cdef public object on_dead              # (group, log, offset, deliveries, reason): callback of the engine
    cdef queue_policy_t policy              # its queue's
    cdef public Filter filter               # None: everything
    cdef public GroupOwner owner
    cdef public GroupOwner home             # the queue with which it is stored, even if not pumped there; None: none
    cdef readonly uint32_t claims           # HELD, READY and WAITING
    cdef readonly uint32_t held             # of these, HELD
    cdef readonly bint limited              # no new message is claimed because of returned_max
    cdef bint held_back                     # a lane got no new message in this pump because of that
    cdef readonly bint stalled              # a message must be read from disk first
    cdef public int64_t ready_bytes         # body bytes of ready messages, if queue_limits_t.ready_bytes_max needs them
    cdef readonly bint dirty                # changed since the last export_state
    cdef uint32_t turn_cursor
    cdef uint32_t turn_member
    cdef uint32_t turn_next                 # next turn_member, once the member found last has got its message
    cdef uint64_t pumps
    cdef public bint reads_dead             # on_dead reads the message, so it must be in memory
    cdef heap_t dying
    cdef dict dying_reasons                 # (log number, offset) -> why, where it is not "rejected"; or None
    cdef bint dying_first                   # the next disk read is for a DYING message, not for consumers
    cdef heap_t waiting
    cdef heap_t leases
    # the run of records not written yet
    cdef uint8_t run_kind
    cdef uint64_t run_log
    cdef uint64_t run_first
    cdef uint32_t run_count
    cdef uint16_t run_deliveries
    cdef uint64_t run_life                  # of lines other than the journal: who holds what is claimed
    cdef uint64_t run_member
    # Of a copy: (life of its node, member) of those who hold messages at the leader. held_since of a claim that is
    # READY is 1 + its index here; 0: nobody has it.
    cdef list holders
    cdef dict holder_numbers

    # Delivers messages while a member has credit; members take turns. Returns how many.
    cdef int pump(self) except -1
    cdef int settle(self, claim_t* claim) except -1
    cdef int reject(self, claim_t* claim, str reason) except -1
    cdef int write_records(self) except -1
    # CLAIM, with who holds it where the line is not the journal's.
    cdef int note_claim(self, uint64_t log, const claim_t* claim, Member member) except -1
    cdef int note(self, uint8_t kind, uint64_t log, uint64_t offset, uint16_t deliveries) except -1
    cdef int write_return(self, Cursor cursor, claim_t* claim) except -1
    cdef int pump_cursor(self, Cursor cursor, Member only, uint32_t* handed) except -1
    # Index of the first lane in `order`, from `at` on, that may have messages; the length of `order`: none.
    cdef uint32_t busy_from(self, uint32_t at) noexcept
    cdef int pump_order(self, uint32_t* handed) except -1
    cdef int pump_one(self, Cursor cursor, uint32_t* handed) except -1
    cdef claim_t* add_claim(self, Cursor cursor, uint64_t offset) except NULL
    cdef void drop_claim(self, claim_t* claim) noexcept
    cdef void drop_claims(self, Cursor cursor) noexcept
    cdef int skip_to(self, Cursor cursor, uint64_t first) except -1
    cdef int keep_offsets(self) except -1
    # By the clock of its line, which deadlines of claims that wait are in.
    cdef int64_t now(self) noexcept
    cdef int move(self, Cursor cursor, uint64_t next) except -1
    cdef int hold(self, Cursor cursor, claim_t* claim, Member member) except -1
    cdef bint hold_again(self, Cursor cursor, uint64_t offset, uint16_t deliveries, Member member) except -1
    cdef int hand(self, Cursor cursor, claim_t* claim, const record_t* record, chunk_t* chunk, Member member) except -1
    cdef bint pass_on(self, Cursor cursor, uint64_t offset, uint16_t deliveries, const record_t* record, chunk_t* chunk,
                      Member member) except -1
    cdef claim_t* ready_claim(self, Cursor cursor, const record_t** record, chunk_t** chunk, bint* stop) except? NULL
    cdef claim_t* fresh_claim(self, Cursor cursor, const record_t** record, chunk_t** chunk, bint* stop) except? NULL
    cdef int settle_offset(self, Cursor cursor, uint64_t offset) except -1
    cdef int kill(self, Cursor cursor, uint64_t offset, uint16_t deliveries, str reason) except -1
    # As kill, for a claim whose message may be on the disk only.
    cdef int end_claim(self, claim_t* claim, str reason) except -1
    cdef int set_dying(self, Cursor cursor, claim_t* claim, str reason) except -1
    cdef int end_dying(self) except -1
    cdef void take_from_member(self, claim_t* claim) noexcept
    cdef void unlink(self, claim_t* claim) noexcept
    # Whether a member may get a message now. One with credit and too many claims is put on Ledger.limited.
    cdef bint takes(self, Member member) except -1
    # Whether a new message may be claimed. If not, the group is put on Ledger.limited.
    cdef bint may_claim(self) except -1
    cdef Member member_with_credit(self)
    cdef Member ranked_with_credit(self)
    cdef bint is_free(self, Cursor cursor)
    cdef int changed(self) except -1
