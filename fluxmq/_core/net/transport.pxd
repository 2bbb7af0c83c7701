"""The byte stream of one connection, independent of the protocol it carries.

Phases; PHASE_TRANSITIONS in the .pyx is the table. The listener determines the first one: TLS, HTTP or CONNECT.

    TLS ──handshake──► CONNECT ──accept──► OPEN ──end──► DRAINING ──finish──► CLOSED
    TLS ──handshake, WebSocket──► HTTP ──upgrade──► CONNECT
    TLS, HTTP, CONNECT ──end──► DRAINING

HTTP is the upgrade to WebSocket, CONNECT the first packet of MQTT or the handshake of AMQP. In DRAINING the last bytes
are sent, and those of the peer are ignored.

A connection has a share of each round (memory/node.pxd, WORK_*). When the share is used up, the rest of the read waits
in `carry` and the connection in Hub.resumed, for the next round. A connection that used up its share is `greedy`: its
next bytes are not read when they arrive, but when its turn comes in that list, of which a round serves as many as it
can.

`paused` stops parsing and reading in any phase (a password is being checked, the peer does not read answers; PAUSE_*);
bytes that have arrived wait in `carry`. A packet whose handling returns ASK is not consumed: it stays in front and is
handled again from its first byte when the edge has stored the answers in `verdicts` and called answered() (decision
0008). One whose handling returns MORE (an acknowledgement of thousands, a publish to thousands of queues) stays in
front in the same way, and goes on in the next round. All connections read into one shared buffer; a connection owns
input memory only while a packet is incomplete.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.debug cimport check
from fluxmq._core.memory.flag cimport flag_t
from fluxmq._core.memory.message cimport blob_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.net.recorded cimport Recorded
from fluxmq._core.net.websocket cimport ws_t

cdef enum:
    PHASE_TLS = 0
    PHASE_HTTP = 1
    PHASE_CONNECT = 2
    PHASE_OPEN = 3
    PHASE_DRAINING = 4
    PHASE_CLOSED = 5

cdef enum:
    PAUSE_EDGE = 1          # by the edge: a password is being checked, CONNACK waits for the disk
    PAUSE_DISK = 2          # it publishes faster than the disk writes; in DiskPressure.throttled
    PAUSE_ANSWERS = 4       # the peer does not read its answers, or too many of them wait for the disk
    PAUSE_ASK = 8           # authorization of the packet in front is pending; until answered()
    PAUSE_RATE = 16         # its namespace publishes more than it may; in Namespace.waiting
    PAUSE_PEER = 32         # it publishes to a node that does not acknowledge enough; in PeerHop.paused

cdef enum:                  # result of handling a packet or a frame
    DONE = 0
    REFUSED = 1             # a refusal was sent; the packet is consumed
    ASK = 2                 # nothing was consumed: authorization is pending, then the packet is handled again
    MORE = 3                # done in part, as the share is used up: the packet is handled again in the next round

cdef bint may_follow(uint8_t phase, uint8_t after) noexcept

cdef class Transport(Recorded):
    cdef public object handler          # the edge: cold packets, see edge/mqtt/connection.py
    cdef public object state            # owned by the edge
    cdef public object proxied          # edge/proxy_protocol.py: what a balancer said of the client; or None
    cdef public object origin           # edge/origins.py: the address whose limits count it; None: none
    cdef public object verdicts         # edge/asking.py: answers about the packet in front; None: there are none
    cdef object tls                     # ssl.SSLSocket, or None
    cdef ws_t* ws                       # NULL unless WebSocket
    cdef readonly int fd                # -1 once closed
    cdef int epoll
    cdef uint32_t interest              # epoll events asked for
    cdef uint32_t deferred              # epoll events to be handled in a later round (go_on)
    # One byte each, because there are many connections.
    cdef readonly uint8_t phase
    cdef readonly uint8_t paused        # PAUSE_* bits; 0: not paused
    cdef uint8_t waited                 # the refusal under way has waited for its commit and may be written now
    cdef uint8_t resumed                # in Hub.resumed: continues in a later round
    cdef uint8_t reported               # on_end was called
    cdef uint8_t closing                # WebSocket: Close arrived behind bytes that still wait in carry
    cdef readonly flag_t greedy         # used up its share the last time it was served
    cdef readonly flag_t eof            # the peer closed its side
    cdef uint64_t served                # node.turn of the round in which it was last greedy
    cdef uint64_t work_end              # value of node.work at which its share is used up
    cdef uint32_t read_room             # bytes of one recv: fewer for a peer whose reads exceed a share
    # input
    cdef uint8_t* carry                 # start of an incomplete packet, or bytes that wait to be parsed
    cdef size_t carry_start             # offset of the first unparsed byte
    cdef size_t carry_length            # bytes from there on
    cdef size_t carry_room
    cdef uint8_t* input                 # the former carry while go_on parses it, unless released
    cdef size_t input_room
    cdef blob_t* big                    # an incomplete packet too large for the shared buffer, received in place; its
                                        # size is the room there is now (big_room)
    cdef size_t big_have                # bytes received; all of big_size: it waits to be handled again
    cdef uint32_t big_size              # bytes of the whole packet
    cdef uint32_t announced             # bytes of the packet at which parse stopped because it is incomplete, its
                                        # header being there; 0: there is none, or parse stopped for another reason
    cdef public uint32_t packet_bytes_max   # of a whole packet or frame with its header, what the peer may send now
    # time, monotonic ms
    cdef readonly int64_t last_received_ms      # from which the time without input (keep alive, heartbeat) counts
    cdef public int64_t deadline_ms     # by which CONNECT must arrive, or draining must end; 0 = none
    cdef public int64_t write_timeout_ms

    cdef int on_event(self, uint32_t events) except -1
    cdef int serve(self, uint32_t events) except -1
    cdef int defer(self, uint32_t events) except -1
    cdef bint spent(self) noexcept
    cdef void rest(self) noexcept
    cdef int take_carried(self) except -1
    cdef int on_readable(self) except -1
    cdef ssize_t receive(self, uint8_t* into, size_t room) except -3
    cdef int take(self, uint8_t* data, size_t n) except -1
    cdef int receive_big(self) except -1
    cdef int let_go_of_peer(self) except -1
    cdef int big_room(self, size_t n) except -1
    cdef int take_big(self) except -1
    cdef int dispatch_big(self, blob_t* blob) except -1
    cdef bint waits(self) noexcept
    cdef int unframe(self, size_t n, size_t got) except -1
    cdef int keep_http(self, const uint8_t* data, size_t n) except -1
    cdef int pause_for(self, uint8_t reason) except -1
    cdef int resume_from(self, uint8_t reason) except -1
    cdef int keep(self, const uint8_t* data, size_t n) except -1
    cdef int upgrade(self, const uint8_t* data, size_t n) except -1
    cdef int handshake(self) except -1
    cdef int flush(self) except -1
    cdef int flush_tls(self) except -2
    cdef int want(self, uint32_t interest) except -1
    cdef void unwatch(self) noexcept
    cdef int go_on(self) except -1
    cdef void release_input(self) noexcept
    cdef int finish(self) except -1
    cdef int throttle(self) except -1
    cdef int yield_to_peer(self, uint64_t since) except -1
    cdef int hold_back(self, Namespace namespace) except -1
    # Charges published messages to the namespace's budget; pauses the connection once that is used up.
    cdef inline int spend(self, Namespace namespace, int64_t messages) except -1:
        namespace.budget -= messages
        return self.hold_back(namespace) if namespace.budget <= 0 else 0
    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1

    # what the protocol adds
    cdef int too_large(self, uint64_t size) except -1
    cdef void count(self, bytes packet) noexcept
    cdef void let_go(self) noexcept
    cdef int drained(self) except -1


# What a header says that its packet has: `size` bytes with that header. Everything that parses a stream of a peer calls
# this as soon as the header is there, and does nothing with the number before: it is the one place where it is held
# against what the peer may send now. Raises ProtocolError (too_large). end: of the bytes in hand, for a recording.
cdef inline uint32_t admit(Transport transport, uint64_t size, const uint8_t* end) except 0:
    if size > transport.packet_bytes_max:
        transport.parsed = end
        transport.too_large(size)
    return <uint32_t>size               # fits: packet_bytes_max has 32 bits


cdef inline void enter_phase(Transport transport, uint8_t phase) noexcept:
    check(may_follow(transport.phase, phase))       # in a debug build
    transport.phase = phase
