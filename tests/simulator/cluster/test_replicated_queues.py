"""Queues of a replication group on the brokers of a simulated cluster: clients of all nodes, and nodes that die."""
from __future__ import annotations

from typing import Any

import pytest
from oracle.mqtt import Puback
from simulator.cluster.brokers import BrokerProcess, Brokers, Client
from simulator.cluster.test_brokers import cluster, connected
from simulator.cluster.test_definitions import do
from simulator.cluster.test_queues import consumer

from fluxmq.cluster.ports import Change
from fluxmq.cluster.raft import group as group_module
from fluxmq.cluster.raft import groups
from fluxmq.engine.queues.recovery.snapshot import digest
from fluxmq.model.queues import QueueSpec
from fluxmq.model.raft import ClusterRaft, QueueReplication, RaftQueues
from fluxmq.model.replication import ReplicationSettings

NAMES = ("one", "two", "three")
RAFT = ReplicationSettings(ClusterRaft(enabled=True, queues=[RaftQueues()]), clustered=True)


def replicated(*started: str, seed: int = 1, names: tuple[str, ...] = (), **spec: Any) -> Brokers:
    """Nodes that serve, and a queue `q` that all of them have. names: also of those that are not started."""
    brokers = cluster(*(names or started), seed=seed)
    brokers.raft = RAFT
    brokers.start(*started)
    brokers.run_for(1.0)        # each node knows that the others serve
    do(brokers, started[0], lambda node: node.manager.declare(QueueSpec(name="q", **spec)))
    return brokers


def living(brokers: Brokers) -> dict[str, BrokerProcess]:
    """Those that were started, and run."""
    return {name: broker for name, broker in brokers.processes.items()
            if broker.process.alive and hasattr(broker, "cluster")}


def leaders(brokers: Brokers, group: int = 1) -> list[str]:
    return [name for name, broker in living(brokers).items() if broker.cluster.groups.line(group) is not None]


def leader(brokers: Brokers) -> str:
    """When all nodes know who it is."""
    def known() -> bool:
        return len(leaders(brokers)) == 1 and {
            broker.cluster.groups.leader(1).node for broker in living(brokers).values()} == {*leaders(brokers)}
    brokers.run_until(known, 60.0)
    [name] = leaders(brokers)
    return name


def publish(brokers: Brokers, client: Client, *payloads: bytes) -> None:
    """Until they are confirmed."""
    asked = [client.publish("$queue/q", payload, 1) for payload in payloads]
    brokers.run_until(lambda: all(client.acknowledged(packet_id) for packet_id in asked), 60.0)
    reasons = {packet.packet_id: packet.reason for packet in client.of(Puback)}
    assert [reasons[packet_id] for packet_id in asked] == [0] * len(asked)


def depths(brokers: Brokers) -> dict[str, int]:
    """Of the copies."""
    found = {}
    for name, broker in living(brokers).items():
        assert broker.node.keeper.queues is not None
        copies = broker.node.keeper.queues.copies.lines[1].queues
        found[name] = sum(copy.queue.depth for copy in copies.values())
    return found


def digests(brokers: Brokers, group: int = 1) -> dict[str, str]:
    """What the replicas at living nodes have, and up to which entry."""
    found = {}
    for name, broker in living(brokers).items():
        assert broker.node.keeper.queues is not None
        copies = broker.node.keeper.queues.copies.lines[group]
        found[name] = str((copies.applied, sorted(
            (copy.queue.name, digest(broker.node.manager, copy)) for copy in copies.queues.values())))
    return found


def test_a_queue_is_on_all_nodes_and_served_by_one() -> None:
    brokers = replicated(*NAMES)
    led = leader(brokers)
    here = {name: broker.node.manager.queues[b"/", b"q"].here for name, broker in brokers.processes.items()}
    assert here == {name: name == led for name in NAMES}
    readers = [consumer(brokers, at, f"r-{at}") for at in NAMES]
    for at in NAMES:
        publish(brokers, connected(brokers, at, f"p-{at}"), *(b"%s-%d" % (at.encode(), number) for number in range(20)))
    brokers.run_until(lambda: sum(len(reader.messages) for reader in readers) == 60)
    brokers.run_for(3.0)
    assert sorted(payload for reader in readers for _, payload in reader.messages) == sorted(
        b"%s-%d" % (at.encode(), number) for at in NAMES for number in range(20))
    assert depths(brokers) == dict.fromkeys(NAMES, 0)


