"""MQTT clients and messages of AMQP 0-9-1: over real connections, in a broker in this process, since what AMQP clients
do is done here by hand (amqp091_bridge, Queue.append_message)."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker
from kit.client import Client
from kit.node import Node
from oracle.amqp_mqtt import encode_amqp
from oracle.mqtt import Publish
from queues.conftest import consume, order, users

from fluxmq._core.amqp091.topics import address_of
from fluxmq._core.hub.amqp091_bridge import publish_amqp
from fluxmq.app.admin_client import AdminClient
from fluxmq.engine.queues.admin import QueueAdmin

AMQP = 1
RAW = encode_amqp({
    "content_type": b"application/json", "headers": [(b"shop", "S", b"7"), (b"count", "I", 5)], "delivery_mode": 2,
    "correlation_id": b"c-1", "reply_to": b"replies", "type": b"order", "timestamp": 1_700_000_000})
TOLD = [("amqp-timestamp", "1700000000"), ("amqp-type", "order"), ("shop", "7"), ("count", "5"),
        ("amqp-is:count", "I")]

Connect = Callable[..., Client]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path, {"server.admin_socket": tmp_path / "s"})
    try:
        for spec in ({"name": "q"}, {"name": "s", "type": "stream"}):
            one.call(lambda server, spec=spec: QueueAdmin(server.queues.manager).declare(spec))  # type: ignore[misc]
        yield one
    finally:
        one.stop()


def put(node: Node, queue: str, exchange: bytes, key: bytes, payload: bytes = b"x", properties: bytes = RAW) -> None:
    def append(server: Any) -> int:
        found = server.queues.manager.queues[b"/", queue.encode()].queue
        return int(found.append_message(address_of(exchange, key), payload, properties=properties, format=AMQP))

    assert node.call(append) == 0


def publish(node: Node, key: bytes, payload: bytes, properties: bytes = b"") -> tuple[int, int]:
    return node.call(lambda server: publish_amqp(server.hub, b"amq.topic", key, payload, properties))


def bind(node: Node, queue: str, key: bytes) -> None:
    node.call(lambda server: server.hub.targets.bind_queue(
        server.queues.manager.queues[b"/", queue.encode()].queue, key))


def published(packet: Publish) -> list[tuple[str, str]]:
    """The publisher's user properties: what the queue tells stands behind them."""
    names = [name for name, _ in packet.props("user_property")]
    return list(packet.props("user_property"))[:names.index("queue")]


def test_a_consumer_of_mqtt_5_gets_everything(node: Node, connect: Connect) -> None:
    client = connect(node)
    consume(client, "q")
    put(node, "q", b"orders", b"eu.west")
    packet = client.receive("$queue/q/eu/west", b"x")
    assert (packet.prop("content_type"), packet.prop("correlation_data"), packet.prop("response_topic")) == (
        "application/json", b"c-1", "$queue/replies")
    assert published(packet) == [("amqp-exchange", "orders"), *TOLD]
    assert users(packet)["x-source-topic"] == "eu/west"
    client.expect_quiet()


@pytest.mark.parametrize(("exchange", "key", "topic"), [
    (b"", b"q", "$queue/q"), (b"", b"other", "$queue/q/$queue/other"), (b"amq.topic", b"a.b/c", "$queue/q/a/b.c"),
    (b"orders", b"a+b", "$queue/q"), (b"orders", b"", "$queue/q")])
@pytest.mark.parametrize("version", [4, 5])
def test_the_topic_is_the_routing_key_below_the_queue(node: Node, connect: Connect, version: int, exchange: bytes,
                                                      key: bytes, topic: str) -> None:
    put(node, "q", exchange, key)
    client = connect(node, version=version)
    consume(client, "q")
    packet = client.receive(topic, b"x")
    if version == 5 and exchange == b"orders":
        assert published(packet)[:2] == [("amqp-exchange", "orders"), ("amqp-routing-key", key.decode())]


def test_consumers_of_routing_keys_and_readers_of_streams(node: Node, connect: Connect) -> None:
    for key in (b"eu.west", b"us.west", b"eu.east"):
        put(node, "s", b"orders", key, key)
    everybody, europe = connect(node), connect(node)
    consume(everybody, "s", offset="first", qos=0)
    assert [everybody.receive().payload for _ in range(3)] == [b"eu.west", b"us.west", b"eu.east"]
    consume(europe, "s/eu/#", offset="first")
    for payload in (b"eu.west", b"eu.east"):
        packet = europe.receive(payload=payload)
        assert published(packet) == [("amqp-exchange", "orders"), *TOLD]
    europe.expect_quiet()


