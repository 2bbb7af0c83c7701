"""Wills of clients whose node dies, as subscribers on other nodes see them."""
from __future__ import annotations

from typing import Any

import pytest
from oracle.mqtt import Connack, Disconnect, Will
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving, subscribed

from fluxmq.cluster.keys import WILL_DATA, client_key

KEY = client_key(WILL_DATA, b"/", b"c")
DELAY = "will_delay_interval"


def will(delay_s: int = 0, **how: Any) -> Will:
    return Will(topic="w", payload=b"gone", qos=1, properties=((DELAY, delay_s),) if delay_s else (), **how)


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
    brokers = serving("one", "two", "three")
    leader, second, third = leader_first(brokers)
    reader = subscribed(brokers, leader, "r", "w")
    for delay in (0, 30):
        client = connected(brokers, third, "c", will=will(delay), expiry_s=60, clean_start=False)
        died(brokers, third)
        brokers.run_for(0.7)
        client.connect(at=second, expiry_s=60, will=Will(topic="w", payload=b"second", qos=1))
        brokers.run_until(lambda: client.connected)     # noqa: B023
        brokers.run_for(40.0)
        assert reader.messages == ([("w", b"gone")] if delay == 0 else [])
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
    assert not brokers.processes[third].cluster.wills._kept


def test_a_leader_that_dies_before_the_deletion_is_followed_by_one_that_goes_on() -> None:
    """The will is published at least once: here twice."""
    brokers = serving("one", "two", "three")
    leader, second, third = leader_first(brokers)
    reader = subscribed(brokers, second, "r", "w")
    connected(brokers, third, "c", will=will())
    died(brokers, third)
    brokers.run_until(lambda: reader.messages)
    assert KEY in brokers.store.items           # the leader has not heard that the reader's node has it
    died(brokers, leader)
    brokers.run_for(5.0)
    assert reader.messages == [("w", b"gone")] * 2 and KEY not in brokers.store.items


def test_connack_waits_for_the_store_up_to_a_limit() -> None:
    brokers = serving("one")
    wills = brokers.processes["one"].cluster.wills
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
