"""The retained messages of a node, counted and limited; each is stored in the tree of its namespace's Topics."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport body_t, msg_t, pub_t
from fluxmq._core.pubsub.retained cimport Retained
from fluxmq._core.pubsub.topics cimport Topics

# Whether it is the broker's own status ($SYS): not published by a client, so not counted.
cdef inline bint of_broker(const pub_t* pub) noexcept:
    return pub.source == NULL and pub.body.topic_length >= 5 and memcmp(pub.body.topic, <const char*>b"$SYS/", 5) == 0

cdef class RetainedStore:
    cdef Ledger ledger
    cdef public uint32_t count_max
    cdef public uint64_t bytes_max
    # of all namespaces, without $SYS
    cdef readonly uint64_t count
    cdef readonly uint64_t bytes
    cdef readonly uint64_t refused
    # Of a node in a cluster: (namespace, topic) -> None of what clients have changed, until the cluster takes it out;
    # None: nobody wants to know. on_changed is called when the first is added.
    cdef public dict changed
    cdef public object on_changed

    cdef int retain(self, pub_t* pub) except -1
    cdef int forget_all(self, Topics topics) except -1
    cdef msg_t* make(self, bytes topic, bytes payload, bytes properties, int64_t expires_at, int qos) except NULL
    cdef int note_change(self, Topics topics, bytes topic) except -1
    cdef int change_counts(self, Topics topics, Retained kept, int64_t sign) except -1
    cdef bint lacks_room(self, const body_t* body, Retained former) noexcept
    cdef bint namespace_is_full(self, pub_t* pub)
