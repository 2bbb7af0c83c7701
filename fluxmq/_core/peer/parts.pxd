"""A queue whose partitions are queues of their own, each at a node of the cluster: what stands for it on every node.

    $queue/orders ─► Queue "orders": keeps nothing ─► Parts ─┬─► Queue "$part-0-2-orders": of this node
                        │                                    ├─► Queue "$part-1-2-orders": a relay to its owner
      a consumer ◄── claim (partition, offset)               └─► …   (its number, and how many there are)
                        └── one PartMember in a group of each partition

The whole queue has the members, exchanges and filters, and its groups know what the members hold, as those of a relay
do. Each partition decides who gets its messages: its group has a PartMember for each consumer of this node, whose
credit is the consumer's, and which hands on what it gets. What becomes of a message goes back the same way.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.envelope.envelope cimport options_t
from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.message cimport body_t, pub_t
from fluxmq._core.peer.queue_relay cimport RelayMember
from fluxmq._core.queue.claim cimport Member, claim_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport record_t
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.queue.relay cimport Relay
from fluxmq._core.queue.shared_room cimport SharedRoom

cdef class Parts

cdef class WholeMember:
    """A consumer of this node of the whole queue."""
    cdef readonly Member member
    cdef readonly Group group
    cdef readonly Parts relay
    cdef readonly list parts                # PartMember, by partition; None: it is in no group there
    cdef readonly bint opened               # its client knows that it is a consumer: it may get messages
    cdef readonly bint pulls
    cdef readonly bint rests                # it gets nothing more
    cdef public object asked                # of the engine: how it is attached; None: it was not yet
    cdef SharedRoom shared                  # its room, for partitions of other nodes; None: it has none there yet

cdef class PartMember(Member):
    cdef readonly WholeMember whole
    cdef readonly uint32_t partition
    cdef claim_t* got                       # of a consumer that pulls: the message that is here for it; NULL: none
    cdef const record_t* got_record

    cdef Cursor cursor_of_whole(self, uint64_t offset)
    cdef uint32_t awaited(self) noexcept
    cdef RelayMember relayed(self)
    cdef bint hand_on(self, claim_t* claim, const record_t* record) except -1

cdef class Parts(Relay):
    cdef object __weakref__
    cdef readonly Queue queue               # the whole
    cdef readonly Hub hub
    cdef readonly list queues               # Queue, by partition; None: this node does not know it yet
    cdef public object on_leave             # (PartMember): it is to leave its group
    cdef public object on_rest              # (PartMember): it is to get nothing more
    cdef public object backoff              # (PartMember, deliveries) -> ms: for what is given back without a delay
    cdef list members                       # WholeMember; None: a place that is free. Member.number is the place + 1
    cdef uint32_t turn_pumped               # the partition that was pumped first
    cdef uint32_t turn                      # the next partition of a message without a key
    cdef set unsaid                         # partitions with settlements since the last barrier()

    cdef uint32_t partition_of(self, const options_t* options, const pub_t* pub)
    cdef bint reaches(self, uint32_t partition) noexcept
    cdef int publish_here(self, Queue part, const body_t* body, uint8_t qos, int awaited, const pub_t* pub) except -1
