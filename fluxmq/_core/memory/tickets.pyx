# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Machine. See memory/tickets.pxd.

Each ticket has a wait of its own from the turn in which it was given (HELD_NOTIFY). Looking at the end would be too
late: a line remembers only for some time what it gave up.
"""
cimport cython
from libc.stdint cimport uint16_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from fluxmq._core.memory.commits cimport HELD_NOTIFY

from fluxmq._core.errors import UsageError

__all__ = ["Tickets"]


@cython.final
@cython.no_gc_clear             # what waits in a ring may be told after a collection
cdef class Tickets(Waiter):
    """`with tickets:` around each step. What Transport.write_when_decided and Hub.when_decided are then given."""

    def __cinit__(self, Commits commits not None):
        self.local = commits.local

    def __dealloc__(self):
        free(self.items)

    def __enter__(self):
        self.since = self.commits().mark
        return self

    def __exit__(self, kind, error, traceback):
        self.add(self.since)

    cdef Commits commits(self):
        if self.local.commits == NULL:
            raise UsageError("tickets of a node that has ended")
        return <Commits>self.local.commits

    cdef int add(self, uint64_t since) except -1:
        cdef Commits commits = self.commits()
        commits.collect(since)
        return self.take_needed(commits)

    cdef int add_answers(self, link_t* link) except -1:
        cdef Commits commits = self.commits()
        commits.needed_count = 0
        commits.need_elders(link)
        return self.take_needed(commits)

    cdef int take_needed(self, Commits commits) except -1:
        cdef ticket_t ticket
        cdef uint32_t i
        for i in range(commits.needed_count):
            ticket = commits.needed[i]
            if ticket.line == 0:
                self.journal = max(self.journal, ticket.position)
            elif not self.has(ticket):
                self.keep(ticket)
                commits.hold_at(ticket, HELD_NOTIFY, NULL, self, 0, 0)
        return 0

    cdef int collect(self) except -1:
        cdef Commits commits = self.commits()
        commits.needed_count = 0
        self.need()
        return commits.needed_count

    cdef int need(self) except -1:
        cdef Commits commits = self.commits()
        cdef uint32_t i
        if self.journal > self.local.done():
            commits.need_also(ticket_t(self.journal, 0, 1, 0))
        for i in range(self.count):     # not need(): what others gave in between may be refused to them
            commits.need_also(self.items[i])
        return 0

    cdef bint has(self, ticket_t ticket) noexcept:
        """Whether an earlier step of this turn had it."""
        cdef uint32_t i
        for i in range(self.count, 0, -1):
            if self.items[i - 1].line == ticket.line:
                return self.items[i - 1].position == ticket.position and self.items[i - 1].span >= ticket.span
        return False

    cdef int keep(self, ticket_t ticket) except -1:
        cdef uint32_t room = self.room * 2 if self.room else 8
        cdef ticket_t* grown
        if self.count == self.room:
            grown = <ticket_t*>realloc(self.items, room * sizeof(ticket_t))
            if grown == NULL:
                raise MemoryError()
            self.items = grown
            self.room = room
        self.items[self.count] = ticket
        self.count += 1
        return 0

    cdef void drop(self, uint32_t line, uint64_t position) noexcept:
        cdef uint32_t i
        for i in range(self.count):
            if self.items[i].line == line and self.items[i].position == position:
                self.count -= 1
                memmove(&self.items[i], &self.items[i + 1], (self.count - i) * sizeof(ticket_t))
                return

    cdef int on_committed(self, uint32_t line, uint64_t position) except -1:
        self.drop(line, position)
        return 0

    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1:
        self.drop(line, position)
        self.why = why if self.why is None else self.why
        return 0
