# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Divides room among consumers. See queue/shared_room.pxd."""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["SharedRoom", "Taker"]

cdef enum:
    HUNGRY_MS = 1000


cdef class Taker:
    """Machine. See queue/shared_room.pxd."""

    cdef uint32_t taken(self) noexcept:
        return 0

    cdef uint32_t told_room(self) noexcept:
        return 0

    cdef uint32_t own_room(self) noexcept:
        return 0

    cdef uint32_t waits(self) noexcept:
        return 0

    cdef uint32_t may_wait(self) noexcept:
        return 0

    cdef bint fixed(self) noexcept:
        return 1

    cdef int tell_room(self, uint32_t room) except -1:
        raise NotImplementedError

    cdef bint must_tell(self) noexcept:
        return 0

    def wake(self):
        """Lets the room be divided in this turn."""


@cython.final
cdef class SharedRoom:
    """Machine. One channel's, or one session's."""

    def __cinit__(self):
        self.takers = []

    cdef int add(self, Taker taker) except -1:
        cdef Py_ssize_t at = len(self.takers)
        while at > 0 and (<Taker>self.takers[at - 1]).unit is not taker.unit:
            at -= 1
        self.takers.insert(at if at else len(self.takers), taker)
        taker.shared = self
        self.stale = True
        return 0

    cdef int remove(self, Taker taker) except -1:
        self.takers.remove(taker)
        taker.shared = None
        self.changed()
        return 0

    def changed(self):
        """There is more or less room, for another reason than messages that came to these consumers."""
        self.stale = True
        for taker in self.takers:
            taker.wake()

    cdef int divide(self, uint32_t room, int64_t now_ms) except -1:
        cdef Taker taker
        cdef Py_ssize_t at = 0
        cdef uint32_t left                      # not given to any unit
        cdef uint32_t least = 0                 # of a unit that could get nothing else
        cdef uint32_t hungry = 0
        cdef uint32_t others = 0                # units that could take something, and are not hungry
        cdef uint64_t of_hungry = 0             # messages that they hold
        cdef uint64_t of_others = 0
        cdef uint64_t limit                     # of a unit that has its part: what it holds, and room
        cdef uint32_t spare                     # what is left over, since some can take less than their part
        cdef uint32_t given, more
        self.stale = False
        self.room_then = room
        for taker in self.takers:
            room += taker.may_wait()
        left = room
        self.measure(room, now_ms)
        for taker in self.takers:
            left -= min(left, taker.waits())
        if left:
            least = 1
        for taker in self.takers:
            if taker.fixed():
                left -= min(left, taker.share)
        while at < len(self.takers):
            taker = <Taker>self.takers[at]
            if taker.hungry and taker.wants:
                hungry += 1
                of_hungry += taker.holds
            elif not taker.hungry and taker.wants:
                others += 1
                of_others += taker.holds
            at += taker.size
        limit = part_of(left + of_hungry, hungry) if hungry else part_of(left + of_others, others)
        at = 0
        spare = left
        while at < len(self.takers):
            taker = <Taker>self.takers[at]
            if taker.hungry or not hungry:
                spare -= min(spare, room_in(taker, limit))
            at += taker.size
        at = 0
        left -= spare
        while at < len(self.takers):
            taker = <Taker>self.takers[at]
            given = 0
            if taker.wants and hungry and not taker.hungry:
                given = least
            elif taker.wants:
                given = min(room_in(taker, limit), left)
                left -= given
                more = min(spare, taker.wants - given)
                spare -= more
                given += more
                if taker.holds == 0:
                    given = max(given, least)
            self.share_out(at, given)
            at += taker.size
        return self.tell()

    cdef int tell(self) except -1:
        """Tells owners their shares. The sum of what they know need not be exact while it is not above the shares."""
        cdef Taker taker
        cdef uint32_t told
        cdef bint waits = 0
        cdef uint64_t after = 0                 # sum of what owners know when those that need more have been told
        cdef uint64_t shares = 0
        cdef bint hungry = 0
        cdef uint32_t behind = 0
        for taker in self.takers:
            told = taker.told_room()
            waits = waits or taker.waits() != 0
            shares += taker.share
            after += taker.share if needs_more(taker, told) else told
        for taker in self.takers:
            if behind == 0:                     # the first of a unit
                behind = taker.size
                hungry = taker.hungry
            behind -= 1
            told = taker.told_room()
            # One that is not hungry may keep 1 while there is no room at all, which comes and goes; unless something
            # waits for room: else what has come to this one and was settled may be followed by the next ahead of that.
            if not taker.fixed() and (taker.must_tell() or needs_more(taker, told) or (
                    taker.share < told and (after > shares or taker.share == 0) and (hungry or waits or told > 1))):
                taker.tell_room(taker.share)
        return 0

    cdef void measure(self, uint32_t room, int64_t now_ms) noexcept:
        """For each consumer what it could take, or what its owner knows if that is fixed; for each unit the sums."""
        cdef Taker taker
        cdef Taker first = None
        for taker in self.takers:
            if first is None or taker.unit is not first.unit:
                first = taker
                first.size = first.takers = first.wants = first.holds = 0
                first.hungry = False
            first.size += 1
            taker.held_then = taker.taken()
            first.holds += taker.held_then
            if taker.fixed():
                taker.share = taker.told_room()
                continue
            taker.share = min(taker.own_room(), room)
            if taker.share:
                first.takers += 1
                first.wants = min(first.wants + taker.share, room)
            # Also while there is no room: it has what it asks for when there is.
            first.hungry = first.hungry or (taker.hungry_ms != 0 and now_ms - taker.hungry_ms < HUNGRY_MS)

    cdef void share_out(self, Py_ssize_t first, uint32_t room) noexcept:
        """Divides the room of a unit; what is left over is for the oldest consumers."""
        cdef Taker head = <Taker>self.takers[first]
        cdef Taker taker
        cdef Py_ssize_t at
        cdef uint64_t limit = 0
        for at in range(first, first + <Py_ssize_t>head.size):
            taker = <Taker>self.takers[at]
            if not taker.fixed() and taker.share:
                limit += taker.held_then
        limit = part_of(limit + room, head.takers)
        for at in range(first, first + <Py_ssize_t>head.size):
            taker = <Taker>self.takers[at]
            if not taker.fixed() and taker.share:
                taker.share = <uint32_t>min(limit - taker.held_then if limit > taker.held_then else 0,
                                            min(taker.share, room))
                room -= taker.share

    cdef uint32_t first_room(self, Taker taker, uint32_t room) noexcept:
        cdef Taker other
        cdef uint32_t left = room
        cdef bint alone = 1                     # nothing can come to its unit yet
        cdef uint32_t waiting = 0
        for other in self.takers:
            if other is taker:
                continue
            waiting += other.waits()
            left -= min(left, other.told_room() + other.waits())
            alone = alone and (other.unit is not taker.unit or other.told_room() == 0)
        return min(taker.own_room(), max(left, <uint32_t>(alone and room > waiting)))


cdef inline bint needs_more(Taker taker, uint32_t told) noexcept:
    return not taker.fixed() and <uint64_t>told * 2 < taker.share


cdef inline uint32_t room_in(Taker unit, uint64_t limit) noexcept:
    """Of a unit, below its limit."""
    return <uint32_t>min(<uint64_t>unit.wants, limit - unit.holds) if limit > unit.holds else 0       # fits: wants


cdef inline uint64_t part_of(uint64_t sum, uint32_t count) noexcept:
    return (sum + count - 1) // count if count else 0
