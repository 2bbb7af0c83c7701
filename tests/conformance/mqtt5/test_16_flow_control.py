"""MQTT 5.0 section 4.9: Receive Maximum in both directions; and Maximum Packet Size in both directions."""
import pytest
from kit.client import KEPT
from oracle.mqtt import (
    Connack,
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
    options,
)


def acknowledge(c, packet):
    """The whole handshake for one message."""
    if packet.qos == 1:
        c.send(Puback(packet_id=packet.packet_id))
    else:
        c.send(Pubrec(packet_id=packet.packet_id))
        c.answer(Pubrel, packet_id=packet.packet_id)
        c.send(Pubcomp(packet_id=packet.packet_id))


# ── towards the client ───────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.3.4-9", "MQTT5-4.9.0-1", "MQTT5-4.9.0-2")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_than_receive_maximum_unacknowledged(client, topic, qos, limit):
    sub, pub = client("sub", properties={"receive_maximum": limit}), client("pub")
    sub.subscribe(topic, qos=qos)
    for i in range(10):
        pub.publish(topic, b"%d" % i, qos=qos)
    waiting = [sub.expect(Publish, payload=b"%d" % i) for i in range(limit)]
    sub.expect_quiet()
    sub.expect_nothing()
    for i in range(limit, 10):
        acknowledge(sub, waiting.pop(0))
        waiting.append(sub.expect(Publish, payload=b"%d" % i))
        sub.expect_quiet()
    for packet in waiting:
        acknowledge(sub, packet)
    sub.expect_quiet()


@pytest.mark.normative("MQTT5-3.3.4-9", "MQTT5-4.9.0-2")
def test_pubrec_gives_no_room_and_pubcomp_does(client, topic):
    sub, pub = client("sub", properties={"receive_maximum": 1}), client("pub")
    sub.subscribe(topic, qos=2)
    for i in range(2):
        pub.publish(topic, b"%d" % i, qos=2)
    first = sub.expect(Publish, payload=b"0")
    sub.send(Pubrec(packet_id=first.packet_id))
    sub.expect(Pubrel)
    sub.expect_quiet()
    sub.expect_nothing()
    sub.send(Pubcomp(packet_id=first.packet_id))
    sub.expect(Publish, payload=b"1")


@pytest.mark.normative("MQTT5-3.3.4-9", "MQTT5-4.9.0-2", "MQTT5-4.4.0-2")
@pytest.mark.parametrize(("qos", "kind"), [(1, Puback), (2, Pubrec)])
def test_an_error_gives_room(client, topic, qos, kind):
    sub, pub = client("sub", properties={"receive_maximum": 1}), client("pub")
    sub.subscribe(topic, qos=qos)
    for i in range(3):
        pub.publish(topic, b"%d" % i, qos=qos)
    for i in range(3):
        got = sub.expect(Publish, payload=b"%d" % i)
        sub.send(kind(packet_id=got.packet_id, reason=0x80))
    sub.expect_quiet()


@pytest.mark.normative("MQTT5-3.3.4-10", "MQTT5-4.9.0-3")
def test_everything_else_goes_on_at_the_limit(client, topic):
    sub, pub = client("sub", properties={"receive_maximum": 1}), client("pub")
    sub.subscribe((topic + "/1", 1), (topic + "/0", 0))
    for i in range(3):
        pub.publish(topic + "/1", b"%d" % i, qos=1)
    sub.expect(Publish, payload=b"0")
    sub.send(Pingreq())
    sub.expect(Pingresp)
    sub.subscribe(topic + "/more")
    sub.unsubscribe(topic + "/more")
    sub.publish(topic + "/elsewhere", b"x", qos=1)
    sub.publish(topic + "/elsewhere", b"x", qos=2)
    pub.publish(topic + "/0", b"QoS 0 is not counted", qos=0)
    sub.expect(Publish, payload=b"QoS 0 is not counted")


