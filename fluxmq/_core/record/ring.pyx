# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Handle. Reads entries from the ring of a recording, which memory/tap.pyx writes. docs/internals/recording.md.

It makes no system calls: the reader polls.
"""
cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from fluxmq._core.errors import CorruptError
from fluxmq._core.memory.tap cimport (
    ENTRY_HEAD, RING_BROKER_END, RING_CAPACITY, RING_DATA, RING_HEAD, RING_TAIL, RING_UNREPORTED_BYTES,
    RING_UNREPORTED_ENTRIES, RING_WRITER_END, TAP_FILLER, TAP_LOST, load_acquire, store_release, tap_now,
)

__all__ = ["RingReader"]


@cython.final
cdef class RingReader:
    """Handle. mapping: the whole ring, writable (mmap.mmap of the memory file). Raises CorruptError
    if it is not a ring."""

    cdef Py_buffer view
    cdef bint viewed
    cdef object window          # memoryview of the data
    cdef object given           # last result of take()
    cdef uint64_t capacity
    cdef uint64_t tail          # everything before it belongs to the broker
    cdef uint64_t upto          # end of the last result of take()
    cdef bint end_reported      # the final LOST entry was returned

    def __cinit__(self, mapping):
        cdef uint8_t* ring
        PyObject_GetBuffer(mapping, &self.view, PyBUF_WRITABLE)
        self.viewed = True
        ring = <uint8_t*>self.view.buf
        if self.view.len <= RING_DATA or memcmp(ring, <const char*>b"FLUXTAP1", 8) != 0:
            raise CorruptError("this is no ring of a recording")
        memcpy(&self.capacity, ring + RING_CAPACITY, 8)
        if self.capacity & (self.capacity - 1) or <uint64_t>self.view.len != RING_DATA + self.capacity:
            raise CorruptError("the ring of a recording has another size than it says")
        self.window = memoryview(mapping).toreadonly()[RING_DATA:]
        self.given = None
        self.tail = self.upto = load_acquire(<uint64_t*>(ring + RING_TAIL))

    def __dealloc__(self):
        if self.viewed:
            PyBuffer_Release(&self.view)

    cdef inline uint64_t* word(self, size_t at) noexcept:
        return <uint64_t*>(<uint8_t*>self.view.buf + at)

    def release(self):
        """Gives the last result of take() back to the broker, which overwrites it. Its memoryview becomes invalid."""
        if self.given is not None:
            self.given.release()
            self.given = None
        if self.upto != self.tail:
            self.tail = self.upto
            store_release(self.word(RING_TAIL), self.tail)

    cdef uint64_t positions(self) except? 0:
        """The broker's write position."""
        cdef uint64_t head = load_acquire(self.word(RING_HEAD))
        if head - self.tail > self.capacity or head & 7:
            raise CorruptError("the ring of a recording is damaged: its positions contradict each other")
        return head

    cdef uint32_t entry_at(self, uint64_t position, uint64_t head, uint8_t* kind, uint32_t* length) except 0:
        """The size of the entry there, its kind and how much data it has."""
        cdef uint64_t at = position & (self.capacity - 1)
        cdef uint8_t* entry = <uint8_t*>self.view.buf + RING_DATA + at
        cdef uint32_t size
        memcpy(&size, entry, 4)
        length[0] = 0
        if size < 8 or size & 7 or size > self.capacity - at or size > head - position:
            raise CorruptError(f"the ring of a recording is damaged: an entry of {size} bytes")
        kind[0] = entry[4]
        if kind[0] == TAP_FILLER:
            return size
        if size >= ENTRY_HEAD:
            memcpy(length, entry + 24, 4)
        if size < ENTRY_HEAD or length[0] > size - ENTRY_HEAD:
            raise CorruptError(f"the ring of a recording is damaged: an entry of {size} bytes for {length[0]} of data")
        return size

    def take(self, uint64_t limit=1 << 20):
        """Complete entries, in order, without fillers: a memoryview of at most `limit` bytes (but at least one entry),
        valid until the next take() or release(). Empty: there are none. Raises CorruptError for an invalid entry.

        Losses for which the ring had no room at the end are returned as a final LOST entry (bytes)."""
        cdef uint64_t head, at, start, end
        cdef uint32_t size, length
        cdef uint8_t kind = 0
        self.release()
        # Read before head: entries written before the end must be seen.
        cdef bint over = load_acquire(self.word(RING_BROKER_END)) != 0
        head = self.positions()
        start = end = self.tail
        while end != head:
            if end != start and end & (self.capacity - 1) == 0:
                break           # the last entry ends exactly at the ring's end, so there is no filler
            size = self.entry_at(end, head, &kind, &length)
            if kind == TAP_FILLER:
                if end != start:
                    break
                end += size
                start = end
                continue
            if end != start and end + size - start > limit:
                break
            end += size
        self.upto = end
        if end == start:
            self.release()
            if over and not self.end_reported:
                self.end_reported = True
                return self.unreported()
            return b""
        at = start & (self.capacity - 1)
        self.given = self.window[at:at + (end - start)]
        return self.given

    def take_lost(self):
        """Losses that no entry reports yet, as a LOST entry (bytes); empty: none. For a reader that has taken
        everything and stops, although the broker continues or has crashed."""
        if self.end_reported:
            return b""
        self.end_reported = True
        return self.unreported()

    def discard(self):
        """Discards the remaining entries after the broker has ended the recording. Returns their number and data bytes,
        and number and data bytes of losses that were not read."""
        cdef uint64_t head, entries = 0, size = 0, lost = 0, lost_size = 0, number
        cdef uint32_t length, step
        cdef uint8_t kind = 0
        cdef const uint8_t* data
        self.release()
        head = self.positions()
        while self.upto != head:
            step = self.entry_at(self.upto, head, &kind, &length)
            if kind == TAP_LOST and length >= 16:
                data = <const uint8_t*>self.view.buf + RING_DATA + (self.upto & (self.capacity - 1)) + ENTRY_HEAD
                memcpy(&number, data, 8)
                lost += number
                memcpy(&number, data + 8, 8)
                lost_size += number
            elif kind != TAP_FILLER:
                entries += 1
                size += length
            self.upto += step
        self.release()
        if not self.end_reported:
            self.end_reported = True
            lost += load_acquire(self.word(RING_UNREPORTED_ENTRIES))
            lost_size += load_acquire(self.word(RING_UNREPORTED_BYTES))
        return entries, size, lost, lost_size

    cdef bytes unreported(self):
        cdef uint8_t[ENTRY_HEAD + 16] entry
        cdef uint32_t n = ENTRY_HEAD + 16
        cdef int64_t now = tap_now()
        cdef int i
        if not load_acquire(self.word(RING_UNREPORTED_ENTRIES)):
            return b""
        for i in range(ENTRY_HEAD):
            entry[i] = 0
        memcpy(entry, &n, 4)
        entry[4] = TAP_LOST
        memcpy(entry + 16, &now, 8)
        n = 16
        memcpy(entry + 24, &n, 4)
        memcpy(entry + ENTRY_HEAD, self.word(RING_UNREPORTED_ENTRIES), 8)
        memcpy(entry + ENTRY_HEAD + 8, self.word(RING_UNREPORTED_BYTES), 8)
        return (<const char*>entry)[:ENTRY_HEAD + 16]

    def stop(self):
        """Tells the broker that there is no reader any more. The ring keeps its content."""
        self.release()
        store_release(self.word(RING_WRITER_END), 1)

    @property
    def ended(self) -> bool:
        """Whether the broker has ended the recording and everything was taken."""
        return (load_acquire(self.word(RING_BROKER_END)) != 0 and load_acquire(self.word(RING_HEAD)) == self.upto
                and (self.end_reported or not self.word(RING_UNREPORTED_ENTRIES)[0]))

    @property
    def waiting(self) -> int:
        """Bytes in the ring behind the last result of take()."""
        return load_acquire(self.word(RING_HEAD)) - self.upto
