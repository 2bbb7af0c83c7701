"""The measures of a result: one definition, computed here with pyarrow and in measures_spark.py with Spark.

Instants are ns since 1970, on the clocks of the players. What each measure is:

    window        from the first publish sent to the last publish sent or message delivered
    published     publishes sent
    delivered     different messages that came to each client, what was retained left out
    throughput    delivered per second of the window; where nothing is delivered, published
    latency_*     of a first delivery since its publish was sent, in whole µs. Left out are retained messages, what is
                  marked dup, and what comes to a connection that was not there yet when the message was published. From
                  a queue: since the broker could have delivered it, which is `due` of the delivery
    memory_peak_mib, memory_end_mib     the most that the broker had in memory while the replay ran, and what it had
                  at its end: resident, in MiB
    cpu_per_message_us  the broker's time on CPU in the window, for each of what throughput counts
    lost          publishes of QoS 1 and 2, acknowledged as good, that a connection did not get although it got an
                  earlier and a later one of the same publisher and topic. Needs no oracle; `replay verify` sees more.
                  Clients that share (`$share`, `$queue`) or unsubscribe are left out
    duplicates    deliveries of what the client has, not marked dup
    order_violations    first deliveries of an earlier publish than the one before, of the same publisher, topic and QoS
                  on the same connection
    unanswered    publishes of QoS 1 and 2 without an acknowledgement
    late_p99_us   of publishes: sent after they were due

A percentile is the smallest value that at least that part of all values does not exceed.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fluxmq.spark.measures.buckets import bucketed
from fluxmq.spark.result import Result, Summary

__all__ = ["COLUMNS", "MEASURES", "PERCENTILES", "Bucket", "Counted", "Measure", "Measures", "alike", "bucket_width",
           "finish", "first_deliveries", "live_deliveries", "measure", "percentile", "rows_of", "sent_and_came"]

PERCENTILES: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}
BUCKETS = 60
SECOND = 1_000_000_000
MICROSECOND = 1000
MIB = 1 << 20
GOOD_REASONS = 128                      # reason codes below: the publish was accepted
SHARED = ("$share/", "$queue/")
MESSAGE = ["client_number", "publisher", "publisher_op"]
COLUMNS = ["event", "client_number", "connection", "op", "topic", "qos", "retain", "dup", "publisher", "publisher_op",
           "due", "sent", "acked", "reason"]


@dataclass(slots=True, frozen=True)
class Measure:
    """title, unit: for display. better: higher, lower, or zero; "" for neither."""

    title: str
    unit: str
    better: str


MEASURES: dict[str, Measure] = {
    "throughput": Measure("Throughput", "messages/s", "higher"),
    "latency_p50_us": Measure("Latency, p50", "µs", "lower"),
    "latency_p90_us": Measure("Latency, p90", "µs", "lower"),
    "latency_p99_us": Measure("Latency, p99", "µs", "lower"),
    "latency_p99_9_us": Measure("Latency, p99.9", "µs", "lower"),
    "cpu_per_message_us": Measure("Broker CPU per message", "µs", "lower"),
    "memory_peak_mib": Measure("Broker memory, max", "MiB", "lower"),
    "memory_end_mib": Measure("Broker memory, end", "MiB", "lower"),
    "lost": Measure("Lost", "messages", "zero"),
    "duplicates": Measure("Duplicates", "messages", "zero"),
    "order_violations": Measure("Out of order", "messages", "zero"),
    "unanswered": Measure("Publishes without acknowledgement", "messages", "zero"),
    "published": Measure("Published", "messages", ""),
    "delivered": Measure("Delivered", "messages", ""),
    "late_p99_us": Measure("Send delay, p99", "µs", "lower"),
    "window_s": Measure("Measured window", "s", ""),
}


@dataclass(slots=True)
class Bucket:
    """A part of the window. second: its beginning, after the window's start. Percentiles as PERCENTILES, in µs, of what
    was published in it; None if nothing of that was delivered."""

    second: float
    published: int = 0
    delivered: int = 0
    latency: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(PERCENTILES))


@dataclass(slots=True)
class Counted:
    """Counts by either engine; `finish` computes the measures from it. start, end: of the window. latency: µs."""

    start: int | None = None
    end: int | None = None
    published: int = 0
    delivered: int = 0
    lost: int = 0
    duplicates: int = 0
    order_violations: int = 0
    unanswered: int = 0
    latency: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(PERCENTILES))
    late_p99: int | None = None
    # bucket (buckets.py) of a latency in µs → count
    latencies: dict[int, int] = field(default_factory=dict)
    # number of the bucket → bucket
    buckets: dict[int, Bucket] = field(default_factory=dict)

    def bucket(self, number: int) -> Bucket:
        if number not in self.buckets:
            self.buckets[number] = Bucket(number * bucket_width(self.start, self.end) / SECOND)
        return self.buckets[number]


@dataclass(slots=True)
class Measures:
    """values: by the names of MEASURES, None if unknown. buckets: in order of time. cpu: (seconds after the window's
    start, part of a processor that the broker used since the previous sample). memory: (those seconds, MiB). latencies:
    count by bucket (buckets.py), in µs."""

    values: dict[str, float | None]
    buckets: list[Bucket]
    cpu: list[tuple[float, float]]
    memory: list[tuple[float, float]]
    latencies: dict[int, int] = field(default_factory=dict)


def bucket_width(start: int | None, end: int | None) -> int:
    """ns of a bucket: about a sixtieth of the window, at least a millisecond."""
    return max(((end or 0) - (start or 0)) // BUCKETS + 1, SECOND // 1000)


def finish(counted: Counted, summary: Summary) -> Measures:
    """summary: with the samples of the broker's process."""
    window = None if counted.start is None or counted.end is None else (counted.end - counted.start) / SECOND
    messages = counted.delivered or counted.published
    values: dict[str, float | None] = {
        "throughput": messages / window if window and messages else None,
        **{f"latency_{name}_us": value for name, value in counted.latency.items()},
        "cpu_per_message_us": None, "memory_peak_mib": None, "memory_end_mib": None,
        "lost": counted.lost, "duplicates": counted.duplicates, "order_violations": counted.order_violations,
        "unanswered": counted.unanswered, "published": counted.published, "delivered": counted.delivered,
        "late_p99_us": counted.late_p99, "window_s": window}
    samples = sorted((int(instant), float(seconds)) for instant, seconds in summary.cpu)
    if len(samples) > 1 and counted.start is not None and counted.end is not None and messages:
        used = _at(samples, counted.end) - _at(samples, counted.start)
        values["cpu_per_message_us"] = used * 1e6 / messages
    start = counted.start or 0
    shares = [((after[0] - start) / SECOND, (after[1] - before[1]) * SECOND / (after[0] - before[0]))
              for before, after in pairwise(samples) if after[0] > before[0]]
    memory = [((instant - start) / SECOND, resident / MIB) for instant, resident in sorted(summary.memory)]
    if memory:
        values |= {"memory_peak_mib": max(most for _, most in memory), "memory_end_mib": memory[-1][1]}
    return Measures(values, [counted.buckets[number] for number in sorted(counted.buckets)], shares, memory,
                    counted.latencies)


