"""Tenants with the same client identifiers, topics, exchanges and queue names never meet: plans of operations of both
protocols are played by three tenants of one broker, in turns of chance, one plan by two of them and another by the
third. Nothing of one comes to another, and each has, and each list of an operator shows, what is there when a tenant
plays its plan alone, on a broker of its own.

What is durable, across kill -9: tests/crash/test_tenants.py.
"""
from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kit.left_by_crash import copy_data
from kit.node import Node
from kit.tenant_plans import book, clear_up, interleave, plans, read_all, state_of, with_barriers
from kit.tenants import Tenant, specs_of
from kit.watch import wait_until

from fluxmq.app.admin_client import AdminClient, AdminError
from fluxmq.app.server import Server
from fluxmq.edge.mqtt.clients import MqttClients
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.sessions.line import SessionLine
from fluxmq.engine.sessions.share_groups import ShareGroups

Plan = list[tuple[Any, ...]]
TENANTS = ("/", "a", "b")
COUNTS = ("messages", "ready", "delayed", "groups", "consumers", "dead_letters")
EXAMPLES, EXAMPLES_LONG = 12, 1500
# A plan that fails says already which tenant saw what; to make it shorter would take minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
_numbers = itertools.count()


def miscounted(server: Server) -> list[str]:
    """The namespaces whose count of bytes is not the sum of what is there."""
    found = []
    for namespace in server.hub.namespaces.values():
        kept = namespace.topics.retained_bytes + sum(
            session.queued_bytes for session in server.broker.sessions.values() if session.namespace is namespace)
        kept += sum(log.kept_bytes for queue, state in server.queues.manager.states.items()
                    if queue.namespace is namespace for log in state.logs)
        if namespace.bytes != kept:
            found.append(f"{namespace.text}: {namespace.bytes} for {kept}")
    return found


class House:
    """A broker and some tenants of it. ends: how it does at barriers of their plans, "stop" or "crash"."""

    def __init__(self, folder: Path, names: tuple[str, ...], ends: str = "") -> None:
        self.directory, self.ends = folder / str(next(_numbers)), ends
        self.directory.mkdir()
        self.start()
        for name in names:
            for spec in specs_of(name):
                self.ask("declare", spec)
        self.tenants = [Tenant(name, self.node.listens("mqtt.tcp.plain"), self.node.listens("amqp091.plain"), self.ask)
                        for name in names]
        self.states: dict[str, Any] = {}

    def start(self) -> None:
        self.node = Node(self.directory, {
            "server.amqp091.plain.addr": "127.0.0.1:0", "storage.type": "rocksdb" if self.ends else "memory",
            "amqp091.virtual_hosts": "[/, a, b]", "server.admin_socket": self.directory / "admin"})
        self.admin = AdminClient(self.directory / "admin")

    def restart(self) -> None:
        for tenant in self.tenants:
            tenant.drain()
            tenant.abandon()
        later = self.directory
        if self.ends == "crash":
            self.node.settle()
            copy_data(self.directory / "data", (later := self.directory / "later") / "data")
        self.stop()
        self.directory = later
        self.start()
        for tenant in self.tenants:
            tenant.mqtt, tenant.amqp = self.node.listens("mqtt.tcp.plain"), self.node.listens("amqp091.plain")
            tenant.open()
        for tenant in self.tenants:
            tenant.play(("look",))

    def kick(self, namespace: str, who: str) -> str:
        try:
            self.admin.ask("DELETE", "clients", who, query={"namespace": namespace})
        except AdminError as error:
            return error.word
        return "kicked"

    def look(self, name: str) -> object:
        """What an operator's lists say of a namespace."""
        [about] = [one for one in self.admin.ask("GET", "namespaces")["namespaces"] if one["name"] == name]
        queues, clients = (self.admin.ask("GET", kind, query={"namespace": name})[kind]
                           for kind in ("queues", "clients"))
        return ([about[key] for key in ("connections", "sessions", "queues", "retained", "bytes")],
                [(one["name"].removeprefix(f"{name}/"), *(one[key] for key in COUNTS)) for one in queues],
                sorted((one["client_id"], one["subscriptions"]) for one in clients
                       if not one["client_id"].startswith("amqp091-")))

    def ask(self, verb: str, what: Any) -> object:
        if verb == "kick":
            return self.kick(*what)
        if verb == "look":
            return self.look(what)

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

    def play(self, plans: list[Plan], chance: Random) -> None:
        interleave(self.tenants, plans, chance, self.restart)
        self.states = {tenant.name: (self.look(tenant.name), self.node.call(
            lambda server, name=tenant.name: state_of(server, name)))           # type: ignore[misc]
            for tenant in self.tenants}
        assert self.node.call(miscounted) == []
        for tenant in self.tenants:
            read_all(tenant)

    def stop(self) -> None:
        """The clients go first: a node that stops with clients keeps their connections in memory."""
        for tenant in self.tenants:
            tenant.abandon()
        self.admin.close()
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
            assert self.node.call(lambda server: (len(server.broker.sessions), len(server.broker.hub.groups),
                                                  len(server.queues.manager.queues))) == (0, 0, 0)
        finally:
            self.stop()


