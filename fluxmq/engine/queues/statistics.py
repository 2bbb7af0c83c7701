"""Statistics of one queue and of all, for metrics, `$SYS` and the admin ring. Nothing here reads a message.

Events are counted where they happen (queue_counts_t in _core/queue/claim.pxd, QueueState.died); gauges are computed on
request. The counts of a deleted queue stay in the totals, because a counter must not decrease.

Totals are updated with every change (QueueSums in _core/queue/stats.pyx), because adding up a hundred thousand queues
takes a second.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fluxmq._core.queue.cursor import Cursor
from fluxmq._core.queue.queue import QUEUE_STREAM
from fluxmq._core.queue.stats import group_numbers, queue_counts, queue_numbers
from fluxmq.engine.queues.manager import KINDS, QueueManager, QueueState

__all__ = ["DEATHS", "as_metrics", "counts_of", "group_lags", "numbers_of", "partitions_of", "totals"]

DEATHS = ("rejected", "max_retries", "expired", "overflow")
Series = dict[tuple[str, ...], float]
WAITING = ("ready", "unsettled", "delayed")
NOW = ("messages", "bytes", "ready", "unsettled", "consumers", "groups", "delayed")


def counts_of(state: QueueState) -> dict[str, int]:
    """Counts of events: queue_counts_t, died_<reason>, dead_lettered. Since the start, or since the queue was made."""
    return queue_counts(state.queue) | {f"died_{reason}": state.died.get(reason, 0) for reason in DEATHS} | {
        "dead_lettered": state.dead_lettered}


def numbers_of(state: QueueState) -> dict[str, int]:
    """Present values of the gauges in NOW, from queue_numbers."""
    return dict(zip(NOW, queue_numbers(state.queue, state.groups.values()), strict=True))


def group_lags(state: QueueState) -> dict[str, int]:
    """By group: messages it has not settled, or in a stream not read; groups that differ only in their filter are added
    up."""
    found: Counter[str] = Counter()
    for (name, _), group in state.groups.items():
        found[name.decode("utf-8", "replace")] += sum(group_numbers(group))
    return found


def partitions_of(state: QueueState) -> list[dict[str, int | None]]:
    """Of each partition: messages and bytes that it keeps, and the lag of its slowest group, in messages. The lag of a
    queue without groups is all that it keeps; of a stream without groups None, for the broker does not know who reads
    it."""
    queue, stream = state.queue, state.queue.kind == QUEUE_STREAM
    found: list[dict[str, int | None]] = []
    for partition in range(queue.partitions):
        logs = queue.logs_of(partition)
        messages = sum(log.next - log.first for log in logs)
        lags = [sum(_behind(cursor, stream) for cursor in group.cursors if cursor.partition == partition)
                for group in state.groups.values()]
        found.append({"partition": partition, "messages": messages, "bytes": sum(log.kept_bytes for log in logs),
                      "lag": max(lags, default=None if stream else messages)})
    return found


def _behind(cursor: Cursor, stream: bool) -> int:
    """How many messages of a log a group has not read, or in a queue not settled."""
    log = cursor.log
    if stream:
        return max(log.next - max(cursor.next, log.first), 0)
    if cursor.floor >= log.first:
        return max(log.next - cursor.floor - cursor.settled, 0)
    return log.next - log.first     # the group's floor follows with its next message


def as_metrics(happened: Mapping[str, int], now: Mapping[str, int]) -> dict[str, float | Series]:
    """Counts and gauges with their names in model/metrics.py, without the common prefix: `appended_total`, …"""
    refused: Series = {(name.removeprefix("refused_"),): number for name, number in happened.items()
               if name.startswith("refused_")}
    messages: Series = {(name,): now[name] for name in WAITING}
    died: Series = {(reason,): happened[f"died_{reason}"] for reason in DEATHS}
    return {
        "groups": now["groups"], "consumers": now["consumers"], "bytes": now["bytes"],
        "messages": messages, "refused_total": refused, "died_total": died,
        **{f"{name}_total": happened[name] for name in (
            "appended", "repeated", "capture_lost", "delivered", "redelivered", "settled", "dead_lettered")}}


def totals(manager: QueueManager) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Of all queues: (counts of events, present values, queues by type)."""
    manager.sums.catch_up(manager.states)
    for state in manager.streams:  # their readers advance without a notification
        manager.sums.measure(state.queue, state.groups.values())
    happened = Counter(manager.sums.counts())
    happened.update(manager.counted)
    return happened, dict(zip(NOW, manager.sums.now(), strict=True)), {kind: manager.kinds[kind] for kind in KINDS}
