# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Windows into the C-level helpers of the AMQP 0-9-1 codec, for tests and benchmarks only: nothing else imports this.

Every input is copied to memory of its own size, so that a sanitizer sees a read beyond it.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fluxmq._core.amqp091.fields cimport (
    TABLE_DEPTH_MAX, put_shortstr, table_check, table_find, take_longstr, take_shortstr)
from fluxmq._core.amqp091.properties cimport amqp_properties_t, octets_t, properties_read
from fluxmq._core.wire.primitives cimport Cursor, put_u64, take_u64
from fluxmq._core.wire.sizes cimport fit_u8


cdef uint8_t* copied(bytes data) except NULL:
    cdef size_t n = <size_t>len(data)
    cdef uint8_t* copy = <uint8_t*>malloc(n if n else 1)
    if copy == NULL:
        raise MemoryError
    memcpy(copy, <const char*>data, n)
    return copy


cdef object octets(const octets_t* text):
    return None if text.at == NULL else PyBytes_FromStringAndSize(<const char*>text.at, text.length)


def check(bytes table not None, int depth=TABLE_DEPTH_MAX) -> int:
    """table_check: 0 or the reply code."""
    cdef uint8_t* at = copied(table)
    try:
        return table_check(at, at + len(table), <uint32_t>depth)
    finally:
        free(at)


def find(bytes table not None, bytes key not None) -> tuple[str, bytes] | None:
    """table_find: letter and bytes of the value."""
    cdef uint8_t* at = copied(table)
    cdef uint8_t kind = 0
    cdef const uint8_t* value = NULL
    cdef uint32_t length = 0
    try:
        if not table_find(at, <uint32_t>len(table), key, <uint32_t>len(key), &kind, &value, &length):
            return None
        return chr(kind), PyBytes_FromStringAndSize(<const char*>value, length)
    finally:
        free(at)


def read_properties(bytes properties not None) -> dict[str, object] | int:
    """properties_read: the members that are there by name, and "flags"; or the reply code. Text and table as bytes."""
    cdef uint8_t* at = copied(properties)
    cdef amqp_properties_t out
    cdef int reply
    try:
        reply = properties_read(at, at + len(properties), &out)
        if reply != 0:
            return reply
        found = {
            "flags": out.flags,
            "content_type": octets(&out.content_type), "content_encoding": octets(&out.content_encoding),
            "headers": octets(&out.headers), "delivery_mode": out.delivery_mode if out.flags >> 12 & 1 else None,
            "priority": out.priority if out.flags >> 11 & 1 else None, "correlation_id": octets(&out.correlation_id),
            "reply_to": octets(&out.reply_to), "expiration": octets(&out.expiration),
            "message_id": octets(&out.message_id), "timestamp": out.timestamp if out.flags >> 6 & 1 else None,
            "type": octets(&out.type), "user_id": octets(&out.user_id), "app_id": octets(&out.app_id),
            "cluster_id": octets(&out.cluster_id),
        }
        return {name: value for name, value in found.items() if value is not None}
    finally:
        free(at)


def read_properties_many(bytes properties not None, int times) -> int:
    """properties_read so many times in C, for benchmarks; returns the last reply code."""
    cdef const uint8_t* at = <const uint8_t*><const char*>properties
    cdef const uint8_t* end = at + len(properties)
    cdef amqp_properties_t out
    cdef int i, reply = 0
    with nogil:
        for i in range(times):
            reply = properties_read(at, end, &out)
    return reply


def find_many(bytes table not None, bytes key not None, int times) -> int:
    """table_find so many times in C, for benchmarks; returns how often it was there."""
    cdef const uint8_t* at = <const uint8_t*><const char*>table
    cdef uint32_t length = <uint32_t>len(table)
    cdef const char* name = key
    cdef uint32_t name_length = <uint32_t>len(key)
    cdef uint8_t kind = 0
    cdef const uint8_t* value = NULL
    cdef uint32_t value_length = 0
    cdef int i, found = 0
    with nogil:
        for i in range(times):
            found += table_find(at, length, name, name_length, &kind, &value, &value_length)
    return found


def take(str kind not None, bytes data not None) -> tuple[bool, object, int]:
    """One reader by name ("u64", "shortstr", "longstr"): (there, value, bytes consumed)."""
    cdef uint8_t* start = copied(data)
    cdef const uint8_t* out = NULL
    cdef uint32_t n = 0
    cdef uint64_t number = 0
    cdef bint there
    cdef Cursor c
    c.at = start
    c.end = start + len(data)
    try:
        if kind == "u64":
            there = take_u64(&c, &number)
            return there, number, c.at - start
        elif kind == "shortstr":
            there = take_shortstr(&c, &out, &n)
        elif kind == "longstr":
            there = take_longstr(&c, &out, &n)
        else:
            raise ValueError(kind)
        return there, PyBytes_FromStringAndSize(<const char*>out, n) if there else b"", c.at - start
    finally:
        free(start)


def put(str kind not None, object value) -> bytes:
    """One writer by name ("u64", "shortstr"): the bytes it wrote."""
    cdef uint8_t[256] room
    cdef uint8_t* end
    cdef bytes raw
    if kind == "u64":
        end = put_u64(room, value)
    elif kind == "shortstr":
        raw = value
        end = put_shortstr(room, <const char*>raw, fit_u8(len(raw)))
    else:
        raise ValueError(kind)
    return PyBytes_FromStringAndSize(<const char*>room, end - room)
