# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. See raft/log.pxd."""
from cpython.list cimport PyList_GET_ITEM

cimport cython

from fluxmq._core.errors import UsageError
from fluxmq._core.raft.messages cimport ENTRY_MEMBERS
from fluxmq._core.raft.messages import members_of

__all__ = ["EntryLog"]


@cython.final
cdef class EntryLog:
    """Entries by index, from `base` + 1 on. base, base_term: of the last one that is in a copy instead. voters,
    learners: collections of replicas' numbers, as of that one."""

    def __cinit__(self, voters, learners=(), uint64_t base=0, uint64_t base_term=0):
        self.entries = []
        self.base = base
        self.base_term = base_term
        self.members = [(base, frozenset(voters), frozenset(learners))]

    def __len__(self):
        return len(self.entries)

    @property
    def last_index(self) -> int:
        return self.last()

    def tail(self) -> list:
        """All entries."""
        return list(self.entries)

    def add(self, Entry entry not None):
        """Appends one. Raises CorruptError for members that are none."""
        self.append(entry)

    def cut_from(self, uint64_t index):
        """Removes this entry, and what is behind it."""
        self.cut(index - 1)

    def term_at(self, uint64_t index) -> int:
        """The term of an entry; 0: it has gone, or does not exist."""
        return self.term(index)

    def members_at(self, uint64_t index) -> tuple:
        """(voters, learners), frozensets, as of an entry that is not in front of `base`."""
        cdef tuple one
        for one in reversed(self.members):
            if one[0] <= index:
                return one[1:]
        raise UsageError(f"entry {index} has gone, the first is {self.base + 1}")

    def forget(self, uint64_t index):
        """Entries up to this one go: a copy has what they did. Raises UsageError for one that is not there."""
        cdef uint64_t i
        cdef Entry entry
        if index <= self.base:
            return
        if index > self.last():
            raise UsageError(f"entry {index} is not there, the last is {self.last()}")
        self.base_term = self.term(index)
        for i in range(index - self.base):
            entry = <Entry>PyList_GET_ITEM(self.entries, <Py_ssize_t>i)
            self.bytes -= <uint64_t>len(entry.data)
        del self.entries[:index - self.base]
        self.base = index
        while len(self.members) > 1 and <uint64_t>(<tuple>self.members[1])[0] <= index:
            self.members.pop(0)

    def restart(self, uint64_t index, uint64_t term, voters, learners):
        """Begins anew behind an entry that is in a copy, with the members as of it."""
        self.entries.clear()
        self.bytes = 0
        self.base = index
        self.base_term = term
        self.members = [(index, frozenset(voters), frozenset(learners))]

    cdef uint64_t last(self) noexcept:
        return self.base + <uint64_t>len(self.entries)

    cdef uint64_t term(self, uint64_t index) noexcept:
        if index == self.base:
            return self.base_term
        if index < self.base or index > self.last():
            return 0
        return (<Entry>PyList_GET_ITEM(self.entries, <Py_ssize_t>(index - self.base - 1))).term

    cdef bint has(self, uint64_t index, uint64_t term) noexcept:
        return self.base <= index <= self.last() and self.term(index) == term

    cdef tuple newest_members(self):
        return <tuple>self.members[len(self.members) - 1]

    cdef int append(self, Entry entry) except -1:
        if entry.kind == ENTRY_MEMBERS:
            # They count from here on, committed or not: a replica that was started again does not know what was.
            self.members.append((self.last() + 1, *members_of(entry.data)))
        self.entries.append(entry)
        self.bytes += <uint64_t>len(entry.data)
        return 0

    cdef int cut(self, uint64_t index) except -1:
        cdef Entry entry
        while self.last() > index:
            entry = self.entries.pop()
            self.bytes -= <uint64_t>len(entry.data)
        while <uint64_t>self.newest_members()[0] > self.last():
            self.members.pop()
        return 0

    cdef list some(self, uint64_t first, uint64_t upto, uint64_t bytes_max):
        cdef Py_ssize_t begin = <Py_ssize_t>(first - self.base - 1)
        cdef Py_ssize_t end = begin
        cdef Py_ssize_t stop = <Py_ssize_t>(min(upto, self.last()) - self.base)
        cdef uint64_t size = 0
        while end < stop:
            size += <uint64_t>len((<Entry>PyList_GET_ITEM(self.entries, end)).data)
            if size > bytes_max and end > begin:
                break
            end += 1
        return self.entries[begin:end]

    cdef uint64_t find_term(self, uint64_t index, uint64_t term) noexcept:
        index = min(index, self.last())
        while index > self.base and self.term(index) > term:
            index -= 1
        return index
