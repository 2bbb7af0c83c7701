"""MQTT 5.0 sections 3.10 and 3.11: UNSUBSCRIBE, UNSUBACK."""
import pytest
from kit.client import KEPT
from oracle.mqtt import Pubcomp, Publish, Pubrec, Pubrel, Unsuback, Unsubscribe, text, u16


@pytest.mark.normative("MQTT5-3.10.4-4", "MQTT5-3.10.4-5", "MQTT5-2.2.1-6", "MQTT5-3.11.3-2", "MQTT5-3.10.4-1",
                       "MQTT5-3.10.4-2")
@pytest.mark.parametrize("packet_id", [1, 0xFF, 0x100, 0xFFFF])
def test_unsubscribe_is_acknowledged_and_ends_delivery(client, topic, packet_id):
    c = client()
    c.subscribe(topic)
    c.send(Unsubscribe(packet_id=packet_id, filters=[topic]))
    c.expect(Unsuback, packet_id=packet_id, reasons=[0])
    c.publish(topic, b"x", qos=1)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.10.4-5", "MQTT5-3.11.3-2")
def test_unsubscribe_from_nothing_is_acknowledged(client, topic):
    c = client()
    c.unsubscribe(topic, expect=[0x11])
    c.subscribe(topic)
    c.unsubscribe(topic, expect=[0])
    c.unsubscribe(topic, expect=[0x11])


@pytest.mark.normative("MQTT5-3.10.4-6", "MQTT5-3.11.3-1")
def test_many_filters_in_one_unsubscribe(client, topic):
    c = client()
    c.subscribe(topic + "/a", topic + "/b", topic + "/c")
    c.unsubscribe(topic + "/x", topic + "/a", topic + "/a", topic + "/c", topic + "/+", expect=[0x11, 0, 0x11, 0, 0x11])
    for level in "abc":
        c.publish(f"{topic}/{level}", b"x")
    c.receive(topic + "/b", b"x")
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.10.4-1")
def test_filters_are_compared_character_by_character(client, topic):
    c = client()
    c.subscribe(topic + "/#")
    c.unsubscribe(topic + "/a", topic + "/+", "#", topic + "/", topic.upper() + "/#",
                  expect=[0x11, 0x11, 0x11, 0x11, 0x11])
    c.publish(topic + "/a", b"x")
    c.receive(topic + "/a")
    c.unsubscribe(topic + "/#")


@pytest.mark.normative("MQTT5-3.10.4-2", "MQTT5-3.10.4-1")
def test_an_overlapping_subscription_goes_on(client, topic):
    c = client()
    c.subscribe((topic + "/#", 0), (topic + "/a", 2))
    c.unsubscribe(topic + "/a")
    c.publish(topic + "/a", b"x", qos=2)
    c.receive(topic + "/a", b"x", qos=0)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.10.4-3")
def test_deliveries_that_have_begun_are_completed(client, topic):
    sub, pub = client("sub", **KEPT), client("pub")
    sub.subscribe(topic, qos=2)
    pub.publish(topic, b"one", qos=1)
    pub.publish(topic, b"two", qos=2)
    one, two = sub.expect(Publish, payload=b"one"), sub.expect(Publish, payload=b"two")
    sub.unsubscribe(topic)
    sub.send(Pubrec(packet_id=two.packet_id))
    sub.expect(Pubrel, packet_id=two.packet_id)
    sub.drop()
    sub = client("sub", **KEPT)                     # unacknowledged: again, although nobody is subscribed any more
    packets = [sub.recv(), sub.recv()]
    assert {(type(p), p.packet_id) for p in packets} == {(Publish, one.packet_id), (Pubrel, two.packet_id)}
    sub.send(Pubcomp(packet_id=two.packet_id))
    pub.publish(topic, b"three", qos=1)
    sub.expect_quiet()


@pytest.mark.normative("MQTT5-3.10.1-1", "MQTT5-2.1.3-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
def test_unsubscribe_with_wrong_flags_is_malformed(client, topic, flags):
    c = client()
    c.send(Unsubscribe(packet_id=1, filters=[topic], flags=flags))
    c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-3.10.3-2")
def test_unsubscribe_without_filters_is_a_protocol_error(client):
    c = client()
    c.send(Unsubscribe(packet_id=1, filters=[]))
    c.expect_closed(0x82, 0x81)


def test_unsubscribe_with_packet_identifier_0_is_refused(client, topic):
    c = client()
    c.send(Unsubscribe(packet_id=0, filters=[topic]))
    c.expect_closed(0x82, 0x81)


@pytest.mark.normative("MQTT5-3.10.3-1", "MQTT5-1.5.4-1", "MQTT5-1.5.4-2")
@pytest.mark.parametrize("bad", [b"\xff", b"a\x00b", b"\xed\xa0\x80"])
def test_a_filter_must_be_utf8(client, bad):
    c = client()
    c.send(Unsubscribe(packet_id=1, filters=[bad]))
    c.expect_closed(0x81)


@pytest.mark.parametrize("payload", [b"\x00", b"\x00\x05a", text("a") + b"\x01"])
def test_a_filter_cut_short_is_malformed(client, payload):
    c = client()
    body = u16(1) + b"\x00" + payload
    c.send(bytes([0xA2, len(body)]) + body)
    c.expect_closed(0x81)


def test_an_unsubscribed_session_stays_unsubscribed(client, topic):
    sub = client("sub", **KEPT)
    sub.subscribe(topic, qos=1)
    sub.unsubscribe(topic)
    sub.disconnect()
    client("pub").publish(topic, b"x", qos=1)
    client("sub", **KEPT).expect_nothing()
