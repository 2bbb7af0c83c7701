"""Readings joined with a table of limits; those above go to a queue, each once.

    python -m fluxmq.spark.examples.alarms --admin /var/lib/fluxmq/admin.sock --queue readings --limits limits.csv \\
        --broker localhost:1883 --alarms alarms --checkpoint alarms.checkpoint

limits.csv has the columns topic and most. Whoever consumes the queue `alarms` gets {"topic", "value", "most"}, with the
topic as partition key. A batch that Spark runs twice is in the queue once: producer and sequence say which it is.
"""
from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fluxmq.spark.attempt import attempt, in_words
from fluxmq.spark.session import session
from fluxmq.spark.source.columns import SourceError
from fluxmq.spark.source.data_source import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["main", "raise_alarms"]


def raise_alarms(spark: SparkSession, admin: str, queue: str, limits: DataFrame, broker: str, alarms: str,
                 checkpoint: str) -> StreamingQuery:
    """The query, started: what is there now is read, then it ends. limits: topic, most."""
    from pyspark.sql import functions as f

    register(spark)
    readings = (
        spark.readStream.format("fluxmq").option("admin", admin).option("queue", queue).load()
        .select("topic", f.from_json(f.col("payload").cast("string"), "value double").getField("value").alias("value")))
    high = (
        # a broadcast table leaves the rows of a partition in their order, which the sink counts on
        readings.join(f.broadcast(limits), "topic").where("value > most")
        .select(f.to_json(f.struct("topic", "value", "most")).alias("payload"), f.col("topic").alias("key")))
    return (high.writeStream.format("fluxmq").option("broker", broker).option("queue", alarms)
            .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("admin", "queue", "limits", "broker", "alarms", "checkpoint"):
        parser.add_argument(f"--{option}", required=True)
    given = parser.parse_args()
    with in_words():
        spark = session("alarms")
        with attempt(spark, "alarms", SourceError, "no alarms can be raised"):
            table = spark.read.csv(given.limits, header=True, schema="topic string, most double")
            raise_alarms(spark, given.admin, given.queue, table, given.broker, given.alarms,
                         given.checkpoint).awaitTermination()


if __name__ == "__main__":
    main()
