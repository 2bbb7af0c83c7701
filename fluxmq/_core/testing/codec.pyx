# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Windows into the C-level helpers of the MQTT codec, for tests and benchmarks only: nothing else imports this."""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc

from fluxmq._core.mqtt.decode cimport reason_fits
from fluxmq._core.mqtt.props cimport publish_props_t, scan_publish_props
from fluxmq._core.wire.primitives cimport (
    VARINT_MAX, Cursor, put_bytes16, put_u8, put_u16, put_u32, put_varint, take_bytes16, take_u8, take_u16, take_u32,
    take_varint, varint_size,
)
from fluxmq._core.wire.sizes cimport fit_u16
from fluxmq._core.wire.text cimport topic_valid


def scan(bytes properties not None) -> dict[str, object] | int:
    """scan_publish_props over property bytes without their length: its results by name, or the reason code.

    "in_place" tells whether the forwarded bytes lie inside the input.
    """
    cdef publish_props_t out
    cdef const uint8_t* at = <const uint8_t*><const char*>properties
    cdef size_t n = <size_t>len(properties)
    cdef uint8_t* scratch = <uint8_t*>malloc(n if n else 1)
    cdef int reason
    if scratch == NULL:
        raise MemoryError
    try:
        reason = scan_publish_props(at, at + n, &out, scratch)
        if reason:
            return reason
        return {
            "topic_alias": out.topic_alias,
            "expiry_s": out.expiry_s if out.has_expiry else None,
            "subscription_ids": out.has_subscription_id,
            "forward": PyBytes_FromStringAndSize(<const char*>out.forward, out.forward_length),
            "in_place": out.forward_length == 0 or at <= out.forward < at + n,
            "user_properties": out.user_properties,
            "payload_format": out.payload_format,
        }
    finally:
        free(scratch)


def scan_many(bytes properties not None, int times) -> int:
    """scan_publish_props so many times in C, for benchmarks; returns the last reason code."""
    cdef publish_props_t out
    cdef const uint8_t* at = <const uint8_t*><const char*>properties
    cdef const uint8_t* end = at + len(properties)
    cdef uint8_t[1024] scratch
    cdef int i, reason = 0
    if len(properties) > 1024:
        raise ValueError("at most 1024 bytes")
    with nogil:
        for i in range(times):
            reason = scan_publish_props(at, end, &out, scratch)
    return reason


def check_topic_many(bytes topic not None, int times) -> int:
    """topic_valid so many times in C, for benchmarks; returns how many were valid."""
    cdef const uint8_t* at = <const uint8_t*><const char*>topic
    cdef size_t n = <size_t>len(topic)
    cdef int i, valid = 0
    with nogil:
        for i in range(times):
            valid += topic_valid(at, n, 32 + (i & 1)) == 1
    return valid


def take(str kind not None, bytes data not None) -> tuple[int, object, int]:
    """One reader of wire/primitives.pxd ("u8", "u16", "u32", "varint", "bytes16"): (result, value, bytes consumed)."""
    cdef Cursor c
    cdef uint8_t byte = 0
    cdef uint16_t two = 0
    cdef uint32_t four = 0
    cdef const uint8_t* out = NULL
    cdef const uint8_t* start = <const uint8_t*><const char*>data
    cdef int result
    c.at = start
    c.end = start + len(data)
    value: object = None
    if kind == "u8":
        result = take_u8(&c, &byte)
        value = byte
    elif kind == "u16":
        result = take_u16(&c, &two)
        value = two
    elif kind == "u32":
        result = take_u32(&c, &four)
        value = four
    elif kind == "varint":
        result = take_varint(&c, &four)
        value = four
    elif kind == "bytes16":
        result = take_bytes16(&c, &out, &two)
        value = PyBytes_FromStringAndSize(<const char*>out, two)
    else:
        raise ValueError(kind)
    return result, value, c.at - start


def put(str kind not None, object value) -> bytes:
    """One writer of wire/primitives.pxd by name: the bytes it wrote."""
    cdef uint8_t* room = <uint8_t*>malloc(65540)
    cdef uint8_t* end
    cdef bytes raw
    if room == NULL:
        raise MemoryError
    try:
        if kind == "u8":
            end = put_u8(room, value)
        elif kind == "u16":
            end = put_u16(room, value)
        elif kind == "u32":
            end = put_u32(room, value)
        elif kind == "varint":
            end = put_varint(room, value)
            if end - room != varint_size(value):
                raise AssertionError("varint_size and put_varint disagree")
        elif kind == "bytes16":
            raw = value
            end = put_bytes16(room, <const char*>raw, fit_u16(len(raw)))
        else:
            raise ValueError(kind)
        return PyBytes_FromStringAndSize(<const char*>room, end - room)
    finally:
        free(room)


def reasons_of(int packet_type, int version) -> list[int]:
    """The reason codes that a packet type may carry in a version."""
    return [reason for reason in range(256) if reason_fits(packet_type, reason, version)]
