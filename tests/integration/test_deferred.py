"""Clients of a node of a cluster who change definitions: what they send waits until all nodes know, what they send
behind it too, and nobody else. What all nodes know is what the test says."""
from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Refused, Wire
from kit.definer import FakeDefiner
from kit.nodes import Nodes
from kit.world import World
from oracle.mqtt import Puback, Publish, Suback, Subscribe

from fluxmq.app.admin_client import AdminClient, AdminError
from fluxmq.engine.ports.queues import QueueRefused

NO_QUORUM = QueueRefused("unavailable", "queue q cannot be changed: etcd has no quorum")
Change = Callable[[Wire], dict[str, Any]]


class SharedWorld(World):
    def __init__(self, directory: Path) -> None:
        nodes, self.definer = Nodes(), FakeDefiner()
        nodes.directory.definer = self.definer
        super().__init__(directory, {"queue_manager.auto_create": "classic"}, cluster=nodes.cluster)
        self.node.call(lambda server: self.definer.learn(server.queues.manager, server.amqp091.exchanges))
        self.admin = AdminClient(directory / "s")

    def awaited(self) -> int:
        return self.node.call(lambda server: server.hub.awaited)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SharedWorld]:
    one = SharedWorld(tmp_path)
    yield one
    one.stop()


def test_a_declaration_waits_and_what_is_behind_it(world: SharedWorld) -> None:
    wire, bystander = world.amqp(), world.amqp()
    world.definer.hold()
    wire.send(1, "queue.declare", queue="q", durable=True)
    wire.send(1, "queue.bind", queue="q", exchange="amq.direct", routing_key="k")
    wire.publish(1, "amq.direct", "k", b"body")
    wire.send(1, "basic.get", queue="q", no_ack=True)
    world.definer.wait_held()
    bystander.call(1, "basic.qos", prefetch_count=1)
    assert world.awaited() == 1 and world.node.call(lambda server: not server.queues.manager.queues)
    world.definer.release()
    assert wire.expect(1, "queue.declare-ok")["queue"] == "q"
    wire.expect(1, "queue.bind-ok")
    assert wire.expect_content(1, "basic.get-ok").body == b"body"
    assert world.awaited() == 0


def test_every_method_waits(world: SharedWorld) -> None:
    wire = world.amqp()
    for method, fields in (
            ("queue.declare", {"queue": "q"}), ("exchange.declare", {"exchange": "x", "type": "direct"}),
            ("exchange.declare", {"exchange": "y", "type": "fanout"}), ("queue.bind", {"queue": "q", "exchange": "x"}),
            ("exchange.bind", {"source": "y", "destination": "x"}),
            ("exchange.unbind", {"source": "y", "destination": "x"}),
            ("queue.unbind", {"queue": "q", "exchange": "x"}), ("exchange.delete", {"exchange": "x"}),
            ("queue.delete", {"queue": "q"})):
        told = len(world.definer.told)
        world.definer.hold()
        wire.send(1, method, **fields)
        world.definer.wait_held()
        world.definer.release()
        wire.expect(1, f"{method}-ok")
        assert len(world.definer.told) == told + 1
        if not method.endswith("delete"):
            wire.call(1, method, **fields)      # nothing is to change: it does not wait
            assert len(world.definer.told) == told + 1


def test_no_wait_waits_as_well(world: SharedWorld) -> None:
    wire = world.amqp()
    world.definer.hold()
    wire.send(1, "queue.declare", queue="q", no_wait=True)
    wire.publish(1, "", "q", b"body")
    wire.send(1, "queue.delete", queue="q")
    world.definer.wait_held()
    world.definer.release()
    assert wire.expect(1, "queue.delete-ok")["message_count"] == 1


def test_a_queue_gets_one_name(world: SharedWorld) -> None:
    name = world.amqp().call(1, "queue.declare", exclusive=True)["queue"]
    assert [told[1] for told in world.definer.told] == [name.encode()]


