"""The order of each publisher is kept while a queue moves: publishers of MQTT (all QoS), of AMQP and of a captured
topic at all nodes, links of different speed, and moves one after the other.
What judges is the order in the queue's log."""
from __future__ import annotations

import random
import struct
from collections.abc import Callable, Collection, Iterable

import pytest
from kit.metadata import MetadataInMemory
from kit.sizes import some
from oracle.amqp091 import BODY, HEADER, METHOD, PROTOCOL, decode_method, encode_frame, encode_header, encode_method
from oracle.mqtt import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from simulator.cluster.amqp import Amqp
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.machines import Process
from simulator.cluster.test_brokers import cluster, connected
from simulator.cluster.test_definitions import do
from simulator.cluster.test_ended_destinations import done
from simulator.cluster.test_queue_moves import Q, move, owner_of, whole
from simulator.cluster.test_queues import NAMES, consumer, share

from fluxmq.model.queues import QueueLimits, QueueSpec


class AmqpPublisher:
    """One connection in confirm mode. confirmed: delivery tags that were acknowledged up to now, and how many not."""

    def __init__(self, brokers: Brokers, at: str) -> None:
        self.brokers, self.at = brokers, at
        self.pipe = brokers.processes[at].node.accept_amqp()
        self.sent = self.confirmed = self.nacks = 0
        self.unread = b""
        methods = encode_frame(METHOD, 0, encode_method("connection.start-ok", mechanism="PLAIN",
                                                        response=b"\0guest\0guest", locale="en_US",
                                                        client_properties={}))
        methods += encode_frame(METHOD, 0, encode_method("connection.tune-ok", channel_max=10, frame_max=131072,
                                                         heartbeat=0))
        methods += encode_frame(METHOD, 0, encode_method("connection.open", virtual_host="/"))
        methods += encode_frame(METHOD, 1, encode_method("channel.open"))
        methods += encode_frame(METHOD, 1, encode_method("confirm.select"))
        self.write(PROTOCOL + methods)

    def write(self, data: bytes) -> None:
        broker = self.brokers.processes[self.at]
        self.pipe.to_broker += data
        broker.process.driver.soon(broker.turn)

    def publish(self, body: bytes) -> None:
        self.sent += 1
        self.write(encode_frame(METHOD, 1, encode_method("basic.publish", exchange="", routing_key="q"))
                   + encode_frame(HEADER, 1, encode_header(len(body), {}))
                   + encode_frame(BODY, 1, body))

    def read(self) -> None:
        self.unread += bytes(self.pipe.to_client)
        self.pipe.to_client.clear()
        while len(self.unread) >= 7:
            kind, _, size = struct.unpack(">BHI", self.unread[:7])
            if len(self.unread) < 8 + size:
                return
            payload, self.unread = self.unread[7:7 + size], self.unread[8 + size:]
            if kind != METHOD:
                continue
            name, told = decode_method(payload)
            assert name not in ("connection.close", "channel.close"), told
            if name == "basic.ack":
                self.confirmed = max(self.confirmed, told["delivery_tag"])
            elif name == "basic.nack":
                self.nacks += 1


class Publishers:
    """Of one node. Payloads say which one it was, and its number."""

    def __init__(self, brokers: Brokers, at: str) -> None:
        self.brokers, self.at = brokers, at
        self.mqtt = connected(brokers, at, f"m-{at}")
        self.capture = connected(brokers, at, f"c-{at}")
        self.amqp = AmqpPublisher(brokers, at)
        self.sent = 0

    def publish(self, qos: int) -> None:
        self.mqtt.publish("$queue/q", b"mqtt %s %d" % (self.at.encode(), self.sent), qos)
        self.capture.publish("captured/t", b"capture %s %d" % (self.at.encode(), self.sent), qos)
        self.amqp.publish(b"amqp %s %d" % (self.at.encode(), self.sent))
        self.sent += 1

    def done(self) -> bool:
        self.amqp.read()
        return self.amqp.confirmed == self.amqp.sent and all(
            {packet.packet_id for packet in client.got if isinstance(packet, Puback | Pubcomp)}
            == set(range(1, client.packet_id + 1)) for client in (self.mqtt, self.capture))


