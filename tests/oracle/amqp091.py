"""Naive codec of AMQP 0-9-1, from the specification's facts: reads and writes the slow way, builds anything, also what
is malformed, and parses strictly.

It shares nothing with the broker's codec, so that the two can disagree. Two levels:

Trees hide nothing (parse_*, build_*, arguments). A table is a list of (name, value) in the order of the wire, a name
bytes, a value a pair (letter, what it holds):

    integers, t, T   int                f d     int, the bits          S x    bytes
    D                (places, int)      V       None                   A      list of values      F    a table

The bytes of a table never have its length before them, as everywhere in the codec.

Plain Python (encode_*, decode_*). A method is its name and a dict of arguments, named as the specification names them,
with `_` for `-`:

    encode_method("queue.declare", queue="q", durable=True) → payload of a method frame; what is not given is zero
    decode_method(payload) → ("queue.declare-ok", {"queue": "q", "message_count": 0, "consumer_count": 0})

A table is a dict; a value of it is Field(letter, value) where its type on the wire matters.
"""
from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

__all__ = [
    "BODY", "DEPTH_MAX", "FRAME_END", "HEADER", "HEARTBEAT", "METHOD", "METHODS", "NAMES", "PROPERTIES", "PROTOCOL",
    "Content", "Field", "Frame", "Malformed", "Table", "Value", "arguments", "build_arguments", "build_properties",
    "build_table", "build_value", "decode_header", "decode_method", "depth_of", "encode_frame", "encode_header",
    "encode_method", "kinds_of", "parse_properties", "parse_table", "plain_properties", "repeats", "table_of",
]

Value = tuple[str, Any]
Table = list[tuple[bytes, Value]]

PROTOCOL = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE

# Arguments are of KINDS.
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
    "exchange.declare": (40, 10, "reserved_1:h exchange:s type:s passive:b durable:b auto_delete:b internal:b "
                                 "no_wait:b arguments:t"),
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

DEPTH_MAX = 128
FORMATS = {"t": ">B", "b": ">b", "B": ">B", "s": ">h", "u": ">H", "U": ">h", "I": ">i", "i": ">I", "l": ">q", "L": ">q",
           "T": ">Q", "f": ">I", "d": ">Q", "D": ">Bi"}
PROPERTIES = {
    "content_type": "shortstr", "content_encoding": "shortstr", "headers": "table", "delivery_mode": "octet",
    "priority": "octet", "correlation_id": "shortstr", "reply_to": "shortstr", "expiration": "shortstr",
    "message_id": "shortstr", "timestamp": "longlong", "type": "shortstr", "user_id": "shortstr", "app_id": "shortstr",
    "cluster_id": "shortstr",
}
KINDS = {"b": "bit", "o": "octet", "h": "short", "l": "long", "q": "longlong", "s": "shortstr", "S": "longstr",
         "t": "table"}
SIZES = {"octet": 1, "short": 2, "long": 4, "longlong": 8}


class Malformed(AssertionError):
    """What was parsed is not what the specification says."""


class Field(NamedTuple):
    """A value of a field table with its type on the wire; what is in it may be plain."""

    kind: str
    value: Any


class Frame(NamedTuple):
    """kind: METHOD, HEADER, BODY, HEARTBEAT."""

    kind: int
    channel: int
    payload: bytes


@dataclass
class Content:
    """A method that carries a message: basic.deliver, basic.return, basic.get-ok."""

    method: str
    arguments: dict[str, Any]
    properties: dict[str, Any]
    body: bytes
    raw_header: bytes

    def __getattr__(self, name: str) -> Any:
        try:
            return self.arguments[name]
        except KeyError:
            raise AttributeError(name) from None


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def octets(self, count: int) -> bytes:
        if count > self.left:
            raise Malformed(f"{count} bytes wanted, {self.left} left")
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.octets(size), "big")

    def shortstr(self) -> bytes:
        return self.octets(self.number(1))

    def longstr(self) -> bytes:
        return self.octets(self.number(4))

    def value(self, depth: int) -> Value:
        letter = chr(self.number(1))
        if letter in FORMATS:
            found = struct.unpack(FORMATS[letter], self.octets(struct.calcsize(FORMATS[letter])))
            return letter, found if letter == "D" else found[0]
        if letter == "V":
            return letter, None
        if letter not in "SxAF":
            raise Malformed(f"type {letter!r}")
        inner = self.longstr()
        if letter in "Sx":
            return letter, inner
        if depth == 0:
            raise Malformed("too deep")
        if letter == "F":
            return letter, parse_table(inner, depth - 1)
        items = Reader(inner)
        array = []
        while items.left:
            array.append(items.value(depth - 1))
        return letter, array


