"""Every MQTT client of a node that is connected, for the list of the admin ring."""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fluxmq.edge.mqtt.connection import Client
from fluxmq.edge.mqtt.front import Front
from fluxmq.engine.ports_clients import ClientInfo, ClientsPort

if TYPE_CHECKING:
    from fluxmq.engine.broker import Broker

__all__ = ["MqttClients"]

PROTOCOLS = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}


class MqttClients:
    """Handle. A ClientsPort over the broker's sessions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def ids(self) -> Iterable[str]:
        """See ClientsPort."""
        return [name.decode() for name, session in self._broker.sessions.items()
                if session.data is not None and session.data.connection is not None]

    def info(self, client_id: str) -> ClientInfo | None:
        """See ClientsPort."""
        session = self._broker.sessions.get(client_id.encode())
        client = session.data.connection if session is not None and session.data is not None else None
        if session is None or not isinstance(client, Client):
            return None
        front = client.connection.handler
        return ClientInfo(
            client_id=client_id, protocol=PROTOCOLS.get(client.version, "MQTT"),
            listener=front.name if isinstance(front, Front) else "", peer=client.connection.peer,
            user=client.identity, mechanism=client.method or "", virtual_host="/", name="",
            properties={}, channels=0, subscriptions=len(session.subscriptions),
            heartbeat_s=client.connection.keep_alive_ms // 1500,
            since_ms=self._broker.hub.wall_of(session.data.since_ms), blocked=False)


if TYPE_CHECKING:
    # mypy holds the class against the port here.
    _port: type[ClientsPort] = MqttClients
