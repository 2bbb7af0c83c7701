"""Queues across the brokers of a simulated cluster: publisher, owner and consumer on different nodes."""
from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from oracle.mqtt import Puback, Pubcomp, Publish, Pubrec, Suback, Subscribe
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_repetitions import GIVEN_UP_S, ID, Publisher, comes_back

from fluxmq.model.queues import QueueLimits, QueueSpec

NAMES = ("one", "two", "three")


def share(brokers: Brokers, owner: str, **spec: Any) -> None:
    """`owner` declares the queue, and has its messages, of whatever number of partitions."""
    process, made = brokers.processes[owner], QueueSpec(name="q", **spec)
    if made.partitions > 1:
        work = process.process.driver.start(process.node.manager.definer.define_queue(made, None, here=True))
        brokers.run_until(work.done)
        work.result()
    do(brokers, owner, lambda node: node.manager.declare(made))
    for at, broker in brokers.processes.items():
        assert broker.node.manager.queues[b"/", b"q"].here == (at == owner)


def consumer(brokers: Brokers, at: str, name: str, filter_: str = "$queue/q") -> Client:
    client = connected(brokers, at, name)
    packet_id = client.subscribe(filter_, 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    return client


def reasons(client: Client) -> dict[int, int]:
    """Of the publishes that were answered, by packet identifier."""
    return {packet.packet_id: packet.reason for packet in client.of(Puback)}


def deliveries(client: Client) -> dict[bytes, list[int]]:
    """payload -> delivery counts, of what a client got."""
    found: dict[bytes, list[int]] = {}
    for packet in client.of(Publish):
        users = dict(value for name, value in packet.properties if name == "user_property")
        found.setdefault(packet.payload, []).append(int(users["delivery-count"]))
    return found


def test_publisher_owner_and_consumer_are_on_three_nodes() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher, reader = connected(brokers, "two", "p"), consumer(brokers, "three", "r")
    for number in range(100):
        publisher.publish("$queue/q/a", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 100 and len(reader.messages) == 100)
    assert set(reasons(publisher).values()) == {0}
    assert [payload for _, payload in reader.messages] == [b"%d" % number for number in range(100)]
    assert {topic for topic, _ in reader.messages} == {"$queue/q/a"}
    brokers.run_for(1.0)
    owner = brokers.processes["one"].node.manager
    state = owner.queues[b"/", b"q"]
    assert state.queue.waiting == 0 and state.groups[b"default", b""].held == 0


def test_consumers_of_all_nodes_share_a_queue() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
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


def test_a_captured_topic_is_in_the_queue_once_wherever_it_is_published() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one", topics=("t/#",), capture="confirmed")
    reader = consumer(brokers, "three", "r")
    other = connected(brokers, "two", "s")
    packet_id = other.subscribe("t/#", 1)
    brokers.run_until(lambda: other.acknowledged(packet_id))
    publishers = [connected(brokers, at, f"p-{at}") for at in NAMES]
    for publisher in publishers:
        publisher.publish("t/x", publisher.name.encode(), 1)
    brokers.run_until(lambda: all(reasons(publisher) for publisher in publishers))
    brokers.run_for(2.0)
    assert sorted(payload for _, payload in reader.messages) == [b"p-one", b"p-three", b"p-two"]
    assert sorted(payload for _, payload in other.messages) == [b"p-one", b"p-three", b"p-two"]


def test_messages_of_a_dead_consumers_node_are_for_others_with_their_count() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    lost = consumer(brokers, "three", "lost")
    lost.acks = False
    publisher = connected(brokers, "one", "p")
    for number in range(20):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(lost.messages) == 20)
    brokers.kill("three")
    brokers.end_lease_of("three")
    other = consumer(brokers, "two", "other")
    brokers.run_until(lambda: len(other.messages) == 20, 60.0)
    assert deliveries(other) == {b"%d" % number: [2] for number in range(20)}


def test_publishes_to_an_owner_that_dies_are_refused() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher = connected(brokers, "two", "p")
    publisher.publish("$queue/q", b"first", 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 1)
    brokers.kill("one")
    brokers.end_lease_of("one")
    publisher.publish("$queue/q", b"second", 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 2, 60.0)
    assert list(reasons(publisher).values()) == [0, 0x80]


