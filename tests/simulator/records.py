"""What the books of a history are kept in: messages by their identities, queues with groups, sessions, shares."""
from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

__all__ = ["Group", "Message", "QueueBook", "SessionBook", "ShareBook", "Wrong"]


class Wrong(AssertionError):
    """What must not be. kind: a word by which findings are told apart."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass(eq=False)
class Message:
    """One identity. places: queues that must have it once it is acknowledged; perhaps: those that may have it as well.
    sends: how often it left. unique: it may be taken once, however often it was sent."""

    number: int
    publisher: str
    sent_at: int
    namespace: str = "/"
    topic: str = ""
    qos: int = 0
    retain: bool = False
    empty: bool = False
    places: frozenset[str] = frozenset()
    perhaps: frozenset[str] = frozenset()
    sends: int = 0
    tries: int = 0      # as sends, those of QoS 2 that repeat one which may have arrived included
    start: int = 0      # of the broker: the one in which it was last sent
    unique: bool = False
    not_before_ms: int = 0
    acked: bool = False
    withheld: bool = False      # the will of a connection that is there, or was ended by its client
    lifetime_s: int = 0         # Message Expiry Interval; 0: none
    expires_ms: int = 0
    partition_key: str = ""
    priority: int = 0

    def sent(self, now_ms: int, start: int, times: int = 1) -> None:
        self.sends += times
        self.tries += 1
        self.start = start
        self.expires_ms = now_ms + 1000 * self.lifetime_s

    @property
    def payload(self) -> bytes:
        return b"" if self.empty else b"<m%d>" % self.number

    def __repr__(self) -> str:
        return f"m{self.number}"


class Group:
    """One group of a queue. made_at: when its first consumer was told that it is one; 0: nobody was."""

    def __init__(self) -> None:
        self.made_at = 0
        self.asked = False
        self.seen: Counter[Message] = Counter()
        # Per message, each delivery: which start of the broker, when it was read, which consumer, whether it was called
        # redelivered.
        self.deliveries: dict[Message, list[tuple[int, int, str, bool]]] = defaultdict(list)
        self.counts: dict[Message, set[int]] = defaultdict(set)     # what deliveries said of it
        self.readers: set[str] = set()
        self.settling: set[Message] = set()     # a client said that it is done, or given up, and waits for no answer
        self.firm: set[Message] = set()         # and that is on disk
        self.maybe: set[Message] = set()        # the same, but its client or the broker was gone before it was so
        self.rejecting: set[Message] = set()    # of these: given up, so that it may be a dead letter
        self.dead: set[Message] = set()         # of `rejecting`: it must be one as soon as it is firm


class ShareBook:
    """One shared subscription: each message goes to one of its members. No other filter matches its topics."""

    def __init__(self, namespace: str, pattern: str) -> None:
        self.namespace, self.pattern = namespace, pattern
        self.filter = pattern.split("/", 2)[2]
        self.disturbed_at = 0       # when a member last left, perhaps with what was meant for it
        self.required: set[Message] = set()
        self.got: dict[Message, tuple[str, int]] = {}       # client, and with which QoS


class QueueBook:
    """One queue. key: <namespace>|<name>. kind: classic, stream, ephemeral. dead: key of where its dead letters go.
    limited: it gives up what was delivered too often. made_at: 0 until its maker was told."""

    def __init__(self, key: str, kind: str = "classic", dead: str = "", limited: bool = False) -> None:
        self.key, self.kind, self.dead, self.limited = key, kind, dead, limited
        self.namespace, _, self.name = key.partition("|")
        self.made_at = 0
        self.partitions = 1
        self.partition_of: dict[str, str] = {}      # partition key → partition
        self.groups: dict[str, Group] = defaultdict(Group)
        self.copies: dict[Message, set[str]] = defaultdict(set)
        self.stopped = False        # a file of it is damaged, and the broker has said so
        self.only_groups = True     # of AMQP there is one, which is there as long as the queue


@dataclass(eq=False)
class SessionBook:
    """What one MQTT session must get. subscriptions: filter → (qos, since). kept: it outlives its connection."""

    client: str
    namespace: str
    kept: bool = False
    known: bool = False         # the client was told that there is one
    subscriptions: dict[str, tuple[int, int]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    required: set[Message] = field(default_factory=set)
    received: Counter[Message] = field(default_factory=Counter)
    # By stream: the highest number that came in each start of the broker.
    last: dict[tuple[str, str, int], dict[int, int]] = field(default_factory=dict)

    def forget(self) -> None:
        self.known = False
        for each in (self.subscriptions, self.asked, self.required, self.received, self.last):
            each.clear()
