"""MQTT 5.0 section 3.1: CONNECT, and the first word on a connection."""
import string

import pytest
from kit.client import KEPT
from oracle.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
    Will,
    parse,
    text,
)


@pytest.mark.normative("MQTT5-3.1.0-1", "MQTT5-3.14.0-1")
@pytest.mark.parametrize("first", [
    Publish(topic="test/early", payload=b"x"), Puback(packet_id=1), Pubrel(packet_id=1),
    Subscribe(packet_id=1, filters=[("test/early", 0)]), Unsubscribe(packet_id=1, filters=["test/early"]),
    Pingreq(), Disconnect(), Auth(reason=0x19), Connack(), Pingresp(),
], ids=lambda packet: type(packet).__name__)
def test_the_first_packet_must_be_connect(open_client, first):
    c = open_client()
    c.send(first)
    c.expect_refused()


@pytest.mark.normative("MQTT5-3.1.0-1")
def test_bytes_that_are_no_mqtt_close_the_connection(open_client):
    c = open_client()
    c.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: something that speaks another protocol\r\n\r\n")
    c.expect_closed()


@pytest.mark.normative("MQTT5-3.1.0-2", "MQTT5-3.2.0-2", "MQTT5-4.13.1-1", "MQTT5-4.13.2-1")
def test_a_second_connect_is_a_protocol_error(client, name):
    c = client()
    c.send(Connect(client_id=name("c")))
    assert isinstance(c.expect_closed(0x82), Disconnect)


@pytest.mark.normative("MQTT5-3.1.0-2")
def test_a_second_connect_in_the_same_write(open_client, name):
    c = open_client()
    c.send(Connect(client_id=name("c")), Connect(client_id=name("c")))
    c.expect(Connack, reason=0)
    c.expect_closed(0x82)


def refused_version(answer):
    """Nothing, or one CONNACK: 0x84 in the form of 5.0, or 0x01 in that of 3.1.1. Which of the two a client can read
    whose version nobody knows is not said anywhere."""
    if not answer:
        return True
    old = answer == b"\x20\x02\x00\x01"
    packet, rest = (Connack(reason=0x84), b"") if old else parse(answer)
    return isinstance(packet, Connack) and packet.reason in (0x81, 0x84) and not rest


@pytest.mark.normative("MQTT5-3.1.2-1")
@pytest.mark.parametrize("protocol_name", ["", "mqtt", "MQTT ", "MQT", "HTTP", b"\xff\xfe\xff\xfe"])
def test_a_wrong_protocol_name_is_refused(open_client, name, protocol_name):
    c = open_client()
    c.send(Connect(client_id=name("c"), protocol_name=protocol_name))
    assert refused_version(c.rest())


@pytest.mark.normative("MQTT5-3.1.2-2")
@pytest.mark.parametrize("level", [6, 7, 127])
def test_an_unknown_version_is_refused(open_client, name, level):
    c = open_client()
    c.send(Connect(client_id=name("c"), protocol_level=level))
    assert refused_version(c.rest())


@pytest.mark.normative("MQTT5-3.1.2-3", "MQTT5-3.1.4-1", "MQTT5-2.1.3-1")
def test_the_reserved_connect_flag_must_be_0(open_client, name):
    c = open_client()
    c.send(Connect(client_id=name("c"), connect_flags=0b0000_0011))
    c.expect_refused(0x81)


