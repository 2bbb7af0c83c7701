"""The queues and exchanges of a node without clients, clock and event loop of their own: real journal, real segments,
on a disk that remembers every instant (kit/film.py). The view is a dictionary that a checkpoint replaces in one
instant; that RocksDB keeps that promise at each of its syncs is shown by test_checkpoint.py.
"""
from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kit.film import Cut, Film
from kit.journals import Ops, wait_event

from fluxmq._core.errors import FluxError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import gathered, pump_queues
from fluxmq.app.driver import LoopDriver
from fluxmq.cluster.solo import solo
from fluxmq.engine.broker import Broker
from fluxmq.engine.durability import Keeper
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.exchanges.store import ExchangeKeeper
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.positions import NOTHING
from fluxmq.engine.queues.recovery.store import QueueKeeper
from fluxmq.storage.segments import SegmentStore
from fluxmq.storage.store import RocksStore

__all__ = ["QueueNode", "View"]

# Bytes of a log that stay in the view: another number with each start of a history, so what one start keeps there the
# next moves to segments, and the other way round.
SMALL = (0, 400, 2048)


class View:
    """What RocksDB holds: replaced as a whole. Never changed, so a picture of it is a reference."""

    def __init__(self, applied: int = 0, data: dict[bytes, bytes] | None = None) -> None:
        self.applied = applied
        self.data = data or {}

    def open(self) -> int:
        return self.applied

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(self.data.items()))

    def close(self) -> None:
        pass


class MemoryViewStore(RocksStore):
    """A RocksStore with a View. film: told of the instant before a checkpoint counts."""

    film: Film | None = None

    def __init__(self, directory: Path, view: View, identity: int, file_ops: int) -> None:
        super().__init__(directory, identity=identity, file_ops=file_ops)
        self.view = view

    def _open_view(self) -> Any:
        return self.view

    async def checkpoint(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> None:
        journal = self._journal
        assert journal is not None and self._applied <= upto <= journal.durable
        data = self.view.data | dict(puts)
        for key in deletes:
            data.pop(key, None)
        if self.film is not None:
            self.film.cut("view")
        self._view = self.view = View(upto, data)  # type: ignore[assignment]
        self._applied = upto
        if self.film is not None:
            self.film.cut("retire")
        await asyncio.get_running_loop().run_in_executor(None, journal.retire, upto)


class QueueNode:
    """directory: what a crash left, or empty. filmed: whether its instants are kept."""

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop, view: View, clock: tuple[int, int],
                 identity: int, filmed: bool = True) -> None:
        self.directory, self.loop = directory, loop
        self.confirmed = 0                      # the last batch that somebody may have been told of
        self.ops = Ops()
        for name in ("journal", "state"):       # made and synced by the store, which has no film in it
            (directory / name).mkdir(exist_ok=True)
        self.film: Film | None = None
        self.store: MemoryViewStore | None = None
        if filmed:
            self.film = Film(directory, lambda: (self.confirmed, self.store.view if self.store else view))
            self.film.attach(self.ops)
        self.store = MemoryViewStore(directory, view, identity, self.ops.address if filmed else 0)
        self.store.film = self.film
        self.store.start()
        assert self.store.journal is not None
        self.journal = self.store.journal
        self.confirmed = self.recovered = self.journal.gathering - 1
        self.hub = Hub(self.journal, 64, identity)
        self.hub.set_clock(*clock)
        self.manager = QueueManager(self.hub, cluster=solo())
        self.keeper = Keeper(Broker(self.hub, cluster=solo()), self.store, 1 << 40, LoopDriver())
        self.clock = QueueClock(self.manager, 0, self.keeper.clock.stamp_of_age)
        self.segments = SegmentStore(directory, segment_bytes=1500, ops=self.film)
        self.failed: list[FluxError] = []
        self.queues = self.keeper.queues = QueueKeeper(self.manager, self.segments, 0, LoopDriver(), self.failed.append,
                                                       small_bytes=SMALL[identity % len(SMALL)])
        self.exchanges = ExchangeManager(self.hub, seed=identity, cluster=solo())
        self.keeper.exchanges = ExchangeKeeper(self.exchanges, self.manager)
        self.keeper.recover()
        for name in self.hub.namespaces:
            self.exchanges.add_vhost(name)
        self._read = self.manager.disk.read_for
        self.manager.disk.read_for = self._read_for  # type: ignore[method-assign]
        self.unread: set[int] = set()           # numbers of logs that a pump found to be on disk only
        self.checkpoint: asyncio.Task[None] | None = None

    def _read_for(self, queue: Queue) -> None:
        self.unread |= {log.number for log in queue.logs if log.wanted != NOTHING}
        self._read(queue)

    def in_turn(self, step: Any) -> int:
        """A turn of the loop: `step` happens, changed queues are pumped, the batch goes. Returns its number, or that
        of the last batch if nothing was recorded."""
        async def turn() -> int:
            step()
            pump_queues(self.hub)
            return self.journal.gathering if gathered(self.journal) else self.journal.gathering - 1

        return self.loop.run_until_complete(turn())

    def submit(self) -> None:
        self.hub.ledger.submit()

    def sync(self) -> None:
        """Everything recorded becomes durable, and whoever waits is told."""
        self.hub.ledger.submit()
        while gathered(self.journal) or self.journal.durable < self.journal.gathering - 1:
            wait_event(self.journal)
            self.poll()
            self.hub.ledger.submit()

    def poll(self) -> None:
        self.hub.ledger.poll()
        self.confirmed = self.journal.durable

    def round(self) -> None:
        """The loop's other work goes on by one step; a checkpoint begins if none is under way."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        self._over()

    def begin_checkpoint(self) -> None:
        if self.checkpoint is None:
            self.checkpoint = self.loop.create_task(self.keeper.checkpoint())

    def finish_checkpoint(self) -> None:
        while self.checkpoint is not None:
            self.sync()
            self.loop.run_until_complete(asyncio.sleep(0.0005))
            self._over()

    def _over(self) -> None:
        assert not self.failed, self.failed
        if self.checkpoint is not None and self.checkpoint.done():
            task, self.checkpoint = self.checkpoint, None
            task.result()

    def settle_reads(self) -> None:
        """What was asked of the disk is there."""
        while self.hub.awaited:
            self.loop.run_until_complete(asyncio.sleep(0.0005))
        assert not self.failed, self.failed

    def stop(self) -> list[Cut]:
        """The film ends here; the rest is only tidying up."""
        cuts = []
        if self.film is not None:
            self.film.cut("end")
            self.film.stop()
            cuts = self.film.cuts
        self.finish_checkpoint()
        self.settle_reads()
        assert self.store is not None
        self.store.close()
        self.segments.close()
        return cuts

    @staticmethod
    def after(cut: Cut, target: Path, how: str | random.Random, loop: asyncio.AbstractEventLoop,
              clock: tuple[int, int], filmed: bool = False) -> QueueNode:
        """A node on what the crash left."""
        _, view = cut.facts
        cut.restore(target, how)
        return QueueNode(target, loop, view, clock, int.from_bytes(os.urandom(7), "big") + 1, filmed)
