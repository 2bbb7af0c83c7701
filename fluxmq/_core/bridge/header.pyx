# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Adds a header to a property list. See bridge/header.pxd."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset, strlen

from fluxmq._core.amqp091.names cimport HEADERS, props_read, props_t
from fluxmq._core.amqp091.values cimport entry_t, next_entry, put_entry, room_free, room_more, room_put, room_t
from fluxmq._core.memory.message cimport body_t
from fluxmq._core.wire.primitives cimport peek_u16, put_u16, put_u32, put_u64
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["with_number"]

cdef enum:
    HEADERS_FLAG = 1 << 13


cdef inline int compared(const entry_t* entry, const char* name, uint32_t n) noexcept nogil:
    """Compares the entry's name with this one: before (< 0), equal (0), or after."""
    cdef int order = memcmp(entry.name, name, min(<uint32_t>entry.name_length, n))
    return order if order else <int>entry.name_length - <int>n


cdef int header_add(body_t* body, const char* name, int64_t value, room_t* room) except -1:
    cdef const uint8_t* start = body.properties
    cdef const uint8_t* before = start + 2              # end of the properties before the headers
    cdef const uint8_t* behind
    cdef const uint8_t* at = NULL
    cdef const uint8_t* end = NULL
    cdef uint8_t[8] number
    cdef uint32_t n = <uint32_t>strlen(name)
    cdef uint32_t flags = peek_u16(start) | HEADERS_FLAG
    cdef uint32_t i
    cdef size_t table
    cdef props_t props
    cdef entry_t entry
    cdef entry_t ours
    cdef bint written = 0
    props_read(start, body.properties_length, &props)
    for i in range(<uint32_t>HEADERS):
        if props.of[i].at != NULL:
            before = props.of[i].at + props.of[i].n
    behind = before
    if props.of[HEADERS].at != NULL:
        at = props.of[HEADERS].at
        behind = end = at + props.of[HEADERS].n
    ours.kind = c'l'
    ours.name = <const uint8_t*>name
    ours.name_length = <uint8_t>n
    ours.value = number
    ours.size = 8
    room.used = 0
    room_put(room, number, put_u16(number, <uint16_t>flags) - number)
    room_put(room, start + 2, <size_t>(before - start - 2))
    put_u64(number, <uint64_t>value)
    table = room.used + 4
    room_more(room, 4)
    room.used = table
    while at != NULL and next_entry(&at, end, &entry):
        if not written and compared(&entry, name, n) >= 0:
            put_entry(room, &ours)
            written = 1
        if compared(&entry, name, n) != 0:
            put_entry(room, &entry)
    if not written:
        put_entry(room, &ours)
    put_u32(room.data + table - 4, fit_u32(room.used - table))
    room_put(room, behind, <size_t>(start + body.properties_length - behind))
    body.properties = room.data
    body.properties_length = fit_u32(room.used)
    return 0


def with_number(bytes properties not None, bytes name not None, int64_t value) -> bytes:
    """As header_add. properties: flags and list, valid."""
    cdef body_t body
    cdef room_t room
    memset(&body, 0, sizeof(body))
    memset(&room, 0, sizeof(room))
    body.properties = <const uint8_t*><const char*>properties
    body.properties_length = <uint32_t>len(properties)
    try:
        header_add(&body, name, value, &room)
        return (<const char*>body.properties)[:body.properties_length]
    finally:
        room_free(&room)
