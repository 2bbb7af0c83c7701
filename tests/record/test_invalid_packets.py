"""Captures of brokers that accept what FluxMQ does not: an invalid packet with a certain end is a row, and what follows
is read; after one without, the rest of its direction is counted."""
from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from kit.captures import compared, direct, imported, open_talk, plain
from kit.pcap import IN, OUT
from kit.record_entries import AMQP091, MQTT, entry

from fluxmq._core.amqp091.methods import (
    BasicAck,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicPublish,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConnectionOpen,
    ConnectionOpenOk,
    QueueDeclare,
    QueueDeclareOk,
)
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import ConnAck, Connect, PingReq, PingResp, PubAck, Publish, Subscribe, Subscription
from fluxmq._core.record.rows import RecordRows
from fluxmq.record.files import batch_of_columns
from fluxmq.record.imported import Imported, Invalid, invalid_notes

Rows = list[dict[str, Any]]
Pieces = list[tuple[int, bytes]]
VERSIONS = (4, 5)

# In every version, and in either direction.
INVALID = {
    "qos 3": b"\x36\x05\0\1tab", "dup of qos 0": b"\x38\x03\0\1t", "no text": b"\x30\x05\0\2\xc3\x28x",
    "U+0000": b"\x30\x06\0\3a\0bx", "a wildcard": b"\x30\x05\0\3a/#", "topic too long": b"\x30\x04\0\x09ab",
    "identifier 0": b"\x32\x05\0\1t\0\0", "puback 0": b"\x40\x02\0\0", "empty puback": b"\x40\0",
    "pubrel flags": b"\x60\x02\0\7", "subscribe flags": b"\x80\x06\0\7\0\1a\0", "no filter": b"\x82\x02\0\7",
    "option bits": b"\x82\x06\0\7\0\1a\xff", "suback flags": b"\x97\x03\0\7\0", "pingreq with a body": b"\xc0\x01x",
    "connack": b"\x20\x01\0",
}


def mqtt(version: int) -> Pieces:
    packets: list[tuple[int, Any]] = [
        (IN, Connect(client_id="dev", protocol_level=version)), (OUT, ConnAck()),
        (IN, Subscribe(1, [Subscription("a/#", qos=1)])), (IN, Publish("a/1", payload=b"one", qos=1, packet_id=1)),
        (OUT, PubAck(1)), (IN, Publish("a/2", payload=b"two")), (OUT, Publish("a/2", payload=b"two")),
        (IN, Publish("a/3", payload=b"three", qos=1, packet_id=2)), (OUT, PubAck(2)),
        (OUT, Publish("a/3", payload=b"three"))]
    return [(way, encode_packet(packet, version)) for way, packet in packets]


def captured(tmp_path: Path, pieces: Pieces, *, rng: Random | None = None, protocol: int = MQTT,
             together: bool = False) -> tuple[Imported, Rows]:
    """rng: cuts the pieces into segments. together: those of a direction that follow each other are one segment."""
    talk = open_talk(server=("10.0.0.2", 5672 if protocol == AMQP091 else 1883))
    if together:
        joined: Pieces = []
        for way, data in pieces:
            if joined and joined[-1][0] == way:
                data = joined.pop()[1] + data
            joined.append((way, data))
        pieces = joined
    for way, data in pieces:
        talk.sent(way, data, sizes=[rng.randint(1, 4) for _ in range(rng.randint(0, 3))] if rng else ())
    return imported(tmp_path, [talk])


def of(rows: Rows, kind: str) -> Rows:
    return [row for row in rows if row["kind"] == kind]


def without_malformed(rows: Rows) -> Rows:
    """As if the malformed ones were not there."""
    return compared([row for row in rows if row["kind"] != "malformed"])


