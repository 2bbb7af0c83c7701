"""Queues and streams of the server, over MQTT 5: publish, consume, settle. See docs/queues.md."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from fluxmq._core.client.properties import Properties
from fluxmq._core.client.publishing import Publishing
from fluxmq._core.mqtt.packets import Properties as PropertyList
from fluxmq._core.wire.queue_address import queue_topic
from fluxmq.client.errors import UsageError
from fluxmq.client.inbox import Delivery, Inbox
from fluxmq.client.publisher import Payload, Publisher
from fluxmq.client.results import PublishResult
from fluxmq.client.subscriptions import Subscription, Subscriptions

__all__ = ["Queue", "QueueConsumer", "QueueMessage"]

REFUSED = 0x80      # PUBACK with this is a $nack
Offset = str | int | datetime
User = Mapping[str, str] | Iterable[tuple[str, str]]


class Queue:
    """A queue or stream of a name. Created by Client.queue."""

    def __init__(self, client: Publisher, subscriptions: Subscriptions, name: str) -> None:
        if not name or any(sign in name for sign in "/+#"):
            raise UsageError(f"a queue's name is one level of a topic: {name!r}")
        self.client = client
        self.subscriptions = subscriptions
        self.name = name

    def _properties(self, key: str | None, priority: int | None, delay_s: float | None, not_before: datetime | None,
               producer: tuple[str, int] | None, user: User, properties: PropertyList | None) -> Properties:
        pairs: list[tuple[str, str]] = list(user.items() if isinstance(user, Mapping) else user)
        if key is not None:
            pairs.append(("partition-key", key))
        if priority is not None:
            pairs.append(("priority", str(priority)))
        if delay_s is not None:
            pairs.append(("x-delay", str(round(delay_s * 1000))))
        if not_before is not None:
            pairs.append(("not-before", str(_milliseconds(not_before))))
        if producer is not None and (not isinstance(producer, tuple) or len(producer) != 2):
            raise UsageError(f"producer is (id, sequence), not {producer!r}")
        if producer is not None:
            pairs += [("producer-id", producer[0]), ("producer-sequence", str(producer[1]))]
        return Properties(properties or (), user=pairs)

    async def publish(self, payload: Payload = b"", *, key: str | None = None, routing_key: str = "",
                      priority: int | None = None, delay_s: float | None = None, not_before: datetime | None = None,
                      producer: tuple[str, int] | None = None, user: User = (), qos: int = 1,
                      properties: PropertyList | None = None) -> PublishResult:
        """Append a message, and wait until it is on the server's disk.

        key: of the partition. routing_key: such as "eu/west". priority: 0 to 255. delay_s (seconds), not_before (a
        time): earliest delivery. producer: (id, sequence); duplicates are dropped. user: further user properties.
        Raises as Client.publish; PublishRefused has a text with the reason.
        """
        return await self.client.publish(self.topic(routing_key), payload, qos, False, self._properties(
            key, priority, delay_s, not_before, producer, user, properties))

    def publish_nowait(self, payload: Payload = b"", *, key: str | None = None, routing_key: str = "",
                       priority: int | None = None, delay_s: float | None = None, not_before: datetime | None = None,
                       producer: tuple[str, int] | None = None, user: User = (), qos: int = 1,
                       properties: PropertyList | None = None) -> Publishing:
        """As publish, without waiting; raises as Client.publish_nowait."""
        return self.client.publish_nowait(self.topic(routing_key), payload, qos, False, self._properties(
            key, priority, delay_s, not_before, producer, user, properties))

    def topic(self, routing_key: str = "") -> str:
        """The topic of the queue, or of a routing key in it."""
        return queue_topic(self.name, routing_key)

    def consume(self, *, group: str | None = None, prefetch: int | None = None, ack: str = "manual",
                routing: str = "#", offset: Offset | None = None, visibility_timeout_s: float | None = None,
                max_retries: int | None = None, initial_backoff_s: float | None = None,
                max_backoff_s: float | None = None, backoff_multiplier: float | None = None,
                exclusive: bool | None = None, qos: int = 1) -> QueueConsumer:
        """Consume: `async for message in queue.consume(…)`, or `async with` to end it before the client.

        group: consumers that share the messages; of a stream, that share a position. prefetch: maximum number of
        unsettled messages. ack: "manual": settled by ack(), nack() or reject(); "auto": when the next one is requested.
        routing: a filter of routing keys. offset: first position: "first", "last", "next", "resume", a number, a
        datetime. exclusive: partitions belong to one consumer each; None: as the group has it. The rest is the group's
        retry policy. The first request for a message raises SubscribeRefused, or
        UsageError if this client already consumes the same, because a client has one subscription to a filter.
        """
        if ack not in ("auto", "manual"):
            raise UsageError(f'ack must be "auto" or "manual", not {ack!r}')
        numbers = {"prefetch": prefetch, "visibility-timeout": visibility_timeout_s, "max-retries": max_retries,
                   "initial-backoff": initial_backoff_s, "max-backoff": max_backoff_s,
                   "backoff-multiplier": backoff_multiplier}
        pairs = [("ack", ack)]
        if group is not None:
            pairs.append(("consumer-group", group))
        pairs += [(name, _number(value)) for name, value in numbers.items() if value is not None]
        if exclusive is not None:
            pairs.append(("exclusive", "true" if exclusive else "false"))
        if offset is not None:
            pairs.append(("offset", _offset(offset)))
        topic_filter = self.topic() if routing == "#" else self.topic(routing)
        return QueueConsumer(self, topic_filter, qos, Properties(user=pairs), manual=ack == "manual")


class QueueMessage:
    """A message of a queue, delivered to this consumer."""

    __slots__ = ("_consumer", "_delivery", "_user_properties", "properties")

    def __init__(self, delivery: Delivery, consumer: QueueConsumer) -> None:
        self._delivery = delivery
        self._consumer = consumer
        self.properties = delivery.properties
        self._user_properties = self.properties.user_dict

    @property
    def topic(self) -> str:
        return self._delivery.topic

    @property
    def payload(self) -> bytes:
        return self._delivery.payload

    @property
    def qos(self) -> int:
        return self._delivery.qos

    @property
    def retain(self) -> bool:
        return self._delivery.retain

    @property
    def dup(self) -> bool:
        return self._delivery.dup

    @property
    def text(self) -> str:
        """The payload as UTF-8. Raises UnicodeDecodeError."""
        return self._delivery.text

    @property
    def routing_key(self) -> str:
        """The routing key; of a captured message, its topic; "": none."""
        return self.topic.removeprefix(self._consumer.queue.topic()).removeprefix("/")

    @property
    def key(self) -> str | None:
        """The partition key of the publish."""
        return self._user_properties.get("partition-key")

    @property
    def message_id(self) -> str:
        """Partition and offset."""
        return self._user_properties["message-id"]

    @property
    def offset(self) -> int:
        """Offset in its partition."""
        return int(self._user_properties["offset"])

    @property
    def group(self) -> str | None:
        """The group that it was delivered to."""
        return self._user_properties.get("group-id")

    @property
    def delivery_count(self) -> int:
        """Number of deliveries, including this one; 1 of a stream."""
        return int(self._user_properties.get("delivery-count", "1"))

    @property
    def redelivered(self) -> bool:
        return self.delivery_count > 1      # computed, because a producer may set any user property

    @property
    def source_topic(self) -> str | None:
        """The topic to which a captured message was published."""
        return self._user_properties.get("x-source-topic")

    async def ack(self, *, upto: bool = False) -> None:
        """Settles the message. upto: also every earlier unsettled message of the partition that this client has.

        With ack="auto" it sends PUBACK. Raises PublishRefused if another consumer has the message by now.
        """
        if self._consumer.manual:
            await self._order("ack", upto=upto)
        elif upto:
            raise UsageError('upto needs ack="manual"')
        else:
            self._delivery.settle()

    async def nack(self, *, delay_s: float | None = None) -> None:
        """Requests redelivery after delay_s, or after the backoff of the group."""
        if self._consumer.manual:
            await self._order("nack", {} if delay_s is None else {"delay": str(round(delay_s * 1000))})
        elif delay_s is not None:
            raise UsageError('a delay needs ack="manual"')
        else:
            self._delivery.settle(REFUSED)

    async def reject(self, reason: str | None = None) -> None:
        """Dead-letters the message. reason: of the dead letter."""
        await self._order("reject", {} if reason is None else {"reason": reason})

    async def extend(self, lease_s: float) -> None:
        """Extends the visibility timeout to lease_s from now; 0: until this client leaves."""
        await self._order("extend", {"lease": str(round(lease_s * 1000))})

    async def commit(self) -> None:
        """Of a stream: stores the position behind this message for the group."""
        await self._order("commit")

    async def _order(self, order: str, more: Mapping[str, str] | None = None, *, upto: bool = False) -> None:
        if not self._consumer.manual:
            raise UsageError(f'{order} needs ack="manual"')
        about = {"message-id": self.message_id, **(more or {})}
        if self.group is not None:
            about["group-id"] = self.group
        if upto:
            about["upto"] = "true"
        queue = self._consumer.queue
        await queue.client.publish(queue.topic(f"${order}"), b"", 1, False, Properties(user=about))

    def __repr__(self) -> str:
        message_id = self._user_properties.get("message-id")
        return f"QueueMessage({message_id}, topic={self.topic!r}, payload={self.payload[:64]!r})"


class QueueConsumer:
    """A subscription to a queue: an async iterator of QueueMessage. Created by Queue.consume."""

    def __init__(self, queue: Queue, topic_filter: str, qos: int, properties: Properties, *, manual: bool) -> None:
        self.queue = queue
        self.manual = manual
        # PUBACK is sent when the next message is requested. With "manual" it only confirms the receipt.
        self._inbox = Inbox(queue.client, manual=False)
        if not manual:
            self._inbox.drop_reason = REFUSED       # messages not handled before the stop are refused
        self._entry = Subscription(topic_filter, qos, properties, self._inbox, alone=True)
        self._started = False

    async def start(self) -> None:
        """Subscribe, which iteration also does. Raises SubscribeRefused, the error that ended the client."""
        if not self._started:
            await self.queue.subscriptions.add(self._entry)
            self._started = True

    async def stop(self) -> None:
        """Unsubscribe; unsettled messages go to other consumers. Does nothing if the client has ended."""
        if self._started:
            self._started = False
            await self.queue.subscriptions.end(self._entry)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> QueueMessage:
        if not self._started:
            await self.start()
        return QueueMessage(await self._inbox.__anext__(), self)


def _milliseconds(when: datetime) -> int:
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _offset(offset: Offset) -> str:
    return f"timestamp={_milliseconds(offset)}" if isinstance(offset, datetime) else str(offset)
