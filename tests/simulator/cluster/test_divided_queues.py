"""Queues whose partitions are at several nodes of a simulated cluster."""
from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from oracle.mqtt import Puback, Publish
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_queues import NAMES, consumer, deliveries, offer, persistent, pubrecs, reasons

from fluxmq._core.queue.by_offset import seek
from fluxmq._core.queue.handover import take_out
from fluxmq.engine.queues.parts import part_name
from fluxmq.model.queues import QueueLimits, QueueSpec

PARTITIONS = 3


def divide(brokers: Brokers, at: str = "one", **spec: Any) -> None:
    """`at` declares queue q with a partition on each node."""
    brokers.run_for(1.0)        # until each knows that the others serve
    do(brokers, at, lambda node: node.manager.declare(QueueSpec(name="q", partitions=PARTITIONS, **spec)))
    brokers.run_until(lambda: len(homes(brokers)) == PARTITIONS)


def part(brokers: Brokers, at: str, partition: int) -> Any:
    """A partition's state, as a node knows it."""
    return brokers.processes[at].node.manager.queues[b"/", part_name(b"q", partition, PARTITIONS)]


def homes(brokers: Brokers) -> dict[int, str]:
    """The node that has each partition."""
    found = {}
    for at, broker in brokers.processes.items():
        for partition in range(PARTITIONS):
            state = broker.node.manager.queues.get((b"/", part_name(b"q", partition, PARTITIONS)))
            if state is not None and state.here:
                found[partition] = at
    return found


def partitions_of(client: Client) -> dict[bytes, int]:
    """payload -> partition, as the message-id says."""
    found = {}
    for packet in client.of(Publish):
        users = dict(value for name, value in packet.properties if name == "user_property")
        found[packet.payload] = int(users["message-id"].partition(":")[0])
    return found


def waiting(brokers: Brokers) -> int:
    return sum(part(brokers, at, partition).queue.waiting for partition, at in homes(brokers).items())


def test_each_partition_is_at_a_node_of_its_own_and_messages_go_round() -> None:
    brokers = serving(*NAMES)
    divide(brokers)
    assert set(homes(brokers).values()) == set(NAMES)
    publisher, reader = connected(brokers, "two", "p"), consumer(brokers, "three", "r")
    for number in range(99):
        publisher.publish("$queue/q/a", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 99 and len(reader.messages) == 99)
    assert set(reasons(publisher).values()) == {0}
    assert Counter(partitions_of(reader).values()) == {0: 33, 1: 33, 2: 33}
    assert {topic for topic, _ in reader.messages} == {"$queue/q/a"}
    assert deliveries(reader) == {b"%d" % number: [1] for number in range(99)}
    brokers.run_for(1.0)
    assert waiting(brokers) == 0


def test_a_key_has_one_partition_whatever_the_node_and_keeps_its_order() -> None:
    brokers = serving(*NAMES)
    divide(brokers)
    publishers, reader = [connected(brokers, at, f"p-{at}") for at in NAMES], consumer(brokers, "one", "r")
    for number in range(20):
        for publisher in publishers:
            for key in ("red", "green", "blue", "black"):
                publisher.publish("$queue/q", f"{publisher.name} {key} {number}".encode(), 1, **{"partition-key": key})
    brokers.run_until(lambda: len(reader.messages) == 20 * 3 * 4)
    where, order = defaultdict(set), defaultdict(list)
    for payload, partition in partitions_of(reader).items():
        where[payload.split()[1]].add(partition)
    for _, payload in reader.messages:
        name, key, number = payload.split()
        order[name, key].append(int(number))
    assert all(len(found) == 1 for found in where.values())
    assert set(map(tuple, order.values())) == {tuple(range(20))}


def test_consumers_of_all_nodes_share_a_queue() -> None:
    brokers = serving(*NAMES)
    divide(brokers)
    readers = [consumer(brokers, at, f"r-{at}") for at in NAMES]
    publishers = [connected(brokers, at, f"p-{at}") for at in NAMES]
    for number in range(60):
        for at, publisher in enumerate(publishers):
            publisher.publish("$queue/q", b"%d-%d" % (at, number), 1)
    brokers.run_until(lambda: sum(len(reader.messages) for reader in readers) == 180)
    brokers.run_for(1.0)
    found = Counter(payload for reader in readers for _, payload in reader.messages)
    assert found == Counter(b"%d-%d" % (at, number) for at in range(3) for number in range(60))
    assert all(reader.messages for reader in readers)
    assert waiting(brokers) == 0


