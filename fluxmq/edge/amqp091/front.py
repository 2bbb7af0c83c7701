"""The cold half of AMQP 0-9-1: a Front per listener is the `handler` of its connections.

    start-ok, tune-ok, open, update-secret    edge/amqp091/handshake.py
    every method of a channel                 edge/amqp091/channel.py, behind ChannelVerbs
    close, errors, ends, clocks               here
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from fluxmq._core.amqp091.methods import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUpdateSecret,
    decode_method,
)
from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.hub import Hub
from fluxmq.edge.amqp091.client import Client
from fluxmq.edge.amqp091.clients import Clients
from fluxmq.edge.amqp091.handshake import Handshake
from fluxmq.edge.amqp091.options import FrontOptions
from fluxmq.edge.amqp091.parts import FrontParts
from fluxmq.edge.amqp091.tally import Tally
from fluxmq.edge.asking import Asking, Undecided
from fluxmq.edge.recording import record_opened
from fluxmq.engine.ports.definitions import Deferred
from fluxmq.engine.ports.guard import Guard
from fluxmq.model.amqp import ReplyCode

if TYPE_CHECKING:
    from fluxmq._core.exchange.exchange import Exchanges
    from fluxmq._core.net.amqp091_connection import AmqpConnection

__all__ = ["ChannelVerbs", "Front"]

CLASS_CONNECTION = 10
PHASE_TLS = 0  # of _core/net/transport.pxd

# Of a definition that was not changed; of all other reasons, which pass, INTERNAL_ERROR.
CODES = {"not_found": ReplyCode.NOT_FOUND, "conflict": ReplyCode.PRECONDITION_FAILED,
         "full": ReplyCode.PRECONDITION_FAILED, "invalid": ReplyCode.PRECONDITION_FAILED}

# Reasons why the clock ends a connection -> (text for the log, label of its metric).
LATE = {
    "connect": ("no connection.open within server…read_timeout", "timeout"),
    "heartbeat": ("nothing heard for two heartbeats", "heartbeat"),
    "write": ("sent bytes were not taken for server…write_timeout", "write_timeout"),
}


class ChannelVerbs(Protocol):
    """The methods of channels; implemented by `edge/amqp091/channel.py`."""

    def on_method(self, client: Client, number: int, payload: bytes, /) -> None:
        """Handles a method on channel `number`."""

    def on_channel_error(self, client: Client, number: int, code: int, text: str, method: int, /) -> None:
        """Handles an error that ends a channel but not the connection. method: class << 16 | method."""

    def close(self, client: Client, then: Callable[[], None], /) -> None:
        """The client closes the connection: ends its channels and deletes its exclusive queues, then calls then(),
        unless the connection has ended by itself."""

    def may_publish(self, client: Client, exchange: bytes, key: bytes, /) -> int | None:
        """Whether this client may publish, as Asking.decide; called once for each pair."""

    def on_end(self, client: Client, /) -> None:
        """The connection has ended: ends its channels and deletes its exclusive queues."""

    def tick(self, client: Client, /) -> None:
        """Called about once a second."""


class Front(FrontParts):
    """Handler of every connection of one listener. channels: implements the methods of channels. username_from: the
    field of a client's certificate that names its user, "" = none. The others: as FrontParts."""

    def __init__(self, hub: Hub, asking: Asking, options: FrontOptions, tally: Tally, clients: Clients,
                 channels: ChannelVerbs, name: str, *, find_virtual_host: Callable[[str], Exchanges | None],
                 username_from: str = "", guard: Guard | None = None,
                 on_log: Callable[[str, str, str, dict[str, Any]], None],
                 log_connections: Callable[[], bool] = lambda: True) -> None:
        super().__init__(hub, asking, options, tally, clients, name, find_virtual_host=find_virtual_host, guard=guard,
                         on_log=on_log, log_connections=log_connections)
        self.channels = channels
        self.connections = 0
        self.handshake = Handshake(self, username_from)

    # ------------------------------------------------------------------ the handler's verbs

    def on_greeting(self, connection: AmqpConnection) -> None:
        """Called when a valid protocol header was received."""
        self.handshake.greet(connection)

    def on_method(self, connection: AmqpConnection, channel: int, payload: bytes) -> bool:
        """Handles a cold method. True: nothing was done yet, and the method is passed again when pending questions are
        answered."""
        client: Client = connection.state
        # If this raises, number stays set, and connection.close names the method.
        client.number = int.from_bytes(payload[:4], "big") if len(payload) >= 4 else 0
        of_connection = client.number >> 16 == CLASS_CONNECTION
        if channel and of_connection:
            raise ProtocolError(ReplyCode.COMMAND_INVALID, f"a method of the connection on channel {channel}")
        asks = False
        try:
            if channel:
                self.channels.on_method(client, channel, payload)
            elif of_connection:
                self._on_connection(client, payload)
            else:
                raise ProtocolError(ReplyCode.CHANNEL_ERROR, "a method of a channel on channel 0")
        except Undecided:
            asks = True
        except Deferred as deferred:
            refused = self.asking.change(client, deferred)
            if refused is not None:
                raise ProtocolError(CODES.get(refused.kind, ReplyCode.INTERNAL_ERROR), refused.text) from None
            asks = True
        client.number = 0
        return asks

    def _on_connection(self, client: Client, payload: bytes) -> None:
        method = decode_method(payload)
        if isinstance(method, ConnectionClose):
            self._on_close(client, method)
        elif isinstance(method, ConnectionUpdateSecret) and client.open:
            self.handshake.update_secret(client)
        else:
            self.handshake.on_method(client, method)

    def _on_close(self, client: Client, method: ConnectionClose) -> None:
        client.ended_by = "client"
        client.connection.end_code = method.reply_code
        if method.reply_code not in (0, ReplyCode.REPLY_SUCCESS):
            self.on_log("info", f"close {method.reply_code}", "the client closed the connection for a reason",
                        client.fields() | {"code": method.reply_code, "text": method.reply_text})
        self.channels.close(client, lambda: client.connection.close_after(ConnectionCloseOk().frame(0)))

    def on_channel_error(self, connection: AmqpConnection, channel: int, code: int, text: str, method: int) -> None:
        """Handles an error that ends a channel but not the connection."""
        self.channels.on_channel_error(connection.state, channel, code, text, method)
        connection.state.number = 0  # a later error of the connection is not about this method

    def on_bodies(self, connection: AmqpConnection) -> None:
        """Called while a body is received and those of all connections together are too large."""
        self.clients.turns.wait(connection.state)

    def may_publish(self, connection: AmqpConnection, exchange: bytes, key: bytes) -> int | None:
        """Called by the hot path once for each exchange, routing key and generation of the permissions. None: the
        question is under way."""
        return self.channels.may_publish(connection.state, exchange, key)

    def on_error(self, connection: AmqpConnection, code: int, text: str) -> None:
        """The client violated the protocol: sends connection.close if it has proved to speak AMQP, and logs the error.
        The caller ends the connection."""
        client: Client | None = connection.state
        fields = client.fields() if client is not None else {"listener": self.name}
        self.on_log("warning", f"protocol {self.name} {code}", text,
                    fields | {"peer": connection.peer} | ({"code": code} if code else {}))
        if client is None:
            self.tally.refusals["tls" if connection.phase == PHASE_TLS else "protocol"] += 1
            return
        if client.open:
            client.ended_by = "protocol_error"
        else:
            self.tally.refusals["malformed"] += 1
        client.number = client.number or connection.method
        client.say_goodbye(code, text)

    def on_given_up(self, connection: AmqpConnection, why: str) -> None:
        """The commit that an answer waited for was given up, so the answer cannot be sent. The client must connect
        again and repeat its request. The caller ends the connection."""
        client: Client | None = connection.state
        self.on_log("warning", f"given up {self.name}", f"connection closed: {why}",
                    (client.fields() if client is not None else {"listener": self.name}) | {"peer": connection.peer})
        if client is not None:
            client.ended_by = "error"
            client.say_goodbye(ReplyCode.INTERNAL_ERROR, why)

    def on_crash(self, connection: AmqpConnection, error: BaseException) -> None:
        client: Client | None = connection.state
        self.on_log("error", f"crash {type(error).__name__}", f"internal error, connection closed: {error!r}",
                    (client.fields() if client is not None else {"listener": self.name}) | {"error": error})
        if client is not None:
            if not client.open:
                self.tally.refusals["error"] += 1
            client.ended_by = "error"
            client.say_goodbye(ReplyCode.INTERNAL_ERROR, "internal error; the broker's log has more")

    def on_end(self, connection: AmqpConnection) -> None:
        """Called when the connection has ended for any reason."""
        self.connections -= 1
        self.asking.forget(connection)
        if connection.origin is not None:
            connection.origin.leave()
        client: Client | None = connection.state
        if client is not None and client.open:
            connection.end_why = client.ended_by
        elif not connection.end_why:
            connection.end_why = "lost" if connection.eof else "refused"
        if client is None or not client.open:
            return
        client.open = False
        connection.namespace.connections -= 1
        self.clients.open.pop(client.client_id, None)
        self.clients.turns.forget(client)
        self.tally.disconnections[client.ended_by] += 1
        self.channels.on_end(client)
        if self.log_connections():
            self.on_log("info", "", "disconnected", client.fields() | {"why": client.ended_by})

    def record_present(self, connection: AmqpConnection, reader: int) -> None:
        """Records that this connection was open when a recording, or a view, began."""
        record_opened(connection, self.name, reader)
        client: Client | None = connection.state
        if client is not None:
            client.record_accepted(reader)

    def on_late(self, connection: AmqpConnection, why: str) -> None:
        """Called when a time limit ended a connection; `why` as in AmqpConnection.tick."""
        client: Client | None = connection.state
        text, label = LATE[why]
        self.on_log("warning", f"late {self.name} {why}", text,
                    (client.fields() if client is not None else {"listener": self.name}) | {"peer": connection.peer})
        if client is not None and client.open:
            client.ended_by = label
        else:
            connection.end_why = "timeout"
            self.tally.refusals["timeout"] += 1
        connection.abort()
