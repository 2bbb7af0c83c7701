"""Computes the figures about a recording from the tables of scans.py: one dict, as --json prints it."""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from fluxmq.spark.measures.buckets import bucket_of
from fluxmq.spark.profile.scans import DELIVERED, PUBLISHED, bucket_value

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["QUANTILES", "Spreads", "clients_of", "quantiles", "spreads", "summary"]

MESSAGES = ("PUBLISH", *PUBLISHED, *DELIVERED)
QUANTILES = (0.5, 0.9, 0.99, 0.999)
SECOND_NS = 1_000_000_000
STEPS = 60                                   # of the course over time
RATES = (0.1, 1.0, 10.0, 100.0, 1000.0)      # messages per second: bounds of the classes of clients
SIZES = (64, 256, 1024, 4096, 16384, 65536)  # bytes of payload, likewise
STORM_TIMES, STORM_LEAST = 10, 10            # connections opened in a second: so many times the mean, and so many


def quantiles(counted: Iterable[tuple[float, int]]) -> dict[str, float]:
    """Of (value, count): the QUANTILES, `min`, `max` and `mean`; empty if there are no values."""
    ordered = sorted(counted)
    total = sum(count for _, count in ordered)
    if not total:
        return {}
    found = {"min": ordered[0][0], "max": ordered[-1][0],
             "mean": sum(value * count for value, count in ordered) / total}
    seen, wanted = 0, list(QUANTILES)
    for value, count in ordered:
        seen += count
        while wanted and seen >= wanted[0] * total:
            found[f"p{100 * wanted.pop(0):g}"] = value
    return found


def _bucketed(rows: list[Any]) -> dict[str, float]:
    found = quantiles((bucket_value(row.bucket), row.rows) for row in rows)
    if found:
        low, high = min(row.min for row in rows), max(row.max for row in rows)
        found = {name: min(max(value, low), high) for name, value in found.items()} | {
            "min": float(low), "max": float(high)}
    return found


def _published() -> Column:
    return ((F.col("kind") == "PUBLISH") & (F.col("direction") == "in")) | F.col("kind").isin(*PUBLISHED)


def _delivered() -> Column:
    return ((F.col("kind") == "PUBLISH") & (F.col("direction") == "out")) | F.col("kind").isin(*DELIVERED)


