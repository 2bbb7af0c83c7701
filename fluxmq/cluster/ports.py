"""What the cluster's logic needs from outside: a metadata store (etcd) and connections to other nodes.

    MetadataStore    transactions, reads, watches, leases        cluster/etcd in production
    Transport        streams of batches, and calls               cluster/rpc in production

The logic (membership, ownership, interest, takeover) uses only these and `engine.ports.driver.Driver`, so that a whole
cluster runs in one thread under a simulated clock: tests/simulator has a model of each.

Everything is called on the loop's thread. Keys and values are bytes. What is awaited raises StoreError or CallFailed;
nothing waits longer than it says.
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from fluxmq._core.errors import FluxError

__all__ = [
    "BindFailed", "CallFailed", "CallHandler", "Change", "Compacted", "Compare", "Event", "Item", "LeaseGone",
    "LocalMember", "Log", "MemberLook", "MetadataStore", "OwnStorage", "Range", "Renewal", "StoreError", "StoreFull",
    "StreamHandler", "StreamIn", "StreamOut", "TransactionResult", "Transport", "Watch", "WatchBatch",
]

# Level ("info", "warning", …), cause, text, fields.
Log = Callable[[str, str, str, dict[str, Any]], None]


class StoreError(FluxError):
    """The metadata store did not answer, or refused. A transaction that raises it may have been done or not: read the
    keys to find out. retry: the same request may succeed later (no leader, time limit, node unreachable)."""

    def __init__(self, text: str, *, retry: bool = True) -> None:
        super().__init__(text)
        self.retry = retry


class StoreFull(StoreError):
    """The store has no space: it takes no value, and no transaction with one, before enough was deleted. A transaction
    that only deletes it takes. sent: the request that was refused may have been done even so."""

    sent: bool = True


class LeaseGone(StoreError):
    """A change has a lease that does not exist, or not any more. Nothing was done."""


class Compacted(StoreError):
    """A watch or read asked for a revision that the store does not have any more: load again, then watch from there."""


class OwnStorage(Protocol):
    """What this node's storage directory says of itself; `fluxmq.storage.node_identity` in production.

    identity: drawn once, for this directory alone. generation: how far it has come; 0: it has been in no cluster yet.
    replaces: the identity of the directory whose place it took; "": of none.
    """

    identity: str
    generation: int
    replaces: str

    def advance(self, generation: int, replaces: str | None = None) -> None:
        """It is of this generation from now on, on the medium when this returns: for Driver.blocking. replaces: None:
        as before. Raises StorageError."""


class Item(NamedTuple):
    """A key as the store has it. revision: of its last change (mod_revision); created: of its creation, for its present
    life. lease: 0 for none."""

    key: bytes
    value: bytes
    revision: int
    created: int
    lease: int


class Compare(NamedTuple):
    """A condition of a transaction: the key's last change has this revision; 0: the key does not exist."""

    key: bytes
    revision: int


class Change(NamedTuple):
    """A put, or a deletion (value None). lease: 0 for none. A transaction must not change a key twice."""

    key: bytes
    value: bytes | None
    lease: int = 0


class TransactionResult(NamedTuple):
    """done: all conditions held and the changes were made, at this revision. Otherwise nothing was changed, and `found`
    has the present item, or None, of each key that was compared, in the order of the compares. term: the raft term of
    the member that answered."""

    done: bool
    revision: int
    term: int
    found: Sequence[Item | None] = ()


class Range(NamedTuple):
    """A consistent read: the items as they were at this revision, in the order of their keys."""

    revision: int
    term: int
    items: Sequence[Item]


class Renewal(NamedTuple):
    """ttl_s: time to live that the leader has granted; 0: the lease does not exist. term: as in TransactionResult."""

    ttl_s: float
    term: int


class Event(NamedTuple):
    """A change that a watch reports. value None: the key was deleted, by a client or with its lease."""

    key: bytes
    value: bytes | None
    revision: int
    created: int
    lease: int


class WatchBatch(NamedTuple):
    """All changes up to a revision that the watch has not reported yet, in order; none: only progress."""

    revision: int
    events: Sequence[Event]


class Watch(Protocol):
    """A running watch. Survives a change of endpoint: it goes on behind the last revision that it reported."""

    async def next(self) -> WatchBatch:
        """The next batch, whenever it comes. Raises Compacted; StoreError (retry False) after close()."""

    def close(self) -> None:
        """Ends it; may be called twice."""


