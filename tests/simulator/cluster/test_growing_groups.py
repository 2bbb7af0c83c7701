"""Replication groups whose nodes come later, lose their disks, or stay away, on the brokers of a simulated cluster."""
from __future__ import annotations

import pytest
from oracle.mqtt import Puback
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_queues import consumer
from simulator.cluster.test_replicated_queues import NAMES, RAFT, depths, digests, leader, publish, replicated
from simulator.disk import Disk

from fluxmq.cluster.raft import groups, growing
from fluxmq.model.queues import QueueSpec


def members(brokers: Brokers) -> tuple[list[int], list[int]]:
    """Voters and learners, as the leader's log has them."""
    raft = brokers.processes[leader(brokers)].cluster.groups.groups[1].raft
    return sorted(raft.voters), sorted(raft.learners)


def lose_disk(brokers: Brokers, name: str) -> None:
    brokers.kill(name)
    brokers.end_lease_of(name)
    broker = brokers.processes[name]
    broker.disk = Disk(brokers.world.chance)


@pytest.mark.parametrize("keep", [1 << 20, 500])
def test_a_group_grows_when_nodes_come(keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "KEEP_BYTES", keep)
    brokers = replicated("one", names=NAMES)
    publish(brokers, connected(brokers, "one", "p"), *(b"%d" % number for number in range(50)))
    assert members(brokers) == ([1], [])
    for name in NAMES[1:]:
        brokers.start(name)
    brokers.run_until(lambda: members(brokers) == ([1, 2, 3], []), 60.0)
    publish(brokers, connected(brokers, "one", "p"), b"last")
    brokers.run_for(3.0)
    assert depths(brokers) == dict.fromkeys(NAMES, 51)
    brokers.kill("one")
    brokers.end_lease_of("one")
    reader = consumer(brokers, leader(brokers), "r")
    brokers.run_until(lambda: len(reader.messages) == 51)
    brokers.start("one")
    brokers.run_for(3.0)
    assert len(digests(brokers)) == 3 and len(set(digests(brokers).values())) == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("keep", [1 << 20, 500])
def test_a_node_that_lost_its_disk_gets_another_replica(seed: int, keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "KEEP_BYTES", keep)
    brokers = replicated(*NAMES, seed=seed)
    led = leader(brokers)
    publish(brokers, connected(brokers, led, "p"), *(b"%d" % number for number in range(50)))
    for lost in (next(name for name in NAMES if name != led), led):
        lose_disk(brokers, lost)
        leader(brokers)
        brokers.start(lost)
        brokers.run_until(lambda: len(members(brokers)[0]) == 3 and not members(brokers)[1] and all(
            broker.cluster.groups.groups for broker in brokers.processes.values()), 90.0)
        publish(brokers, connected(brokers, leader(brokers), f"p-{lost}"), lost.encode())
        brokers.run_for(3.0)
        assert len(depths(brokers)) == 3 and len(set(depths(brokers).values())) == 1
    assert max(members(brokers)[0]) == 5            # no number is given twice
    reader = consumer(brokers, leader(brokers), "r")
    brokers.run_until(lambda: len(reader.messages) == 52)
    brokers.run_for(2.0)
    assert len(set(digests(brokers).values())) == 1


def test_another_node_takes_the_place_of_one_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "AWAY_S", 30.0)
    brokers = replicated(*NAMES, names=(*NAMES, "four"))
    led = leader(brokers)
    publish(brokers, connected(brokers, led, "p"), b"1", b"2")
    brokers.start("four")
    brokers.run_for(10.0)
    assert members(brokers) == ([1, 2, 3], [])
    away = next(name for name in NAMES if name != led)
    brokers.kill(away)
    brokers.end_lease_of(away)
    brokers.run_for(20.0)
    assert members(brokers) == ([1, 2, 3], [])
    brokers.run_for(40.0)
    voters, learners = members(brokers)
    assert len(voters) == 3 and 4 in voters and not learners
    assert brokers.processes["four"].cluster.groups.groups
    publish(brokers, connected(brokers, "four", "q"), b"3")


def test_a_queue_needs_as_many_nodes_as_are_to_be_in_sync() -> None:
    brokers = replicated("one", "two", names=NAMES)
    assert members(brokers) == ([1, 2], [])
    assert brokers.raft == RAFT
    do(brokers, "two", lambda node: node.manager.declare(QueueSpec(name="other")))


def test_a_queue_that_is_not_durable_is_made_anew_when_its_node_is_back_with_another_disk() -> None:
    """Between two looks of the leader: the node was never seen to be away."""
    brokers = serving(*NAMES)
    do(brokers, "two", lambda node: node.amqp_queues.declare(b"/", b"v", durable=False))
    at = next(name for name in NAMES if brokers.processes[name].node.manager.queues[b"/", b"v"].here)
    lose_disk(brokers, at)
    brokers.start(at)
    brokers.run_for(10.0)
    client = connected(brokers, "one", "c")
    packet_id = client.publish("$queue/v", b"x", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    assert [packet.reason for packet in client.of(Puback)] == [0]
