"""QoS 0 PUBLISH that are copied in runs, as they came: nobody may be able to tell (Connection.pass_on).

A stream of PUBLISH in which runs begin and end for every possible reason is sent in pieces of every size; each
subscriber must get exactly the messages that a copy for each would have given it, in order.
"""
from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.broker import Broker
from kit.client import Client
from kit.websocket import WebSocket
from oracle.mqtt import Publish

TOPICS = ["t", "t/u", "t/" + "v" * 150, "other"]
SIZES = [0, 1, 60, 64, 121, 124, 130, 4094, 4095, 4096, 5000, 9000]
MESSAGES = 700
PROPERTIES: list[dict[str, object]] = [
    {}, {"content_type": "text/plain"}, {"content_type": "text/plain", "response_topic": "r" * 100},
    {"message_expiry_interval": 3600}, {"content_type": "x" * 130}, {"payload_format_indicator": 1}]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, {"storage.type": "memory", "server.mqtt.websocket.plain.addr": "127.0.0.1:0",
                           "broker.topic_alias_max": 4}) as one:
        yield one


def stream(rng: random.Random, version: int) -> list[Publish]:
    """Packets with long runs of one kind, and what breaks them."""
    packets: list[Publish] = []
    while len(packets) < MESSAGES:
        topic, size = rng.choice(TOPICS), rng.choice(SIZES)
        properties = rng.choice(PROPERTIES) if version == 5 else {}
        for _ in range(rng.choice([1, 1, 2, 5, 100])):
            number = len(packets)
            payload = b"%08d" % number
            options: dict[str, object] = {"properties": properties}
            odd = rng.random()
            if odd < 0.02:
                options["qos"], options["packet_id"] = 1, number % 60000 + 1
            elif odd < 0.03:
                options["retain"] = True
            elif odd < 0.05 and version == 5:
                options["properties"] = rng.choice(PROPERTIES)
            elif odd < 0.07:
                size = rng.choice(SIZES)
            payload += b"." * max(0, size - 8)
            packets.append(Publish(topic=topic, payload=payload, **options))  # type: ignore[arg-type]
    return packets


def send_in_pieces(client: Client, data: bytes, rng: random.Random) -> None:
    at = 0
    while at < len(data):
        step = rng.choice([1, 3, 50, 1000, 65536, 300_000])
        client.send(data[at:at + step])
        at += step


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("seed", range(3))
def test_every_subscriber_gets_what_it_should(broker: Broker, version: int, seed: int) -> None:
    rng = random.Random(f"{version} {seed}")
    packets = stream(rng, version)
    everything = list(range(len(packets)))
    below_t = [number for number, packet in enumerate(packets) if packet.topic != "other"]
    exactly_t = [number for number, packet in enumerate(packets) if packet.topic == "t"]

    publisher = Client(broker.address, version)
    publisher.connect(f"pub{version}{seed}")
    subscribers: list[tuple[Client, list[int]]] = []

    def add(client: Client, name: str, wanted: list[int], *filters: str, **options: object) -> None:
        client.connect(f"{name}{version}{seed}", **options)
        client.subscribe(*filters)
        subscribers.append((client, wanted))

    add(Client(broker.address, version), "below", below_t, "t/#")
    add(Client(WebSocket.open(broker.addresses["mqtt/websocket/plain"]), version), "web", everything, "#")
    if seed == 1:
        add(Client(broker.address, version), "twice", everything, "#", "t/+", "t")
        add(Client(broker.address, 9 - version), "other version", exactly_t, "t")
        add(Client(broker.address, 5), "alias", [n for n in everything if n not in below_t], "other",
            properties={"topic_alias_maximum": 4})
    if seed == 2:
        # No Local, or a share group, sends a whole run the long way.
        publisher.subscribe("#" if version == 4 else ("#", 0x04))  # type: ignore[arg-type]
        add(Client(broker.address, version), "share", everything, "$share/g/#")

    send_in_pieces(publisher, b"".join(packet.encode(version) for packet in packets), rng)
    for client, wanted in subscribers:
        aliases: dict[int, str] = {}
        for number in wanted:
            got = client.receive()
            client.transcript.clear()
            alias = got.prop("topic_alias")
            topic = got.topic or aliases[alias]
            if alias:
                aliases[alias] = topic
            sent = packets[number]
            assert (topic, got.payload, got.qos) == (sent.topic, sent.payload, 0), f"message {number}"
            if version == 5 and client.version == 5:
                assert got.prop("content_type") == sent.prop("content_type")
                assert got.prop("response_topic") == sent.prop("response_topic")
                assert (got.prop("message_expiry_interval") is None) == (sent.prop("message_expiry_interval") is None)
        client.expect_quiet()
    for client, _ in subscribers:
        client.disconnect()