def test_what_was_confirmed_is_there_when_the_leader_has_died() -> None:
    brokers = replicated(*NAMES)
    led = leader(brokers)
    publish(brokers, connected(brokers, led, "p"), *(b"%d" % number for number in range(50)))
    brokers.kill(led)
    brokers.end_lease_of(led)
    others = [name for name in NAMES if name != led]
    assert leader(brokers) in others
    for other in others:
        publish(brokers, connected(brokers, other, f"p-{other}"), other.encode())
    reader = consumer(brokers, others[0], "r")
    brokers.run_until(lambda: len(reader.messages) == 52)
    assert [payload for _, payload in reader.messages][:50] == [b"%d" % number for number in range(50)]


def test_all_nodes_are_killed_and_started() -> None:
    brokers = replicated(*NAMES)
    publish(brokers, connected(brokers, leader(brokers), "p"), *(b"%d" % number for number in range(50)))
    for name in NAMES:
        brokers.kill(name)
        brokers.end_lease_of(name)
    brokers.start()
    leader(brokers)
    brokers.run_for(2.0)
    reader = consumer(brokers, "two", "r")
    brokers.run_until(lambda: len(reader.messages) == 50)
    assert [payload for _, payload in reader.messages] == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_node_comes_back_and_follows(seed: int) -> None:
    brokers = replicated(*NAMES, seed=seed)
    led = leader(brokers)
    follower = next(name for name in NAMES if name != led)
    publisher = connected(brokers, led, "p")
    publish(brokers, publisher, b"1", b"2")
    brokers.kill(follower)
    brokers.end_lease_of(follower)
    publish(brokers, publisher, b"3", b"4")
    brokers.start(follower)
    publish(brokers, publisher, b"5")
    brokers.run_until(lambda: set(depths(brokers).values()) == {5})


@pytest.mark.parametrize("seed", range(3))
def test_who_was_away_for_long_gets_a_copy(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "KEEP_BYTES", 2000)
    brokers = replicated(*NAMES, seed=seed)
    led = leader(brokers)
    follower = next(name for name in NAMES if name != led)
    publisher = connected(brokers, led, "p")
    publish(brokers, publisher, b"1", b"2")
    brokers.kill(follower)
    brokers.end_lease_of(follower)
    for number in range(30):
        publish(brokers, publisher, *(b"%d-%d" % (number, each) for each in range(10)))
    brokers.run_for(2.0)
    reader = consumer(brokers, led, "r")
    brokers.run_until(lambda: len(reader.messages) == 302)
    publish(brokers, publisher, *(b"last-%d" % number for number in range(20)))
    assert brokers.processes[led].cluster.groups.groups[1].raft.log.base > 5
    brokers.start(follower)
    publish(brokers, publisher, b"behind")
    brokers.run_until(lambda: brokers.processes[follower].cluster.groups.groups[1].replica.log.base > 5)
    brokers.run_for(3.0)
    assert len(set(digests(brokers).values())) == 1
    assert "a replica has got a copy of its group" in [text for _, text, _ in brokers.processes[follower].log]
    brokers.kill(led)
    brokers.end_lease_of(led)
    brokers.run_for(8.0)
    other = next(name for name in NAMES if name not in (led, follower))
    brokers.kill(other)
    brokers.end_lease_of(other)
    brokers.start(led)
    publish(brokers, connected(brokers, leader(brokers), "q"), b"end")
    brokers.start(other)
    reader = consumer(brokers, leader(brokers), "r")
    brokers.run_until(lambda: b"end" in [payload for _, payload in reader.messages])
    brokers.run_for(3.0)
    assert len(set(digests(brokers).values())) == 1


def known(brokers: Brokers) -> dict[str, bool]:
    """The living nodes that know the queue, and whether it is there."""
    return {name: broker.node.manager.queues[b"/", b"q"].here for name, broker in brokers.processes.items()
            if broker.process.alive and (b"/", b"q") in broker.node.manager.queues}


