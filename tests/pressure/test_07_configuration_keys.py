"""Every key of the configuration is alive: for each, something that differs between two of its values.

`LISTENER` has the keys of a listener slot, observed on every slot; `OTHERS` the rest. A key of the schema that is in
neither fails, and so does one that is there and not in the schema.
"""
from __future__ import annotations

import contextlib
import functools
import json
import random
import re
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Wire
from kit.broker import Broker, BrokerDied, add_user
from kit.certs import issue, make_ca
from kit.client import KEPT, TIMEOUT, Client, Unexpected
from kit.cluster import Cluster
from kit.deciding import HeldAuthority
from kit.node import Node
from kit.slowdisk import SlowDisk
from kit.watch import Memory, metric, metrics, wait_until
from kit.websocket import Refused, WebSocket
from oracle.mqtt import Connack, Connect, Puback, Publish, Subscribe, Will
from pressure.address_keys import ADDRESSES
from pressure.record_keys import RECORD

from fluxmq.app.admin_client import AdminClient
from fluxmq.model.config_keys import KEYS

PLAIN, TLS = ("plain", "v3", "v5"), ("tls", "mtls")
AMQP = ("plain", *TLS)
LISTENERS = {"tcp": PLAIN + TLS, "websocket": PLAIN + TLS, "amqp091": AMQP}
VERSIONS = {"v3": 4}


def key_of(transport: str, slot: str) -> str:
    return f"server.amqp091.{slot}" if transport == "amqp091" else f"server.mqtt.{transport}.{slot}"


class Slots:
    """A broker with all thirteen listeners on, and clients for them. transport: tcp and websocket are MQTT's."""

    def __init__(self, directory: Path, extra: Callable[[str, str], dict[str, object]],
                 settings: dict[str, object] | None = None) -> None:
        self.ca = make_ca(directory / "ca")
        server = issue(self.ca, "localhost", dns=["localhost"], ip=["127.0.0.1"])
        self.client = issue(self.ca, "by common name", dns=["by.alternative.name"])
        values: dict[str, object] = {"storage.type": "memory", "server.mqtt.tcp.plain.addr": "127.0.0.1:0",
                                     "auth.allow_anonymous": True} | (settings or {})
        for transport, slots in LISTENERS.items():
            for slot in slots:
                path = key_of(transport, slot)
                own: dict[str, object] = {"addr": "127.0.0.1:0"}
                if slot in TLS:
                    own |= {"cert_file": server[0], "key_file": server[1]}
                    own |= {"ca_file": self.ca.cert_file}
                values |= {f"{path}.{key}": value for key, value in (own | extra(transport, slot)).items()}
        self.broker = Broker(directory / "broker", values).start()

    def address(self, transport: str, slot: str) -> tuple[str, int]:
        return self.broker.addresses[key_of(transport, slot).removeprefix("server.").replace(".", "/")]

    def raw(self, transport: str, slot: str, *, certificate: bool = True, **tls: Any) -> socket.socket:
        raw = socket.create_connection(self.address(transport, slot), TIMEOUT)
        raw.settimeout(TIMEOUT)
        if slot not in TLS:
            return raw
        context = ssl.create_default_context(cafile=str(tls.get("ca", self.ca.cert_file)))
        context.check_hostname = False
        if certificate:
            context.load_cert_chain(*tls.get("client", self.client))
        if "maximum_version" in tls:
            context.maximum_version = tls["maximum_version"]
        if "ciphers" in tls:
            context.set_ciphers(tls["ciphers"])
        return context.wrap_socket(raw, server_hostname="127.0.0.1")

    def open(self, transport: str, slot: str, *, path: str = "/mqtt", headers: dict[str, str] | None = None,
             version: int = 0, **tls: Any) -> Client:
        raw = self.raw(transport, slot, **tls)
        version = version or VERSIONS.get(slot, 5)
        if transport == "tcp":
            return Client(raw, version)     # type: ignore[arg-type]
        return Client(upgraded(raw, path, headers or {}), version)


def upgraded(raw: socket.socket, path: str, headers: dict[str, str]) -> WebSocket:
    """WebSocket.open over a connection that is there already."""
    lines = {"Host": "localhost", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
             "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol": "mqtt"} | headers
    raw.sendall((f"GET {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n").encode())
    head = b""
    while b"\r\n\r\n" not in head:
        data = raw.recv(4096)
        if not data:
            break
        head += data
    if not head.startswith(b"HTTP/1.1 101"):
        raw.close()
        raise Refused(head)
    return WebSocket(raw, {}, head.partition(b"\r\n\r\n")[2])


def tight(transport: str, slot: str) -> dict[str, object]:
    """The other value of everything that a slot has."""
    values: dict[str, object] = {"max_connections": 3, "read_timeout": 3, "write_timeout": 0.5}
    if transport == "websocket":
        values |= {"path": "/other", "allowed_origins": "[http://friend.example]"}
    if slot in TLS:
        values |= {"min_version": "tls1.3", "username_from": "cn"}
    if transport != "amqp091":
        values |= {"namespace": "shop"}
    if slot == "tls":
        values |= {"client_auth": "request"} | ({"protocol": "v5"} if transport != "amqp091" else {})
    return values


