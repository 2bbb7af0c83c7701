# cython: language_level=3
"""State of a recording (selection, current batch) and of each connection.

A connection that is left out has `kept` 0: its rows are counted, its bytes are not decoded.
"""
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t

from fluxmq._core.amqp091.values cimport room_t
from fluxmq._core.record.columns cimport Columns, Words, row_t
from fluxmq._core.record.pending cimport pending_t

cdef enum:                  # Recording.payload
    PAYLOAD_SIZE = 0
    PAYLOAD_HASH = 1
    PAYLOAD_FULL = 2

# Machine. Whether a topic is selected.
cdef class TopicChoice:
    cdef list filters       # of bytes
    cdef Words known
    cdef room_t verdicts    # a byte for each word
    cdef room_t turned      # a routing key with `/` for `.`

    cdef bint wanted(self, const uint8_t* at, size_t n, bint routing_key) except -1

cdef class Recording:
    cdef Columns columns
    cdef int payload
    cdef TopicChoice topics     # None: all are selected
    cdef room_t scratch         # for the current row
    cdef room_t text            # JSON being written
    cdef bint go_on             # after an invalid packet whose end is certain
    cdef uint64_t filtered
    cdef uint64_t undecoded
    cdef dict invalid           # with go_on: (connection, direction) -> [packets, their bytes, dropped, bytes of that]

# State of a connection.
cdef class Peer:
    cdef int64_t number
    cdef int8_t protocol        # 0: mqtt, 1: amqp091
    cdef int8_t version         # 0: not known
    cdef bint kept
    cdef bint[2] broken         # by direction: decoding failed, the rest is only counted
    cdef bytes client           # None: not known
    cdef int32_t client_index   # in the batch's words, while client_batch is that batch
    cdef uint64_t client_batch
    cdef list held              # entries while it is undecided whether it is kept; else None
    cdef size_t held_bytes
    cdef pending_t pending
    cdef uint64_t pings         # PINGREQ seen, and PINGRESP
    cdef uint64_t pongs
    cdef dict aliases_in        # MQTT: topic by alias; None: none yet
    cdef dict aliases_out
    cdef dict channels          # AMQP: by number; None: none yet
    cdef object channel         # the last one used
    cdef int32_t channel_number

    cdef void forget(self) noexcept     # drops state that a gap may invalidate

# Begins a row of that connection with all fields that do not depend on a packet.
cdef int row_begin(Recording recording, Peer peer, row_t* row, int64_t time, int32_t kind) except -1
# Writes it. Returns its seq, or LEFT_OUT if it is not selected, and counts it.
cdef int64_t row_end(Recording recording, Peer peer, row_t* row, bint wanted) except? -1
# Begins a row of a packet, with its direction and bytes.
cdef int row_packet(Recording recording, Peer peer, row_t* row, int64_t time, int32_t kind, int direction,
                    int64_t size) except -1
# Writes a row with the reason. packet: what it is, None if that is not known. channel: -1: none. goes_on: size is that
# of the packet; otherwise that of the rest of the entry, and the direction is marked as broken.
cdef int row_malformed(Recording recording, Peer peer, int64_t time, int direction, size_t size, str why, str packet,
                       int channel, bint goes_on) except -1
# Counts bytes without a row of their own: of a broken direction, or (passed) of a message that has a row `malformed`.
cdef int count_undecoded(Recording recording, Peer peer, int direction, size_t size, bint passed) except -1
# Sets digest, size and payload of a row, as configured.
cdef int row_payload(Recording recording, row_t* row, const uint8_t* at, size_t n) noexcept
cdef bytes json_of(object value)
