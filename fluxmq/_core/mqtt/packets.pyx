# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""MQTT control packets as values: MQTT 5.0 section 3 and its like in 3.1.1. mqtt/packets.pxd lists the fields.

Built with keywords, compared by value, not hashable (they hold lists). `properties` is a list of
(identifier, value) in wire order: int, str, bytes, or (str, str) for a user property.
"""
cimport cython

from fluxmq._core.mqtt.props import PropertyValue

Properties = list[tuple[int, PropertyValue]]    # for annotations


cdef class Packet:
    """Value. Base class of the packet classes; never instantiated itself.

    packet_type: high nibble of the first byte; 0 for the parts of packets, Will and Subscription.
    """

    packet_type = 0
    fields = ()

    def __init__(self) -> None:
        raise TypeError("Packet is a root; build one of the packets derived from it")

    cdef tuple values(self):
        return ()

    def get(self, identifier: int, default: object = None) -> object:
        """The first property with this identifier, or default."""
        for entry in getattr(self, "properties", ()):
            if entry[0] == identifier:
                return entry[1]
        return default

    def get_all(self, identifier: int) -> list[object]:
        """All properties with this identifier, in order: user properties, subscription identifiers."""
        return [entry[1] for entry in getattr(self, "properties", ()) if entry[0] == identifier]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self.values() == (<Packet>other).values()

    __hash__ = None

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self.fields, self.values()))
        return f"{type(self).__name__}({shown})"


@cython.final
cdef class Will(Packet):
    """Value. The will message of CONNECT. Sections 3.1.2.5, 3.1.3.2 to 3.1.3.4. properties: those of the will."""

    packet_type = 0
    fields = ("topic", "payload", "qos", "retain", "properties")

    def __init__(self, str topic not None, *, bytes payload not None=b"", int qos=0, bint retain=False,
                 list properties=None) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.topic, self.payload, self.qos, self.retain, self.properties)


@cython.final
cdef class Connect(Packet):
    """Value. CONNECT, section 3.1. protocol_level is 3 (MQTT 3.1), 4 (3.1.1) or 5; keep_alive is in seconds."""

    packet_type = 1
    fields = ("client_id", "protocol_level", "clean_start", "keep_alive", "will", "username", "password", "properties")

    def __init__(self, *, str client_id not None="", int protocol_level=5, bint clean_start=True, int keep_alive=0,
                 Will will=None, str username=None, bytes password=None, list properties=None) -> None:
        self.client_id = client_id
        self.protocol_level = protocol_level
        self.clean_start = clean_start
        self.keep_alive = keep_alive
        self.will = will
        self.username = username
        self.password = password
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.client_id, self.protocol_level, self.clean_start, self.keep_alive, self.will, self.username,
                self.password, self.properties)


@cython.final
cdef class ConnAck(Packet):
    """Value. CONNACK, section 3.2. Before version 5 reason_code is the return code, 0 to 5."""

    packet_type = 2
    fields = ("session_present", "reason_code", "properties")

    def __init__(self, *, bint session_present=False, int reason_code=0, list properties=None) -> None:
        self.session_present = session_present
        self.reason_code = reason_code
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.session_present, self.reason_code, self.properties)


@cython.final
cdef class Publish(Packet):
    """Value. PUBLISH, section 3.3. packet_id is 0 if and only if qos is 0."""

    packet_type = 3
    fields = ("topic", "payload", "qos", "retain", "dup", "packet_id", "properties")

    def __init__(self, str topic not None, *, bytes payload not None=b"", int qos=0, bint retain=False,
                 bint dup=False, int packet_id=0, list properties=None) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.topic, self.payload, self.qos, self.retain, self.dup, self.packet_id, self.properties)


cdef class Ack(Packet):
    """Value. Base class of PUBACK, PUBREC, PUBREL and PUBCOMP. Sections 3.4 to 3.7."""

    fields = ("packet_id", "reason_code", "properties")

    def __init__(self, int packet_id, *, int reason_code=0, list properties=None) -> None:
        self.packet_id = packet_id
        self.reason_code = reason_code
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.packet_id, self.reason_code, self.properties)


@cython.final
cdef class PubAck(Ack):
    """Value. PUBACK, section 3.4."""

    packet_type = 4


@cython.final
cdef class PubRec(Ack):
    """Value. PUBREC, section 3.5."""

    packet_type = 5


@cython.final
cdef class PubRel(Ack):
    """Value. PUBREL, section 3.6."""

    packet_type = 6


@cython.final
cdef class PubComp(Ack):
    """Value. PUBCOMP, section 3.7."""

    packet_type = 7


@cython.final
cdef class Subscription(Packet):
    """Value. A topic filter and its options, section 3.8.3."""

    packet_type = 0
    fields = ("filter", "qos", "no_local", "retain_as_published", "retain_handling")

    def __init__(self, str filter not None, *, int qos=0, bint no_local=False, bint retain_as_published=False,
                 int retain_handling=0) -> None:
        self.filter = filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling

    cdef tuple values(self):
        return (self.filter, self.qos, self.no_local, self.retain_as_published, self.retain_handling)


@cython.final
cdef class Subscribe(Packet):
    """Value. SUBSCRIBE, section 3.8."""

    packet_type = 8
    fields = ("packet_id", "subscriptions", "properties")

    def __init__(self, int packet_id, list subscriptions not None, *, list properties=None) -> None:
        self.packet_id = packet_id
        self.subscriptions = subscriptions
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.packet_id, self.subscriptions, self.properties)


@cython.final
cdef class SubAck(Packet):
    """Value. SUBACK, section 3.9. One reason code per subscription."""

    packet_type = 9
    fields = ("packet_id", "reason_codes", "properties")

    def __init__(self, int packet_id, list reason_codes not None, *, list properties=None) -> None:
        self.packet_id = packet_id
        self.reason_codes = reason_codes
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.packet_id, self.reason_codes, self.properties)


@cython.final
cdef class Unsubscribe(Packet):
    """Value. UNSUBSCRIBE, section 3.10."""

    packet_type = 10
    fields = ("packet_id", "filters", "properties")

    def __init__(self, int packet_id, list filters not None, *, list properties=None) -> None:
        self.packet_id = packet_id
        self.filters = filters
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.packet_id, self.filters, self.properties)


@cython.final
cdef class UnsubAck(Packet):
    """Value. UNSUBACK, section 3.11. One reason code per filter in version 5, none before."""

    packet_type = 11
    fields = ("packet_id", "reason_codes", "properties")

    def __init__(self, int packet_id, *, list reason_codes=None, list properties=None) -> None:
        self.packet_id = packet_id
        self.reason_codes = [] if reason_codes is None else reason_codes
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.packet_id, self.reason_codes, self.properties)


@cython.final
cdef class PingReq(Packet):
    """Value. PINGREQ, section 3.12."""

    packet_type = 12
    fields = ()

    def __init__(self) -> None:
        pass


@cython.final
cdef class PingResp(Packet):
    """Value. PINGRESP, section 3.13."""

    packet_type = 13
    fields = ()

    def __init__(self) -> None:
        pass


@cython.final
cdef class Disconnect(Packet):
    """Value. DISCONNECT, section 3.14."""

    packet_type = 14
    fields = ("reason_code", "properties")

    def __init__(self, *, int reason_code=0, list properties=None) -> None:
        self.reason_code = reason_code
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.reason_code, self.properties)


@cython.final
cdef class Auth(Packet):
    """Value. AUTH, section 3.15; version 5 only."""

    packet_type = 15
    fields = ("reason_code", "properties")

    def __init__(self, *, int reason_code=0, list properties=None) -> None:
        self.reason_code = reason_code
        self.properties = [] if properties is None else properties

    cdef tuple values(self):
        return (self.reason_code, self.properties)
