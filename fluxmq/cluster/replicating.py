"""Which group of nodes replicates a queue, as `queue-data` says it: `Replicator` of engine/ports/cluster.py.

Queues that are made here are in the journal: no node of this version leads a group.
"""
from __future__ import annotations

from collections.abc import Callable

from fluxmq._core.memory.commits import Line

__all__ = ["NodeReplicator"]


class NodeReplicator:
    """A Replicator. group_of: the number of the group that has a queue's data, by namespace and name; 0: none has."""

    def __init__(self, group_of: Callable[[bytes, bytes], int]) -> None:
        self._group_of = group_of

    def line_of_queue(self, namespace: bytes, name: bytes, durable: bool) -> Line | None:
        """See the port."""
        return None

    def group_of_queue(self, namespace: bytes, name: bytes) -> int:
        """See the port."""
        return self._group_of(namespace, name)
