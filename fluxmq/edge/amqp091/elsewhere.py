"""Methods on queues that another node has: that one is asked, and nothing of the client is handled before it answers.

The question goes behind what the client has published and settled before it. A refusal ends the channel, as one of this
node's queues does.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.amqp091_channel import ChannelMember
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.parts import Parts
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue.amqp_head import PULL_GIVEN, PULL_LIMITED, PULL_STALLED
from fluxmq._core.queue.queue import Queue
from fluxmq.edge.amqp091.channel_state import ChannelState, Consumer
from fluxmq.edge.amqp091.client import HOLD_CHANGE, HOLD_OWNER
from fluxmq.edge.amqp091.endings import Endings
from fluxmq.edge.asking import Asking, Undecided
from fluxmq.engine.exchanges.manager import no_queue
from fluxmq.engine.ports.definitions import Deferred
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.amqp.queues import AmqpQueues
from fluxmq.engine.queues.relays import ENDING, UNKNOWN, Answer, Attach, Refusal, Relays
from fluxmq.model.amqp import AmqpRefused, ReplyCode, text, wire

if TYPE_CHECKING:
    from fluxmq.edge.amqp091.client import Client

__all__ = ["BASIC_GET", "Elsewhere"]

# Class and method.
QUEUE_DECLARE, QUEUE_PURGE, QUEUE_DELETE = 50 << 16 | 10, 50 << 16 | 30, 50 << 16 | 40
BASIC_CONSUME, BASIC_GET = 60 << 16 | 20, 60 << 16 | 70


class Elsewhere:
    """Machine. refuse: ends a channel with a soft error, as ChannelMethods.on_channel_error does. answer:
    ChannelMethods.answer."""

    def __init__(self, hub: Hub, queues: AmqpQueues, relays: Relays, asking: Asking,
                 refuse: Callable[[Client, int, int, str, int], None], answer: Callable[..., None]) -> None:
        self.hub = hub
        self.queues = queues
        self.relays = relays
        self.asking = asking
        self.endings = Endings(queues.manager, relays, asking.start)
        self.refuse = refuse
        self._answer = answer

    def _ask(self, state: ChannelState, method: int, queue: Queue | None,
             ask: Callable[[Callable[[Answer], None]], object], then: Callable[[Any], None]) -> None:
        """ask: called with what is to be called with the answer. then: called with its value. queue: what is asked
        about; None: a queue for replies."""
        client = state.client

        def answered(answer: Answer) -> None:
            if client.connection.ended:
                return
            try:
                if state.channel.state is not state:
                    return
                if answer.refused is None:
                    then(answer.value)
                else:
                    refused = _refused(answer.refused, queue)
                    self.refuse(client, state.channel.number, refused.reason, refused.text, method)
            finally:
                client.release(HOLD_OWNER)

        client.hold(HOLD_OWNER)
        ask(answered)

    def _reply(self, state: ChannelState, method: m.Method, no_wait: bool) -> None:
        self._answer(state, method, self.hub.commits.mark, no_wait=no_wait)

    def declared(self, state: ChannelState, queue: Queue, name: bytes, method: m.QueueDeclare) -> None:
        """Queue.Declare of a queue that is there: its counts. Raises Undecided: the method is handled again when the
        owner has answered, and when the queue is gone, if it was about to end: then it may be another one. Raises
        AmqpRefused."""
        found, state.counted = state.counted, None
        if found is None or found[0] is not queue:
            self._count(state, queue)
            found, state.counted = state.counted, None
        if found is None:
            raise Undecided
        refused, counts = found[1].refused, found[1].value
        if refused is not None:
            raise _refused(refused, queue)
        self._reply(state, m.QueueDeclareOk(queue=text(name), message_count=counts[0], consumer_count=counts[2]),
                    method.no_wait)

    def _count(self, state: ChannelState, queue: Queue) -> None:
        """The counts of a queue become `counted`, before this returns or before the method is handled again."""
        at_once = True
        done: Callable[[], None] | None = None

        def answered(answer: Answer) -> None:
            if answer.refused in (ENDING, UNKNOWN) and not at_once:
                self.endings.when_gone(queue, lambda: gone(answer))
                return
            state.counted = queue, answer
            if done is not None:
                done()

        def gone(answer: Answer) -> None:
            if answer.refused == UNKNOWN and self.queues.get(*queue.address) is queue:
                state.counted = queue, answer       # its node does not have it, and nobody says why
            if done is not None:
                done()

        self.relays.ask(queue, "counts", (True,), answered)
        at_once = False
        if state.counted is None:
            done = self.asking.wait(state.client, lambda: None)

    def declared_reply(self, state: ChannelState, outbox: PeerOutbox, identity: int, method: m.QueueDeclare) -> None:
        """A passive Queue.Declare of a queue for replies."""
        name, no_wait = method.queue, method.no_wait
        self._ask(state, QUEUE_DECLARE, None, lambda answered: self.relays.ask_node(
            outbox, identity, "is_there", (state.client.vhost, name), answered),
            lambda _: self._reply(state, m.QueueDeclareOk(queue=name, message_count=0, consumer_count=1), no_wait))

    def purge(self, state: ChannelState, queue: Queue, no_wait: bool) -> None:
        """Queue.Purge."""
        self._ask(state, QUEUE_PURGE, queue, lambda answered: self.relays.ask(queue, "purge", (), answered),
                  lambda purged: self._reply(state, m.QueuePurgeOk(message_count=purged), no_wait))

    def delete(self, state: ChannelState, queue: Queue, method: m.QueueDelete) -> None:
        """Queue.Delete: when the node that has the queue says that it may be deleted, it is; without conditions also
        while that node is away, which drops the messages when it is back."""
        conditions = method.if_unused, method.if_empty

        def ask(answered: Callable[[Answer], None]) -> None:
            self.relays.ask(queue, "deletable", conditions, lambda answer: answered(
                Answer(value=0) if answer.refused and answer.refused.away and not any(conditions) else answer))

        self._ask(state, QUEUE_DELETE, queue, ask, lambda ready: self._delete(state, queue, ready, method.no_wait))

    def _delete(self, state: ChannelState, queue: Queue, ready: int, no_wait: bool) -> None:
        client = state.client

        def done(task: Any) -> None:
            failed = task.cancelled() or task.exception() is not None       # looked at even if nobody is told
            if client.connection.ended:
                return
            if state.channel.state is state and failed:
                error = None if task.cancelled() else task.exception()
                why = error.text if isinstance(error, QueueRefused) else "the queue could not be deleted"
                self.refuse(client, state.channel.number, ReplyCode.INTERNAL_ERROR, why, QUEUE_DELETE)
            elif state.channel.state is state:
                self._reply(state, m.QueueDeleteOk(message_count=ready), no_wait)
            client.release(HOLD_CHANGE)

        if self.queues.get(*queue.address) is not queue:  # it was deleted meanwhile
            self._reply(state, m.QueueDeleteOk(message_count=0), no_wait)
            return
        try:
            self.queues.manager.delete_for(queue.address, ready)
        except Deferred as deferred:
            client.hold(HOLD_CHANGE)
            self.asking.start(deferred.change()).add_done_callback(done)

    def consume(self, state: ChannelState, consumer: Consumer, method: m.BasicConsume) -> None:
        """Basic.Consume: its consumer has joined its group here; or a stream, which is to be opened."""
        if consumer.open is not None:
            self._ask(state, BASIC_CONSUME, consumer.queue, consumer.open,
                      lambda _: self._reply(state, m.BasicConsumeOk(consumer_tag=consumer.tag), method.no_wait))
            return
        member = consumer.members[0]
        asked = Attach(protocol="amqp", client=state.client.client_id, exclusive=method.exclusive,
                       group=wire(method.arguments.get("x-consumer-group", "")), priority=member.priority)
        self._ask(state, BASIC_CONSUME, consumer.queue,
                  lambda answered: self.relays.attach(consumer.queue, member, asked, answered),
                  lambda _: self._reply(state, m.BasicConsumeOk(consumer_tag=consumer.tag), method.no_wait))

    def get(self, state: ChannelState, queue: Queue, member: ChannelMember, again: Callable[[], None]) -> None:
        """Basic.Get. again: called if the message must be read from the owner's disk first."""
        def got(value: tuple[int, int]) -> None:
            outcome, member.remaining = value
            relay = queue.relay
            if outcome == PULL_LIMITED:
                self.refuse(state.client, state.channel.number, ReplyCode.PRECONDITION_FAILED,
                            f"{member.held} messages were got and not acknowledged: no more before some are", BASIC_GET)
            elif outcome == PULL_STALLED:
                again()
            elif outcome != PULL_GIVEN or not (
                    relay.take(member) if isinstance(relay, Parts) else
                    isinstance(relay, QueueRelay) and relay.of(member).take()):
                state.client.connection.write_when_durable(m.BasicGetEmpty().frame(state.channel.number),
                                                           self.hub.commits.mark)

        if not member.held and isinstance(queue.relay, QueueRelay) and not queue.relay.of(member).number:
            self.relays.attach(queue, member, Attach(protocol="amqp", client=state.client.client_id), lambda _: None)
        self._ask(state, BASIC_GET, queue, lambda answered: self.relays.ask(queue, "get", (), answered, member), got)


def _refused(refusal: Refusal, queue: Queue | None) -> AmqpRefused:
    """In RabbitMQ's words, where it has some: a queue that is about to go is not there any more."""
    if refusal in (ENDING, UNKNOWN) and queue is not None:
        return no_queue(*queue.address)
    return AmqpRefused(refusal.code or ReplyCode.NOT_FOUND, refusal.text)