def logs(brokers: Brokers) -> list[int]:
    """How many queues the replicas at living nodes have."""
    return [len(broker.node.keeper.queues.copies.lines[1].queues) for broker in brokers.processes.values()
            if broker.process.alive and broker.node.keeper.queues is not None]


@pytest.mark.parametrize("at", NAMES)
def test_a_queue_is_deleted_at_any_node(at: str) -> None:
    brokers = replicated(*NAMES)
    publish(brokers, connected(brokers, leader(brokers), "p"), b"1")
    do(brokers, at, lambda node: node.manager.delete_for((b"/", b"q"), 1) if (b"/", b"q") in node.manager.queues else 0)
    brokers.run_for(2.0)
    assert not known(brokers) and logs(brokers) == [0, 0, 0]
    assert not [key for key in brokers.store.items if b"queue" in key and key.endswith(b"/q")]
    do(brokers, at, lambda node: node.manager.declare(QueueSpec(name="q")))
    publish(brokers, connected(brokers, leader(brokers), "p"), b"2")
    brokers.run_for(2.0)
    assert set(depths(brokers).values()) == {1}


def test_what_etcd_loses_is_defined_again() -> None:
    brokers = replicated(*NAMES)
    led = leader(brokers)
    publisher = connected(brokers, led, "p")
    publish(brokers, publisher, b"1", b"2")
    brokers.store.apply([Change(key, None) for key in brokers.store.items if b"queue" in key and key.endswith(b"/q")])
    brokers.run_for(3.0)
    assert known(brokers) == {name: name == led for name in NAMES} and logs(brokers) == [1, 1, 1]
    assert "etcd has lost a replicated queue: it is defined again" in [
        text for _, text, _ in brokers.processes[led].log]
    reader = consumer(brokers, next(name for name in NAMES if name != led), "r")
    brokers.run_until(lambda: len(reader.messages) == 2)
    publish(brokers, publisher, b"3")
    brokers.run_until(lambda: len(reader.messages) == 3)


def test_an_end_that_etcd_has_not_heard_of_is_told_by_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = replicated(*NAMES)
    led = leader(brokers)
    publish(brokers, connected(brokers, led, "p"), b"1")
    process = brokers.processes[led]
    definitions = process.cluster.holdings.definitions

    async def nothing(address: Any, identity: int) -> None:
        await process.process.driver.sleep(1000.0)
    definitions.undefine_queue = nothing                # type: ignore[method-assign]
    [state] = [state for state in process.node.manager.queues.values() if state.queue.name == b"q"]
    process.process.driver.start(process.node.manager.definer.undefine_queue((b"/", b"q"), state.id))
    brokers.run_for(1.0)
    assert logs(brokers) == [0, 0, 0] and len(known(brokers)) == 2
    brokers.kill(led)
    brokers.end_lease_of(led)
    leader(brokers)
    brokers.run_for(2.0)
    assert not known(brokers) and logs(brokers) == [0, 0]


def test_what_etcd_loses_while_nobody_leads_is_defined_again() -> None:
    brokers = replicated(*NAMES)
    led = leader(brokers)
    publish(brokers, connected(brokers, led, "p"), b"1", b"2")
    brokers.kill(led)
    brokers.end_lease_of(led)
    brokers.store.apply([Change(key, None) for key in brokers.store.items if b"queue" in key and key.endswith(b"/q")])
    brokers.run_for(0.1)
    assert not known(brokers)
    other = leader(brokers)
    brokers.run_for(2.0)
    brokers.start(led)
    brokers.run_for(2.0)
    assert known(brokers) == {name: name == other for name in NAMES} and logs(brokers) == [1, 1, 1]
    reader = consumer(brokers, led, "r")
    brokers.run_until(lambda: len(reader.messages) == 2)


def test_another_queue_of_the_name_is_not_taken_for_the_replicated_one() -> None:
    """Its keys are gone while nobody leads, and it is declared anew, not replicated."""
    brokers = replicated(*NAMES)
    led = leader(brokers)
    publish(brokers, connected(brokers, led, "p"), b"old")
    brokers.kill(led)
    brokers.end_lease_of(led)
    brokers.store.apply([Change(key, None) for key in brokers.store.items if b"queue" in key and key.endswith(b"/q")])
    brokers.run_for(0.1)
    other = next(name for name in NAMES if name != led)
    do(brokers, other, lambda node: node.manager.declare(QueueSpec(
        name="q", replication=QueueReplication(enabled=False))))
    leader(brokers)
    brokers.run_for(2.0)
    assert sum(known(brokers).values()) == 1
    reader = consumer(brokers, other, "r")
    publish(brokers, connected(brokers, other, "p2"), b"new")
    brokers.run_until(lambda: reader.messages)
    brokers.run_for(2.0)
    assert [payload for _, payload in reader.messages] == [b"new"] and set(logs(brokers)) == {1}
    assert any("is kept, and not served" in text for name in NAMES for _, text, _ in brokers.processes[name].log)


