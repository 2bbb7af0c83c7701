# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Handle. The broker's end of a recording's ring, a shared mapping. The other end is record/ring.pyx."""
cimport cython
from libc.errno cimport errno
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from fluxmq._core.wire.sizes cimport fit_u32

from fluxmq._core.errors import UsageError

__all__ = ["Tap"]

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    int PROT_READ
    int PROT_WRITE
    int MAP_SHARED
    int MAP_POPULATE
    void* MAP_FAILED

cdef enum:
    CUT_BYTES = 262144
    LOST_ENTRY = ENTRY_HEAD + 16

# Documented in docs/internals/recording.md, as all constants here.
cdef const char* MAGIC = b"FLUXTAP1"


cdef int64_t tap_now() noexcept:
    """ns since 1970."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef inline uint64_t* word(tap_t* tap, size_t at) noexcept:
    return <uint64_t*>(tap.ring + at)


cdef bint has_room(tap_t* tap, uint64_t size) noexcept:
    """Whether `size` bytes fit behind head. Reads the reader's position only if the last known one has no room."""
    if tap.head + size - tap.tail <= tap.capacity:
        return 1
    tap.tail = load_acquire(word(tap, RING_TAIL))
    return tap.head + size - tap.tail <= tap.capacity


cdef uint8_t* place(tap_t* tap, uint8_t kind, uint8_t protocol, uint16_t flags, uint64_t connection, int64_t time,
                    uint64_t length) noexcept:
    """Writes the header of an entry and returns its room; writes a filler first if the end of the ring is too near."""
    cdef uint64_t size = (ENTRY_HEAD + length + 7) & ~<uint64_t>7
    cdef uint64_t at = tap.head & (tap.capacity - 1)
    cdef uint64_t rest = tap.capacity - at
    cdef uint8_t* entry
    cdef uint32_t n
    if rest >= size:
        rest = 0
    if not has_room(tap, size + rest):
        return NULL
    if rest:
        n = fit_u32(rest)
        memcpy(tap.ring + RING_DATA + at, &n, 4)
        tap.ring[RING_DATA + at + 4] = TAP_FILLER
        at = 0
    entry = tap.ring + RING_DATA + at
    n = fit_u32(size)
    memcpy(entry, &n, 4)
    entry[4] = kind
    entry[5] = protocol
    memcpy(entry + 6, &flags, 2)
    memcpy(entry + 8, &connection, 8)
    memcpy(entry + 16, &time, 8)
    n = fit_u32(length)
    memcpy(entry + 24, &n, 4)
    memset(entry + 28, 0, 4)
    tap.made = tap.head + rest + size
    return entry + ENTRY_HEAD


cdef void note_unreported(tap_t* tap) noexcept:
    """Publishes the unreported losses for a reader that finds no LOST entry. The number of entries is stored last,
    because the reader checks that one."""
    store_release(word(tap, RING_UNREPORTED_BYTES), tap.unreported_bytes)
    store_release(word(tap, RING_UNREPORTED_ENTRIES), tap.unreported_entries)


cdef void write_lost_entry(tap_t* tap, int64_t time) noexcept:
    """A LOST entry, if it fits."""
    cdef uint8_t* data = place(tap, TAP_LOST, 0, 0, 0, time, 16)
    if data != NULL:
        memcpy(data, &tap.unreported_entries, 8)
        memcpy(data + 8, &tap.unreported_bytes, 8)
        tap.unreported_entries = tap.unreported_bytes = 0
        tap.head = tap.made
        store_release(word(tap, RING_HEAD), tap.head)
        # Stored after the entry: a reader that finds 0 here finds the LOST entry in the ring.
        store_release(word(tap, RING_UNREPORTED_ENTRIES), 0)
        store_release(word(tap, RING_UNREPORTED_BYTES), 0)


