"""Every connection of AMQP 0-9-1 of a node: numbered, listed, blocked when memory or disk runs short, reviewed.

Blocking: publishing connections get connection.blocked if they support it; when memory is short, they are not read
either until there is some again. Connections that only consume are not blocked, because consuming frees resources.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from fluxmq._core.amqp091.methods import ConnectionBlocked, ConnectionUnblocked
from fluxmq.edge.amqp091.client import HOLD_MEMORY
from fluxmq.engine.ports.clients import ClientInfo, ClientsPort

if TYPE_CHECKING:
    from fluxmq.edge.amqp091.bodies import BodyTurns
    from fluxmq.edge.amqp091.client import Client

__all__ = ["Clients"]

CAPABILITY = "connection.blocked"


DISK_FULL = "the disk is full"  # of `disk` below: with RabbitMQ that is the only thing but memory
REASON_MAX = 255  # octets of a short string, section 4.2.5.3 of the specification


class Clients:
    """Machine. The clients of all listeners; a ClientsPort."""

    def __init__(self, turns: BodyTurns) -> None:
        self.turns = turns
        self.serials = count(1)
        self.open: dict[str, Client] = {}
        self._reason = ""

    def ids(self) -> Iterable[tuple[str, str]]:
        """See ClientsPort."""
        return [(client.vhost, client_id) for client_id, client in self.open.items()]

    def _find(self, namespace: str, client_id: str) -> Client | None:
        client = self.open.get(client_id)
        return client if client is not None and client.vhost == namespace else None

    def info(self, namespace: str, client_id: str) -> ClientInfo | None:
        """See ClientsPort."""
        client = self._find(namespace, client_id)
        return client.info() if client is not None else None

    def subscriptions(self, namespace: str, client_id: str) -> Iterable[Mapping[str, Any]]:
        """See ClientsPort."""
        client = self._find(namespace, client_id)
        return [] if client is None else [
            {"queue": member.queue.name.decode("utf-8", "replace"),
             "consumer_tag": (member.tag or b"").decode("utf-8", "replace"), "channel": number, "no_ack": member.no_ack}
            for number, channel in client.connection.channels.items() for member in channel.consumers]

    def disconnect(self, namespace: str, client_id: str) -> bool:
        """See ClientsPort."""
        client = self._find(namespace, client_id)
        if client is None:
            return False
        client.displaced("disconnected by an administrator", "administrator")
        return True

    def review(self, removed: Iterable[str]) -> None:
        """Ends the connections of removed users."""
        gone = frozenset(removed)
        for client in [client for client in self.open.values() if client.identity in gone]:
            client.displaced("the user was removed")

    def tick(self, *, memory: bool, disk: str) -> None:
        """Blocks or unblocks publishing clients. disk: the resource that the journal lacks (QueueSpace.why), "" for
        none. The reason is given in RabbitMQ's words where it has any."""
        self.turns.tick()
        reason = "low on memory" if memory else "low on disk" if DISK_FULL in disk else disk[:REASON_MAX]
        if not reason and not self._reason:
            return
        self._reason = reason
        for client in self.open.values():
            self._adjust(client, reason, memory)

    @staticmethod
    def _adjust(client: Client, reason: str, memory: bool) -> None:
        connection = client.connection
        wanted = bool(reason) and connection.published
        if wanted != client.blocked and CAPABILITY in client.capabilities:
            client.blocked = wanted
            connection.write((ConnectionBlocked(reason=reason) if wanted else ConnectionUnblocked()).frame(0))
        if wanted and memory:
            client.hold(HOLD_MEMORY)
        else:
            client.release(HOLD_MEMORY)


if TYPE_CHECKING:
    # Lets mypy check the class against the port.
    _port: type[ClientsPort] = Clients