def test_a_declaration_that_is_not_committed_is_made_by_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = replicated(*NAMES)
    led = leader(brokers)
    process = brokers.processes[led]
    group = process.cluster.groups.groups[1]
    send, cut = group._send, [True]
    group._send = lambda messages: send([one for one in messages if not cut[0] or not one.entries])
    work = process.process.driver.start(process.node.manager.definer.define_queue(QueueSpec(name="z"), None))
    brokers.run_for(0.5)
    assert process.node.manager.queues[b"/", b"z"].here
    group.raft.resign()
    process.node.hub.wake_up()
    brokers.run_for(0.5)
    assert not process.node.manager.queues[b"/", b"z"].here
    cut[0] = False
    brokers.run_until(work.done, 60.0)
    at = leader(brokers)
    brokers.run_for(1.0)
    assert {name: broker.node.manager.queues[b"/", b"z"].here for name, broker in brokers.processes.items()} == {
        name: name == at for name in NAMES}
    client = connected(brokers, led, "c")
    packet_id = client.publish("$queue/z", b"x", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    assert [packet.reason for packet in client.of(Puback)] == [0]


def test_a_transaction_that_no_frame_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = replicated(*NAMES)
    publisher = connected(brokers, leader(brokers), "p")
    monkeypatch.setattr(group_module, "ENTRY_BYTES_MAX", 5000)
    packet_id = publisher.publish("$queue/q", bytes(6000), 1)
    brokers.run_until(lambda: publisher.acknowledged(packet_id))
    assert [packet.reason for packet in publisher.of(Puback)] == [0x80]
    other = connected(brokers, leader(brokers), "other")
    publish(brokers, other, b"small")
    brokers.run_for(2.0)
    assert set(depths(brokers).values()) == {1}


def test_publishes_are_refused_while_too_much_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "UNCOMMITTED_BYTES_MAX", 3000)
    brokers = replicated(*NAMES)
    led = leader(brokers)
    group = brokers.processes[led].cluster.groups.groups[1]
    send, cut = group._send, [True]
    group._send = lambda messages: send([one for one in messages if not cut[0] or not one.entries])
    clients = [connected(brokers, NAMES[number % 3], f"c-{number}") for number in range(30)]
    for number, client in enumerate(clients):       # an answer waits for those of its connection before it
        client.publish("$queue/q", b"%d" % number + bytes(300), 1)
        brokers.run_for(0.01)
    brokers.run_for(0.1)
    reasons = [packet.reason for client in clients for packet in client.of(Puback)]
    assert set(reasons) == {0x97}       # at the leader; another node hears of all up to a position
    cut[0] = False
    brokers.run_until(lambda: sum(len(client.of(Puback)) for client in clients) == 30, 60.0)
    answers = [packet.reason for client in clients for packet in client.of(Puback)]
    brokers.run_for(3.0)
    assert 15 < answers.count(0x97) < 25 and answers.count(0) == 30 - answers.count(0x97)
    assert set(depths(brokers).values()) == {answers.count(0)}
    publish(brokers, clients[0], b"more")
    assert group.copies.line.room == 3000


def test_a_leader_that_stood_still_leads_no_more() -> None:
    """For less than the others wait: who does not know how long it was must not deliver what it hears late."""
    brokers = replicated(*NAMES)
    led = leader(brokers)
    process, raft = brokers.processes[led].process, brokers.processes[led].cluster.groups.groups[1].raft
    brokers.run_for(2.0)
    assert raft.leads and raft.term == 1
    process.pause()
    brokers.run_for(2.5)
    process.resume()
    brokers.run_for(0.01)
    assert not raft.leads
    brokers.run_until(lambda: raft.term > 1)
