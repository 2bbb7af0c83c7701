"""The log of a group in memory: the entries behind what a copy of its queues has, and who is a member as of each.

        first            committed        last
    ──────┼─────────────────┼───────────────┤
     gone │ entries                         │
"""
from libc.stdint cimport uint64_t

from fluxmq._core.raft.messages cimport Entry

cdef class EntryLog:
    cdef list entries               # the first has index `base` + 1
    cdef readonly uint64_t base     # index of the last entry that has gone; 0: none has
    cdef readonly uint64_t base_term
    cdef readonly uint64_t bytes    # of data
    # (index, voters, learners) from this entry on; the first is as of `base`. Never empty.
    cdef list members
    cdef uint64_t last(self) noexcept
    # Of the entry with this index; 0: it is gone, or does not exist. 0 has term 0.
    cdef uint64_t term(self, uint64_t index) noexcept
    cdef bint has(self, uint64_t index, uint64_t term) noexcept
    cdef int append(self, Entry entry) except -1
    cdef tuple newest_members(self)
    # Removes what is behind an index.
    cdef int cut(self, uint64_t index) except -1
    # Entries from `first` on, at least one if there is one, as many as fit in so many bytes.
    cdef list some(self, uint64_t first, uint64_t upto, uint64_t bytes_max)
    # The highest index up to this one whose term is at most that one.
    cdef uint64_t find_term(self, uint64_t index, uint64_t term) noexcept
