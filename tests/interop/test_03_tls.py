"""TLS from end to end: who gets in, what name a certificate gives, what broken peers cause, large and many messages."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from interop.peers.base import Endpoint, Message, Options, Refused
from interop.peers.paho import Paho
from interop.tls import closed_by_peer, open_tls
from kit.broker import Broker
from kit.certs import CertificateAuthority, issue, make_ca
from kit.client import Client, Closed
from oracle.mqtt import Connack, Connect, Pingreq, Pingresp, Puback, Publish, Suback, Subscribe

SMALL_MESSAGES = 5000
LARGE_BYTES = 1 << 20

At = Callable[..., Endpoint]
Start = Callable[..., Broker]
Settings = Callable[..., dict[str, object]]

ACCESS_LIST = """
version: 1
rules:
  - {allow: all, topics: ["users/%u/#"]}
  - {allow: publish, anonymous: true, topics: ["anonymous/#"]}
"""


def refused(where: Endpoint, context: ssl.SSLContext | None = None) -> bool:
    """The broker lets nobody get as far as CONNACK. A client of TLS 1.3 learns it only when it reads."""
    try:
        client = open_tls(where, context=context)
    except (ssl.SSLError, ConnectionError):
        return True
    try:
        client.send(Connect(client_id="nobody"))
        client.expect(Connack, timeout=10)
    except (ssl.SSLError, ConnectionError, Closed):
        return True
    finally:
        client.close()
    return False


# ── who gets in ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions_that_are_served(version: ssl.TLSVersion, endpoint: At, name: Callable[[str], str]) -> None:
    where = endpoint("tls")
    context = where.context()
    context.minimum_version = context.maximum_version = version
    client = open_tls(where, context=context)
    client.connect(name("c"))
    client.disconnect()


def test_tls_1_1_is_refused(endpoint: At) -> None:
    where = endpoint("tls")
    context = where.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
        open_tls(where, context=context)


def test_mutual_tls_needs_a_certificate_of_the_authority(
    endpoint: At, authority: CertificateAuthority, tmp_path: Path, name: Callable[[str], str]
) -> None:
    """None, one of another authority, and one that has expired get nowhere; a good one does."""
    stranger = make_ca(tmp_path / "other", "another authority")
    assert refused(endpoint("mtls"))
    cert, key = issue(stranger, "anna")
    assert refused(endpoint("mtls", cert=cert, key=key))
    cert, key = issue(authority, "anna", expired=True)
    assert refused(endpoint("mtls", cert=cert, key=key))
    cert, key = issue(authority, "anna")
    client = open_tls(endpoint("mtls", cert=cert, key=key))
    client.connect(name("c"))
    client.disconnect()


def test_client_of_another_authority_does_not_trust_us(endpoint: At, tmp_path: Path) -> None:
    stranger = make_ca(tmp_path, "another authority")
    context = ssl.create_default_context(cafile=str(stranger.cert_file))
    with pytest.raises(ssl.SSLCertVerificationError):
        open_tls(endpoint("tls"), context=context)


@pytest.mark.parametrize(
    ("source", "names", "identity"),
    [
        ("cn", {"cn": "anna"}, "anna"),
        ("san", {"cn": "not me", "dns": ["device-7"], "email": ["a@b.example"]}, "device-7"),
        ("san", {"cn": "", "uri": ["urn:device:8"], "dns": ["device-8"]}, "urn:device:8"),
    ],
)
def test_certificate_names_the_user(
    source: str,
    names: dict[str, object],
    identity: str,
    start_broker: Start,
    tls_settings: Settings,
    authority: CertificateAuthority,
    tmp_path: Path,
) -> None:
    """What `%u` of the access list stands for."""
    acl = tmp_path / "acl.yaml"
    acl.write_text(ACCESS_LIST)
    broker = start_broker({**tls_settings("tcp.mtls", username_from=source), "auth.acl_file": acl})
    cert, key = issue(authority, **names)  # type: ignore[arg-type]
    host, port = broker.addresses["mqtt/tcp/mtls"]
    where = Endpoint(host, port, "tls", str(authority.cert_file), cert, key)
    client = open_tls(where)
    client.connect("c")
    client.publish(f"users/{identity}/x", b"mine", 1, expect=0x10)  # allowed, nobody listens
    client.publish("users/other/x", b"not mine", 1, expect=0x87)
    client.publish("anonymous/x", b"I have a name", 1, expect=0x87)
    client.subscribe(f"users/{identity}/#", qos=1)
    client.subscribe("users/#", qos=1, expect=[0x87])
    client.disconnect()
    client = open_tls(where)
    client.connect("c", username=identity)  # the same name again is no contradiction
    client.disconnect()
    client = open_tls(where)
    client.connect("c", username="somebody else", expect=0x87)
    client.expect_closed()


def test_certificate_without_a_name(endpoint: At, authority: CertificateAuthority) -> None:
    cert, key = issue(authority, "", dns=["only-a-san"])
    client = open_tls(endpoint("mtls", cert=cert, key=key))
    client.connect("c", expect=0x87)
    client.expect_closed()


def test_certificate_names_the_user_over_websocket(
    start_broker: Start, tls_settings: Settings, authority: CertificateAuthority
) -> None:
    broker = start_broker(tls_settings("websocket.mtls", username_from="cn"))
    cert, key = issue(authority, "anna")
    host, port = broker.addresses["mqtt/websocket/mtls"]
    where = Endpoint(host, port, "wss", str(authority.cert_file), cert, key)
    session = Paho().open(where, Options("c", username="anna", filters=(("t", 1),)))
    session.publish(Message("t", b"hello", 1))
    assert session.receive() == Message("t", b"hello", 1)
    session.close()
    with pytest.raises(Refused) as refusal:
        Paho().open(where, Options("c", username="bert"))
    assert refusal.value.code == 0x87


# ── broken peers ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("transport", ["tls", "mtls", "wss"])
@pytest.mark.parametrize(
    "garbage",
    [
        b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + b"\0" * 70000,
        bytes(range(256)),
        b"\x15\x03\x03\x00\x02\x02\x28",
    ],
    ids=["mqtt", "http", "record", "bytes", "alert"],
)
def test_garbage_closes_only_its_connection(
    transport: str, garbage: bytes, endpoint: At, name: Callable[[str], str], authority: CertificateAuthority
) -> None:
    bystander = open_tls(endpoint("tls"))
    bystander.connect(name("bystander"))
    where = endpoint(transport)
    with socket.create_connection((where.host, where.port), 10) as raw:
        with contextlib.suppress(ConnectionError):
            raw.sendall(garbage)
        assert closed_by_peer(raw)
    bystander.expect_quiet()
    bystander.disconnect()


def test_garbage_after_the_handshake(endpoint: At, name: Callable[[str], str]) -> None:
    """Bytes that are no record of TLS, in the middle of a connection."""
    bystander = open_tls(endpoint("tls"))
    bystander.connect(name("bystander"))
    client = open_tls(endpoint("tls"))
    client.connect(name("c"))
    assert isinstance(client.transport, ssl.SSLSocket)
    raw = socket.socket(fileno=client.transport.detach())
    raw.sendall(b"\x17\x03\x03\x00\x20" + b"no ciphertext, certainly not this")
    assert closed_by_peer(raw)
    raw.close()
    bystander.expect_quiet()
    bystander.disconnect()


def test_handshake_that_does_not_go_on(
    start_broker: Start, tls_settings: Settings, authority: CertificateAuthority
) -> None:
    """read_timeout is for handshake and CONNECT together."""
    broker = start_broker(tls_settings("tcp.tls", read_timeout="2s"))
    host, port = broker.addresses["mqtt/tcp/tls"]
    where = Endpoint(host, port, "tls", str(authority.cert_file))
    patient = open_tls(where)
    patient.connect("patient")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = where.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    first = outgoing.read()
    stuck = [socket.create_connection((host, port), 10) for _ in range(3)]
    stuck[1].sendall(first[:20])
    stuck[2].sendall(first)
    silent = open_tls(where)  # a whole handshake, and no CONNECT
    for raw in stuck:
        assert closed_by_peer(raw)
        raw.close()
    silent.expect_closed()
    patient.expect_quiet()
    assert "no CONNECT within" in broker.stderr()


# ── large and many ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [4, 5])
def test_large_payload_both_ways(version: int, endpoint: At, name: Callable[[str], str], topic: str) -> None:
    payload = bytes(range(256)) * (LARGE_BYTES // 256)
    client = open_tls(endpoint("tls"), version)
    client.connect(name("c"))
    client.subscribe(topic, qos=1)
    for qos in (0, 1):
        client.publish(topic, payload, qos)
        client.receive(topic, payload, qos=qos)
    client.disconnect()


def test_small_messages_both_ways(endpoint: At, name: Callable[[str], str], topic: str) -> None:
    """In order, with records of TLS cut anywhere."""
    subscriber, publisher = open_tls(endpoint("tls")), open_tls(endpoint("tls"))
    subscriber.connect(name("sub"))
    subscriber.subscribe(topic)
    publisher.connect(name("pub"))
    packets = b"".join(Publish(topic=topic, payload=b"%d" % number).encode(5) for number in range(SMALL_MESSAGES))
    sender = threading.Thread(
        target=lambda: [publisher.send(packets[at : at + 4099]) for at in range(0, len(packets), 4099)]
    )
    sender.start()
    for number in range(SMALL_MESSAGES):
        subscriber.expect(Publish, payload=b"%d" % number)
    sender.join()
    subscriber.disconnect()
    publisher.disconnect()


def test_slow_reader(start_broker: Start, tls_settings: Settings, authority: CertificateAuthority) -> None:
    """Who does not read gets, once it does, whole packets: every message of QoS 1, those of QoS 0 that there was room
    for, all in their order. Nobody else waits."""
    broker = start_broker(
        {
            **tls_settings("tcp.tls"),
            "session.send_buffer_high": 262144,
            "session.send_buffer_low": 65536,
            "session.max_inflight_messages": 50,
        }
    )
    host, port = broker.addresses["mqtt/tcp/tls"]
    where = Endpoint(host, port, "tls", str(authority.cert_file))
    slow = open_tls(where, receive_buffer=8192)
    slow.connect("slow")
    slow.subscribe("t/0", qos=0)
    slow.subscribe("t/1", qos=1)
    quick = open_tls(where)
    quick.connect("quick")
    quick.subscribe("t/+", qos=1)
    payload = b"x" * 16000
    for number in range(400):
        qos = number % 4 == 0
        quick.publish(f"t/{int(qos)}", b"%d " % number + payload, int(qos))
        quick.receive(f"t/{int(qos)}")
    quick.publish("t/1", b"-1 end", 1)
    quick.receive("t/1")
    numbers: dict[int, list[int]] = {0: [], 1: []}
    while True:
        packet = slow.receive()
        number = int(packet.payload.split(b" ", 1)[0])
        if number < 0:
            break
        assert packet.payload == b"%d " % number + payload
        numbers[packet.qos].append(number)
    assert numbers[1] == list(range(0, 400, 4))
    assert numbers[0] == sorted(numbers[0])
    assert 0 < len(numbers[0]) < 300  # some had room, some had not
    slow.expect_quiet()


def test_many_connections_share_a_turn(endpoint: At, name: Callable[[str], str], topic: str) -> None:
    """What TLS has decrypted and not handed over yet is no event of the socket: nothing may stay behind in it."""
    clients: list[Client] = []
    for number in range(20):
        client = open_tls(endpoint("tls"))
        client.connect(name(f"c{number}"))
        clients.append(client)
    for client in clients:
        client.send(
            Subscribe(packet_id=1, filters=[(f"{topic}/all", 1)]),
            Pingreq(),
            *(Publish(topic=f"{topic}/none", payload=b"y" * 30000, qos=1, packet_id=n) for n in range(1, 4)),
        )
    for client in clients:
        client.expect(Suback)
        client.expect(Pingresp)
        for number in range(1, 4):
            client.expect(Puback, packet_id=number)
    clients[0].publish(f"{topic}/all", b"hello", 1)
    for client in clients:
        client.receive(f"{topic}/all", b"hello")
        client.disconnect()
