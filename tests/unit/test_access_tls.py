"""TLS contexts: real handshakes in memory, renewal, and errors that name the key."""
import errno
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from kit.certs import CertificateAuthority, issue, make_ca

from fluxmq._core.errors import ConfigError
from fluxmq.access.certificate_names import peer_username
from fluxmq.access.tls import ServerContexts


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return make_ca(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(ca: CertificateAuthority) -> tuple[str, str]:
    return issue(ca, "broker", dns=["localhost"], ip=["127.0.0.1"])


def client_context(ca: CertificateAuthority, identity: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca.cert_file))
    if identity:
        context.load_cert_chain(*identity)
    return context


class Link:
    """A client and a server in one process; `shake` runs the handshake and one byte each way."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(up, down, server_side=True)
        self.client = client.wrap_bio(down, up, server_hostname="localhost", session=session)

    def shake(self) -> "Link":
        pending = [self.client.do_handshake, self.server.do_handshake]
        for _ in range(20):
            for action in list(pending):
                try:
                    action()
                    pending.remove(action)
                except ssl.SSLWantReadError:
                    pass
            if not pending:
                self.talk()
                return self
        raise AssertionError("the handshake does not end")

    def talk(self) -> None:
        self.client.write(b"x")
        assert self.server.read(1) == b"x"
        self.server.write(b"y")
        assert self.client.read(1) == b"y"


def test_a_handshake(ca: CertificateAuthority, pair: tuple[str, str]) -> None:
    link = Link(ServerContexts(*pair).current, client_context(ca)).shake()
    assert link.client.version() == "TLSv1.3"
    assert not link.server.getpeercert()


def test_client_certificates(ca: CertificateAuthority, pair: tuple[str, str], tmp_path: Path) -> None:
    mine = issue(ca, "device-7", uri=["urn:device:7"])
    stranger = issue(make_ca(tmp_path, "other"), "device-7")
    old = issue(ca, "device-8", expired=True)
    for client_auth, without in (("require", False), ("request", True), ("", False)):
        server = ServerContexts(*pair, ca_file=str(ca.cert_file), client_auth=client_auth).current
        link = Link(server, client_context(ca, mine)).shake()
        assert peer_username(link.server.getpeercert(), "cn") == "device-7"
        assert peer_username(link.server.getpeercert(), "san") == "urn:device:7"
        for identity, allowed in ((stranger, False), (old, False), (None, without)):
            link = Link(server, client_context(ca, identity))
            if allowed:
                link.shake()
                assert peer_username(link.server.getpeercert(), "cn") is None
            else:
                with pytest.raises(ssl.SSLError):
                    link.shake()


def test_versions_and_suites(ca: CertificateAuthority, pair: tuple[str, str]) -> None:
    old = client_context(ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        Link(ServerContexts(*pair, min_version="tls1.3").current, old).shake()
    for name in ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"):
        link = Link(ServerContexts(*pair, cipher_suites=[name]).current, old).shake()
        cipher = link.client.cipher()
        assert cipher and cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    # TLS 1.3 is not narrowed by them.
    link = Link(ServerContexts(*pair, cipher_suites=[name]).current, client_context(ca)).shake()
    assert link.client.version() == "TLSv1.3"


def test_renewal(ca: CertificateAuthority, tmp_path: Path) -> None:
    def serial(link: Link) -> str:
        certificate = link.client.getpeercert()
        assert certificate
        return str(certificate["serialNumber"])

    cert_file, key_file = issue(ca, "broker", dns=["localhost"], name="renewed")
    contexts = ServerContexts(cert_file, key_file)
    first = contexts.current
    standing = Link(contexts.current, client_context(ca)).shake()
    begun = Link(contexts.current, client_context(ca))
    issue(ca, "broker", dns=["localhost"], name="renewed")
    assert serial(Link(contexts.current, client_context(ca)).shake()) == serial(standing)
    assert contexts.reload() == ""
    assert contexts.current is not first
    assert serial(Link(contexts.current, client_context(ca)).shake()) != serial(standing)
    standing.talk()
    assert serial(begun.shake()) == serial(standing)
    second = contexts.current
    for damage in (b"", b"nonsense", Path(issue(ca, "x")[1]).read_bytes()):
        Path(key_file).write_bytes(damage)
        problem = contexts.reload()
        assert "key_file" in problem and "stay in force" in problem
        assert contexts.current is second
        Link(contexts.current, client_context(ca)).shake()


def test_sessions_are_resumed_but_not_across_a_renewal(ca: CertificateAuthority, pair: tuple[str, str]) -> None:
    identity = issue(ca, "device-9")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        contexts = ServerContexts(*pair, ca_file=str(ca.cert_file), client_auth="require")
        client = client_context(ca, identity)
        client.maximum_version = version
        session = Link(contexts.current, client).shake().client.session
        link = Link(contexts.current, client, session).shake()
        assert link.client.session_reused
        assert peer_username(link.server.getpeercert(), "cn") == "device-9"
        assert contexts.reload() == ""
        assert not Link(contexts.current, client, session).shake().client.session_reused


def refused(key: str, words: str, cert_file: str, key_file: str, **options: object) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerContexts(cert_file, key_file, path="server.mqtt.tcp.tls", **options)  # type: ignore[arg-type]
    assert caught.value.path == f"server.mqtt.tcp.tls.{key}"
    assert words in caught.value.text, caught.value.text


def test_errors_name_the_key(ca: CertificateAuthority, pair: tuple[str, str], tmp_path: Path) -> None:
    cert_file, key_file = pair
    empty, nonsense = tmp_path / "empty", tmp_path / "nonsense"
    empty.write_bytes(b"")
    nonsense.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    refused("cert_file", "No such file", "missing.crt", key_file)
    refused("key_file", "No such file", cert_file, "missing.key")
    refused("cert_file", "needs this file", "", key_file)
    refused("cert_file", "no PEM block", str(empty), key_file)
    refused("cert_file", "no PEM block", key_file, key_file)
    refused("key_file", "no PEM block", cert_file, cert_file)
    refused("cert_file", "cannot be used", str(nonsense), key_file)
    refused("key_file", "not the key of", cert_file, issue(ca, "other")[1])
    refused("key_file", "not the key of", cert_file, issue(ca, "other", key_type="rsa")[1])
    ca_file = str(ca.cert_file)
    refused("ca_file", "No such file", *pair, ca_file="missing.pem")
    refused("ca_file", "cannot be used", *pair, ca_file=str(nonsense))
    refused("ca_file", "authorities that sign", *pair, client_auth="require")
    refused("client_auth", "would do nothing", *pair, client_auth="none", ca_file=ca_file)
    refused("client_auth", "none, request, require", *pair, client_auth="always", ca_file=ca_file)
    refused("min_version", "RFC 8996", *pair, min_version="tls1.1")
    refused("min_version", "tls1.2 and tls1.3", *pair, min_version="1.2")
    refused("cipher_suites[0]", "did you mean ECDHE-RSA-AES128-GCM-SHA256",
            *pair, cipher_suites=["ECDHE-RSA-AES128-GCM-SHA25"])
    refused("cipher_suites[1]", "TLS 1.3",
            *pair, cipher_suites=["ECDHE-RSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"])
    for word in ("HIGH", "ALL", "!aNULL", "ECDHE-RSA-AES128-GCM-SHA256:ALL", ""):
        refused("cipher_suites[0]", "not known", *pair, cipher_suites=[word])
    for word in ("AECDH-NULL-SHA", "ECDHE-ECDSA-NULL-SHA", "NULL-SHA256", "PSK-AES128-GCM-SHA256", "ADH-AES128-SHA256"):
        refused("cipher_suites[0]", "too weak", *pair, cipher_suites=[word])
    refused("cipher_suites", "excludes", *pair, min_version="tls1.3", cipher_suites=["ECDHE-RSA-AES128-GCM-SHA256"])


def test_an_encrypted_key_asks_nobody(pair: tuple[str, str], tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    key = serialization.load_pem_private_key(Path(pair[1]).read_bytes(), None)
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                         serialization.BestAvailableEncryption(b"secret")))
    refused("key_file", "pass phrase", pair[0], str(locked))


def test_a_file_that_may_not_be_read(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Not by its mode: who runs the tests may be root, who reads every file.
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if str(path) == pair[1]:
            raise PermissionError(errno.EACCES, "Permission denied", pair[1])
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    refused("key_file", "Permission denied (as user", *pair)


def test_names_in_certificates() -> None:
    def subject(*names: str) -> dict[str, object]:
        return {"subject": ((("countryName", "AT"),), *((("commonName", name),) for name in names))}

    assert peer_username(subject("anna"), "cn") == "anna"
    assert peer_username(subject("anna", "bert"), "cn") is None
    assert peer_username(subject(), "cn") is None
    assert peer_username(subject("an\0na"), "cn") is None
    assert peer_username(subject(""), "cn") is None
    for empty in (None, {}):
        assert peer_username(empty, "cn") is None and peer_username(empty, "san") is None
    names = (("email", "a@b"), ("DNS", "one.example"), ("DNS", "two.example"), ("IP Address", "127.0.0.1"),
             ("URI", "urn:a"), ("URI", "urn:b"))
    assert peer_username({"subjectAltName": names}, "san") == "urn:a"
    assert peer_username({"subjectAltName": names[:4]}, "san") == "one.example"
    assert peer_username({"subjectAltName": names[:1]}, "san") == "a@b"
    assert peer_username({"subjectAltName": names[3:4]}, "san") is None
    assert peer_username({"subjectAltName": (("URI", "urn:\x01"), ("DNS", "x"))}, "san") is None
    with pytest.raises(ConfigError, match="cn and san"):
        peer_username(subject("anna"), "dn")
