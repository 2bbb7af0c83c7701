"""Groups on disk. See queue/state.pyx."""
from libc.stdint cimport uint8_t, uint32_t

from fluxmq._core.queue.group cimport Group

cdef enum:
    GROUP_RECORD_MAX = 46       # bytes of the body of a CLAIM, SETTLE, RETURN or CURSOR

# As replay(): the body of one record begins with the number of its group.
cdef int replay_record(Group group, int kind, const uint8_t* at, uint32_t length) except -1
