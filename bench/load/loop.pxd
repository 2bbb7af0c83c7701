"""The state of a running engine, as C. Header only; publishing.pxd and reading.pxd are what is done to it."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from bench.load.buckets cimport Buckets
from bench.load.peer cimport STATE_CLOSED, Peer
from bench.load.sequence cimport Sequences

cdef enum:
    # Bits of a payload's first eight bytes, see engine.pyx.
    TAG_BITS = 12
    PUBLISHER_BITS = 16
    NUMBER_BITS = 36

cdef enum Failure:
    FAIL_NONE = 0
    FAIL_CLOSED = 1
    FAIL_REFUSED = 2
    FAIL_SUBSCRIPTION = 3
    FAIL_MALFORMED = 4
    FAIL_MEMORY = 5
    FAIL_DISCONNECT = 6

cdef struct Loop:
    Peer* peers                 # in the order of attaching; epoll's tag is the index
    uint32_t peers_count
    uint32_t peers_room
    int epoll
    uint8_t version             # 4 or 5
    uint8_t* inbox              # PART_MAX + READ_MAX bytes, shared by all reads
    uint32_t connecting         # attached and not yet STATE_READY
    uint32_t* dirty             # connections with output; invariant: each at most once, and Peer.dirty is set
    uint32_t dirty_count
    uint32_t* ready             # publishers that may have room in their window; invariant: as dirty, with Peer.queued
    uint32_t ready_count
    uint32_t* publisher_at      # publisher -> index among peers
    uint32_t publishers         # announced; and attached so far
    uint32_t publishers_attached
    uint32_t subscribers
    uint32_t subscribers_attached
    uint64_t tag                # of this run's messages
    uint64_t window             # closed loop: messages in flight in all
    uint64_t batch              # closed loop: most messages per publisher and turn
    uint64_t fanout             # deliveries that each message is to have
    bint checked                # payloads carry numbers
    bint publishing
    bint measuring              # latencies are recorded
    uint64_t now                # CLOCK_MONOTONIC in ns, read once or twice per turn
    # open loop
    uint64_t interval_ns        # between messages; 0: closed loop
    uint64_t open_start
    uint64_t due_at             # when message due_number is to be sent
    uint64_t due_number
    uint64_t late_max
    # subscriptions that come and go
    uint64_t churn_interval     # 0: none
    uint64_t churn_due
    uint64_t churn_number
    # counters: see Engine.counts
    Sequences sequences
    Buckets latency
    Buckets ack_latency
    uint64_t sent
    uint64_t received
    uint64_t acked
    uint64_t unacked
    uint64_t refused
    uint64_t overruns
    uint64_t foreign
    uint64_t churned
    uint64_t stalls
    uint64_t progress           # received + acked when they last changed, and when that was
    uint64_t progress_at
    # the first thing that went wrong ends the run
    Failure failure
    uint32_t failed_peer
    int failed_code

cdef inline bint loop_idle(Loop* s) noexcept nogil:
    cdef uint64_t got = s.sequences.first if s.checked else s.received
    return got >= s.sent * s.fanout and s.unacked == 0

cdef inline void loop_fail(Loop* s, Peer* p, Failure failure, int code) noexcept nogil:
    if s.failure == FAIL_NONE:
        s.failure, s.failed_peer, s.failed_code = failure, p.number, code
    p.state = STATE_CLOSED

cdef inline void loop_mark(Loop* s, Peer* p) noexcept nogil:
    if not p.dirty:
        p.dirty = True
        s.dirty[s.dirty_count] = p.number
        s.dirty_count += 1

cdef inline void loop_wake(Loop* s, Peer* p) noexcept nogil:
    if not p.queued:
        p.queued = True
        s.ready[s.ready_count] = p.number
        s.ready_count += 1
