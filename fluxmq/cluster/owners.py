"""Which node serves a session: the keys `…/sessions/<client>/owner`, which hang on their node's lease.

An owner of this node:

    (none) ──take──► TAKING ──key created──► OWNED ──release──► RELEASING ──key deleted──► (none)
                       ▲  └── others have it, refused ──► (none)   │
                       └───────────── take waits ──────────────────┘
    OWNED ── the feed shows that the key is gone or another's ──► (none), and the session ends at once (on_lost)

The epoch of an owner is the revision of the last change of its key.
"""
from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from fluxmq._core.errors import ProtocolError
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import OWNER, Name, client_key
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.ports import Change, Compare, Event, Item, StoreError
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.cluster import Owner
from fluxmq.engine.ports.driver import Driver, Promise, Work
from fluxmq.model.mqtt import ReasonCode

__all__ = ["Owners", "Session"]

Session = tuple[bytes, bytes]  # namespace, client identifier

CLAIM_S = 10.0  # time limit of a transaction of a CONNECT
UNUSED_S = 5.0  # a session that was taken and not claimed is released after this


class _Entry(NamedTuple):
    """The key as last seen."""

    node: str
    revision: int
    lease: int


class Owners:
    """One per node.

    takeover: called with (session, its owner, clean start) when another node with a lease has the session: returns when
    that one has handed it over or discarded it, and then the owner key may be changed; raises ProtocolError when it
    does not. on_lost: called with a session that this node has just ceased to own without releasing it.
    """

    def __init__(self, membership: Membership, feed: Feed, writer: Writer, driver: Driver, *,
                 takeover: Callable[[Session, Owner, bool], Awaitable[None]],
                 on_lost: Callable[[Session], None]) -> None:
        self._membership = membership
        self._feed = feed
        self._writer = writer
        self._driver = driver
        self._takeover = takeover
        self._on_lost = on_lost
        self._entries: dict[Session, _Entry] = {}
        self._owned: dict[Session, Owner] = {}
        self._unused: set[Session] = set()  # owned, and not claimed since
        self._taking: dict[Session, Work[Owner]] = {}
        self._releasing: dict[Session, Work[None]] = {}
        self._changed: dict[Session, list[Promise[None]]] = {}  # who waits for the key's next change

    # ------------------------------------------------------------------ Directory

    def claim(self, session: Session) -> Owner | None:
        """See Directory.claim_session."""
        self._unused.discard(session)
        return self._owned.get(session)

    async def take(self, session: Session, clean_start: bool) -> Owner:
        """See Directory.take_session. Callers that come meanwhile share one attempt."""
        work = self._taking.get(session)
        if work is None:
            work = self._taking[session] = self._driver.start(self._take(session, clean_start))
        return await self._driver.result_of(work)

    async def reclaim(self, sessions: Iterable[Session]) -> list[Session]:
        """For a start: takes the sessions that are stored here, if no other node has them. Returns those that it did
        not get. Raises StoreError."""
        works = [(session, self._driver.start(self._reclaim(session))) for session in sessions]
        return [session for session, work in works if not await self._driver.result_of(work)]

    async def _reclaim(self, session: Session) -> bool:
        member = self._membership
        if session in self._owned:
            return True
        if session not in self._entries:
            key = client_key(OWNER, *session)
            result = await self._writer.change([Compare(key, 0)], [Change(key, member.name.encode(), member.lease)])
            if result.done:
                self._feed.note(key, result.revision)
                self._entries[session] = _Entry(member.name, result.revision, member.lease)
                self._own(session, result.revision)
                return True
            self._found(session, result.found[0])
        return False

    def release(self, session: Session) -> None:
        """See Directory.release_session."""
        owner = self._owned.pop(session, None)
        if owner is not None:
            self._unused.discard(session)
            self._releasing[session] = self._driver.start(self._release(session, owner))

    def owner(self, session: Session) -> Owner | None:
        """Who has the session, as far as this node has seen."""
        entry = self._entries.get(session)
        return None if entry is None else Owner(entry.node, entry.revision)

    def counts(self) -> dict[str, int]:
        """Number of sessions by node."""
        found: dict[str, int] = {}
        for entry in self._entries.values():
            found[entry.node] = found.get(entry.node, 0) + 1
        return found

    @property
    def owned(self) -> int:
        """Number of sessions of this node."""
        return len(self._owned)

    # ------------------------------------------------------------------ take

    async def _take(self, session: Session, clean_start: bool) -> Owner:
        try:
            owner = await self._try(session, clean_start)
        except StoreError as error:
            raise ProtocolError(ReasonCode.SERVER_UNAVAILABLE,
                                f"the cluster's store does not answer: {error}") from None
        finally:
            del self._taking[session]
        self._unused.add(session)
        self._driver.start(self._release_unused(session, owner))
        return owner

    async def _try(self, session: Session, clean_start: bool) -> Owner:
        member = self._membership
        while True:
            owned = self._owned.get(session)
            if owned is not None:
                return owned
            releasing = self._releasing.get(session)
            if releasing is not None:
                await self._driver.end_of(releasing)
                continue
            entry = self._entries.get(session)
            if entry is None:
                await member.wait_takeover_delay()
                revision = 0
            elif entry.lease == member.lease:
                return self._own(session, entry.revision)       # an earlier attempt whose answer was lost
            elif entry.node in member.nodes and member.nodes[entry.node].lease == entry.lease:
                await self._takeover(session, Owner(entry.node, entry.revision), clean_start)
                revision = entry.revision
            else:
                await self._change_of(session)                  # until its lease has ended for the store too
                continue
            key = client_key(OWNER, *session)
            result = await self._writer.change([Compare(key, revision)],
                                               [Change(key, member.name.encode(), member.lease)], CLAIM_S)
            if result.done:
                self._feed.note(key, result.revision)
                self._entries[session] = _Entry(member.name, result.revision, member.lease)
                return self._own(session, result.revision)
            self._found(session, result.found[0])

    def _own(self, session: Session, revision: int) -> Owner:
        owner = self._owned[session] = Owner(self._membership.name, revision)
        return owner

    def _found(self, session: Session, item: Item | None) -> None:
        """What a transaction has found is as good as what the feed reports, and newer."""
        if item is None:
            self._entries.pop(session, None)
        else:
            self._entries[session] = _Entry(item.value.decode(), item.revision, item.lease)

    async def _change_of(self, session: Session) -> None:
        promise = self._driver.promise()
        self._changed.setdefault(session, []).append(promise)
        await promise

    async def _release_unused(self, session: Session, owner: Owner) -> None:
        """The client that it was taken for may be gone."""
        await self._driver.sleep(UNUSED_S)
        if session in self._unused and self._owned.get(session) is owner:
            self.release(session)

    # ------------------------------------------------------------------ release

    async def _release(self, session: Session, owner: Owner) -> None:
        key = client_key(OWNER, *session)
        try:
            result = await self._writer.change([Compare(key, owner.epoch)], [Change(key, None)])
        except StoreError:
            return                          # only when the node ends; the key ends with its lease
        else:
            entry = self._entries.get(session)
            if result.done and entry is not None and entry.revision == owner.epoch:
                del self._entries[session]
                self._feed.note(key, result.revision)
        finally:
            del self._releasing[session]

    # ------------------------------------------------------------------ what the feed reports

    def on_event(self, name: Name, event: Event) -> None:
        """A change of an owner key that this node has not made, or does not know of yet."""
        session = name.namespace, name.name
        if event.value is None:
            self._entries.pop(session, None)
        else:
            self._entries[session] = _Entry(event.value.decode(), event.revision, event.lease)
        owned = self._owned.get(session)
        if owned is not None and event.revision > owned.epoch:
            del self._owned[session]
            self._unused.discard(session)
            self._on_lost(session)
        for promise in self._changed.pop(session, ()):
            if not promise.done():
                promise.set_result(None)
