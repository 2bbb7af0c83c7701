"""Rows: what is left out, what is never there, what a gap does, what does not decode."""
from __future__ import annotations

import json
from typing import Any

import pytest
from kit.record_entries import ACCEPTED, AMQP091, CLOSED, IN, OPENED, OUT, START, entry, event, filler, lost

from fluxmq._core.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    ChannelOpen,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionUpdateSecret,
)
from fluxmq._core.errors import CorruptError, UsageError
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import Auth, ConnAck, Connect, PubAck, Publish, Subscribe, Subscription, Will
from fluxmq._core.record.rows import RecordRows, whole_packets
from fluxmq.record.files import batch_of_columns

Rows = list[dict[str, Any]]


def taken(machine: RecordRows) -> Rows:
    batch = batch_of_columns(*machine.take())
    batch.validate(full=True)
    rows: Rows = batch.set_column(1, "time", batch.column("time_ns")).drop_columns("time_ns").to_pylist()
    return rows


def rows_of(*entries: bytes, **options: Any) -> Rows:
    machine = RecordRows(**options)
    machine.feed(b"".join(entries))
    return taken(machine)


def wire(packet: Any, version: int = 5) -> bytes:
    return encode_packet(packet, version)


def mqtt(number: int, client: str) -> bytes:
    """A connection with everything."""
    return b"".join((
        event(OPENED, number, {"peer": "p"}), entry(IN, number, wire(Connect(client_id=client))),
        event(ACCEPTED, number, {"client_id": client, "version": 5}), entry(OUT, number, wire(ConnAck())),
        entry(IN, number, wire(Publish(f"a/{client}", qos=1, packet_id=1, payload=b"x"))),
        entry(OUT, number, wire(PubAck(1))), event(CLOSED, number, {"by": "client", "reason": "", "code": 4})))


def amqp(number: int) -> bytes:
    return b"".join((
        event(OPENED, number, {}, protocol=AMQP091), entry(IN, number, b"AMQP\0\0\x09\x01", protocol=AMQP091),
        event(ACCEPTED, number, {"client_id": f"amqp091-{number}", "version": 91}, protocol=AMQP091),
        entry(IN, number, ChannelOpen().frame(1), protocol=AMQP091), event(CLOSED, number, {}, protocol=AMQP091)))


# ── what is left out ─────────────────────────────────────────────────────────────────────────────────────────


def test_clients() -> None:
    machine = RecordRows(clients=("sensor-*", "x"))
    machine.feed(mqtt(1, "sensor-1") + mqtt(2, "other") + mqtt(3, "x") + amqp(4))
    rows = taken(machine)
    assert {row["connection"] for row in rows} == {1, 3}
    assert [row["kind"] for row in rows if row["connection"] == 1] == [
        "opened", "CONNECT", "accepted", "CONNACK", "PUBLISH", "PUBACK", "closed"]
    assert (machine.filtered_rows, machine.connections) == (7 + 5, 0)
    assert [row["seq"] for row in rows] == list(range(14))


def test_amqp_is_known_when_it_is_accepted() -> None:
    rows = rows_of(mqtt(1, "m"), amqp(7), clients=("amqp091-7",))
    assert [(row["kind"], row["client_id"]) for row in rows] == [
        ("opened", None), ("protocol-header", None), ("accepted", "amqp091-7"), ("channel.open", "amqp091-7"),
        ("closed", "amqp091-7")]


def test_a_client_whose_name_the_broker_chose() -> None:
    entries = (event(OPENED, 1, {}), entry(IN, 1, wire(Connect(client_id=""))),
               event(ACCEPTED, 1, {"client_id": "auto-1", "version": 5}),
               entry(OUT, 1, wire(ConnAck(properties=[(0x12, "auto-1")]))))
    assert len(rows_of(*entries, clients=("auto-*",))) == 4
    assert rows_of(*entries, clients=("other",)) == []
    assert [row["client_id"] for row in rows_of(*entries)] == [None, None, "auto-1", "auto-1"]


