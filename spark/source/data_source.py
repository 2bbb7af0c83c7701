"""The Spark data source `fluxmq`: reads queues and streams as tables and streams, and writes to a broker.

    from fluxmq.spark.source import register
    register(spark)
    spark.read.format("fluxmq").option("queue", "readings").option("admin", "/var/lib/fluxmq/admin.sock").load()

Options, columns and promises: docs/spark.md. Spark calls these classes in processes of its own: they hold nothing that
cannot be pickled.
"""
from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from fluxmq.spark.source.columns import SCHEMA, Columns, SourceError, check_schema
from fluxmq.spark.source.place import LogRange, LogRemoved, Place, QueueLog, QueueLogs, lane_key, signed
from fluxmq.spark.source.plan import Filters, Options, placed, split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter

__all__ = ["FluxDataSource", "FluxPushingReader", "FluxReader", "place_of", "register", "rows_of"]

_LOG = logging.getLogger("fluxmq.spark")


def register(spark: SparkSession) -> None:
    """Registers `format("fluxmq")` in a session, and enables the pushdown of filters."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(FluxDataSource)


class FluxDataSource(DataSource):
    """The data source with the name fluxmq."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "fluxmq"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.read(self.options)
        return FluxPushingReader(options, schema) if options.pushdown else FluxReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from fluxmq.spark.source.stream import FluxStreamReader

        return FluxStreamReader(Options.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from fluxmq.spark.source.sink import FluxWriter

        return FluxWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from fluxmq.spark.source.sink import FluxStreamWriter

        return FluxStreamWriter(self.options, schema, overwrite)


def place_of(options: Options) -> Place:
    """The place of the messages. Raises SourceError."""
    if options.admin:
        from fluxmq.spark.source.broker import BrokerPlace

        return BrokerPlace(options.admin, options.timeout)
    from fluxmq.spark.source.logs import LogsPlace

    return LogsPlace(options.logs)


def rows_of(place: Place, work: LogRange, filters: Filters, schema: StructType, fail: bool,
            counters: dict[str, int]) -> Iterator[Any]:
    """Arrow batches of a range. counters: read (messages examined), rows, lost. Raises SourceError, LogRemoved."""
    columns = Columns(schema, work.queue, work.log.partition)
    while True:
        rows = filters.rows(work)
        try:
            for _ in place.read(work, rows, filters):
                if rows.full:
                    yield columns.batch(rows)
            gone = None
        except LogRemoved as error:
            if fail:
                raise SourceError(str(error)) from None
            gone = error
        if rows.count:
            yield columns.batch(rows)
        counters["read"] += rows.read
        counters["rows"] += rows.taken
        if gone is None:
            return
        _LOG.warning(str(gone))
        counters["lost"] += gone.end - gone.first
        work = LogRange(work.queue, work.kind, work.log, gone.end, work.end, work.extra)
        if work.start >= work.end:
            return


class FluxReader(DataSourceReader):
    """A table. counters: of the tasks that ran in this process."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema)
        self.options, self.schema = options, schema
        self.place = place_of(options)
        self.filters = options.filters
        self.counters = {"read": 0, "rows": 0, "lost": 0}

    def partitions(self) -> Sequence[InputPartition]:
        queues = [self.place.logs(name) for name in self.options.choose(self.place)]
        self.options.check_places(queues)
        found = []
        for queue in queues:
            found += self._ranges(queue, len(queues) > 1)
        return split(found, self.options.min_partitions, self.options.partition_bytes)

    def _ranges(self, queue: QueueLogs, several: bool) -> list[LogRange]:
        name, options, lowest = queue.name, self.options, self.filters.time_min
        starts = self._at(name, options.start_time)
        ends = self._at(name, options.end_time + 1 if options.end_time is not None else None)
        # messages older than the filter of time are not read at all
        wanted = self._at(name, lowest) if lowest > 0 and options.start_time is None else {}
        found = []
        for log in queue.logs:
            key = (log.partition, log.lane)
            start, end = starts.get(key), ends.get(key)
            if start is None:
                start = placed(options.start, name, several, log, "startingOffsets")
            if end is None:
                end = placed(options.end, name, several, log, "endingOffsets")
            start = log.first if start is None else self._checked(queue, log, start, "startingOffsets")
            end = log.next if end is None else self._checked(queue, log, end, "endingOffsets")
            start = max(start, wanted.get(key, start))
            start, end = self.filters.within(queue, log, start, end)
            if start < end:
                found.append(LogRange(name, queue.kind, log, start, end, self.place.extra(queue, log, start, end)))
        return found

    def _at(self, name: str, time_ms: int | None) -> dict[tuple[int, int], int]:
        """By partition and lane, the first message of that time or a later one."""
        if time_ms is None:
            return {}
        return {(log.partition, log.lane): log.offset for log in self.place.logs(name, time_ms).logs
                if log.offset is not None}

    def _checked(self, queue: QueueLogs, log: QueueLog, offset: int, option: str) -> int:
        if log.first <= offset <= log.next:
            return offset
        if self.options.fail and (queue.kind == "stream" or offset > log.next):
            raise SourceError(f"{option}: offset {signed(offset)} of partition {lane_key(log)} of queue {queue.name} "
                              f"is not there; there are {signed(log.first)} to {signed(log.next)}. Choose one of "
                              f"these, or go on without what is missing with option failOnDataLoss false")
        return min(max(offset, log.first), log.next)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, LogRange)
        return rows_of(self.place, partition, self.filters, self.schema, self.options.fail, self.counters)


class FluxPushingReader(FluxReader):
    """A table that applies Spark's filters itself.

    Only by option: Spark 4.3 plans a Python data source once for each load(), so the filters of one query would also
    apply to all others on the same DataFrame.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return list(self.filters.push(filters))
