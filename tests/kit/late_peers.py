"""A broker whose frames to other nodes come late, each by another time, in their order: a slow, uneven network.

    FLUXMQ_TEST_LATE_PEERS=100 pytest -k three-nodes tests/queues tests/amqp091    # by up to 100 ms
    python -m kit.late_peers run …                                                 # a broker of such a cluster

What two nodes tell a third one reaches it in any order then: a test that relies on one fails.
"""
from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from weakref import WeakKeyDictionary

from fluxmq.app.cli import main
from fluxmq.cluster.rpc.outgoing import Outgoing

LATEST_MS = int(os.environ["FLUXMQ_TEST_LATE_PEERS"])
PUNCTUAL = 0.5  # of all frames: one node's are late while another's are not

_send = Outgoing.send
_late: WeakKeyDictionary[Outgoing, deque[tuple[float, bytes]]] = WeakKeyDictionary()


def _send_late(self: Outgoing, frame: bytes) -> bool:
    """Each timer sends the oldest frame: timers that are due together may come in any order. The stream is busy until
    then."""
    loop = asyncio.get_running_loop()
    waiting = _late.setdefault(self, deque())
    late_ms = 0.0 if random.random() < PUNCTUAL else random.uniform(0, LATEST_MS)
    due = max(loop.time() + late_ms / 1000, waiting[-1][0] if waiting else 0.0)
    waiting.append((due, frame))
    loop.call_at(due, _send_oldest, self, waiting)
    return False


def _send_oldest(stream: Outgoing, waiting: deque[tuple[float, bytes]]) -> None:
    if _send(stream, waiting.popleft()[1]):
        stream.on_idle()


if __name__ == "__main__":
    Outgoing.send = _send_late  # type: ignore[method-assign]
    main()
