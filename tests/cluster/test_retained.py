"""Retained messages between nodes: whose value wins, and how many transactions it takes."""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from cluster.world import NO_MEMBERSHIP, World

from fluxmq._core.hub.hub import Hub
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.pubsub.retained import Retained
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import RETAINED_DATA, RETAINED_INDEX, topic_key
from fluxmq.cluster.ports import CallFailed, Change, Transport
from fluxmq.cluster.retained import RetainedMessages, Value
from fluxmq.engine.retained_revisions import RetainedRevisions

DATA, INDEX = (topic_key(kind, b"/", b"t") for kind in (RETAINED_DATA, RETAINED_INDEX))
WALL_MS = 1_700_000_000_000


class Calls:
    """A Transport whose calls are answered by members of the same world, by name. down: these do not answer."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.down: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.lives: list[Member] = []

    async def call(self, address: str, method: str, body: bytes, limit_s: float) -> AsyncIterator[bytes]:
        self.calls.append((address, method))
        if address in self.down:
            raise CallFailed("unreachable", reached=False)
        async for part in self.members[address].retained.payloads.serve(body):
            yield part


class Told(NamedTuple):
    """In place of a PeerOutbox."""

    retained: Callable[..., None]


class Member:
    """A node's hub and its retained messages. former: of its last life, whose disk it has."""

    def __init__(self, world: World, name: str, former: Member | None = None, leader: bool = False) -> None:
        self.world, self.name = world, name
        self.log: list[Any] = []
        self.alive: set[int] = set()        # lives of nodes whose streams bring what the store shows
        self.hub = Hub(None)
        self.hub.set_clock(WALL_MS + world.ms, world.ms)
        self.revisions = RetainedRevisions(self.hub)
        self.feed = Feed(world.store, world.driver, NO_MEMBERSHIP)
        self.retained = RetainedMessages(name, world.store, self.feed, cast(Transport, calls_of(world)), world.driver,
                                         threshold=100, is_leader=lambda: leader, sources=self._sources,
                                         lives=lambda life: life in self.alive, node_of=lambda slot: f"{slot}",
                                         log=lambda *said: self.log.append(said))
        self.retained.attach(self.hub, self.revisions)
        self.feed.listen((RETAINED_DATA, RETAINED_INDEX), self.retained.on_event)
        calls_of(world).members[name] = self
        if former is not None:
            rows = former.rows()
            for topic, value in former.hub.root.topics.retained:
                self.hub.retained.learn(self.hub.root.topics, topic, value.payload, value.qos)
            for key, row in rows.items():
                self.revisions.load(key[1:], row)

    def rows(self) -> dict[bytes, bytes]:
        """What a view has of the revisions."""
        former = dict(self._stored) if hasattr(self, "_stored") else {}
        puts, deletes = self.revisions.export()
        former.update(puts)
        for key in deletes:
            former.pop(key, None)
        self._stored = former
        return former

    def start(self) -> Member:
        self.retained.begin(len(calls_of(self.world).lives) + 1)
        calls_of(self.world).lives.append(self)
        self.world.end(self.feed.load())
        self.retained.loaded()
        for other in list(calls_of(self.world).members.values()):
            if other is not self and other.name not in calls_of(self.world).down:
                other.retained.greet(cast(PeerOutbox, Told(self.retained_of)), 0)
        self.retained.told()
        self.world.start(self.feed.follow())
        self.world.run(50)
        return self

    def retained_of(self, namespace: bytes, topic: bytes, kept: Retained | None, version: int, life: int,
                    size: int = 0) -> None:
        """PeerOutbox.retained: what another node tells this one, which has come."""
        topics = self.hub.namespaces.add(namespace).topics
        if (version, life) > self.hub.retained.version_of(topics, topic):
            payload, absent = (b"", False) if kept is None else (kept.payload, len(kept.payload) >= 100)
            self.hub.retained.learn(topics, topic, b"" if absent else payload, version=version, life=life,
                                    absent=absent)
            self.hub.retained.set_version(topics, topic, topics.retained.get(topic), version, life)
            self.hub.retained.learned[namespace, topic] = (1, size) if absent else None

    def hear_nothing(self) -> None:
        """The store does what this node asks for, and the answer does not come, nor an event."""
        self.feed.close()
        self.world.store.counts.lose_answers = 1

    def _sources(self, first: str) -> list[str]:
        return sorted(calls_of(self.world).members.keys() - {self.name}, key=lambda name: name != first)

    def kill(self) -> None:
        calls_of(self.world).down.add(self.name)
        self.feed.close()
        self.retained.close("killed")

    def publish(self, payload: bytes, topic: bytes = b"t", **how: Any) -> None:
        self.hub.publish_message(topic, payload, 1, True, **how)

    def value(self, topic: bytes = b"t") -> bytes | None:
        kept = self.hub.root.topics.retained.get(topic)
        return None if kept is None else kept.payload


