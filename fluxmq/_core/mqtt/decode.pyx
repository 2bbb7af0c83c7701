# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""MQTT packets from bytes: decode_packet for a body in hand, Decoder for a stream. MQTT 5.0, 3.1.1 and 3.1.

    type and flags (1) | Remaining Length (varint, 1 to 4) | body

Reason codes of errors follow section 1.2: a packet that cannot be parsed is a Malformed Packet, 0x81 (too short, bytes
left over, reserved bits, an invalid length or text, a property that does not belong there); one that parses but is
forbidden is a Protocol Error, 0x82. If the specification names a code, that one is used: 0x84 for protocol name or
level, 0x85 for the client identifier, 0x94 for topic alias 0, 0x95 for the packet size. MQTT 3.1.1 only closes the
connection; there the same codes appear in the log.

The broker checks three things itself: the grammar of topic filters (answered per filter), which packets are valid in
which state and direction, and a PUBLISH without topic whose alias is unknown.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp, memset

from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.mqtt.consts cimport *
from fluxmq._core.mqtt.fields cimport (
    expect_end, forbidden, malformed, read_binary, read_rest, read_text, read_u8, read_u16,
)
from fluxmq._core.mqtt.packets cimport (
    Auth, Connect, ConnAck, Disconnect, Packet, PingReq, PingResp, PubAck, PubComp, Publish, PubRec, PubRel, SubAck,
    Subscribe, Subscription, UnsubAck, Unsubscribe, Will,
)
from fluxmq._core.mqtt.props cimport read_properties
from fluxmq._core.wire.primitives cimport VARINT_MAX, Cursor, take_bytes16, take_u8, take_varint
from fluxmq._core.wire.text cimport TEXT_OK, topic_valid

# Reason code -> packets of version 5 that may carry it (section 2.4 and the tables of section 3). If those tables
# lack a code that the text elsewhere requires (0x8C in DISCONNECT, section 4.12), it is accepted.
_REASONS = {
    0x00: (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH),
    0x01: (SUBACK,), 0x02: (SUBACK,), 0x04: (DISCONNECT,), 0x10: (PUBACK, PUBREC), 0x11: (UNSUBACK,),
    0x18: (AUTH,), 0x19: (AUTH,),
    0x80: (CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT),
    0x81: (CONNACK, DISCONNECT), 0x82: (CONNACK, DISCONNECT),
    0x83: (CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT),
    0x84: (CONNACK,), 0x85: (CONNACK,), 0x86: (CONNACK,),
    0x87: (CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT),
    0x88: (CONNACK,), 0x89: (CONNACK, DISCONNECT), 0x8A: (CONNACK,), 0x8B: (DISCONNECT,),
    0x8C: (CONNACK, DISCONNECT), 0x8D: (DISCONNECT,), 0x8E: (DISCONNECT,),
    0x8F: (SUBACK, UNSUBACK, DISCONNECT), 0x90: (CONNACK, PUBACK, PUBREC, DISCONNECT),
    0x91: (PUBACK, PUBREC, SUBACK, UNSUBACK), 0x92: (PUBREL, PUBCOMP),
    0x93: (DISCONNECT,), 0x94: (DISCONNECT,), 0x95: (CONNACK, DISCONNECT), 0x96: (DISCONNECT,),
    0x97: (CONNACK, PUBACK, PUBREC, SUBACK, DISCONNECT), 0x98: (DISCONNECT,),
    0x99: (CONNACK, PUBACK, PUBREC, DISCONNECT), 0x9A: (CONNACK, DISCONNECT), 0x9B: (CONNACK, DISCONNECT),
    0x9C: (CONNACK, DISCONNECT), 0x9D: (CONNACK, DISCONNECT), 0x9E: (SUBACK, DISCONNECT),
    0x9F: (CONNACK, DISCONNECT), 0xA0: (DISCONNECT,), 0xA1: (SUBACK, DISCONNECT), 0xA2: (SUBACK, DISCONNECT),
}
cdef uint16_t[256] reasons    # bit = packet type


cdef int fill_reasons() except -1:
    memset(reasons, 0, sizeof(reasons))
    for reason, packets in _REASONS.items():
        for packet in packets:
            reasons[<int>reason] |= <uint16_t>(1 << <int>packet)
    return 0


fill_reasons()


