"""MQTT 5.0 sections 3.4 to 3.7, 4.3, 4.4 and 4.6: acknowledgements, QoS 1, QoS 2 exactly once, order."""
import time

import pytest
from kit.client import KEPT
from oracle.mqtt import Pingreq, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel

# ── QoS 1: the server receives ───────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-4.3.2-4", "MQTT5-2.2.1-5", "MQTT5-3.3.4-1", "MQTT5-3.4.2-1")
def test_qos1_is_acknowledged(client, topic):
    c = client()
    for packet_id in (1, 0xFF, 0x100, 0xFFFF):
        c.send(Publish(topic=topic, payload=b"x", qos=1, packet_id=packet_id))
        c.expect(Puback, packet_id=packet_id)


@pytest.mark.normative("MQTT5-4.3.2-5")
def test_qos1_the_same_identifier_after_puback_is_a_new_message(client, topic):
    sub, pub = client("sub"), client("pub")
    sub.subscribe(topic)
    for dup in (False, True, True):
        pub.send(Publish(topic=topic, payload=b"x", qos=1, packet_id=7, dup=dup))
        pub.expect(Puback, packet_id=7)
        sub.receive(topic, b"x", dup=False)
    sub.expect_quiet()


# ── QoS 1: the server sends ──────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-4.3.2-2", "MQTT5-4.3.2-3", "MQTT5-4.4.0-1")
def test_qos1_is_sent_again_only_on_reconnect(client, topic):
    sub, pub = client("sub", **KEPT), client("pub")
    sub.subscribe(topic, qos=1)
    pub.publish(topic, b"1", qos=1)
    first = sub.expect(Publish, payload=b"1", qos=1, dup=False)
    sub.expect_nothing(1.2)                         # nothing is repeated on a live connection
    pub.publish(topic, b"2", qos=1)
    second = sub.expect(Publish, payload=b"2", dup=False)
    sub.drop()
    sub = client("sub", **KEPT)
    for packet_id, payload in ((first.packet_id, b"1"), (second.packet_id, b"2")):
        sub.receive(topic, payload, dup=True, packet_id=packet_id)
    sub.expect_quiet()
    sub.drop()
    client("sub", **KEPT).expect_nothing()          # acknowledged: not again


@pytest.mark.normative("MQTT5-4.3.2-3")
def test_qos1_puback_for_another_identifier_acknowledges_nothing(client, topic):
    sub = client("sub", **KEPT)
    sub.subscribe(topic, qos=1)
    client("pub").publish(topic, b"x", qos=1)
    got = sub.expect(Publish)
    sub.send(Puback(packet_id=got.packet_id % 65535 + 1))
    sub.expect_quiet()
    sub.drop()
    client("sub", **KEPT).receive(topic, b"x", dup=True, packet_id=got.packet_id)


@pytest.mark.normative("MQTT5-4.4.0-2")
@pytest.mark.parametrize(("qos", "kind"), [(1, Puback), (2, Pubrec)])
@pytest.mark.parametrize("reason", [0x80, 0x83, 0x87, 0x97, 0x99])
def test_an_error_from_the_client_ends_the_delivery(client, topic, qos, kind, reason):
    sub = client("sub", **KEPT)
    sub.subscribe(topic, qos=qos)
    client("pub").publish(topic, b"x", qos=qos)
    got = sub.expect(Publish, qos=qos)
    sub.send(kind(packet_id=got.packet_id, reason=reason))
    sub.expect_quiet()                              # no PUBREL either
    sub.drop()
    client("sub", **KEPT).expect_nothing()


def test_pubrec_with_no_matching_subscribers_goes_on(client, topic):
    """0x10 is below 0x80: a success."""
    sub = client("sub")
    sub.subscribe(topic, qos=2)
    client("pub").publish(topic, b"x", qos=2)
    got = sub.expect(Publish, qos=2)
    sub.send(Pubrec(packet_id=got.packet_id, reason=0x10))
    sub.expect(Pubrel, packet_id=got.packet_id, reason=0)
    sub.send(Pubcomp(packet_id=got.packet_id))


