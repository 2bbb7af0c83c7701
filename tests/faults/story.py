"""One fixed story that broker and clients play on a disk that errs, and the verdict at its end.

The clients keep their books over all lives of the broker, as real ones do: what was published and confirmed, what
came, what was settled. What they ask of the broker's host (tests/faults/hosts.py) is that it starts, lets a moment
pass, takes a checkpoint, makes and deletes a queue, and ends in one of three ways.

    prepare     sessions, retained messages, queues of each kind; a checkpoint; more; another; more, in the journal only
    start       from what prepare() left
    load        what every client has to say, some of it settled, a queue made and another deleted
    checkpoint  with messages while it is taken, and after it
    stop, or kill, or loss of power
    restart     more of it, a checkpoint, a kill; and again, and then everything must come

The verdict is about identities: what was confirmed and has not come is lost; what was settled, and is known to be on
disk as such, must not come again; QoS 2 comes once; what came was sent, with its bytes.
"""
from __future__ import annotations

import functools
import random
import socket
from dataclasses import dataclass, field
from typing import Any, Protocol

from oracle.mqtt import (
    NEVER,
    V5,
    Connack,
    Connect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    parse,
)

__all__ = ["Actor", "Book", "Ended", "Host", "Lost", "Refused", "Story", "Wrong"]

CONNECT_SECONDS = 60.0      # only a broker that hangs needs them
REFUSALS_MAX = 5
LARGE_BYTES, LARGE_EVERY = 9000, 11


class Refused(Exception):
    """The broker does not start. The text is what an operator reads."""


class Ended(Exception):
    """The broker has ended by itself. The text is what an operator reads."""


class Wrong(AssertionError):
    """What must not be: the text says what."""


class Lost(Wrong):
    """What was confirmed has not come. topics, numbers: of these messages."""

    def __init__(self, topics: set[str], numbers: set[int], text: str) -> None:
        super().__init__(text)
        self.topics, self.numbers = topics, numbers


class Host(Protocol):
    """Whoever runs the broker."""

    turns_max: int
    """After so many without what is waited for, the broker hangs."""

    @property
    def address(self) -> tuple[str, int]:
        """Of its listener."""

    @property
    def ended(self) -> str | None:
        """Why it ended by itself; None while it runs."""

    @property
    def checkpoints(self) -> int:
        """How many have succeeded since it started."""

    def start(self) -> None:
        """Raises Refused."""

    def turn(self) -> None:
        """A moment passes."""

    def begin_checkpoint(self) -> None:
        """One begins, or the wish for one stands until one has been taken."""

    def declare(self, queue: str) -> None:
        """Makes a classic queue."""

    def delete(self, queue: str) -> None:
        """Deletes it."""


@dataclass
class Sent:
    """One message. state: "open", "confirmed", "refused" or "unknown" (nobody will ever say)."""

    number: int
    topic: str
    qos: int
    state: str = "open"
    again: bool = False         # with DUP, after a connection was lost: QoS 1 may have it twice


@dataclass
class Book:
    """What everybody knows. `sure`: by client, settled and known to be on the disk as such."""

    sent: dict[int, Sent] = field(default_factory=dict)
    came: dict[str, list[int]] = field(default_factory=dict)
    sure: dict[str, set[int]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)


@functools.cache
def payload_of(number: int) -> bytes:
    """Some are larger than a page, packed too: not all of it is written again with the next batch."""
    size = number * 37 % 400 + (LARGE_BYTES if number % LARGE_EVERY == 0 else 0)
    return b"%06d|" % number + random.Random(number).randbytes(size)


