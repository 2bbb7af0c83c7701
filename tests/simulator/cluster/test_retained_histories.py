"""Histories of retained messages that clients of three nodes change in turn, each from one seed.

Publishers at all nodes set and clear a few topics, one after the other and at once, with payloads that the store has
and larger ones, with QoS 0, 1 and 2, and as wills. Readers subscribe in the instant of an acknowledgement, at another
node. Others change many topics meanwhile, so that what goes to the store waits. Nodes are killed, lose their lease
while they stand still, and are cut off; the store does not answer for a while, and forgets its history.

What is checked, by the identities of changes (a payload is published once):

    order           nobody sees a change that was acknowledged before another one of its topic began, once that one is
                    acknowledged, too [MQTT-3.3.1-5, -6]
    subscriptions   with SUBACK a reader gets such a value, or a change that comes after it, and in calm weather nothing
                    twice (MQTT 5.0 section 3.3.1.3)
    agreement       in the end all nodes and the store have the same, and so has every reader that is still there

A change that was not acknowledged (QoS 0, a will, refused, its node died) may take effect at any later time, or never.
"""
from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from oracle.mqtt import Puback, Pubcomp, Publish, Pubrec, Will
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import serving

from fluxmq.cluster.keys import RETAINED_DATA, RETAINED_INDEX, topic_key
from fluxmq.cluster.retained import Value

NAMES = ("one", "two", "three")
TOPICS = ("a", "b", "c/d")
NEVER = 1 << 60
CALM = 3.0                  # s until everything that waits has been written
FULL = 1 << 30              # requests of the store that fail, until it answers again

# Of steps, by what may happen between two.
LEVELS: dict[str, tuple[str, ...]] = {
    "calm": (),
    "store": ("store", "compact"),
    "nodes": ("kill", "still", "cut", "store", "compact"),
}


@dataclass
class Change:
    """Of one topic. payload: b"" clears. begun, acknowledged: by the history's count of events."""

    payload: bytes
    begun: int
    acknowledged: int = NEVER


@dataclass
class Reader:
    """A client that has subscribed to a topic. since: by the history's count of events. calm: nothing has failed since
    it came."""

    client: Client
    topic: str
    since: int
    calm: bool = True


