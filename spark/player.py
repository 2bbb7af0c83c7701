"""Plays the operations of one partition: `play`, a generator of the result's rows. No Spark in it.

Three threads: one pulls operations ahead, one runs the event loop with all clients, and whoever iterates gets rows as
they become final. So neither reading operations nor writing rows holds up a client.
"""
from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import pyarrow as pa

from fluxmq.spark.play_options import PlayOptions, PlayStatus
from fluxmq.spark.playing import Player

__all__ = ["PlayOptions", "PlayStatus", "play"]

AHEAD = 64              # batches of operations that are read before they are wanted
SWITCH_S = 0.0005       # a thread that writes rows must not keep the loop from a packet for the default 5 ms


class _Feed:
    """Operations, pulled by a thread, taken by the loop."""

    def __init__(self, batches: Iterable[pa.RecordBatch], loop: asyncio.AbstractEventLoop) -> None:
        self.batches, self.loop = batches, loop
        self.there: asyncio.Queue[pa.RecordBatch | BaseException | None] = asyncio.Queue()
        self.room = threading.Semaphore(AHEAD)
        self.ended = False
        self.thread = threading.Thread(target=self._pull, name="operations", daemon=True)
        self.thread.start()

    def _pull(self) -> None:
        last: BaseException | None = None
        try:
            for batch in self.batches:
                self.room.acquire()
                if self.ended:
                    return
                self.loop.call_soon_threadsafe(self.there.put_nowait, batch)
        except BaseException as error:
            last = error
        if not self.ended:
            self.loop.call_soon_threadsafe(self.there.put_nowait, last)

    async def batches_of_it(self) -> AsyncIterator[pa.RecordBatch]:
        while (batch := await self.there.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            self.room.release()
            yield batch

    def end(self) -> None:
        """Nobody takes any more; the thread ends with its next batch."""
        self.ended = True
        self.room.release()


def play(operations: Iterable[pa.RecordBatch], options: PlayOptions, status: PlayStatus | None = None, *,
         manual: Iterable[int] = ()) -> Iterator[pa.RecordBatch]:
    """Plays and yields rows of the result, in the order in which they become final.

    operations: batches of OPERATIONS, sorted. status: filled in; whole when the generator ends. manual: links whose
    acknowledgements are operations. A broker that refuses or goes away raises nothing: the status says so. What
    `operations` raises is raised.
    """
    status = PlayStatus() if status is None else status
    rows: queue.SimpleQueue[pa.RecordBatch | BaseException | None] = queue.SimpleQueue()
    chosen = frozenset(manual)

    async def run() -> None:
        feed = _Feed(operations, asyncio.get_running_loop())
        try:
            await Player(options, status, rows.put, chosen).run(feed.batches_of_it())
        finally:
            feed.end()

    def loop() -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(run())
        except BaseException as error:
            rows.put(error)
        else:
            rows.put(None)

    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        thread = threading.Thread(target=loop, name="player", daemon=True)
        thread.start()
        while (batch := rows.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            yield batch
        thread.join()
    finally:
        sys.setswitchinterval(before)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
