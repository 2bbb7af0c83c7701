"""One MQTT connection: bytes in, hot packets handled, cold packets handed to the edge.

Phases:

    TLS ─handshake─► HTTP ─upgrade─► CONNECT ─CONNACK─► OPEN ─► DRAINING ─► CLOSED
    (TLS listeners)  (WebSocket)     first packet               last bytes leave, the peer's are ignored

`paused` stops parsing and reading in any phase, for one or several of the reasons PAUSE_*; what has arrived waits in `carry`. Reading goes through one buffer that all connections share; a connection owns memory for input
only while it is in the middle of a packet.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.hub cimport Hub
from fluxmq._core.link cimport link_t
from fluxmq._core.message cimport blob_t, pub_t
from fluxmq._core.routes cimport route_t
from fluxmq._core.session cimport Session
from fluxmq._core.websocket cimport ws_t

cdef enum:
    PHASE_TLS = 0
    PHASE_HTTP = 1
    PHASE_CONNECT = 2
    PHASE_OPEN = 3
    PHASE_DRAINING = 4
    PHASE_CLOSED = 5

cdef enum:
    PAUSE_EDGE = 1          # the edge asked: a password is being checked, CONNACK waits for the disk
    PAUSE_DISK = 2          # it writes faster than the disk takes; in Hub.throttled
    PAUSE_ANSWERS = 4       # it sends and does not read: answers for it pile up, or too many of them wait for the disk

cdef class Connection:
    cdef readonly Hub hub
    cdef readonly Session session       # from CONNACK on
    cdef public object handler          # the edge: cold packets, see edge/mqtt/connection.py
    cdef public object state            # whatever the edge keeps with it
    cdef object tls                     # ssl.SSLSocket, or None
    cdef link_t* link
    cdef ws_t* ws                       # NULL unless WebSocket
    cdef readonly int fd                # -1 once closed
    cdef int epoll
    cdef uint32_t interest              # epoll events asked for
    cdef readonly uint8_t phase
    cdef readonly uint8_t paused        # PAUSE_* bits, 0 = it is read
    cdef bint resumed                   # in the poller's list of those to go on with
    cdef bint reported                  # the edge heard that it ended
    cdef readonly bint eof              # the peer closed its side
    # input
    cdef uint8_t* carry                 # start of an incomplete packet
    cdef size_t carry_length
    cdef size_t carry_room
    cdef blob_t* big                    # an incomplete packet too large for the shared buffer, received in place
    cdef size_t big_have
    cdef public uint32_t packet_bytes_max
    # the publisher's memory of its last topic
    cdef route_t* last_route            # counted
    cdef uint8_t* last_properties       # wire bytes of the last properties found good that travel as they are; owned
    cdef uint32_t last_properties_length
    cdef uint32_t last_properties_room
    cdef uint64_t last_access           # access generation at which last_route's topic was allowed
    cdef dict allowed                   # topic -> bool, answers of the Authority
    cdef list aliases                   # inbound: alias - 1 -> topic bytes or None
    # time, monotonic ms
    cdef readonly int64_t heard_ms
    cdef public int64_t deadline_ms     # until CONNECT must have come, or draining must have ended; 0 = none
    cdef public int64_t keep_alive_ms   # 1.5 x keep alive, 0 = off, [MQTT-3.1.2-22]
    cdef public int64_t write_timeout_ms

    cdef int on_event(self, uint32_t events) except -1
    cdef int on_readable(self) except -1
    cdef ssize_t receive(self, uint8_t* into, size_t room) except -3
    cdef int take(self, uint8_t* data, size_t n) except -1
    cdef int receive_big(self) except -1
    cdef int dispatch_big(self) except -1
    cdef int unframe(self, size_t n, size_t got) except -1
    cdef int keep_http(self, const uint8_t* data, size_t n) except -1
    cdef const uint8_t* read_properties(self, pub_t* pub, const uint8_t* at, const uint8_t* end) except NULL
    cdef int remember_properties(self, const uint8_t* at, uint32_t length) except -1
    cdef route_t* route_of(self, pub_t* pub) except NULL
    cdef route_t* remember(self, route_t* route) noexcept
    cdef int throttle(self) except -1
    cdef int pause_for(self, uint8_t reason) except -1
    cdef int resume_from(self, uint8_t reason) except -1
    cdef int check_overrun(self) except -1
    cdef int check_ack_properties(self, uint8_t packet_type, const uint8_t* at, const uint8_t* end) except -1
    cdef int keep(self, const uint8_t* data, size_t n) except -1
    cdef ssize_t parse(self, uint8_t* data, size_t n) except -1
    cdef int dispatch(self, uint8_t first, const uint8_t* body, const uint8_t* end, blob_t* blob) except -1
    cdef int on_publish(self, uint8_t first, const uint8_t* at, const uint8_t* end, blob_t* blob) except -1
    cdef int on_ack(self, uint8_t packet_type, const uint8_t* at, const uint8_t* end) except -1
    cdef int acknowledge(self, uint8_t packet_type, uint16_t packet_id, uint8_t reason, bint recorded) except -1
    cdef int may_publish(self, route_t* route) except -1
    cdef int refuse_publish(self, uint8_t qos, uint16_t packet_id, uint8_t reason, str text) except -1
    cdef int upgrade(self, const uint8_t* data, size_t n) except -1
    cdef int handshake(self) except -1
    cdef int flush(self) except -1
    cdef int flush_tls(self) except -2
    cdef int want(self, uint32_t interest) except -1
    cdef int go_on(self) except -1
    cdef void release_input(self) noexcept
    cdef int finish(self) except -1
