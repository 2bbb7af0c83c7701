"""pika: BlockingConnection; many confirms at once by SelectConnection, as its users do it."""
from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import pika
import pika.exceptions
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
from oracle.amqp091 import PROPERTIES

__all__ = ["Pika"]


def _parameters(where: Where) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(
        where.host, where.port, where.vhost, pika.PlainCredentials(where.user, where.password),
        heartbeat=where.heartbeat, blocked_connection_timeout=TIMEOUT, socket_timeout=TIMEOUT, stack_timeout=TIMEOUT)


def _properties(given: Any) -> dict[str, Any]:
    return {name: value for name in PROPERTIES if (value := getattr(given, name)) is not None}


def _error(error: BaseException | None) -> AmqpError | None:
    if isinstance(error, pika.exceptions.ChannelClosed | pika.exceptions.ConnectionClosed):
        return AmqpError(error.reply_code, error.reply_text)
    for kind, code in ((pika.exceptions.ProbableAuthenticationError, 403),
                       (pika.exceptions.ProbableAccessDeniedError, 530)):
        if isinstance(error, kind):
            return AmqpError(code, str(error))
    if isinstance(error, pika.exceptions.AMQPConnectionError | pika.exceptions.ChannelWrongStateError):
        return AmqpError(0, repr(error))
    return None


class PikaChannel(BlockingChannel):
    def __init__(self, connection: PikaConnection, *, confirms: bool) -> None:
        super().__init__()
        self._connection = connection
        self._channel = connection.connection.channel()
        self._channel.add_on_return_callback(self._on_return)
        self._channel.add_on_cancel_callback(lambda frame: self._cancelled.append(frame.method.consumer_tag))
        if confirms:
            self._channel.confirm_delivery()

    def translate(self, error: BaseException) -> AmqpError | None:
        if isinstance(error, pika.exceptions.ChannelWrongStateError) and self._channel.is_closed:
            # Closed by the broker before the call, which pika notices without a word
            return _error(self._channel._closing_reason)
        return _error(error)

    def _on_return(self, _: Any, method: Any, __: Any, body: bytes) -> None:
        self._returned.append(Returned(method.reply_code, method.reply_text, method.exchange, method.routing_key, body))

    def _on_message(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self._inbox.append(Message(body, _properties(properties), method.exchange, method.routing_key,
                                   method.delivery_tag, method.redelivered, method.consumer_tag))

    def _wait(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not done():
            if self._channel.is_closed:
                raise self._channel._closing_reason
            assert time.monotonic() < deadline, f"{what} did not come"
            self._connection.connection.process_data_events(1.0)

    def exchange_declare(self, name: str, type_: str = "direct", *, durable: bool = False, auto_delete: bool = False,
                         internal: bool = False, passive: bool = False, arguments: Table = None) -> None:
        self._channel.exchange_declare(name, type_, passive, durable, auto_delete, internal, arguments)

    def queue_declare(self, name: str = "", *, durable: bool = False, exclusive: bool = False,
                      auto_delete: bool = False, passive: bool = False, arguments: Table = None) -> Declared:
        found = self._channel.queue_declare(name, passive, durable, exclusive, auto_delete, arguments).method
        return Declared(found.queue, found.message_count, found.consumer_count)

    def queue_purge(self, queue: str) -> int:
        return self._channel.queue_purge(queue).method.message_count

    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return self._channel.queue_delete(queue, if_unused, if_empty).method.message_count

    def qos(self, count: int, *, everybody: bool = False) -> None:
        self._channel.basic_qos(prefetch_count=count, global_qos=everybody)

    def consume(self, queue: str, *, tag: str = "", no_ack: bool = False, exclusive: bool = False,
                no_local: bool = False, arguments: Table = None) -> str:
        assert not no_local, "pika has none"
        return self._channel.basic_consume(queue, self._on_message, no_ack, exclusive, tag or None, arguments)

    def get(self, queue: str, *, no_ack: bool = True) -> Message | None:
        method, properties, body = self._channel.basic_get(queue, no_ack)
        if method is None:
            return None
        return Message(body, _properties(properties), method.exchange, method.routing_key, method.delivery_tag,
                       method.redelivered, waiting=method.message_count)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._channel.basic_nack(tag, multiple, requeue)

    def publish(self, exchange: str, key: str, body: bytes = b"", properties: Table = None, *,
                mandatory: bool = False) -> bool:
        try:
            self._channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties or {}), mandatory)
        except pika.exceptions.NackError:
            return False
        except pika.exceptions.UnroutableError as error:
            for message in error.messages:
                self._on_return(None, message.method, message.properties, message.body)
        return True

    def publish_all(self, publications: Sequence[Publication]) -> list[bool]:
        return _Asynchronous(self._connection.where, publications).run()


class _Asynchronous:
    """A connection of its own that publishes all, then waits for the confirms."""

    def __init__(self, where: Where, publications: Sequence[Publication]) -> None:
        self._publications = publications
        self._outcomes: dict[int, bool] = {}
        self._connection = pika.SelectConnection(_parameters(where), on_open_callback=self._on_open)

    def run(self) -> list[bool]:
        self._connection.ioloop.call_later(TIMEOUT, self._connection.ioloop.stop)
        self._connection.ioloop.start()
        assert len(self._outcomes) == len(self._publications), "confirms did not come"
        return [self._outcomes[number] for number in range(1, len(self._publications) + 1)]

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.confirm_delivery(self._on_confirm, lambda _: self._publish(channel))

    def _publish(self, channel: Any) -> None:
        for exchange, key, body, properties in self._publications:
            channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties))

    def _on_confirm(self, frame: Any) -> None:
        tag, acked = frame.method.delivery_tag, isinstance(frame.method, pika.spec.Basic.Ack)
        for number in range(1 if frame.method.multiple else tag, tag + 1):
            self._outcomes.setdefault(number, acked)
        if len(self._outcomes) == len(self._publications):
            self._connection.add_on_close_callback(lambda *_: self._connection.ioloop.stop())
            self._connection.close()


class PikaConnection(Connection):
    def __init__(self, where: Where) -> None:
        self.where = where
        self.connection = pika.BlockingConnection(_parameters(where))

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def channel(self, *, confirms: bool = False) -> Channel:
        return PikaChannel(self, confirms=confirms)

    def close(self) -> None:
        with contextlib.suppress(pika.exceptions.ConnectionWrongStateError):
            self.connection.close()

    def drop(self) -> None:
        self.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)

    @property
    def capabilities(self) -> dict[str, Any]:
        return self.connection._impl.server_capabilities


class Pika(Client):
    name = "pika"
    lacks = frozenset({"no_local"})

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def connect(self, where: Where) -> Connection:
        return PikaConnection(where)
