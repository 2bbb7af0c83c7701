# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Handle and machine. One MQTT connection; the phases are in connection.pxd.

The hot packets (PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, PINGREQ) end here; all others go to the edge as bytes. What the edge
must provide (`handler`):

    on_packet(connection, first_byte, body)     a cold packet; may raise ProtocolError
    on_http(connection, head) -> (bool, bytes)  the HTTP request of a WebSocket upgrade; accepted?, the response
    on_error(connection, reason, text)          the peer broke the protocol: answer and call end()
    on_crash(connection, exception)             a bug of ours; the connection is closed afterwards
    on_end(connection)                          called once, when the connection stops being one
    on_refused(connection, type, id, reason, text)  answers a QoS 1 or 2 PUBLISH of MQTT 5 that is not allowed
    may_publish(connection, topic) -> bool      asked while Hub.open_publish is false; cached until the generation changes
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset
from posix.unistd cimport close

from ssl import SSLWantReadError, SSLWantWriteError

from fluxmq._core.errors import ProtocolError
from fluxmq._core.ledger cimport HELD_ACK, HELD_BYTES
from fluxmq._core.link cimport (
    chunk_t, link_ack, link_close, link_drop, link_flush, link_mark, link_new, link_seal, link_sent, link_set_aliases,
    link_write,
)
from fluxmq._core.message cimport blob_drop, blob_new, pub_t
from fluxmq._core.mqtt_consts cimport (
    CONNECT, PINGREQ, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, REASON_MALFORMED_PACKET,
    REASON_NO_MATCHING_SUBSCRIBERS, REASON_NOT_AUTHORIZED, REASON_PACKET_IDENTIFIER_NOT_FOUND, REASON_PACKET_TOO_LARGE,
    REASON_PAYLOAD_FORMAT_INVALID, REASON_PROTOCOL_ERROR, REASON_QOS_NOT_SUPPORTED, REASON_QUOTA_EXCEEDED,
    REASON_RECEIVE_MAXIMUM_EXCEEDED, REASON_SUCCESS, REASON_TOPIC_ALIAS_INVALID, REASON_TOPIC_NAME_INVALID,
)
from fluxmq._core.mqtt_props cimport publish_props_t, scan_publish_props
from fluxmq._core.routes cimport route_drop
from fluxmq._core.text cimport TEXT_BAD, TEXT_OK, text_valid, topic_valid
from fluxmq._core.websocket cimport WS_OK, ws_answer, ws_unframe
from fluxmq._core.wire cimport Cursor, peek_u16, take_varint

__all__ = ["Connection"]

cdef extern from "<string.h>" nogil:
    void* memmem(const void* hay, size_t n, const void* needle, size_t m)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* into, size_t n, int flags)
    int shutdown(int fd, int how)
    cdef struct sockaddr:
        pass
    int getpeername(int fd, sockaddr* address, unsigned int* length)
    int SHUT_WR
    int AF_INET
    int AF_INET6

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* address, char* text, unsigned int size)

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    uint32_t EPOLLIN
    uint32_t EPOLLOUT
    uint32_t EPOLLERR
    uint32_t EPOLLHUP

cdef enum:
    READ_BYTES = 262144         # of one recv: a batch of thousands of small packets, and still in the second-level cache
    CARRY_BYTES_MAX = 65536     # a packet longer than this is received in memory of its own
    CONNECT_BYTES_MAX = 393216  # six strings of 65 535 bytes: client id, will topic and payload, user, password, properties
    HTTP_BYTES_MAX = 16384
    PROPERTIES_REMEMBERED_MAX = 512
    ALLOWED_MAX = 1024          # remembered answers of the Authority per connection
    ALLOWED_TOPIC_BYTES_MAX = 1024      # asked again for a longer one: 1 024 of 64 KiB would be 64 MiB
    ANSWERS_BYTES_MAX = 1048576 # over high water, of acknowledgements and the like: who does not read them is not read
    DRAIN_MS = 2000             # how long a closing connection may take to send its last bytes
    AGAIN = -1
    BROKEN = -2

# One per process: a loop has one thread, and no read outlives its turn.
cdef uint8_t* shared = <uint8_t*>malloc(READ_BYTES + 2 * CARRY_BYTES_MAX)
cdef uint8_t* scratch = NULL
cdef size_t scratch_room = 0


cdef uint8_t* scratch_for(size_t n) except NULL:
    global scratch, scratch_room
    cdef uint8_t* grown
    if n > scratch_room or scratch == NULL:
        grown = <uint8_t*>realloc(scratch, n + 4096)
        if grown == NULL:
            raise MemoryError()
        scratch = grown
        scratch_room = n + 4096
    return scratch


cdef str peer_name(int fd):
    """"address:port" of the other end of a socket."""
    cdef unsigned char[128] address
    cdef char[64] text
    cdef unsigned int length = 128
    cdef int family
    if getpeername(fd, <sockaddr*>address, &length) < 0:
        return ""
    family = address[0] | address[1] << 8
    if family == AF_INET and inet_ntop(AF_INET, address + 4, text, 64) != NULL:
        return f"{text.decode()}:{address[2] << 8 | address[3]}"
    if family == AF_INET6 and inet_ntop(AF_INET6, address + 8, text, 64) != NULL:
        return f"[{text.decode()}]:{address[2] << 8 | address[3]}"
    return ""


