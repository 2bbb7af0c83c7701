"""Forgets where messages came from (`_core/hub/origins.pxd`) when they cannot come again: their publisher's session, or
the will, is not in the store any more.

A message may be faster than the watch, so a name is forgotten when the store has not had it in two rounds.
"""
from __future__ import annotations

from collections.abc import Callable

from fluxmq._core.hub.hub import Hub
from fluxmq.engine.ports.driver import Driver

__all__ = ["Origins"]

PERIOD_S = 30.0


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

    def close(self) -> None:
        """Nothing is forgotten any more."""
        self._closed = True
