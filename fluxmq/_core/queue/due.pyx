# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Handle. The due times of a delay log: a heap in one block of memory, without a Python object per message.

Each node has four children, because these are in one cache line, which halves the cache misses of a binary heap. A
message with the latest due time, as usual if all have the same delay, is pushed without moving others.
"""
cimport cython
from libc.stdlib cimport free, realloc
from fluxmq._core.wire.sizes cimport low_u32

from fluxmq._core.errors import UsageError

__all__ = ["DueHeap"]

cdef enum:
    ROOM_MIN = 16
    CHILDREN = 4

cdef uint64_t OFFSET_END = <uint64_t>1 << 48        # reached after nine years with a million a second
cdef int64_t DUE_MAX = (<int64_t>1 << 48) - 1       # in the year 10889; later due times are set to it


cdef inline bint is_less(const due_t* one, const due_t* other) noexcept nogil:
    cdef uint64_t a = <uint64_t>one.high << 32 | one.middle
    cdef uint64_t b = <uint64_t>other.high << 32 | other.middle
    return a < b or (a == b and one.low < other.low)


@cython.final
cdef class DueHeap:
    """Handle. See the top of the file. Due times are wall clock, ms; equal ones are ordered by offset."""

    def __dealloc__(self):
        free(self.items)

    def __len__(self) -> int:
        return self.count

    cdef int reserve(self, uint64_t count) except -1:
        cdef due_t* moved
        cdef uint64_t room = self.room
        if count > room:
            # Doubling uses address space, not memory: untouched pages are not allocated.
            room = max(count, room * 2, <uint64_t>ROOM_MIN)
        elif count < room // 4 and room > ROOM_MIN:
            room //= 2
        else:
            return 0
        moved = <due_t*>realloc(self.items, room * sizeof(due_t))
        if moved == NULL:
            if room < self.room:
                return 0
            raise MemoryError()
        self.items = moved
        self.room = room
        return 0

    cdef int add(self, int64_t due_ms, uint64_t offset) except -1:
        cdef due_t* item
        if offset >= OFFSET_END or due_ms < 0:
            raise UsageError(f"a message is due at or after 1970, under an offset below {OFFSET_END}")
        if due_ms > DUE_MAX:
            due_ms = DUE_MAX
        self.reserve(self.count + 1)
        item = &self.items[self.count]
        item.high = low_u32(due_ms >> 16)
        item.middle = <uint32_t>((due_ms & 0xFFFF) << 16) | <uint32_t>(offset >> 32)
        item.low = low_u32(offset)
        self.count += 1
        return 0

    cdef void rise(self, uint64_t at) noexcept:
        cdef due_t item = self.items[at]
        cdef uint64_t above
        while at:
            above = (at - 1) // CHILDREN
            if not is_less(&item, &self.items[above]):
                break
            self.items[at] = self.items[above]
            at = above
        self.items[at] = item

    cdef void sink(self, uint64_t at) noexcept:
        cdef due_t item = self.items[at]
        cdef uint64_t child, least, end
        while True:
            child = at * CHILDREN + 1
            if child >= self.count:
                break
            end = min(child + CHILDREN, self.count)
            least = child
            for child in range(child + 1, end):
                if is_less(&self.items[child], &self.items[least]):
                    least = child
            if not is_less(&self.items[least], &item):
                break
            self.items[at] = self.items[least]
            at = least
        self.items[at] = item

    cdef int push_due(self, int64_t due_ms, uint64_t offset) except -1:
        self.add(due_ms, offset)
        self.rise(self.count - 1)
        return 0

    cdef due_t take_first(self) noexcept:
        cdef due_t first = self.items[0]
        self.count -= 1
        if self.count:
            self.items[0] = self.items[self.count]
            self.sink(0)
        self.reserve(self.count)            # never more than it has, so it cannot fail
        return first

    def push(self, int64_t due_ms, uint64_t offset):
        """Adds a message. Raises UsageError for an offset of 48 bits or more, or a negative time; MemoryError."""
        self.push_due(due_ms, offset)

    def pop(self) -> tuple[int, int]:
        """Removes the first message and returns its (due, offset). Raises IndexError if there is none."""
        if self.count == 0:
            raise IndexError("nothing waits")
        cdef due_t first = self.take_first()
        return due_time(first), due_offset(first)

    def first(self) -> int | None:
        """The first due time; None: the heap is empty."""
        return due_time(self.items[0]) if self.count else None

    cpdef heapify(self):
        """Orders the heap after unordered additions."""
        cdef uint64_t at = (self.count + CHILDREN - 2) // CHILDREN if self.count > 1 else 0
        while at:
            at -= 1
            self.sink(at)
