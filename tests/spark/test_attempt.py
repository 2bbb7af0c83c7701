"""The bar of a job's tasks, and the sentence that is made of what Java says."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from fluxmq.spark.attempt import reason_of, tasks_of

TRACE = """An error occurred while calling o55.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file part-1.parquet.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:856)
Caused by: java.lang.RuntimeException: part-1.parquet is not a Parquet file. Expected magic number at tail
\tat org.apache.parquet.hadoop.ParquetFileReader.readFooter(ParquetFileReader.java:595)
"""


@dataclass
class Stage:
    numTasks: int
    numCompletedTasks: int


class Tracker:
    """What StatusTracker tells, stage by stage."""

    def __init__(self) -> None:
        self.active: list[int] = []
        self.stages: dict[int, Stage] = {}

    def getActiveStageIds(self) -> list[int]:
        return self.active

    def getStageInfo(self, number: int) -> Stage | None:
        return self.stages.get(number)


def test_tasks_are_added_up() -> None:
    tracker = Tracker()
    look = tasks_of(cast(Any, tracker))
    assert look() == (None, "0 of 0 tasks")
    tracker.active, tracker.stages = [1], {1: Stage(4, 1)}
    assert look() == (0.25, "1 of 4 tasks")
    # The first has ended, and Spark has forgotten how far it was; the second began.
    tracker.active, tracker.stages = [2], {1: Stage(4, 3), 2: Stage(4, 1)}
    assert look() == (5 / 8, "5 of 8 tasks")
    tracker.active, tracker.stages = [2], {2: Stage(4, 4)}
    assert look() == (1.0, "8 of 8 tasks")


def test_the_reason_is_the_innermost() -> None:
    assert reason_of(TRACE) == "part-1.parquet is not a Parquet file. Expected magic number at tail"
    assert reason_of("java.lang.NullPointerException\n\tat x") == "NullPointerException"
    assert reason_of("no trace at all\nsecond line") == "no trace at all" and reason_of("") == "no reason given"
