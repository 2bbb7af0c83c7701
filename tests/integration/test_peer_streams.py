"""Clients of a running broker that publish to another node: when they are answered, when they are not read, and what
of an AMQP message is sent. The test is the other node: it has the frames, and acknowledges them."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client
from kit.watch import wait_until
from kit.world import World
from oracle import peer
from oracle.mqtt import Puback, Publish, Pubrec

from fluxmq._core.peer.channel import Channel
from fluxmq._core.peer.inbox import PeerInbox
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq.model.queues import QueueSpec

WINDOW = 20_000
PERSISTENT = {"delivery_mode": 2}


class Ear:
    """The handler of an inbox that gets answers only."""

    def on_applied(self, sequence: int) -> None: ...
    def on_interest(self, namespace: bytes, filter_: bytes, group: bytes, count: int, durable: bool) -> None: ...
    def on_interest_end(self) -> None: ...
    def on_control(self, data: bytes) -> None: ...
    def on_group_message(self, *what: object) -> None: ...
    def on_attach(self, number: int, queue: int, data: bytes) -> None: ...
    def on_detach(self, number: int, rests: bool) -> None: ...
    def on_call(self, number: int, queue: int, data: bytes) -> None: ...
    def on_result(self, number: int, data: bytes) -> None: ...
    def on_refused(self, sequence: int, why: str) -> None: ...


class StreamWorld(World):
    """A broker and the stream to node "far", which wants `far/#`; its window is small."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.frames: list[bytes] = []
        self.outbox: PeerOutbox = self.node.call(self._open)

    def _open(self, server: Any) -> PeerOutbox:
        outbox = PeerOutbox(server.hub, "far", 1, WINDOW)
        server.hub.targets.add_peer(outbox, b"far/#")
        outbox.attach(self.frames.append, 2, 0)
        outbox.on_idle()
        return outbox

    def do(self, what: Callable[[], object]) -> None:
        self.node.call(lambda _: what())

    def acknowledge(self) -> int:
        """Everything that was sent, and the stream is idle then. Returns how many messages of QoS 1 and 2 that were."""
        def acknowledge(_: Any) -> int:
            done = [record for frame in self.outbox.unacknowledged() for record in peer.read(frame)[1]]
            self.outbox.acknowledged(self.outbox.newest_sequence)
            self.outbox.on_idle()
            return len([record for record in done if record[0] == 2 and record[2] & 3])

        return int(self.node.call(acknowledge))

    @property
    def waiting(self) -> int:
        """Connections that are not read because of this stream."""
        return int(self.node.call(lambda _: len(self.outbox.paused or ())))

    def messages(self) -> list[peer.Record]:
        """What was sent so far."""
        frames = self.node.call(lambda _: list(self.frames))
        return [record for frame in frames for record in peer.read(frame)[1] if record[0] == 2]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StreamWorld]:
    one = StreamWorld(tmp_path)
    yield one
    one.stop()


def send(client: Client, topic: str, qos: int, payload: bytes = b"x", **more: Any) -> int:
    packet_id = client.next_packet_id() if qos else 0
    client.send(Publish(topic=topic, payload=payload, qos=qos, packet_id=packet_id or None, **more))
    return packet_id


@pytest.mark.parametrize("version", [4, 5])
def test_an_answer_waits_for_the_frame(world: StreamWorld, version: int) -> None:
    client = world.mqtt(version=version)
    sent = [send(client, "far/a", 1, b"1"), send(client, "far/b", 2, b"2", retain=True)]
    client.expect_quiet()
    assert world.acknowledge() in (1, 2)        # both are in one frame, or the second waits for the stream
    assert client.expect(Puback).packet_id == sent[0]
    world.acknowledge()
    assert client.expect(Pubrec).packet_id == sent[1]
    assert [record[2:5] + record[6:] for record in world.messages()] == [
        (1, -1, b"far/a", b"1"), (6, -1, b"far/b", b"2")]


@pytest.mark.parametrize("version", [4, 5])
def test_a_publisher_is_not_read_while_the_other_node_acknowledges_too_little(world: StreamWorld, version: int) -> None:
    """Others are, also those that publish QoS 0 to that node, which is dropped."""
    client, bystander = world.mqtt(version=version), world.mqtt(version=version)
    sent = [send(client, "far/a", 1, bytes(1000)) for _ in range(100)]
    wait_until(lambda: world.waiting == 1)
    bystander.publish("far/b", b"", 0)
    bystander.publish("near", b"", 1)
    assert world.node.call(lambda server: server.hub.counters()["dropped_peer_full"]) == 1
    answered: list[int] = []
    while len(answered) < len(sent):
        assert world.node.call(lambda _: world.outbox.unacknowledged_bytes) < WINDOW + 2000
        answered += [client.expect(Puback).packet_id for _ in range(world.acknowledge())]
    assert answered == sent
    wait_until(lambda: world.waiting == 0)
    client.expect_quiet()
    bystander.publish("far/b", b"taken", 0)
    bystander.expect_quiet()
    world.acknowledge()
    assert world.messages()[-1][-1] == b"taken"


def test_an_amqp_publisher_is_not_read_either(world: StreamWorld) -> None:
    wire = world.amqp(confirms=True)
    for _ in range(100):
        wire.publish(1, "amq.topic", "far.a", bytes(1000), PERSISTENT)
    wait_until(lambda: world.waiting == 1)
    confirmed = 0
    while confirmed < 100:
        assert world.node.call(lambda _: world.outbox.unacknowledged_bytes) < WINDOW + 2000
        if world.acknowledge():
            ack = wire.expect(1, "basic.ack")
            confirmed = ack["delivery_tag"]
    assert wire.nothing_waits()


