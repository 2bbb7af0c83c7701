"""What consumers of other nodes hold when the owner of a queue restarts, or stays out of reach of their node."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from oracle.mqtt import Puback, Publish
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_queues import NAMES, consumer, deliveries, reasons, share

from fluxmq._core.queue.group import Group
from fluxmq.engine.ports.definitions import Stored

MESSAGES = [b"%d" % number for number in range(10)]
TTL_S = 10.0  # of `serving`


def publish(brokers: Brokers, at: str, payloads: Sequence[bytes], name: str = "p") -> None:
    publisher = connected(brokers, at, name)
    for payload in payloads:
        publisher.publish("$queue/q", payload, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == len(payloads))
    assert set(reasons(publisher).values()) == {0}


def holding(brokers: Brokers, at: str, name: str = "holder", **subscribe: str) -> Client:
    """A consumer that has MESSAGES and acknowledges nothing."""
    client = connected(brokers, at, name)
    client.acks = False
    packet_id = client.subscribe("$queue/q", 1, **subscribe)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publish(brokers, at, MESSAGES)
    brokers.run_until(lambda: len(client.messages) == len(MESSAGES))
    brokers.run_for(0.5)
    return client


def acknowledge(client: Client) -> None:
    """Everything that it got."""
    for packet in client.of(Publish):
        client.send(Puback(packet_id=packet.packet_id))


def die(brokers: Brokers, *names: str) -> None:
    for name in names:
        brokers.kill(name)
        brokers.end_lease_of(name)
    brokers.run_for(0.5)


def start(brokers: Brokers, name: str, then: Callable[[], object]) -> None:
    """Until it serves. then: done when the node and the others know each other, before it claims its queues."""
    broker = brokers.processes[name]
    broker.start()
    owners, definitions = broker.cluster.holdings.queue_owners, broker.cluster.holdings.definitions
    assert owners is not None
    begin, look = owners.begin, definitions.on_queue
    definitions.on_queue = lambda address: None     # else it claims what it sees earlier

    async def after(engine: Stored) -> None:
        definitions.on_queue = look
        then()
        await begin(engine)

    owners.begin = after  # type: ignore[method-assign]
    brokers.run_until(lambda: broker.serving)


def group_at(brokers: Brokers, at: str) -> Group:
    return brokers.processes[at].node.manager.queues[b"/", b"q"].groups[b"default", b""]


@pytest.mark.parametrize("partitions", [1, 3])
def test_who_holds_messages_holds_on_when_the_owner_restarts_though_others_attach_first(partitions: int) -> None:
    brokers = serving(*NAMES)
    share(brokers, "one", partitions=partitions)
    holder = holding(brokers, "two")
    other = consumer(brokers, "three", "other")
    die(brokers, "one")
    link = brokers.network.link("two", "one")
    start(brokers, "one", lambda: setattr(link, "delay_ms", (300, 300)))
    publish(brokers, "three", [b"new"])
    brokers.run_until(lambda: other.messages, 0.2)      # a message that nobody had is not kept
    brokers.run_for(3.0)
    assert [payload for _, payload in other.messages] == [b"new"]
    assert sorted(payload for _, payload in holder.messages) == MESSAGES     # nothing came a second time
    assert group_at(brokers, "one").held == len(MESSAGES)
    acknowledge(holder)
    brokers.run_for(1.0)
    assert group_at(brokers, "one").lag == 0


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("stands_still", [False, True])
def test_what_was_settled_before_the_lease_had_ended_counts_when_the_owner_is_back(
        partitions: int, stands_still: bool) -> None:
    """It went to a node that was dead, or that stood still until its lease had ended."""
    brokers = serving(*NAMES)
    share(brokers, "one", partitions=partitions)
    holder = holding(brokers, "two")
    other = consumer(brokers, "three", "other")
    process = brokers.processes["one"].process
    process.pause()
    brokers.run_for(0.3)
    acknowledge(holder)
    brokers.run_for(0.3)
    if not stands_still:
        brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    if stands_still:
        process.resume()
    else:
        brokers.start("one")
    brokers.run_for(10.0)
    assert brokers.processes["one"].serving and not other.messages
    assert sorted(payload for _, payload in holder.messages) == MESSAGES
    assert group_at(brokers, "one").lag == 0 and group_at(brokers, "one").held == 0


def test_what_nobody_names_is_ready_when_all_nodes_know_the_owner() -> None:
    """The consumers died with it: one of its own, and one of a second node."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    holding(brokers, "two")
    other = consumer(brokers, "three", "other")
    die(brokers, "one", "two")
    brokers.start("one")
    brokers.run_until(lambda: len(other.messages) == len(MESSAGES), 0.5)
    assert deliveries(other) == {payload: [2] for payload in MESSAGES}


