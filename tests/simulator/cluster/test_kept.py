"""The keys of persistent sessions: the store has what a client was told that the broker has."""
from __future__ import annotations

import random

import msgspec
import pytest
from kit.sizes import some
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_takeover import hop

from fluxmq.cluster.kept import SessionData, SubscriptionData
from fluxmq.cluster.keys import DATA, OWNER, SUBSCRIPTION, client_key, parse, subscription_key
from fluxmq.cluster.ports import Change

SESSION = b"/", b"c"
KEY = client_key(DATA, *SESSION)


def data(brokers: Brokers) -> SessionData | None:
    item = brokers.store.items.get(KEY)
    return None if item is None else msgspec.json.decode(item.value, type=SessionData)


def subscriptions(brokers: Brokers) -> dict[str, tuple[int, int]]:
    found = {}
    for key, item in brokers.store.items.items():
        name = parse(key)
        if name is not None and name.kind == SUBSCRIPTION and name.name == b"c":
            value = msgspec.json.decode(item.value, type=SubscriptionData)
            found[name.filter.decode()] = value.options, value.identifier
            assert not item.lease
    return found


def test_a_persistent_session_is_in_the_store_before_its_client_is_told() -> None:
    brokers = serving("one", "two")
    client = connected(brokers, "one", "c", expiry_s=60)
    found = data(brokers)
    assert found is not None and (found.node, found.expiry, found.away) == ("one", 60, False)
    assert found.epoch == brokers.processes["one"].cluster.membership.epoch
    for filter_, qos in (("a/#", 1), ("b/+/%", 2)):
        packet_id = client.subscribe(filter_, qos)
        brokers.run_until(lambda packet_id=packet_id: client.acknowledged(packet_id))  # type: ignore[misc]
        assert subscriptions(brokers)[filter_] == (qos, 0)
    packet_id = client.subscribe("a/#", 0)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    assert subscriptions(brokers) == {"a/#": (0, 0), "b/+/%": (2, 0)}
    packet_id = client.unsubscribe("a/#")
    brokers.run_until(lambda: client.acknowledged(packet_id))
    assert subscriptions(brokers) == {"b/+/%": (2, 0)}


