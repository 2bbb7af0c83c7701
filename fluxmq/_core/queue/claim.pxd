"""A claim: one message that a member holds or that is ready for redelivery; and the members that take claims.

A claim is a C struct that its cursor owns; members and heaps point to it.

The states of a message for one group; TRANSITIONS in the .pyx is the table. Before the first claim and after it is
settled a message is NONE:

    NONE ──claim──► HELD ──settle──► NONE
    HELD ──give back──► READY ──claim──► HELD               the delivery count grows with each claim
    HELD ──give back, delayed──► WAITING ──its time──► READY
    HELD, READY, WAITING ──dead, on disk only──► DYING ──read──► NONE
    READY, WAITING ──settle late──► NONE
    READY, WAITING ──give back late──► READY
    READY, WAITING ──give back late, delayed──► WAITING

A claim is given back by a nack, at the end of its lease, and when its member leaves. A member may still name a
message by its offset after its lease has ended, as long as no other member has claimed it: that is late. A message
that is rejected, has expired, or has reached the limit of deliveries is dead: on_dead is called, then it is settled;
a dead message that is on disk only is DYING until it has been read. Not in the table: a purge ends READY, WAITING and
DYING.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.debug cimport check
from fluxmq._core.memory.link cimport link_t
from fluxmq._core.memory.node cimport node_t
from fluxmq._core.queue.log cimport chunk_t, record_t
from fluxmq._core.queue.shared_room cimport SharedRoom

cdef enum:
    CLAIM_READY = 1             # to be delivered again
    CLAIM_WAITING = 2           # the same, but not before `due_ms`
    CLAIM_HELD = 3              # a member holds it
    CLAIM_DYING = 6             # dead, and on disk only: on_dead is called when it has been read

cdef enum:
    DELIVER_REFUSED = 0
    DELIVER_TAKEN = 1
    DELIVER_KEPT = 2            # taken, and the member still needs the message: it calls claim_let_go

cdef enum:
    LINK_CLAIMS_MIN = 100       # claims allowed to every connection, even if the node's are used up

cdef struct claim_t:
    uint64_t offset
    int64_t due_ms              # HELD: the lease ends (monotonic ms; 0 = never). WAITING: steady clock ms
    void* cursor                # Cursor, borrowed: a cursor outlives its claims
    void* member                # borrowed, see claim_member; NULL in other states
    chunk_t* chunk              # counted; NULL: the holder does not need the message's bytes any more
    claim_t* before             # of the same member, in order of claiming
    claim_t* behind
    claim_t* chain              # next in its bucket of the cursor's table
    uint32_t payload            # bytes of the message's body, known after a delivery; 0: unknown
    uint32_t heap_at            # 1 + place in the heap of its state; 0: in none
    uint32_t held_since         # HELD: seconds of the monotonic clock. READY in a copy: see Group.holders
    uint16_t deliveries         # number of deliveries to members
    uint8_t state

# The member of a claim in this state, for a cast to its class: Member of CLAIM_HELD, StreamReader of CLAIM_STREAM.
cdef inline void* claim_member(const claim_t* claim, uint8_t state) noexcept nogil:
    check(claim.state == state)
    return <void*>claim.member

cdef enum:                      # due_ms of a DYING claim, in records and in the view
    DUE_DYING = -1
    DUE_DYING_RETRIES = -2      # "max_retries"; the text of other reasons is not stored

cdef struct heap_t:             # of claims, a min-heap by offset or by due_ms
    claim_t** items
    uint32_t count
    uint32_t room
    uint8_t by_due

cdef struct queue_counts_t:     # of one queue since it was made or the broker started; see docs/queues.md
    uint64_t appended           # delayed messages count when they are due
    uint64_t refused_full
    uint64_t refused_disk       # the disk is full
    uint64_t refused_away       # the node that has the messages is away
    uint64_t refused_too_large
    uint64_t refused_properties # an invalid option in a user property
    uint64_t repeated           # deduplicated
    uint64_t capture_lost       # captured messages that were refused without informing the publisher
    uint64_t delivered
    uint64_t redelivered        # those of them that had been delivered before
    uint64_t settled            # by consumers

cdef class GroupOwner:
    """Base class of a group's or reader's queue: schedules pumps and has the counters."""
    cdef queue_counts_t counts
    # Queues with several lanes: their number, and a bit for each lane that may have messages, or claims. At most 256.
    cdef uint32_t busy_lanes
    cdef uint64_t[4] busy
    cdef int touch(self) except -1
    # Whether another instance decides, and whether nobody does, because the queue is about to move.
    cdef bint is_copy(self) noexcept
    cdef bint rests(self) noexcept
    # State changed that the next checkpoint must write.
    cdef int note_change(self) except -1

cdef class Member:
    """Receiver of a group's messages. A subclass implements the delivery and its credit."""
    cdef readonly object group              # Group; None before join and after leave
    cdef public int64_t lease_ms            # visibility timeout; 0 = until it leaves
    cdef public int32_t priority            # set before join: members with a higher priority are served first
    cdef readonly uint32_t held             # number of claims that it holds
    cdef claim_t* oldest
    cdef claim_t* newest
    cdef uint64_t refused_in                # the group's pump in which it refused a message: gets no more in that one
    cdef public uint32_t held_max           # limit of its claims, whatever its credit; 0 at join: the node's limit
    cdef uint32_t limited_at                # `held` when it became `limited`
    cdef readonly bint limited              # it has credit, but as many claims as allowed: see may_hold
    cdef public str client                  # name of the client, for messages to users
    # By which owners know the member, on whichever node each is (Hub.next_identity): of a queue of another node, and of
    # an exclusive or single group. 0: it needs none.
    cdef public uint64_t mark
    cdef public uint64_t life               # epoch of the life of its node; 0: this node's
    cdef uint32_t number                    # in the stream to the node that has the queue; 0: it is not attached there
    cdef readonly bint absent               # it is a member without partitions, if there are others
    cdef link_t* carrier                    # counted: the link of its connection; NULL: none
    # Counts its claims for the connection of `link`. Call it once, before join.
    cdef void carried_by(self, link_t* link) noexcept

    # What it shares with other consumers of its client, or None; and how much of that there is (ROOM_UNSHARED: any).
    cdef SharedRoom sharing(self)
    cdef uint32_t shared_room(self) noexcept

    # How many more messages it takes now. Never called while the member is not in a group.
    cdef uint32_t credit(self) noexcept
    # Delivers a message: `claim` is its handle until settle, give_back or withdraw. `record` is valid during the call,
    # with DELIVER_KEPT until claim_let_go; so an unsettled message takes no memory but its claim. DELIVER_REFUSED: the
    # message becomes ready again, and this member gets nothing more in this pump.
    cdef int deliver(self, claim_t* claim, const record_t* record) except -1
    # Takes the claim from the member, because its lease has ended or the member has left. The member must not
    # use the handle afterwards.
    cdef int withdraw(self, claim_t* claim) except -1
    # The claim ends by a command for its offset, not by its handle: the handle becomes invalid.
    cdef void forget(self, claim_t* claim) noexcept

cdef class Filter:
    """Selects the messages that a group gets. The base class selects all."""
    cdef bint wants(self, const record_t* record) noexcept

# Whether a consumer with `held` claims may have one more. The first limit is its own, the second depends on the node's
# free claims: a connection may have at most as many as are free. So a single greedy connection gets half of them, two
# get a third each, and some are always left for others, without any reservation. A few are always allowed; otherwise
# messages returned while the node is full would never be delivered again.
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

cdef bint may_enter(uint8_t state, uint8_t after) noexcept

cdef inline void enter(claim_t* claim, uint8_t state) noexcept:
    check(may_enter(claim.state, state))
    claim.state = state

# Releases the message's bytes; a redelivery reads them again.
cdef void claim_let_go(claim_t* claim) noexcept
cdef claim_t* claim_new() except NULL
cdef void claim_free(claim_t* claim) noexcept
cdef int heap_push(heap_t* heap, claim_t* claim) except -1
cdef void heap_remove(heap_t* heap, claim_t* claim) noexcept
