"""Bodies of requests to the admin API, and messages in its answers."""
import base64
from typing import Any, Literal

import msgspec

from fluxmq.engine.ports.queues import Publish, QueueMessage, QueueRefused
from fluxmq.model import limits

__all__ = ["Message", "Messages", "Move", "Replay", "Seek", "shown_message", "to_publish"]


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message to publish. encoding: of payload."""

    payload: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    key: str = ""
    content_type: str = ""
    expiry_s: int | None = None
    user_properties: list[tuple[str, str]] = []


class Messages(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[Message]


class Move(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    partition: int | None = None


class Seek(msgspec.Struct, forbid_unknown_fields=True):
    position: str
    partition: int | None = None


class Replay(msgspec.Struct, forbid_unknown_fields=True):
    """messages: (partition, offset) of each; without it, the oldest `count`."""

    messages: list[tuple[int, int]] | None = None
    count: int = limits.ADMIN_REPLAY_MAX


def to_publish(message: Message) -> Publish:
    """Converts it for the port. Raises QueueRefused."""
    if message.encoding == "base64":
        try:
            payload = base64.b64decode(message.payload, validate=True)
        except ValueError:
            raise QueueRefused("invalid", "payload is not base64") from None
    else:
        payload = message.payload.encode()
    if message.expiry_s is not None and not 0 <= message.expiry_s <= 0xFFFFFFFF:
        raise QueueRefused("invalid", f"expiry_s is 0 to {0xFFFFFFFF}, not {message.expiry_s}")
    return Publish(payload=payload, key=message.key, content_type=message.content_type, expiry_s=message.expiry_s,
                   user_properties=message.user_properties)


def shown_message(message: QueueMessage) -> dict[str, Any]:
    """A message for JSON: its payload as text if it is valid text."""
    shown = msgspec.structs.asdict(message)
    try:
        shown["payload"], shown["encoding"] = message.payload.decode(), "utf-8"
    except UnicodeDecodeError:
        shown["payload"], shown["encoding"] = base64.b64encode(message.payload).decode(), "base64"
    return shown
