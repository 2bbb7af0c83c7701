"""The passes over a recording that `profile` makes, each over the columns it needs, each one aggregation:

    rates       second, protocol, direction, kind, QoS     → rows, bytes                (all about time and kinds)
    topics      topic                                      → messages and bytes in and out (tree, heat, fan-out)
    connections connection                                 → its client, life, messages  (clients, classes, lifetimes)
    histogram   kind, direction, bucket                    → rows                        (percentiles)

What they give is small beside the recording: everything else is computed from that. Percentiles come from buckets,
exact below 64 and within 1.1 % above: a sketch for each value would cost more than the scan.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["DELIVERED", "PUBLISHED", "bucket", "bucket_value", "by_bucket", "by_connection", "by_rate", "by_topic",
           "subtrees"]

SECOND_NS = 1_000_000_000
EXACT_BELOW = 64
PER_DOUBLING = 32
PUBLISHED = ("basic.publish",)
DELIVERED = ("basic.deliver", "basic.get-ok")
LEVELS_MAX = 8


def published() -> Column:
    return ((F.col("kind") == "PUBLISH") & (F.col("direction") == "in")) | F.col("kind").isin(*PUBLISHED)


def delivered() -> Column:
    return ((F.col("kind") == "PUBLISH") & (F.col("direction") == "out")) | F.col("kind").isin(*DELIVERED)


def _sum(condition: Column, value: Column | None = None) -> Column:
    number = F.lit(1) if value is None else value
    return F.sum(F.when(condition, number).otherwise(0))


def by_rate(rows: DataFrame) -> DataFrame:
    """(second, protocol, version, direction, kind, qos): rows, bytes, first, last, lost, lost_bytes."""
    second = F.expr(f"time div {SECOND_NS}").alias("second")
    lost = F.col("kind") == "lost"
    return rows.groupBy(second, "protocol", "version", "direction", "kind", "qos").agg(
        F.count("*").alias("rows"), F.sum(F.coalesce("bytes", F.lit(0))).alias("bytes"), F.min("time").alias("first"),
        F.max("time").alias("last"),
        F.sum(F.when(lost, F.get_json_object("detail", "$.entries").cast("bigint"))).alias("lost"),
        F.sum(F.when(lost, F.get_json_object("detail", "$.bytes").cast("bigint"))).alias("lost_bytes"))


def by_topic(rows: DataFrame) -> DataFrame:
    """(topic): published, delivered, published_bytes, delivered_bytes. Bytes are of payloads."""
    size = F.coalesce("size", F.lit(0))
    return rows.where(F.col("topic").isNotNull() & (published() | delivered())).groupBy("topic").agg(
        _sum(published()).alias("published"), _sum(delivered()).alias("delivered"),
        _sum(published(), size).alias("published_bytes"), _sum(delivered(), size).alias("delivered_bytes"))


def by_connection(rows: DataFrame) -> DataFrame:
    """(connection): client_id, protocol, first, last (ns), opened, closed (ns or null), published, delivered and bytes
    of payloads, subscribes."""
    size = F.coalesce("size", F.lit(0))
    return rows.where("connection > 0").groupBy("connection").agg(
        F.max("client_id").alias("client_id"), F.max("protocol").alias("protocol"), F.min("time").alias("first"),
        F.max("time").alias("last"), F.min(F.when(F.col("kind") == "opened", F.col("time"))).alias("opened"),
        F.max(F.when(F.col("kind") == "closed", F.col("time"))).alias("closed"),
        _sum(published()).alias("published"), _sum(delivered()).alias("delivered"),
        _sum(published(), size).alias("published_bytes"), _sum(delivered(), size).alias("delivered_bytes"),
        _sum(F.col("kind").isin("SUBSCRIBE", "basic.consume")).alias("subscribes"))


def bucket(value: Column) -> Column:
    """The bucket of a number of 0 or more."""
    above = F.floor(F.log2(value) * PER_DOUBLING).cast("int") + 1000
    return F.when(value < EXACT_BELOW, value.cast("int")).otherwise(above)


def bucket_value(number: int) -> float:
    """The middle of a bucket."""
    return float(number) if number < EXACT_BELOW else float(2 ** ((number - 1000 + 0.5) / PER_DOUBLING))


def by_bucket(rows: DataFrame, value: str) -> DataFrame:
    """(kind, direction, bucket): rows, of those that have the value; and its `min` and `max`."""
    return (rows.where(F.col(value).isNotNull() & (F.col(value) >= 0))
            .groupBy("kind", "direction", bucket(F.col(value)).alias("bucket"))
            .agg(F.count("*").alias("rows"), F.min(value).alias("min"), F.max(value).alias("max")))


def subtrees(topics: DataFrame) -> DataFrame:
    """(level, subtree): topics below it, and the sums of by_topic. Level 1 is the first word; a subtree ends in /#
    unless it is one topic. topics: by_topic()."""
    words = F.split("topic", "/", -1)
    depth = F.least(F.size(words), F.lit(LEVELS_MAX))
    level = F.explode(F.sequence(F.lit(1), depth)).alias("level")
    sums = ("published", "delivered", "published_bytes", "delivered_bytes")
    spread = topics.select("topic", words.alias("words"), level, *sums)
    whole = F.col("level") == F.size("words")
    name = F.when(whole, F.col("topic")).otherwise(
        F.concat(F.array_join(F.slice("words", F.lit(1), F.col("level")), "/"), F.lit("/#")))
    return spread.groupBy("level", name.alias("subtree")).agg(
        F.count("*").alias("topics"), *[F.sum(one).alias(one) for one in sums])
