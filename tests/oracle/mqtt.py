"""A naive codec of MQTT 3.1.1 and 5.0, for tests: one dataclass per packet, every field in plain sight.

It shares nothing with the broker's codec, so that the two can disagree. It is strict in nothing it builds: a
test of malformed packets says what it wants on the wire, by wrong values, by `bytes` where the specification
wants text (not checked for UTF-8), by the properties ("raw", b"...") and by the overrides of every packet:

    flags=0b0001             the low four bits of the first byte
    length=b"\\xff\\xff\\x01"    the Remaining Length, as bytes
    properties_length=5      the Property Length, whatever follows
    tail=b"..."              bytes after the last field, counted in the Remaining Length

Parsing is strict: what a broker sends must be right to the last bit, or `Malformed` says what is not.

Properties are written as a dict or as a list of pairs, name → value; a list as a value repeats the property:
{"user_property": [("a", "1"), ("a", "2")], "receive_maximum": 5}. They are read back with `prop` and `props`.

One file, longer than most, because a reader who checks a packet against the specification wants all of it in one place.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

V311, V5 = 4, 5

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = 8, 9, 10, 11, 12, 13, 14, 15

NEVER = 0xFFFFFFFF                       # Session Expiry Interval: the session does not expire

# MQTT 5.0 table 2-4: name → (identifier, type, packets that may carry it; "will" are the Will Properties)
PROPERTIES: dict[str, tuple[int, str, tuple[int | str, ...]]] = {
    "payload_format_indicator": (0x01, "byte", (PUBLISH, "will")),
    "message_expiry_interval": (0x02, "u32", (PUBLISH, "will")),
    "content_type": (0x03, "text", (PUBLISH, "will")),
    "response_topic": (0x08, "text", (PUBLISH, "will")),
    "correlation_data": (0x09, "binary", (PUBLISH, "will")),
    "subscription_identifier": (0x0B, "varint", (PUBLISH, SUBSCRIBE)),
    "session_expiry_interval": (0x11, "u32", (CONNECT, CONNACK, DISCONNECT)),
    "assigned_client_identifier": (0x12, "text", (CONNACK,)),
    "server_keep_alive": (0x13, "u16", (CONNACK,)),
    "authentication_method": (0x15, "text", (CONNECT, CONNACK, AUTH)),
    "authentication_data": (0x16, "binary", (CONNECT, CONNACK, AUTH)),
    "request_problem_information": (0x17, "byte", (CONNECT,)),
    "will_delay_interval": (0x18, "u32", ("will",)),
    "request_response_information": (0x19, "byte", (CONNECT,)),
    "response_information": (0x1A, "text", (CONNACK,)),
    "server_reference": (0x1C, "text", (CONNACK, DISCONNECT)),
    "reason_string": (0x1F, "text", (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)),
    "receive_maximum": (0x21, "u16", (CONNECT, CONNACK)),
    "topic_alias_maximum": (0x22, "u16", (CONNECT, CONNACK)),
    "topic_alias": (0x23, "u16", (PUBLISH,)),
    "maximum_qos": (0x24, "byte", (CONNACK,)),
    "retain_available": (0x25, "byte", (CONNACK,)),
    "user_property": (0x26, "pair", (CONNECT, CONNACK, PUBLISH, "will", PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE,
                                     SUBACK, UNSUBSCRIBE, UNSUBACK, DISCONNECT, AUTH)),
    "maximum_packet_size": (0x27, "u32", (CONNECT, CONNACK)),
    "wildcard_subscription_available": (0x28, "byte", (CONNACK,)),
    "subscription_identifier_available": (0x29, "byte", (CONNACK,)),
    "shared_subscription_available": (0x2A, "byte", (CONNACK,)),
}
PROPERTY_NAMES = {number: name for name, (number, _, _) in PROPERTIES.items()}

# MQTT 5.0 table 2-6 and the tables of each packet: the reason codes that a packet may carry
REASON_CODES: dict[int, frozenset[int]] = {
    CONNACK: frozenset([0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F]),
    PUBACK: frozenset([0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]),
    PUBREC: frozenset([0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]),
    PUBREL: frozenset([0x00, 0x92]),
    PUBCOMP: frozenset([0x00, 0x92]),
    SUBACK: frozenset([0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2]),
    UNSUBACK: frozenset([0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]),
    DISCONNECT: frozenset([0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90,
                           *range(0x93, 0xA3)]),
    AUTH: frozenset([0x00, 0x18, 0x19]),
}
SUBACK_311 = frozenset([0x00, 0x01, 0x02, 0x80])

Props = Mapping[str, Any] | Iterable[tuple[str, Any]]
Text = str | bytes


class Malformed(Exception):
    """The bytes are no packet of the specification; the text says why."""


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────

def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def varint(number: int) -> bytes:
    """Variable Byte Integer, section 1.5.5."""
    out = bytearray()
    while True:
        number, digit = divmod(number, 128)
        out.append(digit | (0x80 if number else 0))
        if not number:
            return bytes(out)


def binary(data: bytes) -> bytes:
    return u16(len(data)) + data


def text(value: Text) -> bytes:
    """A UTF-8 Encoded String; bytes and lone surrogates go out as they are."""
    return binary(value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass"))


def pairs(properties: Props) -> list[tuple[str, Any]]:
    """Every property on its own, in order; a list as a value is a property repeated."""
    items = properties.items() if isinstance(properties, Mapping) else properties
    return [(name, one) for name, value in items for one in (value if isinstance(value, list) else [value])]


def encode_property(name: str, value: Any) -> bytes:
    if name == "raw":
        return bytes(value)
    number, kind, _ = PROPERTIES[name]
    if kind == "pair":
        return varint(number) + text(value[0]) + text(value[1])
    sizes = {"byte": 1, "u16": 2, "u32": 4}
    if kind in sizes:
        return varint(number) + int(value).to_bytes(sizes[kind], "big")
    return varint(number) + {"text": text, "binary": binary, "varint": varint}[kind](value)


def encode_properties(properties: Props, length: int | None = None) -> bytes:
    body = b"".join(encode_property(name, value) for name, value in pairs(properties))
    return varint(len(body) if length is None else length) + body


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────

class Reader:
    """Takes fields off the front of a packet's body; raises Malformed where one is cut short."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        if count > len(self.data):
            raise Malformed(f"{count} bytes wanted, {len(self.data)} left")
        head, self.data = self.data[:count], self.data[count:]
        return head

    def uint(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def varint(self) -> int:
        value = 0
        for position in range(4):
            digit = self.uint(1)
            value |= (digit & 0x7F) << (7 * position)
            if not digit & 0x80:
                if position and digit == 0:
                    raise Malformed("a Variable Byte Integer longer than it need be")
                return value
        raise Malformed("a Variable Byte Integer of more than four bytes")

    def binary(self) -> bytes:
        return self.take(self.uint(2))

    def text(self) -> str:
        raw = self.binary()
        try:
            value = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"not UTF-8: {raw!r}") from error
        if "\0" in value:
            raise Malformed("U+0000 in a UTF-8 Encoded String")
        return value

    def rest(self) -> bytes:
        return self.take(len(self.data))

    def packet_id(self) -> int:
        number = self.uint(2)
        if not number:
            raise Malformed("Packet Identifier 0")
        return number

    def properties(self, where: int | str) -> list[tuple[str, Any]]:
        block = Reader(self.take(self.varint()))
        found: list[tuple[str, Any]] = []
        while block.data:
            number = block.varint()
            if number not in PROPERTY_NAMES:
                raise Malformed(f"unknown property {number:#x}")
            name = PROPERTY_NAMES[number]
            _, kind, packets = PROPERTIES[name]
            if where not in packets:
                raise Malformed(f"property {name} in packet {where}")
            repeatable = name == "user_property" or (name == "subscription_identifier" and where == PUBLISH)
            if not repeatable and any(name == other for other, _ in found):
                raise Malformed(f"property {name} twice")
            found.append((name, block.property_value(kind)))
        return found

    def property_value(self, kind: str) -> Any:
        match kind:
            case "byte":
                return self.uint(1)
            case "u16":
                return self.uint(2)
            case "u32":
                return self.uint(4)
            case "varint":
                return self.varint()
            case "text":
                return self.text()
            case "binary":
                return self.binary()
            case _:
                return self.text(), self.text()


