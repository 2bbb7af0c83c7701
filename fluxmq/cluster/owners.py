"""Which node serves a session: the keys `…/sessions/<client>/owner`, which hang on their node's lease.

An owner of this node:

    (none) ──take──► TAKING ──key created──► OWNED ──release──► RELEASING ──key deleted──► (none)
                       ▲  └── others have it, refused ──► (none)   │
                       └───────────── take waits ──────────────────┘
    OWNED ── the feed shows that the key is gone or another's ──► (none), and the session ends at once (on_lost)
    OWNED ──begin_handover──► being handed over: claims wait ──end_handover──► OWNED, or another's

The epoch of an owner is the revision of the last change of its key. It is one file because a claim has to do with every
state: each is a reason to wait.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from fluxmq._core.errors import ProtocolError
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import OWNER, Name, client_key
from fluxmq.cluster.membership import Membership, State
from fluxmq.cluster.ports import Change, Compare, Event, Item, StoreError
from fluxmq.cluster.takes import NOBODY, Attempt, Session, Takes, fail
from fluxmq.cluster.writer import CHANGES_MAX, Writer
from fluxmq.engine.ports.cluster import Owner
from fluxmq.engine.ports.driver import Driver, Promise, Work, fulfil
from fluxmq.model.mqtt import ReasonCode

__all__ = ["Handover", "NotHandedOver", "Owners", "Session"]

CLAIM_S = 10.0  # time limit of a transaction of a CONNECT
RETRY_S = 0.2
ASK_AGAIN_S = 1.0  # a node for a session that it does not hand over
UNUSED_S = 5.0  # a session that was taken and not claimed is released after this


class NotHandedOver(Exception):
    """The owner of a session did not hand it over: it cannot be reached, or not now. The text says why."""


class Handover(Protocol):
    """What another node has handed over, before the owner key has changed."""

    def abandon(self) -> None:
        """The key has not changed: nothing of it is kept."""


class Keys(Protocol):
    """Keys of a session beside its owner's, which change with it (`cluster/kept.py`)."""

    def taking(self, session: Session) -> list[Change]:
        """Changes for the transaction in which this node takes it."""

    def taken(self, session: Session, changes: list[Change], revision: int) -> None:
        """That was done."""

    def lost(self, session: Session) -> None:
        """Another node has it."""

    async def ending(self, session: Session) -> list[Change]:
        """It ends: deletions, in their order. Raises StoreError."""


class Former(Protocol):
    """What the former connection of a client causes, which comes before its next one (`cluster/wills.py`)."""

    def wait(self, session: Session, clean_start: bool) -> Promise[None] | None:
        """What a CONNECT waits for, before it looks again; None: nothing."""

    def compare(self, session: Session) -> Compare:
        """Holds while the store has nothing of it that this node does not know."""

    def compared(self, session: Session, item: Item | None) -> None:
        """A transaction has found this there."""


class Handovers(Protocol):
    """How a session changes nodes (`cluster/takeover.py`)."""

    async def fetch(self, session: Session, owner: Owner, clean_start: bool,
                    asked: Callable[[], int]) -> Handover | None:
        """Called when another node with a lease has the session: returns what that one has handed over, or None, and
        then the owner key may be changed. asked: returns when the latest CONNECT came of those that wait for the
        session (Takes.take); raises ProtocolError when none is left. Raises NotHandedOver (it is called again until the
        lease of that node has ended) or ProtocolError."""

    async def complete(self, session: Session, handover: Any, former: Owner, epoch: int) -> None:
        """Called with what fetch returned, and the new epoch, when the key has changed; the client waits for it."""

    def on_lost(self, session: Session, to: str) -> None:
        """This node has just ceased to own it without releasing it; to: who has it now, or ""."""


class Unowned(Protocol):
    """Sessions whose owner is gone (`cluster/adoption.py`)."""

    def wait(self, session: Session) -> Promise[None] | None:
        """What a claim of the session must wait for, or None."""

    def on_entry(self, session: Session, present: bool) -> None:
        """Its key exists, or does not any more."""


class _Entry(NamedTuple):
    """The key as last seen."""

    node: str
    revision: int
    lease: int