def alike(one: dict[str, float | None], other: dict[str, float | None]) -> None:
    """If only one of two compared results delivered anything, the other gets throughput 0 and no CPU per message: its
    publishes are not comparable with deliveries."""
    for here, there in ((one, other), (other, one)):
        if there.get("delivered") and here.get("delivered") == 0 and here.get("published"):
            here |= {"throughput": 0.0, "cpu_per_message_us": None}


def _at(samples: list[tuple[int, float]], instant: int) -> float:
    """CPU seconds at an instant, interpolated linearly between the samples around it."""
    if instant <= samples[0][0]:
        return samples[0][1]
    for (before, low), (after, high) in pairwise(samples):
        if instant <= after:
            return low + (high - low) * (instant - before) / (after - before) if after > before else high
    return samples[-1][1]


# ── with pyarrow ─────────────────────────────────────────────────────────────────────────────────────────────


def measure(result: Result) -> Measures:
    """Reads all rows into memory: for results of some million rows. Raises ResultError."""
    return finish(_count(rows_of(result, COLUMNS)), result.summary)


def rows_of(result: Result, columns: list[str]) -> pa.Table:
    """The rows with plain text, because dictionary columns cannot be joined. Raises ResultError."""
    table = result.table(columns)
    for index, name in enumerate(columns):
        if pa.types.is_dictionary(table.schema.field(index).type):
            table = table.set_column(index, name, table.column(name).cast(pa.string()))
    return table


