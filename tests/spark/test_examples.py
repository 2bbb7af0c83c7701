"""The examples of the data source do what they say."""
from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kit.client import Client
from kit.source import QueueBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY_SECONDS = 120
BEGIN = datetime(2026, 1, 31, 8, 0, tzinfo=UTC)


def publish(world: QueueBroker, readings: list[tuple[str, datetime, float]]) -> None:
    """To ordinary topics, which the queue captures."""
    client = Client(world.broker.address)
    client.connect("sensors")
    for topic, at, value in readings:
        client.publish(topic, json.dumps({"at": at.isoformat(), "value": value}).encode(), 1, expect=0)
    client.disconnect()


def test_by_minute(spark: SparkSession, start_queues: Callable[..., QueueBroker], tmp_path: Path) -> None:
    from fluxmq.spark.examples.sensors import by_minute

    world = start_queues({"name": "readings", "type": "stream", "topics": ["sensors/#"], "capture": "confirmed"})
    out = str(tmp_path / "minutes")
    publish(world, [(f"sensors/{room}/temperature", BEGIN + timedelta(seconds=10 * n), float(n))
                    for n in range(12) for room in ("hall", "attic")])
    publish(world, [("sensors/hall/temperature", BEGIN + timedelta(hours=1), 0.0)])     # closes what was before
    assert by_minute(spark, world.socket, "readings", out).awaitTermination(QUERY_SECONDS)
    found = sorted(tuple(row) for row in spark.read.parquet(out).select(
        "topic", "readings", "mean", "min", "max").collect())
    assert found == [(f"sensors/{room}/temperature", 6, mean, least, least + 5.0)
                     for room in ("attic", "hall") for mean, least in ((2.5, 0.0), (8.5, 6.0))]


def test_alarms(spark: SparkSession, start_queues: Callable[..., QueueBroker], tmp_path: Path) -> None:
    from fluxmq.spark.examples.alarms import raise_alarms

    world = start_queues({"name": "readings", "type": "stream", "topics": ["sensors/#"], "capture": "confirmed"},
                         {"name": "alarms"})
    limits = spark.createDataFrame([("sensors/oven", 200.0), ("sensors/hall", 30.0)], "topic string, most double")
    publish(world, [(f"sensors/{place}", BEGIN, value) for place, value in (
        ("oven", 210.0), ("oven", 180.0), ("hall", 31.0), ("cellar", 99.0))])
    for _ in range(2):
        assert raise_alarms(spark, world.socket, "readings", limits, world.address, "alarms",
                            str(tmp_path / "checkpoint")).awaitTermination(QUERY_SECONDS)
    messages = world.browse("alarms")
    assert sorted((json.loads(one["payload"])["topic"], json.loads(one["payload"])["value"]) for one in messages) == [
        ("sensors/hall", 31.0), ("sensors/oven", 210.0)]
    assert {dict(map(tuple, one["user_properties"]))["partition-key"] for one in messages} == {
        "sensors/oven", "sensors/hall"}


def test_what_goes_wrong_is_one_sentence(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    from fluxmq.spark.examples import alarms, sensors

    (tmp_path / "limits.csv").write_text("topic,most\nsensors/oven,200\n")
    for program, more, said in (
            (sensors, {"out": tmp_path / "out"}, "the readings cannot be averaged: no broker answers at /nowhere/"),
            (alarms, {"limits": tmp_path / "limits.csv", "broker": "127.0.0.1:1", "alarms": "alarms",
                      "checkpoint": tmp_path / "checkpoint"}, "no alarms can be raised: no broker answers at"),
            (alarms, {"limits": tmp_path / "none.csv", "broker": "127.0.0.1:1", "alarms": "alarms",
                      "checkpoint": tmp_path / "checkpoint"}, "none.csv")):
        words = {"admin": "/nowhere/a.sock", "queue": "readings"} | more
        monkeypatch.setattr("sys.argv", ["program", *[f"--{name}={value}" for name, value in words.items()]])
        with pytest.raises(SystemExit) as ended:
            program.main()
        shown = capsys.readouterr().err.strip()
        assert ended.value.code == 1 and said in shown and "\n" not in shown
