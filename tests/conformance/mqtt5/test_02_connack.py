"""MQTT 5.0 section 3.2: CONNACK."""
import pytest
from kit.client import KEPT
from oracle.mqtt import Auth, Connack, Connect, Disconnect, Pingreq, Pingresp, Publish, Will


@pytest.mark.normative("MQTT5-3.2.0-1", "MQTT5-3.2.2-1", "MQTT5-3.2.2-8")
def test_the_first_bytes_from_the_server_are_a_connack(open_client, name):
    c = open_client()
    c.send(Connect(client_id=name("c")))
    answer = c.expect(Connack)                     # the codec refuses reserved bits and unknown codes
    wire = answer.encode()
    assert wire[0] == 0x20
    assert wire[2:4] == b"\x00\x00"


@pytest.mark.normative("MQTT5-3.2.0-1")
def test_queued_messages_come_after_the_connack(client, topic):
    c = client("c", **KEPT)
    c.subscribe(topic, qos=1)
    c.disconnect()
    client("pub").publish(topic, b"queued", qos=1)
    c = client("c", **KEPT)                         # expects the CONNACK first
    c.receive(topic, b"queued")


@pytest.mark.normative("MQTT5-3.2.0-2")
def test_there_is_one_connack(client, topic):
    c = client()
    c.subscribe(topic)
    c.publish(topic, b"x", qos=1)
    c.receive(topic)
    c.expect_quiet()
    c.expect_nothing()


@pytest.mark.normative("MQTT5-3.2.2-2")
def test_clean_start_means_no_session(client):
    client("c", **KEPT).disconnect()
    assert client("c", clean_start=True).connack.session_present is False


@pytest.mark.normative("MQTT5-3.2.2-3")
def test_session_present_tells_whether_there_is_a_session(client):
    assert client("c", **KEPT).connack.session_present is False
    assert client("c", **KEPT).connack.session_present is True


@pytest.mark.normative("MQTT5-3.2.2-6", "MQTT5-3.2.2-7", "MQTT5-3.2.2-8", "MQTT5-3.1.4-2", "MQTT5-4.13.2-1")
def test_a_refusal_has_no_session_and_closes(client, open_client, guarded, name):
    client("c", where=guarded, **KEPT).disconnect()
    c = open_client(guarded)
    c.connect(name("c"), username="anna", password=b"wrong", **KEPT, expect=0x86)      # refuses session_present=1
    assert c.connack.session_present is False
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT5-3.2.2-16")
def test_an_assigned_client_identifier_is_new(client):
    assigned = {client("", client_id="").connack.prop("assigned_client_identifier") for _ in range(20)}
    assert len(assigned) == 20
    assert "" not in assigned


@pytest.mark.normative("MQTT5-3.1.3-7")
def test_a_client_id_of_its_own_is_not_assigned(client):
    assert client().connack.prop("assigned_client_identifier") is None


def test_what_is_available(client):
    """Absent means available (3.2.2.3): all of MQTT is."""
    connack = client().connack
    for feature in ("retain_available", "wildcard_subscription_available", "subscription_identifier_available",
                    "shared_subscription_available"):
        assert connack.prop(feature, 1) == 1
    assert connack.prop("maximum_qos") is None      # 2 must not be written
    assert connack.prop("receive_maximum", 65535) > 0
    assert connack.prop("maximum_packet_size", 1) > 0


# ── QoS and retain that the server does not serve ────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.2.2-9", "MQTT5-3.2.2-10", "MQTT5-3.2.2-12")
def test_a_server_without_qos_2(client, open_client, start_broker, name, topic):
    small = start_broker({"broker.max_qos": 1})
    c = client("c", where=small)
    assert c.connack.prop("maximum_qos") == 1
    c.subscribe(topic, qos=2, expect=[1])
    c.publish(topic, b"x", qos=1)
    c.receive(topic, b"x", qos=1)
    refused = open_client(small)
    refused.send(Connect(client_id=name("will"), will=Will(topic=topic, payload=b"no", qos=2)))
    refused.expect_refused(0x9B)
    client("will", where=small, will=Will(topic=topic, payload=b"yes", qos=1)).drop()
    c.receive(topic, b"yes", qos=1)
    c.send(Publish(topic=topic, payload=b"x", qos=2, packet_id=9))
    c.expect_closed(0x9B)


@pytest.mark.normative("MQTT5-3.2.2-9", "MQTT5-3.2.2-10", "MQTT5-3.2.2-12")
def test_a_server_with_qos_0_only(client, open_client, start_broker, name, topic):
    small = start_broker({"broker.max_qos": 0})
    c = client("c", where=small)
    assert c.connack.prop("maximum_qos") == 0
    c.subscribe((topic, 0), (topic + "/1", 1), (topic + "/2", 2), expect=[0, 0, 0])
    c.publish(topic, b"x")
    c.receive(topic, b"x", qos=0)
    refused = open_client(small)
    refused.send(Connect(client_id=name("will"), will=Will(topic=topic, qos=1)))
    refused.expect_refused(0x9B)


