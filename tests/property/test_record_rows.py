"""Rows of random packet sequences are those of a plain oracle, however the packets are put into entries and batches."""
from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kit.mqtt_packets import random_packet
from kit.oracle_packets import amqp_properties, wire_of
from kit.record_entries import AMQP091, IN, MQTT, OUT, START, entry, filler, lost
from oracle.recorded import AmqpOracle, Oracle

from fluxmq._core.amqp091.methods import (
    BasicAck,
    BasicDeliver,
    BasicPublish,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
)
from fluxmq._core.mqtt.packets import ConnAck, Connect, Packet, PubAck, PubComp, Publish, PubRec, PubRel, SubAck
from fluxmq._core.record.rows import RecordRows
from fluxmq.record.files import batch_of_columns
from fluxmq.record.schema import SCHEMA

JSON = ("properties", "detail")
WAYS = {IN: "in", OUT: "out"}
PAYLOADS = st.sampled_from(["full", "hash", "size"])
Step = tuple[int, int, int, bytes]      # kind, protocol, connection, whole packets; kind 6: a loss


def rows_of(entries: bytes, batch_rows: int = 1 << 20, **options: Any) -> list[dict[str, Any]]:
    """As plain dicts, JSON parsed, what is null left out."""
    machine = RecordRows(batch_rows=batch_rows, **options)
    found: list[dict[str, Any]] = []
    at = 0
    while at < len(entries):
        at = machine.feed(entries, at)
        if machine.full or at == len(entries):
            batch = batch_of_columns(*machine.take())
            batch.validate(full=True)
            table = batch.set_column(1, "time", batch.column("time_ns")).drop_columns("time_ns")
            found += table.to_pylist()
    return [plain(row) for row in found]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    assert set(row) <= set(SCHEMA.names)
    return {name: json.loads(value) if name in JSON and isinstance(value, str) else value
            for name, value in row.items() if value is not None}


def entries_of(steps: list[Step], rng: Random) -> bytes:
    """Packets of one connection and direction that follow each other may come in one entry; they have one time then,
    so each step has its own and only the cut of AMQP frames and the fillers are random here."""
    parts = []
    for number, (kind, protocol, connection, data) in enumerate(steps):
        if rng.random() < 0.1:
            parts.append(filler(rng.choice((8, 32, 64))))
        time = START + number * 1_000
        if kind == 6:
            parts.append(lost(3, 99, time=time))
        else:
            parts.append(entry(kind, connection, data, protocol=protocol, time=time))
    return b"".join(parts)


# ── MQTT ─────────────────────────────────────────────────────────────────────────────────────────────────────

ANSWERS = [lambda n: PubAck(n), lambda n: PubRec(n), lambda n: PubRec(n, reason_code=0x80), lambda n: PubRel(n),
           lambda n: PubComp(n), lambda n: SubAck(n, [0])]


def dialogue(rng: Random, version: int) -> list[tuple[int, Packet]]:
    """Anything that decodes, with few packet identifiers and aliases, so that much is answered."""
    packets: list[tuple[int, Packet]] = [(IN, Connect(client_id=f"c{rng.randint(0, 3)}", protocol_level=version)),
                                         (OUT, ConnAck())]
    for _ in range(rng.randint(0, 25)):
        way = rng.choice((IN, OUT))
        number = rng.randint(1, 3)
        choice = rng.random()
        if choice < 0.4:
            qos = rng.randint(0, 2)
            alias = [(0x23, rng.randint(1, 2))] if version == 5 and rng.random() < 0.5 else []
            topic = "" if alias and rng.random() < 0.5 else f"t/{rng.randint(0, 3)}"
            packets.append((way, Publish(topic, payload=rng.randbytes(rng.choice((0, 1, 31, 32, 200))), qos=qos,
                                         packet_id=number if qos else 0, dup=bool(qos and rng.random() < 0.2),
                                         retain=rng.random() < 0.2, properties=alias)))
        elif choice < 0.75:
            made = rng.choice(ANSWERS)
            packet: Any = made(number)
            if version < 5 and getattr(packet, "reason_code", 0):
                packet = PubRec(number)
            packets.append((way, packet))
        else:
            packet = random_packet(rng, version)
            if not isinstance(packet, Connect) or packet.protocol_level == version:
                packets.append((way, packet))
    return packets


