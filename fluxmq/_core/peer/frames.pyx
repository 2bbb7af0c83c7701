# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Codec. See peer/frames.pxd."""
from libc.string cimport memcmp, memcpy, memset

from fluxmq._core.amqp091.properties cimport amqp_properties_t, properties_read
from fluxmq._core.disk.journal_format cimport peek_u32_le, peek_u64_le, put_u32_le, put_u64_le
from fluxmq._core.memory.message cimport FORMAT_LAST, FORMAT_MQTT
from fluxmq._core.mqtt.props cimport publish_props_t, scan_publish_props, scratch_for, scratch_t
from fluxmq._core.wire.text cimport TEXT_OK, filter_valid, text_valid, topic_valid

from fluxmq._core.errors import ProtocolError

cdef enum:
    RECORD_BYTES = 8            # of a record's head
    MESSAGE_BYTES = 12          # of a message's numbers, without the expiry
    PUBLISH_BYTES = 24          # the same of one for a queue
    RECORD_HEAD_BYTES = 48      # of a message as a log has it (queue/log.pxd)
    RECORD_EXPIRES_AT = 24      # where it says when it expires
    NAME_BYTES_MAX = 255        # of a namespace
    VERSION_BITS = 62           # of a version: 2^46 ms of the wall clock are 2 200 years
    LEFT_BITS = 52              # of the milliseconds until a message expires; MQTT's own limit has 42
    MALFORMED = 0x81            # MQTT 5.0 section 2.4; the cold half shows the text only
    WRONG = 0x82

cdef enum:                      # as in queue/group.pxd and queue/relay.pxd, which import more than a parser may
    RUN_MAX = 1048576
    BACKOFF_DEFAULT = -1
    VERB_LAST = 3

cdef scratch_t scratch


cdef inline uint16_t peek_u16_le(const uint8_t* at) noexcept nogil:
    return <uint16_t>(at[0] | at[1] << 8)


cdef inline void put_u16_le(uint8_t* at, uint16_t value) noexcept nogil:
    at[0] = <uint8_t>value
    at[1] = <uint8_t>(value >> 8)


# -------------------------------------------------------------------- writers

cdef uint8_t* put_header(uint8_t* at, const frame_t* frame) noexcept nogil:
    at[0] = frame.version
    at[1] = frame.flags
    put_u16_le(at + 2, frame.age_s)
    put_u32_le(at + 4, frame.records)
    put_u64_le(at + 8, frame.epoch)
    put_u64_le(at + 16, frame.to_epoch)
    put_u64_le(at + 24, frame.sequence)
    put_u64_le(at + 32, frame.acknowledged)
    return at + FRAME_HEADER_BYTES


cdef inline uint8_t* put_head(uint8_t* at, uint8_t kind, uint8_t flags, uint16_t a, uint32_t length) noexcept nogil:
    at[0] = kind
    at[1] = flags
    put_u16_le(at + 2, a)
    put_u32_le(at + 4, length)
    return at + RECORD_BYTES


cdef inline uint8_t* put_bytes(uint8_t* at, const uint8_t* data, size_t length) noexcept nogil:
    if length:
        memcpy(at, data, length)
    return at + length


cdef size_t namespace_bytes(size_t name) noexcept nogil:
    return RECORD_BYTES + 4 + name


cdef uint8_t* put_namespace(uint8_t* at, uint32_t number, const uint8_t* name, uint32_t length) noexcept nogil:
    at = put_head(at, PEER_NAMESPACE, 0, 0, 4 + length)
    put_u32_le(at, number)
    return put_bytes(at + 4, name, length)


cdef size_t message_bytes(const body_t* body) noexcept nogil:
    return (RECORD_BYTES + MESSAGE_BYTES + 8 + <size_t>body.topic_length + body.properties_length
            + body.payload_length)


