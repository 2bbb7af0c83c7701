# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The properties of MQTT 5.0 (section 2.2.2).

    Property Length (varint) | Identifier (one byte in this version) | value | Identifier | value | ...

TABLE below defines the type, the permitted packets and the permitted values of each property. A property in the wrong
packet is malformed, 0x81 (section 2.2.2.2); a repeated one is a protocol error, 0x82 (section 3, for each of them). The
user property may repeat everywhere, the subscription identifier in PUBLISH. The identifier is formally a varint, but
each defined one fits a byte, and longer forms are not minimal [MQTT-1.5.5-1]; so a first byte that is not in the table
is malformed either way.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.mqtt.consts cimport *
from fluxmq._core.mqtt.fields cimport (
    expect_end, forbidden, malformed, read_binary, read_text, read_u8, read_u16, read_u32, read_varint, write_binary,
    write_number, write_text, write_varint,
)
from fluxmq._core.wire.primitives cimport Cursor, take_bytes16, take_u8, take_u16, take_u32, take_varint
from fluxmq._core.wire.sizes cimport fit_u32
from fluxmq._core.wire.text cimport TEXT_BAD, TEXT_OK, text_valid, topic_valid

cdef enum:            # types of values
    BYTE = 1
    TWO = 2
    FOUR = 3
    VARINT = 4
    TEXT = 5
    BINARY = 6
    PAIR = 7

cdef enum:            # rules for values beyond their type; a violation is a protocol error
    ANY = 0
    FLAG = 1          # 0 or 1
    NONZERO = 2
    TOPIC = 3         # a topic name: not empty, no wildcards
    ALIAS = 4         # not 0, with a reason code of its own

cdef enum:
    IDENTIFIERS = 0x2B

PropertyValue = int | str | bytes | tuple[str, str]    # for annotations

_TYPE_NAMES = (None, "byte", "two byte integer", "four byte integer", "variable byte integer", "utf-8 string",
              "binary data", "utf-8 string pair")
_ALL_PACKETS = (CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK,
               DISCONNECT, AUTH, WILL)
_WITH_REASON = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)

# identifier, name, type, rule, where
_TABLE = (
    (PROPERTY_PAYLOAD_FORMAT_INDICATOR, "payload_format_indicator", BYTE, FLAG, (PUBLISH, WILL)),
    (PROPERTY_MESSAGE_EXPIRY_INTERVAL, "message_expiry_interval", FOUR, ANY, (PUBLISH, WILL)),
    (PROPERTY_CONTENT_TYPE, "content_type", TEXT, ANY, (PUBLISH, WILL)),
    (PROPERTY_RESPONSE_TOPIC, "response_topic", TEXT, TOPIC, (PUBLISH, WILL)),
    (PROPERTY_CORRELATION_DATA, "correlation_data", BINARY, ANY, (PUBLISH, WILL)),
    (PROPERTY_SUBSCRIPTION_IDENTIFIER, "subscription_identifier", VARINT, NONZERO, (PUBLISH, SUBSCRIBE)),
    (PROPERTY_SESSION_EXPIRY_INTERVAL, "session_expiry_interval", FOUR, ANY, (CONNECT, CONNACK, DISCONNECT)),
    (PROPERTY_ASSIGNED_CLIENT_IDENTIFIER, "assigned_client_identifier", TEXT, ANY, (CONNACK,)),
    (PROPERTY_SERVER_KEEP_ALIVE, "server_keep_alive", TWO, ANY, (CONNACK,)),
    (PROPERTY_AUTHENTICATION_METHOD, "authentication_method", TEXT, ANY, (CONNECT, CONNACK, AUTH)),
    (PROPERTY_AUTHENTICATION_DATA, "authentication_data", BINARY, ANY, (CONNECT, CONNACK, AUTH)),
    (PROPERTY_REQUEST_PROBLEM_INFORMATION, "request_problem_information", BYTE, FLAG, (CONNECT,)),
    (PROPERTY_WILL_DELAY_INTERVAL, "will_delay_interval", FOUR, ANY, (WILL,)),
    (PROPERTY_REQUEST_RESPONSE_INFORMATION, "request_response_information", BYTE, FLAG, (CONNECT,)),
    (PROPERTY_RESPONSE_INFORMATION, "response_information", TEXT, ANY, (CONNACK,)),
    (PROPERTY_SERVER_REFERENCE, "server_reference", TEXT, ANY, (CONNACK, DISCONNECT)),
    (PROPERTY_REASON_STRING, "reason_string", TEXT, ANY, _WITH_REASON),
    (PROPERTY_RECEIVE_MAXIMUM, "receive_maximum", TWO, NONZERO, (CONNECT, CONNACK)),
    (PROPERTY_TOPIC_ALIAS_MAXIMUM, "topic_alias_maximum", TWO, ANY, (CONNECT, CONNACK)),
    (PROPERTY_TOPIC_ALIAS, "topic_alias", TWO, ALIAS, (PUBLISH,)),
    (PROPERTY_MAXIMUM_QOS, "maximum_qos", BYTE, FLAG, (CONNACK,)),
    (PROPERTY_RETAIN_AVAILABLE, "retain_available", BYTE, FLAG, (CONNACK,)),
    (PROPERTY_USER_PROPERTY, "user_property", PAIR, ANY, _ALL_PACKETS),
    (PROPERTY_MAXIMUM_PACKET_SIZE, "maximum_packet_size", FOUR, NONZERO, (CONNECT, CONNACK)),
    (PROPERTY_WILDCARD_SUBSCRIPTION_AVAILABLE, "wildcard_subscription_available", BYTE, FLAG, (CONNACK,)),
    (PROPERTY_SUBSCRIPTION_IDENTIFIER_AVAILABLE, "subscription_identifier_available", BYTE, FLAG, (CONNACK,)),
    (PROPERTY_SHARED_SUBSCRIPTION_AVAILABLE, "shared_subscription_available", BYTE, FLAG, (CONNACK,)),
)

