"""Streams, and queues in memory, move between the brokers of a simulated cluster. Readers of all nodes go on without a
gap or a repetition, whoever dies meanwhile."""
from __future__ import annotations

import random
from typing import Any

import pytest
from kit.sizes import some
from oracle.mqtt import Puback, Publish
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_order_in_moves import with_views
from simulator.cluster.test_queue_moves import STEPS, Q, fill, move, moved, numbers, owner_of, whole
from simulator.cluster.test_queues import NAMES, consumer, deliveries, reasons, share
from simulator.cluster.test_streams import (
    AmqpReader,
    got,
    payloads,
    places,
    positions,
    publish,
    questions,
    queue_of,
    reads,
    stream,
    to_disk,
)

from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.statistics import totals
from fluxmq.model.queues import QueueSpec, Retention


def times(brokers: Brokers, at: str) -> list[tuple[int, int, bytes]]:
    """What the node has of the stream: offset, timestamp, payload."""
    found = []
    for log in queue_of(brokers, at).logs:
        for offset in range(log.first, log.next):
            record = log.get(offset)
            assert record is not None and record.offset == offset
            found.append((offset, record.time_ms, record.payload))
    return found


def settle_down(brokers: Brokers, readers: list[Client], expected: list[bytes]) -> None:
    brokers.run_until(lambda: all(len(got(reader)) >= len(expected) for reader in readers), 60.0)
    brokers.run_for(1.5)
    for reader in readers:
        assert got(reader) == expected, reader.name


@pytest.mark.parametrize("at", NAMES)
def test_offsets_and_times_stay_the_same(at: str) -> None:
    brokers = serving(*NAMES)
    stream(brokers, partitions=2)
    publisher = connected(brokers, "three", "p")
    for first in range(0, 100, 20):
        publish(brokers, publisher, first, first + 20)
        brokers.run_for(0.5)
    before = times(brokers, "one")
    moved(brokers, "two", at)
    assert times(brokers, "two") == before
    late = reads(brokers, at, "late", offset=f"timestamp={before[25][1]}")
    brokers.run_for(1.0)
    assert set(got(late)) == {payload for _, time_ms, payload in before if time_ms >= before[25][1]}
    moved(brokers, "one", at)
    assert times(brokers, "one") == before


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_readers_on_all_nodes_go_on_while_the_stream_moves(qos: int) -> None:
    """At the tail, and deep in the past, which is on the disk only. The stream moves round while it is written."""
    brokers = serving(*NAMES)
    stream(brokers)
    publishers = [connected(brokers, at, f"p-{at}") for at in NAMES]
    body = bytes(10_000)
    for number in range(300):
        publishers[0].publish("$queue/q", b"%d " % number + body, 1)
    brokers.run_until(lambda: len(reasons(publishers[0])) == 300, 60.0)
    to_disk(brokers, "one")
    tail = [reads(brokers, at, f"tail-{at}", qos=qos) for at in NAMES]
    past = [reads(brokers, at, f"past-{at}", qos=qos, offset="first") for at in NAMES]
    sent = [300, 0, 0]
    for to in ("two", "three", "one", "three"):
        work = move(brokers, to)
        while not work.done():
            for at, publisher in enumerate(publishers):
                publisher.publish("$queue/q", b"%d %s" % (sent[at], b"012"[at:at + 1]), 1)
                sent[at] += 1
            brokers.run_for(0.003)
        assert work.result() is None
        whole(brokers, to)
        late = reads(brokers, to, f"late-{to}", qos=qos, offset="first")
        past.append(late)
    total = sum(sent)
    brokers.run_until(lambda: all(len(got(reader)) >= total for reader in past)
                      and all(len(got(reader)) >= total - 300 for reader in tail), 60.0)
    brokers.run_for(2.0)
    assert all(set(reasons(publisher).values()) == {0} for publisher in publishers)
    for reader in (*past, *tail):
        assert places(reader)[0] == list(range(0 if reader in past else 300, total)), reader.name
    order = got(past[0])
    assert all(got(reader) == order for reader in past) and all(got(reader) == order[300:] for reader in tail)
    for at in (b"0", b"1", b"2"):
        mine = [int(payload.split()[0]) for payload in order if payload.endswith(b" " + at)]
        assert mine == sorted(mine)
    assert [questions(brokers, at) > 0 for at in NAMES] == [True, True, False]


