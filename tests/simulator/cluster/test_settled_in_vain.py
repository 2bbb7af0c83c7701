"""What consumers have settled at an owner that is gone: it was sent to it, or was about to be, and it is not certain
that it is on its disk. When the owner is back it counts; and never for another message."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from oracle.mqtt import Publish
from simulator.cluster.amqp import Amqp
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_kept_claims import MESSAGES, acknowledge, die, group_at, holding, publish, start
from simulator.cluster.test_queues import NAMES, consumer, deliveries, reasons, share

from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq.cluster.ports import Event
from fluxmq.engine.queues.moves import Departure
from fluxmq.model.queues import QueueSpec

ADDRESS = b"/", b"q"


def way(brokers: Brokers, at: str, to: str) -> PeerOutbox:
    peers = brokers.processes[at].cluster.peers
    return peers.peers[to].outbox


def relay_at(brokers: Brokers, at: str) -> QueueRelay:
    relay = brokers.processes[at].node.manager.queues[ADDRESS].queue.relay
    assert isinstance(relay, QueueRelay)
    return relay


def hears_late(brokers: Brokers, at: str, seconds: float) -> None:
    """From now on a node hears of changes in etcd so much later, and of all of these at once."""
    store: Any = brokers.processes[at].cluster.feed._store
    store.late_s = seconds


def hears_in_reverse(brokers: Brokers, at: str) -> None:
    """A node hears of the keys of one revision in another order."""
    feed = brokers.processes[at].cluster.feed
    tell = feed._tell

    def told(events: Sequence[Event]) -> None:
        assert len({event.revision for event in events}) <= 1
        tell(events[::-1])

    feed._tell = told  # type: ignore[method-assign]


@pytest.mark.parametrize("in_reverse", [False, True])
@pytest.mark.parametrize("gathers", [False, True])
def test_it_counts_whichever_key_of_the_owner_is_seen_to_go_first(gathers: bool, in_reverse: bool) -> None:
    """gathers: nothing has left when the lease ends, not even as a frame."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    holder = holding(brokers, "two")
    other = consumer(brokers, "three", "other")
    if in_reverse:
        hears_in_reverse(brokers, "two")
    if gathers:
        brokers.network.cut("one", "two")
        brokers.run_until(lambda: not way(brokers, "two", "one").attached)
        assert not way(brokers, "two", "one").settlements()
    brokers.kill("one")
    acknowledge(holder)
    brokers.run_for(0.02)
    outbox = way(brokers, "two", "one")
    assert not group_at(brokers, "two").held and outbox.unacknowledged_bytes
    assert len(outbox.settlements()) == (0 if gathers else len(MESSAGES))
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    brokers.network.heal()
    brokers.start("one")
    brokers.run_for(3.0)
    assert not other.messages and sorted(payload for _, payload in holder.messages) == MESSAGES
    assert group_at(brokers, "one").lag == 0 and group_at(brokers, "one").held == 0


@pytest.mark.parametrize("type_", ["classic", "stream"])
def test_an_owner_that_is_back_before_a_node_has_heard_of_its_end_is_known_again(type_: str) -> None:
    """That node hears of both lives at once."""
    brokers = serving(*NAMES)
    share(brokers, "one", type=type_)
    holder = holding(brokers, "two") if type_ == "classic" else consumer(brokers, "two", "reader")
    if type_ == "stream":
        publish(brokers, "two", MESSAGES)
    hears_late(brokers, "two", 3.0)
    brokers.kill("one")
    acknowledge(holder)
    brokers.run_for(0.2)
    brokers.start("one")
    assert relay_at(brokers, "two").outbox is way(brokers, "two", "one")
    hears_late(brokers, "two", 0.0)
    brokers.run_for(3.0)
    publish(brokers, "two", [b"new"], "p2")
    brokers.run_until(lambda: b"new" in [payload for _, payload in holder.messages])
    if type_ == "classic":
        assert sorted(payload for _, payload in holder.messages) == [*MESSAGES, b"new"]
        brokers.run_for(1.0)
        assert group_at(brokers, "one").lag == group_at(brokers, "one").held == 1


