"""The sending end of a stream to another node: gathers records into frames, and keeps them until they are acknowledged.

    forward, interest, … ─► gather ──end of the turn, stream idle──► frame ─► send ─┐
                               │                                       ▲            ▼
                               └──────256 KiB, or on_idle──────────────┘    kept ring, until `acknowledged`

A frame's sequence number is its position in the two commit lines of the outbox: of messages, and of interest. So what
was given to a line in a turn (a message of QoS 1 or 2, an interest) is committed when its frame is acknowledged.

When the other node has died, the outbox may be parked: it goes on to take messages of QoS 1 and 2, and keeps them until
direct() gives them to the nodes that have adopted its sessions. Nobody waits for interest any more.

Records of queues (queue_relay.pxd, queue_member.pxd) have a line of their own, whose positions are publishes and
barriers: the other node says up to which they are committed, and which it refuses. Nobody takes them over when that
node has died: they are given up. Deliveries to the other node wait here until their claims are committed, each in the
line of its queue, and answers about a queue behind them: a line that stands still holds back only its own.

Frames outlive a connection: attach() sends those that the other node does not have again. If that node has a new epoch
(it restarted, or was fenced) they are addressed anew, and marked if they may have reached the former life
(frames.pxd, AGAIN). A new life of this node has a new outbox, whose numbers begin at 1. Within a life numbers are used
once: an outbox that follows an abandoned one continues them (Hub.sequences).

Bytes that are not acknowledged are bounded by `window_bytes`. Beyond it messages of QoS 0 are dropped. Others are
taken, but their publisher's connection is not read until half is acknowledged (Hub.crowded, Transport.yield_to_peer).
"""
from cpython.ref cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.hub.targets cimport PeerHop
from fluxmq._core.memory.commits cimport Line, Waiter, ticket_t
from fluxmq._core.memory.message cimport body_t, origin_t, pub_t
from fluxmq._core.peer.frames cimport frame_t, version_t
from fluxmq._core.pubsub.topics cimport Topics
from fluxmq._core.queue.log cimport record_t

cdef struct late_t:             # records that wait for one commit
    uint64_t position
    size_t end                  # of their bytes in Late.data

cdef class Late(Waiter):
    """Records of an outbox that wait for commits of one line, in order."""
    cdef void* outbox           # borrowed; NULL once it is gone
    cdef PyObject* next         # the outbox's Late of another line, owned
    cdef uint32_t line
    cdef uint8_t* data
    cdef size_t first           # those before have left
    cdef size_t length
    cdef size_t space
    cdef late_t* blocks
    cdef uint32_t blocks_first
    cdef uint32_t blocks_count
    cdef uint32_t blocks_room

    cdef uint8_t* room(self, size_t n, uint64_t position) except NULL
    cdef int put(self, const uint8_t* end) except -1
    cdef size_t upto(self, uint64_t position) noexcept
    cdef int decided(self, uint64_t position, size_t end) except -1
    cdef void drop(self) noexcept

cdef struct kept_t:
    PyObject* frame             # bytes, owned
    uint64_t queues_upto        # position of the line of queues at its end
    int64_t since_ms            # steady clock: when its first record was gathered

