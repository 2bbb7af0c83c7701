"""Prometheus text of queues one by one. Their number is the caller's to bound: a page is written on the loop's thread,
so this is plain joining of text, a microsecond a line.
"""
from collections.abc import Mapping, Sequence
from itertools import product

from fluxmq.model.metrics import QUEUE_METRICS, Metric, QueueSnapshot

__all__ = ["escaped_label", "render_queues"]

_PREFIX = "fluxmq_queue_"


def escaped_label(text: str) -> str:
    """A label's value as the text format wants it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def render_queues(rows: Sequence[QueueSnapshot]) -> bytes:
    """What follows the totals on the page of /metrics; b"" for no queues."""
    if not rows:
        return b""
    names = [escaped_label(row.name) for row in rows]
    lines: list[str] = []
    for metric in QUEUE_METRICS:
        lines += (f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}")
        key = metric.name.removeprefix(_PREFIX)
        for name, row in zip(names, rows, strict=True):
            if key == "group_lag":
                lines += [f'{metric.name}{{queue="{name}",group="{escaped_label(group)}"}} {lag}'
                          for group, lag in row.lags.items()]
            else:
                lines += _series(metric, name, row.values[key])
    return "\n".join([*lines, ""]).encode()


def _series(metric: Metric, queue: str, value: float | Mapping[tuple[str, ...], float]) -> list[str]:
    if not isinstance(value, Mapping):
        return [f'{metric.name}{{queue="{queue}"}} {value}']
    labels = metric.labels[1:]
    series = []
    for parts in product(*(label.values for label in labels)):
        inside = ",".join(f'{label.name}="{part}"' for label, part in zip(labels, parts, strict=True))
        series.append(f'{metric.name}{{queue="{queue}",{inside}}} {value.get(parts, 0)}')
    return series
