"""A client of AMQP 0-9-1 that knows the specification and nothing of the broker: frames over a socket, by hand.

Methods are named as the specification names them; arguments are in its order, text is bytes, tables are those of
tests/oracle/amqp091.py. It answers nothing by itself, heartbeats included.
"""
from __future__ import annotations

import socket
import ssl
from collections import deque
from typing import Any, NamedTuple

from oracle.amqp091 import Table, arguments, build_arguments

from kit.client import TIMEOUT, Unexpected

__all__ = ["HEADER", "AmqpClient", "Frame", "capabilities", "plain"]

HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, CONTENT_HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE

# class, method, arguments; `reserved` ones too, for they are on the wire
METHODS: dict[str, tuple[int, int, list[str]]] = {
    "connection.start": (10, 10, ["octet", "octet", "table", "longstr", "longstr"]),
    "connection.start-ok": (10, 11, ["table", "shortstr", "longstr", "shortstr"]),
    "connection.tune": (10, 30, ["short", "long", "short"]),
    "connection.tune-ok": (10, 31, ["short", "long", "short"]),
    "connection.open": (10, 40, ["shortstr", "shortstr", "bit"]),
    "connection.open-ok": (10, 41, ["shortstr"]),
    "connection.close": (10, 50, ["short", "shortstr", "short", "short"]),
    "connection.close-ok": (10, 51, []),
    "connection.blocked": (10, 60, ["shortstr"]),
    "connection.unblocked": (10, 61, []),
    "connection.update-secret": (10, 70, ["longstr", "shortstr"]),
    "connection.update-secret-ok": (10, 71, []),
    "channel.open": (20, 10, ["shortstr"]),
    "channel.open-ok": (20, 11, ["longstr"]),
    "channel.close": (20, 40, ["short", "shortstr", "short", "short"]),
    "channel.close-ok": (20, 41, []),
    "queue.declare": (50, 10, ["short", "shortstr", "bit", "bit", "bit", "bit", "bit", "table"]),
    "queue.declare-ok": (50, 11, ["shortstr", "long", "long"]),
    "basic.consume": (60, 20, ["short", "shortstr", "shortstr", "bit", "bit", "bit", "bit", "table"]),
    "basic.consume-ok": (60, 21, ["shortstr"]),
    "basic.publish": (60, 40, ["short", "shortstr", "shortstr", "bit", "bit"]),
    "basic.deliver": (60, 60, ["shortstr", "longlong", "bit", "shortstr", "shortstr"]),
    "basic.ack": (60, 80, ["longlong", "bit"]),
    "basic.nack": (60, 120, ["longlong", "bit", "bit"]),
    "confirm.select": (85, 10, ["bit"]),
    "confirm.select-ok": (85, 11, []),
    "tx.select": (90, 10, []),
    "tx.select-ok": (90, 11, []),
}
NAMES = {(number, method): name for name, (number, method, _) in METHODS.items()}


class Frame(NamedTuple):
    """name: of a method; "heartbeat", "header", "body" of other frames, whose arguments are the payload."""

    channel: int
    name: str
    arguments: list[Any]


def plain(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


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
        self._frames: deque[Frame] = deque()
        self.server: Frame | None = None  # Start

    # ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────

    def send_bytes(self, data: bytes) -> None:
        self.raw.sendall(data)

    def frame(self, kind: int, channel: int, payload: bytes) -> bytes:
        return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + bytes((END,))

    def method(self, name: str, *values: Any, channel: int = 0) -> bytes:
        number, method, kinds = METHODS[name]
        return self.frame(METHOD, channel, number.to_bytes(2, "big") + method.to_bytes(2, "big")
                          + build_arguments(kinds, list(values)))

    def send(self, name: str, *values: Any, channel: int = 0) -> None:
        self.send_bytes(self.method(name, *values, channel=channel))

    def publish(self, channel: int, queue: bytes, body: bytes = b"x", *, properties: bytes = b"\0\0") -> None:
        """To the default exchange."""
        self.send_bytes(self.method("basic.publish", 0, b"", queue, False, False, channel=channel) + self.frame(
            CONTENT_HEADER, channel, b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + properties)
            + (self.frame(BODY, channel, body) if body else b""))

    def recv(self) -> Frame:
        """The next frame. Raises ConnectionError when there is none any more."""
        while len(self._buffer) < 7 or len(self._buffer) < 8 + self._size():
            data = self.raw.recv(65536)
            if not data:
                raise ConnectionError(f"closed by the broker; left over: {self._buffer!r}")
            self._buffer += data
        size = self._size()
        kind, channel, payload = self._buffer[0], int.from_bytes(self._buffer[1:3], "big"), self._buffer[7:7 + size]
        assert self._buffer[7 + size] == END, self._buffer
        self._buffer = self._buffer[8 + size:]
        if kind != METHOD:
            return Frame(channel, {HEARTBEAT: "heartbeat", CONTENT_HEADER: "header", BODY: "body"}[kind], [payload])
        name = NAMES[int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")]
        return Frame(channel, name, arguments(METHODS[name][2], payload[4:]))

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
        self.send_bytes(HEADER)
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
                  plain(user, password) if response is None else response, b"en_US")
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
