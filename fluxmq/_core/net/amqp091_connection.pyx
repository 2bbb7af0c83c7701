# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Handle and machine. Frames of one AMQP 0-9-1 connection, and the hot methods. See net/amqp091_connection.pxd.
It is one file because a content whose permission is pending (ASK) is handled again from its last frame on, so parsing,
routing and confirming share their state.

What the edge must provide (`handler`), besides what Transport requires:

    on_greeting(connection)                     a valid protocol header arrived: send Connection.Start
    on_method(connection, channel, payload) -> bool     any method that is not hot; channel 0 is the connection. True:
                                                ASK (transport.pxd)
    on_channel_error(connection, channel, code, text, method)   a soft error: send Channel.Close
    may_publish(connection, exchange, routing_key) -> int | None    called once for each pair. 0, 1: no, yes; -1: no,
                                                not cached; None: ASK

Errors: ProtocolError with a reply code of the specification. A soft code (one that closes a channel) on a channel calls
on_channel_error; any other error ends the connection through on_error.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from fluxmq._core.errors import ProtocolError

from fluxmq._core.amqp091.topics import DIRECT_REPLY_TO

from fluxmq._core.amqp091.consts cimport (
    BASIC_ACK, BASIC_NACK, BASIC_PUBLISH, BASIC_REJECT, CHANNEL_CLOSE, CHANNEL_CLOSE_OK, CHANNEL_OPEN, FRAME_BODY,
    FRAME_END, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, REPLY_ACCESS_REFUSED, REPLY_CHANNEL_ERROR,
    REPLY_COMMAND_INVALID, REPLY_FRAME_ERROR, REPLY_NOT_ALLOWED, REPLY_NOT_FOUND, REPLY_NOT_IMPLEMENTED, REPLY_NO_ROUTE,
    REPLY_PRECONDITION_FAILED, REPLY_RESOURCE_ERROR,
    REPLY_SYNTAX_ERROR, REPLY_UNEXPECTED_FRAME,
)
from fluxmq._core.amqp091.properties cimport amqp_properties_t, properties_read
from fluxmq._core.amqp091.topics cimport ADDRESS_BYTES_MAX, reply_route
from fluxmq._core.bridge.publish_properties cimport CHECKED_PROPERTIES, check_properties, copy_keys, has_copies, shown
from fluxmq._core.exchange.exchange cimport Route
from fluxmq._core.hub.amqp091_bridge cimport hub_publish_amqp, hub_queues_of_amqp
from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.link cimport link_write
from fluxmq._core.memory.message cimport FORMAT_AMQP091, blob_drop, blob_t, body_borrow
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.memory.node cimport WORK_ASK, WORK_COLD, WORK_CONNECT, WORK_HOP, WORK_ROUTE
from fluxmq._core.memory.tap cimport TAP_AMQP091
from fluxmq._core.net.amqp091_channel cimport Channel, ChannelMember, delivery_t
from fluxmq._core.net.transport cimport (
    ASK, DONE, MORE, PAUSE_ANSWERS, PHASE_CONNECT, PHASE_DRAINING, PHASE_OPEN, admit, enter_phase,
)
from fluxmq._core.queue.queue cimport Queue
from fluxmq._core.wire.primitives cimport peek_u16, peek_u32, peek_u64
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["PROTOCOL_HEADER", "AmqpConnection", "Bodies"]

cdef uint8_t[8] PROTOCOL
PROTOCOL[:] = [65, 77, 81, 80, 0, 0, 9, 1]
PROTOCOL_HEADER = PROTOCOL[:8]

cdef enum:
    FRAME_HEAD = 7                  # type, channel, size
    FRAME_EXTRA = 8                 # and the end
    # Before Connection.TuneOk. Section 4.2.3 of the specification wants 4096; client properties may have 16 KiB
    # (limits.AMQP_CLIENT_PROPERTIES_BYTES_MAX), and a password may be a token. Up to here a peer is unknown: no frame
    # of it gets memory of its own.
    FRAME_MAX_UNTUNED = 32768
    OWN_KEPT_MAX = 262144           # buffers for bodies and properties kept for reuse, shared by the channels
    ALLOWED_MAX = 1024
    ASKED_AT_ONCE_MAX = 256         # pending authorization requests of one transaction, as in edge/asking.py
    TX_BYTES_MAX = 268435456        # of one transaction: a batch of the journal holds four times that
    PUT_AT_ONCE_MAX = 1024          # queues that get a message in one piece
    WORK_PUT = 200                  # of one queue among so many: its memory is in no cache
    KEPT_BYTES = 256                # memory of a publish in a transaction, besides its own bytes
REPLY_PREFIX = DIRECT_REPLY_TO + b"."   # of a queue for replies; its name ends with the node
SOFT_CODES = frozenset({311, 313, 403, 404, 405, 406})      # they close a channel, section 1.1 of the specification

cdef uint8_t[8] HEARTBEAT_FRAME
HEARTBEAT_FRAME[:] = [FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END]


@cython.final
cdef class Bodies:
    """See net/amqp091_connection.pxd."""

    def __init__(self, uint64_t message_max=16777216, uint64_t held_max=<uint64_t>1 << 62):
        self.message_max = message_max
        self.held_max = held_max


