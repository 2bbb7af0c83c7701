"""Where an AMQP message goes: what a route costs, remembered and made anew.

    pytest bench/micro/bench_exchange.py --benchmark-columns=min,median,rounds

Asked from a loop in C, as a publisher's connection asks; extra_info has the nanoseconds per route. `cached`: exchange
and key have been seen. `topic`: 100 000 bindings, a tenth of them with wildcards, more keys than the cache holds.
`fan-out`: a hundred queues behind a fanout exchange, cached and made anew. `headers`: 1 000 bindings of three fields,
five headers in the message; such routes are never remembered. FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
import os
from typing import Any

import pytest

from fluxmq._core.exchange.exchange import Exchanges
from fluxmq._core.exchange.headers import sorted_table
from fluxmq._core.testing.exchange_probe import find_rounds
from fluxmq.bench.micro.timing import note_nanoseconds

SMOKE = os.environ.get("FLUXMQ_BENCH_SMOKE") == "1"
ROUNDS = 2 if SMOKE else 200
BINDINGS = 2_000 if SMOKE else 100_000
ENTRIES = 64 if SMOKE else 1024


def measure(benchmark: Any, exchanges: Exchanges, name: bytes, keys: list[bytes], headers: bytes, rounds: int,
            queues: int) -> None:
    assert find_rounds(exchanges, name, keys, headers, 1) == queues * len(keys)
    benchmark.pedantic(find_rounds, (exchanges, name, keys, headers, rounds), rounds=5, warmup_rounds=1)
    note_nanoseconds(benchmark, "ns_per_route", rounds * len(keys))


def field(name: bytes, text: bytes) -> bytes:
    return bytes((len(name),)) + name + b"S" + len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize("kind", ["cached", "new"])
def test_direct(benchmark: Any, kind: str) -> None:
    exchanges = Exchanges(ENTRIES, 1)
    direct = exchanges.declare(b"orders", b"direct")
    keys = [b"region.%05d" % i for i in range(ENTRIES // 16 if kind == "cached" else 8 * ENTRIES)]
    for key in keys:
        exchanges.bind(direct, exchanges.add_queue(key, key), key)
    measure(benchmark, exchanges, b"orders", keys, b"", ROUNDS * 80 if kind == "cached" else ROUNDS // 2, 1)


def test_topic(benchmark: Any) -> None:
    exchanges = Exchanges(ENTRIES, 1)
    topic = exchanges.declare(b"sensors", b"topic")
    queues = [exchanges.add_queue(b"%d" % i, i) for i in range(100)]
    for i in range(BINDINGS):
        middle = b"*" if i % 20 == 0 else b"#" if i % 20 == 10 else b"line-%d" % (i % 10)
        exchanges.bind(topic, queues[i % 100], b"plant-%d.%s.sensor-%d" % (i // 100, middle, i % 100))
    # Sensor 3 of each line of each plant: bound by its name, beside the wildcards of others.
    keys = [b"plant-%d.line-%d.sensor-%d" % (i // 100, i % 10, i % 100)
            for i in range(0, BINDINGS, max(1, BINDINGS // (8 * ENTRIES))) if i % 10]
    measure(benchmark, exchanges, b"sensors", keys, b"", max(1, ROUNDS // 20), 1)


@pytest.mark.parametrize("kind", ["cached", "new"])
def test_fan_out(benchmark: Any, kind: str) -> None:
    exchanges = Exchanges(ENTRIES, 1)
    fanout = exchanges.declare(b"news", b"fanout")
    for i in range(100):
        exchanges.bind(fanout, exchanges.add_queue(b"%d" % i, i), b"")
    keys = [b"%d" % i for i in range(ENTRIES // 16 if kind == "cached" else 8 * ENTRIES)]
    measure(benchmark, exchanges, b"news", keys, b"", ROUNDS * 80 if kind == "cached" else max(1, ROUNDS // 20), 100)


@pytest.mark.parametrize("how", [b"all", b"any"])
def test_headers(benchmark: Any, how: bytes) -> None:
    exchanges = Exchanges(ENTRIES, 1)
    headers = exchanges.declare(b"docs", b"headers")
    for i in range(1000):
        exchanges.bind(headers, exchanges.add_queue(b"%d" % i, i), b"", sorted_table(
            field(b"x-match", how) + field(b"format", b"pdf-%d" % i) + field(b"type", b"report-%d" % i)
            + field(b"lang", b"en-%d" % (i % 1000))))
    message = (field(b"format", b"pdf-77") + field(b"type", b"report-77") + field(b"lang", b"en-77")
               + field(b"author", b"somebody") + field(b"pages", b"12"))
    measure(benchmark, exchanges, b"docs", [b""] * 10, message, ROUNDS, 1)
