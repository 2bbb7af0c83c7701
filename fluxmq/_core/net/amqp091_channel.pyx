# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. One AMQP 0-9-1 channel: delivery tags, their settlement, publisher confirms. See the .pxd. It is one file
because all of it works on one ring of deliveries.

    claimed ──batch durable──► sent ──Basic.Ack──► settled
       │                        ├──Basic.Nack, Reject, requeue──► ready again at once, in its place
       │                        └──the same without requeue──► dead letter, or dropped
       └──channel closes, at any time──► ready again, in its place

A delivery to a consumer without acknowledgements counts as settled once its bytes are in the socket's buffer (RabbitMQ:
as soon as it is sent). Basic.Recover makes deliveries that are not settled ready again.
"""
cimport cython
from libc.stdint cimport UINT64_MAX
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from fluxmq._core.errors import ProtocolError

from fluxmq._core.amqp091.consts cimport (
    BASIC_ACK, BASIC_DELIVER, BASIC_GET_OK, BASIC_NACK, BASIC_RETURN, FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_METHOD,
    REPLY_PRECONDITION_FAILED,
)
from fluxmq._core.amqp091.values cimport room_t
from fluxmq._core.bridge.header cimport header_add
from fluxmq._core.bridge.translate cimport to_amqp
from fluxmq._core.memory.commits cimport HELD_NOTIFY, Commits, Line, ticket_t
from fluxmq._core.memory.link cimport link_commit, link_drop, link_hold, link_mark, link_room
from fluxmq._core.memory.message cimport FORMAT_AMQP091
from fluxmq._core.net.amqp091_tag_runs cimport (
    add_tag, close_gaps, drop_first, empty_run, extend_last, free_runs, give_up, run_at, run_decided, tag_run_t,
)
from fluxmq._core.net.transport cimport MORE, Transport
from fluxmq._core.queue.claim cimport DELIVER_KEPT, DELIVER_TAKEN, claim_let_go
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport Log, record_body
from fluxmq._core.queue.shared_room cimport ROOM_UNSHARED
from fluxmq._core.wire.primitives cimport put_u8, put_u16, put_u32, put_u64
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["Channel", "ChannelMember", "ChannelReader"]

cdef enum:
    SETTLE = 0
    REQUEUE = 1
    # Cost of settling one delivery of many, in units of memory/node.pxd: a reject calls the engine, which may
    # dead-letter the message.
    WORK_ACK = 4
    WORK_REQUEUE = 15
    WORK_REJECT = 75
    DISCARD = 2
    NO_ACK_MAX = 8192               # unsent deliveries of a consumer without acknowledgements
    METHOD_BYTES_MAX = 1024         # Basic.Deliver, GetOk, Return: three short strings and some numbers
    FRAME_EXTRA = 8                 # type, channel, size, end

# One per process, as in net/transport.pyx: filled and copied within one call.
cdef room_t translation
cdef room_t header_room


cdef inline uint8_t* put_short(uint8_t* at, const void* data, uint32_t n) noexcept:
    at = put_u8(at, <uint8_t>n)
    memcpy(at, data, n)
    return at + n


cdef inline uint8_t* put_head(uint8_t* at, uint8_t kind, uint16_t channel, uint32_t size) noexcept:
    return put_u32(put_u16(put_u8(at, kind), channel), size)


cdef int write_content(link_t* link, uint32_t frame_max, uint16_t channel, const uint8_t* method,
                       uint32_t method_length,
                       const body_t* body) except -1:
    """Writes a method and its content: three frames, or more if the payload does not fit in one (section 4.2.6 of the
    specification). frame_max: size of a whole frame, at least 4096."""
    cdef uint32_t part = min(body.payload_length, frame_max - FRAME_EXTRA)
    cdef uint32_t header = 12 + body.properties_length
    cdef uint32_t first = 2 * FRAME_EXTRA + method_length + header + (FRAME_EXTRA + part if part else 0)
    cdef const uint8_t* payload = body.payload
    cdef uint32_t left = body.payload_length
    cdef uint8_t* at
    cdef uint8_t* start
    if not link.open:
        return 0
    start = at = link_room(link, first)
    if at == NULL:
        raise MemoryError()
    at = put_head(at, FRAME_METHOD, channel, method_length)
    memcpy(at, method, method_length)
    at = put_u8(at + method_length, FRAME_END)
    at = put_head(at, FRAME_HEADER, channel, header)
    at = put_u64(put_u32(at, 60 << 16), left)
    memcpy(at, body.properties, body.properties_length)
    at = put_u8(at + body.properties_length, FRAME_END)
    while True:
        if part:
            at = put_head(at, FRAME_BODY, channel, part)
            memcpy(at, payload, part)
            at = put_u8(at + part, FRAME_END)
        link_commit(link, fit_u32(at - start))
        payload += part
        left -= part
        if left == 0:
            return 0
        part = min(left, frame_max - FRAME_EXTRA)
        start = at = link_room(link, FRAME_EXTRA + part)
        if at == NULL:
            raise MemoryError()


@cython.final
cdef class ChannelMember(Member):
    """Machine. tag: the consumer tag; None for Basic.Get."""

    def __init__(self, Channel channel not None, Queue queue not None, bytes tag, *, bint no_ack=False,
                 uint32_t prefetch=0):
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.carried_by(channel.link)

    def cancel(self):
        """Stops deliveries to this consumer."""
        self.cancelled = True

    cdef uint32_t credit(self) noexcept:
        cdef uint32_t room
        if self.cancelled or self.tag is None:
            return 0
        room = self.channel.room(self.no_ack, self.prefetch, self.held)
        if self.channel.prefetch_all and not self.no_ack:
            return self.channel.fair_room(self, room)
        return room

    cdef SharedRoom sharing(self):
        if self.no_ack or self.tag is None:
            return None
        if self.channel.shared is None:
            self.channel.shared = SharedRoom()
        return self.channel.shared

    cdef uint32_t shared_room(self) noexcept:
        if self.channel.prefetch_all == 0:
            return ROOM_UNSHARED
        return self.channel.room(False, 0, 0)

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        cdef Channel channel = self.channel
        # The claim is recorded at the end of this pump, so the next batch will not be empty.
        return channel.give(<void*>self, 0, claim, record,
                            channel.ledger.commits.next_ticket(self.queue.line) if self.queue.awaits_claims
                            else ticket_t(0, 0, 0, 0))

    cdef int withdraw(self, claim_t* claim) except -1:
        """The channel forgets the claim but still accepts the client's acknowledgement of it."""
        return self.channel.forget_claim(claim)

    cdef void forget(self, claim_t* claim) noexcept:
        self.channel.forget_claim(claim)


