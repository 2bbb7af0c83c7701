"""An AMQP 0-9-1 broker of a few hundred lines, in a thread: enough to run the load generator against, and to lie to it.

It knows queues (a classic or quorum queue shares its messages among consumers, each reader of a stream has all),
fan-out exchanges, confirms, prefetch and acknowledgements. It keeps what it was told, for tests to look at after
`with`. Its encoding is its own, so that the generator's is not tested with itself.
"""
from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Behaviour", "FakeAmqp", "Peer", "frame", "method", "short"]

def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(number: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    return frame(1, channel, struct.pack(">HH", *number) + arguments)


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


class Reader:
    """The arguments of a method, one after the other."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def take(self, size: int) -> bytes:
        assert len(self.raw) >= size, "a method is cut short"
        taken, self.raw = self.raw[:size], self.raw[size:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def short(self) -> str:
        return self.take(self.number(1)).decode()

    def long(self) -> bytes:
        return self.take(self.number(4))

    def table(self) -> dict[str, Any]:
        inner = Reader(self.long())
        found: dict[str, Any] = {}
        while inner.raw:
            name, kind = inner.short(), inner.take(1)
            found[name] = {b"t": lambda: bool(inner.number(1)), b"l": lambda: inner.number(8),
                           b"S": lambda: inner.long().decode(), b"F": inner.table}[kind]()
        return found


@dataclass(kw_only=True)
class Behaviour:
    """How the broker behaves.

    confirm: each publication by itself, all of a read at once ("multiple"), each of a read in reverse order, with
    basic.nack, or never again after the first 50. change: makes of publication n and its payload those that arrive in
    the queue. say: octets for a peer at publication n, before its confirm. greeting: octets instead of
    connection.start. after_handshake: octets for each new peer whose channel is open.
    drip: so many octets to each peer go out one by one. redeliver: every delivery says that it is not the first.
    body_max: octets of payload per body frame sent.
    """

    password: str = "guest"
    frame_max: int = 131072
    mechanisms: str = "AMQPLAIN PLAIN"
    confirm: Literal["each", "multiple", "reverse", "nack", "stop"] = "each"
    change: Callable[[int, bytes], list[bytes]] | None = None
    say: Callable[[int], bytes] | None = None
    greeting: bytes = b""
    after_handshake: bytes = b""
    refuse_queue: str = ""
    drip: int = 0
    redeliver: bool = False
    body_max: int = 1 << 20


@dataclass
class Queue:
    """One queue. waiting: messages that no consumer has room for."""

    durable: bool
    arguments: dict[str, Any]
    waiting: deque[bytes] = field(default_factory=deque)
    consumers: list[Peer] = field(default_factory=list)

    @property
    def stream(self) -> bool:
        return self.arguments.get("x-queue-type") == "stream"


@dataclass(eq=False)
class Peer:
    """One connection, and what is known of its channel."""

    writer: asyncio.StreamWriter
    login: tuple[str, str] = ("", "")
    tuned: tuple[int, int, int] = (0, 0, 0)
    confirms: bool = False
    published: int = 0
    unconfirmed: list[int] = field(default_factory=list)
    returned: int = 0
    prefetch: int = 0
    automatic: bool = False
    consumes: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    waiting: deque[bytes] = field(default_factory=deque)     # of a stream
    delivered: int = 0
    unacked: set[int] = field(default_factory=set)
    acks: list[tuple[int, bool]] = field(default_factory=list)
    written: int = 0
    said_goodbye: bool = False

    @property
    def room(self) -> bool:
        return self.automatic or not self.prefetch or len(self.unacked) < self.prefetch


class FakeAmqp:
    """The broker. addr: HOST:PORT while in its context. The rest is to be read after it."""

    def __init__(self, behaviour: Behaviour | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.tls = tls
        self.queues: dict[str, Queue] = {}
        self.declared: dict[str, Queue] = {}
        self.bindings: dict[str, list[str]] = {}
        self.peers: list[Peer] = []
        self.messages = 0
        self.delivery_modes: set[int] = set()
        self.errors: list[BaseException] = []
        self.addr = ""
        self.handlers: set[asyncio.Task[None]] = set()
        self.listening = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.serve()), daemon=True)

    def __enter__(self) -> FakeAmqp:
        self.thread.start()
        assert self.listening.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        """Wait until every connection has ended, so that nothing is on its way when a test looks."""
        self.loop.call_soon_threadsafe(self.ending.set)
        self.thread.join(20)
        assert not self.thread.is_alive(), "a connection was left open"
        if self.errors:
            raise self.errors[0]

    async def serve(self) -> None:
        self.loop, self.ending = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self.meet, "127.0.0.1", 0, ssl=self.tls)
        self.addr = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.listening.set()
        await self.ending.wait()
        server.close()
        while self.handlers:
            await asyncio.wait(self.handlers)

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.handlers.add(task)
        peer = Peer(writer)
        self.peers.append(peer)
        try:
            await Conversation(self, peer, reader).hold()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except BaseException as error:
            self.errors.append(error)
        finally:
            for queue in self.queues.values():
                if peer in queue.consumers:
                    queue.consumers.remove(peer)
            writer.close()
            self.handlers.discard(task)

    # --- queues ---------------------------------------------------------------------------------------------------

    def write(self, peer: Peer, data: bytes) -> None:
        """A transport that has nothing to send passes on at once what it is given: an octet is a segment."""
        slowly = min(max(self.behaviour.drip - peer.written, 0), len(data))
        for at in range(slowly):
            peer.writer.write(data[at:at + 1])
        peer.writer.write(data[slowly:])
        peer.written += len(data)

    def put(self, name: str, payload: bytes) -> None:
        queue = self.queues.get(name)
        if queue is None:
            return              # deleted, while this was on its way
        if queue.stream:
            for reader in queue.consumers:
                reader.waiting.append(payload)
        else:
            queue.waiting.append(payload)

    def pump(self) -> None:
        """Deliver what can be delivered; consumers that share take turns."""
        for queue in self.queues.values():
            for reader in queue.consumers:
                while reader.waiting and reader.room:
                    self.deliver(reader, reader.waiting.popleft())
            while queue.waiting and any(peer.room for peer in queue.consumers):
                queue.consumers.append(queue.consumers.pop(0))
                if queue.consumers[-1].room:
                    self.deliver(queue.consumers[-1], queue.waiting.popleft())

    def deliver(self, peer: Peer, payload: bytes) -> None:
        peer.delivered += 1
        if not peer.automatic:
            peer.unacked.add(peer.delivered)
        self.write(peer, method((60, 60), short("c") + struct.pack(">Q?", peer.delivered, self.behaviour.redeliver)
                                + short("") + short(peer.consumes)) + self.content(payload))

    def content(self, payload: bytes) -> bytes:
        step = min(self.behaviour.body_max, self.behaviour.frame_max - 8)
        bodies = [payload[at:at + step] for at in range(0, len(payload), step)]
        # With a property: where the header frame ends is for its reader to know.
        return (frame(2, 1, struct.pack(">HHQH", 60, 0, len(payload), 0x8000) + short("text/plain"))
                + b"".join(frame(3, 1, body) for body in bodies))


class Conversation:
    """One connection from its first octet to its last."""

    def __init__(self, broker: FakeAmqp, peer: Peer, reader: asyncio.StreamReader) -> None:
        self.broker = broker
        self.peer = peer
        self.reader = reader
        self.publishing: tuple[str, str] | None = None
        self.expected = 0
        self.payload = b""

    async def hold(self) -> None:
        assert await self.reader.readexactly(8) == b"AMQP\x00\x00\x09\x01"
        if self.broker.behaviour.greeting:
            self.broker.write(self.peer, self.broker.behaviour.greeting)
            return
        product = short("product") + b"S" + long(b"Fake") + short("version") + b"S" + long(b"1.2")
        more = short("list") + b"A" + long(b"I" + struct.pack(">i", -3) + b"V") + short("share") + b"d" + bytes(8)
        self.say((10, 10), bytes([0, 9]) + long(product + more) + long(self.broker.behaviour.mechanisms.encode())
                 + long(b"en_US"), channel=0)
        data = b""
        while not self.peer.said_goodbye:
            got = await self.reader.read(1 << 16)
            if not got:
                return
            data += got
            while len(data) >= 7 and len(data) >= (size := struct.unpack(">I", data[3:7])[0]) + 8:
                assert data[7 + size] == 0xCE
                assert size + 8 <= self.broker.behaviour.frame_max
                self.take(data[0], data[7:7 + size])
                data = data[size + 8:]
            self.settle()
            self.broker.pump()
            await self.peer.writer.drain()

    def say(self, number: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> None:
        self.broker.write(self.peer, method(number, arguments, channel))

    def refuse(self, number: tuple[int, int], code: int, text: str) -> None:
        self.say(number, struct.pack(">H", code) + short(text) + bytes(4), channel=0 if number[0] == 10 else 1)

    def take(self, kind: int, payload: bytes) -> None:
        if kind == 1:
            self.obey(struct.unpack(">HH", payload[:4]), Reader(payload[4:]))
        elif kind == 2:
            _, _, self.expected, flags = struct.unpack_from(">HHQH", payload)
            assert flags == 0x1000, "the generator says the delivery mode and nothing else"
            self.broker.delivery_modes.add(payload[14])
            self.payload = b""
        elif kind == 3:
            self.payload += payload
            assert len(self.payload) <= self.expected
            if len(self.payload) == self.expected:
                self.route()

    def obey(self, number: tuple[int, int], said: Reader) -> None:
        if number[0] in (10, 20, 85):
            self.obey_connection(number, said)
        elif number[0] in (40, 50):
            self.obey_topology(number, said)
        else:
            self.obey_basic(number, said)

    def obey_connection(self, number: tuple[int, int], said: Reader) -> None:
        peer, behaviour = self.peer, self.broker.behaviour
        if number == (10, 11):
            assert said.table()["capabilities"]["connection.blocked"] is True
            assert said.short() == "PLAIN"
            _, user, password = said.long().decode().split("\0")
            peer.login = (user, password)
            if password != behaviour.password:
                self.refuse((10, 50), 403, "ACCESS_REFUSED - wrong password")
                return
            self.say((10, 30), struct.pack(">HIH", 2047, behaviour.frame_max, 60), channel=0)
        elif number == (10, 31):
            peer.tuned = struct.unpack(">HIH", said.take(8))
        elif number == (10, 40):
            assert said.short() == "/"
            self.say((10, 41), short(""), channel=0)
        elif number == (20, 10):
            self.say((20, 11), long(b""))
            self.broker.write(peer, behaviour.after_handshake)
        elif number == (85, 10):
            peer.confirms = True
            self.say((85, 11))
        elif number == (10, 50):
            assert said.number(2) == 200
            peer.said_goodbye = True
            self.say((10, 51), channel=0)

    def obey_topology(self, number: tuple[int, int], said: Reader) -> None:
        broker = self.broker
        said.take(2)
        name = said.short()
        if number == (50, 10):
            bits, arguments = said.number(1), said.table()
            if bits & 1 and name not in broker.queues:
                self.refuse((20, 40), 404, f"NOT_FOUND - no queue {name}")
                return
            if bits & 1:
                self.say((50, 11), short(name) + bytes(8))
                return
            durable = bool(bits & 2)
            if arguments.get("x-queue-type") == broker.behaviour.refuse_queue:
                self.refuse((20, 40), 406, "PRECONDITION_FAILED - no such type of queue")
                return
            broker.queues[name] = broker.declared[name] = Queue(durable, arguments)
            self.say((50, 11), short(name) + bytes(8))
        elif number == (50, 20):
            broker.bindings[said.short()].append(name)
            self.say((50, 21))
        elif number == (50, 40):
            del broker.queues[name]
            self.say((50, 41), bytes(4))
        elif number == (40, 10):
            assert said.short() == "fanout"
            broker.bindings[name] = []
            self.say((40, 11))
        elif number == (40, 20):
            del broker.bindings[name]
            self.say((40, 21))

    def obey_basic(self, number: tuple[int, int], said: Reader) -> None:
        peer = self.peer
        if number == (60, 10):
            said.take(4)
            peer.prefetch = said.number(2)
            self.say((60, 11))
        elif number == (60, 20):
            said.take(2)
            peer.consumes = said.short()
            assert said.short() == "c"
            peer.automatic = bool(said.number(1) & 2)
            peer.arguments = said.table()
            self.broker.queues[peer.consumes].consumers.append(peer)
            self.say((60, 21), short("c"))
        elif number == (60, 40):
            said.take(2)
            self.publishing = (said.short(), said.short())
        elif number == (60, 80):
            tag, multiple = said.number(8), bool(said.number(1))
            peer.acks.append((tag, multiple))
            acked = {one for one in peer.unacked if one <= tag} if multiple else {tag}
            assert acked <= peer.unacked and acked, "acknowledges what was not delivered"
            peer.unacked -= acked

    def route(self) -> None:
        """A whole message is there."""
        assert self.publishing is not None
        exchange, key = self.publishing
        broker, peer, behaviour = self.broker, self.peer, self.broker.behaviour
        number = broker.messages
        broker.messages += 1
        peer.published += 1
        peer.unconfirmed.append(peer.published)
        if behaviour.say is not None:
            broker.write(peer, behaviour.say(number))
        for payload in behaviour.change(number, self.payload) if behaviour.change else [self.payload]:
            for name in broker.bindings[exchange] if exchange else [key]:
                broker.put(name, payload)

    def settle(self) -> None:
        """Confirm what was published in one read."""
        tags, self.peer.unconfirmed = self.peer.unconfirmed, []
        if not self.peer.confirms or not tags:
            return
        how = self.broker.behaviour.confirm
        if how == "multiple":
            self.say((60, 80), struct.pack(">Q?", tags[-1], True))
            return
        for tag in reversed(tags) if how == "reverse" else tags:
            if how == "nack":
                self.say((60, 120), struct.pack(">QB", tag, 0))
            elif how != "stop" or tag <= 50:
                self.say((60, 80), struct.pack(">Q?", tag, False))
