# cython: language_level=3
"""The output of a client's connection, and its limits. client/machine.pxd draws the states."""
from libc.stdint cimport uint8_t

from fluxmq._core.debug cimport check

cdef enum:
    NEW = 0
    CONNECTING = 1
    OPEN = 2
    CLOSED = 3


cdef bint may_follow(int state, int after) noexcept


cdef class ClientWriter:
    cdef readonly int state
    cdef readonly int version
    cdef readonly size_t packet_bytes_max_out
    cdef int alias_max_out
    cdef dict aliases_out
    cdef object topic_checked   # last published topic: the same object is not checked again
    cdef object properties_checked
    cdef bint feeding
    # Output that has not been taken
    cdef uint8_t* out
    cdef size_t out_bytes
    cdef size_t out_room

    cdef uint8_t* room(self, size_t n) except NULL
    cdef int appended(self, size_t n) except -1
    cdef int write(self, bytes packet) except -1
    cdef int write_ack(self, int kind, int packet_id, int reason) except -1
    cdef int write_publish(self, object topic, object payload, bytes properties, int first, int packet_id) except -1
    cdef bytes properties_of(self, object properties)
    cdef int alias_for(self, object topic) except? -65536


cdef inline void enter_state(ClientWriter writer, int state) noexcept:
    check(may_follow(writer.state, state))      # in a debug build
    writer.state = state
