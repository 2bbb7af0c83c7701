"""The part of the composition root for recordings: the recorder, and the configured writer."""
from __future__ import annotations

import hashlib
from typing import Any

from fluxmq import __version__
from fluxmq._core.net.poller import Poller
from fluxmq.app.config_text import show
from fluxmq.app.logs import Notes
from fluxmq.model.config import Config
from fluxmq.record.options import BrokerAbout
from fluxmq.record.recorder import Recorder
from fluxmq.record.supervisor import Supervisor

__all__ = ["Recording"]


class Recording:
    """supervisor: of the writer; None: none is configured, or it has not been started yet."""

    def __init__(self, poller: Poller, config: Config, notes: Notes) -> None:
        self.recorder = Recorder(poller, BrokerAbout(
            version=__version__, config_digest=hashlib.sha256(show(config, {}).encode()).hexdigest()),
            config.record.ring_size)
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
