"""A queue that another node owns: the way to it, and the consumers of this node. Implements queue/relay.pxd.

    a publish ─► PUBLISH ─► owner          what a consumer does with a message ─► SETTLE ─► owner
    owner ─► DELIVERY ─► RelayMember ─► the consumer has room: a claim of it; else it waits here
                              └─► CREDIT: how many messages the consumer may hold, when that has changed

The owner sees the difference of that number and what it has given the consumer, so it need not be told of each settled
message. A consumer that is fast is told for more than it has room for: what it will be done with by the time that a
message has come (`ahead`). Else a small window, and not the consumer, would say how many it gets in a second. Rooms
that consumers share (the window of a session) are divided among them (queue/shared_room). What comes beyond the room
that there is waits.

When the owner changes, what was sent to the former one goes the longer way, if it has not come before the queue moved.
So publishes are kept here until all that was sent there is committed (fence), or the node itself is the former owner or
the next one, and the move has ended (keep). Their publishers wait for a line of this relay meanwhile: a position of the
queue line cannot be given before the record is sent. If what was sent is given up while the former owner lives, it may
come late, and what was kept is refused: what a publisher sends again then, it sends again in order.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.message cimport body_t, origin_t, pub_t
from fluxmq._core.peer.channel cimport Channel
from fluxmq._core.peer.outbox cimport PeerOutbox
from fluxmq._core.queue.claim cimport Member, claim_t
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport chunk_t
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.relay cimport Relay
from fluxmq._core.queue.shared_room cimport Taker

cdef struct arrived_t:              # a message that waits for room
    uint64_t offset
    chunk_t* chunk                  # counted
    uint32_t log
    uint16_t deliveries

cdef class RelayMember(Taker):
    """A consumer of this node."""
    cdef readonly Member member
    cdef readonly Group group
    cdef readonly QueueRelay relay
    cdef readonly uint32_t number   # in the stream to the owner; 0: there is no owner
    cdef readonly bint attached     # the owner has answered, and the client knows: it may get messages
    cdef readonly bint pulls
    cdef readonly bint rests        # it gets nothing more
    cdef public object asked        # of the engine: how it is attached; None: it never was
    cdef list settled               # what it did while it was not attached: see keep_settled; None: nothing
    cdef list early                 # of that, what the owner was told behind an ATTACH that it has not answered
    cdef uint32_t told              # what the owner may let it hold
    cdef bint retell                # the owner has taken a message back, and is told in any case
    cdef dict ordered               # {(log, offset): position}: what its client waits to hear of, see await_owner
    cdef uint64_t given             # messages, to the consumer
    cdef uint64_t given_then        # at the last return_stalled()
    cdef PeerOutbox watched_by      # in whose list for that it is; None: in none
    cdef uint64_t halted            # position of the channel from which on nothing may come; 0: it may
    cdef readonly uint32_t ahead    # what may wait here
    cdef int64_t done_then          # when that was found: messages given and not held any more
    cdef int64_t ahead_ms           # and the monotonic time
    cdef arrived_t* waiting
    cdef uint32_t waiting_first
    cdef readonly uint32_t waiting_count
    cdef uint32_t waiting_room

    cdef int arrive(self, uint32_t log, uint64_t offset, uint16_t deliveries, chunk_t* chunk) except -1
    cdef int withdrawn(self, uint32_t log, uint64_t offset) except -1
    cdef bint give(self, uint32_t log, uint64_t offset, uint16_t deliveries, chunk_t* chunk) except -1
    cdef int keep(self, uint32_t log, uint64_t offset, uint16_t deliveries, chunk_t* chunk) except -1
    cdef int watch(self) except -1
    cdef int give_waiting(self) except -1
    cdef int return_one(self, uint32_t log, uint64_t offset, uint16_t deliveries) except -1
    cdef int return_waiting(self, uint32_t kept) except -1
    cdef uint32_t room(self) noexcept
    cdef void look_ahead(self) noexcept
    cdef int tell(self) except -1
    cdef int share_room(self) except -1
    cdef int send_settled(self) except -1
    cdef void keep_early(self)
    cdef void drop_waiting(self) noexcept

cdef class QueueRelay

cdef class KeptPublish:
    """A publish that is kept for the time being."""
    cdef bytes topic
    cdef bytes properties
    cdef bytes payload
    cdef int64_t expires_at
    cdef uint8_t format
    cdef uint8_t qos
    cdef int awaited                # RELAY_*
    cdef bint whole                 # Hub.whole
    cdef uint64_t origin            # its name; 0: it has none
    cdef uint64_t use
    cdef uint16_t packet_id
    cdef bint doubtful
    cdef Line line                  # for which its publisher waits
    cdef uint64_t position          # of it; 0: nobody waits
    cdef str refusal                # why it goes nowhere; None: it is published
    cdef bint decided               # what becomes of it is certain
    cdef QueueRelay relay

    cdef int refuse(self, uint16_t code, str why) except -1

cdef class QueueRelay(Relay):
    cdef readonly Queue queue
    cdef readonly PeerOutbox outbox     # None: the owner is away
    cdef readonly str owner             # its name
    # The nodes that replicate the queue, as a number; 0: none do, and the owner's journal commits what is sent there.
    # Those of one group are decided together (peer/channel.pxd).
    cdef uint64_t group
    cdef readonly Channel channel       # of that group, to the owner; None: the owner is away
    cdef readonly list consumers        # RelayMember
    cdef public str refuses             # why publishers must go to the owner's node; None: they need not
    cdef public object on_readers       # (queue): readers of the stream have been pumped
    cdef public object on_flushed       # (queue): nothing is kept any more; None
    cdef Hub hub                        # None: it had no owner yet
    cdef uint64_t sent_in               # number of the frame with the last publish; 0: none was sent
    cdef uint64_t sent_upto             # a position in the channel's line that is committed behind it
    # what is kept here
    cdef uint32_t keepers               # keep() without let_go()
    cdef uint32_t fences
    cdef bint ended
    cdef list kept                      # KeptPublish
    cdef uint64_t kept_bytes
    cdef Line line                      # for which their publishers wait; None: there was nothing yet
    cdef object waits                   # deque: KeptPublish whose positions are not decided, in their order
    cdef bint settled                   # a consumer may have settled messages that the owner does not know of yet
    cdef bint again                     # because the owner has given that up, and is to be told again
    cdef PeerOutbox crowded             # whose window was taken for what is kept here, so that publishers wait; or None

    cdef bint reaches(self) noexcept
    cdef int keep_settled(self, Member member, tuple what) except -1
    cdef int send_settled(self, bint attached) except -1
    cdef int may_flush(self) except -1
    cdef int flush(self, bint here) except -1
    cdef int refuse_kept(self, str why) except -1
    # Decides the positions in front of the first that is not certain: what is kept may go to several owners in turn,
    # and a later one may be committed first.
    cdef int decide_kept(self) except -1
    cdef int give_line_back(self) except -1
    cdef int settle_kept(self, KeptPublish one, uint64_t began, bint here) except -1
    cdef int put_here(self, const body_t* body, KeptPublish one, origin_t* origin) except -1
    cdef int keep_one(self, const body_t* body, uint8_t qos, int awaited, const pub_t* pub) except -1
