"""Bodies of requests that routes.py takes."""
from typing import Literal

import msgspec

from fluxmq.model import limits

__all__ = ["MessageBody", "MessagesBody", "ReplayBody", "SeekBody"]


class MessageBody(msgspec.Struct, forbid_unknown_fields=True):
    """A message to publish. encoding: of payload."""

    payload: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    key: str = ""
    content_type: str = ""
    expiry_s: int | None = None
    user_properties: list[tuple[str, str]] = []


class MessagesBody(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[MessageBody]


class SeekBody(msgspec.Struct, forbid_unknown_fields=True):
    position: str
    partition: int | None = None


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    """messages: (partition, offset) of those; without, the oldest, `count` of them."""

    messages: list[tuple[int, int]] | None = None
    count: int = limits.ADMIN_REPLAY_MAX
