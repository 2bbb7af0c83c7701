"""The operator's side of namespaces, on a whole node inside this process: what there is, what is made, and that nothing
of a namespace outlives it."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Wire
from kit.carrier import Carrier
from kit.client import Client
from kit.node import Node
from oracle.mqtt import Will as OracleWill

from fluxmq.admin.metrics import Metrics
from fluxmq.app.server import Server
from fluxmq.edge.mqtt.clients import MqttClients
from fluxmq.engine.namespaces import NamespaceAdmin
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.sessions.state import EXPIRY_NEVER, Will
from fluxmq.model.limits import NAMESPACE_BYTES_MAX, NAMESPACE_METRICS_MAX
from fluxmq.model.mqtt import ReasonCode

EXPIRY = {"session_expiry_interval": 3600}
NO_LIMITS = dict.fromkeys(("connections", "sessions", "queues", "bytes", "messages_per_second"), 0)
EMPTY = {"connections": 0, "sessions": 0, "queues": 0, "messages": 0, "retained": 0}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, {"amqp091.virtual_hosts": '["/", "named"]'})
    yield node
    node.stop()


def admin(server: Server) -> NamespaceAdmin:
    return server.namespace_admin(())


def connect(server: Server, name: bytes, client_id: bytes, *, expiry_s: int = EXPIRY_NEVER, will: Will | None = None,
            ) -> tuple[Any, Carrier]:
    """A session with a connection."""
    carrier = Carrier()
    session, _ = server.broker.connect(
        client_id, version=5, clean_start=False, expiry_s=expiry_s, keep_alive_s=0, will=will, username=None,
        connection=carrier, namespace=server.hub.namespaces[name])
    return session, carrier


def fill(server: Server, name: bytes) -> list[Carrier]:
    """Something of everything: a client, one that is away, a share group, a queue, an exchange, a retained message."""
    broker, hub = server.broker, server.hub
    namespace = hub.namespaces[name]
    will = Will(b"wills", b"gone", 1, False)
    here, carrier = connect(server, name, b"here", expiry_s=0, will=will)
    away, lost = connect(server, name, b"away", will=Will(b"wills", b"gone", 1, False, delay_s=3600))
    for session in (here, away):
        broker.subscribe(session, b"$share/g/jobs", 1, 0)
        broker.subscribe(session, b"a/#", 1, 0)
    broker.disconnect(away, lost, publish_will=True)
    server.queues.admin.declare({"name": "q", "namespace": name.decode(), "topics": ["a/#"]})
    exchanges = server.amqp091.exchanges
    exchanges.add_vhost(name)
    exchanges.declare(name, b"x", b"fanout", durable=True)
    exchanges.bind(name, b"x", b"q", b"")
    exchanges.bind(name, b"amq.topic", b"x", b"k.#", to_exchange=True)
    hub.publish_message(b"a/b", b"kept", 1, True, b"", 0, None, namespace)
    return [carrier, lost]


def test_a_name_that_can_be_one(node: Node) -> None:
    for name in ("shop", "ü", "a/b", "x" * NAMESPACE_BYTES_MAX):
        assert node.call(lambda server, name=name: admin(server).create(name)) == "created"
        assert node.call(lambda server, name=name: admin(server).create(name)) == "unchanged"
        assert node.call(lambda server, name=name: admin(server).describe(name)) == {
            "name": name, "open": True, "kept": True, "configured": False, "retained_bytes": 0, "bytes": 0,
            "limits": NO_LIMITS, "refused": NO_LIMITS, **EMPTY}


@pytest.mark.parametrize("name", [
    "", "x" * (NAMESPACE_BYTES_MAX + 1), "ü" * 128, "a:b", "a\0b", "a\nb", " a", "\udcff"])
def test_a_name_that_cannot_be_one(node: Node, name: str) -> None:
    with pytest.raises(QueueRefused) as refused:
        node.call(lambda server: admin(server).create(name))
    assert refused.value.kind == "invalid"


def test_the_list_has_the_default_first(node: Node) -> None:
    node.call(lambda server: admin(server).create("!"))
    found = node.call(lambda server: admin(server).list_namespaces())
    assert [(one["name"], one["kept"], one["configured"]) for one in found] == [
        ("/", False, True), ("!", True, False), ("named", False, True)]


def test_what_may_not_be_deleted(node: Node) -> None:
    for name, kind in (("/", "conflict"), ("named", "conflict"), ("nobody", "not_found")):
        with pytest.raises(QueueRefused) as refused:
            node.call(lambda server, name=name: admin(server).delete(name))
        assert refused.value.kind == kind and refused.value.hint


def test_all_that_is_in_it_goes_and_nothing_else(node: Node) -> None:
    def work(server: Server) -> None:
        port, hub, broker = admin(server), server.hub, server.broker
        others = [one for name in (b"/", b"named") for one in fill(server, name)]
        before = port.list_namespaces()
        port.create("shop")
        state_bytes = broker.state_bytes
        carriers = fill(server, b"shop")
        former = hub.namespaces[b"shop"]
        full = port.describe("shop")
        numbers = {"connections": 1, "sessions": 2, "queues": 1, "messages": 1, "retained": 1}
        assert full | numbers == full and full["retained_bytes"] > 0
        wills = broker.wills_published
        assert port.delete("shop") == numbers
        assert [one.told for one in carriers] == [[ReasonCode.ADMINISTRATIVE_ACTION], []]
        assert broker.wills_published == wills and broker.state_bytes == state_bytes
        assert port.list_namespaces() == before and not any(one.told for one in others)
        assert not [key for key in broker.hub.groups if key[0] is former]
        assert not [key for key in (*broker.sessions, *server.queues.manager.queues) if key[0] == b"shop"]
        assert b"shop" not in server.amqp091.exchanges.vhosts and server.amqp091.find_virtual_host("shop") is None
        # another one of this name is empty, and is another one
        assert port.create("shop") == "created"
        made = hub.namespaces[b"shop"]
        assert made is not former and made.number != former.number
        assert port.describe("shop") | EMPTY == port.describe("shop")
        assert set(server.amqp091.find_virtual_host("shop").exchanges) == set(
            server.amqp091.exchanges.vhosts[b"/"].exchanges) - {b"x"}
        fill(server, b"shop")
        assert port.describe("shop") | numbers == port.describe("shop")

    node.call(work)


def test_who_is_still_logging_in_when_it_ends_comes_into_nothing(node: Node) -> None:
    def work(server: Server) -> None:
        port = admin(server)
        port.create("shop")
        former = server.hub.namespaces[b"shop"]
        port.delete("shop")
        for again in (False, True):
            if again:
                port.create("shop")
            with pytest.raises(Exception, match="namespace shop was deleted"):
                server.broker.connect(b"late", version=5, clean_start=True, expiry_s=0, keep_alive_s=0, will=None,
                                      username=None, connection=Carrier(), namespace=former)
        assert port.describe("shop")["sessions"] == 0

    node.call(work)


def test_metrics_show_a_bounded_number_one_by_one(node: Node) -> None:
    def work(server: Server) -> Any:
        for number in range(NAMESPACE_METRICS_MAX + 20):
            admin(server).create(f"n{number:03}")
        fill(server, b"n000")
        return server.snapshots.metrics()

    found = node.call(work)
    assert found["fluxmq_namespaces"] == NAMESPACE_METRICS_MAX + 22  # with "/" and "named"
    for name, value in (("connections", 1), ("sessions", 2), ("queues", 1), ("retained", 1), ("retained_bytes", 7)):
        series = found[f"fluxmq_namespace_{name}"]
        assert list(series)[:4] == [("/",), ("n000",), ("n001",), ("n002",)] and len(series) == NAMESPACE_METRICS_MAX
        assert (series["n000",], series["/",]) == (value, 0)
    page = Metrics(lambda: found, strict=True).render().decode()
    assert 'fluxmq_namespace_retained_bytes{namespace="n000"} 7.0\n' in page


def into(node: Node, name: str) -> None:
    """MQTT clients that connect from now on are in this namespace."""
    def work(server: Server) -> None:
        connect = type(server.broker).connect
        server.broker.connect = (  # type: ignore[method-assign]
            lambda *arguments, **named: connect(server.broker, *arguments, **named | {
                "namespace": server.hub.namespaces[name.encode()]}))

    node.call(work)


def test_clients_of_mqtt_are_told_and_those_of_another_namespace_are_not(node: Node) -> None:
    """One of them consumes a queue, one has a will; the other namespace has clients of the same identifiers."""
    clients = node.call(lambda server: MqttClients(server.broker))
    node.call(lambda server: admin(server).create("shop"))
    everybody: dict[str, list[Client]] = {}
    for name in ("/", "shop"):
        into(node, name)
        node.call(lambda server, name=name: server.queues.admin.declare({"name": "jobs", "namespace": name}))
        worker, watcher = Client(node.address), Client(node.address)
        worker.connect("worker", properties=EXPIRY, will=OracleWill(topic="wills", payload=b"gone", qos=1))
        watcher.connect("watcher", properties=EXPIRY)
        watcher.subscribe("wills", "$share/g/#", qos=1)
        worker.subscribe("$queue/jobs", qos=1)
        worker.publish("$queue/jobs", b"a job", qos=1)
        worker.receive(payload=b"a job")
        worker.expect_quiet()  # it is settled
        everybody[name] = [worker, watcher]
    assert sorted(node.call(lambda server: list(clients.ids()))) == [
        (name, one) for name in ("/", "shop") for one in ("watcher", "worker")]
    info = node.call(lambda server: clients.info("shop", "worker"))
    assert info is not None and (info.virtual_host, info.subscriptions) == ("shop", 1)
    assert len(node.call(lambda server: list(clients.subscriptions("shop", "watcher")))) == 2
    gone = node.call(lambda server: admin(server).delete("shop"))
    assert gone == {"connections": 2, "sessions": 2, "queues": 1, "messages": 0, "retained": 0}
    for client in everybody["shop"]:
        client.expect_closed(ReasonCode.ADMINISTRATIVE_ACTION)
    for client in everybody["/"]:
        client.expect_quiet()
    assert sorted(node.call(lambda server: list(clients.ids()))) == [("/", "watcher"), ("/", "worker")]
    assert node.call(lambda server: (server.broker.connected, server.broker.wills_published)) == (2, 0)
    node.call(lambda server: admin(server).create("shop"))
    into(node, "shop")
    again = Client(node.address)
    assert not again.connect("watcher", clean_start=False, properties=EXPIRY).session_present
    again.expect_quiet()
    assert node.call(lambda server: clients.disconnect("shop", "watcher"))
    again.expect_closed(ReasonCode.ADMINISTRATIVE_ACTION)
    assert node.call(lambda server: admin(server).describe("shop")["connections"]) == 0
    for client in everybody["/"]:
        client.expect_quiet()


def test_a_client_of_amqp_with_messages_in_hand_and_queues_of_its_own(tmp_path: Path) -> None:
    node = Node(tmp_path, {"server.amqp091.plain.addr": "127.0.0.1:0"})
    try:
        node.call(lambda server: admin(server).create("shop"))
        client = Wire(node.listens("amqp091.plain")).login("shop")
        client.open_channel()
        for queue, exclusive in (("work", False), ("mine", True)):
            client.call(1, "queue.declare", queue=queue, durable=True, exclusive=exclusive)
            client.publish(1, "", queue, b"in hand")
            client.call(1, "basic.consume", queue=queue)
            client.expect_content(1)
        port = lambda server: server.namespace_admin((server.amqp091.clients,))  # noqa: E731
        gone = node.call(lambda server: port(server).delete("shop"))
        assert gone == {"connections": 1, "sessions": 0, "queues": 2, "messages": 2, "retained": 0}
        client.expect_close(320)
        assert node.call(lambda server: list(server.amqp091.clients.ids())) == []
        assert node.call(lambda server: [one["name"] for one in port(server).list_namespaces()]) == ["/"]
        node.call(lambda server: port(server).create("shop"))
        again = Wire(node.listens("amqp091.plain")).login("shop")
        again.open_channel()
        assert again.call(1, "queue.declare", queue="work") == {
            "queue": "work", "message_count": 0, "consumer_count": 0}
    finally:
        node.stop()


def test_after_a_restart_what_an_operator_made_is_open_and_what_he_deleted_is_gone(tmp_path: Path) -> None:
    first = Node(tmp_path)

    def work(server: Server) -> None:
        for name in ("shop", "gone", "again"):
            admin(server).create(name)
            fill(server, name.encode())
        admin(server).delete("gone")
        admin(server).delete("again")
        admin(server).create("again")
        server.hub.namespaces.add(b"configured once")

    first.call(work)
    first.stop()
    second = Node(tmp_path)
    try:
        found = {one["name"]: one for one in second.call(lambda server: admin(server).list_namespaces())}
        assert set(found) == {"/", "shop", "again", "configured once"}
        assert found["again"] == found["again"] | EMPTY | {"open": True, "kept": True}
        numbers = {"connections": 0, "queues": 1, "messages": 1, "retained": 1, "open": True}
        assert found["shop"] == found["shop"] | numbers
        assert (found["configured once"]["open"], found["configured once"]["kept"]) == (False, False)
        assert second.call(lambda server: admin(server).create("configured once")) == "opened"
    finally:
        second.stop()
