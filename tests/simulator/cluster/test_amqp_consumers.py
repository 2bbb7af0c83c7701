"""Consumers over AMQP whose queue's node dies and comes back, or does not."""
from __future__ import annotations

from typing import Any

import pytest
from oracle.mqtt import Puback, Publish
from simulator.cluster.amqp import Amqp
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_kept_claims import die, group_at, publish, start
from simulator.cluster.test_queues import NAMES, consumer, deliveries, reasons, share

from fluxmq.engine.queues.relays import Refusal

FEW = [b"%d" % number for number in range(6)]


def world(owner: str = "one", **spec: Any) -> Brokers:
    brokers = serving(*NAMES)
    share(brokers, owner, **spec)
    return brokers


def holding(brokers: Brokers, at: str = "two", **consume: Any) -> Amqp:
    """A consumer that has FEW and acknowledges nothing."""
    client = Amqp(brokers, at, acks=False)
    client.consume("q", **consume)
    publish(brokers, at, FEW)
    brokers.run_until(lambda: len(client.deliveries) == len(FEW))
    brokers.run_for(0.5)
    return client


def other_consumer(brokers: Brokers) -> Client:
    other = consumer(brokers, "three", "other")
    brokers.run_for(0.5)
    return other


def test_a_consumer_stays_and_holds_what_it_holds_when_the_owner_restarts() -> None:
    brokers = world()
    client = holding(brokers)
    other = other_consumer(brokers)
    die(brokers, "one")
    brokers.start("one")
    publish(brokers, "three", [b"new"], "p2")
    brokers.run_until(lambda: len(client.deliveries) + len(other.messages) == len(FEW) + 1)
    brokers.run_for(3.0)
    assert client.bodies[:len(FEW)] == FEW and len(client.deliveries) + len(other.messages) == len(FEW) + 1
    assert not client.told("basic.cancel") and group_at(brokers, "one").held >= len(FEW)
    client.acknowledge()
    brokers.run_for(1.0)
    assert group_at(brokers, "one").lag == 0 and not client.told("channel.close")


@pytest.mark.parametrize("settled", ["basic.ack", "basic.reject", "basic.nack"])
def test_what_is_settled_while_the_owner_is_away_counts_when_it_is_back(settled: str) -> None:
    brokers = world()
    client = holding(brokers)
    other = other_consumer(brokers)
    die(brokers, "one")
    for told, _ in client.deliveries[:4]:
        client.method(settled, delivery_tag=told["delivery_tag"], **({} if settled == "basic.ack" else {
            "requeue": settled == "basic.nack"}))
    brokers.run_for(0.5)
    brokers.start("one")
    brokers.run_for(3.0)
    again = [*client.bodies[len(FEW):], *(payload for _, payload in other.messages)]
    assert sorted(again) == (FEW[:4] if settled == "basic.nack" else [])
    assert all(told["redelivered"] for told, _ in client.deliveries[len(FEW):])
    client.acknowledge()
    brokers.run_for(1.0)
    assert group_at(brokers, "one").lag == 0 and group_at(brokers, "one").held == 0
    assert not client.told("channel.close")


def test_what_mqtt_consumers_acknowledge_while_the_owner_is_away_counts_too() -> None:
    brokers = world()
    reader = consumer(brokers, "two", "r")
    reader.acks = False
    publish(brokers, "three", FEW)
    brokers.run_until(lambda: len(reader.messages) == len(FEW))
    brokers.run_for(0.5)
    die(brokers, "one")
    for packet in reader.of(Publish):
        reader.send(Puback(packet_id=packet.packet_id))
    brokers.run_for(0.5)
    brokers.start("one")
    brokers.run_for(3.0)
    assert len(reader.messages) == len(FEW) and group_at(brokers, "one").lag == 0


def test_a_consumer_without_acknowledgements_gets_nothing_twice() -> None:
    brokers = world()
    client = holding(brokers, no_ack=True)
    die(brokers, "one")
    brokers.start("one")
    publish(brokers, "three", [b"new"], "p2")
    brokers.run_until(lambda: len(client.deliveries) > len(FEW))
    brokers.run_for(3.0)
    assert client.bodies == [*FEW, b"new"] and group_at(brokers, "one").lag == 0


