"""MQTT 5.0 sections 3.8 and 3.9: SUBSCRIBE, SUBACK. Retain Handling is in 15, shared subscriptions in 12."""
import pytest
from kit.client import KEPT
from oracle.mqtt import Connack, Connect, Publish, Suback, Subscribe, Unsubscribe, options, text, u16


@pytest.mark.normative("MQTT5-3.8.4-1", "MQTT5-3.8.4-2", "MQTT5-2.2.1-6", "MQTT5-3.9.3-2")
@pytest.mark.parametrize("packet_id", [1, 0xFF, 0x100, 0xFFFF])
def test_subscribe_is_acknowledged(client, topic, packet_id):
    c = client()
    c.send(Subscribe(packet_id=packet_id, filters=[(topic, 0)]))
    c.expect(Suback, packet_id=packet_id, reasons=[0])


@pytest.mark.normative("MQTT5-3.8.4-5", "MQTT5-3.8.4-6", "MQTT5-3.9.3-1", "MQTT5-3.8.4-7", "MQTT5-3.9.3-2")
def test_many_filters_in_one_subscribe(client, topic):
    c = client()
    c.subscribe((topic + "/0", 0), (topic + "/2", 2), (topic + "/1", 1), (topic + "/+/x", 2), (topic + "/#", 0),
                expect=[0, 2, 1, 2, 0])
    c.publish(topic + "/1/x", b"x", qos=2)
    c.receive(topic + "/1/x", qos=2)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.8.4-5", "MQTT5-3.8.4-6", "MQTT5-3.9.3-1")
def test_the_same_filter_twice_in_one_subscribe(client, topic):
    c = client()
    c.subscribe((topic, 2), (topic, 1), expect=[2, 1])
    c.publish(topic, b"x", qos=2)
    c.receive(topic, b"x", qos=1)                   # the second replaced the first
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.8.4-8")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_delivery_has_the_lower_qos(client, topic, granted, published):
    sub = client("sub")
    sub.subscribe(topic, qos=granted)
    client("pub").publish(topic, b"x", qos=published)
    sub.receive(topic, b"x", qos=min(granted, published))


@pytest.mark.normative("MQTT5-3.8.4-3", "MQTT5-3.8.4-4")
def test_subscribing_again_replaces(client, topic):
    c = client()
    c.subscribe(topic, qos=2)
    c.subscribe(topic, qos=0)
    c.publish(topic, b"x", qos=2)
    c.receive(topic, b"x", qos=0)
    c.expect_quiet()
    c.unsubscribe(topic)                            # there was one subscription, not two
    c.publish(topic, b"x", qos=1)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.8.4-3", "MQTT5-3.8.4-4")
def test_replacing_a_subscription_loses_nothing(client, topic):
    sub, pub = client("sub", **KEPT), client("pub")
    sub.subscribe(topic, qos=1)
    sub.disconnect()
    for i in range(5):
        pub.publish(topic, b"%d" % i, qos=1)
    sub = client("sub", **KEPT)
    sub.send(Subscribe(packet_id=1, filters=[(topic, 1)]))
    got = []
    while len(got) < 6:
        packet = sub.recv()
        got.append(packet.payload if isinstance(packet, Publish) else type(packet))
    assert [g for g in got if g is not Suback] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.normative("MQTT5-3.8.4-4")
def test_replacing_a_subscription_while_messages_flow_loses_nothing(client, topic):
    sub, pub = client("sub"), client("pub")
    sub.subscribe(topic, qos=1)
    for i in range(30):
        pub.publish(topic, b"%d" % i, qos=1)
        sub.subscribe(topic, qos=1)
    for i in range(30):
        sub.receive(topic, b"%d" % i)
    sub.expect_quiet()


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.8.3-3")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local(client, topic, qos):
    c, other = client("c"), client("other")
    c.subscribe((topic, options(2, no_local=True)))
    other.subscribe(topic, qos=2)
    c.publish(topic, b"own", qos=qos)
    other.receive(topic, b"own")
    other.publish(topic, b"other's", qos=qos)
    c.receive(topic, b"other's", qos=qos)
    other.receive(topic, b"other's")
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.8.3-3")
def test_no_local_is_about_the_client_id_and_not_the_connection(client, topic):
    c = client("c", **KEPT)
    c.subscribe((topic, options(1, no_local=True)))
    c.disconnect()
    c = client("c", **KEPT)
    c.publish(topic, b"own", qos=1)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.8.3-3", "MQTT5-3.8.4-8", "MQTT5-3.3.4-3", "MQTT5-3.3.1-12")
