"""What all links, sessions and routes of one node share: the clock of the turn, the list of dirty links, counters.

Header only. One node_t belongs to one Hub; one thread touches it. The poller stamps the clocks after each wait,
everything else takes time from here, so that a test can set it.

    now_ms      the wall clock: for stamps that somebody reads (when a message came, `since`), and for nothing else
    steady_ms   the steady clock: for deadlines, and for every duration that outlives a turn. It begins as the wall
                clock and then advances with the time that passes, also while the machine sleeps; whoever sets the wall
                clock does not move it. Deadlines on disk are on it, and a restart goes on from it (Hub.resume_clock)
    mono_ms     the monotonic clock: for what ends with the process and must not end because the machine slept (keep
                alive, time-outs of connections, leases)
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    LEAD_SLACK = 2              # ms: so much two clocks differ that are read one after the other, in whole milliseconds

# What things cost, in units of about 20 ns, so that a turn can be divided fairly: a connection handles packets until
# its share is used up and goes on in the next round (net/transport.pxd). Counted, not measured, so a test can count
# too; a figure that is wrong by half shifts shares between kinds of packets and breaks nothing.
cdef enum:
    WORK_HOP = 3                # one delivery
    WORK_ROUTE = 8              # a topic looked up
    WORK_SUBSCRIPTION = 150     # one filter of SUBSCRIBE or UNSUBSCRIBE, queue binding
    WORK_ASK = 250              # a question to the cold half in the middle of a hot packet
    WORK_COLD = 800             # a packet of the cold half
    WORK_ACCEPT = 1500          # a connection accepted
    WORK_CONNECT = 4000         # CONNECT, the upgrade to WebSocket, methods of an AMQP connection
    WORK_HANDSHAKE = 40000      # a step of a TLS handshake
    # Shares. A round over all is 5 ms, a connection's share of it at least four cold packets.
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
    uint64_t passed_on                  # received QoS 0 messages that were copied as they came
    uint64_t unrouted                   # publishes that matched no subscription
    uint64_t route_hits
    uint64_t route_misses
    uint64_t protocol_errors
    uint64_t publish_denied
    uint64_t reads                      # recv calls that brought bytes
    uint64_t flushes                    # send calls
    uint64_t turns

cdef struct gauges_t:
    int64_t inflight                    # messages sent and not yet acknowledged, all sessions
    int64_t queued                      # messages waiting in sessions
    int64_t queued_bytes
    int64_t claims                      # messages of queues that consumers have, or that are to be delivered again
    int64_t limited                     # consumers that get nothing more until they settle some

cdef struct node_t:
    void* tap                           # tap_t*, while a recording runs
    uint32_t recording                  # which recording: a link takes part once it has this number
    uint64_t numbers                    # links made, each has its number
    void* dirty                         # link_t*: links with bytes to send, newest first
    int64_t now_ms                      # wall clock of this turn, ms since the epoch
    int64_t steady_ms                   # steady clock of this turn, ms
    int64_t mono_ms                     # monotonic clock of this turn, ms
    int64_t steady_base                 # steady clock minus the time since boot
    bint stamped                        # steady_base is known
    int64_t wall_lead                   # wall clock minus steady clock, the same until one of them was set (LEAD_SLACK)
    uint64_t turn                       # number of this turn
    uint32_t member_claims_max          # claims of one consumer that sets itself no limit
    int64_t claims_max                  # of all of the node: no connection gets more than are left of these
    uint64_t work                       # what was done so far, in units (WORK_*); grows only
    uint64_t work_share                 # units for each connection in this round
    uint64_t work_round                 # value of `work` from which on this round has done enough
    counters_t counters
    gauges_t gauges


# boot_ms: since the machine started, times of sleep included.
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
