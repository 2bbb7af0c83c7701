"""Commits that a channel's confirms and deliveries wait for: runs of tags, each with its tickets (memory/commits).

    marks ── first ─► (tags 1 to 7, batch 12) ─► (8, line 3 position 5) ─► (9 to 11, batch 13)

Runs are ordered by tag. If all wait for the journal, their positions ascend too and runs are decided from the front. A
run that waits for another line may be decided before an earlier run.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Commits, ticket_t

cdef struct mark_t:
    uint64_t first              # the run's tags
    uint64_t tag
    ticket_t ticket             # awaited commit; position 0: none
    ticket_t* more              # owned: further tickets, or NULL
    uint32_t more_count
    uint32_t given_up           # a line gave up one of its tickets

cdef struct marks_t:
    mark_t* items
    uint32_t first
    uint32_t count
    uint32_t room
    uint32_t others             # number of runs that wait for another line than the journal

# Adds `tag`, the next one, which waits for `count` tickets (0: none). Extends the last run where possible.
cdef int add_mark(marks_t* marks, const ticket_t* tickets, uint32_t count, uint64_t tag) except -1
cdef mark_t* mark_at(marks_t* marks, uint32_t index) noexcept
cdef bint mark_done(Commits commits, const mark_t* mark) noexcept
# Removes the first run.
cdef void drop_first(marks_t* marks) noexcept
# To remove runs in one pass: empty_mark() each finished one, then close_gaps() drops all empty ones from an index on.
cdef void empty_mark(marks_t* marks, uint32_t index) noexcept
cdef void close_gaps(marks_t* marks, uint32_t index) noexcept
# A line gave up a position: sets given_up in the runs that wait for it.
cdef void give_up_marks(marks_t* marks, uint32_t line, uint64_t position) noexcept
cdef void free_marks(marks_t* marks) noexcept

cdef inline bint extend_last(marks_t* marks, ticket_t ticket, uint64_t tag) noexcept:
    """Fast path of add_mark: the last run waits for the same ticket, so `tag` extends it."""
    cdef mark_t* last
    if marks.count == 0:
        return 0
    last = &marks.items[marks.first + marks.count - 1]
    if last.more != NULL or last.ticket.line != ticket.line or last.ticket.position != ticket.position:
        return 0
    last.tag = tag
    return 1