def with_views(seed: int) -> tuple[Brokers, list[MetadataInMemory]]:
    """Three nodes that serve, and how each sees the store."""
    views: list[MetadataInMemory] = []
    brokers = cluster(*NAMES, seed=seed)
    shared = brokers.store

    def store_of(process: Process) -> MetadataInMemory:
        views.append(shared.seen_by(process.driver))
        return views[-1]

    brokers.store_of = store_of
    brokers.start()
    return brokers, views


def holds(brokers: Brokers, condition: Callable[[], bool]) -> bool:
    """Within half a minute; looks rarely."""
    for _ in range(100):
        if condition():
            return True
        brokers.run_for(0.3)
    return False


def in_order(reader: Client, publishers: list[Publishers]) -> None:
    found: dict[bytes, list[int]] = {}
    for _, payload in reader.messages:
        name, _, number = payload.rpartition(b" ")
        found.setdefault(name, []).append(int(number))
    for each in publishers:
        for kind in ("mqtt", "capture", "amqp"):
            assert found[f"{kind} {each.at}".encode()] == list(range(each.sent)), f"{kind} at {each.at}"


@pytest.mark.parametrize("part", some(6, range(12)))
def test_the_order_of_each_publisher_is_kept(part: int, seed: int) -> None:
    chance = random.Random(f"{seed} {part}")
    brokers, views = with_views(chance.getrandbits(32))
    share(brokers, "one", topics=("captured/#",))
    publishers = [Publishers(brokers, at) for at in NAMES]
    brokers.run_for(1.0)
    brokers.writer_s = chance.choice((0.001, 0.005, 0.02))
    for one in NAMES:
        for other in NAMES:
            brokers.network.link(one, other).delay_ms = chance.choice(((0, 2), (5, 10), (20, 60)))
    for view in views:
        view.late_s = chance.choice((0.0, 0.0, 0.01, 0.1))     # when it hears of the new owner
    at = "one"
    for _ in range(4):
        to = chance.choice([name for name in NAMES if name != at])
        pause = chance.choice((0.0, 0.0, 0.02))
        work = move(brokers, to, chance.choice(NAMES))
        while not work.done():
            for each in publishers:
                if chance.random() < 0.7:
                    each.publish(chance.choice((0, 1, 2)))
            brokers.run_for(chance.choice((0.001, 0.003, 0.006)))
        # The node that is asked may not know where the queue is by now.
        assert work.result() is None or "try again" in work.result()
        at = owner_of(brokers)
        brokers.run_for(pause)
    assert holds(brokers, lambda: all([each.done() for each in publishers]))
    assert not any(each.amqp.nacks for each in publishers)
    whole(brokers, at)
    reader = consumer(brokers, chance.choice(NAMES), "r")
    expected = sum(3 * each.sent for each in publishers)
    assert holds(brokers, lambda: len(reader.messages) >= expected)
    in_order(reader, publishers)


def behind_a_silent_link(at: str = "one", owner: str = "two") -> tuple[Brokers, Client]:
    """A publisher of QoS 2 at a node has sent three messages to a queue of another one, and the link there stands
    still."""
    brokers = cluster(*NAMES)
    brokers.start()
    share(brokers, owner)
    publisher = brokers.client(at, "p")
    publisher.connect(clean_start=False, expiry_s=1000, keep_alive=0)
    brokers.run_until(lambda: publisher.connected)
    brokers.run_for(1.0)
    brokers.network.stall(at, owner)
    publish(publisher, range(1, 4))
    brokers.run_for(0.1)
    return brokers, publisher


def moves(brokers: Brokers, to: str) -> None:
    work = move(brokers, to, to)
    brokers.run_until(work.done, 60.0)
    assert work.result() is None
    brokers.run_for(0.1)