def test_a_node_that_does_not_answer_is_waited_for_one_second() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    holder = holding(brokers, "two")
    other = consumer(brokers, "three", "other")
    other.acks = False
    die(brokers, "one")
    start(brokers, "one", lambda: brokers.network.stall("two", "one", back=False))
    began = brokers.world.now
    brokers.run_until(lambda: other.messages)
    assert 0.9 < brokers.world.now - began < 1.1
    assert deliveries(other) == {payload: [2] for payload in MESSAGES}
    brokers.network.heal()
    brokers.run_for(1.0)
    acknowledge(holder)                                 # too late
    brokers.run_for(1.0)
    assert group_at(brokers, "one").held == len(MESSAGES) and group_at(brokers, "two").held == 0
    acknowledge(other)
    brokers.run_for(1.0)
    assert group_at(brokers, "one").lag == 0


def test_a_node_alone_waits_for_nobody() -> None:
    brokers = serving("one")
    share(brokers, "one")
    holding(brokers, "one")
    die(brokers, "one")
    brokers.start("one")
    assert not group_at(brokers, "one").pullers and group_at(brokers, "one").held == 0
    other = consumer(brokers, "one", "other")
    brokers.run_until(lambda: len(other.messages) == len(MESSAGES), 0.1)


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("from_owner", [True, False])
def test_claims_end_when_a_stream_stays_broken_between_nodes_that_live(from_owner: bool, back: bool) -> None:
    """Either stream, or both."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    holder = holding(brokers, "two")
    other = consumer(brokers, "three", "other")
    other.acks = False
    brokers.network.cut(*(("one", "two") if from_owner else ("two", "one")), back=back)
    began = brokers.world.now
    brokers.run_until(lambda: other.messages, 60.0)
    brokers.run_for(0.5)
    assert TTL_S < brokers.world.now - began < TTL_S + 7.0    # a break is noticed after 1 to 4 s
    assert deliveries(other) == {payload: [2] for payload in MESSAGES}
    acknowledge(holder)
    brokers.run_for(5.0)
    publish(brokers, "three", [b"new"])
    brokers.run_until(lambda: len(other.messages) == len(MESSAGES) + 1)     # never to a node that is out of reach
    brokers.network.heal()
    brokers.run_for(5.0)
    assert group_at(brokers, "one").held == len(MESSAGES) + 1 and group_at(brokers, "two").held == 0
    assert brokers.processes["two"].process.life == 1 and not brokers.processes["two"].fences
    acknowledge(other)
    other.leave()
    publish(brokers, "three", [b"again"], "p2")
    brokers.run_until(lambda: len(holder.messages) == len(MESSAGES) + 1)    # it is a consumer as before
    assert holder.messages[-1][1] == b"again"


def test_a_stream_that_is_broken_for_a_shorter_time_ends_nothing() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    holder = holding(brokers, "two")
    other = consumer(brokers, "three", "other")
    for _ in range(2):
        brokers.network.cut("one", "two")
        brokers.run_for(TTL_S - 2.0)
        assert not brokers.processes["one"].cluster.peers.peers["two"].outbox.attached  # type: ignore[union-attr]
        brokers.network.heal()
        brokers.run_for(3.0)
    assert not other.messages and group_at(brokers, "one").held == len(MESSAGES)
    acknowledge(holder)
    brokers.run_for(1.0)
    assert group_at(brokers, "one").lag == 0


def test_partitions_of_a_consumer_out_of_reach_go_to_others() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one", partitions=2)
    holder = holding(brokers, "two", exclusive="true")
    other = connected(brokers, "three", "other")
    packet_id = other.subscribe("$queue/q", 1, exclusive="true")
    brokers.run_until(lambda: other.acknowledged(packet_id))
    assert group_at(brokers, "one").mode == "exclusive"
    brokers.network.cut("one", "two")
    brokers.run_until(lambda: len(other.messages) == len(MESSAGES), 60.0)
    brokers.network.heal()
    brokers.run_for(5.0)
    assert len(set(map(id, group_at(brokers, "one").owners().values()))) == 2
    assert group_at(brokers, "one").lag == 0 and group_at(brokers, "two").held == 0
    assert len(holder.messages) == len(MESSAGES)
