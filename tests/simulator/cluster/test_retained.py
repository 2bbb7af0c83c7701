"""Retained messages of a cluster, as clients of its nodes see them."""
from __future__ import annotations

import random
from collections.abc import AsyncIterator

import msgspec
import pytest
from kit.sizes import some
from oracle.mqtt import Puback, Publish, Will
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import cluster, connected, serving

from fluxmq.cluster.keys import RETAINED_DATA, RETAINED_INDEX, topic_key
from fluxmq.cluster.retained import Value

TOPIC = b"t/1"
DATA, INDEX = (topic_key(kind, b"/", TOPIC) for kind in (RETAINED_DATA, RETAINED_INDEX))
LARGE = bytes(range(256)) * 2000
LARGER = b"%02000d"         # with a number: larger than what is in the store whole


def kept(brokers: Brokers, at: str, topic: bytes = TOPIC) -> bytes | None:
    """What a node has of a topic."""
    found = brokers.processes[at].node.hub.root.topics.retained.get(topic)
    return None if found is None else found.payload


def retain(brokers: Brokers, client: Client, payload: bytes, topic: str = "t/1") -> None:
    """Publishes with the retain flag; returns in the instant of PUBACK."""
    packet_id = client.publish(topic, payload, 1, retain=True)
    brokers.run_until(lambda: client.acknowledged(packet_id))


def stored(brokers: Brokers, key: bytes = DATA) -> Value | None:
    item = brokers.store.items.get(key)
    return None if item is None else msgspec.msgpack.decode(item.value, type=Value)


def received(brokers: Brokers, at: str, filter_: str = "t/#") -> list[tuple[str, bytes]]:
    """What a new subscriber gets."""
    client = connected(brokers, at, f"reader-{brokers.world.chance.getrandbits(40)}")
    client.subscribe(filter_, 1)
    brokers.run_for(0.3)
    return client.messages


def test_what_is_retained_on_one_node_is_sent_to_subscribers_of_the_others() -> None:
    brokers = serving("one", "two", "three")
    publisher = connected(brokers, "one", "p")
    retain(brokers, publisher, b"first")
    retain(brokers, publisher, b"x", "t/2/a%")
    brokers.run_for(0.1)
    for at in ("one", "two", "three"):
        assert sorted(received(brokers, at)) == [("t/1", b"first"), ("t/2/a%", b"x")]
    retain(brokers, publisher, b"second")
    brokers.run_for(0.1)
    assert received(brokers, "two", "t/1") == [("t/1", b"second")]
    retain(brokers, connected(brokers, "two", "q"), b"")
    brokers.run_for(0.1)
    for at in ("one", "two", "three"):
        assert received(brokers, at, "t/1") == []
    assert DATA not in brokers.store.items and INDEX not in brokers.store.items


def test_a_node_that_joins_has_them() -> None:
    brokers = cluster("one", "two")
    brokers.start("one")
    retain(brokers, connected(brokers, "one", "p"), b"x")
    brokers.run_for(0.1)
    brokers.start("two")
    assert received(brokers, "two") == [("t/1", b"x")]


def test_a_node_that_was_killed_comes_back_with_what_changed_meanwhile() -> None:
    brokers = serving("one", "two")
    publisher = connected(brokers, "one", "p")
    for topic in ("t/1", "t/2", "t/3"):
        retain(brokers, publisher, b"a", topic)
    brokers.run_for(0.1)
    brokers.kill("two")
    brokers.end_lease_of("two")
    retain(brokers, publisher, b"b", "t/1")
    retain(brokers, publisher, b"", "t/2")
    brokers.start("two")
    assert sorted(received(brokers, "two")) == [("t/1", b"b"), ("t/3", b"a")]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("seed", some(2, range(4)))
def test_what_was_acknowledged_before_etcd_had_it_is_written_after_a_restart(seed: int, checkpoint: bool) -> None:
    brokers = serving("one", "two", seed=seed)
    publisher = connected(brokers, "one", "p")
    retain(brokers, publisher, b"known", "t/3")
    brokers.run_for(0.1)
    brokers.store.counts.fail = 1 << 30
    retain(brokers, publisher, b"mine", "t/1")
    retain(brokers, publisher, b"mine", "t/2")
    retain(brokers, publisher, b"", "t/3")
    if checkpoint:
        brokers.processes["one"].node.checkpoint()
        brokers.run_for(0.5)
    brokers.kill("one")
    brokers.store.counts.fail = 0
    brokers.end_lease_of("one")
    retain(brokers, connected(brokers, "two", "q"), b"newer", "t/2")
    brokers.run_for(0.2)
    brokers.start("one")
    brokers.run_for(0.5)
    for at in ("one", "two"):
        assert sorted(received(brokers, at)) == [("t/1", b"mine"), ("t/2", b"newer")]


