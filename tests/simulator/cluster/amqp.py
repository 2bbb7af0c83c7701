"""An AMQP client of a simulated cluster: one connection, one channel, and what it got."""
from __future__ import annotations

from typing import Any

from oracle.amqp091 import (
    BODY,
    HEADER,
    METHOD,
    PROTOCOL,
    decode_method,
    encode_frame,
    encode_header,
    encode_method,
)
from simulator.cluster.brokers import Brokers
from simulator.node import Pipe

__all__ = ["Amqp"]


class Amqp:
    """A client with one channel. answers: methods that it was sent, but for deliveries: (name, arguments). deliveries:
    (arguments of basic.deliver, body). returned: bodies that came back with basic.return. acks: whether it acknowledges
    deliveries. cancels: whether it wants to be told that a consumer was cancelled."""

    def __init__(self, brokers: Brokers, at: str, *, acks: bool = True, cancels: bool = True) -> None:
        self.brokers, self.at, self.acks = brokers, at, acks
        self.answers: list[tuple[str, dict[str, Any]]] = []
        self.deliveries: list[tuple[dict[str, Any], bytes]] = []
        self.returned: list[bytes] = []
        self.pipe: Pipe = brokers.processes[at].node.accept_amqp()
        self._read = b""
        self._delivery: dict[str, Any] | None = None  # whose content is to come; None: of basic.return
        brokers.clients.append(self)  # type: ignore[arg-type]
        self._send(PROTOCOL)
        self.ask("connection.start")
        self.method("connection.start-ok", 0, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US",
                    client_properties={"capabilities": {"consumer_cancel_notify": cancels}})
        self.ask("connection.tune")
        self.method("connection.tune-ok", 0, channel_max=10, frame_max=131072, heartbeat=0)
        self.method("connection.open", 0, virtual_host="/")
        self.method("channel.open")
        self.ask("channel.open-ok")

    def _send(self, data: bytes) -> None:
        self.pipe.to_broker += data
        broker = self.brokers.processes[self.at]
        broker.process.driver.soon(broker.turn)

    def method(self, name: str, channel: int = 1, **arguments: Any) -> None:
        self._send(encode_frame(METHOD, channel, encode_method(name, **arguments)))

    def publish(self, exchange: str, key: str, body: bytes = b"x", *, mandatory: bool = False,
                **headers: list[str]) -> None:
        self.method("basic.publish", exchange=exchange, routing_key=key, mandatory=mandatory)
        self._send(encode_frame(HEADER, 1, encode_header(len(body), {"headers": headers} if headers else {}))
                   + encode_frame(BODY, 1, body))

    def ask(self, answer: str) -> dict[str, Any]:
        """Waits until it is answered, by this or by the end of the connection or channel."""
        names = answer, "connection.close", "channel.close"
        self.brokers.run_until(lambda: any(name in names for name, _ in self.answers))
        name, told = self.answers[-1]
        assert name == answer, told
        return told

    def consume(self, queue: str, *, prefetch: int = 0, shared: int = 0, no_ack: bool = False, exclusive: bool = False,
                tag: str = "", **arguments: Any) -> str:
        """Returns the consumer tag. shared: the prefetch of the channel, 0 as before."""
        if prefetch:
            self.method("basic.qos", prefetch_count=prefetch)
        if shared:
            self.method("basic.qos", prefetch_count=shared, **{"global": True})
        self.method("basic.consume", queue=queue, no_ack=no_ack, exclusive=exclusive, consumer_tag=tag,
                    arguments={name.replace("_", "-"): value for name, value in arguments.items()})
        before = len(self.told("basic.consume-ok")), len(self.told("channel.close"))
        self.brokers.run_until(lambda: (len(self.told("basic.consume-ok")), len(self.told("channel.close"))) != before)
        assert len(self.told("channel.close")) == before[1], self.answers
        return str(self.told("basic.consume-ok")[-1]["consumer_tag"])

    def told(self, name: str) -> list[dict[str, Any]]:
        return [arguments for method, arguments in self.answers if method == name]

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.deliveries]

    def acknowledge(self) -> None:
        """Everything that it got so far."""
        self.method("basic.ack", delivery_tag=0, multiple=True)

    def read(self) -> None:
        self._read += bytes(self.pipe.to_client)
        self.pipe.to_client.clear()
        while len(self._read) >= 8:
            kind, size = self._read[0], int.from_bytes(self._read[3:7], "big")
            if len(self._read) < size + 8:
                return
            payload, self._read = self._read[7:7 + size], self._read[size + 8:]
            if kind == METHOD:
                name, arguments = decode_method(payload)
                if name == "basic.deliver":
                    self._delivery = arguments
                else:
                    if name == "basic.return":
                        self._delivery = None
                    self.answers.append((name, arguments))
            elif kind == BODY and self._delivery is None:
                self.returned.append(payload)
            elif kind == BODY:
                assert self._delivery is not None
                self.deliveries.append((self._delivery, payload))
                if self.acks:
                    self.method("basic.ack", delivery_tag=self._delivery["delivery_tag"])