@given(st.randoms(use_true_random=False), st.sampled_from([3, 4, 5]), PAYLOADS, st.sampled_from([1, 7, 1 << 20]))
@settings(max_examples=150, deadline=None)
def test_mqtt(rng: Random, version: int, payload: str, batch_rows: int) -> None:
    oracle = Oracle(payload)
    steps: list[Step] = []
    waiting = {connection: dialogue(rng, version) for connection in (1, 2)}
    while any(waiting.values()):
        if rng.random() < 0.03:
            oracle.lost(START + len(steps) * 1_000, 3, 99)
            steps.append((6, 0, 0, b""))
        connection = rng.choice([one for one, packets in waiting.items() if packets])
        way, packet = waiting[connection].pop(0)
        data = wire_of(packet, version)
        oracle.mqtt(connection, WAYS[way], START + len(steps) * 1_000, packet, len(data))
        steps.append((way, MQTT, connection, data))
    found = rows_of(entries_of(steps, rng), batch_rows, payload=payload)
    assert found == [plain(row) for row in oracle.rows]


@given(st.randoms(use_true_random=False), st.sampled_from([3, 4, 5]))
@settings(max_examples=60, deadline=None)
def test_any_splitting_gives_the_same(rng: Random, version: int) -> None:
    """Packets one by one, or many in an entry, all of one time: the same rows."""
    runs: list[tuple[int, list[bytes]]] = []
    for way, packet in dialogue(rng, version):
        if not runs or runs[-1][0] != way:
            runs.append((way, []))
        runs[-1][1].append(wire_of(packet, version))
    apart = b"".join(entry(way, 1, data) for way, packets in runs for data in packets)
    together = b"".join(entry(way, 1, b"".join(packets)) for way, packets in runs)
    cut = []
    for way, packets in runs:
        at = rng.randint(0, len(packets))
        cut += [entry(way, 1, b"".join(some)) for some in (packets[:at], packets[at:]) if some]
    assert rows_of(apart) == rows_of(together) == rows_of(b"".join(cut), 3)


# ── AMQP ─────────────────────────────────────────────────────────────────────────────────────────────────────

PROPERTIES: list[dict[str, Any]] = [
    {}, {"delivery_mode": 2}, {"content_type": 'a"\\\x01/ü', "priority": 3, "timestamp": 1_700_000_000},
    {"headers": {"n": 1, "deep": [1, {"x": "y"}], "none": None}, "message_id": "m", "correlation_id": "c"}]


def content_frames(channel: int, method: Any, properties: dict[str, Any], body: bytes, rng: Random) -> list[bytes]:
    head = struct.pack(">HHQ", 60, 0, len(body)) + amqp_properties(properties)
    frames = [method.frame(channel), struct.pack(">BHI", 2, channel, len(head)) + head + b"\xCE"]
    while body:
        n = rng.randint(1, len(body))
        frames.append(struct.pack(">BHI", 3, channel, n) + body[:n] + b"\xCE")
        body = body[n:]
    return frames


