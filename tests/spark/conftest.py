"""One local Spark session for all tests of a worker: it takes seconds to start."""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from crash.process import CrashBroker
from kit.broker import Broker
from kit.brokers import Brokers
from kit.source import QueueBroker
from kit.tools import missing_tool, require_tool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_SECONDS = 500             # of a test: a machine with other work takes minutes to start Spark


@pytest.fixture(scope="session", autouse=True)
def without_progress() -> Iterator[None]:
    """What is said now and then on a busy machine (spark/progress.py) is no part of what tests compare."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fluxmq.spark.progress.LINE_EVERY_S", 3600.0)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`, its temporary files below pytest's. Skips, or fails, without PySpark and Java (kit/tools.py)."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        missing_tool("PySpark is not installed (pip install '.[spark]')")
    require_tool("java", package="default-jre-headless")
    from fluxmq.spark.session import session

    place = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(place))
    # Tables of a few rows: to compile their plans takes longer than to interpret them.
    made = session("fluxmq tests", "local[2]", {
        "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={place} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
                                         " -XX:ReservedCodeCacheSize=256m"})
    yield made
    made.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test is the first of its worker waits for Spark to start. One that is broken off meanwhile leaves the
    connection to Java useless for all others."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS))


@pytest.fixture
def start_queues(brokers: Brokers) -> Callable[..., QueueBroker]:
    """start_queues({"name": "readings", "type": "stream"}, busy=True): a broker with these queues. busy: its journal
    files are small, so that checkpoints and retention happen within a moment."""
    def start(*queues: dict[str, Any], busy: bool = False, **settings: Any) -> QueueBroker:
        kind = CrashBroker if busy else Broker
        return QueueBroker(brokers.start(kind, {"queues": json.dumps(list(queues))} | settings))

    return start
