"""The part of the composition root that is about queues: who knows whom, and the queues of the configuration."""
from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq._core.errors import ConfigError
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.consumers import QueueConsumers
from fluxmq.engine.queues.disk_full import QueueSpace
from fluxmq.engine.queues.limits import LimitedConsumers
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.recovery.store import QueueKeeper
from fluxmq.model import limits
from fluxmq.storage.reserve import Reserve
from fluxmq.storage.segments import SegmentStore

if TYPE_CHECKING:
    from fluxmq.app.server import Server

__all__ = ["declare", "initialize", "tick"]


def initialize(server: Server) -> SegmentStore | None:
    """Builds what queues need. Returns the segment files, None where nothing is on disk."""
    config = server.config
    manager = QueueManager(server.hub, config.queue_manager.auto_create, server.note, cluster=server.cluster)
    segments = None
    assert server.store is not None
    if server.store.path is not None:
        segments = SegmentStore(server.store.path, segment_bytes=config.queue_manager.segment_size,
                                compression=config.queue_manager.compression,
                                recover=config.storage.recover_on_startup)
    server.keeper.queues = QueueKeeper(manager, segments, config.queue_manager.cache_size, server.keeper.driver,
                                       small_bytes=limits.QUEUE_SMALL_BYTES)
    server.broker.consumers = QueueConsumers(manager, server.note)
    server.queue_manager = manager
    server.hub.ledger.limit_claims(config.queue_manager.max_unsettled_per_consumer,
                                   config.queue_manager.max_unsettled)
    server.queue_limited = LimitedConsumers(manager)
    server.queue_clock = QueueClock(manager, int(config.queue_manager.auto_commit_interval * 1000),
                                    server.keeper.clock.stamp_of_age)
    if server.store.path is not None:
        server.queue_space = QueueSpace(manager, Reserve(server.store.path, limits.QUEUE_RESERVE_BYTES),
                                        server.keeper.driver, server.note)
    server.queues = QueueAdmin(manager)
    return segments


def declare(server: Server) -> None:
    """The queues of the configuration, after what is on disk is known. Raises ConfigError for one that is there and is
    otherwise."""
    for at, spec in enumerate(server.config.queues):
        try:
            server.queue_manager.declare(spec)
        except QueueRefused as refused:
            raise ConfigError(f"queues[{at}]", f"{refused.text}; {refused.hint}") from None
        server.queue_manager.queues[spec.address].configured = True


def tick(server: Server) -> None:
    """The clock has moved."""
    if not server.queue_clock.behind:       # else it goes on by itself
        look(server)
    server.queue_limited.tick()
    if server.queue_space is not None:
        server.queue_space.tick()


def look(server: Server) -> None:
    """At the queues that something happened to; where those are many, at the others after a turn."""
    if server.queue_clock.tick() and not server.broker.stopping:
        server.loop.call_later(0, look, server)
