"""Clients behind Debian's haproxy, which names them by the PROXY protocol: both versions, every listener, TLS that ends
at either side; and what is refused."""
from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.tls import wait_until
from kit.amqp_wire import Wire
from kit.broker import Broker, add_user, free_port
from kit.certs import CertificateAuthority, issue, make_ca
from kit.client import Client
from kit.tools import require_tool
from kit.watch import metric
from kit.websocket import WebSocket

from fluxmq.app.admin_client import AdminClient

Start = Callable[..., Broker]
# haproxy connects from there; a client of its own has one more.
BALANCER, ELSEWHERE = "127.0.0.2", "127.0.0.7"
SETTINGS = {"server.proxy_networks": [BALANCER], "server.amqp091.plain.addr": "127.0.0.1:0"}


class Haproxy:
    """balance("mqtt", to, how): the address of a frontend that passes on to `to`. bind: words of its `bind` line."""

    def __init__(self, directory: Path) -> None:
        require_tool("haproxy", package="haproxy")
        self._config = directory / "haproxy.cfg"
        self._sections = ["global\n    log stderr format raw daemon", (
            "defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s")]
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: list[int] = []

    def balance(self, to: tuple[str, int], how: str, bind: str = "") -> tuple[str, int]:
        port = free_port()
        self._ports.append(port)
        self._sections.append(f"listen to-{port}\n    bind 127.0.0.1:{port} {bind}\n"
                              f"    server broker {to[0]}:{to[1]} source {BALANCER} {how}")
        return "127.0.0.1", port

    def start(self) -> None:
        self._config.write_text("\n\n".join([*self._sections, ""]))
        self._process = subprocess.Popen([require_tool("haproxy", package="haproxy"), "-db", "-f", str(self._config)],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def listens() -> bool:
            try:
                for port in self._ports:
                    socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                return False
            return True

        wait_until(listens, "haproxy does not listen")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def haproxy(tmp_path: Path) -> Iterator[Haproxy]:
    made = Haproxy(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return make_ca(tmp_path_factory.mktemp("ca"))


def raw(address: tuple[str, int], source: str = ELSEWHERE) -> socket.socket:
    return socket.create_connection(address, 10, source_address=(source, 0))


def clients(broker: Broker) -> dict[str, dict[str, Any]]:
    admin = AdminClient(broker.directory / "data" / "admin.sock")
    try:
        return {one["client_id"]: one for one in admin.ask("GET", "clients")["clients"]}
    finally:
        admin.close()


@pytest.mark.parametrize("how", ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options crc32c,unique-id"])
def test_the_client_has_its_own_address_at_every_listener(start_broker: Start, haproxy: Haproxy, how: str) -> None:
    broker = start_broker(SETTINGS | {"server.mqtt.websocket.plain.addr": "127.0.0.1:0"})
    mqtt = haproxy.balance(broker.address, how)
    websocket = haproxy.balance(broker.websocket, how)
    amqp = haproxy.balance(broker.addresses["amqp091/plain"], how)
    haproxy.start()
    one = Client(raw(mqtt))
    one.connect("over-tcp")
    other = Client(WebSocket.open(websocket))
    other.connect("over-websocket")
    wire = Wire(raw(amqp)).login()
    one.subscribe("a")
    other.publish("a", b"through", 1)
    assert one.receive("a").payload == b"through"
    found = clients(broker)
    ((by_amqp,),) = [[peer["peer"] for name, peer in found.items() if name.startswith("amqp")]]
    assert found["over-tcp"]["peer"] == "{}:{}".format(*one.transport.getsockname())
    assert found["over-websocket"]["peer"].startswith("127.0.0.1:")
    assert by_amqp == "{}:{}".format(*wire.socket.getsockname()[:2])
    direct = Client(broker.address)     # from where no balancer is
    direct.connect("direct")
    assert clients(broker)["direct"]["peer"] == "{}:{}".format(*direct.transport.getsockname())
    wire.close()


def test_tls_that_ends_at_the_broker(start_broker: Start, haproxy: Haproxy, ca: CertificateAuthority) -> None:
    cert, key = issue(ca, "broker", dns=["localhost"])
    broker = start_broker(SETTINGS | {"server.mqtt.tcp.tls.addr": "127.0.0.1:0", "server.mqtt.tcp.tls.cert_file": cert,
                                      "server.mqtt.tcp.tls.key_file": key})
    address = haproxy.balance(broker.addresses["mqtt/tcp/tls"], "send-proxy-v2")
    haproxy.start()
    context = ssl.create_default_context(cafile=ca.cert_file)
    client = Client(context.wrap_socket(raw(address), server_hostname="localhost"))
    client.connect("over-tls")
    assert clients(broker)["over-tls"]["peer"].startswith(f"{ELSEWHERE}:")


@pytest.mark.parametrize("taken", [True, False])
def test_a_certificate_that_the_balancer_has_verified_names_the_user(
        start_broker: Start, haproxy: Haproxy, ca: CertificateAuthority, tmp_path: Path, taken: bool) -> None:
    add_user(tmp_path / "users", "bert", "secret")
    broker = start_broker(SETTINGS | {"server.proxy_usernames": taken, "auth.users_file": str(tmp_path / "users"),
                                      "auth.allow_anonymous": True})
    cert, key = issue(ca, "localhost", dns=["localhost"])
    both = tmp_path / "both.pem"
    both.write_text(Path(cert).read_text() + Path(key).read_text())
    tls = f"ssl crt {both} ca-file {ca.cert_file} verify optional"
    mqtt = haproxy.balance(broker.address, "send-proxy-v2-ssl-cn", tls)
    amqp = haproxy.balance(broker.addresses["amqp091/plain"], "send-proxy-v2-ssl-cn", tls)
    haproxy.start()

    def connected(address: tuple[str, int], name: str) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=ca.cert_file)
        if name:
            context.load_cert_chain(*issue(ca, name))
        return context.wrap_socket(raw(address), server_hostname="localhost")

    with_one, without = Client(connected(mqtt, "anna")), Client(connected(mqtt, ""))
    with_one.connect("with")
    without.connect("without")
    found = clients(broker)
    assert (found["with"]["user"], found["without"]["user"]) == ("anna" if taken else None, None)
    wire = Wire(connected(amqp, "carl")).greet()
    assert (b"EXTERNAL" in wire.server["mechanisms"].split()) == taken
    if taken:
        wire.send(0, "connection.start-ok", client_properties={}, mechanism="EXTERNAL", response="", locale="en_US")
        wire.open()
        assert [one["user"] for one in clients(broker).values() if one["protocol"].startswith("AMQP")] == ["carl"]


def test_who_guesses_passwords_bans_himself_and_nobody_else(start_broker: Start, haproxy: Haproxy, tmp_path: Path,
                                                            ) -> None:
    add_user(tmp_path / "users", "anna", "secret")
    broker = start_broker(SETTINGS | {"auth.users_file": str(tmp_path / "users"), "server.exempt_networks": [],
                                      "auth.ban_address_after": 3, "auth.delay_after": 100})
    address = haproxy.balance(broker.address, "send-proxy-v2")
    haproxy.start()
    for number in range(3):
        guess = Client(raw(address))
        guess.connect("g", username=f"u{number}", password=b"wrong", expect=0x86)
    admin = AdminClient(broker.directory / "data" / "admin.sock")
    assert [one["address"] for one in admin.ask("GET", "bans")["bans"]] == [ELSEWHERE]
    admin.close()
    anna = Client(raw(address, "127.0.0.8"))
    anna.connect("anna", username="anna", password=b"secret")


def test_what_does_not_say_who_it_is_is_refused(start_broker: Start, haproxy: Haproxy) -> None:
    broker = start_broker(SETTINGS)
    silent = haproxy.balance(broker.address, "")
    checked = haproxy.balance(broker.address, "send-proxy-v2 check inter 100 check-send-proxy")
    haproxy.start()
    counted = 'fluxmq_connect_refused_total{reason="proxy"}'
    before = metric(broker, counted)    # haproxy has been looked for
    nameless = Client(raw(silent))
    nameless.send(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00")
    nameless.expect_closed()
    wait_until(lambda: metric(broker, counted) > before, "it is not counted")
    assert f"{BALANCER} is in server.proxy_networks, and the connection has no PROXY header: " in broker.stderr()
    liar = Client(broker.address)      # a header from anywhere else
    liar.send(b"PROXY TCP4 192.0.2.66 127.0.0.1 1 1883\r\n")
    liar.expect_closed()
    client = Client(raw(checked))
    client.connect("c")
    assert json.dumps(list(clients(broker))) == '["c"]'
