"""Streams whose partitions are at several nodes of a simulated cluster: every reader gets what all of them have, once
and in the order of each, wherever it is and whatever happens to the nodes."""
from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from oracle.mqtt import Puback, Publish, Suback
from simulator.cluster.amqp import Amqp
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_divided_queues import PARTITIONS, divide, homes, keyed, move, part
from simulator.cluster.test_queues import NAMES, persistent, reasons
from simulator.cluster.test_streams import places, questions, reads

from fluxmq.engine.ports.definitions import QueueDefinition
from fluxmq.engine.queues.parts import part_name
from fluxmq.model.queues import QueueSpec, Retention


def streams(*names: str, seed: int = 1, **spec: Any) -> Brokers:
    """A cluster with the stream q, a partition at each node."""
    brokers = serving(*(names or NAMES), seed=seed)
    divide(brokers, type="stream", **spec)
    assert set(homes(brokers).values()) == set(NAMES)
    return brokers


def publish(brokers: Brokers, client: Client, first: int, behind: int) -> None:
    """As many to each partition."""
    known = len(reasons(client))
    for number in range(first * PARTITIONS, behind * PARTITIONS):
        client.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(client)) == known + (behind - first) * PARTITIONS, 60.0)
    assert set(reasons(client).values()) == {0}


def offsets(first: int, behind: int) -> dict[int, list[int]]:
    return {partition: list(range(first, behind)) for partition in range(PARTITIONS)}


def all_get(brokers: Brokers, readers: list[Client], expected: dict[int, list[int]]) -> None:
    """These offsets of each partition in this order, and nothing else."""
    brokers.run_until(lambda: all(sum(map(len, places(reader).values())) >= sum(map(len, expected.values()))
                                  for reader in readers), 60.0)
    brokers.run_for(1.5)
    for reader in readers:
        assert {at: found for at, found in places(reader).items() if found} == expected, reader.name


def key_of(brokers: Brokers, partition: int) -> str:
    return next(key for key in map(str, range(50)) if keyed(brokers, key) == partition)


def away(brokers: Brokers, name: str, seen_by: str) -> int:
    """The node dies, and another one knows. The partition that was there."""
    [lost] = [partition for partition, at in homes(brokers).items() if at == name]
    brokers.kill(name)
    brokers.end_lease_of(name)
    brokers.run_until(lambda: not part(brokers, seen_by, lost).queue.relay.reachable, 60.0)
    return lost


def back(brokers: Brokers, name: str, seen_by: str, partition: int) -> None:
    brokers.start(name)
    brokers.run_until(lambda: part(brokers, seen_by, partition).queue.relay.reachable, 60.0)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_readers_on_all_nodes_get_all_partitions_in_order(qos: int) -> None:
    brokers = streams()
    readers = [reads(brokers, at, f"{at}-{number}", qos=qos) for at in NAMES for number in range(2)]
    publishers = [connected(brokers, at, f"p-{at}") for at in NAMES]
    content: dict[str, bytes] = {}
    for publisher in publishers:
        for number in range(60):
            publisher.publish("$queue/q/a", f"{publisher.name} {number}".encode(), 1,
                              **{"partition-key": f"k{number % 7}"})
    brokers.run_until(lambda: all(len(reader.messages) >= 180 for reader in readers), 60.0)
    brokers.run_for(1.0)
    for reader in readers:
        assert len(reader.messages) == 180
        order = defaultdict(list)
        for packet in reader.of(Publish):
            users = dict(value for name, value in packet.properties if name == "user_property")
            assert content.setdefault(users["message-id"], packet.payload) == packet.payload
            name, number = packet.payload.split()
            key = f"k{int(number) % 7}"
            assert (packet.topic, users["queue"]) == ("$queue/q/a", "q")
            partition, _, offset = users["message-id"].partition(":")
            assert (int(partition), offset) == (keyed(brokers, key), users["offset"])
            order[name, key].append(int(number))
        assert all(found == sorted(found) for found in order.values())
        assert all(found == list(range(len(found))) for found in places(reader).values())
    for partition, at in homes(brokers).items():
        [log] = part(brokers, at, partition).queue.logs
        assert log.next == len(places(readers[0]).get(partition, ()))


@pytest.mark.parametrize(("position", "first"), [("first", 0), ("last", 19), ("next", 20), ("17", 17), ("-5", 15),
                                                 ("offset=3", 3), ("", 20)])