def test_groups_go_on_where_they_were() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publisher = connected(brokers, "three", "p")
    publish(brokers, publisher, 0, 20)
    readers = [reads(brokers, at, f"r-{at}", consumer_group=f"g-{at}", offset="first") for at in NAMES]
    manual = reads(brokers, "three", "manual", consumer_group="m", offset="first", ack="manual")
    brokers.run_until(lambda: all(len(got(reader)) == 20 for reader in (*readers, manual)))
    manual.publish("$queue/q/$commit", b"", 1, partition="0", offset="7")
    brokers.run_until(lambda: reasons(manual))
    brokers.run_for(2.0)
    assert sorted(positions(brokers, "one")) == [8, 20, 20, 20]
    moved(brokers, "two")
    assert sorted(positions(brokers, "two")) == [8, 20, 20, 20]
    publish(brokers, publisher, 20, 40)
    settle_down(brokers, [*readers, manual], payloads(0, 40))
    assert sorted(positions(brokers, "two")) == [8, 40, 40, 40]
    manual.publish("$queue/q/$commit", b"", 1, partition="0", offset="30")
    brokers.run_until(lambda: len(reasons(manual)) == 2)
    for reader in (*readers, manual):
        reader.leave()
    brokers.run_for(1.0)
    assert not queue_of(brokers, "two").readers
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(1.0)
    brokers.start("two")
    brokers.run_for(2.0)
    again = {group: reads(brokers, "one", group, consumer_group=group) for group in ("g-one", "g-two", "g-three", "m")}
    publish(brokers, connected(brokers, "three", "p2"), 40, 45)
    brokers.run_until(lambda: len(got(again["m"])) == 14)
    brokers.run_for(1.0)
    assert got(again.pop("m")) == payloads(31, 45)
    assert [got(reader) for reader in again.values()] == [payloads(40, 45)] * 3


@pytest.mark.parametrize("step", some(9, STEPS))
def test_a_reader_that_leaves_in_a_move_has_committed(step: int) -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publisher = connected(brokers, "three", "p")
    readers = [reads(brokers, at, f"r-{at}", consumer_group=f"g-{at}") for at in NAMES]
    publish(brokers, publisher, 0, 20)
    brokers.run_until(lambda: all(len(got(reader)) == 20 for reader in readers))
    work = move(brokers, "two")
    brokers.run_for(step / 1000)
    for reader in readers:
        reader.leave()
    brokers.run_until(work.done, 60.0)
    whole(brokers, "two")
    brokers.run_for(1.5)
    assert positions(brokers, "two") == [20, 20, 20]
    assert not queue_of(brokers, "two").readers and not queue_of(brokers, "one").readers


@pytest.mark.parametrize("step", some(9, STEPS))
def test_a_consumer_that_comes_in_a_move_is_not_refused(step: int) -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publish(brokers, connected(brokers, "three", "p"), 0, 20)
    work = move(brokers, "two")
    brokers.run_for(step / 1000)
    clients = [connected(brokers, at, f"r-{at}") for at in NAMES]
    amqp = [AmqpReader(brokers, at) for at in NAMES]
    asked = [client.subscribe("$queue/q", 1, offset="first") for client in clients]
    for reader in amqp:
        reader.send(1, "basic.qos", prefetch_count=100)
        reader.send(1, "basic.consume", queue="q", consumer_tag="c")
    brokers.run_until(lambda: all(client.acknowledged(packet_id) for client, packet_id
                                  in zip(clients, asked, strict=True)))
    brokers.run_until(lambda: all("basic.consume-ok" in reader.read() for reader in amqp))
    brokers.run_until(work.done, 60.0)
    whole(brokers, "two")
    settle_down(brokers, clients, payloads(0, 20))
    assert len(queue_of(brokers, "two").readers) == 6


