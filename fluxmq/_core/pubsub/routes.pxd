"""Where a topic goes: the cache of match results, and share groups.

A route is the match of one topic, already merged: one hop per target whatever number of its filters matched, for a
session with the highest QoS [MQTT-3.3.4-2] and all subscription identifiers [MQTT-3.3.4-3]. It holds as long as the
trie's generation stands; a stale one is made again on its next use. Sets of four, the least recently used gives way: a
flood of new topics costs a match each and never more memory than `entries`.

What a hop leads to may publish or subscribe itself while a route is walked. So who walks one holds it (route_enter):
`find` then puts another into the cache, and what is walked stays as it is.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.debug cimport check
from fluxmq._core.memory.message cimport ids_t, pub_t
from fluxmq._core.pubsub.session cimport Session
from fluxmq._core.pubsub.trie cimport Trie, subs_t

cdef enum:                  # what a hop leads to: hop_t.kind. Hub.deliver_hop is the one place that switches on it
    HOP_SESSION = 0         # Session
    HOP_GROUP = 1           # ShareGroup
    HOP_QUEUE = 2           # Queue
    HOP_EXCHANGE = 3        # ExchangeHop: bindings of amq.topic to other exchanges
    HOP_PEER = 4            # PeerHop: another node

cdef struct hop_t:
    void* target            # as the kind says; alive while the generation stands
    ids_t* ids              # counted, or NULL
    uint8_t options         # SUB_*, without the kind
    uint8_t kind            # HOP_*

cdef struct route_t:
    uint64_t hash
    uint64_t generation
    uint64_t used           # tick of the last use
    hop_t* hops
    uint8_t* topic          # behind this struct
    void* routes            # borrowed: the Routes that made it
    uint32_t refs           # the cache's, one for each publisher that remembers it and for each walk
    uint32_t walks          # under way: invariant: while there are any, nothing here changes but counts
    uint32_t count
    uint32_t capacity
    uint16_t topic_length
    uint8_t kinds           # 1 << HOP_* of each hop

cdef struct member_t:
    ids_t* ids
    uint8_t options

cdef class ShareGroup:
    cdef readonly bytes name
    cdef readonly bytes filter
    cdef readonly list sessions         # Session objects; members[i] belongs to sessions[i]
    cdef member_t* members
    cdef uint32_t capacity
    cdef uint32_t turn                  # where the next choice starts

    cdef int deliver(self, pub_t* pub) except -1

cdef class Routes:
    cdef readonly Trie trie
    cdef route_t** sets
    cdef uint64_t sets_mask
    cdef route_t* long_topics[4]        # the set of all topics over KEPT_TOPIC_BYTES_MAX, so that entries bound bytes
    cdef uint64_t tick
    cdef uint64_t seed
    cdef subs_t matches
    cdef readonly uint64_t hits
    cdef readonly uint64_t misses

    cdef route_t* find(self, const uint8_t* topic, size_t length) except NULL
    cdef route_t* make(self, const uint8_t* topic, size_t length, uint64_t hash) except NULL
    cdef int fill(self, route_t* route) except -1

cdef void route_drop(route_t* route) noexcept


# What a hop of this kind leads to, for a cast to its class.
cdef inline void* hop_target(const hop_t* hop, uint8_t kind) noexcept nogil:
    check(hop.kind == kind)
    return <void*>hop.target


# Between these two the route and its hops stay as they are. A hop's target is alive as long as the trie's generation is
# still the route's.
cdef inline void route_enter(route_t* route) noexcept:
    route.refs += 1
    route.walks += 1


cdef inline void route_leave(route_t* route) noexcept:
    route.walks -= 1
    if route.refs == 1:
        route_drop(route)       # nobody else knows it any more
    else:
        route.refs -= 1
