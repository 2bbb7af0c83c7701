"""A broker routes as the naive exchanges of tests/oracle/exchange.py do, with fields of every kind and patterns of
every shape. Against RabbitMQ (`--amqp-broker=rabbitmq`) this shows that the oracle is right."""
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from kit.amqp_wire import Wire
from oracle.amqp091 import Field as Typed
from oracle.exchange import Field, headers_match, topic_matches, words_of

BINDINGS, MESSAGES = 60, 120
Value = tuple[str, Any]

SCALARS: list[Value] = [
    *(("S", text) for text in (b"", b"1", b"v")), ("x", b"1"), ("x", b"v"),
    *((kind, number) for kind in "bsIlBuiT" for number in (0, 1, 2, 127)), *((kind, -1) for kind in "bsIl"),
    *((kind, number) for kind in "fd" for number in (0.0, -0.0, 1.0, -1.0, 0.5, 2.0**53)),
    ("l", 2**53 + 1), ("T", 2**53), ("T", 2**63), ("d", 2.0**63), ("d", 0.1), ("f", 0.1),
    ("t", True), ("t", False), ("D", (0, 1)), ("D", (1, 0)), *[("V", None)] * 6,
]


def some_value(chance: random.Random, depth: int = 0) -> Value:
    if depth < 2 and chance.random() < 0.25:
        inner = [some_value(chance, depth + 1) for _ in range(chance.randrange(3))]
        if chance.random() < 0.5:
            return "A", inner
        return "F", [(name, *one) for name, one in zip((b"n", b"m"), inner, strict=False)]
    return chance.choice(SCALARS)


def some_fields(chance: random.Random) -> list[Field]:
    names = [b"a", b"b", b"x-a", b"ab"]
    return [(name, *some_value(chance)) for name in chance.sample(names, chance.randrange(4))]


def typed(kind: str, value: Any) -> Typed:
    if kind == "A":
        return Typed(kind, [typed(*one) for one in value])
    return Typed(kind, as_table(value)) if kind == "F" else Typed(kind, value)


def as_table(fields: list[Field]) -> dict[str, Typed]:
    return {name.decode(): typed(kind, value) for name, kind, value in fields}


def bodies(wire: Wire, queue: str) -> set[int]:
    found = set()
    while (content := wire.get(1, queue)) is not None:
        assert int(content.body) not in found
        found.add(int(content.body))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_headers(wire: Wire, name: Callable[[str], str], seed: int) -> None:
    chance = random.Random(seed)
    bindings: list[list[Field]] = [some_fields(chance) for _ in range(BINDINGS)]
    for one in bindings:
        if (how := chance.choice((None, b"all", b"any", b"all-with-x", b"any-with-x"))) is not None:
            one.insert(chance.randrange(len(one) + 1), (b"x-match", "S", how))
    # Most messages have the fields of some binding, a few of them changed.
    messages = [[(field, *(value if chance.random() < 0.8 else some_value(chance)))
                 for field, *value in chance.choice(bindings) if field != b"x-match"] for _ in range(MESSAGES)]
    exchange = name("x")
    wire.call(1, "exchange.declare", exchange=exchange, type="headers", auto_delete=True)
    queues = [wire.call(1, "queue.declare", exclusive=True)["queue"] for _ in bindings]
    for queue, one in zip(queues, bindings, strict=True):
        wire.call(1, "queue.bind", queue=queue, exchange=exchange, arguments=as_table(one))
    for at, headers in enumerate(messages):
        wire.publish(1, exchange, "", b"%d" % at, {"headers": as_table(headers)})
    for queue, one in zip(queues, bindings, strict=True):
        assert bodies(wire, queue) == {at for at, headers in enumerate(messages) if headers_match(one, headers)}, one


@pytest.mark.parametrize("seed", range(3))
def test_topics(wire: Wire, name: Callable[[str], str], seed: int) -> None:
    chance = random.Random(seed)
    words = [b"a", b"b", b"", b"a*"]
    patterns = sorted({b".".join(chance.choices([*words, b"*", b"#", b"#"], k=chance.randrange(6)))
                       for _ in range(BINDINGS)})
    keys = [b".".join(chance.choices(words, k=chance.randrange(5))) for _ in range(MESSAGES)]
    exchange = name("x")
    wire.call(1, "exchange.declare", exchange=exchange, type="topic", auto_delete=True)
    queues = [wire.call(1, "queue.declare", exclusive=True)["queue"] for _ in patterns]
    for queue, pattern in zip(queues, patterns, strict=True):
        wire.call(1, "queue.bind", queue=queue, exchange=exchange, routing_key=pattern.decode())
    for at, key in enumerate(keys):
        wire.publish(1, exchange, key.decode(), b"%d" % at)
    for queue, pattern in zip(queues, patterns, strict=True):
        assert bodies(wire, queue) == {at for at, key in enumerate(keys)
                                       if topic_matches(words_of(pattern), words_of(key))}, pattern
