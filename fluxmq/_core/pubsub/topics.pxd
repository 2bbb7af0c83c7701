"""The topics of one namespace: who wants what is published (trie, with its cache of routes), and what is retained."""
from libc.stdint cimport uint32_t, uint64_t

from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.pubsub.retained cimport RetainedTree
from fluxmq._core.pubsub.routes cimport Routes
from fluxmq._core.pubsub.trie cimport Trie

cdef class Topics:
    cdef readonly Namespace namespace
    cdef readonly Trie trie
    cdef readonly Routes routes
    cdef readonly RetainedTree retained
    cdef readonly uint64_t retained_bytes
    cdef uint64_t retained_expiring     # how many of them have an expiry: none, and no sweep has to look
    cdef uint64_t retained_volatile     # how many of them are the broker's own ($SYS): not bounded, not on disk
    cdef readonly set retained_dirty    # topics whose retained message changed since the last checkpoint
