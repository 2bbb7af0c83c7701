"""Streams across the brokers of a simulated cluster: their readers are on other nodes."""
from __future__ import annotations

import random
from typing import Any

import pytest
from oracle.amqp091 import METHOD, PROTOCOL, decode_method, encode_frame, encode_method
from oracle.mqtt import V5, Connect, Puback, Publish
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_queues import NAMES, reasons, share

from fluxmq._core.errors import CorruptError
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.queue import Queue
from fluxmq.model.queues import Retention


def stream(brokers: Brokers, owner: str = "one", **spec: object) -> None:
    """A stream with all partitions at one node."""
    share(brokers, owner, type="stream", **spec)


def reads(brokers: Brokers, at: str, name: str, *, qos: int = 1, **options: str) -> Client:
    """A client that has subscribed to the stream. options: user properties, with _ for -."""
    client = connected(brokers, at, name)
    packet_id = client.subscribe("$queue/q", qos, **options)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    return client


def publish(brokers: Brokers, client: Client, first: int, behind: int) -> None:
    known = len(reasons(client))
    for number in range(first, behind):
        client.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(client)) == known + behind - first, 60.0)
    assert set(reasons(client).values()) == {0}


def got(client: Client) -> list[bytes]:
    return [payload for _, payload in client.messages]


def payloads(first: int, behind: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, behind)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_readers_on_all_nodes_get_everything_in_order(qos: int) -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    readers = [reads(brokers, at, f"{at}-{number}", qos=qos) for at in NAMES for number in range(2)]
    publisher = connected(brokers, "two", "p")
    publish(brokers, publisher, 0, 50)
    brokers.run_for(1.0)
    publish(brokers, publisher, 50, 100)
    brokers.run_until(lambda: all(len(got(reader)) >= 100 for reader in readers))
    brokers.run_for(1.0)
    assert [got(reader) for reader in readers] == [payloads(0, 100)] * 6


@pytest.mark.parametrize(("position", "first"), [("first", 0), ("last", 39), ("next", 40), ("17", 17), ("-5", 35),
                                                 ("offset=0", 0)])
def test_a_reader_begins_where_it_says(position: str, first: int) -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publish(brokers, connected(brokers, "three", "p"), 0, 40)
    readers = [reads(brokers, at, at, offset=position) for at in NAMES]
    publish(brokers, connected(brokers, "one", "p2"), 40, 60)
    brokers.run_until(lambda: all(len(got(reader)) >= 60 - first for reader in readers))
    brokers.run_for(1.0)
    assert [got(reader) for reader in readers] == [payloads(first, 60)] * 3


def test_a_reader_of_another_node_counts_as_a_consumer_until_it_leaves() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    reader = reads(brokers, "two", "r", consumer_group="g")
    owner = brokers.processes["one"].node.manager.queues[b"/", b"q"].queue
    assert [one.client for one in owner.readers] == ["r"]
    reader.leave()
    brokers.run_until(lambda: not owner.readers)


def test_a_reader_of_the_past_gets_all_and_goes_on_with_what_is_new() -> None:
    """More than a block, from the disk of the owner."""
    brokers = serving(*NAMES)
    stream(brokers)
    publisher = connected(brokers, "two", "p")
    body = bytes(50_000)
    for number in range(60):
        publisher.publish("$queue/q", b"%d " % number + body, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 60, 60.0)
    quick = reads(brokers, "three", "quick")
    slow = reads(brokers, "three", "slow", offset="first")
    publish(brokers, publisher, 60, 70)
    brokers.run_until(lambda: len(got(slow)) >= 70 and len(got(quick)) >= 10, 60.0)
    brokers.run_for(1.0)
    assert [payload.partition(b" ")[0] for payload in got(slow)] == payloads(0, 70)
    assert got(quick) == payloads(60, 70)


