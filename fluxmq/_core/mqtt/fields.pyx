# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Fields of cold MQTT packets as Python values. The contract is in mqtt/fields.pxd; Python does not see this module."""
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.mqtt.consts cimport REASON_MALFORMED_PACKET, REASON_PROTOCOL_ERROR
from fluxmq._core.wire.primitives cimport (
    VARINT_MAX, Cursor, put_varint, take_bytes16, take_u8, take_u16, take_u32, take_varint,
)
from fluxmq._core.wire.text cimport text_valid


cdef object malformed(str text):
    raise ProtocolError(REASON_MALFORMED_PACKET, text)


cdef object forbidden(str text):
    raise ProtocolError(REASON_PROTOCOL_ERROR, text)


cdef int read_u8(Cursor* c, str what) except -1:
    cdef uint8_t value = 0
    if not take_u8(c, &value):
        malformed(f"the packet ends before {what}")
    return value


cdef int read_u16(Cursor* c, str what) except -1:
    cdef uint16_t value = 0
    if not take_u16(c, &value):
        malformed(f"the packet ends before {what}")
    return value


cdef object read_u32(Cursor* c, str what):
    cdef uint32_t value = 0
    if not take_u32(c, &value):
        malformed(f"the packet ends before {what}")
    return value


cdef object read_varint(Cursor* c, str what):
    cdef uint32_t value = 0
    cdef int taken = take_varint(c, &value)
    if taken == 0:
        malformed(f"the packet ends before {what}")
    if taken < 0:
        malformed(f"{what} is not a Variable Byte Integer in its shortest form")    # [MQTT-1.5.5-1]
    return value


cdef str read_text(Cursor* c, str what):
    cdef const uint8_t* text = NULL
    cdef uint16_t n = 0
    if not take_bytes16(c, &text, &n):
        malformed(f"the packet ends before or within {what}")
    if not text_valid(text, n):
        malformed(f"{what} is not well-formed UTF-8 without U+0000")    # [MQTT-1.5.4-1] [MQTT-1.5.4-2]
    return PyUnicode_DecodeUTF8(<const char*>text, n, NULL)


cdef bytes read_binary(Cursor* c, str what):
    cdef const uint8_t* data = NULL
    cdef uint16_t n = 0
    if not take_bytes16(c, &data, &n):
        malformed(f"the packet ends before or within {what}")
    return PyBytes_FromStringAndSize(<const char*>data, n)


cdef bytes read_rest(Cursor* c):
    cdef bytes rest = PyBytes_FromStringAndSize(<const char*>c.at, c.end - c.at)
    c.at = c.end
    return rest


cdef int expect_end(Cursor* c, str what) except -1:
    if c.at != c.end:
        malformed(f"{c.end - c.at} bytes too many after {what}")
    return 0


cdef bytes write_number(object value, int size, str what):
    cdef uint64_t maximum = (<uint64_t>1 << (8 * size)) - 1    # size <= 4
    if not isinstance(value, int) or value < 0 or value > maximum:
        raise UsageError(f"{what} must be an int from 0 to {maximum}, not {value!r}")
    return value.to_bytes(size, "big")


cdef bytes write_varint(object value, str what):
    cdef uint8_t[4] room
    cdef uint8_t* end
    if not isinstance(value, int) or value < 0 or value > VARINT_MAX:
        raise UsageError(f"{what} must be an int from 0 to {VARINT_MAX}, not {value!r}")
    end = put_varint(room, <uint32_t>value)
    return PyBytes_FromStringAndSize(<const char*>room, end - <uint8_t*>room)


cdef bytes write_text(object value, str what):
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a str, not {type(value).__name__}")
    if "\0" in value:
        raise UsageError(f"{what} must not hold U+0000")    # [MQTT-1.5.4-2]
    try:
        data = (<str>value).encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{what} holds a surrogate, which UTF-8 cannot carry") from None
    return write_binary(data, what)


cdef bytes write_binary(object value, str what):
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise UsageError(f"{what} must be bytes, not {type(value).__name__}")
    data = bytes(value)
    if len(data) > 65535:
        raise UsageError(f"{what} has {len(data)} bytes; the wire carries at most 65535")
    return len(data).to_bytes(2, "big") + data
