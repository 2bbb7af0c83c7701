"""Queues, exchanges and bindings that real brokers have in common, and what is left of them when nodes die."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from oracle.mqtt import Puback
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import cluster, connected
from simulator.node import Node

from fluxmq.engine.ports.definitions import Deferred
from fluxmq.model.amqp import AmqpRefused

T = TypeVar("T")
Q = (b"/", b"q")


def sharing(*names: str, seed: int = 1) -> Brokers:
    brokers = cluster(*names, seed=seed)
    brokers.start()
    return brokers


def do(brokers: Brokers, at: str, operation: Callable[[Node], T]) -> T:
    """What an edge does with an operation."""
    process = brokers.processes[at]
    while True:
        try:
            return operation(process.node)
        except Deferred as deferred:
            work = process.process.driver.start(deferred.change())
            brokers.run_until(work.done)
            work.result()


def declare(brokers: Brokers, at: str, name: bytes = b"q", **how: Any) -> None:
    do(brokers, at, lambda node: node.amqp_queues.declare(b"/", name, **how))


def bind(brokers: Brokers, at: str, source: bytes = b"x") -> None:
    do(brokers, at, lambda node: node.exchanges.bind(b"/", source, b"q", b"k"))


def queues(brokers: Brokers, at: str) -> dict[bytes, bool]:
    """Names, and whether they are here."""
    return {address[1]: state.here for address, state in brokers.processes[at].node.manager.queues.items()}


def bound(brokers: Brokers, at: str) -> set[tuple[bytes, bytes]]:
    exchanges = brokers.processes[at].node.exchanges.vhosts[b"/"].exchanges
    return {(name, binding.key) for name, exchange in exchanges.items() if name for binding in exchange.outbound}


def test_all_have_what_one_declares() -> None:
    brokers = sharing("one", "two", "three")
    declare(brokers, "one", durable=True)
    do(brokers, "two", lambda node: node.exchanges.declare(b"/", b"x", b"direct", durable=True))
    bind(brokers, "three")
    assert [queues(brokers, at)[b"q"] for at in ("one", "two", "three")] == [True, False, False]
    for at in ("one", "two", "three"):
        assert bound(brokers, at) == {(b"x", b"k")}
    with pytest.raises(AmqpRefused, match="durable"):
        declare(brokers, "two")
    do(brokers, "three", lambda node: node.amqp_queues.delete(b"/", b"q"))
    for at in ("one", "two", "three"):
        assert not queues(brokers, at) and not bound(brokers, at)


def test_a_node_that_comes_back_has_its_queue_and_its_messages() -> None:
    brokers = sharing("one", "two")
    declare(brokers, "one", durable=True)
    do(brokers, "one", lambda node: node.exchanges.declare(b"/", b"x", b"direct", durable=True))
    bind(brokers, "one")
    one = brokers.processes["one"]
    one.node.manager.queues[Q].queue.publish(b"$queue/q", b"body")
    identity = one.node.manager.queues[Q].id
    brokers.run_for(1.0)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(2.0)
    assert brokers.processes["two"].cluster.holdings.definitions.owner_of(Q) is None
    brokers.start("one")
    brokers.run_for(0.5)
    state = one.node.manager.queues[Q]
    assert (state.here, state.id, state.queue.depth) == (True, identity, 1)
    assert bound(brokers, "one") == bound(brokers, "two") == {(b"x", b"k")}
    assert brokers.processes["two"].cluster.holdings.definitions.owner_of(Q) == "one"


def test_what_was_deleted_meanwhile_does_not_come_back() -> None:
    brokers = sharing("one", "two")
    declare(brokers, "one", durable=True)
    brokers.run_for(1.0)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(2.0)
    do(brokers, "two", lambda node: node.amqp_queues.delete(b"/", b"q"))
    brokers.start("one")
    assert not queues(brokers, "one")
    declare(brokers, "two", durable=True)
    assert queues(brokers, "one") == {b"q": brokers.processes["one"].node.manager.queues[Q].here}


def test_nothing_is_acknowledged_for_a_queue_that_is_being_deleted_because_nobody_uses_it() -> None:
    """The nodes hear of the transaction late."""
    brokers = sharing("one", "two")
    declare(brokers, "one", durable=True, arguments={"x-expires": 1000})
    for broker in brokers.processes.values():
        broker.cluster._store.late_s = 0.5      # type: ignore[attr-defined]
    manager = brokers.processes["one"].node.manager
    state, publishers = manager.queues[Q], [connected(brokers, at, f"p-{at}") for at in ("one", "two")]
    ending: dict[str, set[int]] = {"one": set(), "two": set()}
    while manager.queues.get(Q) is state:
        for publisher in publishers:
            packet_id = publisher.publish("$queue/q", b"body", 1)
            if state.queue.ending:
                ending[publisher.at].add(packet_id)
        brokers.run_for(0.01)
    brokers.run_for(1.0)
    for publisher in publishers:
        reasons = {packet.packet_id: packet.reason for packet in publisher.of(Puback)}
        assert len(ending[publisher.at]) > 10
        found = {reasons[packet_id] for packet_id in ending[publisher.at]}
        assert 0x80 in found and found <= {0x80, 0x90}      # 0x90: this node has heard that there is no queue
        assert reasons[1] == 0
    assert not queues(brokers, "two")


def test_a_queue_that_cannot_be_deleted_serves_on() -> None:
    """Nobody uses it, and etcd has no quorum. A consumer comes, and it stays."""
    brokers = sharing("one", "two")
    declare(brokers, "one", durable=True, arguments={"x-expires": 1000})
    definitions = brokers.processes["one"].cluster.holdings.definitions
    definitions._without_quorum = lambda: True
    brokers.run_for(3.0)
    publisher, reader = connected(brokers, "two", "p"), connected(brokers, "two", "r")
    publisher.publish("$queue/q", b"body", 1)
    brokers.run_until(lambda: publisher.of(Puback))
    assert [packet.reason for packet in publisher.of(Puback)] == [0]
    reader.subscribe("$queue/q", 1)
    brokers.run_until(lambda: reader.messages)
    definitions._without_quorum = lambda: False
    brokers.run_for(3.0)
    assert queues(brokers, "one") == {b"q": True}


def test_who_declares_a_queue_that_is_being_deleted_gets_a_new_one() -> None:
    brokers = sharing("one", "two")
    declare(brokers, "one", durable=True, arguments={"x-expires": 1000})
    brokers.processes["one"].cluster._store.late_s = 0.5    # type: ignore[attr-defined]
    state = brokers.processes["one"].node.manager.queues[Q]
    brokers.run_until(lambda: state.queue.ending)
    declare(brokers, "one", durable=True, arguments={"x-expires": 1000})
    assert brokers.processes["one"].node.manager.queues[Q].id != state.id


def test_a_queue_that_was_deleted_and_declared_anew_meanwhile_is_deleted_where_it_was() -> None:
    brokers = sharing("one", "two")
    declare(brokers, "one", durable=True)
    brokers.processes["one"].node.manager.queues[Q].queue.publish(b"$queue/q", b"body")
    brokers.run_for(1.0)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(2.0)
    do(brokers, "two", lambda node: node.amqp_queues.delete(b"/", b"q"))
    declare(brokers, "two", durable=True)
    for _ in range(2):
        brokers.start("one")
        brokers.run_for(1.0)
        assert (queues(brokers, "one"), queues(brokers, "two")) == ({b"q": False}, {b"q": True})
        brokers.kill("one")
        brokers.end_lease_of("one")
        brokers.run_for(2.0)
    assert brokers.processes["two"].node.manager.queues[Q].queue.depth == 0


def test_a_queue_that_is_not_durable_is_made_anew_with_its_bindings() -> None:
    brokers = sharing("one", "two", "three")
    declare(brokers, "one")
    do(brokers, "one", lambda node: node.exchanges.declare(b"/", b"x", b"direct", durable=True))
    bind(brokers, "two")
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(5.0)
    assert sorted(queues(brokers, at)[b"q"] for at in ("two", "three")) == [False, True]
    for at in ("two", "three"):
        assert bound(brokers, at) == {(b"x", b"k")}


def test_an_exclusive_queue_ends_with_its_node() -> None:
    brokers = sharing("one", "two")
    owner = object()
    declare(brokers, "one", exclusive_owner=owner, owner=owner)
    with pytest.raises(AmqpRefused, match="RESOURCE_LOCKED"):
        declare(brokers, "two")
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    assert not queues(brokers, "two")


def test_an_exclusive_queue_ends_with_its_connection() -> None:
    brokers = sharing("one", "two")
    owner = object()
    declare(brokers, "one", exclusive_owner=owner, owner=owner)
    list(brokers.processes["one"].node.amqp_queues.connection_closed(owner))
    brokers.run_for(1.0)
    assert not queues(brokers, "one") and not queues(brokers, "two")


@pytest.mark.parametrize("seed", range(5))
def test_a_declaration_while_a_node_dies(seed: int) -> None:
    brokers = sharing("one", "two", "three", seed=seed)
    process = brokers.processes["one"]
    with pytest.raises(Deferred) as deferred:
        process.node.amqp_queues.declare(b"/", b"q", durable=True)
    work = process.process.driver.start(deferred.value.change())
    brokers.run_for(brokers.world.chance.random() * 0.01)
    brokers.kill("three")
    brokers.run_for(0.5)
    brokers.end_lease_of("three")
    brokers.run_until(work.done)
    work.result()
    assert b"q" in queues(brokers, "one") and b"q" in queues(brokers, "two")