cdef inline uint8_t* put_body(uint8_t* at, const body_t* body, int64_t left_ms, const origin_t* origin,
                              const version_t* version) noexcept nogil:
    if left_ms >= 0:
        put_u64_le(at, <uint64_t>left_ms)
        at += 8
    if origin != NULL:
        put_u64_le(at, origin.name)
        put_u64_le(at + 8, origin.use)
        put_u16_le(at + 16, origin.packet_id)
        at += ORIGIN_BYTES
    if version != NULL:
        put_u64_le(at, version.number)
        put_u64_le(at + 8, version.life)
        at += VERSION_BYTES
    at = put_bytes(at, body.topic, body.topic_length)
    at = put_bytes(at, body.properties, body.properties_length)
    return put_bytes(at, body.payload, body.payload_length)


cdef inline uint8_t* put_content(uint8_t* at, uint32_t namespace, const body_t* body, int64_t left_ms,
                                 const origin_t* origin, const version_t* version) noexcept nogil:
    put_u32_le(at, namespace)
    put_u32_le(at + 4, body.properties_length)
    put_u32_le(at + 8, body.payload_length)
    return put_body(at + MESSAGE_BYTES, body, left_ms, origin, version)


cdef inline uint32_t content_bytes(const body_t* body, int64_t left_ms) noexcept nogil:
    return (MESSAGE_BYTES + (8 if left_ms >= 0 else 0) + body.topic_length + body.properties_length
            + body.payload_length)


cdef uint8_t* put_message(uint8_t* at, uint32_t namespace, const body_t* body, uint8_t flags, int64_t left_ms,
                          const origin_t* origin, const version_t* version) noexcept nogil:
    at = put_head(at, PEER_MESSAGE, flags | (PEER_EXPIRES if left_ms >= 0 else 0) | (PEER_ORIGIN if origin else 0)
                  | (PEER_VERSION if version else 0),
                  <uint16_t>body.topic_length, content_bytes(body, left_ms) + (ORIGIN_BYTES if origin else 0)
                  + (VERSION_BYTES if version else 0))
    return put_content(at, namespace, body, left_ms, origin, version)


cdef uint8_t* put_retained(uint8_t* at, uint32_t namespace, const body_t* body, uint8_t flags, int64_t left_ms,
                           const origin_t* origin, const version_t* version, uint32_t size) noexcept nogil:
    at = put_head(at, PEER_RETAINED, flags | (PEER_EXPIRES if left_ms >= 0 else 0) | (PEER_ORIGIN if origin else 0)
                  | PEER_VERSION, <uint16_t>body.topic_length,
                  SIZE_BYTES + content_bytes(body, left_ms) + (ORIGIN_BYTES if origin else 0) + VERSION_BYTES)
    put_u32_le(at, size)
    return put_content(at + SIZE_BYTES, namespace, body, left_ms, origin, version)


cdef uint8_t* put_release(uint8_t* at, uint64_t name, uint16_t packet_id, uint64_t use) noexcept nogil:
    at = put_head(at, PEER_RELEASE, 0, packet_id, 16)
    put_u64_le(at, name)
    put_u64_le(at + 8, use)
    return at + 16


cdef size_t group_bytes(size_t group, size_t filter) noexcept nogil:
    return 4 + group + filter


cdef uint8_t* put_group_message(uint8_t* at, uint32_t namespace, const uint8_t* group, uint16_t group_length,
                                const uint8_t* filter, uint16_t filter_length, const body_t* body, uint8_t flags,
                                int64_t left_ms, const origin_t* origin) noexcept nogil:
    at = put_head(at, PEER_GROUP_MESSAGE,
                  flags | (PEER_EXPIRES if left_ms >= 0 else 0) | (PEER_ORIGIN if origin else 0),
                  <uint16_t>body.topic_length, 4 + group_length + filter_length + content_bytes(body, left_ms)
                  + (ORIGIN_BYTES if origin else 0))
    put_u16_le(at, group_length)
    put_u16_le(at + 2, filter_length)
    at = put_bytes(at + 4, group, group_length)
    return put_content(put_bytes(at, filter, filter_length), namespace, body, left_ms, origin, NULL)