def dead_letters(brokers: Brokers, ttl_ms: int = 100) -> None:
    """Queue `source` of broker one sends its dead letters to queue `target` of broker two."""
    do(brokers, "two", lambda node: node.amqp_queues.declare(b"/", b"target", durable=True))
    do(brokers, "one", lambda node: node.amqp_queues.declare(b"/", b"source", durable=True, arguments={
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target", "x-message-ttl": ttl_ms}))
    for at, name in (("two", b"target"), ("one", b"source")):
        assert brokers.processes[at].node.manager.queues[b"/", name].here


def in_target(brokers: Brokers) -> list[bytes]:
    [log] = brokers.processes["two"].node.manager.queues[b"/", b"target"].queue.logs
    return [log.get(offset).payload for offset in range(log.first, log.next)]


def under_way(brokers: Brokers) -> int:
    return sum(state.queue.waiting for (_, name), state in brokers.processes["one"].node.manager.queues.items()
               if name.startswith(b"$under-way-"))


@pytest.mark.parametrize(("verb", "asked"), [
    ("$ack", {}), ("$ack", {"upto": "true"}), ("$nack", {}), ("$reject", {}), ("$extend", {"lease": "1000"})])
def test_an_order_that_comes_after_the_owner_has_taken_the_message_back_is_refused(
        verb: str, asked: dict[str, str]) -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    slow = connected(brokers, "two", "slow", receive_maximum=1)
    slow.acks = False  # so that it has no room when the message is ready again
    slow.subscribe("$queue/q", 1, ack="manual", visibility_timeout="0.5")
    brokers.run_until(lambda: slow.of(Suback))
    publisher = connected(brokers, "one", "p")
    publisher.publish("$queue/q", b"x", 1)
    brokers.run_until(lambda: slow.messages and reasons(publisher))
    assert reasons(publisher) == {1: 0}
    quick = connected(brokers, "three", "quick")
    quick.subscribe("$queue/q", 1, ack="manual")
    brokers.network.link("one", "two").delay_ms = (1000, 1000)  # of what the owner says
    brokers.run_until(lambda: quick.messages)
    assert deliveries(quick) == {b"x": [2]}
    packet_id = slow.publish(f"$queue/q/{verb}", b"", 1, message_id="0:0", **asked)
    brokers.run_until(lambda: packet_id in reasons(slow))
    assert reasons(slow)[packet_id] == 0x83
    packet_id = quick.publish(f"$queue/q/{verb}", b"", 1, message_id="0:0", **asked)
    brokers.run_until(lambda: packet_id in reasons(quick))
    assert reasons(quick)[packet_id] == 0


def test_dead_letters_go_to_a_queue_of_another_node() -> None:
    brokers = serving(*NAMES)
    dead_letters(brokers)
    publisher = connected(brokers, "three", "p")
    for number in range(20):
        publisher.publish("$queue/source", b"%d" % number, 1)
    brokers.run_until(lambda: len(in_target(brokers)) == 20)
    brokers.run_until(lambda: not under_way(brokers))
    assert in_target(brokers) == [b"%d" % number for number in range(20)]
    assert brokers.processes["one"].node.manager.queues[b"/", b"source"].queue.waiting == 0


@pytest.mark.parametrize("victim", ["one", "two"])
@pytest.mark.parametrize("seed", range(6))
def test_a_dead_letter_is_neither_lost_nor_there_twice_when_a_node_restarts(victim: str, seed: int) -> None:
    brokers = serving(*NAMES, seed=seed)
    dead_letters(brokers)
    publisher = connected(brokers, "three", "p")
    for number in range(20):
        publisher.publish("$queue/source", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 20)
    brokers.run_for(0.1 + random.Random(seed).uniform(0.0, 0.4))
    brokers.kill(victim)
    brokers.end_lease_of(victim)
    brokers.run_for(0.5)
    brokers.start(victim)
    brokers.run_until(lambda: len(in_target(brokers)) >= 20, 60.0)
    brokers.run_until(lambda: not under_way(brokers), 60.0)
    brokers.run_for(2.0)
    assert sorted(in_target(brokers)) == sorted(b"%d" % number for number in range(20))


def test_a_dead_letter_does_not_leave_before_it_is_on_the_disk_of_its_node() -> None:
    """Else it is there twice: the message dies again when its node is back, and nobody knows of the first letter."""
    brokers = serving(*NAMES)
    dead_letters(brokers, ttl_ms=1000)
    publisher = connected(brokers, "three", "p")
    publisher.publish("$queue/source", b"x", 1)
    brokers.run_until(lambda: reasons(publisher))
    brokers.run_for(0.01)
    brokers.writer_s = 5.0      # the disk is slow
    brokers.run_for(2.0)
    assert under_way(brokers)
    brokers.kill("one")
    brokers.writer_s = 0.001
    brokers.end_lease_of("one")
    brokers.run_for(0.5)
    brokers.start("one")
    brokers.run_until(lambda: in_target(brokers), 60.0)
    brokers.run_until(lambda: not under_way(brokers), 60.0)
    brokers.run_for(2.0)
    assert in_target(brokers) == [b"x"]


def test_a_publish_that_makes_its_queue_waits_until_all_nodes_know_it() -> None:
    brokers = serving(*NAMES)
    for broker in brokers.processes.values():
        broker.node.manager.auto = "classic"
    publisher = connected(brokers, "two", "p")
    publisher.publish("$queue/new", b"x", 1)
    publisher.publish("$queue/new", b"y", 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 2)
    assert list(reasons(publisher).values()) == [0, 0]
    reader = consumer(brokers, "three", "r", "$queue/new")
    brokers.run_until(lambda: [payload for _, payload in reader.messages] == [b"x", b"y"])
def test_what_was_settled_in_a_queue_of_amqp_stays_so_when_its_node_restarts() -> None:
    brokers = serving(*NAMES)
    do(brokers, "one", lambda node: node.amqp_queues.declare(b"/", b"q", durable=True))
    reader, publisher = consumer(brokers, "two", "r"), connected(brokers, "three", "p")
    for number in range(10):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reader.messages) == 10)
    brokers.run_for(1.0)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(0.5)
    brokers.start("one")
    brokers.run_for(2.0)
    state = brokers.processes["one"].node.manager.queues[b"/", b"q"]
    assert len(state.groups) == 1 and state.queue.waiting == 0
    assert len(reader.messages) == 10


@pytest.mark.parametrize("clean_start", [True, False])
def test_a_consumer_may_connect_while_the_owner_is_away(clean_start: bool) -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    reader = connected(brokers, "two", "r", clean_start=clean_start, expiry_s=1000)
    packet_id = reader.subscribe("$queue/q", 1)
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(0.5)
    reader.leave()
    brokers.run_for(0.1)
    reader.connect(clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: reader.connected)
    brokers.start("one")
    publisher = connected(brokers, "three", "p")
    publisher.publish("$queue/q", b"x", 1)
    brokers.run_until(lambda: reader.messages, 10.0)


def persistent(brokers: Brokers, at: str, name: str = "p") -> Publisher:
    client = Publisher(brokers, at, name)
    brokers.clients.append(client)
    client.connect(clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: client.connected)
    return client


def offer(client: Publisher, payload: bytes, *, again: bool = False) -> None:
    client.send(Publish(topic="$queue/q", payload=payload, qos=2, packet_id=ID, dup=again))


def pubrecs(client: Publisher) -> list[int]:
    return [packet.reason for packet in client.of(Pubrec)]


def test_qos_2_is_sent_again_to_the_owner_when_the_publishers_node_has_restarted() -> None:
    """It had recorded the identifier, and the message had not left."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    reader, publisher = consumer(brokers, "three", "r"), persistent(brokers, "two")
    brokers.network.stall("two", "one")
    offer(publisher, b"x")
    brokers.run_for(0.1)
    brokers.kill("two")
    brokers.network.heal()
    brokers.end_lease_of("two")
    brokers.run_for(0.5)
    assert not pubrecs(publisher) and not reader.messages
    brokers.start("two")
    publisher.connect(clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: publisher.connected)
    assert publisher.connacks[-1].session_present
    offer(publisher, b"x", again=True)
    brokers.run_until(lambda: pubrecs(publisher))
    assert pubrecs(publisher) == [0]
    brokers.run_until(lambda: reader.messages)
    brokers.run_for(1.0)
    assert [payload for _, payload in reader.messages] == [b"x"]


@pytest.mark.parametrize("to", NAMES)
def test_qos_2_that_was_refused_after_its_client_had_left_is_not_acknowledged_later(to: str) -> None:
    """The queue is full."""
    brokers = serving(*NAMES)
    share(brokers, "one", limits=QueueLimits(max_depth=1))
    filler, publisher = connected(brokers, "one", "f"), persistent(brokers, "two")
    filler.publish("$queue/q", b"full", 1)
    brokers.run_until(lambda: reasons(filler))
    brokers.network.stall("two", "one")
    offer(publisher, b"x")
    brokers.run_for(0.1)
    publisher.leave()
    brokers.run_for(0.1)
    brokers.network.heal()
    brokers.run_for(1.0)
    publisher.connect(at=to, clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: publisher.connected)
    offer(publisher, b"x", again=True)
    brokers.run_until(lambda: pubrecs(publisher))
    assert pubrecs(publisher) == [0x97]
    reader = consumer(brokers, "three", "r")
    brokers.run_until(lambda: reader.messages)
    brokers.run_for(1.0)
    offer(publisher, b"y")
    brokers.run_until(lambda: len(pubrecs(publisher)) == 2)
    brokers.run_for(1.0)
    assert [payload for _, payload in reader.messages] == [b"full", b"y"]


def test_what_expires_while_its_node_is_down_is_dead_lettered_when_the_node_knows_the_target() -> None:
    brokers = serving(*NAMES)
    dead_letters(brokers)
    publisher = connected(brokers, "three", "p")
    for number in range(5):
        publisher.publish("$queue/source", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 5)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(2.0)
    brokers.start("one")
    brokers.run_until(lambda: len(in_target(brokers)) == 5, 60.0)
    brokers.run_until(lambda: not under_way(brokers))
    assert sorted(in_target(brokers)) == [b"%d" % number for number in range(5)]


def test_a_node_that_rejects_names_the_owner_and_still_forwards_what_it_captures() -> None:
    brokers = serving(*NAMES)
    for at in NAMES:
        brokers.processes[at].node.broker.consumers.defined.write_policy = "reject"
    share(brokers, "one", topics=("t/#",))
    reader = consumer(brokers, "three", "r")
    here, elsewhere = connected(brokers, "one", "h"), connected(brokers, "two", "e")
    for client in (here, elsewhere):
        client.publish("$queue/q", b"named by " + client.name.encode(), 1)
        client.publish("t/x", b"captured by " + client.name.encode(), 1)
    brokers.run_until(lambda: len(reasons(here)) == len(reasons(elsewhere)) == 2)
    assert list(reasons(here).values()) == [0, 0] and sorted(reasons(elsewhere).values()) == [0, 0x80]
    [refused] = [packet for packet in elsewhere.of(Puback) if packet.reason]
    assert "the queue is at node one (one:1883): publish there" in dict(refused.properties)["reason_string"]
    brokers.run_until(lambda: len(reader.messages) == 3)
    assert sorted(payload for _, payload in reader.messages) == [b"captured by e", b"captured by h", b"named by h"]
    assert brokers.processes["two"].node.hub.ledger.refused_elsewhere == 1


# ---------------------------------------------------------------- what SUBACK says


def answered(brokers: Brokers, client: Client, packet_id: int, seconds: float = 60.0) -> Suback:
    """The answer to a SUBSCRIBE."""
    brokers.run_until(lambda: client.acknowledged(packet_id), seconds)
    found = [packet for packet in client.of(Suback) if packet.packet_id == packet_id]
    assert len(found) == 1 and isinstance(found[0], Suback)
    return found[0]


def subscribed(brokers: Brokers, client: Client) -> set[bytes]:
    """What the node of a client has stored of its subscriptions."""
    return set(brokers.processes[client.at].node.broker.sessions[b"/", client.name.encode()].subscriptions)


def members(brokers: Brokers, owner: str = "one") -> int:
    groups = brokers.processes[owner].node.manager.queues[b"/", b"q"].groups
    return sum(len(group.members) for group in groups.values())


def test_what_the_owner_refuses_is_in_suback_and_not_stored() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    consumer(brokers, "three", "sharing")
    other = connected(brokers, "two", "r", expiry_s=1000)
    packet_id = other.subscribe("$queue/q", 1, exclusive="true")
    suback = answered(brokers, other, packet_id)
    assert suback.reasons == [0x83]
    assert dict(suback.properties)["reason_string"] == "$queue/q: the group has members that share its partitions"
    assert subscribed(brokers, other) == set() and members(brokers) == 1
    assert answered(brokers, other, other.subscribe("$queue/q", 1)).reasons == [1]
    assert subscribed(brokers, other) == {b"$queue/q"} and members(brokers) == 2


def test_the_owner_judges_retry_policies() -> None:
    """The nodes of consumers do not know what consumers of other nodes have asked for."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    first, second = connected(brokers, "two", "first"), connected(brokers, "three", "second")

    def asks(client: Client, **policy: str) -> int:
        packet_id = client.subscribe("$queue/q", 1, **policy)
        brokers.run_until(lambda: client.acknowledged(packet_id))
        return int(next(packet.reasons[0] for packet in client.of(Suback) if packet.packet_id == packet_id))

    assert asks(first, initial_backoff="5", max_backoff="10") == 1
    assert asks(second, initial_backoff="20") == 0x83
    assert asks(second, initial_backoff="1") == 1
    assert asks(first, max_backoff="2") == 1  # less than it had asked for itself
    state = brokers.processes["one"].node.manager.queues[b"/", b"q"]
    [group] = state.groups.values()
    assert len(group.members) == 2
    for owner_restarts in (False, True):
        if owner_restarts:  # a consumer that is attached again does not bring back what others have changed
            brokers.kill("one")
            brokers.end_lease_of("one")
            brokers.run_for(1.0)
            brokers.start("one")
            brokers.run_until(lambda: len(brokers.processes["one"].node.manager.queues[
                b"/", b"q"].groups[b"default", b""].members) == 2)
        state = brokers.processes["one"].node.manager.queues[b"/", b"q"]
        policy = state.retry_policies[state.groups[b"default", b""]]
        assert (policy.initial_backoff, policy.max_backoff) == (1.0, 2.0)


def test_what_lives_shortly_does_not_expire_because_its_owner_had_nothing_to_do() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one", limits=QueueLimits(message_ttl=0.1))
    reader, publisher = consumer(brokers, "three", "r"), connected(brokers, "two", "p")
    for number in range(20):
        brokers.run_for(1.017)  # the owner's turns are far apart
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 20)
    brokers.run_for(1.0)
    assert len(reader.messages) == 20


