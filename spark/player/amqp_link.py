"""One AMQP 0-9-1 connection of a replayed client: a Link (links.py) whose operations are methods.

    method       waits for its answer, and what follows on the connection waits behind it
    publish      a row until it is confirmed, or, without confirms, until a later round trip of its channel
    acknowledge  the n-th delivery of the recorded channel is the n-th one here: now, or as soon as it comes
    refused      the server closed the channel: the row says why, and a new one takes the number, with the confirms,
                 prefetch and consumers that the old one had
"""
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.client.amqp091_machine import AmqpLogin, AmqpMessage, AmqpRefused
from fluxmq._core.client.replay_rows import NO_VALUE, ReplayRows
from fluxmq._core.wire.queue_address import queue_topic
from fluxmq.client.amqp_connection import AmqpConnection
from fluxmq.spark.player.amqp_channel import AmqpChannel
from fluxmq.spark.player.amqp_operations import (
    ANSWERED,
    copy_of_exchange,
    copy_of_key,
    own_names,
    read_method,
    wire_content,
)
from fluxmq.spark.player.grace import Grace
from fluxmq.spark.player.links import (
    CLOSED,
    CONNECT_TIMEOUT_S,
    CONNECTED,
    DISCONNECTED,
    OPEN,
    OPENING,
    SUBSCRIBED,
    UNSUBSCRIBED,
    Link,
    Operation,
    PlayedClient,
)
from fluxmq.spark.player.operations import AMQP, SEND, SETTLE, ConnectRequest
from fluxmq.spark.player.options import PlayOptions
from fluxmq.spark.result import EVENTS

__all__ = ["AmqpLink"]

METHOD_SENT = EVENTS.index("method")
PROVE_EVERY = 256           # publishes of a channel without confirms between two round trips
UNCONFIRMED_MAX = 4096
NACKED = 128                # a publish that the broker refused
GUEST = "guest"
PROBE = m.ExchangeDeclare(exchange="amq.direct", type="direct", passive=True)      # changes nothing
SETUPS = {"confirm.select": "confirm", "tx.select": "tx", "basic.qos": "qos"}