# ── QoS 2: the server receives ───────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-4.3.3-8", "MQTT5-4.3.3-11", "MQTT5-2.2.1-5", "MQTT5-3.7.2-1", "MQTT5-3.3.4-1")
def test_qos2_handshake(client, topic):
    c = client()
    for packet_id in (1, 0xFF, 0x100, 0xFFFF):
        c.send(Publish(topic=topic, payload=b"x", qos=2, packet_id=packet_id))
        c.expect(Pubrec, packet_id=packet_id)
        c.send(Pubrel(packet_id=packet_id))
        c.expect(Pubcomp, packet_id=packet_id, reason=0)


@pytest.mark.normative("MQTT5-4.3.3-10")
def test_qos2_a_repetition_before_pubrel_is_not_delivered_twice(client, topic):
    sub, pub = client("sub"), client("pub")
    sub.subscribe(topic, qos=2)
    pub.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=3))
    pub.expect(Pubrec, packet_id=3)
    for _ in range(3):
        pub.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=3, dup=True))
        assert pub.expect(Pubrec, packet_id=3).reason < 0x80
    pub.send(Pubrel(packet_id=3))
    pub.expect(Pubcomp, packet_id=3, reason=0)
    sub.receive(topic, b"once")
    sub.expect_quiet()


@pytest.mark.normative("MQTT5-4.3.3-12")
def test_qos2_the_same_identifier_after_pubcomp_is_a_new_message(client, topic):
    sub, pub = client("sub"), client("pub")
    sub.subscribe(topic)
    for dup in (False, True):
        pub.send(Publish(topic=topic, payload=b"x", qos=2, packet_id=7, dup=dup))
        pub.expect(Pubrec, packet_id=7)
        pub.send(Pubrel(packet_id=7))
        pub.expect(Pubcomp, packet_id=7, reason=0)
        sub.receive(topic, b"x")
    sub.expect_quiet()


@pytest.mark.normative("MQTT5-3.7.2-1", "MQTT5-3.6.2-1", "MQTT5-4.3.3-11")
def test_qos2_pubrel_for_an_unknown_identifier(client):
    c = client()
    c.send(Pubrel(packet_id=4711))
    c.expect(Pubcomp, packet_id=4711, reason=0x92)


@pytest.mark.normative("MQTT5-4.3.3-11")
def test_qos2_pubrel_again_after_pubcomp(client, topic):
    c = client()
    c.publish(topic, b"x", qos=2)
    c.send(Pubrel(packet_id=1))
    c.expect(Pubcomp, packet_id=1, reason=0x92)


@pytest.mark.normative("MQTT5-4.3.3-9", "MQTT5-3.5.2-1")
def test_qos2_after_a_refusing_pubrec_the_identifier_is_free(client, guarded, topic):
    sub, pub = client("sub", where=guarded), client("pub", where=guarded)
    sub.subscribe(topic, qos=2)
    pub.send(Publish(topic="denied/x", payload=b"x", qos=2, packet_id=5))
    pub.expect(Pubrec, packet_id=5, reason=0x87)
    pub.send(Publish(topic=topic, payload=b"new", qos=2, packet_id=5))
    pub.expect(Pubrec, packet_id=5, reason=0)
    pub.send(Pubrel(packet_id=5))
    pub.expect(Pubcomp, packet_id=5, reason=0)
    sub.receive(topic, b"new")


@pytest.mark.normative("MQTT5-3.4.2-1")
def test_qos1_refused(client, guarded):
    pub = client("pub", where=guarded)
    pub.publish("denied/x", b"x", qos=1, expect=0x87)
    pub.expect_quiet()                              # a refused message is no reason to close


@pytest.mark.normative("MQTT5-4.3.3-13")
def test_qos2_goes_on_though_the_message_has_expired(client, topic):
    sub, pub = client("sub", **KEPT), client("pub")
    sub.subscribe(topic, qos=2)
    sub.disconnect()
    pub.send(Publish(topic=topic, payload=b"x", qos=2, packet_id=1, properties={"message_expiry_interval": 1}))
    pub.expect(Pubrec, packet_id=1)
    time.sleep(1.2)                                 # the message expires between PUBREC and PUBREL
    pub.send(Pubrel(packet_id=1))
    pub.expect(Pubcomp, packet_id=1, reason=0)


