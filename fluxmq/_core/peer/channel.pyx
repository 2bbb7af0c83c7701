# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. What a sender waits for by itself at another node. See peer/channel.pxd."""
from collections import deque

cimport cython

from fluxmq._core.memory.commits cimport Commits

__all__ = ["Channel"]


@cython.final
cdef class Channel(PeerHop):
    """Machine. number: in the stream. group: which it is for. line: of the positions. limit: bytes that may be
    undecided before its publishers wait."""

    def __cinit__(self, uint16_t number, uint64_t group, Line line not None, uint64_t limit):
        self.number = number
        self.group = group
        self.line = line
        self.limit = limit
        self.marks = deque()
        self.kept = deque()
        self.behind = {}

    cdef int close_frame(self, uint64_t frame, bytes settlements, bint own) except -1:
        cdef uint64_t bytes_before = 0
        cdef uint64_t first = frame
        if self.settled:
            self.kept.append((self.barrier, frame, settlements or b"", own))
            self.waiting_bytes += <uint64_t>len(settlements or b"")
        if own:
            self.own_barrier = self.barrier
            self.own_turn = (<Commits>self.line.commits).turn_mark
        if self.marks and <uint64_t>self.marks[len(self.marks) - 1][1] == self.line.at - 1:
            first, _, bytes_before = self.marks.pop()       # nobody waits for what has come since: it goes with that
        self.marks.append((first, self.line.at - 1, bytes_before + self.gathered))
        self.waiting_bytes += self.gathered
        self.gathered = 0
        self.used = self.settled = self.open = False
        return 0

    cdef int note_barrier(self, uint64_t position, uint64_t turn) except -1:
        self.barrier = position
        self.open = False
        if self.own_barrier > self.told and self.own_turn == turn:
            self.behind.setdefault(self.own_barrier, []).append(position)
        return 0

    cdef int committed(self, uint64_t position) except -1:
        self.told = max(self.told, position)
        if self.behind:
            self.behind = {barrier: those for barrier, those in self.behind.items() if barrier > position}
        while self.marks and <uint64_t>self.marks[0][1] <= position:
            self.waiting_bytes -= <uint64_t>self.marks.popleft()[2]
        while self.kept and <uint64_t>self.kept[0][0] <= position:
            self.waiting_bytes -= <uint64_t>len(self.kept.popleft()[2])
        return 0

    cdef bytes take_refused(self, uint64_t barrier, bint undone, bint* own):
        cdef Py_ssize_t i
        own[0] = False
        for i in range(<Py_ssize_t>len(self.kept)):     # usually the first
            if <uint64_t>self.kept[i][0] >= barrier:
                if <uint64_t>self.kept[i][0] > barrier:
                    return None
                _, frame, settlements, alone = self.kept[i]
                own[0] = alone
                if not undone:
                    return None
                self.kept[i] = barrier, frame, b"", alone
                self.waiting_bytes -= <uint64_t>len(settlements)
                return settlements
        return None

    cdef int give_up_before(self, uint64_t frame, str why) except -1:
        cdef uint64_t upto = 0 if frame else self.line.at - 1
        for made, position, _ in self.marks:
            if <uint64_t>made < frame:
                upto = position
        if upto > self.line.decided:
            self.line.give_up(why, upto)
        return 0

    cdef int forget_ended(self) except -1:
        for connection in [one for one in self.paused or () if not one.paused]:
            del self.paused[connection]
        return 0

    cdef list lose(self, uint64_t frame, str why):
        cdef list found = []
        self.give_up_before(frame + 1, why)
        while self.marks and <uint64_t>self.marks[0][0] <= frame:
            self.waiting_bytes -= <uint64_t>self.marks.popleft()[2]
        while self.kept and <uint64_t>self.kept[0][1] <= frame:
            found.append(self.kept.popleft()[2])
            self.waiting_bytes -= <uint64_t>len(found[len(found) - 1])
        return found
