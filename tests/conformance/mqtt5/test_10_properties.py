"""MQTT 5.0 section 2.2.2: properties, in every packet that a client may send."""
import pytest
from oracle.mqtt import (
    AUTH,
    CONNECT,
    DISCONNECT,
    PROPERTIES,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
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
    varint,
)

VALUES = {"byte": 1, "u16": 5, "u32": 5000, "varint": 5, "text": "x", "binary": b"x", "pair": ("k", "v")}

MAKERS = {
    PUBLISH: lambda p: Publish(topic="test/properties", qos=0, properties=p),
    PUBACK: lambda p: Puback(packet_id=999, reason=0x80, properties=p),
    PUBREC: lambda p: Pubrec(packet_id=999, reason=0x80, properties=p),
    PUBREL: lambda p: Pubrel(packet_id=999, reason=0x92, properties=p),
    PUBCOMP: lambda p: Pubcomp(packet_id=999, reason=0x92, properties=p),
    SUBSCRIBE: lambda p: Subscribe(packet_id=1, filters=[("test/properties/s", 0)], properties=p),
    UNSUBSCRIBE: lambda p: Unsubscribe(packet_id=1, filters=["test/properties/s"], properties=p),
    DISCONNECT: lambda p: Disconnect(properties=p),
}
NAMES = {PUBLISH: "publish", PUBACK: "puback", PUBREC: "pubrec", PUBREL: "pubrel", PUBCOMP: "pubcomp",
         SUBSCRIBE: "subscribe", UNSUBSCRIBE: "unsubscribe", DISCONNECT: "disconnect"}


def one(name):
    return (name, VALUES[PROPERTIES[name][1]])


@pytest.mark.parametrize("kind", MAKERS, ids=NAMES.get)
def test_properties_of_other_packets_are_refused(client, kind):
    for name, (_, _, packets) in PROPERTIES.items():
        if kind not in packets and not (kind == DISCONNECT and name == "server_reference"):
            c = client(name)
            c.send(MAKERS[kind]([one(name)]))
            c.expect_closed(0x81, 0x82)


@pytest.mark.parametrize("kind", MAKERS, ids=NAMES.get)
def test_a_property_twice_is_a_protocol_error(client, kind):
    for name, (_, _, packets) in PROPERTIES.items():
        if kind in packets and name not in ("user_property", "server_reference", "topic_alias"):
            c = client(name)
            c.send(MAKERS[kind]([one(name), one(name)]))
            c.expect_closed(0x82, 0x81)


@pytest.mark.parametrize("kind", MAKERS, ids=NAMES.get)
@pytest.mark.parametrize("raw", [b"\x00", b"\x04", b"\x7f", b"\x80\x01", b"\xff\xff\xff\x7f"])
def test_an_unknown_property_is_malformed(client, kind, raw):
    c = client()
    c.send(MAKERS[kind]([("raw", raw)]))
    c.expect_closed(0x81, 0x82)


@pytest.mark.parametrize("kind", MAKERS, ids=NAMES.get)
@pytest.mark.parametrize("raw", [b"\x26\x00\x01a", b"\x26\x00\x01a\x00\x05b", b"\x26", b"\x26\x00"])
def test_a_property_cut_short_is_malformed(client, kind, raw):
    c = client()
    c.send(MAKERS[kind]([("raw", raw)]))
    c.expect_closed(0x81)


@pytest.mark.parametrize("kind", [k for k in MAKERS if k != PUBLISH], ids=NAMES.get)
def test_a_property_length_beyond_the_packet_is_malformed(client, kind):
    c = client()
    packet = MAKERS[kind]([one("user_property")])
    packet.properties_length = 120
    c.send(packet)
    c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-1.5.5-1")
@pytest.mark.parametrize("length", [b"\x80\x00", b"\x80\x80\x00", b"\x80\x80\x80\x00", b"\x80\x80\x80\x80\x01"])
def test_a_property_length_in_too_many_bytes_is_malformed(client, topic, length):
    c = client()
    body = b"\x00\x01t" + length + b"payload"
    c.send(bytes([0x30, len(body)]) + body)
    c.expect_closed(0x81)


@pytest.mark.parametrize("kind", MAKERS, ids=NAMES.get)
def test_user_properties_may_repeat_in_every_packet(client, kind):
    c = client()
    c.send(MAKERS[kind]([("user_property", ("k", str(i % 3))) for i in range(20)]))
    if kind == DISCONNECT:
        assert c.expect_closed() is None
        return
    c.send(Pingreq())
    wanted = {SUBSCRIBE: Suback, UNSUBSCRIBE: Unsuback, PUBREL: Pubcomp}.get(kind)
    if wanted:
        c.expect(wanted)
    c.expect(Pingresp)


@pytest.mark.normative("MQTT5-3.1.4-1")
def test_properties_of_connect(open_client, name):
    for prop, (_, _, packets) in PROPERTIES.items():
        c = open_client()
        c.send(Connect(client_id=name(prop), properties=[one(prop)]))
        if CONNECT not in packets:
            c.expect_refused(0x81, 0x82)
        elif prop not in ("authentication_method", "authentication_data"):
            c.expect(Connack, reason=0)
            if prop != "user_property":
                c = open_client()
                c.send(Connect(client_id=name(prop), properties=[one(prop), one(prop)]))
                c.expect_refused(0x82, 0x81)


