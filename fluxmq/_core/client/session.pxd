# cython: language_level=3
"""What a client must remember of its session beyond one connection: publishes on their way, QoS 2 that came in.

A packet identifier is a slot, and TRANSITIONS in the .pyx the table of what it goes through. Whatever is not here is a
mistake of the server's:

    FREE ──publish, QoS 1──► SENT_1 ──PUBACK──► FREE
    FREE ──publish, QoS 2──► SENT_2 ──PUBREC──► RELEASED ──PUBCOMP──► FREE        SENT_2 ──PUBREC with an error──► FREE
    FREE ──subscribe──► SUBSCRIBING ──SUBACK──► FREE            FREE ──unsubscribe──► UNSUBSCRIBING ──UNSUBACK──► FREE

A new connection. With the session present WAITING goes out with DUP, and PUBREL of RELEASED again; without the session
RELEASED is done, and the others are either new messages or have failed:

    SENT_1, SENT_2, WAITING ──resume──► WAITING ──window, QoS 1──► SENT_1       WAITING ──window, QoS 2──► SENT_2
    SENT_1, SENT_2, WAITING, RELEASED ──session lost──► FREE                    WAITING ──more than it takes──► FREE

The end of a connection: SUBSCRIBING, UNSUBSCRIBING ──end──► FREE.
"""
from libc.stdint cimport uint64_t

from fluxmq._core.debug cimport check

cdef enum:
    FREE = 0
    SENT_1 = 1
    SENT_2 = 2
    RELEASED = 3
    WAITING = 4
    SUBSCRIBING = 5
    UNSUBSCRIBING = 6


cdef class Slot:
    cdef int packet_id
    cdef int state
    cdef int qos
    cdef bint retain
    cdef int reason             # of PUBREC, while RELEASED
    cdef bint dup               # WAITING: how it goes out again
    cdef int next_free          # 0 = the last free one
    cdef uint64_t sequence      # order of sending
    cdef object topic           # bytes or str, as it was given
    cdef object payload
    cdef bytes properties
    cdef object done            # called at the end, or None


cdef bint may_follow(int state, int after) noexcept

cdef inline void enter(Slot slot, int state) noexcept:
    check(may_follow(slot.state, state))        # in a debug build
    slot.state = state


cdef class Session:
    cdef list slots             # by packet identifier; 0 is None
    cdef int free               # the first free slot, 0 = none
    cdef uint64_t sequence
    cdef readonly int outstanding       # SENT_1, SENT_2, RELEASED: what the peer's Receive Maximum bounds
    cdef set received           # QoS 2 identifiers between PUBREC and PUBREL
    cdef object waiting         # deque of slots that are WAITING, in order
    cdef unsigned long long owner       # serial number of the machine that goes on with it

    cdef Slot take(self)
    cdef void give_back(self, Slot slot)
    cdef Slot at(self, int packet_id)
    cdef list in_order(self)
