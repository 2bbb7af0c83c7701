"""The turn: wait for sockets, let connections take what arrived, hand the journal its batch, flush what is dirty."""
from libc.stdint cimport int64_t, uint32_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.tap cimport Tap

cdef class Poller:
    cdef readonly Hub hub
    cdef readonly int epoll             # of all sockets
    cdef int gate                       # what the event loop watches: an epoll that has `epoll` in it
    cdef int either                     # has `epoll` and the loop's own epoll in it; -1: not known, no turn lingers
    cdef int loop                       # the loop's own epoll
    cdef object callbacks               # of the loop, those that wait to be called
    cdef object ask                     # to be called when linger() is to be called soon
    cdef bint loop_has_work
    cdef bint shut                      # the gate: linger() was asked for, or is under way
    cdef readonly dict connections      # descriptor -> Connection; what keeps them alive
    cdef readonly dict listeners        # descriptor -> listener object of the edge
    cdef int timer                      # its descriptor: when to stop lingering
    cdef bint time_is_up
    cdef int journal_fd                 # the journal's eventfd, -1 without a journal
    cdef public int linger_ms           # how long a busy turn waits for more before the event loop gets its turn
    cdef int linger_off                 # turns that do not wait, because waiting was in vain
    cdef int64_t now_ns
    cdef object clocks                  # None: the system's, and epoll; else see Poller
    cdef int64_t slice_ms               # when the last slice of time began, monotonic; 0: none has
    cdef Tap recording                  # None: nobody records

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
    cdef int stamp(self) except -1