def test_a_block_is_acknowledged_with_the_next_question_and_not_by_a_frame_alone() -> None:
    """A frame costs a node more than what is in it."""
    brokers = serving(*NAMES)
    stream(brokers)
    reader = reads(brokers, "two", "r")
    publisher = connected(brokers, "one", "p")
    outbox = brokers.processes["two"].cluster.peers.peers["one"].outbox  # type: ignore[union-attr]
    before = outbox.frames_sent
    for number in range(20):
        publisher.publish("$queue/q", b"%d" % number + bytes(20_000), 1)
        brokers.run_until(lambda number=number: len(got(reader)) == number + 1)  # type: ignore[misc]
        brokers.run_for(0.05)
    assert 20 <= outbox.frames_sent - before < 30


def test_a_group_goes_on_where_it_was_at_any_node() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publisher = connected(brokers, "one", "p")
    publish(brokers, publisher, 0, 20)
    first = reads(brokers, "two", "r", consumer_group="g", offset="first")
    brokers.run_until(lambda: len(got(first)) == 20)
    brokers.run_for(0.2)
    first.leave()
    brokers.run_for(0.5)
    publish(brokers, publisher, 20, 30)
    for at in ("three", "one", "two"):
        again = reads(brokers, at, f"r-{at}", consumer_group="g")
        if at == "three":
            brokers.run_until(lambda client=again: len(got(client)) == 10)
        brokers.run_for(0.5)
        assert got(again) == (payloads(20, 30) if at == "three" else [])
        again.leave()
        brokers.run_for(0.5)


def test_only_commit_moves_the_position_of_a_manual_reader() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publish(brokers, connected(brokers, "one", "p"), 0, 20)
    reader = reads(brokers, "two", "r", consumer_group="g", offset="first", ack="manual")
    brokers.run_until(lambda: len(got(reader)) == 20)
    reader.publish("$queue/q/$commit", b"", 1, partition="0", offset="11")
    brokers.run_until(lambda: list(reasons(reader).values()) == [0])
    [group] = brokers.processes["one"].node.manager.queues[b"/", b"q"].groups.values()
    assert [cursor.next for cursor in group.cursors] == [12]
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(1.0)
    other = reads(brokers, "three", "other", consumer_group="g")
    brokers.run_until(lambda: len(got(other)) == 8)
    assert got(other) == payloads(12, 20)


def test_readers_go_on_when_the_owner_is_back() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    readers = [reads(brokers, at, at) for at in ("two", "three")]
    publish(brokers, connected(brokers, "two", "p"), 0, 20)
    brokers.run_until(lambda: all(len(got(reader)) == 20 for reader in readers))
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    brokers.start("one")
    brokers.run_for(3.0)
    publish(brokers, connected(brokers, "three", "p2"), 20, 40)
    brokers.run_until(lambda: all(len(got(reader)) >= 40 for reader in readers), 60.0)
    brokers.run_for(1.0)
    assert [got(reader) for reader in readers] == [payloads(0, 40)] * 2


def test_a_dead_node_reads_nothing_more() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    reads(brokers, "three", "r", consumer_group="g")
    owner = brokers.processes["one"].node.manager.queues[b"/", b"q"].queue
    brokers.run_until(lambda: len(owner.readers) == 1 and len(owner.feeds) == 1)
    brokers.kill("three")
    brokers.end_lease_of("three")
    brokers.run_until(lambda: not owner.readers and not owner.feeds, 60.0)


def test_what_the_owner_has_not_on_its_disk_is_read_by_nobody() -> None:
    """Else a reader would have what is gone when the owner restarts, and other messages would have its offsets."""
    brokers = serving(*NAMES)
    stream(brokers)
    reader = reads(brokers, "two", "r")
    publisher = connected(brokers, "one", "p")
    owner = brokers.processes["one"].node
    write, owner.write_journal = owner.write_journal, lambda: False
    publisher.publish("$queue/q", b"x", 1)
    brokers.run_for(1.0)
    assert not got(reader) and not reasons(publisher)
    owner.write_journal = write
    brokers.run_until(lambda: got(reader) == [b"x"])