@pytest.mark.parametrize("seed", some(3, range(8)))
def test_nodes_agree_after_kills_in_the_middle_of_it(seed: int) -> None:
    """And a topic that one client alone writes, each time after its PUBACK, has what it wrote last."""
    brokers = serving("one", "two", "three", seed=seed)
    chance = random.Random(seed)
    names = list(brokers.processes)
    clients = {at: connected(brokers, at, f"p-{at}") for at in names}
    last: dict[str, bytes] = {}
    for number in range(60):
        at = chance.choice(names)
        if not clients[at].connected:
            continue
        if chance.random() < 0.2:
            brokers.store.counts.lose_answers = 1
        shared = f"t/{chance.randrange(3)}"
        clients[at].publish(shared, b"%d" % number, 1, retain=True)
        own = f"own/{at}"
        # In either form: with the payload in the store, or without.
        last[own] = chance.choice((b"%d" % number, b"%d" % number, LARGER % number, LARGER % number, b""))
        retain(brokers, clients[at], last[own], own)
        brokers.run_for(chance.choice((0, 0, 0.002, 0.05)))
        if chance.random() < 0.1:
            brokers.kill(at)
            brokers.end_lease_of(at)
            brokers.run_for(chance.choice((0, 0.7)))
            brokers.start(at)
            clients[at] = connected(brokers, at, f"p-{at}-{number}")
    brokers.run_for(3.0)
    wanted = {key: value for key, value in last.items() if value}
    found = [dict(received(brokers, at, "#")) for at in names]
    assert found[0] == found[1] == found[2]
    assert {topic: payload for topic, payload in found[0].items() if topic.startswith("own")} == wanted
    assert len(brokers.store.items) - len(found[0]) == len(
        [key for key in brokers.store.items if b"/retained-" not in key])




def test_a_large_payload_is_sent_to_subscribers_of_all_nodes() -> None:
    brokers = serving("one", "two", "three")
    publisher = connected(brokers, "one", "p")
    retain(brokers, publisher, b"small")
    brokers.run_for(0.1)
    retain(brokers, publisher, LARGE)
    brokers.run_for(1.0)
    assert INDEX in brokers.store.items and DATA not in brokers.store.items
    for at in ("one", "two", "three"):
        assert received(brokers, at) == [("t/1", LARGE)]
    retain(brokers, publisher, b"small")
    brokers.run_for(0.1)
    assert DATA in brokers.store.items and INDEX not in brokers.store.items
    assert received(brokers, "two") == [("t/1", b"small")]


def test_a_subscriber_waits_for_a_payload_and_others_do_not() -> None:
    brokers = serving("one", "two")
    publisher = connected(brokers, "one", "p")
    retain(brokers, publisher, b"small", "t/2")
    brokers.run_for(0.1)
    payloads = brokers.processes["two"].cluster.holdings.retained.payloads
    payloads._cache_bytes = 0                   # nothing is fetched in the background
    source = brokers.processes["one"]
    serve, asked = source.cluster.holdings.retained.payloads.serve, list[bytes]()

    async def late(body: bytes) -> AsyncIterator[bytes]:
        asked.append(body)
        await source.process.driver.sleep(2.0)
        async for part in serve(body):
            yield part

    source.cluster.holdings.retained.payloads.serve = late  # type: ignore[method-assign]
    retain(brokers, publisher, LARGE)
    brokers.run_for(1.0)
    assert kept(brokers, "two") == b"" and not asked
    waits, other = (connected(brokers, "two", name) for name in ("waits", "other"))
    waits.subscribe("t/1", 1)
    waits.publish("u", b"x", 1)
    other.subscribe("t/2", 1)
    brokers.run_for(1.0)
    assert waits.messages == [] and waits.acknowledged(2) and other.messages == [("t/2", b"small")]
    brokers.run_for(2.0)
    assert waits.messages == [("t/1", LARGE)] and len(asked) == 1


def test_a_payload_that_nobody_has_is_left_out() -> None:
    brokers = serving("one", "two")
    publisher = connected(brokers, "one", "p")
    retain(brokers, publisher, b"small", "t/2")
    payloads = brokers.processes["two"].cluster.holdings.retained.payloads
    payloads._cache_bytes = 0
    retain(brokers, publisher, LARGE)
    brokers.run_for(1.0)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    reader = connected(brokers, "two", "reader")
    reader.subscribe("t/#", 1)
    brokers.run_for(3.0)
    assert reader.messages == [("t/2", b"small")] and payloads.left_out == 1
    brokers.start("one")
    brokers.run_for(6.0)
    assert received(brokers, "two", "t/1") == [("t/1", LARGE)]


