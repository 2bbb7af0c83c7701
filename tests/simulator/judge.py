"""What the clients know, and the verdict: identity sets, nothing of the broker.

Each message has an identity, which its payload is. The clients report what they sent, what was answered and what came;
a report that cannot be true of a right broker raises Wrong at once, and `Books.verdict` compares the rest at the end of
a history, when everybody is back and has drained what there is.

`now` is a count of reports: "before" and "after" are by it. What a client has asked for and has not been told of may
have happened or not; what it was told has happened, whatever crashed since.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from oracle.topics import matches as naive

__all__ = ["Books", "Group", "Message", "QueueBook", "SessionBook", "Wrong"]


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
    unique: bool = False
    not_before_ms: int = 0
    acked: bool = False

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
        self.counts: dict[Message, set[int]] = defaultdict(set)     # what deliveries said of it
        self.readers: set[str] = set()
        self.settling: set[Message] = set()     # a client said that it is done, or given up, and waits for no answer
        self.firm: set[Message] = set()         # and that is on disk
        self.maybe: set[Message] = set()        # the same, but its client or the broker was gone before it was so
        self.rejecting: set[Message] = set()    # of these: given up, so that it may be a dead letter
        self.dead: set[Message] = set()         # of `rejecting`: it must be one as soon as it is firm


class QueueBook:
    """One queue. key: <namespace>|<name>. kind: classic, stream, ephemeral. dead: key of where its dead letters go.
    limited: it gives up what was delivered too often. made_at: 0 until its maker was told."""

    def __init__(self, key: str, kind: str = "classic", dead: str = "", limited: bool = False) -> None:
        self.key, self.kind, self.dead, self.limited = key, kind, dead, limited
        self.namespace, _, self.name = key.partition("|")
        self.made_at = 0
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
    last: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def forget(self) -> None:
        self.known = False
        for each in (self.subscriptions, self.asked, self.required, self.received, self.last):
            each.clear()


class Books:
    """Everything of one history. losses_allowed: the start has reported that the end of a file did not hold, which was
    a bit that had flipped: what was in it is as if it had never been, and nothing but what is invented is wrong."""

    def __init__(self) -> None:
        self.now = 1
        self.messages: list[Message] = []
        self.queues: dict[str, QueueBook] = {}
        self.sessions: dict[str, SessionBook] = {}
        self.retained: dict[tuple[str, str], list[Message]] = defaultdict(list)
        self.losses_allowed = False
        self.was_full = False       # the disk, for a while
        self.clock_set = False      # then a restart may take a delay for shorter or longer than it was
        self.tell: Callable[[str], None] = lambda line: None
        self.answered: list[Message] = []       # since the world last looked
        self._ordered: dict[tuple[str, str, str], int] = {}     # reader, queue, publisher → the last first delivery

    def tick(self) -> int:
        self.now += 1
        return self.now

    def queue(self, book: QueueBook) -> QueueBook:
        return self.queues.setdefault(book.key, book)

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────

    def new(self, publisher: str, **what: object) -> Message:
        made = Message(len(self.messages), publisher, self.tick(), **what)     # type: ignore[arg-type]
        self.messages.append(made)
        if made.retain:
            self.retained[made.namespace, made.topic].append(made)
        return made

    def acked(self, message: Message) -> None:
        if message.acked:
            return
        message.acked = True
        self.tell(f"acked {message}")
        self.answered.append(message)
        if message.topic and not message.topic.startswith("$") and not message.empty:
            for session in self.sessions.values():
                if session.namespace != message.namespace:
                    continue
                qos, since = effective(session.subscriptions, message)
                if qos and since < message.sent_at:
                    session.required.add(message)

    def find(self, payload: bytes, where: str, namespace: str) -> Message:
        """The message of this payload, which has come in a namespace."""
        if payload[:2] == b"<m" and payload[-1:] == b">" and payload[2:-1].isdigit():
            number = int(payload[2:-1])
            if number < len(self.messages) and self.messages[number].sends:
                found = self.messages[number]
                if found.namespace != namespace:
                    raise Wrong("foreign", f"{found} of {found.namespace!r} came from {where} in {namespace!r}")
                return found
        raise Wrong("invented", f"{payload[:40]!r} came from {where}, and nobody sent it")

    # ── MQTT sessions ────────────────────────────────────────────────────────────────────────────────────

    def came(self, session: SessionBook, payload: bytes, topic: str, qos: int, retain: bool) -> None:
        """A PUBLISH of an ordinary topic that is no repetition of the same packet."""
        message = self.find(payload, f"{topic} for {session.client}", session.namespace)
        self.tell(f"{session.client} has {message} on {topic} qos {qos}")
        if message.topic != topic:
            raise Wrong("wrong topic", f"{message} was sent to {message.topic} and came on {topic}")
        if not any(matches(each, topic) for each in [*session.subscriptions, *session.asked]):
            raise Wrong("not subscribed", f"{message} on {topic} came to {session.client}")
        if retain:
            return
        session.received[message] += 1
        # What a queue captures may be refused for its sake when subscribers have it, and is then sent again.
        refused = self.was_full and message.places
        if qos == 2 and session.received[message] > 1 and not refused and not self.losses_allowed:
            raise Wrong("twice", f"{message} of QoS 2 came to {session.client} again")
        if qos and session.received[message] == 1 and message.sends == 1:
            stream = message.publisher, topic, message.qos
            if session.last.get(stream, -1) > message.number:
                raise Wrong("order", f"{message} of {message.publisher} came to {session.client} behind "
                                     f"m{session.last[stream]}")
            session.last[stream] = message.number

    # ── queues ───────────────────────────────────────────────────────────────────────────────────────────

    def delivered(self, key: str, group_name: str, payload: bytes, *, count: int | None, again: bool, name: str,
                  now_ms: int, where: str) -> Message:
        """A consumer of the group got it. count: what the broker says how often it was handed out, this time included;
        again: whether it says that it was handed out before. name: of this copy, "" where the protocol has none."""
        queue = self.queues[key]
        message = self.find(payload, f"queue {key}", queue.namespace)
        self.tell(f"{where} has {message} of {key} for {group_name!r}, count {count}, {name}")
        group = queue.groups[group_name]
        if key not in message.places | message.perhaps and not self._may_be_dead(message, key):
            raise Wrong("misplaced", f"{message} came from {key}, and belongs to {sorted(message.places)}")
        if self.losses_allowed:
            group.seen[message] += 1
            return message
        if message in group.firm and (message.unique or message.sends == 1):
            raise Wrong("settled again", f"{message} came from {key} for {group_name!r} though it was settled")
        if now_ms < message.not_before_ms and not self.clock_set and key in message.places:
            raise Wrong("early", f"{message} came from {key} {message.not_before_ms - now_ms} ms too early")
        if name:
            queue.copies[message].add(name)
        elif message not in queue.copies:
            queue.copies[message] = set()
        most = 1 if message.unique else message.sends
        if name and len(queue.copies[message]) > most and key in message.places:
            raise Wrong("twice", f"{message}, sent {message.sends} times, is in {key} as "
                                 f"{sorted(queue.copies[message])}")
        group.seen[message] += 1
        group.readers.add(where)
        if message in group.settling:       # it came too late for that delivery
            group.settling.discard(message)
            group.maybe.add(message)
        # What others give back, or what changed hands before it left, has no place in the order of a reader.
        if queue.kind == "stream" and message.sends == 1 and not message.not_before_ms and (
                key in message.places):
            stream = where, key, message.publisher
            if self._ordered.get(stream, -1) > message.number:
                raise Wrong("order", f"{message} of {message.publisher} came from {key} to {where} behind "
                                     f"m{self._ordered[stream]}")
            self._ordered[stream] = message.number
        if most == 1:
            # Each is one more than the one before, which this client may hear of later than another does.
            if count is not None and name and key in message.places and count in group.counts[message]:
                raise Wrong("count", f"{message} came from {key} for {group_name!r} the {group.seen[message]}. time, "
                                     f"and the broker says {count}, as before")
            group.counts[message].add(count or 0)
            if group.seen[message] > 1 and not again and key in message.places:
                raise Wrong("count", f"{message} came from {key} again, and is not called redelivered")
        return message

    def _may_be_dead(self, message: Message, key: str) -> bool:
        """Whether its way to these dead letters is one that it may have gone."""
        return any(queue.dead == key and queue.key in message.places | message.perhaps
                   and (queue.limited or any(message in group.rejecting for group in queue.groups.values()))
                   for queue in self.queues.values())

    def restarted(self) -> None:
        """What is in memory only is gone."""
        for queue in self.queues.values():
            if queue.kind == "ephemeral":
                queue.groups.clear()
                queue.copies.clear()

    def firm(self) -> None:
        """Nothing is under way, and all is on disk: what was settled is."""
        for queue in self.queues.values():
            for group in queue.groups.values():
                group.firm |= group.settling
                group.settling.clear()

    @staticmethod
    def unsure(settled: list[tuple[Group, Message]]) -> None:
        """Who said so is gone: what of it came about nobody knows."""
        for group, message in settled:
            if message in group.settling:
                group.settling.discard(message)
                group.maybe.add(message)
                group.dead.discard(message)
        settled.clear()

    # ── the verdict ──────────────────────────────────────────────────────────────────────────────────────

    def quiet(self, connected: Iterable[str]) -> None:
        """Nothing is under way: who is connected has got everything."""
        for client in connected:
            session = self.sessions[client]
            missing = [one for one in session.required if not session.received[one]]
            if missing and not self.losses_allowed:
                raise Wrong("lost", f"{sorted_(missing)} never came to {client}")

    def verdict_of_queues(self) -> None:
        """Everything has been drained from every queue."""
        for queue in self.queues.values():
            if queue.kind == "ephemeral" or queue.stopped or not queue.made_at:
                continue
            for name, group in queue.groups.items():
                lost = [one for one in self.messages if self._must_have(queue, group, one)
                        and not group.seen[one] and not self._gone_elsewhere(queue, group, one)]
                if lost and not self.losses_allowed:
                    raise Wrong("lost", f"{sorted_(lost)} never came from {queue.key} for {name!r}")
                if queue.dead and not self.losses_allowed and not self.queues[queue.dead].stopped:
                    self._dead_are_there(queue, group)

    @staticmethod
    def _must_have(queue: QueueBook, group: Group, message: Message) -> bool:
        if not message.acked or queue.key not in message.places:
            return False
        # A group that came later begins with what nobody has settled.
        others = any(message in each for one in queue.groups.values() for each in (one.settling, one.firm, one.maybe))
        return (0 < group.made_at < message.sent_at) or not others

    def _gone_elsewhere(self, queue: QueueBook, group: Group, message: Message) -> bool:
        """Delivered too often to somebody who was gone, it may be a dead letter that nobody of this group ever saw."""
        return queue.limited and bool(queue.dead) and bool(self.queues[queue.dead].copies.get(message))

    def _dead_are_there(self, queue: QueueBook, group: Group) -> None:
        dead = self.queues[queue.dead]
        missing = [one for one in group.dead & group.firm if one not in dead.copies]
        if missing:
            raise Wrong("dead letter", f"{sorted_(missing)} of {queue.key} were rejected, and are not in {dead.key}")

    def verdict_of_retained(self, namespace: str, found: dict[str, bytes]) -> None:
        """found: what a new subscriber got, by topic."""
        for topic, sent in [(each[1], sent) for each, sent in self.retained.items() if each[0] == namespace]:
            last = max((at for at, one in enumerate(sent) if one.acked), default=-1)
            allowed = {one.payload for one in sent[max(last, 0):] if one.sends} | ({b""} if last < 0 else set())
            allowed |= {one.payload for one in sent if one.sends > 1}   # published again, behind a later one
            if found.get(topic, b"") not in allowed and not self.losses_allowed:
                raise Wrong("retained", f"{topic} of {namespace!r} has {found.get(topic, b'')!r}, and not one of "
                                        f"{sorted(allowed)}")


def matches(pattern: str, topic: str) -> bool:
    return naive(pattern.encode(), topic.encode())


def effective(subscriptions: dict[str, tuple[int, int]], message: Message) -> tuple[int, int]:
    """(qos, since) by which this message comes; QoS 0: it need not."""
    found = [(min(qos, message.qos), since) for each, (qos, since) in subscriptions.items()
             if matches(each, message.topic) and since < message.sent_at]
    return max(found, default=(0, 0))


def sorted_(messages: Iterable[Message]) -> list[str]:
    return [repr(one) for one in sorted(messages, key=lambda one: one.number)]
