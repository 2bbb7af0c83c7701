"""What LaneCounts counts of random streams is what a plain model counts of the rows that a plain oracle makes of them,
however the stream is cut into calls of feed() and take()."""
from __future__ import annotations

import struct
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.oracle_packets import amqp_properties, wire_of
from kit.record_entries import AMQP091, IN, MQTT, OUT, START, entry, lost
from oracle.recorded import AmqpOracle

from fluxmq._core.amqp091.methods import (
    BasicAck,
    BasicDeliver,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
)
from fluxmq._core.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from fluxmq._core.record.counts import BUCKETS, KINDS, LaneCounts

REMEMBERED = 1 << 17    # rows whose lane an answer finds, as REMEMBERED in counts.pyx
AMQP_CONNECTION = 9
USER_PROPERTY = 38
WAYS = {IN: "in", OUT: "out"}
ORDERS = {"$ack": "ack", "$commit": "ack", "$nack": "nack", "$reject": "nack"}
TOPICS = ["a", "b", "$queue/q", "$queue/q", "$queue/r", "$queue/q/$ack", "$queue/q/$nack", "$queue/r/$commit",
          "$queue/q/$reject", "$queue/q/$extend", "x/$ack"]
REASONS = {PubAck: (0, 0, 0x10, 0x80, 0x97), PubRec: (0, 0, 0x10, 0x80, 0x97), PubComp: (0, 0, 0x92)}   # of MQTT 5
# First lane and lanes: queues q and r have 3 and 4 partitions.
LANES = {"a": (1, 1), "b": (2, 1), "q": (10, 3), "r": (20, 4), "x": (30, 1)}


def lane_of(topic: bytes, exchange: bytes | None) -> tuple[int, int]:
    name = topic.decode().removeprefix("$queue/").partition("/")[0]
    first, width = LANES[name]
    return (first + 100, width) if exchange else (first, width)      # an exchange that is not the default one


class Model:
    """Counts rows of the oracle, as the page of the live view says: by lane and kind."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, str]] = Counter()
        self.latencies = {"confirm": Counter[int](), "ack": Counter[int]()}
        self.turns: Counter[int] = Counter()
        self.lanes: list[int] = []

    def row(self, row: dict[str, Any]) -> None:
        lane = 0
        if row.get("topic") is not None:
            lane = self.lane(row)
        elif row.get("answers") is not None and row["seq"] - row["answers"] < REMEMBERED:
            lane = self.lanes[row["answers"]]
        assert len(self.lanes) == row["seq"]
        self.lanes.append(lane)
        kind = kind_of(row)
        if kind:
            self.counts[lane, kind] += 1
        if kind in self.latencies and row.get("ack_latency") is not None:
            self.latencies[kind][bucket(row["ack_latency"])] += 1

    def lane(self, row: dict[str, Any]) -> int:
        first, width = lane_of(row["topic"].encode(), row.get("exchange", "").encode())
        told = dict((row.get("properties") or {}).get("user_property", ())) | (
            (row.get("properties") or {}).get("headers") or {})
        at = -1
        if row["direction"] == "out" or order(row["topic"]):
            if partition := told.get("message-id", ""):
                at = int(partition.partition(":")[0])
        elif "partition-key" in told:
            at = fnv(told["partition-key"]) % width
        if width > 1 and not 0 <= at < width:
            at = self.turns[first] % width
            self.turns[first] += 1
        return first + (at if width > 1 else 0)


def order(topic: str) -> str:
    """What a publish to a queue's command is; "": it is a message."""
    return ORDERS.get(topic.rpartition("/")[2], "") if topic.startswith("$queue/") else ""


def fnv(key: str) -> int:
    """The partition of a key is the rest of this; drawn in fluxmq/_core/queue/queue.pxd."""
    h = 2166136261
    for byte in key.encode():
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    return h ^ h >> 15


def bucket(ns: int) -> int:
    us = max(ns, 0) // 1000
    shift = max(us.bit_length() - 4, 0)
    return min(8 * shift + (us >> shift), BUCKETS - 1)


def kind_of(row: dict[str, Any]) -> str:
    kind, comes = row["kind"], row.get("direction") == "in"
    reason = row.get("reason") or 0
    if kind == "PUBLISH":
        return (order(row["topic"]) or "publish") if comes else "deliver"
    if kind in ("PUBACK", "PUBREC", "PUBCOMP"):
        if reason >= 0x80:
            return "nack" if comes else "error"
        return "" if kind == "PUBREC" else "ack" if comes else "confirm"
    if kind in ("CONNACK", "DISCONNECT"):
        return "error" if reason >= (1 if kind == "CONNACK" else 0x80) else ""
    if kind in ("channel.close", "connection.close"):
        return "error" if reason >= 300 else ""
    return {"PINGREQ": "ping", "basic.publish": "publish", "basic.deliver": "deliver", "basic.get-ok": "deliver",
            "basic.return": "error", "basic.ack": "ack" if comes else "confirm",
            "basic.nack": "nack" if comes else "error", "basic.reject": "nack"}.get(kind, "")