@pytest.mark.parametrize("seed", range(8))
def test_streams_between_nodes_may_break(seed: int) -> None:
    brokers = serving(*NAMES, seed=seed)
    chance = random.Random(seed)
    stream(brokers)
    readers = [reads(brokers, at, f"{at}-{number}", qos=number) for at in NAMES for number in range(2)]
    publisher = connected(brokers, "one", "p")
    for number in range(100):
        publisher.publish("$queue/q", b"%d" % number, 1)
        if chance.random() < 0.1:
            brokers.break_streams()
        brokers.run_for(chance.uniform(0.0, 0.05))
    brokers.run_until(lambda: all(len(got(reader)) >= 100 for reader in readers), 60.0)
    brokers.run_for(1.0)
    assert [got(reader) for reader in readers] == [payloads(0, 100)] * 6


def test_what_retention_removes_is_not_read() -> None:
    brokers = serving(*NAMES)
    stream(brokers, retention=Retention(max_length_messages=10))
    publish(brokers, connected(brokers, "one", "p"), 0, 50)
    owner = brokers.processes["one"].node.manager.queues[b"/", b"q"].queue
    brokers.run_until(lambda: owner.depth == 10, 60.0)
    reader = reads(brokers, "two", "r", offset="first")
    brokers.run_until(lambda: len(got(reader)) == 10)
    assert got(reader) == payloads(40, 50)


def test_a_message_that_has_expired_is_passed_over_also_where_it_is_cached() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publisher = connected(brokers, "one", "p")
    publisher.send(Publish(topic="$queue/q", payload=b"soon", qos=1, packet_id=900,
                           properties=[("message_expiry_interval", 2)]))
    brokers.run_until(lambda: reasons(publisher))
    publish(brokers, publisher, 0, 5)
    early = reads(brokers, "two", "early", offset="first")
    brokers.run_until(lambda: len(got(early)) == 6)
    [soon, *_] = early.of(Publish)
    assert dict(soon.properties)["message_expiry_interval"] in (1, 2)
    brokers.run_for(3.0)
    readers = [reads(brokers, at, f"late-{at}", offset="first") for at in NAMES]
    brokers.run_until(lambda: all(len(got(reader)) >= 5 for reader in readers))
    brokers.run_for(0.5)
    assert got(early) == [b"soon", *payloads(0, 5)]
    assert [got(reader) for reader in readers] == [payloads(0, 5)] * 3


def queue_of(brokers: Brokers, at: str) -> Queue:
    return brokers.processes[at].node.manager.queues[b"/", b"q"].queue


def to_disk(brokers: Brokers, at: str) -> None:
    """The node's messages are in segments, and not in memory."""
    brokers.processes[at].node.checkpoint()
    brokers.run_for(1.0)
    for log in queue_of(brokers, at).logs:
        log.evict(1 << 40)
        assert log.first == log.next or log.get(log.first) is None


def questions(brokers: Brokers, at: str) -> int:
    """That wait for an answer of another node."""
    return sum(len(asked) for asked in brokers.processes[at].node.broker.relays._asked.values())


class AmqpReader:
    """A client of AMQP with one channel. told: names of the methods that it got on it."""

    def __init__(self, brokers: Brokers, at: str) -> None:
        self.broker = brokers.processes[at]
        self.pipe = self.broker.node.accept_amqp()
        self.pipe.to_broker += PROTOCOL
        self.told: list[str] = []
        self.send(0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US",
                  client_properties={})
        self.send(0, "connection.tune-ok", channel_max=10, frame_max=1 << 17, heartbeat=0)
        self.send(0, "connection.open", virtual_host="/")
        self.send(1, "channel.open")
        brokers.run_until(lambda: "channel.open-ok" in self.read())

    def send(self, channel: int, method: str, **arguments: Any) -> None:
        self.pipe.to_broker += encode_frame(METHOD, channel, encode_method(method, **arguments))
        self.broker.process.driver.soon(self.broker.turn)

    def read(self) -> list[str]:
        data = bytes(self.pipe.to_client)
        self.pipe.to_client.clear()
        while data:
            size = int.from_bytes(data[3:7], "big")
            if data[0] == METHOD:
                self.told.append(decode_method(data[7:7 + size])[0])
            data = data[size + 8:]
        return self.told

    def leave(self) -> None:
        self.pipe.client_closed = self.pipe.reset = True
        self.broker.process.driver.soon(self.broker.turn)