def test_prefetch_holds_over_a_restart_of_the_owner() -> None:
    brokers = world()
    client = Amqp(brokers, "two", acks=False)
    client.consume("q", prefetch=3)
    publish(brokers, "three", FEW)
    brokers.run_until(lambda: len(client.deliveries) == 3)
    die(brokers, "one")
    client.method("basic.ack", delivery_tag=client.deliveries[0][0]["delivery_tag"])
    brokers.run_for(0.5)
    brokers.start("one")
    brokers.run_until(lambda: len(client.deliveries) == 4)
    brokers.run_for(2.0)
    assert client.bodies == FEW[:4]
    client.acks = True
    client.acknowledge()
    brokers.run_until(lambda: len(client.deliveries) == 6)
    brokers.run_for(1.0)
    assert client.bodies == FEW and group_at(brokers, "one").lag == 0


def test_one_that_asks_for_it_is_cancelled_and_may_settle_what_it_holds() -> None:
    brokers = world()
    client = holding(brokers, x_cancel_on_ha_failover=True)
    silent = Amqp(brokers, "three", cancels=False)
    silent.consume("q", x_cancel_on_ha_failover=True)
    die(brokers, "one")
    assert len(client.told("basic.cancel")) == 1 and not silent.told("basic.cancel")
    brokers.start("one")
    brokers.run_for(0.5)
    client.acknowledge()
    publish(brokers, "three", [b"new"], "p2")
    brokers.run_for(3.0)
    assert client.bodies == FEW and not silent.deliveries and group_at(brokers, "one").lag == 1
    client.consume("q")
    brokers.run_until(lambda: len(client.deliveries) == len(FEW) + 1)


def test_an_argument_that_makes_no_sense_is_refused() -> None:
    brokers = world()
    client = Amqp(brokers, "two")
    client.method("basic.consume", queue="q", arguments={"x-cancel-on-ha-failover": "yes"})
    assert client.ask("channel.close")["reply_code"] == 406


def test_a_consumer_is_cancelled_when_the_queue_is_deleted_while_its_owner_is_away() -> None:
    brokers = world()
    client = holding(brokers)
    die(brokers, "one")
    assert not client.told("basic.cancel")
    do(brokers, "three", lambda node: (b"/", b"q") in node.manager.queues and node.manager.delete_for((b"/", b"q"), 0))
    brokers.run_for(0.5)
    assert len(client.told("basic.cancel")) == 1
    brokers.start("one")
    brokers.run_for(2.0)
    client.acknowledge()                                # of messages that are gone
    brokers.run_for(0.5)
    assert not client.told("channel.close")


def test_a_consumer_that_the_owner_refuses_when_it_is_back_is_cancelled() -> None:
    """Another one is exclusive by then."""
    brokers = world()
    client = Amqp(brokers, "two")
    client.consume("q")
    die(brokers, "one")
    late = Amqp(brokers, "three")
    link = brokers.network.link("two", "one")
    start(brokers, "one", lambda: setattr(link, "delay_ms", (300, 300)))
    late.consume("q", exclusive=True)
    brokers.run_until(lambda: client.told("basic.cancel"), 5.0)
    publish(brokers, "two", FEW)
    brokers.run_until(lambda: len(late.deliveries) == len(FEW))
    assert not client.deliveries and not client.told("channel.close")


def test_an_exclusive_consumer_stays_exclusive() -> None:
    brokers = world()
    client = Amqp(brokers, "two")
    client.consume("q", exclusive=True)
    die(brokers, "one")
    brokers.start("one")
    brokers.run_for(0.5)
    other = Amqp(brokers, "three")
    other.method("basic.consume", queue="q")
    assert other.ask("channel.close")["reply_code"] == 403
    publish(brokers, "three", FEW)
    brokers.run_until(lambda: client.bodies == FEW)


