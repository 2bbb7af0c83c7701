"""A namespace: a virtual host of AMQP, a tenant of MQTT.

Client identifiers, topics, retained messages, share groups, queues and exchanges are separate per namespace. Each
namespace has its own topic index (pubsub/topics.pxd), and a connection gets its namespace when it is accepted, so the
hot path needs no comparison.

On a node a namespace is this object. In records it is a number, defined by the record's line (Line.namespaces,
memory/commits.pxd), where 0 is always "/"; between nodes it is sent by name.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef class Namespace:
    cdef readonly bytes name            # UTF-8
    cdef readonly uint32_t number       # in records of the journal
    cdef public object topics           # Topics (pubsub/topics.pxd), set by Namespaces.make
    cdef public bint open               # clients may connect to it
    cdef public bint kept               # created by an operator: open although the configuration does not name it
    # current numbers, maintained by the code that adds and removes
    cdef public uint64_t connections
    cdef public uint64_t sessions
    cdef public uint64_t queues
    cdef readonly int64_t bytes         # of retained messages, messages queued in sessions, and queues
    # limits; 0 = none (model/namespaces.py)
    cdef public uint64_t connections_max
    cdef public uint64_t sessions_max
    cdef public uint64_t queues_max
    cdef public uint64_t bytes_max
    # publish rate: every publish takes one off `budget`; a connection that finds it used up is not read until the next
    # time slice. Without a limit the budget is too large to be used up.
    cdef readonly uint64_t rate_max     # messages per second; 0 = no limit
    cdef readonly int64_t budget        # messages left in this time slice
    cdef uint64_t earned                # thousandths of a message, carried over to the next slice
    cdef readonly list waiting          # connections paused because of it
    # number of refusals and pauses caused by each limit, since start
    cdef public uint64_t refused_connections
    cdef public uint64_t refused_sessions
    cdef public uint64_t refused_queues
    cdef readonly uint64_t refused_bytes
    cdef readonly uint64_t held_back

    cdef void begin_slice(self, uint64_t elapsed_ms) noexcept

# Whether `size` more bytes would exceed the limit.
cdef inline bint lacks_room(Namespace namespace, size_t size) noexcept:
    return namespace.bytes_max != 0 and namespace.bytes + <int64_t>size > <int64_t>namespace.bytes_max
