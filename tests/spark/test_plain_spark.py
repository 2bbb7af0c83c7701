"""Plain Spark reads a recording by the name of its directory, without a setting; what an earlier version wrote is
replayed and profiled all the same."""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kit.recordings import as_version_1
from kit.story import Story, write_nodes

from fluxmq.record.files import OPEN
from fluxmq.record.merging import open_recordings
from fluxmq.record.reading import open_recording
from fluxmq.spark.replay.plan import plain_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NANOS_AS_LONG = "spark.sql.legacy.parquet.nanosAsLong"


def story() -> Story:
    told = Story()
    told.connect("one")
    told.subscribe("one", ("a/#", 1))
    for number in range(20):
        told.publish("one", f"a/{number % 3}", 1, at=1 + number * 0.000_001_003)
    return told


def test_spark_reads_it_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    path = story().write(tmp_path / "monday", rows_per_part=10)
    (path / f"_part-000009.parquet{OPEN}").write_bytes(b"PAR1 and no more")
    before = spark.conf.get(NANOS_AS_LONG, None)
    spark.conf.unset(NANOS_AS_LONG)
    try:
        rows = spark.read.parquet(str(path)).selectExpr("time_ns", "unix_micros(time) as us", "kind").collect()
    finally:
        if before is not None:
            spark.conf.set(NANOS_AS_LONG, before)
    assert sorted(row.time_ns for row in rows) == [row["time"] for row in story().rows]
    assert all(row.us == row.time_ns // 1000 for row in rows)


def test_spark_makes_a_column_of_the_node(spark: SparkSession, tmp_path: Path) -> None:
    """Of the recordings of a cluster, by the names of their directories; a replay does not depend on these."""
    from fluxmq.spark.recorded import rows_of

    place = write_nodes(story(), tmp_path / "all", lambda number: 1)
    rows = spark.read.parquet(str(place)).groupBy("node").count().collect()
    assert [(row["node"], row["count"]) for row in rows] == [("n1", len(story().rows))]
    assert "node" not in rows_of(spark, open_recordings(place)).columns


def test_what_an_earlier_version_wrote_is_planned_and_profiled(spark: SparkSession, tmp_path: Path) -> None:
    from fluxmq.spark.profile.scans import by_rate
    from fluxmq.spark.recorded import rows_of
    from fluxmq.spark.replay.plan_spark import recorded_rows, spark_operations, spark_survey

    now = open_recording(story().write(tmp_path / "now"))
    before = open_recording(as_version_1(story().write(tmp_path / "before")))
    plan, (part,) = plain_plan(now)
    wanted = [row for batch in part for row in batch.to_pylist()]
    assert [row for batch in plain_plan(before)[1][0] for row in batch.to_pylist()] == wanted
    for recording in (now, before):
        rows = recorded_rows(spark, recording)
        assert spark_survey(rows).first == plan.survey.first
        assert spark_operations(spark, rows, plan).toArrow().to_pylist() == wanted
        rates = by_rate(rows_of(spark, recording)).collect()
        assert min(row["first"] for row in rates) == story().rows[0]["time"]
