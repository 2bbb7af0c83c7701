"""Fixtures of the AMQP 0-9-1 tests: a broker (FluxMQ, or RabbitMQ by --amqp-broker=rabbitmq), and clients of it.

One broker serves all tests of a session that need none of their own, so every name is new in every test (`name`).
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from amqp091.clients import CLIENTS
from amqp091.clients.base import Channel, Client, Connection, Where
from kit.amqp_wire import Wire
from kit.broker import Broker, add_user, free_port
from kit.brokers import Brokers, Process
from kit.on_three_nodes import keeps_exclusive
from kit.rabbitmq import RabbitNode
from kit.three_nodes import ThreeNodes, ThreeNodesWire, without_exclusive

from fluxmq.model.config import Server

SPOKEN = "amqp091" in Server.__struct_fields__


class AmqpBroker(Process, Protocol):
    """kind: fluxmq or rabbitmq. amqp: where it listens."""

    kind: str

    @property
    def amqp(self) -> tuple[str, int]: ...
    def restart(self) -> None: ...
    def kill(self) -> None: ...


class FluxNode(Broker):
    """`fluxmq run` with an AMQP listener."""

    kind = "fluxmq"

    def __init__(self, directory: Path, **settings: object) -> None:
        super().__init__(directory, {"amqp091.max_message_size": 32 << 20, **settings})

    @property
    def amqp(self) -> tuple[str, int]:
        return self.addresses["amqp091/plain"]

    def _start(self) -> Broker:
        if not self.addresses:
            self.settings["server.amqp091.plain.addr"] = f"127.0.0.1:{free_port()}"
        return super()._start()


def make_broker(config: pytest.Config, directory: Path) -> AmqpBroker:
    if config.getoption("--amqp-broker") == "rabbitmq":
        return RabbitNode(directory)
    return FluxNode(directory)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nothing here runs against a FluxMQ whose configuration has no server.amqp091. The first test says so, for all."""
    if SPOKEN or config.getoption("--amqp-broker") == "rabbitmq":
        return
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    if mine:
        mine[0].add_marker(pytest.mark.skip(reason="this version has no AMQP listener yet"))
        config.hook.pytest_deselected(items=mine[1:])
        items[:] = [item for item in items if item not in set(mine[1:])]


@pytest.fixture(scope="session")
def session_amqp_broker(request: pytest.FixtureRequest,
                        tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpBroker]:
    broker = make_broker(request.config, tmp_path_factory.mktemp("amqp-broker"))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def amqp_broker(request: pytest.FixtureRequest, brokers: Brokers, nodes: ThreeNodes | None) -> AmqpBroker:
    """The session's broker."""
    return brokers.use(nodes or request.getfixturevalue("session_amqp_broker"))


@pytest.fixture
def shared_names(request: pytest.FixtureRequest, nodes: ThreeNodes | None) -> Callable[[], str] | None:
    """On three nodes: names for the ordinary queues that are declared instead of exclusive ones, which the node of
    their connection would have. None: exclusive queues are exclusive."""
    if nodes is None or keeps_exclusive(request.node):
        return None
    return nodes.new_name


@pytest.fixture
def own_broker(request: pytest.FixtureRequest, tmp_path: Path, brokers: Brokers) -> AmqpBroker:
    """A broker of the test's own, to restart and to kill."""
    return brokers.begin(make_broker(request.config, tmp_path / "broker"))


@pytest.fixture(scope="session")
def guarded_broker(request: pytest.FixtureRequest, session_amqp_broker: AmqpBroker,
                   tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpBroker]:
    """One that knows users: guest with the password guest. RabbitMQ always does."""
    if session_amqp_broker.kind == "rabbitmq":
        yield session_amqp_broker
        return
    directory = tmp_path_factory.mktemp("guarded")
    add_user(directory / "users", "guest", "guest")
    broker = FluxNode(directory / "broker", **{"auth.users_file": str(directory / "users")})
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `client` runs once for each library that has what `@pytest.mark.needs(…)` names."""
    if "client" in metafunc.fixturenames:
        needed = {word for mark in metafunc.definition.iter_markers("needs") for word in mark.args}
        metafunc.parametrize("client", [kind for kind in CLIENTS if not needed & kind.lacks], indirect=True,
                             ids=lambda kind: kind.name)


@pytest.fixture
def client(request: pytest.FixtureRequest, libraries: Callable[[type[Client]], Client]) -> Client:
    return libraries(request.param)


@pytest.fixture
def where(amqp_broker: AmqpBroker) -> Where:
    return Where(*amqp_broker.amqp)


@pytest.fixture
def connect(client: Client, where: Where, nodes: ThreeNodes | None,
            shared_names: Callable[[], str] | None) -> Iterator[Callable[..., Connection]]:
    """Connections of the library, closed at the end: connect(), connect(another)."""
    opened: list[Connection] = []

    def open_(to: Where = where) -> Connection:
        if nodes is not None:
            nodes.settle()
            host, port = nodes.amqp
            to = replace(to, host=host, port=port)
        opened.append(client.connect(to))
        if shared_names is not None:
            without_exclusive(opened[-1], shared_names)
        return opened[-1]

    yield open_
    for connection in opened:
        if not connection.dropped:
            connection.close()


@pytest.fixture
def connection(connect: Callable[..., Connection]) -> Connection:
    return connect()


@pytest.fixture
def channel(connection: Connection) -> Channel:
    return connection.channel()


@pytest.fixture
def open_wire(amqp_broker: AmqpBroker, nodes: ThreeNodes | None,
              shared_names: Callable[[], str] | None) -> Iterator[Callable[[], Wire]]:
    """Bare connections, of which nothing was sent yet; closed at the end."""
    opened: list[Wire] = []

    def open_() -> Wire:
        if nodes is not None:
            nodes.settle()
        opened.append(ThreeNodesWire(amqp_broker.amqp, shared_names) if shared_names else Wire(amqp_broker.amqp))
        return opened[-1]

    yield open_
    for wire in opened:
        wire.drop()


@pytest.fixture
def login(open_wire: Callable[[], Wire]) -> Callable[..., Wire]:
    """Bare connections with channel 1 open: login(), login(channel_max=5)."""
    def opened(**how: Any) -> Wire:
        wire = open_wire().login(**how)
        wire.open_channel(1)
        return wire

    return opened


@pytest.fixture
def wire(login: Callable[..., Wire]) -> Wire:
    return login()
