"""A recording as a DataFrame, for all versions of the format."""
from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from fluxmq.record.schema import is_version_1
from fluxmq.spark.session import file_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluxmq.record.reading import Recording

__all__ = ["rows_of"]

# Spark has no timestamps of ns, which version 1 uses. As numbers they stay exact.
NANOS_AS_LONG = "spark.sql.legacy.parquet.nanosAsLong"


def rows_of(spark: SparkSession, recording: Recording) -> DataFrame:
    """The recording's parts; `time` is ns since 1970. It has one part at least."""
    parts = [file_url(part.absolute()) for part in recording.parts]
    if is_version_1(pq.read_schema(recording.parts[0])):
        spark.conf.set(NANOS_AS_LONG, "true")
        return spark.read.parquet(*parts)
    return spark.read.parquet(*parts).drop("time").withColumnRenamed("time_ns", "time")
