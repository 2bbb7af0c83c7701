# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Machine. The client's side of one MQTT connection: bytes in, packets and bytes out. No socket, no clock.

The states of a connection are at the top of client/machine.pxd, those of a packet identifier of client/session.pxd.

The owner passes received bytes to `feed`, sends the bytes of `take_output`, and overrides, besides output_ready and
output_full of ClientWriter:

    accepted(present)     a CONNACK that accepts has arrived; nothing has been resent yet
    connected(connack)    CONNACK has arrived, accepting or not
    dismissed(packet)     the server has sent DISCONNECT

Packets are sent in the order of the calls, acknowledgements in the order of the packets that they acknowledge
[MQTT-4.6.0-2]. If the server violates the protocol, feed writes a DISCONNECT (MQTT 5) and raises ProtocolError.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove

from collections import deque

from fluxmq._core.client.message cimport Message
from fluxmq._core.client.session cimport (
    FREE, RELEASED, SENT_1, SENT_2, SUBSCRIBING, UNSUBSCRIBING, WAITING, Session, Slot, enter,
)
from fluxmq._core.client.writer cimport CLOSED, CONNECTING, NEW, OPEN, ClientWriter, enter_state
from fluxmq._core.errors import NotConnected, ProtocolError, UsageError, WindowFull
from fluxmq._core.mqtt.consts cimport *
from fluxmq._core.mqtt.decode import decode_packet
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.fields cimport forbidden, malformed, write_text, write_varint
from fluxmq._core.mqtt.packets import ConnAck, Disconnect
from fluxmq._core.mqtt.props cimport publish_props_t, scan_publish_props, write_properties
from fluxmq._core.mqtt.props import decode_properties
from fluxmq._core.wire.primitives cimport VARINT_MAX, Cursor, peek_u16, take_bytes16, take_u16, take_varint
from fluxmq._core.wire.text cimport TEXT_OK, topic_valid

__all__ = ["SESSION_LOST", "STATE_CLOSED", "STATE_CONNECTING", "STATE_NEW", "STATE_OPEN", "ClientMachine"]

STATE_NEW = NEW
STATE_CONNECTING = CONNECTING
STATE_OPEN = OPEN
STATE_CLOSED = CLOSED
SESSION_LOST = -1       # passed to `done`: the server has lost the session, and republish is off

cdef enum:
    CARRY_BYTES_KEPT = 65536    # buffer that is kept while no packet is incomplete
    INFLIGHT_MAX = 65535 - 1024     # packet identifiers for publishes; the others are for SUBSCRIBE and UNSUBSCRIBE
    FROM_SERVER = (1 << CONNACK | 1 << PUBLISH | 1 << PUBACK | 1 << PUBREC | 1 << PUBREL | 1 << PUBCOMP | 1 << SUBACK
                   | 1 << UNSUBACK | 1 << PINGRESP | 1 << DISCONNECT | 1 << AUTH)

cdef unsigned long long machines = 0
cdef object no_properties = []


cdef bytes filter_of(object text):
    """The topic filter as on the wire, with its length."""
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            raise UsageError(f"a topic filter must be UTF-8: {text!r}") from None
    if not isinstance(text, str):
        raise UsageError(f"a topic filter must be bytes or str, not {type(text).__name__}")
    if not text:
        raise UsageError("a topic filter must not be empty")    # [MQTT-4.7.3-1]
    return write_text(text, "a topic filter")


cdef bytes payload_of(object payload):
    """The bytes of a payload that is neither bytes nor str."""
    if payload is None:
        return b""
    try:
        return bytes(memoryview(payload))
    except TypeError:
        raise UsageError(f"payload must be str or bytes-like, not {type(payload).__name__}") from None


cdef int check_list(object filters) except -1:
    """Rejects a str, which would be iterated by characters."""
    if isinstance(filters, (str, bytes)):
        raise UsageError(f"a list of topic filters is needed, not {filters!r} alone")
    return 0


cdef object old_refusal(const uint8_t* body, uint32_t n):
    """The CONNACK of a server without MQTT 5: a return code, no properties. None: it is not one.
    MQTT 3.1.1 section 3.2.2.3."""
    if n != 2 or body[0] or not 1 <= body[1] <= 5:
        return None
    return ConnAck(reason_code=(0, 0x84, 0x85, 0x88, 0x86, 0x87)[body[1]])


