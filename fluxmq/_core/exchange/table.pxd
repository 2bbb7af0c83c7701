"""The bindings of one exchange, indexed by key.

A tree of words in one hash table, as in pubsub/trie.pxd, with one difference: AMQP's `#` may stand in the middle of a
pattern. So a topic is matched like a nondeterministic automaton: word by word, with the set of all nodes that the words
so far can reach, each once. The cost is at most words times nodes, whatever the patterns.

Every type of exchange uses it: topic as a tree of words; direct with the key as one word; fanout with the root alone;
headers with hashes of fields as words (exchange/headers.pxd), and the root for bindings without fields.

Its pointers are borrowed.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    ENODE_WORD = 0
    ENODE_STAR = 1              # `*`: one word
    ENODE_MANY = 2              # `#`: words, also none
    ENODE_ROOT = 3
    KEY_BYTES_MAX = 65535       # 255 from AMQP; a topic of MQTT may be longer

cdef struct item_t:
    void* destination
    void* binding
    place_t* place              # the binding's: updated when the item moves

cdef struct place_t:            # where an item is
    enode_t* node
    uint32_t at

cdef struct enode_t:            # its word is behind it
    enode_t* parent
    enode_t* star
    enode_t* many
    item_t* items
    uint64_t hash
    uint64_t seen               # the last step that reached this node
    uint32_t count
    uint32_t capacity
    uint32_t words              # children that are words
    uint16_t length             # of the word: up to KEY_BYTES_MAX
    uint8_t kind                # ENODE_*

cdef struct enodes_t:
    enode_t** items
    size_t count
    size_t capacity

cdef struct etable_t:
    enode_t root
    enode_t** slots             # open addressing; NULL: no node yet
    uint64_t mask
    uint64_t used
    uint64_t seed
    uint64_t step
    enodes_t now                # of a match, reused by the next one
    enodes_t then

cdef void etable_init(etable_t* table, uint64_t seed) noexcept
cdef void etable_free(etable_t* table) noexcept
cdef enode_t* etable_find(const etable_t* table, const enode_t* parent, const uint8_t* word,
                          uint32_t length) noexcept
# Finds or makes the node of a word, or of a pattern of words.
cdef enode_t* etable_word(etable_t* table, const uint8_t* word, uint32_t length) except NULL
cdef enode_t* etable_pattern(etable_t* table, const uint8_t* pattern, uint32_t length) except NULL
# Matches a topic: the nodes are in table.now until the next match.
cdef int etable_match(etable_t* table, const uint8_t* topic, uint32_t length) except -1
cdef int etable_add(enode_t* node, void* destination, void* binding, place_t* place) except -1
# Removes the item, and nodes that are no longer needed.
cdef void etable_remove(etable_t* table, place_t* place) noexcept
# Removes nodes that are not needed, from this one upwards: for an item that was not added.
cdef void etable_prune(etable_t* table, enode_t* node) noexcept
