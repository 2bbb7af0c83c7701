"""One AMQP 0-9-1 connection with one channel, up to where the engine takes over: handshake, declarations, consumers.

Blocking: none of this is measured. After `hand_over` the socket is the engine's.
"""
from __future__ import annotations

import socket
import ssl
import struct
from typing import Any

from fluxmq.bench.load.amqp_frames import (
    CHANNEL,
    DEFAULT_FRAME_MAX,
    METHOD,
    PROTOCOL_HEADER,
    Arguments,
    Frame,
    FrameError,
    close_reason,
    connection_close,
    encode_table,
    longstr,
    method,
    shortstr,
    take_frames,
)
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.sockets import open_socket

__all__ = ["Session", "SessionError"]

CONNECTION, CHANNELS, EXCHANGE, QUEUE, BASIC, CONFIRM = 10, 20, 40, 50, 60, 85
CLOSES = ((CONNECTION, 50), (CHANNELS, 40))
CAPABILITIES = {"publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True,
                "connection.blocked": True, "authentication_failure_close": True}
FRAME_MAX_MIN = 4096            # section 4.2.3: a peer takes frames of that size before it has said what it takes
READ_SIZE = 65_536


class SessionError(OSError):
    """The broker refused something, or does not speak AMQP 0-9-1. The text says what it said."""


class Session:
    """A connection whose handshake is done and whose channel is open.

    channel_max: the highest channel that will be opened. server: what it calls itself and its version. frame_max:
    octets of the largest frame, as agreed.
    Raises OSError when there is no connection, SessionError when the broker refuses it.
    """

    def __init__(self, options: AmqpOptions, context: ssl.SSLContext | None,
                 source: tuple[str, int] | None = None, channel_max: int = CHANNEL) -> None:
        self.options = options
        self.channel_max = channel_max
        self.buffer = bytearray()
        self.frame_max = DEFAULT_FRAME_MAX
        self.server = ""
        self.sock: socket.socket = open_socket(options.connection(), context, source)
        try:
            self.sock.settimeout(options.connect_timeout)
            self.shake_hands()
        except BaseException:
            self.sock.close()
            raise

    # --- talking --------------------------------------------------------------------------------------------------

    def read(self) -> Frame:
        """The next method frame that is not about the connection's health. Raises SessionError, also after a close."""
        while True:
            try:
                for one in take_frames(self.buffer):
                    if one.method in CLOSES:
                        raise SessionError(f"{self.options.addr} refused: {close_reason(one.payload)}")
                    if one.kind == METHOD and one.method not in ((CONNECTION, 60), (CONNECTION, 61)):
                        return one
                got = self.sock.recv(READ_SIZE)
            except FrameError as error:
                raise SessionError(f"{self.options.addr} does not speak AMQP 0-9-1: {error}") from error
            except TimeoutError as error:
                raise SessionError(f"{self.options.addr} did not answer for {self.options.connect_timeout:g} s") \
                    from error
            if not got:
                raise SessionError(f"{self.options.addr} closed the connection")
            self.buffer += got
            if self.buffer.startswith(b"AMQP"):
                raise SessionError(f"{self.options.addr} speaks another version of AMQP: {bytes(self.buffer[4:8])!r}")

    def call(self, class_id: int, method_id: int, *arguments: bytes, answer: int | None = None,
             channel: int = CHANNEL) -> Arguments:
        """Send a method and read its answer, which is the method of the next number unless `answer` says another."""
        self.sock.sendall(method(channel, class_id, method_id, *arguments))
        return self.expect(class_id, method_id + 1 if answer is None else answer)

    def expect(self, class_id: int, method_id: int) -> Arguments:
        one = self.read()
        if one.method != (class_id, method_id):
            raise SessionError(f"{self.options.addr} answered with method {one.method}, not {(class_id, method_id)}")
        return Arguments(one.payload)

    def shake_hands(self) -> None:
        self.sock.sendall(PROTOCOL_HEADER)
        start = self.expect(CONNECTION, 10)
        start.octets(2)
        properties = start.table()
        self.server = f"{properties.get('product', '?')} {properties.get('version', '')}".strip()
        mechanisms = start.longstr().decode(errors="replace")
        if "PLAIN" not in mechanisms.split():
            raise SessionError(f"{self.options.addr} offers {mechanisms!r}, and not PLAIN")
        secret = f"\0{self.options.username}\0{self.options.password}".encode()
        client = {"product": "fluxmq bench", "capabilities": CAPABILITIES}
        tune = self.call(CONNECTION, 11, encode_table(client), shortstr("PLAIN"), longstr(secret), shortstr("en_US"),
                         answer=30, channel=0)
        tune.octets(2)
        offered = tune.number(4) or DEFAULT_FRAME_MAX
        self.frame_max = max(min(offered, DEFAULT_FRAME_MAX), FRAME_MAX_MIN)
        # One channel; no heartbeats: the engine has no timer for them, and a dead broker shows as silence.
        self.sock.sendall(method(0, CONNECTION, 31, struct.pack(">HIH", self.channel_max, self.frame_max, 0)))
        self.call(CONNECTION, 40, shortstr(self.options.vhost), shortstr(""), b"\x00", channel=0)
        self.call(CHANNELS, 10, shortstr(""))

    # --- declaring ------------------------------------------------------------------------------------------------

    def declare_queue(self, name: str, *, durable: bool, arguments: dict[str, Any]) -> None:
        self.call(QUEUE, 10, bytes(2), shortstr(name), bytes([2 * durable]), encode_table(arguments))

    def declare_fanout(self, name: str, *, durable: bool) -> None:
        self.call(EXCHANGE, 10, bytes(2), shortstr(name), shortstr("fanout"), bytes([2 * durable]), encode_table({}))

    def bind(self, queue: str, exchange: str) -> None:
        self.call(QUEUE, 20, bytes(2), shortstr(queue), shortstr(exchange), shortstr(""), b"\x00", encode_table({}))

    def delete_queue(self, name: str) -> None:
        self.call(QUEUE, 40, bytes(2), shortstr(name), b"\x00")

    def delete_exchange(self, name: str) -> None:
        self.call(EXCHANGE, 20, bytes(2), shortstr(name), b"\x00")

    # --- what the channel is for ----------------------------------------------------------------------------------

    def select_confirms(self) -> None:
        self.call(CONFIRM, 10, b"\x00")

    def consume(self, queue: str, *, prefetch: int, automatic: bool, arguments: dict[str, Any]) -> None:
        """basic.qos (0: no limit), then basic.consume. Deliveries may begin at once."""
        if prefetch and not automatic:
            self.call(BASIC, 10, struct.pack(">IHB", 0, prefetch, 0))
        self.call(BASIC, 20, bytes(2), shortstr(queue), shortstr("c"), bytes([2 * automatic]), encode_table(arguments))

    # --- giving up ------------------------------------------------------------------------------------------------

    def hand_over(self) -> tuple[socket.socket, bytes]:
        """The socket, now non-blocking, and what has been read of it and not looked at."""
        self.sock.setblocking(False)
        # What TLS has decrypted already would wake nobody.
        while isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            self.buffer += self.sock.recv(READ_SIZE)
        early, self.buffer = bytes(self.buffer), bytearray()
        return self.sock, early

    def close(self) -> None:
        """Say goodbye without waiting for the answer, and close the socket."""
        try:
            self.sock.sendall(connection_close())
        except OSError:
            pass            # it is gone already
        finally:
            self.sock.close()
