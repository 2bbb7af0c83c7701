"""Wills of clients whose node dies, as subscribers on other nodes see them."""
from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from oracle.mqtt import Connack, Disconnect, Will
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving, subscribed

from fluxmq.cluster.keys import WILL_DATA, client_key

KEY = client_key(WILL_DATA, b"/", b"c")
DELAY = "will_delay_interval"


def will(delay_s: int = 0, *, qos: int = 1, **how: Any) -> Will:
    return Will(topic="w", payload=b"gone", qos=qos, properties=((DELAY, delay_s),) if delay_s else (), **how)


def died(brokers: Brokers, name: str) -> None:
    brokers.kill(name)
    brokers.run_for(1.0)
    brokers.end_lease_of(name)


def leader_first(brokers: Brokers) -> list[str]:
    member = brokers.processes["one"].cluster.membership
    brokers.run_until(lambda: member.leader)
    leader = member.leader
    return [leader, *(name for name in brokers.processes if name != leader)]


@pytest.mark.parametrize("seed", range(3))
def test_a_will_is_kept_before_connack_and_published_once_when_the_node_dies(seed: int) -> None:
    brokers = serving("one", "two", "three", seed=seed)
    leader, second, third = leader_first(brokers)
    readers = [subscribed(brokers, at, f"r-{at}", "w") for at in (leader, second)]
    connected(brokers, third, "c", will=will(retain=True))
    assert KEY in brokers.store.items           # in the instant of CONNACK
    brokers.run_for(5.0)
    assert not any(reader.messages for reader in readers)
    died(brokers, third)
    brokers.run_for(5.0)
    assert [reader.messages for reader in readers] == [[("w", b"gone")]] * 2
    assert KEY not in brokers.store.items
    late = subscribed(brokers, second, "late", "w")
    brokers.run_until(lambda: late.messages == [("w", b"gone")])    # it was retained


def leader_of(brokers: Brokers) -> str:
    """By those who serve."""
    return next(broker.cluster.membership.leader for broker in brokers.processes.values()
                if broker.serving and broker.cluster.membership.leader)


def test_the_leaders_own_wills_are_published_by_the_next_leader() -> None:
    brokers = serving("one", "two", "three")
    leader, second, _ = leader_first(brokers)
    reader = subscribed(brokers, second, "r", "w")
    connected(brokers, leader, "c", will=will())
    died(brokers, leader)
    brokers.run_for(5.0)
    assert reader.messages == [("w", b"gone")] and KEY not in brokers.store.items


def test_a_clean_disconnect_leaves_nothing() -> None:
    brokers = serving("one", "two")
    reader = subscribed(brokers, "two", "r", "w")
    client = connected(brokers, "one", "c", will=will())
    client.send(Disconnect())
    brokers.run_for(0.5)
    assert KEY not in brokers.store.items
    died(brokers, "one")
    brokers.run_for(5.0)
    assert not reader.messages


def lose_connection(client: Client) -> None:
    assert client.pipe is not None
    client.pipe.client_closed = True
    broker = client.brokers.processes[client.at]
    broker.process.driver.soon(broker.turn)


def test_the_owner_publishes_the_will_of_a_client_that_is_gone_and_deletes_it_when_all_have_it() -> None:
    brokers = serving("one", "two")
    reader = subscribed(brokers, "two", "r", "w")
    client = connected(brokers, "one", "c", will=will())
    brokers.network.stall("one", "two")
    lose_connection(client)
    brokers.run_for(0.5)
    assert not reader.messages and KEY in brokers.store.items
    brokers.network.heal()
    brokers.run_for(1.0)
    assert reader.messages == [("w", b"gone")] and KEY not in brokers.store.items


