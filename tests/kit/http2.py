"""Bytes of HTTP/2 by hand (RFC 9113, RFC 7541), also those that no library sends.

    begin(settings()) + request(headers(path=b"/\\xff"))

Messages of gRPC in DATA frames, and frames of what was written:

    frames(data(1, message(field_1(b"batch"))))
"""
from __future__ import annotations

import struct

__all__ = ["CALL", "CONTINUATION", "DATA", "END_HEADERS", "END_STREAM", "HEADERS", "PADDED", "PREFACE", "SETTINGS",
           "STREAM", "WINDOW_UPDATE", "begin", "data", "field", "field_1", "frame", "frames", "headers", "message",
           "request", "settings", "window_update"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE, CONTINUATION = 0, 1, 4, 8, 9
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
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


def data(stream: int, payload: bytes = b"", flags: int = 0, pad: int | None = None) -> bytes:
    """A DATA frame, section 6.1. pad: padded, by so many bytes."""
    if pad is None:
        return frame(DATA, flags, stream, payload)
    return frame(DATA, flags | PADDED, stream, bytes((pad,)) + payload + bytes(pad))


def window_update(stream: int, by: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack("!I", by))


def message(raw: bytes, flag: int = 0) -> bytes:
    """A message of gRPC: flag and length in front of it."""
    return struct.pack("!BI", flag, len(raw)) + raw


def field_1(value: bytes, length_bytes: int = 0) -> bytes:
    """A message of protocol buffers whose field 1 this is. length_bytes: of its length, which may be more than it
    needs."""
    digits, rest = [len(value) & 127], len(value) >> 7
    while rest or len(digits) < length_bytes:
        digits.append(rest & 127)
        rest >>= 7
    return bytes((0x0A, *(digit | 128 for digit in digits[:-1]), digits[-1])) + value


def frames(written: bytes) -> list[tuple[int, int, int, bytes]]:
    """(kind, flags, stream, payload) of each; they are whole."""
    found, at = [], 0
    while at < len(written):
        length, kind, flags = int.from_bytes(written[at:at + 3]), written[at + 3], written[at + 4]
        stream, payload = int.from_bytes(written[at + 5:at + 9]), written[at + 9:at + 9 + length]
        assert len(payload) == length
        found.append((kind, flags, stream, payload))
        at += 9 + length
    return found
