"""Two tenants with the same client identifiers, topics, exchanges and queue names never meet: one plan of operations of
both protocols is played by three tenants of one broker, in turns of chance. Nothing of one comes to another, and each
has what it has when it plays the plan alone, on a broker of its own.

What is durable, across kill -9: tests/crash/test_tenants.py.
"""
from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kit.node import Node
from kit.tenant_plans import book, clear_up, interleave, plans, read_all, state_of
from kit.tenants import Tenant, specs_of
from kit.watch import wait_until

from fluxmq.edge.mqtt.clients import MqttClients
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.admin import QueueAdmin

TENANTS = ("/", "a", "b")
EXAMPLES, EXAMPLES_LONG = 25, 1500
# A plan that fails says already which tenant saw what; to make it shorter would take minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
_numbers = itertools.count()


class House:
    """A broker and some tenants of it."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.node = Node(folder / str(next(_numbers)), {
            "server.amqp091.plain.addr": "127.0.0.1:0", "storage.type": "memory",
            "amqp091.virtual_hosts": "[/, a, b]"})
        for name in names:
            for spec in specs_of(name):
                self.ask("declare", spec)
        self.tenants = [Tenant(name, self.node.listens("mqtt.tcp.plain"), self.node.listens("amqp091.plain"), self.ask)
                        for name in names]
        self.states: dict[str, Any] = {}

    def ask(self, verb: str, what: Any) -> object:
        def run(server: Any) -> object:
            admin = QueueAdmin(server.queues.manager)
            try:
                if verb == "declare":
                    return admin.declare(what)
                if verb == "purge":
                    return admin.purge(what)
                if verb == "delete":
                    return admin.delete(what, if_unused=False, if_empty=False)
                found = admin.describe(what)
                return found["counts"]
            except QueueRefused as refused:
                return refused.kind
        return self.node.call(run)

    def play(self, plan: list[tuple[Any, ...]], chance: Random) -> None:
        interleave(self.tenants, plan, chance)
        self.states = {tenant.name: self.node.call(lambda server, name=tenant.name:     # type: ignore[misc]
                                                   state_of(server, name)) for tenant in self.tenants}
        for tenant in self.tenants:
            read_all(tenant)

    def stop(self) -> None:
        """The clients go first: a node that stops with clients keeps their connections in memory."""
        for tenant in self.tenants:
            tenant.abandon()
        wait_until(lambda: not self.node.call(lambda server: server.poller.connections))
        self.node.stop()

    def end(self) -> None:
        """Everything is deleted; nothing is counted any more."""
        try:
            for tenant in self.tenants:
                clear_up(tenant, lambda namespace, queue: self.node.call(
                    lambda server: server.queues.manager.delete((namespace.encode(), queue.encode()))
                    if (namespace.encode(), queue.encode()) in server.queues.manager.queues else None))
            wait_until(lambda: not self.node.call(lambda server: server.poller.connections))
            left = self.node.call(lambda server: {one.text: (one.sessions, one.queues, list(one.topics.retained))
                                                  for one in server.hub.namespaces.values()})
            assert left == {name: (0, 0, []) for name in TENANTS}
            assert self.node.call(lambda server: (len(server.broker.sessions), len(server.broker.groups),
                                                  len(server.queues.manager.queues))) == (0, 0, 0)
        finally:
            self.stop()


def check(folder: Path, plan: list[tuple[Any, ...]], seed: int) -> None:
    chance = Random(seed)
    alone = House(folder, (chance.choice(TENANTS),))
    try:
        alone.play(plan, chance)
    finally:
        alone.stop()
    together = House(folder, TENANTS)
    try:
        together.play(plan, chance)
        [wanted], [state] = (book(one) for one in alone.tenants), alone.states.values()
        for tenant in together.tenants:
            assert book(tenant) == wanted, tenant.name
            assert together.states[tenant.name] == state, tenant.name
    except BaseException:
        together.stop()
        raise
    together.end()


@settings(max_examples=EXAMPLES, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(plan=plans(20, 60), seed=st.integers(0, 1 << 32))
def test_tenants_never_meet(tmp_path: Path, plan: list[tuple[Any, ...]], seed: int) -> None:
    check(tmp_path, plan, seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=EXAMPLES_LONG, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(plan=plans(20, 200), seed=st.integers(0, 1 << 32))
def test_tenants_never_meet_for_long(tmp_path: Path, plan: list[tuple[Any, ...]], seed: int) -> None:
    check(tmp_path, plan, seed)


def test_who_is_connected_is_listed_by_namespace(tmp_path: Path) -> None:
    """The list of the admin ring; whoever is disconnected there is the one that was named."""
    house = House(tmp_path, TENANTS)
    try:
        for tenant in house.tenants:
            tenant.play(("connect", "c0", False, None))
            tenant.play(("subscribe", "c0", "t/+", 1))
        clients = MqttClients(house.node.call(lambda server: server.broker))
        listed = house.node.call(lambda server: sorted(clients.ids()))
        assert listed == [(namespace, name) for namespace in ("/", "a", "b") for name in ("c0", "p")]
        for namespace in ("/", "a", "b"):
            info = house.node.call(partial(lambda namespace, server: clients.info(namespace, "c0"), namespace))
            assert info is not None and (info.virtual_host, info.subscriptions) == (namespace, 1)
        assert house.node.call(lambda server: clients.disconnect("a", "c0"))
        house.tenants[1].clients.pop("c0").expect_closed(0x98)
        for tenant in house.tenants[::2]:
            tenant.clients["c0"].expect_quiet()
    finally:
        house.stop()