def parse_table(data: bytes, depth: int = DEPTH_MAX) -> Table:
    reader = Reader(data)
    found = []
    while reader.left:
        name = reader.shortstr()
        found.append((name, reader.value(depth)))
    return found


def build_value(value: Value) -> bytes:
    letter, held = value
    head = letter.encode()
    if letter in FORMATS:
        return head + struct.pack(FORMATS[letter], *(held if letter == "D" else (held,)))
    if letter == "V":
        return head
    if letter == "F":
        held = build_table(held)
    elif letter == "A":
        held = b"".join(map(build_value, held))
    return head + struct.pack(">I", len(held)) + held


def build_table(table: Table) -> bytes:
    return b"".join(bytes((len(name),)) + name + build_value(value) for name, value in table)


def repeats(table: Table) -> bool:
    """Whether a name stands twice in it, or in a table within it."""
    names = [name for name, _ in table]
    return len(set(names)) < len(names) or any(_repeats_within(value) for _, value in table)


def _repeats_within(value: Value) -> bool:
    letter, held = value
    return (letter == "F" and repeats(held)) or (letter == "A" and any(map(_repeats_within, held)))


def depth_of(value: Value) -> int:
    letter, held = value
    if letter == "F":
        return 1 + max((depth_of(inner) for _, inner in held), default=0)
    return 1 + max(map(depth_of, held), default=0) if letter == "A" else 0


# ── properties and arguments ─────────────────────────────────────────────────────────────────────────────────


def one(reader: Reader, kind: str) -> Any:
    if kind == "table":
        return parse_table(reader.longstr())
    if kind in SIZES:
        return reader.number(SIZES[kind])
    return reader.shortstr() if kind == "shortstr" else reader.longstr()


def built(kind: str, value: Any) -> bytes:
    if kind in SIZES:
        return int(value).to_bytes(SIZES[kind], "big")
    octets = build_table(value) if kind == "table" else value
    return len(octets).to_bytes(1 if kind == "shortstr" else 4, "big") + octets


def parse_properties(data: bytes) -> dict[str, Any]:
    """Names of properties that are there; text is bytes, headers a Table."""
    reader = Reader(data)
    flags = reader.number(2)
    if flags & 3:
        raise Malformed(f"flags {flags:#06x}")
    found = {name: one(reader, kind) for place, (name, kind) in enumerate(PROPERTIES.items())
             if flags >> 15 - place & 1}
    if reader.left:
        raise Malformed(f"{reader.left} bytes too many")
    return found


def plain_properties(data: bytes) -> dict[str, Any]:
    """The same as plain Python, for tests that look at a few of them: text as str, what is none with surrogates; a
    table as a dict, in which no name may stand twice; numbers without their letters."""
    return {name: _plain_table(found) if name == "headers" else _text(found) if isinstance(found, bytes) else found
            for name, found in parse_properties(data).items()}


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def _plain_table(table: Table) -> dict[str, Any]:
    found = {_text(name): _plain(value) for name, value in table}
    if len(found) < len(table):
        raise Malformed(f"a name stands twice: {[name for name, _ in table]}")
    return found


def _plain(value: Value) -> Any:
    letter, held = value
    if letter in "fd":
        return struct.unpack(f">{letter}", struct.pack(FORMATS[letter], held))[0]
    match letter:
        case "t":
            return held != 0
        case "D":
            return Decimal(held[1]).scaleb(-held[0])
        case "S":
            return _text(held)
        case "F":
            return _plain_table(held)
        case "A":
            return [_plain(inner) for inner in held]
    return held


def build_properties(properties: dict[str, Any]) -> bytes:
    flags = sum(1 << 15 - place for place, name in enumerate(PROPERTIES) if name in properties)
    return flags.to_bytes(2, "big") + b"".join(built(kind, properties[name]) for name, kind in PROPERTIES.items()
                                               if name in properties)


