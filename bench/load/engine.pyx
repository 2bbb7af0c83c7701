# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The load generator's loop: publishers and subscribers as C structs, one thread, one epoll, no GIL.

A turn: wait, read everything that is readable (one recv per connection), answer and count; let publishers with room
in their window write as many PUBLISH as it allows (closed loop), or those whose time has come (open loop); then one
send per connection that has output. Python runs between slices of about 50 ms, for signals and phases only.

Payload, when it has 16 bytes or more:

    0         8               16
    +---------+---------------+------------ - -
    | head    | sent at, ns   | filler
    +---------+---------------+------------ - -
    head, native u64: run tag 12 bits | publisher 16 bits | sequence number 36 bits

The tag tells this run's messages from those of an earlier one that a persistent session may still hold.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from bench.load.buckets cimport Buckets
from bench.load.loop cimport (
    FAIL_CLOSED, FAIL_DISCONNECT, FAIL_MALFORMED, FAIL_MEMORY, FAIL_NONE, FAIL_REFUSED, FAIL_SUBSCRIPTION,
    PUBLISHER_BITS, TAG_BITS, Loop, loop_fail, loop_idle, loop_mark, loop_wake)
from bench.load.peer cimport (
    ROLE_CHURN, ROLE_PUBLISHER, ROLE_SUBSCRIBER, STATE_CLOSED, Peer, Role, peer_flush, peer_free, peer_put)
from bench.load.publishing cimport churn, publish_due, publish_ready
from bench.load.reading cimport PART_MAX, READ_MAX, read_peer
from bench.load.sequence cimport LAYOUT_ALL, LAYOUT_PAIRS, LAYOUT_SHARED, Layout, ring_lost, track_lost
from bench.load.sequence_alloc cimport sequences_free, sequences_init
from bench.load.system cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, close, epoll_create1, epoll_event, load_clock,
    load_sharp_timers, load_wait, load_watch)

from fluxmq.bench.load.histogram import Histogram

__all__ = ["Engine", "LoadError"]

cdef enum:
    EVENTS = 1024
    SLICE_NS = 50000000         # without the GIL at a time
    STALL_NS = 2000000000       # a closed loop in which nothing moves for so long has lost what is in flight

cdef enum Until:
    UNTIL_TIME = 0
    UNTIL_CONNECTED = 1
    UNTIL_IDLE = 2

# Seeds the masking keys: any odd number with bits all over will do.
cdef uint64_t GOLDEN = 0x9E3779B97F4A7C15u


class LoadError(Exception):
    """The broker, or the way to it, did something that ends the run. The text says which connection and what."""


