"""Any history of exchanges and bindings, cut off before any call that changes the disk, by a kill or by a loss of
power: what a restart finds is what was durable after some batch of the journal, and no earlier one than the last that
somebody was told of. Checkpoints take their steps in between; queues come and go, and their bindings with them.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crash.history import DISK_STEPS, SMOKE, History, Steps
from crash.queue_node import QueueNode
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from oracle.exchange import table

from fluxmq._core.exchange.exchange import Binding
from fluxmq.engine.exchanges.manager import PREDECLARED
from fluxmq.model.amqp import AmqpRefused
from fluxmq.model.queues import QueueSpec

State = tuple[frozenset[Any], frozenset[Any], frozenset[Any]]

names = st.sampled_from((b"x", b"y", b"z"))
sources = st.sampled_from((b"x", b"y", b"z", b"amq.topic", b"amq.headers"))
queues = st.sampled_from((b"q", b"r", b"e"))        # e: not durable
keys = st.sampled_from((b"", b"a.*", b"k"))
given_arguments = st.sampled_from((b"", table([(b"x-match", "S", b"any"), (b"a", "I", 1)])))
ends = st.one_of(st.tuples(st.just(False), queues), st.tuples(st.just(False), queues), st.tuples(st.just(True), names))
hosts = st.sampled_from((b"/", b"/", b"/", b"v"))
step = st.one_of(
    st.tuples(st.just("declare"), hosts, names, st.sampled_from((b"direct", b"fanout", b"topic", b"headers")),
              st.booleans(), st.booleans(), st.sampled_from((b"", table([(b"alternate-exchange", "S", b"y")])))),
    st.tuples(st.just("delete"), hosts, names),
    st.tuples(st.just("make"), queues), st.tuples(st.just("make"), queues), st.tuples(st.just("end"), queues),
    st.tuples(st.just("bind"), hosts, sources, ends, keys, given_arguments),
    st.tuples(st.just("bind"), hosts, sources, ends, keys, given_arguments),
    st.tuples(st.just("bind"), hosts, sources, ends, keys, given_arguments),
    st.tuples(st.just("unbind"), st.floats(0, 0.999)), st.tuples(st.just("unbind"), st.floats(0, 0.999)),
    *DISK_STEPS,
    st.tuples(st.just("crash"), st.floats(0, 0.999), st.sampled_from(("kill", "power", "torn"))),
)


def shown(binding: Binding) -> tuple[Any, ...]:
    return (binding.source.name, type(binding.destination).__name__, binding.destination.name, binding.key,
            binding.arguments)


class ExchangeHistory(History):
    def __init__(self, directory: Path, seed: int, cuts_max: int) -> None:
        super().__init__(directory, seed, cuts_max)
        self.add_vhost()

    def state_of(self, node: QueueNode) -> State:
        """What of it is durable."""
        exchanges, bindings = [], []
        for host, known in node.exchanges.vhosts.items():
            for one in known.exchanges.values():
                if one.durable and one.name not in PREDECLARED:
                    exchanges.append((host, one.name, one.kind, one.auto_delete, one.internal, one.alternate,
                                      one.data.arguments))
                bindings += [(host, *shown(binding)) for binding in one.outbound if one.durable
                             and binding.destination.durable]
        return (frozenset(exchanges), frozenset(bindings),
                frozenset(name for (_, name), state in node.manager.queues.items() if state.queue.durable))

    def add_vhost(self) -> None:
        """The second one, if a crash took it away or nobody made it."""
        number = self.node.in_turn(lambda: self.node.hub.namespaces.add(b"v"))
        self.node.exchanges.add_vhost(b"v")
        self.snapshots[number] = self.state_of(self.node)

    def ask(self, what: Any, *arguments: Any, **named: Any) -> None:
        """One turn, and what is known after its batch. What is refused changes nothing, and records nothing."""
        def turn() -> None:
            before = self.state_of(self.node), self.node.hub.ledger.records
            try:
                what(*arguments, **named)
            except AmqpRefused:
                assert before == (self.state_of(self.node), self.node.hub.ledger.records)
            else:
                assert before[0] == self.state_of(self.node) or before[1] != self.node.hub.ledger.records, (
                    "who asked could not know that it must wait")
        self.do(turn)

    def do_declare(self, host: bytes, name: bytes, type_: bytes, durable: bool, auto_delete: bool,
                   arguments: bytes) -> None:
        self.ask(self.node.exchanges.declare, host, name, type_, durable=durable, auto_delete=auto_delete,
                arguments=arguments)

    def do_delete(self, host: bytes, name: bytes) -> None:
        self.ask(self.node.exchanges.delete, host, name)

    def do_make(self, name: bytes) -> None:
        for host in (b"/", b"v"):
            self.ask(self.node.manager.declare, QueueSpec(name=name.decode(), namespace=host.decode(),
                                                         type="ephemeral" if name == b"e" else "classic"))

    def do_end(self, name: bytes) -> None:
        if (b"/", name) in self.node.manager.queues:
            self.ask(self.node.manager.delete, (b"/", name))

    def do_bind(self, host: bytes, source: bytes, end: tuple[bool, bytes], key: bytes, arguments: bytes) -> None:
        self.ask(self.node.exchanges.bind, host, source, end[1], key, arguments, to_exchange=end[0])

    def do_unbind(self, which: float) -> None:
        there = sorted(((host, *shown(binding)) for host, known in self.node.exchanges.vhosts.items()
                        for one in known.exchanges.values() for binding in one.outbound))
        if there:
            host, source, kind, end, key, arguments = there[int(which * len(there))]
            self.ask(self.node.exchanges.unbind, host, source, end, key, arguments, to_exchange=kind == "Exchange")

    def do_crash(self, which: float, how: str) -> None:
        super().do_crash(which, how)
        self.add_vhost()


@SMOKE
@given(st.lists(step, min_size=15, max_size=60), st.integers(0, 1 << 30))
def test_any_instant(steps: Steps, seed: int) -> None:
    ExchangeHistory.play(steps, seed, 12)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(SMOKE, max_examples=1000, phases=list(Phase))
@given(st.lists(step, min_size=15, max_size=150), st.integers(0, 1 << 30))
def test_any_instant_for_long(steps: Steps, seed: int) -> None:
    ExchangeHistory.play(steps, seed, 0)


MAKE, X = ("make", b"q"), ("declare", b"/", b"x", b"topic", True, False, b"")
BIND = ("bind", b"/", b"x", (False, b"q"), b"k", b"")
BIND_TOPIC = ("bind", b"/", b"amq.topic", (False, b"q"), b"k", b"")


@pytest.mark.parametrize("steps", [
    pytest.param([MAKE, X, BIND, ("finish",), ("end", b"q"), MAKE, ("sync",), ("crash", 0.999, "kill"), ("finish",),
                  ("crash", 0.999, "kill")], id="a queue made anew has none of the bindings of the former"),
    pytest.param([MAKE, X, BIND, ("finish",), ("delete", b"/", b"x"), X, ("checkpoint", 4), ("finish",)],
                 id="nor has an exchange"),
    pytest.param([MAKE, BIND_TOPIC, ("sync",), ("crash", 0.999, "power"), BIND_TOPIC, ("finish",),
                  ("bind", b"v", b"amq.topic", (False, b"q"), b"k", b"")],
                 id="the predeclared ones keep their bindings, each virtual host its own"),
    pytest.param([MAKE, X, BIND, ("checkpoint", 1), ("unbind", 0.0), BIND, ("checkpoint", 4), ("unbind", 0.0)],
                 id="a binding that comes and goes while the view is written"),
    pytest.param([("declare", b"/", b"x", b"fanout", True, True, b""), MAKE, BIND, ("finish",), ("unbind", 0.0),
                  ("sync",), ("finish",)], id="an exchange that deletes itself does not come back"),
])
def test_every_instant_of(steps: Steps) -> None:
    for seed in range(3):
        assert ExchangeHistory.play(steps, seed, 0) > 10
