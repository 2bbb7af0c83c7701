"""What a namespace may have, in both protocols: beyond it the next is refused or held back; others notice nothing."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.test_namespaces import enter, open_vhost
from kit.amqp_wire import Wire
from kit.client import KEPT, Client
from kit.node import Node
from oracle.mqtt import Connack, Connect, Publish

from fluxmq.app.server import Server

Start = Callable[..., Node]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Node] = []

    def start(settings: dict[str, object] | None = None, **limits: object) -> Node:
        spec = [{"name": "shop", "limits": limits}, {"name": "plant"}]
        nodes.append(Node(tmp_path / f"n{len(nodes)}", {
            "namespaces": json.dumps(spec), "server.amqp091.plain.addr": "127.0.0.1:0"} | (settings or {})))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


def about(node: Node, name: str = "shop") -> dict[str, Any]:
    return node.call(lambda server: namespaces_of(server).describe(name))


def namespaces_of(server: Server) -> Any:
    return server.namespace_admin(())


def client(node: Node, client_id: str, namespace: str = "shop", **options: Any) -> Client:
    made = Client(node.address)
    made.connect(client_id, username=f"{namespace}:u", **options)
    return made


def test_connections(start: Start) -> None:
    node = start(connections=2)
    first = client(node, "a", **KEPT)
    amqp = Wire(node.listens("amqp091.plain")).login("shop")
    assert enter(node, "shop:u", client_id="b") == 0x97 and enter(node, "shop:u", client_id="b", version=4) == 3
    assert open_vhost(node, "shop") == 530 and about(node)["refused"]["connections"] == 3
    taken = client(node, "a", **KEPT)  # in its own place
    first.expect_closed(0x8E)
    assert enter(node, "plant:u", client_id="b") == 0 and open_vhost(node, "plant") == 0
    amqp.close()
    assert about(node)["connections"] == 1 and open_vhost(node, "shop") == 0
    taken.disconnect()


def test_sessions(start: Start) -> None:
    node = start(sessions=2)
    client(node, "a", **KEPT).disconnect()
    kept = client(node, "b", **KEPT)
    assert enter(node, "shop:u", client_id="c") == 0x97 and enter(node, "plant:u", client_id="c") == 0
    client(node, "a", **KEPT).disconnect()  # it has one
    refused = Client(node.address)
    refused.send(Connect(client_id="c", username="shop:u"))
    assert "limits.sessions" in str(refused.expect(Connack).prop("reason_string"))
    kept.disconnect(properties={"session_expiry_interval": 0})
    assert enter(node, "shop:u", client_id="c") == 0


def test_queues(start: Start) -> None:
    node = start({"queue_manager.auto_create": "classic"}, queues=2)
    amqp = Wire(node.listens("amqp091.plain")).login("shop")
    amqp.open_channel()
    amqp.call(1, "queue.declare", queue="one", durable=True)
    mqtt = client(node, "a")
    mqtt.publish("$queue/two", b"x", 1)
    amqp.send(1, "queue.declare", queue="three", durable=True)
    found = amqp.expect(1, "channel.close")
    assert (found["reply_code"], found["reply_text"]) == (
        406, "PRECONDITION_FAILED - cannot declare queue 'three': queue limit in vhost 'shop' (2) is reached")
    mqtt.publish("$queue/three", b"x", 1, expect=0x90)
    mqtt.subscribe("$queue/three", qos=1, expect=[0x97])
    mqtt.subscribe("$queue/two", qos=1)
    client(node, "a", "plant").publish("$queue/three", b"x", 1)
    assert about(node)["queues"] == 2 and about(node)["refused"]["queues"] >= 2


def test_dead_letters_are_not_lost_for_want_of_a_queue(start: Start) -> None:
    node = start({"queues": json.dumps([{"name": "q", "namespace": "shop"}])}, queues=1)
    mqtt = client(node, "a")
    mqtt.subscribe("$queue/q", qos=1)
    mqtt.publish("$queue/q", b"x", 1)
    found = mqtt.expect(Publish)
    [message_id] = [value for name, value in found.properties if name == "user_property" and value[0] == "message-id"]
    mqtt.publish("$queue/q/$reject", b"", 1, properties=[("user_property", message_id)])
    assert about(node)["queues"] == 2
    mqtt.subscribe("$queue/q.dlq", qos=1)
    assert mqtt.receive().payload == b"x"


def test_bytes(start: Start) -> None:
    node = start({"queue_manager.auto_create": "classic"}, bytes="64KiB")
    mqtt = client(node, "a")
    mqtt.publish("r/1", bytes(30_000), 1, retain=True)
    mqtt.publish("$queue/q", bytes(20_000), 1)
    held = about(node)["bytes"]
    assert 50_000 < held < 52_000
    mqtt.publish("r/2", bytes(20_000), 1, retain=True, expect=0x97)
    mqtt.publish("$queue/q", bytes(20_000), 1, expect=0x97)
    mqtt.publish("r/1", bytes(31_000), 1, retain=True)  # in the place of the former
    mqtt.publish("r/2", bytes(100_000), 1)  # not kept
    assert about(node)["refused"]["bytes"] == 2
    other = client(node, "a", "plant")
    other.publish("r/1", bytes(100_000), 1, retain=True)
    mqtt.publish("r/1", b"", 1, retain=True)
    mqtt.publish("$queue/q", bytes(20_000), 1)
    mqtt.subscribe("$queue/q", qos=1)
    for _ in range(2):
        mqtt.receive()
    mqtt.expect_quiet()
    node.call(lambda server: server.queues.clock.tick())
    mqtt.publish("$queue/q", bytes(50_000), 1)  # what was settled makes room


@pytest.mark.parametrize("policy", ["evict", "reject"])
def test_bytes_of_sessions(start: Start, policy: str) -> None:
    node = start({"session.offline_queue_policy": policy}, bytes="64KiB")
    for name in ("a", "b"):
        mqtt = client(node, name, **KEPT)
        mqtt.subscribe(f"of/{name}", qos=1)
        mqtt.disconnect()
    publisher = client(node, "p")
    for number in range(5):
        publisher.publish("of/a", bytes([number]) * 20_000, 1)
    assert 60_000 < about(node)["bytes"] <= 64 << 10
    publisher.publish("of/b", bytes(20_000), 1)  # no message of its own gives way to it
    assert client(node, "b", **KEPT).expect_quiet() is None
    back = client(node, "a", **KEPT)
    wanted = [2, 3, 4] if policy == "evict" else [0, 1, 2]
    assert [back.receive().payload[0] for _ in wanted] == wanted
    back.expect_quiet()
    assert about(node)["bytes"] == 0


def test_bytes_after_a_restart(tmp_path: Path) -> None:
    settings: dict[str, object] = {"namespaces": "[shop]", "queue_manager.auto_create": "classic"}
    seen = []
    for turn in range(3):
        node = Node(tmp_path, settings)
        try:
            if turn == 0:
                kept = client(node, "k", **KEPT)
                kept.subscribe("t", qos=1)
                kept.disconnect()
                mqtt = client(node, "a")
                for topic in ("r", "$queue/q", "t"):
                    mqtt.publish(topic, bytes(10_000), 1, retain=topic == "r")
                mqtt.disconnect()
            seen.append(about(node)["bytes"])
        finally:
            node.stop()
    assert seen[0] > 30_000 and seen == [seen[0]] * 3


def test_messages_per_second(start: Start) -> None:
    node = start(messages_per_second=40)
    seen = client(node, "s")
    seen.subscribe("#")
    publisher = client(node, "p")
    publisher.send(*(Publish(topic="t", payload=b"%d" % number) for number in range(60)))
    other = client(node, "p", "plant")
    other.subscribe("x")
    other.send(*(Publish(topic="x", payload=b"%d" % number) for number in range(500)))
    for number in range(500):
        other.expect(Publish, payload=b"%d" % number)
    for number in range(60):  # held back, and not one of them lost
        seen.expect(Publish, payload=b"%d" % number)
    assert about(node)["refused"]["messages_per_second"] > 0
    assert about(node, "plant")["refused"]["messages_per_second"] == 0


def test_messages_per_second_of_amqp(start: Start) -> None:
    """Each is confirmed, late; a consumer on a connection of its own goes on."""
    node = start(messages_per_second=40)
    wire = Wire(node.listens("amqp091.plain")).login(vhost="shop")
    wire.open_channel()
    wire.call(1, "queue.declare", queue="q")
    wire.call(1, "confirm.select")
    reader = Wire(node.listens("amqp091.plain")).login(vhost="shop")
    reader.open_channel()
    reader.call(1, "basic.consume", queue="q", no_ack=True)
    for number in range(50):
        wire.publish(1, "", "q", b"%d" % number)
    found = [reader.expect_content(1).body for _ in range(50)]
    assert found == [b"%d" % number for number in range(50)]
    confirmed = 0
    while confirmed < 50:
        name, arguments = wire.next(1)
        assert name == "basic.ack"
        confirmed = arguments["delivery_tag"]  # type: ignore[index]
    assert about(node)["refused"]["messages_per_second"] > 0
    wire.close()
    reader.close()
