"""A namespace: what a virtual host of AMQP and a tenant of MQTT are here.

Client identifiers, topics, retained messages, share groups, queues and exchanges of one namespace never meet those of
another. Each has an index of its own (pubsub/topics.pxd), so a publish is in its namespace from the moment in which its
connection was accepted, and the hot path compares nothing.

On a node a namespace is this object. In records it is a number, by the table of the record's line (Line.namespaces,
memory/commits.pxd), where 0 is always "/"; between nodes its name travels.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef class Namespace:
    cdef readonly bytes name            # UTF-8
    cdef readonly uint32_t number       # in records of the journal
    cdef public object topics           # Topics (pubsub/topics.pxd), set by who makes the namespace
    cdef public bint open               # clients may connect to it
    cdef public bint kept               # an operator made it: it is open though no configuration names it
    # what there is, counted by whoever adds and removes it
    cdef public uint64_t connections
    cdef public uint64_t sessions
    cdef public uint64_t queues
    cdef readonly int64_t bytes         # retained messages, what waits in sessions, what queues keep
    # how much there may be; 0 = any number (model/namespaces.py)
    cdef public uint64_t connections_max
    cdef public uint64_t sessions_max
    cdef public uint64_t queues_max
    cdef public uint64_t bytes_max
    # messages that its clients publish: so many are left of this slice of time, and who published the last one is not
    # read until the next. Whoever publishes takes one off and compares with 0; without a limit it never gets there.
    cdef readonly uint64_t rate_max     # a second; 0 = any number
    cdef readonly int64_t budget
    cdef uint64_t earned                # thousandths of a message
    cdef readonly list waiting          # connections that are not read because of it
    # how often a limit refused or held back something, since start
    cdef public uint64_t refused_connections
    cdef public uint64_t refused_sessions
    cdef public uint64_t refused_queues
    cdef readonly uint64_t refused_bytes
    cdef readonly uint64_t held_back

    cdef void begin_slice(self, uint64_t elapsed_ms) noexcept

# Whether so many bytes more would be too many.
cdef inline bint lacks_room(Namespace namespace, size_t size) noexcept:
    return namespace.bytes_max != 0 and namespace.bytes + <int64_t>size > <int64_t>namespace.bytes_max
