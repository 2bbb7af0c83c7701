"""Routes of topics: the cache of match results.

A route is the merged match of one topic: one hop per target however many of its filters match, for a session with the
highest QoS [MQTT-3.3.4-2] and all subscription identifiers [MQTT-3.3.4-3]. What the session's own client publishes
matches its No Local subscriptions not at all [MQTT-3.8.3-3], so neither their QoS nor their identifier may show in it:
a session with such a subscription and another has a second hop (own_hop). A route is valid for one generation of the
trie; a stale one is rebuilt on its next use. The cache has sets of four entries and evicts the least recently used, so
a flood of new topics costs a match each, but never more memory than `entries`. exchange/exchange.pyx has a cache of its
own: its keys are two names, and its routes are Python objects, which are replaced instead of refilled and walked.

The target of a hop may publish or subscribe while a route is being walked. So the caller that walks a route holds it
(route_enter): `find` then puts a new route into the cache instead of rebuilding the one in use.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.debug cimport check
from fluxmq._core.memory.message cimport ids_t
from fluxmq._core.pubsub.trie cimport Trie, subs_t

cdef enum:                  # kind of a hop's target: hop_t.kind. Only Hub.deliver_hop switches on it
    HOP_SESSION = 0         # Session
    HOP_GROUP = 1           # ShareGroup of this node only
    HOP_QUEUE = 2           # Queue
    HOP_EXCHANGE = 3        # ExchangeHop: bindings of amq.topic to other exchanges
    HOP_PEER = 4            # PeerHop: another node
    HOP_SPREAD = 5          # ShareGroup that has members on other nodes

cdef struct hop_t:
    void* target            # as the kind says; alive while the generation stands
    ids_t* ids              # counted, or NULL
    uint8_t options         # SUB_*, without the kind; SUB_NO_LOCAL: one of the subscriptions has it
    uint8_t kind            # HOP_*
    uint32_t own            # distance to the hop of what the session's own client publishes; 0: it gets none of that

cdef struct route_t:
    uint64_t hash
    uint64_t generation
    uint64_t used           # tick of the last use
    hop_t* hops             # `count` in the order of their targets; the last `own_count` of `capacity` are own_hops
    uint8_t* topic          # behind this struct
    void* routes            # borrowed: the Routes that made it
    uint32_t refs           # one for the cache, each publisher that caches it, and each walk
    uint32_t walks          # current walks; invariant: during a walk only counts change here
    uint32_t count          # invariant: count + own_count <= capacity
    uint32_t own_count
    uint32_t capacity
    uint16_t topic_length
    uint8_t kinds           # 1 << HOP_* of each hop

cdef class Routes:
    cdef readonly Trie trie
    cdef route_t** sets
    cdef uint64_t sets_mask
    cdef route_t* long_topics[4]        # one set for topics over KEPT_TOPIC_BYTES_MAX, so that entries bound bytes
    cdef uint64_t tick
    cdef uint64_t seed
    cdef subs_t matches
    cdef readonly uint64_t hits
    cdef readonly uint64_t misses

    cdef route_t* find(self, const uint8_t* topic, size_t length) except NULL
    cdef route_t* make(self, const uint8_t* topic, size_t length, uint64_t hash) except NULL
    cdef int fill(self, route_t* route) except -1

cdef void route_drop(route_t* route) noexcept


# The target of a hop of this kind, to be cast to its class.
cdef inline void* hop_target(const hop_t* hop, uint8_t kind) noexcept nogil:
    check(hop.kind == kind)
    return <void*>hop.target


# What a session with No Local subscriptions gets of its own client's messages, by its others; NULL: nothing.
cdef inline const hop_t* own_hop(const hop_t* hop) noexcept nogil:
    return hop + hop.own if hop.own else NULL


# Between route_enter and route_leave the route and its hops do not change. A hop's target is alive while the trie's
# generation equals the route's.
cdef inline void route_enter(route_t* route) noexcept:
    route.refs += 1
    route.walks += 1


cdef inline void route_leave(route_t* route) noexcept:
    route.walks -= 1
    if route.refs == 1:
        route_drop(route)       # the last reference
    else:
        route.refs -= 1
