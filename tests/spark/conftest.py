"""One local Spark session for all tests of a worker: it takes seconds to start."""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from kit.tools import missing_tool, require_tool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`, its temporary files below pytest's. Skips, or fails, without PySpark and Java (kit/tools.py)."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        missing_tool("PySpark is not installed (pip install 'fluxmq[spark]')")
    require_tool("java", package="default-jre-headless")
    from fluxmq.spark.session import session

    place = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(place))
    made = session("fluxmq tests", "local[2]", {
        "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={place} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
                                         " -XX:ReservedCodeCacheSize=256m"})
    yield made
    made.stop()