@pytest.mark.normative("MQTT5-2.1.3-1", "MQTT5-3.1.4-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8])
def test_the_flags_of_the_fixed_header_must_be_0(open_client, name, flags):
    c = open_client()
    c.send(Connect(client_id=name("c"), flags=flags))
    c.expect_refused(0x81)


@pytest.mark.normative("MQTT5-3.1.2-4", "MQTT5-3.1.4-4", "MQTT5-3.2.2-2")
def test_clean_start_discards_the_session(client, topic):
    client("c", **KEPT).subscribe(topic)
    c = client("c", clean_start=True)
    assert c.connack.session_present is False
    client("pub").publish(topic, b"not subscribed any more", qos=1)
    c.expect_quiet()


@pytest.mark.normative("MQTT5-3.1.2-4", "MQTT5-3.1.4-4")
def test_clean_start_discards_queued_messages_too(client, topic):
    c = client("c", **KEPT)
    c.subscribe(topic, qos=1)
    c.disconnect()
    client("pub").publish(topic, b"queued", qos=1)
    client("c", clean_start=True, properties=KEPT["properties"]).disconnect()
    c = client("c", **KEPT)
    assert c.connack.session_present is True
    c.expect_nothing()


@pytest.mark.normative("MQTT5-3.1.2-5", "MQTT5-3.2.2-3", "MQTT5-3.1.2-23", "MQTT5-3.1.3-2")
def test_a_session_is_resumed(client, topic):
    c = client("c", **KEPT)
    c.subscribe(topic, qos=1)
    c.disconnect()
    c = client("c", **KEPT)
    assert c.connack.session_present is True
    client("pub").publish(topic, b"still subscribed", qos=1)
    c.receive(topic, b"still subscribed")


@pytest.mark.normative("MQTT5-3.1.2-6", "MQTT5-3.2.2-3")
def test_without_a_session_a_new_one_is_made(client, topic):
    c = client("c", clean_start=False)
    assert c.connack.session_present is False
    c.subscribe(topic)
    c.publish(topic, b"works")
    c.receive(topic, b"works")


@pytest.mark.normative("MQTT5-3.1.3-2")
def test_another_client_id_is_another_session(client, topic):
    client("one", **KEPT).subscribe(topic, qos=1)
    assert client("two", **KEPT).connack.session_present is False


# ── payload and flags ────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.1.2-9", "MQTT5-3.1.2-17", "MQTT5-3.1.2-19", "MQTT5-3.1.3-1", "MQTT5-3.1.4-1")
@pytest.mark.parametrize("flags", [0b0000_0110, 0b1000_0010, 0b0100_0010, 0b1100_0010],
                         ids=["will", "user name", "password", "both"])
def test_a_flag_without_its_field_is_malformed(open_client, name, flags):
    c = open_client()
    c.send(Connect(client_id=name("c"), connect_flags=flags))
    c.expect_refused(0x81)


@pytest.mark.normative("MQTT5-3.1.2-16", "MQTT5-3.1.2-18", "MQTT5-3.1.4-1")
@pytest.mark.parametrize("field", [{"username": "u"}, {"password": b"p"},
                                   {"will": Will(topic="test/will", payload=b"x")}])
def test_a_field_without_its_flag_is_malformed(open_client, name, field):
    c = open_client()
    c.send(Connect(client_id=name("c"), connect_flags=0b0000_0010, **field))
    c.expect_refused(0x81)


@pytest.mark.normative("MQTT5-3.1.2-17", "MQTT5-3.1.2-19")
@pytest.mark.parametrize("field", [{"username": "u"}, {"password": b"\x00\xff"}, {"username": "u", "password": b""}])
def test_user_name_and_password_are_independent(client, field):
    client("c", **field).expect_quiet()


@pytest.mark.normative("MQTT5-3.1.2-11", "MQTT5-3.1.2-13")
@pytest.mark.parametrize("flags", [0b0000_1010, 0b0001_0010, 0b0010_0010], ids=["QoS 1", "QoS 2", "retain"])
def test_will_qos_and_will_retain_need_the_will_flag(open_client, name, flags):
    c = open_client()
    c.send(Connect(client_id=name("c"), connect_flags=flags))
    c.expect_refused(0x81)


@pytest.mark.normative("MQTT5-3.1.2-12")
def test_will_qos_3_is_malformed(open_client, name):
    c = open_client()
    c.send(Connect(client_id=name("c"), will=Will(topic="test/will", qos=3)))
    c.expect_refused(0x81)


@pytest.mark.normative("MQTT5-3.1.2-12")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_will_qos_is_accepted(client, qos):
    client("c", will=Will(topic="test/will", qos=qos)).disconnect()


@pytest.mark.normative("MQTT5-3.1.3-1", "MQTT5-3.1.2-9")
def test_all_fields_in_their_order(client, topic):
    watcher = client("watcher")
    watcher.subscribe(topic)
    c = client("c", username="u", password=b"p",
               will=Will(topic=topic, payload=b"will", properties={"content_type": "text/plain"}))
    c.drop()
    watcher.receive(topic, b"will", content_type="text/plain")


@pytest.mark.normative("MQTT5-3.1.3-3", "MQTT5-3.1.4-1")
def test_a_connect_without_client_id_is_malformed(open_client):
    c = open_client()
    c.send(b"\x10\x0b" + text("MQTT") + b"\x05\x02\x00\x3c\x00")
    c.expect_refused(0x81)


@pytest.mark.normative("MQTT5-3.1.3-4", "MQTT5-3.1.3-11", "MQTT5-3.1.3-12", "MQTT5-1.5.4-1", "MQTT5-1.5.4-2")
@pytest.mark.parametrize("bad", [b"\xff", b"a\x00b", b"\xed\xa0\x80", b"\xc0\x80", b"\xf8\x88\x80\x80\x80",
                                 b"\xe2\x82"],
                         ids=["no UTF-8", "U+0000", "surrogate", "overlong", "five bytes", "cut short"])
@pytest.mark.parametrize("field", ["client_id", "username", "will"])
def test_text_must_be_utf8(open_client, name, field, bad):
    fields = {"client_id": name("c"), field: Will(topic=bad) if field == "will" else bad}
    c = open_client()
    c.send(Connect(**fields))
    c.expect_refused(0x81, 0x85, 0x90)


@pytest.mark.normative("MQTT5-3.1.3-5")
@pytest.mark.parametrize("client_id", [string.digits + "abcdefghijklm", string.ascii_lowercase[3:],
                                       string.ascii_uppercase[:23], string.ascii_uppercase[3:], "nopqrstuvwxyz", "Z"])
def test_client_ids_that_every_server_must_allow(client, client_id):
    assert len(client_id) <= 23
    assert client("c", client_id=client_id).connack.prop("assigned_client_identifier") is None


def test_long_and_strange_client_ids_are_allowed(client, name):
    client("c", client_id=name("/+#$ é \U0001f41d:") + "x" * 100).expect_quiet()


@pytest.mark.normative("MQTT5-3.1.3-6", "MQTT5-3.1.3-7", "MQTT5-3.2.2-16")
@pytest.mark.parametrize("clean_start", [True, False])
def test_an_empty_client_id_is_replaced(client, topic, clean_start):
    one = client("", client_id="", clean_start=clean_start, properties={"session_expiry_interval": 60})
    two = client("", client_id="", clean_start=clean_start)
    first, second = (c.connack.prop("assigned_client_identifier") for c in (one, two))
    assert first
    assert second
    assert first != second
    one.subscribe(topic, qos=1)                     # the assigned name is a name like any other: its session resumes
    one.disconnect()
    again = client("", client_id=first, clean_start=False)
    assert again.connack.session_present is True
    assert again.connack.prop("assigned_client_identifier") is None


@pytest.mark.normative("MQTT5-3.1.3-8")
def test_a_client_id_with_a_control_character_is_refused_or_served(open_client, name):
    """The server may refuse it; then the connection closes, and a CONNACK before that says 0x85 or 0x81."""
    c = open_client()
    c.send(Connect(client_id=name("c\x07")))
    answer = c.recv()
    assert isinstance(answer, Connack)
    if answer.reason:
        assert answer.reason in (0x85, 0x81)
        c.expect_closed()
    else:
        c.expect_quiet()


# ── what the server does with it ─────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.1.4-3", "MQTT5-3.14.4-1", "MQTT5-3.14.4-2")
def test_a_session_is_taken_over(client, topic):
    first = client("c", **KEPT)
    first.subscribe(topic, qos=1)
    second = client("c", **KEPT)
    assert isinstance(first.expect_closed(0x8E), Disconnect)
    assert second.connack.session_present is True
    client("pub").publish(topic, b"to the second", qos=1)
    second.receive(topic, b"to the second")


@pytest.mark.normative("MQTT5-3.1.4-3")
def test_a_takeover_again_and_again(client):
    last = client("c")
    for _ in range(20):
        following = client("c")
        last.expect_closed(0x8E)
        last = following
    last.expect_quiet()


@pytest.mark.normative("MQTT5-3.1.4-5", "MQTT5-3.2.0-1")
def test_connect_is_acknowledged(open_client, name):
    c = open_client()
    c.send(Connect(client_id=name("c")))
    c.expect(Connack, reason=0, session_present=False)


@pytest.mark.normative("MQTT5-3.1.4-5", "MQTT5-3.2.0-1")
def test_packets_may_follow_before_the_connack(open_client, name, topic):
    c = open_client()
    c.send(Connect(client_id=name("c")), Subscribe(packet_id=1, filters=[(topic, 0)]),
           Publish(topic=topic, payload=b"eager"), Pingreq())
    c.expect(Connack, reason=0)
    c.expect(Suback, packet_id=1, reasons=[0])
    c.expect(Publish, topic=topic, payload=b"eager")
    c.expect(Pingresp)


@pytest.mark.normative("MQTT5-3.1.4-6", "MQTT5-3.2.2-7", "MQTT5-4.13.2-1")
def test_nothing_after_a_refused_connect_is_processed(client, open_client, name, topic):
    watcher = client("watcher")
    watcher.subscribe(topic)
    c = open_client()
    c.send_to_the_end(Connect(client_id=name("c"), will=Will(topic="test/+")), Publish(topic=topic, payload=b"never"),
                      Publish(topic=topic, payload=b"never", retain=True), Subscribe(packet_id=1, filters=[(topic, 0)]))
    c.expect_closed()
    watcher.expect_quiet()
    watcher.subscribe(topic)
    watcher.expect_quiet()


@pytest.mark.normative("MQTT5-3.1.4-1")
@pytest.mark.parametrize("cut", range(1, 24))
def test_a_connect_cut_short_waits_for_the_rest(open_client, name, cut):
    whole = Connect(client_id=name("c")).encode()
    c = open_client()
    c.send(whole[:cut])
    c.expect_nothing(0.02)
    c.send(whole[cut:])
    c.expect(Connack, reason=0)


@pytest.mark.normative("MQTT5-3.1.4-1")
def test_a_connect_with_bytes_after_its_last_field_is_malformed(open_client, name):
    c = open_client()
    c.send(Connect(client_id=name("c"), tail=b"\x00"))
    c.expect_refused(0x81)


# ── keep alive ───────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.1.2-22", "MQTT5-3.2.2-22")
def test_a_silent_client_is_closed_after_its_keep_alive(client, topic):
    watcher = client("watcher")
    watcher.subscribe(topic)
    c = client("c", keep_alive=1, will=Will(topic=topic, payload=b"silent"))
    last = c.expect_closed(0x8D)
    assert isinstance(last, Disconnect)
    watcher.receive(topic, b"silent")


@pytest.mark.normative("MQTT5-3.1.2-22")
def test_packets_from_a_client_keep_it_alive_and_packets_to_it_do_not(client, topic):
    pub = client("pub")
    listener, talker = client("listener", keep_alive=4), client("talker", keep_alive=3)
    listener.subscribe(topic)
    alive = True
    while alive:                                    # talks all the while: the listener is closed, the talker is not
        talker.expect_quiet()
        pub.publish(topic, b"tick")
        packet = listener.recv()
        alive = isinstance(packet, Publish)
        talker.expect_nothing(0.1)
    assert isinstance(packet, Disconnect)
    assert packet.reason == 0x8D
    talker.expect_quiet()


@pytest.mark.normative("MQTT5-3.1.2-22")
def test_keep_alive_0_never_closes(client):
    c = client("c", keep_alive=0)
    brief = client("brief", keep_alive=1)
    brief.expect_closed(0x8D)
    c.expect_quiet()


# ── what every server must be ────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-4.2.0-1")
def test_plain_mqtt_over_tcp_needs_nothing_else(client, topic):
    sub, pub = client("sub"), client("pub")
    sub.subscribe(topic, qos=2)
    for qos in (0, 1, 2):
        pub.publish(topic, b"QoS %d" % qos, qos=qos)
        sub.receive(topic, b"QoS %d" % qos, qos=qos)
