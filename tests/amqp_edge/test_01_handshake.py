"""From the first byte to connection.open-ok, and what ends a connection, over sockets."""
from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.amqp_wire import Wire
from kit.broker import Broker, add_user
from kit.client import Client
from kit.watch import metric, wait_until
from oracle.amqp091 import METHOD, PROTOCOL, encode_frame, encode_method
from oracle.mqtt import Connack, Connect

Start = Callable[..., Broker]
Open = Callable[..., Wire]


def refused(broker: Broker, reason: str) -> float:
    return metric(broker, "fluxmq_amqp_refused_total", reason=reason)


def ended(broker: Broker, reason: str) -> float:
    return metric(broker, "fluxmq_amqp_disconnections_total", reason=reason)


def test_a_connection(broker: Broker, client: Open) -> None:
    accepted = metric(broker, "fluxmq_amqp_connections_total")
    one = client(broker).greet()
    properties = one.server.pop("server_properties")
    assert one.server == {"version_major": 0, "version_minor": 9, "mechanisms": b"PLAIN AMQPLAIN", "locales": b"en_US"}
    assert properties["product"] == "FluxMQ" and isinstance(properties["version"], str)
    assert {name for name, value in properties["capabilities"].items() if value is True} >= {
        "basic.nack", "publisher_confirms", "connection.blocked", "exchange_exchange_bindings",
        "consumer_cancel_notify", "authentication_failure_close", "per_consumer_qos", "consumer_priorities"}
    one.start_ok().open()
    assert one.tune == {"channel_max": 2047, "frame_max": 131_072, "heartbeat": 60}
    wait_until(lambda: metric(broker, "fluxmq_amqp_connections") == 1)
    one.close()
    assert metric(broker, "fluxmq_amqp_connections_total") == accepted + 1
    wait_until(lambda: metric(broker, "fluxmq_amqp_connections") == 0)


@pytest.mark.parametrize("header", [b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"AMQP\x01\x01\x00\x09",
                                    b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex("100c00044d5154540402003c0000")])
def test_another_protocol_hears_which_is_spoken(broker: Broker, client: Open, header: bytes) -> None:
    before = refused(broker, "protocol")
    one = client(broker)
    one.send_raw(header)
    answer = b""
    while data := one.socket.recv(100):
        answer += data
    assert answer == PROTOCOL
    assert refused(broker, "protocol") == before + 1


@pytest.mark.parametrize("vhost", ["nowhere", "", "//"])
def test_a_virtual_host_that_is_not_there(broker: Broker, client: Open, vhost: str) -> None:
    one = client(broker).greet().start_ok()
    one.expect(0, "connection.tune")
    one.send(0, "connection.tune-ok")
    one.send(0, "connection.open", virtual_host=vhost)
    assert one.expect_close(530, (10, 40)) == f"NOT_ALLOWED - vhost {vhost} not found"


def test_virtual_hosts_of_the_configuration(start_broker: Start, client: Open) -> None:
    broker = start_broker({"amqp091.virtual_hosts": '[prod, "ünter/haltung"]'})
    client(broker).login("prod").close()
    client(broker).login("ünter/haltung").close()
    one = client(broker).greet().start_ok()
    one.expect(0, "connection.tune")
    one.send(0, "connection.tune-ok")
    one.send(0, "connection.open", virtual_host="/")
    one.expect_close(530)


def test_what_is_tuned_is_enforced(start_broker: Start, client: Open) -> None:
    broker = start_broker({"amqp091.frame_max": 8192, "amqp091.channel_max": 3, "amqp091.heartbeat": "7s"})
    one = client(broker).greet().start_ok().open(frame_max=4096, channel_max=2)
    assert one.tune == {"channel_max": 3, "frame_max": 8192, "heartbeat": 7}
    one.send_raw(encode_frame(1, 0, bytes(4096 + 1)))  # payloads up to frame_max are forgiven: some clients count so
    one.expect_close(501, (0, 0))
    for channel_max, frame_max in ((4, 0), (0, 8193), (0, 4095)):
        one = client(broker).greet().start_ok()
        one.expect(0, "connection.tune")
        one.send(0, "connection.tune-ok", channel_max=channel_max, frame_max=frame_max)
        one.expect_close(530, (10, 31))


def test_frames_before_the_client_is_known_are_bounded(broker: Broker, client: Open) -> None:
    one = client(broker).greet()
    one.send_raw(bytes((1, 0, 0)) + (200_000).to_bytes(4, "big"))
    one.expect_close(501)


def test_out_of_turn(broker: Broker, client: Open) -> None:
    before = refused(broker, "malformed")
    one = client(broker).greet()
    one.send(0, "connection.tune-ok")
    one.expect_close(504, (10, 31))
    one = client(broker).greet().start_ok()
    one.expect(0, "connection.tune")
    one.send(1, "channel.open")
    one.expect_close(503)
    assert refused(broker, "malformed") == before + 2
    errors = ended(broker, "protocol_error")
    one = client(broker).login()
    one.send(0, "connection.open", virtual_host="/")
    one.expect_close(504, (10, 40))
    wait_until(lambda: ended(broker, "protocol_error") == errors + 1)


@pytest.mark.parametrize(("payload", "code"), [
    (b"\0\x0a\0\x0b\xff\xff\xff\xff", 502), (b"\0\x0a\0\x0b", 502), (b"\0\x0a\0\x63", 503), (b"\0\x63\0\x0a", 504)])
def test_malformed_methods(broker: Broker, client: Open, payload: bytes, code: int) -> None:
    one = client(broker).greet()
    one.send_raw(encode_frame(1, 0, payload))
    one.expect_close(code)


