# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Handle and machine. One MQTT connection: parses packets and handles the hot ones. The phases: transport.pxd.
It is one file because a publish whose permission is pending (ASK) is handled again from its bytes on, so parsing,
routing and answering share their state.

The hot packets (PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, PINGREQ) are handled here; all others go to the edge as
bytes. Besides what Transport requires of its `handler`, the edge must provide:

    on_packet(connection, first_byte, body) -> bool     a cold packet; may raise ProtocolError. True: ASK (see
                                                transport.pxd)
    on_refused(connection, type, id, reason, text)  answers a QoS 1 or 2 PUBLISH of MQTT 5 that is not allowed
    may_publish(connection, topic) -> int | None    called while Hub.open_publish is false. 0, 1: no, yes, cached for
                                                a generation; -1: no, not cached; None: ASK
    on_queue_order(connection, topic, properties) -> (reason, text)     a PUBLISH to a command topic of a queue, like
                                                `$queue/<name>/$ack`
    on_queue_unknown(connection, topic) -> bool | None      no queue takes this `$queue/…` topic; True: now one does;
                                                None: ASK
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from fluxmq._core.errors import ProtocolError
from fluxmq._core.memory.commits cimport HELD_ACK, must_wait
from fluxmq._core.memory.link cimport link_ack, link_set_aliases, link_t, link_write, link_write_run
from fluxmq._core.memory.message cimport BLOB_BYTES_MIN, FORMAT_MQTT, blob_drop, pub_t
from fluxmq._core.memory.node cimport WORK_ASK, WORK_COLD, WORK_CONNECT, WORK_ROUTE
from fluxmq._core.mqtt.consts cimport (
    CONNECT, PINGREQ, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, REASON_MALFORMED_PACKET,
    REASON_IMPLEMENTATION_SPECIFIC_ERROR, REASON_NO_MATCHING_SUBSCRIBERS, REASON_NOT_AUTHORIZED,
    REASON_PACKET_IDENTIFIER_NOT_FOUND, REASON_PACKET_TOO_LARGE,
    REASON_PAYLOAD_FORMAT_INVALID, REASON_PROTOCOL_ERROR, REASON_QOS_NOT_SUPPORTED, REASON_QUOTA_EXCEEDED,
    REASON_RECEIVE_MAXIMUM_EXCEEDED, REASON_RETAIN_NOT_SUPPORTED, REASON_SERVER_UNAVAILABLE, REASON_SUCCESS,
    REASON_TOPIC_ALIAS_INVALID,
    REASON_TOPIC_NAME_INVALID, REASON_UNSPECIFIED_ERROR,
)
from fluxmq._core.mqtt.props cimport publish_props_t, scan_publish_props, scratch_for, scratch_t
from fluxmq._core.net.transport cimport (
    ASK, DONE, PAUSE_ANSWERS, PHASE_CONNECT, PHASE_DRAINING, PHASE_OPEN, REFUSED, admit, enter_phase,
)
from fluxmq._core.pubsub.routes cimport HOP_SESSION, hop_t, hop_target, route_drop
from fluxmq._core.pubsub.topics cimport topics_of
from fluxmq._core.pubsub.trie cimport SUB_NO_LOCAL
from fluxmq._core.wire.primitives cimport Cursor, peek_u16, take_varint
from fluxmq._core.wire.queue_address cimport QUEUE_PREFIX_BYTES, has_queue_prefix
from fluxmq._core.wire.sizes cimport fit_u32
from fluxmq._core.wire.text cimport TEXT_BAD, TEXT_OK, is_reserved_topic, topic_valid, utf8_valid

__all__ = ["ClientFacts", "Connection"]

cdef enum:
    PASSED_PACKET_BYTES_MAX = 8192      # of a packet that is forwarded unchanged
    PASSED_RUN_BYTES_MAX = 57000        # of a run of them without its last packet: one chunk of a link holds it
    CONNECT_BYTES_MAX = 393216  # six of 65 535 bytes: client id, will topic and payload, user, password, properties
    PROPERTIES_REMEMBERED_MAX = 512
    ALLOWED_MAX = 1024          # cached answers of the Authority per connection
    ALIAS_BYTES_MAX = 131072            # of the topics of a client's aliases: two of the longest, 64 of 2 KiB
    ALLOWED_TOPIC_BYTES_MAX = 1024      # answers for longer topics are not cached: 1 024 of 64 KiB would be 64 MiB

# By result of Queue.take. PUBACK and PUBREC have no code for a message that is too large (MQTT 5.0 section 3.4.2.1).
QUEUE_REFUSALS = {
    REASON_QUOTA_EXCEEDED: (REASON_QUOTA_EXCEEDED, "the queue is full, or its namespace"),
    REASON_UNSPECIFIED_ERROR: (REASON_UNSPECIFIED_ERROR,
                               "the queue is stopped: a file of it is damaged, as the broker's log says"),
    REASON_SERVER_UNAVAILABLE: (REASON_UNSPECIFIED_ERROR, "the node that has the queue is away"),
    REASON_PACKET_TOO_LARGE: (REASON_QUOTA_EXCEEDED,
                              "the message is larger than the queue takes (limits.max_message_size)"),
    REASON_IMPLEMENTATION_SPECIFIC_ERROR: (
        REASON_IMPLEMENTATION_SPECIFIC_ERROR, "the user properties priority (0 to 255), x-delay, not-before and "
                                              "producer-sequence are decimal numbers"),
}