@cython.final
@cython.no_gc_clear
cdef class Content:
    """Machine. See net/amqp091_connection.pxd."""

    def __dealloc__(self):
        self.drop()

    cdef void drop(self) noexcept:
        self.bodies.held -= self.own_body_room + self.own_properties_room
        free(self.own_body)
        free(self.own_properties)
        self.own_body = self.own_properties = NULL
        self.own_body_room = self.own_properties_room = 0

    cdef int keep(self) except -1:
        """Copies what still points into the read buffer, before another connection reuses that."""
        cdef uint8_t* grown
        if self.expects != EXPECT_BODY or self.kept:
            return 0
        if self.properties_length > self.own_properties_room:
            grown = <uint8_t*>realloc(self.own_properties, self.properties_length)
            if grown == NULL:
                raise MemoryError()
            self.own_properties = grown
            self.bodies.held += self.properties_length - self.own_properties_room
            self.own_properties_room = self.properties_length
        memcpy(self.own_properties, self.properties, self.properties_length)
        self.properties = self.own_properties
        self.kept = True
        return 0

    cdef int add(self, const uint8_t* data, uint32_t n) except -1:
        """Appends to the body. The buffer grows with the bytes received, not with the size the header announces."""
        cdef uint8_t* grown
        cdef uint64_t room
        if self.body_have + n > self.own_body_room:
            room = min(self.body_size, max(2 * self.own_body_room, self.body_have + n))
            grown = <uint8_t*>realloc(self.own_body, room)
            if grown == NULL:
                raise MemoryError()
            self.own_body = grown
            self.bodies.held += room - self.own_body_room
            self.own_body_room = room
        memcpy(self.own_body + self.body_have, data, n)
        self.body_have += n
        return 0

    cdef void done(self, uint64_t share) noexcept:
        """share: buffer bytes that may be kept for the next content."""
        self.expects = EXPECT_METHOD
        if self.own_body_room + self.own_properties_room > share:
            self.drop()


cdef int add_owners_of(set owners, Queue queue) except -1:
    """Adds the nodes that have a queue, or its partitions; "": this one."""
    if queue.relay is None:
        owners.add("")
    elif hasattr(queue.relay, "owners"):
        owners.update((<object>queue.relay).owners)
    else:
        owners.add((<object>queue.relay).owner)
    return 0


@cython.final
cdef class UnroutedReply:
    """Value. See amqp091_connection.pxd. Called when it is known that the requester has gone."""

    def __call__(self):
        cdef body_t body
        if not self.channel.closing:
            body_borrow(&body, self.topic, self.properties, self.payload, 0, FORMAT_AMQP091)
            self.channel.write_return(&body, REPLY_NO_ROUTE, b"NO_ROUTE")


