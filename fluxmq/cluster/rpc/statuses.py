"""How a call of gRPC ends: the status and its text in the trailers.

    https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""
from __future__ import annotations

from enum import IntEnum
from urllib.parse import quote_from_bytes, unquote_to_bytes

__all__ = ["SENTENCE_BYTES_MAX", "Status", "sentence", "status_of", "trailers_of"]

# gRPC limits all headers of an answer to 8 KiB, and the text of a status is in a header, where bytes take up to three.
SENTENCE_BYTES_MAX = 2000
# What stands for itself in a text: what can be printed, but the percent sign.
_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("%"))


class Status(IntEnum):
    """Those that a node sends or tells apart."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


def sentence(text: str) -> str:
    """As much of it as a status may have."""
    return text.encode(errors="replace")[:SENTENCE_BYTES_MAX].decode(errors="ignore")


def trailers_of(status: Status, text: str) -> list[tuple[bytes, bytes]]:
    """The headers that end a call."""
    found = [(b"grpc-status", b"%d" % status)]
    if text:
        found.append((b"grpc-message", quote_from_bytes(sentence(text).encode(), _PLAIN).encode()))
    return found


def status_of(headers: dict[bytes, bytes]) -> tuple[int, str]:
    """Number and text of the status that an answer has ended with. UNKNOWN if it is no number."""
    number = headers.get(b"grpc-status", b"")
    text = unquote_to_bytes(headers.get(b"grpc-message", b"")).decode(errors="replace")
    return int(number) if number.isdigit() and len(number) < 4 else Status.UNKNOWN, text