class Amqp:
    """One connection's steps, and what the oracle expects of them."""

    def __init__(self, rng: Random, payload: str) -> None:
        self.rng = rng
        self.oracle = AmqpOracle(payload)
        self.steps: list[Step] = []
        self.tag = 0

    def now(self) -> int:
        return START + (len(self.steps) - 1) * 1_000

    def put(self, way: int, data: bytes) -> None:
        self.steps.append((way, AMQP091, 1, data))

    def message(self, way: int, frames: list[bytes]) -> int:
        """Cut into entries at random frames."""
        cuts = sorted({self.rng.randint(1, len(frames)) for _ in range(self.rng.randint(0, 2))} | {len(frames)})
        at = 0
        for cut in cuts:
            self.put(way, b"".join(frames[at:cut]))
            at = cut
        return sum(map(len, frames))

    def method(self, way: int, channel: int, method: Any, detail: dict[str, Any] | None, asks: str = "") -> None:
        data = method.frame(channel)
        self.put(way, data)
        self.oracle.method(1, channel, self.now(), WAYS[way], method.name, len(data), detail, asks or None)

    def open(self, channel: int) -> None:
        self.method(IN, channel, ChannelOpen(), None, "channel.open-ok")
        self.method(OUT, channel, ChannelOpenOk(), None)

    def step(self, channel: int) -> None:
        rng = self.rng
        choice = rng.random()
        properties = rng.choice(PROPERTIES)
        body = rng.randbytes(rng.choice((0, 1, 40, 300)))
        key = f"k.{rng.randint(0, 2)}"
        if choice < 0.35:
            size = self.message(IN, content_frames(channel, BasicPublish(exchange="e", routing_key=key), properties,
                                                   body, rng))
            self.oracle.publish(1, channel, self.now(), size, "e", key, properties or None, body)
        elif choice < 0.6:
            self.tag += 1
            again = rng.random() < 0.3
            method = BasicDeliver(consumer_tag="c\u00fc", delivery_tag=self.tag, redelivered=again, exchange="",
                                  routing_key=key)
            size = self.message(OUT, content_frames(channel, method, properties, body, rng))
            self.oracle.deliver(1, channel, self.now(), size, self.tag, again, "c\u00fc", "", key, properties or None,
                                body)
        elif choice < 0.9:
            way = rng.choice((IN, OUT))
            tag, multiple = rng.randint(0, self.tag + 1), rng.random() < 0.4
            tag = tag if multiple else tag or 1
            self.put(way, BasicAck(delivery_tag=tag, multiple=multiple).frame(channel))
            self.oracle.settle(1, channel, self.now(), WAYS[way], tag, multiple)
        elif choice < 0.97:
            self.method(IN, channel, QueueDeclare(queue="q", durable=True, arguments={"x": b"\x01"}), {
                "queue": "q", "passive": False, "durable": True, "exclusive": False, "auto_delete": False,
                "no_wait": False, "arguments": {"x": "AQ=="}}, "queue.declare-ok")
            self.method(OUT, channel, QueueDeclareOk(queue="q", message_count=1, consumer_count=2), {
                "queue": "q", "message_count": 1, "consumer_count": 2})
        else:
            self.steps.append((6, 0, 0, b""))
            self.oracle.lost(self.now(), 3, 99)


@given(st.randoms(use_true_random=False), PAYLOADS, st.sampled_from([1, 7, 1 << 20]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_amqp(rng: Random, payload: str, batch_rows: int, confirms: bool) -> None:
    made = Amqp(rng, payload)
    for channel in (1, 2):
        made.open(channel)
    if confirms:
        made.method(IN, 1, ConfirmSelect(), {"no_wait": False}, "confirm.select-ok")
        made.method(OUT, 1, ConfirmSelectOk(), None)
    for _ in range(rng.randint(0, 30)):
        made.step(rng.choice((1, 2)))
    found = rows_of(entries_of(made.steps, rng), batch_rows, payload=payload)
    assert found == [plain(row) for row in made.oracle.rows]


@given(st.randoms(use_true_random=False), st.binary(max_size=60), st.sampled_from([MQTT, AMQP091]))
@settings(max_examples=200, deadline=None)
def test_garbage_is_a_row_and_the_rest_is_counted(rng: Random, garbage: bytes, protocol: int) -> None:
    """Whatever bytes: no error leaves the machine, every byte is in a row or counted."""
    before = wire_of(Connect(client_id="c"), 5) if protocol == MQTT else ChannelOpen().frame(1)
    entries = entry(IN, 1, before, protocol=protocol) + entry(IN, 1, garbage, protocol=protocol) + entry(
        IN, 1, garbage, protocol=protocol)
    machine = RecordRows()
    assert machine.feed(entries) == len(entries)
    batch = batch_of_columns(*machine.take())
    batch.validate(full=True)
    kinds = batch.column("kind").to_pylist()
    sizes = batch.column("bytes").to_pylist()
    counted = sum(size for kind, size in zip(kinds, sizes, strict=True) if kind != "malformed")
    assert counted + machine.undecoded_bytes <= len(before) + 2 * len(garbage)
    if "malformed" in kinds:
        assert counted + machine.undecoded_bytes == len(before) + 2 * len(garbage)
        assert kinds.count("malformed") == 1 and kinds[-1] == "malformed"