@pytest.mark.parametrize("identifiers", [False, True])
def test_a_no_local_subscription_does_not_change_what_another_gets_of_ones_own(client, topic, identifiers):
    """Neither its QoS, nor its Retain As Published, nor its identifier shows; in what others publish all do. A share
    group beside gets its own copy."""
    c, other, member = client("c"), client("other"), client("member")

    def known(number):
        return {"subscription_identifier": number} if identifiers else {}

    c.subscribe((topic + "/#", options(2, no_local=True, retain_as_published=True)), properties=known(11))
    c.subscribe((topic + "/a", options(1)), properties=known(12))
    c.subscribe((topic + "/+", options(0)), properties=known(13))
    member.subscribe((f"$share/g/{topic}/#", options(2, retain_as_published=True)))
    for publisher, qos, retain, numbers in ((c, 1, False, [12, 13]), (other, 2, True, [11, 12, 13]),
                                            (c, 1, False, [12, 13])):
        publisher.publish(topic + "/a", b"x", qos=2, retain=True)
        got = c.receive(topic + "/a", b"x", qos=qos, retain=retain)
        assert sorted(got.props("subscription_identifier")) == (numbers if identifiers else [])
        member.receive(topic + "/a", b"x", qos=2, retain=True)
    c.unsubscribe(topic + "/a", topic + "/+")
    c.publish(topic + "/a", b"nobody's", qos=1, retain=True)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.8.3-3", "MQTT5-3.8.4-8")
def test_no_local_beside_another_subscription_after_a_restart(client, start_broker, topic):
    """The session has all its options still, and so has what was queued for it by both subscriptions."""
    broker = start_broker()
    c = client("c", where=broker, **KEPT)
    c.subscribe((topic + "/#", options(2, no_local=True, retain_as_published=True)), (topic + "/a", options(1)))
    c.publish(topic + "/a", b"before", qos=2, retain=True)
    c.drop()
    client("other", where=broker).publish(topic + "/a", b"queued", qos=2, retain=True)
    broker.restart()
    c = client("c", where=broker, **KEPT)
    c.receive(topic + "/a", b"before", qos=1, retain=False, dup=True)
    c.receive(topic + "/a", b"queued", qos=2, retain=True)
    c.publish(topic + "/a", b"after", qos=2, retain=True)
    c.receive(topic + "/a", b"after", qos=1, retain=False)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.3.1-12", "MQTT5-3.3.1-13")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_retain_as_published(client, topic, keep, retain):
    c = client()
    c.subscribe((topic, options(1, retain_as_published=keep)))
    client("pub").publish(topic, b"x", qos=1, retain=retain)
    c.receive(topic, b"x", retain=keep and retain)


@pytest.mark.normative("MQTT5-3.3.1-12", "MQTT5-3.3.1-13")
def test_retain_as_published_through_the_offline_queue(client, topic):
    c = client("c", **KEPT)
    c.subscribe((topic + "/kept", options(1, retain_as_published=True)), (topic + "/cleared", options(1)))
    c.disconnect()
    pub = client("pub")
    pub.publish(topic + "/kept", b"x", qos=1, retain=True)
    pub.publish(topic + "/cleared", b"x", qos=1, retain=True)
    c = client("c", **KEPT)
    c.receive(topic + "/kept", retain=True)
    c.receive(topic + "/cleared", retain=False)


@pytest.mark.normative("MQTT5-3.8.3-5")
@pytest.mark.parametrize("bits", [0x40, 0x80, 0xC0, 0xC1])
def test_reserved_option_bits_are_malformed(client, topic, bits):
    c = client()
    c.send(Subscribe(packet_id=1, filters=[(topic, bits)]))
    c.expect_closed(0x81)


@pytest.mark.parametrize("bits", [0x03, 0x30], ids=["QoS 3", "Retain Handling 3"])
def test_option_values_that_do_not_exist_are_refused(client, topic, bits):
    c = client()
    c.send(Subscribe(packet_id=1, filters=[(topic, bits)]))
    c.expect_closed(0x82, 0x81)


@pytest.mark.normative("MQTT5-3.8.3-4")
def test_no_local_on_a_shared_subscription_is_a_protocol_error(client, topic):
    c = client()
    c.send(Subscribe(packet_id=1, filters=[(f"$share/group/{topic}", options(0, no_local=True))]))
    c.expect_closed(0x82)


