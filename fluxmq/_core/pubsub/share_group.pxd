"""The members of one `$share/<name>/<filter>`, MQTT 5.0 section 4.8.2: sessions of this node, and other nodes.

    a publish on this node ─► spread: which node? ─┬─► this one: deliver ─► one session
                                                   └─► another: GroupTaker.forward_group ─► its deliver

A node is chosen by the counts of connected members, in a smooth weighted turn: each node gains its weight, the richest
is chosen and pays the sum. So nodes with 1, 2 and 3 members get 1, 2 and 3 of any six messages, and not in a row. When
no member anywhere is connected, those that are away count, and QoS 0 is dropped.

Each delivery of QoS 1 or 2 carries the group's mark behind its subscription identifiers (ids_t), also on disk and to
another node. So a session that ends knows which of its messages other members should get (hub/group_messages.pyx).
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t

from fluxmq._core.memory.message cimport ids_t, pub_t
from fluxmq._core.pubsub.session cimport Session

cdef class GroupTaker:
    """Base class: another node that has members."""
    # A message for one member of the group there. Gives a ticket for QoS 1 and 2.
    cdef int forward_group(self, pub_t* pub, bytes group, bytes filter) except -1

# ShareGroup.mark
cdef uint32_t group_mark(bytes name, bytes filter) except? 0

cdef struct member_t:
    ids_t* ids[3]               # by the QoS of the publish: 0 without the mark, or NULL; 1 and 2 with it
    uint8_t options

cdef struct far_t:              # what another node has
    uint32_t connected
    uint32_t away               # only known if none is connected
    int64_t credit

cdef class ShareGroup:
    cdef readonly bytes name
    cdef readonly bytes filter
    cdef readonly uint32_t mark         # of `$share/<name>/<filter>`; the same on every node
    cdef readonly list sessions         # Session objects; members[i] belongs to sessions[i]
    cdef member_t* members
    cdef uint32_t count                 # of `members`
    cdef uint32_t capacity
    cdef uint32_t turn                  # where the next choice starts
    # other nodes; all of it stays empty on a node without others
    cdef public uint32_t connected      # of this node's members, as the other nodes are told
    cdef readonly list takers           # GroupTaker objects; far[i] belongs to takers[i]
    cdef far_t* far
    cdef uint32_t far_capacity
    cdef int64_t credit                 # of this node

    cdef int deliver(self, pub_t* pub) except -1        # to a session of this node
    # To a session of any node. 0: there is none, or it was dropped; 1: this node has it; 2 + its place in `takers`:
    # another node.
    cdef int spread(self, pub_t* pub) except -1
    cdef void forget(self, uint32_t i) noexcept
