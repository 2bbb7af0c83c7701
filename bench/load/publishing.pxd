"""What publishers do in a turn: fill their window (closed loop), or send what is due (open loop). Header only."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from bench.load.loop cimport FAIL_MEMORY, NUMBER_BITS, TAG_BITS, Loop, loop_fail, loop_mark, loop_wake
from bench.load.peer cimport (
    ROLE_CHURN, STATE_READY, Peer, peer_pending, peer_put, peer_room, ws_header_size, ws_seal)

cdef enum:
    WRITE_MAX = 256 * 1024      # output gathered per connection and turn
    OPEN_WRITE_MAX = 4 << 20    # open loop: output that may wait for a full socket before messages are left out
    CHURN_LIVE = 100            # subscriptions alive at a time on the connection that comes and goes
    FRESH_DIGITS = 7

cdef inline void publish_ready(Loop* s) noexcept nogil:
    cdef uint32_t count = s.ready_count
    cdef uint32_t i
    cdef Peer* p
    s.ready_count = 0
    for i in range(count):
        p = s.peers + s.ready[i]
        p.queued = False
        if p.state == STATE_READY and not p.blocked:
            publish_window(s, p)

cdef inline void publish_window(Loop* s, Peer* p) noexcept nogil:
    cdef uint64_t room, taken
    cdef uint64_t turn = s.batch
    if s.fanout == 0:
        room = WRITE_MAX // p.template_size + 1
    elif s.checked:
        room = p.missing_mask + 1
        taken = p.next - p.base
        # The share of the window, which is not a power of two as the ring is.
        room = s.window // s.publishers + (p.index < s.window % s.publishers)
        room = room if room > 0 else 1
        room = room - taken if room > taken else 0
    else:
        taken = s.sent - s.received // s.fanout
        room = s.window - taken if s.window > taken else 0
    if p.id_at and p.acks_max - p.unacked < room:
        room = p.acks_max - p.unacked
    while room > 0 and turn > 0 and peer_pending(p) < WRITE_MAX:
        publish(s, p, s.now)
        room -= 1
        turn -= 1
    if room > 0 or (s.fanout == 0 and not p.id_at):
        loop_wake(s, p)

cdef inline void publish_due(Loop* s) noexcept nogil:
    """Message k of an open loop goes to publisher k modulo their number, at start + k intervals."""
    cdef Peer* p
    while s.due_at <= s.now:
        p = s.peers + s.publisher_at[s.due_number % s.publishers]
        if p.state != STATE_READY or (p.id_at and p.unacked >= p.acks_max) or peer_pending(p) > OPEN_WRITE_MAX:
            s.overruns += 1
        else:
            if s.now - s.due_at > s.late_max:
                s.late_max = s.now - s.due_at
            # A message that waits for a full socket is late through the broker: its latency counts from its time.
            publish(s, p, s.due_at if p.blocked else s.now)
        s.due_number += 1
        s.due_at = s.open_start + s.due_number * s.interval_ns

cdef inline void publish(Loop* s, Peer* p, uint64_t stamp) noexcept nogil:
    cdef size_t header = ws_header_size(p.template_size) if p.is_ws else 0
    cdef uint8_t* frame = peer_room(p, header + p.template_size)
    cdef uint8_t* packet = frame + header
    cdef uint64_t head
    cdef uint64_t number = p.next
    cdef int i
    cdef uint8_t digit
    if frame == NULL:
        loop_fail(s, p, FAIL_MEMORY, 0)
        return
    memcpy(packet, p.template, p.template_size)
    if p.fresh_at:
        for i in range(FRESH_DIGITS):
            digit = (number >> (4 * (FRESH_DIGITS - 1 - i))) & 15
            packet[p.fresh_at + i] = digit + (48 if digit < 10 else 87)
    if p.id_at:
        while True:
            p.acks_next = p.acks_next + 1 if p.acks_next < p.acks_max else 1
            if p.acks[p.acks_next] == 0:
                break
        p.acks[p.acks_next] = stamp
        p.unacked += 1
        s.unacked += 1
        packet[p.id_at] = <uint8_t>(p.acks_next >> 8)
        packet[p.id_at + 1] = <uint8_t>p.acks_next
    if p.head_at:
        head = (s.tag << (64 - TAG_BITS)) | (<uint64_t>p.index << NUMBER_BITS) | number
        memcpy(packet + p.head_at, &head, 8)
        memcpy(packet + p.head_at + 8, &stamp, 8)
        if not s.interval_ns:
            p.missing[number & p.missing_mask] = <uint32_t>s.fanout
    if s.fanout == 0:
        p.base += 1
    p.next = number + 1
    s.sent += 1
    if p.is_ws:
        ws_seal(&p.ws, frame, header, p.template_size, 2)
    p.out_end += header + p.template_size
    loop_mark(s, p)

cdef inline void churn(Loop* s) noexcept nogil:
    cdef uint32_t i
    cdef Peer* p = NULL
    for i in range(s.peers_count):
        if s.peers[i].role == ROLE_CHURN:
            p = s.peers + i
    if p == NULL or p.state != STATE_READY:
        return
    while s.churn_due <= s.now:
        if p.blocked and peer_pending(p) > WRITE_MAX:
            s.churn_due = s.now + s.churn_interval
            return
        churn_packet(s, p, s.churn_number, True)
        if s.churn_number >= CHURN_LIVE:
            churn_packet(s, p, s.churn_number - CHURN_LIVE, False)
        s.churn_number += 1
        s.churn_due += s.churn_interval

cdef inline void churn_packet(Loop* s, Peer* p, uint64_t number, bint subscribe) noexcept nogil:
    """SUBSCRIBE to, or UNSUBSCRIBE from, the filter churn/<number in hexadecimal>."""
    cdef uint8_t packet[32]
    cdef int at = 2
    cdef int i
    cdef uint8_t digit
    cdef uint16_t packet_id = <uint16_t>((number * 2 + subscribe) % 65535 + 1)
    packet[0] = 0x82 if subscribe else 0xA2
    packet[at], packet[at + 1] = <uint8_t>(packet_id >> 8), <uint8_t>packet_id
    at += 2
    if s.version == 5:
        packet[at] = 0
        at += 1
    packet[at], packet[at + 1] = 0, 14
    memcpy(packet + at + 2, b"churn/", 6)
    for i in range(8):
        digit = (number >> (28 - 4 * i)) & 15
        packet[at + 8 + i] = digit + (48 if digit < 10 else 87)
    at += 16
    if subscribe:
        packet[at] = 0
        at += 1
    packet[1] = <uint8_t>(at - 2)
    peer_put(p, packet, at)
    loop_mark(s, p)
