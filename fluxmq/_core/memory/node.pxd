"""State shared by all links, sessions and routes of one node: clocks of the turn, list of dirty links, counters.

Header only. One node_t belongs to one Hub; one thread uses it. The poller sets the clocks after each wait, and so does
Hub.refresh_clock for what happens between two turns; all other code reads the time here, so that a test can set it.

    now_ms      wall clock: only for timestamps shown to users (when a message arrived, `since`)
    steady_ms   steady clock: for deadlines, and for every duration that outlives a turn. It starts as the wall clock
                and then advances with elapsed time, including time asleep; setting the wall clock does not move it.
                Deadlines on disk use it, and a restart continues it (Hub.resume_clock)
    mono_ms     monotonic clock, without time asleep: for time-outs that end with the process and must not expire
                because the machine slept (keep alive, connections, leases)
"""
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from posix.time cimport CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

cdef enum:
    LEAD_SLACK = 2              # ms: error of the difference of two clocks that are read one after the other

# Cost of operations in units of about 20 ns, to divide a turn fairly: a connection handles packets until its share is
# used up and continues in the next round (net/transport.pxd). The cost is counted, not measured, so that tests are
# deterministic; an inaccurate figure only shifts shares between kinds of packets.
cdef enum:
    WORK_HOP = 3                # one delivery
    WORK_ROUTE = 8              # a topic looked up
    WORK_RETAIN = 200           # a retained message set, replaced or cleared
    WORK_SUBSCRIPTION = 150     # one filter of SUBSCRIBE or UNSUBSCRIBE, queue binding
    WORK_ASK = 250              # a call of the cold half for a hot packet
    WORK_COLD = 800             # a packet of the cold half
    WORK_ACCEPT = 1500          # a connection accepted
    WORK_CONNECT = 4000         # CONNECT, the upgrade to WebSocket, methods of an AMQP connection
    WORK_HANDSHAKE = 40000      # a step of a TLS handshake
    # Shares. A round of all connections is 5 ms; a connection's share is at least four cold packets.
    WORK_ROUND = 262144
    WORK_SHARE_MAX = 65536      # more than 256 KiB of small QoS 0 messages to one subscriber
    WORK_SHARE_MIN = 4096

cdef struct counters_t:
    uint64_t connections_accepted
    uint64_t packets_received[16]       # by packet type
    uint64_t packets_sent[16]
    uint64_t messages_received[3]       # by QoS
    uint64_t messages_sent[3]
    uint64_t bytes_received
    uint64_t bytes_sent
    uint64_t dropped_buffer_full        # QoS 0 to a link over its high water
    uint64_t dropped_queue_full         # evicted from, or refused by, a session's queue
    uint64_t dropped_expired
    uint64_t dropped_too_large          # over the client's Maximum Packet Size
    uint64_t dropped_no_connection      # shared subscription, QoS 0, nobody connected
    uint64_t dropped_peer_full          # QoS 0 to another node that has not acknowledged enough
    uint64_t passed_on                  # received QoS 0 messages that were forwarded unchanged
    uint64_t unrouted                   # publishes that matched no subscription
    uint64_t route_hits
    uint64_t route_misses
    uint64_t protocol_errors
    uint64_t publish_denied
    uint64_t reads                      # recv calls that returned bytes
    uint64_t flushes                    # send calls
    uint64_t turns

cdef struct gauges_t:
    int64_t inflight                    # messages sent and not yet acknowledged, all sessions
    int64_t queued                      # messages waiting in sessions
    int64_t queued_bytes
    int64_t claims                      # queue messages that consumers hold or that wait for redelivery
    int64_t limited                     # consumers that get nothing until they settle messages

cdef struct node_t:
    void* tap                           # tap_t*, while anything is recorded; memory/tap.pxd
    uint32_t recording                  # number of the last tap
    uint64_t numbers                    # number of the last link made
    void* dirty                         # link_t*: links with bytes to send, newest first
    int64_t now_ms                      # wall clock of this turn, ms since the epoch
    int64_t steady_ms                   # steady clock of this turn, ms
    int64_t mono_ms                     # monotonic clock of this turn, ms
    int64_t steady_base                 # steady clock minus the time since boot
    bint stamped                        # steady_base is known
    int64_t serve_until_ms              # ms since boot: from then on nothing is handled or sent. INT64_MAX: never
    bint simulated                      # the clocks are a test's: none is read in the middle of a turn
    bint timed                          # a poller reads the machine's clocks
    int64_t wall_lead                   # wall clock minus steady clock, the same until one of them was set (LEAD_SLACK)
    uint64_t turn                       # number of this turn
    uint32_t member_claims_max          # limit of claims of a consumer without a limit of its own
    int64_t claims_max                  # limit of claims of the node: no connection may claim more than are left
    uint64_t work                       # work done so far, in units (WORK_*); never decreases
    uint64_t work_share                 # units for each connection in this round
    uint64_t work_round                 # value of `work` at which this round ends
    counters_t counters
    gauges_t gauges


# Whether the node's lease has ended by now. Reads the clock, but only in a cluster.
cdef inline bint is_fenced(const node_t* node) noexcept nogil:
    cdef timespec boot
    if node.serve_until_ms == INT64_MAX:
        return 0
    if node.simulated:
        return node.steady_ms - node.steady_base >= node.serve_until_ms
    clock_gettime(CLOCK_BOOTTIME, &boot)
    return <int64_t>boot.tv_sec * 1000 + boot.tv_nsec // 1000000 >= node.serve_until_ms

cdef inline int64_t milliseconds(const timespec* at) noexcept nogil:
    return <int64_t>at.tv_sec * 1000 + at.tv_nsec // 1000000

# boot_ms: time since the machine booted, including time asleep.
cdef inline void stamp_clocks(node_t* node, int64_t wall_ms, int64_t boot_ms, int64_t mono_ms) noexcept nogil:
    cdef int64_t lead
    if not node.stamped:
        node.stamped = 1
        node.steady_base = wall_ms - boot_ms
    node.now_ms = wall_ms
    node.steady_ms = boot_ms + node.steady_base
    lead = wall_ms - node.steady_ms
    if lead - node.wall_lead > LEAD_SLACK or node.wall_lead - lead > LEAD_SLACK:
        node.wall_lead = lead
    node.mono_ms = mono_ms


# Reads the machine's clocks. Returns the monotonic one, in nanoseconds.
cdef inline int64_t read_clocks(node_t* node) noexcept nogil:
    cdef timespec wall, boot, mono
    clock_gettime(CLOCK_REALTIME, &wall)
    clock_gettime(CLOCK_BOOTTIME, &boot)
    clock_gettime(CLOCK_MONOTONIC, &mono)
    stamp_clocks(node, milliseconds(&wall), milliseconds(&boot), milliseconds(&mono))
    return <int64_t>mono.tv_sec * 1000000000 + mono.tv_nsec