@dataclass
class History:
    seed: int
    faults: tuple[str, ...] = ()
    steps: int = 30
    count: int = 0
    number: int = 0
    changes: dict[str, list[Change]] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    publishers: dict[str, Client] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)

    def play(self) -> None:
        self.chance = random.Random(self.seed)
        self.brokers: Brokers = serving(*NAMES, seed=self.seed)
        self.changes = {topic: [Change(b"", 0, 0)] for topic in TOPICS}
        try:
            for _ in range(self.steps):
                self.step()
            self.end()
        except BaseException as error:
            error.add_note(repr({topic: [(change.payload[:8], change.begun, change.acknowledged) for change in changes]
                                 for topic, changes in self.changes.items()}))
            raise

    # ------------------------------------------------------------------ what clients do

    def now(self) -> int:
        self.count += 1
        return self.count

    def payload(self) -> bytes:
        """Another one each time: small, too large for the store, or none."""
        self.number += 1
        kind = self.chance.random()
        if kind < 0.3:
            return b""
        return b"%08d" % self.number + (b"x" * 3000 if kind > 0.75 else b"")

    def up(self) -> list[str]:
        return [name for name in NAMES if self.brokers.processes[name].serving and name not in self.down]

    def at(self, name: str) -> Client | None:
        """The publisher at a node; None: it has none now."""
        client = self.publishers.get(name)
        if client is None or not client.connected:
            client = self.publishers[name] = self.brokers.client(name, f"p-{name}-{self.now()}")
            client.connect()
            self.brokers.world.holds_within(lambda: client.connected, 1.0)
        return client if client.connected else None

    def begin(self, name: str, topic: str, qos: int) -> tuple[Change, Client, int] | None:
        client = self.at(name)
        if client is None:
            return None
        change = Change(self.payload(), self.now())
        self.changes[topic].append(change)
        return change, client, client.publish(topic, change.payload, qos, retain=True)

    def wait(self, *begun: tuple[Change, Client, int] | None) -> None:
        """Until each is answered, or its connection has ended."""
        for one in begun:
            if one is not None:
                change, client, packet_id = one
                self.brokers.world.holds_within(
                    lambda: client.acknowledged(packet_id) or not client.connected, 20.0)       # noqa: B023
                answers = [packet.reason for packet in client.got if isinstance(packet, Puback | Pubrec | Pubcomp)
                           and packet.packet_id == packet_id]
                if client.acknowledged(packet_id) and max(answers) < 0x80:
                    change.acknowledged = self.now()

    def change(self, name: str, topic: str, qos: int = 0) -> None:
        self.wait(self.begin(name, topic, qos or self.chance.choice((1, 1, 2))))

    def read(self, name: str, topic: str) -> None:
        client = self.brokers.client(name, f"r-{self.now()}")
        client.connect()
        client.subscribe(self.chance.choice((topic, "#")), self.chance.choice((0, 1, 2)))
        self.readers.append(Reader(client, topic, self.now()))

    def will(self, name: str, topic: str) -> None:
        client = self.brokers.client(name, f"w-{self.now()}")
        change = Change(self.payload(), self.now())
        client.connect(will=Will(topic=topic, payload=change.payload, qos=1, retain=True))
        if self.brokers.world.holds_within(lambda: client.connected, 2.0):
            self.changes[topic].append(change)
            client.leave()

    def crowd(self, name: str) -> None:
        client = self.at(name)
        for number in range(150 if client is not None else 0):
            assert client is not None
            client.publish(f"crowd/{number}", b"%d" % self.count, 0, retain=True)

    # ------------------------------------------------------------------ steps

    def step(self) -> None:
        if self.faults and self.chance.random() < 0.15:
            self.trouble(self.chance.choice(self.faults))
        up = self.up()
        if not up:
            self.brokers.run_for(1.0)
            return
        topic = self.chance.choice(TOPICS)
        one, two, three = (self.chance.choice(up) for _ in range(3))
        what = self.chance.random()
        if what < 0.4:
            self.change(one, topic)
            self.brokers.run_for(self.chance.choice((0, 0, 0, 0.003)))
            self.change(two, topic)
            self.read(three, topic)
        elif what < 0.6:
            self.change(one, topic)
            self.read(two, topic)
        elif what < 0.7:
            self.wait(self.begin(one, topic, 1), self.begin(two, topic, 2))
        elif what < 0.8:
            self.begin(one, topic, 0)
        elif what < 0.9:
            self.will(one, topic)
        else:
            self.crowd(one)
        self.brokers.run_for(self.chance.choice((0, 0, 0.001, 0.01, 0.3)))

    def trouble(self, what: str) -> None:
        brokers, name = self.brokers, self.chance.choice(NAMES)
        for reader in self.readers:
            reader.calm = False
        if what == "compact":
            brokers.store.compact()
        elif what == "store":
            brokers.store.counts.fail = FULL if brokers.store.counts.fail == 0 and self.chance.random() < 0.6 else 0
            self.frozen_since = brokers.world.now_ms
        elif what == "cut":
            other = self.chance.choice([each for each in NAMES if each != name])
            (brokers.network.stall if self.chance.random() < 0.5 else brokers.network.cut)(name, other)
            brokers.run_for(self.chance.choice((0.01, 0.5)))
            brokers.network.heal()
        elif what == "kill" and len(self.up()) == len(NAMES):
            brokers.kill(name)
            brokers.store.counts.fail = 0
            if self.chance.random() < 0.5:
                brokers.end_lease_of(name)
                brokers.run_for(self.chance.choice((0, 0.001, 0.7)))
                if self.chance.random() < 0.7:
                    self.change(self.chance.choice(self.up()), self.chance.choice(TOPICS))
            brokers.start(name)
        elif what == "still" and len(self.up()) == len(NAMES):
            brokers.store.counts.fail = 0
            process = brokers.processes[name]
            process.process.pause()
            brokers.run_for(0.01)
            brokers.end_lease_of(name)
            self.down.add(name)
            self.change(self.chance.choice(self.up()), self.chance.choice(TOPICS))
            brokers.run_for(self.chance.choice((0, 0.7)))
            process.process.resume()
            brokers.run_until(lambda: process.fences and process.serving, 60.0)
            self.down.discard(name)
        if brokers.store.counts.fail and brokers.world.now_ms - self.frozen_since > 4000:
            brokers.store.counts.fail = 0       # a lease is renewed in time

    # ------------------------------------------------------------------ the verdict

    def superseded(self, topic: str, change: Change, when: int) -> bool:
        """Whether another one began after it was acknowledged, and was acknowledged itself by then."""
        return any(other.begun > change.acknowledged and other.acknowledged < when for other in self.changes[topic])

    def allowed(self, topic: str, when: int) -> set[bytes]:
        """What may be retained at that time, or become so afterwards."""
        return {change.payload for change in self.changes[topic] if not self.superseded(topic, change, when)}

    def end(self) -> None:
        brokers = self.brokers
        brokers.network.heal()
        brokers.store.counts.fail = 0
        brokers.run_until(lambda: len(self.up()) == len(NAMES), 60.0)
        brokers.run_for(CALM + 6.0)             # and a payload that nobody had is asked for again after 5 s
        last = self.now()
        late = [self.reader(name) for name in NAMES]
        brokers.run_for(1.0)
        for topic in TOPICS:
            allowed = self.allowed(topic, last)
            found: dict[str, Any] = {name: self.kept(name, topic) for name in NAMES}
            found |= {f"reader at {reader.at}": self.last(reader, topic) for reader in late}
            found["store"] = self.stored(topic)
            assert len(set(found.values())) == 1, f"nodes do not agree on {topic}: {self.short(found)}"
            value = found["store"]
            assert value in {payload[:8] for payload in allowed}, (
                f"{topic} is {value!r}, which was replaced; it may be {self.short(allowed)}")
        for reader in self.readers:
            self.judge(reader)

    def judge(self, reader: Reader) -> None:
        allowed = self.allowed(reader.topic, reader.since)
        client = reader.client
        payloads = [payload for topic, payload in client.messages if topic == reader.topic]
        if reader.calm:
            twice = {payload[:8] for payload in payloads if payload and payloads.count(payload) > 1}
            assert not twice, f"a reader of {reader.topic} at {client.at} got twice: {twice}"
        if not client.connected:
            return
        first = [packet.payload for packet in client.of(Publish) if packet.topic == reader.topic and packet.retain]
        assert len(first) <= 1 or not reader.calm, "two values are retained"
        if first:
            assert first[0] in allowed, (f"a reader of {reader.topic} at {client.at} got {first[0][:8]!r}, which was "
                                         f"replaced; it may be {self.short(allowed)}")
        last = payloads[-1][:8] if payloads else b""
        now = self.kept("one", reader.topic)
        settled = all(change.acknowledged != NEVER for change in self.changes[reader.topic]
                      if change.begun >= reader.since or change.payload in allowed)
        if settled and reader.calm:
            assert last in {payload[:8] for payload in self.allowed(reader.topic, self.count)} and (
                last == now or self.overlapping(reader.topic, reader.since)), (
                f"a reader of {reader.topic} at {client.at} saw {last!r} at last, and it is {now!r}")

    def overlapping(self, topic: str, since: int) -> bool:
        """Whether two changes of then or later were under way at once: each publisher has an order of its own."""
        changes = [change for change in self.changes[topic] if change.acknowledged > since]
        return any(one is not other and one.begun < other.begun < one.acknowledged
                   for one in changes for other in changes)

    @staticmethod
    def short(values: Any) -> Any:
        return {key: value[:8] for key, value in values.items()} if isinstance(values, dict) else {
            value[:8] for value in values}

    def reader(self, name: str) -> Client:
        client = self.brokers.client(name, f"last-{name}")
        client.connect()
        for topic in TOPICS:
            client.subscribe(topic, 1)
        return client

    @staticmethod
    def last(client: Client, topic: str) -> bytes:
        payloads = [payload for name, payload in client.messages if name == topic]
        return payloads[-1][:8] if payloads else b""

    def kept(self, name: str, topic: str) -> bytes:
        """The value of a node: of one whose payload is elsewhere, what it has fetched."""
        kept = self.brokers.processes[name].node.hub.root.topics.retained.get(topic.encode())
        return b"" if kept is None else kept.payload[:8]

    def stored(self, topic: str) -> bytes:
        """The store's value; of a large one, what the node has that wrote it."""
        for kind in (RETAINED_DATA, RETAINED_INDEX):
            item = self.brokers.store.items.get(topic_key(kind, b"/", topic.encode()))
            if item is not None:
                value = msgspec.msgpack.decode(item.value, type=Value)
                return value.payload[:8] if kind == RETAINED_DATA else self.kept(value.node, topic)
        return b""


def run(seed: int, faults: tuple[str, ...]) -> None:
    History(seed, faults).play()


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("level", LEVELS)
def test_whoever_saw_a_change_acknowledged_wins_with_the_next(level: str, number: int, seed: int) -> None:
    run(seed * 1000 + number, LEVELS[level])
