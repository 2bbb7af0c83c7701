"""Naive codec of AMQP 0-9-1, from the specification's facts: builds anything, also what is malformed, and parses
strictly.

It shares nothing with the broker's codec. A method is its name and a dict of arguments, named as the specification
names them, with `_` for `-`:

    encode_method("queue.declare", queue="q", durable=True) → payload of a method frame; what is not given is zero
    decode_method(payload) → ("queue.declare-ok", {"queue": "q", "message_count": 0, "consumer_count": 0})

A value of a field table is a plain Python value, or Field(kind, value) where its type on the wire matters.
"""
from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "BODY", "FRAME_END", "HEADER", "HEARTBEAT", "METHOD", "METHODS", "PROPERTIES", "PROTOCOL", "Content", "Field",
    "Frame", "Malformed", "decode_header", "decode_method", "decode_table", "encode_frame", "encode_header",
    "encode_method", "encode_table",
]

PROTOCOL = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE

# Types of arguments: bit, octet, short (h), long (l), long long (q), short string (s), long string (S), table (t)
METHODS: dict[str, tuple[int, int, str]] = {
    "connection.start": (10, 10, "version_major:o version_minor:o server_properties:t mechanisms:S locales:S"),
    "connection.start-ok": (10, 11, "client_properties:t mechanism:s response:S locale:s"),
    "connection.secure": (10, 20, "challenge:S"),
    "connection.secure-ok": (10, 21, "response:S"),
    "connection.tune": (10, 30, "channel_max:h frame_max:l heartbeat:h"),
    "connection.tune-ok": (10, 31, "channel_max:h frame_max:l heartbeat:h"),
    "connection.open": (10, 40, "virtual_host:s reserved_1:s reserved_2:b"),
    "connection.open-ok": (10, 41, "reserved_1:s"),
    "connection.close": (10, 50, "reply_code:h reply_text:s class_id:h method_id:h"),
    "connection.close-ok": (10, 51, ""),
    "connection.blocked": (10, 60, "reason:s"),
    "connection.unblocked": (10, 61, ""),
    "connection.update-secret": (10, 70, "new_secret:S reason:s"),
    "connection.update-secret-ok": (10, 71, ""),
    "channel.open": (20, 10, "reserved_1:s"),
    "channel.open-ok": (20, 11, "reserved_1:S"),
    "channel.flow": (20, 20, "active:b"),
    "channel.flow-ok": (20, 21, "active:b"),
    "channel.close": (20, 40, "reply_code:h reply_text:s class_id:h method_id:h"),
    "channel.close-ok": (20, 41, ""),
    "exchange.declare": (40, 10,
                         "reserved_1:h exchange:s type:s passive:b durable:b auto_delete:b internal:b no_wait:b "
                                 "arguments:t"),
    "exchange.declare-ok": (40, 11, ""),
    "exchange.delete": (40, 20, "reserved_1:h exchange:s if_unused:b no_wait:b"),
    "exchange.delete-ok": (40, 21, ""),
    "exchange.bind": (40, 30, "reserved_1:h destination:s source:s routing_key:s no_wait:b arguments:t"),
    "exchange.bind-ok": (40, 31, ""),
    "exchange.unbind": (40, 40, "reserved_1:h destination:s source:s routing_key:s no_wait:b arguments:t"),
    "exchange.unbind-ok": (40, 51, ""),
    "queue.declare": (50, 10,
                      "reserved_1:h queue:s passive:b durable:b exclusive:b auto_delete:b no_wait:b arguments:t"),
    "queue.declare-ok": (50, 11, "queue:s message_count:l consumer_count:l"),
    "queue.bind": (50, 20, "reserved_1:h queue:s exchange:s routing_key:s no_wait:b arguments:t"),
    "queue.bind-ok": (50, 21, ""),
    "queue.purge": (50, 30, "reserved_1:h queue:s no_wait:b"),
    "queue.purge-ok": (50, 31, "message_count:l"),
    "queue.delete": (50, 40, "reserved_1:h queue:s if_unused:b if_empty:b no_wait:b"),
    "queue.delete-ok": (50, 41, "message_count:l"),
    "queue.unbind": (50, 50, "reserved_1:h queue:s exchange:s routing_key:s arguments:t"),
    "queue.unbind-ok": (50, 51, ""),
    "basic.qos": (60, 10, "prefetch_size:l prefetch_count:h global:b"),
    "basic.qos-ok": (60, 11, ""),
    "basic.consume": (60, 20, "reserved_1:h queue:s consumer_tag:s no_local:b no_ack:b exclusive:b no_wait:b "
                              "arguments:t"),
    "basic.consume-ok": (60, 21, "consumer_tag:s"),
    "basic.cancel": (60, 30, "consumer_tag:s no_wait:b"),
    "basic.cancel-ok": (60, 31, "consumer_tag:s"),
    "basic.publish": (60, 40, "reserved_1:h exchange:s routing_key:s mandatory:b immediate:b"),
    "basic.return": (60, 50, "reply_code:h reply_text:s exchange:s routing_key:s"),
    "basic.deliver": (60, 60, "consumer_tag:s delivery_tag:q redelivered:b exchange:s routing_key:s"),
    "basic.get": (60, 70, "reserved_1:h queue:s no_ack:b"),
    "basic.get-ok": (60, 71, "delivery_tag:q redelivered:b exchange:s routing_key:s message_count:l"),
    "basic.get-empty": (60, 72, "reserved_1:s"),
    "basic.ack": (60, 80, "delivery_tag:q multiple:b"),
    "basic.reject": (60, 90, "delivery_tag:q requeue:b"),
    "basic.recover-async": (60, 100, "requeue:b"),
    "basic.recover": (60, 110, "requeue:b"),
    "basic.recover-ok": (60, 111, ""),
    "basic.nack": (60, 120, "delivery_tag:q multiple:b requeue:b"),
    "confirm.select": (85, 10, "no_wait:b"),
    "confirm.select-ok": (85, 11, ""),
    "tx.select": (90, 10, ""),
    "tx.select-ok": (90, 11, ""),
    "tx.commit": (90, 20, ""),
    "tx.commit-ok": (90, 21, ""),
    "tx.rollback": (90, 30, ""),
    "tx.rollback-ok": (90, 31, ""),
}
NAMES = {(class_id, method_id): name for name, (class_id, method_id, _) in METHODS.items()}