def test_amq_topic_reaches_subscribers_and_back(node: Node, connect: Connect) -> None:
    client, share = connect(node), connect(node, version=4)
    client.subscribe("sensors/+/temp", qos=1)
    share.subscribe("$share/g/sensors/#", qos=1)
    bind(node, "q", b"sensors.#.temp")
    assert publish(node, b"sensors.7.temp", b"21", RAW) == (3, 0)
    packet = client.receive("sensors/7/temp", b"21", qos=1)
    assert list(packet.props("user_property")) == TOLD
    assert share.receive("sensors/7/temp", b"21").qos == 1
    client.publish("sensors/8/temp", b"22", 1, expect=0)
    client.publish("sensors/8/other", b"23", 1, expect=0)
    consumer = connect(node)
    consume(consumer, "q")
    assert [consumer.receive().payload for _ in range(2)] == [b"21", b"22"]
    consumer.expect_quiet()


def test_a_durable_session_that_is_away_has_the_translation(node: Node, connect: Connect) -> None:
    kept: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 120}}
    client = connect(node, "away", **kept)
    client.subscribe("a/#", qos=1)
    client.disconnect()
    publish(node, b"a.b", b"x" * 10_000, RAW)
    packet = connect(node, "away", **kept).receive("a/b", b"x" * 10_000)
    assert list(packet.props("user_property")) == TOLD


def test_a_message_that_a_header_retains(node: Node, connect: Connect) -> None:
    publish(node, b"a.b", b"kept", encode_amqp({"headers": [(b"x-mqtt-retain", "t", 1)]}))
    publish(node, b"a.c", b"not kept", RAW)
    client = connect(node)
    client.subscribe("a/#")
    assert client.receive("a/b", b"kept").retain
    client.expect_quiet()


def test_a_binding_makes_publishers_wait_for_the_disk_and_outlives_what_is_full(node: Node, connect: Connect) -> None:
    """QoS 1 is acknowledged although the queue takes no more."""
    node.call(lambda server: QueueAdmin(server.queues.manager).declare(
        {"name": "full", "overflow": "reject-publish", "limits": {"max_depth": 1}}))
    bind(node, "full", b"a.*")
    client = connect(node)
    records = node.call(lambda server: server.hub.ledger.records)
    client.publish("a/b", b"1", 1, expect=0)
    assert node.call(lambda server: server.hub.ledger.records) == records + 1
    client.publish("a/b", b"2", 1, expect=0)
    assert node.call(lambda server: server.queues.manager.queues[b"/", b"full"].queue.depth) == 1


def test_an_operator_sees_it_as_amqp_does_alive_and_dead(node: Node, connect: Connect, tmp_path: Path) -> None:
    put(node, "q", b"orders", b"eu.west", b"poison")
    admin = AdminClient(tmp_path / "s")
    try:
        message, = admin.ask("GET", "queues", "q", "messages", query={"from": "first"})["messages"]
        client = connect(node)
        consume(client, "q", ack="manual")
        order(client, "reject", client.receive())
        dead, = admin.ask("GET", "queues", "q", "dlq")["messages"]
    finally:
        admin.close()
    for one in (message, dead):
        assert (one["properties"]["exchange"], one["properties"]["routing-key"]) == ("orders", "eu.west")
        assert one["properties"]["timestamp"] == 1_700_000_000
        assert one["user_properties"][:2] == [["shop", "7"], ["count", "5"]]
    assert dict(dead["user_properties"])["x-death-queue"] == "q"
    consume(client, "q.dlq")
    told = users(client.receive("$queue/q.dlq/eu/west", b"poison"))
    assert (told["amqp-exchange"], told["x-death-queue"], told["x-death-topic"]) == ("orders", "q", "eu/west")


@pytest.mark.parametrize("name", ["amqp091-guest", "amqp:container"])
def test_names_of_amqp_connections_are_not_for_mqtt_clients(node: Node, name: str) -> None:
    for version, reason in ((5, 0x85), (4, 2)):
        client = Client(node.address, version)
        client.connect(name, expect=reason)
        client.expect_closed()
        client.close()


def test_names_that_look_alike_are_for_all(node: Node, connect: Connect) -> None:
    for name in ("amqp", "amqp091", "xamqp091-", "AMQP:x"):
        connect(node, name)


def test_what_queues_held_is_there_after_a_restart(tmp_path: Path, connect: Connect) -> None:
    first = Node(tmp_path)
    try:
        first.call(lambda server: QueueAdmin(server.queues.manager).declare({"name": "q"}))
        put(first, "q", b"orders", b"eu.west")
        client = connect(first)
        client.subscribe("nothing")  # a turn of the loop
    finally:
        first.stop()
    again = Broker(tmp_path / "b", {"storage.dir": str(tmp_path / "data")}).start()
    try:
        client = connect(again)
        consume(client, "q")
        assert published(client.receive("$queue/q/eu/west", b"x")) == [("amqp-exchange", "orders"), *TOLD]
    finally:
        again.stop()