class Stream:
    """Entries, and the rows that they are."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.oracle = AmqpOracle("size")
        self.entries: list[bytes] = []
        self.now = START
        self.tag = 0

    def put(self, way: int, connection: int, data: bytes) -> None:
        self.now += self.rng.choice((0, 1, 7_999, 8_000, 300_000, 5_000_000, 400_000_000_000))
        protocol = AMQP091 if connection == AMQP_CONNECTION else MQTT
        self.entries.append(entry(way, connection, data, protocol=protocol, time=self.now))

    def loss(self) -> None:
        self.entries.append(lost(3, 99, time=self.now))
        self.oracle.lost(self.now, 3, 99)

    # ── MQTT ─────────────────────────────────────────────────────────────────────────────────────────────────

    def packet(self, connection: int, way: int, packet: Packet) -> None:
        data = wire_of(packet, 5 if connection == 1 else 4)
        self.put(way, connection, data)
        self.oracle.mqtt(connection, WAYS[way], self.now, packet, len(data))

    def mqtt(self, connection: int) -> None:
        """Few packet identifiers, so that much is answered."""
        rng, way, number = self.rng, self.rng.choice((IN, OUT)), self.rng.randint(1, 3)
        choice = rng.random()
        if choice < 0.5:
            qos, said = rng.randint(0, 2), []
            if connection == 1:
                said = [(USER_PROPERTY, pair) for pair in rng.sample([
                    ("partition-key", rng.choice(("", "k", "customer-7"))), ("queue", "q"), ("message-id", rng.choice(
                        ("0:1", "1:17", "2:5", "3:9999999", "4:1", "99999999999999999999:1", "")))], rng.randint(0, 3))]
            self.packet(connection, way, Publish(rng.choice(TOPICS), payload=b"x", qos=qos, packet_id=qos and number,
                                                 properties=said))
        elif choice < 0.9:
            made: Any = rng.choice((PubAck, PubAck, PubRec, PubRel, PubComp))
            reason = rng.choice(REASONS.get(made, (0,))) if connection == 1 else 0
            self.packet(connection, way, made(number, reason_code=reason))
        elif choice < 0.95:
            self.packet(connection, IN, PingReq())
            self.packet(connection, OUT, PingResp())
        elif connection == 1:
            self.packet(connection, way, Disconnect(reason_code=rng.choice((0, 4, 0x80, 0x8D))))
        else:
            self.packet(connection, OUT, ConnAck(reason_code=rng.choice((0, 1, 5))))

    # ── AMQP ─────────────────────────────────────────────────────────────────────────────────────────────────

    def method(self, way: int, channel: int, method: Any, detail: Any = None, **columns: Any) -> None:
        data = method.frame(channel)
        self.put(way, AMQP_CONNECTION, data)
        self.oracle.method(AMQP_CONNECTION, channel, self.now, WAYS[way], method.name, len(data), detail, None,
                           **columns)

    def content(self, way: int, method: Any, properties: dict[str, Any]) -> int:
        head = struct.pack(">HHQ", 60, 0, 1) + amqp_properties(properties)
        data = (method.frame(1) + struct.pack(">BHI", 2, 1, len(head)) + head + b"\xCE"
                + struct.pack(">BHI", 3, 1, 1) + b"x\xCE")
        self.put(way, AMQP_CONNECTION, data)
        return len(data)

    def amqp(self) -> None:
        rng = self.rng
        key, exchange = rng.choice(("a", "b", "q", "r")), rng.choice(("", "logs"))
        properties = rng.choice(({}, {"headers": {"partition-key": rng.choice(("k", "customer-7"))}}, {"priority": 1}))
        choice = rng.random()
        told = (properties or None, b"x")
        if choice < 0.35:
            size = self.content(IN, BasicPublish(exchange=exchange, routing_key=key), properties)
            self.oracle.publish(AMQP_CONNECTION, 1, self.now, size, exchange, key, *told)
        elif choice < 0.6:
            self.tag += 1
            got = rng.random() < 0.3
            method: Any = BasicGetOk(delivery_tag=self.tag, exchange=exchange, routing_key=key) if got else (
                BasicDeliver(consumer_tag="c", delivery_tag=self.tag, exchange=exchange, routing_key=key))
            size = self.content(OUT, method, properties)
            self.oracle.deliver(AMQP_CONNECTION, 1, self.now, size, self.tag, False, "c", exchange, key, *told)
            self.oracle.rows[-1]["kind"] = method.name
        elif choice < 0.9:
            way, multiple = rng.choice((IN, OUT)), rng.random() < 0.3
            tag = rng.randint(0 if multiple else 1, self.tag + 1)
            reject = way == IN and not multiple and rng.random() < 0.3
            answer: Any = BasicReject(delivery_tag=tag) if reject else rng.choice((BasicAck, BasicAck, BasicNack))(
                delivery_tag=tag, multiple=multiple)
            self.put(way, AMQP_CONNECTION, answer.frame(1))
            self.oracle.settle(AMQP_CONNECTION, 1, self.now, WAYS[way], tag, multiple)
            self.oracle.rows[-1]["kind"] = answer.name
        elif choice < 0.94:
            self.content(OUT, BasicReturn(reply_code=312, exchange=exchange, routing_key=key), properties)
            self.oracle.row(AMQP_CONNECTION, "amqp091", "basic.return", self.now, direction="out", topic=key,
                            exchange=exchange, properties=told[0])
        elif choice < 0.98:
            code = rng.choice((200, 299, 300, 404))
            self.method(rng.choice((IN, OUT)), 2, ChannelClose(reply_code=code), reason=code)
            self.method(IN, 2, ChannelOpen())
        else:
            self.loss()


def stream(rng: Random, steps: int) -> Stream:
    made = Stream(rng)
    for connection, version in ((1, 5), (2, 4)):
        made.packet(connection, IN, Connect(client_id=f"c{connection}", protocol_level=version))
        made.packet(connection, OUT, ConnAck())
    for channel in (1, 2):
        made.method(IN, channel, ChannelOpen())
        made.method(OUT, channel, ChannelOpenOk())
    made.method(IN, 1, ConfirmSelect())
    made.method(OUT, 1, ConfirmSelectOk())
    for _ in range(steps):
        if (connection := rng.choice((1, 2, AMQP_CONNECTION))) == AMQP_CONNECTION:
            made.amqp()
        else:
            made.mqtt(connection)
    code = rng.choice((200, 320, 541))
    made.method(rng.choice((IN, OUT)), 0, ConnectionClose(reply_code=code), reason=code)
    return made


def taken(machine: LaneCounts) -> Counter[tuple[int, str]]:
    values = memoryview(machine.take()).cast("I").tolist()
    assert len(values) % len(KINDS) == 0
    found = Counter({(at // len(KINDS), KINDS[at % len(KINDS)]): count for at, count in enumerate(values) if count})
    assert len(values) // len(KINDS) == max((lane for lane, _ in found), default=0) + 1
    return found


@given(st.integers(0, 1 << 32).map(Random), st.integers(0, 120), st.integers(1, 8))
@example(Random(1), 400, 40)
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_the_model(rng: Random, steps: int, cuts: int) -> None:
    made = stream(rng, steps)
    machine, model = LaneCounts(lane_of), Model()
    for row in made.oracle.rows:
        model.row(row)
    found: Counter[tuple[int, str]] = Counter()
    latencies = {"confirm": Counter[int](), "ack": Counter[int]()}
    at = 0
    for cut in [*sorted(rng.randint(0, len(made.entries)) for _ in range(cuts - 1)), len(made.entries)]:
        machine.feed(b"".join(made.entries[at:cut]))
        at = cut
        if rng.random() < 0.7:
            found += taken(machine)
        if rng.random() < 0.7:
            count_latencies(machine, latencies)
    found += taken(machine)
    count_latencies(machine, latencies)
    assert found == model.counts
    assert latencies == model.latencies
    assert machine.counted == len(made.oracle.rows)


def count_latencies(machine: LaneCounts, latencies: dict[str, Counter[int]]) -> None:
    for kind, buckets in zip(("confirm", "ack"), machine.take_latencies(), strict=True):
        latencies[kind] += Counter(dict(enumerate(memoryview(buckets).cast("I").tolist())))


@pytest.mark.parametrize("before", [0, REMEMBERED - 3], ids=["first lap", "over the end"])
@pytest.mark.parametrize(("between", "lane"), [(REMEMBERED // 2, 1), (REMEMBERED - 2, 1), (REMEMBERED - 1, 0)])
def test_an_answer_finds_its_lane_among_so_many_rows(before: int, between: int, lane: int) -> None:
    """Behind that the lane of its publish is overwritten, and none is better than a wrong one."""
    machine = LaneCounts(lane_of)
    other = wire_of(Publish("b"), 5)

    def said(way: int, packet: Packet) -> bytes:
        return entry(way, 1, wire_of(packet, 5))

    def pass_by(count: int) -> None:
        for at in range(0, count, 4000):
            machine.feed(entry(IN, 1, other * min(4000, count - at)))

    machine.feed(said(IN, Connect(client_id="c")) + said(OUT, ConnAck()))
    pass_by(before)
    machine.feed(said(IN, Publish("a", qos=1, packet_id=1)))
    pass_by(between)
    assert taken(machine) == {(1, "publish"): 1, (2, "publish"): before + between}
    machine.feed(said(OUT, PubAck(1)))
    assert taken(machine) == {(lane, "confirm"): 1}
