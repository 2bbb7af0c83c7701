"""Bytes of bodies are changed at random: every other packet of the connection is a row as if nothing had been there.

The lengths of MQTT packets, and the heads and ends of AMQP frames, stay as they are, so each packet ends where it did.
"""
from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.mqtt_packets import random_packet
from kit.oracle_packets import amqp_properties, wire_of
from kit.record_entries import AMQP091, IN, MQTT, OUT, entry

from fluxmq._core.amqp091.methods import (
    BasicAck,
    BasicDeliver,
    BasicPublish,
    BasicQos,
    ChannelOpen,
    ChannelOpenOk,
    QueueDeclare,
    QueueDeclareOk,
)
from fluxmq._core.mqtt.packets import ConnAck, Connect, Publish
from fluxmq._core.record.rows import RecordRows
from fluxmq.record.files import batch_of_columns

Rows = list[dict[str, Any]]
SEEDS = st.integers(0, 2**32)       # all that is random comes of it: too much for Hypothesis to draw by itself
SAME = ("kind", "direction", "packet_id", "topic", "exchange", "qos", "retain", "dup", "reason", "properties", "detail",
        "payload", "digest", "size", "bytes", "channel", "version")


def recorded(pieces: list[tuple[int, bytes]], protocol: int, rng: Random) -> tuple[RecordRows, Rows]:
    """Pieces of a direction that follow each other may come in one entry."""
    machine = RecordRows(payload="full", go_on=True)
    together: list[tuple[int, bytes]] = []
    for way, data in pieces:
        if together and together[-1][0] == way and rng.random() < 0.5:
            together[-1] = (way, together[-1][1] + data)
        else:
            together.append((way, data))
    entries = b"".join(entry(way, 1, data, protocol=protocol) for way, data in together)
    assert machine.feed(entries) == len(entries)
    batch = batch_of_columns(*machine.take())
    batch.validate(full=True)
    return machine, batch.to_pylist()


def essence(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in SAME}


