# cython: language_level=3
"""Rows of MQTT packets."""
from libc.stdint cimport int64_t, uint8_t

from fluxmq._core.record.state cimport Peer, Recording

# Whole packets that went one way (WAY_IN, WAY_OUT) on the connection.
cdef int mqtt_rows(Recording recording, Peer peer, int direction, int64_t time, const uint8_t* at,
                   const uint8_t* end) except -1

# The client id of the CONNECT that begins here; None: it is none, or the client leaves the choice to the broker.
cdef bytes connect_client(const uint8_t* at, const uint8_t* end)

# Bytes from `at` on that are whole packets; -1: there are none, and what stands there is no packet, whatever comes.
cdef int64_t mqtt_whole(const uint8_t* at, const uint8_t* end) noexcept nogil
