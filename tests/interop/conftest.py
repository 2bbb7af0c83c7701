"""Fixtures of the interoperability tests: a broker that listens in every way, and the real clients.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from interop.peers.aio import Aiomqtt
from interop.peers.base import Endpoint, Library, Options, Session
from interop.peers.gmqtt_ import Gmqtt
from interop.peers.mosquitto import Mosquitto
from interop.peers.mqttjs import MqttJs
from interop.peers.paho import Paho
from kit.broker import WHICH, Broker
from kit.brokers import Brokers
from kit.certs import CertificateAuthority, issue, make_ca

TRANSPORTS = {"tcp": "mqtt/tcp/plain", "tls": "mqtt/tcp/tls", "mtls": "mqtt/tcp/mtls", "ws": "mqtt/websocket/plain",
              "wss": "mqtt/websocket/tls"}
LIBRARIES: tuple[type[Library], ...] = (Paho, Aiomqtt, Gmqtt, Mosquitto, MqttJs)


@dataclass(frozen=True)
class Peer:
    """A library, a version and a transport: what a test of real clients is made for."""

    library: type[Library]
    version: int
    transport: str

    def __str__(self) -> str:
        return f"{self.library.name}-{'v5' if self.version == 5 else 'v311'}-{self.transport}"


def peers(*, transports: tuple[str, ...] = ("tcp", "ws", "tls", "wss"),
          versions: tuple[int, ...] = (4, 5)) -> list[Peer]:
    """All that there are of these."""
    return [Peer(library, version, transport) for library in LIBRARIES for version in versions
            for transport in library.transports
            if transport in transports]


def each(found: list[Peer]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("peer", found, ids=str)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return make_ca(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def server_files(authority: CertificateAuthority) -> tuple[str, str]:
    """Certificate and key of the brokers."""
    return issue(authority, "localhost", dns=["localhost"], ip=["127.0.0.1"], name="server")


@pytest.fixture(scope="session")
def tls_settings(authority: CertificateAuthority, server_files: tuple[str, str]) -> Callable[..., dict[str, object]]:
    """Settings of TLS slots: tls_settings("tcp.tls"), tls_settings("tcp.mtls", username_from="cn")."""
    def settings(slot: str, **others: object) -> dict[str, object]:
        found: dict[str, object] = {"addr": "127.0.0.1:0", "cert_file": server_files[0], "key_file": server_files[1]}
        if slot.endswith("mtls"):
            found["ca_file"] = authority.cert_file
        return {f"server.mqtt.{slot}.{key}": value for key, value in (found | others).items()}

    return settings


@pytest.fixture(scope="session")
def session_broker(tmp_path_factory: pytest.TempPathFactory,
                   tls_settings: Callable[..., dict[str, object]]) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"), {
        **tls_settings("tcp.tls"), **tls_settings("tcp.mtls", username_from="cn"), **tls_settings("websocket.tls"),
        "session.max_offline_queue_size": 5000})
    if not broker.ours:
        pytest.skip("needs listeners of ours")
    yield broker.start()
    broker.stop()


@pytest.fixture
def broker(session_broker: Broker, brokers: Brokers) -> Broker:
    """The session's broker: every kind of listener, anybody may do everything."""
    return brokers.use(session_broker)


@pytest.fixture
def broker_settings() -> dict[str, object]:
    if WHICH:
        pytest.skip("needs a broker of ours")
    return {}


@pytest.fixture
def endpoint(broker: Broker, authority: CertificateAuthority) -> Callable[..., Endpoint]:
    """Where a transport is: endpoint("tls"), endpoint("mtls", cert=…, key=…, of=another)."""
    def found(transport: str, of: Broker | None = None, **files: str) -> Endpoint:
        host, port = (of or broker).addresses[TRANSPORTS[transport]]
        kind = "tls" if transport == "mtls" else transport
        return Endpoint(host, port, kind, str(authority.cert_file) if kind in ("tls", "wss") else "", **files)

    return found


@pytest.fixture
def open_session(libraries: Callable[[type[Library]], Library], endpoint: Callable[..., Endpoint],
                 name: Callable[[str], str]) -> Iterator[Callable[..., Session]]:
    """A session of a peer on the session's broker, or `of` another: open_session(peer, "sub", filters=[("a/#", 1)])."""
    opened: list[Session] = []

    def open_(peer: Peer, role: str, of: Broker | None = None, **options: Any) -> Session:
        options["filters"] = tuple(options.get("filters", ()))
        session = libraries(peer.library).open(endpoint(peer.transport, of),
                                               Options(name(role), version=peer.version, **options))
        opened.append(session)
        return session

    yield open_
    for session in opened:
        session.drop()
