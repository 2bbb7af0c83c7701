"""An AMQP 0-9-1 connection over a bare socket, in the codec of tests/oracle/amqp091.py: does nothing by itself.

    wire = Wire(address).login()
    wire.open_channel(1)
    wire.call(1, "queue.declare", queue="q")["message_count"]
    wire.publish(1, "", "q", b"body")
    wire.expect_content(1, "basic.deliver").body
"""
from __future__ import annotations

import socket
import ssl
import struct
from typing import TYPE_CHECKING, Any

from oracle.amqp091 import (
    BODY,
    FRAME_END,
    HEADER,
    HEARTBEAT,
    METHOD,
    METHODS,
    PROTOCOL,
    Content,
    Frame,
    build_table,
    decode_header,
    decode_method,
    encode_frame,
    encode_header,
    encode_method,
    table_of,
)

if TYPE_CHECKING:
    from kit.cluster import Cluster

from kit.client import Unexpected
from kit.readable import is_readable

__all__ = ["CAPABILITIES", "TIMEOUT", "Closed", "Refused", "Wire"]

TIMEOUT = 30.0          # only a failing test waits for it
CAPABILITIES = {name: True for name in (
    "authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify",
    "exchange_exchange_bindings", "publisher_confirms")}


class Closed(Unexpected):
    """The broker ended the connection without a word."""


class Refused(Unexpected):
    """The broker closed the channel or the connection (scope) with a reply code."""

    def __init__(self, scope: str, code: int, text: str, method: tuple[int, int]) -> None:
        super().__init__(f"{scope} closed: {code} {text} {method}")
        self.scope, self.code, self.text, self.method = scope, code, text, method


