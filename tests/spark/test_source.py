"""The data source in Spark: schema, filters that Spark hands down, errors that a user can read."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from kit.source import QueueBroker, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Start = Callable[..., QueueBroker]


@pytest.fixture
def source(spark: SparkSession) -> Callable[..., DataFrame]:
    """source(queue="s", admin=…): the table."""
    from fluxmq.spark.source.data_source import register

    register(spark)

    def load(**options: object) -> DataFrame:
        return spark.read.format("fluxmq").options(**{name: str(value) for name, value in options.items()}).load()
    return load


def test_a_table_from_broker_and_directory(source: Callable[..., DataFrame], start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream", "partitions": 2})
    world.put("s", 2000, key=lambda n: f"k{n % 4}", content_type="text/plain", expiry_s=900,
              user_properties=lambda n: [["partition-key", str(n % 7)]])
    shown = world.shown("s")
    table = source(queue="s", admin=world.socket)
    assert table.schema.simpleString() == (
        "struct<queue:string,partition:int,offset:bigint,time:timestamp,topic:string,payload:binary,"
        "content_type:string,key:string,priority:smallint,qos:tinyint,expiry:timestamp,properties:map<string,string>,"
        "headers:map<string,string>,format:string>")
    assert sorted(row(found.asDict()) for found in table.collect()) == shown
    assert sorted(row(found.asDict()) for found in source(queue="s", logs=world.data, minPartitions=4).collect()) == (
        shown)
    assert table.select("queue", "partition").distinct().count() == 2


def test_filters_of_spark(source: Callable[..., DataFrame], start_queues: Start) -> None:
    """Without `pushdown` any number of questions about one table; with it the source answers, and Spark need not."""
    world = start_queues({"name": "s", "type": "stream"})
    world.put("s", 500, key=lambda n: f"k{n % 4}")
    place = {"queue": "s", "admin": world.socket}
    question = "topic = '$queue/s/k1' and offset >= 10 and cast(payload as string) like '%1'"
    wanted = [n for n in range(10, 500) if n % 4 == 1 and n % 10 == 1]
    for pushdown in (False, True):
        asked = source(**place, pushdown=pushdown).where(question)
        assert sorted(int(found.payload) for found in asked.collect()) == wanted
        plan = asked._jdf.queryExecution().toString().split("== Physical Plan ==")[1]  # type: ignore[operator]
        filters = "".join(line for line in plan.splitlines() if " Filter (" in line)
        assert "payload" in filters and ("topic" in filters) != pushdown and ("offset" in filters) != pushdown
    table = source(**place)
    assert [table.where(text).count() for text in ("topic = '$queue/s/k1'", "time < '2021-01-01'", "offset < 7", "true")
            ] == [125, 0, 7, 500]
    assert source(**place, pushdown=True).where("time >= '2020-01-01' and time < '2021-01-01'").count() == 0


def test_what_a_user_reads_when_it_goes_wrong(source: Callable[..., DataFrame], start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream"})
    world.put("s", 10)
    for options, text in (
            ({"queue": "zz", "admin": world.socket}, "there is no queue zz"),
            ({"queue": "s", "admin": "/nowhere/admin.sock"}, "no broker answers at /nowhere/admin.sock"),
            ({"queue": "s", "admin": world.socket, "startingOffsets": '{"0": 11}'}, "there are 0 to 10"),
            ({"queue": "s", "logs": world.broker.directory}, "it is not the storage directory of a broker")):
        with pytest.raises(Exception, match=r"SourceError|NoQueue") as caught:
            source(**options).collect()
        assert text in str(caught.value)
