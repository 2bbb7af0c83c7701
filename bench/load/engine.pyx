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
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from bench.load.buckets cimport Buckets, buckets_add
from bench.load.peer cimport (
    RECV_ERROR, RECV_NOTHING, ROLE_CHURN, ROLE_PUBLISHER, ROLE_SUBSCRIBER, STATE_CONNECTING, STATE_GONE, STATE_READY,
    STATE_SUBSCRIBING, Message, Peer, Role, peer_flush, peer_free, peer_keep, peer_pending, peer_put, peer_recv,
    peer_room, ws_header_size, ws_seal)
from bench.load.sequence cimport (
    LAYOUT_ALL, LAYOUT_PAIRS, LAYOUT_SHARED, Layout, Sequences, ring_lost, sequences_take, track_lost)
from bench.load.sequence_alloc cimport sequences_free, sequences_init
from bench.load.system cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_TRUNC, close, epoll_create1,
    epoll_event, load_clock, load_sharp_timers, load_wait, load_watch, recv)

from fluxmq.bench.load.histogram import Histogram

__all__ = ["Engine", "LoadError"]

cdef enum:
    READ_MAX = 256 * 1024       # one recv
    PART_MAX = 1024 * 1024      # an incomplete packet that is not skipped over; the longest topic fits 16 times
    SKIP_MIN = 4096             # a PUBLISH with more than this still to come is skipped over, not kept
    DISCARD_MIN = 16384         # … and with more than this, the kernel drops the bytes without copying them
    WRITE_MAX = 256 * 1024      # output gathered per connection and turn
    OPEN_WRITE_MAX = 4 << 20    # open loop: output that may wait for a full socket before messages are left out
    EVENTS = 1024
    TAG_BITS = 12
    PUBLISHER_BITS = 16
    NUMBER_BITS = 36
    CHURN_LIVE = 100            # subscriptions alive at a time on the connection that comes and goes
    FRESH_DIGITS = 7
    STALL_NS = 2000000000

# Seeds the masking keys: any odd number with bits all over will do.
cdef uint64_t GOLDEN = 0x9E3779B97F4A7C15u

cdef enum Failure:
    FAIL_NONE = 0
    FAIL_CLOSED = 1
    FAIL_REFUSED = 2
    FAIL_SUBSCRIPTION = 3
    FAIL_MALFORMED = 4
    FAIL_MEMORY = 5
    FAIL_DISCONNECT = 6
    FAIL_SYSTEM = 7