class Wire:
    """One connection. Heartbeats of the broker are left out of what is read.

    address: to connect to, or a transport that is connected.
    """

    def __init__(self, address: Any) -> None:
        self.socket: Any = socket.create_connection(address, TIMEOUT) if isinstance(address, tuple) else address
        self.socket.settimeout(TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frame_max = 131072
        self.server: dict[str, Any] = {}
        self.tune: dict[str, Any] = {}
        self._read = b""
        self._waiting: list[tuple[int, str, dict[str, Any] | Content]] = []     # came before what was waited for

    # ── frames ───────────────────────────────────────────────────────────────────────────────────────────

    def send_raw(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def read_raw(self, size: int) -> bytes:
        while len(self._read) < size:
            try:
                got = self.socket.recv(1 << 20)
            except TimeoutError:
                raise AssertionError(f"nothing came in {TIMEOUT} s; before: {self._waiting}") from None
            except (ConnectionError, ssl.SSLError):
                raise Closed(f"reset after {self._read!r}") from None
            if not got:
                raise Closed(f"ended after {self._read!r}")
            self._read += got
        taken, self._read = self._read[:size], self._read[size:]
        return taken

    def ready(self, seconds: float) -> bool:
        """Whether something comes, or has come, within a time."""
        return bool(self._waiting or self._read or is_readable(self.socket, seconds))

    def read_frame(self) -> Frame:
        kind, channel, size = struct.unpack(">BHI", self.read_raw(7))
        assert size <= self.frame_max - 8 or self.frame_max == 0, "a frame larger than was agreed"
        payload = self.read_raw(size)
        assert self.read_raw(1)[0] == FRAME_END
        return Frame(kind, channel, payload)

    def read_method(self) -> tuple[int, str, dict[str, Any] | Content]:
        """(channel, method, its arguments or content), heartbeats left out."""
        frame = self.read_frame()
        while frame.kind == HEARTBEAT:
            assert (frame.channel, frame.payload) == (0, b"")
            frame = self.read_frame()
        assert frame.kind == METHOD, f"a method wanted, not {frame}"
        name, arguments = decode_method(frame.payload)
        if name not in ("basic.deliver", "basic.return", "basic.get-ok"):
            return frame.channel, name, arguments
        header = self._content_frame(frame.channel, HEADER)
        size, properties = decode_header(header)
        body = b""
        while len(body) < size:
            body += self._content_frame(frame.channel, BODY)
        assert len(body) == size
        return frame.channel, name, Content(name, arguments, properties, body, header)

    def _content_frame(self, channel: int, kind: int) -> bytes:
        frame = self.read_frame()
        assert (frame.kind, frame.channel) == (kind, channel), f"content was broken by {frame}"
        return frame.payload

    def send(self, channel: int, name: str, /, **arguments: Any) -> None:
        self.send_raw(encode_frame(METHOD, channel, encode_method(name, **arguments)))

    # ── verbs ────────────────────────────────────────────────────────────────────────────────────────────

    def login(self, vhost: str = "/", *, heartbeat: int = 0, channel_max: int | None = None,
              frame_max: int | None = None, **who: Any) -> Wire:
        """From the protocol header to connection.open-ok. who: for start_ok."""
        return self.greet().start_ok(**who).open(
            vhost, heartbeat=heartbeat, channel_max=channel_max, frame_max=frame_max)

    def greet(self) -> Wire:
        self.send_raw(PROTOCOL)
        self.server = self.expect(0, "connection.start")
        return self

    def open(self, vhost: str = "/", *, heartbeat: int = 0, channel_max: int | None = None,
             frame_max: int | None = None) -> Wire:
        """From connection.tune to connection.open-ok."""
        self.tune = self.expect(0, "connection.tune")
        self.frame_max = self.tune["frame_max"] if frame_max is None else frame_max
        self.send(0, "connection.tune-ok", frame_max=self.frame_max, heartbeat=heartbeat,
                  channel_max=self.tune["channel_max"] if channel_max is None else channel_max)
        self.send(0, "connection.open", virtual_host=vhost)
        self.expect(0, "connection.open-ok")
        return self

    def start_ok(self, user: str = "guest", password: str = "guest", *, mechanism: str = "PLAIN",
                 response: bytes | None = None, capabilities: dict[str, bool] | None = None) -> Wire:
        """capabilities: CAPABILITIES when none are given."""
        if response is None:
            response = f"\0{user}\0{password}".encode() if mechanism == "PLAIN" else build_table(
                table_of({"LOGIN": user, "PASSWORD": password}))
        self.send(0, "connection.start-ok", mechanism=mechanism, response=response, locale="en_US", client_properties={
            "product": "fluxmq tests", "capabilities": CAPABILITIES if capabilities is None else capabilities})
        return self

    def open_channel(self, channel: int = 1) -> int:
        self.call(channel, "channel.open")
        return channel

    def call(self, channel: int, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Send a method and wait for the answer to it; a close instead is Refused."""
        self.send(channel, name, **arguments)
        return self.expect(channel, name + "-ok")

    def next(self, channel: int) -> tuple[str, dict[str, Any] | Content]:
        """The next method on a channel; on others it waits its turn. A close of the connection comes on any."""
        for number, (found, name, arguments) in enumerate(self._waiting):
            if found == channel or name == "connection.close":
                del self._waiting[number]
                return name, arguments
        while True:
            found, name, arguments = self.read_method()
            if found == channel or name == "connection.close":
                return name, arguments
            self._waiting.append((found, name, arguments))

    def expect(self, channel: int, *wanted: str) -> dict[str, Any]:
        """Arguments of a wanted method; deliveries, returns, confirms and the like before it wait their turn."""
        assert METHODS.keys() >= {*wanted}
        early: list[tuple[int, str, dict[str, Any] | Content]] = []
        try:
            while True:
                name, arguments = self.next(channel)
                if name in wanted:
                    return arguments        # type: ignore[return-value]
                if name in ("connection.close", "channel.close"):
                    self._refuse(channel, name, arguments)      # type: ignore[arg-type]
                assert name in ("basic.deliver", "basic.return", "basic.ack", "basic.nack", "basic.cancel"), \
                    f"{wanted} wanted, not {name} {arguments}"
                early.append((channel, name, arguments))
        finally:
            self._waiting[:0] = early

    def _refuse(self, channel: int, name: str, arguments: dict[str, Any]) -> None:
        scope = name.split(".")[0]
        self.send(0 if scope == "connection" else channel, f"{scope}.close-ok")
        raise Refused(scope, arguments["reply_code"], arguments["reply_text"],
                      (arguments["class_id"], arguments["method_id"]))

    def expect_content(self, channel: int, wanted: str = "basic.deliver") -> Content:
        return self.expect(channel, wanted)         # type: ignore[return-value]

    def expect_refusal(self, channel: int) -> Refused:
        """The close that must come now, on the channel or of the connection."""
        try:
            while True:
                name, arguments = self.next(channel)
                if name in ("connection.close", "channel.close"):
                    self._refuse(channel, name, arguments)      # type: ignore[arg-type]
        except Refused as refused:
            return refused

    def expect_close(self, code: int, method: tuple[int, int] | None = None) -> str:
        """connection.close with this code, for this method, then the end; its text."""
        found = self.expect(0, "connection.close")
        assert found["reply_code"] == code and method in (None, (found["class_id"], found["method_id"])), found
        self.send(0, "connection.close-ok")
        self.expect_end()
        return str(found["reply_text"])

    def expect_end(self) -> None:
        """The broker ends the connection, without anything more."""
        try:
            while True:
                frame = self.read_frame()
                assert frame.kind == HEARTBEAT, f"the end was wanted, not {frame}"
        except Closed:
            self.drop()

    def nothing_waits(self, channel: int = 1) -> bool:
        """Whether nothing came on a channel until now: what the broker answers next comes after it."""
        self.send(channel, "channel.flow", active=True)
        self.expect(channel, "channel.flow-ok")
        return not any(found == channel for found, _, _ in self._waiting)

    def publish(self, channel: int, exchange: str, key: str, body: bytes = b"",
                properties: dict[str, Any] | None = None, *, mandatory: bool = False) -> None:
        self.send_raw(self.encode_publish(channel, exchange, key, body, properties, mandatory=mandatory))

    def encode_publish(self, channel: int, exchange: str, key: str, body: bytes = b"",
                       properties: dict[str, Any] | None = None, *, mandatory: bool = False) -> bytes:
        made = [encode_frame(METHOD, channel, encode_method("basic.publish", exchange=exchange, routing_key=key,
                                                            mandatory=mandatory)),
                encode_frame(HEADER, channel, encode_header(len(body), properties))]
        step = (self.frame_max or len(body) + 8) - 8
        made += [encode_frame(BODY, channel, body[at:at + step]) for at in range(0, len(body), step)]
        return b"".join(made)

    def get(self, channel: int, queue: str, *, no_ack: bool = True) -> Content | None:
        self.send(channel, "basic.get", queue=queue, no_ack=no_ack)
        found: Any = self.expect(channel, "basic.get-ok", "basic.get-empty")
        return found if isinstance(found, Content) else None

    def close(self) -> None:
        """In order."""
        self.call(0, "connection.close", reply_code=200, reply_text="bye")
        self.expect_end()

    def drop(self) -> None:
        """Without a word."""
        self.socket.close()


def wire(cluster: Cluster, number: int) -> Wire:
    """To this node; channel 1 is open."""
    found = Wire(cluster[number].addresses["amqp091/plain"]).login()
    found.open_channel(1)
    return found
