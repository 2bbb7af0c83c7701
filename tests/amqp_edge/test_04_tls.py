"""AMQP over TLS: certificates that name the user, certificates that are renewed."""
from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.amqp_wire import Closed, Wire
from kit.broker import Broker, add_user
from kit.certs import CertificateAuthority, issue, make_ca
from kit.client import TIMEOUT
from kit.watch import metric, wait_until

Start = Callable[..., Broker]


class Secure:
    """A broker with TLS, with and without client certificates, and users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca: CertificateAuthority = make_ca(folder / "ca")
        self.anna = issue(self.ca, "anna")
        self.server = [folder / "server.crt", folder / "server.key"]
        self.renew()
        add_user(folder / "users", "anna", "secret")
        add_user(folder / "users", "bert", "hidden")
        settings: dict[str, object] = {"storage.type": "memory", "auth.users_file": folder / "users"}
        for slot in ("tls", "mtls"):
            settings |= {f"server.amqp091.{slot}.{key}": value for key, value in {
                "addr": "127.0.0.1:0", "cert_file": self.server[0], "key_file": self.server[1],
                "ca_file": self.ca.cert_file, "username_from": "cn"}.items()}
        settings["server.amqp091.tls.client_auth"] = "request"
        self.broker = Broker(folder / "broker", settings).start()

    def renew(self) -> None:
        for made, used in zip(issue(self.ca, "localhost", ip=["127.0.0.1"]), self.server, strict=True):
            shutil.copy(made, used)

    def open(self, slot: str, certificate: tuple[Path, Path] | None) -> Wire:
        raw = socket.create_connection(self.broker.addresses[f"amqp091/{slot}"], TIMEOUT)
        context = ssl.create_default_context(cafile=str(self.ca.cert_file))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return Wire(context.wrap_socket(raw, server_hostname="127.0.0.1"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    one = Secure(tmp_path_factory.mktemp("secure"))
    yield one
    one.broker.check()
    one.broker.stop()


@pytest.mark.parametrize("slot", ["tls", "mtls"])
def test_the_certificate_is_who_it_is(secure: Secure, slot: str) -> None:
    one = secure.open(slot, secure.anna).greet()
    assert one.server["mechanisms"] == b"EXTERNAL PLAIN AMQPLAIN"
    one.start_ok(mechanism="EXTERNAL", response=b"").open().close()
    secure.open(slot, secure.anna).greet().start_ok(mechanism="EXTERNAL", response=b"anna").open().close()
    for how in ({"mechanism": "EXTERNAL", "response": b"bert"}, {"user": "bert", "password": "hidden"}):
        one = secure.open(slot, secure.anna).greet().start_ok(**how)
        one.expect_close(403)


def test_without_a_certificate_a_password_is_needed(secure: Secure) -> None:
    one = secure.open("tls", None).greet()
    assert one.server["mechanisms"] == b"PLAIN AMQPLAIN"
    one.start_ok("bert", "hidden").open().close()
    secure.open("tls", None).greet().start_ok("bert", "wrong").expect_close(403)
    secure.open("tls", None).greet().start_ok(mechanism="EXTERNAL", response=b"anna").expect_close(503)


def test_mtls_takes_nobody_without_a_certificate(secure: Secure) -> None:
    before = metric(secure.broker, "fluxmq_amqp_refused_total", reason="tls")
    with pytest.raises((Closed, ConnectionError, ssl.SSLError)):
        secure.open("mtls", None).greet()
    wait_until(lambda: metric(secure.broker, "fluxmq_amqp_refused_total", reason="tls") == before + 1)


def test_a_renewed_certificate_is_shown_after_sighup(secure: Secure) -> None:
    old = secure.open("tls", secure.anna)
    shown = old.socket.getpeercert()["serialNumber"]
    secure.renew()
    since = secure.broker.stderr_size()
    secure.broker.reload()
    wait_until(lambda: "reloaded" in secure.broker.stderr(since))
    new = secure.open("tls", secure.anna)
    assert new.socket.getpeercert()["serialNumber"] != shown
    for one in (old, new):
        one.greet().start_ok(mechanism="EXTERNAL", response=b"").open().close()
