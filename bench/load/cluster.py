"""Runs the rows of cluster_rows.py and shows their figures."""
from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fluxmq.bench.load.brokers import Needs, start_broker
from fluxmq.bench.load.cluster_nodes import ClusterNodes
from fluxmq.bench.load.cluster_parts import Bench, ClusterOptions, Figures, Goal, Row
from fluxmq.bench.load.cluster_rows import CLUSTER_ROWS
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.machine import describe, describe_machine
from fluxmq.bench.load.options import OptionsError
from fluxmq.bench.load.rabbitmq_cluster import RabbitCluster
from fluxmq.cluster.etcd.binary import find_binary

__all__ = ["ClusterOptions", "render_cluster", "run_cluster"]


class Clusters(ExitStack):
    """Runs rows; those that follow one another with the same leases share a cluster, unless one fails."""

    def __init__(self, options: ClusterOptions, say: Callable[[str], None]) -> None:
        super().__init__()
        self.options = options
        self.say = say
        self._bench: Bench | None = None
        self._ttl = 0.0
        self._beside = ExitStack()      # RabbitMQ, which runs only beside rows that ask for it

    def bench(self, row: Row) -> Bench:
        ttl = row.ttl or self.options.ttl
        if self._bench is None or self._ttl != ttl:
            self.end()
            nodes = self.enter_context(ClusterNodes(self.folder(self), ttl=ttl))
            needs = Needs(folder=self.folder(self), transports=("tcp", "amqp"))
            single = self.enter_context(start_broker("fluxmq", needs))
            self._beside = self.enter_context(ExitStack())
            self._bench, self._ttl = Bench(self.options, nodes, single), ttl
        if not row.rabbitmq:
            self._bench.rabbitmq = None
            self._beside.close()
        elif self._bench.rabbitmq is None:
            self._bench.rabbitmq = self._beside.enter_context(RabbitCluster(self.folder(self._beside)))
        return self._bench

    def folder(self, stack: ExitStack) -> Path:
        """An empty directory, removed with the stack."""
        return Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.options.folder)))

    def end(self) -> None:
        """Stops everything."""
        self._bench = None
        self.close()

    def run(self, row: Row) -> dict[str, Any]:
        ttl = row.ttl or self.options.ttl
        rounds: list[Figures] = []
        error = ""
        try:
            bench = self.bench(row)
            for bench.number in range(self.options.rounds):
                rounds.append(row.run(bench))
                self.say(f"  {row.key}: round {bench.number + 1} of {self.options.rounds}: {words(rounds[-1])}")
        except (LoadError, OSError, RuntimeError) as failure:
            error = f"{type(failure).__name__}: {failure}"
            self.say(f"  {row.key}: {error}")
            self.end()
        names = list(dict.fromkeys(name for figures in rounds for name in figures))
        medians = {name: statistics.median(figures.get(name, 0.0) for figures in rounds) for name in names}
        return {"key": row.key, "work": row.work, "ttl": ttl, "rounds": rounds, "medians": medians,
                "goals": [judged(goal, rounds, medians, ttl) for goal in row.goals if rounds], "error": error}


def judged(goal: Goal, rounds: list[Figures], medians: Figures, ttl: float) -> dict[str, Any]:
    bound, value = goal.bound + (ttl if goal.plus_ttl else 0), medians[goal.figure]
    worst = (min if goal.at_least else max)(figures[goal.figure] for figures in rounds)
    return {"figure": goal.figure, "bound": bound, "at_least": goal.at_least, "value": value, "worst": worst,
            "met": value >= bound if goal.at_least else value <= bound}


def words(figures: Figures) -> str:
    return ", ".join(f"{name} {value:,.0f}" if value >= 100 else f"{name} {value:.3g}"
                     for name, value in figures.items())


def run_cluster(options: ClusterOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs the rows. Raises OptionsError; ConfigError when there is no etcd. What fails in a row is in its `error`."""
    known = {row.key: row for row in CLUSTER_ROWS}
    for key in options.only:
        if key not in known:
            raise OptionsError(f"there is no row {key!r}; the rows are {', '.join(known)}")
    find_binary()
    machine = describe_machine(options.folder, 0.2 if options.scale < 1 else 2.0)
    rows = []
    with Clusters(options, say) as clusters:
        for row in [known[key] for key in options.only] or CLUSTER_ROWS:
            say(f"{row.key}: {row.work}")
            rows.append(clusters.run(row))
    return {"machine": machine, "rows": rows}


def render_cluster(results: dict[str, Any]) -> str:
    """All figures as text: medians, and each goal with the worst round."""
    lines = [describe(results["machine"]), ""]
    for row in results["rows"]:
        lines.append(f"{row['work']}: {words(row['medians']) or row['error']}")
        for goal in row["goals"]:
            sign = "≥" if goal["at_least"] else "≤"
            lines.append(f"    {goal['figure']} {sign} {goal['bound']:,g}: {'met' if goal['met'] else 'missed'} "
                         f"({goal['value']:,.4g}, worst {goal['worst']:,.4g})")
    return "\n".join(lines)
