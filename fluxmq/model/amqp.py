"""AMQP 0-9-1's reply codes, and how a refusal carries one."""
from __future__ import annotations

import enum

from fluxmq._core.errors import ProtocolError

__all__ = ["AmqpRefused", "ReplyCode", "shown", "text", "wire"]


class ReplyCode(enum.IntEnum):
    """Section 1.2 of the specification's constants, and NO_ROUTE, which is RabbitMQ's."""

    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def closes_connection(self) -> bool:
        """A hard error ends the connection, a soft one the channel."""
        return self == ReplyCode.CONNECTION_FORCED or self == ReplyCode.INVALID_PATH or self >= ReplyCode.FRAME_ERROR


class AmqpRefused(ProtocolError):
    """What an AMQP client asked for is refused.

    reason: a ReplyCode. text: the reply text. It begins with the code's name, as RabbitMQ's does, because some
    libraries look for that.
    """

    def __init__(self, code: int, text: str) -> None:
        self.reply_text = text
        super().__init__(ReplyCode(code), f"{ReplyCode(code).name} - {text}")

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return type(self), (self.reason, self.reply_text)


def wire(name: str) -> bytes:
    """A short string as it came."""
    return name.encode("utf-8", "surrogateescape")


def text(name: bytes) -> str:
    """The same the other way round: any bytes survive."""
    return name.decode("utf-8", "surrogateescape")


def shown(name: bytes) -> str:
    """A name for display."""
    return name.decode("utf-8", "replace")
