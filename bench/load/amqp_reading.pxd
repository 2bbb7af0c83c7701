"""What is done with what an AMQP broker sends: deliveries, confirms, and the few methods it may send unasked.

Header only. The specification's numbers: basic is class 60, connection 10, channel 20.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from bench.load.amqp_loop cimport (
    EXPECTS_BODY, EXPECTS_HEADER, EXPECTS_METHOD, FAULT_CANCELLED, FAULT_CLOSED, FAULT_MALFORMED, FAULT_MEMORY,
    FAULT_CLOSE_METHOD, FAULT_NONE, FRAME_BODY, FRAME_END, FRAME_HEAD, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD,
    HEAD_BYTES,
    TEXT_MAX, AmqpLoop, AmqpPeer, amqp_fail, amqp_mark, amqp_wake, amqp_wake_all)
from bench.load.buckets cimport buckets_add
from bench.load.loop cimport NUMBER_BITS, PUBLISHER_BITS, TAG_BITS
from bench.load.peer cimport (
    RECV_ERROR, RECV_NOTHING, ROLE_PUBLISHER, ROLE_SUBSCRIBER, peer_keep, peer_put, peer_recv)
from bench.load.sequence cimport sequences_take
from fluxmq._core.wire.primitives cimport peek_u16, peek_u32, peek_u64, put_u64

cdef enum:
    READ_MAX = 256 * 1024       # one recv
    INBOX_MAX = 512 * 1024      # that, after what was left of an incomplete frame
    CHANNEL = 1                 # the only one of each connection
    # class << 16 | method
    CONNECTION_CLOSE = 10 << 16 | 50
    CONNECTION_BLOCKED = 10 << 16 | 60
    CONNECTION_UNBLOCKED = 10 << 16 | 61
    CHANNEL_FLOW = 20 << 16 | 20
    CHANNEL_CLOSE = 20 << 16 | 40
    BASIC_CANCEL = 60 << 16 | 30
    BASIC_RETURN = 60 << 16 | 50
    BASIC_DELIVER = 60 << 16 | 60
    BASIC_ACK = 60 << 16 | 80
    BASIC_NACK = 60 << 16 | 120

cdef inline void amqp_read(AmqpLoop* s, AmqpPeer* p) noexcept nogil:
    cdef ssize_t got
    cdef size_t kept
    while True:
        kept = p.io.part_size
        if kept:
            memcpy(s.inbox, p.io.part, kept)
        got = peer_recv(&p.io, s.inbox + kept, READ_MAX)
        if got == RECV_NOTHING:
            return
        if got == 0 or got == RECV_ERROR:
            amqp_fail(s, p, FAULT_CLOSED, 0)
            return
        amqp_take(s, p, s.inbox, kept + got)
        # What a TLS socket has decrypted already wakes no epoll.
        if s.fault != FAULT_NONE or p.io.tls == NULL or got < READ_MAX:
            return

cdef inline void amqp_take(AmqpLoop* s, AmqpPeer* p, const uint8_t* data, size_t end) noexcept nogil:
    """Handle all complete frames of data[:end] and keep the rest, which is less than a frame."""
    cdef size_t at = 0
    cdef uint32_t size
    while end - at >= FRAME_HEAD and s.fault == FAULT_NONE:
        size = peek_u32(data + at + 3)
        if size > s.frame_max:
            amqp_fail(s, p, FAULT_MALFORMED, data[at])
            return
        if end - at < <size_t>size + FRAME_HEAD + 1:
            break
        if data[at + FRAME_HEAD + size] != FRAME_END:
            amqp_fail(s, p, FAULT_MALFORMED, data[at])
            return
        amqp_frame(s, p, data[at], data + at + FRAME_HEAD, size)
        at += <size_t>size + FRAME_HEAD + 1
    if peer_keep(&p.io, data + at, end - at) != 0:
        amqp_fail(s, p, FAULT_MEMORY, 0)

cdef inline void amqp_frame(AmqpLoop* s, AmqpPeer* p, uint8_t kind, const uint8_t* body, uint32_t size) noexcept nogil:
    cdef uint32_t take
    if kind == FRAME_BODY and p.expects == EXPECTS_BODY and size <= p.body_left:
        if p.head_size < HEAD_BYTES:
            take = min(size, HEAD_BYTES - p.head_size)
            memcpy(p.head + p.head_size, body, take)
            p.head_size += take
        p.body_left -= size
    elif kind == FRAME_HEADER and p.expects == EXPECTS_HEADER and size >= 14:
        p.body_left = peek_u64(body + 4)
        p.head_size = 0
        p.expects = EXPECTS_BODY
    elif kind == FRAME_METHOD and size >= 4:
        amqp_method(s, p, peek_u32(body), body + 4, size - 4)
        return
    elif kind == FRAME_HEARTBEAT:
        return
    else:
        amqp_fail(s, p, FAULT_MALFORMED, kind)
        return
    if p.body_left == 0:
        p.expects = EXPECTS_METHOD
        if p.returned:
            s.returned += 1
        else:
            amqp_deliver(s, p)

cdef inline void amqp_method(AmqpLoop* s, AmqpPeer* p, uint32_t which, const uint8_t* body,
                             uint32_t size) noexcept nogil:
    cdef uint32_t at
    if which == BASIC_DELIVER and p.expects == EXPECTS_METHOD:
        at = 1 + body[0] if size else 0
        if size < at + 9 or size == 0:
            amqp_fail(s, p, FAULT_MALFORMED, FRAME_METHOD)
            return
        p.tag = peek_u64(body + at)
        p.redelivered = body[at + 8] & 1
        p.returned = False
        p.expects = EXPECTS_HEADER
    elif (which == BASIC_ACK or which == BASIC_NACK) and size >= 9:
        amqp_confirm(s, p, peek_u64(body), body[8] & 1, which == BASIC_NACK)
    elif which == BASIC_RETURN and p.expects == EXPECTS_METHOD:
        p.returned = True
        p.expects = EXPECTS_HEADER
    elif which == CONNECTION_CLOSE or which == CHANNEL_CLOSE:
        amqp_closed(s, p, body, size)
    elif which == BASIC_CANCEL:
        amqp_fail(s, p, FAULT_CANCELLED, 0)
    elif which == CONNECTION_BLOCKED or which == CONNECTION_UNBLOCKED:
        amqp_pause(s, p, which == CONNECTION_BLOCKED)
    elif which == CHANNEL_FLOW and size >= 1:
        amqp_pause(s, p, not body[0] & 1)
        amqp_flow_ok(s, p, body[0] & 1)
    # Anything else is an answer that nobody waits for, such as to a close.

cdef inline void amqp_closed(AmqpLoop* s, AmqpPeer* p, const uint8_t* body, uint32_t size) noexcept nogil:
    cdef uint32_t length
    if s.fault == FAULT_NONE and size >= 3:
        length = min(<uint32_t>body[2], size - 3)
        memcpy(s.fault_text, body + 3, min(length, <uint32_t>TEXT_MAX - 1))
        s.fault_text[min(length, <uint32_t>TEXT_MAX - 1)] = 0
    amqp_fail(s, p, FAULT_CLOSE_METHOD, peek_u16(body) if size >= 2 else 0)

cdef inline void amqp_pause(AmqpLoop* s, AmqpPeer* p, bint on) noexcept nogil:
    if p.paused == on:
        return
    p.paused = on
    if on:
        s.pauses += 1
        s.paused += 1
    else:
        s.paused -= 1
        if p.io.role == ROLE_PUBLISHER:
            amqp_wake(s, p)

cdef inline void amqp_put(AmqpLoop* s, AmqpPeer* p, const uint8_t* packet, size_t size) noexcept nogil:
    if peer_put(&p.io, packet, size) != 0:
        amqp_fail(s, p, FAULT_MEMORY, 0)
    amqp_mark(s, p)

cdef inline void amqp_flow_ok(AmqpLoop* s, AmqpPeer* p, uint8_t active) noexcept nogil:
    cdef uint8_t[13] packet = [FRAME_METHOD, 0, CHANNEL, 0, 0, 0, 5, 0, 20, 0, 21, 0, FRAME_END]
    packet[11] = active
    amqp_put(s, p, packet, 13)

cdef inline void amqp_acknowledge(AmqpLoop* s, AmqpPeer* p, bint multiple) noexcept nogil:
    """basic.ack of the delivery that came last, or of all up to it."""
    cdef uint8_t[21] packet = [FRAME_METHOD, 0, CHANNEL, 0, 0, 0, 13, 0, 60, 0, 80,
                               0, 0, 0, 0, 0, 0, 0, 0, 0, FRAME_END]
    put_u64(packet + 11, p.tag)
    packet[19] = multiple
    p.unacked = 0
    amqp_put(s, p, packet, 21)

cdef inline void amqp_settle(AmqpLoop* s, AmqpPeer* p, uint64_t tag, bint refused) noexcept nogil:
    cdef uint64_t* sent_at = p.sent_at + (tag & p.sent_mask)
    if sent_at[0] == 0:
        return
    if s.measuring:
        buckets_add(&s.confirm_latency, s.now - sent_at[0] if s.now > sent_at[0] else 0)
    sent_at[0] = 0
    p.unconfirmed -= 1
    s.unconfirmed -= 1
    s.confirmed += 1
    s.refused += refused

cdef inline void amqp_confirm(AmqpLoop* s, AmqpPeer* p, uint64_t tag, bint multiple, bint refused) noexcept nogil:
    """The broker's answer to a publication, or to all up to it (tag 0: to all)."""
    cdef uint64_t one
    if multiple and tag == 0:
        tag = p.io.next
    if p.io.role != ROLE_PUBLISHER or not s.confirms or tag > p.io.next \
            or (not multiple and (tag < p.oldest or p.sent_at[tag & p.sent_mask] == 0)):
        s.foreign += 1
        return
    if multiple:
        for one in range(p.oldest, tag + 1):
            amqp_settle(s, p, one, refused)
    else:
        amqp_settle(s, p, tag, refused)
    while p.oldest <= p.io.next and p.sent_at[p.oldest & p.sent_mask] == 0:
        p.oldest += 1
    amqp_wake(s, p)

cdef inline void amqp_deliver(AmqpLoop* s, AmqpPeer* p) noexcept nogil:
    cdef uint64_t head, stamp, number
    cdef uint32_t publisher
    s.received += 1
    s.redelivered += p.redelivered
    if s.ack_every:
        p.unacked += 1
        if p.unacked >= s.ack_every:
            amqp_acknowledge(s, p, s.ack_every > 1)
    if s.starved:
        s.starved = False
        amqp_wake_all(s)
    if not s.checked:
        return
    memcpy(&head, p.head, 8)
    memcpy(&stamp, p.head + 8, 8)
    publisher = <uint32_t>(head >> NUMBER_BITS) & ((1 << PUBLISHER_BITS) - 1)
    number = head & ((<uint64_t>1 << NUMBER_BITS) - 1)
    if p.head_size < HEAD_BYTES or head >> (64 - TAG_BITS) != s.tag or publisher >= s.publishers_attached \
            or p.io.role != ROLE_SUBSCRIBER or number >= s.peers[s.publisher_at[publisher]].io.next:
        s.foreign += 1
        return
    if sequences_take(&s.sequences, p.io.index, publisher, number) and s.measuring:
        buckets_add(&s.latency, s.now - stamp if s.now > stamp else 0)