@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
def test_a_queue_that_is_made_anew_has_its_consumers_but_not_what_they_held(protocol: str) -> None:
    """On both nodes that are left: one of them has it then."""
    brokers = world(type="ephemeral")
    consumers: dict[str, Any] = {}
    for at in ("two", "three"):
        if protocol == "amqp":
            consumers[at] = Amqp(brokers, at, acks=False)
            consumers[at].consume("q")
        else:
            consumers[at] = connected(brokers, at, at)
            consumers[at].acks = False
            packet_id = consumers[at].subscribe("$queue/q", 1, max_retries="7")
            brokers.run_until(lambda at=at, packet_id=packet_id: consumers[at].acknowledged(packet_id))

    def got() -> list[bytes]:
        return [body for one in consumers.values() for body in (
            one.bodies if isinstance(one, Amqp) else [payload for _, payload in one.messages])]

    publish(brokers, "three", FEW)
    brokers.run_until(lambda: len(got()) == len(FEW))
    brokers.run_for(0.5)
    die(brokers, "one")
    states = {at: brokers.processes[at].node.manager.queues[b"/", b"q"] for at in consumers}
    brokers.run_until(lambda: any(state.here for state in states.values()))
    brokers.run_for(0.5)
    new = [b"new %d" % number for number in range(6)]
    publish(brokers, "two", new, "p2")
    brokers.run_until(lambda: len(got()) == len(FEW) + len(new))
    brokers.run_for(1.0)
    assert sorted(got()) == sorted(FEW + new)
    (state,) = (state for state in states.values() if state.here)
    (group,) = state.groups.values()
    assert group.held == len(new) and len(group.members) == 2
    for one in consumers.values():          # also of those that are gone, which has no effect
        if isinstance(one, Amqp):
            one.acknowledge()
        else:
            assert state.retry_policies[group].max_retries == 7
            for packet in one.of(Publish):
                one.send(Puback(packet_id=packet.packet_id))
    brokers.run_for(1.0)
    assert group.lag == 0
    assert not any(one.told("basic.cancel") or one.told("channel.close") for one in consumers.values()
                   if isinstance(one, Amqp))


def test_an_owner_that_does_not_answer_in_time_is_asked_again() -> None:
    brokers = world()
    client = Amqp(brokers, "two")
    client.consume("q")
    die(brokers, "one")
    start(brokers, "one", lambda: brokers.network.stall("one", "two", back=False))
    relays = brokers.processes["two"].node.broker.relays
    refused: list[Refusal] = []
    again = relays._attached_again

    def attached_again(queue: Any, one: Any, answer: Any, number: int) -> None:
        if answer.refused is not None:
            refused.append(answer.refused)
        again(queue, one, answer, number)

    relays._attached_again = attached_again  # type: ignore[method-assign]
    brokers.run_until(lambda: refused, 60.0)
    assert refused[0].late
    brokers.network.heal()
    brokers.run_for(5.0)
    assert not client.told("basic.cancel") and len(group_at(brokers, "one").members) == 1
    publish(brokers, "three", FEW)
    brokers.run_until(lambda: client.bodies == FEW)


def test_readers_of_a_stream_stay_and_go_on_where_they_are() -> None:
    brokers = world(type="stream")
    client = Amqp(brokers, "two")
    client.consume("q", prefetch=10, x_stream_offset="first")
    publish(brokers, "three", FEW)
    brokers.run_until(lambda: client.bodies == FEW)
    die(brokers, "one")
    brokers.start("one")
    publish(brokers, "three", [b"new"], "p2")
    brokers.run_until(lambda: client.bodies == [*FEW, b"new"])
    assert not client.told("basic.cancel")


def test_a_consumer_may_be_cancelled_while_the_owner_is_away() -> None:
    brokers = world()
    client = holding(brokers, tag="c")
    die(brokers, "one")
    client.method("basic.cancel", consumer_tag="c")
    client.ask("basic.cancel-ok")
    for told, _ in client.deliveries[:2]:
        client.method("basic.ack", delivery_tag=told["delivery_tag"])
    brokers.start("one")
    other = other_consumer(brokers)
    publish(brokers, "three", [b"new"], "p2")
    brokers.run_until(lambda: other.messages)
    brokers.run_for(3.0)
    assert client.bodies == FEW and [payload for _, payload in other.messages] == [b"new"]
    client.acknowledge()
    brokers.run_for(1.0)
    assert group_at(brokers, "one").lag == 0


def test_what_a_consumer_held_is_for_others_when_it_leaves_while_the_owner_is_away() -> None:
    brokers = world()
    client = holding(brokers)
    other = other_consumer(brokers)
    die(brokers, "one")
    client.method("channel.close")
    brokers.run_for(0.5)
    brokers.start("one")
    brokers.run_until(lambda: len(other.messages) == len(FEW))
    assert deliveries(other) == {payload: [2] for payload in FEW}


def test_a_publisher_on_the_consumers_channel_goes_on() -> None:
    """Its channel was never closed."""
    brokers = world()
    client = Amqp(brokers, "two")
    client.consume("q")
    die(brokers, "one")
    publisher = connected(brokers, "three", "p")
    publisher.publish("$queue/q", b"refused", 1)
    brokers.run_until(lambda: reasons(publisher))
    brokers.start("one")
    client.publish("", "q", b"mine")
    brokers.run_until(lambda: client.bodies == [b"mine"])
