"""One AMQP 0-9-1 channel: publisher confirms, and deliveries until they are settled. See net/amqp091_channel.pyx.

    Channel ── deliveries ──► a ring in order of delivery tags, from the oldest that is not settled to the newest
       │            │             consumer, claim, record     sent: everything up to `sent`; the rest waits for the disk
       │            │             A full ring is compacted (make_room): settled deliveries behind an unsettled one leave
       │            │             it. So tags are consecutive only from `dense` on; below, a binary search finds a tag.
       │            └── runs ───► runs of tags and the commits they wait for; deliveries are sent in the order of their
       │                          tags, because a client may acknowledge all up to a tag
       ├── confirms ─── runs ───► the same for Basic.Ack, but a run that waits for another line than the journal
       │                          does not delay the runs behind it
       └── consumers: ChannelMember of a group, ChannelReader of a stream's partition

A delivery gets its tag when its message is claimed and is sent in the order of tags. So a delivery that needs no commit
still waits behind earlier ones that do.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.commits cimport Waiter, ticket_t
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.link cimport link_t
from fluxmq._core.memory.message cimport body_t
from fluxmq._core.net.amqp091_tag_runs cimport tag_runs_t
from fluxmq._core.queue.claim cimport Member, claim_t
from fluxmq._core.queue.log cimport record_t
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.shared_room cimport SharedRoom
from fluxmq._core.queue.stream cimport StreamReader

cdef struct delivery_t:
    uint64_t tag
    claim_t* claim              # NULL: settled, or delivered to a reader that does not keep claims
    const record_t* record      # NULL: sent, and the claim has released the record
    void* consumer              # Consumer's half: ChannelMember or ChannelReader, borrowed
    int64_t at_ms               # monotonic time of the delivery
    uint32_t awaited            # bytes counted in link.awaited while the delivery waits for the disk
    uint8_t reads               # consumer is a ChannelReader
    uint8_t in_transaction      # settled in a transaction that is not committed yet
    uint8_t withdrawn           # sent, then taken from this channel: one acknowledgement is accepted and ignored

cdef class ChannelMember(Member):
    """A consumer of a queue; with tag None, a pull-only member for Basic.Get (queue/amqp_head.pull_one)."""
    cdef readonly Channel channel
    cdef readonly Queue queue
    cdef readonly bytes tag
    cdef readonly bint no_ack
    cdef readonly uint32_t prefetch         # 0: any number
    cdef readonly bint cancelled            # gets no more deliveries; leaves the group when all are settled
    cdef public uint32_t remaining          # Basic.Get: ready messages behind the one it takes
    cdef public bint counts                 # deliveries carry x-delivery-count
    # Turns of queues whose consumers share the channel's prefetch (Channel.fair_room).
    cdef uint64_t served                    # tag of its last delivery
    cdef bint waits                         # it has asked for a message in vain since
    cdef bint yielded                       # it has let those that wait longer go first

cdef class ChannelReader(StreamReader):
    """A consumer of one partition of a stream."""
    cdef readonly Channel channel
    cdef readonly Queue queue
    cdef readonly bytes tag
    cdef readonly bint no_ack
    cdef readonly uint32_t prefetch

cdef class Channel(Waiter):
    cdef readonly uint16_t number
    cdef readonly bint closing              # Channel.Close was sent: all but Channel.CloseOk is ignored
    cdef readonly bint closed
    cdef public bint confirming             # Confirm.Select
    cdef readonly bint transactional        # Tx.Select
    cdef public bytes reply_to              # address that stands for "amq.rabbitmq.reply-to"; None: not used
    cdef public bint stopped                # Channel.Flow: deliver nothing
    cdef public uint32_t prefetch           # of each consumer started from now on
    cdef public uint32_t prefetch_all       # of all consumers together; 0: any number
    cdef readonly list consumers            # ChannelMember, ChannelReader; includes cancelled ones
    cdef public object state                # owned by the edge
    cdef public object on_emptied           # (member): a cancelled consumer has settled its last delivery
    cdef Hub hub
    cdef Ledger ledger
    cdef link_t* link                       # counted
    cdef uint32_t frame_max
    cdef uint64_t registered_batch          # newest journal batch for which on_committed is registered
    cdef ticket_t registered_ticket         # last ticket of another line for which it is registered
    cdef SharedRoom shared                  # of consumers whose queues other nodes have; None: there was none
    cdef bint starved                       # this channel or its link made a consumer stop
    # publishing
    cdef readonly uint64_t published        # tag of the last publish since Confirm.Select
    cdef uint64_t confirmed                 # all tags up to this one are answered
    cdef uint64_t confirm_now               # all up to this one may be answered at the end of this read
    cdef tag_runs_t confirms
    cdef uint32_t looked_line               # see take_confirms
    cdef uint64_t looked_upto
    cdef list tx_publishes                  # (address, properties, payload, mandatory)
    cdef list tx_settles                    # (tag, how)
    cdef uint64_t tx_bytes                  # of tx_publishes
    # deliveries
    cdef delivery_t* ring
    cdef readonly uint32_t ring_room        # a power of two
    cdef uint64_t ring_at                   # place of the oldest; its index in `ring` is place & (ring_room - 1)
    cdef uint64_t ring_end                  # place behind the newest
    cdef uint64_t dense                     # from this place on tags are consecutive, up to `next`
    cdef uint32_t walking                   # number of loops over the ring under way: it must not be compacted
    cdef readonly uint64_t first            # oldest tag in the ring
    cdef readonly uint64_t next             # tag of the next delivery
    cdef uint64_t sent                      # all tags up to this one were sent
    cdef uint64_t forget_at                 # place at which forget_claim starts to search
    cdef uint64_t settling                  # last tag of a multiple settle that spans several rounds; 0: none
    cdef uint64_t automatic                 # below this tag, deliveries without acknowledgement are settled
    cdef readonly uint32_t unacknowledged   # deliveries to consumers that acknowledge
    cdef tag_runs_t deliveries

    cdef int on_committed(self, uint32_t line, uint64_t position) except -1
    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1
    cdef int wait_for(self, ticket_t ticket) except -1
    # Confirms one publish, accepted or refused, once everything recorded since the mark `since` is committed.
    cdef int answer(self, bint refused, uint64_t since) except -1
    cdef int flush_confirms(self) except -1
    cdef int take_deliveries(self) except -1
    cdef int take_confirms(self, uint32_t line) except -1
    cdef int take_back(self, delivery_t* delivery) except -1
    cdef int drop_unsent(self, uint64_t first, uint64_t last) except -1
    cdef int write_answer(self, uint32_t method, uint64_t tag, bint multiple) except -1
    cdef int write_confirm(self, uint64_t tag) except -1
    # Delivers a message to a consumer. DELIVER_TAKEN, or DELIVER_KEPT while the delivery waits for the disk.
    cdef int give(self, void* consumer, bint reads, claim_t* claim, const record_t* record,
                  ticket_t ticket) except -1
    cdef int make_room(self) except -1
    # The place of the first delivery at or above a tag; ring_end: there is none.
    cdef uint64_t place(self, uint64_t tag) noexcept
    # The delivery with this tag; NULL: settled, or never sent.
    cdef delivery_t* find(self, uint64_t tag) noexcept
    cdef int send_up_to(self, uint64_t tag) except -1
    cdef int send_one(self, delivery_t* delivery, uint64_t tag) except -1
    cdef int settle_automatic(self) except -1
    # how: Basic.Ack (0), Basic.Nack and Reject with requeue (1), without (2). MORE: node.work reached work_end
    # before the last of many; the caller repeats the call in the next round, before it handles anything else of this
    # client.
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
    # The same for a consumer of this node's queues while the channel has a prefetch: 0 if a consumer of another queue
    # waits that got its last message earlier. That one is asked first, and this one again behind it.
    cdef uint32_t fair_room(self, ChannelMember member, uint32_t room) noexcept
    cdef int feed(self) except -1
    cdef int write_return(self, const body_t* body, uint16_t code, const char* text) except -1

cdef int write_content(link_t* link, uint32_t frame_max, uint16_t channel, const uint8_t* method,
                       uint32_t method_length,
                       const body_t* body) except -1
