# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Handle. The byte stream of one connection: socket, TLS, WebSocket, buffers, orderly end. Subclasses parse the bytes
(connection.pyx for MQTT, amqp091_connection.pyx for AMQP); the base class records them (recorded.pyx). One of ring 0's
socket handles. See the .pxd.
It is one file because reading, pausing, sending and ending change the same state of one connection.

What the edge must provide (`handler`):

    on_http(transport, head) -> (bool, bytes)  the HTTP request of a WebSocket upgrade; accepted?, the response
    on_error(transport, reason, text)          the peer violated the protocol: answer and call end()
    on_crash(transport, exception)             an unexpected exception; the connection is closed afterwards
    on_given_up(transport, why)                a commit line gave up what an answer waits for: inform the peer; the
                                               connection is ended afterwards
    on_end(transport)                          called once, when the connection ends
"""
cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset
from posix.unistd cimport close

from ssl import SSLWantReadError, SSLWantWriteError

from fluxmq._core.debug cimport ensure, is_transition
from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.disk_pressure cimport DiskPressure
from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.hub.targets cimport PeerHop
from fluxmq._core.memory.commits cimport HELD_BYTES, must_wait
from fluxmq._core.memory.link cimport (
    chunk_t, link_close, link_drop, link_flush, link_mark, link_new, link_sent, link_tap, link_tap_skip,
    link_write,
)
from fluxmq._core.memory.message cimport blob_drop, blob_new, blob_resize
from fluxmq._core.memory.node cimport WORK_COLD, WORK_CONNECT, WORK_HANDSHAKE, is_fenced
from fluxmq._core.memory.tap cimport READERS
from fluxmq._core.memory.tickets cimport Tickets
from fluxmq._core.net.epoll cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, epoll_ctl, epoll_event,
)
from fluxmq._core.net.peer cimport peer_name
from fluxmq._core.net.websocket cimport WS_OK, ws_answer, ws_unframe

__all__ = ["PHASE_TRANSITIONS", "Transport"]

PHASES = ("TLS", "HTTP", "CONNECT", "OPEN", "DRAINING", "CLOSED")        # by number
PHASE_TRANSITIONS = {
    ("TLS", "handshake"): "CONNECT",
    ("TLS", "handshake, WebSocket"): "HTTP",
    ("TLS", "end"): "DRAINING",
    ("HTTP", "upgrade"): "CONNECT",
    ("HTTP", "end"): "DRAINING",
    ("CONNECT", "accept"): "OPEN",
    ("CONNECT", "end"): "DRAINING",
    ("OPEN", "end"): "DRAINING",
    ("DRAINING", "finish"): "CLOSED",
}

cdef bint may_follow(uint8_t phase, uint8_t after) noexcept:
    return is_transition(PHASES, PHASE_TRANSITIONS, phase, after)

cdef extern from "<string.h>" nogil:
    void* memmem(const void* hay, size_t n, const void* needle, size_t m)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* into, size_t n, int flags)
    int shutdown(int fd, int how)
    int SHUT_WR

cdef enum:
    READ_BYTES = 262144         # of one recv: thousands of small packets, yet fits in the second-level cache
    READ_BYTES_MIN = 8192       # of one recv of a peer whose reads exceed a share: the rest waits in the kernel
    CARRY_BYTES_MAX = 65536     # a packet longer than this is received in memory of its own
    BIG_BYTES_FIRST = 262144    # of that memory, which doubles as it fills: none is taken for bytes only announced
    HTTP_BYTES_MAX = 16384
    DRAIN_MS = 2000             # how long a closing connection may take to send its last bytes
    AGAIN = -1
    BROKEN = -2

# One per process: the event loop has one thread, and no read outlives its turn.
cdef uint8_t* shared = <uint8_t*>malloc(READ_BYTES + 2 * CARRY_BYTES_MAX)


@cython.no_gc_clear     # __dealloc__ reads `tls`; the cycle with `state` breaks on the other side
cdef class Transport(Recorded):
    """Handle. Owns the socket `fd` from construction on.

    hub: the node's. fd: a connected, non-blocking TCP socket; or a unique negative number if `tls` is an in-memory
    object that behaves like a socket (Poller.play). epoll: the poller's descriptor. handler: see above.
    tls: an ssl.SSLSocket over the same descriptor before its handshake, or None. websocket: expect an upgrade first.
    """

    def __cinit__(self, Hub hub not None, int fd, int epoll, object handler, object tls=None, bint websocket=False):
        cdef epoll_event event
        self.fd = -1
        self.hub = hub
        self.handler = handler
        self.tls = tls
        self.link = link_new(hub.node, fd)
        self.link.owner = <void*>self
        self.link.high = hub.limits.buffer_high
        self.link.low = hub.limits.buffer_low
        self.link.tls = tls is not None
        self.end_why = ""
        self.epoll = epoll
        self.last_received_ms = hub.node.mono_ms
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
        self.read_room = READ_BYTES
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

    @property
    def pending(self) -> int:
        """Bytes waiting to be sent."""
        return self.link.pending

    @property
    def dropped(self) -> int:
        """QoS 0 messages dropped because this connection did not read."""
        return self.link.dropped

    @property
    def ended(self) -> bool:
        return self.phase >= PHASE_DRAINING

    @property
    def peer(self) -> str:
        """Address of the peer, or of the client behind a balancer; "" if the connection is gone."""
        if self.phase == PHASE_CLOSED:
            return ""
        return str(self.proxied) if self.proxied is not None else peer_name(self.fd)

    def write(self, bytes data not None):
        """Queues one packet, to be sent at the end of the turn."""
        self.count(data)
        link_write(self.link, <const uint8_t*><const char*>data, <uint32_t>len(data))
        self.hub.touch()

    def write_when_durable(self, bytes data not None, uint64_t since):
        """As write, but only when everything recorded or given to commit lines since the mark (Commits.mark at that
        time) is committed, and behind earlier such writes. If a line gives it up, the connection ends: on_given_up."""
        if (self.waited or not must_wait(self.hub.commits, self.link, since)
                or not self.hub.commits.hold(HELD_BYTES, self.link, data, 0, 0, 0, since)):
            self.write(data)
            return
        self.count(data)
        self.hub.touch()

    def write_when_decided(self, bytes data not None, Tickets tickets not None):
        """As write_when_durable, of work that went over several turns: waits for what its steps gave."""
        if tickets.why is not None:
            self.on_given_up(0, 0, 0, 0, tickets.why)
            return
        tickets.collect()
        if not self.hub.commits.hold_needed(HELD_BYTES, self.link, data, 0, 0, 0):
            self.write(data)
            return
        self.count(data)
        self.hub.touch()

    cdef int throttle(self) except -1:
        """Called when the connection caused journal records. Pauses it while the disk or a checkpoint is behind;
        Poller.journal_turn resumes it."""
        cdef DiskPressure disk = self.hub.disk
        if disk.is_behind() or disk.is_ahead():
            self.pause_for(PAUSE_DISK)
            disk.throttled.append(self)
        return 0

    cdef int yield_to_peer(self, uint64_t since) except -1:
        """Called after a publish when Hub.crowded is not None. since: Commits.mark before. Pauses the connection if the
        message went to a node that acknowledges less than it is sent; Poller.end_turn resumes it."""
        cdef PeerHop peer = self.hub.crowded
        if self.hub.crowded_mark > since and self.phase < PHASE_DRAINING:
            if peer.paused is None:
                peer.paused = {}
            peer.paused[self] = None
            self.pause_for(PAUSE_PEER)
        return 0

    cdef int hold_back(self, Namespace namespace) except -1:
        """Pauses the connection because its namespace has used up its publish budget of this time slice, until
        Poller.begin_slice begins the next one."""
        if not self.paused & PAUSE_RATE:
            self.pause_for(PAUSE_RATE)
            namespace.held_back += 1
            namespace.waiting.append(self)
        return 0

    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1:
        """A commit line gave up what an answer waited for, so the connection ends without it."""
        if self.phase < PHASE_DRAINING:
            self.handler.on_given_up(self, why)
            self.end()
        return 0

    def write_behind(self, bytes data not None) -> bool:
        """As write, but behind everything of this connection that waits for the disk. Returns whether anything does."""
        cdef bint waits = self.link.held != 0
        self.write_when_durable(data, self.hub.commits.mark)
        return waits

    def pause(self):
        """Stops parsing and reading until resume(); bytes that have arrived are kept."""
        self.pause_for(PAUSE_EDGE)

    def resume(self):
        """Ends pause(); other PAUSE_* reasons remain in force."""
        self.resume_from(PAUSE_EDGE)

    def ask(self):
        """Pauses until answered(): authorization of the packet in front is pending."""
        self.pause_for(PAUSE_ASK)

    def answered(self):
        """Ends ask(): the packet in front is handled again, with the answers in `verdicts`."""
        self.resume_from(PAUSE_ASK)

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
        """Sends what is pending, then closes. Detaches the session and calls on_end at once.

        finish_acknowledging: also sends answers that still wait for the disk; otherwise nothing more is written, as
        after the broker's DISCONNECT [MQTT-3.14.4-1].
        """
        if self.phase >= PHASE_DRAINING:
            return
        enter_phase(self, PHASE_DRAINING)
        self.link.open = finish_acknowledging
        if self.paused & PAUSE_PEER:
            for peer in self.hub.targets.peers:
                if (<PeerHop>peer).paused is not None:
                    (<PeerHop>peer).paused.pop(self, None)
        self.paused = 0
        self.verdicts = None
        self.release_input()
        self.deadline_ms = self.hub.node.mono_ms + DRAIN_MS
        self.let_go()
        if not self.reported:
            self.reported = True
            self.handler.on_end(self)
        link_mark(self.link)
        self.hub.touch()

    def abort(self):
        """Closes now; pending output is lost."""
        self.end()
        self.finish()

    cdef int defer(self, uint32_t events) except -1:
        """Leaves the rest and these epoll events to a later round (go_on), behind connections already waiting."""
        self.deferred |= events
        if not self.resumed:
            self.resumed = True
            self.hub.resumed.append(self)
        return 0

    cdef bint spent(self) noexcept:
        """Whether its share of this round is used up."""
        return self.hub.node.work >= self.work_end

    cdef void rest(self) noexcept:
        """Ends the connection's turn in this round."""
        self.greedy = self.spent()
        self.served = self.hub.node.turn

    cdef int on_event(self, uint32_t events) except -1:
        """Handles one readiness report of the poller. Never raises because of what a peer sent."""
        cdef uint32_t later = 0
        if self.phase < PHASE_DRAINING:
            if self.phase == PHASE_TLS:
                if self.hub.node.work >= self.hub.node.work_round:
                    later = events          # many handshakes at once are spread over several rounds
            elif self.resumed or self.greedy:
                later = events & (EPOLLIN | EPOLLHUP | EPOLLERR)
        if later:
            self.defer(later)
        return self.serve(events & ~later) if events != later else 0

    cdef int serve(self, uint32_t events) except -1:
        """Handles the reported events, until the connection's share is used up."""
        self.work_end = self.hub.node.work + self.hub.node.work_share
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
                    # A TLS read had to wait for the socket to become writable: repeat the read.
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
        self.rest()
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
        """After resume() or defer(): parses the bytes kept, then handles the events reported meanwhile."""
        cdef uint32_t events = self.deferred
        self.resumed = False
        self.deferred = 0
        if self.phase >= PHASE_DRAINING:
            return 0
        if self.phase == PHASE_TLS or self.paused:
            return self.serve(events) if events else 0
        self.work_end = self.hub.node.work + self.hub.node.work_share
        try:
            if self.waits():
                self.last_received_ms = self.hub.node.mono_ms   # the bytes may have waited long: keep alive starts anew
                self.take_carried()
            if self.closing and not self.paused and not self.resumed:
                self.end()
            if not self.paused and not self.resumed and self.phase < PHASE_DRAINING and (
                    events or self.tls is not None):
                self.on_readable()      # bytes may wait inside the TLS layer, where epoll does not see them
        except ProtocolError as error:
            self.fail(error)
        except OSError:
            self.abort()
        except Exception as error:
            self.crash(error)
        self.rest()
        return 0

    cdef bint waits(self) noexcept:
        """Whether received bytes are not handled yet."""
        return self.carry_length != 0 or (self.big != NULL and self.big_have == self.big_size)

    cdef int take_carried(self) except -1:
        """Parses the kept bytes in place. Bytes not handled now stay there (keep), so a long input that takes several
        shares is neither copied nor scanned again for each."""
        cdef uint8_t* at = self.carry + self.carry_start
        cdef size_t n = self.carry_length
        self.input = self.carry
        self.input_room = self.carry_room
        self.carry = NULL
        self.carry_start = self.carry_length = self.carry_room = 0
        try:
            self.take(at, n)
        finally:
            free(self.input)            # NULL: it is carry again
            self.input = NULL
        return 0

    cdef int on_readable(self) except -1:
        cdef ssize_t got
        cdef size_t n
        cdef size_t room = self.read_room
        if self.resumed:
            return 0                # go_on parses carry first; it may leave no room in `shared`
        while True:
            if self.big != NULL and self.ws == NULL and self.tls is None:
                return self.receive_big()
            n = self.carry_length
            if n:
                memcpy(shared, self.carry + self.carry_start, n)
            got = self.receive(shared + n, room)
            if got == AGAIN:
                return 0
            if got <= 0:
                return self.let_go_of_peer()
            self.last_received_ms = self.hub.node.mono_ms
            self.hub.node.counters.bytes_received += got
            self.hub.node.counters.reads += 1
            if self.phase == PHASE_DRAINING:
                return 0
            self.carry_length = 0
            if self.ws == NULL or self.phase == PHASE_HTTP:
                self.take(shared, n + got)
            else:
                self.unframe(n, got)
            if self.resumed and self.spent():
                self.read_room = max(<uint32_t>READ_BYTES_MIN, self.read_room // 2)
            elif got == <ssize_t>room:
                self.read_room = min(<uint32_t>READ_BYTES, self.read_room * 2)
            # Bytes left in the socket are read in the next round. epoll does not report bytes that the TLS layer has
            # already taken from the socket (the rest of one record), so exactly those are read now, and no more: a fast
            # peer must not hold up the round.
            if (self.tls is None or got < <ssize_t>room or self.paused or self.resumed
                    or self.phase >= PHASE_DRAINING):
                return 0
            room = <size_t>self.tls.pending()
            if room == 0:
                return 0

    cdef int let_go_of_peer(self) except -1:
        """The peer has closed, or the connection has failed. Thousands that go at once end over several rounds."""
        if not self.eof and self.phase < PHASE_DRAINING and self.hub.node.work >= self.hub.node.work_round:
            self.eof = True
            self.want(self.interest & ~EPOLLIN)     # or epoll would report it in each round until then
            return self.defer(EPOLLIN)
        self.eof = True
        self.hub.node.work += WORK_COLD
        self.abort()
        return 0

    cdef int unframe(self, size_t n, size_t got) except -1:
        """shared[n:n+got] are WebSocket bytes behind n MQTT bytes."""
        cdef size_t mqtt = 0
        cdef int result = ws_unframe(self.ws, shared + n, got, &mqtt)
        ws_answer(self.ws, self.link, 0)
        self.take(shared, n + mqtt)
        ws_answer(self.ws, self.link, 1)
        if result != WS_OK:
            if (self.paused or self.resumed) and self.waits():
                self.closing = True     # bytes received before Close are handled first (go_on)
            else:
                self.end()
        return 0

    cdef ssize_t receive(self, uint8_t* into, size_t room) except -3:
        """Returns the bytes read; 0: the peer closed; AGAIN: nothing has arrived; BROKEN: the connection has failed."""
        cdef ssize_t got
        cdef size_t total = 0
        # draining: input is discarded, so it needs no decryption
        if self.tls is None or (self.phase == PHASE_DRAINING and self.fd >= 0):
            while True:
                got = recv(self.fd, into, room, 0)
                if got >= 0:
                    return got
                if errno != EINTR:
                    return AGAIN if errno == EAGAIN else BROKEN
        while total < room:
            try:
                got = self.tls.read(room - total,
                                    PyMemoryView_FromMemory(<char*>into + total, room - total, PyBUF_WRITE))
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
        """Receives the rest of a large packet directly into its own memory."""
        cdef ssize_t got
        if self.big_have == self.big.size:
            self.big_room(1)
        got = self.receive(self.big.data + self.big_have, self.big.size - self.big_have)
        if got == AGAIN:
            return 0
        if got <= 0:
            return self.let_go_of_peer()
        self.last_received_ms = self.hub.node.mono_ms
        self.hub.node.counters.bytes_received += got
        self.hub.node.counters.reads += 1
        if self.phase == PHASE_DRAINING:
            return 0
        self.big_have += got
        if self.big_have == self.big_size and self.take_big() == MORE:
            self.defer(0)
        return 0

    cdef int big_room(self, size_t n) except -1:
        """Makes room in `big` for n more bytes of its packet."""
        cdef size_t room = self.big_have + n
        ensure(room <= self.big_size)
        if room > self.big.size:
            room = min(max(room, 2 * <size_t>self.big.size), <size_t>self.big_size)
            self.big = blob_resize(self.big, room)
        return 0

    cdef int take_big(self) except -1:
        """Handles a complete packet in memory of its own, and releases it unless it must be handled again."""
        cdef blob_t* blob = self.big
        cdef int result = DONE
        cdef int reader
        if self.hub.node.tap != NULL:
            self.tap_big(blob)
        self.big = NULL
        self.big_have = 0
        try:
            result = self.dispatch_big(blob)
        finally:
            if (result == ASK or result == MORE) and self.phase < PHASE_DRAINING:
                self.big = blob
                self.big_have = self.big_size
            else:
                self.verdicts = None
                for reader in range(READERS):
                    self.big_recorded[reader] = 0
                blob_drop(blob)
        return result

    cdef int take(self, uint8_t* data, size_t n) except -1:
        """data[0:n]: everything received and not yet parsed."""
        cdef ssize_t used
        cdef size_t rest
        if self.phase == PHASE_HTTP:
            return self.upgrade(data, n)
        self.announced = 0
        if self.big != NULL:
            rest = self.big_size - self.big_have
            if rest > n:
                rest = n
            if rest:                    # 0: the packet waits to be handled again
                self.big_room(rest)
                memcpy(self.big.data + self.big_have, data, rest)
                self.big_have += rest
                data += rest
                n -= rest
            if self.big_have < self.big_size:
                return 0
            if self.take_big() == MORE:
                self.defer(0)
            if self.phase >= PHASE_DRAINING:
                return 0
            if self.paused or self.big != NULL:
                return self.keep(data, n)
        used = self.parse(data, n) if self.hub.node.tap == NULL else self.parse_tapped(data, n)
        if self.phase >= PHASE_DRAINING:
            return 0
        return self.keep(data + used, n - used)

    cdef int keep(self, const uint8_t* data, size_t n) except -1:
        """Keeps what parse has left: an incomplete packet; or, where it stopped for another reason, bytes of which not
        even a header has been read. Nothing is concluded from these here."""
        cdef uint8_t* grown
        if n == 0:
            if self.carry != NULL:
                free(self.carry)
                self.carry = NULL
                self.carry_room = 0
            self.carry_start = self.carry_length = 0
            return 0
        if (self.paused or self.resumed) and self.input != NULL and (
                self.input <= data < self.input + self.input_room):
            self.carry = self.input     # kept in place, no copy
            self.carry_room = self.input_room
            self.carry_start = data - self.input
            self.carry_length = n
            self.input = NULL
            return 0
        if not self.paused and self.announced > CARRY_BYTES_MAX:
            ensure(n < self.announced)
            self.big_size = self.announced
            self.big = blob_new(min(max(n, <size_t>BIG_BYTES_FIRST), <size_t>self.big_size))
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
        self.carry_start = 0
        self.carry_length = n
        return 0

    cdef int upgrade(self, const uint8_t* data, size_t n) except -1:
        """Waits for the whole HTTP request, then lets the edge accept or reject it."""
        cdef const uint8_t* blank = <const uint8_t*>memmem(data, n, <const char*>b"\r\n\r\n", 4)
        cdef size_t head
        self.hub.node.work += WORK_CONNECT
        if blank == NULL:
            if n > HTTP_BYTES_MAX:
                self.abort()
                return 0
            return self.keep_http(data, n)
        head = blank + 4 - data
        accepted, response = self.handler.on_http(self, PyBytes_FromStringAndSize(<const char*>data, head))
        link_write(self.link, <const uint8_t*><const char*><bytes>response, <uint32_t>len(response))
        link_tap_skip(self.link)        # HTTP is not recorded
        self.hub.touch()
        if not accepted:
            self.end()
            return 0
        self.flush()
        if self.phase != PHASE_HTTP:
            return 0                    # the peer is gone already
        if self.link.head != NULL:
            self.abort()                # the socket did not take the response: no WebSocket frame may mix with its rest
            return 0
        enter_phase(self, PHASE_CONNECT)
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
        self.hub.node.work += WORK_HANDSHAKE
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
        self.last_received_ms = self.hub.node.mono_ms
        enter_phase(self, PHASE_HTTP if self.ws != NULL else PHASE_CONNECT)
        return 0

    @property
    def certificate(self):
        """The peer's certificate as ssl.SSLSocket.getpeercert() returns it, or None; without TLS the one that a
        balancer has verified."""
        if self.tls is not None:
            return self.tls.getpeercert()
        return self.proxied.certificate if self.proxied is not None else None

    cdef int flush(self) except -1:
        """Sends pending output. The poller calls it once per turn for each dirty link."""
        cdef int result
        if self.phase == PHASE_CLOSED:
            return 0
        if self.link.blocked:
            return 0
        if is_fenced(self.hub.node):
            # The poller reports it at the beginning of the next turn. If the node may go on, the output is sent then.
            self.link.blocked = 1
            self.want(self.interest | EPOLLOUT)
            return 0
        if self.hub.node.tap != NULL:
            link_tap(self.link)
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
            # Deliveries stop at the high water mark, so bytes beyond twice that are answers.
            if (self.paused & PAUSE_ANSWERS and 2 * self.link.held <= self.hub.limits.receive_max
                    and self.link.awaited <= self.link.high):
                self.resume_from(PAUSE_ANSWERS)
            if self.ws != NULL:
                ws_answer(self.ws, self.link, 0)
            self.drained()
        return 0

    cdef int flush_tls(self) except -2:
        """As link_flush, through the TLS layer."""
        cdef chunk_t* chunk
        cdef ssize_t sent
        if self.phase == PHASE_TLS:
            return 1
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
        # The number of a closed descriptor may belong to another connection by now.
        if interest == self.interest or self.phase == PHASE_CLOSED or self.epoll < 0:
            return 0
        self.interest = interest
        event.events = interest
        event.data.ptr = <void*>self
        if epoll_ctl(self.epoll, EPOLL_CTL_MOD, self.fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef void unwatch(self) noexcept:
        """Before the descriptor is closed. That alone does not end the watch while another process has the socket, as a
        child has from its fork until it executes its program; the next event would be for an object that is gone."""
        cdef epoll_event event
        if self.epoll >= 0:
            epoll_ctl(self.epoll, EPOLL_CTL_DEL, self.fd, &event)

    cdef void release_input(self) noexcept:
        free(self.carry)
        self.carry = NULL
        self.carry_start = self.carry_length = self.carry_room = 0
        blob_drop(self.big)
        self.big = NULL
        self.big_have = 0

    cdef int finish(self) except -1:
        """All output was sent, or the deadline has passed. First shuts down the sending side, so that the peer gets the
        last packet whole; closes the descriptor when the peer has closed too, or at the deadline."""
        if self.phase == PHASE_CLOSED:
            return 0
        if not self.eof and self.link.head == NULL:
            self.eof = True             # the next call closes
            if self.tls is not None:
                try:
                    self.tls.unwrap()   # sends close_notify; the peer's may still be missing
                except (OSError, ValueError):
                    pass                # connection gone or handshake incomplete: the socket is closed next
            if self.fd >= 0:
                shutdown(self.fd, SHUT_WR)
            self.want(EPOLLIN)
            return 0
        enter_phase(self, PHASE_CLOSED)
        if self.hub.node.tap != NULL:
            self.record_closed()
        self.state = None               # breaks the reference cycle, so that no garbage collection is needed
        link_close(self.link)
        self.unwatch()
        if self.tls is not None:
            self.tls.close()
        else:
            close(self.fd)
        self.hub.closed.append(self)
        return 0

    @property
    def websocket(self) -> bool:
        return self.ws != NULL

    @property
    def secure(self) -> bool:
        """Whether the connection uses TLS."""
        return self.tls is not None

    # ---------------------------------------------------------------- overridden by the protocol

    cdef int too_large(self, uint64_t size) except -1:
        """Raises the protocol's error: the packet in front has more bytes than packet_bytes_max."""
        raise NotImplementedError

    cdef int dispatch_big(self, blob_t* blob) except -1:
        """Handles one complete packet in memory of its own: DONE, REFUSED or ASK."""
        raise NotImplementedError

    cdef void count(self, bytes packet) noexcept:
        """Counts a packet that the cold half sends."""

    cdef void let_go(self) noexcept:
        """The connection ends: detaches the session or the channels that send through it."""

    cdef int drained(self) except -1:
        """The outbound buffer is below its low water mark: sends more from queues and sessions."""
        return 0
