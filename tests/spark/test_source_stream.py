"""Structured streaming from queues: every offset exactly once, whatever ends in between."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kit.source import QueueBroker, forget_last_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

Start = Callable[..., QueueBroker]
QUERY_SECONDS = 120


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[..., StreamingQuery]:
    """run(queue="s", admin=…): what is there now goes to Parquet; the checkpoint stays from call to call."""
    from fluxmq.spark.source.data_source import register

    register(spark)

    def once(**options: object) -> StreamingQuery:
        query = (spark.readStream.format("fluxmq").options(**{name: str(value) for name, value in options.items()})
                 .load().select("queue", "partition", "offset", "payload")
                 .writeStream.format("parquet").option("path", str(tmp_path / "out"))
                 .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start())
        query.awaitTermination(QUERY_SECONDS)
        return query
    return once


@pytest.fixture
def got(spark: SparkSession, tmp_path: Path) -> Callable[[], list[tuple[str, int, int, int]]]:
    """Everything that was written so far."""
    def read() -> list[tuple[str, int, int, int]]:
        return sorted((found.queue, found.partition, found.offset, int(found.payload))
                      for found in spark.read.parquet(str(tmp_path / "out")).collect())
    return read


def shown(world: QueueBroker, *queues: str) -> list[tuple[str, int, int, int]]:
    return sorted((queue, message["partition"], message["offset"], int(message["payload"]))
                  for queue in queues for message in world.browse(queue))


def test_every_offset_once_over_restarts_and_kills(
        run: Callable[..., StreamingQuery], got: Callable[[], list[Any]], start_queues: Start, tmp_path: Path) -> None:
    """The broker is killed between batches, the query runs a batch again, a queue is new."""
    world = start_queues({"name": "s-1", "type": "stream", "partitions": 2}, busy=True)
    place = {"queue": "s-*", "admin": world.socket, "maxMessagesPerTrigger": 400}
    world.put("s-1", 700)
    query = run(**place)
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [400, 300]
    world.broker.kill()
    world.broker.start()
    world.put("s-1", 100, 700)
    world.admin.ask("PUT", "queues", "s-2", body={"type": "stream"})
    world.put("s-2", 50, 1000)
    run(**place)
    assert got() == shown(world, "s-1", "s-2")
    forget_last_commit(tmp_path / "checkpoint")
    world.broker.kill()
    world.broker.start()
    world.put("s-2", 10, 1050)
    run(**place)
    assert got() == shown(world, "s-1", "s-2"), "a batch that was run again is the same batch"


def test_what_retention_took(run: Callable[..., StreamingQuery], got: Callable[[], list[Any]],
                             start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream"})
    place = {"queue": "s", "admin": world.socket}
    world.put("s", 20)
    run(**place)
    world.put("s", 30, 20)
    world.admin.ask("POST", "queues", "s", "purge")
    world.put("s", 5, 50)
    with pytest.raises(Exception, match="queue s has lost 30 messages of partition 0 before they were read"):
        run(**place)
    query = run(**place, failOnDataLoss=False)
    assert [one[3] for one in got()] == [*range(20), *range(50, 55)]
    assert query.lastProgress is not None
    end = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert end["s"]["0"]["lost"] == 30, "counted where the user sees it"


def test_a_directory_as_a_stream(run: Callable[..., StreamingQuery], got: Callable[[], list[Any]],
                                 start_queues: Start) -> None:
    """Of a running broker, whose checkpoints move what was in the journal."""
    world = start_queues({"name": "s", "type": "stream"}, busy=True)
    place = {"queue": "s", "logs": world.data}
    world.put("s", 1500)
    run(**place)
    world.put("s", 1500, 1500)
    world.broker.terminate()
    run(**place)
    world.broker.start()
    assert got() == shown(world, "s")


def test_a_stream_has_no_end(run: Callable[..., StreamingQuery], start_queues: Start) -> None:
    with pytest.raises(Exception, match="a stream has no end"):
        run(queue="s", admin="x", endingOffsets='{"0": 1}')
