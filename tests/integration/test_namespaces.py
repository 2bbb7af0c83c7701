"""How a client comes into a namespace, in both protocols, and what it may do there."""
from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Refused, Wire
from kit.certs import issue, make_ca
from kit.client import KEPT, Client
from kit.node import Node
from kit.scram import ScramClient
from oracle.mqtt import Auth, Connack, Connect, Publish
from prometheus_client.parser import text_string_to_metric_families

from fluxmq.access.users import Users, add_user
from fluxmq.admin.metrics import Metrics
from fluxmq.app.server import Server
from fluxmq.model import limits

NAMESPACES = "[shop, plant]"
Start = Callable[..., Node]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Node] = []

    def start(**settings: object) -> Node:
        given = {"namespaces": NAMESPACES, "server.amqp091.plain.addr": "127.0.0.1:0"}
        nodes.append(Node(tmp_path / f"n{len(nodes)}", given | {
            name.replace("__", "."): value for name, value in settings.items()}))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


def users(tmp_path: Path, **namespaces: str | None) -> Path:
    """A users file; name: what the user is bound to. Passwords are `x`."""
    for name, namespace in namespaces.items():
        add_user(tmp_path / "users", name.replace("__", ":"), "x", namespace=namespace, scram_iterations=4096)
    return tmp_path / "users"


def where(node: Node, client_id: str = "c") -> list[str]:
    """The namespaces that have a session of this client."""
    return node.call(lambda server: [session.namespace.text for session in server.broker.sessions.values()
                                     if session.name == client_id.encode()])


def enter(node: Node, username: str | None = None, password: bytes | None = None, *, client_id: str = "c",
          version: int = 5, slot: str = "mqtt.tcp.plain") -> int:
    """The answer to a CONNECT."""
    client = Client(node.listens(slot), version)  # type: ignore[arg-type]
    client.send(Connect(client_id=client_id, username=username, password=password, **KEPT if version == 5 else {
        "clean_start": False}))
    reason = int(client.expect(Connack).reason)
    client.close()
    return reason


def open_vhost(node: Node, vhost: str, user: str = "guest") -> int:
    """0, or the code with which connection.open is refused."""
    client = Wire(node.listens("amqp091.plain"))
    try:
        client.login(vhost, user=user, password="x")
    except Refused as refused:
        return refused.code
    finally:
        client.drop()
    return 0


def test_by_user_name(start: Start) -> None:
    node = start()
    assert enter(node, "shop:anna") == 0 and where(node) == ["shop"]
    assert enter(node, "plant:") == 0 and enter(node, "plain") == 0 and enter(node) == 0
    assert sorted(where(node)) == ["/", "plant", "shop"]
    assert enter(node, "nowhere:anna") == 0x87 and enter(node, "nowhere:anna", version=4) == 5


def test_a_colon_is_nothing_special_on_a_node_without_namespaces(start: Start) -> None:
    node = start(namespaces="[]")
    assert enter(node, "shop:anna") == 0 and where(node) == ["/"]


def test_by_listener(start: Start) -> None:
    node = start(server__mqtt__tcp__v5__addr="127.0.0.1:0", server__mqtt__tcp__v5__namespace="plant",
                 server__mqtt__websocket__plain__namespace="shop")
    assert enter(node, slot="mqtt.tcp.v5") == 0 and where(node) == ["plant"]
    assert enter(node, "shop:x", client_id="d", slot="mqtt.tcp.v5") == 0 and where(node, "d") == ["shop"]
    assert enter(node, "/:x", client_id="e", slot="mqtt.tcp.v5") == 0 and where(node, "e") == ["/"]


