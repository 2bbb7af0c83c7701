"""What of the messages that are on disk stays in memory too."""
from __future__ import annotations

import heapq
from collections.abc import Iterable

from fluxmq._core.queue_log import Log

__all__ = ["evict"]


def evict(logs: Iterable[Log], cache_bytes: int) -> None:
    """Of all logs, what has not been read for longest goes, until no more than so many bytes are cache."""
    cached = [(log, log.cached) for log in logs if log.cached]
    excess = sum(size for _, size in cached) - cache_bytes
    if excess <= 0:
        return
    heap = [(log.idle_since or 0, log.number, log) for log, _ in cached]
    heapq.heapify(heap)
    while excess > 0 and heap:
        _, number, log = heap[0]
        excess -= log.evict(1)  # one chunk
        since = log.idle_since
        if since is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (since, number, log))
