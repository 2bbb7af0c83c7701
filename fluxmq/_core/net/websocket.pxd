"""Inbound WebSocket frames, RFC 6455: unmasked and stripped in place, so that the decoder sees one stream of bytes.

A frame header may be split anywhere; the bytes that have arrived are kept in `header`. MQTT packets need not align with
frames [MQTT-6.0.0-2]. ws_answer answers control frames. It answers a Close only after the MQTT bytes before it have
been handled, because no data frame may follow a Close (section 5.5.1).

A frame takes no memory, whatever it announces: its bytes are handed on as they arrive, and what is made of them there
is limited by packet. One that announces more than any packet has is refused all the same (1009), as soon as its header
is there.
"""
from libc.stdint cimport uint8_t, uint16_t, uint64_t

from fluxmq._core.memory.link cimport link_t

cdef enum:
    WS_OK = 0
    WS_CLOSED = 1           # the peer sent Close
    WS_BAD = -1             # protocol error: Close 1002 or 1009 is due
    WS_TEXT = -2            # a data frame that is not binary: Close 1003 is due, [MQTT-6.0.0-1]

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
    uint8_t pong_due        # the peer sent Ping; only the latest is answered, RFC 6455 section 5.5.3
    uint8_t pong_have
    uint8_t close_due
    uint8_t close_have
    uint8_t[125] pong
    uint8_t[2] close

# Converts data[0:n] to MQTT bytes in place and sets *out to their number. Returns WS_OK, or why the connection ends.
cdef int ws_unframe(ws_t* ws, uint8_t* data, size_t n, size_t* out) noexcept

# Writes the answers to control frames: a Pong unless the link is blocked, a Close only if `closing`.
cdef void ws_answer(ws_t* ws, link_t* link, bint closing) noexcept
