"""Commits that a channel's confirms and deliveries wait for: runs of tags, each with its tickets (memory/commits).

    runs ── first ─► (tags 1 to 7, batch 12) ─► (8, line 3 position 5) ─► (9 to 11, batch 13)

Runs are ordered by tag. Those that wait for one line have ascending positions and are decided from the front. A run
that waits for another line than the one before it may be decided earlier.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Commits, ticket_t

cdef struct tag_run_t:
    uint64_t first              # the run's tags
    uint64_t tag
    ticket_t ticket             # awaited commit; position 0: none
    ticket_t* more              # owned: further tickets, or NULL
    uint32_t more_count
    uint8_t given_up            # a line gave up one of its tickets
    uint8_t turns               # may be decided before the run in front of it

cdef struct tag_runs_t:
    tag_run_t* items
    uint32_t first
    uint32_t count
    uint32_t room
    uint32_t others             # number of runs that wait for another line than the journal
    uint32_t turns              # number of runs with `turns`; 0: while the first one waits, all do

# Adds `tag`, above all others, which waits for `count` tickets (0: none). Extends the last run where possible.
cdef int add_tag(tag_runs_t* runs, const ticket_t* tickets, uint32_t count, uint64_t tag) except -1
cdef tag_run_t* run_at(tag_runs_t* runs, uint32_t index) noexcept
cdef bint run_done(Commits commits, const tag_run_t* run) noexcept
# Removes the first run.
cdef void drop_first(tag_runs_t* runs) noexcept
# To remove runs in one pass: empty_run() each finished one, then close_gaps() drops all empty ones from an index on.
cdef void empty_run(tag_runs_t* runs, uint32_t index) noexcept
cdef void close_gaps(tag_runs_t* runs, uint32_t index) noexcept
# As run_done; and if one of its lines has given its ticket up, or refused it, it is `given_up`.
cdef bint run_decided(Commits commits, tag_run_t* run)
# A line gave up a position: sets given_up in the runs that wait for it.
cdef void give_up(tag_runs_t* runs, uint32_t line, uint64_t position) noexcept
cdef void free_runs(tag_runs_t* runs) noexcept

cdef inline bint extend_last(tag_runs_t* runs, ticket_t ticket, uint64_t tag) noexcept:
    """Fast path of add_tag: the last run waits for the same ticket, so `tag` extends it, unless a tag between them was
    answered at once, which may not be answered again."""
    cdef tag_run_t* last
    if runs.count == 0:
        return 0
    last = &runs.items[runs.first + runs.count - 1]
    if (last.more != NULL or last.ticket.line != ticket.line or last.ticket.position != ticket.position
            or last.tag + 1 != tag):
        return 0
    last.tag = tag
    return 1
