"""Compares FluxMQ with other brokers: every row of scenarios.py in interleaved rounds; one table, one JSON document.

A round starts each side's broker afresh, alone on the first processor, loads it from the second, and stops it. (At
smoke size the figures are meaningless, and slow or repeated steps are done once.) Sides take turns in going first, so
that a machine that becomes slower is slower for all. What is compared is compared within a round; the table shows the
median over rounds with smallest and largest.
"""
from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fluxmq.bench.load.amqp_idle import IdleOptions, run_amqp_idle
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_rows import AMQP_ROWS, AMQP_SMOKE
from fluxmq.bench.load.amqp_runner import run_amqp
from fluxmq.bench.load.brokers import Broker, BrokerError, Needs, start_broker
from fluxmq.bench.load.certs import Certificates, make_certificates
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.floors import FloorError, fsync_latency
from fluxmq.bench.load.machine import describe_machine
from fluxmq.bench.load.options import LoadOptions, OptionsError
from fluxmq.bench.load.parts import METRICS, Goal, Kind, Metric, Row, Side
from fluxmq.bench.load.replay import ReplayOptions, run_replay
from fluxmq.bench.load.runner import run_load
from fluxmq.bench.load.scenarios import ROWS
from fluxmq.bench.load.storms import StormOptions, run_storm

__all__ = ["CompareOptions", "Comparison", "compare", "metric_of"]

Figures = dict[str, Any]
# RabbitMQ needs ten seconds to start, and a run deletes its queues there.
SHARED_AT_SMOKE = frozenset({"rabbitmq"})


@dataclass(slots=True, kw_only=True)
class CompareOptions:
    """rounds: of each row; duration, warmup: seconds of each side's run. ours, theirs: names from BROKERS.

    only: keys of rows, empty for all. group: of the rows when `only` is empty, "" for all. folder: where brokers keep
    their data (None: the system's temporary directory).
    batch: most messages a publisher sends at a time, 0 for its window. pin: brokers and load on a processor each.
    """

    rounds: int = 7
    duration: float = 5.0
    warmup: float = 1.0
    smoke: bool = False
    only: tuple[str, ...] = ()
    group: str = ""
    ours: str = "fluxmq"
    theirs: str = "mosquitto"
    folder: Path | None = None
    batch: int = 0
    pin: bool = True


@contextmanager
def pinned(pin: bool) -> Iterator[frozenset[int]]:
    """Keeps this process on the second processor; yields the set with the first, empty if there is only one."""
    own = os.sched_getaffinity(0)
    cores = sorted(own)
    if not pin or len(cores) < 2:
        yield frozenset()
        return
    os.sched_setaffinity(0, {cores[1]})
    try:
        yield frozenset({cores[0]})
    finally:
        os.sched_setaffinity(0, own)


def metric_of(metric: Metric, figures: Figures) -> float | None:
    """One figure of a run by its name in goals; None if the run has none (or 0, which cannot be a divisor)."""
    latency = figures.get("latency_us") or {}
    value = {
        "rate": figures.get("delivered_per_second"),
        "cpu": figures.get("broker_cpu_us_per_message"),
        "p50": latency.get("p50"),
        "p99": latency.get("p99"),
        "ack_p99": (figures.get("ack_latency_us") or {}).get("p99"),
        "confirmed": figures.get("acked_per_second"),
        "storm": figures.get("per_second"),
        "idle_bytes": (figures.get("broker_memory") or {}).get("bytes_per_connection"),
        "channel_bytes": (figures.get("broker_memory") or {}).get("bytes_per_channel"),
        "megabytes": figures.get("megabytes_per_second"),
        "of_disk": figures.get("of_disk"),
        "bytes_each": figures.get("bytes_per_message"),
        "restart": figures.get("restart_seconds"),
    }[metric]
    return float(value) if value else None


def goal_result(goal: Goal, rounds: list[dict[str, Figures]]) -> dict[str, Any]:
    """Median, smallest and largest of the goal's figure over the rounds that have it, and whether it is met."""
    values = []
    for figures in rounds:
        over = metric_of(goal.metric, figures.get(goal.of, {}))
        under = metric_of(goal.metric, figures.get(goal.to, {})) if goal.to else 1.0
        if over is not None and under is not None:
            values.append(over / under)
    result: dict[str, Any] = {"metric": goal.metric, "of": goal.of, "to": goal.to, "goal": goal.text, "met": None}
    if values:
        median = statistics.median(values)
        result |= {"median": median, "min": min(values), "max": max(values), "met": goal.met(median)}
    return result


