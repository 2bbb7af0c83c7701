"""Wills of connections whose node has ended: they come, and before anything of their clients' next connections."""
from __future__ import annotations

from typing import Any

import pytest
from oracle.mqtt import Connack, Disconnect, Will
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving, subscribed
from simulator.cluster.test_wills import KEY, died, leader_first, lose_connection, will

NAMES = ("one", "two", "three")
GONE, BORN = ("w", b"gone"), ("w", b"born")


def persistent(brokers: Brokers, at: str, name: str) -> Client:
    client = connected(brokers, at, name, clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("w", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    return client


def all_serve(brokers: Brokers) -> None:
    brokers.run_until(lambda: all(broker.serving for broker in brokers.processes.values()), 60.0)


def rest(brokers: Brokers, seconds: float) -> None:
    """A long time, in which little is written."""
    brokers.writer_s = 0.05
    brokers.run_for(seconds)
    brokers.writer_s = 0.001


def knock(brokers: Brokers, client: Client, at: str, limit_s: float = 40.0, **how: Any) -> None:
    """Connects, again and again, until it is let in."""
    for _ in range(int(limit_s / 0.1)):
        if not client.open or any(packet.reason for packet in client.of(Connack)):
            client.connect(at=at, **how)
        brokers.run_for(0.1 if not client.connected else 0.0)
        if client.connected:
            return
    raise AssertionError("it was not let in")


@pytest.mark.parametrize("victims", [("one",), NAMES])
@pytest.mark.parametrize(("delay_s", "expiry_s"), [(0, 0), (0, 1000), (5, 1000)])
def test_a_lease_that_is_revoked_ends_neither_wills_nor_sessions(victims: tuple[str, ...], delay_s: int,
                                                                 expiry_s: int) -> None:
    """Owners' keys are deleted with the lease; that is no sign that the sessions have other owners."""
    brokers = serving(*NAMES)
    reader = persistent(brokers, "one", "r")
    publisher = connected(brokers, "two", "p")
    reader.leave()
    brokers.run_for(0.1)
    packet_id = publisher.publish("w", b"while it was away", 1)
    brokers.run_until(lambda: publisher.acknowledged(packet_id))
    connected(brokers, "one", "c", will=will(delay_s), expiry_s=expiry_s, clean_start=not expiry_s, keep_alive=4)
    for name in victims:
        brokers.end_lease_of(name)
    brokers.run_until(lambda: not any(brokers.processes[name].serving for name in victims))
    all_serve(brokers)
    rest(brokers, 8.0)                          # longer than its client may take to return
    reader.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: len(reader.messages) == 2)
    assert reader.connacks[-1].session_present and reader.messages == [("w", b"while it was away"), GONE]


@pytest.mark.parametrize("again", ["with a will", "without a will", "with its session"])
@pytest.mark.parametrize("how", ["killed", "stopped", "revoked", "killed and back"])
def test_the_former_will_comes_before_connack_of_the_next_connection(how: str, again: str) -> None:
    brokers = serving(*NAMES)
    leader, second, third = leader_first(brokers)
    readers = [subscribed(brokers, at, f"r-{at}", "w") for at in (leader, second)]
    session = {"clean_start": False, "expiry_s": 1000} if again == "with its session" else {}
    client = connected(brokers, third, "c", will=will(retain=True), **session)
    broker = brokers.processes[third]
    if how == "stopped":
        broker.process.driver.start(broker.stop())
    elif how == "revoked":
        brokers.end_lease_of(third)
    else:
        brokers.kill(third)
    brokers.run_for(0.05)
    if how == "killed":
        brokers.end_lease_of(third)
    elif how == "killed and back":
        broker.start()
    brokers.run_until(lambda: not client.open)
    knock(brokers, client, second, will=None if again == "without a will" else will(retain=True), **session)
    assert [reader.messages for reader in readers] == [[GONE]] * 2      # in the instant of CONNACK
    client.publish("w", b"born", 1, retain=True)
    rest(brokers, 5.0)
    assert [reader.messages for reader in readers] == [[GONE, BORN]] * 2
    late = subscribed(brokers, leader, "late", "w")
    brokers.run_until(lambda: late.messages == [BORN])
    assert (KEY in brokers.store.items) == (again != "without a will")


def test_a_delayed_will_of_a_client_that_is_back_in_time_does_not_come() -> None:
    brokers = serving(*NAMES)
    leader, second, third = leader_first(brokers)
    reader = subscribed(brokers, leader, "r", "w")
    client = connected(brokers, third, "c", will=will(10), expiry_s=1000, clean_start=False)
    died(brokers, third)
    knock(brokers, client, second, expiry_s=1000, clean_start=False)
    assert KEY not in brokers.store.items       # in the instant of CONNACK: whoever dies now publishes nothing
    rest(brokers, 15.0)
    assert not reader.messages


@pytest.mark.parametrize("ticks", range(4))
def test_a_node_that_is_back_at_once_does_not_lose_delayed_wills(ticks: int) -> None:
    """While it takes its sessions again, their owner is newer than their wills; their clients are not back."""
    brokers = serving(*NAMES)
    leader, second, third = leader_first(brokers)
    reader = subscribed(brokers, second, "r", "w")
    connected(brokers, third, "c", will=will(2), expiry_s=1000, clean_start=False, keep_alive=0)
    brokers.kill(third)
    brokers.run_for(0.3)
    brokers.processes[third].start()
    owners = brokers.processes[third].cluster.holdings.owners
    brokers.run_until(lambda: owners.owned_epoch((b"/", b"c")))
    # The leader looks every quarter of a second: at any moment of this.
    brokers.processes[leader].cluster.holdings.wills.left.look(brokers.processes[leader].process.now())
    brokers.run_for(0.001 * ticks)
    brokers.processes[leader].cluster.holdings.wills.left.look(brokers.processes[leader].process.now())
    rest(brokers, 5.0)
    assert reader.messages == [GONE]


def test_a_client_is_refused_while_a_node_does_not_get_its_former_will() -> None:
    brokers = serving(*NAMES)
    leader, second, third = leader_first(brokers)
    reader = subscribed(brokers, leader, "r", "w")
    client = connected(brokers, third, "c", will=will())
    brokers.network.stall(second, leader)
    brokers.network.stall(leader, second)
    died(brokers, third)
    client.connect(at=second, will=will())
    brokers.run_until(lambda: client.of(Connack))
    assert [packet.reason for packet in client.of(Connack)] == [0x88]
    brokers.network.heal()
    knock(brokers, client, second)
    client.publish("w", b"born", 1)
    brokers.run_for(1.0)
    assert reader.messages == [GONE, BORN]


@pytest.mark.parametrize("heals", [True, False])
def test_a_client_that_is_taken_over_waits_for_its_former_will_up_to_a_limit(heals: bool) -> None:
    """Its former node lives, and publishes the will."""
    brokers = serving(*NAMES)
    reader = subscribed(brokers, "three", "r", "w")
    former = connected(brokers, "one", "c", will=will())
    brokers.network.stall("one", "three")
    client = brokers.client("two", "c")
    client.connect()
    brokers.run_for(5.0)
    assert not former.open and not client.of(Connack)
    if heals:
        brokers.network.heal()
    brokers.run_until(lambda: client.connected)
    assert reader.messages == ([GONE] if heals else [])


def test_a_will_that_the_node_does_not_know_of_yet_comes_first() -> None:
    """What its feed has not told is found by the transaction that takes the session."""
    brokers = serving(*NAMES)
    leader, second, third = leader_first(brokers)
    reader = subscribed(brokers, leader, "r", "w")
    feed, held = brokers.processes[second].cluster.feed, []
    report, feed._report = feed._report, lambda *batch: held.append(batch)      # type: ignore[method-assign]
    client = connected(brokers, third, "c", will=will())
    died(brokers, third)
    client.connect(at=second)
    brokers.run_for(0.3)
    assert not client.of(Connack)
    feed._report = report           # type: ignore[method-assign]
    for batch in held:
        report(*batch)
    brokers.run_until(lambda: client.connected)
    assert reader.messages == [GONE]


@pytest.mark.parametrize("good", [True, False])
def test_a_node_that_is_back_knows_which_wills_it_had_withdrawn_and_which_published(good: bool) -> None:
    """It died before the store, or the other nodes, heard of it. A will without delay may be published before it is
    back."""
    brokers = serving(*NAMES)
    _, second, third = leader_first(brokers)
    reader = subscribed(brokers, second, "r", "w")
    client = connected(brokers, third, "c", will=will(2 if good else 0), expiry_s=1000)
    brokers.network.stall(third, second)
    broker = brokers.processes[third]

    async def never(*request: Any, **how: Any) -> Any:
        await broker.process.driver.promise()

    broker.cluster.writer.change = never        # type: ignore[method-assign]
    client.send(Disconnect()) if good else lose_connection(client)
    brokers.run_for(0.05)
    assert KEY in brokers.store.items and not reader.messages
    brokers.kill(third)
    brokers.network.heal()
    brokers.processes[third].start()
    all_serve(brokers)
    rest(brokers, 5.0)
    assert reader.messages == ([] if good else [GONE]) and KEY not in brokers.store.items


def test_a_client_that_returns_to_its_node_gets_its_own_will_first() -> None:
    """Its connection ended with its node, whose next life knows the will from its disk."""
    brokers = serving(*NAMES)
    reader = persistent(brokers, "two", "r")
    client = connected(brokers, "one", "c", will=Will(topic="w", payload=b"gone", qos=1))
    brokers.kill("one")
    brokers.start("one")
    client.connect(at="one")
    brokers.run_until(lambda: client.connected)
    client.publish("w", b"born", 1)
    brokers.run_for(1.0)
    assert reader.messages == [GONE, BORN]
