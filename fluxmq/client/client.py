"""Machine. The client that reconnects: it has one connection after the other, and state that outlives them.

start() tries each address once, and raises the last error. A lost connection is made again until the attempts are
used up or the server refuses permanently; that error, or close(), ends the client. Publishes wait while there is no
connection (max_pending), the session resends unacknowledged ones, and subscriptions are repeated if the server has lost
the session. Received messages wait in inboxes (inbox.py); if there are too many, the socket is not read, except while
an operation waits for an answer.
"""
from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from fluxmq._core.client.message import Message
from fluxmq._core.client.properties import Properties
from fluxmq._core.mqtt.packets import Properties as PropertyList
from fluxmq.client.addresses import Addresses
from fluxmq.client.backoff import Backoff
from fluxmq.client.connection import Connection
from fluxmq.client.errors import ConnectionLost, ConnectRefused, FluxError, NotConnected, UsageError
from fluxmq.client.inbox import Delivery, Inbox
from fluxmq.client.options import ConnAck, ConnectOptions, Will
from fluxmq.client.publisher import Publisher
from fluxmq.client.queues import Queue
from fluxmq.client.subscriptions import Handler, Subscriptions

__all__ = ["Client"]

# Permanent refusals, intended closes, and closes because of a packet that would be sent again; MQTT 5 section 2.4,
# 3.1.1 table 3.1.
FOR_GOOD = {0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x8E,
            0x81, 0x82, 0x8F, 0x90, 0x94, 0x95, 0x99, 0x9A, 0x9B, 0x9E, 0xA1, 0xA2}
MOVED = 0x9D
FOR_GOOD_3 = {1, 2, 4, 5}
BACKOFF = Backoff()
SESSION_EXPIRY_S = 300
FLUSH_S = 5.0           # how long the end of the context waits for acknowledgements
LEVEL_5 = 5