@pytest.mark.normative("MQTT5-4.3.3-10", "MQTT5-4.3.3-8", "MQTT5-4.1.0-1")
def test_qos2_exactly_once_across_a_reconnect_of_the_publisher(client, topic):
    sub, pub = client("sub"), client("pub", **KEPT)
    sub.subscribe(topic, qos=2)
    pub.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=9))
    pub.expect(Pubrec, packet_id=9)
    pub.drop()
    pub = client("pub", **KEPT)
    assert pub.connack.session_present is True
    pub.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=9, dup=True))
    assert pub.expect(Pubrec, packet_id=9).reason < 0x80
    pub.drop()
    pub = client("pub", **KEPT)
    pub.send(Pubrel(packet_id=9))
    pub.expect(Pubcomp, packet_id=9, reason=0)
    sub.receive(topic, b"once")
    sub.expect_quiet()


@pytest.mark.normative("MQTT5-4.3.3-10")
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_qos2_exactly_once_across_a_restart_of_the_broker(client, start_broker, topic, how):
    broker = start_broker()
    sub, pub = client("sub", where=broker, **KEPT), client("pub", where=broker, **KEPT)
    sub.subscribe(topic, qos=2)
    pub.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=9))
    pub.expect(Pubrec, packet_id=9)
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    sub, pub = client("sub", where=broker, **KEPT), client("pub", where=broker, **KEPT)
    assert pub.connack.session_present is True
    pub.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=9, dup=True))
    assert pub.expect(Pubrec, packet_id=9).reason < 0x80
    pub.send(Pubrel(packet_id=9))
    pub.expect(Pubcomp, packet_id=9, reason=0)
    sub.receive(topic, b"once")
    sub.expect_quiet()
    sub.expect_nothing()


# ── QoS 2: the server sends ──────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-4.3.3-2", "MQTT5-4.3.3-4", "MQTT5-3.6.2-1", "MQTT5-2.2.1-5")
def test_qos2_the_server_releases(client, topic):
    sub = client("sub")
    sub.subscribe(topic, qos=2)
    client("pub").publish(topic, b"x", qos=2)
    got = sub.expect(Publish, payload=b"x", qos=2, dup=False)
    sub.send(Pubrec(packet_id=got.packet_id))
    sub.expect(Pubrel, packet_id=got.packet_id, reason=0)
    sub.send(Pubcomp(packet_id=got.packet_id))
    sub.expect_quiet()


@pytest.mark.normative("MQTT5-4.3.3-3", "MQTT5-4.3.3-5", "MQTT5-4.3.3-6", "MQTT5-4.4.0-1")
def test_qos2_each_half_is_sent_again_until_acknowledged(client, topic):
    sub = client("sub", **KEPT)
    sub.subscribe(topic, qos=2)
    client("pub").publish(topic, b"x", qos=2)
    packet_id = sub.expect(Publish, dup=False).packet_id
    sub.drop()
    for _ in range(2):                              # not received: PUBLISH again
        sub = client("sub", **KEPT)
        sub.expect(Publish, payload=b"x", dup=True, packet_id=packet_id)
        sub.drop()
    sub = client("sub", **KEPT)
    sub.expect(Publish, payload=b"x", dup=True, packet_id=packet_id)
    sub.send(Pubrec(packet_id=packet_id))
    sub.expect(Pubrel, packet_id=packet_id, reason=0)
    sub.expect_nothing(1.2)                         # not again on a live connection
    sub.drop()
    for _ in range(2):                              # received: PUBREL again, never PUBLISH
        sub = client("sub", **KEPT)
        sub.expect(Pubrel, packet_id=packet_id, reason=0)
        sub.expect_quiet()
        sub.drop()
    sub = client("sub", **KEPT)
    sub.expect(Pubrel, packet_id=packet_id)
    sub.send(Pubcomp(packet_id=packet_id))
    sub.expect_quiet()
    sub.drop()
    client("sub", **KEPT).expect_nothing()


