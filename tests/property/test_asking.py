"""Connections of both protocols whose publishes are asked about, answers in any order, closings in between: each
connection's publishes arrive in their order, none before its verdict, none that was refused, none lost or twice."""
from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.amqp_wire import Wire
from kit.client import Client
from kit.deciding import Asked, Decider, SocketAuthority
from kit.node import Node
from kit.watch import wait_until
from oracle.mqtt import Pingreq, Pingresp, Puback, Publish

NOT_AUTHORIZED = 0x87
kinds = st.sampled_from(["open", "yes", "yes", "no"])
_numbers = itertools.count()


class Speaker:
    """A client that publishes all it has at once. What it sends: topics, of which the first part says what is to be
    decided. MQTT 3.1.1 and AMQP have no answer for a refusal but an end, so theirs are all allowed."""

    def __init__(self, world: World, protocol: str, said: list[str]) -> None:
        self.name = f"c{next(_numbers):06}"
        self.protocol = protocol
        self.topics = [f"{kind if protocol == 'mqtt5' else kind.replace('no', 'yes')}/{self.name}/{number}"
                       for number, kind in enumerate(said)]
        self.closed_at: int | None = None       # the publish that was being asked about
        if protocol == "amqp":
            self.wire = Wire(world.node.listens("amqp091.plain")).login()
            self.wire.open_channel(1)
            self.wire.call(1, "confirm.select")
            self.wire.send_raw(b"".join(self.wire.encode_publish(1, "amq.topic", topic.replace("/", "."), b"x")
                                        for topic in self.topics))
        else:
            self.client = Client(world.node.listens("mqtt.tcp.plain"), 5 if protocol == "mqtt5" else 4)
            self.client.connect(self.name)
            self.client.send(*(Publish(topic=topic, payload=b"x", qos=1, packet_id=number + 1)
                               for number, topic in enumerate(self.topics)))

    def expected(self) -> list[str]:
        return [topic for topic in self.topics[:self.closed_at] if not topic.startswith("no/")]

    def check_answers(self) -> None:
        if self.protocol == "amqp":
            confirmed = 0
            while confirmed < len(self.topics):
                confirmed = self.wire.expect(1, "basic.ack")["delivery_tag"]
        else:
            for number, topic in enumerate(self.topics):
                answer = self.client.expect(Puback, packet_id=number + 1)
                assert (answer.reason == NOT_AUTHORIZED) == topic.startswith("no/")

    def cut(self) -> None:
        """The connection is reset, which the broker notices although it does not read."""
        raw = self.wire.socket if self.protocol == "amqp" else cast(socket.socket, self.client.transport)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.wire.drop() if self.protocol == "amqp" else self.client.close()


class World:
    def __init__(self, folder: Path) -> None:
        self.decider = Decider(folder / "decider")
        self.node = Node(folder, {"server.amqp091.plain.addr": "127.0.0.1:0", "storage.type": "memory",
                             "auth.ask_timeout": "1h"},
                         SocketAuthority(folder / "decider"))
        self.listener = Client(self.node.listens("mqtt.tcp.plain"), 5)
        self.listener.connect("listener")
        self.seen: list[str] = []

    def look(self) -> list[str]:
        """What was delivered so far, in order."""
        self.listener.send(Pingreq())
        while not isinstance(packet := self.listener.recv(), Pingresp):
            assert isinstance(packet, Publish)
            assert isinstance(packet.topic, str)
            self.seen.append(packet.topic)
        return self.seen

    def asking(self) -> int:
        return self.node.call(lambda server: server.permissions.asking.waiting)

    def stop(self) -> None:
        self.listener.close()
        self.node.stop()
        self.decider.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    one = World(tmp_path)
    one.decider.policy = lambda asked: True if asked.action == "subscribe" else None
    one.listener.subscribe("#")
    yield one
    one.stop()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=st.lists(st.tuples(st.sampled_from(["mqtt5", "mqtt4", "amqp"]), st.lists(kinds, min_size=1, max_size=8)),
                      min_size=1, max_size=4), seed=st.integers(0, 1 << 32))
def test_connections_that_are_asked_about(world: World, plans: list[tuple[str, list[str]]],
                                          seed: int) -> None:
    chance = Random(seed)           # drawn now: an example that hypothesis breaks off would leave questions behind
    world.seen.clear()
    speakers = {one.name: one for one in (Speaker(world, *plan) for plan in plans)}
    pool: list[tuple[Speaker, Asked]] = []
    asks = {name: [at for at, topic in enumerate(one.topics) if not topic.startswith("open/")]
            for name, one in speakers.items()}
    while any(asks.values()):
        while len(pool) < sum(bool(left) for left in asks.values()):
            asked = world.decider.take()
            speaker = speakers[asked.topic.split("/")[1]]
            assert speaker.topics.index(asked.topic) == asks[speaker.name][0], "asked out of order, or twice"
            pool.append((speaker, asked))
        pool.sort(key=lambda one: one[0].name)
        for speaker, asked in pool:
            at = speaker.topics.index(asked.topic)
            assert not set(world.look()) & set(speaker.topics[at:]), "delivered before its verdict, or that of an elder"
        speaker, asked = pool.pop(chance.randrange(len(pool)))
        if chance.random() < 0.1:
            speaker.cut()
            wait_until(lambda: world.asking() == len(pool))     # one for each of the others, and their answers are here
            speaker.closed_at = asks[speaker.name][0]
            asks[speaker.name] = []
            if chance.random() < 0.5:
                world.decider.answer(asked, True)       # too late: whoever it was about has gone
        else:
            asks[speaker.name].pop(0)
            world.decider.answer(asked, asked.topic.startswith("yes/"))
    for speaker in speakers.values():
        if speaker.closed_at is None:
            speaker.check_answers()
            speaker.close()
    found = world.look()
    for speaker in speakers.values():
        mine = [topic for topic in found if topic.split("/")[1] == speaker.name]
        assert mine == speaker.expected()
    assert world.decider.questions.empty()
    assert world.node.call(lambda server: (server.permissions.asking.waiting, server.hub.awaited)) == (0, 0)
