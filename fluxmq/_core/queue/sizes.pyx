# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Handle. Spans of a log that are on disk, oldest first: 16 bytes for each chunk that a checkpoint wrote, or for each
batch or file that a start found. With them a log knows the size of removed spans without asking the disk."""
cimport cython
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

__all__ = ["Sizes"]


@cython.final
cdef class Sizes:
    """Handle. See the top of the file."""

    def __dealloc__(self):
        free(self.spans)

    cdef int add(self, uint64_t end, uint64_t bytes) except -1:
        cdef span_t* grown
        cdef uint32_t room
        if self.count == self.room:
            if self.head > self.room // 2:
                memmove(self.spans, self.spans + self.head, (self.count - self.head) * sizeof(span_t))
                self.count -= self.head
                self.head = 0
            else:
                room = self.room * 2 + 4
                grown = <span_t*>realloc(self.spans, room * sizeof(span_t))
                if grown == NULL:
                    raise MemoryError()
                self.spans, self.room = grown, room
        self.spans[self.count] = span_t(end, bytes)
        self.count += 1
        return 0

    cdef span_t* front(self) noexcept:
        return self.spans + self.head if self.head < self.count else NULL

    cdef void pop(self) noexcept:
        self.head += 1
        if self.head == self.count:
            free(self.spans)
            self.spans = NULL
            self.head = self.count = self.room = 0
