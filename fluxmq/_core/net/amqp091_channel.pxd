"""One AMQP 0-9-1 channel: what it publishes is confirmed, what it was given is settled. See net/amqp091_channel.pyx.

    Channel ── deliveries ──► a ring in order of delivery tags, from the oldest that is not settled to the newest
       │            │             consumer, claim, record     sent: everything up to `sent`; the rest waits for the disk
       │            │             What is settled behind one that is not leaves it when it is full (make_room), so tags
       │            │             follow each other only from `dense` on; before that a tag is searched for.
       │            └── marks ──► runs of tags and what they wait for; they are sent in the order of their tags, for a
       │                          client may acknowledge all up to one of them
       ├── confirms ─── marks ──► the same for Basic.Ack, but that what waits for another line than the journal keeps
       │                          nobody back
       └── consumers: ChannelMember of a group, ChannelReader of a stream's partition

A tag is given when a message is claimed, and messages leave in the order of their tags; so one that waits for nothing
waits behind those that wait for the disk.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.commits cimport Waiter, ticket_t
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.link cimport link_t
from fluxmq._core.memory.message cimport body_t
from fluxmq._core.net.amqp091_marks cimport marks_t
from fluxmq._core.queue.claim cimport Member, claim_t
from fluxmq._core.queue.log cimport record_t
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.stream cimport StreamReader

cdef struct delivery_t:
    uint64_t tag
    claim_t* claim              # NULL: settled, or a reader's that is not kept
    const record_t* record      # NULL: it was sent, so that the claim has let go of it
    void* consumer              # Consumer's half: ChannelMember or ChannelReader, borrowed
    int64_t at_ms               # monotonic, when it was given
    uint32_t awaited            # its bytes in link.awaited: it waits for the disk
    uint8_t reads               # a reader's
    uint8_t asked               # settled in a transaction that is not committed yet
    uint8_t lost                # sent, and not this channel's any more: it may be acknowledged once, in vain

cdef class ChannelMember(Member):
    """A consumer of a queue, or (tag None) who asks by Basic.Get (queue_heads.pull_one)."""
    cdef readonly Channel channel
    cdef readonly Queue queue
    cdef readonly bytes tag
    cdef readonly bint no_ack
    cdef readonly uint32_t prefetch         # 0: any number
    cdef readonly bint cancelled            # takes nothing more, and leaves when all it has is settled
    cdef public uint32_t remaining          # Basic.Get: ready messages behind the one that it takes
    cdef public bint counts                 # x-delivery-count is told

cdef class ChannelReader(StreamReader):
    """A consumer of one partition of a stream."""
    cdef readonly Channel channel
    cdef readonly Queue queue
    cdef readonly bytes tag
    cdef readonly bint no_ack
    cdef readonly uint32_t prefetch

cdef enum:
    SETTLE_MORE = 0x4D4F        # no other answer of a method or a frame

cdef class Channel(Waiter):
    cdef readonly uint16_t number
    cdef readonly bint closing              # Channel.Close was sent: all is ignored until it is answered
    cdef readonly bint closed
    cdef public bint confirming             # Confirm.Select
    cdef readonly bint transactional        # Tx.Select
    cdef public bytes reply_to              # where answers to "amq.rabbitmq.reply-to" go; None: nowhere
    cdef public bint stopped                # Channel.Flow: deliver nothing
    cdef public uint32_t prefetch           # of consumers that are still to come
    cdef public uint32_t prefetch_all       # of all consumers together; 0: any number
    cdef readonly list consumers            # ChannelMember, ChannelReader; also those that are to leave
    cdef public object state                # whatever the edge keeps with it
    cdef public object on_emptied           # (member): a cancelled consumer has settled its last
    cdef Hub hub
    cdef Ledger ledger
    cdef link_t* link                       # counted
    cdef uint32_t frame_max
    cdef uint64_t told                      # newest batch of the journal that we are to be told of
    cdef ticket_t told_other                # the ticket of another line that we asked for last
    cdef bint starved                       # a consumer got nothing because of this channel or its link
    # publishing
    cdef readonly uint64_t published        # tag of the last publish since Confirm.Select
    cdef uint64_t confirmed                 # all up to it are answered
    cdef uint64_t confirm_now               # may be answered at the end of this read
    cdef marks_t confirms
    cdef list tx_publishes                  # (address, properties, payload, mandatory)
    cdef list tx_settles                    # (tag, how)
    cdef uint64_t tx_bytes                  # of tx_publishes
    # deliveries
    cdef delivery_t* ring
    cdef readonly uint32_t ring_room        # a power of two
    cdef uint64_t ring_at                   # place of the oldest; place & (ring_room - 1) is where it is in `ring`
    cdef uint64_t ring_end                  # behind the newest
    cdef uint64_t dense                     # from this place on tags follow each other, up to `next`
    cdef uint32_t walking                   # somebody goes through the ring: what is in it stays where it is
    cdef readonly uint64_t first            # oldest tag in the ring
    cdef readonly uint64_t next             # of the next delivery
    cdef uint64_t sent
    cdef uint64_t lost_at                   # place at which forget_claim looks first
    cdef uint64_t settling                  # last tag of what is settled over several rounds; 0: nothing is
    cdef uint64_t automatic                 # below, what needs no acknowledgement has been settled
    cdef readonly uint32_t unacknowledged   # by consumers that acknowledge
    cdef marks_t deliveries

    cdef int on_committed(self, uint32_t line, uint64_t position) except -1
    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1
    cdef int wait_for(self, ticket_t ticket) except -1
    # A publish got its tag and was taken (or refused). It is confirmed when all since the mark is committed.
    cdef int answer(self, bint refused, uint64_t since) except -1
    cdef int flush_confirms(self) except -1
    cdef int take_deliveries(self) except -1
    cdef int take_confirms(self) except -1
    cdef int take_back(self, delivery_t* delivery) except -1
    cdef int drop_unsent(self, uint64_t first, uint64_t last) except -1
    cdef int write_answer(self, uint32_t method, uint64_t tag, bint multiple) except -1
    cdef int write_confirm(self, uint64_t tag) except -1
    # A message for a consumer. DELIVER_TAKEN, or DELIVER_KEPT while it waits for the disk.
    cdef int give(self, void* consumer, bint reads, claim_t* claim, const record_t* record,
                  ticket_t ticket) except -1
    cdef int make_room(self) except -1
    # The place of the first delivery at or above a tag; ring_end: there is none.
    cdef uint64_t place(self, uint64_t tag) noexcept
    # The delivery with this tag; NULL: it is settled, or never was.
    cdef delivery_t* find(self, uint64_t tag) noexcept
    cdef int send_up_to(self, uint64_t tag) except -1
    cdef int send_one(self, delivery_t* delivery, uint64_t tag) except -1
    cdef int settle_automatic(self) except -1
    # Basic.Ack (0), Basic.Nack and Reject with requeue (1), without (2). SETTLE_MORE: node.work has reached work_end
    # before the last of many; the same is to be asked again in the next round, before anything else of this client.
    cdef int settle(self, uint64_t tag, bint multiple, int how, uint64_t work_end) except -1
    cdef int settle_now(self, uint64_t tag, bint multiple, int how, uint64_t work_end) except -1
    cdef int check_tag(self, uint64_t tag, bint multiple) except -1
    cdef int settle_kept(self) except -1
    cdef int settle_one(self, delivery_t* delivery, int how) except -1
    cdef int write(self, const uint8_t* data, uint32_t n) except -1
    cdef int forget_claim(self, claim_t* claim) noexcept
    cdef void awaits_no_more(self, delivery_t* delivery) noexcept
    cdef void advance(self) noexcept
    cdef uint32_t room(self, bint no_ack, uint32_t prefetch, uint32_t held) noexcept
    cdef int feed(self) except -1
    cdef int write_return(self, const body_t* body, uint16_t code, const char* text) except -1

cdef int write_content(link_t* link, uint32_t frame_max, uint16_t channel, const uint8_t* method,
                       uint32_t method_length,
                       const body_t* body) except -1
