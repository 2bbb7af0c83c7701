# cython: language_level=3
"""MQTT control packets as values, both versions. Cold path, tests and client; the hot path reads the wire directly.

Fields carry the specification's names. Fields that a version lacks keep their defaults: properties [] and reason
codes 0 in 3.1.1. encode_packet checks the fields; the classes do not.
"""


cdef class Packet:
    """Root of all packets; also of Will and Subscription, which are parts of packets."""
    cdef tuple values(self)               # the fields, in the order of the constructor


cdef class Will(Packet):
    cdef readonly str topic
    cdef readonly bytes payload
    cdef readonly int qos
    cdef readonly bint retain
    cdef readonly list properties


cdef class Connect(Packet):
    cdef readonly int protocol_level      # 3, 4 or 5
    cdef readonly bint clean_start        # Clean Session before 5
    cdef readonly int keep_alive          # seconds, 0 = off
    cdef readonly str client_id
    cdef readonly Will will               # None = no will
    cdef readonly str username            # None = flag not set
    cdef readonly bytes password          # None = flag not set
    cdef readonly list properties


cdef class ConnAck(Packet):
    cdef readonly bint session_present
    cdef readonly int reason_code         # before 5: the return code, 0 to 5
    cdef readonly list properties


cdef class Publish(Packet):
    cdef readonly str topic               # "" only together with a topic alias
    cdef readonly bytes payload
    cdef readonly int qos
    cdef readonly bint retain
    cdef readonly bint dup
    cdef readonly int packet_id           # 0 if and only if qos is 0
    cdef readonly list properties


cdef class Ack(Packet):
    """Base class of PUBACK, PUBREC, PUBREL and PUBCOMP, which differ only in the packet type."""
    cdef readonly int packet_id
    cdef readonly int reason_code
    cdef readonly list properties


cdef class PubAck(Ack):
    pass


cdef class PubRec(Ack):
    pass


cdef class PubRel(Ack):
    pass


cdef class PubComp(Ack):
    pass


cdef class Subscription(Packet):
    cdef readonly str filter              # as received; the broker checks its grammar
    cdef readonly int qos
    cdef readonly bint no_local
    cdef readonly bint retain_as_published
    cdef readonly int retain_handling     # 0, 1 or 2


cdef class Subscribe(Packet):
    cdef readonly int packet_id
    cdef readonly list subscriptions      # of Subscription, at least one
    cdef readonly list properties


cdef class SubAck(Packet):
    cdef readonly int packet_id
    cdef readonly list reason_codes       # one per subscription
    cdef readonly list properties


cdef class Unsubscribe(Packet):
    cdef readonly int packet_id
    cdef readonly list filters            # of str, at least one
    cdef readonly list properties


cdef class UnsubAck(Packet):
    cdef readonly int packet_id
    cdef readonly list reason_codes       # one per filter; [] before 5
    cdef readonly list properties


cdef class PingReq(Packet):
    pass


cdef class PingResp(Packet):
    pass


cdef class Disconnect(Packet):
    cdef readonly int reason_code
    cdef readonly list properties


cdef class Auth(Packet):
    cdef readonly int reason_code
    cdef readonly list properties