# ── MQTT ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("way", [IN, OUT])
@pytest.mark.parametrize("form", ["apart", "together", "cut"])
def test_what_follows_an_invalid_packet_is_read(tmp_path: Path, version: int, way: int, form: str) -> None:
    """Every invalid packet, each between others, and one at the very end."""
    pieces = mqtt(version)
    mixed = pieces[:2]
    rest = [INVALID[name] for name in INVALID]
    for piece in pieces[2:]:
        mixed += [(way, bad) for bad in rest[:3]] + [piece]
        rest = rest[3:]
    assert not rest
    mixed.append((way, INVALID["qos 3"]))
    done, rows = captured(tmp_path, mixed, rng=Random(version) if form == "cut" else None, together=form == "together")
    assert without_malformed(rows) == compared(direct(pieces))
    bad = of(rows, "malformed")
    size = sum(map(len, INVALID.values())) + len(INVALID["qos 3"])
    assert sorted(row["bytes"] for row in bad) == sorted([*map(len, INVALID.values()), len(INVALID["qos 3"])])
    assert {(row["version"], row["direction"], row["client_id"]) for row in bad} == {
        (version, "in" if way == IN else "out", "dev")}
    details = [json.loads(row["detail"]) for row in bad]
    assert all(detail["went_on"] and detail["reason"] for detail in details)
    assert details[0] == {"reason": "QoS must be 0, 1 or 2", "packet": "PUBLISH", "went_on": True}
    assert done.manifest.undecoded_bytes == size
    assert done.invalid == [Invalid(connection=1, direction="in" if way == IN else "out", packets=17, bytes=size)]
    where = "in" if way == IN else "out"
    assert done.notes == [f"invalid: 17 packets of {size} bytes, and what followed was read: connection 1 {where} "
                          f"(17 of {size} bytes)"]


@pytest.mark.parametrize("name", INVALID)
def test_each_of_them_is_invalid_in_every_version(tmp_path: Path, name: str) -> None:
    """So that none of the list is taken for a good one."""
    for version in VERSIONS:
        machine = RecordRows(go_on=True)
        connect = encode_packet(Connect(client_id="c", protocol_level=version), version)
        machine.feed(entry(IN, 1, connect + INVALID[name]))
        assert batch_of_columns(*machine.take()).column("kind").to_pylist() == ["CONNECT", "malformed"]


@pytest.mark.parametrize(("bad", "packet"), [
    (b"\x00\x00", None), (b"\x30\xff\xff\xff\xff\x01", None), (b"\x0f\x03abc", None), (b"\xf0\x00", "AUTH")])
@pytest.mark.parametrize("together", [False, True])
def test_a_packet_without_a_certain_end_ends_its_direction(tmp_path: Path, bad: bytes, packet: str | None,
                                                           together: bool) -> None:
    """Type 0, a length of more than four bytes, and type 15, which MQTT 3.1.1 has reserved."""
    pieces = mqtt(4)
    at = pieces.index((IN, encode_packet(Publish("a/2", payload=b"two"), 4)))
    done, rows = captured(tmp_path, [*pieces[:at], (IN, bad), *pieces[at:]], together=together)
    assert [row["kind"] for row in rows if row["direction"] == "in"] == ["CONNECT", "SUBSCRIBE", "PUBLISH", "malformed"]
    [row] = of(rows, "malformed")
    detail = json.loads(row["detail"])
    assert not detail["went_on"] and detail.get("packet") in (packet, None)
    size = len(bad) + sum(len(data) for way, data in pieces[at:] if way == IN)
    assert len(bad) <= row["bytes"] <= size and done.manifest.undecoded_bytes == size
    assert done.invalid == [Invalid(connection=1, direction="in", dropped=1, dropped_bytes=size)]
    assert done.notes == [f"dropped: {size} bytes of 1 direction, from an invalid packet on that has no certain end: "
                          f"connection 1 in ({size} bytes)"]
    assert [row["kind"] for row in rows if row["direction"] == "out"] == [
        "CONNACK", "PUBACK", "PUBLISH", "PUBACK", "PUBLISH"]


