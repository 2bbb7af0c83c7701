"""SIGHUP: certificates, users and access list are read again, nobody is disconnected, what is bad changes nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from interop.peers.base import Endpoint
from interop.tls import open_tls, reload, serial_in, serial_of_server, wait_until
from kit.broker import Broker, add_user
from kit.certs import CertificateAuthority, issue
from kit.client import Client
from kit.python import environment
from oracle.mqtt import Disconnect, Puback, Publish

Start = Callable[..., Broker]


def certificate(authority: CertificateAuthority, name: str) -> tuple[str, str]:
    return issue(authority, "localhost", dns=["localhost"], ip=["127.0.0.1"], name=name)


def test_renewed_certificate(start_broker: Start, authority: CertificateAuthority) -> None:
    """New connections see it; those that stand go on. A bad one is reported, and the last good one stays."""
    cert, key = certificate(authority, "renewed")
    slots = {"mqtt/tcp/tls": "tls", "mqtt/websocket/tls": "wss"}
    broker = start_broker(
        {
            f"server.{slot.replace('/', '.')}.{name}": value
            for slot in slots
            for name, value in (("addr", "127.0.0.1:0"), ("cert_file", cert), ("key_file", key))
        }
    )
    where = [Endpoint(*broker.addresses[slot], kind, str(authority.cert_file)) for slot, kind in slots.items()]
    first = serial_in(cert)
    old = open_tls(where[0])
    old.connect("old")
    assert {serial_of_server(place) for place in where} == {first}

    certificate(authority, "renewed")
    second = serial_in(cert)
    assert {serial_of_server(place) for place in where} == {first}  # nothing before SIGHUP
    assert reload(broker) == ""
    assert second != first
    assert {serial_of_server(place) for place in where} == {second}
    old.expect_quiet()

    Path(cert).write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    said = reload(broker)
    assert "server.mqtt.tcp.tls.cert_file" in said
    assert "stay in force" in said
    assert {serial_of_server(place) for place in where} == {second}

    other_cert, _ = certificate(authority, "another")  # a certificate whose key is another one
    Path(cert).write_bytes(Path(other_cert).read_bytes())
    assert "is not the key of the certificate" in reload(broker)
    assert {serial_of_server(place) for place in where} == {second}

    certificate(authority, "renewed")
    assert reload(broker) == ""
    assert {serial_of_server(place) for place in where} == {serial_in(cert)}
    old.expect_quiet()
    old.disconnect()


def remove_user(file: Path, user: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "fluxmq", "user", "remove", "--yes", "--file", str(file), user],
        check=True,
        env=environment(),
        timeout=30,
        capture_output=True,
    )


def connect(broker: Broker, user: str, password: bytes, expect: int = 0) -> Client:
    client = Client(broker.address)
    client.connect(f"{user}-{password.decode()}", username=user, password=password, expect=expect)
    return client


def test_users(start_broker: Start, tmp_path: Path) -> None:
    """A removed user, and an old password, are refused at once, although both were right a moment ago."""
    users = tmp_path / "users"
    for user in ("anna", "bert"):
        add_user(users, user, "first")
    broker = start_broker({"auth.users_file": users})
    standing = connect(broker, "anna", b"first")
    connect(broker, "bert", b"first").disconnect()
    remove_user(users, "anna")
    add_user(users, "bert", "second")
    add_user(users, "carla", "new")
    connect(broker, "carla", b"new", expect=0x86).expect_closed()  # nothing before SIGHUP
    assert reload(broker) == ""
    connect(broker, "anna", b"first", expect=0x86).expect_closed()
    connect(broker, "bert", b"first", expect=0x86).expect_closed()
    connect(broker, "bert", b"second").disconnect()
    connect(broker, "carla", b"new").disconnect()
    assert standing.expect(Disconnect).reason == 0x87
    standing.expect_closed()

    users.write_text("this is no users file\n")
    assert str(users) in reload(broker)
    connect(broker, "bert", b"second").disconnect()


OPEN = """
version: 1
rules:
  - {allow: all, topics: ["#"]}
"""
NARROW = """
version: 1
rules:
  - {allow: publish, client: allowed, topics: ["plant/#"]}
  - {deny: all, topics: ["plant/#"]}
  - {allow: all, topics: ["#"]}
