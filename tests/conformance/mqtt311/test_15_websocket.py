"""MQTT over WebSocket, section 6."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kit.broker import Broker
from kit.client import Client
from kit.websocket import BINARY, CLOSE, CONTINUATION, PING, TEXT, Refused, WebSocket
from oracle.mqtt import V311, Connack, Connect, Pingreq, Pingresp, Publish, Suback, Subscribe, Will

ClientFactory = Callable[..., Client]


@pytest.fixture
def web(broker: Broker) -> Iterator[WebSocket]:
    opened = WebSocket.open(broker.websocket)
    yield opened
    opened.close()


@pytest.mark.normative("MQTT311-6.0.0-4")
@pytest.mark.parametrize("offered", ["mqtt", "mqttv3.1, mqtt", "mqtt,chat", "chat , mqtt"])
def test_the_subprotocol_is_mqtt(broker: Broker, offered: str) -> None:
    web = WebSocket.open(broker.websocket, subprotocol=offered)
    assert web.headers.get("sec-websocket-protocol") == "mqtt"
    c = Client(web, V311)
    c.connect()
    c.disconnect()


@pytest.mark.normative("MQTT311-6.0.0-3")
@pytest.mark.parametrize("offered", [None, "chat", "MQTTX"])
def test_what_was_not_offered_is_not_selected(broker: Broker, offered: str | None) -> None:
    """The server may refuse such a client, or serve it without a subprotocol."""
    try:
        web = WebSocket.open(broker.websocket, subprotocol=offered)
    except Refused as refused:
        assert refused.status == 0 or 400 <= refused.status < 500
    else:
        assert "sec-websocket-protocol" not in web.headers
        web.close()


@pytest.mark.normative("MQTT311-6.0.0-1")
def test_a_text_frame_closes(web: WebSocket) -> None:
    c = Client(web, V311)
    c.connect()
    web.frame(TEXT, Pingreq().encode(V311))
    c.expect_closed()


@pytest.mark.normative("MQTT311-6.0.0-1")
def test_answers_come_in_binary_frames(web: WebSocket, client: ClientFactory, topic: str) -> None:
    """`WebSocket.recv` takes no other data frame."""
    c = Client(web, V311)
    c.connect()
    c.subscribe(topic, qos=2)
    p = client("pub")
    for qos in (0, 1, 2):
        for size in (0, 100, 200, 70_000):
            p.publish(topic, b"x" * size, qos)
            c.receive(topic, b"x" * size, qos=qos)
    c.disconnect()


@pytest.mark.normative("MQTT311-6.0.0-2")
@pytest.mark.parametrize("size", [1, 3, 10])
def test_a_packet_may_span_frames(web: WebSocket, topic: str, size: int) -> None:
    c = Client(web, V311)
    script = b"".join(packet.encode(V311) for packet in (
        Connect(client_id=""), Subscribe(packet_id=1, filters=[(topic, 0)]),
        Publish(topic=topic, payload=b"x" * 300), Pingreq()))
    for start in range(0, len(script), size):
        web.frame(BINARY, script[start:start + size])
        if start % 50 == 0:
            web.frame(BINARY, b"")                          # an empty frame means nothing
    c.expect(Connack, reason=0)
    c.expect(Suback, packet_id=1)
    c.expect(Publish, payload=b"x" * 300)
    c.expect(Pingresp)


@pytest.mark.normative("MQTT311-6.0.0-2")
def test_a_packet_may_span_fragments_of_a_message(web: WebSocket) -> None:
    c = Client(web, V311)
    connect = Connect(client_id="").encode(V311)
    web.frame(BINARY, connect[:3], fin=False)
    web.frame(PING, b"between")
    web.frame(CONTINUATION, connect[3:7], fin=False)
    web.frame(CONTINUATION, connect[7:] + Pingreq().encode(V311)[:1], fin=True)
    web.frame(BINARY, Pingreq().encode(V311)[1:])
    c.expect(Connack, reason=0)
    c.expect(Pingresp)
    assert web.pongs == [b"between"]


@pytest.mark.normative("MQTT311-6.0.0-2")
def test_a_frame_may_hold_many_packets(web: WebSocket) -> None:
    c = Client(web, V311)
    c.send(Connect(client_id=""), *[Pingreq()] * 100)
    c.expect(Connack, reason=0)
    for _ in range(100):
        c.expect(Pingresp)


@pytest.mark.normative("MQTT311-3.1.2-8")
def test_closing_the_socket_is_no_disconnect(web: WebSocket, client: ClientFactory, topic: str) -> None:
    """A WebSocket's own farewell says nothing about MQTT: the will is published."""
    watcher = client("watcher")
    watcher.subscribe(topic)
    c = Client(web, V311)
    c.connect(will=Will(topic=topic, payload=b"gone"))
    web.frame(CLOSE, b"\x03\xe8")
    watcher.receive(topic, b"gone")
