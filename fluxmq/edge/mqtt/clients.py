"""Every connected MQTT client of a node, for the admin ring. Outside of "/", a client's displayed name is
<namespace>/<client identifier>, as for queues."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fluxmq.edge.mqtt.connection import Client
from fluxmq.edge.mqtt.front import Front
from fluxmq.engine.ports.clients import ClientInfo, ClientsPort
from fluxmq.model.mqtt import ReasonCode

if TYPE_CHECKING:
    from fluxmq._core.pubsub.session import Session
    from fluxmq.engine.broker import Broker

__all__ = ["MqttClients", "send_away"]

PROTOCOLS = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}


def send_away(client: Client, reason: int, addresses: Mapping[str, str]) -> None:
    """See Client.send_away. addresses: of the other node's listeners, by their names: the client's own kind is told."""
    front = client.connection.handler
    client.send_away(reason, addresses.get(front.name, "") if isinstance(front, Front) else "")


class MqttClients:
    """Handle. A ClientsPort over the broker's sessions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def ids(self) -> Iterable[tuple[str, str]]:
        """See ClientsPort."""
        return [(namespace.decode(), name.decode()) for (namespace, name), session in self._broker.sessions.items()
                if session.data is not None and session.data.connection is not None]

    def info(self, namespace: str, client_id: str) -> ClientInfo | None:
        """See ClientsPort."""
        session, client = self._find(namespace, client_id)
        if session is None or client is None:
            return None
        front = client.connection.handler
        return ClientInfo(
            client_id=client_id, protocol=PROTOCOLS.get(client.version, "MQTT"),
            listener=front.name if isinstance(front, Front) else "", peer=client.connection.peer,
            user=client.identity, mechanism=client.method or "", virtual_host=namespace, name="",
            properties={}, channels=0, subscriptions=len(session.subscriptions),
            heartbeat_s=client.connection.keep_alive_ms // 1500,
            since_ms=self._broker.hub.wall_of(session.data.since_ms), blocked=False)

    def subscriptions(self, namespace: str, client_id: str) -> Iterable[Mapping[str, Any]]:
        """See ClientsPort."""
        session, _ = self._find(namespace, client_id)
        return [] if session is None else [
            {"filter": filter_.decode(), "qos": options & 3, "no_local": bool(options & 4),
             "retain_as_published": bool(options & 8), "identifier": identifier}
            for filter_, (options, identifier) in session.subscriptions.items()]

    def disconnect(self, namespace: str, client_id: str) -> bool:
        """See ClientsPort. DISCONNECT 0x98 of MQTT 5.0, section 3.14.2.1."""
        _, client = self._find(namespace, client_id)
        if client is None:
            return False
        client.displaced(ReasonCode.ADMINISTRATIVE_ACTION)
        return True

    def _find(self, namespace: str, client_id: str) -> tuple[Session | None, Client | None]:
        """The session and the Client of a connected client."""
        session = self._broker.sessions.get((namespace.encode(), client_id.encode()))
        client = session.data.connection if session is not None and session.data is not None else None
        return (session, client) if isinstance(client, Client) else (None, None)


if TYPE_CHECKING:
    # Lets mypy check the class against the port.
    _port: type[ClientsPort] = MqttClients
