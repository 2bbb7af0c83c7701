"""User properties that queues read and write, as MQTT 5 wire bytes (MQTT 5.0 section 2.2.2.2)."""
from __future__ import annotations

from collections.abc import Iterator

__all__ = ["DEATHS", "death_properties", "encode_users", "partition_key_of", "priority_of", "users_of", "with_length",
           "without_users"]

USER_PROPERTY = 0x26
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


def partition_key_of(properties: bytes) -> bytes:
    """What the publisher said; b"" for nothing."""
    return next((value for name, value in users_of(properties) if name == b"partition-key"), b"")


def priority_of(properties: bytes) -> int:
    """What the publisher said; 0 for nothing."""
    text = next((value for name, value in users_of(properties) if name == b"priority"), b"0")
    return min(int(text), 255) if text.isdigit() else 0


def death_properties(*, queue: str, partition: int, offset: int, topic: bytes, group: bytes, deliveries: int,
                     reason: str, time_ms: int, now_ms: int) -> bytes:
    """What a dead letter tells of itself. Times are milliseconds since the epoch."""
    return encode_users([
        ("x-death-reason", reason), ("x-death-queue", queue), ("x-death-message-id", f"{partition}:{offset}"),
        ("x-death-topic", topic.decode("utf-8", "replace")), ("x-death-group", group.decode("utf-8", "replace")),
        ("x-death-count", str(deliveries)), ("x-death-published", str(time_ms)), ("x-death-time", str(now_ms))])
