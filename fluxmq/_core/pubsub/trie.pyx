# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The subscription index, described in the .pxd. This file has the table, the subscribers of one filter, and the
operations.

Everything below the three operations works without Python and the GIL. Memory is allocated node by node, so that a
removed filter's memory is freed; a shard of the table halves when it is one eighth full.
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from fluxmq._core.wire.hash cimport hash_bytes, hash_word
from fluxmq._core.wire.sizes cimport fit_u16, fit_u32, low_u32

from fluxmq._core.errors import UsageError

__all__ = ["Trie"]

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void* address) noexcept nogil

cdef enum:
    FILTER_MAX = 65535          # maximum of a two-byte length on the wire [MQTT-1.5.4], and of node_t.length
    SLOTS_MIN = 4
    CROWD_MIN = 4
    CROWD_SCAN_MAX = 32         # up to here a scan of the 16-byte items beats an index, and costs no memory
    LEVELS_ON_STACK = 128       # as many levels as the broker accepts by default; more are matched from the heap

cdef struct level_t:
    const uint8_t* name
    uint64_t hash
    size_t length

cdef struct frame_t:
    node_t* node
    size_t depth                # levels of the topic that the path to `node` has consumed


# ---- nodes and their table ----

cdef inline const uint8_t* node_name(const node_t* node) noexcept nogil:
    return <const uint8_t*>(node + 1)


# The level's own hash is keyed with the seed and computed once per topic; each edge mixes its parent in.
cdef inline uint64_t edge_hash(const node_t* parent, uint64_t name_hash) noexcept nogil:
    return hash_word(<uint64_t><uintptr_t>parent, name_hash)


cdef slot_t EMPTY[1]            # what a shard without nodes points at; never written


# The upper bits choose the shard, the lower ones the slot.
cdef inline shard_t* shard_of(table_t* table, uint64_t hash) noexcept nogil:
    return &table.shards[hash >> 56]


cdef inline void table_prefetch(table_t* table, uint64_t hash) noexcept nogil:
    cdef shard_t* shard = shard_of(table, hash)
    prefetch(&shard.slots[hash & shard.mask])


cdef inline node_t* table_find(table_t* table, uint64_t hash, const node_t* parent, const uint8_t* name,
                               size_t length) noexcept nogil:
    cdef shard_t* shard = shard_of(table, hash)
    cdef size_t at = hash & shard.mask
    cdef node_t* node
    while True:
        node = shard.slots[at].node
        if node == NULL:
            return NULL
        if (shard.slots[at].hash == hash and node.parent == parent and node.length == length
                and memcmp(node_name(node), name, length) == 0):
            return node
        at = (at + 1) & shard.mask


cdef inline void shard_free(shard_t* shard) noexcept nogil:
    if shard.slots != EMPTY:
        free(shard.slots)
    shard.slots = EMPTY
    shard.mask = 0


# 0, or -1 when memory is out; then the shard is as it was.
cdef int shard_resize(shard_t* shard, size_t capacity) noexcept nogil:
    cdef slot_t* slots = <slot_t*>calloc(capacity, sizeof(slot_t))
    cdef size_t mask = capacity - 1, old, at
    if slots == NULL:
        return -1
    for old in range(<size_t>shard.mask + 1):
        if shard.slots[old].node != NULL:
            at = shard.slots[old].hash & mask
            while slots[at].node != NULL:
                at = (at + 1) & mask
            slots[at] = shard.slots[old]
    shard_free(shard)
    shard.slots = slots
    shard.mask = fit_u32(mask)
    return 0


# The node is not in the table. 0, or -1 when memory is out; then the table is as it was.
cdef int table_insert(table_t* table, uint64_t hash, node_t* node) noexcept nogil:
    cdef shard_t* shard = shard_of(table, hash)
    cdef size_t capacity = <size_t>shard.mask + 1, at
    if (<size_t>shard.used + 1) * 4 > capacity * 3:
        if shard_resize(shard, capacity * 2 if capacity >= SLOTS_MIN else SLOTS_MIN) < 0:
            return -1
    at = hash & shard.mask
    while shard.slots[at].node != NULL:
        at = (at + 1) & shard.mask
    shard.slots[at] = slot_t(hash, node)
    shard.used += 1
    table.used += 1
    return 0


