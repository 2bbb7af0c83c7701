# cython: language_level=3
"""What a client must remember of its session beyond one connection: publishes on their way, QoS 2 that came in.

A packet identifier is a slot. What a slot goes through; whatever is not here is a mistake of the server's:

    FREE ──publish QoS 1──► SENT_1 ──PUBACK──► FREE
    FREE ──publish QoS 2──► SENT_2 ──PUBREC──► RELEASED ──PUBCOMP──► FREE        PUBREC with an error: FREE
    FREE ──subscribe──► SUBSCRIBING ──SUBACK──► FREE        unsubscribe, UNSUBACK: the same

    a new connection, session present:  SENT_1, SENT_2 ──► WAITING ──window──► SENT_n, DUP    RELEASED: PUBREL again
                      session not there: SENT_1, SENT_2 ──► WAITING ──window──► SENT_n, new    RELEASED ──► FREE, done
                                     or: SENT_1, SENT_2 ──► FREE, failed
    the end of a connection:            SUBSCRIBING, UNSUBSCRIBING ──► FREE, not answered
"""
from libc.stdint cimport uint64_t

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