@pytest.mark.parametrize("at", ["one", "two"])
def test_a_log_is_read_from_disk_while_another_one_waits_for_messages(at: str) -> None:
    brokers = serving(*NAMES)
    stream(brokers, partitions=2)
    publisher = connected(brokers, "one", "p")
    for number in range(20):
        publisher.publish("$queue/q", b"%d" % number, 1, partition_key="always the same")
    brokers.run_until(lambda: len(reasons(publisher)) == 20)
    to_disk(brokers, "one")
    reader = reads(brokers, at, "r", offset="first")
    brokers.run_until(lambda: len(got(reader)) == 20)
    assert got(reader) == payloads(0, 20)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_deleted_stream_leaves_nothing(partitions: int) -> None:
    brokers = serving(*NAMES)
    stream(brokers, partitions=partitions)
    readers = [reads(brokers, at, at, consumer_group="g") for at in NAMES]
    publish(brokers, connected(brokers, "two", "p"), 0, 10)
    brokers.run_until(lambda: all(len(got(reader)) == 10 for reader in readers))
    assert questions(brokers, "two") and queue_of(brokers, "one").feeds
    do(brokers, "three", lambda node: node.amqp_queues.delete(b"/", b"q"))
    brokers.run_for(2.0)
    assert not any(name == b"q" for at in NAMES for _, name in brokers.processes[at].node.manager.queues)
    assert [questions(brokers, at) for at in NAMES] == [0, 0, 0]
    for at in NAMES:
        reads_ = brokers.processes[at].node.manager.reads
        assert not (reads_._readings or reads_._of or reads_._polls or reads_._last or reads_._refused)


def test_a_consumer_is_answered_although_the_stream_is_deleted_meanwhile() -> None:
    """Else nothing more of its connection is read."""
    brokers = serving(*NAMES)
    stream(brokers)
    reader = AmqpReader(brokers, "two")
    brokers.network.cut("one", "two")
    reader.send(1, "basic.consume", queue="q", consumer_tag="c")
    brokers.run_for(0.5)
    brokers.processes["two"].node.manager.delete((b"/", b"q"))     # as it hears of it
    brokers.network.heal()
    brokers.run_until(lambda: "channel.close" in reader.read())
    reader.send(1, "channel.close-ok")
    reader.send(2, "channel.open")
    brokers.run_until(lambda: reader.read().count("channel.open-ok") == 2)


def test_a_consumer_is_answered_once_when_the_owner_dies_and_is_back() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    reader = AmqpReader(brokers, "two")
    brokers.network.cut("one", "two")
    reader.send(1, "basic.consume", queue="q", consumer_tag="c")
    brokers.run_for(0.2)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.network.heal()
    brokers.start("one")
    brokers.run_for(5.0)
    assert reader.read()[-1] == "channel.close" and not queue_of(brokers, "one").readers


@pytest.mark.parametrize("cut", [False, True])
def test_a_consumer_that_leaves_before_the_answer_leaves_nothing(cut: bool) -> None:
    """cut: the answer does not come within route_publish_timeout."""
    brokers = serving(*NAMES)
    stream(brokers)
    reader = AmqpReader(brokers, "two")
    brokers.network.cut("one", "two", back=False)       # answers are lost
    brokers.run_for(0.1)
    reader.send(1, "basic.consume", queue="q", consumer_tag="c")
    if cut:
        brokers.run_until(lambda: "channel.close" in reader.read(), 120.0)
    else:
        brokers.run_for(0.5)
        reader.leave()
        brokers.run_for(0.5)
    brokers.network.heal()
    brokers.run_for(5.0)
    assert not queue_of(brokers, "one").readers and not queue_of(brokers, "two").readers
    assert not brokers.processes["two"].node.manager.reads._readings


