# cython: language_level=3
"""The client's side of one MQTT connection: the protocol machine, without socket and clock.

    NEW ──start──► CONNECTING ──CONNACK──► OPEN ──end──► CLOSED
    CONNECTING ──CONNACK with an error──► CLOSED
    NEW, CONNECTING, CLOSED ──end──► CLOSED

TRANSITIONS in writer.pyx is the table. A connection ends when either side closes it, at a protocol violation, and with
its socket.
"""
from libc.stdint cimport uint8_t, uint32_t

from fluxmq._core.client.session cimport Session, Slot
from fluxmq._core.client.writer cimport ClientWriter

cdef class ClientMachine(ClientWriter):
    cdef object __weakref__
    cdef readonly Session session
    cdef public object on_message
    cdef readonly bint manual_ack
    cdef readonly bint republish        # session lost: resend unacknowledged publishes as new ones; else fail
    cdef readonly object answer_properties  # properties of the acknowledgement that `done` reports; [] before MQTT 5
    cdef readonly int keep_alive        # seconds, as the server decided; 0 = off
    # Limits of the server
    cdef readonly int receive_maximum
    cdef readonly int maximum_qos
    cdef readonly bint retain_available
    # Limits that this client sent in CONNECT
    cdef int receive_maximum_in
    cdef size_t packet_bytes_max_in
    cdef int alias_max_in
    cdef bint clean_start
    cdef bint ended             # the session may belong to another machine
    cdef unsigned long long serial
    cdef set inbound            # identifiers of PUBLISH that count against our Receive Maximum
    cdef set unacknowledged     # QoS 2 ones of these without acknowledge() (manual_ack)
    cdef dict aliases_in
    cdef object pings           # deque of callbacks for PINGRESP, or None
    cdef bytes topic_seen       # the last received topic: equal bytes reuse the object
    # The incomplete packet
    cdef uint8_t* carry
    cdef size_t carry_bytes
    cdef size_t carry_room

    cdef object ask(self, int kind, int state, list parts, object done, object properties)
    cdef int take_in(self, const uint8_t* data, Py_ssize_t n) except -1
    cdef Py_ssize_t parse(self, const uint8_t* data, Py_ssize_t n) except -1
    cdef int keep(self, const uint8_t* data, size_t n) except -1
    cdef int packet(self, int first, const uint8_t* body, uint32_t n) except -1
    cdef int cold_packet(self, int first, const uint8_t* body, uint32_t n) except -1
    cdef int publish_came(self, int first, const uint8_t* body, uint32_t n) except -1
    cdef bytes topic_of(self, const uint8_t* text, size_t n, int alias)
    cdef int count_in(self, int packet_id, int qos) except -1
    cdef int ack_came(self, int kind, int packet_id, int reason) except -1
    cdef int pubrec_came(self, Slot slot, int packet_id, int reason) except -1
    cdef int finish(self, Slot slot, int reason) except -1
    cdef int connack_came(self, object connack) except -1
    cdef int suback_came(self, object packet, int state) except -1
    cdef int resume(self, bint present) except -1
    cdef int pump(self) except -1
    cdef int send_again(self, Slot slot) except -1
