"""Prometheus text from a snapshot of the counters. They are kept in C by those who count; nothing is counted here.

A custom collector on a registry of its own: the process's global registry belongs to whoever embeds us.
"""
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from fluxmq._core.errors import UsageError
from fluxmq.admin.queue_metrics import render_queues
from fluxmq.model.metrics import METRICS, Metric, QueueSnapshot, Snapshot

__all__ = ["CONTENT_TYPE", "Metrics"]

# The classic text format (version 0.0.4) is what generate_latest writes for names like ours, and what everybody reads.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BY_NAME = {metric.name: metric for metric in METRICS}
_SUMMARY_KEYS = {("sum",), ("count",)}


class Metrics(Collector):
    """snapshot: called once per render, in the caller's thread; see model/metrics.py for its form.

    strict: a name or label value that the table does not have, or a metric that the snapshot does not have, is a
    UsageError; otherwise it is left out, because half a page serves an operator better than none. Tests are strict.
    queues: queues one by one, by name; see app/snapshot.py.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], strict: bool = False,
                 queues: Callable[[Sequence[str]], list[QueueSnapshot]] | None = None) -> None:
        self._snapshot = snapshot
        self._queues = queues
        self._strict = strict
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, queues: Sequence[str] = ()) -> bytes:
        """The page of /metrics. queues: names of those that are to be shown one by one; none: a bounded number."""
        page: bytes = generate_latest(self._registry)
        return page if self._queues is None else page + render_queues(self._queues(queues))

    def describe(self) -> list[Family]:
        """Nothing: the registry would otherwise take a snapshot when this registers, before there is anything."""
        return []

    def collect(self) -> Iterator[Family]:
        """One family per metric of the table, in its order."""
        snapshot = self._snapshot()
        if self._strict:
            _check(snapshot)
        for metric in METRICS:
            value = snapshot.get(metric.name)
            if value is not None:
                yield _family(metric, value)


def _family(metric: Metric, value: float | Mapping[tuple[str, ...], float]) -> Family:
    if metric.kind == "summary":
        parts = value if isinstance(value, Mapping) else {}
        return SummaryMetricFamily(metric.name, metric.help, count_value=int(parts.get(("count",), 0)),
                                   sum_value=parts.get(("sum",), 0.0))
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=[label.name for label in metric.labels])
    if not metric.labels:
        family.add_metric([], 0.0 if isinstance(value, Mapping) else value)
        return family
    series: dict[tuple[str, ...], float] = dict.fromkeys(product(*(label.values for label in metric.labels)), 0.0)
    for key, number in value.items() if isinstance(value, Mapping) else ():
        if _is_series(metric, key):
            series[key] = number
    for key, number in series.items():
        family.add_metric(key, number)
    return family


def _is_series(metric: Metric, key: tuple[str, ...]) -> bool:
    return len(key) == len(metric.labels) and all(
        not label.values or part in label.values for label, part in zip(metric.labels, key, strict=True))


def _check(snapshot: Snapshot) -> None:
    """Raises UsageError when snapshot and table differ."""
    unknown, missing = sorted(set(snapshot) - set(_BY_NAME)), sorted(set(_BY_NAME) - set(snapshot))
    if unknown or missing:
        raise UsageError(f"metrics not in the table: {unknown}; not in the snapshot: {missing}")
    for name, value in snapshot.items():
        metric = _BY_NAME[name]
        if isinstance(value, Mapping) != (bool(metric.labels) or metric.kind == "summary"):
            raise UsageError(f"{name}: a {'mapping' if isinstance(value, Mapping) else 'number'} is of the wrong form")
        for key in value if isinstance(value, Mapping) else ():
            if key not in _SUMMARY_KEYS if metric.kind == "summary" else not _is_series(metric, key):
                raise UsageError(f"{name}: {key} is not among its labels' values")
