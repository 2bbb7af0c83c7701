"""The measures of a result computed with Spark: for results of any size. measures.py defines them."""
from __future__ import annotations

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession, Window

from fluxmq.spark.measures.buckets import bucket_sql
from fluxmq.spark.measures.measures import COLUMNS, PERCENTILES, Counted, Measures, bucket_width, finish
from fluxmq.spark.result import Result

__all__ = ["first_deliveries", "live_deliveries", "measure_with_spark", "sent_and_came"]

MICROSECOND = 1000
GOOD_REASONS = 128
MESSAGE = ("client_number", "publisher", "publisher_op")


def measure_with_spark(result: Result, spark: SparkSession) -> Measures:
    """The same as `measures.measure`. Raises ResultError."""
    rows = result.frame(spark).select(*COLUMNS)
    publishes, came = sent_and_came(rows)
    began = publishes.agg(F.count("*"), F.min("sent"), F.max("sent"),
                          F.count_if(F.expr("qos > 0 AND acked IS NULL")),
                          F.expr("percentile_disc(0.99) WITHIN GROUP (ORDER BY CASE WHEN due IS NOT NULL THEN "
                                 "greatest(sent - due, 0) div 1000 END)")).first()
    assert began is not None
    counted = Counted(published=began[0], start=began[1], end=began[2], unanswered=began[3], late_p99=_whole(began[4]))
    if not counted.published:
        return finish(Counted(), result.summary)
    ended = came.agg(F.max("sent"), F.count_distinct(*MESSAGE), F.count_if(~F.col("dup"))).first()
    assert ended is not None
    counted.end = max(counted.end or 0, ended[0] or 0)
    counted.delivered = ended[1]
    first = first_deliveries(came).cache()
    try:
        counted.duplicates = ended[2] - first.count()
        counted.order_violations = _steps_back(first)
        counted.lost = _gaps(first, publishes, rows)
        _latencies(counted, first, publishes, rows)
    finally:
        first.unpersist()
    return finish(counted, result.summary)


def sent_and_came(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """As in measures.py, like the two that follow."""
    return (rows.where("event = 'publish' AND sent IS NOT NULL"),
            rows.where("event = 'delivery' AND publisher IS NOT NULL AND NOT retain"))


def first_deliveries(came: DataFrame) -> DataFrame:
    nth = F.row_number().over(Window.partitionBy(*MESSAGE).orderBy("op"))
    return came.where("NOT dup").withColumn("nth", nth).where("nth = 1").drop("nth")


def live_deliveries(first: DataFrame, publishes: DataFrame, rows: DataFrame) -> DataFrame:
    sent = publishes.selectExpr("client_number AS publisher", "op AS publisher_op", "sent AS began")
    there = rows.where("event = 'connect'").selectExpr("client_number", "connection", "acked AS since")
    return (first.join(sent, ["publisher", "publisher_op"]).join(there, ["client_number", "connection"], "left")
            .withColumn("began", F.greatest("began", "due")).where("since IS NULL OR since <= began")
            .withColumn("latency", F.expr(f"(sent - began) div {MICROSECOND}")))


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _percentiles() -> list[str]:
    return [f"percentile_disc({part}) WITHIN GROUP (ORDER BY latency) AS {name}" for name, part in PERCENTILES.items()]


def _latencies(counted: Counted, first: DataFrame, publishes: DataFrame, rows: DataFrame) -> None:
    width = bucket_width(counted.start, counted.end)
    live = live_deliveries(first, publishes, rows).selectExpr(
        f"(began - {counted.start}) div {width} AS bucket", "latency").cache()
    try:
        whole = live.agg(*map(F.expr, _percentiles())).first()
        assert whole is not None
        counted.latency = {name: _whole(whole[name]) for name in PERCENTILES}
        for row in live.groupBy("bucket").agg(*map(F.expr, _percentiles())).collect():
            counted.bucket(row["bucket"]).latency = {name: _whole(row[name]) for name in PERCENTILES}
        counted.latencies = {row["number"]: row["count"] for row in live.selectExpr(
            f"{bucket_sql('latency')} AS number").groupBy("number").count().collect()}
    finally:
        live.unpersist()
    number = f"(sent - {counted.start}) div {width} AS bucket"
    for row in publishes.selectExpr(number).groupBy("bucket").count().collect():
        counted.bucket(row["bucket"]).published = row["count"]
    for row in first.selectExpr(number).groupBy("bucket").count().collect():
        counted.bucket(row["bucket"]).delivered = row["count"]


def _steps_back(first: DataFrame) -> int:
    way = Window.partitionBy("client_number", "connection", "publisher", "topic", "qos").orderBy("op")
    return first.select(F.col("publisher_op") < F.lag("publisher_op").over(way)).toDF("back").where("back").count()


def _gaps(first: DataFrame, publishes: DataFrame, rows: DataFrame) -> int:
    unsteady = rows.where("event = 'unsubscribe' OR event = 'subscribe' AND (startswith(topic, '$share/') "
                          "OR startswith(topic, '$queue/'))").select("client_number").distinct()
    rank = F.row_number().over(Window.partitionBy("client_number", "topic").orderBy("op"))
    good = publishes.where(f"qos > 0 AND acked IS NOT NULL AND coalesce(reason, 0) < {GOOD_REASONS}").select(
        F.col("client_number").alias("publisher"), F.col("op").alias("publisher_op"), rank.alias("rank"))
    spans = (first.where("qos > 0").join(unsteady, "client_number", "left_anti")
             .join(good, ["publisher", "publisher_op"])
             .groupBy("client_number", "connection", "publisher", "topic")
             .agg(F.expr("max(rank) - min(rank) + 1 - count(*)").alias("missing")).agg(F.sum("missing")).first())
    assert spans is not None
    return int(spans[0] or 0)
