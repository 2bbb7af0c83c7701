"""The turn: wait for sockets, let connections take what arrived, hand the journal its batch, flush what is dirty."""
from libc.stdint cimport int64_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.tap cimport Tap

cdef class Poller:
    cdef readonly Hub hub
    cdef readonly int epoll
    cdef readonly dict connections      # descriptor -> Connection; what keeps them alive
    cdef readonly dict listeners        # descriptor -> listener object of the edge
    cdef int timer                      # its descriptor: when to stop lingering
    cdef bint time_is_up
    cdef int journal_fd                 # the journal's eventfd, -1 without a journal
    cdef public int linger_ms           # how long a busy turn waits for more before the event loop gets its turn
    cdef int linger_off                 # turns that do not wait, because waiting was in vain
    cdef int64_t now_ns
    cdef Tap recording                  # None: nobody records

    cdef void set_timer(self) noexcept
    cdef int round(self, int timeout_ms) except -1
    cdef int flush_dirty(self) except -1
    cdef int accept_from(self, int fd, object listener) except -1
    cdef int end_turn(self) except -1
    cdef int share(self, int ready) noexcept
    cdef int go_on(self) except -1
    cdef int journal_turn(self) except -1
    cdef int resume_throttled(self) except -1
    cdef void stamp(self) noexcept