@pytest.mark.normative("MQTT5-4.9.0-2", "MQTT5-3.3.4-9")
def test_the_quota_starts_anew_with_each_connection(client, topic):
    sub = client("sub", **KEPT)
    sub.subscribe(topic, qos=1)
    sub.disconnect()
    pub = client("pub")
    for i in range(10):
        pub.publish(topic, b"%d" % i, qos=1)
    sub = client("sub", clean_start=False, properties={"receive_maximum": 2, "session_expiry_interval": 60})
    sub.expect(Publish, payload=b"0")
    sub.expect(Publish, payload=b"1")
    sub.expect_quiet()
    sub.drop()
    sub = client("sub", clean_start=False, properties={"receive_maximum": 4, "session_expiry_interval": 60})
    for i in range(4):
        sub.expect(Publish, payload=b"%d" % i, dup=i < 2)
    sub.expect_quiet()
    sub.drop()
    sub = client("sub", clean_start=False, properties={"receive_maximum": 1, "session_expiry_interval": 60})
    for i in range(10):                             # redelivery keeps within the smaller quota too
        got = sub.expect(Publish, payload=b"%d" % i)
        sub.expect_quiet()
        sub.send(Puback(packet_id=got.packet_id))


@pytest.mark.normative("MQTT5-4.9.0-1")
def test_without_receive_maximum_the_brokers_own_window_holds(client, start_broker, topic):
    broker = start_broker({"session.max_inflight_messages": 5})
    sub, pub = client("sub", where=broker), client("pub", where=broker)
    sub.subscribe(topic, qos=1)
    for i in range(8):
        pub.publish(topic, b"%d" % i, qos=1)
    for i in range(5):
        sub.expect(Publish, payload=b"%d" % i)
    sub.expect_quiet()


@pytest.mark.normative("MQTT5-4.9.0-2", "MQTT5-4.9.0-3")
def test_a_late_acknowledgement_again_gives_no_room(client, topic):
    """An acknowledgement of nothing must not raise the quota above Receive Maximum."""
    sub, pub = client("sub", properties={"receive_maximum": 2}), client("pub")
    sub.subscribe(topic, qos=1)
    pub.publish(topic, b"0", qos=1)
    got = sub.expect(Publish)
    sub.send(*[Puback(packet_id=got.packet_id)] * 5)
    for i in range(1, 6):
        pub.publish(topic, b"%d" % i, qos=1)
    sub.expect(Publish, payload=b"1")
    sub.expect(Publish, payload=b"2")
    sub.expect_quiet()


# ── towards the broker ───────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.3.4-7", "MQTT5-4.9.0-2")
def test_a_client_that_exceeds_receive_maximum_is_disconnected(client, start_broker, topic):
    broker = start_broker({"broker.receive_maximum": 3})
    c = client("c", where=broker)
    assert c.connack.prop("receive_maximum") == 3
    for i in range(1, 4):
        c.send(Publish(topic=topic, qos=2, packet_id=i))
    for i in range(1, 4):
        c.expect(Pubrec, packet_id=i)
    c.send(Publish(topic=topic, qos=2, packet_id=4))
    assert isinstance(c.expect_closed(0x93), Disconnect)


@pytest.mark.normative("MQTT5-3.3.4-7")
def test_a_client_within_receive_maximum_is_served(client, start_broker, topic):
    broker = start_broker({"broker.receive_maximum": 2})
    c = client("c", where=broker)
    for round_ in range(5):
        c.send(Publish(topic=topic, qos=2, packet_id=1), Publish(topic=topic, qos=2, packet_id=2),
               Publish(topic=topic, qos=2, packet_id=2, dup=True), Publish(topic=topic, qos=0))
        for packet_id in (1, 2, 2):
            c.expect(Pubrec, packet_id=packet_id)
        c.send(Pubrel(packet_id=1), Pubrel(packet_id=2))
        c.expect(Pubcomp, packet_id=1, reason=0)
        c.expect(Pubcomp, packet_id=2, reason=0)
        c.publish(topic, b"%d" % round_, qos=1)


# ── Maximum Packet Size ──────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.1.2-24", "MQTT5-3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_too_large_is_not_sent_and_counts_as_sent(client, topic, qos):
    size = 300
    sub = client("sub", properties={"maximum_packet_size": size, "receive_maximum": 1})
    pub, other = client("pub"), client("other")
    sub.subscribe(topic, qos=qos)
    other.subscribe(topic, qos=0)
    for i in range(5):
        pub.publish(topic, b"L" * 300, qos=qos)
        other.receive(topic, b"L" * 300)
        pub.publish(topic, b"s%d" % i, qos=qos)
        other.receive(topic, b"s%d" % i)
        sub.receive(topic, b"s%d" % i)              # Receive Maximum 1 is not used up by what was dropped
        assert sub.last_size <= size