def test_a_suback_has_the_answers_of_several_owners_in_order() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    do(brokers, "three", lambda node: node.manager.declare(QueueSpec(name="third")))
    do(brokers, "two", lambda node: node.manager.declare(QueueSpec(name="here")))
    homes = [name for name in NAMES if brokers.processes[name].node.manager.queues[b"/", b"third"].here]
    assert homes == ["three"] and brokers.processes["two"].node.manager.queues[b"/", b"here"].here
    consumer(brokers, "three", "sharing")
    reader = connected(brokers, "two", "r")
    reader.packet_id += 1
    reader.send(Subscribe(packet_id=reader.packet_id, properties=[("user_property", ("exclusive", "true"))], filters=[
        ("t", 1), ("$queue/q", 1), ("$queue/third", 1), ("$queue/here", 2), ("$queue/none", 1), ("$queue/third", 0),
        ("$queue/third", 1)]))
    suback = answered(brokers, reader, reader.packet_id)
    assert suback.reasons == [1, 0x83, 1, 2, 0x8f, 0x83, 1]
    assert subscribed(brokers, reader) == {b"t", b"$queue/third", b"$queue/here"}
    publisher = connected(brokers, "one", "p")
    for queue in ("third", "here"):
        publisher.publish(f"$queue/{queue}", b"x", 1)
    brokers.run_until(lambda: len(reader.messages) == 2)


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_an_owner_that_does_not_answer_is_a_refusal(kind: str) -> None:
    brokers = serving(*NAMES)
    share(brokers, "one", type=kind)
    reader = connected(brokers, "two", "r", expiry_s=1000)
    brokers.processes["one"].process.pause()
    packet_id = reader.subscribe("$queue/q", 1)
    reader.publish("t", b"x", 1)  # handled behind it
    brokers.run_for(1.0)
    assert not reader.of(Suback) and not reader.of(Puback)
    suback = answered(brokers, reader, packet_id)
    assert suback.reasons == [0x80] and "node one" in dict(suback.properties)["reason_string"]
    assert [type(packet) for packet in reader.got[-2:]] == [Suback, Puback] and subscribed(brokers, reader) == set()


