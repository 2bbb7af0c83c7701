"""One interface over every AMQP 0-9-1 library, so that a test is written once. See CLIENTS in clients/__init__.py.

    connection = client.connect(Where(*address))
    channel = connection.channel(confirms=True)
    channel.queue_declare("q").messages
    channel.publish("", "q", b"body", {"priority": 3})
    channel.consume("q", no_ack=True)
    channel.receive().body

Properties are dicts with the names of the specification (`_` for `-`), `timestamp` in seconds; only those that are set.
What the broker refuses is AmqpError, whatever the library calls it. What must come is waited for TIMEOUT seconds, so
that only a failing test waits.
"""
from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import pytest

__all__ = ["TIMEOUT", "AmqpError", "BlockingChannel", "Channel", "Client", "Connection", "Declared", "Message",
           "Publication", "Returned", "Where", "refused"]

TIMEOUT = 30.0
Table = dict[str, Any] | None


@dataclass(frozen=True)
class Where:
    """heartbeat: seconds, 0 for none."""

    host: str
    port: int
    vhost: str = "/"
    user: str = "guest"
    password: str = "guest"
    heartbeat: int = 0


class AmqpError(Exception):
    """The broker closed the channel or the connection. code: the reply code, 0 when the library does not say."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code, self.text = code, text


def refused(code: int, action: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """What the broker says when it refuses this with that code."""
    with pytest.raises(AmqpError) as error:
        action(*arguments, **named)
    assert error.value.code == code, error.value
    return error.value.text


class Declared(NamedTuple):
    name: str
    messages: int
    consumers: int


class Publication(NamedTuple):
    exchange: str
    key: str
    body: bytes
    properties: dict[str, Any] = {}


@dataclass
class Message:
    """tag: delivery tag. waiting: of basic.get, messages left in the queue."""

    body: bytes
    properties: dict[str, Any] = field(default_factory=dict)
    exchange: str = ""
    key: str = ""
    tag: int = 0
    redelivered: bool = False
    consumer: str = ""
    waiting: int = -1

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.get("headers") or {}


@dataclass
class Returned:
    """What basic.return brought. Only what the library shows: see Client.lacks."""

    code: int
    text: str
    exchange: str
    key: str
    body: bytes = b""


class _Translates:
    """Public methods of subclasses raise AmqpError for what their library calls otherwise (translate)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, function in list(vars(cls).items()):
            if callable(function) and not name.startswith("_") and name != "translate" and \
                    not isinstance(function, type):
                setattr(cls, name, _translated(function))

    def translate(self, error: BaseException) -> AmqpError | None:
        """What the broker said, or None when the error is something else or is AmqpError already."""
        return None