cdef uint8_t* tap_begin(tap_t* tap, uint8_t kind, uint8_t protocol, uint16_t flags, uint64_t connection, int64_t time,
                        uint64_t length) noexcept:
    cdef uint8_t* data = NULL
    # A gap ends only when there is plenty of room, so that a slow reader gets a few long gaps.
    if tap.unreported_entries and length <= tap.entry_max and has_room(
            tap, max(tap.capacity // 4, 2 * (length + ENTRY_HEAD + LOST_ENTRY))):
        write_lost_entry(tap, time)
    # While losses are unreported no entry is written, to keep the LOST entry in its place in the stream.
    if not tap.unreported_entries and length + ENTRY_HEAD <= tap.entry_max:
        data = place(tap, kind, protocol, flags, connection, time, length)
    if data == NULL:
        tap.unreported_entries += 1
        tap.unreported_bytes += length
        tap.lost_entries += 1
        tap.lost_bytes += length
        note_unreported(tap)
        return NULL
    tap.entries += 1
    tap.bytes += length
    return data


cdef void tap_commit(tap_t* tap) noexcept:
    tap.head = tap.made
    store_release(word(tap, RING_HEAD), tap.head)


cdef void tap_write(tap_t* tap, uint8_t kind, uint8_t protocol, uint16_t flags, uint64_t connection, int64_t time,
                    const uint8_t* data, uint64_t length) noexcept:
    cdef uint8_t* into = tap_begin(tap, kind, protocol, flags, connection, time, length)
    if into != NULL:
        memcpy(into, data, length)
        tap_commit(tap)


@cython.final
cdef class Tap:
    """Handle. Maps the ring in the file `fd` and resets it: an earlier reader of it gets nothing more.

    fd: of a memory file of 4096 + capacity bytes; the caller closes it. capacity: bytes of data, a power of two. All
    its pages are allocated here (a few ms for each 10 MiB, without the interpreter's lock), so that no entry waits for
    a page fault. Raises UsageError for an invalid capacity, OSError if it cannot be mapped.
    """

    def __cinit__(self, int fd, size_t capacity):
        cdef void* found
        cdef size_t size = RING_DATA + capacity
        self.tap.ring = NULL
        if capacity < RING_DATA or capacity & (capacity - 1) or capacity >> 32:
            raise UsageError(f"the capacity of a ring is a power of two below 4 GiB, not {capacity}")
        with nogil:
            found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0)
        if found == MAP_FAILED:
            raise OSError(errno, "the ring of a recording cannot be mapped")
        self.mapped = size
        self.tap.ring = <uint8_t*>found
        memset(self.tap.ring, 0, RING_DATA)
        self.tap.capacity = capacity
        self.tap.entry_max = capacity // 4
        self.tap.cut = min(<size_t>CUT_BYTES, capacity // 16)
        word(&self.tap, RING_CAPACITY)[0] = capacity
        memcpy(self.tap.ring, MAGIC, 8)

    def __dealloc__(self):
        if self.tap.ring != NULL:
            munmap(self.tap.ring, self.mapped)

    cdef void begin(self, int reader, uint32_t number) noexcept:
        self.tap.reader = reader
        self.tap.number = number
        self.tap.next = NULL

    def write(self, uint8_t kind, uint8_t protocol, uint16_t flags, uint64_t connection, bytes data not None):
        """Writes an entry with the current time. See memory/tap.pxd for the numbers."""
        tap_write(&self.tap, kind, protocol, flags, connection, tap_now(), <const uint8_t*><const char*>data, len(data))

    def lose(self, uint64_t entries, uint64_t data_bytes, uint64_t lost_entries=0, uint64_t lost_bytes=0):
        """Takes over the result of RingReader.discard for an earlier ring whose reader died: the next entry is a LOST
        one with all of it. That ring's Tap has counted its own losses already."""
        self.tap.unreported_entries += entries + lost_entries
        self.tap.unreported_bytes += data_bytes + lost_bytes
        self.tap.lost_entries += entries
        self.tap.lost_bytes += data_bytes
        note_unreported(&self.tap)

    def end(self):
        """Ends the recording: the reader gets everything written so far, and nothing more."""
        if self.tap.unreported_entries:
            write_lost_entry(&self.tap, tap_now())
        store_release(word(&self.tap, RING_BROKER_END), 1)

    @property
    def left(self) -> bool:
        """Whether the reader has ended."""
        return load_acquire(word(&self.tap, RING_WRITER_END)) != 0

    @property
    def waiting(self) -> int:
        """Bytes in the ring that the reader has not taken yet."""
        return self.tap.head - load_acquire(word(&self.tap, RING_TAIL))

    @property
    def entries(self) -> int:
        """Number of entries written so far."""
        return self.tap.entries

    @property
    def bytes(self) -> int:
        """Data bytes of the entries written."""
        return self.tap.bytes

    @property
    def lost_entries(self) -> int:
        """Number of entries lost for lack of room."""
        return self.tap.lost_entries

    @property
    def lost_bytes(self) -> int:
        """Data bytes of the lost entries."""
        return self.tap.lost_bytes
