"""Consumers of channels: Basic.Consume becomes a member of a group, or readers of a stream; and Basic.Get."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.amqp091.fields import Timestamp
from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.amqp091_channel import Channel, ChannelMember, ChannelReader
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue.amqp_head import PULL_GIVEN, PULL_LIMITED, PULL_STALLED
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq.edge.amqp091.channel_state import ChannelState, Consumer
from fluxmq.edge.amqp091.client import HOLD_GET
from fluxmq.edge.amqp091.elsewhere import BASIC_GET, Elsewhere
from fluxmq.engine.queues.amqp.queues import AmqpQueues
from fluxmq.engine.queues.relays import Answer
from fluxmq.engine.queues.table import QueueListener
from fluxmq.model.amqp import AmqpRefused, ReplyCode, text, wire
from fluxmq.model.queue_arguments import AGE, AGE_SECONDS

if TYPE_CHECKING:
    from fluxmq.edge.amqp091.client import Client

__all__ = ["Consumers", "stream_position"]

CANCEL_NOTIFY = "consumer_cancel_notify"
PRIORITY_MAX = 2**31 - 1
AGAIN_S = 0.002  # delay before Basic.Get tries again while its message is read from disk


class Consumers(QueueListener):
    """Machine. later: schedules a call after some seconds. refuse: ends a channel with a soft error, as
    ChannelMethods.on_channel_error does."""

    def __init__(self, hub: Hub, queues: AmqpQueues, elsewhere: Elsewhere,
                 later: Callable[[float, Callable[[], None]], Any],
                 refuse: Callable[[Client, int, int, str, int], None]) -> None:
        self.hub = hub
        self.queues = queues
        self.elsewhere = elsewhere
        self.later = later
        self.refuse = refuse

    def join(self, client: Client, channel: Channel, queue: Queue, tag: str, *, no_ack: bool, exclusive: bool,
             arguments: dict[str, Any]) -> Consumer:
        """Basic.Consume. Raises ProtocolError: 406 for arguments that make no sense; 403 and 405 as AmqpQueues."""
        group = arguments.get("x-consumer-group", "")
        if not isinstance(group, str):
            raise ProtocolError(ReplyCode.PRECONDITION_FAILED, "invalid arg 'x-consumer-group': it is a name")
        priority = arguments.get("x-priority", 0)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise ProtocolError(ReplyCode.PRECONDITION_FAILED, f"invalid arg 'x-priority': {priority!r}")
        cancelled = arguments.get("x-cancel-on-ha-failover", False)
        if not isinstance(cancelled, bool):
            raise ProtocolError(ReplyCode.PRECONDITION_FAILED, f"invalid arg 'x-cancel-on-ha-failover': {cancelled!r}")
        consumer = Consumer(channel, queue, tag)
        consumer.cancel_on_failover = cancelled
        if queue.kind == QUEUE_STREAM:
            self.queues.whole(queue)
            self._read(client, consumer, wire(group), no_ack, arguments.get("x-stream-offset"))
        else:
            member = ChannelMember(channel, queue, wire(tag), no_ack=no_ack, prefetch=channel.prefetch)
            member.counts = self.queues.counts_deliveries(queue)
            member.client = client.client_id
            consumer.group = self.queues.consume(queue, member, exclusive=exclusive, owner=client, group=wire(group),
                                                 priority=max(-PRIORITY_MAX, min(PRIORITY_MAX, priority)))
            consumer.members = [member]
            channel.consumers.append(member)
        queue.notify()
        return consumer

    def _read(self, client: Client, consumer: Consumer, name: bytes, no_ack: bool, offset: Any) -> None:
        queue, channel, manager = consumer.queue, consumer.channel, self.queues.manager
        position = stream_position(offset, self.hub.now_ms)
        consumer.group = group = manager.group(queue, name) if name else None

        def make(part: Queue, group: Group | None, offsets: list[int]) -> list[ChannelReader]:
            if client.connection.ended or channel.closing:
                return []
            readers = [ChannelReader(channel, queue, log, wire(consumer.tag), offset, no_ack=no_ack,
                                     prefetch=channel.prefetch, group=group)
                       for log, offset in zip(part.logs, offsets, strict=True)]
            for reader in readers:
                reader.client = client.client_id
            consumer.members += readers
            channel.consumers.extend(readers)
            return readers

        def read(then: Callable[[Answer], None]) -> None:
            consumer.reading = manager.reads.open(queue, group, position, client.client_id, make, then, waits=False)

        if queue.relay is None:
            read(lambda answer: None)
        else:
            consumer.open = read

    def leave_all(self, channel: Channel, state: ChannelState) -> Iterator[None]:
        """Ends a channel's consumers: their unacknowledged messages are ready again, those of one consumer at each
        step."""
        for consumer in state.consumers.values():
            if consumer.queue in self.queues.manager.states:    # otherwise it was deleted between two steps
                self._leave(consumer)
                yield
        for member in [*channel.consumers, *state.getters.values()]:    # cancelled ones, and those of Basic.Get
            if isinstance(member, ChannelMember) and member.group is not None:
                self.queues.left(member.queue, member)
                member.queue.notify()
                yield
        channel.consumers.clear()
        state.getters.clear()

    def _leave(self, consumer: Consumer) -> None:
        for member in list(consumer.members):
            if isinstance(member, ChannelReader):
                self._leave_stream(consumer, member)
            else:
                if member.group is not None:
                    member.channel.withdraw(member)  # messages not sent yet do not count as redelivered
                self.queues.left(consumer.queue, member)
        self._stop_reading(consumer)
        consumer.queue.notify()

    def cancel(self, consumer: Consumer) -> None:
        """Basic.Cancel: messages delivered already may still be acknowledged until the channel closes."""
        for member in consumer.members:
            if isinstance(member, ChannelReader):
                self._leave_stream(consumer, member)
                continue
            member.cancel()
            if member.group is not None:
                member.channel.withdraw(member)
                self.queues.cancel(consumer.queue, member)
            if not member.held:
                self.emptied(member)
        self._stop_reading(consumer)
        consumer.queue.notify()

    def _leave_stream(self, consumer: Consumer, reader: ChannelReader) -> None:
        self.queues.manager.reads.leave(reader)
        consumer.channel.consumers.remove(reader)
        self.queues.manager.left(consumer.queue, consumer.group)

    def _stop_reading(self, consumer: Consumer) -> None:
        """Of a stream: partitions that are away are not opened any more."""
        if consumer.reading is not None:
            self.queues.manager.reads.cancel(consumer.reading)

    def emptied(self, member: ChannelMember) -> None:
        """Called when a cancelled consumer has settled its last message."""
        self.queues.left(member.queue, member)
        if member in member.channel.consumers:
            member.channel.consumers.remove(member)

    def queue_deleted(self, queue: Queue, members: list[Any]) -> None:
        """Notifies the queue's consumers, if their clients have the capability."""
        for member in members:
            if not isinstance(member, ChannelMember | ChannelReader):
                continue
            if isinstance(member, ChannelReader):
                member.leave()  # the channel has pointers to its claims
            if member in member.channel.consumers:
                member.channel.consumers.remove(member)
            state: ChannelState | None = member.channel.state
            if state is None:
                continue
            if member.tag is None:
                state.getters.pop((queue, member.no_ack), None)
                continue
            consumer = state.consumers.get(text(member.tag))
            if consumer is not None and member in consumer.members:     # else cancelled or notified already
                self._send_cancel(state, consumer)

    def queue_stopped(self, queue: Queue, members: list[Any]) -> None:
        """The queue is damaged: cancels and notifies its consumers, which may still settle their messages."""
        for member in members:
            self._stop(member)

    def owner_changed(self, queue: Queue) -> None:
        """See QueueTable.on_owner. While the node that has the queue is away its consumers wait, unless they have asked
        to be cancelled then."""
        if isinstance(queue.relay, QueueRelay) and not queue.relay.reachable:
            for member in self.queues.manager.members_of(self.queues.manager.states[queue]):
                if getattr(member, "queue", queue) is queue:  # else the others of its partitions go on
                    self._stop(member, for_failover=True)

    def refused(self, queue: Queue, member: Any, why: str) -> None:
        """See Relays.on_refused."""
        self._stop(member)

    def _stop(self, member: Any, *, for_failover: bool = False) -> None:
        """Cancels and notifies a consumer, which may still settle its messages. for_failover: only one that has asked
        for that."""
        if not isinstance(member, ChannelMember | ChannelReader) or member.tag is None:
            return
        state: ChannelState | None = member.channel.state
        consumer = state.consumers.get(text(member.tag)) if state is not None else None
        if (state is not None and consumer is not None and member in consumer.members
                and (consumer.cancel_on_failover or not for_failover)):
            self._send_cancel(state, consumer)
            self.cancel(consumer)

    @staticmethod
    def _send_cancel(state: ChannelState, consumer: Consumer) -> None:
        del state.consumers[consumer.tag]
        if CANCEL_NOTIFY in state.client.capabilities:
            cancel = m.BasicCancel(consumer_tag=consumer.tag, no_wait=True)
            state.client.connection.write(cancel.frame(state.channel.number))

    def get_one(self, state: ChannelState, queue: Queue, *, no_ack: bool, waited: bool = False) -> None:
        """Basic.Get: a message that is ready now, or Basic.Get-Empty."""
        channel, connection = state.channel, state.client.connection
        member = state.getters.get((queue, no_ack))
        if member is None or member.group is None:
            member = ChannelMember(channel, queue, None, no_ack=no_ack)
            member.counts = self.queues.counts_deliveries(queue)
            member.client = state.client.client_id
            self.queues.add_puller(queue, member)
            state.getters[queue, no_ack] = member
        if queue.relay is not None:
            self.elsewhere.get(state, queue, member, lambda: self._look_again(state, queue, no_ack))
            return
        queue.pump_now()
        member.remaining = max(self.queues.counts(queue)[0] - 1, 0)
        outcome = self.queues.ask(queue, member)
        if outcome == PULL_LIMITED and not waited:
            # The queue is not empty, but the client may get no more messages. The channel is closed, and its messages
            # are ready again.
            raise ProtocolError(ReplyCode.PRECONDITION_FAILED,
                                f"{member.held} messages were got and not acknowledged: no more before some are")
        if outcome == PULL_STALLED:
            # The message is on disk: nothing else of this connection is handled until it has been read.
            if not waited:
                state.client.hold(HOLD_GET)
            self.later(AGAIN_S, lambda: self._get_again(state, queue, no_ack))
            return
        if outcome != PULL_GIVEN:
            connection.write_when_durable(m.BasicGetEmpty().frame(channel.number), self.hub.commits.mark)
        if waited:
            state.client.release(HOLD_GET)

    def _look_again(self, state: ChannelState, queue: Queue, no_ack: bool) -> None:
        state.client.hold(HOLD_GET)
        self.later(AGAIN_S, lambda: self._get_again(state, queue, no_ack))

    def _get_again(self, state: ChannelState, queue: Queue, no_ack: bool) -> None:
        if state.client.connection.ended:
            return
        if state.channel.closing:  # for instance by consumer_timeout
            state.client.release(HOLD_GET)
            return
        if queue not in self.queues.manager.states:
            state.client.connection.write(m.BasicGetEmpty().frame(state.channel.number))
            state.client.release(HOLD_GET)
            return
        try:
            if queue.relay is not None:
                state.client.release(HOLD_GET)
            self.get_one(state, queue, no_ack=no_ack, waited=queue.relay is None)
        except AmqpRefused as refused:      # the queue turned out to be damaged
            self.refuse(state.client, state.channel.number, refused.reason, refused.text, BASIC_GET)
            state.client.release(HOLD_GET)


def stream_position(offset: Any, now_ms: int) -> str:
    """Converts x-stream-offset to a position: first, last, next, a number, a time, or a time span back (7D, 1h)."""
    if offset is None:
        return ""
    if isinstance(offset, Timestamp):
        return f"timestamp={int(offset) * 1000}"
    if isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0:
        return f"offset={offset}"
    if offset in ("first", "last", "next"):
        return str(offset)
    if isinstance(offset, str) and (age := AGE.fullmatch(offset)) is not None:
        return f"timestamp={max(0, now_ms - int(age[1]) * AGE_SECONDS[age[2]] * 1000)}"
    raise ProtocolError(ReplyCode.PRECONDITION_FAILED, f"invalid arg 'x-stream-offset': {offset!r}")
