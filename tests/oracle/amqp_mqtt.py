"""What a message of AMQP 0-9-1 is in MQTT 5 and the other way round, naively: dictionaries and lists, the table of
docs/interop.md said once more. Shares nothing with the broker; field tables are [(name, letter, value)].

    S x          bytes          A    [(letter, value)]        t b B s U u I i l L T    int
    F            a table        D    (scale, unscaled)        f d    bytes as on the wire        V    None
"""
from __future__ import annotations

import struct
from typing import Any

__all__ = ["NAMES", "decode_amqp", "decode_mqtt", "encode_amqp", "encode_mqtt", "swapped"]

Entry = tuple[bytes, str, Any]
NAMES = ("content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
         "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id")
FORMATS = {"t": ">B", "b": ">b", "B": ">B", "s": ">h", "U": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q",
           "T": ">Q"}
NUMBERS = {"delivery_mode": 1, "priority": 1, "timestamp": 8}


def swapped(text: bytes) -> bytes:
    return b"".join({b".": b"/", b"/": b"."}.get(text[i:i + 1], text[i:i + 1]) for i in range(len(text)))


# ---------------------------------------------------------------- AMQP

def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def encode_item(letter: str, value: Any) -> bytes:
    if letter in FORMATS:
        raw = struct.pack(FORMATS[letter], value)
    elif letter in "Sx":
        raw = _long(value)
    elif letter == "A":
        raw = _long(b"".join(encode_item(*item) for item in value))
    elif letter == "F":
        raw = _long(encode_table(value))
    elif letter == "D":
        raw = struct.pack(">Bi", *value)
    else:
        raw = value or b""
    return letter.encode() + raw


def encode_table(entries: list[Entry]) -> bytes:
    return b"".join(_short(name) + encode_item(letter, value) for name, letter, value in entries)


def encode_amqp(properties: dict[str, Any]) -> bytes:
    """The property flags and the property list of a content header."""
    flags, parts = 0, []
    for at, name in enumerate(NAMES):
        if name not in properties:
            continue
        value = properties[name]
        flags |= 1 << (15 - at)
        if name == "headers":
            parts.append(_long(encode_table(value)))
        elif name in NUMBERS:
            parts.append(value.to_bytes(NUMBERS[name], "big"))
        else:
            parts.append(_short(value))
    return struct.pack(">H", flags) + b"".join(parts)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, n: int) -> bytes:
        assert self.at + n <= len(self.data), "beyond the end"
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, n: int) -> int:
        return int.from_bytes(self.take(n), "big")

    def item(self) -> tuple[str, Any]:
        letter = self.take(1).decode()
        if letter in FORMATS:
            return letter, struct.unpack(FORMATS[letter], self.take(struct.calcsize(FORMATS[letter])))[0]
        if letter in "Sx":
            return letter, self.take(self.number(4))
        if letter in "AF":
            inner = _Reader(self.take(self.number(4)))
            items = []
            while inner.at < len(inner.data):
                items.append(inner.item() if letter == "A" else (inner.take(inner.number(1)), *inner.item()))
            return letter, items
        if letter == "D":
            return letter, struct.unpack(">Bi", self.take(5))
        return letter, self.take({"f": 4, "d": 8, "V": 0}[letter]) or None


def decode_amqp(data: bytes) -> dict[str, Any]:
    """Strict: what cannot be read, or is left over, fails."""
    reader = _Reader(data)
    flags = reader.number(2)
    found: dict[str, Any] = {}
    for at, name in enumerate(NAMES):
        if not flags >> (15 - at) & 1:
            continue
        if name == "headers":
            inner = _Reader(reader.take(reader.number(4)))
            found[name] = []
            while inner.at < len(inner.data):
                found[name].append((inner.take(inner.number(1)), *inner.item()))
        else:
            found[name] = reader.number(NUMBERS[name]) if name in NUMBERS else reader.take(reader.number(1))
    assert reader.at == len(data) and flags & 3 == 0
    return found


# ---------------------------------------------------------------- MQTT

MQTT_NAMES = {0x03: "content_type", 0x08: "response_topic", 0x09: "correlation_data"}


def encode_mqtt(properties: dict[str, Any]) -> bytes:
    """payload_format: int; content_type, response_topic, correlation_data: bytes; users: [(name, value)]."""
    raw = b""
    if "payload_format" in properties:
        raw += bytes((1, properties["payload_format"]))
    for identifier, name in MQTT_NAMES.items():
        if name in properties:
            raw += bytes((identifier,)) + struct.pack(">H", len(properties[name])) + properties[name]
    for name, value in properties.get("users", []):
        raw += b"\x26" + struct.pack(">H", len(name)) + name + struct.pack(">H", len(value)) + value
    return raw


def decode_mqtt(data: bytes) -> dict[str, Any]:
    """Strict: each at most once, every text UTF-8 without U+0000."""
    reader = _Reader(data)
    found: dict[str, Any] = {"users": []}
    while reader.at < len(data):
        identifier = reader.number(1)
        if identifier == 1:
            assert "payload_format" not in found
            found["payload_format"] = reader.number(1)
            continue
        text = reader.take(reader.number(2))
        if identifier != 0x09:
            assert "\0" not in text.decode()
        if identifier == 0x26:
            value = reader.take(reader.number(2))
            assert "\0" not in value.decode()
            found["users"].append((text, value))
        else:
            assert MQTT_NAMES[identifier] not in found
            found[MQTT_NAMES[identifier]] = text
    return found