class Client(Publisher):
    """An MQTT client: `async with Client("localhost:1883") as client: …`.

    Belongs to one event loop and one thread. address: "host:port", "mqtt://…", "mqtts://…", "unix:/path", or several of
    them, for brokers that are one: when an attempt fails or the connection is lost, the next one is tried. client_id …
    will, session_expiry_s, receive_maximum: as ConnectOptions; options: instead of these, with all
    options. clean_start: of the first connection; later ones resume the session with MQTT 5 and repeat clean_start
    before. reconnect: None: never. lost: what happens to unacknowledged publishes if the server has lost the session:
    "republish" or "fail". manual_ack: messages are acknowledged only by `message.ack()`. max_pending: maximum number of
    publishes that wait for a connection or the server's window. max_queued: maximum number of unread messages. tls,
    server_name: as Connection.open. on_connected(): each connection was accepted; on_lost(error): it is lost, and the
    client connects again.
    """

    def __init__(self, address: str | Sequence[str], *, client_id: str = "", version: int = LEVEL_5,
                 clean_start: bool = True, keep_alive_s: int = 60, username: str | None = None,
                 password: bytes | str | None = None, will: Will | None = None,
                 session_expiry_s: int = SESSION_EXPIRY_S, receive_maximum: int = 1024,
                 options: ConnectOptions | None = None, tls: ssl.SSLContext | bool | None = None,
                 server_name: str | None = None, reconnect: Backoff | None = BACKOFF, lost: str = "republish",
                 manual_ack: bool = False, max_pending: int = 10_000, max_queued: int = 10_000,
                 connect_timeout_s: float = 10.0, on_connected: Callable[[], object] | None = None,
                 on_lost: Callable[[BaseException], object] | None = None) -> None:
        if lost not in ("republish", "fail"):
            raise UsageError(f'lost must be "republish" or "fail", not {lost!r}')
        super().__init__(max_pending, max_queued, manual_ack=manual_ack)
        self._addresses = Addresses(address)
        self.options = options or ConnectOptions(
            client_id=client_id, version=version, clean_start=clean_start, keep_alive_s=keep_alive_s, username=username,
            password=password, will=will, session_expiry_s=session_expiry_s, receive_maximum=receive_maximum)
        self.version = self.options.version
        self.connects = 0           # connections that were accepted
        self.messages = Inbox(self, manual=manual_ack)
        self._tls, self._server_name, self._timeout_s = tls, server_name, connect_timeout_s
        self._reconnect, self._republish = reconnect, lost == "republish"
        self._on_connected, self._on_lost = on_connected, on_lost
        self._disconnected: asyncio.Event
        self._task: asyncio.Task[None] | None = None
        self._why: BaseException | None = None          # why the last connection ended
        self._subscriptions = Subscriptions(self, self.messages)

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(0 if kind is not None else FLUSH_S)

    async def start(self) -> None:
        """Connect: to the first address that accepts. Raises the errors of Connection.open; of several addresses the
        last error, with those before it as its notes. Later connections are made automatically."""
        if self._task is not None or self._ended:
            raise UsageError("a client is started once")
        self._addresses.check()
        self._loop = asyncio.get_running_loop()
        self._disconnected, self._came = asyncio.Event(), asyncio.Event()
        try:
            await self._connect_first()
        except BaseException:
            self._ended = True
            raise
        self._task = asyncio.create_task(self._run())

    async def _connect_first(self) -> None:
        """Each address once, and each where one of them sends the client."""
        notes: list[str] = []
        left, was_sent = len(self._addresses), False
        while True:
            try:
                await self._connect(first=True)
                return
            except (OSError, ConnectionLost, ConnectRefused) as error:      # TimeoutError is an OSError
                sent = "" if was_sent else self._reference(error)
                left -= not was_sent
                if self._for_good(error) or (not left and not sent):
                    for note in notes:
                        error.add_note(note)
                    raise
                notes.append(f"{self.address}: {error}")
                self._addresses.failed(sent)
                was_sent = bool(sent)

    async def close(self, flush_s: float = 0) -> None:
        """Wait up to flush_s seconds for acknowledgements, then send DISCONNECT.

        Unacknowledged publishes then fail with NotConnected. The session ends on the server too, unless it was
        requested (clean_start=False). The end of `async with` waits five seconds, after an exception not at all.
        """
        connection = None
        task = self._task
        try:
            if flush_s and task is not None and not self._ended:
                # TimeoutError is an OSError. The waiting operations raise an error that ends the client meanwhile.
                with contextlib.suppress(OSError, FluxError):
                    async with asyncio.timeout(flush_s):
                        await self.flush()
        finally:
            connection = self._leave()      # also when this call was cancelled
        if task is not None:
            await asyncio.wait([task])
        if connection is not None:
            await connection.closed()
        await self._subscriptions.close()

    def _leave(self) -> Connection | None:
        """The part of close() that does not wait. DISCONNECT is first, so that later answers are ignored."""
        connection, self._connection = self._connection, None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if connection is not None:
            ends = self.version >= LEVEL_5 and self.options.clean_start and self.options.session_expiry_s
            connection.disconnect(0, Properties(session_expiry_interval=0) if ends and connection.is_open else None)
        self._end(None)
        self._subscriptions.cancel()
        return connection

    @property
    def address(self) -> str:
        """Of the connection, or of the next attempt."""
        return self._addresses.current

    @property
    def connack(self) -> ConnAck:
        """CONNACK of the current connection. Raises NotConnected if there is none."""
        if self._connection is None:
            raise NotConnected("there is no connection")
        return self._connection.connack

    async def _connect(self, *, first: bool = False) -> None:
        options = self.options
        if not first and self.version >= LEVEL_5:
            options = replace(options, clean_start=False)
        connection = await Connection.open(
            self.address, options, on_message=self._on_message, on_closed=self._on_closed,
            manual_ack=True, tls=self._tls, server_name=self._server_name, session=self._session,
            republish=self._republish, on_room=self._pump, on_accepted=self._subscriptions.renew,
            timeout_s=self._timeout_s)
        self._connection = connection
        self.connects += 1
        self._disconnected.clear()
        self._came.set()
        self._paused = False
        if not self.options.client_id and connection.client_id:
            self.options = replace(self.options, client_id=connection.client_id)
        if connection.connack.session_present:
            self._queued -= self.messages.clear() + self._subscriptions.clear_inboxes()
        self._subscriptions.renew(connection, connection.connack.session_present)    # those made meanwhile
        self._check_reading()
        self._pump()
        if self._on_connected is not None:
            self._loop.call_soon(self._on_connected)

    async def _run(self) -> None:
        """Reconnects whenever the connection is lost, until the client ends."""
        while True:
            await self._disconnected.wait()
            failure = self._why or ConnectionLost(0, "the server closed the connection")
            if self._reconnect is None or self._for_good(failure):
                self._end(failure)
                return
            if self._on_lost is not None:
                self._loop.call_soon(self._on_lost, failure)
            self._addresses.lost(self._reference(failure))
            ended = await self._connect_again(self._reconnect, failure)
            if ended is not None:
                self._end(ended)
                return

    async def _connect_again(self, backoff: Backoff, failure: BaseException) -> BaseException | None:
        """None: there is a connection; else what ends the client. A round of all addresses takes one delay."""
        for delay in backoff.delays():
            for _ in range(len(self._addresses)):
                await asyncio.sleep(delay / len(self._addresses))
                try:
                    await self._connect()
                    return None
                except (OSError, ConnectionLost, ConnectRefused) as error:      # TimeoutError is an OSError
                    failure = error
                    if self._for_good(error):
                        return error
                    self._addresses.failed(self._reference(error))
                except Exception as error:          # a protocol violation would repeat
                    return error
        return failure

    def _reference(self, error: BaseException) -> str:
        """The address of another server that an error tells; "": none that could be used."""
        told = error.reference if isinstance(error, (ConnectionLost, ConnectRefused)) else ""
        return self._addresses.reference(told) if told else ""

    def _for_good(self, error: BaseException) -> bool:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        if not isinstance(error, (ConnectionLost, ConnectRefused)):
            return not isinstance(error, OSError)
        if self.version >= LEVEL_5 and error.reason == MOVED:
            return not self._reference(error)
        return error.reason in (FOR_GOOD if self.version >= LEVEL_5 else FOR_GOOD_3)

    def _on_closed(self, error: BaseException | None, reason: int) -> None:
        self._connection = None
        self._why = error
        self._came.clear()
        self._disconnected.set()

    def _end(self, error: BaseException | None) -> None:
        """Gives up connecting, and fails all waiting operations."""
        if self._ended:
            return
        self._ended, self._error = True, error
        reason = error or NotConnected("the client was closed")
        self._fail_all(reason)
        self._subscriptions.fail(reason)
        self.messages.wake()
        if hasattr(self, "_came"):
            self._came.set()

    # Subscribing and receiving

    async def subscribe(self, topic_filter: str, qos: int = 0, *, handler: Handler | None = None,
                        no_local: bool = False, retain_as_published: bool = False, retain_handling: int = 0,
                        properties: PropertyList | None = None) -> int:
        """Subscribe until unsubscribe; the client repeats it on a new session. Returns the QoS that the server grants.

        handler: called with each matching message, which then does not go to `messages`: a plain function at once (it
        must not block), a coroutine function for one message after the other. The message is acknowledged when it has
        returned. Raises SubscribeRefused, UsageError, the error that ended the client. MQTT 5.0 section 3.8.
        """
        if not isinstance(topic_filter, str) or qos not in (0, 1, 2) or retain_handling not in (0, 1, 2):
            raise UsageError(f"a subscription is one topic filter (str), a qos and a retain_handling of 0 to 2, not "
                             f"{topic_filter!r}, {qos!r}, {retain_handling!r}")
        if handler is not None and not callable(handler):
            raise UsageError(f"a handler is a function or a coroutine function, not {handler!r}")
        options = qos | no_local << 2 | retain_as_published << 3 | retain_handling << 4
        if options > 2 and self.version < LEVEL_5:
            raise UsageError("no_local, retain_as_published and retain_handling need MQTT 5")
        return await self._subscriptions.subscribe(topic_filter, options, handler, properties)

    async def unsubscribe(self, *topic_filters: str) -> None:
        """End subscriptions, and wait for UNSUBACK. Raises SubscribeRefused, UsageError, the error that ended
        the client."""
        for name in topic_filters:
            if not isinstance(name, str):
                raise UsageError(f"a topic filter is a str, not {name!r}; several are several arguments")
        await self._subscriptions.unsubscribe(topic_filters)

    def queue(self, name: str) -> Queue:
        """A queue or stream of the server (docs/queues.md); MQTT 5."""
        if self.version < LEVEL_5:
            raise UsageError("queue helpers need MQTT 5; with 3.1.1 publish and subscribe to $queue/… yourself")
        return Queue(self, self._subscriptions, name)

    def _on_message(self, message: Message) -> None:
        connection = self._connection
        if connection is None:              # arrived with CONNACK in one read, so _connection is not set yet
            self._loop.call_soon(self._on_message_soon, message)
            return
        self._sort(Delivery(message, connection))

    def _on_message_soon(self, message: Message) -> None:
        if self._connection is not None:
            self._sort(Delivery(message, self._connection))

    def _sort(self, delivery: Delivery) -> None:
        """Passes it to its handlers, else to `messages`."""
        if self._queued >= self._max_queued and self._waiters and delivery.qos == 0:
            self.dropped += 1       # the socket is read only for an awaited answer
            return
        inboxes: Sequence[Inbox] = (self.messages,)
        if self._subscriptions.handled:
            inboxes = self._subscriptions.route(delivery, self.messages)
        for inbox in inboxes:
            self._queued += 1
            inbox.put(delivery)
        if self._queued >= self._max_queued:
            self._check_reading()