@pytest.mark.normative("MQTT5-3.2.2-13")
def test_a_server_without_retained_messages(client, open_client, start_broker, name, topic):
    """Sections 3.2.2.3.5 and 3.3.1.3: who asks for RETAIN all the same is refused."""
    without = start_broker({"broker.max_retained_messages": 0})
    watcher = client("watcher", where=without)
    assert watcher.connack.prop("retain_available") == 0
    watcher.subscribe("#")
    refused = open_client(without)
    refused.send(Connect(client_id=name("will"), will=Will(topic=topic, payload=b"kept", retain=True)))
    refused.expect_refused(0x9A)
    for qos in (0, 1, 2):
        c = client(f"c{qos}", where=without)
        c.send(Publish(topic=topic, payload=b"kept", qos=qos, packet_id=qos, retain=True))
        c.expect_closed(0x9A)
    watcher.expect_quiet()


def test_retained_messages_are_served_so_a_retained_will_is_accepted(client, topic):
    c = client("c", will=Will(topic=topic, payload=b"kept", retain=True))
    assert c.connack.prop("retain_available", 1) == 1
    c.drop()
    late = client("late")
    late.subscribe(topic)
    late.receive(topic, b"kept", retain=True)


# ── properties ───────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.1.2-22", "MQTT5-3.2.2-22")
def test_server_keep_alive(client, start_broker):
    strict = start_broker({"broker.server_keep_alive_max": "2s"})
    for asked, told in ((60, 2), (0, 2), (3, 2), (2, None), (1, None)):
        assert client(f"c{asked}", where=strict, keep_alive=asked).connack.prop("server_keep_alive") == told, asked
    silent = client("silent", where=strict, keep_alive=600)
    assert isinstance(silent.expect_closed(0x8D), Disconnect)       # 3 seconds: the server's value holds


@pytest.mark.normative("MQTT5-3.2.2-22")
def test_without_server_keep_alive_the_clients_value_holds(client):
    c = client("c", keep_alive=1)
    assert c.connack.prop("server_keep_alive") is None
    c.expect_closed(0x8D)


@pytest.mark.normative("MQTT5-3.1.2-28")
def test_response_information(client, start_broker):
    told = start_broker({"broker.response_information": "answers/here"})
    asks, declines = {"request_response_information": 1}, {"request_response_information": 0}
    assert client("asks", where=told, properties=asks).connack.prop("response_information") == "answers/here"
    assert client("declines", where=told, properties=declines).connack.prop("response_information") is None
    assert client("silent", where=told).connack.prop("response_information") is None


@pytest.mark.normative("MQTT5-3.1.2-28")
@pytest.mark.parametrize("properties", [{}, {"request_response_information": 0}, {"request_response_information": 1}])
def test_no_response_information_unless_configured(client, properties):
    assert client("c", properties=properties).connack.prop("response_information") is None


@pytest.mark.normative("MQTT5-3.2.2-19", "MQTT5-3.2.2-20", "MQTT5-3.1.2-24")
@pytest.mark.parametrize("size", [20, 30, 40, 60, 100])
def test_a_connack_does_not_exceed_the_maximum_packet_size(open_client, guarded, name, size):
    c = open_client(guarded)
    c.send(Connect(client_id=name("c"), username="anna", password=b"wrong",
                   properties={"maximum_packet_size": size}))
    last = c.expect_closed()
    assert last is None or len(last.encode()) <= size
    c = open_client(guarded)
    c.send(Connect(client_id=name("c"), properties={"maximum_packet_size": size}))
    assert len(c.recv().encode()) <= size


def test_session_expiry_interval_is_told_only_when_it_differs(client):
    assert client("c", **KEPT).connack.prop("session_expiry_interval", 120) == 120


def test_session_expiry_interval_is_capped(client, start_broker):
    capped = start_broker({"session.max_expiry_interval": "30s"})
    for asked in (31, 0xFFFFFFFF):
        connack = client("c", where=capped, properties={"session_expiry_interval": asked}).connack
        assert connack.prop("session_expiry_interval") == 30
    assert client("c", where=capped, properties={"session_expiry_interval": 30}).connack.prop(
        "session_expiry_interval", 30) == 30


@pytest.mark.normative("MQTT5-4.12.0-6")
def test_no_authentication_method_unless_asked(client):
    c = client("c", username="u", password=b"p")
    assert c.connack.prop("authentication_method") is None
    assert c.connack.prop("authentication_data") is None


@pytest.mark.normative("MQTT5-3.2.0-1")
def test_a_refused_client_hears_only_a_connack(open_client, name):
    c = open_client()
    c.send_to_the_end(Connect(client_id=name("c"), properties={"authentication_method": "NONE-SUCH"}), Pingreq())
    c.expect_refused(0x8C, 0x87)
    assert not any(kind.__name__ in line for line in c.transcript for kind in (Pingresp, Auth) if line.startswith("←"))