@pytest.mark.normative("MQTT5-4.3.3-4", "MQTT5-4.3.3-6")
def test_qos2_pubrec_again_gets_pubrel_again_and_no_publish(client, topic):
    sub = client("sub")
    sub.subscribe(topic, qos=2)
    client("pub").publish(topic, b"x", qos=2)
    packet_id = sub.expect(Publish).packet_id
    sub.send(Pubrec(packet_id=packet_id), Pubrec(packet_id=packet_id))
    sub.expect(Pubrel, packet_id=packet_id, reason=0)
    sub.send(Pingreq())
    packet = sub.recv()
    if isinstance(packet, Pubrel):                  # the first one is still under way: both are right
        assert packet.packet_id == packet_id
        packet = sub.recv()
    assert isinstance(packet, Pingresp)
    sub.send(Pubcomp(packet_id=packet_id))
    sub.expect_quiet()


@pytest.mark.normative("MQTT5-3.6.2-1")
def test_pubrec_for_an_unknown_identifier(client):
    c = client()
    c.send(Pubrec(packet_id=4711))
    c.expect(Pubrel, packet_id=4711, reason=0x92)


def test_puback_and_pubcomp_for_unknown_identifiers_do_no_harm(client):
    c = client()
    c.send(Puback(packet_id=4711), Pubcomp(packet_id=4711))
    c.expect_quiet()


@pytest.mark.normative("MQTT5-4.3.3-7")
def test_qos2_a_message_that_was_sent_does_not_expire(client, topic):
    sub = client("sub", **KEPT)
    sub.subscribe(topic, qos=2)
    client("pub").publish(topic, b"x", qos=2, properties={"message_expiry_interval": 2})
    packet_id = sub.expect(Publish, dup=False).packet_id
    sub.drop()
    time.sleep(3.1)                                 # longer than the expiry
    client("sub", **KEPT).receive(topic, b"x", dup=True, packet_id=packet_id)


@pytest.mark.normative("MQTT5-4.4.0-1", "MQTT5-4.3.3-6")
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_inflight_survives_a_restart(client, start_broker, topic, how):
    broker = start_broker()
    sub, pub = client("sub", where=broker, **KEPT), client("pub", where=broker)
    sub.subscribe(topic, qos=2)
    pub.publish(topic, b"qos 1", qos=1)
    pub.publish(topic, b"received", qos=2)
    pub.publish(topic, b"not received", qos=2)
    one, two, three = sub.expect(Publish), sub.expect(Publish), sub.expect(Publish)
    sub.send(Pubrec(packet_id=two.packet_id))
    sub.expect(Pubrel, packet_id=two.packet_id)
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    sub = client("sub", where=broker, **KEPT)
    assert sub.connack.session_present is True
    packets = [sub.recv() for _ in range(3)]
    assert sorted((p.packet_id, type(p)) for p in packets) == sorted(
        [(one.packet_id, Publish), (two.packet_id, Pubrel), (three.packet_id, Publish)], key=lambda p: p[0])
    assert all(p.dup for p in packets if isinstance(p, Publish))
    assert [p.payload for p in packets if isinstance(p, Publish)] == [b"qos 1", b"not received"]


@pytest.mark.normative("MQTT5-4.4.0-1")
def test_a_clean_start_drops_what_was_inflight(client, topic):
    sub = client("sub", **KEPT)
    sub.subscribe(topic, qos=2)
    client("pub").publish(topic, b"x", qos=2)
    sub.expect(Publish)
    sub.drop()
    client("sub", clean_start=True).expect_nothing()


@pytest.mark.parametrize(("qos", "before", "wrong"), [
    (1, [], Pubrec), (1, [], Pubcomp), (2, [], Puback), (2, [], Pubcomp), (2, [Pubrec], Puback)],
    ids=["pubrec-1", "pubcomp-1", "puback-2", "pubcomp-2", "puback-released"])
def test_an_acknowledgement_of_the_wrong_type_closes(client, topic, qos, before, wrong):
    """For what is in flight it can only be the client's mistake, and shows it; the message is not lost by it."""
    c = client("c", **KEPT)
    c.subscribe(topic, qos=qos)
    client("p").publish(topic, b"x", qos=qos)
    packet_id = c.expect(Publish).packet_id
    for kind in before:
        c.send(kind(packet_id=packet_id))
        c.expect(Pubrel, packet_id=packet_id)
    c.send(wrong(packet_id=packet_id))
    c.expect_closed(0x82)
    again = client("c", **KEPT)
    if before:
        again.expect(Pubrel, packet_id=packet_id)
    else:
        again.expect(Publish, payload=b"x", packet_id=packet_id, dup=True)


