"""What two nodes tell each other of queues (queue_relay.pxd, queue_member.pxd, feed.pxd), on the stream to one of them.

Publishes and barriers have positions in a commit line of their own, one for each channel (channel.pxd): the other node
says up to which they are committed, and which it refuses. Nobody takes them over when that node has died: they are
given up, and what consumers here have settled, they keep for the next owner. Deliveries to the other node wait until
their claims are committed, each in the line of its queue, and answers about a queue behind them (late.pxd).
"""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport ticket_t
from fluxmq._core.memory.message cimport body_t, pub_t
from fluxmq._core.peer.channel cimport Channel
from fluxmq._core.peer.late cimport LateStream
from fluxmq._core.queue.log cimport record_t

cdef class QueueStream(LateStream):
    # of the consumers of this node there, and of that node's here
    cdef uint32_t number_last           # of members and calls
    cdef readonly dict members          # number -> RelayMember
    cdef list waited                    # RelayMember, for return_stalled()
    cdef readonly dict hosted           # number -> PeerMember
    cdef readonly dict feeds            # Queue, a stream -> PeerFeed: what that node reads of it
    cdef dict unrouted                  # position -> what is called if a direct reply there finds no requester
    cdef size_t settle_at               # of the settlement that may grow (settle_end)
    cdef readonly list channels         # by number
    cdef dict channel_of                # by replication group; without 0
    cdef Channel journal_channel        # 0
    cdef list used                      # other channels that have a part of the frame that gathers

    # Of a replication group; 0: none.
    cdef Channel channel(self, uint64_t group)
    cdef int take_publish(self, Channel channel, uint64_t queue, const body_t* body, uint8_t qos, int awaited,
                          const pub_t* pub) except -1
    cdef int take_settlement(self, Channel channel, uint32_t member, uint8_t flags, uint16_t deliveries, uint32_t log,
                             uint64_t offset, int64_t ms, bytes reason) except -1
    # awaited: it is refused if what was settled or asked before it was given up.
    cdef int take_barrier(self, Channel channel, bint awaited) except -1
    cdef int take_credit(self, uint32_t member, uint32_t limit) except -1
    cdef int take_detach(self, uint32_t member, bint rests) except -1
    cdef int take_call(self, Channel channel, uint8_t kind, uint32_t number, uint64_t queue, bytes data) except -1
    cdef uint32_t next_number(self) except 0
    # To the other node's consumers here. now: by the clock of the message's line. ticket: of the claim.
    cdef int take_delivery(self, uint32_t member, uint16_t deliveries, uint32_t log, const record_t* record,
                           int64_t now, ticket_t ticket) except -1
    cdef int take_result(self, uint32_t number, bytes data, ticket_t ticket) except -1
    # line: of the queue. It is sent behind what waits for that line.
    cdef int take_withdrawal(self, uint32_t member, uint32_t log, uint64_t offset, uint32_t line) except -1
    cdef int take_committed(self, uint16_t channel, uint64_t position) except -1
    # undone: of a barrier, and what was settled before it was given up.
    cdef int take_refusal(self, uint16_t channel, uint64_t position, uint16_t reason, bytes text,
                          bint undone=*) except -1
    # The other node says what of this node's is committed, and what it refuses.
    cdef int queues_committed(self, uint16_t channel, uint64_t position) except -1
    cdef int queues_refused(self, uint16_t channel, uint64_t position, uint16_t reason, str text,
                            bint undone) except -1
    cdef Channel known_channel(self, uint16_t number, uint64_t position)
    cdef int forget_unrouted(self) except -1
    cdef int keep_settlements(self, dict members) except -1
    cdef int keep_found(self, list settled, dict members, bint again=*) except -1
    cdef int use(self, Channel channel, uint64_t bytes) except -1
    cdef int close_channels(self) except -1
    cdef dict settled_here(self)
    cdef int ease_channel(self, Channel channel) except -1
