"""MQTT 5.0 section 6: MQTT over WebSocket."""
import base64
import os
import socket
import time

import pytest
from kit.client import Client
from kit.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Refused, WebSocket
from oracle.mqtt import V5, Connack, Connect, Pingreq, Pingresp, Publish, Suback, Subscribe, Will, parse


@pytest.fixture
def open_ws(broker):
    opened = []

    def open_(where=None, **options):
        opened.append(WebSocket.open((where or broker).websocket, **options))
        return opened[-1]

    yield open_
    for ws in opened:
        ws.close()


@pytest.mark.normative("MQTT5-6.0.0-1", "MQTT5-6.0.0-4", "MQTT5-4.2.0-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_over_websocket(client, open_ws, topic, qos):
    ws = open_ws()
    assert ws.headers["sec-websocket-protocol"] == "mqtt"
    c, tcp = client("c", where=ws), client("tcp")
    c.subscribe(topic, qos=2)
    tcp.publish(topic, b"from TCP", qos=qos)
    c.receive(topic, b"from TCP", qos=qos)
    tcp.subscribe(topic, qos=2)
    c.publish(topic, b"from WebSocket", qos=qos)
    tcp.receive(topic, b"from WebSocket", qos=qos)
    c.receive(topic, b"from WebSocket", qos=qos)
    c.disconnect()


@pytest.mark.normative("MQTT5-6.0.0-4", "MQTT5-6.0.0-3")
@pytest.mark.parametrize("offered", ["mqtt", "mqttv3.1, mqtt", "mqtt, other", "other,mqtt"])
def test_the_subprotocol_is_selected_among_those_offered(open_ws, offered):
    assert open_ws(subprotocol=offered).headers["sec-websocket-protocol"] == "mqtt"


def test_the_name_of_former_clients_is_selected_where_nothing_else_is_offered(open_ws):
    """Libraries from before 3.1.1 had a name for the subprotocol offer it still."""
    ws = open_ws(subprotocol="mqttv3.1")
    assert ws.headers["sec-websocket-protocol"] == "mqttv3.1"
    Client(ws).connect()


@pytest.mark.normative("MQTT5-6.0.0-4", "MQTT5-6.0.0-3")
@pytest.mark.parametrize("offered", [None, "mqttv3", "other", "MQTTX"])
def test_without_the_subprotocol_there_is_no_connection_or_none_named(broker, offered):
    """The server may refuse; if it does not it must not name a subprotocol that was not offered."""
    try:
        ws = WebSocket.open(broker.websocket, subprotocol=offered)
    except Refused as refused:
        assert 400 <= refused.status < 500
    else:
        assert ws.headers.get("sec-websocket-protocol") is None
        ws.close()


@pytest.mark.normative("MQTT5-6.0.0-1")
@pytest.mark.parametrize("when", ["before CONNECT", "after CONNECT"])
def test_a_text_frame_closes_the_connection(client, open_ws, name, topic, when):
    watcher = client("watcher")
    watcher.subscribe(topic)
    ws = open_ws()
    c = Client(ws)
    if when == "after CONNECT":
        c.connect(name("c"), will=Will(topic=topic, payload=b"will"))
        ws.frame(TEXT, Pingreq().encode())
    else:
        ws.frame(TEXT, Connect(client_id=name("c")).encode())
    c.expect_closed()
    if when == "after CONNECT":
        watcher.receive(topic, b"will")


@pytest.mark.normative("MQTT5-6.0.0-2")
def test_many_packets_in_one_frame(open_ws, name, topic):
    ws = open_ws()
    c = Client(ws)
    ws.frame(BINARY, b"".join(p.encode() for p in (
        Connect(client_id=name("c")), Subscribe(packet_id=1, filters=[(topic, 0)]),
        Publish(topic=topic, payload=b"1"), Publish(topic=topic, payload=b"2"), Pingreq())))
    c.expect(Connack, reason=0)
    c.expect(Suback)
    c.expect(Publish, payload=b"1")
    c.expect(Publish, payload=b"2")
    c.expect(Pingresp)


def test_each_packet_comes_in_a_frame_of_its_own(client, open_ws, topic):
    """Our choice: paho.mqtt.c reads one packet of a frame and waits for the next frame, which may be seconds away."""
    ws = open_ws()
    c, pub = client("c", where=ws), client("pub")
    other = client("other")
    other.subscribe(topic)
    c.subscribe(topic)
    payloads = [b"%d" % number * size for number, size in enumerate((1, 1, 60, 200, 5000, 1, 70_000, 1, 3, 20_000, 2))]
    # To one subscriber of several, who take it as it came (QoS 0), and with PUBACKs between.
    pub.send(*(Publish(topic=topic, payload=payload) for payload in payloads * 2))
    pub.send(*(Publish(topic=topic, payload=payload, qos=1, packet_id=number)
               for number, payload in enumerate(payloads, 1)))
    c.send(*(Publish(topic=topic + "/own", qos=1, packet_id=number) for number in range(1, 20)), Pingreq())
    for _ in range(3 * len(payloads) + 19 + 1):
        c.recv()
    c.expect_quiet()
    assert len(ws.payloads) == 1 + 1 + 3 * len(payloads) + 19 + 1 + 1     # CONNACK, SUBACK, …, two PINGRESP
    for payload in ws.payloads:
        parsed = parse(payload, V5)
        assert parsed is not None, "a frame has a part of a packet"
        assert parsed[1] == b"", "a frame has more than one packet"


@pytest.mark.normative("MQTT5-6.0.0-2")
@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_a_packet_over_many_frames(open_ws, name, topic, size):
    ws = open_ws()
    c = Client(ws)
    wire = b"".join(p.encode() for p in (
        Connect(client_id=name("c")), Subscribe(packet_id=1, filters=[(topic, 0)]),
        Publish(topic=topic, payload=b"x" * 200), Pingreq()))
    for start in range(0, len(wire), size):
        ws.frame(BINARY, wire[start:start + size])
    c.expect(Connack, reason=0)
    c.expect(Suback)
    c.expect(Publish, payload=b"x" * 200)
    c.expect(Pingresp)


@pytest.mark.normative("MQTT5-6.0.0-2")
def test_a_message_over_many_fragments_with_control_frames_between(open_ws, name):
    ws = open_ws()
    c = Client(ws)
    wire = Connect(client_id=name("c")).encode() + Pingreq().encode()
    ws.frame(BINARY, wire[:3], fin=False)
    ws.frame(PING, b"are you there")
    ws.frame(CONTINUATION, wire[3:9], fin=False)
    ws.frame(PONG, b"unasked")
    ws.frame(CONTINUATION, b"", fin=False)
    ws.frame(CONTINUATION, wire[9:], fin=True)
    c.expect(Connack, reason=0)
    c.expect(Pingresp)
    assert ws.pongs == [b"are you there"]


@pytest.mark.normative("MQTT5-6.0.0-2")
def test_empty_frames_are_nothing(open_ws, name):
    ws = open_ws()
    c = Client(ws)
    ws.frame(BINARY, b"")
    c.connect(name("c"))
    ws.frame(BINARY, b"")
    c.expect_quiet()


@pytest.mark.parametrize("size", [125, 126, 127, 65_535, 65_536, 300_000])
def test_frames_of_all_three_length_forms(client, open_ws, topic, size):
    c = client("c", where=open_ws())
    c.subscribe(topic)
    payload = os.urandom(size - len(topic))
    c.publish(topic, payload)
    c.receive(topic, payload)


# ── RFC 6455's own rules ─────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("break_it", [
    {"opcode": BINARY, "payload": b"\xc0\x00", "masked": False},
    {"opcode": BINARY, "payload": b"\xc0\x00", "rsv": 4},
    {"opcode": 0x3, "payload": b"\xc0\x00"},
    {"opcode": 0xB, "payload": b""},
    {"opcode": CONTINUATION, "payload": b"\xc0\x00"},
    {"opcode": PING, "payload": b"x" * 126},
    {"opcode": PING, "payload": b"x", "fin": False},
    {"opcode": CLOSE, "payload": b"\x03"},
], ids=["unmasked", "reserved bit", "unknown opcode", "unknown control opcode", "continuation of nothing", "large ping",
        "fragmented ping", "close with half a code"])
