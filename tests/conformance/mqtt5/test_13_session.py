"""MQTT 5.0 sections 3.1.2.11.2 and 4.1: session state, its expiry, and what survives the broker."""
import contextlib
import time

import pytest
from kit.client import KEPT, Nothing
from oracle.mqtt import NEVER, Publish, Pubrec, Pubrel, Suback, Subscribe, options


def expiring(seconds):
    return {"clean_start": False, "properties": {"session_expiry_interval": seconds}}


@pytest.mark.normative("MQTT5-4.1.0-2")
@pytest.mark.parametrize("how", ["disconnect", "drop"])
def test_without_an_expiry_interval_the_session_ends_with_the_connection(client, topic, how):
    for properties in ({}, {"session_expiry_interval": 0}):
        c = client("c", clean_start=False, properties=properties)
        assert c.connack.session_present is False
        c.subscribe(topic, qos=1)
        getattr(c, how)()
    client("pub").publish(topic, b"x", qos=1, expect=0x10)


@pytest.mark.normative("MQTT5-3.1.2-23", "MQTT5-4.5.0-1")
@pytest.mark.parametrize("how", ["disconnect", "drop"])
def test_with_an_expiry_interval_the_session_is_kept(client, topic, how):
    c = client("c", **KEPT)
    c.subscribe((topic, options(1, retain_as_published=True)), properties={"subscription_identifier": 9})
    getattr(c, how)()
    pub = client("pub")
    pub.publish(topic, b"0", qos=0)                 # QoS 0 need not be kept
    pub.publish(topic, b"1", qos=1)
    pub.publish(topic, b"2", qos=2, retain=True)
    c = client("c", **KEPT)
    got = c.receive(topic)
    if got.payload == b"0":
        got = c.receive(topic)
    assert (got.payload, got.qos, got.retain, got.prop("subscription_identifier")) == (b"1", 1, False, 9)
    c.receive(topic, b"2", qos=1, retain=True, subscription_identifier=9)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-4.1.0-2", "MQTT5-3.1.2-23")
def test_a_session_expires(client, topic):
    short, long = client("short", **expiring(1)), client("long", **expiring(60))
    short.subscribe(topic + "/short", qos=1)
    long.subscribe(topic + "/long", qos=1)
    short.drop()
    long.drop()
    time.sleep(2.2)                                 # the expiry is what is tested
    pub = client("pub")
    pub.publish(topic + "/short", b"x", qos=1, expect=0x10)
    pub.publish(topic + "/long", b"x", qos=1)
    assert client("short", **expiring(1)).connack.session_present is False
    assert client("long", **expiring(60)).connack.session_present is True


@pytest.mark.normative("MQTT5-4.1.0-1")
def test_a_session_does_not_expire_while_connected(client, topic):
    c = client("c", **expiring(2))
    c.subscribe(topic, qos=1)
    c.disconnect()
    c = client("c", **expiring(2))                  # returned in time: the clock stops
    assert c.connack.session_present is True
    time.sleep(3.2)
    c.publish(topic, b"x", qos=1)
    c.receive(topic, b"x")


@pytest.mark.normative("MQTT5-3.1.2-23")
def test_the_expiry_interval_of_the_last_connect_holds(client, topic):
    client("c", **expiring(60)).disconnect()
    c = client("c", clean_start=False)              # no interval: 0
    assert c.connack.session_present is True
    c.disconnect()
    assert client("c", clean_start=False).connack.session_present is False


def test_an_infinite_session(client):
    client("c", **expiring(NEVER)).disconnect()
    c = client("c", clean_start=True)
    assert c.connack.session_present is False


@pytest.mark.normative("MQTT5-4.1.0-1", "MQTT5-4.1.0-2", "MQTT5-3.1.4-3")
def test_a_takeover_keeps_the_state_and_the_new_interval(client, topic):
    first = client("c", **expiring(60))
    first.subscribe(topic, qos=1)
    second = client("c", clean_start=False)
    assert second.connack.session_present is True
    first.expect_closed(0x8E)
    second.disconnect()
    assert client("c", **KEPT).connack.session_present is False


