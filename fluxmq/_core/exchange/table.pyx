# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""The index of one exchange; see exchange/table.pxd."""
from libc.stdint cimport uint16_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from fluxmq._core.debug cimport check
from fluxmq._core.wire.hash cimport hash_bytes, hash_word
from fluxmq._core.wire.sizes cimport fit_u32

cdef enum:
    SLOTS_MIN = 8


cdef void etable_init(etable_t* table, uint64_t seed) noexcept:
    memset(table, 0, sizeof(etable_t))
    table.root.kind = ENODE_ROOT
    table.seed = seed


cdef void etable_free(etable_t* table) noexcept:
    cdef uint64_t at
    if table.slots != NULL:
        for at in range(table.mask + 1):
            if table.slots[at] != NULL:
                free(table.slots[at].items)
                free(table.slots[at])
    free(table.slots)
    free(table.root.items)
    free(table.now.items)
    free(table.then.items)
    etable_init(table, table.seed)


# ---- nodes ----

cdef inline const uint8_t* word_of(const enode_t* node) noexcept:
    return <const uint8_t*>(node + 1)


cdef inline uint64_t edge_hash(const etable_t* table, const enode_t* parent, const uint8_t* word, uint32_t length,
                               uint8_t kind) noexcept:
    return hash_word(<uint64_t><uintptr_t>parent, hash_bytes(word, length, table.seed ^ kind))


cdef enode_t* find_hashed(const etable_t* table, uint64_t hash, const enode_t* parent, const uint8_t* word,
                          uint32_t length) noexcept:
    cdef uint64_t at = hash & table.mask
    cdef enode_t* node
    while True:
        node = table.slots[at]
        if node == NULL:
            return NULL
        if (node.hash == hash and node.parent == parent and node.length == length and node.kind == ENODE_WORD
                and memcmp(word_of(node), word, length) == 0):
            return node
        at = (at + 1) & table.mask


cdef enode_t* etable_find(const etable_t* table, const enode_t* parent, const uint8_t* word,
                          uint32_t length) noexcept:
    if parent.words == 0:
        return NULL
    return find_hashed(table, edge_hash(table, parent, word, length, ENODE_WORD), parent, word, length)


cdef void put_slot(enode_t** slots, uint64_t mask, enode_t* node) noexcept:
    cdef uint64_t at = node.hash & mask
    while slots[at] != NULL:
        at = (at + 1) & mask
    slots[at] = node


# Returns 0, or -1 when memory is exhausted; the table is unchanged then.
cdef int resize(etable_t* table, uint64_t capacity) noexcept:
    cdef enode_t** slots = <enode_t**>calloc(capacity, sizeof(enode_t*))
    cdef uint64_t at
    if slots == NULL:
        return -1
    if table.slots != NULL:
        for at in range(table.mask + 1):
            if table.slots[at] != NULL:
                put_slot(slots, capacity - 1, table.slots[at])
    free(table.slots)
    table.slots = slots
    table.mask = capacity - 1
    return 0


cdef enode_t* child(etable_t* table, enode_t* parent, const uint8_t* word, uint32_t length, uint8_t kind) except NULL:
    cdef uint64_t hash
    cdef enode_t* node = NULL
    if kind == ENODE_STAR:
        node = parent.star
    elif kind == ENODE_MANY:
        node = parent.many
    elif parent.words:
        node = etable_find(table, parent, word, length)
    if node != NULL:
        return node
    if table.slots == NULL or (table.used + 1) * 4 > (table.mask + 1) * 3:
        if resize(table, SLOTS_MIN if table.slots == NULL else (table.mask + 1) * 2) < 0:
            raise MemoryError()
    node = <enode_t*>calloc(1, sizeof(enode_t) + length)
    if node == NULL:
        raise MemoryError()
    node.parent = parent
    node.kind = kind
    node.length = <uint16_t>length
    memcpy(<void*>word_of(node), word, length)
    node.hash = edge_hash(table, parent, word, length, kind)
    put_slot(table.slots, table.mask, node)
    table.used += 1
    if kind == ENODE_STAR:
        parent.star = node
    elif kind == ENODE_MANY:
        parent.many = node
    else:
        parent.words += 1
    return node


