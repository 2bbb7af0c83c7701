"""Tickets of work that goes over several turns, such as a SUBSCRIBE of thousands of filters: each of its steps says
what it gave to commit lines, in the turn in which it did. The answer at the end waits for that, and for nothing that
others gave meanwhile, so a line that stands still holds up only those who used it.

    with tickets: step ──► tickets ──► a wait in the ring of each line ─┬─► decided: dropped here
    with tickets: step ──► tickets ──► …                                └─► given up: `why`
    answer ──► Commits.needed: tickets that are left ──► Commits.hold_needed, queue_call

What a connection has left unanswered when it ends is kept in the same way (Session.unanswered).
"""
from libc.stdint cimport uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Commits, Line, Waiter, ticket_t
from fluxmq._core.memory.link cimport link_t

cdef class Tickets(Waiter):
    """Collects the tickets of one piece of work."""
    cdef readonly str why       # a line gave up one of them, for this reason: the work is refused; None: none did
    cdef Line local             # line 0, which knows the node's Commits, and gives up nothing
    cdef uint64_t journal       # newest position of line 0; 0: none
    cdef uint64_t since         # Commits.mark when the present step began
    cdef ticket_t* items        # of other lines, those not decided yet: of each line in ascending order
    cdef uint32_t count
    cdef uint32_t room

    # Raises UsageError when the node has ended.
    cdef Commits commits(self)
    # Adds what was given since a mark of this turn.
    cdef int add(self, uint64_t since) except -1
    # Adds what the answers of a link wait for.
    cdef int add_answers(self, link_t* link) except -1
    # Puts what is left into Commits.needed. Returns how many.
    cdef int collect(self) except -1
    # Adds it to what Commits.needed has.
    cdef int need(self) except -1
    cdef int take_needed(self, Commits commits) except -1
    cdef bint has(self, ticket_t ticket) noexcept
    cdef int keep(self, ticket_t ticket) except -1
    cdef void drop(self, uint32_t line, uint64_t position) noexcept
