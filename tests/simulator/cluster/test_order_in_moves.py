"""The order of each publisher is kept while a queue moves: publishers of MQTT (all QoS), of AMQP and of a captured
topic at all nodes, links of different speed, and moves one after the other.
What judges is the order in the queue's log."""
from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from kit.metadata import MetadataInMemory
from kit.sizes import some
from oracle.amqp091 import BODY, HEADER, METHOD, PROTOCOL, decode_method, encode_frame, encode_header, encode_method
from oracle.mqtt import Puback, Pubcomp
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.machines import Process
from simulator.cluster.test_brokers import cluster, connected
from simulator.cluster.test_queue_moves import move, owner_of, whole
from simulator.cluster.test_queues import NAMES, consumer, share


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