@cython.final
cdef class Engine:
    """Connections to one broker and the messages that flow over them.

    version: 4 (MQTT 3.1.1) or 5. publishers, subscribers: how many will be attached. layout: "all", "pairs" or
    "shared", as for Analyser. groups: of shared subscriptions. window: messages in flight in all (closed loop);
    rate: messages per second in all (open loop), 0.0 for a closed loop. checked: payloads carry the 16 bytes.
    tag: number of the run, 0 to 4095. batch: most PUBLISH that one connection sends at a time in a closed loop; 0 for
    as many as the window allows.
    Raises ValueError for numbers that do not fit, MemoryError, OSError when there is no epoll.
    """
    cdef Loop loop
    cdef list keep                      # sockets, so that the borrowed pointers and descriptors stay alive

    def __cinit__(self, *, int version, uint32_t publishers, uint32_t subscribers, str layout = "all",
                  uint32_t groups = 1, uint64_t window = 1000, double rate = 0.0, bint checked = True, uint32_t tag = 0,
                  uint64_t batch = 0):
        # First of all: __dealloc__ runs also when an argument is refused, and descriptor 0 is somebody's.
        self.loop.epoll = -1
        cdef dict layouts = {"all": LAYOUT_ALL, "pairs": LAYOUT_PAIRS, "shared": LAYOUT_SHARED}
        if version not in (4, 5):
            raise ValueError(f"the protocol version is 4 (MQTT 3.1.1) or 5, not {version}")
        if layout not in layouts:
            raise ValueError(f"layout is one of all, pairs, shared; not {layout!r}")
        if layout == "pairs" and publishers != subscribers:
            raise ValueError(f"pairs need as many publishers ({publishers}) as subscribers ({subscribers})")
        if publishers >= 1 << PUBLISHER_BITS:
            raise ValueError(f"at most {(1 << PUBLISHER_BITS) - 1} publishers, not {publishers}")
        if <uint64_t>publishers * subscribers > 1 << 25 and layout != "pairs":
            raise ValueError("publishers times subscribers is at most 33 554 432: each pair has its own counters")
        if window < 1 or window > 1 << 24:
            raise ValueError("the window is 1 to 16 777 216 messages")
        if rate < 0 or rate > 1e8:
            raise ValueError("the rate is 0 (closed loop) to 100 000 000 messages per second")
        self.loop.version = <uint8_t>version
        self.loop.publishers, self.loop.subscribers = publishers, subscribers
        self.loop.window, self.loop.checked, self.loop.tag = window, checked, tag & ((1 << TAG_BITS) - 1)
        self.loop.interval_ns = <uint64_t>(1e9 / rate) if rate > 0 else 0
        self.loop.fanout = subscribers if layout == "all" else (1 if layout == "pairs" else groups)
        if layout == "shared" and not 1 <= groups <= max(subscribers, 1):
            raise ValueError("there are 1 to as many groups of shared subscriptions as subscribers")
        self.loop.batch = batch if batch else window
        self.keep = []
        cdef uint64_t words = 1024
        while words * 64 < window * 4:
            words *= 2
        cdef int kind = layouts[layout]
        if sequences_init(&self.loop.sequences, <Layout>kind, publishers, subscribers, groups, words) != 0:
            raise MemoryError
        self.loop.inbox = <uint8_t*>malloc(PART_MAX + READ_MAX)
        self.loop.publisher_at = <uint32_t*>calloc(publishers + 1, sizeof(uint32_t))
        self.loop.ready = <uint32_t*>calloc(publishers + 1, sizeof(uint32_t))
        if self.loop.inbox == NULL or self.loop.publisher_at == NULL or self.loop.ready == NULL:
            raise MemoryError
        self.loop.epoll = epoll_create1(0)
        if self.loop.epoll < 0:
            raise OSError("no epoll descriptor could be had")
        load_sharp_timers()

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.loop.peers_count):
            peer_free(self.loop.peers + i)
        free(self.loop.peers)
        free(self.loop.dirty)
        free(self.loop.ready)
        free(self.loop.publisher_at)
        free(self.loop.inbox)
        sequences_free(&self.loop.sequences)
        if self.loop.epoll >= 0:
            close(self.loop.epoll)

    # --- setting up -------------------------------------------------------------------------------------------------

    def attach_subscriber(self, sock, bytes connect not None, bytes subscribe not None, uint16_t packet_id,
                          bint websocket = False) -> None:
        """Add a connected non-blocking socket (plain or ssl.SSLSocket) that will send CONNECT, then SUBSCRIBE.

        packet_id: of the SUBSCRIBE. websocket: the upgrade has been done. Raises LoadError, MemoryError.
        """
        cdef Peer* p = self.attach(sock, ROLE_SUBSCRIBER, self.loop.subscribers_attached, websocket)
        self.loop.subscribers_attached += 1
        p.subscribe_id = packet_id
        p.unreleased = <uint8_t*>calloc(8192, 1)
        if p.unreleased == NULL:
            raise MemoryError
        self.set_template(p, subscribe)
        self.hello(p, connect)

    def attach_publisher(self, sock, bytes connect not None, bytes template not None, size_t id_at, size_t head_at,
                         size_t fresh_at, uint32_t acks_max, bint websocket = False) -> None:
        """Add a connected non-blocking socket that will send CONNECT, then copies of the PUBLISH in `template`.

        id_at: offset of the packet identifier, 0 for QoS 0. head_at: of the 16 bytes, 0 for none. fresh_at: of seven
        characters of the topic that become the sequence number in hexadecimal, 0 for none. acks_max: how many
        unacknowledged messages the connection may have in an open loop; a closed loop takes its share of the window.
        Raises LoadError, MemoryError.
        """
        if self.loop.publishers_attached == self.loop.publishers:
            raise LoadError(f"{self.loop.publishers} publishers were announced, and there is one more")
        cdef Peer* p = self.attach(sock, ROLE_PUBLISHER, self.loop.publishers_attached, websocket)
        cdef Loop* s = &self.loop
        cdef uint64_t share = s.window // s.publishers + (p.index < s.window % s.publishers)
        cdef uint64_t room = 1
        self.loop.publisher_at[p.index] = p.number
        self.loop.publishers_attached += 1
        share = max(share, 1)
        while room < share:
            room *= 2
        p.missing_mask = room - 1
        p.missing = <uint32_t*>calloc(room, sizeof(uint32_t))
        p.id_at, p.head_at, p.fresh_at = id_at, head_at, fresh_at
        p.acks_max = <uint32_t>min(acks_max if self.loop.interval_ns else share, 65535)
        p.acks = <uint64_t*>calloc(p.acks_max + 1, sizeof(uint64_t))
        if p.missing == NULL or p.acks == NULL:
            raise MemoryError
        self.set_template(p, template)
        self.hello(p, connect)

    def attach_churn(self, sock, bytes connect not None, double rate, bint websocket = False) -> None:
        """Add a connection that makes `rate` subscriptions per second and gives each up again 100 later.

        Raises LoadError, MemoryError, ValueError when the rate is not positive.
        """
        if not 0 < rate <= 1e6:
            raise ValueError("the rate of subscriptions is more than 0 and at most 1 000 000 per second")
        self.loop.churn_interval = <uint64_t>(1e9 / rate)
        self.hello(self.attach(sock, ROLE_CHURN, 0, websocket), connect)

    cdef Peer* attach(self, object sock, Role role, uint32_t index, bint websocket) except NULL:
        cdef Peer* grown
        cdef Peer* p
        if self.loop.peers_count == self.loop.peers_room:
            grown = <Peer*>realloc(self.loop.peers, (self.loop.peers_room * 2 + 16) * sizeof(Peer))
            if grown == NULL:
                raise MemoryError
            self.loop.peers = grown
            self.loop.peers_room = self.loop.peers_room * 2 + 16
            self.loop.dirty = <uint32_t*>realloc(self.loop.dirty, self.loop.peers_room * sizeof(uint32_t))
            if self.loop.dirty == NULL:
                raise MemoryError
        p = self.loop.peers + self.loop.peers_count
        memset(p, 0, sizeof(Peer))
        p.fd = sock.fileno()
        p.number, p.index, p.role, p.is_ws = self.loop.peers_count, index, role, websocket
        p.ws.random = (<uint64_t>p.number + 1) * GOLDEN
        if hasattr(sock, "pending"):
            p.tls = <void*>sock
        self.keep.append(sock)
        self.loop.peers_count += 1
        if load_watch(self.loop.epoll, EPOLL_CTL_ADD, p.fd, EPOLLIN, p.number) != 0:
            raise LoadError("a connection cannot be watched: is its descriptor open?")
        return p

    cdef int set_template(self, Peer* p, bytes packet) except -1:
        p.template = <uint8_t*>malloc(len(packet) + 1)
        if p.template == NULL:
            raise MemoryError
        memcpy(p.template, PyBytes_AS_STRING(packet), len(packet))
        p.template_size = len(packet)
        return 0

    cdef int hello(self, Peer* p, bytes connect) except -1:
        self.loop.connecting += 1
        if peer_put(p, <const uint8_t*>PyBytes_AS_STRING(connect), len(connect)) != 0:
            raise MemoryError
        loop_mark(&self.loop, p)
        return 0

    # --- running ----------------------------------------------------------------------------------------------------

    def connect(self, double seconds) -> None:
        """Turn until every attached connection has its CONNACK and SUBACK. Raises LoadError, also after `seconds`."""
        self.slice(seconds, UNTIL_CONNECTED)
        if self.loop.connecting:
            raise LoadError(f"{self.loop.connecting} connections had no CONNACK or SUBACK within {seconds:g} s")

    def start(self) -> None:
        """Let the publishers publish from the next turn on."""
        cdef uint32_t i
        cdef Loop* s = &self.loop
        if s.publishers_attached != s.publishers or s.subscribers_attached != s.subscribers:
            raise LoadError("not all announced publishers and subscribers are attached")
        self.loop.publishing = True
        self.loop.now = self.loop.open_start = self.loop.due_at = load_clock()
        if self.loop.churn_interval:
            self.loop.churn_due = self.loop.now
        for i in range(self.loop.publishers):
            loop_wake(&self.loop, self.loop.peers + self.loop.publisher_at[i])

    def turn(self, double seconds) -> None:
        """Run for that long. Raises LoadError when a connection ends."""
        self.slice(seconds, UNTIL_TIME)

    def measure(self, bint on) -> None:
        """Begin (and forget earlier latencies) or end the recording of latencies."""
        if on:
            memset(&self.loop.latency, 0, sizeof(Buckets))
            memset(&self.loop.ack_latency, 0, sizeof(Buckets))
            self.loop.late_max = 0
        self.loop.measuring = on

    def drain(self, double seconds) -> bool:
        """Publish no more; turn until everything in flight has arrived and is acknowledged, while there is progress.

        seconds: how long without progress is given up. True when nothing is left in flight.
        """
        cdef uint64_t before
        self.loop.publishing = False
        self.loop.churn_interval = 0
        while not loop_idle(&self.loop):
            before = self.loop.received + self.loop.acked
            self.slice(seconds, UNTIL_IDLE)
            if self.loop.received + self.loop.acked == before:
                break
        return bool(loop_idle(&self.loop))

    def ping(self) -> None:
        """Queue a PINGREQ on every connection; the next turn sends it."""
        cdef uint8_t packet[2]
        packet[0], packet[1] = 0xC0, 0
        cdef uint32_t i
        for i in range(self.loop.peers_count):
            peer_put(self.loop.peers + i, packet, 2)
            loop_mark(&self.loop, self.loop.peers + i)

    def disconnect(self, bytes packet not None) -> None:
        """Send a DISCONNECT packet on every connection. What the broker then does raises nothing."""
        cdef uint32_t i
        for i in range(self.loop.peers_count):
            peer_put(self.loop.peers + i, <const uint8_t*>PyBytes_AS_STRING(packet), len(packet))
            peer_flush(self.loop.peers + i)
            load_watch(self.loop.epoll, EPOLL_CTL_DEL, self.loop.peers[i].fd, 0, 0)

    def counts(self) -> dict[str, int]:
        """Totals since the start.

        sent, received (every PUBLISH that came), delivered (without repetitions), duplicates, reordered, foreign
        (not of this run, or at the wrong subscriber), acked (PUBACK or PUBCOMP), refused (of these, with a reason
        code of 0x80 or more), overruns (open loop: messages left out because the broker does not read or
        acknowledge), churned (SUBACK and UNSUBACK), stalls (closed loop: times that nothing moved for two seconds
        and the window was written off), expected (deliveries of what was sent), lost (of these, not come).
        """
        cdef Loop* s = &self.loop
        cdef uint64_t expected = s.sent * s.fanout
        cdef uint64_t lost = self.lost() if s.checked else (expected - s.received if expected > s.received else 0)
        return {"sent": s.sent, "received": s.received,
                "delivered": s.sequences.first if s.checked else s.received,
                "duplicates": s.sequences.again, "reordered": s.sequences.late,
                "foreign": s.sequences.foreign + s.foreign, "acked": s.acked, "refused": s.refused,
                "overruns": s.overruns, "churned": s.churned, "stalls": s.stalls, "expected": expected, "lost": lost}

    cdef uint64_t lost(self) noexcept:
        cdef Loop* s = &self.loop
        cdef uint64_t lost = 0
        cdef uint64_t sent
        cdef uint32_t i, k
        cdef uint32_t receivers = s.sequences.groups if s.sequences.layout == LAYOUT_SHARED else s.subscribers
        for i in range(s.publishers_attached):
            sent = s.peers[s.publisher_at[i]].next
            if s.sequences.layout == LAYOUT_PAIRS:
                lost += track_lost(s.sequences.tracks + i, sent)
                continue
            for k in range(receivers):
                if s.sequences.layout == LAYOUT_SHARED:
                    lost += ring_lost(s.sequences.rings + <size_t>k * s.publishers + i, sent)
                else:
                    lost += track_lost(s.sequences.tracks + <size_t>k * s.publishers + i, sent)
        return lost

    def latencies(self) -> tuple[object, object]:
        """(delivery, acknowledgement) Histograms: send to PUBLISH received, send to PUBACK or PUBCOMP received."""
        return (Histogram.from_bytes(PyBytes_FromStringAndSize(<char*>&self.loop.latency, sizeof(Buckets))),
                Histogram.from_bytes(PyBytes_FromStringAndSize(<char*>&self.loop.ack_latency, sizeof(Buckets))))

    @property
    def lateness_max(self) -> int:
        """Open loop: the most that a message was sent after its time, in ns, since measuring began."""
        return self.loop.late_max

    @property
    def clock(self) -> int:
        """CLOCK_MONOTONIC in ns at the last turn."""
        return self.loop.now

    cdef int slice(self, double seconds, Until until) except -1:
        cdef uint64_t end = load_clock() + <uint64_t>(max(seconds, 0.0) * 1e9)
        cdef uint64_t piece
        while True:
            piece = min(load_clock() + SLICE_NS, end)
            with nogil:
                loop_spin(&self.loop, piece, until)
            PyErr_CheckSignals()
            self.unblock()
            if self.loop.failure != FAIL_NONE:
                raise LoadError(self.failure_text())
            if load_clock() >= end or (until == UNTIL_CONNECTED and self.loop.connecting == 0) \
                    or (until == UNTIL_IDLE and loop_idle(&self.loop)):
                return 0

    cdef void unblock(self) noexcept nogil:
        """A closed loop stands still when the broker has lost a message: after a while, call it lost and go on."""
        cdef uint32_t i
        cdef Peer* p
        cdef Loop* s = &self.loop
        if s.received + s.acked != s.progress or not s.publishing or s.interval_ns:
            s.progress, s.progress_at = s.received + s.acked, s.now
        elif s.now - s.progress_at > STALL_NS and s.checked and s.fanout > 0:
            s.stalls += 1
            s.progress_at = s.now
            for i in range(s.publishers):
                p = s.peers + s.publisher_at[i]
                p.base = p.next
                loop_wake(s, p)

    cdef str failure_text(self):
        cdef Peer* p = self.loop.peers + self.loop.failed_peer
        who = {ROLE_PUBLISHER: "publisher", ROLE_SUBSCRIBER: "subscriber", ROLE_CHURN: "churn connection"}[<int>p.role]
        what = {
            FAIL_CLOSED: "the broker closed the connection",
            FAIL_REFUSED: f"the broker refused CONNECT with code 0x{self.loop.failed_code:02X}",
            FAIL_SUBSCRIPTION: f"the broker refused the subscription with code 0x{self.loop.failed_code:02X}",
            FAIL_MALFORMED: f"the broker sent what cannot be MQTT (first byte 0x{self.loop.failed_code:02X})",
            FAIL_MEMORY: "there is no memory left",
            FAIL_DISCONNECT: f"the broker sent DISCONNECT with reason 0x{self.loop.failed_code:02X}",
        }[<int>self.loop.failure]
        return f"{who} {p.index}: {what}"