def test_consumers_of_amqp_go_on() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    readers = [AmqpReader(brokers, at) for at in NAMES]
    for reader in readers:
        reader.send(1, "basic.qos", prefetch_count=1000)
        reader.send(1, "basic.consume", queue="q", consumer_tag="c", no_ack=True)
        brokers.run_until(lambda: "basic.consume-ok" in reader.read())     # noqa: B023
    publisher = connected(brokers, "three", "p")
    sent = 0
    for to in ("two", "three", "one"):
        work = move(brokers, to)
        while not work.done():
            publish(brokers, publisher, sent, sent + 1)
            sent += 1
        whole(brokers, to)
    brokers.run_for(1.0)
    assert sent > 10 and [reader.read().count("basic.deliver") for reader in readers] == [sent] * 3


@pytest.mark.parametrize("victim", ["one", "two"])
@pytest.mark.parametrize("step", some(9, STEPS))
def test_a_node_that_dies_in_a_move_loses_nothing(victim: str, step: int) -> None:
    """The stream is at one of the two in the end, and readers of the nodes that live go on."""
    brokers = serving(*NAMES)
    stream(brokers)
    publisher = connected(brokers, "three", "p")
    publish(brokers, publisher, 0, 20)
    readers = [reads(brokers, at, f"r-{at}", consumer_group=f"g-{at}", offset="first") for at in NAMES]
    brokers.run_until(lambda: all(len(got(reader)) == 20 for reader in readers))
    brokers.run_for(1.5)
    before = times(brokers, "one")
    work = move(brokers, "two")
    brokers.run_for(step / 1000)
    for number in range(20, 25):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.kill(victim)
    brokers.end_lease_of(victim)
    brokers.run_for(2.0)
    brokers.start(victim)
    brokers.run_until(lambda: len(reasons(publisher)) == 25, 60.0)
    brokers.run_for(2.0)
    owner = owner_of(brokers)
    whole(brokers, owner)
    assert victim == "one" or work.done()
    confirmed = [b"%d" % (number - 1) for number, reason in sorted(reasons(publisher).items()) if reason == 0]
    publish_rest(brokers, publisher, 25, 30)
    brokers.run_for(2.0)
    after = times(brokers, owner)
    assert after[:20] == before
    written = [payload for _, _, payload in after]
    assert len(set(written)) == len(written) and set(confirmed) <= set(written)
    assert sorted(written, key=int) == written
    for reader in readers:
        if reader.at != victim:
            assert got(reader) == written, reader.name
    again = reads(brokers, victim, "again", consumer_group=f"g-{victim}")
    brokers.run_for(1.0)
    assert [*payloads(0, 20), *got(again)] == written
    assert brokers.processes[owner].node.manager.streams.keys() == {brokers.processes[owner].node.manager.queues[Q]}


def publish_rest(brokers: Brokers, client: Client, first: int, behind: int) -> None:
    """As publish(), where something may have been refused before."""
    known = len(reasons(client))
    for number in range(first, behind):
        client.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(client)) == known + behind - first, 60.0)
    assert set(list(reasons(client).values())[-(behind - first):]) == {0}


@pytest.mark.parametrize("step", some(9, STEPS))
def test_streams_between_nodes_that_break_in_a_move(step: int) -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    readers = [reads(brokers, at, f"r-{at}-{qos}", qos=qos, consumer_group=f"g-{at}-{qos}")
               for at in NAMES for qos in (0, 1)]
    publisher = connected(brokers, "three", "p")
    publish(brokers, publisher, 0, 30)
    work = move(brokers, "two")
    brokers.run_for(step / 1000)
    brokers.break_streams()
    brokers.run_until(work.done, 60.0)
    owner = "one" if work.result() else "two"
    whole(brokers, owner)
    publish(brokers, publisher, 30, 60)
    settle_down(brokers, readers, payloads(0, 60))
    assert positions(brokers, owner) == [60] * 6
    moved(brokers, "two")
    publish(brokers, publisher, 60, 70)
    settle_down(brokers, readers, payloads(0, 70))


