# cython: language_level=3
"""Session state of a client that outlives a connection: unacknowledged publishes, and QoS 2 publishes received.

Each packet identifier is a slot. TRANSITIONS in the .pyx is its table; any other packet is a protocol violation by the
server:

    FREE ──publish, QoS 1──► SENT_1 ──PUBACK──► FREE
    FREE ──publish, QoS 2──► SENT_2 ──PUBREC──► RELEASED ──PUBCOMP──► FREE        SENT_2 ──PUBREC with an error──► FREE
    FREE ──subscribe──► SUBSCRIBING ──SUBACK──► FREE            FREE ──unsubscribe──► UNSUBSCRIBING ──UNSUBACK──► FREE

A new connection. With the session present, WAITING is resent with DUP and RELEASED resends PUBREL. Without the session,
RELEASED is done, and the others become new messages or fail:

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
    cdef bint dup               # WAITING: resent with DUP
    cdef int next_free          # 0 = last free slot
    cdef uint64_t sequence      # order of sending
    cdef object topic           # bytes or str, as given
    cdef object payload
    cdef bytes properties
    cdef object done            # callback at the end, or None


cdef bint may_follow(int state, int after) noexcept

cdef inline void enter(Slot slot, int state) noexcept:
    check(may_follow(slot.state, state))        # in a debug build
    slot.state = state


cdef class Session:
    cdef list slots             # by packet identifier; 0 is None
    cdef int free               # first free slot; 0 = none
    cdef uint64_t sequence
    cdef readonly int outstanding       # SENT_1, SENT_2, RELEASED: limited by the peer's Receive Maximum
    cdef set received           # QoS 2 identifiers between PUBREC and PUBREL
    cdef object waiting         # deque of slots that are WAITING, in order
    cdef unsigned long long owner       # serial number of the machine that has it

    cdef Slot take(self)
    cdef void give_back(self, Slot slot)
    cdef Slot at(self, int packet_id)
    cdef list in_order(self)
