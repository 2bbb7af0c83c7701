# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The 14 properties of a basic content header, in place and as a dict. amqp091/properties.pxd draws them."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.amqp091.consts cimport (
    PROPERTY_APP_ID, PROPERTY_CLUSTER_ID, PROPERTY_CONTENT_ENCODING, PROPERTY_CONTENT_TYPE, PROPERTY_CORRELATION_ID,
    PROPERTY_DELIVERY_MODE, PROPERTY_EXPIRATION, PROPERTY_HEADERS, PROPERTY_MESSAGE_ID, PROPERTY_PRIORITY,
    PROPERTY_REPLY_TO, PROPERTY_TIMESTAMP, PROPERTY_TYPE, PROPERTY_USER_ID, REPLY_SYNTAX_ERROR)
from fluxmq._core.amqp091.fields cimport (
    TABLE_DEPTH_MAX, expect_end, read_number, read_shortstr, read_table, syntax_error, table_check, take_longstr,
    take_shortstr, write_number, write_shortstr, write_table, writer_bytes, writer_close, writer_open,
    writer_t)
from fluxmq._core.wire.primitives cimport Cursor, put_u16, take_u8, take_u16, take_u64

from fluxmq._core.errors import UsageError

cdef enum:
    NO_PROPERTY = 0x0003    # flag bits without a property; bit 0 announces further flags, which do not exist
    TEXT = 1
    OCTET = 2
    LONGLONG = 3
    TABLE = 4

# In wire order: the first has bit 15.
_PROPERTIES = (
    ("content_type", TEXT), ("content_encoding", TEXT), ("headers", TABLE), ("delivery_mode", OCTET),
    ("priority", OCTET), ("correlation_id", TEXT), ("reply_to", TEXT), ("expiration", TEXT), ("message_id", TEXT),
    ("timestamp", LONGLONG), ("type", TEXT), ("user_id", TEXT), ("app_id", TEXT), ("cluster_id", TEXT),
)
_NAMES = frozenset(name for name, _ in _PROPERTIES)


cdef inline bint take_text(Cursor* c, uint16_t flags, uint16_t bit, octets_t* out) noexcept nogil:
    """Returns 0 if its flag is set but it is truncated."""
    out.at = NULL
    out.length = 0
    return not flags & bit or take_shortstr(c, &out.at, &out.length)


cdef inline bint take_headers(Cursor* c, uint16_t flags, octets_t* out) noexcept nogil:
    out.at = NULL
    out.length = 0
    return not flags & PROPERTY_HEADERS or (
        take_longstr(c, &out.at, &out.length) and table_check(out.at, out.at + out.length, TABLE_DEPTH_MAX) == 0)


cdef int properties_read(const uint8_t* at, const uint8_t* end, amqp_properties_t* out) noexcept nogil:
    cdef Cursor c
    cdef uint16_t flags = 0
    c.at = at
    c.end = end
    # Member by member, because a memset of the whole costs as much as everything else.
    out.flags = 0
    out.delivery_mode = 0
    out.priority = 0
    out.timestamp = 0
    if not take_u16(&c, &flags) or flags & NO_PROPERTY:
        return REPLY_SYNTAX_ERROR
    out.flags = flags
    if not take_text(&c, flags, PROPERTY_CONTENT_TYPE, &out.content_type) \
            or not take_text(&c, flags, PROPERTY_CONTENT_ENCODING, &out.content_encoding) \
            or not take_headers(&c, flags, &out.headers) \
            or flags & PROPERTY_DELIVERY_MODE and not take_u8(&c, &out.delivery_mode) \
            or flags & PROPERTY_PRIORITY and not take_u8(&c, &out.priority) \
            or not take_text(&c, flags, PROPERTY_CORRELATION_ID, &out.correlation_id) \
            or not take_text(&c, flags, PROPERTY_REPLY_TO, &out.reply_to) \
            or not take_text(&c, flags, PROPERTY_EXPIRATION, &out.expiration) \
            or not take_text(&c, flags, PROPERTY_MESSAGE_ID, &out.message_id) \
            or flags & PROPERTY_TIMESTAMP and not take_u64(&c, &out.timestamp) \
            or not take_text(&c, flags, PROPERTY_TYPE, &out.type) \
            or not take_text(&c, flags, PROPERTY_USER_ID, &out.user_id) \
            or not take_text(&c, flags, PROPERTY_APP_ID, &out.app_id) \
            or not take_text(&c, flags, PROPERTY_CLUSTER_ID, &out.cluster_id) \
            or c.at != c.end:
        return REPLY_SYNTAX_ERROR
    return 0


def decode_properties(bytes properties not None) -> dict[str, object]:
    """The properties present, by name with `_` for `-`: str, int, and for headers the dict of decode_table.

    properties: property flags and property list of a content header. Raises ProtocolError 502.
    """
    cdef Cursor c
    cdef uint16_t flags
    cdef uint32_t bit = 1 << 15
    cdef dict found = {}
    c.at = <const uint8_t*><const char*>properties
    c.end = c.at + len(properties)
    flags = <uint16_t>read_number(&c, 2, "the property flags")
    if flags & NO_PROPERTY:
        syntax_error(f"the property flags 0x{flags:04X} speak of properties that do not exist")
    for name, kind in _PROPERTIES:
        if flags & bit:
            if kind == TEXT:
                found[name] = read_shortstr(&c, name)
            elif kind == TABLE:
                found[name] = read_table(&c, name)
            else:
                found[name] = read_number(&c, 1 if kind == OCTET else 8, name)
        bit >>= 1
    expect_end(&c, "the properties")
    return found


def encode_properties(dict properties not None) -> bytes:
    """Property flags and property list; decode_properties reads them back. None values are omitted.

    Raises UsageError for an unknown name and a value that does not fit.
    """
    cdef writer_t w
    cdef uint16_t flags = 0
    cdef uint32_t bit = 1 << 15
    if not properties.keys() <= _NAMES:
        raise UsageError(f"there are no properties {sorted(properties.keys() - _NAMES, key=str)}")
    writer_open(&w)
    try:
        write_number(&w, 0, 2)
        for name, kind in _PROPERTIES:
            value = properties.get(name)
            if value is not None:
                flags |= <uint16_t>bit
                write_property(&w, name, kind, value)
            bit >>= 1
        put_u16(w.data, flags)
        return writer_bytes(&w)
    finally:
        writer_close(&w)


cdef int write_property(writer_t* w, str name, int kind, object value) except -1:
    cdef int size = 1 if kind == OCTET else 8
    cdef uint64_t maximum = 0xFF if kind == OCTET else 0xFFFFFFFFFFFFFFFF
    if kind == TEXT:
        if not isinstance(value, str):
            raise UsageError(f"{name} must be a str, not {value!r}")
        write_shortstr(w, value, name)
    elif kind == TABLE:
        if not isinstance(value, dict):
            raise UsageError(f"{name} must be a dict, not {value!r}")
        write_table(w, value, name)
    elif isinstance(value, int) and 0 <= value <= maximum:
        write_number(w, <uint64_t>value, size)
    else:
        raise UsageError(f"{name} must be an int from 0 to {maximum}, not {value!r}")
    return 0