def test_garbage_ends_with_an_answer_or_the_end(broker: Broker, client: Open) -> None:
    """After the header, before and after the login: whatever comes, the broker closes, and lives."""
    rng = random.Random(7)
    for round_ in range(60):
        one = client(broker)
        if round_ % 3:
            one.greet()
            if round_ % 3 == 2:
                one.start_ok().open()
        noise = bytes(rng.choices((0, 1, 2, 3, 8, 10, 255), k=60)) + bytes(20) + rng.randbytes(200_000)
        with contextlib.suppress(ConnectionError):      # it need not read what comes behind its answer
            one.send_raw(noise)
            with contextlib.suppress(OSError):
                one.socket.shutdown(socket.SHUT_WR)
            while one.socket.recv(65536):
                pass
    client(broker).login().close()


# ── who it is ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("guarded")
    add_user(folder / "users", "anna", "secret")
    with Broker(folder / "broker", {"storage.type": "memory", "auth.users_file": folder / "users"}) as broker:
        yield broker


def test_without_users_everybody_is_let_in(broker: Broker, client: Open) -> None:
    client(broker).login(user="guest", password="guest").close()
    client(broker).login(user="", password="").close()
    client(broker).login(user="anna", password="x", mechanism="AMQPLAIN").close()


def test_passwords(guarded: Broker, client: Open) -> None:
    client(guarded).login(user="anna", password="secret").close()
    client(guarded).login(user="anna", password="secret", mechanism="AMQPLAIN").close()
    failures = metric(guarded, "fluxmq_auth_failures_total")
    for user, password in (("anna", "Secret"), ("bert", "secret"), ("", ""), ("anna", "")):
        one = client(guarded).greet().start_ok(user, password)
        assert "using authentication mechanism PLAIN." in one.expect_close(403, (0, 0))
        client(guarded).greet().start_ok(user, password, capabilities={}).expect_end()
    assert metric(guarded, "fluxmq_auth_failures_total") == failures + 8
    assert "login refused" in guarded.stderr() and "Secret" not in guarded.stderr()


def test_what_comes_ahead_of_the_answer_waits(guarded: Broker, client: Open) -> None:
    """While a password is checked nothing behind it is looked at."""
    wrong, right = client(guarded).greet(), client(guarded).greet()
    for one, password in ((wrong, "wrong"), (right, "secret")):
        one.send_raw(b"".join(encode_frame(METHOD, 0, encode_method(name, **given)) for name, given in (
            ("connection.start-ok", {"mechanism": "PLAIN", "response": f"\0anna\0{password}", "locale": "en_US"}),
            ("connection.tune-ok", {}), ("connection.open", {"virtual_host": "/"}))))
    wrong.expect_end()
    right.expect(0, "connection.tune")
    right.expect(0, "connection.open-ok")
    right.close()


def test_a_new_secret(guarded: Broker, client: Open) -> None:
    """It is not compared with the password, and the connection stays that of its user."""
    one = client(guarded).login(user="anna", password="secret")
    for secret in ("secret", "another"):
        one.call(0, "connection.update-secret", new_secret=secret, reason="hourly")
    one.call(1, "channel.open")
    one.close()


def test_users_that_are_gone_are_closed(tmp_path: Path, start_broker: Start, client: Open) -> None:
    for user in ("anna", "bert"):
        add_user(tmp_path / "users", user, "secret")
    broker = start_broker({"auth.users_file": tmp_path / "users"})
    anna, bert = (client(broker).login(user=user, password="secret") for user in ("anna", "bert"))
    lines = (tmp_path / "users").read_text().splitlines(keepends=True)
    (tmp_path / "users").write_text("".join(line for line in lines if not line.startswith("anna")))
    broker.reload()
    assert anna.expect_close(320) == "CONNECTION_FORCED - the user was removed"
    bert.close()


@pytest.mark.parametrize("client_id", ["amqp091-127.0.0.1:5-1", "amqp091-", "amqp:x"])
def test_mqtt_clients_do_not_pass_for_ours(broker: Broker, client_id: str) -> None:
    one = Client(broker.address)
    one.send(Connect(client_id=client_id))
    one.expect(Connack, reason=0x85)
    one.close()


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_broker_says_goodbye(start_broker: Start, client: Open) -> None:
    broker = start_broker()
    opened, greeted, silent = client(broker).login(), client(broker).greet(), client(broker)
    ending = threading.Thread(target=broker.terminate)
    ending.start()
    for one in (opened, greeted):
        assert one.expect_close(320) == "CONNECTION_FORCED - the broker is shutting down"
    silent.expect_end()
    ending.join()


def test_a_client_that_closes_says_why(broker: Broker, client: Open) -> None:
    one = client(broker).login()
    one.call(0, "connection.close", reply_code=541, reply_text="I am broken")
    one.expect_end()
    wait_until(lambda: "I am broken" in broker.stderr())


def test_a_lost_connection(broker: Broker, client: Open) -> None:
    before = ended(broker, "lost")
    client(broker).login().drop()
    wait_until(lambda: ended(broker, "lost") == before + 1)


def test_nobody_gets_more_connections_than_allowed(start_broker: Start, client: Open) -> None:
    broker = start_broker({"server.amqp091.plain.max_connections": 2})
    first, second = client(broker).login(), client(broker).login()
    client(broker).expect_end()
    assert refused(broker, "max_connections") == 1
    first.close()
    wait_until(lambda: metric(broker, "fluxmq_amqp_connections") == 1)
    client(broker).login().close()
    second.close()