class Comparison:
    """The state of one `fluxmq bench compare`. Leaving its context stops the brokers that it keeps running."""

    def __init__(self, options: CompareOptions, folder: Path, cores: frozenset[int],
                 say: Callable[[str], None]) -> None:
        self.shared: dict[str, Broker] = {}
        self.stack = ExitStack()
        self.options = options
        self.folder = folder
        self.cores = cores
        self.say = say
        self.certificates: Certificates | None = None

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def broker(self, name: str, needs: Needs) -> AbstractContextManager[Broker]:
        """Returns a broker for this run, stopped by its context; at smoke size one may serve several runs."""
        if not self.options.smoke or name not in SHARED_AT_SMOKE:
            return start_broker(name, needs)
        if name not in self.shared:
            folder = self.folder / name
            folder.mkdir(exist_ok=True)
            self.shared[name] = self.stack.enter_context(start_broker(name, replace(needs, folder=folder)))
        return nullcontext(self.shared[name])

    def needs(self, kind: Kind, load: dict[str, Any], folder: Path) -> Needs:
        transport = "amqp" if kind in ("amqp", "amqp-idle") else load.get("transport", "tcp")
        if transport in ("tls", "wss") and self.certificates is None:
            self.certificates = make_certificates(self.folder)
        return Needs(folder=folder, transports=(transport,), certificates=self.certificates,
                     pairs=load.get("topics") == "pairs", cores=self.cores,
                     queue=load.get("queue", "") if kind == "load" else "")

    def broker_of(self, side: Side) -> str:
        return {"ours": self.options.ours, "theirs": self.options.theirs}.get(side.broker, side.broker)

    def run_side(self, row: Row, side: Side) -> Figures:
        """Start the side's broker, load it, stop it."""
        seconds = self.options.duration / self.slices(row)
        name = self.broker_of(side)
        kind: Kind = side.kind or row.kind
        load = (row.load if kind == row.kind else AMQP_ROWS[row.key] if kind == "amqp" else {}) | side.load
        if self.options.smoke:
            load |= AMQP_SMOKE.get(row.key, {}) if kind == "amqp" else row.smoke
        with tempfile.TemporaryDirectory(prefix=f"{row.key}-", dir=self.folder) as scratch:
            needs = self.needs(kind, load, Path(scratch))
            if kind == "fsync":
                return self.disk(needs.folder, seconds, **load)
            if kind == "replay":
                return run_replay(name, needs, ReplayOptions(**load))
            with self.broker(name, needs) as broker:
                return self.load(kind, load, broker, seconds)

    def slices(self, row: Row) -> int:
        return 1 if self.options.smoke else row.slices

    def disk(self, folder: Path, seconds: float, block: int, **_: Any) -> Figures:
        """The floor under a confirm: a loop of append and fdatasync."""
        latency = fsync_latency(folder, seconds, block)
        return {"seconds": seconds, "acked_per_second": latency.count / seconds, "ack_latency_us": latency.summary()}

    def load(self, kind: Kind, load: dict[str, Any], broker: Broker, seconds: float) -> Figures:
        load = load | {"broker_pid": broker.pid}
        if kind == "storm":
            return run_storm(StormOptions(addr=broker.addresses["tcp"], **load))
        if kind == "amqp-idle":
            return run_amqp_idle(IdleOptions(addr=broker.addresses["amqp"], **load))
        if kind == "amqp":
            return run_amqp(AmqpOptions(addr=broker.addresses["amqp"], duration=seconds,
                                        warmup=self.options.warmup, batch=self.options.batch, **load))
        transport = load.get("transport", "tcp")
        options = LoadOptions(duration=seconds, warmup=self.options.warmup, batch=self.options.batch,
                              **load)
        options.addr = broker.addresses[transport]
        if self.certificates is not None:
            options.cafile = str(self.certificates.cafile)
        return run_load(options)

    def run_row(self, row: Row) -> dict[str, Any]:
        rounds: list[dict[str, Figures]] = []
        errors: dict[str, str] = {}
        names = list(row.sides)
        times = self.options.rounds * self.slices(row)
        for number in range(times):
            figures: dict[str, Figures] = {}
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                if name in errors:
                    continue
                try:
                    figures[name] = self.run_side(row, row.sides[name])
                except (BrokerError, FloorError, LoadError, OSError) as error:
                    errors[name] = f"{type(error).__name__}: {error}"
                    self.say(f"  {row.key}: {name} fails: {error}")
            rounds.append(figures)
            self.say(f"  {row.key}: round {number + 1} of {times}: " + ", ".join(
                f"{name} {headline(figures[name])}" for name in names if name in figures))
        return {"key": row.key, "work": row.work, "rounds": rounds, "errors": errors,
                "brokers": {name: self.broker_of(side) for name, side in row.sides.items()},
                "goals": [goal_result(goal, rounds) for goal in row.goals],
                "medians": {name: medians(name, rounds) for name in names}}


def headline(figures: Figures) -> str:
    rate = metric_of("rate", figures) or metric_of("confirmed", figures) or metric_of("storm", figures) or 0.0
    faults = [f"{key} {figures['total'][key]}" for key in ("lost", "duplicates", "reordered", "foreign", "stalls",
                                                           "overruns", "refused") if figures.get("total", {}).get(key)]
    return f"{rate:,.0f}/s" + (f" ({', '.join(faults)})" if faults else "")


def medians(name: str, rounds: list[dict[str, Figures]]) -> dict[str, float | None]:
    """Median of every figure of one side."""
    found: dict[str, float | None] = {}
    for metric in METRICS:
        values = [v for figures in rounds if name in figures and (v := metric_of(metric, figures[name])) is not None]
        found[metric] = statistics.median(values) if values else None
    return found


def chosen(options: CompareOptions) -> list[Row]:
    """The rows asked for. Raises OptionsError with the names there are."""
    known = {row.key: row for row in ROWS}
    for key in options.only:
        if key not in known:
            raise OptionsError(f"there is no row {key!r}; the rows are {', '.join(known)}")
    if options.only:
        return [known[key] for key in options.only]
    return [row for row in ROWS if options.group in ("", row.group)]


def compare(options: CompareOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the rows and return everything measured. say: is told of progress, a line at a time.

    Raises OptionsError. A side that fails is left out of its row and named there under `errors`.
    """
    rows = chosen(options)
    with tempfile.TemporaryDirectory(prefix="fluxmq-compare-", dir=options.folder) as name:
        folder = Path(name)
        machine = describe_machine(folder, 0.2 if options.smoke else 2.0)
        results = []
        with pinned(options.pin) as cores, Comparison(options, folder, cores, say) as comparison:
            for row in rows:
                say(f"{row.key}: {row.work}")
                results.append(comparison.run_row(row))
    settings = {f.name: str(value) if isinstance(value := getattr(options, f.name), Path) else value
                for f in fields(options)}
    return {"machine": machine, "settings": settings, "pinned": bool(cores), "rows": results}
