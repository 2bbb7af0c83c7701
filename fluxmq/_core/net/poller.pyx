# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Handle. One epoll for all sockets of a node, itself watched by the event loop as a single descriptor.

The event loop calls turn() when any socket is ready. So a turn costs one Python call whatever the number of ready
sockets, and an idle connection costs the loop nothing. While messages keep coming, a turn lingers: it waits for the
next ones itself, for `linger_ms` in all, because a pass through the event loop costs as much as several messages.
Work for the cold half (a CONNECT, a task) ends the turn at once. docs/decisions/0001-nested-epoll.md.

Other work of the loop (a peer's stream, an HTTP client, a call from a thread) ends the turn too: a lingering turn waits
for its sockets or for the loop's own epoll, and does not wait at all while callbacks of the loop are ready. The loop's
epoll must not report the sockets meanwhile, so the loop watches a gate, which is shut while a turn lingers. linger() is
a separate callback, behind all that were ready with turn(). docs/decisions/0009-lingering-ends.md.

    loop's epoll ∋ gate ∋ epoll ∋ sockets        `either` ∋ epoll, loop's epoll

One of ring 0's socket handles: it waits, accepts and sets the clock; Connection and Hub handle the bytes.
"""
cimport cython
from cpython.ref cimport PyObject
from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, timespec
from posix.unistd cimport close

from fluxmq._core.disk.journal cimport JOURNAL_FAILED
from fluxmq._core.errors import FencedError, UsageError
from fluxmq._core.memory.commits cimport link_owner
from fluxmq._core.memory.link cimport link_drop, link_t
from fluxmq._core.memory.node cimport (
    WORK_ACCEPT, WORK_ROUND, WORK_SHARE_MAX, WORK_SHARE_MIN, node_t, read_clocks, stamp_clocks,
)
from fluxmq._core.memory.tap cimport READER_RECORDING, READER_VIEW, Tap
from fluxmq._core.net.epoll cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, epoll_create1, epoll_ctl, epoll_event,
    epoll_wait,
)
from fluxmq._core.net.peer cimport PEER_BYTES, peer_ip, sockaddr
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.net.transport cimport PAUSE_DISK, PAUSE_PEER, PAUSE_RATE, Transport

__all__ = ["Poller"]

cdef extern from "<sys/timerfd.h>" nogil:
    cdef struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec* new, itimerspec* old)
    int TFD_NONBLOCK
    int TFD_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    ssize_t read_fd "read"(int fd, void* into, size_t n)

cdef extern from "<sys/socket.h>" nogil:
    int accept4(int fd, sockaddr* address, unsigned int* length, int flags)
    int setsockopt(int fd, int level, int name, const void* value, unsigned int length)
    int SOCK_NONBLOCK
    int SOCK_CLOEXEC

cdef extern from "<netinet/in.h>" nogil:
    int IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_NODELAY

# Their addresses identify, in an event, the timer and the event loop's epoll.
cdef char timer_mark, loop_mark

cdef enum:
    EVENTS_MAX = 512
    CROWD_MAX = 8192            # events of one round, when more are ready than one wait reports
    LINGER_ROUNDS_MIN = 2
    LINGER_OFF_TURNS = 16
    ACCEPT_MAX = 256            # of one listener per round, so that new connections do not starve existing ones
    ACCEPT_MIN = 8              # even in a round whose work is used up


@cython.final
cdef class Poller:
    """Handle. hub: the node's. linger_ms: see above; 0 = never.

    clocks: for simulated time: a callable that returns (wall, steady, monotonic) milliseconds. Then there is no epoll:
    play() gets the ready connections, whose `tls` is an in-memory socket, without a descriptor or an epoll."""

    def __cinit__(self, Hub hub not None, int linger_ms=10, object clocks=None):
        self.epoll = self.gate = self.either = self.loop = -1
        self.hub = hub
        self.connections = {}
        self.listeners = {}
        self.linger_ms = linger_ms
        self.share_max = WORK_SHARE_MAX
        self.journal_fd = -1
        self.timer = -1
        self.clocks = clocks
        if clocks is not None:
            hub.node.simulated = True
            hub.clocks = clocks
            self.stamp()
            return
        hub.node.timed = True
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.gate = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0 or self.gate < 0:
            raise OSError(errno, "epoll_create1")
        self.watch(self.gate, EPOLL_CTL_ADD, self.epoll, EPOLLIN, NULL)
        if hub.ledger.journal is not None:
            self.journal_fd = hub.ledger.journal.event_fd
            self.watch(self.epoll, EPOLL_CTL_ADD, self.journal_fd, EPOLLIN, NULL)       # NULL identifies the journal
        self.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self.timer < 0:
            raise OSError(errno, "timerfd_create")
        self.watch(self.epoll, EPOLL_CTL_ADD, self.timer, EPOLLIN, <void*>&timer_mark)
        self.stamp()

    cdef int watch(self, int epoll, int op, int fd, uint32_t events, void* mark) except -1:
        cdef epoll_event event
        event.events = events
        event.data.ptr = mark
        if epoll_ctl(epoll, op, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    def __dealloc__(self):
        if self.timer >= 0:
            close(self.timer)
        if self.epoll >= 0:
            close(self.epoll)
        if self.gate >= 0:
            close(self.gate)
        if self.either >= 0:
            close(self.either)

    def fileno(self) -> int:
        """The descriptor that the event loop watches."""
        return self.gate

    def watch_loop(self, int fd, callbacks not None, ask not None):
        """Enables lingering. fd: the epoll in which the event loop waits and which contains fileno(); open as long as
        turn() is called. callbacks: the loop's ready callbacks, of which only the length is read. ask: schedules a call
        of linger(), behind callbacks ready by then. Without watch_loop no turn lingers, because the poller cannot see
        whether the loop has work."""
        if self.either >= 0:
            raise UsageError("the loop is watched already")
        self.loop = fd
        self.callbacks = callbacks
        self.ask = ask
        self.either = epoll_create1(EPOLL_CLOEXEC)
        if self.either < 0:
            raise OSError(errno, "epoll_create1")
        self.watch(self.either, EPOLL_CTL_ADD, self.epoll, 0, NULL)
        self.watch(self.either, EPOLL_CTL_ADD, fd, 0, <void*>&loop_mark)

    cdef int stamp(self) except -1:
        if self.clocks is not None:
            wall_ms, steady_ms, mono_ms = self.clocks()
            self.now_ns = <int64_t>mono_ms * 1000000
            stamp_clocks(self.hub.node, wall_ms, steady_ms, mono_ms)
            return 0
        self.now_ns = read_clocks(self.hub.node)
        return 0

    def add_listener(self, int fd, listener):
        """fd: a listening, non-blocking socket, which the caller closes. listener: has accepted(fd, address) ->
        Connection | None, where address is the peer's IP address, 4 or 16 bytes, or b""; and accept_failed(errno),
        after which nothing is accepted from fd until add_listener is called again."""
        self.watch(self.epoll, EPOLL_CTL_ADD, fd, EPOLLIN, <void*><PyObject*>listener)
        self.listeners[fd] = listener

    def remove_listener(self, int fd):
        cdef epoll_event event
        if self.listeners.pop(fd, None) is not None:
            epoll_ctl(self.epoll, EPOLL_CTL_DEL, fd, &event)

    def adopt(self, Transport connection not None):
        """Keeps a connection alive until it is closed."""
        self.connections[connection] = None

    @property
    def tap(self) -> Tap | None:
        """The tap that records all connections; None: no recording."""
        return self.recording

    def record(self, Tap tap, bint view=False):
        """Starts a recording into `tap`, of each connection from its OPENED event on; None: stops it. view: for the
        live view, beside a recording or without one."""
        if view:
            self.viewing = tap
        else:
            self.recording = tap
        if tap is not None:
            self.hub.node.recording += 1
            tap.begin(READER_VIEW if view else READER_RECORDING, self.hub.node.recording)
        if self.recording is not None:
            self.recording.tap.next = NULL if self.viewing is None else &self.viewing.tap
            self.hub.node.tap = <void*>&self.recording.tap
        else:
            self.hub.node.tap = NULL if self.viewing is None else <void*>&self.viewing.tap

    def turn(self):
        """Handles everything that is ready. The event loop calls it when fileno() is readable, the edge after work
        outside of a turn (Hub.wake). Raises StorageError if the journal has failed, FencedError if the node may not
        serve any more (Hub.serve_until)."""
        cdef bint lingers = False
        self.hub.in_turn = True
        self.hub.woken = False
        self.hub.cold = False
        try:
            if self.round() and self.may_linger():
                if self.linger_off:
                    self.linger_off -= 1
                else:
                    lingers = True
                    self.turn_to(True)      # otherwise the loop would call turn() before linger()
                    self.ask()
        finally:
            if lingers:
                self.hub.in_turn = False
            else:
                self.leave_turn()

    def linger(self):
        """Further rounds, until the time is up, the loop has other work, or nothing arrives. The loop calls it after
        turn() has scheduled it. Raises as turn()."""
        cdef int found = 0
        if not self.shut:
            return
        self.hub.in_turn = True
        self.loop_has_work = False
        try:
            if not self.may_linger():
                return
            self.set_timer()
            while not self.time_is_up and self.may_linger():
                self.wait_for_either(0 if self.hub.has_work() else -1)
                if self.loop_has_work or not self.round():
                    break
                found += 1
            if found < LINGER_ROUNDS_MIN and not self.hub.cold and not self.loop_has_work:
                self.linger_off = LINGER_OFF_TURNS      # too little traffic to linger
        finally:
            self.turn_to(False)
            self.leave_turn()

    cdef bint may_linger(self) except -1:
        """Whether the loop has no other known work."""
        return (self.either >= 0 and self.linger_ms != 0 and not self.hub.cold and self.hub.awaited == 0
                and len(self.callbacks) == 0)

    cdef int turn_to(self, bint lingering) except -1:
        """Selects which epoll reports the sockets: `either` or the loop's. Only event masks change: to remove and add
        `epoll` would make the kernel poll every socket (decision 0009)."""
        cdef uint32_t here = EPOLLIN if lingering else 0
        self.shut = lingering
        self.watch(self.gate, EPOLL_CTL_MOD, self.epoll, EPOLLIN - here, NULL)
        self.watch(self.either, EPOLL_CTL_MOD, self.epoll, here, NULL)
        return self.watch(self.either, EPOLL_CTL_MOD, self.loop, here, <void*>&loop_mark)

    cdef int wait_for_either(self, int timeout_ms) except -1:
        cdef epoll_event[2] events
        cdef int n, i
        with nogil:
            n = epoll_wait(self.either, events, 2, timeout_ms)
        if n < 0 and errno != EINTR:
            raise OSError(errno, "epoll_wait")
        for i in range(n):
            if events[i].data.ptr == <void*>&loop_mark:
                self.loop_has_work = True
        return 0

    def play(self, list ready not None, bint journal) -> int:
        """A turn of one round under simulated time. ready: [(connection, epoll events)]; journal: its eventfd is ready.
        Returns how many connections resumed (go_on). Raises as turn()."""
        cdef Transport connection
        if self.clocks is None:
            raise UsageError("play() is for a poller with clocks of its own")
        self.hub.in_turn = True
        self.hub.woken = False
        self.hub.cold = False
        try:
            self.begin_round(<int>len(ready) + journal)
            if journal:
                self.journal_turn()
            for connection, events in ready:
                connection.on_event(events)
            return self.end_turn()
        finally:
            self.leave_turn()

    cdef int leave_turn(self) except -1:
        self.hub.in_turn = False
        if (self.hub.has_work() or self.hub.ledger.unpumped or self.hub.deferred_publishes or self.hub.commits.moved
                or self.hub.node.dirty != NULL):
            self.hub.touch()            # what the end of the turn has resumed, released or written to needs another one
        return 0

    cdef void set_timer(self) noexcept:
        """Starts the timer whose event ends lingering. A timeout in each epoll_wait would program the processor's timer
        each time, which costs more than a message."""
        cdef itimerspec when
        memset(&when, 0, sizeof(when))
        when.it_value.tv_sec = self.linger_ms // 1000
        when.it_value.tv_nsec = self.linger_ms % 1000 * 1000000
        self.time_is_up = False
        timerfd_settime(self.timer, 0, &when, NULL)

    cdef int round(self) except -1:
        """Returns how many descriptors were ready, without the timer, plus how many connections resumed (go_on)."""
        cdef epoll_event[EVENTS_MAX] events
        cdef int n
        cdef int i
        cdef int quiet = 0
        cdef uint64_t ticks
        cdef object target
        cdef bint crowded = self.unseen != 0
        n = epoll_wait(self.epoll, events, EVENTS_MAX, 0)
        if n < 0:
            if errno != EINTR:
                raise OSError(errno, "epoll_wait")
            n = 0
        self.begin_round(n)
        if n < EVENTS_MAX:
            self.unseen = 0
        else:
            self.unseen = max((self.unseen or min(<Py_ssize_t>len(self.connections), <Py_ssize_t>CROWD_MAX)) - n, 0)
        if crowded and self.unseen == 0:
            self.share(n)               # the last wait of a round: what waits for work to be left has some now
        for i in range(n):
            if events[i].data.ptr == NULL:
                self.journal_turn()
                continue
            if events[i].data.ptr == <void*>&timer_mark:
                read_fd(self.timer, &ticks, 8)
                self.time_is_up = True
                quiet += 1
                continue
            # hub.closed keeps closed connections until the end of the round, so the pointer is valid.
            target = <object><PyObject*>events[i].data.ptr
            if isinstance(target, Transport):
                (<Transport>target).on_event(events[i].events)
            else:
                self.hub.cold = True
                self.accept_ready(target)
        return self.end_turn() + n - quiet

    cdef int begin_round(self, int ready) except -1:
        self.stamp()
        if self.hub.node.steady_ms - self.hub.node.steady_base >= self.hub.node.serve_until_ms:
            raise FencedError("the lease in the cluster has ended: this node stopped serving")
        self.hub.node.turn += 1
        self.hub.node.counters.turns += 1
        if self.unseen == 0:
            self.share(ready)
        return 0

    cdef int share(self, int ready) noexcept:
        """Divides the work of a round into shares for the connections that have something to do."""
        cdef node_t* node = self.hub.node
        cdef uint64_t takers = <uint64_t>ready + <uint64_t>len(self.hub.resumed)
        node.work_round = node.work + WORK_ROUND
        node.work_share = WORK_ROUND // takers if takers else WORK_SHARE_MAX
        node.work_share = min(max(node.work_share, <uint64_t>WORK_SHARE_MIN), self.share_max)
        return 0

    cdef int go_on(self) except -1:
        """Resumes waiting connections, first come first served, until the work of the round is used up: at least one,
        and each at most once. Returns how many."""
        cdef Transport connection
        cdef int served = 0
        cdef int seen = 0
        cdef list waiting = self.hub.resumed
        cdef list later = []
        self.hub.resumed = []
        for connection in waiting:
            if served and self.hub.node.work >= self.hub.node.work_round:
                break
            seen += 1
            if connection.greedy and connection.served == self.hub.node.turn:
                later.append(connection)        # it was served in this round already
                continue
            served += 1
            connection.go_on()
        self.hub.resumed = waiting[seen:] + later + self.hub.resumed
        return served

    cdef int end_turn(self) except -1:
        """Returns how many connections resumed (go_on)."""
        cdef Transport connection
        cdef int served = 0
        if self.hub.disk.throttled:
            self.resume_throttled()
        if self.hub.resumed and self.unseen == 0:
            served = self.go_on()
        if self.hub.due:
            served += self.hub.replay_retained()
        # journal_turn reports a failed journal; connections go on here until the node stops.
        self.hub.pump_queues()
        if self.hub.replication is not None:
            self.hub.replication.turn()
        if self.hub.commits.moved:
            self.hub.release()          # another line than the journal has decided positions
        if self.hub.ledger.journal is not None and self.hub.ledger.journal.status != JOURNAL_FAILED:
            self.hub.ledger.submit()
        self.flush_dirty()
        if self.hub.replication is not None:
            self.hub.replication.turn()
        if self.hub.ledger.journal is not None and self.hub.ledger.journal.status != JOURNAL_FAILED:
            self.hub.ledger.submit()    # records of deliveries that a flush took from queues; no other turn may come
        if self.hub.unsealed:
            self.end_turn_of_peers()
        if self.hub.replication is not None:
            self.hub.replication.flush()
        self.hub.commits.end_turn()
        if self.hub.closed:
            for connection in self.hub.closed:
                self.connections.pop(connection, None)
            self.hub.closed.clear()
        return served

    cdef int flush_dirty(self) except -1:
        """One send per dirty link; messages that a drained link takes from its queue are sent in the same pass."""
        cdef link_t* link
        cdef object owner
        cdef int left = 1000000         # safety bound: each flush either empties a link or blocks it
        while self.hub.node.dirty != NULL and left:
            link = <link_t*>self.hub.node.dirty
            self.hub.node.dirty = <void*>link.next_dirty
            link.next_dirty = NULL
            link.dirty = 0
            left -= 1
            if link.owner != NULL:
                owner = <object>link_owner(link)
                (<Transport>owner).flush()
            link_drop(link)
        return 0

    def accept_ready(self, listener):
        # One listener may have several sockets (IPv4 and IPv6); the event does not identify the socket.
        for fd in [fd for fd, known in self.listeners.items() if known is listener]:
            self.accept_from(fd, listener)

    cdef int accept_from(self, int fd, object listener) except -1:
        cdef int i, accepted
        cdef int one = 1
        cdef unsigned char[PEER_BYTES] peer
        cdef unsigned int length
        for i in range(ACCEPT_MAX):
            if i >= ACCEPT_MIN and self.hub.node.work >= self.hub.node.work_round:
                return 0            # epoll will report it again
            self.hub.node.work += WORK_ACCEPT
            length = PEER_BYTES
            accepted = accept4(fd, <sockaddr*>peer, &length, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if accepted < 0:
                if errno == EINTR or errno == ECONNABORTED:
                    continue
                if errno != EAGAIN:
                    error = errno
                    self.remove_listener(fd)
                    listener.accept_failed(error)
                return 0
            setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
            self.hub.node.counters.connections_accepted += 1
            connection = listener.accepted(accepted, peer_ip(peer, length))
            if connection is not None:
                self.connections[connection] = None
        return 0

    cdef int journal_turn(self) except -1:
        """A batch is durable: releases what waited for it, and submits the next one. This happens in the middle of a
        turn, so queues are pumped first: what they have settled is recorded only by their pump, and belongs in one
        batch with records already made (a dead letter, the other half of a transaction)."""
        self.hub.pump_queues()
        self.hub.ledger.poll()
        if self.hub.replication is not None:
            self.hub.replication.durable()
        self.hub.release()
        return 0

    cdef int resume_throttled(self) except -1:
        """The disk, or a checkpoint, has caught up: resumes the connections paused because of it."""
        cdef Transport connection
        if self.hub.disk.has_eased():
            waiting = self.hub.disk.throttled[:]
            self.hub.disk.throttled.clear()
            for connection in waiting:
                connection.resume_from(PAUSE_DISK)
        return 0

    cdef int end_turn_of_peers(self) except -1:
        """Hands over what was gathered for other nodes. Resumes connections that were paused because of one."""
        cdef Transport connection
        self.hub.end_turn_of_peers()
        if self.hub.eased:
            eased = self.hub.eased
            self.hub.eased = []
            for connection in eased:
                connection.resume_from(PAUSE_PEER)
        return 0

    def begin_slice(self):
        """Begins a time slice for the publish rate of namespaces: renews their budgets and resumes the connections that
        had to wait. Measured by Hub.mono_ms; called a few times a second."""
        cdef Namespace namespace
        cdef Transport connection
        cdef int64_t now = self.hub.node.mono_ms
        cdef int64_t elapsed = min(now - self.slice_ms, <int64_t>1000) if self.slice_ms else 0
        self.slice_ms = now
        for namespace in self.hub.namespaces.values():
            namespace.begin_slice(<uint64_t>max(elapsed, <int64_t>0))
            if namespace.waiting and namespace.budget > 0:
                waiting, namespace.waiting = namespace.waiting, []
                for connection in waiting:
                    connection.resume_from(PAUSE_RATE)

    def sweep(self) -> list:
        """Checks the timeouts of all connections. Returns [(connection, why)] for those to end, see Connection.tick."""
        cdef Transport connection
        self.stamp()
        late = []
        for connection in list(self.connections):
            why = connection.tick()
            if why:
                late.append((connection, why))
        return late