def test_topics_that_change_all_the_time_are_written_seldom_and_keep_no_other() -> None:
    brokers = serving("one", "two")
    publisher = connected(brokers, "one", "p")
    for number in range(200):
        publisher.publish(f"hot/{number}", b"0", 1, retain=True)
    brokers.run_for(1.0)
    before = len(brokers.store.history)
    for turn in range(1, 41):
        for number in range(200):
            publisher.publish(f"hot/{number}", b"%d" % turn, 1, retain=True)
        brokers.run_for(0.1)
    assert 1000 <= len(brokers.store.history) - before <= 2400        # 500/s, for 4 s
    retain(brokers, publisher, b"new", "cold")
    brokers.run_for(0.35)
    assert kept(brokers, "two", b"cold") == b"new"
    brokers.run_for(1.0)
    assert all(kept(brokers, "two", b"hot/%d" % number) == b"40" for number in range(200))


NAMES = ("one", "two", "three")


def agreed(brokers: Brokers, topic: bytes = TOPIC) -> bytes | None:
    """What all nodes have."""
    [value] = {kept(brokers, at, topic) for at in NAMES}
    return value


@pytest.mark.parametrize("first", [b"first", LARGE])
@pytest.mark.parametrize("second", [b"second", b"", LARGE + b"2"])
@pytest.mark.parametrize("store", ["well", "slow", "away"])
def test_who_saw_a_change_acknowledged_wins_with_the_next_at_another_node(first: bytes, second: bytes,
                                                                          store: str) -> None:
    brokers = serving(*NAMES)
    one, two, three = (connected(brokers, at, f"c-{at}") for at in NAMES)
    if store == "away":
        brokers.store.counts.fail = 1 << 30
    elif store == "slow":
        for process in brokers.processes.values():
            process.cluster._store.late_s = 0.4
    retain(brokers, one, first)
    retain(brokers, two, second)
    three.subscribe("t/1", 1)
    brokers.run_for(0.3)
    assert three.messages == ([("t/1", second)] if second else [])
    brokers.store.counts.fail = 0
    brokers.run_for(3.0)
    assert agreed(brokers) == (second or None)
    value = stored(brokers, INDEX if second.startswith(LARGE) else DATA)
    assert (None if value is None else value.size) == (len(second) or None)


@pytest.mark.parametrize("payload", [b"second", b"", LARGE])
@pytest.mark.parametrize("seed", some(1, range(4)))
def test_who_subscribes_in_the_instant_of_puback_gets_that_value_once(payload: bytes, seed: int) -> None:
    brokers = serving(*NAMES, seed=seed)
    publisher = connected(brokers, "one", "p")
    retain(brokers, publisher, b"first")
    brokers.run_for(0.1)
    readers = [connected(brokers, at, f"r-{number}") for at in NAMES for number in (f"{at}-1", f"{at}-2")]
    retain(brokers, publisher, payload)
    for reader in readers:
        reader.subscribe("t/#", 1)
    brokers.run_for(1.5)
    assert [reader.messages for reader in readers] == [[("t/1", payload)] if payload else []] * 6


@pytest.mark.parametrize("payload", [b"x", LARGE])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("seed", some(2, range(6)))
def test_who_subscribes_meanwhile_gets_it_once(payload: bytes, qos: int, seed: int) -> None:
    """Live or retained, wherever the record is when the subscription comes."""
    brokers = serving(*NAMES, seed=seed)
    publisher, chance = connected(brokers, "one", "p"), random.Random(seed)
    readers = [connected(brokers, at, f"r-{at}-{number}") for at in NAMES for number in range(4)]
    publisher.publish("t/1", payload, qos, retain=True)
    for reader in chance.sample(readers, len(readers)):
        reader.subscribe("t/1", 2)
        brokers.run_for(chance.choice((0, 0, 0.0003, 0.001, 0.002)))
    brokers.run_for(2.0)
    assert [reader.messages for reader in readers] == [[("t/1", payload)]] * len(readers)