def test_a_delay_counts_from_the_end_of_the_lease_and_a_client_that_returns_ends_it() -> None:
    brokers = serving("one", "two", "three")
    leader, second, third = leader_first(brokers)
    reader = subscribed(brokers, leader, "r", "w")
    clients = [connected(brokers, third, name, will=will(10), expiry_s=60, clean_start=False)
               for name in ("c", "returns")]
    died(brokers, third)
    brokers.run_for(5.0)
    clients[1].connect(at=second, expiry_s=60, clean_start=False)
    brokers.run_until(lambda: clients[1].connected)
    brokers.run_for(3.0)
    assert not reader.messages
    brokers.run_for(5.0)
    assert reader.messages == [("w", b"gone")]
    assert KEY not in brokers.store.items and client_key(WILL_DATA, b"/", b"returns") not in brokers.store.items


def test_the_will_of_a_client_that_returns_with_another_replaces_it() -> None:
    """Unless it had no delay, or the session ends by Clean Start: then it is published first."""
    brokers = serving("one", "two", "three")
    leader, second, third = leader_first(brokers)
    reader = subscribed(brokers, leader, "r", "w")
    for delay, clean in ((0, False), (30, False), (30, True)):
        client = connected(brokers, third, "c", will=will(delay), expiry_s=60, clean_start=False)
        died(brokers, third)
        brokers.run_for(0.7)
        client.connect(at=second, clean_start=clean, expiry_s=60, will=Will(topic="w", payload=b"second", qos=1))
        brokers.run_until(lambda: client.connected)     # noqa: B023
        expected = [("w", b"gone")] if delay == 0 or clean else []
        assert reader.messages == expected              # in the instant of CONNACK
        brokers.run_for(40.0)
        assert reader.messages == expected
        reader.messages.clear()
        lose_connection(client)
        client.connect(at=second, expiry_s=0, clean_start=True)
        brokers.run_for(1.0)
        assert reader.messages == [("w", b"second")] and KEY not in brokers.store.items
        reader.messages.clear()
        client.send(Disconnect())
        brokers.start(third)


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.6, 0.65, 0.8, 1.5])
def test_a_node_that_returns_does_not_publish_what_the_leader_has_published(after_s: float) -> None:
    """Either of the two does, once, although both know the will."""
    brokers = serving("one", "two", "three")
    _, second, third = leader_first(brokers)
    reader = subscribed(brokers, second, "r", "w")
    connected(brokers, third, "c", will=will(), expiry_s=60)
    died(brokers, third)
    brokers.run_for(after_s)
    brokers.start(third)
    brokers.run_for(120.0)                      # its client does not return within one and a half times its keep alive
    assert reader.messages == [("w", b"gone")] and KEY not in brokers.store.items
    assert not brokers.processes[third].cluster.holdings.wills.table._kept


def test_a_leader_that_dies_before_the_deletion_is_followed_by_one_that_goes_on() -> None:
    """It publishes the will again, and those who have had it do not get it again."""
    brokers = serving("one", "two", "three")
    leader, second, third = leader_first(brokers)
    reader = subscribed(brokers, second, "r", "w")
    connected(brokers, third, "c", will=will())
    died(brokers, third)
    brokers.run_until(lambda: reader.messages)
    assert KEY in brokers.store.items           # the leader has not heard that the reader's node has it
    died(brokers, leader)
    brokers.run_for(5.0)
    assert reader.messages == [("w", b"gone")] and KEY not in brokers.store.items


def test_connack_waits_for_the_store_up_to_a_limit() -> None:
    brokers = serving("one")
    wills = brokers.processes["one"].cluster.holdings.wills
    for limit_s, refused in ((15.0, False), (2.0, True)):
        wills._tickets._limit_s = limit_s
        client = connected(brokers, "one", "c", expiry_s=60, clean_start=False)
        brokers.store.counts.fail = 1 << 30
        client.connect(expiry_s=60, clean_start=False, will=will())
        brokers.run_for(4.0)
        assert not client.of(Connack) and client.open != refused
        brokers.store.counts.fail = 0
        brokers.run_for(1.0)
        assert client.connected != refused