cdef enum Until:
    UNTIL_TIME = 0
    UNTIL_CONNECTED = 1
    UNTIL_IDLE = 2


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
    cdef Peer* peers
    cdef uint32_t peers_count, peers_room, publishers, subscribers, publishers_attached, subscribers_attached
    cdef uint32_t connecting            # attached and not yet READY
    cdef int epoll
    cdef uint8_t version
    cdef uint8_t* inbox                 # PART_MAX + READ_MAX bytes, shared by all reads
    cdef uint32_t* dirty
    cdef uint32_t dirty_count
    cdef uint32_t* ready                # publishers that may have room in their window
    cdef uint32_t ready_count
    cdef uint32_t* publisher_at         # publisher -> peer number
    cdef Sequences sequences
    cdef Buckets latency, ack_latency
    cdef uint64_t tag, window, fanout, batch
    cdef bint checked, publishing, measuring
    cdef uint64_t interval_ns, due_at, due_number, open_start
    cdef uint64_t sent, received, acked, refused, overruns, foreign, unacked, late_max, stalls, progress, progress_at
    cdef uint64_t churn_interval, churn_due, churned, churn_number
    cdef uint64_t now
    cdef Failure failure
    cdef uint32_t failed_peer
    cdef int failed_code
    cdef list keep                      # sockets, so that the borrowed pointers and descriptors stay alive

    def __cinit__(self, *, int version, uint32_t publishers, uint32_t subscribers, str layout = "all",
                  uint32_t groups = 1, uint64_t window = 1000, double rate = 0.0, bint checked = True, uint32_t tag = 0,
                  uint64_t batch = 0):
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
        self.epoll = -1
        self.version = <uint8_t>version
        self.publishers, self.subscribers = publishers, subscribers
        self.window, self.checked, self.tag = window, checked, tag & ((1 << TAG_BITS) - 1)
        self.interval_ns = <uint64_t>(1e9 / rate) if rate > 0 else 0
        self.fanout = subscribers if layout == "all" else (1 if layout == "pairs" else groups)
        if layout == "shared" and not 1 <= groups <= max(subscribers, 1):
            raise ValueError("there are 1 to as many groups of shared subscriptions as subscribers")
        self.batch = batch if batch else window
        self.keep = []
        cdef uint64_t words = 1024
        while words * 64 < window * 4:
            words *= 2
        cdef int kind = layouts[layout]
        if sequences_init(&self.sequences, <Layout>kind, publishers, subscribers, groups, words) != 0:
            raise MemoryError
        self.inbox = <uint8_t*>malloc(PART_MAX + READ_MAX)
        self.publisher_at = <uint32_t*>calloc(publishers + 1, sizeof(uint32_t))
        self.ready = <uint32_t*>calloc(publishers + 1, sizeof(uint32_t))
        if self.inbox == NULL or self.publisher_at == NULL or self.ready == NULL:
            raise MemoryError
        self.epoll = epoll_create1(0)
        if self.epoll < 0:
            raise OSError("no epoll descriptor could be had")
        load_sharp_timers()

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.peers_count):
            peer_free(self.peers + i)
        free(self.peers)
        free(self.dirty)
        free(self.ready)
        free(self.publisher_at)
        free(self.inbox)
        sequences_free(&self.sequences)
        if self.epoll >= 0:
            close(self.epoll)

    # --- setting up -------------------------------------------------------------------------------------------------

    def attach_subscriber(self, sock, bytes connect not None, bytes subscribe not None, uint16_t packet_id,
                          bint websocket = False) -> None:
        """Add a connected non-blocking socket (plain or ssl.SSLSocket) that will send CONNECT, then SUBSCRIBE.

        packet_id: of the SUBSCRIBE. websocket: the upgrade has been done. Raises LoadError, MemoryError.
        """
        cdef Peer* p = self.attach(sock, ROLE_SUBSCRIBER, self.subscribers_attached, websocket)
        self.subscribers_attached += 1
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
        if self.publishers_attached == self.publishers:
            raise LoadError(f"{self.publishers} publishers were announced, and there is one more")
        cdef Peer* p = self.attach(sock, ROLE_PUBLISHER, self.publishers_attached, websocket)
        cdef uint64_t share = self.window // self.publishers + (p.index < self.window % self.publishers)
        cdef uint64_t room = 1
        self.publisher_at[p.index] = p.number
        self.publishers_attached += 1
        share = max(share, 1)
        while room < share:
            room *= 2
        p.missing_mask = room - 1
        p.missing = <uint32_t*>calloc(room, sizeof(uint32_t))
        p.id_at, p.head_at, p.fresh_at = id_at, head_at, fresh_at
        p.acks_max = <uint32_t>min(acks_max if self.interval_ns else share, 65535)
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
        self.churn_interval = <uint64_t>(1e9 / rate)
        self.hello(self.attach(sock, ROLE_CHURN, 0, websocket), connect)

    cdef Peer* attach(self, object sock, Role role, uint32_t index, bint websocket) except NULL:
        cdef Peer* grown
        cdef Peer* p
        if self.peers_count == self.peers_room:
            grown = <Peer*>realloc(self.peers, (self.peers_room * 2 + 16) * sizeof(Peer))
            if grown == NULL:
                raise MemoryError
            self.peers = grown
            self.peers_room = self.peers_room * 2 + 16
            self.dirty = <uint32_t*>realloc(self.dirty, self.peers_room * sizeof(uint32_t))
            if self.dirty == NULL:
                raise MemoryError
        p = self.peers + self.peers_count
        memset(p, 0, sizeof(Peer))
        p.fd = sock.fileno()
        p.number, p.index, p.role, p.is_ws = self.peers_count, index, role, websocket
        p.ws.random = (<uint64_t>p.number + 1) * GOLDEN
        if hasattr(sock, "pending"):
            p.tls = <void*>sock
        self.keep.append(sock)
        self.peers_count += 1
        if load_watch(self.epoll, EPOLL_CTL_ADD, p.fd, EPOLLIN, p.number) != 0:
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
        self.connecting += 1
        if peer_put(p, <const uint8_t*>PyBytes_AS_STRING(connect), len(connect)) != 0:
            raise MemoryError
        self.mark(p)
        return 0

    # --- running ----------------------------------------------------------------------------------------------------

    def connect(self, double seconds) -> None:
        """Turn until every attached connection has its CONNACK and SUBACK. Raises LoadError, also after `seconds`."""
        self.slice(seconds, UNTIL_CONNECTED)
        if self.connecting:
            raise LoadError(f"{self.connecting} connections had no CONNACK or SUBACK within {seconds:g} s")

    def start(self) -> None:
        """Let the publishers publish from the next turn on."""
        cdef uint32_t i
        if self.publishers_attached != self.publishers or self.subscribers_attached != self.subscribers:
            raise LoadError("not all announced publishers and subscribers are attached")
        self.publishing = True
        self.now = self.open_start = self.due_at = load_clock()
        if self.churn_interval:
            self.churn_due = self.now
        for i in range(self.publishers):
            self.wake(self.peers + self.publisher_at[i])

    def turn(self, double seconds) -> None:
        """Run for that long. Raises LoadError when a connection ends."""
        self.slice(seconds, UNTIL_TIME)

    def measure(self, bint on) -> None:
        """Begin (and forget earlier latencies) or end the recording of latencies."""
        if on:
            memset(&self.latency, 0, sizeof(Buckets))
            memset(&self.ack_latency, 0, sizeof(Buckets))
            self.late_max = 0
        self.measuring = on

    def drain(self, double seconds) -> bool:
        """Publish no more; turn until everything in flight has arrived and is acknowledged, while there is progress.

        seconds: how long without progress is given up. True when nothing is left in flight.
        """
        cdef uint64_t before
        self.publishing = False
        self.churn_interval = 0
        while not self.idle():
            before = self.received + self.acked
            self.slice(seconds, UNTIL_IDLE)
            if self.received + self.acked == before:
                break
        return bool(self.idle())

    def ping(self) -> None:
        """Queue a PINGREQ on every connection; the next turn sends it."""
        cdef uint8_t packet[2]
        packet[0], packet[1] = 0xC0, 0
        cdef uint32_t i
        for i in range(self.peers_count):
            peer_put(self.peers + i, packet, 2)
            self.mark(self.peers + i)

    def disconnect(self, bytes packet not None) -> None:
        """Send a DISCONNECT packet on every connection. What the broker then does raises nothing."""
        cdef uint32_t i
        for i in range(self.peers_count):
            peer_put(self.peers + i, <const uint8_t*>PyBytes_AS_STRING(packet), len(packet))
            peer_flush(self.peers + i)
            load_watch(self.epoll, EPOLL_CTL_DEL, self.peers[i].fd, 0, 0)

    def counts(self) -> dict[str, int]:
        """Totals since the start.

        sent, received (every PUBLISH that came), delivered (without repetitions), duplicates, reordered, foreign
        (not of this run, or at the wrong subscriber), acked (PUBACK or PUBCOMP), refused (of these, with a reason
        code of 0x80 or more), overruns (open loop: messages left out because the broker does not read or
        acknowledge), churned (SUBACK and UNSUBACK),
        stalls (closed loop: times that nothing moved for two seconds and the window was written off), expected (deliveries of what was sent), lost (of these, not come).
        """
        cdef uint64_t lost = 0
        cdef uint32_t i, k
        cdef uint32_t receivers = self.sequences.groups if self.sequences.layout == LAYOUT_SHARED else self.subscribers
        cdef uint64_t expected = self.sent * self.fanout
        cdef uint64_t sent
        if not self.checked:
            lost = expected - self.received if expected > self.received else 0
        else:
            for i in range(self.publishers_attached):
                sent = self.peers[self.publisher_at[i]].next
                if self.sequences.layout == LAYOUT_PAIRS:
                    lost += track_lost(self.sequences.tracks + i, sent)
                    continue
                for k in range(receivers):
                    if self.sequences.layout == LAYOUT_SHARED:
                        lost += ring_lost(self.sequences.rings + <size_t>k * self.publishers + i, sent)
                    else:
                        lost += track_lost(self.sequences.tracks + <size_t>k * self.publishers + i, sent)
        return {"sent": self.sent, "received": self.received,
                "delivered": self.sequences.first if self.checked else self.received,
                "duplicates": self.sequences.again, "reordered": self.sequences.late,
                "foreign": self.sequences.foreign + self.foreign, "acked": self.acked, "refused": self.refused,
                "overruns": self.overruns, "churned": self.churned, "stalls": self.stalls, "expected": expected, "lost": lost}

    def latencies(self) -> tuple[object, object]:
        """(delivery, acknowledgement) Histograms: send to PUBLISH received, send to PUBACK or PUBCOMP received."""
        return (Histogram.from_bytes(PyBytes_FromStringAndSize(<char*>&self.latency, sizeof(Buckets))),
                Histogram.from_bytes(PyBytes_FromStringAndSize(<char*>&self.ack_latency, sizeof(Buckets))))

    @property
    def lateness_max(self) -> int:
        """Open loop: the most that a message was sent after its time, in ns, since measuring began."""
        return self.late_max

    @property
    def clock(self) -> int:
        """CLOCK_MONOTONIC in ns at the last turn."""
        return self.now

    cdef int slice(self, double seconds, Until until) except -1:
        cdef uint64_t end = load_clock() + <uint64_t>(max(seconds, 0.0) * 1e9)
        cdef uint64_t piece
        while True:
            piece = min(load_clock() + 50000000, end)
            with nogil:
                self.spin(piece, until)
            # The interpreter handles signals between two bytecodes; a call of Python is one.
            _breathe()
            self.unblock()
            if self.failure != FAIL_NONE:
                raise LoadError(self.failure_text())
            if load_clock() >= end or (until == UNTIL_CONNECTED and self.connecting == 0) \
                    or (until == UNTIL_IDLE and self.idle()):
                return 0

    cdef void unblock(self) noexcept nogil:
        """A closed loop stands still when the broker has lost a message: after a while, call it lost and go on."""
        cdef uint32_t i
        cdef Peer* p
        if self.received + self.acked != self.progress or not self.publishing or self.interval_ns:
            self.progress, self.progress_at = self.received + self.acked, self.now
        elif self.now - self.progress_at > STALL_NS and self.checked and self.fanout > 0:
            self.stalls += 1
            self.progress_at = self.now
            for i in range(self.publishers):
                p = self.peers + self.publisher_at[i]
                p.base = p.next
                self.wake(p)

    cdef str failure_text(self):
        cdef Peer* p = self.peers + self.failed_peer
        who = {ROLE_PUBLISHER: "publisher", ROLE_SUBSCRIBER: "subscriber", ROLE_CHURN: "churn connection"}[<int>p.role]
        what = {
            FAIL_CLOSED: "the broker closed the connection",
            FAIL_REFUSED: f"the broker refused CONNECT with code 0x{self.failed_code:02X}",
            FAIL_SUBSCRIPTION: f"the broker refused the subscription with code 0x{self.failed_code:02X}",
            FAIL_MALFORMED: f"the broker sent what cannot be MQTT (first byte 0x{self.failed_code:02X})",
            FAIL_MEMORY: "there is no memory left",
            FAIL_DISCONNECT: f"the broker sent DISCONNECT with reason 0x{self.failed_code:02X}",
            FAIL_SYSTEM: "waiting for events failed",
        }[<int>self.failure]
        return f"{who} {p.index}: {what}"

    cdef inline bint idle(self) noexcept nogil:
        cdef uint64_t got = self.sequences.first if self.checked else self.received
        return got >= self.sent * self.fanout and self.unacked == 0

    cdef void spin(self, uint64_t until, Until goal) noexcept nogil:
        cdef epoll_event events[EVENTS]
        cdef int got, i
        cdef int64_t wait
        cdef uint64_t next_at
        cdef Peer* p
        self.now = load_clock()
        self.flush()
        while self.failure == FAIL_NONE:
            next_at = until
            if self.publishing and self.interval_ns and self.due_at < next_at:
                next_at = self.due_at
            if self.churn_interval and self.churn_due and self.churn_due < next_at:
                next_at = self.churn_due
            wait = <int64_t>(next_at - self.now) if next_at > self.now else 0
            if self.ready_count and self.publishing and not self.interval_ns:
                wait = 0
            got = load_wait(self.epoll, events, EVENTS, wait)
            self.now = load_clock()
            for i in range(got):
                p = self.peers + events[i].data.u64
                if events[i].events & EPOLLOUT:
                    self.mark(p)
                if events[i].events & ~<uint32_t>EPOLLOUT and p.state != STATE_GONE:
                    self.read(p)
            if self.publishing:
                if self.interval_ns:
                    self.publish_due()
                else:
                    self.publish_ready()
            if self.churn_interval and self.churn_due:
                self.churn()
            self.flush()
            self.now = load_clock()
            if self.now >= until or (goal == UNTIL_CONNECTED and self.connecting == 0) \
                    or (goal == UNTIL_IDLE and self.idle()):
                return

    cdef inline void fail(self, Peer* p, Failure failure, int code) noexcept nogil:
        if self.failure == FAIL_NONE:
            self.failure, self.failed_peer, self.failed_code = failure, p.number, code
        p.state = STATE_GONE

    cdef inline void mark(self, Peer* p) noexcept nogil:
        if not p.dirty:
            p.dirty = True
            self.dirty[self.dirty_count] = p.number
            self.dirty_count += 1

    cdef inline void wake(self, Peer* p) noexcept nogil:
        if not p.queued:
            p.queued = True
            self.ready[self.ready_count] = p.number
            self.ready_count += 1

    cdef void flush(self) noexcept nogil:
        cdef uint32_t i
        cdef int left
        cdef Peer* p
        for i in range(self.dirty_count):
            p = self.peers + self.dirty[i]
            p.dirty = False
            if p.state == STATE_GONE:
                continue
            left = peer_flush(p)
            if left < 0:
                # What the broker said before it closed is still to be read: a reason beats "closed".
                p.out_at = p.out_end = 0
                self.read(p)
                self.fail(p, FAIL_CLOSED, 0)
            elif left != <int>p.blocked:
                p.blocked = left
                load_watch(self.epoll, EPOLL_CTL_MOD, p.fd, EPOLLIN | (EPOLLOUT if left else 0), p.number)
                if not left and p.role == ROLE_PUBLISHER:
                    self.wake(p)
        self.dirty_count = 0

    # --- publishing -------------------------------------------------------------------------------------------------

    cdef void publish_ready(self) noexcept nogil:
        cdef uint32_t count = self.ready_count
        cdef uint32_t i
        cdef Peer* p
        self.ready_count = 0
        for i in range(count):
            p = self.peers + self.ready[i]
            p.queued = False
            if p.state == STATE_READY and not p.blocked:
                self.publish_window(p)

    cdef void publish_window(self, Peer* p) noexcept nogil:
        cdef uint64_t room, taken
        cdef uint64_t turn = self.batch
        if self.fanout == 0:
            room = WRITE_MAX // p.template_size + 1
        elif self.checked:
            room = p.missing_mask + 1
            taken = p.next - p.base
            # The share of the window, which is not a power of two as the ring is.
            room = self.window // self.publishers + (p.index < self.window % self.publishers)
            room = room if room > 0 else 1
            room = room - taken if room > taken else 0
        else:
            taken = self.sent - self.received // self.fanout
            room = self.window - taken if self.window > taken else 0
        if p.id_at and p.acks_max - p.unacked < room:
            room = p.acks_max - p.unacked
        while room > 0 and turn > 0 and peer_pending(p) < WRITE_MAX:
            self.publish(p, self.now)
            room -= 1
            turn -= 1
        if room > 0 or (self.fanout == 0 and not p.id_at):
            self.wake(p)

    cdef void publish_due(self) noexcept nogil:
        """Message k of an open loop goes to publisher k modulo their number, at start + k intervals."""
        cdef Peer* p
        while self.due_at <= self.now:
            p = self.peers + self.publisher_at[self.due_number % self.publishers]
            if p.state != STATE_READY or (p.id_at and p.unacked >= p.acks_max) or peer_pending(p) > OPEN_WRITE_MAX:
                self.overruns += 1
            else:
                if self.now - self.due_at > self.late_max:
                    self.late_max = self.now - self.due_at
                # A message that waits for a full socket is late through the broker: its latency counts from its time.
                self.publish(p, self.due_at if p.blocked else self.now)
            self.due_number += 1
            self.due_at = self.open_start + self.due_number * self.interval_ns

    cdef inline void publish(self, Peer* p, uint64_t stamp) noexcept nogil:
        cdef size_t header = ws_header_size(p.template_size) if p.is_ws else 0
        cdef uint8_t* frame = peer_room(p, header + p.template_size)
        cdef uint8_t* packet = frame + header
        cdef uint64_t head
        cdef uint64_t number = p.next
        cdef int i
        cdef uint8_t digit
        if frame == NULL:
            self.fail(p, FAIL_MEMORY, 0)
            return
        memcpy(packet, p.template, p.template_size)
        if p.fresh_at:
            for i in range(FRESH_DIGITS):
                digit = (number >> (4 * (FRESH_DIGITS - 1 - i))) & 15
                packet[p.fresh_at + i] = digit + (48 if digit < 10 else 87)
        if p.id_at:
            while True:
                p.acks_next = p.acks_next + 1 if p.acks_next < p.acks_max else 1
                if p.acks[p.acks_next] == 0:
                    break
            p.acks[p.acks_next] = stamp
            p.unacked += 1
            self.unacked += 1
            packet[p.id_at] = <uint8_t>(p.acks_next >> 8)
            packet[p.id_at + 1] = <uint8_t>p.acks_next
        if p.head_at:
            head = (self.tag << (64 - TAG_BITS)) | (<uint64_t>p.index << NUMBER_BITS) | number
            memcpy(packet + p.head_at, &head, 8)
            memcpy(packet + p.head_at + 8, &stamp, 8)
            if not self.interval_ns:
                p.missing[number & p.missing_mask] = <uint32_t>self.fanout
        if self.fanout == 0:
            p.base += 1
        p.next = number + 1
        self.sent += 1
        if p.is_ws:
            ws_seal(&p.ws, frame, header, p.template_size, 2)
        p.out_end += header + p.template_size
        self.mark(p)

    cdef void churn(self) noexcept nogil:
        cdef uint32_t i
        cdef Peer* p = NULL
        for i in range(self.peers_count):
            if self.peers[i].role == ROLE_CHURN:
                p = self.peers + i
        if p == NULL or p.state != STATE_READY:
            return
        while self.churn_due <= self.now:
            if p.blocked and peer_pending(p) > WRITE_MAX:
                self.churn_due = self.now + self.churn_interval
                return
            self.churn_packet(p, self.churn_number, True)
            if self.churn_number >= CHURN_LIVE:
                self.churn_packet(p, self.churn_number - CHURN_LIVE, False)
            self.churn_number += 1
            self.churn_due += self.churn_interval

    cdef void churn_packet(self, Peer* p, uint64_t number, bint subscribe) noexcept nogil:
        """SUBSCRIBE to, or UNSUBSCRIBE from, the filter churn/<number in hexadecimal>."""
        cdef uint8_t packet[32]
        cdef int at = 2
        cdef int i
        cdef uint8_t digit
        cdef uint16_t packet_id = <uint16_t>((number * 2 + subscribe) % 65535 + 1)
        packet[0] = 0x82 if subscribe else 0xA2
        packet[at], packet[at + 1] = <uint8_t>(packet_id >> 8), <uint8_t>packet_id
        at += 2
        if self.version == 5:
            packet[at] = 0
            at += 1
        packet[at], packet[at + 1] = 0, 14
        memcpy(packet + at + 2, b"churn/", 6)
        for i in range(8):
            digit = (number >> (28 - 4 * i)) & 15
            packet[at + 8 + i] = digit + (48 if digit < 10 else 87)
        at += 16
        if subscribe:
            packet[at] = 0
            at += 1
        packet[1] = <uint8_t>(at - 2)
        peer_put(p, packet, at)
        self.mark(p)

    # --- reading ----------------------------------------------------------------------------------------------------

    cdef void read(self, Peer* p) noexcept nogil:
        cdef ssize_t got
        cdef size_t start, end, used
        if p.skip >= DISCARD_MIN and p.tls == NULL and not p.is_ws:
            got = recv(p.fd, self.inbox, p.skip, MSG_DONTWAIT | MSG_TRUNC)
            if got > 0:
                p.skip -= got
                if p.skip == 0:
                    self.deliver(p, &p.large)
                return
        while True:
            start = p.part_size
            if start:
                memcpy(self.inbox, p.part, start)
            got = peer_recv(p, self.inbox + start, READ_MAX)
            if peer_pending(p):
                self.mark(p)
            if got == RECV_NOTHING:
                return
            if got == 0 or got == RECV_ERROR:
                self.fail(p, FAIL_CLOSED, 0)
                return
            end = start + got
            used = self.parse(p, self.inbox, end)
            if self.failure != FAIL_NONE:
                return
            if end - used > PART_MAX:
                self.fail(p, FAIL_MALFORMED, self.inbox[used])
                return
            if peer_keep(p, self.inbox + used, end - used) != 0:
                self.fail(p, FAIL_MEMORY, 0)
                return
            # What a TLS socket has decrypted already wakes no epoll.
            if p.tls == NULL or got < READ_MAX:
                return

    cdef size_t parse(self, Peer* p, const uint8_t* data, size_t end) noexcept nogil:
        """Handle all complete packets; how many bytes they are."""
        cdef size_t at = 0
        cdef size_t body, size
        cdef uint32_t shift
        cdef Message m
        if p.skip:
            if end < p.skip:
                p.skip -= end
                return end
            at = p.skip
            p.skip = 0
            self.deliver(p, &p.large)
        while end - at >= 2 and self.failure == FAIL_NONE:
            size = data[at + 1]
            body = at + 2
            if size & 0x80:
                size &= 0x7F
                shift = 7
                while True:
                    if body == end:
                        return at
                    if shift > 21:
                        self.fail(p, FAIL_MALFORMED, data[at])
                        return at
                    size |= <size_t>(data[body] & 0x7F) << shift
                    shift += 7
                    body += 1
                    if not data[body - 1] & 0x80:
                        break
            if size > end - body:
                if size - (end - body) > SKIP_MIN and data[at] >> 4 == 3 \
                        and self.take_head(data[at], data + body, end - body, size, &p.large):
                    p.skip = size - (end - body)
                    return end
                return at
            if data[at] >> 4 == 3:
                if not self.take_head(data[at], data + body, size, size, &m):
                    self.fail(p, FAIL_MALFORMED, data[at])
                    return at
                self.deliver(p, &m)
            else:
                self.other(p, data[at], data + body, size)
            at = body + size
        return at

    cdef inline bint take_head(self, uint8_t first, const uint8_t* body, size_t have, size_t size,
                               Message* m) noexcept nogil:
        """Read what we need of a PUBLISH of `size` bytes, `have` of which are there; 0 when they are too few."""
        cdef size_t at, length
        cdef uint32_t shift = 0
        if have < 2:
            return 0
        at = 2 + (body[0] << 8 | body[1])
        m.qos = (first >> 1) & 3
        m.packet_id = 0
        if m.qos:
            if have < at + 2:
                return 0
            m.packet_id = <uint16_t>(body[at] << 8 | body[at + 1])
            at += 2
        if self.version == 5:
            length = 0
            while True:
                if at >= have or shift > 21:
                    return 0
                length |= <size_t>(body[at] & 0x7F) << shift
                shift += 7
                at += 1
                if not body[at - 1] & 0x80:
                    break
            at += length
        if at > size:
            return 0
        m.readable = size - at >= 16
        if m.readable:
            if have < at + 16:
                return 0
            memcpy(&m.head, body + at, 8)
            memcpy(&m.sent_at, body + at + 8, 8)
        return 1

    cdef inline void deliver(self, Peer* p, const Message* m) noexcept nogil:
        cdef uint32_t publisher, mask
        cdef uint64_t number
        cdef Peer* source
        cdef uint8_t bit
        self.received += 1
        if m.qos == 1:
            self.acknowledge(p, 0x40, m.packet_id)
        elif m.qos == 2:
            self.acknowledge(p, 0x50, m.packet_id)
            bit = <uint8_t>(1 << (m.packet_id & 7))
            if p.unreleased == NULL or p.unreleased[m.packet_id >> 3] & bit:
                # Sent again before our PUBREC arrived: answered, and not a delivery [MQTT-4.3.3-2].
                self.received -= 1
                return
            p.unreleased[m.packet_id >> 3] |= bit
        if not self.checked:
            if self.publishing and not self.interval_ns:
                for publisher in range(self.publishers_attached):
                    self.wake(self.peers + self.publisher_at[publisher])
            return
        publisher = <uint32_t>(m.head >> NUMBER_BITS) & ((1 << PUBLISHER_BITS) - 1)
        number = m.head & ((<uint64_t>1 << NUMBER_BITS) - 1)
        if not m.readable or m.head >> (64 - TAG_BITS) != self.tag or publisher >= self.publishers_attached \
                or p.role != ROLE_SUBSCRIBER:
            self.foreign += 1
            return
        source = self.peers + self.publisher_at[publisher]
        if number >= source.next:
            self.foreign += 1
            return
        if not sequences_take(&self.sequences, p.index, publisher, number):
            return
        if self.measuring:
            buckets_add(&self.latency, self.now - m.sent_at if self.now > m.sent_at else 0)
        if self.interval_ns or number < source.base:
            return
        mask = <uint32_t>source.missing_mask
        source.missing[number & mask] -= 1
        if source.missing[number & mask] == 0 and number == source.base:
            while source.base < source.next and source.missing[source.base & mask] == 0:
                source.base += 1
            self.wake(source)

    cdef inline void acknowledge(self, Peer* p, uint8_t first, uint16_t packet_id) noexcept nogil:
        """PUBACK, PUBREC, PUBREL or PUBCOMP, all without properties: four bytes in both versions."""
        cdef uint8_t packet[4]
        packet[0], packet[1] = first, 2
        packet[2], packet[3] = <uint8_t>(packet_id >> 8), <uint8_t>packet_id
        if peer_put(p, packet, 4) != 0:
            self.fail(p, FAIL_MEMORY, 0)
        self.mark(p)

    cdef void settle(self, Peer* p, uint16_t packet_id, uint8_t reason) noexcept nogil:
        """The last acknowledgement of a message that we published."""
        if p.role != ROLE_PUBLISHER or packet_id == 0 or packet_id > p.acks_max or p.acks[packet_id] == 0:
            self.foreign += 1
            return
        if self.measuring:
            buckets_add(&self.ack_latency, self.now - p.acks[packet_id])
        p.acks[packet_id] = 0
        p.unacked -= 1
        self.unacked -= 1
        self.acked += 1
        self.refused += reason >= 0x80
        self.wake(p)

    cdef void other(self, Peer* p, uint8_t first, const uint8_t* body, size_t size) noexcept nogil:
        cdef uint8_t kind = first >> 4
        cdef uint16_t packet_id = <uint16_t>(body[0] << 8 | body[1]) if size >= 2 else 0
        cdef uint8_t reason = body[2] if size >= 3 and self.version == 5 else 0
        if kind == 4 or kind == 7:
            self.settle(p, packet_id, reason)
        elif kind == 5:
            if reason >= 0x80:
                self.settle(p, packet_id, reason)
            else:
                self.acknowledge(p, 0x62, packet_id)
        elif kind == 6:
            if p.unreleased != NULL:
                p.unreleased[packet_id >> 3] &= <uint8_t>~(1 << (packet_id & 7))
            self.acknowledge(p, 0x70, packet_id)
        elif kind == 2:
            self.connected(p, body, size)
        elif kind == 9:
            self.subscribed(p, body, size)
        elif kind == 11 and p.role == ROLE_CHURN:
            self.churned += 1
        elif kind == 14:
            self.fail(p, FAIL_DISCONNECT, body[0] if size >= 1 else 0)
        elif kind != 13:
            self.fail(p, FAIL_MALFORMED, first)

    cdef void connected(self, Peer* p, const uint8_t* body, size_t size) noexcept nogil:
        cdef uint32_t receive_maximum
        if p.state != STATE_CONNECTING or size < 2:
            self.fail(p, FAIL_MALFORMED, 0x20)
            return
        if body[1] != 0:
            self.fail(p, FAIL_REFUSED, body[1])
            return
        if self.version == 5 and p.role == ROLE_PUBLISHER:
            receive_maximum = find_receive_maximum(body + 2, size - 2)
            if receive_maximum < p.acks_max:
                p.acks_max = receive_maximum
        if p.role == ROLE_SUBSCRIBER:
            p.state = STATE_SUBSCRIBING
            peer_put(p, p.template, p.template_size)
            self.mark(p)
            return
        p.state = STATE_READY
        self.connecting -= 1

    cdef void subscribed(self, Peer* p, const uint8_t* body, size_t size) noexcept nogil:
        cdef uint8_t code = body[size - 1] if size >= 3 else 0x80
        if p.role == ROLE_CHURN:
            self.churned += 1
        if code >= 0x80:
            self.fail(p, FAIL_SUBSCRIPTION, code)
        elif p.state == STATE_SUBSCRIBING:
            p.state = STATE_READY
            self.connecting -= 1


cdef uint32_t find_receive_maximum(const uint8_t* properties, size_t size) noexcept nogil:
    """Receive Maximum of a CONNACK (MQTT 5.0 section 3.2.2.3.3); 65535 when it is absent.

    Sizes of the other properties that may stand there: a broker that sends one we do not know ends the search.
    """
    cdef size_t at = 0
    cdef size_t pairs
    cdef uint8_t identifier
    while at < size and properties[at] & 0x80:
        at += 1
    at += 1
    while at < size:
        identifier = properties[at]
        at += 1
        if identifier == 0x21 and at + 2 <= size:
            return max(<uint32_t>(properties[at] << 8 | properties[at + 1]), <uint32_t>1)
        if identifier in (0x24, 0x25, 0x28, 0x29, 0x2A):
            at += 1
        elif identifier in (0x13, 0x22):
            at += 2
        elif identifier in (0x11, 0x27):
            at += 4
        elif identifier in (0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x26):
            pairs = 2 if identifier == 0x26 else 1
            while pairs > 0 and at + 2 <= size:
                at += 2 + (properties[at] << 8 | properties[at + 1])
                pairs -= 1
        else:
            break
    return 65535


def _breathe():
    return None
