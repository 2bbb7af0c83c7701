"""`fluxmq user` and logins: what the file's keeper types, and what clients meet."""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop.conftest import Peer, each, peers
from interop.peers.base import Endpoint, Library, Options, Refused
from kit.broker import WHICH, Broker
from kit.brokers import Brokers
from kit.client import Client
from kit.python import environment
from oracle.mqtt import Connack, Connect

PASSWORDS = {"anna": "annas secret", "bert": "pässwörd, mit ß"}
LOGINS = 60


def user(*words: str, password: str = "") -> subprocess.CompletedProcess[str]:
    """`fluxmq user …`; the password goes to standard input."""
    return subprocess.run([sys.executable, "-m", "fluxmq", "user", *words], input=f"{password}\n" if password else "",
                          capture_output=True, text=True, timeout=30, check=False, env=environment())


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("users") / "users"
    for name, password in PASSWORDS.items():
        done = user("add", name, "--file", str(file), "--password-stdin", password=password)
        assert done.returncode == 0, done.stderr
    return file


@pytest.fixture(scope="module")
def guarded_broker(users_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if WHICH:
        pytest.skip("needs a broker of ours")
    broker = Broker(tmp_path_factory.mktemp("guarded"), {"auth.users_file": users_file}).start()
    yield broker
    broker.stop()


@pytest.fixture
def guarded(guarded_broker: Broker, brokers: Brokers) -> Broker:
    return brokers.use(guarded_broker)


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "users"
    for name in ("anna", "bert"):
        assert user("add", name, "--file", str(file), "--password-stdin", password="secret").returncode == 0
    assert user("list", "--file", str(file)).stdout.split() == ["anna", "bert"]
    before = file.read_text()
    assert "secret" not in before
    assert file.stat().st_mode & 0o777 == 0o600
    assert user("add", "anna", "--file", str(file), "--password-stdin", password="other").returncode == 0
    assert file.read_text() != before
    assert user("list", "--file", str(file)).stdout.split() == ["anna", "bert"]
    assert user("remove", "anna", "--yes", "--file", str(file)).returncode == 0
    assert user("list", "--file", str(file)).stdout.split() == ["bert"]
    again = user("remove", "anna", "--yes", "--file", str(file))
    assert again.returncode != 0
    assert "no user anna" in again.stderr
    for wrong in ("", "#name", "a b", "x" * 256):
        refused = user("add", wrong, "--file", str(file), "--password-stdin", password="secret")
        assert refused.returncode != 0
        assert refused.stderr and "Traceback" not in refused.stderr
    assert user("list", "--file", str(file)).stdout.split() == ["bert"]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("username", "password", "reason"), [
    ("anna", "annas secret", 0), ("bert", "pässwörd, mit ß", 0),
    ("anna", "wrong", 0x86), ("anna", "", 0x86), ("anna", "pässwörd, mit ß", 0x86), ("nobody", "annas secret", 0x86),
    ("ANNA", "annas secret", 0x86), ("", "annas secret", 0x86), ("anna", "annas secret ", 0x86),
    ("anna", None, 0x86), (None, None, 0x87)])
def test_logins(username: str | None, password: str | None, reason: int, version: int, guarded: Broker) -> None:
    """3.1.1 knows return code 4 for the one, 5 for the other."""
    client = Client(guarded.address, version)
    given = {"username": username, "password": None if password is None else password.encode()}
    code = reason if version == 5 else {0: 0, 0x86: 4, 0x87: 5}[reason]
    client.connect("c", **{key: value for key, value in given.items() if value is not None}, expect=code)
    if reason:
        client.expect_closed()
    else:
        client.disconnect()


def test_password_that_is_no_text(guarded: Broker) -> None:
    """A password is any bytes [MQTT-3.1.3.6]; these are nobody's."""
    client = Client(guarded.address)
    client.connect("c", username="anna", password=b"\xff\xfe\x00", expect=0x86)
    client.expect_closed()


@pytest.mark.parametrize("version", [4, 5])
def test_many_at_once(version: int, guarded: Broker) -> None:
    """Checking passwords takes long and many want it: each gets the right answer, and who is in does not wait."""
    standing = Client(guarded.address, version)
    standing.connect("standing", username="anna", password=b"annas secret")
    clients = [Client(guarded.address, version) for _ in range(LOGINS)]
    for number, client in enumerate(clients):
        good = number % 3 != 0
        client.send(Connect(client_id=f"c{number}", username="anna" if good else "bert",
                            password=b"annas secret" if good else b"wrong %d" % number))
    standing.expect_quiet()
    for number, client in enumerate(clients):
        wrong = 0x86 if version == 5 else 4
        client.expect(Connack, reason=0 if number % 3 else wrong)
        client.close()
    standing.disconnect()


def test_hurry_while_a_password_is_checked(guarded: Broker) -> None:
    """A client that leaves, or floods, before it has been told its answer harms nobody."""
    for number in range(10):
        client = Client(guarded.address)
        client.send(Connect(client_id=f"hurry{number}", username="bert", password=b"wrong %d" % number))
        if number % 2:
            client.send_to_the_end(b"\x30\x03\x00\x01a" * 20000)
        client.close()
    client = Client(guarded.address)
    client.connect("after", username="bert", password=PASSWORDS["bert"].encode())
    client.disconnect()


@each(peers(transports=("tcp",)))
def test_libraries(peer: Peer, guarded: Broker, libraries: Callable[[type[Library]], Library],
                   endpoint: Callable[..., Endpoint]) -> None:
    """What each library makes of it."""
    library = libraries(peer.library)
    where = endpoint("tcp", guarded)

    def options(client_id: str, username: str | None, password: str | None) -> Options:
        return Options(client_id, version=peer.version, filters=(("t", 0),), username=username, password=password)

    library.open(where, options("good", "bert", PASSWORDS["bert"])).close()
    for username, password, reason in (("anna", "wrong", 0x86), (None, None, 0x87)):
        with pytest.raises(Refused) as refusal:
            library.open(where, options("bad", username, password))
        if refusal.value.code is not None:
            # paho tells the return codes of 3.1.1 as their equals in 5.0
            assert refusal.value.code in (reason, {0x86: 4, 0x87: 5}[reason])
