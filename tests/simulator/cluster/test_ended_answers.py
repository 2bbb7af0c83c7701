"""basic.cancel-ok, channel.close-ok and connection.close-ok of a cluster mean what they mean on one node, wherever the
client asks next: a queue that ends with its last user is gone, its name is free, a mandatory message to it comes back,
and what was not acknowledged is ready again. One node hears late of what etcd says, or one link is slow."""
from __future__ import annotations

from typing import Any

import pytest
from simulator.cluster.amqp import Amqp
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import serving
from simulator.cluster.test_ended_destinations import NAMES, answers, done, late

LATE_S = 0.5
LATE_MS = 500


def queue_at(brokers: Brokers, guest: Amqp, owner: str, **settings: Any) -> str:
    """A new queue at this node, or for an exclusive one at its client's."""
    for number in range(20):
        name = f"q{number}"
        done(guest, "queue.declare", queue=name, **settings)
        if brokers.processes[owner].node.manager.queues[b"/", name.encode()].here:
            return name
    raise AssertionError("no queue came to that node")


def publish(publisher: Amqp, queue: str) -> bool:
    """Whether a mandatory message was returned; it is confirmed in any case."""
    before = len(publisher.returned)
    publisher.publish("", queue, b"x", mandatory=True)
    publisher.brokers.run_until(lambda: answers(publisher))
    assert answers(publisher) == {1: "basic.ack"}
    return len(publisher.returned) > before


def leave(guest: Amqp, how: str, tag: str) -> None:
    if how == "basic.cancel":
        done(guest, how, consumer_tag=tag)
    else:
        before = len(guest.answers)
        guest.method(how, 0 if how.startswith("connection") else 1, reply_code=200)
        guest.brokers.run_until(lambda: guest.told(f"{how}-ok"))
        assert len(guest.answers) == before + 1


@pytest.mark.parametrize("hears_late", NAMES)
@pytest.mark.parametrize(("how", "owner"), [
    ("basic.cancel", "one"), ("basic.cancel", "three"), ("channel.close", "one"), ("channel.close", "three"),
    ("connection.close", "one"), ("connection.close", "three"), ("exclusive", "one")])
def test_a_queue_is_gone_when_its_last_user_is_told(how: str, owner: str, hears_late: str) -> None:
    brokers = serving(*NAMES)
    guest = Amqp(brokers, "one", acks=False)
    publishers = [Amqp(brokers, name, acks=False) for name in NAMES]
    for publisher in publishers:
        done(publisher, "confirm.select")
    exclusive = how == "exclusive"
    name = queue_at(brokers, guest, owner, exclusive=exclusive, auto_delete=not exclusive)
    tag = "" if exclusive else guest.consume(name, no_ack=True)
    late(brokers, hears_late, LATE_S)
    leave(guest, "connection.close" if exclusive else how, tag)
    assert [publish(publisher, name) for publisher in publishers] == [True] * 3
    for node in NAMES:      # the name is free, also for another kind of queue
        other = Amqp(brokers, node, acks=False)
        done(other, "queue.declare", queue=name, exclusive=True)
        leave(other, "connection.close", "")


@pytest.mark.parametrize("hears_late", NAMES)
def test_a_queue_that_is_declared_while_it_ends_is_a_new_one(hears_late: str) -> None:
    """The other client has not been told anything: it waits, and is not refused."""
    brokers = serving(*NAMES)
    guest, other = Amqp(brokers, "one", acks=False), Amqp(brokers, "two", acks=False)
    name = queue_at(brokers, guest, "three", auto_delete=True)
    tag = guest.consume(name, no_ack=True)
    late(brokers, hears_late, LATE_S)
    before = brokers.processes["three"].node.manager.queues[b"/", name.encode()]
    guest.method("basic.cancel", consumer_tag=tag)
    brokers.run_until(lambda: before.queue.ending)
    done(other, "queue.declare", queue=name, auto_delete=True)
    assert brokers.processes["two"].node.manager.queues[b"/", name.encode()].id != before.id
    brokers.run_until(lambda: guest.told("basic.cancel-ok"))
    # A passive declaration has none to find.
    tag = other.consume(name, no_ack=True)
    other.method("basic.cancel", consumer_tag=tag)
    guest.method("queue.declare", queue=name, passive=True)
    brokers.run_until(lambda: guest.told("queue.declare-ok")[-1]["queue"] != name or guest.told("channel.close"))
    assert guest.told("channel.close")[0]["reply_text"] == f"NOT_FOUND - no queue '{name}' in vhost '/'"


