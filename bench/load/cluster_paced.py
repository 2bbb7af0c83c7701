"""What the way between two nodes costs when there is little to do: messages one by one at a fixed rate, one in flight,
and nothing at all. `cores`: processor of all three nodes' brokers, without their etcd members; `one_cores`: of the
single broker under the same load."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fluxmq.bench.load.brokers import Broker
from fluxmq.bench.load.cluster_parts import Bench, Figures, Goal, Row, faults
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.options import LoadOptions
from fluxmq.bench.load.procinfo import cpu_between, read_cpu
from fluxmq.bench.load.runner import run_load

__all__ = ["PACED_ROWS"]


class Cores:
    """With it: how many processors these brokers kept busy meanwhile."""

    def __init__(self, *brokers: Broker) -> None:
        self._brokers = brokers
        self.used = 0.0

    def __enter__(self) -> Cores:
        self._before = [read_cpu(broker.pid, alone=True) for broker in self._brokers]
        self._since = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.monotonic() - self._since
        self.used = sum(cpu_between(before, read_cpu(broker.pid, alone=True))
                        for before, broker in zip(self._before, self._brokers, strict=True)) / seconds


def paced(rate: float, **load: Any) -> Callable[[Bench], Figures]:
    """From node 0 to node 1, and on the single broker."""
    def run(bench: Bench) -> Figures:
        timed = LoadOptions(addr=bench.nodes.address(0), sub_addrs=(bench.nodes.address(1),), rate=rate,
                            duration=bench.options.duration, warmup=bench.options.warmup, **load)
        with Cores(*bench.nodes.brokers.values()) as cluster:
            ours = run_load(timed)
        with Cores(bench.one) as single:
            one = run_load(LoadOptions(addr=bench.one.addresses["tcp"], rate=rate, duration=bench.options.duration,
                                       warmup=bench.options.warmup, **load))
        return {"cores": cluster.used, "one_cores": single.used, "rate": ours["delivered_per_second"],
                "p50_ms": ours["latency_us"]["p50"] / 1e3, "p99_ms": ours["latency_us"]["p99"] / 1e3,
                "one_p50_ms": one["latency_us"]["p50"] / 1e3, "one_p99_ms": one["latency_us"]["p99"] / 1e3} \
            | faults(ours)
    return run


def one_in_flight(bench: Bench) -> Figures:
    """QoS 1: the next message when the PUBACK of the last has come."""
    ours, one = bench.load((1,), qos=1, window=1)
    if ours["ack_latency_us"] is None:
        raise LoadError("nothing was measured: the run was too short")
    return {"rate": ours["delivered_per_second"], "one": one["delivered_per_second"],
            "p50_ms": ours["ack_latency_us"]["p50"] / 1e3, "p99_ms": ours["ack_latency_us"]["p99"] / 1e3} | faults(ours)


def idle(bench: Bench) -> Figures:
    with Cores(*bench.nodes.brokers.values()) as cluster, Cores(bench.one) as single:
        time.sleep(bench.options.duration)
    return {"cores": cluster.used, "one_cores": single.used}


PAIRS: dict[str, Any] = {"pubs": 5, "subs": 5, "topics": "pairs"}

PACED_ROWS = (
    Row(key="idle", work="nothing", run=idle, goals=(Goal(figure="cores", bound=0.03),)),
    Row(key="paced-1000", work="1 000 messages/s across two nodes, one by one, QoS 0", run=paced(1000.0, **PAIRS),
        goals=(Goal(figure="cores", bound=0.15),)),
    Row(key="paced-5000", work="5 000/s", run=paced(5000.0, **PAIRS),
        goals=(Goal(figure="cores", bound=0.35), Goal(figure="p50_ms", bound=0.18), Goal(figure="p99_ms", bound=0.8))),
    Row(key="paced-5000-qos1", work="5 000/s, QoS 1", run=paced(5000.0, qos=1, **PAIRS), goals=()),
    Row(key="paced-100000", work="100 000/s", run=paced(100_000.0, **PAIRS),
        goals=(Goal(figure="cores", bound=0.6),)),
    Row(key="one-qos1", work="one message in flight across two nodes, QoS 1", run=one_in_flight,
        goals=(Goal(figure="rate", bound=5000.0, at_least=True), Goal(figure="p99_ms", bound=0.6))),
)
