# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Queues for MQTT clients: the PUBLISH for a consumer, and the effect of its acknowledgement.

    topic           `$queue/<name>/<rest>` as it was published; `$queue/<name>/<topic>` for a captured topic
    other formats   the topic that the bridge derives; `$queue/<name>` if there is none
    MQTT 5          user properties are added behind the publisher's own: queue, message-id (`<partition>:<offset>`),
                    offset, group-id, delivery-count; redelivered from the second delivery on; x-source-topic for a
                    captured message. MQTT 3.1.1 has no properties.
    QoS             that of the subscription; the QoS of the publish does not matter

    PUBACK, PUBCOMP     settles the message (`ack: auto`), or confirms its receipt (`ack: manual`: `$ack`, `$nack` or
                        `$reject` settles it)
    a reason >= 0x80    refuses the message, which is ready again after the backoff (on_refused decides)
    connection ends     the message is ready again at once, for any consumer
"""
cimport cython
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset, strlen

from fluxmq._core.envelope.envelope cimport TOPIC_ROOM, as_mqtt, read_topic
from fluxmq._core.memory.commits cimport ticket_t
from fluxmq._core.memory.link cimport link_publish
from fluxmq._core.memory.message cimport body_t, ids_drop, ids_new, msg_drop, msg_new
from fluxmq._core.mqtt.consts cimport PUBLISH
from fluxmq._core.queue.claim cimport CLAIM_HELD, Filter, claim_member
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport Log, record_body
from fluxmq._core.queue.stream cimport CLAIM_STREAM
from fluxmq._core.wire.primitives cimport put_bytes16, put_u8
from fluxmq._core.wire.queue_address cimport QUEUE_PREFIX_BYTES, put_queue_address
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["SessionClaims", "SessionMember", "SessionReader", "TopicFilter"]

cdef enum:
    USER_PROPERTY = 0x26
    NUMBER_BYTES = 48
    READ_BURST = 1000           # QoS 0: messages in one pump to a connection that has room

# One per process, as in net/transport.pyx: filled and copied within one call.
cdef uint8_t* scratch = NULL
cdef size_t scratch_room = 0


cdef uint8_t* room_for(size_t size) except NULL:
    global scratch, scratch_room
    cdef uint8_t* grown
    if size > scratch_room:
        grown = <uint8_t*>realloc(scratch, size * 2)
        if grown == NULL:
            raise MemoryError()
        scratch = grown
        scratch_room = size * 2
    return scratch


cdef inline uint8_t* put_user(uint8_t* at, const char* key, const void* value, size_t n) noexcept:
    at = put_u8(at, USER_PROPERTY)
    at = put_bytes16(at, key, <unsigned short>strlen(key))
    return put_bytes16(at, value, <unsigned short>n)


cdef inline char* put_digits(char* at, uint64_t number) noexcept:
    """Writes a number in decimal: a tenth of what snprintf costs. Returns where it ends."""
    cdef char[20] digits
    cdef uint32_t count = 0
    while True:
        digits[count] = <char>(48 + number % 10)
        number //= 10
        count += 1
        if number == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


cdef msg_t* queue_message(Queue queue, const record_t* record, int64_t shift_ms, bytes group, uint32_t partition,
                          uint32_t deliveries, uint8_t qos, bint v5) except NULL:
    cdef body_t body
    cdef char[NUMBER_BYTES] text
    cdef char* middle
    cdef char* end
    cdef uint32_t name_length = <uint32_t>len(queue.name)
    cdef uint32_t prefix = QUEUE_PREFIX_BYTES + name_length
    cdef size_t size
    cdef uint8_t* at
    cdef uint8_t* topic
    cdef bint captured
    cdef uint32_t topic_length = 0      # of the topic for the consumer; 0: unchanged
    cdef size_t body_start
    memset(&body, 0, sizeof(body))
    record_body(record, shift_ms, &body)
    as_mqtt(&body, v5)
    captured = body.topic_length != 0 and not queue.is_address(&body)
    size = prefix + 1 + 2 * <size_t>body.topic_length + body.properties_length + name_length + len(group) + 320
    at = topic = room_for(size)
    if (captured or body.topic_length == 0) and prefix + 1 + body.topic_length <= 65535:
        at = put_queue_address(at, <const char*>queue.name, name_length)
        if captured:
            at[0] = 47
            memcpy(at + 1, body.topic, body.topic_length)
            at += 1 + body.topic_length
        topic_length = fit_u32(at - topic)
    if v5:
        body_start = <size_t>(at - topic)
        if body.properties_length:
            memcpy(at, body.properties, body.properties_length)
            at += body.properties_length
        at = put_user(at, b"queue", <const char*>queue.name, name_length)
        middle = put_digits(text, partition)
        middle[0] = 58                          # ':'
        end = put_digits(middle + 1, record.offset)
        at = put_user(at, b"message-id", text, <size_t>(end - text))
        at = put_user(at, b"offset", middle + 1, <size_t>(end - middle - 1))
        if group:
            at = put_user(at, b"group-id", <const char*>group, len(group))
        if deliveries:
            at = put_user(at, b"delivery-count", text, <size_t>(put_digits(text, deliveries) - text))
            if deliveries > 1:
                at = put_user(at, b"redelivered", b"true", 4)
        if captured:
            at = put_user(at, b"x-source-topic", body.topic, body.topic_length)
        body.properties = topic + body_start
        body.properties_length = fit_u32(at - topic - body_start)
    else:
        body.properties_length = 0
    if topic_length:
        body.topic = topic
        body.topic_length = topic_length
    return msg_new(&body, qos)


cdef bint pattern_matches(const uint8_t* p, const uint8_t* p_end, const uint8_t* t,
                          const uint8_t* t_end) noexcept nogil:
    """Matches a valid filter with a topic, both below the queue's name [MQTT-4.7.1-2] [MQTT-4.7.1-3]."""
    while True:
        if p < p_end and p[0] == 35:            # '#': matches the parent level too, so it is checked first
            return 1
        if p < p_end and p[0] == 43:
            p += 1
            while t < t_end and t[0] != 47:
                t += 1
        else:
            while p < p_end and p[0] != 47 and t < t_end and p[0] == t[0]:
                p += 1
                t += 1
            if (p < p_end and p[0] != 47) or (t < t_end and t[0] != 47):
                return 0
        if p == p_end:
            return t == t_end
        if t == t_end:
            return p_end - p == 2 and p[1] == 35    # "a/#" matches "a"
        p += 1
        t += 1


