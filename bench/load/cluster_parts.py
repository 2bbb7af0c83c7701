"""The parts of `fluxmq bench cluster`: its options, rows and goals, and what a row runs on."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxmq.bench.load.brokers import Broker
from fluxmq.bench.load.cluster_nodes import ClusterNodes
from fluxmq.bench.load.options import LoadOptions
from fluxmq.bench.load.rabbitmq_cluster import RabbitCluster
from fluxmq.bench.load.runner import run_load

__all__ = ["TTL_MIN", "Bench", "ClusterOptions", "Figures", "Goal", "Row", "faults"]

Figures = dict[str, float]
TTL_MIN = 3.0


@dataclass(slots=True, kw_only=True)
class ClusterOptions:
    """only: keys of rows, empty for all. rounds: of each row. duration, warmup: seconds of a load. ttl: of the nodes'
    leases, seconds. scale: what counts of clients, messages and subscriptions are multiplied by."""

    only: tuple[str, ...] = ()
    rounds: int = 5
    duration: float = 5.0
    warmup: float = 1.0
    ttl: float = 10.0
    scale: float = 1.0
    folder: Path = field(default_factory=Path)


@dataclass(slots=True, frozen=True, kw_only=True)
class Goal:
    """A figure that is at least, or at most, `bound`; with plus_ttl the leases' time to live is added to it."""

    figure: str
    bound: float
    at_least: bool = False
    plus_ttl: bool = False


@dataclass(slots=True, frozen=True, kw_only=True)
class Row:
    """run: one round. ttl: overrides the options'. rabbitmq: nodes of it run beside."""

    key: str
    work: str
    run: Callable[[Bench], Figures]
    goals: tuple[Goal, ...]
    ttl: float = 0.0
    rabbitmq: bool = False


class Bench:
    """Three nodes and a single broker, while rows run. rabbitmq: three nodes of it, while rows run that ask for them.
    number: of the round, from 0."""

    def __init__(self, options: ClusterOptions, nodes: ClusterNodes, one: Broker) -> None:
        self.options = options
        self.nodes = nodes
        self.one = one
        self.rabbitmq: RabbitCluster | None = None
        self.number = 0

    def scaled(self, count: int) -> int:
        return max(1, int(count * self.options.scale))

    def load(self, subscribers: tuple[int, ...], **load: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Publishers at node 0, subscribers at these nodes; and the same load on the single broker."""
        timed = load | {"duration": self.options.duration, "warmup": self.options.warmup}
        addresses = tuple(self.nodes.address(number) for number in subscribers)
        ours = run_load(LoadOptions(addr=self.nodes.address(0), sub_addrs=addresses, **timed))
        return ours, run_load(LoadOptions(addr=self.one.addresses["tcp"], **timed))


def faults(figures: dict[str, Any]) -> Figures:
    return {what: float(count) for what in ("lost", "duplicates", "reordered") if (count := figures["total"][what])}
