"""Namespaces come, are filled, end and come again, cut off before any call that changes the disk, by a kill or by a
loss of power: a restart finds what was durable after some batch of the journal, and no earlier one than the last that
somebody was told of. So a namespace is all there or not at all, and what is made under an old name is empty.
"""
from __future__ import annotations

from typing import Any

import pytest
from crash.history import DISK_STEPS, SMOKE, History, Steps
from crash.queue_node import QueueNode
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kit.carrier import Carrier

from fluxmq.engine.exchanges.manager import PREDECLARED
from fluxmq.engine.namespaces import NamespaceAdmin
from fluxmq.engine.sessions.state import EXPIRY_NEVER, Will
from fluxmq.model.queues import QueueSpec

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
    *DISK_STEPS,
    st.tuples(st.just("crash"), st.floats(0, 0.999), st.sampled_from(("kill", "power", "torn"))),
)


class NamespaceHistory(History):
    def state_of(self, node: QueueNode) -> State:
        """What of each namespace is durable."""
        broker, found = node.keeper.broker, {}
        for name, namespace in node.hub.namespaces.items():
            exchanges = node.exchanges.vhosts.get(name)
            known = exchanges.exchanges.values() if exchanges is not None else ()
            found[namespace.text] = {
                "kept": namespace.kept,
                "sessions": {session.name: (sorted(session.subscriptions), session.queued,
                                            session.data.will is not None)
                             for address, session in broker.sessions.items() if address[0] == name},
                "queues": {address[1]: state.queue.waiting for address, state in node.manager.queues.items()
                           if address[0] == name},
                "exchanges": {one.name for one in known if one.name not in PREDECLARED},
                "bindings": sorted((one.name, binding.destination.name) for one in known for binding in one.outbound),
                "retained": sorted(bytes(topic) for topic, _ in namespace.topics.retained),
                "counted": (namespace.sessions, namespace.queues, namespace.topics.retained_count)}
        return found

    def run(self, what: str, *arguments: Any) -> None:
        """A step on the disk, or a turn in which something is done to a namespace that is there."""
        if hasattr(self, f"do_{what}"):
            super().run(what, *arguments)
        elif what == "create" or arguments[0].encode() in self.node.hub.namespaces:
            self.do(lambda: getattr(self, f"in_{what}")(*arguments))

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


@SMOKE
@given(st.lists(step, min_size=15, max_size=60), st.integers(0, 1 << 30))
def test_any_instant(steps: Steps, seed: int) -> None:
    NamespaceHistory.play(steps, seed, 12)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(SMOKE, max_examples=1000, phases=list(Phase))
@given(st.lists(step, min_size=15, max_size=150), st.integers(0, 1 << 30))
def test_any_instant_for_long(steps: Steps, seed: int) -> None:
    NamespaceHistory.play(steps, seed, 0)


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
def test_every_instant_of(steps: Steps) -> None:
    for seed in range(2):
        assert NamespaceHistory.play(steps, seed, 0) > 10
