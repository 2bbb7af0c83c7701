"""MQTT 5.0 sections 3.1.2.5 and 3.1.3.2: the Will Message."""

import pytest
from kit.client import KEPT
from oracle.mqtt import Connect, Disconnect, Publish, Will, options


def watcher_of(client, topic, **where):
    watcher = client("watcher", **where)
    watcher.subscribe((topic, options(2, retain_as_published=True)))
    return watcher


@pytest.mark.normative("MQTT5-3.1.2-7", "MQTT5-3.1.2-8", "MQTT5-3.1.2-14")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_when_the_connection_breaks(client, topic, qos):
    watcher = watcher_of(client, topic)
    client("c", will=Will(topic=topic, payload=b"will", qos=qos)).drop()
    watcher.receive(topic, b"will", qos=qos, retain=False)
    late = client("late")
    late.subscribe(topic)
    late.expect_quiet()                             # not retained
    watcher.expect_quiet()


@pytest.mark.normative("MQTT5-3.1.2-15")
def test_a_retained_will(client, topic):
    watcher = watcher_of(client, topic)
    client("c", will=Will(topic=topic, payload=b"will", qos=1, retain=True)).drop()
    watcher.receive(topic, b"will", retain=True)
    late = client("late")
    late.subscribe(topic, qos=1)
    late.receive(topic, b"will", qos=1, retain=True)


@pytest.mark.normative("MQTT5-3.1.2-15", "MQTT5-3.3.1-6")
def test_an_empty_retained_will_removes_the_retained_message(client, topic):
    client("pub").publish(topic, b"kept", qos=1, retain=True)
    watcher = client("watcher")
    watcher.subscribe(topic)
    watcher.receive(topic, b"kept")
    client("c", will=Will(topic=topic, payload=b"", retain=True)).drop()
    watcher.receive(topic, b"")
    late = client("late")
    late.subscribe(topic)
    late.expect_quiet()


@pytest.mark.normative("MQTT5-3.1.3-10", "MQTT5-3.3.2-17", "MQTT5-3.3.2-18")
def test_will_properties(client, topic):
    properties = [
        ("payload_format_indicator", 1), ("message_expiry_interval", 1000), ("content_type", "text/plain"),
        ("response_topic", "answers"), ("correlation_data", b"\x00\x01"),
        ("user_property", ("z", "1")), ("user_property", ("a", "2")), ("user_property", ("z", "1"))]
    watcher = watcher_of(client, topic)
    client("c", will=Will(topic=topic, payload=b"will", properties=[("will_delay_interval", 0), *properties])).drop()
    got = watcher.receive(topic, b"will", content_type="text/plain", response_topic="answers",
                          correlation_data=b"\x00\x01", payload_format_indicator=1)
    assert got.prop("message_expiry_interval") in (999, 1000)
    assert got.props("user_property") == [("z", "1"), ("a", "2"), ("z", "1")]
    assert got.prop("will_delay_interval") is None


@pytest.mark.normative("MQTT5-3.1.2-8", "MQTT5-3.1.2-10", "MQTT5-3.14.4-3")
def test_a_will_is_deleted_by_a_normal_disconnect(client, topic):
    watcher = watcher_of(client, topic)
    c = client("c", will=Will(topic=topic, payload=b"will"), **KEPT)
    c.disconnect()
    c = client("c", **KEPT)                         # without a will
    c.drop()
    watcher.expect_quiet()


@pytest.mark.normative("MQTT5-3.1.2-10")
def test_a_will_is_published_once(client, topic):
    watcher = watcher_of(client, topic)
    client("c", will=Will(topic=topic, payload=b"will"), **KEPT).drop()
    watcher.receive(topic, b"will")
    client("c", **KEPT).drop()
    client("c", **KEPT).drop()
    watcher.expect_quiet()


@pytest.mark.normative("MQTT5-3.1.2-8")
def test_disconnect_with_will(client, topic):
    watcher = watcher_of(client, topic)
    client("c", will=Will(topic=topic, payload=b"will")).disconnect(0x04)
    watcher.receive(topic, b"will")