class Actor:
    """A client with a session that outlives connections: its identifiers and what it has sent and holds.

    hold: every message whose number divides by it is not acknowledged; 0: all are.
    """

    def __init__(self, name: str, book: Book, filters: dict[str, int] | None = None, *, hold: int = 0,
                 asked: tuple[tuple[str, str], ...] = ()) -> None:
        self.name, self.book, self.filters, self.hold, self.asked = name, book, filters or {}, hold, asked
        self.packet_id = 0
        self.outbound: dict[int, tuple[Sent, Publish | Pubrel]] = {}    # by packet id, in the order of sending
        self.inbound: set[int] = set()                                  # QoS 2, between PUBLISH and PUBREL
        self.settled: set[int] = set()          # acknowledged, and not known to be on the disk as such
        self.marks: dict[int, set[int]] = {}    # number of a message → what was settled before it on this connection
        self.known = self.subscribed = self.open = False
        self.socket: socket.socket | None = None
        self.buffer = b""
        self.refusal = self.refusals = 0
        self.since = 0              # the first message that is published under its subscription; 0: there is none
        book.came.setdefault(name, [])
        book.sure.setdefault(name, set())

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────

    def dial(self, address: tuple[str, int]) -> None:
        """Connects; pull() sees what comes of it."""
        self.drop()
        try:
            self.socket = socket.create_connection(address, CONNECT_SECONDS)
        except OSError:
            return                      # the broker is about to end
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.send(Connect(client_id=self.name, clean_start=False,
                          properties={"session_expiry_interval": NEVER, "receive_maximum": 200}))

    def drop(self) -> None:
        """The connection ends without a word."""
        if self.socket is not None:
            self.socket.close()
        self.socket, self.open, self.buffer = None, False, b""
        self.settled.clear()            # nobody will tell us whether they are on the disk
        self.marks.clear()

    def send(self, *packets: Packet) -> None:
        if self.socket is None:
            return
        try:
            self.socket.sendall(b"".join(packet.encode(V5) for packet in packets))
        except OSError:
            self.drop()

    def pull(self) -> bool:
        """Reads and answers what has come. Returns whether anything had."""
        if self.socket is None:
            return False
        gone, before = False, len(self.buffer)
        try:
            while data := self.socket.recv(65536):
                self.buffer += data
            gone = True
        except BlockingIOError:
            pass
        except OSError:
            gone = True
        news = len(self.buffer) > before
        while (found := parse(self.buffer, V5)) is not None:
            packet, self.buffer = found
            self._on_packet(packet)
        if gone:
            self.drop()
        return news or gone

    # ── what it says ─────────────────────────────────────────────────────────────────────────────────────

    def publish(self, topic: str, qos: int, *, retain: bool = False, delay_ms: int = 0) -> Sent:
        number = len(self.book.sent) + 1
        sent = self.book.sent[number] = Sent(number, topic, qos)
        users = [("x-delay", str(delay_ms))] if delay_ms else []
        packet = Publish(topic=topic, qos=qos, retain=retain, payload=payload_of(number), packet_id=self._next_id(),
                         properties=[("user_property", user) for user in users])
        assert packet.packet_id is not None
        self.outbound[packet.packet_id] = (sent, packet)
        self.send(packet)
        return sent

    def _next_id(self) -> int:
        while True:
            self.packet_id = self.packet_id % 65535 + 1
            if self.packet_id not in self.outbound:
                return self.packet_id

    @property
    def waits(self) -> bool:
        """For an answer to something it has sent."""
        if self.socket is None:
            return False
        return bool(self.outbound or not self.open or (self.filters and not self.subscribed))

    # ── what it hears ────────────────────────────────────────────────────────────────────────────────────

    def _on_packet(self, packet: Packet) -> None:
        match packet:
            case Connack():
                self._on_connack(packet)
            case Suback():
                if any(reason >= 0x80 for reason in packet.reasons):
                    raise Wrong(f"{self.name}: the subscription is refused with {packet.reasons}")
                self.subscribed, self.since = True, self.since or len(self.book.sent) + 1
            case Publish():
                self._on_publish(packet)
            case Puback() | Pubrec() | Pubcomp():
                self._on_answer(packet)
            case Pubrel():
                self.inbound.discard(packet.packet_id)
                self.send(Pubcomp(packet_id=packet.packet_id))

    def _on_connack(self, packet: Connack) -> None:
        if packet.reason:
            self.refusal, self.refusals = packet.reason, self.refusals + 1
            self.drop()
            return
        self.open, present = True, bool(packet.session_present)
        if self.known and not present:
            raise Wrong(f"{self.name}: a session that was acknowledged is gone")
        if not present:
            self.inbound.clear()
            self.subscribed = False
            for sent, _ in self.outbound.values():
                sent.state = "unknown"
            self.outbound.clear()
        self.known = True
        for sent, again in self.outbound.values():
            sent.again = True
            if isinstance(again, Publish):
                again.dup = True
            self.send(again)
        if self.filters and not self.subscribed:
            properties = [("user_property", pair) for pair in self.asked]
            self.send(Subscribe(packet_id=self._next_id(), filters=list(self.filters.items()), properties=properties))

    def _on_publish(self, packet: Publish) -> None:
        number = int(packet.payload[:6])
        sent = self.book.sent.get(number)
        if sent is None or packet.payload != payload_of(number):
            raise Wrong(f"{self.name}: message {number} came with other bytes than were sent")
        if packet.qos == 2:
            assert packet.packet_id is not None
            if packet.packet_id not in self.inbound:
                self.inbound.add(packet.packet_id)
                self._came(number)
            self.send(Pubrec(packet_id=packet.packet_id))
            return
        self._came(number)
        if packet.qos == 1 and not (self.hold and number % self.hold == 0):
            self.send(Puback(packet_id=packet.packet_id))
            self.settled.add(number)

    def _came(self, number: int) -> None:
        if number in self.book.sure[self.name]:
            raise Wrong(f"{self.name}: message {number} was settled, and came again")
        came = self.book.came[self.name]
        if number in came and self.book.sent[number].qos == 2 and 2 in self.filters.values():
            raise Wrong(f"{self.name}: message {number} of QoS 2 came twice")
        came.append(number)

    def _on_answer(self, packet: Puback | Pubrec | Pubcomp) -> None:
        sent, _ = self.outbound.get(packet.packet_id, (None, None))
        if sent is None:
            return
        if packet.reason >= 0x80:
            sent.state = "refused"
            del self.outbound[packet.packet_id]
            return
        sent.state = "confirmed"
        if isinstance(packet, Pubrec):
            again = Pubrel(packet_id=packet.packet_id)
            self.outbound[packet.packet_id] = (sent, again)
            self.send(again)
        else:
            del self.outbound[packet.packet_id]
        self.book.sure[self.name] |= self.marks.pop(sent.number, set())

    def mark(self) -> None:
        """Publishes something that is recorded behind everything that was said so far: a retained message. When it is
        confirmed, what we had settled before it is on the disk as well."""
        settled = set(self.settled)
        self.marks[self.publish(f"mark/{self.name}", 1, retain=True).number] = settled