cdef size_t interest_bytes(size_t group, size_t filter) noexcept nogil:
    return RECORD_BYTES + 8 + group + filter


cdef uint8_t* put_interest(uint8_t* at, uint32_t namespace, uint32_t count, uint8_t flags, const uint8_t* group,
                           uint16_t group_length, const uint8_t* filter, uint32_t filter_length) noexcept nogil:
    at = put_head(at, PEER_INTEREST, flags, group_length, 8 + group_length + filter_length)
    put_u32_le(at, namespace)
    put_u32_le(at + 4, count)
    return put_bytes(put_bytes(at + 8, group, group_length), filter, filter_length)


cdef uint8_t* put_directed(uint8_t* at, uint64_t life, uint32_t namespace, const body_t* body, uint8_t flags,
                           int64_t left_ms, const origin_t* origin) noexcept nogil:
    at = put_head(at, PEER_DIRECTED, flags | (PEER_EXPIRES if left_ms >= 0 else 0) | (PEER_ORIGIN if origin else 0),
                  <uint16_t>body.topic_length,
                  LIFE_BYTES + content_bytes(body, left_ms) + (ORIGIN_BYTES if origin else 0))
    put_u64_le(at, life)
    return put_content(at + LIFE_BYTES, namespace, body, left_ms, origin, NULL)


cdef size_t control_bytes(size_t data) noexcept nogil:
    return RECORD_BYTES + data


cdef uint8_t* put_control(uint8_t* at, uint8_t kind, const uint8_t* data, uint32_t length) noexcept nogil:
    return put_bytes(put_head(at, kind, 0, 0, length), data, length)


# ---- of queues

cdef size_t publish_bytes(const body_t* body) noexcept nogil:
    return (RECORD_BYTES + PUBLISH_BYTES + 8 + <size_t>body.topic_length + body.properties_length
            + body.payload_length)


cdef uint8_t* put_publish(uint8_t* at, uint64_t queue, uint64_t position, const body_t* body, uint8_t flags,
                          int64_t left_ms, const origin_t* origin) noexcept nogil:
    cdef uint32_t length = (PUBLISH_BYTES + (8 if left_ms >= 0 else 0) + (ORIGIN_BYTES if origin else 0)
                            + body.topic_length + body.properties_length + body.payload_length)
    at = put_head(at, PEER_PUBLISH, flags | (PEER_EXPIRES if left_ms >= 0 else 0) | (PEER_ORIGIN if origin else 0)
                  | (PEER_REPEATED if origin and origin.doubtful else 0)
                  | <uint8_t>(body.format << PEER_FORMAT_SHIFT), <uint16_t>body.topic_length, length)
    put_u64_le(at, queue)
    put_u64_le(at + 8, position)
    put_u32_le(at + 16, body.properties_length)
    put_u32_le(at + 20, body.payload_length)
    return put_body(at + PUBLISH_BYTES, body, left_ms, origin, NULL)


cdef uint8_t* put_settle(uint8_t* at, uint32_t member, uint8_t flags, uint16_t deliveries, uint32_t log, uint64_t first,
                         uint32_t count, int64_t ms, const uint8_t* reason, uint32_t reason_length) noexcept nogil:
    at = put_head(at, PEER_SETTLE, flags, deliveries, SETTLE_BYTES - RECORD_BYTES + reason_length)
    put_u32_le(at, member)
    put_u32_le(at + 4, log)
    put_u64_le(at + 8, first)
    put_u32_le(at + 16, count)
    put_u64_le(at + 20, <uint64_t>ms)
    return put_bytes(at + 28, reason, reason_length)


cdef uint8_t* put_delivery(uint8_t* at, uint32_t member, uint16_t deliveries, uint32_t log, const uint8_t* record,
                           uint32_t size, int64_t left_ms) noexcept nogil:
    at = put_head(at, PEER_DELIVERY, 0, deliveries, 8 + size)
    put_u32_le(at, member)
    put_u32_le(at + 4, log)
    memcpy(at + 8, record, size)
    put_u64_le(at + 8 + RECORD_EXPIRES_AT, <uint64_t>left_ms)
    return at + 8 + size


