"""Clients of a running broker among other nodes: a CONNECT waits until it is known whose session it is, and SUBACK
until the others know of the subscription. The other nodes are what the test says."""
from __future__ import annotations

import gc
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.client import KEPT, Client
from kit.nodes import HERE, Nodes
from kit.watch import wait_until
from kit.world import World
from oracle.mqtt import Connack, Connect, Puback, Publish, Suback, Subscribe

from fluxmq._core.errors import ProtocolError
from fluxmq._core.memory.commits import Line
from fluxmq._core.testing.probes import live_objects
from fluxmq.engine.ports.cluster import Owner

THERE = Owner("there", 8)


class OwnedWorld(World):
    def __init__(self, directory: Path) -> None:
        self.nodes = Nodes()
        self.directory = self.nodes.directory
        super().__init__(directory, cluster=self.nodes.cluster)

    def begin(self, name: str, version: int = 5, **options: Any) -> Client:
        """CONNECT is sent, and what it waits for is asked."""
        self.directory.owners[name.encode()] = None
        waiting = len(self.directory.asking.get(name.encode(), ()))
        client = self.open(version)
        client.send(Connect(client_id=name, **options))
        self.directory.wait_asked(name.encode(), waiting + 1)
        return client

    def awaited(self) -> int:
        return self.node.call(lambda server: server.hub.awaited)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OwnedWorld]:
    one = OwnedWorld(tmp_path)
    yield one
    one.stop()


@pytest.mark.parametrize("version", [4, 5])
def test_connect_waits_for_who_owns_its_session(world: OwnedWorld, version: int) -> None:
    bystander = world.open()
    bystander.connect("bystander")
    client = world.begin("c", version)
    client.send(Subscribe(packet_id=1, filters=[("a", 1)]), Publish(topic="a", payload=b"x", qos=1, packet_id=2))
    bystander.expect_quiet()
    assert world.awaited() == 1 and world.node.call(lambda server: b"c" not in server.broker.sessions)
    world.directory.answer(b"c", HERE)
    client.expect(Connack, reason=0)
    client.expect(Suback, packet_id=1)              # what was sent ahead, in its order
    assert client.expect(Publish).payload == b"x"
    client.expect(Puback, packet_id=2)
    assert world.awaited() == 0


def test_a_session_elsewhere_says_where(world: OwnedWorld) -> None:
    for at_once in (True, False):
        if at_once:
            world.directory.owners[b"c"] = THERE
            client = world.open()
            client.send(Connect(client_id="c"))
        else:
            client = world.begin("c")
            world.directory.answer(b"c", THERE)
        connack = client.expect(Connack, reason=0x9C)
        assert dict(connack.properties)["server_reference"] == "there.example:1883"
        client.expect_closed()
    client = world.open(4)
    client.send(Connect(client_id="c"))
    client.expect(Connack, reason=3)
    client.expect_closed()


@pytest.mark.parametrize(("error", "reason"), [(ProtocolError(0x89, "busy"), 0x89), (ZeroDivisionError(), 0x88)])
def test_what_cannot_be_taken_is_refused(world: OwnedWorld, error: BaseException, reason: int) -> None:
    client = world.begin("c")
    world.directory.answer(b"c", error)
    client.expect(Connack, reason=reason)
    client.expect_closed()
    assert world.awaited() == 0
    world.directory.owners[b"c"] = HERE
    world.open().connect("c")


def test_two_wait_for_the_same_session(world: OwnedWorld) -> None:
    first, second = world.begin("c", **KEPT), world.begin("c", **KEPT)
    world.directory.answer(b"c", HERE)
    first.expect(Connack, reason=0)
    world.directory.answer(b"c", HERE)
    second.expect(Connack, reason=0, session_present=True)
    first.expect_closed(0x8E)
    second.expect_quiet()


def test_one_that_came_earlier_and_waited_longer_is_refused(world: OwnedWorld) -> None:
    first = world.begin("c", **KEPT)
    came_ms = world.node.call(lambda server: server.hub.mono_ms)
    wait_until(lambda: world.node.call(lambda server: server.hub.mono_ms) > came_ms)
    world.directory.owners[b"c"] = HERE
    second = world.mqtt("c", **KEPT)
    world.directory.answer(b"c", HERE)
    first.expect(Connack, reason=0x89)
    first.expect_closed()
    second.expect_quiet()


def test_who_has_gone_meanwhile_leaves_nothing(world: OwnedWorld) -> None:
    gc.collect()
    before = {name: count for name, count in live_objects().items() if name in ("links", "waits")}
    clients = [world.begin("c", version) for version in (4, 5)]
    for client in clients:
        assert isinstance(client.transport, socket.socket)
        client.transport.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.transport.close()                    # a reset, which is seen although nothing is read
    world.directory.wait_asked(b"c", 0)             # the questions were cancelled
    assert world.awaited() == 0 and world.node.call(lambda server: server.permissions.asking.waiting) == 0
    wait_until(lambda: {name: count for name, count in live_objects().items() if name in before} == before)
    assert world.node.call(lambda server: b"c" not in server.broker.sessions)


def test_the_node_stops_while_somebody_waits(world: OwnedWorld) -> None:
    client = world.begin("c")
    world.node.stop()
    client.expect_closed()
    assert not world.directory.asking[b"c"]


@pytest.mark.parametrize("refused", [False, True])
def test_suback_waits_until_the_others_know(world: OwnedWorld, refused: bool) -> None:
    line: Line = world.node.call(lambda server: server.hub.commits.open_line("peers"))
    world.directory.on_announce = lambda filter_: line.give() if filter_ == b"far" else None
    client, bystander = world.open(), world.open()
    client.connect("c")
    bystander.connect("d")
    client.send(Subscribe(packet_id=1, filters=[("near", 1), ("far", 1)]))
    client.expect_quiet()
    bystander.subscribe(("near", 1))
    if refused:
        world.node.call(lambda _: line.give_up("a node does not answer"))
        client.expect_closed(0x80)
        return
    world.node.call(lambda _: line.commit(line.submit()[0]))
    client.expect(Suback, packet_id=1)
    client.send(Subscribe(packet_id=2, filters=[("far", 0)]))       # nothing new: nobody must hear of it
    client.expect(Suback, packet_id=2)