@pytest.fixture(scope="module")
def wide_and_tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Slots, Slots]]:
    directory = tmp_path_factory.mktemp("slots")
    acl = directory / "acl.yaml"
    acl.write_text("version: 1\nrules:\n  - {allow: all, user: by common name, namespace: '*', topics: ['cn/#']}\n"
                   "  - {allow: all, user: by.alternative.name, namespace: '*', topics: ['san/#']}\n"
                   "  - {allow: all, namespace: '*', topics: ['free/#', '$queue/#']}\n")

    def wide(transport: str, slot: str) -> dict[str, object]:
        found: dict[str, object] = {}
        if slot in TLS:
            found |= {"username_from": "san", "cipher_suites": "[ECDHE-ECDSA-AES128-GCM-SHA256]"}
        return found

    pair = (Slots(directory / "wide", wide, {"auth.acl_file": acl}),
            Slots(directory / "tight", tight, {"auth.acl_file": acl, "namespaces": "[shop]"}))
    yield pair
    for slots in pair:
        slots.broker.check()
        slots.broker.stop()


def own_path(slots: Slots, wide: Slots) -> dict[str, Any]:
    """What gets a client into a slot of either broker."""
    return {} if slots is wide else {"path": "/other"}


def connects(slots: Slots, transport: str, slot: str, **how: Any) -> bool:
    try:
        if transport == "amqp091":
            how.pop("path", None)
            known = slot in TLS and how.get("certificate", True)
            Wire(slots.raw(transport, slot, **how)).login(
                mechanism="EXTERNAL" if known else "PLAIN", response=b"" if known else None, capabilities={}).close()
            return True
        client = slots.open(transport, slot, **how)
        client.connect()
        client.disconnect()
    except (Refused, Unexpected, OSError):
        return False
    return True


