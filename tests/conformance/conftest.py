"""Fixtures of the conformance tests: one broker for all that need no configuration of their own, a factory for others.

Tests run side by side on the session's broker, so each uses client ids and topics of its own (`client_id`, `topic`).
After each test every broker it used must be alive and must have printed no traceback; when a test fails, what the
brokers printed meanwhile is shown.
"""
from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker, add_user
from kit.client import Client

_counter = itertools.count(1)
_used: list[tuple[Broker, int]] = []            # brokers of the test that runs, and where their stderr stood


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for number, (broker, since) in enumerate(_used, 1):
            if said := broker.stderr(since):
                report.sections.append((f"stderr of broker {number}", said))
    return report


@pytest.fixture(scope="session")
def session_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker")).start()
    yield broker
    broker.stop()


@pytest.fixture
def _brokers() -> Iterator[list[tuple[Broker, int]]]:
    """Registers the brokers that a test uses, and checks them at its end."""
    _used.clear()
    yield _used
    for broker, _ in _used:
        broker.check()


@pytest.fixture
def broker(session_broker: Broker, _brokers: list[tuple[Broker, int]]) -> Broker:
    """The session's broker, with the default configuration."""
    if not session_broker.running:
        session_broker.start()
    _brokers.append((session_broker, session_broker.stderr_size()))
    return session_broker


ACCESS_LIST = """
version: 1
rules:
  - {deny: all, topics: ["denied/#"]}
  - {deny: publish, topics: ["readonly/#"]}
  - {allow: all, topics: ["#"]}
"""


@pytest.fixture(scope="session")
def guarded_session_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("guarded")
    for user, password in (("anna", "annas secret"), ("bert=,", "pässwörd")):
        add_user(directory / "users", user, password)
    (directory / "acl.yaml").write_text(ACCESS_LIST)
    broker = Broker(directory / "broker", {
        "auth.users_file": directory / "users", "auth.acl_file": directory / "acl.yaml", "auth.allow_anonymous": True})
    yield broker.start()
    broker.stop()


@pytest.fixture
def guarded(guarded_session_broker: Broker, _brokers: list[tuple[Broker, int]]) -> Broker:
    """A broker with two users, anna and "bert=,". Nobody may use topics under denied/, nor publish under readonly/."""
    if not guarded_session_broker.running:
        guarded_session_broker.start()
    _brokers.append((guarded_session_broker, guarded_session_broker.stderr_size()))
    return guarded_session_broker


@pytest.fixture
def start_broker(tmp_path: Path, _brokers: list[tuple[Broker, int]]) -> Iterator[Callable[..., Broker]]:
    """Start a broker of the test's own: start_broker({"broker.max_qos": 1})."""
    mine: list[Broker] = []

    def start(settings: dict[str, object] | None = None) -> Broker:
        broker = Broker(tmp_path / f"broker{len(mine)}", settings)
        if broker.external:
            pytest.skip("needs a broker of its own")
        mine.append(broker)
        _brokers.append((broker, 0))
        return broker.start()

    yield start
    try:
        for broker in mine:
            broker.check()
    finally:
        for broker in mine:
            broker.stop()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names that no other test uses: name("sub") → "retain-12-sub"."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name.removeprefix("test_"))[:40].strip("-")
    base = f"{stem}-{os.getpid()}-{next(_counter)}"
    return lambda role: f"{base}-{role}"


@pytest.fixture
def topic(name: Callable[[str], str]) -> str:
    """A Topic Name that no other test uses; tests add levels to it."""
    return f"test/{name('t')}"


@pytest.fixture
def open_client(broker: Broker) -> Iterator[Callable[..., Client]]:
    """Open connections to the session's broker, or to another: open_client(), open_client(other, version=4)."""
    opened: list[Client] = []

    def open_(where: Any = None, version: int = 5) -> Client:
        if where is None:
            where = broker.address
        elif isinstance(where, Broker):
            where = where.address
        client = Client(where, version)
        opened.append(client)
        return client

    yield open_
    for client in opened:
        client.close()


@pytest.fixture
def client(open_client: Callable[..., Client], name: Callable[[str], str],
           request: pytest.FixtureRequest) -> Callable[..., Client]:
    """Connected clients: client("sub", will=…) opens, connects with the id name("sub") and expects acceptance.

    Keywords: `where` another broker, `version`, and the fields of CONNECT. The CONNACK is in `.connack`.
    """
    def connected(role: str = "c", *, where: Any = None, version: int = 5, **options: Any) -> Client:
        opened = open_client(where, version)
        opened.connect(options.pop("client_id", name(role)), **options)
        return opened

    return connected
