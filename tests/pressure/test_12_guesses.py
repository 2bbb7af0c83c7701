"""A client guesses passwords: it is delayed, then banned; others notice nothing. Hosts are addresses of
127.0.0.0/8, which is not exempt here. Delays are off, or so long that a test would never see their end."""
from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Refused, Wire
from kit.broker import Broker, add_user
from kit.client import TIMEOUT, Client, Closed
from kit.node import Node
from kit.scram import ScramClient
from kit.watch import metric, wait_until
from kit.websocket import WebSocket
from oracle.mqtt import Auth, Connack, Connect
from pressure.address_keys import come_from

from fluxmq.access import passwords
from fluxmq.app import cli

Start = Callable[..., Broker]
ATTACKER, ANNA, OTHER = "127.0.0.2", "127.0.0.3", "127.0.0.4"
WRONG, BANNED = 0x86, 0x8A
WEBSOCKET, AMQP = "mqtt/websocket/plain", "amqp091/plain"


class World:
    """A broker with the users anna and bert, whose passwords are theirs, and hosts that log in to it."""

    def __init__(self, start: Start, users: Path, settings: dict[str, object]) -> None:
        self.opened: list[Any] = []
        self.broker = start({
            "auth.users_file": users, "server.exempt_networks": "[]", "auth.delay_max": "0s",
            "server.mqtt.websocket.plain.addr": "127.0.0.1:0", "server.amqp091.plain.addr": "127.0.0.1:0"} | settings)

    def come(self, host: str, slot: str = "mqtt/tcp/plain") -> socket.socket:
        self.opened.append(come_from(self.broker, host, slot))
        return self.opened[-1]      # type: ignore[no-any-return]

    def mqtt(self, host: str, user: str, password: bytes, *, version: int = 5) -> Client:
        """A client that has sent CONNECT."""
        client = Client(self.come(host), version)
        client.send(Connect(client_id=f"{host}-{user}-{len(self.opened)}", username=user, password=password))
        return client

    def answer(self, host: str, user: str, password: bytes, *, version: int = 5) -> int:
        return self.mqtt(host, user, password, version=version).expect(Connack).reason

    def by_websocket(self, host: str, user: str, password: bytes) -> int:
        raw = self.come(host, WEBSOCKET)
        raw.sendall(b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
                    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n")
        head = b""
        while b"\r\n\r\n" not in head:
            head += raw.recv(4096)
        client = Client(WebSocket(raw, {}, head.partition(b"\r\n\r\n")[2]))
        client.send(Connect(client_id=f"{host}-{user}", username=user, password=password))
        return client.expect(Connack).reason

    def scram(self, host: str, user: str, password: str) -> int:
        """The reason code at the end of an exchange."""
        client, exchange = Client(self.come(host)), ScramClient(user, password)
        client.send(Connect(client_id=f"{host}-scram", properties={
            "authentication_method": "SCRAM-SHA-256", "authentication_data": exchange.first()}))
        packet = client.recv()
        if isinstance(packet, Auth):
            client.send(Auth(reason=0x18, properties={
                "authentication_method": "SCRAM-SHA-256",
                "authentication_data": exchange.final(packet.prop("authentication_data"))}))
            packet = client.recv()
        assert isinstance(packet, Connack)
        return packet.reason

    def amqp(self, host: str, user: str, password: str, mechanism: str = "PLAIN") -> str:
        """"" for who gets in, else the text of the refusal."""
        client = Wire(self.come(host, AMQP)).greet().start_ok(user, password, mechanism=mechanism)
        try:
            client.expect(0, "connection.tune")
        except Refused as refused:
            assert (refused.scope, refused.code) == ("connection", 403)
            return refused.text
        return ""

    def lines(self, text: str) -> list[str]:
        return [line for line in self.broker.stderr().splitlines() if text in line]


@pytest.fixture
def world(start_broker: Start, tmp_path: Path) -> Iterator[Callable[..., World]]:
    for name in ("anna", "bert"):
        add_user(tmp_path / "users", name, name)
    made: list[World] = []

    def make(**settings: object) -> World:
        made.append(World(start_broker, tmp_path / "users", {key.replace("__", "."): value for key, value
                                                             in settings.items()}))
        return made[-1]

    yield make
    for each in made:
        for raw in each.opened:
            raw.close()


def test_who_guesses_a_password_may_try_so_often_by_whatever_protocol(world: Callable[..., World]) -> None:
    here = world(auth__ban_after=6)
    assert here.answer(ATTACKER, "anna", b"1") == WRONG
    assert here.answer(ATTACKER, "anna", b"2", version=4) == 4
    assert here.by_websocket(ATTACKER, "anna", b"3") == WRONG
    assert here.scram(ATTACKER, "anna", "4") == 0x87
    assert "PLAIN" in here.amqp(ATTACKER, "anna", "5")
    assert "AMQPLAIN" in here.amqp(ATTACKER, "anna", "6", "AMQPLAIN")
    # from here on the right password is no better than a wrong one, and it is not said which it was
    for password in (b"anna", b"7"):
        assert here.answer(ATTACKER, "anna", password) == BANNED
        assert here.answer(ATTACKER, "anna", password, version=4) == 5
        assert here.by_websocket(ATTACKER, "anna", password) == BANNED
        assert here.scram(ATTACKER, "anna", password.decode()) == BANNED
        for mechanism in ("PLAIN", "AMQPLAIN"):
            assert mechanism in here.amqp(ATTACKER, "anna", password.decode(), mechanism)
    # elsewhere the user gets in, and so do others from there
    assert here.answer(ANNA, "anna", b"anna") == here.scram(ANNA, "anna", "anna") == 0
    assert here.amqp(ANNA, "anna", "anna") == here.amqp(ATTACKER, "bert", "bert") == ""
    assert here.answer(ATTACKER, "bert", b"bert") == 0
    [line] = here.lines("is banned there")
    assert "user=anna" in line and f"address={ATTACKER}" in line and "failures=6" in line and "until=20" in line
    assert metric(here.broker, "fluxmq_login_bans") == metric(here.broker, "fluxmq_login_bans_total", of="user") == 1
    assert metric(here.broker, "fluxmq_auth_failures_total") == 6
    assert metric(here.broker, "fluxmq_connect_refused_total", reason="banned") == 8
    assert metric(here.broker, "fluxmq_amqp_refused_total", reason="banned") == 4


def test_what_a_ban_overtakes_does_not_tell_which_password_was_right(tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses that wait to be checked when the ban begins are all refused with it."""
    started, release = threading.Semaphore(0), threading.Event()
    check = passwords._check

    def held(password_hash: str, password: bytes) -> bool:
        started.release()
        assert release.wait(TIMEOUT)
        return check(password_hash, password)

    add_user(tmp_path / "users", "anna", "anna")
    monkeypatch.setattr(passwords, "_check", held)
    node = Node(tmp_path, {"auth.users_file": tmp_path / "users", "server.exempt_networks": "[]",
                           "auth.delay_max": "0s", "server.amqp091.plain.addr": "127.0.0.1:0"})
    try:
        clients = [Client(socket.create_connection(node.address, TIMEOUT)) for _ in range(2)]
        by_amqp = [Wire(node.listens("amqp091.plain")).greet() for _ in range(2)]
        for client, password in zip(clients, (b"anna", b"wrong"), strict=True):
            client.send(Connect(client_id=password, username="anna", password=password))
        for each, password in zip(by_amqp, ("anna", "wrong"), strict=True):
            each.start_ok("anna", password)
        assert started.acquire(timeout=TIMEOUT)
        wait_until(lambda: node.call(lambda server: sum(
            connection.paused != 0 for connection in server.poller.connections)) == 4)
        for _ in range(10):
            node.call(lambda server: server.admission.guard.failed(bytes((127, 0, 0, 1)), "anna", lambda: None))
        release.set()
        assert [client.expect(Connack).reason for client in clients] == [BANNED] * 2
        texts = [each.expect_close(403) for each in by_amqp]
        assert texts[0] == texts[1]
    finally:
        release.set()
        node.stop()


def test_proving_it_again_on_a_live_connection_is_a_login_too(world: Callable[..., World]) -> None:
    here = world(auth__ban_after=3)

    def connected() -> Client:
        client, exchange = Client(here.come(ATTACKER)), ScramClient("anna", "anna")
        client.send(Connect(client_id=f"again-{len(here.opened)}", properties={
            "authentication_method": "SCRAM-SHA-256", "authentication_data": exchange.first()}))
        prove(client, 0x18, exchange.final(client.expect(Auth).prop("authentication_data")))
        client.expect(Connack, reason=0)
        return client

    def prove(client: Client, reason: int, data: bytes) -> None:
        client.send(Auth(reason=reason, properties={"authentication_method": "SCRAM-SHA-256",
                                                    "authentication_data": data}))

    clients = [connected() for _ in range(2)]
    wrong = ScramClient("anna", "wrong")
    prove(clients[0], 0x19, wrong.first())
    prove(clients[0], 0x18, wrong.final(clients[0].expect(Auth).prop("authentication_data")))
    clients[0].expect_closed(0x87)
    by_amqp = Wire(here.come(ATTACKER, AMQP)).login(user="bert", password="bert")
    for _ in range(5):      # says nothing of the password, so it is no guess
        by_amqp.call(0, "connection.update-secret", new_secret="guess")
    assert here.answer(ATTACKER, "anna", b"x") == here.answer(ATTACKER, "bert", b"x") == WRONG
    assert here.answer(ATTACKER, "bert", b"x") == here.answer(ATTACKER, "bert", b"x") == WRONG
    assert here.answer(ATTACKER, "bert", b"bert") == BANNED
    assert here.answer(ATTACKER, "anna", b"x") == WRONG
    # anna is banned there now: who proves it again is refused with what a DISCONNECT may say
    prove(clients[1], 0x19, ScramClient("anna", "anna").first())
    clients[1].expect_closed(0x87)
    assert here.lines("is banned there")


def test_who_tries_many_names_is_not_even_accepted(world: Callable[..., World]) -> None:
    here = world(auth__ban_address_after=5)
    assert here.answer(OTHER, "anna", b"anna") == 0
    for host in (ATTACKER, OTHER):
        for number in range(5):
            assert here.answer(host, f"user{number}", b"x") == WRONG
    assert metric(here.broker, "fluxmq_login_bans_total", of="address") == 2
    for slot in ("mqtt/tcp/plain", WEBSOCKET, AMQP):
        assert here.come(ATTACKER, slot).recv(1) == b""
    assert metric(here.broker, "fluxmq_connect_refused_total", reason="banned") == 2
    assert metric(here.broker, "fluxmq_amqp_refused_total", reason="banned") == 1
    assert len(here.lines(f"{ATTACKER} is banned (auth.ban_address_after)")) >= 1
    # anna has logged in from the other address before and still may; no other user there may
    assert here.answer(OTHER, "anna", b"anna") == 0
    assert here.answer(OTHER, "bert", b"bert") == BANNED
    assert here.answer(ANNA, "bert", b"bert") == 0


def test_a_ban_ends_and_the_log_says_so(world: Callable[..., World]) -> None:
    here = world(auth__ban_after=1, auth__ban_time="100ms")
    assert here.answer(ATTACKER, "anna", b"x") == WRONG
    wait_until(lambda: here.lines("a ban has ended"))
    [line] = here.lines("a ban has ended")
    assert "user=anna" in line and f"address={ATTACKER}" in line
    assert here.answer(ATTACKER, "anna", b"anna") == 0
    assert metric(here.broker, "fluxmq_login_bans") == 0


def test_late_refusals_hold_up_nobody(world: Callable[..., World]) -> None:
    """Refusals wait for what will never come in this test; everybody else is answered."""
    here = world(auth__delay_after=0, auth__delay_max="1h", auth__ban_after=0, auth__ban_address_after=0)
    for number in range(15):        # half a second, a second, two: the fifteenth would take an hour
        here.mqtt(ATTACKER, "anna", b"%d" % number)
    wait_until(lambda: metric(here.broker, "fluxmq_login_refusals_delayed_total") == 15)
    waiting = [here.mqtt(ATTACKER, "anna", b"x%d" % number) for number in range(10)]
    for number in range(10):
        Wire(here.come(ATTACKER, AMQP)).greet().start_ok("anna", f"y{number}")
    wait_until(lambda: metric(here.broker, "fluxmq_login_refusals_delayed_total") == 35)
    assert here.answer(ANNA, "anna", b"anna") == 0          # the same account, from elsewhere
    assert here.answer(ATTACKER, "anna", b"anna") == 0      # and even from there: a right password is never late
    assert here.amqp(ANNA, "anna", "anna") == ""
    # a client that goes while it waits leaves nothing behind
    waiting[0].close()
    waiting[1].expect_nothing()
    assert metric(here.broker, "fluxmq_connections") == 2


def test_an_administrator_sees_and_lifts_bans(world: Callable[..., World], tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    here = world(auth__ban_after=2, auth__ban_address_after=5, server__admin_socket=tmp_path / "a.sock")
    capsys.readouterr()

    def run(*arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(["ban", *arguments, "--socket", str(tmp_path / "a.sock")])
        said = capsys.readouterr()
        assert (ended.value.code or 0) == status, said
        return said.out or said.err

    assert run("list") == "nobody is banned\n"
    for user in ("anna", "anna", "bert", "bert"):
        assert here.answer(ATTACKER, user, b"x") == WRONG
    found = json.loads(run("list", "--json"))
    assert [(ban["address"], ban["user"], ban["failures"]) for ban in found["bans"]] == [
        (ATTACKER, "anna", 2), (ATTACKER, "bert", 2)] and found["standing"] == 2
    assert "anna" in run("lift", ATTACKER, "--user", "anna")
    assert here.answer(ATTACKER, "anna", b"anna") == 0 and here.answer(ATTACKER, "bert", b"bert") == BANNED
    for number in range(5):
        assert here.answer(OTHER, f"\x1b{number}", b"x") == WRONG
    assert here.come(OTHER).recv(1) == b""
    assert "(everybody)" in run("list") and "\x1b" not in run("list")
    assert "(everybody)" in run("lift", OTHER)
    assert here.answer(OTHER, "anna", b"anna") == 0
    assert "nobody is banned at 127.0.0.9" in run("lift", "127.0.0.9", status=1)
    assert "'carl' is not banned at 127.0.0.9" in run("lift", "127.0.0.9", "--user", "carl", status=1)
    assert "is no address" in run("lift", "anna", status=1)
    assert len(here.lines("an administrator lifted a ban")) == 2


def test_an_administrator_bans_an_address(world: Callable[..., World], tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever has the right password is refused there too, and nobody elsewhere notices."""
    here = world(server__admin_socket=tmp_path / "a.sock")
    capsys.readouterr()

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["ban", *arguments, "--socket", str(tmp_path / "a.sock")])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out + err

    assert here.answer(ANNA, "anna", b"anna") == 0 and here.answer(OTHER, "anna", b"anna") == 0
    status, said = run("add", ANNA, "--for", "2h")
    assert status == 0 and ANNA in said and "(everybody)" in said
    with pytest.raises((Closed, OSError)):      # it is not even accepted
        here.answer(ANNA, "anna", b"anna")
    assert here.answer(OTHER, "anna", b"anna") == 0
    assert run("add", OTHER, "--user", "bert")[0] == 0
    assert (here.answer(OTHER, "anna", b"anna"), here.answer(OTHER, "bert", b"bert")) == (0, BANNED)
    assert run("lift", ANNA)[0] == run("lift", OTHER)[0] == 0
    assert here.answer(ANNA, "anna", b"anna") == here.answer(OTHER, "bert", b"bert") == 0
    for wrong, text in ((("nowhere",), "no address"), ((ANNA, "--for", "0s"), "seconds"),
                        ((ANNA, "--for", "soon"), "duration")):
        status, said = run("add", *wrong)
        assert status != 0 and text in said


def test_by_default_this_machine_may_guess(world: Callable[..., World]) -> None:
    here = world(server__exempt_networks="[127.0.0.0/8]", auth__ban_after=1, auth__ban_address_after=1,
                 auth__delay_after=0, auth__delay_max="1h")
    for _ in range(5):
        assert here.answer(ATTACKER, "anna", b"x") == WRONG
        assert here.amqp(ATTACKER, "anna", "x") != ""
    assert here.answer(ATTACKER, "anna", b"anna") == 0
    assert metric(here.broker, "fluxmq_login_bans") == 0