def test_a_reader_begins_where_it_says_in_each_partition(position: str, first: int) -> None:
    brokers = streams()
    publish(brokers, connected(brokers, "three", "p"), 0, 20)
    readers = [reads(brokers, at, at, **({"offset": position} if position else {})) for at in NAMES]
    publish(brokers, connected(brokers, "one", "p2"), 20, 25)
    all_get(brokers, readers, offsets(first, 25))


def test_a_reader_begins_at_a_time() -> None:
    brokers = streams()
    publisher = connected(brokers, "three", "p")
    publish(brokers, publisher, 0, 10)
    brokers.run_for(2.0)
    now_ms = brokers.processes["one"].node.hub.now_ms
    brokers.run_for(2.0)
    publish(brokers, publisher, 10, 20)
    all_get(brokers, [reads(brokers, at, at, offset=f"timestamp={now_ms}") for at in NAMES], offsets(10, 20))


def test_consumers_over_amqp_hear_first_that_they_are_consumers() -> None:
    """And get each partition from the offset that they ask for, no more than their prefetch of each."""
    brokers = streams()
    publish(brokers, connected(brokers, "three", "p"), 0, 20)
    brokers.network.stall("three", "two", back=False)
    client = Amqp(brokers, "two", acks=False)
    client.method("basic.qos", prefetch_count=4)
    client.method("basic.consume", queue="q", consumer_tag="c", arguments={"x-stream-offset": 5})
    brokers.run_for(1.0)
    assert not client.told("basic.consume-ok") and not client.deliveries
    brokers.network.heal()
    brokers.run_until(lambda: client.told("basic.consume-ok") and len(client.deliveries) == 4 * PARTITIONS)
    brokers.run_for(1.0)
    found = sorted(int(body) // PARTITIONS for _, body in client.deliveries)
    assert found == sorted([*range(5, 9)] * PARTITIONS)
    client.method("basic.cancel", consumer_tag="c")
    brokers.run_until(lambda: client.told("basic.cancel-ok"))
    brokers.run_for(1.0)
    for partition, at in homes(brokers).items():
        assert not part(brokers, at, partition).queue.readers


def test_suback_comes_when_all_partitions_have_answered_and_then_the_messages() -> None:
    brokers = streams()
    publish(brokers, connected(brokers, "three", "p"), 0, 5)
    brokers.network.stall("three", "two", back=False)
    reader = connected(brokers, "two", "r")
    packet_id = reader.subscribe("$queue/q", 1, offset="first")
    brokers.run_for(1.0)
    assert not reader.acknowledged(packet_id) and not reader.messages
    brokers.network.heal()
    all_get(brokers, [reader], offsets(0, 5))
    kinds = [type(packet) for packet in reader.got if isinstance(packet, Suback | Publish)]
    assert kinds.index(Suback) < kinds.index(Publish)


def test_a_position_that_makes_no_sense_is_refused() -> None:
    brokers = streams()
    reader = connected(brokers, "two", "r")
    packet_id = reader.subscribe("$queue/q", 1, offset="behind the moon")
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    [suback] = reader.of(Suback)
    assert suback.reasons[0] >= 0x80
    brokers.run_for(1.0)
    for at in NAMES:
        reads_ = brokers.processes[at].node.manager.reads
        assert not (reads_._readings or reads_._of or reads_.wholes._wholes)


@pytest.mark.parametrize("at", NAMES)
def test_a_partition_that_is_stopped_refuses_all_and_leaves_no_readers(at: str) -> None:
    """Wherever its file is damaged, also if other partitions have readers by then."""
    brokers = streams()
    damaged = next(partition for partition, home in homes(brokers).items() if home == "three")
    part(brokers, "three", damaged).queue.damage = "a file of it is damaged"
    reader, consumer = connected(brokers, at, "r"), Amqp(brokers, at)
    packet_id = reader.subscribe("$queue/q", 1, offset="first")
    consumer.method("basic.consume", queue="q", consumer_tag="c")
    brokers.run_until(lambda: reader.acknowledged(packet_id) and consumer.told("channel.close"))
    assert reader.of(Suback)[0].reasons == [0x80] and not consumer.told("basic.consume-ok")
    assert consumer.told("channel.close")[0]["reply_code"] == 404
    consumer.method("channel.close-ok")
    brokers.run_for(1.0)
    for name in NAMES:
        reads_ = brokers.processes[name].node.manager.reads
        assert not (reads_._readings or reads_._of or reads_.wholes._wholes)
        assert not any(state.queue.readers for state in brokers.processes[name].node.manager.queues.values())


def positions(brokers: Brokers, group: bytes) -> dict[int, int]:
    """Of a group, by partition."""
    return {partition: cursor.next for partition, at in homes(brokers).items() if brokers.processes[at].process.alive
            and (found := part(brokers, at, partition).groups.get((group, b""))) for cursor in found.cursors}


def test_a_group_goes_on_where_it_was_at_any_node() -> None:
    brokers = streams()
    publisher = connected(brokers, "one", "p")
    publish(brokers, publisher, 0, 20)
    first = reads(brokers, "two", "r", consumer_group="g", offset="first")
    other = reads(brokers, "one", "other", consumer_group="h", offset="10")
    all_get(brokers, [first], offsets(0, 20))
    all_get(brokers, [other], offsets(10, 20))
    assert positions(brokers, b"g") == positions(brokers, b"h") == dict.fromkeys(range(PARTITIONS), 20)
    first.leave()
    brokers.run_for(0.5)
    assert [[reader.client for reader in part(brokers, at, partition).queue.readers]
            for partition, at in homes(brokers).items()] == [["other"]] * PARTITIONS
    publish(brokers, publisher, 20, 30)
    for at, expected in (("three", offsets(20, 30)), ("one", {}), ("two", {})):
        again = reads(brokers, at, f"r-{at}", consumer_group="g")
        all_get(brokers, [again], expected)
        again.leave()
        brokers.run_for(0.5)
    all_get(brokers, [other], offsets(10, 30))


def test_only_commit_moves_the_position_of_a_manual_reader() -> None:
    """In the partition that it names, at whatever node that is."""
    brokers = streams()
    publish(brokers, connected(brokers, "one", "p"), 0, 20)
    reader = reads(brokers, "two", "r", consumer_group="g", offset="first", ack="manual")
    all_get(brokers, [reader], offsets(0, 20))
    for partition in range(PARTITIONS):
        reader.publish("$queue/q/$commit", b"", 1, partition=str(partition), offset=str(4 + partition))
    last = reader.publish("$queue/q/$commit", b"", 1, **{"message-id": "1:12"})
    wrong = reader.publish("$queue/q/$commit", b"", 1, **{"message-id": "1:99"})
    brokers.run_until(lambda: len(reasons(reader)) == 5)
    assert {packet_id for packet_id, reason in reasons(reader).items() if reason} == {wrong} != {last}
    assert positions(brokers, b"g") == {0: 5, 1: 13, 2: 7}
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(1.0)
    brokers.start("two")
    brokers.run_for(2.0)
    assert positions(brokers, b"g") == {0: 5, 1: 13, 2: 7}
    other = reads(brokers, "three", "other", consumer_group="g")
    all_get(brokers, [other], {0: [*range(5, 20)], 1: [*range(13, 20)], 2: [*range(7, 20)]})
    lost = away(brokers, "one", "three")
    late = other.publish("$queue/q/$commit", b"", 1, partition=str(lost), offset="3")
    brokers.run_until(lambda: reasons(other))
    assert reasons(other)[late] >= 0x80


def test_what_was_acknowledged_while_a_partition_was_away_is_told_when_it_is_back() -> None:
    brokers = streams()
    publish(brokers, connected(brokers, "two", "p"), 0, 10)
    reader = connected(brokers, "two", "r")
    reader.acks = False
    packet_id = reader.subscribe("$queue/q", 1, consumer_group="g", offset="first")
    brokers.run_until(lambda: reader.acknowledged(packet_id) and len(reader.messages) == 10 * PARTITIONS)
    lost = away(brokers, "three", "two")
    for packet in reader.of(Publish):
        reader.send(Puback(packet_id=packet.packet_id))
    brokers.run_for(2.0)
    assert positions(brokers, b"g") == {partition: 10 for partition in range(PARTITIONS) if partition != lost}
    back(brokers, "three", "two", lost)
    brokers.run_until(lambda: positions(brokers, b"g").get(lost) == 10, 60.0)


def test_the_other_partitions_are_read_on_while_an_owner_is_away() -> None:
    brokers = streams()
    readers = [reads(brokers, at, at) for at in ("one", "two")]
    consumer = Amqp(brokers, "two")
    consumer.consume("q", tag="c", x_cancel_on_ha_failover=True)
    publisher = connected(brokers, "two", "p")
    publish(brokers, publisher, 0, 5)
    all_get(brokers, readers, {partition: list(range(5)) for partition in range(PARTITIONS)})
    lost = away(brokers, "three", "two")
    for number in range(8):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 5 * PARTITIONS + 8)
    assert set(reasons(publisher).values()) == {0}
    expected = {partition: list(range(5 if partition == lost else 9)) for partition in range(PARTITIONS)}
    all_get(brokers, readers, expected)
    back(brokers, "three", "two", lost)
    brokers.run_for(1.0)
    for _ in range(3):
        publisher.publish("$queue/q", b"again", 1, **{"partition-key": key_of(brokers, lost)})
    all_get(brokers, readers, expected | {lost: list(range(8))})
    assert not consumer.told("basic.cancel") and len(consumer.deliveries) == 5 * PARTITIONS + 8 + 3


