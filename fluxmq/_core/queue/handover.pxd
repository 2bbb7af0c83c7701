"""What a queue's groups do when the queue moves to another node. See queue/handover.pyx."""
from libc.stdint cimport uint16_t, uint64_t

from fluxmq._core.queue.claim cimport Member
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.group cimport Group

cdef class Reserve(Member):
    """Holds messages for consumers that held them when the queue moved, or when its node died, until their nodes say so
    here."""

# Makes a message ready that a Reserve holds, in this delivery; if its partition belongs to one member, also what else a
# Reserve holds of that.
cdef int let_go_of(Group group, Cursor cursor, uint64_t offset, uint16_t deliveries) except -1
