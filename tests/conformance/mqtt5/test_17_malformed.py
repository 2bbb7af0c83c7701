"""MQTT 5.0 sections 1.5, 2.1 and 4.13: bytes that are no packets, and what they may cost: their own connection."""
import random

import pytest
from kit.client import Closed, Unexpected
from oracle.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    text,
    u16,
)

# what is wrong → bytes on a connection that is established
MALFORMED = {
    "packet type 0": b"\x00\x00",
    "packet type 0 with flags": b"\x0f\x00",
    "remaining length of five bytes": b"\x30\xff\xff\xff\xff\x01",
    "remaining length longer than it need be": b"\xc0\x80\x00",
    "publish without a topic": b"\x30\x00",
    "publish with half a topic length": b"\x30\x01\x00",
    "publish with a topic cut short": b"\x30\x03\x00\x05a",
    "publish without properties": b"\x30\x03\x00\x01a",
    "publish QoS 1 without packet identifier": b"\x32\x03\x00\x01a",
    "publish QoS 1 with half a packet identifier": b"\x32\x04\x00\x01a\x00",
    "publish with a property length beyond the packet": b"\x30\x05\x00\x01a\x7fx",
    "publish with a property cut short": b"\x30\x05\x00\x01a\x01\x02",
    "publish with an unknown property": b"\x30\x06\x00\x01a\x02\x7f\x00",
    "puback without packet identifier": b"\x40\x00",
    "puback with half of it": b"\x40\x01\x00",
    "puback with a reason that does not exist": b"\x40\x03\x00\x01\x01",
    "puback with bytes left over": b"\x40\x05\x00\x01\x00\x00\x00",
    "pubrec without packet identifier": b"\x50\x00",
    "pubrec with a reason that does not exist": b"\x50\x03\x00\x01\x02",
    "pubrel without packet identifier": b"\x62\x00",
    "pubrel with a reason that does not exist": b"\x62\x03\x00\x01\x10",
    "pubcomp without packet identifier": b"\x70\x00",
    "pubcomp with a reason that does not exist": b"\x70\x03\x00\x01\x80",
    "subscribe without packet identifier": b"\x82\x00",
    "subscribe without properties": b"\x82\x02\x00\x01",
    "subscribe without options": b"\x82\x06\x00\x01\x00\x00\x01a",
    "unsubscribe without packet identifier": b"\xa2\x00",
    "unsubscribe with a filter cut short": b"\xa2\x06\x00\x01\x00\x00\x05a",
    "pingreq with a body": b"\xc0\x01x",
    "disconnect with bytes left over": b"\xe0\x03\x00\x00x",
    "disconnect with a property length beyond the packet": b"\xe0\x02\x00\x05",
    "auth without a method": b"\xf0\x02\x19\x00",
}


@pytest.mark.normative("MQTT5-4.13.1-1", "MQTT5-2.1.3-1", "MQTT5-1.5.5-1")
@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_packet_closes_its_connection_and_no_other(client, topic, what):
    other = client("other")
    other.subscribe(topic)
    c = client("c")
    c.send_to_the_end(MALFORMED[what], Publish(topic=topic, payload=b"after"))
    last = c.expect_closed()
    assert last is None or last.reason in (0x81, 0x82), last
    other.publish(topic, b"alive")
    other.receive(topic, b"alive")


@pytest.mark.normative("MQTT5-4.13.1-1")
@pytest.mark.parametrize("packet", [
    Connack(), Suback(packet_id=1, reasons=[0]), Unsuback(packet_id=1, reasons=[0]), Pingresp(),
], ids=lambda packet: type(packet).__name__)
def test_packets_that_only_a_server_sends(client, packet):
    c = client()
    c.send(packet)
    c.expect_closed(0x82, 0x81)


WHOLE = {
    "connect": Connect(client_id="", will=Will(topic="t", payload=b"x", properties={"content_type": "x"}),
                       username="u", password=b"p", properties={"user_property": ("a", "b")}),
    "publish": Publish(topic="test/cut", payload=b"", qos=1, packet_id=1, properties={"content_type": "x"}),
    "puback": Puback(packet_id=1, reason=0x80, properties={"reason_string": "x"}),
    "pubrec": Pubrec(packet_id=1, reason=0x80, properties={"reason_string": "x"}),
    "pubrel": Pubrel(packet_id=1, reason=0x92, properties={"reason_string": "x"}),
    "pubcomp": Pubcomp(packet_id=1, reason=0x92, properties={"reason_string": "x"}),
    "subscribe": Subscribe(packet_id=1, filters=[("test/cut", 0)], properties={"user_property": ("a", "b")}),
    "unsubscribe": Unsubscribe(packet_id=1, filters=["test/cut"], properties={"user_property": ("a", "b")}),
    "disconnect": Disconnect(reason=0, properties={"reason_string": "x"}),
    "auth": Auth(reason=0x19, properties={"authentication_method": "x"}),
}