# ── packets ──────────────────────────────────────────────────────────────────────────────────────────────

@dataclass(kw_only=True)
class Packet:
    """What all packets have. `encode` writes it for a version, `parse` (below) reads one."""

    kind: ClassVar[int]
    fixed_flags: ClassVar[int] = 0

    properties: Props = ()
    flags: int | None = field(default=None, repr=False)
    length: bytes | None = field(default=None, repr=False)
    properties_length: int | None = field(default=None, repr=False)
    tail: bytes = field(default=b"", repr=False)

    def prop(self, name: str, default: Any = None) -> Any:
        """The first property of this name."""
        return next((value for other, value in pairs(self.properties) if other == name), default)

    def props(self, name: str) -> list[Any]:
        """All properties of this name, in order."""
        return [value for other, value in pairs(self.properties) if other == name]

    def encode(self, version: int = V5) -> bytes:
        body = self.body(version) + self.tail
        flags = self.fixed_flags if self.flags is None else self.flags
        return bytes([self.kind << 4 | flags]) + (varint(len(body)) if self.length is None else self.length) + body

    def encoded_properties(self, version: int) -> bytes:
        return encode_properties(self.properties, self.properties_length) if version == V5 else b""

    def body(self, version: int) -> bytes:
        return b""

    @classmethod
    def read(cls, body: Reader, flags: int, version: int) -> Packet:
        return cls()

    def __repr__(self) -> str:
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)
                 if f.repr and getattr(self, f.name) not in (None, False, (), [], {}, b"")]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(kw_only=True)