def test_a_move_that_is_given_up_leaves_everything_where_it_was() -> None:
    """In its last instant: the readers of all nodes have asked the new owner by then, or nobody."""
    brokers = serving(*NAMES)
    stream(brokers)
    readers = [reads(brokers, at, f"r-{at}", consumer_group=f"g-{at}") for at in NAMES]
    publisher = connected(brokers, "three", "p")
    publish(brokers, publisher, 0, 20)
    brokers.run_until(lambda: all(len(got(reader)) == 20 for reader in readers))
    moves = brokers.processes["one"].cluster.holdings.queue_moves

    async def refused(going: Any) -> None:
        driver = brokers.processes["one"].process.driver
        await driver.sleep(0.5)
        raise QueueRefused("unavailable", "it is said so")

    moves._commit = refused  # type: ignore[method-assign]
    work = move(brokers, "two")
    brokers.run_for(0.2)
    assert queue_of(brokers, "one").relay is not None
    late = [connected(brokers, at, f"late-{at}") for at in NAMES]
    asked = [client.subscribe("$queue/q", 1, offset="first") for client in late]
    for number in range(20, 30):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(work.done, 60.0)
    assert "it is said so" in work.result()
    whole(brokers, "one")
    brokers.run_until(lambda: all(client.acknowledged(packet_id) for client, packet_id
                                  in zip(late, asked, strict=True)))
    settle_down(brokers, [*readers, *late], payloads(0, 30))
    assert positions(brokers, "one") == [30, 30, 30]
    assert len(queue_of(brokers, "one").readers) == 6
    for reader in (*readers, *late):
        reader.leave()
    brokers.run_for(1.0)
    assert not queue_of(brokers, "one").readers


def commits(brokers: Brokers, reader: Client, offsets: range) -> None:
    """One each millisecond."""
    for offset in offsets:
        reader.publish("$queue/q/$commit", b"", 1, partition="0", offset=str(offset))
        brokers.run_for(0.001)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("step", some(3, STEPS[::4]))
@pytest.mark.parametrize("at", NAMES)
def test_a_commit_in_a_move_reaches_the_new_owner(at: str, step: int, slow: bool) -> None:
    """slow: nodes hear late of the new owner, so the old one is asked also when it has the stream no more."""
    brokers, views = with_views(1)
    stream(brokers)
    publish(brokers, connected(brokers, "three", "p"), 0, 60)
    readers = [reads(brokers, at, f"r{number}", consumer_group=f"g{number}", offset="first", ack="manual")
               for number in range(2)]
    brokers.run_until(lambda: all(len(got(reader)) == 60 for reader in readers))
    if slow:
        for view in views:
            view.late_s = 0.05
    work = move(brokers, "two")
    brokers.run_for(step / 1000)
    commits(brokers, readers[0], range(40))
    commits(brokers, readers[1], range(39, 20, -1))     # back again
    brokers.run_until(work.done, 60.0)
    brokers.run_until(lambda: len(reasons(readers[0])) == 40 and len(reasons(readers[1])) == 19, 60.0)
    assert [set(reasons(reader).values()) for reader in readers] == [{0}, {0}]
    assert positions(brokers, "two") == [40, 22]
    whole(brokers, "two")
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(1.0)
    brokers.start("two")
    assert positions(brokers, "two") == [40, 22]


def test_a_commit_in_a_move_that_is_given_up_is_of_the_old_owner() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publish(brokers, connected(brokers, "three", "p"), 0, 60)
    readers = [reads(brokers, at, f"r-{at}", consumer_group=f"g-{at}", offset="first", ack="manual") for at in NAMES]
    brokers.run_until(lambda: all(len(got(reader)) == 60 for reader in readers))

    async def refused(going: Any) -> None:
        await brokers.processes["one"].process.driver.sleep(0.5)
        raise QueueRefused("unavailable", "it is said so")

    brokers.processes["one"].cluster.holdings.queue_moves._commit = refused  # type: ignore[method-assign]
    work = move(brokers, "two")
    brokers.run_for(0.2)
    for reader in readers:
        commits(brokers, reader, range(20))
    assert not any(reasons(reader) for reader in readers)
    brokers.run_until(lambda: all(len(reasons(reader)) == 20 for reader in readers), 60.0)
    assert {reason for reader in readers for reason in reasons(reader).values()} == {0}
    assert positions(brokers, "one") == [20, 20, 20] and "it is said so" in work.result()


