"""Messages and latencies of a result by topic, protocol, QoS and client. With pyarrow here, or with Spark.

    published   publishes sent: to the topic, with the QoS, by the client, in its protocol
    delivered   first deliveries (measures.py): on the topic, with the QoS that they came with, to the client
    latency     of these, as in measures.py
"""
from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fluxmq.spark.measures.measures import (
    COLUMNS,
    first_deliveries,
    live_deliveries,
    percentile,
    rows_of,
    sent_and_came,
)
from fluxmq.spark.result import Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KINDS", "PARTS_MAX", "UNKNOWN", "Breakdown", "Part", "breakdown", "breakdown_with_spark", "protocols_of"]

PARTS_MAX = 25              # of a table: as many as a person reads; the rest is only counted
# column: heading
KINDS = {"topic": "topic", "protocol": "protocol", "qos": "QoS", "client": "client"}
# `version` in the detail of a connect: the protocol
PROTOCOLS = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0", 91: "AMQP 0-9-1"}
UNKNOWN = "not known"


@dataclass(slots=True)
class Part:
    """The figures of one topic, protocol, QoS or client. p50, p99: of latencies, µs; None if there are none."""

    name: str
    published: int = 0
    delivered: int = 0
    p50: int | None = None
    p99: int | None = None


@dataclass(slots=True)
class Breakdown:
    """By a key of KINDS: the parts with the most messages, at most PARTS_MAX, and the total number of parts."""

    parts: dict[str, list[Part]] = field(default_factory=dict)
    number: dict[str, int] = field(default_factory=dict)

    def take(self, kind: str, parts: Iterable[Part], number: int) -> None:
        ranked = sorted(parts, key=lambda one: (-one.published - one.delivered, one.name))
        self.parts[kind], self.number[kind] = ranked[:PARTS_MAX], number


# ── with pyarrow ─────────────────────────────────────────────────────────────────────────────────────────────


def breakdown(result: Result) -> Breakdown:
    """Reads all rows into memory: for results of some million rows. Raises ResultError."""
    table = _with_names(rows_of(result, [*COLUMNS, "client", "detail"]))
    publishes, came = sent_and_came(table)
    first = first_deliveries(came)
    live = live_deliveries(first, publishes, table)
    found = Breakdown()
    for kind in KINDS:
        parts: dict[str, Part] = {}
        for rows, count in ((publishes, "published"), (first, "delivered")):
            for name, number in _counts(rows[kind]):
                setattr(parts.setdefault(name, Part(name)), count, number)
        ordered = live.select([kind, "latency"]).sort_by([(kind, "ascending"), ("latency", "ascending")])
        latencies = ordered["latency"].to_pylist()
        begin = 0
        for name, number in sorted(_counts(ordered[kind]), key=lambda entry: entry[0].encode()):
            mine, begin = latencies[begin:begin + number], begin + number
            parts[name].p50, parts[name].p99 = percentile(mine, 0.5), percentile(mine, 0.99)
        found.take(kind, parts.values(), len(parts))
    return found


def _counts(names: pa.ChunkedArray) -> list[tuple[str, int]]:
    return [(entry["values"], entry["counts"]) for entry in pc.value_counts(names).to_pylist()]


def _with_names(table: pa.Table) -> pa.Table:
    """Adds a column `protocol`, and converts the columns of KINDS to text without nulls."""
    connects = table.filter(pc.field("event") == "connect")
    spoken: dict[int, int] = {}
    for client, detail in zip(connects["client_number"].to_pylist(), connects["detail"].to_pylist(), strict=True):
        version = json.loads(detail or "{}").get("version")
        if version in PROTOCOLS:
            spoken[client] = min(version, spoken.get(client, version))
    told = pa.table({"client_number": pa.array(spoken, pa.int64()),
                     "protocol": pa.array(map(PROTOCOLS.__getitem__, spoken.values()), pa.string())})
    table = table.drop_columns("detail").join(told, "client_number")
    for name in KINDS:
        text = pc.fill_null(table[name].cast(pa.string()), UNKNOWN)
        table = table.set_column(table.schema.get_field_index(name), name, text)
    return table


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────


def breakdown_with_spark(result: Result, spark: SparkSession) -> Breakdown:
    """The same, for results of any size. Raises ResultError."""
    from pyspark.sql import functions as F

    from fluxmq.spark.measures import measures_spark as spark_measures

    rows = result.frame(spark).select(*COLUMNS, "client", "detail")
    told = protocols_of(rows)
    rows = rows.drop("detail").join(F.broadcast(told), "client_number", "left")
    rows = rows.withColumns({name: F.coalesce(F.col(name).cast("string"), F.lit(UNKNOWN)) for name in KINDS})
    publishes, came = spark_measures.sent_and_came(rows)
    first = spark_measures.first_deliveries(came).cache()
    live = spark_measures.live_deliveries(first, publishes, rows).cache()
    found = Breakdown()
    try:
        for kind in KINDS:
            parts = _parts(kind, publishes, first, live).cache()
            shown = parts.orderBy(F.desc(F.col("published") + F.col("delivered")), "name").limit(PARTS_MAX).collect()
            found.take(kind, [Part(**row.asDict()) for row in shown], parts.count())
            parts.unpersist()
    finally:
        live.unpersist()
        first.unpersist()
    return found


def protocols_of(rows: DataFrame) -> DataFrame:
    """(client_number): protocol, for clients that recorded it. rows: of a result."""
    from pyspark.sql import functions as F

    version = F.get_json_object("detail", "$.version").cast("int")
    words = F.create_map(*[F.lit(one) for entry in PROTOCOLS.items() for one in entry])
    return rows.where(F.col("event") == "connect").where(version.isin(*PROTOCOLS)).groupBy("client_number").agg(
        words[F.min(version)].alias("protocol"))


def _parts(kind: str, publishes: DataFrame, first: DataFrame, live: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    def named(rows: DataFrame, **figures: Any) -> DataFrame:
        return rows.groupBy(F.col(kind).alias("name")).agg(*[one.alias(name) for name, one in figures.items()])

    def share(part: float) -> Any:
        return F.expr(f"CAST(percentile_disc({part}) WITHIN GROUP (ORDER BY latency) AS BIGINT)")

    return (named(publishes, published=F.count("*")).join(named(first, delivered=F.count("*")), "name", "full_outer")
            .join(named(live, p50=share(0.5), p99=share(0.99)), "name", "left")
            .fillna(0, ["published", "delivered"]))
