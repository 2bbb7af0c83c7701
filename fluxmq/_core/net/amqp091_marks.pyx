# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Machine. Runs of tags that wait to be committed. See net/amqp091_marks.pxd."""
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove


cdef mark_t* mark_at(marks_t* marks, uint32_t index) noexcept:
    return &marks.items[marks.first + index]


cdef inline bint waits_elsewhere(const mark_t* mark) noexcept:
    """Whether the run waits for another line than the journal."""
    return mark.ticket.line != 0 or mark.more != NULL


cdef bint joins(const mark_t* last, const ticket_t* tickets, uint32_t count) noexcept:
    """Whether a tag with these tickets may extend the run, which then is never decided too early. A tag that waits for
    the journal may join a run that waits for a later batch; one that another line may give up needs its own run."""
    if last.more != NULL or count > 1:
        return 0
    if count == 0:
        return last.ticket.line == 0
    return last.ticket.line == tickets.line and (
        last.ticket.position == tickets.position or tickets.line == 0 and last.ticket.position > tickets.position)


cdef int add_mark(marks_t* marks, const ticket_t* tickets, uint32_t count, uint64_t tag) except -1:
    cdef mark_t* grown
    cdef mark_t* mark
    cdef ticket_t* more = NULL
    cdef uint32_t room
    if marks.count and joins(mark_at(marks, marks.count - 1), tickets, count):
        mark_at(marks, marks.count - 1).tag = tag
        return 0
    if marks.first + marks.count == marks.room:
        if marks.first:
            memmove(marks.items, mark_at(marks, 0), marks.count * sizeof(mark_t))
            marks.first = 0
        if marks.count == marks.room:
            room = marks.room * 2 + 8
            grown = <mark_t*>realloc(marks.items, room * sizeof(mark_t))
            if grown == NULL:
                raise MemoryError()
            marks.items = grown
            marks.room = room
    if count > 1:
        more = <ticket_t*>malloc((count - 1) * sizeof(ticket_t))
        if more == NULL:
            raise MemoryError()
        memcpy(more, tickets + 1, (count - 1) * sizeof(ticket_t))
    mark = mark_at(marks, marks.count)
    mark.first = mark.tag = tag
    mark.ticket = tickets[0] if count else ticket_t(0, 0, 0)
    mark.more = more
    mark.more_count = count - 1 if count else 0
    mark.given_up = 0
    marks.count += 1
    marks.others += waits_elsewhere(mark)
    return 0


cdef bint mark_done(Commits commits, const mark_t* mark) noexcept:
    cdef uint32_t i
    if mark.ticket.position and not commits.is_done(mark.ticket):
        return 0
    for i in range(mark.more_count):
        if not commits.is_done(mark.more[i]):
            return 0
    return 1


cdef void drop_first(marks_t* marks) noexcept:
    cdef mark_t* mark = mark_at(marks, 0)
    marks.others -= waits_elsewhere(mark)
    free(mark.more)
    marks.count -= 1
    marks.first += 1


cdef void empty_mark(marks_t* marks, uint32_t index) noexcept:
    cdef mark_t* mark = mark_at(marks, index)
    marks.others -= waits_elsewhere(mark)
    free(mark.more)
    mark.more = NULL
    mark.ticket = ticket_t(0, 0, 0)
    mark.tag = 0


cdef void close_gaps(marks_t* marks, uint32_t index) noexcept:
    cdef uint32_t i
    for i in range(index, marks.count):
        if mark_at(marks, i).tag:
            if i != index:
                mark_at(marks, index)[0] = mark_at(marks, i)[0]
            index += 1
    marks.count = index


cdef void give_up_marks(marks_t* marks, uint32_t line, uint64_t position) noexcept:
    cdef mark_t* mark
    cdef uint32_t i, j
    for i in range(marks.count):
        mark = mark_at(marks, i)
        if mark.ticket.line == line and mark.ticket.position == position:
            mark.given_up = 1
        for j in range(mark.more_count):
            if mark.more[j].line == line and mark.more[j].position == position:
                mark.given_up = 1


cdef void free_marks(marks_t* marks) noexcept:
    cdef uint32_t i
    for i in range(marks.count):
        free(mark_at(marks, i).more)
    free(marks.items)