@cython.final
cdef class ChannelReader(StreamReader):
    """Machine. Arguments as ChannelMember's and StreamReader's."""

    def __init__(self, Channel channel not None, Queue queue not None, Log log not None, bytes tag not None,
                 uint64_t position, *, bint no_ack=False, uint32_t prefetch=0, Group group=None, bint manual=False,
                 filter=None):
        StreamReader.__init__(self, log, position, group=group, manual=manual, filter=filter)
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.carried_by(channel.link)

    cdef bint keeps(self) noexcept:
        return not self.no_ack

    cdef uint32_t credit(self) noexcept:
        return self.channel.room(self.no_ack, self.prefetch, self.held)

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        cdef ticket_t ticket = self.log.waits_for(record.offset)
        cdef Channel channel = self.channel
        if ticket.position or channel.deliveries.count:
            # A stream's message is not claimed exclusively: it is read again when it may be sent.
            channel.starved = True
            if ticket.position:
                channel.wait_for(ticket)
            return 0
        return channel.give(<void*>self, 1, claim, record, ticket)

    def leave(self):
        """The consumer is cancelled, or its channel closed: drops its unsettled deliveries."""
        cdef claim_t* claim = self.oldest
        while claim != NULL:
            self.channel.forget_claim(claim)
            claim = claim.behind
        self.forget()