def test_a_length_of_more_bytes_than_it_needs(tmp_path: Path) -> None:
    """MQTT 3.1.1 does not forbid it; in MQTT 5 it is malformed, and ends where it says."""
    padded = b"\x30\x84\x80\x00\0\1tx"
    for version in VERSIONS:
        (tmp_path / str(version)).mkdir()
        done, rows = captured(tmp_path / str(version), [*mqtt(version)[:2], (IN, padded), *mqtt(version)[2:]])
        assert compared([row for row in rows if row["bytes"] != len(padded)]) == compared(direct(mqtt(version)))
        [row] = [row for row in rows if row["bytes"] == len(padded)]
        assert row["kind"] == ("malformed" if version == 5 else "PUBLISH") and len(done.invalid) == (version == 5)
        assert version == 5 or (row["topic"], row["payload"]) == ("t", b"x")


@pytest.mark.parametrize("version", VERSIONS)
def test_after_an_invalid_connect_its_version_counts(tmp_path: Path, version: int) -> None:
    """The client is not known, but how its packets look is."""
    bad = mqtt(version)[0][1].replace(b"dev", b"d\0v")
    done, rows = captured(tmp_path, [(IN, bad), *mqtt(version)[1:]])
    assert [row["kind"] for row in rows] == ["opened", "malformed", *(row["kind"] for row in direct(mqtt(version))[1:])]
    assert {row["version"] for row in rows[1:]} == {version} and {row["client_id"] for row in rows} == {None}
    assert [row["payload"] for row in of(rows, "PUBLISH")] == [b"one", b"two", b"two", b"three", b"three"]
    assert done.invalid == [Invalid(connection=1, direction="in", packets=1, bytes=len(bad))]


def test_a_bridge_of_mosquitto_speaks_what_it_says(tmp_path: Path) -> None:
    connect = bytearray(mqtt(4)[0][1])
    connect[8] |= 0x80
    _, rows = captured(tmp_path, [(IN, bytes(connect)), *mqtt(4)[1:]])
    assert [row["version"] for row in rows] == [None, *[4] * 10]
    assert [row["payload"] for row in of(rows, "PUBLISH")] == [b"one", b"two", b"two", b"three", b"three"]


def test_after_a_connect_of_no_known_version_nothing_is_certain(tmp_path: Path) -> None:
    connect = bytearray(mqtt(4)[0][1])
    connect[8] = 9
    done, rows = captured(tmp_path, [(IN, bytes(connect)), *mqtt(4)[1:]])
    assert [row["kind"] for row in rows] == ["opened", "malformed", "CONNACK", "PUBACK", "PUBLISH", "PUBACK", "PUBLISH"]
    assert {row["version"] for row in rows} == {None} and {row["payload"] for row in of(rows, "PUBLISH")} == {None}
    assert [(one.packets, one.dropped) for one in done.invalid] == [(0, 1)]


def test_after_an_invalid_connack_nobody_is_accepted_and_all_is_read(tmp_path: Path) -> None:
    """Such as the answer of a broker of 3.1.1 to a client of MQTT 5."""
    _, rows = captured(tmp_path, [mqtt(5)[0], (OUT, b"\x20\x02\0\1"), *mqtt(5)[2:]])
    assert [row["kind"] for row in rows[:3]] == ["opened", "CONNECT", "malformed"] and not of(rows, "accepted")
    assert without_malformed(rows) == compared(direct([mqtt(5)[0], *mqtt(5)[2:]]))


def test_an_invalid_publish_without_a_known_version(tmp_path: Path) -> None:
    """The capture began later."""
    talk = open_talk()
    talk.packets.clear()
    for data in (encode_packet(Publish("t/1"), 4), INVALID["qos 3"], encode_packet(Publish("t/2"), 4)):
        talk.sent(IN, data)
    _, rows = imported(tmp_path, [talk])
    assert [(row["kind"], row["topic"]) for row in rows] == [
        ("opened", None), ("PUBLISH", "t/1"), ("malformed", None), ("PUBLISH", "t/2")]
    assert json.loads(rows[2]["detail"])["reason"] == "QoS must be 0, 1 or 2"


