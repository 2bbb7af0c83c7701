"""Brokers of a cluster as their clients see them: subscriptions on one node, publishes on another."""
from __future__ import annotations

import random
from typing import Any

import pytest
from kit.metadata import MetadataInMemory
from oracle.mqtt import Pingreq, Puback
from simulator.cluster.brokers import NOT_REPLICATED, Brokers, Client

from fluxmq.cluster.keys import node_key
from fluxmq.model.replication import ReplicationSettings


def cluster(*names: str, seed: int = 1, shared: bool = True) -> Brokers:
    brokers = Brokers(seed, list(names), lambda process: store.seen_by(process.driver), shared=shared)
    store = MetadataInMemory(brokers.world.events)

    def end_lease_of(name: str) -> None:
        store.end_lease(store.items[node_key(name)].lease)

    brokers.end_lease_of = end_lease_of  # type: ignore[method-assign]
    brokers.store = store
    return brokers


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_on_one_node_reaches_subscribers_on_the_others(qos: int) -> None:
    brokers = cluster("one", "two", "three")
    brokers.start()
    subscribers = [brokers.client(at, f"s-{at}") for at in ("one", "two", "three")]
    publisher = brokers.client("one", "p")
    for client in (*subscribers, publisher):
        client.connect()
    brokers.run_until(lambda: all(client.connected for client in (*subscribers, publisher)))
    asked = [(client, client.subscribe("t/#", qos)) for client in subscribers]
    brokers.run_until(lambda: all(client.acknowledged(packet_id) for client, packet_id in asked))
    sent = [b"%d" % number for number in range(100)]
    for payload in sent:
        publisher.publish("t/1", payload, qos)
    brokers.run_for(1.0)
    for client in subscribers:
        assert [payload for _, payload in client.messages] == sent
    if qos:
        assert all(publisher.acknowledged(packet_id) for packet_id in range(1, 101))


def serving(*names: str, seed: int = 1, raft: ReplicationSettings = NOT_REPLICATED) -> Brokers:
    brokers = cluster(*names, seed=seed)
    brokers.raft = raft
    brokers.start()
    return brokers


def connected(brokers: Brokers, at: str, name: str, **how: Any) -> Client:
    client = brokers.client(at, name)
    client.connect(**how)
    brokers.run_until(lambda: client.connected)
    return client


def subscribed(brokers: Brokers, at: str, name: str, filter_: str, qos: int = 1) -> Client:
    client = connected(brokers, at, name)
    packet_id = client.subscribe(filter_, qos)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    return client


@pytest.mark.parametrize("seed", range(20))
def test_what_is_published_elsewhere_after_suback_is_not_lost(seed: int) -> None:
    """Each message is published on another node in the instant in which SUBACK arrives."""
    brokers = serving("one", "two", "three", seed=seed)
    publishers = {at: connected(brokers, at, f"p-{at}") for at in ("two", "three")}
    subscriber = connected(brokers, "one", "s")
    for number in range(30):
        topic = f"t/{number}"
        packet_id = subscriber.subscribe(topic)
        brokers.run_until(lambda packet_id=packet_id: subscriber.acknowledged(packet_id))  # type: ignore[misc]
        publishers["two" if number % 2 else "three"].publish(topic, b"x")
    brokers.run_for(1.0)
    assert [topic for topic, _ in subscriber.messages] == [f"t/{number}" for number in range(30)]


def test_a_peer_that_is_stuck_holds_suback_back_until_its_lease_has_ended() -> None:
    brokers = serving("one", "two", "three")
    client = connected(brokers, "one", "c")
    brokers.processes["three"].process.pause()
    packet_id = client.subscribe("t", 1)
    brokers.run_for(2.0)
    assert not client.acknowledged(packet_id)
    brokers.end_lease_of("three")
    brokers.run_until(lambda: client.acknowledged(packet_id), 1.0)


def test_publishes_are_acknowledged_when_the_subscribers_node_has_them() -> None:
    brokers = serving("one", "two")
    subscriber = subscribed(brokers, "two", "s", "t")
    publisher = connected(brokers, "one", "p")
    brokers.network.stall("one", "two")
    packet_id = publisher.publish("t", b"x", 1)
    brokers.run_for(0.8)
    assert not publisher.acknowledged(packet_id)
    brokers.network.heal()
    brokers.run_until(lambda: publisher.acknowledged(packet_id))
    assert subscriber.messages == [("t", b"x")]


