"""Namespaces come, are filled, end and come again, cut off before any call that changes the disk, by a kill or by a
loss of power: a restart finds what was durable after some batch of the journal, and no earlier one than the last that
somebody was told of. So a namespace is all there or not at all, and what is made under an old name is empty.
"""
from __future__ import annotations

import asyncio
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from crash.queue_node import QueueNode, View
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kit.film import Cut

from fluxmq.engine.exchanges import PREDECLARED
from fluxmq.engine.namespaces import NamespaceAdmin
from fluxmq.engine.sessions import EXPIRY_NEVER, Will
from fluxmq.model.queues import QueueSpec

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
CLOCK = (1_000_000, 0)
NAMES = ("shop", "other")
State = dict[str, Any]

names = st.sampled_from(NAMES)
step = st.one_of(
    st.tuples(st.just("create"), names), st.tuples(st.just("create"), names),
    st.tuples(st.just("session"), names, st.sampled_from((b"c", b"d")), st.booleans()),
    st.tuples(st.just("retain"), names, st.sampled_from((b"a/b", b"a/c"))),
    st.tuples(st.just("retain"), names, st.sampled_from((b"a/b", b"a/c"))),
    st.tuples(st.just("queue"), names, st.sampled_from(("q", "r"))),
    st.tuples(st.just("bind"), names, st.sampled_from((b"x", b"y")), st.sampled_from((b"amq.topic", b"amq.fanout"))),
    st.tuples(st.just("delete"), names), st.tuples(st.just("delete"), names),
    st.tuples(st.just("submit")), st.tuples(st.just("sync")), st.tuples(st.just("poll")),
    st.tuples(st.just("checkpoint"), st.integers(1, 5)), st.tuples(st.just("finish")),
    st.tuples(st.just("crash"), st.floats(0, 0.999), st.sampled_from(("kill", "power", "torn"))),
)


def state_of(node: QueueNode) -> State:
    """What of each namespace is durable."""
    broker, found = node.keeper.broker, {}
    for name, namespace in node.hub.namespaces.items():
        exchanges = node.exchanges.vhosts.get(name)
        known = exchanges.exchanges.values() if exchanges is not None else ()
        found[namespace.text] = {
            "kept": namespace.kept,
            "sessions": {session.name: (sorted(session.subscriptions), session.queued, session.data.will is not None)
                         for address, session in broker.sessions.items() if address[0] == name},
            "queues": {address[1]: state.queue.waiting for address, state in node.manager.queues.items()
                       if address[0] == name},
            "exchanges": {one.name for one in known if one.name not in PREDECLARED},
            "bindings": sorted((one.name, binding.destination.name) for one in known for binding in one.outbound),
            "retained": sorted(bytes(topic) for topic, _ in namespace.topics.retained),
            "counted": (namespace.sessions, namespace.queues, namespace.topics.retained_count)}
    return found


class Carrier:
    """A connection."""

    def displaced(self, reason: int) -> None:
        """Nobody is told."""


