"""Logs of a queue and pages of their messages as bytes, for reading millions of messages over the admin ring."""
from __future__ import annotations

from typing import Any

from fluxmq._core.queue.log import Log
from fluxmq._core.queue.page import durable_end, encode_page
from fluxmq.engine.ports.queues import Page, QueueRefused
from fluxmq.engine.queues.manager import QueueManager, QueueState

__all__ = ["logs_of", "page_of"]


def logs_of(manager: QueueManager, state: QueueState, position: str | None) -> list[dict[str, Any]]:
    """As QueuesPort.logs."""
    return [_log(manager, state, at, log, position) for at, log in enumerate(state.queue.logs)]


def _log(manager: QueueManager, state: QueueState, at: int, log: Log, position: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "partition": state.queue.partition_at(at), "lane": log.lane, "log": f"{log.number:016x}",
        "first": log.first, "next": durable_end(log), "bytes": log.kept_bytes}
    if position is not None:
        found["offset"] = min(max(manager.offset_of(state, log, position, None), log.first), found["next"])
    return found


def page_of(manager: QueueManager, state: QueueState, partition: int, lane: int, start: int, stop: int,
            bytes_max: int) -> Page:
    """As QueuesPort.page."""
    queue = state.queue
    log = queue.log_at(partition, lane)
    if log is None:
        raise QueueRefused("not_found", f"queue {state.spec.shown} has {queue.partitions} partitions of {queue.lanes} "
                                        f"lanes, from 0 on")
    content, following, loading = encode_page(log, queue.needs(log), start, stop, bytes_max)
    if loading:
        manager.read_on(queue)
    return Page(content, following, loading and following <= max(start, log.first))
