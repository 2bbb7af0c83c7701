"""Prometheus text from a snapshot of the counters, which the compiled core keeps.

The classic text format, version 0.0.4, joined by hand as in queue_metrics.py: Prometheus' client library brings an HTTP
server, a registry of the whole process and families of objects, which cost each start a tenth of its time.
"""
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from fluxmq._core.errors import UsageError
from fluxmq.admin.process_metrics import process_metrics
from fluxmq.admin.queue_metrics import escaped_label, render_queues
from fluxmq.model.metrics import METRICS, Metric, QueueSnapshot, Snapshot

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BY_NAME = {metric.name: metric for metric in METRICS}
_SUMMARY_KEYS = {("sum",), ("count",)}


class Metrics:
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

    def render(self, queues: Sequence[str] = ()) -> bytes:
        """The page of /metrics. queues: names of those that are to be shown one by one; none: a bounded number."""
        snapshot = self._snapshot()
        if self._strict:
            _check(snapshot)
        lines: list[str] = []
        for metric in METRICS:
            measured = snapshot.get(metric.name)
            if measured is not None:
                lines += _head(metric)
                lines += _samples(metric, measured)
        for metric, value in process_metrics():
            lines += [*_head(metric), f"{metric.name} {_number(value)}"]
        page = "\n".join([*lines, ""]).encode()
        return page if self._queues is None else page + render_queues(self._queues(queues))


def _head(metric: Metric) -> tuple[str, str]:
    escaped = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {metric.name} {escaped}", f"# TYPE {metric.name} {metric.kind}"


def _number(value: float) -> str:
    """As the format, which is Go's, wants it."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _samples(metric: Metric, value: float | Mapping[tuple[str, ...], float]) -> Iterator[str]:
    """Its lines. A series of the table that the snapshot does not have is 0: it has not happened yet."""
    if metric.kind == "summary":
        parts = value if isinstance(value, Mapping) else {}
        for name in ("count", "sum"):
            yield f"{metric.name}_{name} {_number(parts.get((name,), 0.0))}"
    elif not metric.labels:
        yield f"{metric.name} {_number(0.0 if isinstance(value, Mapping) else value)}"
    else:
        series: dict[tuple[str, ...], float] = dict.fromkeys(product(*(label.values for label in metric.labels)), 0.0)
        for key, number in value.items() if isinstance(value, Mapping) else ():
            if _is_series(metric, key):
                series[key] = number
        for key, number in series.items():
            labels = ",".join(f'{label.name}="{escaped_label(part)}"'
                              for label, part in zip(metric.labels, key, strict=True))
            yield f"{metric.name}{{{labels}}} {_number(number)}"


def _is_series(metric: Metric, key: tuple[str, ...]) -> bool:
    return len(key) == len(metric.labels) and all(
        not label.values or part in label.values for label, part in zip(metric.labels, key, strict=True))


def _check(snapshot: Snapshot) -> None:
    """Raises UsageError when snapshot and table differ."""
    clustered = {metric.name for metric in METRICS if metric.clustered}
    needed = set(_BY_NAME) if clustered & set(snapshot) else set(_BY_NAME) - clustered
    unknown, missing = sorted(set(snapshot) - set(_BY_NAME)), sorted(needed - set(snapshot))
    if unknown or missing:
        raise UsageError(f"metrics not in the table: {unknown}; not in the snapshot: {missing}")
    for name, value in snapshot.items():
        metric = _BY_NAME[name]
        if isinstance(value, Mapping) != (bool(metric.labels) or metric.kind == "summary"):
            raise UsageError(f"{name}: a {'mapping' if isinstance(value, Mapping) else 'number'} is of the wrong form")
        for key in value if isinstance(value, Mapping) else ():
            if key not in _SUMMARY_KEYS if metric.kind == "summary" else not _is_series(metric, key):
                raise UsageError(f"{name}: {key} is not among its labels' values")
