# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Machine. See memory/spans.pxd. A log whose line is the journal has at most two spans, because only two batches are
not committed: one gathers records, the other is being written."""
from libc.stdlib cimport realloc
from libc.string cimport memmove


cdef int spans_add(spans_t* spans, Line line, uint64_t offset) except -1:
    cdef span_of_t* grown
    cdef uint32_t room
    cdef uint32_t committed = 0
    cdef uint64_t position = line.gathering()
    if spans.count and spans.items[spans.count - 1].position == position:
        return 0
    while committed < spans.count and spans.items[committed].position <= line.done():
        committed += 1
    if committed:
        spans.count -= committed
        memmove(spans.items, spans.items + committed, spans.count * sizeof(span_of_t))
    if spans.count == spans.room:
        room = spans.room * 2 if spans.room else 2
        grown = <span_of_t*>realloc(spans.items, room * sizeof(span_of_t))
        if grown == NULL:
            raise MemoryError()
        spans.items = grown
        spans.room = room
    spans.items[spans.count] = span_of_t(position, offset)
    spans.count += 1
    return 0


cdef ticket_t spans_wait(const spans_t* spans, Line line, uint64_t offset) noexcept:
    cdef uint32_t i = spans.count
    while i and spans.items[i - 1].position > line.done():
        i -= 1
        if offset >= spans.items[i].first:
            return ticket_t(spans.items[i].position, line.number, 1, 0)
    return ticket_t(0, 0, 0, 0)


cdef uint64_t spans_end(const spans_t* spans, Line line, uint64_t next) noexcept:
    cdef uint32_t i = spans.count
    while i and spans.items[i - 1].position > line.done():
        i -= 1
        next = spans.items[i].first
    return next
