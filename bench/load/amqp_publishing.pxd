"""What AMQP publishers do in a turn: fill their window (closed loop), or send what is due (open loop). Header only."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from bench.load.amqp_loop cimport FAULT_MEMORY, AmqpLoop, AmqpPeer, amqp_delivered, amqp_fail, amqp_mark, amqp_wake
from bench.load.loop cimport NUMBER_BITS, TAG_BITS
from bench.load.peer cimport STATE_READY, peer_pending, peer_room

cdef enum:
    WRITE_MAX = 256 * 1024      # output gathered per connection and turn
    OPEN_WRITE_MAX = 4 << 20    # open loop: output that may wait for a full socket before messages are left out

cdef inline void amqp_publish_ready(AmqpLoop* s) noexcept nogil:
    cdef uint32_t count = s.ready_count
    cdef uint32_t i
    cdef AmqpPeer* p
    s.ready_count = 0
    for i in range(count):
        p = s.peers + s.ready[i]
        p.io.queued = False
        if p.io.state == STATE_READY and not p.io.blocked and not p.paused:
            amqp_publish_window(s, p)

cdef inline uint64_t amqp_lag_room(const AmqpLoop* s) noexcept nogil:
    """How many messages more consumers may be behind."""
    cdef uint64_t limit = s.lag * s.fanout + amqp_delivered(s) + s.written_off
    cdef uint64_t expected = s.sent * s.fanout
    return (limit - expected + s.fanout - 1) // s.fanout if limit > expected else 0

cdef inline bint amqp_may_publish(const AmqpLoop* s, const AmqpPeer* p) noexcept nogil:
    """Whether the ring of times has a place for the next tag: one late confirm holds up those behind it."""
    return not s.confirms or p.io.next + 1 - p.oldest <= p.sent_mask

cdef inline void amqp_publish_window(AmqpLoop* s, AmqpPeer* p) noexcept nogil:
    cdef uint64_t room = WRITE_MAX // p.io.template_size + 1
    cdef uint64_t behind
    if s.confirms:
        room = p.share - p.unconfirmed if p.share > p.unconfirmed else 0
    if s.lag and s.fanout:
        behind = amqp_lag_room(s)
        if behind < room:
            room = behind
            s.starved = True
    cdef uint64_t turn = s.batch
    while room > 0 and turn > 0 and peer_pending(&p.io) < WRITE_MAX and amqp_may_publish(s, p):
        amqp_publish(s, p, s.now)
        room -= 1
        turn -= 1
    if (room > 0 and amqp_may_publish(s, p)) or (not s.confirms and not s.starved):
        amqp_wake(s, p)

cdef inline void amqp_publish_due(AmqpLoop* s) noexcept nogil:
    """Message k of an open loop goes to publisher k modulo their number, at start + k intervals."""
    cdef AmqpPeer* p
    while s.due_at <= s.now:
        p = s.peers + s.publisher_at[s.due_number % s.publishers]
        if p.io.state != STATE_READY or p.paused or not amqp_may_publish(s, p) \
                or peer_pending(&p.io) > OPEN_WRITE_MAX:
            s.overruns += 1
        else:
            if s.now - s.due_at > s.late_max:
                s.late_max = s.now - s.due_at
            # A message that waits for a full socket is late through the broker: its latency counts from its time.
            amqp_publish(s, p, s.due_at if p.io.blocked else s.now)
        s.due_number += 1
        s.due_at = s.open_start + s.due_number * s.interval_ns

cdef inline void amqp_publish(AmqpLoop* s, AmqpPeer* p, uint64_t stamp) noexcept nogil:
    """One copy of the template, with its number and time. It must fit the ring: see amqp_may_publish."""
    cdef uint8_t* packet = peer_room(&p.io, p.io.template_size)
    cdef uint64_t number = p.io.next
    cdef uint64_t head
    if packet == NULL:
        amqp_fail(s, p, FAULT_MEMORY, 0)
        return
    memcpy(packet, p.io.template, p.io.template_size)
    if p.io.head_at:
        head = (s.tag << (64 - TAG_BITS)) | (<uint64_t>p.io.index << NUMBER_BITS) | number
        memcpy(packet + p.io.head_at, &head, 8)
        memcpy(packet + p.io.head_at + 8, &stamp, 8)
    if s.confirms:
        p.sent_at[(number + 1) & p.sent_mask] = stamp
        p.unconfirmed += 1
        s.unconfirmed += 1
    p.io.next = number + 1
    s.sent += 1
    p.io.out_end += p.io.template_size
    amqp_mark(s, p)
