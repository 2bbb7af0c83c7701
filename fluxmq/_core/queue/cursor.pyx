# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A group's state for one log. See queue/cursor.pxd."""
cimport cython
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove, memset

from fluxmq._core.queue.claim cimport claim_free, claim_new
from fluxmq._core.queue.log cimport chunk_drop
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["Cursor"]

cdef enum:
    PAGE_BYTES = 8192
    TABLE_MIN = 16


@cython.final
cdef class Cursor:
    """Machine. A group's state for one log. Made by Group.add_cursor."""

    def __cinit__(self, Log log not None, uint32_t partition, uint64_t start):
        self.log = log
        self.partition = partition
        self.next = self.floor = start
        self.head_at = <uint64_t>0xFFFFFFFFFFFFFFFF
        self.pages_base = start >> PAGE_BITS

    def __dealloc__(self):
        cdef uint32_t i
        cdef claim_t* claim
        cdef claim_t* following
        for i in range(self.pages_count):
            free(self.pages[i])
        free(self.pages)
        if self.table != NULL:
            for i in range(self.table_mask + 1):
                claim = self.table[i]
                while claim != NULL:
                    following = claim.chain
                    if claim.chunk != NULL:
                        chunk_drop(claim.chunk)
                    free(claim)
                    claim = following
        free(self.table)
        free(self.ready.items)

    @property
    def log_number(self) -> int:
        return self.log.number

    cdef bint is_settled(self, uint64_t offset) noexcept:
        cdef uint64_t page
        if offset < self.floor:
            return 1
        page = (offset >> PAGE_BITS) - self.pages_base
        if page >= self.pages_count or self.pages[page] == NULL:
            return 0
        return self.pages[page][(offset & 0xFFFF) >> 3] >> (offset & 7) & 1

    cdef int pass_over(self, uint64_t upto) except -1:
        while self.next < upto:
            self.mark(self.next)
            self.next = max(self.next + 1, self.floor)
        return 0

    cdef int mark(self, uint64_t offset) except -1:
        """Marks a message as settled."""
        cdef uint64_t page
        cdef uint8_t** grown
        cdef uint32_t count
        if self.is_settled(offset):
            return 0
        if offset == self.floor:
            self.set_floor(offset + 1)
            self.advance()
            return 0
        page = (offset >> PAGE_BITS) - self.pages_base
        if page >= self.pages_count:
            count = fit_u32(page) + 1
            grown = <uint8_t**>realloc(self.pages, count * sizeof(uint8_t*))
            if grown == NULL:
                raise MemoryError()
            memset(grown + self.pages_count, 0, (count - self.pages_count) * sizeof(uint8_t*))
            self.pages = grown
            self.pages_count = count
        if self.pages[page] == NULL:
            self.pages[page] = <uint8_t*>calloc(1, PAGE_BYTES)
            if self.pages[page] == NULL:
                raise MemoryError()
        self.pages[page][(offset & 0xFFFF) >> 3] |= <uint8_t>(1 << (offset & 7))
        self.settled += 1
        return 0

    cdef void start_at(self, uint64_t next) noexcept:
        cdef uint32_t i
        for i in range(self.pages_count):
            free(self.pages[i])
        self.pages_count = 0
        self.settled = 0
        self.pages_base = next >> PAGE_BITS
        self.floor = self.next = next
        self.head_at = <uint64_t>0xFFFFFFFFFFFFFFFF
        self.head_expires = 0

    cdef void set_floor(self, uint64_t offset) noexcept:
        """Frees pages that are entirely below the floor. Bits below it in the first page stay, and are never read."""
        cdef uint64_t gone = (offset >> PAGE_BITS) - self.pages_base
        cdef uint32_t i
        self.floor = offset
        if self.next < offset:
            self.next = offset
        if gone == 0:
            return
        for i in range(min(fit_u32(min(gone, <uint64_t>0xFFFFFFFF)), self.pages_count)):
            free(self.pages[i])
        if gone >= self.pages_count:
            self.pages_count = 0
        else:
            self.pages_count -= fit_u32(gone)
            memmove(self.pages, self.pages + gone, self.pages_count * sizeof(uint8_t*))
        self.pages_base = offset >> PAGE_BITS

    cdef void advance(self) noexcept:
        """Moves the floor past messages that were settled out of order."""
        cdef uint64_t offset = self.floor
        while self.settled and self.is_settled_bit(offset):
            offset += 1
            self.settled -= 1
            if (offset & 0xFFFF) == 0:
                self.set_floor(offset)
        if offset != self.floor:
            self.set_floor(offset)

    cdef uint64_t reach(self) noexcept:
        """The first offset above all claimed or settled ones."""
        cdef uint32_t page = self.pages_count
        cdef uint32_t bit
        cdef uint64_t found = 0
        while self.settled and page and found == 0:
            page -= 1
            bit = PAGE_BYTES * 8
            while self.pages[page] != NULL and bit and found == 0:
                bit -= 1
                if self.pages[page][bit >> 3] >> (bit & 7) & 1:
                    found = ((self.pages_base + page) << PAGE_BITS) + bit + 1
        return max(found, self.next)

    cdef bint is_settled_bit(self, uint64_t offset) noexcept:
        cdef uint64_t page = (offset >> PAGE_BITS) - self.pages_base
        return (page < self.pages_count and self.pages[page] != NULL
                and self.pages[page][(offset & 0xFFFF) >> 3] >> (offset & 7) & 1)

    cdef claim_t* find(self, uint64_t offset) noexcept:
        cdef claim_t* claim
        if self.count == 0:
            return NULL
        claim = self.table[(offset * <uint64_t>0x9E3779B97F4A7C15 >> 32) & self.table_mask]
        while claim != NULL and claim.offset != offset:
            claim = claim.chain
        return claim

    cdef int grow(self) except -1:
        cdef uint32_t size = (self.table_mask + 1) * 2 if self.table != NULL else TABLE_MIN
        cdef claim_t** grown = <claim_t**>calloc(size, sizeof(claim_t*))
        cdef claim_t* claim
        cdef claim_t* following
        cdef uint32_t i
        cdef uint64_t at
        if grown == NULL:
            raise MemoryError()
        if self.table != NULL:
            for i in range(self.table_mask + 1):
                claim = self.table[i]
                while claim != NULL:
                    following = claim.chain
                    at = (claim.offset * <uint64_t>0x9E3779B97F4A7C15 >> 32) & (size - 1)
                    claim.chain = grown[at]
                    grown[at] = claim
                    claim = following
            free(self.table)
        self.table = grown
        self.table_mask = size - 1
        return 0

    cdef claim_t* add(self, uint64_t offset) except NULL:
        cdef claim_t* claim
        cdef uint64_t at
        if self.table == NULL or self.count > self.table_mask:
            self.grow()
        claim = claim_new()
        claim.offset = offset
        claim.cursor = <void*>self
        at = (offset * <uint64_t>0x9E3779B97F4A7C15 >> 32) & self.table_mask
        claim.chain = self.table[at]
        self.table[at] = claim
        self.count += 1
        return claim

    cdef void drop(self, claim_t* claim) noexcept:
        """Removes a claim from the table and frees it; heaps and members do not refer to it any more."""
        cdef claim_t** at = &self.table[(claim.offset * <uint64_t>0x9E3779B97F4A7C15 >> 32) & self.table_mask]
        while at[0] != claim:
            at = &at[0].chain
        at[0] = claim.chain
        self.count -= 1
        claim_free(claim)
