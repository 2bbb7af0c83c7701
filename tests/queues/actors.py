"""Publishers and consumers of one queue that never lose their nerve, and the book that says afterwards what was lost.

    Sender     QoS 1, a window of unacknowledged messages; with a producer-id it publishes again what was not answered
    Worker     a consumer of one group: `manual` settles by `$ack`, or gives back by `$nack`; `auto` by PUBACK, or
               refuses with a reason

A payload is a number, unique over all senders. What a broker may never do is an AssertionError as soon as it happens.
"""
from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from oracle.mqtt import V5, Connack, Connect, Packet, Puback, Publish, Suback, Subscribe, parse

__all__ = ["Actor", "Book", "Sender", "Worker"]

RETRY_SECONDS = 0.02
SIZES = (8, 30, 200, 5000)
REFUSED = 0x80


@dataclass
class Book:
    """confirmed: sent and acknowledged. delivered: by group, number → the message-ids under which it came. counts: by
    (group, message-id) the last delivery count. settled: by group, the message-ids whose settling was confirmed."""

    queue: str
    sent: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    once: set[int] = field(default_factory=set)         # of these no second copy may ever be appended
    delivered: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    settled: dict[str, set[str]] = field(default_factory=dict)
    refused: int = 0                                    # publishes that were answered with a reason
    packets: int = 0                                    # received by anybody
    next_number: int = 0

    def came(self, group: str, packet: Publish) -> str:
        """A delivery, checked against all that is known. Returns its message-id."""
        told = dict(packet.props("user_property"))
        number, name, count = int(packet.payload[:8]), told["message-id"], int(told["delivery-count"])
        assert number in self.sent, f"{number} was never sent"
        assert not any(packet.payload[8:]), "a payload that is not what was sent"
        assert told["queue"] == self.queue and told["group-id"] == group
        assert (told.get("redelivered") == "true") == (count > 1), told
        assert name not in self.settled.setdefault(group, set()), f"{name} was settled by {group}, and comes again"
        before = self.counts.get((group, name), 0)
        assert count > before, f"{name} of {group} came as delivery {count} after {before}"
        self.counts[group, name] = count
        names = self.delivered.setdefault(group, {}).setdefault(number, set())
        names.add(name)
        assert number not in self.once or len(names) == 1, f"{number} was appended twice: {names}"
        return name

    def missing(self, group: str) -> set[int]:
        """Confirmed, and this group has not seen it."""
        return self.confirmed - set(self.delivered.get(group, ()))


class Actor:
    """A client with a session that ends with its connection, which is made again whenever it is lost."""

    def __init__(self, book: Book, where: tuple[str, int], name: str, chance: random.Random) -> None:
        self.book, self.where, self.name, self.chance = book, where, name, chance
        self.stopping = False
        self.failure: BaseException | None = None
        self.writer: asyncio.StreamWriter | None = None
        self._packet_id = 0

    def packet_id(self, used: dict[int, Any]) -> int:
        while True:
            self._packet_id = self._packet_id % 65535 + 1
            if self._packet_id not in used:
                return self._packet_id

    async def run(self) -> None:
        try:
            while not self.done():
                with contextlib.suppress(OSError, EOFError):
                    await self._one_connection()
                await asyncio.sleep(RETRY_SECONDS)
        except Exception as error:
            self.failure = error

    def send(self, *packets: Packet) -> None:
        assert self.writer is not None
        if not self.writer.is_closing():
            self.writer.write(b"".join(packet.encode(V5) for packet in packets))

    async def _one_connection(self) -> None:
        reader, self.writer = await asyncio.open_connection(*self.where)
        buffer, begun = b"", False
        try:
            self.send(Connect(client_id=self.name, properties={"receive_maximum": 200}))
            while not self.done():
                if begun:
                    self.work()
                    await self.writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        data = await reader.read(65536)
                        if not data:
                            return
                        buffer += data
                while (found := parse(buffer, V5)) is not None:
                    packet, buffer = found
                    self.book.packets += 1
                    if isinstance(packet, Connack):
                        assert packet.reason == 0, packet
                        self.begin()
                        begun = True
                    else:
                        self.on_packet(packet)
                if begun and self.wants_to_leave():
                    return
        finally:
            self.writer.close()

    def done(self) -> bool:
        return self.stopping

    def begin(self) -> None:
        raise NotImplementedError

    def work(self) -> None:
        pass

    def on_packet(self, packet: Packet) -> None:
        raise NotImplementedError

    def wants_to_leave(self) -> bool:
        return False