def test_protocols() -> None:
    machine = RecordRows(protocols=("amqp091",))
    machine.feed(mqtt(1, "m") + amqp(2))
    assert {row["protocol"] for row in taken(machine)} == {"amqp091"}
    assert machine.filtered_rows == 7


def test_sample_keeps_whole_clients_and_always_the_same() -> None:
    names = [f"c{n}" for n in range(400)]
    entries = b"".join(mqtt(n + 1, name) for n, name in enumerate(names))
    kept = []
    for _ in range(2):
        rows = rows_of(entries, sample=0.25)
        numbers = [row["connection"] for row in rows]
        assert all(numbers.count(number) == 7 for number in set(numbers))
        kept.append(set(numbers))
    assert kept[0] == kept[1] and 60 < len(kept[0]) < 140
    more = {row["connection"] for row in rows_of(entries, sample=0.5)}
    assert kept[0] < more


def test_topics_take_their_acknowledgements_along() -> None:
    machine = RecordRows(topics=("a/+", "b/#"))
    machine.feed(b"".join(
        entry(way, 1, wire(packet)) for way, packet in (
            (IN, Connect(client_id="c")), (IN, Publish("a/1", qos=1, packet_id=1)), (OUT, PubAck(1)),
            (IN, Publish("no/1", qos=1, packet_id=1)), (OUT, PubAck(1)), (OUT, Publish("b", qos=1, packet_id=1)),
            (IN, PubAck(1)), (IN, Publish("no/2")), (IN, Publish("no/1", properties=[(0x23, 1)])),
            (IN, Publish("", properties=[(0x23, 1)])))))
    rows = taken(machine)
    assert [(row["kind"], row["topic"]) for row in rows] == [
        ("CONNECT", None), ("PUBLISH", "a/1"), ("PUBACK", None), ("PUBLISH", "b"), ("PUBACK", None)]
    assert [row["answers"] for row in rows] == [None, None, 1, None, 3] and machine.filtered_rows == 5


@pytest.mark.parametrize(("topic", "matching"), [
    ("a", {"a", "a/#", "+", "#"}), ("a/b", {"a/#", "a/+", "+/b", "#"}), ("a/", {"a/#", "a/+", "#"}),
    ("/", {"+/+", "#"}), ("$SYS/b", {"$SYS/b"}), ("ab", {"+", "#"})])
def test_filters_match_as_the_broker_matches(topic: str, matching: set[str]) -> None:
    for pattern in ("a", "a/#", "+", "#", "a/+", "+/b", "+/+", "$SYS/b", "a/b/c", "a/+/#x"):
        kept = rows_of(entry(IN, 1, wire(Connect(client_id="c")) + wire(Publish(topic))), topics=(pattern,))
        wanted = pattern in matching or (pattern == "+/+" and topic in ("a/b", "a/"))
        assert (len(kept) == 2) is wanted, (pattern, topic)


# ── what is never there ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("payload", ["full", "hash", "size"])
def test_no_secret_reaches_a_row(payload: str) -> None:
    secret = b"S3cret-W0rd"
    text = secret.decode()
    rows = rows_of(
        entry(IN, 1, wire(Connect(client_id="c", username="u", password=secret, properties=[
            (0x15, "SCRAM"), (0x16, secret)], will=Will("w", payload=b"bye")))),
        entry(OUT, 1, wire(Auth(reason_code=0x18, properties=[(0x15, "SCRAM"), (0x16, secret)]))),
        entry(IN, 2, wire(Connect(client_id="c", password=secret))[:-1] + b"\xff\xff"),
        entry(IN, 4, b"\x10\xff\xff\xff\x7f" + secret),
        entry(IN, 3, ConnectionStartOk(mechanism="PLAIN", response=b"\0u\0" + secret).frame(0)
              + ConnectionSecureOk(response=secret).frame(0)
              + ConnectionUpdateSecret(new_secret=secret, reason="old").frame(0), protocol=AMQP091), payload=payload)
    assert text not in repr(rows) and "UzNjcmV0" not in repr(rows)
    connect = json.loads(rows[0]["detail"])
    assert (connect["user"], connect["password"], connect["will"]["size"]) == ("u", True, 3)
    assert ("payload" in connect["will"]) is (payload == "full")
    assert json.loads(rows[0]["properties"]) == {"authentication_method": "SCRAM"}
    assert [row["kind"] for row in rows] == [
        "CONNECT", "AUTH", "CONNECT", "malformed", "malformed", "connection.start-ok", "connection.secure-ok",
        "connection.update-secret"]


