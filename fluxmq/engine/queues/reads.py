"""Loads messages that readers of queues need from the segments into memory, where they are cached.

The loop's thread never waits: a reader that needs data from disk stalls, an executor's thread reads, and the queue is
pumped again. Sequential reads get larger parts, up to READ_BYTES_MAX, so that a replay is limited by the disk's
throughput and not by its latency; the cache bounds the memory.

A failed read is repeated a few times. Damaged data stops its own queue only: consumers get nothing more from it (those
of AMQP get basic.cancel), publishes and new consumers are refused, claimed messages can be settled, and unsettled ones
are kept, until a start finds the queue repaired (`Queue.damage` has the reason).
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from fluxmq._core.errors import CorruptError, ShortageError, StorageError
from fluxmq._core.queue.cache import evict_cold
from fluxmq._core.queue.delay import Delays
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.ports.store import SegmentFiles
from fluxmq.engine.queues.delays import go_on
from fluxmq.engine.queues.manager import NOTHING, QueueManager
from fluxmq.engine.queues.table import Disk

__all__ = ["QueueReader"]

READ_BYTES = 1 << 20
READ_BYTES_MAX = 8 << 20
PICK_BYTES = 8 << 20  # for one read of due delayed messages
READ_RETRIES_S = (0.1, 0.5, 2.0)  # between attempts: an error of a disk or a network may be temporary
SHORTAGE_RETRY_S = 1.0
CACHE_SHARE = 8  # one read takes at most this fraction of the cache


class QueueReader(Disk):
    """Machine. driver: runs the reads. segments: None has nothing. cache_bytes: for messages in memory that are also on
    disk. on_damage: called with a queue that has been stopped, and the reason."""

    def __init__(self, manager: QueueManager, segments: SegmentFiles | None, cache_bytes: int,
                 on_damage: Callable[[StorageError], None], driver: Driver) -> None:
        self.manager = manager
        self.segments = segments
        self.cache_bytes = cache_bytes
        self.on_damage = on_damage
        self.driver = driver
        self._largest = max(READ_BYTES, min(READ_BYTES_MAX, cache_bytes // CACHE_SHARE))
        self._sequential: dict[int, tuple[int, int]] = {}  # by log: end and size of the last read
        self._measured: set[int] = set()  # logs whose sizes are being determined
        self._log = logging.getLogger("fluxmq.queues")

    def read_for(self, queue: Queue) -> None:
        """Loads what readers of the queue need from disk. Raises QueueRefused if the queue is damaged."""
        if queue.damage is not None:
            raise damaged(queue)
        if self.segments is None:
            return
        for log in queue.logs:
            if log.wanted != NOTHING and not log.loading:
                log.loading = True
                self.manager.hub.awaited += 1
                self.driver.start(self._read(queue, log, log.wanted))

    async def _read(self, queue: Queue, log: Log, offset: int) -> None:
        assert self.segments is not None
        ended, size = self._sequential.get(log.disk, (-1, 0))
        size = min(2 * size, self._largest) if ended == offset else READ_BYTES
        try:
            first, covers, blocks = await self._from_disk(self.segments.read, log.disk, offset, size)
            if not blocks:
                first, covers = offset, log.flushed  # settled by all groups before it would have been written
            self._sequential[log.disk] = (covers, size)
            log.load(min(first, offset), covers, blocks)
        except StorageError as error:
            if log in queue.logs:  # else the queue has moved to another node, and its files are deleted
                self.stop(queue, error)
            return
        finally:
            self.manager.hub.awaited -= 1
        self.evict()
        queue.notify()

    def read_due(self, queue: Queue) -> None:
        """Loads due delayed messages that are only on disk."""
        if self.segments is not None and queue.delays is not None:
            queue.delays.busy = True
            self.manager.hub.awaited += 1
            self.driver.start(self._read_due(queue, queue.delays))

    async def _read_due(self, queue: Queue, delays: Delays) -> None:
        assert self.segments is not None
        try:
            delays.found(await self._from_disk(self.segments.pick, delays.log.disk, delays.missing(), PICK_BYTES))
        except StorageError as error:
            self.stop(queue, error)
            return
        finally:
            self.manager.hub.awaited -= 1
        go_on(queue)

    async def read_part(self, log: Log, offset: int, size: int) -> tuple[int, bytes]:
        """See Disk."""
        if self.segments is None:
            return log.flushed, b""
        _, covers, blocks = await self._from_disk(self.segments.read, log.disk, offset, size)
        return (max(covers, offset + 1), b"".join(blocks)) if blocks else (log.flushed, b"")

    def due_pairs(self, log: int) -> Iterable[bytes]:
        """See Disk."""
        return self.segments.due_pairs(log) if self.segments is not None and log else ()

    def measure(self, queue: Queue, log: Log) -> bool:
        """Asks the segments for the log's size, a part of which was estimated."""
        if self.segments is not None and log.disk not in self._measured and queue.damage is None:
            self._measured.add(log.disk)
            self.driver.start(self._measure(queue, log, log.first, log.flushed))
        return True

    async def _measure(self, queue: Queue, log: Log, first: int, end: int) -> None:
        assert self.segments is not None
        try:
            log.restore_sizes(first, end, await self._from_disk(self.segments.spans, log.disk, first, end))
        except StorageError as error:
            if log in queue.logs:
                self.stop(queue, error)
        finally:
            self._measured.discard(log.disk)
            queue.notify()  # so that the clock applies the retention again

    async def _from_disk(self, read: Callable[..., Any], *what: Any) -> Any:
        """Raises StorageError if the retries fail too; CorruptError at once, because retries do not help."""
        pauses = list(READ_RETRIES_S)
        while True:
            try:
                return await self.driver.blocking(read, *what)
            except CorruptError:
                raise
            except ShortageError as error:
                self._log.warning(f"a read waits: {error}")
                await self.driver.sleep(SHORTAGE_RETRY_S)
            except StorageError as error:
                if not pauses:
                    raise
                self._log.warning(f"a read is tried again: {error}")
                await self.driver.sleep(pauses.pop(0))

    def stop(self, queue: Queue, error: StorageError) -> None:
        """Stops a queue whose data or disk is damaged; the others go on."""
        if queue.damage is None and queue in self.manager.states:
            queue.damage = str(error)
            self._log.error(f"a queue is stopped, the others go on: {error}", extra={"queue": shown(queue)})
            self.on_damage(error)
            for listener in self.manager.listeners:
                listener.queue_stopped(queue, self.manager.members_of(self.manager.states[queue]))

    def evict(self) -> int:
        """Evicts messages that segments have until the cache is within its size: those read longest ago first, but
        never those just read. Returns the number of chunks examined."""
        return evict_cold(self.manager.hub.ledger, self.cache_bytes)

    def forget(self, log: int) -> None:
        """Discards what is known of a deleted log."""
        self._sequential.pop(log, None)

    def offset_at_time(self, log: Log, time_ms: int) -> int:
        """The first message of this time or later, found by the index of the segments or else in memory."""
        if self.segments is not None and log.first < log.flushed:
            try:
                found = self.segments.offset_at_time(log.disk, time_ms)
            except StorageError as error:
                queue = next((one for one in self.manager.states if log in one.logs), None)
                if queue is None or isinstance(error, ShortageError):
                    raise QueueRefused("unavailable", str(error)) from error
                self.stop(queue, error)
                raise damaged(queue) from error
            if found is not None and found < log.flushed:
                return max(found, log.first)
        found = log.position_of_time(time_ms)
        return max(found, log.first) if found is not None else log.next


def damaged(queue: Queue) -> QueueRefused:
    """The refusal of operations on a damaged queue."""
    return QueueRefused("unavailable", f"queue {shown(queue)} is stopped: {queue.damage}")


def shown(queue: Queue) -> str:
    """The queue's name for a log message: names from AMQP need not be valid text."""
    return queue.name.decode("utf-8", "replace")
