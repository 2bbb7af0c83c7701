"""Clients of a running broker whose publishes wait for another commit line than the journal: what they are told, and
when. The line is driven by hand here, as a replication group or a peer would drive it."""
from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client
from kit.watch import wait_until
from kit.world import World
from oracle.mqtt import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe

from fluxmq._core.memory.commits import Line
from fluxmq._core.testing.probes import live_objects
from fluxmq.model.queues import QueueSpec

PERSISTENT = {"delivery_mode": 2}
MANY = [f"many/{n}" for n in range(1200)]       # more than two turns of edge/shares


class LineWorld(World):
    """A broker with the queues `far`, whose messages are committed by `line`, and `near`, by the journal."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.line: Line = self.node.call(self._open)
        self.busy = False
        self.submitted = 0          # the line's last position that is on its way

    def _open(self, server: Any) -> Line:
        line: Line = server.hub.commits.open_line("group 7")
        server.queues.manager.declare(QueueSpec(name="far"), line)
        server.queues.manager.declare(QueueSpec(name="near"))
        return line

    def commit(self) -> None:
        """All that the line was given so far."""
        def commit(_: Any) -> None:
            self.submitted = self.line.submit()[0] or self.submitted
            self.line.commit(self.submitted)

        self.node.call(commit)

    def give_up(self) -> None:
        self.node.call(lambda server: self.line.give_up("group 7 has no leader"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LineWorld]:
    one = LineWorld(tmp_path)
    yield one
    one.stop()


def send(client: Client, queue: str, qos: int, payload: bytes = b"x") -> int:
    packet_id = client.next_packet_id()
    client.send(Publish(topic=f"$queue/{queue}", payload=payload, qos=qos, packet_id=packet_id))
    return packet_id


def put(client: Client, queue: str) -> None:
    client.publish(f"$queue/{queue}", b"x", 1, expect=0)


@pytest.mark.parametrize("version", [4, 5])
def test_an_acknowledgement_waits_for_the_line_of_the_queue(world: LineWorld, version: int) -> None:
    client, bystander = world.mqtt(version=version), world.mqtt(version=version)
    first = send(client, "far", 1)
    client.expect_quiet()
    put(bystander, "near")                  # the journal commits, and nobody of the other line leaves
    client.expect_quiet()
    world.commit()
    client.expect(Puback, packet_id=first, reason=0)


@pytest.mark.parametrize("version", [4, 5])
def test_the_answers_of_a_connection_keep_their_order(world: LineWorld, version: int) -> None:
    """[MQTT-4.6.0-2]"""
    client = world.mqtt(version=version)
    sent = [send(client, "far", 1), send(client, "near", 1), send(client, "far", 1)]
    put(world.mqtt(), "near")
    client.expect_quiet()
    world.commit()
    assert [client.expect(Puback).packet_id for _ in sent] == sent


def test_qos_2_waits_in_both_halves(world: LineWorld) -> None:
    client = world.mqtt()
    packet_id = send(client, "far", 2)
    client.expect_quiet()
    world.commit()
    client.expect(Pubrec, packet_id=packet_id, reason=0)
    client.send(Pubrel(packet_id=packet_id))
    client.expect(Pubcomp, packet_id=packet_id, reason=0)


def test_a_confirm_passes_by_those_of_another_line(world: LineWorld) -> None:
    wire, bystander = world.amqp(confirms=True), world.mqtt()
    wire.publish(1, "", "far", b"1", PERSISTENT)
    wire.publish(1, "", "near", b"2", PERSISTENT)
    assert wire.expect(1, "basic.ack") == {"delivery_tag": 2, "multiple": False}
    put(bystander, "near")
    assert wire.nothing_waits()
    world.commit()
    assert wire.expect(1, "basic.ack")["delivery_tag"] == 1


def test_confirms_of_one_line_pass_by_those_of_another_one_by_one(world: LineWorld) -> None:
    """Also when the first of them, by which the others were known to be of another line, has left."""
    wire = world.amqp(confirms=True)
    near: Line = world.node.call(lambda server: server.hub.commits.open_line("group 8"))
    world.node.call(lambda server: server.queues.manager.declare(QueueSpec(name="third"), near))
    wire.publish(1, "", "far", b"1", PERSISTENT)
    positions = []
    for number in (2, 3, 4):
        wire.publish(1, "", "third", b"%d" % number, PERSISTENT)
        assert wire.nothing_waits()
        positions.append(world.node.call(lambda _: near.submit()[0]))
    for number, position in zip((2, 3, 4), positions, strict=True):
        world.node.call(lambda _, upto=position: near.commit(upto))
        assert wire.expect(1, "basic.ack") == {"delivery_tag": number, "multiple": False}
        assert wire.nothing_waits()
    world.commit()
    assert wire.expect(1, "basic.ack")["delivery_tag"] == 1


def test_mqtt_5_is_told_that_a_publish_was_given_up(world: LineWorld) -> None:
    client = world.mqtt()
    first, second = send(client, "far", 1), send(client, "far", 2)
    client.expect_quiet()
    world.give_up()
    assert client.expect(Puback, packet_id=first).reason >= 0x80
    assert client.expect(Pubrec, packet_id=second).reason >= 0x80
    # The Packet Identifier is free again [MQTT-4.3.3]: the same publish is a new one.
    client.send(Publish(topic="$queue/far", payload=b"again", qos=2, packet_id=second))
    client.expect_quiet()
    world.commit()
    client.expect(Pubrec, packet_id=second, reason=0)


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_1_1_which_has_no_word_for_it_is_closed(world: LineWorld, qos: int) -> None:
    client, bystander = world.mqtt(version=4), world.mqtt(version=4)
    send(client, "far", qos)
    client.expect_quiet()
    world.give_up()
    client.expect_closed()
    put(bystander, "near")


def test_a_confirm_that_was_given_up_is_a_nack(world: LineWorld) -> None:
    wire = world.amqp(confirms=True)
    for _ in range(3):
        wire.publish(1, "", "far", b"x", PERSISTENT)
    wire.publish(1, "", "near", b"x", PERSISTENT)
    assert wire.expect(1, "basic.ack")["delivery_tag"] == 4
    world.give_up()
    refused: set[int] = set()
    while len(refused) < 3:
        nack = wire.expect(1, "basic.nack")
        refused |= set(range(1, nack["delivery_tag"] + 1)) if nack["multiple"] else {nack["delivery_tag"]}
    assert refused == {1, 2, 3}
    wire.publish(1, "", "near", b"x", PERSISTENT)
    assert wire.expect(1, "basic.ack")["delivery_tag"] == 5


def test_a_transaction_that_was_given_up_ends_the_connection(world: LineWorld) -> None:
    wire = world.amqp(confirms=True)
    wire.open_channel(2)
    wire.call(2, "tx.select")
    wire.publish(2, "", "far", b"x", PERSISTENT)
    wire.send(2, "tx.commit")
    assert wire.nothing_waits(2)
    world.give_up()
    refused = wire.expect_refusal(2)
    assert (refused.scope, refused.code) == ("connection", 541)
    assert "group 7 has no leader" in str(refused)


@pytest.mark.parametrize("version", [4, 5])
def test_nobody_gets_a_message_before_it_is_committed(world: LineWorld, version: int) -> None:
    consumer, producer = world.mqtt("consumer", version), world.mqtt()
    consumer.send(Subscribe(packet_id=9, filters=[("$queue/far", 1)]))
    consumer.expect_quiet()                 # the group is recorded where the queue is
    world.commit()
    consumer.expect(Suback, packet_id=9, reasons=[1])
    send(producer, "far", 1)
    producer.expect_quiet()
    consumer.expect_quiet()
    world.commit()
    producer.expect(Puback, reason=0)
    world.commit()                          # of its claim
    consumer.receive("$queue/far", b"x")


def test_an_amqp_consumer_gets_nothing_before_it_is_committed(world: LineWorld) -> None:
    wire, producer = world.amqp(confirms=True), world.mqtt()
    wire.send(1, "basic.consume", queue="far", consumer_tag="c")
    assert wire.nothing_waits()
    world.commit()
    wire.expect(1, "basic.consume-ok")
    send(producer, "far", 1, b"hers")
    producer.expect_quiet()
    assert wire.nothing_waits()
    world.commit()
    producer.expect(Puback, reason=0)
    world.commit()
    assert wire.expect_content(1).body == b"hers"


def used_by_others(world: LineWorld, what: Callable[[], None]) -> None:
    """Meanwhile somebody gives the line something in every turn, and it stands still."""
    def go_on(server: Any) -> None:
        if world.busy:
            world.line.give()
            asyncio.get_running_loop().call_soon(go_on, server)

    world.busy = True
    world.node.call(go_on)
    try:
        what()
    finally:
        world.busy = False


@pytest.mark.parametrize("version", [4, 5])
def test_a_subscribe_of_several_turns_waits_for_no_line_that_others_use(world: LineWorld, version: int) -> None:
    client, other = world.mqtt("client", version), world.mqtt()
    send(other, "far", 1)
    other.expect_quiet()

    def subscribe() -> None:
        client.subscribe(*MANY, qos=1)
        client.unsubscribe(*MANY)

    used_by_others(world, subscribe)
    other.expect_quiet()
    world.commit()
    other.expect(Puback, reason=0)


@pytest.mark.parametrize("at", [0, len(MANY)])
def test_a_subscribe_of_several_turns_waits_for_the_lines_that_it_uses(world: LineWorld, at: int) -> None:
    """In whichever turn it uses them."""
    client = world.mqtt("client")
    filters = [*MANY[:at], "$queue/far", *MANY[at:]]
    client.send(Subscribe(packet_id=9, filters=[(name, 1) for name in filters]))
    world.wait_until(lambda server: server.hub.counters()["subscriptions"] >= len(MANY))
    put(world.mqtt(), "near")               # the journal has all of it, and commits
    client.expect_quiet()
    world.commit()
    client.expect(Suback, packet_id=9, reasons=[1] * len(filters))


def test_a_subscribe_whose_first_part_was_given_up_ends_the_connection(world: LineWorld) -> None:
    client = world.mqtt("client")
    client.send(Subscribe(packet_id=9, filters=[(name, 1) for name in ["$queue/far", *MANY]]))
    world.wait_until(lambda server: world.line.undecided)
    world.give_up()
    assert client.expect(Disconnect).reason == 0x80
    client.expect_closed()


@pytest.mark.parametrize("decide", [LineWorld.commit, LineWorld.give_up])
def test_who_has_gone_meanwhile_leaves_nothing(world: LineWorld, decide: Callable[[LineWorld], None]) -> None:
    world.commit()
    gc.collect()
    before = {name: count for name, count in live_objects().items() if name in ("links", "waits")}
    for version in (4, 5):
        client = world.mqtt(version=version)
        send(client, "far", 1)
        send(client, "near", 1)
        send(client, "far", 2)
        client.expect_quiet()
        client.drop()
    wire = world.amqp(confirms=True)
    wire.publish(1, "", "far", b"x", PERSISTENT)
    assert wire.nothing_waits()
    wire.drop()
    decide(world)
    put(world.mqtt(), "near")
    world.clients.pop().close()
    wait_until(lambda: {name: count for name, count in live_objects().items() if name in before} == before)
    assert world.node.call(lambda server: server.hub.commits.waiting) == 0
    put(world.mqtt(), "near")

