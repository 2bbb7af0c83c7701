"""Baseline and candidate in turns: for each row and round a fresh broker of both, loaded B C C B or C B B C (B C or C B
where a row's load takes long).

Both run on one processor, the load on another where there is one; a broker that is not loaded sleeps. What the machine
does meanwhile meets both alike: a round is over in seconds, and what drifts in it evenly cancels out. A new process for
each round, because where its memory lies is luck that stays with a process as long as it lives.

A start is timed by what it costs on CPU until the broker says that it is ready; each side begins every time with the
directory that its own broker filled once.
"""
from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fluxmq.bench.gate.rows import GateRow
from fluxmq.bench.gate.workload import PUBLISHES, write_workload
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_runner import run_amqp
from fluxmq.bench.load.brokers import Broker, Needs, start_broker
from fluxmq.bench.load.many import ManyOptions, Work
from fluxmq.bench.load.options import LoadOptions
from fluxmq.bench.load.procinfo import cpu_between, memory, read_cpu
from fluxmq.bench.load.runner import run_load
from fluxmq.bench.load.storms import StormOptions, run_storm
from fluxmq.spark.gate.judging import GateError, Pair
from fluxmq.spark.measures.measures import alike, measure
from fluxmq.spark.replay.replaying import ReplayRequest, replay_here
from fluxmq.spark.result import open_result

__all__ = ["Homes", "Turns"]

Values = dict[str, float | None]
ORDERS = (("baseline", "candidate", "candidate", "baseline"), ("candidate", "baseline", "baseline", "candidate"))
WARMUP_PART = 0.3
QUIET_S = 0.2
REPLAYED = ("throughput", "cpu_per_message_us", "latency_p99_us", "lost", "duplicates", "order_violations", "published",
            "delivered")


@dataclass(slots=True, frozen=True)
class Homes:
    """Where each side's package `fluxmq` is; None: the one that runs this."""

    baseline: Path | None
    candidate: Path | None


@dataclass(slots=True, kw_only=True)
class Turns:
    """seconds: of one turn, measured. cores: the brokers' processors, empty for any. folder: where they keep data.

    publishes: of the replayed workload. settings: of both brokers, beside those of the row.
    """

    homes: Homes
    seconds: float
    cores: frozenset[int]
    folder: Path
    publishes: int = PUBLISHES
    settings: dict[str, str] = field(default_factory=dict)

    def round(self, row: GateRow, number: int) -> Pair:
        """Both brokers started, each loaded twice, both stopped. Raises BrokerError, LoadError, OSError."""
        order = ORDERS[number % len(ORDERS)][:2 * row.passes]
        if row.kind == "start":
            return paired(row, {side: [self.start(row, side)] for side in order})
        with ExitStack() as stack:
            brokers = {}
            for side in dict.fromkeys(order):
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{side}-", dir=self.folder)))
                brokers[side] = stack.enter_context(start_broker("fluxmq", self.needs(row, side, scratch)))
            found: dict[str, list[Values]] = {side: [] for side in brokers}
            for side in order:
                found[side].append(self.turn(row, brokers[side]))
        return paired(row, found)

    def needs(self, row: GateRow, side: str, folder: Path) -> Needs:
        return Needs(folder=folder, transports=row.transports, queue=row.queue, cores=self.cores,
                     home=getattr(self.homes, side), settings=row.settings | self.settings)

    def turn(self, row: GateRow, broker: Broker) -> Values:
        address = broker.addresses[row.transports[0]]
        if row.kind == "replay":
            return self.replay(broker, address)
        if row.kind == "idle":
            return self.idle(row, broker, address)
        given: dict[str, Any] = row.load | {"addr": address, "broker_pid": broker.pid,
                                            "duration": self.seconds, "warmup": self.seconds * WARMUP_PART}
        figures = run_amqp(AmqpOptions(**given)) if row.kind == "amqp" else run_load(LoadOptions(**given))
        total = figures["total"]
        return {"throughput": figures[f"{row.rate}_per_second"],
                "cpu_per_message_us": figures.get("broker_cpu_us_per_message"),
                "latency_p99_us": (figures["latency_us"] or figures["ack_latency_us"] or {}).get("p99"),
                "lost": total["lost"], "duplicates": total["duplicates"], "order_violations": total["reordered"]}

    def idle(self, row: GateRow, broker: Broker, address: str) -> Values:
        before = read_cpu(broker.pid)
        figures = run_storm(StormOptions(addr=address, broker_pid=broker.pid, **row.load))
        spent = cpu_between(before, read_cpu(broker.pid))
        return {"cpu_per_connection_us": spent * 1e6 / figures["connections"],
                "bytes_per_connection": figures["broker_memory"]["bytes_per_connection"]}

    def start(self, row: GateRow, side: str) -> Values:
        """One start on what there is, and the stop."""
        folder = self.folder / f"{row.key}-{side}"
        needs = self.needs(row, side, folder)
        if not folder.exists():
            folder.mkdir()
            with start_broker("fluxmq", needs) as broker:
                for kind, count in row.load.items():
                    options = ManyOptions(folder=folder, kind=cast(Any, kind), count=count)
                    Work(options).make(broker, lambda _: nullcontext())
        began = time.monotonic()
        with start_broker("fluxmq", needs) as broker:
            seconds, cpu, held = time.monotonic() - began, read_cpu(broker.pid), memory(broker.pid)
        return {"cpu_s": cpu.user + cpu.system, "seconds": seconds, "resident_bytes": held.rss}

    def replay(self, broker: Broker, address: str) -> Values:
        """The workload as fast as the broker takes it. Raises GateError when it did not come to its end."""
        workload = self.folder / "workload"
        if not workload.exists():
            write_workload(workload, self.publishes)
        with tempfile.TemporaryDirectory(prefix="result-", dir=self.folder) as name:
            summary = replay_here(ReplayRequest(recording=str(workload), broker=address, out=name,
                                                speed=None, broker_pid=broker.pid, quiet_s=QUIET_S))
            if not summary.complete:
                raise GateError(f"the replay did not come to its end: {summary.why}")
            values = measure(open_result(name)).values
        return {key: values[key] for key in REPLAYED}


def paired(row: GateRow, found: dict[str, list[Values]]) -> Pair:
    """Of what each side's turns gave, in a round."""
    both = [middle(found[side]) for side in ("baseline", "candidate")]
    alike(*both)
    return Pair(*({f"{row.key}/{name}": value for name, value in values.items()} for values in both))


def middle(turns: list[Values]) -> Values:
    """One value per measure of a side's turns in a round: their mean."""
    names = dict.fromkeys(name for turn in turns for name in turn)
    known = {name: [value for turn in turns if (value := turn.get(name)) is not None] for name in names}
    return {name: statistics.fmean(values) if values else None for name, values in known.items()}