def test_what_a_consumer_does_with_a_message_reaches_its_partition() -> None:
    """$nack, $extend, $reject, $ack and a lease that ends, of messages of this node and of others."""
    brokers = serving(*NAMES)
    divide(brokers)
    publisher, reader = connected(brokers, "two", "p"), connected(brokers, "three", "r")
    packet_id = reader.subscribe("$queue/q", 1, **{"ack": "manual", "visibility-timeout": "2"})
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    for number in range(12):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reader.messages) == 12)
    ids = {}
    for packet in reader.of(Publish):
        users = dict(value for name, value in packet.properties if name == "user_property")
        ids[packet.payload] = users["message-id"]
    asked = [reader.publish(f"$queue/q/${verb}", b"", 1, **{"message-id": ids[b"%d" % number], **more})
             for number, verb, more in [(number, *what) for number in range(12) for what in [(
                 ("ack", {}), ("nack", {"delay": "0"}), ("reject", {}), ("extend", {"lease": "60000"}))[number // 3]]]]
    brokers.run_until(lambda: all(reader.acknowledged(each) for each in asked))
    assert set(reasons(reader).values()) == {0}
    brokers.run_until(lambda: len(reader.messages) == 15)
    assert {payload: found for payload, found in deliveries(reader).items() if len(found) > 1} == {
        b"%d" % number: [1, 2] for number in (3, 4, 5)}
    brokers.run_until(lambda: dead(brokers) == 3)
    brokers.run_for(5.0)        # the leases of those that were given back have ended, those that were extended not
    again = [found for found in deliveries(reader).values() if len(found) > 2]
    assert len(again) == 3 and waiting(brokers) == 6


def dead(brokers: Brokers) -> int:
    """Number of dead letters in the queue for them, wherever that is."""
    states = [broker.node.manager.queues.get((b"/", b"q.dlq")) for broker in brokers.processes.values()]
    return sum(state.queue.waiting for state in states if state is not None and state.here)


def test_a_prefetch_is_for_all_partitions_together() -> None:
    brokers = serving(*NAMES)
    divide(brokers)
    publisher, reader = connected(brokers, "two", "p"), connected(brokers, "three", "r")
    reader.acks = False
    packet_id = reader.subscribe("$queue/q", 1, prefetch="2")
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    for number in range(30):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 30)
    brokers.run_for(1.0)
    assert len(reader.messages) == 2
    # What waits for it at its node is at most as much of each other partition.
    held = sum(part(brokers, at, partition).groups[b"default", b""].held for partition, at in homes(brokers).items())
    assert 2 <= held <= 2 * PARTITIONS
    other = consumer(brokers, "one", "other")
    brokers.run_until(lambda: len(other.messages) >= 30 - held)
    reader.leave()
    brokers.run_until(lambda: len({payload for _, payload in other.messages}) == 30, 60.0)
    assert {payload for _, payload in reader.messages} <= {
        payload for payload, found in deliveries(other).items() if found == [2]}
    brokers.run_for(0.5)
    assert waiting(brokers) == 0


def test_what_a_partition_gives_to_another_consumer_of_the_node_is_taken_from_the_first() -> None:
    """The partition does not know any more that the first one holds it, and has not said so."""
    brokers = serving(*NAMES)
    divide(brokers)
    at = homes(brokers)[0]
    first, second = connected(brokers, at, "first"), connected(brokers, at, "second")
    first.acks = second.acks = False
    packet_id = first.subscribe("$queue/q", 1)
    brokers.run_until(lambda: first.acknowledged(packet_id))
    publisher = connected(brokers, at, "p")
    key = next(key for key in map(str, range(50)) if keyed(brokers, key) == 0)
    publisher.publish("$queue/q", b"x", 1, **{"partition-key": key})
    brokers.run_until(lambda: first.messages)
    packet_id = second.subscribe("$queue/q", 1)
    brokers.run_until(lambda: second.acknowledged(packet_id))
    queue = part(brokers, at, 0).queue
    [group] = part(brokers, at, 0).groups.values()
    take_out(group, next(member for member in group.members if member.client == "first"), queue.lanes)
    seek(group, queue.logs[0].number, 0)
    queue.notify()
    brokers.processes[at].turn()
    brokers.run_until(lambda: second.messages)
    for client in (first, second):
        assert waiting(brokers) == 1        # what the first one says of it has no effect
        client.send(Puback(packet_id=client.of(Publish)[0].packet_id))
        brokers.run_for(0.5)
    assert waiting(brokers) == 0


def test_an_exclusive_group_divides_the_partitions_over_nodes_and_moves_them() -> None:
    brokers = serving(*NAMES)
    divide(brokers)
    readers = []
    for at in NAMES:
        reader = connected(brokers, at, f"r-{at}")
        packet_id = reader.subscribe("$queue/q", 1, exclusive="true")
        brokers.run_until(lambda reader=reader, packet_id=packet_id: reader.acknowledged(packet_id))
        readers.append(reader)
    publisher = connected(brokers, "two", "p")
    brokers.run_for(0.5)
    for number in range(60):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: sum(len(reader.messages) for reader in readers) == 60)
    owned = [set(partitions_of(reader).values()) for reader in readers]
    assert sorted(map(sorted, owned)) == [[0], [1], [2]]
    at_owner = next(at for at in NAMES if at != homes(brokers)[0])
    victim = readers[NAMES.index(at_owner)]
    victim.leave()
    brokers.run_for(1.0)
    for number in range(60, 120):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: sum(len(reader.messages) for reader in readers) == 120)
    assert len(victim.messages) == 20
    now = [set(partitions_of(reader).values()) for reader in readers if reader is not victim]
    assert now[0] | now[1] == {0, 1, 2} and not now[0] & now[1]
    refused = connected(brokers, "one", "shared")
    packet_id = refused.subscribe("$queue/q", 1)
    brokers.run_until(lambda: refused.acknowledged(packet_id))


def test_the_other_partitions_go_on_while_an_owner_is_away() -> None:
    brokers = serving(*NAMES)
    divide(brokers)
    publisher, reader = connected(brokers, "two", "p"), consumer(brokers, "two", "r")
    lost = next(partition for partition, at in homes(brokers).items() if at == "three")
    keys = {partition: key for key in map(str, range(50)) for partition in [keyed(brokers, key)]}
    brokers.kill("three")
    brokers.end_lease_of("three")
    brokers.run_until(lambda: not part(brokers, "two", lost).queue.relay.reachable, 60.0)
    sent = [publisher.publish("$queue/q", b"%d" % number, 1) for number in range(20)]
    keyed_ = {partition: publisher.publish("$queue/q", b"k%d" % partition, 1, **{"partition-key": key})
              for partition, key in keys.items()}
    brokers.run_until(lambda: len(reasons(publisher)) == 23, 60.0)
    found = reasons(publisher)
    assert {found[each] for each in sent} == {0}
    assert {partition: found[each] for partition, each in keyed_.items()} == {
        at: 0x80 if at == lost else 0 for at in range(PARTITIONS)}
    brokers.run_until(lambda: len(reader.messages) == 22)
    brokers.start("three")
    brokers.run_until(lambda: part(brokers, "two", lost).queue.relay.reachable, 60.0)
    brokers.run_for(1.0)
    publisher.publish("$queue/q", b"again", 1, **{"partition-key": keys[lost]})
    brokers.run_until(lambda: len(reader.messages) == 23, 60.0)
    assert partitions_of(reader)[b"again"] == lost


def keyed(brokers: Brokers, key: str) -> int:
    """The partition of a key."""
    queue = brokers.processes["one"].node.manager.queues[b"/", b"q"].queue
    raw = b"&\0\x0dpartition-key" + len(key).to_bytes(2, "big") + key.encode()
    name = queue.relay.part_of(b"$queue/q", raw, 0).name
    return int(name.split(b"-")[1])


def test_the_owner_of_a_partition_restarts_under_its_consumers() -> None:
    brokers = serving(*NAMES)
    divide(brokers)
    publisher, reader = connected(brokers, "two", "p"), connected(brokers, "two", "r")
    reader.acks = False
    packet_id = reader.subscribe("$queue/q", 1)
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    for number in range(30):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reader.messages) == 30)
    brokers.kill("three")
    brokers.end_lease_of("three")
    brokers.run_for(1.0)
    brokers.start("three")
    brokers.run_for(3.0)
    other = consumer(brokers, "one", "other")
    brokers.run_for(2.0)
    assert not other.messages        # the reader holds all of them still
    reader.leave()
    brokers.run_until(lambda: len(other.messages) == 30, 60.0)
    assert set(map(tuple, deliveries(other).values())) == {(2,)}


