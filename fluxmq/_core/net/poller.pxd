"""The turn: wait for sockets, let connections handle input, submit the journal's batch, flush dirty links."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.tap cimport Tap

cdef class Poller:
    cdef readonly Hub hub
    cdef readonly int epoll             # of all sockets
    cdef int gate                       # an epoll that contains `epoll`; the event loop watches it
    cdef int either                     # contains `epoll` and the loop's own epoll; -1: unknown, no turn lingers
    cdef int loop                       # the loop's own epoll
    cdef object callbacks               # the loop's callbacks that are ready to be called
    cdef object ask                     # schedules a call of linger()
    cdef bint loop_has_work
    cdef bint shut                      # the gate: linger() is scheduled or running
    cdef readonly dict connections      # Transport -> None, in order of their coming; keeps them alive
    cdef readonly dict listeners        # descriptor -> listener object of the edge
    cdef int timer                      # descriptor of the timer that ends lingering
    cdef bint time_is_up
    cdef int journal_fd                 # the journal's eventfd, -1 without a journal
    cdef public int linger_ms           # how long a busy turn waits for more before it returns to the event loop
    cdef public uint64_t share_max      # units of work of a connection in one round (memory/node.pxd); 1: a packet
    # Connections that may be ready too, when one wait reports as many as it can: the next waits belong to the same
    # round, and who waits until there is work left (Hub.resumed) goes on at its end. So the last that is ready is
    # served behind the others' events, not behind their work. 0: all that are ready were reported.
    cdef Py_ssize_t unseen
    cdef int linger_off                 # number of turns that will not linger, because lingering found nothing
    cdef int64_t now_ns
    cdef object clocks                  # None: the system's, and epoll; else see Poller
    cdef int64_t slice_ms               # start of the current time slice, monotonic; 0: none yet
    cdef Tap recording                  # None: no recording
    cdef Tap viewing                    # of a live view; None: there is none

    cdef int watch(self, int epoll, int op, int fd, uint32_t events, void* mark) except -1
    cdef int turn_to(self, bint lingering) except -1
    cdef int wait_for_either(self, int timeout_ms) except -1
    cdef bint may_linger(self) except -1
    cdef void set_timer(self) noexcept
    cdef int round(self) except -1
    cdef int leave_turn(self) except -1
    cdef int begin_round(self, int ready) except -1
    cdef int flush_dirty(self) except -1
    cdef int accept_from(self, int fd, object listener) except -1
    cdef int end_turn(self) except -1
    cdef int share(self, int ready) noexcept
    cdef int go_on(self) except -1
    cdef int journal_turn(self) except -1
    cdef int resume_throttled(self) except -1
    cdef int end_turn_of_peers(self) except -1
    cdef int stamp(self) except -1
