"""The cold methods of channels, classes 20 to 90, in one file: each has its function, named as the specification does.

Hot methods (Basic.Publish, Ack, Nack, Reject, Deliver) are in _core/net/amqp091_connection and amqp091_channel. The
engine executes operations on exchanges and queues; this module decodes the methods and answers when they are on disk.
"""
from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.amqp091.fields import encode_table
from fluxmq._core.amqp091.topics import DIRECT_REPLY_TO
from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.amqp091_channel import Channel
from fluxmq._core.queue.queue import Queue
from fluxmq.edge.amqp091.channel_state import ChannelState
from fluxmq.edge.amqp091.client import HOLD_CHANNEL
from fluxmq.edge.amqp091.consumers import Consumers
from fluxmq.edge.amqp091.elsewhere import Elsewhere
from fluxmq.edge.amqp091.permissions import Permissions, unbroken
from fluxmq.edge.amqp091.reply import reply_text
from fluxmq.edge.asking import Asking, Undecided
from fluxmq.edge.shares import Shares
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.queues.amqp.queues import AmqpQueues
from fluxmq.engine.queues.relays import Relays
from fluxmq.model.amqp import ReplyCode, text, wire

if TYPE_CHECKING:
    from fluxmq.edge.amqp091.client import Client

__all__ = ["ChannelMethods"]

TAG_BYTES = 16
REPLY_TO = text(DIRECT_REPLY_TO)