def _over_time(rates: DataFrame, first: int, last: int) -> dict[str, Any]:
    """Messages per second: peak, quantiles over all seconds (also those without any), the course in STEPS steps."""
    begin, seconds = first // SECOND_NS, last // SECOND_NS - first // SECOND_NS + 1
    a_second = rates.groupBy("second").agg(
        *[F.sum(F.when(condition, F.col("rows")).otherwise(0)).alias(name) for name, condition in (
            ("published", _published()), ("delivered", _delivered()), ("opened", F.col("kind") == "opened"))],
        F.sum("bytes").alias("bytes")).localCheckpoint()
    found: dict[str, Any] = {"seconds": seconds, "step_s": max(1, -(-seconds // STEPS))}
    for name in ("published", "delivered", "bytes"):
        counted = [(float(row[0]), int(row[1])) for row in a_second.groupBy(name).count().collect()]
        silent = seconds - sum(count for _, count in counted)
        found[name] = quantiles([*counted, (0.0, silent)] if silent else counted)
        peak = a_second.orderBy(F.desc(name), "second").first()
        found[name]["peak_second"] = None if peak is None else peak["second"]
    step = F.expr(f"(second - {begin}) div {found['step_s']}").alias("step")
    course = {row["step"]: row for row in a_second.groupBy(step).agg(
        F.sum("published").alias("published"), F.sum("delivered").alias("delivered")).collect()}
    for name in ("published", "delivered"):
        found[name]["course"] = [int(course[number][name]) if number in course else 0
                                 for number in range(-(-seconds // found["step_s"]))]
    opened = a_second.agg(F.sum("opened")).first()
    mean = float((opened[0] if opened else 0) or 0) / seconds
    storm = F.col("opened") >= max(STORM_LEAST, STORM_TIMES * mean)
    worst = a_second.where(storm).orderBy(F.desc("opened"), "second").limit(5).collect()
    found["storms"] = {"seconds": a_second.where(storm).count(), "mean_opened_per_second": mean,
                       "worst": [{"second": row["second"], "opened": row["opened"]} for row in worst]}
    return found


def _class(value: Column, bounds: Iterable[float], unit: str) -> Column:
    """A name such as "1 to 10 /s"."""
    text = F.when(value.isNull(), F.lit(None))
    below: float | None = None
    for bound in bounds:
        text = text.when(value < bound, F.lit(f"under {bound:g}{unit}" if below is None else
                                              f"{below:g} to {bound:g}{unit}"))
        below = bound
    return text.otherwise(F.lit(f"{below:g}{unit} and more"))


def clients_of(connections: DataFrame) -> DataFrame:
    """One row per client: all its connections together, and its classes. connections: scans.by_connection()."""
    sums = ("published", "delivered", "published_bytes", "delivered_bytes", "subscribes")
    known = F.coalesce("client_id", F.concat(F.lit("connection "), "connection"))
    clients = connections.groupBy(known.alias("client"), "protocol").agg(
        F.count("*").alias("connections"), F.min("first").alias("first"), F.max("last").alias("last"),
        F.sum((F.coalesce("closed", "last") - F.coalesce("opened", "first")) / SECOND_NS).alias("connected_s"),
        *[F.sum(name).alias(name) for name in sums])
    messages = F.col("published") + F.col("delivered")
    publishes, gets = F.col("published") > 0, F.col("delivered") > 0
    role = (F.when(publishes & gets, "both").when(publishes, "publishes")
            .when(gets | (F.col("subscribes") > 0), "subscribes").otherwise("neither"))
    rate = messages / F.greatest("connected_s", F.lit(1.0))
    size = F.when(messages > 0, (F.col("published_bytes") + F.col("delivered_bytes")) / messages)
    return clients.withColumns({"role": role, "rate": rate, "mean_size": size,
                                "rate_class": _class(rate, RATES, "/s"), "size_class": _class(size, SIZES, " B")})


def _clients(connections: DataFrame, clients: DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = {"clients": clients.count(), "connections": connections.count()}
    for name in ("role", "rate_class", "size_class"):
        order = F.min("rate" if name == "rate_class" else "mean_size")
        rows = clients.where(F.col(name).isNotNull()).groupBy(name).agg(
            F.count("*").alias("clients"), F.sum("published").alias("published"),
            F.sum("delivered").alias("delivered"), order.alias("order")).orderBy(F.asc_nulls_last("order"), name)
        found[name] = [{"class": row[name], "clients": row["clients"], "published": row["published"],
                        "delivered": row["delivered"]} for row in rows.collect()]
    life = ((F.col("closed") - F.col("opened")) / SECOND_NS).alias("life")
    wanted = [0.0, *QUANTILES, 1.0]
    row = connections.select(life).agg(
        F.count("life"), F.percentile_approx("life", wanted, 10_000), F.avg("life")).first()
    names = ["min", *[f"p{100 * share:g}" for share in QUANTILES], "max"]
    ended = int(row[0]) if row else 0
    found["lifetime_s"] = dict(zip(names, row[1], strict=True)) | {"mean": row[2]} if row and ended else {}
    found["ended_within"] = ended
    found["busiest"] = [row.asDict() for row in clients.select(
        "client", "protocol", "role", "connections", "published", "delivered", "rate").orderBy(
            F.desc(F.col("published") + F.col("delivered")), "client").limit(10).collect()]
    return found


def _topics(topics: DataFrame, trees: DataFrame, top: int) -> dict[str, Any]:
    heat = F.col("published") + F.col("delivered")
    size = F.col("published_bytes") + F.col("delivered_bytes")
    columns = ["published", "delivered", "published_bytes", "delivered_bytes"]
    ratio = F.round(F.col("delivered") / F.col("published"), 2)
    fan_out = topics.where("published > 0").groupBy(ratio.alias("ratio")).agg(
        F.sum("published").alias("count")).collect()
    total = topics.agg(F.count("*"), F.sum("published"), F.sum("delivered")).first()
    count, published, delivered = (int(total[n] or 0) for n in range(3)) if total else (0, 0, 0)
    levels = sorted(row["level"] for row in trees.select("level").distinct().collect())
    return {
        "topics": count,
        "fan_out": quantiles((float(row["ratio"]), int(row["count"])) for row in fan_out)
        | ({"overall": delivered / published} if published else {}),
        "hottest": [row.asDict() for row in topics.orderBy(F.desc(heat), "topic").limit(top).collect()],
        "largest": [row.asDict() for row in topics.orderBy(F.desc(size), "topic").limit(top).collect()],
        "subtrees": {str(level): [row.asDict() for row in trees.where((F.col("level") == level) & (F.col("topics") > 1))
                                  .select("subtree", "topics", *columns).orderBy(F.desc(heat), "subtree").limit(top)
                                  .collect()] for level in levels[:3]}}


Spreads = dict[str, dict[int, int]]


def spreads(sizes: DataFrame, latencies: DataFrame) -> tuple[Spreads, Spreads]:
    """Distributions for a report: direction → payloads of messages in bytes, and "KIND direction" → latencies in ns;
    each as bucket (buckets.py) → count. sizes, latencies: by_bucket()."""
    of_messages = sizes.where(F.col("kind").isin(*MESSAGES) & F.col("direction").isNotNull())
    found: tuple[Spreads, Spreads] = {}, {}
    for rows, into, names in ((of_messages, found[0], ("direction",)), (latencies, found[1], ("kind", "direction"))):
        for row in rows.orderBy("kind", "direction").collect():
            counts = into.setdefault(" ".join(row[name] or "" for name in names), {})
            number = bucket_of(min(max(bucket_value(row["bucket"]), row["min"]), row["max"]))
            counts[number] = counts.get(number, 0) + row["rows"]
    return found


def summary(rates: DataFrame, topics: DataFrame, trees: DataFrame, connections: DataFrame, clients: DataFrame,
            sizes: DataFrame, latencies: DataFrame, top: int = 10) -> dict[str, Any]:
    """The output of --json without the manifest's part. rates, topics, connections: of scans, computed already; sizes,
    latencies: by_bucket(). top: number of topics and subtrees to list. Times: ns since 1970."""
    total = rates.agg(F.sum("rows"), F.sum("bytes"), F.min("first"), F.max("last"), F.sum("lost"),
                      F.sum("lost_bytes")).first()
    if total is None or not total[0]:
        return {"rows": 0}
    kinds = rates.groupBy("protocol", "version", "direction", "kind", "qos").agg(
        F.sum("rows").alias("rows"), F.sum("bytes").alias("bytes")).orderBy(F.desc("rows"), "kind").collect()
    of_sizes, of_latencies = sizes.collect(), latencies.collect()
    acknowledged = sorted({(row.kind, row.direction or "") for row in of_latencies})
    return {
        "rows": int(total[0]), "bytes": int(total[1] or 0), "first": int(total[2]), "last": int(total[3]),
        "lost_entries": int(total[4] or 0), "lost_bytes": int(total[5] or 0),
        "kinds": [row.asDict() for row in kinds], "over_time": _over_time(rates, int(total[2]), int(total[3])),
        "size": {direction: _bucketed([row for row in of_sizes if row.kind in MESSAGES and row.direction == direction])
                 for direction in ("in", "out")},
        "ack_latency_ns": {f"{kind} {direction}": _bucketed(
            [row for row in of_latencies if (row.kind, row.direction or "") == (kind, direction)])
            for kind, direction in acknowledged},
        **_topics(topics, trees, top), **_clients(connections, clients)}