# ── form ─────────────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.8.1-1", "MQTT5-2.1.3-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
def test_subscribe_with_wrong_flags_is_malformed(client, topic, flags):
    c = client()
    c.send(Subscribe(packet_id=1, filters=[(topic, 0)], flags=flags))
    c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-3.8.3-2")
def test_subscribe_without_filters_is_a_protocol_error(client):
    c = client()
    c.send(Subscribe(packet_id=1, filters=[]))
    c.expect_closed(0x82, 0x81)


def test_subscribe_with_packet_identifier_0_is_refused(client, topic):
    c = client()
    c.send(Subscribe(packet_id=0, filters=[(topic, 0)]))
    c.expect_closed(0x82, 0x81)


@pytest.mark.normative("MQTT5-3.8.3-2")
@pytest.mark.parametrize("payload", [b"\x00", b"\x00\x05a", text("a"), text("a") + b"\x00" + text("b")],
                         ids=["half a length", "short filter", "no options", "second without options"])
def test_a_filter_cut_short_is_malformed(client, payload):
    c = client()
    body = u16(1) + b"\x00" + payload
    c.send(bytes([0x82, len(body)]) + body)
    c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-3.8.3-1", "MQTT5-1.5.4-1", "MQTT5-1.5.4-2", "MQTT5-4.7.3-2")
@pytest.mark.parametrize("bad", [b"\xff", b"a\x00b", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_a_filter_must_be_utf8(client, bad):
    c = client()
    c.send(Subscribe(packet_id=1, filters=[(bad, 0)]))
    c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-3.8.4-7", "MQTT5-3.8.4-5", "MQTT5-3.9.3-1")
def test_a_filter_that_is_not_taken_fails_alone(client, topic):
    """It is well-formed, and has more levels than this broker takes."""
    c = client()
    c.subscribe((topic, 0), ("a/" * 40 + "a", 0), (topic + "/2", 1), expect=[0, 0x8F, 1])
    c.publish(topic + "/2", b"x")
    c.receive(topic + "/2")


@pytest.mark.normative("MQTT5-4.7.1-1", "MQTT5-4.7.1-2", "MQTT5-4.7.3-1")
@pytest.mark.parametrize("wrong", ["a/#/b", "a#", "#/a", "a/b#", "a+", "+a", "a/+b/c", "a/b+", "++", "##", ""])
@pytest.mark.parametrize("kind", [Subscribe, Unsubscribe])
def test_an_ill_formed_filter_closes(client, topic, kind, wrong):
    """0x8F is for one that is well-formed and not taken. Nothing of the packet is done."""
    c = client("c", **KEPT)
    c.subscribe(topic)
    c.send(Subscribe(packet_id=1, filters=[(topic + "/2", 0), (wrong, 0)]) if kind is Subscribe else
           Unsubscribe(packet_id=1, filters=[topic, wrong]))
    c.expect_closed(0x81 if wrong else 0x82)
    again = client("c", **KEPT)
    again.publish(topic + "/2", b"x")
    again.publish(topic, b"x")
    again.receive(topic)
    again.expect_quiet()


@pytest.mark.normative("MQTT5-3.8.4-7", "MQTT5-3.9.3-1", "MQTT5-3.9.3-2")
def test_a_subscription_without_permission_fails_alone(client, guarded, topic):
    c = client(where=guarded)
    c.subscribe(("denied/x", 0), (topic, 1), ("denied/#", 2), expect=[0x87, 1, 0x87])
    c.publish(topic, b"x")
    c.receive(topic)


@pytest.mark.normative("MQTT5-3.8.4-1", "MQTT5-3.8.4-6")
def test_a_thousand_filters(client, topic):
    c = client()
    c.subscribe(*((f"{topic}/{i}", i % 3) for i in range(1000)))
    c.publish(f"{topic}/777", b"x")
    c.receive(f"{topic}/777")


def test_user_properties_in_subscribe_are_accepted(client, topic):
    c = client()
    c.subscribe(topic, properties=[("user_property", ("a", "b")), ("user_property", ("a", "b")),
                                   ("subscription_identifier", 5)])


@pytest.mark.normative("MQTT5-3.8.4-1")
def test_subscribe_one_byte_at_a_time(open_client, name, topic):
    c = open_client()
    for byte in (Connect(client_id=name("c")).encode()
                 + Subscribe(packet_id=1, filters=[(topic, 1)], properties={"subscription_identifier": 200}).encode()):
        c.send(bytes([byte]))
    c.expect(Connack)
    c.expect(Suback, packet_id=1, reasons=[1])
