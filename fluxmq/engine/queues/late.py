"""What consumers of other nodes settle here after the queue has left: their nodes do not know yet who decides.

    a settlement ─► pass_on() ─► "settle_late" ─► who decides: settle_late()
                       └─► nobody is known who does: a position of a line of this node, until somebody is

The frame that has it, or the part of it for its channel, waits for what pass_on() gives (PeerInbox.settle_late). So the
consumer's node keeps the settlement until one of the two has it for good, and is told if neither has.
"""
from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from fluxmq._core.memory.commits import Line
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.handover import settle_reserved
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.open_positions import OpenPositions
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.relays import Relays
from fluxmq.engine.queues.state import QueueState
from fluxmq.engine.queues.table import QueueListener

__all__ = ["LateSettlements", "settle_late"]


def settle_late(manager: QueueManager, queue: Queue, name: bytes, pattern: bytes, what: list[tuple[int, int, int]],
                verb: int, ms: int, counts: bool, reason: str) -> None:
    """What a consumer did with messages that it held when the queue moved."""
    group = manager.states[queue].groups.get((name, pattern))
    if group is not None:
        for log, offset, deliveries in what:
            if not settle_reserved(group, log, offset, deliveries, verb, ms, counts, reason) and verb == 0 \
                    and log < len(queue.logs):
                claim = by_offset.claim_of(group, queue.logs[log].number, offset)
                if claim is not None and claim[0] == deliveries:
                    by_offset.settle_at(group, queue.logs[log].number, offset)
        queue.notify()


class _Untold:
    """Settlements of a queue about which nobody is known to decide, oldest first."""

    def __init__(self, line: Line) -> None:
        self.positions = OpenPositions(line)  # for which the nodes of their consumers wait
        self.waiting: deque[tuple[int, list[Any]]] = deque()  # (position, arguments of settle_late)

    def keep(self, what: list[Any]) -> None:
        self.waiting.append((self.positions.give(), what))

    def decide(self, position: int, why: str | None = None) -> None:
        """why: it has no effect; None: it has."""
        self.positions.decide(position, why)
        if not self.positions:
            self.positions.line.retire()


class LateSettlements(QueueListener):
    """Machine. Those that this node hears of."""

    def __init__(self, manager: QueueManager, relays: Relays) -> None:
        self._manager = manager
        self._relays = relays
        self._untold: dict[Queue, _Untold] = {}
        manager.listeners.append(self)
        manager.on_owner.append(self.owner_changed)

    def pass_on(self, state: QueueState, key: tuple[bytes, bytes], deliveries: int, log: int, first: int, count: int,
                verb: int, ms: int, counts: bool, reason: str) -> list[Any]:
        """Tells it to whoever decides, as soon as that is known, and gives a ticket that is decided when that one has
        it. If this node does, it has it at once. Returns what settle_late() takes."""
        queue, group = state.queue, state.groups.get(key)
        if ms < 0:
            ms = self._manager.backoff_ms(queue, group, deliveries) if group is not None else 0
        offsets = [(log, offset, deliveries) for offset in range(first, first + count)]
        what: list[Any] = [*key, offsets, verb, ms, counts, reason]
        relay = queue.relay
        if relay is None:
            settle_late(self._manager, queue, *what)
        elif queue not in self._untold and isinstance(relay, QueueRelay) and relay.reachable:
            self._relays.order(queue, "settle_late", what)
        else:
            if queue not in self._untold:
                self._untold[queue] = _Untold(self._manager.hub.commits.open_line("settlements of a queue that moves"))
            self._untold[queue].keep(what)
        return what

    def owner_changed(self, queue: Queue) -> None:
        """See QueueTable.on_owner: who decides is known, and hears what was settled meanwhile."""
        relay = queue.relay
        if queue in self._untold and isinstance(relay, QueueRelay) and relay.reachable:
            self._tell(queue, partial(self._relays.order, queue, "settle_late"))

    def came(self, queue: Queue) -> None:
        """This node decides from now on."""
        if queue in self._untold:
            self._tell(queue, lambda what: settle_late(self._manager, queue, *what))

    def queue_removed(self, queue: Queue) -> None:
        """See QueueListener: there is nothing to settle any more."""
        if queue in self._untold:
            self._tell(queue, lambda what: None)

    def _tell(self, queue: Queue, tell: Any) -> None:
        untold, hub = self._untold.pop(queue), self._manager.hub
        while untold.waiting:
            position, what = untold.waiting.popleft()
            since = hub.commits.mark
            tell(what)
            hub.when_durable(partial(untold.decide, position), since, partial(untold.decide, position))
