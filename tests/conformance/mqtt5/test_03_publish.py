"""MQTT 5.0 section 3.3: PUBLISH. Aliases, expiry, identifiers, what is forwarded; quotas are in 16, QoS in 04."""
import time

import pytest
from kit.client import KEPT
from oracle.mqtt import PROPERTIES, Connack, Connect, Puback, Publish, Pubrec, Suback, Subscribe, options

EVERYTHING = [
    ("payload_format_indicator", 1), ("content_type", "text/plain; charset=é"), ("response_topic", "answers/to/me"),
    ("correlation_data", bytes(range(256))),
    ("user_property", ("z", "1")), ("user_property", ("a", "2")), ("user_property", ("z", "1")),
    ("user_property", ("a", "1")), ("user_property", ("", "")), ("user_property", ("ключ", "\U0001f41d")),
]


def sorted_but_users(properties):
    """Order among different properties means nothing; among user properties it does."""
    return (sorted(((name, value) for name, value in properties if name != "user_property"), key=lambda p: p[0]),
            [value for name, value in properties if name == "user_property"])


@pytest.mark.normative("MQTT5-3.3.2-3")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_reaches_its_subscribers(client, topic, qos):
    subs = [client(f"sub{i}") for i in range(3)]
    for sub in subs:
        sub.subscribe(topic, qos=2)
    client("other").subscribe(topic + "x", qos=2)
    client("pub").publish(topic, b"payload", qos=qos)
    for sub in subs:
        got = sub.receive(topic, b"payload", qos=qos, retain=False, dup=False)
        assert got.properties == []


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 16_000, 16_384, 300_000])
@pytest.mark.parametrize("qos", [0, 1])
def test_payloads_of_any_size(client, topic, size, qos):
    c = client()
    c.subscribe(topic, qos=1)
    payload = bytes(i * 7 & 0xFF for i in range(size))
    c.send(Publish(topic=topic, payload=payload, qos=qos, packet_id=5 if qos else None))
    packets = [c.recv() for _ in range(1 + qos)]
    assert [p.payload == payload for p in packets if isinstance(p, Publish)] == [True]


# ── flags ────────────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.3.1-2", "MQTT5-4.3.1-1")
def test_dup_at_qos_0_is_malformed(client, topic):
    c = client()
    c.send(Publish(topic=topic, payload=b"x", qos=0, dup=True))
    c.expect_closed(0x81, 0x82)


@pytest.mark.normative("MQTT5-3.3.1-3", "MQTT5-3.3.1-2", "MQTT5-4.3.1-1", "MQTT5-4.3.2-2", "MQTT5-4.3.3-2")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_dup_is_not_carried_over(client, topic, qos, granted):
    sub, pub = client("sub"), client("pub")
    sub.subscribe(topic, qos=granted)
    pub.send(Publish(topic=topic, payload=b"x", qos=qos, packet_id=1, dup=True))
    pub.expect(Puback if qos == 1 else Pubrec, packet_id=1)
    if qos == 2:
        pub.send(b"\x62\x02\x00\x01")
    sub.receive(topic, b"x", dup=False, qos=min(qos, granted))


