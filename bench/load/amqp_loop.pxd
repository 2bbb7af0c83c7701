"""The state of a running AMQP engine, as C: its connections, and what they share. Header only.

Socket, buffers and sequence numbers of a connection are a Peer, as in the MQTT engine; amqp_publishing.pxd and
amqp_reading.pxd are what is done to it.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from bench.load.buckets cimport Buckets
from bench.load.peer cimport STATE_CLOSED, Peer, peer_free
from bench.load.sequence cimport Sequences

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_HEAD = 7              # type, channel, size
    HEAD_BYTES = 16             # of a payload: run, publisher, number; time
    TEXT_MAX = 256              # a short string

cdef enum Fault:
    FAULT_NONE = 0
    FAULT_CLOSED = 1            # the connection ended
    FAULT_MALFORMED = 2
    FAULT_MEMORY = 3
    FAULT_CLOSE_METHOD = 4      # connection.close or channel.close, with a code and a text
    FAULT_CANCELLED = 5         # basic.cancel: the queue is gone

cdef enum Expects:
    EXPECTS_METHOD = 0
    EXPECTS_HEADER = 1
    EXPECTS_BODY = 2

cdef struct AmqpPeer:
    Peer io
    bint paused                 # connection.blocked or channel.flow: it must not publish
    # publisher; its channel counts publications from 1, so message n (from 0) has delivery tag n + 1
    uint64_t* sent_at           # [tag & sent_mask]: ns; 0: settled
    uint64_t sent_mask
    uint64_t oldest             # invariant: every tag below is settled
    uint64_t unconfirmed
    uint64_t share              # of the window
    # the message that is arriving
    Expects expects
    bint returned               # by basic.return: not a delivery
    bint redelivered
    uint64_t tag
    uint64_t body_left
    uint32_t head_size          # octets of `head` that are there
    uint8_t head[HEAD_BYTES]
    # consumer
    uint32_t unacked            # deliveries since the last acknowledgement

cdef struct AmqpLoop:
    AmqpPeer* peers             # in the order of attaching; epoll's tag is the index
    uint32_t peers_count
    uint32_t peers_room
    int epoll
    uint8_t* inbox              # INBOX_MAX bytes, shared by all reads
    uint32_t frame_max
    uint32_t* dirty             # connections with output; invariant: each at most once, and io.dirty is set
    uint32_t dirty_count
    uint32_t* ready             # publishers that may have room in their window; as dirty, with io.queued
    uint32_t ready_count
    uint32_t* publisher_at      # publisher -> index among peers
    uint32_t publishers         # announced; and attached so far
    uint32_t publishers_attached
    uint32_t consumers
    uint32_t consumers_attached
    uint64_t tag                # of this run's messages
    uint64_t window             # closed loop: messages without a confirm in all
    uint64_t lag                # closed loop: messages that consumers are behind in all; 0: no bound
    uint64_t batch              # closed loop: most messages per publisher and turn
    uint64_t fanout             # deliveries that each message is to have
    uint32_t ack_every          # 0: acknowledgement is automatic
    bint confirms
    bint checked                # payloads carry numbers
    bint publishing
    bint measuring              # latencies are recorded
    uint64_t now                # CLOCK_MONOTONIC in ns, read once or twice per turn
    bint starved                # a publisher waits for consumers to catch up
    uint32_t first_woken        # … and this one goes first the next time, so that none takes all the room
    # open loop
    uint64_t interval_ns        # between messages; 0: closed loop
    uint64_t open_start
    uint64_t due_at             # when message due_number is to be sent
    uint64_t due_number
    uint64_t late_max
    # counters: see AmqpEngine.counts
    Sequences sequences
    Buckets latency
    Buckets confirm_latency
    uint64_t sent
    uint64_t received
    uint64_t confirmed
    uint64_t unconfirmed
    uint64_t refused
    uint64_t returned
    uint64_t redelivered
    uint64_t foreign
    uint64_t overruns
    uint64_t pauses
    uint32_t paused             # connections now
    # a closed loop in which nothing moves
    uint64_t stall_ns
    uint64_t stalls
    uint64_t written_off        # deliveries that are no longer waited for
    uint64_t forgotten          # publications whose confirm is no longer waited for
    uint64_t progress           # received + confirmed when they last changed, and when that was
    uint64_t progress_at
    # the first thing that went wrong ends the run
    Fault fault
    uint32_t fault_peer
    uint32_t fault_code
    char fault_text[TEXT_MAX]

cdef inline void amqp_free(AmqpPeer* p) noexcept nogil:
    peer_free(&p.io)
    free(p.sent_at)

cdef inline uint64_t amqp_delivered(const AmqpLoop* s) noexcept nogil:
    return s.sequences.first if s.checked else s.received

cdef inline bint amqp_idle(const AmqpLoop* s) noexcept nogil:
    return amqp_delivered(s) >= s.sent * s.fanout and s.unconfirmed == 0

cdef inline void amqp_fail(AmqpLoop* s, AmqpPeer* p, Fault fault, uint32_t code) noexcept nogil:
    if s.fault == FAULT_NONE:
        s.fault, s.fault_peer, s.fault_code = fault, p.io.number, code
    p.io.state = STATE_CLOSED

cdef inline void amqp_mark(AmqpLoop* s, AmqpPeer* p) noexcept nogil:
    if not p.io.dirty:
        p.io.dirty = True
        s.dirty[s.dirty_count] = p.io.number
        s.dirty_count += 1

cdef inline void amqp_wake(AmqpLoop* s, AmqpPeer* p) noexcept nogil:
    if not p.io.queued:
        p.io.queued = True
        s.ready[s.ready_count] = p.io.number
        s.ready_count += 1

cdef inline void amqp_wake_all(AmqpLoop* s) noexcept nogil:
    cdef uint32_t i
    if s.publishers_attached == 0:
        return
    s.first_woken = (s.first_woken + 1) % s.publishers_attached
    for i in range(s.publishers_attached):
        amqp_wake(s, s.peers + s.publisher_at[(s.first_woken + i) % s.publishers_attached])
