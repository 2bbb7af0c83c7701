"""A link is the outbound half of one connection: chunks of bytes, sent with one call per turn of the loop.

    link_t ── head ─► chunk ─► chunk ─► tail
                      bytes    blob     bytes      a blob chunk points into a counted payload, others carry bytes

A chunk of bytes begins with a packet, or with its frame: over WebSocket the header of a frame (RFC 6455 section 5.2; a
server does not mask) is written before each packet. A server may put several packets in a frame, and parts of one
[MQTT-6.0.0-2], but some clients wait for further bytes when they have read one packet of a frame, although they have
the next.

Sessions, hub and connection hold references to links. The count keeps the struct alive after its connection has closed
(`open` is 0 then, appends are no-ops), so that an answer that waits for the disk never goes to another socket.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.memory.message cimport blob_t, body_t, ids_t
from fluxmq._core.memory.node cimport node_t
from fluxmq._core.memory.tap cimport READERS, tap_t

cdef struct chunk_t:
    chunk_t* next
    blob_t* blob            # NULL: own bytes
    uint8_t* data
    uint32_t start          # first unsent byte
    uint32_t end            # one past the last byte; invariant: start <= end <= capacity
    uint32_t capacity
    uint32_t[READERS] tapped    # while the link is recorded: bytes before it are recorded or are not to be recorded
    uint8_t kind            # index of its pool; CHUNK_BLOB

cdef struct alias_t:
    uint8_t* topic          # owned
    uint16_t length

cdef struct order_t:        # for a link with answers that wait, or just waited, for another line than the journal
    void* head              # entry_t* of memory/commits: answers that wait for several lines, in order
    void* tail
    void* newest            # ticket_t*: of each other line, the newest position that it waits for
    uint32_t count
    uint32_t room

cdef struct link_t:
    uint32_t refs
    int fd
    uint8_t open            # 0: closed, appends are ignored
    uint8_t version         # 3, 4 or 5; 0 until CONNECT
    uint8_t websocket       # each outbound packet has a binary frame of its own
    uint8_t tls             # the connection object flushes
    uint8_t dirty           # in node.dirty
    uint8_t blocked         # the socket took less than offered; waiting for writability
    uint8_t choked          # was above high water since it was last below low water
    uint8_t alias_mask_bits # outbound topic aliases: the table has 1 << bits slots when `aliases` is set
    chunk_t* head
    chunk_t* tail
    size_t pending          # bytes in chunks
    size_t high             # above it, QoS 0 messages are dropped and queues deliver nothing
    size_t low
    uint8_t protocol        # TAP_MQTT, TAP_AMQP091
    uint32_t claims         # queue messages that its consumers have claimed and not settled
    uint32_t packet_size_max    # client's Maximum Packet Size, [MQTT-3.1.2-24]
    uint32_t held           # answers and deliveries of this link that wait for commits (memory/commits)
    uint64_t held_upto      # newest journal batch that any of them waits for: later answers wait for it too
    order_t* order          # NULL: nothing waits for another line than the journal
    int64_t progress_ms     # monotonic time of the last successful send, or when the first byte was queued
    link_t* next_dirty
    node_t* node
    void* owner             # the Connection; NULL once it is gone
    alias_t* aliases
    uint64_t number         # of the connection, from 1, unique in a run
    uint32_t[READERS] recording     # for each reader; equal to tap_t.number: its bytes are being recorded
    int64_t inbound         # QoS 1 and 2 PUBLISH of this client without a final answer, [MQTT-3.3.4-7]
    uint64_t dropped        # messages
    size_t awaited          # bytes of claimed queue messages that wait for the disk before they are sent

cdef link_t* link_new(node_t* node, int fd) except NULL
cdef void link_drop(link_t* link) noexcept
cdef void link_close(link_t* link) noexcept
cdef int link_set_aliases(link_t* link, uint16_t alias_max) except -1

# Room for a packet of n contiguous bytes at the end; NULL: out of memory. Must be followed by link_commit of the bytes
# used, which over WebSocket are n, or up to 125 when n is.
cdef uint8_t* link_room(link_t* link, uint32_t n) noexcept
cdef void link_commit(link_t* link, uint32_t n) noexcept
# One packet. 0; -1: out of memory.
cdef int link_write(link_t* link, const uint8_t* data, uint32_t n) noexcept
# Whole packets of MQTT, one behind the other. 0; -1: out of memory, and some of them may have been written.
cdef int link_write_run(link_t* link, const uint8_t* data, uint32_t n) noexcept
cdef int link_ack(link_t* link, uint8_t packet_type, uint16_t packet_id, uint8_t reason) noexcept

# Bytes written; 0: larger than the client's Maximum Packet Size, nothing written; -1: out of memory.
cdef int64_t link_publish(link_t* link, const body_t* body, uint8_t first, uint16_t packet_id,
                          const ids_t* ids) noexcept

# 0: all sent; 1: the socket is full; -1: broken.
cdef int link_flush(link_t* link) noexcept
cdef void link_sent(link_t* link, size_t n) noexcept
cdef int link_control_frame(link_t* link, uint8_t opcode, const uint8_t* data, uint8_t n) noexcept

# Records the bytes appended since the last call as entries of whole packets, without the headers of their frames.
cdef void link_tap(link_t* link) noexcept
# Starts recording for that reader; bytes pending already are not recorded.
cdef void link_tap_begin(link_t* link, const tap_t* tap) noexcept
# Excludes pending bytes from what any reader gets.
cdef void link_tap_skip(link_t* link) noexcept
# Number of bytes of packets that are recorded for that reader but not sent.
cdef size_t link_tap_unsent(const link_t* link, int reader) noexcept

cdef inline void link_hold(link_t* link) noexcept:
    link.refs += 1

cdef inline void link_mark(link_t* link) noexcept:
    if not link.dirty and not link.blocked:
        link.dirty = 1
        link.next_dirty = <link_t*>link.node.dirty
        link.node.dirty = <void*>link
        link.refs += 1
