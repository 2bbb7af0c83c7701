"""What a person sees of a job that takes longer than two seconds, and of one that fails: a bar, and one sentence.

    with progress(spark, "profile"), told(RecordingError, "the recording cannot be read"):
        frame.agg(…).collect()

The bar counts tasks by Spark's status tracker, on standard error and on a terminal only. `told` keeps the traces of
Spark's Java from being shown: what failed becomes one error of ours, with what Java said in one line.
"""
from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from fluxmq._core.errors import FluxError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bar", "progress", "told"]

AFTER_S = 2.0
EVERY_S = 0.3
WIDTH = 30
CAUSE = re.compile(r"^(?:Caused by: )?(?:[\w$]+\.)+([\w$]*(?:Exception|Error)[\w$]*)(?:: )?(.*)$")


def bar(what: str, done: int, of: int) -> str:
    """One line: what, how far, how many tasks."""
    filled = WIDTH * done // of if of else 0
    return f"{what} [{'#' * filled}{' ' * (WIDTH - filled)}] {done}/{of} tasks"


class _Watcher(threading.Thread):
    """Draws until it is told to stop. Stages that are done leave the tracker's list, so they are added up here."""

    def __init__(self, spark: SparkSession, what: str, stream: TextIO) -> None:
        super().__init__(name="progress", daemon=True)
        self.tracker = spark.sparkContext.statusTracker()
        self.what = what
        self.stream = stream
        self.ended = threading.Event()
        self.seen: dict[int, tuple[int, int]] = {}
        self.drawn = False

    def run(self) -> None:
        if self.ended.wait(AFTER_S):
            return
        while not self.ended.wait(EVERY_S):
            self.draw()

    def draw(self) -> None:
        active = set(self.tracker.getActiveStageIds())
        for stage in active | set(self.seen):
            info = self.tracker.getStageInfo(stage)
            if info is not None:
                done = info.numCompletedTasks if stage in active else info.numTasks
                self.seen[stage] = (done, info.numTasks)
        done, of = (sum(numbers) for numbers in zip(*self.seen.values(), strict=True)) if self.seen else (0, 0)
        self.stream.write("\r" + bar(self.what, done, of) + "\x1b[K")
        self.stream.flush()
        self.drawn = True

    def end(self) -> None:
        self.ended.set()
        self.join()
        if self.drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


@contextmanager
def progress(spark: SparkSession, what: str, stream: TextIO | None = None) -> Iterator[None]:
    """A bar of Spark's tasks while the block runs, from AFTER_S on, if the stream (None: standard error) is a terminal."""
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        yield
        return
    watcher = _Watcher(spark, what, out)
    watcher.start()
    try:
        yield
    finally:
        watcher.end()


def _reason(text: str) -> str:
    """The innermost cause of a Java trace, in one line."""
    causes = [match for line in text.splitlines() if (match := CAUSE.match(line.strip()))]
    for match in reversed(causes):
        if match[2].strip():
            return match[2].strip()
    return causes[-1][1] if causes else (text.strip().splitlines() or ["no reason given"])[0]


@contextmanager
def told(kind: type[FluxError], sentence: str, spark: SparkSession | None = None) -> Iterator[None]:
    """Whatever Spark raises in the block becomes kind(sentence: reason). spark: whose log is silent meanwhile."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if spark is not None:
        spark.sparkContext.setLogLevel("OFF")
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise kind(f"{sentence}: {_reason(str(error))}") from None
    finally:
        if spark is not None:
            spark.sparkContext.setLogLevel("ERROR")
