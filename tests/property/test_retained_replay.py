"""The replay of retained messages against a naive one: a client that subscribes while others set, replace and clear,
reads as it likes, acknowledges as it likes, goes away and comes back."""
from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings
from oracle.mqtt import Publish, parse
from oracle.topics import matching_topics

from fluxmq._core.pubsub.retained import RetainedCursor, RetainedTree
from fluxmq._core.testing.hub_probe import HubProbe

LEVELS = st.sampled_from(["a", "b", "c", "$d"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join)
FILTERS = st.sampled_from(["#", "+/#", "a/#", "a/+", "+/b", "+/+/c", "a/b/c", "+", "$d/#"])
STEPS = st.one_of(
    st.tuples(st.just("set"), TOPICS, st.integers(0, 1)),
    st.tuples(st.just("live"), TOPICS, st.integers(0, 1)),
    st.tuples(st.just("clear"), TOPICS, st.just(0)),
    st.tuples(st.just("round"), st.just(""), st.just(0)),
    st.tuples(st.just("read"), st.just(""), st.integers(0, 3)),
    st.tuples(st.just("leave"), st.just(""), st.just(0)),
    st.tuples(st.just("return"), st.just(""), st.just(0)),
)


@dataclass
class World:
    """version: of each topic's value, which is its payload. had: what the client was sent, without repetitions."""

    probe: HubProbe
    window: int
    filter: str
    held: dict[str, int] = field(default_factory=dict)
    last: int = 0
    had: list[Publish] = field(default_factory=list)
    unacknowledged: list[int] = field(default_factory=list)
    connected: bool = True

    def publish(self, topic: str, qos: int, retain: bool) -> None:
        self.last += 1
        self.probe.hub.publish_message(topic.encode(), b"%d" % self.last, qos, retain)
        if retain:
            self.held[topic] = self.last

    def clear(self, topic: str) -> None:
        self.probe.hub.publish_message(topic.encode(), b"", 0, True)
        self.held.pop(topic, None)

    def read(self, acknowledge: int) -> bool:
        data = self.probe.take(0)
        found = bool(data)
        while data:
            parsed = parse(data, 4)
            assert parsed is not None and isinstance(parsed[0], Publish)
            packet, data = parsed
            if not packet.dup:
                self.had.append(packet)
            if packet.qos:
                self.unacknowledged.append(packet.packet_id)
        for packet_id in self.unacknowledged[:acknowledge]:
            self.probe.puback(0, packet_id)
        self.unacknowledged = self.unacknowledged[acknowledge:]
        return found

    def leave(self) -> None:
        self.read(0)
        self.probe.detach(0)
        self.connected = False
        self.unacknowledged = []

    def come_back(self) -> None:
        if not self.connected:
            self.probe.attach(0, window=self.window)
            self.connected = True


@settings(max_examples=300, deadline=None)
@given(before=st.lists(st.tuples(TOPICS, st.integers(0, 1)), max_size=25), topic_filter=FILTERS, qos=st.integers(0, 1),
       window=st.integers(1, 3), steps=st.lists(STEPS, max_size=40), away=st.booleans())
def test_each_value_comes_once_and_none_is_missed(before: list[tuple[str, int]], topic_filter: str, qos: int,
                                                  window: int, steps: list[tuple[str, str, int]], away: bool) -> None:
    world = World(HubProbe(1), window, topic_filter)
    world.probe.attach(0, window=window)
    for topic, quality in before:
        world.publish(topic, quality, True)
    at_subscribe = dict(world.held)
    matched = {topic.decode() for topic in matching_topics_of(topic_filter, world.held)}
    world.probe.subscribe(0, topic_filter.encode(), qos)
    world.probe.hub.deliver_retained(world.probe.sessions[0], topic_filter.encode(), qos, 0)
    left = False
    for what, topic, number in steps:
        if what == "set":
            world.publish(topic, number, True)
        elif what == "live":
            world.publish(topic, number, False)
        elif what == "clear":
            world.clear(topic)
        elif what == "round":
            world.probe.replay()
        elif what == "read" and world.connected:
            world.read(number)
        elif what == "leave" and away and world.connected:
            world.leave()
            left = True
        elif what == "return":
            world.come_back()
    world.come_back()
    idle = 0
    while idle < 3:
        world.probe.replay()
        idle = 0 if world.read(100) or world.unacknowledged else idle + 1

    replayed = [packet for packet in world.had if packet.retain]
    values = {packet.topic: int(packet.payload) for packet in replayed}
    # Away, a client may be sent a value that it had when it was set, or one that was set when it was not there.
    if not left:
        assert len(values) == len(replayed), "none twice"
        assert all(at_subscribe[topic] == value for topic, value in values.items()), "values of that time"
    for topic in matched:
        if world.held.get(topic) == at_subscribe[topic]:
            assert values.get(topic) == at_subscribe[topic], "what stood all the time was sent"
    assert set(values) <= matched | ({topic.decode() for topic in matching_topics_of(topic_filter, world.held)}
                                     if left else set())
    latest: dict[str, int] = {}
    for packet in world.had:
        value = int(packet.payload) if packet.payload else world.last + 1
        if packet.retain or value in world.held.values():
            assert value >= latest.get(packet.topic, 0), "no older value behind a newer one"
            latest[packet.topic] = value


def matching_topics_of(topic_filter: str, held: dict[str, int]) -> list[bytes]:
    by_topic = {topic.encode(): topic.encode() for topic in held}
    return matching_topics(topic_filter.encode(), by_topic)


@settings(max_examples=200, deadline=None)
@given(names=st.lists(st.integers(0, 40), max_size=60), changes=st.lists(
    st.tuples(st.booleans(), st.integers(0, 60), st.integers(1, 7)), max_size=60),
       topic_filter=st.sampled_from([b"#", b"w/+", b"+/#", b"w/#", b"+/+/x", b"w/+/#"]))
def test_a_walk_over_a_tree_that_changes(names: list[int], changes: list[tuple[bool, int, int]],
                                         topic_filter: bytes) -> None:
    """Wide nodes, whose children are kept in a list with holes: what stands all the time is met once."""
    tree = RetainedTree()
    held: dict[bytes, bytes] = {}

    def topic_of(number: int) -> bytes:
        return b"w/%d/x" % number if number % 3 else b"w/%d" % number

    for number in names:
        held[topic_of(number)] = topic_of(number)
        tree.set(topic_of(number), topic_of(number))
    always = set(matching_topics(topic_filter, held))
    cursor = RetainedCursor(tree, topic_filter)
    met: list[bytes] = []

    def walk(steps: int) -> None:
        value = cursor.step(steps)
        if value is not None:
            met.append(value)

    for adds, number, steps in changes:
        walk(steps)
        topic = topic_of(number)
        if adds:
            tree.set(topic, topic)
        else:
            tree.pop(topic)
            always.discard(topic)
    while not cursor.ended:
        walk(5)
    assert always <= set(met)
    assert all(met.count(topic) == 1 for topic in always)
