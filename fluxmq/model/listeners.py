"""The keys of a listener slot. One family of structs, so that a key that two slots share is described once.

    Listener ── PlainTcp, V3Tcp, V5Tcp (protocol, namespace), PlainAmqp
     ├── TlsListener
     │    ├── TlsTcp (protocol, namespace) ── MutualTlsTcp
     │    ├── TlsWebSocket (protocol, path, allowed_origins, namespace) ── MutualTlsWebSocket
     │    └── TlsAmqp ── MutualTlsAmqp
     └── WebSocketListener (path, allowed_origins, namespace) ── PlainWebSocket, V3WebSocket, V5WebSocket (protocol)

`addr` "" is a slot that is off. The pinned slots of MQTT (v3, v5) answer a CONNECT of another version with "unsupported
protocol version"; the others tell the versions apart by the CONNECT.
"""
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fluxmq.model.address import Address, parse_address

__all__ = [
    "AddressText", "AmqpSlot", "Bytes", "Listener", "MqttSlot", "MutualTlsAmqp", "MutualTlsTcp", "MutualTlsWebSocket",
    "PlainAmqp", "PlainTcp", "PlainWebSocket", "Seconds", "TlsAmqp", "TlsListener", "TlsTcp", "TlsWebSocket", "V3Tcp",
    "V3WebSocket", "V5Tcp", "V5WebSocket", "WebSocketListener",
]

# The kind says which written forms a key has; config_keys.py reads it. Neither is ever negative.
Seconds = Annotated[float, Meta(extra={"kind": "duration"})]
Bytes = Annotated[int, Meta(extra={"kind": "size"})]
AddressText = Annotated[str, Meta(extra={"kind": "address"})]

Protocol = Literal["auto", "v3", "v5"]
ListenAddress = Annotated[AddressText, Meta(description=(
    "Where to listen: host:port, [ipv6]:port, :port for every interface, port 0 for a free port; empty = off."))]
WebSocketPath = Annotated[str, Meta(pattern=r"^/[^?#\s]*$", description="Path of the upgrade request, exact.",
                                    extra={"allowed": "a path that starts with / and has no space, ? or #"})]
AllowedOrigins = Annotated[tuple[str, ...], Meta(description=(
    "Origins of web pages that may connect, as scheme://host[:port], or \"*\" for any. Empty: pages of the same host, "
    "and clients that send no Origin at all."))]
Namespace = Annotated[str, Meta(min_length=1, description=(
    "The namespace of clients that name none (<namespace>:<user>), and whose user is bound to none; one of "
    "`namespaces`."))]
_PROTOCOL = Meta(description="MQTT versions served: auto tells them apart by the CONNECT. Fixed on plain, v3 and v5.")
_CLIENT_AUTH = Meta(description=(
    "Certificates of clients: none, request (checked when there is one), require. Empty: require when ca_file is "
    "given, none otherwise. Fixed on mtls."))


