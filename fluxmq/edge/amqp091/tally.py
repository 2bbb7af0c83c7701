"""Why connections of AMQP 0-9-1 ended or never began. Labels: see model/metrics.py."""
from __future__ import annotations

from fluxmq.model.metrics import METRICS

__all__ = ["Tally"]


def _zeroes(name: str) -> dict[str, int]:
    metric = next(metric for metric in METRICS if metric.name == name)
    return dict.fromkeys(metric.labels[0].values, 0)


class Tally:
    """Counters of all listeners of a node."""

    def __init__(self) -> None:
        self.accepted = 0
        self.disconnections = _zeroes("fluxmq_amqp_disconnections_total")
        self.refusals = _zeroes("fluxmq_amqp_refused_total")
        self.auth_failures = 0
