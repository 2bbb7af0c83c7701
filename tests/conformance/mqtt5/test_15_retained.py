"""MQTT 5.0 section 3.3.1.3: retained messages, and Retain Handling."""
import time

import pytest
from kit.client import KEPT
from oracle.mqtt import Publish, Suback, Subscribe, options


def retained(client, role, pattern, bits=2, where=None):
    """A fresh client's retained messages for a filter, as topic → packet."""
    c = client(role, where=where)
    c.subscribe((pattern, bits))
    found = {}
    c.send(b"\xc0\x00")
    while isinstance(packet := c.recv(), Publish):
        assert packet.topic not in found
        found[packet.topic] = packet
    return found


@pytest.mark.normative("MQTT5-3.3.1-5", "MQTT5-3.3.1-9", "MQTT5-3.3.1-12")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_is_kept_and_replaced(client, topic, qos):
    pub = client("pub")
    for payload in (b"old", b"new"):
        pub.publish(topic, payload, qos=qos, retain=True)
        pub.expect_quiet()
        late = client("late")
        late.subscribe(topic, qos=2)
        late.receive(topic, payload, qos=qos, retain=True, dup=False)
        late.expect_quiet()


@pytest.mark.normative("MQTT5-3.3.1-6", "MQTT5-3.3.1-7")
def test_an_empty_payload_removes(client, topic):
    pub, sub = client("pub"), client("sub")
    pub.publish(topic, b"kept", qos=1, retain=True)
    sub.subscribe((topic, options(0, retain_as_published=True)))
    sub.receive(topic, b"kept", retain=True)
    pub.publish(topic, b"", qos=1, retain=True)
    sub.receive(topic, b"", retain=True)            # delivered as any message is
    assert retained(client, "late", topic) == {}
    pub.publish(topic, b"", qos=1, retain=True)     # removing what is not there
    assert retained(client, "later", topic) == {}


@pytest.mark.normative("MQTT5-3.3.1-8")
def test_without_the_flag_nothing_is_stored_removed_or_replaced(client, topic):
    pub = client("pub")
    pub.publish(topic, b"not kept", qos=1)
    assert retained(client, "one", topic) == {}
    pub.publish(topic, b"kept", qos=1, retain=True)
    pub.publish(topic, b"not kept", qos=1)
    pub.publish(topic, b"", qos=1)
    assert [p.payload for p in retained(client, "two", topic).values()] == [b"kept"]


@pytest.mark.normative("MQTT5-3.3.1-9", "MQTT5-4.7.1-1", "MQTT5-4.7.1-2")
def test_wildcards_find_retained_messages(client, topic):
    pub = client("pub")
    names = ["a", "a/b", "a/b/c", "a/x/c", "b", "a//c", "a/$s", ""]
    for name in names:
        pub.publish(f"{topic}/{name}", name.encode() or b"-", qos=1, retain=True)
    for number, (pattern, wanted) in enumerate([
        ("#", set(names)), ("+", {"a", "b", ""}), ("a/#", {"a", "a/b", "a/b/c", "a/x/c", "a//c", "a/$s"}),
        ("a/+/c", {"a/b/c", "a/x/c", "a//c"}), ("a/+", {"a/b", "a/$s"}), ("+/+/c", {"a/b/c", "a/x/c", "a//c"}),
        ("x/#", set()), ("a", {"a"}), ("a/b/c/#", {"a/b/c"}),
    ]):
        found = retained(client, f"late{number}", f"{topic}/{pattern}")
        assert {t.removeprefix(topic + "/") for t in found} == wanted, pattern
        assert all(p.retain for p in found.values())


@pytest.mark.normative("MQTT5-3.8.4-8")
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_retained_messages_have_the_lower_qos(client, topic, granted):
    pub = client("pub")
    for qos in range(3):
        pub.publish(f"{topic}/{qos}", b"x", qos=qos, retain=True)
    found = retained(client, "late", topic + "/+", granted)
    assert {p.topic[-1]: p.qos for p in found.values()} == {str(qos): min(qos, granted) for qos in range(3)}


@pytest.mark.normative("MQTT5-3.3.2-4", "MQTT5-3.3.2-15", "MQTT5-3.3.2-16", "MQTT5-3.3.2-17", "MQTT5-3.3.2-18",
                       "MQTT5-3.3.2-20")
def test_retained_messages_keep_their_properties(client, topic):
    users = [("b", "1"), ("a", "2"), ("b", "1")]
    client("pub").publish(topic, b"x", qos=1, retain=True, properties={
        "payload_format_indicator": 1, "content_type": "t", "response_topic": "r", "correlation_data": b"\x00",
        "user_property": users})
    late = client("late")
    late.subscribe((topic, 1), properties={"subscription_identifier": 12})
    got = late.receive(topic, b"x", retain=True, payload_format_indicator=1, content_type="t", response_topic="r",
                       correlation_data=b"\x00", subscription_identifier=12)
    assert got.props("user_property") == users


