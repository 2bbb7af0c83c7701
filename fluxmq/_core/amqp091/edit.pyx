# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Reads and changes AMQP 0-9-1 property lists of queued messages for the cold path: display for operators, headers of
dead letters. Values of headers are text, as amqp091/values writes it."""
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from fluxmq._core.amqp091.names cimport COUNT, DELIVERY_MODE, HEADERS, NAMES, PRIORITY, TIMESTAMP, props_read, props_t
from fluxmq._core.amqp091.values cimport entry_t, next_entry, put_entry, room_free, room_more, room_t, value_text
from fluxmq._core.wire.sizes cimport fit_u8

__all__ = ["headers_of", "properties_of", "split_address", "with_headers"]


cdef props_t read(bytes properties):
    cdef props_t props
    props_read(<const uint8_t*><const char*>properties, <uint32_t>len(properties), &props)
    return props


cdef bytes table_of(const props_t* props):
    if props.of[HEADERS].at == NULL:
        return b""
    return (<const char*>props.of[HEADERS].at)[:props.of[HEADERS].n]


def split_address(bytes address not None) -> tuple[bytes, bytes]:
    """(exchange, routing key) of an address as FORMAT_AMQP091 writes it; (b"", b""): it is not one."""
    if not address or address[0] >= len(address):
        return b"", b""
    end = 1 + address[0]
    return address[1:end], address[end:]


def properties_of(bytes properties not None) -> dict[str, str | int]:
    """The properties by their names with dashes, without headers. Invalid UTF-8 is replaced."""
    cdef props_t props = read(properties)
    cdef uint32_t i
    found = {}
    for i in range(<uint32_t>COUNT):
        if props.of[i].at == NULL or i == HEADERS:
            continue
        raw = (<const char*>props.of[i].at)[:props.of[i].n]
        name = (<bytes>NAMES[i])[5:].decode()
        found[name] = (int.from_bytes(raw, "big") if i == DELIVERY_MODE or i == PRIORITY or i == TIMESTAMP
                       else raw.decode("utf-8", "backslashreplace"))
    return found


def headers_of(bytes properties not None) -> list[tuple[bytes, bytes]]:
    """(name, text) of each header, in order."""
    cdef props_t props = read(properties)
    cdef bytes table = table_of(&props)
    cdef const uint8_t* at = <const uint8_t*><const char*>table
    cdef const uint8_t* end = at + len(table)
    cdef entry_t entry
    cdef room_t text
    cdef char[3] code
    found = []
    memset(&text, 0, sizeof(text))
    try:
        while next_entry(&at, end, &entry):
            text.used = 0
            room_more(&text, 1)
            value_text(&text, &entry, code)
            found.append(((<const char*>entry.name)[:entry.name_length], (<const char*>text.data)[:text.used]))
    finally:
        room_free(&text)
    return found


def with_headers(bytes properties not None, list pairs not None, bytes without=b"") -> bytes:
    """The property list with these strings appended to its headers, without headers whose names begin with `without`.

    pairs: (name, value), bytes; names have at most 255.
    """
    cdef props_t props = read(properties)
    cdef bytes table = table_of(&props)
    cdef const uint8_t* at = <const uint8_t*><const char*>table
    cdef const uint8_t* end = at + len(table)
    cdef entry_t entry
    cdef room_t kept
    memset(&kept, 0, sizeof(kept))
    try:
        room_more(&kept, 1)
        while next_entry(&at, end, &entry):
            if not without or not (<const char*>entry.name)[:entry.name_length].startswith(without):
                put_entry(&kept, &entry)
        for name, value in pairs:
            entry.kind = c"S"
            entry.name = <const uint8_t*><const char*><bytes>name
            entry.name_length = fit_u8(len(name))
            entry.value = <const uint8_t*><const char*><bytes>value
            entry.size = <uint32_t>len(value)
            put_entry(&kept, &entry)
        return replaced(properties, &props, (<const char*>kept.data)[:kept.used])
    finally:
        room_free(&kept)


cdef bytes replaced(bytes properties, const props_t* props, bytes table):
    """The properties with another headers table; without one if it is empty."""
    cdef const uint8_t* start = <const uint8_t*><const char*>properties
    cdef uint32_t flags = int.from_bytes(properties[:2], "big")
    cdef Py_ssize_t before = 2
    cdef Py_ssize_t behind
    cdef uint32_t i
    for i in range(<uint32_t>HEADERS):
        if props.of[i].at != NULL:
            before = props.of[i].at + props.of[i].n - start
    behind = before
    if props.of[HEADERS].at != NULL:
        behind = props.of[HEADERS].at + props.of[HEADERS].n - start
    flags &= ~<uint32_t>(1 << 13)
    if table:
        flags |= 1 << 13
        table = len(table).to_bytes(4, "big") + table
    return flags.to_bytes(2, "big") + properties[2:before] + table + properties[behind:]