def calls_of(world: World) -> Calls:
    return cast(Calls, world.__dict__.setdefault("calls", Calls()))


@pytest.fixture
def world() -> World:
    return World()


def two(world: World) -> tuple[Member, Member]:
    return Member(world, "one").start(), Member(world, "two").start()


def put(world: World, payload: bytes, node: str = "three", key: bytes = DATA) -> None:
    """Another node writes."""
    world.store.apply([Change(key, msgspec.msgpack.encode(Value(node, 1, len(payload), payload=payload)))])


def stored(world: World, key: bytes = DATA) -> bytes | None:
    item = world.store.items.get(key)
    return None if item is None else msgspec.msgpack.decode(item.value, type=Value).payload


def settled(world: World, *members: Member) -> None:
    world.run(3000)
    assert not any(member.revisions.pending or member.revisions.lacking or member.retained._under_way
                   or member.retained._held for member in members)


def test_a_value_gets_to_the_other_nodes_and_is_cleared_there(world: World) -> None:
    one, two_ = two(world)
    one.publish(b"x", properties=b"\x03\x00\x01a")
    world.run(50)
    assert two_.value() == b"x" and stored(world) == b"x"
    assert two_.hub.root.topics.retained.get(b"t").properties == b"\x03\x00\x01a"
    two_.publish(b"y")
    world.run(50)
    assert one.value() == b"y"
    one.publish(b"")
    world.run(50)
    assert two_.value() is None and not world.store.items
    settled(world, one, two_)
    assert not one.revisions.known and not two_.revisions.known


def test_namespaces_are_made_where_they_are_not_known(world: World) -> None:
    one, two_ = two(world)
    one.hub.publish_message(b"t", b"x", retain=True, namespace=one.hub.namespaces.add(b"tenant"))
    world.run(50)
    assert two_.hub.namespaces[b"tenant"].topics.retained.get(b"t").payload == b"x"
    assert two_.value() is None


def test_the_brokers_own_status_is_not_shared(world: World) -> None:
    one, two_ = two(world)
    one.publish(b"1", b"$SYS/broker/uptime")
    put(world, b"2", key=topic_key(RETAINED_DATA, b"/", b"$SYS/x"))
    world.run(50)
    assert two_.value(b"$SYS/broker/uptime") is None and two_.value(b"$SYS/x") is None
    assert len(world.store.items) == 1


def written(world: World) -> int:
    """How often a retained message was written."""
    return sum(event.key.startswith(topic_key(RETAINED_DATA, b"/", b"")) for event in world.store.history)


def test_many_publishes_to_a_topic_are_few_transactions(world: World) -> None:
    one, two_ = two(world)
    for number in range(1000):
        for topic in range(100):
            one.publish(b"%d" % number, b"t/%d" % topic)
        if number % 100 == 0:
            world.run(10)
    settled(world, one, two_)
    assert all(two_.value(b"t/%d" % topic) == b"999" for topic in range(100))
    assert len(world.store.transactions) <= 20
    assert written(world) <= 500


def test_rounds_of_many_topics_leave_time_for_others(world: World) -> None:
    """A round of a thousand topics takes half a second, and they are written again two seconds after its beginning."""
    one, _ = two(world)
    for payload in (b"a", b"b"):
        for topic in range(1000):
            one.publish(payload, b"t/%d" % topic)
        world.run(100)
        assert written(world) < 1000
    world.run(1500)
    assert written(world) == 1000
    again = one.retained.waiting            # whose first value was written before the second came
    assert 0 < again < 1000
    world.run(1500)
    assert written(world) == 1000 + again and not one.retained.waiting


@pytest.mark.parametrize("order", [0, 1])
def test_two_that_write_at_once_agree_with_the_store(world: World, order: int) -> None:
    members = two(world)
    members[order].publish(b"a")
    members[1 - order].publish(b"b")
    settled(world, *members)
    assert members[0].value() == members[1].value() == stored(world) in (b"a", b"b")


def test_a_value_that_was_not_written_yet_wins_over_an_older_event(world: World) -> None:
    one, two_ = two(world)
    put(world, b"other")
    one.publish(b"mine")
    settled(world, one, two_)
    assert one.value() == two_.value() == stored(world) == b"mine"