@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_queue_in_memory_had_is_not_settled_in_the_next_one(persistent: bool) -> None:
    """It was placed anew before a node has heard that its owner is gone. persistent: a session of the dead node is to
    be adopted, so what that node had not acknowledged is kept."""
    brokers = serving(*NAMES)
    share(brokers, "one", type="ephemeral")
    if persistent:
        session = connected(brokers, "one", "session", clean_start=False, expiry_s=1000)
        packet_id = session.subscribe("t", 1)
        brokers.run_until(lambda: session.acknowledged(packet_id))
    holder = holding(brokers, "two")
    hears_late(brokers, "two", 4.0)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_until(lambda: brokers.processes["three"].node.manager.queues[ADDRESS].here)
    # Each new message is ready in its second delivery, with the offset and the count of one that the holder has.
    passing = consumer(brokers, "three", "passing")
    passing.acks = False
    publish(brokers, "three", [b"new %d" % number for number in range(len(MESSAGES))], "p2")
    brokers.run_until(lambda: len(passing.messages) == len(MESSAGES))
    passing.leave()
    brokers.run_for(0.5)
    assert relay_at(brokers, "two").owner == "one"
    hears_late(brokers, "two", 0.0)
    brokers.run_until(lambda: relay_at(brokers, "two").owner == "three")
    brokers.run_for(1.0)
    acknowledge(holder)
    brokers.run_for(1.0)
    other = consumer(brokers, "three", "other")
    brokers.run_for(2.0)
    new = [payload for _, payload in holder.messages[len(MESSAGES):] + other.messages]
    assert sorted(new) == [b"new %d" % number for number in range(len(MESSAGES))]