def test_a_refused_subscription_leaves_the_one_that_is_there() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one", type="stream")
    reader = connected(brokers, "two", "r", expiry_s=1000)
    assert answered(brokers, reader, reader.subscribe("$queue/q", 1)).reasons == [1]
    owner = brokers.processes["one"].node.manager.queues[b"/", b"q"].queue
    owner.damage = "a test"
    assert answered(brokers, reader, reader.subscribe("$queue/q", 2)).reasons == [0x80]
    session = brokers.processes["two"].node.broker.sessions[b"/", b"r"]
    assert session.subscriptions == {b"$queue/q": (1, 0)}
    owner.damage = None
    publisher = connected(brokers, "three", "p")
    publisher.publish("$queue/q", b"x", 1)
    brokers.run_until(lambda: len(reader.of(Publish)) == 1, 60.0)
    assert reader.of(Publish)[0].qos == 1


@pytest.mark.parametrize("kind", ["classic", "stream"])
@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_leaves_while_the_owner_is_asked_consumes_nothing(kind: str, leaves: bool) -> None:
    """It leaves, or is taken over by another connection."""
    brokers = serving(*NAMES)
    share(brokers, "one", type=kind)
    reader = connected(brokers, "two", "r", expiry_s=1000)
    reader.subscribe("$queue/q", 1)
    broker = brokers.processes["two"]
    brokers.run_until(lambda: broker.node.broker.sessions[b"/", b"r"].data.consumers)
    if leaves:
        reader.leave()
        brokers.run_for(5.0)
    else:
        left, reader = reader, connected(brokers, "two", "r", clean_start=False, expiry_s=1000)
        brokers.run_for(5.0)
        assert not left.of(Suback)
    queue = brokers.processes["one"].node.manager.queues[b"/", b"q"].queue
    assert not reader.of(Suback) and subscribed(brokers, reader) == set()
    assert members(brokers) == 0 and not queue.readers and broker.node.hub.awaited == 0
    if leaves:
        reader.connect(clean_start=False, expiry_s=1000)
        brokers.run_until(lambda: reader.connected)
    assert answered(brokers, reader, reader.subscribe("$queue/q", 1)).reasons == [1]


