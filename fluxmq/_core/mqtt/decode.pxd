# cython: language_level=3
"""MQTT packets from bytes, and which reason codes the specification gives to which packet."""
from libc.stdint cimport uint8_t

# Whether a packet of this type may carry this reason code in this version (a return code before 5).
cdef bint reason_fits(int packet_type, int reason, int version) noexcept nogil

# The protocol level at the front of the body of a CONNECT: 3, 4 or 5; 0 when it is none of them.
cdef int connect_level_at(const uint8_t* at, const uint8_t* end) noexcept nogil