class AmqpLink(Link):
    """Also the connection that its lane publishes on. vhost: as recorded."""

    def __init__(self, rows: ReplayRows, client: PlayedClient, options: PlayOptions, changed: Callable[[Link], None], *,
                 vhost: str) -> None:
        super().__init__(rows, client, options, changed, manual=True)
        self.vhost, self.address = vhost, options.amqp_address or options.address
        self.user = options.username or GUEST
        self.channels: dict[int, AmqpChannel] = {}
        self.blocked = False
        self.grace = Grace(self.clock)
        self.target: tuple[AmqpChannel, m.BasicPublish] | None = None

    # ── begin and end ────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, request: ConnectRequest, due: int = NO_VALUE) -> None:
        """Logs in; afterwards the state is OPEN or CLOSED."""
        self.state, self.client.opening = OPENING, True
        self.client.link = self
        said: dict[str, Any] = {"version": AMQP, "vhost": self.vhost}
        row = self.rows.record(CONNECTED, self.lane, self._next_op(), None, self.clock(), due=due, unfinished=True)
        password = self.options.password if self.options.username else GUEST
        made = self.made = AmqpConnection(AmqpLogin(self.user, password or "", self.vhost, "fluxmq replay",
                                                    self.client.name), self,
                                          lambda why: self._closed(why, why.code), self._room)
        try:
            await made.open(self.address, CONNECT_TIMEOUT_S)
            if made.disconnected.done():
                raise made.why or OSError("the connection was closed at once")
        except (OSError, TimeoutError, AmqpRefused) as error:
            code = getattr(error, "code", 0)
            self.rows.acknowledge(row, self.clock() if code else None, code,
                                  detail=json.dumps(said | {"error": str(error)}))
            self.state = CLOSED
            self.unreachable = "" if code else str(error) or type(error).__name__
        else:
            self.rows.acknowledge(row, self.clock(), detail=json.dumps(said))
            self.connection = made
            self.lane.attach(self)
            self.state = OPEN
        finally:
            self.client.opening = False
            self.changed(self)

    def may_end(self, loop: Any) -> bool:
        """Also waits until deliveries to be acknowledged have arrived, or none arrives any more."""
        left = self.grace.left_s(any(channel.promised for channel in self.channels.values()))
        if left:
            loop.call_later(left + 0.01, self.changed, self)
            return False
        return super().may_end(loop)

    def disconnect(self, reason: int, properties: Any, due: int = NO_VALUE, **said: Any) -> None:
        self.ending = True
        self.rows.record(DISCONNECTED, self.lane, self._next_op(), None, self.clock(), due=due, reason=reason,
                         detail=json.dumps({"by": "client", **said}))
        self.connection.close("the replay goes on without it")

    def on_closed(self, why: AmqpRefused) -> None:
        self.made.why = why

    def on_blocked(self, blocked: bool) -> None:
        self.blocked = blocked
        if not blocked:
            self._room()

    def _room(self) -> None:
        self.lane.stalled = False
        self.changed(self)

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────

    def perform(self, operation: Operation) -> bool:
        """False: it cannot be sent yet. Raises FluxError for an operation that cannot be encoded."""
        if self.unanswered:
            return False
        method = operation.method or ""
        number = operation.channel
        channel = self.channels.get(number)
        if method == "channel.open":
            self._open_channel(operation, channel)
            return True
        if channel is None:
            if operation.kind != SETTLE and method not in ANSWERED and method != "channel.close":
                self._begin_channel(AmqpChannel(number, known=False))
                return False
            return True
        if operation.kind == SEND:
            return self._publish(channel, operation)
        if operation.kind == SETTLE:
            found = json.loads(operation.detail) if operation.detail else {}
            self._send(channel, channel.settle(operation.tag, method, found))
            return True
        if method in ANSWERED:
            held = channel.unnamed[method]
            first = held.popleft() if held else None
            if first is not None:
                named = json.loads(operation.detail or "{}").get(ANSWERED[method], "")
                self._ask(channel, first, **{ANSWERED[method]: named})
            return True
        if method in ("channel.close", "basic.cancel") and not self.may_end(self.connection.loop):
            return False
        if (answer := method + "-ok") in ANSWERED and not json.loads(operation.detail or "{}").get("no_wait"):
            mine = own_names(method, operation.detail)
            channel.unnamed[answer].append(operation if mine else None)
            if mine:
                return True
        self._ask(channel, operation)
        return True

    def _ask(self, channel: AmqpChannel, operation: Operation, **named: str) -> None:
        """Sends a method and writes its row."""
        name = operation.method or ""
        method = read_method(name, operation.detail, operation.copy, **named)
        row = self._row(channel, name, method, operation.due)
        if not method.synchronous or name == "basic.recover-async":
            self.connection.cast(channel.number, method)
            self.rows.acknowledge(row, None)
            self._learn(channel, name, method)
            return
        if name == "basic.get":
            channel.get_acks, channel.credit.get_sent = not method.no_ack, self.clock()
        elif name == "tx.commit":
            channel.credit.commit(self.clock())
        elif name == "basic.consume":
            # Deliveries may arrive together with the answer.
            channel.consumers[method.consumer_tag] = (method.queue, not method.no_ack)
            self.subscribed = True

        def answered(answer: Any, why: AmqpRefused | None) -> None:
            said: dict[str, Any] = {"method": name, "channel": channel.number}
            if why is not None:
                self.rows.acknowledge(row, self.clock() if why.code else None, why.code,
                                      detail=json.dumps(said | {"error": str(why)}))
            else:
                said["answer"] = answer.name
                for field in ("message_count", "consumer_count"):
                    if hasattr(answer, field):
                        said[field] = getattr(answer, field)
                self.rows.acknowledge(row, self.clock(), 0, detail=json.dumps(said))
                self._learn(channel, name, method)
            self._answered()

        self._call(channel.number, method, answered)

    def _row(self, channel: AmqpChannel, name: str, method: Any, due: int) -> int:
        event, topic = METHOD_SENT, getattr(method, "queue", "") or getattr(method, "exchange", "")
        if name == "basic.consume":
            event, topic = SUBSCRIBED, queue_topic(method.queue)
        elif name == "basic.cancel":
            event, topic = UNSUBSCRIBED, queue_topic(channel.consumers.get(method.consumer_tag, ("", False))[0])
        said = json.dumps({"method": name, "channel": channel.number})
        return self.rows.record(event, self.lane, self._next_op(), topic.encode() if topic else None, self.clock(),
                                due=due, unfinished=True, detail=said)

    def _learn(self, channel: AmqpChannel, name: str, method: Any) -> None:
        """Applies a successful method to its channel."""
        channel.credit.learn(method, self.clock())
        if name in ("basic.recover", "basic.recover-async"):
            channel.recovered()
        elif name in SETUPS:
            channel.setup[SETUPS[name]] = method
            if name == "confirm.select" and not channel.confirms:
                # The broker numbers publishes from here; it has processed all earlier ones.
                self._confirmed(channel, channel.published, True, 0)
                channel.published, channel.confirms = 0, True
        elif name == "basic.consume":
            channel.setup["consumer " + method.consumer_tag] = method
        elif name == "basic.cancel":
            channel.setup.pop("consumer " + method.consumer_tag, None)
        elif name == "channel.close":
            self._over(channel, 0)
            self.channels.pop(channel.number, None)

    def _call(self, number: int, method: m.Method, done: Callable[[Any, AmqpRefused | None], None]) -> None:
        self.unanswered += 1
        self.connection.call(number, method, done)

    def _answered(self) -> None:
        self.unanswered = max(self.unanswered - 1, 0)         # none is left when the connection is gone
        self.changed(self)

    # ── channels ─────────────────────────────────────────────────────────────────────────────────────────────

    def _open_channel(self, operation: Operation, there: AmqpChannel | None) -> None:
        """Opens a channel as recorded. If one exists, it replaces a channel that was refused: it is closed first."""
        if there is not None:
            self._call(operation.channel, m.ChannelClose(reply_code=200), lambda _answer, _why: self._answered())
            self._over(there, 0)
        channel = AmqpChannel(operation.channel, known=True)
        row = self._row(channel, "channel.open", m.ChannelOpen(), operation.due)
        self._begin_channel(channel, row)

    def _begin_channel(self, channel: AmqpChannel, row: int | None = None) -> None:
        self.channels[channel.number] = channel

        def answered(_answer: Any, why: AmqpRefused | None) -> None:
            channel.usable = why is None
            if row is not None:
                self.rows.acknowledge(row, None if why else self.clock(), why.code if why else 0)
            self._answered()

        self._call(channel.number, m.ChannelOpen(), answered)

    def on_channel_closed(self, channel: int, why: AmqpRefused) -> None:
        found = self.channels.get(channel)
        if found is None:
            return
        self._over(found, why.code or NACKED)
        wanted = found.reopened()
        self._begin_channel(found)
        for method in wanted.values():
            self._call(channel, method, self._restored(found, method))

    def _restored(self, channel: AmqpChannel, method: m.Method) -> Callable[[Any, AmqpRefused | None], None]:
        def answered(_answer: Any, why: AmqpRefused | None) -> None:
            if why is None:
                self._learn(channel, method.name, method)
            self._answered()

        return answered

    def _over(self, channel: AmqpChannel, code: int) -> None:
        """Ends a channel: no confirm arrives on it any more."""
        channel.usable = False
        pending, channel.pending = channel.pending, {}
        for number in pending:
            self.lane.done((id(channel), number), code or -1)

    # ── publishes ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def window(self) -> int:
        return UNCONFIRMED_MAX - int(self.lane.unfinished)

    @property
    def writable(self) -> bool:
        return bool(self.connection.writable) and not self.blocked

    def _publish(self, channel: AmqpChannel, operation: Operation) -> bool:
        exchange, key = operation.exchange or "", (operation.topic or b"").decode()
        flags = json.loads(operation.detail) if operation.detail else {}
        method = m.BasicPublish(
            exchange=copy_of_exchange(exchange, operation.copy), routing_key=copy_of_key(exchange, key, operation.copy),
            mandatory=bool(flags.get("mandatory")), immediate=bool(flags.get("immediate")))
        properties = wire_content(operation.properties, exchange, operation.copy, self.user)
        self.target = channel, method
        return self.lane.publish(f"{method.exchange}/{method.routing_key}".encode(), 1, False, operation.size,
                                 operation.payload, properties, operation.due, row_qos=int(channel.confirms))

    def publish(self, _topic: bytes, payload: bytes, _qos: int, _retain: bool, properties: bytes,
                _done: Callable[[Any, int], None]) -> tuple[int, int]:
        """Called by the lane; returns the key under which it gets the confirm."""
        assert self.target is not None
        channel, method = self.target
        self.connection.publish(channel.number, method, properties, payload)
        channel.published += 1
        channel.pending[channel.published] = self.client.played.next_op - 1
        if not channel.confirms and channel.published % PROVE_EVERY == 0:
            self._probe(channel)
        return id(channel), channel.published

    def on_confirm(self, channel: int, number: int, multiple: bool, good: bool) -> None:
        found = self.channels.get(channel)
        if found is not None:
            self._confirmed(found, number, multiple, 0 if good else NACKED)

    def _confirmed(self, channel: AmqpChannel, tag: int, multiple: bool, code: int) -> None:
        for number, reason in channel.confirmed(tag, multiple, code):
            self.lane.done((id(channel), number), reason)

    def on_returned(self, message: AmqpMessage) -> None:
        """Handles a returned message, which precedes its confirm; its trace identifies it."""
        channel = self.channels.get(message.channel)
        if channel is not None and len(message.body) >= 16:
            channel.returned[int.from_bytes(message.body[8:16], "big")] = message.method.reply_code

    def prove(self) -> None:
        """Called by the lane: requests a round trip on each channel without confirms."""
        for channel in self.channels.values():
            if channel.pending and channel.usable and not channel.confirms:
                self._probe(channel)

    def _probe(self, channel: AmqpChannel, done: Callable[[], object] | None = None) -> None:
        upto = channel.published if not channel.confirms else -1

        def answered(_answer: Any, why: AmqpRefused | None) -> None:
            if why is None and upto > 0:
                self._confirmed(channel, upto, True, 0)
            if done is not None:
                done()

        self.connection.call(channel.number, PROBE, answered)

    def ping(self, done: Callable[[], object]) -> None:
        """A round trip on every channel that consumes."""
        wanted = [channel for channel in self.channels.values() if channel.usable and channel.consumers]
        left = len(wanted)
        if not left:
            self.connection.loop.call_soon(done)

        def one() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for channel in wanted:
            self._probe(channel, one)

    # ── deliveries ───────────────────────────────────────────────────────────────────────────────────────────

    def on_delivery(self, message: AmqpMessage) -> None:
        method = message.method
        self.grace.came()
        channel = self.channels.get(message.channel)
        consumed = isinstance(method, m.BasicDeliver)
        acked = channel is not None and (
            channel.consumers.get(method.consumer_tag, ("", True))[1] if consumed else channel.get_acks)
        due = NO_VALUE if channel is None else channel.credit.delivered(len(channel.got), method, acked)
        self.lane.take_parts(f"{method.exchange}/{method.routing_key}".encode("utf-8", "replace"), message.body,
                             int(acked and consumed), bool(method.redelivered), False, due)
        if channel is None:
            return
        self._send(channel, channel.arrived(method.delivery_tag, acked))
        if not channel.promised and self.client.waiting:
            self.changed(self)

    def on_cancelled(self, channel: int, tag: str) -> None:
        found = self.channels.get(channel)
        if found is not None:
            found.setup.pop("consumer " + tag, None)

    def _send(self, channel: AmqpChannel, methods: list[m.Method]) -> None:
        for method in methods:
            self.connection.cast(channel.number, method)
        channel.credit.settled(channel.taken_freed(), self.clock())

    def release(self) -> None:
        """Acknowledges the held deliveries, and from now on each on arrival."""
        for channel in self.channels.values():
            self._send(channel, channel.release())