@pytest.mark.parametrize("known", [True, False])
def test_qos_2_that_was_given_up_and_sent_again_elsewhere(known: bool) -> None:
    """known: the node knows that its client has gone, and keeps the identifier. Else it refuses the message to a client
    that does not read it: who hears a refusal may use the identifier for another message, so the repetition is a new
    one, and the first copy arrives all the same (Limits)."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    reader, publisher = consumer(brokers, "one", "r"), persistent(brokers, "two")
    brokers.network.cut("two", "one")
    offer(publisher, b"x")
    brokers.run_for(1.0)
    if known:
        publisher.leave()
    publisher.pipe = None
    brokers.run_for(GIVEN_UP_S)
    brokers.network.heal()
    brokers.run_until(lambda: [payload for _, payload in reader.messages] == [b"x"])
    comes_back(brokers, publisher, ["three"])
    assert not pubrecs(publisher)
    offer(publisher, b"x", again=True)
    brokers.run_until(lambda: pubrecs(publisher))
    publisher.release()
    brokers.run_until(lambda: publisher.has(Pubcomp))
    brokers.run_for(1.0)
    assert [payload for _, payload in reader.messages] == [b"x"] * (1 if known else 2)
    offer(publisher, b"y")
    brokers.run_until(lambda: len(pubrecs(publisher)) == 2)
    brokers.run_for(1.0)
    assert reader.messages[-1][1] == b"y"
