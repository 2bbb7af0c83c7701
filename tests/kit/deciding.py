"""Authorities that take time: one that a test answers by hand, and one that is asked over a Unix socket.

    SocketAuthority ──4 bytes of length, [number, action, identity, client id, topic] as MessagePack──► Decider
                    ◄──4 bytes of length, [number, allowed]──────────────────────────────────────────

The protocol is the tests' own. What `open/…` and `$queue/open…` are about is allowed without asking.
"""
from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from fluxmq.access.authority import Authority

__all__ = ["Asked", "Decider", "HeldAuthority", "SlowAuthority", "SocketAuthority"]

PATIENCE_S = 20.0  # only a failing test needs it
OPEN = ("open/", "$queue/open")


class Asked(msgspec.Struct, array_like=True):
    """One question. action: publish, subscribe."""

    number: int
    action: str
    identity: str | None
    client_id: str
    topic: str


class Answer(msgspec.Struct, array_like=True):
    number: int
    allowed: bool


def framed(item: Asked | Answer) -> bytes:
    data = msgspec.msgpack.encode(item)
    return len(data).to_bytes(4, "big") + data


class SlowAuthority(Authority):
    """Everybody may connect, and must be asked about for all that is not open."""

    @property
    def name(self) -> str:
        return "the test's decider"

    @property
    def asks(self) -> bool:
        return True

    @property
    def open_publish(self) -> bool:
        return False

    @property
    def open_subscribe(self) -> bool:
        return False

    def may_publish(self, identity: str | None, client_id: str, topic: str, namespace: str = "/") -> bool | None:
        return True if topic.startswith(OPEN) else None

    def may_subscribe(self, identity: str | None, client_id: str, filter_: str, namespace: str = "/") -> bool | None:
        return True if filter_.startswith(OPEN) else None

    async def decide_publish(self, identity: str | None, client_id: str, topic: str, namespace: str = "/") -> bool:
        return await self.ask("publish", identity, client_id, topic)

    async def decide_subscribe(self, identity: str | None, client_id: str, filter_: str,
                               namespace: str = "/") -> bool:
        return await self.ask("subscribe", identity, client_id, filter_)

    async def ask(self, action: str, identity: str | None, client_id: str, topic: str) -> bool:
        raise NotImplementedError


class Held(NamedTuple):
    action: str
    client_id: str
    topic: str
    answer: asyncio.Future[bool]


class HeldAuthority(SlowAuthority):
    """Keeps its questions until a test sets their answers, on the loop's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Held] = []

    async def ask(self, action: str, identity: str | None, client_id: str, topic: str) -> bool:
        one = Held(action, client_id, topic, asyncio.get_running_loop().create_future())
        self.held.append(one)
        try:
            return await one.answer
        finally:
            self.held.remove(one)


class SocketAuthority(SlowAuthority):
    """Asks the Decider at `path`. One connection, made with the first question and again after it broke."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._lock = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def ask(self, action: str, identity: str | None, client_id: str, topic: str) -> bool:
        async with self._lock:
            if self._writer is None:
                reader, self._writer = await asyncio.open_unix_connection(self._path)
                self._reading = asyncio.create_task(self._receive(reader, self._writer))
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(framed(Asked(number, action, identity, client_id, topic)))
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                said = msgspec.msgpack.decode(await reader.readexactly(size), type=Answer)
                answer = self._waiting.get(said.number)     # None: nobody waits for it any more
                if answer is not None and not answer.done():
                    answer.set_result(said.allowed)
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError) as error:
            broken = ConnectionError(f"the decider broke off: {error!r}")
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(broken)
        finally:
            self._writer = None
            writer.close()

    def close(self) -> None:
        super().close()
        if self._reading is not None:
            self._reading.cancel()


class Decider:
    """Listens at `path`, in a thread. policy: what it answers by itself; where there is none, or it says None, the test
    answers."""

    def __init__(self, path: Path, policy: Callable[[Asked], bool | None] | None = None) -> None:
        self.path = path
        self.policy = policy
        self.questions: queue.Queue[Asked] = queue.Queue()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._conn: socket.socket | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            conn, _ = self._listening.accept()
            self._conn = conn
            with conn, conn.makefile("rb") as stream:
                try:
                    while head := stream.read(4):
                        data = stream.read(int.from_bytes(head, "big"))
                        if not data:
                            return  # stop()
                        asked = msgspec.msgpack.decode(data, type=Asked)
                        allowed = self.policy(asked) if self.policy is not None else None
                        if allowed is None:
                            self.questions.put(asked)
                        else:
                            conn.sendall(framed(Answer(asked.number, allowed)))
                except OSError:
                    continue

    def take(self) -> Asked:
        """The next question that waits for the test's answer."""
        return self.questions.get(timeout=PATIENCE_S)

    def answer(self, asked: Asked, allowed: bool) -> None:
        assert self._conn is not None
        self._conn.sendall(framed(Answer(asked.number, allowed)))

    def say(self, data: bytes) -> None:
        """Anything else."""
        assert self._conn is not None
        self._conn.sendall(data)

    def break_off(self) -> None:
        assert self._conn is not None
        self._conn.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        if self._conn is not None:
            with contextlib.suppress(OSError):      # gone already
                self._conn.shutdown(socket.SHUT_RDWR)
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(self.path))
            last.sendall(bytes(4))
            self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._listening.close()
