"""The part of the composition root that connects the parts of queues and declares those of the configuration."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxmq._core.errors import ConfigError
from fluxmq.app.logs import Notes
from fluxmq.engine.broker import Broker
from fluxmq.engine.durability import Keeper
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.engine.ports.definitions import Deferred
from fluxmq.engine.ports.queues import QueueRefused, QueuesPort
from fluxmq.engine.ports.store import StateStore
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.consumers import QueueConsumers
from fluxmq.engine.queues.disk_full import QueueSpace
from fluxmq.engine.queues.limits import LimitedConsumers
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.recovery.store import QueueKeeper
from fluxmq.model import limits
from fluxmq.model.config import Config
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.reserve import Reserve
from fluxmq.storage.segments import SegmentStore

__all__ = ["Queues"]


class Queues:
    """All parts of queues. later: the loop's call_later. segments, space: None if nothing is stored on disk."""

    def __init__(self, broker: Broker, keeper: Keeper, store: StateStore, config: Config, cluster: Cluster,
                 notes: Notes, later: Callable[..., Any]) -> None:
        self._broker, self._later, self._specs, self._say = broker, later, config.queues, notes.say
        options = config.queue_manager
        self.manager = manager = QueueManager(broker.hub, options.auto_create, notes.say, cluster=cluster)
        manager.away.publishes = config.broker.sys_interval > 0
        self.segments: SegmentStore | None = None
        self.space: QueueSpace | None = None
        if store.path is not None:
            self.segments = SegmentStore(store.path, segment_bytes=options.segment_size,
                                         compression=options.compression, recover=config.storage.recover_on_startup)
            self.space = QueueSpace(manager, Reserve(store.path, limits.QUEUE_RESERVE_BYTES), keeper.driver, notes.say)
        keeper.queues = QueueKeeper(manager, self.segments, options.cache_size, keeper.driver,
                                    small_bytes=limits.QUEUE_SMALL_BYTES)
        self.copies = keeper.queues.copies
        self.consumers = broker.consumers = QueueConsumers(manager, notes.say, broker.relays, broker.hosts)
        self.consumers.defined.write_policy = config.cluster.raft.write_policy
        broker.hub.ledger.limit_claims(options.max_unsettled_per_consumer, options.max_unsettled)
        self.limited = LimitedConsumers(manager)
        self.clock = QueueClock(manager, int(options.auto_commit_interval * 1000), keeper.clock.stamp_of_age, later)
        self.admin: QueuesPort = QueueAdmin(manager)

    @property
    def refusing(self) -> str:
        """The reason why publishes to durable queues are refused; "" if they are not."""
        return (self.space.why or "the disk is full") if self.space is not None and self.space.full else ""

    def declare(self) -> None:
        """Declares the configured queues after recovery. Raises ConfigError for one that exists with other settings.
        In a cluster that has them in common `declare_shared` does it."""
        if self.manager.definer is not None:
            return
        for at, spec in enumerate(self._specs):
            try:
                self.manager.declare(spec)
            except QueueRefused as refused:
                raise ConfigError(f"queues[{at}]", f"{refused.text}; {refused.hint}") from None
            self.manager.queues[spec.address].configured = True

    async def declare_shared(self) -> None:
        """Declares the configured queues in the cluster that this node has joined. One that is there with other
        settings is used as it is: another node, or an operator, was first."""
        if self.manager.definer is None:
            return
        for spec in self._specs:
            try:
                await self._declare_shared(spec)
            except QueueRefused as refused:
                self._say("warning", "", f"a queue of the configuration could not be made: {refused.text}", {
                    "queue": spec.shown, "why": refused.text})

    async def _declare_shared(self, spec: QueueSpec) -> None:
        while (state := self.manager.queues.get(spec.address)) is None:
            try:
                self.manager.declare(spec)
            except Deferred as deferred:
                await deferred.change()
        state.configured = True
        if state.spec != spec:
            self._say("warning", "", "a queue of the configuration is there with other settings, which are used", {
                "queue": spec.shown})

    def tick(self) -> None:
        """Called on each tick of the clock."""
        if not self.clock.behind:       # otherwise it continues by itself
            self._look()
        self.limited.tick()
        if self.space is not None:
            self.space.tick()

    def _look(self) -> None:
        """Checks queues that changed; if there are many, continues after a turn of the loop."""
        if self.clock.tick() and not self._broker.stopping:
            self._later(0, self._look)

    async def stop(self) -> None:
        """Called when nothing is published any more."""
        self.clock.close()
        if self.space is not None:
            await self.space.stop()

    def close(self) -> None:
        """Called after the store was closed."""
        if self.segments is not None:
            self.segments.close()
