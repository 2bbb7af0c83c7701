"""amq.topic and MQTT's topics through one hub: who gets what, once, in which form; and queues that hold both."""
from __future__ import annotations

import struct
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from oracle.amqp_mqtt import decode_amqp, decode_mqtt, encode_amqp, encode_mqtt
from oracle.exchange import topic_matches

from fluxmq._core.amqp091.edit import headers_of, properties_of, split_address, with_headers
from fluxmq._core.amqp091.topics import address_of
from fluxmq._core.errors import UsageError
from fluxmq._core.hub.amqp091_bridge import publish_amqp
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.log import Log, Record
from fluxmq._core.queue.queue import Queue
from fluxmq._core.queue.session_member import TopicFilter
from fluxmq._core.testing.probes import ReaderProbe, pump_queues, session_state
from fluxmq.cluster.solo import solo
from fluxmq.engine.ports.queues import QueueMessage
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.queues import QueueLimits, QueueSpec

MQTT, AMQP = 0, 1
START_MS = 1_700_000_000_000
QUOTA_EXCEEDED = 0x97


class World:
    def __init__(self, *specs: QueueSpec) -> None:
        self.hub = Hub(None)
        self.hub.set_clock(START_MS, 1000)
        self.manager = QueueManager(self.hub, cluster=solo())
        self.admin = QueueAdmin(self.manager)
        for spec in specs:
            self.manager.declare(spec)

    def queue(self, name: str) -> Queue:
        return self.manager.queues[b"/", name.encode()].queue

    def records(self, name: str) -> list[Record]:
        found = [log.get(offset) for log in self.queue(name).logs for offset in range(log.first, log.next)]
        return [record for record in found if record is not None]

    def taken(self, name: str) -> list[tuple[int, bytes, bytes]]:
        """(format, topic or address, payload)"""
        return [(record.format, record.topic, record.payload) for record in self.records(name)]

    def browse(self, name: str) -> list[QueueMessage]:
        return self.admin.browse(name, "first", 100, 1 << 20, None).messages


def spec(name: str, **more: object) -> QueueSpec:
    return QueueSpec(name=name, **more)  # type: ignore[arg-type]


def test_a_publish_goes_to_both_worlds_each_in_its_form() -> None:
    world = World(spec("q"), spec("captured", topics=["sensors/#"]))
    hub = world.hub
    hub.targets.bind_queue(world.queue("q"), b"sensors.*")
    session = hub.new_session(b"c", 0)
    hub.subscribe(session, b"sensors/+", 1, 0)
    raw = encode_amqp({"content_type": b"text/plain", "headers": [(b"n", "I", 5)], "delivery_mode": 2})
    assert publish_amqp(hub, b"amq.topic", b"sensors.7", b"by amqp", raw) == (3, 0)
    assert hub.publish_message(b"sensors/8", b"by mqtt", 1) == 3
    assert world.taken("q") == [
        (AMQP, address_of(b"amq.topic", b"sensors.7"), b"by amqp"), (MQTT, b"sensors/8", b"by mqtt")]
    assert world.taken("captured") == world.taken("q")
    assert [record.properties for record in world.records("q")] == [raw, b""]
    assert [record.qos for record in world.records("q")] == [1, 1]
    assert [delivery[2] for delivery in session_state(session)["line"]] == [b"by amqp", b"by mqtt"]


def test_with_queues_alone_nothing_is_translated_and_nothing_is_lost() -> None:
    world = World(spec("q"))
    world.hub.targets.bind_queue(world.queue("q"), b"#")
    raw = encode_amqp({"type": b"\xff"})
    assert publish_amqp(world.hub, b"amq.topic", b"a", b"x" * 10_000, raw) == (1, 0)
    assert world.records("q")[0].properties == raw and world.records("q")[0].payload == b"x" * 10_000


def test_who_has_it_already_does_not_get_it_twice() -> None:
    world = World(spec("q"), spec("r"))
    for name in "qr":
        world.hub.targets.bind_queue(world.queue(name), b"a.#")
    publish_amqp(world.hub, b"orders", b"a.b", b"1", taken=[world.queue("q")])
    publish_amqp(world.hub, b"amq.topic", b"a.b", b"2")
    assert [len(world.taken(name)) for name in "qr"] == [1, 2]
    assert world.taken("r")[0][1] == address_of(b"orders", b"a.b")


