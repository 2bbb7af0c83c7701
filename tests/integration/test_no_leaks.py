"""Nothing stays behind: live objects of the core are counted while clients do their worst, and must be back where they
were when they have gone."""
from __future__ import annotations

import contextlib
import gc
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.amqp_wire import Wire
from kit.certs import issue, make_ca
from kit.client import KEPT, Client
from kit.left_behind import Census
from kit.node import Node
from kit.watch import grown, wait_until
from kit.websocket import PING, WebSocket
from oracle.mqtt import Puback, Publish, Pubrec

from fluxmq._core.net.amqp091_connection import AmqpConnection
from fluxmq._core.pubsub.session import Session
from fluxmq._core.testing.probes import live_objects
from fluxmq.app.server import Server
from fluxmq.edge.amqp091.client import Client as AmqpState

BIG = b"x" * 100_000


def wait_for(node: Node, done: Callable[[Server], bool]) -> None:
    wait_until(lambda: node.call(done))


@pytest.fixture(params=["memory", "rocksdb"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """A broker; at the end its clients are gone, then it, and with them everything they had."""
    ca = make_ca(tmp_path)
    certificate, key = issue(ca, "localhost", dns=["localhost"], ip=["127.0.0.1"])
    sessions, before = Census(Session), live_objects()
    made = Node(tmp_path, {
        "server.mqtt.websocket.plain.addr": "127.0.0.1:0", "server.amqp091.plain.addr": "127.0.0.1:0",
        "server.mqtt.tcp.tls.addr": "127.0.0.1:0", "server.mqtt.tcp.tls.cert_file": certificate,
        "server.mqtt.tcp.tls.key_file": key, "storage.type": request.param, "storage.journal_file_size": "1MiB"})
    try:
        yield made
        wait_for(made, lambda server: not server.poller.connections)
        gc.collect()
        wait_until(lambda: not {"links", "chunks"} & set(grown(before, live_objects())))
        counters = made.call(lambda server: server.hub.counters())
        assert (counters["inflight"], counters["queued"], counters["queued_bytes"], counters["held"]) == (0, 0, 0, 0)
    finally:
        made.stop()
    del made.server, made
    assert not sessions.made()
    assert not grown(before, live_objects())


def test_messages_of_every_kind(node: Node) -> None:
    clients = [Client(node.listens("mqtt.tcp.plain")) for _ in range(3)]
    for number, client in enumerate(clients):
        client.connect(f"c{number}", properties={"topic_alias_maximum": 10})
        client.subscribe(
            ("a/#", 2), ("a/+", 1), ("$share/g/a/b", 1), properties={"subscription_identifier": number + 1}
        )
    for qos in (0, 1, 2):
        for payload in (b"", b"small", BIG):
            clients[0].publish("a/b", payload, qos, retain=payload == BIG, properties={"content_type": "t"})
    clients[0].publish("a/b", b"", retain=True)
    for client in clients:
        client.send(b"\xc0\x00")
    clients[0].reset()
    clients[1].close()
    clients[2].drop()


def test_amqp_connections_that_end_in_every_way(node: Node) -> None:
    """At each step of the handshake, and behind it: by the client, by the broker, by a reset."""
    clients = Census(AmqpConnection | AmqpState)
    steps: list[Callable[[Wire], object]] = [
        lambda one: None,
        lambda one: one.send_raw(b"AMQP"),
        lambda one: one.send_raw(b"HTTP/1.1"),
        lambda one: one.greet(),
        lambda one: one.greet().start_ok(),
        lambda one: one.greet().start_ok(mechanism="NONE"),
        lambda one: one.login(),
        lambda one: one.login().open_channel(),
        lambda one: one.login().close(),
        lambda one: one.login().send_raw(bytes(50)),
        lambda one: one.login().send(1, "basic.publish", routing_key="q"),
    ]
    for step in steps:
        for ends in ("close", "reset"):
            client = Wire(node.listens("amqp091.plain"))
            step(client)
            if ends == "reset" and client.socket.fileno() >= 0:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.drop()
    wait_for(node, lambda server: not server.poller.connections and not server.amqp091.clients.open)
    assert not clients.made()


@pytest.mark.parametrize("slot", ["mqtt.tcp.plain", "mqtt.tcp.tls", "amqp091.plain"])
def test_a_socket_that_a_child_has_is_not_watched_when_it_is_closed(node: Node, slot: str) -> None:
    """A process that forks gives all its sockets to the child, which closes them when it executes its program."""
    with contextlib.ExitStack() as ends:
        raw = ends.enter_context(socket.create_connection(node.listens(slot)))
        if slot.endswith("tls"):
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            raw = ends.enter_context(context.wrap_socket(raw))
        wait_for(node, lambda server: server.poller.connections)
        [number] = node.call(lambda server: [connection.fd for connection in server.poller.connections])
        ends.callback(os.close, os.dup(number))
        raw.close()
        wait_for(node, lambda server: not server.poller.connections)
        assert number not in watched()


def watched() -> set[int]:
    """Descriptors in every epoll of this process."""
    found = set()
    for entry in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            found |= {int(line.split()[1]) for line in entry.read_text().splitlines() if line.startswith("tfd:")}
    return found


def test_kept_sessions_with_messages_that_end(node: Node) -> None:
    away = Client(node.listens("mqtt.tcp.plain"))
    away.connect("away", **KEPT)
    away.subscribe(("t/#", 2))
    publisher = Client(node.listens("mqtt.tcp.plain"))
    publisher.connect("p")
    for qos in (1, 2):
        for number in range(50):
            publisher.publish(f"t/{number}", BIG if number % 10 == 0 else b"x", qos)
    first = away.expect(Publish)
    assert first.packet_id is not None
    away.send(Puback(packet_id=first.packet_id) if first.qos == 1 else Pubrec(packet_id=first.packet_id))
    away.reset()
    for number in range(50):
        publisher.publish("t/more", b"y" * number, 1 + number % 2)
    for _ in range(3):  # back with everything in flight, and taken over
        again = Client(node.listens("mqtt.tcp.plain"))
        again.connect("away", **KEPT)
        again.expect(Publish)
    last = Client(node.listens("mqtt.tcp.plain"))
    last.connect("away", clean_start=True)
    last.disconnect()
    publisher.disconnect()
    wait_for(node, lambda server: not server.broker.sessions)


def test_clients_that_leave_in_the_middle(node: Node) -> None:
    for cut in (b"\x10", b"\x10\xff\xff\x01", b"\x30\xff\xff\x7f" + BIG, b"\x30\x80\x80\x80\x80", b""):
        client = Client(node.listens("mqtt.tcp.plain"))
        client.connect()
        client.send(cut)
        client.reset()
        raw = Client(node.listens("mqtt.tcp.plain"))
        raw.send_to_the_end(cut)
        raw.close()


def test_a_subscriber_that_does_not_read(node: Node) -> None:
    slow = Client(node.listens("mqtt.tcp.plain"))
    slow.connect("slow", **KEPT)
    slow.subscribe(("s", 1))
    publisher = Client(node.listens("mqtt.tcp.plain"))
    publisher.connect("p")
    for _ in range(200):
        publisher.publish("s", BIG, 0)
    for _ in range(100):
        publisher.publish("s", BIG, 1)
    publisher.disconnect()
    slow.reset()
    last = Client(node.listens("mqtt.tcp.plain"))
    last.connect("slow", clean_start=True)
    last.disconnect()


def test_websocket_and_tls(node: Node) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    subscriber = Client(WebSocket.open(node.listens("mqtt.websocket.plain")))
    subscriber.connect("w")
    subscriber.subscribe(("u", 1))
    with context.wrap_socket(socket.create_connection(node.listens("mqtt.tcp.tls"))) as secure:
        publisher = Client(secure)
        publisher.connect("t")
        for payload in (b"x", BIG):
            for qos in (0, 1, 2):
                publisher.publish("u", payload, qos)
                subscriber.receive("u", payload)
    assert isinstance(subscriber.transport, WebSocket)
    subscriber.transport.frame(PING, b"x")
    subscriber.close()
    socket.create_connection(node.listens("mqtt.tcp.tls")).close()
    unfinished = socket.create_connection(node.listens("mqtt.websocket.plain"))
    unfinished.sendall(b"GET /mqtt HTTP/1.1\r\n")
    unfinished.close()
