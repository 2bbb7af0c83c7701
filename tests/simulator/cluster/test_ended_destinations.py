"""A destination that has ended is no refusal: what publishers with confirms hear of queues of other nodes that go away
while they are published to, and of requesters that have gone. basic.nack would say that a message is not stored."""
from __future__ import annotations

from typing import Any

import pytest
from simulator.cluster.amqp import Amqp
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import serving

NAMES = ("one", "two", "three")
REPLY_TO = "amq.rabbitmq.reply-to"


def done(client: Amqp, method: str, **arguments: Any) -> dict[str, Any]:
    before = len(client.answers)
    client.method(method, **arguments)
    client.brokers.run_until(lambda: len(client.answers) > before)
    name, told = client.answers[before]
    assert name == method + "-ok", told
    return told


def world() -> tuple[Brokers, Amqp]:
    """At node two a durable queue "kept", bound to the fanout "all"; and a publisher there that gets confirms."""
    brokers = serving(*NAMES)
    publisher = Amqp(brokers, "two", acks=False)
    done(publisher, "exchange.declare", exchange="all", type="fanout", durable=True)
    at = {name: brokers.processes[name].node.manager.queues for name in NAMES}
    for number in range(3):     # the one of them that is at node two
        done(publisher, "queue.declare", queue=f"kept-{number}", durable=True)
    kept = next(address[1].decode() for address, state in at["two"].items() if state.here)
    done(publisher, "queue.bind", queue=kept, exchange="all")
    done(publisher, "confirm.select")
    return brokers, publisher


def late(brokers: Brokers, name: str, seconds: float) -> None:
    brokers.processes[name].cluster._store.late_s = seconds     # type: ignore[attr-defined]


def answers(publisher: Amqp) -> dict[int, str]:
    """By delivery tag. None is answered twice."""
    found: dict[int, str] = {}
    for name, told in publisher.answers:
        if name in ("basic.ack", "basic.nack"):
            tag = told["delivery_tag"]
            tags = [each for each in range(1, tag + 1) if each not in found] if told["multiple"] else [tag]
            assert tag in tags, f"{tag} is answered again"
            found |= dict.fromkeys(tags, name)
    return found


def leave(client: Amqp) -> None:
    client.pipe.client_closed = client.pipe.reset = True
    broker = client.brokers.processes[client.at]
    broker.process.driver.soon(broker.turn)


def publish_until(brokers: Brokers, publisher: Amqp, seconds: float, way: tuple[str, str] = ("all", "")) -> int:
    count = int(seconds * 100)
    for number in range(count):
        publisher.publish(*way, b"%d" % number)
        brokers.run_for(0.01)
    brokers.run_for(1.0)
    return count


def depth(brokers: Brokers) -> int:
    """Of the queue that stays."""
    manager = brokers.processes["two"].node.manager
    return next(state.queue.depth for address, state in manager.queues.items()
                if state.here and address[1].startswith(b"kept"))


@pytest.mark.parametrize("how", ["exclusive", "auto-delete", "x-expires"])
@pytest.mark.parametrize("hears_late", ["one", "two"])
def test_queues_that_end_by_themselves(how: str, hears_late: str) -> None:
    """The node that has the queue, or that of the publisher, hears late of its end."""
    brokers, publisher = world()
    guest = Amqp(brokers, "one", acks=False)
    name = str(done(guest, "queue.declare", queue="", exclusive=how == "exclusive", auto_delete=how == "auto-delete",
                    arguments={"x-expires": 200} if how == "x-expires" else {})["queue"])
    done(guest, "queue.bind", queue=name, exchange="all")
    if how == "auto-delete":
        guest.consume(name, no_ack=True)
    late(brokers, hears_late, 0.5)
    if how != "x-expires":
        leave(guest)
    count = publish_until(brokers, publisher, 1.0)
    assert answers(publisher) == dict.fromkeys(range(1, count + 1), "basic.ack")
    assert depth(brokers) == count
    assert (b"/", name.encode()) not in brokers.processes["two"].node.manager.queues


def test_a_queue_that_a_client_deletes() -> None:
    brokers, publisher = world()
    guest = Amqp(brokers, "one", acks=False)
    name = str(done(guest, "queue.declare", queue="")["queue"])
    done(guest, "queue.bind", queue=name, exchange="all")
    late(brokers, "two", 0.5)
    guest.method("queue.delete", queue=name)
    count = publish_until(brokers, publisher, 1.0)
    assert answers(publisher) == dict.fromkeys(range(1, count + 1), "basic.ack") and depth(brokers) == count
    assert guest.told("queue.delete-ok")


def test_a_queue_that_stays_after_all_has_what_was_confirmed() -> None:
    """Nobody uses it, and etcd has no quorum."""
    brokers, publisher = world()
    guest = Amqp(brokers, "one", acks=False)
    name = str(done(guest, "queue.declare", queue="", arguments={"x-expires": 200})["queue"])
    done(guest, "queue.bind", queue=name, exchange="all")
    brokers.processes["one"].cluster.holdings.definitions._without_quorum = lambda: True
    count = publish_until(brokers, publisher, 1.0)
    assert answers(publisher) == dict.fromkeys(range(1, count + 1), "basic.ack")
    assert brokers.processes["one"].node.manager.queues[b"/", name.encode()].queue.depth == count


