"""Runs Spark for a user at a terminal: with a progress bar, and one sentence if it fails.

    with attempt(spark, "profile", RecordingError, "the recording cannot be read"):
        frame.agg(…).collect()

The bar counts the tasks of the stages that Spark's status tracker has seen. The traces of Spark's Java are not shown:
what failed becomes one error of ours, with what Java said in one line.
"""
from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fluxmq._core.errors import FluxError
from fluxmq.spark.progress import shown

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

__all__ = ["attempt", "in_words", "reason_of", "tasks_of"]

CAUSE = re.compile(r"^(?:Caused by: )?(?:[\w$]+\.)+([\w$]*(?:Exception|Error)[\w$]*)(?:: )?(.*)$")


def tasks_of(tracker: StatusTracker) -> Callable[[], tuple[float | None, str]]:
    """The function for progress.shown(). Finished stages leave the tracker's list, so they are counted here."""
    seen: dict[int, tuple[int, int]] = {}

    def look() -> tuple[float | None, str]:
        active = set(tracker.getActiveStageIds())
        for stage in active | set(seen):
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = (info.numCompletedTasks if stage in active else info.numTasks, info.numTasks)
        done, of = sum(one for one, _ in seen.values()), sum(all_ for _, all_ in seen.values())
        # The number of stages to come is unknown, so the bar shows the known ones.
        return (done / of if of else None), f"{done} of {of} tasks"

    return look


def reason_of(text: str) -> str:
    """The innermost cause of a Java trace, in one line."""
    causes = [match for line in text.splitlines() if (match := CAUSE.match(line.strip()))]
    for match in reversed(causes):
        if match[2].strip():
            return match[2].strip()
    return causes[-1][1] if causes else (text.strip().splitlines() or ["no reason given"])[0]


@contextmanager
def attempt(spark: SparkSession, what: str, kind: type[FluxError], sentence: str) -> Iterator[None]:
    """Runs the block with a bar named `what`. An exception of Spark's is raised as kind("sentence: reason")."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    context = spark.sparkContext
    context.setLogLevel("OFF")
    try:
        with shown(what, tasks_of(context.statusTracker())):
            yield
    except (Py4JError, PySparkException) as error:
        raise kind(f"{sentence}: {reason_of(str(error))}") from None
    finally:
        context.setLogLevel("ERROR")


@contextmanager
def in_words() -> Iterator[None]:
    """Prints a FluxError as one sentence on standard error, with exit status 1."""
    try:
        yield
    except FluxError as error:
        sys.stderr.write(f"fluxmq: {error}\n")
        raise SystemExit(1) from None
