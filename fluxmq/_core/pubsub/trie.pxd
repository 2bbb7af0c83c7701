# cython: language_level=3
# pubsub/trie.pxd: the subscription index, from topic filters to subscribers.
#
# Two indexes in one open-addressing hash table of nodes:
#
#   exact filters      one node per filter: parent NULL, name = the whole filter; a publish finds it with one probe
#   wildcard filters   a trie of levels: a node's key is (parent, level bytes), the first level's parent is Trie.root
#
# so an edge of the trie needs no container of children, and a leaf costs its header, its level and one slot.
# Matching walks the trie with an explicit stack: popping a node pushes at most two (the level itself and `+`), so the
# stack is never deeper than the topic has levels, and no node is visited twice.
#
# Rules: `+` is one level, `#` the parent level and all below [MQTT-4.7.1-2], empty levels are levels [MQTT-4.7.3],
# and a leading wildcard matches no topic whose first byte is `$` [MQTT-4.7.2-1].
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

cdef enum:
    SUB_QOS_MASK = 0x03
    SUB_NO_LOCAL = 0x04
    SUB_RETAIN_AS_PUBLISHED = 0x08
    SUB_KIND_MASK = 0x70        # kind of the target (routes.pxd, HOP_*), times SUB_KIND_UNIT
    SUB_KIND_UNIT = 0x10
    SUB_WIDE = 0x80             # of a queue: the filter matches more than the binding that it represents

cdef struct sub_t:
    void* target                # borrowed, never dereferenced, may be NULL; to be removed before it is freed
    uint32_t identifier         # subscription identifier, 0 = none
    uint8_t options             # SUB_*; only stored here

cdef struct subs_t:             # growable result vector, owned by the caller; starts zeroed
    sub_t* items
    size_t count
    size_t capacity             # invariant: count <= capacity


# Reserves room for `more` items. 0, or -1 when memory is exhausted; then `out` is unchanged.
cdef inline int subs_reserve(subs_t* out, size_t more) noexcept nogil:
    cdef size_t capacity = out.capacity
    cdef sub_t* items
    if capacity - out.count >= more:
        return 0
    capacity = capacity * 2 if capacity * 2 > out.count + more else out.count + more
    if capacity < 8:
        capacity = 8
    items = <sub_t*>realloc(out.items, capacity * sizeof(sub_t))
    if items == NULL:
        return -1
    out.items = items
    out.capacity = capacity
    return 0


cdef inline int subs_push(subs_t* out, const sub_t* sub) except -1:
    if subs_reserve(out, 1) < 0:
        raise MemoryError("no memory for a match result")
    out.items[out.count] = sub[0]
    out.count += 1
    return 0


# Clears `out`, which stays usable.
cdef inline void subs_free(subs_t* out) noexcept:
    free(out.items)
    out.items = NULL
    out.count = out.capacity = 0


# The subscribers of one filter when there are two or more.
cdef struct crowd_t:
    sub_t* items                # unordered: removing moves the last one into the gap
    uint32_t* index             # NULL while small; else by target: position + 1, 0 = free (linear probing)
    uint32_t count
    uint32_t capacity           # the index, when there is one, has exactly twice as many slots

cdef enum:
    NODE_ONE = 0x01             # `held` is the target of the only subscriber
    NODE_CROWD = 0x02           # `held` is a crowd_t; never together with NODE_ONE
    NODE_PLUS = 0x04            # has a child `+`
    NODE_HASH = 0x08            # has a child `#`

# A filter, or a level on the way to one. Its name (length bytes) follows the struct in the same allocation.
# Invariant: every node but the root has a subscriber or a child.
cdef struct node_t:
    node_t* parent              # NULL for exact filters and for the root
    void* held                  # see NODE_ONE, NODE_CROWD
    uint32_t literals           # children that are neither `+` nor `#`
    uint32_t identifier         # of the only subscriber
    uint16_t length
    uint8_t options             # of the only subscriber
    uint8_t flags

cdef struct slot_t:
    uint64_t hash
    node_t* node                # NULL = free

# Linear probing, at most 3/4 full; removal closes the gap, so there are no tombstones.
cdef struct shard_t:
    slot_t* slots               # never NULL: while empty, one shared free slot
    uint32_t mask               # slots - 1, a power of two less one
    uint32_t used

cdef enum:
    SHARDS = 256

# The table is cut in shards by the upper bits of the hash so that growing never stops the broker for long: with a
# million filters one table takes 90 ms to double, a shard a two hundred and fiftieth of that.
cdef struct table_t:
    shard_t shards[SHARDS]
    size_t used


@cython.final
cdef class Trie:
    cdef readonly uint64_t generation     # grows with every change; cached match results compare it
    cdef readonly size_t filters          # distinct filters
    cdef readonly size_t subscriptions    # (filter, target) pairs
    cdef table_t table
    cdef node_t root
    cdef uint64_t seed

    # Filters are valid topic filters, without `$share/…/`. Raises UsageError beyond 65 535 bytes, and MemoryError; then
    # nothing changed.
    # 1 = new, 0 = replaced that target's. Adding what is there already, unchanged, is not a change of generation.
    cdef int add(self, const uint8_t* filter, size_t length, void* target, uint32_t identifier,
                 uint8_t options) except -1
    # 1 = removed, 0 = was not there.
    cdef int remove(self, const uint8_t* filter, size_t length, void* target) except -1
    # Appends every subscription whose filter matches, in no particular order; returns 0. Raises MemoryError, then `out`
    # has the items it had. A target with several matching filters appears once for each of them.
    cdef int match(self, const uint8_t* topic, size_t length, subs_t* out) except -1

    cdef int walk(self, const uint8_t* topic, size_t length, subs_t* out) noexcept nogil
    cdef node_t* find(self, const uint8_t* filter, size_t length) noexcept nogil
    cdef node_t* find_or_create(self, const uint8_t* filter, size_t length) noexcept nogil
    cdef node_t* create(self, node_t* parent, const uint8_t* name, size_t length, uint64_t hash) noexcept nogil
    cdef void prune(self, node_t* node) noexcept nogil