class History:
    """One node after the other. cuts_max: how many instants of each life are looked at; 0 = all."""

    def __init__(self, directory: Path, seed: int, cuts_max: int) -> None:
        self.directory, self.cuts_max = directory, cuts_max
        self.chance = random.Random(seed)
        self.loop = asyncio.new_event_loop()
        self.places = self.instants = 0
        self.node = QueueNode(self._place(), self.loop, View(), CLOCK, 1)
        self.snapshots: dict[int, State] = {0: state_of(self.node)}

    def _place(self, make: bool = True) -> Path:
        self.places += 1
        path = self.directory / str(self.places)
        if make:
            path.mkdir()
        return path

    def run(self, what: str, *arguments: Any) -> None:
        """A step on the disk, or a turn in which something is done to a namespace that is there."""
        if hasattr(self, f"do_{what}"):
            getattr(self, f"do_{what}")(*arguments)
        elif what == "create" or arguments[0].encode() in self.node.hub.namespaces:
            number = self.node.in_turn(lambda: getattr(self, f"in_{what}")(*arguments))
            self.snapshots[number] = state_of(self.node)

    @property
    def admin(self) -> NamespaceAdmin:
        return NamespaceAdmin(self.node.keeper.broker, self.node.manager, self.node.exchanges, (), frozenset)

    # ------------------------------------------------------------------ in a turn

    def in_create(self, name: str) -> None:
        if self.admin.create(name) == "created":
            assert not any(value for key, value in self.admin.describe(name).items()
                           if key not in ("name", "open", "kept", "limits", "refused"))

    def in_delete(self, name: str) -> None:
        self.admin.delete(name)
        assert name.encode() not in self.node.hub.namespaces

    def in_session(self, name: str, client_id: bytes, shared: bool) -> None:
        """A client subscribes, and goes away without a goodbye."""
        broker, carrier = self.node.keeper.broker, Carrier()
        session, _ = broker.connect(
            client_id, version=5, clean_start=False, expiry_s=EXPIRY_NEVER, keep_alive_s=0, username=None,
            will=Will(b"a/w", b"", 1, True, delay_s=9), connection=carrier,
            namespace=self.node.hub.namespaces[name.encode()])
        broker.subscribe(session, b"$share/g/a/#" if shared else b"a/#", 1, 0)
        broker.disconnect(session, carrier, publish_will=True)

    def in_retain(self, name: str, topic: bytes) -> None:
        self.node.hub.publish_message(topic, b"kept", 1, True, b"", 0, None, self.node.hub.namespaces[name.encode()])

    def in_queue(self, name: str, queue: str) -> None:
        self.node.manager.declare(QueueSpec(name=queue, namespace=name, topics=("a/#",)))

    def in_bind(self, name: str, exchange: bytes, source: bytes) -> None:
        host = name.encode()
        self.node.exchanges.add_vhost(host)
        self.node.exchanges.declare(host, exchange, b"fanout", durable=True)
        self.node.exchanges.bind(host, source, exchange, b"a.#", to_exchange=True)
        if (host, b"q") in self.node.manager.queues:
            self.node.exchanges.bind(host, exchange, b"q")

    # ------------------------------------------------------------------ on the disk

    def do_submit(self) -> None:
        self.node.submit()

    def do_sync(self) -> None:
        self.node.sync()

    def do_poll(self) -> None:
        self.node.poll()

    def do_checkpoint(self, rounds: int) -> None:
        self.node.begin_checkpoint()
        for _ in range(rounds):
            self.node.round()
            self.node.poll()

    def do_finish(self) -> None:
        self.node.begin_checkpoint()
        self.node.finish_checkpoint()

    def do_crash(self, which: float, how: str) -> None:
        cuts = self.node.stop()
        some = cuts if not self.cuts_max or len(cuts) <= self.cuts_max else self.chance.sample(cuts, self.cuts_max)
        for cut in some:
            self.revive(cut, self.chance.choice(("kill", "power", "torn")), False).stop()
        self.node = self.revive(cuts[int(which * len(cuts))], how, True)
        self.snapshots = {self.node.recovered: state_of(self.node)}

    def revive(self, cut: Cut, how: str, filmed: bool) -> QueueNode:
        self.instants += 1
        chance = random.Random(self.chance.random())
        node = QueueNode.after(cut, self._place(make=False), chance if how == "torn" else how, self.loop, CLOCK, filmed)
        assert node.recovered >= cut.facts[0], "what somebody was told of is gone"
        known = self.snapshots[max(number for number in self.snapshots if number <= node.recovered)]
        assert state_of(node) == known, f"after a crash ({how}) before {cut.what!r}, batch {node.recovered}"
        return node

    def close(self) -> None:
        try:
            self.node.stop()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


def check(steps: list[tuple[Any, ...]], seed: int, cuts_max: int) -> int:
    """Returns how many instants were looked at."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        history = History(Path(directory), seed, cuts_max)
        try:
            for each in steps:
                history.run(*each)
            history.run("crash", 0.999, "kill")
            history.run("finish")
            history.run("crash", 0.999, "power")
            return history.instants
        finally:
            history.close()


SMOKE = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck),
                 phases=[Phase.explicit, Phase.reuse, Phase.generate], print_blob=True)  # shrinking takes minutes


@SMOKE
@given(st.lists(step, min_size=15, max_size=60), st.integers(0, 1 << 30))
def test_any_instant(steps: list[tuple[Any, ...]], seed: int) -> None:
    check(steps, seed, 12)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(SMOKE, max_examples=1000, phases=list(Phase))
@given(st.lists(step, min_size=15, max_size=150), st.integers(0, 1 << 30))
def test_any_instant_for_long(steps: list[tuple[Any, ...]], seed: int) -> None:
    check(steps, seed, 0)


CREATE, DELETE = ("create", "shop"), ("delete", "shop")
FILL = [("queue", "shop", "q"), ("session", "shop", b"c", False), ("session", "shop", b"d", True),
        ("bind", "shop", b"x", b"amq.topic"), ("retain", "shop", b"a/b"), ("retain", "shop", b"a/c")]


@pytest.mark.parametrize("steps", [
    pytest.param([CREATE, *FILL, ("sync",), DELETE, ("sync",), CREATE, ("sync",)], id="all of it in the journal"),
    pytest.param([CREATE, *FILL, ("finish",), DELETE, ("sync",), CREATE, *FILL, ("sync",), ("finish",)],
                 id="it is in the view, and another one in the journal"),
    pytest.param([CREATE, *FILL, ("checkpoint", 3), DELETE, ("checkpoint", 4), CREATE, ("checkpoint", 4), *FILL,
                  ("finish",)], id="it ends while the view is written"),
    pytest.param([CREATE, *FILL, ("finish",), ("crash", 0.999, "kill"), DELETE, CREATE, ("sync",),
                  ("crash", 0.999, "power"), *FILL, ("finish",), DELETE, ("finish",)], id="it came from the disk"),
])
def test_every_instant_of(steps: list[tuple[Any, ...]]) -> None:
    for seed in range(2):
        assert check(steps, seed, 0) > 10