cdef inline void loop_spin(Loop* s, uint64_t until, Until goal) noexcept nogil:
    cdef epoll_event events[EVENTS]
    cdef int got, i
    cdef int64_t wait
    cdef uint64_t next_at
    cdef Peer* p
    s.now = load_clock()
    loop_flush(s)
    while s.failure == FAIL_NONE:
        next_at = until
        if s.publishing and s.interval_ns and s.due_at < next_at:
            next_at = s.due_at
        if s.churn_interval and s.churn_due and s.churn_due < next_at:
            next_at = s.churn_due
        wait = <int64_t>(next_at - s.now) if next_at > s.now else 0
        if s.ready_count and s.publishing and not s.interval_ns:
            wait = 0
        got = load_wait(s.epoll, events, EVENTS, wait)
        s.now = load_clock()
        for i in range(got):
            p = s.peers + events[i].data.u64
            if events[i].events & EPOLLOUT:
                loop_mark(s, p)
            if events[i].events & ~<uint32_t>EPOLLOUT and p.state != STATE_CLOSED:
                read_peer(s, p)
        if s.publishing:
            if s.interval_ns:
                publish_due(s)
            else:
                publish_ready(s)
        if s.churn_interval and s.churn_due:
            churn(s)
        loop_flush(s)
        s.now = load_clock()
        if s.now >= until or (goal == UNTIL_CONNECTED and s.connecting == 0) \
                or (goal == UNTIL_IDLE and loop_idle(s)):
            return

cdef inline void loop_flush(Loop* s) noexcept nogil:
    cdef uint32_t i
    cdef int left
    cdef Peer* p
    for i in range(s.dirty_count):
        p = s.peers + s.dirty[i]
        p.dirty = False
        if p.state == STATE_CLOSED:
            continue
        left = peer_flush(p)
        if left < 0:
            # What the broker said before it closed is still to be read: a reason beats "closed".
            p.out_at = p.out_end = 0
            read_peer(s, p)
            loop_fail(s, p, FAIL_CLOSED, 0)
        elif left != <int>p.blocked:
            p.blocked = left
            load_watch(s.epoll, EPOLL_CTL_MOD, p.fd, EPOLLIN | (EPOLLOUT if left else 0), p.number)
            if not left and p.role == ROLE_PUBLISHER:
                loop_wake(s, p)
    s.dirty_count = 0
