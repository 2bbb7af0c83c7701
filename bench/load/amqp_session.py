"""One AMQP 0-9-1 connection with one channel, up to where the engine takes over: handshake, declarations, consumers.

Blocking: none of this is measured. After `hand_over` the socket is the engine's.
"""
from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.client.amqp091_machine import AmqpLogin, AmqpMachine, AmqpMessage, AmqpRefused
from fluxmq._core.errors import ProtocolError
from fluxmq.bench.load.amqp_frames import CHANNEL
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.sockets import open_socket

__all__ = ["Session", "SessionError"]

READ_SIZE = 65_536


class SessionError(OSError):
    """The broker refused something, or does not speak AMQP 0-9-1. The text has its answer."""


class Session:
    """A connection whose handshake is done and whose channel is open.

    channel_max: the highest channel that will be opened. addr: HOST:PORT, "" for that of the options. server: the
    broker's name and version. delivered: messages received; confirmed: number of the publish confirmed last. Raises
    OSError if the connection fails, SessionError if the broker refuses it.
    """

    def __init__(self, options: AmqpOptions, context: ssl.SSLContext | None,
                 source: tuple[str, int] | None = None, channel_max: int = CHANNEL, addr: str = "") -> None:
        self.options = options
        self.addr = addr or options.addr
        self.delivered = self.confirmed = 0
        self.refusal = ""
        # No heartbeats: the engine has no timer for them, and a dead broker is noticed by its silence.
        self.machine = AmqpMachine(AmqpLogin(options.username, options.password, options.vhost, "fluxmq bench",
                                             channel_max=channel_max), self)
        self.sock: socket.socket = open_socket(options.connection(), context, source, self.addr)
        try:
            self.sock.settimeout(options.connect_timeout)
            self.until(lambda: self.machine.open)
            self.call(m.ChannelOpen())
        except BaseException:
            self.sock.close()
            raise

    @property
    def server(self) -> str:
        said = self.machine.server
        return f"{said.get('product', '?')} {said.get('version', '')}".strip()

    # --- talking --------------------------------------------------------------------------------------------------

    def on_delivery(self, message: AmqpMessage) -> None:
        self.delivered += 1

    def on_confirm(self, channel: int, number: int, multiple: bool, good: bool) -> None:
        self.confirmed = number

    def on_channel_closed(self, channel: int, why: AmqpRefused) -> None:
        self.refusal = f"{why.code} {why}"

    def on_returned(self, message: AmqpMessage) -> None:
        """Not expected: nothing is published as mandatory."""

    def on_cancelled(self, channel: int, tag: str) -> None:
        self.refusal = f"consumer {tag} was cancelled"

    def on_blocked(self, blocked: bool) -> None:
        """Ignored: the socket shows it."""

    def on_closed(self, why: AmqpRefused) -> None:
        self.refusal = f"{why.code} {why}"

    def send(self) -> None:
        """Sends the machine's output."""
        data, self.machine.out = self.machine.out, bytearray()
        self.sock.sendall(data)

    def until(self, done: Callable[[], bool]) -> None:
        """Sends and receives until `done`, without reading further frames. Raises SessionError."""
        addr, machine = self.addr, self.machine
        try:
            self.send()
            while not done():
                while not machine.step():
                    got = self.sock.recv(READ_SIZE)
                    if not got:
                        raise SessionError(f"{addr} closed the connection")
                    machine.unread += got
                if self.refusal:
                    raise SessionError(f"{addr} refused: {self.refusal}")
                self.send()
        except ProtocolError as error:
            raise SessionError(f"{addr}: {error}") from error
        except TimeoutError as error:
            raise SessionError(f"{addr} did not answer for {self.options.connect_timeout:g} s") from error

    def until_confirmed(self, number: int) -> None:
        """Waits until this publish is confirmed. Raises SessionError."""
        self.until(lambda: self.confirmed >= number)

    def call_all(self, methods: Sequence[m.Method], channel: int = CHANNEL) -> list[Any]:
        """Sends methods at once and returns their answers. Raises SessionError."""
        answers: list[Any] = []
        for one in methods:
            self.machine.call(channel, one, lambda answer, _why: answers.append(answer))
        self.until(lambda: len(answers) == len(methods))
        return answers

    def call(self, method: m.Method, channel: int = CHANNEL) -> Any:
        return self.call_all([method], channel)[0]

    def consume(self, queue: str, *, prefetch: int, automatic: bool, arguments: dict[str, Any]) -> None:
        """basic.qos (0: no limit), then basic.consume. Deliveries may begin at once."""
        if prefetch and not automatic:
            self.call(m.BasicQos(prefetch_count=prefetch))
        self.call(m.BasicConsume(queue=queue, consumer_tag="c", no_ack=automatic, arguments=arguments))

    # --- giving up ------------------------------------------------------------------------------------------------

    def hand_over(self) -> tuple[socket.socket, bytes]:
        """Returns the socket, now non-blocking, and bytes read from it that were not processed."""
        self.sock.setblocking(False)
        # Data that TLS has decrypted already would not make the socket readable.
        while isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            self.machine.unread += self.sock.recv(READ_SIZE)
        return self.sock, bytes(self.machine.unread)

    def close(self) -> None:
        """Closes the connection without waiting for the answer, and closes the socket."""
        try:
            self.machine.close("done")
            self.send()
        except OSError:
            pass            # it has ended already
        finally:
            self.sock.close()
