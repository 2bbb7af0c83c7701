"""A checkpoint is taken while the state moves on: what it leaves behind must be readable after a crash."""
from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from kit.carrier import Carrier
from kit.stored_node import StoredNode

from fluxmq._core.hub.hub import Hub
from fluxmq.app.driver import LoopDriver
from fluxmq.cluster.solo import solo
from fluxmq.engine.broker import STALE_TIMERS_MAX, Broker, Limits
from fluxmq.engine.durability import QUIET_EVERY_MS, QUIET_MS, Keeper
from fluxmq.engine.sessions.state import Will
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.store import RocksStore


def connect(broker: Broker, connection: Carrier) -> None:
    broker.connect(b"c", version=5, clean_start=False, expiry_s=100, keep_alive_s=0, will=None, username=None,
                   connection=connection)


def test_a_message_that_dies_during_a_checkpoint_stays_in_the_view(tmp_path: Path) -> None:
    def opened() -> tuple[RocksStore, Broker, Keeper]:
        store = RocksStore(tmp_path, identity=1)
        store.start()
        broker = Broker(Hub(store.journal), Limits(queue_max=1), cluster=solo())
        return store, broker, Keeper(broker, store, 1 << 20, LoopDriver())

    async def scenario() -> None:
        store, broker, keeper = opened()
        hub, journal = broker.hub, store.journal
        assert journal is not None
        asyncio.get_running_loop().add_reader(journal.event_fd, journal.poll)
        connection = Carrier(stays=True)
        connect(broker, connection)
        session = broker.sessions[b"/", b"c"]
        broker.subscribe(session, b"t", 1, 0)
        broker.disconnect(session, connection, publish_will=False)
        hub.publish_message(b"t", b"first", 1)
        journal.submit()
        task = asyncio.ensure_future(keeper.checkpoint())
        await asyncio.sleep(0)  # it has made its copy of the session, with the first message in line
        hub.publish_message(b"t", b"second", 1)  # and now that one is evicted
        while not task.done():
            journal.submit()
            await asyncio.sleep(0.001)
        await task
        asyncio.get_running_loop().remove_reader(journal.event_fd)
        store.close()

    asyncio.run(scenario())
    store, broker, keeper = opened()
    try:
        assert keeper.recover()["queued"] == 1
        assert broker.sessions[b"/", b"c"].queued == 1
    finally:
        store.close()


def test_no_checkpoint_begins_while_the_node_stops(tmp_path: Path) -> None:
    """The end of one makes the next begin where the journal has grown enough; not when the store is to be closed."""

    class Slow(RocksStore):
        """Its checkpoints wait for the test."""

        async def checkpoint(self, *what: Any) -> None:
            await self.gate.wait()
            await super().checkpoint(*what)

    async def scenario() -> int:
        store = Slow(tmp_path, identity=1)
        store.start()
        store.gate, journal = asyncio.Event(), store.journal
        assert journal is not None
        broker = Broker(Hub(journal), cluster=solo())
        keeper = Keeper(broker, store, 1, LoopDriver())       # a byte is enough

        async def durable() -> None:
            while journal.submit() or journal.durable < journal.gathering - 1:
                await asyncio.sleep(0.001)
                journal.poll()

        connect(broker, Carrier(stays=True))
        await durable()
        keeper.tick()
        await asyncio.sleep(0)
        broker.subscribe(broker.sessions[b"/", b"c"], b"t", 1, 0)
        await durable()
        closing = asyncio.ensure_future(keeper.close(20.0))
        await asyncio.sleep(0)
        store.gate.set()
        await closing
        store.close()                           # raises while a checkpoint is under way
        return keeper.checkpoints

    assert asyncio.run(scenario()) == 2


def test_timers_of_earlier_lives_do_not_pile_up() -> None:
    broker = Broker(Hub(None), cluster=solo())
    for _ in range(10 * STALE_TIMERS_MAX):
        connection = Carrier(stays=True)
        connect(broker, connection)
        broker.disconnect(broker.sessions[b"/", b"c"], connection, publish_will=False)
    assert len(broker._timers) <= 2 * STALE_TIMERS_MAX
    broker.hub.set_clock(broker.hub.now_ms + 100_000, 0)
    broker.tick()
    assert not broker.sessions