cdef uint8_t* put_credit(uint8_t* at, uint32_t member, uint32_t limit) noexcept nogil:
    at = put_head(at, PEER_CREDIT, 0, 0, 8)
    put_u32_le(at, member)
    put_u32_le(at + 4, limit)
    return at + 8


cdef uint8_t* put_detach(uint8_t* at, uint32_t member, bint rests) noexcept nogil:
    at = put_head(at, PEER_DETACH, PEER_RESTS if rests else 0, 0, 4)
    put_u32_le(at, member)
    return at + 4


cdef uint8_t* put_withdraw(uint8_t* at, uint32_t member, uint32_t log, uint64_t offset) noexcept nogil:
    at = put_head(at, PEER_WITHDRAW, 0, 0, 16)
    put_u32_le(at, member)
    put_u32_le(at + 4, log)
    put_u64_le(at + 8, offset)
    return at + 16


cdef uint8_t* put_position(uint8_t* at, uint8_t kind, uint8_t flags, uint64_t position) noexcept nogil:
    at = put_head(at, kind, flags, 0, 8)
    put_u64_le(at, position)
    return at + 8


cdef uint8_t* put_call(uint8_t* at, uint8_t kind, uint16_t channel, uint32_t number, uint64_t queue,
                       const uint8_t* data, uint32_t length) noexcept nogil:
    at = put_head(at, kind, 0, channel, CALL_BYTES - RECORD_BYTES + length)
    put_u32_le(at, number)
    put_u64_le(at + 4, queue)
    return put_bytes(at + 12, data, length)


cdef uint8_t* put_result(uint8_t* at, uint32_t number, const uint8_t* data, uint32_t length) noexcept nogil:
    at = put_head(at, PEER_RESULT, 0, 0, 4 + length)
    put_u32_le(at, number)
    return put_bytes(at + 4, data, length)


cdef uint8_t* put_refused(uint8_t* at, uint8_t flags, uint64_t position, uint16_t reason, const uint8_t* text,
                          uint32_t length) noexcept nogil:
    at = put_head(at, PEER_REFUSED, flags, reason, 8 + length)
    put_u64_le(at, position)
    return put_bytes(at + 8, text, length)


# -------------------------------------------------------------------- the reader

cdef void read_header(const uint8_t* at, frame_t* frame) noexcept nogil:
    frame.version = at[0]
    frame.flags = at[1]
    frame.age_s = peek_u16_le(at + 2)
    frame.records = peek_u32_le(at + 4)
    frame.epoch = peek_u64_le(at + 8)
    frame.to_epoch = peek_u64_le(at + 16)
    frame.sequence = peek_u64_le(at + 24)
    frame.acknowledged = peek_u64_le(at + 32)


cdef int open_frame(const uint8_t* at, size_t length, frame_t* frame, Cursor* records) except -1:
    if length < FRAME_HEADER_BYTES:
        raise ProtocolError(MALFORMED, f"a frame of {length} bytes between nodes")
    read_header(at, frame)
    records.at = at + FRAME_HEADER_BYTES
    records.end = at + length
    if frame.version != FRAME_VERSION:
        raise ProtocolError(WRONG, f"a frame of version {frame.version}; this node reads {FRAME_VERSION}")
    if frame.flags & ~(FRAME_BEGIN | FRAME_AGAIN | FRAME_AWAITED):
        raise ProtocolError(MALFORMED, f"a frame with unknown flags: {frame.flags}")
    if frame.sequence == 0 and frame.records and not frame.flags & FRAME_BEGIN:
        raise ProtocolError(WRONG, "a frame without a number that has records")
    return 0


cdef inline void span(span_t* out, const uint8_t* at, uint32_t length) noexcept nogil:
    out.at = at
    out.length = length