def test_who_goes_while_it_is_not_read_leaves_nothing(world: StreamWorld) -> None:
    client, wire = world.mqtt(), world.amqp()
    for number in range(40):
        send(client, "far/a", 1, bytes(1000))
        wire.publish(1, "amq.topic", "far.a", bytes(1000), PERSISTENT | {"message_id": str(number)})
    wait_until(lambda: world.waiting == 2)
    world.node.call(lambda server: [connection.abort() for connection in list(server.poller.connections)])
    assert world.waiting == 0
    client.expect_closed()


def test_who_waits_for_a_node_that_will_not_come_back_is_refused_and_read_again(world: StreamWorld) -> None:
    client = world.mqtt()
    sent = [send(client, "far/a", 1, bytes(1000)) for _ in range(40)]
    wait_until(lambda: world.waiting == 1)
    world.do(lambda: world.outbox.abandon("node far has left"))
    assert [(packet.packet_id, packet.reason) for packet in (client.expect(Puback) for _ in sent)] == [
        (packet_id, 0x80) for packet_id in sent]
    client.expect_quiet()


def test_who_publishes_to_a_group_that_stands_still_is_not_read_and_others_are(world: StreamWorld) -> None:
    """Frames are acknowledged, and nothing of the one group is decided: a quarter of the window is."""
    def begin(server: Any) -> list[Channel]:
        inbox.append(PeerInbox(server.hub, "far", 2, 1, Ear()))
        inbox[0].outbox = world.outbox
        for at in range(2):
            queue = server.queues.manager.make_relay(QueueSpec(name=f"q{at}"), None, 100 + at).queue
            queue.relay.set_owner("far", world.outbox, 10 + at)
        return world.outbox.channels[1:]

    def waiting(at: int) -> int:
        return int(world.node.call(lambda _: len(channels[at].paused or ())))

    def decide(at: int) -> None:
        def said(_: Any) -> None:
            position = channels[at].line.committed + channels[at].line.undecided
            header = {"version": 1, "records": 1, "epoch": 2, "to_epoch": 1, "sequence": inbox[0].position + 1}
            inbox[0].apply(peer.build(header, [(19, position | channels[at].number << 48)]))

        world.acknowledge()
        world.node.call(said)

    inbox: list[PeerInbox] = []
    channels = world.node.call(begin)
    client, other = world.mqtt(), world.mqtt()
    sent = [send(client, "$queue/q0", 1, b"x" * 500) for _ in range(100)]
    wait_until(lambda: world.acknowledge() == 0 and waiting(0) == 1)
    for number in range(50):            # more than a quarter, and than the window
        packet_id = send(other, "$queue/q1", 1, bytes(500))
        wait_until(lambda: world.node.call(lambda _: channels[1].line.undecided) == 1)
        decide(1)
        assert other.expect(Puback).packet_id == packet_id, number
    assert waiting(0) == 1
    assert WINDOW // 4 <= world.node.call(lambda _: channels[0].waiting_bytes) < WINDOW // 4 + 1000
    answered: list[int] = []
    while len(answered) < len(sent):
        wait_until(lambda: world.node.call(lambda _: channels[0].line.undecided))
        count = world.node.call(lambda _: channels[0].line.undecided)
        decide(0)
        answered += [client.expect(Puback).packet_id for _ in range(count)]
    assert answered == sent and waiting(0) == 0
    for _ in range(100):
        send(client, "$queue/q0", 1, bytes(500))
    wait_until(lambda: world.acknowledge() == 0 and waiting(0) == 1)
    world.node.call(lambda server: [connection.abort() for connection in list(server.poller.connections)])
    world.do(world.outbox.return_stalled)
    assert waiting(0) == 0              # nothing is left of who goes meanwhile


def test_an_amqp_message_is_sent_as_its_whole_translation(world: StreamWorld) -> None:
    wire = world.amqp(confirms=True)
    wire.publish(1, "amq.topic", "far.a", b"body", PERSISTENT | {
        "content_type": "text/plain", "expiration": "60000", "headers": {"colour": "red"}})
    wait_until(world.messages)
    [(_, _, flags, left_ms, topic, properties, payload)] = world.messages()
    assert (flags, topic, payload) == (1, b"far/a", b"body") and 59_000 < left_ms <= 60_000
    assert b"\x03\x00\x0atext/plain" in properties and b"\x26\x00\x06colour\x00\x03red" in properties
    world.acknowledge()
    assert wire.expect(1, "basic.ack")["delivery_tag"] == 1


def test_a_frame_does_not_keep_a_lingering_turn_waiting(world: StreamWorld) -> None:
    """As long as clients keep the broker busy the event loop would come to write it ten milliseconds later. A unit test
    (test_lingering) shows that the turn ends; this one that frames leave at all while a client never stops."""
    client = world.mqtt()
    for number in range(2000):
        send(client, "far/a" if number % 100 == 0 else "near", 0, b"%d" % number)
    client.expect_quiet()
    while world.acknowledge() or len(world.messages()) < 20:
        world.do(world.outbox.on_idle)
    assert [int(record[-1]) for record in world.messages()] == list(range(0, 2000, 100))
