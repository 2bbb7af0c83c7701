"""The client's side of AMQP 0-9-1: bytes in, events and bytes out, no sockets.

    header ──Start──► START-OK ──Tune──► TUNE-OK, OPEN ──OpenOk──► open ──close, either side──► closed

An answer is matched with the first call on its channel that waits for this method, because FluxMQ may answer a later
call of another method while the earlier one waits for the disk. When the server closes a channel, all pending calls on
it fail with the reason, and the channel's number is free again.
"""
from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.errors import FluxError, ProtocolError

__all__ = ["AmqpEvents", "AmqpLogin", "AmqpMachine", "AmqpMessage", "AmqpRefused", "content_frames"]

HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, CONTENT, BODY, HEARTBEAT = 1, 2, 3, 8
HEAD, FRAME_END = 7, 0xCE
FRAME_MAX = 131072
CHANNEL_MAX = 2047
CLASS_BASIC = 60
CAPABILITIES = dict.fromkeys(("authentication_failure_close", "basic.nack", "connection.blocked",
                              "consumer_cancel_notify", "exchange_exchange_bindings", "publisher_confirms"), True)


class AmqpRefused(FluxError):
    """The server closed the channel or the connection. code: of AMQP 0-9-1 section 1.2; 0: it gave none."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class AmqpLogin(NamedTuple):
    """product, name: of the program and the connection, for display. channel_max: the highest channel
    that is opened."""

    user: str
    password: str
    vhost: str
    product: str
    name: str = ""
    channel_max: int = CHANNEL_MAX


class AmqpMessage(NamedTuple):
    """A received message. method: BasicDeliver, BasicGetOk or BasicReturn. properties: as on the wire."""

    channel: int
    method: Any
    properties: bytes
    body: bytes


class AmqpEvents(Protocol):
    """Callbacks for received methods. They must not raise."""

    def on_delivery(self, message: AmqpMessage) -> None: ...
    def on_returned(self, message: AmqpMessage) -> None: ...
    def on_confirm(self, channel: int, number: int, multiple: bool, good: bool) -> None: ...
    def on_cancelled(self, channel: int, tag: str) -> None: ...
    def on_channel_closed(self, channel: int, why: AmqpRefused) -> None: ...
    def on_blocked(self, blocked: bool) -> None: ...
    def on_closed(self, why: AmqpRefused) -> None:
        """The connection is closed; code 0: at our own request."""


Done = Callable[[Any, "AmqpRefused | None"], None]


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> list[bytes]:
    """The header frame and the body frames of a message."""
    room = frame_max - HEAD - 1
    parts = [(CONTENT, struct.pack(">HHQ", CLASS_BASIC, 0, len(body)) + properties)]
    parts += [(BODY, body[at:at + room]) for at in range(0, len(body), room)]
    return [struct.pack(">BHI", kind, channel, len(part)) + part + b"\xce" for kind, part in parts]


class AmqpMachine:
    """out: bytes to send, for the owner of the socket. open: methods may be sent. server: server properties from
    Connection.Start. unread: received bytes that are not processed yet."""

    def __init__(self, login: AmqpLogin, events: AmqpEvents) -> None:
        self.login, self.events = login, events
        self.out = bytearray(HEADER)
        self.open = self.closed = False
        self.frame_max = FRAME_MAX
        self.server: dict[str, Any] = {}
        self.unread = bytearray()
        self._pending_calls: dict[int, deque[tuple[str, Done]]] = {}     # by channel: names of the answers, callbacks
        self._contents: dict[int, list[Any]] = {}      # by channel: method, missing bytes, properties, pieces

    # ── out ──────────────────────────────────────────────────────────────────────────────────────────────────

    def call(self, channel: int, method: m.Method, done: Done) -> None:
        """Sends a method with an answer. Calls done(answer, None) or done(None, error)."""
        self._pending_calls.setdefault(channel, deque()).append((method.name + "-ok", done))
        self.out += method.frame(channel)

    def cast(self, channel: int, method: m.Method) -> None:
        """Sends a method without an answer."""
        self.out += method.frame(channel)

    def publish(self, channel: int, method: m.BasicPublish, properties: bytes, body: bytes) -> None:
        """Sends a message. properties: as from encode_properties."""
        self.out += method.frame(channel)
        for frame in content_frames(channel, properties, body, self.frame_max):
            self.out += frame

    def close(self, text: str = "") -> None:
        """Sends connection.close with a reply text; the answer calls `on_closed`."""
        self.call(0, m.ConnectionClose(reply_code=200, reply_text=text), self._left)

    def _left(self, _answer: Any, why: AmqpRefused | None) -> None:
        self._end(why or AmqpRefused(0, "closed"))

    # ── in ───────────────────────────────────────────────────────────────────────────────────────────────────

    def feed(self, data: bytes) -> None:
        """Processes all complete frames in the received bytes. Raises ProtocolError for invalid ones."""
        self.unread += data
        while self.step():
            pass

    def step(self) -> bool:
        """Processes the first frame of `unread`; False when it is not complete. Raises ProtocolError."""
        data = self.unread
        if data.startswith(b"AMQP"):
            raise ProtocolError(501, "the server speaks another version of AMQP")
        if len(data) <= HEAD:
            return False
        kind, channel, size = struct.unpack_from(">BHI", data)
        if size > self.frame_max:
            raise ProtocolError(501, f"a frame of {size} bytes: this is no AMQP 0-9-1, or more than was agreed")
        end = HEAD + size
        if len(data) <= end:
            return False
        if data[end] != FRAME_END:
            raise ProtocolError(501, "a frame does not end where it should: this is no AMQP 0-9-1")
        payload = bytes(data[HEAD:end])
        del data[:end + 1]
        self._take(kind, channel, payload)
        return True

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == METHOD:
            method = m.decode_method(payload)
            if method.has_content:
                self._contents[channel] = [method, 0, b"", []]
            elif channel:
                self._on_channel(channel, method)
            else:
                self._on_connection(method)
        elif kind in (CONTENT, BODY):
            self._content(kind, channel, payload)
        elif kind != HEARTBEAT:
            raise ProtocolError(501, f"there is no frame type {kind}")

    def _content(self, kind: int, channel: int, payload: bytes) -> None:
        content = self._contents.get(channel)
        if content is None:
            raise ProtocolError(505, "content came without a method")
        if kind == CONTENT:
            content[1], content[2] = struct.unpack_from(">Q", payload, 4)[0], payload[12:]
        else:
            content[1] -= len(payload)
            content[3].append(payload)
        if content[1] > 0:
            return
        del self._contents[channel]
        method = content[0]
        message = AmqpMessage(channel, method, content[2], b"".join(content[3]))
        if isinstance(method, m.BasicGetOk):
            self.events.on_delivery(message)
            self._answer(channel, method)
        elif isinstance(method, m.BasicReturn):
            self.events.on_returned(message)
        else:
            self.events.on_delivery(message)

    def _answer(self, channel: int, method: Any) -> None:
        asked = self._pending_calls.get(channel, ())
        name = "basic.get-ok" if isinstance(method, m.BasicGetEmpty) else method.name
        found = next((one for one in asked if one[0] == name), None)
        if found is None:
            raise ProtocolError(503, f"{method.name} answers nothing that was asked")
        self._pending_calls[channel].remove(found)
        found[1](method, None)

    def _on_channel(self, channel: int, method: Any) -> None:
        if isinstance(method, m.BasicAck | m.BasicNack):
            self.events.on_confirm(channel, method.delivery_tag, method.multiple, isinstance(method, m.BasicAck))
        elif isinstance(method, m.ChannelClose):
            self.cast(channel, m.ChannelCloseOk())
            self._contents.pop(channel, None)
            why = AmqpRefused(method.reply_code, method.reply_text)
            waiting = self._pending_calls.pop(channel, deque())
            self.events.on_channel_closed(channel, why)
            for _, done in waiting:
                done(None, why)
        elif isinstance(method, m.BasicCancel):
            self.events.on_cancelled(channel, method.consumer_tag)
        elif isinstance(method, m.ChannelFlow):
            self.cast(channel, m.ChannelFlowOk(active=method.active))
        else:
            self._answer(channel, method)

    def _on_connection(self, method: Any) -> None:
        if isinstance(method, m.ConnectionStart):
            if "PLAIN" not in method.mechanisms.split():
                raise ProtocolError(403, f"the server takes no PLAIN login, but {method.mechanisms}")
            login, self.server = self.login, method.server_properties
            self.cast(0, m.ConnectionStartOk(
                client_properties={"product": login.product, "capabilities": CAPABILITIES}
                | ({"connection_name": login.name} if login.name else {}),
                mechanism="PLAIN", response=f"\0{login.user}\0{login.password}".encode(), locale="en_US"))
        elif isinstance(method, m.ConnectionTune):
            login, self.frame_max = self.login, min(method.frame_max or FRAME_MAX, FRAME_MAX)
            self.cast(0, m.ConnectionTuneOk(channel_max=min(method.channel_max or login.channel_max, login.channel_max),
                                            frame_max=self.frame_max, heartbeat=0))
            self.call(0, m.ConnectionOpen(virtual_host=login.vhost), self._opened)
        elif isinstance(method, m.ConnectionClose):
            self.cast(0, m.ConnectionCloseOk())
            self._end(AmqpRefused(method.reply_code, method.reply_text))
        elif isinstance(method, m.ConnectionBlocked | m.ConnectionUnblocked):
            self.events.on_blocked(isinstance(method, m.ConnectionBlocked))
        else:
            self._answer(0, method)

    def _opened(self, _answer: Any, why: AmqpRefused | None) -> None:
        self.open = why is None

    def _end(self, why: AmqpRefused) -> None:
        self.open = False
        if not self.closed:
            self.closed = True
            self.events.on_closed(why)
            self.fail(why)

    def fail(self, why: AmqpRefused) -> None:
        """Fails all pending calls."""
        self.open = False
        asked, self._pending_calls = self._pending_calls, {}
        for waiting in asked.values():
            for _, done in waiting:
                done(None, why)