# In the order of their flags, from bit 15 downwards; T is a timestamp
PROPERTIES = {"content_type": "s", "content_encoding": "s", "headers": "t", "delivery_mode": "o", "priority": "o",
              "correlation_id": "s", "reply_to": "s", "expiration": "s", "message_id": "s", "timestamp": "q",
              "type": "s", "user_id": "s", "app_id": "s", "cluster_id": "s"}

NUMBERS = {"o": ">B", "h": ">H", "l": ">I", "q": ">Q"}
# Of field tables, as RabbitMQ and every client of today write them (the specification's own letters differ). L is how
# py-amqp writes large integers; RabbitMQ reads it, and writes l where it writes a table anew.
FIELD_NUMBERS = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q", "f": ">f",
                 "d": ">d", "T": ">Q"}


class Malformed(AssertionError):
    """The broker sent what it must not."""


@dataclass(frozen=True)
class Field:
    """A value of a field table with its type on the wire."""

    kind: str
    value: Any


@dataclass
class Frame:
    """kind: METHOD, HEADER, BODY, HEARTBEAT."""

    kind: int
    channel: int
    payload: bytes


@dataclass
class Content:
    """A method that carries a message: basic.deliver, basic.return, basic.get-ok."""

    method: str
    arguments: dict[str, Any]
    properties: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    raw_header: bytes = b""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.arguments[name]
        except KeyError:
            raise AttributeError(name) from None


