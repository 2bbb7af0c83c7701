"""What is recorded of one connection: the bytes that it parses, packets received apart, and its events.

What it sends is recorded by memory/link. parse_tapped, tap_read and tap_big are called only while a recording or a view
runs (node.tap is not NULL).
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.commits cimport Waiter
from fluxmq._core.memory.link cimport link_t
from fluxmq._core.memory.message cimport blob_t
from fluxmq._core.memory.tap cimport READERS, tap_t

cdef class Recorded(Waiter):
    """Base class of Transport."""
    cdef readonly Hub hub
    cdef link_t* link
    cdef const uint8_t* untapped        # first parsed byte that is not recorded yet; NULL: no recorded parse under way
    cdef const uint8_t* parsed          # end of the packet being handled
    cdef int64_t read_ns                # time of the read
    cdef uint32_t[READERS] big_recorded # number of each reader's tap that has the packet received apart; 0: none
    cdef public int end_code            # MQTT reason code or AMQP reply code sent with the end
    cdef public str end_why             # reason for the end, given by the edge; "": none yet

    cdef ssize_t parse_tapped(self, uint8_t* data, size_t n) except -1
    cdef void tap_read(self, const uint8_t* end) noexcept
    cdef void tap_big(self, const blob_t* blob) noexcept
    cdef int record_closed(self) except -1
    cdef bint tapped(self, const tap_t* tap) noexcept
    cdef void tap_event(self, tap_t* tap, int kind, bytes data, int flags) noexcept
    # What the protocol adds.
    cdef ssize_t parse(self, uint8_t* data, size_t n) except -1