class Owners:
    """One per node.

    is_here: whether this node has state of a session. keys: what changes with the owner's key. limit_s: how long a
    CONNECT waits for what the client's former connection causes. `former`, `handovers` and `unowned` are set by those
    that are made with this, before any session is taken.
    """

    def __init__(self, membership: Membership, feed: Feed, writer: Writer, driver: Driver, *,
                 is_here: Callable[[Session], bool], keys: Keys, limit_s: float) -> None:
        self.former: Former
        self.handovers: Handovers
        self.unowned: Unowned
        self._membership = membership
        self._feed = feed
        self._writer = writer
        self._driver = driver
        self._is_here = is_here
        self._keys = keys
        self._limit_s = limit_s
        self.entries: dict[Session, _Entry] = {}  # who has each session, as far as this node has seen
        self.owned: dict[Session, Owner] = {}  # those of this node
        self._unused: dict[Session, int] = {}  # owned, and not claimed since: when the latest CONNECT came
        self.takes = Takes(membership, driver, self._attempt)
        self._releasing: dict[Session, Work[None]] = {}
        self._handing_over: dict[Session, Promise[None]] = {}  # they are being handed over
        self._changed: dict[Session, list[Promise[None]]] = {}  # who waits for the key's next change

    # ------------------------------------------------------------------ Directory

    def claim(self, session: Session, clean_start: bool = False) -> Owner | None:
        """See Directory.claim_session."""
        owner = None if session in self._handing_over or session in self.takes.attempts else self.owned.get(session)
        if owner is None or self.unowned.wait(session) is not None \
                or self.former.wait(session, clean_start) is not None:
            return None
        self._unused.pop(session, None)
        return owner

    async def take(self, session: Session, clean_start: bool, asked_ms: int) -> Owner:
        """See Directory.take_session; asked_ms may also be takes.NOBODY. Callers that come meanwhile share one attempt.
        None of them waits for more than some seconds for a quorum that is lost."""
        return await self.takes.take(session, clean_start, asked_ms)

    async def reclaim(self, sessions: Iterable[Session]) -> list[Session]:
        """For a start: takes the sessions that are stored here, if no other node has them. Returns those that it did
        not get. Raises StoreError."""
        sessions = list(sessions)
        if sessions:
            await self._membership.wait_takeover_delay()
        works = [(session, self._driver.start(self._reclaim(session))) for session in sessions]
        return [session for session, work in works if not await self._driver.result_of(work)]

    async def _reclaim(self, session: Session) -> bool:
        member = self._membership
        if session in self.owned:
            return True
        if session not in self.entries:
            key, others = client_key(OWNER, *session), self._keys.taking(session)
            result = await self._writer.change([Compare(key, 0)],
                                               [Change(key, member.name.encode(), member.lease), *others])
            if result.done:
                self._took(session, result.revision, others)
                return True
            self._found(session, result.found[0])
        return False

    def release(self, session: Session) -> None:
        """See Directory.release_session."""
        owner = self.owned.pop(session, None)
        if owner is not None:
            self._unused.pop(session, None)
            self._releasing[session] = self._driver.start(self._release(session, owner))

    def owner(self, session: Session) -> Owner | None:
        """Who has the session, as far as this node has seen."""
        entry = self.entries.get(session)
        return None if entry is None else Owner(entry.node, entry.revision)

    def counts(self) -> dict[str, int]:
        """Number of sessions by node."""
        found: dict[str, int] = {}
        for entry in self.entries.values():
            found[entry.node] = found.get(entry.node, 0) + 1
        return found

    # ------------------------------------------------------------------ take

    async def _attempt(self, session: Session, clean_start: bool, attempt: Attempt) -> None:
        """For all who wait: see Takes."""
        try:
            owner = await self._try(session, clean_start, attempt)
        except StoreError as error:
            fail(attempt.promise, f"etcd does not answer: {error}")
        except ProtocolError as error:
            fail(attempt.promise, error)
        except BaseException as error:
            fail(attempt.promise, f"the session was not taken: {error!r}")
            raise
        else:
            self._unused[session] = max(attempt.callers, default=NOBODY)
            self._driver.start(self._release_unused(session, owner))
            fulfil(attempt.promise, owner)
        finally:
            del self.takes.attempts[session]

    async def _try(self, session: Session, clean_start: bool, attempt: Attempt) -> Owner:
        member = self._membership
        late, patient_until = self._driver.now() + member.ttl_s + CLAIM_S, self._driver.now() + self._limit_s
        while True:
            handover: Handover | None = None
            _asked(attempt)
            if session in self._handing_over:
                await self._driver.end_of(self._handing_over[session])
                continue
            if (waiting := self.unowned.wait(session)) is not None:
                await self._driver.end_of(waiting)
                patient_until = self._driver.now() + self._limit_s
                continue
            if _asked(attempt) != NOBODY and (waiting := self.former.wait(session, clean_start)) is not None:
                if self._driver.now() >= patient_until:
                    raise ProtocolError(ReasonCode.SERVER_UNAVAILABLE, "the will of the client's former connection is "
                                        "not with every node yet")
                await self._driver.end_of(waiting)
                continue
            owned = self.owned.get(session)
            if owned is not None:
                return owned
            releasing = self._releasing.get(session)
            if releasing is not None:
                await self._driver.end_of(releasing)
                continue
            entry = self.entries.get(session)
            if entry is None:
                await member.wait_takeover_delay()
                revision = 0
            elif entry.lease == member.lease:
                return self._own(session, entry.revision)       # an earlier attempt whose answer was lost
            elif entry.node in member.nodes and member.nodes[entry.node].lease == entry.lease:
                await self.takes.await_quorum()
                _asked(attempt)
                try:
                    handover = await self.handovers.fetch(session, Owner(entry.node, entry.revision), clean_start,
                                                 partial(_asked, attempt))
                except NotHandedOver as error:
                    if self.entries.get(session) is entry:     # else the feed was quicker than that node's answer
                        await self._change_of(session, ASK_AGAIN_S)
                    if self._driver.now() >= late:
                        raise ProtocolError(ReasonCode.SERVER_UNAVAILABLE, str(error)) from None
                    continue
                revision = entry.revision
            else:
                await self._change_of(session)                  # until its lease has ended for the store too
                continue
            key, others = client_key(OWNER, *session), self._keys.taking(session)
            # What was handed over may be dropped only if it is certain that the key has not changed.
            compares = [Compare(key, revision)]
            if revision == 0:
                compares.append(self.former.compare(session))     # the feed may not have come so far
            result = await self._writer.change(compares, [Change(key, member.name.encode(), member.lease), *others],
                                               CLAIM_S if handover is None else None)
            if result.done:
                owner = self._took(session, result.revision, others)
                if handover is not None and entry is not None:
                    await self.handovers.complete(session, handover, Owner(entry.node, entry.revision), owner.epoch)
                return owner
            if handover is not None:
                handover.abandon()
            self._found(session, result.found[0])
            if revision == 0:
                self.former.compared(session, result.found[1])

    def _took(self, session: Session, revision: int, others: list[Change]) -> Owner:
        """The transaction was done that makes this node the owner."""
        member = self._membership
        self._feed.note(client_key(OWNER, *session), revision)
        self._enter(session, _Entry(member.name, revision, member.lease))
        owner = self._own(session, revision)
        self._keys.taken(session, others, revision)
        return owner

    def _own(self, session: Session, revision: int) -> Owner:
        owner = self.owned[session] = Owner(self._membership.name, revision)
        return owner

    def _found(self, session: Session, item: Item | None) -> None:
        """What a transaction has found is as good as what the feed reports, and newer."""
        former = self.entries.get(session)
        if item is None and former is not None and former.node != self._membership.name:
            self._membership.note_end()             # perhaps with its node's lease: the feed has not told yet
        self._enter(session, None if item is None else _Entry(_node_of(item.value), item.revision, item.lease))

    def _enter(self, session: Session, entry: _Entry | None) -> None:
        if entry is None:
            self.entries.pop(session, None)
        else:
            self.entries[session] = entry
        self.unowned.on_entry(session, entry is not None)

    async def _change_of(self, session: Session, limit_s: float = 0.0) -> None:
        """Waits until the feed reports a change of the key; not longer than that, unless it is 0."""
        promise = self._driver.promise()
        waiting = self._changed.setdefault(session, [])
        waiting.append(promise)
        if limit_s:
            self._driver.start(self._end(session, promise, limit_s))
        await promise

    async def _end(self, session: Session, promise: Promise[None], after_s: float) -> None:
        await self._driver.sleep(after_s)
        if not promise.done():
            promise.set_result(None)
            waiting = self._changed[session]
            waiting.remove(promise)
            if not waiting:
                del self._changed[session]

    # ------------------------------------------------------------------ sessions that are handed over

    def owned_epoch(self, session: Session) -> int:
        """The epoch with which this node owns a session; 0: it does not."""
        owner = self.owned.get(session)
        return 0 if owner is None else owner.epoch

    def awaited(self, session: Session) -> int:
        """When the latest CONNECT came of those for which this node has just taken a session, and which have not
        claimed it yet; or takes.NOBODY."""
        return self._unused.get(session, NOBODY)

    def begin_handover(self, session: Session) -> None:
        """The session is being handed over: nobody connects to it here until end_handover."""
        self._handing_over[session] = self._driver.promise()

    def end_handover(self, session: Session) -> None:
        """It was handed over, or stays."""
        promise = self._handing_over.pop(session, None)
        if promise is not None:
            fulfil(promise, None)

    def handed_over(self, session: Session, to: Owner, lease: int) -> None:
        """Another node, with this lease, owns a session that was this one's; the feed may not have told yet."""
        owned = self.owned.get(session)
        if owned is None or owned.epoch < to.epoch:
            self.owned.pop(session, None)
            entry = self.entries.get(session)
            if entry is None or entry.revision < to.epoch:
                self.entries[session] = _Entry(to.node, to.epoch, lease)
                self._feed.note(client_key(OWNER, *session), to.epoch)
            self._wake(session)

    async def confirm(self, session: Session) -> bool:
        """Owns a session anew, with another epoch, so that nobody can take it who saw the former one. Returns whether
        this node still owned it."""
        return await self._renew(session, self.owned_epoch(session))

    async def obtain(self, session: Session, compares: list[Compare], others: list[Change]) -> bool:
        """Owns a session that nobody has, if these compares hold, too, and makes the other changes with it. Returns
        whether it was done. Raises StoreError."""
        member, key = self._membership, client_key(OWNER, *session)
        result = await self._writer.change([Compare(key, 0), *compares],
                                           [Change(key, member.name.encode(), member.lease), *others])
        if result.done:
            self._took(session, result.revision, others)
        else:
            self._found(session, result.found[0])
        return result.done

    async def _renew(self, session: Session, revision: int) -> bool:
        member = self._membership
        key, others = client_key(OWNER, *session), self._keys.taking(session)
        try:
            result = await self._writer.change([Compare(key, revision)],
                                               [Change(key, member.name.encode(), member.lease), *others])
        except StoreError:
            return False                    # only when the node ends
        if result.done:
            self._took(session, result.revision, others)
        return result.done

    async def _release_unused(self, session: Session, owner: Owner) -> None:
        """The client that it was taken for may be gone. If it has a session, that has come here and stays: it is
        released when it ends."""
        await self._driver.sleep(UNUSED_S)
        if session in self._unused and self.owned.get(session) is owner and not self._is_here(session):
            self.release(session)

    # ------------------------------------------------------------------ release

    async def _release(self, session: Session, owner: Owner) -> None:
        key = client_key(OWNER, *session)
        try:
            others = await self._ending(session)
            while len(others) >= CHANGES_MAX:
                now, others = others[:CHANGES_MAX], others[CHANGES_MAX:]
                await self._writer.change([Compare(key, owner.epoch)], now)
            result = await self._writer.change([Compare(key, owner.epoch)], [*others, Change(key, None)])
        except StoreError:
            return                          # only when the node ends; the key ends with its lease
        else:
            entry = self.entries.get(session)
            if not result.done:
                self._found(session, result.found[0])
            elif entry is not None and entry.revision == owner.epoch:
                self._enter(session, None)
                self._feed.note(key, result.revision)
        finally:
            del self._releasing[session]

    async def _ending(self, session: Session) -> list[Change]:
        while True:
            try:
                return await self._keys.ending(session)
            except StoreError as error:
                if not error.retry or self._membership.state is not State.MEMBER:
                    raise
                await self._driver.sleep(RETRY_S)

    # ------------------------------------------------------------------ what the feed reports

    def on_event(self, name: Name, event: Event) -> None:
        """A change of an owner key that this node has not made, or does not know of yet."""
        session = name.namespace, name.name
        self._enter(session, None if event.value is None else
                    _Entry(_node_of(event.value), event.revision, event.lease))
        owned = self.owned.get(session)
        if owned is not None and event.value is not None and event.lease == self._membership.lease:
            self._own(session, max(event.revision, owned.epoch))    # this node's own change, before its answer
        elif owned is not None and event.revision > owned.epoch:
            del self.owned[session]
            self._unused.pop(session, None)
            self._keys.lost(session)
            self.handovers.on_lost(session, _node_of(event.value) if event.value is not None else "")
        self._wake(session)

    def _wake(self, session: Session) -> None:
        for promise in self._changed.pop(session, ()):
            fulfil(promise, None)


def _asked(attempt: Attempt) -> int:
    """When the latest CONNECT came of those that wait for the session. Raises ProtocolError if their clients have gone:
    for them nothing is taken from another node. What that one has handed over is taken nevertheless, because it would
    serve nobody until it had given up waiting."""
    if not attempt.callers:
        raise ProtocolError(ReasonCode.SERVER_UNAVAILABLE, "nobody waits for the session any more")
    return max(attempt.callers)


def _node_of(value: bytes) -> str:
    """The node that a key names; whoever else may have written it."""
    return value.decode(errors="replace")
