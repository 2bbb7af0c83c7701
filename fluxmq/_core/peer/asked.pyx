# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. What the receiver of a stream answers in a channel. See peer/asked.pxd."""
from collections import deque

cimport cython
from libc.stdint cimport uint32_t

from fluxmq._core.memory.commits cimport HELD_CALL, ticket_t
from fluxmq._core.mqtt.consts cimport REASON_UNSPECIFIED_ERROR
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["Asked"]


@cython.final
cdef class AskedWait:
    """Value. What a frame has for a channel."""
    cdef void* asked            # borrowed, NULL once it is gone: Commits would keep it and the hub alive otherwise
    cdef uint64_t number
    cdef uint64_t upto
    cdef list barriers
    cdef uint32_t missing       # lines that have not decided their parts
    cdef bint undone            # something that is no publish was given up


@cython.final
cdef class AskedPart:
    """Value. What of that is for one line. Called when all of it is decided, before the line forgets what it has
    refused."""
    cdef AskedWait wait
    cdef Line line
    cdef list given             # (position in the line, [publishes], asked_kind)

    def __call__(self):
        if self.wait.asked != NULL:
            (<Asked>self.wait.asked).look(self)

    def refused(self, str why not None):
        """Some of it was."""
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
        cdef int kind = ASKED_PUBLISHES if position else ASKED_MORE
        cdef tuple last = self.lines[len(self.lines) - 1] if self.lines else None
        if last is None or last[0] is not line or last[1] != at or last[3] != kind:
            last = (line, at, [], kind)
            self.lines.append(last)
        if position:
            last[2].append(position)
        return 0

    cdef int note_sent(self, Line line, uint64_t at, uint64_t position, asked_kind kind) except -1:
        self.sent.append((line, at, [position] if position else [], <int>kind))
        return 0

    cdef int close_frame(self, Commits commits) except -1:
        cdef AskedWait wait = AskedWait.__new__(AskedWait)
        cdef AskedPart part
        cdef dict parts = {}
        cdef list early = []
        cdef Line line
        cdef uint64_t at, first
        wait.asked = <void*>self
        self.last += 1
        wait.number = self.last
        wait.upto = self.upto
        wait.barriers = self.barriers
        for line, at, positions, kind in self.lines + self.sent:
            if at > line.newest():              # nothing was given at the position that gathered
                at = line.newest()
                if at <= line.done() and not line.releases():
                    continue
            part = parts.get(line)
            if part is None:
                part = parts[line] = AskedPart.__new__(AskedPart)
                part.wait, part.line, part.given = wait, line, []
            part.given.append((at, positions, kind))
        self.lines = []
        self.sent = []
        self.barriers = []
        self.upto = 0
        self.used = False
        self.waits.append(wait)
        for line, part in parts.items():
            at, first = max(part.given)[0], min(part.given)[0]
            wait.missing += 1
            # What is decided may not be released: deliveries that are taken back leave ahead of COMMITTED.
            if at > line.done() or line.releases():
                commits.hold_at(ticket_t(at, line.number, 1, fit_u32(at - first)), HELD_CALL, NULL,
                                (part, part.refused), 0, 0)
            else:
                early.append(part)
        for part in early:
            self.look(part)
        return self.tell()

    cdef int look(self, object decided) except -1:
        cdef AskedPart part = <AskedPart>decided
        cdef AskedWait wait = part.wait
        cdef uint16_t code
        cdef str why
        for at, positions, kind in part.given:
            code = 0
            why = part.line.refusal(at, 0, &code)
            if why is None:
                continue
            for position in positions:
                self.refuse(position, code, why, False)
            if kind == ASKED_MORE:
                self.lose(wait, why)
        wait.missing -= 1
        return self.tell() if wait.missing == 0 else 0

    cdef int lose(self, object undone, str why) except -1:
        """Barriers of this frame, and of those that have come since, are refused."""
        cdef AskedWait wait = <AskedWait>undone
        wait.undone = True
        self.lost_first = wait.number if self.lost is None else min(self.lost_first, wait.number)
        self.lost_last = self.last
        self.lost = why
        return 0

    cdef int tell(self) except -1:
        """Answers what is decided, in the order of the frames."""
        cdef AskedWait wait
        cdef uint64_t upto = 0
        while self.waits and (<AskedWait>self.waits[0]).missing == 0:
            wait = self.waits.popleft()
            if self.lost is not None and wait.number >= self.lost_first:
                for position in wait.barriers:
                    self.refuse(position, 0, self.lost, wait.undone)
                if wait.number >= self.lost_last:
                    self.lost = None
            upto = wait.upto or upto
        if upto and self.outbox.takes_queues():
            self.outbox.take_committed(self.number, upto)
        return 0

    cdef int refuse(self, uint64_t position, uint16_t code, str why, bint undone) except -1:
        if self.outbox.takes_queues():
            self.outbox.take_refusal(self.number, position, code if code else <uint16_t>REASON_UNSPECIFIED_ERROR,
                                     why.encode(), undone)
        return 0