# TABLE by identifier, for reading without Python. kind 0 = no such property; where and repeats: bit = packet type.
cdef struct spec_t:
    uint8_t kind
    uint8_t rule
    uint32_t where
    uint32_t repeats

cdef spec_t[IDENTIFIERS] specs
cdef list names = [None] * IDENTIFIERS


cdef int fill_specs() except -1:
    cdef int identifier
    memset(specs, 0, sizeof(specs))
    for identifier, name, kind, rule, where in _TABLE:
        names[identifier] = name
        specs[identifier].kind = kind
        specs[identifier].rule = rule
        for packet in where:
            specs[identifier].where |= <uint32_t>1 << <int>packet
    specs[PROPERTY_USER_PROPERTY].repeats = specs[PROPERTY_USER_PROPERTY].where
    specs[PROPERTY_SUBSCRIPTION_IDENTIFIER].repeats = 1 << PUBLISH
    return 0


fill_specs()


cdef inline bint take_text(Cursor* c, const uint8_t** out, uint16_t* n) noexcept nogil:
    return take_bytes16(c, out, n) and text_valid(out[0], n[0])


cdef int scan_publish_props(const uint8_t* at, const uint8_t* end, publish_props_t* out,
                            uint8_t* scratch) noexcept nogil:
    cdef Cursor c
    cdef const uint8_t* start
    cdef const uint8_t* text = NULL
    cdef uint16_t n = 0, alias = 0
    cdef uint32_t number = 0
    cdef uint64_t seen = 0
    cdef uint8_t identifier
    cdef bint gathered = 0
    memset(out, 0, sizeof(publish_props_t))
    c.at = at
    c.end = end
    while c.at < end:
        start = c.at
        identifier = c.at[0]
        c.at += 1
        if identifier == PROPERTY_USER_PROPERTY:
            if not take_text(&c, &text, &n) or not take_text(&c, &text, &n):
                return REASON_MALFORMED_PACKET
            out.user_properties += 1
        elif identifier == PROPERTY_SUBSCRIPTION_IDENTIFIER:
            if take_varint(&c, &number) != 1:
                return REASON_MALFORMED_PACKET
            if number == 0:
                return REASON_PROTOCOL_ERROR
            if out.has_subscription_id < 255:
                out.has_subscription_id += 1
            continue
        elif identifier >= IDENTIFIERS or not specs[identifier].where & (1 << PUBLISH):
            return REASON_MALFORMED_PACKET
        elif seen >> identifier & 1:
            return REASON_PROTOCOL_ERROR
        else:
            seen |= <uint64_t>1 << identifier
            if identifier == PROPERTY_TOPIC_ALIAS:
                if not take_u16(&c, &alias):
                    return REASON_MALFORMED_PACKET
                if alias == 0:
                    return REASON_TOPIC_ALIAS_INVALID
                out.topic_alias = alias
                continue
            elif identifier == PROPERTY_MESSAGE_EXPIRY_INTERVAL:
                if not take_u32(&c, &out.expiry_s):
                    return REASON_MALFORMED_PACKET
                out.has_expiry = 1
                continue
            elif identifier == PROPERTY_PAYLOAD_FORMAT_INDICATOR:
                if not take_u8(&c, &out.payload_format):
                    return REASON_MALFORMED_PACKET
                if out.payload_format > 1:
                    return REASON_PROTOCOL_ERROR
            elif identifier == PROPERTY_RESPONSE_TOPIC:
                if not take_bytes16(&c, &text, &n):
                    return REASON_MALFORMED_PACKET
                number = <uint32_t>(topic_valid(text, n, 0) + 1)
                if number != TEXT_OK + 1:
                    return REASON_MALFORMED_PACKET if number == 0 else REASON_PROTOCOL_ERROR
            elif identifier == PROPERTY_CONTENT_TYPE:
                if not take_text(&c, &text, &n):
                    return REASON_MALFORMED_PACKET
            elif not take_bytes16(&c, &text, &n):    # correlation data
                return REASON_MALFORMED_PACKET
        # start..c.at is forwarded: it extends the run, or the run moves to scratch and it is appended there.
        if out.forward_length == 0:
            out.forward = start
        elif gathered or out.forward + out.forward_length != start:
            if not gathered:
                memcpy(scratch, out.forward, out.forward_length)
                out.forward = scratch
                gathered = 1
            memcpy(scratch + out.forward_length, start, <size_t>(c.at - start))
        out.forward_length += fit_u32(c.at - start)
    return 0


