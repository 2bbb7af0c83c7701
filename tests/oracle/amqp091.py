"""AMQP 0-9-1 fields, read and written the slow way: field tables as trees that hide nothing, property lists, methods.

It shares nothing with the broker's codec, so that the two can disagree. A table is a list of (name, value) in the order
of the wire, a name bytes, a value a pair (letter, what it holds):

    integers, t, T   int                f d     int, the bits          S x    bytes
    D                (places, int)      V       None                   A      list of values      F    a table

The bytes of a table never have its length before them, as everywhere in the codec.
"""
from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

__all__ = ["DEPTH_MAX", "PROPERTIES", "Malformed", "Table", "Value", "arguments", "build_arguments", "build_properties",
           "build_table", "build_value", "depth_of", "parse_properties", "parse_table", "plain_properties", "repeats"]

Value = tuple[str, Any]
Table = list[tuple[bytes, Value]]

DEPTH_MAX = 128
FORMATS = {"t": ">B", "b": ">b", "B": ">B", "s": ">h", "u": ">H", "U": ">h", "I": ">i", "i": ">I", "l": ">q", "L": ">q",
           "T": ">Q", "f": ">I", "d": ">Q", "D": ">Bi"}
PROPERTIES = {
    "content_type": "shortstr", "content_encoding": "shortstr", "headers": "table", "delivery_mode": "octet",
    "priority": "octet", "correlation_id": "shortstr", "reply_to": "shortstr", "expiration": "shortstr",
    "message_id": "shortstr", "timestamp": "longlong", "type": "shortstr", "user_id": "shortstr", "app_id": "shortstr",
    "cluster_id": "shortstr",
}
SIZES = {"octet": 1, "short": 2, "long": 4, "longlong": 8}


class Malformed(Exception):
    """What was parsed is not what the specification says."""


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
