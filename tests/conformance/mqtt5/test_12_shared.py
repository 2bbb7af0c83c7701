"""MQTT 5.0 section 4.8: shared subscriptions."""
import time

import pytest
from kit.client import KEPT
from oracle.mqtt import Pingreq, Pingresp, Puback, Publish, Pubrec, Pubrel, Subscribe, options


def share(topic, group="group"):
    return f"$share/{group}/{topic}"


def all_that_came(member):
    """What was sent to it before a PINGREQ is answered."""
    member.send(Pingreq())
    got = []
    while not isinstance(packet := member.recv(), Pingresp):
        assert isinstance(packet, Publish)
        got.append(packet)
    return got


def drain(*members):
    """What each member has got, acknowledged; until nothing comes."""
    got = []
    for member in members:
        mine = []
        while packets := all_that_came(member):
            for packet in packets:
                if packet.qos == 1:
                    member.send(Puback(packet_id=packet.packet_id))
                elif packet.qos == 2:
                    member.send(Pubrec(packet_id=packet.packet_id))
                    member.answer(Pubrel, packet_id=packet.packet_id)
                    member.send(b"\x70\x02" + packet.packet_id.to_bytes(2, "big"))
            mine += [packet.payload for packet in packets]
        got.append(mine)
    return got


@pytest.mark.normative("MQTT5-4.8.2-1")
def test_each_message_goes_to_one_member_and_fairly(client, topic):
    members = [client(f"m{i}") for i in range(3)]
    for member in members:
        member.subscribe(share(topic), qos=1)
    pub = client("pub")
    for i in range(60):
        pub.publish(topic, b"%d" % i, qos=1)
    got = drain(*members)
    assert sorted(int(p) for mine in got for p in mine) == list(range(60))
    assert all(len(mine) >= 10 for mine in got), [len(mine) for mine in got]


@pytest.mark.normative("MQTT5-4.8.2-1", "MQTT5-4.8.2-2")
def test_groups_are_independent_of_each_other_and_of_ordinary_subscriptions(client, topic):
    a, b, plain, pub = client("a"), client("b"), client("plain"), client("pub")
    a.subscribe(share(topic, "one"), qos=1)
    b.subscribe(share(topic, "two"), qos=1)
    plain.subscribe(topic, qos=1)
    for i in range(10):
        pub.publish(topic, b"%d" % i, qos=1)
    assert [len(mine) for mine in drain(a, b, plain)] == [10, 10, 10]


@pytest.mark.normative("MQTT5-4.8.2-2")
def test_the_same_group_name_with_another_filter_is_another_subscription(client, topic):
    a, b, pub = client("a"), client("b"), client("pub")
    a.subscribe(share(topic + "/+"), qos=1)
    b.subscribe(share(topic + "/#"), qos=1)
    for i in range(10):
        pub.publish(topic + "/x", b"%d" % i, qos=1)
    assert [len(mine) for mine in drain(a, b)] == [10, 10]


def test_a_member_with_an_ordinary_subscription_too(client, topic):
    """Both subscriptions match: the member gets its own copy, and its share of the group's."""
    a, b, pub = client("a"), client("b"), client("pub")
    a.subscribe(share(topic), qos=1)
    b.subscribe(share(topic), qos=1)
    b.subscribe(topic, qos=1)
    for i in range(10):
        pub.publish(topic, b"%d" % i, qos=1)
    mine, both = drain(a, b)
    assert set(both) == {b"%d" % i for i in range(10)}
    assert len(mine) >= 1
    assert len(mine) + len(both) in range(10, 21)


@pytest.mark.normative("MQTT5-4.8.2-1", "MQTT5-4.8.2-2")
@pytest.mark.parametrize("wrong", ["$share/", "$share//a", "$share/group", "$share/group/", "$share/gr+oup/a",
                                   "$share/gr#oup/a", "$share/+/a", "$share/#"])
def test_a_shared_filter_that_is_none_closes(client, wrong):
    c = client()
    c.send(Subscribe(packet_id=1, filters=[(wrong, 0)]))
    c.expect_closed(0x82)