def test_somebody_who_writes_after_this_node_wins_although_its_answer_is_late(world: World) -> None:
    one, two_ = two(world)
    world.store.counts.lose_answers = 1         # the writer repeats it after a tenth of a second
    one.publish(b"mine")
    world.run(30)
    assert stored(world) == b"mine"
    put(world, b"newer")
    settled(world, one, two_)
    assert one.value() == two_.value() == stored(world)


@pytest.mark.parametrize("first,second", [(10, 200), (200, 10)])
def test_a_payload_that_crosses_the_threshold_leaves_one_key(world: World, first: int, second: int) -> None:
    one, two_ = two(world)
    for member, size in ((one, first), (two_, second)):
        member.publish(b"x" * size)
        settled(world, one, two_)
        assert list(world.store.items) == [DATA if size < 100 else INDEX]
    two_.publish(b"")
    settled(world, one, two_)
    assert not world.store.items and one.value() is None


def test_what_was_not_written_is_written_after_a_restart(world: World) -> None:
    one, two_ = two(world)
    one.publish(b"a")
    settled(world, one, two_)
    one.publish(b"b")
    one.kill()
    world.run(20)
    assert stored(world) == b"a"
    again = Member(world, "one", one).start()
    settled(world, again)
    assert stored(world) == again.value() == two_.value() == b"b"


def test_an_old_value_does_not_replace_a_newer_one(world: World) -> None:
    one, two_ = two(world)
    one.publish(b"a")
    settled(world, one, two_)
    one.publish(b"b")
    one.kill()
    two_.publish(b"c")
    settled(world, two_)
    again = Member(world, "one", one).start()
    settled(world, again)
    assert stored(world) == again.value() == two_.value() == b"c"


def test_an_old_value_does_not_come_back_after_it_was_cleared(world: World) -> None:
    one, two_ = two(world)
    one.publish(b"a")
    settled(world, one, two_)
    one.publish(b"b")
    one.kill()
    two_.publish(b"")
    settled(world, two_)
    again = Member(world, "one", one).start()
    settled(world, again)
    assert stored(world) is None and again.value() is None and two_.value() is None


def test_a_topic_that_was_cleared_while_the_node_was_away_is_cleared(world: World) -> None:
    one, two_ = two(world)
    one.publish(b"a")
    settled(world, one, two_)
    one.kill()
    two_.publish(b"")
    settled(world, two_)
    assert Member(world, "one", one).start().value() is None


@pytest.mark.parametrize("then", [b"b", b""])
def test_what_this_node_wrote_before_it_died_does_not_replace_what_it_got_later(world: World, then: bytes) -> None:
    """Its transaction was done, it published once more, and died before it heard of the first."""
    one, two_ = two(world)
    one.hear_nothing()
    one.publish(b"a")
    world.run(10)
    one.publish(then)
    one.kill()
    world.run(50)
    assert stored(world) == b"a" and (b"/", b"t") not in one.revisions.known
    if then:
        again = Member(world, "one", one).start()
        settled(world, again)
        assert stored(world) == again.value() == two_.value() == b"b"
    else:                                       # the journal has the clearing; the view of a test does not
        again = Member(world, "one", one)
        again.revisions.pending[b"/", b"t"] = 0
        again.start()
        settled(world, again)
        assert stored(world) is None and two_.value() is None


def test_a_publish_after_a_clearing_that_this_node_did_not_hear_of_is_written(world: World) -> None:
    one, two_ = two(world)
    one.publish(b"a")
    settled(world, one, two_)
    one.hear_nothing()
    one.publish(b"")
    world.run(10)
    one.publish(b"b")
    one.kill()
    world.run(50)
    assert stored(world) is None and one.revisions.known
    again = Member(world, "one", one).start()
    settled(world, again)
    assert stored(world) == again.value() == two_.value() == b"b"


def test_messages_of_a_node_that_was_alone_come_along(world: World) -> None:
    two_ = Member(world, "two").start()
    two_.publish(b"cluster", b"both")
    settled(world, two_)
    alone = Member(world, "one")
    alone.hub.retained.changed = None
    for topic in (b"both", b"own"):
        alone.publish(b"alone", topic)
    one = Member(world, "one", alone).start()
    settled(world, one, two_)
    for member in (one, two_):
        assert (member.value(b"both"), member.value(b"own")) == (b"cluster", b"alone")


def test_a_start_records_nothing_of_what_it_knew(world: World) -> None:
    one, _ = two(world)
    one.publish(b"a")
    world.run(1000)
    one.kill()
    again = Member(world, "one", one).start()
    assert again.rows() == {}


