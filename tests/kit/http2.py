"""Bytes of HTTP/2 by hand (RFC 9113, RFC 7541), also those that no library sends.

    begin(settings()) + request(headers(path=b"/\\xff"))
"""
from __future__ import annotations

import struct

__all__ = ["CALL", "STREAM", "begin", "field", "frame", "headers", "request", "settings"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
CALL, STREAM = b"/fluxmq.cluster.v1.Peer/Call", b"/fluxmq.cluster.v1.Peer/Stream"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, section 4.1."""
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


def settings() -> bytes:
    """An empty SETTINGS frame."""
    return frame(SETTINGS, 0, 0)


def begin(*frames: bytes) -> bytes:
    """What a client sends first, and these frames behind it."""
    return PREFACE + b"".join(frames)


def _text(value: bytes) -> bytes:
    """A string literal without Huffman's code, RFC 7541 section 5.2."""
    if len(value) < 127:
        return bytes([len(value)]) + value
    rest, size = len(value) - 127, bytearray([127])
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes(size) + bytes([rest]) + value


def field(name: bytes, value: bytes) -> bytes:
    """A literal field that is not indexed, RFC 7541 section 6.2.2."""
    return b"\0" + _text(name) + _text(value)


def headers(*more: tuple[bytes, bytes], path: bytes = CALL, authority: bytes = b"x") -> bytes:
    """The block of fields with which a call of gRPC begins. more: fields besides."""
    return b"".join(field(name, value) for name, value in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", authority),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more))


def request(block: bytes, body: bytes | None = b"", stream: int = 1) -> bytes:
    """A HEADERS frame, and a DATA frame that ends the stream with a message of gRPC; None: the stream stays open."""
    sent = frame(HEADERS, END_HEADERS, stream, block)
    if body is None:
        return sent
    return sent + frame(DATA, END_STREAM, stream, b"\0" + struct.pack("!I", len(body)) + body)
