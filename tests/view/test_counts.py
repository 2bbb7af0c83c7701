"""What LaneCounts counts: each kind, on the lane of its topic or of what it answers, and how long answers took."""
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.record_entries import ACCEPTED, AMQP091, CLOSED, IN, OPENED, OUT, START, entry, event, lost

from fluxmq._core.amqp091.methods import (
    BasicAck,
    BasicDeliver,
    BasicNack,
    BasicPublish,
    BasicReject,
    ChannelClose,
    ChannelOpen,
    ConfirmSelect,
)
from fluxmq._core.errors import UsageError
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import ConnAck, Connect, PingReq, PubAck, PubComp, Publish, PubRec, PubRel
from fluxmq._core.record.counts import BUCKETS, KINDS, LANES_MAX, LaneCounts, bucket_of, bucket_us

LANES = {b"a": (3, 1), b"b": (4, 1), b"$queue/q": (10, 4), b"$queue/q/$ack": (10, 4), b"$queue/q/$nack": (10, 4)}
MS = 1_000_000


def lane_of(topic: bytes, exchange: bytes | None) -> tuple[int, int]:
    return LANES[topic] if exchange is None else LANES[topic] if exchange == b"" else (5, 1)


def wire(packet: Any) -> bytes:
    return encode_packet(packet, 5)


