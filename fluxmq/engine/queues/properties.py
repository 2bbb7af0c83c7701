"""User properties that queues read and write, as MQTT 5 wire bytes (MQTT 5.0 section 2.2.2.2); of a message that came
by AMQP its headers."""
from __future__ import annotations

from collections.abc import Iterator

from fluxmq._core.amqp091.edit import headers_of, properties_of, with_headers

__all__ = ["DEATHS", "FORMAT_AMQP091", "death_properties", "encode_users", "log_properties", "partition_key_of",
           "priority_of", "told_in", "users_of", "with_deaths", "with_length", "without_deaths", "without_users"]

FORMAT_AMQP091 = 1  # of Record.format; _core/memory/message.pxd
USER_PROPERTY = 0x26
DEATH = b"x-death-"
# What a dead letter's reason is counted as; what a consumer gave as its reason is "rejected".
DEATHS = {"max_retries": "max_retries", "expired": "expired", "maxlen": "overflow"}
FIXED_BYTES = {0x01: 1, 0x02: 4}


def _text(value: str) -> bytes:
    raw = value.encode()[:65535]
    return len(raw).to_bytes(2, "big") + raw


def encode_users(pairs: list[tuple[str, str]]) -> bytes:
    """User properties, in order."""
    return b"".join(bytes((USER_PROPERTY,)) + _text(name) + _text(value) for name, value in pairs)


def with_length(properties: bytes) -> bytes:
    """Properties with their Property Length in front, as the codec reads them."""
    length, size = bytearray(), len(properties)
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + properties


def _each(properties: bytes) -> Iterator[tuple[bytes, tuple[bytes, bytes] | None]]:
    """(its bytes, name and value of a user property) of each property. Their bytes were validated when they came."""
    at = 0
    while at < len(properties):
        start, identifier = at, properties[at]
        at += 1
        found = []
        if identifier in FIXED_BYTES:
            at += FIXED_BYTES[identifier]
        else:
            for _ in range(2 if identifier == USER_PROPERTY else 1):
                size = int.from_bytes(properties[at:at + 2], "big")
                found.append(properties[at + 2:at + 2 + size])
                at += 2 + size
        yield properties[start:at], (found[0], found[1]) if len(found) == 2 else None


def users_of(properties: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The user properties among the properties of a message."""
    return (pair for _, pair in _each(properties) if pair is not None)


def without_users(properties: bytes, prefix: bytes) -> bytes:
    """The properties without user properties whose names begin so."""
    return b"".join(raw for raw, pair in _each(properties) if pair is None or not pair[0].startswith(prefix))


def told_in(format_: int, properties: bytes) -> Iterator[tuple[bytes, bytes]]:
    """What a message tells queues: user properties, or headers, whose values are text."""
    return iter(headers_of(properties)) if format_ == FORMAT_AMQP091 else users_of(properties)


def log_properties(message: bytes) -> bytes:
    """The properties of a message as it stands in a log (drawn in _core/queue/log.pxd)."""
    topic = int.from_bytes(message[44:46], "little")
    size = int.from_bytes(message[40:44], "little")
    return message[48 + topic:48 + topic + size]


def without_deaths(format_: int, properties: bytes) -> bytes:
    """The properties without what death_properties wrote."""
    if format_ == FORMAT_AMQP091:
        return with_headers(properties, [], DEATH)
    return without_users(properties, DEATH)


def with_deaths(format_: int, properties: bytes, told: list[tuple[str, str]]) -> bytes:
    """With what death_properties said."""
    if format_ == FORMAT_AMQP091:
        return with_headers(properties, [(name.encode(), value.encode()) for name, value in told])
    return properties + encode_users(told)


def partition_key_of(format_: int, properties: bytes) -> bytes:
    """What the publisher said; b"" for nothing."""
    return next((value for name, value in told_in(format_, properties) if name == b"partition-key"), b"")


def priority_of(format_: int, properties: bytes) -> int:
    """What the publisher said; 0 for nothing."""
    if format_ == FORMAT_AMQP091:
        return int(properties_of(properties).get("priority", 0))
    names = (b"priority", b"amqp-priority")
    text = next((value for name, value in users_of(properties) if name in names), b"0")
    return min(int(text), 255) if text.isdigit() else 0


def death_properties(*, queue: str, partition: int, offset: int, topic: bytes, group: bytes, deliveries: int,
                     reason: str, time_ms: int, now_ms: int) -> list[tuple[str, str]]:
    """What a dead letter tells of itself. Times are milliseconds since the epoch."""
    return [
        ("x-death-reason", reason), ("x-death-queue", queue), ("x-death-message-id", f"{partition}:{offset}"),
        ("x-death-topic", topic.decode("utf-8", "replace")), ("x-death-group", group.decode("utf-8", "replace")),
        ("x-death-count", str(deliveries)), ("x-death-published", str(time_ms)), ("x-death-time", str(now_ms))]
