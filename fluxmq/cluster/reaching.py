"""Waits until all nodes know what the store has up to a revision: an answer to a client that says so leaves then.

    here ──Reach(revision)──► each node with a lease ──applied, on its disk──► Reached(revision)

A node whose lease began later than the revision loads what is newer, so it is not asked. One that is waited for and
loses its lease is not waited for any more.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from fluxmq.cluster.feed import Feed
from fluxmq.cluster.messages import Control, Reach, Reached
from fluxmq.cluster.ports import StoreError
from fluxmq.engine.ports.driver import Driver, Promise

__all__ = ["Reaching"]


LIMIT_PERIOD_S = 0.5  # how exactly the time limit of a wait is kept


class _Wait(NamedTuple):
    revision: int
    until: float  # by the driver's clock
    limit_s: float
    promise: Promise[None]


class Reaching:
    """One per life of a node.

    feed: has the revision up to which this node knows everything. nodes: the other nodes with a lease, and the epoch of
    each. send: a message to one of them, in order with the others, whenever its stream is there. durable: calls its
    argument when everything that this node has recorded so far is on disk.
    """

    def __init__(self, driver: Driver, feed: Feed, nodes: Callable[[], Mapping[str, int]],
                 send: Callable[[str, Control], None], durable: Callable[[Callable[[], None]], object]) -> None:
        self._driver = driver
        self._feed = feed
        self._nodes = nodes
        self._send = send
        self._durable = durable
        self._reached: dict[str, tuple[int, int]] = {}  # node -> its epoch, and a revision that it knows
        self._asked: dict[str, tuple[int, int]] = {}  # node -> its epoch, and the highest revision it was asked for
        self._asks: dict[str, tuple[int, int]] = {}  # node -> its epoch, and the highest revision that it asks for
        self._unsent: set[str] = set()
        self._waits: list[_Wait] = []
        self.pending = False  # see AtEnd: somebody waits, here or on another node
        self._begun = False  # something is going to be sent
        self._limiting = False
        self._closed = ""

    async def wait(self, revision: int, limit_s: float) -> None:
        """Until every node with a lease knows everything up to the revision. Raises StoreError after limit_s seconds,
        and when the node stops."""
        if self._closed:
            raise StoreError(self._closed, retry=False)
        wait = _Wait(revision, self._driver.now() + limit_s, limit_s, self._driver.promise())
        self._waits.append(wait)
        self.pending = True
        try:
            self._look()
            if not self._limiting:
                self._limiting = True
                self._driver.start(self._limit())
            await wait.promise
        finally:
            self._waits.remove(wait)
            self._note_pending()

    async def catch_up(self, limit_s: float) -> None:
        """Until every node with a lease knows what this one knows now. Raises as wait()."""
        await self.wait(self._feed.revision, limit_s)

    async def _limit(self) -> None:
        while self._waits and not self._closed:
            now = self._driver.now()
            for wait in self._waits:
                if wait.until <= now and not wait.promise.done():
                    missing = ", ".join(self._missing(wait.revision)) or "this node"
                    wait.promise.set_exception(StoreError(f"{missing} did not hear of it within {wait.limit_s:g} s"))
            await self._driver.sleep(LIMIT_PERIOD_S)
        self._limiting = False

    def close(self, why: str) -> None:
        """Nobody waits any more."""
        self._closed = why
        for wait in self._waits:
            if not wait.promise.done():
                wait.promise.set_exception(StoreError(why, retry=False))

    def _missing(self, revision: int) -> list[str]:
        return [name for name, epoch in self._nodes().items()
                if epoch <= revision and self._reached.get(name, (0, 0)) < (epoch, revision)]

    def _look(self) -> None:
        """Ends waits, and asks those that have not been asked."""
        here = self._feed.revision
        for wait in self._waits:
            if wait.promise.done() or wait.revision > here:
                continue
            missing = self._missing(wait.revision)
            if not missing:
                wait.promise.set_result(None)
            for name in missing:
                asked = self._nodes()[name], wait.revision
                if self._asked.get(name, (0, 0)) < asked:
                    self._asked[name] = asked
                    self._unsent.add(name)
                    self._begin()

    def _begin(self) -> None:
        """One message per node and turn, however many wait."""
        if not self._begun:
            self._begun = True
            self._driver.start(self._speak())

    async def _speak(self) -> None:
        self._begun = False
        nodes = self._nodes()
        unsent, self._unsent = self._unsent, set()
        for name in sorted(unsent):
            epoch, revision = self._asked[name]
            if nodes.get(name) == epoch and self._reached.get(name, (0, 0)) < (epoch, revision):
                self._send(name, Reach(revision=revision))
        here = self._feed.revision
        answered = {name: asks for name, asks in self._asks.items() if asks[1] <= here}
        for name, (epoch, _) in answered.items():
            del self._asks[name]
            self._note_pending()
            self._durable(partial(self._answer, name, epoch, here))

    def _note_pending(self) -> None:
        self.pending = bool(self._waits or self._asks)

    def _answer(self, name: str, epoch: int, revision: int) -> None:
        if not self._closed and self._nodes().get(name) == epoch:
            self._send(name, Reached(revision=revision))

    # ------------------------------------------------------------------ what happens

    def on_batch(self) -> None:
        """This node knows more than before; a node may have come or gone."""
        self._look()
        here = self._feed.revision
        if any(revision <= here for _, revision in self._asks.values()):
            self._begin()

    def on_message(self, name: str, message: Reach | Reached) -> None:
        """Of a node that is in `nodes`."""
        epoch = self._nodes().get(name, 0)
        if isinstance(message, Reached):
            self._reached[name] = max(self._reached.get(name, (0, 0)), (epoch, message.revision))
            self._look()
        else:
            self._asks[name] = max(self._asks.get(name, (0, 0)), (epoch, message.revision))
            self.pending = True
            if message.revision <= self._feed.revision:
                self._begin()