def changed(data: bytes, rng: Random, first: int, last: int) -> bytes:
    """Some bytes of first..last are others."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        made[rng.randrange(first, last)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(made)


def body_of(packet: bytes) -> int:
    """Where the body of an MQTT packet begins."""
    at = 1
    while packet[at] & 0x80:
        at += 1
    return at + 1


def accounted(machine: RecordRows, rows: Rows, total: int) -> None:
    """Each byte is one of a row or an undecoded one, and those of invalid packets are said."""
    malformed = [row for row in rows if row["kind"] == "malformed"]
    assert sum(row["bytes"] for row in rows) - sum(row["bytes"] for row in malformed) + machine.undecoded_bytes == total
    assert sum(found[2] for found in machine.invalid) == len(malformed)
    assert sum(found[3] for found in machine.invalid) == machine.undecoded_bytes
    assert not any(found[4] for found in machine.invalid)
    assert all(json.loads(row["detail"])["went_on"] for row in malformed)


@given(SEEDS, st.sampled_from([3, 4, 5]))
@settings(max_examples=200, deadline=None)
def test_mqtt(seed: int, version: int) -> None:
    rng = Random(seed)
    packets: list[tuple[int, Any]] = [(IN, Connect(client_id="c", protocol_level=version)), (OUT, ConnAck())]
    while len(packets) < 30:
        packet = random_packet(rng, version)
        if not isinstance(packet, Connect | ConnAck) and not (isinstance(packet, Publish) and packet.get(0x23)):
            packets.append((rng.choice((IN, OUT)), packet))     # an alias has a test of its own
    pieces = [(way, wire_of(packet, version)) for way, packet in packets]
    bad = set()
    for n in rng.sample(range(2, 30), rng.randint(1, 12)):
        way, data = pieces[n]
        if body_of(data) < len(data):
            bad.add(n)
            pieces[n] = (way, changed(data, rng, body_of(data), len(data)))
        elif rng.random() < 0.5:
            bad.add(n)
            pieces[n] = (way, bytes([data[0] ^ rng.randint(1, 15)]) + data[1:])     # its flags
    machine, rows = recorded(pieces, MQTT, rng)
    _, good = recorded([(way, wire_of(packet, version)) for way, packet in packets], MQTT, rng)
    assert len(rows) == len(pieces)
    assert [row["bytes"] for row in rows] == [len(data) for _, data in pieces]
    assert [essence(row) for n, row in enumerate(rows) if n not in bad] == [
        essence(row) for n, row in enumerate(good) if n not in bad]
    accounted(machine, rows, sum(len(data) for _, data in pieces))


def message(method: Any, channel: int, body: bytes, properties: dict[str, Any], rng: Random) -> list[bytes]:
    head = struct.pack(">HHQ", 60, 0, len(body)) + amqp_properties(properties)
    frames = [method.frame(channel), struct.pack(">BHI", 2, channel, len(head)) + head + b"\xce"]
    while body:
        n = rng.randint(1, len(body))
        frames.append(struct.pack(">BHI", 3, channel, n) + body[:n] + b"\xce")
        body = body[n:]
    return frames


def unit(way: int, channel: int, number: int, rng: Random) -> list[bytes]:
    """A method, or a message with all its frames, that a number tells from all others."""
    body = b"%08d" % number * rng.randint(1, 9)
    properties = rng.choice(({}, {"delivery_mode": 2, "headers": {"n": number, "deep": [1, {"x": "y"}]}}))
    if rng.random() < 0.6:
        method: Any = (BasicPublish(exchange="e", routing_key=f"k.{number}") if way == IN else BasicDeliver(
            consumer_tag="c", delivery_tag=number, exchange="e", routing_key=f"k.{number}"))
        return message(method, channel, body, properties, rng)
    made = rng.choice((BasicAck(delivery_tag=number), BasicQos(prefetch_count=number),
                       QueueDeclare(queue=f"q{number}") if way == IN else QueueDeclareOk(queue=f"q{number}")))
    return [made.frame(channel)]


def numbered(row: dict[str, Any], number: int) -> bool:
    """Whether it is the row of the unit with that number, unchanged."""
    said = json.loads(row["detail"]) if row["detail"] else {}
    return (row["topic"] == f"k.{number}" or (row["kind"] == "basic.ack" and row["packet_id"] == number)
            or said.get("prefetch_count") == number or said.get("queue") == f"q{number}")


@pytest.mark.parametrize("way", [IN, OUT])
@given(seed=SEEDS)
@settings(max_examples=150, deadline=None)
def test_amqp(way: int, seed: int) -> None:
    """Two channels whose frames come mixed: of the first, some units are changed; those of the second never."""
    rng = Random(seed)
    bad: set[int] = set()
    streams: dict[int, list[bytes]] = {}
    numbers = {1: range(1001, 1016), 2: range(2001, 2016)}
    for channel in (1, 2):
        frames: list[bytes] = []
        for number in numbers[channel]:
            made = unit(way, channel, number, rng)
            if channel == 1 and number > 1001 and rng.random() < 0.4:
                bad.add(number)
                at = rng.randrange(len(made))
                made[at] = changed(made[at], rng, 7, len(made[at]) - 1)
            frames += made
        last = BasicPublish(exchange="e") if way == IN else BasicDeliver(exchange="e", delivery_tag=9000)
        # What a broken message still waited for is decided by the next one.
        streams[channel] = frames + message(last, channel, b"", {}, rng)
    pieces = [(one, method.frame(channel)) for channel in (1, 2) for one, method in (
        (IN, ChannelOpen()), (OUT, ChannelOpenOk()))]
    while any(streams.values()):
        pieces.append((way, rng.choice([frames for frames in streams.values() if frames]).pop(0)))
    machine, rows = recorded(pieces, AMQP091, rng)
    found = [row for row in rows if row["kind"] != "malformed"]
    for channel in (1, 2):
        kept = [number for number in numbers[channel] if number not in bad]
        its = [row for row in found if row["channel"] == channel]
        rest = iter(its)            # a changed byte may make the number of another one, so: in this order
        missing = [number for number in kept if not any(numbered(row, number) for row in rest)]
        assert not missing
        assert its[-1]["exchange"] == "e" and its[-1]["size"] == 0
    assert not any(row["channel"] == 2 for row in rows if row["kind"] == "malformed")
    accounted(machine, rows, sum(len(data) for _, data in pieces))