@pytest.mark.normative("MQTT5-4.8.2-2", "MQTT5-4.8.2-1")
@pytest.mark.parametrize("group", ["g", "a b", "$", "é", "share", "1"])
def test_share_names(client, topic, group):
    c = client()
    c.subscribe(share(topic, group))
    c.publish(topic, b"x")
    c.receive(topic, b"x")
    c.unsubscribe(share(topic, group))
    c.publish(topic, b"x")
    c.expect_quiet()


@pytest.mark.normative("MQTT5-4.8.2-2")
@pytest.mark.parametrize("pattern", ["{}/#", "{}/+/x", "{}/a/x"])
def test_wildcards_in_shared_filters(client, topic, pattern):
    a, b = client("a"), client("b")
    for member in (a, b):
        member.subscribe(share(pattern.format(topic)), qos=1)
    for i in range(10):
        client("pub").publish(f"{topic}/a/x", b"%d" % i, qos=1)
    assert sorted(p for mine in drain(a, b) for p in mine) == [b"%d" % i for i in range(10)]


@pytest.mark.normative("MQTT5-4.8.2-1", "MQTT5-4.8.2-2", "MQTT5-4.7.3-4")
def test_a_shared_filter_for_a_topic_that_begins_with_a_slash(client, topic):
    c = client()
    c.subscribe(share("/" + topic))
    c.publish(topic, b"no")
    c.publish("/" + topic, b"yes")
    c.receive("/" + topic, b"yes")


@pytest.mark.normative("MQTT5-4.8.2-3", "MQTT5-3.8.4-8")
def test_each_member_has_its_own_qos(client, topic):
    members = [client(f"m{qos}") for qos in range(3)]
    for qos, member in enumerate(members):
        member.subscribe(share(topic), qos=qos)
    pub = client("pub")
    for i in range(30):
        pub.publish(topic, b"%d" % i, qos=2)
    for qos, member in enumerate(members):
        got = all_that_came(member)
        assert got and {packet.qos for packet in got} == {qos}


def test_identifiers_and_options_of_the_member_that_got_it(client, topic):
    a, b, pub = client("a"), client("b"), client("pub")
    a.subscribe((share(topic), options(0, retain_as_published=True)), properties={"subscription_identifier": 1})
    b.subscribe(share(topic), properties={"subscription_identifier": 2})
    for _ in range(10):
        pub.publish(topic, b"x", qos=1, retain=True)
    counts = []
    for member, number, retain in ((a, 1, True), (b, 2, False)):
        got = all_that_came(member)
        for packet in got:
            assert packet.props("subscription_identifier") == [number]
            assert packet.retain is retain
        counts.append(len(got))
    assert sum(counts) == 10
    assert all(counts)


def test_no_retained_messages_for_a_shared_subscription(client, topic):
    client("pub").publish(topic, b"kept", qos=1, retain=True)
    c = client()
    c.subscribe(share(topic))
    c.expect_quiet()
    c.expect_nothing()


# ── members come and go ──────────────────────────────────────────────────────────────────────────────────

def test_connected_members_first(client, topic):
    away, here = client("away", **KEPT), client("here")
    away.subscribe(share(topic), qos=1)
    here.subscribe(share(topic), qos=1)
    away.disconnect()
    pub = client("pub")
    for i in range(10):
        pub.publish(topic, b"%d" % i, qos=1)
    assert drain(here) == [[b"%d" % i for i in range(10)]]
    client("away", **KEPT).expect_nothing()


def test_with_nobody_connected_an_offline_member_keeps_it(client, topic):
    members = ["a", "b"]
    for role in members:
        c = client(role, **KEPT)
        c.subscribe(share(topic), qos=1)
        c.disconnect()
    pub = client("pub")
    for i in range(10):
        pub.publish(topic, b"%d" % i, qos=1)
    got = drain(*(client(role, **KEPT) for role in members))
    assert sorted(p for mine in got for p in mine) == [b"%d" % i for i in range(10)]


