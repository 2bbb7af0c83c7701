"""The server's reading of RFC 6455, naively: one frame after the other, from bytes that are all there."""
from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["Reading", "build", "read"]

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FRAME_BYTES_MAX = 268_435_455 + 5       # of the largest MQTT packet


@dataclass
class Reading:
    """result: 0, 1 the peer's Close, -1 a protocol error, -2 text. payload: of binary frames, as far as it came.
    pong, close: what is due. end: where the bytes that decided it end."""

    result: int = 0
    payload: bytes = b""
    pong: bytes | None = None
    close: bytes | None = None
    end: int = 0


def build(opcode: int, payload: bytes, mask: bytes = bytes(4), *, fin: bool = True, rsv: int = 0, masked: bool = True,
          wide: int = 0) -> bytes:
    """One frame, right or wrong. wide: 126 or 127 writes a length that is longer than it needs."""
    form = max(wide, len(payload) if len(payload) < 126 else 126 if len(payload) < 1 << 16 else 127)
    length = struct.pack(">H", len(payload)) if form == 126 else struct.pack(">Q", len(payload)) if form == 127 else b""
    body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if masked else payload
    return bytes((fin << 7 | rsv << 4 | opcode, masked << 7 | form)) + length + (mask if masked else b"") + body


def read(data: bytes) -> Reading:
    """Sections 5.2 to 5.5, and MQTT-6.0.0-1: data frames are binary. A frame that is not all there gives what of its
    payload came."""
    found = Reading()
    at, continues = 0, False
    while len(data) - at >= 2:
        found.end = at + 2
        fin, rsv, opcode = data[at] >> 7, data[at] & 0x70, data[at] & 15
        masked, length = data[at + 1] >> 7, data[at + 1] & 0x7F
        if rsv or not masked:
            return failed(found, 1002, -1)
        extra = {126: 2, 127: 8}.get(length, 0)
        start = at + 2 + extra + 4
        if len(data) < start:
            break
        found.end = start
        if extra:
            length = int.from_bytes(data[at + 2:at + 2 + extra], "big")
        mask = data[start - 4:start]
        came = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data[start:start + length]))
        if opcode >= CLOSE:
            if opcode > PONG or not fin or length > 125:
                return failed(found, 1002, -1)
            if len(came) < length:
                break
            found.end = start + length
            if opcode == PING:
                found.pong = came
            elif opcode == CLOSE:
                found.close, found.result = came[:2] if length >= 2 else b"", 1
                return found
        else:
            if opcode == TEXT:
                return failed(found, 1003, -2)
            if opcode > BINARY or (opcode == CONTINUATION) != continues or length >> 63:
                return failed(found, 1002, -1)
            if length > FRAME_BYTES_MAX:
                return failed(found, 1009, -1)
            continues = not fin
            found.payload += came
        at = start + length
    found.end = len(data)
    return found


def failed(found: Reading, code: int, result: int) -> Reading:
    found.close, found.result = struct.pack(">H", code), result
    return found
