# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Rows of AMQP 0-9-1.

basic.publish, basic.deliver and the acknowledgements are read in place; other methods are decoded to values.

    method ──► header ──► body, in any number of frames ──► row of the message

    in   basic.publish  waits under its number on a confirm channel ──► out  basic.ack, basic.nack
    out  basic.deliver, get-ok  wait under their tag                ──► in   basic.ack, nack, reject
    a method that is answered waits for its answer, per channel and in order

The row of a message is written at its last frame. An acknowledgement of several messages answers the last of them.

In a capture decoding goes on after an invalid frame. If it was one of a message, that message is one row `malformed`,
and its frames until the next message of the channel are counted; other channels, and the other direction, are not
touched.
"""
cimport cython
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from fluxmq._core.errors import ProtocolError
from fluxmq._core.amqp091.consts cimport (
    BASIC_ACK, BASIC_CONSUME, BASIC_CONSUME_OK, BASIC_DELIVER, BASIC_GET, BASIC_GET_EMPTY, BASIC_GET_OK, BASIC_NACK,
    BASIC_PUBLISH,
    BASIC_REJECT, BASIC_RETURN, CHANNEL_CLOSE, CHANNEL_CLOSE_OK, CHANNEL_OPEN, CONFIRM_SELECT, CONNECTION_CLOSE,
    CONNECTION_OPEN, EXCHANGE_UNBIND, EXCHANGE_UNBIND_OK, FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_HEARTBEAT,
    FRAME_METHOD, PROPERTY_DELIVERY_MODE)
from fluxmq._core.amqp091.fields cimport take_shortstr
from fluxmq._core.amqp091.methods cimport (
    BasicConsume, BasicConsumeOk, BasicGet, BasicGetOk, BasicReturn, Method, method_read)
from fluxmq._core.amqp091.properties cimport amqp_properties_t, properties_read
from fluxmq._core.amqp091.values cimport room_free, room_put, room_t
from fluxmq._core.record.columns cimport (
    HAS_ANSWERS, HAS_CHANNEL, HAS_DETAIL, HAS_DIGEST, HAS_DUP, HAS_EXCHANGE, HAS_LATENCY, HAS_PACKET_ID, HAS_PAYLOAD,
    HAS_PROPERTIES, HAS_QOS, HAS_REASON, HAS_SIZE, HAS_TOPIC, KIND_HEARTBEAT, KIND_PROTOCOL_HEADER, WAY_IN, WAY_OUT,
    kind_name, kind_of_method, row_t)
from fluxmq._core.record.json cimport plain_value, put_content_properties, put_json
from fluxmq._core.record.pending cimport (
    LEFT_OUT, NOTHING, sent_t, window_free, window_put, window_take)
from fluxmq._core.record.state cimport (
    PAYLOAD_FULL, PAYLOAD_SIZE, Peer, Recording, count_undecoded, json_of, row_end, row_malformed, row_packet,
    row_payload)
from fluxmq._core.wire.primitives cimport (
    Cursor, peek_u16, peek_u32, peek_u64, take_u8, take_u16, take_u32, take_u64,
)
from fluxmq._core.wire.xxh64 cimport xxh64_begin, xxh64_end, xxh64_more

cdef enum:
    FRAME_HEAD = 7          # type, channel, size
    PENDING_CALLS_MAX = 1024  # methods of a channel that wait for an answer
    UNEXPECTED_FRAME = 505

# Never recorded: SASL responses of both sides, and secrets.
cdef frozenset SECRET = frozenset({"response", "challenge", "new_secret"})


@cython.final
cdef class Channel:
    """Machine. State of a channel."""

    def __cinit__(self):
        memset(self.contents, 0, sizeof(self.contents))
        memset(&self.publishes, 0, sizeof(self.publishes))
        memset(&self.deliveries, 0, sizeof(self.deliveries))
        self.pending_calls = []
        self.unnamed = []

    def __dealloc__(self):
        cdef int i
        for i in range(2):
            room_free(&self.contents[i].properties)
            room_free(&self.contents[i].payload)
        window_free(&self.publishes)
        window_free(&self.deliveries)


cdef int64_t amqp_whole(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* start = at
    cdef uint64_t size
    if end - at >= 8 and memcmp(at, b"AMQP", 4) == 0:
        at += 8
    while end - at > FRAME_HEAD:
        size = peek_u32(at + 3)
        if at[0] > FRAME_HEARTBEAT or at[0] == 0:
            return at - start if at != start else -1
        if <uint64_t>(end - at) < size + FRAME_HEAD + 1:
            break
        if at[FRAME_HEAD + size] != FRAME_END:
            return at - start if at != start else -1
        at += FRAME_HEAD + 1 + size
    return at - start


cdef Channel channel_of(Peer peer, int number):
    if peer.channel_number == number:
        return <Channel>peer.channel
    if peer.channels is None:
        peer.channels = {}
    channel = peer.channels.get(number)
    if channel is None:
        channel = Channel()
        peer.channels[number] = channel
    peer.channel = channel
    peer.channel_number = number
    return <Channel>channel


cdef int forget_channel(Peer peer, int number) except -1:
    if peer.channels is not None:
        peer.channels.pop(number, None)
    peer.channel = None
    peer.channel_number = -1
    return 0


cdef inline int frame_row(Recording recording, Peer peer, row_t* row, int direction, int64_t time, int kind, int number,
                          int64_t size) except -1:
    row_packet(recording, peer, row, time, kind, direction, size)
    row.has |= HAS_CHANNEL
    row.channel = number
    return 0


cdef inline void with_detail(row_t* row, const room_t* text) noexcept:
    row.has |= HAS_DETAIL
    row.detail.at = text.data
    row.detail.n = text.used


cdef inline void keep_name(name_t* name, const uint8_t* at, uint32_t n) noexcept:
    name.n = <uint8_t>n
    memcpy(name.text, at, n)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────


cdef int content_begin(Channel channel, int direction, uint32_t code, const uint8_t* at, const uint8_t* end,
                       int64_t size) except -1:
    """The method of a message, its arguments at..end. Raises ProtocolError."""
    cdef content_t* content = &channel.contents[direction]
    cdef Cursor c
    cdef const uint8_t* text = NULL
    cdef uint32_t n = 0
    cdef uint16_t number = 0
    cdef uint8_t flags = 0
    if content.state != NO_CONTENT:
        raise ProtocolError(505, "a method came where the content of a message was awaited")
    c.at = at
    c.end = end
    content.code = code
    content.tag = 0
    content.bytes = size
    content.flagged = content.redelivered = 0
    content.reply = 0
    content.consumer.n = 0
    cdef bint good = 1
    if code == BASIC_PUBLISH:
        good = take_u16(&c, &number)
    elif code == BASIC_RETURN:
        good = take_u16(&c, &number)
        content.reply = number
    if good and (code == BASIC_DELIVER or code == BASIC_RETURN):
        good = take_shortstr(&c, &text, &n)
        if good:
            keep_name(&content.consumer, text, n)
    if good and (code == BASIC_DELIVER or code == BASIC_GET_OK):
        good = take_u64(&c, &content.tag) and take_u8(&c, &flags)
        content.redelivered = flags & 1
    good = good and take_shortstr(&c, &text, &n)
    if good:
        keep_name(&content.exchange, text, n)
        good = take_shortstr(&c, &text, &n)
        if good:
            keep_name(&content.key, text, n)
    if good and code == BASIC_PUBLISH:
        good = take_u8(&c, &content.flags)
        content.flagged = good and content.flags & 3
    elif good and code == BASIC_GET_OK:
        good = take_u32(&c, &content.messages)
    if not good or c.at != c.end:
        raise ProtocolError(502, "the arguments of the method are not what they should be")
    content.state = WANTS_HEADER
    content.dropped = 0
    return 0


cdef int content_header(Recording recording, Peer peer, int direction, int64_t time, int number, const uint8_t* at,
                        const uint8_t* end, int64_t size) except -1:
    """Returns 0 if its message is unknown. Raises ProtocolError."""
    cdef content_t* content = &channel_of(peer, number).contents[direction]
    cdef amqp_properties_t found
    if content.state == NO_CONTENT:
        return 0
    if content.state != WANTS_HEADER or end - at < 14:
        raise ProtocolError(505, "a content header came where none was awaited, or it is too short")
    if properties_read(at + 12, end, &found) != 0:
        raise ProtocolError(502, "the properties of the message are not what they should be")
    content.size = content.left = peek_u64(at + 4)
    content.bytes += size
    content.properties.used = 0
    room_put(&content.properties, at + 12, <size_t>(end - at - 12))
    content.payload.used = 0
    if content.left == 0:
        content_end(recording, peer, direction, time, number, NULL, 0)
    else:
        content.state = WANTS_BODY
        xxh64_begin(&content.digest, 0)
    return 1


cdef int content_body(Recording recording, Peer peer, int direction, int64_t time, int number, const uint8_t* at,
                      const uint8_t* end, int64_t size) except -1:
    """Returns 0 if its message is unknown. Raises ProtocolError."""
    cdef content_t* content = &channel_of(peer, number).contents[direction]
    cdef size_t n = <size_t>(end - at)
    if content.state == NO_CONTENT:
        return 0
    if content.state != WANTS_BODY or n > content.left:
        raise ProtocolError(505, "a content body came where none was awaited, or it is too long")
    content.bytes += size
    if n == content.size:
        content_end(recording, peer, direction, time, number, at, n)
        return 1
    if recording.payload != PAYLOAD_SIZE and peer.kept:
        xxh64_more(&content.digest, at, n)
    if recording.payload == PAYLOAD_FULL and peer.kept:
        room_put(&content.payload, at, n)
    content.left -= n
    if content.left == 0:
        content_end(recording, peer, direction, time, number, NULL, 0)
    return 1


cdef int content_payload(Recording recording, row_t* row, const content_t* content, const uint8_t* at,
                         size_t n) except -1:
    """at: the whole body; NULL: it arrived in pieces or is empty."""
    if at != NULL or content.size == 0:
        return row_payload(recording, row, at, n)
    row.has |= HAS_SIZE
    row.size = <int64_t>content.size
    if recording.payload != PAYLOAD_SIZE:
        row.has |= HAS_DIGEST
        row.digest = <int64_t>xxh64_end(&content.digest)
    if recording.payload == PAYLOAD_FULL:
        row.has |= HAS_PAYLOAD
        row.payload.at = content.payload.data
        row.payload.n = content.payload.used
    return 0


cdef int content_detail(Recording recording, row_t* row, const content_t* content) except -1:
    cdef room_t* text = &recording.scratch
    text.used = 0
    if content.code == BASIC_DELIVER:
        room_put(text, b'{"consumer_tag":', 16)
        put_json(text, content.consumer.text, content.consumer.n)
        room_put(text, b"}", 1)
    elif content.code == BASIC_PUBLISH and content.flagged:
        detail = json_of({"mandatory": bool(content.flags & 1), "immediate": bool(content.flags & 2)})
        room_put(text, <const char*>detail, <size_t>len(detail))
    elif content.code == BASIC_RETURN:
        room_put(text, b'{"reply_text":', 14)
        put_json(text, content.consumer.text, content.consumer.n)
        room_put(text, b"}", 1)
    elif content.code == BASIC_GET_OK:
        detail = json_of({"message_count": content.messages})
        room_put(text, <const char*>detail, <size_t>len(detail))
    else:
        return 0
    with_detail(row, text)
    return 0


cdef int content_names(Recording recording, row_t* row, const content_t* content) except -1:
    """Sets the indices of names in the batch, for a row that is written."""
    row.has |= HAS_TOPIC | HAS_EXCHANGE
    row.topic = recording.columns.topics.index(content.key.text, content.key.n)
    row.exchange = recording.columns.exchanges.index(content.exchange.text, content.exchange.n)
    return 0


cdef int content_end(Recording recording, Peer peer, int direction, int64_t time, int number, const uint8_t* at,
                     size_t n) except -1:
    """The message is complete."""
    cdef row_t row
    cdef Channel channel = channel_of(peer, number)
    cdef content_t* content = &channel.contents[direction]
    cdef amqp_properties_t found
    cdef bint wanted = recording.topics is None or recording.topics.wanted(content.key.text, content.key.n, 1)
    cdef bint tagged = content.code == BASIC_DELIVER or content.code == BASIC_GET_OK
    cdef bint got_is_kept = 1
    content.state = NO_CONTENT
    frame_row(recording, peer, &row, direction, time, kind_of_method(content.code), number, content.bytes)
    if content.code == BASIC_PUBLISH and channel.confirms:
        channel.published += 1
        row.has |= HAS_PACKET_ID
        row.packet_id = <int64_t>channel.published
    elif tagged:
        row.has |= HAS_PACKET_ID | HAS_DUP
        row.packet_id = <int64_t>content.tag
        row.dup = content.redelivered
    elif content.code == BASIC_RETURN:
        row.has |= HAS_REASON
        row.reason = content.reply
    if content.code == BASIC_GET_OK:
        answer_of(channel, &row, BASIC_GET_OK, direction)
    if wanted and peer.kept:
        content_names(recording, &row, content)
        content_detail(recording, &row, content)
        content_payload(recording, &row, content, at, n)
        if content.properties.used > 2:
            properties_read(content.properties.data, content.properties.data + content.properties.used, &found)
            recording.text.used = 0
            put_content_properties(&recording.text, &found)
            row.has |= HAS_PROPERTIES
            row.properties.at = recording.text.data
            row.properties.n = recording.text.used
            if found.flags & PROPERTY_DELIVERY_MODE:
                row.has |= HAS_QOS
                row.qos = <int8_t>found.delivery_mode
    seq = row_end(recording, peer, &row, wanted)
    if content.code == BASIC_PUBLISH and channel.confirms:
        window_put(&channel.publishes, channel.published, seq, time)
    elif tagged and awaits_acknowledgement(channel, content):
        window_put(&channel.deliveries, content.tag, seq, time)
    return 0


cdef bint awaits_acknowledgement(Channel channel, const content_t* content) except -1:
    if content.code == BASIC_GET_OK:
        return not channel.get_unacknowledged
    if not channel.unacknowledged:
        return 1
    return (<const char*>content.consumer.text)[:content.consumer.n] not in channel.unacknowledged


# ── acknowledgements ─────────────────────────────────────────────────────────────────────────────────────────


cdef int settle_row(Recording recording, Peer peer, int direction, int64_t time, int number, uint32_t code,
                    const uint8_t* at, const uint8_t* end, int64_t size) except -1:
    """basic.ack, nack, reject. Raises ProtocolError."""
    cdef row_t row
    cdef Channel channel = channel_of(peer, number)
    cdef sent_t sent
    cdef bint through, requeue
    cdef uint64_t tag
    if end - at != 9:
        raise ProtocolError(502, "an acknowledgement has a delivery tag and flags, and nothing else")
    tag = peek_u64(at)
    through = code != BASIC_REJECT and at[8] & 1
    requeue = (at[8] & 1) if code == BASIC_REJECT else (at[8] >> 1 & 1)
    frame_row(recording, peer, &row, direction, time, kind_of_method(code), number, size)
    row.has |= HAS_PACKET_ID
    row.packet_id = <int64_t>tag
    recording.scratch.used = 0
    if code == BASIC_ACK and through:
        room_put(&recording.scratch, b'{"multiple":true}', 17)
        with_detail(&row, &recording.scratch)
    elif code != BASIC_ACK:
        detail = json_of({"multiple": bool(through), "requeue": bool(requeue)} if code == BASIC_NACK
                         else {"requeue": bool(requeue)})
        room_put(&recording.scratch, <const char*>detail, <size_t>len(detail))
        with_detail(&row, &recording.scratch)
    sent = window_take(&channel.publishes if direction == WAY_OUT else &channel.deliveries, tag, through)
    if sent.seq >= 0:
        row.has |= HAS_ANSWERS | HAS_LATENCY
        row.answers = sent.seq
        row.latency = time - sent.time
    row_end(recording, peer, &row, sent.seq != LEFT_OUT)
    return 0


# ── other methods ────────────────────────────────────────────────────────────────────────────────────────────


cdef uint32_t answer_to(Method method) except? 0:
    """The method that answers this one, of basic.get the first of two; 0: none."""
    cdef uint32_t code = method.code()
    if not type(method).synchronous or kind_of_method(code + 1) < 0 or getattr(method, "no_wait", False):
        return <uint32_t>EXCHANGE_UNBIND_OK if code == EXCHANGE_UNBIND and not method.no_wait else 0
    return code + 1


cdef int answer_of(Channel channel, row_t* row, uint32_t code, int direction) except -1:
    """Sets the fields about the method that this one answers."""
    cdef uint32_t wanted = <uint32_t>BASIC_GET_OK if code == BASIC_GET_EMPTY else code
    for index, (answer, way, seq, time) in enumerate(channel.pending_calls):
        if answer == wanted and way == direction:
            del channel.pending_calls[index]
            if seq >= 0:
                row.has |= HAS_ANSWERS | HAS_LATENCY
                row.answers = seq
                row.latency = row.time - <int64_t>time
            break
    return 0


cdef dict detail_of(Method method):
    """The fields of a method by name, without secrets."""
    found = {}
    for name, value in zip(type(method).fields, method.values()):
        if name not in SECRET:
            found[name.rstrip("_")] = plain_value(value)
    return found or None


cdef int learn(Peer peer, Channel channel, Method method, int direction, int number) except -1:
    """Updates the state of the channel from the method."""
    cdef uint32_t code = method.code()
    if code == CHANNEL_OPEN:
        channel.known = 1
    elif code == CONFIRM_SELECT and direction == WAY_IN:
        # If the channel is older than the recording, or after a gap, the number of published messages is unknown.
        if not channel.confirms:
            channel.confirms = channel.known
            channel.published = 0
    elif code == BASIC_CONSUME:
        if (<BasicConsume>method).consumer_tag:
            note_consumer(channel, (<BasicConsume>method).consumer_tag, (<BasicConsume>method).no_ack)
        else:
            channel.unnamed.append(bool((<BasicConsume>method).no_ack))
    elif code == BASIC_CONSUME_OK and channel.unnamed:
        # The answer to a consume with a client-chosen tag may come between; it has no new information.
        if (<BasicConsumeOk>method).consumer_tag.encode("utf-8", "surrogateescape") not in (
                channel.unacknowledged or ()):
            note_consumer(channel, (<BasicConsumeOk>method).consumer_tag, channel.unnamed.pop(0))
    elif code == BASIC_GET:
        channel.get_unacknowledged = (<BasicGet>method).no_ack
    elif code == CHANNEL_CLOSE_OK:
        forget_channel(peer, number)
    return 0


cdef int note_consumer(Channel channel, str tag, bint no_ack) except -1:
    named = tag.encode("utf-8", "surrogateescape")
    if no_ack:
        if channel.unacknowledged is None:
            channel.unacknowledged = set()
        channel.unacknowledged.add(named)
    elif channel.unacknowledged is not None:
        channel.unacknowledged.discard(named)
    return 0


cdef int method_row(Recording recording, Peer peer, int direction, int64_t time, int number, const uint8_t* at,
                    const uint8_t* end, int64_t size) except -1:
    """Raises ProtocolError."""
    cdef row_t row
    cdef Channel channel
    cdef Method method
    cdef uint32_t code, answer
    cdef bytes detail
    if end - at < 4:
        raise ProtocolError(501, "a method frame without class and method")
    code = peek_u32(at)
    if has_content(code):
        if recording.go_on:
            content_cut(recording, peer, direction, time, number)
        return content_begin(channel_of(peer, number), direction, code, at + 4, end, size)
    if code == BASIC_ACK or code == BASIC_NACK or code == BASIC_REJECT:
        return settle_row(recording, peer, direction, time, number, code, at + 4, end, size)
    method = method_read(at, end)
    if code == CHANNEL_OPEN:
        forget_channel(peer, number)
    channel = channel_of(peer, number)
    frame_row(recording, peer, &row, direction, time, kind_of_method(code), number, size)
    found = detail_of(method)
    if found is not None:
        detail = json_of(found)
        row.has |= HAS_DETAIL
        row.detail.at = <const uint8_t*><const char*>detail
        row.detail.n = <size_t>len(detail)
    if code == CHANNEL_CLOSE or code == CONNECTION_CLOSE:
        row.has |= HAS_REASON
        row.reason = method.reply_code
    answer_of(channel, &row, code, direction)
    seq = row_end(recording, peer, &row, 1)
    answer = answer_to(method)
    if answer and len(channel.pending_calls) < PENDING_CALLS_MAX:
        channel.pending_calls.append((answer, 1 - direction, seq, time))
    learn(peer, channel, method, direction, number)
    return 0


# ── what is invalid in a capture ─────────────────────────────────────────────────────────────────────────────


cdef inline bint has_content(uint32_t code) noexcept:
    return code == BASIC_PUBLISH or code == BASIC_DELIVER or code == BASIC_RETURN or code == BASIC_GET_OK


cdef int content_dropped(Channel channel, int direction, uint32_t code, bint counts) except -1:
    """The message is broken. code: of its method, 0: unknown. counts: the broker that went on took it as a message."""
    cdef row_t unused
    cdef content_t* content = &channel.contents[direction]
    content.state = NO_CONTENT
    content.dropped = 1
    content.payload.used = 0
    if direction == WAY_IN and code == BASIC_PUBLISH and counts:
        channel.published += channel.confirms
    elif direction == WAY_IN:
        channel.confirms = 0        # the number of the next publish is not certain any more
    elif code == BASIC_GET_OK:
        memset(&unused, 0, sizeof(row_t))
        answer_of(channel, &unused, BASIC_GET_OK, direction)
    return 0


cdef int content_cut(Recording recording, Peer peer, int direction, int64_t time, int number) except -1:
    """Before the next message: one that is not complete is broken."""
    cdef Channel channel = channel_of(peer, number)
    cdef content_t* content = &channel.contents[direction]
    if content.state == NO_CONTENT:
        return 0
    row_malformed(recording, peer, time, direction, <size_t>content.bytes,
                  "the next method came before the message was complete", kind_name(kind_of_method(content.code)),
                  number, 1)
    return content_dropped(channel, direction, content.code, 0)


cdef int method_dropped(Peer peer, int direction, int number, uint32_t code, int reply) except -1:
    """Drops the state that an invalid method may have changed."""
    cdef Channel channel = channel_of(peer, number)
    if has_content(code) or kind_of_method(code) < 0:
        content_dropped(channel, direction, code, reply != UNEXPECTED_FRAME)
    if code == CHANNEL_OPEN or code == CHANNEL_CLOSE_OK:
        return forget_channel(peer, number)
    if not has_content(code) and code != BASIC_ACK and code != BASIC_NACK and code != BASIC_REJECT:
        # It asked, or answered, and which of those that wait it belongs to is not known.
        channel.pending_calls.clear()
        channel.unnamed.clear()
    return 0


cdef int frame_malformed(Recording recording, Peer peer, int direction, int64_t time, uint8_t kind, int number,
                         const uint8_t* at, const uint8_t* end, int64_t size, int reply, str why) except -1:
    """Writes the row of an invalid frame, together with what there is of its message."""
    cdef content_t* content
    cdef uint32_t code = 0
    if kind == FRAME_METHOD:
        code = peek_u32(at) if end - at >= 4 else 0
        if kind_of_method(code) < 0:
            content_cut(recording, peer, direction, time, number)   # it may have been the method of the next message
    elif kind == FRAME_HEADER or kind == FRAME_BODY:
        content = &channel_of(peer, number).contents[direction]
        if content.state != NO_CONTENT:
            code = content.code
            size += content.bytes
    row_malformed(recording, peer, time, direction, <size_t>size, why, kind_name(kind_of_method(code)), number, 1)
    if kind == FRAME_METHOD:
        return method_dropped(peer, direction, number, code, reply)
    if kind == FRAME_HEADER or kind == FRAME_BODY:
        return content_dropped(channel_of(peer, number), direction, code, reply != UNEXPECTED_FRAME)
    return 0


cdef int frame_unplaced(Recording recording, Peer peer, int direction, int number, int64_t size) except -1:
    """A header or body without a message: the rest of one that began before the recording, or that is broken. Raises
    ProtocolError if it can be neither."""
    cdef Channel channel = channel_of(peer, number)
    if recording.go_on and channel.contents[direction].dropped:
        return count_undecoded(recording, peer, direction, <size_t>size, 1)
    if recording.go_on and channel.known:
        raise ProtocolError(UNEXPECTED_FRAME, "a content header or body came without the method of a message")
    recording.undecoded += <uint64_t>size
    return 0


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────


cdef int simple_row(Recording recording, Peer peer, int direction, int64_t time, int kind, int64_t size,
                    const uint8_t* version) except -1:
    """A row for the protocol header, whose last four bytes are the version, or (NULL) for a heartbeat."""
    cdef row_t row
    cdef bytes detail
    row_packet(recording, peer, &row, time, kind, direction, size)
    if version != NULL:
        detail = json_of({"version": [version[0], version[1], version[2], version[3]]})
        row.has |= HAS_DETAIL
        row.detail.at = <const uint8_t*><const char*>detail
        row.detail.n = <size_t>len(detail)
    row_end(recording, peer, &row, 1)
    return 0


cdef int frame_rows(Recording recording, Peer peer, int direction, int64_t time, uint8_t kind, int number,
                    const uint8_t* at, const uint8_t* end, int64_t size) except -1:
    """Writes the row of one frame, if it has one. Raises ProtocolError."""
    cdef int placed = 1
    if kind == FRAME_METHOD:
        method_row(recording, peer, direction, time, number, at, end, size)
    elif kind == FRAME_HEADER:
        placed = content_header(recording, peer, direction, time, number, at, end, size)
    elif kind == FRAME_BODY:
        placed = content_body(recording, peer, direction, time, number, at, end, size)
    elif kind == FRAME_HEARTBEAT:
        simple_row(recording, peer, direction, time, KIND_HEARTBEAT, size, NULL)
    else:
        raise ProtocolError(501, f"there is no frame type {kind}")
    return 0 if placed else frame_unplaced(recording, peer, direction, number, size)


cdef int amqp_rows(Recording recording, Peer peer, int direction, int64_t time, const uint8_t* at,
                   const uint8_t* end) except -1:
    cdef uint64_t size
    if peer.broken[direction]:
        return count_undecoded(recording, peer, direction, <size_t>(end - at), 0) if peer.kept else 0
    if end - at >= 8 and memcmp(at, b"AMQP", 4) == 0:
        simple_row(recording, peer, direction, time, KIND_PROTOCOL_HEADER, 8, at + 4)
        at += 8
    while at != end:
        size = FRAME_HEAD + 1
        if end - at >= FRAME_HEAD:
            size += peek_u32(at + 3)
        if <uint64_t>(end - at) < size or at[size - 1] != FRAME_END:
            return row_malformed(recording, peer, time, direction, <size_t>(end - at), "this is not a whole frame",
                                 None, -1, 0)
        if not peer.kept:
            # Each method is a row, and each heartbeat.
            recording.filtered += at[0] == FRAME_METHOD or at[0] == FRAME_HEARTBEAT
        else:
            try:
                frame_rows(recording, peer, direction, time, at[0], peek_u16(at + 1), at + FRAME_HEAD, at + size - 1,
                           <int64_t>size)
            except ProtocolError as error:
                if not recording.go_on or at[0] == 0 or at[0] > FRAME_HEARTBEAT:
                    return row_malformed(recording, peer, time, direction, <size_t>(end - at), str(error), None, -1, 0)
                frame_malformed(recording, peer, direction, time, at[0], peek_u16(at + 1), at + FRAME_HEAD,
                                at + size - 1, <int64_t>size, error.reason, str(error))
        at += size
    return 0
