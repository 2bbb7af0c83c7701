"""What is done with what the broker sends. Header only."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from bench.load.buckets cimport buckets_add
from bench.load.loop cimport (
    FAIL_CLOSED, FAIL_DISCONNECT, FAIL_MALFORMED, FAIL_MEMORY, FAIL_NONE, FAIL_REFUSED, FAIL_SUBSCRIPTION,
    NUMBER_BITS, PUBLISHER_BITS, TAG_BITS, Loop, loop_fail, loop_mark, loop_wake)
from bench.load.peer cimport (
    RECV_ERROR, RECV_NOTHING, ROLE_CHURN, ROLE_PUBLISHER, ROLE_SUBSCRIBER, STATE_CONNECTING, STATE_READY,
    STATE_SUBSCRIBING, Message, Peer, peer_keep, peer_pending, peer_put, peer_recv)
from bench.load.sequence cimport sequences_take
from bench.load.system cimport MSG_DONTWAIT, MSG_TRUNC, recv

cdef enum:
    READ_MAX = 256 * 1024       # one recv
    PART_MAX = 1024 * 1024      # an incomplete packet that is not skipped over; the longest topic fits 16 times
    SKIP_MIN = 4096             # a PUBLISH with more than this still to come is skipped over, not kept
    DISCARD_MIN = 16384         # … and with more than this, the kernel drops the bytes without copying them
    HEAD_READ = 4096            # after such a one: what to read at first, so that the next is not copied after all

cdef inline void read_peer(Loop* s, Peer* p) noexcept nogil:
    cdef ssize_t got
    cdef size_t start, end, used
    cdef size_t room = READ_MAX
    if p.skip >= DISCARD_MIN and p.tls == NULL and not p.is_ws:
        got = recv(p.fd, s.inbox, p.skip, MSG_DONTWAIT | MSG_TRUNC)
        if got > 0:
            p.skip -= got
            if p.skip == 0:
                deliver(s, p, &p.large)
            return
    if p.discards and p.tls == NULL and not p.is_ws:
        room = HEAD_READ
    while True:
        start = p.part_size
        if start:
            memcpy(s.inbox, p.part, start)
        got = peer_recv(p, s.inbox + start, room)
        if peer_pending(p):
            loop_mark(s, p)
        if got == RECV_NOTHING:
            return
        if got == 0 or got == RECV_ERROR:
            loop_fail(s, p, FAIL_CLOSED, 0)
            return
        end = start + got
        used = read_packets(s, p, s.inbox, end)
        if s.failure != FAIL_NONE:
            return
        if end - used > PART_MAX:
            loop_fail(s, p, FAIL_MALFORMED, s.inbox[used])
            return
        if peer_keep(p, s.inbox + used, end - used) != 0:
            loop_fail(s, p, FAIL_MEMORY, 0)
            return
        # What a TLS socket has decrypted already wakes no epoll.
        if p.tls == NULL or got < READ_MAX:
            return

cdef inline size_t read_packets(Loop* s, Peer* p, const uint8_t* data, size_t end) noexcept nogil:
    """Handle all complete packets; how many bytes they are."""
    cdef size_t at = 0
    cdef size_t body, size
    cdef uint32_t shift
    cdef Message m
    if p.skip:
        if end < p.skip:
            p.skip -= end
            return end
        at = p.skip
        p.skip = 0
        deliver(s, p, &p.large)
    while end - at >= 2 and s.failure == FAIL_NONE:
        size = data[at + 1]
        body = at + 2
        if size & 0x80:
            size &= 0x7F
            shift = 7
            while True:
                if body == end:
                    return at
                if shift > 21:
                    loop_fail(s, p, FAIL_MALFORMED, data[at])
                    return at
                size |= <size_t>(data[body] & 0x7F) << shift
                shift += 7
                body += 1
                if not data[body - 1] & 0x80:
                    break
        if size > end - body:
            if size - (end - body) > SKIP_MIN and data[at] >> 4 == 3 \
                    and take_head(s, data[at], data + body, end - body, size, &p.large):
                p.skip = size - (end - body)
                p.discards = p.skip >= DISCARD_MIN
                return end
            return at
        p.discards = False
        if data[at] >> 4 == 3:
            if not take_head(s, data[at], data + body, size, size, &m):
                loop_fail(s, p, FAIL_MALFORMED, data[at])
                return at
            deliver(s, p, &m)
        else:
            read_other(s, p, data[at], data + body, size)
        at = body + size
    return at

cdef inline bint take_head(Loop* s, uint8_t first, const uint8_t* body, size_t have, size_t size,
                           Message* m) noexcept nogil:
    """Read what we need of a PUBLISH of `size` bytes, `have` of which are there; 0 when they are too few."""
    cdef size_t at, length
    cdef uint32_t shift = 0
    if have < 2:
        return 0
    at = 2 + (body[0] << 8 | body[1])
    m.qos = (first >> 1) & 3
    m.packet_id = 0
    if m.qos:
        if have < at + 2:
            return 0
        m.packet_id = <uint16_t>(body[at] << 8 | body[at + 1])
        at += 2
    if s.version == 5:
        length = 0
        while True:
            if at >= have or shift > 21:
                return 0
            length |= <size_t>(body[at] & 0x7F) << shift
            shift += 7
            at += 1
            if not body[at - 1] & 0x80:
                break
        at += length
    if at > size:
        return 0
    m.readable = size - at >= 16
    if m.readable:
        if have < at + 16:
            return 0
        memcpy(&m.head, body + at, 8)
        memcpy(&m.sent_at, body + at + 8, 8)
    return 1

cdef inline void deliver(Loop* s, Peer* p, const Message* m) noexcept nogil:
    cdef uint32_t publisher, mask
    cdef uint64_t number
    cdef Peer* source
    cdef uint8_t bit
    s.received += 1
    if m.qos == 1:
        acknowledge(s, p, 0x40, m.packet_id)
    elif m.qos == 2:
        acknowledge(s, p, 0x50, m.packet_id)
        bit = <uint8_t>(1 << (m.packet_id & 7))
        if p.unreleased == NULL or p.unreleased[m.packet_id >> 3] & bit:
            # Sent again before our PUBREC arrived: answered, and not a delivery [MQTT-4.3.3-2].
            s.received -= 1
            return
        p.unreleased[m.packet_id >> 3] |= bit
    if not s.checked:
        if s.publishing and not s.interval_ns:
            for publisher in range(s.publishers_attached):
                loop_wake(s, s.peers + s.publisher_at[publisher])
        return
    publisher = <uint32_t>(m.head >> NUMBER_BITS) & ((1 << PUBLISHER_BITS) - 1)
    number = m.head & ((<uint64_t>1 << NUMBER_BITS) - 1)
    if not m.readable or m.head >> (64 - TAG_BITS) != s.tag or publisher >= s.publishers_attached \
            or p.role != ROLE_SUBSCRIBER:
        s.foreign += 1
        return
    source = s.peers + s.publisher_at[publisher]
    if number >= source.next:
        s.foreign += 1
        return
    if not sequences_take(&s.sequences, p.index, publisher, number):
        return
    if s.measuring:
        buckets_add(&s.latency, s.now - m.sent_at if s.now > m.sent_at else 0)
    if s.interval_ns or number < source.base:
        return
    mask = <uint32_t>source.missing_mask
    source.missing[number & mask] -= 1
    if source.missing[number & mask] == 0 and number == source.base:
        while source.base < source.next and source.missing[source.base & mask] == 0:
            source.base += 1
        loop_wake(s, source)

cdef inline void acknowledge(Loop* s, Peer* p, uint8_t first, uint16_t packet_id) noexcept nogil:
    """PUBACK, PUBREC, PUBREL or PUBCOMP, all without properties: four bytes in both versions."""
    cdef uint8_t packet[4]
    packet[0], packet[1] = first, 2
    packet[2], packet[3] = <uint8_t>(packet_id >> 8), <uint8_t>packet_id
    if peer_put(p, packet, 4) != 0:
        loop_fail(s, p, FAIL_MEMORY, 0)
    loop_mark(s, p)

cdef inline void settle(Loop* s, Peer* p, uint16_t packet_id, uint8_t reason) noexcept nogil:
    """The last acknowledgement of a message that we published."""
    if p.role != ROLE_PUBLISHER or packet_id == 0 or packet_id > p.acks_max or p.acks[packet_id] == 0:
        s.foreign += 1
        return
    if s.measuring:
        buckets_add(&s.ack_latency, s.now - p.acks[packet_id])
    p.acks[packet_id] = 0
    p.unacked -= 1
    s.unacked -= 1
    s.acked += 1
    s.refused += reason >= 0x80
    loop_wake(s, p)

cdef inline void read_other(Loop* s, Peer* p, uint8_t first, const uint8_t* body, size_t size) noexcept nogil:
    cdef uint8_t kind = first >> 4
    cdef uint16_t packet_id = <uint16_t>(body[0] << 8 | body[1]) if size >= 2 else 0
    cdef uint8_t reason = body[2] if size >= 3 and s.version == 5 else 0
    if kind == 4 or kind == 7:
        settle(s, p, packet_id, reason)
    elif kind == 5:
        if reason >= 0x80:
            settle(s, p, packet_id, reason)
        else:
            acknowledge(s, p, 0x62, packet_id)
    elif kind == 6:
        if p.unreleased != NULL:
            p.unreleased[packet_id >> 3] &= <uint8_t>~(1 << (packet_id & 7))
        acknowledge(s, p, 0x70, packet_id)
    elif kind == 2:
        read_connack(s, p, body, size)
    elif kind == 9:
        read_suback(s, p, body, size)
    elif kind == 11 and p.role == ROLE_CHURN:
        s.churned += 1
    elif kind == 14:
        loop_fail(s, p, FAIL_DISCONNECT, body[0] if size >= 1 else 0)
    elif kind != 13:
        loop_fail(s, p, FAIL_MALFORMED, first)

cdef inline void read_connack(Loop* s, Peer* p, const uint8_t* body, size_t size) noexcept nogil:
    cdef uint32_t receive_maximum
    if p.state != STATE_CONNECTING or size < 2:
        loop_fail(s, p, FAIL_MALFORMED, 0x20)
        return
    if body[1] != 0:
        loop_fail(s, p, FAIL_REFUSED, body[1])
        return
    if s.version == 5 and p.role == ROLE_PUBLISHER:
        receive_maximum = find_receive_maximum(body + 2, size - 2)
        if receive_maximum < p.acks_max:
            p.acks_max = receive_maximum
    if p.role == ROLE_SUBSCRIBER:
        p.state = STATE_SUBSCRIBING
        peer_put(p, p.template, p.template_size)
        loop_mark(s, p)
        return
    p.state = STATE_READY
    s.connecting -= 1

cdef inline void read_suback(Loop* s, Peer* p, const uint8_t* body, size_t size) noexcept nogil:
    cdef uint8_t code = body[size - 1] if size >= 3 else 0x80
    if p.role == ROLE_CHURN:
        s.churned += 1
    if code >= 0x80:
        loop_fail(s, p, FAIL_SUBSCRIPTION, code)
    elif p.state == STATE_SUBSCRIBING:
        p.state = STATE_READY
        s.connecting -= 1

cdef inline uint32_t find_receive_maximum(const uint8_t* properties, size_t size) noexcept nogil:
    """Receive Maximum of a CONNACK (MQTT 5.0 section 3.2.2.3.3); 65535 when it is absent.

    Sizes of the other properties that may stand there: a broker that sends one we do not know ends the search.
    """
    cdef size_t at = 0
    cdef size_t pairs
    cdef uint8_t identifier
    while at < size and properties[at] & 0x80:
        at += 1
    at += 1
    while at < size:
        identifier = properties[at]
        at += 1
        if identifier == 0x21 and at + 2 <= size:
            return max(<uint32_t>(properties[at] << 8 | properties[at + 1]), <uint32_t>1)
        if identifier in (0x24, 0x25, 0x28, 0x29, 0x2A):
            at += 1
        elif identifier in (0x13, 0x22):
            at += 2
        elif identifier in (0x11, 0x27):
            at += 4
        elif identifier in (0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x26):
            pairs = 2 if identifier == 0x26 else 1
            while pairs > 0 and at + 2 <= size:
                at += 2 + (properties[at] << 8 | properties[at + 1])
                pairs -= 1
        else:
            break
    return 65535
