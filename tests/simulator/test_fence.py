"""A node whose lease has ended handles nothing and sends nothing (docs/internals/cluster.md, "A node's life")."""
from __future__ import annotations

import random

import pytest
from oracle.mqtt import V5, Connect, Pingreq
from simulator.disk import Disk
from simulator.node import Clock, Node, Options, Pipe

from fluxmq._core.errors import FencedError


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.node = Node(Disk(random.Random(1)), self.clock, Options(), random.Random(2), lambda *_: None)
        self.node.start()

    @property
    def boot_ms(self) -> int:
        return self.clock.read()[1]

    def settle(self) -> None:
        for _ in range(20):
            self.node.turn()
            self.node.write_journal()


def connected(world: World) -> Pipe:
    pipe = world.node.accept_mqtt()
    pipe.to_broker += Connect(client_id="c").encode(V5)
    world.settle()
    assert pipe.to_client
    pipe.to_client.clear()
    return pipe


def test_it_serves_until_the_end_of_its_lease_and_no_longer() -> None:
    world = World()
    pipe = connected(world)
    world.node.hub.serve_until(world.boot_ms + 1000)
    pipe.to_broker += Pingreq().encode(V5)
    world.clock.advance(999)
    world.node.turn()
    assert pipe.to_client
    pipe.to_client.clear()
    pipe.to_broker += Pingreq().encode(V5)
    world.clock.advance(1)
    with pytest.raises(FencedError):
        world.node.turn()
    assert not pipe.to_client and pipe.to_broker


def test_what_a_turn_has_written_does_not_leave_after_the_end() -> None:
    """The clock passes the end between the handling of packets and the sending of answers."""
    world = World()
    pipe = connected(world)
    world.node.hub.serve_until(world.boot_ms + 1000)

    pipe.to_broker += Pingreq().encode(V5)
    read = pipe.read

    def read_late(size: int, into: memoryview) -> int:
        world.node.hub.serve_until(world.boot_ms)
        return read(size, into)

    pipe.read = read_late  # type: ignore[method-assign]
    world.node.turn()
    assert not pipe.to_client and not pipe.to_broker
    with pytest.raises(FencedError):
        world.node.turn()
    assert not pipe.to_client
    world.node.hub.serve_until(world.boot_ms + 1000)    # it was certain too late that its lease has not ended
    world.node.turn()
    assert pipe.to_client