cdef scratch_t scratch


cdef bint is_queue_order(const route_t* route) noexcept nogil:
    """Whether the second level below `$queue/` begins with `$`: `$queue/<name>/$ack`."""
    cdef uint32_t i
    for i in range(QUEUE_PREFIX_BYTES, <uint32_t>route.topic_length - 1):
        if route.topic[i] == 47:
            return route.topic[i + 1] == 36
    return 0


cdef class ClientFacts:
    """Base class of what the edge keeps of each connection (fluxmq/edge/mqtt/connection.py): its numbers and flags."""

    def __cinit__(self, *_):
        self.packet_size_max = 0xFFFFFFFF
        self.problem_information = self.publish_will = True


@cython.final
cdef class Connection(Transport):
    """Handle and machine. Arguments as Transport."""

    def __cinit__(self, Hub hub not None, int fd, int epoll, object handler, object tls=None, bint websocket=False):
        self.packet_bytes_max = CONNECT_BYTES_MAX

    def __dealloc__(self):
        free(self.last_properties)
        if self.last_route != NULL:
            route_drop(self.last_route)

    cdef void count(self, bytes packet) noexcept:
        self.hub.node.counters.packets_sent[(<const uint8_t*><const char*>packet)[0] >> 4] += 1

    cdef void let_go(self) noexcept:
        if self.session is not None:
            if self.session.link == self.link:
                self.session.detach()
            self.session = None

    cdef int drained(self) except -1:
        if self.session is not None and (self.session.queued or self.session.resend_count):
            self.session.pump()
        if self.session is not None and self.session.claim_keeper is not None:
            self.session.claim_keeper.on_room()
        if self.session is not None and self.session.replay is not None:
            self.session.replay.on_room(self.session)
        return 0

    @property
    def version(self) -> int:
        return self.link.version

    @property
    def open(self) -> bool:
        return self.phase == PHASE_OPEN

    @property
    def topic_aliases(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """The aliases in force: (inbound, outbound)."""
        cdef link_t* link = self.link
        cdef uint32_t i
        ours = []
        if link.aliases != NULL:
            for i in range(<uint32_t>1 << link.alias_mask_bits):
                if link.aliases[i].topic != NULL:
                    ours.append((i + 1, link.aliases[i].topic[:link.aliases[i].length].decode()))
        return [(n, topic.decode()) for n, topic in enumerate(self.aliases or (), 1) if topic is not None], ours

    def set_version(self, int level):
        """level: protocol level of CONNECT, 3, 4 or 5."""
        self.link.version = <uint8_t>level

    def accept(self, Session session not None, uint32_t window, uint32_t packet_size_max, uint16_t alias_max):
        """CONNACK was written: from now on hot packets are handled and the session sends through this connection.

        window: messages in flight, 1 to 65 535. packet_size_max: client's Maximum Packet Size, bytes.
        alias_max: client's Topic Alias Maximum.
        """
        if self.phase >= PHASE_DRAINING:
            return
        self.session = session
        self.topics = <Topics>topics_of(session.namespace)
        enter_phase(self, PHASE_OPEN)
        self.link.packet_size_max = packet_size_max
        self.link.inbound = session.received_count
        link_set_aliases(self.link, <uint16_t>min(<uint32_t>alias_max, self.hub.limits.topic_alias_out_max))
        session.attach(self.link, window)
        self.hub.touch()

    cdef int dispatch_big(self, blob_t* blob) except -1:
        cdef uint8_t* at = blob.data + 1
        while at[0] & 0x80:
            at += 1
        return self.dispatch(blob.data[0], at + 1, blob.data + blob.size, blob)

    cdef ssize_t parse(self, uint8_t* data, size_t n) except -1:
        """Handles every complete packet in data[0:n]; returns the bytes used."""
        cdef const uint8_t* at = data
        cdef const uint8_t* end = data + n
        cdef Cursor c
        cdef uint32_t remaining = 0
        cdef uint32_t size
        cdef int found
        cdef size_t passed
        cdef Hub hub = self.hub
        if n and self.phase == PHASE_CONNECT and self.state is None and at[0] != CONNECT << 4:
            raise ProtocolError(REASON_PROTOCOL_ERROR, "the first packet is not CONNECT [MQTT-3.1.0-1]")
        while end - at >= 2:
            if at[0] == PUBLISH << 4 and self.phase == PHASE_OPEN and self.last_route != NULL:
                passed = self.pass_on(at, end)
                if passed:
                    at += passed
                    if self.paused:
                        break
                    if hub.node.work >= self.work_end and at < end:
                        self.defer(0)
                        break
                    continue
            if at[1] < 0x80:
                remaining = at[1]
                c.at = at + 2
            else:
                c.at = at + 1
                c.end = end
                found = take_varint(&c, &remaining)
                if found == 0:
                    break
                if found < 0:
                    self.parsed = end
                    raise ProtocolError(REASON_MALFORMED_PACKET, "Remaining Length is malformed [MQTT-1.5.5-1]")
            size = admit(self, <uint64_t>(c.at - at) + remaining, end)
            if end - at < size:
                self.announced = size
                break
            self.parsed = c.at + remaining
            if self.dispatch(at[0], c.at, c.at + remaining, NULL) == ASK:
                self.parsed = at        # the packet stays in front
                break
            if self.verdicts is not None:
                self.verdicts = None
            at = c.at + remaining
            if self.paused or self.phase >= PHASE_DRAINING:
                break
            if hub.node.work >= self.work_end and at < end:
                self.defer(0)       # its share is used up: the rest in the next round
                break
        # Checked once per read, not per packet: one read causes at most 256 KiB of answers.
        if self.phase == PHASE_OPEN and (self.link.pending > 2 * self.link.high
                                         or self.link.held > self.hub.limits.receive_max):
            self.pause_for(PAUSE_ANSWERS)
        return at - data

    cdef size_t pass_on(self, const uint8_t* begin, const uint8_t* end) except? 0:
        """Fast path: consecutive QoS 0 PUBLISH packets to the last topic whose subscribers all take them unchanged.
        Copies the whole run once per subscriber. Returns its bytes; 0: the first packet needs the normal path."""
        cdef Hub hub = self.hub
        cdef route_t* route = self.last_route
        cdef uint32_t i, n
        cdef hop_t* hop
        cdef link_t* link
        if route.kinds != 1 << HOP_SESSION or route.generation != self.topics.trie.generation:
            return 0
        for i in range(route.count):
            hop = &route.hops[i]
            if hop.options & SUB_NO_LOCAL or hop.ids != NULL:
                return 0
            link = (<Session>hop_target(hop, HOP_SESSION)).link
            if (link == NULL or (link.version == 5) != (self.link.version == 5) or link.aliases != NULL
                    or link.pending > link.high or link.packet_size_max < PASSED_PACKET_BYTES_MAX):
                return 0
        # Last, because it scans many packets: if a check above fails, it would scan them again for each packet.
        n = self.run_of(begin, end, route, &end)
        if n == 0:
            return 0
        for i in range(route.count):
            link = (<Session>hop_target(&route.hops[i], HOP_SESSION)).link
            if link_write_run(link, begin, fit_u32(end - begin)) < 0:
                raise MemoryError()
        # The cost per message is negligible; each 256 bytes of each copy count as one unit.
        hub.node.work += n // 2 + <uint64_t>route.count * (1 + <uint64_t>(end - begin) // 256)
        self.topics.routes.hits += n
        hub.node.counters.packets_received[PUBLISH] += n
        hub.node.counters.messages_received[0] += n
        hub.node.counters.passed_on += n
        hub.node.counters.packets_sent[PUBLISH] += <uint64_t>n * route.count
        hub.node.counters.messages_sent[0] += <uint64_t>n * route.count
        self.spend(self.topics.namespace, n)
        return end - begin

    cdef uint32_t run_of(self, const uint8_t* at, const uint8_t* end, const route_t* route,
                         const uint8_t** run_end) noexcept:
        """Number of packets from `at` on that are complete, alike, valid and allowed without ASK; sets run_end."""
        cdef Hub hub = self.hub
        cdef uint32_t topic_length = route.topic_length
        cdef uint32_t head = topic_length + 2
        cdef uint32_t remaining, payload, properties
        cdef uint32_t n = 0
        cdef uint32_t packet_max = min(self.packet_bytes_max, <size_t>PASSED_PACKET_BYTES_MAX)
        cdef uint32_t payload_max = min(hub.limits.payload_bytes_max, <uint32_t>BLOB_BYTES_MIN - 1)
        cdef bint v5 = self.link.version == 5
        cdef const uint8_t* stop = at + PASSED_RUN_BYTES_MAX
        cdef const uint8_t* body
        run_end[0] = at
        if route.topic[0] == 36 or (not hub.open_publish and self.last_access != hub.access_generation + 1):
            return 0
        while end - at > 3 and at[0] == PUBLISH << 4 and at < stop:
            if at[1] < 0x80:
                remaining = at[1]
                body = at + 2
            elif at[2] < 0x80:
                remaining = (at[1] & 0x7F) | <uint32_t>at[2] << 7
                body = at + 3
            else:
                break
            if remaining < head or end - body < remaining:
                break
            payload = remaining - head
            if v5:
                # No properties, or the same valid bytes as last time, forwarded unchanged.
                if payload == 0:
                    break
                properties = body[head]
                if properties and (properties != self.last_properties_length or payload <= properties
                                   or properties >= 0x80
                                   or memcmp(body + head + 1, self.last_properties, properties) != 0):
                    break
                payload -= 1 + properties
            if (peek_u16(body) != topic_length or payload > payload_max or remaining + 3 > packet_max
                    or memcmp(body + 2, route.topic, topic_length) != 0):
                break
            if at[1] & 0x80 and at[2] == 0:
                break               # a Remaining Length with more bytes than it needs: malformed [MQTT-1.5.5-1]
            at = body + remaining
            n += 1
        run_end[0] = at
        return n

    cdef int too_large(self, uint64_t size) except -1:
        why = ("the most that a CONNECT has" if self.phase == PHASE_CONNECT and self.state is None
               else "broker.max_message_size")
        raise ProtocolError(REASON_PACKET_TOO_LARGE, f"a packet of {size} bytes is over the limit of "
                                                     f"{self.packet_bytes_max} ({why})")

    cdef int dispatch(self, uint8_t first, const uint8_t* body, const uint8_t* end, blob_t* blob) except -1:
        """DONE, REFUSED or ASK."""
        cdef uint8_t packet_type = first >> 4
        cdef int result
        self.hub.node.counters.packets_received[packet_type] += 1
        self.hub.node.work += 1
        if self.phase == PHASE_OPEN:
            if packet_type == PUBLISH:
                result = self.on_publish(first, body, end, blob)
                if result == ASK:
                    self.hub.node.counters.packets_received[PUBLISH] -= 1
                return result
            if PUBACK <= packet_type <= PUBCOMP:
                if (first & 0x0F) != (2 if packet_type == PUBREL else 0) and not (
                        first == (PUBREL << 4 | 0x0A) and self.link.version == 3):   # DUP, MQTT 3.1 section 3.6
                    raise ProtocolError(REASON_MALFORMED_PACKET, "reserved flag bits of an acknowledgement are set "
                                                                 "[MQTT-2.1.3-1]")
                return self.on_ack(packet_type, body, end)
            if packet_type == PINGREQ:
                if first & 0x0F or body != end:
                    raise ProtocolError(REASON_MALFORMED_PACKET, "PINGREQ carries something [MQTT-2.1.3-1]")
                self.hub.node.counters.packets_sent[PINGRESP] += 1
                link_write(self.link, b"\xd0\x00", 2)
                return 0
        self.hub.cold = True
        self.hub.node.work += WORK_CONNECT if self.phase == PHASE_CONNECT else WORK_COLD
        if self.handler.on_packet(self, first, PyBytes_FromStringAndSize(<const char*>body, end - body)) is True:
            self.hub.node.counters.packets_received[packet_type] -= 1
            return ASK
        return DONE

    cdef int on_publish(self, uint8_t first, const uint8_t* at, const uint8_t* end, blob_t* blob) except -1:
        cdef pub_t pub
        cdef uint16_t packet_id = 0
        cdef uint8_t qos = first >> 1 & 3
        cdef route_t* route = self.last_route
        cdef Hub hub = self.hub
        cdef uint64_t since
        cdef int allowed = DONE
        if end - at < 2 or end - at - 2 < peek_u16(at):
            raise ProtocolError(REASON_MALFORMED_PACKET, "PUBLISH is shorter than its topic")
        pub.body.topic_length = peek_u16(at)
        pub.body.topic = at + 2
        at += 2 + pub.body.topic_length
        pub.body.properties = at
        pub.body.properties_length = pub.body.expires_at = pub.passing = pub.refused = pub.from_peer = 0
        pub.body.blob = blob
        pub.body.format = FORMAT_MQTT
        pub.source = <void*>self.session
        pub.topics = <void*>self.topics
        pub.owned = pub.amqp = pub.once = NULL
        pub.qos = qos
        pub.retain = first & 1
        if qos:
            if qos == 3:
                raise ProtocolError(REASON_MALFORMED_PACKET, "PUBLISH with QoS 3 [MQTT-3.3.1-4]")
            if end - at < 2 or peek_u16(at) == 0:
                raise ProtocolError(REASON_PROTOCOL_ERROR if end - at >= 2 else REASON_MALFORMED_PACKET,
                                    "PUBLISH without a packet identifier [MQTT-2.2.1-2]")
            packet_id = peek_u16(at)
            at += 2
        elif first & 0x08:
            raise ProtocolError(REASON_MALFORMED_PACKET, "PUBLISH with DUP and QoS 0 [MQTT-3.3.1-2]")
        if qos > hub.limits.qos_max:
            raise ProtocolError(REASON_QOS_NOT_SUPPORTED, f"QoS {qos} is over broker.max_qos {hub.limits.qos_max}")
        if pub.retain and hub.retained.count_max == 0:
            raise ProtocolError(REASON_RETAIN_NOT_SUPPORTED, "PUBLISH with RETAIN, but retained messages are off "
                                                             "(broker.max_retained_messages: 0) [MQTT-3.2.2-14]")
        if self.link.version == 5:
            at = self.read_properties(&pub, at, end)
        pub.body.payload = at
        pub.body.payload_length = fit_u32(end - at)
        if pub.body.payload_length > hub.limits.payload_bytes_max:
            self.too_large(pub.body.payload_length)
        if (route == NULL or route.topic_length != pub.body.topic_length
                or memcmp(route.topic, pub.body.topic, route.topic_length) != 0):
            route = self.route_of(&pub)
        elif route.generation != self.topics.trie.generation:
            hub.node.work += WORK_ROUTE
            route = self.remember(self.topics.routes.find(pub.body.topic, pub.body.topic_length))
        else:
            self.topics.routes.hits += 1
        if not hub.open_publish or route.topic[0] == 36 or self.learning:
            allowed = self.permit(&pub, route, packet_id)
            if allowed != DONE:
                return allowed
        if route.topic[0] == 36 and has_queue_prefix(route.topic, route.topic_length):
            if qos == 2 and is_queue_order(route) and self.session.has_received(packet_id):
                return self.acknowledge(PUBREC, packet_id, 0, hub.commits.mark)
            route = self.queue_route(&pub, route, packet_id, &allowed)
            if route == NULL:
                return allowed
        self.spend(self.topics.namespace, 1)
        since = hub.commits.mark
        if qos == 0:
            hub.node.counters.messages_received[0] += 1
            hub.publish(&pub, route)
            if hub.commits.mark != since:
                self.throttle()
            return 0
        if qos == 2 and self.session.has_received(packet_id):
            return self.answer_again(&pub, route, packet_id)
        if self.link.version == 5 and self.link.inbound >= hub.limits.receive_max:
            raise ProtocolError(REASON_RECEIVE_MAXIMUM_EXCEEDED, f"more than {hub.limits.receive_max} PUBLISH "
                                                                 f"unacknowledged [MQTT-3.3.4-7]")
        return self.publish_and_answer(&pub, route, packet_id, first)

    cdef int publish_once(self, pub_t* pub, route_t* route, uint16_t packet_id, uint8_t first) except -1:
        """QoS 2. first: first byte of the packet."""
        self.session.receive(packet_id)
        if self.incarnation:
            return self.hub.publish_of_client(pub, route, self.incarnation, self.counted, False, first & 0x08 != 0,
                                              packet_id)
        return self.hub.publish(pub, route)

    cdef int answer_again(self, pub_t* pub, route_t* route, uint16_t packet_id) except -1:
        """A QoS 2 PUBLISH that was received before [MQTT-4.3.3-10]. Other nodes may lack it, because the one that had
        received it has died: they get it once more, and who has it does not take it again."""
        cdef uint64_t since = self.hub.commits.mark
        if self.incarnation and self.hub.nodes:
            self.hub.publish_of_client(pub, route, self.incarnation, self.counted, True, True, packet_id)
        if pub.refused:
            return self.refuse_for_queue(pub, packet_id)
        self.hub.ledger.wait_for_earlier(self.hub.commits.local)    # what the first one caused may not be on the disk
        return self.acknowledge(PUBREC, packet_id, 0, since)

    cdef int refuse_for_queue(self, pub_t* pub, uint16_t packet_id) except -1:
        """A queue refuses the message: pub.refused."""
        if pub.qos == 2:
            self.complete(packet_id)
        self.link.inbound -= 1
        reason, text = QUEUE_REFUSALS[pub.refused]
        if pub.refused == REASON_QUOTA_EXCEEDED and self.hub.ledger.full:
            text = self.hub.ledger.full_why or text
        elif pub.refused == REASON_SERVER_UNAVAILABLE:
            text = self.hub.ledger.away_why or text
        return self.refuse_publish(pub.qos, packet_id, <uint8_t>reason, text)

    cdef int publish_and_answer(self, pub_t* pub, route_t* route, uint16_t packet_id, uint8_t first) except -1:
        """QoS 1 and 2."""
        cdef Hub hub = self.hub
        cdef uint8_t qos = pub.qos
        cdef uint64_t since = hub.commits.mark
        cdef int matched
        if pub.retain and self.link.version == 5 and hub.retained.namespace_is_full(pub):
            return self.refuse_publish(qos, packet_id, REASON_QUOTA_EXCEEDED,
                                       f"namespace {self.topics.namespace.text} keeps as much as it may (limits.bytes)")
        self.link.inbound += 1
        hub.node.counters.messages_received[qos] += 1
        try:
            matched = hub.publish(pub, route) if qos == 1 else self.publish_once(pub, route, packet_id, first)
        except BaseException:
            if qos == 2:
                self.session.complete(packet_id)        # refused: the same identifier is a new message next time
            raise
        if pub.refused:
            return self.refuse_for_queue(pub, packet_id)
        self.acknowledge(PUBACK if qos == 1 else PUBREC, packet_id,
                         REASON_NO_MATCHING_SUBSCRIBERS if matched == 0 and self.link.version == 5 else REASON_SUCCESS,
                         since)
        if hub.commits.mark != since:
            self.throttle()
            if hub.crowded is not None:
                self.yield_to_peer(since)
        return 0

    cdef route_t* queue_route(self, pub_t* pub, route_t* route, uint16_t packet_id, int* result) except? NULL:
        """The route of a publish to `$queue/…`; NULL: already handled (a command like `$ack`, an unknown queue), or the
        result is ASK: the queue is being made."""
        cdef int reason
        cdef uint64_t since = self.hub.commits.mark
        cdef bytes topic
        pub.retain = 0                  # messages to a queue are not retained
        if is_queue_order(route):
            topic = (<const char*>route.topic)[:route.topic_length]
            self.hub.node.work += WORK_COLD
            self.hub.node.counters.messages_received[pub.qos] += 1
            reason, text = self.handler.on_queue_order(
                self, topic, (<const char*>pub.body.properties)[:pub.body.properties_length])
            if reason >= 0x80:
                self.refuse_publish(pub.qos, packet_id, <uint8_t>reason, text)
            elif pub.qos:
                if pub.qos == 2:
                    self.session.receive(packet_id)
                self.link.inbound += 1
                self.acknowledge(PUBACK if pub.qos == 1 else PUBREC, packet_id, <uint8_t>reason,
                                 since)
            return NULL
        if route.count == 0:
            topic = (<const char*>route.topic)[:route.topic_length]
            self.hub.node.work += WORK_COLD
            made = self.handler.on_queue_unknown(self, topic)
            if made is None:
                result[0] = ASK
                return NULL
            if made:
                route = self.remember(self.topics.routes.find(pub.body.topic, pub.body.topic_length))
            if route.count == 0:
                self.refuse_publish(pub.qos, packet_id, REASON_TOPIC_NAME_INVALID, "there is no such queue")
                return NULL
        return route

    cdef const uint8_t* read_properties(self, pub_t* pub, const uint8_t* at, const uint8_t* end) except NULL:
        """MQTT 5: validates the properties, applies topic alias and expiry; returns where the payload begins."""
        cdef Cursor c
        cdef publish_props_t properties
        cdef uint32_t length
        cdef int reason
        cdef bytes topic
        c.at = at
        c.end = end
        if take_varint(&c, &length) != 1 or c.end - c.at < length:
            raise ProtocolError(REASON_MALFORMED_PACKET, "the properties of PUBLISH do not fit into it")
        if length == 0:
            if pub.body.topic_length == 0:
                raise ProtocolError(REASON_PROTOCOL_ERROR, "PUBLISH with neither topic nor alias [MQTT-3.3.2-8]")
            return c.at
        if length == self.last_properties_length and memcmp(c.at, self.last_properties, length) == 0:
            # Most publishers repeat the same properties: the same bytes need no second validation.
            if pub.body.topic_length == 0:
                raise ProtocolError(REASON_PROTOCOL_ERROR, "PUBLISH with neither topic nor alias [MQTT-3.3.2-8]")
            pub.body.properties = c.at
            pub.body.properties_length = length
            return c.at + length
        memset(&properties, 0, sizeof(properties))
        reason = scan_publish_props(c.at, c.at + length, &properties, scratch_for(&scratch, length))
        if reason:
            raise ProtocolError(reason, "the properties of PUBLISH are malformed (MQTT 5.0 section 3.3.2.3)")
        if properties.has_subscription_id:
            raise ProtocolError(REASON_PROTOCOL_ERROR, "PUBLISH from a client with a Subscription Identifier "
                                                       "[MQTT-3.3.4-6]")
        if properties.user_properties > self.hub.limits.user_properties_max:
            raise ProtocolError(REASON_QUOTA_EXCEEDED, f"more than {self.hub.limits.user_properties_max} user "
                                                       f"properties (broker.max_user_properties)")
        pub.body.properties = properties.forward
        pub.body.properties_length = properties.forward_length
        if properties.has_expiry:
            # Expiry 0 expires at once: the message may reach sessions connected now, none later.
            pub.body.expires_at = self.hub.node.steady_ms + <int64_t>properties.expiry_s * 1000
        if properties.payload_format == 1 and not utf8_valid(c.at + length, end - c.at - length):
            raise ProtocolError(REASON_PAYLOAD_FORMAT_INVALID, "the payload is not UTF-8 although its Payload Format "
                                                               "Indicator says so")
        if properties.topic_alias:
            if properties.topic_alias > self.hub.limits.topic_alias_max:
                raise ProtocolError(REASON_TOPIC_ALIAS_INVALID, f"topic alias over {self.hub.limits.topic_alias_max} "
                                                                f"[MQTT-3.3.2-9]")
            if pub.body.topic_length:
                self.learning = properties.topic_alias      # assigned once the packet is permitted, see permit()
            else:
                topic = self.aliases[properties.topic_alias - 1] if self.aliases is not None else None
                if topic is None:
                    raise ProtocolError(REASON_PROTOCOL_ERROR, "a topic alias that means nothing yet [MQTT-3.3.2-7]")
                pub.body.topic = <const uint8_t*><const char*>topic
                pub.body.topic_length = <uint32_t>len(topic)
        elif pub.body.topic_length == 0:
            raise ProtocolError(REASON_PROTOCOL_ERROR, "PUBLISH with neither topic nor alias [MQTT-3.3.2-8]")
        elif (properties.forward_length == length and length <= PROPERTIES_REMEMBERED_MAX
                and not properties.payload_format):
            self.remember_properties(c.at, length)
        return c.at + length

    cdef int learn_alias(self, const pub_t* pub) except -1:
        cdef uint16_t index = self.learning - 1
        cdef bytes topic = (<const char*>pub.body.topic)[:pub.body.topic_length]
        self.learning = 0
        if self.aliases is None:
            self.aliases = [None] * self.hub.limits.topic_alias_max
        former = self.aliases[index]
        self.alias_bytes += <uint32_t>len(topic) - (<uint32_t>len(<bytes>former) if former is not None else 0)
        if self.alias_bytes > ALIAS_BYTES_MAX:
            raise ProtocolError(REASON_QUOTA_EXCEEDED, f"topic aliases for more than {ALIAS_BYTES_MAX} bytes of topics")
        self.aliases[index] = topic
        return 0

    cdef int remember_properties(self, const uint8_t* at, uint32_t length) except -1:
        cdef uint8_t* grown
        if length > self.last_properties_room:
            grown = <uint8_t*>realloc(self.last_properties, length)
            if grown == NULL:
                raise MemoryError()
            self.last_properties = grown
            self.last_properties_room = length
        memcpy(self.last_properties, at, length)
        self.last_properties_length = length
        return 0

    cdef route_t* route_of(self, pub_t* pub) except NULL:
        """A topic that differs from the last one: validates it, finds its route, caches it."""
        cdef int valid = topic_valid(pub.body.topic, pub.body.topic_length, self.hub.limits.topic_levels_max)
        self.hub.node.work += WORK_ROUTE
        if valid == TEXT_BAD:
            raise ProtocolError(REASON_MALFORMED_PACKET, "the topic name is not valid UTF-8 [MQTT-1.5.4-1]")
        if valid != TEXT_OK:
            if topic_valid(pub.body.topic, pub.body.topic_length, 0) == TEXT_OK:
                raise ProtocolError(REASON_TOPIC_NAME_INVALID,
                                    f"the topic name has more than {self.hub.limits.topic_levels_max} levels "
                                    f"(max_topic_levels)")
            raise ProtocolError(REASON_PROTOCOL_ERROR, "the topic name is empty [MQTT-4.7.3-1] or has a wildcard "
                                                       "[MQTT-3.3.2-2]")
        return self.remember(self.topics.routes.find(pub.body.topic, pub.body.topic_length))

    cdef route_t* remember(self, route_t* route) noexcept:
        if route != self.last_route:
            route.refs += 1
            if self.last_route != NULL:
                route_drop(self.last_route)
            self.last_route = route
            self.last_access = 0
        return route

    cdef int permit(self, pub_t* pub, route_t* route, uint16_t packet_id) except -1:
        """Asks for permission and assigns the topic alias. DONE: allowed; REFUSED: answered; ASK: not known yet."""
        cdef int allowed = DONE
        if not self.hub.open_publish or route.topic[0] == 36:
            allowed = self.may_publish(route)
            if allowed == ASK:
                self.learning = 0
                return ASK
        if self.learning:
            self.learn_alias(pub)
        if allowed == DONE:
            return DONE
        self.hub.node.counters.publish_denied += 1
        return self.refuse_publish(pub.qos, packet_id, REASON_NOT_AUTHORIZED, "not authorized to publish to this topic")

    cdef int may_publish(self, route_t* route) except -1:
        """Whether the Authority lets this client publish to the route's topic, cached per topic and generation: DONE,
        REFUSED, or ASK while the answer is pending."""
        cdef bytes topic
        cdef object answer
        if self.last_access == self.hub.access_generation + 1:
            return DONE
        topic = (<const char*>route.topic)[:route.topic_length]
        if is_reserved_topic(route.topic, route.topic_length):
            return REFUSED
        if not self.hub.open_publish:
            if self.allowed is None or self.allowed.get(None) != self.hub.access_generation:
                self.allowed = {None: self.hub.access_generation}
            answer = self.allowed.get(topic)
            if answer is None:
                self.hub.node.work += WORK_ASK
                answer = self.handler.may_publish(self, topic)
                if answer is None:
                    return ASK
                if len(self.allowed) > ALLOWED_MAX:
                    self.allowed = {None: self.hub.access_generation}
                if route.topic_length <= ALLOWED_TOPIC_BYTES_MAX and answer >= 0:
                    self.allowed[topic] = answer > 0
            if answer <= 0:
                return REFUSED
        self.last_access = self.hub.access_generation + 1
        return DONE

    cdef int refuse_publish(self, uint8_t qos, uint16_t packet_id, uint8_t reason, str text) except -1:
        """MQTT 5: answers with the reason. 3.1.1 has no negative answer, so the connection ends [MQTT-3.3.5-2]."""
        if self.link.version != 5:
            raise ProtocolError(reason, text)
        if qos:
            self.hub.node.work += WORK_ASK
            self.handler.on_refused(self, PUBACK if qos == 1 else PUBREC, packet_id, reason, text)
        return REFUSED

    cdef int acknowledge(self, uint8_t packet_type, uint16_t packet_id, uint8_t reason, uint64_t since) except -1:
        """Answers once everything since the mark is committed, in the order of the publishes [MQTT-4.6.0-2]."""
        # The session: what is refused when the connection has ended is a new message next time (Hub.refuse).
        if (must_wait(self.hub.commits, self.link, since)
                and self.hub.commits.hold(HELD_ACK, self.link, self.session if packet_type == PUBREC else None,
                                          packet_type, packet_id, reason, since)):
            if self.link.version != 5 and self.link.held >= self.hub.limits.receive_max:
                self.pause_for(PAUSE_ANSWERS)   # 3.1.1 has no Receive Maximum, so reading pauses instead
            return 0
        if packet_type == PUBACK or packet_type == PUBCOMP or packet_type == PUBREC and reason >= 0x80:
            self.link.inbound -= 1
        return link_ack(self.link, packet_type, packet_id, reason)

    cdef int on_given_up(self, uint32_t line, uint64_t position, uint8_t packet_type, uint16_t packet_id,
                         str why) except -1:
        """A commit line gave up what this answer waits for. A publish of MQTT 5 is refused with a reason; otherwise the
        connection ends [MQTT-4.13.2-1]."""
        if packet_type != PUBACK and packet_type != PUBREC:
            return Transport.on_given_up(self, line, position, packet_type, packet_id, why)
        if packet_type == PUBREC and self.session is not None:
            # Refused: the same identifier is a new message next time. 3.1.1 knows no refusal, so there it is the same
            # message, and those who have it do not get it again.
            if self.link.version == 5:
                self.complete(packet_id)
            else:
                self.session.complete(packet_id)
        self.link.inbound -= 1
        if self.link.version != 5:
            return Transport.on_given_up(self, line, position, packet_type, packet_id, why)
        self.waited = True
        reason, text = self.hub.commits.why_code or REASON_UNSPECIFIED_ERROR, why
        if self.hub.commits.why_code:       # another node's queue refuses it
            reason, text = QUEUE_REFUSALS.get(reason, (reason, "a queue refuses it"))
            text = why or text
        try:
            return self.refuse_publish(1 if packet_type == PUBACK else 2, packet_id, reason, text)
        finally:
            self.waited = False

    cdef int on_ack(self, uint8_t packet_type, const uint8_t* at, const uint8_t* end) except -1:
        cdef uint16_t packet_id
        cdef uint8_t reason = 0
        cdef uint64_t since
        cdef bint known
        if end - at < 2 or (self.link.version != 5 and end - at != 2):
            raise ProtocolError(REASON_MALFORMED_PACKET, "an acknowledgement of the wrong length")
        packet_id = peek_u16(at)
        if packet_id == 0:
            raise ProtocolError(REASON_PROTOCOL_ERROR, "an acknowledgement of packet identifier 0 [MQTT-2.2.1-3]")
        if end - at > 2:
            reason = at[2]
            if end - at > 3 or reason:
                self.check_ack_properties(packet_type, at, end)
        if packet_type == PUBACK:
            return self.session.on_puback(packet_id, reason)
        if packet_type == PUBREC:
            return self.session.on_pubrec(packet_id, reason)
        if packet_type == PUBCOMP:
            return self.session.on_pubcomp(packet_id)
        since = self.hub.commits.mark
        known = self.complete(packet_id)
        if not known:
            self.link.inbound += 1      # acknowledge takes one back
        return self.acknowledge(PUBCOMP, packet_id, REASON_SUCCESS if known else REASON_PACKET_IDENTIFIER_NOT_FOUND,
                                since)

    cdef int complete(self, uint16_t packet_id) except -1:
        """An inbound QoS 2 identifier may be used for another message, here and at other nodes. 0: it was not in use.
        They are told all the same: a node that died may have known that it was, or not have told them."""
        cdef int known = self.session.complete(packet_id)
        if self.incarnation:
            self.hub.release_of_client(self.incarnation, packet_id)
        return known

    cdef int check_ack_properties(self, uint8_t packet_type, const uint8_t* at, const uint8_t* end) except -1:
        """Cold path: validates the reason and properties of an acknowledgement."""
        from fluxmq._core.mqtt.decode import decode_packet
        self.hub.node.work += WORK_ASK
        decode_packet(packet_type << 4 | (2 if packet_type == PUBREL else 0),
                      PyBytes_FromStringAndSize(<const char*>at, end - at), 5)
        return 0

    def tick(self) -> str:
        """Checks timeouts: "" or the reason to end the connection: connect, keep_alive, write, full, drain."""
        cdef int64_t now = self.hub.node.mono_ms
        if self.phase == PHASE_DRAINING:
            if now >= self.deadline_ms:
                self.eof = True
                self.finish()
            return ""
        if self.phase != PHASE_OPEN:
            return "connect" if self.deadline_ms and now >= self.deadline_ms else ""
        if (self.keep_alive_ms and now - self.last_received_ms > self.keep_alive_ms and not self.paused
                and not self.resumed):
            return "keep_alive"
        if self.link.pending and self.write_timeout_ms and now - self.link.progress_ms > self.write_timeout_ms:
            return "write"
        if self.link.choked and self.hub.limits.disconnect_on_full:
            return "full"
        return ""
