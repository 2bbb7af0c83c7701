"""The broker's end of a recording's ring buffer; entries without room are counted. See docs/internals/recording.md.

    tap_begin ─► room for the data ─► (written by the caller) ─► tap_commit: visible to the reader

One thread writes. Nothing here blocks; the only system call reads the clock. `node.tap` points to a tap_t while
anything is recorded, and that to the next one. There is at most one for each reader: a recording, and a live view.
What a connection has told to the one says nothing about the other (link_t.recording, chunk_t.tapped), so each ring has
what it would have alone.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "memory/tap.h" nogil:
    uint64_t load_acquire "fluxmq_load_acquire"(const uint64_t* at) noexcept
    void store_release "fluxmq_store_release"(uint64_t* at, uint64_t value) noexcept

cdef enum:
    TAP_FILLER = 0
    TAP_OPENED = 1
    TAP_ACCEPTED = 2
    TAP_IN = 3
    TAP_OUT = 4
    TAP_CLOSED = 5
    TAP_LOST = 6

cdef enum:
    TAP_MQTT = 1
    TAP_AMQP091 = 2

cdef enum:
    TAP_PRESENT = 1         # flag: the connection was open when the recording began

cdef enum:                  # tap_t.reader
    READER_RECORDING = 0
    READER_VIEW = 1
    READERS = 2

cdef enum:
    RING_DATA = 4096        # offset of the first entry, behind the header page with these fields:
    RING_CAPACITY = 8
    RING_HEAD = 16
    RING_BROKER_END = 24
    RING_UNREPORTED_ENTRIES = 32
    RING_UNREPORTED_BYTES = 40
    RING_TAIL = 64
    RING_WRITER_END = 72
    ENTRY_HEAD = 32

cdef struct tap_t:
    tap_t* next             # of another reader; NULL: none
    int reader              # READER_*
    uint32_t number         # unique in a run of the broker, from 1: links with it are recorded
    uint8_t* ring           # the mapping
    uint64_t capacity       # of the data, a power of two
    uint64_t head           # bytes ever written
    uint64_t tail           # bytes taken by the reader, as last read
    uint64_t made           # end of the entry being written
    uint64_t entry_max      # bytes; a larger entry is lost
    uint64_t cut            # a run of outbound chunks longer than this becomes several entries
    uint64_t unreported_entries  # lost entries that no LOST entry reports yet
    uint64_t unreported_bytes
    uint64_t entries        # written since the recording began
    uint64_t bytes          # of their data
    uint64_t lost_entries
    uint64_t lost_bytes

cdef int64_t tap_now() noexcept

# Room for `length` bytes of data; NULL: there is none, and the entry is lost. Must be followed by tap_commit.
cdef uint8_t* tap_begin(tap_t* tap, uint8_t kind, uint8_t protocol, uint16_t flags, uint64_t connection, int64_t time,
                        uint64_t length) noexcept
cdef void tap_commit(tap_t* tap) noexcept
cdef void tap_write(tap_t* tap, uint8_t kind, uint8_t protocol, uint16_t flags, uint64_t connection, int64_t time,
                    const uint8_t* data, uint64_t length) noexcept

cdef class Tap:
    cdef tap_t tap
    cdef size_t mapped

    cdef void begin(self, int reader, uint32_t number) noexcept
