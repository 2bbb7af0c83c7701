"""Room that several consumers of one client share (prefetch with global, the window of a session), whose queues are at
other nodes: what their owners were told, and who gets messages."""
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from kit.sizes import some
from oracle.mqtt import Connect, Puback, Publish
from simulator.cluster.amqp import Amqp
from simulator.cluster.brokers import Client
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_kept_claims import die
from simulator.cluster.test_queues import NAMES, reasons

from fluxmq._core.peer.queue_member import PeerMember
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq.model.queues import QueueSpec

ROOM = 8


class World:
    """Queues of nodes one and three, and a client at node two that consumes all of them. kind: of the client."""

    def __init__(self, kind: str, count: int, room: int = ROOM) -> None:
        self.kind, self.room = kind, room
        self.brokers = serving(*NAMES)
        self.queues: list[str] = []
        for number in range(2 * count):     # each node gets as many
            name = f"q{len(self.queues)}" if number % 3 else f"of two {number}"
            at = ("two", "one", "three")[number % 3]
            spec = QueueSpec(name=name)
            do(self.brokers, at, lambda node, spec=spec: node.manager.declare(spec))  # type: ignore[misc]
            if number % 3 and len(self.queues) < count:
                assert self.brokers.processes[at].node.manager.queues[b"/", name.encode()].here
                self.queues.append(name)
        self.got: list[tuple[str, int]] = []            # queue, and what acknowledges it
        self.seen = 0
        self.client: Any
        if kind == "amqp":
            self.client = Amqp(self.brokers, "two", acks=False)
            for number, name in enumerate(self.queues):
                self.client.consume(name, shared=0 if number else room, tag=name)
        else:
            self.client = Client(self.brokers, "two", "c")
            self.brokers.clients.append(self.client)
            self.client.acks = False
            self.client.pipe = self.brokers.processes["two"].node.accept_mqtt()
            self.client.life = self.brokers.processes["two"].process.life
            self.client.send(Connect(client_id="c", clean_start=True, properties=[("receive_maximum", room)]))
            self.brokers.run_until(lambda: self.client.connected)
            for name in self.queues:
                packet_id = self.client.subscribe(f"$queue/{name}", 1)
                self.brokers.run_until(lambda packet_id=packet_id: self.client.acknowledged(packet_id))
        self.publisher = connected(self.brokers, "one", "p")
        self.brokers.run_for(0.5)

    def publish(self, queue: str, count: int) -> None:
        known = len(reasons(self.publisher))
        for _ in range(count):
            self.publisher.publish(f"$queue/{queue}", b"x", 1)
        self.brokers.run_until(lambda: len(reasons(self.publisher)) == known + count)

    def take(self) -> list[tuple[str, int]]:
        """What came since the last call."""
        if self.kind == "amqp":
            found = [(told["consumer_tag"], told["delivery_tag"]) for told, _ in self.client.deliveries]
        else:
            found = [(packet.topic.split("/")[1], packet.packet_id) for packet in self.client.of(Publish)]
        new, self.seen = found[self.seen:], len(found)
        return new

    def acknowledge(self, *numbers: int) -> None:
        for number in numbers:
            if self.kind == "amqp":
                self.client.method("basic.ack", delivery_tag=number)
            else:
                self.client.send(Puback(packet_id=number))

    def told(self) -> dict[str, int]:
        """What owners may still give, by queue."""
        found: dict[str, int] = {}
        for at in ("one", "three"):
            for name in self.queues:
                state = self.brokers.processes[at].node.manager.queues[b"/", name.encode()]
                if state.here:
                    found[name] = sum(max(member.limit - member.held, 0) for group in state.groups.values()
                                      for member in group.members if isinstance(member, PeerMember))
        return found

    def waiting(self) -> int:
        """Messages that have come beyond the room."""
        found = 0
        for name in self.queues:
            relay = self.brokers.processes["two"].node.manager.queues[b"/", name.encode()].queue.relay
            assert isinstance(relay, QueueRelay)
            found += sum(one.waiting_count for one in relay.consumers)
        return found

    def until(self, condition: Callable[[], object]) -> None:
        self.brokers.run_until(condition)