class Will:
    topic: Text
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Props = ()


@dataclass(kw_only=True, repr=False)
class Connect(Packet):
    kind = CONNECT

    client_id: Text = ""
    clean_start: bool = True                 # Clean Session in 3.1.1
    keep_alive: int = 60
    will: Will | None = None
    username: Text | None = None
    password: bytes | None = None
    protocol_name: Text = "MQTT"
    protocol_level: int | None = None        # the version, unless given
    connect_flags: int | None = None         # computed from the fields, unless given

    def body(self, version: int) -> bytes:
        flags, payload = self.clean_start << 1, text(self.client_id)
        if self.will is not None:
            flags |= 0x04 | self.will.qos << 3 | self.will.retain << 5
            payload += encode_properties(self.will.properties) if version == V5 else b""
            payload += text(self.will.topic) + binary(self.will.payload)
        if self.username is not None:
            flags |= 0x80
            payload += text(self.username)
        if self.password is not None:
            flags |= 0x40
            payload += binary(self.password)
        return (text(self.protocol_name) + bytes([version if self.protocol_level is None else self.protocol_level])
                + bytes([flags if self.connect_flags is None else self.connect_flags])
                + u16(self.keep_alive) + self.encoded_properties(version) + payload)

    @classmethod
    def read(cls, body: Reader, flags: int, version: int) -> Connect:
        packet = cls(protocol_name=body.text(), protocol_level=body.uint(1), connect_flags=body.uint(1),
                     keep_alive=body.uint(2))
        bits = packet.connect_flags
        assert bits is not None
        if bits & 1:
            raise Malformed("reserved connect flag")
        packet.clean_start = bool(bits & 0x02)
        packet.properties = body.properties(CONNECT) if version == V5 else ()
        packet.client_id = body.text()
        if bits & 0x04:
            if bits >> 3 & 3 == 3:
                raise Malformed("Will QoS 3")
            properties = body.properties("will") if version == V5 else ()
            packet.will = Will(topic=body.text(), payload=body.binary(), qos=bits >> 3 & 3, retain=bool(bits & 0x20),
                               properties=properties)
        elif bits & 0x38:
            raise Malformed("Will QoS or Will Retain without a will")
        packet.username = body.text() if bits & 0x80 else None
        packet.password = body.binary() if bits & 0x40 else None
        return packet