@cython.final
cdef class TopicFilter(Filter):
    """Machine. Messages whose topic below the queue matches an MQTT filter. pattern: without `$queue/<name>/`."""
    cdef Queue queue
    cdef bytes pattern

    def __init__(self, Queue queue not None, bytes pattern not None):
        self.queue = queue
        self.pattern = pattern

    cdef bint wants(self, const record_t* record) noexcept:
        cdef body_t body
        cdef uint32_t prefix = 7 + <uint32_t>len(self.queue.name)
        cdef const uint8_t* pattern = <const uint8_t*><const char*>self.pattern
        cdef uint8_t[TOPIC_ROOM] topic
        record_body(record, 0, &body)
        read_topic(&body, topic)
        if not self.queue.is_address(&body):
            prefix = 0
        elif body.topic_length == prefix:
            return 0                    # there is no level below the queue's name; "#" would need no filter
        else:
            prefix += 1
        return pattern_matches(pattern, pattern + len(self.pattern), body.topic + prefix,
                               body.topic + body.topic_length)


@cython.final
cdef class SessionClaims(ClaimKeeper):
    """Machine. One per session with consumers; see queue/session_member.pxd. A claim refers to its member."""

    def __cinit__(self):
        self.queues = []

    def add(self, Queue queue not None):
        self.queues.append(queue)

    def remove(self, Queue queue not None):
        self.queues.remove(queue)

    cdef int on_room(self) except -1:
        cdef Queue queue
        if self.starved:
            self.starved = False
            for queue in self.queues:
                queue.touch()
        return 0

    cdef int on_acknowledged(self, void* claim, uint8_t reason) except -1:
        cdef claim_t* c = <claim_t*>claim
        cdef SessionMember member
        cdef Group group
        self.on_room()                  # this queue may be empty now, and others have waited
        if c.state == CLAIM_STREAM:
            return (<SessionReader>claim_member(c, CLAIM_STREAM)).acknowledge(c)
        member = <SessionMember>claim_member(c, CLAIM_HELD)
        group = <Group>member.group
        if reason >= 0x80:
            if member.on_refused is not None:
                member.on_refused(member, (<Cursor>c.cursor).log.number, c.offset, c.deliveries, reason)
                return 0
            return group.give_back(c, 0, True)
        if member.manual:
            return 0
        return group.settle(c)

    cdef int on_abandoned(self, void* claim, bint sent) except -1:
        cdef claim_t* c = <claim_t*>claim
        if c.state == CLAIM_STREAM:
            return 0                    # its reader leaves when the connection ends, and forgets the claim
        return (<Group>(<SessionMember>claim_member(c, CLAIM_HELD)).group).give_back(c, 0, sent)


cdef inline uint32_t room_in(Session session) noexcept:
    """Number of further messages that the session's window allows."""
    cdef link_t* link = session.link
    if (link == NULL or link.pending + link.awaited > link.high or session.queued
            or session.resend_next < session.resend_count or session.outstanding >= session.window):
        (<SessionClaims>session.claim_keeper).starved = True
        return 0
    return session.window - session.outstanding


