# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""For tests: frames between nodes (peer/frames.pxd) as tuples, written and read by the compiled codec."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from fluxmq._core.memory.message cimport body_t, origin_t
from fluxmq._core.peer.frames cimport PEER_FORMAT_SHIFT
from fluxmq._core.peer.frames cimport (
    CALL_BYTES, DELIVERY_BYTES, FRAME_HEADER_BYTES, LIFE_BYTES, ORIGIN_BYTES, PEER_ATTACH, PEER_BARRIER, PEER_CALL,
    PEER_COMMITTED, PEER_CONTROL, PEER_CREDIT, PEER_DELIVERY, PEER_DETACH, PEER_DIRECTED, PEER_EXPIRES, PEER_FORCED,
    PEER_GROUP_MESSAGE, PEER_INTEREST, PEER_INTEREST_END, PEER_MESSAGE, PEER_NAMESPACE, PEER_ORIGIN, PEER_PUBLISH,
    PEER_QOS, PEER_QUIET, PEER_REFUSED, PEER_RELEASE, PEER_REPEATED, PEER_RESULT, PEER_RETAINED,
    PEER_SETTLE, PEER_VERSION, PEER_WITHDRAW, RELEASE_BYTES, SETTLE_BYTES, SIZE_BYTES, SMALL_BYTES, VERSION_BYTES,
    checks_t, control_bytes, frame_t, group_bytes, interest_bytes, message_bytes, namespace_bytes, next_record,
    open_frame,
    peer_record_t, publish_bytes, put_call, put_control, put_credit, put_delivery, put_detach, put_directed,
    put_group_message, put_header, put_interest, put_message, put_namespace, put_position, put_publish, put_refused,
    put_release, put_result, put_retained, put_settle, put_withdraw, span_t, version_t,
    with_channel,
)
from fluxmq._core.wire.primitives cimport Cursor
from fluxmq._core.wire.sizes cimport fit_u16

__all__ = ["decode", "encode"]

# Where a message in a DELIVERY says when it expires (queue/log.pxd): there decode() gives zeros, and left_ms by itself.
cdef enum:
    EXPIRES_AT = 24

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
    cdef version_t version
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
        out = PyBytes_FromStringAndSize(NULL, message_bytes(&body) + ORIGIN_BYTES + VERSION_BYTES)
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        if len(record) > 7 and record[7]:
            origin.name, origin.use, origin.packet_id = record[7]
        if len(record) > 8:
            version.number, version.life = record[8]
        end = put_message(begin, record[1], &body, record[2], record[3],
                          &origin if len(record) > 7 and record[7] else NULL, &version if len(record) > 8 else NULL)
    elif kind == PEER_RETAINED:
        fill(&body, record[4], record[5], record[6])
        out = PyBytes_FromStringAndSize(NULL, message_bytes(&body) + ORIGIN_BYTES + VERSION_BYTES + SIZE_BYTES)
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        if record[7]:
            origin.name, origin.use, origin.packet_id = record[7]
        version.number, version.life = record[8]
        end = put_retained(begin, record[1], &body, record[2], record[3], &origin if record[7] else NULL, &version,
                           record[9])
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
        end = put_group_message(begin, record[1], at_of(a), fit_u16(len(a)), at_of(b), fit_u16(len(b)), &body,
                                record[2], record[3], &origin if len(record) > 9 else NULL)
    elif kind == PEER_INTEREST:
        a, b = record[3], record[4]
        out = PyBytes_FromStringAndSize(NULL, interest_bytes(len(a), len(b)))
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        end = put_interest(begin, record[1], record[2], record[5], at_of(a), fit_u16(len(a)), at_of(b),
                           <uint32_t>len(b))
    elif PEER_PUBLISH <= kind <= PEER_REFUSED:
        return queue_record_bytes(record)
    else:
        a = record[1] if len(record) > 1 else b""
        out = PyBytes_FromStringAndSize(NULL, control_bytes(len(a)))
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        end = put_control(begin, <uint8_t>kind, at_of(a), <uint32_t>len(a))
    assert end - begin <= len(out)
    return out[:end - begin]