@pytest.mark.normative("MQTT5-3.3.2-5", "MQTT5-3.3.2-6")
def test_retained_messages_expire(client, topic):
    pub = client("pub")
    pub.publish(topic + "/long", b"x", qos=1, retain=True, properties={"message_expiry_interval": 100})
    pub.publish(topic + "/ever", b"x", qos=1, retain=True)
    pub.publish(topic + "/short", b"x", qos=1, retain=True, properties={"message_expiry_interval": 2})
    found = retained(client, "now", topic + "/+")
    assert len(found) == 3
    assert found[topic + "/long"].prop("message_expiry_interval") in range(80, 101)
    time.sleep(3.1)                                 # the expiry is what is tested
    found = retained(client, "late", topic + "/+")
    assert set(found) == {topic + "/long", topic + "/ever"}
    assert found[topic + "/long"].prop("message_expiry_interval") in range(80, 99)


# ── Retain Handling ──────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.3.1-9", "MQTT5-3.8.4-4", "MQTT5-3.8.4-3")
def test_retain_handling_0_sends_at_every_subscribe(client, topic):
    client("pub").publish(topic, b"x", qos=1, retain=True)
    c = client()
    for _ in range(3):
        c.subscribe((topic, options(1, retain_handling=0)))
        c.receive(topic, b"x", retain=True)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.3.1-10")
def test_retain_handling_1_sends_for_a_new_subscription_only(client, topic):
    client("pub").publish(topic, b"x", qos=1, retain=True)
    c = client("c", **KEPT)
    c.subscribe((topic, options(1, retain_handling=1)))
    c.receive(topic, b"x", retain=True)
    for bits in (options(1, retain_handling=1), options(2, retain_handling=1), options(0, retain_handling=1)):
        c.subscribe((topic, bits))
        c.expect_quiet()
    c.disconnect()
    c = client("c", **KEPT)
    c.subscribe((topic, options(1, retain_handling=1)))      # it exists in the session
    c.expect_quiet()
    c.unsubscribe(topic)
    c.subscribe((topic, options(1, retain_handling=1)))
    c.receive(topic, b"x", retain=True)


@pytest.mark.normative("MQTT5-3.3.1-11")
def test_retain_handling_2_sends_nothing(client, topic):
    pub = client("pub")
    pub.publish(topic, b"x", qos=1, retain=True)
    c = client()
    for _ in range(2):
        c.subscribe((topic, options(1, retain_handling=2)))
        c.expect_quiet()
    pub.publish(topic, b"live", qos=1, retain=True)
    c.receive(topic, b"live", retain=False)


@pytest.mark.normative("MQTT5-3.3.1-9", "MQTT5-3.3.1-10", "MQTT5-3.3.1-11", "MQTT5-3.8.4-5")
def test_each_filter_of_a_subscribe_has_its_own_handling(client, topic):
    pub = client("pub")
    for level in "012":
        pub.publish(f"{topic}/{level}", level.encode(), qos=1, retain=True)
    c = client()
    c.send(Subscribe(packet_id=1, filters=[(f"{topic}/{i}", options(0, retain_handling=i)) for i in range(3)]))
    packets = [c.recv() for _ in range(3)]
    assert [p.reasons for p in packets if isinstance(p, Suback)] == [[0, 0, 0]]
    assert sorted(p.payload for p in packets if isinstance(p, Publish)) == [b"0", b"1"]
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.3.1-12", "MQTT5-3.3.1-13")
@pytest.mark.parametrize("keep", [False, True])
def test_a_retained_message_is_marked_whatever_retain_as_published_says(client, topic, keep):
    """3.3.1.3: what is sent because of a new subscription has RETAIN 1; the option is about forwarding."""
    client("pub").publish(topic, b"x", qos=1, retain=True)
    c = client()
    c.subscribe((topic, options(1, retain_as_published=keep)))
    c.receive(topic, b"x", retain=True)


@pytest.mark.normative("MQTT5-3.3.1-9")
def test_overlapping_subscriptions_each_bring_retained_messages(client, topic):
    client("pub").publish(topic + "/a", b"x", qos=1, retain=True)
    c = client()
    for pattern in (topic + "/a", topic + "/+", topic + "/#"):
        c.subscribe(pattern)
        c.receive(topic + "/a", b"x", retain=True)
    c.expect_quiet()