@dataclass(kw_only=True, repr=False)
class Connack(Packet):
    kind = CONNACK

    session_present: bool = False
    reason: int = 0                          # Connect Return code in 3.1.1

    def body(self, version: int) -> bytes:
        return bytes([self.session_present, self.reason]) + self.encoded_properties(version)

    @classmethod
    def read(cls, body: Reader, flags: int, version: int) -> Connack:
        present, reason = body.uint(1), body.uint(1)
        if present > 1:
            raise Malformed(f"reserved bits in the Connect Acknowledge Flags: {present:#04x}")
        if reason not in (REASON_CODES[CONNACK] if version == V5 else range(6)):
            raise Malformed(f"no CONNACK code: {reason:#04x}")
        if reason and present:
            raise Malformed("Session Present with a refusal")
        return cls(session_present=bool(present), reason=reason,
                   properties=body.properties(CONNACK) if version == V5 else ())


@dataclass(kw_only=True, repr=False)
class Publish(Packet):
    kind = PUBLISH

    topic: Text
    payload: bytes = b""
    qos: int = 0
    packet_id: int | None = None
    retain: bool = False
    dup: bool = False

    def encode(self, version: int = V5) -> bytes:
        self.fixed_flags = self.dup << 3 | self.qos << 1 | self.retain       # type: ignore[misc]
        return super().encode(version)

    def body(self, version: int) -> bytes:
        packet_id = b"" if self.packet_id is None else u16(self.packet_id)
        return text(self.topic) + packet_id + self.encoded_properties(version) + self.payload

    @classmethod
    def read(cls, body: Reader, flags: int, version: int) -> Publish:
        qos = flags >> 1 & 3
        if qos == 3:
            raise Malformed("QoS 3")
        if not qos and flags & 8:
            raise Malformed("DUP at QoS 0")
        topic = body.text()
        if "+" in topic or "#" in topic:
            raise Malformed(f"wildcard in the Topic Name {topic!r}")
        packet_id = body.packet_id() if qos else None
        properties = body.properties(PUBLISH) if version == V5 else []
        if not topic and not any(name == "topic_alias" for name, _ in properties):
            raise Malformed("empty Topic Name without a Topic Alias")
        return cls(topic=topic, payload=body.rest(), qos=qos, packet_id=packet_id, retain=bool(flags & 1),
                   dup=bool(flags & 8), properties=properties)


@dataclass(kw_only=True, repr=False)
class _Ack(Packet):
    """PUBACK, PUBREC, PUBREL and PUBCOMP. Built in the shortest form that says everything, as section 3.4.2 allows."""

    packet_id: int
    reason: int = 0

    def body(self, version: int) -> bytes:
        if version != V5 or (not self.reason and not self.properties and self.properties_length is None):
            return u16(self.packet_id)
        if not self.properties and self.properties_length is None:
            return u16(self.packet_id) + bytes([self.reason])
        return u16(self.packet_id) + bytes([self.reason]) + self.encoded_properties(version)

    @classmethod
    def read(cls, body: Reader, flags: int, version: int) -> _Ack:
        packet = cls(packet_id=body.packet_id())
        if version == V5 and body.data:
            packet.reason = body.uint(1)
            packet.properties = body.properties(cls.kind) if body.data else ()
        if packet.reason not in REASON_CODES[cls.kind]:
            raise Malformed(f"no {cls.__name__.upper()} code: {packet.reason:#04x}")
        return packet


