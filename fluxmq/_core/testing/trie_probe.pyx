# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The subscription index by itself, for tests and bench/micro: it needs nothing else of the broker, so that it is among
the modules that are built with sanitizers in every run. The broker never imports it."""
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t

from fluxmq._core.pubsub.trie cimport SHARDS, Trie, sub_t, subs_free, subs_push, subs_t
from fluxmq._core.wire.hash cimport hash_bytes as c_hash_bytes

__all__ = ["TrieProbe", "hash_bytes"]


def hash_bytes(bytes data not None, uint64_t seed) -> int:
    """The core's keyed hash (wire/hash.pxd) of `data`."""
    return c_hash_bytes(<const uint8_t*>data, len(data), seed)


cdef list subs_as_list(const subs_t* subs):
    cdef size_t at
    return [(<uintptr_t>subs.items[at].target, subs.items[at].identifier, subs.items[at].options)
            for at in range(subs.count)]


@cython.final
cdef class TrieProbe:
    """Handle. A Trie whose targets are plain numbers (`key`, 0 to 2**64 - 1; never followed as pointers)."""

    cdef Trie trie

    def __cinit__(self, uint64_t seed=0):
        self.trie = Trie(seed)

    def add(self, bytes filter not None, uintptr_t key, uint32_t identifier=0, uint8_t options=0) -> bool:
        """True when (filter, key) is new, False when it was replaced."""
        return self.trie.add(<const uint8_t*>filter, len(filter), <void*>key, identifier, options) == 1

    def remove(self, bytes filter not None, uintptr_t key) -> bool:
        """False when (filter, key) is not there."""
        return self.trie.remove(<const uint8_t*>filter, len(filter), <void*>key) == 1

    def match(self, bytes topic not None) -> list:
        """[(key, identifier, options)] of every matching subscription, in no particular order."""
        cdef subs_t found = subs_t(NULL, 0, 0)
        try:
            self.trie.match(<const uint8_t*>topic, len(topic), &found)
            return subs_as_list(&found)
        finally:
            subs_free(&found)

    def match_after(self, list subs not None, bytes topic not None) -> list:
        """As match, into a result that already holds `subs`: shows that matching appends."""
        cdef subs_t found = subs_t(NULL, 0, 0)
        cdef sub_t sub
        try:
            for key, identifier, options in subs:
                sub = sub_t(<void*><uintptr_t>key, identifier, options)
                subs_push(&found, &sub)
            self.trie.match(<const uint8_t*>topic, len(topic), &found)
            return subs_as_list(&found)
        finally:
            subs_free(&found)

    def match_many(self, list topics not None, size_t rounds) -> int:
        """Matches every topic, `rounds` times over, in C; returns how many subscriptions matched in all."""
        cdef subs_t found = subs_t(NULL, 0, 0)
        cdef uint64_t total = 0
        cdef size_t turn
        cdef bytes topic
        try:
            for turn in range(rounds):
                for topic in topics:
                    found.count = 0
                    self.trie.match(<const uint8_t*>topic, len(topic), &found)
                    total += found.count
            return total
        finally:
            subs_free(&found)

    @property
    def generation(self) -> int:
        """Changes so far."""
        return self.trie.generation

    @property
    def filters(self) -> int:
        """Distinct filters."""
        return self.trie.filters

    @property
    def subscriptions(self) -> int:
        """(filter, key) pairs."""
        return self.trie.subscriptions

    @property
    def nodes(self) -> int:
        """Nodes held; 0 when nothing is subscribed."""
        return self.trie.nodes

    @property
    def slots(self) -> int:
        """Slots of the table of nodes that are held in memory: it grows and shrinks with them."""
        cdef size_t at, total = 0
        for at in range(<size_t>SHARDS):
            total += self.trie.table.shards[at].mask + <size_t>(self.trie.table.shards[at].mask > 0)
        return total