cdef inline bint same(const span_t* a, const span_t* b) noexcept nogil:
    return a.length != 0 and a.length == b.length and memcmp(a.at, b.at, a.length) == 0


cdef int wrong_record(uint8_t kind) except -1:
    raise ProtocolError(MALFORMED, f"a record of kind {kind} between nodes is not as long as it says, or has unknown "
                                   f"flags")


cdef int next_record(Cursor* records, peer_record_t* record, checks_t* checks) except -1:
    cdef const uint8_t* at = records.at
    cdef const uint8_t* end
    cdef uint32_t length
    cdef uint16_t a
    if at == records.end:
        return 0
    if records.end - at < RECORD_BYTES:
        raise ProtocolError(MALFORMED, "a frame ends in a record's head")
    record.kind = at[0]
    record.flags = at[1]
    a = peek_u16_le(at + 2)
    length = peek_u32_le(at + 4)
    at += RECORD_BYTES
    if records.end - at < <int64_t>length:
        return wrong_record(record.kind)
    end = at + length
    records.at = end
    if record.kind == PEER_MESSAGE:
        span(&record.name, at, 0)
        span(&record.filter, at, 0)
        read_message(record, at, end, a)
        if checks != NULL:
            check_message(record, checks)
        return 1
    if record.kind == PEER_GROUP_MESSAGE:
        return read_group_message(record, at, end, a, checks)
    if record.kind == PEER_DIRECTED:
        if length < LIFE_BYTES:
            return wrong_record(record.kind)
        record.life = peek_u64_le(at)
        if record.life == 0:
            return wrong_record(record.kind)
        span(&record.name, at, 0)
        span(&record.filter, at, 0)
        read_message(record, at + LIFE_BYTES, end, a)
        if checks != NULL:
            check_message(record, checks)
        return 1
    if record.kind == PEER_RETAINED:
        return read_retained(record, at, end, a, checks)
    if record.kind >= PEER_PUBLISH and record.kind <= PEER_REFUSED:
        return read_of_queue(record, at, length, a, checks)
    if (record.flags & ~(PEER_DURABLE if record.kind == PEER_INTEREST else 0)
            or (a and record.kind != PEER_INTEREST and record.kind != PEER_RELEASE)):
        return wrong_record(record.kind)
    if record.kind == PEER_NAMESPACE:
        if length < 5 or length > 4 + NAME_BYTES_MAX:
            return wrong_record(record.kind)
        record.namespace = peek_u32_le(at)
        span(&record.name, at + 4, length - 4)
        if not text_valid(record.name.at, record.name.length):
            raise ProtocolError(MALFORMED, "the name of a namespace that is not valid UTF-8")
    elif record.kind == PEER_INTEREST:
        if length < <uint32_t>8 + a:
            return wrong_record(record.kind)
        record.namespace = peek_u32_le(at)
        record.count = peek_u32_le(at + 4)
        span(&record.name, at + 8, a)
        span(&record.filter, at + 8 + a, length - 8 - a)
        check_filter(record)
    elif record.kind == PEER_CONTROL:
        span(&record.payload, at, length)
    elif record.kind == PEER_RELEASE:
        if length != 16 or peek_u64_le(at) == 0:
            return wrong_record(record.kind)
        record.origin = peek_u64_le(at)
        record.use = peek_u64_le(at + 8)
        record.packet_id = a
    elif record.kind != PEER_INTEREST_END:
        raise ProtocolError(MALFORMED, f"a record of unknown kind {record.kind} between nodes")
    elif length:
        return wrong_record(record.kind)
    return 1


cdef inline void read_position(peer_record_t* record, const uint8_t* at) noexcept nogil:
    record.position = position_in(peek_u64_le(at))
    record.channel = channel_in(peek_u64_le(at))