def test_a_commit_is_refused_when_the_reader_leaves_or_the_stream_is_away() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publish(brokers, connected(brokers, "three", "p"), 0, 20)
    readers = [reads(brokers, "three", f"r{number}", consumer_group=f"g{number}", offset="first", ack="manual")
               for number in range(2)]
    brokers.run_until(lambda: all(len(got(reader)) == 20 for reader in readers))
    brokers.network.stall("one", "three")
    for reader in readers:
        commits(brokers, reader, range(3))
    unsubscribed = readers[0].unsubscribe("$queue/q")
    brokers.run_for(0.5)
    brokers.kill("one")
    brokers.network.heal()
    brokers.end_lease_of("one")
    brokers.run_until(lambda: all(len(reasons(reader)) == 3 for reader in readers), 60.0)
    assert {reason for reader in readers for reason in reasons(reader).values()} == {0x80}
    assert readers[0].acknowledged(unsubscribed)
    commits(brokers, readers[1], range(1))
    brokers.run_until(lambda: len(reasons(readers[1])) == 4)
    assert set(reasons(readers[1]).values()) == {0x80}
    assert not brokers.processes["three"].node.hub.commits.waiting


@pytest.mark.parametrize("kept", [10, 0])
def test_retention_goes_on_while_the_stream_moves(kept: int) -> None:
    """What is removed meanwhile is not there at the new owner, also after its start; nor is an offset used twice."""
    brokers = serving(*NAMES)
    stream(brokers, retention=Retention(max_length_messages=1000))
    publisher = connected(brokers, "three", "p")
    publish(brokers, publisher, 0, 50)
    owner = brokers.processes["one"].node.manager
    state, [log] = owner.queues[Q], queue_of(brokers, "one").logs
    work = move(brokers, "two")
    brokers.run_for(0.004)
    owner.trim(state, log, 50 - kept)
    brokers.run_until(work.done, 60.0)
    whole(brokers, "two")
    for _ in range(2):
        [log] = queue_of(brokers, "two").logs
        assert (log.first, log.next, queue_of(brokers, "two").depth) == (50 - kept, 50, kept)
        brokers.kill("two")
        brokers.end_lease_of("two")
        brokers.run_for(1.0)
        brokers.start("two")
        brokers.run_for(2.0)
        brokers.processes["two"].node.checkpoint()
        brokers.run_for(1.0)
    reader = reads(brokers, "one", "r", offset="first")
    publish(brokers, connected(brokers, "three", "p2"), 50, 55)
    settle_down(brokers, [reader], payloads(50 - kept, 55))
    assert places(reader)[0] == list(range(50 - kept, 55))


def test_the_old_owner_applies_no_limits_and_counts_nothing_any_more() -> None:
    """The logs of a relay have numbers of other logs of this node."""
    brokers = serving(*NAMES)
    do(brokers, "one", lambda node: node.manager.declare(QueueSpec(name="other", type="stream")))
    owner = next(at for at in NAMES if brokers.processes[at].node.manager.queues[b"/", b"other"].here)
    other = connected(brokers, owner, "o")
    for _ in range(50):
        other.publish("$queue/other", b"x", 1)
    brokers.run_until(lambda: len(reasons(other)) == 50)
    to = next(at for at in NAMES if at != owner)
    do(brokers, owner, lambda node: node.manager.declare(QueueSpec(name="q", type="stream", retention=Retention(
        max_age=100.0))))
    brokers.run_for(1.0)
    moved(brokers, owner)
    publish(brokers, connected(brokers, "three", "p"), 0, 20)
    to_disk(brokers, owner)
    reader = reads(brokers, owner, "r", offset="first")
    brokers.run_until(lambda: len(got(reader)) == 20)
    reader.acks = False
    before = totals(brokers.processes[owner].node.manager)[1]
    moved(brokers, to)
    brokers.run_for(30.0)
    logs = [brokers.processes[at].node.manager.queues[Q].queue.logs[0] for at in (owner, to)]
    assert [(log.first, log.next) for log in logs] == [(0, 20), (0, 20)]
    after = totals(brokers.processes[owner].node.manager)[1]
    assert before["messages"] - after["messages"] == 20
    assert totals(brokers.processes[to].node.manager)[1]["messages"] == 20


