"""Forgets where messages came from (`_core/hub/origins.pxd`) when they cannot come again: their publisher's session, or
the will, is not in the store any more.

A message may be faster than the watch, so a name is forgotten when the store has not had it in two rounds.

A node that was away does not know what was released meanwhile. So each node tells one that appears which messages of
its sessions are not released (Unreleased).
"""
from __future__ import annotations

from collections.abc import Callable

from fluxmq._core.hub.hub import Hub
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq.cluster.messages import Unreleased, encode
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.driver import Driver

__all__ = ["Origins"]

PERIOD_S = 30.0
ORIGINS_MAX = 10_000  # in one message


class Origins:
    """One per life of a node. is_used: whether the store has a session or will of this name."""

    def __init__(self, driver: Driver, is_used: Callable[[int], bool]) -> None:
        self._driver = driver
        self._is_used = is_used
        self._unused: set[int] = set()
        self._closed = False

    async def sweep(self, hub: Hub) -> None:
        """Until close(). To be begun when the feed has reported everything that the store has."""
        while not self._closed:
            await self._driver.sleep(PERIOD_S)
            unused = {name for name in hub.origins.known() if not self._is_used(name)} if not self._closed else set()
            for name in unused & self._unused:
                hub.origins.forget(name)
            self._unused = unused - self._unused
            hub.wake_up()

    @staticmethod
    def greet(outbox: PeerOutbox, broker: Broker) -> None:
        """A node has appeared: it is told what the sessions of this node have published and not released."""
        origins = broker.hub.origins
        if not origins.known():
            return
        found = [(incarnation, packet_id, use) for session in broker.sessions.values()
                 if session.received_count and not session.data.frozen and (incarnation := session.data.incarnation)
                 for packet_id, use in origins.own(incarnation) if use]
        for begin in range(0, len(found), ORIGINS_MAX):
            outbox.control(encode(Unreleased(origins=found[begin:begin + ORIGINS_MAX])))

    @staticmethod
    def on_unreleased(message: Unreleased, hub: Hub) -> None:
        """What this node has of these from a former life is as good as new."""
        for origin in message.origins:
            hub.origins.confirm(*origin)

    def close(self) -> None:
        """Nothing is forgotten any more."""
        self._closed = True