def test_an_alias_that_may_have_changed_names_no_topic(tmp_path: Path) -> None:
    """The invalid one may have set it anew: a topic is given where it is certain. The other direction keeps its own."""
    def publish(topic: str) -> bytes:
        return encode_packet(Publish(topic, properties=[(0x23, 1)]), 5)

    other = b"\x30" + publish("other")[1:]
    bad = bytes([0x36]) + other[1:]
    _, rows = captured(tmp_path, [*mqtt(5)[:2], (IN, publish("t")), (OUT, publish("u")), (IN, bad), (IN, publish("")),
                                  (OUT, publish("")), (IN, publish("v")), (IN, publish(""))])
    assert [row["topic"] for row in of(rows, "PUBLISH")] == ["t", "u", None, "u", "v", "v"]


def test_an_invalid_ping_is_answered_too(tmp_path: Path) -> None:
    ping, pong = encode_packet(PingReq(), 4), encode_packet(PingResp(), 4)
    _, rows = captured(tmp_path, [*mqtt(4)[:2], (IN, b"\xc1\0"), (IN, ping), (OUT, pong), (OUT, pong), (IN, ping),
                                  (IN, ping), (OUT, b"\xd1\0"), (OUT, pong)])
    pings = [row["seq"] for row in of(rows, "PINGREQ")]
    assert [row["answers"] for row in of(rows, "PINGRESP")] == [None, pings[0], pings[2]]


def test_a_large_invalid_packet_in_many_segments(tmp_path: Path) -> None:
    """Held as any packet of its size is, and nothing of it afterwards."""
    size = 3_000_000
    bad = b"\x36" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21]) + bytes(size)
    talk = open_talk()
    for way, data in mqtt(5)[:4]:
        talk.sent(way, data)
    talk.sent(IN, bad, sizes=[60_000] * 60)
    talk.sent(IN, mqtt(5)[5][1])
    done, rows = imported(tmp_path, [talk])
    assert [row["kind"] for row in rows][-3:] == ["PUBLISH", "malformed", "PUBLISH"]
    assert rows[-2]["payload"] is None and rows[-2]["bytes"] == len(bad) == done.manifest.undecoded_bytes
    assert sum(path.stat().st_size for path in (tmp_path / "r").glob("part-*")) < 100_000


def test_a_packet_whose_rest_never_comes_is_told(tmp_path: Path) -> None:
    """Also where an invalid packet has led the reader astray."""
    done, _ = captured(tmp_path, [*mqtt(4), (IN, INVALID["qos 3"] + b"\x30\xff\xff\xff\x7fabc")])
    assert done.notes[0] == "8 bytes are beginnings of packets whose rest is not in the capture"
    assert done.notes[1].startswith("invalid: 1 packet of 7 bytes, and what followed was read")


def test_connections_are_told_apart(tmp_path: Path) -> None:
    talks = [open_talk(client=("10.0.0.1", 4000 + n)) for n in range(3)]
    for n, talk in enumerate(talks):
        for way, data in mqtt(4):
            talk.sent(way, data)
            if n and way == OUT:
                talk.sent(OUT, INVALID["qos 3"])
        if n == 2:
            talk.sent(OUT, b"\x00\x00")
    done, rows = imported(tmp_path, talks)
    assert done.invalid == [
        Invalid(connection=2, direction="out", packets=5, bytes=35),
        Invalid(connection=3, direction="out", packets=5, bytes=35, dropped=1, dropped_bytes=2)]
    assert done.notes == [
        "invalid: 10 packets of 70 bytes, and what followed was read: connection 2 out (5 of 35 bytes), "
        "connection 3 out (5 of 35 bytes)",
        "dropped: 2 bytes of 1 direction, from an invalid packet on that has no certain end: "
        "connection 3 out (2 bytes)"]
    assert len(of(rows, "malformed")) == 11


