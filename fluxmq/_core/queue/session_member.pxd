"""A queue's consumers over MQTT: members and readers that deliver into a session's window. See the .pyx."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.link cimport link_t
from fluxmq._core.memory.message cimport ids_t, msg_t
from fluxmq._core.pubsub.session cimport ClaimKeeper, Session
from fluxmq._core.queue.claim cimport Member, claim_t
from fluxmq._core.queue.log cimport record_t
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.shared_room cimport SharedRoom
from fluxmq._core.queue.stream cimport StreamReader

cdef class SessionClaims(ClaimKeeper):
    """Claims of queue messages delivered to one session, and their settlement."""
    cdef list queues                        # Queue: those consumed by this session
    cdef SharedRoom shared                  # of those whose queues other nodes have; None: there was none
    cdef bint starved                       # one of them found no room in the window

cdef class SessionMember(Member):
    cdef readonly Session session
    cdef readonly Queue queue
    cdef readonly uint32_t prefetch         # limit of unsettled messages; 0: the session's window
    cdef readonly bint manual               # PUBACK only confirms the receipt; `$ack` settles
    cdef readonly uint8_t qos
    cdef public object on_refused           # called with (member, log number, offset, deliveries, reason) of a refusal
    cdef ids_t* ids

cdef class SessionReader(StreamReader):
    cdef readonly Session session
    cdef readonly Queue queue
    cdef readonly uint8_t qos
    cdef readonly uint32_t partition
    cdef ids_t* ids

# Encodes the message for a consumer of `queue`: its topic below `$queue/<name>`, and for MQTT 5 the settling
# properties.
cdef msg_t* queue_message(Queue queue, const record_t* record, int64_t shift_ms, bytes group, uint32_t partition,
                          uint32_t deliveries, uint8_t qos, bint v5) except NULL