def test_of_many_wills_the_newest_of_each_client_is_kept() -> None:
    brokers = serving("one", "two")
    reader = subscribed(brokers, "two", "r", "w")
    for number in range(5):
        for name in ("c", "d"):
            client = brokers.client("one", name)
            client.connect(will=Will(topic="w", payload=b"%s%d" % (name.encode(), number), qos=1), expiry_s=60,
                           clean_start=False)
        brokers.run_for(0 if number % 2 else 0.003)
    brokers.run_for(0.5)
    reader.messages.clear()                     # those of connections that were taken over
    died(brokers, "one")
    brokers.run_for(5.0)
    assert sorted(payload for _, payload in reader.messages) == [b"c4", b"d4"]
    assert KEY not in brokers.store.items


@pytest.mark.parametrize("seed", range(12))
def test_each_session_gets_a_will_once_whoever_dies_and_comes_back_meanwhile(seed: int) -> None:
    """Readers have persistent sessions on all nodes. Leaders are killed when they have claimed, published or deleted
    the will, readers' nodes too, and come back with their disks."""
    chance = random.Random(seed)
    brokers = serving("one", "two", "three", "four", seed=seed)
    leader, *others = leader_first(brokers)
    third = others.pop()
    readers = {at: connected(brokers, at, f"r-{at}", clean_start=False, expiry_s=1000) for at in (leader, *others)}
    for reader in readers.values():
        packet_id = reader.subscribe("w", 2)
        brokers.run_until(partial(reader.acknowledged, packet_id))
    client = connected(brokers, third, "c", will=will(qos=2), expiry_s=5, clean_start=False)
    if chance.random() < 0.5:
        died(brokers, third)
    else:
        lose_connection(client)                 # the owner publishes it, and dies
        brokers.run_for(chance.choice((0.001, 0.002, 0.003)))
        died(brokers, third)
    for _ in range(2):
        who = leader_of(brokers)
        before = brokers.store.items.get(KEY)
        step = chance.choice(("published", "claimed", "deleted"))
        conditions: dict[str, Callable[[], Any]] = {
            "published": lambda: any(reader.messages for reader in readers.values()),
            "deleted": lambda: KEY not in brokers.store.items,
            "claimed": lambda: brokers.store.items.get(KEY) != before}      # noqa: B023
        reached = brokers.world.holds_within(conditions[step], 3.0)
        brokers.run_for(chance.choice((0, 0.0005, 0.001, 0.003)))
        # A reader's node that dies with a will which it has not acknowledged: docs/internals/cluster.md, Limits.
        others_too = step == "deleted" and reached and chance.random() < 0.5
        victims = [who, *([chance.choice([at for at in readers if at != who])] if others_too else [])]
        for victim in victims:
            brokers.kill(victim)
        brokers.run_for(chance.choice((0.1, 0.3)))
        brokers.start(*victims)
    brokers.run_for(10.0)
    assert KEY not in brokers.store.items
    for at, reader in readers.items():
        if not reader.open:
            reader.connect(at=at, clean_start=False, expiry_s=1000)
    brokers.run_for(5.0)
    assert {at: reader.messages for at, reader in readers.items()} == {at: [("w", b"gone")] for at in readers}


def test_where_messages_came_from_is_forgotten_when_their_wills_are_gone() -> None:
    brokers = serving("one", "two", "three")
    leader, second, third = leader_first(brokers)
    reader = connected(brokers, second, "r", clean_start=False, expiry_s=1000)
    packet_id = reader.subscribe("w", 1)
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    connected(brokers, third, "c", will=will())
    died(brokers, third)
    brokers.run_until(lambda: reader.messages and KEY not in brokers.store.items)
    hubs = [brokers.processes[name].node.hub for name in (leader, second)]
    assert all(len(hub.origins) == 1 for hub in hubs)
    brokers.run_for(70.0)
    assert not any(len(hub.origins) for hub in hubs)
