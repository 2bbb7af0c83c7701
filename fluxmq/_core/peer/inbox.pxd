"""The receiving end of a stream from another node: applies frames in order, each once, and says when their effects are
committed.

    apply(frame) ─► header, all records checked ─► records, in order ─► position + 1 ─► journal: PEER_POSITION
                                                       │                                   │ committed
                       Hub.publish, or the handler ◄───┘              handler.on_applied ◄─┘

The position is recorded in the batch of the journal that has the frame's other records, so a node that restarts applies
none of them a second time. A frame that recorded nothing leaves no position: its effects were in memory, and if it
comes again to a new life of this node it has AGAIN, or was never seen. Unless it has a message of QoS 2 for a share
group, which a member without a stored session may have got: if this node dies, the sender asks the next life by this
position whether another member may get the message (cluster/lost.py).

Directed messages go only to sessions that were adopted from a life of a node (hub/moving.pxd). The others
are published like those of a client, but to no other node and to no share group; they are not retained here.
A message for a queue is appended to it, if this node owns it; what a frame settles is recorded before its commit is
looked at. The sender is told which of what it waits for is committed (COMMITTED), and what was refused, in this order:
in channel 0 with the frame, in each other one by itself (asked.pxd), for these are of lines that may stand still. A
frame is acknowledged when the journal has its part, and other nodes what was sent on to them; of other lines it waits
for what it has for them in channel 0.

A message for a share group goes to one of this node's members. If there is none any more, the handler gets it.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.message cimport body_t, origin_t, pub_t
from fluxmq._core.memory.tickets cimport Tickets
from fluxmq._core.peer.asked cimport Asked, asked_kind
from fluxmq._core.peer.frames cimport frame_t, peer_record_t
from fluxmq._core.peer.outbox cimport PeerOutbox
from fluxmq._core.peer.queue_member cimport PeerMember
from fluxmq._core.peer.queue_relay cimport RelayMember
from fluxmq._core.pubsub.routes cimport route_t
from fluxmq._core.pubsub.topics cimport Topics
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.wire.primitives cimport Cursor

cdef class FrameWait:
    """Called when what a frame caused is decided."""
    cdef void* inbox            # borrowed, NULL once it is gone: Commits would keep it and the hub alive otherwise
    cdef uint64_t sequence

cdef class PeerInbox:
    cdef readonly Hub hub
    cdef readonly str node
    cdef readonly uint64_t epoch        # of the sender
    cdef readonly uint64_t to_epoch     # of this node
    cdef public PeerOutbox outbox       # to the sender: deliveries and refusals; None: it sends no records of queues
    cdef readonly uint8_t slot          # not 0; of no other peer that this node has now
    cdef object handler                 # None: closed
    cdef bytes name                     # of the sender, in records
    cdef readonly uint64_t position     # the last frame that was applied
    cdef readonly uint64_t committed    # everything up to this frame is committed
    cdef dict waits                     # frames behind it that wait for a commit -> FrameWait
    cdef bint fresh                     # no frame with a number came in this life
    cdef uint32_t done                  # records of the next frame that were applied before one of them raised
    cdef uint64_t since                 # Commits.mark before the first of its records that this turn applies
    cdef uint64_t written               # records of the journal before the first of all
    cdef Tickets tried                  # what those caused that were applied before one raised; None: none did
    cdef bint delicate                  # the next frame has a message of QoS 2 for a share group
    # queues
    cdef readonly uint64_t asked        # the last position of the next frame, with its channel: for PeerOutbox.refuse
    cdef uint64_t upto                  # its last one of channel 0
    cdef dict positions                 # frame -> the same
    cdef list barriers                  # of the next frame: those of channel 0 that are awaited
    cdef dict channels                  # number -> Asked; without 0
    cdef list used                      # those of them with something in the next frame
    cdef dict forwarded                 # frame -> its positions that wait for a queue's new owner
    cdef set undone                     # of these frames those that have passed settlements on, for which barriers wait
    cdef set plain                      # lines for which the next frame itself waits, of what it has sent on
    # frame -> what it has in channel 0 for queues of other lines than the journal: [(line, position in it, [its
    # positions])]
    cdef dict lined
    cdef list settled                   # groups that the next frame has changed
    # Consumers that were not attached, until they are detached: number -> channel. What they settle has no effect, and
    # the next barrier in that channel, of the same frame, is refused: it is behind that.
    cdef dict strangers
    cdef set strange                    # channels with such a thing
    cdef Queue queue                    # of the last message for one; None: it is to be looked up
    cdef RelayMember member             # of the last delivery
    cdef list names                     # of namespaces: number - 1 -> name
    # of the last message
    cdef uint32_t number                # of its namespace; 0: none, or to be looked up again
    cdef Topics topics                  # None: this node does not know the namespace
    cdef Topics route_topics            # of the route
    cdef route_t* route                 # counted, or NULL
    # for the cold half
    cdef readonly uint64_t frames       # applied
    cdef readonly uint64_t records      # of these
    cdef readonly uint64_t bytes        # of these
    cdef set awaited_frames             # those not committed for whose acknowledgement somebody waits (AWAITED)
    cdef readonly bint awaited          # in on_applied: some of those committed now are such
    cdef readonly uint64_t repeated     # frames that were skipped

    cdef int applied(self, const frame_t* header, uint64_t size) except -1
    cdef int check(self, const frame_t* frame, Cursor records) except -1
    cdef int check_header(self, const frame_t* frame) except -1
    cdef int define(self, const peer_record_t* record) except -1
    cdef int apply_records(self, const frame_t* frame, Cursor records) except -1
    cdef int apply_record(self, const frame_t* frame, const peer_record_t* record) except -1
    cdef int publish(self, const frame_t* frame, const peer_record_t* record) except -1
    cdef int publish_retained(self, const frame_t* frame, const peer_record_t* record) except -1
    cdef route_t* route_of(self, const pub_t* pub) except NULL
    cdef int publish_here(self, pub_t* pub, route_t* route, const peer_record_t* record) except -1
    cdef int publish_to_group(self, const frame_t* frame, const peer_record_t* record) except -1
    cdef int apply_of_queue(self, const frame_t* frame, const peer_record_t* record) except -1
    cdef int publish_to_queue(self, const frame_t* frame, const peer_record_t* record) except -1
    cdef int miss(self, const body_t* body, const peer_record_t* record) except -1
    cdef int forward(self, body_t* body, const peer_record_t* record, origin_t* origin) except -1
    cdef Asked channel(self, uint16_t number)
    cdef int ask(self, const peer_record_t* record) except -1
    cdef int note_line(self, Line line, uint64_t position, uint16_t channel) except -1
    cdef int note_sent(self, uint64_t since, uint64_t position, uint16_t channel, asked_kind kind) except -1
    cdef int settle_late(self, PeerMember member, const peer_record_t* record) except -1
    cdef int note_lines(self) except -1
    cdef set lines_of_channels(self)
    cdef set sent_by_channels(self)
    cdef bint has_more(self, Line line, set sent)
    cdef int need_tried(self, set others) except -1
    cdef int wait_for(self, FrameWait wait) except -1
    cdef bint refuse_frame(self, uint64_t sequence, str why) except -1
    cdef int refuse_all(self, list positions, str why) except -1
    cdef int settle(self, const peer_record_t* record) except -1
    cdef int arrive(self, const frame_t* frame, const peer_record_t* record) except -1
    cdef bint begin(self, pub_t* pub, const frame_t* frame, const peer_record_t* record) except -1
    cdef int find_topics(self, uint32_t number) except -1
    cdef int64_t expiry_of(self, const frame_t* frame, const peer_record_t* record) noexcept
    cdef int note_position(self) except -1
    cdef int decide(self, uint64_t sequence) except -1
    cdef int forget_route(self) noexcept