@pytest.mark.normative("MQTT5-3.1.4-1", "MQTT5-3.1.2-9")
def test_properties_of_a_will(open_client, name):
    for prop, (_, _, packets) in PROPERTIES.items():
        c = open_client()
        c.send(Connect(client_id=name(prop), will=Will(topic="test/properties/will", properties=[one(prop)])))
        if "will" not in packets:
            c.expect_refused(0x81, 0x82)
            continue
        c.expect(Connack, reason=0)
        c.disconnect()
        if prop != "user_property":
            c = open_client()
            c.send(Connect(client_id=name(prop), will=Will(topic="test/w", properties=[one(prop), one(prop)])))
            c.expect_refused(0x82, 0x81)


@pytest.mark.normative("MQTT5-3.1.4-1")
@pytest.mark.parametrize("properties", [
    {"receive_maximum": 0}, {"maximum_packet_size": 0}, {"request_problem_information": 2},
    {"request_response_information": 2}], ids=str)
def test_values_that_are_protocol_errors_in_connect(open_client, name, properties):
    c = open_client()
    c.send(Connect(client_id=name("c"), properties=properties))
    c.expect_refused(0x82, 0x81)


def test_user_properties_of_connect_go_nowhere(client, topic):
    sub, pub = client("sub"), client("pub", properties=[("user_property", ("secret", "x"))])
    sub.subscribe(topic)
    pub.publish(topic, b"x")
    assert sub.receive(topic).properties == []


# ── problem information ──────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.1.2-29")
def test_no_reasons_are_given_where_they_are_not_wanted(client, guarded, topic):
    c = client("c", where=guarded, properties={"request_problem_information": 0})
    c.send(Publish(topic="denied/x", qos=1, packet_id=1))
    answers = [c.expect(Puback, reason=0x87)]
    c.send(Publish(topic="denied/x", qos=2, packet_id=2))
    answers.append(c.expect(Pubrec, reason=0x87))
    c.send(Pubrel(packet_id=3))
    answers.append(c.expect(Pubcomp, reason=0x92))
    c.send(Pubrec(packet_id=4))
    answers.append(c.expect(Pubrel, reason=0x92))
    answers.append(c.subscribe("denied/x", expect=[0x87]))
    answers.append(c.unsubscribe(topic, expect=[0x11]))
    for packet in answers:
        assert packet.prop("reason_string") is None
        assert packet.props("user_property") == []


@pytest.mark.normative("MQTT5-3.1.2-29")
def test_messages_keep_their_user_properties_without_problem_information(client, topic):
    c = client("c", properties={"request_problem_information": 0})
    c.subscribe(topic)
    c.publish(topic, properties={"user_property": ("a", "b")})
    assert c.receive(topic).props("user_property") == [("a", "b")]


def test_a_reason_is_given_where_it_is_wanted(client, guarded):
    """A broker need not, this one does: whoever looks for a fault finds it sooner."""
    c = client("c", where=guarded)
    c.send(Publish(topic="denied/x", qos=1, packet_id=1))
    assert c.expect(Puback, reason=0x87).prop("reason_string")


@pytest.mark.normative("MQTT5-3.4.2-2", "MQTT5-3.4.2-3", "MQTT5-3.5.2-2", "MQTT5-3.5.2-3", "MQTT5-3.6.2-2",
                       "MQTT5-3.6.2-3", "MQTT5-3.7.2-2", "MQTT5-3.7.2-3", "MQTT5-3.9.2-1", "MQTT5-3.9.2-2",
                       "MQTT5-3.11.2-1", "MQTT5-3.11.2-2", "MQTT5-3.14.2-3", "MQTT5-3.14.2-4", "MQTT5-3.2.2-19",
                       "MQTT5-3.2.2-20", "MQTT5-3.1.2-24")
@pytest.mark.parametrize("spare", [0, 1, 2, 5, 10, 20])
def test_no_reason_makes_a_packet_too_large(client, guarded, topic, name, spare):
    """The client takes packets as large as its CONNACK and a little: every answer fits, if need be without a reason."""
    probe = client("c", where=guarded, properties={"maximum_packet_size": 1000})
    size = probe.last_size + spare
    c = client("c", where=guarded, properties={"maximum_packet_size": size})
    assert c.last_size <= size
    for packet, kind, reason in (
        (Publish(topic="denied/x", qos=1, packet_id=1), Puback, 0x87),
        (Publish(topic="denied/x", qos=2, packet_id=2), Pubrec, 0x87),
        (Pubrel(packet_id=3), Pubcomp, 0x92),
        (Pubrec(packet_id=4), Pubrel, 0x92),
    ):
        c.send(packet)
        c.expect(kind, reason=reason)
        assert c.last_size <= size
    c.subscribe("denied/x", expect=[0x87])
    assert c.last_size <= size
    c.unsubscribe(topic, expect=[0x11])
    assert c.last_size <= size
    c.send(Connect(client_id=name("c")))
    last = c.expect_closed()
    assert last is None or c.last_size <= size


def test_auth_properties_are_no_properties_of_others(client):
    assert {k for k, (_, _, packets) in PROPERTIES.items() if AUTH in packets} == {
        "authentication_method", "authentication_data", "reason_string", "user_property"}
    c = client()
    c.send(Auth(reason=0x19, properties={"topic_alias": 1}))
    c.expect_closed(0x81, 0x82)


def test_a_property_identifier_in_two_bytes_is_refused(client):
    """0x26 written in two bytes is the same number, and not the fewest bytes [MQTT-1.5.5-1]."""
    c = client()
    c.send(Publish(topic="test/x", properties={"raw": b"\xa6\x00\x00\x01a\x00\x01b"}))
    c.expect_closed(0x81)
    assert varint(0x26) == b"\x26"
