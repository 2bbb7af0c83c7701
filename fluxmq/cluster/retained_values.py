"""Retained messages as the metadata store has them; and what it shows ahead of the streams.
"""
from __future__ import annotations

from collections.abc import Callable

import msgspec

from fluxmq._core.pubsub.retained import Retained
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.retained_revisions import Topic

__all__ = ["Held", "Seen", "Value"]

# Until the stream of a node brings what the store shows already: QoS 0 that found no room in it never comes.
HELD_S = 1.0


class Value(msgspec.Struct, array_like=True, frozen=True):
    """A retained message in the store. node: who has the payload. payload: b"" in the index, and so are its properties.
    size: of the payload. expires_ms: wall clock; 0: never. version, life: of the change; 0: of a node of an earlier
    version, or that was alone."""

    node: str
    qos: int
    size: int
    expires_ms: int = 0
    properties: bytes = b""
    payload: bytes = b""
    version: int = 0
    life: int = 0

    def differs(self, kept: Retained) -> bool:
        """Whether it is another one than what a node has."""
        return ((kept.payload, kept.properties, kept.qos, kept.expires_at != 0)
                != (self.payload, self.properties, self.qos, self.expires_ms != 0))


class Seen(msgspec.Struct, frozen=True):
    """What the store has. whole: in which form. value None: nothing any more."""

    revision: int
    whole: bool
    value: Value | None


class Held:
    """What the store shows and a stream is about to bring. release: called with what was not fetched (pop) in time."""

    def __init__(self, driver: Driver, release: Callable[[Topic, Seen], object]) -> None:
        self._driver = driver
        self._release = release
        self._held: dict[Topic, tuple[float, Seen]] = {}  # until when, in this order
        self._waiting = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    def close(self) -> None:
        """Nothing is released any more."""
        self._closed = True

    def hold(self, topic: Topic, seen: Seen) -> bool:
        """Holds it, instead of what was seen before, and no longer than that. False: its time is over."""
        until, before = self._held.get(topic, (self._driver.now() + HELD_S, seen))
        if until <= self._driver.now():
            return False
        self._held[topic] = until, before if before.revision > seen.revision else seen
        if not self._waiting:
            self._waiting = True
            self._driver.start(self._wait())
        return True

    def pop(self, topic: Topic) -> Seen | None:
        """What is held of a topic, which is not held any more."""
        found = self._held.pop(topic, None)
        return None if found is None else found[1]

    def forget_before(self, topic: Topic, revision: int) -> bool:
        """The store has nothing of this form any more since this revision. False: what is held is as new."""
        found = self._held.get(topic)
        if found is not None and found[1].revision >= revision:
            return False
        self._held.pop(topic, None)
        return True

    async def _wait(self) -> None:
        try:
            while self._held and not self._closed:
                topic, (until, seen) = next(iter(self._held.items()))
                if until > self._driver.now():
                    await self._driver.sleep(until - self._driver.now())
                    continue
                self._release(topic, seen)          # which asks again whether to hold it: no
                self._held.pop(topic, None)
        finally:
            self._waiting = False