@pytest.mark.parametrize("key", [b"", b"a+b", b"a.#.b", b"$SYS.x", b"$queue.q", b"\xff", b"a\0b"])
def test_what_is_no_topic_of_clients_stays_with_amqp(key: bytes) -> None:
    world = World(spec("q"))
    world.hub.targets.bind_queue(world.queue("q"), b"#")
    session = world.hub.new_session(b"c", 0)
    for pattern in (b"#", b"$SYS/#", b"$queue/#"):
        world.hub.subscribe(session, pattern, 1, 0)
    assert publish_amqp(world.hub, b"amq.topic", key, b"x") == (0, 0)
    assert not world.taken("q") and not session_state(session)["line"]


def test_a_header_retains_it_and_nothing_else_does() -> None:
    hub = Hub(None)
    publish_amqp(hub, b"amq.topic", b"a.b", b"1", encode_amqp({"headers": [(b"retain", "t", 1)]}))
    publish_amqp(hub, b"amq.topic", b"a.b", b"2", encode_amqp({"headers": [(b"x-mqtt-retain", "t", 0)]}))
    assert len(hub.root.topics.retained) == 0
    publish_amqp(hub, b"amq.topic", b"a.b", b"3", encode_amqp(
        {"headers": [(b"x-mqtt-retain", "t", 1), (b"a", "S", b"b")], "delivery_mode": 2}))
    kept = hub.root.topics.retained.get(b"a/b")
    assert kept is not None and (kept.payload, kept.qos) == (b"3", 1)
    assert decode_mqtt(kept.properties) == {"users": [(b"a", b"b")]}


def test_bindings_are_counted() -> None:
    world = World(spec("q"))
    hub, queue = world.hub, world.queue("q")
    filters = hub.root.topics.trie.filters
    for key in (b"a.b", b"a.b", b"a.#.c", b"a.#.d", b"a.#"):
        hub.targets.bind_queue(queue, key)
    hub.publish_message(b"a/b", b"1", 1)
    hub.publish_message(b"a/x/y/c", b"2", 1)
    assert [payload for _, _, payload in world.taken("q")] == [b"1", b"2"]
    hub.targets.unbind_queue(queue, b"a.b")
    hub.targets.unbind_queue(queue, b"a.#")
    for topic in (b"a/b", b"a/x/d", b"a/x/e"):
        hub.publish_message(topic, topic, 1)
    assert [payload for _, _, payload in world.taken("q")] == [b"1", b"2", b"a/b", b"a/x/d"]
    for key in (b"a.b", b"a.#.c", b"a.#.d"):
        hub.targets.unbind_queue(queue, key)
    assert hub.root.topics.trie.filters == filters
    with pytest.raises(UsageError):
        hub.targets.unbind_queue(queue, b"a.b")
    hub.publish_message(b"a/b", b"3", 1)
    assert len(world.taken("q")) == 4


def test_a_queue_that_is_declared_otherwise_keeps_its_bindings_and_one_that_ends_has_none() -> None:
    world = World(spec("q", topics=["x/#"]))
    filters = world.hub.root.topics.trie.filters
    world.hub.targets.bind_queue(world.queue("q"), b"a.*")
    world.hub.targets.bind_queue(world.queue("q"), b"x.#")
    world.manager.declare(spec("q", topics=["y"]))
    for topic in (b"a/b", b"x/y", b"y"):
        world.hub.publish_message(topic, b"1")
    assert [topic for _, topic, _ in world.taken("q")] == [b"a/b", b"x/y", b"y"]
    world.manager.delete((b"/", b"q"))
    assert world.hub.root.topics.trie.filters == filters - 2 and world.hub.publish_message(b"a/b", b"2") == 0


def test_a_full_queue_refuses_amqp_publishers_and_not_mqtts() -> None:
    world = World(spec("q", overflow="reject-publish", limits=QueueLimits(max_depth=1)))
    world.hub.targets.bind_queue(world.queue("q"), b"#")
    session = world.hub.new_session(b"c", 0)
    world.hub.subscribe(session, b"#", 1, 0)
    assert publish_amqp(world.hub, b"amq.topic", b"a", b"1")[1] == 0
    assert publish_amqp(world.hub, b"amq.topic", b"a", b"2")[1] == QUOTA_EXCEEDED
    world.hub.publish_message(b"a", b"3", 1)
    assert len(world.taken("q")) == 1
    assert world.admin.describe("q")["counts"]["capture_lost"] == 1


