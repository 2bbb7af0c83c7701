# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""For tests: frames between nodes (peer/frames.pxd) as tuples, written and read by the compiled codec."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memset

from fluxmq._core.memory.message cimport body_t, origin_t
from fluxmq._core.peer.frames cimport (
    FRAME_HEADER_BYTES, LIFE_BYTES, ORIGIN_BYTES, PEER_CONTROL, PEER_DIRECTED, PEER_EXPIRES, PEER_GROUP_MESSAGE,
    PEER_INTEREST, PEER_INTEREST_END, PEER_MESSAGE, PEER_NAMESPACE, PEER_ORIGIN, PEER_RELEASE, RELEASE_BYTES, checks_t,
    control_bytes, frame_t, group_bytes, interest_bytes, message_bytes, namespace_bytes, next_record, open_frame,
    peer_record_t, put_control, put_directed, put_group_message, put_header, put_interest, put_message, put_namespace,
    put_release, span_t,
)
from fluxmq._core.wire.primitives cimport Cursor

__all__ = ["decode", "encode"]

HEADER = ("version", "flags", "age_s", "records", "epoch", "to_epoch", "sequence", "acknowledged")


cdef bytes taken(const span_t* span):
    return PyBytes_FromStringAndSize(<const char*>span.at, span.length)


cdef const uint8_t* at_of(bytes data) noexcept:
    return <const uint8_t*><const char*>data


cdef void fill(body_t* body, bytes topic, bytes properties, bytes payload) noexcept:
    memset(body, 0, sizeof(body_t))
    body.topic, body.topic_length = at_of(topic), <uint32_t>len(topic)
    body.properties, body.properties_length = at_of(properties), <uint32_t>len(properties)
    body.payload, body.payload_length = at_of(payload), <uint32_t>len(payload)


cdef bytes record_bytes(tuple record):
    """One record. Tuples as of decode()."""
    cdef bytes out, a, b
    cdef body_t body
    cdef origin_t origin
    cdef uint8_t* begin
    cdef uint8_t* end
    cdef int kind = record[0]
    if kind == PEER_NAMESPACE:
        a = record[2]
        out = PyBytes_FromStringAndSize(NULL, namespace_bytes(len(a)))
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        end = put_namespace(begin, record[1], at_of(a), <uint32_t>len(a))
    elif kind == PEER_MESSAGE:
        fill(&body, record[4], record[5], record[6])
        out = PyBytes_FromStringAndSize(NULL, message_bytes(&body) + ORIGIN_BYTES)
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        if len(record) > 7:
            origin.name, origin.use, origin.packet_id = record[7]
        end = put_message(begin, record[1], &body, record[2], record[3], &origin if len(record) > 7 else NULL)
    elif kind == PEER_RELEASE:
        out = PyBytes_FromStringAndSize(NULL, RELEASE_BYTES)
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        end = put_release(begin, record[1], record[2], record[3])
    elif kind == PEER_DIRECTED:
        fill(&body, record[4], record[5], record[6])
        out = PyBytes_FromStringAndSize(NULL, message_bytes(&body) + LIFE_BYTES + ORIGIN_BYTES)
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        if len(record) > 8:
            origin.name, origin.use, origin.packet_id = record[8]
        end = put_directed(begin, record[7], record[1], &body, record[2], record[3],
                           &origin if len(record) > 8 else NULL)
    elif kind == PEER_GROUP_MESSAGE:
        a, b = record[7], record[8]
        fill(&body, record[4], record[5], record[6])
        out = PyBytes_FromStringAndSize(NULL, message_bytes(&body) + group_bytes(len(a), len(b)) + ORIGIN_BYTES)
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        if len(record) > 9:
            origin.name, origin.use, origin.packet_id = record[9]
        end = put_group_message(begin, record[1], at_of(a), <uint16_t>len(a), at_of(b), <uint16_t>len(b), &body,
                                record[2], record[3], &origin if len(record) > 9 else NULL)
    elif kind == PEER_INTEREST:
        a, b = record[3], record[4]
        out = PyBytes_FromStringAndSize(NULL, interest_bytes(len(a), len(b)))
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        end = put_interest(begin, record[1], record[2], record[5], at_of(a), <uint16_t>len(a), at_of(b),
                           <uint32_t>len(b))
    else:
        a = record[1] if kind == PEER_CONTROL else b""
        out = PyBytes_FromStringAndSize(NULL, control_bytes(len(a)))
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        end = put_control(begin, <uint8_t>kind, at_of(a), <uint32_t>len(a))
    assert end - begin <= len(out)
    return out[:end - begin]


def encode(dict header not None, list records not None) -> bytes:
    """A frame. header: fields by name, those that are missing are 0; records: as decode() returns them."""
    cdef frame_t frame
    cdef bytes out = PyBytes_FromStringAndSize(NULL, FRAME_HEADER_BYTES)
    cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(out)
    frame = {name: header.get(name, 0) for name in HEADER}
    assert put_header(begin, &frame) - begin == len(out)
    return out + b"".join([record_bytes(record) for record in records])


def decode(bytes data not None) -> tuple:
    """(header, records) of a frame, every record checked. Raises ProtocolError.

    (1, number, name), (2, namespace, flags, left_ms, topic, properties, payload), (3, the same, group, filter),
    (4, namespace, count, group, filter, flags), (5,), (6, data), (7, as 2, life), (8, name, packet id, use); one of
    kind 2, 3 or 7 with an origin ends with (name, use, packet id). flags without PEER_EXPIRES and PEER_ORIGIN,
    left_ms -1: never."""
    cdef frame_t frame
    cdef Cursor records
    cdef peer_record_t record
    cdef checks_t checks
    memset(&checks, 0, sizeof(checks))
    open_frame(at_of(data), <size_t>len(data), &frame, &records)
    found = []
    while next_record(&records, &record, &checks):
        if record.kind == PEER_NAMESPACE:
            found.append((record.kind, record.namespace, taken(&record.name)))
        elif record.kind == PEER_INTEREST:
            found.append((record.kind, record.namespace, record.count, taken(&record.name), taken(&record.filter),
                          record.flags))
        elif record.kind == PEER_INTEREST_END:
            found.append((record.kind,))
        elif record.kind == PEER_RELEASE:
            found.append((record.kind, record.origin, record.packet_id, record.use))
        elif record.kind == PEER_CONTROL:
            found.append((record.kind, taken(&record.payload)))
        else:
            one = (record.kind, record.namespace, record.flags & ~(PEER_EXPIRES | PEER_ORIGIN), record.left_ms,
                   taken(&record.topic), taken(&record.properties), taken(&record.payload))
            if record.kind == PEER_GROUP_MESSAGE:
                one = *one, taken(&record.name), taken(&record.filter)
            if record.kind == PEER_DIRECTED:
                one = *one, record.life
            if record.flags & PEER_ORIGIN:
                one = *one, (record.origin, record.use, record.packet_id)
            found.append(one)
    return frame, found