cdef void take_slot(etable_t* table, const enode_t* node) noexcept:
    """Removes a node from the table and moves up those behind it in its run."""
    cdef uint64_t gap = node.hash & table.mask, at, home
    while table.slots[gap] != node:
        gap = (gap + 1) & table.mask
    at = gap
    while True:
        at = (at + 1) & table.mask
        if table.slots[at] == NULL:
            break
        home = table.slots[at].hash & table.mask
        if ((at - home) & table.mask) >= ((at - gap) & table.mask):
            table.slots[gap] = table.slots[at]
            gap = at
    table.slots[gap] = NULL
    table.used -= 1
    if table.mask + 1 > SLOTS_MIN and table.used * 8 < table.mask + 1:
        resize(table, (table.mask + 1) // 2)    # without memory for it, the table stays large


cdef void etable_prune(etable_t* table, enode_t* node) noexcept:
    cdef enode_t* parent
    while node.kind != ENODE_ROOT and not (node.count or node.words or node.star != NULL or node.many != NULL):
        parent = node.parent
        if node.kind == ENODE_STAR:
            parent.star = NULL
        elif node.kind == ENODE_MANY:
            parent.many = NULL
        else:
            parent.words -= 1
        take_slot(table, node)
        free(node.items)
        free(node)
        node = parent


cdef enode_t* etable_word(etable_t* table, const uint8_t* word, uint32_t length) except NULL:
    return child(table, &table.root, word, length, ENODE_WORD)


cdef enode_t* etable_pattern(etable_t* table, const uint8_t* pattern, uint32_t length) except NULL:
    cdef enode_t* node = &table.root
    cdef enode_t* deeper
    cdef uint32_t size
    cdef uint8_t kind
    cdef bint more = length > 0
    while more:
        size = word_size(pattern, length)
        kind = ENODE_WORD
        if size == 1 and pattern[0] == c"*":
            kind = ENODE_STAR
        elif size == 1 and pattern[0] == c"#":
            kind = ENODE_MANY
        try:
            deeper = child(table, node, pattern, size, kind)
        except BaseException:
            etable_prune(table, node)
            raise
        node = deeper
        more = size < length
        if more:
            pattern += size + 1
            length -= size + 1
    return node


cdef inline uint32_t word_size(const uint8_t* at, uint32_t length) noexcept:
    cdef const uint8_t* dot = <const uint8_t*>memchr(at, c".", length) if length else NULL
    return length if dot == NULL else fit_u32(dot - at)


# ---- items ----

cdef int etable_add(enode_t* node, void* destination, void* binding, place_t* place) except -1:
    cdef item_t* grown
    cdef uint32_t capacity
    if node.count == node.capacity:
        capacity = node.capacity * 2 if node.capacity else 1
        grown = <item_t*>realloc(node.items, capacity * sizeof(item_t))
        if grown == NULL:
            raise MemoryError()
        node.items = grown
        node.capacity = capacity
    node.items[node.count] = item_t(destination, binding, place)
    place.node = node
    place.at = node.count
    node.count += 1
    return 0


cdef void etable_remove(etable_t* table, place_t* place) noexcept:
    cdef enode_t* node = place.node
    cdef item_t* smaller
    check(node.items[place.at].place == place)
    node.count -= 1
    node.items[place.at] = node.items[node.count]
    node.items[place.at].place.at = place.at
    place.node = NULL
    if node.count and node.count * 4 <= node.capacity:
        smaller = <item_t*>realloc(node.items, (node.capacity // 2) * sizeof(item_t))
        if smaller != NULL:
            node.items = smaller
            node.capacity //= 2
    elif node.count == 0:
        etable_prune(table, node)


# ---- matching ----

cdef int come_to(enodes_t* nodes, enode_t* node, uint64_t step) except -1:
    """Adds a node to this step, and every `#` below it, because `#` also matches no word."""
    cdef enode_t** grown
    while node != NULL and node.seen != step:
        node.seen = step
        if nodes.count == nodes.capacity:
            grown = <enode_t**>realloc(nodes.items, (nodes.capacity * 2 + 32) * sizeof(enode_t*))
            if grown == NULL:
                raise MemoryError()
            nodes.items = grown
            nodes.capacity = nodes.capacity * 2 + 32
        nodes.items[nodes.count] = node
        nodes.count += 1
        node = node.many
    return 0


cdef int etable_match(etable_t* table, const uint8_t* topic, uint32_t length) except -1:
    cdef enodes_t swapped
    cdef enode_t* node
    cdef uint64_t hash
    cdef uint32_t size
    cdef size_t i
    cdef bint more = length > 0     # an empty topic has no word; "a." has two, the second one is empty
    table.step += 1
    table.now.count = 0
    come_to(&table.now, &table.root, table.step)
    while more and table.now.count:
        size = word_size(topic, length)
        hash = hash_bytes(topic, size, table.seed ^ ENODE_WORD)
        table.step += 1
        table.then.count = 0
        for i in range(table.now.count):
            node = table.now.items[i]
            if node.kind == ENODE_MANY:
                come_to(&table.then, node, table.step)
            if node.star != NULL:
                come_to(&table.then, node.star, table.step)
            if node.words:
                come_to(&table.then, find_hashed(table, hash_word(<uint64_t><uintptr_t>node, hash), node, topic, size),
                        table.step)
        swapped = table.now
        table.now = table.then
        table.then = swapped
        more = size < length
        if more:
            topic += size + 1
            length -= size + 1
    return 0