cdef bytes queue_record_bytes(tuple record):
    """One record of queues. The room is what PeerOutbox makes, so that the test sees whether that is enough."""
    cdef bytes out, data
    cdef size_t size = SMALL_BYTES
    cdef body_t body
    cdef origin_t origin
    cdef uint8_t* begin
    cdef uint8_t* end
    cdef int kind = record[0]
    if kind == PEER_PUBLISH:
        fill(&body, record[6], record[7], record[8])
        body.format = record[3] & 1
        forced = (record[3] & 6) << PEER_FORMAT_SHIFT      # and repeated, which needs an origin
        out = PyBytes_FromStringAndSize(NULL, publish_bytes(&body) + ORIGIN_BYTES)
        begin = <uint8_t*>PyBytes_AS_STRING(out)
        if len(record) > 9:
            origin.name, origin.use, origin.packet_id = record[9]
            origin.doubtful = False
        end = put_publish(begin, record[1], record[4], &body, record[2] | forced, record[5],
                          &origin if len(record) > 9 else NULL)
        assert end - begin <= len(out)
        return out[:end - begin]
    if kind == PEER_SETTLE:
        size = SETTLE_BYTES
    elif kind == PEER_ATTACH or kind == PEER_CALL:
        size = CALL_BYTES
    elif kind == PEER_DELIVERY:
        size = DELIVERY_BYTES
    last = record[5 if kind == PEER_DELIVERY else 3 if kind == PEER_REFUSED else len(record) - 1]
    data = last if isinstance(last, bytes) else b""
    out = PyBytes_FromStringAndSize(NULL, size + <size_t>len(data))
    begin = <uint8_t*>PyBytes_AS_STRING(out)
    if kind == PEER_SETTLE:
        end = put_settle(begin, record[1], record[2], record[3], record[4], record[5], record[6], record[7],
                         at_of(data), <uint32_t>len(data))
    elif kind == PEER_CREDIT:
        end = put_credit(begin, record[1], record[2])
    elif kind == PEER_ATTACH or kind == PEER_CALL:
        end = put_call(begin, <uint8_t>kind, record[3], record[1], record[2], at_of(data), <uint32_t>len(data))
    elif kind == PEER_DETACH:
        end = put_detach(begin, record[1], record[2])
    elif kind == PEER_BARRIER or kind == PEER_COMMITTED:
        end = put_position(begin, <uint8_t>kind, record[2] if kind == PEER_BARRIER else 0, record[1])
    elif kind == PEER_DELIVERY:
        end = put_delivery(begin, record[1], record[2], record[3], at_of(data), <uint32_t>len(data), record[4])
    elif kind == PEER_WITHDRAW:
        end = put_withdraw(begin, record[1], record[2], record[3])
    elif kind == PEER_RESULT:
        end = put_result(begin, record[1], at_of(data), <uint32_t>len(data))
    else:
        end = put_refused(begin, record[4], record[1], record[2], at_of(data), <uint32_t>len(data))
    assert end - begin <= len(out)
    return out[:end - begin]


cdef tuple queue_record(const peer_record_t* record):
    """The same, read."""
    cdef bytes data
    cdef list one
    if record.kind == PEER_PUBLISH:
        one = [record.kind, record.queue, record.flags & (PEER_QOS | PEER_QUIET),
               record.format | (2 if record.flags & PEER_FORCED else 0) | (4 if record.flags & PEER_REPEATED else 0),
               with_channel(record.channel, record.position),
               record.left_ms, taken(&record.topic), taken(&record.properties), taken(&record.payload)]
        if record.flags & PEER_ORIGIN:
            one.append((record.origin, record.use, record.packet_id))
        return tuple(one)
    if record.kind == PEER_SETTLE:
        return (record.kind, record.member, record.flags, record.deliveries, record.log, record.offset, record.count,
                record.ms, taken(&record.payload))
    if record.kind == PEER_CREDIT:
        return record.kind, record.member, record.count
    if record.kind == PEER_ATTACH or record.kind == PEER_CALL:
        return record.kind, record.member, record.queue, record.channel, taken(&record.payload)
    if record.kind == PEER_DETACH:
        return record.kind, record.member, record.flags
    if record.kind == PEER_BARRIER:
        return record.kind, with_channel(record.channel, record.position), record.flags
    if record.kind == PEER_COMMITTED:
        return record.kind, with_channel(record.channel, record.position)
    if record.kind == PEER_DELIVERY:
        data = taken(&record.payload)
        return (record.kind, record.member, record.deliveries, record.log, record.left_ms,
                data[:EXPIRES_AT] + bytes(8) + data[EXPIRES_AT + 8:], record.offset, record.format,
                taken(&record.topic), taken(&record.properties))
    if record.kind == PEER_WITHDRAW:
        return record.kind, record.member, record.log, record.offset
    if record.kind == PEER_RESULT:
        return record.kind, record.member, taken(&record.payload)
    return (record.kind, with_channel(record.channel, record.position), record.deliveries, taken(&record.payload),
            record.flags)


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
    kind 2, 3, 7 or 9 with an origin ends with (name, use, packet id). flags without PEER_EXPIRES, PEER_ORIGIN and
    PEER_VERSION, left_ms -1: never. One of kind 2 with a version ends with an origin or None, and (number, life);
    (21, as such a one, size of the payload).

    Of queues: (9, queue, QoS, format, position, left_ms, topic, properties, payload), (10, member, flags,
    deliveries, log, first offset, count, ms, reason), (11, member, limit), (12, number, queue, channel, data),
    (13, member, flags), (14, as 12), (15, position, flags), (16, member, deliveries, log, left_ms, message, offset,
    format, topic, properties), (17, member, log, offset), (18, number, data), (19, position), (20, position, reason,
    text, flags). A position has its channel in the upper 16 bits. What stands behind the message of 16 is read from it,
    and encode()
    does not need it. Its expiry is zero: left_ms (0: never) has it."""
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
        elif PEER_PUBLISH <= record.kind <= PEER_REFUSED:
            found.append(queue_record(&record))
        else:
            one = (record.kind, record.namespace, record.flags & ~(PEER_EXPIRES | PEER_ORIGIN | PEER_VERSION),
                   record.left_ms,
                   taken(&record.topic), taken(&record.properties), taken(&record.payload))
            if record.kind == PEER_GROUP_MESSAGE:
                one = *one, taken(&record.name), taken(&record.filter)
            if record.kind == PEER_DIRECTED:
                one = *one, record.life
            if record.flags & PEER_ORIGIN:
                one = *one, (record.origin, record.use, record.packet_id)
            elif record.flags & PEER_VERSION:
                one = *one, None
            if record.flags & PEER_VERSION:
                one = *one, (record.version, record.life)
            if record.kind == PEER_RETAINED:
                one = *one, record.count
            found.append(one)
    return frame, found