@pytest.mark.parametrize(("to", "then"), [("one", ""), ("three", ""), ("three", "one"), ("one", "one")])
def test_what_a_silent_link_holds_up_is_not_overtaken(to: str, then: str) -> None:
    """A publisher of QoS 2 has messages on a link that stands still while their queue moves, and further ones behind
    these. Its connection ends, all of them are given up after route_publish_timeout, and it sends them again, in order.
    What comes late is there already, or was released even."""
    brokers, publisher = behind_a_silent_link()
    moves(brokers, "three")
    publish(publisher, range(4, 7))
    brokers.run_for(0.1)
    publisher.leave()
    brokers.run_for(40.0)
    publisher.connect(at=to, clean_start=False, expiry_s=1000, keep_alive=0)
    brokers.run_until(lambda: publisher.connected, 60.0)
    publish(publisher, range(1, 8), again=range(1, 7))
    brokers.run_for(0.5)
    assert [packet.reason for packet in publisher.of(Pubrec)] == [0] * 7
    if then:                    # the queue moves on, to the node whose publishes are on their way
        moves(brokers, then)
        brokers.run_for(5.0)
    brokers.network.heal()
    brokers.run_until(lambda: {packet.packet_id for packet in publisher.of(Pubcomp)} == {*range(1, 8)}, 60.0)
    brokers.run_until(lambda: not any(broker.node.broker.hub.origins.forwarding
                                      for broker in brokers.processes.values()), 60.0)
    reader = consumer(brokers, "two", "r")
    brokers.run_for(2.0)
    assert [payload for _, payload in reader.messages] == [b"%d" % number for number in range(1, 8)]


def test_what_is_refused_behind_a_silent_link_answers_for_nothing_else() -> None:
    """What came by amq.topic is not refused: its publisher is answered when the new owner has it, not before. What is
    behind it is answered then."""
    brokers, _ = behind_a_silent_link()
    done(Amqp(brokers, "three", acks=False), "queue.bind", queue="q", exchange="amq.topic", routing_key="a.b")
    moves(brokers, "three")
    first, bound, last = (connected(brokers, "one", name) for name in ("first", "bound", "last"))
    for client, topic in ((first, "$queue/q"), (bound, "a/b"), (last, "$queue/q")):
        client.publish(topic, client.name.encode(), 1)
        brokers.run_for(0.1)
    brokers.run_for(5.0)
    brokers.network.stall("one", "three")       # so that what is sent now does not arrive
    brokers.run_until(lambda: first.of(Puback))
    brokers.run_for(1.0)
    assert first.of(Puback)[0].reason == 0x80 and not bound.of(Puback) and not last.of(Puback)
    brokers.network.heal()
    brokers.run_until(lambda: bound.of(Puback) and last.of(Puback))
    assert bound.of(Puback)[0].reason == 0 and last.of(Puback)[0].reason == 0x80
    reader = consumer(brokers, "two", "r")
    brokers.run_for(2.0)
    assert {payload for _, payload in reader.messages} == {b"1", b"2", b"3", b"bound"}


def test_what_a_full_queue_refuses_when_it_comes_answers_for_nothing_else() -> None:
    """Kept at the new owner: one that the queue takes, and one that it refuses. The first is answered when it is on the
    disk."""
    brokers = cluster(*NAMES)
    brokers.start()
    do(brokers, "one", lambda node: node.manager.declare(QueueSpec(name="q", limits=QueueLimits(max_depth=1))))
    takes, refused = (connected(brokers, "two", name) for name in ("takes", "refused"))
    brokers.run_for(1.0)
    brokers.network.link("two", "one").delay_ms = brokers.network.link("one", "two").delay_ms = (20, 20)
    work = move(brokers, "two", "two")
    arrivals = brokers.processes["two"].node.broker.consumers.defined.arrivals
    brokers.run_until(lambda: any(arrival.whole for arrival in arrivals.values()))
    for client in (takes, refused):
        client.publish("$queue/q", client.name.encode(), 1)
    brokers.run_until(lambda: not arrivals)
    brokers.processes["two"].hang()             # its disk
    brokers.run_for(2.0)
    assert work.done() and not takes.of(Puback) and not refused.of(Puback)
    brokers.processes["two"].go_on()
    brokers.run_until(lambda: takes.of(Puback) and refused.of(Puback))
    assert [client.of(Puback)[0].reason for client in (takes, refused)] == [0, 0x97]