cdef bint reason_fits(int packet_type, int reason, int version) noexcept nogil:
    if reason < 0 or reason > 255:
        return 0
    if version >= LEVEL_5:
        return reasons[reason] >> packet_type & 1
    if packet_type == CONNACK:
        return reason <= 5
    if packet_type == SUBACK:
        return reason <= 2 or reason == 0x80
    return reason == 0


cdef int connect_level_at(const uint8_t* at, const uint8_t* end) noexcept nogil:
    if end - at >= 9 and memcmp(at, <const char*>b"\x00\x06MQIsdp\x03", 9) == 0:
        return LEVEL_31
    if end - at >= 7 and memcmp(at, <const char*>b"\x00\x04MQTT", 6) == 0 and at[6] in (LEVEL_311, LEVEL_5):
        return at[6]
    return 0


cdef int check_type(int kind, int version) except -1:
    if kind == 0:
        malformed("packet type 0 is reserved")
    if version == 0 and kind != CONNECT:
        forbidden("the first packet must be CONNECT")    # [MQTT-3.1.0-1]
    return 0


cdef int check_flags(int first, int version) except -1:
    """The flags of every packet but PUBLISH are fixed [MQTT-2.1.3-1]; 3.1 sets DUP on resent packets."""
    cdef int kind = first >> 4
    cdef int want = 2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0
    cdef int flags = first & 0x0F
    if version == LEVEL_31 and want:
        flags &= 7
    if flags != want:
        malformed(f"the flags of packet type {kind} must be {want}, not {first & 0x0F}")
    return 0


cdef list read_properties_if(Cursor* c, int where, int version):
    return read_properties(c, where) if version >= LEVEL_5 else []


cdef int read_packet_id(Cursor* c) except -1:
    cdef int packet_id = read_u16(c, "the packet identifier")
    if packet_id == 0:
        forbidden("the packet identifier must not be 0")    # [MQTT-2.2.1-3]
    return packet_id


cdef int read_reason(Cursor* c, int kind, int version) except -1:
    cdef int reason = read_u8(c, "the reason code")
    if not reason_fits(kind, reason, version):
        forbidden(f"0x{reason:02X} is not a reason code of this packet")
    return reason


cdef str read_topic(Cursor* c, str what, bint may_be_empty):
    cdef const uint8_t* topic = c.at + 2
    cdef str text = read_text(c, what)
    cdef size_t n = <size_t>(c.at - topic)
    if n == 0 and may_be_empty:
        return text
    if topic_valid(topic, n, 0) != TEXT_OK:    # [MQTT-3.3.2-2] [MQTT-4.7.3-1]
        forbidden(f"{what} must not be empty nor hold a wildcard")
    return text


cdef Will read_will(Cursor* c, int flags, int version):
    properties = read_properties_if(c, WILL, version)
    topic = read_topic(c, "the will topic", 0)
    payload = read_binary(c, "the will payload")
    return Will(topic, payload=payload, qos=flags >> 3 & 3, retain=flags >> 5 & 1, properties=properties)


cdef int check_connect_flags(int flags, int level) except -1:
    if flags & 1:
        malformed("the reserved connect flag must be 0")    # [MQTT-3.1.2-3]
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            malformed("Will QoS must be 0, 1 or 2")    # [MQTT-3.1.2-12]
    elif flags & 0x38:
        malformed("Will QoS and Will Retain must be 0 without the Will Flag")    # [MQTT-3.1.2-11] [MQTT-3.1.2-13]
    if level < LEVEL_5 and flags & 0xC0 == 0x40:
        malformed("before version 5 there is no password without a user name")    # 3.1.1 [MQTT-3.1.2-22]
    return 0


cdef Connect decode_connect(Cursor* c):
    cdef const uint8_t* name = NULL
    cdef uint16_t n = 0
    cdef uint8_t ignored = 0
    cdef int flags
    cdef Will will = None
    cdef str username = None
    cdef bytes password = None
    cdef int level = connect_level_at(c.at, c.end)
    if not take_bytes16(c, &name, &n) or not take_u8(c, &ignored):
        malformed("the packet ends before the protocol level")
    if level == 0:    # [MQTT-3.1.2-1] [MQTT-3.1.2-2]
        raise ProtocolError(REASON_UNSUPPORTED_PROTOCOL_VERSION,
                            "the protocol must be MQIsdp level 3, MQTT level 4 or MQTT level 5")
    flags = read_u8(c, "the connect flags")
    check_connect_flags(flags, level)
    keep_alive = read_u16(c, "keep alive")
    properties = read_properties_if(c, CONNECT, level)
    client_id = read_text(c, "the client identifier")
    if flags & 0x04:
        will = read_will(c, flags, level)
    if flags & 0x80:
        username = read_text(c, "the user name")
    if flags & 0x40:
        password = read_binary(c, "the password")
    expect_end(c, "the payload of CONNECT")
    connect = Connect(client_id=client_id, protocol_level=level, clean_start=flags >> 1 & 1, keep_alive=keep_alive,
                      will=will, username=username, password=password, properties=properties)
    if not client_id and (level == LEVEL_31 or (level == LEVEL_311 and not connect.clean_start)):
        raise ProtocolError(REASON_CLIENT_IDENTIFIER_NOT_VALID,    # 3.1.1 [MQTT-3.1.3-8]
                            "an empty client identifier needs MQTT 5, or MQTT 3.1.1 with Clean Session")
    check_authentication(connect)
    return connect


