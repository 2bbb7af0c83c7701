"""A recording as a DataFrame, for all versions of the format."""
from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from fluxmq.record.merging import OF_A_NODE
from fluxmq.record.schema import COLUMNS, is_version_1
from fluxmq.spark.session import file_url

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from fluxmq.record.reading import Recording

__all__ = ["rows_of"]

# Spark has no timestamps of ns, which version 1 uses. As numbers they stay exact.
NANOS_AS_LONG = "spark.sql.legacy.parquet.nanosAsLong"


def rows_of(spark: SparkSession, recording: Recording) -> DataFrame:
    """The recording's rows; `time` is ns since 1970. It has one part at least. Of several nodes as
    fluxmq.record.merging numbers them, in no order."""
    if len(recording.nodes) == 1:
        return _rows(spark, recording)
    count = len(recording.nodes)
    theirs = [_of_all(_rows(spark, one), index, count, one.manifest.cluster.node)
              for index, one in enumerate(recording.nodes) if one.parts]
    return reduce(lambda one, other: one.unionByName(other), theirs)


def _of_all(rows: DataFrame, index: int, count: int, node: str) -> DataFrame:
    """See merging.ClusterRecording."""
    from pyspark.sql import functions as F

    def numbered(name: str) -> Column:
        return F.col(name) * count + index

    return rows.select(*(column.name if column.name != "time_ns" else "time" for column in COLUMNS
                         if column.name != "time")).withColumns({
        "seq": numbered("seq"), "answers": numbered("answers"),
        "connection": F.when(F.col("connection") == 0, F.lit(0)).otherwise(numbered("connection")),
        "client_id": F.when(F.col("protocol") == OF_A_NODE, F.concat("client_id", F.lit(f"@{node}"))).otherwise(
            F.col("client_id"))})


def _rows(spark: SparkSession, recording: Recording) -> DataFrame:
    parts = [file_url(part.absolute()) for part in recording.parts]
    if is_version_1(pq.read_schema(recording.parts[0])):
        spark.conf.set(NANOS_AS_LONG, "true")
        return spark.read.parquet(*parts)
    return spark.read.parquet(*parts).drop("time").withColumnRenamed("time_ns", "time")
