"""What a node reads of a stream that this node has: it asks for the messages behind an offset, and gets a block of them
when there are any and they are committed. See engine/queues/streams.py, which asks and answers.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.peer.outbox cimport PeerOutbox
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.stream cimport Feed

cdef class PeerFeed(Feed):
    cdef readonly PeerOutbox outbox         # to the node that reads
    cdef readonly Queue queue
    cdef object encode
    cdef list asked                         # (number, index of the log, offset, bytes)

    # Returns the size of the block; 0: it cannot be answered now.
    cdef int64_t answer(self, uint32_t number, uint32_t at, uint64_t offset, uint64_t bytes_max) except -1
    cdef void tell_rest(self, uint8_t* at, const uint8_t* end) noexcept
