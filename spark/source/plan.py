"""Plans the reads of the data source `fluxmq`: options, pushed filters, and ranges of offsets of the size of a task.
Plain Python; messages come from a `Place`."""
from __future__ import annotations

import datetime
import fnmatch
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from fluxmq._core.queue.rows import Rows
from fluxmq.spark.source.columns import SourceError
from fluxmq.spark.source.place import (
    LANE_BITS,
    OFFSET_END,
    LogRange,
    Place,
    QueueLog,
    QueueLogs,
    lane_key,
    signed,
)

__all__ = ["Filters", "Options", "placed", "split"]

PARTITION_BYTES = 128 << 20
TIME_MAX = 1 << 62
READING = {"queue", "admin", "logs", "startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp",
           "namespace", "minpartitions", "maxpartitionbytes", "maxmessagespertrigger", "failondataloss",
           "timeoutseconds", "topic", "topicprefix", "pushdown", "path"}


@dataclass
class Options:
    """The parsed options of a read. Raises SourceError."""

    names: list[str]
    admin: str = ""
    logs: str = ""
    start: str | dict[str, Any] = "earliest"
    end: str | dict[str, Any] = "latest"
    start_time: int | None = None
    end_time: int | None = None
    namespace: str = ""
    min_partitions: int = 0
    partition_bytes: int = PARTITION_BYTES
    trigger_max: int = 0
    fail: bool = True
    timeout: float = 30.0
    topic: str = ""
    prefix: str = ""
    pushdown: bool = False

    @property
    def filters(self) -> Filters:
        """The filters that the options define."""
        return Filters(topics=frozenset((self.topic,)) if self.topic else None, prefix=self.prefix)

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        options = {name.lower(): value for name, value in given.items()}
        unknown = sorted(name for name in given if name.lower() not in READING)
        if unknown:
            raise SourceError(f"the data source fluxmq has no option {unknown[0]} for reading; there are queue, admin, "
                              f"logs, topic, topicPrefix, namespace, startingOffsets, endingOffsets, "
                              f"startingTimestamp, endingTimestamp, minPartitions, maxPartitionBytes, "
                              f"maxMessagesPerTrigger, failOnDataLoss, timeoutSeconds, pushdown")
        names = [name.strip() for name in options.get("queue", options.get("path", "")).split(",") if name.strip()]
        if not names:
            raise SourceError("option queue is needed: the name of a queue or stream, several with commas between "
                              "them, or a pattern such as sensors-*")
        if bool(options.get("admin")) == bool(options.get("logs")):
            raise SourceError("say by one of the options admin (path of a running broker's admin socket) or logs "
                              "(storage directory of a broker) where the messages are")
        for word in ("starting", "ending"):
            if f"{word}offsets" in options and f"{word}timestamp" in options:
                raise SourceError(f"{word}Offsets and {word}Timestamp say the same thing: leave one out")
        namespace = options.get("namespace", "").strip("/")
        return cls([f"{namespace}/{name}" if namespace else name for name in names],
                   options.get("admin", ""), options.get("logs", ""),
                   _offsets("startingOffsets", options.get("startingoffsets", "earliest")),
                   _offsets("endingOffsets", options.get("endingoffsets", "latest")),
                   _time("startingTimestamp", options.get("startingtimestamp")),
                   _time("endingTimestamp", options.get("endingtimestamp")), namespace,
                   _whole("minPartitions", options, 0), _whole("maxPartitionBytes", options, PARTITION_BYTES, 1),
                   _whole("maxMessagesPerTrigger", options, 0), _truth("failOnDataLoss", options, True),
                   float(_whole("timeoutSeconds", options, 30)), options.get("topic", ""),
                   options.get("topicprefix", ""), _truth("pushdown", options, False))

    def choose(self, place: Place) -> list[str]:
        """Names of the existing queues that are selected. Raises SourceError if a named one does not exist."""
        if not any(any(char in name for char in "*?[") for name in self.names):
            return list(dict.fromkeys(self.names))
        there = place.names()
        return sorted({name for wanted in self.names for name in (
            fnmatch.filter(there, wanted) if any(char in wanted for char in "*?[") else [wanted])})

    def means(self, queue: str) -> bool:
        """Whether the option queue selects it, by name or by pattern."""
        return any(fnmatch.fnmatchcase(queue, wanted) or queue == wanted for wanted in self.names)

    def check_places(self, queues: Iterable[QueueLogs]) -> None:
        """Raises SourceError if startingOffsets or endingOffsets name a queue or a partition that does not exist, which
        would be ignored silently otherwise."""
        queues = list(queues)
        for option, told in (("startingOffsets", self.start), ("endingOffsets", self.end)):
            for name, entry in told.items() if isinstance(told, dict) else ():
                chosen = [queue for queue in queues if queue.name == name] or (queues if len(queues) == 1 else [])
                keys = [lane_key(log) for queue in chosen for log in queue.logs]
                if not chosen:
                    raise SourceError(f"{option} names {name!r}, which is none of the queues that are read: "
                                      f"{', '.join(queue.name for queue in queues) or 'there are none'}")
                if name != chosen[0].name:
                    entry = {name: entry}
                for key in entry if isinstance(entry, dict) else ():
                    if key not in keys:
                        raise SourceError(f"{option} names partition {key!r} of queue {chosen[0].name}, which has "
                                          f"{keys[0]} to {keys[-1]}" if len(keys) > 1 else
                                          f"{option} names partition {key!r} of queue {chosen[0].name}, which has "
                                          f"partition {keys[0]} only")