@cython.final
@cython.no_gc_clear     # __dealloc__ reads `tls`; the cycle with `state` breaks on the other side
cdef class Connection:
    """Handle. Owns the socket `fd` from construction on.

    hub: the node's. fd: a connected, non-blocking TCP socket. epoll: the poller's descriptor. handler: see above.
    tls: an ssl.SSLSocket over the same descriptor whose handshake is still to be done, or None. websocket: expect an upgrade.
    """

    def __cinit__(self, Hub hub not None, int fd, int epoll, object handler, object tls=None, bint websocket=False):
        cdef epoll_event event
        self.fd = -1
        self.hub = hub
        self.handler = handler
        self.tls = tls
        self.link = link_new(hub.node, fd)
        self.link.owner = <void*>self
        self.link.high = hub.buffer_high
        self.link.low = hub.buffer_low
        self.link.tls = tls is not None
        self.epoll = epoll
        self.heard_ms = hub.node.mono_ms
        self.packet_bytes_max = CONNECT_BYTES_MAX
        self.phase = PHASE_CONNECT
        if websocket:
            self.phase = PHASE_HTTP
            self.ws = <ws_t*>malloc(sizeof(ws_t))
            if self.ws == NULL:
                raise MemoryError()
            memset(self.ws, 0, sizeof(ws_t))
        if tls is not None:
            self.phase = PHASE_TLS
        self.fd = fd
        self.interest = EPOLLIN
        if epoll >= 0:
            event.events = EPOLLIN
            event.data.ptr = <void*>self
            if epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0:
                raise OSError(errno, "epoll_ctl")

    def __dealloc__(self):
        if self.link != NULL:
            self.link.owner = NULL
            link_close(self.link)
            link_drop(self.link)
        if self.fd >= 0 and self.phase != PHASE_CLOSED and self.tls is None:
            close(self.fd)
        self.release_input()
        free(self.ws)
        free(self.last_properties)
        if self.last_route != NULL:
            route_drop(self.last_route)

    # ---------------------------------------------------------------- what the edge asks and does

    @property
    def version(self) -> int:
        return self.link.version

    @property
    def pending(self) -> int:
        """Bytes waiting to be sent."""
        return self.link.pending

    @property
    def dropped(self) -> int:
        """QoS 0 messages dropped because this connection did not read."""
        return self.link.dropped

    @property
    def open(self) -> bool:
        return self.phase == PHASE_OPEN

    @property
    def ended(self) -> bool:
        return self.phase >= PHASE_DRAINING

    @property
    def peer(self) -> str:
        """Address of the other end, "" when it is gone."""
        return peer_name(self.fd) if self.phase != PHASE_CLOSED else ""

    def set_version(self, int level):
        """level: protocol level of CONNECT, 3, 4 or 5."""
        self.link.version = <uint8_t>level

    def accept(self, Session session not None, uint32_t window, uint32_t packet_size_max, uint16_t alias_max):
        """CONNACK was written: from now on hot packets are handled and the session sends here.

        window: messages in flight, 1 to 65 535. packet_size_max: client's Maximum Packet Size, bytes.
        alias_max: client's Topic Alias Maximum.
        """
        if self.phase >= PHASE_DRAINING:
            return
        self.session = session
        self.phase = PHASE_OPEN
        self.link.packet_size_max = packet_size_max
        self.link.inbound = session.received_count
        link_set_aliases(self.link, <uint16_t>min(<uint32_t>alias_max, self.hub.topic_alias_out_max))
        session.attach(self.link, window)
        self.hub.touch()

    def write(self, bytes data not None):
        """Queues bytes; they leave at the end of the turn."""
        link_write(self.link, <const uint8_t*><const char*>data, <uint32_t>len(data))
        self.hub.touch()

    def write_when_durable(self, bytes data not None, uint64_t records_before):
        """As write, but behind everything recorded since `records_before` (Ledger.records then) and behind its elders."""
        cdef uint64_t batch = 0
        if self.hub.ledger.records != records_before:
            batch = self.hub.ledger.batch()
        elif self.link.held:
            batch = self.link.held_batch
        else:
            self.write(data)
            return
        self.hub.ledger.hold(HELD_BYTES, self.link, data, 0, 0, 0, batch)
        self.hub.touch()

    def pause(self):
        """Stops parsing and reading until resume(); what has arrived waits."""
        self.pause_for(PAUSE_EDGE)

    def resume(self):
        """Ends what pause() began; other reasons not to read stay."""
        self.resume_from(PAUSE_EDGE)

    cdef int pause_for(self, uint8_t reason) except -1:
        self.paused |= reason
        return self.want(self.interest & ~EPOLLIN)

    cdef int resume_from(self, uint8_t reason) except -1:
        if not self.paused & reason:
            return 0
        self.paused &= ~reason
        if self.paused:
            return 0
        if self.phase < PHASE_DRAINING:
            self.want(self.interest | EPOLLIN)
        if not self.resumed:
            self.resumed = True
            self.hub.resumed.append(self)
        self.hub.touch()
        return 0

    def end(self, bint finish_acknowledging=False):
        """Sends what is waiting, then closes. The session is let go at once and on_end is called.

        finish_acknowledging: also what still waits for the disk leaves before the end; otherwise nothing is added any
        more, as after a DISCONNECT of ours [MQTT-3.14.4-1].
        """
        if self.phase >= PHASE_DRAINING:
            return
        self.phase = PHASE_DRAINING
        self.link.open = finish_acknowledging
        self.paused = 0
        self.release_input()
        self.deadline_ms = self.hub.node.mono_ms + DRAIN_MS
        if self.session is not None and self.session.link == self.link:
            self.session.detach()
        if not self.reported:
            self.reported = True
            self.handler.on_end(self)
        link_mark(self.link)
        self.hub.touch()

    def abort(self):
        """Closes now; what was waiting is lost."""
        self.end()
        self.finish()

    # ---------------------------------------------------------------- events

    cdef int on_event(self, uint32_t events) except -1:
        """One readiness report of the poller. Never raises for what a peer did."""
        try:
            if self.phase == PHASE_CLOSED:
                return 0
            if self.phase == PHASE_TLS:
                self.handshake()
                if self.phase == PHASE_TLS:
                    return 0
            if events & EPOLLOUT:
                if self.link.blocked:
                    self.link.blocked = 0
                    self.flush()
                elif self.phase != PHASE_CLOSED:
                    # A read of the TLS layer wanted to write: it is the read that goes on now.
                    self.want(self.interest & ~EPOLLOUT)
                    events |= EPOLLIN
            if events & (EPOLLIN | EPOLLHUP | EPOLLERR) and self.phase != PHASE_CLOSED:
                if self.paused and events & (EPOLLHUP | EPOLLERR):
                    self.abort()
                elif not self.paused:
                    self.on_readable()
        except ProtocolError as error:
            self.fail(error)
        except OSError:
            self.abort()
        except Exception as error:
            self.crash(error)
        return 0

    def fail(self, error):
        """Answers a ProtocolError and ends the connection."""
        self.hub.node.counters.protocol_errors += 1
        try:
            self.handler.on_error(self, error.reason, error.text)
        finally:
            self.end()

    def crash(self, error):
        try:
            self.handler.on_crash(self, error)
        finally:
            self.abort()

    cdef int go_on(self) except -1:
        """After resume(): parses what waited."""
        cdef size_t n = self.carry_length
        self.resumed = False
        if self.paused or self.phase >= PHASE_DRAINING:
            return 0
        try:
            if n:
                memcpy(shared, self.carry, n)
                self.carry_length = 0
                self.take(shared, n)
                self.check_overrun()
            if self.tls is not None and not self.paused and self.phase < PHASE_DRAINING:
                self.on_readable()      # bytes may wait inside the TLS layer, where epoll does not see them
        except ProtocolError as error:
            self.fail(error)
        except OSError:
            self.abort()
        except Exception as error:
            self.crash(error)
        return 0

    cdef int on_readable(self) except -1:
        cdef ssize_t got
        cdef size_t n
        cdef size_t room = READ_BYTES
        if self.resumed:
            return 0                # what waits in carry comes first (go_on), and may leave no room in `shared`
        while True:
            if self.big != NULL and self.ws == NULL and self.tls is None:
                return self.receive_big()
            n = self.carry_length
            if n:
                memcpy(shared, self.carry, n)
            got = self.receive(shared + n, room)
            if got == AGAIN:
                return 0
            if got <= 0:
                self.eof = True
                self.abort()
                return 0
            self.heard_ms = self.hub.node.mono_ms
            self.hub.node.counters.bytes_received += got
            self.hub.node.counters.reads += 1
            if self.phase == PHASE_DRAINING:
                return 0
            self.carry_length = 0
            if self.ws == NULL or self.phase == PHASE_HTTP:
                self.take(shared, n + got)
            else:
                self.unframe(n, got)
            self.check_overrun()
            # What stays in the socket is asked for in the next round. What the TLS layer has taken out of it (the rest
            # of one record) epoll does not see, so exactly that is read now: a fast peer must not keep us here.
            if self.tls is None or got < <ssize_t>room or self.paused or self.phase >= PHASE_DRAINING:
                return 0
            room = <size_t>self.tls.pending()
            if room == 0:
                return 0

    cdef int unframe(self, size_t n, size_t got) except -1:
        """shared[n:n+got] are WebSocket bytes behind n MQTT bytes."""
        cdef size_t mqtt = 0
        cdef int result = ws_unframe(self.ws, shared + n, got, &mqtt)
        ws_answer(self.ws, self.link, 0)
        self.take(shared, n + mqtt)
        ws_answer(self.ws, self.link, 1)
        if result != WS_OK:
            self.end()
        return 0

    cdef ssize_t receive(self, uint8_t* into, size_t room) except -3:
        """Bytes read; 0: the peer closed; AGAIN: nothing now; BROKEN: the connection is gone."""
        cdef ssize_t got
        cdef size_t total = 0
        if self.tls is None or self.phase == PHASE_DRAINING:       # draining: what comes is thrown away as it is
            while True:
                got = recv(self.fd, into, room, 0)
                if got >= 0:
                    return got
                if errno != EINTR:
                    return AGAIN if errno == EAGAIN else BROKEN
        while total < room:
            try:
                got = self.tls.read(room - total, PyMemoryView_FromMemory(<char*>into + total, room - total, PyBUF_WRITE))
            except SSLWantReadError:
                return <ssize_t>total if total else AGAIN
            except SSLWantWriteError:
                self.want(self.interest | EPOLLOUT)
                return <ssize_t>total if total else AGAIN
            except OSError:
                return <ssize_t>total if total else BROKEN
            if got == 0:
                return <ssize_t>total
            total += got
        return <ssize_t>total

    cdef int receive_big(self) except -1:
        """The rest of a large packet goes straight to where it will stay."""
        cdef ssize_t got = self.receive(self.big.data + self.big_have, self.big.size - self.big_have)
        if got == AGAIN:
            return 0
        if got <= 0:
            self.eof = True
            self.abort()
            return 0
        self.heard_ms = self.hub.node.mono_ms
        self.hub.node.counters.bytes_received += got
        self.hub.node.counters.reads += 1
        if self.phase == PHASE_DRAINING:
            return 0
        self.big_have += got
        if self.big_have == self.big.size:
            self.dispatch_big()
        return 0

    cdef int dispatch_big(self) except -1:
        cdef blob_t* blob = self.big
        cdef uint8_t* at = blob.data + 1
        self.big = NULL
        self.big_have = 0
        while at[0] & 0x80:
            at += 1
        try:
            self.dispatch(blob.data[0], at + 1, blob.data + blob.size, blob)
        finally:
            blob_drop(blob)
        return 0

    # ---------------------------------------------------------------- bytes to packets

    cdef int take(self, uint8_t* data, size_t n) except -1:
        """data[0:n]: everything received and not yet parsed."""
        cdef ssize_t used
        cdef size_t rest
        if self.phase == PHASE_HTTP:
            return self.upgrade(data, n)
        if self.big != NULL:
            rest = self.big.size - self.big_have
            if rest > n:
                rest = n
            memcpy(self.big.data + self.big_have, data, rest)
            self.big_have += rest
            data += rest
            n -= rest
            if self.big_have < self.big.size:
                return 0
            self.dispatch_big()
            if self.phase >= PHASE_DRAINING:
                return 0
            if self.paused:
                return self.keep(data, n)
        used = self.parse(data, n)
        if self.phase >= PHASE_DRAINING:
            return 0
        return self.keep(data + used, n - used)

    cdef int keep(self, const uint8_t* data, size_t n) except -1:
        """Puts an incomplete packet (or, paused, everything unparsed) aside."""
        cdef Cursor c
        cdef uint32_t remaining
        cdef uint8_t* grown
        cdef size_t size
        if n == 0:
            if self.carry != NULL:
                free(self.carry)
                self.carry = NULL
                self.carry_room = 0
            self.carry_length = 0
            return 0
        if not self.paused and n >= 2:
            c.at = data + 1
            c.end = data + n
            if take_varint(&c, &remaining) == 1:
                size = <size_t>(c.at - data) + remaining
                if size > CARRY_BYTES_MAX and size > n:
                    self.big = blob_new(<uint32_t>size)
                    memcpy(self.big.data, data, n)
                    self.big_have = n
                    return self.keep(data, 0)
        if n > self.carry_room:
            grown = <uint8_t*>realloc(self.carry, n)
            if grown == NULL:
                raise MemoryError()
            self.carry = grown
            self.carry_room = n
        memcpy(self.carry, data, n)
        self.carry_length = n
        return 0

    cdef ssize_t parse(self, uint8_t* data, size_t n) except -1:
        """Handles every complete packet in data[0:n]; returns the bytes used."""
        cdef const uint8_t* at = data
        cdef const uint8_t* end = data + n
        cdef Cursor c
        cdef uint32_t remaining = 0
        cdef int found
        if n and self.phase == PHASE_CONNECT and self.state is None and at[0] != CONNECT << 4:
            raise ProtocolError(REASON_PROTOCOL_ERROR, "the first packet is not CONNECT [MQTT-3.1.0-1]")
        while end - at >= 2:
            if at[1] < 0x80:
                remaining = at[1]
                c.at = at + 2
            else:
                c.at = at + 1
                c.end = end
                found = take_varint(&c, &remaining)
                if found == 0:
                    break
                if found < 0:
                    raise ProtocolError(REASON_MALFORMED_PACKET, "Remaining Length is malformed [MQTT-1.5.5-1]")
            if c.at - at + <size_t>remaining > self.packet_bytes_max:
                self.too_large(<size_t>(c.at - at) + remaining)
            if end - c.at < remaining:
                break
            self.dispatch(at[0], c.at, c.at + remaining, NULL)
            at = c.at + remaining
            if self.paused or self.phase >= PHASE_DRAINING:
                break
        return at - data

    def too_large(self, size):
        raise ProtocolError(REASON_PACKET_TOO_LARGE, f"a packet of {size} bytes is over the limit of "
                                                     f"{self.packet_bytes_max} (broker.max_message_size)")

    cdef int dispatch(self, uint8_t first, const uint8_t* body, const uint8_t* end, blob_t* blob) except -1:
        cdef uint8_t packet_type = first >> 4
        self.hub.node.counters.packets_received[packet_type] += 1
        if self.phase == PHASE_OPEN:
            if packet_type == PUBLISH:
                return self.on_publish(first, body, end, blob)
            if PUBACK <= packet_type <= PUBCOMP:
                if (first & 0x0F) != (2 if packet_type == PUBREL else 0):
                    raise ProtocolError(REASON_MALFORMED_PACKET, "reserved flag bits of an acknowledgement are set "
                                                                 "[MQTT-2.1.3-1]")
                return self.on_ack(packet_type, body, end)
            if packet_type == PINGREQ:
                if first & 0x0F or body != end:
                    raise ProtocolError(REASON_MALFORMED_PACKET, "PINGREQ carries something [MQTT-2.1.3-1]")
                self.hub.node.counters.packets_sent[PINGRESP] += 1
                link_write(self.link, b"\xd0\x00", 2)
                return 0
        self.hub.cold = True
        self.handler.on_packet(self, first, PyBytes_FromStringAndSize(<const char*>body, end - body))
        return 0

    # ---------------------------------------------------------------- PUBLISH

    cdef int on_publish(self, uint8_t first, const uint8_t* at, const uint8_t* end, blob_t* blob) except -1:
        cdef pub_t pub
        cdef uint16_t packet_id = 0
        cdef uint8_t qos = first >> 1 & 3
        cdef route_t* route = self.last_route
        cdef Hub hub = self.hub
        cdef uint64_t records
        cdef int matched
        if end - at < 2 or end - at - 2 < peek_u16(at):
            raise ProtocolError(REASON_MALFORMED_PACKET, "PUBLISH is shorter than its topic")
        pub.body.topic_length = peek_u16(at)
        pub.body.topic = at + 2
        at += 2 + pub.body.topic_length
        pub.body.properties_length = 0
        pub.body.properties = at
        pub.body.expires_at = 0
        pub.body.blob = blob
        pub.source = <void*>self.session
        pub.owned = NULL
        pub.qos = qos
        pub.retain = first & 1
        if qos:
            if qos == 3:
                raise ProtocolError(REASON_MALFORMED_PACKET, "PUBLISH with QoS 3 [MQTT-3.3.1-4]")
            if end - at < 2 or peek_u16(at) == 0:
                raise ProtocolError(REASON_PROTOCOL_ERROR if end - at >= 2 else REASON_MALFORMED_PACKET,
                                    "PUBLISH without a packet identifier [MQTT-2.2.1-2]")
            packet_id = peek_u16(at)
            at += 2
        elif first & 0x08:
            raise ProtocolError(REASON_MALFORMED_PACKET, "PUBLISH with DUP and QoS 0 [MQTT-3.3.1-2]")
        if qos > hub.qos_max:
            raise ProtocolError(REASON_QOS_NOT_SUPPORTED, f"QoS {qos} is over broker.max_qos {hub.qos_max}")
        if self.link.version == 5:
            at = self.read_properties(&pub, at, end)
        pub.body.payload = at
        pub.body.payload_length = <uint32_t>(end - at)
        if pub.body.payload_length > hub.payload_bytes_max:
            self.too_large(pub.body.payload_length)
        if (route == NULL or route.topic_length != pub.body.topic_length
                or memcmp(route.topic, pub.body.topic, route.topic_length) != 0):
            route = self.route_of(&pub)
        elif route.generation != hub.trie.generation:
            route = self.remember(hub.routes.find(pub.body.topic, pub.body.topic_length))
        else:
            hub.routes.hits += 1
        if (not hub.open_publish or route.topic[0] == 36) and not self.may_publish(route):
            return self.refuse_publish(qos, packet_id, REASON_NOT_AUTHORIZED, "not authorized to publish to this topic")
        records = hub.ledger.records
        if qos == 0:
            hub.node.counters.messages_received[0] += 1
            hub.publish(&pub, route)
            if hub.ledger.records != records:
                self.throttle()
            return 0
        if qos == 2 and self.session.has_received(packet_id):
            return self.acknowledge(PUBREC, packet_id, 0, 0)        # seen already, [MQTT-4.3.3-10]
        if self.link.version == 5 and self.link.inbound >= hub.receive_max:
            raise ProtocolError(REASON_RECEIVE_MAXIMUM_EXCEEDED, f"more than {hub.receive_max} PUBLISH unacknowledged "
                                                                 f"[MQTT-3.3.4-7]")
        self.link.inbound += 1
        hub.node.counters.messages_received[qos] += 1
        if qos == 2:
            self.session.receive(packet_id)
        matched = hub.publish(&pub, route)
        self.acknowledge(PUBACK if qos == 1 else PUBREC, packet_id,
                         REASON_NO_MATCHING_SUBSCRIBERS if matched == 0 and self.link.version == 5 else REASON_SUCCESS,
                         hub.ledger.records != records)
        if hub.ledger.records != records:
            self.throttle()
        return 0

    cdef const uint8_t* read_properties(self, pub_t* pub, const uint8_t* at, const uint8_t* end) except NULL:
        """MQTT 5: validates the properties, applies topic alias and expiry; returns where the payload begins."""
        cdef Cursor c
        cdef publish_props_t properties
        cdef uint32_t length
        cdef int reason
        cdef bytes topic
        c.at = at
        c.end = end
        if take_varint(&c, &length) != 1 or c.end - c.at < length:
            raise ProtocolError(REASON_MALFORMED_PACKET, "the properties of PUBLISH do not fit into it")
        if length == 0:
            if pub.body.topic_length == 0:
                raise ProtocolError(REASON_PROTOCOL_ERROR, "PUBLISH with neither topic nor alias [MQTT-3.3.2-8]")
            return c.at
        if length == self.last_properties_length and memcmp(c.at, self.last_properties, length) == 0:
            # Most publishers say the same of every message: what was found good once need not be looked at again.
            if pub.body.topic_length == 0:
                raise ProtocolError(REASON_PROTOCOL_ERROR, "PUBLISH with neither topic nor alias [MQTT-3.3.2-8]")
            pub.body.properties = c.at
            pub.body.properties_length = length
            return c.at + length
        memset(&properties, 0, sizeof(properties))
        reason = scan_publish_props(c.at, c.at + length, &properties, scratch_for(length))
        if reason:
            raise ProtocolError(reason, "the properties of PUBLISH are malformed (MQTT 5.0 section 3.3.2.3)")
        if properties.has_subscription_id:
            raise ProtocolError(REASON_PROTOCOL_ERROR, "PUBLISH from a client with a Subscription Identifier "
                                                       "[MQTT-3.3.4-6]")
        if properties.user_properties > self.hub.user_properties_max:
            raise ProtocolError(REASON_QUOTA_EXCEEDED, f"more than {self.hub.user_properties_max} user properties "
                                                       f"(broker.max_user_properties)")
        pub.body.properties = properties.forward
        pub.body.properties_length = properties.forward_length
        if properties.has_expiry:
            # Expiry 0 has expired at once: it may reach who is connected now, nobody later.
            pub.body.expires_at = self.hub.node.now_ms + <int64_t>properties.expiry_s * 1000
        if properties.payload_format == 1 and not text_valid(c.at + length, end - c.at - length):
            raise ProtocolError(REASON_PAYLOAD_FORMAT_INVALID, "the payload is not UTF-8 although its Payload Format "
                                                               "Indicator says so")
        if properties.topic_alias:
            if properties.topic_alias > self.hub.topic_alias_max:
                raise ProtocolError(REASON_TOPIC_ALIAS_INVALID, f"topic alias over {self.hub.topic_alias_max} "
                                                                f"[MQTT-3.3.2-9]")
            if self.aliases is None:
                self.aliases = [None] * self.hub.topic_alias_max
            if pub.body.topic_length:
                topic = (<const char*>pub.body.topic)[:pub.body.topic_length]
                self.aliases[properties.topic_alias - 1] = topic
            else:
                topic = self.aliases[properties.topic_alias - 1]
                if topic is None:
                    raise ProtocolError(REASON_PROTOCOL_ERROR, "a topic alias that stands for nothing yet [MQTT-3.3.2-7]")
                pub.body.topic = <const uint8_t*><const char*>topic
                pub.body.topic_length = <uint32_t>len(topic)
        elif pub.body.topic_length == 0:
            raise ProtocolError(REASON_PROTOCOL_ERROR, "PUBLISH with neither topic nor alias [MQTT-3.3.2-8]")
        elif properties.forward_length == length and length <= PROPERTIES_REMEMBERED_MAX and not properties.payload_format:
            self.remember_properties(c.at, length)
        return c.at + length

    cdef int remember_properties(self, const uint8_t* at, uint32_t length) except -1:
        cdef uint8_t* grown
        if length > self.last_properties_room:
            grown = <uint8_t*>realloc(self.last_properties, length)
            if grown == NULL:
                raise MemoryError()
            self.last_properties = grown
            self.last_properties_room = length
        memcpy(self.last_properties, at, length)
        self.last_properties_length = length
        return 0

    cdef route_t* route_of(self, pub_t* pub) except NULL:
        """A topic that differs from the last one: validates it, finds its route, remembers it."""
        cdef int valid = topic_valid(pub.body.topic, pub.body.topic_length, self.hub.topic_levels_max)
        if valid == TEXT_BAD:
            raise ProtocolError(REASON_MALFORMED_PACKET, "the topic name is not valid UTF-8 [MQTT-1.5.4-1]")
        if valid != TEXT_OK:
            if topic_valid(pub.body.topic, pub.body.topic_length, 0) == TEXT_OK:
                raise ProtocolError(REASON_TOPIC_NAME_INVALID, f"the topic name has more than "
                                                               f"{self.hub.topic_levels_max} levels (broker.max_topic_levels)")
            raise ProtocolError(REASON_PROTOCOL_ERROR, "the topic name is empty [MQTT-4.7.3-1] or has a wildcard "
                                                       "[MQTT-3.3.2-2]")
        return self.remember(self.hub.routes.find(pub.body.topic, pub.body.topic_length))

    cdef route_t* remember(self, route_t* route) noexcept:
        if route != self.last_route:
            route.refs += 1
            if self.last_route != NULL:
                route_drop(self.last_route)
            self.last_route = route
            self.last_access = 0
        return route

    cdef int may_publish(self, route_t* route) except -1:
        """Whether the Authority lets this client publish to the route's topic; asked once per topic and generation."""
        cdef bytes topic
        cdef object answer
        if self.last_access == self.hub.access_generation + 1:
            return 1
        topic = (<const char*>route.topic)[:route.topic_length]
        if topic.startswith(b"$SYS/"):
            return 0                    # the broker's own, MQTT 5.0 section 4.7.2
        if not self.hub.open_publish:
            if self.allowed is None or self.allowed.get(None) != self.hub.access_generation:
                self.allowed = {None: self.hub.access_generation}
            answer = self.allowed.get(topic)
            if answer is None:
                answer = bool(self.handler.may_publish(self, topic))
                if len(self.allowed) > ALLOWED_MAX:
                    self.allowed = {None: self.hub.access_generation}
                if route.topic_length <= ALLOWED_TOPIC_BYTES_MAX:
                    self.allowed[topic] = answer
            if not answer:
                return 0
        self.last_access = self.hub.access_generation + 1
        return 1

    cdef int refuse_publish(self, uint8_t qos, uint16_t packet_id, uint8_t reason, str text) except -1:
        """MQTT 5 answers and goes on; 3.1.1 has no negative answer, so the connection ends [MQTT-3.3.5-2]."""
        self.hub.node.counters.publish_denied += 1
        if self.link.version != 5:
            raise ProtocolError(reason, text)
        if qos:
            self.handler.on_refused(self, PUBACK if qos == 1 else PUBREC, packet_id, reason, text)
        return 0

    cdef int throttle(self) except -1:
        """Stops reading a client that writes faster than the disk takes; Hub.resume_throttled goes on with it."""
        if self.hub.ledger.journal.backlog() > self.hub.backlog_max:
            self.pause_for(PAUSE_DISK)
            self.hub.throttled.append(self)
        return 0

    cdef int check_overrun(self) except -1:
        """Stops reading a client that sends and does not read: answers, unlike messages, are never dropped. Asked once per
        read, which brings 256 KiB of questions at most."""
        if self.phase == PHASE_OPEN and (self.link.pending > self.link.high + ANSWERS_BYTES_MAX
                                         or self.link.held > self.hub.receive_max):
            self.pause_for(PAUSE_ANSWERS)
        return 0

    cdef int acknowledge(self, uint8_t packet_type, uint16_t packet_id, uint8_t reason, bint recorded) except -1:
        """Answers when what was recorded for it is on disk, and never before an earlier one [MQTT-4.6.0-2]."""
        cdef uint64_t batch
        if recorded:
            batch = self.hub.ledger.batch()
        elif self.link.held:
            batch = self.link.held_batch
        else:
            if packet_type == PUBACK or packet_type == PUBCOMP or packet_type == PUBREC and reason >= 0x80:
                self.link.inbound -= 1
            return link_ack(self.link, packet_type, packet_id, reason)
        self.hub.ledger.hold(HELD_ACK, self.link, None, packet_type, packet_id, reason, batch)
        if self.link.version != 5 and self.link.held >= self.hub.receive_max:
            self.pause_for(PAUSE_ANSWERS)   # 3.1.1 has no word for it, MQTT 5 was told its Receive Maximum
        return 0

    # ---------------------------------------------------------------- acknowledgements

    cdef int on_ack(self, uint8_t packet_type, const uint8_t* at, const uint8_t* end) except -1:
        cdef uint16_t packet_id
        cdef uint8_t reason = 0
        cdef uint64_t records
        cdef bint known
        if end - at < 2 or (self.link.version != 5 and end - at != 2):
            raise ProtocolError(REASON_MALFORMED_PACKET, "an acknowledgement of the wrong length")
        packet_id = peek_u16(at)
        if packet_id == 0:
            raise ProtocolError(REASON_PROTOCOL_ERROR, "an acknowledgement of packet identifier 0 [MQTT-2.2.1-3]")
        if end - at > 2:
            reason = at[2]
            if end - at > 3 or reason:
                self.check_ack_properties(packet_type, at, end)
        if packet_type == PUBACK:
            return self.session.on_puback(packet_id)
        if packet_type == PUBREC:
            return self.session.on_pubrec(packet_id, reason)
        if packet_type == PUBCOMP:
            return self.session.on_pubcomp(packet_id)
        records = self.hub.ledger.records
        known = self.session.complete(packet_id)
        if not known:
            self.link.inbound += 1      # acknowledge takes one back
        return self.acknowledge(PUBCOMP, packet_id, REASON_SUCCESS if known else REASON_PACKET_IDENTIFIER_NOT_FOUND,
                                self.hub.ledger.records != records)

    cdef int check_ack_properties(self, uint8_t packet_type, const uint8_t* at, const uint8_t* end) except -1:
        """Cold: an acknowledgement with a reason or properties is decoded only to be validated."""
        from fluxmq._core.mqtt_decode import decode_packet
        decode_packet(packet_type << 4 | (2 if packet_type == PUBREL else 0),
                      PyBytes_FromStringAndSize(<const char*>at, end - at), 5)
        return 0

    # ---------------------------------------------------------------- WebSocket and TLS

    cdef int upgrade(self, const uint8_t* data, size_t n) except -1:
        """Waits for the whole HTTP request; the edge judges it."""
        cdef const uint8_t* blank = <const uint8_t*>memmem(data, n, <const char*>b"\r\n\r\n", 4)
        cdef size_t head
        if blank == NULL:
            if n > HTTP_BYTES_MAX:
                self.abort()
                return 0
            return self.keep_http(data, n)
        head = blank + 4 - data
        accepted, response = self.handler.on_http(self, PyBytes_FromStringAndSize(<const char*>data, head))
        self.write(response)
        if not accepted:
            self.end()
            return 0
        self.flush()
        if self.phase != PHASE_HTTP:
            return 0                    # the peer is gone already
        if self.link.head != NULL:
            self.abort()                # it takes not even this: no frame may be put in front of what is no frame
            return 0
        self.phase = PHASE_CONNECT
        self.link.websocket = 1
        self.keep(data, 0)
        if n > head:
            memmove(shared, data + head, n - head)
            self.unframe(0, n - head)
        return 0

    cdef int keep_http(self, const uint8_t* data, size_t n) except -1:
        cdef uint8_t paused = self.paused
        self.paused |= PAUSE_EDGE           # keep() must not look for an MQTT header in it
        try:
            return self.keep(data, n)
        finally:
            self.paused = paused

    cdef int handshake(self) except -1:
        """One step of the TLS handshake."""
        try:
            self.tls.do_handshake()
        except SSLWantReadError:
            return self.want(EPOLLIN)
        except SSLWantWriteError:
            return self.want(EPOLLIN | EPOLLOUT)
        except OSError as error:
            self.handler.on_error(self, 0, f"TLS handshake: {getattr(error, 'reason', None) or error}")
            self.abort()
            return 0
        self.want(EPOLLIN)
        self.heard_ms = self.hub.node.mono_ms
        self.phase = PHASE_HTTP if self.ws != NULL else PHASE_CONNECT
        return 0

    @property
    def certificate(self):
        """The peer's certificate as ssl.SSLSocket.getpeercert() tells it, or None."""
        return self.tls.getpeercert() if self.tls is not None else None

    # ---------------------------------------------------------------- out

    cdef int flush(self) except -1:
        """Sends what is waiting. Called by the poller for each dirty link, once per turn."""
        cdef int result
        if self.phase == PHASE_CLOSED:
            return 0
        if self.link.blocked:
            return 0
        result = self.flush_tls() if self.tls is not None else link_flush(self.link)
        if result < 0:
            self.abort()
            return 0
        if result == 1:
            self.link.blocked = 1
            self.want(self.interest | EPOLLOUT)
        elif self.interest & EPOLLOUT:
            self.want(self.interest & ~EPOLLOUT)
        if self.phase == PHASE_DRAINING:
            if result == 0 and not (self.link.open and self.link.held):
                self.finish()
        elif self.link.pending <= self.link.low:
            self.link.choked = 0
            if self.paused & PAUSE_ANSWERS and 2 * self.link.held <= self.hub.receive_max:
                self.resume_from(PAUSE_ANSWERS)
            if self.ws != NULL:
                ws_answer(self.ws, self.link, 0)
            if self.session is not None and (self.session.queued or self.session.resend_count):
                self.session.pump()
        return 0

    cdef int flush_tls(self) except -2:
        """As link_flush, through the TLS layer."""
        cdef chunk_t* chunk
        cdef ssize_t sent
        if self.phase == PHASE_TLS:
            return 1
        if self.link.websocket:
            link_seal(self.link)
        while self.link.head != NULL:
            chunk = self.link.head
            try:
                sent = self.tls.send(PyMemoryView_FromMemory(<char*>chunk.data + chunk.start, chunk.end - chunk.start,
                                                             PyBUF_READ))
            except (SSLWantWriteError, SSLWantReadError):
                return 1
            except OSError:
                return -1
            self.hub.node.counters.flushes += 1
            link_sent(self.link, sent)
        return 0

    cdef int want(self, uint32_t interest) except -1:
        cdef epoll_event event
        # A closed descriptor's number may be somebody else's by now.
        if interest == self.interest or self.phase == PHASE_CLOSED or self.epoll < 0:
            return 0
        self.interest = interest
        event.events = interest
        event.data.ptr = <void*>self
        if epoll_ctl(self.epoll, EPOLL_CTL_MOD, self.fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef void release_input(self) noexcept:
        free(self.carry)
        self.carry = NULL
        self.carry_length = self.carry_room = 0
        blob_drop(self.big)
        self.big = NULL
        self.big_have = 0

    cdef int finish(self) except -1:
        """Everything has left, or time is up. First our side is shut, so that the peer reads our last packet to its end;
        the descriptor goes when the peer has closed too, or when the deadline passes."""
        if self.phase == PHASE_CLOSED:
            return 0
        if not self.eof and self.link.head == NULL:
            self.eof = True             # the next call closes
            if self.tls is not None:
                try:
                    self.tls.unwrap()   # close_notify; that the peer's has not come yet is no error
                except (OSError, ValueError):
                    pass                # gone already, or never grown up: the socket is closed next
            shutdown(self.fd, SHUT_WR)
            self.want(EPOLLIN)
            return 0
        self.phase = PHASE_CLOSED
        self.state = None               # they point back at us: without them no garbage collection is needed
        self.session = None
        link_close(self.link)
        if self.tls is not None:
            self.tls.close()
        else:
            close(self.fd)
        self.hub.closed.append(self)
        return 0

    def tick(self) -> str:
        """What the clock says about this connection: "" or why it must end: connect, keep_alive, write, full, drain."""
        cdef int64_t now = self.hub.node.mono_ms
        if self.phase == PHASE_DRAINING:
            if now >= self.deadline_ms:
                self.eof = True
                self.finish()
            return ""
        if self.phase != PHASE_OPEN:
            return "connect" if self.deadline_ms and now >= self.deadline_ms else ""
        if self.keep_alive_ms and now - self.heard_ms > self.keep_alive_ms and not self.paused:
            return "keep_alive"
        if self.link.pending and self.write_timeout_ms and now - self.link.progress_ms > self.write_timeout_ms:
            return "write"
        if self.link.choked and self.hub.disconnect_on_full:
            return "full"
        return ""