def addr(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    assert wide.address(transport, slot) != tight.address(transport, slot)
    assert connects(wide, transport, slot) and connects(tight, transport, slot, path="/other")


def max_connections(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    for slots, enough in ((wide, True), (tight, False)):
        counter = "fluxmq_amqp_refused_total" if transport == "amqp091" else "fluxmq_connect_refused_total"
        before = metric(slots.broker, counter, reason="max_connections")
        opened = [socket.create_connection(slots.address(transport, slot)) for _ in range(4)]
        if not enough:
            wait_until(lambda: metric(slots.broker, counter, reason="max_connections") == before + 1)   # noqa: B023
        else:
            assert metric(slots.broker, counter, reason="max_connections") == before
        for raw in opened:
            with contextlib.suppress(OSError):
                raw.shutdown(socket.SHUT_WR)
        for raw in opened:
            with contextlib.suppress(ConnectionError):
                while raw.recv(100):        # an alert of TLS
                    pass
            raw.close()


def read_timeout(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    assert silent_ones(wide, tight)[transport, slot] == (False, True)


@functools.cache
def silent_ones(wide: Slots, tight: Slots) -> dict[tuple[str, str], tuple[bool, bool]]:
    """Whether either broker ends a connection that says nothing: of all slots at once, for it takes seconds."""
    places = [(transport, slot) for transport, slots in LISTENERS.items() for slot in slots]
    opened = {place: (wide.raw(*place), tight.raw(*place)) for place in places}
    ended = {place: strict.recv(10) == b"" for place, (_, strict) in opened.items()}
    found = {}
    for place, (patient, strict) in opened.items():
        patient.settimeout(0.05)
        try:
            found[place] = (patient.recv(10) == b"", ended[place])
        except TimeoutError:
            found[place] = (False, ended[place])
        patient.close()
        strict.close()
    return found


def write_timeout(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    """Who does not take what was sent is closed on the tight broker; the other one waits for a minute."""
    if transport == "amqp091":
        amqp_write_timeout(wide, tight, slot)
    if (transport, slot) not in (("tcp", "plain"), ("websocket", "plain"), ("tcp", "tls")):
        return                                  # one handler for all; three of its ways are enough to fill sockets for
    for slots, ends in ((tight, True), (wide, False)):
        ended, dropped = ends_and_drops(slots)
        client = slots.open(transport, slot, **own_path(slots, wide))
        client.connect()
        client.subscribe("free/t")
        for _ in range(100):
            # It may be closed before its buffer is full: half a second is not long.
            client.send_to_the_end(*[Publish(topic="free/t", payload=bytes(60_000))] * 4)
            client.transcript.clear()
            if ends_and_drops(slots) != (ended, dropped):
                break
        if ends:
            wait_until(lambda: ends_and_drops(slots)[0] == ended + 1)                 # noqa: B023
        else:
            assert ends_and_drops(slots)[0] == ended
        client.close()


def ends_and_drops(slots: Slots) -> tuple[float, float]:
    seen = metrics(slots.broker)
    return (seen['fluxmq_disconnections_total{reason="write_timeout"}'],
            seen['fluxmq_messages_dropped_total{reason="buffer_full"}'])


def amqp_write_timeout(wide: Slots, tight: Slots, slot: str) -> None:
    """Who asks again and again, and reads no answer."""
    if slot != "plain":
        return                                  # see below
    for slots, ends in ((tight, True), (wide, False)):
        before = metric(slots.broker, "fluxmq_amqp_disconnections_total", reason="write_timeout")
        client = Wire(slots.raw("amqp091", slot)).login()
        client.open_channel()
        client.call(1, "queue.declare", queue="work", auto_delete=True)
        client.call(1, "basic.consume", queue="work", consumer_tag="tag", no_ack=True)
        publisher = Wire(slots.raw("amqp091", slot)).login(capabilities={})
        publisher.open_channel()
        for _ in range(200):
            publisher.publish(1, "", "work", bytes(60_000))
        publisher.close()
        if ends:
            wait_until(lambda: metric(
                slots.broker, "fluxmq_amqp_disconnections_total", reason="write_timeout") == before + 1)  # noqa: B023
        else:
            assert metric(slots.broker, "fluxmq_amqp_disconnections_total", reason="write_timeout") == before
        client.drop()


def protocol(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    path = {"path": "/other"}
    takes = [version for version in (4, 5) if connects(tight, transport, slot, version=version, **path)]
    assert takes == {"v3": [4], "v5": [5], "tls": [5]}.get(slot, [4, 5])
    if slot == "tls":
        assert connects(wide, transport, slot, version=4)


def namespace(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    for slots, where in ((wide, "/"), (tight, "shop")):
        before = metric(slots.broker, "fluxmq_namespace_connections", namespace=where)
        client = slots.open(transport, slot, **own_path(slots, wide))
        client.connect()
        assert metric(slots.broker, "fluxmq_namespace_connections", namespace=where) == before + 1
        client.disconnect()


def path(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    assert connects(wide, transport, slot, path="/mqtt") and not connects(wide, transport, slot, path="/other")
    assert connects(tight, transport, slot, path="/other") and not connects(tight, transport, slot, path="/mqtt")


def allowed_origins(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    headers = {"Origin": "http://friend.example"}
    assert not connects(wide, transport, slot, headers=headers)
    assert connects(tight, transport, slot, headers=headers, path="/other")


def cert_file(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    """Two brokers with certificates of two authorities: each client trusts one."""
    assert connects(wide, transport, slot)
    with pytest.raises(ssl.SSLCertVerificationError):
        wide.raw(transport, slot, ca=tight.ca.cert_file)


def ca_file(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    """Each broker takes the certificates of its own authority."""
    assert connects(wide, transport, slot) and not connects(wide, transport, slot, client=tight.client)
    assert not connects(tight, transport, slot, client=wide.client, path="/other")


def client_auth(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    assert not connects(wide, transport, slot, certificate=False)
    assert connects(tight, transport, slot, certificate=False, path="/other") == (slot == "tls")


def min_version(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    old = {"maximum_version": ssl.TLSVersion.TLSv1_2}
    assert connects(wide, transport, slot, **old)
    assert not connects(tight, transport, slot, path="/other", **old)


def cipher_suites(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    old = {"maximum_version": ssl.TLSVersion.TLSv1_2}
    assert connects(wide, transport, slot, ciphers="ECDHE-ECDSA-AES128-GCM-SHA256", **old)
    assert not connects(wide, transport, slot, ciphers="ECDHE-ECDSA-AES256-GCM-SHA384", **old)


def username_from(wide: Slots, tight: Slots, transport: str, slot: str) -> None:
    if transport == "amqp091":
        amqp_username_from(wide, tight, slot)
        return
    for slots, mine, others in ((wide, "san/x", "cn/x"), (tight, "cn/x", "san/x")):
        client = slots.open(transport, slot, **own_path(slots, wide))
        client.connect()
        client.subscribe(mine, others, expect=[0, 0x87])
        client.disconnect()


def amqp_username_from(wide: Slots, tight: Slots, slot: str) -> None:
    """PLAIN may repeat the name that the certificate has, and no other."""
    for slots, mine, others in ((wide, "by.alternative.name", "by common name"),
                                (tight, "by common name", "by.alternative.name")):
        Wire(slots.raw("amqp091", slot)).login(mechanism="EXTERNAL", response=b"").close()
        Wire(slots.raw("amqp091", slot)).login(user=mine, password="").close()
        Wire(slots.raw("amqp091", slot)).greet().start_ok(others, "", capabilities={}).expect_end()


LISTENER: dict[str, Callable[[Slots, Slots, str, str], None]] = {
    "addr": addr, "max_connections": max_connections, "read_timeout": read_timeout, "write_timeout": write_timeout,
    "protocol": protocol, "path": path, "allowed_origins": allowed_origins, "cert_file": cert_file,
    "key_file": cert_file, "ca_file": ca_file, "client_auth": client_auth, "min_version": min_version,
    "cipher_suites": cipher_suites, "username_from": username_from, "namespace": namespace,
}
SLOT = re.compile(r"server\.(mqtt\.tcp|mqtt\.websocket|amqp091)\.(\w+)\.(\w+)")


@pytest.mark.parametrize("key", [key for key in KEYS if SLOT.fullmatch(key)])
def test_a_key_of_a_listener(wide_and_tight: tuple[Slots, Slots], key: str) -> None:
    match = SLOT.fullmatch(key)
    assert match is not None
    transport, slot, name = match[1].removeprefix("mqtt."), match[2], match[3]
    assert name in LISTENER, f"{key} needs an entry in LISTENER that shows what it does"
    LISTENER[name](*wide_and_tight, transport, slot)


# ---------------------------------------------------------------- all other keys

class Pair:
    """Two brokers that differ in one key, started when they are asked for; and clients for them."""

    def __init__(self, directory: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.key, self.monkeypatch = directory, key, monkeypatch
        self.started: list[Broker] = []
        self.clients: list[Client] = []

    def start(self, value: object, **more: object) -> Broker:
        settings = {"storage.type": "memory"} | {name.replace("__", "."): each for name, each in more.items()}
        broker = Broker(self.directory / f"broker{len(self.started)}", settings | {self.key: value})
        self.started.append(broker)
        return broker.start()

    def client(self, broker: Broker | Node, client_id: str = "", version: int = 5, receive_buffer: int = 0,
               **options: Any) -> Client:
        raw = socket.socket()
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(TIMEOUT)
        raw.connect(broker.address)
        client = Client(raw, version)
        self.clients.append(client)
        client.connect(client_id, **options)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for broker in self.started:
            broker.stop()


Observe = Callable[[Pair], None]


def connack(name: str, value: object, seen: object, other: object, otherwise: object, **connect: Any) -> Observe:
    """A property of CONNACK: `seen` with `value`, `otherwise` with `other`."""
    def observe(pair: Pair) -> None:
        for setting, wanted in ((value, seen), (other, otherwise)):
            client = pair.client(pair.start(setting), "me", **connect)
            assert client.connack is not None and client.connack.prop(name) == wanted
    return observe


def ends(packet: Publish | Subscribe, small: object, large: object, reason: int) -> Observe:
    """A packet that ends the connection under one value and not under the other."""
    def observe(pair: Pair) -> None:
        client = pair.client(pair.start(small))
        client.send(packet)
        client.expect_closed(reason)
        client = pair.client(pair.start(large))
        client.send(packet)
        client.expect_quiet() if isinstance(packet, Publish) else client.recv()
    return observe


def retained(messages: int, size: int, values: tuple[object, object], kept: tuple[int, int]) -> Observe:
    def observe(pair: Pair) -> None:
        for value, count in zip(values, kept, strict=True):
            broker = pair.start(value, broker__sys_interval=0)
            client = pair.client(broker)
            for number in range(messages):
                client.publish(f"t{number}", bytes([1]) * size, 1, retain=True)
            assert metric(broker, "fluxmq_retained_messages") == count
    return observe


def max_qos(pair: Pair) -> None:
    for value in (0, 2):
        assert pair.client(pair.start(value)).subscribe("t", qos=2, expect=[value])


def outbound_topic_alias_max(pair: Pair) -> None:
    for value, alias in ((0, None), (10, 1)):
        client = pair.client(pair.start(value), properties={"topic_alias_maximum": 1})
        client.subscribe("a/topic")
        client.publish("a/topic")
        assert client.receive("a/topic").prop("topic_alias") == alias


def max_subscriptions_per_client(pair: Pair) -> None:
    for value, reasons in ((1, [0, 0x97]), (2, [0, 0])):
        pair.client(pair.start(value)).subscribe("a", "b", expect=reasons)


def sys_interval(pair: Pair) -> None:
    broker = pair.start("50ms")
    client = pair.client(broker)
    client.subscribe("$SYS/broker/uptime")
    client.expect(Publish)
    broker = pair.start(0)
    wait_until(lambda: metric(broker, "fluxmq_uptime_seconds") > 0.5)
    assert metric(broker, "fluxmq_retained_messages") == 0


def route_cache_entries(pair: Pair) -> None:
    misses = []
    for value in (16, 4096):
        broker = pair.start(value, broker__sys_interval=0)
        client = pair.client(broker)
        for _ in range(2):
            client.send(*(Publish(topic=f"t{number}") for number in range(1000)))
        client.expect_quiet()
        misses.append(metric(broker, "fluxmq_route_cache_misses_total"))
    assert misses[0] > 1900 and misses[1] < 1500


def max_state_bytes(pair: Pair) -> None:
    for value, reasons in (("64KiB", [0, 0x97]), ("1MiB", [0, 0])):
        broker = pair.start(value)
        pair.client(broker).subscribe("a" * 40_000, "b" * 40_000, expect=reasons)
        second = Client(broker.address)
        pair.clients.append(second)
        second.send(Connect(client_id="b", will=Will(topic="t", payload=bytes(40_000))))
        second.expect(Connack, reason=reasons[1])


def max_sessions(pair: Pair) -> None:
    for value, reason in ((1, 0x97), (2, 0)):
        broker = pair.start(value)
        pair.client(broker, "a")
        second = Client(broker.address)
        pair.clients.append(second)
        second.send(Connect(client_id="b"))
        second.expect(Connack, reason=reason)


def offline(messages: int, size: int, values: tuple[object, object],
            left: Callable[[int], tuple[list[int], list[int]]]) -> Observe:
    """What a session that was away finds waiting."""
    def observe(pair: Pair) -> None:
        for value, wanted in zip(values, left(messages), strict=True):
            more = {} if pair.key.endswith("_size") else {"session__max_offline_queue_size": 10}
            broker = pair.start(value, **more)
            away = pair.client(broker, "away", **KEPT)
            away.subscribe("t", qos=1)
            away.disconnect()
            publisher = pair.client(broker)
            for number in range(messages):
                publisher.publish("t", b"%08d" % number + bytes(size), 1)
            away = pair.client(broker, "away", **KEPT)
            assert [int(away.receive().payload[:8]) for _ in wanted] == wanted
            away.expect_quiet()
    return observe


def max_inflight_messages(pair: Pair) -> None:
    for value in (1, 3):
        broker = pair.start(value)
        client, publisher = pair.client(broker), pair.client(broker)
        client.subscribe("t", qos=1)
        for _ in range(5):
            publisher.publish("t", qos=1)
        assert metric(broker, "fluxmq_inflight_messages") == value


def overfill(pair: Pair, broker: Broker, qos: int = 0, size: int = 6 << 20) -> tuple[Client, Client]:
    """A subscriber that reads nothing of `size` bytes, and the publisher of them."""
    slow, publisher = pair.client(broker, "slow", receive_buffer=4096), pair.client(broker)
    slow.subscribe("t", qos=qos)
    for number in range(size // 16384):
        publisher.publish("t", bytes(16384), qos)
        publisher.transcript.clear()
        if number % 50 == 0:
            publisher.expect_quiet()
    publisher.expect_quiet()
    return slow, publisher


def send_buffer_high(pair: Pair) -> None:
    for value, drops in (("64KiB", True), ("32MiB", False)):
        broker = pair.start(value, session__send_buffer_low="4KiB")
        overfill(pair, broker, size=16 << 20)
        assert (metric(broker, "fluxmq_messages_dropped_total", reason="buffer_full") > 0) is drops


def send_buffer_low(pair: Pair) -> None:
    """How much must be read before the queue is served again."""
    read = []
    for value in ("4KiB", "4000KiB"):
        broker = pair.start(value, session__send_buffer_high="4MiB", session__max_inflight_messages=65535,
                            session__max_offline_queue_size=100_000)
        slow, _ = overfill(pair, broker, 1, 24 << 20)
        queued = metric(broker, "fluxmq_queued_messages")
        assert queued > 0
        read.append(0)
        while metric(broker, "fluxmq_queued_messages") == queued:
            read[-1] += len(slow.transport.recv(65536))
    assert read[0] > read[1] + (1 << 20)


def disconnect_on_full(pair: Pair) -> None:
    for value in (True, False):
        broker = pair.start(value, session__send_buffer_high="64KiB", session__send_buffer_low="4KiB")
        overfill(pair, broker, size=16 << 20)
        if value:
            wait_until(lambda: metric(broker, "fluxmq_disconnections_total", reason="send_buffer_full"))  # noqa: B023
        assert metric(broker, "fluxmq_connections") == (1 if value else 2)


def shutdown_timeout(pair: Pair) -> None:
    """What is in hand at SIGTERM reaches a slow client, or is cut."""
    for value, complete in (("0s", False), ("60s", True)):
        broker = pair.start(value, session__send_buffer_high="32MiB")
        slow, _ = overfill(pair, broker, size=16 << 20)
        assert broker.process is not None
        broker.process.send_signal(signal.SIGTERM)
        if not complete:
            assert broker.process.wait(30) == 0
        got = 0
        with contextlib.suppress(ConnectionError):
            while data := slow.transport.recv(1 << 20):
                got += len(data)
        assert (got > 16 << 20) is complete
        broker.process.wait(30)


def health_enabled(pair: Pair) -> None:
    assert "health" in pair.start(True).addresses and "health" not in pair.start(False).addresses


def health_addr(pair: Pair) -> None:
    assert [pair.start(f"{host}:0").health[0] for host in ("127.0.0.1", "127.0.0.2")] == ["127.0.0.1", "127.0.0.2"]
    assert "health" not in pair.start("").addresses


def log_level(pair: Pair) -> None:
    for value, said in (("info", True), ("error", False)):
        broker = pair.start(value)
        pair.client(broker).disconnect()
        assert ("disconnected" in broker.stderr()) is said


def log_format(pair: Pair) -> None:
    for value in ("json", "text"):
        broker = pair.start(value, log__level="debug")
        pair.client(broker).disconnect()
        line = broker.stderr().splitlines()[0]
        assert line.startswith("{") is (value == "json")
        if value == "json":
            assert "time" in json.loads(line)


def keeps(pair: Pair, broker: Broker, wanted: bool) -> None:
    client = pair.client(broker, "kept", **KEPT)
    client.disconnect()
    broker.restart()
    assert metric(broker, "fluxmq_sessions") == wanted


def storage_type(pair: Pair) -> None:
    keeps(pair, pair.start("rocksdb"), True)
    keeps(pair, pair.start("memory"), False)


def storage_dir(pair: Pair) -> None:
    for name in ("here", "there"):
        pair.start(pair.directory / name, storage__type="rocksdb")
        assert list((pair.directory / name).iterdir())
        assert not (pair.directory / "there").exists() or name == "there"


def session_durability(pair: Pair) -> None:
    """With a disk that stands still, only buffered acknowledges."""
    disk = SlowDisk(pair.directory, pair.monkeypatch)
    for value in ("buffered", "fsync"):
        broker = pair.start(value, storage__type="rocksdb", storage__sync_interval=3600)
        client = pair.client(broker, "kept", **KEPT)
        with disk.held():
            client.send(Subscribe(packet_id=1, filters=[("t", 0)]))
            if value == "buffered":
                client.recv()
            else:
                client.expect_quiet()
        if value == "fsync":
            client.recv()


def sync_interval(pair: Pair) -> None:
    for value, soon in (("20ms", True), ("1h", False)):
        broker = pair.start(value, storage__type="rocksdb", storage__session_durability="buffered")
        name = "fluxmq_journal_sync_seconds_count"
        before = metrics(broker)[name]
        client = pair.client(broker, "kept", **KEPT)
        client.subscribe("t")
        if soon:
            wait_until(lambda: metrics(broker)[name] > before)      # noqa: B023
        else:
            assert metrics(broker)[name] == before


def journal_files(broker: Broker) -> list[str]:
    return sorted(path.name for path in (broker.directory / "data").rglob("*") if "journal" in str(path))


def journal_file_size(pair: Pair) -> None:
    for value, rotated in (("1MiB", True), ("64MiB", False)):
        broker = pair.start(value, storage__type="rocksdb")
        away = pair.client(broker, "kept", **KEPT)
        away.subscribe("t", qos=1)
        away.disconnect()
        before = journal_files(broker)
        client = pair.client(broker)
        for _ in range(40):
            client.publish("t", bytes(100_000), 1)
            client.transcript.clear()
        if rotated:
            wait_until(lambda: journal_files(broker) != before)     # noqa: B023
        else:
            assert journal_files(broker) == before


def recover_on_startup(pair: Pair) -> None:
    broker = pair.start(False, storage__type="rocksdb")
    client = pair.client(broker, "kept", **KEPT)
    for number in range(20):
        client.subscribe(f"t{number}")
    broker.kill()
    [journal] = [path for path in (broker.directory / "data").rglob("*") if path.is_file()
                 and b"t10" in path.read_bytes()]
    data = journal.read_bytes()
    at = data.index(b"t10")
    journal.write_bytes(data[:at] + b"???" + data[at + 3:])
    with pytest.raises(BrokerDied, match="recover_on_startup"):
        broker.start()
    broker.settings[pair.key] = True
    broker.start()
    assert 10 < metric(broker, "fluxmq_subscriptions") < 20      # what stood behind the damage is there, too


def allow_anonymous(pair: Pair) -> None:
    add_user(pair.directory / "users", "anna", "secret")
    for value in (True, False):
        broker = pair.start(value, auth__users_file=pair.directory / "users")
        client = Client(broker.address)
        pair.clients.append(client)
        client.send(Connect(client_id="a"))
        assert (client.expect(Connack).reason == 0) is value


def users_file(pair: Pair) -> None:
    for user, wanted in (("anna", 0), ("bert", 0x86)):
        add_user(pair.directory / user, user, "secret")
        client = Client(pair.start(pair.directory / user).address)
        pair.clients.append(client)
        client.send(Connect(client_id="a", username="anna", password=b"secret"))
        client.expect(Connack, reason=wanted)


def cluster_users(pair: Pair) -> None:
    for value, wanted in ((True, 0x86), (False, 0)):       # a cluster without users, and a node that asks for none
        with Cluster(pair.directory / str(value), 1, settings={pair.key: value}) as cluster:
            client = cluster.client(0)
            client.send(Connect(client_id="a", username="anna", password=b"secret"))
            client.expect(Connack, reason=wanted)


def cluster_permissions(pair: Pair) -> None:
    for value, wanted in ((True, 0x87), (False, 0)):       # a cluster without any, and a node that asks for none
        with Cluster(pair.directory / str(value), 1, settings={pair.key: value}) as cluster:
            client = cluster.client(0)
            client.connect("a")
            client.subscribe("a", expect=[wanted])


def acl_file(pair: Pair) -> None:
    acl = pair.directory / "acl.yaml"
    acl.write_text("version: 1\nrules:\n  - {allow: all, topics: ['mine']}\n")
    for value, reason in ((acl, 0x87), ("", 0)):
        pair.client(pair.start(value, auth__allow_anonymous=True)).subscribe("other", expect=[reason])


def ask_timeout(pair: Pair) -> None:
    for value, refused in (("100ms", True), ("1h", False)):
        node = Node(pair.directory / value, {"auth.ask_timeout": value, "storage.type": "memory"}, HeldAuthority())
        try:
            client = pair.client(node)
            client.send(Publish(topic="asked", qos=1, packet_id=1))
            if refused:
                client.expect(Puback, packet_id=1, reason=0x87)
            else:
                client.expect_nothing()
            client.close()
        finally:
            node.stop()


def admin_socket(pair: Pair) -> None:
    path = pair.directory / "a.sock"
    pair.start("off", storage__type="rocksdb")
    assert not list(pair.directory.rglob("*.sock"))
    pair.start(path)
    assert path.is_socket()


def auto_create(pair: Pair) -> None:
    for value, reason in (('""', 0x90), ("classic", 0)):
        pair.client(pair.start(value)).publish("$queue/new", b"x", 1, expect=reason)


def queues(pair: Pair) -> None:
    for value, reason in (("[]", 0x8F), ("[{name: work}]", 1)):
        pair.client(pair.start(value)).subscribe("$queue/work", qos=1, expect=[reason])


def namespaces(pair: Pair) -> None:
    for value, reason in (("[]", 0), ("[shop]", 0x87), ("[shop, plant]", 0),
                          ("[{name: plant, limits: {sessions: 1}}]", 0x97)):
        broker = pair.start(value)
        first = pair.client(broker, "a")
        second = Client(broker.address)
        pair.clients.append(second)
        if reason == 0x97:
            pair.client(broker, "a", username="plant:u")
        second.connect("b", username="plant:u", expect=reason)
        first.expect_quiet()


def auto_commit_interval(pair: Pair) -> None:
    """A reader acknowledges its second message once the first is committed: the next commit is soon, or in an hour."""
    for value, soon in (("0s", True), ("1h", False)):
        broker = pair.start(value, queues="[{name: events, type: stream}]", storage__type="rocksdb")
        client = pair.client(broker)
        for payload in (b"0", b"1"):
            client.publish("$queue/events", payload, 1, expect=0)
        asked = [("user_property", ("offset", "first")), ("user_property", ("consumer-group", "g"))]
        client.subscribe("$queue/events", qos=1, properties=asked)
        first, second = client.expect(Publish, payload=b"0"), client.expect(Publish, payload=b"1")
        for packet, wanted, comes in ((first, 1, True), (second, 2, soon)):
            client.send(Puback(packet_id=packet.packet_id or 0))
            if comes:
                wait_until(lambda: committed(broker) == wanted)     # noqa: B023
            else:
                client.expect_quiet()
                assert committed(broker) == wanted - 1


def committed(broker: Broker) -> int:
    """The next message of the only group of the stream `events`, as its last commit has it."""
    client = AdminClient(broker.directory / "data" / "admin.sock")
    try:
        return int(client.ask("GET", "queues", "events", "groups")["groups"][0]["positions"][0]["next"])
    finally:
        client.close()


def metrics_queues(pair: Pair) -> None:
    for value, shown in ((0, 0), (1, 1), (5, 2)):
        names = metrics(pair.start(value, queues="[{name: a}, {name: b}]"))
        assert sum(name.startswith("fluxmq_queue_bytes{") for name in names) == shown


def backlog(pair: Pair, value: object, payload: bytes, many: int) -> tuple[Broker, Memory]:
    """A broker with so many messages in a queue, nearly all of them in segments."""
    broker = pair.start(value, storage__type="rocksdb", queues="[{name: work}]", storage__journal_file_size="1MiB")
    client = pair.client(broker)
    memory = Memory(broker)
    for _ in range(many):
        client.publish("$queue/work", payload, 1, expect=0)
        client.transcript.clear()
    return broker, memory


def segments(broker: Broker) -> list[int]:
    return [path.stat().st_size for path in (broker.directory / "data" / "queues").rglob("*.seg")]


def segment_size(pair: Pair) -> None:
    noise = random.Random(1).randbytes(50_000)
    small, _ = backlog(pair, "1MiB", noise, 120)
    wait_until(lambda: len(segments(small)) > 2)
    large, _ = backlog(pair, "64MiB", noise, 120)
    wait_until(lambda: sum(segments(large)) > 3 << 20)
    assert len(segments(large)) == 1


def compression(pair: Pair) -> None:
    plain, _ = backlog(pair, "none", bytes(50_000), 120)
    wait_until(lambda: sum(segments(plain)) > 3 << 20)
    packed, _ = backlog(pair, "zstd", bytes(50_000), 120)
    wait_until(lambda: segments(packed))
    assert sum(segments(packed)) < 1 << 20


def amqp(broker: Broker) -> Wire:
    return Wire(broker.addresses["amqp091/plain"]).login()


def virtual_hosts(pair: Pair) -> None:
    for value, opens in (("[/]", False), ("[/, prod]", True)):
        client = Wire(pair.start(value).addresses["amqp091/plain"]).greet().start_ok()
        client.expect(0, "connection.tune")
        client.send(0, "connection.tune-ok")
        client.send(0, "connection.open", virtual_host="prod")
        client.expect(0, "connection.open-ok") if opens else client.expect_close(530)


def tuned(name: str, values: tuple[object, object], seen: tuple[int, int]) -> Observe:
    """What connection.tune offers."""
    def observe(pair: Pair) -> None:
        for value, wanted in zip(values, seen, strict=True):
            assert amqp(pair.start(value)).tune[name] == wanted
    return observe


def consumer_timeout(pair: Pair) -> None:
    for value, ends in (("1s", True), ("0s", False)):
        client = amqp(pair.start(value))
        client.open_channel()
        client.call(1, "queue.declare", queue="work", auto_delete=True)
        client.publish(1, "", "work", b"x")
        client.call(1, "basic.consume", queue="work", consumer_tag="tag")
        client.expect_content(1)
        if ends:
            assert client.expect(1, "channel.close")["reply_code"] == 406
        else:
            assert not client.ready(2)


def amqp_message_size(pair: Pair) -> None:
    for value, ends in (("1KiB", True), ("2KiB", False)):
        client = amqp(pair.start(value))
        client.open_channel()
        client.publish(1, "", "nowhere", bytes(2000))
        client.send(1, "channel.close", reply_code=200)
        if ends:
            assert client.expect(1, "channel.close")["reply_code"] == 406
        else:
            client.expect(1, "channel.close-ok")


def memory_high(pair: Pair) -> None:
    """A broker with 80 MiB of retained messages blocks who publishes, or has room for more."""
    for value, blocks in (("64MiB", True), ("1TiB", False)):
        broker = pair.start(value)
        publisher = pair.client(broker)
        for number in range(80):
            publisher.publish(f"t{number}", bytes(1 << 20), 1, retain=True)
            publisher.transcript.clear()
        client = amqp(broker)
        client.open_channel()
        client.publish(1, "", "nowhere", bytes(64 << 10))
        if blocks:
            assert client.expect(0, "connection.blocked") == {"reason": "low on memory"}
        else:
            client.close()


def cache_size(pair: Pair) -> None:
    noise = random.Random(1).randbytes(100_000)
    grown = []
    for value in ("1MiB", "512MiB"):
        broker, memory = backlog(pair, value, noise, 500)
        wait_until(lambda: sum(segments(broker)) > 35 << 20)     # noqa: B023
        grown.append(memory.grown)
    assert grown[0] + (30 << 20) < grown[1]


def consumer_of(pair: Pair, value: object) -> tuple[Broker, Client]:
    broker = pair.start(value, queues="[{name: q}]", session__max_inflight_messages=65535)
    client = pair.client(broker)
    client.subscribe("$queue/q", qos=1)
    return broker, client


def unsettled(pair: Pair, messages: int, cases: tuple[tuple[int, int], ...]) -> None:
    """cases: (value, how many of the messages a consumer gets that settles none)."""
    for value, most in cases:
        broker, client = consumer_of(pair, value)
        publisher = pair.client(broker)
        for _ in range(messages):
            publisher.publish("$queue/q", b"", 1, expect=0)
        for _ in range(most):
            client.expect(Publish)
        client.expect_quiet()


def max_unsettled_per_consumer(pair: Pair) -> None:
    unsettled(pair, 5, ((3, 3), (100, 5)))


def max_unsettled(pair: Pair) -> None:
    unsettled(pair, 600, ((1000, 500), (2000, 600)))


HALVES = lambda count: (list(range(count)), list(range(count - 10, count)))     # noqa: E731
OTHERS: dict[str, Observe] = {
    "server.health_enabled": health_enabled,
    "server.admin_socket": admin_socket,
    "auth.ask_timeout": ask_timeout,
    "queue_manager.auto_commit_interval": auto_commit_interval,
    "queue_manager.auto_create": auto_create,
    "queue_manager.cache_size": cache_size,
    "queue_manager.max_unsettled": max_unsettled,
    "queue_manager.max_unsettled_per_consumer": max_unsettled_per_consumer,
    "queue_manager.metrics_queues": metrics_queues,
    "queue_manager.segment_size": segment_size,
    "queue_manager.compression": compression,
    "namespaces": namespaces,
    "queues": queues,
    "amqp091.virtual_hosts": virtual_hosts,
    "amqp091.frame_max": tuned("frame_max", ("4KiB", "1MiB"), (4096, 1 << 20)),
    "amqp091.channel_max": tuned("channel_max", (5, 65535), (5, 65535)),
    "amqp091.max_message_size": amqp_message_size,
    "amqp091.heartbeat": tuned("heartbeat", ("30s", "0s"), (30, 0)),
    "amqp091.memory_high": memory_high,
    "amqp091.consumer_timeout": consumer_timeout,
    "server.health_addr": health_addr,
    "server.shutdown_timeout": shutdown_timeout,
    "broker.max_message_size": ends(Publish(topic="t", payload=bytes(2000)), 1024, 4096, 0x95),
    "broker.max_retained_messages": retained(3, 10, (2, 100), (2, 3)),
    "broker.max_retained_bytes": retained(3, 1000, (2048, 4096), (2, 3)),
    "broker.max_qos": max_qos,
    "broker.topic_alias_max": connack("topic_alias_maximum", 3, 3, 0, None),
    "broker.outbound_topic_alias_max": outbound_topic_alias_max,
    "broker.receive_maximum": connack("receive_maximum", 7, 7, 65535, None),
    "broker.max_topic_levels": ends(Publish(topic="a/b/c"), 2, 3, 0x90),
    "broker.max_user_properties": ends(Subscribe(packet_id=1, filters=[("t", 0)], properties=[
        ("user_property", ("a", "b"))] * 2), 1, 2, 0x97),
    "broker.max_subscriptions_per_client": max_subscriptions_per_client,
    "broker.sys_interval": sys_interval,
    "broker.server_keep_alive_max": connack("server_keep_alive", 30, 30, 0, None, keep_alive=60),
    "broker.route_cache_entries": route_cache_entries,
    "broker.response_information": connack("response_information", "r/", "r/", "", None,
                                           properties={"request_response_information": 1}),
    "session.max_sessions": max_sessions,
    "session.max_state_bytes": max_state_bytes,
    "session.max_expiry_interval": connack("session_expiry_interval", 60, 60, 0, None,
                                           properties={"session_expiry_interval": 100}),
    "session.max_offline_queue_size": offline(20, 10, (100, 10), HALVES),
    "session.max_offline_queue_bytes": offline(6, 16384, ("1MiB", "64KiB"), lambda count: ([*range(6)], [3, 4, 5])),
    "session.max_inflight_messages": max_inflight_messages,
    "session.offline_queue_policy": offline(20, 10, ("reject", "evict"), lambda count: ([*range(10)],
                                                                                    [*range(10, 20)])),
    "session.send_buffer_high": send_buffer_high,
    "session.send_buffer_low": send_buffer_low,
    "session.disconnect_on_full": disconnect_on_full,
    "log.level": log_level,
    "log.format": log_format,
    "storage.type": storage_type,
    "storage.dir": storage_dir,
    "storage.session_durability": session_durability,
    "storage.sync_interval": sync_interval,
    "storage.journal_file_size": journal_file_size,
    "storage.recover_on_startup": recover_on_startup,
    "auth.allow_anonymous": allow_anonymous,
    "auth.users_file": users_file,
    "auth.cluster_users": cluster_users,
    "auth.cluster_permissions": cluster_permissions,
    "auth.acl_file": acl_file,
} | RECORD | ADDRESSES


# Those of `cluster` are in tests/unit/test_cluster_config.py.
@pytest.mark.parametrize("key", [key for key in KEYS if not SLOT.fullmatch(key) and not key.startswith("cluster.")])
def test_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    assert key in OTHERS, f"{key} needs an entry in OTHERS that shows what it does"
    pair = Pair(tmp_path, key, monkeypatch)
    try:
        OTHERS[key](pair)
    finally:
        pair.close()


def test_no_entry_without_a_key() -> None:
    assert set(OTHERS) <= set(KEYS)
    assert set(LISTENER) == {match[3] for key in KEYS if (match := SLOT.fullmatch(key))}