def test_all_nodes_restart() -> None:
    brokers = serving(*NAMES)
    divide(brokers)
    publisher = connected(brokers, "two", "p")
    for number in range(12):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 12)
    before = homes(brokers)
    for name in NAMES:
        brokers.kill(name)
        brokers.end_lease_of(name)
    brokers.run_for(1.0)
    brokers.start(*NAMES)
    brokers.run_for(2.0)
    assert homes(brokers) == before and waiting(brokers) == 12
    readers = [consumer(brokers, at, f"r-{at}") for at in NAMES]
    brokers.run_until(lambda: sum(len(reader.messages) for reader in readers) == 12)


def test_a_divided_queue_is_deleted_on_all_nodes_and_made_anew_empty() -> None:
    brokers = serving(*NAMES)
    divide(brokers)
    publisher, reader = connected(brokers, "two", "p"), consumer(brokers, "three", "r")
    reader.acks = False
    for number in range(9):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 9 and len(reader.messages) == 9)
    do(brokers, "two", lambda node: (b"/", b"q") in node.manager.queues and node.manager.delete_for((b"/", b"q"), 0))
    brokers.run_for(1.0)
    for broker in brokers.processes.values():
        names = {name for _, name in broker.node.manager.queues}
        assert names <= {b"q.dlq"}, names
    divide(brokers)
    assert set(homes(brokers).values()) == set(NAMES) and waiting(brokers) == 0
    again = consumer(brokers, "one", "again")
    publisher.publish("$queue/q", b"new", 1)
    brokers.run_until(lambda: again.messages)
    assert [payload for _, payload in again.messages] == [b"new"]


