"""Which messages of a log are not committed yet: spans of offsets, each with its position in the log's commit line."""
from libc.stdint cimport uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Line, ticket_t

cdef struct span_of_t:          # offsets from `first` on, up to the next span
    uint64_t position
    uint64_t first

cdef struct spans_t:            # ascending; those that are committed go when the next begins
    span_of_t* items
    uint32_t count
    uint32_t room

# The message at an offset, the next, has been given to the line.
cdef int spans_add(spans_t* spans, Line line, uint64_t offset) except -1
# What must be committed before the message at an offset may be shown to anybody; position 0: it is.
cdef ticket_t spans_wait(const spans_t* spans, Line line, uint64_t offset) noexcept
# The first offset that is not committed; `next`, which the next message gets, where all are.
cdef uint64_t spans_end(const spans_t* spans, Line line, uint64_t next) noexcept
