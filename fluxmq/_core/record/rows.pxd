# cython: language_level=3
"""Entries of a recording's ring → rows of record/columns. record/counts counts them for a live view."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from fluxmq._core.record.state cimport Peer, Recording

cdef struct entry_t:
    uint8_t kind
    uint8_t protocol
    uint16_t flags
    uint32_t length
    int64_t connection
    int64_t time
    const uint8_t* data

cdef class RecordRows:
    cdef Recording recording
    cdef dict peers
    cdef Peer last              # connection of the previous entry
    cdef tuple clients
    cdef frozenset protocols
    cdef double sample
    cdef size_t batch_rows
    cdef size_t batch_bytes
    cdef readonly int64_t lost_entries
    cdef readonly int64_t lost_bytes

    cdef bint is_full(self) noexcept
    cdef Peer peer_of(self, const entry_t* entry)
    cdef int take_entry(self, const entry_t* entry) except -1
    cdef int take_of(self, Peer peer, const entry_t* entry) except -1
    cdef bint decided(self, Peer peer, const entry_t* entry) except -1
    cdef int decide(self, Peer peer, bytes client) except -1
    cdef bint is_kept(self, bytes client) except -1
    cdef bytes client_of(self, Peer peer, dict details)
    cdef int take_event(self, Peer peer, const entry_t* entry) except -1
    cdef int take_lost(self, const entry_t* entry) except -1
