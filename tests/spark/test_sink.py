"""What Spark writes: once into a queue, with keys and properties; sentences for what cannot be written."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kit.client import Client
from kit.source import QueueBroker, forget_last_commit
from kit.tools import missing_tool
from oracle.mqtt import Publish

try:
    import pyarrow as pa

    from fluxmq.spark.source.columns import SourceError
    from fluxmq.spark.source.sink import Message, Target, messages_of, publish_all
except ImportError:
    missing_tool("PySpark is not installed (pip install '.[spark]')")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Callable[..., QueueBroker]
QUERY_SECONDS = 120


def send(target: Target, rows: list[dict[str, Any]], producer: str = "p/0", sequence: int = 0) -> int:
    batches = pa.Table.from_pylist(rows).to_batches()
    return asyncio.run(publish_all(target, messages_of(batches, target, producer, sequence)))


def test_twice_is_once(start_queues: Start) -> None:
    """Also when the second time has more, and more than a queue tells apart."""
    world = start_queues({"name": "s", "type": "stream"})
    target = Target(world.address, queue="s")
    rows = [{"payload": str(n)} for n in range(3000)]
    assert send(target, rows[:2500]) == 2500
    assert send(target, rows) == 3000
    assert send(target, rows) == 3000
    assert [int(message["payload"]) for message in world.browse("s")] == list(range(3000))
    assert send(target, rows[:10], sequence=1 << 32) == 10
    assert send(target, rows[:10], producer="p/1") == 10
    assert world.admin.ask("GET", "queues", "s")["messages"] == 3020


def test_what_a_row_becomes(start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream", "partitions": 4})
    target = Target(world.address, queue="s")
    send(target, [
        {"payload": b"\xff\x00", "key": "a", "content_type": "x/y",
         "properties": [("response-topic", "r/t"), ("correlation-data", "ff01"), ("exchange", "e")],
         "headers": [("h", "1"), ("producer-id", "not mine")]}])
    (found,) = world.browse("s")
    assert found["properties"] == {"content-type": "x/y", "response-topic": "r/t", "correlation-data": "ff01"}
    assert dict(map(tuple, found["user_properties"])) == {
        "producer-id": "p/0", "producer-sequence": "0", "partition-key": "a", "exchange": "e", "h": "1"}
    with pytest.raises(SourceError, match="property correlation-data cannot be 'no hex'"):
        send(target, [{"payload": b"", "properties": [("correlation-data", "no hex")]}])


def test_topics(start_queues: Start) -> None:
    """By option or by column; ordinary topics carry no producer."""
    world = start_queues()
    client = Client(world.broker.address)
    client.connect("sub")
    client.subscribe("t/#", qos=1)
    send(Target(world.address), [{"payload": "1", "topic": "t/1"}, {"payload": "2", "topic": "t/2"}])
    send(Target(world.address, topic="t/3"), [{"payload": "3", "key": "k"}])
    for number, users in ((1, []), (2, []), (3, [("partition-key", "k")])):
        packet = client.expect(Publish, topic=f"t/{number}", payload=str(number).encode())
        assert list(packet.props("user_property")) == users
    client.close()


def test_refusals(start_queues: Start) -> None:
    world = start_queues({"name": "full", "limits": {"max_depth": 5}})
    with pytest.raises(SourceError, match=r"refused a message to \$queue/full \(0x97.*full"):
        send(Target(world.address, queue="full"), [{"payload": str(n)} for n in range(100)])
    with pytest.raises(SourceError, match=r"refused a message to \$queue/nope \(0x90"):
        send(Target(world.address, queue="nope"), [{"payload": "1"}])
    with pytest.raises(SourceError, match=r"cannot publish to 127\.0\.0\.1:1: .*host:port of an MQTT listener"):
        send(Target("127.0.0.1:1", queue="s"), [{"payload": "1"}])
    with pytest.raises(SourceError, match="neither in column queue nor in column topic"):
        send(Target(world.address), [{"payload": "1", "topic": None}])


def test_a_message_for_which_the_broker_ends_the_connection(start_queues: Start) -> None:
    """It is not published again and again for ever."""
    world = start_queues({"name": "s", "type": "stream"})
    wrong = {"payload": b"\xff", "properties": [("payload-format-indicator", "1")]}
    with pytest.raises(SourceError, match=r"refused one of the 1 messages .* ended the connection: .*\(0x99\)"):
        send(Target(world.address, queue="s"), [wrong])
    for name, value in (("payload-format-indicator", "7"), ("response-topic", "a/#")):
        with pytest.raises(SourceError, match=f"property {name} cannot be '{value}'"):
            send(Target(world.address, queue="s"), [{"payload": b"", "properties": [(name, value)]}])
    with pytest.raises(SourceError, match="the character NUL cannot be in a property of a message"):
        send(Target(world.address, queue="s"), [{"payload": b"", "headers": [("app-id", "a\0b")]}])
    assert world.admin.ask("GET", "queues", "s")["messages"] == 0


def test_a_server_that_acknowledges_nothing() -> None:
    """It takes connections, and ends each at the first message: that has an end."""
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(2)                  # CONNECT, shorter than 128 bytes
        await reader.readexactly(head[1])
        writer.write(bytes((0x20, 3, 0, 0, 0)))             # CONNACK
        await reader.read(1000)                             # PUBLISH
        writer.close()

    async def go() -> None:
        server = await asyncio.start_server(converse, "127.0.0.1", 0)
        async with server:
            target = Target(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", queue="s", timeout=0.5)
            await publish_all(target, iter([Message("$queue/s", b"1", b"")]))

    with pytest.raises(SourceError, match=r"ended each of .* connections without acknowledging anything"):
        asyncio.run(go())


def test_a_broker_that_is_killed_meanwhile(start_queues: Start) -> None:
    """What was not acknowledged is published again, in order, and is there once."""
    world = start_queues({"name": "s", "type": "stream"})
    target = Target(world.address, queue="s")
    batches = pa.Table.from_pylist([{"payload": str(n)} for n in range(6000)]).to_batches(max_chunksize=1000)

    def with_a_kill() -> Any:
        for at, batch in enumerate(batches):
            if at == 3:
                world.broker.kill()
                world.broker.start()
            yield batch

    assert asyncio.run(publish_all(target, messages_of(with_a_kill(), target, "p/0", 0))) == 6000
    assert [int(message["payload"]) for message in world.browse("s")] == list(range(6000))


def test_from_stream_to_stream_once(spark: SparkSession, start_queues: Start, tmp_path: Path) -> None:
    """A batch that Spark writes a second time is in the queue once."""
    from fluxmq.spark.source.data_source import register

    register(spark)
    world = start_queues({"name": "s", "type": "stream"}, {"name": "t", "type": "stream"})
    world.put("s", 1000, user_properties=lambda n: [["n", str(n)]])

    def copy() -> None:
        query = (spark.readStream.format("fluxmq").option("queue", "s").option("admin", world.socket).load()
                 .select("payload", "headers").writeStream.format("fluxmq").option("broker", world.address)
                 .option("queue", "t").option("checkpointLocation", str(tmp_path / "checkpoint"))
                 .queryName("copy").trigger(availableNow=True).start())
        query.awaitTermination(QUERY_SECONDS)

    copy()
    forget_last_commit(tmp_path / "checkpoint")
    copy()
    world.put("s", 100, 1000)
    copy()
    assert [int(message["payload"]) for message in world.browse("t")] == list(range(1100))
    assert world.admin.ask("GET", "queues", "t")["counts"]["repeated"] == 1000
    assert dict(map(tuple, world.browse("t")[7]["user_properties"]))["n"] == "7"
    table = spark.createDataFrame([("again",)], "payload string")
    for _ in range(2):
        (table.write.format("fluxmq").option("broker", world.address).option("queue", "t").option("producer", "job-7")
         .mode("append").save())
    assert sum(message["payload"] == "again" for message in world.browse("t")) == 1
    with pytest.raises(Exception, match="what is in a queue cannot be overwritten"):
        (table.write.format("fluxmq").option("broker", world.address).option("queue", "t").mode("overwrite").save())


@pytest.mark.parametrize(("options", "columns", "text"), [
    ({"queue": "s"}, "payload string", "option broker is needed"),
    ({"broker": "x:1"}, "payload string", "option queue or topic is needed"),
    ({"broker": "x:1", "queue": "s", "topic": "t"}, "payload string", "both given"),
    ({"broker": "x:1", "queue": "s"}, "value string", "needs a column payload"),
    ({"broker": "x:1", "queue": "s"}, "payload string, colour string", "column colour cannot be written"),
    ({"broker": "x:1", "queue": "s"}, "payload int", "column payload is int, and must be binary or string"),
    ({"broker": "x:1", "queue": "s", "timeoutSeconds": "²"}, "payload string", "timeoutSeconds is a number from 0 on"),
    ({"broker": "x:1", "queue": "s", "qos": "2"}, "payload string", "no option qos for writing"),
])
def test_what_cannot_be_written(options: dict[str, str], columns: str, text: str) -> None:
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType

    kinds = {"string": StringType(), "int": IntegerType()}
    schema = StructType([StructField(name, kinds[kind]) for name, kind in (
        column.split() for column in columns.split(", "))])
    with pytest.raises(SourceError, match=text):
        Target.read(options, schema)