@pytest.mark.normative("MQTT5-3.1.4-1", "MQTT5-4.13.1-1")
@pytest.mark.parametrize("what", WHOLE)
def test_packets_cut_short_with_a_matching_length(client, open_client, what):
    """Every prefix of a body as a packet of its own: refused or, where what is left out is optional, understood."""
    wire = WHOLE[what].encode()
    assert wire[1] < 0x80
    for size in range(wire[1]):
        c = open_client() if what == "connect" else client(f"c{size}")
        c.send(wire[:1] + bytes([size]) + wire[2:2 + size])
        if what != "connect":
            c.send_to_the_end(Pingreq())
        try:
            answer = c.recv()
        except Closed:
            continue
        if isinstance(answer, Disconnect) or (isinstance(answer, Connack) and answer.reason >= 0x80):
            assert answer.reason in (0x81, 0x82, 0x85, 0x90), (size, answer)
            c.expect_closed()
        else:
            assert size in (2, 3) or (what == "publish" and size >= 12), (size, answer)
        c.close()


@pytest.mark.parametrize("seed", range(20))
def test_noise_harms_nobody_else(client, open_client, name, topic, seed):
    rng = random.Random(seed)
    other = client("other")
    other.subscribe(topic)
    for round_ in range(10):
        c = open_client()
        if round_ % 2:
            c.send(Connect(client_id=name(f"noise{round_}")))
            c.expect(Connack)
        c.send_to_the_end(rng.randbytes(rng.randrange(1, 200)))
        c.close()
    other.publish(topic, b"alive", qos=1)
    other.receive(topic, b"alive")


@pytest.mark.parametrize("seed", range(20))
def test_damaged_packets_harm_nobody_else(client, open_client, name, topic, seed):
    """Right packets with a few bytes changed, on one connection, until it is closed."""
    rng = random.Random(1000 + seed)
    other = client("other")
    other.subscribe(topic)
    for round_ in range(10):
        c = open_client()
        c.send(Connect(client_id=name(f"d{round_}")))
        c.expect(Connack)
        wire = bytearray(rng.choice(list(WHOLE.values())).encode())
        for _ in range(rng.randrange(1, 4)):
            wire[rng.randrange(len(wire))] = rng.randrange(256)
        c.send_to_the_end(bytes(wire))
        c.close()
    other.publish(topic, b"alive", qos=1)
    other.receive(topic, b"alive")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_any_chunking_gives_the_same_packets(open_client, name, topic, size):
    c = open_client()
    wire = b"".join(p.encode() for p in (
        Connect(client_id=name("c"), properties={"user_property": ("a", "b")}),
        Subscribe(packet_id=1, filters=[(topic, 1)]), Publish(topic=topic, payload=b"x" * 150, qos=1, packet_id=2),
        Publish(topic=topic, payload=b"y", properties={"content_type": "t"}), Pingreq()))
    for start in range(0, len(wire), size):
        c.send(wire[start:start + size])
    c.expect(Connack, reason=0)
    c.expect(Suback, packet_id=1)
    packets = [c.recv() for _ in range(4)]
    assert sorted(type(p).__name__ for p in packets) == ["Pingresp", "Puback", "Publish", "Publish"]
    assert [p.payload for p in packets if isinstance(p, Publish)] == [b"x" * 150, b"y"]


def test_good_packets_before_a_bad_one_are_processed(client, topic):
    watcher, c = client("watcher"), client("c")
    watcher.subscribe(topic)
    c.send_to_the_end(Publish(topic=topic, payload=b"1"), Publish(topic=topic, payload=b"2"), b"\x00\x00",
                      Publish(topic=topic, payload=b"3"))
    c.expect_closed(0x81, 0x82)
    watcher.receive(topic, b"1")
    watcher.receive(topic, b"2")
    watcher.expect_quiet()


@pytest.mark.normative("MQTT5-1.5.5-1")
@pytest.mark.parametrize("length", [b"\x82\x00", b"\x82\x80\x00", b"\x82\x80\x80\x00"])
def test_a_remaining_length_in_too_many_bytes(client, length):
    c = client()
    c.send(b"\x40" + length + u16(1))
    c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-1.5.5-1")
@pytest.mark.parametrize("payload", [127 - 4, 128 - 4, 16383 - 4, 16384 - 4, 100_000])
def test_lengths_from_the_server_are_as_short_as_can_be(client, payload):
    """The codec refuses longer forms; here are the sizes where the form changes."""
    c = client()
    c.subscribe("s")
    c.publish("s", b"x" * payload)
    c.receive("s", b"x" * payload)
    assert c.last_size == len(Publish(topic="s", payload=b"x" * payload).encode())
    c.unsubscribe("s")


def test_a_client_that_half_closes_hears_the_end(client):
    c = client()
    c.drop()


def test_a_connection_that_says_nothing_does_not_stay(open_client, start_broker):
    broker = start_broker({"server.mqtt.tcp.plain.read_timeout": "1s"})
    silent = [open_client(broker) for _ in range(3)]
    silent[1].send(b"\x10")
    silent[2].send(b"\x10\x20" + text("MQTT"))
    for c in silent:
        c.expect_refused()


def test_a_transcript_tells_what_happened(client):
    """The kit's own: what a failing test prints."""
    c = client()
    with pytest.raises(Unexpected, match="Pubcomp"):
        c.send(Pingreq())
        c.expect(Pubcomp)
