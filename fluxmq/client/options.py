"""Options of a connection, CONNACK, and addresses of servers."""
from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from fluxmq._core.client.properties import Properties
from fluxmq._core.errors import UsageError
from fluxmq._core.mqtt.packets import Connect
from fluxmq._core.mqtt.packets import Will as WillPacket

__all__ = ["Address", "ConnAck", "ConnectOptions", "Will"]

PORT = 1883
PORT_TLS = 8883
LEVEL_5 = 5


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the server publishes if the client ends without DISCONNECT. MQTT 5.0 section 3.1.2.5.

    delay_s: seconds that the server waits (MQTT 5). properties: those of the message.
    """

    topic: str
    payload: bytes | str = b""
    qos: int = 0
    retain: bool = False
    delay_s: int = 0
    properties: Properties | None = None

    def packet(self, version: int) -> WillPacket:
        """The will as part of CONNECT."""
        properties = Properties(self.properties or ())
        if self.delay_s:
            properties += Properties(will_delay_interval=self.delay_s)
        if properties and version < LEVEL_5:
            raise UsageError("properties and a delay of a will need MQTT 5")
        payload = self.payload.encode() if isinstance(self.payload, str) else bytes(self.payload)
        return WillPacket(self.topic, payload=payload, qos=self.qos, retain=self.retain,
                          properties=list(properties))


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Options of CONNECT. MQTT 5.0 section 3.1.

    version: 3 (MQTT 3.1), 4 (3.1.1) or 5. clean_start: Clean Session before 5. keep_alive_s: seconds, 0 = off.
    session_expiry_s: how long the server keeps the session after the end of the connection; before MQTT 5 it is kept
    if clean_start is false. receive_maximum: messages of QoS 1 and 2 that the server may send before they are
    acknowledged. max_packet_bytes: maximum size of a received packet, None = any. topic_alias_maximum: number of
    aliases that the server may use. topic_aliases: number of aliases for publishes, limited further by the server.
    max_inflight: unacknowledged publishes with QoS 1 and 2, limited further by the server's Receive Maximum, at most
    64511.
    properties: further ones of CONNECT.
    """

    client_id: str = ""
    version: int = LEVEL_5
    clean_start: bool = True
    keep_alive_s: int = 60
    username: str | None = None
    password: bytes | str | None = field(default=None, repr=False)
    will: Will | None = None
    session_expiry_s: int = 0
    receive_maximum: int = 65535
    max_packet_bytes: int | None = None
    topic_alias_maximum: int = 0
    topic_aliases: int = 0
    max_inflight: int = 65535
    properties: Properties | None = None

    def packet(self) -> Connect:
        """CONNECT. Raises UsageError for options that the version lacks."""
        if self.version not in (3, 4, LEVEL_5):
            raise UsageError(f"version must be 3, 4 or 5, not {self.version}")
        if not isinstance(self.client_id, str) or not isinstance(self.keep_alive_s, int):
            raise UsageError(f"client_id is a str and keep_alive_s whole seconds, not {self.client_id!r} and "
                             f"{self.keep_alive_s!r}")
        properties = Properties(self.properties or ())
        if self.version >= LEVEL_5:
            properties = Properties([*Properties(
                session_expiry_interval=self.session_expiry_s or None,
                receive_maximum=self.receive_maximum if self.receive_maximum != 65535 else None,
                maximum_packet_size=self.max_packet_bytes,
                topic_alias_maximum=self.topic_alias_maximum or None,
            ), *properties])
        elif properties or self.topic_alias_maximum:
            raise UsageError("properties and topic aliases of CONNECT need MQTT 5")
        password = self.password.encode() if isinstance(self.password, str) else self.password
        return Connect(client_id=self.client_id, protocol_level=self.version, clean_start=self.clean_start,
                       keep_alive=self.keep_alive_s, username=self.username, password=password,
                       properties=list(properties),
                       will=None if self.will is None else self.will.packet(self.version))


@dataclass(frozen=True, slots=True)
class ConnAck:
    """The server's answer. MQTT 5.0 section 3.2. properties: empty before MQTT 5."""

    session_present: bool
    reason: int
    properties: Properties


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server: host and port, or the path of a unix socket; with or without TLS.

    `Address.of` takes "host", "host:port", "[::1]:1883", "mqtt://host:port", "mqtts://host", "unix:/path".
    """

    host: str = ""
    port: int = PORT
    path: str = ""
    tls: bool = False

    @classmethod
    def of(cls, text: str) -> Address:
        """Parses an address. Raises UsageError that lists the valid forms."""
        if not isinstance(text, str):
            raise UsageError(f'an address is a str such as "localhost:1883", not {text!r}')
        if text.startswith("unix:"):
            path = text.removeprefix("unix:").removeprefix("//")
            if path:
                return cls(path=str(Path(path)))
        else:
            scheme, separator, rest = text.partition("://")
            try:
                parts = urlsplit("//" + (rest if separator else text))
                port = parts.port
            except ValueError:
                parts = urlsplit("")
                port = None
            known = not separator or scheme in ("mqtt", "tcp", "mqtts", "ssl", "tls")
            if known and parts.hostname and not parts.path.strip("/") and parts.username is None:
                tls = bool(separator) and scheme in ("mqtts", "ssl", "tls")
                return cls(parts.hostname, port or (PORT_TLS if tls else PORT), tls=tls)
        raise UsageError(f"{text!r} is no address; say host:port, mqtt://host:port, mqtts://host:port or unix:/path")

    def context(self, tls: ssl.SSLContext | bool | None) -> ssl.SSLContext | None:
        """The TLS context to use: the given one, a default one if TLS is requested, or None."""
        if isinstance(tls, ssl.SSLContext):
            return tls
        return ssl.create_default_context() if tls or (self.tls and tls is not False) else None

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"
