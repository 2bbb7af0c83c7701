"""Properties of the client's machine: any chunking is the same, any bytes end in nothing but a ProtocolError."""
from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.mqtt_packets import random_packet
from oracle import mqtt as oracle

from fluxmq._core.client_machine import STATE_CLOSED, ClientMachine
from fluxmq._core.client_message import Message
from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt_encode import encode_packet
from fluxmq._core.mqtt_packets import ConnAck, Connect, Disconnect

randoms = st.randoms(use_true_random=False)
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


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("spoiled", [False, True])
@settings(max_examples=60, deadline=None)
@given(rng=randoms, manual=st.booleans())
def test_any_chunking_is_the_same(version: int, spoiled: bool, rng: Random, manual: bool) -> None:
    kinds = [kind for kind in FROM_SERVER if version == 5 or kind != 14]
    wire = b"".join(encode_packet(random_packet(rng, version, rng.choice(kinds)), version)
                    for _ in range(rng.randint(1, 8)))
    if spoiled:
        wire = spoil(rng, wire)
    whole = outcome(version, manual, [wire])
    assert outcome(version, manual, cut(rng, wire)) == whole
    assert outcome(version, manual, [wire[at:at + 1] for at in range(len(wire))]) == whole


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), version=st.sampled_from([4, 5]))
def test_garbage_ends_in_a_protocol_error_or_waits(data: bytes, version: int) -> None:
    outcome(version, False, [data])


@pytest.mark.parametrize("version", [4, 5])
@settings(max_examples=60, deadline=None)
@given(rng=randoms)
def test_what_it_writes_another_codec_reads(version: int, rng: Random) -> None:
    """Publishes of all sizes and forms, through the oracle."""
    machine = Watched(version, False)
    sent = []
    for _ in range(rng.randint(1, 20)):
        qos, retain = rng.randrange(3), rng.random() < 0.3
        topic = rng.choice(("a", "b/c", "ä" * rng.randint(1, 200)))
        payload = rng.randbytes(rng.choice((0, 1, 100, 130, 20_000)))
        given = version == 5 and rng.random() < 0.5
        properties = [(0x03, "t" * rng.randint(0, 200)), (0x26, ("k", "v"))] if given else None
        packet_id = machine.publish(rng.choice((topic, topic.encode())), payload, qos, retain, properties)
        sent.append((topic, payload, qos, retain, packet_id, properties or []))
    data = machine.take_output()
    for topic, payload, qos, retain, packet_id, properties in sent:
        found = oracle.parse(data, version)
        assert found is not None
        packet, data = found
        assert isinstance(packet, oracle.Publish)
        assert (packet.topic, packet.payload, packet.qos, packet.retain, packet.packet_id or 0) == (
            topic, payload, qos, retain, packet_id)
        assert packet.prop("content_type") == dict(properties[:1]).get(0x03)
    assert data == b""
