"""The edge's state of one AMQP 0-9-1 client: its identity, its client properties, how it ended.

The compiled AmqpConnection handles the frames; the Client is its `state` from the protocol header on.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluxmq._core.amqp091.fields import decode_table
from fluxmq.edge.amqp091.reply import close_frame
from fluxmq.edge.recording import record_accepted
from fluxmq.engine.ports.clients import ClientInfo
from fluxmq.model.amqp import ReplyCode

if TYPE_CHECKING:
    from fluxmq._core.memory.namespace import Namespace
    from fluxmq._core.net.amqp091_connection import AmqpConnection

__all__ = ["HOLD_BODY", "HOLD_CHANGE", "HOLD_CHANNEL", "HOLD_END", "HOLD_GET", "HOLD_LOGIN", "HOLD_MEMORY",
           "HOLD_OWNER", "Client"]

# Reasons not to read a connection.
HOLD_LOGIN = 1  # a password is being checked
HOLD_MEMORY = 2  # memory is short, and the client publishes
HOLD_GET = 4  # the answer to a Basic.Get is being read from disk
HOLD_BODY = 8  # bodies of all connections are too large together, and it is not this one's turn
HOLD_CHANGE = 64  # a definition is being changed
HOLD_OWNER = 32  # the node that has a queue was asked
HOLD_END = 128  # what the client has left must know that, or end, everywhere
HOLD_CHANNEL = 16  # a channel is ending that has more consumers than one turn can remove


class Client:
    """State of one connection, from its protocol header to its end.

    step: of the handshake (handshake.py). number: class << 16 | method of the method being handled, for
    connection.close. properties: the client properties, as bytes, which need a tenth of the memory. closing: channels
    whose close-ok waited for the disk and that may be opened again afterwards.
    """

    __slots__ = ("blocked", "capabilities", "client_id", "closing", "connection", "ended_by", "holds", "identity",
                 "listener", "mechanism", "name", "namespace", "number", "open", "peer", "properties", "since_ms",
                 "step", "vhost")

    def __init__(self, connection: AmqpConnection, serial: int, listener: str) -> None:
        self.connection = connection
        self.peer = connection.peer
        self.client_id = f"amqp091-{self.peer}-{serial}"
        self.listener = listener
        self.step = "STARTING"
        self.number = 0
        self.closing: frozenset[int] = frozenset()
        self.identity: str | None = None
        self.mechanism = ""
        self.name = ""  # connection_name
        self.properties = b""
        self.capabilities: frozenset[str] = frozenset()
        self.vhost = ""
        self.namespace: Namespace | None = None  # the virtual host's
        self.open = False  # connection.open-ok was written
        self.since_ms = 0  # time of that, wall clock
        self.blocked = False  # connection.blocked was written
        self.holds = 0  # HOLD_* bits
        self.ended_by = "lost"  # label of fluxmq_amqp_disconnections_total

    def hold(self, why: int) -> None:
        """Stops reading. why: one of HOLD_*."""
        if not self.holds:
            self.connection.pause()
        self.holds |= why

    def release(self, why: int) -> None:
        """Removes a reason for which hold() stopped reading; others still apply."""
        if self.holds and not self.holds & ~why:
            self.connection.resume()
        self.holds &= ~why

    def fields(self) -> dict[str, Any]:
        """Fields for log lines."""
        found = {"client_id": self.client_id, "listener": self.listener}
        if self.place_name != "/":
            found["namespace"] = self.vhost
        return found | {"connection_name": self.name} if self.name else found

    def say_goodbye(self, code: int, text: str) -> None:
        """Sends connection.close; the caller ends the connection."""
        self.connection.end_code = code
        self.connection.write(close_frame(code, text, self.number))

    def shut_down(self) -> None:
        """Says goodbye because the broker stops."""
        self.ended_by = "shutdown"
        if not self.connection.ended:
            self.say_goodbye(ReplyCode.CONNECTION_FORCED, "the broker is shutting down")

    def displaced(self, text: str, ended_by: str = "not_authorized") -> None:
        """Ends the connection for an administrator. ended_by: label of fluxmq_amqp_disconnections_total."""
        self.ended_by = ended_by
        self.say_goodbye(ReplyCode.CONNECTION_FORCED, text)
        self.connection.end()

    @property
    def place_name(self) -> str:
        """The name of its namespace: the virtual host."""
        return self.vhost or "/"

    def record_accepted(self, present: int | None = None) -> None:
        """Records the client's identity. present: for this reader, which began later."""
        if self.open:
            record_accepted(self.connection, {"client_id": self.client_id, "vhost": self.vhost, "user": self.identity,
                                              "version": 91}, present)

    def info(self) -> ClientInfo:
        return ClientInfo(
            client_id=self.client_id, protocol="AMQP 0-9-1", listener=self.listener, peer=self.peer,
            user=self.identity, mechanism=self.mechanism, virtual_host=self.vhost, name=self.name,
            properties=decode_table(self.properties), channels=len(self.connection.channels),
            subscriptions=sum(len(channel.consumers) for channel in self.connection.channels.values()),
            heartbeat_s=self.connection.heartbeat_s, since_ms=self.since_ms, blocked=self.blocked)