class Puback(_Ack):
    kind = PUBACK


class Pubrec(_Ack):
    kind = PUBREC


class Pubrel(_Ack):
    kind = PUBREL
    fixed_flags = 2


class Pubcomp(_Ack):
    kind = PUBCOMP


def options(qos: int = 0, *, no_local: bool = False, retain_as_published: bool = False,
            retain_handling: int = 0) -> int:
    """The Subscription Options byte, section 3.8.3.1."""
    return qos | no_local << 2 | retain_as_published << 3 | retain_handling << 4


@dataclass(kw_only=True, repr=False)
class Subscribe(Packet):
    kind = SUBSCRIBE
    fixed_flags = 2

    packet_id: int
    filters: list[tuple[Text, int]]          # Topic Filter, Subscription Options (Requested QoS in 3.1.1)

    def body(self, version: int) -> bytes:
        wanted = b"".join(text(name) + bytes([bits]) for name, bits in self.filters)
        return u16(self.packet_id) + self.encoded_properties(version) + wanted

    @classmethod
    def read(cls, body: Reader, flags: int, version: int) -> Subscribe:
        packet_id = body.packet_id()
        properties = body.properties(SUBSCRIBE) if version == V5 else ()
        filters: list[tuple[Text, int]] = []
        while body.data:
            filters.append((body.text(), body.uint(1)))
            bits = filters[-1][1]
            if bits & 3 == 3 or bits & (0xC0 if version == V5 else 0xFC) or bits & 0x30 == 0x30:
                raise Malformed(f"Subscription Options {bits:#04x}")
        if not filters:
            raise Malformed("SUBSCRIBE without a Topic Filter")
        return cls(packet_id=packet_id, filters=filters, properties=properties)


@dataclass(kw_only=True, repr=False)
class Suback(Packet):
    kind = SUBACK

    packet_id: int
    reasons: list[int]

    def body(self, version: int) -> bytes:
        return u16(self.packet_id) + self.encoded_properties(version) + bytes(self.reasons)

    @classmethod
    def read(cls, body: Reader, flags: int, version: int) -> Suback:
        packet_id = body.packet_id()
        properties = body.properties(SUBACK) if version == V5 else ()
        reasons = list(body.rest())
        if not reasons or not set(reasons) <= (REASON_CODES[SUBACK] if version == V5 else SUBACK_311):
            raise Malformed(f"no SUBACK codes: {reasons}")
        return cls(packet_id=packet_id, reasons=reasons, properties=properties)


@dataclass(kw_only=True, repr=False)
class Unsubscribe(Packet):
    kind = UNSUBSCRIBE
    fixed_flags = 2

    packet_id: int
    filters: list[Text]

    def body(self, version: int) -> bytes:
        return u16(self.packet_id) + self.encoded_properties(version) + b"".join(text(name) for name in self.filters)

    @classmethod
    def read(cls, body: Reader, flags: int, version: int) -> Unsubscribe:
        packet_id = body.packet_id()
        properties = body.properties(UNSUBSCRIBE) if version == V5 else ()
        filters: list[Text] = []
        while body.data:
            filters.append(body.text())
        if not filters:
            raise Malformed("UNSUBSCRIBE without a Topic Filter")
        return cls(packet_id=packet_id, filters=filters, properties=properties)


