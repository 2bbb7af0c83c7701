"""The crossing of everything hot, without sockets: route a topic, deliver a message.

    pytest bench/micro/bench_route.py --benchmark-columns=min,median,rounds

`route` looks topics up in the match cache (hit) or behind it (miss: more topics than it has entries). `deliver` is
everything between a parsed PUBLISH and the outbound buffers, for 64-byte payloads and topics of 8 bytes: extra_info has
the nanoseconds per delivery. FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
import os
from typing import Any

import pytest

from fluxmq._core.testing.hub_probe import HubProbe
from fluxmq.bench.micro.timing import note_nanoseconds

SMOKE = os.environ.get("FLUXMQ_BENCH_SMOKE") == "1"
ROUNDS = 20 if SMOKE else 2_000
PAYLOAD = b"x" * 64


@pytest.mark.parametrize("kind", ["hit", "miss"])
def test_route(benchmark: Any, kind: str) -> None:
    entries = 1 << 10
    topics = [b"t/%06d" % i for i in range(256 if kind == "hit" else 8 * entries)]
    probe = HubProbe(1, route_entries=entries)
    probe.subscribe(0, b"t/#")
    rounds = ROUNDS if kind == "hit" else max(1, ROUNDS // 100)
    assert probe.route(topics, 1) == len(topics)
    benchmark.pedantic(probe.route, (topics, rounds), rounds=5, warmup_rounds=1)
    note_nanoseconds(benchmark, "ns_per_route", rounds * len(topics))


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("subscribers", [1, 100])
def test_deliver(benchmark: Any, subscribers: int, qos: int, level: int) -> None:
    probe = HubProbe(subscribers, level)
    for i in range(subscribers):
        probe.subscribe(i, b"sensor/1", qos)
    rounds = max(32, ROUNDS // subscribers)
    header = 1 + 1 + 2 + 8 + (2 if qos else 0) + (1 if level == 5 else 0)
    assert probe.publish(b"sensor/1", PAYLOAD, qos, 32) == 32 * subscribers * (header + 64)
    benchmark.pedantic(probe.publish, (b"sensor/1", PAYLOAD, qos, rounds), rounds=5, warmup_rounds=1)
    note_nanoseconds(benchmark, "ns_per_delivery", rounds * subscribers)
