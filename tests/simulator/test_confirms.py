"""Publisher confirms of one channel whose messages go to the journal and to queues of other nodes, whose lines are
driven here in any order. Each tag is answered once, in the turn in which the last of what it waits for is decided, and
by the truth: a nack if an owner has refused one of its messages, or nobody knows of one."""
from __future__ import annotations

import random
from typing import Any

import pytest
from oracle.amqp091 import BODY, HEADER, METHOD, PROTOCOL, decode_method, encode_frame, encode_header, encode_method
from simulator.disk import Disk
from simulator.node import Clock, Node, Options

from fluxmq._core.memory.commits import Line
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq.cluster.solo import solo
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.model.queues import QueueSpec

OWNERS = {"p": "x", "q": "x", "r": "y", "s": "z"}  # queues of other nodes
# Routing keys: the queues that a message with it goes to; "near" is of this node. "": to none.
KEYS = ["p", "q", "r", "s", "near", "p q", "p r", "q p s", "near p", "near r s", "near p q r s", ""]
JOURNAL = "journal"


class Way:
    """A line, and what has become of its positions."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.given = self.decided = 0
        self.refused: set[int] = set()


class World:
    """A node with a publisher, and the ways to three others."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        alone = solo()
        cluster = Cluster(alone.directory, self, alone.replicator)  # type: ignore[arg-type]
        self.node = Node(Disk(random.Random(seed)), Clock(), Options(virtual_hosts=("/",)), random.Random(seed),
                         lambda *told: None, cluster=cluster)
        self.outboxes: dict[str, PeerOutbox] = {}
        self.node.start()
        manager, defined = self.node.manager, self.node.broker.consumers.defined
        manager.declare(QueueSpec(name="near"))
        for number, (name, owner) in enumerate(OWNERS.items()):
            defined.set_owner(manager.make_relay(QueueSpec(name=name), None, 1000 + number), owner)
        self.ways = {name: Way(outbox.queue_line) for name, outbox in self.outboxes.items()}
        self.node.exchanges.declare(b"/", b"e", b"direct")
        for key in KEYS:
            for queue in key.split():
                self.node.exchanges.bind(b"/", b"e", queue.encode(), key.encode())
        self.waits: dict[int, list[tuple[str, int]]] = {}  # tag -> the positions that decide it
        self.answers: dict[int, bool] = {}  # tag -> whether it was refused
        self.methods: list[str] = []
        self.tag = 0
        self._read = b""
        self.pipe = self.node.accept_amqp()
        self.send(PROTOCOL)
        self.method("connection.start-ok", 0, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US")
        self.method("connection.tune-ok", 0, channel_max=10, frame_max=131072, heartbeat=0)
        self.method("connection.open", 0, virtual_host="/")
        self.method("channel.open")
        self.method("confirm.select")
        self.settle()
        assert self.methods[-1] == "confirm.select-ok"

    def hop(self, node: str) -> PeerOutbox:
        """See engine.ports.cluster.Peers."""
        if node not in self.outboxes:
            self.outboxes[node] = PeerOutbox(self.node.hub, node, 1, 1 << 24)
        return self.outboxes[node]

    def reference(self, node: str) -> str:
        """The same."""
        return ""

    def send(self, data: bytes) -> None:
        self.pipe.to_broker += data

    def method(self, name: str, channel: int = 1, **arguments: Any) -> None:
        self.send(encode_frame(METHOD, channel, encode_method(name, **arguments)))

    def publish(self, key: str) -> None:
        assert key in KEYS
        self.tag += 1
        waits = self.waits[self.tag] = []
        for queue in key.split():
            if queue == "near":
                waits.append((JOURNAL, 0))
            else:
                way = self.ways[OWNERS[queue]]
                way.given += 1
                waits.append((OWNERS[queue], way.given))
        self.method("basic.publish", exchange="e", routing_key=key)
        self.send(encode_frame(HEADER, 1, encode_header(1, {"delivery_mode": 2})) + encode_frame(BODY, 1, b"x"))

    def turn(self) -> None:
        self.node.turn()
        self.read()
        self.check()

    def settle(self) -> None:
        """Until the journal is idle."""
        for _ in range(50):
            self.node.turn()
            if not self.node.write_journal() and self.node.journal_idle and not self.node.woken:
                break
        self.node.turn()
        self.read()

    def read(self) -> None:
        self._read += bytes(self.pipe.to_client)
        self.pipe.to_client.clear()
        while len(self._read) >= 8:
            kind, size = self._read[0], int.from_bytes(self._read[3:7], "big")
            payload, self._read = self._read[7:7 + size], self._read[size + 8:]
            assert kind == METHOD
            name, arguments = decode_method(payload)
            self.methods.append(name)
            if name in ("basic.ack", "basic.nack"):
                self.answered(arguments["delivery_tag"], arguments["multiple"], name == "basic.nack")

    def answered(self, upto: int, multiple: bool, refused: bool) -> None:
        first = 1 if multiple else upto
        fresh = [tag for tag in range(first, upto + 1) if tag not in self.answers]
        assert fresh, f"{upto} is answered a second time"
        for tag in fresh:
            assert refused == self.is_refused(tag), tag
            assert refused or self.is_decided(tag) is not False, f"{tag} is answered too early"
            self.answers[tag] = refused

    def is_refused(self, tag: int) -> bool:
        return any(at in self.ways[name].refused for name, at in self.waits[tag] if name != JOURNAL)

    def is_decided(self, tag: int) -> bool | None:
        """None: the journal alone says."""
        waits = self.waits[tag]
        if any(at > self.ways[name].decided for name, at in waits if name != JOURNAL):
            return False
        if not waits or any(name == JOURNAL for name, _ in waits):
            return True if self.node.journal_idle and not self.node.woken else None
        return True

    def check(self) -> None:
        """What is decided has been answered."""
        late = [tag for tag in self.waits if tag not in self.answers and self.is_decided(tag)]
        assert not late, f"{late} wait though nothing is missing: {[self.waits[tag] for tag in late]}"

    def drive(self) -> None:
        """Something becomes of what one of the nodes was sent."""
        way = self.chance.choice(list(self.ways.values()))
        if way.given == way.decided:
            return
        upto = self.chance.randint(way.decided + 1, way.given)
        kind = self.chance.random()
        if kind < 0.2:
            way.refused.add(upto)
            way.line.refuse(upto, 0x97, "full")
            return
        if kind < 0.3:
            way.refused |= set(range(way.decided + 1, upto + 1))
            way.line.give_up("it has not answered", upto)
        else:
            way.line.commit(upto)
        way.decided = upto

    def step(self) -> None:
        kind = self.chance.random()
        if kind < 0.5:
            for _ in range(self.chance.choice((1, 1, 2, 5))):
                self.publish(self.chance.choice(KEYS))
            self.turn()
        elif kind < 0.8:
            self.drive()
            self.turn()
        elif kind < 0.9:
            self.drive()        # two lines at once
            self.drive()
            self.turn()
        else:
            self.settle()
            self.check()

    def finish(self) -> None:
        for way in self.ways.values():
            way.decided = way.given
            way.line.commit(way.given)
        self.settle()
        self.check()
        assert len(self.answers) == self.tag


@pytest.mark.parametrize("seed", range(12))
def test_confirms_of_several_lines_are_answered_once_at_once_and_by_the_truth(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.step()
    world.finish()
    assert {True, False} == set(world.answers.values()) and world.tag > 100
    world.node.hub.end()


@pytest.mark.parametrize("ends", ["channel.close", "connection.close"])
@pytest.mark.parametrize("seed", range(4))
def test_a_channel_that_closes_is_closed_behind_its_confirms(seed: int, ends: str) -> None:
    """So a channel of the same number that is opened next has no confirm of the former one."""
    world = World(seed)
    for _ in range(20):
        world.step()
    world.publish("near p q r s")   # at least this one waits
    world.method(ends, 1 if ends == "channel.close" else 0, reply_code=200, reply_text="", class_id=0, method_id=0)
    world.turn()
    for _ in range(20):
        assert f"{ends}-ok" not in world.methods
        world.settle()
        world.drive()
        if all(way.given == way.decided for way in world.ways.values()):
            break
        world.turn()
    world.finish()
    assert world.methods[-1] == f"{ends}-ok"
    world.node.hub.end()