def test_the_list_of_connections_has_an_end() -> None:
    machine = RecordRows(go_on=True)
    for number in range(1, 1101):
        machine.feed(entry(IN, number, mqtt(4)[0][1] + INVALID["qos 3"]))
    found = [Invalid(connection=number, direction=way, packets=packets, bytes=size, dropped=dropped, dropped_bytes=left)
             for number, way, packets, size, dropped, left in machine.invalid]
    assert len(found) == 1001 and (found[0].connection, found[0].packets, found[0].bytes) == (0, 100, 700)
    [note] = invalid_notes(found)
    assert note.startswith("invalid: 1100 packets of 7700 bytes, and what followed was read: connection 1 in (1 of 7 ")
    assert note.endswith("connection 10 in (1 of 7 bytes), and 991 more")


def test_what_a_broker_records_ends_there() -> None:
    """It has closed the connection."""
    machine = RecordRows()
    machine.feed(entry(IN, 1, mqtt(4)[0][1] + INVALID["qos 3"] + mqtt(4)[3][1]))
    rows = batch_of_columns(*machine.take()).to_pylist()
    assert [row["kind"] for row in rows] == ["CONNECT", "malformed"] and machine.invalid == []
    assert json.loads(rows[1]["detail"])["went_on"] is False


# ── AMQP ─────────────────────────────────────────────────────────────────────────────────────────────────────

PREFACE = b"AMQP\0\0\x09\x01"
BAD_TABLE = b"\x20\0" + b"\0\0\0\x05\x01hZxx"       # a header whose field has an unknown type


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def header(channel: int, size: int, properties: bytes = b"\0\0") -> bytes:
    return frame(2, channel, struct.pack(">HHQ", 60, 0, size) + properties)


def publish(channel: int, body: bytes, *, key: str = "k") -> list[bytes]:
    return [BasicPublish(exchange="e", routing_key=key).frame(channel), header(channel, len(body)),
            *([frame(3, channel, body)] if body else [])]


def opened(*channels: int) -> Pieces:
    return [(IN, PREFACE), *((way, method.frame(channel)) for channel in channels for way, method in (
        (IN, ChannelOpen()), (OUT, ChannelOpenOk())))]


def amqp(tmp_path: Path, pieces: Pieces, **words: Any) -> tuple[Imported, Rows]:
    return captured(tmp_path, pieces, protocol=AMQP091, **words)


def rows_of(pieces: Pieces) -> Rows:
    return compared(direct(pieces, AMQP091))


