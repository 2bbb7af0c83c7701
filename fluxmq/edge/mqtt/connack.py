"""CONNACK: the properties for an accepted client, and the reason for a refused one."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import ConnAck
from fluxmq.edge.mqtt.connection import REASON_STRING_MAX, Client
from fluxmq.model.mqtt import Property, ReasonCode

if TYPE_CHECKING:
    from fluxmq._core.mqtt.packets import Connect
    from fluxmq._core.net.connection import Connection
    from fluxmq.edge.mqtt.options import FrontOptions

__all__ = ["accepted_v5", "refuse"]

PACKET_SIZE_UNLIMITED = 0xFFFFFFFF
# MQTT 5 reason -> CONNACK return code of 3.1.1, section 3.2.2.3; any other reason closes without an answer. A will that
# this broker refuses counts as "not authorized", the return code for a valid request that is not allowed.
RETURN_CODE_311 = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.USE_ANOTHER_SERVER: 3,
    ReasonCode.QUOTA_EXCEEDED: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
    ReasonCode.RETAIN_NOT_SUPPORTED: 5,
    ReasonCode.QOS_NOT_SUPPORTED: 5,
    ReasonCode.PACKET_TOO_LARGE: 5,
}


def accepted_v5(options: FrontOptions, client: Client, packet: Connect, present: bool, assigned: bool,
                expiry_s: int | None, keep_alive: int | None, auth_data: bytes) -> bytes:
    """CONNACK of MQTT 5.0 with every property whose default would be wrong (section 3.2.2.3)."""
    properties: list[Any] = []
    if expiry_s is not None:
        properties.append((Property.SESSION_EXPIRY_INTERVAL, expiry_s))
    if options.receive_max != 65535:
        properties.append((Property.RECEIVE_MAXIMUM, options.receive_max))
    if options.qos_max < 2:
        properties.append((Property.MAXIMUM_QOS, options.qos_max))
    if not options.retain_available:
        properties.append((Property.RETAIN_AVAILABLE, 0))
    properties.append((Property.MAXIMUM_PACKET_SIZE, options.packet_bytes_max))
    if assigned:
        properties.append((Property.ASSIGNED_CLIENT_IDENTIFIER, client.client_id))  # [MQTT-3.2.2-16]
    if options.topic_alias_max:
        properties.append((Property.TOPIC_ALIAS_MAXIMUM, options.topic_alias_max))
    if keep_alive is not None:
        properties.append((Property.SERVER_KEEP_ALIVE, keep_alive))
    if options.response_information and packet.get(Property.REQUEST_RESPONSE_INFORMATION, 0):
        properties.append((Property.RESPONSE_INFORMATION, options.response_information))
    if client.method is not None:
        properties.append((Property.AUTHENTICATION_METHOD, client.method))
        if auth_data:
            properties.append((Property.AUTHENTICATION_DATA, auth_data))
    data = encode_packet(ConnAck(session_present=present, reason_code=0, properties=properties), 5)
    if len(data) > client.packet_size_max and not assigned and client.method is None:
        # The properties of our limits are optional: if the packet gets too large, the client connects without knowing
        # them.
        data = encode_packet(ConnAck(session_present=present, reason_code=0), 5)
    if len(data) > client.packet_size_max:
        raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, "CONNACK is over the client's Maximum Packet Size")
    return data


def refuse(connection: Connection, client: Client | None, reason: int, text: str) -> None:
    """Sends CONNACK with an error if the protocol has one for it [MQTT-3.1.4-2]; the caller closes the connection."""
    if connection.version == 5:
        most = client.packet_size_max if client is not None else PACKET_SIZE_UNLIMITED
        reference = client.login.reference if client is not None and client.login is not None else ""
        other_node: list[Any] = [(Property.SERVER_REFERENCE, reference)] if reference else []
        reason_string: list[Any] = [(Property.REASON_STRING, text[:REASON_STRING_MAX])]
        for properties in (other_node + reason_string, other_node, []):
            answer = ConnAck(reason_code=reason, properties=properties)
            data = encode_packet(answer, 5)
            if len(data) <= most:
                connection.write(data)
                break
    elif connection.version and reason in RETURN_CODE_311:
        connection.write(bytes((0x20, 2, 0, RETURN_CODE_311[ReasonCode(reason)])))
