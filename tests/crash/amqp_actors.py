"""Clients of AMQP 0-9-1 that never lose their nerve, and the book that says afterwards what was lost.

    Publisher    publisher confirms, a window of some hundred; nothing is published twice
    Settler      acknowledges, now and then several at once, and gives some back; learns what is on disk
    Mover        takes from one queue and puts into two others, in transactions
    Undertaker   rejects, so that what it gets goes to the dead letters; keeps some in hand until it is cut off

A body is a number, unique over all publishers, and padding. Threads over the bare wire of tests/kit/amqp_wire.py: each
makes its connection anew whenever it is lost. What a broker may never do is a failure as soon as it happens.

An acknowledgement has no answer. What says that it is on disk is a confirm for something published later: batches of
the journal become durable in their order. `Settler` asks for one after a round trip, so that it is of a later turn.
Where a transaction acknowledges, tx.commit-ok says it.
"""
from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

from kit.amqp_wire import Closed, Wire
from oracle.amqp091 import METHOD, Content, encode_frame, encode_method

__all__ = ["Actor", "Book", "Mover", "Publisher", "Settler", "Undertaker", "body_of", "drain", "number_of"]

RETRY_SECONDS = 0.02
GETS = 100              # in one breath
SIZES = (8, 8, 40, 300, 6000, 200_000)
PERSISTENT = {"delivery_mode": 2}


def body_of(number: int) -> bytes:
    return b"%08d" % number + bytes(SIZES[number % len(SIZES)] - 8)


def number_of(content: Content) -> int:
    assert not any(content.body[8:]), "a body that is not what was sent"
    number = int(content.body[:8])
    assert len(content.body) == SIZES[number % len(SIZES)]
    return number


@dataclass
class Book:
    """What everybody did. By routing key: sent, confirmed. By queue: delivered, and of what the settling is on disk."""

    sent: dict[str, set[int]] = field(default_factory=dict)
    confirmed: dict[str, set[int]] = field(default_factory=dict)
    delivered: dict[str, set[int]] = field(default_factory=dict)
    settled: dict[str, set[int]] = field(default_factory=dict)
    committed: int = 0                  # transactions
    came_back: int = 0
    _next: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def number(self) -> int:
        with self._lock:
            self._next += 1
            return self._next

    def came(self, queue: str, content: Content) -> int:
        """A delivery, checked against all that is known."""
        number, seen = number_of(content), self.delivered.setdefault(queue, set())
        assert any(number in sent for sent in self.sent.values()), f"{number} was never sent"
        assert number not in self.settled.setdefault(queue, set()), f"{number} was settled in {queue}, and comes again"
        if number in seen:
            self.came_back += 1
            assert content.arguments["redelivered"], f"{number} comes again to {queue} and does not say so"
        seen.add(number)
        return number


