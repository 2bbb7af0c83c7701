"""The order of system calls: no byte that promises something leaves before the fdatasync of its batch has returned.

The broker runs under a library that logs what it receives, writes, syncs and sends (trace.c). From the log alone:

    PUBACK, PUBREC      after the sync of the MESSAGE or RETAINED record with that payload
    PUBCOMP             after as many COMPLETED records of that session and identifier as there are answers
    CONNACK, SUBACK     after the SESSION and the SUBSCRIBE record
    PUBLISH of QoS 2    to a kept session, after the MESSAGE record; PUBREL after its RELEASED record
"""
from __future__ import annotations

import asyncio
import os
import random
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
from crash.actors import Book, Publisher, Subscriber
from crash.process import CrashBroker, build_library
from crash.test_kill import until
from kit.client import Client
from kit.tools import require_tool
from oracle.mqtt import Publish
from oracle.stored import records

SESSION, SUBSCRIBE, MESSAGE, RELEASED, COMPLETED, RETAINED = 1, 3, 5, 8, 10, 15  # fluxmq/_core/disk/record_kinds.pxd
PUBACKS_MIN = 100
Event = tuple[str, int, bytes]


def read_log(path: Path) -> Iterator[Event]:
    data = path.read_bytes()
    at = 0
    while at < len(data):
        kind, fd, length = struct.unpack_from("=cII", data, at)
        yield kind.decode(), fd, data[at + 9:at + 9 + length]
        at += 9 + length


