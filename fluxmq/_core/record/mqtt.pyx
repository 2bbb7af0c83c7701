# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Rows of MQTT packets.

PUBLISH, plain acknowledgements and pings are read in place. Other packets, and unusual or invalid ones of these, go
through decode_packet, which also reports errors.

    PUBLISH ──► pending under (direction, packet identifier) ──► PUBREC, PUBREL answer it ──► PUBACK, PUBCOMP, or a
    PUBREC with an error: pending no more; the time until then is its latency. SUBSCRIBE, UNSUBSCRIBE, CONNECT and
    PINGREQ likewise.
"""
from base64 import b64encode

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from fluxmq._core.errors import ProtocolError
from fluxmq._core.amqp091.values cimport room_more
from fluxmq._core.mqtt.consts cimport (
    AUTH, CONNACK, CONNECT, DISCONNECT, LEVEL_31, LEVEL_311, LEVEL_5, PINGREQ, PINGRESP,
    PROPERTY_ASSIGNED_CLIENT_IDENTIFIER, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, SUBSCRIBE, UNSUBACK,
    UNSUBSCRIBE)
from fluxmq._core.mqtt.decode cimport connect_level_at, reason_fits
from fluxmq._core.mqtt.packets cimport (
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe, Will)
from fluxmq._core.mqtt.props cimport publish_props_t, scan_publish_props
from fluxmq._core.record.columns cimport (
    HAS_ANSWERS, HAS_DETAIL, HAS_DUP, HAS_LATENCY, HAS_PACKET_ID, HAS_PROPERTIES, HAS_QOS, HAS_REASON, HAS_RETAIN,
    HAS_TOPIC, WAY_IN, WAY_OUT, Columns, kind_name, row_t)
from fluxmq._core.record.json cimport properties_of, put_publish_properties
from fluxmq._core.record.pending cimport LEFT_OUT, NOTHING, pending_get, pending_put, sent_t
from fluxmq._core.record.state cimport (
    PAYLOAD_FULL, Peer, Recording, count_undecoded, json_of, row_end, row_malformed, row_packet, row_payload)
from fluxmq._core.wire.primitives cimport Cursor, take_bytes16, take_u8, take_u16, take_varint
from fluxmq._core.wire.sizes cimport fit_u16
from fluxmq._core.wire.text cimport TEXT_OK, topic_valid

from fluxmq._core.mqtt.decode import decode_packet

cdef enum:
    COLD = 0                # not for the fast path: use decode_packet
    DONE = 1
    REFUSED = 0x80          # reason codes from here on are errors
    FROM_BROKER = 1 << 16   # pending numbers: packet identifiers of publishes by the broker,
    PINGS = 1 << 17         # pings,
    CONNECTS = 1 << 18      # and the connection itself
    BRIDGE = 0x80           # bit of the protocol level that bridges of mosquitto set


cdef int take_padded(Cursor* c, uint32_t* length) noexcept nogil:
    """As take_varint, after it refused: 1 for a Remaining Length with more bytes than its value needs. MQTT 3.1.1 does
    not forbid that, MQTT 5 does [MQTT-1.5.5-1]; either way the packet ends where it says."""
    cdef int i
    length[0] = 0
    for i in range(4):
        if c.at + i == c.end:
            return 0
        length[0] |= <uint32_t>(c.at[i] & 0x7F) << (7 * i)
        if c.at[i] < 0x80:
            c.at += i + 1
            return 1
    return 0


cdef int64_t mqtt_whole(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* start = at
    cdef Cursor c
    cdef uint32_t length = 0
    cdef int taken
    c.end = end
    while end - at >= 2:
        if at[0] >> 4 == 0:
            return at - start if at != start else -1
        c.at = at + 1
        taken = take_varint(&c, &length)
        if taken < 0 and not take_padded(&c, &length):
            return at - start if at != start else -1
        if taken == 0 or <size_t>(end - c.at) < length:
            break
        at = c.at + length
    return at - start


cdef bytes connect_client(const uint8_t* at, const uint8_t* end):
    cdef Cursor c
    cdef uint32_t length = 0
    if at == end or at[0] >> 4 != CONNECT:
        return None
    c.at = at + 1
    c.end = end
    if take_varint(&c, &length) != 1 or <size_t>(end - c.at) < length:
        return None
    try:
        connect = <Connect>decode_packet(at[0], (<const char*>c.at)[:length], 0)
    except ProtocolError:
        return None
    return connect.client_id.encode() or None


# ── pending ──────────────────────────────────────────────────────────────────────────────────────────────────


cdef inline uint64_t number_of(int direction, uint64_t packet_id) noexcept:
    """direction: of the PUBLISH, SUBSCRIBE or UNSUBSCRIBE."""
    return packet_id | FROM_BROKER if direction == WAY_OUT else packet_id


cdef inline bint answered(Peer peer, row_t* row, uint64_t number, bint last) noexcept:
    """Sets the fields about the packet that the row answers. Returns False if that packet was left out, as this must
    be then."""
    cdef sent_t sent = pending_get(&peer.pending, number, last)
    if sent.seq == NOTHING:
        return 1
    if sent.seq == LEFT_OUT:
        return 0
    row.has |= HAS_ANSWERS
    row.answers = sent.seq
    if last:
        row.has |= HAS_LATENCY
        row.latency = row.time - sent.time
    return 1


# ── hot ──────────────────────────────────────────────────────────────────────────────────────────────────────


cdef int topic_of_alias(Recording recording, Peer peer, int direction, row_t* row, const uint8_t** topic,
                        uint16_t* n, uint32_t alias) except -1:
    """Stores the alias of a topic, or finds the topic of an alias. Returns 0 if the alias is unknown."""
    cdef dict aliases = peer.aliases_in if direction == WAY_IN else peer.aliases_out
    cdef bytes known
    if aliases is None:
        aliases = {}
        if direction == WAY_IN:
            peer.aliases_in = aliases
        else:
            peer.aliases_out = aliases
    if n[0]:
        aliases[alias] = (<const char*>topic[0])[:n[0]]
        return 1
    known = aliases.get(alias)
    if known is None:
        return 0
    topic[0] = <const uint8_t*><const char*>known       # kept alive by the dict
    n[0] = fit_u16(len(known))
    return 1


cdef int publish_row(Recording recording, Peer peer, int direction, int64_t time, uint8_t first, Cursor* c,
                     int64_t size) except -1:
    """Returns COLD if decode_packet must decide."""
    cdef row_t row
    cdef const uint8_t* topic = NULL
    cdef uint16_t n = 0, packet_id = 0
    cdef uint32_t length = 0
    cdef publish_props_t props
    cdef int qos = first >> 1 & 3
    cdef bint named, wanted = 1
    cdef int32_t word
    cdef int64_t seq
    if qos == 3 or (first & 8 and not qos) or not take_bytes16(c, &topic, &n):
        return COLD
    if qos and (not take_u16(c, &packet_id) or packet_id == 0):
        return COLD
    row_packet(recording, peer, &row, time, PUBLISH, direction, size)
    row.has |= HAS_QOS | HAS_RETAIN | HAS_DUP
    row.qos = <int8_t>qos
    row.retain = first & 1
    row.dup = first >> 3 & 1
    named = n != 0
    word = recording.columns.topics.find(topic, n) if named else -1
    if named and word < 0 and topic_valid(topic, n, 0) != TEXT_OK:
        return COLD
    if peer.version >= LEVEL_5:
        if take_varint(c, &length) != 1 or <size_t>(c.end - c.at) < length:
            return COLD
        if length:
            if scan_publish_props(c.at, c.at + length, &props, room_more(&recording.scratch, length)) != 0:
                return COLD
            recording.text.used = 0
            put_publish_properties(&recording.text, c.at, c.at + length)
            row.has |= HAS_PROPERTIES
            row.properties.at = recording.text.data
            row.properties.n = recording.text.used
            if props.topic_alias:
                named = topic_of_alias(recording, peer, direction, &row, &topic, &n, props.topic_alias)
            elif not named:
                return COLD
            c.at += length
        elif not named:
            return COLD
    elif not named and peer.version:
        return COLD
    if recording.topics is not None:
        wanted = named and recording.topics.wanted(topic, n, 0)
    if named and wanted:
        row.has |= HAS_TOPIC
        row.topic = word if word >= 0 else recording.columns.topics.index(topic, n)
    if qos:
        row.has |= HAS_PACKET_ID
        row.packet_id = packet_id
    # The version determines where the payload begins.
    if wanted and peer.version:
        row_payload(recording, &row, c.at, <size_t>(c.end - c.at))
    seq = row_end(recording, peer, &row, wanted)
    if qos:
        pending_put(&peer.pending, number_of(direction, packet_id), seq, time)
    return DONE


cdef int ack_row(Recording recording, Peer peer, int direction, int64_t time, uint8_t first, Cursor* c,
                 int64_t size) except -1:
    """PUBACK, PUBREC, PUBREL, PUBCOMP without properties; else returns COLD."""
    cdef int kind = first >> 4
    cdef uint16_t packet_id = 0
    cdef uint8_t reason = 0
    cdef size_t length = <size_t>(c.end - c.at)
    if first & 15 != (2 if kind == PUBREL else 0) or not take_u16(c, &packet_id) or packet_id == 0:
        return COLD
    if length != 2:
        # A reason code and an optional property length of 0.
        if peer.version == 0 and length > 2:
            return DONE if acknowledged(recording, peer, direction, time, kind, packet_id, -1, size, None) else COLD
        if peer.version < LEVEL_5 or length > 4 or not take_u8(c, &reason) or (length == 4 and c.at[0] != 0):
            return COLD
        if not reason_fits(kind, reason, LEVEL_5):
            return COLD
    acknowledged(recording, peer, direction, time, kind, packet_id, reason if peer.version >= LEVEL_5 else -1, size,
                 None)
    return DONE


cdef int acknowledged(Recording recording, Peer peer, int direction, int64_t time, int kind, int packet_id, int reason,
                      int64_t size, bytes properties) except -1:
    """Writes the row of one of the four. reason: -1: none."""
    cdef row_t row
    # PUBREL has the direction of the PUBLISH, the others the opposite one.
    cdef int way = direction if kind == PUBREL else 1 - direction
    cdef bint last = kind == PUBACK or kind == PUBCOMP or (kind == PUBREC and reason >= REFUSED)
    row_packet(recording, peer, &row, time, kind, direction, size)
    row.has |= HAS_PACKET_ID
    row.packet_id = packet_id
    if reason >= 0:
        row.has |= HAS_REASON
        row.reason = reason
    if properties is not None:
        row.has |= HAS_PROPERTIES
        row.properties.at = <const uint8_t*><const char*>properties
        row.properties.n = <size_t>len(properties)
    row_end(recording, peer, &row, answered(peer, &row, number_of(way, <uint64_t>packet_id), last))
    return DONE


cdef int ping_row(Recording recording, Peer peer, int direction, int64_t time, int kind, int64_t size) except -1:
    cdef row_t row
    cdef int64_t seq
    row_packet(recording, peer, &row, time, kind, direction, size)
    if kind == PINGRESP and peer.pongs < peer.pings:
        answered(peer, &row, PINGS | (peer.pongs & 0xFFFF), 1)
        peer.pongs += 1
    seq = row_end(recording, peer, &row, 1)
    if kind == PINGREQ:
        pending_put(&peer.pending, PINGS | (peer.pings & 0xFFFF), seq, time)
        peer.pings += 1
    return 0


# ── cold ─────────────────────────────────────────────────────────────────────────────────────────────────────


cdef object will_of(Recording recording, Will will):
    if will is None:
        return None
    found = {"topic": will.topic, "qos": will.qos, "retain": bool(will.retain), "size": len(will.payload)}
    if recording.payload == PAYLOAD_FULL:
        found["payload"] = b64encode(will.payload).decode()
    properties = properties_of(will.properties)
    if properties:
        found["properties"] = properties
    return found


cdef dict detail_of(Recording recording, Packet packet):
    """Fields of a cold packet that have no column, without passwords."""
    if isinstance(packet, Connect):
        connect = <Connect>packet
        found = {"client_id": connect.client_id, "clean_start": bool(connect.clean_start),
                 "keep_alive_s": connect.keep_alive, "user": connect.username,
                 "password": connect.password is not None}
        if connect.will is not None:
            found["will"] = will_of(recording, connect.will)
        return found
    if isinstance(packet, ConnAck):
        return {"session_present": bool((<ConnAck>packet).session_present)}
    if isinstance(packet, Subscribe):
        return {"subscriptions": [[(<Subscription>one).filter, options_of(<Subscription>one)]
                                  for one in (<Subscribe>packet).subscriptions]}
    if isinstance(packet, SubAck):
        return {"codes": (<SubAck>packet).reason_codes}
    if isinstance(packet, Unsubscribe):
        return {"filters": (<Unsubscribe>packet).filters}
    if isinstance(packet, UnsubAck):
        return {"codes": (<UnsubAck>packet).reason_codes}
    return None


cdef int options_of(Subscription one):
    """The options byte of MQTT 5, section 3.8.3.1."""
    return one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4


cdef int learn(Peer peer, Packet packet) except -1:
    """Updates the state of the connection from the packet."""
    if isinstance(packet, Connect):
        peer.version = <int8_t>(<Connect>packet).protocol_level
        if (<Connect>packet).client_id:
            peer.client = (<Connect>packet).client_id.encode()
            peer.client_batch = 0
    elif isinstance(packet, ConnAck):
        given = packet.get(PROPERTY_ASSIGNED_CLIENT_IDENTIFIER)
        if given:
            peer.client = given.encode()
            peer.client_batch = 0
    return 0


cdef bint cold_answers(Peer peer, row_t* row, int direction, int kind, Packet packet) except -1:
    """Sets packet identifier, reason and the answered packet. Returns False if the row must be left out."""
    if kind == CONNACK:
        row.has |= HAS_REASON
        row.reason = (<ConnAck>packet).reason_code
        return answered(peer, row, CONNECTS, 1)
    if kind == SUBACK or kind == UNSUBACK or kind == SUBSCRIBE or kind == UNSUBSCRIBE:
        row.has |= HAS_PACKET_ID
        row.packet_id = packet.packet_id
        return kind == SUBSCRIBE or kind == UNSUBSCRIBE or answered(
            peer, row, number_of(1 - direction, <uint64_t>row.packet_id), 1)
    if (kind == DISCONNECT or kind == AUTH) and peer.version >= LEVEL_5:
        row.has |= HAS_REASON
        row.reason = packet.reason_code
    return 1


cdef int cold_row(Recording recording, Peer peer, int direction, int64_t time, uint8_t first, const uint8_t* body,
                  const uint8_t* end, int64_t size) except -1:
    """Raises ProtocolError."""
    cdef row_t row
    cdef int kind = first >> 4
    cdef bytes properties = None, detail = None
    cdef bint wanted
    cdef int64_t seq
    # The version decides about no error of a PUBLISH that is read without it.
    packet = <Packet>decode_packet(first, (<const char*>body)[:end - body],
                                   LEVEL_311 if peer.version == 0 and kind == PUBLISH else peer.version)
    found = properties_of(packet.properties) if hasattr(packet, "properties") else None
    properties = None if found is None else json_of(found)
    if PUBACK <= kind <= PUBCOMP:
        return acknowledged(recording, peer, direction, time, kind, (<Ack>packet).packet_id,
                            (<Ack>packet).reason_code if peer.version >= LEVEL_5 else -1, size, properties)
    learn(peer, packet)
    row_packet(recording, peer, &row, time, kind, direction, size)
    if properties is not None:
        row.has |= HAS_PROPERTIES
        row.properties.at = <const uint8_t*><const char*>properties
        row.properties.n = <size_t>len(properties)
    found = detail_of(recording, packet)
    if found is not None:
        detail = json_of(found)
        row.has |= HAS_DETAIL
        row.detail.at = <const uint8_t*><const char*>detail
        row.detail.n = <size_t>len(detail)
    wanted = cold_answers(peer, &row, direction, kind, packet)
    seq = row_end(recording, peer, &row, wanted)
    if kind == CONNECT:
        pending_put(&peer.pending, CONNECTS, seq, time)
    elif kind == SUBSCRIBE or kind == UNSUBSCRIBE:
        pending_put(&peer.pending, number_of(direction, <uint64_t>row.packet_id), seq, time)
    return 0


cdef int vague_row(Recording recording, Peer peer, int direction, int64_t time, uint8_t first, Cursor* c,
                   int64_t size) except -1:
    """A packet of an unknown version: reads only what all versions have in common."""
    cdef row_t row
    cdef int kind = first >> 4
    cdef uint16_t packet_id = 0
    row_packet(recording, peer, &row, time, kind, direction, size)
    if SUBSCRIBE <= kind <= UNSUBACK and take_u16(c, &packet_id):
        row.has |= HAS_PACKET_ID
        row.packet_id = packet_id
    row_end(recording, peer, &row, 1)
    return 0


cdef int packet_rows(Recording recording, Peer peer, int direction, int64_t time, uint8_t first, const uint8_t* body,
                     const uint8_t* end, int64_t size) except -1:
    """Writes the row of one packet. Raises ProtocolError."""
    cdef Cursor c
    cdef int kind = first >> 4
    c.at = body
    c.end = end
    if kind == PUBLISH and publish_row(recording, peer, direction, time, first, &c, size) == DONE:
        return 0
    if PUBACK <= kind <= PUBCOMP and ack_row(recording, peer, direction, time, first, &c, size) == DONE:
        return 0
    if (kind == PINGREQ or kind == PINGRESP) and body == end and first & 15 == 0:
        return ping_row(recording, peer, direction, time, kind, size)
    c.at = body
    if peer.version == 0 and kind != CONNECT and kind != PUBLISH and kind:
        return vague_row(recording, peer, direction, time, first, &c, size)
    return cold_row(recording, peer, direction, time, first, body, end, size)


cdef int bridge_level_at(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """The version that a bridge of mosquitto speaks, whose CONNECT is that of MQTT but for one bit; 0: it is none."""
    if end - at >= 9 and memcmp(at, <const char*>b"\x00\x06MQIsdp", 8) == 0 and at[8] == (BRIDGE | LEVEL_31):
        return LEVEL_31
    if end - at >= 7 and memcmp(at, <const char*>b"\x00\x04MQTT", 6) == 0 and at[6] == (BRIDGE | LEVEL_311):
        return LEVEL_311
    return 0


cdef bint passed_over(Peer peer, int direction, uint8_t first, const uint8_t* body, const uint8_t* end) noexcept:
    """After an invalid packet with a known end: drops the state that it may have changed. Returns False if what follows
    in its direction cannot be decoded for certain."""
    cdef int kind = first >> 4
    if kind == 0 or (kind == AUTH and 0 < peer.version < LEVEL_5):
        return 0            # reserved types: this is no fixed header
    if kind == CONNECT and peer.version == 0:
        peer.version = <int8_t>(connect_level_at(body, end) or bridge_level_at(body, end))
        return peer.version != 0
    if kind == PUBLISH and direction == WAY_IN:
        peer.aliases_in = None      # it may have set one anew
    elif kind == PUBLISH:
        peer.aliases_out = None
    elif kind == PINGREQ:
        peer.pings += 1
    elif kind == PINGRESP and peer.pongs < peer.pings:
        peer.pongs += 1
    return 1


cdef int mqtt_rows(Recording recording, Peer peer, int direction, int64_t time, const uint8_t* at,
                   const uint8_t* end) except -1:
    cdef Cursor c
    cdef uint32_t length = 0
    cdef int taken
    cdef bint padded, goes_on
    if peer.broken[direction]:
        return count_undecoded(recording, peer, direction, <size_t>(end - at), 0) if peer.kept else 0
    c.end = end
    while at != end:
        c.at = at + 1
        taken = take_varint(&c, &length)
        padded = taken < 0 and recording.go_on and take_padded(&c, &length)
        if (taken != 1 and not padded) or <size_t>(end - c.at) < length:
            return row_malformed(recording, peer, time, direction, <size_t>(end - at), "this is not a whole packet",
                                 None, -1, 0)
        if not peer.kept:
            recording.filtered += 1
        else:
            try:
                if padded and peer.version >= LEVEL_5:
                    raise ProtocolError(0x81, "the Remaining Length has more bytes than it needs")
                packet_rows(recording, peer, direction, time, at[0], c.at, c.at + length,
                            <int64_t>(c.at + length - at))
            except ProtocolError as error:
                goes_on = recording.go_on and passed_over(peer, direction, at[0], c.at, c.at + length)
                row_malformed(recording, peer, time, direction, <size_t>((c.at + length if goes_on else end) - at),
                              str(error), kind_name(at[0] >> 4), -1, goes_on)
                if not goes_on:
                    return 0
        at = c.at + length
    return 0
