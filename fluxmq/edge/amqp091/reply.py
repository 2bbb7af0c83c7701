"""The broker's connection.close: a reply code, and a text that begins with the code's name.

RabbitMQ's texts begin with the name in capitals too: clients print it, and users search for it.
"""
from __future__ import annotations

from fluxmq._core.amqp091.methods import ConnectionClose
from fluxmq.model import limits
from fluxmq.model.amqp import ReplyCode

__all__ = ["close_frame", "reply_text"]


def reply_text(code: int, text: str) -> str:
    """"NAME - text", cut at a character boundary to the length of a short string. text: with or without the name in
    front."""
    name = f"{ReplyCode(code).name} - "
    whole = (text if text.startswith(name) else name + text).encode("utf-8", "replace")
    return whole[:limits.AMQP_SHORT_STRING_BYTES_MAX].decode("utf-8", "ignore")


def close_frame(code: int, text: str, number: int = 0) -> bytes:
    """Encodes connection.close. number: class << 16 | method that caused the error, 0 for none."""
    return ConnectionClose(reply_code=code, reply_text=reply_text(code, text), class_id=number >> 16,
                           method_id=number & 0xFFFF).frame(0)
