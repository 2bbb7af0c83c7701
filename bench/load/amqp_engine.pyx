# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The AMQP 0-9-1 load generator's loop: publishers and consumers as C structs, one thread, one epoll, no GIL.

The sibling of engine.pyx. A connection comes here when its channel is ready (amqp_session.py): a publisher's with
confirms selected, a consumer's subscribed. A turn: wait, read everything that is readable, count confirms and
deliveries and acknowledge these; let publishers with room in their window write as many messages as it allows (closed
loop), or those whose time has come (open loop); then one send per connection that has output.

The first 16 bytes of a payload are those of engine.pyx: run, publisher and number; time.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from bench.load.amqp_loop cimport (
    FAULT_CANCELLED, FAULT_CLOSED, FAULT_MALFORMED, FAULT_MEMORY, FAULT_NONE, FAULT_CLOSE_METHOD, AmqpLoop, AmqpPeer,
    amqp_delivered, amqp_fail, amqp_free, amqp_idle, amqp_mark, amqp_wake, amqp_wake_all)
from bench.load.amqp_publishing cimport amqp_publish_due, amqp_publish_ready
from bench.load.amqp_reading cimport INBOX_MAX, READ_MAX, amqp_acknowledge, amqp_read, amqp_take
from bench.load.buckets cimport Buckets
from bench.load.loop cimport PUBLISHER_BITS, TAG_BITS
from bench.load.peer cimport ROLE_PUBLISHER, ROLE_SUBSCRIBER, STATE_CLOSED, STATE_READY, Role, peer_flush, peer_put
from bench.load.sequence cimport LAYOUT_ALL, LAYOUT_PAIRS, LAYOUT_SHARED, Layout, ring_lost, track_lost
from bench.load.sequence_alloc cimport sequences_free, sequences_init
from bench.load.system cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, close, epoll_create1, epoll_event, load_clock,
    load_sharp_timers, load_wait, load_watch)

from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.histogram import Histogram

__all__ = ["AmqpEngine"]

cdef enum:
    EVENTS = 1024
    SLICE_NS = 50000000         # without the GIL at a time
    FRAME_LARGEST = INBOX_MAX - READ_MAX
    OPEN_TIMES = 1 << 16        # open loop: messages without a confirm that one publisher may have


