# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Properties as JSON. See record/json.pxd."""
from base64 import b64encode
from decimal import Decimal
from math import isfinite

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport strlen

from msgspec.json import encode as json_encode

from fluxmq._core.amqp091.consts cimport (
    PROPERTY_APP_ID, PROPERTY_CLUSTER_ID, PROPERTY_CONTENT_ENCODING, PROPERTY_CONTENT_TYPE as AMQP_CONTENT_TYPE,
    PROPERTY_CORRELATION_ID, PROPERTY_DELIVERY_MODE, PROPERTY_EXPIRATION, PROPERTY_HEADERS, PROPERTY_MESSAGE_ID,
    PROPERTY_PRIORITY, PROPERTY_REPLY_TO, PROPERTY_TIMESTAMP, PROPERTY_TYPE, PROPERTY_USER_ID)
from fluxmq._core.amqp091.properties cimport amqp_properties_t, octets_t
from fluxmq._core.amqp091.values cimport room_more, room_put, room_t
from fluxmq._core.mqtt.consts cimport (
    PROPERTY_AUTHENTICATION_DATA, PROPERTY_CONTENT_TYPE, PROPERTY_CORRELATION_DATA, PROPERTY_MESSAGE_EXPIRY_INTERVAL,
    PROPERTY_PAYLOAD_FORMAT_INDICATOR, PROPERTY_RESPONSE_TOPIC, PROPERTY_SUBSCRIPTION_IDENTIFIER,
    PROPERTY_TOPIC_ALIAS, PROPERTY_USER_PROPERTY)
from fluxmq._core.wire.primitives cimport Cursor, peek_u16, peek_u32, take_varint
from fluxmq._core.wire.text cimport utf8_valid

from fluxmq._core.amqp091.fields import decode_table
from fluxmq._core.mqtt.props import property_table

cdef const char* HEX = b"0123456789abcdef"
cdef const char* BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef dict NAMES = {identifier: name for identifier, name, *_ in property_table()}
cdef tuple REPEATED = (PROPERTY_SUBSCRIPTION_IDENTIFIER, PROPERTY_USER_PROPERTY)

cdef enum:
    TABLE_BYTES_MAX = 4096
    TABLES_MAX = 4096       # cached JSON of headers: most publishers repeat them
cdef dict tables = {}


cdef inline int put_text(room_t* out, const char* text) except -1:
    return room_put(out, text, strlen(text))


cdef int put_json(room_t* out, const uint8_t* at, size_t n) except -1:
    cdef uint8_t* to
    cdef size_t i
    cdef uint8_t c
    if not utf8_valid(at, n):
        text = (<const char*>at)[:n].decode("utf-8", "replace").encode()
        return put_json(out, <const uint8_t*><const char*>text, <size_t>len(text))
    to = room_more(out, n * 6 + 2)
    to[0] = c'"'
    to += 1
    for i in range(n):
        c = at[i]
        if c >= 0x20 and c != c'"' and c != c'\\':
            to[0] = c
            to += 1
        elif c >= 0x20:
            to[0] = c'\\'
            to[1] = c
            to += 2
        else:
            to[0] = c'\\'
            to[1] = c'u'
            to[2] = to[3] = c'0'
            to[4] = <uint8_t>HEX[c >> 4]
            to[5] = <uint8_t>HEX[c & 15]
            to += 6
    to[0] = c'"'
    out.used = <size_t>(to + 1 - out.data)
    return 0


