"""tx.commit with queues of one node, and of several: headers CC and BCC, topics of MQTT, queues for replies."""
from __future__ import annotations

import pytest
from simulator.cluster.amqp import Amqp
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import serving
from simulator.cluster.test_definitions import do

from fluxmq.model.queues import QueueSpec

# Of brokers one, two and three; "topics-…" capture topics of MQTT.
QUEUES = ("one", "two", "three", "topics-one", "topics-two", "topics-three")


class Transactor(Amqp):
    """A client in a transaction."""

    def __init__(self, brokers: Brokers, at: str) -> None:
        super().__init__(brokers, at)
        self.method("tx.select")
        self.ask("tx.select-ok")

    def commit(self) -> None:
        self.method("tx.commit")
        self.ask("tx.commit-ok")

    def refused(self) -> str:
        """The text of a commit that is refused."""
        self.method("tx.commit")
        told = self.ask("connection.close")
        assert told["reply_code"] == 540
        return str(told["reply_text"])


def world(at: str) -> tuple[Brokers, Transactor]:
    """Each broker has a queue with its name, and one that captures `<name>/#` and `all`. A client of one of them."""
    brokers = serving("one", "two", "three")
    for name in QUEUES:
        home = name.removeprefix("topics-")
        topics = (f"{home}/#", "all") if name.startswith("topics-") else ()
        do(brokers, home, lambda node, name=name, topics=topics: node.manager.declare(  # type: ignore[misc]
            QueueSpec(name=name, topics=topics)))
        assert brokers.processes[home].node.manager.queues[b"/", name.encode()].here
    return brokers, Transactor(brokers, at)


def depths(brokers: Brokers) -> dict[str, int]:
    """Of the queues that have a message, at their owners."""
    found = {name: brokers.processes[name.removeprefix("topics-")].node.manager.queues[b"/", name.encode()].queue.depth
             for name in QUEUES}
    return {name: depth for name, depth in found.items() if depth}


Publish = tuple[str, str, dict[str, list[str]]]


@pytest.mark.parametrize("at", ["one", "two", "three"])
@pytest.mark.parametrize(("publishes", "queues"), [
    ([("", "two", {"CC": ["topics-two"]})], {"two": 1, "topics-two": 1}),
    ([("", "nobody", {"BCC": ["two"]}), ("", "topics-two", {})], {"two": 1, "topics-two": 1}),
    ([("amq.topic", "two.x", {}), ("", "two", {})], {"two": 1, "topics-two": 1}),
    ([("amq.topic", "x", {"CC": ["two.x", "two.y"]})], {"topics-two": 2})])
def test_all_of_it_is_of_one_node(at: str, publishes: list[Publish], queues: dict[str, int]) -> None:
    brokers, client = world(at)
    for exchange, key, headers in publishes:
        client.publish(exchange, key, **headers)
    client.commit()
    brokers.run_for(0.1)        # for what is only captured nobody waits
    assert depths(brokers) == queues


@pytest.mark.parametrize("at", ["one", "two", "three"])
@pytest.mark.parametrize(("publishes", "owners"), [
    ([("", "one", {"CC": ["two"]})], "one, two"),
    ([("", "nobody", {"BCC": ["one", "three"]})], "one, three"),
    ([("amq.topic", "two.x", {}), ("", "one", {})], "one, two"),
    ([("amq.topic", "x", {"CC": ["two.x"], "BCC": ["three.x"]})], "three, two"),
    ([("amq.topic", "all", {})], "one, three, two")])
def test_a_part_is_of_another_node(at: str, publishes: list[Publish], owners: str) -> None:
    brokers, client = world(at)
    for exchange, key, headers in publishes:
        client.publish(exchange, key, **headers)
    names = ", ".join(sorted("this one" if name == at else name for name in owners.split(", ")))
    assert client.refused().endswith(f"several nodes: {names}")
    brokers.run_for(1.0)
    assert depths(brokers) == {}


@pytest.mark.parametrize("queue", ["two", "three"])
def test_a_reply_is_for_the_node_of_its_client(queue: str) -> None:
    brokers, client = world("one")
    node = brokers.processes["two"].node
    owner = object()
    reply = node.amqp_queues.reply_queue(b"/", owner)
    client.publish("", reply.name.decode())
    client.publish("", queue)
    replies = node.manager.queues[b"/", reply.name].queue
    if queue == "two":
        client.commit()
        assert replies.depth == 1 and depths(brokers) == {"two": 1}
    else:
        assert "several nodes: three, two" in client.refused()
        brokers.run_for(1.0)
        assert replies.depth == 0 and depths(brokers) == {}
