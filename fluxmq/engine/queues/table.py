"""The tables of a node's queues, the changes for the next checkpoint, and callbacks.

Functions for dead letters, delays and settings take the table; QueueManager adds the operations that change it.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.commits import Line
from fluxmq._core.memory.namespace import ROOT
from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import Queue
from fluxmq._core.queue.stats import QueueSums
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.engine.queues.records import LogRecord, QueueRecord, record
from fluxmq.engine.queues.state import QueueState
from fluxmq.model.queue_arguments import Declared
from fluxmq.model.queues import QueueSpec

__all__ = ["AmqpDeadLetters", "Disk", "QueueListener", "QueueTable"]


class Disk:
    """What queues need from the segments. This implementation has none: all messages are in memory. See also
    QueueReader."""

    def read_for(self, queue: Queue) -> None:
        """Called when a reader of the queue needs messages that are only on disk."""

    def read_due(self, queue: Queue) -> None:
        """Called when delayed messages are due that are only on disk."""

    async def read_part(self, log: Log, offset: int, size: int) -> tuple[int, bytes]:
        """About so many bytes of a log that are only on disk, from an offset on: (the offset behind them, messages).
        Raises StorageError."""
        return log.flushed, b""

    def due_pairs(self, log: int) -> Iterable[bytes]:
        """Due times and offsets of delayed messages in segments (Delays.restore_pairs). Raises StorageError."""
        return ()

    def measure(self, queue: Queue, log: Log) -> bool:
        """Determines a log's size, a part of which was estimated. False: it cannot."""
        return False

    def evict(self) -> int:
        """Evicts messages that are found elsewhere, so that the cache keeps its size. Returns the number of chunks
        examined."""
        return 0

    def offset_at_time(self, log: Log, time_ms: int) -> int:
        """The offset of the first message of this time or later."""
        found = log.position_of_time(time_ms)
        return found if found is not None else log.next


class QueueListener:
    """Interface for QueueTable.listeners, which are notified of queues that are made and deleted."""

    def queue_added(self, queue: Queue) -> None:
        """The queue can be found by its name from now on."""

    def queue_made(self, queue: Queue) -> None:
        """The queue is new, and has been recorded: what is recorded of it now comes behind that. Not called for a queue
        that was loaded."""

    def queue_removed(self, queue: Queue) -> None:
        """The queue cannot be found any more: it was deleted, or another node owns it."""

    def queue_deleted(self, queue: Queue, members: list[Member]) -> None:
        """The queue has been deleted; members: its consumers."""

    def queue_stopped(self, queue: Queue, members: list[Member]) -> None:
        """The queue is damaged."""


class AmqpDeadLetters(Protocol):
    """Dead letters of queues that were declared by AMQP."""

    def bury(self, state: QueueState, log: Log, offset: int, reason: str) -> None:
        """Dead-letters a message that is in memory."""

    def refused(self, state: QueueState, topic: bytes, properties: bytes, payload: bytes, format_: int, /) -> None:
        """Dead-letters a message that a full queue refused."""


class DeadLetterForwarder(Protocol):
    """Dead letters of queues of one line for queues of other nodes and lines."""

    def forward(self, target: Queue, topic: bytes, payload: bytes, properties: bytes, qos: int,
                format_: int, /) -> bool:
        """Takes a dead letter for a queue of another node or line. Returns whether it has it."""

    def forward_when_made(self, target: tuple[bytes, bytes], topic: bytes, payload: bytes, properties: bytes, qos: int,
                          format_: int, /) -> bool:
        """The same, for a dead-letter queue that the cluster does not have."""

    def awaits(self, target: tuple[bytes, bytes], /) -> bool:
        """Whether letters for this queue are under way because it was not there."""


class DeadLetterForwarders(Protocol):
    """One for each line that is led here."""

    def of(self, line: Line, /) -> DeadLetterForwarder:
        """That of a line."""

    def found(self, queue: Queue) -> None:
        """What is in this queue, from the disk or from who led its line before, is under way."""

    def leave(self, line: Line) -> None:
        """Another node leads the line."""