class Story:
    """The clients, and what they do together."""

    def __init__(self) -> None:
        self.host: Host
        book = self.book = Book()
        self.publisher = Actor("pub", book)
        self.online = Actor("on", book, {"t/#": 2}, hold=0)
        self.away = Actor("off", book, {"t/#": 2})
        self.worker = Actor("con", book, {"$queue/c": 1}, hold=3)
        self.other = Actor("del", book, {"$queue/d": 1})
        self.actors = [self.publisher, self.online, self.away, self.worker, self.other]

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────

    def pull(self) -> bool:
        return any([actor.pull() for actor in self.actors])

    def wait(self, *actors: Actor, until: Any = None) -> None:
        """Until all these have their answers, or `until` says so. Raises Ended, Wrong."""
        for _ in range(self.host.turns_max):
            self.pull()
            if self.host.ended is not None:
                self.pull()
                raise Ended(self.host.ended)
            for actor in actors:
                if actor.socket is None:
                    if actor.refusals > REFUSALS_MAX:
                        raise Wrong(f"{actor.name} is not let in (reason {actor.refusal:#04x})")
                    actor.dial(self.host.address)
            # Who could not connect, for the broker is about to end, has no answer either.
            if until() if until is not None else not any(actor.waits or actor.socket is None for actor in actors):
                return
            self.host.turn()
        raise Wrong(f"the broker neither goes on nor ends; {[actor.name for actor in actors if actor.waits]} wait")

    def hang_up(self) -> None:
        """Nobody is connected any more."""
        for actor in self.actors:
            actor.drop()

    # ── parts ────────────────────────────────────────────────────────────────────────────────────────────

    def round(self, *, away: bool = False) -> None:
        """Something for everybody, confirmed."""
        publisher, worker = self.publisher, self.worker
        self.wait(publisher, self.online, worker, *([self.away] if away else []))
        for qos in (1, 2):
            publisher.publish(f"t/{qos}", qos)
        publisher.publish("r/k", 1, retain=True)
        for topic in ("$queue/c", "$queue/s", "$queue/c", "$queue/s"):
            publisher.publish(topic, 1)
        publisher.publish("$queue/d", 1, delay_ms=1)
        self.wait(publisher)
        worker.mark()
        self.online.mark()
        self.wait(worker, self.online)

    def prepare(self) -> None:
        """What a broker finds that starts on a disk that errs. Without errors; the host kills it afterwards."""
        self.round(away=True)
        self.away.drop()
        self.host.declare("gone")
        for _ in range(3):
            self.publisher.publish("$queue/gone", 1)
        self.wait(self.publisher)
        for _ in range(2):
            self.round()
            self.checkpoint()
        self.round()

    def load(self) -> None:
        self.round()
        self.host.delete("gone")
        self.host.declare("late")
        self.publisher.publish("$queue/late", 1)
        self.publisher.mark()
        self.wait(self.publisher)
        self.book.deleted.add("gone")
        self.round()

    def checkpoint(self) -> None:
        """One, with messages meanwhile and afterwards. A disk that is full makes it late."""
        taken = self.host.checkpoints
        self.wait(self.publisher)
        self.host.begin_checkpoint()
        self.publisher.publish("t/2", 2)
        self.publisher.publish("$queue/c", 1)
        self.wait(self.publisher, until=lambda: self.host.checkpoints > taken and not self.publisher.waits)
        self.publisher.publish("$queue/s", 1)
        self.wait(self.publisher)

    # ── the verdict ──────────────────────────────────────────────────────────────────────────────────────

    def verdict(self) -> None:
        """On a broker whose disk errs no more: everything comes. Raises Wrong."""
        reader = Actor("reader", self.book, {"$queue/s": 1}, asked=(("offset", "first"),))
        keeper = Actor("keeper", self.book, {"r/#": 1})
        self.worker.hold = 0
        everybody = [*self.actors, reader, keeper]
        self.actors += [reader, keeper]
        self.wait(*everybody)
        ends = {}
        for topic, receivers in (("t/1", (self.online, self.away)), ("t/2", (self.online, self.away)),
                                 ("$queue/c", (self.worker,)), ("$queue/s", (reader,)), ("$queue/d", (self.other,))):
            sent = self.publisher.publish(topic, 2 if topic == "t/2" else 1, delay_ms=2 if topic == "$queue/d" else 0)
            ends[sent.number] = receivers
        self.wait(*everybody, until=lambda: all(number in self.book.came[actor.name] for number in ends
                                                for actor in ends[number]))
        missing = [
            *self._missing("t/", self.online), *self._missing("t/", self.away), *self._missing("$queue/c", self.worker),
            *self._missing("$queue/s", reader), *self._missing("$queue/d", self.other)]
        if missing:
            raise Lost({text.split()[0] for text in missing}, {int(text.split()[1]) for text in missing},
                       f"confirmed and lost: {', '.join(missing)}")
        self._check_stream(reader)
        self._check_retained(keeper)
        self._check_deleted()
        self.hang_up()

    def _missing(self, topic: str, actor: Actor) -> list[str]:
        came = set(self.book.came[actor.name])
        return [f"{sent.topic} {sent.number} for {actor.name}" for sent in self.book.sent.values()
                if sent.state == "confirmed" and sent.topic.startswith(topic) and sent.number not in came
                and (sent.number >= actor.since or topic[0] == "$")]

    def _check_stream(self, reader: Actor) -> None:
        came = self.book.came[reader.name]
        twice = {number for number in came if came.count(number) > 1 and not self.book.sent[number].again}
        if twice or list(dict.fromkeys(came)) != sorted(set(came)):
            raise Wrong(f"a stream in another order than it was published, or something twice: {came}")

    def _check_retained(self, keeper: Actor) -> None:
        came = max(self.book.came[keeper.name], default=0)
        last = max((sent.number for sent in self.book.sent.values()
                    if sent.topic == "r/k" and sent.state == "confirmed"), default=0)
        if came < last:
            raise Wrong(f"the retained message is {came}, and {last} was confirmed")

    def _check_deleted(self) -> None:
        if "gone" in self.book.deleted:
            sent = self.publisher.publish("$queue/gone", 1)
            self.wait(self.publisher)
            if sent.state != "refused":
                raise Wrong("a queue that was deleted is there again")
