"""py-amqp, and kombu on top of it: kombu's own exchanges, queues, producers and consumers, the rest by its channel."""
from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import amqp
import amqp.exceptions
import kombu
from amqp091.clients.base import (
    TIMEOUT,
    AmqpError,
    BlockingChannel,
    Channel,
    Client,
    Connection,
    Declared,
    Message,
    Publication,
    Returned,
    Table,
    Where,
)

__all__ = ["Kombu", "PyAmqp"]


def _error(error: BaseException) -> AmqpError | None:
    if isinstance(error, amqp.exceptions.AMQPError):
        return AmqpError(error.reply_code or 0, error.reply_text or str(error))
    if isinstance(error, OSError):
        return AmqpError(0, str(error))
    return None


def _given(properties: Table) -> dict[str, Any]:
    """As py-amqp names them: headers are application_headers."""
    found = dict(properties or {})
    if "headers" in found:
        found["application_headers"] = found.pop("headers")
    return found


def _found(properties: dict[str, Any]) -> dict[str, Any]:
    found = dict(properties)
    if "application_headers" in found:
        found["headers"] = found.pop("application_headers")
    return found


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)


class PyAmqpChannel(BlockingChannel):
    def __init__(self, connection: PyAmqpConnection, *, confirms: bool) -> None:
        super().__init__()
        self._connection = connection
        self._channel = connection._open_channel()
        self._confirms: dict[int, bool] = {}
        self._published = 0 if confirms else -1
        self._channel.events["basic_return"].add(self._on_return)
        if confirms:
            self._channel.confirm_select()
            self._channel.events["basic_ack"].add(lambda tag, multiple: self._on_confirm(tag, multiple, acked=True))
            self._channel.events["basic_nack"].add(lambda tag, multiple: self._on_confirm(tag, multiple, acked=False))

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def _on_return(self, error: Any, exchange: str, key: str, message: Any) -> None:
        self._returned.append(Returned(error.reply_code, error.reply_text, exchange, key, _bytes(message.body)))

    def _on_confirm(self, tag: int, multiple: bool, *, acked: bool) -> None:
        for number in range(1 if multiple else tag, tag + 1):
            self._confirms.setdefault(number, acked)

    def _on_message(self, message: Any) -> None:
        self._inbox.append(self._message(message))

    def _message(self, message: Any) -> Message:
        info = message.delivery_info
        return Message(_bytes(message.body), _found(message.properties), info["exchange"], info["routing_key"],
                       info["delivery_tag"], info["redelivered"], info.get("consumer_tag", ""),
                       info.get("message_count", -1))

    def _wait(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not done():
            assert time.monotonic() < deadline, f"{what} did not come"
            with contextlib.suppress(TimeoutError, socket.timeout):
                self._connection._drain(1.0)

    def exchange_declare(self, name: str, type_: str = "direct", *, durable: bool = False, auto_delete: bool = False,
                         internal: bool = False, passive: bool = False, arguments: Table = None) -> None:
        assert not internal, "py-amqp has none"
        self._channel.exchange_declare(name, type_, passive, durable, auto_delete, False, arguments)

    def queue_declare(self, name: str = "", *, durable: bool = False, exclusive: bool = False,
                      auto_delete: bool = False, passive: bool = False, arguments: Table = None) -> Declared:
        return Declared(*self._channel.queue_declare(name, passive, durable, exclusive, auto_delete,
                                                     arguments=arguments))

    def queue_purge(self, queue: str) -> int:
        return self._channel.queue_purge(queue)

    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return self._channel.queue_delete(queue, if_unused, if_empty)

    def qos(self, count: int, *, everybody: bool = False) -> None:
        self._channel.basic_qos(0, count, everybody)

    def consume(self, queue: str, *, tag: str = "", no_ack: bool = False, exclusive: bool = False,
                no_local: bool = False, arguments: Table = None) -> str:
        return self._channel.basic_consume(queue, tag, no_local, no_ack, exclusive, callback=self._on_message,
                                           arguments=arguments, on_cancel=self._cancelled.append)

    def get(self, queue: str, *, no_ack: bool = True) -> Message | None:
        message = self._channel.basic_get(queue, no_ack)
        return None if message is None else self._message(message)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        raise AssertionError("py-amqp has none")

    def publish(self, exchange: str, key: str, body: bytes = b"", properties: Table = None, *,
                mandatory: bool = False) -> bool:
        self._publish(exchange, key, body, properties, mandatory=mandatory)
        return self._confirmed([self._published])[0] if self._published > 0 else True

    def publish_all(self, publications: Sequence[Publication]) -> list[bool]:
        numbers = []
        for exchange, key, body, properties in publications:
            self._publish(exchange, key, body, properties)
            numbers.append(self._published)
        return self._confirmed(numbers)

    def _publish(self, exchange: str, key: str, body: bytes, properties: Table, *, mandatory: bool = False) -> None:
        self._channel.basic_publish(amqp.Message(body, **_given(properties)), exchange, key, mandatory)
        if self._published >= 0:
            self._published += 1

    def _confirmed(self, numbers: list[int]) -> list[bool]:
        self._wait(lambda: all(number in self._confirms for number in numbers), "a confirm")
        return [self._confirms[number] for number in numbers]


class PyAmqpConnection(Connection):
    def __init__(self, where: Where) -> None:
        self._where = where
        self._connect()

    def _connect(self) -> None:
        where = self._where
        self._connection = amqp.Connection(f"{where.host}:{where.port}", where.user, where.password,
                                           virtual_host=where.vhost, heartbeat=where.heartbeat,
                                           connect_timeout=TIMEOUT, read_timeout=TIMEOUT)
        self._connection.connect()

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def channel(self, *, confirms: bool = False) -> Channel:
        return PyAmqpChannel(self, confirms=confirms)

    def _open_channel(self) -> Any:
        return self._connection.channel()

    def _drain(self, seconds: float) -> None:
        self._connection.drain_events(seconds)

    def close(self) -> None:
        with contextlib.suppress(OSError, amqp.exceptions.AMQPError):
            self._connection.close()

    def drop(self) -> None:
        self._connection.transport.sock.shutdown(socket.SHUT_RDWR)

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._connection.server_capabilities


class PyAmqp(Client):
    name = "pyamqp"
    lacks = frozenset({"nack", "internal"})
    connection: type[PyAmqpConnection] = PyAmqpConnection

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def connect(self, where: Where) -> Connection:
        return self.connection(where)


# ── kombu ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class KombuChannel(PyAmqpChannel):
    """With the classes that kombu's users write: Exchange, Queue, Producer, Consumer."""

    def exchange_declare(self, name: str, type_: str = "direct", *, durable: bool = False, auto_delete: bool = False,
                         internal: bool = False, passive: bool = False, arguments: Table = None) -> None:
        assert not internal, "py-amqp has none"
        kombu.Exchange(name, type_, self._channel, durable=durable, auto_delete=auto_delete,
                       arguments=arguments).declare(passive=passive)

    def queue_declare(self, name: str = "", *, durable: bool = False, exclusive: bool = False,
                      auto_delete: bool = False, passive: bool = False, arguments: Table = None) -> Declared:
        queue = kombu.Queue(name, channel=self._channel, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
                            queue_arguments=arguments)
        # kombu makes every exclusive queue auto-delete
        queue.auto_delete = auto_delete
        found: list[Declared] = []
        queue.on_declared = lambda *answer: found.append(Declared(*answer))
        queue.queue_declare(passive=passive)
        return found[0]

    def queue_bind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None:
        kombu.Queue(queue, kombu.Exchange(exchange), key, self._channel, binding_arguments=arguments).queue_bind()

    def _publish(self, exchange: str, key: str, body: bytes, properties: Table, *, mandatory: bool = False) -> None:
        given = dict(properties or {})
        if "expiration" in given:
            given["expiration"] = int(given["expiration"]) / 1000
        # kombu says persistent unless told otherwise, and that bytes are bytes
        kombu.Producer(self._channel, auto_declare=False).publish(
            body, key, exchange=exchange, mandatory=mandatory, delivery_mode=given.pop("delivery_mode", 1),
            content_type=given.pop("content_type", "application/data"),
            content_encoding=given.pop("content_encoding", "binary"),
            **{name: value for name, value in _given(given).items() if name != "application_headers"},
            **({"headers": given["headers"]} if "headers" in given else {}))
        if self._published >= 0:
            self._published += 1

    def consume(self, queue: str, *, tag: str = "", no_ack: bool = False, exclusive: bool = False,
                no_local: bool = False, arguments: Table = None) -> str:
        if no_local or exclusive or not tag:
            return super().consume(queue, tag=tag, no_ack=no_ack, exclusive=exclusive, no_local=no_local,
                                   arguments=arguments)
        kombu.Queue(queue, channel=self._channel, no_declare=True, consumer_arguments=arguments).consume(
            tag, self._on_message, no_ack, on_cancel=self._cancelled.append)
        return tag


class KombuConnection(PyAmqpConnection):
    def _connect(self) -> None:
        where = self._where
        self._kombu = kombu.Connection(hostname=where.host, port=where.port, userid=where.user, password=where.password,
                                       virtual_host=where.vhost, heartbeat=where.heartbeat, connect_timeout=TIMEOUT,
                                       transport="pyamqp")
        self._kombu.connect()
        self._connection = self._kombu.connection

    def channel(self, *, confirms: bool = False) -> Channel:
        return KombuChannel(self, confirms=confirms)

    def _open_channel(self) -> Any:
        return self._kombu.channel()

    def _drain(self, seconds: float) -> None:
        self._kombu.drain_events(timeout=seconds)


class Kombu(PyAmqp):
    name = "kombu"
    lacks = PyAmqp.lacks | {"amq_names", "raw_expiration"}
    connection = KombuConnection