def test_what_a_node_that_dies_had_acknowledged_is_written_by_the_others() -> None:
    brokers = serving(*NAMES)
    publisher = connected(brokers, "one", "p")
    retain(brokers, publisher, b"old", "t/2")
    retain(brokers, publisher, b"old", "t/3")
    brokers.run_for(0.1)
    brokers.store.counts.fail = 1 << 30
    retain(brokers, publisher, b"new", "t/1")
    retain(brokers, publisher, b"new", "t/2")
    retain(brokers, publisher, b"", "t/3")
    brokers.kill("one")
    brokers.store.counts.fail = 0
    brokers.run_for(0.5)
    assert stored(brokers) is None                      # its lease has not ended
    brokers.end_lease_of("one")
    brokers.run_for(2.0)
    topics = {key for key in brokers.store.items if b"/retained-" in key}
    assert topics == {topic_key(RETAINED_DATA, b"/", topic) for topic in (b"t/1", b"t/2")}
    brokers.start("one")
    brokers.run_for(1.0)
    for at in NAMES:
        assert sorted(received(brokers, at)) == [("t/1", b"new"), ("t/2", b"new")]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_a_topic_that_was_cleared_meanwhile_stays_cleared(checkpoint: bool, restart: bool) -> None:
    """Its value was acknowledged, and not written when its node died; it was cleared at another node, which perhaps
    restarts, too."""
    brokers = serving(*NAMES)
    one, two = connected(brokers, "one", "p"), connected(brokers, "two", "q")
    brokers.store.counts.fail = 1 << 30
    retain(brokers, one, b"x")
    brokers.kill("one")
    brokers.store.counts.fail = 0
    brokers.end_lease_of("one")
    retain(brokers, two, b"")
    brokers.run_for(2.0)
    assert DATA not in brokers.store.items
    for at in ("two", "three") if restart else ():
        if checkpoint:
            brokers.processes[at].node.checkpoint()
            brokers.run_for(0.5)
        brokers.kill(at)
        brokers.end_lease_of(at)
        brokers.start(at)
    brokers.start("one")
    brokers.run_for(2.0)
    assert agreed(brokers) is None and DATA not in brokers.store.items


def test_all_nodes_restart_with_what_the_store_has_not_got() -> None:
    brokers = serving(*NAMES)
    publisher, other = connected(brokers, "one", "p"), connected(brokers, "two", "q")
    retain(brokers, publisher, b"old", "t/2")
    brokers.run_for(0.1)
    brokers.store.counts.fail = 1 << 30
    retain(brokers, publisher, b"x")
    retain(brokers, other, b"", "t/2")
    for at in NAMES:
        brokers.kill(at)
    brokers.store.counts.fail = 0
    for at in NAMES:
        brokers.end_lease_of(at)
    brokers.start()
    brokers.run_for(2.0)
    assert agreed(brokers) == b"x" and agreed(brokers, b"t/2") is None
    assert stored(brokers) is not None and topic_key(RETAINED_DATA, b"/", b"t/2") not in brokers.store.items


def test_a_retained_message_that_a_node_does_not_take_in_time_is_refused() -> None:
    brokers = serving(*NAMES)
    publisher = connected(brokers, "one", "p")
    brokers.network.stall("one", "three")
    packet_id = publisher.publish("t/1", b"x", 1, retain=True)
    brokers.run_until(lambda: publisher.acknowledged(packet_id), 20.0)
    assert [ack.reason for ack in publisher.of(Puback)] == [0x80]
    brokers.network.heal()
    brokers.run_for(5.0)
    assert agreed(brokers) == b"x"


def test_a_message_that_expires_is_gone_everywhere_and_nothing_older_comes_back() -> None:
    brokers = serving(*NAMES)
    one, client = connected(brokers, "one", "p"), connected(brokers, "two", "q")
    brokers.store.counts.fail = 1 << 30
    retain(brokers, one, b"for ever")
    client.send(Publish(topic="t/1", payload=b"short", qos=1, packet_id=77, retain=True,
                        properties=[("message_expiry_interval", 2)]))
    brokers.run_until(lambda: client.acknowledged(77))
    assert agreed(brokers) == b"short"
    brokers.run_for(3.0)
    for at in NAMES:
        brokers.processes[at].node.hub.namespaces.expire_retained()
    brokers.store.counts.fail = 0
    brokers.run_for(3.0)
    assert agreed(brokers) is None and DATA not in brokers.store.items


@pytest.mark.parametrize("qos", [0, 1])
def test_a_retained_will_is_a_change_like_any_other(qos: int) -> None:
    brokers = serving(*NAMES)
    client = connected(brokers, "one", "c", will=Will(topic="t/1", payload=b"gone", qos=qos, retain=True))
    retain(brokers, connected(brokers, "two", "p"), b"here")
    client.leave()
    brokers.run_for(0.05)
    assert received(brokers, "three") == [("t/1", b"gone")]
    retain(brokers, connected(brokers, "three", "q"), b"back")
    brokers.run_for(1.0)
    assert agreed(brokers) == b"back"


def test_a_node_that_joins_while_topics_change_has_them() -> None:
    brokers = serving("one", "two", seed=5)
    brokers.processes["three"] = type(brokers.processes["one"])(brokers, "three")
    publisher = connected(brokers, "one", "p")
    brokers.processes["three"].start()
    last = 0
    while not brokers.processes["three"].serving or last < 14:
        last += 1
        publisher.publish(f"t/{last % 7}", b"%d" % last, 0, retain=True)
        brokers.run_for(0.001)
    retain(brokers, publisher, b"", "t/0")
    found = dict(received(brokers, "three"))
    assert found == {f"t/{number}": kept(brokers, "one", b"t/%d" % number) for number in range(1, 7)}
