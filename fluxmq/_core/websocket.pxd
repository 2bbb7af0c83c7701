"""Inbound WebSocket frames, RFC 6455: unmasked and stripped in place, so that the decoder sees one stream of bytes.

A frame header may be split anywhere; what has arrived of it waits in `header`. MQTT packets need not align with frames
[MQTT-6.0.0-2]. Control frames are answered on the link at once.
"""
from libc.stdint cimport uint8_t, uint16_t, uint64_t

from fluxmq._core.link cimport link_t

cdef enum:
    WS_OK = 0
    WS_CLOSED = 1           # the peer's Close was answered
    WS_BAD = -1             # protocol error: Close 1002 was written
    WS_TEXT = -2            # a data frame that is not binary: Close 1003 was written, [MQTT-6.0.0-1]

cdef struct ws_t:
    uint64_t left           # payload bytes of the current frame still to come
    uint8_t[14] header
    uint8_t[4] mask
    uint8_t[125] control    # payload of the current control frame
    uint8_t header_have
    uint8_t control_have
    uint8_t opcode          # of the current frame
    uint8_t phase           # of the mask: payload bytes seen & 3
    uint8_t message         # inside a fragmented binary message

# Turns data[0:n] into MQTT bytes in place; *out is their number. WS_OK or why the connection ends.
cdef int ws_unframe(ws_t* ws, uint8_t* data, size_t n, size_t* out, link_t* link) noexcept
