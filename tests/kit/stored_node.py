"""Sessions and queues over a real store, without sockets: for what a checkpoint, a start and a repair make of them."""
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fluxmq._core.hub.hub import Hub
from fluxmq._core.testing.probes import pump_queues
from fluxmq.app.driver import LoopDriver
from fluxmq.cluster.solo import solo
from fluxmq.engine.broker import Broker, Limits
from fluxmq.engine.durability import Keeper
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.recovery.store import QueueKeeper
from fluxmq.storage.segments import SegmentStore
from fluxmq.storage.store import RocksStore

__all__ = ["StoredNode", "pump"]


def pump(hub: Hub) -> None:
    """Pumps queues until nothing is to be done, and nothing is read from the disk."""
    async def pumped() -> None:
        while True:
            while pump_queues(hub):
                pass
            reads = asyncio.all_tasks() - {asyncio.current_task()}
            if not reads:
                return
            await asyncio.wait(reads)
    asyncio.run(pumped())


class StoredNode:
    """The loop is the test's. identity, recover, file_ops: of RocksStore. small: bytes of a log that stay in the state;
    0: all of it is moved to segments. grown: bytes of the journal after which tick() begins a checkpoint. segments:
    options of SegmentStore.

    found: what the start counted. notes: (level, text, fields) of what was logged."""

    def __init__(self, directory: Path, identity: int = 1, *, recover: bool = False, file_ops: int = 0, small: int = 0,
                 grown: int = 1 << 40, **segments: Any) -> None:
        self.store = RocksStore(directory, identity=identity, recover_on_startup=recover, file_ops=file_ops)
        self.store.start()
        assert self.store.journal is not None
        self.journal = self.store.journal
        self.hub = Hub(self.journal)
        self.notes: list[tuple[str, str, dict[str, Any]]] = []
        self.broker = Broker(self.hub, Limits(queue_max=1000), self.note, cluster=solo())
        self.manager = QueueManager(self.hub, "", self.note, cluster=solo())
        self.segments = SegmentStore(directory, **segments)
        self.keeper = Keeper(self.broker, self.store, grown, LoopDriver())
        self.keeper.queues = QueueKeeper(self.manager, self.segments, 0, LoopDriver(), self.fail, small_bytes=small)
        self.before()
        try:
            self.found = self.keeper.recover()
        except BaseException:
            self.close()
            raise

    def note(self, level: str, _cause: str, text: str, fields: dict[str, Any]) -> None:
        """Something for the log."""
        self.notes.append((level, text, fields))

    def before(self) -> None:
        """All is made, nothing is recovered."""

    def fail(self, error: Exception) -> None:
        """The queues' store is broken."""

    @property
    def queued(self) -> int:
        """Messages of sessions."""
        return sum(session.queued for session in self.broker.sessions.values())

    @property
    def kept(self) -> int:
        """Messages of queues."""
        return sum(state.queue.depth for state in self.manager.queues.values())

    async def durable(self) -> None:
        """Ends when the journal has everything."""
        pump_queues(self.hub)
        while self.journal.submit() or self.journal.durable < self.journal.gathering - 1:
            await asyncio.sleep(0.001)
            self.journal.poll()

    def sync(self) -> None:
        asyncio.run(self.durable())

    def checkpoint(self, gathered: bool = False) -> None:
        """gathered: the journal has not written everything when it begins, as on a busy node."""
        async def taken() -> None:
            if not gathered:
                await self.durable()
            task = asyncio.ensure_future(self.keeper.checkpoint())
            while not task.done():
                await asyncio.sleep(0.001)
                await self.durable()
            await task
        asyncio.run(taken())

    def close(self) -> None:
        self.store.close()
        self.segments.close()