@pytest.mark.parametrize(("position", "group", "first", "late"), [
    ("first", "", 0, 0), ("next", "", 5, 5), ("-2", "", 3, 4), ("", "g", 5, 5), ("resume", "g", 5, 5)])
def test_a_partition_that_is_away_is_opened_when_it_is_back(position: str, group: str, first: int, late: int) -> None:
    """late: where it begins in that partition. SUBACK does not wait for it; and what is published as soon as it is back
    is behind SUBACK, also for a group that is new."""
    brokers = streams()
    publisher = connected(brokers, "one", "p")
    publish(brokers, publisher, 0, 5)
    lost = away(brokers, "three", "two")
    asks = ({"offset": position} if position else {}) | ({"consumer_group": group} if group else {})
    readers = [reads(brokers, "two", f"r{number}", **asks) for number in range(2)]
    gone = [reads(brokers, "two", "gone", **asks), reads(brokers, "two", "unsubscribed", **asks)]
    consumer = Amqp(brokers, "two")
    consumer.consume("q", tag="c", x_stream_offset="next")
    consumer.method("basic.cancel", consumer_tag="c")
    brokers.run_until(lambda: consumer.told("basic.cancel-ok"))
    gone[0].leave()
    gone[1].unsubscribe("$queue/q")
    expected = {partition: list(range(first, 5)) for partition in range(PARTITIONS) if partition != lost and first < 5}
    all_get(brokers, readers, expected)
    asked: dict[Any, None] = {}
    reads_: Any = brokers.processes["two"].node.manager.reads
    reads_._open = lambda reading: asked.setdefault(reading)    # it is asked only when it has the message
    brokers.start("three")
    brokers.run_until(lambda: part(brokers, "one", lost).queue.relay.reachable, 60.0)
    publisher.publish("$queue/q", b"new", 1, **{"partition-key": key_of(brokers, lost)})
    brokers.run_until(lambda: len(reasons(publisher)) == 5 * PARTITIONS + 1, 60.0)
    del reads_._open
    for reading in asked:
        reads_._open(reading)
    all_get(brokers, readers, expected | {lost: list(range(late, 6))})
    assert [len(places(one).get(lost, ())) for one in gone] == [0, 0] and not consumer.deliveries
    assert len(part(brokers, "three", lost).queue.readers) == 2


