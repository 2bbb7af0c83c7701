"""Readings of sensors, averaged by minute and topic, into Parquet.

    python -m fluxmq.spark.examples.sensors --admin /var/lib/fluxmq/admin.sock --queue readings --out minutes.parquet

The queue (a stream with a pattern in `topics`) captures topics such as `sensors/hall/temperature`; a payload is JSON:
{"at": "2026-01-31T08:00:00Z", "value": 21.5}. A minute is written when readings ten minutes younger have come. Run it
again whenever you like: it goes on where it stopped, and writes every minute once.
"""
from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fluxmq.spark.attempt import attempt, in_words
from fluxmq.spark.session import session
from fluxmq.spark.source.columns import SourceError
from fluxmq.spark.source.data_source import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["by_minute", "main"]


def by_minute(spark: SparkSession, admin: str, queue: str, out: str) -> StreamingQuery:
    """The query, started: what is there now is read, then it ends. out: a directory; the checkpoint is beside it."""
    from pyspark.sql import functions as f

    register(spark)
    readings = (
        spark.readStream.format("fluxmq").option("admin", admin).option("queue", queue).load()
        .select("topic", f.from_json(f.col("payload").cast("string"), "at timestamp, value double").alias("reading"))
        .select("topic", "reading.*"))
    minutes = (
        readings.withWatermark("at", "10 minutes").groupBy(f.window("at", "1 minute"), "topic")
        .agg(f.count("*").alias("readings"), f.avg("value").alias("mean"), f.min("value").alias("min"),
             f.max("value").alias("max"))
        .select("window.start", "topic", "readings", "mean", "min", "max"))
    return (minutes.writeStream.format("parquet").option("path", out).option("checkpointLocation", f"{out}.checkpoint")
            .trigger(availableNow=True).start())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("admin", "queue", "out"):
        parser.add_argument(f"--{option}", required=True)
    given = parser.parse_args()
    with in_words():
        spark = session("sensors")
        with attempt(spark, "sensors", SourceError, "the readings cannot be averaged"):
            by_minute(spark, given.admin, given.queue, given.out).awaitTermination()


if __name__ == "__main__":
    main()
