"""The broker's end of a recording's ring: entries in, what does not fit counted. See docs/internals/recording.md.

    tap_begin ─► where the data goes ─► (written by the caller) ─► tap_commit: the reader sees it

One thread writes. Nothing here waits or asks the kernel for anything but the time. `node.tap` points to the tap_t while
a recording runs.
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
    TAP_PRESENT = 1         # flag: the connection was there when the recording began

cdef enum:
    RING_DATA = 4096        # where entries begin; before it, the ring's own page:
    RING_CAPACITY = 8
    RING_HEAD = 16
    RING_BROKER_END = 24
    RING_UNTOLD_ENTRIES = 32
    RING_UNTOLD_BYTES = 40
    RING_TAIL = 64
    RING_WRITER_END = 72
    ENTRY_HEAD = 32

cdef struct tap_t:
    uint8_t* ring           # the mapping
    uint64_t capacity       # of the data, a power of two
    uint64_t head           # bytes ever written
    uint64_t tail           # bytes taken, as last looked at
    uint64_t made           # the entry that is being written ends here
    uint64_t entry_max      # bytes; a larger one is lost
    uint64_t cut            # a run of outbound chunks longer than this becomes several entries
    uint64_t untold_entries     # lost, and no LOST entry says so yet
    uint64_t untold_bytes
    uint64_t entries        # written since the recording began
    uint64_t bytes          # of their data
    uint64_t lost_entries
    uint64_t lost_bytes

cdef int64_t tap_now() noexcept

# Where `length` bytes of data go; NULL: there is no room, and the entry is lost. Must be followed by tap_commit.
cdef uint8_t* tap_begin(tap_t* tap, uint8_t kind, uint8_t protocol, uint16_t flags, uint64_t connection, int64_t time,
                        uint64_t length) noexcept
cdef void tap_commit(tap_t* tap) noexcept
cdef void tap_write(tap_t* tap, uint8_t kind, uint8_t protocol, uint16_t flags, uint64_t connection, int64_t time,
                    const uint8_t* data, uint64_t length) noexcept

cdef class Tap:
    cdef tap_t tap
    cdef size_t mapped