cdef object read_value(Cursor* c, int identifier):
    """Reads the value of a property and checks its type and rule."""
    cdef str name = names[identifier]
    cdef int kind = specs[identifier].kind, rule = specs[identifier].rule
    cdef int verdict
    cdef bytes topic
    if kind == BYTE:
        value = read_u8(c, name)
    elif kind == TWO:
        value = read_u16(c, name)
    elif kind == FOUR:
        value = read_u32(c, name)
    elif kind == VARINT:
        value = read_varint(c, name)
    elif kind == TEXT:
        value = read_text(c, name)
    elif kind == BINARY:
        value = read_binary(c, name)
    else:
        key = read_text(c, name)
        value = (key, read_text(c, name))
    if rule == FLAG and value > 1:
        forbidden(f"{name} must be 0 or 1, not {value}")
    elif rule == NONZERO and value == 0:
        forbidden(f"{name} must not be 0")
    elif rule == ALIAS and value == 0:
        raise ProtocolError(REASON_TOPIC_ALIAS_INVALID, "topic_alias must not be 0")    # [MQTT-3.3.2-8]
    elif rule == TOPIC:
        topic = value.encode()
        verdict = topic_valid(<const uint8_t*><const char*>topic, <size_t>len(topic), 0)
        if verdict != TEXT_OK:
            forbidden(f"{name} must be a topic name: not empty, without wildcards")    # [MQTT-3.3.2-14]
    return value


cdef list read_properties(Cursor* c, int where):
    cdef Cursor inner
    cdef uint64_t seen = 0
    cdef int identifier
    cdef list found = []
    cdef uint32_t length = read_varint(c, "the property length")
    if c.end - c.at < <ssize_t>length:
        malformed("the packet ends within its properties")
    inner.at = c.at
    inner.end = c.at + length
    while inner.at < inner.end:
        identifier = inner.at[0]
        inner.at += 1
        if identifier >= IDENTIFIERS or specs[identifier].kind == 0:
            malformed(f"there is no property 0x{identifier:02X}")
        if not specs[identifier].where >> where & 1:
            malformed(f"{names[identifier]} is not a property of this packet")
        if seen >> identifier & 1 and not specs[identifier].repeats >> where & 1:
            forbidden(f"{names[identifier]} comes more than once")
        seen |= <uint64_t>1 << identifier
        found.append((identifier, read_value(&inner, identifier)))
    # Only now: after an error the cursor must still be at the length.
    c.at = inner.end
    return found


