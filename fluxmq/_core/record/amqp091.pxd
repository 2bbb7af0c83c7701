# cython: language_level=3
"""Rows of AMQP 0-9-1: one for each method, one for each message with its method, header and body."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.amqp091.values cimport room_t
from fluxmq._core.record.pending cimport window_t
from fluxmq._core.record.state cimport Peer, Recording
from fluxmq._core.wire.xxh64 cimport xxh64_t

cdef enum:              # content_t.state
    NO_CONTENT = 0
    WANTS_HEADER = 1
    WANTS_BODY = 2

cdef struct name_t:     # a short string, kept
    uint8_t n
    uint8_t[255] text

cdef struct content_t:  # an incomplete message
    int state
    bint dropped        # the last message was broken: its other frames have no row
    uint32_t code       # of its method
    uint64_t tag        # delivery tag
    uint64_t left       # missing bytes of the body
    uint64_t size       # of the body
    int64_t bytes       # of its frames so far
    int reply           # basic.return
    bint redelivered
    bint flagged        # basic.publish: mandatory or immediate; the first is the first bit of flags
    uint8_t flags
    uint32_t messages   # basic.get-ok: message count
    name_t exchange
    name_t key
    name_t consumer     # basic.deliver: its tag; basic.return: the reply text
    room_t properties   # flags and list
    room_t payload      # in pieces; used only if payloads are recorded
    xxh64_t digest

# State of a channel.
cdef class Channel:
    cdef content_t[2] contents          # by direction
    cdef window_t publishes             # without confirm, by number
    cdef window_t deliveries            # without acknowledgement, by tag
    cdef bint known                     # it was opened during the recording
    cdef bint confirms                  # in confirm mode, with known numbers
    cdef uint64_t published             # number of the last publish
    cdef set unacknowledged             # consumer tags with no_ack
    cdef list unnamed                   # no_ack of each basic.consume without tag, in order
    cdef bint get_unacknowledged        # no_ack of the last basic.get
    cdef list pending_calls             # [expected answer, its direction, seq, time]

# Complete frames, or the protocol header, of one direction of the connection.
cdef int amqp_rows(Recording recording, Peer peer, int direction, int64_t time, const uint8_t* at,
                   const uint8_t* end) except -1

# Number of bytes from `at` on that are complete frames or the protocol header; -1: there is no valid frame, even with
# more bytes.
cdef int64_t amqp_whole(const uint8_t* at, const uint8_t* end) noexcept nogil
