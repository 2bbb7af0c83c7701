"""What is in memory of messages that are on disk: who gives way when there is no room."""
from __future__ import annotations

import gc

from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.export import Export
from fluxmq._core.queue.log import Log
from fluxmq._core.testing.probes import pump_queues
from fluxmq.app.driver import LoopDriver
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.recovery.store import QueueKeeper
from fluxmq.model.queues import QueueSpec

Blocks = list[bytes]


def flushed(hub: Hub, keeper: QueueKeeper, name: str) -> tuple[Log, Blocks]:
    """A queue with ten messages that segments have, too."""
    manager = keeper.manager
    queue = manager.declare(QueueSpec(name=name))[0]
    log = queue.logs[0]
    for _ in range(8):                          # one chunk
        log.append_message(b"t", b"x")
    blocks = [block[7] for block in Export(log, 1 << 60)]
    log.exported()
    return log, blocks


def turn(hub: Hub, count: int = 1) -> None:
    for _ in range(count):
        pump_queues(hub)


def test_the_least_recently_read_gives_way_and_what_was_just_read_in_does_not() -> None:
    hub = Hub(None)
    keeper = QueueKeeper(QueueManager(hub, cluster=solo()), None, 0, LoopDriver(), lambda error: None)
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
    first.load(0, 8, blocks)
    keeper.reader.evict()
    assert first.get(0) is not None, "what a reader waits for is gone before it saw it"
    assert second.cached == 0 and third.cached > 0
    keeper.reader.cache_bytes = 0
    keeper.reader.evict()
    assert first.cached > 0 and third.cached == 0
    turn(hub, 3)
    keeper.reader.evict()
    assert first.cached == 0


def test_what_gives_way_is_found_without_a_look_at_what_stays() -> None:
    hub = Hub(None)
    keeper = QueueKeeper(QueueManager(hub, cluster=solo()), None, 0, LoopDriver(), lambda error: None)
    logs = [flushed(hub, keeper, f"q{number}")[0] for number in range(1000)]
    assert hub.ledger.cached_bytes == sum(log.cached for log in logs)
    turn(hub, 3)
    keeper.reader.cache_bytes = hub.ledger.cached_bytes
    assert keeper.reader.evict() == 0
    assert logs[0].get(0) is not None           # read now, so that it is not the first to go
    turn(hub, 3)
    keeper.reader.cache_bytes -= 1
    assert keeper.reader.evict() == 1
    assert logs[0].cached and not logs[1].cached and all(log.cached for log in logs[2:])


def test_what_somebody_holds_does_not_count_until_he_lets_go() -> None:
    hub = Hub(None)
    keeper = QueueKeeper(QueueManager(hub, cluster=solo()), None, 0, LoopDriver(), lambda error: None)
    log = keeper.manager.declare(QueueSpec(name="q"))[0].logs[0]
    log.append_message(b"t", b"x" * 100)
    holder = Export(log, 1 << 60)
    log.exported()
    turn(hub, 3)
    assert hub.ledger.cached_bytes == 0 and log.memory
    keeper.reader.evict()
    assert log.get(0) is not None
    del holder
    assert hub.ledger.cached_bytes == log.cached == log.memory
    turn(hub, 3)
    keeper.reader.evict()
    assert log.memory == hub.ledger.cached_bytes == 0


def test_a_log_that_goes_takes_its_part_of_the_cache_along() -> None:
    hub = Hub(None)
    log = Log(hub.ledger, 1)
    log.append_message(b"t", b"x")
    list(Export(log, 1 << 60))
    log.exported()
    assert hub.ledger.cached_bytes
    del log
    gc.collect()
    assert hub.ledger.cached_bytes == 0
