"""One blocking MQTT connection: ClientMachine over a socket. Nothing of it is measured by itself."""
from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Self

from fluxmq._core.client.machine import STATE_OPEN, ClientMachine
from fluxmq._core.client.message import Message
from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt.packets import ConnAck, Connect
from fluxmq.bench.load.engine import LoadError

__all__ = ["MqttSession"]

READ_SIZE = 65_536


class MqttSession(ClientMachine):
    """A connected client. session_expiry: seconds, of level 5. delivered: messages received. acknowledges: messages;
    a session whose client does not keeps them.

    Raises OSError, LoadError when the broker refuses it.
    """

    def __init__(self, address: str, client_id: str, *, level: int = 5, clean: bool = True, session_expiry: int = 0,
                 timeout: float = 60.0, acknowledges: bool = False) -> None:
        super().__init__(self._came, manual_ack=not acknowledges)
        self.delivered = self.waiting = 0
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.start(Connect(client_id=client_id, protocol_level=level, clean_start=clean,
                           properties=[(0x11, session_expiry)] if session_expiry else None))
        self.until(lambda: self.state == STATE_OPEN)

    def _came(self, _message: Message) -> None:
        self.delivered += 1

    def connected(self, connack: ConnAck) -> None:
        if connack.reason_code:
            self.sock.close()
            raise LoadError(f"CONNECT was refused with code {connack.reason_code}")

    def until(self, done: Callable[[], bool]) -> None:
        """Sends and receives until done. Raises LoadError, OSError."""
        self.sock.sendall(self.take_output())
        while not done():
            got = self.sock.recv(READ_SIZE)
            if not got:
                raise LoadError("the broker closed the connection")
            try:
                self.feed(got)
            except ProtocolError as error:
                raise LoadError(f"the broker broke the protocol: {error}") from error
            self.sock.sendall(self.take_output())

    def until_delivered(self, count: int = 1) -> None:
        """Waits until so many messages have arrived. Raises LoadError, OSError."""
        self.until(lambda: self.delivered >= count)

    def publish_all(self, topics: list[str], payload: bytes, *, retain: bool) -> None:
        """Publishes with QoS 1; returns when all are acknowledged."""
        for topic in topics:
            if not self.window:
                self.until(lambda: self.window > 0)
            self.publish(topic, payload, 1, retain, done=self._answered)
            self.waiting += 1
        self.until(lambda: not self.waiting)

    def _answered(self, _packet_id: int, reason: int) -> None:
        self.waiting -= 1
        if reason >= 0x80:
            raise LoadError(f"a message was refused with reason {reason}")

    def subscribe_to(self, topic_filter: str, qos: int) -> None:
        answers: list[object] = []
        self.subscribe([(topic_filter, qos)], lambda _packet_id, reasons: answers.append(reasons))
        self.until(lambda: bool(answers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the socket without a DISCONNECT."""
        self.sock.close()

    def close(self) -> None:
        self.leave()
        self.sock.sendall(self.take_output())
        self.sock.close()