def arguments(kinds: list[str], data: bytes) -> list[Any]:
    """A method's arguments, of these kinds (a bit is a bool), and nothing behind them."""
    reader = Reader(data)
    found: list[Any] = []
    bits, place = 0, 8
    for kind in kinds:
        if kind == "bit":
            if place == 8:
                bits, place = reader.number(1), 0
            found.append(bool(bits >> place & 1))
            place += 1
        else:
            found.append(one(reader, kind))
            place = 8
    if reader.left:
        raise Malformed(f"{reader.left} bytes too many")
    return found


def build_arguments(kinds: list[str], values: list[Any]) -> bytes:
    out = bytearray()
    place = 8
    for kind, value in zip(kinds, values, strict=True):
        if kind == "bit":
            if place == 8:
                out.append(0)
                place = 0
            out[-1] |= bool(value) << place
            place += 1
        else:
            out += built(kind, value)
            place = 8
    return bytes(out)

# ── plain Python ─────────────────────────────────────────────────────────────────────────────────────────────


def table_of(table: dict[str, Any]) -> Table:
    return [(name.encode(), _tree(value)) for name, value in table.items()]


def _tree(value: Any) -> Value:
    if isinstance(value, Field):
        letter, value = value
    else:
        letter = next((letter for type_, letter in (
            (bool, "t"), (float, "d"), (str, "S"), (bytes, "x"), (dict, "F"), (list, "A"), (type(None), "V"))
            if isinstance(value, type_)), None) or ("I" if -2**31 <= value < 2**31 else "l")
    if letter == "F":
        return letter, table_of(value)
    if letter == "A":
        return letter, [_tree(inner) for inner in value]
    if letter in "fd":
        return letter, int.from_bytes(struct.pack(f">{letter}", value), "big")
    return letter, value.encode() if isinstance(value, str) else value


def _wire(kind: str, value: Any) -> Any:
    """An argument or property, as its tree."""
    return table_of(value) if kind == "table" else value.encode() if isinstance(value, str) else value


def _read(kind: str, value: Any) -> Any:
    """Back again: tables without the types of their values, short strings as text."""
    if kind != "shortstr":
        return _plain_table(value) if kind == "table" else value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Malformed(f"a short string that is not UTF-8: {value!r}") from None


def _fields(method: str) -> dict[str, str]:
    """Its arguments and their kinds."""
    return {name: KINDS[kind] for name, _, kind in (one.partition(":") for one in METHODS[method][2].split())}


def kinds_of(method: str) -> list[str]:
    return list(_fields(method).values())


def encode_method(method: str, **given: Any) -> bytes:
    fields, zero = _fields(method), {"shortstr": b"", "longstr": b"", "table": {}}
    assert given.keys() <= fields.keys(), f"{method} has no {given.keys() - fields.keys()}"
    return struct.pack(">HH", *METHODS[method][:2]) + build_arguments(kinds_of(method), [
        _wire(kind, given.get(name, zero.get(kind, 0))) for name, kind in fields.items()])


def decode_method(payload: bytes) -> tuple[str, dict[str, Any]]:
    number = struct.unpack(">HH", Reader(payload).octets(4))
    if number not in NAMES:
        raise Malformed(f"there is no method {number}")
    fields = _fields(NAMES[number])
    return NAMES[number], {name: _read(kind, value) for (name, kind), value in zip(
        fields.items(), arguments(kinds_of(NAMES[number]), payload[4:]), strict=True)}


def encode_header(size: int, properties: dict[str, Any] | None = None, *, class_id: int = 60, weight: int = 0) -> bytes:
    """A content header's payload."""
    given = properties or {}
    assert given.keys() <= PROPERTIES.keys(), f"there are no properties {given.keys() - PROPERTIES.keys()}"
    return struct.pack(">HHQ", class_id, weight, size) + build_properties(
        {name: _wire(PROPERTIES[name], value) for name, value in given.items()})


def decode_header(payload: bytes) -> tuple[int, dict[str, Any]]:
    """(size of the body, properties)."""
    class_id, weight, size = struct.unpack(">HHQ", Reader(payload).octets(12))
    if class_id != 60 or weight != 0:
        raise Malformed(f"content header {payload!r}")
    return size, {name: _read(PROPERTIES[name], value) for name, value in parse_properties(payload[12:]).items()}


def encode_frame(kind: int, channel: int, payload: bytes, *, end: int = FRAME_END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])
