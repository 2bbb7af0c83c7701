"""Messages of a log that are not committed yet: spans of offsets, each with its position in the log's commit line."""
from libc.stdint cimport uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Line, ticket_t

cdef struct span_of_t:          # offsets from `first` on, up to the next span
    uint64_t position
    uint64_t first

cdef struct spans_t:            # ascending; committed ones are removed when the next one begins
    span_of_t* items
    uint32_t count
    uint32_t room

# The next message, which has this offset, was given to the line.
cdef int spans_add(spans_t* spans, Line line, uint64_t offset) except -1
# The commit required before the message at `offset` may be delivered; position 0: none.
cdef ticket_t spans_wait(const spans_t* spans, Line line, uint64_t offset) noexcept
# The first offset that is not committed; `next` (the next message's offset) if all are.
cdef uint64_t spans_end(const spans_t* spans, Line line, uint64_t next) noexcept
