"""The Spark data source `fluxmq`: `register(spark)` makes it known to a session. See docs/spark.md."""
from fluxmq.spark.source.data_source import FluxDataSource, register

__all__ = ["FluxDataSource", "register"]