cdef int check_authentication(Packet packet) except -1:
    """Authentication Data needs a method: sections 3.1.2.11.10, 3.2.2.3.18, 3.15.2.2.3."""
    if (packet.get(PROPERTY_AUTHENTICATION_DATA) is not None
            and packet.get(PROPERTY_AUTHENTICATION_METHOD) is None):
        forbidden("authentication_data needs an authentication_method")
    return 0


cdef ConnAck decode_connack(Cursor* c, int version):
    cdef int flags = read_u8(c, "the connect acknowledge flags")
    if flags & 0xFE:
        malformed("reserved connect acknowledge flags must be 0")    # [MQTT-3.2.2-1]
    reason = read_reason(c, CONNACK, version)
    properties = read_properties_if(c, CONNACK, version)
    expect_end(c, "CONNACK")
    if flags and reason:
        forbidden("Session Present must be 0 when the connection is refused")    # [MQTT-3.2.2-6]
    connack = ConnAck(session_present=flags, reason_code=reason, properties=properties)
    check_authentication(connack)
    return connack


cdef Publish decode_publish(Cursor* c, int first, int version):
    cdef int qos = first >> 1 & 3, packet_id = 0
    cdef bint dup = first >> 3 & 1
    if qos == 3:
        malformed("QoS must be 0, 1 or 2")    # [MQTT-3.3.1-4]
    if dup and qos == 0:
        malformed("DUP must be 0 when QoS is 0")    # [MQTT-3.3.1-2]
    topic = read_topic(c, "the topic name", version >= LEVEL_5)
    if qos:
        packet_id = read_packet_id(c)
    properties = read_properties_if(c, PUBLISH, version)
    publish = Publish(topic, payload=read_rest(c), qos=qos, retain=first & 1, dup=dup, packet_id=packet_id,
                      properties=properties)
    if not topic and publish.get(PROPERTY_TOPIC_ALIAS) is None:
        forbidden("an empty topic name needs a topic alias")    # section 3.3.2.1
    return publish


cdef Packet decode_ack(Cursor* c, int kind, int version):
    cdef int reason = 0
    cdef int packet_id = read_packet_id(c)
    properties = []
    # The reason code may be omitted if it is 0 and there are no properties; the property length may be omitted after a
    # reason code: sections 3.4.2.1 and 3.4.2.2.1.
    if version >= LEVEL_5 and c.at != c.end:
        reason = read_reason(c, kind, version)
        if c.at != c.end:
            properties = read_properties(c, kind)
    expect_end(c, "the acknowledgement")
    made = PubAck if kind == PUBACK else PubRec if kind == PUBREC else PubRel if kind == PUBREL else PubComp
    return made(packet_id, reason_code=reason, properties=properties)


cdef Subscription read_subscription(Cursor* c, int version):
    cdef str text = read_text(c, "a topic filter")
    cdef int options = read_u8(c, "the subscription options")
    if not text:
        forbidden("a topic filter must not be empty")    # [MQTT-4.7.3-1]
    if version < LEVEL_5:
        if options > 2:
            malformed("the requested QoS must be 0, 1 or 2, the other bits 0")    # 3.1.1 [MQTT-3.8.3-4]
        return Subscription(text, qos=options)
    if options & 0xC0:
        malformed("reserved subscription options must be 0")    # [MQTT-3.8.3-5]
    if options & 3 == 3:
        forbidden("Maximum QoS must be 0, 1 or 2")    # section 3.8.3.1
    if options & 0x30 == 0x30:
        forbidden("Retain Handling must be 0, 1 or 2")
    if options & 4 and text.startswith("$share/"):
        forbidden("No Local must be 0 on a Shared Subscription")    # [MQTT-3.8.3-4]
    return Subscription(text, qos=options & 3, no_local=options & 4, retain_as_published=options & 8,
                        retain_handling=options >> 4 & 3)