def test_what_a_former_owner_has_given_up_is_waited_for() -> None:
    """It was asked before it got the copies; then it has them on a link to the new owner that stands still in its turn,
    and acknowledges them when it has waited for too long."""
    brokers, publisher = behind_a_silent_link("two", "one")
    moves(brokers, "three")
    publisher.leave()
    brokers.run_for(40.0)
    publisher.connect(at="two", clean_start=False, expiry_s=1000, keep_alive=0)
    brokers.run_until(lambda: publisher.connected)
    publish(publisher, range(1, 4), again=range(1, 4))
    brokers.run_for(1.0)
    brokers.network.stall("one", "three")
    brokers.network.heal("two")
    brokers.run_for(60.0)
    brokers.network.heal()
    brokers.run_for(20.0)
    reader = consumer(brokers, "one", "r")
    brokers.run_for(2.0)
    assert [payload for _, payload in reader.messages] == [b"1", b"2", b"3"]


class Waiting(Client):
    """Sends no PUBREL by itself."""

    def send(self, packet: Packet) -> None:
        if not isinstance(packet, Pubrel):
            super().send(packet)

    def release(self, packet_id: int) -> None:
        super().send(Pubrel(packet_id=packet_id))


def test_what_is_released_while_its_queue_comes_does_not_come_with_it() -> None:
    """RELEASE is faster than the rest of the queue, which names the message as one that may come again."""
    brokers = cluster(*NAMES)
    brokers.start()
    share(brokers, "one")
    publisher = Waiting(brokers, "two", "p")
    brokers.clients.append(publisher)
    publisher.connect(clean_start=False, expiry_s=1000, keep_alive=0)
    brokers.run_until(lambda: publisher.connected)
    publish(publisher, [1])
    brokers.run_until(lambda: publisher.of(Pubrec))
    former = brokers.processes["one"].node.manager.queues[Q]
    brokers.network.link("one", "three").delay_ms = (300, 300)
    work = move(brokers, "three", "three")
    brokers.run_until(lambda: former.moving is not None and former.moving.is_relay)
    publisher.release(1)
    brokers.run_until(work.done)
    brokers.run_until(lambda: publisher.of(Pubcomp))
    brokers.run_for(1.0)
    assert work.result() is None
    assert not any(broker.node.hub.origins.known() for broker in brokers.processes.values())


def test_what_was_released_elsewhere_meanwhile_does_not_come_late() -> None:
    """The queue stays, and its publisher goes on at another node."""
    brokers, publisher = behind_a_silent_link()
    publisher.leave()
    brokers.run_for(40.0)
    publisher.connect(at="three", clean_start=False, expiry_s=1000, keep_alive=0)
    brokers.run_until(lambda: publisher.connected, 60.0)
    publish(publisher, range(1, 5), again=range(1, 4))
    brokers.run_for(0.5)
    assert [packet.reason for packet in publisher.of(Pubrec)] == [0] * 4
    brokers.network.heal()
    brokers.run_until(lambda: {packet.packet_id for packet in publisher.of(Pubcomp)} == {*range(1, 5)}, 60.0)
    brokers.run_for(1.0)
    reader = consumer(brokers, "two", "r")
    brokers.run_for(2.0)
    assert [payload for _, payload in reader.messages] == [b"%d" % number for number in range(1, 5)]


def publish(publisher: Client, numbers: Iterable[int], again: Collection[int] = ()) -> None:
    """With QoS 2, and these packet identifiers. again: which of them are sent again."""
    for number in numbers:
        publisher.send(Publish(topic="$queue/q", payload=b"%d" % number, qos=2, packet_id=number, dup=number in again))