def test_a_transaction_is_not_refused_for_a_queue_that_ends() -> None:
    brokers, _ = world()
    late(brokers, "two", 0.5)
    committer, guest = Amqp(brokers, "one", acks=False), Amqp(brokers, "two", acks=False)
    done(committer, "tx.select")
    name = str(done(guest, "queue.declare", queue="", exclusive=True)["queue"])
    done(guest, "queue.bind", queue=name, exchange="all")
    leave(guest)
    for count in range(1, 11):
        brokers.run_for(0.05)
        committer.publish("all", "", b"x")
        committer.publish("", name, b"x")
        done(committer, "tx.commit")
        assert depth(brokers) == count


def requester(brokers: Brokers, at: str) -> tuple[Amqp, str]:
    client = Amqp(brokers, at, acks=False)
    client.consume(REPLY_TO, no_ack=True)
    [name] = [address[1].decode() for address in brokers.processes[at].node.manager.queues
              if address[1].startswith(REPLY_TO.encode())]
    return client, name


@pytest.mark.parametrize("at", NAMES)
def test_a_reply_to_a_requester_that_has_gone(at: str) -> None:
    """As on one node: it is acknowledged, and returned first if it is mandatory."""
    brokers, _ = world()
    client, name = requester(brokers, "one")
    publisher = Amqp(brokers, at, acks=False)
    done(publisher, "confirm.select")

    def publish(mandatory: bool, body: bytes) -> list[str]:
        before = len(publisher.answers)
        publisher.publish("", name, body, mandatory=mandatory)
        brokers.run_for(0.5)
        return [method for method, _ in publisher.answers[before:]]

    assert publish(False, b"1") == publish(True, b"2") == ["basic.ack"]
    assert client.bodies == [b"1", b"2"]
    leave(client)
    brokers.run_for(0.5)
    assert publish(False, b"3") == ["basic.ack"]
    assert publish(True, b"4") == ["basic.return", "basic.ack"]
    assert publisher.returned == [b"4"] and publisher.told("basic.return")[0]["reply_code"] == 312
    brokers.kill("one")
    if at != "one":
        brokers.end_lease_of("one")
        brokers.run_for(1.0)
        assert publish(False, b"5") == ["basic.ack"]
        assert publish(True, b"6") == ["basic.return", "basic.ack"]


def test_a_transaction_with_a_reply_to_a_requester_that_has_gone() -> None:
    brokers, _ = world()
    client, name = requester(brokers, "one")
    committer = Amqp(brokers, "two", acks=False)
    done(committer, "tx.select")
    leave(client)
    brokers.run_for(0.5)
    for mandatory in (False, True):
        committer.publish("", name, b"answer", mandatory=mandatory)
        before = len(committer.answers)
        committer.method("tx.commit")
        brokers.run_for(0.5)
        assert [method for method, _ in committer.answers[before:]] == (
            ["basic.return", "tx.commit-ok"] if mandatory else ["tx.commit-ok"])


def test_a_publish_of_mqtt_is_not_refused_for_a_bound_queue_that_has_ended() -> None:
    """By amq.topic. A refusal is counted only, as that of a full queue."""
    brokers, _ = world()
    guest = Amqp(brokers, "one", acks=False)
    name = str(done(guest, "queue.declare", queue="", exclusive=True)["queue"])
    done(guest, "queue.bind", queue=name, exchange="amq.topic", routing_key="a.b")
    client = brokers.client("two", "m")
    client.connect()
    brokers.run_until(lambda: client.connected)
    late(brokers, "two", 0.5)
    leave(guest)
    for _ in range(50):
        client.publish("a/b", b"x", 1)
        brokers.run_for(0.01)
    brokers.run_for(1.0)
    assert [packet.reason < 0x80 for packet in client.got[-50:]] == [True] * 50


def test_what_is_answered_at_once_between_two_that_wait_is_answered_once() -> None:
    """A message without a destination, between two for a queue of this node, behind one for another node."""
    brokers, publisher = world()
    kept = next(address[1].decode() for address, state in brokers.processes["two"].node.manager.queues.items()
                if state.here)
    away = next(address[1].decode() for address, state in brokers.processes["two"].node.manager.queues.items()
                if not state.here)
    brokers.network.cut("two", "one")
    brokers.network.cut("two", "three")
    for key in (away, kept, "nobody", kept, "nobody", kept):
        publisher.publish("", key)
    brokers.run_for(0.5)
    assert answers(publisher) == dict.fromkeys(range(2, 7), "basic.ack")
    brokers.network.heal()
    brokers.run_for(10.0)
    assert answers(publisher) == dict.fromkeys(range(1, 7), "basic.ack")
