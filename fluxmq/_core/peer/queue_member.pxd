"""A consumer of another node, as the group of a queue of this node sees it."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.peer.outbox cimport PeerOutbox
from fluxmq._core.queue.claim cimport Member, claim_t
from fluxmq._core.queue.log cimport record_t
from fluxmq._core.queue.queue cimport Queue

cdef class PeerMember(Member):
    cdef readonly PeerOutbox outbox         # to the consumer's node
    cdef readonly Queue queue
    cdef public uint32_t limit              # how many messages it may hold, as its node has said last
    cdef public object backoff              # (member, deliveries) -> ms: for what is given back without a delay
    # The queue has moved, and what its node says of messages goes there: called with itself, verb, deliveries, log,
    # first offset, count, ms, whether it counts, reason. None: the queue is here.
    cdef public object late
    # In which its node waits for what its consumer does (peer/channel.pxd).
    cdef public uint16_t channel
    cdef bint ending                        # it has left: its node knows that it holds nothing

    cdef claim_t* claim_at(self, uint32_t log, uint64_t offset, uint16_t deliveries)
    # Its node says what becomes of messages that it holds. What it does not hold any more, or with another number of
    # deliveries, is as it was.
    cdef int settle(self, uint8_t verb, uint16_t deliveries, uint32_t log, uint64_t first, uint32_t count, int64_t ms,
                    bint counts, str reason) except -1
