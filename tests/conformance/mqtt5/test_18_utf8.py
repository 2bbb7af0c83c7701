"""MQTT 5.0 section 1.5.4: UTF-8 Encoded Strings, wherever they stand."""
import pytest
from oracle.mqtt import Connect, Publish, Subscribe, Unsubscribe, Will

ILL_FORMED = {
    "lone continuation": b"a\x80", "lone lead": b"\xc3", "lead and ASCII": b"\xc3(", "overlong slash": b"\xc0\xaf",
    "overlong in three": b"\xe0\x80\xaf", "overlong in four": b"\xf0\x80\x80\xaf", "high surrogate": b"\xed\xa0\x80",
    "low surrogate": b"\xed\xbf\xbf", "surrogate pair": b"\xed\xa0\x81\xed\xb0\x80",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80", "six bytes": b"\xfc\x84\x80\x80\x80\x80", "FE": b"\xfe", "FF": b"\xff",
    "cut short": b"\xf0\x9f\x90", "latin-1": b"caf\xe9", "utf-16": b"\xff\xfea\x00",
    "null": b"a\x00b", "only null": b"\x00",
    "overlong null": b"\xc0\x80",
}
WELL_FORMED = ["a", "é", "€", "\U0001f41d", "\ufeffbom", "\ufeff", "bom\ufeffinside", "\ud7ff\ue000", "\U0010fffd",
               "e\u0301", "\u202eright to left", "한국어", "\u00a0", "日本語" * 20]


@pytest.mark.normative("MQTT5-1.5.4-1", "MQTT5-1.5.4-2", "MQTT5-3.3.2-1", "MQTT5-3.8.3-1", "MQTT5-3.10.3-1")
@pytest.mark.parametrize("what", ILL_FORMED)
def test_ill_formed_topics(client, what):
    bad = b"test/" + ILL_FORMED[what]
    for number, packet in enumerate((
        Publish(topic=bad, payload=b"x"), Publish(topic=bad, payload=b"x", qos=1, packet_id=1),
        Subscribe(packet_id=1, filters=[(bad, 0)]), Subscribe(packet_id=1, filters=[("a", 0), (bad, 0)]),
        Unsubscribe(packet_id=1, filters=[bad]),
    )):
        c = client(f"c{number}")
        c.send(packet)
        c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-1.5.4-1", "MQTT5-1.5.4-2", "MQTT5-1.5.7-1", "MQTT5-3.3.2-13", "MQTT5-3.3.2-19")
@pytest.mark.parametrize("what", ILL_FORMED)
def test_ill_formed_properties(client, topic, what):
    bad = ILL_FORMED[what]
    for number, properties in enumerate((
        {"content_type": bad}, {"response_topic": bad}, {"user_property": (bad, "v")}, {"user_property": ("k", bad)},
    )):
        c = client(f"c{number}")
        c.send(Publish(topic=topic, properties=properties))
        c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-1.5.4-1", "MQTT5-1.5.4-2", "MQTT5-3.1.3-4", "MQTT5-3.1.3-11", "MQTT5-3.1.3-12",
                       "MQTT5-1.5.7-1")
@pytest.mark.parametrize("what", ILL_FORMED)
def test_ill_formed_texts_in_connect(open_client, name, what):
    bad = ILL_FORMED[what]
    for fields in ({"client_id": bad}, {"username": bad}, {"will": Will(topic=bad)},
                   {"will": Will(topic="t", properties={"content_type": bad})},
                   {"properties": {"user_property": (bad, "v")}}, {"properties": {"authentication_method": bad}}):
        c = open_client()
        c.send(Connect(**{"client_id": name("c")} | fields))
        c.expect_refused(0x81, 0x85, 0x90, 0x8C)


@pytest.mark.normative("MQTT5-1.5.4-1", "MQTT5-1.5.4-3", "MQTT5-3.3.2-17", "MQTT5-3.3.2-20", "MQTT5-1.5.7-1")
@pytest.mark.parametrize("good", WELL_FORMED, ids=ascii)
def test_well_formed_texts_are_carried_as_they_are(client, topic, good):
    c = client("c", username=good, properties={"user_property": (good, good)})
    c.subscribe(f"{topic}/{good}")
    c.publish(f"{topic}/{good}", b"x", properties=[
        ("content_type", good), ("response_topic", good), ("user_property", (good, "v")),
        ("user_property", ("k", good))])
    got = c.receive(f"{topic}/{good}", b"x", content_type=good, response_topic=good)
    assert got.props("user_property") == [(good, "v"), ("k", good)]


@pytest.mark.normative("MQTT5-1.5.4-3", "MQTT5-4.7.3-4")
def test_a_byte_order_mark_is_a_character(client, topic):
    c = client()
    c.subscribe(f"{topic}/\ufeffa", "\ufeff" + topic)
    c.publish(f"{topic}/a", b"without")
    c.publish(topic, b"without")
    c.publish(f"{topic}/\ufeffa", b"with")
    c.publish("\ufeff" + topic, b"with")
    c.receive(f"{topic}/\ufeffa", b"with")
    c.receive("\ufeff" + topic, b"with")
    c.expect_quiet()


def test_a_payload_need_not_be_text(client, topic):
    c = client()
    c.subscribe(topic)
    for payload in ILL_FORMED.values():
        c.publish(topic, payload)
        c.receive(topic, payload)


def test_correlation_data_and_password_need_not_be_text(client, topic):
    c = client("c", password=b"\xff\x00")
    c.subscribe(topic)
    c.publish(topic, properties={"correlation_data": b"\xff\x00\xed\xa0\x80"})
    c.receive(topic, correlation_data=b"\xff\x00\xed\xa0\x80")


@pytest.mark.normative("MQTT5-4.7.3-3", "MQTT5-1.5.4-1")
def test_the_longest_texts(client, topic):
    longest = "é" * 32767 + "x"
    assert len(longest.encode()) == 65535
    c = client()
    c.subscribe(topic)
    c.publish(topic, b"x", properties={"user_property": (longest, longest), "content_type": longest})
    got = c.receive(topic, b"x", content_type=longest)
    assert got.props("user_property") == [(longest, longest)]
