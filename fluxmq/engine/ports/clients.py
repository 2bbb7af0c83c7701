"""What the admin ring asks about who is connected, as a Protocol: `ClientsPort`. The edges answer."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

__all__ = ["ClientInfo", "ClientsPort"]


class ClientInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One client that is connected.

    virtual_host: its namespace. user: None = anonymous. name: what it calls its connection, or "". properties: what it
    said about itself; any value that a field table has. channels: of AMQP. subscriptions: of MQTT; of AMQP consumers.
    heartbeat_s: or keep alive. since_ms: when it was let in, wall clock. blocked: it was told not to publish.
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
    """Who is connected. A client is named by its namespace and its identifier: two namespaces may have equal ones."""

    def ids(self) -> Iterable[tuple[str, str]]:
        """(namespace, client identifier) of those that were let in, in any order."""

    def info(self, namespace: str, client_id: str) -> ClientInfo | None:
        """One of them; None: it is gone."""

    def subscriptions(self, namespace: str, client_id: str) -> Iterable[Mapping[str, Any]]:
        """What it is subscribed to, in any order: of MQTT filter, qos, no_local, retain_as_published, identifier; of
        AMQP queue, consumer_tag, channel, no_ack. Nothing when it is gone."""

    def disconnect(self, namespace: str, client_id: str) -> bool:
        """Ends its connection, as an administrator's act; its will is published. False: it is gone already."""