cdef int put_base64(room_t* out, const uint8_t* at, size_t n) except -1:
    cdef uint8_t* to = room_more(out, n * 4 // 3 + 8)
    cdef uint32_t three
    to[0] = c'"'
    to += 1
    while n:
        three = <uint32_t>at[0] << 16 | (<uint32_t>at[1] << 8 if n > 1 else 0) | (at[2] if n > 2 else 0)
        to[0] = <uint8_t>BASE64[three >> 18]
        to[1] = <uint8_t>BASE64[three >> 12 & 63]
        to[2] = <uint8_t>BASE64[three >> 6 & 63] if n > 1 else c'='
        to[3] = <uint8_t>BASE64[three & 63] if n > 2 else c'='
        to += 4
        at += min(n, 3)
        n -= min(n, 3)
    to[0] = c'"'
    out.used = <size_t>(to + 1 - out.data)
    return 0


cdef int put_number(room_t* out, uint64_t value) except -1:
    cdef char[24] digits
    return room_put(out, digits, <size_t>snprintf(digits, 24, "%llu", <unsigned long long>value))


cdef int put_name(room_t* out, const char* name) except -1:
    """Writes a comma if needed, the name and a colon."""
    if out.data[out.used - 1] != c'{':
        put_text(out, b",")
    put_text(out, b'"')
    put_text(out, name)
    return put_text(out, b'":')


cdef const uint8_t* behind(const uint8_t* at) noexcept nogil:
    """The position of the next property of a PUBLISH."""
    cdef uint8_t identifier = at[0]
    cdef Cursor c
    cdef uint32_t number = 0
    at += 1
    if identifier == PROPERTY_PAYLOAD_FORMAT_INDICATOR:
        return at + 1
    if identifier == PROPERTY_TOPIC_ALIAS:
        return at + 2
    if identifier == PROPERTY_MESSAGE_EXPIRY_INTERVAL:
        return at + 4
    if identifier == PROPERTY_SUBSCRIPTION_IDENTIFIER:
        c.at = at
        c.end = at + 4
        take_varint(&c, &number)
        return c.at
    at += 2 + peek_u16(at)
    return at + 2 + peek_u16(at) if identifier == PROPERTY_USER_PROPERTY else at


cdef int put_repeated(room_t* out, const uint8_t* at, const uint8_t* end, uint8_t wanted, const char* name) except -1:
    """All properties of an identifier that may repeat, as a list; writes nothing if there is none."""
    cdef bint some = 0
    cdef Cursor c
    cdef uint32_t number = 0
    while at < end:
        if at[0] == wanted:
            if some:
                put_text(out, b",")
            else:
                put_name(out, name)
                put_text(out, b"[")
            some = 1
            if wanted == PROPERTY_SUBSCRIPTION_IDENTIFIER:
                c.at = at + 1
                c.end = end
                take_varint(&c, &number)
                put_number(out, number)
            else:
                put_text(out, b"[")
                put_json(out, at + 3, peek_u16(at + 1))
                put_text(out, b",")
                put_json(out, at + 5 + peek_u16(at + 1), peek_u16(at + 3 + peek_u16(at + 1)))
                put_text(out, b"]")
        at = behind(at)
    return put_text(out, b"]") if some else 0


cdef int put_publish_properties(room_t* out, const uint8_t* at, const uint8_t* end) except -1:
    cdef const uint8_t* start = at
    cdef uint8_t identifier
    put_text(out, b"{")
    while at < end:
        identifier = at[0]
        if identifier == PROPERTY_PAYLOAD_FORMAT_INDICATOR:
            put_name(out, b"payload_format_indicator")
            put_number(out, at[1])
        elif identifier == PROPERTY_TOPIC_ALIAS:
            put_name(out, b"topic_alias")
            put_number(out, peek_u16(at + 1))
        elif identifier == PROPERTY_MESSAGE_EXPIRY_INTERVAL:
            put_name(out, b"message_expiry_interval")
            put_number(out, peek_u32(at + 1))
        elif identifier == PROPERTY_CONTENT_TYPE:
            put_name(out, b"content_type")
            put_json(out, at + 3, peek_u16(at + 1))
        elif identifier == PROPERTY_RESPONSE_TOPIC:
            put_name(out, b"response_topic")
            put_json(out, at + 3, peek_u16(at + 1))
        elif identifier == PROPERTY_CORRELATION_DATA:
            put_name(out, b"correlation_data")
            put_base64(out, at + 3, peek_u16(at + 1))
        at = behind(at)
    put_repeated(out, start, end, PROPERTY_SUBSCRIPTION_IDENTIFIER, b"subscription_identifier")
    put_repeated(out, start, end, PROPERTY_USER_PROPERTY, b"user_property")
    return put_text(out, b"}")


cdef int put_octets(room_t* out, const amqp_properties_t* found, uint16_t bit, const char* name,
                    const octets_t* value) except -1:
    if found.flags & bit:
        put_name(out, name)
        put_json(out, value.at, value.length)
    return 0


cdef bytes table_json(bytes table):
    """A table that properties_read has checked."""
    known = tables.get(table)
    if known is None:
        known = json_encode(plain_value(decode_table(table)))
        if len(table) <= TABLE_BYTES_MAX:
            if len(tables) >= TABLES_MAX:
                tables.clear()
            tables[table] = known
    return known


cdef int put_content_properties(room_t* out, const amqp_properties_t* found) except -1:
    put_text(out, b"{")
    put_octets(out, found, AMQP_CONTENT_TYPE, b"content_type", &found.content_type)
    put_octets(out, found, PROPERTY_CONTENT_ENCODING, b"content_encoding", &found.content_encoding)
    if found.flags & PROPERTY_HEADERS:
        put_name(out, b"headers")
        headers = table_json((<const char*>found.headers.at)[:found.headers.length])
        room_put(out, <const char*>headers, <size_t>len(headers))
    if found.flags & PROPERTY_DELIVERY_MODE:
        put_name(out, b"delivery_mode")
        put_number(out, found.delivery_mode)
    if found.flags & PROPERTY_PRIORITY:
        put_name(out, b"priority")
        put_number(out, found.priority)
    put_octets(out, found, PROPERTY_CORRELATION_ID, b"correlation_id", &found.correlation_id)
    put_octets(out, found, PROPERTY_REPLY_TO, b"reply_to", &found.reply_to)
    put_octets(out, found, PROPERTY_EXPIRATION, b"expiration", &found.expiration)
    put_octets(out, found, PROPERTY_MESSAGE_ID, b"message_id", &found.message_id)
    if found.flags & PROPERTY_TIMESTAMP:
        put_name(out, b"timestamp")
        put_number(out, found.timestamp)
    put_octets(out, found, PROPERTY_TYPE, b"type", &found.type)
    put_octets(out, found, PROPERTY_USER_ID, b"user_id", &found.user_id)
    put_octets(out, found, PROPERTY_APP_ID, b"app_id", &found.app_id)
    put_octets(out, found, PROPERTY_CLUSTER_ID, b"cluster_id", &found.cluster_id)
    return put_text(out, b"}")


cdef dict properties_of(list properties):
    cdef dict found = {}
    for identifier, value in properties:
        if identifier == PROPERTY_AUTHENTICATION_DATA:
            continue
        if isinstance(value, bytes):
            value = b64encode(value).decode()
        if identifier in REPEATED:
            found.setdefault(NAMES[identifier], []).append(value)
        else:
            found[NAMES[identifier]] = value
    return found or None


cdef object plain_value(object value):
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {plain_value(name): plain_value(inner) for name, inner in value.items()}
    return [plain_value(inner) for inner in value]
