"""The changes of the metadata, in the order of their revisions and without a gap: one load, then one watch.

    LOADING ──load at revision R──► FOLLOWING, from R + 1 ──compacted──► LOADING
                                        │
                                        └── batches ──► events, each to who listens to its kind of key
                                                   └──► the end of the batch, to parts that are `pending`

A later load reports what differs from what was reported before, also keys that are gone. So a listener sees the last
change of each key, though perhaps not those in between.

A batch is told in this order: the end of this node's lease, after which nothing else of it counts; its events; its end,
to the parts in the order of `at_end`. A part is told of the end only if it is `pending`: a key of its own was in a
batch, or it waits for a revision, or for a node.

This node's own transactions return before the watch reports them. Their caller notes the change (`note`): then an older
event of the key is not reported any more.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from fluxmq.cluster.keys import ROOT, Name, parse
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.ports import Compacted, Event, MetadataStore, StoreError, Watch
from fluxmq.engine.ports.driver import Driver

__all__ = ["AtEnd", "Feed"]

RETRY_S = 0.2


class AtEnd(Protocol):
    """A part of this node that acts when all of a batch is known."""

    pending: bool
    """It is to be told."""

    def on_batch(self) -> None:
        """The events of one revision or more, or of a load, have been reported."""


class Feed:
    """One per node. membership: gets the keys of nodes and of the leader. at_end: the parts that are told of the end of
    a batch, in this order."""

    def __init__(self, store: MetadataStore, driver: Driver, membership: Membership) -> None:
        self.at_end: list[AtEnd] = []
        self._store = store
        self._driver = driver
        self._membership = membership
        self._listeners: dict[str, Callable[[Name, Event], None]] = {}
        self._known: dict[bytes, int] = {}  # revision of each key that exists
        self._ahead: dict[bytes, int] = {}  # own changes that the watch has not reported
        self._watch: Watch | None = None
        self._closed = False
        self.revision = 0  # everything up to here was reported

    def listen(self, kinds: Iterable[str], on_event: Callable[[Name, Event], None]) -> None:
        """on_event: called with each change of a key of these kinds (keys.py), and with its name. One for each kind;
        before the first load."""
        self._listeners |= dict.fromkeys(kinds, on_event)

    async def load(self) -> None:
        """Reads everything and reports it. Raises StoreError."""
        result = await self._store.read(ROOT, prefix=True)
        present = {item.key for item in result.items}
        events = [Event(key, None, result.revision, 0, 0) for key in self._known if key not in present]
        events += (Event(*item) for item in result.items if self._known.get(item.key) != item.revision)
        self._report(events, result.revision)

    async def follow(self) -> None:
        """Watches until close(). load() must have succeeded once."""
        while not self._closed:
            try:
                self._watch = self._store.watch(ROOT, self.revision)
                try:
                    while not self._closed:
                        batch = await self._watch.next()
                        self._report(batch.events, batch.revision)
                finally:
                    self._watch.close()
            except Compacted:
                await self._reload()
            except StoreError:
                if not self._closed:
                    await self._driver.sleep(RETRY_S)

    async def _reload(self) -> None:
        while not self._closed:
            try:
                await self.load()
                return
            except StoreError:
                await self._driver.sleep(RETRY_S)

    def close(self) -> None:
        """Ends the watch; nothing is reported any more."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()

    def has(self, key: bytes) -> bool:
        """Whether the key exists, as far as the feed has come."""
        return key in self._known

    def revisions(self) -> list[tuple[bytes, int]]:
        """All keys that exist, as far as the feed has come, and their revisions."""
        return list(self._known.items())

    def note(self, key: bytes, revision: int) -> None:
        """This node has changed the key at this revision, and the caller knows: older events of it are left out, and
        the event of the change itself too."""
        if revision > self.revision:
            self._ahead[key] = max(revision, self._ahead.get(key, 0))

    def _report(self, events: Sequence[Event], revision: int) -> None:
        if self._closed:
            return
        shown = []
        for event in events:
            if event.value is None:
                self._known.pop(event.key, None)
            else:
                self._known[event.key] = event.revision
            if event.revision > self._ahead.get(event.key, 0):
                shown.append(event)
        if revision > self.revision:
            self.revision = revision
            self._ahead = {key: at for key, at in self._ahead.items() if at > revision} if self._ahead else {}
        if shown or revision:
            self._tell(shown)

    def _tell(self, events: Sequence[Event]) -> None:
        member = self._membership
        if any(event.key == member.key for event in events) and member.has_ended(events):
            return      # all that hung on the lease is gone with it: what this node has of it is on its disk, and stays
        for event in events:
            name = parse(event.key)
            if name is None:
                member.on_event(event)
            elif (on_event := self._listeners.get(name.kind)) is not None:
                on_event(name, event)
        for part in self.at_end:
            if part.pending:
                part.on_batch()
        if not member.leader:
            self._driver.start(member.campaign())