cdef int read_of_queue(peer_record_t* record, const uint8_t* at, uint32_t length, uint16_t a,
                       checks_t* checks) except -1:
    """The records of queues."""
    cdef uint8_t kind = record.kind
    if kind == PEER_PUBLISH:
        return read_publish(record, at, length, a, checks)
    if kind == PEER_DELIVERY:
        return read_delivery(record, at, length, a, checks)
    if kind == PEER_SETTLE:
        if length < SETTLE_BYTES - RECORD_BYTES or record.flags & ~(PEER_VERB | PEER_COUNTS) or (
                record.flags & PEER_VERB > VERB_LAST):
            return wrong_record(kind)
        record.member = peek_u32_le(at)
        record.log = peek_u32_le(at + 4)
        record.offset = peek_u64_le(at + 8)
        record.count = peek_u32_le(at + 16)
        record.ms = <int64_t>peek_u64_le(at + 20)
        record.deliveries = a
        span(&record.payload, at + 28, length - 28)
        if (record.count == 0 or record.count > RUN_MAX or record.offset + record.count < record.offset
                or record.ms < BACKOFF_DEFAULT or record.ms >> LEFT_BITS > 0):
            return wrong_record(kind)
        if not text_valid(record.payload.at, record.payload.length):
            raise ProtocolError(MALFORMED, "the reason of a settlement that is not valid UTF-8")
        return 1
    if a and kind != PEER_REFUSED and kind != PEER_CALL and kind != PEER_ATTACH or record.flags & ~(
            PEER_RESTS if kind == PEER_DETACH else PEER_AWAITED if kind == PEER_BARRIER else
            PEER_UNDONE if kind == PEER_REFUSED else 0):
        return wrong_record(kind)
    if kind == PEER_CREDIT and length == 8:
        record.member = peek_u32_le(at)
        record.count = peek_u32_le(at + 4)
    elif kind == PEER_DETACH and length == 4:
        record.member = peek_u32_le(at)
    elif (kind == PEER_CALL or kind == PEER_ATTACH) and length >= 12:
        record.member = peek_u32_le(at)
        record.channel = a
        record.queue = peek_u64_le(at + 4)
        span(&record.payload, at + 12, length - 12)
    elif (kind == PEER_BARRIER or kind == PEER_COMMITTED) and length == 8:
        read_position(record, at)
    elif kind == PEER_WITHDRAW and length == 16:
        record.member = peek_u32_le(at)
        record.log = peek_u32_le(at + 4)
        record.offset = peek_u64_le(at + 8)
    elif kind == PEER_RESULT and length >= 4:
        record.member = peek_u32_le(at)
        span(&record.payload, at + 4, length - 4)
    elif kind == PEER_REFUSED and length >= 8 and a:
        read_position(record, at)
        record.deliveries = a
        span(&record.payload, at + 8, length - 8)
        if not text_valid(record.payload.at, record.payload.length):
            raise ProtocolError(MALFORMED, "the reason of a refusal that is not valid UTF-8")
    else:
        return wrong_record(kind)
    return 1


cdef inline int read_publish(peer_record_t* record, const uint8_t* at, uint32_t length, uint16_t a,
                             checks_t* checks) except -1:
    cdef uint32_t head = (PUBLISH_BYTES + (8 if record.flags & PEER_EXPIRES else 0)
                          + (ORIGIN_BYTES if record.flags & PEER_ORIGIN else 0))
    cdef uint32_t properties, payload
    record.format = record.flags >> PEER_FORMAT_SHIFT & 1
    record.origin = 0
    record.left_ms = -1
    if length < head or record.flags & PEER_QOS == PEER_QOS or (
            record.flags & PEER_REPEATED and not record.flags & PEER_ORIGIN):
        return wrong_record(record.kind)
    record.queue = peek_u64_le(at)
    read_position(record, at + 8)
    properties = peek_u32_le(at + 16)
    payload = peek_u32_le(at + 20)
    if <uint64_t>head + a + properties + payload != length:
        return wrong_record(record.kind)
    if record.flags & PEER_EXPIRES:
        record.left_ms = <int64_t>peek_u64_le(at + PUBLISH_BYTES)
        if record.left_ms >> LEFT_BITS:
            return wrong_record(record.kind)
    if record.flags & PEER_ORIGIN:
        record.origin = peek_u64_le(at + head - ORIGIN_BYTES)
        record.use = peek_u64_le(at + head - 10)
        record.packet_id = peek_u16_le(at + head - 2)
        if record.origin == 0:
            return wrong_record(record.kind)
    at += head
    span(&record.topic, at, a)
    span(&record.properties, at + a, properties)
    span(&record.payload, at + a + properties, payload)
    if checks != NULL:
        check_content(record, checks)
    return 1