def test_filters_of_consumers_see_the_routing_key_as_a_topic() -> None:
    world = World(spec("s", type="stream"))
    queue = world.queue("s")
    log: Log = queue.logs[0]
    for exchange, key in ((b"orders", b"eu.west"), (b"amq.topic", b"eu.east"), (b"", b"s"), (b"orders", b"us"),
                          (b"orders", b"eu+x"), (b"", b"eu/west")):
        log.append_message(address_of(exchange, key), key, format=AMQP)
    found = {}
    for pattern in (b"eu/+", b"#", b"us", b"eu.west"):
        probe = ReaderProbe(log, 0, room=100, keeping=False, filter=TopicFilter(queue, pattern))
        queue.add_reader(probe)
        queue.notify()
        pump_queues(world.hub)
        found[pattern] = probe.seen
        queue.remove_reader(probe)
    assert found == {b"eu/+": [0, 1], b"#": [0, 1, 3, 4, 5], b"us": [3], b"eu.west": [5]}


def test_what_amqp_publishers_ask_of_a_queue() -> None:
    world = World(spec("q", partitions=4), spec("p", max_priority=3))
    clock = QueueClock(world.manager)
    for name in "qp":
        world.hub.targets.bind_queue(world.queue(name), b"#")
    keyed = encode_amqp({"headers": [(b"partition-key", "S", b"k")], "priority": 200})
    for _ in range(5):
        publish_amqp(world.hub, b"amq.topic", b"a", b"x", keyed)
    assert sorted(log.next for log in world.queue("q").logs) == [0, 0, 0, 5]
    assert {record.priority for record in world.records("p")} == {200}
    assert [log.next - log.first for log in world.queue("p").logs][-1] == 5
    before = len(world.records("q"))
    raw = encode_amqp({"headers": [(b"x-delay", "I", 500), (b"partition-key", "S", b"k")]})
    publish_amqp(world.hub, b"amq.topic", b"b", b"late", raw)
    assert len(world.records("q")) == before
    world.hub.set_clock(START_MS + 1000, 2000)
    clock.tick()
    pump_queues(world.hub)
    late = [record for record in world.records("q") if record.payload == b"late"]
    assert [(record.format, record.topic, record.properties) for record in late] == [
        (AMQP, address_of(b"amq.topic", b"b"), raw)]
    assert sorted(log.next for log in world.queue("q").logs) == [0, 0, 0, 6]


def test_nonsense_in_headers_is_a_header() -> None:
    world = World(spec("q"))
    world.hub.targets.bind_queue(world.queue("q"), b"#")
    raw = encode_amqp({"headers": [(b"x-delay", "S", b"soon"), (b"not-before", "I", -1), (b"priority", "S", b"high")]})
    assert publish_amqp(world.hub, b"amq.topic", b"a", b"x", raw)[1] == 0
    assert len(world.records("q")) == 1


# ---------------------------------------------------------------- seen by an operator

HEADERS = [(b"n", "I", 5), (b"t", "F", [(b"a", "t", 1)])]
DECLARED = {"content_type": b"text/plain", "headers": HEADERS, "delivery_mode": 2, "priority": 3,
            "correlation_id": b"\xff", "timestamp": 1_700_000_000}


def test_an_operator_sees_exchange_routing_key_and_properties_by_their_names() -> None:
    world = World(spec("q"))
    world.queue("q").append_message(address_of(b"orders", b"eu.west"), b"x", properties=encode_amqp(DECLARED),
                                    format=AMQP)
    world.queue("q").append_message(address_of(b"", b"a+b"), b"y", format=AMQP)
    first, second = world.browse("q")
    assert first.topic == "eu/west" and first.properties == {
        "exchange": "orders", "routing-key": "eu.west", "content-type": "text/plain", "delivery-mode": 2, "priority": 3,
        "correlation-id": "\\xff", "timestamp": 1_700_000_000}
    assert first.user_properties == [("n", "5"), ("t", '{"a":true}')]
    assert (second.topic, second.properties) == ("", {"exchange": "", "routing-key": "a+b"})


def test_dead_letters_keep_their_form_and_go_back_as_they_were() -> None:
    world = World(spec("q", overflow="drop-head", limits=QueueLimits(max_depth=1)))
    raw = encode_amqp(DECLARED)
    address = address_of(b"orders", b"eu.west")
    for payload in (b"old", b"new"):
        world.queue("q").append_message(address, payload, properties=raw, format=AMQP)
    dead, = world.records("q.dlq")
    assert (dead.format, dead.topic, dead.payload) == (AMQP, address, b"old")
    told = dict(headers_of(dead.properties))
    assert (told[b"x-death-reason"], told[b"x-death-queue"], told[b"x-death-topic"]) == (b"maxlen", b"q", b"eu/west")
    assert world.admin.dead_browse("q", "first", 10, 1000).messages[0].properties["routing-key"] == "eu.west"
    world.manager.purge(world.manager.queues[b"/", b"q"])
    assert world.admin.dead_replay("q", None, 10).moved == 1
    back = world.records("q")[-1]
    assert (back.format, back.topic, back.payload, back.properties) == (AMQP, address, b"old", raw)


