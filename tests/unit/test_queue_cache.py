"""What is in memory of messages that are on disk: who gives way when there is no room."""
from __future__ import annotations

from fluxmq._core.hub import Hub
from fluxmq._core.queue_export import Export
from fluxmq._core.queue_log import Log
from fluxmq._core.testing import pump_queues
from fluxmq.engine.queue_store import QueueKeeper
from fluxmq.engine.queues import QueueManager
from fluxmq.model.queues import QueueSpec

Blocks = list[bytes]


def flushed(hub: Hub, keeper: QueueKeeper, name: str) -> tuple[Log, Blocks]:
    """A queue with ten messages that segments have, too."""
    manager = keeper.manager
    queue = manager.declare(QueueSpec(name=name))[0]
    log = queue.logs[0]
    for _ in range(10):
        log.append_message(b"t", b"x" * 100)
    blocks = [block[7] for block in Export(log, 1 << 60)]
    log.exported()
    keeper.reader.exported(log)
    keeper.logs[log.number] = manager.queues[name.encode()], log
    return log, blocks


def turn(hub: Hub, count: int = 1) -> None:
    for _ in range(count):
        pump_queues(hub)


def test_the_least_recently_read_gives_way_and_what_was_just_read_in_does_not() -> None:
    hub = Hub(None)
    keeper = QueueKeeper(QueueManager(hub), None, 0, lambda error: None)
    first, blocks = flushed(hub, keeper, "first")
    second, _ = flushed(hub, keeper, "second")
    third, _ = flushed(hub, keeper, "third")
    first.evict(1 << 30)
    keeper.reader.cache_bytes = second.cached + third.cached
    turn(hub, 5)
    assert second.get(0) is not None
    turn(hub, 5)
    assert third.get(0) is not None
    turn(hub, 5)
    first.load(0, 10, blocks)
    keeper.reader.exported(first)
    keeper.reader.evict()
    assert first.get(0) is not None, "what somebody waits for is gone before he saw it"
    assert second.cached == 0 and third.cached > 0
    keeper.reader.cache_bytes = 0
    keeper.reader.evict()
    assert first.cached > 0 and third.cached == 0
    turn(hub, 3)
    keeper.reader.evict()
    assert first.cached == 0
