"""Exchanges route as the naive ones do, whatever is declared, bound, taken away and asked, in whatever order."""
from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from oracle.exchange import Field, NaiveExchange, NaiveExchanges, headers_match, table, topic_matches, words_of

from fluxmq._core.exchange.exchange import Exchanges
from fluxmq._core.exchange.headers import sorted_table

TYPES = ["direct", "fanout", "topic", "headers"]
NAMES = st.sampled_from(["", "x", "y", "z", "w", "v"])
QUEUES = st.sampled_from(["q", "r", "s", "a"])
# Few words, so that patterns meet keys; the empty word among them, and words that look like wildcards and are none.
WORDS = st.sampled_from([b"", b"a", b"b", b"a*", b"#b", b"a-word-longer-than-16"])
KEYS = st.one_of(st.lists(WORDS, max_size=5).map(b".".join), st.just(b"q"))
PATTERNS = st.lists(st.one_of(WORDS, st.just(b"*"), st.just(b"#"), st.just(b"#")), max_size=6).map(b".".join)
FIELD_NAMES = [b"a", b"b", b"x-a", b"", b"ab"]

scalars = st.one_of(
    st.tuples(st.sampled_from("SSSx"), st.sampled_from([b"", b"1", b"v"])),
    st.tuples(st.sampled_from("bsIlLBuiT"), st.sampled_from([0, 1, 2, 127])),
    st.tuples(st.sampled_from("bsIlL"), st.sampled_from([-1, -2])),
    st.tuples(st.just("l"), st.sampled_from([2**53 + 1, -2**63])),
    st.tuples(st.just("T"), st.sampled_from([2**53 + 1, 2**53, 2**63, 2**64 - 1])),
    st.tuples(st.sampled_from("fd"), st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 2.0**53, float("inf"), -2.0**63,
                                                      float("nan")])),
    st.tuples(st.just("d"), st.sampled_from([2.0**63, 2.0**64, 1e300, 0.1])),
    st.tuples(st.just("t"), st.booleans()),
    st.tuples(st.just("D"), st.sampled_from([(0, 1), (1, 0)])),
    st.tuples(st.just("V"), st.none()),
)


def lists_of(inner: st.SearchStrategy[tuple[str, object]]) -> st.SearchStrategy[tuple[str, object]]:
    return st.one_of(
        st.tuples(st.just("A"), st.lists(inner, max_size=2)),
        st.tuples(st.just("F"), st.lists(st.tuples(st.sampled_from([b"n", b"m"]), inner).map(
            lambda pair: (pair[0], *pair[1])), max_size=2)))


values = st.recursive(scalars, lists_of, max_leaves=4)
simple = st.sampled_from([("S", b"1"), ("S", b"v"), ("I", 1), ("d", 1.0), ("V", None)])


def fields(of: st.SearchStrategy[tuple[str, object]]) -> st.SearchStrategy[list[Field]]:
    """Names that differ, in any order."""
    return st.lists(st.tuples(st.sampled_from(FIELD_NAMES), of), max_size=4, unique_by=lambda pair: pair[0]).map(
        lambda pairs: [(name, *it) for name, it in pairs])


@st.composite
def arguments(draw: st.DrawFn, of: st.SearchStrategy[tuple[str, object]]) -> list[Field]:
    asked = draw(fields(of))
    how = draw(st.sampled_from([None, b"all", b"any", b"all-with-x", b"any-with-x"]))
    if how is not None:
        asked.insert(draw(st.integers(0, len(asked))), (b"x-match", "S", how))
    return asked


@given(st.lists(PATTERNS, min_size=1, max_size=20), st.lists(KEYS, min_size=1, max_size=5), st.integers(0, 2**64 - 1))
def test_topics_match_by_the_rule(patterns: list[bytes], keys: list[bytes], seed: int) -> None:
    exchanges = Exchanges(64, seed)
    exchange = exchanges.declare(b"x", b"topic")
    for at, pattern in enumerate(patterns):
        exchanges.bind(exchange, exchanges.add_queue(b"%d" % at, at), pattern)
    for key in keys:
        route = exchanges.lookup(b"x", key)
        assert route is not None
        assert route.queues == [at for at, pattern in enumerate(patterns)
                                if topic_matches(words_of(pattern), words_of(key))]


@given(st.lists(st.one_of(arguments(values), arguments(simple)), min_size=1, max_size=10),
       st.lists(st.one_of(fields(values), fields(simple)), min_size=1, max_size=5), st.integers(0, 2**64 - 1))
