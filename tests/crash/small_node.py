"""`fluxmq run` whose journal files are FLUXMQ_TEST_FILE_BYTES long, far below what may be configured, and whose clock
ticks often: so a test of seconds meets as many rotations and checkpoints as months would."""
from __future__ import annotations

import os
from typing import Any

from fluxmq.app import cli, server
from fluxmq.engine import durability
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.queues import clock as queue_clock

FILE_BYTES = int(os.environ.get("FLUXMQ_TEST_FILE_BYTES", "65536"))
_keeper = durability.Keeper


def _small(broker: Any, store: Any, file_bytes: int, driver: Driver) -> durability.Keeper:
    return _keeper(broker, store, min(file_bytes, FILE_BYTES), driver)


server.Keeper = _small                      # type: ignore[misc,assignment]
server.TICK_S = 0.02                        # type: ignore[misc]
durability.SLICE_SESSIONS = 2               # gaps within checkpoints, too
queue_clock.RETENTION_EVERY_MS = 50

if __name__ == "__main__":
    cli.main()