@cython.final
cdef class SessionMember(Member):
    """Machine. One subscription of an MQTT client to a classic or ephemeral queue.

    session: connected. qos: 1 or 2. prefetch: see the .pxd. identifier: Subscription Identifier, 0 = none.
    """

    def __cinit__(self, Session session not None, Queue queue not None, int qos, *, uint32_t prefetch=0,
                  bint manual=False, uint32_t identifier=0):
        self.session = session
        self.queue = queue
        self.qos = <uint8_t>qos
        self.prefetch = prefetch
        self.manual = manual
        if session.link != NULL:
            self.carried_by(session.link)
        if identifier:
            self.ids = ids_new(&identifier, 1)

    def __dealloc__(self):
        ids_drop(self.ids)

    cdef SharedRoom sharing(self):
        cdef SessionClaims claims = <SessionClaims?>self.session.claim_keeper
        if claims.shared is None:
            claims.shared = SharedRoom()
        return claims.shared

    cdef uint32_t shared_room(self) noexcept:
        return room_in(self.session)

    cdef uint32_t credit(self) noexcept:
        cdef uint32_t room = room_in(self.session)
        if self.prefetch:
            if self.held >= self.prefetch:
                return 0
            return min(room, self.prefetch - self.held)
        return room

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        cdef Session session = self.session
        cdef SessionClaims claims
        cdef msg_t* msg
        if session.link == NULL:
            return 0
        claims = <SessionClaims>session.claim_keeper
        if claims is not None and claims.shared is not None and not claims.shared.stale:
            claims.shared.changed()
        msg = queue_message(self.queue, record, (<Cursor>claim.cursor).log.line.shift_ms, (<Group>self.group).name,
                            (<Cursor>claim.cursor).partition,
                            claim.deliveries, self.qos, session.link.version == 5)
        try:
            # The claim is recorded at the end of this pump, so the gathering batch is not empty.
            return session.deliver_claim(msg, <uint8_t>(PUBLISH << 4 | self.qos << 1), self.ids, claim,
                                         session.ledger.commits.next_ticket(self.queue.line)
                                         if self.queue.awaits_claims else ticket_t(0, 0, 0, 0))
        finally:
            msg_drop(msg)

    cdef int withdraw(self, claim_t* claim) except -1:
        """The client may still acknowledge the message, which has no effect then."""
        self.session.forget_claim(claim)
        return 0

    cdef void forget(self, claim_t* claim) noexcept:
        """`$ack` or a similar command may precede the PUBACK, which has no effect then."""
        self.session.forget_claim(claim)


@cython.final
cdef class SessionReader(StreamReader):
    """Machine. One subscription of an MQTT client to one partition of a stream. QoS 0 messages are not acknowledged.

    queue: what the subscription names, whose partition the log is. Other arguments as SessionMember's and
    StreamReader's.
    """

    def __init__(self, Session session not None, Queue queue not None, uint32_t partition, Log log not None, int qos,
                 uint64_t position, *, uint32_t identifier=0, Group group=None, bint manual=False, Filter filter=None):
        StreamReader.__init__(self, log, position, group=group, manual=manual, filter=filter)
        self.session = session
        self.queue = queue
        self.qos = <uint8_t>qos
        self.partition = partition
        if session.link != NULL:
            self.carried_by(session.link)
        if identifier:
            self.ids = ids_new(&identifier, 1)

    def __dealloc__(self):
        ids_drop(self.ids)

    cdef bint keeps(self) noexcept:
        return self.qos != 0

    cdef uint32_t credit(self) noexcept:
        cdef link_t* link = self.session.link
        if self.qos:
            return room_in(self.session)
        if link == NULL or link.pending > link.high:
            (<SessionClaims>self.session.claim_keeper).starved = True
            return 0
        return READ_BURST

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        cdef Session session = self.session
        cdef link_t* link = session.link
        cdef msg_t* msg
        cdef int64_t written
        if link == NULL or link.pending > link.high:
            return 0
        msg = queue_message(self.queue, record, self.log.line.shift_ms,
                            self.group.name if self.group is not None else b"", self.partition, 0,
                            self.qos, link.version == 5)
        try:
            if self.qos:
                # Stream messages are usually durable already; the newest ones wait for their commit, like their
                # publisher.
                return session.deliver_claim(msg, <uint8_t>(PUBLISH << 4 | self.qos << 1), self.ids, claim,
                                             self.log.waits_for(record.offset))
            written = link_publish(link, &msg.body, PUBLISH << 4, 0, self.ids)
            if written < 0:
                raise MemoryError()
            if written:
                session.node.counters.packets_sent[PUBLISH] += 1
                session.node.counters.messages_sent[0] += 1
            else:
                session.node.counters.dropped_too_large += 1
            return 1
        finally:
            msg_drop(msg)

    def leave(self):
        """The connection or the subscription has ended: its claims have no effect any more."""
        cdef claim_t* claim = self.oldest
        while claim != NULL:
            self.session.forget_claim(claim)
            claim = claim.behind
        self.forget()
