"""What all links, sessions and routes of one node share: the clock of the turn, the list of dirty links, counters.

Header only. One node_t belongs to one Hub; one thread touches it. The poller stamps the clock after each wait,
everything else takes time from here, so that a test can set it.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

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

cdef struct node_t:
    void* tap                           # tap_t*, while a recording runs
    uint32_t recording                  # which recording: a link takes part once it has this number
    uint64_t numbers                    # links made, each has its number
    void* dirty                         # link_t*: links with bytes to send, newest first
    int64_t now_ms                      # wall clock of this turn, ms since the epoch
    int64_t mono_ms                     # monotonic clock of this turn, ms
    uint64_t turn                       # number of this turn
    counters_t counters
    gauges_t gauges
