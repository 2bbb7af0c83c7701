"""Any bytes get the specification's answer or a close, and nothing happens to anybody else.

The fuzzer is seeded: a seed and a number make the same bytes in the same pieces over the same transport. What it
sends is made of valid packets, spoilt in places, before and after CONNECT, in both versions, over TCP and WebSocket.
"""
from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from fuzz.fuzz_decoder import make_input, mutate
from kit.broker import Address, Broker
from kit.client import TIMEOUT, Client, Closed
from kit.mqtt_packets import random_packet
from kit.watch import Memory, metric, metrics, wait_until
from kit.websocket import BINARY, WebSocket
from oracle.mqtt import Connack, Connect, Disconnect, Malformed, Publish, Subscribe, Will, parse

from fluxmq._core.mqtt.encode import encode_packet

SEED = 7
MIB = 1 << 20
# PUBLISH and its acknowledgements, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, AUTH: what a client may send
CLIENT_PACKETS = (3, 3, 3, 4, 5, 6, 7, 8, 8, 10, 12, 14, 15)

Start = Callable[..., Broker]
Connected = Callable[..., Client]


def stream(seed: int, number: int) -> tuple[int, bytes]:
    """(version, bytes) of one connection: without CONNECT, with a spoilt one, or what follows a good one."""
    rng = Random(seed << 32 | number)
    if rng.random() < 0.4:
        version, data = make_input(seed, number)
        return max(version, 4), data
    version = rng.choice((4, 5))
    data = bytearray()
    for _ in range(rng.choice((1, 2, 5, 12))):
        kind = rng.choice(CLIENT_PACKETS if version == 5 else CLIENT_PACKETS[:-1])
        data += encode_packet(random_packet(rng, version, kind), version)
    for _ in range(rng.choice((0, 0, 1, 2, 6))):
        mutate(rng, data)
    connect = Connect(client_id=f"fuzz{number % 20}", clean_start=rng.random() < 0.7,
                      will=Will(topic="will", payload=b"x") if rng.random() < 0.2 else None)
    return version, connect.encode(version) + bytes(data)


def send_in_pieces(rng: Random, raw: socket.socket, data: bytes, websocket: bool) -> None:
    with contextlib.suppress(ConnectionError):
        while data:
            size = rng.choice((1, 2, 3, 17, 200, len(data)))
            piece, data = data[:size], data[size:]
            if websocket:
                mask = rng.randbytes(4)
                frame = bytearray(struct.pack(">BBH", 0x80 | BINARY, 0x80 | 126, len(piece)) + mask)
                frame += bytes(byte ^ mask[i & 3] for i, byte in enumerate(piece))
                if rng.random() < 0.02:
                    mutate(rng, frame)
                raw.sendall(frame)
            else:
                raw.sendall(piece)
        with contextlib.suppress(OSError):      # ENOTCONN, where it has been reset meanwhile
            raw.shutdown(socket.SHUT_WR)