@pytest.fixture(params=["amqp", "mqtt"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_owners_are_told_the_room_and_one_for_each_queue_at_most(kind: str, count: int) -> None:
    world = World(kind, count)
    assert sum(world.told().values()) <= ROOM + (count - 1 if count > 1 else 0)
    assert all(world.told().values())
    for name in world.queues:
        world.publish(name, ROOM)
    world.brokers.run_for(1.0)
    assert len(world.take()) == ROOM and world.waiting() <= ROOM + count      # all of them came at once
    assert sum(world.told().values()) <= count


def test_all_of_it_is_for_the_queue_that_has_messages(kind: str) -> None:
    """At first each has a part of it; when the first part is used up, nothing else is needed to get the rest."""
    world = World(kind, 4)
    world.publish("q2", 3 * ROOM)
    world.brokers.run_for(1.0)
    found = world.take()
    assert [name for name, _ in found] == ["q2"] * ROOM
    world.acknowledge(*(number for _, number in found))
    world.brokers.run_for(0.1)
    assert len(world.take()) == ROOM and world.waiting() == 0
    world.brokers.run_for(0.1)
    assert sum(world.told().values()) <= 4


def test_a_queue_that_was_idle_gets_its_part(kind: str) -> None:
    world = World(kind, 2)
    world.publish("q0", 200)
    world.brokers.run_for(3.0)
    world.publish("q1", 200)
    counts = {"q0": 0, "q1": 0}
    for _ in range(20):
        found = world.take()
        for name, _ in found:
            counts[name] += 1
        world.acknowledge(*(number for _, number in found))
        world.brokers.run_for(0.05)
    assert min(counts.values()) > sum(counts.values()) / 4, counts


@pytest.mark.parametrize("room", [1, 3])
def test_no_queue_starves_though_there_are_more_queues_than_room(kind: str, room: int) -> None:
    world = World(kind, 7, room)
    for name in world.queues:
        world.publish(name, 20)
    left = dict.fromkeys(world.queues, 20)
    for _ in range(400):
        found = world.take()
        assert len(found) <= room
        for name, number in found:
            left[name] -= 1
            world.acknowledge(number)
        world.brokers.run_for(0.02)
        assert world.waiting() <= len(world.queues)
    assert not any(left.values()), left


def test_what_does_not_fit_is_for_others() -> None:
    """A message that is told to nobody stays with its owner, where another client gets it."""
    world = World("amqp", 2)
    for name in world.queues:
        world.publish(name, 2 * ROOM)
    world.brokers.run_for(1.0)
    assert len(world.take()) == ROOM
    other = Amqp(world.brokers, "three")
    for name in world.queues:
        other.consume(name, prefetch=100)
    world.brokers.run_for(1.0)
    assert len(other.deliveries) >= 4 * ROOM - ROOM - len(world.queues)


def test_two_consumers_of_one_queue_and_channel_share_it_exactly() -> None:
    world = World("amqp", 1, 3)
    world.client.consume("q0", tag="another")
    world.brokers.run_for(0.5)
    world.publish("q0", 30)
    left = 30
    while left:
        world.brokers.run_for(0.2)
        found = world.take()
        assert len(found) == 3 and world.waiting() == 0
        left -= len(found)
        world.acknowledge(*(number for _, number in found))


def test_a_consumer_that_leaves_gives_its_part_to_the_others(kind: str) -> None:
    world = World(kind, 2)
    for name in world.queues:
        world.publish(name, ROOM // 2)
    world.brokers.run_for(0.5)
    assert len(world.take()) == ROOM
    world.publish("q0", ROOM)
    if kind == "amqp":
        world.client.method("basic.cancel", consumer_tag="q1")
        world.acknowledge(*range(1, ROOM // 2 + 1))
    else:
        world.client.unsubscribe("$queue/q1")
        world.acknowledge(*(packet.packet_id for packet in world.client.of(Publish)[:ROOM // 2]))
    world.brokers.run_for(1.0)
    assert [name for name, _ in world.take()] == ["q0"] * (ROOM // 2)


def test_queues_of_the_clients_own_node_take_from_the_same_room(kind: str) -> None:
    world = World(kind, 2)
    do(world.brokers, "two", lambda node: node.manager.declare(QueueSpec(name="mine")))
    if kind == "amqp":
        world.client.consume("mine", tag="mine")
    else:
        packet_id = world.client.subscribe("$queue/mine", 1)
        world.until(lambda: world.client.acknowledged(packet_id))
    world.publish("mine", ROOM - 1)
    world.brokers.run_for(0.5)
    assert len(world.take()) == ROOM - 1
    assert sum(world.told().values()) <= 1 + 2
    for name in world.queues:
        world.publish(name, ROOM)
    world.brokers.run_for(0.5)
    assert len(world.take()) == 1 and world.waiting() <= 2


def test_queues_of_one_node_take_turns_in_a_window_of_one() -> None:
    """An acknowledgement makes room for another queue, too."""
    brokers = serving("one")
    for name in ("a", "b"):
        do(brokers, "one", lambda node, name=name: node.manager.declare(QueueSpec(name=name)))  # type: ignore[misc]
    client = Client(brokers, "one", "c")
    brokers.clients.append(client)
    client.pipe, client.life = brokers.processes["one"].node.accept_mqtt(), brokers.processes["one"].process.life
    client.send(Connect(client_id="c", clean_start=True, properties=[("receive_maximum", 1)]))
    brokers.run_until(lambda: client.connected)
    for name in ("a", "b"):
        packet_id = client.subscribe(f"$queue/{name}", 1)
        brokers.run_until(lambda packet_id=packet_id: client.acknowledged(packet_id))  # type: ignore[misc]
    publisher = connected(brokers, "one", "p")
    for name in ("a", "b"):
        publisher.publish(f"$queue/{name}", b"x", 1)
    brokers.run_until(lambda: len(client.messages) == 2, 5.0)


def test_a_room_that_becomes_smaller_or_has_no_limit() -> None:
    world = World("amqp", 2, 100)
    world.client.method("basic.qos", prefetch_count=4, **{"global": True})
    world.brokers.run_for(0.5)
    assert sum(world.told().values()) <= 4
    world.client.method("basic.qos", prefetch_count=0, **{"global": True})
    world.brokers.run_for(0.5)
    assert all(told > 1000 for told in world.told().values())


def test_the_room_is_divided_anew_when_an_owner_dies_and_is_back(kind: str) -> None:
    world = World(kind, 4)
    for name in world.queues:
        world.publish(name, 1)
    world.brokers.run_for(0.5)
    first = world.take()
    assert len(first) == 4
    die(world.brokers, "three")
    world.acknowledge(*(number for _, number in first))
    world.publish("q0", 2 * ROOM)
    world.brokers.run_for(0.5)
    found = world.take()
    assert [name for name, _ in found] == ["q0"] * ROOM
    world.brokers.start("three")
    world.brokers.run_for(2.0)
    assert sum(world.told().values()) <= 4 and not world.take()
    world.publish("q1", 1)
    world.acknowledge(*(number for _, number in found))
    world.brokers.run_for(1.0)
    assert sorted(name for name, _ in world.take()) == ["q0"] * (ROOM - 1) + ["q1"]


@pytest.mark.parametrize("seed", some(4, range(8)))
def test_everything_comes_whatever_is_published_and_acknowledged_when(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    count, room = chance.choice([2, 5, 9]), chance.choice([1, 2, 6, 40])
    world = World(kind, count, room)
    published, taken = 0, 0
    held: list[int] = []
    for _ in range(150):
        for _ in range(chance.choice((0, 0, 1, 3))):
            number = chance.choice((1, 2, 10))
            published += number
            for _ in range(number):
                world.publisher.publish(f"$queue/{chance.choice(world.queues)}", b"x", 1)
        world.brokers.run_for(chance.choice((0.0, 0.01, 0.3)))
        found = world.take()
        taken += len(found)
        held += [number for _, number in found]
        assert len(held) <= room
        chance.shuffle(held)
        for _ in range(min(len(held), chance.choice((0, 1, 5, 100)))):
            world.acknowledge(held.pop())
    for _ in range(2000):
        world.brokers.run_for(0.05)
        found = world.take()
        taken += len(found)
        world.acknowledge(*held, *(number for _, number in found))
        held.clear()
        if taken == published:
            break
    assert taken == published
    world.brokers.run_for(2.0)
    assert sum(world.told().values()) <= room + count and world.waiting() == 0


@pytest.mark.parametrize("dies", [False, True])
def test_a_fast_client_gets_ahead_in_all_its_queues_and_gives_back_what_waits_when_it_stops(
        kind: str, dies: bool) -> None:
    world = World(kind, 2, 40)
    for name in 15 * world.queues:
        world.publish(name, 100)
    most, taken = 0, {"q0": 0, "q1": 0}
    for _ in range(40):
        world.brokers.run_for(0.001)
        found = world.take()
        assert len(found) <= 40
        for name, _ in found:
            taken[name] += 1
        world.acknowledge(*(number for _, number in found))
        most = max(most, world.waiting())
    assert most > 40 and min(taken.values()) > sum(taken.values()) / 4, (most, taken)
    if dies:                        # what waits is known to it when it is back
        die(world.brokers, "one")
        world.brokers.start("one")
    world.brokers.run_for(4.0)
    left = 3000 - sum(taken.values()) - len(world.take())
    assert world.waiting() == 0 and sum(world.told().values()) <= 2
    other = Amqp(world.brokers, "three")
    for name in world.queues:
        other.consume(name, prefetch=0)
    world.brokers.run_for(2.0)
    assert len(other.deliveries) == left
    if not dies:                    # else what was on its way to the client's node has come to nobody, and counts
        assert not any(told["redelivered"] for told, _ in other.deliveries)


def test_what_waits_is_given_back_to_an_owner_that_is_back_and_has_nothing_more_to_send(kind: str) -> None:
    world = World(kind, 1, 40)
    total = 250 if kind == "mqtt" else 300      # at the end some of it is waiting
    for _ in range(total // 50):
        world.publish("q0", 50)
    taken = 0
    while taken + world.waiting() < total:
        world.brokers.run_for(0.001)
        found = world.take()
        taken += len(found)
        if taken + world.waiting() < total:
            world.acknowledge(*(number for _, number in found))
    assert world.waiting()
    die(world.brokers, "one")
    world.brokers.start("one")
    world.brokers.run_for(4.0)
    assert world.waiting() == 0
    other = Amqp(world.brokers, "three")
    other.consume("q0", prefetch=0)
    world.brokers.run_for(2.0)
    assert len(other.deliveries) == total - taken