class Listener(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every slot has."""

    addr: ListenAddress = ""
    max_connections: Annotated[int, Meta(ge=1, le=10_000_000, description=(
        "Connections at once; further ones are closed as they come, and counted. All listeners together leave 576 of "
        "the process's open files (ulimit -n) to the broker itself."))] = 100_000
    read_timeout: Annotated[Seconds, Meta(ge=0.01, description=(
        "Time until a client has said who it is: TLS handshake, WebSocket upgrade and CONNECT of MQTT, or everything "
        "up to connection.open of AMQP."))] = 60.0
    write_timeout: Annotated[Seconds, Meta(ge=0.01, description=(
        "A connection whose unsent output makes no progress for this long is closed."))] = 60.0

    @property
    def address(self) -> Address | None:
        """None when the slot is off. ValueError when the text is no address; loaded configurations have none such."""
        return parse_address(self.addr) if self.addr else None

    @property
    def requires_certificate(self) -> bool:
        """True when the TLS handshake requires a certificate of the listener's authority."""
        return False


class TlsListener(Listener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys that only the tls and mtls slots have."""

    cert_file: Annotated[str, Meta(description=(
        "The server's certificate and its chain, PEM. Paths are relative to the working directory."))] = ""
    key_file: Annotated[str, Meta(description="The private key of cert_file, PEM, without passphrase.")] = ""
    ca_file: Annotated[str, Meta(description="Authorities that sign the certificates of clients, PEM.")] = ""
    client_auth: Annotated[Literal["", "none", "request", "require"], _CLIENT_AUTH] = ""
    min_version: Annotated[Literal["tls1.2", "tls1.3"], Meta(description="Oldest TLS version accepted.")] = "tls1.2"
    cipher_suites: Annotated[tuple[str, ...], Meta(description=(
        "Cipher suites of TLS 1.2 by their OpenSSL names; empty = those of OpenSSL. Those of TLS 1.3 are not "
        "selectable."))] = ()
    username_from: Annotated[Literal["", "cn", "san"], Meta(description=(
        "Take the user name from the client's certificate, when it has one, and not from the CONNECT: cn (common name) "
        "or san (first subject alternative name)."))] = ""

    @property
    def client_auth_effective(self) -> Literal["none", "request", "require"]:
        return self.client_auth or ("require" if self.ca_file else "none")

    @property
    def requires_certificate(self) -> bool:
        return self.client_auth_effective == "require"


class PlainTcp(Listener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both versions."""

    addr: ListenAddress = "127.0.0.1:1883"
    protocol: Annotated[Literal["auto"], _PROTOCOL] = "auto"
    namespace: Namespace = "/"


class V3Tcp(Listener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """3.1.1 only."""

    protocol: Annotated[Literal["v3"], _PROTOCOL] = "v3"
    namespace: Namespace = "/"


class V5Tcp(Listener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """5.0 only."""

    protocol: Annotated[Literal["v5"], _PROTOCOL] = "v5"
    namespace: Namespace = "/"


class TlsTcp(TlsListener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS; clients may be asked for a certificate."""

    protocol: Annotated[Protocol, _PROTOCOL] = "auto"
    namespace: Namespace = "/"


class MutualTlsTcp(TlsTcp, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS; clients without a certificate are refused in the handshake."""

    client_auth: Annotated[Literal["require"], _CLIENT_AUTH] = "require"


class WebSocketListener(Listener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """MQTT in binary WebSocket messages, subprotocol mqtt."""

    path: WebSocketPath = "/mqtt"
    allowed_origins: AllowedOrigins = ()
    namespace: Namespace = "/"


class PlainWebSocket(WebSocketListener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both versions."""

    addr: ListenAddress = "127.0.0.1:8083"
    protocol: Annotated[Literal["auto"], _PROTOCOL] = "auto"


class V3WebSocket(WebSocketListener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """3.1.1 only."""

    protocol: Annotated[Literal["v3"], _PROTOCOL] = "v3"


class V5WebSocket(WebSocketListener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """5.0 only."""

    protocol: Annotated[Literal["v5"], _PROTOCOL] = "v5"


class TlsWebSocket(TlsListener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Secure WebSocket; clients may be asked for a certificate."""

    protocol: Annotated[Protocol, _PROTOCOL] = "auto"
    path: WebSocketPath = "/mqtt"
    allowed_origins: AllowedOrigins = ()
    namespace: Namespace = "/"


class MutualTlsWebSocket(TlsWebSocket, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Secure WebSocket; clients without a certificate are refused in the handshake."""

    client_auth: Annotated[Literal["require"], _CLIENT_AUTH] = "require"


class PlainAmqp(Listener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AMQP 0-9-1 over TCP."""

    addr: ListenAddress = "127.0.0.1:5672"


class TlsAmqp(TlsListener, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AMQP 0-9-1 over TLS; clients may be asked for a certificate."""

    username_from: Annotated[Literal["", "cn", "san"], Meta(description=(
        "Offer SASL EXTERNAL to clients that have shown a certificate, and take their user name from it: cn (common "
        "name) or san (first subject alternative name). PLAIN may name no other user then."))] = ""


class MutualTlsAmqp(TlsAmqp, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AMQP 0-9-1 over TLS; clients without a certificate are refused in the handshake."""

    client_auth: Annotated[Literal["require"], _CLIENT_AUTH] = "require"


MqttSlot = PlainTcp | V3Tcp | V5Tcp | TlsTcp | PlainWebSocket | V3WebSocket | V5WebSocket | TlsWebSocket
AmqpSlot = PlainAmqp | TlsAmqp