@pytest.mark.normative("MQTT5-3.3.1-1", "MQTT5-3.3.1-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_marks_a_redelivery(client, topic, qos):
    sub = client("sub", **KEPT)
    sub.subscribe(topic, qos=qos)
    client("pub").publish(topic, b"x", qos=qos)
    first = sub.expect(Publish, dup=False, qos=qos)
    sub.drop()
    sub = client("sub", **KEPT)
    sub.receive(topic, b"x", dup=True, qos=qos, packet_id=first.packet_id)


@pytest.mark.normative("MQTT5-3.3.1-4")
def test_qos_3_is_malformed(client, topic):
    c = client()
    c.send(Publish(topic=topic, payload=b"x", qos=3, packet_id=1))
    c.expect_closed(0x81)


@pytest.mark.parametrize("qos", [1, 2])
def test_packet_identifier_0_is_refused(client, topic, qos):
    c = client()
    c.send(Publish(topic=topic, payload=b"x", qos=qos, packet_id=0))
    c.expect_closed(0x81, 0x82)


@pytest.mark.normative("MQTT5-2.2.1-2")
def test_qos_0_has_no_packet_identifier(client, topic):
    c = client()
    c.subscribe(topic, qos=2)
    c.publish(topic, b"\x00\x07payload")
    got = c.expect(Publish, topic=topic, payload=b"\x00\x07payload", packet_id=None)
    assert got.encode() == bytes([0x30, len(topic) + 2 + 1 + 9]) + b"\x00" + bytes([len(topic)]) + topic.encode() \
        + b"\x00\x00\x07payload"


@pytest.mark.normative("MQTT5-2.2.1-4", "MQTT5-4.3.2-1", "MQTT5-4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_packet_identifiers_from_the_server_are_unused(client, topic, qos):
    sub, pub = client("sub"), client("pub")
    sub.subscribe(topic, qos=qos)
    for i in range(100):
        pub.publish(topic, b"%d" % i, qos=qos)
    ids = {sub.expect(Publish, payload=b"%d" % i, dup=False).packet_id for i in range(100)}
    assert len(ids) == 100
    assert 0 not in ids


@pytest.mark.normative("MQTT5-2.2.2-1")
def test_no_properties_are_one_zero_byte(client, topic):
    c = client()
    c.subscribe(topic)
    c.send(b"\x30" + bytes([len(topic) + 4]) + b"\x00" + bytes([len(topic)]) + topic.encode() + b"\x00!")
    assert c.expect(Publish, topic=topic, payload=b"!").properties == []


# ── topic name ───────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.3.2-2", "MQTT5-4.7.0-1")
@pytest.mark.parametrize("wild", ["test/+", "test/#", "#", "+", "te+st", "test/a#"])
def test_wildcards_are_no_topic_names(client, wild):
    watcher = client("watcher")
    watcher.subscribe("test/#")
    c = client()
    c.send(Publish(topic=wild, payload=b"x", qos=1, packet_id=1))
    c.expect_closed(0x81, 0x82, 0x90)


@pytest.mark.normative("MQTT5-3.3.2-1", "MQTT5-1.5.4-1", "MQTT5-1.5.4-2", "MQTT5-4.7.3-2")
@pytest.mark.parametrize("bad", [b"a\xffb", b"a\x00b", b"\xed\xbf\xbf", b"\xc1\xbf", b"\xf4\x90\x80\x80"])
def test_a_topic_name_must_be_utf8(client, bad):
    c = client()
    c.send(Publish(topic=bad, payload=b"x", qos=1, packet_id=1))
    c.expect_closed(0x81, 0x90)


@pytest.mark.normative("MQTT5-4.7.3-1")
def test_an_empty_topic_name_needs_an_alias(client):
    c = client()
    c.send(Publish(topic="", payload=b"x"))
    c.expect_closed(0x82, 0x81, 0x90)


# ── what is forwarded ────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.3.2-4", "MQTT5-3.3.2-15", "MQTT5-3.3.2-16", "MQTT5-3.3.2-17", "MQTT5-3.3.2-18",
                       "MQTT5-3.3.2-20")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_forwarded_unaltered(client, topic, qos):
    sub = client("sub")
    sub.subscribe(topic, qos=2)
    client("pub").publish(topic, b"\xc3\xa9", qos=qos, properties=EVERYTHING)
    got = sub.receive(topic, b"\xc3\xa9", qos=qos)
    assert sorted_but_users(got.properties) == sorted_but_users(EVERYTHING)


@pytest.mark.normative("MQTT5-3.3.2-4", "MQTT5-3.3.2-15", "MQTT5-3.3.2-16", "MQTT5-3.3.2-17", "MQTT5-3.3.2-18",
                       "MQTT5-3.3.2-20")
def test_properties_survive_the_offline_queue(client, topic):
    sub = client("sub", **KEPT)
    sub.subscribe(topic, qos=1)
    sub.disconnect()
    client("pub").publish(topic, b"x", qos=1, properties=EVERYTHING)
    got = client("sub", **KEPT).receive(topic, b"x")
    assert sorted_but_users(got.properties) == sorted_but_users(EVERYTHING)


@pytest.mark.normative("MQTT5-3.3.2-17", "MQTT5-3.3.2-18")
def test_many_user_properties_keep_order_and_duplicates(client, topic):
    users = [("user_property", (f"k{i % 5}", str(i))) for i in range(60)]
    c = client()
    c.subscribe(topic)
    c.publish(topic, properties=users)
    assert c.receive(topic).properties == users


@pytest.mark.normative("MQTT5-3.3.2-4")
@pytest.mark.parametrize("indicator", [0, 1])
def test_payload_format_indicator(client, topic, indicator):
    c = client()
    c.subscribe(topic)
    c.publish(topic, b"text", properties={"payload_format_indicator": indicator})
    assert c.receive(topic).prop("payload_format_indicator") == indicator


@pytest.mark.parametrize("payload", [b"", b"\0", b"a\0\0b" * 100, "ä\0".encode() * 9, b"\0" * 4096])
def test_a_text_payload_may_hold_zeroes(client, topic, payload):
    c = client()
    c.subscribe(topic)
    c.publish(topic, payload, properties={"payload_format_indicator": 1})
    assert c.receive(topic).payload == payload


def test_payload_format_indicator_2_is_refused(client, topic):
    c = client()
    c.send(Publish(topic=topic, properties={"payload_format_indicator": 2}))
    c.expect_closed(0x82, 0x81)


@pytest.mark.normative("MQTT5-3.3.2-13", "MQTT5-3.3.2-19", "MQTT5-1.5.7-1", "MQTT5-1.5.4-1")
@pytest.mark.parametrize("properties", [
    {"response_topic": b"\xff"}, {"content_type": b"\xed\xa0\x80"}, {"user_property": (b"\xff", "v")},
    {"user_property": ("k", b"\x00")}, {"response_topic": b"a\x00"}, {"content_type": b"\x00"},
])
def test_texts_in_properties_must_be_utf8(client, topic, properties):
    c = client()
    c.send(Publish(topic=topic, properties=properties))
    c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-3.3.2-14")
@pytest.mark.parametrize("wild", ["a/+", "#", "+"])
def test_a_response_topic_has_no_wildcards(client, topic, wild):
    c = client()
    c.send(Publish(topic=topic, qos=1, packet_id=1, properties={"response_topic": wild}))
    c.expect_closed(0x82, 0x81, 0x90)


@pytest.mark.normative("MQTT5-3.3.2-15", "MQTT5-3.3.2-16")
def test_request_and_response(client, topic):
    """Section 4.10, between two clients that know nothing of each other but a topic."""
    asks, answers = client("asks"), client("answers")
    answers.subscribe(topic + "/questions", qos=1)
    asks.subscribe(topic + "/answers/asks", qos=1)
    for number in (b"\x01", b"\x02"):
        asks.publish(topic + "/questions", b"?", qos=1, properties={
            "response_topic": topic + "/answers/asks", "correlation_data": number})
    questions = [answers.receive() for _ in range(2)]
    for question in reversed(questions):
        answers.publish(question.prop("response_topic"), b"!", qos=1, properties={
            "correlation_data": question.prop("correlation_data")})
    assert [asks.receive().prop("correlation_data") for _ in range(2)] == [b"\x02", b"\x01"]


# ── expiry ───────────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.3.2-6")
def test_message_expiry_is_forwarded(client, topic):
    c = client()
    c.subscribe(topic)
    c.publish(topic, properties={"message_expiry_interval": 1000})
    assert c.receive(topic).prop("message_expiry_interval") in (999, 1000)


@pytest.mark.normative("MQTT5-3.3.2-5", "MQTT5-3.3.2-6")
def test_message_expiry_is_decremented_and_enforced(client, topic):
    sub, pub = client("sub", **KEPT), client("pub")
    sub.subscribe(topic, qos=1)
    sub.disconnect()
    pub.publish(topic, b"expires", qos=1, properties={"message_expiry_interval": 1})
    pub.publish(topic, b"lasts", qos=1, properties={"message_expiry_interval": 100})
    pub.publish(topic, b"for ever", qos=1)
    time.sleep(2.1)                                 # waiting in the server is what is tested
    sub = client("sub", **KEPT)
    assert sub.receive(topic, b"lasts").prop("message_expiry_interval") in range(80, 99)
    assert sub.receive(topic, b"for ever").prop("message_expiry_interval") is None
    sub.expect_quiet()


# ── topic aliases ────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.3.2-12")
def test_an_alias_stands_for_its_topic(client, topic):
    sub, pub = client("sub"), client("pub")
    sub.subscribe(topic + "/#", qos=2)
    pub.publish(topic + "/a", b"1", properties={"topic_alias": 1})
    pub.publish("", b"2", qos=1, properties={"topic_alias": 1})
    pub.publish("", b"3", qos=2, properties={"topic_alias": 1})
    pub.publish(topic + "/b", b"4", properties={"topic_alias": 1})          # the alias moves
    pub.publish("", b"5", properties={"topic_alias": 1})
    for level, payload in (("/a", b"1"), ("/a", b"2"), ("/a", b"3"), ("/b", b"4"), ("/b", b"5")):
        got = sub.receive(topic + level, payload)
        assert got.prop("topic_alias") is None


@pytest.mark.normative("MQTT5-3.3.2-12")
def test_every_alias_up_to_the_maximum_is_accepted(client, topic):
    sub, pub = client("sub"), client("pub")
    highest = pub.connack.prop("topic_alias_maximum", 0)
    assert highest > 0, "the broker is expected to accept aliases"
    sub.subscribe(topic + "/+")
    for alias in range(1, highest + 1):
        pub.publish(f"{topic}/{alias}", b"set", properties={"topic_alias": alias})
        sub.receive(f"{topic}/{alias}", b"set")
    for alias in range(highest, 0, -1):
        pub.publish("", b"used", properties={"topic_alias": alias})
        sub.receive(f"{topic}/{alias}", b"used")


@pytest.mark.normative("MQTT5-3.3.2-9", "MQTT5-3.2.2-17")
def test_an_alias_above_the_maximum_is_refused(client, topic):
    pub = client("pub")
    pub.publish(topic, b"x", properties={"topic_alias": pub.connack.prop("topic_alias_maximum", 0) + 1})
    pub.expect_closed(0x94)


def test_what_aliases_stand_for_is_bounded(client, topic):
    """128 KiB of topics for each connection. An alias that moves gives back what it stood for."""
    sub, pub = client("sub"), client("pub")
    sub.subscribe(topic + "/#")
    long = [f"{topic}/{number}/".ljust(65_000, "x") for number in range(3)]
    for name in [*long, long[0]]:
        pub.publish(name, b"moves", properties={"topic_alias": 1})
        sub.receive(name, b"moves")
    pub.publish(long[1], b"two", properties={"topic_alias": 2})
    sub.receive(long[1], b"two")
    pub.publish("", b"used", properties={"topic_alias": 1})
    sub.receive(long[0], b"used")
    pub.publish(long[2], b"three", properties={"topic_alias": 3})
    pub.expect_closed(0x97)


@pytest.mark.normative("MQTT5-3.3.2-8")
def test_alias_0_is_refused(client, topic):
    pub = client("pub")
    pub.publish(topic, b"x", properties={"topic_alias": 0})
    pub.expect_closed(0x94)


def test_an_alias_that_was_not_set_is_refused(client):
    pub = client("pub")
    pub.publish("", b"x", properties={"topic_alias": 3})
    pub.expect_closed(0x82, 0x94)


@pytest.mark.normative("MQTT5-3.3.2-7")
def test_aliases_of_a_client_end_with_the_connection(client, topic):
    pub = client("pub", **KEPT)
    pub.publish(topic, b"x", qos=1, properties={"topic_alias": 1})
    pub.disconnect()
    pub = client("pub", **KEPT)
    assert pub.connack.session_present is True
    pub.publish("", b"x", properties={"topic_alias": 1})
    pub.expect_closed(0x82, 0x94)


@pytest.mark.normative("MQTT5-3.1.2-27", "MQTT5-3.3.2-11")
@pytest.mark.parametrize("properties", [{}, {"topic_alias_maximum": 0}])
def test_no_alias_to_a_client_that_allows_none(client, topic, properties):
    sub, pub = client("sub", properties=properties), client("pub")
    sub.subscribe(topic)
    for _ in range(5):
        pub.publish(topic, b"x")
        assert sub.receive(topic).prop("topic_alias") is None


@pytest.mark.normative("MQTT5-3.1.2-26", "MQTT5-3.3.2-11", "MQTT5-3.3.2-8")
def test_aliases_to_a_client_stay_within_its_maximum(client, topic):
    sub, pub = client("sub", properties={"topic_alias_maximum": 2}), client("pub")
    sub.subscribe(topic + "/+")
    known = {}
    for number in [0, 1, 2, 3, 0, 1, 2, 3, 3, 3, 0]:
        pub.publish(f"{topic}/{number}", b"%d" % number, qos=0)
        got = sub.expect(Publish, payload=b"%d" % number)
        alias = got.prop("topic_alias")
        assert alias is None or 1 <= alias <= 2
        if got.topic:
            if alias:
                known[alias] = got.topic
            assert got.topic == f"{topic}/{number}"
        else:
            assert known[alias] == f"{topic}/{number}"


@pytest.mark.normative("MQTT5-3.3.2-7", "MQTT5-3.3.2-11")
def test_aliases_of_the_server_end_with_the_connection(client, topic):
    pub = client("pub")
    for _ in range(2):
        sub = client("sub", clean_start=False,
                     properties={"session_expiry_interval": 60, "topic_alias_maximum": 10})
        sub.subscribe(topic, qos=1)
        pub.publish(topic, b"first", qos=1)
        assert sub.receive(payload=b"first").topic == topic
        pub.publish(topic, b"second", qos=1)
        sub.receive(payload=b"second")
        sub.drop()


def test_the_server_uses_aliases_where_allowed(client, topic):
    """Not asked for by the specification, but by whoever pays for the bytes."""
    sub, pub = client("sub", properties={"topic_alias_maximum": 10}), client("pub")
    sub.subscribe(topic)
    pub.publish(topic, b"1")
    first = sub.expect(Publish, payload=b"1", topic=topic)
    pub.publish(topic, b"2")
    second = sub.expect(Publish, payload=b"2")
    if first.prop("topic_alias") is not None:
        assert (second.topic, second.prop("topic_alias")) == ("", first.prop("topic_alias"))
    else:
        pub.publish(topic, b"3")
        third = sub.expect(Publish, payload=b"3")
        assert (third.topic, third.prop("topic_alias")) == ("", second.prop("topic_alias"))


# ── subscription identifiers, overlapping subscriptions ──────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.3.4-3", "MQTT5-3.3.4-4")
def test_a_subscription_identifier_comes_with_the_message(client, topic):
    c = client()
    for number, level in ((1, "/a"), (127, "/b"), (128, "/c"), (268_435_455, "/d")):
        c.subscribe(topic + level, properties={"subscription_identifier": number})
        c.publish(topic + level)
        assert c.receive(topic + level).props("subscription_identifier") == [number]
    c.subscribe(topic + "/none")
    c.publish(topic + "/none")
    assert c.receive(topic + "/none").props("subscription_identifier") == []


@pytest.mark.normative("MQTT5-3.3.4-2", "MQTT5-3.3.4-3", "MQTT5-3.3.4-4", "MQTT5-3.3.4-5")
def test_overlapping_subscriptions_bring_one_copy_with_all_identifiers(client, topic):
    """One delivery with every identifier, at the highest QoS granted: what this broker chose of what 3.3.4 allows."""
    c, pub = client(), client("pub")
    c.subscribe(topic + "/#", qos=0, properties={"subscription_identifier": 1})
    c.subscribe(topic + "/+", qos=2, properties={"subscription_identifier": 2})
    c.subscribe(topic + "/a", qos=1, properties={"subscription_identifier": 2})
    c.subscribe(topic + "/+/b", qos=2, properties={"subscription_identifier": 4})
    c.subscribe(topic + "/a/#", qos=1)
    pub.publish(topic + "/a", b"x", qos=2)
    got = c.receive(topic + "/a", b"x", qos=2)
    assert sorted(got.props("subscription_identifier")) in ([1, 2, 2], [1, 2])
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.3.4-2")
@pytest.mark.parametrize("granted", [(0, 1), (1, 0), (0, 2), (2, 1), (1, 2), (0, 0)])
def test_overlapping_subscriptions_deliver_at_the_highest_qos(client, topic, granted):
    c, pub = client(), client("pub")
    c.subscribe((topic + "/#", granted[0]), (topic + "/a", granted[1]))
    pub.publish(topic + "/a", b"x", qos=2)
    c.receive(topic + "/a", b"x", qos=max(granted))
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.3.4-3")
def test_a_subscription_again_without_identifier_loses_it(client, topic):
    c = client()
    c.subscribe(topic, properties={"subscription_identifier": 7})
    c.subscribe(topic)
    c.publish(topic)
    assert c.receive(topic).props("subscription_identifier") == []
    c.subscribe(topic, properties={"subscription_identifier": 8})
    c.publish(topic)
    assert c.receive(topic).props("subscription_identifier") == [8]


@pytest.mark.normative("MQTT5-3.3.4-3", "MQTT5-3.3.4-4")
def test_subscription_identifiers_survive_the_offline_queue(client, topic):
    c = client("c", **KEPT)
    c.subscribe(topic + "/#", qos=1, properties={"subscription_identifier": 3})
    c.subscribe(topic + "/a", qos=1, properties={"subscription_identifier": 5})
    c.disconnect()
    client("pub").publish(topic + "/a", qos=1)
    got = client("c", **KEPT).receive(topic + "/a")
    assert sorted(got.props("subscription_identifier")) == [3, 5]


@pytest.mark.normative("MQTT5-3.3.4-6")
def test_a_client_may_not_publish_with_a_subscription_identifier(client, topic):
    c = client()
    c.send(Publish(topic=topic, properties={"subscription_identifier": 1}))
    c.expect_closed(0x82, 0x81)


def test_subscription_identifier_0_is_a_protocol_error(client, topic):
    c = client()
    c.send(Subscribe(packet_id=1, filters=[(topic, 0)], properties={"subscription_identifier": 0}))
    c.expect_closed(0x82)


@pytest.mark.normative("MQTT5-3.3.4-2", "MQTT5-3.3.1-13")
def test_overlap_of_different_options(client, topic):
    """No Local on one of two matching subscriptions does not silence the other."""
    c = client()
    c.subscribe((topic + "/#", options(1, no_local=True)), (topic + "/a", options(0)))
    c.publish(topic + "/a", b"own")
    c.receive(topic + "/a", b"own", qos=0)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.3.4-1", "MQTT5-2.2.1-5", "MQTT5-3.4.2-1", "MQTT5-3.5.2-1")
def test_the_answer_follows_the_qos(client, topic):
    c = client()
    c.send(Publish(topic=topic, qos=0), Publish(topic=topic, qos=1, packet_id=0xFFFF),
           Publish(topic=topic, qos=2, packet_id=1), Publish(topic=topic, qos=1, packet_id=0x100))
    answers = [c.expect(Puback, packet_id=0xFFFF), c.expect(Pubrec, packet_id=1), c.expect(Puback, packet_id=0x100)]
    assert all(a.reason in (0x00, 0x10) for a in answers)


@pytest.mark.normative("MQTT5-3.4.2-1", "MQTT5-3.5.2-1")
@pytest.mark.parametrize(("qos", "kind"), [(1, Puback), (2, Pubrec)])
def test_no_matching_subscribers_is_said(client, topic, qos, kind):
    c = client()
    c.publish(topic, b"nobody", qos=qos, expect=0x10)
    c.subscribe(topic)
    c.send(Publish(topic=topic, qos=qos, packet_id=77))
    c.answer(kind, packet_id=77, reason=0x00)


def test_every_property_that_publish_may_not_have_is_refused(open_client, name, topic):
    allowed = {n for n, (_, _, packets) in PROPERTIES.items() if 3 in packets}
    values = {"byte": 1, "u16": 1, "u32": 1, "varint": 1, "text": "x", "binary": b"x", "pair": ("k", "v")}
    for prop, (_, kind, _) in PROPERTIES.items():
        if prop not in allowed:
            c = open_client()
            c.send(Connect(client_id=name(prop)), Publish(topic=topic, properties={prop: values[kind]}))
            c.expect(Connack)
            c.expect_closed(0x81, 0x82)


def test_a_subscription_made_while_messages_flow_sees_whole_messages(client, open_client, name, topic):
    c = open_client()
    c.send(Connect(client_id=name("c")), Publish(topic=topic, payload=b"before"),
           Subscribe(packet_id=1, filters=[(topic, 0)]), Publish(topic=topic, payload=b"after"))
    c.expect(Connack)
    c.expect(Suback)
    c.expect(Publish, payload=b"after")