def test_a_member_that_left_gets_nothing(client, topic):
    a, b, pub = client("a"), client("b"), client("pub")
    for member in (a, b):
        member.subscribe(share(topic), qos=1)
    a.unsubscribe(share(topic))
    for i in range(10):
        pub.publish(topic, b"%d" % i, qos=1)
    assert [len(mine) for mine in drain(a, b)] == [0, 10]


def test_the_last_member_of_a_group_leaves(client, topic):
    a = client("a")
    a.subscribe(share(topic), qos=1)
    a.unsubscribe(share(topic))
    client("pub").publish(topic, b"x", qos=1, expect=0x10)
    a.subscribe(share(topic), qos=1)
    client("pub").publish(topic, b"y", qos=1, expect=0)
    a.receive(topic, b"y")


@pytest.mark.normative("MQTT5-4.8.2-4")
def test_a_qos2_delivery_that_broke_off_is_completed_to_the_same_member(client, topic):
    a, pub = client("a", **KEPT), client("pub")
    a.subscribe(share(topic), qos=2)
    pub.publish(topic, b"x", qos=2)
    packet_id = a.expect(Publish, qos=2).packet_id
    b = client("b")
    b.subscribe(share(topic), qos=2)
    a.drop()
    b.expect_nothing()
    a = client("a", **KEPT)
    a.expect(Publish, payload=b"x", dup=True, packet_id=packet_id)
    a.send(Pubrec(packet_id=packet_id))
    a.expect(Pubrel, packet_id=packet_id)
    a.drop()
    client("a", **KEPT).expect(Pubrel, packet_id=packet_id)
    b.expect_quiet()


@pytest.mark.normative("MQTT5-4.8.2-5")
def test_a_qos2_delivery_ends_with_the_session_of_its_member(client, topic):
    a = client("a", clean_start=False, properties={"session_expiry_interval": 1})
    a.subscribe(share(topic), qos=2)
    client("pub").publish(topic, b"x", qos=2)
    a.expect(Publish, qos=2)
    b = client("b")
    b.subscribe(share(topic), qos=2)
    a.drop()
    time.sleep(2.2)                                 # the session ends
    b.expect_nothing()
    assert client("a", clean_start=False).connack.session_present is False
    b.expect_quiet()


@pytest.mark.normative("MQTT5-4.8.2-6")
@pytest.mark.parametrize(("qos", "kind"), [(1, Puback), (2, Pubrec)])
def test_a_message_that_a_member_refuses_is_gone(client, topic, qos, kind):
    a, pub = client("a"), client("pub")
    a.subscribe(share(topic), qos=qos)
    pub.publish(topic, b"x", qos=qos)
    got = a.expect(Publish, qos=qos)
    b = client("b")
    b.subscribe(share(topic), qos=qos)
    a.send(kind(packet_id=got.packet_id, reason=0x97))
    a.expect_quiet()
    b.expect_quiet()
    b.expect_nothing()


@pytest.mark.normative("MQTT5-3.8.3-4")
def test_no_local_on_a_shared_subscription(client, topic):
    c = client()
    c.send(Subscribe(packet_id=1, filters=[(share(topic), options(1, no_local=True))]))
    c.expect_closed(0x82)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_shared_subscriptions_are_restored_after_a_restart(client, start_broker, topic, how):
    broker = start_broker()
    for role in ("a", "b"):
        c = client(role, where=broker, **KEPT)
        c.subscribe(share(topic), qos=1)
        c.disconnect()
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    pub = client("pub", where=broker)
    for i in range(4):
        pub.publish(topic, b"offline %d" % i, qos=1)
    a, b = (client(role, where=broker, **KEPT) for role in ("a", "b"))
    assert a.connack.session_present is True
    got = drain(a, b)
    assert sorted(p for mine in got for p in mine) == [b"offline %d" % i for i in range(4)]
    for i in range(20):
        pub.publish(topic, b"%d" % i, qos=1)
    got = drain(a, b)
    assert sum(len(mine) for mine in got) == 20
    assert all(got)


def test_publishing_to_a_share_topic_is_no_delivery_to_the_group(client, topic):
    c = client()
    c.subscribe(share(topic))
    c.send(Publish(topic=share(topic), payload=b"x"))
    c.publish(topic, b"end")
    c.receive(topic, b"end")
