"""The PUBLISH template of the AMQP load generator, against octets written down by hand from the specification."""
from __future__ import annotations

import struct

import pytest
from oracle.amqp091 import BODY, Frame

from fluxmq.bench.load.amqp_frames import publication


def frames(data: bytes) -> list[Frame]:
    found = []
    while data:
        kind, channel, size = struct.unpack_from(">BHI", data)
        assert data[7 + size] == 0xCE
        found.append(Frame(kind, channel, data[7:7 + size]))
        data = data[8 + size:]
    return found


@pytest.mark.parametrize(("size", "frame_max", "bodies"), [
    (1, 4096, 1), (4088, 4096, 1), (4089, 4096, 2), (10_000, 4096, 3), (1024, 131072, 1)])
def test_a_publication_is_a_method_a_header_and_bodies(size: int, frame_max: int, bodies: int) -> None:
    payload = bytes(i % 251 for i in range(size))
    packet, payload_at = publication("ex", "key", payload, persistent=True, frame_max=frame_max)
    assert packet[payload_at:payload_at + min(size, 16)] == payload[:16]
    publish, header, *rest = frames(packet)
    assert publish.payload == b"\x00\x3c\x00\x28\x00\x00\x02ex\x03key\x00"
    assert header.payload == struct.pack(">HHQHB", 60, 0, size, 0x1000, 2)
    assert len(rest) == bodies
    assert all(one.kind == BODY and one.channel == 1 and len(one.payload) + 8 <= frame_max for one in rest)
    assert b"".join(one.payload for one in rest) == payload


def test_transient_messages_say_so() -> None:
    packet, payload_at = publication("", "q", b"p", persistent=False, frame_max=4096)
    assert packet[payload_at - 9:payload_at - 7] == b"\x01\xce"     # the delivery mode, and the end of the header frame
