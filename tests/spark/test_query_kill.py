"""A streaming query that is killed (SIGKILL, the JVM and its Python workers) and started again: every message once."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.python import environment
from kit.source import QueueBroker
from kit.tools import missing_tool, require_tool

try:
    import pyspark  # noqa: F401
except ImportError:
    missing_tool("PySpark is not installed (pip install '.[spark]')")

MESSAGES = 2400
QUERY_SECONDS = 300
# Says a line for each batch that is done, so that whoever kills it knows that it is in the middle.
PROGRAM = """
import sys
from fluxmq.spark.session import session
from fluxmq.spark.source.data_source import register
admin, broker, checkpoint, folder = sys.argv[1:]
spark = session("copy", "local[2]", {
    "spark.driver.memory": "512m", "spark.local.dir": folder, "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"})
register(spark)
query = (spark.readStream.format("fluxmq").option("queue", "s").option("admin", admin)
         .option("maxMessagesPerTrigger", "400").load().select("payload", "key")
         .writeStream.format("fluxmq").option("broker", broker).option("queue", "t")
         .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination()
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_query_that_is_killed_between_publish_and_commit(start_queues: Callable[..., QueueBroker],
                                                           tmp_path: Path) -> None:
    require_tool("java", package="default-jre-headless")
    world = start_queues({"name": "s", "type": "stream", "partitions": 2}, {"name": "t", "type": "stream"})
    world.put("s", MESSAGES, user_properties=lambda n: [["partition-key", str(n % 7)]])
    settings = environment(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    command = [sys.executable, "-P", "-c", PROGRAM, world.socket, world.address, str(tmp_path / "checkpoint"),
               str(tmp_path)]

    def written() -> int:
        return int(world.admin.ask("GET", "queues", "t")["messages"])

    with (tmp_path / "first.log").open("wb") as log:
        query = subprocess.Popen(command, env=settings, stdout=log, stderr=log, start_new_session=True)
        try:
            while written() < 700 and query.poll() is None:        # some batches, and a piece of one
                time.sleep(0.05)
        finally:
            os.killpg(query.pid, signal.SIGKILL)
            query.wait()
    assert 700 <= written() < MESSAGES, (tmp_path / "first.log").read_text()
    with (tmp_path / "second.log").open("wb") as log:
        done = subprocess.run(command, env=settings, stdout=log, stderr=log, timeout=QUERY_SECONDS, check=False)
    assert done.returncode == 0, (tmp_path / "second.log").read_text()
    assert sorted(int(message["payload"]) for message in world.browse("t")) == list(range(MESSAGES))
    for key in range(7):
        mine = [int(message["payload"]) for message in world.browse("t") if int(message["payload"]) % 7 == key]
        assert mine == sorted(mine), "the messages of a key are in their order"
