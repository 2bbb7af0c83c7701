"""The client half of RFC 6455, just enough to carry MQTT and to break its rules on purpose.

`WebSocket` has the methods of a socket, so that `Client(WebSocket.open(address))` works; `frame` sends anything.
"""
from __future__ import annotations

import base64
import hashlib
import os
import socket
import struct

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Refused(AssertionError):
    """The server did not switch protocols. `status` is the HTTP status, `head` the whole answer."""

    def __init__(self, head: bytes) -> None:
        super().__init__(head.decode("latin-1"))
        self.head = head
        self.status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/") else 0


class WebSocket:
    """An open WebSocket.

    headers: those of the answer, names in lower case. close_code: what the server's close frame said, if one came.
    payloads: of the binary frames that came.
    """

    def __init__(self, raw: socket.socket, headers: dict[str, str], rest: bytes) -> None:
        self.raw = raw
        self.headers = headers
        self.close_code: int | None = None
        self.pongs: list[bytes] = []
        self.payloads: list[bytes] = []         # of binary frames
        self._buffer = rest
        self._in_message = False

    @classmethod
    def open(cls, address: tuple[str, int], path: str = "/mqtt", *, subprotocol: str | None = "mqtt",
             headers: dict[str, str] | None = None) -> WebSocket:
        """Connect and shake hands. Raises Refused when the server does not answer with 101."""
        raw = socket.create_connection(address, 10)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(os.urandom(16))
        lines = {"Host": f"{address[0]}:{address[1]}", "Upgrade": "websocket", "Connection": "Upgrade",
                 "Sec-WebSocket-Key": key.decode(), "Sec-WebSocket-Version": "13"}
        if subprotocol is not None:
            lines["Sec-WebSocket-Protocol"] = subprotocol
        lines |= headers or {}
        head = f"GET {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        raw.sendall(head.encode("latin-1") + b"\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = raw.recv(4096)
            if not data:
                break
            answer += data
        head_bytes, _, rest = answer.partition(b"\r\n\r\n")
        status, *fields = head_bytes.decode("latin-1").split("\r\n")
        if not status.startswith("HTTP/1.1 101"):
            raw.close()
            raise Refused(answer)
        got = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest()).decode()
        assert got.get("sec-websocket-accept") == accept, got
        return cls(raw, got, rest)

    def frame(self, opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = True, rsv: int = 0) -> None:
        """Send one frame, right or wrong."""
        size = len(payload)
        head = bytes([fin << 7 | rsv << 4 | opcode])
        mask_bit = masked << 7
        if size < 126:
            head += bytes([mask_bit | size])
        elif size < 65536:
            head += bytes([mask_bit | 126]) + struct.pack(">H", size)
        else:
            head += bytes([mask_bit | 127]) + struct.pack(">Q", size)
        if masked:
            mask = os.urandom(4)
            head += mask
            payload = bytes(byte ^ mask[i & 3] for i, byte in enumerate(payload))
        self.raw.sendall(head + payload)

    # ── what a socket has ────────────────────────────────────────────────────────────────────────────────

    def sendall(self, data: bytes) -> None:
        self.frame(BINARY, data)

    def recv(self, count: int) -> bytes:
        """The payload of the next binary frame; b"" after a close. Control frames are dealt with on the way."""
        while True:
            found = self._next_frame()
            if found is None:
                data = self.raw.recv(count)
                if not data:
                    return b""
                self._buffer += data
                continue
            fin, opcode, payload = found
            if opcode == CLOSE:
                self.close_code = struct.unpack(">H", payload[:2])[0] if len(payload) >= 2 else None
                return b""
            if opcode == PING:
                self.frame(PONG, payload)
            elif opcode == PONG:
                self.pongs.append(payload)
            else:
                assert opcode == (CONTINUATION if self._in_message else BINARY), f"frame with opcode {opcode}"
                self._in_message = not fin
                self.payloads.append(payload)
                if payload:
                    return payload

    def settimeout(self, seconds: float | None) -> None:
        self.raw.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        self.raw.shutdown(how)

    def close(self) -> None:
        self.raw.close()

    def _next_frame(self) -> tuple[bool, int, bytes] | None:
        data = self._buffer
        if len(data) < 2:
            return None
        assert not data[1] & 0x80, "a server must not mask"
        assert not data[0] & 0x70, "a reserved bit"
        size, start = data[1] & 0x7F, 2
        if size >= 126:
            width = 2 if size == 126 else 8
            start += width
            if len(data) < start:
                return None
            size = int.from_bytes(data[2:start], "big")
        if len(data) < start + size:
            return None
        self._buffer = data[start + size:]
        return bool(data[0] & 0x80), data[0] & 0x0F, data[start:start + size]


__all__ = ["BINARY", "CLOSE", "CONTINUATION", "PING", "PONG", "TEXT", "Refused", "WebSocket"]
