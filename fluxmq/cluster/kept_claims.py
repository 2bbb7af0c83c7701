"""An owner of queues is back: its messages that were with consumers when it died are kept for those that still live.

    start ──► keep ──► its owner keys are written ──► each node attaches its consumers, with what they hold
                                                  └─► every node with a lease knows these keys, or 1 s: the rest goes

Nodes attach consumers in the turn in which they hear of a key, so what says that they know it (Reached) comes behind
that in their streams. docs/internals/cluster-queues.md, "What happens when a node dies".
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fluxmq.cluster.ports import StoreError
from fluxmq.cluster.reaching import Reaching
from fluxmq.engine.ports.driver import Driver

if TYPE_CHECKING:
    from fluxmq.engine.queues.manager import QueueManager

__all__ = ["KEPT_S", "KeptClaims"]

KEPT_S = 1.0  # for nodes that do not answer


class KeptClaims:
    """For one start of a node. serves: whether this node may still change anything."""

    def __init__(self, manager: QueueManager, driver: Driver, serves: Callable[[], bool]) -> None:
        self._manager = manager
        self._driver = driver
        self._serves = serves
        self._kept = manager.keep_claims()

    def claimed(self, reaching: Reaching, revision: int, others: bool) -> None:
        """The queues are served from now on. This node's owner keys are in the store, none newer than this revision.
        others: whether there are other nodes with a lease."""
        if not others:
            self._let_go()
        elif self._kept:
            self._driver.start(self._when_known(reaching, revision))
            self._driver.start(self._when_late())

    async def _when_known(self, reaching: Reaching, revision: int) -> None:
        try:
            await reaching.wait(revision, KEPT_S)
        except StoreError:
            return  # _when_late
        self._let_go()

    async def _when_late(self) -> None:
        await self._driver.sleep(KEPT_S)
        self._let_go()

    def _let_go(self) -> None:
        kept, self._kept = self._kept, []
        if self._serves():
            self._manager.let_go(kept)