def test_frames_against_the_rules_close_the_connection(client, open_ws, break_it):
    ws = open_ws()
    c = client("c", where=ws)
    ws.frame(**break_it)
    c.expect_closed()


def test_a_new_message_inside_a_fragmented_one_closes(client, open_ws):
    ws = open_ws()
    c = client("c", where=ws)
    ws.frame(BINARY, b"\xc0", fin=False)
    ws.frame(BINARY, b"\x00")
    c.expect_closed()


def test_a_close_frame_is_answered(client, open_ws, topic):
    watcher = client("watcher")
    watcher.subscribe(topic)
    ws = open_ws()
    c = client("c", where=ws, will=Will(topic=topic, payload=b"will"))
    ws.frame(CLOSE, b"\x03\xe8")
    assert c.expect_closed() is None
    assert ws.close_code in (1000, None)
    watcher.receive(topic, b"will")                 # no DISCONNECT came


@pytest.mark.parametrize(("headers", "path", "statuses"), [
    ({}, "/other", (404,)),
    ({"Sec-WebSocket-Version": "8"}, "/mqtt", (400, 426)),
    ({"Upgrade": "h2c"}, "/mqtt", (400, 426)),
    ({"Connection": "keep-alive"}, "/mqtt", (400, 426)),
    ({"Sec-WebSocket-Key": "short"}, "/mqtt", (400,)),
    ({"Sec-WebSocket-Key": "dGhl\u00e9IHNhbXBsZSBub25jZQ=="}, "/mqtt", (400,)),
])
def test_handshakes_that_are_refused(broker, headers, path, statuses):
    with pytest.raises(Refused) as refused:
        WebSocket.open(broker.websocket, path, headers=headers)
    assert refused.value.status in statuses


