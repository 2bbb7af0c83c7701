"""Subscriptions of a client: repeats them on a new session and passes messages to their handlers."""
from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from fluxmq._core.client.properties import Properties
from fluxmq._core.mqtt.packets import Properties as PropertyList
from fluxmq.client.base import ClientBase
from fluxmq.client.connection import Connection
from fluxmq.client.errors import FluxError, NotConnected, SubscribeRefused, UsageError
from fluxmq.client.filters import check_filter, filter_matches, topic_part
from fluxmq.client.inbox import Delivery, Inbox
from fluxmq.client.reasons import reason_text

__all__ = ["Handler", "Subscription", "Subscriptions"]

Handler = Callable[[Delivery], Awaitable[None] | None]

ROUTES_MAX = 4096       # topics with cached handlers
FORMER_MAX = 256          # unsubscribed filters that may still get late messages


class _HandlerInbox(Inbox):
    """An inbox whose messages a plain function handles at once."""

    def __init__(self, client: ClientBase, handler: Handler) -> None:
        super().__init__(client, manual=client.manual_ack)
        self._handler = handler

    def put(self, delivery: Delivery) -> None:
        self._client.taken(1)
        try:
            given = self._handler(delivery)
            if inspect.iscoroutine(given):
                given.close()
                raise UsageError("a handler that awaits something must be a coroutine function (async def) "
                                 "itself, not a function that gives a coroutine")
        except Exception as error:
            _complain(delivery, error)
            return
        if not self._manual:
            delivery.settle()


class _Nobody(Inbox):
    """Acknowledges late messages of an ended subscription that had its own reader. They would otherwise count against
    the Receive Maximum until the connection ends."""

    def put(self, delivery: Delivery) -> None:
        self._client.taken(1)
        delivery.settle(self.drop_reason)


class Subscription:
    """One filter. inbox: for its messages, None: `client.messages`. granted: the code of SUBACK, -1 before.

    alone: another subscription of the same filter is an error and does not replace it.
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
        self.handler: Callable[[Delivery], Awaitable[None]] | None = None       # a coroutine function
        self.worker: asyncio.Task[None] | None = None
        self.ending = False         # UNSUBSCRIBE was sent
        self.previous: Subscription | None = None       # replaced by this one, if the server accepts

    @property
    def pending(self) -> bool:
        """Whether a SUBACK is awaited."""
        return self.answer is not None and not self.answer.done()

    def settle(self) -> None:
        """Wakes up all waiting operations."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(None)