def test_a_publish_that_a_peer_does_not_take_in_time_is_refused() -> None:
    brokers = serving("one", "two")
    subscribed(brokers, "two", "s", "t")
    publisher = connected(brokers, "one", "p")
    brokers.network.stall("one", "two")
    packet_id = publisher.publish("t", b"x", 1)
    brokers.run_until(lambda: publisher.acknowledged(packet_id), 20.0)
    assert [ack.reason for ack in publisher.of(Puback)] == [0x80]


@pytest.mark.parametrize("seed", range(10))
def test_broken_streams_lose_nothing_repeat_nothing_and_keep_the_order(seed: int) -> None:
    brokers = serving("one", "two", seed=seed)
    subscriber = subscribed(brokers, "two", "s", "t", 2)
    publisher = connected(brokers, "one", "p")
    chance = random.Random(seed)
    sent = []
    for number in range(200):
        sent.append(b"%d" % number)
        publisher.publish("t", sent[-1], number % 3 and 2)
        if chance.random() < 0.1:
            brokers.break_streams()
        brokers.run_for(chance.choice((0, 0.001, 0.02, 0.3)))
    brokers.run_for(5.0)
    got = [payload for _, payload in subscriber.messages]
    assert [payload for payload in got if int(payload) % 3] == [payload for payload in sent if int(payload) % 3]
    assert len(got) == len(set(got))


def test_an_unsubscribed_filter_is_not_forwarded_any_more() -> None:
    brokers = serving("one", "two")
    subscriber = subscribed(brokers, "two", "s", "t")
    publisher = connected(brokers, "one", "p")
    packet_id = subscriber.unsubscribe("t")
    brokers.run_until(lambda: subscriber.acknowledged(packet_id))
    brokers.run_for(0.1)
    assert brokers.processes["one"].node.hub.publish_message(b"t", b"") == 0
    publisher.publish("t", b"x", 1)
    brokers.run_for(0.5)
    assert not subscriber.messages


def test_a_node_that_stood_still_past_its_lease_is_fenced_and_comes_back() -> None:
    brokers = serving("one", "two")
    client = subscribed(brokers, "one", "c", "t")
    former = brokers.processes["one"].cluster.membership.epoch
    brokers.processes["one"].process.pause()
    brokers.run_for(11.0)
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    other = connected(brokers, "two", "c")
    assert brokers.processes["two"].cluster.holdings.owners.owner((b"/", b"c")).node == "two"
    client.send(Pingreq())
    got = len(client.got)
    brokers.processes["one"].process.resume()
    brokers.run_until(lambda: brokers.processes["one"].fences == 1 and brokers.processes["one"].serving)
    assert len(client.got) == got and not client.open and other.open
    assert brokers.processes["one"].cluster.membership.epoch > former


def test_a_killed_node_comes_back_and_serves() -> None:
    brokers = serving("one", "two")
    subscribed(brokers, "one", "c", "t")
    brokers.kill("one")
    brokers.run_for(1.0)
    brokers.start("one")
    subscriber = subscribed(brokers, "one", "c", "t")
    publisher = connected(brokers, "two", "p")
    publisher.publish("t", b"x", 1)
    brokers.run_until(lambda: subscriber.messages == [("t", b"x")])
    brokers.run_for(20.0)               # longer than the time limit of what was under way when it died
    publisher.publish("t", b"y", 1)
    brokers.run_until(lambda: len(subscriber.messages) == 2)


def test_publishers_do_not_wait_for_the_clients_of_a_node_that_died() -> None:
    brokers = serving("one", "two")
    subscribed(brokers, "one", "c", "t")
    publisher = connected(brokers, "two", "p")
    brokers.kill("one")
    packet_id = publisher.publish("t", b"x", 1)
    brokers.run_for(1.0)
    assert not publisher.acknowledged(packet_id)
    brokers.end_lease_of("one")
    brokers.run_until(lambda: publisher.acknowledged(packet_id), 1.0)
    assert [ack.reason for ack in publisher.of(Puback)][-1] == 0


def test_what_a_node_says_of_itself_stays_on_it() -> None:
    brokers = serving("one", "two")
    subscriber = subscribed(brokers, "two", "s", "$SYS/#")
    for name in ("one", "two"):
        brokers.processes[name].node.hub.publish_message(b"$SYS/broker/x", name.encode())
    brokers.run_for(0.5)
    assert subscriber.messages == [("$SYS/broker/x", b"two")]
