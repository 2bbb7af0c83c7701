"""The client's machine under watch: everything that leaves it for some bytes of a server, however they are cut.

This only drives: the product's codec writes what the server sends, and reads nothing of what tests compare here.
"""
from __future__ import annotations

from random import Random
from typing import Any

from fluxmq._core.client.machine import STATE_CLOSED, ClientMachine
from fluxmq._core.client.message import Message
from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import ConnAck, Connect, Disconnect
from kit.mqtt_packets import random_packet

__all__ = ["Watched", "cut", "outcome", "spoil", "stream"]

FROM_SERVER = (3, 3, 3, 4, 5, 6, 7, 9, 11, 13, 14)


class Watched(ClientMachine):
    """Everything that leaves it, in order."""

    def __init__(self, version: int, manual: bool) -> None:
        self.seen: list[Any] = []
        super().__init__(self.came, manual_ack=manual, topic_aliases=3)
        properties = [(0x21, 20), (0x22, 20)] if version == 5 else []
        self.start(Connect(client_id="c", protocol_level=version, properties=properties))
        self.feed(encode_packet(ConnAck(), version))
        for qos in (0, 1, 2, 2, 1):
            self.publish("a", b"x", qos, done=lambda *said: self.seen.append(("done", said)))
        self.subscribe([("a", 1)], lambda *said: self.seen.append(("suback", said)))
        self.unsubscribe(["a"], lambda *said: self.seen.append(("unsuback", said)))
        self.ping(lambda: self.seen.append("pong"))
        self.take_output()

    def came(self, message: Message) -> None:
        self.seen.append((message.topic, message.payload, message.qos, message.retain, message.dup, message.packet_id,
                          message.properties))
        if message.qos and len(self.seen) % 3:
            self.acknowledge(message)

    def dismissed(self, disconnect: Disconnect) -> None:
        self.seen.append(disconnect)


def outcome(version: int, manual: bool, chunks: list[bytes]) -> tuple[Any, ...]:
    machine = Watched(version, manual)
    reason = None
    written = b""
    for chunk in chunks:
        try:
            machine.feed(chunk)
        except ProtocolError as error:
            assert machine.state == STATE_CLOSED and error.text
            reason = error.reason
        written += machine.take_output()
    return machine.seen, written, machine.state, reason


def cut(rng: Random, wire: bytes) -> list[bytes]:
    marks = sorted(rng.randint(0, len(wire)) for _ in range(rng.randint(0, 12)))
    return [wire[a:b] for a, b in zip([0, *marks], [*marks, len(wire)], strict=True)]


def spoil(rng: Random, wire: bytes) -> bytes:
    """A few bytes changed, taken out or put in."""
    data = bytearray(wire)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        kept = rng.choice((0, 1))                   # replace, or put in before it; with nothing, take out
        data[at:at + 1] = rng.randbytes(rng.choice((0, 1, 1, 1))) + bytes(data[at:at + kept]) or b"\0"
    return bytes(data)


def stream(rng: Random, version: int) -> bytes:
    """A few packets such as a server sends."""
    kinds = [kind for kind in FROM_SERVER if version == 5 or kind != 14]
    return b"".join(encode_packet(random_packet(rng, version, rng.choice(kinds)), version)
                    for _ in range(rng.randint(1, 8)))