class QueueTable(ABC):
    """Machine. on_log, cluster: as Broker's."""

    def __init__(self, hub: Hub, on_log: Callable[[str, str, str, dict[str, Any]], None] | None = None, *,
                 cluster: Cluster) -> None:
        self.hub = hub
        self.directory, self.peers, self.replicator = cluster
        self.definer = self.directory.definer
        self.queues: dict[tuple[bytes, bytes], QueueState] = {}  # by namespace and name
        self.durables = 0  # number of durable queues
        self.states: dict[Queue, QueueState] = {}
        self.numbers: Counter[int] = Counter()  # by line: the last number given to a queue, log or group
        self.changed: set[QueueState] = set()  # queues whose row in the view is out of date
        self.ended: list[tuple[str, int]] = []  # ("q" | "g" | "l" | "d", number): rows to delete from the view
        self.disk = Disk()
        self.listeners: list[QueueListener] = []
        # Called with a queue whose messages another node has now, or which is away, or back: consumers must be attached
        # anew.
        self.on_owner: list[Callable[[Queue], None]] = []
        self.amqp_dead_letters: AmqpDeadLetters | None = None
        self.refused_unknown = 0  # publishes to unknown queues
        self.sums = QueueSums(hub.ledger)
        self.forwarders: DeadLetterForwarders  # of QueueManager
        self.counted: Counter[str] = Counter()  # further counts: died_<reason>, dead_lettered
        self.kinds: Counter[str] = Counter()  # queues by type
        self.streams: dict[QueueState, None] = {}
        self.due_soon: Callable[[Queue, int], None] = lambda queue, at_ms: None  # of QueueClock
        self.log = on_log or (lambda level, cause, text, fields: None)

    def number(self, line: Line | None = None) -> int:
        """A new number for a queue, log or group, unique within its line. None: the journal's."""
        at = 0 if line is None else line.number
        self.numbers[at] += 1
        return self.numbers[at]

    def is_taken(self, line: Line, number: int) -> None:
        """Marks a number from disk, or from the leader of the line, as used."""
        if number > self.numbers[line.number]:
            self.numbers[line.number] = number

    @abstractmethod
    def make(self, spec: QueueSpec, declared: Declared | None = None, line: Line | None = None) -> Queue:
        """A new queue."""

    @abstractmethod
    def group(self, queue: Queue, name: bytes, *, position: str = "") -> Group:
        """The group of this name; it is made if it does not exist, and begins at this position."""

    @abstractmethod
    def position(self, queue: Queue, log: Log, text: str, group: Group | None) -> int:
        """Where a stream's new reader begins."""

    @abstractmethod
    def left(self, queue: Queue, group: Group | None) -> None:
        """Called when a consumer has left."""

    @staticmethod
    def members_of(state: QueueState) -> list[Member]:
        """Its consumers and pullers."""
        members: list[Member] = list(state.queue.readers)  # type: ignore[arg-type]
        for group in state.groups.values():
            members += group.members + group.pullers
        return members

    def trim(self, state: QueueState, log: Log, first: int) -> None:
        """Removes messages below `first`, for retention, purge or drop-head."""
        if first > log.first:
            log.trim(first)
            self.note_changed(state)
            if state.queue.durable:
                record(self.hub.ledger, RecordKind.TRIM, log.number, first.to_bytes(8, "big"), log.line)
            state.queue.notify()

    def note_changed(self, state: QueueState) -> None:
        """Lets the next checkpoint write the queue's record; of a queue of another line than the journal the copy."""
        if state.queue.line.number == 0:
            self.changed.add(state)
        else:
            state.queue.mark_dirty()

    def record_queue(self, state: QueueState) -> None:
        self.note_changed(state)
        if state.queue.durable:
            record(self.hub.ledger, RecordKind.QUEUE, state.queue.number, self.queue_record(state).encoded(),
                   state.queue.line)

    def queue_record(self, state: QueueState) -> QueueRecord:
        logs, delays = [LogRecord(log.number, log.lane) for log in state.queue.logs], state.queue.delays
        numbers = (delays.log.number, delays.group.number) if delays is not None else (0, 0)
        spec, declared, namespace = state.spec, state.declared, 0
        if state.queue.namespace is not self.hub.root:
            # Only the namespace's own record has its name.
            namespace = self.hub.ledger.number_of(state.queue.namespace, state.queue.line)
            spec = msgspec.structs.replace(spec, namespace="/")
            declared = msgspec.structs.replace(declared, vhost=ROOT) if declared is not None else None
        return QueueRecord(spec if declared is None else None, logs, *numbers, declared, namespace, state.id,
                           *state.placement)

    def read_on(self, queue: Queue) -> None:
        """Reads what is needed from disk."""
        self.disk.read_for(queue)