# ── gaps, and what does not decode ───────────────────────────────────────────────────────────────────────────


def test_a_gap_makes_forget_what_it_can_make_wrong() -> None:
    rows = rows_of(entry(IN, 1, wire(Connect(client_id="c"))),
                   entry(IN, 1, wire(Publish("t", qos=1, packet_id=1, properties=[(0x23, 1)]))), lost(5, 500),
                   entry(OUT, 1, wire(PubAck(1))), entry(IN, 1, wire(Publish("", properties=[(0x23, 1)]))))
    assert [row["kind"] for row in rows] == ["CONNECT", "PUBLISH", "lost", "PUBACK", "PUBLISH"]
    assert (rows[2]["connection"], rows[2]["protocol"], json.loads(rows[2]["detail"])) == (
        0, None, {"entries": 5, "bytes": 500})
    assert rows[3]["answers"] is None and rows[4]["topic"] is None
    assert (rows[4]["client_id"], rows[4]["version"], rows[4]["size"]) == ("c", 5, 0)


def test_a_gap_of_one_connection_is_not_that_of_another() -> None:
    sent = wire(Connect(client_id="c")) + wire(Publish("t", qos=1, packet_id=1))
    rows = rows_of(*(entry(IN, n, sent) for n in (1, 2)),
                   lost(1, 7, connection=1), *(entry(OUT, n, wire(PubAck(1))) for n in (1, 2)))
    assert [row["answers"] for row in rows if row["kind"] == "PUBACK"] == [None, 3]


def test_a_version_that_nobody_said() -> None:
    rows = rows_of(entry(IN, 1, wire(Publish("t/1", qos=1, packet_id=9, payload=b"?")) + wire(Subscribe(
        7, [Subscription("x")]))), entry(OUT, 1, wire(PubAck(9))))
    names = ("kind", "version", "topic", "packet_id", "size", "answers")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("PUBLISH", None, "t/1", 9, None, None), ("SUBSCRIBE", None, None, 7, None, None),
        ("PUBACK", None, None, 9, None, 0)]


def test_what_does_not_decode_ends_its_direction() -> None:
    machine = RecordRows()
    bad = b"\x36\x03\0\1a"
    machine.feed(entry(IN, 1, wire(Connect(client_id="c")) + bad + wire(Publish("x")))
                 + entry(IN, 1, wire(Publish("y"))) + entry(OUT, 1, wire(ConnAck())))
    rows = taken(machine)
    assert [row["kind"] for row in rows] == ["CONNECT", "malformed", "CONNACK"]
    assert "QoS" in json.loads(rows[1]["detail"])["reason"]
    assert rows[1]["bytes"] == len(bad) + len(wire(Publish("x")))
    assert machine.undecoded_bytes == rows[1]["bytes"] + len(wire(Publish("y")))


def test_who_takes_without_acknowledging_is_not_waited_for() -> None:
    """Their tags would wait for ever; the acknowledgement of another consumer is still matched."""
    def deliver(tag: int, consumer: str) -> bytes:
        return (BasicDeliver(consumer_tag=consumer, delivery_tag=tag, exchange="", routing_key="q").frame(1)
                + b"\x02\0\1\0\0\0\x0e\0\x3c\0\0" + bytes(8) + b"\0\0\xce")

    way = {"protocol": AMQP091}
    rows = rows_of(entry(IN, 1, BasicConsume(queue="q", consumer_tag="auto", no_ack=True).frame(1), **way),
                   entry(IN, 1, BasicConsume(queue="q").frame(1), **way),
                   entry(OUT, 1, BasicConsumeOk(consumer_tag="auto").frame(1), **way),
                   entry(OUT, 1, BasicConsumeOk(consumer_tag="made").frame(1), **way),
                   entry(OUT, 1, deliver(1, "auto") + deliver(2, "made"), **way),
                   entry(IN, 1, BasicAck(delivery_tag=2, multiple=True).frame(1), time=START + 5, **way))
    assert [row["kind"] for row in rows[4:]] == ["basic.deliver", "basic.deliver", "basic.ack"]
    assert (rows[6]["answers"], rows[6]["ack_latency"]) == (5, 5)
    assert [row["answers"] for row in rows[2:4]] == [0, 1]


