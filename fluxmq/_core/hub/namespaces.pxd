"""The namespaces of a node by name: made, ended, and learned again from what was recorded."""
from libc.stdint cimport uint32_t, uint64_t

from fluxmq._core.hub.retained_store cimport RetainedStore
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.namespace cimport Namespace

cdef class Namespaces(dict):
    cdef Ledger ledger
    cdef RetainedStore retained
    cdef uint32_t route_entries         # of each namespace
    cdef uint64_t seed
    cdef set changed                    # numbers in the journal that the view must hear of
    cdef list ended_topics              # Topics of namespaces that ended: what they retained is to be forgotten

    cdef Namespace make(self, bytes name)
    cdef int forget(self, Namespace namespace) except -1