@dataclass(kw_only=True, repr=False)
class Unsuback(Packet):
    kind = UNSUBACK

    packet_id: int
    reasons: list[int] = field(default_factory=list)         # none in 3.1.1

    def body(self, version: int) -> bytes:
        return u16(self.packet_id) + (self.encoded_properties(version) + bytes(self.reasons) if version == V5 else b"")

    @classmethod
    def read(cls, body: Reader, flags: int, version: int) -> Unsuback:
        packet_id = body.packet_id()
        if version != V5:
            return cls(packet_id=packet_id)
        properties, reasons = body.properties(UNSUBACK), list(body.rest())
        if not reasons or not set(reasons) <= REASON_CODES[UNSUBACK]:
            raise Malformed(f"no UNSUBACK codes: {reasons}")
        return cls(packet_id=packet_id, reasons=reasons, properties=properties)


class Pingreq(Packet):
    kind = PINGREQ


class Pingresp(Packet):
    kind = PINGRESP


@dataclass(kw_only=True, repr=False)
class _Reasoned(Packet):
    """DISCONNECT and AUTH: a reason and properties, both absent when there is nothing to say."""

    reason: int = 0

    def body(self, version: int) -> bytes:
        if version != V5 or (not self.reason and not self.properties and self.properties_length is None):
            return b""
        return bytes([self.reason]) + (self.encoded_properties(version)
                                       if self.properties or self.properties_length is not None else b"")

    @classmethod
    def read(cls, body: Reader, flags: int, version: int) -> _Reasoned:
        packet = cls()
        if version == V5 and body.data:
            packet.reason = body.uint(1)
            packet.properties = body.properties(cls.kind) if body.data else ()
        if packet.reason not in REASON_CODES[cls.kind]:
            raise Malformed(f"no {cls.__name__.upper()} code: {packet.reason:#04x}")
        return packet


class Disconnect(_Reasoned):
    kind = DISCONNECT


class Auth(_Reasoned):
    kind = AUTH


PACKETS: dict[int, type[Packet]] = {
    cls.kind: cls for cls in (Connect, Connack, Publish, Puback, Pubrec, Pubrel, Pubcomp, Subscribe, Suback,
                              Unsubscribe, Unsuback, Pingreq, Pingresp, Disconnect, Auth)}


def parse(data: bytes, version: int = V5) -> tuple[Packet, bytes] | None:
    """The first packet of data and the bytes after it; None when it is not all there. Raises Malformed."""
    length = position = 0
    for position in range(1, 5):
        if position >= len(data):
            return None
        length |= (data[position] & 0x7F) << 7 * (position - 1)
        if not data[position] & 0x80:
            break
    else:
        raise Malformed("a Remaining Length of more than four bytes")
    if position > 1 and data[position] == 0:
        raise Malformed("a Remaining Length longer than it need be")
    start = position + 1
    if len(data) < start + length:
        return None
    kind, flags = data[0] >> 4, data[0] & 0x0F
    if kind == 0 or (kind == AUTH and version != V5):
        raise Malformed(f"packet type {kind}")
    cls = PACKETS[kind]
    if cls is not Publish and flags != cls.fixed_flags:
        raise Malformed(f"flags {flags:#06b} in {cls.__name__.upper()}")
    body = Reader(data[start:start + length])
    packet = cls.read(body, flags, version)
    if body.data:
        raise Malformed(f"{len(body.data)} bytes after the last field of {packet!r}")
    return packet, data[start + length:]


__all__ = [
    "AUTH", "CONNACK", "CONNECT", "DISCONNECT", "NEVER", "PINGREQ", "PINGRESP", "PROPERTIES", "PUBACK", "PUBCOMP",
    "PUBLISH", "PUBREC", "PUBREL", "REASON_CODES", "SUBACK", "SUBSCRIBE", "UNSUBACK", "UNSUBSCRIBE", "V5", "V311",
    "Auth", "Connack", "Connect", "Disconnect", "Malformed", "Packet", "Pingreq", "Pingresp", "Puback", "Pubcomp",
    "Publish", "Pubrec", "Pubrel", "Reader", "Suback", "Subscribe", "Unsuback", "Unsubscribe", "Will", "binary",
    "encode_properties", "encode_property", "options", "pairs", "parse", "text", "u16", "varint",
]