def test_by_users_file(start: Start, tmp_path: Path) -> None:
    node = start(auth__users_file=users(tmp_path, anna="shop", bert=None, shop__bert="", plant__c="plant"))
    assert enter(node, "anna", b"x") == 0 and where(node) == ["shop"]
    assert enter(node, "shop:anna", b"x") == 0 and where(node) == ["shop"]
    assert enter(node, "plant:anna", b"x") == 0x87 and enter(node, "/:anna", b"x") == 0x87
    assert enter(node, "plant:bert", b"x", client_id="d") == 0 and where(node, "d") == ["plant"]
    # the whole name is somebody's
    assert enter(node, "shop:bert", b"x", client_id="e") == 0 and where(node, "e") == ["/"]
    assert enter(node, "plant:c", b"x", client_id="f") == 0 and where(node, "f") == ["plant"]
    assert enter(node, "nowhere:anna", b"wrong") == 0x86 and enter(node, "shop:anna", b"wrong") == 0x86
    assert [open_vhost(node, vhost, "anna") for vhost in ("shop", "plant", "/")] == [0, 530, 530]
    assert [open_vhost(node, vhost, "bert") for vhost in ("shop", "plant", "/", "nowhere")] == [0, 0, 0, 530]


def test_a_new_password_leaves_the_namespace(tmp_path: Path) -> None:
    file = users(tmp_path, anna="my shop", bert="")
    users(tmp_path, anna=None)
    assert Users.load(file).namespace("anna") == "my shop" and Users.load(file).namespace("bert") == ""
    assert "namespace=my%20shop" in file.read_text()
    users(tmp_path, anna="")
    assert Users.load(file).namespace("anna") == Users.load(file).namespace("nobody") == ""


def test_by_user_name_with_a_certificate(start: Start, tmp_path: Path) -> None:
    """The certificate says who it is, the user name where."""
    authority = make_ca(tmp_path / "ca")
    certificate, key = issue(authority, "localhost", dns=["localhost"])
    mtls = "server__mqtt__tcp__mtls__"
    node = start(**{f"{mtls}addr": "127.0.0.1:0", f"{mtls}cert_file": certificate, f"{mtls}key_file": key,
                    f"{mtls}ca_file": authority.cert_file, f"{mtls}username_from": "cn"})
    context = ssl.create_default_context(cafile=str(authority.cert_file))
    context.check_hostname = False
    context.load_cert_chain(*issue(authority, "anna"))
    for name, reason in (("shop:", 0), ("plant:anna", 0), ("shop:bert", 0x87), (None, 0), ("anna", 0)):
        raw = socket.create_connection(node.listens("mqtt.tcp.mtls"))
        client = Client(context.wrap_socket(raw, server_hostname="127.0.0.1"))
        client.connect("c", username=name, expect=reason)
        if not reason:
            entered = name.partition(":")[0] if name and ":" in name else "/"
            assert node.call(lambda server: [(session.namespace.text, session.data.username) for session
                                             in server.broker.sessions.values()]) == [(entered, "anna")]
            client.disconnect()


ACL = """version: 1
rules:
  - {allow: all, user: anna, namespace: shop, topics: ["#", "$queue/#"]}
  - {deny: all, user: bert, namespace: plant, topics: ["#"]}
  - {allow: all, namespace: plant, topics: ["lines/#"]}
  - {allow: all, user: dora, topics: ["$vhost/shop", "$vhost/shop/tills/#", "$vhost/plant/$exchange/amq.topic/old/#"]}
  - {allow: all, topics: ["#"]}
"""