class Subscriptions:
    """All subscriptions of a client, by filter. messages: inbox for messages without handler."""

    def __init__(self, client: ClientBase, messages: Inbox) -> None:
        self._client = client
        self._messages = messages
        self._entries: dict[str, Subscription] = {}
        self._routes: dict[str, list[Subscription]] = {}
        self._former: dict[str, Subscription] = {}
        self.handled = False        # whether any has its own inbox

    # Requests

    async def subscribe(self, topic_filter: str, options: int, handler: Handler | None,
                        properties: PropertyList | None) -> int:
        inbox: Inbox | None = None
        waits = handler is not None and (inspect.iscoroutinefunction(handler)
                                         or inspect.iscoroutinefunction(type(handler).__call__))
        if waits:
            inbox = Inbox(self._client, manual=self._client.manual_ack)
        elif handler is not None:
            inbox = _HandlerInbox(self._client, handler)
        entry = Subscription(topic_filter, options, properties, inbox)
        if waits:
            entry.handler = cast("Callable[[Delivery], Awaitable[None]]", handler)
        return await self.add(entry)

    async def add(self, entry: Subscription) -> int:
        """Adds and sends it, and waits for the answer."""
        check_filter(entry.topic_filter, entry.options)
        previous = await self._settled(entry.topic_filter)
        if previous is not None and (entry.alone or previous.alone):
            raise UsageError(f"this client is subscribed to {entry.topic_filter!r} already; another Client can be, too")
        self._entries[entry.topic_filter] = entry
        self._former.pop(entry.topic_filter, None)
        self._changed()
        if entry.handler is not None and entry.inbox is not None:
            entry.worker = asyncio.create_task(self._work(entry, entry.inbox, entry.handler))
        entry.granted, entry.error, entry.ending, entry.sent_on, entry.previous = -1, None, False, None, previous
        entry.answer = self._client.new_future()
        try:
            connection = self._client.connection
            if connection is not None and connection.is_open:
                self._send(connection, [entry])
            await self._answered(entry)
        except BaseException:
            self._take_back(entry)
            raise
        entry.previous = None
        if previous is not None:
            self._hand_over(previous, entry.inbox)
        return entry.granted

    async def _settled(self, topic_filter: str) -> Subscription | None:
        """Waits until no other operation on this filter is under way; returns its subscription."""
        self._client.check_ended(closed=NotConnected)
        while (entry := self._entries.get(topic_filter)) is not None and entry.answer is not None and entry.pending:
            self._client.waiting(1)
            try:
                await asyncio.wait([entry.answer])
            finally:
                self._client.waiting(-1)
            self._client.check_ended(closed=NotConnected)
        return entry

    def _take_back(self, entry: Subscription) -> None:
        """The server refused it, or the caller was cancelled: restores the previous subscription."""
        if self._entries.get(entry.topic_filter) is not entry:
            return
        self._forget(entry)
        connection = entry.sent_on
        previous, entry.previous = entry.previous, None
        if previous is not None:
            self._entries[entry.topic_filter] = previous
            self._changed()
        elif entry.granted < 0 and entry.error is None and connection is not None and connection.is_open:
            with contextlib.suppress(FluxError):
                connection.unsubscribe([entry.topic_filter])

    def _hand_over(self, previous: Subscription, inbox: Inbox | None) -> None:
        """It was replaced: the new handler gets the waiting messages."""
        self._stop(previous)
        if previous.inbox is not None:
            for delivery in previous.inbox.drain():
                (inbox or self._messages).put(delivery)
            previous.inbox.drop()

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
        gone = {name: entry for name in topic_filters if (entry := await self._settled(name)) is not None}
        self._client.check_ended(closed=NotConnected)
        for entry in gone.values():
            entry.ending = True
        try:
            while (answer := await self._unsubscribed(topic_filters)) is None:
                pass            # the connection ended before UNSUBACK: repeat on the next one
            codes, properties = answer
            for name, code in zip(topic_filters, codes, strict=False):
                if code >= 0x80 and name in gone:
                    gone[name].ending = False
        except UsageError:
            for entry in gone.values():
                entry.ending = False
            raise
        finally:
            for entry in gone.values():
                if entry.ending:
                    self._forget(entry)
                    self._expect_late(entry)
        refused = next((code for code in codes if code >= 0x80), 0)
        if refused:
            raise SubscribeRefused(refused, properties.text("reason_string") or reason_text(refused))

    async def end(self, entry: Subscription) -> None:
        """Unsubscribe it, if the client has not ended."""
        if self._client.ended:
            self._forget(entry)
        elif self._entries.get(entry.topic_filter) is entry:
            await self.unsubscribe([entry.topic_filter])

    def _expect_late(self, entry: Subscription) -> None:
        """The server may still send messages from before UNSUBSCRIBE."""
        if entry.inbox is not None and entry.topic_filter not in self._entries:
            nobody = _Nobody(self._client, manual=True)
            nobody.drop_reason = entry.inbox.drop_reason
            self._former[entry.topic_filter] = Subscription(entry.topic_filter, 0, None, nobody)
            if len(self._former) > FORMER_MAX:
                del self._former[next(iter(self._former))]
            self._changed()

    async def _unsubscribed(self, topic_filters: Sequence[str]) -> tuple[list[int], Properties] | None:
        """Sends UNSUBSCRIBE on the current or the next connection. None: it ended before the answer."""
        client = self._client
        await client.wait_connected()
        connection = client.connection
        assert connection is not None
        answer: asyncio.Future[tuple[list[int], Properties]] = asyncio.get_running_loop().create_future()

        def done(packet_id: int, codes: list[int]) -> None:
            if not answer.done():
                answer.set_result((codes, Properties(connection.answer_properties)))

        connection.unsubscribe(topic_filters, done)
        lost: asyncio.Future[None] = asyncio.ensure_future(connection.closed())
        client.waiting(1)
        try:
            both: list[asyncio.Future[Any]] = [answer, lost]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            client.waiting(-1)
            lost.cancel()
        return answer.result() if answer.done() else None

    def _send(self, connection: Connection, entries: list[Subscription]) -> None:
        """Sends one SUBSCRIBE for each, because properties and refusals differ."""
        for entry in entries:
            def done(_: int, codes: list[int], entry: Subscription = entry) -> None:
                entry.granted = codes[0]
                if codes[0] >= 0x80:
                    why = Properties(connection.answer_properties).text("reason_string") or reason_text(codes[0])
                    self._failed(entry, SubscribeRefused(
                        codes[0], f"the server did not take {entry.topic_filter!r}: {why}"))
                entry.settle()

            entry.granted, entry.sent_on = -1, connection
            try:
                connection.subscribe([(entry.topic_filter, entry.options)], done, entry.properties)
            except UsageError as error:
                self._failed(entry, error)
                entry.settle()

    def _failed(self, entry: Subscription, error: Exception) -> None:
        """Passes the error to the caller; of a repeated subscription, to its reader or the exception handler."""
        if entry.pending:
            entry.error = error
            self._take_back(entry)      # at once, because the next packet may be a message
        elif entry.alone and entry.inbox is not None:
            entry.inbox.fail(error)
        else:
            asyncio.get_running_loop().call_exception_handler({
                "message": f"the subscription to {entry.topic_filter!r} was not made again", "exception": error})

    # Called by the client

    def renew(self, connection: Connection, session_present: bool) -> None:
        """A new connection: subscribes to filters that the server may not have.

        Before publishes are resent, because they may be for this client itself.
        """
        self._send(connection, [entry for entry in self._entries.values() if entry.sent_on is not connection
                                and not entry.ending and (not session_present or entry.granted < 0)])

    def fail(self, error: BaseException) -> None:
        """The client ended."""
        for entry in self._entries.values():
            entry.error = error
            entry.settle()
            if entry.inbox is not None:
                entry.inbox.wake()

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancels the handlers' tasks, except the calling one. Returns them."""
        own = asyncio.current_task()
        workers = [entry.worker for entry in self._entries.values() if entry.worker not in (None, own)]
        for worker in workers:
            worker.cancel()
        return workers

    async def close(self) -> None:
        """Wait for the end of the handlers' tasks."""
        workers = self.cancel()
        if workers:
            await asyncio.wait(workers)

    def clear_inboxes(self) -> int:
        """Discards messages that the server resends. Returns how many."""
        return sum(entry.inbox.clear() for entry in self._entries.values() if entry.inbox is not None)

    def _forget(self, entry: Subscription) -> None:
        if self._entries.get(entry.topic_filter) is entry:
            del self._entries[entry.topic_filter]
        self._stop(entry)
        if entry.inbox is not None:
            self._client.taken(entry.inbox.drop())
        self._changed()

    def _stop(self, entry: Subscription) -> None:
        """Ends its task. The calling task ends when its handler returns."""
        worker, entry.worker = entry.worker, None
        if worker is not None and worker is not asyncio.current_task():
            worker.cancel()

    def _changed(self) -> None:
        self._routes.clear()
        self.handled = bool(self._former) or any(entry.inbox is not None for entry in self._entries.values())

    # Messages

    def route(self, delivery: Delivery, otherwise: Inbox) -> list[Inbox]:
        """The inboxes that get the message."""
        topic = delivery.topic
        entries = self._routes.get(topic)
        if entries is None:
            entries = [entry for entry in self._entries.values() if filter_matches(entry.part, topic)]
            if not entries:
                entries = [entry for entry in self._former.values() if filter_matches(entry.part, topic)][:1]
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = entries
        found = [entry.inbox for entry in entries if entry.inbox is not None]
        if not found or any(entry.inbox is None for entry in entries):
            found.append(otherwise)
        return found

    async def _work(self, entry: Subscription, inbox: Inbox, handler: Callable[[Delivery], Awaitable[None]]) -> None:
        """The task of a handler."""
        own = asyncio.current_task()
        assert own is not None
        with contextlib.suppress(FluxError, OSError):       # the error that ended the client is reported elsewhere
            async for delivery in inbox:
                try:
                    await handler(delivery)
                except asyncio.CancelledError as error:
                    if own.cancelling():
                        raise
                    inbox.skip()
                    _complain(delivery, error)      # something that the handler awaited was cancelled
                except Exception as error:
                    inbox.skip()
                    _complain(delivery, error)
                if entry.worker is not own:
                    return


def _complain(delivery: Delivery, error: BaseException) -> None:
    """Passes a handler's error to the loop's exception handler. The message stays unacknowledged; the next one
    follows."""
    asyncio.get_running_loop().call_exception_handler({
        "message": f"the handler of {delivery.topic!r} failed", "exception": error})
