"""Fixtures of the tests of AMQP 0-9-1 connections: a broker, and clients that send what they are told."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kit.amqp_wire import Wire
from kit.broker import Broker

Start = Callable[..., Broker]
Open = Callable[..., Wire]
PLAIN = "amqp091/plain"
SETTINGS: dict[str, object] = {"storage.type": "memory", "log.level": "debug"}


@pytest.fixture
def broker_settings() -> dict[str, object]:
    return dict(SETTINGS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that needs no settings of its own, for all tests of a file."""
    with Broker(tmp_path_factory.mktemp("broker"), dict(SETTINGS)) as one:
        yield one


@pytest.fixture
def client() -> Iterator[Open]:
    """client(broker): a connection on which nothing was sent yet."""
    opened: list[Wire] = []

    def open_(broker: Broker, slot: str = PLAIN) -> Wire:
        opened.append(Wire(broker.addresses[slot]))
        return opened[-1]

    yield open_
    for one in opened:
        one.drop()