GOOD = [publish(1, b"first"), publish(1, b"second")]
BROKEN: dict[str, list[bytes]] = {
    "arguments too short": [frame(1, 1, b"\0\x3c\0\x28\0\0"), header(1, 3), frame(3, 1, b"bad")],
    "arguments too long": [frame(1, 1, b"\0\x3c\0\x28\0\0\0\0\0more"), header(1, 3), frame(3, 1, b"bad")],
    "properties": [publish(1, b"")[0], header(1, 3, BAD_TABLE), frame(3, 1, b"bad")],
    "header too short": [publish(1, b"")[0], frame(2, 1, b"\0\x3c\0\0"), frame(3, 1, b"bad")],
    "body too long": [publish(1, b"")[0], header(1, 3), frame(3, 1, b"bad and more"), frame(3, 1, b"again")],
    "body before header": [publish(1, b"")[0], frame(3, 1, b"bad"), header(1, 3)],
    "two headers": [publish(1, b"")[0], header(1, 3), header(1, 3), frame(3, 1, b"bad")],
    "no end": [publish(1, b"")[0], header(1, 30), frame(3, 1, b"bad")],
    "no method": [header(1, 3), frame(3, 1, b"bad")],
    "an unknown method": [frame(1, 1, b"\0\x3c\0\x7f"), header(1, 3), frame(3, 1, b"bad")],
    "half a method": [frame(1, 1, b"\0\x3c"), header(1, 3), frame(3, 1, b"bad")],
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("form", ["apart", "together", "cut"])
def test_a_broken_message_is_one_row_and_the_next_is_read(tmp_path: Path, name: str, form: str) -> None:
    frames = [*GOOD[0], *BROKEN[name], *GOOD[1]]
    done, rows = amqp(tmp_path, [*opened(1), *((IN, one) for one in frames)], together=form == "together",
                      rng=Random(name) if form == "cut" else None)
    assert without_malformed(rows) == rows_of([*opened(1), *((IN, one) for message in GOOD for one in message)])
    [bad] = of(rows, "malformed")
    size = sum(map(len, BROKEN[name]))
    assert (bad["channel"], bad["direction"]) == (1, "in") and bad["bytes"] <= size
    detail = json.loads(bad["detail"])
    assert detail["went_on"] and detail.get("packet", "basic.publish") == "basic.publish"
    assert done.manifest.undecoded_bytes == size
    assert done.invalid == [Invalid(connection=1, direction="in", packets=1, bytes=size)]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_message_is_broken_on_its_channel_only(tmp_path: Path, name: str) -> None:
    """Frames of a message on another channel come in between."""
    other = publish(2, b"in between")
    other[2:] = [frame(3, 2, b"in "), frame(3, 2, b"between")]
    mixed = [*GOOD[0]]
    rest = list(BROKEN[name])
    while rest or other:
        mixed += other[:1] + rest[:1]
        del other[:1], rest[:1]
    mixed += GOOD[1]
    _, rows = amqp(tmp_path, [*opened(1, 2), *((IN, one) for one in mixed)])
    assert [(row["channel"], row["payload"]) for row in of(rows, "basic.publish")] == [
        (1, b"first"), (2, b"in between"), (1, b"second")]
    assert len(of(rows, "malformed")) == 1


def test_a_broken_delivery(tmp_path: Path) -> None:
    """The acknowledgement of it answers nothing, that of the next one does."""
    def deliver(tag: int, properties: bytes = b"\0\0") -> Pieces:
        method = BasicDeliver(consumer_tag="c", delivery_tag=tag, exchange="", routing_key="q")
        return [(OUT, method.frame(1)), (OUT, header(1, 1, properties)), (OUT, frame(3, 1, b"x"))]

    _, rows = amqp(tmp_path, [*opened(1), *deliver(1), *deliver(2, BAD_TABLE), *deliver(3), *(
        (IN, BasicAck(delivery_tag=tag).frame(1)) for tag in (1, 2, 3))])
    got = [row["seq"] for row in of(rows, "basic.deliver")]
    assert [row["answers"] for row in of(rows, "basic.ack")] == [got[0], None, got[1]]


@pytest.mark.parametrize(("name", "numbers"), [("arguments too short", [1, 3]), ("properties", [1, 3]),
                                               ("no end", [1, None]), ("an unknown method", [1, None])])
def test_numbers_of_publishes_go_on_where_they_are_certain(tmp_path: Path, name: str,
                                                           numbers: list[int | None]) -> None:
    """A broker that goes on after an invalid publish has taken it; what one makes of half a message, nobody knows."""
    pieces = [*opened(1), (IN, ConfirmSelect().frame(1)), *((IN, one) for one in [*GOOD[0], *BROKEN[name], *GOOD[1]])]
    acks = [(OUT, BasicAck(delivery_tag=tag).frame(1)) for tag in (1, 2, 3)]
    _, rows = amqp(tmp_path, pieces + acks)
    published = of(rows, "basic.publish")
    assert [row["packet_id"] for row in published] == numbers
    assert [row["answers"] for row in of(rows, "basic.ack")] == [
        published[0]["seq"], None, published[1]["seq"] if numbers[1] else None]


def test_an_answer_after_an_invalid_request_is_given_to_no_other(tmp_path: Path) -> None:
    declare = QueueDeclare(queue="q").frame(1)
    short = frame(1, 1, b"\0\x32\0\x0a\0\0\x09q")
    ok = QueueDeclareOk(queue="q").frame(1)
    done, rows = amqp(tmp_path, [*opened(1), (IN, short), (OUT, ok), (IN, declare), (OUT, ok)])
    [asked] = of(rows, "queue.declare")
    assert [row["answers"] for row in of(rows, "queue.declare-ok")] == [None, asked["seq"]]
    [bad] = of(rows, "malformed")
    assert json.loads(bad["detail"])["packet"] == "queue.declare" and bad["channel"] == 1
    assert [(one.packets, one.bytes) for one in done.invalid] == [(1, len(short))]


def test_a_get_whose_message_is_broken_has_been_answered(tmp_path: Path) -> None:
    def got(tag: int, properties: bytes) -> Pieces:
        method = BasicGetOk(delivery_tag=tag, exchange="", routing_key="q")
        return [(OUT, method.frame(1)), (OUT, header(1, 0, properties))]

    get = (IN, BasicGet(queue="q").frame(1))
    _, rows = amqp(tmp_path, [*opened(1), get, *got(1, BAD_TABLE), get, *got(2, b"\0\0")])
    assert [row["answers"] for row in of(rows, "basic.get-ok")] == [of(rows, "basic.get")[1]["seq"]]


def test_a_frame_of_an_unknown_type_with_its_end_is_passed_over(tmp_path: Path) -> None:
    """4 is what a text of the specification gives to heartbeats."""
    _, rows = amqp(tmp_path, [*opened(1), (IN, frame(4, 0, b"")), *((IN, one) for one in GOOD[0])])
    assert [row["kind"] for row in rows[-2:]] == ["malformed", "basic.publish"]


@pytest.mark.parametrize("bad", [frame(1, 1, b"\0\x3c\0\x28")[:-1] + b"\0", frame(0x77, 0, b"")])
def test_a_frame_without_its_end_ends_its_direction(tmp_path: Path, bad: bytes) -> None:
    rest = [(IN, one) for one in GOOD[0]] + [(IN, one) for one in GOOD[1]]
    done, rows = amqp(tmp_path, [*opened(1), (IN, bad), *rest, (OUT, BasicAck(delivery_tag=1).frame(1))])
    assert [row["kind"] for row in rows[-3:]] == ["channel.open-ok", "malformed", "basic.ack"]
    size = len(bad) + sum(len(data) for _, data in rest)
    assert done.invalid == [Invalid(connection=1, direction="in", dropped=1, dropped_bytes=size)]


def test_an_invalid_method_of_the_handshake_hides_no_other(tmp_path: Path) -> None:
    """All of it in one segment: the connection is accepted all the same, of a user that is not known."""
    talk = open_talk(server=("10.0.0.2", 5672))
    talk.sent(IN, PREFACE + frame(1, 0, b"\0\x0a\0\x0b\xff\xff\xff\xff") + ConnectionOpen(virtual_host="/").frame(0))
    talk.sent(OUT, ConnectionOpenOk().frame(0))
    _, rows = imported(tmp_path, [talk])
    assert [row["kind"] for row in rows] == [
        "opened", "protocol-header", "malformed", "connection.open", "accepted", "connection.open-ok"]
    assert json.loads(rows[4]["detail"]) == {"client_id": "amqp091-1", "vhost": "/", "version": 91}


def test_after_a_gap_the_rest_of_a_message_is_no_error() -> None:
    machine = RecordRows(go_on=True)
    machine.feed(entry(IN, 1, b"".join([frame(3, 1, b"rest"), *GOOD[0]]), protocol=AMQP091))
    assert [row["kind"] for row in plain_of(machine)] == ["basic.publish"]
    assert machine.invalid == [] and machine.undecoded_bytes == len(frame(3, 1, b"rest"))


def plain_of(machine: RecordRows) -> Rows:
    return plain(pa.Table.from_batches([batch_of_columns(*machine.take())]))
