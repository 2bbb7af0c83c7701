"""What somebody needs of a queue that is on disk only: read in an executor's thread, and handed in."""
from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fluxmq._core.errors import FluxError
from fluxmq._core.queue import Queue
from fluxmq._core.queue_delay import Delays
from fluxmq._core.queue_log import Log
from fluxmq.engine.ports import SegmentFiles
from fluxmq.engine.queue_delays import go_on
from fluxmq.engine.queues import NOTHING, QueueManager

__all__ = ["QueueReads"]

READ_BYTES = 1 << 20
PICK_BYTES = 8 << 20  # of delayed messages that are due


class QueueReads:
    """Driver. Answers the manager's callbacks. evict: called when something was read, to make room. on_fail: the disk
    failed for good."""

    def __init__(self, manager: QueueManager, segments: SegmentFiles, evict: Callable[[], None],
                 on_fail: Callable[[FluxError], None]) -> None:
        self.manager = manager
        self.segments = segments
        self.on_fail = on_fail
        self._evict = evict
        self._measured: set[int] = set()  # logs whose sizes are asked for
        self._log = logging.getLogger("fluxmq.queues")
        manager.on_stalled = self.read_for
        manager.on_missing = self.read_due
        manager.on_uncertain = self.measure
        manager.offset_at_time = self.offset_at_time  # type: ignore[method-assign]

    def read_for(self, queue: Queue) -> None:
        """Somebody reads what is on disk only: brings it in."""
        for log in queue.logs:
            if log.wanted != NOTHING and not log.loading:
                log.loading = True
                asyncio.get_running_loop().create_task(self._read(queue, log, log.wanted))

    async def _read(self, queue: Queue, log: Log, offset: int) -> None:
        try:
            first, covers, blocks = await asyncio.get_running_loop().run_in_executor(
                None, self.segments.read, log.number, offset, READ_BYTES)
            if not blocks:
                first, covers = offset, log.flushed  # settled by everybody before it would have been written
            log.load(min(first, offset), covers, blocks)
        except FluxError as error:
            self._log.error(f"messages cannot be read: {error}", extra={"queue": queue.name.decode(), "offset": offset})
            self.on_fail(error)
            return
        self._evict()
        queue.notify()

    def read_due(self, queue: Queue) -> None:
        """Delayed messages are due that are on disk only: brings these in."""
        if queue.delays is not None:
            queue.delays.busy = True
            asyncio.get_running_loop().create_task(self._read_due(queue, queue.delays))

    async def _read_due(self, queue: Queue, delays: Delays) -> None:
        try:
            delays.found(await asyncio.get_running_loop().run_in_executor(
                None, self.segments.pick, delays.log.number, delays.missing(), PICK_BYTES))
        except FluxError as error:
            self._log.error(f"delayed messages cannot be read: {error}", extra={"queue": queue.name.decode()})
            self.on_fail(error)
            return
        go_on(queue)

    def measure(self, queue: Queue, log: Log) -> None:
        """A part of the log's size was guessed: asks the segments."""
        if log.number not in self._measured:
            self._measured.add(log.number)
            asyncio.get_running_loop().create_task(self._measure(queue, log, log.first, log.flushed))

    async def _measure(self, queue: Queue, log: Log, first: int, end: int) -> None:
        try:
            log.restore_sizes(first, end, await asyncio.get_running_loop().run_in_executor(
                None, self.segments.spans, log.number, first, end))
        except FluxError as error:
            self._log.error(f"messages cannot be read: {error}", extra={"queue": queue.name.decode(), "offset": first})
            self.on_fail(error)
        finally:
            self._measured.discard(log.number)
            queue.notify()  # the clock looks again, at caps too

    def offset_at_time(self, log: Log, time_ms: int) -> int:
        """The first message of this time or later, by the index of the segments, else in memory."""
        if log.first < log.flushed:
            found = self.segments.offset_at_time(log.number, time_ms)
            if found is not None and found < log.flushed:
                return max(found, log.first)
        found = log.position_of_time(time_ms)
        return max(found, log.first) if found is not None else log.next
