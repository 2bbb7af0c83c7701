# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. What the receiver of a stream answers in a channel. See peer/asked.pxd."""
from collections import deque

cimport cython
from libc.stdint cimport uint32_t

from fluxmq._core.memory.commits cimport ticket_t
from fluxmq._core.mqtt.consts cimport REASON_UNSPECIFIED_ERROR

__all__ = ["Asked"]


@cython.final
cdef class AskedWait:
    """Value. What a frame has for a channel. Called when all of that is decided."""
    cdef void* asked            # borrowed, NULL once it is gone: Commits would keep it and the hub alive otherwise
    cdef uint64_t number
    cdef uint64_t upto
    cdef list lines             # (line, position in it, [publishes], whether it is more than these)
    cdef list barriers
    cdef bint decided

    def __call__(self):
        if self.asked != NULL:
            (<Asked>self.asked).decide(self)

    def refused(self, str why not None):
        """A part of it was."""
        self()


@cython.no_gc_clear         # deallocation needs `waits`
@cython.final
cdef class Asked:
    """Machine. number: of the channel. outbox: to the node that asks."""

    def __cinit__(self, uint16_t number, PeerOutbox outbox not None):
        self.number = number
        self.outbox = outbox
        self.lines = []
        self.sent = []
        self.barriers = []
        self.waits = deque()

    def __dealloc__(self):
        cdef AskedWait wait
        for wait in self.waits or ():
            wait.asked = NULL

    cdef int note(self, Line line, uint64_t position) except -1:
        cdef uint64_t at = line.gathering()
        cdef tuple last = self.lines[len(self.lines) - 1] if self.lines else None
        if last is None or last[0] is not line or last[1] != at:
            last = (line, at, [])
            self.lines.append(last)
        if position:
            last[2].append(position)
        return 0

    cdef int note_sent(self, Line line, uint64_t at, uint64_t position) except -1:
        self.sent.append((line, at, position))
        return 0

    cdef int close_frame(self, Commits commits) except -1:
        cdef AskedWait wait = AskedWait.__new__(AskedWait)
        cdef Line line
        cdef uint64_t at
        wait.asked = <void*>self
        self.last += 1
        wait.number = self.last
        wait.upto = self.upto
        wait.barriers = self.barriers
        wait.lines = []
        commits.needed_count = 0
        for line, at, positions in self.lines:
            if at > line.newest():              # nothing was given at the position that gathered
                at = line.newest()
                if at <= line.done():
                    continue
            wait.lines.append((line, at, positions, True))
        for line, at, position in self.sent:
            wait.lines.append((line, at, [position] if position else [], position == 0))
        for line, at, _, _ in wait.lines:
            if at > line.done():
                commits.need(ticket_t(at, line.number, 1, 0))
        self.lines = []
        self.sent = []
        self.barriers = []
        self.upto = 0
        self.used = False
        self.waits.append(wait)
        if commits.needed_count:
            commits.queue_call((wait, wait.refused))
        else:
            self.decide(wait)
        return 0

    cdef int decide(self, object decided) except -1:
        cdef AskedWait wait = <AskedWait>decided
        cdef uint64_t upto = 0
        cdef uint16_t code
        cdef str why
        wait.decided = True
        for line, at, positions, more in wait.lines:
            code = 0
            why = (<Line>line).refusal(at, 0, &code)
            if why is None:
                continue
            for position in positions:
                self.refuse(position, code, why)
            if more:
                self.lost_first = wait.number if self.lost is None else min(self.lost_first, wait.number)
                self.lost_last = self.last
                self.lost = why
        while self.waits and (<AskedWait>self.waits[0]).decided:
            wait = self.waits.popleft()
            if self.lost is not None and wait.number >= self.lost_first:
                for position in wait.barriers:
                    self.refuse(position, 0, self.lost)
                if wait.number >= self.lost_last:
                    self.lost = None
            upto = wait.upto or upto
        if upto and self.outbox.takes_queues():
            self.outbox.take_committed(self.number, upto)
        return 0

    cdef int refuse(self, uint64_t position, uint16_t code, str why) except -1:
        if self.outbox.takes_queues():
            self.outbox.take_refusal(self.number, position, code if code else <uint16_t>REASON_UNSPECIFIED_ERROR,
                                     why.encode())
        return 0