class ChannelMethods:
    """Handler of all methods outside of class 10, for all connections of a node: see ChannelVerbs in front.py.

    later: schedules a call after some seconds. consumer_timeout_ms: 0 = none.
    """

    def __init__(self, hub: Hub, exchanges: ExchangeManager, queues: AmqpQueues, asking: Asking, relays: Relays, *,
                 later: Callable[[float, Callable[[], None]], Any], consumer_timeout_ms: int,
                 on_log: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        self.hub = hub
        self.exchanges = exchanges
        self.queues = queues
        self.asking = asking
        self.permissions = Permissions(asking)
        self.elsewhere = Elsewhere(hub, queues, relays, asking, self.on_channel_error, self.answer)
        self.consumers = Consumers(hub, queues, self.elsewhere, later, self.on_channel_error)
        self.departures = Shares(later)
        self.consumer_timeout_ms = consumer_timeout_ms
        self.on_log = on_log
        queues.manager.listeners.append(self.consumers)
        queues.manager.on_owner.append(self.consumers.owner_changed)
        relays.on_refused.append(self.consumers.refused)
        self._verbs: dict[type[m.Method], Callable[[Client, ChannelState, Any], None]] = {
            m.ChannelFlow: self.channel_flow, m.ChannelFlowOk: self.nothing,
            m.ExchangeDeclare: self.exchange_declare, m.ExchangeDelete: self.exchange_delete,
            m.ExchangeBind: self.exchange_bind, m.ExchangeUnbind: self.exchange_unbind,
            m.QueueDeclare: self.queue_declare, m.QueueBind: self.queue_bind, m.QueueUnbind: self.queue_unbind,
            m.QueuePurge: self.queue_purge, m.QueueDelete: self.queue_delete,
            m.BasicQos: self.basic_qos, m.BasicConsume: self.basic_consume, m.BasicCancel: self.basic_cancel,
            m.BasicCancelOk: self.nothing, m.BasicGet: self.basic_get, m.BasicRecover: self.basic_recover,
            m.BasicRecoverAsync: self.basic_recover_async, m.ConfirmSelect: self.confirm_select,
            m.TxSelect: self.tx_select, m.TxCommit: self.tx_commit, m.TxRollback: self.tx_rollback,
        }

    # ------------------------------------------------------------------ channels

    def on_method(self, client: Client, number: int, payload: bytes) -> None:
        """Handles a method on channel `number`, above 0. Raises ProtocolError."""
        method = m.decode_method(payload)
        if isinstance(method, m.ChannelOpen):
            opened = client.connection.open_channel(number)
            opened.state = ChannelState(client, opened)
            opened.on_emptied = self.consumers.emptied
            opened_ok = m.ChannelOpenOk().frame(number)
            if number in client.closing:  # the client sends on without waiting for the answer to its Channel.Close
                client.closing -= {number}
                client.connection.write_behind(opened_ok)
            else:
                client.connection.write(opened_ok)
            return
        channel = client.connection.channels.get(number)
        if isinstance(method, m.ChannelClose):
            self.end_channel(client, number, m.ChannelCloseOk())
            return
        if isinstance(method, m.ChannelCloseOk):
            if channel is not None and not channel.closing:
                raise ProtocolError(ReplyCode.COMMAND_INVALID, "channel.close-ok answers a close, and there was none")
            client.connection.close_channel(number, await_ok=False)
            return
        verb = self._verbs.get(type(method))
        if verb is None or channel is None:
            raise ProtocolError(ReplyCode.COMMAND_INVALID, f"{method.name} may not be sent by a client here")
        verb(client, channel.state, method)

    def on_channel_error(self, client: Client, number: int, code: int, why: str, method: int) -> None:
        """Ends a channel because of a soft error; the connection goes on."""
        self.on_log("warning", f"channel {client.client_id}", why, client.fields() | {"channel": number, "code": code})
        self.end_channel(client, number, m.ChannelClose(
            reply_code=code, reply_text=reply_text(code, why), class_id=method >> 16, method_id=method & 0xFFFF))

    def on_end(self, client: Client) -> None:
        """The connection has ended: ends its channels and deletes its exclusive queues."""
        for number in list(client.connection.channels):
            self.end_channel(client, number, None)
        self.departures.begin(self.queues.connection_closed(client))

    def close(self, client: Client, then: Callable[[], None]) -> None:
        """See ChannelVerbs."""
        queues = [queue for channel in client.connection.channels.values() if channel.state is not None
                  for queue in _used(channel.state)] + self.queues.owned(client)
        if not self.departures.begin(self._close(client, queues, then)):
            client.hold(HOLD_CHANNEL)

    def _close(self, client: Client, queues: list[Queue], then: Callable[[], None]) -> Iterator[None]:
        for channel in list(client.connection.channels.values()):
            state, channel.state = channel.state, None
            if state is not None:
                channel.begin_closing()
                yield from self.consumers.leave_all(channel, state)
                channel.close()
        yield from self.queues.connection_closed(client)
        if not client.connection.ended:
            client.release(HOLD_CHANNEL)
            self.elsewhere.endings.wait(client, queues, then)

    def may_publish(self, client: Client, exchange: bytes, key: bytes) -> int | None:
        """See ChannelVerbs."""
        allowed = self.permissions.decide_publish(client, text(exchange), text(key))
        if allowed == 0:
            self.on_log("warning", f"acl {client.client_id}", "publish denied",
                        client.fields() | {"user": client.identity, "exchange": text(exchange), "key": text(key)})
        return allowed

    def end_channel(self, client: Client, number: int, reply: m.ChannelClose | m.ChannelCloseOk | None) -> None:
        """Ends a channel: its consumers are removed and its unacknowledged messages are ready again. reply: sent to the
        client afterwards. If this takes more than this turn's share, nothing else of the connection is handled until it
        is done."""
        channel = client.connection.channels.get(number)
        if channel is None or channel.state is None:
            self._send_close(client, number, reply)
            return
        state, channel.state = channel.state, None
        channel.begin_closing()
        if not self.departures.begin(self._leave(client, channel, state, reply)) and not client.connection.ended:
            client.hold(HOLD_CHANNEL)

    def _leave(self, client: Client, channel: Channel, state: ChannelState, reply: Any) -> Iterator[None]:
        queues = _used(state)
        yield from self.consumers.leave_all(channel, state)
        channel.close()
        if client.connection.ended:
            return
        if client.connection.channels.get(channel.number) is channel and reply is not None:
            if isinstance(reply, m.ChannelCloseOk):
                self.elsewhere.endings.wait(client, queues, lambda: self._send_close(client, channel.number, reply))
            else:
                self._send_close(client, channel.number, reply)
        client.release(HOLD_CHANNEL)

    @staticmethod
    def _send_close(client: Client, number: int, reply: m.ChannelClose | m.ChannelCloseOk | None) -> None:
        if reply is not None:
            client.connection.close_channel(number, await_ok=isinstance(reply, m.ChannelClose))
            if client.connection.write_behind(reply.frame(number)) and isinstance(reply, m.ChannelCloseOk):
                client.closing |= {number}

    def tick(self, client: Client) -> None:
        """Ends channels whose consumers have not acknowledged for too long (consumer_timeout)."""
        if not self.consumer_timeout_ms:
            return
        for channel in list(client.connection.channels.values()):
            oldest = channel.oldest_ms() if not channel.closing else None
            if oldest is not None and oldest > self.consumer_timeout_ms:
                self.on_channel_error(client, channel.number, ReplyCode.PRECONDITION_FAILED,
                                      f"delivery acknowledgement on channel {channel.number} timed out. Timeout value "
                                      f"used: {self.consumer_timeout_ms} ms", 0)

    def nothing(self, client: Client, state: ChannelState, method: Any) -> None:
        """For a method that needs no reaction."""

    def channel_flow(self, client: Client, state: ChannelState, method: m.ChannelFlow) -> None:
        state.channel.stopped = not method.active
        if method.active:
            state.channel.start()
        client.connection.write(m.ChannelFlowOk(active=method.active).frame(state.channel.number))

    def answer(self, state: ChannelState, method: m.Method, since: int, *, no_wait: bool = False) -> None:
        """Sends an answer when everything recorded since the mark is committed."""
        if not no_wait:
            # Nothing was recorded, but the connection that made the present state may still wait for the disk.
            # Consume-Ok does not wait for that, because deliveries would overtake it.
            if not isinstance(method, m.BasicConsumeOk):
                self.hub.ledger.rely_on_earlier(since)
            state.client.connection.write_when_durable(method.frame(state.channel.number), since)

    # ------------------------------------------------------------------ exchanges

    def _use_exchange(self, client: Client, exchange: str) -> None:
        if not self.permissions.may_use_exchange(client, exchange):
            raise ProtocolError(ReplyCode.ACCESS_REFUSED, f"access to exchange '{exchange}' in vhost '{client.vhost}' "
                                                          f"refused for user '{client.identity or ''}'")

    def _lead_to(self, client: Client, exchange: object, key: object) -> None:
        """Checks that the client may publish to an exchange to which messages will be forwarded automatically."""
        if exchange == "":
            # The default exchange forwards to the queue of that name, or to any queue.
            if not self.permissions.may_publish(client, "", key if isinstance(key, str) else "#"):
                raise ProtocolError(ReplyCode.ACCESS_REFUSED, "access to dead letters by the default exchange refused "
                                                              f"for user '{client.identity or ''}'")
        elif isinstance(exchange, str):
            self._use_exchange(client, exchange)

    def _bind_from(self, client: Client, source: str, key: str) -> None:
        if not self.permissions.may_bind(client, source, key):
            raise ProtocolError(ReplyCode.ACCESS_REFUSED, f"access to bind to exchange '{source}' in vhost "
                                                          f"'{client.vhost}' refused for user "
                                                          f"'{client.identity or ''}'")

    def exchange_declare(self, client: Client, state: ChannelState, method: m.ExchangeDeclare) -> None:
        exchange = unbroken(method.exchange)
        if not method.passive:
            self._use_exchange(client, exchange)
            self._lead_to(client, method.arguments.get("alternate-exchange"), None)
        since = self.hub.commits.mark
        self.exchanges.declare(wire(client.vhost), wire(exchange), wire(method.type), passive=method.passive,
                               durable=method.durable, auto_delete=method.auto_delete, internal=method.internal,
                               arguments=encode_table(method.arguments))
        self.answer(state, m.ExchangeDeclareOk(), since, no_wait=method.no_wait)

    def exchange_delete(self, client: Client, state: ChannelState, method: m.ExchangeDelete) -> None:
        exchange = unbroken(method.exchange)
        self._use_exchange(client, exchange)
        since = self.hub.commits.mark
        self.exchanges.delete(wire(client.vhost), wire(exchange), method.if_unused)
        self.answer(state, m.ExchangeDeleteOk(), since, no_wait=method.no_wait)

    def exchange_bind(self, client: Client, state: ChannelState, method: m.ExchangeBind) -> None:
        source, destination = unbroken(method.source), unbroken(method.destination)
        self._bind_from(client, source, method.routing_key)
        self._use_exchange(client, destination)
        since = self.hub.commits.mark
        self.exchanges.bind(wire(client.vhost), wire(source), wire(destination), wire(method.routing_key),
                            encode_table(method.arguments), to_exchange=True)
        self.answer(state, m.ExchangeBindOk(), since, no_wait=method.no_wait)

    def exchange_unbind(self, client: Client, state: ChannelState, method: m.ExchangeUnbind) -> None:
        destination = unbroken(method.destination)
        self._use_exchange(client, destination)
        since = self.hub.commits.mark
        self.exchanges.unbind(wire(client.vhost), wire(method.source), wire(destination),
                              wire(method.routing_key), encode_table(method.arguments), to_exchange=True)
        self.answer(state, m.ExchangeUnbindOk(), since, no_wait=method.no_wait)

    # ------------------------------------------------------------------ queues

    def _named(self, client: Client, state: ChannelState, name: str) -> bytes:
        """The queue that a method names; an empty name means the one declared last on this channel."""
        queue_name = wire(name) or state.last_queue
        if not queue_name:
            raise ProtocolError(ReplyCode.NOT_FOUND, "no previously declared queue")
        self._use_queue(client, text(queue_name))
        return queue_name

    def _use_queue(self, client: Client, name: str) -> None:
        if not self.permissions.may_use_queue(client, name):
            raise ProtocolError(ReplyCode.ACCESS_REFUSED, f"access to queue '{name}' in vhost '{client.vhost}' refused "
                                                          f"for user '{client.identity or ''}'")

    def queue_declare(self, client: Client, state: ChannelState, method: m.QueueDeclare) -> None:
        named = unbroken(method.queue)
        if named == REPLY_TO:
            self.answer(state, m.QueueDeclareOk(queue=named, consumer_count=1), self.hub.commits.mark,
                        no_wait=method.no_wait)
            return
        # A queue for replies can only be asked for, also by who would make it.
        passive = method.passive or named.startswith(f"{REPLY_TO}.")
        name = wire(method.queue if method.passive else named)
        if not passive:
            if name:
                self._use_queue(client, text(name))
            self._lead_to(client, method.arguments.get("x-dead-letter-exchange"),
                          method.arguments.get("x-dead-letter-routing-key"))
        if not name and passive:
            name = self._named(client, state, "")
        home = self.queues.reply_elsewhere(wire(client.vhost), name) if passive else None
        if home is not None:
            state.last_queue = name
            self.elsewhere.declared_reply(state, *home, method)
            return
        since = self.hub.commits.mark
        declared = self.queues.declare(wire(client.vhost), name, passive=passive, durable=method.durable,
                                       exclusive_owner=client if method.exclusive else None, owner=client,
                                       auto_delete=method.auto_delete, arguments=method.arguments)
        state.last_queue = declared.name
        if declared.queue.relay is not None:
            self.elsewhere.declared(state, declared.queue, declared.name, method)
            return
        self.answer(state, m.QueueDeclareOk(queue=text(declared.name), message_count=declared.messages,
                                            consumer_count=declared.consumers), since, no_wait=method.no_wait)

    def queue_bind(self, client: Client, state: ChannelState, method: m.QueueBind) -> None:
        name = self._named(client, state, method.queue)
        key = wire(method.routing_key)
        if not method.queue and not key:
            key = name
        exchange = unbroken(method.exchange)
        self._bind_from(client, exchange, text(key))
        if exchange and wire(exchange) in self.exchanges.vhosts[wire(client.vhost)].exchanges:
            self.queues.find(wire(client.vhost), name, client)  # an error about the exchange is reported first
        since = self.hub.commits.mark
        self.exchanges.bind(wire(client.vhost), wire(exchange), name, key, encode_table(method.arguments))
        self.answer(state, m.QueueBindOk(), since, no_wait=method.no_wait)

    def queue_unbind(self, client: Client, state: ChannelState, method: m.QueueUnbind) -> None:
        name = self._named(client, state, method.queue)
        binding = (wire(client.vhost), wire(method.exchange), name, wire(method.routing_key),
                   encode_table(method.arguments))
        if self.exchanges.binds(*binding):
            self.queues.find(wire(client.vhost), name, client)  # it may be exclusive to another connection
        since = self.hub.commits.mark
        self.exchanges.unbind(*binding)
        self.answer(state, m.QueueUnbindOk(), since)

    def queue_purge(self, client: Client, state: ChannelState, method: m.QueuePurge) -> None:
        since = self.hub.commits.mark
        name = self._named(client, state, method.queue)
        queue = self.queues.find(wire(client.vhost), name, client)
        if queue.relay is not None:
            self.queues.purgeable(queue)
            self.elsewhere.purge(state, queue, method.no_wait)
            return
        purged = self.queues.purge(wire(client.vhost), name, client)
        self.hub.wake_up()
        self.answer(state, m.QueuePurgeOk(message_count=purged), since, no_wait=method.no_wait)

    def queue_delete(self, client: Client, state: ChannelState, method: m.QueueDelete) -> None:
        since = self.hub.commits.mark
        name = self._named(client, state, method.queue)
        queue = self.queues.get(wire(client.vhost), name)
        if queue is not None and queue.relay is not None:
            self.elsewhere.delete(state, self.queues.find(wire(client.vhost), name, client), method)
            return
        messages = self.queues.delete(wire(client.vhost), name, client,
                                      if_unused=method.if_unused, if_empty=method.if_empty)
        messages = self.asking.result_of(client.connection) or messages
        self.answer(state, m.QueueDeleteOk(message_count=messages), since, no_wait=method.no_wait)

    # ------------------------------------------------------------------ basic

    def basic_qos(self, client: Client, state: ChannelState, method: m.BasicQos) -> None:
        """As in RabbitMQ: global applies to the channel, otherwise the method applies to consumers that are added
        later."""
        if method.prefetch_size:
            raise ProtocolError(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            state.channel.prefetch_all = method.prefetch_count
            state.channel.start()
        else:
            state.channel.prefetch = method.prefetch_count
        client.connection.write(m.BasicQosOk().frame(state.channel.number))

    def basic_consume(self, client: Client, state: ChannelState, method: m.BasicConsume) -> None:
        reply = method.queue == REPLY_TO
        name = b"" if reply else self._named(client, state, method.queue)
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(TAG_BYTES)}"
        if tag in state.consumers:
            raise ProtocolError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        queue = self._reply_queue(state, method) if reply else self.queues.find(wire(client.vhost), name, client)
        since = self.hub.commits.mark
        consumer = state.consumers[tag] = self.consumers.join(
            client, state.channel, queue, tag, no_ack=method.no_ack, exclusive=method.exclusive,
            arguments=method.arguments)
        if queue.relay is not None:
            self.elsewhere.consume(state, consumer, method)
            return
        # Deliveries are sent at the end of this turn or later, after this answer.
        self.answer(state, m.BasicConsumeOk(consumer_tag=tag), since, no_wait=method.no_wait)

    def _reply_queue(self, state: ChannelState, method: m.BasicConsume) -> Queue:
        """Replies go to a queue that is not declared; its name replaces "amq.rabbitmq.reply-to" in reply-to."""
        if not method.no_ack:
            raise ProtocolError(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if state.channel.reply_to is not None:
            raise ProtocolError(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
        declared = self.queues.reply_queue(wire(state.client.vhost), state.client)
        state.channel.reply_to = declared.name
        return declared.queue

    def basic_cancel(self, client: Client, state: ChannelState, method: m.BasicCancel) -> None:
        consumer = state.consumers.pop(method.consumer_tag, None)
        if consumer is not None:
            self.consumers.cancel(consumer)
            if state.channel.reply_to is not None and self.queues.name_of(consumer.queue)[1] == state.channel.reply_to:
                state.channel.reply_to = None
        if not method.no_wait:
            cancel_ok = m.BasicCancelOk(consumer_tag=method.consumer_tag).frame(state.channel.number)
            self.elsewhere.endings.wait(client, [consumer.queue] if consumer is not None else [],
                                        lambda: client.connection.write(cancel_ok))

    def basic_get(self, client: Client, state: ChannelState, method: m.BasicGet) -> None:
        name = self._named(client, state, method.queue)
        queue = self.queues.find(wire(client.vhost), name, client)
        self.consumers.get_one(state, queue, no_ack=method.no_ack)

    def basic_recover(self, client: Client, state: ChannelState, method: m.BasicRecover) -> None:
        self.basic_recover_async(client, state, method)
        client.connection.write(m.BasicRecoverOk().frame(state.channel.number))

    def basic_recover_async(self, client: Client, state: ChannelState, method: Any) -> None:
        if not method.requeue:
            raise ProtocolError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
        state.channel.recover()

    # ------------------------------------------------------------------ confirms and transactions

    def confirm_select(self, client: Client, state: ChannelState, method: m.ConfirmSelect) -> None:
        if state.channel.transactional:
            raise ProtocolError(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        state.channel.confirming = True
        if not method.no_wait:
            client.connection.write(m.ConfirmSelectOk().frame(state.channel.number))

    def tx_select(self, client: Client, state: ChannelState, method: m.TxSelect) -> None:
        if state.channel.confirming:
            raise ProtocolError(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        state.channel.select_tx()
        client.connection.write(m.TxSelectOk().frame(state.channel.number))

    def tx_commit(self, client: Client, state: ChannelState, method: m.TxCommit) -> None:
        self._transactional(state)
        since = self.hub.commits.mark
        if client.connection.commit(state.channel):
            raise Undecided
        self.answer(state, m.TxCommitOk(), since)

    def tx_rollback(self, client: Client, state: ChannelState, method: m.TxRollback) -> None:
        self._transactional(state)
        state.channel.rollback()
        client.connection.write(m.TxRollbackOk().frame(state.channel.number))

    @staticmethod
    def _transactional(state: ChannelState) -> None:
        if not state.channel.transactional:
            raise ProtocolError(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")


def _used(state: ChannelState) -> list[Queue]:
    """The queues that a channel consumes or gets from."""
    return [*(consumer.queue for consumer in state.consumers.values()), *(queue for queue, _ in state.getters)]
