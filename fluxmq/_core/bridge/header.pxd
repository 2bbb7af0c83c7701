# cython: language_level=3
"""Adds a header of the broker to a delivery's property list (x-stream-offset, x-delivery-count)."""
from libc.stdint cimport int64_t

from fluxmq._core.amqp091.values cimport room_t
from fluxmq._core.memory.message cimport body_t

# Adds a header of this name and type `l` to the property list of `body` (FORMAT_AMQP091), replacing one of the same
# name; if the headers are ordered by name, it is inserted in order. The list is then in the room, until that is written
# again.
cdef int header_add(body_t* body, const char* name, int64_t value, room_t* room) except -1