def _translated(function: Any) -> Any:
    @functools.wraps(function)
    def call(self: _Translates, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except (AmqpError, AssertionError):
            raise
        except Exception as error:
            found = self.translate(error)
            if found is None:
                raise
            raise found from error

    return call


class Channel(_Translates, ABC):
    """A channel. Every call waits for the broker's answer, where the protocol has one."""

    @abstractmethod
    def exchange_declare(self, name: str, type_: str = "direct", *, durable: bool = False, auto_delete: bool = False,
                         internal: bool = False, passive: bool = False, arguments: Table = None) -> None: ...

    @abstractmethod
    def exchange_delete(self, name: str, *, if_unused: bool = False) -> None: ...

    @abstractmethod
    def exchange_bind(self, destination: str, source: str, key: str = "", arguments: Table = None) -> None: ...

    @abstractmethod
    def exchange_unbind(self, destination: str, source: str, key: str = "", arguments: Table = None) -> None: ...

    @abstractmethod
    def queue_declare(self, name: str = "", *, durable: bool = False, exclusive: bool = False,
                      auto_delete: bool = False, passive: bool = False, arguments: Table = None) -> Declared: ...

    @abstractmethod
    def queue_bind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None: ...

    @abstractmethod
    def queue_unbind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None: ...

    @abstractmethod
    def queue_purge(self, queue: str) -> int: ...

    @abstractmethod
    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int: ...

    @abstractmethod
    def qos(self, count: int, *, everybody: bool = False) -> None:
        """everybody: the flag `global`."""

    @abstractmethod
    def consume(self, queue: str, *, tag: str = "", no_ack: bool = False, exclusive: bool = False,
                no_local: bool = False, arguments: Table = None) -> str:
        """The consumer tag."""

    @abstractmethod
    def cancel(self, tag: str) -> None: ...

    @abstractmethod
    def receive(self) -> Message:
        """The next delivery, to any consumer of the channel."""

    @abstractmethod
    def get(self, queue: str, *, no_ack: bool = True) -> Message | None: ...

    @abstractmethod
    def ack(self, tag: int, *, multiple: bool = False) -> None: ...

    @abstractmethod
    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None: ...

    @abstractmethod
    def reject(self, tag: int, *, requeue: bool = True) -> None: ...

    @abstractmethod
    def recover(self) -> None:
        """With requeue."""

    @abstractmethod
    def publish(self, exchange: str, key: str, body: bytes = b"", properties: Table = None, *,
                mandatory: bool = False) -> bool:
        """With confirms: wait for it; whether it was an ack. Without: True at once."""

    @abstractmethod
    def publish_all(self, publications: Sequence[Publication]) -> list[bool]:
        """With confirms: publish all without waiting between them, then wait for all confirms; True for each ack."""

    def publish_and_close(self, publications: Sequence[Publication]) -> None:
        """Publish all and close the channel; confirms are not waited for where the library lets a program do so."""
        for publication in publications:
            self.publish(*publication)
        self.close()

    @abstractmethod
    def returned(self) -> Returned:
        """The next basic.return."""

    @abstractmethod
    def was_returned(self) -> bool:
        """Whether `returned` has one already."""

    @abstractmethod
    def cancelled(self) -> str:
        """The tag of the next consumer that the broker cancels."""

    @abstractmethod
    def tx_select(self) -> None: ...

    @abstractmethod
    def tx_commit(self) -> None: ...

    @abstractmethod
    def tx_rollback(self) -> None: ...

    def _wait(self, done: Callable[[], object], what: str) -> None:
        """Until it is done; raises what closes the channel, and AssertionError after a time."""
        raise NotImplementedError

    def closed(self) -> AmqpError:
        """Wait until the broker closes the channel (or the connection); what it said."""
        try:
            self._wait(lambda: False, "the close")
        except Exception as error:
            if (found := self.translate(error)) is None:
                raise
            return found
        raise AssertionError("it was not closed")

    @abstractmethod
    def close(self) -> None: ...

    # ── made of the above ────────────────────────────────────────────────────────────────────────────────

    def receive_all(self, count: int) -> list[Message]:
        return [self.receive() for _ in range(count)]

    def get_all(self, queue: str) -> list[bytes]:
        """Take everything that is ready."""
        found = []
        while (message := self.get(queue)) is not None:
            found.append(message.body)
        return found


class BlockingChannel(Channel):
    """A channel of pika or py-amqp, whose methods have the same names and which is driven while somebody waits."""

    _channel: Any

    def __init__(self) -> None:
        self._inbox: deque[Message] = deque()
        self._returned: deque[Returned] = deque()
        self._cancelled: deque[str] = deque()

    def exchange_delete(self, name: str, *, if_unused: bool = False) -> None:
        self._channel.exchange_delete(name, if_unused)

    def exchange_bind(self, destination: str, source: str, key: str = "", arguments: Table = None) -> None:
        self._channel.exchange_bind(destination, source, key, arguments=arguments)

    def exchange_unbind(self, destination: str, source: str, key: str = "", arguments: Table = None) -> None:
        self._channel.exchange_unbind(destination, source, key, arguments=arguments)

    def queue_bind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None:
        self._channel.queue_bind(queue, exchange, key, arguments=arguments)

    def queue_unbind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None:
        self._channel.queue_unbind(queue, exchange, key, arguments=arguments)

    def cancel(self, tag: str) -> None:
        self._channel.basic_cancel(tag)

    def receive(self) -> Message:
        self._wait(lambda: self._inbox, "a delivery")
        return self._inbox.popleft()

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._channel.basic_ack(tag, multiple)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self._channel.basic_reject(tag, requeue)

    def recover(self) -> None:
        self._channel.basic_recover(requeue=True)

    def returned(self) -> Returned:
        self._wait(lambda: self._returned, "a return")
        return self._returned.popleft()

    def was_returned(self) -> bool:
        return bool(self._returned)

    def cancelled(self) -> str:
        self._wait(lambda: self._cancelled, "a cancellation")
        return self._cancelled.popleft()

    def tx_select(self) -> None:
        self._channel.tx_select()

    def tx_commit(self) -> None:
        self._channel.tx_commit()

    def tx_rollback(self) -> None:
        self._channel.tx_rollback()

    def close(self) -> None:
        self._channel.close()


class Connection(_Translates, ABC):
    """A connection of a library. dropped: a test broke it, or knows that the broker did."""

    dropped = False

    @abstractmethod
    def channel(self, *, confirms: bool = False) -> Channel: ...

    @abstractmethod
    def close(self) -> None:
        """In order. What was closed already stays so."""

    @abstractmethod
    def drop(self) -> None:
        """Break it without a word."""

    @property
    @abstractmethod
    def capabilities(self) -> dict[str, Any]:
        """What the broker says it can, in connection.start."""


class Client(_Translates, ABC):
    """A library. lacks: what it has no way to do or to show, by the word that tests ask for (see
    clients/__init__.py)."""

    name: ClassVar[str]
    lacks: ClassVar[frozenset[str]] = frozenset()
    npm: ClassVar[bool] = False         # made with a directory that keeps installed packages

    def need(self) -> None:
        """Skip the test when the library is not there."""

    @abstractmethod
    def connect(self, where: Where) -> Connection: ...

    def stop(self) -> None:
        """End what the library needs beside its connections."""