def test_clients_that_were_there_when_the_node_stopped_may_return(tmp_path: Path) -> None:
    """Their sessions changed since the last checkpoint, so that of the stop has them. Expiry counts from the stop, and
    wills wait for the clients."""
    hour_ms = 3_600_000

    def opened(identity: int, now_ms: int) -> StoredNode:
        node = StoredNode(tmp_path, identity)
        node.hub.set_clock(1_700_000_000_000 + now_ms, now_ms)
        return node

    node = opened(1, 0)
    connection = Carrier(stays=True)
    for name, will in ((b"plain", None), (b"wills", Will(b"t", b"gone", 1, False))):
        node.broker.connect(name, version=5, clean_start=False, expiry_s=60, keep_alive_s=20, will=will, username=None,
                            connection=connection)
    node.hub.set_clock(1_700_000_000_000 + hour_ms, hour_ms)
    node.broker.stopping = True
    for session in list(node.broker.sessions.values()):
        node.broker.disconnect(session, connection, publish_will=True)
    node.checkpoint()
    node.close()
    node = opened(2, hour_ms + 1000)
    try:
        node.broker.tick()
        assert {name for _, name in node.broker.sessions} == {b"plain", b"wills"} and not node.broker.wills_published
        node.hub.set_clock(1_700_000_000_000 + hour_ms + 62_000, hour_ms + 62_000)
        node.broker.tick()
        assert not node.broker.sessions and node.broker.wills_published == 1
    finally:
        node.close()


def used(folder: Path) -> int:
    """Bytes of the queues' segments."""
    return sum(file.stat().st_size for file in (folder / "queues").rglob("*") if file.is_file())


def tick(node: StoredNode, after_ms: int) -> bool:
    """Whether a checkpoint began; it is awaited."""
    async def ticked() -> bool:
        node.hub.set_clock(node.hub.now_ms + after_ms, node.hub.mono_ms + after_ms)
        before = node.keeper.checkpoints
        node.keeper.tick()
        while node.keeper._task is not None and not node.keeper._task.done():
            await asyncio.sleep(0.001)
            await node.durable()
        return node.keeper.checkpoints > before
    return asyncio.run(ticked())


def test_what_was_purged_leaves_the_disk_of_an_idle_node(tmp_path: Path) -> None:
    """Nothing is published any more that would make the journal grow."""
    node = StoredNode(tmp_path, segment_bytes=1 << 16, grown=1 << 30)

    queue = node.manager.declare(QueueSpec(name="q"))[0]
    for _ in range(64):
        queue.append_message(b"t", os.urandom(10_000))
    node.sync()
    assert not tick(node, 0) and not tick(node, QUIET_MS - 1)
    assert tick(node, 1)
    assert used(tmp_path) > 640_000
    node.manager.purge(node.manager.queues[b"/", b"q"])
    node.sync()
    assert not tick(node, 0) and not tick(node, QUIET_MS)       # the last one was a moment ago
    assert tick(node, QUIET_EVERY_MS)
    assert used(tmp_path) < 100_000 and node.kept == 0
    assert not tick(node, 10 * QUIET_EVERY_MS)            # nothing has happened since
    node.close()
    node = StoredNode(tmp_path)
    assert node.kept == 0
    node.close()


def test_a_checkpoint_of_the_load_does_not_delay_the_one_of_an_idle_node(tmp_path: Path) -> None:
    """What is consumed right behind it leaves the disk after QUIET_MS, not after QUIET_EVERY_MS."""
    node = StoredNode(tmp_path, segment_bytes=1 << 16, grown=1 << 19)
    queue = node.manager.declare(QueueSpec(name="q"))[0]
    for _ in range(64):
        queue.append_message(b"t", os.urandom(10_000))
    node.sync()
    assert tick(node, 0)
    assert used(tmp_path) > 640_000
    node.manager.purge(node.manager.queues[b"/", b"q"])
    node.sync()
    assert not tick(node, 0)
    assert tick(node, QUIET_MS)
    assert used(tmp_path) < 100_000
    node.close()


def test_retained_messages_are_exported_a_few_at_a_time_while_they_change(tmp_path: Path,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get their turns in between, and what is newer than the checkpoint's beginning counts."""
    monkeypatch.setattr("fluxmq.engine.durability.SLICE_RETAINED", 10)

    def kept(node: StoredNode) -> dict[bytes, bytes]:
        return {topic: one.payload for topic, one in node.hub.root.topics.retained}

    async def scenario() -> dict[bytes, bytes]:
        node = StoredNode(tmp_path)
        for number in range(100):
            node.hub.publish_message(b"t/%d" % number, b"before", 1, True)
        await node.durable()
        task = asyncio.ensure_future(node.keeper.checkpoint())
        turns = 0
        while not task.done():
            if turns < 9:       # each of them is exported before some of these, and behind others
                for number in range(turns, 100, 10):
                    node.hub.publish_message(b"t/%d" % number, b"" if number % 3 else b"after %d" % turns, 1, True)
            turns += 1
            await asyncio.sleep(0)
            node.journal.submit()
            node.journal.poll()
        await task
        assert turns > 10
        await node.durable()
        expected = kept(node)
        node.close()
        return expected

    expected = asyncio.run(scenario())
    assert 0 < len(expected) < 100
    node = StoredNode(tmp_path)
    assert kept(node) == expected
    node.close()
