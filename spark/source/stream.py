"""Queues and streams as an unbounded table. Spark's checkpoint has the offsets, each with the log that it is for.

    {"readings": {"0": {"log": "0000000000000005", "queue": "0000000700000002", "next": 170, "lost": 3, "from": 3}}}

queue: its identity, in a cluster, where nodes number their logs each for itself.
next: the first offset not read yet. from: the beginning of this batch, if that is not `next` of the previous one (a new
log, or one whose beginning retention removed). lost: messages removed by retention before they were read, since the
query began.
"""
from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from fluxmq.spark.source.columns import SourceError, check_schema
from fluxmq.spark.source.data_source import place_of, rows_of
from fluxmq.spark.source.place import LogRange, NoQueue, QueueLog, QueueLogs, lane_key, signed
from fluxmq.spark.source.plan import Options, placed, split

__all__ = ["FluxStreamReader"]

_LOG = logging.getLogger("fluxmq.spark")
Offsets = dict[str, dict[str, dict[str, Any]]]


class FluxStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. counters: of the tasks that ran in this process."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema)
        if options.end != "latest" or options.end_time is not None:
            raise SourceError("a stream has no end: leave endingOffsets and endingTimestamp out, or read it as a table")
        self.options, self.schema = options, schema
        self.place = place_of(options)
        self.filters = options.filters
        self.counters = {"read": 0, "rows": 0, "lost": 0}
        self._target: Offsets | None = None

    # ------------------------------------------------------------------ offsets

    def initialOffset(self) -> Offsets:
        """The first offsets of the query, from startingOffsets or startingTimestamp."""
        found: Offsets = {}
        queues = [self.place.logs(name, self.options.start_time) for name in self.options.choose(self.place)]
        self.options.check_places(queues)
        for queue in queues:
            name = queue.name
            found[name] = {}
            for log in queue.logs:
                start = log.offset if self.options.start_time is not None else placed(
                    self.options.start, name, len(queues) > 1, log, "startingOffsets")
                start = log.first if start is None else start
                if not log.first <= start <= log.next:
                    if self.options.fail and (queue.kind == "stream" or start > log.next):
                        raise SourceError(f"startingOffsets: offset {signed(start)} of partition {lane_key(log)} of "
                                          f"queue {name} is not there; there are {signed(log.first)} to "
                                          f"{signed(log.next)}")
                    start = min(max(start, log.first), log.next)
                found[name][lane_key(log)] = {**log.named, "next": start}
        return found

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """The end of the next batch."""
        found: Offsets = {name: dict(logs) for name, logs in start.items()}
        for name in sorted({*self.options.choose(self.place), *filter(self.options.means, start)}):
            queue = self._queue(name, "since it was read: what was not read yet is gone")
            if queue is None:
                found.pop(name, None)               # a queue of the same name that is made later is another one
                continue
            for log in queue.logs:
                key = lane_key(log)
                before = start.get(name, {}).get(key)
                entry = self._next(queue, log, before)
                if self._target is not None:
                    target = self._target.get(name, {}).get(key)
                    if target is None or not log.is_in(target):
                        continue                    # newer than the trigger
                    begin = self._begin(start, name, key, entry)
                    entry["next"] = max(min(entry["next"], target["next"]), begin)
                if before is None or "from" in entry or entry["next"] != before["next"]:
                    found.setdefault(name, {})[key] = entry
        return self._limited(start, found, limit)

    def _next(self, queue: QueueLogs, log: QueueLog, before: dict[str, Any] | None) -> dict[str, Any]:
        if before is None:
            return {**log.named, "next": log.next, "from": log.first}
        lost = int(before.get("lost", 0))
        if not log.is_in(before):
            self._complain(f"queue {queue.name} was deleted and made again since it was read: what was in the old one "
                           f"is gone")
            return {**log.named, "next": log.next, "from": log.first, "lost": lost}
        entry = {**log.named, "next": log.next} | ({"lost": lost} if lost else {})
        if before["next"] > log.next:
            self._complain(f"queue {queue.name} ends at offset {signed(log.next)} of partition {lane_key(log)}, but "
                           f"the query has read up to {signed(before['next'])}: its storage is an older copy")
            return entry | {"from": log.next}
        if before["next"] < log.first:
            if queue.kind != "stream":
                return entry | {"from": log.first}          # consumers have settled what was before
            count = log.first - before["next"]
            self._complain(f"queue {queue.name} has lost {count} messages of partition {lane_key(log)} before they "
                           f"were read: the query stands at offset {signed(before['next'])}, retention has passed on "
                           f"to {signed(log.first)}")
            return entry | {"from": log.first, "lost": lost + count}
        return entry

    def _queue(self, name: str, when: str) -> QueueLogs | None:
        """None: the queue does not exist any more, and that is allowed."""
        try:
            return self.place.logs(name)
        except NoQueue as error:
            self._complain(f"queue {name} was deleted {when} ({error})")
            return None

    def _complain(self, text: str) -> None:
        if self.options.fail:
            raise SourceError(f"{text}. Keep more or read more often; option failOnDataLoss false goes on without")
        _LOG.warning(text)

    def _limited(self, start: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        """Limits the end to what a trigger may read, each log with its share."""
        maximum = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        spans = [(entry, self._begin(start, name, key, entry)) for name, logs in end.items()
                 for key, entry in logs.items()]
        waiting = sum(entry["next"] - begin for entry, begin in spans)
        if not maximum or waiting <= maximum:
            return end
        left = maximum
        for entry, begin in sorted(spans, key=lambda one: one[0]["next"] - one[1]):
            span = entry["next"] - begin
            share = min(span, max(-(-maximum * span // waiting), 1), left)
            entry["next"] = begin + share
            left -= share
        return end

    @staticmethod
    def _begin(start: Offsets, name: str, key: str, entry: dict[str, Any]) -> int:
        before = start.get(name, {}).get(key)
        if before == entry:
            return int(entry["next"])           # nothing new: its `from` is of an earlier batch
        return int(entry["from"] if "from" in entry else entry["next"] if before is None else before["next"])

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.trigger_max) if self.options.trigger_max else ReadAllAvailable()

    def reportLatestOffset(self) -> Offsets | None:
        return None

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {name: {lane_key(log): {**log.named, "next": log.next}
                               for log in queue.logs} for name in self.options.choose(self.place)
                        if (queue := self._queue(name, "before it was read")) is not None}

    # ------------------------------------------------------------------ a batch

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        found = []
        for name, entries in sorted(end.items()):
            changed = {key: self._begin(start, name, key, entry) for key, entry in entries.items()
                       if self._begin(start, name, key, entry) < entry["next"]}
            if not changed:
                continue
            queue = self._queue(name, "while it was read")
            if queue is None:
                continue
            for log in queue.logs:
                key = lane_key(log)
                if key not in changed:
                    continue
                if not log.is_in(entries[key]):
                    self._complain(f"queue {name} was deleted and made again while it was read")
                    continue
                begin, stop = changed[key], entries[key]["next"]
                if stop > log.next:
                    self._complain(f"queue {name} ends at offset {signed(log.next)} of partition {key}, but the query "
                                   f"has seen messages up to {signed(stop)}: its storage is an older copy")
                    stop = min(stop, log.next)
                if begin < stop:
                    found.append(LogRange(name, queue.kind, log, begin, stop,
                                          self.place.extra(queue, log, begin, stop)))
        # by numbers only: a repeated batch must be cut in the same way (the sink counts rows of partitions)
        return split(found, self.options.min_partitions, 0)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, LogRange)
        return rows_of(self.place, partition, self.filters, self.schema, self.options.fail, self.counters)
