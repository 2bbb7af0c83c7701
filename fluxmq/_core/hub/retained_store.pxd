"""The retained messages of a node, counted and limited; each is stored in the tree of its namespace's Topics.

In a cluster each change of a topic has a version, by which every node decides which of two is the later one: a number
that grows with the wall clock (ms, times 2^16) and is larger than any that this node knew when its client made the
change; then, where two nodes drew the same at once, the epoch of the node's life. So a change that is made after
another one was acknowledged, which every node had then, has the higher version. A topic that was cleared, or has
expired, keeps its version in `cleared`, so that no older change brings it back (docs/internals/cluster.md, "Retained
messages").
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport body_t, msg_t, pub_t
from fluxmq._core.pubsub.retained cimport Retained, RetainedNode
from fluxmq._core.pubsub.topics cimport Topics
from fluxmq._core.wire.text cimport is_reserved_topic

# Whether it is the broker's own status ($SYS): not published by a client, so not counted.
cdef inline bint of_broker(const pub_t* pub) noexcept:
    return pub.source == NULL and of_broker_topic(&pub.body)

cdef inline bint of_broker_topic(const body_t* body) noexcept:
    return is_reserved_topic(body.topic, body.topic_length)

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
    # The same of what other nodes have changed: -> None, or (slot of the node that has the payload, its size).
    cdef public dict learned
    cdef public set lapsed              # (namespace, topic) of what has expired since
    cdef public dict cleared            # (namespace, topic) -> (version, life)
    cdef public uint64_t clock          # the highest version that this node knows
    cdef public uint64_t life           # of this node's present life
    # Payloads of this size or more go to nodes with subscribers only, and are on no other disk than the publisher's.
    cdef public uint32_t spread_bytes_max
    # Called with the name of a namespace: RetainedTree.fetch for it.
    cdef public object fetcher
    # The change that is published now, and its version; NULL: none that other nodes must know.
    cdef const pub_t* spreading
    cdef uint64_t version

    # Before a publish with the retain flag is delivered. 0: it is not retained. version: 0, or the one that it gets.
    cdef bint admit(self, pub_t* pub, uint64_t* version) except -1
    cdef int retain(self, pub_t* pub, uint64_t version) except -1
    # A change of a client of another node. absent: its payload is there, of `size` bytes. Returns whether it is newer
    # than what this node has.
    cdef bint take(self, pub_t* pub, uint64_t version, uint64_t life, bint absent, uint32_t size) except -1
    cdef bint is_spread_whole(self, const body_t* body) noexcept
    cdef int store(self, Topics topics, bytes topic, Retained kept, uint8_t qos, uint64_t version,
                   uint64_t life) except -1
    cdef int forget_all(self, Topics topics) except -1
    cdef msg_t* copy(self, const body_t* borrowed, uint8_t qos) except NULL
    cdef msg_t* make(self, bytes topic, bytes payload, bytes properties, int64_t expires_at, int qos) except NULL
    cdef int note_change(self, Topics topics, bytes topic) except -1
    cdef int change_counts(self, Topics topics, Retained kept, int64_t sign) except -1
    cdef bint lacks_room(self, const body_t* body, Retained former) noexcept
    cdef bint namespace_is_full(self, pub_t* pub)
