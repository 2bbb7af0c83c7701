"""Baseline and candidate in turns: for each row and round a fresh broker of both, loaded B C C B or C B B C.

Both run on one processor, the load on another where there is one; a broker that is not loaded sleeps. What the machine
does meanwhile meets both alike: a round is over in seconds, and what drifts in it evenly cancels out. A new process for
each round, because where its memory lies is luck that stays with a process as long as it lives.
"""
from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluxmq.bench.gate.rows import GateRow
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_runner import run_amqp
from fluxmq.bench.load.brokers import Broker, Needs, start_broker
from fluxmq.bench.load.options import LoadOptions
from fluxmq.bench.load.runner import run_load
from fluxmq.spark.gate import Pair

__all__ = ["Homes", "Turns"]

Values = dict[str, float | None]
ORDERS = (("baseline", "candidate", "candidate", "baseline"), ("candidate", "baseline", "baseline", "candidate"))
WARMUP_PART = 0.3


@dataclass(slots=True, frozen=True)
class Homes:
    """Where each side's package `fluxmq` is; None: the one that runs this."""

    baseline: Path | None
    candidate: Path | None


@dataclass(slots=True, kw_only=True)
class Turns:
    """seconds: of one turn, measured. cores: the brokers' processors, empty for any. folder: where they keep data.

    settings: of both brokers, beside those of the row.
    """

    homes: Homes
    seconds: float
    cores: frozenset[int]
    folder: Path
    settings: dict[str, str]

    def round(self, row: GateRow, number: int) -> Pair:
        """Both brokers started, each loaded twice, both stopped. Raises BrokerError, LoadError, OSError."""
        order = ORDERS[number % len(ORDERS)]
        with ExitStack() as stack:
            brokers = {}
            for side in dict.fromkeys(order):
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{side}-", dir=self.folder)))
                needs = Needs(folder=scratch, transports=(row.transport,), queue=row.queue, cores=self.cores,
                              home=getattr(self.homes, side), settings=row.settings | self.settings)
                brokers[side] = stack.enter_context(start_broker("fluxmq", needs))
            found: dict[str, list[Values]] = {side: [] for side in brokers}
            for side in order:
                found[side].append(self.turn(row, brokers[side]))
        return Pair(*({f"{row.key}/{name}": value for name, value in middle(found[side]).items()}
                      for side in ("baseline", "candidate")))

    def turn(self, row: GateRow, broker: Broker) -> Values:
        given: dict[str, Any] = row.load | {"addr": broker.addresses[row.transport], "broker_pid": broker.pid,
                                            "duration": self.seconds, "warmup": self.seconds * WARMUP_PART}
        figures = run_amqp(AmqpOptions(**given)) if row.kind == "amqp" else run_load(LoadOptions(**given))
        total = figures["total"]
        return {"throughput": figures[f"{row.rate}_per_second"],
                "cpu_per_message_us": figures.get("broker_cpu_us_per_message"),
                "latency_p99_us": (figures["latency_us"] or figures["ack_latency_us"] or {}).get("p99"),
                "lost": total["lost"], "duplicates": total["duplicates"], "order_violations": total["reordered"]}


def middle(turns: list[Values]) -> Values:
    """One value per measure of a side's turns in a round: their mean."""
    names = dict.fromkeys(name for turn in turns for name in turn)
    known = {name: [value for turn in turns if (value := turn.get(name)) is not None] for name in names}
    return {name: statistics.fmean(values) if values else None for name, values in known.items()}