@pytest.mark.normative("MQTT5-4.4.0-1", "MQTT5-3.1.4-3", "MQTT5-4.1.0-1")
def test_a_takeover_with_messages_in_flight(client, topic):
    first, pub = client("c", **KEPT), client("pub")
    first.subscribe(topic, qos=2)
    for qos in (1, 2, 2):
        pub.publish(topic, b"x", qos=qos)
    one, two, three = (first.expect(Publish) for _ in range(3))
    first.send(Pubrec(packet_id=two.packet_id))
    first.expect(Pubrel, packet_id=two.packet_id)
    second = client("c", **KEPT)
    first.expect_closed(0x8E)
    packets = {(type(p), p.packet_id) for p in (second.recv() for _ in range(3))}
    assert packets == {(Publish, one.packet_id), (Pubrel, two.packet_id), (Publish, three.packet_id)}
    second.expect_quiet()


@pytest.mark.normative("MQTT5-4.1.0-1")
def test_a_takeover_without_a_kept_session_is_a_new_one_or_resumed(client, topic):
    """While it is open the session is there to be resumed, even with interval 0."""
    first = client("c")
    first.subscribe(topic, qos=1)
    second = client("c", clean_start=False)
    first.expect_closed(0x8E)
    second.publish(topic, b"x", qos=1, expect=0 if second.connack.session_present else 0x10)
    if second.connack.session_present:
        second.receive(topic, b"x")


