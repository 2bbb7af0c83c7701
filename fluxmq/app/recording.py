"""The part of the composition root for recordings: the recorder, and the configured writer."""
from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

from fluxmq import __version__
from fluxmq._core.net.poller import Poller
from fluxmq.app.logs import Notes
from fluxmq.engine.ports.overview import ClusterView
from fluxmq.model.config import Config
from fluxmq.record.options import BrokerAbout, ClusterAbout
from fluxmq.record.recorder import Recorder
from fluxmq.record.supervisor import Supervisor

__all__ = ["Recording"]


class Recording:
    """cluster: the cluster as this node sees it now. supervisor: of the writer; None: none is configured, or it has not
    been started yet."""

    def __init__(self, poller: Poller, config: Config, notes: Notes, cluster: Callable[[], ClusterView]) -> None:
        @cache
        def digest() -> str:
            # A start without a recording neither imports nor makes the text.
            from fluxmq.app.config_text import show

            return hashlib.sha256(show(config, {}).encode()).hexdigest()

        self.recorder = Recorder(poller, lambda: BrokerAbout(
            version=__version__, config_digest=digest(), cluster=_cluster(cluster())), config.record.ring_size)
        self.supervisor: Supervisor | None = None
        self._config = config.record
        self._notes = notes

    async def start(self) -> None:
        """Starts the writer if one is configured."""
        if self._config.enabled:
            self.supervisor = Supervisor(self.recorder, self._config, self._notes.say)
            await self.supervisor.start()

    def tick(self) -> None:
        """Called on each tick of the clock."""
        self.recorder.tick()
        if self.supervisor is not None:
            self.supervisor.tick()

    async def stop(self) -> None:
        """Called after the last client was disconnected."""
        self.recorder.stop()
        if self.supervisor is not None:
            await self.supervisor.stop()

    def metrics(self) -> dict[str, Any]:
        """Metrics for model/metrics.py."""
        return {"fluxmq_recording": int(self.recorder.recording),
                "fluxmq_record_writer_restarts_total": self.supervisor.restarts if self.supervisor is not None else 0,
                } | {f"fluxmq_record_{name}_total": value for name, value in self.recorder.totals().items()}


def _cluster(view: ClusterView) -> ClusterAbout:
    """Empty for a broker by itself, and for a node that has not joined."""
    if not view.env:
        return ClusterAbout()
    return ClusterAbout(id=view.env, node=view.local, nodes=tuple(
        node.id for node in view.nodes if node.id == view.local or node.state != "down"))
