"""The turn: wait for sockets, let connections take what arrived, hand the journal its batch, flush what is dirty."""
from fluxmq._core.hub cimport Hub

cdef class Poller:
    cdef readonly Hub hub
    cdef readonly int epoll
    cdef readonly dict connections      # descriptor -> Connection; what keeps them alive
    cdef readonly dict listeners        # descriptor -> listener object of the edge
    cdef public int rounds_max

    cdef int round(self) except -1
    cdef int flush_dirty(self) except -1
    cdef int accept_from(self, int fd, object listener) except -1
    cdef int end_turn(self) except -1
    cdef void stamp(self) noexcept