def test_the_leader_deletes_what_has_expired(world: World) -> None:
    one, leader = Member(world, "one").start(), Member(world, "two", leader=True).start()
    one.publish(b"a", expires_at=one.hub.steady_ms + 5000)
    one.publish(b"b", b"stays")
    settled(world, one, leader)
    assert leader.hub.root.topics.retained.get(b"t").expires_at == one.hub.root.topics.retained.get(b"t").expires_at
    for member in (one, leader):
        member.hub.set_clock(WALL_MS + world.ms + 10_000, world.ms + 10_000)
        member.hub.namespaces.expire_retained()
    world.run(31_000)
    assert list(world.store.items) == [topic_key(RETAINED_DATA, b"/", b"stays")]
    settled(world, one, leader)
    assert list(one.revisions.known) == [(b"/", b"stays")]


def test_a_compaction_and_requests_that_fail_hide_nothing(world: World) -> None:
    one, two_ = two(world)
    for number in range(5):
        world.store.counts.fail = number
        one.publish(b"%d" % number)
        two_.publish(b"%d" % number, b"other")
        world.run(20)
        world.store.compact()
    settled(world, one, two_)
    world.run(1000)
    for member in (one, two_):
        assert (member.value(), member.value(b"other")) == (b"4", b"4")


def test_what_somebody_else_has_written_there_is_left_out(world: World) -> None:
    one, _ = two(world)
    world.store.apply([Change(DATA, b"\xff")])
    put(world, b"x", key=topic_key(RETAINED_DATA, b"/", b"a/+"))
    world.run(50)
    assert one.value() is None and len(one.log) == 2
    assert one.log[1][2:] == ("a retained message in etcd cannot be used, and is left out: publish it again", {
        "topic": "a/+", "namespace": "/", "why": one.log[1][1]})


LARGE = bytes(range(256)) * 4000


def test_a_payload_that_is_not_in_the_store_is_fetched_in_parts_and_stays_in_memory(world: World) -> None:
    one, two_ = two(world)
    one.publish(LARGE, properties=b"\x03\x00\x01a")
    settled(world, one, two_)
    assert stored(world, INDEX) == b"" and two_.value() == LARGE
    kept = two_.hub.root.topics.retained.get(b"t")
    assert kept.properties == b"\x03\x00\x01a" and kept.unstored and not kept.absent
    assert two_.hub.retained.bytes == one.hub.retained.bytes and two_.hub.retained.count == 1


def test_it_comes_from_whoever_has_it_when_its_node_is_down(world: World) -> None:
    one, two_ = two(world)
    one.publish(LARGE)
    settled(world, one, two_)
    one.kill()
    three = Member(world, "three").start()
    settled(world, three)
    assert three.value() == LARGE


def test_a_payload_that_nobody_has_is_asked_for_again_when_a_node_comes_back(world: World) -> None:
    one = Member(world, "one").start()
    one.publish(LARGE)
    settled(world, one)
    calls_of(world).down.add("one")
    two_ = Member(world, "two").start()
    settled(world, two_)
    assert two_.hub.root.topics.retained.get(b"t").absent and len(two_.log) == 1
    calls_of(world).down.clear()
    two_.retained.payloads.retry()
    world.run(100)
    assert two_.value() == LARGE


def test_the_cache_of_payloads_is_bounded(world: World) -> None:
    one, two_ = two(world)
    two_.retained.payloads._cache_bytes = 1000
    for number in range(10):
        one.publish(b"%d" % number * 300, b"t/%d" % number)
        settled(world, one, two_)
    def filled() -> list[int]:
        return [number for number in range(10) if two_.value(b"t/%d" % number)]
    assert filled() == [0, 1, 2]
    session = two_.hub.new_session(b"s", 0)
    for number in (7, 8):                       # a subscriber needs these
        assert two_.hub.root.topics.retained.fetch is not None
        two_.hub.root.topics.retained.fetch(b"t/%d" % number, cast(Any, None), session)
        two_.retained.payloads._waiting.clear()
        world.run(20)
    assert filled() == [2, 7, 8]
    one.publish(b"", b"t/7")
    one.publish(b"small", b"t/8")
    settled(world, one, two_)
    assert two_.value(b"t/8") == b"small" and two_.value(b"t/7") is None
    assert two_.retained.payloads._bytes == 300


def test_a_version_that_was_replaced_is_not_taken_for_the_new_one(world: World) -> None:
    one, two_ = two(world)
    for number in range(10):
        one.publish(b"%d" % number * 500)
        world.run(number % 3 * 10)
    settled(world, one, two_)
    assert two_.value() == one.value() == b"9" * 500