class Sender(Actor):
    """window: messages without an answer. producer: publishes them again when the connection was lost."""

    def __init__(self, book: Book, where: tuple[str, int], name: str, chance: random.Random, *, window: int = 40,
                 producer: bool = False, pause: float = 0.0) -> None:
        super().__init__(book, where, name, chance)
        self.window, self.producer, self.pause = window, producer, pause
        self.under_way: dict[int, int] = {}             # Packet Identifier → number
        self.again: deque[int] = deque()
        self.sequences: dict[int, int] = {}             # number → producer-sequence: counted up without gaps
        self.finishing = False

    def done(self) -> bool:
        return self.stopping or (self.finishing and not self.under_way and not self.again)

    def begin(self) -> None:
        if self.producer:
            self.again.extendleft(reversed(self.under_way.values()))
        self.under_way.clear()

    def work(self) -> None:
        for _ in range(8):                              # at most, so that it is a stream and not a burst
            if len(self.under_way) >= self.window or (self.finishing and not self.again):
                return
            if self.again:
                number = self.again.popleft()
            else:
                number = self.book.next_number
                self.book.next_number += 1
                self.book.sent.add(number)
                if self.producer:
                    self.book.once.add(number)
                    self.sequences[number] = len(self.sequences)
            packet_id = self.packet_id(self.under_way)
            self.under_way[packet_id] = number
            size = SIZES[number % len(SIZES)]
            pairs = [("producer-id", self.name), ("producer-sequence", str(self.sequences[number]))] if (
                self.producer) else []
            self.send(Publish(topic=f"$queue/{self.book.queue}", payload=b"%08d" % number + bytes(size - 8), qos=1,
                              packet_id=packet_id, properties=[("user_property", pair) for pair in pairs]))

    def on_packet(self, packet: Packet) -> None:
        assert isinstance(packet, Puback), packet
        number = self.under_way.pop(packet.packet_id)
        if packet.reason < REFUSED:
            self.book.confirmed.add(number)
            return
        assert packet.reason == 0x97, packet
        self.book.refused += 1
        if self.producer:
            self.again.append(number)


class Worker(Actor):
    """group: of which it is a member. manual: how it settles. steady: it neither gives back nor leaves any more."""

    def __init__(self, book: Book, where: tuple[str, int], name: str, chance: random.Random, *, group: str,
                 manual: bool, prefetch: int = 30) -> None:
        super().__init__(book, where, name, chance)
        self.group, self.manual, self.prefetch = group, manual, prefetch
        self.asked: dict[int, tuple[str, str]] = {}     # Packet Identifier → (verb, message-id)
        self.steady = False
        self.nacked: set[str] = set()

    def begin(self) -> None:
        self.asked.clear()
        properties = [("user_property", pair) for pair in (
            ("consumer-group", self.group), ("ack", "manual" if self.manual else "auto"),
            ("prefetch", str(self.prefetch)), ("visibility-timeout", "0"))]
        packet_id = self.packet_id(self.asked)
        self.send(Subscribe(packet_id=packet_id, filters=[(f"$queue/{self.book.queue}", 1)], properties=properties))

    def on_packet(self, packet: Packet) -> None:
        match packet:
            case Suback():
                assert packet.reasons == [1], packet
            case Publish():
                self._on_delivery(packet)
            case Puback():
                verb, name = self.asked.pop(packet.packet_id)
                # Nobody else can have it: no lease ends here, and this connection lives.
                assert packet.reason == 0, (verb, name, packet)
                if verb == "$ack":
                    self.book.settled.setdefault(self.group, set()).add(name)
            case _:
                raise AssertionError(packet)

    def _on_delivery(self, packet: Publish) -> None:
        assert packet.packet_id is not None
        name = self.book.came(self.group, packet)
        gives_back = not self.steady and self.chance.random() < 0.05
        if not self.manual:
            self.send(Puback(packet_id=packet.packet_id, reason=REFUSED if gives_back else 0))
            return
        verb, more = ("$nack", [("delay", str(self.chance.choice((0, 20))))]) if gives_back else ("$ack", [])
        packet_id = self.packet_id(self.asked)
        self.asked[packet_id] = (verb, name)
        pairs = [("message-id", name), ("group-id", self.group), *more]
        self.send(Puback(packet_id=packet.packet_id),
                  Publish(topic=f"$queue/{self.book.queue}/{verb}", qos=1, packet_id=packet_id,
                          properties=[("user_property", pair) for pair in pairs]))

    def wants_to_leave(self) -> bool:
        return not self.steady and self.chance.random() < 0.003
