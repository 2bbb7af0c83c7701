"""Properties of the client's machine: any chunking is the same, any bytes end in nothing but a ProtocolError."""
from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.client_machine import Watched, cut, outcome, spoil, stream
from oracle import mqtt as oracle

randoms = st.integers(0, 1 << 32).map(Random)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("spoiled", [False, True])
@settings(max_examples=60, deadline=None)
@given(rng=randoms, manual=st.booleans())
def test_any_chunking_is_the_same(version: int, spoiled: bool, rng: Random, manual: bool) -> None:
    wire = stream(rng, version)
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
