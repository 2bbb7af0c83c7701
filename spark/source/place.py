"""Where messages come from: queues, their logs, and the port `Place`, which a running broker (broker.py) and a storage
directory (logs.py) are."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import InputPartition

from fluxmq._core.errors import FluxError
from fluxmq._core.queue.rows import Rows
from fluxmq.spark.source.columns import SourceError

if TYPE_CHECKING:
    from fluxmq.spark.source.plan import Filters

__all__ = [
    "LANE_BITS", "OFFSET_END", "LogRange", "LogRemoved", "NoQueue", "Place", "QueueLog", "QueueLogs", "feed",
    "lane_key", "signed",
]

LANE_BITS = 56
OFFSET_END = 1 << 64


class LogRemoved(FluxError):
    """Messages to be read do not exist any more: [first, end) of a log."""

    def __init__(self, queue: str, partition: int, first: int, end: int) -> None:
        super().__init__(f"queue {queue} has lost the messages from offset {signed(first)} to {signed(end - 1)} of "
                         f"partition {partition} before they were read: retention passed them. Read more often, keep "
                         f"more, or go on without them with option failOnDataLoss false")
        self.queue, self.partition, self.first, self.end = queue, partition, first, end

    def __reduce__(self) -> tuple[type, tuple[str, int, int, int]]:
        return type(self), (self.queue, self.partition, self.first, self.end)


class NoQueue(SourceError):
    """There is no queue of that name."""


@dataclass(frozen=True)
class QueueLog:
    """One log of a queue. number: of the node that has the queue, for itself. next: everything below is durable.
    offset: of the requested position. identity: of the queue, in a cluster; "": it is not known."""

    partition: int
    lane: int
    number: int
    first: int
    next: int
    bytes: int = 0
    offset: int | None = None
    identity: str = ""

    @property
    def named(self) -> dict[str, Any]:
        """How a checkpoint of Spark names it."""
        return {"log": f"{self.number:016x}"} | ({"queue": self.identity} if self.identity else {})

    def is_in(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry of a checkpoint names it. A queue that moves to another node of a cluster keeps its identity
        and its offsets, and its logs have other numbers there."""
        known = entry.get("queue")
        return bool(known == self.identity if known and self.identity else int(entry["log"], 16) == self.number)


@dataclass(frozen=True)
class QueueLogs:
    """A queue. kind: classic, stream, ephemeral."""

    name: str
    kind: str
    logs: list[QueueLog]


class LogRange(InputPartition):
    """[start, end) of one log: the work of one task."""

    def __init__(self, queue: str, kind: str, log: QueueLog, start: int, end: int, extra: Any = None) -> None:
        self.queue, self.kind, self.log, self.start, self.end, self.extra = queue, kind, log, start, end, extra


class Place(Protocol):
    """A source of messages. Raises SourceError, also NoQueue, and in read() LogRemoved if a stream's messages do not
    exist any more."""

    def names(self) -> list[str]:
        """Names of all queues."""

    def logs(self, queue: str, time_ms: int | None = None) -> QueueLogs:
        """The queue's logs; with `time_ms`, `offset` of each is the first message of that time or later."""

    def extra(self, queue: QueueLogs, log: QueueLog, start: int, end: int) -> Any:
        """Further information that a task needs about a range."""

    def read(self, work: LogRange, rows: Rows, filters: Filters) -> Iterator[None]:
        """Adds the messages of a range to `rows`; yields whenever rows may be taken."""


def feed(rows: Rows, messages: bytes | bytearray | memoryview) -> Iterator[None]:
    """Adds a run of messages; yields whenever rows may have to be taken."""
    at = 0
    while at < len(messages):
        at = rows.add(messages, at)
        yield


def lane_key(log: QueueLog) -> str:
    """The key of a log in offsets: its partition, and its lane if that is not the first."""
    return f"{log.partition}/{log.lane}" if log.lane else str(log.partition)


def signed(offset: int) -> int:
    """An offset as in the column: lanes above 127 are negative."""
    return offset - OFFSET_END if offset >= OFFSET_END >> 1 else offset
