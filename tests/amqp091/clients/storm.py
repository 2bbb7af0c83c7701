"""AMQPStorm: a thread of its own reads the socket; messages are built when asked for."""
from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import amqpstorm
from amqp091.clients.base import (
    TIMEOUT,
    AmqpError,
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

__all__ = ["Storm"]

POLL_SECONDS = 0.005        # the library has nothing to wait on


def _error(error: BaseException) -> AmqpError | None:
    if isinstance(error, amqpstorm.AMQPError):
        return AmqpError(error.error_code or 0, str(error))
    return None


def _properties(given: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in given.items() if value is not None}
    if isinstance(found.get("timestamp"), datetime):
        found["timestamp"] = int(found["timestamp"].timestamp())
    return {"type" if name == "message_type" else name: value for name, value in found.items()}


class StormChannel(Channel):
    def __init__(self, connection: Any, *, confirms: bool) -> None:
        self._channel = connection.channel(rpc_timeout=int(TIMEOUT))
        self._inbox: deque[Message] = deque()
        self._returned: deque[Returned] = deque()
        self._tags: list[str] = []
        if confirms:
            self._channel.confirm_deliveries()

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def _on_message(self, message: Any) -> None:
        self._inbox.append(self._message(message))

    @staticmethod
    def _message(message: Any) -> Message:
        method = message.method
        return Message(message.body, _properties(message.properties), method["exchange"], method["routing_key"],
                       method["delivery_tag"], method["redelivered"], method.get("consumer_tag", ""),
                       method.get("message_count", -1))

    def _wait(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not done():
            assert time.monotonic() < deadline, f"{what} did not come"
            self._channel.check_for_errors()
            time.sleep(POLL_SECONDS)

    def exchange_declare(self, name: str, type_: str = "direct", *, durable: bool = False, auto_delete: bool = False,
                         internal: bool = False, passive: bool = False, arguments: Table = None) -> None:
        assert not internal, "AMQPStorm has none"
        self._channel.exchange.declare(name, type_, passive, durable, auto_delete, arguments)

    def exchange_delete(self, name: str, *, if_unused: bool = False) -> None:
        self._channel.exchange.delete(name, if_unused)

    def exchange_bind(self, destination: str, source: str, key: str = "", arguments: Table = None) -> None:
        self._channel.exchange.bind(destination, source, key, arguments)

    def exchange_unbind(self, destination: str, source: str, key: str = "", arguments: Table = None) -> None:
        self._channel.exchange.unbind(destination, source, key, arguments)

    def queue_declare(self, name: str = "", *, durable: bool = False, exclusive: bool = False,
                      auto_delete: bool = False, passive: bool = False, arguments: Table = None) -> Declared:
        found = self._channel.queue.declare(name, passive, durable, exclusive, auto_delete, arguments)
        return Declared(found["queue"], found["message_count"], found["consumer_count"])

    def queue_bind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None:
        self._channel.queue.bind(queue, exchange, key, arguments)

    def queue_unbind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None:
        self._channel.queue.unbind(queue, exchange, key, arguments)

    def queue_purge(self, queue: str) -> int:
        return self._channel.queue.purge(queue)["message_count"]

    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return self._channel.queue.delete(queue, if_unused, if_empty)["message_count"]

    def qos(self, count: int, *, everybody: bool = False) -> None:
        self._channel.basic.qos(count, global_=everybody)

    def consume(self, queue: str, *, tag: str = "", no_ack: bool = False, exclusive: bool = False,
                no_local: bool = False, arguments: Table = None) -> str:
        found = self._channel.basic.consume(self._on_message, queue, tag, exclusive, no_ack, no_local, arguments)
        self._tags.append(found)
        return found

    def cancel(self, tag: str) -> None:
        self._channel.basic.cancel(tag)

    def receive(self) -> Message:
        def arrived() -> bool:
            self._channel.process_data_events(auto_decode=False)
            return bool(self._inbox)

        if not self._inbox:
            self._wait(arrived, "a delivery")
        return self._inbox.popleft()

    def get(self, queue: str, *, no_ack: bool = True) -> Message | None:
        message = self._channel.basic.get(queue, no_ack, auto_decode=False)
        return None if message is None else self._message(message)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._channel.basic.ack(tag, multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._channel.basic.nack(tag, multiple, requeue)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self._channel.basic.reject(tag, requeue)

    def recover(self) -> None:
        self._channel.basic.recover(requeue=True)

    def publish(self, exchange: str, key: str, body: bytes = b"", properties: Table = None, *,
                mandatory: bool = False) -> bool:
        given = dict(properties or {})
        if "type" in given:
            given["message_type"] = given.pop("type")
        if "timestamp" in given:
            given["timestamp"] = datetime.fromtimestamp(given["timestamp"])
        try:
            return self._channel.basic.publish(body, key, exchange, given, mandatory) is not False
        except amqpstorm.AMQPMessageError as error:
            self._returned.append(Returned(error.error_code or 0, str(error), exchange, key, body))
            return True

    def publish_all(self, publications: Sequence[Publication]) -> list[bool]:
        raise AssertionError("AMQPStorm waits for each confirm")

    def returned(self) -> Returned:
        try:
            self._wait(lambda: self._returned, "a return")
        except amqpstorm.AMQPMessageError as error:
            return Returned(error.error_code or 0, str(error), "", "")
        return self._returned.popleft()

    def was_returned(self) -> bool:
        return bool(self._returned)

    def cancelled(self) -> str:
        def gone() -> set[str]:
            return set(self._tags) - set(self._channel.consumer_tags)

        self._wait(gone, "a cancellation")
        tag = gone().pop()
        self._tags.remove(tag)
        return tag

    def tx_select(self) -> None:
        self._channel.tx.select()

    def tx_commit(self) -> None:
        self._channel.tx.commit()

    def tx_rollback(self) -> None:
        self._channel.tx.rollback()

    def close(self) -> None:
        self._channel.close()


class StormConnection(Connection):
    def __init__(self, where: Where) -> None:
        self._connection = amqpstorm.Connection(where.host, where.user, where.password, port=where.port,
                                                heartbeat=where.heartbeat, virtual_host=where.vhost, timeout=TIMEOUT)

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def channel(self, *, confirms: bool = False) -> Channel:
        return StormChannel(self._connection, confirms=confirms)

    def close(self) -> None:
        self._connection.close()

    def drop(self) -> None:
        self._connection.socket.shutdown(socket.SHUT_RDWR)

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._connection.server_properties["capabilities"]


class Storm(Client):
    name = "amqpstorm"
    # returned messages come as an exception without the message
    lacks = frozenset({"internal", "publish_all", "returned_body"})

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def connect(self, where: Where) -> Connection:
        return StormConnection(where)
