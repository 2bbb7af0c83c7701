"""What a namespace counts is the messages that are there: after a crash, and when a queue ends."""
from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.stored_node import StoredNode

from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import pump_queues
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.model.queues import QueueSpec


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """As while a broker loads its state. Otherwise, chance decides whether a queue that has ended still counts."""
    gc.disable()
    yield
    gc.enable()


def declare(manager: QueueManager) -> Queue:
    return manager.declare(QueueSpec(name="q"))[0]


def delay(queue: Queue, hub: Hub) -> None:
    assert queue.append_message(b"t", b"delayed", not_before=hub.steady_ms + 1000) == 0


@pytest.mark.parametrize("in_segments", [False, True])
def test_a_delayed_message_that_was_consumed(tmp_path: Path, in_segments: bool) -> None:
    node = StoredNode(tmp_path)
    queue = declare(node.manager)
    node.manager.group(queue, b"g")
    for turn in range(2):
        delay(queue, node.hub)
        node.sync()
        if in_segments:
            assert node.keeper.queues is not None
            node.keeper.queues.reader.cache_bytes = 1 << 20     # the due message need not be read
            node.checkpoint()
        node.hub.set_clock(node.hub.now_ms + 2000, node.hub.mono_ms + 2000)
        queue.notify()
        node.sync()
        [group], [log] = queue.groups, queue.logs
        by_offset.settle_any(group, log.number, turn)
        queue.notify()
        node.sync()
        assert log.next == turn + 1 and node.hub.root.bytes == 0
        node.close()
        node = StoredNode(tmp_path, identity=turn + 2)
        queue = node.manager.queues[b"/", b"q"].queue
        assert queue.delays is not None and (queue.delays.log.first, queue.delays.log.kept_bytes) == (turn + 1, 0)
        pump_queues(node.hub)
        assert node.hub.root.bytes == 0
    node.close()


@pytest.mark.parametrize("in_segments", [False, True])
def test_a_queue_that_was_deleted(tmp_path: Path, in_segments: bool) -> None:
    node = StoredNode(tmp_path)
    queue = declare(node.manager)
    node.manager.group(queue, b"g")
    queue.append_message(b"t", b"ready")
    delay(queue, node.hub)
    node.sync()
    if in_segments:
        node.checkpoint()
    kept = node.hub.root.bytes
    node.manager.delete((b"/", b"q"))
    assert kept and node.hub.root.bytes == 0
    node.sync()
    node.close()
    node = StoredNode(tmp_path, identity=2)
    assert not node.manager.queues and node.hub.root.bytes == 0
    node.close()


def test_a_queue_that_is_deleted_where_it_follows() -> None:
    hub, there = Hub(None), Hub(None)
    line = hub.commits.open_line("group 7")
    manager = QueueManager(hub, cluster=solo())
    follower = QueueLine(QueueManager(there, cluster=solo()), there.commits.open_line("group 7"))

    def replicate() -> None:
        pump_queues(hub)
        position, records = line.submit()
        line.commit(position)
        follower.apply(records)

    queue = manager.declare(QueueSpec(name="q"), line)[0]
    manager.group(queue, b"g")
    queue.append_message(b"t", b"ready")
    delay(queue, hub)
    replicate()
    assert there.root.bytes == hub.root.bytes > 0
    manager.delete((b"/", b"q"))
    replicate()
    assert there.root.bytes == hub.root.bytes == 0
