"""The edge's state of one MQTT client: its identity, the options of its CONNECT, how it ended.

The compiled Connection handles the bytes and the hot packets; the Client is its `state` from CONNECT on.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import Disconnect
from fluxmq._core.net.connection import ClientFacts
from fluxmq.edge.recording import record_accepted
from fluxmq.model.mqtt import Property, ReasonCode

if TYPE_CHECKING:
    from fluxmq._core.memory.namespace import Namespace
    from fluxmq._core.mqtt.packets import Connect
    from fluxmq._core.net.connection import Connection
    from fluxmq._core.pubsub.session import Session
    from fluxmq.engine.ports.access import Exchange

__all__ = ["Client", "Login", "disconnect_bytes", "user_properties", "without_length"]

REASON_STRING_MAX = 256  # limit for texts of this broker: enough for a sentence


def disconnect_bytes(reason: int, text: str = "", packet_size_max: int = 0xFFFFFFFF, reference: str = "") -> bytes:
    """A DISCONNECT of MQTT 5.0, with the text as Reason String and the Server Reference if the client accepts a packet
    of that size [MQTT-3.14.2-3]."""
    properties: list[Any] = [(Property.REASON_STRING, text[:REASON_STRING_MAX])] if text else []
    if reference:
        properties.append((Property.SERVER_REFERENCE, reference))
    data = encode_packet(Disconnect(reason_code=reason, properties=properties), 5)
    if len(data) > packet_size_max:
        data = encode_packet(Disconnect(reason_code=reason), 5)
    return data if len(data) <= packet_size_max else b""


def user_properties(properties: Iterable[tuple[int, Any]]) -> int:
    """Number of User Properties among a packet's properties."""
    return sum(1 for identifier, _ in properties if identifier == Property.USER_PROPERTY)


def without_length(properties: bytes) -> bytes:
    """Property bytes without their leading length (Variable Byte Integer)."""
    at = 0
    while properties[at] & 0x80:
        at += 1
    return properties[at + 1:]


# For DISCONNECT of a node that leaves: for now, and for good.
SENT_AWAY = (ReasonCode.USE_ANOTHER_SERVER, ReasonCode.SERVER_MOVED)


class Login:
    """State of a client until its CONNACK.

    asked_ms: when CONNECT came, Hub.mono_ms. namespace: the one in its user name, "" for none; username: the rest of
    that name. reference: the node that has its session, "" if this node has it.
    """

    __slots__ = ("asked_ms", "namespace", "packet", "reference", "username")

    def __init__(self, packet: Connect, asked_ms: int) -> None:
        self.packet = packet
        self.asked_ms = asked_ms
        self.namespace = ""
        self.username: str | None = packet.username
        self.reference = ""


class Client(ClientFacts):
    """State of one connection, from CONNECT to its end. Its numbers and flags are in the base class.

    name: the client identifier in UTF-8; b"" as long as the broker has not assigned one.
    """

    __slots__ = ("connection", "ended_by", "exchange", "expiry_override", "identity", "login", "method", "name",
                 "namespace", "session")

    def __init__(self, connection: Connection, packet: Connect) -> None:
        self.connection = connection
        self.login: Login | None = Login(packet, connection.hub.mono_ms)  # until CONNACK
        self.version = packet.protocol_level
        self.clean_start = packet.clean_start
        self.name: bytes = packet.client_id.encode()
        self.identity: str | None = None
        self.namespace: Namespace | None = None  # set when it has been determined
        self.session: Session | None = None
        self.exchange: Exchange | None = None
        self.method: str | None = None
        self.expiry_override: int | None = None
        self.ended_by = "lost"  # label of fluxmq_disconnections_total

    @property
    def client_id(self) -> str:
        """The client identifier; "" as long as the broker has not assigned one. MQTT 5.0 section 3.1.3.1."""
        return self.name.decode()

    @property
    def place_name(self) -> str:
        """The name of its namespace; "/" before that is known."""
        return self.namespace.text if self.namespace is not None else "/"

    def place(self) -> dict[str, str]:
        """A log field with its namespace, unless that is the default."""
        return {"namespace": self.place_name} if self.place_name != "/" else {}

    def who(self) -> dict[str, Any]:
        """Log fields for permissions."""
        return {"client_id": self.client_id, "user": self.identity} | self.place()

    def record_accepted(self, present: int | None = None) -> None:
        """Records the client's identity. present: for this reader, which began later: also its subscriptions."""
        session = self.session
        if not self.taken or session is None or session.data is None:
            return
        who: dict[str, Any] = {
            "client_id": self.client_id, "version": self.version, "clean_start": self.clean_start,
            "session_present": self.present, "keep_alive_s": session.data.keep_alive_s,
            "session_expiry_s": session.data.expiry_s}
        if present is not None:
            who["subscriptions"] = [(filter_.decode(), options)
                                    for filter_, (options, _) in session.subscriptions.items()]
            for name, aliases in zip(("aliases_in", "aliases_out"), self.connection.topic_aliases, strict=True):
                if aliases:
                    who[name] = aliases
        record_accepted(self.connection, who, present)

    def displaced(self, reason: int) -> None:
        """Another connection has taken over the session, or an administrator ends this connection, [MQTT-3.1.4-3]."""
        self.ended_by = {ReasonCode.SESSION_TAKEN_OVER: "takeover", ReasonCode.NOT_AUTHORIZED: "not_authorized",
                         ReasonCode.ADMINISTRATIVE_ACTION: "administrator"}.get(ReasonCode(reason), "session_removed")
        if self.connection.end_code not in SENT_AWAY:
            self.say_goodbye(reason)
        self.connection.end()

    def shut_down(self) -> None:
        """Says goodbye because the broker stops."""
        if self.connection.end_code not in SENT_AWAY:
            self.ended_by = "shutdown"
            self.say_goodbye(ReasonCode.SERVER_SHUTTING_DOWN)

    def send_away(self, reason: int, reference: str) -> None:
        """Tells the client to connect to another node, and ends the connection; does nothing the second time. reason:
        one of SENT_AWAY. reference: the address of that node, or "". MQTT 5.0 section 4.13."""
        if self.connection.end_code not in SENT_AWAY:
            self.ended_by = "shutdown"
            self.say_goodbye(reason, reference=reference)
            self.connection.end()

    def say_goodbye(self, reason: int, text: str = "", reference: str = "") -> None:
        """Sends DISCONNECT if the protocol version has one for servers."""
        self.connection.end_code = reason
        if self.version == 5 and self.connection.open:
            data = disconnect_bytes(reason, text, self.packet_size_max, reference)
            if data:
                self.connection.write(data)