def test_clients_that_come_and_go_while_the_owner_is_away_leave_nothing() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    client = brokers.client("two", "r")
    client.connect(clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: client.connected)
    packet_id = client.subscribe("$queue/q", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    client.leave()
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    manager = brokers.processes["two"].node.manager
    for _ in range(5):
        client.connect(clean_start=False, expiry_s=1000)
        brokers.run_until(lambda: client.connected)
        brokers.run_for(0.5)
        assert [len(readings) for readings in manager.reads._readings.values()] == [1]
        client.leave()
        brokers.run_for(0.5)
    assert not manager.reads._readings
    client.connect(clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: client.connected)
    brokers.start("one")
    brokers.run_until(lambda: len(queue_of(brokers, "one").readers) == 1)
    publish(brokers, connected(brokers, "three", "p"), 0, 5)
    brokers.run_until(lambda: got(client) == payloads(0, 5))


def test_a_position_that_was_moved_back_moves_on_from_there_at_every_node() -> None:
    """A node that has seen the group further on goes by the owner."""
    brokers = serving(*NAMES)
    stream(brokers)
    publish(brokers, connected(brokers, "one", "p"), 0, 50)
    [position] = [brokers.processes["one"].node.manager.queues[b"/", b"q"]]

    def goes(at: str, count: int, **options: str) -> list[bytes]:
        reader = reads(brokers, at, f"r-{at}", consumer_group="g", **options)
        brokers.run_until(lambda: len(got(reader)) >= count)
        brokers.run_for(2.0)
        reader.leave()
        brokers.run_for(1.0)
        return got(reader)

    assert goes("two", 50, offset="first") == payloads(0, 50)
    assert goes("three", 40, offset="10") == payloads(10, 50)
    [group] = position.groups.values()
    by_offset.seek(group, group.cursors[0].log_number, 20)      # an operator, or a client at the owner
    assert goes("two", 30) == payloads(20, 50)
    assert [cursor.next for cursor in group.cursors] == [50]


def slow_reader(brokers: Brokers, at: str) -> Client:
    """It gets 5 messages, and further ones when it acknowledges."""
    client = brokers.client(at, "slow")
    client.acks = False
    client.connect()
    assert client.pipe is not None
    client.pipe.to_broker[:] = Connect(client_id="slow", properties=[("receive_maximum", 5)]).encode(V5)
    packet_id = client.subscribe("$queue/q", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    return client


def test_a_slow_reader_stops_nobody_and_fills_no_memory() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    quick, slow = reads(brokers, "two", "quick"), slow_reader(brokers, "two")
    publisher = connected(brokers, "three", "p")
    most = 0
    for number in range(80):
        publisher.publish("$queue/q", b"%d " % number + bytes(100_000), 1)
        brokers.run_until(lambda: len(reasons(publisher)) == number + 1)   # noqa: B023
        most = max(most, sum(log.cached for log in queue_of(brokers, "two").logs))
    brokers.run_until(lambda: len(got(quick)) == 80)
    assert most <= 3 << 20 and len(got(slow)) == 5
    slow.acks = True
    for packet in slow.of(Publish):
        slow.send(Puback(packet_id=packet.packet_id))
    brokers.run_until(lambda: len(got(slow)) == 80)
    for reader in (quick, slow):
        assert [payload.partition(b" ")[0] for payload in got(reader)] == payloads(0, 80)


def test_messages_larger_than_a_block_and_than_the_window() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    readers = [reads(brokers, at, at) for at in NAMES]
    sizes = [10, 2 << 20, 10, 10, 20 << 20, 10]
    for number, size in enumerate(sizes):
        queue_of(brokers, "one").publish(b"$queue/q", b"%d " % number + bytes(size))
    brokers.run_until(lambda: all(len(got(reader)) == len(sizes) for reader in readers))
    readers.append(reads(brokers, "two", "late", offset="first"))
    for reader in readers:
        brokers.run_until(lambda: len(got(reader)) == len(sizes))    # noqa: B023
        assert [len(payload) - 2 for payload in got(reader)] == sizes


def test_everything_that_was_asked_is_removed() -> None:
    """The question waits, and then has the next message."""
    brokers = serving(*NAMES)
    stream(brokers)
    publish(brokers, connected(brokers, "one", "p"), 0, 20)
    reader = reads(brokers, "two", "r", offset="first")
    brokers.run_until(lambda: len(got(reader)) == 20)
    late = connected(brokers, "two", "late")
    brokers.network.cut("one", "two")
    late.subscribe("$queue/q", 1, offset="5")
    brokers.run_for(0.1)
    owner = brokers.processes["one"].node.manager
    state = owner.queues[b"/", b"q"]
    owner.trim(state, state.queue.logs[0], 20)
    brokers.network.heal()
    brokers.run_for(2.0)
    publish(brokers, connected(brokers, "three", "p2"), 20, 25)
    brokers.run_until(lambda: len(got(late)) >= 5 and len(got(reader)) >= 25)
    brokers.run_for(1.0)
    assert got(reader) == payloads(0, 25)
    assert got(late)[-5:] == payloads(20, 25)


def test_a_damaged_stream_is_asked_again_and_read_when_it_is_repaired() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    reader = reads(brokers, "two", "r")
    publisher = connected(brokers, "three", "p")
    publish(brokers, publisher, 0, 10)
    brokers.run_until(lambda: len(got(reader)) == 10)
    node = brokers.processes["one"].node
    node.manager.disk.stop(queue_of(brokers, "one"), CorruptError("a file is damaged"))
    brokers.run_for(5.0)
    assert not queue_of(brokers, "one").feeds
    told = [text for _, text, _ in brokers.processes["two"].log if "damaged" in text]
    assert 1 <= len(told) <= 10
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    brokers.start("one")
    brokers.run_for(2.0)
    publish(brokers, connected(brokers, "three", "p2"), 10, 20)
    brokers.run_until(lambda: len(got(reader)) == 20)
    assert got(reader) == payloads(0, 20)


def positions(brokers: Brokers, at: str) -> list[int]:
    return [cursor.next for group in brokers.processes[at].node.manager.queues[b"/", b"q"].groups.values()
            for cursor in group.cursors]


def test_a_group_goes_on_where_it_was_when_its_node_dies() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    first = reads(brokers, "two", "r", consumer_group="g")
    publish(brokers, connected(brokers, "three", "p"), 0, 20)
    brokers.run_until(lambda: len(got(first)) == 20)
    brokers.run_for(2.0)
    assert positions(brokers, "one") == [20]
    brokers.kill("two")
    brokers.end_lease_of("two")
    again = reads(brokers, "three", "r2", consumer_group="g")
    publish(brokers, connected(brokers, "one", "p2"), 20, 25)
    brokers.run_until(lambda: len(got(again)) >= 5)
    brokers.run_for(1.0)
    assert got(again) == payloads(20, 25)


def test_what_was_acknowledged_while_the_owner_was_away_is_told_when_it_is_back() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    reader = reads(brokers, "two", "r", consumer_group="g")
    reader.acks = False
    publish(brokers, connected(brokers, "three", "p"), 0, 20)
    brokers.run_until(lambda: len(got(reader)) == 20)
    brokers.run_for(2.0)
    assert positions(brokers, "one") == [0]
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    for packet in reader.of(Publish):
        reader.send(Puback(packet_id=packet.packet_id))
    brokers.run_for(3.0)
    brokers.start("one")
    brokers.run_until(lambda: positions(brokers, "one") == [20])


def places(client: Client) -> dict[int, list[int]]:
    """Offsets of what it got, by the index of the log, in order."""
    found: dict[int, list[int]] = {}
    for packet in client.of(Publish):
        users = dict(value for name, value in packet.properties if name == "user_property")
        log, _, offset = users["message-id"].partition(":")
        found.setdefault(int(log), []).append(int(offset))
    return found


@pytest.mark.parametrize("part", range(6))
def test_readers_whose_nodes_live_get_everything_once_and_in_order(part: int, seed: int) -> None:
    """The owner dies and comes back, nodes lose each other, messages leave the memory, readers are slow."""
    chance = random.Random(seed + part)
    brokers = serving(*NAMES, seed=seed + part)
    brokers.writer_s = chance.choice((0.001, 0.05))
    stream(brokers, partitions=2)
    readers = [reads(brokers, at, f"{at}-{number}", offset=position, consumer_group=f"g{number % 2}")
               for at in ("two", "three") for number, position in enumerate(("first", "next", "next"))]
    publishers = [connected(brokers, at, f"p-{at}") for at in ("two", "three")]
    number = 0

    def publish_some() -> None:
        nonlocal number
        for _ in range(chance.randrange(1, 30)):
            number += 1
            chance.choice(publishers).publish("$queue/q", b"%d " % number + bytes(chance.choice((10, 10, 100_000))), 1)

    def owner_dies() -> None:
        if brokers.processes["one"].process.alive:
            brokers.kill("one")
            brokers.run_for(chance.choice((0.0, 0.5)))
            brokers.end_lease_of("one")
            brokers.run_for(chance.choice((0.0, 0.01, 2.0)))
            brokers.network.heal()  # a node that reaches not all does not serve
            brokers.start("one")

    def out_of_memory() -> None:
        brokers.processes["one"].node.checkpoint()
        brokers.run_for(0.1)
        for at in NAMES:
            for log in queue_of(brokers, at).logs:
                log.evict(1 << 40)

    def slow() -> None:
        reader = chance.choice(readers)
        reader.acks = not reader.acks
        if reader.acks:
            answered(reader)

    def answered(reader: Client) -> None:
        for packet in reader.of(Publish):
            reader.send(Puback(packet_id=packet.packet_id))

    def apart() -> None:
        brokers.network.cut(*chance.sample(NAMES, 2), back=chance.random() < 0.5)

    steps = [publish_some] * 6 + [owner_dies, out_of_memory, slow, apart, brokers.network.heal, brokers.break_streams]
    for _ in range(40):
        chance.choice(steps)()
        brokers.run_for(chance.choice((0.0, 0.01, 0.3)))
    brokers.network.heal()
    for reader in readers:
        reader.acks = True
        answered(reader)
    brokers.run_for(5.0)
    publish_some()
    for reader in readers:
        brokers.run_until(lambda: all(places(reader).get(at, [-1])[-1] == log.next - 1      # noqa: B023
                                      for at, log in enumerate(queue_of(brokers, "one").logs) if log.next), 60.0)
    brokers.run_for(2.0)
    for reader in readers:
        for at, log in enumerate(queue_of(brokers, "one").logs):
            assert places(reader).get(at, []) == list(range(log.next)), (reader.name, at)


def test_readers_that_are_all_slow_stop_the_stream() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    slow = slow_reader(brokers, "two")
    publisher = connected(brokers, "three", "p")
    for number in range(80):
        publisher.publish("$queue/q", b"%d " % number + bytes(100_000), 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 80)
    brokers.run_for(2.0)
    [here], [there] = queue_of(brokers, "two").logs, queue_of(brokers, "one").logs
    assert there.next == 80 and here.next < 50 and here.cached <= 3 << 20 and len(got(slow)) == 5


def test_what_was_asked_of_an_owner_that_dies_is_asked_again() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publish(brokers, connected(brokers, "three", "p"), 0, 20)
    reader = reads(brokers, "two", "r")
    brokers.network.stall("one", "two")
    late = connected(brokers, "two", "late")
    late.subscribe("$queue/q", 1, offset="first")
    brokers.run_for(0.1)
    brokers.network.heal()
    brokers.run_until(lambda: queue_of(brokers, "two").logs[0].loading)     # it is opened, and has asked
    assert not got(late)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    brokers.start("one")
    brokers.run_until(lambda: len(got(late)) == 20)
    assert got(late) == payloads(0, 20) and not got(reader)


def test_a_reader_that_is_opened_anew_does_not_begin_anew() -> None:
    brokers = serving(*NAMES)
    stream(brokers)
    publish(brokers, connected(brokers, "three", "p"), 0, 20)
    reader = reads(brokers, "two", "r", consumer_group="g", offset="first", ack="manual")
    brokers.run_until(lambda: len(got(reader)) == 20)
    reader.publish("$queue/q/$commit", b"", 1, partition="0", offset="11")
    brokers.run_until(lambda: reasons(reader))
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    brokers.start("one")
    brokers.run_until(lambda: queue_of(brokers, "one").readers)
    brokers.run_for(1.0)
    assert positions(brokers, "one") == [12]
    assert [one.next for one in queue_of(brokers, "one").readers] == [20]