@pytest.mark.normative("MQTT5-3.1.2-8")
def test_a_protocol_error_publishes_the_will(client, topic):
    watcher = watcher_of(client, topic)
    c = client("c", will=Will(topic=topic, payload=b"will"))
    c.send(b"\xc0\x01\x00")
    c.expect_closed()
    watcher.receive(topic, b"will")


@pytest.mark.normative("MQTT5-3.1.2-8", "MQTT5-3.1.2-22")
def test_the_end_of_the_keep_alive_publishes_the_will(client, topic):
    watcher = watcher_of(client, topic)
    c = client("c", keep_alive=1, will=Will(topic=topic, payload=b"will"))
    watcher.receive(topic, b"will")
    c.expect_closed()


@pytest.mark.normative("MQTT5-3.1.2-8", "MQTT5-3.1.4-3")
def test_a_takeover_publishes_the_will_without_delay(client, topic):
    watcher = watcher_of(client, topic)
    client("c", will=Will(topic=topic, payload=b"will of the first"), **KEPT)
    client("c", will=Will(topic=topic, payload=b"will of the second"), **KEPT)
    watcher.receive(topic, b"will of the first")
    watcher.expect_quiet()


# ── delay ────────────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.1.2-8", "MQTT5-3.1.2-7")
def test_a_delayed_will_comes_after_its_delay(client, topic):
    watcher = watcher_of(client, topic)
    client("c", will=Will(topic=topic, payload=b"will", properties={"will_delay_interval": 5}), **KEPT).drop()
    watcher.expect_nothing(0.5)
    watcher.receive(topic, b"will")


@pytest.mark.normative("MQTT5-3.1.3-9", "MQTT5-3.1.2-8")
def test_a_return_within_the_delay_stops_the_will(client, topic):
    watcher = watcher_of(client, topic)
    client("c", will=Will(topic=topic, payload=b"will", properties={"will_delay_interval": 2}), **KEPT).drop()
    client("c", **KEPT)
    watcher.expect_nothing(2.6)


@pytest.mark.normative("MQTT5-3.1.3-9")
def test_a_takeover_within_the_delay_stops_the_will(client, topic):
    watcher = watcher_of(client, topic)
    first = client("c", will=Will(topic=topic, payload=b"will", properties={"will_delay_interval": 2}), **KEPT)
    client("c", **KEPT)
    first.expect_closed(0x8E)
    watcher.expect_nothing(2.6)


@pytest.mark.normative("MQTT5-3.1.2-8", "MQTT5-4.1.0-2")
def test_a_delayed_will_comes_at_the_end_of_the_session(client, topic):
    watcher = watcher_of(client, topic)
    will = Will(topic=topic, payload=b"will", properties={"will_delay_interval": 600})
    client("expires", clean_start=False, will=will, properties={"session_expiry_interval": 1}).drop()
    watcher.receive(topic, b"will")
    client("ends", will=will).drop()                # no interval: the session ends with the connection
    watcher.receive(topic, b"will")


@pytest.mark.normative("MQTT5-3.1.2-8")
def test_a_clean_start_ends_the_session_and_so_the_delay(client, topic):
    watcher = watcher_of(client, topic)
    will = Will(topic=topic, payload=b"will", properties={"will_delay_interval": 600})
    client("c", will=will, **KEPT).drop()
    client("c", clean_start=True)
    watcher.receive(topic, b"will")


@pytest.mark.normative("MQTT5-3.1.2-8", "MQTT5-3.1.2-4")
def test_a_takeover_with_clean_start_publishes_the_will_in_spite_of_its_delay(client, topic):
    watcher = watcher_of(client, topic)
    will = Will(topic=topic, payload=b"will", properties={"will_delay_interval": 600})
    first = client("c", will=will, **KEPT)
    client("c", clean_start=True)
    first.expect_closed(0x8E)
    watcher.receive(topic, b"will")


def test_disconnect_with_will_keeps_the_delay(client, topic):
    watcher = watcher_of(client, topic)
    will = Will(topic=topic, payload=b"will", properties={"will_delay_interval": 5})
    client("c", will=will, **KEPT).disconnect(0x04)
    watcher.expect_nothing(0.5)
    watcher.receive(topic, b"will")