@pytest.mark.normative("MQTT5-4.1.0-1", "MQTT5-4.5.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_queued_while_away_come_in_order_and_once(client, topic, qos):
    sub, pub = client("sub", **KEPT), client("pub")
    sub.subscribe(topic, qos=2)
    sub.disconnect()
    for i in range(120):                            # more than ten and more than a hundred: order is by number
        pub.publish(topic, b"%d" % i, qos=qos)
    sub = client("sub", **KEPT)
    for i in range(120):
        sub.receive(topic, b"%d" % i, qos=qos, dup=False)
    sub.disconnect()
    client("sub", **KEPT).expect_nothing()


@pytest.mark.normative("MQTT5-4.6.0-5", "MQTT5-4.5.0-1")
def test_messages_queued_at_both_qos_keep_the_order_of_each(client, topic):
    sub, pub = client("sub", **KEPT), client("pub")
    sub.subscribe(topic, qos=2)
    sub.disconnect()
    for i in range(40):
        pub.publish(topic, b"%d" % i, qos=1 + i % 2)
    sub = client("sub", **KEPT)
    got = [sub.receive(topic, dup=False) for _ in range(40)]
    for qos in (1, 2):
        assert [int(p.payload) for p in got if p.qos == qos] == list(range(qos - 1, 40, 2))
    sub.expect_quiet()


def test_the_offline_queue_is_bounded(client, start_broker, topic):
    for policy, kept in (("evict", range(5, 15)), ("reject", range(10))):
        broker = start_broker({"session.max_offline_queue_size": 10, "session.offline_queue_policy": policy})
        sub, pub = client("sub", where=broker, **KEPT), client("pub", where=broker)
        sub.subscribe(topic, qos=1)
        sub.disconnect()
        for i in range(15):
            pub.publish(topic, b"%d" % i, qos=1)
        sub = client("sub", where=broker, **KEPT)
        for i in kept:
            sub.receive(topic, b"%d" % i)
        sub.expect_quiet()


def test_the_number_of_sessions_is_bounded(client, open_client, start_broker, name):
    broker = start_broker({"session.max_sessions": 2})
    first = client("0", where=broker, **KEPT)
    second = client("1", where=broker, **KEPT)
    refused = open_client(broker)
    refused.connect(name("2"), expect=0x97)
    refused.expect_closed()
    client("0", where=broker, **KEPT)               # a known one is no further one
    first.expect_closed(0x8E)
    second.disconnect(properties={"session_expiry_interval": 0})
    client("2", where=broker)


# ── the broker restarts ──────────────────────────────────────────────────────────────────────────────────

def again(broker, how):
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()


@pytest.mark.normative("MQTT5-3.1.2-23", "MQTT5-4.1.0-1", "MQTT5-4.5.0-1")
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_sessions_survive_the_broker(client, start_broker, topic, how):
    broker = start_broker()
    sub, pub = client("sub", where=broker, **KEPT), client("pub", where=broker)
    sub.subscribe((topic + "/+", options(2, retain_as_published=True)), properties={"subscription_identifier": 5})
    sub.subscribe((topic + "/gone", 1))
    sub.unsubscribe(topic + "/gone")
    sub.disconnect()
    pub.publish(topic + "/a", b"before", qos=2, properties=[
        ("content_type", "t"), ("user_property", ("k", "1")), ("user_property", ("k", "0")),
        ("message_expiry_interval", 1000)])
    again(broker, how)
    pub = client("pub", where=broker)
    pub.publish(topic + "/b", b"between restart and reconnect", qos=1, expect=0, retain=True)
    pub.publish(topic + "/gone", b"matched once", qos=1)
    sub = client("sub", where=broker, **KEPT)
    assert sub.connack.session_present is True
    got = {packet.payload: packet for packet in (sub.receive(subscription_identifier=5) for _ in range(3))}
    before = got[b"before"]
    assert (before.topic, before.qos, before.retain) == (topic + "/a", 2, False)
    assert before.prop("content_type") == "t"
    assert before.props("user_property") == [("k", "1"), ("k", "0")]
    assert before.prop("message_expiry_interval") in range(900, 1001)
    between = got[b"between restart and reconnect"]
    assert (between.topic, between.qos, between.retain) == (topic + "/b", 1, True)
    assert got[b"matched once"].topic == topic + "/gone"
    pub.publish(topic + "/c", b"after", qos=1)
    sub.receive(topic + "/c", b"after", subscription_identifier=5)
    sub.expect_quiet()


@pytest.mark.normative("MQTT5-4.6.0-5", "MQTT5-4.5.0-1", "MQTT5-3.1.2-23")
@pytest.mark.parametrize("how", ["restart", "kill"])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_queue_keeps_its_order_over_a_restart(client, start_broker, topic, how, qos):
    broker = start_broker()
    sub, pub = client("sub", where=broker, **KEPT), client("pub", where=broker)
    sub.subscribe(topic, qos=qos)
    for i in range(3):
        pub.publish(topic, b"%d" % i, qos=qos)
    for i in range(3):
        sub.expect(Publish, payload=b"%d" % i)      # sent and not acknowledged
    sub.drop()
    for i in range(3, 25):
        pub.publish(topic, b"%d" % i, qos=qos)
    again(broker, how)
    pub = client("pub", where=broker)
    for i in range(25, 30):
        pub.publish(topic, b"%d" % i, qos=qos)
    sub = client("sub", where=broker, **KEPT)
    for i in range(30):
        sub.receive(topic, b"%d" % i, dup=i < 3)
    sub.expect_quiet()
    sub.disconnect()
    client("sub", where=broker, **KEPT).expect_nothing()


@pytest.mark.normative("MQTT5-4.3.2-3", "MQTT5-4.3.3-6")
def test_what_was_acknowledged_does_not_come_back_after_a_crash(client, start_broker, topic):
    broker = start_broker()
    sub, pub = client("sub", where=broker, **KEPT), client("pub", where=broker)
    sub.subscribe(topic, qos=2)
    for qos in (1, 2):
        pub.publish(topic, b"%d" % qos, qos=qos)
        sub.receive(topic, b"%d" % qos)
    sub.disconnect()                                # the broker has seen the acknowledgements
    again(broker, "kill")
    sub = client("sub", where=broker, **KEPT)
    assert sub.connack.session_present is True
    got = []
    with contextlib.suppress(Nothing):
        while True:
            got.append(sub.recv(0.2))
    assert not [p for p in got if isinstance(p, Publish) and p.qos == 2], "QoS 2 is exactly once"


@pytest.mark.normative("MQTT5-4.1.0-2")
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_sessions_without_expiry_do_not_survive_the_broker(client, start_broker, topic, how):
    broker = start_broker()
    c = client("c", where=broker)
    c.subscribe(topic, qos=1)
    again(broker, how)
    assert client("c", where=broker, clean_start=False).connack.session_present is False
    client("pub", where=broker).publish(topic, b"x", qos=1, expect=0x10)


@pytest.mark.normative("MQTT5-4.1.0-2")
def test_sessions_expire_while_the_broker_is_down(client, start_broker):
    broker = start_broker()
    client("short", where=broker, **expiring(1)).disconnect()
    client("never", where=broker, **expiring(NEVER)).disconnect()
    broker.terminate()
    time.sleep(2.2)
    broker.start()
    assert client("short", where=broker, **expiring(1)).connack.session_present is False
    assert client("never", where=broker, **expiring(NEVER)).connack.session_present is True


@pytest.mark.normative("MQTT5-3.3.2-5", "MQTT5-3.3.2-6")
def test_messages_expire_while_the_broker_is_down(client, start_broker, topic):
    broker = start_broker()
    sub, pub = client("sub", where=broker, **KEPT), client("pub", where=broker)
    sub.subscribe(topic, qos=1)
    sub.disconnect()
    pub.publish(topic, b"short", qos=1, properties={"message_expiry_interval": 1})
    pub.publish(topic, b"long", qos=1, properties={"message_expiry_interval": 100})
    broker.terminate()
    time.sleep(2.2)
    broker.start()
    sub = client("sub", where=broker, **KEPT)
    assert sub.receive(topic, b"long").prop("message_expiry_interval") in range(80, 99)
    sub.expect_quiet()


def test_client_ids_with_separators_do_not_collide(client, start_broker, topic):
    broker = start_broker()
    for client_id in ("a", "a:b", "a/b", "a\u2028b", "a:b:c"):
        c = client("", where=broker, client_id=client_id, **KEPT)
        c.subscribe(f"{topic}/{client_id}", qos=1)
        c.disconnect()
    client("", where=broker, client_id="a", clean_start=True).disconnect()
    broker.restart()
    for client_id in ("a:b", "a/b", "a\u2028b", "a:b:c"):
        c = client("", where=broker, client_id=client_id, **KEPT)
        assert c.connack.session_present is True
        c.publish(f"{topic}/{client_id}", b"x", qos=1)
        c.receive(f"{topic}/{client_id}", b"x")
    assert client("", where=broker, client_id="a", **KEPT).connack.session_present is False


def test_memory_storage_forgets(client, start_broker):
    broker = start_broker({"storage.type": "memory"})
    client("c", where=broker, **KEPT).disconnect()
    assert client("c", where=broker, **KEPT).connack.session_present is True
    broker.restart()
    assert client("c", where=broker, **KEPT).connack.session_present is False


@pytest.mark.normative("MQTT5-4.1.0-1")
def test_subscribing_in_the_same_write_as_disconnect_is_kept(client, topic):
    c = client("c", **KEPT)
    c.send(Subscribe(packet_id=1, filters=[(topic, 1)]), b"\xe0\x00")
    assert c.rest() in (b"", Suback(packet_id=1, reasons=[1]).encode())
    client("pub").publish(topic, b"x", qos=1, expect=0)
    client("c", **KEPT).expect(Publish, payload=b"x")