"""


def test_access_list(start_broker: Start, tmp_path: Path) -> None:
    """What had been permitted, and remembered as such, is denied from the reload on; and the other way round."""
    acl = tmp_path / "acl.yaml"
    acl.write_text(OPEN)
    broker = start_broker({"auth.acl_file": acl})
    client, old = Client(broker.address), Client(broker.address, 4)
    client.connect("five")
    old.connect("three")
    watcher = Client(broker.address)
    watcher.connect("watcher")
    watcher.subscribe("plant/#", qos=1)
    allowed = Client(broker.address)
    allowed.connect("allowed")
    for _ in range(3):  # the second time it is remembered
        client.publish("plant/a", b"before", 1, expect=0)
        client.publish("other/a", b"before", 1, expect=0x10)
        old.publish("plant/a", b"before", 1)
        watcher.receive("plant/a", b"before")
        watcher.receive("plant/a", b"before")

    acl.write_text(NARROW)
    client.publish("plant/a", b"before SIGHUP", 1, expect=0)
    watcher.receive("plant/a", b"before SIGHUP")
    assert reload(broker) == ""
    client.publish("plant/a", b"after", 1, expect=0x87)
    client.publish("plant/a", b"after", 2, expect=0x87)
    client.publish("plant/a", b"after", 0)
    client.publish("plant/new", b"after", 1, expect=0x87)
    client.publish("other/a", b"after", 1, expect=0x10)
    client.subscribe("plant/a", qos=1, expect=[0x87])
    allowed.publish("plant/a", b"from one who may", 1, expect=0x10)  # the watcher may no longer, and is not matched
    old.send(Publish(topic="plant/a", payload=b"after", qos=1, packet_id=77))
    old.expect_closed()  # 3.1.1 has no other way to say it
    watcher.expect_quiet()  # nothing of all that came

    acl.write_text("version: 1\nrules: 7\n")
    assert str(acl) in reload(broker)
    client.publish("plant/a", b"after", 1, expect=0x87)

    acl.write_text(OPEN)
    assert reload(broker) == ""
    client.publish("plant/a", b"open again", 1, expect=0)
    watcher.receive("plant/a", b"open again")


def test_alias_is_judged_anew(start_broker: Start, tmp_path: Path) -> None:
    """A topic that comes as an alias is no way around the access list."""
    acl = tmp_path / "acl.yaml"
    acl.write_text(OPEN)
    broker = start_broker({"auth.acl_file": acl})
    client = Client(broker.address)
    client.connect("c")
    client.publish("plant/a", b"", 1, properties={"topic_alias": 1})
    acl.write_text(NARROW)
    assert reload(broker) == ""
    client.send(Publish(topic="", payload=b"", qos=1, packet_id=9, properties={"topic_alias": 1}))
    client.expect(Puback, packet_id=9, reason=0x87)


def test_signals_in_a_row(start_broker: Start, tmp_path: Path) -> None:
    """Many SIGHUP under traffic: none ends the broker, no message is lost."""
    acl = tmp_path / "acl.yaml"
    acl.write_text(OPEN)
    broker = start_broker({"auth.acl_file": acl})
    client = Client(broker.address)
    client.connect("c")
    client.subscribe("t", qos=1)
    since = broker.stderr_size()
    for number in range(50):
        broker.reload()
        client.publish("t", b"%d" % number, 1, expect=0)
        client.receive("t", b"%d" % number)
    wait_until(lambda: "reloaded" in broker.stderr(since), "no reload was reported")


@pytest.mark.parametrize("gone", ["users", "acl.yaml"])
def test_file_that_went_away(gone: str, start_broker: Start, tmp_path: Path) -> None:
    """Both files hold together: when one cannot be read, neither changes."""
    users, acl = tmp_path / "users", tmp_path / "acl.yaml"
    add_user(users, "anna", "secret")
    acl.write_text(OPEN)
    broker = start_broker({"auth.users_file": users, "auth.acl_file": acl})
    (tmp_path / gone).unlink()
    if gone == "users":
        acl.write_text(NARROW)
    assert gone in reload(broker)
    client = connect(broker, "anna", b"secret")
    client.publish("plant/a", b"", 1, expect=0x10)
    client.disconnect()