def test_nobody_reads_while_all_partitions_are_away_and_a_session_waits_for_them() -> None:
    brokers = streams()
    publisher, reader = connected(brokers, "two", "p"), persistent(brokers, "two", "r")
    publish(brokers, publisher, 0, 5)
    packet_id = reader.subscribe("$queue/q", 1, offset="first")
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    all_get(brokers, [reader], offsets(0, 5))
    reader.leave()
    brokers.run_for(0.5)
    move(brokers, next(partition for partition, at in homes(brokers).items() if at == "two"), "one")
    for name in ("one", "three"):
        brokers.kill(name)
        brokers.end_lease_of(name)
    brokers.run_until(lambda: not any(part(brokers, "two", partition).queue.relay.reachable
                                      for partition in range(PARTITIONS)), 60.0)
    refused = connected(brokers, "two", "refused")
    packet_id = refused.subscribe("$queue/q", 1)
    brokers.run_until(lambda: refused.of(Suback))
    assert refused.of(Suback)[0].reasons == [0x80]
    before = len(reader.messages)
    reader.connect(clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: reader.connected)
    brokers.run_for(1.0)
    assert len(reader.messages) == before
    brokers.start("one", "three")
    brokers.run_until(lambda: len(reader.messages) >= before + 5 * PARTITIONS, 60.0)
    assert {at: found[5:] for at, found in places(reader).items()} == offsets(0, 5)


