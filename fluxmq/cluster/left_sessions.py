"""Sessions that this node has handed over to a node that died before it had the rest of them.

    takeover.py: FORWARDING ──the new owner has died──► LEFT ──every node has sent its LifeCut──► stored: given back
                                                          └──this node adopts it──► its own      (returns.py)

Perhaps no other node has heard of the new owner. What these publish to the session they send here, and to nobody else,
until they know who has adopted it, which a LifeCut says. So until then it stays in the index of topics, and takes from
each node what it would have taken if the session were still on its way: that which came before the node's Cut.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fluxmq._core.hub.moving import MovingSession
from fluxmq._core.pubsub.session import Session as HeldSession
from fluxmq.cluster.takes import Session
from fluxmq.engine.broker import Broker

__all__ = ["LeftSessions"]

SOURCES = 256


class _Left(NamedTuple):
    """life: of the node that has died. moving: knows which nodes, and whether this one's clients, have not cut."""

    held: HeldSession
    moving: MovingSession
    life: int


class LeftSessions:
    """One per life of a node. stored: called with a session that nobody's client has to wait for any more."""

    def __init__(self, broker: Broker, stored: Callable[[Session], None]) -> None:
        self._broker = broker
        self._stored = stored
        self._left: dict[Session, _Left] = {}

    def leave(self, session: Session, moving: MovingSession, life: int) -> None:
        """Its new owner has died, in this life. moving: of the frozen session, which is in the index."""
        self._left[session] = _Left(moving.session, moving, life)

    def held(self, session: Session) -> HeldSession | None:
        """What this node has of it; None: it is not left."""
        left = self._left.get(session)
        return None if left is None else left.held

    def on_cut(self, life: int, source: int) -> None:
        """A source knows the adopters of that life's sessions: what it publishes from now on is for those."""
        for left in self._left.values():
            if left.life == life:
                left.moving.accept(source, False)

    def store(self, session: Session) -> frozenset[int]:
        """Makes it a stored session, if it is left, which may enter the index again in the same turn. Returns the
        sources whose messages it has taken up to now."""
        left = self._left.pop(session, None)
        if left is None:
            return frozenset()
        taken = frozenset(source for source in range(SOURCES) if left.moving.accepts(source))
        left.moving.restore()
        self._broker.store_away(left.held)
        self._stored(session)
        return taken