def test_no_local_and_retained_messages_of_ones_own(client, topic):
    """No Local keeps one's own messages from coming back; whether it holds for retained ones is left open in 3.8.3.1:
    the broker must only not send them with a wrong flag or twice."""
    c = client()
    c.publish(topic, b"own", qos=1, retain=True)
    c.subscribe((topic, options(0, no_local=True)))
    c.send(b"\xc0\x00")
    packets = []
    while isinstance(packet := c.recv(), Publish):
        packets.append(packet)
    assert len(packets) <= 1
    assert all(p.retain for p in packets)


# ── bounds and restarts ──────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("how", ["restart", "kill"])
def test_retained_messages_survive_the_broker(client, start_broker, topic, how):
    broker = start_broker()
    pub = client("pub", where=broker)
    pub.publish(topic + "/a", b"old", qos=1, retain=True)
    pub.publish(topic + "/a", b"new", qos=2, retain=True, properties=[
        ("content_type", "t"), ("message_expiry_interval", 1000), ("user_property", ("k", "1")),
        ("user_property", ("k", "0"))])
    pub.publish(topic + "/b", b"removed", qos=1, retain=True)
    pub.publish(topic + "/b", b"", qos=1, retain=True)
    pub.publish(topic + "/c", b"x" * 100_000, qos=1, retain=True)
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    found = retained(client, "late", topic + "/+", where=broker)
    assert set(found) == {topic + "/a", topic + "/c"}
    kept = found[topic + "/a"]
    assert (kept.payload, kept.qos, kept.prop("content_type")) == (b"new", 2, "t")
    assert kept.props("user_property") == [("k", "1"), ("k", "0")]
    assert kept.prop("message_expiry_interval") in range(900, 1001)
    assert found[topic + "/c"].payload == b"x" * 100_000


def test_the_number_of_retained_messages_is_bounded(client, start_broker, topic):
    broker = start_broker({"broker.max_retained_messages": 3, "broker.sys_interval": "0s"})
    pub, sub = client("pub", where=broker), client("sub", where=broker)
    sub.subscribe(topic + "/+")
    for i in range(5):
        pub.publish(f"{topic}/{i}", b"x", qos=0, retain=True)
        sub.receive(f"{topic}/{i}", b"x")           # delivered although not kept
    pub.publish(f"{topic}/0", b"", qos=0, retain=True)
    sub.receive(f"{topic}/0", b"")
    pub.publish(f"{topic}/1", b"replaced", qos=0, retain=True)
    sub.receive(f"{topic}/1", b"replaced")
    pub.publish(f"{topic}/4", b"room again", qos=0, retain=True)
    sub.receive(f"{topic}/4")
    found = retained(client, "late", topic + "/+", where=broker)
    assert {t[-1]: p.payload for t, p in found.items()} == {"1": b"replaced", "2": b"x", "4": b"room again"}


def test_the_brokers_own_values_do_not_use_up_the_bound(client, start_broker, topic):
    broker = start_broker({"broker.max_retained_messages": 1})
    pub = client("pub", where=broker)
    pub.publish(topic, b"kept", qos=1, retain=True)
    assert set(retained(client, "late", topic, where=broker)) == {topic}
    assert retained(client, "sys", "$SYS/#", where=broker)


@pytest.mark.normative("MQTT5-3.3.2-5", "MQTT5-3.3.2-6")
def test_retained_messages_expire_while_the_broker_is_down(client, start_broker, topic):
    broker = start_broker()
    pub = client("pub", where=broker)
    pub.publish(topic + "/short", b"x", qos=1, retain=True, properties={"message_expiry_interval": 1})
    pub.publish(topic + "/long", b"x", qos=1, retain=True, properties={"message_expiry_interval": 100})
    broker.kill()
    time.sleep(2.1)
    broker.start()
    found = retained(client, "late", topic + "/+", where=broker)
    assert set(found) == {topic + "/long"}
    assert found[topic + "/long"].prop("message_expiry_interval") in range(80, 99)


def test_many_retained_messages_in_one_subscribe(client, topic):
    pub = client("pub")
    for i in range(500):
        pub.publish(f"{topic}/{i}", b"%d" % i, retain=True)
    pub.expect_quiet()
    assert len(retained(client, "late", topic + "/#")) == 500


def test_more_retained_qos1_messages_than_the_window(client, topic):
    pub = client("pub")
    for i in range(20):
        pub.publish(f"{topic}/{i}", b"%d" % i, qos=1, retain=True)
    c = client("c", properties={"receive_maximum": 3})
    c.subscribe(topic + "/#", qos=1)
    topics = {c.receive().topic for _ in range(20)}
    assert len(topics) == 20
    c.expect_quiet()