def test_each_of_several_owners_is_told_what_is_settled_by_one_frame_of_a_client() -> None:
    """basic.ack of all messages, basic.nack and basic.reject: one owner serves on, the other one is dead."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    do(brokers, "three", lambda node: node.manager.declare(QueueSpec(name="r")))
    client = Amqp(brokers, "two", acks=False)
    client.consume("q", tag="q")
    client.consume("r", tag="r")
    for number in range(5):
        client.publish("", "q", b"q%d" % number)
        client.publish("", "r", b"r%d" % number)
    brokers.run_until(lambda: len(client.deliveries) == 10)
    brokers.run_for(0.5)
    at_r = brokers.processes["three"].node.manager.queues[b"/", b"r"].groups[b"default", b""]
    brokers.processes["one"].process.pause()
    given_back = [told["delivery_tag"] for told, body in client.deliveries if body == b"q4"]
    rejected = [told["delivery_tag"] for told, body in client.deliveries if body == b"q3"]
    client.method("basic.nack", delivery_tag=given_back[0], requeue=True)
    client.method("basic.reject", delivery_tag=rejected[0], requeue=False)
    client.acknowledge()
    brokers.run_for(0.5)
    assert at_r.lag == 0 and len(way(brokers, "two", "one").settlements()) == 5
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    brokers.start("one")
    brokers.run_until(lambda: len(client.deliveries) == 11)
    brokers.run_for(3.0)
    told, body = client.deliveries[-1]
    assert len(client.deliveries) == 11 and body == b"q4" and told["redelivered"] and told["consumer_tag"] == "q"
    assert group_at(brokers, "one").lag == group_at(brokers, "one").held == 1
    client.acknowledge()
    brokers.run_for(1.0)
    assert group_at(brokers, "one").lag == 0


def test_what_a_consumer_has_settled_that_leaves_before_the_owner_is_back_comes_again() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    holder = holding(brokers, "two")
    other = consumer(brokers, "three", "other")
    brokers.processes["one"].process.pause()
    brokers.run_for(0.1)
    acknowledge(holder)
    brokers.run_for(0.1)
    holder.leave()
    brokers.run_for(0.1)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    assert not relay_at(brokers, "two").consumers
    brokers.start("one")
    brokers.run_until(lambda: len(other.messages) == len(MESSAGES))
    assert deliveries(other) == {payload: [2] for payload in MESSAGES}
    brokers.run_for(1.0)
    assert group_at(brokers, "one").lag == 0


def test_it_does_not_count_for_a_queue_that_was_declared_anew_meanwhile() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    holder = holding(brokers, "two")
    brokers.processes["one"].process.pause()
    brokers.run_for(0.1)
    acknowledge(holder)
    brokers.run_for(0.1)
    die(brokers, "one")
    do(brokers, "three", lambda node: node.amqp_queues.delete(b"/", b"q"))
    definer = brokers.processes["three"].node.manager.definer
    assert definer is not None
    work = brokers.processes["three"].process.driver.start(definer.define_queue(QueueSpec(name="q"), None, here=True))
    brokers.run_until(work.done)
    publish(brokers, "three", [b"new %d" % number for number in range(len(MESSAGES))], "p2")
    other = consumer(brokers, "three", "other")
    other.acks = False
    brokers.start("one")
    brokers.run_for(3.0)
    new = [payload for _, payload in holder.messages[len(MESSAGES):] + other.messages]
    assert sorted(new) == [b"new %d" % number for number in range(len(MESSAGES))]
    acknowledge(other)
    brokers.run_for(1.0)
    assert group_at(brokers, "three").lag == group_at(brokers, "three").held


def test_many_settlements_are_kept_for_hours() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    client = Amqp(brokers, "two", acks=False)
    client.consume("q")
    for number in range(count := 2000):
        client.publish("", "q", b"%d" % number)
    brokers.run_until(lambda: len(client.deliveries) == count, 60.0)
    brokers.run_for(0.5)
    brokers.kill("one")
    client.acknowledge()
    brokers.run_for(0.1)
    brokers.end_lease_of("one")
    brokers.run_for(30.0)
    brokers.start("one")
    brokers.run_for(3.0)
    assert len(client.deliveries) == count
    assert group_at(brokers, "one").lag == 0 and group_at(brokers, "one").held == 0


def moves(brokers: Brokers, to: str, at: str = "one") -> None:
    broker = brokers.processes[at]
    work = broker.process.driver.start(broker.cluster.holdings.queue_moves.move(ADDRESS, to))
    brokers.run_until(work.done, 60.0)
    brokers.run_until(lambda: brokers.processes[to].node.manager.queues[ADDRESS].here)


def later(brokers: Brokers, at: str, seconds: float) -> None:
    """What a node answers to ATTACH and CALL comes so much later."""
    hosts, driver = brokers.processes[at].node.broker.hosts, brokers.processes[at].process.driver
    answer = hosts.answer

    def late(*what: Any) -> None:
        async def tell() -> None:
            await driver.sleep(seconds)
            answer(*what)
        driver.start(tell())

    hosts.answer = late  # type: ignore[method-assign]


@pytest.mark.parametrize("to", ["two", "three"])
def test_what_is_kept_for_an_owner_counts_if_the_queue_moves_before_that_one_has_answered(to: str) -> None:
    """It is back, and its answer to ATTACH is on its way for longer than the move takes. to: also the consumer's own
    node."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    client = Amqp(brokers, "two", acks=False)
    client.consume("q")
    for number in range(6):
        client.publish("", "q", b"%d" % number)
    brokers.run_until(lambda: len(client.deliveries) == 6)
    brokers.run_for(0.5)
    die(brokers, "one")
    tags = {body: told["delivery_tag"] for told, body in client.deliveries}
    client.method("basic.nack", delivery_tag=tags[b"4"], requeue=True)
    client.method("basic.reject", delivery_tag=tags[b"3"], requeue=False)
    client.acknowledge()
    brokers.run_for(0.2)
    start(brokers, "one", lambda: later(brokers, "one", 3.0))
    brokers.run_for(0.1)
    assert len(relay_at(brokers, "two").consumers[0].held()) == 6
    moves(brokers, to)
    brokers.run_until(lambda: len(client.deliveries) == 7)
    brokers.run_for(8.0)
    told, body = client.deliveries[-1]
    assert len(client.deliveries) == 7 and body == b"4" and told["redelivered"]
    assert group_at(brokers, to).lag == group_at(brokers, to).held == 1
    client.acknowledge()
    brokers.run_for(1.0)
    assert group_at(brokers, to).lag == 0