class Reader:
    """Takes from the front of bytes; what is missing is Malformed."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.raw):
            raise Malformed(f"{size} bytes wanted at {self.at} of {self.raw!r}")
        self.at += size
        return self.raw[self.at - size:self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def argument(self, kind: str) -> Any:
        if kind == "s":
            raw = self.take(self.number(">B"))
            try:
                return raw.decode()
            except UnicodeDecodeError:
                raise Malformed(f"a short string that is not UTF-8: {raw!r}") from None
        if kind == "S":
            return self.take(self.number(">I"))
        if kind == "t":
            return self.table()
        return self.number(NUMBERS[kind])

    def table(self) -> dict[str, Field]:
        inner = Reader(self.take(self.number(">I")))
        found: dict[str, Field] = {}
        while inner.at < len(inner.raw):
            name = inner.argument("s")
            found[name] = inner.value()
        return found

    def value(self) -> Field:
        kind = chr(self.number(">B"))
        if kind in FIELD_NUMBERS:
            return Field(kind, self.number(FIELD_NUMBERS[kind]))
        if kind == "t":
            return Field(kind, self.number(">B") != 0)
        if kind == "D":
            return Field(kind, (self.number(">B"), self.number(">I")))
        if kind in "Sx":
            return Field(kind, self.take(self.number(">I")))
        if kind == "A":
            inner = Reader(self.take(self.number(">I")))
            items = []
            while inner.at < len(inner.raw):
                items.append(inner.value())
            return Field(kind, items)
        if kind == "F":
            return Field(kind, self.table())
        if kind == "V":
            return Field(kind, None)
        raise Malformed(f"a field of type {kind!r}")

    def end(self) -> None:
        if self.at != len(self.raw):
            raise Malformed(f"{len(self.raw) - self.at} bytes too many in {self.raw!r}")


def encode_value(value: Any) -> bytes:
    if isinstance(value, Field):
        return value.kind.encode() + _encode_field(value.kind, value.value)
    for type_, kind in ((bool, "t"), (float, "d"), (str, "S"), (bytes, "x"), (dict, "F"), (list, "A"),
                        (type(None), "V")):
        if isinstance(value, type_):
            return encode_value(Field(kind, value))
    return encode_value(Field("I" if -2**31 <= value < 2**31 else "l", value))


def _encode_field(kind: str, value: Any) -> bytes:
    if kind in FIELD_NUMBERS:
        return struct.pack(FIELD_NUMBERS[kind], value)
    if kind == "t":
        return bytes([value])
    if kind == "D":
        return struct.pack(">BI", *value)
    if kind in "Sx":
        raw = value.encode() if isinstance(value, str) else value
        return struct.pack(">I", len(raw)) + raw
    if kind == "A":
        items = b"".join(encode_value(item) for item in value)
        return struct.pack(">I", len(items)) + items
    return encode_table(value) if kind == "F" else b""


def encode_table(table: dict[str, Any]) -> bytes:
    inner = b"".join(_encode_argument("s", name) + encode_value(value) for name, value in table.items())
    return struct.pack(">I", len(inner)) + inner


def plain(value: Any) -> Any:
    """A Field, or a dict or list of them, without the types; long strings as text where they are UTF-8."""
    if isinstance(value, Field):
        return plain(value.value)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def decode_table(raw: bytes) -> dict[str, Field]:
    reader = Reader(raw)
    table = reader.table()
    reader.end()
    return table


def _encode_argument(kind: str, value: Any) -> bytes:
    if kind in "sS":
        raw = value.encode() if isinstance(value, str) else value
        return struct.pack(">B" if kind == "s" else ">I", len(raw)) + raw
    return encode_table(value) if kind == "t" else struct.pack(NUMBERS[kind], value)


ZERO: dict[str, Any] = {"s": "", "S": b"", "t": {}}


def encode_method(method: str, **arguments: Any) -> bytes:
    class_id, method_id, signature = METHODS[method]
    made = struct.pack(">HH", class_id, method_id)
    bits: list[bool] = []
    for name, kind in _arguments(signature):
        value = arguments.pop(name, ZERO.get(kind, 0))
        if kind == "b":
            bits.append(bool(value))
            continue
        made += _pack_bits(bits) + _encode_argument(kind, value)
        bits = []
    assert not arguments, f"{method} has no {arguments}"
    return made + _pack_bits(bits)


def decode_method(payload: bytes) -> tuple[str, dict[str, Any]]:
    """Tables come without the types of their values; what else is in the bytes must be exact."""
    reader = Reader(payload)
    number = reader.number(">H"), reader.number(">H")
    if number not in NAMES:
        raise Malformed(f"there is no method {number}")
    name = NAMES[number]
    found: dict[str, Any] = {}
    bit = 8
    octet = 0
    for argument, kind in _arguments(METHODS[name][2]):
        if kind != "b":
            value, bit = reader.argument(kind), 8
            found[argument] = plain(value) if kind == "t" else value
            continue
        if bit == 8:
            octet, bit = reader.number(">B"), 0
        found[argument] = bool(octet >> bit & 1)
        bit += 1
    reader.end()
    return name, found


def _arguments(signature: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, _, kind in (argument.partition(":") for argument in signature.split())]


def _pack_bits(bits: list[bool]) -> bytes:
    return bytes([sum(bit << number for number, bit in enumerate(bits))]) if bits else b""


def encode_header(size: int, properties: dict[str, Any] | None = None, *, class_id: int = 60, weight: int = 0) -> bytes:
    """A content header's payload."""
    given = dict(properties or {})
    flags, made = 0, b""
    for number, (name, kind) in enumerate(PROPERTIES.items()):
        if name in given:
            flags |= 1 << 15 - number
            made += _encode_argument(kind, given.pop(name))
    assert not given, f"there are no properties {given}"
    return struct.pack(">HHQH", class_id, weight, size, flags) + made


def decode_header(payload: bytes) -> tuple[int, dict[str, Any]]:
    """(size of the body, properties); headers with their types."""
    reader = Reader(payload)
    class_id, weight, size, flags = (reader.number(form) for form in (">H", ">H", ">Q", ">H"))
    if class_id != 60 or weight != 0 or flags & 3:
        raise Malformed(f"content header {payload!r}")
    found = {name: reader.argument(kind) for number, (name, kind) in enumerate(PROPERTIES.items())
             if flags >> 15 - number & 1}
    reader.end()
    return size, found


def encode_frame(kind: int, channel: int, payload: bytes, *, end: int = FRAME_END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])
