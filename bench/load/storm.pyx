# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Many connections: how fast they are accepted, and what they cost while they do nothing. Plain TCP, IPv4."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from bench.load.buckets cimport Buckets, buckets_add
from bench.load.system cimport (
    EAGAIN, EINTR, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, close, epoll_create1,
    epoll_event, load_clock, load_connect, load_errno, load_socket_error, load_wait, load_watch, recv, send)

from fluxmq.bench.load.histogram import Histogram

__all__ = ["Storm"]

cdef enum:
    EVENTS = 512
    PACKET_MAX = 512
    DIGITS = 8

cdef enum Step:
    STEP_NONE = 0
    STEP_CONNECTING = 1     # TCP
    STEP_WAITING = 2        # CONNECT is sent
    STEP_OPEN = 3
    STEP_CLOSED = 4         # by the broker, or never opened

cdef struct Line:
    int fd
    Step step
    uint8_t answer[4]       # the first bytes of the CONNACK
    uint8_t answer_size
    uint64_t started


@cython.final
cdef class Storm:
    """Up to `room` idle connections to one broker.

    address: IPv4 address, as a number in host byte order. sources: addresses to connect from, taken in blocks of
    `block` connections; 0 leaves the choice to the system. connect: the CONNECT packet; digits_at: offset in it of
    eight characters of the client identifier that become the number of the connection.
    Raises ValueError, MemoryError, OSError when there is no epoll.
    """
    cdef Line* lines
    cdef uint32_t room, count, open_count, closed_count, in_progress
    cdef int epoll
    cdef uint32_t address, block
    cdef uint16_t port
    cdef list sources
    cdef uint8_t packet[PACKET_MAX]
    cdef uint32_t packet_size, digits_at
    cdef Buckets latency
    cdef int error                      # errno of the last failure
    cdef int refused                    # CONNACK code of the last refusal

    def __cinit__(self, uint32_t room, uint32_t address, uint16_t port, bytes connect not None, uint32_t digits_at,
                  list sources not None, uint32_t block = 25000):
        self.epoll = -1
        if len(connect) > PACKET_MAX or digits_at + DIGITS > len(connect):
            raise ValueError(f"CONNECT is at most {PACKET_MAX} bytes, and the digits lie within it")
        if not sources or block < 1 or room > len(sources) * <uint64_t>block:
            raise ValueError("there are fewer source ports than connections")
        self.lines = <Line*>calloc(room + 1, sizeof(Line))
        if self.lines == NULL:
            raise MemoryError
        self.room, self.address, self.port, self.sources, self.block = room, address, port, sources, block
        memcpy(self.packet, PyBytes_AS_STRING(connect), len(connect))
        self.packet_size, self.digits_at = len(connect), digits_at
        self.epoll = epoll_create1(0)
        if self.epoll < 0:
            raise OSError("no epoll descriptor could be had")

    def __dealloc__(self):
        self.close()
        free(self.lines)
        if self.epoll >= 0:
            close(self.epoll)

    def open(self, uint32_t count, uint32_t at_once, double seconds) -> dict[str, object]:
        """Open `count` more connections, `at_once` in progress at a time; give up after `seconds`.

        Returns opened, failed, seconds (from the first SYN to the last CONNACK), per_second, latency (Histogram of
        connect to CONNACK, ns), errno and refused (the last failure's cause; 0 for none).
        Raises ValueError when there is no room for so many.
        """
        if self.count + count > self.room or at_once < 1:
            raise ValueError(f"there is room for {self.room - self.count} more, opened one or more at a time")
        cdef uint64_t start = load_clock()
        cdef uint64_t end = start + <uint64_t>(seconds * 1e9)
        cdef uint32_t goal = self.count + count
        cdef uint32_t open_before = self.open_count
        cdef uint32_t source, batch
        cdef bint over = False
        memset(&self.latency, 0, sizeof(Buckets))
        while not over:
            # The source changes with the block; within one the loop needs no Python.
            batch = min(goal, (self.count // self.block + 1) * self.block)
            source = self.sources[min(self.count // self.block, <uint32_t>len(self.sources) - 1)]
            with nogil:
                self.turn(batch, at_once, source, 50000000)
            PyErr_CheckSignals()
            over = (self.count == goal and self.in_progress == 0) or load_clock() > end
        cdef uint64_t took = load_clock() - start
        cdef uint32_t opened = self.open_count - open_before
        return {"opened": opened, "failed": count - opened, "seconds": took / 1e9,
                "per_second": opened * 1e9 / took, "errno": self.error, "refused": self.refused,
                "latency": Histogram.from_bytes(PyBytes_FromStringAndSize(<char*>&self.latency, sizeof(Buckets)))}

    def hold(self, double seconds) -> int:
        """Keep the connections open for so long, reading what comes; how many the broker has closed so far."""
        cdef uint64_t end = load_clock() + <uint64_t>(seconds * 1e9)
        while load_clock() < end:
            with nogil:
                self.turn(self.count, 1, 0, 50000000)
            PyErr_CheckSignals()
        return self.closed_count

    def close(self) -> None:
        """Close all connections."""
        cdef uint32_t i
        for i in range(self.count):
            if self.lines[i].step != STEP_CLOSED:
                close(self.lines[i].fd)
        self.count = self.open_count = self.in_progress = self.closed_count = 0

    cdef void turn(self, uint32_t goal, uint32_t at_once, uint32_t source, int64_t longest) noexcept nogil:
        """Start connections up to goal and handle events, for `longest` ns or until all are open."""
        cdef epoll_event events[EVENTS]
        cdef int got, i
        cdef uint64_t end = load_clock() + longest
        while True:
            while self.count < goal and self.in_progress < at_once:
                self.begin(source)
            if self.in_progress == 0 and source != 0 and self.count == goal:
                return
            got = load_wait(self.epoll, events, EVENTS, 1000000)
            for i in range(got):
                self.advance(<uint32_t>events[i].data.u64, events[i].events)
            if load_clock() >= end or (self.in_progress == 0 and self.count == goal and got > 0):
                return

    cdef void begin(self, uint32_t source) noexcept nogil:
        cdef Line* line = self.lines + self.count
        line.started = load_clock()
        line.fd = load_connect(source, self.address, self.port)
        self.count += 1
        if line.fd < 0:
            self.error = -line.fd
            line.step = STEP_CLOSED
            return
        line.step = STEP_CONNECTING
        self.in_progress += 1
        load_watch(self.epoll, EPOLL_CTL_ADD, line.fd, EPOLLOUT, self.count - 1)

    cdef void end(self, Line* line) noexcept nogil:
        if line.step == STEP_OPEN:
            self.open_count -= 1
            self.closed_count += 1
        else:
            self.in_progress -= 1
        line.step = STEP_CLOSED
        close(line.fd)

    cdef void advance(self, uint32_t number, uint32_t what) noexcept nogil:
        cdef Line* line = self.lines + number
        cdef uint8_t rest[512]
        cdef ssize_t got
        if line.step == STEP_CONNECTING:
            got = load_socket_error(line.fd)
            if got:
                self.error = <int>got
                self.end(line)
                return
            self.sign(number)
            if send(line.fd, self.packet, self.packet_size, MSG_DONTWAIT | MSG_NOSIGNAL) != self.packet_size:
                self.error = load_errno()
                self.end(line)
                return
            line.step = STEP_WAITING
            load_watch(self.epoll, EPOLL_CTL_MOD, line.fd, EPOLLIN, number)
            return
        got = recv(line.fd, rest, sizeof(rest), MSG_DONTWAIT)
        if got <= 0:
            if got < 0 and (load_errno() == EAGAIN or load_errno() == EINTR):
                return
            self.error = load_errno() if got < 0 else 0
            self.end(line)
            return
        if line.step != STEP_WAITING:
            return
        what = 0
        while line.answer_size < 4 and what < <uint32_t>got:
            line.answer[line.answer_size] = rest[what]
            line.answer_size += 1
            what += 1
        if line.answer_size < 4:
            return
        if line.answer[0] != 0x20 or line.answer[3] != 0:
            self.refused = line.answer[3]
            self.end(line)
            return
        line.step = STEP_OPEN
        self.in_progress -= 1
        self.open_count += 1
        buckets_add(&self.latency, load_clock() - line.started)

    cdef inline void sign(self, uint32_t number) noexcept nogil:
        cdef int i
        cdef uint8_t digit
        for i in range(DIGITS):
            digit = (number >> (28 - 4 * i)) & 15
            self.packet[self.digits_at + i] = digit + (48 if digit < 10 else 87)
