"""Who is told that the queues of a node are away, and that they are back."""
from __future__ import annotations

from typing import Any

import pytest
from oracle.mqtt import Suback
from simulator.cluster.amqp import Amqp
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving, subscribed
from simulator.cluster.test_definitions import do
from simulator.cluster.test_kept_claims import die
from simulator.cluster.test_order_in_moves import with_views
from simulator.cluster.test_queues import NAMES, consumer, reasons, share

from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.parts import part_name
from fluxmq.model.queues import QueueSpec

TOPIC = "$SYS/broker/queues/away/"


def logged(brokers: Brokers, at: str) -> list[tuple[str, int | None]]:
    """(level, number of queues) of what a node has said of queues of node one."""
    return [(level, fields.get("queues")) for level, text, fields in brokers.processes[at].log
            if fields.get("node") == "one" and "queues" in text]


def told(client: Client, node: str = "one") -> list[bytes]:
    found = [payload for topic, payload in client.messages if topic == TOPIC + node]
    return [payload for number, payload in enumerate(found) if not number or found[number - 1] != payload]


def world() -> Brokers:
    """Two queues at node one, and one at each other."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    for at, name in (("two", "b"), ("three", "c"), ("one", "d")):
        do(brokers, at, lambda node, name=name: node.manager.declare(QueueSpec(name=name)))  # type: ignore[misc]
        assert brokers.processes[at].node.manager.queues[b"/", name.encode()].here
    brokers.run_for(2.0)
    return brokers


def test_nobody_knows_what_is_in_a_queue_that_is_away() -> None:
    brokers = world()
    die(brokers, "one")
    brokers.run_for(1.5)
    found = QueueAdmin(brokers.processes["two"].node.manager).describe("q")
    assert (found["state"], found["messages"], found["dead_letters"], found["counts"]) == ("away", None, None, None)
    assert found["partition_list"] == [dict.fromkeys(("first", "next", "messages", "bytes")) | {"partition": 0}]


def test_clients_and_operators_are_told_once_on_each_node() -> None:
    brokers = world()
    early = {at: subscribed(brokers, at, f"early-{at}", TOPIC + "+") for at in ("two", "three")}
    die(brokers, "one")
    brokers.run_for(1.5)
    late = subscribed(brokers, "two", "late", TOPIC + "one")
    brokers.run_for(0.5)
    assert [told(client) for client in (*early.values(), late)] == [[b"2"]] * 3
    assert [logged(brokers, at) for at in ("two", "three")] == [[("warning", 2)]] * 2
    brokers.start("one")
    brokers.run_for(2.0)
    for client in (*early.values(), late):
        assert told(client)[0] == b"2" and told(client)[-1] == b"0"
    assert [logged(brokers, at) for at in ("two", "three")] == [[("warning", 2), ("info", None)]] * 2
    assert not logged(brokers, "one") and not told(early["two"], "two") and not told(early["two"], "three")


def test_a_new_queue_of_another_node_is_no_news() -> None:
    brokers = world()
    watcher = subscribed(brokers, "two", "w", TOPIC + "+")
    for number in range(6):
        do(brokers, "three", lambda node, number=number: node.manager.declare(  # type: ignore[misc]
            QueueSpec(name=f"new{number}")))
        brokers.run_for(0.4)
    assert watcher.messages == []


def test_who_was_refused_tries_again_when_it_is_told() -> None:
    """The refusal names the node, whose topic says when it is back."""
    brokers = world()
    reader, publisher = (subscribed(brokers, "two", name, TOPIC + "one") for name in ("r", "p"))
    die(brokers, "one")
    packet_id = reader.subscribe("$queue/q", 1)
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    suback: Any = reader.of(Suback)[-1]
    assert suback.reasons == [0x80] and "at node one, which is away" in dict(suback.properties)["reason_string"]
    publisher.publish("$queue/q", b"refused", 1)
    brokers.run_until(lambda: list(reasons(publisher).values()) == [0x80])
    other = Amqp(brokers, "three")
    other.method("basic.consume", queue="q")
    refused = other.ask("channel.close")
    assert refused["reply_code"] == 404 and "at node one, which is away" in refused["reply_text"]
    brokers.start("one")
    brokers.run_until(lambda: all(told(client)[-1:] == [b"0"] for client in (reader, publisher)))
    packet_id = reader.subscribe("$queue/q", 1)
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    assert reader.of(Suback)[-1].reasons == [1]
    publisher.publish("$queue/q", b"taken", 1)
    brokers.run_until(lambda: reader.messages[-1][1] == b"taken")
    other.method("channel.close-ok")
    other.method("channel.open")
    other.ask("channel.open-ok")
    other.consume("q")


@pytest.mark.parametrize("type_", ["classic", "stream"])
def test_a_node_that_hears_at_once_of_the_end_of_the_owner_and_of_its_return(type_: str) -> None:
    """It has stood still, or its watch of etcd is behind. The owner has another life, and the way to it is another."""
    brokers = serving(*NAMES)
    share(brokers, "one", type=type_)
    reader, publisher = consumer(brokers, "two", "r"), connected(brokers, "two", "p")
    publisher.publish("$queue/q", b"before", 1)
    brokers.run_until(lambda: reader.messages and len(reasons(publisher)) == 1)
    brokers.processes["two"].process.pause()
    die(brokers, "one")
    brokers.processes["one"].start()        # it serves when all nodes know it
    brokers.run_for(2.0)
    brokers.processes["two"].process.resume()
    brokers.run_until(lambda: brokers.processes["one"].serving)
    brokers.run_for(2.0)
    state = brokers.processes["two"].node.manager.queues[b"/", b"q"]
    assert not state.here and state.queue.relay.reachable and not len(brokers.processes["two"].node.manager.away)
    publisher.publish("$queue/q", b"behind", 1)
    brokers.run_until(lambda: len(reasons(publisher)) == 2 and len(reader.messages) == 2)
    assert set(reasons(publisher).values()) == {0}
    assert [payload for _, payload in reader.messages] == [b"before", b"behind"]


def test_queues_that_are_deleted_or_made_anew_are_not_away() -> None:
    brokers = world()
    do(brokers, "one", lambda node: node.manager.declare(QueueSpec(name="e", type="ephemeral")))
    watcher = subscribed(brokers, "two", "w", TOPIC + "one")
    die(brokers, "one")
    brokers.run_for(3.0)
    for at in ("two", "three"):
        assert len(brokers.processes[at].node.manager.away) == 2        # not "e"
    for name in (b"q", b"d"):
        do(brokers, "three", lambda node, name=name: (b"/", name) in node.manager.queues  # type: ignore[misc]
           and node.manager.delete_for((b"/", name), 0))
    brokers.run_for(0.5)
    assert told(watcher)[-1] == b"0" and len(brokers.processes["two"].node.manager.away) == 0


def test_a_consumer_that_its_owner_refuses_is_asked_again_until_it_is_taken() -> None:
    """The first consumer that says so decides whether a group is exclusive. When the owner is back that is another one.
    """
    brokers, views = with_views(1)
    share(brokers, "one")
    reader, publisher = connected(brokers, "two", "r"), connected(brokers, "three", "p")
    packet_id = reader.subscribe("$queue/q", 1, exclusive="true")
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    other = connected(brokers, "three", "other")
    packet_id = other.subscribe("$queue/q", 1, exclusive="false")       # it joins it as it is
    brokers.run_until(lambda: other.acknowledged(packet_id))
    die(brokers, "one")
    views[1].late_s = 1.0       # node two hears late that the owner is back
    brokers.start("one")
    brokers.run_for(5.0)
    publisher.publish("$queue/q", b"first", 1)
    brokers.run_until(lambda: other.messages)
    [group] = brokers.processes["one"].node.manager.queues[b"/", b"q"].groups.values()
    assert group.mode == "shared" and len(group.members) == 1
    warnings = [text for _, text, _ in brokers.processes["two"].log if "refuses a consumer" in text]
    assert len(warnings) == 1 and "the group has members that share its partitions" in warnings[0]
    other.leave()
    publisher.publish("$queue/q", b"second", 1)
    brokers.run_until(lambda: reader.messages, 5.0)
    assert [payload for _, payload in reader.messages] == [b"second"] and reader.connected
    assert group.mode == "exclusive"


def test_a_group_stays_exclusive_if_a_consumer_that_did_not_ask_for_it_is_the_first_when_the_owner_is_back() -> None:
    brokers, views = with_views(1)
    share(brokers, "one")
    reader, publisher = connected(brokers, "two", "r"), connected(brokers, "three", "p")
    packet_id = reader.subscribe("$queue/q", 1, exclusive="true")
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    other = consumer(brokers, "three", "other")
    die(brokers, "one")
    views[1].late_s = 1.0       # node two hears late that the owner is back
    brokers.start("one")
    [group] = brokers.processes["one"].node.manager.queues[b"/", b"q"].groups.values()
    brokers.run_until(lambda: len(group.members) == 2, 5.0)
    first, _ = group.members
    brokers.run_for(1.0)
    assert first.client == "other" and group.owners() == {0: first} and group.mode == "exclusive"
    assert not any("refuses a consumer" in text for _, text, _ in brokers.processes["two"].log)
    for number in range(8):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(other.messages) == 8, 5.0)
    assert not reader.messages
    other.leave()
    publisher.publish("$queue/q", b"to the one that stood by", 1)
    brokers.run_until(lambda: reader.messages, 5.0)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_group_is_exclusive_also_for_a_session_that_came_while_the_owner_was_away(partitions: int) -> None:
    """What its node is told when the owner is back counts for later subscriptions, also for its own."""
    brokers = serving(*NAMES)
    brokers.run_for(1.0)
    do(brokers, "one", lambda node: node.manager.declare(QueueSpec(name="q", partitions=partitions)))
    mover = brokers.processes["one"].node.manager.mover
    for name in [b"q"] if partitions == 1 else [part_name(b"q", at, 2) for at in range(2)]:
        work = brokers.processes["one"].process.driver.start(mover((b"/", name), "one"))
        brokers.run_until(work.done)
    reader = connected(brokers, "three", "r", clean_start=False, expiry_s=1000)
    packet_id = reader.subscribe("$queue/q", 1, exclusive="true")
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    die(brokers, "one")
    reader.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: reader.connected)
    brokers.start("one")
    brokers.run_for(3.0)
    other = connected(brokers, "two", "other")
    for client in (other, reader):
        packet_id = client.subscribe("$queue/q", 1, exclusive="true")
        brokers.run_until(lambda client=client, packet_id=packet_id: client.acknowledged(packet_id))
        assert client.of(Suback)[-1].reasons == [1]