@pytest.mark.parametrize("forwards", [False, True])
@pytest.mark.parametrize("to", ["two", "three"])
def test_what_was_on_its_way_to_the_former_owner_counts_if_that_one_dies_behind_the_move(
        to: str, forwards: bool) -> None:
    """forwards: it has come there, and the way from there to the new owner is halted."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    holder = holding(brokers, "two")
    other = consumer(brokers, "three", "other")
    if forwards:
        resume = Departure.resume
        Departure.resume = lambda self: None  # type: ignore[method-assign]
        try:
            hears_late(brokers, "two", 0.0 if to == "two" else 0.3)
            brokers.run_for(0.2)
            work = brokers.processes["one"].process.driver.start(
                brokers.processes["one"].cluster.holdings.queue_moves.move(ADDRESS, to))
            brokers.run_until(lambda: brokers.processes["one"].node.manager.queues[ADDRESS].queue.relay is not None)
            acknowledge(holder)
            brokers.run_until(lambda: work.done() and brokers.processes[to].node.manager.queues[ADDRESS].here)
            brokers.run_for(0.4)
        finally:
            Departure.resume = resume  # type: ignore[method-assign]
    else:
        way(brokers, "two", "one").halt()
        acknowledge(holder)
        brokers.run_for(0.1)
        moves(brokers, to)
    hears_late(brokers, "two", 0.0)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(8.0)
    assert not other.messages and sorted(payload for _, payload in holder.messages) == MESSAGES
    assert group_at(brokers, to).lag == 0 and group_at(brokers, to).held == 0
    publish(brokers, "three", [b"new"], "p2")
    brokers.run_for(1.0)
    assert [payload for _, payload in holder.messages[len(MESSAGES):] + other.messages] == [b"new"]


def test_what_waits_for_the_former_owner_is_not_refused_by_the_new_one() -> None:
    """A client has extended its claims, and the queue has moved. When they end there, that refuses no position of the
    new owner's line, which may not have reached that number: then the stream would break."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher = connected(brokers, "two", "p")
    for number in range(20):                            # so that positions of this line are higher than the other one's
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 20)
    holder = connected(brokers, "two", "holder")
    packet_id = holder.subscribe("$queue/q", 1, ack="manual", visibility_timeout="3")
    brokers.run_until(lambda: holder.acknowledged(packet_id) and len(holder.messages) == 20)
    for packet in holder.of(Publish):
        users = dict(value for name, value in packet.properties if name == "user_property")
        holder.publish("$queue/q/$extend", b"", 1, **{"message-id": users["message-id"], "lease": "3000"})
    brokers.run_until(lambda: len(reasons(holder)) == 20)
    assert set(reasons(holder).values()) == {0}
    moves(brokers, "three")
    brokers.run_for(1.0)
    assert group_at(brokers, "three").held == 20
    told = len(brokers.processes["two"].log)
    brokers.run_for(4.0)
    assert len(holder.messages) == 40                   # their time was over
    assert not brokers.processes["two"].log[told:]      # the stream has not broken
    publisher.publish("$queue/q", b"new", 1)
    brokers.run_until(lambda: len(holder.messages) == 41)
    brokers.run_until(lambda: len(reasons(publisher)) == 21)
    assert set(reasons(publisher).values()) == {0}