def test_origins(client, open_ws, start_broker):
    broker = start_broker({"server.mqtt.websocket.plain.allowed_origins": '["https://good.example"]'})
    client("c", where=open_ws(broker, headers={"Origin": "https://good.example"})).expect_quiet()
    client("d", where=open_ws(broker)).expect_quiet()               # no browser
    with pytest.raises(Refused) as refused:
        open_ws(broker, headers={"Origin": "https://evil.example"})
    assert refused.value.status == 403


def test_bytes_that_are_no_http(broker):
    with socket.create_connection(broker.websocket, 10) as raw:
        raw.sendall(Connect(client_id="x").encode() + b"\r\n\r\n")
        assert raw.recv(4096)[:8] in (b"", b"HTTP/1.1")


def test_a_handshake_one_byte_at_a_time(broker, name):
    key = base64.b64encode(os.urandom(16)).decode()
    head = (f"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n")
    with socket.create_connection(broker.websocket, 10) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in head.encode():
            raw.sendall(bytes([byte]))
            time.sleep(0)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += raw.recv(4096)
        ws = WebSocket(raw, {}, answer.partition(b"\r\n\r\n")[2])
        c = Client(ws)
        c.connect(name("c"))
        c.expect_quiet()


def test_frames_right_behind_the_handshake(broker, name):
    """A client need not wait for the answer before it sends."""
    key = base64.b64encode(os.urandom(16)).decode()
    head = (f"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n")
    connect = Connect(client_id=name("c")).encode()
    frame = bytes([0x82, 0x80 | len(connect)]) + b"\0\0\0\0" + connect
    with socket.create_connection(broker.websocket, 10) as raw:
        raw.sendall(head.encode() + frame)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += raw.recv(4096)
        c = Client(WebSocket(raw, {}, answer.partition(b"\r\n\r\n")[2]))
        c.expect(Connack, reason=0)
