"""Fixtures of the tests of queues over MQTT: a broker with queues of the test's own, and what clients of queues do."""
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from crash.process import CrashBroker
from kit.broker import Broker
from kit.brokers import Brokers
from kit.client import Client
from kit.three_nodes import ThreeNodes, declare_all
from oracle.mqtt import Puback, Publish

from fluxmq.app.admin_client import AdminClient


@pytest.fixture
def start_broker(brokers: Brokers, nodes: ThreeNodes | None) -> Callable[..., Broker]:
    """start_broker({"name": "orders"}, {"name": "events", "type": "stream"}, **{"storage.type": "memory"})"""
    def start(*queues: dict[str, Any], **settings: Any) -> Broker:
        if nodes is not None:
            return declare_all(brokers.use(nodes), queues, settings)
        return brokers.start(Broker, {"queues": json.dumps(list(queues))} | settings)

    return start


@pytest.fixture
def start_node(brokers: Brokers) -> Callable[..., CrashBroker]:
    """As start_broker, of a broker whose journal files are small and whose clock ticks often: retention, checkpoints
    and what becomes due happen within a moment."""
    def start(*queues: dict[str, Any], **settings: Any) -> CrashBroker:
        return brokers.start(CrashBroker, {"queues": json.dumps(list(queues))} | settings)

    return start


def consume(client: Client, queue: str, qos: int = 1, **asked: object) -> None:
    """SUBSCRIBE to `$queue/<queue>`; asked: user properties, `_` for `-`."""
    properties = [("user_property", (name.replace("_", "-"), str(value))) for name, value in asked.items()]
    client.subscribe(f"$queue/{queue}", qos=qos, properties=properties if client.version == 5 else ())


def put(client: Client, queue: str, *payloads: bytes, expect: int = 0, **asked: object) -> None:
    """Publish each with QoS 1 and wait for its PUBACK."""
    properties = [("user_property", (name.replace("_", "-"), str(value))) for name, value in asked.items()]
    for payload in payloads:
        client.publish(f"$queue/{queue}", payload, 1, properties=properties, expect=expect)


def users(packet: Publish) -> dict[str, str]:
    """The user properties of a delivery."""
    return dict(packet.props("user_property"))


def take(client: Client, *payloads: bytes) -> list[Publish]:
    """The next deliveries, which have these payloads; not acknowledged."""
    found = []
    for payload in payloads:
        found.append(client.expect(Publish, payload=payload))
    return found


def ack(client: Client, *packets: Publish, reason: int = 0) -> None:
    for packet in packets:
        assert packet.packet_id is not None
        client.send(Puback(packet_id=packet.packet_id, reason=reason))


def order(client: Client, verb: str, packet: Publish, expect: int = 0, **asked: object) -> None:
    """Publish `$ack`, `$nack`, … for a delivery."""
    told = users(packet)
    pairs = {"message-id": told["message-id"], "group-id": told.get("group-id", "")} | {
        name.replace("_", "-"): str(value) for name, value in asked.items()}
    client.publish(f"$queue/{told['queue']}/${verb}", b"", 1, expect=expect,
                   properties=[("user_property", pair) for pair in pairs.items()])


def admin(broker: Broker, method: str, *segments: str, **asked: Any) -> Any:
    """A request to the admin socket of a broker: admin(broker, "GET", "queues", "orders")."""
    if isinstance(broker, ThreeNodes):
        broker.arrive()
    client = AdminClient(broker.directory / "data" / "admin.sock")
    try:
        return client.ask(method, *segments, **asked)
    finally:
        client.close()


def lag(broker: Broker, queue: str, group: str = "default") -> int:
    """Messages that a group has not settled; all that are kept, where there is no such group."""
    found = admin(broker, "GET", "queues", queue)
    return next((one["lag"] for one in found["group_list"] if one["name"] == group), int(found["messages"]))
