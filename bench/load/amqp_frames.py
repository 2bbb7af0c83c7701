"""AMQP 0-9-1 in octets, for everything that is not hot: methods with their arguments, tables, and the PUBLISH template.

    0      1         3         7                7 + size
    +------+---------+---------+-------- - - ---+------+
    | type | channel | size    | payload        | 0xCE |         section 2.3.5
    +------+---------+---------+-------- - - ---+------+

A message is a method frame (basic.publish, basic.deliver), a header frame and as many body frames as it takes. What the
engine reads and writes while it runs is in amqp_reading.pxd and amqp_publishing.pxd.
"""
from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = [
    "BODY", "CHANNEL", "DEFAULT_FRAME_MAX", "FRAME_END", "FRAME_OVERHEAD", "HEADER", "HEARTBEAT", "METHOD",
    "PROTOCOL_HEADER", "Arguments", "Frame", "FrameError", "Publication", "close_reason", "connection_close",
    "content", "encode_table", "frame", "longstr", "method", "publication", "shortstr", "take_frames",
]

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
FRAME_OVERHEAD = 8
DEFAULT_FRAME_MAX = 131_072     # what RabbitMQ offers
CHANNEL = 1                     # the only one of each connection
BASIC = 60
# Property flags of the basic class, from the highest bit: content-type, content-encoding, headers, delivery-mode, …
FLAG_DELIVERY_MODE = 1 << 12
REPLY_SUCCESS = 200


class FrameError(ValueError):
    """Octets that cannot be AMQP 0-9-1. The text says which."""


class Frame(NamedTuple):
    """One frame. For a method frame, `method` is (class, method) and `payload` its arguments."""

    kind: int
    channel: int
    payload: bytes
    method: tuple[int, int] | None


class Publication(NamedTuple):
    """All frames of one message, and where its first octet of payload is."""

    packet: bytes
    payload_at: int


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([FRAME_END])


def method(channel: int, class_id: int, method_id: int, *arguments: bytes) -> bytes:
    """A method frame; the arguments are encoded already."""
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + b"".join(arguments))


def shortstr(text: str) -> bytes:
    """Raises ValueError beyond 255 octets."""
    raw = text.encode()
    if len(raw) > 255:
        raise ValueError(f"a short string has at most 255 octets, not {len(raw)}")
    return bytes([len(raw)]) + raw


def longstr(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def encode_table(values: dict[str, Any]) -> bytes:
    """A field table of booleans, integers, strings and tables. Raises TypeError for another kind of value."""
    out = b""
    for name, value in values.items():
        out += shortstr(name)
        if isinstance(value, bool):
            out += b"t" + bytes([value])
        elif isinstance(value, int):
            out += b"l" + struct.pack(">q", value)
        elif isinstance(value, str):
            out += b"S" + longstr(value.encode())
        elif isinstance(value, dict):
            out += b"F" + encode_table(value)
        else:
            raise TypeError(f"{name}: a table holds no {type(value).__name__} here")
    return longstr(out)


def content(payload: bytes, *, persistent: bool, frame_max: int) -> tuple[bytes, int]:
    """The header frame and the body frames of a message on CHANNEL, and where the first octet of payload is."""
    header = frame(HEADER, CHANNEL, struct.pack(">HHQHB", BASIC, 0, len(payload), FLAG_DELIVERY_MODE,
                                                2 if persistent else 1))
    room = frame_max - FRAME_OVERHEAD
    bodies = [frame(BODY, CHANNEL, payload[at:at + room]) for at in range(0, len(payload), room)]
    return header + b"".join(bodies), len(header) + FRAME_OVERHEAD - 1


def publication(exchange: str, routing_key: str, payload: bytes, *, persistent: bool, frame_max: int) -> Publication:
    """basic.publish and its content. The engine copies this and puts number and time into the payload."""
    publish = method(CHANNEL, BASIC, 40, struct.pack(">H", 0), shortstr(exchange), shortstr(routing_key), b"\x00")
    rest, payload_at = content(payload, persistent=persistent, frame_max=frame_max)
    return Publication(publish + rest, len(publish) + payload_at)


def connection_close() -> bytes:
    return method(0, 10, 50, struct.pack(">H", REPLY_SUCCESS), shortstr("done"), struct.pack(">HH", 0, 0))


def take_frames(buffer: bytearray) -> Iterator[Frame]:
    """Take the complete frames off the front of the buffer. Raises FrameError."""
    while len(buffer) >= 7:
        kind, channel, size = struct.unpack_from(">BHI", buffer)
        if kind not in (METHOD, HEADER, BODY, HEARTBEAT):
            raise FrameError(f"no frame begins with 0x{kind:02X}")
        if len(buffer) < size + FRAME_OVERHEAD:
            return
        payload = bytes(buffer[7:7 + size])
        if buffer[7 + size] != FRAME_END:
            raise FrameError(f"a frame of {size} octets does not end with 0xCE")
        del buffer[:size + FRAME_OVERHEAD]
        if kind != METHOD:
            yield Frame(kind, channel, payload, None)
            continue
        if size < 4:
            raise FrameError("a method frame is too short for its method")
        yield Frame(kind, channel, payload[4:], struct.unpack(">HH", payload[:4]))


class Arguments:
    """Reads the arguments of a method one after the other. Raises FrameError when they are too short."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def octets(self, count: int) -> bytes:
        if count > len(self.raw) - self.at:
            raise FrameError("the arguments end too early")
        self.at += count
        return self.raw[self.at - count:self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.octets(size), "big")

    def shortstr(self) -> str:
        return self.octets(self.number(1)).decode(errors="replace")

    def longstr(self) -> bytes:
        return self.octets(self.number(4))

    def table(self) -> dict[str, Any]:
        inner = Arguments(self.longstr())
        found = {}
        while inner.at < len(inner.raw):
            name = inner.shortstr()
            found[name] = inner.value()
        return found

    def value(self) -> Any:
        """A field value, with the type letters that brokers use (RabbitMQ's, which are not all the specification's)."""
        kind = self.octets(1).decode("latin-1")
        if kind == "t":
            return bool(self.number(1))
        if kind in "bsIl":
            size = {"b": 1, "s": 2, "I": 4, "l": 8}[kind]
            return int.from_bytes(self.octets(size), "big", signed=True)
        if kind in "BuiT":
            return self.number({"B": 1, "u": 2, "i": 4, "T": 8}[kind])
        if kind in "fd":
            return struct.unpack(">f" if kind == "f" else ">d", self.octets(4 if kind == "f" else 8))[0]
        if kind == "D":
            places = self.number(1)
            return self.number(4) / 10 ** places
        if kind == "S":
            return self.longstr().decode(errors="replace")
        if kind == "x":
            return self.longstr()
        if kind == "F":
            return self.table()
        if kind == "A":
            inner = Arguments(self.longstr())
            items = []
            while inner.at < len(inner.raw):
                items.append(inner.value())
            return items
        if kind == "V":
            return None
        raise FrameError(f"a field value of unknown type {kind!r}")


def close_reason(arguments: bytes) -> str:
    """What a connection.close or channel.close says: "403 ACCESS_REFUSED - …"."""
    reader = Arguments(arguments)
    code = reader.number(2)
    return f"{code} {reader.shortstr()}"
