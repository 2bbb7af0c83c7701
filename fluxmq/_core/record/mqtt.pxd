# cython: language_level=3
"""Rows of MQTT packets."""
from libc.stdint cimport int64_t, uint8_t

from fluxmq._core.record.state cimport Peer, Recording

# Complete packets of one direction (WAY_IN, WAY_OUT) of the connection.
cdef int mqtt_rows(Recording recording, Peer peer, int direction, int64_t time, const uint8_t* at,
                   const uint8_t* end) except -1

# The client identifier of the CONNECT that begins here; None: not a CONNECT, or the identifier is empty.
cdef bytes connect_client(const uint8_t* at, const uint8_t* end)

# Number of bytes from `at` on that are complete packets; -1: there is no valid packet, even with more bytes.
cdef int64_t mqtt_whole(const uint8_t* at, const uint8_t* end) noexcept nogil
