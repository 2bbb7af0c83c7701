"""`play`: plays the operations of one partition, a generator of the result's rows, without Spark.

Three threads: one reads operations ahead, one runs the event loop with all clients, and the caller's iterates over rows
as they become final. So neither reading operations nor writing rows delays a client.
"""
from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import pyarrow as pa

from fluxmq.spark.player.options import PlayOptions, PlayStatus
from fluxmq.spark.player.player import Player

__all__ = ["PlayOptions", "PlayStatus", "play"]

AHEAD_BYTES = 64 << 20  # of operations read ahead; at least one batch
END_S = 15.0            # time for a stopped player to disconnect from the broker
SWITCH_S = 0.0005       # a thread that writes rows must not keep the loop from a packet for the default 5 ms


class _Feed:
    """Operations, pulled by a thread, taken by the loop."""

    def __init__(self, batches: Iterable[pa.RecordBatch], loop: asyncio.AbstractEventLoop) -> None:
        self.batches, self.loop = batches, loop
        self.there: asyncio.Queue[pa.RecordBatch | BaseException | None] = asyncio.Queue()
        self.room, self.ahead = threading.Condition(), 0
        self.ended = False
        self.thread = threading.Thread(target=self._pull, name="operations", daemon=True)
        self.thread.start()

    def _pull(self) -> None:
        last: BaseException | None = None
        try:
            for batch in self.batches:
                with self.room:
                    self.room.wait_for(lambda: self.ended or self.ahead < AHEAD_BYTES)
                    self.ahead += batch.nbytes
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
            self._took(batch.nbytes)
            yield batch

    def _took(self, size: int) -> None:
        with self.room:
            self.ahead -= size
            self.room.notify()

    def end(self) -> None:
        """Nothing is taken any more; the thread ends with its next batch."""
        self.ended = True
        self._took(0)


def play(operations: Iterable[pa.RecordBatch], options: PlayOptions, status: PlayStatus | None = None, *,
         manual: Iterable[int] = (), settling: Iterable[int] = ()) -> Iterator[pa.RecordBatch]:
    """Plays and yields rows of the result, in the order in which they become final.

    operations: batches of OPERATIONS, sorted. status: filled in; complete when the generator ends. manual: links whose
    acknowledgements are operations. settling: links that settle messages of queues by commands. A broker that refuses
    or goes away raises nothing: the status says so. Errors of `operations` propagate.
    """
    status = PlayStatus() if status is None else status
    rows: queue.SimpleQueue[pa.RecordBatch | BaseException | None] = queue.SimpleQueue()
    chosen, settlers = frozenset(manual), frozenset(settling)
    unwanted = threading.Event()
    stops: list[Callable[[], object]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        feed, player = _Feed(operations, loop), Player(options, status, rows.put, chosen, settlers)
        stops.append(lambda: loop.call_soon_threadsafe(player.stop, "Spark no longer reads its rows"))
        if unwanted.is_set():
            player.stop("Spark no longer reads its rows")
        try:
            await player.run(feed.batches_of_it())
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
    thread = threading.Thread(target=loop, name="player", daemon=True)
    thread.start()
    try:
        while (batch := rows.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        # The caller could not write the rows: without this the clients would continue.
        unwanted.set()
        for stop in stops:
            with contextlib.suppress(RuntimeError):     # the loop is closed: it has ended
                stop()
        thread.join(END_S)
        sys.setswitchinterval(before)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