def counted(*entries: bytes, machine: LaneCounts | None = None) -> dict[int, dict[str, int]]:
    """By lane, what is not zero."""
    machine = machine or LaneCounts(lane_of)
    machine.feed(b"".join(entries))
    values = memoryview(machine.take()).cast("I").tolist()
    found = {}
    for lane in range(len(values) // len(KINDS)):
        kinds = dict(zip(KINDS, values[lane * len(KINDS):(lane + 1) * len(KINDS)], strict=True))
        if any(kinds.values()):
            found[lane] = {kind: count for kind, count in kinds.items() if count}
    return found


def begin(number: int = 1, protocol: int = 1) -> bytes:
    told = {"client_id": "c", "version": 5 if protocol == 1 else 91}
    return event(OPENED, number, {}, protocol=protocol) + event(ACCEPTED, number, told, protocol=protocol)


def users(*pairs: tuple[str, str]) -> list[tuple[int, Any]]:
    """User properties of MQTT 5."""
    return [(38, pair) for pair in pairs]


def said(packet: Any, way: int = IN, time: int = 0) -> bytes:
    return entry(way, 1, wire(packet), time=START + time)


def test_publishes_and_their_confirms() -> None:
    assert counted(begin(), said(Publish("a", qos=1, packet_id=1)), said(Publish("b", qos=0)),
                   said(PubAck(1), OUT)) == {3: {"publish": 1, "confirm": 1}, 4: {"publish": 1}}


def test_qos_2_is_confirmed_once() -> None:
    assert counted(begin(), said(Publish("a", qos=2, packet_id=1)), said(PubRec(1), OUT), said(PubRel(1)),
                   said(PubComp(1), OUT)) == {3: {"publish": 1, "confirm": 1}}


def test_deliveries_and_their_acknowledgements() -> None:
    assert counted(begin(), said(Publish("a", qos=1, packet_id=1), OUT), said(Publish("b", qos=2, packet_id=2), OUT),
                   said(PubAck(1)), said(PubRec(2)), said(PubRel(2), OUT), said(PubComp(2))) == {
        3: {"deliver": 1, "ack": 1}, 4: {"deliver": 1, "ack": 1}}


def test_errors_are_on_the_lane_that_they_are_about() -> None:
    assert counted(begin(), said(Publish("a", qos=1, packet_id=1)), said(Publish("b", qos=2, packet_id=2)),
                   said(PubAck(1, reason_code=0x87), OUT), said(PubRec(2, reason_code=0x97), OUT)) == {
        3: {"publish": 1, "error": 1}, 4: {"publish": 1, "error": 1}}
    assert counted(begin(), said(Publish("a", qos=1, packet_id=1), OUT), said(PubAck(1, reason_code=0x80))) == {
        3: {"deliver": 1, "nack": 1}}
    assert counted(event(OPENED, 1, {}), said(Connect(client_id="c")), said(ConnAck(reason_code=0x87), OUT)) == {
        0: {"error": 1}}
    assert counted(begin(), entry(IN, 1, b"\x00\x00")) == {0: {"error": 1}}


def test_pings_belong_to_no_topic() -> None:
    assert counted(begin(), said(PingReq()), entry(OUT, 1, b"\xd0\x00")) == {0: {"ping": 1}}
    heartbeat = b"\x08\x00\x00\x00\x00\x00\x00\xce"
    assert counted(begin(1, AMQP091), entry(IN, 1, heartbeat, protocol=AMQP091),
                   entry(OUT, 1, heartbeat, protocol=AMQP091)) == {0: {"ping": 1}}


def content(method: Any, body: bytes = b"x", headers: bytes = b"\0\0") -> bytes:
    head = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + headers
    return (method.frame(1) + b"\x02\x00\x01" + len(head).to_bytes(4, "big") + head + b"\xce"
            + b"\x03\x00\x01" + len(body).to_bytes(4, "big") + body + b"\xce")


def amqp(data: bytes, way: int = IN, time: int = 0) -> bytes:
    return entry(way, 1, data, protocol=AMQP091, time=START + time)


def test_amqp_publishes_deliveries_and_what_answers_them() -> None:
    machine = LaneCounts(lane_of)
    opened = begin(1, AMQP091) + amqp(ChannelOpen().frame(1)) + amqp(ConfirmSelect().frame(1))
    assert counted(opened, amqp(content(BasicPublish(exchange="", routing_key="a"))),
                   amqp(content(BasicPublish(exchange="logs", routing_key="b")), time=1 * MS),
                   amqp(BasicAck(delivery_tag=1).frame(1), OUT, 2 * MS),
                   amqp(BasicNack(delivery_tag=2).frame(1), OUT, 3 * MS), machine=machine) == {
        3: {"publish": 1, "confirm": 1}, 5: {"publish": 1, "error": 1}}
    deliver = [content(BasicDeliver(consumer_tag="t", delivery_tag=tag, redelivered=False, exchange="",
                                    routing_key="a")) for tag in (1, 2, 3)]
    assert counted(*(amqp(one, OUT) for one in deliver), amqp(BasicAck(delivery_tag=1).frame(1)),
                   amqp(BasicNack(delivery_tag=2).frame(1)), amqp(BasicReject(delivery_tag=3).frame(1)),
                   machine=machine) == {3: {"deliver": 3, "ack": 1, "nack": 2}}
    assert counted(amqp(ChannelClose(reply_code=404).frame(1), OUT), machine=machine) == {0: {"error": 1}}
    assert counted(amqp(ChannelClose(reply_code=200).frame(1)), machine=machine) == {}


def test_latencies_are_in_the_bucket_of_their_time() -> None:
    machine = LaneCounts(lane_of)
    counted(begin(), said(Publish("a", qos=1, packet_id=1)), said(PubAck(1), OUT, 5 * MS),
            said(Publish("a", qos=1, packet_id=9), OUT, 6 * MS), said(PubAck(9), IN, 6 * MS + 250_000),
            said(Publish("a", qos=1, packet_id=2), IN, 7 * MS), said(PubAck(2, reason_code=0x87), OUT, 90 * MS),
            machine=machine)
    confirms, acks = (memoryview(each).cast("I").tolist() for each in machine.take_latencies())
    assert [at for at, count in enumerate(confirms) if count] == [bucket_of(5 * MS)]    # a refusal is no confirm
    assert [at for at, count in enumerate(acks) if count] == [bucket_of(250_000)]
    assert not any(b"".join(machine.take_latencies()))


def test_a_gap_loses_answers_but_nothing_else() -> None:
    machine = LaneCounts(lane_of)
    assert counted(begin(), said(Publish("a", qos=1, packet_id=1)), lost(12, 3456), said(PubAck(1), OUT),
                   said(Publish("a")), machine=machine) == {0: {"confirm": 1}, 3: {"publish": 2}}
    assert (machine.lost_entries, machine.lost_bytes) == (12, 3456)
    assert not any(b"".join(machine.take_latencies()))


@pytest.mark.parametrize(("way", "properties", "lane"), [
    (OUT, [("queue", "q"), ("message-id", "2:17")], 12), (OUT, [("message-id", "3:9999999")], 13),
    (OUT, [("message-id", "4:1")], None), (OUT, [("message-id", "x")], None), (OUT, [("message-id", "")], None),
    (OUT, [("message-id", "99999999999999999:1")], None)])
def test_a_delivery_names_its_partition(way: int, properties: list[tuple[str, str]], lane: int | None) -> None:
    found = counted(begin(), said(Publish("$queue/q", qos=1, packet_id=1, properties=users(*properties)), way))
    assert list(found) == ([lane] if lane is not None else [10])      # else they take turns, from the first on


def test_those_without_a_partition_take_turns() -> None:
    assert counted(begin(), *(said(Publish("$queue/q")) for _ in range(6))) == {
        10: {"publish": 2}, 11: {"publish": 2}, 12: {"publish": 1}, 13: {"publish": 1}}


def test_orders_to_a_queue_are_acknowledgements() -> None:
    told = users(("message-id", "1:5"))
    assert counted(begin(), said(Publish("$queue/q/$ack", qos=1, packet_id=1, properties=told)), said(PubAck(1), OUT),
                   said(Publish("$queue/q/$nack", properties=told))) == {11: {"ack": 1, "confirm": 1, "nack": 1}}


@given(st.text(st.characters(exclude_characters='"\\', min_codepoint=32, exclude_categories=["Cs"]), max_size=40))
def test_a_key_has_the_partition_that_the_broker_gives_it(key: str) -> None:
    h = 2166136261          # FNV-1a, as drawn in fluxmq/_core/queue/queue.pxd
    for byte in key.encode():
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    assert list(counted(begin(), said(Publish("$queue/q", properties=users(("partition-key", key)))))) == [
        10 + (h ^ h >> 15) % 4]


def test_lanes_that_changed_are_asked_for_again() -> None:
    names = {b"a": (3, 1)}
    machine = LaneCounts(lambda topic, exchange: names[topic])
    assert counted(begin(), said(Publish("a", qos=1, packet_id=1)), machine=machine) == {3: {"publish": 1}}
    names[b"a"] = (7, 1)
    assert counted(said(Publish("a")), machine=machine) == {3: {"publish": 1}}
    machine.forget()
    assert counted(said(Publish("a")), said(PubAck(1), OUT), machine=machine) == {0: {"confirm": 1}, 7: {"publish": 1}}


@pytest.mark.parametrize("lanes", [(-1, 1), (LANES_MAX, 1), (LANES_MAX - 1, 2), (0, 0)])
def test_lanes_out_of_range_are_refused(lanes: tuple[int, int]) -> None:
    with pytest.raises(UsageError):
        counted(begin(), said(Publish("a")), machine=LaneCounts(lambda topic, exchange: lanes))


def test_what_lane_of_raises_comes_out() -> None:
    with pytest.raises(KeyError):
        counted(begin(), said(Publish("unknown")))


@given(st.integers(0, 10 ** 12))
def test_buckets_are_within_an_eighth(ns: int) -> None:
    bucket = bucket_of(ns)
    assert 0 <= bucket < BUCKETS
    assert bucket_us(bucket) == pytest.approx(min(ns // 1000, 260_000_000), rel=0.13, abs=0.6)
    assert bucket_of(ns + 1000) >= bucket


def test_more_rows_than_a_batch_and_names_than_are_remembered() -> None:
    machine = LaneCounts(lambda topic, exchange: (3, 1))
    found = counted(begin(), *(entry(IN, 1, b"".join(wire(Publish(f"t/{at}/{number}")) for at in range(1000)))
                               for number in range(70)), machine=machine)
    assert found == {3: {"publish": 70_000}}
    assert machine.counted >= 70_000
    assert counted(event(CLOSED, 1, {"by": "client"}), machine=machine) == {}
    assert machine.connections == 0


