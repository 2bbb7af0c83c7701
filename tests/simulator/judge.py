"""What the clients know, and the verdict: identity sets, nothing of the broker.

Each message has an identity, which its payload is. The clients report what they sent, what was answered and what came;
a report that cannot be true of a right broker raises Wrong at once, and `Books.verdict` compares the rest at the end of
a history, when everybody is back and has drained what there is.

`now` is a count of reports: "before" and "after" are by it. What a client has asked for and has not been told of may
have happened or not; what it was told has happened, whatever crashed since.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from oracle.topics import matches as naive
from simulator.records import Group, Message, QueueBook, SessionBook, ShareBook, Wrong

__all__ = ["Books", "Group", "Message", "QueueBook", "SessionBook", "ShareBook", "Wrong"]

LATE_MS = 5000      # that a message may be on its way, behind a batch that waits for the disk


class Books:
    """Everything of one history. losses_allowed: the start has reported that the end of a file did not hold, which was
    a bit that had flipped: what was in it is as if it had never been, and nothing but what is invented is wrong."""

    def __init__(self) -> None:
        self.now = 1
        self.messages: list[Message] = []
        self.queues: dict[str, QueueBook] = {}
        self.sessions: dict[str, SessionBook] = {}
        self.shares: dict[tuple[str, str], ShareBook] = {}
        self.now_ms: Callable[[], int] = lambda: 0
        self.draining = False       # nobody publishes any more
        self.reads = 0              # blocking steps since then, of which some read messages
        self._lowest: dict[tuple[str, str, str], int] = {}      # reader, queue, group → priority of the last fresh one
        self.retained: dict[tuple[str, str], list[Message]] = defaultdict(list)
        self.starts = 1     # of the broker, so far
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
            for share in self.shares.values():
                if share.namespace == message.namespace and matches(share.filter, message.topic):
                    self._share_owes(share, message)

    def _share_owes(self, share: ShareBook, message: Message) -> None:
        """It must come to a member, if each that it may have been meant for is there for good."""
        sessions = [one for one in self.sessions.values() if one.namespace == share.namespace]
        members = [one for one in sessions if share.pattern in one.subscriptions]
        if members and not any(share.pattern in one.asked for one in sessions) and (
                message.sent_at > share.disturbed_at) and all(
                one.kept and one.subscriptions[share.pattern][0] and one.subscriptions[share.pattern][1] <
                message.sent_at for one in members):
            share.required.add(message)

    def disturb(self, session: SessionBook) -> None:
        """Who has a part in shared subscriptions leaves one of them, or its session ends, perhaps."""
        for pattern in [*session.subscriptions, *session.asked]:
            if pattern.startswith("$share/"):
                share = self.shares[session.namespace, pattern]
                share.disturbed_at = self.tick()
                share.required.clear()

    def expired(self, message: Message) -> bool:
        """Whether it may be gone."""
        return message.lifetime_s > 0 and (self.clock_set or self.now_ms() >= message.expires_ms)

    def too_late(self, message: Message) -> bool:
        """Whether it should have been gone when it was sent to whoever has it now."""
        return not (self.clock_set or self.was_full or self.losses_allowed) and \
            self.now_ms() > message.expires_ms + LATE_MS

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
        if message.withheld and not self.losses_allowed:
            raise Wrong("will", f"{message} came to {session.client}, and its connection is there or was ended")
        shared, given_on = self._came_by_share(session, message, qos)
        if not any(matches(plain_filter(each), topic) for each in [*session.subscriptions, *session.asked]):
            raise Wrong("not subscribed", f"{message} on {topic} came to {session.client}")
        if retain:
            return
        session.received[message] += 1
        # What a queue captures may be refused for its sake when subscribers have it, and is then sent again.
        refused = self.was_full and message.places
        if qos == 2 and session.received[message] > 1 and not refused and not self.losses_allowed:
            raise Wrong("twice", f"{message} of QoS 2 came to {session.client} again")
        if qos and session.received[message] == 1 and message.sends == 1 and not given_on:
            stream = message.publisher, topic, message.qos
            last = session.last.setdefault(stream, {})
            # What a crash took from the broker is published again, in order, and a share chooses its members anew: this
            # one may have had a later message before the crash, and another member this one.
            behind = max((number for start, number in last.items() if not (shared and start < message.start)),
                         default=-1)
            if behind > message.number:
                raise Wrong("order", f"{message} of {message.publisher} came to {session.client} behind m{behind}")
            last[self.starts] = max(message.number, last.get(self.starts, -1))

    def _came_by_share(self, session: SessionBook, message: Message, qos: int) -> tuple[bool, bool]:
        """Whether it came by one; whether another member may have left it behind when its session ended. Then it comes
        behind later messages; and again, but not if both deliveries had QoS 2 [MQTT-4.8.2-5]."""
        shared = given_on = False
        for share in self.shares.values():
            if share.namespace == session.namespace and matches(share.filter, message.topic):
                shared = True
                left = share.disturbed_at > message.sent_at
                given_on = given_on or left
                former, former_qos = share.got.setdefault(message, (session.client, qos))
                if former != session.client and message.tries == 1 and not self.losses_allowed and (
                        not left or not qos or not former_qos or qos == former_qos == 2):
                    raise Wrong("twice", f"{message} came to {session.client} by {share.pattern}, and had come to "
                                         f"{former}")
        return shared, given_on

    # ── queues ───────────────────────────────────────────────────────────────────────────────────────────

    def delivered(self, key: str, group_name: str, payload: bytes, *, count: int | None, again: bool, name: str,
                  now_ms: int, where: str, connected: int = 0) -> Message:
        """A consumer of the group got it. count: what the broker says how often it was handed out, this time included;
        again: whether it says that it was handed out before. name: of this copy, "" where the protocol has none.
        connected: the tick in which the consumer's connection began; 0: unknown."""
        queue = self.queues[key]
        message = self.find(payload, f"queue {key}", queue.namespace)
        self.tell(f"{where} has {message} of {key} for {group_name!r}, count {count}, {name}")
        group = queue.groups[group_name]
        if key not in message.places | message.perhaps and not self._may_be_dead(message, key):
            raise Wrong("misplaced", f"{message} came from {key}, and belongs to {sorted(message.places)}")
        if self.losses_allowed:
            group.seen[message] += 1
            return message
        # What expired in two groups is two dead letters.
        once = (message.unique or message.sends == 1) and (key in message.places or not message.lifetime_s)
        if message in group.firm and once:
            raise Wrong("settled again", f"{message} came from {key} for {group_name!r} though it was settled")
        if now_ms < message.not_before_ms and not self.clock_set and key in message.places:
            raise Wrong("early", f"{message} came from {key} {message.not_before_ms - now_ms} ms too early")
        partition = name.partition(":")[0]
        if partition and message.partition_key and key in message.places and queue.partition_of.setdefault(
                message.partition_key, partition) != partition:
            raise Wrong("partition", f"{message} of {message.partition_key!r} came from {partition} of {key}, and one "
                                     f"before from {queue.partition_of[message.partition_key]}")
        self._by_priority(queue, group_name, message, count, where)
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
                key in message.places) and (queue.partitions == 1 or message.partition_key):
            stream = where, key, f"{message.publisher} {message.partition_key if queue.partitions > 1 else ''}"
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
            # A consumer may read later than others what it was sent earlier, but not after a restart, or on a
            # connection that began later.
            if not again and key in message.places and any(
                    start < self.starts or tick < connected or reader == where or not redelivered
                    for start, tick, reader, redelivered in group.deliveries[message]):
                raise Wrong("count", f"{message} came from {key} again, and is not called redelivered")
            group.deliveries[message].append((self.starts, self.tick(), where, again))
        return message

    def _by_priority(self, queue: QueueBook, group: str, message: Message, count: int | None, where: str) -> None:
        """When nobody publishes any more, what a reader gets for the first time is of falling priorities. What
        has to be read from disk first does not hold up what is in memory."""
        if not self.draining or self.reads or count != 1 or queue.key not in message.places or message.not_before_ms:
            return
        address = where, queue.key, group
        if message.priority > self._lowest.get(address, 255):
            raise Wrong("priority", f"{message} of priority {message.priority} came from {queue.key} to {where} behind "
                                    f"one of {self._lowest[address]}")
        self._lowest[address] = message.priority

    def _may_be_dead(self, message: Message, key: str) -> bool:
        """Whether its way to these dead letters is one that it may have gone."""
        return any(queue.dead == key and queue.key in message.places | message.perhaps
                   and (queue.limited or message.lifetime_s or any(
                       message in group.rejecting for group in queue.groups.values()))
                   for queue in self.queues.values())

    def restarted(self) -> None:
        """What is in memory only is gone."""
        self.starts += 1
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
        there = set(connected)
        for share in self.shares.values():
            members = {name for name, one in self.sessions.items()
                       if one.namespace == share.namespace and share.pattern in one.subscriptions}
            missing = [one for one in share.required if one not in share.got and not self.expired(one)]
            if missing and members <= there and not self.losses_allowed:
                raise Wrong("lost", f"{sorted_(missing)} came to no member of {share.pattern} of {share.namespace!r}")
        for client in sorted(there):
            session = self.sessions[client]
            missing = [one for one in session.required if not session.received[one] and not self.expired(one)]
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

    def _must_have(self, queue: QueueBook, group: Group, message: Message) -> bool:
        if not message.acked or self.expired(message) or queue.key not in message.places:
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
            allowed |= {b"" for one in sent if self.expired(one)}
            allowed |= {one.payload for one in sent if one.sends > 1}   # published again, behind a later one
            if found.get(topic, b"") not in allowed and not self.losses_allowed:
                raise Wrong("retained", f"{topic} of {namespace!r} has {found.get(topic, b'')!r}, and not one of "
                                        f"{sorted(allowed)}")


def matches(pattern: str, topic: str) -> bool:
    return naive(pattern.encode(), topic.encode())


def plain_filter(pattern: str) -> str:
    """Without what makes it a shared one."""
    return pattern.split("/", 2)[2] if pattern.startswith("$share/") else pattern


def effective(subscriptions: dict[str, tuple[int, int]], message: Message) -> tuple[int, int]:
    """(qos, since) by which this message comes; QoS 0: it need not."""
    found = [(min(qos, message.qos), since) for each, (qos, since) in subscriptions.items()
             if matches(each, message.topic) and since < message.sent_at]
    return max(found, default=(0, 0))


def sorted_(messages: Iterable[Message]) -> list[str]:
    return [repr(one) for one in sorted(messages, key=lambda one: one.number)]
