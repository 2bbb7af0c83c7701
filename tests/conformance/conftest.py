"""Fixtures of the conformance tests: one broker for all that need no configuration of their own, a factory for others.

Tests run side by side on the session's broker, so each uses client ids and topics of its own (`client_id`, `topic`).
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.broker import Broker, add_user
from kit.brokers import Brokers
from kit.client import Client


@pytest.fixture(scope="session")
def session_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker")).start()
    yield broker
    broker.stop()


@pytest.fixture
def broker(session_broker: Broker, brokers: Brokers) -> Broker:
    """The session's broker, with the default configuration."""
    return brokers.use(session_broker)


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
def guarded(guarded_session_broker: Broker, brokers: Brokers) -> Broker:
    """A broker with two users, anna and "bert=,". Nobody may use topics under denied/, nor publish under readonly/."""
    return brokers.use(guarded_session_broker)


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