@pytest.mark.parametrize("qos", [0, 1])
def test_partitions_move_under_readers_at_the_tail_and_in_the_past(qos: int) -> None:
    brokers = streams()
    publishers = [connected(brokers, at, f"p-{at}") for at in NAMES]
    body = bytes(10_000)
    for number in range(150):
        publishers[0].publish("$queue/q", b"%d " % number + body, 1)
    brokers.run_until(lambda: len(reasons(publishers[0])) == 150, 60.0)
    for partition, at in homes(brokers).items():
        brokers.processes[at].node.checkpoint()
        brokers.run_for(1.0)
        for log in part(brokers, at, partition).queue.logs:
            log.evict(1 << 40)
    tail = [reads(brokers, at, f"tail-{at}", qos=qos, consumer_group=f"t-{at}") for at in NAMES]
    past = [reads(brokers, at, f"past-{at}", qos=qos, offset="first") for at in NAMES]
    sent = 0
    process = brokers.processes["one"]
    for round_ in range(6):
        partition = round_ % PARTITIONS
        to = NAMES[(NAMES.index(homes(brokers)[partition]) + 1) % 3]
        work = process.process.driver.start(process.node.manager.mover(
            (b"/", part_name(b"q", partition, PARTITIONS)), to))
        while not work.done():
            for publisher in publishers:
                publisher.publish("$queue/q", b"%d" % sent, 1)
                sent += 1
            brokers.run_for(0.003)
        assert work.result() and homes(brokers)[partition] == to
        past.append(reads(brokers, to, f"late-{round_}", qos=qos, offset="first"))
    brokers.run_until(lambda: sum(len(reasons(publisher)) for publisher in publishers) == sent + 150, 60.0)
    assert all(set(reasons(publisher).values()) == {0} for publisher in publishers)
    ends = {partition: part(brokers, at, partition).queue.logs[0].next for partition, at in homes(brokers).items()}
    assert sum(ends.values()) == sent + 150
    all_get(brokers, past, {partition: list(range(end)) for partition, end in ends.items()})
    all_get(brokers, tail, {partition: list(range(50, end)) for partition, end in ends.items()})
    if qos:
        assert all(positions(brokers, b"t-%s" % at.encode()) == ends for at in NAMES)


def test_retention_is_of_each_partition_and_restarts_keep_everything() -> None:
    brokers = streams(retention=Retention(max_length_messages=10))
    publish(brokers, connected(brokers, "one", "p"), 0, 30)
    brokers.run_until(lambda: all(part(brokers, at, partition).queue.depth == 10
                                  for partition, at in homes(brokers).items()), 60.0)
    before = homes(brokers)
    for name in NAMES:
        brokers.kill(name)
        brokers.end_lease_of(name)
    brokers.run_for(1.0)
    brokers.start(*NAMES)
    brokers.run_for(2.0)
    assert homes(brokers) == before
    all_get(brokers, [reads(brokers, at, at, offset="first") for at in NAMES], offsets(20, 30))


def test_a_partition_that_this_node_hears_of_later_is_opened_then() -> None:
    brokers = streams()
    publish(brokers, connected(brokers, "one", "p"), 0, 5)
    consumers = brokers.processes["two"].node.broker.consumers
    assert consumers is not None
    [far] = [partition for partition, at in homes(brokers).items() if at == "three"]
    state = part(brokers, "two", far)
    definition = QueueDefinition(state.id, state.spec)
    consumers.defined.forget(definition)
    readers = [reads(brokers, "two", "past", offset="first"), reads(brokers, "two", "tail", consumer_group="g"),
               reads(brokers, "two", "other", offset="next")]
    others = {partition: list(range(5)) for partition in range(PARTITIONS) if partition != far}
    all_get(brokers, readers[:1], others)
    connected(brokers, "three", "p2").publish("$queue/q", b"x", 1, **{"partition-key": key_of(brokers, far)})
    brokers.run_for(1.0)
    consumers.defined.learn(definition, "three")
    all_get(brokers, readers[:1], others | {far: list(range(6))})
    all_get(brokers, readers[2:], {far: [5]})


def test_other_settings_reach_all_partitions() -> None:
    brokers = streams()
    publish(brokers, connected(brokers, "one", "p"), 0, 30)
    reader = reads(brokers, "two", "r", offset="first")
    all_get(brokers, [reader], offsets(0, 30))
    do(brokers, "three", lambda node: node.manager.declare(QueueSpec(
        name="q", type="stream", partitions=PARTITIONS, retention=Retention(max_length_messages=5))))
    brokers.run_until(lambda: all(part(brokers, at, partition).queue.depth == 5
                                  for partition, at in homes(brokers).items()), 60.0)
    all_get(brokers, [reads(brokers, "one", "late", offset="first")], offsets(25, 30))