def answers(raw: socket.socket) -> bytes:
    """Everything until the broker closes, which it must."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while data := raw.recv(65536):
            got += data
    return got


def check_answers(version: int, got: bytes, seen: Counter[str]) -> None:
    """Whole packets that a server may send, and nothing after one that ends the connection."""
    while got:
        try:
            found = parse(got, version)
        except Malformed:       # the level of a spoilt CONNECT may have become the other's
            found, version = parse(got, 9 - version), 9 - version
        if found is None:       # cut: the broker gave up on a client that had closed
            seen["cut"] += 1
            return
        packet, got = found
        seen[type(packet).__name__] += 1
        if isinstance(packet, Disconnect) or (isinstance(packet, Connack) and packet.reason):
            assert not got, f"{got!r} after {packet!r}"


def run_fuzz(broker: Broker, seed: int, first: int, count: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for number in range(first, first + count):
        rng = Random(~(seed << 32 | number))
        version, data = stream(seed, number)
        websocket = rng.random() < 0.3
        address: Address = broker.websocket if websocket else broker.address
        raw = WebSocket.open(address).raw if websocket else socket.create_connection(address, TIMEOUT)
        try:
            send_in_pieces(rng, raw, data[:60_000], websocket)
            got = answers(raw)
            if not websocket:
                check_answers(version, got, seen)
            seen["answered" if got else "closed"] += 1
        except TimeoutError:
            raise AssertionError(f"connection {number} of seed {seed} stays open after {data!r}") from None
        finally:
            raw.close()
    return seen


def descriptors(broker: Broker) -> int:
    assert broker.process is not None
    return len(os.listdir(f"/proc/{broker.process.pid}/fd"))


def fuzz(start_broker: Start, connect: Connected, seed: int, count: int) -> None:
    broker = start_broker({"session.max_offline_queue_size": 10, "broker.max_retained_messages": 50,
                           "broker.max_retained_bytes": "1MiB", "session.max_expiry_interval": 1,
                           "session.send_buffer_high": "64KiB", "session.send_buffer_low": "4KiB"})
    other = connect(broker, "other")
    other.subscribe("not/for/fuzzers", qos=1)
    seen = run_fuzz(broker, seed, 0, count)
    assert {"answered", "closed", "Connack", "Disconnect"} <= set(seen), seen
    wait_until(lambda: metric(broker, "fluxmq_connections") == 1)
    memory, files = Memory(broker), descriptors(broker)
    seen = run_fuzz(broker, seed, count, count)
    assert {"Suback", "Puback"} <= set(seen), seen
    other.publish("not/for/fuzzers", b"x", 1)
    other.receive("not/for/fuzzers", b"x")
    wait_until(lambda: metric(broker, "fluxmq_connections") == 1)
    wait_until(lambda: descriptors(broker) <= files)
    assert memory.grown < 8 * MIB
    wait_until(lambda: metric(broker, "fluxmq_sessions") == 1)
    gauges = metrics(broker)
    assert gauges["fluxmq_queued_messages"] == gauges["fluxmq_queued_bytes"] == gauges["fluxmq_inflight_messages"] == 0
    assert gauges["fluxmq_subscriptions"] == 1
    broker.check()


def test_fuzz(start_broker: Start, connect: Connected) -> None:
    fuzz(start_broker, connect, SEED, 700)


@pytest.mark.soak
def test_fuzz_for_long(start_broker: Start, connect: Connected, seed: int) -> None:
    fuzz(start_broker, connect, SEED + seed, 50_000)


@pytest.mark.parametrize("version", [4, 5])
def test_an_announcement_costs_no_memory(start_broker: Start, connect: Connected, version: int) -> None:
    """Judged by the fixed header: 256 MB announced and not sent are refused at once."""
    broker = start_broker()
    memory = Memory(broker)
    for _ in range(50):
        client = connect(broker, version=version)
        client.send(b"\x30\xff\xff\xff\x7f")
        client.expect_closed(*((0x95,) if version == 5 else ()))
        early = Client(broker.address, version)
        early.send(b"\x10\xff\xff\xff\x7f")
        early.expect_closed()
        early.close()
    assert memory.grown < 8 * MIB
    assert metric(broker, "fluxmq_disconnections_total", reason="packet_too_large") == 50


def test_many_halves_of_packets(start_broker: Start, connect: Connected) -> None:
    """What is announced and allowed costs memory only as it arrives."""
    broker = start_broker({"broker.max_message_size": "100MiB"})
    memory = Memory(broker)
    clients = [connect(broker) for _ in range(20)]
    for client in clients:
        client.send(b"\x30\x80\x80\x80\x28" + b"\x00\x01t\x00")       # 80 MiB of PUBLISH
    clients[0].close()
    connect(broker).expect_quiet()
    assert memory.grown < 32 * MIB


@pytest.mark.parametrize(("settings", "packet", "reason"), [
    ({"broker.max_topic_levels": 3}, Publish(topic="a/b/c/d"), 0x90),
    ({"broker.max_user_properties": 2}, Publish(topic="a", properties=[("user_property", ("a", "b"))] * 3), 0x97),
    ({"broker.max_user_properties": 2}, Subscribe(packet_id=1, filters=[("a", 0)],
                                                  properties=[("user_property", ("a", "b"))] * 3), 0x97),
    ({"broker.max_message_size": 1024}, Publish(topic="a", payload=bytes(1025)), 0x95),
    ({"broker.max_qos": 1}, Publish(topic="a", qos=2, packet_id=1), 0x9B),
    ({"broker.topic_alias_max": 2}, Publish(topic="a", properties={"topic_alias": 3}), 0x94),
])
def test_limits_that_end_the_connection(start_broker: Start, connect: Connected, settings: dict[str, object],
                                        packet: Publish, reason: int) -> None:
    broker = start_broker(settings)
    client = connect(broker)
    client.send(packet)
    client.expect_closed(reason)
    connect(broker).expect_quiet()


@pytest.mark.parametrize("properties", [
    {"connect": [("user_property", ("a", "b"))] * 3}, {"will": [("user_property", ("a", "b"))] * 3}])
def test_user_properties_of_connect_and_will(start_broker: Start, properties: dict[str, list[object]]) -> None:
    broker = start_broker({"broker.max_user_properties": 2})
    client = Client(broker.address)
    client.send(Connect(client_id="a", properties=properties.get("connect", ()),
                        will=Will(topic="w", payload=b"", properties=properties.get("will", ()))))
    client.expect_refused(0x83)
    client.close()


def test_limits_that_refuse(start_broker: Start, connect: Connected) -> None:
    broker = start_broker({"broker.max_subscriptions_per_client": 2, "broker.max_topic_levels": 3,
                           "session.max_sessions": 3})
    client = connect(broker, "a")
    client.subscribe("1", "2", "3", "1", expect=[0, 0, 0x97, 0])
    client.subscribe("a/b/c/d", expect=[0x8F])
    connect(broker, "b")
    connect(broker, "c")
    refused = Client(broker.address)
    refused.send(Connect(client_id="d"))
    refused.expect_refused(0x97)
    refused.close()
    long = Client(broker.address)
    long.send(Connect(client_id="x" * 1025))
    long.expect_refused(0x85)
    long.close()
    seen = metrics(broker)
    assert seen['fluxmq_connect_refused_total{reason="quota"}'] == 1
    assert seen['fluxmq_connect_refused_total{reason="client_id"}'] == 1


def test_max_connections(start_broker: Start, connect: Connected) -> None:
    broker = start_broker({"server.mqtt.tcp.plain.max_connections": 3})
    inside = [connect(broker) for _ in range(3)]
    for _ in range(20):
        with contextlib.suppress(ConnectionError), pytest.raises(Closed):
            Client(broker.address).recv()
    assert metric(broker, "fluxmq_connect_refused_total", reason="max_connections") == 20
    inside.pop().disconnect()
    connect(broker).expect_quiet()
    assert broker.stderr().count("max_connections") <= 10     # one a second


def test_topics_as_long_as_they_come(start_broker: Start, connect: Connected) -> None:
    """The cache of routes is bounded in entries; long topics must not make its bytes unbounded."""
    broker = start_broker({"broker.route_cache_entries": 4096})
    client = connect(broker)
    client.publish("warm")
    client.expect_quiet()
    memory = Memory(broker)
    for number in range(1500):
        client.publish(f"{number}" + "x" * 60_000)
        client.transcript.clear()
    client.expect_quiet()
    assert memory.grown < 16 * MIB


def test_permissions_of_topics_as_long_as_they_come(start_broker: Start, connect: Connected, tmp_path: Path) -> None:
    """So must the answers of the ACL that a connection remembers."""
    acl = tmp_path / "acl.yaml"
    acl.write_text("version: 1\nrules:\n  - {deny: publish, topics: [no]}\n  - {allow: all, topics: ['#']}\n")
    broker = start_broker({"auth.acl_file": acl, "auth.allow_anonymous": True})
    client = connect(broker)
    client.publish("warm")
    client.expect_quiet()
    memory = Memory(broker)
    for number in range(1000):
        client.publish(f"{number}" + "x" * 60_000)
        client.transcript.clear()
    client.expect_quiet()
    assert memory.grown < 16 * MIB