def sent_and_came(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The publishes that were sent, and the deliveries traced to one."""
    return (table.filter(_is("publish") & pc.field("sent").is_valid()),
            table.filter(_is("delivery") & pc.field("publisher").is_valid() & ~pc.field("retain")))


def first_deliveries(came: pa.Table) -> pa.Table:
    """The first delivery of each message to each client, among those not marked dup."""
    fresh = came.filter(~pc.field("dup"))
    firsts = fresh.group_by(MESSAGE).aggregate([("op", "min")])
    return fresh.join(firsts.rename_columns([*MESSAGE, "op"]), [*MESSAGE, "op"], join_type="inner")


def _count(table: pa.Table) -> Counted:
    publishes, came = sent_and_came(table)
    counted = Counted(published=publishes.num_rows)
    if not publishes.num_rows:
        return counted
    counted.start = pc.min(publishes["sent"]).as_py()
    counted.end = max(pc.max(publishes["sent"]).as_py(), pc.max(came["sent"]).as_py() or 0)
    counted.delivered = came.group_by(MESSAGE).aggregate([]).num_rows
    first = first_deliveries(came)
    counted.duplicates = came.filter(~pc.field("dup")).num_rows - first.num_rows
    counted.unanswered = publishes.filter((pc.field("qos") > 0) & pc.field("acked").is_null()).num_rows
    counted.order_violations = _steps_back(first)
    counted.lost = _gaps(first, publishes, _unsteady(table))
    due = publishes.filter(pc.field("due").is_valid())
    late = pc.divide(pc.max_element_wise(pc.subtract(due["sent"], due["due"]), 0), MICROSECOND)
    counted.late_p99 = percentile(late.sort().to_pylist(), PERCENTILES["p99"])
    _latencies(counted, first, publishes, live_deliveries(first, publishes, table))
    return counted


def _is(event: str) -> pc.Expression:
    return pc.field("event") == event


def live_deliveries(first: pa.Table, publishes: pa.Table, table: pa.Table) -> pa.Table:
    """The deliveries that count for latency, with `began` (ns) and `latency` (µs). first: first_deliveries(); table:
    all rows."""
    sent = publishes.select(["client_number", "op", "sent"]).rename_columns(["publisher", "publisher_op", "began"])
    there = table.filter(_is("connect")).select(["client_number", "connection", "acked"]).rename_columns(
        ["client_number", "connection", "since"])
    timed = first.join(sent, ["publisher", "publisher_op"], join_type="inner").join(
        there, ["client_number", "connection"])
    could = pc.max_element_wise(timed["began"], timed["due"])
    timed = timed.set_column(timed.schema.get_field_index("began"), "began", could)
    live = timed.filter(pc.field("since").is_null() | (pc.field("since") <= pc.field("began")))
    return live.append_column("latency", pc.divide(pc.subtract(live["sent"], live["began"]), MICROSECOND))


def _latencies(counted: Counted, first: pa.Table, publishes: pa.Table, live: pa.Table) -> None:
    width = bucket_width(counted.start, counted.end)

    def bucket(column: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.divide(pc.subtract(column, counted.start), width)

    figures = pa.table({"bucket": bucket(live["began"]), "latency": live["latency"]})
    figures = figures.sort_by([("bucket", "ascending"), ("latency", "ascending")])
    ordered = figures["latency"].to_pylist()
    begin = 0
    for number, count in _counts(figures["bucket"]):
        counted.bucket(number).latency = _percentiles(ordered[begin:begin + count])
        begin += count
    ordered.sort()
    counted.latency, counted.latencies = _percentiles(ordered), bucketed(ordered)
    for number, count in _counts(bucket(publishes["sent"])):
        counted.bucket(number).published = count
    for number, count in _counts(bucket(first["sent"])):
        counted.bucket(number).delivered = count


def _counts(numbers: pa.ChunkedArray) -> list[tuple[int, int]]:
    return sorted((entry["values"], entry["counts"]) for entry in pc.value_counts(numbers).to_pylist())


def _percentiles(ordered: list[int]) -> dict[str, int | None]:
    return {name: percentile(ordered, part) for name, part in PERCENTILES.items()}


def percentile(ordered: Sequence[int], part: float) -> int | None:
    """The smallest value that at least that part of all does not exceed; None of nothing."""
    return ordered[math.ceil(part * len(ordered)) - 1] if ordered else None


def _steps_back(first: pa.Table) -> int:
    way = ["client_number", "connection", "publisher", "topic", "qos"]
    ordered = first.select([*way, "op", "publisher_op"]).sort_by([(name, "ascending") for name in [*way, "op"]])
    steps: Any = pa.scalar(True)
    for name in way:
        steps = pc.and_(steps, pc.equal(ordered[name][1:], ordered[name][:-1]))
    back = pc.and_(steps, pc.less(ordered["publisher_op"][1:], ordered["publisher_op"][:-1]))
    return int(pc.sum(back).as_py() or 0)


def _unsteady(table: pa.Table) -> pa.Array:
    """Clients that need not get every message: they share subscriptions or end them."""
    shared = pc.or_(*(pc.starts_with(table["topic"], word) for word in SHARED))
    asked = pc.and_(pc.equal(table["event"], "subscribe"), pc.fill_null(shared, False))
    return pc.unique(table["client_number"].filter(pc.or_(asked, pc.equal(table["event"], "unsubscribe"))))


def _gaps(first: pa.Table, publishes: pa.Table, unsteady: pa.Array) -> int:
    """See `lost`: publishes are numbered for each publisher and topic; a connection that got m to n has n - m + 1."""
    good = publishes.filter((pc.field("qos") > 0) & pc.field("acked").is_valid()
                            & (pc.coalesce(pc.field("reason"), pc.scalar(0)) < GOOD_REASONS))
    good = good.select(["client_number", "topic", "op"]).sort_by(
        [("client_number", "ascending"), ("topic", "ascending"), ("op", "ascending")])
    # Within a publisher and topic the differences of these numbers are those of ranks.
    ranked = pa.table({"publisher": good["client_number"], "publisher_op": good["op"],
                       "rank": pa.array(range(good.num_rows), pa.int64())})
    steady = first.filter((pc.field("qos") > 0) & ~pc.is_in(pc.field("client_number"), unsteady))
    got = steady.join(ranked, ["publisher", "publisher_op"], join_type="inner").group_by(
        ["client_number", "connection", "publisher", "topic"]).aggregate(
        [("rank", "min"), ("rank", "max"), ("rank", "count")])
    spans = pc.subtract(pc.add(pc.subtract(got["rank_max"], got["rank_min"]), 1), got["rank_count"])
    return int(pc.sum(spans).as_py() or 0)
