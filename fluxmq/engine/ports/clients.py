"""What the admin ring asks about who is connected, as a Protocol: `ClientsPort`. The edges answer."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

__all__ = ["ClientInfo", "ClientsPort"]


class ClientInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One connected client.

    virtual_host: its namespace. user: None = anonymous. name: the connection's name given by the client, or "".
    properties: given by the client; any value of a field table. channels: of AMQP. subscriptions: of MQTT; consumers of
    AMQP. heartbeat_s: or keep alive. since_ms: when it was accepted, wall clock. blocked: it was sent
    connection.blocked.
    """

    client_id: str
    protocol: str
    listener: str
    peer: str
    user: str | None
    mechanism: str
    virtual_host: str
    name: str
    properties: Mapping[str, Any]
    channels: int
    subscriptions: int
    heartbeat_s: int
    since_ms: int
    blocked: bool


class ClientsPort(Protocol):
    """The connected clients. A client is identified by its namespace and its identifier, which is unique only within
    it."""

    def ids(self) -> Iterable[tuple[str, str]]:
        """(namespace, client identifier) of accepted clients, in any order."""

    def info(self, namespace: str, client_id: str) -> ClientInfo | None:
        """One client; None: it is not connected any more."""

    def subscriptions(self, namespace: str, client_id: str) -> Iterable[Mapping[str, Any]]:
        """The client's subscriptions, in any order: of MQTT filter, qos, no_local, retain_as_published, identifier; of
        AMQP queue, consumer_tag, channel, no_ack. Empty when it is not connected any more."""

    def disconnect(self, namespace: str, client_id: str) -> bool:
        """Ends the client's connection for an administrator; its will is published. False: it is not connected any
        more."""
