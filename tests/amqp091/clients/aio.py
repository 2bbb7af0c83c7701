"""aio-pika: its event loop runs in a thread; every verb waits for a coroutine in it."""
from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

import aio_pika
import aiormq
import aiormq.exceptions
from aio_pika.connection import make_url
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
from oracle.amqp091 import PROPERTIES

__all__ = ["AioPika"]

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def _error(error: BaseException) -> AmqpError | None:
    if isinstance(error, aiormq.exceptions.AuthenticationError):
        return AmqpError(403, str(error))
    if isinstance(error, aiormq.exceptions.ConnectionClosed | aiormq.exceptions.ChannelClosed) and len(error.args) > 1:
        return AmqpError(int(error.args[0]), str(error.args[1]))
    names = {"ChannelNotFoundEntity": 404, "ChannelLockedResource": 405, "ChannelPreconditionFailed": 406,
             "ChannelAccessRefused": 403, "ConnectionNotAllowed": 530}
    if isinstance(error, aiormq.exceptions.AMQPError):
        return AmqpError(names.get(type(error).__name__, 0), str(error))
    return AmqpError(0, repr(error)) if isinstance(error, ConnectionError) else None


def _message(properties: dict[str, Any], body: bytes) -> aio_pika.Message:
    given = dict(properties)
    if "expiration" in given:
        given["expiration"] = int(given["expiration"]) / 1000
    if "timestamp" in given:
        given["timestamp"] = datetime.fromtimestamp(given["timestamp"], UTC)
    return aio_pika.Message(body, **given)


def _properties(given: Any) -> dict[str, Any]:
    found = {name: value for name in PROPERTIES
             if (value := getattr(given, {"type": "message_type"}.get(name, name), None)) is not None}
    if isinstance(found.get("timestamp"), datetime):
        found["timestamp"] = int(found["timestamp"].timestamp())
    return found


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