cdef Subscribe decode_subscribe(Cursor* c, int version):
    cdef list subscriptions = []
    packet_id = read_packet_id(c)
    properties = read_properties_if(c, SUBSCRIBE, version)
    while c.at != c.end:
        subscriptions.append(read_subscription(c, version))
    if not subscriptions:
        forbidden("SUBSCRIBE must hold a topic filter")    # [MQTT-3.8.3-2]
    return Subscribe(packet_id, subscriptions, properties=properties)


cdef Unsubscribe decode_unsubscribe(Cursor* c, int version):
    cdef list filters = []
    packet_id = read_packet_id(c)
    properties = read_properties_if(c, UNSUBSCRIBE, version)
    while c.at != c.end:
        filters.append(read_text(c, "a topic filter"))
        if not filters[len(filters) - 1]:
            forbidden("a topic filter must not be empty")    # [MQTT-4.7.3-1]
    if not filters:
        forbidden("UNSUBSCRIBE must hold a topic filter")    # [MQTT-3.10.3-2]
    return Unsubscribe(packet_id, filters, properties=properties)


cdef list read_reasons(Cursor* c, int kind, int version):
    cdef list codes = []
    while c.at != c.end:
        codes.append(read_reason(c, kind, version))
    if not codes:
        forbidden("the acknowledgement must hold a reason code for each topic filter")
    return codes


cdef SubAck decode_suback(Cursor* c, int version):
    packet_id = read_packet_id(c)
    properties = read_properties_if(c, SUBACK, version)
    return SubAck(packet_id, read_reasons(c, SUBACK, version), properties=properties)


cdef UnsubAck decode_unsuback(Cursor* c, int version):
    packet_id = read_packet_id(c)
    if version < LEVEL_5:
        expect_end(c, "UNSUBACK")
        return UnsubAck(packet_id)
    properties = read_properties(c, UNSUBACK)
    return UnsubAck(packet_id, reason_codes=read_reasons(c, UNSUBACK, version), properties=properties)


cdef Disconnect decode_disconnect(Cursor* c, int version):
    cdef int reason = 0
    properties = []
    # The properties, or both, may be omitted: sections 3.14.2.1 and 3.14.2.2.1.
    if version >= LEVEL_5 and c.at != c.end:
        reason = read_reason(c, DISCONNECT, version)
        if c.at != c.end:
            properties = read_properties(c, DISCONNECT)
    expect_end(c, "DISCONNECT")
    return Disconnect(reason_code=reason, properties=properties)


cdef Auth decode_auth(Cursor* c, int version):
    if version < LEVEL_5:
        forbidden("AUTH needs MQTT 5")
    # Only both together may be omitted: section 3.15.2.1.
    if c.at == c.end:
        return Auth()
    reason = read_reason(c, AUTH, version)
    auth = Auth(reason_code=reason, properties=read_properties(c, AUTH))
    expect_end(c, "AUTH")
    if reason and auth.get(PROPERTY_AUTHENTICATION_METHOD) is None:
        forbidden("AUTH must name its authentication_method")    # section 3.15.2.2.2
    check_authentication(auth)
    return auth


cdef Packet decode_at(int first, Cursor* c, int version):
    cdef int kind = first >> 4
    check_type(kind, version)
    if kind == PUBLISH:
        return decode_publish(c, first, version)
    check_flags(first, version)
    if kind == CONNECT:
        return decode_connect(c)
    if kind == CONNACK:
        return decode_connack(c, version)
    if kind <= PUBCOMP:
        return decode_ack(c, kind, version)
    if kind == SUBSCRIBE:
        return decode_subscribe(c, version)
    if kind == SUBACK:
        return decode_suback(c, version)
    if kind == UNSUBSCRIBE:
        return decode_unsubscribe(c, version)
    if kind == UNSUBACK:
        return decode_unsuback(c, version)
    if kind == DISCONNECT:
        return decode_disconnect(c, version)
    if kind == AUTH:
        return decode_auth(c, version)
    expect_end(c, "PINGREQ or PINGRESP")
    return PingReq() if kind == PINGREQ else PingResp()


cdef int check_version(int version) except -1:
    if version != 0 and not LEVEL_31 <= version <= LEVEL_5:
        raise UsageError(f"version must be 3, 4 or 5, or 0 while it is not known, not {version}")
    return 0