def packets(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Takes whole packets off the front."""
    while len(buffer) >= 2:
        size = shift = 0
        at = 1
        while at < len(buffer):
            size |= (buffer[at] & 127) << shift
            shift += 7
            at += 1
            if buffer[at - 1] < 128:
                break
        else:
            return
        if len(buffer) < at + size:
            return
        first, body = buffer[0], bytes(buffer[at:at + size])
        del buffer[:at + size]
        yield first, body


def number_in(first: int, body: bytes) -> bytes:
    """The number that the actors put in front of each payload of QoS 1 and 2."""
    at = 2 + int.from_bytes(body[:2], "big") + 2
    return body[at:at + 8]


class Judge:
    """Reads the events in order; `broken` are the promises that left too early, `kept` how many were looked at."""

    def __init__(self) -> None:
        self.durable: Counter[tuple[object, ...]] = Counter()           # facts that are on the medium by now
        self.written: dict[int, list[tuple[object, ...]]] = defaultdict(list)     # descriptor -> facts since its sync
        self.synced: list[tuple[object, ...]] = []
        self.names: dict[int, str] = {}                                  # session number -> client
        self.clients: dict[int, str] = {}                                # descriptor -> client
        self.inbound: dict[int, bytearray] = defaultdict(bytearray)
        self.outbound: dict[int, bytearray] = defaultdict(bytearray)
        self.leaving: dict[int, bytes] = {}
        self.published: dict[tuple[str, int], bytes] = {}
        self.asked: dict[tuple[str, int], bytes] = {}
        self.answers: Counter[tuple[object, ...]] = Counter()
        self.kept: Counter[str] = Counter()
        self.broken: list[str] = []

    def read(self, events: Iterator[Event]) -> None:
        for kind, fd, data in events:
            if kind == "w":
                self.written[fd] += self._facts(data)
            elif kind == "s":
                self.synced += self.written.pop(fd, [])
                if not self.leaving:
                    self._count()
            elif kind == "r":
                self._received(fd, data)
            elif kind == "o":
                self.leaving[fd] = data
            else:
                done = struct.unpack("=q", data)[0]
                self.outbound[fd] += self.leaving.pop(fd, b"")[:max(done, 0)]
                for first, body in packets(self.outbound[fd]):
                    self._judge(fd, first, body)
                self._count()

    def _count(self) -> None:
        """What was synced counts from here on; for a send that is under way it came too late."""
        self.durable.update(self.synced)
        self.synced.clear()

    def _facts(self, data: bytes) -> list[tuple[object, ...]]:
        if data[:4] == b"FMQJ":
            return []
        length = struct.unpack_from("<I", data, 16)[0]
        facts: list[tuple[object, ...]] = []
        for kind, body in records(data[32:32 + length]):
            session = int.from_bytes(body[:8], "big")
            if kind == SESSION:
                self.names[session] = msgspec.msgpack.decode(body[8:])[0].decode()
                facts.append((SESSION, self.names[session]))
            elif kind == SUBSCRIBE:
                facts.append((SUBSCRIBE, self.names[session], msgspec.msgpack.decode(body[8:])[0]))
            elif kind == MESSAGE:
                topic, properties = struct.unpack_from(">HI", body, 17)
                facts.append((MESSAGE, body[31 + topic + properties:][:8]))
            elif kind == RETAINED:
                topic, properties = struct.unpack_from(">HI", body, 17)
                facts.append((MESSAGE, body[27 + topic + properties:][:8]))
            elif kind == RELEASED:
                facts.append((RELEASED, self.names[session]))
            elif kind == COMPLETED:
                facts.append((COMPLETED, self.names[session], int.from_bytes(body[8:10], "big")))
        return facts

    def _received(self, fd: int, data: bytes) -> None:
        if data[:1] == b"\x10" and data[4:8] == b"MQTT":        # a new connection under a descriptor used before
            self.inbound[fd].clear()
            self.outbound[fd].clear()
        self.inbound[fd] += data
        for first, body in packets(self.inbound[fd]):
            name = self.clients.get(fd, "")
            if first >> 4 == 1:
                self.clients[fd] = body[12:].decode()
            elif first >> 4 == 3 and first & 6:
                at = 2 + int.from_bytes(body[:2], "big")
                self.published[name, int.from_bytes(body[at:at + 2], "big")] = number_in(first, body)
            elif first >> 4 == 8:
                self.asked[name, int.from_bytes(body[:2], "big")] = body[4:-1]

    def _judge(self, fd: int, first: int, body: bytes) -> None:
        kind, name = first >> 4, self.clients[fd]
        packet_id = int.from_bytes(body[:2], "big")
        if kind == 2:
            self._promise("CONNACK", (SESSION, name), counted=True)
        elif kind == 3 and first & 6 == 4:
            self._promise("PUBLISH", (MESSAGE, number_in(first, body)))
        elif kind in (4, 5):
            self._promise("PUBACK" if kind == 4 else "PUBREC", (MESSAGE, self.published[name, packet_id]))
        elif kind == 6:
            self._promise("PUBREL", (RELEASED, name), counted=True)
        elif kind == 7:
            self._promise("PUBCOMP", (COMPLETED, name, packet_id), counted=True)
        elif kind == 9:
            self._promise("SUBACK", (SUBSCRIBE, name, self.asked[name, packet_id]), counted=True)

    def _promise(self, what: str, fact: tuple[object, ...], counted: bool = False) -> None:
        self.kept[what] += 1
        if counted:
            self.answers[fact] += 1
        if self.durable[fact] < (self.answers[fact] if counted else 1):
            self.broken.append(f"{what} {fact}")


async def some_load(broker: CrashBroker, seconds: float, enough: int) -> None:
    """For so long, and until so many messages of QoS 1 and of QoS 2 are acknowledged."""
    book, chance = Book(), random.Random(5)
    subscribers = [Subscriber(book, broker.address, f"s{qos}", chance, filter_="t/#", qos=qos) for qos in (1, 2)]
    publishers = [Publisher(book, broker.address, f"p{n}", chance) for n in range(3)]
    everybody = [*subscribers, *publishers]
    tasks = [asyncio.create_task(each.run()) for each in subscribers]
    await until(everybody, lambda: all(s.holds for s in subscribers), "subscribe")
    tasks += [asyncio.create_task(each.run()) for each in publishers]
    await asyncio.sleep(seconds)
    await until(everybody, lambda: all(sum(sent.acknowledged is not None and sent.qos == qos
                                           for sent in book.messages.values()) > enough for qos in (1, 2)), "publish")
    for publisher in publishers:
        publisher.stopping = True
    await until(everybody, lambda: all(p.done() for p in publishers), "finish")
    await until(everybody, lambda: not any(s.missing() or s.released_later for s in subscribers), "get everything")
    for subscriber in subscribers:
        subscriber.stopping = True
    await asyncio.gather(*tasks)


def test_nothing_is_promised_before_its_sync(tmp_path: Path) -> None:
    require_tool("gcc", package="gcc")
    log = tmp_path / "trace"
    broker = CrashBroker(tmp_path / "broker", environ={
        "LD_PRELOAD": str(build_library(Path(__file__).with_name("trace.c"), tmp_path)), "TRACE_LOG": str(log)})
    broker.start()
    try:
        asyncio.run(some_load(broker, 1.0, PUBACKS_MIN))
        code = broker.terminate()
        assert code == 0, broker.stderr()[-3000:]
    finally:
        broker.stop()
    judge = Judge()
    judge.read(read_log(log))
    assert not judge.broken, judge.broken[:10]
    assert not {"CONNACK", "SUBACK", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "PUBLISH"} - set(judge.kept), judge.kept
    assert judge.kept["PUBACK"] > PUBACKS_MIN


def test_the_judge_sees_a_promise_without_its_sync(tmp_path: Path) -> None:
    """In buffered mode acknowledgements leave after the write: the judge must say so."""
    require_tool("gcc", package="gcc")
    log = tmp_path / "trace"
    buffered: dict[str, object] = {"storage.session_durability": "buffered", "storage.sync_interval": "10s"}
    broker = CrashBroker(tmp_path / "broker", buffered, {
        "LD_PRELOAD": str(build_library(Path(__file__).with_name("trace.c"), tmp_path)), "TRACE_LOG": str(log)})
    broker.start()
    try:
        asyncio.run(some_load(broker, 0.2, 10))
    finally:
        broker.stop()
    judge = Judge()
    judge.read(read_log(log))
    assert {"PUBACK", "PUBREC", "CONNACK"} <= {each.split()[0] for each in judge.broken}


def test_a_failed_sync_ends_the_broker(tmp_path: Path) -> None:
    """Nothing is acknowledged any more, the exit code is 4, a sentence says why, what was acknowledged is there."""
    require_tool("gcc", package="gcc")
    trigger = tmp_path / "fail"
    broker = CrashBroker(tmp_path / "broker", environ={
        "LD_PRELOAD": str(build_library(Path(__file__).with_name("trace.c"), tmp_path)), "TRACE_FAIL": str(trigger)})
    broker.start()
    try:
        subscriber = Client(broker.address)
        subscriber.connect("s", clean_start=False, properties={"session_expiry_interval": 1000})
        subscriber.subscribe("t", qos=1)
        subscriber.drop()
        publisher = Client(broker.address)
        publisher.connect("p")
        publisher.publish("t", b"before", 1)
        trigger.touch()
        publisher.send(Publish(topic="t", payload=b"after", qos=1, packet_id=7))
        publisher.expect_closed(0x8B)           # Server shutting down, and no PUBACK before it
        process = broker.process
        assert process is not None and process.wait(30) == 4
        said = broker.stderr()
        assert "Traceback" not in said and "fdatasync: Input/output error" in said, said
        os.unlink(trigger)
        broker.process = None
        broker.start()
        subscriber = Client(broker.address)
        assert subscriber.connect("s", clean_start=False, properties={"session_expiry_interval": 1000}).session_present
        subscriber.receive("t", b"before")
    finally:
        broker.stop()
