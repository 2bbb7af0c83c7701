# The bytes of segment files: constants, and the index of a file. The drawing is at the top of the .pyx; what
# a message looks like inside a batch is drawn in queue/log.pxd.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    SEGMENT_VERSION = 1
    SEGMENT_HEADER_BYTES = 48
    SEGMENT_BATCH_BYTES = 80            # header of a batch
    SEGMENT_INDEX_BYTES = 32            # header of the index
    SEGMENT_ENTRY_BYTES = 56
    SEGMENT_TRAILER_BYTES = 64
    SEGMENT_MESSAGE_BYTES = 48          # head of a message
    # One batch, raw or stored. A block is up to 64 KiB or one message, and a message is never larger than a packet.
    SEGMENT_BLOCK_BYTES_MAX = 1 << 29

# One batch in the index.
cdef struct entry_t:
    uint64_t first
    uint64_t last
    uint64_t position           # of its header in the file
    int64_t time_max
    int64_t due_min
    int64_t due_max
    uint32_t raw                # bytes of messages
    uint32_t count

cdef class SegmentIndex:
    """Where the batches of one file stand. Invariant: ascending in first, last and position; batches follow each other
    without gaps, so each ends where the next begins and the last one at `end`."""
    cdef readonly uint64_t end
    cdef readonly uint64_t messages
    cdef readonly uint64_t raw          # bytes of messages in all
    cdef readonly int64_t time_max
    cdef readonly int64_t due_max
    cdef entry_t* entries
    cdef uint32_t count
    cdef uint32_t room

    cdef int append(self, const entry_t* entry, uint64_t end) except -1
