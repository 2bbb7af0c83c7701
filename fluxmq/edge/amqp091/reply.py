"""How the broker says why it ends a connection: connection.close, with a text that begins with the code's name.

The name in front, in capitals, is what clients of RabbitMQ print and what people search for.
"""
from __future__ import annotations

from fluxmq._core.amqp091_methods import ConnectionClose
from fluxmq.model import limits

__all__ = ["NAMES", "close_frame", "reply_text"]

# Section 1.2 of the specification's reference: the codes that end a connection, and those that end a channel.
NAMES = {
    311: "CONTENT_TOO_LARGE", 312: "NO_ROUTE", 313: "NO_CONSUMERS", 320: "CONNECTION_FORCED", 402: "INVALID_PATH",
    403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED", 406: "PRECONDITION_FAILED", 501: "FRAME_ERROR",
    502: "SYNTAX_ERROR", 503: "COMMAND_INVALID", 504: "CHANNEL_ERROR", 505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR", 530: "NOT_ALLOWED", 540: "NOT_IMPLEMENTED", 541: "INTERNAL_ERROR",
}


def reply_text(code: int, text: str) -> str:
    """"NAME - text", cut between two characters to what a short string holds."""
    whole = f"{NAMES[code]} - {text}".encode("utf-8", "replace")
    return whole[:limits.AMQP_SHORT_STRING_BYTES_MAX].decode("utf-8", "ignore")


def close_frame(code: int, text: str, number: int = 0) -> bytes:
    """connection.close. number: class << 16 | method of what went wrong, 0 when it was no method."""
    return ConnectionClose(reply_code=code, reply_text=reply_text(code, text), class_id=number >> 16,
                           method_id=number & 0xFFFF).frame(0)