cdef bytes write_value(int identifier, object value):
    cdef str name = names[identifier]
    cdef int kind = specs[identifier].kind, rule = specs[identifier].rule
    if kind == BYTE:
        data = write_number(value, 1, name)
    elif kind == TWO:
        data = write_number(value, 2, name)
    elif kind == FOUR:
        data = write_number(value, 4, name)
    elif kind == VARINT:
        data = write_varint(value, name)
    elif kind == TEXT:
        data = write_text(value, name)
    elif kind == BINARY:
        data = write_binary(value, name)
    elif isinstance(value, tuple) and len(value) == 2:
        return write_text(value[0], name) + write_text(value[1], name)
    else:
        raise UsageError(f"{name} must be a pair (name, value) of str, not {value!r}")
    if rule == FLAG and value > 1 or rule in (NONZERO, ALIAS) and value == 0:
        raise UsageError(f"{name} must not be {value}")
    if rule == TOPIC and topic_valid(<const uint8_t*><const char*>data + 2, <size_t>len(data) - 2, 0) != TEXT_OK:
        raise UsageError(f"{name} must be a topic name: not empty, without wildcards")
    return data


cdef bytes write_bare(list properties, int where):
    """Property bytes without their length; where = -1 only checks that each property is well formed."""
    cdef uint64_t seen = 0
    cdef int identifier
    cdef list parts = []
    for entry in properties:
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise UsageError(f"a property is a tuple (identifier, value), not {entry!r}")
        if not isinstance(entry[0], int) or not 0 <= entry[0] < IDENTIFIERS or names[entry[0]] is None:
            raise UsageError(f"there is no property {entry[0]!r}")
        identifier = entry[0]
        if where >= 0:
            if not specs[identifier].where >> where & 1:
                raise UsageError(f"{names[identifier]} is not a property of this packet")
            if seen >> identifier & 1 and not specs[identifier].repeats >> where & 1:
                raise UsageError(f"{names[identifier]} may stand only once in this packet")
            seen |= <uint64_t>1 << identifier
        parts.append(bytes((identifier,)))
        parts.append(write_value(identifier, entry[1]))
    return b"".join(parts)


cdef bytes write_properties(list properties, int where):
    if not properties:
        return b"\0"
    bare = write_bare(properties, where)
    return write_varint(len(bare), "the property length") + bare


def decode_properties(view: object, packet_type: int) -> list[tuple[int, object]]:
    """Properties in wire order, as (identifier, value).

    view: bytes-like, a Property Length and that many bytes, nothing after. packet_type: 1 to 15, or 16 for a will.
    Values: int, str, bytes, or (str, str) for a user property.
    Raises ProtocolError: 0x81, 0x82 or 0x94. Section 2.2.2.
    """
    cdef Py_buffer buffer
    cdef Cursor c
    if not 1 <= packet_type <= WILL:
        raise UsageError(f"packet_type must be 1 to 16, not {packet_type!r}")
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        c.at = <const uint8_t*>buffer.buf
        c.end = c.at + buffer.len
        found = read_properties(&c, packet_type)
        expect_end(&c, "the properties")
        return found
    finally:
        PyBuffer_Release(&buffer)


def encode_properties(properties: list, packet_type: int = -1) -> bytes:
    """Property Length and properties as wire bytes; decode_properties reads them back.

    packet_type: 1 to 15, or 16 for a will, checks that each property is permitted there, and how often; -1 does not.
    Raises UsageError if a property is unknown, of the wrong type, forbidden or too long. Section 2.2.2.
    """
    if packet_type != -1 and not 1 <= packet_type <= WILL:
        raise UsageError(f"packet_type must be -1 or 1 to 16, not {packet_type!r}")
    bare = write_bare(properties, packet_type)
    return write_varint(len(bare), "the property length") + bare


def property_table() -> list[tuple[int, str, str, frozenset[int], frozenset[int]]]:
    """The rows of section 2.2.2.2: (identifier, name, type, packet types that carry it, those where it repeats).

    Packet type 16 stands for will properties.
    """
    rows = []
    for identifier, name, kind, _, where in _TABLE:
        repeats = specs[<int>identifier].repeats
        rows.append((identifier, name, _TYPE_NAMES[kind], frozenset(where),
                     frozenset(packet for packet in where if repeats >> <int>packet & 1)))
    return rows