@cython.final
cdef class Channel(Waiter):
    """Machine. number: 1 to channel_max. transport: the connection. frame_max: as negotiated."""

    def __cinit__(self, Transport transport not None, int number, uint32_t frame_max):
        self.number = <uint16_t>number
        self.hub = transport.hub
        self.ledger = self.hub.ledger
        self.link = transport.link
        link_hold(self.link)
        self.frame_max = frame_max
        self.consumers = []
        self.first = self.next = self.automatic = 1
        self.tx_publishes = []
        self.tx_settles = []

    def __dealloc__(self):
        if self.link != NULL:
            link_drop(self.link)
        free(self.ring)
        free_runs(&self.confirms)
        free_runs(&self.deliveries)

    def rollback(self):
        """Tx.Rollback: discards what was published and settled since the last commit."""
        cdef uint64_t tag
        for tag, _ in self.tx_settles:
            if self.find(tag) != NULL:
                self.find(tag).in_transaction = 0
        self.tx_publishes = []
        self.tx_settles = []
        self.tx_bytes = 0

    def begin_closing(self):
        """Channel.Close was sent: everything that arrives before Channel.CloseOk is ignored."""
        self.closing = True

    def close(self):
        """Closes the channel. The caller removes its consumers from their groups, now or earlier. Confirms that need
        no commit are written now, the others when committed; so the caller must write the method that ends the channel
        behind them (write_when_durable)."""
        cdef uint64_t at
        self.flush_confirms()
        self.closed = self.closing = True
        for at in range(self.place(self.sent + 1), self.ring_end):
            self.awaits_no_more(&self.ring[at & (self.ring_room - 1)])
        self.first = self.next
        self.ring_at = self.dense = self.ring_end
        self.unacknowledged = 0
        self.tx_publishes = []
        self.tx_settles = []
        self.tx_bytes = 0

    def select_tx(self):
        """Tx.Select: publishes and acknowledgements take effect on commit."""
        self.transactional = True

    # ---------------------------------------------------------------- the disk

    cdef int wait_for(self, ticket_t ticket) except -1:
        if ticket.line == 0:
            if self.registered_batch >= ticket.position:
                return 0
            self.registered_batch = ticket.position
        elif self.registered_ticket.line == ticket.line and self.registered_ticket.position == ticket.position:
            return 0
        else:
            self.registered_ticket = ticket
        return self.ledger.commits.hold_at(ticket, HELD_NOTIFY, self.link, self, 0, 0)

    cdef int on_committed(self, uint32_t line, uint64_t position) except -1:
        if not self.closed:
            self.take_deliveries()
        self.take_confirms(line)
        if self.starved and not self.closed:
            self.feed()
        return 0

    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1:
        give_up(&self.deliveries, line, position)
        give_up(&self.confirms, line, position)
        return self.on_committed(line, position)

    cdef int take_deliveries(self) except -1:
        """Sends deliveries whose commits are decided, in the order of their tags."""
        cdef uint64_t tag = 0
        cdef tag_run_t* run
        while self.deliveries.count:
            run = run_at(&self.deliveries, 0)
            if not run_decided(self.ledger.commits, run):
                break
            if run.given_up:
                self.drop_unsent(run.first, run.tag)
            tag = run.tag
            drop_first(&self.deliveries)
        return self.send_up_to(tag) if tag else 0

    cdef int drop_unsent(self, uint64_t first, uint64_t last) except -1:
        """A line gave up the claims of these deliveries before they were sent: the queue delivers the messages anew."""
        cdef uint64_t at = self.place(first)
        cdef delivery_t* delivery
        self.walking += 1
        try:
            while at < self.ring_end and self.ring[at & (self.ring_room - 1)].tag <= last:
                delivery = &self.ring[at & (self.ring_room - 1)]
                if delivery.consumer != NULL and not delivery.reads:
                    self.take_back(delivery)
                at += 1
        finally:
            self.walking -= 1
        self.advance()
        return 0

    cdef int take_back(self, delivery_t* delivery) except -1:
        """Makes the message of an unsent delivery ready again, as if it had never been claimed."""
        cdef ChannelMember member = <ChannelMember>delivery.consumer
        self.awaits_no_more(delivery)
        self.unacknowledged -= not member.no_ack
        delivery.consumer = NULL
        (<Group>member.group).give_back(delivery.claim, 0, False)
        return 0

    # ---------------------------------------------------------------- confirms

    cdef int answer(self, bint refused, uint64_t since) except -1:
        cdef Commits commits = self.ledger.commits
        cdef int i
        cdef int count
        self.published += 1
        if refused:
            self.flush_confirms()
            return self.write_answer(BASIC_NACK, self.published, 0)
        count = commits.collect(since)
        if count == 0:
            if self.confirms.count == 0:
                self.confirm_now = self.published
                return 0
            if self.confirms.others:
                return self.write_answer(BASIC_ACK, self.published, 0)      # overtakes runs that wait for other lines
        self.looked_upto = 0                # the new run may be decided already
        for i in range(count):
            self.wait_for(commits.needed[i])
        if count == 1 and extend_last(&self.confirms, commits.needed[0], self.published):
            return 0
        return add_tag(&self.confirms, commits.needed, <uint32_t>count, self.published)

    cdef int take_confirms(self, uint32_t line) except -1:
        """Confirms what is committed, in as few frames as possible, and refuses what a line gave up. While the oldest
        run still waits for its line, runs behind it that are decided are answered tag by tag. line: which has decided
        something. It says so for each position: all runs are looked at for the first one only."""
        cdef Commits commits = self.ledger.commits
        cdef tag_run_t* run
        cdef uint64_t upto = 0
        cdef uint64_t tag, decided
        cdef uint32_t i
        cdef uint32_t gap = 0
        cdef bint waits = 1                 # the run in front of this one does, and so does this one unless it `turns`
        while self.confirms.count:
            run = run_at(&self.confirms, 0)
            if not run_decided(commits, run):
                break
            tag = run.tag
            if run.given_up:
                if upto:
                    self.write_confirm(upto)
                    upto = 0
                self.write_answer(BASIC_NACK, tag, tag - self.confirmed > 1)
                self.confirmed = tag
            else:
                upto = tag
            drop_first(&self.confirms)
        if upto:
            self.write_confirm(upto)
        if self.confirms.turns == 0:
            return 0
        decided = commits.local.done() if line == 0 else (<Line>commits.lines[line]).decided
        if line == self.looked_line and decided == self.looked_upto:
            return 0
        self.looked_line = line
        self.looked_upto = decided
        try:
            for i in range(1, self.confirms.count):
                run = run_at(&self.confirms, i)
                if waits and not run.turns:
                    continue
                waits = not run_decided(commits, run)
                if not waits:
                    gap = gap or i
                    for tag in range(run.first, run.tag + 1):
                        self.write_answer(BASIC_NACK if run.given_up else BASIC_ACK, tag, 0)
                    empty_run(&self.confirms, i)
        finally:
            if gap:
                close_gaps(&self.confirms, gap)
        return 0

    cdef int flush_confirms(self) except -1:
        cdef uint64_t tag = self.confirm_now
        self.confirm_now = 0
        return self.write_confirm(tag) if tag else 0

    cdef int write_confirm(self, uint64_t tag) except -1:
        """Basic.Ack of all unanswered tags up to this one; refused tags among them were answered before."""
        self.write_answer(BASIC_ACK, tag, tag - self.confirmed > 1)
        self.confirmed = tag
        return 0

    cdef int write_answer(self, uint32_t method, uint64_t tag, bint multiple) except -1:
        """Basic.Ack or Basic.Nack."""
        cdef uint8_t[21] frame
        cdef uint8_t* at = put_u64(put_u32(put_head(frame, FRAME_METHOD, self.number, 13), method), tag)
        put_u8(put_u8(at, multiple), FRAME_END)
        return self.write(frame, 21)

    cdef int write(self, const uint8_t* data, uint32_t n) except -1:
        cdef uint8_t* at
        if not self.link.open:
            return 0
        at = link_room(self.link, n)
        if at == NULL:
            raise MemoryError()
        memcpy(at, data, n)
        link_commit(self.link, n)
        return 0

    cdef int write_return(self, const body_t* body, uint16_t code, const char* text) except -1:
        """Basic.Return of a message in FORMAT_AMQP091."""
        cdef uint8_t[METHOD_BYTES_MAX] method
        cdef uint8_t* at = put_u16(put_u32(method, BASIC_RETURN), code)
        cdef uint32_t n = 0
        while text[n]:
            n += 1
        at = put_short(at, text, n)
        n = body.topic[0]
        at = put_short(at, body.topic + 1, n)
        at = put_short(at, body.topic + 1 + n, body.topic_length - 1 - n)
        return write_content(self.link, self.frame_max, self.number, method, fit_u32(at - method), body)

    # ---------------------------------------------------------------- deliveries

    cdef uint32_t room(self, bint no_ack, uint32_t prefetch, uint32_t held) noexcept:
        """How many more deliveries a consumer may get."""
        cdef uint32_t limit = 0xFFFFFFFF
        if (self.closing or self.stopped or self.link.pending + self.link.awaited > self.link.high
                or not self.link.open):
            self.starved = True
            return 0
        if no_ack:
            return NO_ACK_MAX - held if held < NO_ACK_MAX else 0
        if prefetch:
            limit = prefetch - held if held < prefetch else 0
        if self.prefetch_all:
            if self.unacknowledged >= self.prefetch_all:
                self.starved = True
                return 0
            limit = min(limit, self.prefetch_all - self.unacknowledged)
        return limit

    cdef uint32_t fair_room(self, ChannelMember member, uint32_t room) noexcept:
        cdef ChannelMember other
        cdef bint before = False
        if room == 0:
            member.waits = self.unacknowledged >= self.prefetch_all
            member.yielded = False
            return 0
        if member.yielded or member.group is None or (<Group>member.group).relay is not None:
            member.yielded = member.waits = False
            return room
        for consumer in self.consumers:
            if not isinstance(consumer, ChannelMember):
                continue
            other = <ChannelMember>consumer
            if other.waits and other.served < member.served and other.queue is not member.queue:
                other.queue.touch()
                before = True
        if before:
            # Those queues are pumped first, and this one again behind them, in the same turn.
            member.yielded = member.waits = True
            member.queue.touch()
            return 0
        member.waits = False
        return room

    cdef int feed(self) except -1:
        """There is room again: schedules the queues of all consumers, so that deliveries resume."""
        self.starved = False
        for consumer in self.consumers:
            if isinstance(consumer, ChannelMember):
                (<ChannelMember>consumer).queue.touch()
            else:
                (<ChannelReader>consumer).queue.touch()
        return 0

    def start(self):
        """Channel.Flow, Basic.Qos: consumers may take more than before."""
        self.stopped = False
        self.feed()

    cdef int give(self, void* consumer, bint reads, claim_t* claim, const record_t* record,
                  ticket_t ticket) except -1:
        cdef delivery_t* delivery
        cdef uint64_t tag = self.next
        if self.ring_end - self.ring_at >= self.ring_room:
            self.make_room()
        self.next += 1
        delivery = &self.ring[self.ring_end & (self.ring_room - 1)]
        self.ring_end += 1
        delivery.tag = tag
        delivery.claim = claim
        delivery.record = record
        delivery.consumer = consumer
        delivery.reads = reads
        delivery.in_transaction = delivery.withdrawn = 0
        delivery.awaited = 0
        delivery.at_ms = self.ledger.node.mono_ms
        self.unacknowledged += not acknowledges_itself(delivery)
        if self.prefetch_all and not reads:
            (<ChannelMember>consumer).served = tag
        if self.shared is not None and not self.shared.stale:
            self.shared.changed()
        if ticket.position or self.deliveries.count:
            delivery.awaited = record.size
            self.link.awaited += delivery.awaited
            if ticket.position:
                self.wait_for(ticket)
            if not extend_last(&self.deliveries, ticket, tag):
                add_tag(&self.deliveries, &ticket, ticket.position != 0, tag)
            return DELIVER_KEPT                 # the record is read when the delivery is sent
        self.sent = tag
        self.send_one(delivery, tag)
        delivery.record = NULL
        if claim == NULL:
            delivery.consumer = NULL
            self.advance()
        return DELIVER_TAKEN

    cdef int make_room(self) except -1:
        """Makes room for one more delivery. If at least half of the ring is settled, the ring is compacted instead of
        doubled, so that one delivery that is never settled does not make it grow without bound."""
        cdef delivery_t* grown
        cdef uint32_t room
        cdef uint32_t live = 0
        cdef uint64_t at, to
        for at in range(self.ring_at, self.ring_end):
            live += is_kept(&self.ring[at & (self.ring_room - 1)])
        if 2 * live <= self.ring_room and self.ring_room and not self.walking:
            to = self.ring_at
            for at in range(self.ring_at, self.ring_end):
                if is_kept(&self.ring[at & (self.ring_room - 1)]):
                    self.ring[to & (self.ring_room - 1)] = self.ring[at & (self.ring_room - 1)]
                    to += 1
            self.ring_end = self.dense = to
            self.forget_at = self.ring_at
            while (self.dense > self.ring_at and self.ring[(self.dense - 1) & (self.ring_room - 1)].tag
                    == self.next - (self.ring_end - self.dense) - 1):
                self.dense -= 1
            return 0
        room = self.ring_room * 2 if self.ring_room else 64
        grown = <delivery_t*>calloc(room, sizeof(delivery_t))
        if grown == NULL:
            raise MemoryError()
        for at in range(self.ring_at, self.ring_end):
            grown[at & (room - 1)] = self.ring[at & (self.ring_room - 1)]
        free(self.ring)
        self.ring = grown
        self.ring_room = room
        return 0

    cdef uint64_t place(self, uint64_t tag) noexcept:
        cdef uint64_t low = self.ring_at
        cdef uint64_t high = self.dense
        cdef uint64_t middle
        if tag >= self.next:
            return self.ring_end
        if self.next - tag <= self.ring_end - self.dense:
            return self.ring_end - (self.next - tag)
        while low < high:
            middle = (low + high) // 2
            if self.ring[middle & (self.ring_room - 1)].tag < tag:
                low = middle + 1
            else:
                high = middle
        return low

    cdef delivery_t* find(self, uint64_t tag) noexcept:
        cdef uint64_t at = self.place(tag)
        if at == self.ring_end or self.ring[at & (self.ring_room - 1)].tag != tag:
            return NULL
        return &self.ring[at & (self.ring_room - 1)]

    cdef int send_up_to(self, uint64_t last) except -1:
        cdef uint64_t at = self.place(self.sent + 1)
        cdef delivery_t* delivery
        while at < self.ring_end:
            delivery = &self.ring[at & (self.ring_room - 1)]
            if delivery.tag > last:
                break
            if delivery.consumer != NULL:
                self.awaits_no_more(delivery)
                self.send_one(delivery, delivery.tag)
                delivery.record = NULL
                claim_let_go(delivery.claim)    # a reader's deliveries are sent at once and never come here
            at += 1
        self.sent = last
        return 0

    cdef int send_one(self, delivery_t* delivery, uint64_t tag) except -1:
        """Writes Basic.Deliver or Basic.GetOk, and the message."""
        cdef uint8_t[METHOD_BYTES_MAX] method
        cdef uint8_t* at
        cdef body_t body
        cdef body_t translated
        cdef ChannelMember member = None
        cdef bytes consumer_tag
        cdef bint redelivered = 0
        cdef uint32_t n
        record_body(delivery.record, (<ChannelReader>delivery.consumer).log.line.shift_ms if delivery.reads else
                    (<ChannelMember>delivery.consumer).queue.line.shift_ms, &body)
        if body.format != FORMAT_AMQP091:
            to_amqp(&body, delivery.record.qos & 0x0F, self.ledger.node.steady_ms, &translation, &translated)
            body = translated
        if delivery.reads:
            consumer_tag = (<ChannelReader>delivery.consumer).tag
            header_add(&body, b"x-stream-offset", <int64_t>delivery.record.offset, &header_room)
        else:
            member = <ChannelMember>delivery.consumer
            consumer_tag = member.tag
            redelivered = delivery.claim.deliveries > 1
            # RabbitMQ: consumers of a quorum queue get x-delivery-count from the second delivery on, Basic.Get always.
            if member.counts and (redelivered or consumer_tag is None):
                header_add(&body, b"x-delivery-count", <int64_t>delivery.claim.deliveries - 1, &header_room)
        if consumer_tag is None:
            at = put_u64(put_u32(method, BASIC_GET_OK), tag)
        else:
            at = put_short(put_u32(method, BASIC_DELIVER), <const char*>consumer_tag, <uint32_t>len(consumer_tag))
            at = put_u64(at, tag)
        at = put_u8(at, redelivered)
        n = body.topic[0]
        at = put_short(at, body.topic + 1, n)
        at = put_short(at, body.topic + 1 + n, body.topic_length - 1 - n)
        if consumer_tag is None:
            at = put_u32(at, member.remaining)
        self.hub.node.counters.messages_sent[1] += 1
        return write_content(self.link, self.frame_max, self.number, method, fit_u32(at - method), &body)

    cdef int settle_automatic(self) except -1:
        """Settles deliveries to consumers without acknowledgements: their bytes are in the socket."""
        cdef uint64_t at = self.place(self.automatic)
        cdef delivery_t* delivery
        self.walking += 1
        try:
            while at < self.ring_end:
                delivery = &self.ring[at & (self.ring_room - 1)]
                if delivery.tag > self.sent:
                    break
                if delivery.consumer != NULL and acknowledges_itself(delivery):
                    self.settle_one(delivery, SETTLE)
                at += 1
        finally:
            self.walking -= 1
        self.automatic = self.sent + 1
        self.advance()
        return 0

    # ---------------------------------------------------------------- acknowledgements

    cdef int settle(self, uint64_t tag, bint multiple, int how, uint64_t work_end) except -1:
        """Raises ProtocolError 406 for a tag that is unknown or settled."""
        cdef uint64_t at
        cdef uint64_t last = tag if tag else self.sent
        cdef delivery_t* delivery
        if not self.transactional:
            return self.settle_now(tag, multiple, how, work_end)
        self.check_tag(tag, multiple)
        at = self.ring_at if multiple else self.place(tag)
        while at < self.ring_end:
            delivery = &self.ring[at & (self.ring_room - 1)]
            if delivery.tag > last:
                break
            if is_waited_for(delivery):
                delivery.in_transaction = 1
                self.tx_settles.append((delivery.tag, how))
            delivery.withdrawn = 0
            at += 1
        self.advance()
        return 0

    cdef int settle_kept(self) except -1:
        """Tx.Commit: settles what the transaction collected, except deliveries that left the channel since (the queue
        was deleted). The records are written before this returns, so that Ledger.records tells the caller that there
        is something to wait for."""
        cdef uint64_t tag
        cdef int how
        cdef delivery_t* delivery
        cdef Group group
        cdef set groups = set()
        settles, self.tx_settles = self.tx_settles, []
        for tag, how in settles:
            delivery = self.find(tag)
            if delivery != NULL and delivery.consumer != NULL and delivery.in_transaction:
                if not delivery.reads:
                    groups.add((<ChannelMember>delivery.consumer).group)
                self.settle_one(delivery, how)
        for group in groups:
            if group is not None and group.relay is not None:
                group.relay.barrier()
            elif group is not None:
                group.write_records()
        self.advance()
        if self.starved:
            self.feed()
        return 0

    cdef int check_tag(self, uint64_t tag, bint multiple) except -1:
        cdef const delivery_t* delivery
        if tag == 0:
            if not multiple:
                self.unknown(tag)
        elif tag < self.first or tag >= self.next or tag > self.sent:
            self.unknown(tag)
        else:
            delivery = self.find(tag)
            if delivery == NULL or (not delivery.withdrawn and not is_waited_for(delivery)):
                self.unknown(tag)
        return 0

    cdef int settle_now(self, uint64_t tag, bint multiple, int how, uint64_t work_end) except -1:
        cdef uint64_t at
        cdef uint64_t last = tag if tag else self.sent     # unsent deliveries cannot be acknowledged
        cdef uint64_t* work = &self.ledger.node.work
        cdef uint32_t cost = WORK_ACK if how == SETTLE else WORK_REQUEUE if how == REQUEUE else WORK_REJECT
        cdef delivery_t* delivery
        if multiple and self.settling:
            last, self.settling = self.settling, 0         # excludes what was sent since the first round
        else:
            self.check_tag(tag, multiple)
        at = self.ring_at if multiple else self.place(tag)
        self.walking += 1
        try:
            while at < self.ring_end:
                delivery = &self.ring[at & (self.ring_room - 1)]
                if delivery.tag > last:
                    break
                delivery.withdrawn = 0
                if is_waited_for(delivery):
                    if multiple:
                        if work[0] >= work_end:
                            self.settling = last
                            break
                        work[0] += cost
                    self.settle_one(delivery, how)
                at += 1
        finally:
            self.walking -= 1
        self.advance()
        if self.settling:
            return MORE
        if self.starved:
            self.feed()
        return 0

    cdef int settle_one(self, delivery_t* delivery, int how) except -1:
        cdef claim_t* claim = delivery.claim
        cdef void* consumer = delivery.consumer
        cdef ChannelMember member
        cdef Group group
        self.unacknowledged -= not acknowledges_itself(delivery)
        if delivery.reads:
            delivery.consumer = NULL
            return (<ChannelReader>consumer).acknowledge(claim)
        delivery.consumer = NULL
        member = <ChannelMember>consumer
        group = <Group>member.group
        if group is None:
            return 0
        if how == SETTLE:
            group.settle(claim)
        elif how == REQUEUE:
            group.give_back(claim, 0, True)
        else:
            group.reject(claim, "rejected")
        if member.cancelled and member.held == 0 and self.on_emptied is not None:
            self.on_emptied(member)
        return 0

    def unknown(self, tag):
        raise ProtocolError(REPLY_PRECONDITION_FAILED, f"unknown delivery tag {tag}")

    cdef int forget_claim(self, claim_t* claim) noexcept:
        """Removes a claim that the channel no longer owns. A consumer loses its claims from the oldest on, interleaved
        with others' deliveries, so each search starts where the last one ended."""
        cdef uint64_t at = max(self.forget_at, self.ring_at)
        cdef uint64_t left = self.ring_end - self.ring_at
        cdef delivery_t* delivery
        while left:
            if at >= self.ring_end:
                at = self.ring_at
            delivery = &self.ring[at & (self.ring_room - 1)]
            if delivery.consumer != NULL and delivery.claim == claim:
                self.awaits_no_more(delivery)
                delivery.withdrawn = not acknowledges_itself(delivery)
                self.unacknowledged -= delivery.withdrawn
                delivery.withdrawn &= delivery.tag <= self.sent
                delivery.consumer = NULL
                self.forget_at = at + 1
                break
            at += 1
            left -= 1
        self.advance()
        return 0

    cdef void awaits_no_more(self, delivery_t* delivery) noexcept:
        if delivery.awaited:
            self.link.awaited -= delivery.awaited
            delivery.awaited = 0
            link_mark(self.link)            # a connection paused for pending answers may be read again

    cdef void advance(self) noexcept:
        while self.ring_at < self.ring_end and not is_kept(&self.ring[self.ring_at & (self.ring_room - 1)]):
            self.ring_at += 1
        if self.dense < self.ring_at:
            self.dense = self.ring_at
        self.first = self.ring[self.ring_at & (self.ring_room - 1)].tag if self.ring_at < self.ring_end else self.next

    def withdraw(self, ChannelMember member not None):
        """The consumer is cancelled: makes the messages of its unsent deliveries ready again, as if never claimed."""
        cdef uint64_t at = self.place(self.sent + 1)
        cdef delivery_t* delivery
        self.walking += 1
        try:
            while at < self.ring_end:
                delivery = &self.ring[at & (self.ring_room - 1)]
                if delivery.consumer == <void*>member:
                    self.take_back(delivery)
                at += 1
        finally:
            self.walking -= 1
        self.advance()

    def recover(self):
        """Basic.Recover with requeue: every message sent and not settled becomes ready again, in its place."""
        if self.next > self.first:
            self.settle_now(0, True, REQUEUE, UINT64_MAX)

    def oldest_ms(self):
        """Age of the oldest delivery that awaits an acknowledgement; None: there is none."""
        cdef uint64_t at = self.ring_at
        cdef delivery_t* delivery
        while at < self.ring_end:
            delivery = &self.ring[at & (self.ring_room - 1)]
            if delivery.consumer != NULL and not acknowledges_itself(delivery):
                return self.ledger.node.mono_ms - delivery.at_ms
            at += 1
        return None


cdef inline bint is_kept(const delivery_t* delivery) noexcept:
    """Whether the ring still needs this delivery."""
    return delivery.consumer != NULL or delivery.withdrawn


cdef inline bint acknowledges_itself(const delivery_t* delivery) noexcept:
    if delivery.reads:
        return (<ChannelReader>delivery.consumer).no_ack
    return (<ChannelMember>delivery.consumer).no_ack


cdef inline bint is_waited_for(const delivery_t* delivery) noexcept:
    """Whether the client may acknowledge a delivery that was sent."""
    return delivery.consumer != NULL and not delivery.in_transaction and not acknowledges_itself(delivery)