class MetadataStore(Protocol):
    """A key-value store with revisions, as etcd v3. Every answer is linearizable unless it says otherwise."""

    async def transact(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TransactionResult:
        """Makes all changes at one revision, if all conditions hold. At most 128 compares and 128 changes."""

    async def read(self, key: bytes, *, prefix: bool = False, local: bool = False) -> Range:
        """One key, or all that begin with it, read in pages at one revision. local: from the member that is asked,
        which may be behind and may have no leader (serializable)."""

    def watch(self, prefix: bytes, after: int) -> Watch:
        """Every change of keys with this prefix behind a revision, none left out."""

    async def grant(self, ttl_s: int) -> int:
        """A new lease's number."""

    async def renew(self, lease: int) -> Renewal:
        """Extends a lease by its time to live, counted from when the leader handles the request."""

    async def revoke(self, lease: int) -> None:
        """Ends a lease and deletes its keys. No error if it does not exist."""

    async def voters(self) -> dict[int, str]:
        """The members with a vote, as the member that is asked knows them: number and name."""


class MemberLook(NamedTuple):
    """What a member of etcd says of itself. member: its number. leader: it knows a leader. leaders_seen: how often it
    has come to know one since its process began; None: it was not asked for, which is allowed while it knows one."""

    member: int
    leader: bool
    leaders_seen: int | None


class LocalMember(Protocol):
    """The process of this node's member of etcd."""

    @property
    def life(self) -> int:
        """How often it was started."""

    @property
    def running(self) -> bool:
        """Whether there is a process. False is certain: it has ended, and nothing of it acts any more."""

    @property
    def ended_with(self) -> int | None:
        """As MemberLook.leaders_seen, of the last life when that has ended; None: nobody knows."""

    async def look(self) -> MemberLook:
        """Asks it, also when it has no leader or has not found one since its start. Raises StoreError when it does not
        answer at once."""


class StreamOut(Protocol):
    """The sending end of a stream to another node. Frames arrive in order, whole, and once, until the stream breaks;
    how many of the last ones arrived is then unknown."""

    on_idle: Callable[[], object]
    """Called when everything queued was handed to the network. Set in StreamHandler.on_open by who wants to know; must
    not raise."""

    @property
    def idle(self) -> bool:
        """Whether a frame would leave at once: no earlier one is being written."""

    def send(self, frame: bytes) -> bool:
        """Queues a frame. Returns whether it was handed to the network at once, and the stream is as idle as before;
        otherwise on_idle is called when `idle` becomes true again. The sender limits what it queues. Does nothing on a
        stream that is closed."""

    def close(self) -> None:
        """Ends it, without waiting for frames that are queued. on_closed is not called any more."""


class StreamIn(Protocol):
    """The receiving end of a stream that another node has opened."""

    @property
    def identity(self) -> str | None:
        """The name in the certificate with which the other node has proved who it is: its common name, or the first
        alternative name if it has none, or "". None: connections are not authenticated."""

    def close(self, why: str) -> None:
        """Refuses what follows: the sender's on_closed gets `why`."""


class StreamHandler(Protocol):
    """What becomes of a transport's streams. None of these calls raises, and none comes after Transport.stop() was
    called."""

    def on_stream(self, stream: StreamIn, hello: bytes) -> bytes | None:
        """Another node has opened a stream; hello: what it says of itself. Returns the answer; None: refused (after
        stream.close(why), which says why)."""

    def on_frame(self, stream: StreamIn, frame: bytes) -> None:
        """The next frame of a stream that was accepted. Not called after stream.close()."""

    def on_end(self, stream: StreamIn) -> None:
        """A stream that was accepted has ended at the other node, or broke. Not called after stream.close()."""

    def on_open(self, stream: StreamOut, answer: bytes) -> None:
        """A stream that this node dialled was accepted."""

    def on_closed(self, stream: StreamOut, why: str) -> None:
        """A stream that this node dialled could not be opened, was refused, or broke. It is over; dial again."""


class CallHandler(Protocol):
    """Who answers other nodes' calls. Not called after Transport.stop() was called."""

    def on_call(self, method: str, body: bytes, identity: str | None) -> AsyncIterator[bytes]:
        """Another node calls; identity: as StreamIn.identity. Yields the parts of the answer; raising CallFailed gives
        the caller its text, and `reached`. If the call breaks, no further part is asked for, but what has begun goes on
        until the next one: it is not cancelled while the node lives."""


class CallFailed(FluxError):
    """A call to another node did not succeed: unreachable, late, or refused by it. reached: it may have had an effect
    there."""

    def __init__(self, text: str, *, reached: bool = True) -> None:
        super().__init__(text)
        self.reached = reached


class BindFailed(FluxError):
    """The address of a transport cannot be listened on. The text names it and the reason."""


class Transport(Protocol):
    """Connections to other nodes. One per node; the handlers are given when it starts."""

    @property
    def problem(self) -> str:
        """Why other nodes get no new connection to this one at present, while it works on that; "": they do. What they
        have may go on."""

    async def start(self, calls: CallHandler, streams: StreamHandler) -> None:
        """Listens. Raises BindFailed."""

    def dial(self, address: str, hello: bytes) -> StreamOut:
        """Opens a stream to the node at this address; on_open or on_closed tells what came of it."""

    def call(self, address: str, method: str, body: bytes, limit_s: float) -> AsyncIterator[bytes]:
        """Calls another node: the parts of its answer, as they come. Raises CallFailed, also when it takes longer than
        limit_s in all."""

    async def stop(self) -> None:
        """Closes everything. Calls of this node that are under way raise CallFailed."""


