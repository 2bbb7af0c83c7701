"""Baseline and candidate in turns: for each row and round a fresh broker of both, loaded B C C B or C B B C (B C or C B
where a row's load takes long).

Both run on one processor, the load on another where there is one; a broker that is not loaded sleeps. What the machine
does meanwhile meets both alike: a round is over in seconds, and what drifts in it evenly cancels out. A new process for
each round, because where its memory lies is luck that stays with a process as long as it lives.

Where messages cross between nodes, a side has a cluster of two instead of a broker, each node with its etcd member.
These take seconds to start, so two rounds share them, and seconds to leave in good order, so they are killed.

A start is timed by what it costs on CPU until the broker says that it is ready; each side begins every time with the
directory that its own broker filled once.
"""
from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from fluxmq.bench.gate.rows import GateRow
from fluxmq.bench.gate.workload import PUBLISHES, write_workload
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_runner import run_amqp
from fluxmq.bench.load.brokers import Broker, Needs, start_broker
from fluxmq.bench.load.cluster_nodes import ClusterNodes
from fluxmq.bench.load.many import ManyOptions, Work
from fluxmq.bench.load.options import LoadOptions
from fluxmq.bench.load.procinfo import cpu_between, memory, read_cpu
from fluxmq.bench.load.runner import run_load
from fluxmq.bench.load.storms import StormOptions, run_storm
from fluxmq.cluster.etcd.binary import find_binary
from fluxmq.spark.gate.judging import GateError, Pair
from fluxmq.spark.measures.measures import alike, measure
from fluxmq.spark.replay.replaying import ReplayRequest, replay_here
from fluxmq.spark.result import open_result

__all__ = ["Homes", "Turns", "what_misses"]

Values = dict[str, float | None]
SIDES = ("baseline", "candidate")
ORDERS = (("baseline", "candidate", "candidate", "baseline"), ("candidate", "baseline", "baseline", "candidate"))
WARMUP_PART = 0.3
ROUNDS_OF_CLUSTERS = 2
QUIET_S = 0.2
REPLAYED = ("throughput", "cpu_per_message_us", "latency_p99_us", "lost", "duplicates", "order_violations", "published",
            "delivered")


@dataclass(slots=True, frozen=True)
class Homes:
    """Where each side's package `fluxmq` is; None: the one that runs this."""

    baseline: Path | None
    candidate: Path | None


def what_misses(row: GateRow, homes: Homes) -> str:
    """Why a row cannot be measured here, and not for want of a program; empty if it can. Raises ConfigError without
    etcd, where a row needs it."""
    if row.kind != "nodes":
        return ""
    for home in (homes.baseline, homes.candidate):
        if home is not None and not (home / "fluxmq" / "cluster" / "node.py").exists():
            return f"the broker in {home.name} forms no clusters"
    find_binary()
    return ""


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

    def rounds(self, row: GateRow, count: int) -> Generator[Pair, None, None]:
        """One after the other. Raises BrokerError, LoadError, OSError."""
        if row.kind == "nodes":
            yield from self.across(row, count)
        else:
            for number in range(count):
                yield self.round(row, in_turns(row, number))

    def round(self, row: GateRow, order: Sequence[str]) -> Pair:
        """Both brokers started, each loaded twice, both stopped."""
        if row.kind == "start":
            return paired(row, {side: [self.start(row, side)] for side in order})
        with ExitStack() as stack:
            brokers = {}
            for side in dict.fromkeys(order):
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{side}-", dir=self.folder)))
                brokers[side] = stack.enter_context(start_broker("fluxmq", self.needs(row, side, scratch)))
            return paired(row, in_order(order, lambda side: self.turn(row, brokers[side])))

    def across(self, row: GateRow, count: int) -> Generator[Pair, None, None]:
        """Rounds on clusters."""
        for first in range(0, count, ROUNDS_OF_CLUSTERS):
            with self.clusters(row) as clusters:
                for number in range(first, min(first + ROUNDS_OF_CLUSTERS, count)):
                    yield paired(row, in_order(in_turns(row, number), partial(self.cross, row, clusters)))

    def cross(self, row: GateRow, clusters: dict[str, ClusterNodes], side: str) -> Values:
        """A turn from the first node to the second. The members of etcd are not counted: they are of no version."""
        nodes = clusters[side]
        return self.load(row, addr=nodes.address(0), sub_addrs=(nodes.address(1),),
                         node_pids=tuple(broker.pid for broker in nodes.brokers.values()))

    @contextmanager
    def clusters(self, row: GateRow) -> Iterator[dict[str, ClusterNodes]]:
        """One of each side."""
        with ExitStack() as stack:
            found = {}
            for side in SIDES:
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{side}-", dir=self.folder)))
                found[side] = ClusterNodes(scratch, count=2, settings=row.settings | self.settings, cores=self.cores,
                                           home=getattr(self.homes, side))
                stack.callback(found[side].kill_all)
            with ThreadPoolExecutor(len(found)) as pool:
                list(pool.map(ClusterNodes.__enter__, found.values()))
            yield found

    def needs(self, row: GateRow, side: str, folder: Path) -> Needs:
        return Needs(folder=folder, transports=row.transports, queue=row.queue, cores=self.cores,
                     home=getattr(self.homes, side), settings=row.settings | self.settings)

    def turn(self, row: GateRow, broker: Broker) -> Values:
        address = broker.addresses[row.transports[0]]
        if row.kind == "replay":
            return self.replay(broker, address)
        if row.kind == "idle":
            return self.idle(row, broker, address)
        return self.load(row, addr=address, broker_pid=broker.pid)

    def load(self, row: GateRow, **where: Any) -> Values:
        """A turn of a generator. where: its options that say what it loads."""
        seconds = self.seconds * row.stretch
        given: dict[str, Any] = row.load | where | {"duration": seconds, "warmup": seconds * WARMUP_PART}
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


def in_turns(row: GateRow, number: int) -> Sequence[str]:
    """The sides in the order of a round."""
    return ORDERS[number % len(ORDERS)][:2 * row.passes]


def in_order(order: Sequence[str], turn: Callable[[str], Values]) -> dict[str, list[Values]]:
    """What the turns of each side gave."""
    found: dict[str, list[Values]] = {side: [] for side in order}
    for side in order:
        found[side].append(turn(side))
    return found


def paired(row: GateRow, found: dict[str, list[Values]]) -> Pair:
    """Of what each side's turns gave, in a round."""
    both = [middle(found[side]) for side in SIDES]
    alike(*both)
    return Pair(*({f"{row.key}/{name}": value for name, value in values.items()} for values in both))


def middle(turns: list[Values]) -> Values:
    """One value per measure of a side's turns in a round: their mean."""
    names = dict.fromkeys(name for turn in turns for name in turn)
    known = {name: [value for turn in turns if (value := turn.get(name)) is not None] for name in names}
    return {name: statistics.fmean(values) if values else None for name, values in known.items()}
