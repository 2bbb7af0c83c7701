"""The topics of one namespace: subscriptions (a trie, with its cache of routes) and retained messages."""
from libc.stdint cimport uint32_t, uint64_t

from fluxmq._core.debug cimport check
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
    cdef uint64_t retained_expiring     # how many of them have an expiry; if 0, a sweep is skipped
    cdef uint64_t retained_volatile     # how many of them are $SYS: not limited, not on disk
    cdef readonly set retained_dirty    # topics whose retained message changed since the last checkpoint


cdef inline bint is_topics(void* it) noexcept:
    return isinstance(<object>it, Topics)


# The topics of a namespace, for a cast: the attribute has no type, because memory does not import this package.
cdef inline void* topics_of(Namespace namespace) noexcept:
    check(is_topics(<void*>namespace.topics))
    return <void*>namespace.topics