def _offsets(option: str, text: str) -> str | dict[str, Any]:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise SourceError(f"{option} is earliest, latest, or JSON such as {{\"0\": 17, \"1\": \"latest\"}} with an "
                          f"offset per partition, not {text!r}")
    return found


def _time(option: str, text: str | None) -> int | None:
    """Milliseconds since 1970."""
    if text is None:
        return None
    try:
        if text.strip().lstrip("-").isdigit():
            return min(max(int(text), 0), TIME_MAX)
        told = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise SourceError(f"{option} is milliseconds since 1970, or a time such as 2026-01-31T08:00:00Z, not "
                          f"{text!r}") from None
    return max(-(-_micros(told) // 1000), 0)


def _whole(option: str, options: Mapping[str, str], default: int, least: int = 0) -> int:
    text = options.get(option.lower(), str(default)).strip()
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= least):
        raise SourceError(f"{option} is a number from {least} on, not {text!r}")
    return int(text)


def _truth(option: str, options: Mapping[str, str], default: bool) -> bool:
    text = options.get(option.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise SourceError(f"{option} is true or false, not {text!r}")
    return text == "true"


def _micros(told: datetime.datetime) -> int:
    """Microseconds since 1970; a time without zone is UTC."""
    if told.tzinfo is None:
        told = told.replace(tzinfo=datetime.UTC)
    return (told - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


def placed(told: Any, queue: str, several: bool, log: QueueLog, option: str) -> int | None:
    """The offset for a log in `startingOffsets` or `endingOffsets`; None: it is not named there."""
    value = told
    if isinstance(told, dict) and (several or queue in told):
        value = told = told.get(queue, {})
        if not isinstance(told, dict) and told not in ("earliest", "latest", -1, -2):
            raise SourceError(f"{option}: {told!r} of queue {queue} is neither earliest nor latest, nor JSON such as "
                              f"{{\"0\": 17}} with an offset per partition")
    if isinstance(told, dict):
        value = told.get(lane_key(log))
    if value is None:
        return None
    if value in ("earliest", "latest", -1, -2):
        return log.first if value in ("earliest", -2) else log.next
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < OFFSET_END:
        raise SourceError(f"{option}: {value!r} is no offset of partition {lane_key(log)} of queue {queue}; there are "
                          f"{signed(log.first)} to {signed(log.next)}, earliest and latest")
    return value % OFFSET_END


@dataclass
class Filters:
    """Spark's pushed filters; each is applied completely, so that Spark need not apply it again."""

    topics: frozenset[str] | None = None
    prefix: str = ""
    first: int = -(1 << 63)                 # of the column `offset`, both ends included
    last: int = (1 << 63) - 1
    time_min: int = -TIME_MAX               # ms, both ends included
    time_max: int = TIME_MAX
    partitions: frozenset[int] | None = None
    queues: frozenset[str] | None = None
    taken: list[str] = field(default_factory=list)

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Takes the filters that it can apply; yields the others."""
        for one in filters:
            if self._take(one):
                self.taken.append(repr(one))
            else:
                yield one

    def _take(self, one: Filter) -> bool:
        column = ".".join(getattr(one, "attribute", ()))
        if isinstance(one, IsNotNull):
            return column in ("topic", "offset", "time", "partition", "queue")
        value = getattr(one, "value", None)
        if isinstance(one, StringStartsWith) and column == "topic":
            longer = max(self.prefix, one.value, key=len)
            if not longer.startswith(min(self.prefix, one.value, key=len)):
                self.topics = frozenset()
            self.prefix = longer
            return True
        if column in ("topic", "partition", "queue") and isinstance(one, EqualTo | In) and value is not None:
            wanted = frozenset(one.value if isinstance(one, In) else (one.value,)) - {None}
            word = {"topic": "topics", "partition": "partitions", "queue": "queues"}[column]
            known = getattr(self, word)
            setattr(self, word, wanted if known is None else known & wanted)
            return True
        if not isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            return False
        if column == "offset" and isinstance(value, int):
            low, high = _between(one, value, value)
            self.first, self.last = max(self.first, low), min(self.last, high)
            return True
        if column == "time" and isinstance(value, datetime.datetime):
            micros = _micros(value)
            low, high = _between(one, -(-micros // 1000), micros // 1000)
            self.time_min, self.time_max = max(self.time_min, low), min(self.time_max, high)
            return True
        return False

    def rows(self, work: LogRange) -> Rows:
        """The object to which a task adds its messages."""
        settled = work.extra["settled"] if work.extra is not None else ()
        return Rows(work.start, work.end, topics=None if self.topics is None else [
            topic.encode() for topic in self.topics], prefix=self.prefix.encode(),
            time_min=max(self.time_min, -TIME_MAX), time_max=min(self.time_max, TIME_MAX), excluded=settled)

    def within(self, queue: QueueLogs, log: QueueLog, start: int, end: int) -> tuple[int, int]:
        """The part of [start, end) of a log that the filters may select."""
        if (self.partitions is not None and log.partition not in self.partitions) or (
                self.queues is not None and queue.name not in self.queues) or self.time_min > self.time_max:
            return start, start
        base = log.lane << LANE_BITS
        lowest, highest = signed(base), signed(base | (1 << LANE_BITS) - 1)
        if self.first > highest or self.last < lowest:
            return start, start
        start = max(start, max(self.first, lowest) % OFFSET_END)
        return start, max(start, min(end, min(self.last, highest) % OFFSET_END + 1))


def _between(one: Filter, ceiling: int, floor: int) -> tuple[int, int]:
    """The integers that satisfy a comparison; ceiling, floor: of the compared value."""
    low, high = -TIME_MAX * 2, TIME_MAX * 2
    if isinstance(one, GreaterThan):
        low = floor + 1
    elif isinstance(one, GreaterThanOrEqual):
        low = ceiling
    elif isinstance(one, LessThan):
        high = ceiling - 1
    elif isinstance(one, LessThanOrEqual):
        high = floor
    else:
        low, high = ceiling, floor
    return low, high


def split(ranges: list[LogRange], least: int, bytes_max: int) -> list[LogRange]:
    """Ranges cut by size into at least about `least` parts, none much larger than bytes_max. If that is 0, they are cut
    by the number of messages only."""
    sizes = [_size(one) if bytes_max else one.end - one.start for one in ranges]
    whole = sum(sizes)
    found = []
    for one, size in zip(ranges, sizes, strict=True):
        parts = max(-(-size // bytes_max) if bytes_max else 1, -(-least * size // whole), 1)
        count = one.end - one.start
        parts = min(parts, count)
        cuts = [one.start + count * at // parts for at in range(parts + 1)]
        found += [LogRange(one.queue, one.kind, replace(one.log, bytes=size // parts), start, end, one.extra)
                  for start, end in itertools.pairwise(cuts)]
    return found


def _size(one: LogRange) -> int:
    kept = max(one.log.next - one.log.first, 1)
    return max(one.log.bytes * (one.end - one.start) // kept, 1)
