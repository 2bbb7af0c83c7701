"""Clients with the state machines of MQTT 3.1.1 that keep their state over every loss of the connection, and the book in
which they write what was promised and what came.

    Publisher    QoS 1 and 2; what is not acknowledged is sent again with DUP after each reconnect, in order
    Subscriber   QoS 1 and 2; remembers identifiers of QoS 2 between PUBLISH and PUBREL; stays, comes and goes, or
                 stays away until the end; may drop and renew a subscription

Each payload is one number, unique over all publishers, and padding.
"""
from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK = 2, 3, 4, 5, 6, 7, 9, 11
SIZES = (8, 8, 30, 200, 6000)               # bytes of payload; the last is not copied but referenced by the broker
RETRY_SECONDS = 0.02


def string(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def packet(first: int, body: bytes) -> bytes:
    size, length = len(body), bytearray()
    while True:
        size, digit = divmod(size, 128)
        length.append(digit | (128 if size else 0))
        if not size:
            return bytes([first]) + bytes(length) + body


def acknowledgement(kind: int, packet_id: int) -> bytes:
    return bytes([kind << 4 | (2 if kind == PUBREL else 0), 2]) + packet_id.to_bytes(2, "big")


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """(first byte, body)."""
    first = (await reader.readexactly(1))[0]
    size = shift = 0
    while True:
        digit = (await reader.readexactly(1))[0]
        size |= (digit & 127) << shift
        shift += 7
        if digit < 128:
            return first, await reader.readexactly(size)


@dataclass
class Sent:
    """One message of a publisher. Times are ticks of the book."""

    number: int
    topic: str
    qos: int
    begun: int
    acknowledged: int | None = None


@dataclass
class Book:
    """What everybody did, in the order in which the test saw it."""

    clock: int = 0
    messages: dict[int, Sent] = field(default_factory=dict)
    reconnects: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock


class Client:
    """What both have: a connection that is made again whenever it is lost, with Clean Session 0."""

    def __init__(self, book: Book, where: tuple[str, int], name: str, chance: random.Random) -> None:
        self.book, self.where, self.name, self.chance = book, where, name, chance
        self.known = False                  # a CONNACK has said that the broker has our session
        self.stopping = False
        self.connected = False
        self.failure: BaseException | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.packet_id = 0

    def next_packet_id(self, used: dict[int, object]) -> int:
        while True:
            self.packet_id = self.packet_id % 65535 + 1
            if self.packet_id not in used:
                return self.packet_id

    async def run(self) -> None:
        try:
            while not self.done():
                if not self.wants_connection():
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    await self._one_connection()
                self.connected = False
                await asyncio.sleep(RETRY_SECONDS)
        except Exception as error:
            self.failure = error

    async def _one_connection(self) -> None:
        reader, self.writer = await asyncio.open_connection(*self.where)
        try:
            flags = b"\x00"                 # Clean Session 0
            self.writer.write(packet(0x10, string("MQTT") + b"\x04" + flags + b"\x00\x00" + string(self.name)))
            first, body = await read_packet(reader)
            assert first >> 4 == CONNACK and body[1] == 0, (self.name, first, body)
            assert body[0] or not self.known, f"{self.name}: an acknowledged session is gone"
            if not body[0]:
                self.begin_session()
            self.known = self.connected = True
            self.book.reconnects += 1
            self.resume()
            receiving = asyncio.create_task(self._receive(reader))
            try:
                while not self.done() and self.wants_connection():
                    self.work()
                    await self.writer.drain()
                    await asyncio.wait({receiving}, timeout=0.01)
                    if receiving.done():
                        receiving.result()
            finally:
                receiving.cancel()
                await asyncio.wait({receiving})
                error = None if receiving.cancelled() else receiving.exception()
                if isinstance(error, AssertionError):
                    raise error
            if self.chance.random() < 0.5:
                self.writer.write(b"\xe0\x00")
        finally:
            self.connected = False
            self.writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        while True:
            first, body = await read_packet(reader)
            self.on_packet(first, body)
            self.work()

    def send(self, data: bytes) -> None:
        assert self.writer is not None
        if not self.writer.is_closing():
            self.writer.write(data)

    def done(self) -> bool: raise NotImplementedError
    def wants_connection(self) -> bool: return True
    def begin_session(self) -> None: pass
    def resume(self) -> None: pass
    def work(self) -> None: pass
    def on_packet(self, first: int, body: bytes) -> None: raise NotImplementedError


class Publisher(Client):
    """Publishes to its own topics, at most `window` unacknowledged. One QoS per topic, so that each has an order."""

    def __init__(self, book: Book, where: tuple[str, int], name: str, chance: random.Random, window: int = 20) -> None:
        super().__init__(book, where, name, chance)
        self.window = window
        self.topics = [(f"t/{name}/1", 1, 0), (f"t/{name}/2", 2, 0), (f"r/{name}", 1, 1), (f"r/{name}/2", 2, 1)]
        # packet id -> (message, PUBLISH without DUP; None once PUBREC has come); in order of sending
        self.open: dict[int, tuple[Sent, bytes | None]] = {}

    def done(self) -> bool:
        return self.stopping and not self.open

    def resume(self) -> None:
        for packet_id, (_, publish) in self.open.items():
            if publish is None:
                self.send(acknowledgement(PUBREL, packet_id))
            else:
                self.send(bytes([publish[0] | 8]) + publish[1:])

    def work(self) -> None:
        for _ in range(self.chance.randint(0, 4)):
            if self.stopping or len(self.open) >= self.window:
                return
            topic, qos, retain = self.chance.choice(self.topics)
            number = len(self.book.messages) + 1
            sent = self.book.messages[number] = Sent(number, topic, qos, self.book.tick())
            packet_id = self.next_packet_id(self.open)          # type: ignore[arg-type]
            payload = b"%08d" % number + bytes(self.chance.choice(SIZES) - 8)
            publish = packet(0x30 | qos << 1 | retain, string(topic) + packet_id.to_bytes(2, "big") + payload)
            self.open[packet_id] = (sent, publish)
            self.send(publish)

    def on_packet(self, first: int, body: bytes) -> None:
        kind, packet_id = first >> 4, int.from_bytes(body[:2], "big")
        assert kind in (PUBACK, PUBREC, PUBCOMP), (self.name, first, body)
        if packet_id not in self.open:
            return                          # a second PUBREC or PUBCOMP after a reconnect
        sent, publish = self.open[packet_id]
        if kind == PUBREC:
            assert sent.qos == 2
            if publish is not None:
                sent.acknowledged = self.book.tick()
                self.open[packet_id] = (sent, None)
            self.send(acknowledgement(PUBREL, packet_id))
            return
        assert (kind == PUBACK) == (sent.qos == 1), (self.name, "wrong acknowledgement", first, sent)
        if sent.acknowledged is None:
            sent.acknowledged = self.book.tick()
        del self.open[packet_id]


class Subscriber(Client):
    """filter, qos: its subscription. mode: "online", "moving" (comes and goes) or "away" (until `come_back`).

    fickle: from time to time it drops the subscription and takes it again; `subscribed` are the spans of the book's time
    in which the broker had acknowledged it and it had not asked to drop it.
    """

    def __init__(self, book: Book, where: tuple[str, int], name: str, chance: random.Random, *, filter_: str, qos: int,
                 mode: str = "online", fickle: bool = False) -> None:
        super().__init__(book, where, name, chance)
        self.filter, self.qos, self.mode, self.fickle = filter_, qos, mode, fickle
        self.subscribed: list[list[int | None]] = []
        self.wanted = True
        self.asked: tuple[int, bool] | None = None      # (packet id, SUBSCRIBE or UNSUBSCRIBE) that is not answered
        self.delivered: list[int] = []
        self.released_later: set[int] = set()           # QoS 2 identifiers between PUBLISH and PUBREL
        self.away = False
        self.packets = 0

    @property
    def holds(self) -> bool:
        return bool(self.subscribed) and self.subscribed[-1][1] is None

    def done(self) -> bool:
        return self.stopping

    def wants_connection(self) -> bool:
        if self.mode == "moving" and self.chance.random() < 0.02:
            self.away = not self.away
        if self.mode == "away":
            return not self.holds or self.asked is not None
        return not self.away

    def come_back(self) -> None:
        self.mode, self.away, self.fickle, self.wanted = "online", False, False, True

    def resume(self) -> None:
        self.asked = None

    def work(self) -> None:
        if self.asked is not None:
            return
        if self.fickle and self.chance.random() < 0.01:
            self.wanted = not self.wanted
        if self.wanted == self.holds:
            return
        packet_id = self.next_packet_id({})
        self.asked = (packet_id, self.wanted)
        body = packet_id.to_bytes(2, "big") + string(self.filter)
        if self.wanted:
            self.send(packet(0x82, body + bytes([self.qos])))
        else:
            self.subscribed[-1][1] = self.book.tick()
            self.send(packet(0xA2, body))

    def on_packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        self.packets += 1
        if kind in (SUBACK, UNSUBACK):
            assert self.asked is not None and self.asked[0] == int.from_bytes(body[:2], "big")
            if kind == SUBACK:
                assert body[2] == self.qos
                self.subscribed.append([self.book.tick(), None])
            self.asked = None
        elif kind == PUBREL:
            packet_id = int.from_bytes(body[:2], "big")
            self.released_later.discard(packet_id)
            self.send(acknowledgement(PUBCOMP, packet_id))
        else:
            assert kind == PUBLISH, (self.name, first, body)
            self._on_publish(first, body)

    def _on_publish(self, first: int, body: bytes) -> None:
        qos = first >> 1 & 3
        at = 2 + int.from_bytes(body[:2], "big")
        topic, packet_id, payload = body[2:at].decode(), int.from_bytes(body[at:at + 2], "big"), body[at + 2:]
        number = int(payload[:8])
        assert self.book.messages[number].topic == topic, "a payload under another topic"
        assert not any(payload[8:]), "a payload that is not what was sent"
        assert qos == min(self.qos, self.book.messages[number].qos)
        if qos == 1:
            self.delivered.append(number)
            self.send(acknowledgement(PUBACK, packet_id))
            return
        if packet_id not in self.released_later:
            self.released_later.add(packet_id)
            self.delivered.append(number)
        self.send(acknowledgement(PUBREC, packet_id))

    # ── the verdict ──────────────────────────────────────────────────────────────────────────────────────

    def missing(self) -> list[Sent]:
        """Acknowledged messages, published while the subscription certainly was in force, that did not come."""
        came = set(self.delivered)
        prefix = self.filter.removesuffix("#")
        return [sent for sent in self.book.messages.values() if sent.number not in came
                and sent.acknowledged is not None and sent.topic.startswith(prefix)
                and any(begun < sent.begun and (ended is None or sent.acknowledged < ended)     # type: ignore[operator]
                        for begun, ended in self.subscribed)]

    def doubled(self) -> list[Sent]:
        """QoS 2 all the way, and came twice."""
        seen: set[int] = set()
        twice = []
        for number in self.delivered:
            if number in seen and min(self.qos, self.book.messages[number].qos) == 2:
                twice.append(self.book.messages[number])
            seen.add(number)
        return twice

    def disordered(self) -> list[tuple[int, int]]:
        """Pairs of one topic whose first deliveries came the wrong way round [MQTT-4.6.0-5]."""
        last: dict[str, int] = {}
        wrong = []
        for number in dict.fromkeys(self.delivered):
            topic = self.book.messages[number].topic
            if number < last.get(topic, 0):
                wrong.append((last[topic], number))
            last[topic] = max(number, last.get(topic, 0))
        return wrong
