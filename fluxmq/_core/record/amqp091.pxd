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

cdef struct content_t:  # a message that is not whole yet
    int state
    uint32_t code       # of its method
    uint64_t tag        # delivery tag
    uint64_t left       # bytes of the body to come
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
    room_t payload      # in pieces; used only where it is wanted
    xxh64_t digest

# What is remembered of a channel.
cdef class Channel:
    cdef content_t[2] contents          # by direction
    cdef window_t publishes             # that wait for their confirm, by number
    cdef window_t deliveries            # that wait for their acknowledgement, by tag
    cdef bint known                     # it was opened while we looked
    cdef bint confirms                  # numbers are given, and known
    cdef uint64_t published             # the last number
    cdef set unacknowledged             # consumer tags that take without acknowledging
    cdef list unnamed                   # no_ack of basic.consume whose tag the broker chooses, in order
    cdef bint get_unacknowledged        # the last basic.get did
    cdef list asked                     # [answer awaited, direction of it, seq, time] of methods that are answered

# Whole frames, or the protocol header, that went one way on the connection.
cdef int amqp_rows(Recording recording, Peer peer, int direction, int64_t time, const uint8_t* at,
                   const uint8_t* end) except -1

# Bytes from `at` on that are whole frames (or the header of the protocol); -1: there are none, and what stands there is
# no frame, whatever comes.
cdef int64_t amqp_whole(const uint8_t* at, const uint8_t* end) noexcept nogil