@cython.final
cdef class AmqpEngine:
    """Connections to one AMQP broker and the messages that flow over them.

    publishers, consumers: how many will be attached. layout: "all", "pairs" or "shared" (consumers share all messages).
    frame_max: octets of the largest frame that the broker may send. window: messages without a confirm in all (closed
    loop); lag: messages that consumers may be behind in all, 0 for any number; rate: messages per second in all (open
    loop), 0.0 for a closed loop. batch: most messages one publisher sends at a time in a closed loop, 0 for as many as
    it may. confirms: publications are confirmed. ack_every: deliveries per acknowledgement, 0 when it is automatic.
    apart: how far messages may be out of order among consumers that share. checked: payloads carry the 16 bytes.
    tag: number of the run, 0 to 4095. stall: seconds without progress after which what is in flight is written off.
    Raises ValueError for numbers that do not fit, MemoryError, OSError when there is no epoll.
    """
    cdef AmqpLoop loop
    cdef list keep                      # sockets, so that the borrowed pointers and descriptors stay alive

    def __cinit__(self, *, uint32_t publishers, uint32_t consumers, str layout = "shared", uint32_t frame_max = 131072,
                  uint64_t window = 1000, uint64_t lag = 0, double rate = 0.0, uint64_t batch = 0,
                  bint confirms = True, uint32_t ack_every = 1, uint64_t apart = 0, bint checked = True,
                  uint32_t tag = 0, double stall = 5.0):
        # First of all: __dealloc__ runs also when an argument is refused, and descriptor 0 is somebody's.
        self.loop.epoll = -1
        cdef dict layouts = {"all": LAYOUT_ALL, "pairs": LAYOUT_PAIRS, "shared": LAYOUT_SHARED}
        if layout not in layouts:
            raise ValueError(f"layout is one of all, pairs, shared; not {layout!r}")
        if layout == "pairs" and publishers != consumers:
            raise ValueError(f"pairs need as many publishers ({publishers}) as consumers ({consumers})")
        if not 1 <= publishers < 1 << PUBLISHER_BITS:
            raise ValueError(f"there are 1 to {(1 << PUBLISHER_BITS) - 1} publishers, not {publishers}")
        if <uint64_t>publishers * consumers > 1 << 25 and layout != "pairs":
            raise ValueError("publishers times consumers is at most 33 554 432: each pair has its own counters")
        if not 1 <= window <= 1 << 24 or lag > 1 << 32 or apart > 1 << 28:
            raise ValueError("the window is 1 to 16 777 216 messages, what consumers are behind at most 2^32")
        if not 0 <= rate <= 1e8:
            raise ValueError("the rate is 0 (closed loop) to 100 000 000 messages per second")
        if frame_max + 8 > FRAME_LARGEST:
            raise ValueError(f"frames are at most {FRAME_LARGEST - 8} octets")
        cdef AmqpLoop* s = &self.loop
        s.publishers, s.consumers, s.frame_max = publishers, consumers, frame_max
        s.window, s.lag, s.batch = window, lag, batch if batch else <uint64_t>-1
        s.confirms, s.ack_every, s.checked, s.tag = confirms, ack_every, checked, tag & ((1 << TAG_BITS) - 1)
        s.interval_ns = <uint64_t>(1e9 / rate) if rate > 0 else 0
        s.stall_ns = <uint64_t>(stall * 1e9)
        s.fanout = 0 if consumers == 0 else (consumers if layout == "all" else 1)
        self.keep = []
        cdef uint64_t words = 1024
        while words * 64 < max(window, max(lag, apart)) * 4:
            words *= 2
        cdef int kind = layouts[layout]
        if sequences_init(&s.sequences, <Layout>kind, publishers, consumers, 1, words) != 0:
            raise MemoryError
        s.inbox = <uint8_t*>malloc(INBOX_MAX)
        s.publisher_at = <uint32_t*>calloc(publishers, sizeof(uint32_t))
        s.ready = <uint32_t*>calloc(publishers, sizeof(uint32_t))
        if s.inbox == NULL or s.publisher_at == NULL or s.ready == NULL:
            raise MemoryError
        s.epoll = epoll_create1(0)
        if s.epoll < 0:
            raise OSError("no epoll descriptor could be had")
        load_sharp_timers()

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.loop.peers_count):
            amqp_free(self.loop.peers + i)
        free(self.loop.peers)
        free(self.loop.dirty)
        free(self.loop.ready)
        free(self.loop.publisher_at)
        free(self.loop.inbox)
        sequences_free(&self.loop.sequences)
        if self.loop.epoll >= 0:
            close(self.loop.epoll)

    # --- setting up -------------------------------------------------------------------------------------------------

    def attach_consumer(self, sock, bytes early not None) -> None:
        """Add a connected non-blocking socket (plain or ssl.SSLSocket) whose channel consumes.

        early: what has been read of it and not looked at. Raises LoadError, MemoryError.
        """
        if self.loop.consumers_attached == self.loop.consumers:
            raise LoadError(f"{self.loop.consumers} consumers were announced, and there is one more")
        cdef AmqpPeer* p = self.attach(sock, ROLE_SUBSCRIBER, self.loop.consumers_attached)
        self.loop.consumers_attached += 1
        self.begin(p, early)

    def attach_publisher(self, sock, bytes early not None, bytes template not None, size_t head_at) -> None:
        """Add a connected non-blocking socket whose channel will send copies of the message in `template`.

        head_at: offset of the 16 bytes, 0 for none. Raises LoadError, MemoryError, ValueError when they do not fit.
        """
        if self.loop.publishers_attached == self.loop.publishers:
            raise LoadError(f"{self.loop.publishers} publishers were announced, and there is one more")
        if not template or (head_at and head_at + 16 > <size_t>len(template)):
            raise ValueError("the 16 bytes lie outside the message")
        cdef AmqpPeer* p = self.attach(sock, ROLE_PUBLISHER, self.loop.publishers_attached)
        cdef AmqpLoop* s = &self.loop
        cdef uint64_t room = 64
        p.share = max(s.window // s.publishers + (p.io.index < s.window % s.publishers), <uint64_t>1)
        # Twice the share: confirms that overtake an older one do not hold up the window.
        while room < (OPEN_TIMES if s.interval_ns else p.share * 2 + 1):
            room *= 2
        p.sent_mask, p.oldest, p.io.head_at = room - 1, 1, head_at
        p.sent_at = <uint64_t*>calloc(room, sizeof(uint64_t))
        p.io.template = <uint8_t*>malloc(len(template))
        if p.sent_at == NULL or p.io.template == NULL:
            raise MemoryError
        memcpy(p.io.template, PyBytes_AS_STRING(template), len(template))
        p.io.template_size = len(template)
        s.publisher_at[p.io.index] = p.io.number
        s.publishers_attached += 1
        self.begin(p, early)

    cdef AmqpPeer* attach(self, object sock, Role role, uint32_t index) except NULL:
        cdef AmqpLoop* s = &self.loop
        cdef AmqpPeer* p
        cdef AmqpPeer* grown
        cdef uint32_t* dirty
        cdef uint32_t room = s.peers_room * 2 + 16
        if s.peers_count == s.peers_room:
            grown = <AmqpPeer*>realloc(s.peers, room * sizeof(AmqpPeer))
            if grown == NULL:
                raise MemoryError
            s.peers = grown
            dirty = <uint32_t*>realloc(s.dirty, room * sizeof(uint32_t))
            if dirty == NULL:
                raise MemoryError
            s.dirty = dirty
            s.peers_room = room
        p = s.peers + s.peers_count
        memset(p, 0, sizeof(AmqpPeer))
        p.io.fd = sock.fileno()
        p.io.number, p.io.index, p.io.role, p.io.state = s.peers_count, index, role, STATE_READY
        if hasattr(sock, "pending"):
            p.io.tls = <void*>sock
        self.keep.append(sock)
        s.peers_count += 1
        if load_watch(s.epoll, EPOLL_CTL_ADD, p.io.fd, EPOLLIN, p.io.number) != 0:
            raise LoadError("a connection cannot be watched: is its descriptor open?")
        return p

    cdef int begin(self, AmqpPeer* p, bytes early) except -1:
        self.loop.now = load_clock()
        amqp_take(&self.loop, p, <const uint8_t*>PyBytes_AS_STRING(early), len(early))
        if self.loop.fault != FAULT_NONE:
            raise LoadError(self.fault_text())
        return 0

    # --- running ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let the publishers publish from the next turn on. Raises LoadError when not all are attached."""
        cdef AmqpLoop* s = &self.loop
        if s.publishers_attached != s.publishers or s.consumers_attached != s.consumers:
            raise LoadError("not all announced publishers and consumers are attached")
        s.publishing = True
        s.now = s.open_start = s.due_at = s.progress_at = load_clock()
        amqp_wake_all(s)

    def turn(self, double seconds) -> None:
        """Run for that long. Raises LoadError when a connection ends."""
        self.slice(seconds, False)

    def measure(self, bint on) -> None:
        """Begin (and forget earlier latencies) or end the recording of latencies."""
        if on:
            memset(&self.loop.latency, 0, sizeof(Buckets))
            memset(&self.loop.confirm_latency, 0, sizeof(Buckets))
            self.loop.late_max = 0
        self.loop.measuring = on

    def drain(self, double seconds) -> bool:
        """Publish no more; turn until everything in flight is delivered and confirmed, while there is progress.

        seconds: how long without progress is given up. True when nothing is left in flight, and nothing ever had to
        be written off. In the end consumers acknowledge what they have not yet.
        """
        cdef uint64_t before
        cdef uint32_t i
        cdef AmqpPeer* p
        self.loop.publishing = False
        while not amqp_idle(&self.loop):
            before = self.loop.received + self.loop.confirmed
            self.slice(seconds, True)
            if self.loop.received + self.loop.confirmed == before:
                break
        for i in range(self.loop.peers_count):
            p = self.loop.peers + i
            if p.unacked:
                amqp_acknowledge(&self.loop, p, True)
        self.slice(0.0, True)
        return bool(amqp_idle(&self.loop)) and not self.loop.forgotten

    def disconnect(self, bytes packet not None) -> None:
        """Send this (a connection.close) on every connection. What the broker then does raises nothing."""
        cdef uint32_t i
        for i in range(self.loop.peers_count):
            peer_put(&self.loop.peers[i].io, <const uint8_t*>PyBytes_AS_STRING(packet), len(packet))
            peer_flush(&self.loop.peers[i].io)
            load_watch(self.loop.epoll, EPOLL_CTL_DEL, self.loop.peers[i].io.fd, 0, 0)

    def counts(self) -> dict[str, int]:
        """Totals since the start.

        sent, received (every delivery that came), delivered (without repetitions), duplicates, reordered, foreign (not
        of this run, at the wrong consumer, or a confirm of nothing), redelivered (that said so), acked (publications
        that were answered), refused (of these, with basic.nack), returned (could not be routed), overruns (open loop:
        messages left out because the broker does not read or confirm), pauses (times that the broker asked a
        connection to stop publishing), stalls (closed loop: times that nothing moved and the window was written off),
        expected (deliveries of what was sent), lost (of these, not come).
        """
        cdef AmqpLoop* s = &self.loop
        cdef uint64_t expected = s.sent * s.fanout
        cdef uint64_t lost = self.lost() if s.checked else (expected - s.received if expected > s.received else 0)
        return {"sent": s.sent, "received": s.received, "delivered": amqp_delivered(s),
                "duplicates": s.sequences.again, "reordered": s.sequences.late,
                "foreign": s.sequences.foreign + s.foreign, "redelivered": s.redelivered, "acked": s.confirmed,
                "refused": s.refused, "returned": s.returned, "overruns": s.overruns, "pauses": s.pauses,
                "stalls": s.stalls, "expected": expected, "lost": lost}

    cdef uint64_t lost(self) noexcept:
        cdef AmqpLoop* s = &self.loop
        cdef uint64_t lost = 0
        cdef uint64_t sent
        cdef uint32_t i, k
        for i in range(s.publishers_attached):
            sent = s.peers[s.publisher_at[i]].io.next
            if s.sequences.layout == LAYOUT_PAIRS:
                lost += track_lost(s.sequences.tracks + i, sent)
            elif s.sequences.layout == LAYOUT_SHARED:
                lost += ring_lost(s.sequences.rings + i, sent)
            else:
                for k in range(s.consumers):
                    lost += track_lost(s.sequences.tracks + <size_t>k * s.publishers + i, sent)
        return lost

    def latencies(self) -> tuple[object, object]:
        """(delivery, confirm) Histograms: send to basic.deliver read, send to confirm read."""
        return (Histogram.from_bytes(PyBytes_FromStringAndSize(<char*>&self.loop.latency, sizeof(Buckets))),
                Histogram.from_bytes(PyBytes_FromStringAndSize(<char*>&self.loop.confirm_latency, sizeof(Buckets))))

    @property
    def lateness_max(self) -> int:
        """Open loop: the most that a message was sent after its time, in ns, since measuring began."""
        return self.loop.late_max

    cdef int slice(self, double seconds, bint until_idle) except -1:
        cdef uint64_t end = load_clock() + <uint64_t>(max(seconds, 0.0) * 1e9)
        cdef uint64_t piece
        while True:
            piece = min(load_clock() + SLICE_NS, end)
            with nogil:
                amqp_spin(&self.loop, piece, until_idle)
            PyErr_CheckSignals()
            self.unblock()
            if self.loop.fault != FAULT_NONE:
                raise LoadError(self.fault_text())
            if load_clock() >= end or (until_idle and amqp_idle(&self.loop)):
                return 0

    cdef void unblock(self) noexcept nogil:
        """A closed loop stands still when the broker has lost a message: after a while, call it lost and go on."""
        cdef uint32_t i
        cdef AmqpPeer* p
        cdef AmqpLoop* s = &self.loop
        if s.received + s.confirmed != s.progress or not s.publishing or s.interval_ns or s.paused:
            s.progress, s.progress_at = s.received + s.confirmed, s.now
        elif s.now - s.progress_at > s.stall_ns:
            s.stalls += 1
            s.progress_at = s.now
            if s.sent * s.fanout > amqp_delivered(s):
                s.written_off = s.sent * s.fanout - amqp_delivered(s)
            s.forgotten += s.unconfirmed
            s.unconfirmed = 0
            for i in range(s.publishers):
                p = s.peers + s.publisher_at[i]
                p.unconfirmed = 0
                p.oldest = p.io.next + 1
                memset(p.sent_at, 0, (p.sent_mask + 1) * sizeof(uint64_t))
                amqp_wake(s, p)

    cdef str fault_text(self):
        cdef AmqpPeer* p = self.loop.peers + self.loop.fault_peer
        who = "publisher" if p.io.role == ROLE_PUBLISHER else "consumer"
        said = (<bytes>self.loop.fault_text).decode(errors="replace")
        what = {
            FAULT_CLOSED: "the broker closed the connection",
            FAULT_MALFORMED: f"the broker sent what cannot be AMQP 0-9-1 (a frame of type {self.loop.fault_code})",
            FAULT_MEMORY: "there is no memory left",
            FAULT_CLOSE_METHOD: f"the broker closed with {self.loop.fault_code} {said}",
            FAULT_CANCELLED: "the broker cancelled the consumer: its queue is gone",
        }[<int>self.loop.fault]
        return f"{who} {p.io.index}: {what}"


cdef inline void amqp_spin(AmqpLoop* s, uint64_t until, bint until_idle) noexcept nogil:
    cdef epoll_event events[EVENTS]
    cdef int got, i
    cdef int64_t wait
    cdef uint64_t next_at
    cdef AmqpPeer* p
    s.now = load_clock()
    amqp_flush(s)
    while s.fault == FAULT_NONE:
        next_at = until
        if s.publishing and s.interval_ns and s.due_at < next_at:
            next_at = s.due_at
        wait = <int64_t>(next_at - s.now) if next_at > s.now else 0
        if s.ready_count and s.publishing and not s.interval_ns:
            wait = 0
        got = load_wait(s.epoll, events, EVENTS, wait)
        s.now = load_clock()
        for i in range(got):
            p = s.peers + events[i].data.u64
            if events[i].events & EPOLLOUT:
                amqp_mark(s, p)
            if events[i].events & ~<uint32_t>EPOLLOUT and p.io.state != STATE_CLOSED:
                amqp_read(s, p)
        if s.publishing and s.interval_ns:
            amqp_publish_due(s)
        elif s.publishing:
            amqp_publish_ready(s)
        amqp_flush(s)
        s.now = load_clock()
        if s.now >= until or (until_idle and amqp_idle(s)):
            return

cdef inline void amqp_flush(AmqpLoop* s) noexcept nogil:
    cdef uint32_t i
    cdef int left
    cdef AmqpPeer* p
    for i in range(s.dirty_count):
        p = s.peers + s.dirty[i]
        p.io.dirty = False
        if p.io.state == STATE_CLOSED:
            continue
        left = peer_flush(&p.io)
        if left < 0:
            # What the broker said before it closed is still to be read: a reason beats "closed".
            p.io.out_at = p.io.out_end = 0
            amqp_read(s, p)
            amqp_fail(s, p, FAULT_CLOSED, 0)
        elif left != <int>p.io.blocked:
            p.io.blocked = left
            load_watch(s.epoll, EPOLL_CTL_MOD, p.io.fd, EPOLLIN | (EPOLLOUT if left else 0), p.io.number)
            if not left and p.io.role == ROLE_PUBLISHER:
                amqp_wake(s, p)
    s.dirty_count = 0