@pytest.mark.parametrize("how", ["channel.close", "connection.close"])
def test_what_was_not_acknowledged_is_ready_when_the_channel_is_closed(how: str) -> None:
    brokers = serving(*NAMES)
    guest, other = Amqp(brokers, "one", acks=False), Amqp(brokers, "two", acks=False)
    name = queue_at(brokers, guest, "three", durable=True)
    done(guest, "confirm.select")
    for number in range(3):
        guest.publish("", name, b"%d" % number)
    tag = guest.consume(name)
    brokers.run_until(lambda: len(guest.deliveries) == 3)
    slow(brokers, "one", "three")
    leave(guest, how, tag)
    for _ in range(3):
        done_get(other, name)
    assert not other.told("basic.get-empty")


def test_an_exclusive_consumer_is_gone_when_it_is_told() -> None:
    brokers = serving(*NAMES)
    guest, other = Amqp(brokers, "one", acks=False), Amqp(brokers, "two", acks=False)
    name = queue_at(brokers, guest, "three", durable=True)
    tag = guest.consume(name, exclusive=True)
    slow(brokers, "one", "three")
    leave(guest, "basic.cancel", tag)
    other.consume(name, exclusive=True)


def test_nobody_is_kept_waiting_without_quorum() -> None:
    """The queue stays for now, and the client hears of its own end."""
    brokers = serving(*NAMES)
    guest = Amqp(brokers, "one", acks=False)
    name = queue_at(brokers, guest, "one", auto_delete=True)
    tag = guest.consume(name, no_ack=True)
    for broker in brokers.processes.values():
        broker.cluster.holdings.definitions._without_quorum = lambda: True
    began = brokers.processes["one"].process.now()
    leave(guest, "basic.cancel", tag)
    assert brokers.processes["one"].process.now() - began < 1.0
    assert (b"/", name.encode()) in brokers.processes["two"].node.manager.queues


def test_a_queue_whose_exchange_was_deleted_meanwhile_is_gone_all_the_same() -> None:
    """Its node does not know of that when it asks etcd for the end of both, so the first attempt changes nothing."""
    brokers = serving(*NAMES)
    guest, other = Amqp(brokers, "one", acks=False), Amqp(brokers, "two", acks=False)
    name = queue_at(brokers, guest, "one", auto_delete=True)
    tag = guest.consume(name, no_ack=True)
    done(guest, "exchange.declare", exchange="e", type="direct", auto_delete=True)
    done(guest, "queue.bind", queue=name, exchange="e", routing_key="k")
    publisher = Amqp(brokers, "three", acks=False)
    done(publisher, "confirm.select")
    late(brokers, "one", LATE_S)
    other.method("exchange.delete", exchange="e")
    exchanges = brokers.processes["two"].cluster.holdings.definitions.exchanges
    brokers.run_until(lambda: not exchanges)
    leave(guest, "basic.cancel", tag)
    assert publish(publisher, name)


def test_a_consumer_of_a_queue_that_is_gone_by_then_is_refused_when_its_node_knows() -> None:
    """The owner has no such queue any more, and the consumer's node has not heard of that."""
    brokers = serving(*NAMES)
    guest, other = Amqp(brokers, "one", acks=False), Amqp(brokers, "two", acks=False)
    name = queue_at(brokers, guest, "three")
    late(brokers, "two", LATE_S)
    guest.method("queue.delete", queue=name)
    brokers.run_until(lambda: (b"/", name.encode()) not in brokers.processes["three"].node.manager.queues)
    assert (b"/", name.encode()) in brokers.processes["two"].node.manager.queues
    began = brokers.processes["two"].process.now()
    other.method("basic.consume", queue=name)
    brokers.run_until(lambda: other.told("channel.close"))
    assert other.told("channel.close")[0]["reply_text"] == f"NOT_FOUND - no queue '{name}' in vhost '/'"
    assert brokers.processes["two"].process.now() - began < 3 * LATE_S


def test_a_queue_that_ended_while_a_channel_with_many_consumers_was_closed() -> None:
    """It is gone at its node before the last consumer has left, and another node has not heard of it."""
    brokers = serving(*NAMES)
    guest = Amqp(brokers, "one", acks=False)
    name = queue_at(brokers, guest, "one", auto_delete=True)
    tag = guest.consume(name, no_ack=True)
    node = brokers.processes["one"].node
    queue = node.manager.queues[b"/", name.encode()].queue
    (client,) = node.clients.open.values()
    late(brokers, "three", LATE_S)
    guest.method("basic.cancel", consumer_tag=tag)
    brokers.run_until(lambda: queue not in node.manager.states)
    told: list[bool] = []
    node.channels.elsewhere.endings.wait(client, [queue], lambda: told.append(
        (b"/", name.encode()) in brokers.processes["three"].node.manager.queues))
    brokers.run_until(lambda: told)
    assert told == [False]


def done_get(client: Amqp, queue: str) -> None:
    before = len(client.answers)
    client.method("basic.get", queue=queue, no_ack=True)
    client.brokers.run_until(lambda: len(client.answers) > before)



def slow(brokers: Brokers, source: str, target: str) -> None:
    """What the first node sends to the other one takes a while."""
    brokers.network.link(source, target).delay_ms = LATE_MS, LATE_MS
