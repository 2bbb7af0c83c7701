# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Route cache; see pubsub/routes.pxd."""
cimport cython
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy

from fluxmq._core.debug cimport count_live, ensure
from fluxmq._core.memory.message cimport ids_drop, ids_new, live
from fluxmq._core.pubsub.trie cimport (
    SUB_KIND_MASK, SUB_KIND_UNIT, SUB_NO_LOCAL, SUB_QOS_MASK, SUB_RETAIN_AS_PUBLISHED, SUB_WIDE, sub_t, subs_free,
)
from fluxmq._core.wire.hash cimport hash_bytes
from fluxmq._core.wire.sizes cimport fit_u16, fit_u32

__all__ = ["Routes"]

cdef enum:
    WAYS = 4
    KEPT_TOPIC_BYTES_MAX = 1024 # an entry is about 200 bytes with a usual topic; with 64 KiB the cache would need 4 GiB
    IDENTIFIERS_MAX = 255       # of one delivery; identifiers of further overlapping filters are omitted


cdef int by_target(const void* a, const void* b) noexcept nogil:
    cdef size_t x = <size_t>(<const sub_t*>a).target
    cdef size_t y = <size_t>(<const sub_t*>b).target
    return (x > y) - (x < y)


cdef void clear_hops(route_t* route) noexcept:
    cdef uint32_t i
    for i in range(route.count):
        ids_drop(route.hops[i].ids)
    for i in range(route.capacity - route.own_count, route.capacity):
        ids_drop(route.hops[i].ids)
    route.count = route.own_count = 0
    route.kinds = 0


cdef void route_drop(route_t* route) noexcept:
    ensure(route.refs > 0)
    route.refs -= 1
    if route.refs == 0:
        count_live(live.routes, -1)
        clear_hops(route)
        free(route.hops)
        free(route)


@cython.final
cdef class Routes:
    """Machine. The match cache of one trie.

    entries: size of the cache, rounded up to a power of two. seed: secret, for the hash.
    """

    def __cinit__(self, Trie trie not None, uint32_t entries, uint64_t seed):
        cdef uint64_t sets = 16
        while sets * WAYS < entries:
            sets *= 2
        self.trie = trie
        self.seed = seed
        self.sets_mask = sets - 1
        self.sets = <route_t**>calloc(sets * WAYS, sizeof(route_t*))
        if self.sets == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef uint64_t i
        if self.sets != NULL:
            for i in range((self.sets_mask + 1) * WAYS):
                if self.sets[i] != NULL:
                    route_drop(self.sets[i])
            free(self.sets)
        for i in range(WAYS):
            if self.long_topics[i] != NULL:
                route_drop(self.long_topics[i])
        subs_free(&self.matches)

    cdef route_t* find(self, const uint8_t* topic, size_t length) except NULL:
        """The route of a topic name (valid, at most 65 535 bytes). Borrowed: hold it before the next call."""
        cdef uint64_t h = hash_bytes(topic, length, self.seed)
        cdef route_t** ways = self.sets + (h & self.sets_mask) * WAYS
        cdef route_t* route
        cdef int i
        cdef int place = 0              # for a new route
        if length > KEPT_TOPIC_BYTES_MAX:
            ways = self.long_topics
        self.tick += 1
        for i in range(WAYS):
            route = ways[i]
            if route == NULL:
                place = i
                break
            if route.hash == h and route.topic_length == length and memcmp(route.topic, topic, length) == 0:
                route.used = self.tick
                if route.generation == self.trie.generation:
                    self.hits += 1
                    return route
                if route.walks == 0:
                    self.misses += 1
                    self.fill(route)
                    return route
                place = i               # the old one is being walked: the new one replaces it in the cache
                break
            if route.used < ways[place].used:
                place = i
        self.misses += 1
        route = self.make(topic, length, h)
        if ways[place] != NULL:
            route_drop(ways[place])
        ways[place] = route
        return route

    cdef route_t* make(self, const uint8_t* topic, size_t length, uint64_t hash) except NULL:
        """Makes a route with one reference."""
        cdef route_t* route = <route_t*>calloc(1, sizeof(route_t) + length)
        if route == NULL:
            raise MemoryError()
        count_live(live.routes, 1)
        route.hash = hash
        route.refs = 1
        route.used = self.tick
        route.routes = <void*>self
        route.topic = <uint8_t*>route + sizeof(route_t)
        route.topic_length = fit_u16(length)
        memcpy(route.topic, topic, length)
        try:
            self.fill(route)
        except BaseException:
            route_drop(route)
            raise
        return route

    cdef int fill(self, route_t* route) except -1:
        cdef subs_t* found = &self.matches
        cdef hop_t* hop
        cdef hop_t* grown
        cdef sub_t* sub
        cdef uint32_t begin = 0
        cdef uint32_t end
        cdef bint some, all
        ensure(route.walks == 0)
        clear_hops(route)
        found.count = 0
        self.trie.match(route.topic, route.topic_length, found)
        if found.count > route.capacity:
            grown = <hop_t*>realloc(route.hops, found.count * sizeof(hop_t))
            if grown == NULL:
                raise MemoryError()
            route.hops = grown
            route.capacity = fit_u32(found.count)
        if found.count > 1:
            qsort(found.items, found.count, sizeof(sub_t), by_target)
        while begin < found.count:
            sub = &found.items[begin]
            some = all = sub.options & SUB_NO_LOCAL != 0
            end = begin + 1
            while (end < found.count and found.items[end].target == sub.target
                   and (sub.options & SUB_KIND_MASK) // SUB_KIND_UNIT != HOP_GROUP):
                some |= found.items[end].options & SUB_NO_LOCAL != 0
                all &= found.items[end].options & SUB_NO_LOCAL != 0
                end += 1
            hop = &route.hops[route.count]
            merge(sub, &found.items[end], 0, hop)
            route.count += 1
            route.kinds |= 1 << hop.kind
            if some and not all:
                # There is room: a session with two hops has at least two subscriptions here.
                grown = &route.hops[route.capacity - route.own_count - 1]
                merge(sub, &found.items[end], SUB_NO_LOCAL, grown)
                hop.own = <uint32_t>(grown - hop)
                route.own_count += 1
            begin = end
        route.generation = self.trie.generation
        return 0


cdef int merge(const sub_t* sub, const sub_t* end, uint8_t without, hop_t* hop) except -1:
    """Makes the hop of one target of its subscriptions, from `sub` to before `end`, but those that have one of the
    options `without`: highest QoS, all identifiers. At least one is left."""
    cdef uint32_t[IDENTIFIERS_MAX] identifiers
    cdef uint32_t n = 0
    cdef uint8_t options = SUB_WIDE
    hop.target = sub.target
    hop.kind = (sub.options & SUB_KIND_MASK) // SUB_KIND_UNIT
    hop.own = 0
    while sub != end:
        if not sub.options & without:
            options = (max(options & SUB_QOS_MASK, sub.options & SUB_QOS_MASK)
                       | (options | sub.options) & (SUB_NO_LOCAL | SUB_RETAIN_AS_PUBLISHED)
                       | options & sub.options & SUB_WIDE)
            if sub.identifier and n < IDENTIFIERS_MAX:
                identifiers[n] = sub.identifier
                n += 1
        sub += 1
    hop.options = options
    hop.ids = ids_new(identifiers, n) if n else NULL
    return 0