class AioChannel(Channel):
    def __init__(self, connection: AioConnection, channel: Any) -> None:
        self._run: Run = connection.run
        self._channel = channel
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._returned: queue.Queue[Returned] = queue.Queue()
        self._cancelled: queue.Queue[str] = queue.Queue()
        self._closed: queue.Queue[BaseException] = queue.Queue()
        self._messages: dict[int, Any] = {}
        self._queues: dict[str, Any] = {}

        async def listen() -> Any:
            channel.close_callbacks.add(lambda _, error: self._closed.put(error))
            underlay = await channel.get_underlay_channel()
            underlay.on_return_callbacks.add(self._on_return)
            underlay.on_consumer_cancel_callbacks.add(lambda frame: self._cancelled.put(frame.consumer_tag))
            return underlay

        self._underlay = self._run(listen())

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def _on_return(self, message: Any) -> None:
        info = message.delivery
        self._returned.put(Returned(info.reply_code, info.reply_text, info.exchange, info.routing_key, message.body))

    def _received(self, message: Any, waiting: int = -1) -> Message:
        self._messages[message.delivery_tag] = message
        return Message(message.body, _properties(message.properties), message.exchange or "", message.routing_key or "",
                       message.delivery_tag or 0, bool(message.redelivered), message.consumer_tag or "", waiting)

    def _queue(self, name: str) -> Any:
        if name not in self._queues:
            self._queues[name] = self._run(self._channel.get_queue(name, ensure=False))
        return self._queues[name]

    def _exchange(self, name: str) -> Any:
        return self._channel.default_exchange if not name else self._run(self._channel.get_exchange(name, ensure=False))

    @staticmethod
    def _next(inbox: queue.Queue[Any], what: str) -> Any:
        try:
            return inbox.get(timeout=TIMEOUT)
        except queue.Empty:
            raise AssertionError(f"{what} did not come") from None

    def exchange_declare(self, name: str, type_: str = "direct", *, durable: bool = False, auto_delete: bool = False,
                         internal: bool = False, passive: bool = False, arguments: Table = None) -> None:
        self._run(self._channel.declare_exchange(name, type_, durable=durable, auto_delete=auto_delete,
                                                 internal=internal, passive=passive, arguments=arguments))

    def exchange_delete(self, name: str, *, if_unused: bool = False) -> None:
        self._run(self._channel.exchange_delete(name, if_unused=if_unused))

    def exchange_bind(self, destination: str, source: str, key: str = "", arguments: Table = None) -> None:
        self._run(self._exchange(destination).bind(source, key, arguments=arguments))

    def exchange_unbind(self, destination: str, source: str, key: str = "", arguments: Table = None) -> None:
        self._run(self._exchange(destination).unbind(source, key, arguments=arguments))

    def queue_declare(self, name: str = "", *, durable: bool = False, exclusive: bool = False,
                      auto_delete: bool = False, passive: bool = False, arguments: Table = None) -> Declared:
        found = self._run(self._channel.declare_queue(name, durable=durable, exclusive=exclusive, passive=passive,
                                                      auto_delete=auto_delete, arguments=arguments))
        self._queues[found.name] = found
        result = found.declaration_result
        return Declared(result.queue, result.message_count, result.consumer_count)

    def queue_bind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None:
        self._run(self._queue(queue).bind(exchange, key, arguments=arguments))

    def queue_unbind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None:
        self._run(self._queue(queue).unbind(exchange, key, arguments=arguments))

    def queue_purge(self, queue: str) -> int:
        return self._run(self._queue(queue).purge()).message_count

    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return self._run(self._channel.queue_delete(queue, if_unused=if_unused, if_empty=if_empty)).message_count

    def qos(self, count: int, *, everybody: bool = False) -> None:
        self._run(self._channel.set_qos(count, global_=everybody))

    def consume(self, queue: str, *, tag: str = "", no_ack: bool = False, exclusive: bool = False,
                no_local: bool = False, arguments: Table = None) -> str:
        assert not no_local, "aio-pika has none"

        async def received(message: Any) -> None:
            self._inbox.put(self._received(message))

        return self._run(self._queue(queue).consume(received, no_ack=no_ack, exclusive=exclusive, arguments=arguments,
                                                    consumer_tag=tag or None))

    def cancel(self, tag: str) -> None:
        self._run(self._underlay.basic_cancel(tag))

    def receive(self) -> Message:
        return self._next(self._inbox, "a delivery")

    def get(self, queue: str, *, no_ack: bool = True) -> Message | None:
        found = self._run(self._queue(queue).get(no_ack=no_ack, fail=False))
        return None if found is None else self._received(found, found.message_count)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        known = self._messages.pop(tag, None)
        self._run(known.ack(multiple) if known else self._underlay.basic_ack(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        known = self._messages.pop(tag, None)
        self._run(known.nack(multiple, requeue) if known else self._underlay.basic_nack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        known = self._messages.pop(tag, None)
        self._run(known.reject(requeue) if known else self._underlay.basic_reject(tag, requeue=requeue))

    def recover(self) -> None:
        self._run(self._underlay.basic_recover(requeue=True))

    async def _publish(self, exchange: Any, publication: Publication, *, mandatory: bool) -> bool:
        _, key, body, properties = publication
        try:
            await exchange.publish(_message(properties, body), key, mandatory=mandatory)
        except aio_pika.exceptions.DeliveryError as error:
            return not isinstance(error.frame, aiormq.spec.Basic.Nack)
        return True

    def publish(self, exchange: str, key: str, body: bytes = b"", properties: Table = None, *,
                mandatory: bool = False) -> bool:
        return self._run(self._publish(self._exchange(exchange), Publication(exchange, key, body, properties or {}),
                                       mandatory=mandatory))

    def publish_all(self, publications: Sequence[Publication]) -> list[bool]:
        exchanges = {name: self._exchange(name) for name in {publication.exchange for publication in publications}}

        async def everything() -> list[bool]:
            return await asyncio.gather(*(self._publish(exchanges[publication.exchange], publication, mandatory=False)
                                          for publication in publications))

        return self._run(everything())

    def publish_and_close(self, publications: Sequence[Publication]) -> None:
        exchanges = {name: self._exchange(name) for name in {publication.exchange for publication in publications}}

        async def everything() -> None:
            sent = [asyncio.ensure_future(self._publish(exchanges[one.exchange], one, mandatory=False))
                    for one in publications]
            await asyncio.sleep(0)  # they write, and nothing has been read yet
            await self._channel.close()
            await asyncio.gather(*sent, return_exceptions=True)

        self._run(everything())

    def returned(self) -> Returned:
        return self._next(self._returned, "a return")

    def was_returned(self) -> bool:
        return not self._returned.empty()

    def cancelled(self) -> str:
        return self._next(self._cancelled, "a cancellation")

    def tx_select(self) -> None:
        self._transaction = self._channel.transaction()
        self._run(self._transaction.select())

    def tx_commit(self) -> None:
        self._run(self._underlay.tx_commit())

    def tx_rollback(self) -> None:
        self._run(self._underlay.tx_rollback())

    def closed(self) -> AmqpError:
        error = self._next(self._closed, "the close")
        found = _error(error)
        assert found is not None, error
        return found

    def close(self) -> None:
        self._run(self._channel.close())


class AioConnection(Connection):
    def __init__(self, where: Where, run: Run) -> None:
        self.run = run
        # Not aio_pika.connect(): one that is refused would be closed when it is collected, in any thread at any time.
        self._connection = aio_pika.Connection(make_url(
            host=where.host, port=where.port, login=where.user, password=where.password, virtualhost=where.vhost,
            heartbeat=where.heartbeat), loop=run(_loop()))
        try:
            run(self._connection.connect(timeout=TIMEOUT))
        except BaseException:
            self.close()
            raise

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def channel(self, *, confirms: bool = False) -> Channel:
        async def opened() -> Any:
            channel = self._connection.channel(publisher_confirms=confirms)
            await channel.initialize()
            return channel

        return AioChannel(self, self.run(opened()))

    def close(self) -> None:
        async def closed() -> None:
            try:
                await self._connection.close()
            except (aiormq.exceptions.AMQPError, ConnectionError, asyncio.CancelledError):
                await self._connection.close()      # it has no transport any more, and is closed now

        self.run(closed())

    def drop(self) -> None:
        async def dropped() -> None:
            # Its own name for the stream is private to the class
            frame = self._connection.transport.connection._writer_task.get_coro().cr_frame
            frame.f_locals["writer"].transport.abort()

        self.run(dropped())

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._connection.transport.connection.server_capabilities


class AioPika(Client):
    name = "aiopika"
    lacks = frozenset({"no_local", "mode_switch", "raw_expiration", "double_ack"})

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def translate(self, error: BaseException) -> AmqpError | None:
        return _error(error)

    def connect(self, where: Where) -> Connection:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
        return AioConnection(where, self._run)

    def _run(self, work: Coroutine[Any, Any, Any] | Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await work

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(2 * TIMEOUT)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(TIMEOUT)
            self._loop.close()