cdef class PeerOutbox(PeerHop):
    cdef readonly Hub hub
    cdef readonly str node
    cdef readonly Line line             # positions are sequence numbers of frames
    cdef readonly Line interest_line    # the same, for what waits until the other node knows an interest
    cdef bint deaf                      # nothing of queues is taken any more
    cdef readonly Line queue_line       # positions: see above
    cdef dict unrouted                  # position -> what is called if a direct reply there finds no requester
    cdef readonly bint parked
    cdef readonly uint64_t epoch        # of this node
    cdef readonly uint64_t to_epoch     # of the other node; 0: it was not connected yet
    cdef readonly uint64_t on_disk      # the last frame that former lives of the other node have on their disk
    cdef readonly uint64_t window_bytes
    # connection
    cdef object send                    # takes one frame; None: not connected
    cdef readonly bint idle             # everything handed to `send` has left
    cdef bint handing                   # hand_over is running
    cdef uint32_t halts                 # halt() without resume(): frames behind `halted_at` wait
    cdef uint64_t halted_at
    cdef uint64_t handed                # last frame handed to the present `send`
    cdef uint64_t handed_ever           # last frame handed to any
    cdef uint64_t again_upto            # frames up to this one may have reached a former life of the other node
    # what gathers
    cdef bint dirty                     # in Hub.unsealed
    cdef uint8_t* gather                # records
    cdef size_t gather_length
    cdef size_t gather_room
    cdef uint32_t gather_records
    cdef int64_t gather_since_ms
    # frames that are not acknowledged: a ring; the first one's number is acknowledged_upto + 1
    cdef kept_t* kept
    cdef uint64_t kept_head
    cdef uint64_t kept_count
    cdef uint64_t kept_room             # a power of two
    cdef uint64_t kept_bytes
    cdef readonly uint64_t acknowledged_upto
    cdef readonly uint64_t group_frame  # number of the frame with the last message for a share group
    # numbers of namespaces in this stream
    cdef dict numbers                   # name -> number, in the order of the numbers
    cdef Topics topics                  # of the last message, and its number
    cdef uint32_t number
    # queues: of the consumers of this node there, and of that node's here
    cdef uint32_t number_last           # of members and calls
    cdef readonly dict members          # number -> RelayMember
    cdef list waited                    # RelayMember, for return_stalled()
    cdef readonly dict hosted           # number -> PeerMember
    cdef readonly dict feeds            # Queue, a stream -> PeerFeed: what that node reads of it
    cdef bint starved                   # one of `hosted` or `feeds` found no room
    cdef size_t settle_end              # `gather` ends with a settlement, which may grow; 0: it does not
    cdef size_t settle_at
    # what waits for commits
    cdef PyObject* late                 # a list of Late, owned, the last one used in front; the garbage collector
                                        # must not clear it before this
    cdef PyObject* late_writing         # the one that late_space gave room of, borrowed; NULL: it was of `gather`
    cdef readonly size_t late_bytes     # of all
    cdef readonly size_t journal_bytes  # of these, what waits for the journal: a disk that is slow slows all down
    cdef public bytes given_up_answer   # sent instead of an answer whose commit was given up; None: nothing is
    # acknowledgements of what the other node sends
    cdef uint64_t ack_epoch
    cdef uint64_t ack_sequence
    cdef bint ack_waits                 # no frame has carried it
    # for the cold half
    cdef readonly str gone              # why it was abandoned; None: it was not
    cdef readonly uint64_t dropped      # messages of QoS 0
    cdef readonly uint64_t records      # of frames made so far
    cdef readonly uint64_t frames_sent  # also those sent again and those without a number
    cdef readonly uint64_t bytes_sent

    cdef bint takes_queues(self) noexcept       # whether there is somebody who may get records of queues
    cdef int take_publish(self, uint64_t queue, const body_t* body, uint8_t qos, int awaited,
                          const pub_t* pub) except -1
    cdef int take_settlement(self, uint32_t member, uint8_t flags, uint16_t deliveries, uint32_t log, uint64_t offset,
                             int64_t ms, bytes reason) except -1
    cdef int take_barrier(self) except -1
    cdef int take_credit(self, uint32_t member, uint32_t limit) except -1
    cdef int take_detach(self, uint32_t member, bint rests) except -1
    cdef int take_call(self, uint8_t kind, uint32_t number, uint64_t queue, bytes data) except -1
    cdef uint32_t next_number(self) except 0
    # To the other node's consumers here. now: by the clock of the message's line. ticket: of the claim.
    cdef int take_delivery(self, uint32_t member, uint16_t deliveries, uint32_t log, const record_t* record,
                           int64_t now, ticket_t ticket) except -1
    cdef int take_result(self, uint32_t number, bytes data, ticket_t ticket) except -1
    cdef Late late_of(self, uint32_t line, bint make)
    # Whether so much waits for another line than the journal that its queues deliver nothing more.
    cdef bint line_full(self, uint32_t line)
    cdef int relieve(self, uint32_t line) except -1
    cdef int gather_late(self, Late late, size_t end) except -1
    cdef int refuse_late(self, Late late, size_t end) except -1
    cdef void count_late(self, Late late, Py_ssize_t change) noexcept
    # line: of the queue. It is sent behind what waits for that line.
    cdef int take_withdrawal(self, uint32_t member, uint32_t log, uint64_t offset, uint32_t line) except -1
    cdef int take_committed(self, uint64_t position) except -1
    cdef int take_refusal(self, uint64_t position, uint16_t reason, bytes text) except -1
    # The other node says what of this node's is committed, and what it refuses.
    cdef int queues_committed(self, uint64_t position) except -1
    cdef int forget_unrouted(self) except -1
    cdef int queues_refused(self, uint64_t position, uint16_t reason, str text) except -1
    cdef int asked(self) except -1
    cdef uint8_t* late_space(self, size_t n, ticket_t ticket) except NULL
    cdef int late_put(self, const uint8_t* end) except -1
    cdef int keep_settlements(self, dict members) except -1
    cdef int drop_late(self) except -1
    cdef int feed(self) except -1
    cdef uint64_t newest(self) noexcept         # the last frame that was made
    cdef bint full(self) noexcept
    cdef uint8_t* room(self, size_t n) except NULL
    cdef void put(self, const uint8_t* end, uint32_t records) noexcept
    cdef int mark_dirty(self) except -1
    cdef int ticket(self, Line line) except -1
    cdef int direct_one(self, pub_t* pub, uint64_t life) except -1
    cdef int direct_frame(self, bytes frame, int64_t since_ms, uint64_t life, list outboxes, bint here, PeerOutbox back,
                          list names) except -1
    cdef uint32_t number_of(self, bytes name) except 0
    cdef int take_message(self, pub_t* pub, bytes group, bytes filter) except -1
    # whole: with its payload, which is of `size` bytes.
    cdef int take_retained(self, bytes namespace, const body_t* body, uint8_t flags, const origin_t* origin,
                           version_t version, bint whole, uint32_t size) except -1
    cdef int seal(self) except -1
    cdef int seal_if_any(self) except -1
    cdef int keep(self, bytes frame) except -1
    cdef void fill_header(self, frame_t* frame) noexcept
    cdef bytes addressed(self, uint64_t sequence)
    cdef int send_one(self, bytes frame) except -1
    cdef int send_unnumbered(self, uint8_t flags, uint64_t sequence) except -1
    cdef int hand_over(self) except -1
    cdef int ease(self) except -1
    cdef void drop_kept(self, uint64_t upto) noexcept