def test_limits_are_divided_and_other_settings_reach_all_partitions() -> None:
    brokers = serving(*NAMES)
    divide(brokers, limits=QueueLimits(max_depth=30))
    assert {part(brokers, at, partition).spec.limits.max_depth for partition, at in homes(brokers).items()} == {10}
    do(brokers, "three", lambda node: node.manager.declare(
        QueueSpec(name="q", partitions=PARTITIONS, limits=QueueLimits(max_depth=9))))
    brokers.run_for(0.5)
    publisher = connected(brokers, "two", "p")
    for number in range(12):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 12)
    assert Counter(reasons(publisher).values()) == {0: 9, 0x97: 3}


def move(brokers: Brokers, partition: int, to: str) -> None:
    address = b"/", part_name(b"q", partition, PARTITIONS)
    process = brokers.processes["one"]
    work = process.process.driver.start(process.node.manager.mover(address, to))
    brokers.run_until(work.done, 60.0)
    assert work.result()
    assert homes(brokers)[partition] == to


def test_partitions_move_under_publishers_and_consumers() -> None:
    brokers = serving(*NAMES)
    divide(brokers)
    readers = [consumer(brokers, at, f"r-{at}") for at in NAMES]
    publishers = [connected(brokers, at, f"p-{at}") for at in NAMES]
    sent = 0
    for round_ in range(6):
        for number in range(20):
            for publisher in publishers:
                publisher.publish("$queue/q", f"{publisher.name} {round_ * 20 + number}".encode(), 1,
                                  **{"partition-key": f"k{number % 5}"})
                sent += 1
        partition = round_ % PARTITIONS
        move(brokers, partition, NAMES[(NAMES.index(homes(brokers)[partition]) + 1) % 3])
    brokers.run_until(lambda: all(len(reasons(publisher)) == 120 for publisher in publishers), 60.0)
    assert {reason for publisher in publishers for reason in reasons(publisher).values()} == {0}
    brokers.run_for(6.0)
    found = Counter(payload for reader in readers for _, payload in reader.messages)
    assert len(found) == sent and waiting(brokers) == 0
    assert set(homes(brokers)) == {0, 1, 2}


def test_qos_2_that_is_sent_again_goes_to_the_same_partition() -> None:
    """The owners have it, and the publisher's node dies before it has heard of that."""
    brokers = serving(*NAMES)
    divide(brokers)
    publishers = [persistent(brokers, "two", f"p{number}") for number in range(6)]
    for owner in ("one", "three"):
        brokers.network.stall(owner, "two", back=False)
    for publisher in publishers:
        offer(publisher, publisher.name.encode())
    brokers.run_for(0.2)
    brokers.kill("two")
    brokers.network.heal()
    brokers.end_lease_of("two")
    brokers.run_for(0.5)
    there = sum(part(brokers, at, partition).queue.waiting for partition, at in homes(brokers).items() if at != "two")
    assert there == sum(not pubrecs(publisher) for publisher in publishers) > 1
    brokers.start("two")
    other = connected(brokers, "two", "other")
    other.publish("$queue/q", b"between", 1)    # whoever goes round is elsewhere now
    brokers.run_until(lambda: reasons(other))
    for publisher in publishers:
        publisher.connect(clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: all(publisher.connected for publisher in publishers))
    for publisher in publishers:
        offer(publisher, publisher.name.encode(), again=True)
    brokers.run_until(lambda: all(pubrecs(publisher) for publisher in publishers))
    reader = consumer(brokers, "three", "r")
    brokers.run_for(2.0)
    assert Counter(payload for _, payload in reader.messages) == {
        payload: 1 for payload in (b"between", *(publisher.name.encode() for publisher in publishers))}
