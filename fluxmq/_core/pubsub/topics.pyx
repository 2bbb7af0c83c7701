# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See pubsub/topics.pxd."""
cimport cython

__all__ = ["Topics"]


# Connections have pointers to its routes until they are freed, also when the collector frees them all together.
@cython.no_gc_clear
@cython.final
cdef class Topics:
    """Machine. route_entries: size of the match cache. seed: secret, for the hashes."""

    def __cinit__(self, Namespace namespace not None, uint32_t route_entries, uint64_t seed):
        self.namespace = namespace
        self.trie = Trie(seed)
        self.routes = Routes(self.trie, route_entries, seed)
        self.retained = RetainedTree()
        self.retained_dirty = set()

    @property
    def retained_count(self) -> int:
        """Number of retained messages of clients."""
        return len(self.retained) - self.retained_volatile
