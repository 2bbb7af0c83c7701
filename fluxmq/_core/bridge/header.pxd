# cython: language_level=3
"""Adds a header of the broker to a delivery's property list (x-stream-offset, x-delivery-count)."""
from libc.stdint cimport int64_t

from fluxmq._core.amqp091.values cimport room_t
from fluxmq._core.memory.message cimport body_t

# The property list of `body`, of FORMAT_AMQP091, gets a header of this name and type `l`, in place of one that it had;
# among headers that are in order of their names it stands where it belongs. The list is then in the room, until that is
# written again.
cdef int header_add(body_t* body, const char* name, int64_t value, room_t* room) except -1