@settings(max_examples=400)
def test_headers_match_by_the_rule(bound: list[list[Field]], messages: list[list[Field]], seed: int) -> None:
    exchanges = Exchanges(64, seed)
    exchange = exchanges.declare(b"x", b"headers")
    for at, one in enumerate(bound):
        exchanges.bind(exchange, exchanges.add_queue(b"%d" % at, at), b"", sorted_table(table(one)))
    for headers in messages:
        route = exchanges.lookup(b"x", b"", table(headers))
        assert route is not None
        assert route.queues == [at for at, one in enumerate(bound) if headers_match(one, headers)]


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_garbage_for_headers_is_harmless(bound: bytes, headers: bytes) -> None:
    exchanges = Exchanges(64, 1)
    exchange = exchanges.declare(b"x", b"headers")
    exchanges.bind(exchange, exchanges.add_queue(b"q", "q"), b"", bound)
    assert exchanges.lookup(b"x", b"", headers) is not None


class ExchangesAgainstOracle(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**64 - 1))
    def start(self, seed: int) -> None:
        self.real = Exchanges(16, seed)
        self.naive = NaiveExchanges()
        self.real.declare(b"", b"direct")
        self.naive.exchanges[""] = NaiveExchange("direct")

    @rule(name=NAMES, type_=st.sampled_from(TYPES), alternate=st.one_of(st.none(), NAMES), mqtt=st.booleans())
    def declare(self, name: str, type_: str, alternate: str | None, mqtt: bool) -> None:
        if name not in self.naive.exchanges:
            self.naive.exchanges[name] = NaiveExchange(type_, alternate, mqtt)
            self.real.declare(name.encode(), type_.encode(), mqtt=mqtt,
                              alternate=None if alternate is None else alternate.encode())

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name and self.naive.exchanges.pop(name, None) is not None:
            self.real.delete(name.encode())
            self.forget("exchange", name)

    @rule(name=QUEUES)
    def add_queue(self, name: str) -> None:
        if name not in self.naive.queues:
            self.naive.queues.add(name)
            self.real.add_queue(name.encode(), name)

    @rule(name=QUEUES)
    def remove_queue(self, name: str) -> None:
        if name in self.naive.queues:
            self.naive.queues.discard(name)
            self.real.remove_queue(name.encode())
            self.forget("queue", name)

    def forget(self, kind: str, name: str) -> None:
        for one in self.naive.exchanges.values():
            one.bindings = [binding for binding in one.bindings if binding[:2] != (kind, name)]

    def ends(self, source: str, kind: str, to: str) -> tuple:  # type: ignore[type-arg]
        ends = self.real.queues if kind == "queue" else self.real.exchanges
        return self.real.exchanges.get(source.encode()), ends.get(to.encode())

    @rule(data=st.data(), source=NAMES, key=st.one_of(KEYS, PATTERNS), asked=arguments(simple))
    def bind(self, data: st.DataObject, source: str, key: bytes, asked: list[Field]) -> None:
        kind = data.draw(st.sampled_from(["queue", "exchange"]))
        to = data.draw(NAMES if kind == "exchange" else QUEUES)
        start, end = self.ends(source, kind, to)
        if not source or (kind == "exchange" and not to) or start is None or end is None:
            return
        binding = (kind, to, key, sorted(asked))
        known = self.naive.exchanges[source].bindings
        made = self.real.bind(start, end, key, sorted_table(table(asked)))
        assert (made is None) == (binding in known)
        if binding not in known:
            known.append(binding)

    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        known = [(name, binding) for name, one in self.naive.exchanges.items() for binding in one.bindings]
        if known:
            source, binding = data.draw(st.sampled_from(known))
            kind, to, key, asked = binding
            self.naive.exchanges[source].bindings.remove(binding)
            start, end = self.ends(source, kind, to)
            assert self.real.unbind(start, end, key, sorted_table(table(asked))) is not None
            assert self.real.unbind(start, end, key, sorted_table(table(asked))) is None

    @rule(name=NAMES, key=KEYS, headers=fields(simple), again=st.booleans())
    def route(self, name: str, key: bytes, headers: list[Field], again: bool) -> None:
        expected = self.naive.route(name, key, headers)
        route = self.real.lookup(name.encode(), key, table(headers))
        if expected is None:
            assert route is None
            return
        assert route is not None
        assert (set(route.queues), route.mqtt) == expected
        assert len(route.queues) == len(expected[0]) and route.routed == bool(expected[0])
        order = list(self.real.queues)
        assert [order.index(queue.encode()) for queue in route.queues] == sorted(
            order.index(queue.encode()) for queue in route.queues)
        if not route.by_headers:
            assert self.real.lookup(name.encode(), key, b"") is route

    @invariant()
    def bindings_are_on_both_sides(self) -> None:
        if hasattr(self, "real"):
            ends = [*self.real.exchanges.values(), *self.real.queues.values()]
            assert {binding for one in self.real.exchanges.values() for binding in one.outbound} == {
                binding for end in ends for binding in end.inbound or ()}
            assert sum(len(one.bindings) for one in self.naive.exchanges.values()) == sum(
                len(one.outbound) for one in self.real.exchanges.values())


TestExchangesAgainstOracle = ExchangesAgainstOracle.TestCase
TestExchangesAgainstOracle.settings = settings(max_examples=150, stateful_step_count=60)