cdef class ClientMachine(ClientWriter):
    """Machine. One connection of a client, for one CONNECT.

    on_message(message): called for every PUBLISH, in order. session: the session of an earlier connection; None: a new
    one. manual_ack: PUBACK and PUBREC are sent by acknowledge(), not when on_message returns. republish: whether
    unacknowledged publishes are sent again if the server has lost the session; if not, their `done` gets SESSION_LOST.
    topic_aliases: maximum number of aliases, limited further by the server (MQTT 5). max_inflight: maximum number of
    unacknowledged publishes, limited further by the server's Receive Maximum.
    """

    def __cinit__(self, *args, **kwargs):
        self.carry = NULL

    def __init__(self, object on_message=None, *, Session session=None, bint manual_ack=False, bint republish=True,
                 int topic_aliases=0, int max_inflight=65535) -> None:
        global machines
        if not 1 <= max_inflight <= 65535:
            raise UsageError(f"max_inflight must be 1 to 65535, not {max_inflight}")
        if not 0 <= topic_aliases <= 65535:
            raise UsageError(f"topic_aliases must be 0 to 65535, not {topic_aliases}")
        machines += 1
        self.serial = machines
        self.on_message = on_message
        self.session = Session() if session is None else session
        self.manual_ack = manual_ack
        self.republish = republish
        self.receive_maximum = min(max_inflight, INFLIGHT_MAX)
        self.maximum_qos = 2
        self.retain_available = True
        self.packet_bytes_max_in = VARINT_MAX + 5
        self.alias_max_out = topic_aliases
        self.inbound = set()
        self.unacknowledged = set()
        self.aliases_in = {}
        self.pings = deque()
        self.answer_properties = no_properties

    def __dealloc__(self):
        free(self.carry)

    # What the owner overrides

    def accepted(self, bint session_present) -> None:
        """The server has accepted; nothing has been resent yet. Packets written here precede the resent ones."""

    def connected(self, connack) -> None:
        """The server has answered CONNECT, with reason_code 0 or a refusal. Resent packets are already written."""

    def dismissed(self, disconnect) -> None:
        """The server sent DISCONNECT (MQTT 5 only)."""

    # What a client does

    def start(self, connect) -> None:
        """Write CONNECT (mqtt_packets.Connect). May be called once. Raises UsageError."""
        cdef object value
        if self.state != NEW:
            raise UsageError("a machine is for one connection")
        packet = encode_packet(connect, 0)
        self.version = connect.protocol_level
        self.clean_start = connect.clean_start
        self.keep_alive = connect.keep_alive
        self.receive_maximum_in = connect.get(PROPERTY_RECEIVE_MAXIMUM, 65535)
        self.alias_max_in = connect.get(PROPERTY_TOPIC_ALIAS_MAXIMUM, 0)
        value = connect.get(PROPERTY_MAXIMUM_PACKET_SIZE)
        if value is not None:
            self.packet_bytes_max_in = value
        enter_state(self, CONNECTING)
        self.session.owner = self.serial
        self.write(packet)

    @property
    def window(self) -> int:
        """Number of publishes with QoS 1 and 2 that may be sent now."""
        if self.state != OPEN or self.session.waiting:
            return 0
        return max(0, self.receive_maximum - self.session.outstanding)

    def publish(self, object topic, object payload=b"", int qos=0, bint retain=False, object properties=None,
                object done=None) -> int:
        """Write PUBLISH. Returns its packet identifier, 0 with QoS 0.

        topic, payload: bytes or str. properties: bytes as on the wire without their length, or (identifier, value)s.
        done(packet_id, reason): called at PUBACK or PUBCOMP with the reason code of MQTT 5, while `answer_properties`
        has the properties. Not called with QoS 0, nor if the connection ends first. Raises WindowFull, NotConnected,
        UsageError (a value that cannot be sent, or that the server does not accept). MQTT 5.0 section 3.3.
        """
        cdef Slot slot
        cdef bytes wire = None
        if self.state != OPEN:
            raise NotConnected("the connection is not open")
        if qos > self.maximum_qos or qos < 0:
            raise UsageError(f"qos must be 0 to {self.maximum_qos}, not {qos}")
        if retain and not self.retain_available:
            raise UsageError("the server keeps no retained messages")
        if type(payload) is not bytes and not isinstance(payload, str):
            payload = payload_of(payload)
        if properties is not None:
            wire = self.properties_of(properties)
        if qos == 0:
            self.write_publish(topic, payload, wire, PUBLISH << 4 | retain, 0)
            return 0
        if self.session.outstanding >= self.receive_maximum or self.session.waiting:
            raise WindowFull(f"{self.session.outstanding} publishes are not acknowledged; the server takes "
                             f"{self.receive_maximum} at a time")
        slot = self.session.take()
        # Set before the bytes are written, because writing may flush, and output_full may read the session.
        enter(slot, SENT_1 if qos == 1 else SENT_2)
        slot.qos = qos
        slot.retain = retain
        slot.topic = topic
        slot.payload = payload
        slot.properties = wire
        slot.done = done
        try:
            self.write_publish(topic, payload, wire, PUBLISH << 4 | qos << 1 | retain, slot.packet_id)
        except BaseException:
            self.session.give_back(slot)
            raise
        self.session.outstanding += 1
        return slot.packet_id

    def subscribe(self, filters, object done=None, object properties=None) -> int:
        """Write SUBSCRIBE. Returns its packet identifier. filters: [(filter, options byte), …], section 3.8.3.1.

        done(packet_id, codes): called at SUBACK. Raises NotConnected, UsageError.
        """
        cdef list parts = []
        check_list(filters)
        for text, options in filters:
            if not 0 <= options <= (0x2F if self.version >= LEVEL_5 else 2) or options & 3 == 3:
                raise UsageError(f"0x{options:02X} is no options byte of a subscription in this version")
            parts.append(filter_of(text))
            parts.append(bytes((options,)))
        return self.ask(SUBSCRIBE, SUBSCRIBING, parts, done, properties)

    def unsubscribe(self, filters, object done=None, object properties=None) -> int:
        """Write UNSUBSCRIBE. Returns its packet identifier. done(packet_id, codes): called at UNSUBACK; [] before
        MQTT 5."""
        check_list(filters)
        return self.ask(UNSUBSCRIBE, UNSUBSCRIBING, [filter_of(text) for text in filters], done, properties)

    cdef object ask(self, int kind, int state, list parts, object done, object properties):
        """Write SUBSCRIBE or UNSUBSCRIBE."""
        cdef Slot slot
        cdef bytes extra = b""
        if self.state != OPEN:
            raise NotConnected("the connection is not open")
        if not parts:
            raise UsageError("at least one topic filter is needed")
        if self.version >= LEVEL_5:
            if type(properties) is bytes:
                extra = write_varint(len(properties), "the property length") + properties
                try:
                    decode_properties(extra, kind)
                except ProtocolError as error:
                    raise UsageError(f"properties as on the wire without their length: {error.text}") from None
            else:
                extra = write_properties([] if properties is None else list(properties), kind)
        elif properties:
            raise UsageError("properties need MQTT 5")
        slot = self.session.take()
        body = slot.packet_id.to_bytes(2, "big") + extra + b"".join(parts)
        packet = bytes((kind << 4 | 2,)) + write_varint(len(body), "a packet") + body
        if <size_t>len(packet) > self.packet_bytes_max_out:
            self.session.give_back(slot)
            raise UsageError(f"a packet of {len(packet)} bytes; the server takes {self.packet_bytes_max_out}")
        enter(slot, state)
        slot.qos = <int>(len(parts) // 2 if kind == SUBSCRIBE else len(parts))      # number of reason codes expected
        slot.done = done
        self.write(packet)
        return slot.packet_id

    def ping(self, object done=None) -> None:
        """Write PINGREQ. done(): called at PINGRESP; the server has then read everything written before. Raises
        NotConnected."""
        if self.state != OPEN:
            raise NotConnected("the connection is not open")
        self.pings.append(done)
        self.write(b"\xc0\x00")

    def acknowledge(self, Message message not None, int reason=0) -> bool:
        """Acknowledge a message of QoS 1 or 2 (manual_ack). reason: 0x80 and above refuses it (MQTT 5).

        Returns False if nothing was sent: the message was acknowledged before, needs no acknowledgement, or arrived
        on another connection.
        """
        if message.qos == 0 or message.acknowledged or message.connection != self.serial or self.state != OPEN:
            return False
        message.acknowledged = True
        if message.qos == 1:
            self.inbound.discard(message.packet_id)
            self.write_ack(PUBACK, message.packet_id, reason)
            return True
        self.unacknowledged.discard(message.packet_id)
        if reason >= 0x80 and self.version >= LEVEL_5:
            self.session.received.discard(message.packet_id)
            self.inbound.discard(message.packet_id)
        self.write_ack(PUBREC, message.packet_id, reason)
        return True

    def leave(self, int reason=0, properties=None) -> None:
        """Write DISCONNECT as the last packet. Does nothing if the connection is not open."""
        if self.state == OPEN:
            packet = encode_packet(Disconnect(reason_code=reason if self.version >= LEVEL_5 else 0,
                                              properties=None if properties is None else list(properties)),
                                   self.version)
            self.write(packet)
        enter_state(self, CLOSED)

    def end(self) -> None:
        """The connection has ended: drops requests that cannot be answered any more and keeps the session.

        Only the first call counts: afterwards the session may belong to another machine.
        """
        cdef Slot slot
        enter_state(self, CLOSED)
        if self.ended:
            return
        self.ended = 1
        # The socket may close late, when another machine has the session.
        if self.session.owner == self.serial:
            for slot in self.session.in_order():
                if slot.state == SUBSCRIBING or slot.state == UNSUBSCRIBING:
                    self.session.give_back(slot)
        # The server resends unacknowledged publishes, which then count as new messages.
        self.session.received.difference_update(self.unacknowledged)
        self.unacknowledged.clear()
        self.inbound.clear()
        self.pings.clear()
        self.on_message = None

    # Bytes in

    def feed(self, object data) -> None:
        """Processes received bytes, any number. Raises ProtocolError; errors of on_message and `done` propagate.

        After an error the machine is closed. Must not be called from within a callback.
        """
        cdef Py_buffer buffer
        if self.state == CLOSED or self.state == NEW:
            return
        if self.feeding:
            raise UsageError("feed was called from within feed")
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        self.feeding = 1
        try:
            self.take_in(<const uint8_t*>buffer.buf, buffer.len)
        except ProtocolError as error:
            if self.state == OPEN and self.version >= LEVEL_5:
                self.leave(error.reason)
            enter_state(self, CLOSED)
            raise
        except BaseException:
            enter_state(self, CLOSED)
            raise
        finally:
            self.feeding = 0
            PyBuffer_Release(&buffer)

    cdef int keep(self, const uint8_t* data, size_t n) except -1:
        """Appends to the incomplete packet."""
        cdef uint8_t* grown
        cdef size_t wanted
        if self.carry_bytes + n > self.carry_room:
            wanted = max(self.carry_room * 2, self.carry_bytes + n)
            grown = <uint8_t*>realloc(self.carry, wanted)
            if grown == NULL:
                raise MemoryError()
            self.carry = grown
            self.carry_room = wanted
        memcpy(self.carry + self.carry_bytes, data, n)
        self.carry_bytes += n
        return 0

    cdef int take_in(self, const uint8_t* data, Py_ssize_t n) except -1:
        cdef Py_ssize_t used
        if self.carry_bytes == 0:
            used = self.parse(data, n)
            if used < n:
                self.keep(data + used, <size_t>(n - used))
            return 0
        self.keep(data, n)
        used = self.parse(self.carry, <Py_ssize_t>self.carry_bytes)
        self.carry_bytes -= <size_t>used
        if self.carry_bytes:
            memmove(self.carry, self.carry + used, self.carry_bytes)
        elif self.carry_room > CARRY_BYTES_KEPT:
            free(self.carry)
            self.carry = NULL
            self.carry_room = 0
        return 0

    cdef Py_ssize_t parse(self, const uint8_t* data, Py_ssize_t n) except -1:
        """Processes all complete packets. Returns how many bytes they had."""
        cdef Cursor c
        cdef const uint8_t* at = data
        cdef const uint8_t* end = data + n
        cdef uint32_t remaining = 0
        cdef int taken, first
        while at < end and self.state != CLOSED:
            if not FROM_SERVER >> (at[0] >> 4) & 1:
                forbidden(f"a server sends no packet of type {at[0] >> 4}")
            if at[0] >> 4 != PUBLISH and at[0] & 15 != (2 if at[0] >> 4 == PUBREL else 0):
                malformed("reserved bits in the first byte of a packet")    # checked before the rest arrives
            c.at = at + 1
            c.end = end
            taken = take_varint(&c, &remaining)
            if taken == 0:
                break
            if taken < 0:
                malformed("the remaining length is not a Variable Byte Integer in its shortest form")
            if <size_t>(c.at - at) + remaining > self.packet_bytes_max_in:
                raise ProtocolError(REASON_PACKET_TOO_LARGE,        # [MQTT-3.1.2-24]
                                    f"a packet of {<size_t>(c.at - at) + remaining} bytes; at most "
                                    f"{self.packet_bytes_max_in} are taken")
            if <size_t>(end - c.at) < remaining:
                break
            first = at[0]
            at = c.at + remaining
            self.packet(first, c.at, remaining)
        return at - data

    cdef int packet(self, int first, const uint8_t* body, uint32_t n) except -1:
        cdef int kind = first >> 4
        if self.state == CONNECTING and kind != CONNACK:
            forbidden("the first packet of a server must be CONNACK")    # [MQTT-3.2.0-1]
        if kind == PUBLISH:
            return self.publish_came(first, body, n)
        if PUBACK <= kind <= PUBCOMP and first & 15 == (2 if kind == PUBREL else 0) and n >= 2 and (body[0] or body[1]):
            if n == 2 or (n == 3 and body[2] == 0 and self.version >= LEVEL_5):
                self.answer_properties = no_properties
                return self.ack_came(kind, peek_u16(body), 0)
        return self.cold_packet(first, body, n)

    cdef int cold_packet(self, int first, const uint8_t* body, uint32_t n) except -1:
        cdef int kind = first >> 4
        packet = old_refusal(body, n) if self.state == CONNECTING and self.version >= LEVEL_5 else None
        if packet is None:
            packet = decode_packet(first, PyBytes_FromStringAndSize(<const char*>body, n), self.version)
        if PUBACK <= kind <= PUBCOMP:
            self.answer_properties = packet.properties
            self.ack_came(kind, packet.packet_id, packet.reason_code)
        elif kind == PINGRESP:
            if not self.pings:
                forbidden("PINGRESP without PINGREQ")
            done = self.pings.popleft()
            if done is not None:
                done()
        elif kind == SUBACK:
            self.suback_came(packet, SUBSCRIBING)
        elif kind == UNSUBACK:
            self.suback_came(packet, UNSUBSCRIBING)
        elif kind == CONNACK:
            self.connack_came(packet)
        elif kind == DISCONNECT:
            if self.version < LEVEL_5:
                forbidden("before MQTT 5 a server sends no DISCONNECT")
            enter_state(self, CLOSED)
            self.dismissed(packet)
        else:
            forbidden("AUTH without an authentication method")
        return 0

    cdef int connack_came(self, object connack) except -1:
        cdef object value
        if self.state != CONNECTING:
            forbidden("CONNACK came twice")
        if connack.reason_code:
            enter_state(self, CLOSED)
            self.connected(connack)
            return 0
        if connack.session_present and self.clean_start:
            forbidden("the server has a session although none was asked for")
        self.receive_maximum = min(self.receive_maximum, <int>connack.get(PROPERTY_RECEIVE_MAXIMUM, 65535))
        self.maximum_qos = connack.get(PROPERTY_MAXIMUM_QOS, 2)
        self.retain_available = connack.get(PROPERTY_RETAIN_AVAILABLE, 1)
        self.alias_max_out = min(self.alias_max_out, <int>connack.get(PROPERTY_TOPIC_ALIAS_MAXIMUM, 0))
        self.keep_alive = connack.get(PROPERTY_SERVER_KEEP_ALIVE, self.keep_alive)
        value = connack.get(PROPERTY_MAXIMUM_PACKET_SIZE)
        if value is not None:
            self.packet_bytes_max_out = value
        enter_state(self, OPEN)
        self.accepted(connack.session_present)
        self.resume(connack.session_present)
        self.connected(connack)
        return 0

    cdef int suback_came(self, object packet, int state) except -1:
        cdef Slot slot = self.session.at(packet.packet_id)
        if slot is None or slot.state != state:
            forbidden("an acknowledgement of a subscription that was not asked for")
        if packet.reason_codes and len(packet.reason_codes) != slot.qos:
            forbidden("an acknowledgement with another number of reason codes than topic filters")
        done = slot.done
        self.answer_properties = packet.properties
        self.session.give_back(slot)
        if done is not None:
            done(packet.packet_id, packet.reason_codes)
        return 0

    cdef bytes topic_of(self, const uint8_t* text, size_t n, int alias):
        """The topic name of a PUBLISH; None: it is invalid."""
        cdef bytes topic = self.topic_seen
        if n == 0:
            topic = self.aliases_in.get(alias)
            if topic is None:
                forbidden(f"topic alias {alias} was not set")
            return topic
        if topic is None or <size_t>PyBytes_GET_SIZE(topic) != n or memcmp(PyBytes_AS_STRING(topic), text, n) != 0:
            if topic_valid(text, n, 0) != TEXT_OK:
                return None
            topic = PyBytes_FromStringAndSize(<const char*>text, <Py_ssize_t>n)
            self.topic_seen = topic
        if alias:
            self.aliases_in[alias] = topic
        return topic

    cdef int publish_came(self, int first, const uint8_t* body, uint32_t n) except -1:
        cdef Cursor c
        cdef publish_props_t seen
        cdef const uint8_t* text = NULL
        cdef const uint8_t* properties = NULL
        cdef uint8_t* scratch
        cdef uint16_t text_bytes = 0, packet_id = 0
        cdef uint32_t property_bytes = 0
        cdef int qos = first >> 1 & 3
        cdef bint sound
        cdef Message message
        cdef bytes topic = None
        seen.topic_alias = 0
        c.at = body
        c.end = body + n
        sound = qos < 3 and (qos or not first & 8) and take_bytes16(&c, &text, &text_bytes)
        if sound and qos:
            sound = take_u16(&c, &packet_id) and packet_id != 0
        if sound and self.version >= LEVEL_5:
            sound = take_varint(&c, &property_bytes) == 1 and <size_t>(c.end - c.at) >= property_bytes
            if sound and property_bytes:
                properties = c.at
                c.at += property_bytes
                scratch = <uint8_t*>malloc(property_bytes)
                if scratch == NULL:
                    raise MemoryError()
                sound = scan_publish_props(properties, c.at, &seen, scratch) == 0
                free(scratch)
        if sound and seen.topic_alias > <uint32_t>self.alias_max_in:
            raise ProtocolError(REASON_TOPIC_ALIAS_INVALID, f"topic alias {seen.topic_alias} is over the maximum")
        if sound and (text_bytes or seen.topic_alias):
            topic = self.topic_of(text, text_bytes, <int>seen.topic_alias)
        if topic is None:
            decode_packet(first, PyBytes_FromStringAndSize(<const char*>body, n), self.version)     # raises the reason
            malformed("a PUBLISH that cannot be read")
        if qos and not self.count_in(packet_id, qos):
            return 0
        message = Message.__new__(Message)
        message.topic = topic
        message.payload = PyBytes_FromStringAndSize(<const char*>c.at, c.end - c.at)
        message.qos = qos
        message.retain = first & 1
        message.dup = first >> 3 & 1
        message.packet_id = packet_id
        message.properties = PyBytes_FromStringAndSize(<const char*>properties, property_bytes)
        message.connection = self.serial
        if self.on_message is not None:
            self.on_message(message)
        if qos and not self.manual_ack and not message.acknowledged and self.state == OPEN:
            message.acknowledged = True
            self.write_ack(PUBACK if qos == 1 else PUBREC, packet_id, 0)
        return 0

    cdef int count_in(self, int packet_id, int qos) except -1:
        """Counts a PUBLISH against our Receive Maximum. Returns 0 if it is a repeated QoS 2 publish, not a message."""
        if qos == 2 and packet_id in self.session.received:
            if packet_id not in self.unacknowledged:
                self.write_ack(PUBREC, packet_id, 0)
            return 0
        if qos == 1 and not self.manual_ack:
            return 1            # acknowledged before the next packet is parsed
        if len(self.inbound) >= self.receive_maximum_in and packet_id not in self.inbound:
            raise ProtocolError(REASON_RECEIVE_MAXIMUM_EXCEEDED,
                                f"more than {self.receive_maximum_in} messages that are not acknowledged")
        self.inbound.add(packet_id)
        if qos == 2:
            self.session.received.add(packet_id)
            if self.manual_ack:
                self.unacknowledged.add(packet_id)
        return 1

    cdef int ack_came(self, int kind, int packet_id, int reason) except -1:
        cdef Slot slot
        if kind == PUBREL:
            known = packet_id in self.session.received
            self.session.received.discard(packet_id)
            self.inbound.discard(packet_id)
            self.unacknowledged.discard(packet_id)
            return self.write_ack(PUBCOMP, packet_id, 0 if known else REASON_PACKET_IDENTIFIER_NOT_FOUND)
        slot = self.session.at(packet_id)
        if slot is not None and slot.state == FREE:
            slot = None
        if kind == PUBREC:
            return self.pubrec_came(slot, packet_id, reason)
        if slot is None:
            return 0            # from an earlier connection, or repeated: has no effect
        if kind == PUBACK and slot.state == SENT_1:
            return self.finish(slot, reason)
        if kind == PUBCOMP and slot.state == RELEASED:
            return self.finish(slot, slot.reason if reason == 0 else reason)
        forbidden(f"an acknowledgement of type {kind} that does not fit packet identifier {packet_id}")

    cdef int pubrec_came(self, Slot slot, int packet_id, int reason) except -1:
        if slot is None:
            return self.write_ack(PUBREL, packet_id, REASON_PACKET_IDENTIFIER_NOT_FOUND)
        if slot.state == SENT_2:
            if reason >= 0x80:
                return self.finish(slot, reason)
            enter(slot, RELEASED)
            slot.reason = reason
            slot.topic = slot.payload = slot.properties = None
        elif slot.state != RELEASED:
            forbidden(f"PUBREC does not fit packet identifier {packet_id}")
        return self.write_ack(PUBREL, packet_id, 0)

    cdef int finish(self, Slot slot, int reason) except -1:
        cdef int packet_id = slot.packet_id
        done = slot.done
        self.session.give_back(slot)
        self.session.outstanding -= 1
        if self.session.waiting:
            self.pump()
        if done is not None:
            done(packet_id, reason)
        return 0

    # A session that goes on

    cdef int resume(self, bint present) except -1:
        """Resends packets of the earlier connection. Section 4.4."""
        cdef Slot slot
        cdef list ended = []
        cdef list left = self.session.in_order()
        if not present:
            self.session.received.clear()
        self.session.waiting.clear()
        self.session.outstanding = 0
        for slot in left:
            if slot.state == RELEASED and present:
                self.session.outstanding += 1
                self.write_ack(PUBREL, slot.packet_id, 0)       # [MQTT-4.4.0-1]
            elif slot.state == RELEASED or not (present or self.republish):
                # PUBREC arrived, so the server has the message; without the session there will be no PUBCOMP.
                ended.append((slot.done, slot.packet_id, slot.reason if slot.state == RELEASED else -1))
                self.session.give_back(slot)
            elif slot.state in (SENT_1, SENT_2, WAITING):
                slot.dup = present and (slot.state != WAITING or slot.dup)
                enter(slot, WAITING)
                self.session.waiting.append(slot)
        self.pump()
        for done, packet_id, reason in ended:
            if done is not None:
                done(packet_id, reason)
        return 0

    cdef int pump(self) except -1:
        """Resends waiting publishes, as far as the window permits."""
        cdef Slot slot
        cdef int reason
        while self.session.waiting and self.session.outstanding < self.receive_maximum and self.state == OPEN:
            slot = <Slot>self.session.waiting.popleft()
            reason = self.send_again(slot)
            if reason:
                done, packet_id = slot.done, slot.packet_id
                self.session.give_back(slot)
                if done is not None:
                    done(packet_id, reason)
        return 0

    cdef int send_again(self, Slot slot) except -1:
        """Returns 0 if it was sent, else the reason why it exceeds the limits of this server, which may be lower than
        those of the last one."""
        if slot.qos > self.maximum_qos:
            return REASON_QOS_NOT_SUPPORTED
        if slot.retain and not self.retain_available:
            return REASON_RETAIN_NOT_SUPPORTED
        enter(slot, SENT_1 if slot.qos == 1 else SENT_2)
        try:
            self.write_publish(slot.topic, slot.payload, slot.properties,
                               PUBLISH << 4 | slot.dup << 3 | slot.qos << 1 | slot.retain, slot.packet_id)
        except UsageError:
            return REASON_PACKET_TOO_LARGE
        self.session.outstanding += 1
        return 0
