"""Queues whose node is away, and who is told of it: operators by the log, clients by `$SYS/broker/queues/away/<node>`.

    away, and was available before  ─► told at the end of the turn
    away from the beginning         ─► told within a second or so: a new queue is until its node has claimed it
    available                       ─► told at the end of the turn

The payload is how many queues of the node are away, as this node sees it. A client that was refused because a node is
away is told by it when to try again: the refusal names the node.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluxmq._core.hub.hub import Hub
    from fluxmq.engine.queues.state import QueueState

__all__ = ["TOPIC", "AwayQueues"]

TOPIC = "$SYS/broker/queues/away/"


class AwayQueues:
    """Machine. publishes: whether `$SYS` is published."""

    def __init__(self, hub: Hub, log: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        self.publishes = True
        self._hub = hub
        self._log = log
        self._node: dict[QueueState, str] = {}  # that is to have the messages; "": none is
        self._numbers: Counter[str] = Counter()
        self._told: dict[str, int] = {}  # by node, if it is not 0
        self._changed: set[str] = set()  # nodes to be told of at the end of the turn

    def __len__(self) -> int:
        return len(self._node)

    def add(self, state: QueueState, node: str, *, at_once: bool) -> None:
        """The node that has the queue is away. node: its name; "": no node is to have it. at_once: it was available."""
        self.discard(state)
        self._node[state] = node
        self._numbers[node] += 1
        if at_once:
            self._tell_later(node)

    def discard(self, state: QueueState) -> None:
        """The queue is available, or is no more."""
        node = self._node.pop(state, None)
        if node is None:
            return
        self._numbers[node] -= 1
        if not self._numbers[node]:
            del self._numbers[node]
        if node in self._told:
            self._tell_later(node)

    def tick(self) -> None:
        """Called once per second or so."""
        for node in list(self._numbers):
            self._tell(node)

    def _tell_later(self, node: str) -> None:
        if not self._changed:
            self._hub.publish_later(self._tell_changed)
        self._changed.add(node)

    def _tell_changed(self) -> None:
        changed, self._changed = self._changed, set()
        for node in sorted(changed):
            self._tell(node)

    def _tell(self, node: str) -> None:
        number, told = self._numbers.get(node, 0), self._told.get(node, 0)
        if number == told or not node:
            return
        if number:
            self._told[node] = number
        else:
            del self._told[node]
        if not told:
            self._log("warning", f"queues of {node}", "a node is away: its queues are not available until it is back",
                      {"node": node, "queues": number})
        elif not number:
            self._log("info", f"queues of {node}", "the queues of a node are available again", {"node": node})
        if self.publishes:
            self._hub.publish_message(f"{TOPIC}{node}".encode(), str(number).encode(), 0, True)
