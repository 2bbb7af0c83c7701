"""Which group of nodes replicates a queue, as `queue-data` says it: `Replicator` of engine/ports/cluster.py."""
from __future__ import annotations

from collections.abc import Callable

from fluxmq._core.memory.commits import Line
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.recovery.line import QueueLine

__all__ = ["NodeReplicator"]


class NodeReplicator:
    """A Replicator. group_of: the number of the group that has a queue's data, by namespace and name; 0: none has.
    line: the queues of a group that this node leads; None: it does not."""

    def __init__(self, group_of: Callable[[bytes, bytes], int], line: Callable[[int], QueueLine | None]) -> None:
        self._group_of = group_of
        self._line = line

    def line_of_queue(self, namespace: bytes, name: bytes, durable: bool) -> Line | None:
        """See the port."""
        group = self._group_of(namespace, name)
        if not group:
            return None
        led = self._line(group)
        if led is None:
            raise QueueRefused("unavailable", f"replication group {group} has queue {name.decode(errors='replace')}, "
                                              "and another node leads it")
        return led.line

    def group_of_queue(self, namespace: bytes, name: bytes) -> int:
        """See the port."""
        return self._group_of(namespace, name)