def test_permissions(start: Start, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text(ACL)
    node = start(auth__users_file=users(tmp_path, anna="", bert="", carl="", dora=""),
                 auth__acl_file=tmp_path / "acl")
    wanted = {"anna": (0, 0), "bert": (0x87, 0x87), "carl": (0x87, 0), "dora": (0, 0)}
    for user, reasons in wanted.items():
        assert tuple(enter(node, f"{name}:{user}", b"x") for name in ("shop", "plant")) == reasons, user
        assert tuple(open_vhost(node, name, user) for name in ("shop", "plant")) == tuple(
            530 if reason else 0 for reason in reasons)
        assert enter(node, user, b"x") == 0  # "/" is open

    for name, allowed, denied in (
            ("shop:anna", ["#", "a/b"], ["$SYS/#"]), ("plant:carl", ["lines/1"], ["other", "#", "$exchange/x"]),
            ("shop:dora", ["tills/+"], ["a", "#"]), ("plant:dora", ["old/x", "lines/#"], ["older", "new/x"]),
            ("carl", ["#", "lines/1"], ["$vhost/plant/lines/1"])):
        client = Client(node.address)
        client.connect(name, username=name, password=b"x")
        for filter_ in allowed + denied:
            client.subscribe(filter_, expect=[0 if filter_ in allowed else 0x87])
        client.close()
    client = Client(node.address)
    client.connect("p", username="plant:dora", password=b"x")
    client.publish("old/x", b"1", 1)
    client.publish("new/x", b"1", 1, expect=0x87)


def test_topics_sessions_and_retained_messages_are_apart(start: Start) -> None:
    node = start()
    clients = {}
    for name in ("/", "shop", "plant"):
        clients[name] = Client(node.address)
        clients[name].connect("same", username=f"{name}:u", **KEPT)
        clients[name].subscribe("t/#", "$share/g/s", qos=1)
    for name, client in clients.items():
        client.publish("t/1", name.encode(), 1, retain=True)
        client.publish("s", name.encode(), 1)
    for name, client in clients.items():
        assert sorted((client.receive(payload=name.encode()).topic, client.receive(payload=name.encode()).topic)) == [
            "s", "t/1"]
        client.expect_quiet()
    for name in clients:
        late = Client(node.address)
        late.connect("late", username=f"{name}:u")
        late.subscribe("#")
        assert late.expect(Publish).payload == name.encode()
        late.expect_quiet()
        late.close()


def test_a_session_that_waits_is_found_in_its_namespace_only(start: Start, tmp_path: Path) -> None:
    node = start()
    for name in ("shop", "plant"):
        client = Client(node.address)
        assert not client.connect("same", username=f"{name}:u", **KEPT).session_present
        client.subscribe(f"of/{name}", qos=1)
        client.disconnect()
    for name in ("shop", "plant"):
        client = Client(node.address)
        assert client.connect("same", username=f"{name}:u", **KEPT).session_present
        client.publish("of/shop", b"x", 1)
        if name == "shop":
            client.receive("of/shop")
        client.expect_quiet()
        client.close()


def test_a_namespace_that_the_configuration_names_no_more(tmp_path: Path) -> None:
    settings = {"namespaces": NAMESPACES}
    node = Node(tmp_path, settings)
    try:
        assert enter(node, "shop:u") == 0
    finally:
        node.stop()
    node = Node(tmp_path, {"namespaces": "[plant]"})
    try:
        assert enter(node, "shop:u") == 0x87 and where(node) == ["shop"]
    finally:
        node.stop()
    node = Node(tmp_path, settings)
    try:
        client = Client(node.address)
        assert client.connect("c", username="shop:u", **KEPT).session_present
    finally:
        node.stop()


def test_connections_are_counted(start: Start) -> None:
    node = start()

    def count(server: Server) -> tuple[int, int]:
        namespace = server.hub.namespaces[b"shop"]
        return namespace.connections, namespace.sessions

    client = Client(node.address)
    client.connect("a", username="shop:u", **KEPT)
    amqp = Wire(node.listens("amqp091.plain")).login("shop")
    assert node.call(count) == (2, 1)
    taken = Client(node.address)
    taken.connect("a", username="shop:u", **KEPT)
    assert node.call(count) == (2, 1)
    taken.disconnect()
    amqp.close()
    assert node.call(count) == (0, 1)


SCRAM = "SCRAM-SHA-256"


def test_a_user_who_proves_himself_anew_stays_where_he_is(start: Start, tmp_path: Path) -> None:
    """Also when the users file binds the user to another namespace meanwhile."""
    node = start(auth__users_file=users(tmp_path, anna="", bert="plant"))

    def prove(client: Client, user: str, reason: int, **connect: Any) -> None:
        scram = ScramClient(user, "x")
        said = {"authentication_method": SCRAM, "authentication_data": scram.first()}
        client.send(Connect(client_id=user, properties=said, **connect) if connect else Auth(reason=0x19,
                                                                                            properties=said))
        challenge = client.answer(Auth, reason=0x18).prop("authentication_data")
        client.send(Auth(reason=0x18, properties={
            "authentication_method": SCRAM, "authentication_data": scram.final(challenge)}))
        client.answer(Connack if connect else Auth, reason=reason)

    client = Client(node.address)
    prove(client, "anna", 0, username="shop:anna")
    assert where(node, "anna") == ["shop"]
    other = Client(node.address)
    prove(other, "bert", 0, clean_start=True)
    assert where(node, "bert") == ["plant"]
    prove(Client(node.address), "bert", 0x87, username="shop:bert")
    add_user(tmp_path / "users", "anna", "x", namespace="plant", scram_iterations=4096)
    node.call(Server.reload)
    prove(client, "anna", 0)
    assert where(node, "anna") == ["shop"]
    client.subscribe("t")
    client.publish("t", b"x")
    assert client.receive().payload == b"x"


def test_a_reload_reviews_subscriptions_by_their_namespace(start: Start, tmp_path: Path) -> None:
    acl = "version: 1\nrules:\n  - {allow: all, namespace: [%s], topics: ['#']}\n  - {allow: all, topics: ['#']}\n"
    (tmp_path / "acl").write_text(acl % "shop, plant")
    node = start(auth__acl_file=tmp_path / "acl")
    clients = {}
    for name in ("/", "shop", "plant"):
        clients[name] = Client(node.address)
        clients[name].connect("c", username=f"{name}:u")
        clients[name].subscribe("t")
    for allowed in ("plant", "shop, plant"):
        (tmp_path / "acl").write_text(acl % allowed)
        node.call(Server.reload)
        for name, client in clients.items():
            may = name == "/" or name in allowed
            client.publish("t", name.encode(), 1, expect=0 if may else 0x87)
            if may:
                client.receive("t", name.encode())
            client.expect_quiet()


def test_metrics_and_logs_name_it(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    node = start()
    client, root = Client(node.address), Client(node.address)
    with caplog.at_level("INFO"):
        client.connect("a", username="shop:u", **KEPT)
        root.connect("a")
        client.publish("t", b"x", 1, retain=True)
        page = node.call(lambda server: Metrics(server.snapshots.metrics, strict=True).render()).decode()
        client.disconnect()
        root.disconnect()
        node.call(lambda server: server.notes.flush())
    found = {(sample.name, sample.labels["namespace"]): sample.value
             for family in text_string_to_metric_families(page) for sample in family.samples
             if "namespace" in sample.labels}
    assert {name: found[f"fluxmq_namespace_{name}", "shop"] for name in ("connections", "sessions", "retained")} == {
        "connections": 1, "sessions": 1, "retained": 1}
    assert found["fluxmq_namespace_kept_bytes", "shop"] > 0 == found["fluxmq_namespace_kept_bytes", "plant"]
    assert found["fluxmq_namespace_refused_total", "plant"] == 0
    said = [(record.message, record.__dict__.get("namespace")) for record in caplog.records
            if record.message in ("connected", "disconnected")]
    assert sorted(said, key=str) == sorted([(what, where_) for what in ("connected", "disconnected")
                                            for where_ in ("shop", None)], key=str)


def test_few_namespaces_have_labels(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NAMESPACE_METRICS_MAX", 4)
    node = start()
    for number in range(9):
        node.call(lambda server, name=b"n%d" % number: server.hub.namespaces.add(name))  # type: ignore[misc]
    shown = node.call(lambda server: server.snapshots.metrics()["fluxmq_namespace_sessions"])
    assert [name for (name,) in shown] == ["/", "n0", "n1", "n2"]
