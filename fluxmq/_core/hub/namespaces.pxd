"""The namespaces of a node by name: create, end, and restore from the journal and the view."""
from libc.stdint cimport uint32_t, uint64_t

from fluxmq._core.hub.retained_store cimport RetainedStore
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.namespace cimport Namespace

cdef class Namespaces(dict):
    cdef Ledger ledger
    cdef RetainedStore retained
    cdef uint32_t route_entries         # size of each namespace's route cache
    cdef uint64_t seed
    cdef set changed                    # journal numbers to be written to the view by the next checkpoint
    cdef list ended_topics              # Topics of ended namespaces: their retained messages must leave the view

    cdef Namespace make(self, bytes name)
    cdef int forget(self, Namespace namespace) except -1