def test_a_refusal_ends_the_connection_and_says_why(world: SharedWorld) -> None:
    wire, other = world.amqp(), world.amqp()
    world.definer.refuse(NO_QUORUM)
    with pytest.raises(Refused) as refused:
        wire.call(1, "queue.declare", queue="q")
    assert (refused.value.scope, refused.value.code) == ("connection", 541)
    assert "etcd has no quorum" in refused.value.text and refused.value.method == (50, 10)
    world.definer.refuse(QueueRefused("not_found", "it is gone"))
    with pytest.raises(Refused) as refused:
        other.call(1, "queue.declare", queue="q")
    assert (refused.value.scope, refused.value.code) == ("channel", 404)
    world.definer.refuse(None)
    other.open_channel(2)
    other.call(2, "queue.declare", queue="q")


def test_a_connection_that_ends_meanwhile(world: SharedWorld) -> None:
    wire = world.amqp()
    world.definer.hold()
    wire.send(1, "queue.declare", queue="q")
    world.definer.wait_held()
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))    # it is reset
    wire.socket.close()
    world.wait_until(lambda server: server.hub.awaited == 0)
    world.definer.release()
    world.amqp().call(1, "queue.declare", queue="q")


def test_a_subscription_waits_for_its_queue(world: SharedWorld) -> None:
    client, bystander = world.mqtt("c"), world.mqtt("bystander")
    world.definer.hold()
    client.send(Subscribe(packet_id=1, filters=[("a", 1), ("$queue/q", 1), ("$queue/r", 1)]))
    world.definer.wait_held()
    bystander.send(Subscribe(packet_id=1, filters=[("a", 1)]))
    bystander.expect(Suback, reasons=[1])
    assert world.awaited() == 1
    world.definer.release()
    client.expect(Suback, reasons=[1, 1, 1])
    client.send(Publish(topic="$queue/q", payload=b"body", qos=1, packet_id=2))
    assert {type(client.recv()) for _ in range(2)} == {Puback, Publish}


def test_a_subscription_is_refused_with_the_reason(world: SharedWorld) -> None:
    client = world.mqtt("c")
    world.definer.refuse(NO_QUORUM)
    client.send(Subscribe(packet_id=1, filters=[("a", 1), ("$queue/q", 1)]))
    suback = client.expect(Suback, reasons=[1, 0x80])
    assert "etcd has no quorum" in str(dict(suback.properties)["reason_string"])


def test_a_publish_waits_until_its_queue_is_made(world: SharedWorld) -> None:
    client, bystander = world.mqtt("c"), world.mqtt("bystander")
    world.definer.hold()
    client.send(Publish(topic="$queue/q", payload=b"body", qos=1, packet_id=1))
    world.definer.wait_held()
    bystander.send(Publish(topic="a", payload=b"", qos=1, packet_id=1))
    bystander.expect(Puback)
    assert world.awaited() == 1
    world.definer.release()
    client.expect(Puback, reason=0)
    client.send(Subscribe(packet_id=2, filters=[("$queue/q", 1)]))
    assert {type(client.recv()) for _ in range(2)} == {Suback, Publish}


def test_a_request_of_the_administrator_waits(world: SharedWorld) -> None:
    with ThreadPoolExecutor(1) as pool:
        world.definer.hold()
        work = pool.submit(world.admin.ask, "PUT", "queues", "q", body={"topics": ["a"]})
        world.definer.wait_held()
        assert not work.done()
        world.definer.release()
        assert work.result()["result"] == "created"
    assert world.admin.ask("PUT", "queues", "q", body={"topics": ["a"]})["result"] == "unchanged"
    assert world.admin.ask("PUT", "queues", "q", body={"topics": ["b"]})["result"] == "changed"
    assert world.admin.ask("DELETE", "queues", "q") == {"deleted": True, "messages": 0}
    world.definer.refuse(NO_QUORUM)
    with pytest.raises(AdminError, match="no quorum"):
        world.admin.ask("PUT", "queues", "q", body={})
