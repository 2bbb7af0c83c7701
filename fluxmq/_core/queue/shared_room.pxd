"""Room for messages that several consumers of one client share, divided among those whose queues other nodes have.

    Channel (prefetch with global), or a session (its window) ─► SharedRoom ─► Taker: what its owner was told

An owner gives what it was told that a consumer can take, and knows nothing of the client's other consumers. If each
were told all of the room, what comes beyond it would wait here, where others do not get it.

    unit        consumers of one group: any of them may get its messages, so the unit needs room, not each of them.
                One by itself where a group has a member for each partition, or only one that gets anything
    hungry      a unit to which all that was told has come within the last second. Hungry units have the same limit of
                messages, held and to come, so nothing is to be told while they get and settle them; others keep 1, by
                which they become hungry. If no unit is hungry all have the same limit
    sum told    at most the room, what may wait for room (may_wait), and 1 for each unit that is not hungry, or holds
                nothing while others have it all
"""
from libc.stdint cimport int64_t, uint32_t

cdef enum:
    ROOM_UNSHARED = 0xFFFFFFFF  # there is no limit for several consumers together

cdef class SharedRoom

cdef class Taker:
    """A consumer. A subclass implements what it tells."""
    cdef SharedRoom shared          # None: its room is its own
    cdef object unit                # the group, or the consumer itself
    cdef int64_t hungry_ms          # monotonic time at which all that was told had come; 0: never
    # When the room was divided:
    cdef uint32_t held_then         # messages that it held
    cdef uint32_t share             # what its owner should know
    # Of its unit, in the unit's first consumer:
    cdef uint32_t size              # consumers
    cdef uint32_t takers            # those that could take something
    cdef uint32_t wants             # what they could take
    cdef uint32_t holds             # what they hold
    cdef bint hungry
    # Messages that it holds; what may still come of what was told; how many more it could take if there were no other
    # consumers; how many wait for room, and may. fixed: its owner cannot be told anything now.
    cdef uint32_t taken(self) noexcept
    cdef uint32_t told_room(self) noexcept
    cdef uint32_t own_room(self) noexcept
    cdef uint32_t waits(self) noexcept
    cdef uint32_t may_wait(self) noexcept
    cdef bint fixed(self) noexcept
    # Whether the owner must be told in any case.
    cdef bint must_tell(self) noexcept
    cdef int tell_room(self, uint32_t room) except -1

cdef class SharedRoom:
    cdef list takers                # Taker, those of one unit side by side
    cdef bint stale                 # something has changed since it was divided
    cdef uint32_t room_then         # the room when it was divided

    cdef int add(self, Taker taker) except -1
    cdef int remove(self, Taker taker) except -1
    # Tells owners what has changed. room: of all consumers together, now.
    cdef int divide(self, uint32_t room, int64_t now_ms) except -1
    # What the owner of a consumer is told first.
    cdef uint32_t first_room(self, Taker taker, uint32_t room) noexcept
    cdef int tell(self) except -1
    cdef void measure(self, uint32_t room, int64_t now_ms) noexcept
    cdef void share_out(self, Py_ssize_t first, uint32_t room) noexcept