@pytest.mark.normative("MQTT5-3.1.2-24", "MQTT5-3.1.2-25")
def test_the_size_is_the_whole_packets(client, topic):
    """To the byte, with fixed header, topic and properties."""
    pub = client("pub")
    for size in (100, 127, 128, 129, 130, 131, 200):
        sub = client(f"sub{size}", properties={"maximum_packet_size": size})
        sub.subscribe(topic)
        payload = b"x" * max(n for n in range(size) if len(Publish(topic=topic, payload=b"x" * n).encode()) <= size)
        pub.publish(topic, payload + b"x")
        pub.publish(topic, payload)
        pub.publish(topic, b"end")
        sub.receive(topic, payload)
        assert sub.last_size <= size
        sub.receive(topic, b"end")
        sub.disconnect()


@pytest.mark.normative("MQTT5-3.1.2-24", "MQTT5-3.1.2-25")
def test_properties_and_identifiers_count(client, topic):
    pub, sub = client("pub"), client("sub", properties={"maximum_packet_size": 200})
    sub.subscribe((topic, options(0)), properties={"subscription_identifier": 268_435_455})
    pub.publish(topic, b"x", properties={"user_property": ("k", "v" * 200)})
    pub.publish(topic, b"x", properties={"content_type": "t" * 200})
    bare = len(Publish(topic=topic, payload=b"", properties={"subscription_identifier": 268_435_455}).encode())
    pub.publish(topic, b"y" * (200 - bare - 1) + b"!!")
    pub.publish(topic, b"y" * (200 - bare - 1))
    got = sub.expect(Publish)
    assert sub.last_size <= 200
    assert got.payload.strip(b"y") == b""


@pytest.mark.normative("MQTT5-3.1.2-24", "MQTT5-3.1.2-25")
def test_too_large_messages_from_the_offline_queue_and_retained(client, topic):
    sub, pub = client("sub", **KEPT), client("pub")
    sub.subscribe(topic + "/#", qos=1)
    sub.disconnect()
    pub.publish(topic + "/1", b"L" * 1000, qos=1)
    pub.publish(topic + "/2", b"s", qos=1)
    pub.publish(topic + "/3", b"L" * 1000, qos=1, retain=True)
    small = {"clean_start": False, "properties": {"session_expiry_interval": 60, "maximum_packet_size": 500}}
    sub = client("sub", **small)
    sub.receive(topic + "/2", b"s")
    sub.subscribe(topic + "/3", qos=1)
    sub.expect_quiet()
    sub.drop()
    client("sub", **small).expect_nothing()         # done with, not waiting for ever


def test_a_client_that_exceeds_the_brokers_maximum_packet_size(client, start_broker, topic):
    broker = start_broker({"broker.max_message_size": 2048})
    c, watcher = client("c", where=broker), client("watcher", where=broker)
    watcher.subscribe(topic)
    limit = c.connack.prop("maximum_packet_size")
    assert limit is not None
    assert limit >= 2048
    c.publish(topic, b"x" * 2048, qos=1)
    watcher.receive(topic, b"x" * 2048)
    head = b"\x30" + bytes([(limit & 0x7F) | 0x80, (limit >> 7 & 0x7F) | 0x80, limit >> 14])
    c.send(head)                                    # the fixed header says it all: nothing is waited for
    assert isinstance(c.expect_closed(0x95), Disconnect)
    watcher.expect_quiet()


def test_a_payload_above_the_brokers_limit_in_a_packet_within_it(client, start_broker, topic):
    broker = start_broker({"broker.max_message_size": 2048})
    c = client("c", where=broker)
    c.send(Publish(topic=topic, payload=b"x" * 2049, qos=1, packet_id=1))
    packet = c.recv()
    assert packet.reason in (0x95, 0x97, 0x83, 0x80), packet
    if isinstance(packet, Disconnect):
        c.expect_closed()


@pytest.mark.normative("MQTT5-4.9.0-3")
def test_subscribe_is_answered_while_the_publishers_quota_is_used_up(client, start_broker, topic):
    broker = start_broker({"broker.receive_maximum": 1})
    c = client("c", where=broker)
    c.send(Publish(topic=topic, qos=2, packet_id=1))
    c.expect(Pubrec, packet_id=1)
    c.send(Subscribe(packet_id=2, filters=[(topic, 0)]), Pingreq())
    c.expect(Suback, packet_id=2)
    c.expect(Pingresp)
    assert isinstance(c.connack, Connack)
