"""Headers that queues write (user properties of MQTT). Options that they read from a message: _core/envelope."""
from __future__ import annotations

from fluxmq._core.envelope.envelope import FORMAT_MQTT, Envelope

__all__ = ["DEATH", "DEATHS", "death_properties", "encode_users", "with_length"]

DEATH = b"x-death-"  # prefix of the names of death_properties
# The reason under which a dead letter is counted; a reason that a consumer gave counts as "rejected".
DEATHS = {"max_retries": "max_retries", "expired": "expired", "maxlen": "overflow"}


def encode_users(pairs: list[tuple[str, str]]) -> bytes:
    """User properties as MQTT 5 wire bytes (MQTT 5.0 section 2.2.2.2), in order."""
    return Envelope(FORMAT_MQTT, b"", b"").with_headers([(name.encode(), value.encode()) for name, value in pairs])


def with_length(properties: bytes) -> bytes:
    """Properties with their Property Length in front, as the codec reads them."""
    length, size = bytearray(), len(properties)
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + properties


def death_properties(*, queue: str, partition: int, offset: int, topic: bytes, group: bytes, deliveries: int,
                     reason: str, time_ms: int, now_ms: int) -> list[tuple[bytes, bytes]]:
    """The user properties of a dead letter. Times are milliseconds since the epoch."""
    pairs = [
        ("x-death-reason", reason), ("x-death-queue", queue), ("x-death-message-id", f"{partition}:{offset}"),
        ("x-death-topic", topic.decode("utf-8", "replace")), ("x-death-group", group.decode("utf-8", "replace")),
        ("x-death-count", str(deliveries)), ("x-death-published", str(time_ms)), ("x-death-time", str(now_ms))]
    return [(name.encode(), value.encode()) for name, value in pairs]
