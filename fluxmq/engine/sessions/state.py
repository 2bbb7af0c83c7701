"""The cold half's state of each session, and the part of it that is stored.

A Session (_core/pubsub/session.pyx) has the state of hot operations; `Session.data` has a SessionState. `Head` and
`Link` are the bodies of the SESSION and LINK records (after the session's number) and part of the view's copy;
msgpack arrays, so that a field added at the end is read as its default from an older file.
"""
from __future__ import annotations

from typing import Any, Protocol

import msgspec

from fluxmq._core.pubsub.session import Session, SessionFacts
from fluxmq._core.pubsub.share_group import ShareGroup
from fluxmq._core.wire.xxh64 import xxh64
from fluxmq.engine.queues.retry import UNSPECIFIED, RetryPolicy

__all__ = ["ACTIVE", "ARRIVING", "EXPIRY_NEVER", "ORIGINS_MAX", "WHOLE", "ClientConnection", "Consume", "Head", "Link",
           "Moved", "SessionState", "Subscription", "Will", "incarnation_of"]

NONE_REST: frozenset[bytes] = frozenset()  # one for all: each call makes another one of 216 bytes
EXPIRY_NEVER = 0xFFFFFFFF  # Session Expiry Interval, MQTT 5.0 section 3.1.2.11.2


class Will(msgspec.Struct, array_like=True, frozen=True):
    """A will message, MQTT 5.0 section 3.1.2.5.

    properties: wire bytes, sent unchanged. delay_s: Will Delay Interval. expiry_s: Message Expiry Interval, counted
    from publication; None = never. identity: of Hub.next_identity; 0: the node that accepted it was alone.
    """

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes = b""
    delay_s: int = 0
    expiry_s: int | None = None
    identity: int = 0

    @property
    def size(self) -> int:
        """Its bytes that count towards session.max_state_bytes."""
        return len(self.topic) + len(self.payload) + len(self.properties)


ARRIVING, WHOLE, ACTIVE = 1, 2, 3  # Moved.stage
ORIGINS_MAX = 8  # a session is somewhere else again before any of its earlier nodes is forgotten


class Moved(msgspec.Struct, array_like=True):
    """What is known of a session that came from another node (sessions/transfer.py).

    stage: ARRIVING, parts are missing; WHOLE; ACTIVE, in the index. steps: records of its arrival applied so far.
    place: messages of its line with this sequence or a lower one were received by other nodes, the others by this one.
    source: the session's name at the node that it came from. origins: (such a name, sequence there up to which
    everything has come), newest first.
    """

    stage: int = ACTIVE
    steps: int = 0
    place: int = 0
    source: bytes = b""
    origins: list[tuple[bytes, int]] = []

    def upto(self, origin: bytes) -> int:
        """The sequence up to which everything has come from there; 0: nothing."""
        return next((upto for name, upto in self.origins if name == origin), 0)

    def came(self, origin: bytes, upto: int) -> None:
        """Everything up to this sequence has come from there."""
        upto = max(upto, self.upto(origin))
        self.origins = [(origin, upto), *(each for each in self.origins if each[0] != origin)][:ORIGINS_MAX]


class Head(msgspec.Struct, array_like=True):
    """A session as CONNECT made it. namespace: its number in the line of the record; an earlier version wrote its name.
    since_ms: steady clock at the last change of `connected`. moved: None if it began here. identity: of no other
    session of this client; "": it was not made in a cluster."""

    name: bytes
    namespace: int | bytes
    version: int
    expiry_s: int
    connected: bool
    since_ms: int
    keep_alive_s: int
    kept: bool
    will: Will | None = None
    username: str | None = None
    moved: Moved | None = None
    identity: str = ""


class Consume(msgspec.Struct, array_like=True, frozen=True):
    """Options of a subscription to a queue, from the user properties of its SUBSCRIBE (docs/queues.md).

    group: b"" = the default group of a classic queue, none for a stream. manual: `ack: manual`. prefetch: unsettled
    messages at most; 0 = as many as the Receive Maximum. position: where a stream (or a new group) begins. lease_ms:
    visibility timeout; None = the queue's. exclusive: whether partitions belong to one member each; None: as the
    group has it. retry_policy: of its group.
    """

    group: bytes = b""
    manual: bool = False
    prefetch: int = 0
    position: str = ""
    lease_ms: int | None = None
    exclusive: bool | None = None
    retry_policy: RetryPolicy = UNSPECIFIED


class Subscription(msgspec.Struct, array_like=True, frozen=True):
    """A subscription on disk: a SUBSCRIBE record, and part of the view's copy of a session."""

    filter: bytes
    options: int
    identifier: int
    consume: Consume | None = None


class Link(msgspec.Struct, array_like=True):
    """State that a disconnect changes."""

    connected: bool
    since_ms: int
    expiry_s: int
    will_pending: bool


def incarnation_of(namespace: bytes, client_id: bytes, identity: str) -> int:
    """A number for a session: of no other one that there is at the same time. 0: it has no identity."""
    return xxh64(b"\0".join((namespace, client_id, identity.encode()))) or 1 if identity else 0


class ClientConnection(Protocol):
    """What the engine needs from a client's connection."""

    def displaced(self, reason: int) -> None:
        """Another connection took over, or an administrator disconnects the client: inform the client and close."""


class SessionState(SessionFacts):
    """The cold half of a session. Its numbers and flags are in the base class."""

    __slots__ = ("connection", "consumers", "consumes", "groups", "identity", "moved", "resting", "session", "username",
                 "will")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.connection: ClientConnection | None = None
        self.consumes: dict[bytes, Consume] | None = None  # by filter: options of subscriptions to queues
        self.consumers: dict[bytes, Any] | None = None  # filter -> consumer, while the client is connected
        # By filter, `$share/…/` included: of which it is a member. None: of none yet, as most sessions.
        self.groups: dict[bytes, ShareGroup] | None = None
        self.will: Will | None = None
        self.username: str | None = None
        self.resting = NONE_REST  # subscriptions that are suspended because they are not permitted
        self.moved: Moved | None = None  # came from another node
        self.identity = ""  # of no other session of this client; "": it was not made in a cluster

    @property
    def incarnation(self) -> int:
        """What other nodes know its QoS 2 messages by (_core/hub/origins.pxd); 0: nothing, because its client cannot
        send them again through another node."""
        return incarnation_of(self.session.namespace.name, self.session.name, self.identity) if self.expiry_s else 0

    def head(self) -> Head:
        """`connected` is also true while the consequences of the broker's last end are pending: the will, or the end of
        a session without expiry interval, waits for the client to return."""
        connected = self.connection is not None or (self.restored and (self.will is not None or self.expiry_s == 0))
        return Head(self.session.name, self.session.namespace.number, self.version, self.expiry_s, connected,
                    self.since_ms, self.keep_alive_s, self.kept, self.will, self.username, self.moved, self.identity)