def test_a_session_that_ends_with_its_connection_is_not_in_the_store() -> None:
    brokers = serving("one", "two")
    brokers.run_for(1.0)
    before = len(brokers.store.transactions)
    client = connected(brokers, "one", "c")
    packet_id = client.subscribe("a", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    assert data(brokers) is None and not subscriptions(brokers)
    assert len(brokers.store.transactions) == before + 1            # its owner


def test_a_repeated_subscribe_writes_nothing() -> None:
    brokers = serving("one", "two")
    client = connected(brokers, "one", "c", expiry_s=60)
    packet_id = client.subscribe("a", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    written = len(brokers.store.transactions)
    client.connect(clean_start=False, expiry_s=60)
    brokers.run_until(lambda: client.connected)
    packet_id = client.subscribe("a", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    assert len(brokers.store.transactions) == written


@pytest.mark.parametrize("how", ["expiry", "clean start", "no expiry any more"])
@pytest.mark.parametrize("count", [3, 200])
def test_the_keys_end_with_the_session(how: str, count: int) -> None:
    brokers = serving("one", "two")
    client = connected(brokers, "one", "c", expiry_s=5)
    for number in range(count):
        client.subscribe(f"t/{number}", 1)
    brokers.run_until(lambda: client.acknowledged(client.packet_id))
    assert len(subscriptions(brokers)) == count
    if how == "expiry":
        client.leave()
        brokers.run_for(7.0)
        assert client_key(OWNER, *SESSION) not in brokers.store.items
    else:
        client.connect(clean_start=how == "clean start")
        brokers.run_until(lambda: client.connected)
        if how == "clean start":
            assert data(brokers) is None and not subscriptions(brokers)     # before CONNACK
        brokers.run_for(1.0)
        client.leave()
        brokers.run_for(1.0)
    assert data(brokers) is None and not subscriptions(brokers)


def test_a_session_that_moves_takes_its_keys_along() -> None:
    brokers = serving("one", "two", "three")
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t/#", 2)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    hop(brokers, client, "two")
    found = data(brokers)
    assert found is not None and found.node == "two" and subscriptions(brokers) == {"t/#": (2, 0)}
    moved = [changes for _, changes in brokers.store.transactions if any(change.key == KEY for change in changes)]
    assert any(change.key == client_key(OWNER, *SESSION) for change in moved[-1])
    packet_id = client.unsubscribe("t/#")
    brokers.run_until(lambda: client.acknowledged(packet_id))
    assert not subscriptions(brokers)
    client.connect(at="three", clean_start=True)
    brokers.run_until(lambda: client.connected)
    brokers.run_for(1.0)
    assert data(brokers) is None


def test_a_restart_writes_them_as_of_the_new_life() -> None:
    brokers = serving("one", "two")
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    brokers.kill("one")
    brokers.run_for(0.2)
    brokers.store.items.pop(subscription_key(*SESSION, b"t"))       # as if it had been lost
    brokers.start("one")
    brokers.run_for(1.0)
    found = data(brokers)
    assert found is not None and found.epoch == brokers.processes["one"].cluster.membership.epoch
    assert subscriptions(brokers) == {"t": (1, 0)}


def test_suback_waits_for_the_store_up_to_a_limit() -> None:
    brokers = serving("one", "two")
    client = connected(brokers, "one", "c", expiry_s=60)
    brokers.store.counts.fail = 1 << 30
    packet_id = client.subscribe("a", 1)
    brokers.run_for(1.0)
    assert not client.acknowledged(packet_id)
    brokers.store.counts.fail = 0
    brokers.run_until(lambda: client.acknowledged(packet_id))
    assert subscriptions(brokers) == {"a": (1, 0)}


def test_the_leader_deletes_subscriptions_of_nobody() -> None:
    brokers = serving("one", "two")
    client = connected(brokers, "one", "c", expiry_s=60)
    client.subscribe("a", 1)
    brokers.run_until(lambda: client.acknowledged(client.packet_id))
    store = brokers.store
    left = subscription_key(b"/", b"gone", b"x")
    store.apply([Change(left, b'{"options":1}')])
    brokers.run_for(70.0)
    assert left not in store.items and subscriptions(brokers) == {"a": (1, 0)}


@pytest.mark.parametrize("seed", some(10, range(20)))
def test_the_store_has_what_the_session_has(seed: int) -> None:
    """Whatever the order of changes, hops and lost answers."""
    brokers = serving("one", "two", "three", seed=seed)
    chance = random.Random(seed)
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    wanted: dict[str, tuple[int, int]] = {}
    for _ in range(40):
        filter_ = f"t/{chance.randrange(6)}"
        what = chance.random()
        if what < 0.5:
            wanted[filter_] = chance.randrange(3), 0
            packet_id = client.subscribe(filter_, wanted[filter_][0])
        elif what < 0.8:
            wanted.pop(filter_, None)
            packet_id = client.unsubscribe(filter_)
        elif what < 0.9:
            hop(brokers, client, chance.choice(("one", "two", "three")))
            continue
        else:
            brokers.store.counts.lose_answers = 1
            continue
        if chance.random() < 0.5:
            brokers.run_until(lambda packet_id=packet_id: client.acknowledged(packet_id))  # type: ignore[misc]
            assert subscriptions(brokers) == wanted
        else:
            brokers.run_until(lambda packet_id=packet_id: client.acknowledged(packet_id))  # type: ignore[misc]
    brokers.run_for(2.0)
    assert subscriptions(brokers) == wanted
    found = data(brokers)
    assert found is not None and found.node == client.at and found.lives == ()
