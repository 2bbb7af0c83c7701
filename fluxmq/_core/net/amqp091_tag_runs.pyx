# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Machine. Runs of tags that wait to be committed. See net/amqp091_tag_runs.pxd."""
from libc.stdint cimport uint16_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove


cdef tag_run_t* run_at(tag_runs_t* runs, uint32_t index) noexcept:
    return &runs.items[runs.first + index]


cdef inline bint waits_elsewhere(const tag_run_t* run) noexcept:
    """Whether the run waits for another line than the journal."""
    return run.ticket.line != 0 or run.more != NULL


cdef bint joins(const tag_run_t* last, const ticket_t* tickets, uint32_t count) noexcept:
    """Whether a tag with these tickets may extend the run, which then is never decided too early. A tag that waits for
    the journal may join a run that waits for a later batch; one that another line may give up needs its own run."""
    if last.more != NULL or count > 1:
        return 0
    if count == 0:
        return last.ticket.line == 0
    return last.ticket.line == tickets.line and (
        last.ticket.position == tickets.position or tickets.line == 0 and last.ticket.position > tickets.position)


cdef inline bint turns(const tag_run_t* before, const tag_run_t* run) noexcept:
    return (before.more != NULL or run.more != NULL or before.ticket.line != run.ticket.line
            or before.ticket.position > run.ticket.position)


cdef int add_tag(tag_runs_t* runs, const ticket_t* tickets, uint32_t count, uint64_t tag) except -1:
    cdef tag_run_t* grown
    cdef tag_run_t* run
    cdef ticket_t* more = NULL
    cdef uint32_t room
    if (runs.count and run_at(runs, runs.count - 1).tag + 1 == tag
            and joins(run_at(runs, runs.count - 1), tickets, count)):
        run_at(runs, runs.count - 1).tag = tag
        return 0
    if runs.first + runs.count == runs.room:
        if runs.first:
            memmove(runs.items, run_at(runs, 0), runs.count * sizeof(tag_run_t))
            runs.first = 0
        if runs.count == runs.room:
            room = runs.room * 2 + 8
            grown = <tag_run_t*>realloc(runs.items, room * sizeof(tag_run_t))
            if grown == NULL:
                raise MemoryError()
            runs.items = grown
            runs.room = room
    if count > 1:
        more = <ticket_t*>malloc((count - 1) * sizeof(ticket_t))
        if more == NULL:
            raise MemoryError()
        memcpy(more, tickets + 1, (count - 1) * sizeof(ticket_t))
    run = run_at(runs, runs.count)
    run.first = run.tag = tag
    run.ticket = tickets[0] if count else ticket_t(0, 0, 0, 0)
    run.more = more
    run.more_count = count - 1 if count else 0
    run.given_up = 0
    run.turns = runs.count != 0 and turns(run_at(runs, runs.count - 1), run)
    runs.count += 1
    runs.others += waits_elsewhere(run)
    runs.turns += run.turns
    return 0


cdef bint run_done(Commits commits, const tag_run_t* run) noexcept:
    cdef uint32_t i
    if run.ticket.position and not commits.is_done(run.ticket):
        return 0
    for i in range(run.more_count):
        if not commits.is_done(run.more[i]):
            return 0
    return 1


cdef bint run_decided(Commits commits, tag_run_t* run):
    cdef uint32_t i
    cdef uint16_t code = 0
    if not run_done(commits, run):
        return 0
    if waits_elsewhere(run):                # its wait may not have been released yet, so give_up() was not called
        if run.ticket.line and commits.refusal_of(run.ticket, &code) is not None:
            run.given_up = 1
        for i in range(run.more_count):
            if run.more[i].line and commits.refusal_of(run.more[i], &code) is not None:
                run.given_up = 1
    return 1


cdef void drop_first(tag_runs_t* runs) noexcept:
    cdef tag_run_t* run = run_at(runs, 0)
    runs.others -= waits_elsewhere(run)
    free(run.more)
    runs.turns -= run.turns
    runs.count -= 1
    runs.first += 1
    if runs.count:
        run = run_at(runs, 0)
        runs.turns -= run.turns
        run.turns = 0


cdef void empty_run(tag_runs_t* runs, uint32_t index) noexcept:
    cdef tag_run_t* run = run_at(runs, index)
    runs.others -= waits_elsewhere(run)
    free(run.more)
    run.more = NULL
    run.ticket = ticket_t(0, 0, 0, 0)
    run.tag = 0


cdef void close_gaps(tag_runs_t* runs, uint32_t index) noexcept:
    cdef uint32_t i
    cdef tag_run_t* run
    for i in range(index, runs.count):
        run = run_at(runs, i)
        runs.turns -= run.turns
        if run.tag:
            if i != index:
                run_at(runs, index)[0] = run[0]
            run = run_at(runs, index)
            run.turns = index != 0 and turns(run_at(runs, index - 1), run)
            runs.turns += run.turns
            index += 1
    runs.count = index


cdef void give_up(tag_runs_t* runs, uint32_t line, uint64_t position) noexcept:
    cdef tag_run_t* run
    cdef uint32_t i, j
    for i in range(runs.count):
        run = run_at(runs, i)
        if run.ticket.line == line and run.ticket.position == position:
            run.given_up = 1
        for j in range(run.more_count):
            if run.more[j].line == line and run.more[j].position == position:
                run.given_up = 1


cdef void free_runs(tag_runs_t* runs) noexcept:
    cdef uint32_t i
    for i in range(runs.count):
        free(run_at(runs, i).more)
    free(runs.items)