def test_a_deleted_stream_leaves_nothing() -> None:
    brokers = streams()
    readers = [reads(brokers, at, at, consumer_group="g") for at in NAMES]
    consumer = Amqp(brokers, "two")
    consumer.consume("q", tag="c")
    publish(brokers, connected(brokers, "two", "p"), 0, 10)
    all_get(brokers, readers, offsets(0, 10))
    do(brokers, "three", lambda node: (b"/", b"q") in node.manager.queues and node.manager.delete_for((b"/", b"q"), 0))
    brokers.run_for(2.0)
    assert len(consumer.told("basic.cancel")) == 1
    for at in NAMES:
        node = brokers.processes[at].node
        assert not any(b"q" in name for _, name in node.manager.queues)
        reads_ = node.manager.reads
        assert not (reads_._readings or reads_._of or reads_._polls or reads_.wholes._wholes)
        assert questions(brokers, at) == 0
    divide(brokers, type="stream")
    again = reads(brokers, "one", "again", offset="first")
    publish(brokers, connected(brokers, "three", "p2"), 0, 3)
    all_get(brokers, [again], offsets(0, 3))


@pytest.mark.parametrize("part_", range(4))
def test_readers_whose_nodes_live_get_everything_once_and_in_order(part_: int, seed: int) -> None:
    """An owner dies and comes back, partitions move, nodes lose each other, readers come, leave and are slow."""
    chance = random.Random(seed + part_)
    brokers = streams(seed=seed + part_)
    brokers.writer_s = chance.choice((0.001, 0.05))
    readers = [reads(brokers, at, f"{at}-{number}", offset=position, consumer_group=f"g-{at}-{number}")
               for at in ("two", "three") for number, position in enumerate(("first", "next"))]
    publishers = [connected(brokers, at, f"p-{at}") for at in ("two", "three")]
    number = 0
    begins: dict[str, dict[int, int]] = {}  # of those that came later: by partition
    moves: list[Any] = []

    def publish_some() -> None:
        nonlocal number
        for _ in range(chance.randrange(1, 30)):
            number += 1
            chance.choice(publishers).publish("$queue/q", b"%d " % number + bytes(chance.choice((10, 10, 50_000))), 1)

    def owner_dies() -> None:
        if brokers.processes["one"].process.alive:
            brokers.kill("one")
            brokers.run_for(chance.choice((0.0, 0.5)))
            brokers.end_lease_of("one")
            brokers.run_for(chance.choice((0.0, 0.01, 2.0)))
            brokers.network.heal()
            brokers.start("one")

    def one_moves() -> None:
        process, partition = brokers.processes["two"], chance.randrange(PARTITIONS)

        async def moved() -> None:
            try:
                await process.node.manager.mover((b"/", part_name(b"q", partition, PARTITIONS)), chance.choice(NAMES))
            except Exception as error:      # it stays: its owner is away, or it moves already
                moves.append(error)

        process.process.driver.start(moved())

    def slow() -> None:
        reader = chance.choice(readers)
        reader.acks = not reader.acks
        if reader.acks:
            answered(reader)

    def answered(reader: Client) -> None:
        for packet in reader.of(Publish):
            reader.send(Puback(packet_id=packet.packet_id))

    def one_comes() -> None:
        name = f"late-{len(begins)}"
        reader = connected(brokers, chance.choice(("two", "three")), name)
        packet_id = reader.subscribe("$queue/q", 1, offset="first")
        brokers.run_until(lambda: reader.of(Suback), 60.0)
        if reader.of(Suback)[0].reasons == [1]:
            assert reader.acknowledged(packet_id)
            begins[name] = {}
            readers.append(reader)

    steps = [publish_some] * 6 + [owner_dies, one_moves, one_moves, slow, one_comes, brokers.break_streams]
    for _ in range(30):
        chance.choice(steps)()
        brokers.run_for(chance.choice((0.0, 0.01, 0.3)))
    brokers.network.heal()
    for reader in readers:
        reader.acks = True
        answered(reader)
    brokers.run_for(12.0)
    assert len(homes(brokers)) == PARTITIONS
    publish_some()
    brokers.run_for(3.0)
    ends = {partition: part(brokers, at, partition).queue.logs[0].next for partition, at in homes(brokers).items()}
    all_get(brokers, readers, {partition: list(range(end)) for partition, end in ends.items() if end})