@pytest.mark.parametrize("at", NAMES)
def test_what_a_producer_repeats_is_there_once(at: str) -> None:
    """Also at the node to which the stream has moved, and when that has been started again."""
    brokers = serving(*NAMES)
    stream(brokers)
    for to in ("two", "two", "three"):
        publisher = connected(brokers, at, f"p-{to}")
        for sequence in range(1, 11):
            publisher.publish("$queue/q", b"%d" % sequence, 1, producer_id="me", producer_sequence=str(sequence))
        brokers.run_until(lambda: len(reasons(publisher)) == 10)    # noqa: B023
        assert set(reasons(publisher).values()) == {0}
        assert [payload for _, _, payload in times(brokers, owner_of(brokers))] == [b"%d" % one for one in range(1, 11)]
        moved(brokers, to)
        if to == "three":
            break
        brokers.kill("two")
        brokers.end_lease_of("two")
        brokers.run_for(1.0)
        brokers.start("two")
        brokers.run_for(2.0)


def test_a_stream_that_is_deleted_in_a_move_leaves_nothing() -> None:
    for step in STEPS[::3]:
        brokers = serving(*NAMES)
        stream(brokers)
        readers = [reads(brokers, at, at, consumer_group="g") for at in NAMES]
        publish(brokers, connected(brokers, "three", "p"), 0, 10)
        brokers.run_until(lambda: all(len(got(reader)) == 10 for reader in readers))   # noqa: B023
        work = move(brokers, "two")
        brokers.run_for(step / 1000)
        do(brokers, "three", lambda node: node.amqp_queues.delete(b"/", b"q"))
        brokers.run_until(work.done, 60.0)
        brokers.run_for(7.0)
        assert [questions(brokers, at) for at in NAMES] == [0, 0, 0], step
        for at in NAMES:
            manager = brokers.processes[at].node.manager
            assert Q not in manager.queues and not manager.states and not manager.streams
            assert not brokers.processes[at].node.broker.consumers.defined.arrivals
            found = manager.reads
            assert not (found._readings or found._of or found._polls or found._loads or found._untold)


@pytest.mark.parametrize("part", range(6))
def test_readers_get_everything_once_and_in_order_wherever_the_stream_goes(part: int, seed: int) -> None:
    """Publishers and readers at all nodes, slow ones too; messages leave the memory, streams between nodes break."""
    chance = random.Random(f"{seed} {part}")
    brokers = serving(*NAMES, seed=seed + part)
    brokers.writer_s = chance.choice((0.001, 0.02))
    stream(brokers, partitions=2)
    readers = [reads(brokers, at, f"{at}-{number}", qos=chance.choice((0, 1, 1)), offset=position,
                     consumer_group=f"g-{at}-{number}") for at in NAMES for number, position in
               enumerate(("first", "next", "next"))]
    publishers = [connected(brokers, at, f"p-{at}") for at in NAMES]
    number, at, work = 0, "one", None

    def publish_some() -> None:
        nonlocal number
        for _ in range(chance.randrange(1, 30)):
            number += 1
            body = bytes(chance.choice((10, 10, 30_000)))
            chance.choice(publishers).publish("$queue/q", b"%d " % number + body, 1)

    def out_of_memory() -> None:
        for name in NAMES:
            brokers.processes[name].node.checkpoint()
        brokers.run_for(0.1)
        for name in NAMES:
            for log in queue_of(brokers, name).logs:
                log.evict(1 << 40)

    def slow() -> None:
        reader = chance.choice(readers)
        reader.acks = not reader.acks
        if reader.acks:
            answered(reader)

    def answered(reader: Client) -> None:
        for packet in reader.of(Publish):
            if packet.qos == 1:
                reader.send(Puback(packet_id=packet.packet_id))

    def go() -> None:
        nonlocal at, work
        if work is None or work.done():
            at = chance.choice(NAMES)
            work = move(brokers, at, chance.choice(NAMES))

    steps = [publish_some] * 5 + [go, go, out_of_memory, slow] + [brokers.break_streams] * (part % 2)
    for _ in range(40):
        chance.choice(steps)()
        brokers.run_for(chance.choice((0.0, 0.01, 0.1)))
    if work is not None:
        brokers.run_until(work.done, 60.0)
    for reader in readers:
        reader.acks = True
        answered(reader)
    out_of_memory()     # also the journals: publishers wait for the next checkpoint if it is late
    brokers.run_for(5.0)
    publish_some()
    owner = owner_of(brokers)
    whole(brokers, owner)
    ends = [log.next for log in queue_of(brokers, owner).logs]
    brokers.run_for(5.0)
    for reader in readers:
        brokers.run_until(lambda: all(places(reader).get(at, [-1])[-1] == end - 1      # noqa: B023
                                      for at, end in enumerate(ends) if end), 60.0)
    assert sum(ends) == number
    for reader in readers:
        for log, end in enumerate(ends):
            assert places(reader).get(log, []) == list(range(end)), (reader.name, log)


