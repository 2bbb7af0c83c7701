"""A claim: one message in the hands of one member, or ready to be handed out again; and who takes claims.

The states are drawn in queue/group.pxd. A claim is a C struct that its cursor owns; members and heaps point to it.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.memory.link cimport link_t
from fluxmq._core.memory.node cimport node_t
from fluxmq._core.queue.log cimport chunk_t, record_t

cdef enum:
    CLAIM_READY = 1             # to be delivered again
    CLAIM_WAITING = 2           # the same, but not before `due_ms`
    CLAIM_HELD = 3              # a member has it
    CLAIM_DYING = 6             # refused for good, and on the disk only: it is buried when it has been read

cdef enum:
    DELIVER_REFUSED = 0
    DELIVER_TAKEN = 1
    DELIVER_KEPT = 2            # taken, and the member still needs the message: it calls claim_let_go

cdef enum:
    LINK_CLAIMS_MIN = 100       # a connection may have so many, however many others have

cdef struct claim_t:
    uint64_t offset
    int64_t due_ms              # HELD: the lease ends (monotonic ms; 0 = never). WAITING: steady clock ms
    void* cursor                # Cursor, borrowed: a cursor outlives its claims
    void* member                # Member, borrowed; NULL unless HELD
    chunk_t* chunk              # counted; NULL: who has it does not need the message's bytes any more
    claim_t* before             # of the same member, in order of claiming
    claim_t* behind
    claim_t* chain              # next in its bucket of the cursor's table
    uint32_t payload            # bytes of the message's body, since somebody had it; 0: not known
    uint32_t heap_at            # 1 + place in the heap that its state says; 0: in none
    uint16_t deliveries         # how often it was handed to a member
    uint8_t state

cdef enum:                      # of a DYING one, in records and in the view, where others have when they are due
    DUE_DYING = -1
    DUE_DYING_RETRIES = -2      # "max_retries"; of other reasons only the word is forgotten

cdef struct heap_t:             # of claims, the least first: by offset, or by due_ms
    claim_t** items
    uint32_t count
    uint32_t room
    uint8_t by_due

cdef struct queue_counts_t:     # of one queue since it was made, or since the start; docs/queues.md says what they mean
    uint64_t appended           # delayed messages when they are due
    uint64_t refused_full
    uint64_t refused_disk       # there is no room on it
    uint64_t refused_too_large
    uint64_t refused_properties # a user property asks for what cannot be
    uint64_t repeated           # deduplicated
    uint64_t capture_lost       # captured messages that were refused, and nobody was told
    uint64_t delivered
    uint64_t redelivered        # of these, those that had been delivered before
    uint64_t settled            # by consumers

cdef class GroupOwner:
    """Whoever must be told that a group or reader has something to do; and where they count what they do."""
    cdef queue_counts_t counts
    # Of a queue with several lanes, or 0: how many, and a bit for each that may have messages, or claims. At most 256.
    cdef uint32_t busy_lanes
    cdef uint64_t[4] busy
    cdef int touch(self) except -1
    # Something of it changed that a checkpoint must take over.
    cdef int note_change(self) except -1

cdef class Member:
    """What is handed to. A subclass decides how it is delivered and how much it takes."""
    cdef readonly object group              # Group; None before join and after leave
    cdef public int64_t lease_ms            # visibility timeout; 0 = until it leaves
    cdef public int32_t priority            # set before join: who has a higher one gets what it can take first
    cdef readonly uint32_t held             # claims in its hands
    cdef claim_t* oldest
    cdef claim_t* newest
    cdef uint64_t refused_in                # the group's pump in which it took nothing: it is not asked again in that
    cdef public uint32_t held_max           # claims that it may have, whatever its credit; 0 at join: the node's number
    cdef uint32_t limited_at                # `held` when it was found to be `limited`
    cdef readonly bint limited              # it has credit, and as many claims as it may have: see may_hold
    cdef public str client                  # who it is, for people
    cdef link_t* carrier                    # counted: whose connection it is; NULL: none
    # Messages for it are `link`'s: what it has counts for that connection. Once, before it joins.
    cdef void carried_by(self, link_t* link) noexcept

    # How many more it takes now. Never called while the member is not in a group.
    cdef uint32_t credit(self) noexcept
    # Takes a message: `claim` is its handle until settle, give_back or lost. `record` is good during the call, with
    # DELIVER_KEPT until claim_let_go: what is only unsettled keeps no memory but its claim. DELIVER_REFUSED: it cannot
    # after all (then it is ready again, and this member gets nothing more in this pump).
    cdef int deliver(self, claim_t* claim, const record_t* record) except -1
    # The claim is taken from it: its lease is over, or it has left.
    cdef int lost(self, claim_t* claim) except -1
    # The claim ends by somebody's order and not by what its handle was told: the handle means nothing any more.
    cdef void forget(self, claim_t* claim) noexcept

cdef class Filter:
    """Which messages a group is for. Without a subclass: all."""
    cdef bint wants(self, const record_t* record) noexcept

# Whether a consumer that has `held` claims may have one more. What it may have itself is the first limit. The second
# is what is left free of the node's: a connection has at most as much as nobody has. So one that takes all it can get
# ends at half, two at a third each, and there is always something left for others; nothing must be counted twice or
# given back for that. A few are allowed in any case, or what was returned when the node was full would stay there.
cdef inline bint may_hold(const node_t* node, const link_t* link, uint32_t held, uint32_t held_max) noexcept:
    if held >= held_max:
        return 0
    return (link == NULL or link.claims < LINK_CLAIMS_MIN
            or <int64_t>link.claims < node.claims_max - node.gauges.claims)

# The highest lane at or below this one whose bit is set; -1: none.
cdef inline int busy_lane(const uint64_t* busy, int lane) noexcept nogil:
    while lane >= 0:
        if busy[lane >> 6] & (<uint64_t>1 << (lane & 63)):
            return lane
        if busy[lane >> 6] << (63 - (lane & 63)) == 0:
            lane = (lane & ~63) - 1         # nothing in the rest of this word
        else:
            lane -= 1
    return -1

# The message's bytes are not needed any more: what is to be delivered again is read again.
cdef void claim_let_go(claim_t* claim) noexcept
cdef claim_t* claim_new() except NULL
cdef void claim_free(claim_t* claim) noexcept
cdef int heap_push(heap_t* heap, claim_t* claim) except -1
cdef void heap_remove(heap_t* heap, claim_t* claim) noexcept
