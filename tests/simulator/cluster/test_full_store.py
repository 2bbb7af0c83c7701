"""A metadata store that has no space takes no value. What is deleted is deleted there even so, and the rest follows
when there is space."""
from __future__ import annotations

import pytest
from oracle.mqtt import Disconnect, Will
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_kept import KEY, SESSION, data, subscriptions
from simulator.cluster.test_retained import DATA, INDEX, LARGE, kept, received, retain, stored

from fluxmq.cluster.keys import OWNER, RETAINED_DATA, WILL_DATA, client_key, topic_key


def retained_keys(brokers: Brokers) -> int:
    return sum(b"/retained-" in key for key in brokers.store.items)


@pytest.mark.parametrize("pending", [0, 300])
def test_retained_messages_can_be_cleared(pending: int) -> None:
    """Also behind others that wait for space; those come when there is some."""
    brokers = serving("one", "two")
    publisher = connected(brokers, "one", "p")
    for number in range(20):
        retain(brokers, publisher, b"x", f"t/{number}")
    brokers.run_for(0.5)
    assert retained_keys(brokers) == 20
    brokers.store.counts.full = True
    for number in range(pending):
        retain(brokers, publisher, b"y", f"u/{number}")
    brokers.run_for(3.0)
    for number in range(1, 20):
        retain(brokers, publisher, b"", f"t/{number}")
    brokers.run_for(3.0)
    assert retained_keys(brokers) == 1
    for at in ("one", "two"):
        assert [kept(brokers, at, b"t/%d" % number) for number in range(20)] == [b"x", *[None] * 19]
    brokers.run_for(20.0)
    assert retained_keys(brokers) == 1 and len(brokers.processes["one"].log) <= 2
    brokers.store.counts.full = False
    brokers.run_for(5.0)
    assert retained_keys(brokers) == 1 + pending
    assert len(received(brokers, "two", "u/#")) == pending


def test_a_value_that_waits_for_space_can_be_cleared() -> None:
    brokers = serving("one", "two")
    publisher = connected(brokers, "one", "p")
    brokers.store.counts.full = True
    retain(brokers, publisher, b"new")
    brokers.run_for(2.0)
    retain(brokers, publisher, b"")
    brokers.run_for(3.0)
    assert brokers.processes["one"].cluster.holdings.retained.waiting == 0
    brokers.store.counts.full = False
    brokers.run_for(3.0)
    assert stored(brokers) is None and kept(brokers, "two") is None


def test_a_value_that_was_written_and_refused_is_known_and_can_be_cleared() -> None:
    brokers = serving("one", "two")
    publisher = connected(brokers, "one", "p")
    brokers.store.counts.exceeds = 1
    retain(brokers, publisher, b"new")
    brokers.run_for(0.2)
    assert stored(brokers) is not None and brokers.store.counts.full
    retain(brokers, publisher, b"")
    brokers.run_for(3.0)
    assert stored(brokers) is None and kept(brokers, "two") is None


def test_the_other_form_is_replaced_in_one_transaction() -> None:
    """So the former value stays until there is space for the new one."""
    brokers = serving("one", "two")
    publisher = connected(brokers, "one", "p")
    retain(brokers, publisher, LARGE)
    brokers.run_for(1.0)
    brokers.store.counts.full = True
    retain(brokers, publisher, b"small")
    brokers.run_for(5.0)
    assert INDEX in brokers.store.items and DATA not in brokers.store.items
    brokers.store.counts.full = False
    brokers.run_for(3.0)
    assert DATA in brokers.store.items and INDEX not in brokers.store.items
    assert received(brokers, "two") == [("t/1", b"small")]


@pytest.mark.parametrize("count", [3, 200])
def test_a_session_can_end(count: int) -> None:
    """Also while a subscription of it waits for space; nothing of it comes into the store later."""
    brokers = serving("one", "two")
    client = connected(brokers, "one", "c", expiry_s=60, will=Will(topic="w", payload=b"gone"))
    for number in range(count):
        client.subscribe(f"t/{number}", 1)
    brokers.run_until(lambda: client.acknowledged(client.packet_id))
    brokers.store.counts.full = True
    client.subscribe("late", 1)
    brokers.run_for(1.2)
    client.send(Disconnect(properties=[("session_expiry_interval", 0)]))
    brokers.run_for(1.0)
    assert data(brokers) is None and not subscriptions(brokers)
    assert client_key(OWNER, *SESSION) not in brokers.store.items
    assert client_key(WILL_DATA, *SESSION) not in brokers.store.items
    brokers.store.counts.full = False
    brokers.run_for(10.0)
    assert KEY not in brokers.store.items and not subscriptions(brokers)


def test_a_subscription_can_be_deleted_while_another_waits_for_space() -> None:
    brokers = serving("one", "two")
    client = connected(brokers, "one", "c", expiry_s=60)
    client.subscribe("a", 1)
    brokers.run_until(lambda: client.acknowledged(client.packet_id))
    brokers.store.counts.full = True
    late = client.subscribe("b", 1)
    brokers.run_for(1.0)
    client.unsubscribe("a")
    brokers.run_for(5.0)
    assert subscriptions(brokers) == {} and data(brokers) is not None and not client.acknowledged(late)
    brokers.store.counts.full = False
    brokers.run_for(3.0)
    assert subscriptions(brokers) == {"b": (1, 0)} and client.acknowledged(late)


def test_a_subscription_that_was_written_and_refused_is_deleted_with_its_session() -> None:
    brokers = serving("one", "two")
    client = connected(brokers, "one", "c", expiry_s=60)
    brokers.run_for(0.2)
    brokers.store.counts.exceeds = 1
    client.subscribe("a", 1)
    brokers.run_for(0.2)
    assert subscriptions(brokers) == {"a": (1, 0)}
    client.unsubscribe("a")
    brokers.run_for(5.0)
    assert subscriptions(brokers) == {}
    client.send(Disconnect(properties=[("session_expiry_interval", 0)]))
    brokers.run_for(5.0)
    assert data(brokers) is None and client_key(OWNER, *SESSION) not in brokers.store.items


def test_a_client_whose_session_is_new_is_refused_and_others_are_served() -> None:
    brokers = serving("one", "two")
    reader = connected(brokers, "two", "r", expiry_s=60)
    reader.subscribe("live", 1)
    brokers.run_until(lambda: reader.acknowledged(reader.packet_id))
    publisher = connected(brokers, "one", "p")
    brokers.store.counts.full = True
    newcomer = brokers.client("one", "new")
    newcomer.connect()
    packet_id = publisher.publish("live", b"x", 1)
    brokers.run_for(15.0)
    assert publisher.acknowledged(packet_id) and reader.messages == [("live", b"x")]
    assert [connack.reason for connack in newcomer.connacks] == [0x88]
    brokers.store.counts.full = False
    newcomer.connect()
    brokers.run_until(lambda: newcomer.connected)
    assert topic_key(RETAINED_DATA, b"/", b"live") not in brokers.store.items
