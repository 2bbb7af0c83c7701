"""MQTT 5.0 section 3.14: DISCONNECT."""
import time

import pytest
from kit.client import KEPT
from oracle.mqtt import NEVER, Connect, Disconnect, Pingreq, Publish, Will

LASTING = KEPT["properties"]


@pytest.mark.normative("MQTT5-3.14.4-1", "MQTT5-3.14.4-2")
def test_disconnect_closes_without_an_answer(client):
    client().disconnect()


@pytest.mark.normative("MQTT5-3.14.4-1")
def test_nothing_after_disconnect_is_processed(client, topic):
    watcher = client("watcher")
    watcher.subscribe(topic)
    c = client()
    c.send_to_the_end(Disconnect(), Publish(topic=topic, payload=b"late"), Pingreq())
    assert c.expect_closed() is None
    watcher.expect_quiet()


@pytest.mark.normative("MQTT5-3.14.4-3", "MQTT5-3.1.2-8", "MQTT5-3.1.2-10")
def test_disconnect_0_discards_the_will(client, topic):
    watcher = client("watcher")
    watcher.subscribe(topic)
    client("c", will=Will(topic=topic, payload=b"will")).disconnect()
    watcher.expect_quiet()
    watcher.expect_nothing()


@pytest.mark.normative("MQTT5-3.1.2-8", "MQTT5-3.14.2-1")
@pytest.mark.parametrize("reason", [0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99])
def test_other_reasons_publish_the_will(client, topic, reason):
    watcher = client("watcher")
    watcher.subscribe(topic)
    client("c", will=Will(topic=topic, payload=b"will")).disconnect(reason)
    watcher.receive(topic, b"will")


@pytest.mark.normative("MQTT5-3.14.1-1", "MQTT5-2.1.3-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
def test_reserved_bits_are_malformed(client, topic, flags):
    watcher = client("watcher")
    watcher.subscribe(topic)
    c = client("c", will=Will(topic=topic, payload=b"will"))
    c.send(Disconnect(flags=flags))
    c.expect_closed(0x81)
    watcher.receive(topic, b"will")


@pytest.mark.normative("MQTT5-3.14.2-1")
@pytest.mark.parametrize("reason", [0x01, 0x03, 0x05, 0x18, 0x7F, 0xFF])
def test_a_reason_that_does_not_exist_is_an_error(client, topic, reason):
    watcher = client("watcher")
    watcher.subscribe(topic)
    c = client("c", will=Will(topic=topic, payload=b"will"))
    c.send(Disconnect(reason=reason))
    c.expect_closed()
    watcher.receive(topic, b"will")


@pytest.mark.parametrize("wire", [b"\xe0\x00", b"\xe0\x01\x00", b"\xe0\x02\x00\x00"])
def test_disconnect_in_its_three_lengths(client, wire):
    c = client()
    c.send(wire)
    assert c.expect_closed() is None


def test_reason_string_and_user_properties_are_accepted(client):
    client().disconnect(0, [("reason_string", "done"), ("user_property", ("a", "b")), ("user_property", ("a", "b"))])


# ── session expiry override ──────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-4.1.0-2")
def test_session_expiry_0_in_disconnect_ends_the_session(client, topic):
    c = client("c", **KEPT)
    c.subscribe(topic)
    c.disconnect(properties={"session_expiry_interval": 0})
    assert client("c", **KEPT).connack.session_present is False


@pytest.mark.normative("MQTT5-3.1.2-23", "MQTT5-4.1.0-2")
def test_session_expiry_can_be_prolonged_and_shortened_in_disconnect(client):
    short, long = client("short", **KEPT), client("long", clean_start=False, properties={"session_expiry_interval": 1})
    short.disconnect(properties={"session_expiry_interval": 1})
    long.disconnect(properties={"session_expiry_interval": NEVER})
    time.sleep(2.2)                                 # the expiry itself is what is tested
    assert client("short", **KEPT).connack.session_present is False
    assert client("long", **KEPT).connack.session_present is True


def test_session_expiry_cannot_be_introduced_in_disconnect(client, name):
    c = client("c", clean_start=False, properties={"session_expiry_interval": 0})
    c.send(Disconnect(properties={"session_expiry_interval": 60}))
    c.expect_closed(0x82)
    assert client("c", clean_start=False).connack.session_present is False


def test_without_override_the_interval_of_connect_holds(client):
    client("c", **KEPT).disconnect(0, {"user_property": ("a", "b")})
    assert client("c", **KEPT).connack.session_present is True


# ── the server's DISCONNECT ──────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.14.2-1", "MQTT5-3.14.2-2", "MQTT5-3.14.4-1", "MQTT5-3.14.4-2", "MQTT5-4.13.2-1")
def test_the_servers_disconnect(client, name):
    """The codec refuses reasons that do not exist; after it comes the end of the connection and nothing else."""
    c = client("c", **KEPT)
    c.send(Connect(client_id=name("c")), Pingreq(), Pingreq())
    last = c.expect_closed(0x82)
    assert isinstance(last, Disconnect)
    assert last.prop("session_expiry_interval") is None


def test_shutting_down_is_said(client, start_broker):
    broker = start_broker()
    c = client("c", where=broker)
    broker.terminate()
    assert isinstance(c.expect_closed(0x8B), Disconnect)


@pytest.mark.normative("MQTT5-3.14.0-1")
def test_no_disconnect_before_connack(open_client, name):
    c = open_client()
    c.send(Connect(client_id=name("c"), connect_flags=0x03))
    c.expect_refused()
    c = open_client()
    c.send(Connect(client_id=name("c"), properties={"raw": b"\x7f"}))
    c.expect_refused()