@cython.final
cdef class AmqpConnection(Transport):
    """Handle and machine. Arguments as Transport."""

    def __cinit__(self, Hub hub not None, int fd, int epoll, object handler, object tls=None, bint websocket=False):
        self.link.protocol = TAP_AMQP091
        self.frame_max = FRAME_MAX_UNTUNED
        self.packet_bytes_max = FRAME_MAX_UNTUNED + FRAME_EXTRA
        self.channel_max = 0
        self.channels = {}
        self.contents = {}
        self.unfinished = []
        self.answering = []
        self.sent_ms = hub.node.mono_ms

    # ---------------------------------------------------------------- for the edge

    @property
    def open(self) -> bool:
        return self.phase == PHASE_OPEN

    def tune(self, uint32_t frame_max, uint32_t channel_max, int heartbeat_s):
        """Sets what was negotiated, section 4.2.2 of the specification. frame_max: size of a whole frame, at least
        4096; heartbeat_s: 0 for none."""
        self.frame_max = frame_max
        self.packet_bytes_max = frame_max + FRAME_EXTRA     # some clients count these bytes wrongly
        self.channel_max = channel_max
        self.heartbeat_s = heartbeat_s

    def accept(self, Exchanges exchanges not None, str vhost not None, Namespace namespace=None):
        """Connection.OpenOk was sent: channels may be opened. vhost: name of the virtual host, for error texts.
        namespace: of the virtual host; None: "/"."""
        if self.phase == PHASE_CONNECT:
            self.vhost = vhost
            self.exchanges = exchanges
            self.namespace = self.hub.root if namespace is None else namespace
            enter_phase(self, PHASE_OPEN)

    def close_after(self, bytes data not None):
        """Ends the connection: sends what waits for the disk, then `data` as the last frame."""
        self.end(True)                  # closes the channels, whose last confirms come before the frame
        self.write_behind(data)

    def open_channel(self, int number) -> Channel:
        """Raises ProtocolError: 504 if the channel is open, 530 if channel_max channels are. channel_max limits their
        count, not their numbers: section 4.2.2 of the specification lets a client choose those."""
        cdef Content content
        if number in self.channels:
            raise ProtocolError(REPLY_CHANNEL_ERROR, "second 'channel.open' seen")
        if self.channel_max and len(self.channels) >= <Py_ssize_t>self.channel_max:
            raise ProtocolError(REPLY_NOT_ALLOWED, f"number of channels opened ({len(self.channels)}) has reached the "
                                                   f"negotiated channel_max ({self.channel_max})")
        if self.bodies is None:
            self.bodies = Bodies()
        content = Content()
        content.bodies = self.bodies
        content.channel = Channel(self, number, self.frame_max)
        self.channels[number] = content.channel
        self.contents[number] = content
        return content.channel

    @property
    def publishing(self) -> bool:
        """Whether a content is incomplete: its body has begun and not ended."""
        cdef Content content
        for content in self.contents.values():
            if content.expects == EXPECT_BODY:
                return True
        return False

    def close_channel(self, int number, bint await_ok):
        """await_ok: the broker sent Channel.Close; the number becomes free with Channel.CloseOk."""
        cdef Content content = self.contents.get(number)
        if content is None:
            return
        content.done(0)
        content.channel.close()
        if not await_ok:
            self.forget_channel(number)

    def forget_channel(self, int number):
        """Frees the channel's number."""
        self.channels.pop(number, None)
        self.contents.pop(number, None)
        self.last = None

    def tick(self) -> str:
        """Checks timeouts: returns "" or the reason to end the connection: connect, heartbeat, write. Sends heartbeats,
        section 4.2.7 of the specification."""
        cdef int64_t now = self.hub.node.mono_ms
        if self.phase == PHASE_DRAINING:
            if now >= self.deadline_ms:
                self.eof = True
                self.finish()
            return ""
        if self.link.pending and self.write_timeout_ms and now - self.link.progress_ms > self.write_timeout_ms:
            return "write"
        if self.heartbeat_s:
            if now - self.last_received_ms > 2000 * self.heartbeat_s and not self.paused and (
                    not self.resumed):
                return "heartbeat"
            if self.phase == PHASE_OPEN and now - max(self.sent_ms, self.link.progress_ms) >= 500 * self.heartbeat_s:
                self.sent_ms = now
                link_write(self.link, HEARTBEAT_FRAME, 8)
        if self.phase != PHASE_OPEN:
            return "connect" if self.deadline_ms and now >= self.deadline_ms else ""
        return ""

    # ---------------------------------------------------------------- frames

    cdef int too_large(self, uint64_t size) except -1:
        raise ProtocolError(REPLY_FRAME_ERROR, f"a frame of {size} bytes is over frame_max {self.frame_max}"
                                               f"{'' if self.phase == PHASE_OPEN else ', in the handshake'}")

    cdef int dispatch_big(self, blob_t* blob) except -1:
        cdef int result
        self.check_end(blob.data, blob.size - FRAME_EXTRA)
        result = self.on_frame(blob.data[0], peek_u16(blob.data + 1), blob.data + 7, blob.size - FRAME_EXTRA)
        self.end_read()
        return result

    cdef int check_end(self, const uint8_t* at, uint32_t size) except -1:
        if at[7 + size] != FRAME_END:
            raise ProtocolError(REPLY_FRAME_ERROR, f"a frame of type {at[0]} ends with 0x{at[7 + size]:02x}, not 0xce")
        return 0

    cdef ssize_t parse(self, uint8_t* data, size_t n) except -1:
        """Handles every complete frame in data[0:n]; returns the bytes used."""
        cdef const uint8_t* at = data
        cdef const uint8_t* end = data + n
        cdef uint32_t size
        cdef int result
        if not self.greeted:
            if memcmp(at, PROTOCOL, min(n, <size_t>8)) != 0:
                # Another protocol header is answered with this one, then closed: section 4.2.2 of the specification.
                link_write(self.link, PROTOCOL, 8)
                self.handler.on_error(self, 0, "the protocol header is not that of AMQP 0-9-1")
                self.end(True)
                return n
            if n < 8:
                return 0
            self.greeted = True
            self.parsed = at + 8
            self.handler.on_greeting(self)
            at += 8
        while end - at >= FRAME_HEAD and not self.paused and self.phase < PHASE_DRAINING:
            size = admit(self, <uint64_t>peek_u32(at + 3) + FRAME_EXTRA, end)
            if end - at < size:
                self.announced = size
                break
            size -= FRAME_EXTRA
            self.parsed = at + size + FRAME_EXTRA
            self.check_end(at, size)
            result = self.on_frame(at[0], peek_u16(at + 1), at + 7, size)
            if result == MORE or result == ASK:
                self.parsed = at    # the frame stays in front and is handled again: next round, or when answered
            else:
                at += size + FRAME_EXTRA
                if self.verdicts is not None:
                    self.verdicts = None
            # Checked per frame: a few bytes (Basic.Get) may cause an answer as large as a message.
            if self.link.pending + self.link.awaited > 2 * self.link.high:
                self.pause_for(PAUSE_ANSWERS)
            if self.hub.node.work >= self.work_end and at < end:
                self.defer(0)       # its share is used up: the rest in the next round
                break
        if self.phase < PHASE_DRAINING:
            self.end_read()
        return at - data

    cdef bint answers_pile_up(self) noexcept:
        """Whether the peer sends but does not read answers. Each channel may have two batches of answers pending."""
        return (self.link.pending + self.link.awaited > 2 * self.link.high
                or self.link.held > self.hub.limits.receive_max + 2 * <uint32_t>len(self.channels))

    cdef int end_read(self) except -1:
        """Called before another connection reuses the read buffer."""
        cdef Content content
        cdef Channel channel
        for content in self.unfinished:
            content.keep()
        if self.unfinished:
            self.unfinished = []
        for channel in self.answering:
            channel.flush_confirms()
        if self.answering:
            self.answering = []
        if self.answers_pile_up():
            self.pause_for(PAUSE_ANSWERS)
        if self.recorded:
            self.recorded = False
            self.throttle()
        return 0

    cdef int on_frame(self, uint8_t kind, uint16_t number, const uint8_t* at, uint32_t size) except -1:
        cdef Content content
        cdef uint32_t method
        self.hub.node.work += 2
        if kind == FRAME_HEARTBEAT:
            if number or size:
                raise ProtocolError(REPLY_FRAME_ERROR, "a heartbeat is empty and on channel 0")
            return 0
        if kind < FRAME_METHOD or kind > FRAME_BODY:
            raise ProtocolError(REPLY_FRAME_ERROR, f"there is no frame of type {kind}")
        if kind == FRAME_METHOD and size < 4:
            raise ProtocolError(REPLY_SYNTAX_ERROR, "a method frame is shorter than a method's number")
        if number == 0:
            if kind != FRAME_METHOD:
                raise ProtocolError(REPLY_UNEXPECTED_FRAME, "content on channel 0")
            self.hub.cold = True
            self.hub.node.work += WORK_CONNECT
            return self.call_on_method(0, at, size)
        if self.phase != PHASE_OPEN:
            raise ProtocolError(REPLY_COMMAND_INVALID, f"a frame on channel {number} before connection.open")
        content = self.last
        if content is None or content.channel.number != number:
            content = self.content_of(number)
            if content is None:
                method = peek_u32(at) if kind == FRAME_METHOD else 0
                if method == CHANNEL_OPEN or method == CHANNEL_CLOSE or method == CHANNEL_CLOSE_OK:
                    self.hub.cold = True
                    self.hub.node.work += WORK_COLD
                    return self.call_on_method(number, at, size)
                self.method = method
                raise ProtocolError(REPLY_CHANNEL_ERROR, f"expected 'channel.open' on channel {number}")
            self.last = content
        try:
            return self.on_channel_frame(kind, content, at, size)
        except ProtocolError as error:
            if error.reason not in SOFT_CODES:
                self.method = peek_u32(at) if kind == FRAME_METHOD else 0
                raise
            content.done(0)
            self.hub.node.work += WORK_COLD
            self.handler.on_channel_error(self, number, error.reason, error.text,
                                          peek_u32(at) if kind == FRAME_METHOD else BASIC_PUBLISH)
        return 0

    cdef Content content_of(self, uint16_t number):
        return <Content>self.contents.get(number)

    cdef int on_channel_frame(self, uint8_t kind, Content content, const uint8_t* at, uint32_t size) except -1:
        cdef uint32_t method
        if kind == FRAME_METHOD:
            method = peek_u32(at)
            if content.channel.closing and method != CHANNEL_CLOSE and method != CHANNEL_CLOSE_OK:
                return 0
            if content.expects != EXPECT_METHOD:
                raise ProtocolError(REPLY_UNEXPECTED_FRAME, f"expected content for class 60, got method "
                                                      f"{method >> 16}.{method & 0xFFFF} instead")
            return self.on_method(content, method, at + 4, at + size)
        if content.channel.closing:
            return 0
        if kind == FRAME_HEADER:
            if content.expects != EXPECT_HEADER:
                raise ProtocolError(REPLY_UNEXPECTED_FRAME, "a content header where none was expected")
            return self.on_header(content, at, size)
        if content.expects != EXPECT_BODY:
            raise ProtocolError(REPLY_UNEXPECTED_FRAME, "a content body where none was expected")
        return self.on_body(content, at, size)

    cdef int on_method(self, Content content, uint32_t method, const uint8_t* at, const uint8_t* end) except -1:
        if method == BASIC_PUBLISH:
            return self.begin(content, at, end)
        if method == BASIC_ACK or method == BASIC_NACK or method == BASIC_REJECT:
            return self.on_settle(content.channel, method, at, end)
        self.hub.cold = True
        self.hub.node.work += WORK_COLD
        return self.call_on_method(content.channel.number, at - 4, end - at + 4)

    cdef int call_on_method(self, uint16_t number, const uint8_t* at, size_t size) except -1:
        return ASK if self.handler.on_method(self, number, PyBytes_FromStringAndSize(<const char*>at, size)) is True \
            else DONE

    cdef int on_settle(self, Channel channel, uint32_t method, const uint8_t* at, const uint8_t* end) except -1:
        """Basic.Ack: tag, multiple. Basic.Reject: tag, requeue. Basic.Nack: tag, multiple and requeue."""
        if end - at != 9:
            raise ProtocolError(REPLY_SYNTAX_ERROR, "an acknowledgement is a delivery tag and one octet of bits")
        if method == BASIC_ACK:
            return channel.settle(peek_u64(at), at[8] & 1, 0, self.work_end)
        if method == BASIC_REJECT:
            return channel.settle(peek_u64(at), 0, 1 if at[8] & 1 else 2, self.work_end)
        return channel.settle(peek_u64(at), at[8] & 1, 1 if at[8] & 2 else 2, self.work_end)

    # ---------------------------------------------------------------- publishing

    cdef int begin(self, Content content, const uint8_t* at, const uint8_t* end) except -1:
        """Basic.Publish: ticket, exchange, routing key, mandatory and immediate."""
        cdef uint32_t n, m
        if end - at < 5:
            raise ProtocolError(REPLY_SYNTAX_ERROR, "basic.publish is too short")
        at += 2
        n = at[0]
        if end - at < 3 + <ssize_t>n:
            raise ProtocolError(REPLY_SYNTAX_ERROR, "basic.publish is shorter than the name of its exchange")
        memcpy(content.topic, at, 1 + n)
        at += 1 + n
        m = at[0]
        if end - at != 2 + <ssize_t>m:
            raise ProtocolError(REPLY_SYNTAX_ERROR,
                                "basic.publish does not end behind its routing key and one octet of bits")
        memcpy(content.topic + 1 + n, at + 1, m)
        content.topic_length = 1 + n + m
        at += 1 + m
        content.mandatory = at[0] & 1
        if at[0] & 2:
            raise ProtocolError(REPLY_NOT_IMPLEMENTED, "immediate=true")
        content.expects = EXPECT_HEADER
        self.published = True           # a publish takes memory from here on, even if it is refused
        return 0

    cdef int on_header(self, Content content, const uint8_t* at, uint32_t size) except -1:
        cdef int result
        if size < 14 or peek_u16(at) != 60:
            raise ProtocolError(REPLY_SYNTAX_ERROR if size < 14 else REPLY_UNEXPECTED_FRAME,
                                "expected a content header of class 60 with its property flags")
        content.body_size = peek_u64(at + 4)
        content.body_have = 0
        content.properties = at + 12
        content.properties_length = size - 12
        content.kept = False
        content.expects = EXPECT_BODY
        if content.body_size > content.bodies.message_max:
            raise ProtocolError(REPLY_PRECONDITION_FAILED,
                                f"message size {content.body_size} is larger than configured max "
                                                     f"size {content.bodies.message_max}")
        if content.body_size == 0:
            result = self.complete(content, at)
            if result != DONE:
                content.expects = EXPECT_HEADER
            return result
        self.unfinished.append(content)
        return 0

    cdef int on_body(self, Content content, const uint8_t* at, uint32_t size) except -1:
        cdef int result
        if content.body_have + size > content.body_size:
            raise ProtocolError(REPLY_UNEXPECTED_FRAME,
                                f"a body of more than the {content.body_size} bytes of its header")
        if content.body_have == 0 and size == content.body_size:
            return self.complete(content, at)
        content.add(at, size)
        if content.body_have == content.body_size:
            result = self.complete(content, content.own_body)
            if result != DONE:
                content.body_have -= size       # this frame will be handled again
            return result
        if content.bodies.held > content.bodies.held_max and not self.favoured:
            self.handler.on_bodies(self)
        return 0                        # a content not copied yet is in `unfinished` since its header

    cdef int complete(self, Content content, const uint8_t* payload) except -1:
        """DONE; or ASK or MORE, which leave the content as it was before the frame that completes it."""
        cdef body_t body
        cdef Channel channel = content.channel
        cdef amqp_properties_t properties
        cdef int code
        content.expects = EXPECT_METHOD
        memset(&body, 0, sizeof(body))
        body.format = FORMAT_AMQP091
        body.topic = content.topic
        body.topic_length = content.topic_length
        body.properties = content.properties
        body.properties_length = content.properties_length
        body.payload = payload
        body.payload_length = fit_u32(content.body_size)
        code = properties_read(body.properties, body.properties + body.properties_length, &properties)
        if code:
            raise ProtocolError(code, "the properties of a content header cannot be read")
        if properties.flags & CHECKED_PROPERTIES:
            other = check_properties(&body, &properties, self.user, channel.reply_to)
            if other is not None:
                body.properties = <const uint8_t*><const char*><bytes>other
                body.properties_length = <uint32_t>len(<bytes>other)
        if channel.transactional:
            code = self.keep_publish(channel, &body, &properties, content.mandatory)
        else:
            code = self.publish(channel, &body, content.mandatory, content)
        if code == ASK or code == MORE:
            content.expects = EXPECT_BODY
            return code
        content.done(OWN_KEPT_MAX // <uint64_t>max(1, len(self.contents))
                     if content.bodies.held <= content.bodies.held_max else 0)
        return 0

    cdef int keep_publish(self, Channel channel, const body_t* body, const amqp_properties_t* properties,
                          bint mandatory) except -1:
        """Keeps a publish until Tx.Commit. Refuses now what would be refused then, because a commit is all or
        nothing."""
        cdef Route route = self.route_of(body, properties)
        if route is None:
            return ASK
        channel.tx_bytes += (KEPT_BYTES + body.topic_length + body.properties_length + body.payload_length) * max(
            <uint64_t>1, <uint64_t>len(route.queues))
        if channel.tx_bytes > TX_BYTES_MAX:
            raise ProtocolError(REPLY_RESOURCE_ERROR, f"a transaction of more than {TX_BYTES_MAX} bytes, counted for "
                                                      f"each queue that gets them")
        channel.tx_publishes.append((
            PyBytes_FromStringAndSize(<const char*>body.topic, body.topic_length),
            PyBytes_FromStringAndSize(<const char*>body.properties, body.properties_length),
            PyBytes_FromStringAndSize(<const char*>body.payload, body.payload_length), mandatory))
        return 0

    cdef int publish(self, Channel channel, const body_t* body, bint mandatory, Content content) except -1:
        """Routes one message: DONE, REFUSED by a queue, ASK, MORE. content: what it is; None: part of a transaction.
        Raises ProtocolError 404 for an unknown exchange, 403 for one that this user may not publish to."""
        cdef uint64_t since = self.hub.commits.mark
        cdef Spread spread = content.spread if content is not None else None
        cdef Route route = None
        cdef amqp_properties_t properties
        cdef body_t moved
        cdef uint8_t[ADDRESS_BYTES_MAX] address
        cdef bint refused = 0
        cdef int routed
        if spread is None:
            self.spend(self.namespace, 1)
        if body.topic[0] == 0:      # default exchange: may be a reply to an MQTT client (reply_to was its topic)
            moved = body[0]
            moved.topic = address
            moved.topic_length = reply_route(body.topic + 1, body.topic_length - 1, address)
            if moved.topic_length:
                body = &moved
        properties_read(body.properties, body.properties + body.properties_length, &properties)
        if spread is None:
            route = self.route_of(body, &properties)
            if route is None:
                return ASK
        else:
            route = spread.route
        if properties.headers.length and has_copies(&properties):
            routed = self.publish_copies(body, route, content, &refused)
        else:
            routed = self.put_all(body, route, content, &refused)
            if routed != MORE and route.mqtt:
                routed = self.publish_topic(body, route.queues, &refused) or routed
        if routed == ASK:
            return ASK
        if self.hub.commits.mark != since:
            self.recorded = True
            if self.hub.crowded is not None:
                self.yield_to_peer(since)
        if routed == MORE:
            return MORE
        if not routed and body.topic[0] == 0 and self.hub.reply is not None:
            routed = self.reply_elsewhere(channel, body, mandatory)
        self.hub.node.work += WORK_ROUTE
        self.hub.node.counters.messages_received[1] += 1
        if mandatory and not routed:
            channel.write_return(body, REPLY_NO_ROUTE, b"NO_ROUTE")
        if channel.confirming:
            if channel.confirm_now == 0:
                self.answering.append(channel)
            channel.answer(refused, since)
        return refused

    cdef int put_all(self, const body_t* body, Route route, Content content, bint* refused) except -1:
        """Puts a message into the queues of its route. Returns whether it was routed; MORE: many are left, and the
        share is used up. refused: set if a queue refused it.

        Queues that another line than the journal commits, or another node has, get it in the last round, in one piece:
        the answer must hear of each of their positions, and knows those of its own turn (Commits.collect)."""
        cdef Queue queue
        cdef Spread spread
        cdef uint64_t before = self.hub.commits.mark
        cdef Py_ssize_t at, begin
        if content is None or len(route.queues) <= PUT_AT_ONCE_MAX:
            for queue in route.queues:
                refused[0] = queue.put(body, 1, NULL) != 0 or refused[0]
            self.hub.node.work += WORK_HOP * <uint64_t>len(route.queues)
            return route.routed
        spread = content.spread
        if spread is None:
            spread = content.spread = Spread.__new__(Spread)
            spread.route, spread.others = route, []
        begin = spread.at
        for at in range(begin, len(route.queues)):
            if at > begin and self.hub.node.work >= self.work_end:
                spread.at = at
                spread.recorded = spread.recorded or self.hub.commits.mark != before
                return MORE
            self.hub.node.work += WORK_PUT
            queue = <Queue>route.queues[at]
            if queue.relay is not None or queue.line.number:
                spread.others.append(queue)
            elif not queue.ended:           # it may have been deleted in between
                spread.refused = queue.put(body, 1, NULL) != 0 or spread.refused
        if spread.recorded:
            self.hub.ledger.wait_for_earlier(self.hub.commits.local)
        for queue in spread.others:
            if not queue.ended:
                spread.refused = queue.put(body, 1, NULL) != 0 or spread.refused
        refused[0] = spread.refused
        content.spread = None
        return route.routed

    cdef bint reply_elsewhere(self, Channel channel, const body_t* body, bint mandatory) except? 0:
        """A message to a queue that is not here: it may be a direct reply to a client of another node. Returns whether
        it is sent there. If that client turns out to have gone, a mandatory message is returned, ahead of its
        confirm."""
        cdef UnroutedReply unrouted = None
        cdef bytes topic = (<const char*>body.topic)[:body.topic_length]
        cdef bytes properties, payload
        if not topic[1:].startswith(DIRECT_REPLY_TO):
            return 0
        self.hub.node.work += WORK_ASK
        properties = (<const char*>body.properties)[:body.properties_length]
        payload = (<const char*>body.payload)[:body.payload_length]
        if mandatory:
            unrouted = UnroutedReply.__new__(UnroutedReply)
            unrouted.channel, unrouted.topic = channel, topic
            unrouted.properties, unrouted.payload = properties, payload
        return self.hub.reply(self.namespace.name, topic[1:], topic, properties, payload, unrouted)

    cdef Route route_of(self, const body_t* body, const amqp_properties_t* properties):
        """The route that the named exchange gives the message; None: authorization is pending (ASK)."""
        cdef uint32_t n = body.topic[0]
        cdef Route route = self.exchanges.find(body.topic + 1, n, body.topic + 1 + n, body.topic_length - 1 - n,
                                               properties.headers.at, properties.headers.length)
        if route is None:
            raise ProtocolError(REPLY_NOT_FOUND, f"no exchange '{shown((<const char*>body.topic)[1:1 + n])}' in vhost "
                                                 f"'{self.vhost}'")
        if route.internal:
            raise ProtocolError(REPLY_ACCESS_REFUSED, f"cannot publish to internal exchange "
                                                      f"'{shown((<const char*>body.topic)[1:1 + n])}' in vhost "
                                                      f"'{self.vhost}'")
        if not self.hub.open_publish and self.check_access(body) == ASK:
            return None
        return route

    cdef int publish_copies(self, const body_t* body, Route route, Content content, bint* refused) except -1:
        """Headers CC and BCC: routes the message by further routing keys too, once to each queue. Returns as put_all();
        ASK: nothing was done yet."""
        cdef body_t sent = body[0]
        cdef body_t other = body[0]
        cdef amqp_properties_t properties
        cdef Route copied
        cdef bytes address
        cdef int routed
        cdef bytes exchange = (<const char*>body.topic)[:1 + body.topic[0]]
        self.hub.node.work += WORK_ASK
        keys, written = copy_keys(body)
        sent.properties = <const uint8_t*><const char*><bytes>written
        sent.properties_length = <uint32_t>len(<bytes>written)
        properties_read(sent.properties, sent.properties + sent.properties_length, &properties)
        if content is not None and content.spread is not None:
            topics = content.spread.topics
        else:
            topics = [(<const char*>body.topic)[:body.topic_length]] if route.mqtt else []
            for key in keys:
                address = exchange + <bytes>key[:255]
                other.topic = <const uint8_t*><const char*>address
                other.topic_length = <uint32_t>len(address)
                copied = self.route_of(&other, &properties)
                if copied is None:
                    return ASK
                if copied.mqtt:
                    topics.append(address)
            keys = [(<const char*>body.topic)[len(exchange):body.topic_length], *keys]
            route = self.exchanges.find_keys(body.topic + 1, body.topic[0], keys, properties.headers.at,
                                             properties.headers.length)
        routed = self.put_all(&sent, route, content, refused)
        if routed == MORE:
            content.spread.topics = topics
            return MORE
        for address in topics:
            other = sent
            other.topic = <const uint8_t*><const char*>address
            other.topic_length = <uint32_t>len(address)
            routed = self.publish_topic(&other, route.queues, refused) or routed
        return routed

    cdef bint publish_topic(self, const body_t* body, list queues, bint* refused) except? 0:
        """A message reached amq.topic: delivers it to MQTT clients and to queues that capture its topic. queues: those
        that have it already. Returns whether it was routed."""
        cdef uint8_t reason = 0
        cdef int matched = hub_publish_amqp(self.hub, self.namespace, body, queues, &reason)
        refused[0] = refused[0] or reason != 0
        return matched != 0

    cdef int check_access(self, const body_t* body) except -1:
        """DONE: this user may publish it; ASK: not known yet. Raises ProtocolError 403."""
        cdef bytes topic = (<const char*>body.topic)[:body.topic_length]
        allowed = self.decided[topic] if self.decided is not None else self.decide(topic)
        if allowed is None:
            return ASK
        if allowed <= 0:
            self.hub.node.counters.publish_denied += 1
            raise ProtocolError(REPLY_ACCESS_REFUSED,
                                f"access to publish to exchange '{shown(topic[1:1 + topic[0]])}' "
                                                f"refused")
        return DONE

    cdef object decide(self, bytes topic):
        """The handler's may_publish for an address encoded as in FORMAT_AMQP091 (exchange, routing key), cached."""
        if self.allowed is None or self.allowed_generation != self.hub.access_generation or len(
                self.allowed) >= ALLOWED_MAX:
            self.allowed = {}
            self.allowed_generation = self.hub.access_generation
        allowed = self.allowed.get(topic)
        if allowed is None:
            n = topic[0]
            self.hub.node.work += WORK_ASK
            allowed = self.handler.may_publish(self, topic[1:1 + n], topic[1 + n:])
            if allowed is not None and allowed >= 0:
                self.allowed[topic] = allowed
        return allowed

    cdef dict decide_all(self, list publishes):
        """decide() for every address that a transaction publishes to; None: some requests are pending. The number
        pending is bounded; further ones follow when these are answered."""
        cdef uint8_t[ADDRESS_BYTES_MAX] moved
        cdef amqp_properties_t found
        cdef body_t body
        cdef uint32_t n
        cdef int pending = 0
        decided = {}
        memset(&body, 0, sizeof(body))
        body.format = FORMAT_AMQP091
        for topic, properties, _, _ in publishes:
            addresses = [topic]
            body.topic = <const uint8_t*><const char*><bytes>topic
            if body.topic[0] == 0:      # as publish()
                n = reply_route(body.topic + 1, <uint32_t>len(topic) - 1, moved)
                if n:
                    addresses = [(<const char*>moved)[:n]]
            body.properties = <const uint8_t*><const char*><bytes>properties
            body.properties_length = <uint32_t>len(properties)
            properties_read(body.properties, body.properties + body.properties_length, &found)
            if found.headers.length and has_copies(&found):
                exchange = addresses[0][:1 + addresses[0][0]]
                addresses += [exchange + <bytes>key[:255] for key in copy_keys(&body)[0]]
            for address in addresses:
                if address in decided:
                    continue
                allowed = self.decide(address)
                if allowed is None:
                    pending += 1
                    if pending == ASKED_AT_ONCE_MAX:
                        return None
                else:
                    decided[address] = allowed
        return decided if pending == 0 else None

    def commit(self, Channel channel not None) -> bool:
        """Tx.Commit: applies everything published and settled since the last one, in one batch of the journal. Raises
        ProtocolError 406 if a queue refused a message; the rest is applied all the same. True: ASK, nothing done."""
        if not self.hub.open_publish:
            self.decided = self.decide_all(channel.tx_publishes)
            if self.decided is None:
                return True
        try:
            if self.hub.nodes:
                self.check_owners(channel)
            self.hub.whole = True
            self.commit_all(channel)
        finally:
            self.hub.whole = False
            self.decided = None
        return False

    cdef int check_owners(self, Channel channel) except -1:
        """Raises ProtocolError 540 for a transaction with queues of more than one node, which could be done in part."""
        cdef body_t body
        cdef delivery_t* delivery
        cdef uint64_t tag
        cdef set owners = set()
        for tag, _ in channel.tx_settles:
            delivery = channel.find(tag)
            if delivery != NULL and delivery.consumer != NULL and not delivery.reads:
                add_owners_of(owners, (<ChannelMember>delivery.consumer).queue)
        memset(&body, 0, sizeof(body))
        body.format = FORMAT_AMQP091
        for topic, properties, _, _ in channel.tx_publishes:
            body.topic = <const uint8_t*><const char*><bytes>topic
            body.topic_length = <uint32_t>len(topic)
            body.properties = <const uint8_t*><const char*><bytes>properties
            body.properties_length = <uint32_t>len(properties)
            self.add_owners(owners, &body)
        if len(owners) > 1:
            named = ", ".join(sorted([owner or "this one" for owner in owners]))
            raise ProtocolError(REPLY_NOT_IMPLEMENTED, f"a transaction with queues of several nodes: {named}")
        return 0

    cdef int add_owners(self, set owners, const body_t* body) except -1:
        """Adds the nodes of all queues to which publish() would give this message."""
        cdef body_t sent = body[0]
        cdef body_t other
        cdef uint8_t[ADDRESS_BYTES_MAX] moved
        cdef amqp_properties_t properties
        cdef Queue queue
        cdef Route route
        cdef bytes address
        cdef uint32_t n
        if body.topic[0] == 0:
            n = reply_route(body.topic + 1, body.topic_length - 1, moved)
            if n:
                sent.topic, sent.topic_length = moved, n
        n = 1 + sent.topic[0]
        properties_read(sent.properties, sent.properties + sent.properties_length, &properties)
        route = self.exchanges.find(sent.topic + 1, n - 1, sent.topic + n, sent.topic_length - n, properties.headers.at,
                                    properties.headers.length)
        if route is None:               # the exchange was deleted since the publish
            return 0
        address = (<const char*>sent.topic)[:sent.topic_length]
        addresses = [address] if route.mqtt else []
        if properties.headers.length and has_copies(&properties):
            keys, written = copy_keys(&sent)
            sent.properties = <const uint8_t*><const char*><bytes>written
            sent.properties_length = <uint32_t>len(<bytes>written)
            properties_read(sent.properties, sent.properties + sent.properties_length, &properties)
            route = self.exchanges.find_keys(sent.topic + 1, n - 1, [address[n:], *keys], properties.headers.at,
                                             properties.headers.length)
            if route.mqtt:
                addresses = [address, *[address[:n] + <bytes>key[:255] for key in keys]]
        queues = list(route.queues)
        for address in addresses:       # which are topics of MQTT, too
            other = sent
            other.topic = <const uint8_t*><const char*>address
            other.topic_length = <uint32_t>len(address)
            route = self.exchanges.find(other.topic + 1, n - 1, other.topic + n, other.topic_length - n,
                                        properties.headers.at, properties.headers.length)
            if route is not None and route.mqtt:
                hub_queues_of_amqp(self.namespace, &other, queues)
        for queue in queues:
            add_owners_of(owners, queue)
        if not queues and sent.topic[0] == 0 and self.hub.reply is not None and address[1:].startswith(REPLY_PREFIX):
            node = address[1 + len(REPLY_PREFIX):].partition(b".")[2]
            owners.update([peer.node for peer in self.hub.nodes if peer.node.encode() == node])
        return 0

    cdef int commit_all(self, Channel channel) except -1:
        cdef body_t body
        cdef bint refused = 0
        publishes, channel.tx_publishes = channel.tx_publishes, []
        channel.tx_bytes = 0
        channel.settle_kept()
        for topic, properties, payload, mandatory in publishes:
            memset(&body, 0, sizeof(body))
            body.format = FORMAT_AMQP091
            body.topic = <const uint8_t*><const char*><bytes>topic
            body.topic_length = <uint32_t>len(topic)
            body.properties = <const uint8_t*><const char*><bytes>properties
            body.properties_length = <uint32_t>len(properties)
            body.payload = <const uint8_t*><const char*><bytes>payload
            body.payload_length = <uint32_t>len(payload)
            try:
                refused = self.publish(channel, &body, mandatory, None) or refused
            except ProtocolError:               # the exchange was deleted since the publish
                if mandatory:
                    channel.write_return(&body, REPLY_NO_ROUTE, b"NO_ROUTE")
        self.recorded = self.hub.ledger.active()
        self.end_read()
        if refused:
            raise ProtocolError(REPLY_PRECONDITION_FAILED, "partial tx completion")
        return 0

    # ---------------------------------------------------------------- Transport

    cdef void let_go(self) noexcept:
        """The handler closes the channels in on_end."""

    cdef int drained(self) except -1:
        cdef Channel channel
        for channel in self.channels.values():
            if channel.sent >= channel.automatic:
                channel.settle_automatic()
            if channel.starved and not channel.closing:
                channel.feed()
        return 0