cdef inline int read_delivery(peer_record_t* record, const uint8_t* at, uint32_t length, uint16_t a,
                              checks_t* checks) except -1:
    """payload: the message as a log has it, with what is left until it expires."""
    cdef uint32_t size = length - 8
    cdef uint32_t properties, payload
    cdef const uint8_t* message = at + 8
    cdef span_t whole
    if length < 8 + RECORD_HEAD_BYTES or record.flags:
        return wrong_record(record.kind)
    record.member = peek_u32_le(at)
    record.log = peek_u32_le(at + 4)
    record.deliveries = a
    record.offset = peek_u64_le(message + 8)
    record.left_ms = <int64_t>peek_u64_le(message + RECORD_EXPIRES_AT)
    payload = peek_u32_le(message + 4)
    properties = peek_u32_le(message + 40)
    a = peek_u16_le(message + 44)
    record.format = message[46] >> 4
    if (size & 7 or peek_u32_le(message) != size or record.format > FORMAT_LAST or record.left_ms >> LEFT_BITS
            or (<uint64_t>RECORD_HEAD_BYTES + a + properties + payload + 7) & ~<uint64_t>7 != size
            or message[46] & 15 > 2):
        return wrong_record(record.kind)
    span(&whole, message, size)
    span(&record.topic, message + RECORD_HEAD_BYTES, a)
    span(&record.properties, message + RECORD_HEAD_BYTES + a, properties)
    if checks != NULL:
        check_content(record, checks)
    record.payload = whole
    return 1


cdef int check_content(const peer_record_t* record, checks_t* checks) except -1:
    """Topic and properties of a message that is in a queue, or goes into one, in its format."""
    cdef amqp_properties_t found
    cdef uint32_t exchange
    if record.format == FORMAT_MQTT:
        if record.topic.length:
            return check_message(record, checks)
        return check_properties(record, checks)     # a message that another protocol has put there may have no topic
    exchange = record.topic.at[0] if record.topic.length else 255
    if record.topic.length < 1 + exchange or record.topic.length - 1 - exchange > 255:
        raise ProtocolError(MALFORMED, "a message with an invalid address between nodes")
    if properties_read(record.properties.at, record.properties.at + record.properties.length, &found):
        raise ProtocolError(MALFORMED, "a message with malformed properties between nodes")
    return 0


