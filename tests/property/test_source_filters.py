"""Rows with Spark's filters handed to the source are the rows that Spark would have left: any filters, any logs."""
from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kit.tools import missing_tool
from oracle import stored

from fluxmq._core.queue.rows import Rows

try:
    from pyspark.sql import datasource as spark

    from fluxmq.spark.source.columns import SCHEMA
    from fluxmq.spark.source.data_source import FluxDataSource, FluxPushingReader, FluxReader
    from fluxmq.spark.source.place import LogRange, QueueLog, QueueLogs, feed, signed
    from fluxmq.spark.source.plan import Filters
except ImportError:
    missing_tool("PySpark is not installed (pip install '.[spark]')")

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
QUEUES = ("q-1", "q-2")
TOPICS = ("a", "a/b", "ab", "ü", "b", "")
LANES = (0, 3, 127, 128, 255)
COMPARED: dict[type[Any], Callable[[Any, Any], bool]] = {
    spark.EqualTo: operator.eq, spark.LessThan: operator.lt, spark.LessThanOrEqual: operator.le,
    spark.GreaterThan: operator.gt, spark.GreaterThanOrEqual: operator.ge}
Message = tuple[int, int, str]          # offset, ms, topic


class Shelf:
    """A `Place` in memory. Clocks are set back now and then."""

    def __init__(self, logs: dict[tuple[str, int, int], list[Message]]) -> None:
        self.held = logs

    def names(self) -> list[str]:
        return list(QUEUES)

    def logs(self, queue: str, time_ms: int | None = None) -> QueueLogs:
        found = []
        for (name, partition, lane), messages in sorted(self.held.items()):
            if name == queue:
                base = lane << 56
                end = messages[-1][0] + 1 if messages else base
                offset = None if time_ms is None else next((one[0] for one in messages if one[1] >= time_ms), end)
                found.append(QueueLog(partition, lane, lane + 1, base, end, 1000, offset))
        return QueueLogs(queue, "stream", found)

    def extra(self, queue: QueueLogs, log: QueueLog, start: int, end: int) -> None:
        return None

    def read(self, work: LogRange, rows: Rows, filters: Filters) -> Iterator[None]:
        messages = self.held[work.queue, work.log.partition, work.log.lane]
        yield from feed(rows, b"".join(stored.message(offset, time, topic.encode(), b"p")
                                       for offset, time, topic in messages))


@st.composite
def shelves(draw: st.DrawFn) -> Shelf:
    held: dict[tuple[str, int, int], list[Message]] = {}
    for queue in QUEUES:
        for partition in range(draw(st.integers(1, 2))):
            for lane in draw(st.sets(st.sampled_from(LANES), min_size=1, max_size=2)):
                told = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), st.sampled_from(TOPICS)),
                                     max_size=8))
                at, messages = (lane << 56) - 1, []
                for gap, time, topic in told:
                    at += gap
                    messages.append((at, time, topic))
                held[queue, partition, lane] = messages
    return Shelf(held)


times = st.integers(-2000, 32_000).map(lambda micros: EPOCH + datetime.timedelta(microseconds=micros))
offsets = st.one_of(st.integers(-2, 12), st.builds(
    lambda lane, low: signed((lane << 56) + low), st.sampled_from(LANES), st.integers(0, 12)))
values: dict[str, st.SearchStrategy[Any]] = {
    "offset": offsets, "time": times, "topic": st.sampled_from(TOPICS), "partition": st.integers(-1, 2),
    "queue": st.sampled_from((*QUEUES, "other"))}


@st.composite
def filters(draw: st.DrawFn) -> spark.Filter:
    column = draw(st.sampled_from(sorted(values)))
    kind = draw(st.sampled_from([*COMPARED, spark.In, spark.IsNotNull, spark.StringStartsWith, spark.Not]))
    if kind is spark.IsNotNull:
        return spark.IsNotNull((column,))
    if kind is spark.StringStartsWith:
        return spark.StringStartsWith(("topic",), draw(st.sampled_from(("", "a", "a/", "ü", "x"))))
    if kind is spark.In:
        return spark.In((column,), tuple(draw(st.lists(st.one_of(st.none(), values[column]), max_size=3))))
    if kind is spark.Not:
        return spark.Not(spark.EqualTo((column,), draw(values[column])))
    made: spark.Filter = kind((column,), draw(values[column]))
    return made


def holds(one: spark.Filter, row: dict[str, Any]) -> bool:
    """As SQL has it; nothing in these rows is null."""
    if isinstance(one, spark.Not):
        return not holds(one.child, row)
    found = row[one.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(one, spark.IsNotNull):
        return True
    if isinstance(one, spark.StringStartsWith):
        return bool(found.startswith(one.value))
    if isinstance(one, spark.In):
        return any(found == value for value in one.value if value is not None)
    return COMPARED[type(one)](found, one.value)  # type: ignore[attr-defined]


def rows_of(made: FluxReader) -> list[dict[str, Any]]:
    return [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]


@given(shelves(), st.lists(filters(), max_size=4), st.integers(0, 5))
def test_pushed_down_or_not_the_rows_are_the_same(shelf: Shelf, asked: list[spark.Filter], least: int) -> None:
    def reader(pushdown: bool) -> FluxReader:
        made = FluxDataSource({"queue": "q-*", "admin": "nowhere", "minPartitions": str(least),
                               "pushdown": str(pushdown)}).reader(SCHEMA)
        assert isinstance(made, FluxReader)
        made.place = shelf
        return made

    def known(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["queue"], row["partition"], row["offset"], row["time"], row["topic"]

    plain, pushing = reader(False), reader(True)
    assert isinstance(pushing, FluxPushingReader)
    left = list(pushing.pushFilters(asked))
    every = rows_of(plain)
    assert len(every) == sum(map(len, shelf.held.values()))
    wanted = [row for row in every if all(holds(one, row) for one in asked)]
    found = [row for row in rows_of(pushing) if all(holds(one, row) for one in left)]
    assert sorted(map(known, found)) == sorted(map(known, wanted))
