"""What a channel's confirms and deliveries wait for: runs of tags, each with the tickets (memory/commits) it waits for.

    marks ── first ─► (tags 1 to 7, batch 12) ─► (8, line 3 position 5) ─► (9 to 11, batch 13)

Runs stand in the order of their tags. With the journal alone their positions ascend too, and what is decided is always
at the front; a run of another line may be decided behind one that is not.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Commits, ticket_t

cdef struct mark_t:
    uint64_t first              # the run's tags
    uint64_t tag
    ticket_t ticket             # what it waits for; position 0: nothing by itself
    ticket_t* more              # owned: further tickets, or NULL
    uint32_t more_count
    uint32_t given_up           # a line gave up one of its tickets

cdef struct marks_t:
    mark_t* items
    uint32_t first
    uint32_t count
    uint32_t room
    uint32_t others             # how many of them wait for another line than the journal

# `tag`, which is the next, waits for tickets: none (count 0), or `count` of them. Joins the last run where it may.
cdef int add_mark(marks_t* marks, const ticket_t* tickets, uint32_t count, uint64_t tag) except -1
cdef mark_t* mark_at(marks_t* marks, uint32_t index) noexcept
cdef bint mark_done(Commits commits, const mark_t* mark) noexcept
# Removes the first run.
cdef void drop_first(marks_t* marks) noexcept
# Removes runs in one walk: `empty_mark` those that are over, then `close_gaps` all that are empty from an index on.
cdef void empty_mark(marks_t* marks, uint32_t index) noexcept
cdef void close_gaps(marks_t* marks, uint32_t index) noexcept
# A position was given up: the runs that wait for it say so.
cdef void give_up_marks(marks_t* marks, uint32_t line, uint64_t position) noexcept
cdef void free_marks(marks_t* marks) noexcept

cdef inline bint extend_last(marks_t* marks, ticket_t ticket, uint64_t tag) noexcept:
    """What add_mark does most of the time: the last run waits for the same ticket, and `tag` joins it."""
    cdef mark_t* last
    if marks.count == 0:
        return 0
    last = &marks.items[marks.first + marks.count - 1]
    if last.more != NULL or last.ticket.line != ticket.line or last.ticket.position != ticket.position:
        return 0
    last.tag = tag
    return 1