def test_property_lists_are_edited_without_harm() -> None:
    raw = encode_amqp(DECLARED)
    more = with_headers(raw, [(b"x-death-a", b"1")])
    assert decode_amqp(more) == DECLARED | {"headers": [*HEADERS, (b"x-death-a", "S", b"1")]}
    assert with_headers(more, [], b"x-death-") == raw
    assert with_headers(b"", []) == b"\0\0"
    assert decode_amqp(with_headers(b"", [(b"a", b"b")])) == {"headers": [(b"a", "S", b"b")]}
    assert properties_of(b"") == {} and headers_of(b"\x20\0\0\0\0\x09") == []
    assert split_address(address_of(b"e", b"k")) == (b"e", b"k") and split_address(b"\x05ab") == (b"", b"")


# ---------------------------------------------------------------- bindings against an oracle

KEYS = ["a", "a.b", "a.*", "*.b", "#", "a.#", "#.b", "a.#.b", "*.#.b", "#.#", "", "a+.b", "$x", "$x.#", "a.#.*"]
TOPICS = ["a", "a/b", "a/c", "c/b", "a/c/b", "a/c/d/b", "b", "$x/b", "a//b", "/b"]


class Bindings(RuleBasedStateMachine):
    """Two queues, one of which captures a topic too; every publish arrives once in each that wants it."""

    @initialize()
    def start(self) -> None:
        self.world = World(spec("q"), spec("r", topics=["a/+"]))
        self.bound: dict[str, Counter[str]] = {"q": Counter(), "r": Counter()}

    @rule(name=st.sampled_from("qr"), key=st.sampled_from(KEYS))
    def bind(self, name: str, key: str) -> None:
        self.world.hub.targets.bind_queue(self.world.queue(name), key.encode())
        self.bound[name][key] += 1

    @rule(name=st.sampled_from("qr"), data=st.data())
    def unbind(self, name: str, data: st.DataObject) -> None:
        if +self.bound[name]:
            key = data.draw(st.sampled_from(sorted((+self.bound[name]).elements())))
            self.world.hub.targets.unbind_queue(self.world.queue(name), key.encode())
            self.bound[name][key] -= 1

    @rule(topic=st.sampled_from(TOPICS), by_amqp=st.booleans())
    def publish(self, topic: str, by_amqp: bool) -> None:
        before = {name: len(self.world.records(name)) for name in "qr"}
        if by_amqp:
            publish_amqp(self.world.hub, b"amq.topic", topic.replace("/", ".").encode(), b"x")
        else:
            self.world.hub.publish_message(topic.encode(), b"x", 1)
        for name in "qr":
            wanted = not topic.startswith("$") and any(
                topic_matches(key.encode().split(b"."), topic.encode().split(b"/")) for key in +self.bound[name])
            wanted = wanted or (name == "r" and topic in ("a/b", "a/c"))
            assert len(self.world.records(name)) - before[name] == wanted, (name, topic)


TestBindings = Bindings.TestCase
TestBindings.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_mqtt_properties_reach_an_amqp_queue_untouched() -> None:
    """Translated when somebody takes it, not before."""
    world = World(spec("q"))
    world.hub.targets.bind_queue(world.queue("q"), b"#")
    raw = encode_mqtt({"content_type": b"text/plain", "users": [(b"a", b"1"), (b"a", b"2")]})
    world.hub.publish_message(b"x/y", b"1", 1, False, raw)
    record, = world.records("q")
    assert (record.format, record.topic, record.properties) == (MQTT, b"x/y", raw)


def test_a_table_that_lies_is_no_table() -> None:
    world = World(spec("q"))
    world.hub.targets.bind_queue(world.queue("q"), b"#")
    session = world.hub.new_session(b"c", 0)
    world.hub.subscribe(session, b"#", 1, 0)
    raw = struct.pack(">HI", 1 << 13, 0xFFFFFFFF) + b"\x01aS"
    assert publish_amqp(world.hub, b"amq.topic", b"a", b"x", raw)[0] == 2
    assert headers_of(raw) == []