cdef inline int read_message(peer_record_t* record, const uint8_t* at, const uint8_t* end, uint16_t a) except -1:
    cdef uint32_t head = MESSAGE_BYTES + (8 if record.flags & PEER_EXPIRES else 0)
    cdef uint32_t properties, payload
    record.origin = record.version = 0
    if record.flags & ~(PEER_QOS | PEER_RETAIN | PEER_EXPIRES):
        if record.flags & ~(PEER_QOS | PEER_RETAIN | PEER_EXPIRES | PEER_ORIGIN | PEER_VERSION
                            | (PEER_ABSENT | PEER_STATE if record.kind == PEER_RETAINED else 0)):
            return wrong_record(record.kind)
        if record.flags & PEER_ORIGIN:
            head += ORIGIN_BYTES
            if end - at >= head:
                record.origin = peek_u64_le(at + head - ORIGIN_BYTES)
                record.use = peek_u64_le(at + head - 10)
                record.packet_id = peek_u16_le(at + head - 2)
            if record.origin == 0:
                return wrong_record(record.kind)
        if record.flags & PEER_VERSION:
            head += VERSION_BYTES
            if end - at >= head:
                record.version = peek_u64_le(at + head - VERSION_BYTES)
                record.life = peek_u64_le(at + head - 8)
            if (record.version == 0 or record.version >> VERSION_BITS or not record.flags & PEER_RETAIN
                    or record.kind != PEER_MESSAGE and record.kind != PEER_RETAINED):
                return wrong_record(record.kind)
    if end - at < head or record.flags & PEER_QOS == PEER_QOS:
        return wrong_record(record.kind)
    record.namespace = peek_u32_le(at)
    properties = peek_u32_le(at + 4)
    payload = peek_u32_le(at + 8)
    if <uint64_t>head + a + properties + payload != <uint64_t>(end - at):
        return wrong_record(record.kind)
    record.left_ms = -1
    if record.flags & PEER_EXPIRES:
        record.left_ms = <int64_t>peek_u64_le(at + MESSAGE_BYTES)
        if record.left_ms >> LEFT_BITS:
            return wrong_record(record.kind)
    at += head
    span(&record.topic, at, a)
    span(&record.properties, at + a, properties)
    span(&record.payload, at + a + properties, payload)
    return 0


cdef int read_retained(peer_record_t* record, const uint8_t* at, const uint8_t* end, uint16_t a,
                       checks_t* checks) except -1:
    if end - at < SIZE_BYTES:
        return wrong_record(record.kind)
    span(&record.name, at, 0)
    span(&record.filter, at, 0)
    record.count = peek_u32_le(at)
    read_message(record, at + SIZE_BYTES, end, a)
    if record.version == 0 or record.payload.length != (0 if record.flags & PEER_ABSENT else record.count):
        return wrong_record(record.kind)
    if checks != NULL:
        check_message(record, checks)
    return 1


cdef int read_group_message(peer_record_t* record, const uint8_t* at, const uint8_t* end, uint16_t a,
                            checks_t* checks) except -1:
    cdef uint32_t group, filter
    if end - at < 4:
        return wrong_record(record.kind)
    group = peek_u16_le(at)
    filter = peek_u16_le(at + 2)
    if end - at < 4 + group + filter or group == 0:
        return wrong_record(record.kind)
    span(&record.name, at + 4, group)
    span(&record.filter, at + 4 + group, filter)
    read_message(record, at + 4 + group + filter, end, a)
    if checks != NULL:
        check_filter(record)
        check_message(record, checks)
    return 1


cdef int check_filter(const peer_record_t* record) except -1:
    if not text_valid(record.name.at, record.name.length):
        raise ProtocolError(MALFORMED, "the name of a share group that is not valid UTF-8")
    if filter_valid(record.filter.at, record.filter.length, 0) != TEXT_OK:
        raise ProtocolError(MALFORMED, "a record with an invalid topic filter between nodes")
    return 0


cdef int check_message(const peer_record_t* record, checks_t* checks) except -1:
    """Topic and properties reach clients, so they are checked like a client's. The same bytes as in the message before
    need no second check."""
    if not same(&record.topic, &checks.topic):
        if topic_valid(record.topic.at, record.topic.length, 0) != TEXT_OK:
            raise ProtocolError(MALFORMED, "a message with an invalid topic name between nodes")
        checks.topic = record.topic
    return check_properties(record, checks)


cdef int check_properties(const peer_record_t* record, checks_t* checks) except -1:
    cdef publish_props_t found
    if record.properties.length and not same(&record.properties, &checks.properties):
        memset(&found, 0, sizeof(found))
        if scan_publish_props(record.properties.at, record.properties.at + record.properties.length, &found,
                              scratch_for(&scratch, record.properties.length)):
            raise ProtocolError(MALFORMED, "a message with malformed properties between nodes")
        if found.forward_length != record.properties.length:
            raise ProtocolError(WRONG, "a message between nodes with a property of one connection")
        checks.properties = record.properties
    return 0
