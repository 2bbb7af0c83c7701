"""The parts of side-by-side tables: rows, their sides, and goals.

A row has sides; a round runs each side once, on a broker started for it, in turn. A goal compares one figure of two
sides round by round, or takes one figure of one side as it is.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["METRICS", "Goal", "Group", "Kind", "Metric", "Row", "Side"]

Metric = Literal["rate", "confirmed", "cpu", "p50", "p99", "ack_p99", "storm", "idle_bytes", "megabytes", "of_disk",
                 "bytes_each", "restart", "channel_bytes"]
# What runs: the MQTT generator, a storm of connections, the AMQP generator, idle AMQP connections, a replay from disk,
# a backlog that waits, or the disk alone.
Kind = Literal["load", "storm", "amqp", "amqp-idle", "replay", "backlog", "fsync"]
Group = Literal["topics", "queues", "amqp"]

# metric → (unit in a goal, name in a table)
METRICS: dict[Metric, tuple[str, str]] = {
    "rate": ("/s", ""), "confirmed": ("/s", "confirmed"), "cpu": (" µs", "CPU"), "p50": (" µs", "p50"),
    "p99": (" µs", "p99"), "ack_p99": (" µs", "confirm p99"), "storm": ("/s", "storm"),
    "idle_bytes": (" B", "bytes each"),
    "megabytes": (" MB/s", "MB/s"), "of_disk": (" ×", "of the disk's own rate"),
    "channel_bytes": (" B", "bytes per channel"),
    "bytes_each": (" B", "bytes per message"), "restart": (" s", "restart"),
}


@dataclass(slots=True, frozen=True, kw_only=True)
class Side:
    """One way to run a row. broker: "ours" or "theirs", which the command line may redirect, another broker's or a
    floor's name, or "" for none.

    load: fields of LoadOptions that differ from the row's. kind: where it is not the row's.
    """

    broker: str
    load: dict[str, Any] = field(default_factory=dict)
    kind: Kind | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Goal:
    """`metric` of side `of`, divided by that of side `to` when there is one, is at least or at most `bound`."""

    metric: Metric
    of: str
    to: str | None = None
    at_least: bool = True
    bound: float = 1.0

    @property
    def text(self) -> str:
        sign = "≥" if self.at_least else "≤"
        unit = METRICS[self.metric][0]
        return f"{sign} {self.bound:g} ×" if self.to else f"{sign} {self.bound:g}{unit}"

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(slots=True, frozen=True, kw_only=True)
class Row:
    """One line of work. load: fields of LoadOptions, or of the options of its kind; smoke: what changes then.

    slices: number of parts into which each round is divided, for figures that depend on the disk, whose speed changes
    from second to second.
    """

    key: str
    work: str
    load: dict[str, Any]
    sides: dict[str, Side]
    goals: tuple[Goal, ...]
    smoke: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "load"
    group: Group = "topics"
    slices: int = 1