class Actor(threading.Thread):
    """finish: ends it, once nothing that it did waits for an answer."""

    def __init__(self, book: Book, where: tuple[str, int], chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.book, self.where, self.chance = book, where, chance
        self.finishing = False
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.finishing:
                wire = None
                try:
                    wire = Wire(self.where)
                    wire.login()
                    wire.open_channel(1)
                    self.live(wire)
                    wire.close()
                except (OSError, Closed):
                    time.sleep(RETRY_SECONDS)
                finally:
                    if wire is not None:
                        wire.drop()
        except BaseException as error:
            self.failure = error

    def live(self, wire: Wire) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.finishing = True
        self.join(60)
        assert not self.is_alive(), f"{type(self).__name__} does not end"
        if self.failure is not None:
            raise self.failure


class Publisher(Actor):
    """keys: among which it chooses."""

    def __init__(self, book: Book, where: tuple[str, int], chance: random.Random, keys: tuple[str, ...],
                 window: int = 300) -> None:
        super().__init__(book, where, chance)
        self.keys, self.window = keys, window

    def live(self, wire: Wire) -> None:
        wire.call(1, "confirm.select")
        under_way: dict[int, tuple[str, int]] = {}
        tag = 0
        while under_way or not self.finishing:
            made = []
            while len(under_way) < self.window and len(made) < 40 and not self.finishing:
                key, number = self.chance.choice(self.keys), self.book.number()
                tag += 1
                under_way[tag] = key, number
                self.book.sent.setdefault(key, set()).add(number)
                made.append(wire.encode_publish(1, "in", f"{key}.{number}", body_of(number), PERSISTENT,
                                                mandatory=True))
            wire.send_raw(b"".join(made))
            while wire.ready(0.02):
                name, found = wire.next(1)
                assert name == "basic.ack", (name, found)
                assert isinstance(found, dict)
                upto = found["delivery_tag"]
                for each in [each for each in under_way if each == upto or (found["multiple"] and each < upto)]:
                    key, number = under_way.pop(each)
                    self.book.confirmed.setdefault(key, set()).add(number)


class Consumer(Actor):
    """queue: from which it takes; prefetch of its one consumer."""

    def __init__(self, book: Book, where: tuple[str, int], chance: random.Random, queue: str,
                 prefetch: int = 60) -> None:
        super().__init__(book, where, chance)
        self.queue, self.prefetch = queue, prefetch

    def live(self, wire: Wire) -> None:
        self.begin(wire)
        wire.call(1, "basic.qos", prefetch_count=self.prefetch)
        wire.call(1, "basic.consume", queue=self.queue)
        while not self.finishing:
            if not wire.ready(0.02):
                self.idle(wire)
                continue
            content = wire.expect_content(1)
            self.take(wire, self.book.came(self.queue, content), content.arguments["delivery_tag"])
        self.idle(wire)

    def begin(self, wire: Wire) -> None:
        pass

    def take(self, wire: Wire, number: int, tag: int) -> None:
        raise NotImplementedError

    def idle(self, wire: Wire) -> None:
        pass


class Settler(Consumer):
    def begin(self, wire: Wire) -> None:
        wire.open_channel(2)
        wire.call(2, "confirm.select")
        self.open: list[int] = []               # delivered and not acknowledged
        self.said: list[int] = []               # acknowledged; whether that is on disk is not known yet

    def take(self, wire: Wire, number: int, tag: int) -> None:
        if self.chance.random() < 0.05:
            wire.send(1, "basic.nack", delivery_tag=tag, requeue=True)
            return
        self.open.append(number)
        if len(self.open) > self.chance.randrange(12):
            wire.send(1, "basic.ack", delivery_tag=tag, multiple=True)
            self.said += self.open
            self.open.clear()
        if len(self.said) > 100:
            self.idle(wire)

    def idle(self, wire: Wire) -> None:
        if not self.said:
            return
        wire.call(1, "channel.flow", active=True)
        wire.publish(2, "", "marks", b"", PERSISTENT)
        wire.expect(2, "basic.ack")
        self.book.settled.setdefault(self.queue, set()).update(self.said)
        self.said.clear()


class Mover(Consumer):
    """to: the queues into which everything goes, in the transaction that takes it away."""

    to = ("left", "right")

    def begin(self, wire: Wire) -> None:
        wire.call(1, "tx.select")
        self.hand: list[tuple[int, int]] = []

    def take(self, wire: Wire, number: int, tag: int) -> None:
        self.hand.append((number, tag))
        if len(self.hand) > self.chance.randrange(20):
            self.idle(wire)

    def idle(self, wire: Wire) -> None:
        if not self.hand:
            return
        if self.chance.random() < 0.1:
            self._say(wire)
            wire.call(1, "tx.rollback")
        self._say(wire)
        wire.call(1, "tx.commit")
        self.book.committed += 1
        self.book.settled.setdefault(self.queue, set()).update(number for number, _ in self.hand)
        self.hand.clear()

    def _say(self, wire: Wire) -> None:
        made = []
        for number, tag in self.hand:
            made += [wire.encode_publish(1, "", queue, body_of(number), PERSISTENT) for queue in self.to]
            made.append(self._ack(tag))
        wire.send_raw(b"".join(made))

    @staticmethod
    def _ack(tag: int) -> bytes:
        return encode_frame(METHOD, 1, encode_method("basic.ack", delivery_tag=tag))


class Undertaker(Consumer):
    def take(self, wire: Wire, number: int, tag: int) -> None:
        if self.chance.random() < 0.9:
            wire.send(1, "basic.reject", delivery_tag=tag, requeue=False)


def drain(wire: Wire, queue: str) -> list[Content]:
    """All that is left in a queue, in its order. Asked for in one breath, or each message would wait for the disk."""
    found: list[Content] = []
    asked = encode_frame(METHOD, 1, encode_method("basic.get", queue=queue, no_ack=True))
    while True:
        wire.send_raw(asked * GETS)
        named = [wire.next(1) for _ in range(GETS)]
        assert {name for name, _ in named} <= {"basic.get-ok", "basic.get-empty"}
        answers = [answer for _, answer in named]
        found += [answer for answer in answers if isinstance(answer, Content)]
        if not isinstance(answers[-1], Content):
            return found
