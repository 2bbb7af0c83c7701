"""The MQTT codec in nanoseconds: cold packets as values, and the C helpers that the hot path stands on.

    pytest bench/micro/bench_codec.py                            measure
    pytest bench/micro/bench_codec.py --benchmark-disable        smoke: each body once

Values (decode_packet, encode_packet) are what tests and the client see. The broker's own PUBLISH path builds no
value; its share of the codec are scan_publish_props and topic_valid, measured over LOOPS calls inside C.
"""
from collections.abc import Callable
from typing import Any

import pytest

from fluxmq._core.mqtt.decode import Decoder, decode_packet
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import Connect, Packet, Publish, Subscribe, Subscription, Will
from fluxmq._core.mqtt.props import encode_properties
from fluxmq._core.testing import codec as codec_testing

Benchmark = Callable[..., Any]
LOOPS = 1_000
BATCH = 100

USER_PROPERTIES: list[tuple[int, Any]] = [(0x03, "application/json"), (0x26, ("device", "d-17")),
                                          (0x26, ("site", "hamburg"))]
PACKETS: dict[str, tuple[int, Packet]] = {
    "publish-64B-v4": (4, Publish("bench/01", payload=bytes(64), qos=1, packet_id=7)),
    "publish-64B-v5": (5, Publish("bench/01", payload=bytes(64), qos=1, packet_id=7)),
    "publish-64B-v5-properties": (5, Publish("bench/01", payload=bytes(64), qos=1, packet_id=7,
                                             properties=USER_PROPERTIES)),
    "connect-v4": (4, Connect(client_id="device-0001", protocol_level=4, keep_alive=60, username="u", password=b"p")),
    "connect-v5-will": (5, Connect(client_id="device-0001", keep_alive=60, username="u", password=b"p",
                                   properties=[(0x11, 3600), (0x21, 100)],
                                   will=Will("state/device-0001", payload=b"gone", qos=1, retain=True))),
    "subscribe-v4": (4, Subscribe(1, [Subscription("bench/+/state", qos=1)])),
    "subscribe-v5": (5, Subscribe(1, [Subscription("bench/+/state", qos=1, retain_as_published=True)],
                                  properties=[(0x0B, 3)])),
}
PROPERTIES: dict[str, list[tuple[int, Any]]] = {
    "none": [],
    "content-type-2-user": USER_PROPERTIES,
    "alias-expiry-content-type-2-user": [(0x23, 5), (0x02, 60), *USER_PROPERTIES],
    "interrupted": [USER_PROPERTIES[0], (0x02, 60), *USER_PROPERTIES[1:]],
}
TOPICS = {"8B": b"bench/01", "30B": b"plant/hall-03/line-7/robot-12/",
          "30B-utf8": "werk/halle-03/förderband-12/ä/x".encode()}


@pytest.mark.parametrize("name", PACKETS)
def test_decode(benchmark: Benchmark, name: str) -> None:
    version, packet = PACKETS[name]
    wire = encode_packet(packet, version)
    assert wire[1] < 0x80    # a header of two bytes
    body = wire[2:]
    assert benchmark(decode_packet, wire[0], body, version) == packet


@pytest.mark.parametrize("name", PACKETS)
def test_encode(benchmark: Benchmark, name: str) -> None:
    version, packet = PACKETS[name]
    assert benchmark(encode_packet, packet, version)[0] >> 4 == packet.packet_type


def test_decoder_stream_of_100_publishes(benchmark: Benchmark) -> None:
    wire = encode_packet(Publish("bench/01", payload=bytes(64)), 4) * BATCH
    decoder = Decoder(4)

    def drain() -> int:
        decoder.feed(wire)
        count = 0
        while decoder.next_packet() is not None:
            count += 1
        return count

    assert benchmark(drain) == BATCH


@pytest.mark.parametrize("name", PROPERTIES)
def test_scan_publish_props_x1000(benchmark: Benchmark, name: str) -> None:
    wire = encode_properties(PROPERTIES[name], 3)
    assert benchmark(codec_testing.scan_many, wire[1:], LOOPS) == 0


@pytest.mark.parametrize("name", TOPICS)
def test_topic_valid_x1000(benchmark: Benchmark, name: str) -> None:
    assert benchmark(codec_testing.check_topic_many, TOPICS[name], LOOPS) == LOOPS
