"""What the tests need of any client: `Library.open` connects, a `Session` is the open connection.

Everything blocks. A library that cannot do something says so in its attributes, and the test for that is not made.
"""
from __future__ import annotations

import abc
import asyncio
import queue
import ssl
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

TIMEOUT = 20.0                  # for what must come: generous, only a failing test waits for it
PAYLOAD_BYTES_LARGE = 300_000

T = TypeVar("T")


@dataclass(frozen=True)
class Endpoint:
    """Where and how: transport is tcp, ws, tls or wss. ca: file of the authority that vouches for the broker."""

    host: str
    port: int
    transport: str = "tcp"
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def encrypted(self) -> bool:
        return self.transport in ("tls", "wss")

    @property
    def websocket(self) -> bool:
        return self.transport in ("ws", "wss")

    def context(self) -> ssl.SSLContext:
        """What a client in Python verifies the broker with."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        return context


@dataclass(frozen=True)
class Properties:
    """Of a PUBLISH of MQTT 5."""

    user: tuple[tuple[str, str], ...] = ()
    response_topic: str | None = None
    correlation_data: bytes | None = None
    content_type: str | None = None

    def __bool__(self) -> bool:
        return self != Properties()


@dataclass(frozen=True)
class Message:
    topic: str
    payload: bytes
    qos: int
    retain: bool = False
    properties: Properties = field(default=Properties())
    dup: bool | None = field(default=None, compare=False)       # None: the library does not tell


@dataclass(frozen=True)
class Options:
    """Of a connection. expiry_s: how long the session outlives it; in 3.1.1, whether it does. filters: subscribed to
    before `open` returns. will: published when the connection is lost."""

    client_id: str
    version: int = 5
    clean: bool = True
    expiry_s: int = 0
    filters: tuple[tuple[str, int], ...] = ()
    will: Message | None = None
    username: str | None = None
    password: str | None = None

    @property
    def kept(self) -> bool:
        return self.expiry_s > 0

    @property
    def clean_session(self) -> bool:
        """The flag of 3.1.1, where one bit says both."""
        return self.clean and not self.kept


class Refused(Exception):
    """CONNACK said no. code: as the library tells it, or None where it does not."""

    def __init__(self, code: int | None, text: str = "") -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Session(abc.ABC):
    """One client; it reconnects by itself where its library does."""

    def __init__(self) -> None:
        self._inbox: queue.Queue[Message] = queue.Queue()
        self.lost = 0  # messages that the library has acknowledged and shows to nobody

    def receive(self, timeout: float = TIMEOUT) -> Message:
        """The next message; TimeoutError when none comes."""
        try:
            return self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError("no message came") from None

    def receive_nothing(self, publisher: Session, topic: str, qos: int = 0) -> None:
        """Nothing has come but what was received: a fence that `publisher` publishes now is the next to come."""
        publisher.publish(Message(topic, b"fence", qos))
        message = self.receive()
        assert (message.topic, message.payload) == (topic, b"fence"), f"nothing expected, {message} came"

    @abc.abstractmethod
    def publish(self, message: Message) -> None:
        """Publish, and wait until it is acknowledged as its QoS asks."""

    @abc.abstractmethod
    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int, *, wait: bool = True) -> None:
        """Publish many, as fast as the library does, in this order. wait: for all acknowledgements."""

    def settle(self) -> None:
        """Wait for the acknowledgements of publish_all(wait=False), over reconnections. Only where `resumes`."""
        raise NotImplementedError

    @abc.abstractmethod
    def close(self) -> None:
        """DISCONNECT."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Cut the connection without DISCONNECT, for good."""

    def go_on(self, where: Endpoint) -> None:
        """After close or drop: connect there, as the same client, with what it has kept of its session."""
        raise NotImplementedError


class Library(abc.ABC):
    """name: for the test's id. transports: see Endpoint. returns: comes back by itself after a broken connection.
    exactly_once: takes a QoS 2 message that is sent again after that only once. resumes: also ends the QoS 2 handshakes
    that it had begun as a publisher. hops: has `go_on`. remembers: over `go_on` too, so no message of QoS 2 is lost or
    comes twice by it."""

    name: ClassVar[str]
    transports: ClassVar[tuple[str, ...]] = ("tcp",)
    returns: ClassVar[bool] = False
    exactly_once: ClassVar[bool] = False
    resumes: ClassVar[bool] = False
    hops: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    npm: ClassVar[bool] = False         # made with a directory that keeps installed packages

    def need(self) -> None:
        """Skip or fail the test when a program is missing."""
        return

    @abc.abstractmethod
    def open(self, where: Endpoint, options: Options) -> Session:
        """Connect and subscribe. Raises Refused."""

    def stop(self) -> None:
        """End what serves all sessions."""
        return


class LoopThread:
    """An event loop in a thread, for libraries that need one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = TIMEOUT) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def stop(self) -> None:
        async def cancel() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT)
        self.loop.close()


__all__ = ["PAYLOAD_BYTES_LARGE", "TIMEOUT", "Endpoint", "Library", "LoopThread", "Message", "Options",
           "Properties", "Refused", "Session"]