def seen_by(tenant: Tenant, ends: str) -> dict[str, Any]:
    """Its book; after a restart streams are read from the disk, which takes the reader its own time."""
    found = book(tenant)
    if ends:
        found.pop("r0", None)
    return found


def check(folder: Path, plans: tuple[Plan, Plan], seed: int, ends: str = "") -> None:
    chance = Random(seed)
    whose = {"/": 0, "a": 1, "b": 0}
    wanted = []
    for plan, name in zip(plans, (chance.choice(("/", "b")), "a"), strict=True):
        alone = House(folder, (name,), ends)
        try:
            alone.play([plan], chance)
        finally:
            alone.stop()
        wanted.append((seen_by(alone.tenants[0], ends), alone.states[name]))
    together = House(folder, TENANTS, ends)
    try:
        together.play([plans[whose[name]] for name in TENANTS], chance)
        for tenant in together.tenants:
            books, state = wanted[whose[tenant.name]]
            assert seen_by(tenant, ends) == books, tenant.name
            assert together.states[tenant.name] == state, tenant.name
    except BaseException:
        together.stop()
        raise
    together.end()


def several(examples: int, **how: Any) -> settings:
    return settings(max_examples=examples, phases=PHASES, suppress_health_check=list(HealthCheck), **how)


def two(plan: st.SearchStrategy[Plan]) -> st.SearchStrategy[tuple[Plan, Plan]]:
    return st.tuples(plan, plan)


@several(EXAMPLES)
@given(plans=two(plans(20, 60)), seed=st.integers(0, 1 << 32))
def test_tenants_never_meet(tmp_path: Path, plans: tuple[Plan, Plan], seed: int) -> None:
    check(tmp_path, plans, seed)


@pytest.mark.parametrize("ends", ["stop", "crash"])
@several(2)
@given(plans=two(with_barriers(10, 30)), seed=st.integers(0, 1 << 32))
def test_tenants_never_meet_across_restarts(tmp_path: Path, ends: str, plans: tuple[Plan, Plan], seed: int) -> None:
    check(tmp_path, plans, seed, ends)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@several(EXAMPLES_LONG)
@given(plans=two(plans(20, 200)), seed=st.integers(0, 1 << 32))
def test_tenants_never_meet_for_long(tmp_path: Path, plans: tuple[Plan, Plan], seed: int) -> None:
    check(tmp_path, plans, seed)


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


# ── planted: what the above must find ────────────────────────────────────────────────────────────────────────


def is_found(folder: Path, defect: tuple[type, str, Any], ends: str = "") -> bool:
    """Whether one of a few plans, none of which fails without it, fails with it. defect: what monkeypatch sets."""
    found = []

    @several(3, derandomize=True)
    @given(plans=two(with_barriers(10, 30) if ends else plans(20, 60)), seed=st.integers(0, 1 << 32))
    def attempt(plans: tuple[Plan, Plan], seed: int) -> None:
        if found:
            return
        check(folder, plans, seed, ends)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*defect)
            try:
                check(folder, plans, seed, ends)
            except AssertionError as error:
                found.append(str(error))

    attempt()
    return bool(found)


def test_planted_share_groups_without_their_namespace(tmp_path: Path) -> None:
    look = ShareGroups._group

    def blind(self: ShareGroups, namespace: Any, name: bytes, filter_: bytes) -> Any:
        """By name and filter alone."""
        found = (group for key, group in self._hub.groups.items() if key[1:] == (name, filter_))
        return next(found, None) or look(self, namespace, name, filter_)

    assert is_found(tmp_path, (ShareGroups, "_group", blind))


def test_planted_namespaces_that_recovery_mixes_up(tmp_path: Path) -> None:
    make = SessionLine._make

    def mixed_up(self: SessionLine, number: int, head: Any) -> Any:
        other = {1: 2, 2: 1}.get(head.namespace, head.namespace)
        return make(self, number, msgspec.structs.replace(head, namespace=other))

    assert is_found(tmp_path, (SessionLine, "_make", mixed_up), "stop")


def test_planted_queues_found_by_name_alone(tmp_path: Path) -> None:
    find = QueueManager.find

    def first(self: QueueManager, name: bytes, namespace: bytes = b"/") -> Any:
        return next((state.queue for (_, known), state in self.queues.items() if known == name), None) or find(
            self, name, namespace)

    assert is_found(tmp_path, (QueueManager, "find", first))