def test_a_routing_key_that_is_no_text() -> None:
    frame = BasicDeliver(consumer_tag="c", delivery_tag=1, exchange="e", routing_key="k\udcff").frame(1)
    rows = rows_of(entry(OUT, 1, frame + b"\x02\0\1\0\0\0\x0e\0\x3c\0\0" + bytes(8) + b"\0\0\xce", protocol=AMQP091))
    assert (rows[0]["topic"], rows[0]["exchange"]) == ("k\ufffd", "e")


@pytest.mark.parametrize("entries", [b"\x01", bytes(32), b"\x28\0\0\0\3\1\0\0" + bytes(24), entry(9, 1),
                                     entry(IN, 1, b"abc")[:24] + b"\xff\0\0\0" + bytes(12)])
def test_what_is_no_entry(entries: bytes) -> None:
    with pytest.raises(CorruptError, match="not an entry"):
        RecordRows().feed(entries)


def test_fillers_are_passed_over() -> None:
    assert len(rows_of(filler(8), mqtt(1, "c"), filler(4096))) == 7


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="payload must be one of"):
        RecordRows(payload="some")


@pytest.mark.parametrize(("data", "amqp091", "whole"), [
    (b"", False, 0), (b"\xc0", False, 0), (b"\xc0\0", False, 2), (b"\xc0\0\x30\5a", False, 2), (b"\0\0", False, -1),
    (b"\xc0\0\0\0", False, 2), (b"\x30\xff\xff\xff\xff\1", False, -1),
    (b"AMQP\0\0\x09\x01", True, 8), (b"\x08\0\0\0\0\0\0\xce", True, 8), (b"\x08\0\0\0\0\0\0\xcf", True, -1),
    (b"\x08\0\0\0\0\0\0", True, 0), (b"\x77\0\0\0\0\0\0\xce", True, -1)])
def test_whole_packets(data: bytes, amqp091: bool, whole: int) -> None:
    assert whole_packets(data, amqp091) == whole


def test_long_topics_fill_a_batch() -> None:
    """Words are memory as payloads are: a batch that is full of them is taken, whatever their rows are."""
    machine = RecordRows(batch_bytes=100_000)
    machine.feed(mqtt(1, "m"))
    publishes = b"".join(entry(IN, 1, encode_packet(Publish(f"{n:060000}"), 5)) for n in range(3))
    assert machine.feed(publishes) < len(publishes)
    assert machine.full


def test_the_verdicts_about_long_topics_are_forgotten_in_time() -> None:
    """More names than are remembered, each looked at twice, and the verdict is the right one both times."""
    machine = RecordRows(topics=("+",), batch_bytes=1 << 30)
    machine.feed(mqtt(1, "m"))
    taken(machine)
    for _ in range(2):
        for n in range(300):
            machine.feed(entry(IN, 1, encode_packet(Publish(f"{n:060000}" + "/x" * (n % 2)), 5)))
    assert machine.rows == 300


def test_an_event_that_is_no_text_is_a_row_without_detail() -> None:
    """Of a ring that was damaged: what follows is decoded all the same."""
    rows = rows_of(entry(OPENED, 1, b"{\xff}"), entry(ACCEPTED, 1, b'{"client_id":"\xe5"}'), mqtt(2, "m"),
                   event(ACCEPTED, 3, {"version": 91}), entry(IN, 3, wire(Subscribe(1, [Subscription("a")]))))
    assert [(row["kind"], row["detail"]) for row in rows[:2]] == [("opened", None), ("accepted", None)]
    assert len(rows) == 11 and rows[-1]["version"] is None
