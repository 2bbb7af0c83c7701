"""What a client is subscribed to: made again on a new session, and which messages go to which handler."""
from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from fluxmq._core.client_properties import Properties
from fluxmq._core.mqtt_packets import Properties as PropertyList
from fluxmq.client.connection import Connection
from fluxmq.client.errors import FluxError, NotConnected, SubscribeRefused, UsageError
from fluxmq.client.filters import filter_matches, topic_part
from fluxmq.client.inbox import Delivery, Inbox
from fluxmq.client.reasons import reason_text

if TYPE_CHECKING:
    from fluxmq.client.client import Client

__all__ = ["Handler", "Subscription", "Subscriptions"]

Handler = Callable[[Delivery], Awaitable[None] | None]

ROUTES_MAX = 4096       # topics whose handlers are remembered


class _HandlerInbox(Inbox):
    """An inbox that a plain function empties at once."""

    def __init__(self, client: Client, handler: Handler) -> None:
        super().__init__(client, manual=client.manual_ack)
        self._handler = handler

    def put(self, delivery: Delivery) -> None:
        self._client.taken(1)
        try:
            self._handler(delivery)
        except Exception as error:
            _complain(delivery, error)
            return
        if not self._manual:
            delivery.settle()


class Subscription:
    """One filter. inbox: where its messages go, None: to `client.messages`. granted: the code of SUBACK, -1 before.

    alone: another of the same filter is a mistake, and does not take its place.
    """

    def __init__(self, topic_filter: str, options: int, properties: PropertyList | None, inbox: Inbox | None,
                 *, alone: bool = False) -> None:
        self.topic_filter = topic_filter
        self.part = topic_part(topic_filter)
        self.options = options
        self.properties = properties
        self.inbox = inbox
        self.alone = alone
        self.granted = -1
        self.sent_on: Connection | None = None
        self.error: BaseException | None = None
        self.answer: asyncio.Future[None] | None = None
        self.worker: asyncio.Task[None] | None = None

    def settle(self) -> None:
        """Let whoever waits look."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(None)


class Subscriptions:
    """All of a client's, by filter."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._entries: dict[str, Subscription] = {}
        self._routes: dict[str, list[Subscription]] = {}
        self.handled = False        # whether any has an inbox of its own

    # Asking

    async def subscribe(self, topic_filter: str, options: int, handler: Handler | None,
                        properties: PropertyList | None) -> int:
        inbox: Inbox | None = None
        worker: Callable[[Delivery], Awaitable[None]] | None = None
        if handler is not None and inspect.iscoroutinefunction(handler):
            inbox, worker = Inbox(self._client, manual=self._client.manual_ack), handler
        elif handler is not None:
            inbox = _HandlerInbox(self._client, handler)
        entry = Subscription(topic_filter, options, properties, inbox)
        if worker is not None and inbox is not None:
            entry.worker = asyncio.create_task(self._work(inbox, worker))
        return await self.add(entry)

    async def add(self, entry: Subscription) -> int:
        """Keep it, send it, wait for the answer."""
        self._client.check_ended(closed=NotConnected)
        previous = self._entries.get(entry.topic_filter)
        if previous is not None and (entry.alone or previous.alone):
            raise UsageError(f"this client is subscribed to {entry.topic_filter!r} already; another Client can be, too")
        if previous is not None and previous.worker is not None:
            previous.worker.cancel()
        self._entries[entry.topic_filter] = entry
        self._changed()
        entry.answer = self._client.new_future()
        try:
            connection = self._client.connection
            if connection is not None and connection.is_open:
                self._send(connection, [entry])
            await self._answered(entry)
        except BaseException:
            self._forget(entry)
            raise
        return entry.granted

    async def _answered(self, entry: Subscription) -> None:
        assert entry.answer is not None
        self._client.waiting(1)
        try:
            await entry.answer
        finally:
            self._client.waiting(-1)
        if entry.error is not None:
            raise entry.error

    async def unsubscribe(self, topic_filters: Sequence[str]) -> None:
        client = self._client
        client.check_ended(closed=NotConnected)
        gone = [entry for name in topic_filters if (entry := self._entries.get(name)) is not None]
        for entry in gone:
            self._forget(entry)
        await client.wait_connected()
        connection = client.connection
        assert connection is not None
        answer: asyncio.Future[tuple[list[int], Properties]] = asyncio.get_running_loop().create_future()
        lost: asyncio.Future[None] = asyncio.ensure_future(connection.closed())

        def done(packet_id: int, codes: list[int]) -> None:
            if not answer.done():
                answer.set_result((codes, Properties(connection.told)))

        connection.unsubscribe(topic_filters, done)
        client.waiting(1)
        try:
            both: list[asyncio.Future[Any]] = [answer, lost]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            client.waiting(-1)
            lost.cancel()
        if not answer.done():
            raise NotConnected("the connection ended before UNSUBACK")
        codes, told = answer.result()
        refused = next((code for code in codes if code >= 0x80), 0)
        if refused:
            raise SubscribeRefused(refused, told.text("reason_string") or reason_text(refused))

    def _send(self, connection: Connection, entries: list[Subscription]) -> None:
        """One SUBSCRIBE for each: they have their own properties, and their own refusals."""
        for entry in entries:
            def done(_: int, codes: list[int], entry: Subscription = entry) -> None:
                entry.granted = codes[0]
                if codes[0] >= 0x80:
                    said = Properties(connection.told).text("reason_string") or reason_text(codes[0])
                    entry.error = SubscribeRefused(codes[0], f"the server did not take {entry.topic_filter!r}: {said}")
                entry.settle()

            entry.granted, entry.sent_on = -1, connection
            try:
                connection.subscribe([(entry.topic_filter, entry.options)], done, entry.properties)
            except UsageError as error:
                self._forget(entry)
                entry.error = error
                entry.settle()

    # The life of the client

    def renew(self, connection: Connection, session_present: bool) -> None:
        """A new connection: subscribe what the server does not know, or may not know.

        Before publishes are sent again, for they may be meant for this client itself.
        """
        self._send(connection, [entry for entry in self._entries.values() if entry.sent_on is not connection
                                and (not session_present or entry.granted < 0)])

    def fail(self, error: BaseException) -> None:
        """The client ended."""
        for entry in self._entries.values():
            entry.error = error
            entry.settle()
            if entry.inbox is not None:
                entry.inbox.wake()

    async def close(self) -> None:
        """End the handlers' tasks."""
        workers = [entry.worker for entry in self._entries.values() if entry.worker is not None]
        own = asyncio.current_task()
        for worker in workers:
            if worker is not own:
                worker.cancel()
        for worker in workers:
            if worker is not own:
                with contextlib.suppress(asyncio.CancelledError):
                    await worker

    def clear_inboxes(self) -> int:
        """Messages that the server sends again; how many."""
        return sum(entry.inbox.clear() for entry in self._entries.values() if entry.inbox is not None)

    def remove(self, entry: Subscription) -> None:
        """Forget it without a word to the server."""
        self._forget(entry)

    def _forget(self, entry: Subscription) -> None:
        if self._entries.get(entry.topic_filter) is entry:
            del self._entries[entry.topic_filter]
        if entry.worker is not None:
            entry.worker.cancel()
        if entry.inbox is not None:
            self._client.taken(len(entry.inbox))
        self._changed()

    def _changed(self) -> None:
        self._routes.clear()
        self.handled = any(entry.inbox is not None for entry in self._entries.values())

    # Messages

    def route(self, delivery: Delivery, otherwise: Inbox) -> list[Inbox]:
        """Whose message it is."""
        topic = delivery.topic
        entries = self._routes.get(topic)
        if entries is None:
            entries = [entry for entry in self._entries.values() if filter_matches(entry.part, topic)]
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = entries
        found = [entry.inbox for entry in entries if entry.inbox is not None]
        if not found or any(entry.inbox is None for entry in entries):
            found.append(otherwise)
        return found

    async def _work(self, inbox: Inbox, handler: Callable[[Delivery], Awaitable[None]]) -> None:
        """The task of a handler."""
        with contextlib.suppress(FluxError):            # the end of the client; others hear of it
            async for delivery in inbox:
                try:
                    await handler(delivery)
                except Exception as error:
                    inbox.skip()
                    _complain(delivery, error)


def _complain(delivery: Delivery, error: Exception) -> None:
    """What a handler raises is the loop's to tell; the message is not acknowledged, and the next one comes."""
    asyncio.get_running_loop().call_exception_handler({
        "message": f"the handler of {delivery.topic!r} failed", "exception": error})