# ── flags and lengths ────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.6.1-1", "MQTT5-2.1.3-1")
@pytest.mark.parametrize("first", [0x60, 0x61, 0x63, 0x66, 0x6A, 0x6F])
def test_pubrel_with_wrong_flags_is_malformed(client, topic, first):
    c = client()
    c.send(Publish(topic=topic, qos=2, packet_id=1))
    c.expect(Pubrec)
    c.send(bytes([first]) + b"\x02\x00\x01")
    c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-2.1.3-1")
@pytest.mark.parametrize("first", [0x41, 0x48, 0x52, 0x5F, 0x71, 0x72])
def test_acknowledgements_with_wrong_flags_are_malformed(client, first):
    c = client()
    c.send(bytes([first]) + b"\x02\x00\x01")
    c.expect_closed(0x81)


@pytest.mark.parametrize("kind", [Puback, Pubrec, Pubrel, Pubcomp])
def test_acknowledgements_in_their_three_lengths(client, kind):
    """Two bytes, three bytes, and with properties: 3.4.2.1, 3.4.2.2.1."""
    c = client()
    first = bytes([kind.kind << 4 | kind.fixed_flags])
    for rest in (b"\x02\x00\x63", b"\x03\x00\x63\x00", b"\x04\x00\x63\x00\x00",
                 kind(packet_id=0x63, reason=0x92 if kind in (Pubrel, Pubcomp) else 0x80, properties=[
                     ("reason_string", "why"), ("user_property", ("a", "b")), ("user_property", ("a", "b"))]
                 ).encode()[1:]):
        c.send(first + rest)
        if kind is Pubrel:
            c.expect(Pubcomp, packet_id=0x63, reason=0x92)
        elif kind is Pubrec and (rest[0] == 2 or rest[3] < 0x80):
            c.expect(Pubrel, packet_id=0x63, reason=0x92)
    c.expect_quiet()


@pytest.mark.parametrize("kind", [Puback, Pubrec, Pubrel, Pubcomp])
def test_packet_identifier_0_in_an_acknowledgement_is_refused(client, kind):
    c = client()
    c.send(kind(packet_id=0))
    c.expect_closed(0x81, 0x82)


# ── order ────────────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-4.6.0-5", "MQTT5-4.6.0-6", "MQTT5-4.5.0-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_one_client_keep_their_order(client, topic, qos):
    sub, pub = client("sub"), client("pub")
    sub.subscribe(topic, qos=qos)
    for i in range(50):
        pub.publish(topic, b"%d" % i, qos=qos)
    for i in range(50):
        sub.expect(Publish, payload=b"%d" % i, qos=qos)


@pytest.mark.normative("MQTT5-4.6.0-5", "MQTT5-4.6.0-6", "MQTT5-4.5.0-1")
def test_order_through_the_offline_queue_and_redelivery(client, topic):
    sub, pub = client("sub", **KEPT), client("pub")
    sub.subscribe(topic, qos=1)
    for i in range(3):
        pub.publish(topic, b"%d" % i, qos=1)
    for i in range(3):
        sub.expect(Publish, payload=b"%d" % i)
    sub.drop()
    for i in range(3, 40):
        pub.publish(topic, b"%d" % i, qos=1)
    sub = client("sub", **KEPT)
    for i in range(40):
        sub.receive(topic, b"%d" % i, dup=i < 3)


@pytest.mark.normative("MQTT5-4.5.0-1")
def test_an_accepted_message_is_in_every_session(client, topic):
    offline, online = client("offline", **KEPT), client("online")
    offline.subscribe(topic, qos=1)
    online.subscribe(topic, qos=1)
    offline.disconnect()
    client("pub").publish(topic, b"x", qos=1)
    online.receive(topic, b"x")
    client("offline", **KEPT).receive(topic, b"x")