# ---------------------------------------------------------------------- queues in memory

def test_a_queue_in_memory_moves_with_what_waits_and_what_is_held() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one", type="ephemeral")
    readers = [consumer(brokers, at, f"r-{at}") for at in NAMES]
    for reader in readers:
        reader.acks = False
    publisher = connected(brokers, "three", "p")
    fill(brokers, publisher, 30)
    brokers.run_until(lambda: sum(len(reader.messages) for reader in readers) == 30)
    for to in ("two", "three", "one"):
        moved(brokers, to)
    state = brokers.processes["one"].node.manager.queues[Q]
    assert state.groups[b"default", b""].held == 30
    for reader in readers:
        reader.acks = True
        for packet in reader.of(Publish):
            reader.send(Puback(packet_id=packet.packet_id))
    fill(brokers, publisher, 20, 30)
    brokers.run_until(lambda: sum(len(reader.messages) for reader in readers) == 50)
    brokers.run_for(6.0)
    assert sorted(number for reader in readers for number in numbers(reader)) == list(range(50))
    assert {count for reader in readers for each in deliveries(reader).values() for count in each} == {1}
    assert state.queue.waiting == 0 and not state.queue.durable


def test_a_queue_in_memory_that_nobody_consumes_is_not_deleted_because_it_has_moved() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one", type="ephemeral", expires_after=60.0)
    fill(brokers, connected(brokers, "three", "p"), 10)
    brokers.run_for(58.0)
    moved(brokers, "two")
    brokers.run_for(5.0)
    assert queue_of(brokers, "two").waiting == 10
    brokers.run_for(60.0)
    assert all(Q not in brokers.processes[at].node.manager.queues for at in NAMES)


@pytest.mark.parametrize("victim", ["one", "two"])
@pytest.mark.parametrize("step", some(5, STEPS[::2]))
def test_a_queue_in_memory_is_at_one_node_whoever_dies_in_a_move(victim: str, step: int) -> None:
    """Empty, if it was at the node that died; else with all that was in it."""
    brokers = serving(*NAMES)
    share(brokers, "one", type="ephemeral")
    publisher = connected(brokers, "three", "p")
    fill(brokers, publisher, 20)
    move(brokers, "two")
    brokers.run_for(step / 1000)
    brokers.kill(victim)
    brokers.end_lease_of(victim)
    brokers.run_for(2.0)
    brokers.start(victim)
    brokers.run_for(4.0)
    owner = owner_of(brokers)
    whole(brokers, owner)
    assert queue_of(brokers, owner).waiting in (0, 20)
    reader = consumer(brokers, "three", "r")
    publish_rest(brokers, publisher, 20, 30)
    brokers.run_for(2.0)
    assert numbers(reader)[-10:] == list(range(20, 30)) and len(reader.messages) in (10, 30)