# The node is in the table. Shrinking may fail for want of memory; then the shard stays large, which is no error.
cdef void table_remove(table_t* table, uint64_t hash, const node_t* node) noexcept nogil:
    cdef shard_t* shard = shard_of(table, hash)
    cdef slot_t* slots = shard.slots
    cdef size_t mask = shard.mask, gap = hash & mask, at, home
    while slots[gap].node != node:
        gap = (gap + 1) & mask
    at = gap
    while True:
        at = (at + 1) & mask
        if slots[at].node == NULL:
            break
        home = slots[at].hash & mask
        # It may move into the gap only if the gap lies on its way: from its home, forward, to where it is.
        if ((at - home) & mask) >= ((at - gap) & mask):
            slots[gap] = slots[at]
            gap = at
    slots[gap].node = NULL
    table.used -= 1
    shard.used -= 1
    if shard.used == 0:
        shard_free(shard)
    elif mask + 1 > SLOTS_MIN and <size_t>shard.used * 8 < mask + 1:
        shard_resize(shard, (mask + 1) // 2)


# ---- the subscribers of one filter ----

cdef inline uint64_t target_hash(const void* target, uint64_t seed) noexcept nogil:
    return hash_word(<uint64_t><uintptr_t>target, seed)


cdef inline uint32_t crowd_mask(const crowd_t* crowd) noexcept nogil:
    return crowd.capacity * 2 - 1


# Slot of the index that points at this target, or the free slot where its chain ends.
cdef uint32_t crowd_slot(const crowd_t* crowd, const void* target, uint64_t seed) noexcept nogil:
    cdef uint32_t mask = crowd_mask(crowd), at = low_u32(target_hash(target, seed)) & mask, position
    while True:
        position = crowd.index[at]
        if position == 0 or crowd.items[position - 1].target == target:
            return at
        at = (at + 1) & mask


# Position of the target, or count when it is not there.
cdef uint32_t crowd_find(const crowd_t* crowd, const void* target, uint64_t seed) noexcept nogil:
    cdef uint32_t at
    if crowd.index != NULL:
        at = crowd.index[crowd_slot(crowd, target, seed)]
        return at - 1 if at != 0 else crowd.count
    for at in range(crowd.count):
        if crowd.items[at].target == target:
            return at
    return crowd.count


# capacity: a power of two, not below count. 0, or -1 when memory is out; then the crowd is as it was.
cdef int crowd_resize(crowd_t* crowd, uint32_t capacity, uint64_t seed) noexcept nogil:
    cdef uint32_t* index = NULL
    cdef sub_t* items
    cdef uint32_t at
    if capacity > CROWD_SCAN_MAX:
        index = <uint32_t*>calloc(<size_t>capacity * 2, sizeof(uint32_t))
        if index == NULL:
            return -1
    items = <sub_t*>realloc(crowd.items, capacity * sizeof(sub_t))
    if items == NULL:
        free(index)
        return -1
    free(crowd.index)
    crowd.items = items
    crowd.index = index
    crowd.capacity = capacity
    if index != NULL:
        for at in range(crowd.count):
            index[crowd_slot(crowd, items[at].target, seed)] = at + 1
    return 0


# The target is not there yet.
cdef int crowd_append(crowd_t* crowd, const sub_t* sub, uint64_t seed) noexcept nogil:
    if crowd.count == crowd.capacity and crowd_resize(crowd, crowd.capacity * 2, seed) < 0:
        return -1
    crowd.items[crowd.count] = sub[0]
    if crowd.index != NULL:
        crowd.index[crowd_slot(crowd, sub.target, seed)] = crowd.count + 1
    crowd.count += 1
    return 0


cdef void crowd_remove(crowd_t* crowd, uint32_t position, uint64_t seed) noexcept nogil:
    cdef uint32_t mask = crowd_mask(crowd), last = crowd.count - 1, gap = 0, at, home
    if crowd.index != NULL:
        gap = crowd_slot(crowd, crowd.items[position].target, seed)
        at = crowd_slot(crowd, crowd.items[last].target, seed)
        crowd.index[at] = position + 1
    crowd.items[position] = crowd.items[last]
    if crowd.index != NULL:
        # Closed as in table_remove; the entry of the last one is right by now, wherever it is moved to.
        at = gap
        while True:
            at = (at + 1) & mask
            if crowd.index[at] == 0:
                break
            home = low_u32(target_hash(crowd.items[crowd.index[at] - 1].target, seed)) & mask
            if ((at - home) & mask) >= ((at - gap) & mask):
                crowd.index[gap] = crowd.index[at]
                gap = at
        crowd.index[gap] = 0
    crowd.count = last
    if crowd.capacity > CROWD_MIN and crowd.count * 4 < crowd.capacity:
        crowd_resize(crowd, crowd.capacity // 2, seed)      # failing for want of memory, it stays large


cdef void crowd_free(crowd_t* crowd) noexcept nogil:
    free(crowd.items)
    free(crowd.index)
    free(crowd)


cdef inline crowd_t* crowd_of(const node_t* node) noexcept nogil:
    return <crowd_t*>node.held


# Makes the only subscriber the first of a crowd.
cdef int node_open_crowd(node_t* node) noexcept nogil:
    cdef crowd_t* crowd = <crowd_t*>calloc(1, sizeof(crowd_t))
    if crowd == NULL:
        return -1
    crowd.capacity = CROWD_MIN
    crowd.items = <sub_t*>malloc(CROWD_MIN * sizeof(sub_t))
    if crowd.items == NULL:
        free(crowd)
        return -1
    crowd.items[0] = sub_t(node.held, node.identifier, node.options)
    crowd.count = 1
    node.held = crowd
    node.flags = <uint8_t>((node.flags & ~NODE_ONE) | NODE_CROWD)
    return 0


# A crowd of one is an only subscriber again.
cdef void node_close_crowd(node_t* node) noexcept nogil:
    cdef crowd_t* crowd = crowd_of(node)
    node.held = crowd.items[0].target
    node.identifier = crowd.items[0].identifier
    node.options = crowd.items[0].options
    node.flags = <uint8_t>((node.flags & ~NODE_CROWD) | NODE_ONE)
    crowd_free(crowd)


cdef inline bint same_sub(const sub_t* one, const sub_t* other) noexcept nogil:
    return one.identifier == other.identifier and one.options == other.options


cdef enum:
    PUT_NO_MEMORY = -1
    PUT_REPLACED = 0
    PUT_NEW = 1
    PUT_SAME = 2                # there already, nothing about it changed


cdef int node_put(node_t* node, const sub_t* sub, uint64_t seed) noexcept nogil:
    cdef crowd_t* crowd
    cdef uint32_t position
    if not node.flags & NODE_CROWD:
        if not node.flags & NODE_ONE or node.held == sub.target:
            if node.flags & NODE_ONE and node.identifier == sub.identifier and node.options == sub.options:
                return PUT_SAME
            position = node.flags & NODE_ONE
            node.held = sub.target
            node.identifier = sub.identifier
            node.options = sub.options
            node.flags |= NODE_ONE
            return PUT_REPLACED if position else PUT_NEW
        if node_open_crowd(node) < 0:
            return PUT_NO_MEMORY
    crowd = crowd_of(node)
    position = crowd_find(crowd, sub.target, seed)
    if position < crowd.count:
        if same_sub(&crowd.items[position], sub):
            return PUT_SAME
        crowd.items[position] = sub[0]
        return PUT_REPLACED
    return PUT_NEW if crowd_append(crowd, sub, seed) == 0 else PUT_NO_MEMORY


# 1 = removed, 0 = was not there.
cdef int node_take(node_t* node, const void* target, uint64_t seed) noexcept nogil:
    cdef crowd_t* crowd
    cdef uint32_t position
    if node.flags & NODE_ONE and node.held == target:
        node.flags &= ~NODE_ONE
        node.held = NULL
        return 1
    if not node.flags & NODE_CROWD:
        return 0
    crowd = crowd_of(node)
    position = crowd_find(crowd, target, seed)
    if position == crowd.count:
        return 0
    crowd_remove(crowd, position, seed)
    if crowd.count == 1:
        node_close_crowd(node)
    return 1


# Appends the node's subscribers. 0, or -1 when memory is out.
cdef inline int node_emit(const node_t* node, subs_t* out) noexcept nogil:
    cdef crowd_t* crowd
    if node.flags & NODE_ONE:
        if out.count == out.capacity and subs_reserve(out, 1) < 0:
            return -1
        out.items[out.count] = sub_t(node.held, node.identifier, node.options)
        out.count += 1
    elif node.flags & NODE_CROWD:
        crowd = crowd_of(node)
        if subs_reserve(out, crowd.count) < 0:
            return -1
        memcpy(out.items + out.count, crowd.items, crowd.count * sizeof(sub_t))
        out.count += crowd.count
    return 0


# ---- topics and filters ----

cdef inline bint is_wildcard(const uint8_t* filter, size_t length) noexcept nogil:
    return memchr(filter, c'+', length) != NULL or memchr(filter, c'#', length) != NULL


# Length of the level that starts here.
cdef inline size_t level_length(const uint8_t* level, size_t rest) noexcept nogil:
    cdef const uint8_t* slash = <const uint8_t*>memchr(level, c'/', rest)
    return rest if slash == NULL else <size_t>(slash - level)


cdef inline size_t count_levels(const uint8_t* topic, size_t length) noexcept nogil:
    cdef size_t levels = 1, at
    for at in range(length):
        levels += topic[at] == c'/'
    return levels


cdef inline void split_levels(const uint8_t* topic, size_t length, level_t* levels, uint64_t seed) noexcept nogil:
    cdef size_t start = 0, size
    while True:
        size = level_length(topic + start, length - start)
        levels.name = topic + start
        levels.length = size
        levels.hash = hash_bytes(topic + start, size, seed)
        start += size + 1
        if start > length:
            return
        levels += 1


# The flag of the parent that says it has this child; 0 for a literal level, which is counted.
cdef inline uint8_t wildcard_flag(const uint8_t* name, size_t length) noexcept nogil:
    if length != 1:
        return 0
    return NODE_PLUS if name[0] == c'+' else NODE_HASH if name[0] == c'#' else 0


@cython.final
cdef class Trie:
    """Handle. The subscription index; its verbs are C only (pubsub/trie.pxd).

    seed: 64 secret random bits, so that nobody outside can choose filters that collide.
    """

    def __cinit__(self, uint64_t seed):
        cdef size_t at
        self.seed = seed
        memset(&self.root, 0, sizeof(node_t))
        memset(&self.table, 0, sizeof(table_t))
        for at in range(<size_t>SHARDS):
            self.table.shards[at].slots = EMPTY

    def __dealloc__(self):
        cdef size_t number, at
        cdef shard_t* shard
        cdef node_t* node
        for number in range(<size_t>SHARDS):
            shard = &self.table.shards[number]
            for at in range(<size_t>shard.mask + 1):
                node = shard.slots[at].node
                if node != NULL:
                    if node.flags & NODE_CROWD:
                        crowd_free(crowd_of(node))
                    free(node)
            shard_free(shard)

    @property
    def nodes(self) -> int:
        """Filters, and levels on the way to filters, that are held. 0 when nothing is subscribed."""
        return self.table.used

    cdef int add(self, const uint8_t* filter, size_t length, void* target, uint32_t identifier,
                 uint8_t options) except -1:
        cdef sub_t sub = sub_t(target, identifier, options)
        cdef node_t* node
        cdef bint fresh
        cdef int outcome
        if length > FILTER_MAX:
            raise UsageError(f"a topic filter has at most {FILTER_MAX} bytes, this one has {length}: check it before")
        node = self.find_or_create(filter, length)
        if node == NULL:
            raise MemoryError("no memory for a subscription")
        fresh = not node.flags & (NODE_ONE | NODE_CROWD)
        outcome = node_put(node, &sub, self.seed)
        if outcome == PUT_NO_MEMORY:
            self.prune(node)
            raise MemoryError("no memory for a subscription")
        if outcome == PUT_SAME:
            return 0
        self.generation += 1
        self.filters += fresh
        self.subscriptions += outcome
        return outcome

    cdef int remove(self, const uint8_t* filter, size_t length, void* target) except -1:
        cdef node_t* node = self.find(filter, length)
        if node == NULL or node_take(node, target, self.seed) == 0:
            return 0
        self.generation += 1
        self.subscriptions -= 1
        if not node.flags & (NODE_ONE | NODE_CROWD):
            self.filters -= 1
            self.prune(node)
        return 1

    cdef int match(self, const uint8_t* topic, size_t length, subs_t* out) except -1:
        cdef size_t before = out.count
        if self.walk(topic, length, out) < 0:
            out.count = before
            raise MemoryError("no memory for a match result")
        return 0

    # The exact filter, then the trie. 0, or -1 when memory is out.
    cdef int walk(self, const uint8_t* topic, size_t length, subs_t* out) noexcept nogil:
        cdef uint64_t hash = edge_hash(NULL, hash_bytes(topic, length, self.seed))
        cdef level_t levels_on_stack[LEVELS_ON_STACK]
        cdef frame_t frames_on_stack[LEVELS_ON_STACK + 1]
        cdef level_t* levels = levels_on_stack
        cdef frame_t* frames = frames_on_stack
        cdef size_t count
        cdef node_t* node
        cdef int status
        table_prefetch(&self.table, hash)
        if self.root.literals or self.root.flags:
            count = count_levels(topic, length)
            if count > LEVELS_ON_STACK:
                levels = <level_t*>malloc(count * sizeof(level_t))
                frames = <frame_t*>malloc((count + 1) * sizeof(frame_t))
            status = -1
            if levels != NULL and frames != NULL:
                split_levels(topic, length, levels, self.seed)
                status = walk_levels(&self.table, &self.root, levels, count, frames, self.seed, out)
            if count > LEVELS_ON_STACK:
                free(levels)
                free(frames)
            if status < 0:
                return -1
        node = table_find(&self.table, hash, NULL, topic, length)
        return node_emit(node, out) if node != NULL else 0

    cdef node_t* find(self, const uint8_t* filter, size_t length) noexcept nogil:
        cdef node_t* node = NULL
        cdef size_t start = 0, size
        if not is_wildcard(filter, length):
            return table_find(&self.table, edge_hash(NULL, hash_bytes(filter, length, self.seed)), NULL, filter, length)
        node = &self.root
        while node != NULL and start <= length:
            size = level_length(filter + start, length - start)
            node = table_find(&self.table, edge_hash(node, hash_bytes(filter + start, size, self.seed)), node,
                              filter + start, size)
            start += size + 1
        return node

    # NULL when memory is out; then nothing was created.
    cdef node_t* find_or_create(self, const uint8_t* filter, size_t length) noexcept nogil:
        cdef node_t* node
        cdef node_t* child
        cdef size_t start = 0, size
        cdef uint64_t hash
        if not is_wildcard(filter, length):
            hash = edge_hash(NULL, hash_bytes(filter, length, self.seed))
            node = table_find(&self.table, hash, NULL, filter, length)
            return node if node != NULL else self.create(NULL, filter, length, hash)
        node = &self.root
        while start <= length:
            size = level_length(filter + start, length - start)
            hash = edge_hash(node, hash_bytes(filter + start, size, self.seed))
            child = table_find(&self.table, hash, node, filter + start, size)
            if child == NULL:
                child = self.create(node, filter + start, size, hash)
                if child == NULL:
                    self.prune(node)
                    return NULL
            node = child
            start += size + 1
        return node

    cdef node_t* create(self, node_t* parent, const uint8_t* name, size_t length, uint64_t hash) noexcept nogil:
        cdef node_t* node = <node_t*>malloc(sizeof(node_t) + length)
        cdef uint8_t flag
        if node == NULL:
            return NULL
        memset(node, 0, sizeof(node_t))
        node.parent = parent
        node.length = fit_u16(length)
        memcpy(<uint8_t*>(node + 1), name, length)
        if table_insert(&self.table, hash, node) < 0:
            free(node)
            return NULL
        if parent != NULL:
            flag = wildcard_flag(name, length)
            if flag:
                parent.flags |= flag
            else:
                parent.literals += 1
        return node

    # Frees the node if nothing holds it any more, and then its parents as far as that goes.
    cdef void prune(self, node_t* node) noexcept nogil:
        cdef node_t* parent
        cdef uint64_t hash
        cdef uint8_t flag
        while node != NULL and node != &self.root and node.flags == 0 and node.literals == 0:
            parent = node.parent
            hash = hash_bytes(node_name(node), node.length, self.seed)
            table_remove(&self.table, edge_hash(parent, hash), node)
            if parent != NULL:
                flag = wildcard_flag(node_name(node), node.length)
                if flag:
                    parent.flags &= ~flag
                else:
                    parent.literals -= 1
            free(node)
            node = parent


# All filters with a wildcard that match, depth first. frames: room for count + 1. 0, or -1 when memory is out.
cdef int walk_levels(table_t* table, node_t* root, const level_t* levels, size_t count, frame_t* frames,
                     uint64_t seed, subs_t* out) noexcept nogil:
    cdef uint64_t plus_hash = hash_bytes(b"+", 1, seed), rest_hash = hash_bytes(b"#", 1, seed)
    cdef uint64_t literal_edge = 0, plus_edge = 0
    cdef bint hidden = levels.length > 0 and levels.name[0] == c'$'     # [MQTT-4.7.2-1]
    cdef size_t depth, height = 1
    cdef uint8_t flags
    cdef node_t* node
    cdef node_t* child
    frames[0] = frame_t(root, 0)
    while height:
        height -= 1
        node = frames[height].node
        depth = frames[height].depth
        flags = node.flags
        if depth == 0 and hidden:
            flags = 0
        if depth < count:
            # Both slots are on their way from memory before the first is looked at (a fifth less time at a million).
            if node.literals:
                literal_edge = edge_hash(node, levels[depth].hash)
                table_prefetch(table, literal_edge)
            if flags & NODE_PLUS:
                plus_edge = edge_hash(node, plus_hash)
                table_prefetch(table, plus_edge)
        if flags & NODE_HASH:
            child = table_find(table, edge_hash(node, rest_hash), node, b"#", 1)
            if child != NULL and node_emit(child, out) < 0:
                return -1
        if depth == count:
            if node_emit(node, out) < 0:
                return -1
            continue
        if flags & NODE_PLUS:
            child = table_find(table, plus_edge, node, b"+", 1)
            if child != NULL:
                frames[height] = frame_t(child, depth + 1)
                height += 1
        if node.literals:
            child = table_find(table, literal_edge, node, levels[depth].name, levels[depth].length)
            if child != NULL:
                frames[height] = frame_t(child, depth + 1)
                height += 1
    return 0
