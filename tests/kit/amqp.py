"""A client of AMQP 0-9-1 that knows the specification and nothing of the broker: frames over a socket, by hand.

Methods are named as the specification names them; arguments are in its order, text is bytes, tables are those of
tests/oracle/amqp091.py. It answers nothing by itself, heartbeats included.
"""
from __future__ import annotations

import socket
import ssl
import struct
from typing import Any, NamedTuple

from oracle import amqp091 as oracle
from oracle.amqp091 import Table

from kit.client import TIMEOUT, Unexpected

__all__ = ["AmqpClient", "Frame", "capabilities"]


class Frame(NamedTuple):
    """name: of a method; "heartbeat", "header", "body" of other frames, whose arguments are the payload."""

    channel: int
    name: str
    arguments: list[Any]


def capabilities(*names: str) -> Table:
    """Client properties that say so."""
    return [(b"capabilities", ("F", [(name.encode(), ("t", 1)) for name in names]))]


class AmqpClient:
    """raw: a connected socket, or an address to connect to."""

    def __init__(self, raw: socket.socket | ssl.SSLSocket | tuple[str, int]) -> None:
        self.raw = socket.create_connection(raw, TIMEOUT) if isinstance(raw, tuple) else raw
        self.raw.settimeout(TIMEOUT)
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.server: Frame | None = None  # Start

    # ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────

    def send_bytes(self, data: bytes) -> None:
        self.raw.sendall(data)

    def method(self, name: str, *values: Any, channel: int = 0) -> bytes:
        return oracle.encode_frame(oracle.METHOD, channel, struct.pack(">HH", *oracle.METHODS[name][:2])
                                   + oracle.build_arguments(oracle.kinds_of(name), list(values)))

    def send(self, name: str, *values: Any, channel: int = 0) -> None:
        self.send_bytes(self.method(name, *values, channel=channel))

    def publish(self, channel: int, queue: bytes, body: bytes = b"x", *, properties: bytes = b"\0\0") -> None:
        """To the default exchange."""
        header = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + properties
        self.send_bytes(self.method("basic.publish", 0, b"", queue, False, False, channel=channel)
                        + oracle.encode_frame(oracle.HEADER, channel, header)
                        + (oracle.encode_frame(oracle.BODY, channel, body) if body else b""))

    def recv(self) -> Frame:
        """The next frame. Raises ConnectionError when there is none any more."""
        while len(self._buffer) < 7 or len(self._buffer) < 8 + self._size():
            data = self.raw.recv(65536)
            if not data:
                raise ConnectionError(f"closed by the broker; left over: {self._buffer!r}")
            self._buffer += data
        size = self._size()
        kind, channel, payload = self._buffer[0], int.from_bytes(self._buffer[1:3], "big"), self._buffer[7:7 + size]
        assert self._buffer[7 + size] == oracle.FRAME_END, self._buffer
        self._buffer = self._buffer[8 + size:]
        if kind != oracle.METHOD:
            names = {oracle.HEARTBEAT: "heartbeat", oracle.HEADER: "header", oracle.BODY: "body"}
            return Frame(channel, names[kind], [payload])
        name = oracle.NAMES[int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")]
        return Frame(channel, name, oracle.arguments(oracle.kinds_of(name), payload[4:]))

    def _size(self) -> int:
        return int.from_bytes(self._buffer[3:7], "big")

    def expect(self, name: str, channel: int = 0) -> list[Any]:
        """The arguments of the next frame, which must be this; heartbeats between are passed over."""
        while (found := self.recv()).name == "heartbeat" and name != "heartbeat":
            pass
        if (found.name, found.channel) != (name, channel):
            raise Unexpected(f"{name} on channel {channel} was expected, {found} came")
        return found.arguments

    def expect_close(self, code: int, *, class_id: int | None = None, method_id: int | None = None) -> str:
        """connection.close with this code, then the end; its text."""
        found = self.expect("connection.close")
        assert found[0] == code, found
        assert class_id is None or found[2:] == [class_id, method_id], found
        self.send("connection.close-ok")
        self.expect_end()
        return str(found[1].decode())

    def expect_end(self) -> None:
        """The broker closes, and says nothing before."""
        try:
            found = self.recv()
        except (ConnectionError, ssl.SSLError):
            self.raw.close()
            return
        raise Unexpected(f"the end was expected, {found} came")

    # ── verbs ────────────────────────────────────────────────────────────────────────────────────────────────

    def greet(self) -> AmqpClient:
        self.send_bytes(oracle.PROTOCOL)
        self.server = Frame(0, "connection.start", self.expect("connection.start"))
        return self

    @property
    def mechanisms(self) -> list[str]:
        assert self.server is not None
        return str(self.server.arguments[3].decode()).split()

    def log_in(self, user: str = "guest", password: str = "guest", *, mechanism: str = "PLAIN",
               response: bytes | None = None, properties: Table | None = None) -> AmqpClient:
        """StartOk; Tune is next, if all is well."""
        self.send("connection.start-ok", properties or [], mechanism.encode(),
                  f"\0{user}\0{password}".encode() if response is None else response, b"en_US")
        return self

    def open(self, vhost: str = "/", *, channel_max: int = 0, frame_max: int = 0, heartbeat: int = 0) -> AmqpClient:
        """From Tune to OpenOk."""
        self.tuned = self.expect("connection.tune")
        self.send("connection.tune-ok", channel_max, frame_max, heartbeat)
        self.send("connection.open", vhost.encode(), b"", False)
        self.expect("connection.open-ok")
        return self

    def connect(self, vhost: str = "/", *, user: str = "guest", password: str = "guest", heartbeat: int = 0,
                properties: Table | None = None) -> AmqpClient:
        return self.greet().log_in(user, password, properties=properties).open(vhost, heartbeat=heartbeat)

    def channel(self, number: int = 1) -> int:
        self.send("channel.open", b"", channel=number)
        self.expect("channel.open-ok", number)
        return number

    def disconnect(self) -> None:
        self.send("connection.close", 200, b"", 0, 0)
        self.expect("connection.close-ok")
        self.expect_end()

    def close(self) -> None:
        self.raw.close()