def decode_packet(first_byte: int, body: object, version: int) -> Packet:
    """Decodes one packet of either direction from its first byte and its body.

    body: bytes-like, the Remaining Length bytes behind the fixed header. version: 3, 4 or 5; 0: not
    known yet, which only CONNECT may have, because it contains the version.
    Raises ProtocolError with the reason code to answer with (section 4.13).
    """
    cdef Py_buffer buffer
    cdef Cursor c
    if not 0 <= first_byte <= 255:
        raise UsageError(f"first_byte must be 0 to 255, not {first_byte}")
    check_version(version)
    PyObject_GetBuffer(body, &buffer, PyBUF_SIMPLE)
    try:
        c.at = <const uint8_t*>buffer.buf
        c.end = c.at + buffer.len
        return decode_at(first_byte, &c, version)
    finally:
        PyBuffer_Release(&buffer)


def connect_level(bytes body not None) -> int:
    """Protocol level at the front of a CONNECT's body: 3, 4 or 5; 0: unknown.

    If decode_packet refused the CONNECT, this level determines the form of the CONNACK.
    """
    cdef const uint8_t* at = <const uint8_t*><const char*>body
    return connect_level_at(at, at + len(body))


@cython.final
cdef class Decoder:
    """Machine. Packets from a stream of bytes: feed, then next_packet until it returns None.

    version: 3, 4 or 5 for a stream that does not begin with CONNECT (a client's side), else 0: the first CONNECT
    sets it, even a refused one, so that the answer has the right form. packet_size_max: bytes, including the fixed
    header. After a ProtocolError, next_packet raises the same error again.
    """
    cdef readonly int version
    cdef readonly size_t packet_size_max
    cdef bytearray buffer
    cdef size_t start         # first byte not consumed
    cdef size_t header        # bytes of the fixed header at start, once it is complete; 0 before
    cdef uint32_t remaining   # Remaining Length, valid while header != 0
    cdef object error         # the ProtocolError that ended the stream

    def __init__(self, version: int = 0, packet_size_max: int = VARINT_MAX + 5) -> None:
        check_version(version)
        if packet_size_max < 2:
            raise UsageError(f"packet_size_max must be at least 2 bytes, not {packet_size_max}")
        self.version = version
        self.packet_size_max = packet_size_max
        self.buffer = bytearray()
        self.start = 0
        self.header = 0
        self.remaining = 0
        self.error = None

    def feed(self, data: object) -> None:
        """Appends received bytes (bytes-like, any number), which are copied."""
        if self.start:
            del self.buffer[:self.start]
            self.start = 0
        self.buffer += data

    def next_packet(self) -> Packet | None:
        """The next complete packet; None: more bytes are needed and nothing was consumed. Raises ProtocolError."""
        if self.error is not None:
            raise self.error
        try:
            return self.take()
        except ProtocolError as error:
            self.error = error.with_traceback(None)
            self.buffer.clear()
            self.start = 0
            raise

    cdef Packet take(self):
        cdef Cursor c
        cdef int taken
        cdef const uint8_t* at = <const uint8_t*>PyByteArray_AS_STRING(self.buffer) + self.start
        cdef size_t held = <size_t>PyByteArray_GET_SIZE(self.buffer) - self.start
        if self.header == 0:
            if held < 2:
                return None
            check_type(at[0] >> 4, self.version)    # rejects other protocols before the rest arrives
            c.at = at + 1
            c.end = at + held
            taken = take_varint(&c, &self.remaining)
            if taken == 0:
                return None
            if taken < 0:
                malformed("the remaining length is not a Variable Byte Integer in its shortest form")
            if <size_t>(c.at - at) + self.remaining > self.packet_size_max:
                # Checked before the rest arrives [MQTT-3.1.2-24].
                raise ProtocolError(REASON_PACKET_TOO_LARGE,
                                    f"a packet of {<size_t>(c.at - at) + self.remaining} bytes; at most "
                                    f"{self.packet_size_max} are taken")
            self.header = <size_t>(c.at - at)
        if held - self.header < self.remaining:
            return None
        c.at = at + self.header
        c.end = c.at + self.remaining
        if self.version == 0 and at[0] >> 4 == CONNECT:
            self.version = connect_level_at(c.at, c.end)
        packet = decode_at(at[0], &c, self.version)
        self.start += self.header + self.remaining
        self.header = 0
        return packet