# ── what a will may be ───────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-4.7.0-1", "MQTT5-3.1.4-1", "MQTT5-4.7.3-1")
@pytest.mark.parametrize("wrong", ["a/+", "#", "", b"a\x00"])
def test_a_will_topic_is_a_topic_name(open_client, name, wrong):
    c = open_client()
    c.send(Connect(client_id=name("c"), will=Will(topic=wrong, payload=b"x")))
    c.expect_refused(0x81, 0x82, 0x90)


def test_an_empty_will_is_a_will(client, topic):
    watcher = watcher_of(client, topic)
    client("c", will=Will(topic=topic, payload=b"")).drop()
    watcher.receive(topic, b"")


@pytest.mark.normative("MQTT5-3.1.4-2")
def test_a_will_without_permission(client, open_client, guarded, name):
    """Refused in CONNECT, where the client can still be told, or silently not published."""
    c = open_client(guarded)
    c.send(Connect(client_id=name("c"), will=Will(topic="denied/will", payload=b"x")))
    packet = c.recv()
    if packet.reason:
        assert packet.reason in (0x87, 0x90)
        c.expect_closed()


def test_a_client_sees_its_own_will_in_its_session(client, topic):
    c = client("c", will=Will(topic=topic, payload=b"will", qos=1), **KEPT)
    c.subscribe(topic, qos=1)
    c.drop()
    client("c", **KEPT).receive(topic, b"will")


# ── the broker restarts ──────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.1.2-7", "MQTT5-3.1.2-8")
def test_a_will_whose_client_died_with_the_broker_is_published(client, start_broker, topic):
    """After the longer of its delay and 1.5 × its keep alive, unless the client returns before."""
    broker = start_broker()
    watcher = client("watcher", where=broker, **KEPT)
    watcher.subscribe(topic + "/#", qos=1)
    gone = client("gone", where=broker, keep_alive=2, will=Will(topic=f"{topic}/gone", payload=b"will", qos=1), **KEPT)
    gone.disconnect()                               # durable with the CONNACKs that follow, at the latest
    for role, properties in (("dies", {}), ("returns", {}), ("delayed", {"will_delay_interval": 5})):
        client(role, where=broker, keep_alive=10 if role == "returns" else 2, **KEPT,
               will=Will(topic=f"{topic}/{role}", payload=b"will", qos=1, retain=True, properties=properties))
    broker.kill()
    broker.start()
    client("returns", where=broker, **KEPT)
    watcher = client("watcher", where=broker, **KEPT)
    watcher.receive(topic + "/dies", b"will")
    watcher.receive(topic + "/delayed", b"will")
    watcher.expect_nothing(0.3)
    late = client("late", where=broker)
    late.subscribe(topic + "/dies")
    late.receive(topic + "/dies", b"will", retain=True)


@pytest.mark.normative("MQTT5-3.1.2-7", "MQTT5-3.1.2-8", "MQTT5-3.1.2-10")
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_delayed_will_survives_the_broker(client, start_broker, topic, how):
    broker = start_broker()
    watcher = client("watcher", where=broker, **KEPT)
    watcher.subscribe(topic, qos=1)
    watcher.disconnect()
    will = Will(topic=topic, payload=b"will", qos=1, properties=[
        ("will_delay_interval", 2), ("content_type", "t"),
        ("user_property", ("b", "1")), ("user_property", ("a", "1"))])
    client("c", where=broker, keep_alive=1, will=will, **KEPT).drop()
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    watcher = client("watcher", where=broker, **KEPT)
    got = watcher.receive(topic, b"will", content_type="t")
    assert got.props("user_property") == [("b", "1"), ("a", "1")]
    broker.restart()
    client("watcher", where=broker, **KEPT).expect_nothing(0.5)


def test_a_clean_shutdown_of_the_broker_is_a_broken_connection(client, start_broker, topic):
    broker = start_broker()
    watcher = client("watcher", where=broker, **KEPT)
    watcher.subscribe(topic, qos=1)
    watcher.disconnect()
    c = client("c", where=broker, keep_alive=3, will=Will(topic=topic, payload=b"will", qos=1))
    broker.terminate()
    assert isinstance(c.expect_closed(0x8B), Disconnect)
    broker.start()
    client("watcher", where=broker, **KEPT).expect(Publish, payload=b"will")
