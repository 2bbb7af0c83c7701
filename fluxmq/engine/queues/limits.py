"""Consumers at their limit of unsettled messages: logs them for the operator, and retries them.

Such a consumer gets nothing more until it settles some; the others of its queue go on. There are three limits
(_core/queue/claim.pxd, may_hold): its own number; the node's free claims, for its connection; for a group, the messages
returned and delayed. A settlement of its own makes room under the first two and pumps its queue. Room may also come
from elsewhere (settlements of others, a delay that ends), so each tick retries the stopped consumers, which are few.
"""
from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.queues.clock import LOOKS_MAX
from fluxmq.engine.queues.manager import QueueManager

__all__ = ["LimitedConsumers"]


def owner_of(one: Any) -> Any:
    """The object that pumps it: nearly always a Queue."""
    return one.owner if not isinstance(one, Member) else one.group and one.group.owner


class LimitedConsumers:
    """Machine."""

    def __init__(self, manager: QueueManager) -> None:
        self.manager = manager
        self._not_logged: deque[Any] = deque()   # not logged yet
        self._limited: dict[Any, None] = {}  # Member, StreamReader, Group: in the order in which they were found

    def tick(self) -> None:
        """Logs those that were found since the last time, and retries stopped ones; at most LOOKS_MAX of each."""
        self._not_logged.extend(self.manager.hub.ledger.take_limited())
        for _ in range(min(len(self._not_logged), LOOKS_MAX)):
            one = self._not_logged.popleft()
            if one not in self._limited:
                self._limited[one] = None
                self._log_limited(one)
        for one in list(islice(self._limited, LOOKS_MAX)):
            del self._limited[one]
            owner = owner_of(one)
            if one.limited and isinstance(owner, Queue) and owner in self.manager.states:
                self._limited[one] = None   # behind all others
                owner.notify()

    def _log_limited(self, one: Any) -> None:
        if isinstance(one, Group):
            if isinstance(one.owner, Queue):
                self._say(one.owner, "group", "no new messages are delivered: too many wait for redelivery",
                          {"group": one.name.decode("utf-8", "replace"), "waiting": one.claims - one.held,
                           "hint": "consumers return what they get: find out why, or have them reject it"})
            return
        group, owner = one.group, owner_of(one)
        if not isinstance(owner, Queue):
            return
        tag = getattr(one, "tag", None)
        fields = {"client_id": one.client or "", "unsettled": one.held,
                  "hint": "set a prefetch (basic.qos), and acknowledge what was delivered"}
        if tag is not None:
            fields["consumer_tag"] = tag.decode("utf-8", "replace")
        if group is not None:
            fields["group"] = group.name.decode("utf-8", "replace")
        self._say(owner, one.client or "", "a consumer gets nothing more until it settles what it has", fields)

    def _say(self, queue: Queue, who: str, text: str, fields: dict[str, Any]) -> None:
        state = self.manager.states.get(queue)
        if state is not None:
            self.manager.log("warning", f"limited {state.spec.name} {who}", text,
                             {"queue": state.spec.shown} | fields)
